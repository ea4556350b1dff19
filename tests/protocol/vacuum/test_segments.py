"""Vacuum: it deletes exactly the objects that no process may still need, by the storage's own clock."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from tests.helpers.compaction import (
    DAY_MS,
    HOUR_MS,
    HookStore,
    abort,
    begin,
    commit,
    named_keys,
    new_store,
    reopen,
    rows,
    runtime,
    segment_keys,
    values,
)
from tests.helpers.connections import connection_of
from tests.helpers.producers import upload_all
from txnstore.core.maintenance import FORGET_AFTER_MS, DropObjects, ReplaceSegments
from txnstore.core.model import TopicPartition
from txnstore.errors import InvalidConfigError, ReadOnlyError, UploadExpiredError
from txnstore.storage.base import ObjectInfo
from txnstore.storage.counting import CountingStore
from txnstore.storage.memory import MemoryStore
from txnstore.store import Store, create_on, open_on
from txnstore.testing import Fault, FaultStore, ManualClock, SimulatedCrash, on

T0 = TopicPartition("t", 0)
ORPHAN = "topics/t/0/018bcfe5-6800-7259-8652-237b4f65d4d9.parquet"


@pytest.fixture
def objects(clock: ManualClock) -> HookStore:
    return HookStore(clock=clock)


@pytest.fixture
def store(clock: ManualClock, objects: HookStore, chains: int) -> Store:
    store = new_store(clock, objects, chains=chains)
    store.create_topic("t")
    return store


def test_a_table_format_of_none_is_no_table(store: Store) -> None:
    """A store in memory can publish none."""
    store.create_topic("plain", config={"table.format": "none"})
    assert store.vacuum().tables == ""


# The grace period -----------------------------------------------------------------------------------------------------


def test_unreferenced_upload_is_deleted_after_a_day(store: Store, clock: ManualClock) -> None:
    """OBJ-16: a millisecond before, it stays."""
    connection_of(store).objects.put(ORPHAN, b"abandoned")
    clock.advance(DAY_MS - 1)
    early = store.vacuum()
    assert (early.deleted, early.kept_young, early.bytes) == ((), 1, 0)
    clock.advance(1)
    report = store.vacuum()
    assert (report.deleted, report.kept_young, report.bytes) == ((ORPHAN,), 0, len(b"abandoned"))
    assert segment_keys(store) == set()


def test_age_is_measured_by_the_clock_of_the_storage(clock: ManualClock) -> None:
    """OBJ-05: a machine whose own clock is days ahead deletes nothing that is young."""
    storage_clock = ManualClock(clock() - 40 * DAY_MS)
    store = create_on(MemoryStore(clock=storage_clock), runtime=runtime(clock))
    store.create_topic("t")
    connection_of(store).objects.put(ORPHAN, b"young")
    clock.advance(30 * DAY_MS)
    assert store.vacuum().deleted == ()
    storage_clock.advance(DAY_MS)
    assert store.vacuum().deleted == (ORPHAN,)


@pytest.mark.usefixtures("own_objects")
def test_replaced_segments_are_kept_for_the_grace_period(store: Store, clock: ManualClock) -> None:
    """RET-09: the segments are old, but were replaced only now: the grace period begins with that."""
    for number in range(3):
        commit(store, [b"%d" % number])
    clock.advance(10 * DAY_MS)
    snapshot, before = store.snapshot(), rows(store)
    store.compact()
    clock.advance(DAY_MS - 1)
    assert store.vacuum().kept_young == 3
    assert rows(store, snapshot=snapshot) == before
    clock.advance(1)
    assert len(store.vacuum().deleted) == 3
    assert segment_keys(store) == named_keys(store)
    assert rows(store) == before


def test_segments_of_a_deleted_topic_are_kept_for_the_grace_period(store: Store, clock: ManualClock) -> None:
    commit(store, [b"a"])
    clock.advance(10 * DAY_MS)
    snapshot, before = store.snapshot(), rows(store)
    store.delete_topic("t")
    assert store.vacuum().deleted == ()
    assert rows(store, snapshot=snapshot) == before
    clock.advance(DAY_MS)
    assert len(store.vacuum().deleted) == 1
    assert segment_keys(store) == set()


def test_zero_grace_period_is_allowed(store: Store) -> None:
    commit(store, [b"a"])
    commit(store, [b"b"])
    store.compact()
    assert len(store.vacuum(0).deleted) == 2
    assert values(store) == [b"a", b"b"]


@pytest.mark.parametrize("older_than", [-1, float("nan"), float("inf"), "1", True])
def test_a_bad_grace_period_is_refused(store: Store, older_than: object) -> None:
    with pytest.raises(InvalidConfigError, match="older_than"):
        store.vacuum(older_than)  # type: ignore[arg-type]


# What is never deleted ------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("own_objects")
def test_referenced_segments_are_never_deleted(store: Store, clock: ManualClock) -> None:
    """Invariant 9: committed, aborted and open data alike."""
    commit(store, [b"a"])
    abort(store, [b"b"])
    with begin(store, [b"c"]) as producer:
        clock.advance(100 * DAY_MS)
        report = store.vacuum(0)
        assert (report.deleted, report.referenced) == ((), 3)
        producer.commit_transaction()
    assert values(store) == [b"a", b"c"]
    assert values(store, isolation="read_uncommitted") == [b"a", b"b", b"c"]


def test_recent_uploads_of_an_open_transaction_are_kept(store: Store, clock: ManualClock) -> None:
    """RET-10: a batch is uploaded, but no entry names it yet; a vacuum passes; the commit succeeds."""
    with store.producer("w", batch_bytes=1) as producer, producer.transaction():
        producer.send("t", b"a", partition=0)
        producer.flush()
        producer.send("t", b"uploaded", partition=0)
        upload_all(producer)
        assert len(segment_keys(store) - named_keys(store)) == 1
        clock.advance(HOUR_MS)
        report = store.vacuum()
        assert (report.deleted, report.kept_young, report.referenced) == ((), 1, 1)
    assert values(store) == [b"a", b"uploaded"]
    assert store.verify(deep=True).ok


@pytest.mark.usefixtures("own_objects")
def test_a_segment_that_is_registered_while_the_vacuum_runs_is_safe(
    store: Store, objects: HookStore, clock: ManualClock
) -> None:
    """RET-10: the objects are listed first, the state is read afterwards."""
    other = reopen(store, clock)
    commit(store, [b"a"])
    (key,) = named_keys(store)
    batch = connection_of(store).view().partitions[T0].batches
    # The segment is in the listing, old, and named only by an entry that comes after the listing.
    uploaded = "topics/t/0/018bcfe5-6800-7259-8652-000000000000.parquet"
    connection_of(store).objects.put(uploaded, connection_of(store).objects.get(key))
    clock.advance(2 * DAY_MS)

    def register() -> None:
        (old,) = batch
        new = replace(
            old,
            segment=replace(old.segment, object=uploaded),
            transactional=False,
            producer_id=-1,
            epoch=-1,
            base_sequence=-1,
        )
        connection_of(other).submit(ReplaceSegments(T0, (old,), (new,)))

    objects.after_list = register
    assert store.vacuum().deleted == ()
    assert values(store) == [b"a"]


@pytest.mark.usefixtures("own_objects")
def test_deletion_of_referenced_segments_is_refused(store: Store) -> None:
    """RET-10: a segment that was registered after the vacuum has looked at the state stays, whatever it asks for."""
    commit(store, [b"a"])
    (key,) = named_keys(store)
    assert connection_of(store).submit(DropObjects((key, "topics/t/0/nobody.parquet"))) == (
        "topics/t/0/nobody.parquet",
    )
    assert key not in connection_of(store).view().removals
    assert store.verify(deep=True).ok


def test_entries_and_foreign_objects_are_left_alone(store: Store, clock: ManualClock) -> None:
    foreign = ["topics/t/0/notes.txt", "topics/readme.parquet", "topics/t/x/a.parquet", "elsewhere/data.parquet"]
    for key in foreign:
        connection_of(store).objects.put(key, b"mine")
    chain = [item.key for item in connection_of(store).objects.list("chains/")]
    clock.advance(100 * DAY_MS)
    assert store.vacuum(0).deleted == ()
    assert [item.key for item in connection_of(store).objects.list("chains/")] == chain
    assert all(connection_of(store).objects.get(key) == b"mine" for key in foreign)


def test_dry_run_reports_and_deletes_nothing(store: Store, clock: ManualClock) -> None:
    """OBJ-16."""
    connection_of(store).objects.put(ORPHAN, b"abandoned")
    commit(store, [b"a"])
    commit(store, [b"b"])
    store.compact()
    clock.advance(DAY_MS)
    before, sequence = segment_keys(store), connection_of(store).view().sequence
    dry = store.vacuum(dry_run=True)
    assert dry.dry_run
    assert len(dry.deleted) == 3
    assert (segment_keys(store), connection_of(store).view().sequence) == (before, sequence)
    assert store.vacuum().deleted == dry.deleted


def test_a_store_that_is_read_only_is_not_vacuumed(store: Store, clock: ManualClock) -> None:
    connection_of(store).objects.put(ORPHAN, b"abandoned")
    clock.advance(DAY_MS)
    reader = open_on(connection_of(store).counts.inner, read_only=True)
    with pytest.raises(ReadOnlyError):
        reader.vacuum()
    assert reader.vacuum(dry_run=True).deleted == (ORPHAN,)
    assert segment_keys(store) == {ORPHAN}


# What the chain remembers ---------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("own_objects")
def test_deletion_is_announced_in_the_chain_first(clock: ManualClock) -> None:
    """OBJ-06: the entry decides whether a late writer or the vacuum was first."""
    store = create_on(CountingStore(MemoryStore(clock=clock), log=True), runtime=runtime(clock))
    store.create_topic("t")
    connection_of(store).objects.put(ORPHAN, b"abandoned")
    connection_of(store).counts.reset()
    store.vacuum(0)
    kinds = [kind for kind, _ in connection_of(store).counts.log if kind in ("list", "put_if_absent", "delete")]
    assert [kind for kind in kinds if kind != "list"] == ["put_if_absent", "delete"]
    assert kinds.count("list") == 11, "eight, and for its soundness checkpoints, boundaries and entries"
    assert list(connection_of(store).view().removals) == [ORPHAN]


@pytest.mark.usefixtures("own_objects")
def test_keys_deleted_long_ago_leave_the_state(store: Store, clock: ManualClock) -> None:
    """Not earlier than no upload of that age is accepted any more."""
    for number in range(3):
        commit(store, [b"%d" % number])
    store.compact()
    store.vacuum(0)
    clock.advance(FORGET_AFTER_MS - 1)
    store.vacuum()
    assert len(connection_of(store).view().removals) == 3
    clock.advance(1)
    store.vacuum()
    assert len(connection_of(store).view().removals) == 0
    sequence = connection_of(store).view().sequence
    store.vacuum()
    assert connection_of(store).view().sequence == sequence
    assert store.verify(deep=True).ok


@pytest.mark.usefixtures("own_objects")
def test_dropped_keys_stay_in_the_state_until_deleted(store: Store, clock: ManualClock) -> None:
    commit(store, [b"a"])
    commit(store, [b"b"])
    store.compact()
    clock.advance(FORGET_AFTER_MS)
    assert len(store.vacuum(FORGET_AFTER_MS / 1000 + 1).deleted) == 0
    assert len(connection_of(store).view().removals) == 2


@pytest.mark.usefixtures("own_objects")
@pytest.mark.parametrize("fault", [Fault.CRASH_BEFORE, Fault.CRASH_AFTER])
def test_later_vacuum_completes_an_announced_deletion(clock: ManualClock, fault: Fault) -> None:
    inner = MemoryStore(clock=clock)
    store = new_store(clock, inner)
    store.create_topic("t")
    for number in range(3):
        commit(store, [b"%d" % number])
    store.compact()
    connection_of(store).objects.put(ORPHAN, b"abandoned")
    dying = open_on(FaultStore(inner, on(fault, "delete", key_contains="topics/")), runtime=runtime(clock))
    with pytest.raises(SimulatedCrash):
        dying.vacuum(0)
    assert set(connection_of(store).view().removals) > {ORPHAN}
    clock.advance(DAY_MS)
    store.vacuum()
    assert segment_keys(store) == named_keys(store)
    assert values(store) == [b"0", b"1", b"2"]
    assert store.verify(deep=True).ok


# Writers that slept ---------------------------------------------------------------------------------------------------


def test_vacuumed_upload_is_refused_and_the_producer_can_retry(store: Store) -> None:
    """RET-10: either the object is there, or the append is refused; never a name without its object."""
    with store.producer("w", batch_bytes=1) as producer:
        producer.begin_transaction()
        producer.send("t", b"a", partition=0)
        upload_all(producer)
        assert len(store.vacuum(0).deleted) == 1
        with pytest.raises(UploadExpiredError):
            producer.commit_transaction()
        producer.abort_transaction()
        with producer.transaction():
            producer.send("t", b"a", partition=0)
    assert values(store) == [b"a"]
    assert store.verify(deep=True).ok


def test_compaction_with_a_vacuumed_upload_replaces_nothing(
    store: Store, objects: HookStore, clock: ManualClock
) -> None:
    """RET-10, for merged segments."""
    other = reopen(store, clock)
    for number in range(3):
        commit(store, [b"%d" % number])

    def sleep() -> None:
        clock.advance(DAY_MS)
        assert [key.partition("/")[0] for key in other.vacuum().deleted] == ["leases", "topics"]

    objects.after_put = sleep
    assert store.compact().conflicts == 1
    assert values(store) == [b"0", b"1", b"2"]
    assert store.compact().merges == 1
    assert store.verify(deep=True).ok


def test_compaction_paused_for_days_replaces_nothing(store: Store, objects: HookStore, clock: ManualClock) -> None:
    """RET-10: the names are forgotten, so the age of the upload decides."""
    other = reopen(store, clock)
    for number in range(3):
        commit(store, [b"%d" % number])

    def sleep() -> None:
        clock.advance(DAY_MS)
        other.vacuum()
        clock.advance(FORGET_AFTER_MS)
        other.vacuum()
        assert len(connection_of(other).view().removals) == 0

    objects.after_put = sleep
    assert store.compact().conflicts == 1
    assert values(store) == [b"0", b"1", b"2"]


def test_more_objects_than_one_request_deletes(store: Store, clock: ManualClock) -> None:
    for number in range(2_500):
        connection_of(store).objects.put(f"topics/t/0/{number:08d}.parquet", b"x")
    clock.advance(DAY_MS)
    counts = connection_of(store).counts.snapshot()
    report = store.vacuum()
    assert (len(report.deleted), report.bytes) == (2_500, 2_500)
    assert (connection_of(store).counts.snapshot() - counts).delete == 3
    assert segment_keys(store) == set()


class _IgnoringCase(HookStore):
    """A folder that ignores case: the topic ``T`` was deleted, and what ``t`` has written is in its folder."""

    def list(self, prefix: str, start_after: str = "", limit: int | None = None) -> Sequence[ObjectInfo]:
        listed = super().list(prefix, start_after, limit)
        return [replace(item, key=item.key.replace("topics/t/", "topics/T/")) for item in listed]

    def delete(self, names: Sequence[str]) -> None:
        super().delete([name.replace("topics/T/", "topics/t/") for name in names])


def test_vacuum_compares_keys_without_case(clock: ManualClock) -> None:
    objects = _IgnoringCase(clock=clock)
    store = new_store(clock, objects)
    store.create_topic("t", config={"inline.bytes": 0, "segment.own.bytes": 0})
    commit(store, [b"kept"])
    objects.put(ORPHAN, b"abandoned")
    clock.advance(2 * DAY_MS)
    report = store.vacuum()
    assert report.deleted == (ORPHAN.replace("topics/t/", "topics/T/"),)
    assert values(reopen(store, clock)) == [b"kept"]
