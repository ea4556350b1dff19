"""Lost boundaries, stale hints and old backups: no process takes deleted entries for the end of a chain."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

import duckdb
import pytest

from tests.helpers import keys
from tests.helpers.compaction import HOUR_MS, commit, reopen, rows, runtime, values
from tests.helpers.connections import connection_of
from tests.helpers.history import Suspending, boundaries, numbers, pass_days
from tests.helpers.repairs import bytes_of
from tests.helpers.shell import ONE_CHAIN
from txnstore.chain.boundary import LEASE_MS
from txnstore.compactor import plan_repairs, repair
from txnstore.connection import Connection
from txnstore.errors import CorruptionError, StorageRefusedError, UnknownOutcomeError, UnsoundStoreError
from txnstore.storage.base import ObjectInfo
from txnstore.storage.counting import CountingStore
from txnstore.storage.memory import MemoryStore
from txnstore.store import Store, open_on
from txnstore.testing import ManualClock


@pytest.fixture
def store(used_for_days: Store) -> Store:
    return used_for_days


class Unlisted(Suspending):
    """The storage as a reader sees it that may not list."""

    def list(self, prefix: str, start_after: str = "", limit: int | None = None) -> list[ObjectInfo]:
        raise StorageRefusedError(f"may not list {prefix}")


def _lose(objects: MemoryStore, which: str) -> None:
    """Lose the first, a middle one, the last or all boundaries of chain 0."""
    made = boundaries(objects)
    assert len(made) >= 3
    objects.delete({"first": made[:1], "middle": made[1:2], "last": made[-1:], "all": made}[which])


class Racing(Suspending):
    """The storage of a process that lists the entries while others are created: only the newer one is in the list.

    ``meanwhile``: called once, within a list of entries, which misses the first entry that it creates.
    ``waits``: the number of lists of entries before that.
    """

    meanwhile: Callable[[], object] | None = None
    raced, waits = False, 0

    def list(self, prefix: str, start_after: str = "", limit: int | None = None) -> Sequence[ObjectInfo]:
        if self.meanwhile is None or not prefix.endswith("/entries/"):
            return self.inner.list(prefix, start_after, limit)
        if self.waits:
            self.waits -= 1
            return self.inner.list(prefix, start_after, limit)
        before = {item.key for item in self.inner.list(prefix, start_after)}
        meanwhile, self.meanwhile = self.meanwhile, None
        meanwhile()
        self.raced = True
        missed = next(item.key for item in self.inner.list(prefix, start_after) if item.key not in before)
        return [item for item in self.inner.list(prefix, start_after) if item.key != missed][:limit]


# Processes that slept -------------------------------------------------------------------------------------------------

LOST = pytest.mark.parametrize("which", ["first", "middle", "last", "all"])


@pytest.mark.slow
@ONE_CHAIN
@LOST
def test_a_sleeper_commits_at_the_head_although_boundaries_are_lost(
    store: Store, objects: MemoryStore, clock: ManualClock, which: str
) -> None:
    """The first name that is free is that of a deleted entry, and the next boundary that it knows of may be lost."""
    pass_days(store, clock, 9)
    sleeper = reopen(store, clock)
    producer = sleeper.producer()
    producer.send("t", b"before").result()
    pass_days(store, clock)
    deleted = set(range(1, numbers(objects)[0]))
    _lose(objects, which)
    producer.send("t", b"after").result()
    assert values(reopen(store, clock))[-1] == b"after"
    assert deleted.isdisjoint(numbers(objects))


@pytest.mark.slow
@ONE_CHAIN
@LOST
def test_a_sleeper_within_its_commit_acknowledges_nothing_although_boundaries_are_lost(
    store: Store, objects: MemoryStore, clock: ManualClock, which: str
) -> None:
    slow = Suspending(objects)
    with open_on(slow, runtime=runtime(clock)) as sleeper:

        def slept() -> None:
            pass_days(store, clock)
            _lose(objects, which)

        slow.before = slept
        with pytest.raises(UnknownOutcomeError, match="suspended"):
            sleeper.create_topic("lost")
        assert [topic.name for topic in sleeper.topics()] == ["t"]
        sleeper.create_topic("found")
    assert [topic.name for topic in reopen(store, clock).topics()] == ["found", "t"]


@pytest.mark.slow
@ONE_CHAIN
@LOST
def test_a_reader_that_slept_reads_on_at_the_head_although_boundaries_are_lost(
    store: Store, objects: MemoryStore, clock: ManualClock, which: str
) -> None:
    reader = reopen(store, clock)
    assert rows(reader) == []
    pass_days(store, clock)
    _lose(objects, which)
    assert rows(reader) == rows(store)


@pytest.mark.slow
@ONE_CHAIN
def test_a_boundary_that_was_lost_and_created_again_does_not_mislead_a_sleeper(
    store: Store, objects: MemoryStore, clock: ManualClock
) -> None:
    """It knows the number, and not what is deleted by now; no hint names the lost one."""
    pass_days(store, clock, 9)
    sleeper = reopen(store, clock)
    boundary = connection_of(sleeper).chain.boundaries.last()
    lost = boundaries(objects)[-1]
    objects.delete([lost, keys.latest(0)])
    pass_days(store, clock)
    assert lost in boundaries(objects)
    assert boundary.sequence < numbers(objects)[0]
    assert rows(sleeper) == rows(store)
    sleeper.create_topic("new")
    assert "new" in {topic.name for topic in reopen(store, clock).topics()}


@ONE_CHAIN
def test_a_process_that_has_not_slept_lists_nothing(store: Store, objects: MemoryStore, clock: ManualClock) -> None:
    """Two lists and a GET, twice a day, and none in between."""
    counting = CountingStore(objects, log=True)
    with open_on(counting, runtime=runtime(clock)) as reader:
        counting.reset()
        for _ in range(48):
            clock.advance(HOUR_MS)
            reader.topics()
        listed = [key for kind, key in counting.log if kind == "list"]
    assert listed == [keys.boundaries(0), keys.entries(0)] * 4


@ONE_CHAIN
def test_a_missing_entry_without_a_later_checkpoint_is_an_error_for_a_sleeper(
    store: Store, objects: MemoryStore, clock: ManualClock
) -> None:
    reader = reopen(store, clock)
    first = connection_of(reader).chain.state.sequence + 1
    for _ in range(4):
        commit(store, [b"x"])
    objects.delete([keys.entry(0, number) for number in range(first, first + 4)])
    clock.advance(LEASE_MS)
    for _ in range(2):
        with pytest.raises(
            CorruptionError, match=f"no readable checkpoint of entry {first + 3} or a later one"
        ) as raised:
            reader.topics()
        assert f"{keys.entry(0, first + 3)} may be deleted, or lost" in str(raised.value)


@ONE_CHAIN
def test_an_entry_that_was_created_while_the_entries_are_listed_is_no_gap(
    store: Store, objects: MemoryStore, clock: ManualClock
) -> None:
    """A list is no snapshot: that of a large local folder misses an entry, and has one that was created after it."""
    racing = Racing(objects)
    with open_on(racing, runtime=runtime(clock)) as reader:
        clock.advance(LEASE_MS)
        racing.meanwhile = lambda: [store.create_topic(name) for name in ("a", "b", "c")]
        reader.topics()
        assert [topic.name for topic in reader.topics()] == ["a", "b", "c", "t"]
    assert racing.raced


@ONE_CHAIN
def test_a_verification_beside_a_writer_misses_no_entry(store: Store, objects: MemoryStore, clock: ManualClock) -> None:
    racing = Racing(objects)
    with open_on(racing, runtime=runtime(clock)) as reader:
        racing.meanwhile = lambda: [store.create_topic(name) for name in ("a", "b", "c")]
        assert reader.verify().violations == ()
    assert racing.raced


@ONE_CHAIN
@pytest.mark.parametrize("waits", [0, 1])
def test_a_recovery_beside_a_writer_finds_nothing_lost(
    store: Store, objects: MemoryStore, clock: ManualClock, waits: int
) -> None:
    racing = Racing(objects)
    racing.waits = waits
    with open_on(racing, runtime=runtime(clock)) as reader:
        racing.meanwhile = lambda: [store.create_topic(name) for name in ("a", "b", "c")]
        plan = plan_repairs(connection_of(reader))
        assert (plan.repairs, plan.lost, plan.past) == ((), (), ())
    assert racing.raced


# Stale hints, and backups that were laid over a store -----------------------------------------------------------------


@pytest.mark.slow
@ONE_CHAIN
@pytest.mark.parametrize("which", ["none", "first", "middle", "last", "all"])
def test_an_old_backup_laid_over_a_store_opens_with_all_records(
    store: Store, objects: MemoryStore, clock: ManualClock, which: str
) -> None:
    """Its hint names an old checkpoint, whose entries exist again, and those that follow them are deleted."""
    pass_days(store, clock, 3)
    backup = bytes_of(objects)
    pass_days(store, clock, 14)
    before = rows(store)
    deleted = set(range(1, numbers(objects)[0]))
    for key, data in backup.items():
        objects.put(key, data)
    missing = deleted - set(numbers(objects))
    assert missing, "else this tests nothing"
    if which != "none":
        _lose(objects, which)
    with reopen(store, clock) as again:
        assert rows(again) == before
        commit(again, [b"after"])
    assert missing.isdisjoint(numbers(objects))
    assert values(store)[-1] == b"after"


@pytest.mark.slow
@ONE_CHAIN
def test_an_old_backup_that_replaced_all_but_newer_entries_opens_as_it_was_and_is_named(
    store: Store, objects: MemoryStore, clock: ManualClock
) -> None:
    """The case that an open does not notice: no object that it reads is newer. Whatever else looks, does."""
    pass_days(store, clock, 3)
    backup, then = bytes_of(objects), rows(store)
    pass_days(store, clock, 30)  # The first entry that is left is too far ahead.
    names = connection_of(store).keys
    newer = numbers(objects)
    objects.delete([item.key for kind in (names.checkpoints, names.boundaries) for item in objects.list(kind(0))])
    for key, data in backup.items():
        objects.put(key, data)
    assert numbers(objects)[-1] == newer[-1], "newer entries are left, behind a gap"
    before = bytes_of(objects)
    with reopen(store, clock) as again:
        assert rows(again) == then
        head = connection_of(again).chain.state.sequence
        lost = names.entry(0, head + 1)
        assert head + 1 < newer[0]
        assert lost in {item.subject for item in again.verify().violations}
        assert [item.command for item in again.doctor().findings if lost in item.message] == ["txnstore recover"]
        with pytest.raises(UnsoundStoreError, match=f"{lost}: it is missing, though entry {newer[0]} exists"):
            again.vacuum()
    plan = plan_repairs(Connection(objects, runtime=runtime(clock)))
    assert lost in {item.key for item in plan.lost}
    assert {key: data for key, data in bytes_of(objects).items() if key in before} == before


@pytest.mark.slow
@ONE_CHAIN
def test_an_old_backup_that_replaced_all_but_entries_a_few_days_newer_does_not_open(
    store: Store, objects: MemoryStore, clock: ManualClock
) -> None:
    """The same, and an open sees the newer entries: it asks for some far ahead."""
    pass_days(store, clock, 3)
    backup = bytes_of(objects)
    pass_days(store, clock, 14)
    names = connection_of(store).keys
    objects.delete([item.key for kind in (names.checkpoints, names.boundaries) for item in objects.list(kind(0))])
    for key, data in backup.items():
        objects.put(key, data)
    with pytest.raises(CorruptionError, match="is missing, but later entries exist"):
        reopen(store, clock)


@ONE_CHAIN
@pytest.mark.parametrize("damage", ["missing", "altered", "three are missing"])
def test_an_entry_is_lost_that_only_an_old_hint_needs(
    store: Store, objects: MemoryStore, clock: ManualClock, damage: str
) -> None:
    """The store opens with the newest checkpoint, `recover` writes the hint again, and verify names the entry."""
    commit(store, [b"1"])
    old = store.checkpoint()
    hint = objects.get(keys.latest(0))
    for _ in range(4):
        commit(store, [b"2"])
    new = store.checkpoint()
    commit(store, [b"3"])
    objects.put(keys.latest(0), hint)
    assert plan_repairs(Connection(objects, runtime=runtime(clock))).repairs == (), "a stale hint is no damage"
    lost = [keys.entry(0, number) for number in range(old + 1, old + (4 if damage == "three are missing" else 2))]
    objects.put(lost[0], b"{}") if damage == "altered" else objects.delete(lost)
    before = rows(store)
    assert rows(reopen(store, clock)) == before
    plan = plan_repairs(Connection(objects, runtime=runtime(clock)))
    assert (plan.lost, [item.key for item in plan.repairs]) == ((), [keys.latest(0)])
    repair(Connection(objects, runtime=runtime(clock)), plan)
    assert b'"sequence":%d,' % new in objects.get(keys.latest(0))
    assert plan_repairs(Connection(objects, runtime=runtime(clock))).repairs == ()
    with reopen(store, clock) as again:
        assert rows(again) == before
        assert {item.subject for item in again.verify().violations} >= {lost[0]}


@ONE_CHAIN
def test_a_later_checkpoint_that_is_damaged_does_not_prevent_opening(
    store: Store, objects: MemoryStore, clock: ManualClock
) -> None:
    commit(store, [b"1"])
    store.checkpoint()
    hint = objects.get(keys.latest(0))
    commit(store, [b"2"])
    objects.put(keys.checkpoint_state(0, store.checkpoint()), b"{}")
    objects.put(keys.latest(0), hint)
    assert values(reopen(store, clock)) == [b"1", b"2"]


@ONE_CHAIN
def test_a_reader_that_may_not_list_opens_the_store(
    store: Store, objects: MemoryStore, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    """MinIO answers 404 without the permission to list, so readers work there without it."""
    commit(store, [b"1"])
    store.checkpoint()
    with (
        caplog.at_level(logging.INFO, "txnstore"),
        open_on(Unlisted(objects), read_only=True, runtime=runtime(clock)) as again,
    ):
        assert values(again) == [b"1"]
    (record,) = [item for item in caplog.records if item.message.startswith("later checkpoints not listed")]
    assert record.levelno == logging.INFO, "each of its opens does that, for each chain"


@pytest.mark.slow
@ONE_CHAIN
def test_the_entries_in_sql_do_not_leave_a_lost_one_out(store: Store, objects: MemoryStore, clock: ManualClock) -> None:
    """One that a vacuum has deleted since is left out, with all before it; one that is lost is an error."""
    pass_days(store, clock)
    query = "select min(sequence) from txn.entries"
    ((first,),) = store.sql(query).fetchall()
    lost = first + 3
    objects.delete([keys.entry(0, lost)])
    with reopen(store, clock) as again, pytest.raises(duckdb.Error, match=f"{keys.entry(0, lost)} is missing"):
        again.sql(query).fetchall()
    history = reopen(store, clock).transaction_history("daily", limit=1_000)
    assert not history.complete


@pytest.mark.slow
@ONE_CHAIN
def test_an_old_checkpoint_is_not_believed_by_a_reader_that_may_not_list(
    store: Store, objects: MemoryStore, clock: ManualClock
) -> None:
    """It asks for the boundary after the one that the hint names, and then for what it may not see."""
    commit(store, [b"x"])
    slow = Suspending(objects)
    with open_on(slow, runtime=runtime(clock)) as sleeper:
        slow.before = lambda: pass_days(store, clock)
        sleeper.checkpoint()
    with pytest.raises(StorageRefusedError, match="may not list"):
        open_on(Unlisted(objects), read_only=True, runtime=runtime(clock))


# The vacuum -----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@ONE_CHAIN
@pytest.mark.parametrize("which", ["first", "middle"])
def test_a_vacuum_refuses_to_go_on_where_a_boundary_is_lost(
    store: Store, objects: MemoryStore, clock: ManualClock, which: str
) -> None:
    """Until `recover` has written it again."""
    pass_days(store, clock)
    made, entries = boundaries(objects), numbers(objects)
    lost = made[0 if which == "first" else 1]
    objects.delete([lost])
    clock.advance(3 * 24 * HOUR_MS)
    with pytest.raises(UnsoundStoreError, match=f"{lost}: it is missing or damaged.*txnstore recover"):
        store.vacuum()
    with pytest.raises(CorruptionError, match=f"{lost} is missing, and a later one exists.*txnstore recover"):
        store.vacuum(force=True)
    assert (boundaries(objects), numbers(objects)) == ([key for key in made if key != lost], entries)
    repair(Connection(objects, runtime=runtime(clock)), plan_repairs(Connection(objects, runtime=runtime(clock))))
    store.vacuum()
    assert store.verify(deep=True).ok


@ONE_CHAIN
def test_lost_checkpoints_of_a_history_are_what_is_to_be_put_back(
    store: Store, objects: MemoryStore, clock: ManualClock
) -> None:
    """Not the entries before them, which a vacuum has deleted, and no backup has."""
    pass_days(store, clock)
    begins = numbers(objects)[0] - 1
    checkpoints = {item.key: objects.get(item.key) for item in objects.list(keys.checkpoints(0))}
    objects.delete(list(checkpoints))
    plan = plan_repairs(Connection(objects, runtime=runtime(clock)))
    blocking = [loss for loss in plan.lost if loss.blocks]
    assert [loss.key in checkpoints for loss in blocking] == [True], plan.lost
    number = int(blocking[0].key.split("/")[-2])
    assert number >= begins
    assert f"no checkpoint of entry {number} or a later one can be read" in blocking[0].damage
    for key, data in checkpoints.items():
        if f"{number:020d}" <= key.split("/checkpoints/")[1]:
            objects.put(key, data)
    assert Connection(objects, runtime=runtime(clock)).view().sequence
