"""What fails in a part of a compaction and does not stop the others: damage, or a temporary folder without space."""

from __future__ import annotations

import logging

from txnstore.core.model import TopicPartition
from txnstore.errors import CorruptionError, NoSpaceError

_LOG = logging.getLogger(__name__)

#: The errors of one partition, or topic: all others can be compacted.
PARTIAL = (CorruptionError, NoSpaceError)


class Failures:
    """The failures of one compaction.

    Attributes:
        uncleaned: The partitions whose clean failed. They are not merged, which would read and name the same again.
        unmerged: Those with a merge that failed.
    """

    def __init__(self) -> None:
        self._errors: list[CorruptionError | NoSpaceError] = []
        self._unreadable: set[str] = set()
        self.uncleaned: set[TopicPartition] = set()
        self.unmerged: set[TopicPartition] = set()

    def __len__(self) -> int:
        return len(self._errors)

    def topic(self, name: str, error: CorruptionError) -> None:
        """Note a topic that cannot be read, once."""
        if name in self._unreadable:
            return
        self._unreadable.add(name)
        _LOG.warning("topic skipped: unreadable", extra={"topic": name, "error": str(error)})
        self._add(f"topic {name!r} cannot be compacted", error)

    def clean(self, tp: TopicPartition, error: CorruptionError | NoSpaceError) -> None:
        """Note a clean that failed."""
        _LOG.warning("clean failed", extra={"partition": str(tp), "error": str(error)})
        self.uncleaned.add(tp)
        self._add(f"the clean of {tp} failed", error)

    def merge(self, tp: TopicPartition, error: CorruptionError | NoSpaceError) -> None:
        """Note a merge that failed."""
        _LOG.warning("merge failed", extra={"partition": str(tp), "error": str(error)})
        self.unmerged.add(tp)
        self._add(f"the merge of {tp} failed", error)

    def _add(self, consequence: str, error: CorruptionError | NoSpaceError) -> None:
        failure = type(error)(f"{consequence}: {error}")
        failure.__cause__ = error
        self._errors.append(failure)

    @property
    def error(self) -> CorruptionError | NoSpaceError | None:
        """One error that names all that failed, each once; None if nothing did. Damage counts more than no space."""
        unique = {str(error): error for error in self._errors}
        if len(unique) <= 1:
            return next(iter(unique.values()), None)
        kind = CorruptionError if any(isinstance(each, CorruptionError) for each in self._errors) else NoSpaceError
        error = kind(f"{len(unique)} parts of the compaction failed: {'; '.join(unique)}")
        error.__cause__ = self._errors[0]
        return error
