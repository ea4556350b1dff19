"""Packs leave the storage: when no batch names a segment of them, and the last of these was dropped long ago."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.helpers.compaction import DAY_MS, HookStore, commit, reopen, rows, runtime, values
from tests.helpers.connections import connection_of
from tests.helpers.inlining import counted_store
from tests.helpers.packs import PARTITIONS, segments, send, stored
from txnstore.core.maintenance import FORGET_AFTER_MS, DropObjects
from txnstore.core.model import TopicPartition
from txnstore.errors import UploadExpiredError
from txnstore.storage.memory import MemoryStore
from txnstore.store import Store, create_on
from txnstore.testing import ManualClock

P0, P1 = TopicPartition("p", 0), TopicPartition("p", 1)


@pytest.fixture
def objects(clock: ManualClock) -> MemoryStore:
    return HookStore(clock=clock)


@pytest.fixture
def store(clock: ManualClock, objects: MemoryStore) -> Store:
    store = counted_store(clock, objects)
    store.create_topic("p", partitions=PARTITIONS, config={"inline.bytes": 0})
    return store


def commit_pack(store: Store, text: str) -> str:
    """Commit a record to each partition; returns the key of the pack."""
    with store.producer("id") as producer, producer.transaction():
        send(producer, text)
    return segments(store)[-1].object


def dropped(store: Store) -> set[str]:
    return set(connection_of(store).view().dropped)


def test_a_pack_goes_after_a_compaction(store: Store, clock: ManualClock, objects: MemoryStore) -> None:
    """RET-09: readers of older snapshots find it for the grace period."""
    packs = {commit_pack(store, text) for text in "ab"}
    clock.advance(DAY_MS)
    old = store.snapshot()
    store.compact()
    clock.advance(DAY_MS - 1)
    assert store.vacuum().objects == 0
    assert len(rows(store, "p", snapshot=old)) == 2 * PARTITIONS
    clock.advance(1)
    expected = store.vacuum(dry_run=True)
    report = store.vacuum()
    assert (report.objects, report.bytes) == (expected.objects, expected.bytes)
    assert set(report.deleted) == packs
    assert len(stored(objects)) == PARTITIONS
    assert len(values(reopen(store, clock), "p")) == 2 * PARTITIONS
    assert store.verify(deep=True).violations == ()


def test_a_pack_stays_while_a_batch_names_one_of_its_segments(
    store: Store, clock: ManualClock, objects: MemoryStore
) -> None:
    pack = commit_pack(store, "a")
    for number in range(PARTITIONS - 1):
        store.delete_records({TopicPartition("p", number): 1})
        clock.advance(FORGET_AFTER_MS + DAY_MS)
        assert store.vacuum().objects == 0
    assert values(store, "p") == [b"a 3"]
    assert dropped(store) == {f"#{pack}"}, "it is what a vacuum knows of the pack"
    store.delete_records({TopicPartition("p", 3): 1})
    clock.advance(DAY_MS - 1)
    assert store.vacuum().objects == 0, "the grace period of the last one"
    clock.advance(1)
    assert store.vacuum().deleted == (pack,)
    assert stored(objects) == []


def test_a_dry_run_names_no_pack_in_use(store: Store, clock: ManualClock) -> None:
    """OBJ-16: it asks no chain."""
    commit_pack(store, "a")
    clock.advance(DAY_MS)
    assert store.vacuum(dry_run=True).deleted == ()


def test_the_dropped_segments_of_a_deleted_pack_are_forgotten(
    store: Store, clock: ManualClock, objects: MemoryStore
) -> None:
    """When no upload of its age is accepted any longer, and not while the pack exists."""
    pack = commit_pack(store, "a")
    store.delete_topic("p")
    clock.advance(DAY_MS)
    assert store.vacuum().deleted == (pack,)
    assert dropped(store) == {pack, f"#{pack}"}
    clock.advance(FORGET_AFTER_MS - 1)
    store.vacuum()
    assert pack in dropped(store)
    clock.advance(1)
    store.vacuum()
    assert dropped(store) == set()


def test_each_chain_forgets_its_own_packs(clock: ManualClock) -> None:
    objects = MemoryStore(clock=clock)
    store = create_on(objects, 3, runtime=runtime(clock))
    store.create_topic("p", partitions=9)
    with store.producer("id") as producer, producer.transaction():
        send(producer, "x", partitions=9)
        producer.flush()
    assert [key for key in stored(objects) if key.endswith(".pack")]
    store.delete_topic("p")
    clock.advance(FORGET_AFTER_MS + DAY_MS)
    store.vacuum()
    assert stored(objects) == []
    clock.advance(FORGET_AFTER_MS + DAY_MS)
    store.vacuum()
    assert dropped(store) == set()


def test_a_live_segment_does_not_keep_deleted_ones_beside_it(
    store: Store, clock: ManualClock, objects: MemoryStore
) -> None:
    """The next compaction writes it to an object of its own, although there is nothing to merge; then the pack goes."""
    pack = commit_pack(store, "a")
    assert store.compact().segments_before == 0
    store.delete_records({P0: 1})
    assert store.compact().segments_before == PARTITIONS - 1
    assert not any(segment.is_range for segment in segments(store))
    clock.advance(DAY_MS)
    assert store.vacuum().deleted == (pack,)
    assert values(reopen(store, clock), "p") == [b"a 1", b"a 2", b"a 3"]
    assert store.compact().segments_before == 0


@pytest.mark.parametrize("target", [None, 1_000], ids=["above 1 MiB", "above half of the target"])
def test_a_large_live_segment_does_not_keep_deleted_ones_either(
    store: Store, clock: ManualClock, objects: MemoryStore, target: int | None
) -> None:
    """It is merged with nothing, but moves."""
    store.alter_topic("p", config={"compression.type": "uncompressed", "pack.bytes": 1 << 20})
    with store.producer("id") as producer, producer.transaction():
        for number in range(2):
            producer.send("p", b"x" * 1_048_400, partition=number)
    assert min(segment.size for segment in segments(store)) > 1 << 20
    (pack,) = {segment.object for segment in segments(store)}
    assert store.compact(target_bytes=target).segments_before == 0
    store.delete_records({P0: 1})
    assert store.compact(target_bytes=target).segments_before == 1
    assert [segment.is_range for segment in segments(store)] == [False]
    clock.advance(DAY_MS)
    assert store.vacuum().deleted == (pack,)
    assert values(reopen(store, clock), "p") == [b"x" * 1_048_400]
    assert store.compact(target_bytes=target).segments_before == 0


def test_a_dominant_segment_that_has_to_move_is_not_merged(store: Store) -> None:
    """Those after it are merged without it."""
    store.alter_topic("p", config={"compression.type": "uncompressed", "pack.bytes": 1 << 20})
    with store.producer("id") as producer, producer.transaction():
        for number in range(2):
            producer.send("p", b"x" * 1_048_400, partition=number)
    for number in range(3):
        commit(store, [b"%d" % number], topic="p", partition=1)
    store.delete_records({P0: 1})
    assert store.compact().segments_before == 4
    assert [segment.rows for segment in segments(store)] == [1, 3]
    assert not any(segment.is_range for segment in segments(store))
    assert values(store, "p") == [b"x" * 1_048_400, b"0", b"1", b"2"]


def test_segments_leave_their_packs_when_packs_are_turned_off(store: Store) -> None:
    """For readers that need files: DuckDB and Spark's own Parquet reader."""
    commit_pack(store, "a")
    store.alter_topic("p", config={"inline.bytes": 1_000})
    assert store.compact().segments_before == 0
    store.alter_topic("p", config={"pack.bytes": 0})
    assert store.compact().segments_before == PARTITIONS
    assert not any(segment.is_range for segment in segments(store))
    assert len(values(store, "p")) == PARTITIONS


