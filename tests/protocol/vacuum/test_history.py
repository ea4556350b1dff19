"""Old entries are deleted: which, when, and what can still be read (docs/internals/design/history.md)."""

from __future__ import annotations

from typing import Any

import pytest

from tests.helpers import keys
from tests.helpers.compaction import DAY_MS, HOUR_MS, batches, commit, new_store, reopen, rows, runtime, values
from tests.helpers.connections import connection_of
from tests.helpers.history import DAYS, Suspending, boundaries, numbers, pass_days
from tests.helpers.shell import ONE_CHAIN
from txnstore.chain.boundary import WAIT_MS, BoundaryDocument
from txnstore.chain.codec import encode
from txnstore.compactor import plan_repairs, repair
from txnstore.connection import Connection
from txnstore.errors import CorruptionError, SnapshotExpiredError
from txnstore.storage.memory import MemoryStore
from txnstore.store import Store, open_on
from txnstore.testing import ManualClock


@pytest.fixture
def store(used_for_days: Store) -> Store:
    return used_for_days


def _without(value: Any, member: str) -> Any:
    """JSON without the members of this name."""
    if isinstance(value, list):
        return [_without(item, member) for item in value]
    if not isinstance(value, dict):
        return value
    return {name: _without(item, member) for name, item in value.items() if name not in (member, "checksum")}


# Deleting -------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_entries_go_a_week_and_a_day_later_and_all_records_stay(
    store: Store, objects: MemoryStore, clock: ManualClock
) -> None:
    """OBJ-11: the number of objects does not grow with the history."""
    sizes = []
    for _ in range(3):
        pass_days(store, clock)
        sizes.append(len(numbers(objects)))
    assert len(set(sizes[1:])) == 1
    assert len(rows(store)) == len(rows(reopen(store, clock))) == 3 * DAYS * 4
    assert store.verify(deep=True).ok


@ONE_CHAIN
def test_a_boundary_announces_what_is_deleted_a_day_later(
    store: Store, objects: MemoryStore, clock: ManualClock
) -> None:
    for _ in range(8):
        commit(store, [b"x"])
    first = store.checkpoint()
    clock.advance(7 * DAY_MS)
    assert store.vacuum().announced == 0, "only a newer checkpoint makes entries unnecessary"
    commit(store, [b"x"])
    store.checkpoint()
    plan = store.vacuum(dry_run=True)
    assert (plan.announced, boundaries(objects)) == (first, [])
    assert store.vacuum().announced == first
    assert boundaries(objects) == [keys.boundary(0, 1)]
    clock.advance(WAIT_MS - 1)
    assert store.vacuum().deleted == ()
    clock.advance(1)
    plan = store.vacuum(dry_run=True)
    report = store.vacuum()
    assert report.deleted == plan.deleted == tuple(keys.entry(0, number) for number in range(1, first + 1))
    assert numbers(objects)[0] == first + 1
    assert store.verify(deep=True).ok


@ONE_CHAIN
def test_the_history_is_never_shorter_than_the_grace_period(store: Store, clock: ManualClock) -> None:
    for _ in range(3):
        commit(store, [b"x"])
        store.checkpoint()
    clock.advance(DAY_MS - 1)
    assert store.vacuum(history=0).announced == 0
    clock.advance(1)
    assert store.vacuum(history=0).announced > 0


@pytest.mark.slow
@ONE_CHAIN
def test_the_history_of_an_open_transaction_stays(store: Store, objects: MemoryStore, clock: ManualClock) -> None:
    """LSO-16, RET-02: from the entry on in which the earliest one began."""
    pass_days(store, clock)
    before = numbers(objects)[0]
    producer = store.producer(transactional_id="kept", two_phase_commit=True)
    producer.begin_transaction()
    producer.send("t", b"open", partition=0)
    producer.flush()
    first = store.transaction("kept").first_entry or 0
    state = connection_of(store).view().states[0]
    assert first == state.journal_watermark == state.sequence
    pass_days(store, clock)
    left = numbers(objects)
    assert left[-1] > first + 4 * DAYS
    assert left[0] <= first
    announced = before + 8  # By the vacuum of the last day, which has announced it without knowing the transaction.
    assert left[0] > announced
    with reopen(store, clock) as again:
        assert connection_of(again).view().states[0].journal_watermark == first
        assert [step.entry for step in again.transaction_history("kept").steps][-1] == first
        assert again.verify(deep=True).ok
        (finding,) = [each for each in again.doctor().findings if each.section == "transactions"]
        assert f"; a vacuum keeps the history from its entry {first} on" in finding.message
    producer.commit_transaction()
    pass_days(store, clock)
    assert numbers(objects)[0] > first
    assert connection_of(store).view().states[0].journal_watermark == numbers(objects)[-1] + 1


