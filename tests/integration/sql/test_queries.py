"""Topics as DuckDB views: the same rows as a scan, of one snapshot, at both isolation levels."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path

import duckdb
import pyarrow as pa
import pytest

from tests.helpers.connections import connection_of
from tests.helpers.sqlstore import abort, assert_equals_scan, fill, rows, values
from txnstore.errors import CorruptionError, InvalidConfigError
from txnstore.sql import read_table
from txnstore.storage.memory import MemoryStore
from txnstore.store import Store, create

_NAMES = itertools.count()

NESTED = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("small", pa.int8()),
        pa.field("price", pa.decimal128(12, 2)),
        pa.field("ratio", pa.float32()),
        pa.field("flag", pa.bool_()),
        pa.field("day", pa.date32()),
        pa.field("at", pa.timestamp("us", "UTC")),
        pa.field("local", pa.timestamp("ms")),
        pa.field("fixed", pa.binary(4)),
        pa.field("tags", pa.list_(pa.string())),
        pa.field("address", pa.struct([("street name", pa.string()), ("zip", pa.int32())])),
        pa.field("attributes", pa.map_(pa.string(), pa.int64())),
        pa.field("deep", pa.list_(pa.struct([("x", pa.list_(pa.int16()))]))),
    ],
)


@pytest.fixture(params=["local", "memory", "three chains"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    name = f"sql-{next(_NAMES)}"
    url = tmp_path / "store" if request.param == "local" else f"memory://{name}"
    with create(url, chains=3 if request.param == "three chains" else 1) as made:
        yield made
    MemoryStore.forget(name)


def test_a_topic_is_a_view_with_the_rows_of_a_scan(store: Store) -> None:
    store.create_topic("orders", partitions=3)
    fill(store, "orders")
    with store.duckdb() as con:
        assert assert_equals_scan(store, con, "orders") == 24
        assert values(con, "SELECT DISTINCT _topic FROM orders") == ["orders"]


def test_read_committed_shows_neither_aborted_nor_open_records(store: Store) -> None:
    """CON-02, CON-03, LSO-11: below the LSO without the aborted; read_uncommitted shows all."""
    store.create_topic("orders", partitions=2)
    fill(store, "orders", transactions=1)
    abort(store, "orders")
    with store.producer("open") as producer:
        producer.begin_transaction()
        producer.send("orders", b"open", partition=0)
        producer.flush()
        fill(store, "orders", transactions=1, first=1)
        with store.duckdb() as committed, store.duckdb("read_uncommitted") as uncommitted:
            hidden = "SELECT count(*) FROM orders WHERE value::VARCHAR LIKE 'aborted%' OR value::VARCHAR = 'open'"
            assert values(committed, hidden) == [0]
            assert values(uncommitted, hidden) == [9]
            committed_count = assert_equals_scan(store, committed, "orders")
            assert assert_equals_scan(store, uncommitted, "orders", "read_uncommitted") == 25 > committed_count
        producer.abort_transaction()


@pytest.mark.parametrize("name", ["a.b-c", "select", "9lives", "_x", "txn", "UPPER.lower-1"])
def test_a_topic_of_any_legal_name_is_a_view_of_exactly_this_name(store: Store, name: str) -> None:
    store.create_topic(name)
    fill(store, name, transactions=1)
    with store.duckdb() as con:
        assert assert_equals_scan(store, con, name) == 8
        assert values(con, "SELECT view FROM txn.topics") == [name]


def test_topics_of_old_stores_whose_names_differ_in_case_only_are_not_mistaken_for_each_other(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Today the second name is refused. The older topic keeps its view."""
    store.create_topic("orders")
    with monkeypatch.context() as patch:
        patch.setattr("txnstore.core.catalog.rules._colliding_topic", lambda state, name: None)
        store.create_topic("Orders")
    fill(store, "orders", transactions=1)
    with store.duckdb() as con:
        (older, view), (younger, other) = [
            (row["topic"], row["view"])
            for row in rows(con, "SELECT topic, view FROM txn.topics ORDER BY created_at, topic")
        ]
        assert (view, other) == (older, f"{younger}#2")
        counted = {
            older: values(con, f"SELECT count(*) FROM {older}"),
            younger: values(con, f'SELECT count(*) FROM "{other}"'),
        }
        assert counted == {"orders": [8], "Orders": [0]}


