"""What a loss of power takes back, what a lost object is, and which reads are compared with the log before the loss."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from tests.harness.simulation.creates import Creates, Interrupted
from tests.harness.simulation.lost_objects import lossy
from tests.harness.simulation.power import Power
from tests.harness.simulation.recorder import Operation
from tests.harness.simulation.runtime import EPOCH_MS
from tests.harness.simulation.scheduler import Scheduler
from tests.harness.simulation.settings import Settings
from tests.harness.simulation.storage import Bucket, SimulatedStorage
from tests.harness.simulation.world import World
from tests.helpers import keys
from txnstore.errors import InvalidConfigError, ObjectNotFoundError, StorageError, TxnStoreError, UnsoundStoreError


@pytest.fixture
def scheduler() -> Scheduler:
    return Scheduler(random.Random(1))


@pytest.fixture
def bucket(scheduler: Scheduler) -> Bucket:
    """Entry 1 is durable, entry 2 is visible."""
    bucket = Bucket(lambda: EPOCH_MS + scheduler.now)
    bucket.put_if_absent(keys.entry(0, 1), b"one")
    scheduler.now = 1_000
    with bucket.syncs_fail():
        bucket.put_if_absent(keys.entry(0, 2), b"two")
    return bucket


def test_a_loss_of_power_takes_back_what_was_not_synced(bucket: Bucket) -> None:
    assert bucket.get(keys.entry(0, 2)) == b"two", "all processes see it"
    assert list(bucket.lose_power()) == [keys.entry(0, 2)]
    with pytest.raises(ObjectNotFoundError):
        bucket.get(keys.entry(0, 2))
    assert bucket.heads == {0: 1}
    assert list(bucket.archive) == [keys.entry(0, 1)]


@pytest.mark.parametrize(
    ("name", "lasts"),
    [(keys.entry(0, 3), True), (keys.entry(0, 2), True), (keys.entry(1, 1), False), (keys.index_file(0, 0, 8), False)],
)
def test_any_create_in_its_folder_syncs_it_also_one_that_is_refused(bucket: Bucket, name: str, lasts: bool) -> None:
    bucket.put_if_absent(name, b"three")
    assert (bucket.lose_power() == {}) == lasts


@pytest.mark.parametrize("lost", [False, True])
def test_an_interrupted_create_does_not_arrive_after_a_loss_of_power(bucket: Bucket, *, lost: bool) -> None:
    """Seed 11138 with tables: it was on its way in the machine that lost power. Else entries would have a hole."""
    late: list[str] = []
    for seed in range(8):
        scheduler, rng, name = Scheduler(random.Random(seed)), random.Random(seed), keys.entry(1, seed + 1)
        creates = Creates(scheduler, rng, 1.0, [])
        storage = SimulatedStorage(bucket, scheduler, "p", rng, lambda *_: None, [], creates)

        def create(scheduler: Scheduler = scheduler, storage: SimulatedStorage = storage, name: str = name) -> None:
            with pytest.raises(Interrupted):
                storage.put_if_absent(name, b"three")
            before = bucket.has(name)
            if lost:
                bucket.lose_power()
            scheduler.sleep(10_000)
            late.extend([name] if bucket.has(name) and not before else [])

        scheduler.spawn("p", create)
        scheduler.run()
    assert bool(late) != lost


def test_neither_a_read_nor_a_list_syncs(bucket: Bucket) -> None:
    bucket.get(keys.entry(0, 2))
    bucket.list(keys.entries(0))
    assert bucket.is_unsynced(keys.entry(0, 2))


def test_an_object_that_was_replaced_or_deleted_comes_back(bucket: Bucket) -> None:
    bucket.lasting = False
    with bucket.syncs_fail():
        bucket.put_if_absent("a", b"")
        bucket.delete([keys.entry(0, 1)])
    assert set(bucket.lose_power()) == {"a", keys.entry(0, 1), keys.entry(0, 2)}
    assert [item.key for item in bucket.list("")] == [keys.entry(0, 1)]


def test_a_deletion_of_nothing_syncs_nothing(bucket: Bucket) -> None:
    bucket.lasting = False
    bucket.delete([keys.entry(0, 9)])
    assert bucket.is_unsynced(keys.entry(0, 2))


def test_only_reads_that_may_have_seen_what_was_taken_back_are_left_out(scheduler: Scheduler, bucket: Bucket) -> None:
    power = Power(scheduler, random.Random(1), Settings(1, losses=1), (bucket, Bucket(lambda: 0)), [])
    power.began("scan#1")
    power._lose()
    power.began("scan#2")

    def read(process: str, time: int, f: str = "snapshot") -> Operation:
        return Operation(0, time, process, "ok", f, {"value": 1})

    before, after = read("scan#1", 999), read("scan#1", 1_000)
    kept = [before, read("scan#1", 1_000, "txn"), read("scan#2", 1_000)]
    assert power.lasting(kept) == kept, "a commit that was acknowledged is never left out"
    assert [operation.type for operation in power.lasting([after])] == ["fail"]
    value = [("poll", {"source-0": [(7, 12)]}), ("send", "target-0", 15)]
    unknown = Operation(0, 1_000, "scan#1", "info", "txn", value)
    assert power.lasting([unknown]) == [replace(unknown, value=value[1:])], "it may have read, and not lived to commit"
    eras = list(power.eras([before, after, kept[2]]))
    assert [(archive is not None, operations) for archive, operations in eras] == [
        (True, [before, after]),
        (False, [kept[2]]),
    ]
    assert eras[0][0] is not None
    assert keys.entry(0, 2) in eras[0][0]


def test_what_may_be_lost_is_in_the_middle_and_has_been_there_for_a_while(scheduler: Scheduler, bucket: Bucket) -> None:
    def kinds() -> set[tuple[str, str]]:
        return set(lossy(bucket, entries=True))

    bucket.put_if_absent(keys.boundary(0, 1), b"")
    assert kinds() == set(), "entry 1 is too young, boundary 1 is the last one, entry 2 the newest one"
    scheduler.now += 60_000
    bucket.put_if_absent(keys.boundary(0, 2), b"")
    assert kinds() == {("boundary", keys.boundary(0, 1))}, "a loss of power may take entry 2 back"
    bucket.sync([keys.entry(0, 2)])
    assert kinds() == {("entry", keys.entry(0, 1)), ("boundary", keys.boundary(0, 1))}
    assert set(lossy(bucket, entries=False)) == {("boundary", keys.boundary(0, 1))}


def test_a_lost_object_is_put_back_as_it_was(scheduler: Scheduler, bucket: Bucket) -> None:
    before = bucket.stat(keys.entry(0, 1))
    bucket.lose(keys.entry(0, 1))
    scheduler.now += 60_000
    assert bucket.put_if_absent(keys.entry(0, 1), b"filled"), "nothing keeps another process from taking the name"
    bucket.put_back(keys.entry(0, 1))
    assert bucket.stat(keys.entry(0, 1)) == before
    assert bucket.archive[keys.entry(0, 1)] == b"one"


@pytest.mark.parametrize(
    ("lost", "named", "explained"),
    [
        (keys.index_file(0, 0, 8), keys.checkpoint_state(0, 8), True),
        (keys.index_file(0, 0, 8), keys.checkpoints(0), True),
        (keys.index_file(0, 0, 8), keys.checkpoint_state(1, 8), False),
        (keys.index_file(0, 0, 8), keys.entry(0, 8), False),
        (keys.boundary(0, 1), keys.entry(0, 8), True),
        (keys.boundary(0, 1), keys.entry(1, 8), False),
        (keys.boundary(0, 1), keys.boundary(0, 1), True),
        (keys.boundary(0, 1), keys.boundary(0, 2), False),
        (keys.boundary(0, 1), keys.checkpoint_state(0, 8), False),
        (keys.checkpoint_state(0, 8), keys.checkpoint_state(0, 8), True),
        (keys.checkpoint_state(0, 8), keys.checkpoint_state(0, 9), False),
        (keys.checkpoint_state(0, 8), keys.checkpoints(0), False),
    ],
)
def test_a_lost_object_explains_what_needs_it(lost: str, named: str, explained: bool) -> None:
    """A checkpoint without one of its index files is no checkpoint; any other object is missed by its name."""
    world = World(Settings(1, chains=2))
    world.lost.add(lost)
    assert world.explains(UnsoundStoreError(f"{named} is damaged")) == explained
    for kind in (StorageError, InvalidConfigError, TxnStoreError):
        assert not world.explains(kind(f"{named} is damaged"))
