"""The rules of producers and transactions: epochs, sequences, begin, end, recovery.

The tables are Kafka's: ``TransactionCoordinator`` and ``TransactionMetadata`` for transactions (with KIP-890's epoch
bump at every end), ``ProducerAppendInfo`` for what a partition accepts.
"""

from __future__ import annotations

from txnstore.core.commands import Append, Appended, Ended, EndTxn, InitProducer, ProducerIdentity
from txnstore.core.draft import Draft
from txnstore.core.events import (
    BatchAppended,
    GroupMarkerWritten,
    MarkerWritten,
    OffsetsAdded,
    PartitionsAdded,
    ProducerInitialized,
    TxnCompleted,
    TxnPrepared,
    VersionRecorded,
)
from txnstore.core.groups import commit_offsets
from txnstore.core.model import (
    MAX_EPOCH,
    MAX_SEQUENCE,
    NO_PRODUCER,
    VALID_PREVIOUS_STATES,
    Batch,
    NewBatch,
    Outcome,
    Partition,
    State,
    TopicPartition,
    Transaction,
    TxnState,
    next_sequence,
    sorted_tps,
)
from txnstore.errors import (
    ConcurrentTransactionsError,
    InvalidPidMappingError,
    InvalidTxnStateError,
    InvalidTxnTimeoutError,
    OutOfOrderSequenceError,
    ProducerError,
    ProducerFencedError,
    UnknownTopicOrPartitionError,
    UploadExpiredError,
)

#: Kafka's ``transaction.max.timeout.ms``.
MAX_TIMEOUT_MS = 900_000
#: An upload older than this is not registered any more.
MAX_UPLOAD_AGE_MS = 3 * 86_400_000
#: Dropped objects are remembered for this long, which exceeds the age of any upload by more than clocks differ.
FORGET_AFTER_MS = 7 * 86_400_000

_PREPARED = frozenset({TxnState.PREPARE_COMMIT, TxnState.PREPARE_ABORT})
_COMPLETED = {Outcome.COMMIT: TxnState.COMPLETE_COMMIT, Outcome.ABORT: TxnState.COMPLETE_ABORT}


# Init -----------------------------------------------------------------------------------------------------------------


def init_producer(draft: Draft, command: InitProducer) -> ProducerIdentity:
    """Grant an identity. A transactional one fences its predecessor and ends its transaction first (INIT-01…11)."""
    transactional_id = command.transactional_id
    if transactional_id is None:
        draft.emit(ProducerInitialized(producer_id=draft.state.next_producer_id, epoch=0))
        return ProducerIdentity(draft.state.next_producer_id - 1, 0)
    if not 0 < command.timeout_ms <= MAX_TIMEOUT_MS:
        msg = f"the transaction time-out of {transactional_id!r} must be 1 to {MAX_TIMEOUT_MS} ms, not "
        raise InvalidTxnTimeoutError(msg + str(command.timeout_ms))
    txn = draft.state.transactions.get(transactional_id)
    if txn is None:
        if command.expected is not None:
            msg = f"transactional id {transactional_id!r} is not known (any more)"
            raise InvalidPidMappingError(msg)
        return _grant(draft, command, draft.state.next_producer_id, 0)
    if command.expected is not None:
        held = _expected_identity(txn, command.expected)
        if held is not None:
            return held
    if txn.state is TxnState.ONGOING:
        _end(draft, txn, Outcome.ABORT)
        txn = draft.state.transactions[transactional_id]
    if txn.epoch >= MAX_EPOCH:
        return _grant(draft, command, draft.state.next_producer_id, 0)
    return _grant(draft, command, txn.producer_id, txn.epoch + 1)


def _expected_identity(txn: Transaction, expected: tuple[int, int]) -> ProducerIdentity | None:
    """The identity that a repeated init was granted before, or None if the epoch is to be bumped now (KIP-360)."""
    if expected == (txn.producer_id, txn.epoch):
        return None
    if _is_last(txn, expected):
        return ProducerIdentity(txn.producer_id, txn.epoch, txn.transactional_id)
    raise _fenced(txn, ProducerIdentity(*expected, txn.transactional_id))


def _grant(draft: Draft, command: InitProducer, producer_id: int, epoch: int) -> ProducerIdentity:
    """Grant an identity; only a bump that its own holder asked for remembers the one before, for a retry (INIT-10)."""
    last_id, last_epoch = command.expected or (NO_PRODUCER, NO_PRODUCER)
    draft.emit(
        ProducerInitialized(
            producer_id=producer_id,
            epoch=epoch,
            transactional_id=command.transactional_id,
            timeout_ms=command.timeout_ms,
            last_epoch=last_epoch,
            previous_producer_id=last_id if last_id != producer_id else NO_PRODUCER,
        ),
    )
    return ProducerIdentity(producer_id, epoch, command.transactional_id)


# Append ---------------------------------------------------------------------------------------------------------------


