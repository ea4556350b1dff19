"""Clients of transactions v1: one epoch for many transactions, retries, and late requests of earlier transactions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from tests.harness.simulation.actor import PATIENCE, Actor
from tests.harness.simulation.creates import Interrupted
from tests.harness.simulation.transacting import REFUSALS
from tests.harness.simulation.world import SIDE, SOURCE, Process, World
from tests.helpers.connections import connection_of
from tests.helpers.sessions import inlined
from txnstore.core.log.commands import Append, Appended
from txnstore.core.log.model import NewBatch
from txnstore.core.model import Outcome, ProducerIdentity, TopicPartition
from txnstore.core.transactions.commands import EndTxn, InitProducer
from txnstore.core.transactions.sessions import identity_in
from txnstore.errors import (
    AuthorizationError,
    ConcurrentTransactionsError,
    InvalidTxnStateError,
    OutOfOrderSequenceError,
    ProducerFencedError,
    StorageError,
    TxnStoreError,
    UnknownOutcomeError,
)

#: The errors that a request gets which comes too late.
_LATE = (*REFUSALS, InvalidTxnStateError, OutOfOrderSequenceError)
#: The most late requests after each transaction.
_AT_ONCE = 3


class SessionProducer(Actor):
    """Transactions of one epoch, as a gateway submits them: each request is mapped when it arrives.

    After a failed send it bumps its epoch (KIP-360), as clients do, because its next sequence is not known. Two
    instances of an id fence each other.
    """

    def __init__(self, world: World, name: str) -> None:
        super().__init__(world, name)
        self._client = ProducerIdentity()
        self._sequences: dict[TopicPartition, int] = {}
        #: Acknowledged batches of ended transactions, with the identity that their client had.
        self._batches: list[tuple[ProducerIdentity, NewBatch]] = []
        #: Commands of ended transactions, mapped when these were open.
        self._mapped: list[Append | EndTxn] = []

    def live(self, process: Process) -> None:
        transactional_id = self.label.partition("/")[0]
        while self.left > 0:
            if not self._initialize(process, InitProducer(transactional_id)):
                return
            usable = True
            while usable and self.next_operation():
                usable = self._transaction(process) or self._bump(process)
                self._late(process)
                self.breathe()
            if self.rng.random() < 0.5:
                return
            process = self.renamed(process)

    def _initialize(self, process: Process, command: InitProducer) -> bool:
        history, name = self.world.history, command.transactional_id
        for _ in range(PATIENCE):
            history.invoke(process.name, "init", {"transactional_id": name})
            try:
                self._client = connection_of(process.store).coordinator.submit(command)
            except (UnknownOutcomeError, Interrupted) as error:
                history.info(process.name, error)
            except (StorageError, ConcurrentTransactionsError, AuthorizationError) as error:
                if isinstance(error, AuthorizationError):
                    if not self.is_refusal(error):
                        raise
                    self.left -= 1
                history.fail(process.name, error)
            else:
                granted = {"producer_id": self._client.producer_id, "epoch": self._client.epoch}
                history.ok(process.name, {"transactional_id": name, **granted})
                self._sequences = {}
                return True
            self.pause(1_000)
        return False

    def _bump(self, process: Process) -> bool:
        """Ask for the next epoch, with the one that it has; False if that one is fenced."""
        client = self._client
        command = InitProducer(client.transactional_id, expected=(client.producer_id, client.epoch))
        try:
            return self._initialize(process, command)
        except TxnStoreError as error:
            self.check_expected(process, "bump", error, REFUSALS)
            self.world.history.fail(process.name, error)
            return False

    # A transaction ----------------------------------------------------------------------------------------------------

    def _transaction(self, process: Process) -> bool:
        """Whether the client continues with its epoch: what it has sent is committed, or aborted on purpose."""
        plan = [
            (TopicPartition(self.rng.choice((SOURCE, SOURCE, SIDE)), self._partition()), self.world.next_value())
            for _ in range(self.rng.randint(1, 4))
        ]
        history = self.world.history
        try:
            txn = self._patiently(lambda: identity_in(connection_of(process.store).view(), self._client))
        except (TxnStoreError, Interrupted) as error:
            if isinstance(error, TxnStoreError):
                self.check_expected(process, "map", error, REFUSALS)
            return False
        sends = [("send", str(tp), value) for tp, value in plan]
        history.invoke(process.name, "txn", sends, (str(txn.transactional_id), txn.producer_id, txn.epoch))
        sent: list[NewBatch] = []
        try:
            offsets = [self._send(process, tp, value, sent) for tp, value in plan]
        except (TxnStoreError, Interrupted) as error:
            if isinstance(error, TxnStoreError):
                # Another client has begun to abort the transaction; it has not fenced this one yet.
                ended = (InvalidTxnStateError,) if "(PREPARE_ABORT)" in str(error) else ()
                self.check_expected(process, "send", error, (*REFUSALS, *ended))
            self._end(process, Outcome.ABORT)
            history.fail(process.name, error)
            return False
        outcome = Outcome.ABORT if self.rng.random() < 0.15 else Outcome.COMMIT
        if outcome is Outcome.COMMIT:
            history.committing(process.name)
        known, why = self._end(process, outcome)
        if not known and outcome is Outcome.COMMIT:
            history.info(process.name, why)
        elif known and why is None and outcome is Outcome.COMMIT:
            history.ok(process.name, [(*send[:2], (at, send[2])) for send, at in zip(sends, offsets, strict=True)])
        else:
            history.fail(process.name, why)
        self._batches += [(self._client, batch) for batch in sent]
        self._mapped += [Append(txn, (batch,), added_only=True) for batch in sent]
        self._mapped += [EndTxn(txn, each, session=True) for each in Outcome]
        return known and why is None

    def _send(self, process: Process, tp: TopicPartition, value: int, sent: list[NewBatch]) -> int:
        """Add the partition and produce a record, perhaps several times; the offset of the record."""
        self._request(process, Append(self._client, partitions=(tp,)))
        sequence = self._sequences.get(tp, 0)
        batch = inlined(tp, sequence, str(value))
        produce = Append(self._client, (batch,), added_only=True)
        (first,) = self._request(process, produce)
        self._sequences[tp] = sequence + 1
        sent.append(batch)
        if self.rng.random() < 0.3:
            self._check_repeated(process, self._request(process, produce), first)
        if self.rng.random() < 0.1:
            self.pause(self.rng.choice((100, 2_000, 130_000)))
        offset: int = first.base_offset
        return offset

    def _end(self, process: Process, outcome: Outcome) -> tuple[bool, BaseException | None]:
        """Whether the outcome is known, and why it is not this one."""
        unknown = False
        error: BaseException | None = None
        for _ in range(PATIENCE):
            try:
                self._arrive(process, EndTxn(self._client, outcome, session=True))
            except (StorageError, Interrupted, ConcurrentTransactionsError) as failure:
                unknown = unknown or isinstance(failure, (UnknownOutcomeError, Interrupted))
                error = failure
            except TxnStoreError as failure:
                # Without a partition there is nothing to abort.
                nothing = (InvalidTxnStateError,) if outcome is Outcome.ABORT else ()
                self.check_expected(process, outcome.lower(), failure, (*REFUSALS, *nothing))
                return not unknown, failure
            else:
                return True, None
            self.pause(2_000)
        return not unknown and outcome is Outcome.ABORT, error

    def _partition(self) -> int:
        return self.rng.randrange(self.world.settings.partitions)

    # Requests ---------------------------------------------------------------------------------------------------------

    def _request(self, process: Process, command: Append) -> tuple[Appended, ...]:
        """Send a request again and again, as clients do."""
        answer: tuple[Appended, ...] = self._patiently(lambda: self._arrive(process, command))
        return answer

    def _patiently(self, call: Callable[[], Any]) -> Any:
        for _ in range(PATIENCE - 1):
            try:
                return call()
            except (StorageError, Interrupted, ConcurrentTransactionsError):
                self.pause(500)
        return call()

    def _arrive(self, process: Process, command: Append | EndTxn) -> Any:
        """Map a request and submit it; once more if the state of the process is behind."""
        connection = connection_of(process.store)
        for behind in (True, False):
            try:
                identity = identity_in(connection.view(refresh=not behind), command.producer)
                return connection.coordinator.submit(replace(command, producer=identity))
            except ProducerFencedError:
                if not behind:
                    raise
        raise AssertionError

    def _late(self, process: Process) -> None:
        """Requests of ended transactions: those that arrive now, and those that were mapped before the end."""
        for client, batch in self.rng.sample(self._batches, min(_AT_ONCE, len(self._batches))):
            command = Append(client, (batch,), added_only=True)
            self._submit_late(process, lambda command=command: self._arrive(process, command))  # type: ignore[misc]
        for mapped in self.rng.sample(self._mapped, min(_AT_ONCE, len(self._mapped))):
            submit = connection_of(process.store).coordinator.submit
            self._submit_late(process, lambda mapped=mapped, submit=submit: submit(mapped))  # type: ignore[misc]

    def _submit_late(self, process: Process, submit: Callable[[], Any]) -> None:
        try:
            answer = submit()
        except (StorageError, Interrupted):
            return
        except TxnStoreError as error:
            self.check_expected(process, "late request", error, _LATE)
            return
        if isinstance(answer, tuple):
            self._check_repeated(process, answer)

    def _check_repeated(self, process: Process, again: tuple[Appended, ...], first: Appended | None = None) -> None:
        (appended,) = again
        if not appended.duplicate or (first is not None and appended.base_offset != first.base_offset):
            self.world.anomalies.append(f"appended-again: {process.name} got {appended} after {first}")
