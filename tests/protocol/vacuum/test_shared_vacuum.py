"""Shared segments leave the storage: when no batch names them, and the last one was removed long ago."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.helpers.compaction import DAY_MS, HookStore, batches, commit, reopen, rows, runtime, values
from tests.helpers.connections import connection_of
from tests.helpers.inlining import counted_store
from tests.helpers.sharing import PARTITIONS, segments, send, stored
from txnstore.core.maintenance import FORGET_AFTER_MS, DropObjects
from txnstore.core.model import TopicPartition, items_of
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


def commit_shared(store: Store, text: str) -> str:
    """Commit a record to each partition; returns the key of their segment."""
    with store.producer("id") as producer, producer.transaction():
        send(producer, text)
    return segments(store)[-1].object


def released(store: Store) -> set[str]:
    """What batches were removed from, and no vacuum has announced."""
    return {key for state in connection_of(store).view().states for key, _ in items_of(state.released)}


def dropped(store: Store) -> set[str]:
    """What a vacuum has announced."""
    return {key for state in connection_of(store).view().states for key, _ in items_of(state.dropped)}


def own(store: Store) -> bool:
    """Whether no batch shares its segment."""
    return not any(
        batch.shared for number in range(PARTITIONS) for batch in batches(store, TopicPartition("p", number))
    )


def test_a_shared_segment_goes_after_a_compaction(store: Store, clock: ManualClock, objects: MemoryStore) -> None:
    """RET-09: readers of older snapshots find it for the grace period."""
    keys = {commit_shared(store, text) for text in "ab"}
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
    assert set(report.deleted) == keys
    assert len(stored(objects)) == PARTITIONS
    assert len(values(reopen(store, clock), "p")) == 2 * PARTITIONS
    assert store.verify(deep=True).violations == ()


def test_a_shared_segment_stays_while_a_batch_names_it(store: Store, clock: ManualClock, objects: MemoryStore) -> None:
    key = commit_shared(store, "a")
    for number in range(PARTITIONS - 1):
        store.delete_records({TopicPartition("p", number): 1})
        clock.advance(FORGET_AFTER_MS + DAY_MS)
        assert store.vacuum().objects == 0
    assert values(store, "p") == [b"a 3"]
    assert released(store) == {key}, "by its time a vacuum knows when readers stop to need it"
    assert dropped(store) == set()
    store.delete_records({TopicPartition("p", 3): 1})
    clock.advance(DAY_MS - 1)
    assert store.vacuum().objects == 0, "the grace period of the last one"
    clock.advance(1)
    assert store.vacuum().deleted == (key,)
    assert stored(objects) == []


def test_a_dry_run_names_no_shared_segment_in_use(store: Store, clock: ManualClock) -> None:
    """OBJ-16: it asks no chain."""
    commit_shared(store, "a")
    clock.advance(DAY_MS)
    assert store.vacuum(dry_run=True).deleted == ()
    store.delete_records({P0: 1})
    clock.advance(DAY_MS)
    assert store.vacuum(dry_run=True).deleted == ()


def test_a_deleted_segment_is_forgotten(store: Store, clock: ManualClock, objects: MemoryStore) -> None:
    """When no upload of its age is accepted any longer."""
    key = commit_shared(store, "a")
    store.delete_topic("p")
    clock.advance(DAY_MS)
    assert store.vacuum().deleted == (key,)
    assert (released(store), dropped(store)) == (set(), {key})
    clock.advance(FORGET_AFTER_MS - 1)
    store.vacuum()
    assert dropped(store) == {key}
    clock.advance(1)
    store.vacuum()
    assert dropped(store) == set()


def test_each_chain_forgets_its_own_segments(clock: ManualClock) -> None:
    objects = MemoryStore(clock=clock)
    store = create_on(objects, 3, runtime=runtime(clock))
    store.create_topic("p", partitions=9)
    with store.producer("id") as producer, producer.transaction():
        send(producer, "x", partitions=9)
        producer.flush()
    assert len(stored(objects)) == 3
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
    """The next compaction writes it to an object of its own, with nothing to merge; then the old one goes."""
    key = commit_shared(store, "a")
    assert store.compact().segments_before == 0
    store.delete_records({P0: 1})
    assert store.compact().segments_before == PARTITIONS - 1
    assert own(store)
    clock.advance(DAY_MS)
    assert store.vacuum().deleted == (key,)
    assert values(reopen(store, clock), "p") == [b"a 1", b"a 2", b"a 3"]
    assert store.compact().segments_before == 0


@pytest.mark.parametrize("target", [None, 1_000], ids=["above 1 MiB", "above half of the target"])
def test_a_large_live_segment_does_not_keep_deleted_ones_either(
    store: Store, clock: ManualClock, objects: MemoryStore, target: int | None
) -> None:
    """It is merged with nothing, but moves."""
    store.alter_topic("p", config={"compression.type": "uncompressed", "segment.own.bytes": 2 << 20})
    with store.producer("id") as producer, producer.transaction():
        for number in range(2):
            producer.send("p", b"x" * 1_048_400, partition=number)
    assert min(segment.size for segment in segments(store)) > 1 << 20
    (key,) = {segment.object for segment in segments(store)}
    assert store.compact(target_bytes=target).segments_before == 0
    store.delete_records({P0: 1})
    assert store.compact(target_bytes=target).segments_before == 1
    assert own(store)
    clock.advance(DAY_MS)
    assert store.vacuum().deleted == (key,)
    assert values(reopen(store, clock), "p") == [b"x" * 1_048_400]
    assert store.compact(target_bytes=target).segments_before == 0


def test_a_dominant_segment_that_has_to_move_is_not_merged(store: Store) -> None:
    """Those after it are merged without it."""
    store.alter_topic("p", config={"compression.type": "uncompressed", "segment.own.bytes": 2 << 20})
    with store.producer("id") as producer, producer.transaction():
        for number in range(2):
            producer.send("p", b"x" * 1_048_400, partition=number)
    for number in range(3):
        commit(store, [b"%d" % number], topic="p", partition=1)
    store.delete_records({P0: 1})
    assert store.compact().segments_before == 4
    assert [segment.rows for segment in segments(store)] == [1, 3]
    assert own(store)
    assert values(store, "p") == [b"x" * 1_048_400, b"0", b"1", b"2"]


def test_batches_leave_their_shared_segment_when_each_is_to_have_its_own(store: Store) -> None:
    """For readers that need a file for each partition, as Spark's own Parquet reader does."""
    commit_shared(store, "a")
    store.alter_topic("p", config={"inline.bytes": 1_000})
    assert store.compact().segments_before == 0
    store.alter_topic("p", config={"segment.own.bytes": 0})
    assert store.compact().segments_before == PARTITIONS
    assert own(store)
    assert len(values(store, "p")) == PARTITIONS


