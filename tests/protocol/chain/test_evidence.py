"""What shows that the newest entries of a chain existed, once they are lost: every object of a checkpoint, its hint.

Each of them may be there, missing, damaged, or (the hint) old. No process may take the chain for shorter than one of
them says: it would show a store without its last commits, and give their numbers again.
"""

from __future__ import annotations

import itertools
from functools import cache

import pytest

from tests.helpers import keys
from tests.helpers.connections import connection_of
from tests.helpers.repairs import planned
from tests.helpers.shell import new_store, runtime
from txnstore.compactor import RepairPlan, repair, verify
from txnstore.connection import Connection
from txnstore.errors import CorruptionError
from txnstore.storage.memory import MemoryStore
from txnstore.testing import ManualClock

#: The entries of the two checkpoints.
OLD, NEW = 6, 12
HEAD, INDEX, SHARED = keys.checkpoint_state(0, NEW), keys.index_file(0, 8, NEW), keys.index_file(0, 0, 8)


@cache
def _sample() -> tuple[dict[str, bytes], bytes]:
    """The objects of a store whose newest entry has a checkpoint, and the hint to the checkpoint before it."""
    objects, older = MemoryStore(), b""
    store = new_store(objects)
    while (sequence := connection_of(store).chain.state.sequence) < NEW:
        if sequence == OLD:
            store.checkpoint()
            older = objects.get(keys.latest(0))
        store.create_topic(f"t{sequence}")
    assert store.checkpoint() == NEW
    return {item.key: objects.get(item.key) for item in objects.list("")}, older


def _lost(head: str, index: str, hint: str, entries: int) -> MemoryStore:
    """The store without its last entries, and with this damage."""
    sample, older = _sample()
    objects = MemoryStore()
    for key, data in sample.items():
        objects.put(key, data)
    objects.delete([keys.entry(0, number) for number in range(NEW - entries + 1, NEW + 1)])
    for key, damage in ((HEAD, head), (INDEX, index), (SHARED, index), (keys.latest(0), hint)):
        if damage == "missing":
            objects.delete([key])
        elif damage == "truncated":
            objects.put(key, objects.get(key)[:-9])
        elif damage == "old":
            objects.put(key, older)
    return objects


def _opened(objects: MemoryStore, *, read_only: bool = True) -> int:
    return Connection(objects, read_only=read_only, runtime=runtime()).load()[0].state.sequence


@pytest.mark.parametrize("entries", [1, 5])
@pytest.mark.parametrize("hint", ["", "old", "missing", "truncated"])
@pytest.mark.parametrize(("head", "index"), [*itertools.product(["", "missing", "truncated"], repeat=2)])
def test_each_trace_of_a_lost_entry_is_evidence(head: str, index: str, hint: str, entries: int) -> None:
    """A sound checkpoint has the state. Else the open names the entry, and a recovery accepts the chain without it."""
    objects = _lost(head, index, hint, entries)
    if not head and not index:
        assert _opened(objects) == NEW
        return
    if head == index == "missing" and hint:
        assert _opened(objects) == NEW - entries  # Nothing of the entry is left: docs/guarantees.md says so.
        return
    first = keys.entry(0, NEW - entries + 1)
    for read_only in (True, False):
        with pytest.raises(CorruptionError, match=f"{first} is missing, but .*{NEW}.*txnstore recover"):
            _opened(objects, read_only=read_only)
    plan = planned(objects, ManualClock())
    assert plan.opens
    assert any(f"ends at entry {NEW - entries}: entries" in item.consequence for item in plan.lost)
    repair(Connection(objects, runtime=runtime()), plan)
    assert _opened(objects) == NEW - entries
    assert planned(objects, ManualClock()) == RepairPlan()


@pytest.mark.parametrize("damaged", [HEAD, INDEX])
def test_verification_reports_the_lost_entries(damaged: str) -> None:
    """Also those that only an index file names."""
    objects = _lost("", "", "missing", 2)
    store = Connection(objects, read_only=True, runtime=runtime())
    store.load()
    objects.delete([damaged])
    found = {(item.name, item.subject) for item in verify(store).violations}
    assert ("entry_present", keys.entry(0, NEW - 1)) in found


@pytest.mark.parametrize("hint", ["", "missing"])
def test_no_process_commits_to_a_chain_whose_end_another_chain_follows_from(hint: str) -> None:
    """The entry that the other chain names would be another one."""
    objects = MemoryStore()
    store = new_store(objects, chains=2)
    with store.producer(transactional_id="t") as producer, producer.transaction() as txn:
        for partition in range(store.topic("t").partitions):
            txn.send("t", b"x", partition=partition)
    first, second = connection_of(store).view().states
    seen = second.seen[0]
    objects.delete([keys.entry(0, number) for number in range(seen, first.sequence + 1)])
    if hint:
        objects.delete([keys.latest(0), keys.latest(1)])
    with pytest.raises(CorruptionError, match=f"{keys.entry(0, seen)} is missing, but"):
        _opened(objects, read_only=False)
