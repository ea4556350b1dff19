"""Consumers: records, polling and waiting, failures."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.helpers.connections import connection_of
from tests.helpers.reading import (
    T0,
    T1,
    another_process,
    append,
    commit,
    kinds,
    new_store,
    read_all,
    texts,
)
from tests.helpers.shell import ONE_CHAIN
from txnstore.chain.news import News
from txnstore.consumer import Consumer
from txnstore.consumer.fetcher import Poller
from txnstore.core.view import View
from txnstore.errors import (
    ConsumerClosedError,
    CorruptionError,
    StorageError,
)
from txnstore.read.records import Record
from txnstore.storage.memory import MemoryStore
from txnstore.store import Store, create
from txnstore.testing import Fault, FaultStore, ManualClock


@pytest.fixture
def store(clock: ManualClock, chains: int) -> Store:
    store = new_store(clock, chains=chains)
    store.create_topic("t", partitions=2)
    return store


# Records --------------------------------------------------------------------------------------------------------------


def test_a_record_has_all_its_parts(store: Store) -> None:
    with store.producer() as producer:
        producer.send("t", b"v", key=b"k", partition=1, headers=[("h", b"1"), ("h", b"2")], timestamp=77)
        producer.send("t", None, key=None, partition=1, timestamp=78)
    assert store.consumer(["t"]).poll() == [
        Record("t", 1, 0, 77, b"k", b"v", (("h", b"1"), ("h", b"2"))),
        Record("t", 1, 1, 78, None, None, ()),
    ]


def test_a_typed_record_is_a_document(clock: ManualClock) -> None:
    store = new_store(clock)
    store.create_topic("n", schema=pa.schema([("id", pa.string()), ("x", pa.int64())]), key="id")
    store.create_topic("m", schema=pa.schema([("x", pa.int64())]))
    with store.producer() as producer:
        producer.send_table("n", [{"id": "a", "x": 1}])
        producer.send_table("m", [{"x": 2}])
    (typed,), (keyless,) = store.consumer(["n"]).poll(), store.consumer(["m"]).poll()
    assert (typed.key, typed.value, typed.headers) == ("a", {"id": "a", "x": 1}, ())
    assert (keyless.key, keyless.value, keyless.timestamp) == (None, {"x": 2}, clock())


def test_polls_are_cut_and_nothing_is_downloaded_twice(store: Store) -> None:
    """CON-10, CON-18: a transaction of three comes in three polls of one."""
    commit(store, "a", "b", "c")
    consumer = store.consumer(["t"])
    connection_of(store).counts.reset()
    assert [texts(consumer.poll(max_records=1)) for _ in range(4)] == [["a"], ["b"], ["c"], []]
    assert len([key for _, key in connection_of(store).counts.log if key.startswith("topics/")]) == 1


def test_max_poll_records_is_the_default(store: Store) -> None:
    append(store, *"abcde")
    consumer = store.consumer(["t"], max_poll_records=3)
    assert texts(consumer.poll()) == ["a", "b", "c"]
    assert texts(consumer.poll()) == ["d", "e"]


def test_partitions_take_turns(store: Store) -> None:
    for number in range(3):
        append(store, f"p{number}", f"q{number}")
        append(store, f"r{number}", tp=T1)
    assert texts(read_all(store.consumer(["t"]), max_records=1)) == [
        "p0", "q0", "r0", "p1", "q1", "r1", "p2", "q2", "r2",
    ]  # fmt: skip


def test_tables_have_the_columns_of_a_scan(store: Store) -> None:
    consumer = store.consumer(["t"])
    assert consumer.poll_table().equals(store.scan("t").to_table()), "empty, with the schema"
    append(store, "a", "b", "c")
    append(store, "d", tp=T1)
    assert consumer.poll_table(max_records=2)["value"].to_pylist() == [b"a", b"b"]
    assert consumer.poll_table().equals(store.scan("t").to_table().slice(2))


def test_topics_of_different_columns_come_in_different_tables(clock: ManualClock) -> None:
    store = new_store(clock)
    store.create_topic("n", schema=pa.schema([("x", pa.int64())]))
    store.create_topic("m", schema=pa.schema([("y", pa.string())]))
    with store.producer() as producer:
        producer.send_table("n", [{"x": 1}])
        producer.send_table("m", [{"y": "a"}])
    consumer = store.consumer(["n", "m"])
    assert [consumer.poll_table().column_names[-1] for _ in range(2)] == ["x", "y"]
    assert consumer.poll_table().num_rows == 0


def test_a_topic_may_get_a_column_while_it_is_read(clock: ManualClock) -> None:
    store = new_store(clock)
    store.create_topic("n", schema=pa.schema([("x", pa.int64())]))
    with store.producer() as producer:
        producer.send_table("n", [{"x": 1}, {"x": 2}])
    consumer = store.consumer(["n"])
    assert [record.value for record in consumer.poll(max_records=1)] == [{"x": 1}]
    store.alter_topic("n", schema=pa.schema([("x", pa.int64()), ("y", pa.string())]))
    assert [record.value for record in consumer.poll()] == [{"x": 2, "y": None}]


# Requests and waiting -------------------------------------------------------------------------------------------------


@ONE_CHAIN
def test_an_idle_poll_is_one_get(store: Store) -> None:
    append(store, "a")
    consumer = store.consumer(["t"])
    consumer.poll()
    consumer.poll()
    for _ in range(3):
        connection_of(store).counts.reset()
        assert consumer.poll() == []
        assert kinds(store) == ["get"]


@pytest.mark.usefixtures("own_objects")
def test_a_poll_of_known_data_does_not_look_at_the_chain(store: Store) -> None:
    append(store, "a", "b")
    append(store, "c")
    consumer = store.consumer(["t"])
    consumer.poll(max_records=1)
    connection_of(store).counts.reset()
    assert texts(consumer.poll()) == ["b", "c"]
    append(store, "d")  # this process commits it, so its chain knows
    connection_of(store).counts.reset()
    assert texts(consumer.poll()) == ["d"]
    assert [key.partition("/")[0] for _, key in connection_of(store).counts.log] == ["topics"]


def test_waiting_ends_when_something_comes(store: Store, clock: ManualClock) -> None:
    other = another_process(store, clock)
    consumer = store.consumer(["t"])
    consumer.poll()
    pauses: list[float] = []

    def sleep(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 3:
            append(other, "late")
        clock.sleep(seconds)

    object.__setattr__(connection_of(store).runtime, "sleep", sleep)
    began = clock()
    assert texts(consumer.poll(timeout=60.0)) == ["late"]
    assert pauses == [0.01, 0.02, 0.04]
    assert clock() - began == 70


def test_news_do_not_put_off_the_next_look(store: Store, clock: ManualClock, monkeypatch: pytest.MonkeyPatch) -> None:
    """Entries that this process knows interrupt a pause; those of others, or other chains, are read as late as ever."""

    def look(poller: Poller) -> View:
        clock.advance(1)  # There is news at each pause, and the time passes while the consumer looks at it.
        return looked_at(poller)

    looked_at = Poller._look
    other = another_process(store, clock)
    consumer = store.consumer(["t"])
    assert consumer.poll(timeout=0.0) == []
    append(other, "late")
    monkeypatch.setattr(News, "wait", lambda *_: True)
    monkeypatch.setattr(Poller, "_look", look)
    assert texts(consumer.poll(timeout=10.0)) == ["late"]


@ONE_CHAIN
def test_waiting_backs_off_and_keeps_to_the_timeout(store: Store, clock: ManualClock) -> None:
    consumer = store.consumer(["t"], poll_interval=0.1)
    consumer.poll()
    began = clock()
    connection_of(store).counts.reset()
    assert consumer.poll(timeout=1.0) == []
    assert clock() - began == 1_000
    assert kinds(store) == ["get"] * len(kinds(store))
    assert len(kinds(store)) == 14, "one, and one after each pause: 10, 20, 40, 80, eight times 100, 50 ms"


def test_the_timeout_bounds_the_wait_and_not_the_fetch(clock: ManualClock) -> None:
    """What is there comes, however long its download takes."""

    class Slow(MemoryStore):
        def get(self, key: str, start: int | None = None, end: int | None = None) -> bytes:
            clock.advance(5_000)
            return super().get(key, start, end)

    store = new_store(clock, Slow(clock=clock))
    store.create_topic("t")
    append(store, "a")
    begun = clock()
    assert texts(store.consumer(["t"]).poll(timeout=1.0)) == ["a"]
    assert clock() > begun + 1_000


def test_a_clock_that_stands_still_does_not_hang_a_poll(store: Store) -> None:
    consumer = store.consumer(["t"])
    object.__setattr__(connection_of(store).runtime, "sleep", lambda _: None)
    assert consumer.poll(timeout=2.0) == []


# Failures -------------------------------------------------------------------------------------------------------------


def test_closed_consumer_raises(store: Store) -> None:
    with store.consumer(["t"], group="g") as consumer:
        consumer.poll()
    assert "closed" in repr(consumer)
    assert consumer.waiting_for == ()
    assert list(consumer) == []
    consumer.close()


#: The arguments of the methods of a consumer that need some.
CONSUMER_CALLS: dict[str, tuple[Any, ...]] = {
    "assign": (T0,), "committed": (T0,), "offsets_for_times": ({T0: 0},), "position": (T0,), "seek": (T0, 0),
    "subscribe": ("t",),
}  # fmt: skip


def _methods(kind: type) -> set[str]:
    return {name for name in dir(kind) if not name.startswith("_") and callable(getattr(kind, name))}


@pytest.mark.parametrize("name", sorted(_methods(Consumer) - {"close"}))
def test_closed_consumer_refuses_each_call(store: Store, name: str) -> None:
    """As Kafka's ``acquireAndEnsureOpen``, which begins each method of ``ClassicKafkaConsumer``."""
    consumer = store.consumer(["t"], group="g")
    consumer.poll()
    consumer.close()
    with pytest.raises(ConsumerClosedError):
        getattr(consumer, name)(*CONSUMER_CALLS.get(name, ()))


