"""Scans: columns, ranges, filters, schemas, errors."""

from __future__ import annotations

import sys
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from tests.helpers.connections import connection_of
from tests.helpers.reading import T0, T1, abort, another_process, append, begin, commit, new_store, scanned
from txnstore.errors import (
    CorruptionError,
    InvalidConfigError,
    OffsetOutOfRangeError,
    SchemaMismatchError,
    UnknownTopicOrPartitionError,
)
from txnstore.segment.schema import HEADERS
from txnstore.store import Store
from txnstore.testing import ManualClock

UTC_MS = pa.timestamp("ms", "UTC")


@pytest.fixture
def store(clock: ManualClock, chains: int) -> Store:
    store = new_store(clock, chains=chains)
    store.create_topic("t", partitions=2)
    return store


def _offsets(table: pa.Table) -> list[tuple[int, int]]:
    return list(zip(table["_partition"].to_pylist(), table["_offset"].to_pylist(), strict=True))


# Columns --------------------------------------------------------------------------------------------------------------


def test_an_empty_topic_has_the_exact_schema(store: Store) -> None:
    expected = pa.schema(
        [
            ("_topic", pa.string()),
            ("_partition", pa.int32()),
            ("_offset", pa.int64()),
            ("_timestamp", UTC_MS),
            ("key", pa.binary()),
            ("value", pa.binary()),
            ("headers", HEADERS),
            ("timestamp", UTC_MS),
        ],
    )
    scan = store.scan("t")
    assert scan.schema == expected
    assert scan.to_table().schema == expected
    assert scan.to_reader().schema == expected
    append(store, "a")
    assert store.scan("t").to_table().schema == expected


def test_rows_come_with_their_place_and_time(store: Store) -> None:
    append(store, "a", "b", timestamp=1_000)
    append(store, "c", tp=T1, timestamp=2_000)
    table = store.scan("t").to_table()
    assert table["_topic"].to_pylist() == ["t"] * 3
    assert _offsets(table) == [(0, 0), (0, 1), (1, 0)]
    assert table["_timestamp"].cast(pa.int64()).to_pylist() == [1_000, 1_000, 2_000]
    assert table["key"].to_pylist() == [b"k-a", b"k-b", b"k-c"]


def test_columns_come_in_the_order_asked_for(store: Store) -> None:
    append(store, "a")
    table = store.scan("t", columns=["value", "_offset"]).to_table()
    assert table.column_names == ["value", "_offset"]
    assert table.to_pylist() == [{"value": b"a", "_offset": 0}]


def test_places_alone_are_a_valid_choice(store: Store) -> None:
    append(store, "a", "b")
    assert store.scan("t", columns=["_offset"]).to_table().to_pydict() == {"_offset": [0, 1]}


def test_no_columns_are_refused(store: Store) -> None:
    """A table without columns has no rows."""
    with pytest.raises(InvalidConfigError, match="columns is empty: name at least one column"):
        store.scan("t", columns=[])
    names: Any = iter(["value"])
    assert store.scan("t", columns=names).schema.names == ["value"]


@pytest.mark.parametrize(
    ("columns", "says"),
    [
        (["valu"], r"topic 't' has no column 'valu'; it has .*value"),
        (["value", "key", "value"], "column 'value' is listed twice"),
        ("value", "columns must be a list of names, not the string 'value'"),
        ("", "columns must be a list of names, not the string ''"),
    ],
)
def test_a_wrong_choice_of_columns_is_refused(store: Store, columns: list[str], says: str) -> None:
    with pytest.raises(SchemaMismatchError, match=f"^{says}"):
        store.scan("t", columns=columns)


def test_log_append_time_is_the_time_of_the_entry(clock: ManualClock) -> None:
    store = new_store(clock)
    store.create_topic("t", config={"message.timestamp.type": "LogAppendTime"})
    append(store, "a", timestamp=5)
    moment = store.scan("t").plan()[0].batch.appended_at
    assert moment == clock()
    assert store.scan("t").to_table()["_timestamp"].cast(pa.int64()).to_pylist() == [moment]


def test_a_typed_topic_without_a_time_column_has_the_time_of_sending(clock: ManualClock) -> None:
    store = new_store(clock)
    store.create_topic("n", schema=pa.schema([("x", pa.int64())]))
    with store.producer() as producer:
        producer.send_table("n", pa.table({"x": [1, 2]}))
    table = store.scan("n").to_table()
    assert table.column_names == ["_topic", "_partition", "_offset", "_timestamp", "x"]
    assert table["_timestamp"].cast(pa.int64()).to_pylist() == [clock()] * 2


