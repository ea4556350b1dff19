"""Processes that sleep while old entries are deleted, and stores that are opened then.

See docs/internals/design/history.md.
"""

from __future__ import annotations

import pytest

from tests.helpers import documents, keys
from tests.helpers.compaction import DAY_MS, HOUR_MS, commit, new_store, reopen, rows, runtime, values
from tests.helpers.connections import connection_of
from tests.helpers.history import DAYS, Suspending, boundaries, numbers, pass_days
from tests.helpers.repairs import checkpoints
from tests.helpers.shell import ONE_CHAIN
from txnstore.chain.boundary import LEASE_MS
from txnstore.chain.codec import encode
from txnstore.compactor import plan_repairs, repair
from txnstore.connection import Connection
from txnstore.errors import (
    CorruptionError,
    SnapshotExpiredError,
    UnknownOutcomeError,
    UnsoundStoreError,
)
from txnstore.storage.base import ObjectInfo
from txnstore.storage.counting import CountingStore
from txnstore.storage.memory import MemoryStore
from txnstore.store import Store, open_on
from txnstore.testing import ManualClock


@pytest.fixture
def store(used_for_days: Store) -> Store:
    return used_for_days


# Processes that slept -------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_writer_that_has_slept_commits_at_the_head(store: Store, objects: MemoryStore, clock: ManualClock) -> None:
    sleeper = reopen(store, clock)
    producer = sleeper.producer()
    producer.send("t", b"before").result()
    pass_days(store, clock)
    deleted = set(range(1, numbers(objects)[0]))
    producer.send("t", b"after").result()
    assert values(reopen(store, clock))[-1] == b"after"
    assert deleted.isdisjoint(numbers(objects))


@pytest.mark.slow
@ONE_CHAIN
def test_a_writer_that_has_slept_after_an_unknown_outcome_commits_at_the_head(
    store: Store, objects: MemoryStore, clock: ManualClock
) -> None:
    """It does not offer the entry again: its name is free by now, and the new command would wait for it."""
    slow = Suspending(objects)
    with open_on(slow, runtime=runtime(clock)) as sleeper:
        _offer_in_vain(sleeper, slow)
        pass_days(store, clock)
        deleted = set(range(1, numbers(objects)[0]))
        sleeper.create_topic("new")
    assert [topic.name for topic in reopen(store, clock).topics()] == ["new", "t"]
    assert deleted.isdisjoint(numbers(objects))


@pytest.mark.slow
@ONE_CHAIN
def test_a_command_does_not_fail_because_of_an_earlier_one(
    store: Store, objects: MemoryStore, clock: ManualClock
) -> None:
    """Its process is suspended while it offers the earlier entry again; the new command was in no entry."""
    slow = Suspending(objects)
    with open_on(slow, runtime=runtime(clock)) as sleeper:
        _offer_in_vain(sleeper, slow)
        slow.before = lambda: pass_days(store, clock)
        sleeper.create_topic("new")
    assert [topic.name for topic in reopen(store, clock).topics()] == ["new", "t"]


@pytest.mark.slow
@ONE_CHAIN
def test_a_writer_suspended_in_its_commit_acknowledges_nothing(
    store: Store, objects: MemoryStore, clock: ManualClock
) -> None:
    """OBJ-06, engine.md §5: its create succeeds, since the name is free again; but the entry is none of the chain."""
    slow = Suspending(objects)
    with open_on(slow, runtime=runtime(clock)) as sleeper:
        slow.before = lambda: pass_days(store, clock)
        with pytest.raises(UnknownOutcomeError, match="suspended"):
            sleeper.create_topic("lost")
        wrong, *right = numbers(objects)
        assert wrong < right[0] - 1
        with reopen(store, clock) as other:
            assert [topic.name for topic in other.topics()] == ["t"]
            assert other.verify(deep=True).ok
        assert [topic.name for topic in sleeper.topics()] == ["t"]
        sleeper.create_topic("found")
    assert [topic.name for topic in reopen(store, clock).topics()] == ["found", "t"]
    assert keys.entry(0, wrong) in store.vacuum().deleted


