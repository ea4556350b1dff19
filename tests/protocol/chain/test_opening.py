"""What an open requests, and in how many round trips; and what the newest entry that a hint names shows."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from unittest.mock import ANY

import pytest

from tests.harness.executors import DeferredExecutor
from tests.harness.rounds import Rounds
from tests.helpers import keys
from tests.helpers.compaction import DAY_MS
from tests.helpers.connections import connection_of
from tests.helpers.repairs import planned
from tests.helpers.shell import a_chain, new_store, runtime, topic
from txnstore.chain import tail
from txnstore.chain.checkpoints import checkpoint
from txnstore.chain.codec import LatestDocument, decode, encode
from txnstore.compactor import RepairPlan, repair
from txnstore.connection import Connection
from txnstore.core.catalog.model import CreateTopic
from txnstore.core.state import State
from txnstore.errors import CorruptionError, UnknownOutcomeError
from txnstore.storage.counting import CountingStore, StoreCounts
from txnstore.storage.memory import MemoryStore
from txnstore.testing import Fault, FaultStore, ManualClock, no_faults, on

#: Identity, hint, head and index file of the checkpoint, next boundary.
BEFORE = 5
#: Of the AHEAD names, and of those before the next of them, and up to the names that show the end.
NEEDLESS = 20


def _store(checkpoint_at: int, head: int, length: int) -> MemoryStore:
    """A store with one checkpoint, so many entries after it, and a hint that was written at entry ``head``."""
    objects = MemoryStore()
    store = new_store(objects)
    states = {(state := connection_of(store).chain.state).sequence: state}
    while state.sequence < checkpoint_at + length:
        store.create_topic(f"t{state.sequence}")
        state = connection_of(store).chain.state
        states[state.sequence] = state
        if state.sequence == checkpoint_at:
            store.checkpoint()
    later = {item.key for item in objects.list(keys.checkpoints(0), keys.checkpoint_state(0, checkpoint_at))}
    objects.delete([*later])
    objects.put(*checkpoint.hint_to(keys.KEYS, states[checkpoint_at], 0, states[head]))
    return objects


def _opened(objects: MemoryStore) -> tuple[State, StoreCounts, int]:
    """The state as a process that only reads finds it, its requests, and its round trips."""
    rounds, counting = Rounds(), CountingStore(objects)
    rounds.on(counting)
    connection = Connection(counting, read_only=True, runtime=replace(runtime(), executor=lambda: rounds))
    return connection.load()[0].state, counting.snapshot(), rounds.count


@pytest.mark.parametrize("length", range(61))
def test_an_open_takes_three_round_trips_and_few_requests_beside_the_tail(length: int) -> None:
    """The budget of an open; a short tail takes two."""
    state, counts, rounds = _opened(_store(4, 4, length))
    assert state.sequence == 4 + length
    assert rounds <= (2 if length < 2 else 3)
    assert (counts.put + counts.put_if_absent, counts.list) == (0, 1)
    assert counts.get <= BEFORE + length + NEEDLESS
    if length == 43:
        assert counts.get <= 43 + 12


@pytest.mark.slow
@pytest.mark.parametrize("length", [100, 300, 1_000])
def test_a_long_tail_is_read_in_windows_of_sixty_four(length: int) -> None:
    state, counts, rounds = _opened(_store(4, 4, length))
    assert state.sequence == 4 + length
    assert rounds <= 4 + length // 64
    assert counts.get <= BEFORE + length + 64


@pytest.mark.parametrize(("head", "length"), [(30, 28), (40, 36), (63, 60), (40, 80), (68, 64)])
def test_entries_up_to_the_head_that_a_hint_names_are_read_at_once(head: int, length: int) -> None:
    """A writer that had written on while it wrote the checkpoint: a short rest takes two round trips, others three."""
    state, counts, rounds = _opened(_store(4, head, length))
    rest = 4 + length - head
    assert state.sequence == 4 + length
    assert rounds == (2 if rest < 2 else 3)
    assert counts.get <= BEFORE + length + NEEDLESS


def test_entries_that_are_written_while_a_process_opens_do_not_confuse_it() -> None:
    """Entries far ahead did not exist when they were asked for, and those around them do when these are."""
    objects = _store(4, 4, 40)
    late = {keys.entry(0, number): objects.get(keys.entry(0, number)) for number in range(10, 45)}
    objects.delete([*late])
    inner = objects.get

    def get(key: str, start: int | None = None, end: int | None = None) -> bytes:
        if key == keys.entry(0, 9):  # It is in the second window.
            for name, data in late.items():
                objects.put(name, data)
        return inner(key, start, end)

    objects.get = get  # type: ignore[method-assign]
    assert _opened(objects)[0].sequence == 44


@pytest.mark.parametrize("lost", range(5, 45))
def test_entries_far_ahead_show_that_one_is_lost(lost: int) -> None:
    """Up to the last of them that exists, however many entries are lost in a row."""
    objects = _store(4, 4, 45)
    last = max(4 + distance for distance in tail.AHEAD if distance <= 45)
    objects.delete([keys.entry(0, number) for number in range(lost, last)])
    with pytest.raises(CorruptionError, match=f"{keys.entry(0, lost)} is missing, but later entries exist"):
        _opened(objects)


# Evidence -------------------------------------------------------------------------------------------------------------


def _hint(objects: MemoryStore) -> LatestDocument:
    return decode(LatestDocument, keys.latest(0), objects.get(keys.latest(0)))


def _rewrite(objects: MemoryStore, **members: Any) -> None:
    objects.put(keys.latest(0), encode(replace(_hint(objects), **members)))


def test_a_hint_names_the_newest_entry_that_its_writer_knows() -> None:
    """The checkpoint is written while others commit; those entries are evidence, too."""
    objects, background = MemoryStore(), DeferredExecutor()
    with a_chain(objects, checkpoint_every=4, background=background) as chain, a_chain(objects) as other:
        for number in range(4):
            chain.submit(CreateTopic(topic(f"t{number}")))
        other.refresh()
        other.submit(CreateTopic(topic("others")))
        newest = chain.refresh()
        background.run_all()
    hint = _hint(objects)
    assert (hint.sequence, hint.head, hint.head_hash) == (4, 5, newest.entry_hash)


def test_a_hint_names_no_entry_that_a_power_cut_may_take() -> None:
    """That of another process is visible, and not flushed: the writer of the hint flushes it before."""
    disk, background = MemoryStore(), DeferredExecutor()
    objects = FaultStore(disk, no_faults)
    with a_chain(objects, checkpoint_every=4, background=background) as chain:
        for number in range(4):
            chain.submit(CreateTopic(topic(f"t{number}")))
        objects.plan = on(Fault.UNSYNCED, "put_if_absent", times=None)
        with a_chain(objects) as other, pytest.raises(UnknownOutcomeError):
            other.submit(CreateTopic(topic("others")))
        assert chain.refresh().sequence == 5
        objects.plan = no_faults
        background.run_all()
    objects.power_loss()
    with a_chain(disk) as again:
        assert again.state.sequence == _hint(disk).head == 5


def test_a_hint_shows_that_the_entries_behind_its_checkpoint_are_lost() -> None:
    objects = _store(4, 40, 50)
    objects.delete([keys.entry(0, number) for number in range(30, 55)])
    with pytest.raises(
        CorruptionError, match=f"{keys.entry(0, 30)} is missing, but chains/latest/0000.json names .*40"
    ):
        _opened(objects)


@pytest.mark.parametrize("head", [8, 40, 100])
def test_a_hint_with_another_hash_of_its_newest_entry_is_another_history(head: int) -> None:
    """Wherever it is: in the first window, or, if the writer was far ahead, behind it."""
    objects = _store(4, head, 110)
    assert _opened(objects)[0].sequence == 114
    _rewrite(objects, head_hash="0" * 64)
    with pytest.raises(CorruptionError, match=f"it names {keys.entry(0, head)} with the hash 0000"):
        _opened(objects)


def test_another_hash_of_an_entry_that_has_a_checkpoint_is_another_history() -> None:
    objects = _store(4, 4, 0)
    _rewrite(objects, head_hash="0" * 64)
    with pytest.raises(CorruptionError, match="and the checkpoint one with"):
        _opened(objects)


def test_a_hint_of_another_store_is_no_evidence_and_no_request() -> None:
    """What it names does not count, its newest entry included; the chain is read as without a hint."""
    objects = _store(4, 40, 50)
    objects.delete([keys.latest(0)])
    state, without, rounds = _opened(objects)
    _store_hint = LatestDocument(
        sequence=40,
        boundary=0,
        head=1_000_000,
        head_hash="1" * 64,
        entry_hash="2" * 64,
        store_id="0" * 8 + keys.STORE_ID[8:],
    )
    objects.put(keys.latest(0), encode(_store_hint))
    assert _opened(objects) == (state, replace(without, bytes_in=ANY), rounds)


def test_the_newest_entry_of_an_old_hint_is_deleted_by_now() -> None:
    """It is before a boundary: neither its absence nor another object of its name is a contradiction."""
    clock = ManualClock()
    objects = MemoryStore(clock=clock)
    store = new_store(objects, clock=clock)
    for number in range(70):
        store.create_topic(f"t{number}")
    store.checkpoint()
    old = objects.get(keys.latest(0))
    head = _hint(objects).head
    assert head > 64
    for number in range(80):
        store.create_topic(f"u{number}")
        if number % 40 == 39:
            store.checkpoint()
            clock.advance(8 * DAY_MS)
    store.vacuum()
    clock.advance(2 * DAY_MS)
    store.vacuum()
    assert not objects.list(keys.entry(0, head))
    objects.put(keys.latest(0), old)
    newest = connection_of(store).view().states[0]
    assert _opened(objects)[0] == newest
    objects.put(keys.entry(0, head), b"of a writer that has slept")
    assert _opened(objects)[0] == newest


@pytest.mark.parametrize("damage", ["lost", "another"])
def test_a_recovery_accepts_a_chain_without_the_newest_entry_of_its_hint(damage: str) -> None:
    """It names the loss, and writes the hint again; then the store opens."""
    objects, clock = _store(4, 40, 50), ManualClock()
    if damage == "lost":
        objects.delete([keys.entry(0, number) for number in range(30, 55)])
    else:
        _rewrite(objects, head_hash="0" * 64)
    plan = planned(objects, clock)
    assert plan.opens
    assert [item.key for item in plan.repairs] == [keys.latest(0)]
    text = "entries 30 to 40 are lost" if damage == "lost" else "two histories"
    assert [text in item.consequence for item in plan.lost] == [True]
    repair(Connection(objects, runtime=runtime(clock)), plan)
    assert _opened(objects)[0].sequence == (29 if damage == "lost" else 54)
    assert planned(objects, clock) == RepairPlan()
