"""Ends transactions as a correct client does, and records the outcome that the client knows."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum, auto

from tests.harness.simulation.actor import PATIENCE, Actor
from tests.harness.simulation.creates import Interrupted
from tests.harness.simulation.recorder import Txn
from tests.harness.simulation.world import Process
from txnstore.errors import (
    AuthorizationError,
    ConcurrentTransactionsError,
    IllegalGenerationError,
    InvalidProducerEpochError,
    InvalidTxnStateError,
    ProducerFencedError,
    StorageError,
    TransactionalIdAuthorizationError,
    TxnStoreError,
    UnknownMemberError,
    UnknownOutcomeError,
    UploadExpiredError,
)
from txnstore.producer import Producer

#: The errors that a transaction of a correct client may get.
REFUSALS = (
    ProducerFencedError,
    InvalidProducerEpochError,
    UploadExpiredError,
    ConcurrentTransactionsError,
    IllegalGenerationError,
    UnknownMemberError,
)
TIMEOUT_S = 60.0


class Known(Enum):
    """The outcome of a transaction as its client knows it after all retries."""

    COMMITTED = auto()
    ABORTED = auto()
    NOTHING = auto()


#: The outcome as the client knows it, and the error that prevented the commit.
Verdict = tuple[Known, object]


class TransactionalActor(Actor):
    """An actor with a transactional producer; ``usable`` is False after a fatal error of that."""

    usable = True
    refusals: tuple[type[TxnStoreError], ...] = REFUSALS

    def open(self, process: Process, transactional_id: str) -> Producer:
        """A new instance of the transactional id."""
        return process.store.producer(transactional_id, TIMEOUT_S)

    def initialize(self, process: Process, transactional_id: str) -> Producer | None:
        """A producer, after retries; None if the storage stays unavailable."""
        history = self.world.history
        for _ in range(PATIENCE):
            history.invoke(process.name, "init", {"transactional_id": transactional_id})
            try:
                producer = self.open(process, transactional_id)
            except (UnknownOutcomeError, Interrupted) as error:
                history.info(process.name, error)
            except (StorageError, ConcurrentTransactionsError, AuthorizationError) as error:
                if isinstance(error, AuthorizationError):
                    if not self.is_refusal(error):
                        raise
                    self.left -= 1  # Else it would never end when no administrator gives the right back.
                history.fail(process.name, error)
            else:
                granted = {"producer_id": producer.producer_id, "epoch": producer.epoch}
                history.ok(process.name, {"transactional_id": transactional_id, **granted})
                self.usable = True
                return producer
            self.pause(1_000)
        return None

    def transact(self, process: Process, producer: Producer, body: Callable[[], None]) -> Verdict:
        """Run ``body`` in a transaction; returns the known outcome, and the error that prevented the commit."""
        try:
            producer.begin_transaction()
            body()
        except (_Changed, Interrupted) as error:
            return self._abort(process, producer, error)
        except TxnStoreError as error:
            return self._refused(process, producer, "send", error)
        unknown = False
        self.world.history.committing(process.name)
        reason: BaseException | None = None
        for _ in range(PATIENCE):
            try:
                producer.commit_transaction()
            except (UnknownOutcomeError, Interrupted) as error:
                unknown, reason = True, error
            except StorageError as error:
                reason = error  # Nothing happened, so it may be repeated, or aborted.
                if not unknown and self.rng.random() < 0.5:
                    return self._abort(process, producer, error)
            except TxnStoreError as error:
                if not unknown:
                    return self._refused(process, producer, "commit", error)
                self.check_expected(process, "commit", error, self.refusals)
                self.usable = False
                return Known.NOTHING, error
            else:
                return Known.COMMITTED, None
            self.pause(2_000)
        if unknown:
            self.usable = False
            return Known.NOTHING, reason
        return self._abort(process, producer, reason)

    def identity(self, producer: Producer) -> Txn:
        """The identity of the next transaction."""
        return str(producer.transactional_id), producer.producer_id, producer.epoch

    def change_of_mind(self) -> None:
        """The body of a transaction decides to abort it."""
        raise _Changed

    def _refused(self, process: Process, producer: Producer, step: str, error: TxnStoreError) -> Verdict:
        failed = isinstance(error, InvalidTxnStateError) and isinstance(error.__cause__, StorageError)
        if not failed:  # An upload that failed has ended the transaction before.
            self.check_expected(process, step, error, self.refusals)
        if error.fatal:
            self.usable = False
            return Known.ABORTED, error
        return self._abort(process, producer, error)

    def _abort(self, process: Process, producer: Producer, why: object) -> Verdict:
        """Abort a transaction that can no longer commit, whether the abort is answered or not."""
        for _ in range(PATIENCE):
            try:
                producer.abort_transaction()
            except (StorageError, Interrupted):
                self.pause(2_000)
                continue
            except TxnStoreError as error:
                if isinstance(error, AuthorizationError) and not isinstance(error, TransactionalIdAuthorizationError):
                    self.unexpected(process, "abort", error)  # It needs no right to topics and groups.
                self.check_expected(process, "abort", error, self.refusals)
                self.usable = False
            return Known.ABORTED, why
        self.usable = False
        return Known.ABORTED, why


class _Changed(Exception):  # noqa: N818 - not an error
    """An abort by decision of the client."""
