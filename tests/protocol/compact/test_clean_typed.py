"""Tombstones of typed topics: rows that ``tombstone.column`` names, cleaned by the rules of Kafka's tombstones."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.helpers.compaction import DAY_MS, T0, batches, new_store, rows
from tests.helpers.connections import connection_of
from tests.helpers.tables import EngineObjects, newest, scanned, table_rows
from txnstore.errors import SchemaMismatchError
from txnstore.segment.schema import HORIZON_FIELD
from txnstore.store import Store
from txnstore.testing import ManualClock

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("name", pa.string()), ("gone", pa.bool_())])
COMPACT = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0", "tombstone.column": "gone"}


@pytest.fixture
def store(clock: ManualClock) -> Store:
    store = new_store(clock, EngineObjects(clock))
    store.create_topic("t", schema=SCHEMA, key="id", config=COMPACT)
    return store


def put(store: Store, *records: tuple[int, str | None], writer: str = "w") -> None:
    """One committed transaction: rows with these keys and names, a tombstone where there is no name."""
    with store.producer(writer) as producer, producer.transaction():
        for key, name in records:
            if name is None:
                producer.send("t", None, key=key)
            else:
                producer.send("t", {"id": key, "name": name})


def visible(store: Store) -> list[tuple[int, int, str | None, bool | None]]:
    return [(row["_offset"], row["id"], row["name"], row["gone"]) for row in rows(store)]


def horizons(store: Store) -> list[int | None]:
    return [batch.delete_horizon for batch in batches(store)]


def test_a_tombstone_stays_for_delete_retention_after_the_first_clean(store: Store, clock: ManualClock) -> None:
    """CMP-08, CMP-18: as one of Kafka's records."""
    put(store, (1, "old"))
    put(store, (1, None))
    clock.advance(5 * DAY_MS)
    stamped = clock()
    report = store.compact()
    assert (report.superseded, report.tombstones) == (1, 0)
    assert visible(store) == [(2, 1, None, True)]
    assert horizons(store) == [stamped + DAY_MS]
    clock.advance(DAY_MS - 1)
    put(store, (2, "x"), (3, None))
    assert store.compact().tombstones == 0
    assert visible(store) == [(2, 1, None, True), (4, 2, "x", None), (5, 3, None, True)]
    assert horizons(store) == [stamped + DAY_MS]
    clock.advance(1)
    report = store.compact(force=True)
    assert (report.tombstones, report.superseded) == (1, 0)
    assert visible(store) == [(4, 2, "x", None), (5, 3, None, True)]
    assert horizons(store) == [stamped + DAY_MS - 1 + DAY_MS]
    clock.advance(DAY_MS)
    store.compact(force=True)
    assert visible(store) == [(4, 2, "x", None)]
    assert horizons(store) == [None]
    assert store.verify(deep=True).ok


def test_only_true_in_the_column_is_a_tombstone(store: Store, clock: ManualClock) -> None:
    """Also of rows with values, by each way to send them; false and null are none, nor is a row of nulls."""
    with store.producer() as producer:
        producer.send("t", {"id": 1, "name": "last", "gone": True})
        producer.send_table("t", [{"id": 2, "gone": True}, {"id": 3, "gone": False}, {"id": 4}])
        producer.send_table("t", pa.table({"id": [5], "gone": [True]}))
    store.compact()
    assert len(visible(store)) == 5
    clock.advance(DAY_MS)
    assert store.compact(force=True).tombstones == 3
    assert visible(store) == [(2, 3, None, False), (3, 4, None, None)]


def test_a_tombstone_of_an_aborted_transaction_deletes_nothing(store: Store) -> None:
    """CMP-18."""
    put(store, (1, "kept"))
    with store.producer("w") as producer:
        producer.begin_transaction()
        producer.send("t", None, key=1)
        producer.flush()
        producer.abort_transaction()
    store.compact()
    assert visible(store) == [(0, 1, "kept", None)]


def test_a_row_after_a_tombstone_brings_the_key_back(store: Store) -> None:
    put(store, (1, None), (1, "again"))
    store.compact()
    assert visible(store) == [(1, 1, "again", None)]


@pytest.mark.parametrize("past_hw", [False, True])
def test_tombstones_above_an_open_transaction_are_neither_stamped_nor_removed(
    store: Store, clock: ManualClock, *, past_hw: bool
) -> None:
    """CMP-02, CMP-03."""
    put(store, (1, "old"))
    with store.producer("open", two_phase_commit=True) as producer:
        producer.begin_transaction()
        producer.send("t", {"id": 9, "name": "open"})
        producer.flush()
        put(store, (1, None), (1, None))
        for _ in range(2):
            store.compact(force=True, past_hw=past_hw)
            clock.advance(DAY_MS)
        offsets = [row["_offset"] for row in rows(store, isolation="read_uncommitted")]
        assert offsets == ([0, 2, 4] if past_hw else [0, 2, 3, 4])
        assert set(horizons(store)) == {None}
        producer.commit_transaction()
    assert store.compact(force=True).superseded == (1 if past_hw else 2)
    assert visible(store) == [(2, 9, "open", None), (4, 1, None, True)]
    assert horizons(store) == [clock() + DAY_MS]


def test_a_merge_leaves_a_cleaned_segment_with_tombstones(store: Store, clock: ManualClock) -> None:
    """It would lose their horizons."""
    put(store, (1, "a"), (2, None))
    store.compact()
    for number in range(3):
        put(store, (10 + number, "x"))
    store.alter_topic("t", config={"min.cleanable.dirty.ratio": "1"})
    before, horizon = visible(store), clock() + DAY_MS
    assert store.compact().merges == 1
    assert visible(store) == before
    assert horizons(store) == [horizon, None]


