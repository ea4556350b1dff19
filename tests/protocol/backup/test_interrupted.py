"""Backups that are killed at any request, or whose storage fails, beside a store in use: the next one completes."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial

import pytest

from tests.helpers.backups import (
    PARTITIONS,
    Watched,
    back_up,
    check_copy,
    check_opens,
    everywhere,
    one_thread,
    restore_from,
    shown,
)
from tests.helpers.compaction import DAY_MS, HOUR_MS, runtime
from txnstore import errors
from txnstore.chain.backups import newest_backup
from txnstore.chain.keys import LEASES
from txnstore.compactor import restore_in_place
from txnstore.compactor.compact.lease import DURATION_MS
from txnstore.core.authorization.model import ANONYMOUS
from txnstore.core.model import TopicPartition
from txnstore.storage.base import ObjectStore
from txnstore.storage.memory import MemoryStore
from txnstore.store import Store, create_on, open_on
from txnstore.testing import Fault, FaultStore, ManualClock, SimulatedCrash
from txnstore.testing.faults import Plan, crash_at, no_faults, on, script

#: The rounds of the long test.
ROUNDS = 200


def new_store(objects: MemoryStore, clock: ManualClock, chains: int) -> Store:
    store = create_on(objects, chains, runtime=runtime(clock))
    store.create_topic("t", partitions=PARTITIONS)
    store.create_topic("own", partitions=PARTITIONS, config={"inline.bytes": 0})
    return store


def copy_of(objects: MemoryStore, clock: ManualClock) -> MemoryStore:
    """Another storage with the same objects."""
    copied = MemoryStore(clock=clock)
    for item in objects.list(""):
        copied.put(item.key, objects.get(item.key))
    return copied


def at_request(number: int, call: Callable[[], object]) -> Plan:
    """Do something at a request, which does not fail."""

    def plan(n: int, _operation: str, _key: str) -> None:
        if n == number:
            call()

    return plan


def heads_of(target: MemoryStore) -> list[int]:
    document = newest_backup(target)
    return document.heads if document is not None else []


@pytest.mark.slow
@pytest.mark.parametrize("first", [True, False], ids=["first backup", "next backup"])
@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_a_backup_killed_at_each_request_is_completed_by_the_next(
    objects: MemoryStore, clock: ManualClock, chains: int, first: bool, after: bool
) -> None:
    """At each moment the target has its earlier cut, or the new one, and a restore of it is the store at that cut."""
    store, begun = new_store(objects, clock, chains), MemoryStore(clock=clock)
    everywhere(store, b"1")
    if not first:
        back_up(objects, begun, clock)
        everywhere(store, b"2")
        store.checkpoint()
    earlier, counting = heads_of(begun), FaultStore(copy_of(begun, clock), no_faults)
    back_up(objects, counting, clock)
    kills = 0
    for number in range(1, len(counting.requests) + 1):
        target = copy_of(begun, clock)
        try:
            back_up(objects, FaultStore(target, crash_at(number, after=after)), clock)
        except SimulatedCrash:
            kills += 1
            assert heads_of(target) in ([], earlier, [*store.snapshot().heads])
            if heads_of(target):
                check_opens(store, target, clock)
        report = back_up(objects, target, clock)
        assert report.heads == store.snapshot().heads
        check_opens(store, target, clock)
    assert kills > 20
    check_copy(store, target, clock)


@pytest.mark.slow
@pytest.mark.parametrize("fault", [Fault.ERROR_BEFORE, Fault.LOST_RESPONSE, Fault.EXISTS_412, Fault.LATE])
def test_a_request_that_fails_fails_the_backup_or_not_at_all(
    objects: MemoryStore, clock: ManualClock, fault: Fault
) -> None:
    """Without the repetitions that requests of a real storage get; a late write arrives after the next backup."""
    store, begun = new_store(objects, clock, 3), MemoryStore(clock=clock)
    everywhere(store, b"1")
    back_up(objects, begun, clock)
    everywhere(store, b"2")
    counting = FaultStore(copy_of(begun, clock), no_faults)
    back_up(objects, counting, clock)
    for number in range(1, len(counting.requests) + 1):
        target = copy_of(begun, clock)
        place = FaultStore(target, script({number: fault}))
        try:
            report = back_up(objects, place, clock)
        except errors.StorageError:
            report = back_up(objects, target, clock)
        place.release()
        assert report.heads == store.snapshot().heads
        check_opens(store, target, clock)


@pytest.mark.slow
def test_a_backup_in_the_middle_of_an_erasure_is_one_cut(objects: MemoryStore, clock: ManualClock, chains: int) -> None:
    """Each shows the records of the key in all their partitions or in none, and the next backup shows none."""
    store = new_store(objects, clock, chains)
    for values in ((b"1", b"2"), (b"x" * 70_000, b"3")):
        with store.producer("writer") as producer, producer.transaction():
            for partition, value in enumerate(values):
                producer.send("own", value, key=b"ann", partition=partition)
                producer.send("own", value, key=b"bob", partition=partition)
    counting = FaultStore(copy_of(objects, clock), no_faults)
    with open_on(counting, runtime=one_thread(clock)) as erasing:
        opening = len(counting.requests)
        assert erasing.erase("own", key=b"ann").records == 4
    found = set[int]()
    for number in range(opening + 1, len(counting.requests) + 1, 3):
        source, target = copy_of(objects, clock), MemoryStore(clock=clock)
        plan = at_request(number, partial(back_up, source, target, clock, verify=True))
        with open_on(FaultStore(source, plan), runtime=one_thread(clock)) as erasing:
            erasing.erase("own", key=b"ann")
        for is_later in (False, True):
            if is_later:
                back_up(source, target, clock, verify=True)
            with open_on(target, read_only=True, runtime=one_thread(clock)) as copy:
                rows = [row["key"] for row in copy.scan("own").to_table().to_pylist()]
            assert rows.count(b"bob") == 4
            found.add(rows.count(b"ann"))
            assert not is_later or b"ann" not in rows
    assert {0, 4} <= found


def test_a_restore_killed_at_each_request_is_completed_by_the_next(
    objects: MemoryStore, clock: ManualClock, chains: int
) -> None:
    store, backup = new_store(objects, clock, chains), MemoryStore(clock=clock)
    everywhere(store, b"1")
    store.checkpoint()
    back_up(objects, backup, clock)
    number = 0
    while True:
        number += 1
        target = MemoryStore(clock=clock)
        try:
            restore_from(backup, FaultStore(target, crash_at(number)), clock)
        except SimulatedCrash:
            if not target.list("store.json"):
                clock.advance(DURATION_MS + 1)
                restore_from(backup, target, clock)
        else:
            break
        check_opens(store, target, clock)
    check_copy(store, target, clock)


@pytest.mark.parametrize("is_in_place", [False, True])
def test_a_second_restore_to_a_place_is_refused(
    objects: MemoryStore, clock: ManualClock, chains: int, is_in_place: bool
) -> None:
    """It would delete, as later than the cut, what writers of the store of the first one have committed."""
    store, backup = new_store(objects, clock, chains), MemoryStore(clock=clock)
    everywhere(store, b"1")
    back_up(objects, backup, clock)
    target = backup if is_in_place else MemoryStore(clock=clock)

    def run(place: ObjectStore) -> None:
        if is_in_place:
            restore_in_place(place, one_thread(clock), ANONYMOUS)
        else:
            restore_from(backup, place, clock)

    def run_another() -> None:
        with pytest.raises(
            errors.BackupError, match=r"another restore to .* is running, or was killed less than three"
        ):
            run(target)

    place = Watched(target, "store.json", run_another, operation="put_if_absent")
    run(place)
    assert place.before is None
    check_copy(store, target, clock)
    assert not target.list(LEASES)


def test_a_restore_that_stood_still_does_not_touch_the_store_that_another_one_made(
    objects: MemoryStore, clock: ManualClock, chains: int
) -> None:
    store, backup, target = new_store(objects, clock, chains), MemoryStore(clock=clock), MemoryStore(clock=clock)
    everywhere(store, b"1")
    back_up(objects, backup, clock)

    def restore_and_commit() -> None:
        clock.advance(DURATION_MS + 1)
        restore_from(backup, target, clock)
        with open_on(target, runtime=runtime(clock)) as restored:
            everywhere(restored, b"2")

    place = Watched(target, "topics/own", restore_and_commit, operation="put")
    # What it has proved its copy by may be of the other one by now, such as a hint.
    with pytest.raises((errors.BackupError, errors.CorruptionError)):
        restore_from(backup, place, clock)
    with open_on(target, read_only=True, runtime=runtime(clock)) as restored:
        assert restored.verify(deep=True).ok
        assert min(restored.snapshot().heads) > 0
        assert restored.scan("t").to_table().num_rows == 2 * PARTITIONS


def test_what_an_interrupted_backup_left_of_another_history_is_in_no_later_cut(
    objects: MemoryStore, clock: ManualClock, chains: int
) -> None:
    """A store is restored from a backup whose next cut was interrupted, and continues that backup.

    Its new entries have the names and sizes of those that were lost, and it has no checkpoint where those had one.
    """
    store, target = new_store(objects, clock, chains), MemoryStore(clock=clock)
    everywhere(store, b"1")
    first = back_up(objects, target, clock)
    everywhere(store, b"2")
    store.checkpoint()
    place = FaultStore(target, on(Fault.CRASH_BEFORE, "put_if_absent", key_contains="backups/"))
    with pytest.raises(SimulatedCrash):
        back_up(objects, place, clock)
    assert heads_of(target) == list(first.heads)
    restored = MemoryStore(clock=clock)
    restore_from(target, restored, clock)
    clock.advance(HOUR_MS)
    with open_on(restored, runtime=runtime(clock)) as later:
        for value in (b"3", b"4"):
            everywhere(later, value)
            back_up(restored, target, clock, verify=True)
            check_copy(later, target, clock)


@pytest.mark.parametrize("new_identity", [False, True])
def test_a_restore_in_place_that_is_run_again_loses_nothing_that_was_committed_since(
    objects: MemoryStore, clock: ManualClock, chains: int, new_identity: bool
) -> None:
    """It is killed when there is a store, but its documents are there still."""
    store, target = new_store(objects, clock, chains), MemoryStore(clock=clock)
    everywhere(store, b"1")
    back_up(objects, target, clock)
    place = FaultStore(target, on(Fault.CRASH_AFTER, "put_if_absent", key_contains="store.json"))
    with pytest.raises(SimulatedCrash):
        restore_in_place(place, one_thread(clock), ANONYMOUS, new_identity=new_identity)
    with open_on(target, runtime=runtime(clock)) as restored:
        everywhere(restored, b"2")
        heads = restored.snapshot().heads
    with pytest.raises(errors.BackupError, match="nothing was changed: there is a store at"):
        restore_in_place(target, one_thread(clock), ANONYMOUS, new_identity=new_identity)
    with open_on(target, read_only=True, runtime=runtime(clock)) as again:
        assert again.snapshot().heads == heads
        assert again.verify(deep=True).ok


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
def test_rounds_beside_writers_compactions_and_vacuums(objects: MemoryStore, clock: ManualClock, seed: int) -> None:
    """Each round something is done to the store, and a backup is killed at some request of either storage."""
    rng = random.Random(seed)
    chains = rng.choice([1, 3])
    store, target = new_store(objects, clock, chains), MemoryStore(clock=clock)
    kills = 0
    for number in range(ROUNDS // 2):
        change(store, clock, rng, number)
        source, place = FaultStore(objects, no_faults), FaultStore(target, no_faults)
        (source if rng.random() < 0.5 else place).plan = crash_at(rng.randint(1, 60), after=rng.random() < 0.5)
        try:
            back_up(source, place, clock)
        except SimulatedCrash:
            kills += 1
            if rng.random() < 0.5:
                change(store, clock, rng, number)
            back_up(objects, target, clock)
        check_copy(store, target, clock).close()
    assert kills > ROUNDS // 10
    restored = MemoryStore(clock=clock)
    restore_from(target, restored, clock, verify=True)
    check_copy(store, restored, clock)


def change(store: Store, clock: ManualClock, rng: random.Random, number: int) -> None:
    """One step in the life of a store."""
    step = rng.random()
    if step < 0.6:
        everywhere(store, b"%d" % number, f"id-{rng.randrange(3)}", commits=rng.random() < 0.8)
    elif step < 0.7:
        store.checkpoint()
    elif step < 0.8:
        store.compact()
    elif step < 0.9:
        clock.advance(DAY_MS)
        store.vacuum(history=3 * DAY_MS / 1000)
    else:
        store.delete_records({TopicPartition("t", 0): store.offsets("t", 0).last_stable})
    clock.advance(HOUR_MS)
    assert shown(store)["topics"]
