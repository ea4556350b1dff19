"""What a compaction reports: its result by partition, and its progress."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from txnstore.compactor.retention import RetentionReport
from txnstore.core.model import TopicPartition


@dataclass(frozen=True, slots=True)
class PartitionCompaction:
    """The compaction of one partition; after a dry run, the expected result.

    Attributes:
        tp: The partition.
        segments_before: The segments of the whole partition before the compaction.
        segments_after: Those after it.
        bytes_before: The size of the segments before the compaction, in bytes.
        bytes_after: The size after it; after a dry run an estimate that takes merged segments to be as large as their
            sources.
        merges: The merged segments.
        records: The records in the merged segments.
        aborted: The aborted batches that were dropped; their records are not read.
        conflicts: The replacements that had no effect, because a source had been replaced or deleted concurrently.
        cleans: The cleans by key: one, or more with ``past_hw``.
        superseded: The records that a clean removed because their key has a newer one, or because they have no key.
        tombstones: The tombstones that a clean removed after ``delete.retention.ms``.
        bytes_read: The size of the segments that were read, in bytes.
        dirty_ratio: The share of the bytes to clean that no clean had covered; 0 without a clean.
    """

    tp: TopicPartition
    segments_before: int
    segments_after: int
    bytes_before: int
    bytes_after: int
    merges: int = 0
    records: int = 0
    aborted: int = 0
    conflicts: int = 0
    cleans: int = 0
    superseded: int = 0
    tombstones: int = 0
    bytes_read: int = 0
    dirty_ratio: float = 0.0


@dataclass(frozen=True, slots=True)
class CompactionReport:
    """The result of a compaction by partition; partitions without any merge or removal are not listed.

    Attributes:
        partitions: The results.
        dry_run: Whether nothing was changed.
        retained: What the retention of the topics deleted before that.
        held: The number of partitions that were due and left out, because other compactors work on them.
    """

    partitions: tuple[PartitionCompaction, ...]
    dry_run: bool = False
    retained: RetentionReport = RetentionReport()  # noqa: RUF009 - immutable
    held: int = 0

    @property
    def merges(self) -> int:
        """The number of merged segments."""
        return sum(partition.merges for partition in self.partitions)

    @property
    def records(self) -> int:
        """The number of records in the merged segments."""
        return sum(partition.records for partition in self.partitions)

    @property
    def segments_before(self) -> int:
        """The number of segments of the listed partitions before the compaction."""
        return sum(partition.segments_before for partition in self.partitions)

    @property
    def segments_after(self) -> int:
        """The number of segments of the listed partitions after the compaction."""
        return sum(partition.segments_after for partition in self.partitions)

    @property
    def bytes_before(self) -> int:
        """The size of the segments of the listed partitions before the compaction."""
        return sum(partition.bytes_before for partition in self.partitions)

    @property
    def bytes_after(self) -> int:
        """The size of the segments after the compaction. Replaced objects exist until a vacuum deletes them."""
        return sum(partition.bytes_after for partition in self.partitions)

    @property
    def aborted(self) -> int:
        """The number of aborted batches that were dropped."""
        return sum(partition.aborted for partition in self.partitions)

    @property
    def deleted_records(self) -> int:
        """The number of records that retention deleted."""
        return self.retained.records

    @property
    def deleted_bytes(self) -> int:
        """The size of the batches that retention deleted. Their objects exist until a vacuum deletes them."""
        return self.retained.bytes

    @property
    def conflicts(self) -> int:
        """The replacements without effect, because a source had been replaced or deleted concurrently."""
        return sum(partition.conflicts for partition in self.partitions)

    @property
    def cleans(self) -> int:
        """The number of cleans by key."""
        return sum(partition.cleans for partition in self.partitions)

    @property
    def superseded(self) -> int:
        """The records that cleans removed because their key has a newer one, or because they have no key."""
        return sum(partition.superseded for partition in self.partitions)

    @property
    def tombstones(self) -> int:
        """The tombstones that cleans removed after ``delete.retention.ms``."""
        return sum(partition.tombstones for partition in self.partitions)


@dataclass(frozen=True, slots=True)
class CompactionProgress:
    """The progress of a compaction.

    Attributes:
        tp: The partition of the last replacement.
        done: The source bytes processed so far.
        total: All source bytes.
    """

    tp: TopicPartition
    done: int
    total: int


Progress = Callable[[CompactionProgress], None]
