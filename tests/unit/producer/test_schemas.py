"""Typed topics and tables in the producer: rows that do not fit, schemas and partitions that change during a batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from tests.helpers.connections import connection_of
from tests.helpers.producing import TYPED, Bench, read
from tests.helpers.shell import T0, another_process, sound, values
from txnstore.core.model import TopicPartition
from txnstore.core.partitioner import partition_for_key
from txnstore.errors import (
    InvalidRecordError,
    RecordTooLargeError,
    SchemaMismatchError,
    UnknownTopicOrPartitionError,
)
from txnstore.producer import Producer


@pytest.mark.parametrize(
    ("row", "says"),
    [
        ({"id": "x"}, "'id'"),
        ({"id": 1.5}, "'id'"),
        ({"id": 2**64}, "'id'"),
        ({"colour": 1}, "'colour'"),
        ({"name": 5}, "'name'"),
    ],
    ids=str,
)
def test_mismatched_row_fails_alone_and_error_names_column(bench: Bench, row: dict[str, Any], says: str) -> None:
    bench.store.create_topic("typed", schema=TYPED)
    with bench.store.producer(linger=None) as producer:
        good = producer.send("typed", {"id": 1})
        with pytest.raises(SchemaMismatchError, match=says):
            producer.send("typed", row)
        with pytest.raises(SchemaMismatchError, match=says):
            producer.send_table("typed", [row])
        assert good.result().offset == 0


def test_a_typed_topic_takes_rows_and_no_records(bench: Bench) -> None:
    bench.store.create_topic("typed", schema=TYPED)
    producer = bench.store.producer(linger=None)
    row = {"id": 1}
    with pytest.raises(SchemaMismatchError, match="send a mapping of its columns, not bytes"):
        producer.send("typed", b"x")
    for options in ({"key": b"k"}, {"headers": {"a": b"b"}}, {"timestamp": 5}):
        with pytest.raises(SchemaMismatchError, match="its key and timestamp are columns, and it has no headers"):
            producer.send("typed", row, **options)


def test_a_schema_that_evolves_during_a_batch_ends_the_batch(bench: Bench) -> None:
    """Each batch has one schema; a reader finds all rows in the newest one."""
    bench.store.create_topic("typed", schema=TYPED)
    wider = pa.schema([*TYPED, ("colour", pa.string())])
    with bench.store.producer(linger=None) as producer:
        first = producer.send("typed", {"id": 1})
        bench.store.alter_topic("typed", schema=wider)
        second = producer.send("typed", {"id": 2, "colour": "red"})
        third = producer.send_table("typed", [{"id": 3}])
        assert [future.result().offset for future in (first, second)] == [0, 1]
        assert third.result()[0].offset == 2
    assert [(row["id"], row["colour"]) for row in read(bench, "typed")] == [(1, None), (2, "red"), (3, None)]
    assert len(sound(bench.store).partitions[TopicPartition("typed", 0)].batches) == 2


def test_a_schema_that_evolves_between_two_batches_of_a_reader_does_not_tear_the_table(bench: Bench) -> None:
    bench.store.create_topic("typed", schema=TYPED)
    wider = pa.schema([*TYPED, ("colour", pa.string())])

    def batches() -> Any:
        yield from pa.Table.from_pylist([{"id": 1}], schema=TYPED).to_batches()
        bench.store.alter_topic("typed", schema=wider)
        yield from pa.Table.from_pylist([{"id": 2}], schema=TYPED).to_batches()

    with bench.store.producer(linger=None) as producer:
        sent = producer.send_table("typed", pa.RecordBatchReader.from_batches(TYPED, batches()))
        assert [metadata.offset for metadata in sent.result()] == [0, 1]
    assert [row["id"] for row in read(bench, "typed")] == [1, 2]


def test_later_sends_of_transaction_use_new_partitions(bench: Bench) -> None:
    with bench.store.producer("id") as producer, producer.transaction() as txn:
        before = [txn.send("t", b"x", key=b"%d" % number) for number in range(30)]
        bench.store.alter_topic("t", partitions=6)
        after = [txn.send("t", b"x", key=b"%d" % number) for number in range(30)]
        txn.flush()
        assert [future.result().partition for future in before] == [
            partition_for_key(b"%d" % number, 3) for number in range(30)
        ]
        assert [future.result().partition for future in after] == [
            partition_for_key(b"%d" % number, 6) for number in range(30)
        ]
    assert len(values(bench.store)) == 60


def test_refused_batch_of_table_makes_transaction_abortable(bench: Bench) -> None:
    """A part of it is on its way already, so the whole must not be committed."""
    bench.store.create_topic("small", config={"max.message.bytes": 100})
    schema = pa.schema([("value", pa.binary())])
    batches = [pa.record_batch([pa.array([value])], schema=schema) for value in (b"good", b"x" * 200)]
    producer = bench.store.producer("id")
    producer.begin_transaction()
    with pytest.raises(RecordTooLargeError):
        producer.send_table("small", pa.RecordBatchReader.from_batches(schema, batches))
    assert repr(producer).endswith("ABORTABLE_ERROR>")
    producer.abort_transaction()
    assert values(bench.store, "small") == []


def test_empty_table_is_settled_immediately(bench: Bench, producer: Producer) -> None:
    future = producer.send_table("t", RECORDS.slice(0, 0))
    assert future.done()
    assert future.result() == []
    assert connection_of(bench.store).view().partitions[T0].high_watermark == 0


RECORDS = pa.table({"key": pa.array([b"k"]), "value": pa.array([b"v"])})


@pytest.mark.parametrize("data", [None, 5, "text", b"bytes", pytest.param(object(), id="object")], ids=repr)
def test_unsupported_table_data_is_refused(producer: Producer, data: object) -> None:
    with pytest.raises(SchemaMismatchError, match="cannot read rows from"):
        producer.send_table("t", data)


@pytest.mark.parametrize("as_table", [False, True])
def test_producer_finds_a_column_that_another_process_added(bench: Bench, *, as_table: bool) -> None:
    """It reads the head of the catalog once before it refuses a row; the transaction continues."""
    bench.store.create_topic("typed", schema=TYPED)
    with bench.store.producer("p") as producer, producer.transaction() as txn:
        txn.send("typed", {"id": 1})
        wider = TYPED.append(pa.field("gate", pa.string()))
        another_process(bench.store, bench.inner).alter_topic("typed", schema=wider)
        row = {"id": 2, "gate": "A1"}
        if as_table:
            txn.send_table("typed", [row])
        else:
            txn.send("typed", row)
    assert sorted(bench.store.scan("typed").to_table()["gate"].to_pylist(), key=str) == ["A1", None]


def test_a_row_that_never_fits_reads_the_catalog_once(bench: Bench) -> None:
    bench.store.create_topic("typed", schema=TYPED)
    with bench.store.producer(linger=None) as producer:
        producer.send("typed", {"id": 1}).result()
        connection_of(bench.store).counts.reset()
        with pytest.raises(SchemaMismatchError, match="gate"):
            producer.send("typed", {"id": 2, "gate": "A1"})
        assert bench.kinds() == ["get"]


def test_rows_of_two_topics_that_never_fit_read_the_catalog_once_for_each(bench: Bench) -> None:
    """Within a second, by the clock of the store: an application that sends one such row sends many."""
    for name in ("typed", "other"):
        bench.store.create_topic(name, schema=TYPED)
    with bench.store.producer(linger=None) as producer:
        for name in ("typed", "other"):
            producer.send(name, {"id": 1}).result()
        connection_of(bench.store).counts.reset()
        for name in ("typed", "other") * 3:
            with pytest.raises(SchemaMismatchError, match="gate"):
                producer.send(name, {"id": 2, "gate": "A1"})
        assert bench.kinds() == ["get", "get"]


def test_a_row_that_does_not_fit_a_deleted_topic_is_refused_for_the_deletion(bench: Bench) -> None:
    bench.store.create_topic("typed", schema=TYPED)
    with bench.store.producer(linger=None) as producer:
        producer.send("typed", {"id": 1}).result()
        another_process(bench.store, bench.inner).delete_topic("typed")
        with pytest.raises(UnknownTopicOrPartitionError, match="'typed'"):
            producer.send("typed", {"id": 2, "gate": "A1"})


def test_headers_of_an_iterator_are_sent_with_a_record_that_the_newest_version_accepts(bench: Bench) -> None:
    """The record is checked twice, and an iterator gives its headers once."""
    bench.store.create_topic("small", config={"max.message.bytes": 100})
    with bench.store.producer(linger=None) as producer:
        producer.send("small", b"x").result()
        another_process(bench.store, bench.inner).alter_topic("small", config={"max.message.bytes": 1000})
        headers: Any = iter([("name", b"content")])
        producer.send("small", b"x" * 200, headers=headers).result()
    assert [len(row["headers"] or ()) for row in read(bench, "small")] == [0, 1]


_FLOAT, _DOUBLE = (pa.schema([("id", pa.int64()), ("x", kind)]) for kind in (pa.float32(), pa.float64()))
_DELETE, _COMPACT = {"cleanup.policy": "delete"}, {"cleanup.policy": "compact"}
#: How a topic is created, how another process alters it, and a row that only its new version accepts.
_ALTERED: dict[str, tuple[dict[str, Any], dict[str, Any], dict[str, Any]]] = {
    "type": ({"schema": _FLOAT}, {"schema": _DOUBLE}, {"id": 2, "x": 1e300}),
    "size": (
        {"schema": TYPED, "config": {"max.message.bytes": 100}}, {"config": {"max.message.bytes": 1000}},
        {"id": 2, "name": "x" * 200},
    ),
    "policy": ({"schema": TYPED, "key": "name", "config": _COMPACT}, {"config": _DELETE}, {"id": 2}),
    "size-of-records": (
        {"config": {"max.message.bytes": 100}}, {"config": {"max.message.bytes": 1000}},
        {"key": b"k", "value": b"x" * 200},
    ),
    "policy-of-records": ({"config": _COMPACT}, {"config": _DELETE}, {"key": None, "value": b"x"}),
}  # fmt: skip


@pytest.mark.parametrize("how", ["row", "rows", "table", "stream"])
@pytest.mark.parametrize("change", _ALTERED)
def test_producer_finds_the_version_that_accepts_a_row(bench: Bench, change: str, how: str) -> None:
    """Whatever of a version refuses a row, schema or settings, a producer asks for the newest one before it refuses."""
    created, altered, row = _ALTERED[change]
    bench.store.create_topic("altered", **created)
    with bench.store.producer(linger=None) as producer:

        def send(row: dict[str, Any], how: str) -> None:
            if how == "row":
                (producer.send("altered", row) if "id" in row else producer.send("altered", **row)).result()
            elif how == "rows":
                producer.send_table("altered", [row]).result()
            else:
                table = pa.Table.from_pylist([row])
                producer.send_table("altered", table if how == "table" else table.to_reader()).result()

        good: dict[str, Any] = {"id": 1, "name": "a"} if created.get("schema") is TYPED else {"id": 1, "x": 0.5}
        good = good if "schema" in created else {"key": b"k", "value": b"x"}
        send(good, how)
        connection_of(bench.store).counts.reset()
        send(good, how)
        assert bench.kinds() == ["put_if_absent"], "what is accepted costs no look at the catalog"
        another_process(bench.store, bench.inner).alter_topic("altered", **altered)
        send(row, how)
    assert len(read(bench, "altered")) == 3


def test_a_later_batch_of_a_stream_finds_the_version_that_accepts_it(bench: Bench) -> None:
    """The batches before it are on their way: the stream continues with the new version."""
    bench.store.create_topic("altered", config={"max.message.bytes": 100})
    schema = pa.schema([("value", pa.binary())])

    def batches() -> Any:
        yield pa.record_batch([pa.array([b"x"])], schema=schema)
        other = another_process(bench.store, bench.inner)
        other.alter_topic("altered", config={"max.message.bytes": 1000})
        yield pa.record_batch([pa.array([b"x" * 200])], schema=schema)

    with bench.store.producer() as producer:
        sent = producer.send_table("altered", pa.RecordBatchReader.from_batches(schema, batches()))
        assert [metadata.offset for metadata in sent.result()] == [0, 1]


@pytest.mark.parametrize("as_table", [False, True])
def test_a_null_key_that_stays_refused_reads_the_catalog_once(bench: Bench, *, as_table: bool) -> None:
    bench.store.create_topic("keyed", config=_COMPACT)
    with bench.store.producer(linger=None) as producer:
        producer.send("keyed", b"x", key=b"k").result()
        connection_of(bench.store).counts.reset()
        for _ in range(3):
            with pytest.raises(InvalidRecordError, match="must not be null"):
                producer.send_table("keyed", [{"value": b"x"}]) if as_table else producer.send("keyed", b"x")
        assert bench.kinds() == ["get"]


class OneShot:
    """A stream of another library: each import continues where the last one ended."""

    def __init__(self, schema: pa.Schema, batches: list[pa.RecordBatch]) -> None:
        self._schema, self._batches = schema, iter(batches)

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return pa.RecordBatchReader.from_batches(self._schema, self._batches).__arrow_c_stream__(requested_schema)


@pytest.mark.parametrize("kind", [OneShot, pa.RecordBatchReader.from_batches], ids=["one-shot", "reader"])
@pytest.mark.parametrize("added", [True, False], ids=["column-added", "column-widened"])
def test_stream_for_a_schema_of_another_process_loses_no_batch(
    bench: Bench, kind: Callable[[pa.Schema, list[pa.RecordBatch]], object], *, added: bool
) -> None:
    """The known schema refuses its columns, or the values of its first batch; a stream is read only once."""
    bench.store.create_topic("grows", schema=pa.schema([("id", pa.int32())]))
    wider = pa.schema([("id", pa.int64()), *([("more", pa.int64())] if added else [])])
    with bench.store.producer() as producer:
        producer.send_table("grows", pa.table({"id": [0]})).result()
        another_process(bench.store, bench.inner).alter_topic("grows", schema=wider)
        batches = [pa.record_batch([[number << 40]] * len(wider), schema=wider) for number in (1, 2, 3)]
        producer.send_table("grows", kind(wider, batches)).result()
    ids = bench.store.scan("grows").to_table()["id"].to_pylist()
    assert sorted(ids) == [0, 1 << 40, 2 << 40, 3 << 40]


@pytest.mark.parametrize("typed", [True, False], ids=["typed-before", "records-before"])
def test_producer_finds_the_other_kind_of_topic_that_another_process_created(bench: Bench, *, typed: bool) -> None:
    """A topic is deleted and created again, with a schema or without, while a process still knows the one before."""
    schemas = (TYPED, None) if typed else (None, TYPED)
    bench.store.create_topic("again", schema=schemas[0])
    with bench.store.producer(linger=None) as producer:
        producer.send("again", {"id": 1} if typed else b"x").result()
        other = another_process(bench.store, bench.inner)
        other.delete_topic("again")
        other.create_topic("again", schema=schemas[1])
        future = producer.send("again", b"x", key=b"k") if typed else producer.send("again", {"id": 1})
        assert future.result().offset == 0
