"""Verification against the hint of a chain, which was written after the entries and the checkpoint that it names."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.helpers import keys
from tests.helpers.compaction import DAY_MS
from tests.helpers.connections import connection_of
from tests.helpers.documents import hint
from tests.helpers.repairs import planned
from tests.helpers.shell import new_store, runtime
from tests.helpers.verification import _violations
from txnstore.chain.codec import LatestDocument, decode, encode
from txnstore.chain.payload import entry_hash
from txnstore.compactor import VerifyReport, repair
from txnstore.connection import Connection
from txnstore.storage.memory import MemoryStore
from txnstore.store import Store
from txnstore.testing import ManualClock

#: The number of the only checkpoint, and of the last entry.
CHECKPOINT, LAST = 4, 12


@pytest.fixture
def objects(clock: ManualClock) -> MemoryStore:
    """A chain of twelve entries with a checkpoint of entry 4; the hint names it and entry 10."""
    objects = MemoryStore(clock=clock)
    store = new_store(objects, clock=clock)
    for number in range(2, LAST + 1):  # Its first entry has a topic.
        store.create_topic(f"t{number}")
        if number == CHECKPOINT:
            store.checkpoint()
    assert connection_of(store).chain.state.sequence == LAST
    _rewrite(objects, head=10, head_hash=entry_hash(objects.get(keys.entry(0, 10))))
    return objects


def _rewrite(objects: MemoryStore, **members: Any) -> None:
    written = decode(LatestDocument, keys.latest(0), objects.get(keys.latest(0)))
    objects.put(keys.latest(0), encode(replace(written, **members)))


def _lose(objects: MemoryStore, first: int) -> None:
    objects.delete([keys.entry(0, number) for number in range(first, LAST + 1)])


def _repair(objects: MemoryStore, clock: ManualClock) -> None:
    repair(Connection(objects, runtime=runtime(clock)), planned(objects, clock))


def _verified(objects: MemoryStore, *, deep: bool = False) -> VerifyReport:
    """As a process that has read nothing before; it may not write, so that it opens what it can."""
    return Store(Connection(objects, read_only=True)).verify(deep=deep)


def test_a_sound_hint_and_later_entries_are_no_damage(objects: MemoryStore) -> None:
    """Entries are committed all the time, and a hint is written with a checkpoint only."""
    assert _verified(objects).ok


@pytest.mark.parametrize("deep", [False, True])
def test_lost_entries_that_a_hint_names_are_named(objects: MemoryStore, *, deep: bool) -> None:
    """OBJ-13: nothing else names them. The newest state is not known then."""
    _lose(objects, 7)
    report = _verified(objects, deep=deep)
    assert _violations(report) == [("entry_present", keys.entry(0, 7)), ("state_at_head", keys.entries(0))]
    assert "the entry and all up to entry 10 is missing" in report.violations[0].message


def test_the_entry_that_a_hint_names_is_the_only_one_lost(objects: MemoryStore) -> None:
    _lose(objects, 10)
    report = _verified(objects)
    assert _violations(report)[0] == ("entry_present", keys.entry(0, 10))
    assert report.violations[0].message == f"the entry is missing, although {keys.latest(0)} names entry 10"


def test_a_chain_that_was_rolled_back_without_its_hint_is_named(objects: MemoryStore) -> None:
    """All checkpoints are deleted, too."""
    objects.delete([item.key for item in objects.list(keys.checkpoints(0))])
    _lose(objects, 3)
    assert _violations(_verified(objects)) == [
        ("checkpoint_intact", keys.checkpoint_state(0, CHECKPOINT)),
        ("entry_present", keys.entry(0, 3)),
        ("state_at_head", keys.entries(0)),
    ]


@pytest.mark.parametrize("number", [10**6, 2**63 - 1])
def test_a_hint_to_an_absurd_entry_costs_no_look_at_each_before_it(objects: MemoryStore, number: int) -> None:
    _rewrite(objects, head=number)
    assert _violations(_verified(objects))[0] == ("entry_present", keys.entry(0, LAST + 1))


@pytest.mark.parametrize("deep", [False, True])
@pytest.mark.parametrize("number", [CHECKPOINT, 10])
def test_another_hash_in_a_hint_is_another_history(objects: MemoryStore, number: int, *, deep: bool) -> None:
    """OBJ-13: of the entry of its checkpoint, and of the newest one that its writer knew."""
    _rewrite(objects, **{"entry_hash" if number == CHECKPOINT else "head_hash": "0" * 64})
    report = _verified(objects, deep=deep)
    assert _violations(report) == [("history_unchanged", keys.latest(0))]
    assert f"it names {keys.entry(0, number)} with the hash 000" in report.violations[0].message


def test_a_hint_of_another_store_is_no_evidence(objects: MemoryStore) -> None:
    """It names a later entry. An open ignores it, too."""
    objects.put(keys.latest(0), encode(hint(64, store_id=keys.STORE_ID.replace("0", "f"))))
    assert _verified(objects).ok


def test_the_checkpoint_that_a_hint_names_is_lost_with_its_index(objects: MemoryStore, clock: ManualClock) -> None:
    """No entry is, and `recover` writes it again."""
    objects.delete([item.key for item in objects.list(keys.checkpoints(0))])
    assert _violations(_verified(objects)) == [("checkpoint_intact", keys.checkpoint_state(0, CHECKPOINT))]
    _repair(objects, clock)
    assert _verified(objects).ok


@pytest.mark.parametrize("damage", ["lost", "another"])
def test_nothing_is_left_to_report_after_a_recovery(objects: MemoryStore, clock: ManualClock, damage: str) -> None:
    """It names the loss, and writes the hint again."""
    if damage == "lost":
        _lose(objects, 7)
    else:
        _rewrite(objects, head_hash="0" * 64)
    assert planned(objects, clock).lost
    _repair(objects, clock)
    assert _verified(objects, deep=True).ok


@pytest.mark.slow
def test_deleted_history_before_an_old_hint_is_no_damage(objects: MemoryStore, clock: ManualClock) -> None:
    """The entries that it names may be deleted; another object may have the name of one."""
    old = objects.get(keys.latest(0))
    with Store(Connection(objects, runtime=runtime(clock))) as store:
        for number in range(160):
            store.create_topic(f"u{number}")
            if number % 40 == 39:
                store.checkpoint()
                clock.advance(8 * DAY_MS)
        store.vacuum()
        clock.advance(2 * DAY_MS)
        store.vacuum()
    assert not objects.list(keys.entry(0, 10))
    objects.put(keys.latest(0), old)
    objects.put(keys.entry(0, 10), b"of a writer that has slept")
    assert _verified(objects).ok


def test_the_entry_of_the_last_boundary_is_compared_by_its_checkpoint(objects: MemoryStore, clock: ManualClock) -> None:
    """The entry itself is deleted, and its checkpoint has its hash."""
    with Store(Connection(objects, runtime=runtime(clock))) as store:
        for _ in range(2):
            store.create_topic(f"v{store.checkpoint()}")
            store.checkpoint()
            clock.advance(8 * DAY_MS)
        store.vacuum()
        clock.advance(2 * DAY_MS)
        store.vacuum()
    boundary = min(keys.entry_sequence(item.key) or 0 for item in objects.list(keys.entries(0))) - 1
    assert boundary > 10
    assert objects.list(keys.checkpoint_state(0, boundary))
    digest = {"entry_hash": "0" * 64, "head_hash": "0" * 64}
    _rewrite(objects, sequence=boundary, head=boundary, **digest)
    assert _violations(_verified(objects)) == [("history_unchanged", keys.latest(0))]


def test_each_chain_has_its_own_hint(clock: ManualClock) -> None:
    objects = MemoryStore(clock=clock)
    store = new_store(objects, chains=2, partitions=4, clock=clock)
    store.checkpoint()
    assert connection_of(store).view().states[1].sequence
    assert _verified(objects).ok
    objects.delete([item.key for item in objects.list(keys.KEYS.chain(1))])
    assert ("entry_present", keys.entry(1, 1)) in _violations(_verified(objects))
