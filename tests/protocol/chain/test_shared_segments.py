"""Shared segments: the small batches of a flush are row ranges of one. See docs/internals/design/segments.md."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.helpers.compaction import reopen, rows, runtime, values
from tests.helpers.inlining import counted_store, requests
from tests.helpers.sharing import PARTITIONS, rows_of, segments, send, stored
from txnstore.chain.keys import partition_in
from txnstore.core.model import TopicPartition
from txnstore.core.routing import chain_of_partition
from txnstore.errors import CorruptionError, ProducerFencedError, StorageError
from txnstore.producer import batches
from txnstore.segment.schema import RecordTuple, records_to_table
from txnstore.storage.memory import MemoryStore
from txnstore.store import Store, create_on, open_on
from txnstore.testing import Fault, FaultStore, ManualClock, on


@pytest.fixture
def store(clock: ManualClock, objects: MemoryStore) -> Store:
    store = counted_store(clock, objects)
    store.create_topic("p", partitions=PARTITIONS, config={"inline.bytes": 0})
    store.create_topic("q", partitions=PARTITIONS, config={"inline.bytes": 0})
    return store


# What it costs --------------------------------------------------------------------------------------------------------


def test_a_transaction_is_a_segment_for_each_topic_and_an_entry(store: Store, objects: MemoryStore) -> None:
    """OBJ-14: 8 batches of two topics are 3 PUTs, and two round trips."""
    with store.producer("id") as producer:
        requests(store)
        with producer.transaction():
            send(producer, "p")
            send(producer, "q", "q")
        assert requests(store) == {"put": 2, "put_if_absent": 1}
    for topic in "pq":
        (segment,) = set(segments(store, topic))
        assert segment.key.startswith(f"topics/{topic}/0/")
        assert segment.rows == PARTITIONS
        assert [rows_of(store, topic, number) for number in range(PARTITIONS)] == [[(n, 1)] for n in range(PARTITIONS)]
        assert sorted(values(store, topic)) == [b"%s %d" % (topic.encode(), n) for n in range(PARTITIONS)]
        file = pq.read_table(pa.BufferReader(objects.get(segment.object)))
        assert file["value"].to_pylist() == values(store, topic), "any engine reads it"
    assert store.verify(deep=True).violations == ()


def test_a_flush_inside_a_transaction_is_shared(store: Store, objects: MemoryStore) -> None:
    """Its fate is not known yet, so it cannot be inlined, whatever its topic says."""
    store.alter_topic("p", config={"inline.bytes": 1 << 20})
    with store.producer("id") as producer, producer.transaction():
        send(producer, "early")
        producer.flush()
        assert len(stored(objects)) == 1
        assert values(store, "p") == []
        send(producer, "late")
    assert [segment.inlined for segment in segments(store)] == [False, True] * PARTITIONS
    assert len(values(store, "p")) == 2 * PARTITIONS


def test_a_single_batch_is_an_object_of_its_own(store: Store) -> None:
    with store.producer("id") as producer, producer.transaction():
        send(producer, "one", partitions=1)
    assert [segment.rows for segment in segments(store)] == [1]


def test_rows_lie_in_the_order_of_partitions(store: Store) -> None:
    """However they were sent, so that a reader of some partitions finds their rows together."""
    with store.producer("id") as producer, producer.transaction():
        for number in (2, 0, 3, 1):
            producer.send("p", b"%d" % number, partition=number)
    assert [rows_of(store, "p", number) for number in range(PARTITIONS)] == [[(n, 1)] for n in range(PARTITIONS)]


def test_large_batches_are_objects_of_their_own(store: Store, objects: MemoryStore) -> None:
    """``segment.own.bytes`` is the bound of each; 0 gives each batch an object."""
    store.alter_topic("p", config={"segment.own.bytes": 10_000})
    with store.producer("id") as producer, producer.transaction():
        send(producer, "small")
        producer.send("p", b"x" * 10_000, partition=1)
    assert [segment.rows for segment in segments(store)] == [3, 2, 3, 3]
    store.alter_topic("q", config={"segment.own.bytes": 0})
    with store.producer("id") as producer, producer.transaction():
        send(producer, "own", "q")
    assert [segment.rows for segment in segments(store, "q")] == [1] * PARTITIONS


def test_shared_segments_have_a_largest_size(store: Store) -> None:
    """Above 4 MiB the next one begins, so that large flushes are uploaded concurrently."""
    store.create_topic("wide", partitions=8, config={"segment.own.bytes": 1 << 20})
    with store.producer("id") as producer, producer.transaction():
        for number in range(8):
            producer.send("wide", b"x" * 1_000_000, partition=number)
    keys = [segment.key for segment in segments(store, "wide", 8)]
    assert [keys.count(key) for key in dict.fromkeys(keys)] == [4, 4]


def test_a_shared_segment_belongs_to_one_chain(clock: ManualClock) -> None:
    """Its deletion is announced in the chain of its partitions, which orders it with their appends (RET-10)."""
    chains, partitions = 3, 9
    store = create_on(MemoryStore(clock=clock), chains, runtime=runtime(clock))
    store.create_topic("p", partitions=partitions)
    with store.producer("id") as producer, producer.transaction():
        send(producer, "x", partitions=partitions)
        producer.flush()
    chains_by_object: dict[str, set[int]] = {}
    for number, segment in enumerate(segments(store, partitions=partitions)):
        tp = TopicPartition("p", number)
        chains_by_object.setdefault(segment.object, set()).add(chain_of_partition(tp, chains))
        assert chains_by_object[segment.object] == {chain_of_partition(partition_in(segment.object), chains)}
    assert all(len(numbers) == 1 for numbers in chains_by_object.values())
    assert len(chains_by_object) == len(set().union(*chains_by_object.values())) == chains
    assert len(values(store, "p")) == partitions


# Reading --------------------------------------------------------------------------------------------------------------


def test_all_readers_read_shared_segments(store: Store, clock: ManualClock) -> None:
    with store.producer("id") as producer, producer.transaction():
        send(producer, "a")
    expected = [b"a %d" % number for number in range(PARTITIONS)]
    other = reopen(store, clock)
    assert sorted(values(other, "p")) == expected
    assert [row["value"] for row in rows(other, "p") if row["_partition"] == 2] == [b"a 2"]
    assert other.sql("select value from p order by _partition").fetchall() == [(value,) for value in expected]
    consumer = other.consumer(["p"])
    assert {record.value for record in consumer.poll(timeout=0)} == set(expected)


def test_damage_of_a_shared_segment_is_named_wherever_it_is_read(
    store: Store, clock: ManualClock, objects: MemoryStore
) -> None:
    """OBJ-13: by each of its batches, of which none can be read without the others' bytes."""
    store.alter_topic("p", config={"segment.format": "arrow", "compression.type": "uncompressed"})
    with store.producer("id") as producer, producer.transaction():
        send(producer, "a")
    (damaged,) = set(segments(store))
    objects.put(damaged.object, objects.get(damaged.object).replace(b"a 2", b"a 9"))
    other = reopen(store, clock)
    for number in range(PARTITIONS):
        with pytest.raises(CorruptionError, match=damaged.key):
            other.scan("p", partitions=[number]).to_table()
    violations = {(violation.name, violation.subject) for violation in other.verify(deep=True).violations}
    assert violations == {("segment_content", damaged.key)}


