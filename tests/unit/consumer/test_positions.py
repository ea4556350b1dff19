"""Positions of a consumer: where it begins, seeking, resetting, pausing, offsets for times."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest

from tests.helpers.connections import connection_of
from tests.helpers.reading import (
    T0,
    T1,
    abort,
    another_process,
    append,
    begin,
    commit,
    kinds,
    new_store,
    read_all,
    texts,
)
from txnstore.consumer import Consumer, OffsetAndTimestamp
from txnstore.consumer.subscription import ResetPolicy
from txnstore.core.model import TopicPartition
from txnstore.errors import (
    ConsumerClosedError,
    InvalidConfigError,
    OffsetOutOfRangeError,
    UnknownTopicOrPartitionError,
)
from txnstore.read.plan import IsolationLevel
from txnstore.store import Store
from txnstore.testing import ManualClock
from txnstore.times import Time


@pytest.fixture
def store(clock: ManualClock, chains: int) -> Store:
    store = new_store(clock, chains=chains)
    store.create_topic("t", partitions=2)
    return store


# Positions ------------------------------------------------------------------------------------------------------------


def test_positions_advance_over_offsets_without_records(store: Store) -> None:
    """CON-06, CON-09: markers and aborted records are passed, so a reader at the end knows that it is there."""
    commit(store, "a")
    abort(store, "x", "y")
    consumer = store.consumer(["t"])
    assert texts(read_all(consumer)) == ["a"]
    assert consumer.position(T0) == consumer.end_offsets()[T0] == 5
    assert consumer.lag() == {T0: 0, T1: 0}


def test_seek_drops_fetched_records(store: Store) -> None:
    append(store, *"abcd")
    consumer = store.consumer(["t"])
    assert texts(consumer.poll(max_records=3)) == ["a", "b", "c"]
    consumer.seek(T0, 1)
    assert consumer.position(T0) == 1
    assert texts(consumer.poll()) == ["b", "c", "d"]
    consumer.seek_to_beginning(T0)
    assert texts(consumer.poll(max_records=1)) == ["a"]
    consumer.seek_to_end([T0, T1])
    assert consumer.poll() == []
    assert (consumer.position(T0), consumer.position(T1)) == (4, 0)


@pytest.mark.usefixtures("own_objects")
def test_seek_within_the_known_log_makes_no_request(store: Store) -> None:
    append(store, *"abcd")
    consumer = store.consumer(["t"])
    consumer.poll()
    consumer.seek(T0, 2)
    connection_of(store).counts.reset()
    assert texts(consumer.poll()) == ["c", "d"]
    assert [key.partition("/")[0] for _, key in connection_of(store).counts.log] == ["topics"]


def test_an_offset_that_is_new_to_this_process_can_be_sought(store: Store, clock: ManualClock) -> None:
    consumer = store.consumer(["t"])
    consumer.poll()
    append(another_process(store, clock), *"abcd")
    consumer.seek(T0, 3)
    assert texts(consumer.poll()) == ["d"]


@pytest.mark.parametrize("offset", [-1, "2", True, 1.0])
def test_an_offset_is_a_number(store: Store, offset: int) -> None:
    with pytest.raises(InvalidConfigError, match="offset to seek to"):
        store.consumer(["t"]).seek(T0, offset)


def test_position_out_of_range_follows_the_reset_policy(store: Store) -> None:
    """CON-13, LSO-12."""
    append(store, "a", "b")
    policies: list[tuple[ResetPolicy, list[str]]] = [("earliest", ["a", "b"]), ("latest", [])]
    for policy, expected in policies:
        consumer = store.consumer(["t"], auto_offset_reset=policy)
        consumer.seek(T0, 3)
        assert texts(consumer.poll()) == expected
    consumer = store.consumer(auto_offset_reset="none")
    consumer.assign(T0)
    consumer.seek(T0, 2)
    assert consumer.poll() == [], "the end itself is no error"
    consumer.seek(T0, 3)
    with pytest.raises(OffsetOutOfRangeError, match="offset 3 of t-0"):
        consumer.poll()
    consumer.seek(T0, 1)
    assert texts(consumer.poll()) == ["b"]


def test_start_position_follows_reset_policy(store: Store) -> None:
    """CON-13."""
    append(store, "a")
    begin(store, "open", "b")
    cases: list[tuple[ResetPolicy, IsolationLevel, int]] = [
        ("earliest", "read_committed", 0),
        ("latest", "read_committed", 1),
        ("latest", "read_uncommitted", 2),
    ]
    for policy, isolation, position in cases:
        consumer = store.consumer(["t"], isolation=isolation, auto_offset_reset=policy)
        assert consumer.position(T0) == position, (policy, isolation)
    with pytest.raises(OffsetOutOfRangeError, match=r"call seek\(\) first"):
        store.consumer(["t"], group="g", auto_offset_reset="none").poll()
    with pytest.raises(OffsetOutOfRangeError, match="a consumer without a group has no committed offset in t-0"):
        store.consumer(["t"], auto_offset_reset="none").poll()


def test_partitions_can_be_assigned_one_by_one(store: Store) -> None:
    append(store, "a")
    append(store, "b", tp=T1)
    consumer = store.consumer()
    with pytest.raises(InvalidConfigError, match="has no partitions to read"):
        consumer.poll()
    consumer.assign([("t", 1)])
    assert texts(read_all(consumer)) == ["b"]
    consumer.assign([T0, T1])
    assert texts(read_all(consumer)) == ["a"], "a partition that stays keeps its position"
    assert consumer.assignment() == [T0, T1]
    with pytest.raises(InvalidConfigError, match="does not read t-7; it reads t-0, t-1"):
        consumer.position(("t", 7))


def test_topics_that_another_process_has_just_created_are_found(store: Store, clock: ManualClock) -> None:
    other = another_process(store, clock)
    other.create_topic("new", partitions=3)
    assert len(store.consumer("new").assignment()) == 3
    other.create_topic("newer")
    consumer = store.consumer()
    consumer.assign([("newer", 0)])
    assert consumer.position(("newer", 0)) == 0


@pytest.mark.parametrize("name", ["t", "later"])
def test_assigned_partition_is_read_as_soon_as_it_exists(
    store: Store, clock: ManualClock, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    """As in Kafka; its name is logged once. From its beginning, or from where it was sought; others are read."""
    append(store, "a")
    tp, consumer = TopicPartition(name, 3), store.consumer(group="g", auto_offset_reset="latest")
    consumer.assign([T0, tp])
    consumer.seek(T0, 0)
    assert texts(consumer.poll()) == ["a"]
    assert consumer.poll() == []
    missing = "topic 'later'" if name == "later" else "partition t-3: the consumer waits until it is added"
    assert [record.getMessage() for record in caplog.records if f"there is no {missing}" in record.getMessage()] != []
    assert len([record for record in caplog.records if "there is no" in record.getMessage()]) == 1
    assert (consumer.committed(tp), consumer.end_offsets()) == (None, {T0: 1})
    with pytest.raises(UnknownTopicOrPartitionError, match=name):
        consumer.position(tp)
    consumer.commit()
    other = another_process(store, clock)
    if name == "t":
        other.alter_topic("t", partitions=4)
    else:
        other.create_topic("later", partitions=4)
    append(other, "b", "c", tp=tp)
    assert texts(read_all(consumer)) == ["b", "c"]
    consumer.commit()
    assert (consumer.committed(T0), consumer.committed(tp)) == (1, 2)


def test_position_that_was_sought_before_its_partition_exists_is_kept(store: Store, clock: ManualClock) -> None:
    consumer, tp = store.consumer(), TopicPartition("later", 0)
    consumer.assign(tp)
    consumer.seek(tp, 1)
    assert consumer.poll() == []
    other = another_process(store, clock)
    other.create_topic("later")
    append(other, "b", "c", tp=tp)
    assert texts(read_all(consumer)) == ["c"]


def test_subscribe_and_assign_exclude_each_other(store: Store) -> None:
    """Kafka: "Subscription to topics, partitions and pattern are mutually exclusive"."""
    consumer = store.consumer("t")
    with pytest.raises(InvalidConfigError, match=r"subscribe\(\) chose: call unsubscribe\(\) before assign\(\)"):
        consumer.assign(T0)
    assert consumer.assignment() == [T0, T1]
    consumer.unsubscribe()
    consumer.assign(T0)
    with pytest.raises(InvalidConfigError, match=r"assign\(\) chose: call unsubscribe\(\) before subscribe\(\)"):
        consumer.subscribe("t")
    assert consumer.assignment() == [T0]
    consumer.assign([])
    consumer.subscribe("t")
    consumer.subscribe(["t"])


@pytest.mark.parametrize(
    "call",
    [Consumer.pause, Consumer.resume, Consumer.seek_to_beginning, Consumer.seek_to_end, Consumer.rewind_to_committed],
)
def test_call_without_partitions_on_a_closed_consumer_raises(store: Store, call: Callable[[Consumer], object]) -> None:
    """Also of a consumer that reads no partition."""
    consumer = store.consumer(group="g")
    consumer.close()
    with pytest.raises(ConsumerClosedError):
        call(consumer)


def test_new_partitions_are_read_from_their_beginning(store: Store) -> None:
    """Also with ``latest``: what was written before this consumer heard of the partition is new to it."""
    consumer = store.consumer(["t"], auto_offset_reset="latest")
    consumer.poll()
    store.alter_topic("t", partitions=3)
    with store.producer() as producer:
        producer.send("t", b"a", partition=2)
    assert texts(consumer.poll()) == ["a"]


def test_recreated_topic_is_read_from_its_beginning(store: Store) -> None:
    append(store, "a", "b", "c")
    consumer = store.consumer(["t"], auto_offset_reset="latest")
    consumer.poll()
    store.delete_topic("t")
    assert consumer.poll() == []
    store.create_topic("t", partitions=2)
    append(store, *"defgh")
    assert texts(consumer.poll()) == [*"defgh"]


def test_paused_partitions_keep_fetched_records(store: Store) -> None:
    append(store, "a", "b")
    append(store, "c", tp=T1)
    consumer = store.consumer(["t"])
    assert texts(consumer.poll(max_records=1)) == ["a"]
    consumer.pause(T0)
    assert consumer.paused() == {T0}
    assert texts(read_all(consumer)) == ["c"]
    consumer.resume()
    connection_of(store).counts.reset()
    assert texts(consumer.poll()) == ["b"]
    assert kinds(store) == [], "it was here all the time"


def test_position_of_paused_partition_stays(store: Store) -> None:
    """Also before records that no reader sees; a commit does not move it either."""
    consumer = store.consumer(["t"], group="g")
    consumer.pause(T0)
    abort(store, "x")
    append(store, "a", tp=T1)
    assert texts(read_all(consumer)) == ["a"]
    assert consumer.position(T0) == 0
    consumer.commit()
    assert consumer.committed(T0) == 0
    append(store, "b")
    consumer.resume(T0)
    assert texts(read_all(consumer)) == ["b"]


def test_position_of_paused_partition_outside_the_log_stays(store: Store) -> None:
    """A poll does not fetch a paused partition, so it does not apply ``auto_offset_reset`` to it either."""
    consumer = store.consumer(["t"])
    consumer.pause(T0)
    consumer.seek(T0, 1)
    assert read_all(consumer) == []
    append(store, "a", "b")
    assert consumer.position(T0) == 1
    consumer.resume(T0)
    assert texts(read_all(consumer)) == ["b"]


# Time -----------------------------------------------------------------------------------------------------------------


def test_offsets_for_times(store: Store) -> None:
    """LSO-11: only what the isolation shows."""
    with store.producer() as producer:
        for moment in (100, 300, 200, 400):
            producer.send("t", b"x", partition=0, timestamp=moment)
    append(store, "y", timestamp=500)
    begin(store, "open")
    consumer = store.consumer(["t"])

    def find(moment: Time) -> OffsetAndTimestamp | None:
        return consumer.offsets_for_times({T0: moment})[T0]

    assert find(0) == find(100) == OffsetAndTimestamp(0, 100)
    assert find(150) == find(201) == OffsetAndTimestamp(1, 300)
    assert find(301) == OffsetAndTimestamp(3, 400)
    assert find(500) == OffsetAndTimestamp(4, 500)
    assert find(501) is None
    assert consumer.offsets_for_times({T1: 0}) == {T1: None}
    second = datetime.fromtimestamp(0, UTC)
    for part in ("1970-01-01T00:00:00.200", second + timedelta(milliseconds=299, microseconds=1)):
        assert find(part) == OffsetAndTimestamp(1, 300)
    assert find(second + timedelta(milliseconds=300, microseconds=1)) == OffsetAndTimestamp(3, 400)
    store.compact("t")
    assert find(201) == OffsetAndTimestamp(1, 300)
    assert find(500) == OffsetAndTimestamp(4, 500)


def test_reset_by_duration(store: Store, clock: ManualClock) -> None:
    """KIP-1106: the first record of the last time; the end if all are older; new records are not skipped."""
    for age_h, value in ((48, "old"), (20, "yesterday"), (1, "new")):
        append(store, value, timestamp=clock() - age_h * 3_600_000)
    append(store, "old", tp=T1, timestamp=clock() - 48 * 3_600_000)
    read_by_reset = {}
    for reset in ("P3D", "PT24H", "pt20h", "PT1H0.5S", "PT59M", "PT0S"):
        consumer = store.consumer("t", auto_offset_reset=f"by_duration:{reset}")
        read_by_reset[reset] = texts(read_all(consumer))
        consumer.close()
    assert {reset: len(values) for reset, values in read_by_reset.items()} == {
        "P3D": 4, "PT24H": 2, "pt20h": 2, "PT1H0.5S": 1, "PT59M": 0, "PT0S": 0,
    }  # fmt: skip
    consumer = store.consumer("t", auto_offset_reset="by_duration:PT24H")
    consumer.poll()
    consumer.seek(T0, 99)
    assert texts(read_all(consumer)) == ["yesterday", "new"], "a position outside the log is reset, too"
    assert consumer.position(T1) == 1


@pytest.mark.parametrize("text", ["", "24h", "P", "PT", "-PT1H", "PT-1H", "P1Y", "PT1.5H", f"P{10**12}D"])
def test_duration_of_a_reset_is_checked(store: Store, text: str) -> None:
    with pytest.raises(InvalidConfigError, match="auto_offset_reset"):
        store.consumer("t", auto_offset_reset=f"by_duration:{text}")


def test_position_looks_up_one_partition(store: Store) -> None:
    """In Kafka the other partition, of which no offset is known, would raise."""
    consumer = store.consumer("t", group="g", auto_offset_reset="none")
    consumer.commit({T0: 0})
    assert consumer.position(T0) == 0
    with pytest.raises(OffsetOutOfRangeError, match="no committed offset in t-1"):
        consumer.position(T1)


def test_topics_are_subscribed_without_a_group(store: Store) -> None:
    append(store, "a", tp=T1)
    consumer = store.consumer()
    consumer.subscribe("t")
    assert texts(read_all(consumer)) == ["a"]
    with pytest.raises(InvalidConfigError, match="without a group"):
        consumer.commit()


def test_record_with_the_largest_time_is_found_by_sql(store: Store) -> None:
    append(store, "a", timestamp=1_000)
    append(store, "b", timestamp=3_000)
    append(store, "c", timestamp=2_000)
    query = "SELECT _partition, arg_max(_offset, _timestamp) FROM t GROUP BY _partition"
    assert store.sql(query).fetchall() == [(0, 1)]
