"""``backup --watch``: rounds that copy what was committed since the last one, and what they cost."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.helpers import keys
from tests.helpers.backups import PARTITIONS, Watched, check_copy, everywhere, one_thread, shown
from tests.helpers.compaction import HOUR_MS, commit, runtime
from tests.helpers.shell import ONE_CHAIN
from txnstore import errors
from txnstore.compactor import BackupRound, restore_in_place, watch_backup
from txnstore.connection import open_connection
from txnstore.core.authorization.model import ANONYMOUS
from txnstore.storage.base import ObjectStore
from txnstore.storage.counting import CountingStore
from txnstore.storage.memory import MemoryStore
from txnstore.store import Store, create_on, open_on
from txnstore.testing import FaultStore, ManualClock
from txnstore.testing.faults import Fault, no_faults, on


@pytest.fixture
def store(chains: int, objects: MemoryStore, clock: ManualClock) -> Store:
    store = create_on(objects, chains, runtime=runtime(clock))
    store.create_topic("t", partitions=PARTITIONS)
    store.create_topic("own", partitions=PARTITIONS, config={"inline.bytes": 0})
    return store


@pytest.fixture
def target(clock: ManualClock) -> MemoryStore:
    return MemoryStore(clock=clock)


@contextmanager
def watched(source: ObjectStore, target: ObjectStore, clock: ManualClock) -> Iterator[Iterator[BackupRound]]:
    """The rounds of a process that has copied the store as it is once."""
    with open_connection(source, read_only=True, runtime=one_thread(clock)) as connection:
        rounds = watch_backup(connection, target)
        next(rounds)
        yield rounds


@pytest.mark.slow
def test_rounds_copy_what_is_new_and_list_nothing(
    store: Store, objects: MemoryStore, target: MemoryStore, clock: ManualClock
) -> None:
    everywhere(store, b"0")
    source, place = CountingStore(objects, log=True), CountingStore(target, log=True)
    with open_connection(source, read_only=True, runtime=one_thread(clock)) as connection:
        rounds = watch_backup(connection, place)
        first = next(rounds)
        assert first.report is not None
        reader = open_on(target, read_only=True, runtime=one_thread(clock))
        place.reset()
        idle = next(rounds)
        assert idle.report is not None
        assert (idle.report.copied, idle.report.cut) == (0, first.report.cut)
        assert place.log == [], "an idle round asks the source only"
        for number in range(1, 4):
            everywhere(store, b"%d" % number)
            source.reset(), place.reset()
            before = len(target.list(""))
            round_ = next(rounds)
            assert round_.report is not None
            assert round_.error is None
            assert not [key for kind, key in [*source.log, *place.log] if kind == "list"]
            added = [key for kind, key in place.log if kind in ("put", "put_if_absent")]
            assert len(added) == len(set(added)) == len(target.list("")) - before == round_.report.copied + 1
            assert shown(reader)["hashes"] == shown(store)["hashes"]
        for _ in range(64):
            commit(store, [b"x"])
        next(rounds)
    check_copy(store, target, clock)
    assert [item.key for item in target.list("chains/") if item.key.endswith("state.json")]


def test_a_round_that_fails_says_how_far_behind_the_backup_is(
    store: Store, objects: MemoryStore, target: MemoryStore, clock: ManualClock
) -> None:
    place = FaultStore(target, no_faults)
    with open_connection(objects, read_only=True, runtime=one_thread(clock)) as connection:
        rounds = watch_backup(connection, place, interval=5.0)
        first = next(rounds)
        everywhere(store, b"1")
        place.plan = on(Fault.UNAVAILABLE_503, "put", times=None)
        failed = next(rounds)
        assert failed.report is None
        assert 5 <= (failed.behind or 0) - (first.behind or 0) < 6
        assert isinstance(failed.error, errors.StorageError)
        place.plan = no_faults
        healed = next(rounds)
        assert (healed.error, healed.behind) == (None, 0)
    check_copy(store, target, clock)


@ONE_CHAIN
def test_records_that_are_erased_in_the_middle_of_a_round_lead_to_a_new_cut(
    store: Store, objects: MemoryStore, target: MemoryStore, clock: ManualClock
) -> None:
    commit(store, [b"1"])
    source = Watched(objects)
    with watched(source, target, clock) as rounds:
        commit(store, [b"2"])
        # The look at the head reads the new entry, the round reads it again.
        source.watch(keys.entry(0, store.snapshot().heads[0]), lambda: store.erase("t", key=b"k0"), skip=1)
        round_ = next(rounds)
        assert source.before is None
    assert round_.report is not None
    assert round_.report.heads == store.snapshot().heads
    check_copy(store, target, clock)


def test_the_listings_are_compared_again_after_an_hour(
    store: Store, objects: MemoryStore, target: MemoryStore, clock: ManualClock
) -> None:
    everywhere(store, b"1")
    with watched(objects, target, clock) as rounds:
        lost = target.list("topics/")[0].key
        target.delete([lost])
        next(rounds)
        assert not target.list(lost)
        clock.advance(HOUR_MS)
        next(rounds)
    assert target.list(lost)
    check_copy(store, target, clock)


def test_a_target_that_was_emptied_gets_all_again(
    store: Store, objects: MemoryStore, target: MemoryStore, clock: ManualClock
) -> None:
    """A round that copied only what is new would complete a cut that does not open."""
    everywhere(store, b"1")
    with watched(objects, target, clock) as rounds:
        target.delete([item.key for item in target.list("")])
        everywhere(store, b"2")
        next(rounds)
    check_copy(store, target, clock)


def test_a_backup_that_was_made_a_store_ends_the_rounds(
    store: Store, objects: MemoryStore, target: MemoryStore, clock: ManualClock
) -> None:
    everywhere(store, b"1")
    with watched(objects, target, clock) as rounds:
        restore_in_place(target, one_thread(clock), ANONYMOUS)
        before = [item.key for item in target.list("")]
        everywhere(store, b"2")
        with pytest.raises(errors.BackupError, match="there is a store at"):
            next(rounds)
    assert [item.key for item in target.list("")] == before
