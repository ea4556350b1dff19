"""A client of transactions v1 on the pure core, as the gateway drives it: one identity for many transactions."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa

from tests.helpers.connections import connection_of
from tests.helpers.core import T0, World, offsets
from txnstore.core.log.commands import Append, Appended
from txnstore.core.log.model import NewBatch, next_sequence
from txnstore.core.model import Outcome, ProducerIdentity, TopicPartition
from txnstore.core.transactions.commands import Ended, EndTxn, InitProducer
from txnstore.core.transactions.sessions import identity_in
from txnstore.errors import InvalidPidMappingError, ProducerFencedError
from txnstore.segment.codec import encode_stream
from txnstore.segment.schema import RECORD_SCHEMA
from txnstore.store import Store


@dataclass
class SessionClient:
    """A client that adds partitions itself, keeps its epoch, and numbers its records on over its transactions."""

    world: World
    client: ProducerIdentity
    sequences: dict[TopicPartition, int] = field(default_factory=dict)

    @property
    def identity(self) -> ProducerIdentity:
        """The identity of its transaction, for a request that arrives now."""
        return identity_in(self.world.state, self.client)

    def adding(self, *tps: TopicPartition, groups: tuple[str, ...] = ()) -> Append:
        """AddPartitionsToTxn, AddOffsetsToTxn."""
        return Append(self.identity, partitions=tps, groups=groups)

    def numbered(self, records: int = 1, tp: TopicPartition = T0, sequence: int | None = None) -> NewBatch:
        """A batch with the next sequence, or with this one."""
        return self.world.batch(records, tp, self.sequences.get(tp, 0) if sequence is None else sequence)

    def produce(self, batch: NewBatch) -> Append:
        """Produce."""
        return Append(self.identity, (batch,), added_only=True)

    def end(self, outcome: Outcome = Outcome.COMMIT) -> EndTxn:
        """EndTxn."""
        return EndTxn(self.identity, outcome, session=True)

    def send(self, records: int = 1, tp: TopicPartition = T0, sequence: int | None = None) -> Appended:
        """Add the partition, produce a batch, and continue behind it."""
        batch = self.numbered(records, tp, sequence)
        self.world.do(self.adding(tp))
        appended = self.again(batch)
        self.sequences[tp] = next_sequence(batch.base_sequence, records)
        return appended

    def again(self, batch: NewBatch) -> Appended:
        """Produce a batch, whatever its sequence."""
        (appended,) = self.world.do(self.produce(batch))
        assert isinstance(appended, Appended)
        return appended

    def send_offsets(self, positions: dict[TopicPartition, int], group: str = "g") -> None:
        """AddOffsetsToTxn and TxnOffsetCommit."""
        self.world.do(self.adding(groups=(group,)))
        self.world.do(Append(self.identity, offsets=(offsets(positions, group),), added_only=True))

    def finish(self, outcome: Outcome = Outcome.COMMIT) -> Ended:
        ended = self.world.do(self.end(outcome))
        assert isinstance(ended, Ended)
        return ended

    def transact(self, records: int = 1, tp: TopicPartition = T0, outcome: Outcome = Outcome.COMMIT) -> Appended:
        """A transaction of one batch."""
        appended = self.send(records, tp)
        self.finish(outcome)
        return appended


def session(world: World, transactional_id: str = "a", expected: tuple[int, int] | None = None) -> SessionClient:
    """A client that has just got its identity."""
    return SessionClient(world, world.do(InitProducer(transactional_id, expected=expected)))


class Gateway:
    """What gateways do for one client of transactions v1, each request in the next one of several processes.

    Args:
        stores: The processes.
        transactional_id: That of the client.
    """

    def __init__(self, stores: list[Store], transactional_id: str) -> None:
        self.stores = itertools.cycle(stores)
        self.client: ProducerIdentity = self.submit(InitProducer(transactional_id))
        self.sequences: dict[TopicPartition, int] = {}

    def submit(self, command: Any) -> Any:
        return connection_of(next(self.stores)).coordinator.submit(command)

    def arrive(self, command: Any) -> Any:
        """Submit the command of a request in the next process; looked up once more if that one was behind."""
        connection = connection_of(next(self.stores))
        for attempt in range(2):
            try:
                identity = identity_in(connection.view(refresh=bool(attempt)), self.client)
                return connection.coordinator.submit(replace(command, producer=identity))
            except (ProducerFencedError, InvalidPidMappingError):
                if attempt:
                    raise
        raise AssertionError

    def add(self, *tps: TopicPartition, groups: tuple[str, ...] = ()) -> None:
        self.arrive(Append(self.client, partitions=tps, groups=groups))

    def batch(self, tp: TopicPartition, *values: str) -> NewBatch:
        """The next batch of a partition, to be inlined."""
        first = self.sequences.get(tp, 0)
        self.sequences[tp] = next_sequence(first, len(values))
        return inlined(tp, first, *values)

    def produce(self, *batches: NewBatch) -> tuple[Appended, ...]:
        appended: tuple[Appended, ...] = self.arrive(Append(self.client, batches, added_only=True))
        return appended

    def end(self, outcome: Outcome = Outcome.COMMIT) -> None:
        self.arrive(EndTxn(self.client, outcome, session=True))


def inlined(tp: TopicPartition, sequence: int, *values: str) -> NewBatch:
    """A batch of these records, to be inlined."""
    data: dict[str, Any] = {name: [None] * len(values) for name in RECORD_SCHEMA.names}
    data |= {"value": [value.encode() for value in values], "timestamp": [1] * len(values)}
    encoded = encode_stream(pa.table(data, RECORD_SCHEMA))
    return NewBatch(tp.topic, tp.partition, encoded.segment(""), 1, 1, sequence, data=encoded.data)
