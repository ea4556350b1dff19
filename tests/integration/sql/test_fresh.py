"""Inlined segments in SQL: a few virtual files, with the rows and types of a scan."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterable, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from tests.harness.executors import InlineExecutor
from tests.helpers.connections import connection_of
from tests.helpers.inlining import requests
from tests.helpers.sqlstore import abort, assert_equals_scan, fill, values
from txnstore.core.log.slices import Slice
from txnstore.core.model import TopicPartition
from txnstore.errors import CorruptionError
from txnstore.read.rows import RowPlan
from txnstore.read.sharing import SharedSegments
from txnstore.sql import combined_files, read_table
from txnstore.sql.views import shown_columns
from txnstore.storage.counting import CountingStore
from txnstore.storage.memory import MemoryStore
from txnstore.store import Store, create_on, open_on

TYPES = [
    pa.bool_(), pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.float32(), pa.float64(), pa.string(),
    pa.large_string(), pa.binary(), pa.large_binary(), pa.binary(4), pa.date32(), pa.decimal128(38, 9),
    pa.timestamp("ms"), pa.timestamp("us"), pa.timestamp("ms", "UTC"), pa.timestamp("us", "UTC"),
    pa.list_(pa.int16()), pa.struct([("a b", pa.string()), ("c", pa.list_(pa.int8()))]),
    pa.map_(pa.string(), pa.int64()),
]  # fmt: skip


@pytest.fixture(params=[1, 3], ids=["one chain", "three chains"])
def store(request: pytest.FixtureRequest) -> Iterator[Store]:
    with create_on(CountingStore(MemoryStore(), log=True), request.param) as made:
        yield made


@pytest.fixture
def objects() -> CountingStore:
    return CountingStore(MemoryStore(), log=True)


def value(data_type: pa.DataType) -> Any:
    """A value of the type that no default is equal to."""
    if pa.types.is_boolean(data_type):
        return True
    if pa.types.is_timestamp(data_type):
        return datetime(1969, 12, 31, 23, 59, 59, 999_000, UTC if data_type.tz else None)
    if pa.types.is_date(data_type):
        return datetime(1969, 12, 31, tzinfo=UTC).date()
    if pa.types.is_decimal(data_type):
        return Decimal("-12345678901234567890.123456789")
    if pa.types.is_integer(data_type):
        return -(2 ** (data_type.bit_width - 1))
    if pa.types.is_floating(data_type):
        return 0.5
    if pa.types.is_map(data_type):
        return [("k", 1), ("l", None)]
    if pa.types.is_list(data_type):
        return [1, None, 3]
    if pa.types.is_struct(data_type):
        return {"a b": "ü", "c": [1, None]}
    return b"\x00\xff\x01\xfe" if "binary" in str(data_type) else 'O\'Hare "ü"'


def segments_read(store: Store) -> list[str]:
    """The entries of which a range was read since the last call; the entries that follow are read whole."""
    counts = connection_of(store).counts
    keys = [key for kind, key in counts.log if kind == "get" and "/entries/" in key]
    counts.reset()
    return keys


def reopened(objects: CountingStore) -> Store:
    """The store in a new process, in which no payload of an entry is in memory."""
    opened = open_on(objects)
    opened.snapshot()
    connection = connection_of(opened)
    connection.objects.forget()
    connection.counts.reset()
    return opened


def in_another_process(objects: CountingStore) -> Store:
    return open_on(objects.inner)


@pytest.mark.parametrize("fmt", ["parquet", "arrow"])
def test_types_and_values_are_those_of_files(store: Store, fmt: str) -> None:
    schema = pa.schema([(f"c{number}", data_type) for number, data_type in enumerate(TYPES)])
    row = {field.name: value(field.type) for field in schema}
    table = pa.Table.from_pylist([row, dict.fromkeys(row)], schema=schema)
    for topic, size in (("files", 0), ("fresh", 32 << 10)):
        store.create_topic(topic, schema=schema, config={"segment.format": fmt, "inline.bytes": size})
        with store.producer() as producer:
            producer.send_table(topic, table).result()
    assert [part.batch.segment.inlined for topic in ("files", "fresh") for part in store.scan(topic).plan()] == [
        False,
        True,
    ]
    with store.duckdb() as con:
        shown = [con.sql(f"DESCRIBE {topic}").fetchall() for topic in ("files", "fresh")]
        assert shown[0] == shown[1]
        query = "SELECT * EXCLUDE (_topic, _timestamp) FROM {} ORDER BY _offset"
        files, inlined = (con.sql(query.format(topic)).to_arrow_table() for topic in ("files", "fresh"))
        assert files.schema == inlined.schema
        assert files.to_pylist() == inlined.to_pylist()
        assert assert_equals_scan(store, con, "fresh") == 2


def test_files_and_fresh_rows_are_one_topic_at_both_isolation_levels(store: Store) -> None:
    """Merged and aborted files, committed records in entries, and an open transaction before some of them."""
    store.create_topic("orders", partitions=3)
    fill(store, "orders", transactions=2, records=12)
    store.compact()
    abort(store, "orders")
    fill(store, "orders", transactions=3, records=12, first=2)
    with store.producer() as producer:
        producer.send("orders", b"alone", partition=2).result()
    with store.producer("open") as producer:
        producer.begin_transaction()
        producer.send("orders", b"open", partition=0)
        producer.flush()
        fill(store, "orders", transactions=1, records=12, first=5)
        with store.duckdb() as con, store.duckdb("read_uncommitted") as uncommitted:
            shown = assert_equals_scan(store, con, "orders")
            assert assert_equals_scan(store, uncommitted, "orders", "read_uncommitted") == 6 * 12 + 8 + 2 > shown
            assert {part.batch.segment.inlined for part in store.scan("orders").plan()} == {True, False}
            producer.abort_transaction()
            store.refresh(con)
            assert assert_equals_scan(store, con, "orders") == 6 * 12 + 1


@pytest.mark.parametrize("sandbox", [False, True])
def test_queries_of_either_kind_read_fresh_rows(store: Store, *, sandbox: bool) -> None:
    store.create_topic("orders", partitions=2)
    fill(store, "orders")
    earlier = store.snapshot()
    relation = store.sql("SELECT count(*) FROM orders", sandbox=sandbox)
    fill(store, "orders", first=3)
    assert relation.fetchall() == [(24,)]
    assert store.sql("SELECT count(*) FROM orders", sandbox=sandbox).fetchall() == [(48,)]
    assert store.sql("SELECT count(*) FROM orders", snapshot=earlier, sandbox=sandbox).fetchall() == [(24,)]
    assert relation.fetchall() == [(24,)]
    with store.duckdb(sandbox=sandbox) as con, con.cursor() as cursor:
        assert assert_equals_scan(store, cursor, "orders") == 48


def test_a_log_that_starts_inside_a_batch_is_read_from_there(store: Store) -> None:
    store.create_topic("orders")
    fill(store, "orders", transactions=2, records=8)
    written = store.sql("SELECT _offset, value FROM orders ORDER BY _offset").fetchall()
    first = store.scan("orders").plan()[1].start
    for start in (3, first, first + 5):
        store.delete_records({("orders", 0): start})  # type: ignore[dict-item]
        with store.duckdb() as con:
            assert assert_equals_scan(store, con, "orders") > 0
            expected = [(offset, value) for offset, value in written if offset >= start]
            assert con.sql("SELECT _offset, value FROM orders ORDER BY _offset").fetchall() == expected


@pytest.mark.parametrize("fmt", ["parquet", "arrow"])
def test_commits_of_older_schemas_are_read_as_the_schema_of_today(store: Store, fmt: str) -> None:
    """Their rows are in one file: each takes what it lacks, and its types, from the topic."""
    store.create_topic(
        "grown", schema=pa.schema([("a", pa.int32()), ("b", pa.float32())]), config={"segment.format": fmt}
    )
    rows: list[dict[str, Any]] = [{"a": 1, "b": 0.5}]
    for schema in (
        None,
        pa.schema([("c", pa.string()), ("b", pa.float64()), ("a", pa.int64())]),
        pa.schema([("c", pa.string()), ("b", pa.float64()), ("a", pa.int64()), ("d", pa.list_(pa.int8()))]),
    ):
        if schema is not None:
            store.alter_topic("grown", schema=schema)
            rows.append(dict.fromkeys(schema.names) | {"a": 2**40, "b": 0.1})
        with store.producer() as producer:
            for row in rows:
                producer.send_table("grown", [row]).result()
        with store.duckdb() as con:
            assert_equals_scan(store, con, "grown")
    assert store.sql("SELECT count(*), count(d), sum(a % 2) FROM grown").fetchall() == [(6, 0, 3)]


@pytest.mark.parametrize("config", [{}, {"message.timestamp.type": "LogAppendTime"}])
def test_each_row_has_the_time_of_its_own_commit(store: Store, config: dict[str, str]) -> None:
    schema = pa.schema([("n", pa.int32()), ("at", pa.timestamp("ms", "UTC"))])
    for topic, timestamp in (("plain", None), *([] if config else [("timed", "at")])):
        store.create_topic(topic, schema=schema, timestamp=timestamp, partitions=2, config=config)
        for number in range(4):
            with store.producer() as producer:
                rows = [{"n": number, "at": None}, {"n": number, "at": datetime(2020, 1, 1 + number, tzinfo=UTC)}]
                producer.send_table(topic, rows).result()
        with store.duckdb() as con:
            assert assert_equals_scan(store, con, topic) == 8


@pytest.mark.parametrize("damage", ["missing", "altered", "vacuumed"])
def test_a_damaged_entry_is_named(objects: CountingStore, damage: str) -> None:
    with create_on(objects) as store:
        store.create_topic("orders")
        store.create_topic("other")
        fill(store, "orders", transactions=3)
        fill(store, "other", transactions=1)
        store.checkpoint()
        part = store.scan("orders").plan()[1]
    with reopened(objects) as store:
        key, data = part.batch.segment.object, objects.get(part.batch.segment.object)
        match damage:
            case "missing":
                objects.delete([key])
            case "altered":
                at = (part.batch.segment.first_byte or 0) + 40
                objects.put(key, data[:at] + b"\xff" * 8 + data[at + 8 :])
            case _:
                objects.put(key, data.rpartition(b"\n")[2])
        with pytest.raises(CorruptionError, match=part.batch.segment.key):
            read_table(connection_of(store), "SELECT sum(octet_length(value)) FROM orders")
        with store.duckdb() as con:
            assert values(con, "SELECT count(value) FROM other") == [8]
        objects.put(key, data)
        assert store.sql("SELECT count(value) FROM orders").fetchall() == [(24,)]


def test_fresh_rows_are_fetched_once_and_a_refresh_fetches_new_ones(objects: CountingStore) -> None:
    """Also for other isolation levels and connections; topics that no query reads are not fetched."""
    with create_on(objects) as store:
        for topic in ("orders", "other"):
            store.create_topic(topic, partitions=2)
            fill(store, topic, transactions=5, records=4)
        store.checkpoint()
        parts = store.scan("orders").plan()
    query = "SELECT count(value) FROM orders"
    with (
        reopened(objects) as reader,
        in_another_process(objects) as writer,
        reader.duckdb() as con,
        reader.duckdb("read_uncommitted") as uncommitted,
    ):
        assert requests(reader)["get"] <= 2, "a session that is planned reads no segment"
        assert values(con, query) == [20]
        assert sorted(segments_read(reader)) == sorted({part.batch.segment.object for part in parts})
        assert values(con, query) == values(uncommitted, query) == [20]
        assert not segments_read(reader)
        fill(writer, "orders", transactions=1, records=4, first=5)
        reader.refresh(con)
        connection_of(reader).objects.forget()
        new = {part.batch.segment.object for part in reader.scan("orders").plan()} - {
            part.batch.segment.object for part in parts
        }
        requests(reader)
        assert values(con, query) == [24]
        assert set(segments_read(reader)) == new
        assert reader.sql(query).fetchall() == [(24,)]
        assert not set(segments_read(reader)) & {part.batch.segment.object for part in parts}


def test_many_fresh_rows_are_several_files_of_which_a_commit_changes_the_last(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(combined_files, "FILE_BYTES", 8_000)
    store.create_topic("orders", partitions=3)
    paths: list[list[str]] = []
    for number in itertools.count():
        fill(store, "orders", transactions=1, first=number)
        plan = fresh_plan(store)
        assert all(stored_bytes(run) <= 8_000 for run in combined_files.runs(plan.slices))
        paths.append(paths_of(plan))
        if len(paths[-1]) == 4:
            break
    for before, after in itertools.pairwise(paths):
        assert after[: len(before) - 1] == before[:-1]
        assert after != before
    with store.duckdb() as con:
        assert assert_equals_scan(store, con, "orders") == len(paths) * 8
    monkeypatch.setattr(combined_files, "FILE_SLICES", 2)
    assert max(map(len, combined_files.runs(plan.slices))) == 2


def fresh_plan(store: Store) -> RowPlan:
    topic = connection_of(store).view().topics["orders"]
    return RowPlan(shown_columns(topic), tuple(store.scan("orders").plan()))


def paths_of(plan: RowPlan) -> list[str]:
    return list(combined_files.combined_files(plan, SharedSegments(MemoryStore(), InlineExecutor)))


def stored_bytes(slices: Iterable[Slice]) -> int:
    """The size of the segments that a file of these slices decodes."""
    return sum({part.batch.segment.key: part.batch.segment.size for part in slices}.values())


def test_a_file_decodes_no_more_than_its_bound_of_segments_that_are_mostly_deleted(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A segment is decoded whole, however few of its rows are left."""
    store.create_topic("orders", partitions=8, config={"inline.bytes": 0})
    with store.producer() as producer:
        for _ in range(10):
            for partition in range(8):
                producer.send("orders", random.Random(partition).randbytes(1_000), partition=partition)
            producer.flush()
    store.delete_records({TopicPartition("orders", partition): -1 for partition in range(1, 8)})
    parts = store.scan("orders").plan()
    bound = 3 * max(part.batch.segment.size for part in parts)
    monkeypatch.setattr(combined_files, "FILE_BYTES", bound)
    assert [stored_bytes(run) <= bound for run in combined_files.runs(parts)] == [True] * 4
    with store.duckdb() as con:
        assert assert_equals_scan(store, con, "orders") == 10