@pytest.mark.usefixtures("own_objects")
def test_a_damaged_segment_stops_the_poll_before_it_and_skips_nothing(store: Store) -> None:
    append(store, "a")
    append(store, "b")
    append(store, "c")
    key = store.scan("t").plan()[1].batch.segment.key
    good = connection_of(store).objects.get(key)
    connection_of(store).objects.put(key, good[:-1])
    consumer = store.consumer(["t"])
    assert texts(consumer.poll()) == ["a"]
    for _ in range(2):
        with pytest.raises(CorruptionError, match=key):
            consumer.poll()
        assert consumer.position(T0) == 1
    connection_of(store).objects.put(key, good)
    assert texts(read_all(consumer)) == ["b", "c"]


def test_storage_outage_loses_no_record(clock: ManualClock) -> None:
    faults: dict[int, Fault] = {}
    objects = FaultStore(MemoryStore(clock=clock), lambda n, operation, key: faults.pop(0, None))
    store = new_store(clock, objects)
    store.create_topic("t")
    append(store, *"ab")
    consumer = store.consumer(["t"])
    for _ in range(2):  # at the look at the chain, then at the segment
        faults[0] = Fault.ERROR_BEFORE
        with pytest.raises(StorageError):
            consumer.poll()
    assert texts(read_all(consumer)) == ["a", "b"]


