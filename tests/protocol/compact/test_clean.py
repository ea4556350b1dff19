"""Cleaning by key: the newest committed record of each key stays, and nothing that is undecided is touched."""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa
import pytest

from tests.helpers.compaction import T0, abort, batches, begin, new_store, rows
from tests.helpers.connections import connection_of
from txnstore.core.log.model import Partition
from txnstore.core.model import TopicPartition
from txnstore.errors import InvalidConfigError, InvalidRecordError
from txnstore.store import Store
from txnstore.testing import ManualClock

DAY_MS = 24 * 60 * 60 * 1000
COMPACT = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0"}


@pytest.fixture
def store(clock: ManualClock) -> Store:
    store = new_store(clock)
    store.create_topic("t", config=COMPACT)
    return store


def put(store: Store, *records: tuple[bytes | None, bytes | None], writer: str = "w") -> None:
    """One committed transaction with these keys and values."""
    with store.producer(writer) as producer, producer.transaction():
        for key, value in records:
            producer.send("t", value, key=key, partition=0, timestamp=1_000)


def log(store: Store) -> Partition:
    return connection_of(store).view().partitions[T0]


def visible(store: Store, isolation: str = "read_committed") -> list[tuple[int, bytes, bytes | None]]:
    return [(row["_offset"], row["key"], row["value"]) for row in rows(store, isolation=isolation)]  # type: ignore[arg-type]


def latest(records: Iterable[tuple[int, bytes, bytes | None]]) -> dict[bytes, bytes | None]:
    """What a reader of the whole topic keeps of each key."""
    return {key: value for _, key, value in records}


def test_the_newest_record_of_each_key_stays(store: Store) -> None:
    """CMP-01, CMP-17: offsets stay, and the newest value of each key is the same as before."""
    for number in range(4):
        put(store, (b"a", b"a%d" % number), (b"b%d" % number, b"x"))
    before = visible(store)
    report = store.compact()
    assert visible(store) == [(1, b"b0", b"x"), (4, b"b1", b"x"), (7, b"b2", b"x"), (9, b"a", b"a3"), (10, b"b3", b"x")]
    assert latest(visible(store)) == latest(before)
    assert set(visible(store)) <= set(before)
    assert (report.cleans, report.superseded, report.tombstones) == (1, 3, 0)
    (cleaned,) = batches(store)
    assert (cleaned.base_offset, cleaned.limit, cleaned.records, cleaned.delete_horizon) == (1, 11, 5, None)
    assert log(store).clean_until == log(store).last_stable_offset == 12
    assert store.verify(deep=True).ok


def test_newest_is_the_greatest_offset_and_not_the_latest_time(store: Store) -> None:
    """As in Kafka: the time of a record is its producer's business."""
    with store.producer("w") as producer, producer.transaction():
        producer.send("t", b"late", key=b"k", partition=0, timestamp=9_000)
        producer.send("t", b"early", key=b"k", partition=0, timestamp=1_000)
    store.compact()
    assert latest(visible(store)) == {b"k": b"early"}


def test_aborted_records_do_not_supersede_and_go(store: Store) -> None:
    """CMP-05, CMP-06."""
    put(store, (b"k0", b"kept"))
    abort(store, [b"never"])
    report = store.compact()
    assert visible(store) == visible(store, "read_uncommitted") == [(0, b"k0", b"kept")]
    assert (report.superseded, report.aborted) == (0, 1)
    assert log(store).aborted == ()
    assert store.verify(deep=True).ok


def test_records_of_open_transactions_do_not_supersede_and_stay(store: Store) -> None:
    """CMP-02, CMP-03, CMP-05: the checkpoint stops at the LSO."""
    put(store, (b"k0", b"old"), (b"k0", b"kept"))
    with begin(store, [b"open"]) as producer:
        put(store, (b"k0", b"above the LSO"))
        store.compact()
        assert visible(store) == [(1, b"k0", b"kept")]
        assert [value for _, _, value in visible(store, "read_uncommitted")] == [b"kept", b"open", b"above the LSO"]
        assert log(store).clean_until == log(store).last_stable_offset == 3
        producer.abort_transaction()
    store.compact()
    assert [value for _, _, value in visible(store, "read_uncommitted")] == [b"above the LSO"]


