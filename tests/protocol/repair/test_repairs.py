"""Repairs: each damage of what an open needs is found; what can be rebuilt is, and what is lost is said exactly."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from tests.helpers import keys, later
from tests.helpers.compaction import commit, new_store, runtime, values
from tests.helpers.connections import connection_of
from tests.helpers.damage import sealed
from tests.helpers.documents import hint
from tests.helpers.repairs import RECORDS, bytes_of, checkpoints, planned, repaired, sample_objects
from txnstore.chain.checkpoints import checkpoint
from txnstore.chain.codec import encode
from txnstore.compactor import RepairPlan, plan_repairs, repair
from txnstore.connection import Connection
from txnstore.core.state import State
from txnstore.errors import (
    ReadOnlyError,
)
from txnstore.storage.counting import CountingStore
from txnstore.storage.memory import MemoryStore
from txnstore.store import Store, open_on
from txnstore.testing import ManualClock


@pytest.fixture
def objects(clock: ManualClock) -> MemoryStore:
    return sample_objects(clock)


def _flip(objects: MemoryStore, key: str) -> None:
    data = bytearray(objects.get(key))
    data[len(data) // 2] ^= 1
    objects.put(key, bytes(data))


# What can be rebuilt --------------------------------------------------------------------------------------------------


def test_sound_store_needs_no_repair_and_nothing_is_written(objects: MemoryStore, clock: ManualClock) -> None:
    before = bytes_of(objects)
    counting = CountingStore(objects, log=True)
    plan = plan_repairs(Connection(counting, read_only=True, runtime=runtime(clock)))
    assert (plan, plan.opens) == (RepairPlan(), True)
    assert {kind for kind, _ in counting.log} == {"get", "list"}
    lists = [key for kind, key in counting.log if kind == "list"]
    assert len(lists) == 10, (
        "checkpoints, twice, boundaries, entries, inlined or segments; the stores, the catalog, the newest entry"
    )
    assert len(counting.log) < 62, "the entries before the newest checkpoint are not read"
    repair(Connection(objects, runtime=runtime(clock)), plan)
    assert bytes_of(objects) == before


@pytest.mark.slow
@pytest.mark.parametrize("damage", [None, b"", b"garbage", encode(hint(3))])
def test_hint_is_rebuilt(objects: MemoryStore, clock: ManualClock, damage: bytes | None) -> None:
    """Lost, emptied, garbage, and the name of a checkpoint that never was."""
    sound, key = bytes_of(objects), keys.latest(0)
    objects.delete([key]) if damage is None else objects.put(key, damage)
    plan = repaired(objects, clock)
    assert key in {item.key for item in plan.repairs}
    assert plan.lost == ()
    if damage is None or not damage.startswith(b"{"):
        assert bytes_of(objects) == sound


def test_hint_of_the_future_shows_entries_that_may_be_lost(objects: MemoryStore, clock: ManualClock) -> None:
    """It was written after the entry that it names: the bucket was rolled back, or the entries are lost."""
    sound = bytes_of(objects)
    objects.put(keys.latest(0), encode(hint(10**6)))
    plan = planned(objects, clock)
    (loss,) = plan.lost
    assert plan.opens
    assert not loss.blocks
    assert "to 1000000 are lost" in loss.consequence
    repair(Connection(objects, runtime=runtime(clock)), plan)
    assert planned(objects, clock) == RepairPlan()
    assert bytes_of(objects) == sound


def _lose(objects: MemoryStore, number: int) -> None:
    objects.delete([item.key for item in objects.list(keys.checkpoint_state(0, number).rpartition("/")[0])])


def _tear(objects: MemoryStore, number: int) -> None:
    objects.delete([keys.checkpoint_index(0, number)])


def _alter_head(objects: MemoryStore, number: int) -> None:
    _flip(objects, keys.checkpoint_state(0, number))


def _alter_index(objects: MemoryStore, number: int) -> None:
    _flip(objects, keys.checkpoint_index(0, number))


@pytest.mark.parametrize("damage", [_lose, _tear, _alter_head, _alter_index])
def test_newest_checkpoint_is_written_again_byte_by_byte(
    objects: MemoryStore, clock: ManualClock, damage: Callable[[MemoryStore, int], None]
) -> None:
    sound = bytes_of(objects)
    damage(objects, checkpoints(objects)[-1])
    plan = repaired(objects, clock)
    assert [item.action for item in plan.repairs] == ["written again from the entries up to 128"]
    assert bytes_of(objects) == sound


@pytest.mark.parametrize("damage", [_alter_head, _alter_index])
def test_both_checkpoints_are_written_again(
    objects: MemoryStore, clock: ManualClock, damage: Callable[[MemoryStore, int], None]
) -> None:
    sound = bytes_of(objects)
    for number in checkpoints(objects):
        damage(objects, number)
    assert len(repaired(objects, clock).repairs) == 2
    assert bytes_of(objects) == sound


def test_all_checkpoints_and_the_hint_lost(objects: MemoryStore, clock: ManualClock) -> None:
    for number in checkpoints(objects):
        _lose(objects, number)
    objects.delete([keys.latest(0)])
    (item,) = repaired(objects, clock).repairs
    assert (item.key, item.damage) == (keys.latest(0), "it is missing")
    assert len(checkpoints(objects)) == 1


@pytest.mark.parametrize("damage", [_alter_head, _alter_index])
def test_older_damaged_checkpoint_is_deleted_below_a_sound_one(
    objects: MemoryStore, clock: ManualClock, damage: Callable[[MemoryStore, int], None]
) -> None:
    """It would be written again only by folding the chain from its first entry; no process will ever read it."""
    damage(objects, 64)
    (item,) = repaired(objects, clock).repairs
    assert (item.key, item.action.startswith("deleted: ")) == (keys.checkpoint_state(0, 64), True)
    assert checkpoints(objects) == [128]


@pytest.mark.parametrize("damage", [_alter_head, _alter_index])
def test_each_damaged_checkpoint_of_the_history_is_deleted(
    clock: ManualClock, damage: Callable[[MemoryStore, int], None]
) -> None:
    """Opens use the newest two only, but earlier snapshots the others, and a verification judges all."""
    objects = MemoryStore(clock=clock)
    with new_store(clock, objects) as store:
        for name in "abcde":
            store.create_topic(name)
            store.checkpoint()
    sequences = checkpoints(objects)
    for number in (sequences[0], sequences[2]):
        damage(objects, number)
    plan = planned(objects, clock)
    assert [item.key for item in plan.repairs] == [
        keys.checkpoint_state(0, number) for number in (sequences[0], sequences[2])
    ]
    repair(Connection(objects, runtime=runtime(clock)), plan)
    assert checkpoints(objects) == [sequences[1], *sequences[3:]], "no sound one is deleted"
    assert planned(objects, clock) == RepairPlan()
    with open_on(objects, runtime=runtime(clock)) as store:
        report = store.verify()
        assert report.ok, report.violations


def test_hint_to_a_chain_without_entries_is_deleted(clock: ManualClock) -> None:
    objects = MemoryStore(clock=clock)
    new_store(clock, objects)
    objects.put(keys.latest(0), b"garbage")
    plan = planned(objects, clock)
    repair(Connection(objects, runtime=runtime(clock)), plan)
    assert planned(objects, clock) == RepairPlan()
    assert keys.latest(0) not in bytes_of(objects)


# What is lost ---------------------------------------------------------------------------------------------------------


def _last(objects: MemoryStore) -> int:
    return int(objects.list(keys.entries(0))[-1].key[-25:-5])


def test_missing_entry_after_the_checkpoint_is_named(objects: MemoryStore, clock: ManualClock) -> None:
    """OBJ-13: which sequence, up to where the state is known, and what is lost with it."""
    before, last = bytes_of(objects), _last(objects)
    objects.delete([keys.entry(0, 130)])
    plan = planned(objects, clock)
    (loss,) = plan.lost
    assert (plan.repairs, plan.opens, loss.key) == ((), False, keys.entry(0, 130))
    assert loss.damage == "entry 130 of chain 0 cannot be found"
    assert "known up to entry 129" in loss.consequence
    assert f"the entries up to {last}, which exist" in loss.consequence
    objects.put(keys.entry(0, 130), before[keys.entry(0, 130)])
    assert planned(objects, clock) == RepairPlan()


def test_gap_of_several_entries_is_one_loss(objects: MemoryStore, clock: ManualClock) -> None:
    """More names in a row than a chain looks at to find its end."""
    objects.delete([keys.entry(0, number) for number in range(131, 138)])
    objects.delete([keys.latest(0)])
    plan = planned(objects, clock)
    (loss,) = plan.lost
    assert loss.damage == "entries 131, 132, 133, 134, 135 and 2 more of chain 0 cannot be found"
    assert [item.key for item in plan.repairs] == [keys.latest(0)], "the hint can be rebuilt nevertheless"


def test_gap_of_more_entries_than_are_read_at_once_is_a_loss(objects: MemoryStore, clock: ManualClock) -> None:
    """Read alone, it looks like the end of the chain; a list shows that it is none."""
    for number in checkpoints(objects):
        _lose(objects, number)
    objects.delete([keys.entry(0, number) for number in range(2, 101)])
    plan = planned(objects, clock)
    (loss,) = plan.lost
    assert (loss.key, plan.opens) == (keys.entry(0, 2), False)
    assert loss.damage == "entries 2, 3, 4, 5, 6 and 94 more of chain 0 cannot be found"
    assert plan.repairs == (), "no checkpoint is written of a state that is not the newest"


@pytest.mark.parametrize("last", [False, True])
def test_altered_entry_is_named(objects: MemoryStore, clock: ManualClock, last: bool) -> None:
    number = _last(objects) if last else 140
    _flip(objects, keys.entry(0, number))
    (loss,) = planned(objects, clock).lost
    assert loss.key == keys.entry(0, number)
    assert "altered" in loss.damage
    assert f"known up to entry {number - 1}" in loss.consequence
    assert ("which exist" in loss.consequence) is not last


def test_an_altered_entry_before_a_missing_one_is_named_with_it(objects: MemoryStore, clock: ManualClock) -> None:
    """Both are lost, and each has its own reason; putting back the missing one alone would not help."""
    before, last = bytes_of(objects), _last(objects)
    _flip(objects, keys.entry(0, 131))
    objects.delete([keys.entry(0, 133)])
    (loss,) = planned(objects, clock).lost
    assert loss.key == keys.entry(0, 131)
    assert "altered" in loss.damage
    assert loss.damage.endswith("; entry 133 of chain 0 cannot be found")
    assert "known up to entry 130" in loss.consequence
    assert "committed in the entries from 131 on cannot be rebuilt" in loss.consequence
    assert f"the entries up to {last}, which exist" in loss.consequence
    for number in (131, 133):
        objects.put(keys.entry(0, number), before[keys.entry(0, number)])
    assert planned(objects, clock) == RepairPlan()


def test_rewritten_entry_with_a_good_checksum_is_named(objects: MemoryStore, clock: ManualClock) -> None:
    """The entry after it tells: the altered one is named, not the one that shows it."""
    document = json.loads(objects.get(keys.entry(0, 140))) | {"writer_id": "another"}
    del document["checksum"]
    objects.put(keys.entry(0, 140), sealed(json.dumps(document, separators=(",", ":")).encode()))
    (loss,) = planned(objects, clock).lost
    assert loss.key == keys.entry(0, 140)
    assert "known up to entry 139" in loss.consequence


def test_checkpoint_cannot_be_rebuilt_over_a_missing_entry(objects: MemoryStore, clock: ManualClock) -> None:
    """The newest is damaged, and between the older one and it an entry is missing."""
    objects.delete([keys.entry(0, 70)])
    _alter_head(objects, 128)
    plan = planned(objects, clock)
    assert (plan.opens, [loss.key for loss in plan.lost]) == (False, [keys.entry(0, 70)])
    assert keys.checkpoint_state(0, 128) not in {item.key for item in plan.repairs}, "what is left of it stays"


def test_only_the_damaged_chain_is_reported(clock: ManualClock) -> None:
    objects = MemoryStore(clock=clock)
    store = new_store(clock, objects, chains=3)
    store.create_topic("t", partitions=3)
    for number in range(3):
        commit(store, [b"a"], partition=number)
        commit(store, [b"b"], partition=number)
    names = connection_of(store).keys
    objects.delete([names.entry(2, 2)])
    (loss,) = planned(objects, clock).lost
    assert loss.key == names.entry(2, 2)
    assert "chain 2" in loss.consequence


def test_read_only_connection_repairs_nothing(objects: MemoryStore, clock: ManualClock) -> None:
    with pytest.raises(ReadOnlyError):
        repair(Connection(objects, read_only=True, runtime=runtime(clock)), RepairPlan())


def test_repair_while_others_write(objects: MemoryStore, clock: ManualClock) -> None:
    """The plan is of entries that existed; an entry that is written meanwhile is no damage, and is kept."""
    objects.delete([keys.latest(0)])
    with open_on(objects, runtime=runtime(clock)) as writer:
        plan = planned(objects, clock)
        commit(writer, [b"meanwhile"])
        repair(Connection(objects, runtime=runtime(clock)), plan)
    with open_on(objects, runtime=runtime(clock)) as store:
        assert values(store)[-1] == b"meanwhile"
        assert isinstance(store, Store)
        assert store.verify().ok


# What only the past needs ---------------------------------------------------------------------------------------------


def test_a_missing_entry_that_only_the_past_needs_is_named_and_is_no_loss(
    objects: MemoryStore, clock: ManualClock
) -> None:
    objects.delete([keys.entry(0, number) for number in (70, 90)])
    plan = planned(objects, clock)
    assert (plan.repairs, plan.lost, plan.opens) == ((), (), True)
    assert [(item.key, item.damage) for item in plan.past] == [
        (keys.entry(0, 70), "it is missing"),
        (keys.entry(0, 90), "it is missing"),
    ]
    with open_on(objects, runtime=runtime(clock)) as store:
        missing = [item.subject for item in store.verify().violations if item.name == "entry_present"]
        assert missing == [item.key for item in plan.past]


def test_a_gap_that_an_open_does_not_see_is_a_loss(objects: MemoryStore, clock: ManualClock) -> None:
    """More names in a row than it looks at; what is committed behind them would be written over."""
    later = objects.get(keys.entry(0, 138))
    objects.delete([item.key for item in objects.list(keys.entries(0), keys.entry(0, 130))])
    objects.put(keys.entry(0, 200), later)
    plan = planned(objects, clock)
    assert ([item.key for item in plan.lost], plan.past, plan.opens) == ([keys.entry(0, 131)], (), False)


def _altered(objects: MemoryStore, place: str) -> str:
    """Alter a byte of an entry's line, or of the records in it, that no open reads; the key."""
    key = keys.entry(0, 70 if place == "line" else 71)
    data = bytearray(objects.get(key))
    data[-20 if place == "line" else 100] ^= 1
    objects.put(key, bytes(data))
    return key