def append(draft: Draft, command: Append) -> tuple[Appended, ...]:
    """Append batches and pending offsets; all or nothing."""
    producer = command.producer
    if producer.transactional_id is None:
        if command.offsets:
            msg = "offsets can only be sent inside a transaction"
            raise InvalidTxnStateError(msg)
        _check_plain_producer(draft.state, producer)
    else:
        txn = _transaction(draft.state, producer)
        if (txn.producer_id, txn.epoch) != (producer.producer_id, producer.epoch):
            raise _fenced(txn, producer)
        _join(draft, command)
    return tuple(_append_batch(draft, producer, batch) for batch in command.batches)


def _join(draft: Draft, command: Append | EndTxn) -> None:
    """Record partitions and groups in the transaction before their data (ADD-01), and the groups' offsets (OFF-02)."""
    identity = command.producer
    transactional_id = identity.transactional_id
    if transactional_id is None:  # pragma: no cover - both callers have looked the id up
        msg = "only a transactional producer joins a transaction"
        raise InvalidTxnStateError(msg)
    txn = draft.state.transactions[transactional_id]
    if txn.state in _PREPARED:
        msg = f"the previous transaction of {transactional_id!r} is still being completed"
        raise ConcurrentTransactionsError(msg)
    for batch in command.batches:
        _partition(draft.state, batch.tp)
    new = sorted_tps({batch.tp for batch in command.batches} - txn.partitions)
    if new:
        draft.emit(
            PartitionsAdded(
                transactional_id=transactional_id,
                producer_id=identity.producer_id,
                epoch=identity.epoch,
                partitions=new,
            ),
        )
    for offsets in command.offsets:
        if not offsets.offsets:
            continue
        if offsets.group not in draft.state.transactions[transactional_id].groups:
            draft.emit(
                OffsetsAdded(
                    transactional_id=transactional_id,
                    producer_id=identity.producer_id,
                    epoch=identity.epoch,
                    group=offsets.group,
                ),
            )
        commit_offsets(draft, offsets, identity)


def _append_batch(draft: Draft, producer: ProducerIdentity, batch: NewBatch) -> Appended:
    partition = _partition(draft.state, batch.tp)
    _check_record_batch(producer, batch)
    if producer.producer_id != NO_PRODUCER:
        duplicate = _check_sequence(partition, producer, batch)
        if duplicate is not None:
            return duplicate
    _check_upload(draft.state, batch)
    _check_topic(draft.state, batch)
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
        msg = f"{producer} sent sequence {batch.base_sequence} to {batch.tp}, where {expected} is the next"
        raise OutOfOrderSequenceError(msg)
    return None


# End ------------------------------------------------------------------------------------------------------------------


def end(draft: Draft, command: EndTxn) -> Ended:
    """Commit or abort: what is left to append, the decision, the markers and the completion in one step."""
    producer = command.producer
    txn = _transaction(draft.state, producer)
    if (txn.producer_id, txn.epoch) != (producer.producer_id, producer.epoch):
        return _repeated_end(draft.state, txn, command)
    if any(txn.versions.get(scope, -1) >= version for scope, version in command.versions):
        return _repeated_version(draft, txn)
    _join(draft, command)
    appended = tuple(_append_batch(draft, producer, batch) for batch in command.batches)
    txn = draft.state.transactions[txn.transactional_id]
    begun = txn.state is TxnState.ONGOING
    if not begun and command.outcome is Outcome.COMMIT and not command.versions:
        msg = f"transaction {txn.transactional_id!r} is {txn.state.name}: nothing was sent, so nothing can be ended"
        raise InvalidTxnStateError(msg)
    for scope, version in command.versions if command.outcome is Outcome.COMMIT else ():
        draft.emit(VersionRecorded(transactional_id=txn.transactional_id, scope=scope, version=version))
    if begun or command.outcome is Outcome.ABORT:
        # An abort of nothing still bumps the epoch, which a client needs whose append has an unknown end (TV2-08).
        _end(draft, draft.state.transactions[txn.transactional_id], command.outcome)
        txn = draft.state.transactions[txn.transactional_id]
    return Ended(ProducerIdentity(txn.producer_id, txn.epoch, txn.transactional_id), appended)


def _repeated_version(draft: Draft, txn: Transaction) -> Ended:
    """The version of the job is committed already; what this attempt has registered before must not be."""
    if txn.state is TxnState.ONGOING:
        _end(draft, txn, Outcome.ABORT)
        txn = draft.state.transactions[txn.transactional_id]
    return Ended(ProducerIdentity(txn.producer_id, txn.epoch, txn.transactional_id), repeated=True)


def _repeated_end(state: State, txn: Transaction, command: EndTxn) -> Ended:
    """The answer to an end whose first answer was lost: the same, with the identity that follows (TV2-02, TV2-03)."""
    producer = command.producer
    if txn.state not in _COMPLETED.values() or not _is_last(txn, (producer.producer_id, producer.epoch)):
        raise _fenced(txn, producer)
    if txn.state is not _COMPLETED[command.outcome]:
        if command.outcome is Outcome.COMMIT:
            # An abort that the producer did not ask for may have ended it, so it is fenced (KAFKA-20785).
            raise _fenced(txn, producer)
        msg = f"transaction {txn.transactional_id!r} of {producer} is committed: it cannot be aborted any more"
        raise InvalidTxnStateError(msg)
    appended = tuple(_find_batch(state, txn, batch) for batch in command.batches)
    return Ended(ProducerIdentity(txn.producer_id, txn.epoch, txn.transactional_id), appended)


