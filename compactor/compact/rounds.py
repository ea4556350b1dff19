"""Compacts a store round after round, beside other compactors on other machines.

Each round is a compaction of the partitions with the most debt that no other compactor works on, up to a budget of
bytes.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from txnstore.compactor.compact.clean_plan import KnownClean
from txnstore.compactor.compact.compaction import compact_sound
from txnstore.compactor.compact.failures import Failures
from txnstore.compactor.compact.options import CompactionOptions
from txnstore.compactor.compact.report import CompactionReport, PartitionCompaction
from txnstore.connection import Connection
from txnstore.core.model import TopicPartition
from txnstore.errors import StorageError
from txnstore.validation import check_integer

_LOG = logging.getLogger(__name__)

#: The most partitions of a round: its lease stays small, and others have partitions to take.
_MAX_PARTITIONS = 1_000


@dataclass(frozen=True, slots=True)
class Round:
    """A round of :class:`Rounds`.

    Attributes:
        report: What was compacted.
        due: The number of partitions with something to compact.
        held: The number of these that other compactors work on.
        left: The number of these that it has left to later rounds, by its budget.
        error: Why the round ended early or left something out; None if it did not.
    """

    report: CompactionReport = CompactionReport(())  # noqa: RUF009 - immutable
    due: int = 0
    held: int = 0
    left: int = 0
    error: Exception | None = None

    @property
    def worked(self) -> bool:
        """Whether anything was compacted or deleted."""
        changed = any(partition.cleans or partition.merges or partition.aborted for partition in self.report.partitions)
        return changed or bool(self.report.retained.partitions)

    @property
    def idle(self) -> bool:
        """Whether there was nothing to do."""
        return not self.report.partitions and not self.report.retained.partitions and self.error is None


class Rounds:
    """The rounds of one compactor. Several processes may do them: each has a lease on the partitions of its round.

    A storage that does not answer ends a round; damaged segments and topics are left out, partitions without space to
    spill, and those for whose objects the storage fails, and the rest of the round is compacted. Either is the error of
    the round, and is tried again in later ones, after the partitions that did not fail.

    Args:
        connection: The connection to the store.
        max_bytes: The bytes of segments that a round takes on, but at least one partition; None for no limit. A clean
            reads its segments twice, and counts them once.
        memory_limit: The memory of a clean or a merge in bytes, as in :func:`txnstore.compactor.compact`.
        past_hw: Clean also above the last stable offset, as in :func:`txnstore.compactor.compact`. A round reads again
            what an earlier one found nothing to remove in only with more than the ratio of new bytes beside it.

    Raises:
        InvalidConfigError: An argument is not valid.
    """

    def __init__(
        self,
        connection: Connection,
        *,
        max_bytes: int | None = None,
        memory_limit: int | None = None,
        past_hw: bool = False,
    ) -> None:
        if max_bytes is not None:
            check_integer("max_bytes", max_bytes, 1)
        self._connection, self._max_bytes = connection, max_bytes
        self._options = CompactionOptions(
            expire=False,
            memory_limit=memory_limit,
            past_hw=past_hw,
            choose=self._choose_partitions,
            known_clean=KnownClean() if past_hw else None,
        )
        #: The partitions that failed last time. They come last, so that the others are not held up by them.
        self._failed: set[TopicPartition] = set()
        #: Of the current round: the number of partitions that are due, and of those that others hold, and its choice.
        self._due = self._held = 0
        self._chosen_partitions: list[TopicPartition] = []

    def run(self) -> Round:
        """Do one round.

        Raises:
            ReadOnlyError: The store was opened read-only.
            AuthorizationError: The principal has no right to it.
        """
        failures, self._due, self._held, self._chosen_partitions = Failures(), 0, 0, []
        try:
            report = compact_sound(self._connection, None, self._options, failures)
        except StorageError as error:
            _LOG.warning("round of compaction failed", extra={"error": str(error)})
            return Round(due=self._due, held=self._held, error=error)
        self._failed = self._failed.difference(self._chosen_partitions) | failures.uncleaned | failures.unmerged
        left = self._due - self._held - len(self._chosen_partitions)
        return Round(report=report, due=self._due, held=self._held, left=left, error=failures.error)

    def _choose_partitions(
        self, planned: Sequence[PartitionCompaction], held: Collection[TopicPartition]
    ) -> list[TopicPartition]:
        """The filthiest partitions first, then those with most to merge, within the budget.

        Cleans come first, in the order in which :func:`txnstore.compactor.compact.cleaning.clean` does them (CMP-20).
        """
        free = [partition for partition in planned if partition.tp not in held]
        self._due, self._held = len(planned), len(planned) - len(free)
        free.sort(
            key=lambda partition: (
                partition.tp in self._failed,
                -partition.dirty_ratio,
                partition.segments_after - partition.segments_before,
            ),
        )
        self._chosen_partitions = _first_within_budget(free, self._max_bytes)
        return self._chosen_partitions


def _first_within_budget(free: list[PartitionCompaction], max_bytes: int | None) -> list[TopicPartition]:
    """The first partitions within the budget of a round, at most :data:`_MAX_PARTITIONS`.

    At least one, so that each large one has its turn.
    """
    chosen_partitions: list[TopicPartition] = []
    size = 0
    for partition in free[:_MAX_PARTITIONS]:
        size += partition.bytes_read
        if chosen_partitions and max_bytes is not None and size > max_bytes:
            break
        chosen_partitions.append(partition.tp)
    return chosen_partitions