def test_records_that_cannot_be_handed_out_are_not_skipped(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    append(store, "a", "b")
    consumer = store.consumer(["t"])
    with monkeypatch.context() as patch:
        patch.setattr("txnstore.consumer.fetcher.PolledRows.records", _interrupted)
        with pytest.raises(KeyboardInterrupt):
            consumer.poll(max_records=1)
    assert texts(consumer.poll(max_records=1)) == ["a"]
    with monkeypatch.context() as patch:
        patch.setattr("txnstore.consumer.fetcher.PolledRows.records", _interrupted)
        with pytest.raises(KeyboardInterrupt):
            consumer.poll()
    assert texts(consumer.poll()) == ["b"]


def _interrupted(*_: object) -> None:
    raise KeyboardInterrupt


def test_a_compaction_does_not_disturb_a_reader(store: Store, clock: ManualClock) -> None:
    """Segments that were planned, replaced and removed: the head names the ones that replaced them."""
    for value in "abcdef":
        commit(store, value)
    consumer = another_process(store, clock).consumer(["t"])
    assert texts(consumer.poll(max_records=1)) == ["a"]
    _forget_prefetched(consumer)
    store.compact("t")
    old = {part.batch.segment.key for part in store.scan("t").plan()}
    connection_of(store).objects.delete(
        [item.key for item in connection_of(store).objects.list("topics/") if item.key not in old]
    )
    assert texts(read_all(consumer)) == [*"bcdef"]


def test_a_forked_child_reads_on_by_itself(tmp_path: Path) -> None:
    """What the parent has on its way arrives in the parent only; the child asks again, from the same position."""
    with create(tmp_path / "store") as store:
        store.create_topic("t")
        for value in "abcd":
            append(store, value)
        consumer = store.consumer(["t"])
        assert texts(consumer.poll(max_records=1)) == ["a"]
        child = os.fork()
        if child == 0:
            try:
                os._exit(0 if texts(read_all(consumer)) == ["b", "c", "d"] else 1)
            finally:
                os._exit(2)
        assert os.waitpid(child, 0)[1] == 0
        assert texts(read_all(consumer)) == ["b", "c", "d"]


def _forget_prefetched(consumer: Consumer) -> None:
    consumer.seek(T0, consumer.position(T0))