def _find_batch(state: State, txn: Transaction, batch: NewBatch) -> Appended:
    """Where a batch landed that is known to be appended; its window is gone with the epoch, so look from the end.

    A compaction may have merged its segment, or its topic may be deleted: then the offsets are not known any more
    (-1, as Kafka answers in that case), but the end has happened all the same.
    """
    partition = state.partition(batch.tp)
    for known in reversed(partition.batches) if partition is not None else ():
        if known.segment.key == batch.segment.key:
            return Appended(batch.tp, known.base_offset, known.limit, known.appended_at, duplicate=True)
    return Appended(batch.tp, -1, -1, txn.updated_at, duplicate=True)


def _end(draft: Draft, txn: Transaction, outcome: Outcome) -> None:
    """Decide, write every marker, complete. The markers carry the next epoch, so that no late batch fits (KIP-890).

    That epoch is the fence, too, when a successor aborts what its predecessor left (INIT-04): one entry holds the
    bump and the abort, so nobody sees one without the other.
    """
    prepared = TxnState.PREPARE_COMMIT if outcome is Outcome.COMMIT else TxnState.PREPARE_ABORT
    if txn.state not in VALID_PREVIOUS_STATES[prepared]:
        msg = f"transaction {txn.transactional_id!r} is {txn.state.name}: it cannot become {prepared.name}"
        raise InvalidTxnStateError(msg)
    marker_epoch = txn.epoch + 1
    rotate = txn.epoch >= MAX_EPOCH
    draft.emit(
        TxnPrepared(
            transactional_id=txn.transactional_id,
            producer_id=txn.producer_id,
            epoch=txn.epoch,
            outcome=outcome,
        ),
    )
    for tp in sorted_tps(txn.partitions):
        draft.emit(
            MarkerWritten(
                topic=tp.topic,
                partition=tp.partition,
                producer_id=txn.producer_id,
                epoch=marker_epoch,
                outcome=outcome,
                offset=draft.state.partitions[tp].high_watermark,
            ),
        )
    for group in sorted(txn.groups):
        draft.emit(
            GroupMarkerWritten(group=group, producer_id=txn.producer_id, epoch=marker_epoch, outcome=outcome),
        )
    draft.emit(
        TxnCompleted(
            transactional_id=txn.transactional_id,
            producer_id=txn.producer_id,
            epoch=txn.epoch,
            outcome=outcome,
            next_producer_id=draft.state.next_producer_id if rotate else txn.producer_id,
            next_epoch=0 if rotate else marker_epoch,
        ),
    )


# Shared ---------------------------------------------------------------------------------------------------------------


def _check_plain_producer(state: State, producer: ProducerIdentity) -> None:
    if producer.producer_id == NO_PRODUCER:
        return
    owner = state.transactional_ids.get(producer.producer_id)
    if producer.producer_id >= state.next_producer_id or owner is not None:
        known = f"belongs to transactional id {owner!r}" if owner is not None else "was never granted"
        msg = f"producer id {producer.producer_id} {known}: it cannot append outside a transaction"
        error = InvalidTxnStateError if owner is not None else InvalidPidMappingError
        raise error(msg)


def _transaction(state: State, producer: ProducerIdentity) -> Transaction:
    """The transaction of a producer; the mapping is checked before the epoch (ADD-03, END-02)."""
    txn = state.transactions.get(producer.transactional_id or "")
    if txn is None:
        msg = f"transactional id {producer.transactional_id!r} is not known (any more)"
        raise InvalidPidMappingError(msg)
    if state.transactional_ids.get(producer.producer_id) != txn.transactional_id:
        msg = f"transactional id {txn.transactional_id!r} maps to producer id {txn.producer_id}, not "
        raise InvalidPidMappingError(msg + str(producer.producer_id))
    return txn


def _is_last(txn: Transaction, identity: tuple[int, int]) -> bool:
    """Whether this (producer id, epoch) was the one before the current one, so that it may ask what became of it."""
    producer_id, epoch = identity
    before = txn.producer_id if txn.previous_producer_id == NO_PRODUCER else txn.previous_producer_id
    return epoch != NO_PRODUCER and (producer_id, epoch) == (before, txn.last_epoch)


def _fenced(txn: Transaction, producer: ProducerIdentity) -> ProducerFencedError:
    msg = (
        f"{producer} is fenced: transactional id {txn.transactional_id!r} is at producer id {txn.producer_id}, "
        f"epoch {txn.epoch}"
    )
    return ProducerFencedError(msg)


def _partition(state: State, tp: TopicPartition) -> Partition:
    partition = state.partition(tp)
    if partition is None:
        if tp.topic in state.topics:
            count = state.topics[tp.topic].partitions
            msg = f"topic {tp.topic!r} has {count} partitions, so there is no partition {tp.partition}"
        else:
            msg = f"there is no topic {tp.topic!r}"
        raise UnknownTopicOrPartitionError(msg)
    return partition
