"""Several chains: rows follow from the version of the topic that they were written with.

See docs/internals/design/engines.md.

A process that alters a topic may die before it copies the topic to the chain of a partition. Rows with the new column
may be there before the next look at the catalog.
"""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa
import pytest

from tests.helpers.chains import Cluster, process
from tests.helpers.compaction import runtime
from tests.helpers.connections import connection_of
from tests.helpers.interleaving import Interleaved
from tests.helpers.tables import EngineObjects, scanned, table_rows
from txnstore.catalog.topics import altered_topic
from txnstore.core.catalog.model import AlterTopic, CatalogTopic
from txnstore.core.decide import decide
from txnstore.core.log.commands import Append
from txnstore.core.model import ProducerIdentity, TopicPartition
from txnstore.core.routing import chain_of_partition
from txnstore.errors import StorageError, UnknownOutcomeError, UnknownTopicOrPartitionError
from txnstore.storage.memory import MemoryStore
from txnstore.store import Store, create_on, open_on
from txnstore.testing import ManualClock

ONE = pa.schema([("a", pa.int64())])
TWO = pa.schema([("a", pa.int64()), ("b", pa.string())])
#: A topic whose partition is in the other one of two chains.
NAME = next(name for name in "tuvw" if chain_of_partition(TopicPartition(name, 0), 2) == 1)


class Altered:
    """A topic that gets a column, which only the catalog's chain learns, and rows with it, between two looks."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.objects = EngineObjects(self.clock)
        self.store = create_on(self.objects, 2, runtime=runtime(self.clock))
        self.store.create_topic(NAME, schema=ONE, config={"table.format": "iceberg"})
        for number in range(2):
            self._send(self.store, {"a": number})
        self._armed = False
        between = Interleaved(self.objects, self._is_due, self._alter_and_write)
        self.reader = open_on(between, runtime=runtime(self.clock))
        self._armed = True

    def _is_due(self, kind: str, key: str) -> bool:
        """Whether the reader looks for an entry of chain 1: it may have read chain 0 already."""
        return self._armed and kind == "get" and "/0001/entries/" in key

    def _alter_and_write(self) -> None:
        store = self.another()
        connection = connection_of(store)
        topic = connection.view().topics[NAME]
        connection.chains[0].submit(AlterTopic(altered_topic(topic, schema=TWO), topic.version))
        writer = self.another()
        for number in range(2):
            self._send(writer, {"a": 10 + number, "b": f"new {number}"})

    def _send(self, store: Store, row: dict[str, object]) -> None:
        with store.producer() as producer:
            producer.send(NAME, row)

    def another(self) -> Store:
        return open_on(self.objects, runtime=runtime(self.clock))

    @property
    def rows(self) -> list[dict[str, object]]:
        found: list[dict[str, object]] = self.another().scan(NAME).to_table().select(["a", "b"]).to_pylist()
        return found


WRITTEN = [
    {"a": 0, "b": None},
    {"a": 1, "b": None},
    {"a": 10, "b": "new 0"},
    {"a": 11, "b": "new 1"},
]


def test_compaction_keeps_a_column_that_the_chain_of_its_partition_learns_from_the_rows() -> None:
    case = Altered()
    case.reader.compact()
    assert case.rows == WRITTEN


def test_table_gets_a_column_that_the_chain_of_its_partition_learns_from_the_rows() -> None:
    case = Altered()
    case.reader.tables.sync()
    store = case.another()
    store.tables.sync()
    assert table_rows(store, NAME) == scanned(store, NAME)
    assert case.rows == WRITTEN


def test_consumer_returns_a_column_that_the_chain_of_its_partition_learns_from_the_rows() -> None:
    case = Altered()
    with case.reader.consumer() as consumer:
        consumer.assign([TopicPartition(NAME, 0)])
        received = [record.value for _ in range(4) for record in consumer.poll(0)]
    assert received[2:] == WRITTEN[2:]


def test_chain_refuses_rows_of_a_version_that_it_does_not_know() -> None:
    """Its coordinator copies the topic then. Rows of an older version are taken, and of another topic refused."""
    cluster = Cluster()
    tp = cluster.led_by(1)[0]
    batch = replace(cluster.batch(tp, -1), topic_id="t-id", topic_version=1)
    with pytest.raises(UnknownTopicOrPartitionError, match="version 0 of topic 't' and does not know version 1"):
        decide(cluster.states[1], Append(ProducerIdentity(), (batch,)))
    old = replace(batch, topic_version=0)
    mixed = Append(ProducerIdentity(), (old, replace(batch, segment=cluster.batch(tp, -1).segment)))
    with pytest.raises(UnknownTopicOrPartitionError, match="version 1"):
        decide(cluster.states[1], mixed)
    cluster.do(1, Append(ProducerIdentity(), (old,)))


class _Unwritable(MemoryStore):
    """Refuses new entries of chain 1 while it is cut off."""

    cut = False

    def put_if_absent(self, key: str, data: bytes) -> bool:
        if self.cut and "/0001/entries/" in key:
            msg = "cut off"
            raise StorageError(msg)
        return super().put_if_absent(key, data)


def test_an_alteration_is_acknowledged_when_each_chain_of_the_topic_has_it() -> None:
    """Until then a chain may delete records by the earlier settings. The call may be repeated."""
    clock = ManualClock()
    objects = _Unwritable(clock=clock)
    store = process(objects, clock, chains=2)
    store.create_topic(NAME)
    objects.cut = True
    with pytest.raises(UnknownOutcomeError, match="altered, but not in every chain yet"):
        store.alter_topic(NAME, config={"retention.ms": "-1"})
    objects.cut = False

    def known() -> list[CatalogTopic]:
        return [state.topics[NAME] for state in connection_of(store).view().states]

    assert [topic.version for topic in known()] == [1, 0]
    store.alter_topic(NAME, config={"retention.ms": "-1"})
    assert [topic.version for topic in known()] == [1, 1]