@pytest.mark.parametrize("place", ["line", "records"])
def test_altered_contents_are_named_by_a_deep_plan(objects: MemoryStore, clock: ManualClock, place: str) -> None:
    key = _altered(objects, place)
    deep = plan_repairs(Connection(objects, read_only=True, runtime=runtime(clock)), deep=True)
    assert planned(objects, clock) == RepairPlan(), "only a deep plan reads it"
    assert deep.opens
    with open_on(objects, runtime=runtime(clock)) as store:
        subjects = {item.subject.partition("#")[0] for item in store.verify(deep=True).violations}
    assert subjects == {item.key for item in (*deep.lost, *deep.past)} >= {key}
    if place == "records":
        (loss,) = deep.lost
        assert loss.key == key
        assert "1 record cannot be rebuilt: t-0 offsets" in loss.consequence


def test_a_deep_plan_of_a_damaged_store_judges_it_as_it_will_be(objects: MemoryStore, clock: ManualClock) -> None:
    """Nothing that the repairs mend is named as lost."""
    sound = bytes_of(objects)
    _alter_head(objects, 128)
    plan = plan_repairs(Connection(objects, read_only=True, runtime=runtime(clock)), deep=True)
    assert (plan.lost, plan.past, [item.key for item in plan.repairs]) == ((), (), [keys.checkpoint_state(0, 128)])
    repair(Connection(objects, runtime=runtime(clock)), plan)
    assert bytes_of(objects) == sound