def test_an_empty_topic_has_typed_columns(store: Store) -> None:
    store.create_topic("orders")
    store.create_topic("typed", schema=NESTED, timestamp="at")
    with store.duckdb() as con:
        assert assert_equals_scan(store, con, "orders") == 0
        assert assert_equals_scan(store, con, "typed") == 0
        assert values(con, "SELECT sum(address.zip + small) FROM typed") == [None]


@pytest.mark.parametrize("fmt", ["parquet", "arrow"])
def test_columns_of_every_kind_keep_their_types_and_values(store: Store, fmt: str) -> None:
    store.create_topic("typed", schema=NESTED, timestamp="at", config={"segment.format": fmt})
    row = {
        "id": 2**62, "small": -128, "price": Decimal("-1234567890.12"), "ratio": 0.5, "flag": True,
        "day": datetime(1969, 12, 31, tzinfo=UTC).date(), "at": datetime(1969, 12, 31, 23, 59, 59, 999_999, UTC),
        "local": datetime(2026, 2, 28, 1, 2, 3, 4000), "fixed": b"\x00\xff\x01\xfe", "tags": ["a", None, "ü"],  # noqa: DTZ001
        "address": {"street name": "O'Hare \"1\"", "zip": 7}, "attributes": [("k", 1), ("l", None)],
        "deep": [{"x": [1, None]}, None],
    }  # fmt: skip
    nothing = dict.fromkeys(row) | {"id": 1}
    with store.producer() as producer:
        producer.send_table("typed", pa.Table.from_pylist([row, nothing], schema=NESTED)).result()
    with store.duckdb() as con:
        assert assert_equals_scan(store, con, "typed") == 2
        # The event time rounded down to the millisecond, also before 1970.
        assert values(con, "SELECT epoch_us(_timestamp) FROM typed WHERE id <> 1") == [-1000]


@pytest.mark.parametrize("kind", [pa.int64(), pa.timestamp("ms"), pa.timestamp("us"), pa.timestamp("ms", "UTC")])
def test_the_event_time_of_any_type_is_the_timestamp(store: Store, kind: pa.DataType) -> None:
    store.create_topic("events", schema=pa.schema([("when", kind), ("n", pa.int32())]), timestamp="when")
    times = pa.array([0, 1_700_000_000_123], pa.int64()).cast(pa.timestamp("ms")).cast(kind)
    with store.producer() as producer:
        producer.send_table("events", pa.table({"when": times, "n": pa.array([1, 2], pa.int32())})).result()
    with store.duckdb() as con:
        assert assert_equals_scan(store, con, "events") == 2
        con.execute("SET TimeZone = 'America/New_York'")
        assert values(con, "SELECT epoch_ms(_timestamp) FROM events ORDER BY 1") == [0, 1_700_000_000_123]


@pytest.mark.parametrize("config", [{}, {"message.timestamp.type": "LogAppendTime"}])
def test_rows_without_an_event_time_have_the_time_of_their_batch(store: Store, config: dict[str, str]) -> None:
    store.create_topic("plain", partitions=2, schema=pa.schema([("n", pa.int32())]), config=config)
    for number in range(3):
        with store.producer() as producer:
            producer.send_table("plain", [{"n": number}, {"n": number}, {"n": number}])
    store.create_topic("records", config=config)
    fill(store, "records")
    with store.duckdb() as con:
        assert assert_equals_scan(store, con, "plain") == 9
        assert assert_equals_scan(store, con, "records") == 24
        latest = "SELECT * FROM plain WHERE _timestamp > '2001-01-01' ORDER BY _timestamp DESC LIMIT 2"
        assert len(rows(con, latest)) == 2


def test_old_segments_are_read_as_the_schema_of_today(store: Store) -> None:
    first = pa.schema([("a", pa.int32()), ("b", pa.float32())])
    store.create_topic("grown", schema=first)
    with store.producer() as producer:
        producer.send_table("grown", pa.table({"a": [1, 2], "b": [0.5, 1.5]})).result()
        store.alter_topic("grown", schema=pa.schema([("c", pa.string()), ("b", pa.float64()), ("a", pa.int64())]))
    with store.producer() as producer:
        producer.send_table("grown", pa.table({"a": [2**40], "b": [0.1], "c": ["new"]})).result()
    with store.duckdb() as con:
        assert assert_equals_scan(store, con, "grown") == 3
        assert values(con, "SELECT a FROM grown WHERE a >= 2 AND b > 1") == [2]
        assert values(con, "SELECT a FROM grown WHERE c IS NULL ORDER BY a") == [1, 2]


