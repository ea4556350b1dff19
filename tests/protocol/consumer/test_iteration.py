"""``for record in consumer``: its position, its end, and what may happen in the loop."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.helpers.connections import connection_of
from tests.helpers.interrupts import Interrupter, everywhere, places
from tests.helpers.reading import T0, T1, abort, another_process, append, commit, new_store, read_all, texts
from txnstore.consumer import Consumer
from txnstore.consumer.prefetched import PrefetchedRecords
from txnstore.errors import InvalidConfigError
from txnstore.read.records import Record
from txnstore.store import Store
from txnstore.testing import ManualClock


@pytest.fixture
def store(clock: ManualClock, chains: int) -> Store:
    store = new_store(clock, chains=chains)
    store.create_topic("t", partitions=2)
    return store


def test_loop_ends_after_the_timeout_of_the_consumer(store: Store, clock: ManualClock) -> None:
    append(store, *"abc")
    append(store, *"de", tp=T1)
    begun = clock()
    assert sorted(texts(store.consumer("t", consumer_timeout=12.0))) == [*"abcde"]
    assert clock() == begun + 12_000
    assert list(store.consumer("t", consumer_timeout=0, auto_offset_reset="latest")) == []


def test_loop_waits_for_new_records(store: Store, clock: ManualClock) -> None:
    other, consumer = another_process(store, clock), store.consumer("t")
    pauses = 0

    def sleep(seconds: float) -> None:
        nonlocal pauses
        pauses += 1
        if pauses % 50 == 0:
            append(other, f"after {pauses} pauses")
        clock.sleep(seconds)

    object.__setattr__(connection_of(store).runtime, "sleep", sleep)
    records: Iterator[str] = (texts([record])[0] for record in consumer)
    assert [next(records), next(records)] == ["after 50 pauses", "after 100 pauses"]


def test_position_in_the_loop_is_after_the_record(store: Store) -> None:
    """A commit in the loop commits what the loop has seen; a gap is passed only with the last record before it."""
    append(store, *"abc")
    abort(store, "x")
    commit(store, *"de")
    consumer = store.consumer("t", group="g", consumer_timeout=0)
    for record in consumer:
        consumer.commit()
        assert consumer.committed(T0) == consumer.position(T0)
        assert consumer.position(T0) >= record.offset + 1
        if texts([record]) == ["b"]:
            assert consumer.position(T0) == 2
            break
    other = store.consumer("t", group="h")
    other.seek(T0, 2)
    assert texts(read_all(other)) == [*"cde"]
    assert texts(consumer) == [*"cde"]
    assert consumer.lag() == {T0: 0, T1: 0}


def test_poll_continues_after_the_last_record_of_a_loop(store: Store) -> None:
    append(store, *"abcdef")
    append(store, *"uvw", tp=T1)
    consumer = store.consumer("t", consumer_timeout=0)
    records = [next(consumer) for _ in range(2)]
    records += consumer.poll(max_records=2)
    records += [next(consumer)]
    assert consumer.lag() == {T0: 1, T1: 3}
    table = consumer.poll_table(max_records=1)
    assert table["value"].to_pylist() == [b"f"]
    assert sorted([*texts(records), "f", *texts(consumer)]) == [*"abcdefuvw"]


def test_seek_and_pause_in_the_loop(store: Store) -> None:
    append(store, *"abcd")
    append(store, *"uvw", tp=T1)
    consumer = store.consumer("t", consumer_timeout=0)
    values = ""
    for record in consumer:
        values += texts([record])[0]
        if values == "ab":
            consumer.seek(T0, 0)
        if values.endswith("uvwab"):
            consumer.pause(T0)
    assert values == "abuvwab"
    consumer.resume()
    assert texts(consumer) == ["c", "d"]


def test_loop_ends_when_the_consumer_is_closed(store: Store) -> None:
    append(store, *"abc")
    consumer = store.consumer("t", group="g", enable_auto_commit=True)
    values = []
    for record in consumer:
        values += texts([record])
        if len(values) == 2:
            consumer.close()
    assert values == ["a", "b"]
    assert store.consumer("t", group="g").committed(T0) == 2, "what the loop has seen, not what was fetched"


def test_loop_waits_for_a_pending_offset(store: Store, clock: ManualClock) -> None:
    append(store, *"ab")
    producer = store.producer("job")
    producer.begin_transaction()
    producer.send_offsets({T0: 1}, "g")
    producer.flush()
    begun = clock()
    consumer = another_process(store, clock).consumer("t", group="g", consumer_timeout=12.0)
    assert list(consumer) == []
    assert clock() == begun + 12_000
    producer.commit_transaction()
    assert texts([next(consumer)]) == ["b"]


@pytest.mark.slow
def test_loop_interrupted_anywhere_skips_no_record(store: Store) -> None:
    append(store, *"abc")
    append(store, *"de", tp=T1)

    def attempt(interrupter: Interrupter) -> bool:
        with store.consumer("t", consumer_timeout=0, max_poll_records=2) as consumer:
            records: list[Record] = []
            interrupted = interrupter.run(lambda: records.extend(consumer))
            records.extend(consumer.poll(max_records=1) if len(records) % 2 else [])
            assert sorted(texts([*records, *consumer])) == [*"abcde"]
            return interrupted

    # After PrefetchedRecords.next has moved the position, no signal can come before the record is returned.
    interrupted = places(Consumer._prefetch, Consumer._poll_records, PrefetchedRecords.__init__)
    assert len(list(everywhere(interrupted, attempt))) > 50


@pytest.mark.parametrize("timeout", [-1, "1", None])
def test_timeout_of_the_loop_is_checked(store: Store, timeout: object) -> None:
    with pytest.raises(InvalidConfigError, match="consumer_timeout"):
        store.consumer("t", consumer_timeout=timeout)  # type: ignore[arg-type]


def test_consumer_as_text(store: Store) -> None:
    append(store, "a")
    consumer = store.consumer("t", group="g")
    assert repr(consumer) == "<txnstore.Consumer of t in group 'g', reads t-0, t-1>"
    consumer.poll()
    assert repr(consumer) == "<txnstore.Consumer of t in group 'g', reads t-0 at 1, t-1 at 0>"
    consumer.close()
    assert repr(consumer) == "<txnstore.Consumer in group 'g', closed>"
    assert repr(store.consumer()) == "<txnstore.Consumer, reads no partition>"
    store.create_topic("wide", partitions=20)
    assert repr(store.consumer("wide")).endswith("wide-7 and 12 more>")
