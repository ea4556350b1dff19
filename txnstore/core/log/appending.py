"""The checks of an append, whose command has its rule in ``transactions/rules.py``; the folding of events of logs.

The checks are those of Kafka's ``ProducerAppendInfo`` and ``LogValidator``: record batches, producer epochs, sequences,
and the window of five batches.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import TypeAlias, TypeVar

from txnstore.core.catalog.versions import is_outdated
from txnstore.core.fences import with_fence
from txnstore.core.log.commands import Added, Append, Appended
from txnstore.core.log.events import BatchesAppended, MarkerWritten, ProducerFenced, append_events
from txnstore.core.log.model import (
    MAX_SEQUENCE,
    MAX_UPLOAD_AGE_MS,
    NO_OFFSET,
    WINDOW,
    AbortedTxn,
    Batch,
    BatchMetadata,
    NewBatch,
    Partition,
    ProducerState,
    next_sequence,
)
from txnstore.core.model import NO_PRODUCER, Outcome, ProducerIdentity, TopicPartition, interned_tp
from txnstore.core.routing import chain_of_producer
from txnstore.core.state import Draft, State, fold, fold_together, is_foreign, replace
from txnstore.errors import (
    InvalidPidMappingError,
    InvalidTxnStateError,
    OutOfOrderSequenceError,
    ProducerError,
    ProducerFencedError,
    UnknownTopicOrPartitionError,
    UploadExpiredError,
)

E = TypeVar("E", Batch, MarkerWritten)

#: Batches that are recorded in a draft and not folded: the last ones of their partitions.
LastBatches: TypeAlias = Mapping[TopicPartition, Batch]
NO_BATCHES: LastBatches = {}


def _fold_partitions(
    state: State,
    changes: Iterable[tuple[TopicPartition, E]],
    partition_after: Callable[[Partition, E, State], Partition],
) -> State:
    """Fold consecutive changes of partitions, with one change of the map for all of them."""
    logs, changed = state.partitions, dict[TopicPartition, Partition]()
    for tp, change in changes:
        changed[tp] = partition_after(changed.get(tp) or logs[tp], change, state)
    return replace(state, partitions=logs.update(changed))


def _with_fences(state: State, producers: Iterable[tuple[int, int]]) -> State:
    """Raise the fences of the producers (id, epoch) that other chains coordinate."""
    for producer_id, epoch in dict.fromkeys(producers) if state.chains > 1 else ():
        if is_foreign(state, producer_id):
            state = with_fence(state, producer_id, epoch)
    return state


@fold_together(BatchesAppended)
def _batches_appended(state: State, events: Sequence[BatchesAppended]) -> State:
    state = _with_fences(state, ((event.producer_id, event.epoch) for event in events if event.transactional))
    batches = (tp_and_batch for event in events for tp_and_batch in event.placed_batches(state.timestamp))
    return _fold_partitions(state, batches, _batch_appended)


def fold_batches(state: State, batches: LastBatches) -> State:
    """Fold batches of one producer, as their events would be."""
    state = _with_fences(state, ((batch.producer_id, batch.epoch) for batch in batches.values() if batch.transactional))
    return _fold_partitions(state, batches.items(), _batch_appended)


def _batch_appended(partition: Partition, batch: Batch, state: State) -> Partition:
    """Append a batch to its partition, to the producer's window, and to the open transactions if it is the first."""
    producers, open_txns = partition.producers, partition.open_txns
    if batch.producer_id != NO_PRODUCER:
        producer = _add_to_window(producers.get(batch.producer_id), batch, state)
        producers = producers.insert(batch.producer_id, producer)
        if batch.transactional and producer.current_txn_first_offset == batch.base_offset:
            open_txns = open_txns.insert(batch.producer_id, batch.base_offset)
    return partition.with_appended(
        batch.limit, partition.batches.append(batch), producers, open_txns, partition.aborted
    )


