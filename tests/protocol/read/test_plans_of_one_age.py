"""Readers while other processes change a topic between any two of their requests.

A plan is made of the catalog and of the logs. A plan whose catalog is older than its rows would return rows without a
column, or fail at a wider type; so every reader plans from one closed cut, in which the catalog is at least as new as
the rows of each chain (docs/internals/design/engines.md).
"""

from __future__ import annotations

import io
from base64 import b64decode
from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeAlias, cast

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.helpers.compaction import runtime
from tests.helpers.connections import connection_of
from tests.helpers.interleaving import Interleaved, Nth
from tests.helpers.reading import read_slice
from tests.helpers.tables import EngineObjects, state_of
from txnstore.catalog.iceberg.location import location_of
from txnstore.catalog.topics import altered_topic
from txnstore.catalog.writing import topic_writer
from txnstore.core.catalog.model import AlterTopic
from txnstore.core.log.commands import Append
from txnstore.core.model import ProducerIdentity, TopicPartition
from txnstore.core.routing import CATALOG, chain_of_partition
from txnstore.errors import CorruptionError, OffsetOutOfRangeError, UnknownTopicOrPartitionError
from txnstore.producer.upload import upload
from txnstore.read.rows import Columns
from txnstore.snapshot import Snapshot
from txnstore.spark.options import read_options, stream_options
from txnstore.spark.reads.planning import plan, view_to_read
from txnstore.spark.streams.stream import Stream
from txnstore.store import Store, create_on, open_on
from txnstore.testing import ManualClock

OLD = pa.schema([("a", pa.int32())])
NEW = pa.schema([("a", pa.int64()), ("b", pa.string())])
PARTITIONS = 3
#: Nothing is inlined, so that rows cost requests, too.
CONFIG = {"table.format": "iceberg", "inline.bytes": 0}
#: The first value of ``a`` that the old type does not hold.
WIDE = 1 << 40

Rows: TypeAlias = list[dict[str, Any]]


class Scene:
    """A store with a topic of an old schema, a reader, and what another process does to the topic."""

    def __init__(self, chains: int, at: int = 0, change: Callable[[Scene], None] = lambda _: None) -> None:
        self.clock = ManualClock()
        self.objects = EngineObjects(self.clock)
        self.store = create_on(self.objects, chains, runtime=runtime(self.clock))
        self.create(OLD)
        #: The value of ``b`` of each row that was written, by the value of ``a``.
        self.written: dict[int, str | None] = {}
        self.append(self.store, 0, None)
        self.before = set(self.written)
        #: Holds for the request before which the topic is changed.
        self.due = Nth(at)
        self.reached = Interleaved(self.objects, self.due, lambda: change(self))
        self.reader = open_on(self.reached, runtime=runtime(self.clock))

    def create(self, schema: pa.Schema) -> None:
        self.store.create_topic("t", partitions=PARTITIONS, schema=schema, config=CONFIG)

    def append(self, store: Store, first: int, b: str | None, partitions: int = PARTITIONS) -> None:
        """A row in each partition, each with a commit of its own."""
        with store.producer() as producer:
            for number in range(partitions):
                row: dict[str, Any] = {"a": first + number} | ({} if b is None else {"b": f"{b} {number}"})
                producer.send("t", row, partition=number)
                producer.flush()
                self.written[first + number] = row.get("b")

    def widen(self) -> None:
        self.store.alter_topic("t", schema=NEW)
        self.append(open_on(self.objects, runtime=runtime(self.clock)), WIDE, "precious")

    def widen_and_die(self) -> None:
        """The process that alters the topic dies before it copies the topic to the other chains."""
        connection = connection_of(open_on(self.objects, runtime=runtime(self.clock)))
        topic = connection.view().topics["t"]
        connection.chains[CATALOG].submit(AlterTopic(altered_topic(topic, schema=NEW), topic.version))
        self.append(open_on(self.objects, runtime=runtime(self.clock)), WIDE, "precious")

    def add_partitions(self) -> None:
        self.store.alter_topic("t", partitions=2 * PARTITIONS, schema=NEW)
        self.append(open_on(self.objects, runtime=runtime(self.clock)), WIDE, "precious", 2 * PARTITIONS)

    def recreate(self) -> None:
        self.store.delete_topic("t")
        self.create(NEW)
        self.append(open_on(self.objects, runtime=runtime(self.clock)), WIDE, "precious")


def _rows(table: Any) -> Rows:
    return cast("Rows", table.to_pylist())


def scan(scene: Scene) -> Rows:
    return _rows(scene.reader.scan("t").to_table())


def sql(scene: Scene) -> Rows:
    return _rows(scene.reader.sql("select * from t").to_arrow_table())


def session(scene: Scene) -> Rows:
    with scene.reader.duckdb() as database:
        return _rows(database.sql("select * from t").to_arrow_table())


def snapshot(scene: Scene) -> Rows:
    return _rows(scene.reader.scan("t", snapshot=scene.reader.snapshot()).to_table())


def table(scene: Scene) -> Rows:
    scene.reader.tables.sync()
    objects, state = scene.objects, state_of(scene.reader, "t")
    location, names = location_of(objects), {field["name"] for field in state.metadata.columns.fields}
    files = [pq.read_table(io.BytesIO(objects.get(location.key(path)))) for path in state.files.data]
    return [row for file in files for row in file.select([n for n in file.column_names if n in names]).to_pylist()]