@ONE_CHAIN
def test_two_vacuums_create_one_boundary(store: Store, objects: MemoryStore, clock: ManualClock) -> None:
    made = []
    for _ in range(3):
        commit(store, [b"x"])
        made.append(store.checkpoint())
    clock.advance(8 * DAY_MS)
    other = reopen(store, clock)
    late = Suspending(objects)
    with open_on(late, runtime=runtime(clock)) as slow:
        late.before = lambda: other.vacuum(expire=False)
        assert slow.vacuum(expire=False).announced == 0
    assert len(boundaries(objects)) == 1
    assert connection_of(reopen(store, clock)).chains.boundaries() == [made[1]], "the newest two checkpoints stay"


@pytest.mark.slow
@pytest.mark.usefixtures("unmerged")
def test_entries_with_live_inlined_segments_stay(clock: ManualClock, objects: MemoryStore) -> None:
    """Readers use them as data and do not fold them, and verify checks their payloads."""
    store = new_store(clock, objects)
    store.create_topic("t")
    commit(store, [b"inlined"])
    kept = batches(store)[0].segment.object
    store.alter_topic("t", config={"inline.bytes": 0})
    pass_days(store, clock)
    assert kept in {item.key for item in objects.list(keys.entries(0))}
    assert numbers(objects)[1] > numbers(objects)[0] + 1
    with reopen(store, clock) as again:
        assert values(again)[0] == b"inlined"
        assert again.verify(deep=True).ok
    damaged = bytearray(objects.get(kept))
    damaged[5] ^= 1
    objects.put(kept, bytes(damaged))
    assert kept in {item.subject for item in reopen(store, clock).verify().violations}
    objects.put(kept, objects.get(kept)[:-3])
    assert kept in {item.subject for item in reopen(store, clock).verify().violations}


@pytest.mark.slow
@pytest.mark.usefixtures("unmerged")
def test_an_entry_stays_while_snapshots_may_read_a_segment_in_it(clock: ManualClock, objects: MemoryStore) -> None:
    """RET-09: the grace period begins when the segment is replaced, however old its entry is."""
    store = new_store(clock, objects)
    store.create_topic("t")
    for value in (b"1", b"2"):
        commit(store, [value])
    kept = {batch.segment.object for batch in batches(store)}
    pass_days(store, clock, 3)
    store.alter_topic("t", config={"inline.bytes": 0})
    pass_days(store, clock)
    assert kept < {item.key for item in objects.list(keys.entries(0))}
    before = store.snapshot()
    store.compact()
    clock.advance(DAY_MS - HOUR_MS)
    store.vacuum()
    with reopen(store, clock) as reader:
        past = reader.snapshot(entry=before.heads)
        assert [row["value"] for row in rows(reader, snapshot=past)][:2] == [b"1", b"2"]
    clock.advance(HOUR_MS)
    store.vacuum()
    store.vacuum()
    assert kept.isdisjoint(item.key for item in objects.list(keys.entries(0)))
    assert store.verify(deep=True).ok


# The past -------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_snapshots_reach_back_to_the_boundary(store: Store, clock: ManualClock) -> None:
    pinned = []
    for _ in range(DAYS):
        pass_days(store, clock, 1)
        pinned.append((clock(), store.snapshot()))
        clock.advance(1)
    firsts = connection_of(store).chains.boundaries()
    assert any(firsts)
    oldest = max(chain.boundaries.last().timestamp for chain in connection_of(store).chains)
    refused = 0
    for moment, snapshot in pinned:
        if moment < oldest:
            refused += 1
            with pytest.raises(SnapshotExpiredError, match="was deleted: the oldest snapshot is that of"):
                store.snapshot(timestamp=moment)
        else:
            assert store.snapshot(timestamp=moment).view.states == snapshot.view.states
    assert 0 < refused < DAYS - 6
    assert store.snapshot(timestamp=oldest).heads >= tuple(firsts)
    assert store.snapshot(entry=tuple(chain.state.sequence for chain in connection_of(store).chains)) is not None
    with pytest.raises(SnapshotExpiredError, match=f"from {firsts[0]} to"):
        store.snapshot(entry=(firsts[0] - 1, *firsts[1:]))


@pytest.mark.slow
@ONE_CHAIN
def test_what_shows_the_history_shows_what_is_left(store: Store, clock: ManualClock) -> None:
    pass_days(store, clock)
    first, last = connection_of(store).chains.boundaries()[0], connection_of(store).view().sequence
    history = store.transaction_history("daily", limit=1_000)
    assert not history.complete
    assert min(step.entry for step in history.steps) == first + 1
    bounds = store.sql("select min(sequence), max(sequence), count(*) from txn.entries").fetchall()
    assert bounds == [(first + 1, last, last - first)]