def test_an_erasure_keeps_the_horizons(store: Store, clock: ManualClock) -> None:
    put(store, (1, "secret"), (2, None))
    store.compact()
    horizon = clock() + DAY_MS
    assert horizons(store) == [horizon]
    clock.advance(5)
    assert store.erase("t", key=1, prove=True).records == 1
    assert visible(store) == [(1, 2, None, True)]
    assert horizons(store) == [horizon]
    clock.advance(DAY_MS)
    assert store.compact(force=True).tombstones == 1


# The setting ----------------------------------------------------------------------------------------------------------


def test_a_topic_gets_tombstones_later(clock: ManualClock) -> None:
    """Segments from before have no such column, and then rows in which it was an ordinary one."""
    store = new_store(clock)
    before = pa.schema([SCHEMA.field("id"), SCHEMA.field("name")])
    store.create_topic("t", schema=before, key="id", config={"cleanup.policy": "compact"})
    with store.producer() as producer:
        producer.send_table("t", [{"id": 1, "name": "a"}, {"id": 2, "name": "b"}])
        with pytest.raises(SchemaMismatchError, match=r"topic 't' has a schema and no tombstone\.column"):
            producer.send("t", None, key=1)
    store.alter_topic("t", schema=SCHEMA)
    with store.producer() as producer:
        producer.send("t", {"id": 2, "gone": True})
    store.alter_topic("t", config=COMPACT)
    with store.producer() as producer:
        producer.send("t", None, key=3)
    store.compact()
    assert visible(store) == [(0, 1, "a", None), (2, 2, None, True), (3, 3, None, True)]
    clock.advance(DAY_MS)
    assert store.compact(force=True).tombstones == 2


def test_without_the_setting_tombstones_are_rows_again(store: Store, clock: ManualClock) -> None:
    put(store, (1, None))
    store.compact()
    store.alter_topic("t", config={"tombstone.column": None})
    clock.advance(2 * DAY_MS)
    put(store, (2, "x"), (2, "y"))
    assert store.compact(force=True).tombstones == 0
    assert visible(store) == [(0, 1, None, True), (3, 2, "y", None)]
    assert horizons(store) == [None]
    store.alter_topic("t", config={"tombstone.column": "gone"})
    put(store, (2, "z"))
    store.compact()
    assert horizons(store) == [clock() + DAY_MS], "it has waited for no clean, so it waits again"


@pytest.mark.parametrize("column", ["hidden", None])
def test_another_column_makes_other_rows_tombstones(store: Store, clock: ManualClock, column: str | None) -> None:
    """A row that is none any more loses its horizon, by which each forced clean would read it again."""
    store.alter_topic("t", schema=pa.schema([*SCHEMA, pa.field("hidden", pa.bool_())]))
    put(store, (1, None))
    store.compact()
    store.alter_topic("t", config={"tombstone.column": column})
    clock.advance(DAY_MS)
    report = store.compact(force=True)
    assert (report.cleans, report.tombstones, report.conflicts) == (1, 0, 0)
    assert visible(store) == [(0, 1, None, True)]
    assert horizons(store) == [None]
    assert store.compact(force=True).partitions == ()


# What readers see -----------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_all_readers_show_tombstones_as_rows_and_never_their_horizons(store: Store, clock: ManualClock) -> None:
    store.alter_topic("t", config={"table.format": "iceberg"})
    put(store, (1, "a"), (2, "b"), (3, "c"))
    put(store, (1, None), (4, None))

    def check(expected: list[tuple[Any, ...]]) -> None:
        assert visible(store) == expected
        query = store.sql("SELECT _offset, id, name, gone FROM t ORDER BY _offset")
        assert query.fetchall() == expected
        hidden = store.sql("SELECT id FROM t WHERE gone IS NOT TRUE ORDER BY id").fetchall()
        assert hidden == [(key,) for _, key, _, gone in expected if not gone]
        assert HORIZON_FIELD.name not in [name for name, *_ in store.sql("DESCRIBE t").fetchall()]
        assert HORIZON_FIELD.name not in store.scan("t").to_table().column_names
        with store.consumer() as consumer:
            consumer.assign([T0])
            polled = [(record.offset, record.key, record.value) for record in consumer.poll(0)]
        assert polled == [
            (offset, key, {"id": key, "name": name, "gone": gone}) for offset, key, name, gone in expected
        ]
        store.tables.sync()
        assert (
            table_rows(store, "t") == scanned(store, "t", newest(store)) == [(0, row[0], row[1:]) for row in expected]
        )
        assert store.tables.check(deep=True).problems == ()
        assert store.verify(deep=True).ok

    kept = [(1, 2, "b", None), (2, 3, "c", None)]
    check([(0, 1, "a", None), *kept, (4, 1, None, True), (5, 4, None, True)])
    store.compact()
    (cleaned,) = batches(store)
    assert HORIZON_FIELD.name in _columns_of(store, cleaned.segment.key)
    check([*kept, (4, 1, None, True), (5, 4, None, True)])
    clock.advance(DAY_MS)
    store.compact(force=True)
    check(kept)


def _columns_of(store: Store, key: str) -> list[str]:
    names: list[str] = pq.read_schema(pa.BufferReader(connection_of(store).objects.get(key))).names
    return names
