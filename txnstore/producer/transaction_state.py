"""The states of a producer: one table of states and events, as Kafka's ``TransactionState`` and h11's ``_state.py``."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum, auto


class ManagerState(Enum):
    """The states of a producer (API-01), under the names of Kafka's ``TransactionState``."""

    READY = auto()
    IN_TRANSACTION = auto()
    PREPARING_TRANSACTION = auto()  # The outcome of the prepare is unknown.
    PREPARED_TRANSACTION = auto()  # All records are registered; an external coordinator decides (KIP-939).
    COMMITTING_TRANSACTION = auto()  # Also while the outcome of the commit is unknown (API-08).
    ABORTING_TRANSACTION = auto()
    ABORTABLE_ERROR = auto()
    FATAL_ERROR = auto()
    CLOSED = auto()


class ManagerEvent(Enum):
    """Calls of the application, and results that the sender reports."""

    BEGIN = auto()
    SEND = auto()
    SEND_OFFSETS = auto()
    FLUSH = auto()
    PREPARE = auto()
    PREPARE_UNKNOWN = auto()  # The transaction may be prepared.
    TAKE_OVER = auto()  # This instance continues a transaction that an earlier one has prepared.
    COMMIT = auto()
    ABORT = auto()
    CLOSE = auto()
    ENDED = auto()  # The commit or abort succeeded.
    RESUME = auto()  # The commit did not happen, and may be repeated.
    RESUME_PREPARED = auto()  # The same for a prepared transaction.
    ABORTABLE = auto()  # An error after which the open transaction, if any, must be aborted.
    FATAL = auto()  # An error after which the producer can only be closed.


_S, _E = ManagerState, ManagerEvent
_FAILURES = {_E.ABORTABLE: _S.ABORTABLE_ERROR, _E.FATAL: _S.FATAL_ERROR, _E.CLOSE: _S.CLOSED}
_NO_TRANSACTION = {_E.FLUSH: _S.READY, _E.ABORTABLE: _S.READY, _E.FATAL: _S.FATAL_ERROR, _E.CLOSE: _S.CLOSED}
_NEVER_AGAIN = {
    _S.FATAL_ERROR: {_E.ABORTABLE: _S.FATAL_ERROR, _E.FATAL: _S.FATAL_ERROR, _E.CLOSE: _S.CLOSED},
    _S.CLOSED: {_E.ABORTABLE: _S.CLOSED, _E.FATAL: _S.CLOSED, _E.CLOSE: _S.CLOSED},
}

#: Transactional or not -> state -> event -> next state. An event that is missing in a state is refused.
TABLE: Mapping[bool, Mapping[ManagerState, Mapping[ManagerEvent, ManagerState]]] = {
    False: {_S.READY: {**_NO_TRANSACTION, _E.SEND: _S.READY}, **_NEVER_AGAIN},
    True: {
        _S.READY: {**_NO_TRANSACTION, _E.BEGIN: _S.IN_TRANSACTION, _E.TAKE_OVER: _S.PREPARED_TRANSACTION},
        _S.IN_TRANSACTION: {
            _E.SEND: _S.IN_TRANSACTION,
            _E.SEND_OFFSETS: _S.IN_TRANSACTION,
            _E.FLUSH: _S.IN_TRANSACTION,
            _E.PREPARE: _S.PREPARED_TRANSACTION,
            _E.PREPARE_UNKNOWN: _S.PREPARING_TRANSACTION,
            _E.COMMIT: _S.COMMITTING_TRANSACTION,
            _E.ABORT: _S.ABORTING_TRANSACTION,
            **_FAILURES,
        },
        _S.PREPARING_TRANSACTION: {  # Only the same call, or an abort, which ends the transaction in either case.
            _E.FLUSH: _S.PREPARING_TRANSACTION,
            _E.PREPARE: _S.PREPARED_TRANSACTION,
            _E.PREPARE_UNKNOWN: _S.PREPARING_TRANSACTION,
            _E.ABORT: _S.ABORTING_TRANSACTION,
            **_FAILURES,
        },
        _S.PREPARED_TRANSACTION: {
            _E.FLUSH: _S.PREPARED_TRANSACTION,
            _E.COMMIT: _S.COMMITTING_TRANSACTION,
            _E.ABORT: _S.ABORTING_TRANSACTION,
            **_FAILURES,
        },
        _S.COMMITTING_TRANSACTION: {
            _E.COMMIT: _S.COMMITTING_TRANSACTION,
            _E.ENDED: _S.READY,
            _E.RESUME: _S.IN_TRANSACTION,
            _E.RESUME_PREPARED: _S.PREPARED_TRANSACTION,
            **_FAILURES,
        },
        _S.ABORTING_TRANSACTION: {_E.ABORT: _S.ABORTING_TRANSACTION, _E.ENDED: _S.READY, **_FAILURES},
        _S.ABORTABLE_ERROR: {_E.ABORT: _S.ABORTING_TRANSACTION, **_FAILURES},
        **_NEVER_AGAIN,
    },
}

#: The states in which a close aborts the transaction: neither the caller nor an external coordinator waits for it.
ABORTED_BY_CLOSE = (ManagerState.IN_TRANSACTION, ManagerState.PREPARING_TRANSACTION, ManagerState.ABORTABLE_ERROR)
