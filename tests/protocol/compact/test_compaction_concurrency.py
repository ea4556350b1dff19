"""A compaction beside everything else that happens: open transactions, appends, readers, other compactions."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.helpers.compaction import (
    HOUR_MS,
    T0,
    abort,
    batches,
    begin,
    commit,
    lose_leases,
    named_keys,
    new_store,
    reopen,
    rows,
    segment_keys,
    values,
)
from tests.helpers.connections import connection_of
from txnstore.chain.keys import Keys
from txnstore.core.log.commands import Append
from txnstore.core.log.model import NewBatch
from txnstore.core.model import ProducerIdentity, TopicPartition
from txnstore.errors import CompactionConflictError, CorruptionError, SnapshotExpiredError, StorageError
from txnstore.storage.memory import MemoryStore
from txnstore.store import Store
from txnstore.testing import Fault, FaultStore, ManualClock, on


class HookStore(MemoryStore):
    """A store in memory in which something else happens right before a segment is written or read."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__(clock=clock)
        self.before_put: Callable[[], None] | None = None
        self.before_get: Callable[[], None] | None = None

    def put(self, key: str, data: bytes) -> None:
        if key.startswith("topics/") and self.before_put is not None:
            hook, self.before_put = self.before_put, None
            hook()
        super().put(key, data)

    def get(self, key: str, start: int | None = None, end: int | None = None) -> bytes:
        if key.startswith("topics/") and self.before_get is not None:
            hook, self.before_get = self.before_get, None
            hook()
        return super().get(key, start, end)


@pytest.fixture
def objects(clock: ManualClock) -> HookStore:
    return HookStore(clock)


@pytest.fixture
def store(clock: ManualClock, objects: HookStore, chains: int) -> Store:
    store = new_store(clock, objects, chains=chains)
    store.create_topic("t", partitions=2)
    return store


# The transactional high-watermark -------------------------------------------------------------------------------------


def test_an_open_transaction_stops_the_compaction_at_its_first_record(store: Store) -> None:
    """CMP-02: what lies at or above the LSO stays as it is, committed, aborted or open."""
    commit(store, [b"a"])
    commit(store, [b"b"])
    producer = begin(store, [b"pending"])
    commit(store, [b"c"])
    abort(store, [b"d"])
    commit(store, [b"e"])
    above = batches(store)[2:]
    assert store.offsets("t", 0).last_stable == above[0].base_offset == 4
    store.compact()
    assert batches(store)[1:] == above
    assert (batches(store)[0].base_offset, batches(store)[0].records) == (0, 2)
    assert values(store) == [b"a", b"b"]
    assert values(store, isolation="read_uncommitted") == [b"a", b"b", b"pending", b"c", b"d", b"e"]
    producer.commit_transaction()
    store.compact()
    assert values(store) == values(store, isolation="read_uncommitted") == [b"a", b"b", b"pending", b"c", b"e"]
    assert store.verify(deep=True).ok


def test_data_of_a_later_aborted_transaction_is_dropped(store: Store) -> None:
    """CMP-04, CMP-05: the pending record shadows nothing, before and after."""
    commit(store, [b"a"])
    commit(store, [b"b"])
    producer = begin(store, [b"pending"])
    commit(store, [b"c"])
    store.compact()
    producer.abort_transaction()
    assert values(store) == [b"a", b"b", b"c"]
    store.compact()
    assert values(store) == values(store, isolation="read_uncommitted") == [b"a", b"b", b"c"]
    assert [row["_offset"] for row in rows(store)] == [0, 2, 5]


def test_open_transaction_does_not_stop_other_partitions(store: Store) -> None:
    for number in range(2):
        commit(store, [b"%d" % number], partition=1)
    with begin(store, [b"pending"]):
        commit(store, [b"a"])
        commit(store, [b"b"])
        assert [item.tp.partition for item in store.compact().partitions] == [1]


