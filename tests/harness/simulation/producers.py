"""Actors that write: transactional and idempotent producers."""

from __future__ import annotations

from tests.harness.simulation.actor import PATIENCE, Actor
from tests.harness.simulation.creates import Interrupted
from tests.harness.simulation.runtime import TaskExecutor
from tests.harness.simulation.transacting import Known, TransactionalActor
from tests.harness.simulation.world import SIDE, SOURCE, Process
from txnstore.errors import (
    AuthorizationError,
    CorruptionError,
    ProducerFencedError,
    StorageError,
    TxnStoreError,
    UnknownOutcomeError,
    UnknownTopicOrPartitionError,
    UploadExpiredError,
)
from txnstore.producer import Producer
from txnstore.producer.futures import RecordFuture
from txnstore.testing.faults import SimulatedCrash


class TransactionalProducer(TransactionalActor):
    """Transactions over several partitions; some are aborted on purpose, flushed in between, or left open."""

    def live(self, process: Process) -> None:
        transactional_id = self.label.partition("/")[0]
        while self.left > 0:
            producer = self.initialize(process, transactional_id)
            if producer is None:
                return
            while self.usable and self.next_operation():
                self._transaction(process, producer)
                self.breathe()
            if self.rng.random() < 0.5:
                return  # A new process, which loads the whole state.
            process = self.renamed(process)

    def _transaction(self, process: Process, producer: Producer) -> Known:
        plan = self._plan()
        futures: list[RecordFuture] = []
        history = self.world.history
        sends = [("send", f"{topic}-{number}", value) for topic, number, value in plan]
        history.invoke(process.name, "txn", sends, self.identity(producer))
        outcome, why = self.transact(process, producer, lambda: self._send(process, producer, plan, futures))
        if outcome is Known.COMMITTED:
            landed = zip(plan, (future.result().offset for future in futures), strict=True)
            history.ok(
                process.name,
                [
                    ("send", f"{topic}-{number}", (offset if offset >= 0 else None, value))
                    for (topic, number, value), offset in landed
                ],
            )
        elif outcome is Known.ABORTED:
            history.fail(process.name, why)
        else:
            history.info(process.name, why)
        return outcome

    def _plan(self) -> list[tuple[str, int, int]]:
        partitions = self.world.settings.partitions
        return [
            (self.rng.choice((SOURCE, SOURCE, SIDE)), self.rng.randrange(partitions), self.world.next_value())
            for _ in range(self.rng.randint(1, 4))
        ]

    def _send(
        self,
        process: Process,
        producer: Producer,
        plan: list[tuple[str, int, int]],
        futures: list[RecordFuture],
    ) -> None:
        for topic, number, value in plan:
            futures.append(producer.send(topic, b"%d" % value, partition=number))
            if self.rng.random() < 0.3:
                self.insist(producer.flush)
            if self.rng.random() < 0.1:
                self.pause(self.rng.choice((100, 2_000, 130_000)))
        if self.rng.random() < 0.1:
            self.change_of_mind()


class PlainProducer(Actor):
    """An idempotent producer: each operation is a batch of one partition, which is stored whole or not at all."""

    topic = SOURCE
    refusals: tuple[type[TxnStoreError], ...] = (ProducerFencedError, UploadExpiredError)
    #: The errors of a repeated batch after which the first attempt may be in a topic that was deleted.
    refusals_of_deleted: tuple[type[TxnStoreError], ...] = ()

    def live(self, process: Process) -> None:
        try:
            producer = self.insist(lambda: process.store.producer(linger=None))
        except StorageError:
            return self.pause(1_000)
        while self.next_operation():
            if not self._send(process, producer):
                return None  # A batch of unknown outcome is abandoned with its producer.
            self.breathe()
        return None

    def _partition(self) -> int:
        return self.rng.randrange(self.world.settings.partitions)

    def _send(self, process: Process, producer: Producer) -> bool:
        number = self._partition()
        values = [self.world.next_value() for _ in range(self.rng.randint(1, 3))]
        key, history = f"{self.topic}-{number}", self.world.history
        history.invoke(process.name, "send", [("send", key, value) for value in values])
        try:
            futures = [producer.send(self.topic, b"%d" % value, partition=number) for value in values]
        except TxnStoreError as failure:
            self.check_expected(process, "send", failure, self.refusals)
            history.info(process.name, failure)
            return False  # Some of them may be buffered.
        error: BaseException | None = None
        unknown = False
        for _ in range(PATIENCE):
            try:
                producer.flush()
            except (StorageError, Interrupted) as failure:
                error = failure
                unknown = unknown or isinstance(failure, (UnknownOutcomeError, Interrupted))
            except TxnStoreError as failure:
                self.check_expected(process, "send", failure, self.refusals)
                error = failure
            if all(future.done() for future in futures):
                break
            self.pause(2_000)
        error = error if not futures[0].done() else futures[0].exception()
        if error is None:
            offsets = [future.result().offset for future in futures]
            history.ok(process.name, [("send", key, pair) for pair in zip(offsets, values, strict=True)])
            return True
        # The topic was deleted since, with its log. A principal without the right to it gets no error that says so.
        lost = unknown and isinstance(error, (UnknownTopicOrPartitionError, *self.refusals_of_deleted))
        if lost or isinstance(error, (UnknownOutcomeError, Interrupted)) or not futures[0].done():
            history.info(process.name, error)
            return False
        history.fail(process.name, error)
        return True


class Threads(Actor):
    """Two producers in two threads of one process: they share its store, and die with it."""

    def live(self, process: Process) -> None:
        label, _, instance = self.label.partition("/")
        together: tuple[Actor, ...] = (
            TransactionalProducer(self.world, f"producer:{label}/{instance}"),
            PlainProducer(self.world, f"plain:{label}/{instance}"),
        )
        workers = TaskExecutor(self.world.scheduler, self.rng, (100,))
        ends = [workers.submit(_live, actor, process) for actor in together]
        self.left = 0
        for end in ends:
            end.result()


def _live(actor: Actor, process: Process) -> None:
    try:
        actor.live(actor.renamed(process))
    except (SimulatedCrash, AuthorizationError, CorruptionError):
        actor.world.history.crashed(actor.client)
        raise