def test_columns_named_like_those_of_duckdbs_reader_are_columns(store: Store) -> None:
    schema = pa.schema(
        [("filename", pa.string()), ("file_row_number", pa.int64()), ("File_Index", pa.int32()), ('q"', pa.int8())]
    )
    store.create_topic("odd", schema=schema)
    for number in range(2):
        with store.producer() as producer:
            row = {"filename": "f", "file_row_number": -7, "File_Index": 40 + number, 'q"': 1}
            producer.send_table("odd", [row, row])
    with store.duckdb() as con:
        assert assert_equals_scan(store, con, "odd") == 4


@pytest.mark.parametrize("fmt", ["parquet", "arrow"])
def test_compacted_and_fresh_segments_together_are_the_topic(store: Store, fmt: str) -> None:
    store.create_topic("orders", partitions=2)
    fill(store, "orders", transactions=3)
    abort(store, "orders")
    fill(store, "orders", transactions=1, first=3)
    store.alter_topic("orders", config={"segment.format": fmt})
    before = store.snapshot()
    with store.duckdb() as con:
        assert store.compact().merges == 2
        store.refresh(con)
        fill(store, "orders", transactions=2, first=4)
        store.refresh(con)
        assert assert_equals_scan(store, con, "orders") == 48
        # A snapshot from before the compaction ends inside what is merged now.
        with store.duckdb(snapshot=before) as old:
            assert assert_equals_scan(store, old, "orders", snapshot=before) == 32


@pytest.mark.parametrize(("partitions", "transactions", "compacted"), [(20, 2, 0), (20, 5, 0), (20, 1, 2), (3, 25, 0)])
def test_filters_and_limits_give_what_python_gives(
    store: Store,
    partitions: int,
    transactions: int,
    compacted: int,
) -> None:
    """For few files and for many, fresh and merged ones.

    Also top-N queries with a filter on a column that no file stores, which DuckDB 2.0 itself stumbles over.
    """
    store.create_topic("orders", partitions=partitions)
    if compacted:
        fill(store, "orders", transactions=compacted, records=60)
        store.compact()
    fill(store, "orders", transactions=transactions, records=60, first=compacted)
    everything = store.scan("orders").to_table().to_pylist()
    places = sorted((row["_partition"], row["_offset"]) for row in everything)
    with store.duckdb() as con:
        for partition in {0, 2, partitions - 1}:
            mine = [offset for number, offset in places if number == partition]
            query = f"FROM orders WHERE _partition = {partition}"
            assert values(con, f"SELECT _offset {query} ORDER BY _offset") == mine
            assert [row["_offset"] for row in rows(con, f"SELECT * {query} ORDER BY _offset LIMIT 3")] == mine[:3]
            above = f"SELECT * {query} AND _offset > {mine[1]} ORDER BY _offset DESC LIMIT 1"
            assert [row["_offset"] for row in rows(con, above)] == mine[-1:]
        top = rows(con, "SELECT * FROM orders WHERE key = 'key-7' ORDER BY _timestamp, value LIMIT 2")
        assert [row["value"] for row in top] == [b"value-0-7", b"value-1-7"]


def test_a_store_of_one_segment_takes_filters_on_its_offsets(store: Store) -> None:
    store.create_topic("orders")
    fill(store, "orders", transactions=1)
    with store.duckdb() as con:
        query = "SELECT * FROM orders WHERE _offset >= 5 AND _partition = 0 ORDER BY value DESC LIMIT 2"
        assert [row["_offset"] for row in rows(con, query)] == [7, 6]


def test_sql_answers_with_a_relation_of_the_newest_snapshot(store: Store) -> None:
    store.create_topic("orders")
    fill(store, "orders", transactions=1)
    relation = store.sql("SELECT count(*) AS n FROM orders")
    fill(store, "orders", transactions=1, first=1)
    assert relation.fetchall() == [(8,)]
    assert store.sql("SELECT count(*) AS n FROM orders").fetchall() == [(16,)]
    assert read_table(connection_of(store), "SELECT count(*) AS n FROM orders").to_pylist() == [{"n": 16}]


