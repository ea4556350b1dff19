"""The folding of transaction events into the transaction table of a coordinator."""

from __future__ import annotations

from typing import Any

from txnstore.core.fences import with_fence
from txnstore.core.log.appending import kept_window, window_of
from txnstore.core.log.model import NO_OFFSET, WINDOW, Partition, SessionWindow
from txnstore.core.model import NO_PRODUCER, Map, Outcome
from txnstore.core.state import State, fold, is_foreign, replace
from txnstore.core.transactions.events import (
    OffsetsAdded,
    PartitionsAdded,
    ProducerInitialized,
    SessionContinued,
    TxnCompleted,
    TxnDecided,
    TxnPrepared,
    VersionRecorded,
)
from txnstore.core.transactions.model import COMPLETING, PREPARING, Transaction, TxnState


@fold(ProducerInitialized)
def _producer_initialized(state: State, event: ProducerInitialized) -> State:
    """Give a transactional id its new producer id and epoch; keep a prepared transaction if the event does."""
    state = replace(state, next_producer_id=max(state.next_producer_id, event.producer_id + 1))
    if event.transactional_id is None:
        return state
    earlier_txn = state.transactions.get(event.transactional_id)
    if event.keeps and earlier_txn is not None:
        renewed_txn = replace(earlier_txn, epoch=event.epoch, timeout_ms=event.timeout_ms, updated_at=state.timestamp)
        return _with_transaction(state, replace(renewed_txn, last_epoch=NO_PRODUCER, previous_producer_id=NO_PRODUCER))
    txn = Transaction(
        transactional_id=event.transactional_id,
        producer_id=event.producer_id,
        epoch=event.epoch,
        timeout_ms=event.timeout_ms,
        last_epoch=event.last_epoch,
        previous_producer_id=event.previous_producer_id,
        updated_at=state.timestamp,
        versions=earlier_txn.versions if earlier_txn else Map(),
    )
    return _with_transaction(state, txn)


def _with_transaction(state: State, txn: Transaction, next_producer_id: int = 0) -> State:
    """Store the transaction, and the next producer id if one was granted."""
    ids = state.transactional_ids
    if ids.get(txn.producer_id) != txn.transactional_id:
        ids = ids.insert(txn.producer_id, txn.transactional_id)
    return replace(
        state,
        transactions=state.transactions.insert(txn.transactional_id, txn),
        transactional_ids=ids,
        next_producer_id=max(state.next_producer_id, next_producer_id),
    )


def _with_ongoing(state: State, txn: Transaction, **changes: Any) -> State:
    """Make the transaction ongoing; its timeout starts with its first partition or group (ADD-02)."""
    if txn.state is not TxnState.ONGOING:
        txn = replace(txn, state=TxnState.ONGOING, started_at=state.timestamp, first_entry=state.sequence)
    return _with_transaction(state, replace(txn, updated_at=state.timestamp, **changes))


@fold(PartitionsAdded)
def _partitions_added(state: State, event: PartitionsAdded) -> State:
    txn = state.transactions[event.transactional_id]
    topic_ids = txn.topic_ids
    for name, topic_id in event.topic_ids.items():
        topic_ids = topic_ids.insert(name, tuple(sorted({*topic_ids.get(name, ()), topic_id})))
    return _with_ongoing(state, txn, partitions=txn.partitions.union(event.partitions), topic_ids=topic_ids)


@fold(OffsetsAdded)
def _offsets_added(state: State, event: OffsetsAdded) -> State:
    txn = state.transactions[event.transactional_id]
    return _with_ongoing(state, txn, groups=txn.groups | {event.group})


@fold(TxnPrepared)
def _txn_prepared(state: State, event: TxnPrepared) -> State:
    if is_foreign(state, event.producer_id):
        return with_fence(state, event.producer_id, event.epoch, prepared=True)
    txn = replace(state.transactions[event.transactional_id], prepared_epoch=event.epoch, updated_at=state.timestamp)
    return _with_transaction(state, txn)


@fold(TxnDecided)
def _txn_decided(state: State, event: TxnDecided) -> State:
    """Note the outcome, and the identity that the next transaction will have."""
    txn = replace(
        state.transactions[event.transactional_id],
        state=PREPARING[event.outcome],
        next_producer_id=event.next_producer_id,
        next_epoch=event.next_epoch,
        session_epoch=NO_PRODUCER,
        updated_at=state.timestamp,
    )
    return _with_transaction(state, txn, event.next_producer_id + 1)


@fold(SessionContinued)
def _session_continued(state: State, event: SessionContinued) -> State:
    logs = {tp: _with_session_window(state.partitions[tp], event) for tp in event.partitions}
    state = replace(state, partitions=state.partitions.update(logs))
    if is_foreign(state, event.producer_id):
        return state
    txn = replace(state.transactions[event.transactional_id], session_epoch=event.session_epoch)
    return _with_transaction(state, txn)


def _with_session_window(partition: Partition, event: SessionContinued) -> Partition:
    """Keep the window of the producer, after what is left of earlier transactions of the session.

    Of an aborted transaction only the sequences are kept: no reader needs the places of its batches.
    """
    kept_batches = kept_window(partition, event.producer_id, event.session_epoch)
    batches_of_txn = window_of(partition, event.producer_id, event.epoch)
    if event.outcome is Outcome.ABORT:
        batches_of_txn = tuple(replace(batch, base_offset=NO_OFFSET, last_offset=NO_OFFSET) for batch in batches_of_txn)
    window = SessionWindow(event.session_epoch, (*kept_batches, *batches_of_txn)[-WINDOW:])
    return replace(partition, session_windows=partition.session_windows.insert(event.producer_id, window))


@fold(TxnCompleted)
def _txn_completed(state: State, event: TxnCompleted) -> State:
    """End the transaction; the producer takes the identity that the decision has noted."""
    txn = state.transactions[event.transactional_id]
    is_rotated = event.next_producer_id != txn.producer_id
    txn = replace(
        txn,
        producer_id=event.next_producer_id,
        epoch=event.next_epoch,
        last_epoch=event.epoch,
        previous_producer_id=txn.producer_id if is_rotated else NO_PRODUCER,
        next_producer_id=NO_PRODUCER,
        next_epoch=NO_PRODUCER,
        prepared_epoch=NO_PRODUCER,
        state=COMPLETING[event.outcome],
        partitions=frozenset(),
        groups=frozenset(),
        topic_ids=Map(),
        started_at=None,
        first_entry=0,
        updated_at=state.timestamp,
    )
    return _with_transaction(state, txn, event.next_producer_id + 1)


@fold(VersionRecorded)
def _version_recorded(state: State, event: VersionRecorded) -> State:
    txn = state.transactions[event.transactional_id]
    return _with_transaction(state, replace(txn, versions=txn.versions.insert(event.scope, event.version)))