def test_a_file_is_named_by_its_rows(store: Store) -> None:
    """A database keeps the bytes of a file by its name, however the topic, the log and the snapshots change."""
    store.create_topic("orders", schema=pa.schema([("n", pa.int64())]))
    with store.producer() as producer:
        producer.send_table("orders", [{"n": number} for number in range(8)]).result()
    query = "SELECT * FROM orders"
    assert store.sql(query).to_arrow_table().num_rows == 8
    store.delete_records({("orders", 0): 3})  # type: ignore[dict-item]
    assert store.sql(query).to_arrow_table()["_offset"].to_pylist() == [3, 4, 5, 6, 7]
    store.alter_topic("orders", schema=pa.schema([("m", pa.int64()), ("n", pa.int64())]))
    assert store.sql(query).to_arrow_table().to_pylist()[0].keys() == {
        "_topic", "_partition", "_offset", "_timestamp", "m", "n",
    }  # fmt: skip
    plan = fresh_plan(store)
    topic, cut = plan.columns.topic, tuple(replace(part, start=part.start + 1) for part in plan.slices)
    topics = [topic, replace(topic, version=topic.version + 1)]
    plans = [RowPlan(shown_columns(each), run) for each in topics for run in (plan.slices, cut)]
    assert len({path for each in plans for path in paths_of(each)}) == 4