def spark_batch(scene: Scene) -> Rows:
    connection, options = connection_of(scene.reader), read_options({"path": "p", "topic": "t"})
    connection.view()
    return _of_tasks(scene, plan(connection, view_to_read(connection, options), options))


def spark_stream(scene: Scene) -> Rows:
    stream = Stream(connection_of(scene.reader), stream_options({"path": "p", "topic": "t"}))
    position, rows = stream.initial_position(), Rows()
    for turn in range(6):
        scene.clock.advance(5_000)
        following = stream.position_after(position)
        rows += _of_tasks(scene, stream.plan(position, following))
        position = following
        scene.due.armed = turn < 2
    return rows


def _of_tasks(scene: Scene, groups: Any) -> Rows:
    """What the tasks read: each knows only its group."""
    objects = scene.reader._connection.objects
    parts = [(Columns(group.topic), part) for group in groups for part in group.slices]
    return [row for columns, part in parts for row in read_slice(objects, part, columns).to_pylist()]


def assigned(scene: Scene) -> Rows:
    with scene.reader.consumer() as consumer:
        consumer.assign([TopicPartition("t", number) for number in range(PARTITIONS)])
        return _polled(scene, consumer)


def subscribed(scene: Scene) -> Rows:
    with scene.reader.consumer(group="g") as consumer:
        consumer.subscribe(["t"])
        return _polled(scene, consumer)


def _polled(scene: Scene, consumer: Any) -> Rows:
    rows = Rows()
    for turn in range(8):
        rows += [record.value for record in consumer.poll(0)]
        scene.clock.advance(1_000)
        scene.due.armed = turn < 3
    return rows


READERS = [scan, sql, session, snapshot, table, spark_batch, spark_stream, assigned, subscribed]
#: Those that return one moment, and those that follow the topic.
FOLLOWING = {spark_stream, assigned, subscribed}
CHANGES = [Scene.widen, Scene.widen_and_die, Scene.add_partitions, Scene.recreate]


@pytest.mark.slow
@pytest.mark.parametrize("chains", [1, 3])
@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
@pytest.mark.parametrize("read", READERS, ids=lambda read: read.__name__)
def test_a_reader_that_is_overtaken_returns_whole_rows(
    read: Callable[[Scene], Rows], change: Callable[[Scene], None], chains: int
) -> None:
    at, struck = 0, True
    while struck:
        scene = Scene(chains, at, change)
        scene.due.armed = True
        try:
            rows = read(scene)
        except (UnknownTopicOrPartitionError, OffsetOutOfRangeError):
            rows = None  # The topic did not exist for a moment; a stream says that it lost what it has not read.
            assert change is Scene.recreate
        if rows is not None:
            check(scene, rows, whole=read in FOLLOWING and change is not Scene.recreate)
        at, struck = at + 1, scene.reached.struck
    assert at > chains


def check(scene: Scene, rows: Rows, *, whole: bool) -> None:
    """Compare rows with what was written: those of one moment, or all of them."""
    assert [row for row in rows if row.get("b") != scene.written[row["a"]]] == []
    values = [row["a"] for row in rows]
    assert len(set(values)) == len(values)
    if whole:
        first = {value for value in scene.written if value - WIDE < PARTITIONS}  # What `assign` names.
        assert first <= set(values) <= set(scene.written)


# Writers of an earlier release, whose chains do not follow from the catalog ------------------------------------------


def append_unordered(scene: Scene, schema: pa.Schema, row: dict[str, Any]) -> TopicPartition:
    """Change the schema, and append a row of it to another chain as earlier releases did; returns where."""
    connection = connection_of(open_on(scene.objects, runtime=runtime(scene.clock)))
    topic = connection.view().topics["t"]
    connection.chains[CATALOG].submit(AlterTopic(altered_topic(topic, schema=schema), topic.version))
    writer = topic_writer(connection.view().topics["t"])
    tp = next(tp for number in range(PARTITIONS) if chain_of_partition(tp := TopicPartition("t", number), 3) != CATALOG)
    batch = upload(
        connection.objects, connection.runtime, writer, tp, pa.Table.from_pylist([row], schema=writer.stored)
    )
    connection.submit(Append(ProducerIdentity(), (replace(batch, topic_version=None),)))
    return tp


@pytest.mark.parametrize(
    ("schema", "row"),
    [
        (pa.schema([("a", pa.int32()), ("b", pa.string())]), {"a": 7, "b": "precious"}),
        (pa.schema([("a", pa.int64())]), {"a": 7}),
    ],
    ids=["column", "type"],
)
def test_rows_that_no_entry_orders_after_their_schema_are_refused(schema: pa.Schema, row: dict[str, Any]) -> None:
    scene = Scene(3)
    with scene.reader.consumer() as consumer:
        tp = append_unordered(scene, schema, row)
        view = connection_of(scene.reader).view(refresh={chain_of_partition(tp, 3)})
        assert pa.ipc.read_schema(io.BytesIO(b64decode(view.topics["t"].schema or ""))) == OLD
        snapshot = Snapshot(view)
        with pytest.raises(CorruptionError, match="does not fit what is known of its topic"):
            scene.reader.scan("t", snapshot=snapshot).to_table()
        # A consumer reads the catalog again.
        consumer.assign([tp])
        assert [record.value for record in consumer.poll(0) + consumer.poll(0)][-1] == row
