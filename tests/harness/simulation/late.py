"""An actor whose registrations arrive late: after their transaction was aborted, prepared or fenced."""

from __future__ import annotations

from dataclasses import replace

from tests.harness.simulation.passing import PassingProducer
from tests.harness.simulation.transacting import TIMEOUT_S, Known
from tests.harness.simulation.world import SOURCE, Process, World
from tests.helpers.connections import connection_of
from tests.helpers.producers import has_prepared, registration
from txnstore.coordinator.copies import submit_copying_topics
from txnstore.core.log.commands import Append
from txnstore.core.model import TopicPartition
from txnstore.core.routes import Part, parts_of
from txnstore.core.routing import chain_of_producer
from txnstore.errors import InvalidTxnStateError, StorageError, TxnStoreError
from txnstore.producer import Producer
from txnstore.producer.futures import RecordFuture

#: The group whose offsets its transactions commit.
GROUP = "late"
#: The most registrations to submit again after each transaction.
_AT_ONCE = 4


class Straggler(PassingProducer):
    """Uploads batches, adds their partitions to its transaction, and submits the registrations itself, later.

    Meanwhile it aborts or prepares its transaction, or another instance fences it, and the topic is deleted and
    recreated. Some registrations name no topic ids, like those of other implementations: only a fence refuses them in a
    recreated topic.
    """

    def __init__(self, world: World, name: str) -> None:
        super().__init__(world, name)
        #: The registrations of the open transaction by chain, and those of ended ones, with their chain.
        self._open: dict[int, Append] = {}
        self._ended: list[tuple[int, Append]] = []

    def open(self, process: Process, transactional_id: str) -> Producer:
        """Some instances take over a prepared transaction; :meth:`initialize` aborts it."""
        return process.store.producer(transactional_id, TIMEOUT_S, keep_prepared=self.rng.random() < 0.5)

    def initialize(self, process: Process, transactional_id: str) -> Producer | None:
        producer = super().initialize(process, transactional_id)
        if producer is not None and has_prepared(producer):
            self._abort(process, producer, None)
        return producer

    def _transaction(self, process: Process, producer: Producer) -> Known:
        self._open = {}
        outcome = super()._transaction(process, producer)
        for chain, command in self._open.items():
            # Without topic ids, the markers of a commit may follow its data to a recreated topic: a duplicate.
            if outcome is Known.ABORTED or _names_topics(command):
                self._ended.append((chain, command))
        self.pause(self.rng.choice((100, 1_000, 20_000)))
        for chain, command in self.rng.sample(self._ended, min(_AT_ONCE, len(self._ended))):
            self._submit_late(process, chain, command)
        return outcome

    def _send(
        self,
        process: Process,
        producer: Producer,
        plan: list[tuple[str, int, int]],
        futures: list[RecordFuture],
    ) -> None:
        if self.rng.random() < 0.2:
            super()._send(process, producer, plan, futures)
            return
        for topic, number, value in plan:
            futures.append(producer.send(topic, b"%d" % value, partition=number))
        if self.rng.random() < 0.5:
            producer.send_offsets({TopicPartition(SOURCE, 0): self.rng.randrange(5)}, GROUP)
        named = self.rng.random() < 0.5
        self._open = self._registrations(process, producer, named=named)
        self.pause(self.rng.choice((10, 1_000, 130_000)))
        if self.rng.random() < 0.3:
            producer.prepare_transaction()
            for chain, command in self._open.items():
                if self._submit_late(process, chain, command):
                    self.world.anomalies.append(f"accepted-after-prepare: {process.name} in chain {chain}")
        if not named or self.rng.random() < 0.5:
            self.change_of_mind()

    def _registrations(self, process: Process, producer: Producer, *, named: bool) -> dict[int, Append]:
        """Upload all batches and add their partitions and groups; the commands that register them, by chain."""
        command = registration(producer)
        batches = tuple(batch if named else replace(batch, topic_id=None) for batch in command.batches)
        connection, identity = connection_of(process.store), command.producer
        parts = parts_of(replace(command, batches=batches), len(connection.chains))
        home = chain_of_producer(identity.producer_id)
        others = {chain: part for chain, part in parts.items() if chain != home}
        added, _ = connection.coordinator._add_and_append(identity, home, Part(), others)
        return {
            chain: Append(identity, part.batches, part.offsets, added=added if chain != home else None)
            for chain, part in parts.items()
        }

    def _submit_late(self, process: Process, chain: int, command: Append) -> bool:
        """Submit a registration; a chain refuses that of an ended or prepared transaction. Whether it was accepted."""
        try:
            submit_copying_topics(connection_of(process.store).chains, chain, command)
        except StorageError:
            return False
        except TxnStoreError as error:
            self.check_expected(process, "late registration", error, (*self.refusals, InvalidTxnStateError))
            return False
        return True


def _names_topics(command: Append) -> bool:
    return all(batch.topic_id is not None for batch in command.batches)
