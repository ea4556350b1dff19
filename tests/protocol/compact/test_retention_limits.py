"""The retention of topics: by age, by size, and what it leaves alone."""

from __future__ import annotations

import random

import pytest

from tests.helpers.compaction import (
    DAY_MS,
    HOUR_MS,
    T0,
    abort,
    batches,
    commit,
    new_store,
    reopen,
    rows,
    values,
)
from tests.helpers.retention import HookStore, send
from txnstore.core.model import TopicPartition
from txnstore.store import Store
from txnstore.testing import ManualClock


@pytest.fixture
def objects(clock: ManualClock) -> HookStore:
    return HookStore(clock=clock)


@pytest.fixture
def store(clock: ManualClock, objects: HookStore, chains: int) -> Store:
    store = new_store(clock, objects, chains=chains)
    store.create_topic("t", partitions=2)
    return store


def test_nothing_is_deleted_without_a_setting(store: Store, clock: ManualClock) -> None:
    """RET-03: Kafka would delete after 7 days; here a topic without a retention keeps its records."""
    send(store, clock, b"a")
    clock.advance(400 * DAY_MS)
    assert store.retain().partitions == ()
    assert store.compact().deleted_records == 0
    assert values(store) == [b"a"]


def test_old_records_are_deleted_by_a_compaction(store: Store, clock: ManualClock) -> None:
    """RET-03, RET-04: before it merges; the report has what went."""
    store.alter_topic("t", config={"retention.ms": DAY_MS})
    send(store, clock, b"a", b"b")
    clock.advance(DAY_MS)
    send(store, clock, b"c")
    send(store, clock, b"d")
    assert store.retain().records == 0
    clock.advance(1)
    planned = store.compact(dry_run=True)
    assert (planned.deleted_records, planned.segments_before, planned.segments_after) == (2, 2, 1)
    assert values(store) == [b"a", b"b", b"c", b"d"]
    report = store.compact()
    (retained,) = report.retained.partitions
    assert (retained.tp, retained.log_start, retained.new_log_start, retained.batches) == (T0, 0, 2, 1)
    assert (report.deleted_records, report.merges) == (2, 1)
    assert report.deleted_bytes == planned.deleted_bytes > 0
    assert values(store) == [b"c", b"d"]


def test_a_partition_is_kept_at_its_size(store: Store, clock: ManualClock) -> None:
    """RET-03: the oldest batches go."""
    for number in range(6):
        send(store, clock, b"%d" % number)
    size = batches(store)[0].segment.size
    store.alter_topic("t", config={"retention.bytes": 3 * size})
    assert [item.records for item in store.retain(dry_run=True).partitions] == [3]
    report = store.retain("t")
    assert (report.records, report.bytes) == (3, 3 * size)
    assert values(store) == [b"3", b"4", b"5"]
    assert store.retain().partitions == ()


@pytest.mark.parametrize("limit", [{"retention.bytes": 0}, {"retention.ms": 0}])
def test_a_limit_of_zero_keeps_nothing(store: Store, clock: ManualClock, limit: dict[str, int]) -> None:
    """RET-03: 0 is a limit, -1 is none."""
    store.alter_topic("t", config=limit)
    send(store, clock, b"a")
    clock.advance(1)
    assert store.retain(dry_run=True).records == store.retain().records == 1
    assert values(store) == []


def test_retention_stops_at_an_open_transaction(store: Store, clock: ManualClock) -> None:
    """RET-01: whatever the age of its records."""
    store.alter_topic("t", config={"retention.ms": 1, "retention.bytes": 0})
    send(store, clock, b"a")
    producer = store.producer("open", 900.0)
    producer.begin_transaction()
    producer.send("t", b"open", partition=0, timestamp=clock())
    producer.flush()
    send(store, clock, b"b")
    clock.advance(60_000)
    assert store.retain().records == 1
    assert store.offsets("t", 0).log_start == 1
    producer.commit_transaction()
    assert values(store) == [b"open", b"b"]
    assert store.retain().records == 2
    assert (values(store), store.offsets("t", 0).log_start) == ([], store.offsets("t", 0).high_watermark)


def test_retention_ends_an_abandoned_transaction(store: Store, clock: ManualClock) -> None:
    store.alter_topic("t", config={"retention.ms": 1})
    producer = store.producer("open", 10.0)
    producer.begin_transaction()
    producer.send("t", b"open", partition=0, timestamp=clock())
    producer.flush()
    send(store, clock, b"b")
    clock.advance(60_000)
    assert store.retain().records == 2
    assert store.offsets("t", 0).log_start == store.offsets("t", 0).high_watermark