@pytest.mark.parametrize("change", [-1, 0, 1, None])
def test_verify_names_a_shared_segment_that_is_lost_or_has_another_size(
    store: Store, objects: MemoryStore, change: int | None
) -> None:
    """OBJ-13: a listing shows it, for each batch."""
    with store.producer("id") as producer, producer.transaction():
        send(producer, "a")
    (segment,) = set(segments(store))
    if change is None:
        objects.delete([segment.object])
    else:
        objects.put(segment.object, (objects.get(segment.object) + b"?")[: segment.size + change])
    violations = [(item.name, item.subject) for item in store.verify().violations]
    name = "segment_present" if change is None else "segment_size"
    assert violations == ([(name, segment.key)] * PARTITIONS if change != 0 else [])


# Failures -------------------------------------------------------------------------------------------------------------


def test_a_segment_that_cannot_be_uploaded_fails_its_records(clock: ManualClock, objects: MemoryStore) -> None:
    faults = FaultStore(objects, on(Fault.ERROR_BEFORE, "put", key_contains="topics/", times=None), sleep=clock.sleep)
    store = create_on(faults, 1, runtime=runtime(clock))
    store.create_topic("p", partitions=PARTITIONS, config={"inline.bytes": 0})
    producer = store.producer("id", delivery_timeout=1)
    producer.begin_transaction()
    sent = [producer.send("p", b"x", partition=number) for number in range(PARTITIONS)]
    with pytest.raises(StorageError, match=r"a segment with 4 batches of p could not be uploaded within 1 s"):
        producer.commit_transaction()
    assert all(future.exception() is not None for future in sent)
    producer.abort_transaction()
    assert values(store, "p") == []
    assert stored(objects) == []