def test_errors_in_a_query_are_those_of_duckdb(store: Store) -> None:
    store.create_topic("orders")
    with pytest.raises(duckdb.ParserException):
        store.sql("SELEC 1")
    with pytest.raises(duckdb.CatalogException, match="nope"):
        read_table(connection_of(store), "SELECT * FROM nope")
    with pytest.raises(duckdb.BinderException, match="nope"):
        read_table(connection_of(store), "SELECT nope FROM orders")
    with pytest.raises(duckdb.CatalogException) as caught:
        store.sql("SELECT * FROM nothing_like_it")
    assert "Did you mean" not in str(caught.value), "a table of DuckDB itself is no advice"
    with pytest.raises(duckdb.CatalogException, match=r'Did you mean "orders"\?'):
        store.sql("SELECT * FROM ordres")


def test_wrong_arguments_are_named(store: Store) -> None:
    with pytest.raises(InvalidConfigError, match="isolation must be"):
        store.duckdb("serializable")  # type: ignore[arg-type]
    with pytest.raises(InvalidConfigError, match="snapshot must come from"):
        store.duckdb(snapshot=12)  # type: ignore[arg-type]


@pytest.mark.usefixtures("own_objects")
@pytest.mark.parametrize("damage", ["missing", "truncated", "altered"])
def test_a_damaged_segment_is_named(store: Store, damage: str) -> None:
    store.create_topic("orders")
    fill(store, "orders", transactions=2, records=500)
    key = store.scan("orders").plan()[1].batch.segment.key
    data = connection_of(store).objects.get(key)
    if damage == "missing":
        connection_of(store).objects.delete([key])
    else:
        connection_of(store).objects.put(
            key, data[:-20] if damage == "truncated" else data[:4] + b"\xff" * 64 + data[68:]
        )
    with pytest.raises(CorruptionError, match=key):
        read_table(connection_of(store), "SELECT sum(octet_length(value) + octet_length(key)) FROM orders")


def test_a_folder_whose_name_looks_like_a_pattern_is_read(tmp_path: Path) -> None:
    with create(tmp_path / "st[o]re *" / "a?b") as store:
        store.create_topic("orders")
        fill(store, "orders", transactions=1)
        with store.duckdb() as con:
            assert assert_equals_scan(store, con, "orders") == 8


def test_a_folder_with_a_quote_in_its_name_is_read_in_place(tmp_path: Path) -> None:
    with create(tmp_path / "it's") as store:
        store.create_topic("orders")
        fill(store, "orders", transactions=1)
        before = store.metrics().gets
        with store.duckdb(snapshot=store.snapshot()) as con:
            assert values(con, "SELECT count(*) FROM orders") == [8]
        assert store.metrics().gets == before + 1  # The snapshot looked for the next entry.


@pytest.mark.parametrize(
    ("query", "named"),
    [
        ("SELECT count(*) FROM my-topic", "my-topic"),
        ("SELECT count(*) FROM MY-TOPIC t", "my-topic"),
        ("SELECT count(*) FROM a.b", "a.b"),
        ("SELECT * FROM orders JOIN 24h USING (key)", "24h"),
    ],
)
def test_a_topic_that_needs_quotation_marks_is_named(store: Store, query: str, named: str) -> None:
    """DuckDB reads ``my-topic`` as a difference, and ``a.b`` as a table in a schema."""
    for name in ("my-topic", "a.b", "24h", "orders"):
        store.create_topic(name)
    for run in (store.sql, lambda text: read_table(connection_of(store), text)):
        with pytest.raises(duckdb.Error) as raised:
            run(query)
        assert raised.value.__notes__ == [
            f'Put quotation marks around a name that SQL does not read as one: "{named}".'
        ]
    quoted = query.replace(named, f'"{named}"').replace(named.upper(), f'"{named}"')
    assert store.sql(quoted) is not None


@pytest.mark.parametrize("query", ['SELECT x FROM "my-topic"', "SELECT my FROM orders", "SELEC 'my-topic'"])
def test_errors_of_other_queries_have_no_note_about_quotation_marks(store: Store, query: str) -> None:
    for name in ("my-topic", "orders"):
        store.create_topic(name)
    with pytest.raises(duckdb.Error) as raised:
        store.sql(query)
    assert not hasattr(raised.value, "__notes__")


def test_instants_are_shown_in_utc_on_a_machine_of_any_zone(tmp_path: Path) -> None:
    program = (
        f"import txnstore; store = txnstore.create({str(tmp_path / 'store')!r}); "
        "print(store.sql(\"SELECT current_setting('TimeZone')\").fetchall()[0][0])"
    )
    environment = {**os.environ, "TZ": "Asia/Tokyo"}
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.strip() == "UTC"
