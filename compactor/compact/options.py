"""The options of a compaction."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from txnstore.compactor.compact.clean_plan import KnownClean
from txnstore.compactor.compact.memory import DEFAULT_MEMORY, MIN_MEMORY, Memory
from txnstore.compactor.compact.report import PartitionCompaction, Progress
from txnstore.core.model import TopicPartition
from txnstore.errors import InvalidConfigError
from txnstore.validation import check_integer

#: Chooses partitions to compact, given the results that are expected of all that are due, and the partitions that other
#: compactors work on.
Choose = Callable[[Sequence[PartitionCompaction], Collection[TopicPartition]], Collection[TopicPartition]]


def all_free(planned: Sequence[PartitionCompaction], held: Collection[TopicPartition]) -> list[TopicPartition]:
    """All partitions that are due and that no other compactor works on."""
    return [partition.tp for partition in planned if partition.tp not in held]


@dataclass(frozen=True, slots=True)
class CompactionOptions:
    """What a compaction does with the topics that it is given.

    Attributes:
        target_bytes: The maximum size of a merged segment; None: the ``segment.bytes`` of its topic.
        min_segments: The minimum number of segments of a merge.
        dry_run: Only plan.
        progress: Called after each replacement of a merge.
        expire: Also expire unused state.
        force: Clean also partitions whose dirty part is small (``min.cleanable.dirty.ratio``).
        memory_limit: The memory of a clean or a merge in bytes; None: 1 GiB.
        past_hw: Clean also above the transactional high-watermark, around what is undecided.
        choose: Chooses the partitions to clean and merge. Retention applies to all.
        known_clean: The segments above the transactional high-watermark that cleans do not read again, because an
            earlier clean found nothing to remove; this compaction adds its own. None: each clean reads all that is due.
    """

    target_bytes: int | None = None
    min_segments: int = 2
    dry_run: bool = False
    progress: Progress | None = None
    expire: bool = True
    force: bool = False
    memory_limit: int | None = None
    past_hw: bool = False
    choose: Choose = all_free
    known_clean: KnownClean | None = None

    def __post_init__(self) -> None:
        if self.target_bytes is not None:
            check_integer("target_bytes", self.target_bytes, 1)
        check_integer("min_segments", self.min_segments, 1)
        if self.memory_limit is not None:
            check_integer("memory_limit", self.memory_limit, 1)
            if self.memory_limit < MIN_MEMORY:
                msg = f"memory_limit is {self.memory_limit:,} bytes; a clean needs at least {MIN_MEMORY:,}"
                raise InvalidConfigError(msg)

    @property
    def memory(self) -> Memory:
        """The memory of a clean or a merge."""
        return Memory(self.memory_limit if self.memory_limit is not None else DEFAULT_MEMORY)