def test_an_upload_is_repeated(clock: ManualClock, objects: MemoryStore) -> None:
    """With the same bytes and the same name."""
    faults = FaultStore(objects, on(Fault.LOST_RESPONSE, "put", key_contains="topics/", times=2), sleep=clock.sleep)
    store = create_on(faults, 1, runtime=runtime(clock))
    store.create_topic("p", partitions=PARTITIONS, config={"inline.bytes": 0})
    with store.producer("id") as producer, producer.transaction():
        send(producer, "a")
    assert len(stored(objects)) == 1
    assert len(values(store, "p")) == PARTITIONS


@pytest.mark.parametrize("inlined", [False, True])
def test_a_batch_that_cannot_be_converted_fails_alone(
    store: Store, monkeypatch: pytest.MonkeyPatch, *, inlined: bool
) -> None:
    """Without a transaction the others of its segment are written, though all are converted together first."""

    def failing(records: Sequence[RecordTuple], now_ms: int) -> pa.Table:
        if any(value == b"v 0" for _, value, _, _ in records):
            raise ValueError("not convertible")
        return records_to_table(records, now_ms)

    store.alter_topic("p", config={"inline.bytes": 1 << 20 if inlined else 0})
    monkeypatch.setattr(batches, "records_to_table", failing)
    with store.producer() as producer:
        futures = [producer.send("p", b"v %d" % number, partition=number) for number in range(PARTITIONS)]
        with pytest.raises(ValueError, match="not convertible"):
            producer.flush()
    assert [future.exception() is None for future in futures] == [False, True, True, True]
    assert sorted(values(store, "p")) == [b"v 1", b"v 2", b"v 3"]
    assert {(segment.rows, segment.inlined) for segment in segments(store)} == {(3, False)}


@pytest.mark.parametrize("fault", [Fault.LOST_RESPONSE, Fault.LATE, Fault.ERROR_BEFORE, Fault.EXISTS_412])
def test_a_commit_without_a_clear_answer_is_written_once(clock: ManualClock, fault: Fault) -> None:
    """SEQ-03, REC-01: the repeated command names the same segments."""
    inner = MemoryStore(clock=clock)
    faultless = create_on(inner, 1, runtime=runtime(clock))
    faultless.create_topic("p", partitions=PARTITIONS, config={"inline.bytes": 0})
    objects = FaultStore(
        inner, on(fault, "put_if_absent", key_contains="/entries/", times=1, skip=1), sleep=clock.sleep
    )
    producer = open_on(objects, runtime=runtime(clock)).producer("id")
    producer.begin_transaction()
    send(producer, "a")
    try:
        producer.commit_transaction()
    except StorageError:
        producer.commit_transaction()
    assert sorted(values(faultless, "p")) == [b"a %d" % number for number in range(PARTITIONS)]
    assert faultless.verify(deep=True).violations == ()


def test_the_segment_of_a_fenced_producer_is_garbage(store: Store, clock: ManualClock, objects: MemoryStore) -> None:
    zombie = store.producer("id")
    zombie.begin_transaction()
    send(zombie, "zombie")
    reopen(store, clock).producer("id")
    with pytest.raises(ProducerFencedError):
        zombie.commit_transaction()
    assert len(stored(objects)) == 1
    clock.advance(24 * 60 * 60 * 1000)
    assert store.vacuum().objects == 1
    assert stored(objects) == []