@pytest.mark.slow
@ONE_CHAIN
def test_a_process_that_has_slept_does_not_read_the_entry_of_another_one(
    store: Store, objects: MemoryStore, clock: ManualClock
) -> None:
    slow, reader, follower = Suspending(objects), reopen(store, clock), reopen(store, clock)
    with open_on(slow, runtime=runtime(clock)) as sleeper:
        slow.before = lambda: pass_days(store, clock)
        with pytest.raises(UnknownOutcomeError):
            sleeper.create_topic("lost")
    assert numbers(objects)[0] == connection_of(reader).chain.state.sequence + 1
    assert [topic.name for topic in reader.topics()] == ["t"]
    assert rows(reader) == rows(store)
    wrong = numbers(objects)[0]
    assert connection_of(follower).chain.refresh(wrong).sequence > wrong, "not even if it looks no further"


@pytest.mark.slow
@ONE_CHAIN
@pytest.mark.parametrize("suspended", [True, False], ids=["the clocks stand still", "the machine is suspended"])
def test_a_reader_that_has_slept_reads_on_at_the_head(
    store: Store, objects: MemoryStore, clock: ManualClock, *, suspended: bool
) -> None:
    """The wall clock of a suspended machine advances, its monotonic one may not; or only one of both is right."""
    own, stopped = ManualClock(clock()), ManualClock(0)
    given = runtime(own)
    object.__setattr__(given, "uptime", stopped)
    reader = open_on(objects, runtime=given)
    assert rows(reader) == []
    pass_days(store, clock)
    (own if suspended else stopped).advance(LEASE_MS)
    assert len(rows(reader)) == 4 * DAYS


@pytest.mark.slow
@ONE_CHAIN
def test_a_reader_that_sleeps_again_while_it_begins_again(
    store: Store, objects: MemoryStore, clock: ManualClock
) -> None:
    """The checkpoint that it reads is the newest one before, and too old afterwards."""

    class Slow(Suspending):
        def get(self, key: str, *rest: int | None) -> bytes:
            if key.endswith("state.json"):
                self._suspend()
            return self.inner.get(key, *rest)

    slow = Slow(objects)
    reader = open_on(slow, runtime=runtime(clock))
    assert rows(reader) == []
    pass_days(store, clock)
    slow.before = lambda: pass_days(store, clock)
    assert len(rows(reader)) == 8 * DAYS


@pytest.mark.slow
@ONE_CHAIN
@pytest.mark.parametrize("commits", [False, True])
def test_a_process_that_has_slept_does_not_go_back_before_a_damaged_checkpoint(
    store: Store, objects: MemoryStore, clock: ManualClock, commits: bool
) -> None:
    """The newest checkpoint shows that its entry existed: the end of what an older one leads to is not the head."""
    sleeper = open_on(objects, runtime=runtime(clock))
    sleeper.topics()
    pass_days(store, clock)
    for number in range(8):
        commit(store, [b"%d" % number])
    last = store.checkpoint()
    older = checkpoints(objects)[-2]
    head = keys.checkpoint_state(0, last)
    objects.put(head, objects.get(head)[:-9])
    objects.delete([keys.entry(0, number) for number in range(older + 1, last + 1)])
    with pytest.raises(CorruptionError, match=f"{keys.entry(0, older + 1)} is missing, but {head} .*recover"):
        sleeper.create_topic("another") if commits else rows(sleeper)
    assert not objects.list(keys.entry(0, older + 1))