def test_a_hint_to_an_older_checkpoint_than_one_that_is_written_again_is_written_again_too(
    objects: MemoryStore, clock: ManualClock
) -> None:
    """Entries between the two may be missing; one run of the repairs must be enough."""
    objects.put(*checkpoint.hint_to(keys.KEYS, _state_at(objects, clock, 64)))
    _alter_head(objects, 128)
    plan = planned(objects, clock)
    assert sorted(item.key for item in plan.repairs) == [keys.checkpoint_state(0, 128), keys.latest(0)]
    repair(Connection(objects, runtime=runtime(clock)), plan)
    assert planned(objects, clock) == RepairPlan()


@pytest.mark.parametrize("boundary", [2, 5_000, 2**63 - 1, 2**70])
def test_a_hint_to_a_boundary_that_cannot_be_is_wrong(objects: MemoryStore, clock: ManualClock, boundary: int) -> None:
    """And costs no request for each number before it."""
    members = json.loads(objects.get(keys.latest(0))) | {"boundary": boundary}
    objects.put(keys.latest(0), later.text(members))
    counting = CountingStore(objects, log=True)
    plan = plan_repairs(Connection(counting, read_only=True, runtime=runtime(clock)))
    assert len(counting.log) < 200
    assert plan.lost == ()
    assert boundary == 2 or [item.key for item in plan.repairs] == [keys.latest(0)]
    repair(Connection(objects, runtime=runtime(clock)), plan)
    assert planned(objects, clock) == RepairPlan()
    with open_on(objects, runtime=runtime(clock)) as store:
        assert len(values(store)) == RECORDS


def _state_at(objects: MemoryStore, clock: ManualClock, entry: int) -> State:
    with open_on(objects, runtime=runtime(clock)) as store:
        return store.snapshot(entry=entry).view.states[0]