def test_a_tombstone_stays_for_delete_retention_after_the_first_clean(store: Store, clock: ManualClock) -> None:
    """CMP-08, CMP-18: the first clean stamps it; later cleans do not push its horizon on."""
    put(store, (b"k", b"old"))
    put(store, (b"k", None))
    clock.advance(5 * DAY_MS)
    stamped = clock()
    store.compact()
    assert visible(store) == [(2, b"k", None)]
    assert [batch.delete_horizon for batch in batches(store)] == [stamped + DAY_MS]
    clock.advance(DAY_MS - 1)
    put(store, (b"other", b"x"), (b"gone", None))
    assert store.compact().tombstones == 0
    assert latest(visible(store)) == {b"k": None, b"other": b"x", b"gone": None}
    assert [batch.delete_horizon for batch in batches(store)] == [stamped + DAY_MS]
    clock.advance(1)
    report = store.compact(force=True)
    assert (report.tombstones, report.superseded) == (1, 0)
    assert latest(visible(store)) == {b"other": b"x", b"gone": None}
    assert [batch.delete_horizon for batch in batches(store)] == [stamped + DAY_MS - 1 + DAY_MS]
    clock.advance(DAY_MS)
    store.compact(force=True)
    assert latest(visible(store)) == {b"other": b"x"}
    assert [batch.delete_horizon for batch in batches(store)] == [None]
    assert store.verify(deep=True).ok


def test_a_tombstone_below_the_log_start_does_not_hold_up_forced_cleans(clock: ManualClock) -> None:
    """Its horizon is that of the batch still, and its row is not read: the clean copies what is left."""
    store = new_store(clock)
    store.create_topic("t", config={**COMPACT, "cleanup.policy": "compact,delete"})
    put(store, (b"k", None), (b"other", b"x"))
    store.compact()
    store.delete_records({T0: 1})
    clock.advance(DAY_MS)
    report = store.compact(force=True)
    assert (report.cleans, report.conflicts, report.tombstones) == (1, 0, 0)
    assert [(batch.base_offset, batch.delete_horizon) for batch in batches(store)] == [(1, None)]
    assert store.compact(force=True).partitions == ()
    assert visible(store) == [(1, b"other", b"x")]
    assert store.verify(deep=True).ok


def test_a_tombstone_of_an_aborted_transaction_deletes_nothing(store: Store) -> None:
    """CMP-18."""
    put(store, (b"k", b"kept"))
    with store.producer("w") as producer:
        producer.begin_transaction()
        producer.send("t", None, key=b"k", partition=0)
        producer.flush()
        producer.abort_transaction()
    store.compact()
    assert visible(store) == [(0, b"k", b"kept")]


def test_a_superseded_tombstone_goes_immediately(store: Store) -> None:
    put(store, (b"k", None), (b"k", b"again"))
    store.compact()
    assert visible(store) == [(1, b"k", b"again")]


def test_a_clean_without_effect_uploads_nothing_and_moves_the_checkpoint(store: Store) -> None:
    put(store, (b"a", b"1"), (b"b", b"2"))
    before = batches(store)
    counts = connection_of(store).counts.snapshot()
    report = store.compact()
    spent = connection_of(store).counts.snapshot() - counts
    assert (spent.put, spent.put_if_absent) == (0, 1 + 1)
    assert (batches(store), log(store).clean_until) == (before, 3)
    assert (report.cleans, report.superseded) == (1, 0)
    assert store.compact().partitions == ()


def put_now(store: Store, clock: ManualClock, *keys: bytes) -> None:
    """One committed transaction with records of now."""
    with store.producer("w") as producer, producer.transaction():
        for key in keys:
            producer.send("t", b"x", key=key, partition=0, timestamp=clock())


def test_only_more_than_the_ratio_is_cleaned_unless_it_is_too_old(clock: ManualClock) -> None:
    """CMP-20."""
    store = new_store(clock)
    store.create_topic("t", config={"cleanup.policy": "compact", "max.compaction.lag.ms": "5000"})
    put_now(store, clock, *(b"%d" % number for number in range(50)))
    assert store.compact().cleans == 1
    put_now(store, clock, b"0")
    assert store.compact().cleans == 0
    assert store.compact(force=True, dry_run=True).cleans == 1
    assert store.compact(force=True).superseded == 1
    assert store.compact(force=True).cleans == 0
    put_now(store, clock, b"0")
    clock.advance(5_000)
    assert store.compact().cleans == 0
    clock.advance(1)
    assert store.compact().superseded == 1


def test_records_younger_than_the_lag_take_no_part(clock: ManualClock) -> None:
    """CMP-02, CMP-20: not removed, and they supersede nothing."""
    store = new_store(clock)
    store.create_topic("t", config={**COMPACT, "min.compaction.lag.ms": "1000"})
    put_now(store, clock, b"a", b"a")
    clock.advance(1_000)
    put_now(store, clock, b"a")
    put_now(store, clock, b"a")
    assert store.compact(force=True).superseded == 1
    assert [offset for offset, *_ in visible(store)] == [1, 3, 5]
    assert log(store).clean_until == 3
    clock.advance(1_000)
    store.compact(force=True)
    assert [offset for offset, *_ in visible(store)] == [5]


def test_sql_and_merges_read_cleaned_segments(store: Store) -> None:
    put(store, (b"k", b"old"), (b"d", None))
    put(store, (b"k", b"new"))
    store.compact()
    assert store.sql("SELECT count(*), max(_offset) FROM t").fetchall() == [(2, 3)]
    for number in range(3):
        put(store, (b"n%d" % number, b"x"))
    store.alter_topic("t", config={"min.cleanable.dirty.ratio": "1"})
    before = visible(store)
    assert store.compact().merges == 1
    assert visible(store) == before
    assert [batch.delete_horizon is None for batch in batches(store)] == [False, True]