def test_the_segment_of_an_open_transaction_stays(store: Store, clock: ManualClock, objects: MemoryStore) -> None:
    """Its batches are in the log; those that are not yet registered are young."""
    with store.producer("id", transaction_timeout=15 * 60) as producer, producer.transaction():
        send(producer, "a")
        producer.flush()
        clock.advance(60_000)
        assert store.vacuum(0).objects == 0
    assert len(values(store, "p")) == PARTITIONS


def test_a_vacuumed_upload_is_refused(store: Store, clock: ManualClock, objects: MemoryStore) -> None:
    """RET-10: no acknowledged record is in a segment that a vacuum has announced, however late its append comes."""
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


def test_a_segment_with_a_registered_batch_is_not_announced(store: Store) -> None:
    """RET-10: the chain refuses to announce it."""
    key = commit_shared(store, "a")
    store.delete_records({P0: 1})
    assert connection_of(store).submit(DropObjects((key,))) == ()
    assert dropped(store) == set()


@pytest.mark.parametrize("end", ["abort_transaction", "close"])
def test_the_segment_of_an_aborted_transaction_goes(
    store: Store, clock: ManualClock, objects: MemoryStore, end: str
) -> None:
    producer = store.producer("id")
    producer.begin_transaction()
    send(producer, "a")
    producer.flush()
    finish: Callable[[], None] = getattr(producer, end)
    finish()
    store.compact()
    assert len(released(store)) == 1
    clock.advance(DAY_MS)
    assert store.vacuum().objects == 1
    assert stored(objects) == []
