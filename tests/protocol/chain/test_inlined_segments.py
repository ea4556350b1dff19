"""Small commits: their records travel in the entry. One PUT writes them, and no request reads them in the tail."""

from __future__ import annotations

import json
import random
import threading
from dataclasses import replace

import pyarrow as pa
import pytest

from tests.harness.executors import InlineExecutor, never
from tests.helpers import keys
from tests.helpers.compaction import (
    DAY_MS,
    abort,
    batches,
    begin,
    commit,
    new_store,
    reopen,
    rows,
    runtime,
    segment_keys,
    values,
)
from tests.helpers.connections import connection_of
from tests.helpers.inlining import counted_store, inlined, payloads, requests
from tests.helpers.keys import FixedRuntime
from tests.helpers.sessions import inlined as inlined_batch
from txnstore.chain.payload import decode_entry, payload_of
from txnstore.core.log.commands import Append
from txnstore.core.model import ProducerIdentity, TopicPartition
from txnstore.core.routing import chain_of_partition, chain_of_transactional_id
from txnstore.errors import ProducerFencedError, UnknownOutcomeError
from txnstore.storage.counting import CountingStore
from txnstore.storage.memory import MemoryStore
from txnstore.store import Store, create_on, open_on
from txnstore.testing import Fault, FaultStore, ManualClock, on

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


@pytest.fixture
def store(clock: ManualClock, objects: MemoryStore) -> Store:
    return counted_store(clock, objects)


class Unreadable:
    active = False

    def __call__(self, n: int, operation: str, key: str) -> Fault | None:
        failing = self.active and operation in {"get", "put_if_absent"} and "/entries/" in key
        return (Fault.LOST_RESPONSE if operation == "put_if_absent" else Fault.ERROR_BEFORE) if failing else None


UNREADABLE = Unreadable()


# What it costs --------------------------------------------------------------------------------------------------------


def test_a_small_transaction_is_one_request(store: Store) -> None:
    """100 records over 24 partitions of 3 topics, and offsets of a group: 1 PUT, 0 GET."""
    topics = (("a", 12), ("b", 8), ("c", 4))
    for name, partitions in topics:
        store.create_topic(name, partitions=partitions)
    places = [(name, number) for name, partitions in topics for number in range(partitions)]
    with store.producer("id") as producer:
        requests(store)
        with producer.transaction() as txn:
            for number in range(100):
                name, partition = places[number % 24]
                txn.send(name, b"value %d" % number, key=b"k", partition=partition)
            txn.send_offsets({T0: 5}, "group")
        assert requests(store) == {"put_if_absent": 1}
    assert sum(len(rows(store, name)) for name in "abc") == 100
    assert requests(store) == {"get": 3}, "each read looks at the head; the records are in memory"
    assert segment_keys(store) == set()


def test_an_append_without_a_transaction_is_one_request(store: Store) -> None:
    with store.producer() as producer:
        producer.send("t", b"first", partition=0)
        producer.flush()
        requests(store)
        producer.send("t", b"second", partition=0)
        producer.send("t", b"third", partition=1)
        producer.flush()
        assert requests(store) == {"put_if_absent": 1}
    assert values(store) == [b"first", b"second", b"third"]


def test_a_consumer_of_the_tail_gets_the_records_with_the_commit(store: Store, clock: ManualClock) -> None:
    reader = open_on(CountingStore(connection_of(store).counts.inner, log=True), runtime=runtime(clock))
    consumer = reader.consumer(["t"])
    producer = store.producer("id")
    consumer.poll(timeout=0)
    with producer.transaction() as txn:
        txn.send("t", b"a", partition=0)
        txn.send("t", b"b", partition=0)
    clock.advance(1_000)
    requests(reader)
    assert [record.value for record in consumer.poll(timeout=0)] == [b"a", b"b"]
    assert requests(reader) == {"get": 3}, "the entry, and two names after it"


