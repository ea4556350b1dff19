"""What the two isolation levels show of open, committed and aborted transactions (LSO, CON): Kafka's own vectors."""

from __future__ import annotations

import random

import pytest

from tests.helpers import keys
from tests.helpers.connections import connection_of
from tests.helpers.reading import (
    T0,
    T1,
    abort,
    another_process,
    append,
    begin,
    commit,
    new_store,
    read_all,
    scanned,
    send,
    texts,
)
from tests.helpers.shell import ONE_CHAIN
from txnstore.consumer import Consumer
from txnstore.core.maintenance import ReplaceSegments
from txnstore.core.model import TopicPartition
from txnstore.producer import Producer
from txnstore.read.plan import IsolationLevel
from txnstore.store import Store
from txnstore.testing import ManualClock

RC: IsolationLevel = "read_committed"
RU: IsolationLevel = "read_uncommitted"
LEVELS: tuple[IsolationLevel, ...] = (RC, RU)


@pytest.fixture
def store(clock: ManualClock, chains: int) -> Store:
    store = new_store(clock, chains=chains)
    store.create_topic("t", partitions=2)
    return store


def _consumed(store: Store, isolation: IsolationLevel) -> list[str]:
    records = read_all(store.consumer(["t"], isolation=isolation))
    return texts(sorted(records, key=lambda record: record.partition))


def _numbers(first: int, count: int) -> list[str]:
    return [str(number) for number in range(first, first + count)]


def test_read_committed_shows_only_committed_records(store: Store) -> None:
    """BUG-16, TST-19, TST-01 ``testBasicTransactions``, CON-02, CON-05, CON-07: two aborted, two committed; markers in
    neither.
    """
    with begin(store, "p") as producer:
        send(producer, "2", tp=T1)
        send(producer, "4", tp=T0)
        producer.abort_transaction()
        producer.begin_transaction()
        send(producer, "1", tp=T0)
        send(producer, "3", tp=T1)
        producer.commit_transaction()
    assert sorted(scanned(store)) == sorted(_consumed(store, RC)) == ["1", "3"]
    assert sorted(scanned(store, RU)) == sorted(_consumed(store, RU)) == ["1", "2", "3", "4"]
    for tp in (T0, T1):
        assert store.offsets(*tp).high_watermark == 4, "data 0, abort 1, data 2, commit 3"
        rows = store.scan("t", partitions=[tp.partition], columns=["_offset"]).to_table()
        assert rows.to_pydict() == {"_offset": [2]}


def test_open_transaction_hides_later_records(store: Store) -> None:
    """LSO-04, LSO-19, CON-14: ``testReadCommittedConsumerShouldNotSeeUndecidedData``."""
    two = begin(store, "p2")
    for tp in (T0, T1):
        send(two, "x1", tp=tp, timestamp=10)
    one = begin(store, "p1")
    for tp in (T0, T1):
        send(one, "a", "b", tp=tp, timestamp=20)
    for tp in (T0, T1):
        send(two, "x2", tp=tp, timestamp=30)
    two.commit_transaction()

    assert _consumed(store, RU) == ["x1", "a", "b", "x2"] * 2
    dirty = store.consumer(["t"], isolation=RU)
    assert [place.offset for place in dirty.offsets_for_times({T0: 20, T1: 20}).values() if place] == [1, 1]

    assert _consumed(store, RC) == scanned(store) == ["x1", "x1"], "x2 is committed, but behind open data"
    consumer = store.consumer(["t"])
    assert list(consumer.offsets_for_times({T0: 20, T1: 30}).values()) == [None, None]
    consumer.seek_to_end()
    assert consumer.poll() == []
    assert [consumer.position(tp) for tp in (T0, T1)] == [1, 1]

    one.commit_transaction()
    assert sorted(texts(read_all(consumer))) == sorted(["a", "b", "x2"] * 2)
    assert _consumed(store, RC) == ["x1", "a", "b", "x2"] * 2


def test_a_waiting_reader_sees_the_abort_with_the_data(store: Store) -> None:
    """BUG-06, BUG-15, TST-01, LSO-08: ``testDelayedFetchIncludesAbortedTransaction``: x1 at 0 and x2 at 3, never y1 or
    y2.
    """
    two = begin(store, "p2", "x1")
    one = begin(store, "p1", "y1", "y2")
    send(two, "x2")
    consumer = store.consumer(["t"])
    assert consumer.poll() == []
    one.abort_transaction()
    assert consumer.poll() == []
    two.commit_transaction()
    assert [(record.offset, record.value) for record in consumer.poll()] == [(0, b"x1"), (3, b"x2")]


