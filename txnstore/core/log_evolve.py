"""Folding the events of partition logs and their segments; a part of :mod:`txnstore.core.evolve`."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from txnstore.core.batches import BatchList
from txnstore.core.events import (
    BatchAppended,
    MarkerWritten,
    ObjectsDropped,
    ObjectsForgotten,
    ProducerFenced,
    SegmentsReplaced,
)
from txnstore.core.fences import with_fence
from txnstore.core.model import (
    NO_PRODUCER,
    WINDOW,
    AbortedTxn,
    Batch,
    BatchMetadata,
    Outcome,
    Partition,
    ProducerState,
    State,
    TopicPartition,
    next_sequence,
)


def _batch_appended(state: State, event: BatchAppended) -> State:
    tp = TopicPartition(event.topic, event.partition)
    partition, batch = state.partitions[tp], event.batch
    producers, open_txns = partition.producers, partition.open_txns
    if batch.producer_id != NO_PRODUCER:
        producers = producers.insert(batch.producer_id, _remember(producers.get(batch.producer_id), batch, state))
        if batch.transactional and batch.producer_id not in open_txns:
            open_txns = open_txns.insert(batch.producer_id, batch.base_offset)
    if batch.transactional:
        state = with_fence(state, batch.producer_id, batch.epoch)
    return _with_partition(
        state,
        tp,
        replace(
            partition,
            high_watermark=batch.limit,
            batches=partition.batches.append(batch),
            producers=producers,
            open_txns=open_txns,
        ),
    )


def _remember(producer: ProducerState | None, batch: Batch, state: State) -> ProducerState:
    """The producer's state with ``batch`` in its window of five; a new epoch starts an empty window (SEQ-06)."""
    known = producer.batches if producer is not None and producer.epoch == batch.epoch else ()
    first_offset = producer.current_txn_first_offset if producer is not None else None
    if batch.transactional and first_offset is None:
        first_offset = batch.base_offset
    metadata = BatchMetadata(
        first_sequence=batch.base_sequence,
        last_sequence=next_sequence(batch.base_sequence, batch.records - 1),
        base_offset=batch.base_offset,
        last_offset=batch.limit - 1,
        timestamp=batch.appended_at,
    )
    return ProducerState(batch.epoch, (*known, metadata)[-WINDOW:], state.timestamp, first_offset)


def _marker_written(state: State, event: MarkerWritten) -> State:
    """A marker takes an offset, ends the open transaction, and leaves the bumped epoch behind (SEQ-09, PST-13).

    The epoch stays in the partition as in Kafka; a producer of another chain is fenced in the whole chain.
    """
    tp = TopicPartition(event.topic, event.partition)
    partition = state.partitions[tp]
    aborted = partition.aborted
    first_offset = partition.open_txns.get(event.producer_id)
    open_txns = partition.open_txns.discard(event.producer_id)
    after = replace(
        partition,
        high_watermark=event.offset + 1,
        open_txns=open_txns,
        producers=partition.producers.insert(
            event.producer_id,
            ProducerState(epoch=event.epoch, last_timestamp=state.timestamp),
        ),
    )
    if event.outcome is Outcome.ABORT and first_offset is not None:
        stable = min(open_txns.values(), default=event.offset + 1)
        aborted = (*aborted, AbortedTxn(event.producer_id, first_offset, event.offset, stable))
    state = with_fence(state, event.producer_id, event.epoch)
    return _with_partition(state, tp, replace(after, aborted=aborted))


def _producer_fenced(state: State, event: ProducerFenced) -> State:
    """The new epoch begins with an empty window; what is open stays open."""
    for tp in event.partitions:
        partition = state.partitions[tp]
        first_offset = partition.open_txns.get(event.producer_id)
        fenced = ProducerState(event.epoch, (), state.timestamp, first_offset)
        producers = partition.producers.insert(event.producer_id, fenced)
        state = _with_partition(state, tp, replace(partition, producers=producers))
    return with_fence(state, event.producer_id, event.epoch)


def _segments_replaced(state: State, event: SegmentsReplaced) -> State:
    tp = TopicPartition(event.topic, event.partition)
    partition = state.partitions[tp]
    removed = [batch for offset in event.removed for batch in partition.batches.overlapping(offset, offset + 1)]
    batches = partition.batches.replace(removed, event.added)
    kept = {batch.segment.key for batch in batches}
    dropped = state.dropped
    for batch in removed:
        if batch.segment.key not in kept:
            dropped = dropped.insert(batch.segment.key, state.timestamp)
    if removed:
        aborted = _still_aborted(partition.aborted, batches, removed[0].base_offset, removed[-1].limit)
        partition = replace(partition, aborted=aborted)
    return replace(_with_partition(state, tp, replace(partition, batches=batches)), dropped=dropped)


def _still_aborted(
    index: tuple[AbortedTxn, ...], batches: BatchList[Batch], start: int, limit: int
) -> tuple[AbortedTxn, ...]:
    """The index of aborted transactions without those that a compaction of ``[start, limit)`` left no batch of.

    So does Kafka's cleaner (``CleanedTransactionMetadata``): only an entry of which it has seen a batch is kept.
    """
    first = bisect_left(index, start, key=lambda entry: entry.last_offset)
    kept = tuple(entry for entry in index[first:] if entry.first_offset >= limit or _has_batches(batches, entry))
    return index if first + len(kept) == len(index) else (*index[:first], *kept)


def _has_batches(batches: BatchList[Batch], entry: AbortedTxn) -> bool:
    inside = batches.overlapping(entry.first_offset, entry.last_offset)
    return any(batch.transactional and batch.producer_id == entry.producer_id for batch in inside)


def _objects_dropped(state: State, event: ObjectsDropped) -> State:
    dropped = state.dropped
    for key in event.keys:
        dropped = dropped.insert(key, state.timestamp)
    return replace(state, dropped=dropped)


def _objects_forgotten(state: State, event: ObjectsForgotten) -> State:
    dropped = state.dropped
    for key in event.keys:
        dropped = dropped.discard(key)
    return replace(state, dropped=dropped)


def _with_partition(state: State, tp: TopicPartition, partition: Partition) -> State:
    return replace(state, partitions=state.partitions.insert(tp, partition))


LOGS: dict[type, Callable[[State, Any], State]] = {
    BatchAppended: _batch_appended,
    MarkerWritten: _marker_written,
    ProducerFenced: _producer_fenced,
    SegmentsReplaced: _segments_replaced,
    ObjectsDropped: _objects_dropped,
    ObjectsForgotten: _objects_forgotten,
}