def test_a_process_that_opens_a_checkpoint_reads_a_range_of_the_entry(store: Store, clock: ManualClock) -> None:
    with store.producer("id") as producer, producer.transaction() as txn:
        txn.send("t", b"zero", partition=0)
        txn.send("t", b"one", partition=1)
    store.checkpoint()
    other = open_on(CountingStore(connection_of(store).counts.inner, log=True), runtime=runtime(clock))
    requests(other)
    table = other.scan("t", partitions=[1]).to_table()
    assert table["value"].to_pylist() == [b"one"]
    assert requests(other) == {"get": 2}, "the head, and the segment"


# What is inlined ------------------------------------------------------------------------------------------------------


def test_larger_commits_are_uploaded(store: Store, objects: MemoryStore) -> None:
    """``inline.bytes`` is the bound of all segments of a commit together."""
    store.create_topic("small", config={"inline.bytes": 3_000})
    for size in (100, 4_000):
        commit(store, [b"x" * size], topic="small")
    assert inlined(store, TopicPartition("small", 0)) == [True, False]
    with store.producer("id") as producer, producer.transaction() as txn:
        txn.send("t", b"x" * 40_000, partition=0)
        txn.send("t", b"x" * 40_000, partition=1)
    assert (inlined(store, T0), inlined(store, T1)) == ([False], [False])
    assert max(payloads(objects).values()) <= 3_000


def test_a_topic_without_inlining_keeps_the_whole_commit_out_of_the_entry(store: Store, objects: MemoryStore) -> None:
    """Who may read the chain, but not this topic, must not find its records there."""
    store.create_topic("secret", config={"inline.bytes": 0})
    with store.producer("id") as producer, producer.transaction() as txn:
        txn.send("secret", b"s")
        txn.send("t", b"t", partition=0)
    assert payloads(objects) == {}
    store.alter_topic("secret", config={"inline.bytes": 1_000_000})
    commit(store, [b"public"], topic="secret")
    assert inlined(store, TopicPartition("secret", 0)) == [False, True]
    assert values(store, "secret") == [b"s", b"public"]


def test_undecided_records_are_not_inlined(store: Store, objects: MemoryStore) -> None:
    """A reader would fetch records of a transaction that may be aborted; those of its last flush are decided."""
    abort(store, [b"aborted"])
    producer = begin(store, [b"early"])
    assert payloads(objects) == {}
    producer.send("t", b"late", partition=0)
    producer.commit_transaction()
    assert inlined(store) == [False, False, True]
    assert values(store) == [b"early", b"late"]


def test_a_refused_commit_leaves_nothing_in_the_entry_that_it_would_have_shared(
    store: Store, objects: MemoryStore, clock: ManualClock
) -> None:
    """The chain decides waiting commands one by one: the payload has the segments of those that it accepts."""
    zombie, other = store.producer("id"), reopen(store, clock)
    zombie.begin_transaction()
    zombie.send("t", b"zombie", partition=0)
    other.producer("id")
    with pytest.raises(ProducerFencedError):
        zombie.commit_transaction()
    commit(store, [b"good"])
    assert values(store) == [b"good"]
    assert not any(b"zombie" in objects.get(item.key) for item in objects.list(""))


def test_the_encoded_size_counts(store: Store, objects: MemoryStore) -> None:
    """One small record in each partition: the segment has a schema, which is larger."""
    store.create_topic("many", partitions=16, config={"inline.bytes": 1_000})
    with store.producer("id") as producer, producer.transaction() as txn:
        for number in range(16):
            txn.send("many", b"x", partition=number)
    assert payloads(objects) == {}
    assert len(values(store, "many")) == 16


def test_small_batches_of_many_partitions_fit_into_one_entry(clock: ManualClock) -> None:
    """END-14: Records that compress, too few of them in each partition to compress much."""
    objects = CountingStore(MemoryStore(clock=clock), log=True)
    with new_store(clock, objects) as store, store.producer("id") as producer:
        store.create_topic("t", partitions=18)
        objects.reset()
        with producer.transaction() as txn:
            for number in range(180):
                value = f'{{"event":"page_view","user_id":{1000 + number},"path":"/products/item","status":"ok"}}'
                txn.send("t", value.ljust(115).encode(), key=b"user-%d" % number, partition=number % 18)
        assert [kind for kind, _ in objects.log] == ["put_if_absent"]