def test_old_segments_are_read_with_the_schema_of_today(clock: ManualClock) -> None:
    """Columns that did not exist are null, narrower types are widened, the order is the topic's."""
    store = new_store(clock)
    store.create_topic("n", schema=pa.schema([("x", pa.int32()), ("y", pa.string())]))
    with store.producer() as producer:
        producer.send_table("n", pa.table({"x": pa.array([1], pa.int32()), "y": ["a"]}))
        producer.flush()
        store.alter_topic("n", schema=pa.schema([("z", pa.float64()), ("y", pa.string()), ("x", pa.int64())]))
        producer.send_table("n", pa.table({"x": [2**40], "y": ["b"], "z": [0.5]}))
    table = store.scan("n", columns=["z", "y", "x"]).to_table()
    assert table.schema == pa.schema([("z", pa.float64()), ("y", pa.string()), ("x", pa.int64())])
    assert table.to_pydict() == {"z": [None, 0.5], "y": ["a", "b"], "x": [1, 2**40]}


def test_arrow_segments_are_read_like_parquet_ones(clock: ManualClock) -> None:
    store = new_store(clock)
    store.create_topic("t", config={"segment.format": "arrow"})
    append(store, "a", "b", "c")
    assert store.scan("t").plan()[0].batch.segment.format == "arrow_stream"
    store.alter_topic("t", config={"inline.bytes": 0})
    append(store, "d")
    assert store.scan("t").plan()[-1].batch.segment.format == "arrow"
    table = store.scan("t", start=1, columns=["_offset", "value"]).to_table()
    assert table.to_pydict() == {"_offset": [1, 2, 3], "value": [b"b", b"c", b"d"]}


# Ranges ---------------------------------------------------------------------------------------------------------------


def test_an_offset_bounds_all_partitions_or_each_its_own(store: Store) -> None:
    append(store, *"abcde")
    append(store, *"fgh", tp=T1)
    assert _offsets(store.scan("t", start=1, end=3).to_table()) == [(0, 1), (0, 2), (1, 1), (1, 2)]
    scan = store.scan("t", start={0: 4}, end={1: 1})
    assert _offsets(scan.to_table()) == [(0, 4), (1, 0)]
    assert _offsets(store.scan("t", partitions=[1], start=2, end=100).to_table()) == [(1, 2)]
    assert store.scan("t", start=100).to_table().num_rows == 0


def test_partitions_are_read_in_order_each_once(store: Store) -> None:
    append(store, "a")
    append(store, "b", tp=T1)
    assert _offsets(store.scan("t", partitions=[1, 0, 1]).to_table()) == [(0, 0), (1, 0)]
    assert store.scan("t", partitions=[]).to_table().num_rows == 0


@pytest.mark.parametrize(("start", "end"), [(3, 2), (-1, None), (None, -1), ({1: 5}, 4)])
def test_an_impossible_range_is_refused(store: Store, start: int | None, end: int | None) -> None:
    with pytest.raises(OffsetOutOfRangeError):
        store.scan("t", start=start, end=end)


def test_unknown_things_are_named(store: Store) -> None:
    with pytest.raises(UnknownTopicOrPartitionError, match="'u'"):
        store.scan("u")
    with pytest.raises(UnknownTopicOrPartitionError, match="no partition 2"):
        store.scan("t", partitions=[0, 2])
    with pytest.raises(UnknownTopicOrPartitionError, match="no partition 7"):
        store.scan("t", start={7: 0})
    with pytest.raises(InvalidConfigError, match="'serializable'"):
        store.scan("t", isolation="serializable")  # type: ignore[arg-type]
    with pytest.raises(InvalidConfigError, match="'first'"):
        store.scan("t", start={0: "first"})  # type: ignore[dict-item]


# Filters --------------------------------------------------------------------------------------------------------------


def test_a_filter_may_use_columns_that_are_not_asked_for(store: Store) -> None:
    append(store, "a", "b", "c")
    scan = store.scan("t", columns=["_offset"], filter=pc.field("value") >= b"b")
    assert scan.to_table().to_pydict() == {"_offset": [1, 2]}
    assert scan.schema.names == ["_offset"]


def test_a_filter_that_finds_nothing_keeps_the_schema(store: Store) -> None:
    append(store, "a")
    scan = store.scan("t", filter=pc.field("value") == b"z")
    assert scan.to_table().equals(scan.schema.empty_table())


