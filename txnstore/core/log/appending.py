"""The rules of an append, and the folding of the events of partition logs.

The checks are those of Kafka's ``ProducerAppendInfo`` and ``LogValidator``: record batches, producer epochs, sequences,
and the window of five batches.
"""

from __future__ import annotations

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
from txnstore.core.state import Draft, Fold, State, is_foreign, replace
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
    if batch.transactional and is_foreign(state, batch.producer_id):
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
    """The producer state with ``batch`` added to its window; a new epoch starts with an empty window (SEQ-06)."""
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
    """A marker takes one offset, ends the open transaction, and sets the producer's epoch to its own (SEQ-09, PST-13).

    The partition keeps the epoch as in Kafka. A producer of another chain is also fenced in the whole chain.
    """
    tp = TopicPartition(event.topic, event.partition)
    partition = state.partitions[tp]
    aborted = partition.aborted
    first_offset = partition.open_txns.get(event.producer_id)
    open_txns = partition.open_txns.discard(event.producer_id)
    ended = ProducerState(epoch=event.epoch, last_timestamp=state.timestamp)
    if event.outcome is Outcome.ABORT and first_offset is not None:
        stable = min(open_txns.values(), default=event.offset + 1)
        aborted = (*aborted, AbortedTxn(event.producer_id, first_offset, event.offset, stable))
    if is_foreign(state, event.producer_id):
        state = with_fence(state, event.producer_id, event.epoch)
    after = replace(
        partition,
        high_watermark=event.offset + 1,
        open_txns=open_txns,
        producers=partition.producers.insert(event.producer_id, ended),
        aborted=aborted,
    )
    return with_partition(state, tp, after)


def _producer_fenced(state: State, event: ProducerFenced) -> State:
    """The new epoch starts with an empty window; open transactions stay open."""
    for tp in event.partitions:
        partition = state.partitions[tp]
        first_offset = partition.open_txns.get(event.producer_id)
        fenced = ProducerState(event.epoch, (), state.timestamp, first_offset)
        producers = partition.producers.insert(event.producer_id, fenced)
        state = with_partition(state, tp, replace(partition, producers=producers))
    return with_fence(state, event.producer_id, event.epoch) if is_foreign(state, event.producer_id) else state


def with_partition(state: State, tp: TopicPartition, partition: Partition) -> State:
    return replace(state, partitions=state.partitions.insert(tp, partition))


LOG_FOLDS: dict[type, Fold] = {
    BatchAppended: _batch_appended,
    MarkerWritten: _marker_written,
    ProducerFenced: _producer_fenced,
}

#: A batch of another chain's transaction is refused if the coordinator's answer to AddPartitions is older than this.
#: It must be well below the expiration of fences: a late batch is refused by the fence or by its age (ADD-07).
MAX_ADDED_AGE_MS = 12 * 3_600_000


def check_added(state: State, command: Append) -> Added:
    """Check that the coordinator of another chain has added the partitions and groups of an append, recently (ADD-07).

    The fence of the chain refuses an append that arrives after the markers. Fences expire after a day by default, so
    an append is also refused for the age of the coordinator's answer.

    Raises:
        InvalidTxnStateError: The coordinator has not added them.
        UploadExpiredError: The answer is older than :data:`MAX_ADDED_AGE_MS`.
    """
    if command.added is None:
        msg = f"{command.producer} belongs to another chain, whose coordinator must add the partition or group first"
        raise InvalidTxnStateError(msg)
    if state.timestamp - command.added.timestamp > MAX_ADDED_AGE_MS:
        hours = MAX_ADDED_AGE_MS // 3_600_000
        msg = f"the partitions or groups that {command.producer} writes to were added over {hours} hours ago"
        raise UploadExpiredError(msg)
    return command.added


def append_batch(draft: Draft, producer: ProducerIdentity, batch: NewBatch) -> Appended:
    """Append a batch to its partition, or return where it was appended before (SEQ-03)."""
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
    """Refuse an empty batch, and a producer id without epoch and sequence or the reverse (INVALID_RECORD, SEQ-12)."""
    if batch.records < 1:
        msg = f"{producer} sent a batch without records to {batch.tp}"
        raise ProducerError(msg)
    if producer.producer_id == NO_PRODUCER:
        complete = producer.epoch == NO_PRODUCER and batch.base_sequence == NO_PRODUCER
    else:
        complete = min(producer.producer_id, producer.epoch, batch.base_sequence) >= 0
    if not complete or batch.base_sequence > MAX_SEQUENCE:
        msg = (
            f"{producer} sent sequence {batch.base_sequence} to {batch.tp}: producer id, epoch and sequence must be "
            "set together"
        )
        raise ProducerError(msg)


