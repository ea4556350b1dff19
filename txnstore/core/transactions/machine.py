"""The state machine of a transaction: the table of its transitions, and the check of each one.

A rule calls :func:`check_transition` before it emits an event that changes the state of a transaction, so that no
writer stores a transition outside of the table. Folding checks nothing, as everywhere: entries of all releases stay
readable. The invariants read the same table for each event, in every test of the rules, in the simulation and in
``verify``.
"""

from __future__ import annotations

from txnstore.core.transactions.model import Transaction, TxnState
from txnstore.errors import InvalidTxnStateError

#: For each state the states from which it may be entered (STM-02; Kafka: ``TransactionState.VALID_PREVIOUS_STATES``).
VALID_PREVIOUS_STATES: dict[TxnState, frozenset[TxnState]] = {
    TxnState.EMPTY: frozenset({TxnState.EMPTY, TxnState.COMPLETE_COMMIT, TxnState.COMPLETE_ABORT}),
    TxnState.ONGOING: frozenset(
        {TxnState.ONGOING, TxnState.EMPTY, TxnState.COMPLETE_COMMIT, TxnState.COMPLETE_ABORT},
    ),
    TxnState.PREPARE_COMMIT: frozenset({TxnState.ONGOING}),
    TxnState.PREPARE_ABORT: frozenset(
        {
            TxnState.ONGOING,
            TxnState.PREPARE_EPOCH_FENCE,
            TxnState.EMPTY,
            TxnState.COMPLETE_COMMIT,
            TxnState.COMPLETE_ABORT,
        },
    ),
    TxnState.COMPLETE_COMMIT: frozenset({TxnState.PREPARE_COMMIT}),
    TxnState.COMPLETE_ABORT: frozenset({TxnState.PREPARE_ABORT}),
    # The record is removed in the same step: these are also the states in which a transactional id may expire.
    TxnState.DEAD: frozenset({TxnState.EMPTY, TxnState.COMPLETE_COMMIT, TxnState.COMPLETE_ABORT}),
    TxnState.PREPARE_EPOCH_FENCE: frozenset({TxnState.ONGOING}),
}

#: The states that only Kafka enters: fencing a producer and aborting its transaction are one entry here.
KAFKA_ONLY = frozenset({TxnState.PREPARE_EPOCH_FENCE})
#: The states that no stored transaction has (STM-03): a removed record has none.
NEVER_STORED = KAFKA_ONLY | {TxnState.DEAD}


def may_enter(txn: Transaction, state: TxnState) -> bool:
    """Whether the table has the transition of this transaction to ``state``."""
    return txn.state in VALID_PREVIOUS_STATES[state]


def check_transition(txn: Transaction, state: TxnState) -> None:
    """Check the transition of a transaction to ``state``, before the event that makes it is emitted.

    Raises:
        InvalidTxnStateError: The table has no such transition.
    """
    if not may_enter(txn, state):
        msg = f"transaction {txn.transactional_id!r} is {txn.state.name}: it cannot become {state.name}"
        raise InvalidTxnStateError(msg)