@pytest.mark.slow
def test_what_expires_after_a_week_expires_although_its_entries_are_deleted(store: Store, clock: ManualClock) -> None:
    """The age of deleted entries is known by their boundary."""
    commit(store, [b"x"], writer="once")
    pass_days(store, clock, 20)
    ids = {txn.transactional_id for state in connection_of(store).view().states for txn in state.transactions.values()}
    assert ids == {"daily"}


@ONE_CHAIN
def test_what_is_watched_for_longer_than_the_history_expires_by_earlier_boundaries(
    store: Store, clock: ManualClock
) -> None:
    other = reopen(store, clock)
    for _ in range(DAYS):
        commit(other, [b"x"])
        other.checkpoint()
        clock.advance(DAY_MS)
        other.vacuum(history=0)
    chain = connection_of(other).chain
    times = [other.snapshot(entry=chain.state.sequence).view.states[0].timestamp]
    timestamps = [
        connection_of(other).chains.ages.newest_older_than(chain.state, days * DAY_MS) for days in range(DAYS + 2)
    ]
    assert timestamps == sorted(timestamps, reverse=True)
    assert timestamps[0] == times[0]
    assert timestamps[5] > 0, "five days ago is before the history, and after the first boundary"
    assert timestamps[-1] == -1


# Damage ---------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@ONE_CHAIN
@pytest.mark.parametrize("which", ["first", "last", "last two", "damaged"])
def test_lost_boundaries_are_reported_and_written_again(
    store: Store, objects: MemoryStore, clock: ManualClock, which: str
) -> None:
    pass_days(store, clock)
    store.checkpoint()
    made = boundaries(objects)
    lost = {"first": made[:1], "last": made[-1:], "last two": made[-2:], "damaged": made[-1:]}[which]
    objects.put(lost[0], b"{}") if which == "damaged" else objects.delete(lost)
    before, entries = rows(store), numbers(objects)
    if which == "damaged":
        with pytest.raises(CorruptionError, match=lost[0]):
            reopen(store, clock)
    violations = [(item.name, item.subject) for item in store.verify().violations]
    assert [subject for name, subject in violations if name == "boundary_intact"] == lost
    assert which == "last two" or len(violations) == len(lost)
    plan = plan_repairs(Connection(objects, runtime=runtime(clock)))
    assert sorted(item.key for item in plan.repairs) == lost
    assert plan.opens
    repair(Connection(objects, runtime=runtime(clock)), plan)
    again = reopen(store, clock)
    assert again.verify(deep=True).ok
    assert rows(again) == before
    assert numbers(objects) == entries
    assert plan_repairs(Connection(objects, runtime=runtime(clock))).repairs == ()


@pytest.mark.slow
@ONE_CHAIN
@pytest.mark.parametrize("which", ["older", "of the future"])
def test_a_boundary_that_another_one_was_put_in_place_of_is_written_again(
    store: Store, objects: MemoryStore, clock: ManualClock, which: str
) -> None:
    """It is intact, and cannot be that of this chain: it goes back, or no checkpoint is as new."""
    pass_days(store, clock)
    store.checkpoint()
    *_, before, last = boundaries(objects)
    wrong = BoundaryDocument(sequence=1 if which == "older" else 10_000, timestamp=clock(), modified_ms=clock())
    expected, entries = rows(store), numbers(objects)
    objects.put(last, encode(wrong))
    if which == "of the future":
        with pytest.raises(CorruptionError, match="no readable checkpoint of entry 10000"):
            reopen(store, clock)
    assert ("boundary_intact", last) in {(item.name, item.subject) for item in store.verify().violations}
    plan = plan_repairs(Connection(objects, runtime=runtime(clock)))
    assert ([item.key for item in plan.repairs], plan.lost) == ([last], ())
    repair(Connection(objects, runtime=runtime(clock)), plan)
    with reopen(store, clock) as again:
        assert rows(again) == expected
        assert again.verify(deep=True).ok
    assert (numbers(objects), before in boundaries(objects)) == (entries, True)


@pytest.mark.slow
@ONE_CHAIN
def test_a_missing_entry_after_the_boundary_is_damage(store: Store, objects: MemoryStore, clock: ManualClock) -> None:
    pass_days(store, clock)
    missing = numbers(objects)[-1] - 3
    objects.delete([keys.entry(0, missing)])
    assert ("entry_present", keys.entry(0, missing)) in {
        (item.name, item.subject) for item in reopen(store, clock).verify().violations
    }


@ONE_CHAIN
def test_a_boundary_after_the_last_checkpoint_is_refused(
    store: Store, objects: MemoryStore, clock: ManualClock
) -> None:
    commit(store, [b"x"])
    store.checkpoint()
    document = BoundaryDocument(sequence=99, timestamp=clock(), modified_ms=clock())
    assert objects.put_if_absent(keys.boundary(0, 1), encode(document))
    with pytest.raises(CorruptionError, match="no readable checkpoint of entry 99"):
        reopen(store, clock)