@pytest.mark.slow
def test_a_process_suspended_while_it_opens_an_empty_chain_reads_on_at_the_head(
    clock: ManualClock, objects: MemoryStore
) -> None:
    """It has found no entry 1 and no hint; when it lists the entries, the first ones are deleted."""

    class Slow(Suspending):
        def list(self, prefix: str, start_after: str = "", limit: int | None = None) -> list[ObjectInfo]:
            if prefix == keys.KEYS.chain(0):
                self._suspend()
            return list(self.inner.list(prefix, start_after, limit))

    store = new_store(clock, objects, chains=1)
    slow = Slow(objects)

    def used() -> None:
        store.create_topic("t", config={"inline.bytes": 0})
        pass_days(store, clock)

    slow.before = used
    assert rows(open_on(slow, runtime=runtime(clock))) == rows(store)
    assert numbers(objects)[0] > 1


@pytest.mark.slow
@ONE_CHAIN
def test_an_old_checkpoint_that_comes_back_is_not_believed(
    store: Store, objects: MemoryStore, clock: ManualClock
) -> None:
    """A writer of checkpoints that was suspended writes all objects of an old one, and the hint to it."""
    commit(store, [b"x"])
    slow = Suspending(objects)
    with open_on(slow, runtime=runtime(clock)) as sleeper:
        slow.before = lambda: pass_days(store, clock)
        old = sleeper.checkpoint()
    assert old < numbers(objects)[0]
    assert objects.get(keys.latest(0)).count(b'"sequence":%d,' % old) == 1
    with reopen(store, clock) as again:
        assert rows(again) == rows(store)
        again.create_topic("new")
    assert "new" in {topic.name for topic in store.topics()}
    assert store.verify(deep=True).ok


@ONE_CHAIN
def test_a_process_that_knows_a_later_boundary_writes_no_checkpoint_of_before(
    store: Store, objects: MemoryStore, clock: ManualClock
) -> None:
    chain = connection_of(store).chain
    old = chain.state
    pass_days(store, clock)
    store.topics()
    before = {item.key: objects.get(item.key) for item in objects.list("")}
    chain._saver.save(old)
    assert {item.key: objects.get(item.key) for item in objects.list("")} == before


def _offer_in_vain(store: Store, storage: Suspending) -> None:
    """Commit what never arrives, and do not learn that."""
    storage.down = True
    with pytest.raises(UnknownOutcomeError, match="did not confirm"):
        store.create_topic("lost")
    storage.down = False


# Opening --------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_opening_needs_no_hint(store: Store, objects: MemoryStore, clock: ManualClock) -> None:
    pass_days(store, clock)
    objects.delete([keys.latest(number) for number in range(len(connection_of(store).chains))])
    with reopen(store, clock) as again:
        assert rows(again) == rows(store)
    plan = plan_repairs(Connection(objects, runtime=runtime(clock)))
    repair(Connection(objects, runtime=runtime(clock)), plan)
    opening = CountingStore(objects, log=True)
    with open_on(opening, runtime=runtime(clock)) as again:
        assert rows(again) == rows(store)
        chains = connection_of(again).chains
        listed = {keys.checkpoints(chain.number) for chain in chains}
        listed |= {keys.KEYS.chain(chain.number) for chain in chains if not chain.state.sequence}
        assert {key for kind, key in opening.log if kind == "list"} == listed
        requests = sum(key.startswith(keys.boundaries(0)) for _, key in opening.log)
        assert requests == 2, "the last boundary and the next one"


@pytest.mark.slow
@ONE_CHAIN
@pytest.mark.parametrize("hint", ["old", "newest", "none"])
def test_a_store_without_a_checkpoint_is_damaged_and_not_empty(
    store: Store, objects: MemoryStore, clock: ManualClock, hint: str
) -> None:
    """Also if a checkpoint of before the boundary is left, or comes back."""
    old = store.checkpoint()
    saved = {item.key: objects.get(item.key) for item in objects.list(keys.checkpoints(0))}
    digest = connection_of(store).chain.state.entry_hash
    pass_days(store, clock)
    objects.delete([item.key for item in objects.list(keys.checkpoints(0))])
    if hint == "none":
        objects.delete([keys.latest(0)])
    elif hint == "newest":
        objects.put(keys.latest(0), encode(documents.hint(old, digest, boundary=len(boundaries(objects)))))
        for key, data in saved.items():
            objects.put(key, data)
    before = numbers(objects)
    with pytest.raises(CorruptionError, match="no readable checkpoint of entry"):
        reopen(store, clock)
    assert numbers(objects) == before
    assert not plan_repairs(Connection(objects, runtime=runtime(clock))).opens


