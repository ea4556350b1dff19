"""Every type of a column goes through every path: written, read, queried, merged, cleaned, verified, deleted."""

from __future__ import annotations

import math
import struct
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from tests.helpers.compaction import DAY_MS, batches, new_store, reopen
from tests.helpers.connections import connection_of
from txnstore.core.model import TopicPartition
from txnstore.read.records import Record
from txnstore.segment.partition import is_key_type, key_bytes, partition_array
from txnstore.spark.types import spark_schema, to_batches, type_name
from txnstore.testing import ManualClock

#: Moments with a zone, and the same without one.
ZONED = [
    datetime(1, 1, 1, tzinfo=UTC),
    datetime(2026, 11, 24, 8, 38, 41, 123_000, UTC),
    datetime(9999, 12, 31, tzinfo=UTC),
]
BARE = [moment.replace(tzinfo=None) for moment in ZONED]

#: Of each type three different values, the first and the last one at the ends of what it can be.
PLAIN: dict[pa.DataType, list[Any]] = {
    pa.bool_(): [False, True, True],
    pa.int8(): [-128, 0, 127],
    pa.int16(): [-(2**15), 0, 2**15 - 1],
    pa.int32(): [-(2**31), 0, 2**31 - 1],
    pa.int64(): [-(2**63), 0, 2**63 - 1],
    pa.float32(): [-math.inf, -0.0, 3.0],
    pa.float64(): [-math.inf, -0.0, 5e-324],
    pa.string(): ["", "é\0💡", "x" * 40],
    pa.large_string(): ["", "é\0💡", "x" * 40],
    pa.binary(): [b"", b"\0\xff", b"x" * 40],
    pa.large_binary(): [b"", b"\0\xff", b"x" * 40],
    pa.binary(1): [b"\0", b"a", b"\xff"],
    pa.binary(16): [bytes(16), b"0123456789abcdef", b"\xff" * 16],
    pa.decimal128(1): [Decimal(-9), Decimal(0), Decimal(9)],
    pa.decimal128(38, 38): [Decimal("-0." + "9" * 38), Decimal(0), Decimal("0." + "9" * 38)],
    pa.date32(): [date(1, 1, 1), date(1970, 1, 1), date(9999, 12, 31)],
    pa.timestamp("ms"): BARE,
    pa.timestamp("us"): BARE,
    pa.timestamp("ms", "UTC"): ZONED,
    pa.timestamp("us", "UTC"): ZONED,
}  # fmt: skip
#: The same inside of every nested type.
NESTED: dict[pa.DataType, list[Any]] = {
    nested: values
    for inner, (low, middle, high) in PLAIN.items()
    for nested, values in (
        (pa.list_(inner), [[], [low, None, high], [middle]]),
        (pa.struct([("a", inner), ("b", pa.list_(inner))]), [{"a": low, "b": None}, {"a": None, "b": [high]}, None]),
        (pa.map_(inner, inner), [[], [(low, high)], [(high, None)]]),
    )
}
TYPES = {**PLAIN, **NESTED}

#: Where the segments of a commit lie.
PLACES: dict[str, dict[str, object]] = {
    "inline": {},
    "pack": {"inline.bytes": 0},
    "own": {"inline.bytes": 0, "segment.own.bytes": 0},
    "arrow": {"inline.bytes": 0, "segment.own.bytes": 0, "segment.format": "arrow"},
}


def _sorted(table: pa.Table) -> pa.Table:
    return table.sort_by([("_partition", "ascending"), ("_offset", "ascending")])


