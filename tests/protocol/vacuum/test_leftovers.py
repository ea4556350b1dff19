"""Vacuum deletes old checkpoints, objects of probes and temporary files."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.helpers import keys
from tests.helpers.checkpoints import read as stored_state
from tests.helpers.compaction import (
    DAY_MS,
    HookStore,
    commit,
    new_store,
    reopen,
    rows,
)
from tests.helpers.connections import connection_of
from tests.helpers.shell import ONE_CHAIN
from txnstore.chain.checkpoints import checkpoint
from txnstore.store import Store, create
from txnstore.testing import ManualClock


@pytest.fixture
def objects(clock: ManualClock) -> HookStore:
    return HookStore(clock=clock)


@pytest.fixture
def store(clock: ManualClock, objects: HookStore, chains: int) -> Store:
    store = new_store(clock, objects, chains=chains)
    store.create_topic("t")
    return store


def _checkpoint(store: Store, clock: ManualClock) -> int:
    commit(store, [b"x"])
    clock.advance(1)
    return store.checkpoint()


def _checkpoints(store: Store) -> list[int]:
    sequences = (keys.checkpoint_sequence(item.key) for item in connection_of(store).objects.list(keys.checkpoints(0)))
    return sorted(sequence for sequence in sequences if sequence is not None)


@ONE_CHAIN
def test_old_checkpoints_are_deleted_except_the_newest_two(store: Store, clock: ManualClock) -> None:
    made = [_checkpoint(store, clock) for _ in range(4)]
    assert store.vacuum().deleted == ()
    clock.advance(DAY_MS)
    assert len(store.vacuum().deleted) == 2 * 2
    assert _checkpoints(store) == made[-2:]
    assert rows(reopen(store, clock)) == rows(store)
    assert store.verify(deep=True).ok


@ONE_CHAIN
def test_old_incomplete_checkpoint_is_deleted(store: Store, clock: ManualClock) -> None:
    """Only a head makes a checkpoint; one that is being written now is above the newest ones."""
    half = keys.checkpoint_index(0, 1)
    connection_of(store).objects.put(half, b"half")
    being_written = keys.checkpoint_index(0, 10_000)
    connection_of(store).objects.put(being_written, b"half")
    clock.advance(DAY_MS)
    assert store.vacuum().deleted == ()
    made = [_checkpoint(store, clock) for _ in range(2)]
    assert store.vacuum().deleted == (half,)
    assert _checkpoints(store) == made
    assert connection_of(store).objects.get(being_written) == b"half"


@ONE_CHAIN
def test_hinted_checkpoint_is_kept(store: Store, clock: ManualClock) -> None:
    """The hint may be older than the newest checkpoints; what it names keeps an open cheap."""
    first = _checkpoint(store, clock)
    hint = connection_of(store).objects.get(keys.latest(0))
    made = [_checkpoint(store, clock) for _ in range(3)]
    connection_of(store).objects.put(keys.latest(0), hint)
    clock.advance(DAY_MS)
    store.vacuum()
    assert _checkpoints(store) == [first, *made[-2:]]


@ONE_CHAIN
def test_checkpoint_is_deleted_as_a_whole(store: Store, clock: ManualClock) -> None:
    """Its writer slept between its two objects: the grace period of both begins with the head."""
    made = [_checkpoint(store, clock) for _ in range(3)]
    head = connection_of(store).objects.get(keys.checkpoint_state(0, made[0]))
    clock.advance(DAY_MS)
    connection_of(store).objects.put(keys.checkpoint_state(0, made[0]), head)
    assert store.vacuum().deleted == ()
    assert store.verify(deep=True).ok
    clock.advance(DAY_MS)
    assert store.vacuum().deleted == (keys.checkpoint_state(0, made[0]), keys.checkpoint_index(0, made[0]))


@ONE_CHAIN
def test_late_checkpoint_head_is_no_violation_and_is_deleted_next(store: Store, clock: ManualClock) -> None:
    """Its writer slept for longer than the grace period; by then there are newer checkpoints."""
    made = [_checkpoint(store, clock) for _ in range(3)]
    key = keys.checkpoint_state(0, made[0])
    head = connection_of(store).objects.get(key)
    clock.advance(DAY_MS)
    store.vacuum()
    connection_of(store).objects.put(key, head)
    assert store.verify(deep=True).ok
    assert rows(reopen(store, clock)) == rows(store)
    clock.advance(DAY_MS)
    assert store.vacuum().deleted == (key,)


@ONE_CHAIN
def test_late_checkpoint_head_with_its_hint_is_no_damage(store: Store, clock: ManualClock) -> None:
    """Its writer slept before the head, and then writes the hint, too: the next checkpoint replaces both."""
    made = [_checkpoint(store, clock) for _ in range(3)]
    head, hint = keys.checkpoint_state(0, made[0]), keys.latest(0)
    objects = connection_of(store).objects
    state = stored_state(objects, made[0])
    assert state is not None
    late = objects.get(head), checkpoint.hint_to(keys.KEYS, state)[1]
    clock.advance(DAY_MS)
    store.vacuum()
    objects.put(head, late[0])
    objects.put(hint, late[1])
    assert [finding for finding in store.doctor().findings if finding.severity == "bad"] == []
    assert rows(reopen(store, clock)) == rows(store)
    clock.advance(DAY_MS)
    store.vacuum()
    _checkpoint(store, clock)
    clock.advance(DAY_MS)
    assert head in store.vacuum().deleted
    assert store.verify(deep=True).ok


def test_leftovers_of_probes_are_deleted(store: Store, clock: ManualClock) -> None:
    connection_of(store).objects.put("_probe/left", b"x")
    assert store.vacuum().deleted == ()
    clock.advance(DAY_MS)
    assert store.vacuum().deleted == ("_probe/left",)


def test_temporary_files_of_crashed_writers_are_swept_from_a_local_store(tmp_path: Path) -> None:
    """Only those over an hour old, also without a grace period: a younger one may have a writer."""
    store = create(tmp_path / "s")
    store.create_topic("t")
    folder = tmp_path / "s" / "topics" / "t"
    folder.mkdir(parents=True)
    old, young = folder / ".tmp-old", folder / ".tmp-young"
    old.write_bytes(b"half")
    young.write_bytes(b"half")
    before = old.stat().st_mtime - 2 * 3600
    os.utime(old, (before, before))
    assert store.vacuum(0, dry_run=True).swept == 0
    assert store.vacuum(0).swept == 1
    assert (old.exists(), young.exists()) == (False, True)
