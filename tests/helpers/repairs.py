"""Stores of which something is damaged, and the plans of their repairs."""

from __future__ import annotations

from functools import cache

from tests.helpers import keys
from tests.helpers.compaction import commit, new_store, runtime, values
from tests.helpers.connections import connection_of
from txnstore.compactor import RepairPlan, plan_repairs, repair
from txnstore.connection import Connection
from txnstore.storage.memory import MemoryStore
from txnstore.store import open_on
from txnstore.testing import ManualClock

RECORDS = 75


@cache
def _sample() -> dict[str, bytes]:
    """The objects of a store of one chain with two checkpoints and entries after them."""
    clock = ManualClock()
    objects = MemoryStore(clock=clock)
    store = new_store(clock, objects)
    connection_of(store).merge_later = None  # Each record stays in its entry.
    store.create_topic("t")
    for number in range(RECORDS):
        commit(store, [b"%d" % number])
    return bytes_of(objects)


def sample_objects(clock: ManualClock) -> MemoryStore:
    """A store of one chain with two checkpoints, at entries 64 and 128, and entries after them."""
    objects = MemoryStore(clock=clock)
    for key, data in _sample().items():
        objects.put(key, data)
    assert checkpoints(objects) == [64, 128]
    return objects


def checkpoints(objects: MemoryStore) -> list[int]:
    """The checkpoints with a head."""
    heads = [item.key for item in objects.list(keys.checkpoints(0)) if item.key.endswith("state.json")]
    return [int(key.split("/")[-2]) for key in heads]


def planned(
    objects: MemoryStore, clock: ManualClock, chains: int | None = None, identity: str | None = None
) -> RepairPlan:
    """The plan of a process that has read nothing yet."""
    connection = Connection(objects, read_only=True, runtime=runtime(clock))
    return plan_repairs(connection, chains, identity=identity)


def bytes_of(objects: MemoryStore) -> dict[str, bytes]:
    """All objects."""
    return {item.key: objects.get(item.key) for item in objects.list("")}


def repaired(objects: MemoryStore, clock: ManualClock) -> RepairPlan:
    """Carry out the plan; then nothing is left to do, the store is sound, and all records are there."""
    plan = planned(objects, clock)
    repair(Connection(objects, runtime=runtime(clock)), plan)
    assert planned(objects, clock) == RepairPlan()
    with open_on(objects, runtime=runtime(clock)) as store:
        assert values(store) == [b"%d" % number for number in range(RECORDS)]
        report = store.verify(deep=True)
        assert report.ok, report.violations
    return plan