def test_sends_during_a_flush_do_not_begin_the_uploads_that_it_inlines(clock: ManualClock) -> None:
    """A ``send`` in another thread begins the uploads that wait, while the flush encodes them."""

    class Meanwhile(FixedRuntime):
        sending = False

        def new_id(self) -> str:
            if self.sending:
                self.sending = False
                other = threading.Thread(target=producer.send, args=("t", b"meanwhile"), kwargs={"partition": 1})
                other.start()
                other.join()
            return super().new_id()

    sending_runtime = Meanwhile(clock, clock.sleep, random.Random(1), executor=InlineExecutor, spawn=never)
    store = create_on(MemoryStore(clock=clock), 1, runtime=sending_runtime)
    store.create_topic("t", partitions=2)
    producer = store.producer()
    producer.send("t", b"first", partition=0)
    producer.send("t", b"second", partition=1)
    sending_runtime.sending = True
    producer.flush()
    assert inlined(store, T0) == [True]
    producer.close()
    assert sorted(values(store)) == [b"first", b"meanwhile", b"second"]


@pytest.mark.parametrize("chains", [3])
def test_only_what_the_same_entry_decides_is_inlined(clock: ManualClock, chains: int) -> None:
    """With several chains: a transaction whose partitions are in its coordinator's chain, and plain appends."""
    store = create_on(MemoryStore(clock=clock), chains, runtime=runtime(clock))
    store.create_topic("t", partitions=chains)
    home = next(f"id{n}" for n in range(99) if chain_of_transactional_id(f"id{n}", chains) == 0)
    own = next(n for n in range(chains) if chain_of_partition(TopicPartition("t", n), chains) == 0)
    commit(store, [b"inside"], partition=own, writer=home)
    commit(store, [b"outside"], partition=(own + 1) % chains, writer=home)
    with store.producer() as producer:
        for number in range(chains):
            producer.send("t", b"plain", partition=number)
    flags = [inlined(store, TopicPartition("t", (own + n) % chains)) for n in range(chains)]
    assert flags == [[True, True], [False, True], [True]]
    assert sorted(values(store)) == [b"inside", b"outside", *[b"plain"] * chains]
    assert store.verify(deep=True).violations == ()


# Unknown outcomes -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fault", [Fault.LOST_RESPONSE, Fault.LATE, Fault.ERROR_BEFORE, Fault.EXISTS_412])
def test_a_commit_without_a_clear_answer_is_written_once(store: Store, clock: ManualClock, fault: Fault) -> None:
    inner = connection_of(store).counts.inner
    objects = FaultStore(
        inner, on(fault, "put_if_absent", key_contains="/entries/", times=1, skip=1), sleep=clock.sleep
    )
    unsure = open_on(objects, runtime=runtime(clock))
    producer = unsure.producer("id")
    producer.begin_transaction()
    future = producer.send("t", b"once", partition=0)
    producer.commit_transaction()
    objects.release()
    assert future.result().offset == 0
    commit(store, [b"after"])
    assert values(reopen(store, clock)) == [b"once", b"after"]


def test_a_repeated_commit_finds_its_records_in_the_first_entry(store: Store, clock: ManualClock) -> None:
    """SEQ-03, TV2-02: the attempt has another key; the batch is found by producer, sequence and hash."""
    inner = connection_of(store).counts.inner
    objects = FaultStore(inner, on(Fault.LOST_RESPONSE, "put_if_absent", key_contains="/entries/", times=1, skip=1))
    blind = FaultStore(objects, UNREADABLE)
    unsure = open_on(blind, runtime=runtime(clock))
    producer = unsure.producer("id")
    producer.begin_transaction()
    future = producer.send("t", b"once", partition=0)
    UNREADABLE.active = True
    with pytest.raises(UnknownOutcomeError):
        producer.commit_transaction()
    UNREADABLE.active = False
    commit(store, [b"between"])
    producer.commit_transaction()
    assert future.result().offset == 0
    assert values(reopen(store, clock)) == [b"once", b"between"]


