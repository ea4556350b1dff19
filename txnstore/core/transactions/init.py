"""The rule of init: fence earlier instances, end their transaction, grant a producer id and epoch."""

from __future__ import annotations

from txnstore.core.authorization.model import CLUSTER
from txnstore.core.authorization.rights import Right, write_id
from txnstore.core.declaration import command
from txnstore.core.model import NO_PRODUCER, Outcome, ProducerIdentity
from txnstore.core.state import Draft, State
from txnstore.core.transactions.commands import DecidedTransaction, InitProducer, KeptTransaction
from txnstore.core.transactions.events import ProducerInitialized
from txnstore.core.transactions.lookups import decided_of, fenced_error, is_previous_identity, next_id_and_epoch
from txnstore.core.transactions.machine import check_transition
from txnstore.core.transactions.model import COMPLETED, DECIDED, MAX_EPOCH, Transaction, TxnState
from txnstore.core.transactions.rules import decide_end
from txnstore.core.transactions.sessions import client_identity
from txnstore.errors import InvalidPidMappingError, InvalidTxnStateError, InvalidTxnTimeoutError


def inits_producer(command: InitProducer, _: State) -> list[Right]:
    """The right to be the producer; without an id, the right to write some topic suffices (KIP-679)."""
    if command.transactional_id is None:
        return [Right("IDEMPOTENT_WRITE", "CLUSTER", (CLUSTER,), or_else=("WRITE", "TOPIC", None))]
    rights = [write_id(command.transactional_id)]
    if command.two_phase:
        rights.append(Right("TWO_PHASE_COMMIT", "TRANSACTIONAL_ID", (command.transactional_id,)))
    return rights


@command(InitProducer, route=None, right=inits_producer)
def init_producer(draft: Draft, command: InitProducer) -> ProducerIdentity | DecidedTransaction | KeptTransaction:
    """Grant an identity; with a transactional id fence earlier instances and end their transaction (INIT-01…11).

    Raises:
        InvalidTxnTimeoutError: The timeout is out of range.
        InvalidPidMappingError: The caller asks to bump an identity of an unknown transactional id.
        ProducerFencedError: The identity to bump is not the current one (KIP-360).
        InvalidTxnStateError: A prepared transaction has no epoch left to be kept.
    """
    transactional_id = command.transactional_id
    if transactional_id is None:
        draft.emit(ProducerInitialized(producer_id=draft.state.next_producer_id, epoch=0))
        return ProducerIdentity(draft.state.next_producer_id - 1, 0)
    if not (command.two_phase or 0 < command.granted_timeout_ms <= command.max_timeout_ms):
        msg = (
            f"the transaction timeout of {transactional_id!r} must be 1 to {command.max_timeout_ms} ms, which is the "
            f"transaction.max.timeout.ms of the store, not {command.timeout_ms} (transaction_timeout is in seconds)"
        )
        raise InvalidTxnTimeoutError(msg)
    txn = draft.state.transactions.get(transactional_id)
    if txn is None:
        if command.expected is not None:
            msg = f"transactional id {transactional_id!r} does not exist: it was never initialized, or has expired"
            raise InvalidPidMappingError(msg)
        return _grant(draft, command, draft.state.next_producer_id, 0)
    if command.expected is not None:
        granted_identity = _repeated_identity(txn, command.expected)
        if granted_identity is not None:
            # If an end has bumped the caller's epoch, that bump is the answer, and its transaction is completed.
            return _grant(draft, command, txn.producer_id, txn.epoch) if txn.state in COMPLETED else granted_identity
    if command.keep_prepared and txn.state is TxnState.ONGOING and txn.is_prepared:
        return _keep_prepared(draft, command, txn)
    # The client's own abort leaves its session, so that the command is recognised when it is repeated.
    in_session = command.expected is not None and txn.in_session
    unfinished_txn = decided_of(txn)
    if txn.state is TxnState.ONGOING:
        unfinished_txn = decide_end(draft, txn, Outcome.ABORT, session=in_session)
    if unfinished_txn is not None:
        return unfinished_txn
    txn = draft.state.transactions[transactional_id]
    if command.expected is not None and not in_session and is_previous_identity(txn, command.expected):
        # The end has already bumped the caller's epoch.
        return _grant(draft, command, txn.producer_id, txn.epoch)
    if txn.epoch >= MAX_EPOCH:
        return _grant(draft, command, draft.state.next_producer_id, 0)
    return _grant(draft, command, txn.producer_id, txn.epoch + 1)


def _repeated_identity(txn: Transaction, expected_identity: tuple[int, int]) -> ProducerIdentity | None:
    """Return the identity that an earlier attempt of this init was granted; None if there was none (KIP-360).

    Raises:
        ProducerFencedError: The expected identity is neither the current one nor the one before it.
    """
    if expected_identity == client_identity(txn) or (
        not txn.in_session and expected_identity == next_id_and_epoch(txn)
    ):
        return None
    # A decided transaction that has left its session was ended by another process: its epoch was never the client's,
    # and the one before it, with which the session began, has ended.
    if not txn.in_session and txn.state not in DECIDED and is_previous_identity(txn, expected_identity):
        return ProducerIdentity(txn.producer_id, txn.epoch, txn.transactional_id)
    raise fenced_error(txn, ProducerIdentity(*expected_identity, txn.transactional_id))


def _grant(draft: Draft, command: InitProducer, producer_id: int, epoch: int) -> ProducerIdentity:
    """Grant an identity; a bump by its own producer records the old identity, for a retry (INIT-10)."""
    txn = draft.state.transactions.get(command.transactional_id or "")
    if txn is not None:
        check_transition(txn, TxnState.EMPTY)
    last_id, last_epoch = command.expected or (NO_PRODUCER, NO_PRODUCER)
    draft.emit(
        ProducerInitialized(
            producer_id=producer_id,
            epoch=epoch,
            transactional_id=command.transactional_id,
            timeout_ms=command.granted_timeout_ms,
            last_epoch=last_epoch,
            previous_producer_id=last_id if last_id != producer_id else NO_PRODUCER,
        ),
    )
    return ProducerIdentity(producer_id, epoch, command.transactional_id)


def _keep_prepared(draft: Draft, command: InitProducer, txn: Transaction) -> ProducerIdentity | KeptTransaction:
    """Grant the next epoch and keep the prepared transaction open (TPC-04); other chains must fence the old one."""
    if txn.epoch >= MAX_EPOCH:
        msg = f"the prepared transaction {txn.transactional_id!r} has no epoch left for another instance: abort it"
        raise InvalidTxnStateError(msg)
    draft.emit(
        ProducerInitialized(
            producer_id=txn.producer_id,
            epoch=txn.epoch + 1,
            transactional_id=txn.transactional_id,
            timeout_ms=command.granted_timeout_ms,
            keeps=True,
        ),
    )
    identity = ProducerIdentity(txn.producer_id, txn.epoch + 1, txn.transactional_id)
    if draft.state.chains == 1:
        return identity
    return KeptTransaction(identity, tuple(sorted(txn.partitions)), tuple(sorted(txn.groups)))
