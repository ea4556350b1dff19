"""Packs: the small segments of a flush are uploaded in one object for each topic. See docs/design/0024-packs.md."""

from __future__ import annotations

import pytest

from tests.helpers.compaction import reopen, rows, runtime, values
from tests.helpers.inlining import counted_store, requests
from tests.helpers.packs import PARTITIONS, segments, send, stored
from txnstore.core.model import TopicPartition
from txnstore.core.routing import chain_of_partition
from txnstore.errors import CorruptionError, ProducerFencedError, StorageError
from txnstore.producer import upload
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


def test_a_transaction_is_a_pack_for_each_topic_and_an_entry(store: Store, objects: MemoryStore) -> None:
    """OBJ-14: 8 segments of two topics are 3 PUTs, and two round trips."""
    with store.producer("id") as producer:
        requests(store)
        with producer.transaction():
            send(producer, "p")
            send(producer, "q", "q")
        assert requests(store) == {"put": 2, "put_if_absent": 1}
    for topic in "pq":
        (pack,) = {segment.object for segment in segments(store, topic)}
        assert pack.startswith(f"topics/{topic}/0/")
        assert sorted(values(store, topic)) == [b"%s %d" % (topic.encode(), n) for n in range(PARTITIONS)]
        data = objects.get(pack)
        starts = [segment.place.first_byte for segment in segments(store, topic)]
        assert starts == sorted(starts)
        assert len(data) == sum(segment.size for segment in segments(store, topic)), "nothing stands between them"
    assert store.verify(deep=True).violations == ()


def test_a_flush_inside_a_transaction_is_packed(store: Store, objects: MemoryStore) -> None:
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
    assert [segment.is_range for segment in segments(store)] == [False]


def test_large_batches_are_objects_of_their_own(store: Store, objects: MemoryStore) -> None:
    """``pack.bytes`` is the bound of each; 0 turns packs off."""
    store.alter_topic("p", config={"pack.bytes": 10_000})
    with store.producer("id") as producer, producer.transaction():
        send(producer, "small")
        producer.send("p", b"x" * 10_000, partition=1)
    assert [segment.is_range for segment in segments(store)] == [True, False, True, True]
    store.alter_topic("q", config={"pack.bytes": 0})
    with store.producer("id") as producer, producer.transaction():
        send(producer, "own", "q")
    assert [segment.is_range for segment in segments(store, "q")] == [False] * PARTITIONS


def test_packs_have_a_largest_size(store: Store) -> None:
    """Above 4 MiB the next one begins, so that large flushes are uploaded concurrently."""
    store.create_topic("wide", partitions=8, config={"pack.bytes": 1 << 20})
    with store.producer("id") as producer, producer.transaction():
        for number in range(8):
            producer.send("wide", b"x" * 1_000_000, partition=number)
    packs = [segment.object for segment in segments(store, "wide", 8)]
    assert [packs.count(pack) for pack in dict.fromkeys(packs)] == [4, 4]


def test_a_pack_belongs_to_one_chain(clock: ManualClock) -> None:
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
        if segment.is_range:
            first = int(segment.object.split("/")[2])
            assert chains_by_object[segment.object] == {chain_of_partition(TopicPartition("p", first), chains)}
    assert all(len(numbers) == 1 for numbers in chains_by_object.values())
    assert len(chains_by_object) == len(set().union(*chains_by_object.values())) == chains
    assert len(values(store, "p")) == partitions


# Reading --------------------------------------------------------------------------------------------------------------


def test_all_readers_read_packed_segments(store: Store, clock: ManualClock) -> None:
    with store.producer("id") as producer, producer.transaction():
        send(producer, "a")
    expected = [b"a %d" % number for number in range(PARTITIONS)]
    other = reopen(store, clock)
    assert sorted(values(other, "p")) == expected
    assert [row["value"] for row in rows(other, "p") if row["_partition"] == 2] == [b"a 2"]
    assert other.sql("select value from p order by _partition").fetchall() == [(value,) for value in expected]
    consumer = other.consumer(["p"])
    assert {record.value for record in consumer.poll(timeout=0)} == set(expected)