# Readers --------------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("own_objects")
def test_reader_with_an_older_snapshot_continues(store: Store, clock: ManualClock) -> None:
    """RET-09: the replaced objects stay until a vacuum after the grace period; then an error names the loss."""
    commit(store, [b"a"])
    abort(store, [b"lost"])
    commit(store, [b"b"])
    snapshot = store.snapshot()
    committed = rows(store, snapshot=snapshot)
    everything = rows(store, isolation="read_uncommitted", snapshot=snapshot)
    store.compact()
    clock.advance(HOUR_MS - 1)
    assert store.vacuum(3600).deleted == ()
    assert rows(store, snapshot=snapshot) == committed == rows(store)
    assert rows(store, isolation="read_uncommitted", snapshot=snapshot) == everything
    clock.advance(1)
    assert len(store.vacuum(3600).deleted) == 3
    assert rows(store) == committed
    with pytest.raises(SnapshotExpiredError, match="was deleted by a vacuum"):
        rows(store, snapshot=snapshot)


@pytest.mark.usefixtures("own_objects")
def test_a_damaged_entry_is_named_instead_of_the_segment_that_it_hides(
    store: Store, objects: HookStore, clock: ManualClock
) -> None:
    """Whether the newest state names the missing segment is unknown: the error is of what could not be read."""
    for value in (b"a", b"b"):
        commit(store, [value])
    snapshot = store.snapshot()
    store.compact()
    clock.advance(HOUR_MS)
    other = reopen(store, clock)
    assert len(other.vacuum(3600).deleted) == 2
    commit(other, [b"c"])
    for chain in range(len(connection_of(store).chains)):
        newest = max(item.key for item in objects.list(Keys(store.store_id).entries(chain)))
        objects.put(newest, objects.get(newest)[:-3])
    with pytest.raises(CorruptionError, match=r"/entries/"):
        rows(store, snapshot=snapshot)


def test_reader_in_another_process_is_not_interrupted(store: Store, clock: ManualClock) -> None:
    other = reopen(store, clock)
    for number in range(3):
        commit(store, [b"%d" % number])
    before = rows(other)
    store.compact()
    assert rows(other) == before
    assert connection_of(other).view() == connection_of(store).view()


# Writers --------------------------------------------------------------------------------------------------------------


def test_appends_during_a_merge_are_neither_lost_nor_delayed(
    store: Store, objects: HookStore, clock: ManualClock
) -> None:
    """Commits land between the merge's upload and its entry; both are there afterwards."""
    other = reopen(store, clock)
    commit(store, [b"a"])
    commit(store, [b"b"])

    def append() -> None:
        commit(other, [b"c"], writer="other")
        abort(other, [b"lost"])

    objects.before_put = append
    report = store.compact()
    assert (report.merges, report.conflicts) == (1, 0)
    assert values(store) == [b"a", b"b", b"c"]
    assert [batch.records for batch in batches(store)] == [2, 1, 1]
    assert store.verify(deep=True).ok


def test_a_transaction_that_opens_during_a_merge_does_not_stop_it(
    store: Store, objects: HookStore, clock: ManualClock
) -> None:
    """CMP-02: it begins above what is merged, because the LSO never goes back."""
    other = reopen(store, clock)
    commit(store, [b"a"])
    commit(store, [b"b"])
    opened = []
    objects.before_put = lambda: opened.append(begin(other, [b"pending"]))
    assert store.compact().merges == 1
    opened[0].commit_transaction()
    assert values(store) == [b"a", b"b", b"pending"]


@pytest.mark.usefixtures("own_objects")
def test_losing_concurrent_compaction_has_no_effect(store: Store, objects: HookStore, clock: ManualClock) -> None:
    """OBJ-09: the loser is counted, its upload is garbage, and nothing is there twice."""
    other = reopen(store, clock)
    for number in range(3):
        commit(store, [b"%d" % number])
    before = rows(store)
    reports = []

    def compact_too() -> None:
        lose_leases(objects)
        reports.append(other.compact())

    objects.before_put = compact_too
    loser = store.compact()
    assert reports[0].merges == 1
    assert (loser.merges, loser.conflicts, loser.records) == (0, 1, 0)
    assert loser.segments_after == loser.segments_before == 3
    assert rows(store) == before
    orphans = segment_keys(store) - named_keys(store)
    assert len(orphans) == 3 + 1
    clock.advance(HOUR_MS)
    assert set(store.vacuum(3600).deleted) == orphans
    assert rows(store) == before
    assert store.verify(deep=True).ok


