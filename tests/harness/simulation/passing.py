"""Actors of a topic that is deleted and recreated while transactions are open and a chain is unavailable.

Each life of the topic has another number of partitions.
"""

from __future__ import annotations

from random import Random

from tests.harness.simulation.actor import Actor
from tests.harness.simulation.producers import PlainProducer, TransactionalProducer
from tests.harness.simulation.storage import Mishap
from tests.harness.simulation.transacting import REFUSALS
from tests.harness.simulation.world import PASSING, SOURCE, Away, Process, World
from tests.helpers import keys
from tests.helpers.connections import connection_of
from txnstore.core.routing import CATALOG
from txnstore.errors import (
    AuthorizationError,
    OutOfOrderSequenceError,
    TopicExistsError,
    TxnStoreError,
    UnknownOutcomeError,
    UnknownTopicOrPartitionError,
)

#: The error of a sequence that began in the old topic, which a recreated topic may raise, as in Kafka.
_LOST_TOPIC = (UnknownTopicOrPartitionError, OutOfOrderSequenceError)


def partition(world: World, rng: Random) -> int:
    """A partition of the topic, which it may not have in its current life; the first ones are the most frequent."""
    return rng.randrange(rng.randint(1, world.most_partitions))


class Topics(Actor):
    """Deletes and recreates the topic: sometimes without a pause, so that chains get both copies together or none."""

    def live(self, process: Process) -> None:
        while self.next_operation():
            operation = self.rng.choice((self._delete, self._delete, self._create, self._create_again))
            operation(process)
            self.breathe()
            if self.rng.random() < 0.5:
                self.pause(60_000)  # So that transactions of other actors span several lives of the topic.

    def _create_again(self, process: Process) -> None:
        self._delete(process)
        self._create(process)

    def _delete(self, process: Process) -> None:
        history = self.world.history
        try:
            topic = (
                connection_of(process.store).view(refresh=[CATALOG]).topics.get(PASSING)
            )  # Its state lacks the copies.
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
    """Transactions with records in the deleted topic, whose instances fence each other."""

    refusals = (*REFUSALS, *_LOST_TOPIC)

    def _plan(self) -> list[tuple[str, int, int]]:
        return [(*self._place(), self.world.next_value()) for _ in range(self.rng.randint(1, 4))]

    def _place(self) -> tuple[str, int]:
        if self.rng.random() < 2 / 3:
            return PASSING, partition(self.world, self.rng)
        return SOURCE, self.rng.randrange(self.world.settings.partitions)


class Stray(PlainProducer):
    """An idempotent producer of the deleted topic."""

    topic = PASSING
    refusals = (*PlainProducer.refusals, *_LOST_TOPIC)
    refusals_of_deleted = (AuthorizationError,)

    def _partition(self) -> int:
        return partition(self.world, self.rng)


class Absence(Actor):
    """Makes a chain unavailable to all processes for a while: no answers, no writes, or slow ones."""

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
