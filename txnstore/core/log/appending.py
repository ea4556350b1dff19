"""What a partition accepts, from which producer, and how the log changes.

The rules are those of Kafka's ``ProducerAppendInfo`` and the checks around it: record batches, producer epochs,
sequences, the window of five batches.
"""

from __future__ import annotations

from dataclasses import replace

from txnstore.core.fences import with_fence
from txnstore.core.log.commands import Added, Append, Appended
from txnstore.core.log.events import BatchAppended, MarkerWritten, ProducerFenced
from txnstore.core.log.model import (
    MAX_SEQUENCE,
    MAX_UPLOAD_AGE_MS,
    WINDOW,
    AbortedTxn,
    Batch,
    BatchMetadata,
    NewBatch,
    Partition,
    ProducerState,
    next_sequence,
)
from txnstore.core.model import NO_PRODUCER, Outcome, ProducerIdentity, TopicPartition
from txnstore.core.routing import chain_of_producer
from txnstore.core.state import Draft, Fold, State
from txnstore.errors import (
    InvalidPidMappingError,
    InvalidTxnStateError,
    OutOfOrderSequenceError,
    ProducerError,
    ProducerFencedError,
    UnknownTopicOrPartitionError,
    UploadExpiredError,
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
    return with_partition(
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
    return with_partition(state, tp, replace(after, aborted=aborted))


def _producer_fenced(state: State, event: ProducerFenced) -> State:
    """The new epoch begins with an empty window; what is open stays open."""
    for tp in event.partitions:
        partition = state.partitions[tp]
        first_offset = partition.open_txns.get(event.producer_id)
        fenced = ProducerState(event.epoch, (), state.timestamp, first_offset)
        producers = partition.producers.insert(event.producer_id, fenced)
        state = with_partition(state, tp, replace(partition, producers=producers))
    return with_fence(state, event.producer_id, event.epoch)


def with_partition(state: State, tp: TopicPartition, partition: Partition) -> State:
    return replace(state, partitions=state.partitions.insert(tp, partition))


LOG_FOLDS: dict[type, Fold] = {
    BatchAppended: _batch_appended,
    MarkerWritten: _marker_written,
    ProducerFenced: _producer_fenced,
}

#: A batch from another chain's transaction is refused if its partition was added longer ago than this. Well below the
#: time after which a chain forgets a fence: a late batch must be refused by the fence, or by this rule (ADD-07).
MAX_ADDED_AGE_MS = 12 * 3_600_000


def check_added(state: State, command: Append) -> Added:
    """A batch or an offset of another chain's transaction: its coordinator has added it, and not too long ago (ADD-07).

    What comes later than the markers is refused by the chain's fence. A fence expires after a day; what was added so
    long ago is refused for its age.
    """
    if command.added is None:
        msg = f"{command.producer} belongs to another chain, whose coordinator has to add what it writes here first"
        raise InvalidTxnStateError(msg)
    if state.timestamp - command.added.timestamp > MAX_ADDED_AGE_MS:
        msg = f"{command.producer} added what it writes here over {MAX_ADDED_AGE_MS // 3_600_000} hours ago"
        raise UploadExpiredError(msg)
    return command.added


def append_batch(draft: Draft, producer: ProducerIdentity, batch: NewBatch) -> Appended:
    partition = partition_of(draft.state, batch.tp)
    _check_record_batch(producer, batch)
    _check_topic(draft.state, batch)
    if producer.producer_id != NO_PRODUCER:
        duplicate = _check_sequence(partition, producer, batch)
        if duplicate is not None:
            return duplicate
    _check_upload(draft.state, batch)
    base_offset = partition.high_watermark
    limit = base_offset + batch.records
    draft.emit(
        BatchAppended(
            topic=batch.topic,
            partition=batch.partition,
            batch=Batch(
                base_offset=base_offset,
                limit=limit,
                records=batch.records,
                segment=batch.segment,
                min_timestamp=batch.min_timestamp,
                max_timestamp=batch.max_timestamp,
                producer_id=producer.producer_id,
                epoch=producer.epoch,
                base_sequence=batch.base_sequence,
                transactional=producer.transactional_id is not None,
                appended_at=draft.state.timestamp,
            ),
        ),
    )
    return Appended(batch.tp, base_offset, limit, draft.state.timestamp)


def _check_record_batch(producer: ProducerIdentity, batch: NewBatch) -> None:
    """Refuse what Kafka calls INVALID_RECORD: no records, or an epoch and a sequence without a producer id (SEQ-12)."""
    if batch.records < 1:
        msg = f"{producer} sent a batch without records to {batch.tp}"
        raise ProducerError(msg)
    if producer.producer_id == NO_PRODUCER:
        complete = producer.epoch == NO_PRODUCER and batch.base_sequence == NO_PRODUCER
    else:
        complete = min(producer.producer_id, producer.epoch, batch.base_sequence) >= 0
    if not complete or batch.base_sequence > MAX_SEQUENCE:
        msg = f"{producer} sent sequence {batch.base_sequence} to {batch.tp}: id, epoch and sequence go together"
        raise ProducerError(msg)


def _check_upload(state: State, batch: NewBatch) -> None:
    """A batch must not name a segment that a vacuum deletes, or has deleted and forgotten (OBJ-06)."""
    key = batch.segment.key
    if key in state.dropped:
        msg = f"the upload {key} was vacuumed before it was registered"
        raise UploadExpiredError(msg)
    if batch.uploaded_at is not None and state.timestamp - batch.uploaded_at > MAX_UPLOAD_AGE_MS:
        days = MAX_UPLOAD_AGE_MS // 86_400_000
        msg = f"the upload {key} is over {days} days old: a vacuum may have deleted it"
        raise UploadExpiredError(msg)


def _check_topic(state: State, batch: NewBatch) -> None:
    """Rows of a topic that was deleted must not get into another one of its name: their schema is the old one's."""
    if batch.topic_id is not None and batch.topic_id != state.topics[batch.topic].topic_id:
        msg = f"topic {batch.topic!r} was deleted and created again; what was sent to the old one is refused"
        raise UnknownTopicOrPartitionError(msg)


def _check_sequence(partition: Partition, producer: ProducerIdentity, batch: NewBatch) -> Appended | None:
    """What Kafka's ``ProducerAppendInfo`` checks: the epoch, then the window, then the sequence (SEQ-01…09).

    Returns where a duplicate was appended first, or None if the batch is the next one.
    """
    known = partition.producers.get(producer.producer_id)
    transactional = producer.transactional_id is not None
    last_sequence = next_sequence(batch.base_sequence, batch.records - 1)
    if known is None:
        # An idempotent producer's state may have expired, so its first batch may have any sequence (SEQ-08).
        expected = 0 if transactional else batch.base_sequence
    elif producer.epoch < known.epoch:
        msg = f"{producer} is fenced in {batch.tp}: epoch {known.epoch} was seen there"
        raise ProducerFencedError(msg)
    elif producer.epoch > known.epoch:
        expected = 0
    else:
        for seen in known.batches:
            if (seen.first_sequence, seen.last_sequence) == (batch.base_sequence, last_sequence):
                return Appended(batch.tp, seen.base_offset, seen.last_offset + 1, seen.timestamp, duplicate=True)
        expected = next_sequence(known.last_sequence)
    if batch.base_sequence != expected:
        before = _find_open(partition, producer, batch)
        if before is not None:
            return before
        msg = f"{producer} sent sequence {batch.base_sequence} to {batch.tp}, where {expected} is the next"
        raise OutOfOrderSequenceError(msg)
    return None


def _find_open(partition: Partition, producer: ProducerIdentity, batch: NewBatch) -> Appended | None:
    """Where a batch of the open transaction is in the log, however far back: no two batches have one segment.

    A job registers all of its batches in another chain at once, which may be more than a window holds. If another chain
    fails, all are sent again (SEQ-03, REC-01).
    """
    first = partition.open_txns.get(producer.producer_id)
    if first is None or producer.transactional_id is None:
        return None
    identity = (producer.producer_id, producer.epoch, batch.base_sequence)
    for known in partition.batches.overlapping(first, partition.high_watermark):
        if known.segment.key == batch.segment.key and (known.producer_id, known.epoch, known.base_sequence) == identity:
            return Appended(batch.tp, known.base_offset, known.limit, known.appended_at, duplicate=True)
    return None


def find_batch(state: State, batch: NewBatch, ended_at: int) -> Appended:
    """Where a batch landed that is known to be appended; its window is gone with the epoch, so look from the end.

    A compaction may have merged its segment, or its topic may be deleted: then the offsets are not known any more
    (-1, as Kafka answers in that case), but the end has happened all the same.
    """
    partition = state.partition(batch.tp)
    for known in reversed(partition.batches) if partition is not None else ():
        if known.segment.key == batch.segment.key:
            return Appended(batch.tp, known.base_offset, known.limit, known.appended_at, duplicate=True)
    return Appended(batch.tp, -1, -1, ended_at, duplicate=True)


def check_plain_producer(state: State, producer: ProducerIdentity) -> None:
    """A producer without a transaction: its id was granted, and not to a transactional id.

    Only the chain that granted it can tell.
    """
    if producer.producer_id == NO_PRODUCER or chain_of_producer(producer.producer_id) != state.chain:
        return
    owner = state.transactional_ids.get(producer.producer_id)
    if producer.producer_id >= state.next_producer_id or owner is not None:
        known = f"belongs to transactional id {owner!r}" if owner is not None else "was never granted"
        msg = f"producer id {producer.producer_id} {known}: it cannot append outside a transaction"
        error = InvalidTxnStateError if owner is not None else InvalidPidMappingError
        raise error(msg)


def partition_of(state: State, tp: TopicPartition) -> Partition:
    partition = state.partition(tp)
    if partition is not None and state.is_closed(state.topics[tp.topic]):
        msg = f"topic {tp.topic!r} is being deleted"
        raise UnknownTopicOrPartitionError(msg)
    if partition is None:
        if tp.topic in state.topics:
            count = state.topics[tp.topic].partitions
            msg = f"topic {tp.topic!r} has {count} partitions, so there is no partition {tp.partition}"
        else:
            msg = f"there is no topic {tp.topic!r}"
        raise UnknownTopicOrPartitionError(msg)
    return partition