@pytest.mark.slow
@ONE_CHAIN
def test_a_store_that_lost_all_but_its_newest_entries_is_not_empty(
    store: Store, objects: MemoryStore, clock: ManualClock
) -> None:
    """As a copy without checkpoints and boundaries."""
    pass_days(store, clock, 30)
    names = [*objects.list(keys.checkpoints(0)), *objects.list(keys.boundaries(0))]
    objects.delete([keys.latest(0), *(item.key for item in names)])
    first = numbers(objects)[0]
    assert first > 64
    with pytest.raises(CorruptionError, match=f"is missing, but entry {first} exists"):
        reopen(store, clock)


@pytest.mark.slow
@ONE_CHAIN
def test_the_number_of_a_lost_boundary_is_not_used_again(
    store: Store, objects: MemoryStore, clock: ManualClock
) -> None:
    """Processes that have read it would not notice the second one."""
    pass_days(store, clock)
    store.checkpoint()
    lost = boundaries(objects)[-1]
    objects.delete([lost])
    assert ("boundary_intact", lost) in {(item.name, item.subject) for item in store.verify().violations}
    with reopen(store, clock) as other:
        other.checkpoint()
        clock.advance(DAY_MS)
        with pytest.raises(UnsoundStoreError, match=f"{lost}: it is missing"):
            other.vacuum()
        with pytest.raises(CorruptionError, match=f"{lost} is missing"):
            other.vacuum(force=True)
    assert lost not in boundaries(objects)
    repair(Connection(objects, runtime=runtime(clock)), plan_repairs(Connection(objects, runtime=runtime(clock))))
    pass_days(store, clock)
    assert len(rows(store)) == len(rows(reopen(store, clock))) == 2 * 4 * DAYS


@ONE_CHAIN
def test_a_vacuum_that_is_late_deletes_the_checkpoint_of_a_boundary(
    store: Store, objects: MemoryStore, clock: ManualClock
) -> None:
    """Another one with a shorter history created it meanwhile; the history begins with the next checkpoint."""
    late = Suspending(objects)
    for _ in range(30):
        commit(store, [b"x"])
        store.checkpoint()
        clock.advance(8 * HOUR_MS)
    with open_on(late, runtime=runtime(clock)) as slow, reopen(store, clock) as other:
        late.before_delete = lambda: other.vacuum(history=56 * HOUR_MS / 1000)
        slow.vacuum(expire=False)
    first = connection_of(reopen(store, clock)).chains.boundaries()[0]
    heads = [number for item in objects.list(keys.checkpoints(0)) if (number := keys.checkpoint_sequence(item.key))]
    assert first not in heads, "else this tests nothing"
    fresh = reopen(store, clock)
    assert fresh.verify(deep=True).ok
    assert plan_repairs(Connection(objects, runtime=runtime(clock))).repairs == ()
    following = min(number for number in heads if number > first)
    with pytest.raises(SnapshotExpiredError, match="before the oldest checkpoint"):
        fresh.snapshot(entry=following - 1)
    assert fresh.snapshot(entry=following).heads == (following,)


@ONE_CHAIN
def test_the_next_boundary_is_asked_for_twice_a_day(store: Store, objects: MemoryStore, clock: ManualClock) -> None:
    counting = CountingStore(objects, log=True)
    with open_on(counting, runtime=runtime(clock)) as reader:
        counting.reset()
        for _ in range(48):
            clock.advance(HOUR_MS)
            reader.topics()
        requests = [key for kind, key in counting.log if key.startswith(keys.boundaries(0))]
    assert requests == [keys.boundary(0, 1), keys.boundaries(0)] * 4