def test_damage_in_a_pack_is_named_where_it_is_read(store: Store, clock: ManualClock, objects: MemoryStore) -> None:
    """OBJ-13: the other segments of the pack are read."""
    store.alter_topic("p", config={"segment.format": "arrow", "compression.type": "uncompressed"})
    with store.producer("id") as producer, producer.transaction():
        send(producer, "a")
    damaged = segments(store)[2]
    objects.put(damaged.object, objects.get(damaged.object).replace(b"a 2", b"a 9"))
    other = reopen(store, clock)
    assert other.scan("p", partitions=[0, 1, 3]).to_table().num_rows == 3
    with pytest.raises(CorruptionError, match=damaged.key):
        other.scan("p", partitions=[2]).to_table()
    (violation,) = other.verify(deep=True).violations
    assert (violation.name, violation.subject) == ("segment_content", damaged.key)


@pytest.mark.parametrize("change", [-1, 0, 1])
def test_verify_knows_where_a_pack_ends(store: Store, objects: MemoryStore, change: int) -> None:
    """OBJ-13: a listing shows one byte too few, where only the last segment ends. A byte too many hides nothing."""
    with store.producer("id") as producer, producer.transaction():
        send(producer, "a")
    last = max(segments(store), key=lambda segment: segment.place.first_byte)
    size = last.place.first_byte + last.size
    objects.put(last.object, (objects.get(last.object) + b"?")[: size + change])
    violations = store.verify().violations
    assert [(item.name, item.subject) for item in violations] == ([("segment_size", last.key)] if change < 0 else [])


@pytest.mark.parametrize("missing", [False, True])
def test_a_lost_or_truncated_pack_is_named_by_verify(store: Store, objects: MemoryStore, *, missing: bool) -> None:
    with store.producer("id") as producer, producer.transaction():
        send(producer, "a")
    packed = segments(store)
    if missing:
        objects.delete([packed[0].object])
    else:
        objects.put(packed[0].object, objects.get(packed[0].object)[: packed[3].place.first_byte + 3])
    violations = store.verify().violations
    expected = [segment.key for segment in (packed if missing else packed[3:])]
    assert sorted(violation.subject for violation in violations) == sorted(expected)


# Failures -------------------------------------------------------------------------------------------------------------


def test_a_pack_that_cannot_be_uploaded_fails_its_records(clock: ManualClock, objects: MemoryStore) -> None:
    faults = FaultStore(objects, on(Fault.ERROR_BEFORE, "put", key_contains=".pack", times=None), sleep=clock.sleep)
    store = create_on(faults, 1, runtime=runtime(clock))
    store.create_topic("p", partitions=PARTITIONS, config={"inline.bytes": 0})
    producer = store.producer("id", delivery_timeout=1)
    producer.begin_transaction()
    sent = [producer.send("p", b"x", partition=number) for number in range(PARTITIONS)]
    with pytest.raises(StorageError, match=r"a pack with 4 segments of topic p could not be uploaded within 1 s"):
        producer.commit_transaction()
    assert all(future.exception() is not None for future in sent)
    producer.abort_transaction()
    assert values(store, "p") == []
    assert [key for key in stored(objects) if key.endswith(".pack")] == []


def test_an_upload_is_repeated(clock: ManualClock, objects: MemoryStore) -> None:
    """With the same bytes and the same name."""
    faults = FaultStore(objects, on(Fault.LOST_RESPONSE, "put", key_contains=".pack", times=2), sleep=clock.sleep)
    store = create_on(faults, 1, runtime=runtime(clock))
    store.create_topic("p", partitions=PARTITIONS, config={"inline.bytes": 0})
    with store.producer("id") as producer, producer.transaction():
        send(producer, "a")
    assert len(stored(objects)) == 1
    assert len(values(store, "p")) == PARTITIONS


def test_a_batch_that_cannot_be_encoded_fails_alone(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a transaction the others of its pack are written."""
    encode = upload.encode_batch

    def failing(runtime: object, writer: object, tp: TopicPartition, *rest: object) -> object:
        if tp.partition == 0:
            raise ValueError("not encodable")
        return encode(runtime, writer, tp, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(upload, "encode_batch", failing)
    with store.producer() as producer:
        futures = [producer.send("p", b"v %d" % number, partition=number) for number in range(PARTITIONS)]
        with pytest.raises(ValueError, match="not encodable"):
            producer.flush()
    assert [future.exception() is None for future in futures] == [False, True, True, True]
    assert sorted(values(store, "p")) == [b"v 1", b"v 2", b"v 3"]


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


def test_the_pack_of_a_fenced_producer_is_garbage(store: Store, clock: ManualClock, objects: MemoryStore) -> None:
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
