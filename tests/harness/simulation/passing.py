"""Actors around a topic that is deleted and created again while transactions are open and a chain is away."""

from __future__ import annotations

from tests.harness.simulation.actor import Actor
from tests.harness.simulation.producers import PlainProducer, TransactionalProducer
from tests.harness.simulation.storage import Mishap
from tests.harness.simulation.transacting import REFUSALS
from tests.harness.simulation.world import PASSING, SOURCE, Away, Process
from tests.helpers.connections import connection_of
from txnstore.chain import keys
from txnstore.core.routing import CATALOG
from txnstore.errors import (
    OutOfOrderSequenceError,
    TopicExistsError,
    TxnStoreError,
    UnknownOutcomeError,
    UnknownTopicOrPartitionError,
)

#: What a topic that is created again may cost its producers: a sequence that began in the topic before it, as in Kafka.
_LOST_TOPIC = (UnknownTopicOrPartitionError, OutOfOrderSequenceError)


class Topics(Actor):
    """Deletes the topic and creates it again: sometimes at once, so that chains hear of both together or of neither."""

    def live(self, process: Process) -> None:
        while self.next_operation():
            what = self.rng.choice((self._delete, self._delete, self._create, self._create_again))
            what(process)
            self.breathe()

    def _create_again(self, process: Process) -> None:
        self._delete(process)
        self._create(process)

    def _delete(self, process: Process) -> None:
        history = self.world.history
        try:
            topic = (
                connection_of(process.store).view(refresh=[CATALOG]).topics.get(PASSING)
            )  # It has not seen the copies.
        except TxnStoreError as error:
            return self.check_expected(process, "state", error, ())
        if topic is None:
            return None
        history.invoke(process.name, "delete", {"topic_id": topic.topic_id})
        try:
            process.store.delete_topic(PASSING)
        except UnknownOutcomeError as error:
            history.info(process.name, error)
        except TxnStoreError as error:
            self.check_expected(process, "delete", error, (UnknownTopicOrPartitionError,))
            history.fail(process.name, error)
        else:
            history.ok(process.name)
        return None

    def _create(self, process: Process) -> None:
        try:
            self.world.create_topic(process.store, PASSING)
        except TxnStoreError as error:
            self.check_expected(process, "create", error, (TopicExistsError,))


class PassingProducer(TransactionalProducer):
    """Transactions with records in the topic that is deleted, whose instances fence each other."""

    refusals = (*REFUSALS, *_LOST_TOPIC)

    def _plan(self) -> list[tuple[str, int, int]]:
        partitions = self.world.settings.partitions
        return [
            (self.rng.choice((PASSING, PASSING, SOURCE)), self.rng.randrange(partitions), self.world.next_value())
            for _ in range(self.rng.randint(1, 4))
        ]


class Stray(PlainProducer):
    """An idempotent producer of the topic that is deleted."""

    topic = PASSING
    refusals = (*PlainProducer.refusals, *_LOST_TOPIC)


class Absence(Actor):
    """Takes a chain away from everybody for a while: it answers nothing, takes no writes, or is slow."""

    def live(self, process: Process) -> None:
        rng, world = self.rng, self.world
        every = frozenset({"get", "list", "stat", "put", "put_if_absent"})
        while self.next_operation():
            prefix = keys.entries(rng.randrange(world.settings.chains))
            operations = rng.choice((every, frozenset({"put_if_absent"}), frozenset({"put_if_absent"})))
            mishap = rng.choice((Mishap.ERROR, Mishap.BUSY, Mishap.SLOW))
            # Processes that cannot read a chain open the store again and again: a long absence would take all steps.
            until = world.scheduler.now + rng.choice(
                (1_000, 10_000) if operations is every else (1_000, 20_000, 100_000)
            )
            world.away = Away(prefix, until, operations, mishap)
            self.breathe()
