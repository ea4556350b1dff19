"""The transaction table of a coordinator: lookups, and the folding of transaction events."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from txnstore.core.fences import with_fence
from txnstore.core.model import NO_PRODUCER, Map, Outcome, ProducerIdentity
from txnstore.core.state import Fold, State, is_foreign, leads_group, leads_partition, replace
from txnstore.core.transactions.commands import EndTxn, Unfinished
from txnstore.core.transactions.events import (
    OffsetsAdded,
    PartitionsAdded,
    ProducerInitialized,
    TxnCompleted,
    TxnHeld,
    TxnPrepared,
    VersionRecorded,
)
from txnstore.core.transactions.model import COMPLETED, COMPLETING, DECIDED, PREPARING, Transaction, TxnState
from txnstore.errors import ConcurrentTransactionsError, InvalidPidMappingError, ProducerFencedError


def was_decided(txn: Transaction, command: EndTxn) -> bool:
    """Whether an earlier attempt of this end was decided, so that this one gets the same answer."""
    outcome = earlier_outcome(txn, command)
    return outcome is command.outcome or (outcome is Outcome.ABORT and knows_version(txn, command.versions))


def earlier_outcome(txn: Transaction, command: EndTxn) -> Outcome | None:
    """The outcome of an earlier attempt of this end; None if there was none.

    A commit records its versions. So if the last transaction of the producer was committed without them, it was another
    one: of a second process that has the same identity.
    """
    outcome = outcome_of(txn, command.producer)
    if outcome is Outcome.COMMIT and command.versions and not knows_version(txn, command.versions):
        return None
    return outcome


def knows_version(txn: Transaction, versions: Iterable[tuple[str, int]]) -> bool:
    """Whether one of the ``versions`` of a job, pairs of (scope, version), or a later one of its scope is committed."""
    return any(txn.versions.get(scope, -1) >= version for scope, version in versions)


def outcome_of(txn: Transaction, producer: ProducerIdentity) -> Outcome | None:
    """The outcome of the transaction of this producer id and epoch; None if it is not decided or not the last one."""
    identity = (producer.producer_id, producer.epoch)
    if txn.state in DECIDED and identity == (txn.producer_id, txn.epoch):
        return DECIDED[txn.state]
    return COMPLETED.get(txn.state) if is_last(txn, identity) else None


def unfinished_of(txn: Transaction) -> Unfinished | None:
    """The transaction, if it is decided and not completed; else None."""
    outcome = DECIDED.get(txn.state)
    if outcome is None:
        return None
    return Unfinished(
        txn.transactional_id,
        txn.producer_id,
        txn.epoch,
        outcome,
        tuple(sorted(txn.partitions)),
        tuple(sorted(txn.groups)),
        tuple((name, topic_id) for name in sorted(txn.topic_ids) for topic_id in txn.topic_ids[name]),
    )


def takes_others(state: State, decided: Unfinished) -> bool:
    """Whether other chains take part in the transaction."""
    return not (
        all(leads_partition(state, tp) for tp in decided.partitions)
        and all(leads_group(state, group) for group in decided.groups)
    )


def transaction_of(state: State, producer: ProducerIdentity) -> Transaction:
    """The transaction of a producer; the producer id is checked before the epoch (ADD-03, END-02).

    Raises:
        InvalidPidMappingError: The transactional id does not exist, or has another producer id.
        ConcurrentTransactionsError: The producer has the next identity, and the transaction is not completed.
    """
    txn = state.transactions.get(producer.transactional_id or "")
    if txn is None:
        msg = f"transactional id {producer.transactional_id!r} does not exist: it was never initialized, or has expired"
        raise InvalidPidMappingError(msg)
    if txn.state in DECIDED and (producer.producer_id, producer.epoch) == following(txn):
        raise still_ending(txn)
    if state.transactional_ids.get(producer.producer_id) != txn.transactional_id:
        msg = f"transactional id {txn.transactional_id!r} maps to producer id {txn.producer_id}, not "
        raise InvalidPidMappingError(msg + str(producer.producer_id))
    return txn


def next_identity(state: State, producer: ProducerIdentity) -> ProducerIdentity:
    """The identity of the producer after its transaction is completed."""
    txn = state.transactions[producer.transactional_id or ""]
    producer_id, epoch = following(txn) if txn.state in DECIDED else (txn.producer_id, txn.epoch)
    return ProducerIdentity(producer_id, epoch, txn.transactional_id)


def following(txn: Transaction) -> tuple[int, int]:
    """The (producer id, epoch) that follows a decided transaction; (-1, -1) if it is not decided."""
    return (txn.next_producer_id, txn.next_epoch) if txn.state in DECIDED else (NO_PRODUCER, NO_PRODUCER)


def is_last(txn: Transaction, identity: tuple[int, int]) -> bool:
    """Whether this (producer id, epoch) is the one before the current one, whose requests may be retried."""
    producer_id, epoch = identity
    before = txn.producer_id if txn.previous_producer_id == NO_PRODUCER else txn.previous_producer_id
    return epoch != NO_PRODUCER and (producer_id, epoch) == (before, txn.last_epoch)


def still_ending(txn: Transaction) -> ConcurrentTransactionsError:
    """The error while a decided transaction is not completed (Kafka: CONCURRENT_TRANSACTIONS)."""
    return ConcurrentTransactionsError(
        f"the previous transaction of {txn.transactional_id!r} is still being completed ({txn.state.name})"
    )


def fenced(txn: Transaction, producer: ProducerIdentity) -> ProducerFencedError:
    """The error of a request with an epoch that is not current."""
    msg = (
        f"{producer} is fenced: transactional id {txn.transactional_id!r} is at producer id {txn.producer_id}, "
        f"epoch {txn.epoch}"
    )
    return ProducerFencedError(msg)


def _producer_initialized(state: State, event: ProducerInitialized) -> State:
    state = replace(state, next_producer_id=max(state.next_producer_id, event.producer_id + 1))
    if event.transactional_id is None:
        return state
    before = state.transactions.get(event.transactional_id)
    if event.keeps and before is not None:
        renewed = replace(before, epoch=event.epoch, timeout_ms=event.timeout_ms, updated_at=state.timestamp)
        return _with_transaction(state, replace(renewed, last_epoch=NO_PRODUCER, previous_producer_id=NO_PRODUCER))
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


def _with_transaction(state: State, txn: Transaction, next_producer_id: int = 0) -> State:
    """The state with the transaction, and with producer ids granted up to ``next_producer_id``."""
    return replace(
        state,
        transactions=state.transactions.insert(txn.transactional_id, txn),
        transactional_ids=state.transactional_ids.insert(txn.producer_id, txn.transactional_id),
        next_producer_id=max(state.next_producer_id, next_producer_id),
    )


def _joined(state: State, txn: Transaction, **changes: Any) -> State:
    """The state in which the transaction is ongoing; its timeout starts with its first partition or group (ADD-02)."""
    started_at = txn.started_at if txn.state is TxnState.ONGOING else state.timestamp
    txn = replace(txn, state=TxnState.ONGOING, started_at=started_at, updated_at=state.timestamp, **changes)
    return _with_transaction(state, txn)


def _partitions_added(state: State, event: PartitionsAdded) -> State:
    txn = state.transactions[event.transactional_id]
    topic_ids = txn.topic_ids
    for name, topic_id in event.topic_ids.items():
        topic_ids = topic_ids.insert(name, tuple(sorted({*topic_ids.get(name, ()), topic_id})))
    return _joined(state, txn, partitions=txn.partitions.union(event.partitions), topic_ids=topic_ids)


def _offsets_added(state: State, event: OffsetsAdded) -> State:
    txn = state.transactions[event.transactional_id]
    return _joined(state, txn, groups=txn.groups | {event.group})


def _txn_held(state: State, event: TxnHeld) -> State:
    if is_foreign(state, event.producer_id):
        return with_fence(state, event.producer_id, event.epoch, held=True)
    txn = replace(state.transactions[event.transactional_id], held=event.epoch, updated_at=state.timestamp)
    return _with_transaction(state, txn)


def _txn_prepared(state: State, event: TxnPrepared) -> State:
    txn = replace(
        state.transactions[event.transactional_id],
        state=PREPARING[event.outcome],
        next_producer_id=event.next_producer_id,
        next_epoch=event.next_epoch,
        updated_at=state.timestamp,
    )
    return _with_transaction(state, txn, event.next_producer_id + 1)


def _txn_completed(state: State, event: TxnCompleted) -> State:
    txn = state.transactions[event.transactional_id]
    rotated = event.next_producer_id != txn.producer_id
    txn = replace(
        txn,
        producer_id=event.next_producer_id,
        epoch=event.next_epoch,
        last_epoch=event.epoch,
        previous_producer_id=txn.producer_id if rotated else NO_PRODUCER,
        next_producer_id=NO_PRODUCER,
        next_epoch=NO_PRODUCER,
        held=NO_PRODUCER,
        state=COMPLETING[event.outcome],
        partitions=frozenset(),
        groups=frozenset(),
        topic_ids=Map(),
        started_at=None,
        updated_at=state.timestamp,
    )
    return _with_transaction(state, txn, event.next_producer_id + 1)


def _version_recorded(state: State, event: VersionRecorded) -> State:
    txn = state.transactions[event.transactional_id]
    return _with_transaction(state, replace(txn, versions=txn.versions.insert(event.scope, event.version)))


TRANSACTION_FOLDS: dict[type, Fold] = {
    ProducerInitialized: _producer_initialized,
    PartitionsAdded: _partitions_added,
    OffsetsAdded: _offsets_added,
    TxnHeld: _txn_held,
    TxnPrepared: _txn_prepared,
    VersionRecorded: _version_recorded,
    TxnCompleted: _txn_completed,
}