def test_the_lso_waits_for_the_earliest(store: Store) -> None:
    """LSO-02: ``testFetchUpToLastStableOffset``."""
    one = begin(store, "p1", *_numbers(0, 5))
    append(store, *_numbers(5, 3))
    two = begin(store, "p2", *_numbers(8, 2))
    send(one, *_numbers(10, 4))
    append(store, *_numbers(14, 2))
    send(one, *_numbers(16, 10))
    assert (store.offsets(*T0).last_stable, scanned(store)) == (0, [])
    one.commit_transaction()
    assert (store.offsets(*T0).last_stable, scanned(store)) == (8, _numbers(0, 8))
    two.abort_transaction()
    assert store.offsets(*T0).last_stable == store.offsets(*T0).high_watermark == 28
    assert scanned(store) == [*_numbers(0, 8), *_numbers(10, 16)]
    assert scanned(store, RU) == _numbers(0, 26)


def test_a_producers_own_open_transaction_is_hidden_too(store: Store) -> None:
    """CON-08."""
    consumer, producer = store.consumer(["t"]), begin(store, "p", "mine")
    assert consumer.poll() == []
    producer.commit_transaction()
    assert texts(consumer.poll()) == ["mine"]


def test_one_producer_may_abort_commit_and_abort_again(store: Store) -> None:
    """TST-19, CON-03, CON-04: a commit ends no aborted range, an abort no committed one; also from the
    middle of one.
    """
    with begin(store, "p", "a1", "a2") as producer:
        other = begin(store, "q", "b1")
        producer.abort_transaction()
        producer.begin_transaction()
        send(producer, "a3")
        other.commit_transaction()
        producer.commit_transaction()
        producer.begin_transaction()
        send(producer, "a4")
        producer.abort_transaction()
    assert scanned(store) == ["b1", "a3"]
    for start in range(store.offsets(*T0).high_watermark):
        everything = store.scan("t", partitions=[0], columns=["_offset", "value"]).to_table().to_pylist()
        part = store.scan("t", partitions=[0], start=start, columns=["_offset", "value"]).to_table().to_pylist()
        assert part == [row for row in everything if row["_offset"] >= start], start


def test_aborts_are_looked_up_by_absolute_offsets(store: Store) -> None:
    """LSO-07, BUG-25: 2 and 4 are aborted by different transactions; a read from offset 2 returns only 3."""
    append(store, "0", "1")
    one, two = begin(store, "p1", "2"), begin(store, "p2")
    append(store, "3")
    send(two, "4")
    one.abort_transaction()
    two.abort_transaction()
    consumer = store.consumer(["t"])
    consumer.seek(T0, 2)
    assert [(record.offset, record.value) for record in read_all(consumer)] == [(3, b"3")]


def test_abort_without_data_hides_no_records(store: Store) -> None:
    """TST-19, CON-16: a transaction that sent offsets only, and aborted data that a compaction has removed."""
    append(store, "a")
    abort(store, "x")
    commit(store, "b")
    aborted = next(batch for batch in connection_of(store).view().partitions[T0].batches if batch.base_offset == 1)
    producer = begin(store, "p")
    producer.send_offsets({T0: 1}, "g")
    producer.abort_transaction()
    connection_of(store).submit(ReplaceSegments(T0, (aborted,), ()))
    assert scanned(store) == scanned(store, RU) == ["a", "b"]
    assert texts(read_all(store.consumer(["t"], isolation=RU))) == ["a", "b"]


@pytest.mark.slow
def test_100_000_aborted_records_are_skipped_in_one_poll(store: Store) -> None:
    """CON-06, CON-12: nothing of them is fetched, and the position ends where the log does."""
    with begin(store, "p") as producer:
        value = b"x" * 10
        for _ in range(10):
            for _ in range(10_000):
                producer.send("t", value, partition=0)
            producer.flush()
        producer.abort_transaction()
    commit(store, "at last")
    consumer = store.consumer(["t"])
    connection_of(store).counts.reset()
    assert texts(consumer.poll()) == ["at last"]
    assert len([key for _, key in connection_of(store).counts.log if key.startswith("topics/")]) == 1
    assert consumer.poll() == []
    assert consumer.position(T0) == consumer.end_offsets()[T0] == 100_003


def test_open_transaction_causes_no_download(store: Store) -> None:
    """CON-12: what is undecided is neither fetched nor kept, however large it is."""
    commit(store, "decided")
    big = begin(store, "big", *("y" * 100_000 for _ in range(10)))
    consumer = store.consumer(["t"])
    connection_of(store).counts.reset()
    assert texts(read_all(consumer)) == ["decided"]
    assert connection_of(store).counts.snapshot().bytes_in < 10_000
    big.commit_transaction()
    assert len(read_all(consumer)) == 10


def test_a_batch_is_recorded_with_its_producer(store: Store) -> None:
    """CTL-05: what decides its visibility is in the chain, not in the data."""
    with begin(store, "p", "a", "b") as producer:
        producer.commit_transaction()
    append(store, "c")
    one, two = (part.batch for part in store.scan("t").plan())
    assert (one.transactional, two.transactional) == (True, False)
    assert (one.base_sequence, one.base_offset, one.limit, one.epoch) == (0, 0, 2, 0)
    assert one.producer_id != two.producer_id
    assert min(one.producer_id, two.producer_id) >= 0


@pytest.mark.slow
def test_random_histories_are_read_as_by_the_model(clock: ManualClock) -> None:
    """CON-02, CON-15: at every step both levels show what the model of the log shows, and consumers never go back."""
    for seed in range(4):
        _History(seed, clock).run(40)