def _check_upload(state: State, batch: NewBatch) -> None:
    """Refuse a batch whose segment a vacuum has dropped, or may have dropped and forgotten (OBJ-06)."""
    key = batch.segment.key
    if key in state.dropped:
        msg = f"the upload {key} was vacuumed before it was registered"
        raise UploadExpiredError(msg)
    if batch.uploaded_at is not None and state.timestamp - batch.uploaded_at > MAX_UPLOAD_AGE_MS:
        days = MAX_UPLOAD_AGE_MS // 86_400_000
        msg = f"the upload {key} is over {days} days old: a vacuum may have deleted it"
        raise UploadExpiredError(msg)


def _check_topic(state: State, batch: NewBatch) -> None:
    """Refuse rows of a deleted topic: a new topic of the same name may have another schema."""
    if batch.topic_id is not None and batch.topic_id != state.topics[batch.topic].topic_id:
        msg = f"topic {batch.topic!r} was deleted and created again; records for the old topic are refused"
        raise UnknownTopicOrPartitionError(msg)


def _check_sequence(partition: Partition, producer: ProducerIdentity, batch: NewBatch) -> Appended | None:
    """The checks of Kafka's ``ProducerAppendInfo``: the epoch, then the window, then the sequence (SEQ-01…09).

    Returns:
        Where a duplicate was appended first; None if the batch is the next one.

    Raises:
        ProducerFencedError: The partition has seen a newer epoch.
        OutOfOrderSequenceError: The sequence is neither the next one nor that of a batch in the window.
    """
    known = partition.producers.get(producer.producer_id)
    transactional = producer.transactional_id is not None
    last_sequence = next_sequence(batch.base_sequence, batch.records - 1)
    if known is None:
        # The state of an idempotent producer may have expired, so its first batch may have any sequence (SEQ-08).
        expected = 0 if transactional else batch.base_sequence
    elif producer.epoch < known.epoch:
        msg = f"{producer} is fenced in {batch.tp}: the partition has seen epoch {known.epoch}"
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
        msg = f"{producer} sent sequence {batch.base_sequence} to {batch.tp}, where {expected} is expected"
        raise OutOfOrderSequenceError(msg)
    return None


def _find_open(partition: Partition, producer: ProducerIdentity, batch: NewBatch) -> Appended | None:
    """Where a batch of the open transaction is in the log, also outside the window; found by its segment.

    A job registers all its batches of a chain in one step, possibly more than a window holds. If another chain fails,
    all of them are sent again (SEQ-03, REC-01).
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
    """Where a batch of a decided transaction was appended, found by its segment, searching from the end of the log.

    The end of the transaction has cleared the window. If a compaction has merged the segment, or its topic is deleted,
    the offsets are not known: -1, as in Kafka.
    """
    partition = state.partition(batch.tp)
    for known in reversed(partition.batches) if partition is not None else ():
        if known.segment.key == batch.segment.key:
            return Appended(batch.tp, known.base_offset, known.limit, known.appended_at, duplicate=True)
    return Appended(batch.tp, -1, -1, ended_at, duplicate=True)


def check_granting_chain(state: State, producer: ProducerIdentity) -> None:
    """Check that the store has the chain that grants a producer id.

    Raises:
        InvalidPidMappingError: The producer id was never granted.
    """
    chain = chain_of_producer(producer.producer_id)
    if not 0 <= chain < state.chains:
        msg = f"producer id {producer.producer_id} was never granted: the store has no chain {chain}"
        raise InvalidPidMappingError(msg)


def check_plain_producer(state: State, producer: ProducerIdentity) -> None:
    """Check that the id of a producer without a transactional id was granted, and not to a transactional id.

    Only the granting chain checks it; other chains know whether that chain exists.

    Raises:
        InvalidTxnStateError: The producer id belongs to a transactional id.
        InvalidPidMappingError: The producer id was never granted.
    """
    if producer.producer_id == NO_PRODUCER:
        return
    if chain_of_producer(producer.producer_id) != state.chain:
        check_granting_chain(state, producer)
        return
    owner = state.transactional_ids.get(producer.producer_id)
    if producer.producer_id >= state.next_producer_id or owner is not None:
        known = f"belongs to transactional id {owner!r}" if owner is not None else "was never granted"
        msg = f"producer id {producer.producer_id} {known}: it cannot append outside a transaction"
        error = InvalidTxnStateError if owner is not None else InvalidPidMappingError
        raise error(msg)


def partition_of(state: State, tp: TopicPartition) -> Partition:
    """The partition log for an append.

    Raises:
        UnknownTopicOrPartitionError: The partition does not exist, or its topic is being deleted.
    """
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
