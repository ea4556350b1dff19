"""The states of a producer, and which call fits which (API-01, API-09)."""

from __future__ import annotations

import os
from enum import Enum, auto

from txnstore.core.model import Outcome
from txnstore.errors import InvalidTxnStateError, ProducerClosedError, TxnStoreError


class Phase(Enum):
    """The client's states (API-01). ENDING: a commit or abort is under way, or nobody could tell its outcome (API-08).

    PREPARED: everything is written, and an outside coordinator decides (KIP-939). ABORTABLE_ERROR and FATAL_ERROR:
    nothing waits any more, what had not been written has failed.
    """

    READY = auto()
    IN_TRANSACTION = auto()
    PREPARED = auto()
    ENDING = auto()
    ABORTABLE_ERROR = auto()
    FATAL_ERROR = auto()
    CLOSED = auto()


class Lifecycle:
    """The phase of one producer in the process that made it, and the refusals that follow from it.

    ``end_is_unknown``: an end was asked for, and nobody could tell its outcome: only the same call may follow.
    """

    def __init__(self, transactional_id: str | None) -> None:
        self.phase = Phase.READY
        self.error: BaseException | None = None
        self.transactional_id = transactional_id
        self._sends_in = Phase.READY if transactional_id is None else Phase.IN_TRANSACTION
        self._pid = os.getpid()

    @property
    def forked(self) -> bool:
        """Whether this is the child of the process that made it."""
        return self._pid != os.getpid()

    @property
    def takes_records(self) -> bool:
        """Whether a record may be sent now."""
        return self.phase is self._sends_in and not self.forked

    def fail(self, error: BaseException) -> bool:
        """An error ends the producer if it is fatal, and the transaction otherwise; whether what waits is lost."""
        self.error = error
        if isinstance(error, TxnStoreError) and error.fatal:
            self.phase = Phase.FATAL_ERROR
            return True
        if self.phase in (Phase.IN_TRANSACTION, Phase.PREPARED, Phase.ENDING):
            self.phase = Phase.ABORTABLE_ERROR
            return True
        return False

    def check_usable(self) -> None:
        """It is not closed, not failed for good, and not of another process."""
        if self.forked:
            msg = "this producer belongs to the process that this one was forked from"
            raise ProducerClosedError(msg)
        if self.phase is Phase.CLOSED:
            msg = "the producer is closed"
            raise ProducerClosedError(msg)
        if self.phase is Phase.FATAL_ERROR:
            assert self.error is not None
            raise self.error

    def check_begin(self) -> None:
        """A transaction may begin."""
        self.check_usable()
        if self.transactional_id is None:
            msg = "this producer has no transactional_id, so it cannot begin a transaction"
            raise InvalidTxnStateError(msg)
        if self.phase is not Phase.READY:
            msg = f"cannot begin a transaction: the producer is {self.phase.name}"
            raise InvalidTxnStateError(msg) from self.error

    def check_send(self, *, end_is_unknown: bool) -> None:
        """A record may be sent."""
        if self.transactional_id is not None:
            self.check_in_transaction("send", end_is_unknown=end_is_unknown)
        else:
            self.check_usable()

    def check_in_transaction(self, what: str, *, end_is_unknown: bool) -> None:
        """A transaction is open and takes more."""
        self.check_usable()
        if self.phase is Phase.ABORTABLE_ERROR:
            msg = f"cannot {what}: the transaction failed ({self.error}); abort it"
            raise InvalidTxnStateError(msg) from self.error
        if self.phase is Phase.ENDING:
            why = "its outcome is not known yet, repeat that call" if end_is_unknown else "wait for it to end"
            msg = f"cannot {what}: the transaction is being committed or aborted; {why}"
            raise InvalidTxnStateError(msg)
        if self.phase is Phase.PREPARED:
            msg = f"cannot {what}: the transaction is prepared; commit, abort or complete it"
            raise InvalidTxnStateError(msg)
        if self.phase is not Phase.IN_TRANSACTION:
            msg = f"cannot {what}: no transaction is open; call begin_transaction() first"
            raise InvalidTxnStateError(msg)

    def check_end(self, outcome: Outcome, unknown: Outcome | None) -> None:
        """The transaction may be ended this way. ``unknown``: the end that nobody could tell the outcome of."""
        self.check_usable()
        verb = "commit" if outcome is Outcome.COMMIT else "abort"
        if self.phase is Phase.ENDING:
            if unknown is outcome:
                return
            msg = f"cannot {verb}: the outcome of the other end is not known yet; repeat that call"
            raise InvalidTxnStateError(msg)
        if self.phase is Phase.ABORTABLE_ERROR and outcome is Outcome.COMMIT:
            msg = f"cannot commit: the transaction failed ({self.error}); abort it"
            raise InvalidTxnStateError(msg) from self.error
        if self.phase not in (Phase.IN_TRANSACTION, Phase.PREPARED, Phase.ABORTABLE_ERROR):
            msg = f"cannot {verb}: no transaction is open"
            raise InvalidTxnStateError(msg)
