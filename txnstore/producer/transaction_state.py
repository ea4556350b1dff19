"""The states of a producer: one table of states and events, as Kafka's ``TransactionState`` and h11's ``_state.py``."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum, auto


class State(Enum):
    """The states of a producer (API-01), under the names of Kafka's ``TransactionState``."""

    READY = auto()
    IN_TRANSACTION = auto()
    PREPARED_TRANSACTION = auto()  # Everything is written, and an outside coordinator decides (KIP-939).
    COMMITTING_TRANSACTION = auto()  # Also while the outcome of the commit is unknown (API-08).
    ABORTING_TRANSACTION = auto()
    ABORTABLE_ERROR = auto()
    FATAL_ERROR = auto()
    CLOSED = auto()


class Event(Enum):
    """What happens to a producer: calls of the application, and what the sender reports."""

    BEGIN = auto()
    SEND = auto()
    SEND_OFFSETS = auto()
    FLUSH = auto()
    PREPARE = auto()
    TAKE_OVER = auto()  # A predecessor has prepared a transaction, and this producer goes on with it.
    COMMIT = auto()
    ABORT = auto()
    CLOSE = auto()
    ENDED = auto()  # The commit or abort is in the chain.
    RESUME = auto()  # The commit certainly did not happen, and may be repeated.
    RESUME_PREPARED = auto()  # The same, of a prepared transaction.
    ABORTABLE = auto()  # An error that ends the transaction, if there is one.
    FATAL = auto()


_S, _E = State, Event
_FAILURES = {_E.ABORTABLE: _S.ABORTABLE_ERROR, _E.FATAL: _S.FATAL_ERROR, _E.CLOSE: _S.CLOSED}
_NO_TRANSACTION = {_E.FLUSH: _S.READY, _E.ABORTABLE: _S.READY, _E.FATAL: _S.FATAL_ERROR, _E.CLOSE: _S.CLOSED}
_NEVER_AGAIN = {
    _S.FATAL_ERROR: {_E.ABORTABLE: _S.FATAL_ERROR, _E.FATAL: _S.FATAL_ERROR, _E.CLOSE: _S.CLOSED},
    _S.CLOSED: {_E.ABORTABLE: _S.CLOSED, _E.FATAL: _S.CLOSED, _E.CLOSE: _S.CLOSED},
}

#: Kind of producer (transactional or not) -> state -> event -> next state. A pair that is missing is refused.
TABLE: Mapping[bool, Mapping[State, Mapping[Event, State]]] = {
    False: {_S.READY: {**_NO_TRANSACTION, _E.SEND: _S.READY}, **_NEVER_AGAIN},
    True: {
        _S.READY: {**_NO_TRANSACTION, _E.BEGIN: _S.IN_TRANSACTION, _E.TAKE_OVER: _S.PREPARED_TRANSACTION},
        _S.IN_TRANSACTION: {
            _E.SEND: _S.IN_TRANSACTION,
            _E.SEND_OFFSETS: _S.IN_TRANSACTION,
            _E.FLUSH: _S.IN_TRANSACTION,
            _E.PREPARE: _S.PREPARED_TRANSACTION,
            _E.COMMIT: _S.COMMITTING_TRANSACTION,
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