def test_a_change_of_a_partition_ends_what_was_planned_for_it(
    store: Store, objects: HookStore, clock: ManualClock
) -> None:
    """The first merge is in vain; the segments of the second one are not even read."""
    other = reopen(store, clock)
    for number in range(4):
        commit(store, [b"%d" % number])
    size = max(batch.segment.size for batch in batches(store))
    deleted = []
    objects.before_put = lambda: deleted.append(other.delete_records({T0: 1}))
    before = len(segment_keys(store))
    report = store.compact(target_bytes=2 * size)
    assert (report.merges, report.conflicts) == (0, 2)
    assert len(segment_keys(store)) == before + 1, "that of the first merge"
    again = store.compact(target_bytes=2 * size)
    assert (again.merges, again.conflicts) == (1, 0)
    assert values(store) == [b"1", b"2", b"3"]
    assert store.verify(deep=True).ok


@pytest.mark.usefixtures("own_objects")
def test_source_deleted_after_another_compaction_is_a_conflict(
    store: Store, objects: HookStore, clock: ManualClock
) -> None:
    """RET-09: a compactor is a reader, too; it looks again at what the log holds instead of crying damage."""
    other = reopen(store, clock)
    for number in range(3):
        commit(store, [b"%d" % number])
    before = rows(store)

    def overtake() -> None:
        lose_leases(objects)
        other.compact()
        other.vacuum(0)

    objects.before_get = overtake
    report = store.compact()
    assert (report.merges, report.conflicts) == (0, 1)
    assert rows(store) == before


@pytest.mark.usefixtures("own_objects")
def test_missing_referenced_source_is_corruption(store: Store) -> None:
    """OBJ-13."""
    commit(store, [b"a"])
    commit(store, [b"b"])
    victim = batches(store)[0].segment.key
    connection_of(store).objects.delete([victim])
    with pytest.raises(CorruptionError, match=victim):
        store.compact()


@pytest.mark.usefixtures("own_objects")
def test_damage_stops_no_other_topic_and_no_expiration(store: Store, clock: ManualClock) -> None:
    """OBJ-13: the error names all that is damaged, after everything else is done."""
    names = ["a", "b", "c", "d"]
    victims = []
    for name in names:
        store.create_topic(name)
        for value in (b"1", b"2"):
            with store.producer("old").transaction() as txn:
                txn.send(name, value)
    view = connection_of(store).view()
    for name in ("a", "c"):
        partition = view.find_partition(TopicPartition(name, 0))
        victims.append(next(iter(partition.batches)).segment.key)
    connection_of(store).objects.delete(victims)
    clock.advance(8 * 86_400_000)
    with pytest.raises(CorruptionError) as raised:
        store.compact()
    assert all(victim in str(raised.value) for victim in victims)
    view = connection_of(store).view()
    assert [len(list(view.find_partition(TopicPartition(name, 0)).batches)) for name in names] == [2, 1, 2, 1]
    assert "old" not in view.transactions
    for name in ("a", "c"):
        store.delete_topic(name)


@pytest.mark.usefixtures("own_objects")
def test_the_damage_of_one_topic_can_be_reported_beside_what_was_compacted(store: Store) -> None:
    """OBJ-13: the command line shows both."""
    for name in ("a", "b"):
        store.create_topic(name)
        for value in (b"1", b"2"):
            with store.producer("p").transaction() as txn:
                txn.send(name, value)
    [victim, _] = connection_of(store).view().find_partition(TopicPartition("a", 0)).batches
    connection_of(store).objects.delete([victim.segment.key])
    errors: list[Exception] = []
    report = store.compact(on_error=errors.append)
    assert report.merges == 1
    [error] = errors
    assert isinstance(error, CorruptionError)
    assert victim.segment.key in str(error)