@pytest.mark.parametrize("expression", [pc.field("valu") == b"a", pc.field("_offset") == "a", pc.field("_offset"), "x"])
def test_a_filter_that_does_not_fit_is_refused_before_anything_is_read(store: Store, expression: object) -> None:
    with pytest.raises(SchemaMismatchError, match="filter"):
        store.scan("t", filter=expression)


def test_slices_are_left_out_by_offset_time_and_partition(store: Store) -> None:
    """Only what may hold is in the plan, and what is in the plan still holds."""
    for number in range(10):
        append(store, f"a{number}", f"b{number}", timestamp=1_000 * number)
    append(store, "z", tp=T1, timestamp=0)
    for expression, slices, rows in [
        (pc.field("_offset") >= 17, 2, 3),
        (pc.field("_timestamp") < pa.scalar(2_000, UTC_MS), 3, 5),
        (pc.field("_partition") == 1, 1, 1),
        ((pc.field("_offset") == 4) & (pc.field("value") == b"nothing"), 1, 0),
        (pc.field("value") == b"a3", 11, 1),
    ]:
        scan = store.scan("t", filter=expression)
        assert (len(scan.plan()), scan.to_table().num_rows) == (slices, rows), expression


# Doors ----------------------------------------------------------------------------------------------------------------


def test_a_scan_is_an_arrow_stream(store: Store) -> None:
    append(store, "a", "b")
    scan = store.scan("t", columns=["value"])
    assert pa.table(scan).to_pydict() == {"value": [b"a", b"b"]}
    assert pa.table(scan).to_pydict() == {"value": [b"a", b"b"]}, "a second stream begins again"


def test_duckdb_reads_a_scan_as_often_as_it_likes(store: Store) -> None:
    append(store, "a", "b")
    con = duckdb.connect()
    try:
        relation = store.scan("t", columns=["_offset"]).to_duckdb(con)
        assert relation.fetchall() == [(0,), (1,)]
        assert relation.fetchall() == [(0,), (1,)]
        store.scan("t").to_duckdb(con, "seen")
        assert con.sql("select count(*), max(_offset) from seen where value >= 'b'::blob").fetchall() == [(1, 1)]
        assert con.sql("select count(*) from seen").fetchall() == [(2,)]
    finally:
        con.close()


def test_pandas_gets_the_rows(store: Store) -> None:
    append(store, "a", "b")
    frame = store.scan("t", columns=["_offset", "value"]).to_pandas()
    assert frame["value"].tolist() == [b"a", b"b"]


def test_a_missing_engine_is_named(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "polars", None)
    with pytest.raises(InvalidConfigError, match="polars is not installed"):
        store.scan("t").to_polars()


# Snapshots ------------------------------------------------------------------------------------------------------------


def test_a_scan_is_pinned_when_it_is_made(store: Store) -> None:
    append(store, "a")
    scan, snapshot = store.scan("t", columns=["value"]), store.snapshot()
    append(store, "b")
    store.create_topic("later")
    assert scan.to_table().to_pydict() == {"value": [b"a"]}
    assert store.scan("t", snapshot=snapshot, columns=["value"]).to_table().to_pydict() == {"value": [b"a"]}
    assert store.scan("t", columns=["value"]).to_table().num_rows == 2
    with pytest.raises(UnknownTopicOrPartitionError, match="later"):
        store.scan("later", snapshot=snapshot)


def test_an_aborted_segment_is_never_downloaded(store: Store) -> None:
    abort(store, "gone")
    commit(store, "kept")
    begin(store, "open", "undecided")
    everything = [part.batch.segment.key for part in store.scan("t", isolation="read_uncommitted").plan()]
    planned = [part.batch.segment.key for part in store.scan("t").plan()]
    assert len(everything) == 3
    assert len(planned) == 1
    connection_of(store).counts.reset()
    assert scanned(store) == ["kept"]
    assert [key for kind, key in connection_of(store).counts.log if key.startswith("topics/")] == planned


# Many segments --------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("own_objects")
def test_hundreds_of_segments_come_in_order_with_one_get_each(clock: ManualClock) -> None:
    store = new_store(clock)
    store.create_topic("t")
    with store.producer() as producer:
        for number in range(100):
            producer.send("t", b"%d" % number, partition=0)
            producer.flush()
    connection_of(store).counts.reset()
    table = store.scan("t", columns=["_offset", "value"]).to_table()
    assert table["_offset"].to_pylist() == list(range(100))
    assert table["value"].to_pylist() == [b"%d" % number for number in range(100)]
    counts = connection_of(store).counts.snapshot()
    assert (counts.get, counts.list) == (101, 0), "one for the head of the chain, one for each segment"