def test_a_writer_recognises_its_entry_after_its_payload_was_deleted(
    store: Store, clock: ManualClock, objects: MemoryStore
) -> None:
    """It slept with an unknown outcome; meanwhile a compaction replaced its records, and a vacuum deleted them."""
    UNREADABLE.active = False
    sleeper = open_on(FaultStore(objects, UNREADABLE), runtime=runtime(clock))
    producer = sleeper.producer("id")
    producer.begin_transaction()
    producer.send("t", b"slept", partition=0)
    UNREADABLE.active = True
    with pytest.raises(UnknownOutcomeError):
        producer.commit_transaction()
    commit(store, [b"second"])
    store.compact()
    clock.advance(DAY_MS)
    store.vacuum()
    assert payloads(objects) == {}
    UNREADABLE.active = False
    producer.commit_transaction()
    with producer.transaction() as txn:
        txn.send("t", b"third", partition=0)
    assert values(store) == [b"slept", b"second", b"third"]
    assert store.verify(deep=True).violations == ()


def test_an_append_whose_payload_was_deleted_while_its_answer_was_awaited_is_written_once(
    store: Store, clock: ManualClock, objects: MemoryStore
) -> None:
    """Nothing else would recognise it: it has no producer."""
    UNREADABLE.active = False

    def sleep(_: float) -> None:
        if UNREADABLE.active:
            UNREADABLE.active = False
            commit(store, [b"second"])
            store.compact()
            clock.advance(DAY_MS)
            store.vacuum()
            assert payloads(objects) == {}

    sleeper = open_on(FaultStore(objects, UNREADABLE), runtime=replace(runtime(clock), sleep=sleep))
    segment = inlined_batch(T0, -1, "slept")
    UNREADABLE.active = True
    connection_of(sleeper).submit(Append(ProducerIdentity(), (segment,)))
    assert not UNREADABLE.active
    assert values(store) == [b"slept", b"second"]


# Formats and readers --------------------------------------------------------------------------------------------------


def test_an_entry_without_a_payload_is_plain_json(store: Store, objects: MemoryStore) -> None:
    for item in objects.list(keys.entries(0)):
        assert json.loads(objects.get(item.key))["payload"] is None


def test_the_line_describes_the_payload(store: Store, objects: MemoryStore) -> None:
    with store.producer("id") as producer, producer.transaction() as txn:
        txn.send("t", b"zero", partition=0)
        txn.send("t", b"one", partition=1)
    (entry,) = payloads(objects)
    data = objects.get(entry)
    described = decode_entry(entry, data).payload
    first, second = (batches(store, tp)[0] for tp in (T0, T1))
    assert first.segment == second.segment
    assert described is not None
    assert described.size == first.segment.size == len(payload_of(data))
    assert (first.segment.object, first.segment.first_byte) == (entry, 0)
    assert [(batch.first_row, batch.records) for batch in (first, second)] == [(0, 1), (1, 1)]
    assert pa.ipc.open_stream(payload_of(data)).read_all()["value"].to_pylist() == [b"zero", b"one"]


@pytest.mark.parametrize("config", [{}, {"segment.format": "arrow"}])
def test_sql_reads_inlined_segments(store: Store, clock: ManualClock, config: dict[str, str]) -> None:
    store.alter_topic("t", config=config)
    expected: list[tuple[int, int, bytes]] = []
    for number in range(3):
        with store.producer("id") as producer, producer.transaction() as txn:
            for partition in range(2):
                txn.send("t", b"%d" % number, partition=partition)
                expected.append((partition, number, b"%d" % number))
        store.create_topic(f"u{number}")
    query = "select _partition, _offset // 2, value from t order by all"
    assert store.sql(query).fetchall() == sorted(expected)
    assert reopen(store, clock).sql(query).fetchall() == sorted(expected)
    store.compact()
    assert store.sql(query).fetchall() == sorted(expected)