def _add_to_window(producer: ProducerState | None, batch: Batch, state: State) -> ProducerState:
    """Add ``batch`` to the window of its producer; a new epoch starts with an empty window (SEQ-06)."""
    window = producer.batches if producer is not None and producer.epoch == batch.epoch else ()
    first_offset = producer.current_txn_first_offset if producer is not None else None
    if batch.transactional and first_offset is None:
        first_offset = batch.base_offset
    first_sequence = batch.base_sequence
    last_sequence = next_sequence(batch.base_sequence, batch.records - 1)
    metadata = BatchMetadata(first_sequence, last_sequence, batch.base_offset, batch.limit - 1, batch.appended_at)
    return ProducerState(batch.epoch, (*window, metadata)[-WINDOW:], state.timestamp, first_offset)


@fold_together(MarkerWritten)
def _markers_written(state: State, events: Sequence[MarkerWritten]) -> State:
    state = _with_fences(state, ((event.producer_id, event.epoch) for event in events))
    markers = ((interned_tp(event.topic, event.partition), event) for event in events)
    return _fold_partitions(state, markers, marker_written)


def with_markers(state: State, markers: Sequence[MarkerWritten], logs: Mapping[TopicPartition, Partition]) -> State:
    """Return the state with the logs that :func:`marker_written` has returned for these markers."""
    state = _with_fences(state, ((marker.producer_id, marker.epoch) for marker in markers))
    return replace(state, partitions=state.partitions.update(logs))


def marker_written(
    partition: Partition, event: MarkerWritten, state: State, last_batch: Batch | None = None
) -> Partition:
    """Write a marker: take one offset, end the open transaction, and set the producer's epoch (SEQ-09, PST-13).

    The partition keeps the epoch as in Kafka. A producer of another chain is also fenced in the whole chain.

    ``last_batch``: the batch of the transaction before the marker, if it is not folded. It only has to be added to the
    log: the marker ends what :func:`_batch_appended` would remember of it.
    """
    aborted, batches = partition.aborted, partition.batches
    first_offset = partition.open_txns.get(event.producer_id)
    if last_batch is not None:
        batches = batches.append(last_batch)
        first_offset = last_batch.base_offset if first_offset is None else first_offset
    open_txns = partition.open_txns.discard(event.producer_id)
    if event.outcome is Outcome.ABORT and first_offset is not None:
        last_stable_offset = min(open_txns.values(), default=event.offset + 1)
        aborted = (*aborted, AbortedTxn(event.producer_id, first_offset, event.offset, last_stable_offset))
    producers = partition.producers.insert(event.producer_id, _state_after_marker(event.epoch, state.timestamp))
    return partition.with_appended(event.offset + 1, batches, producers, open_txns, aborted)


@lru_cache(maxsize=64)
def _state_after_marker(epoch: int, timestamp: int) -> ProducerState:
    """Return the state of a producer after a marker: the same object in all partitions of its transaction."""
    return ProducerState(epoch, (), timestamp)


@fold(ProducerFenced)
def _producer_fenced(state: State, event: ProducerFenced) -> State:
    """Fence a producer: the new epoch starts with an empty window; open transactions stay open."""
    for tp in event.partitions:
        partition = state.partitions[tp]
        first_offset = partition.open_txns.get(event.producer_id)
        fenced_state = ProducerState(event.epoch, (), state.timestamp, first_offset)
        producers = partition.producers.insert(event.producer_id, fenced_state)
        state = with_partition(state, tp, replace(partition, producers=producers))
    return with_fence(state, event.producer_id, event.epoch) if is_foreign(state, event.producer_id) else state


def with_partition(state: State, tp: TopicPartition, partition: Partition) -> State:
    return replace(state, partitions=state.partitions.insert(tp, partition))


#: A batch of another chain's transaction is refused if the coordinator's answer to AddPartitions is older than this.
#: It must be well below the expiration of fences: a late batch is refused by the fence or by its age (ADD-07).
MAX_ADDED_AGE_MS = 12 * 3_600_000