def test_a_segment_of_many_row_groups_is_cut_at_any_offset(clock: ManualClock) -> None:
    store = new_store(clock)
    store.create_topic("n", schema=pa.schema([("x", pa.int64())]))
    rows = 300_000
    with store.producer() as producer:
        producer.send_table("n", pa.table({"x": pa.arange(0, rows)}))
    assert len(store.scan("n").plan()) == 1
    for start, end in [(0, rows), (131_071, 131_073), (262_144, 262_145), (299_999, rows), (1, 299_999)]:
        table = store.scan("n", start=start, end=end, columns=["_offset", "x"]).to_table()
        assert table["x"].combine_chunks().equals(pa.arange(start, end)), (start, end)
        assert table["_offset"].combine_chunks().equals(pa.arange(start, end)), (start, end)


@pytest.mark.usefixtures("own_objects")
def test_a_stream_that_is_given_up_stops_fetching(clock: ManualClock) -> None:
    store = new_store(clock)
    store.create_topic("t")
    with store.producer() as producer:
        for number in range(100):
            producer.send("t", b"%d" % number, partition=0)
            producer.flush()
    scan = store.scan("t")
    connection_of(store).counts.reset()
    tables = scan.to_tables()
    next(tables)
    tables.close()
    connection_of(store).pool.shutdown(wait=True)
    assert 1 <= connection_of(store).counts.snapshot().get <= 40


# Damage ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda data: data[:-1], "truncated"),
        (lambda data: data + b"x", "too long"),
        (lambda data: data[:9] + bytes([data[9] ^ 1]) + data[10:], "altered"),
        (lambda data: b"", "truncated"),
    ],
)
@pytest.mark.usefixtures("own_objects")
def test_a_damaged_segment_is_named(store: Store, damage: object, words: str) -> None:
    """CTL-06: reported, never skipped silently."""
    append(store, "a")
    append(store, "b")
    key = store.scan("t").plan()[1].batch.segment.key
    assert callable(damage)
    connection_of(store).objects.put(key, damage(connection_of(store).objects.get(key)))
    with pytest.raises(CorruptionError, match=f"{key}.*{words}"):
        store.scan("t").to_table()
    with pytest.raises(CorruptionError, match=key):
        store.scan("t").to_reader().read_all()
    tables = store.scan("t").to_tables()
    assert next(tables)["value"].to_pylist() == [b"a"], "what came before is intact"
    with pytest.raises(CorruptionError, match=key):
        next(tables)


@pytest.mark.usefixtures("own_objects")
def test_a_missing_segment_is_named(store: Store) -> None:
    append(store, "a")
    key = store.scan("t").plan()[0].batch.segment.key
    connection_of(store).objects.delete([key])
    with pytest.raises(CorruptionError, match=f"{key}.*missing"):
        store.scan("t").to_table()


# Merged segments ------------------------------------------------------------------------------------------------------


def test_merged_segments_keep_offsets_and_times(store: Store, clock: ManualClock) -> None:
    append(store, "a", timestamp=10)
    abort(store, "x")
    append(store, "b", timestamp=20)
    commit(store, "c", "d")
    before = store.scan("t").to_table()
    store.compact("t")
    (part,) = store.scan("t").plan()
    assert part.batch.segment.explicit_offsets
    after = store.scan("t").to_table()
    assert after.equals(before)
    assert _offsets(after) == [(0, 0), (0, 3), (0, 4), (0, 5)]
    assert _offsets(store.scan("t", start=1, end=5).to_table()) == [(0, 3), (0, 4)]
    assert store.scan("t", start=1, end=3).to_table().num_rows == 0
    assert store.scan("t", columns=["value"], start=4).to_table().to_pydict() == {"value": [b"c", b"d"]}
    assert scanned(another_process(store, clock)) == ["a", "b", "c", "d"]


def test_store_offsets_returns_the_bounds(store: Store) -> None:
    append(store, "a", "b")
    begin(store, "open", "c")
    bounds = store.offsets(*T0)
    assert (bounds.log_start, bounds.last_stable, bounds.high_watermark) == (0, 2, 3)
    with pytest.raises(UnknownTopicOrPartitionError, match="no partition 5"):
        store.offsets("t", 5)
