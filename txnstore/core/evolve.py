"""Folding events into a state: ``evolve(state, event) -> state``.

No event of a valid chain fails here, and nothing is decided: every number is in the event. ``state.timestamp`` is the
time of the entry that holds the event.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from txnstore.core.batches import BatchList
from txnstore.core.events import (
    BatchAppended,
    Event,
    GroupMarkerWritten,
    MarkerWritten,
    ObjectsDropped,
    ObjectsForgotten,
    Observed,
    OffsetsAdded,
    OffsetsCommitted,
    PartitionsAdded,
    ProducerFenced,
    ProducerInitialized,
    SegmentsReplaced,
    TopicAltered,
    TopicCreated,
    TopicDeleted,
    TxnCompleted,
    TxnHeld,
    TxnPrepared,
    VersionRecorded,
)
from txnstore.core.expiry_evolve import EXPIRY
from txnstore.core.group_evolve import MEMBERSHIP, with_lease
from txnstore.core.model import (
    NO_PRODUCER,
    WINDOW,
    AbortedTxn,
    Batch,
    BatchMetadata,
    CommittedOffset,
    Group,
    Map,
    OffsetAndMetadata,
    Outcome,
    Partition,
    ProducerState,
    State,
    TopicPartition,
    Transaction,
    TxnState,
    next_sequence,
)
from txnstore.core.routing import CATALOG, chain_of_partition, chain_of_producer, first_producer_id


def evolve(state: State, event: Event) -> State:
    """The state after ``event``."""
    return _HANDLERS[type(event)](state, event)


def first_state(chain: int = 0, chains: int = 1) -> State:
    """The state of a chain before its first entry."""
    return State(chain=chain, chains=chains, next_producer_id=first_producer_id(chain))


def begin_entry(state: State, now: int) -> State:
    """The state in which the events of the next entry are folded: its number and its time, which never goes back."""
    return replace(state, sequence=state.sequence + 1, timestamp=max(now, state.timestamp))


# Topics ---------------------------------------------------------------------------------------------------------------


def _topic_created(state: State, event: TopicCreated) -> State:
    return _with_partitions(state, event.topic.name, 0, event.topic.partitions, event)


def _topic_altered(state: State, event: TopicAltered) -> State:
    before = state.topics[event.topic.name].partitions
    return _with_partitions(state, event.topic.name, before, event.topic.partitions, event)


def _with_partitions(
    state: State,
    name: str,
    first: int,
    limit: int,
    event: TopicCreated | TopicAltered,
) -> State:
    partitions = state.partitions
    for number in range(first, limit):
        tp = TopicPartition(name, number)
        if chain_of_partition(tp, state.chains) == state.chain:
            partitions = partitions.insert(tp, Partition())
    return replace(
        state, topics=state.topics.insert(name, event.topic), partitions=partitions, deleted=state.deleted.discard(name)
    )


def _topic_deleted(state: State, event: TopicDeleted) -> State:
    """A deleted topic takes its partitions with it, also out of open transactions and groups (OFF-18, END-07).

    Of a transaction only those that this chain leads: another chain may have data of the transaction still, or already
    have the next topic of this name, in which the transaction takes part. It gets its marker, or says that it is gone.
    """
    topic = state.topics[event.name]
    gone = {TopicPartition(event.name, number) for number in range(topic.partitions)}
    led = gone & set(state.partitions)
    deleted = state.deleted if state.chain == CATALOG else state.deleted.insert(event.name, event.revision)
    partitions, dropped = state.partitions, state.dropped
    for tp in led:
        for batch in partitions[tp].batches:
            dropped = dropped.insert(batch.segment.key, state.timestamp)
        partitions = partitions.remove(tp)
    transactions = state.transactions
    for txn_id, txn in state.transactions.items():
        if txn.partitions & led:
            transactions = transactions.insert(txn_id, replace(txn, partitions=txn.partitions - led))
    groups = state.groups
    for name, group in state.groups.items():
        groups = groups.insert(name, _without_offsets(group, gone, event.topic_id))
    return replace(
        state,
        topics=state.topics.remove(event.name),
        partitions=partitions,
        transactions=transactions,
        groups=groups,
        dropped=dropped,
        deleted=deleted,
    )


def _without_offsets(group: Group, gone: set[TopicPartition], topic_id: str) -> Group:
    pending = group.pending
    for producer_id, values in group.pending.items():
        pending = pending.insert(producer_id, _without(values, gone, topic_id))
    return replace(group, offsets=_without(group.offsets, gone, topic_id), pending=pending)


def _without(
    offsets: Map[TopicPartition, CommittedOffset], gone: set[TopicPartition], topic_id: str
) -> Map[TopicPartition, CommittedOffset]:
    """Without those of the topic that is gone; a chain may hear of that after offsets of the next one of its name."""
    for tp in gone:
        known = offsets.get(tp)
        if known is not None and known.topic_id in (None, topic_id):
            offsets = offsets.remove(tp)
    return offsets


def _observed(state: State, event: Observed) -> State:
    return replace(state, seen=state.seen.insert(event.chain, max(event.sequence, state.seen.get(event.chain, 0))))


# Producers and transactions -------------------------------------------------------------------------------------------


def _producer_initialized(state: State, event: ProducerInitialized) -> State:
    state = replace(state, next_producer_id=max(state.next_producer_id, event.producer_id + 1))
    if event.transactional_id is None:
        return state
    before = state.transactions.get(event.transactional_id)
    if event.keeps and before is not None:
        kept = replace(before, epoch=event.epoch, timeout_ms=event.timeout_ms, updated_at=state.timestamp)
        return _with_transaction(state, replace(kept, last_epoch=NO_PRODUCER, previous_producer_id=NO_PRODUCER))
    txn = Transaction(
        transactional_id=event.transactional_id,
        producer_id=event.producer_id,
        epoch=event.epoch,
        timeout_ms=event.timeout_ms,
        last_epoch=event.last_epoch,
        previous_producer_id=event.previous_producer_id,
        updated_at=state.timestamp,
        versions=before.versions if before else Map(),
    )
    return _with_transaction(state, txn)


def _with_transaction(state: State, txn: Transaction) -> State:
    return replace(
        state,
        transactions=state.transactions.insert(txn.transactional_id, txn),
        transactional_ids=state.transactional_ids.insert(txn.producer_id, txn.transactional_id),
    )


def _begun(state: State, transactional_id: str) -> Transaction:
    """The transaction, ongoing: its clock starts with its first partition or group (ADD-02)."""
    txn = state.transactions[transactional_id]
    if txn.state is TxnState.ONGOING:
        return replace(txn, updated_at=state.timestamp)
    return replace(txn, state=TxnState.ONGOING, started_at=state.timestamp, updated_at=state.timestamp)


def _partitions_added(state: State, event: PartitionsAdded) -> State:
    txn = _begun(state, event.transactional_id)
    return _with_transaction(state, replace(txn, partitions=txn.partitions | frozenset(event.partitions)))


def _offsets_added(state: State, event: OffsetsAdded) -> State:
    txn = _begun(state, event.transactional_id)
    return _with_transaction(state, replace(txn, groups=txn.groups | {event.group}))


def _txn_held(state: State, event: TxnHeld) -> State:
    txn = replace(state.transactions[event.transactional_id], held=event.epoch, updated_at=state.timestamp)
    return _with_transaction(state, txn)


def _producer_fenced(state: State, event: ProducerFenced) -> State:
    """The new epoch begins with an empty window; what is open stays open."""
    for tp in event.partitions:
        partition = state.partitions[tp]
        first_offset = partition.open_txns.get(event.producer_id)
        fenced = ProducerState(event.epoch, (), state.timestamp, first_offset)
        producers = partition.producers.insert(event.producer_id, fenced)
        state = _with_partition(state, tp, replace(partition, producers=producers))
    for name in event.groups:
        group = state.groups.get(name, Group())
        fences = group.fences.insert(event.producer_id, (event.epoch, state.timestamp))
        state = replace(state, groups=state.groups.insert(name, replace(group, fences=fences)))
    return state


def _txn_prepared(state: State, event: TxnPrepared) -> State:
    prepared = TxnState.PREPARE_COMMIT if event.outcome is Outcome.COMMIT else TxnState.PREPARE_ABORT
    txn = replace(
        state.transactions[event.transactional_id],
        state=prepared,
        next_producer_id=event.next_producer_id,
        next_epoch=event.next_epoch,
        updated_at=state.timestamp,
    )
    state = replace(state, next_producer_id=max(state.next_producer_id, event.next_producer_id + 1))
    return _with_transaction(state, txn)


def _txn_completed(state: State, event: TxnCompleted) -> State:
    txn = state.transactions[event.transactional_id]
    rotated = event.next_producer_id != txn.producer_id
    completed = TxnState.COMPLETE_COMMIT if event.outcome is Outcome.COMMIT else TxnState.COMPLETE_ABORT
    state = replace(state, next_producer_id=max(state.next_producer_id, event.next_producer_id + 1))
    return _with_transaction(
        state,
        replace(
            txn,
            producer_id=event.next_producer_id,
            epoch=event.next_epoch,
            last_epoch=event.epoch,
            previous_producer_id=txn.producer_id if rotated else NO_PRODUCER,
            next_producer_id=NO_PRODUCER,
            next_epoch=NO_PRODUCER,
            held=NO_PRODUCER,
            state=completed,
            partitions=frozenset(),
            groups=frozenset(),
            started_at=None,
            updated_at=state.timestamp,
        ),
    )


def _version_recorded(state: State, event: VersionRecorded) -> State:
    txn = state.transactions[event.transactional_id]
    return _with_transaction(state, replace(txn, versions=txn.versions.insert(event.scope, event.version)))


# Partition logs -------------------------------------------------------------------------------------------------------


def _batch_appended(state: State, event: BatchAppended) -> State:
    tp = TopicPartition(event.topic, event.partition)
    partition, batch = state.partitions[tp], event.batch
    producers, open_txns = partition.producers, partition.open_txns
    if batch.producer_id != NO_PRODUCER:
        producers = producers.insert(batch.producer_id, _remember(producers.get(batch.producer_id), batch, state))
        if batch.transactional and batch.producer_id not in open_txns:
            open_txns = open_txns.insert(batch.producer_id, batch.base_offset)
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
    """A marker takes an offset, ends the open transaction, and leaves the bumped epoch behind (SEQ-09, PST-13)."""
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
    return _with_partition(state, tp, replace(after, aborted=aborted))


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


# Groups ---------------------------------------------------------------------------------------------------------------


def _offsets_committed(state: State, event: OffsetsCommitted) -> State:
    group = state.groups.get(event.group, Group())
    position = state.next_offset_position
    pending = event.producer_id != NO_PRODUCER
    offsets = group.pending.get(event.producer_id, Map()) if pending else group.offsets
    for item in event.offsets:
        value = OffsetAndMetadata(item.offset, item.metadata, item.leader_epoch)
        offsets = offsets.insert(item.tp, CommittedOffset(value, position, state.timestamp, item.topic_id))
        position += 1
    if pending:
        group = replace(group, pending=group.pending.insert(event.producer_id, offsets))
        if chain_of_producer(event.producer_id) != state.chain:
            # A marker of an older transaction that comes late must not be taken for the one that these wait for.
            fence = (event.epoch, state.timestamp)
            group = replace(group, fences=group.fences.insert(event.producer_id, fence))
    else:
        group = replace(group, offsets=offsets)
    group = with_lease(group, event.member_id, state.timestamp)
    return replace(state, groups=state.groups.insert(event.group, group), next_offset_position=position)


def _group_marker_written(state: State, event: GroupMarkerWritten) -> State:
    """The pending offsets are decided; a producer of another chain is fenced, whether it had any here or not."""
    group = state.groups.get(event.group)
    foreign = chain_of_producer(event.producer_id) != state.chain
    if not foreign and (group is None or event.producer_id not in group.pending):
        return state
    group = decided_offsets(group or Group(), event.producer_id, event.epoch, event.outcome)
    if foreign:
        group = replace(group, fences=group.fences.insert(event.producer_id, (event.epoch, state.timestamp)))
    return replace(state, groups=state.groups.insert(event.group, group))


def decided_offsets(group: Group, producer_id: int, marker_epoch: int, outcome: Outcome) -> Group:
    """Pending offsets take effect unless a plain commit came after them in the log (OFF-11)."""
    if producer_id not in group.pending:
        return group
    offsets = group.offsets
    last_producer = group.last_producer
    if outcome is Outcome.COMMIT:
        for tp, value in group.pending[producer_id].items():
            current = offsets.get(tp)
            if current is None or current.position < value.position:
                offsets = offsets.insert(tp, value)
        last_producer = (producer_id, marker_epoch - 1)
    return replace(group, offsets=offsets, pending=group.pending.remove(producer_id), last_producer=last_producer)


_HANDLERS: dict[type, Callable[[State, Any], State]] = {
    TopicCreated: _topic_created,
    TopicAltered: _topic_altered,
    TopicDeleted: _topic_deleted,
    Observed: _observed,
    ProducerInitialized: _producer_initialized,
    PartitionsAdded: _partitions_added,
    BatchAppended: _batch_appended,
    OffsetsAdded: _offsets_added,
    OffsetsCommitted: _offsets_committed,
    TxnHeld: _txn_held,
    ProducerFenced: _producer_fenced,
    TxnPrepared: _txn_prepared,
    MarkerWritten: _marker_written,
    GroupMarkerWritten: _group_marker_written,
    VersionRecorded: _version_recorded,
    TxnCompleted: _txn_completed,
    SegmentsReplaced: _segments_replaced,
    ObjectsDropped: _objects_dropped,
    ObjectsForgotten: _objects_forgotten,
    **MEMBERSHIP,
    **EXPIRY,
}