def check_added(state: State, command: Append) -> Added:
    """Check that the coordinator in another chain has added the partitions and groups, recently (ADD-07).

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


def append_batches(
    draft: Draft, producer: ProducerIdentity, batches: Iterable[NewBatch], session_epoch: int = NO_PRODUCER
) -> tuple[Appended, ...]:
    """Append batches in order, each to its partition; return where each is, also of a repeated one (SEQ-03)."""
    answers, last_batches = begin_append(draft, producer, batches, session_epoch)
    draft.state = fold_batches(draft.state, last_batches)
    return answers


def begin_append(
    draft: Draft, producer: ProducerIdentity, batches: Iterable[NewBatch], session_epoch: int = NO_PRODUCER
) -> tuple[tuple[Appended, ...], LastBatches]:
    """Decide an append as :func:`append_batches` does; return the answer, and the batches that are not folded yet.

    The check of a batch depends only on the earlier ones of its partition, so others are folded together.

    ``session_epoch``: that of the transaction.
    """
    answers: list[Appended] = []
    appended_batches: list[tuple[TopicPartition, Batch]] = []
    unfolded: dict[TopicPartition, Batch] = {}
    topics: set[tuple[str, str | None, int | None]] = set()
    for batch in batches:
        tp = batch.tp
        if tp in unfolded:
            draft.emit(*append_events(unfolded))
            unfolded = {}
        partition = draft.state.partitions.get(tp)
        if partition is None or _topic_version(batch) not in topics:
            partition = partition_of(draft.state, tp)
            _check_topic(draft.state, batch)
            topics.add(_topic_version(batch))
        result = _decide_batch(draft.state, producer, batch, partition, session_epoch)
        if isinstance(result, Batch):
            unfolded[tp] = result
            appended_batches.append((tp, result))
            result = Appended(tp, result.base_offset, result.limit, result.appended_at)
        answers.append(result)
    _check_shared_segments(producer, appended_batches)
    draft.record(*append_events(unfolded))
    return tuple(answers), unfolded


def _check_shared_segments(producer: ProducerIdentity, batches: list[tuple[TopicPartition, Batch]]) -> None:
    """Refuse batches of one segment that describe it differently, or that have rows in common (INVALID_RECORD)."""
    previous_by_segment: dict[str, tuple[TopicPartition, Batch]] = {}
    for tp, batch in sorted(batches, key=lambda tp_and_batch: tp_and_batch[1].first_row):
        key = batch.segment.key
        other_tp, other = previous_by_segment.get(key, (tp, None))
        previous_by_segment[key] = tp, batch
        if other is None:
            continue
        if (other_tp.topic, other.segment, other.timestamp_type) != (
            tp.topic,
            batch.segment,
            batch.timestamp_type,
        ):
            problem = "are of different topics, or describe it differently"
        elif batch.first_row < other.first_row + other.records:
            problem = f"both have its row {batch.first_row}"
        else:
            continue
        msg = f"{producer} sent batches of the segment {key} to {other_tp} and {tp}, which {problem}"
        raise ProducerError(msg)


def _decide_batch(
    state: State, producer: ProducerIdentity, batch: NewBatch, partition: Partition, session_epoch: int
) -> Batch | Appended:
    """Return the batch at its offsets, or where it was appended before."""
    _check_record_batch(producer, batch)
    if producer.producer_id != NO_PRODUCER:
        duplicate = _check_sequence(partition, producer, batch, session_epoch)
        if duplicate is not None:
            return duplicate
    _check_upload(state, batch)
    return batch.placed_batch(partition.high_watermark, producer, state.timestamp)


def _check_record_batch(producer: ProducerIdentity, batch: NewBatch) -> None:
    """Refuse an empty batch, and a producer id without epoch and sequence or the reverse (INVALID_RECORD, SEQ-12)."""
    if batch.records < 1:
        msg = f"{producer} sent a batch without records to {batch.tp}"
        raise ProducerError(msg)
    if not 0 <= batch.first_row <= batch.segment.rows - batch.records:
        msg = (
            f"{producer} sent the rows {batch.first_row} to {batch.first_row + batch.records} of a segment of "
            f"{batch.segment.rows} rows to {batch.tp}"
        )
        raise ProducerError(msg)
    if producer.producer_id == NO_PRODUCER:
        complete = producer.epoch == NO_PRODUCER and batch.base_sequence == NO_PRODUCER
    else:
        complete = producer.producer_id >= 0 and producer.epoch >= 0 and batch.base_sequence >= 0
    if not complete or batch.base_sequence > MAX_SEQUENCE:
        msg = (
            f"{producer} sent sequence {batch.base_sequence} to {batch.tp}: producer id, epoch and sequence must be "
            "set together"
        )
        raise ProducerError(msg)


def _check_upload(state: State, batch: NewBatch) -> None:
    """Refuse a batch whose segment a vacuum has dropped, or may have dropped and forgotten (OBJ-06)."""
    key = batch.segment.key
    if batch.segment.inlined:
        return  # It is stored with the entry that appends it.
    if batch.segment.object in state.dropped:
        msg = f"the upload {key} was vacuumed before it was registered"
        raise UploadExpiredError(msg)
    if batch.uploaded_at is not None and state.timestamp - batch.uploaded_at > MAX_UPLOAD_AGE_MS:
        days = MAX_UPLOAD_AGE_MS // 86_400_000
        msg = f"the upload {key} is over {days} days old: a vacuum may have deleted it"
        raise UploadExpiredError(msg)


def _topic_version(batch: NewBatch) -> tuple[str, str | None, int | None]:
    return batch.topic, batch.topic_id, batch.topic_version


def _check_topic(state: State, batch: NewBatch) -> None:
    """Refuse rows of a deleted topic, whose successor may have another schema, and of a version not known here yet."""
    if batch.topic_id is not None and batch.topic_id != state.topics[batch.topic].topic_id:
        msg = f"topic {batch.topic!r} was deleted and created again; records for the old topic are refused"
        raise UnknownTopicOrPartitionError(msg)
    is_outdated(state, batch.topic, batch.topic_id, batch.topic_version)  # Rows of an older version are taken.


def window_of(partition: Partition, producer_id: int, epoch: int) -> tuple[BatchMetadata, ...]:
    """Return the window of a producer at this epoch."""
    producer_state = partition.producers.get(producer_id)
    return producer_state.batches if producer_state is not None and producer_state.epoch == epoch else ()


def kept_window(partition: Partition, producer_id: int, session_epoch: int) -> tuple[BatchMetadata, ...]:
    """Return the kept part of the window of earlier transactions of a session."""
    window = partition.session_windows.get(producer_id)
    return window.batches if window is not None and window.session_epoch == session_epoch else ()


def _session_window(partition: Partition, producer: ProducerIdentity, session_epoch: int) -> tuple[BatchMetadata, ...]:
    """Return the window of a producer, after the kept part of earlier transactions of its session."""
    kept_batches = kept_window(partition, producer.producer_id, session_epoch)
    window = window_of(partition, producer.producer_id, producer.epoch)
    return (*kept_batches, *window)[-WINDOW:] if kept_batches else window


def find_repeated(
    partition: Partition | None, producer: ProducerIdentity, batch: NewBatch, session_epoch: int
) -> Appended | None:
    """Find where a batch in the window of a producer was appended first (SEQ-03); None if it is not in it."""
    if partition is None:
        return None
    return _find_in_window(_session_window(partition, producer, session_epoch), batch)


def _find_in_window(window: Iterable[BatchMetadata], batch: NewBatch) -> Appended | None:
    """Find where a batch of the window was appended first; None if it is not in the window.

    Raises:
        OutOfOrderSequenceError: It has the sequences of a batch of an aborted transaction of the session.
    """
    last_sequence = next_sequence(batch.base_sequence, batch.records - 1)
    for metadata in window:
        if (metadata.first_sequence, metadata.last_sequence) != (batch.base_sequence, last_sequence):
            continue
        if metadata.base_offset == NO_OFFSET:
            # No caller waits for the answer to a batch of an aborted transaction, but librdkafka gives the sequences of
            # one whose request it has given up to new records, which a repetition would lose.
            msg = (
                f"a batch to {batch.tp} has the sequences {batch.base_sequence} to {last_sequence} of a batch of an "
                "earlier transaction, which was aborted"
            )
            raise OutOfOrderSequenceError(msg)
        return Appended(batch.tp, metadata.base_offset, metadata.last_offset + 1, metadata.timestamp, duplicate=True)
    return None


def _check_sequence(
    partition: Partition, producer: ProducerIdentity, batch: NewBatch, session_epoch: int
) -> Appended | None:
    """Check epoch, then window, then sequence, as Kafka's ``ProducerAppendInfo`` (SEQ-01…09).

    Returns:
        Where a duplicate was appended first; None if the batch is the next one.

    Raises:
        ProducerFencedError: The partition has seen a newer epoch.
        OutOfOrderSequenceError: The sequence is neither the next one nor that of a batch in the window.
    """
    producer_state = partition.producers.get(producer.producer_id)
    if producer_state is not None and producer.epoch < producer_state.epoch:
        msg = f"{producer} is fenced in {batch.tp}: the partition has seen epoch {producer_state.epoch}"
        raise ProducerFencedError(msg)
    window = _session_window(partition, producer, session_epoch)
    repeated_batch = _find_in_window(window, batch)
    if repeated_batch is not None:
        return repeated_batch
    expected_sequence = 0
    if window:
        expected_sequence = next_sequence(window[-1].last_sequence)
    elif producer_state is None and (producer.transactional_id is None or session_epoch != NO_PRODUCER):
        # The state of an idempotent producer may have expired, so its first batch may have any sequence (SEQ-08). So
        # may that of a session, which outlives its transactions.
        expected_sequence = batch.base_sequence
    if batch.base_sequence != expected_sequence:
        earlier_batch = _find_in_open_txn(partition, producer, batch)
        if earlier_batch is not None:
            return earlier_batch
        msg = f"{producer} sent sequence {batch.base_sequence} to {batch.tp}, where {expected_sequence} is expected"
        raise OutOfOrderSequenceError(msg)
    return None


def _find_in_open_txn(partition: Partition, producer: ProducerIdentity, batch: NewBatch) -> Appended | None:
    """Find a batch of the open transaction in the log, also outside the window.

    A job registers all its batches of a chain in one step, possibly more than a window holds. If another chain fails,
    all of them are sent again (SEQ-03, REC-01).
    """
    first_offset = partition.open_txns.get(producer.producer_id)
    if first_offset is None:
        return None
    for log_batch in partition.batches.overlapping(first_offset, partition.high_watermark):
        if _is_batch(log_batch, producer, batch):
            return Appended(batch.tp, log_batch.base_offset, log_batch.limit, log_batch.appended_at, duplicate=True)
    return None


def _is_batch(log_batch: Batch, producer: ProducerIdentity, batch: NewBatch) -> bool:
    """Whether ``log_batch`` is the batch, from an earlier attempt."""
    identity = (producer.producer_id, producer.epoch, batch.base_sequence)
    if (log_batch.producer_id, log_batch.epoch, log_batch.base_sequence) != identity:
        return False
    if log_batch.segment.inlined:  # Its key is that of the entry which took it.
        return log_batch.segment.sha256 == batch.segment.sha256
    return log_batch.segment.key == batch.segment.key


def find_batch(state: State, producer: ProducerIdentity, batch: NewBatch, ended_at: int) -> Appended:
    """Find where a batch of a decided transaction was appended, searching from the end of the log.

    The end of the transaction has cleared the window. If a compaction has merged the segment, or its topic is deleted,
    the offsets are not known: -1, as in Kafka.
    """
    partition = state.partition(batch.tp)
    for log_batch in reversed(partition.batches) if partition is not None else ():
        if _is_batch(log_batch, producer, batch):
            return Appended(batch.tp, log_batch.base_offset, log_batch.limit, log_batch.appended_at, duplicate=True)
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
    refused = "it cannot append outside a transaction"
    if owner is not None:
        msg = f"producer id {producer.producer_id} belongs to transactional id {owner!r}: {refused}"
        raise InvalidTxnStateError(msg)
    if producer.producer_id >= state.next_producer_id:
        msg = f"producer id {producer.producer_id} was never granted: {refused}"
        raise InvalidPidMappingError(msg)


def partition_of(state: State, tp: TopicPartition) -> Partition:
    """Return the partition log for an append.

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