def test_a_topic_that_is_deleted_during_a_merge_is_a_conflict(
    store: Store, objects: HookStore, clock: ManualClock
) -> None:
    other = reopen(store, clock)
    commit(store, [b"a"])
    commit(store, [b"b"])

    def delete_and_create_again() -> None:
        other.delete_topic("t")
        other.create_topic("t", partitions=2)
        commit(other, [b"new"], writer="other")

    objects.before_put = delete_and_create_again
    assert store.compact().conflicts == 1
    assert values(store) == [b"new"]


# Producers ------------------------------------------------------------------------------------------------------------


def _new_batch(store: Store, segment_of: int, sequence: int) -> NewBatch:
    """The batch that an idempotent producer sent as its n-th, again."""
    batch = batches(store)[segment_of]
    return NewBatch("t", 0, batch.segment, batch.min_timestamp, batch.max_timestamp, sequence)


def test_duplicate_batch_after_a_compaction_is_detected(store: Store) -> None:
    """PST-10, SEQ-03, SEQ-19: the window of a producer outlives its segments; a duplicate gets the first offsets."""
    with store.producer(linger=None) as producer:
        for number in range(3):
            producer.send("t", b"%d" % number, partition=0)
            producer.flush()
        identity = ProducerIdentity(producer.producer_id, producer.epoch)
        retry = Append(identity, (_new_batch(store, 1, 1),))
        window = connection_of(store).view().partitions[T0].producers
        store.compact()
        assert connection_of(store).view().partitions[T0].producers == window
        (answer,) = connection_of(store).submit(retry)
        assert (answer.base_offset, answer.limit, answer.duplicate) == (1, 2, True)
        producer.send("t", b"3", partition=0)
        producer.flush()
    assert values(store) == [b"0", b"1", b"2", b"3"]
    assert store.verify(deep=True).ok


def test_producer_continues_after_its_data_is_removed(store: Store) -> None:
    """PST-10: an aborted transaction leaves no segment behind, but the epoch stays fenced and the offsets stay."""
    abort(store, [b"x"], writer="w")
    store.compact()
    assert batches(store) == []
    commit(store, [b"y"], writer="w")
    assert [(row["_offset"], row["value"]) for row in rows(store)] == [(2, b"y")]


# Failures -------------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("own_objects")
@pytest.mark.parametrize("operation", ["get", "put"])
def test_a_failed_request_leaves_everything_as_it_was(clock: ManualClock, operation: str) -> None:
    """OBJ-06: the entry comes last, so what fails before it has not happened; the same call again succeeds."""
    faults = FaultStore(MemoryStore(clock=clock))
    store = new_store(clock, faults)
    store.create_topic("t")
    for number in range(3):
        commit(store, [b"%d" % number])
    before, state = rows(store), connection_of(store).view()
    faults.plan = on(Fault.ERROR_BEFORE, operation, key_contains="topics/")
    with pytest.raises(StorageError):
        store.compact()
    assert connection_of(store).view() == state
    assert rows(store) == before
    assert store.compact().merges == 1
    assert rows(store) == before


@pytest.mark.parametrize("fault", [Fault.LOST_RESPONSE, Fault.LATE, Fault.EXISTS_412, Fault.CONFLICT_409])
def test_unknown_outcome_of_the_entry_is_resolved(clock: ManualClock, fault: Fault) -> None:
    """OBJ-02: the merge happened once, and is not counted as a conflict with itself."""
    faults = FaultStore(MemoryStore(clock=clock))
    store = new_store(clock, faults)
    store.create_topic("t")
    for number in range(3):
        commit(store, [b"%d" % number])
    before = rows(store)
    faults.plan = on(fault, "put_if_absent", key_contains="entries")
    report = store.compact()
    assert (report.merges, report.conflicts) == (1, 0)
    assert rows(store) == before
    assert len(batches(store)) == 1
    assert store.verify(deep=True).ok


def test_compaction_conflicts_are_retriable() -> None:
    assert CompactionConflictError.retriable