def test_aborted_records_count_and_go(store: Store, clock: ManualClock) -> None:
    """RET-12: a head of aborted records and markers does not stop a retention."""
    abort(store, [b"x", b"y"])
    commit(store, [b"a"])
    store.alter_topic("t", config={"retention.ms": DAY_MS})
    clock.advance(2 * DAY_MS)
    assert store.retain().records == 3
    assert store.offsets("t", 0).log_start == store.offsets("t", 0).high_watermark == 5


def test_a_topic_that_only_compacts_has_no_retention(store: Store, clock: ManualClock) -> None:
    """CMP-25: with ``compact,delete`` it has."""
    send(store, clock, b"a")
    store.alter_topic("t", config={"cleanup.policy": "compact", "retention.ms": 1})
    clock.advance(DAY_MS)
    assert store.retain().partitions == store.retain(dry_run=True).partitions == ()
    assert store.retain("t", dry_run=True).partitions == ()
    store.alter_topic("t", config={"cleanup.policy": "compact,delete"})
    assert store.retain(dry_run=True).records == store.retain().records == 1


@pytest.mark.parametrize("dry_run", [True, False])
def test_the_age_follows_the_timestamp_type_at_the_append(store: Store, clock: ManualClock, *, dry_run: bool) -> None:
    """RET-03: by the time of the append where the topic had that then; altering it does not reach back."""
    store.alter_topic("t", config={"retention.ms": DAY_MS})
    with store.producer() as producer:
        producer.send("t", b"a", partition=0, timestamp=clock() - 400 * DAY_MS)
    assert store.retain(dry_run=True).records == 1
    store.alter_topic("t", config={"message.timestamp.type": "LogAppendTime"})
    assert store.retain(dry_run=True).records == store.retain().records == 1
    with store.producer() as producer:
        producer.send("t", b"b", partition=0, timestamp=clock() - 400 * DAY_MS)
    store.alter_topic("t", config={"message.timestamp.type": "CreateTime"})
    assert store.retain(dry_run=dry_run).partitions == ()
    clock.advance(DAY_MS + 1)
    assert store.retain(dry_run=dry_run).records == 1


def test_the_clock_of_the_storage_tells_how_old_records_are(store: Store, clock: ManualClock, chains: int) -> None:
    """RET-03: neither the clock of the process that retains nor that of a writer deletes young records."""
    store.alter_topic("t", config={"retention.ms": DAY_MS})
    send(store, clock, b"a")
    fast = ManualClock(clock() + 400 * DAY_MS)
    other = reopen(store, fast)
    with other.producer() as producer:
        producer.send("t", b"b", partition=0, timestamp=clock())
    assert other.retain().partitions == store.retain().partitions == ()


@pytest.mark.slow
@pytest.mark.usefixtures("unmerged")
@pytest.mark.parametrize("policy", ["delete", "compact,delete"])
def test_compactions_join_no_records_of_very_different_ages(store: Store, clock: ManualClock, policy: str) -> None:
    """RET-03, CMP-25: records outlive their retention by an eighth of it, however often they are merged or cleaned."""
    config = {"cleanup.policy": policy, "retention.ms": 8 * HOUR_MS, "min.cleanable.dirty.ratio": 0}
    store.create_topic("u", config=config)
    began = clock()
    for hour in range(24):
        for key in (b"%d" % hour, b"superseded"):
            with store.producer() as producer:
                producer.send("u", b"%d" % hour, key=key, partition=0, timestamp=clock())
            clock.advance(HOUR_MS // 2)
        store.compact("u")
        oldest = min(int(row["value"]) for row in rows(store, "u"))
        assert began + oldest * HOUR_MS >= clock() - 10 * HOUR_MS
        assert oldest <= max(0, hour - 7), "nothing is deleted early"
    assert len(batches(store, TopicPartition("u", 0))) <= 11, "those of the same age are joined"
    assert store.verify(deep=True).ok


def test_times_of_records_that_do_not_ascend_do_not_prevent_merges(store: Store, clock: ManualClock) -> None:
    """Events of a year, loaded in any order into a topic that keeps them for two."""
    store.alter_topic("t", config={"retention.ms": 730 * DAY_MS})
    order = random.Random(5)
    with store.producer() as producer:
        for number in range(30):
            for at in (1, order.randrange(365)):
                producer.send("t", b"%d" % number, partition=0, timestamp=clock() - at * DAY_MS)
            producer.flush()
    store.compact()
    assert len(batches(store)) <= 2


def test_a_topic_that_is_deleted_meanwhile_is_left_out(store: Store, clock: ManualClock, objects: HookStore) -> None:
    """RET-11: the other topics of the round are retained."""
    store.create_topic("u", config={"retention.ms": 1})
    store.alter_topic("t", config={"retention.ms": 1})
    send(store, clock, b"a")
    commit(store, [b"b"], topic="u")
    clock.advance(DAY_MS)
    other = reopen(store, clock)
    objects.before_now = lambda: other.delete_topic("u")
    assert [item.tp for item in store.retain().partitions] == [T0]
