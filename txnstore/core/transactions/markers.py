"""The markers of a decided transaction in the partitions and groups of a chain, and the fences of producers.

A marker carries the epoch of its transaction plus 1. It is written where that epoch has not been seen, so any process
may request it any number of times (END-08). It fences late batches and offsets of the transaction, also where none of
them has arrived (FEN-02).
"""

from __future__ import annotations

from collections.abc import Iterable

from txnstore.core.fences import fenced_epoch, is_left_open, lacks_markers
from txnstore.core.groups.events import GroupMarkerWritten
from txnstore.core.log.appending import NO_BATCHES, LastBatches, marker_written, with_markers
from txnstore.core.log.events import BatchAppended, MarkerWritten, ProducerFenced
from txnstore.core.log.model import Partition
from txnstore.core.model import TopicPartition
from txnstore.core.state import Draft, State, is_foreign, leads_group, leads_partition, observe
from txnstore.core.transactions.commands import FenceProducer, Unfinished, WriteMarkers
from txnstore.errors import UnknownTopicOrPartitionError


def write_markers(draft: Draft, command: WriteMarkers) -> None:
    """Write the markers of a transaction that another chain decided (END-05).

    Raises:
        UnknownTopicOrPartitionError: The chain does not know a topic of the transaction, and ``told`` is not set. With
            ``told`` the topic is deleted: it needs no marker, and the fence refuses late batches.
    """
    for tp in command.decided.partitions:
        if not command.told and leads_partition(draft.state, tp) and _log_of(draft.state, command.decided, tp) is None:
            msg = f"chain {draft.state.chain} does not know {tp}, so it cannot write a marker there"
            raise UnknownTopicOrPartitionError(msg)
    before = len(draft.events)
    write_own_markers(draft, command.decided)
    if len(draft.events) > before:
        observe(draft, (command.after,))


def fence(draft: Draft, command: FenceProducer) -> None:
    """Fence the older epochs of a transaction that is kept under a new one (TPC-05)."""
    producer = command.producer
    if fenced_epoch(draft.state, producer.producer_id) < producer.epoch:
        observe(draft, (command.after,))
        _emit_fence(draft, producer.producer_id, producer.epoch, command.partitions, command.groups)


def write_own_markers(draft: Draft, decided: Unfinished, last: LastBatches = NO_BATCHES) -> None:
    """Write the markers of a transaction in the partitions and groups of this chain, unless they exist.

    A chain without any of its partitions and groups is fenced as well. ``last``: batches of the transaction that are
    recorded in the draft and not folded.
    """
    state = draft.state
    own = not is_foreign(state, decided.producer_id)
    lacking = own or lacks_markers(state, decided.producer_id, decided.epoch)
    markers, logs = list[MarkerWritten](), dict[TopicPartition, Partition]()
    for tp in decided.partitions:
        partition = _log_of(state, decided, tp)
        if partition is not None and (lacking or is_left_open(partition, decided.producer_id, decided.epoch)):
            batch = last.get(tp)
            marker = _marker_of(decided, tp, partition, batch)
            if marker is not None and tp not in logs:
                markers.append(marker)
                logs[tp] = marker_written(partition, marker, state, batch)
    assert last.keys() <= logs.keys()  # Else a batch would not be folded.
    draft.record(*markers)
    draft.state = with_markers(state, markers, logs)
    epoch = decided.epoch + 1
    for group in decided.groups:
        if lacking and leads_group(draft.state, group):
            draft.emit(
                GroupMarkerWritten(group=group, producer_id=decided.producer_id, epoch=epoch, outcome=decided.outcome),
            )
    if not own and lacks_markers(draft.state, decided.producer_id, decided.epoch):
        _emit_fence(draft, decided.producer_id, epoch, (), ())


def _marker_of(
    decided: Unfinished, tp: TopicPartition, partition: Partition, last: BatchAppended | None
) -> MarkerWritten | None:
    """The marker of a transaction in a partition, after its ``last`` batch; None if that has seen its epoch."""
    # A partition that has just taken a batch of the transaction has not seen a newer epoch.
    known = partition.producers.get(decided.producer_id) if last is None else None
    if known is None or known.epoch <= decided.epoch:
        offset = partition.high_watermark if last is None else last.batch.limit
        return MarkerWritten(tp.topic, tp.partition, decided.producer_id, decided.epoch + 1, decided.outcome, offset)
    return None


def _emit_fence(
    draft: Draft, producer_id: int, epoch: int, partitions: Iterable[TopicPartition], groups: Iterable[str]
) -> None:
    """Fence a producer in this chain; the event names the partitions and groups that the chain has."""
    state = draft.state
    known = [tp for tp in partitions if leads_partition(state, tp) and tp in state.partitions]
    led = [group for group in groups if leads_group(state, group)]
    draft.emit(ProducerFenced(producer_id=producer_id, epoch=epoch, partitions=known, groups=led))


def _log_of(state: State, decided: Unfinished, tp: TopicPartition) -> Partition | None:
    """The log of a transaction's partition: that of a topic with an id that it names, or one with its open data.

    None in a chain that does not lead the partition: it has no log of it.
    In the coordinator's own chain the name is enough: deleting a topic there removes it from the transactions.
    """
    partition = state.partitions.get(tp)
    if partition is None or not is_foreign(state, decided.producer_id):
        return partition
    named = decided.names(state.topics[tp.topic]) or is_left_open(partition, decided.producer_id, decided.epoch)
    return partition if named else None
