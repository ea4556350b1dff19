"""Invariants of partition logs in a state."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise

from txnstore.core.invariants.common import offsets_of
from txnstore.core.model import NO_PRODUCER, TopicPartition, sorted_items
from txnstore.core.state import State, leads_partition


def topics_own_their_partitions(state: State) -> Iterator[str]:
    """A topic has the partitions 0 … n-1, and every partition has a topic."""
    expected_tps = {
        tp
        for name, topic in state.topics.items()
        for number in range(topic.partitions)
        if leads_partition(state, tp := TopicPartition(name, number))
    }
    for name, topic in state.topics.items():
        if topic.name != name:
            yield f"topic {name} is stored with the name {topic.name}"
    for tp in sorted(expected_tps ^ set(state.partitions)):
        yield f"{tp} has no log" if tp in expected_tps else f"{tp} has a log, but no topic"


def offsets_in_order(state: State) -> Iterator[str]:
    """0 ≤ log start ≤ LSO ≤ high watermark (OBJ-19 I9)."""
    for tp, partition in sorted_items(state.partitions):
        start, stable, end = partition.log_start, partition.last_stable_offset, partition.high_watermark
        if not 0 <= start <= stable <= end:
            yield f"{tp}: log start {start}, last stable offset {stable}, high watermark {end} are not in order"


def checkpoint_of_cleans(state: State) -> Iterator[str]:
    """The cleaner checkpoint is between 0 and the LSO: nothing undecided counts as clean (CMP-03)."""
    for tp, partition in sorted_items(state.partitions):
        if not 0 <= partition.clean_until <= partition.last_stable_offset:
            yield (
                f"{tp}: the cleaner checkpoint {partition.clean_until} is not between 0 and the last stable offset "
                f"{partition.last_stable_offset}"
            )


def revisions_are_entries(state: State) -> Iterator[str]:
    """The revision of a partition is the number of an entry: no later life of the topic has it again."""
    for tp, partition in sorted_items(state.partitions):
        if not 0 <= partition.revision <= state.sequence:
            yield f"{tp}: the revision {partition.revision} is not the number of an entry up to {state.sequence}"


def batches_in_order(state: State) -> Iterator[str]:
    """Batches ascend without overlap inside the log: an offset names at most one record (OBJ-19 I4)."""
    for tp, partition in sorted_items(state.partitions):
        next_offset = 0
        for batch in partition.batches:
            if not next_offset <= batch.base_offset < batch.limit:
                yield (
                    f"{tp}: the batch {offsets_of(batch)} is empty or does not follow the one that ends at "
                    f"{next_offset}"
                )
            if batch.limit <= partition.log_start or batch.limit > partition.high_watermark:
                yield (
                    f"{tp}: the batch {offsets_of(batch)} is outside the log "
                    f"{partition.log_start}-{partition.high_watermark}"
                )
            next_offset = max(next_offset, batch.limit)


def batches_hold_their_offsets(state: State) -> Iterator[str]:
    """A batch has a record for each of its offsets, unless its segment stores the offset of each record."""
    for tp, partition in sorted_items(state.partitions):
        for batch in partition.batches:
            width = batch.limit - batch.base_offset
            has_explicit_offsets = batch.segment.explicit_offsets
            if batch.records > width or (batch.records < width and not has_explicit_offsets):
                yield f"{tp}: the batch {offsets_of(batch)} has {batch.records} records in {width} offsets"
            if batch.first_row < 0 or batch.records < 1 or batch.first_row + batch.records > batch.segment.rows:
                yield (
                    f"{tp}: the batch {offsets_of(batch)} takes {batch.records} rows from row {batch.first_row} of "
                    f"{batch.segment.key}, which has {batch.segment.rows}"
                )
            if batch.transactional and batch.producer_id == NO_PRODUCER:
                yield f"{tp}: the batch {offsets_of(batch)} is transactional, but has no producer"
            if batch.delete_horizon is not None and not has_explicit_offsets:
                yield f"{tp}: the batch {offsets_of(batch)} has a delete horizon, but no clean has written it"


def segments_referenced_once(state: State) -> Iterator[str]:
    """A row is the record of one offset only (OBJ-19 I12): two batches may share a segment, but not its rows."""
    rows: dict[str, list[tuple[int, int, TopicPartition]]] = {}
    for tp, partition in sorted_items(state.partitions):
        for batch in partition.batches:
            rows_of_batch = (batch.first_row, batch.first_row + batch.records, tp)
            rows.setdefault(batch.segment.key, []).append(rows_of_batch)
    for key, ranges in sorted(rows.items()):
        ranges.sort()
        for (_, limit, first_tp), (start, _, second_tp) in pairwise(ranges):
            if start < limit:
                yield f"{second_tp}: rows from {start} of {key} are also in a batch of {first_tp}"


def dropped_segments_unreferenced(state: State) -> Iterator[str]:
    """No batch names a segment that a vacuum may delete (OBJ-19 I7)."""
    for tp, partition in sorted_items(state.partitions):
        for batch in partition.batches:
            if batch.segment.object in state.dropped:
                yield f"{tp}: the batch {offsets_of(batch)} names {batch.segment.key}, which is dropped"


#: The invariants of partition logs, in the order of the report.
LOG_INVARIANTS: tuple[Callable[[State], Iterator[str]], ...] = (
    topics_own_their_partitions,
    offsets_in_order,
    checkpoint_of_cleans,
    revisions_are_entries,
    batches_in_order,
    batches_hold_their_offsets,
    segments_referenced_once,
    dropped_segments_unreferenced,
)