TYPED = pa.schema([pa.field("id", pa.int64()), pa.field("name", pa.string())])


def test_typed_topics_are_cleaned_by_their_key_column(store: Store) -> None:
    """Without ``tombstone.column`` there are no tombstones: a row with nulls in all other columns is a value."""
    store.create_topic("typed", schema=TYPED, key="id", config=COMPACT)
    for number in range(3):
        with store.producer("w") as producer, producer.transaction():
            producer.send_table("typed", [{"id": 1, "name": f"a{number}"}, {"id": 10 + number, "name": None}])
    report = store.compact("typed")
    assert report.superseded == 2
    assert [(row["id"], row["name"]) for row in rows(store, "typed")] == [(10, None), (11, None), (1, "a2"), (12, None)]
    assert store.sql("SELECT count(*) FROM typed").fetchall() == [(4,)]
    assert store.verify(deep=True).ok


def test_records_without_a_key_are_refused_in_compacted_topics(store: Store) -> None:
    """CMP-19: Kafka's INVALID_RECORD, for records, rows and tables."""
    store.create_topic("typed", schema=TYPED, key="id", config=COMPACT)
    with store.producer() as producer:
        with pytest.raises(InvalidRecordError, match="topic 't' is compacted by key, so the key of a record") as raised:
            producer.send("t", b"x")
        with pytest.raises(InvalidRecordError, match="column 'id'"):
            producer.send("typed", {"id": None, "name": "x"})
        with pytest.raises(InvalidRecordError, match="column 'id'"):
            producer.send_table("typed", [{"id": 1, "name": "x"}, {"id": None, "name": "x"}])
        producer.send("t", b"x", key=b"")
    assert raised.value.kafka_code == 87
    assert visible(store) == [(0, b"", b"x")]


def test_records_without_a_key_of_before_are_dropped(clock: ManualClock) -> None:
    """CMP-19: the topic was not compacted when they were written."""
    store = new_store(clock)
    store.create_topic("t")
    put(store, (None, b"x"), (b"k", b"y"), (None, None))
    store.alter_topic("t", config=COMPACT)
    assert store.compact().superseded == 2
    assert visible(store) == [(1, b"k", b"y")]


def test_a_topic_without_a_key_column_cannot_be_compacted(store: Store) -> None:
    with pytest.raises(InvalidConfigError, match="needs a key column"):
        store.create_topic("typed", schema=TYPED, config=COMPACT)
    store.create_topic("typed", schema=TYPED)
    with pytest.raises(InvalidConfigError, match="needs a key column"):
        store.alter_topic("typed", config=COMPACT)


@pytest.mark.slow
def test_several_segments_and_a_small_memory(store: Store) -> None:
    """The output is rolled at the target size; too little memory is refused before anything is read."""
    store.create_topic("typed", schema=TYPED, key="id", config=COMPACT)
    count = 300_000
    for name in ("old", "new"):
        with store.producer("w") as producer, producer.transaction():
            producer.send_table("typed", pa.table({"id": range(count), "name": pa.repeat(name, count)}))
    with pytest.raises(InvalidConfigError, match="memory_limit is 1,000 bytes; a clean needs at least"):
        store.compact(memory_limit=1_000)
    assert store.compact(memory_limit=128 << 20, target_bytes=1).superseded == count
    table = store.scan("typed", columns=["id", "name", "_offset"]).to_table()
    assert table.column("name").unique().to_pylist() == ["new"]
    assert table.column("id").to_pylist() == list(range(count))
    assert len(batches(store, TopicPartition("typed", 0))) == 3
    assert store.verify(deep=True).ok


def test_a_lagging_consumer_continues_after_the_cleaned_records(store: Store) -> None:
    """CMP-26: also where aborted and open transactions follow."""
    for number in range(4):
        put(store, (b"a", b"%d" % number), (b"b%d" % number, b"x"))
    abort(store, [b"never"])
    ahead, lagging = store.consumer(), store.consumer()
    for consumer in (ahead, lagging):
        consumer.assign([T0])
    lagging.seek(T0, 6)
    consumed = [record.offset for record in ahead.poll(0, max_records=1)]
    store.compact()
    put(store, (b"c", b"y"))
    while records := ahead.poll(0):
        consumed += [record.offset for record in records]
    fresh = [offset for offset, *_ in visible(store)]
    assert consumed == sorted(set(consumed))
    assert set(fresh) <= set(consumed)
    assert [record.offset for record in lagging.poll(0)] == [offset for offset in fresh if offset >= 6]
    assert store.offsets("t", 0).high_watermark == log(store).high_watermark
