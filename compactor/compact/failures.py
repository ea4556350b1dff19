"""What fails in a part of a compaction and does not stop the others: damage, no space, an object that is refused."""

from __future__ import annotations

import logging

from txnstore.core.model import TopicPartition
from txnstore.errors import CorruptionError, NoSpaceError, StorageError, TxnStoreError, joined

_LOG = logging.getLogger(__name__)


class RefusedObjectError(StorageError):
    """The storage failed for an object of a partition, and answers other requests. Internal: its cause is reported."""


#: The errors of one partition, or topic: all others can be compacted.
PARTIAL = (CorruptionError, NoSpaceError, RefusedObjectError)


class Failures:
    """The failures of one compaction.

    Attributes:
        uncleaned: The partitions whose clean failed. They are not merged, which would read and name the same again.
        unmerged: Those with a merge that failed.
    """

    def __init__(self) -> None:
        self._errors: list[TxnStoreError] = []
        self._unreadable: set[str] = set()
        self.uncleaned: set[TopicPartition] = set()
        self.unmerged: set[TopicPartition] = set()

    def __len__(self) -> int:
        return len(self._errors)

    def topic(self, name: str, error: TxnStoreError) -> None:
        """Note a topic that cannot be read, once."""
        if name in self._unreadable:
            return
        self._unreadable.add(name)
        _LOG.warning("topic skipped: unreadable", extra={"topic": name, "error": str(error)})
        self._add(f"topic {name!r} cannot be compacted", error)

    def clean(self, tp: TopicPartition, error: TxnStoreError) -> None:
        """Note a clean that failed."""
        _LOG.warning("clean failed", extra={"partition": str(tp), "error": str(error)})
        self.uncleaned.add(tp)
        self._add(f"the clean of {tp} failed", error)

    def merge(self, tp: TopicPartition, error: TxnStoreError) -> None:
        """Note a merge that failed."""
        _LOG.warning("merge failed", extra={"partition": str(tp), "error": str(error)})
        self.unmerged.add(tp)
        self._add(f"the merge of {tp} failed", error)

    def _add(self, consequence: str, error: TxnStoreError) -> None:
        if isinstance(error, RefusedObjectError) and isinstance(error.__cause__, StorageError):
            error = error.__cause__
        failure = type(error)(f"{consequence}: {error}")
        failure.__cause__ = error
        self._errors.append(failure)

    @property
    def error(self) -> TxnStoreError | None:
        """One error that names all that failed; None if nothing did."""
        return joined(self._errors, "parts of the compaction failed")