def test_the_pack_of_an_open_transaction_stays(store: Store, clock: ManualClock, objects: MemoryStore) -> None:
    """Its batches are in the log; those that are not yet registered are young."""
    with store.producer("id", transaction_timeout=15 * 60) as producer, producer.transaction():
        send(producer, "a")
        producer.flush()
        clock.advance(60_000)
        assert store.vacuum(0).objects == 0
    assert len(values(store, "p")) == PARTITIONS


def test_a_vacuumed_upload_is_refused(store: Store, clock: ManualClock, objects: MemoryStore) -> None:
    """RET-10: no acknowledged record is in a pack that a vacuum has announced, however late its append comes."""
    assert isinstance(objects, HookStore)
    other = reopen(store, clock)

    def vacuum() -> None:
        clock.advance(1)
        assert other.vacuum(0).objects == 1

    producer = store.producer("id")
    producer.begin_transaction()
    send(producer, "a")
    objects.after_put = vacuum
    with pytest.raises(UploadExpiredError, match="was vacuumed before it was registered"):
        producer.commit_transaction()
    producer.abort_transaction()
    assert values(store, "p") == []
    assert store.verify(deep=True).violations == ()


def test_a_pack_with_a_registered_segment_is_not_announced(store: Store) -> None:
    """RET-10: the chain refuses to announce it."""
    pack = commit_pack(store, "a")
    store.delete_records({P0: 1})
    assert connection_of(store).submit(DropObjects((pack, segments(store)[0].key))) == ()
    assert pack not in dropped(store)


@pytest.mark.parametrize("end", ["abort_transaction", "close"])
def test_the_pack_of_an_aborted_transaction_goes(
    store: Store, clock: ManualClock, objects: MemoryStore, end: str
) -> None:
    producer = store.producer("id")
    producer.begin_transaction()
    send(producer, "a")
    producer.flush()
    finish: Callable[[], None] = getattr(producer, end)
    finish()
    store.compact()
    assert len(dropped(store)) == 1
    clock.advance(DAY_MS)
    assert store.vacuum().objects == 1
    assert stored(objects) == []