def _plain(value: Any) -> Any:
    """A value of Arrow or DuckDB, comparable: zones are compared by their moments, maps by their entries."""
    if isinstance(value, dict):
        if set(value) == {"key", "value"} and isinstance(value["key"], list):
            return sorted(map(repr, zip(value["key"], value["value"], strict=True)))
        return {name: _plain(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    return value.astimezone(UTC) if isinstance(value, datetime) and value.tzinfo is not None else value


@pytest.mark.slow
@pytest.mark.parametrize("place", PLACES)
def test_every_type_goes_through_every_path(clock: ManualClock, place: str) -> None:
    """A row of each type in each place; one topic has all types as columns, as DuckDB and Spark see them together."""
    store = new_store(clock)
    schema = pa.schema([("n", pa.int64()), *((f"c{number}", kind) for number, kind in enumerate(TYPES))])
    store.create_topic("all", 2, schema, config=PLACES[place])
    columns = [pa.array([*values, None], kind) for kind, values in TYPES.items()]
    table = pa.table([pa.array(range(4), pa.int64()), *columns], schema=schema)
    for _ in range(3):
        with store.producer("writer") as producer, producer.transaction():
            for partition in (0, 1):
                producer.send_table("all", table, partition=partition)
        clock.advance(1)
    scanned = store.scan("all").to_table()
    before = _sorted(scanned)
    names = schema.names
    expected = pa.concat_tables([table] * 6)
    assert before.select(names).equals(expected)

    for name in names[1:]:
        valid = store.scan("all", columns=[name], filter=pc.field(name).is_valid()).to_table()
        assert valid.equals(_valid(scanned.select([name]), name)), name

    shown = store.sql('SELECT * EXCLUDE (_topic) FROM "all" ORDER BY _partition, _offset').to_arrow_table()
    for name in names:
        assert _plain(shown[name].to_pylist()) == _plain(before[name].to_pylist()), (name, schema.field(name).type)

    with store.consumer(auto_offset_reset="earliest") as consumer:
        consumer.assign([TopicPartition("all", 0), TopicPartition("all", 1)])
        polled: list[Record] = []
        while len(polled) < before.num_rows:
            polled += consumer.poll(max_records=7)
    assert sorted((record.partition, record.offset) for record in polled) == [
        (partition, offset) for partition in (0, 1) for offset in before["_offset"].to_pylist()[: len(before) // 2]
    ]

    report = store.compact("all", force=True)
    assert report.merges == 2, report
    assert [len(batches(store, TopicPartition("all", number))) for number in (0, 1)] == [1, 1]
    for reader in (store, reopen(store, clock)):
        assert _sorted(reader.scan("all").to_table()).equals(before)
    verified = store.verify(deep=True)
    assert verified.ok, verified

    for rows in to_batches(iter([before]), spark_schema(before.schema)):
        assert rows.num_rows == before.num_rows
        assert all(type_name(field.type) for field in rows.schema)

    tp = TopicPartition("all", 0)
    store.delete_records({tp: 5})
    clock.advance(2 * DAY_MS)
    store.vacuum()
    after = _sorted(store.scan("all").to_table())
    assert after.equals(before.filter((pc.field("_partition") == 1) | (pc.field("_offset") >= 5)))
    assert store.verify(deep=True).ok


def _valid(table: pa.Table, name: str) -> pa.Table:
    return table.filter(pc.field(name).is_valid())


@pytest.mark.parametrize("kind", [kind for kind in PLAIN if is_key_type(kind)], ids=str)
def test_every_type_of_a_key_is_cleaned(clock: ManualClock, kind: pa.DataType) -> None:
    """The newest record of each key stays, and all records of a key are in one partition."""
    store = new_store(clock)
    policy = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0"}
    schema = pa.schema([("n", pa.int64()), ("v", kind)])
    store.create_topic("t", 3, schema, key="v", config=policy)
    values = [*PLAIN[kind], *PLAIN[kind][:2]]
    for start in (0, 10):
        with store.producer("writer") as producer, producer.transaction():
            producer.send_table("t", pa.table({"n": [*range(start, start + 5)], "v": pa.array(values, kind)}))
    before = store.scan("t").to_table()
    newest = {row["v"]: row["n"] for row in sorted(before.to_pylist(), key=lambda row: row["n"])}
    store.compact("t", force=True)
    after = store.scan("t").to_table()
    assert {row["v"]: row["n"] for row in after.to_pylist()} == newest
    assert after.num_rows == len(newest)
    expected = partition_array(after["v"], 3)
    assert after["_partition"].to_pylist() == expected.tolist()
    assert store.verify(deep=True).ok


# NaN ------------------------------------------------------------------------------------------------------------------

#: The quiet NaN of Java and Python, the one of 0.0 / 0.0 on x86, and some with a payload.
_NANS = {
    pa.float64(): [0x7FF8000000000000, 0xFFF8000000000000, 0x7FF8000000000001, 0xFFFFFFFFFFFFFFFF, 0x7FF0000000000001],
    pa.float32(): [0x7FC00000, 0xFFC00000, 0x7FC00001, 0xFFFFFFFF, 0x7F800001],
}


def _nans(kind: pa.DataType) -> Any:
    width, letter = (8, "Q") if kind == pa.float64() else (4, "I")
    bits = b"".join(struct.pack(f"<{letter}", number) for number in _NANS[kind])
    return pa.Array.from_buffers(kind, len(bits) // width, [None, pa.py_buffer(bits)])


@pytest.mark.parametrize("kind", _NANS, ids=str)
def test_every_nan_is_one_key(clock: ManualClock, kind: pa.DataType) -> None:
    """As ``Double.doubleToLongBits`` of Kafka's serializer makes it one; -0.0 and 0.0 are two, there and here."""
    nans = _nans(kind)
    canonical = b"\x7f\xf8" + bytes(6) if kind == pa.float64() else b"\x7f\xc0\0\0"
    assert set(key_bytes(nans).to_pylist()) == {canonical}
    assert len(set(partition_array(nans, 1_000).tolist())) == 1
    zeros = pa.array([0.0, -0.0, None], kind)
    assert len(set(key_bytes(zeros).to_pylist())) == 3

    store = new_store(clock)
    policy = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0"}
    store.create_topic("t", 5, pa.schema([("v", kind), ("n", pa.int64())]), key="v", config=policy)
    for start in (0, 10):
        with store.producer("w") as producer, producer.transaction():
            producer.send_table("t", pa.table({"v": nans, "n": range(start, start + 5)}))
            producer.send_table("t", pa.table({"v": zeros[:2], "n": [start + 5, start + 6]}))
    store.compact("t", force=True)
    rows = store.scan("t").to_table()
    assert sorted(rows["n"].to_pylist()) == [14, 15, 16]
    assert store.scan("t", filter=pc.is_nan(pc.field("v"))).to_table()["n"].to_pylist() == [14]
    assert store.sql("SELECT n FROM t WHERE v > 1e300").fetchall() == [(14,)], "DuckDB: NaN is the greatest number"
    assert store.verify(deep=True).ok
    assert connection_of(store).view().topics["t"].key == "v"