class _History:
    """Producers that send, commit and abort at random, and a model: a list of (offset, value, owner)."""

    def __init__(self, seed: int, clock: ManualClock) -> None:
        self.rng = random.Random(seed)
        self.store = new_store(clock)
        self.store.create_topic("t")
        self.reader = another_process(self.store, clock)
        self.consumers = {level: self.reader.consumer(["t"], isolation=level) for level in LEVELS}
        self.consumed: dict[IsolationLevel, list[tuple[int, str]]] = {RC: [], RU: []}
        self.producers: dict[str, Producer] = {}
        self.log: list[tuple[int, str, tuple[str, int] | None]] = []
        self.outcomes: dict[tuple[str, int], bool] = {}
        self.turns = dict.fromkeys("abc", 0)
        self.end = 0

    def run(self, steps: int) -> None:
        for step in range(steps):
            self._step(step)
            self._check(drained=False)
        for name in list(self.producers):
            self._finish(name, commit=self.rng.random() < 0.5)
        self._check(drained=True)

    def _step(self, step: int) -> None:
        name = self.rng.choice("abc.")
        if name == ".":
            append(self.store, f"plain{step}")
            self._logged([f"plain{step}"], None)
        elif name in self.producers and self.rng.random() < 0.4:
            self._finish(name, commit=self.rng.random() < 0.5)
        else:
            if name not in self.producers:
                self.turns[name] += 1
                self.producers[name] = begin(self.store, name)
            values = [f"{name}{step}.{number}" for number in range(self.rng.randint(1, 3))]
            send(self.producers[name], *values)
            self._logged(values, (name, self.turns[name]))

    def _logged(self, values: list[str], owner: tuple[str, int] | None) -> None:
        for value in values:
            self.log.append((self.end, value, owner))
            self.end += 1

    def _finish(self, name: str, *, commit: bool) -> None:
        producer = self.producers.pop(name)
        (producer.commit_transaction if commit else producer.abort_transaction)()
        self.outcomes[name, self.turns[name]] = commit
        self.end += 1

    def _visible(self, isolation: IsolationLevel) -> list[tuple[int, str]]:
        if isolation == RU:
            return [(offset, value) for offset, value, _ in self.log]
        undecided = [offset for offset, _, owner in self.log if owner is not None and owner not in self.outcomes]
        lso = min(undecided, default=self.end)
        return [
            (offset, value)
            for offset, value, owner in self.log
            if offset < lso and (owner is None or self.outcomes[owner])
        ]

    def _check(self, *, drained: bool) -> None:
        for level, consumer in self.consumers.items():
            expected = self._visible(level)
            table = self.store.scan("t", level, columns=["_offset", "value"]).to_table()
            actual = list(zip(table["_offset"].to_pylist(), map(bytes.decode, table["value"].to_pylist()), strict=True))
            assert actual == expected
            self._consume(level, consumer, drained=drained)
            assert self.consumed[level] == expected[: len(self.consumed[level])]
            if drained:
                assert self.consumed[level] == expected
                assert consumer.position(T0) == self.end

    def _consume(self, level: IsolationLevel, consumer: Consumer, *, drained: bool) -> None:
        if drained:
            self.consumed[level] += [(record.offset, _text(record.value)) for record in read_all(consumer)]
        elif self.rng.random() < 0.5:
            records = consumer.poll(max_records=self.rng.randint(1, 4))
            self.consumed[level] += [(record.offset, _text(record.value)) for record in records]


def _text(value: object) -> str:
    assert isinstance(value, bytes)
    return value.decode()


def test_a_scan_decides_data_and_aborts_from_one_snapshot(store: Store) -> None:
    """LSO-08, JEP-16: a snapshot between two commits shows all of the first transaction and none of the second."""
    with begin(store, "p") as producer:
        for tp in (T0, T1):
            send(producer, "first", tp=tp)
        producer.commit_transaction()
        between = store.snapshot()
        producer.begin_transaction()
        for tp in (T0, T1):
            send(producer, "second", tp=tp)
        during = store.snapshot()
        producer.commit_transaction()
    for snapshot, expected in [
        (between, ["first"] * 2),
        (during, ["first"] * 2),
        (store.snapshot(), ["first", "second"] * 2),
    ]:
        values = store.scan("t", snapshot=snapshot).to_table()["value"].to_pylist()
        assert [value.decode() for value in values] == expected


@ONE_CHAIN
def test_readers_touch_only_the_next_entry(store: Store) -> None:
    """CON-15, OBJ-08: a reader asks for the entry after the last it knows, so it cannot be shown an older state."""
    append(store, "a")
    consumer = store.consumer(["t"])
    consumer.poll()
    connection_of(store).counts.reset()
    consumer.poll()
    assert list(connection_of(store).counts.log) == [
        ("get", keys.entry(0, connection_of(store).chain.state.sequence + 1))
    ]
    assert TopicPartition("t", 0) in consumer.assignment()
