"""Tables that are sent: a producer keeps a copy of memory that the application may change; times have a range."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from tests.helpers.connections import connection_of
from txnstore.core.catalog.model import CatalogTopic, CreateTopic
from txnstore.core.model import TopicPartition
from txnstore.errors import CorruptionError, SchemaMismatchError, UnsupportedFormatError
from txnstore.producer import records
from txnstore.segment.convert import copy_rows
from txnstore.segment.schema import schema_to_text
from txnstore.store import Store, create

FAR_DAY = pa.array([10_000_000], pa.int32()).cast(pa.date32())
FAR_TIME = pa.array([10**15], pa.int64()).cast(pa.timestamp("ms", "UTC"))


@pytest.fixture
def store(memory_store_url: str) -> Iterator[Store]:
    with create(memory_store_url) as made:
        yield made


class _Stream:
    """A library that shows its memory through Arrow's C interface."""

    def __init__(self, table: pa.Table) -> None:
        self._table = table

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self._table.__arrow_c_stream__(requested_schema)


@pytest.mark.parametrize("kind", ["pandas", "numpy", "batch", "reader", "stream", "bytes"])
@pytest.mark.parametrize("partitions", [1, 3])
def test_memory_that_changes_after_a_send_is_not_what_is_stored(store: Store, kind: str, partitions: int) -> None:
    store.create_topic("t", partitions, schema=pa.schema([("x", pa.float64())]))
    memory = np.arange(100, dtype=np.float64)
    data: Any = pa.table({"x": memory})
    if kind == "pandas":
        data = pd.DataFrame({"x": memory}, copy=False)
    elif kind == "batch":
        data = data.to_batches()[0]
    elif kind == "reader":
        data = data.to_reader()
    elif kind == "stream":
        data = _Stream(data)
    elif kind == "bytes":
        raw = bytearray(memory.tobytes())
        memory = np.frombuffer(raw, np.float64)
        data = pa.table({"x": pa.Array.from_buffers(pa.float64(), 100, [None, pa.py_buffer(raw)])})
    with store.producer(linger=None) as producer:
        producer.send_table("t", data)
        memory[:] = -1
        producer.flush()
    assert store.scan("t").to_table()["x"].to_pylist() == list(range(100))


def addresses(table: pa.Table) -> set[int]:
    """The addresses of all memory of a table."""
    chunks = (chunk for column in table.columns for chunk in column.chunks)
    return {buffer.address for chunk in chunks for buffer in chunk.buffers() if buffer is not None and buffer.size}


def test_a_small_table_is_added_at_once(store: Store) -> None:
    store.create_topic("t", schema=pa.schema([("x", pa.int64())]))
    with store.producer() as producer:
        assert len(producer.send_table("t", pa.table({"x": range(100)}))._parts) == 1


def test_copy_of_a_slice_holds_the_slice_alone() -> None:
    rows = 10_000
    table = pa.table(
        {
            "n": pa.array(range(rows)),
            "s": pa.array([None if n % 7 == 0 else "x" * (n % 20) for n in range(rows)]),
            "l": pa.array([[{"a": n, "b": [str(n)]}] * (n % 3) for n in range(rows)]),
            "m": pa.array([[(str(n), n)] for n in range(rows)], pa.map_(pa.string(), pa.int64())),
        }
    )
    part = pa.concat_tables([table.slice(17, 30), table.slice(5000, 20)])
    copy = copy_rows(part)
    assert copy.equals(part)
    assert copy.schema == part.schema
    assert copy.get_total_buffer_size() < 20_000
    assert not addresses(part) & addresses(copy)
    assert copy_rows(table.schema.empty_table()).num_rows == 0


def inside(kind: str, values: pa.Array) -> pa.Array:
    """A nested array of one row with the values."""
    one = pa.array([0, len(values)], pa.int32())
    if kind == "plain":
        return values
    if kind == "list":
        return pa.ListArray.from_arrays(one, values)
    if kind == "struct":
        return pa.StructArray.from_arrays([values], ["f"])
    if kind == "map":
        return pa.MapArray.from_arrays(one, pa.array(["k"] * len(values)), values)
    return inside("list", inside("struct", inside("map", values)))


@pytest.mark.parametrize("kind", ["plain", "list", "struct", "map", "all"])
@pytest.mark.parametrize("far", [FAR_DAY, FAR_TIME], ids=["date", "time"])
def test_times_outside_the_years_1_to_9999_are_refused_at_any_depth(store: Store, kind: str, far: pa.Array) -> None:
    column = inside(kind, far)
    store.create_topic("t", schema=pa.schema([("x", column.type)]))
    fine = inside(kind, pa.nulls(1, far.type))
    with store.producer() as producer:
        with pytest.raises(SchemaMismatchError, match=r"column 'x[a-z.]*' of topic 't' holds a time outside the years"):
            producer.send_table("t", pa.table({"x": column}))
        # A value outside of the rows is not sent.
        producer.send_table("t", pa.table({"x": pa.concat_arrays([column, fine]).slice(1)})).result()
    assert store.scan("t").to_table().num_rows == 1
    with store.consumer("t") as consumer:
        assert len(consumer.poll(0)) == 1


def test_keys_of_maps_outside_of_the_rows_are_not_sent(store: Store) -> None:
    keys = pa.concat_arrays([FAR_DAY, pa.array([0], pa.int32()).cast(pa.date32()), FAR_DAY])
    column = pa.MapArray.from_arrays(pa.array([0, 1, 2, 3], pa.int32()), keys, pa.array([1, 2, 3]))
    store.create_topic("t", schema=pa.schema([("x", column.type)]))
    with store.producer() as producer:
        producer.send_table("t", pa.table({"x": column}).slice(1, 1)).result()
    assert store.scan("t").to_table()["x"].to_pylist() == [[(dt.date(1970, 1, 1), 2)]]


def test_first_and_last_day_are_accepted(store: Store) -> None:
    store.create_topic("t", schema=pa.schema([("x", pa.list_(pa.date32()))]))
    with store.producer() as producer:
        producer.send("t", {"x": [dt.date.min, dt.date.max, None]})
    with store.consumer("t") as consumer:
        assert consumer.poll(0)[0].value == {"x": [dt.date.min, dt.date.max, None]}


def test_stored_value_that_python_cannot_show_is_named(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    store.create_topic("t", schema=pa.schema([("x", pa.date32())]))
    monkeypatch.setattr(records, "_LIMIT_DAY", 2**31)  # As an earlier version, which did not check dates.
    with store.producer() as producer:
        producer.send_table("t", pa.table({"x": FAR_DAY})).result()
        producer.send("t", {"x": dt.date(2026, 1, 1)})
    with store.consumer("t") as consumer:
        with pytest.raises(UnsupportedFormatError, match="records of t-0 from offset 0 to 0 hold a value"):
            consumer.poll(0)
        consumer.seek(TopicPartition("t", 0), 1)
        assert [record.offset for record in consumer.poll(0)] == [1]


def test_compaction_skips_a_topic_that_cannot_be_read(store: Store) -> None:
    deep: pa.DataType = pa.int64()
    for _ in range(200):
        deep = pa.list_(deep)
    connection = connection_of(store)
    connection.submit(CreateTopic(CatalogTopic("a-deep", "id", 1, schema=schema_to_text(pa.schema([("x", deep)])))))
    store.create_topic("t")
    with store.producer() as producer:
        for _ in range(3):
            producer.send("t", b"x").result()
    with pytest.raises(CorruptionError, match="topic 'a-deep' cannot be compacted"):
        store.compact()
    assert len(store.scan("t").plan()) == 1
