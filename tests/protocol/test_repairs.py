"""Repairs: each damage of what an open needs is found; what can be rebuilt is, and what is lost is said exactly."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from tests.helpers import keys
from tests.helpers.compaction import commit, new_store, runtime, values
from tests.helpers.connections import connection_of
from tests.helpers.damage import sealed
from tests.helpers.shell import ONE_CHAIN
from txnstore.chain.codec import LatestDocument, StoreDocument, decode, encode
from txnstore.compactor import RepairPlan, plan_repairs, repair
from txnstore.connection import Connection
from txnstore.errors import (
    CorruptionError,
    InvalidConfigError,
    ReadOnlyError,
    StoreNotFoundError,
    UnsupportedFormatError,
)
from txnstore.storage.counting import CountingStore
from txnstore.storage.memory import MemoryStore
from txnstore.store import Store, open_on
from txnstore.testing import ManualClock

RECORDS = 75


@pytest.fixture(scope="module")
def sample() -> dict[str, bytes]:
    """The objects of a store of one chain with two checkpoints and entries after them."""
    clock = ManualClock()
    objects = MemoryStore(clock=clock)
    store = new_store(clock, objects)
    store.create_topic("t")
    for number in range(RECORDS):
        commit(store, [b"%d" % number])
    return _bytes(objects)


@pytest.fixture
def objects(sample: dict[str, bytes], clock: ManualClock) -> MemoryStore:
    objects = MemoryStore(clock=clock)
    for key, data in sample.items():
        objects.put(key, data)
    assert _checkpoints(objects) == [64, 128]
    return objects


def _checkpoints(objects: MemoryStore) -> list[int]:
    heads = [item.key for item in objects.list(keys.checkpoints(0)) if item.key.endswith("head.json")]
    return [int(key.split("/")[-2]) for key in heads]


def _plan(objects: MemoryStore, clock: ManualClock, chains: int | None = None) -> RepairPlan:
    return plan_repairs(Connection(objects, read_only=True, runtime=runtime(clock)), chains)


def _bytes(objects: MemoryStore) -> dict[str, bytes]:
    return {item.key: objects.get(item.key) for item in objects.list("")}


def _repaired(objects: MemoryStore, clock: ManualClock) -> RepairPlan:
    """Carry out the plan; then nothing is left to do, the store is sound, and all records are there."""
    plan = _plan(objects, clock)
    repair(Connection(objects, runtime=runtime(clock)), plan)
    assert _plan(objects, clock) == RepairPlan()
    _is_whole(objects, clock)
    return plan


def _is_whole(objects: MemoryStore, clock: ManualClock) -> None:
    with open_on(objects, runtime=runtime(clock)) as store:
        assert values(store) == [b"%d" % number for number in range(RECORDS)]
        report = store.verify(deep=True)
        assert report.ok, report.violations


def _flip(objects: MemoryStore, key: str) -> None:
    data = bytearray(objects.get(key))
    data[len(data) // 2] ^= 1
    objects.put(key, bytes(data))


# What can be rebuilt --------------------------------------------------------------------------------------------------


def test_sound_store_needs_no_repair_and_nothing_is_written(objects: MemoryStore, clock: ManualClock) -> None:
    before = _bytes(objects)
    counting = CountingStore(objects, log=True)
    plan = plan_repairs(Connection(counting, read_only=True, runtime=runtime(clock)))
    assert (plan, plan.opens) == (RepairPlan(), True)
    assert {kind for kind, _ in counting.log} == {"get", "list"}
    assert [kind for kind, _ in counting.log].count("list") == 1
    assert len(counting.log) < 50, "the entries before the newest checkpoint are not read"
    repair(Connection(objects, runtime=runtime(clock)), plan)
    assert _bytes(objects) == before


@pytest.mark.parametrize("damage", [None, b"", b"garbage", encode(LatestDocument(sequence=3))])
def test_hint_is_rebuilt(objects: MemoryStore, clock: ManualClock, damage: bytes | None) -> None:
    """Lost, emptied, garbage, and the name of a checkpoint that never was."""
    sound, hint = _bytes(objects), keys.latest(0)
    objects.delete([hint]) if damage is None else objects.put(hint, damage)
    plan = _repaired(objects, clock)
    assert hint in {item.key for item in plan.repairs}
    assert plan.lost == ()
    if damage is None or not damage.startswith(b"{"):
        assert _bytes(objects) == sound


def test_hint_of_the_future_shows_entries_that_may_be_lost(objects: MemoryStore, clock: ManualClock) -> None:
    """It was written after the entry that it names: the bucket was rolled back, or the entries are lost."""
    sound = _bytes(objects)
    objects.put(keys.latest(0), encode(LatestDocument(sequence=10**6)))
    plan = _plan(objects, clock)
    (loss,) = plan.lost
    assert plan.opens
    assert not loss.blocks
    assert "to 1000000 are lost" in loss.consequence
    repair(Connection(objects, runtime=runtime(clock)), plan)
    assert _plan(objects, clock) == RepairPlan()
    assert _bytes(objects) == sound


def _lose(objects: MemoryStore, number: int) -> None:
    objects.delete([item.key for item in objects.list(keys.checkpoint_head(0, number).rpartition("/")[0])])


def _tear(objects: MemoryStore, number: int) -> None:
    objects.delete([keys.checkpoint_batches(0, number)])


def _alter_head(objects: MemoryStore, number: int) -> None:
    _flip(objects, keys.checkpoint_head(0, number))


def _alter_batches(objects: MemoryStore, number: int) -> None:
    _flip(objects, keys.checkpoint_batches(0, number))


@pytest.mark.parametrize("damage", [_lose, _tear, _alter_head, _alter_batches])
def test_newest_checkpoint_is_written_again_byte_by_byte(
    objects: MemoryStore, clock: ManualClock, damage: Callable[[MemoryStore, int], None]
) -> None:
    sound = _bytes(objects)
    damage(objects, _checkpoints(objects)[-1])
    plan = _repaired(objects, clock)
    assert [item.action for item in plan.repairs] == ["written again from the entries up to 128"]
    assert _bytes(objects) == sound


@pytest.mark.parametrize("damage", [_alter_head, _alter_batches])
def test_both_checkpoints_are_written_again(
    objects: MemoryStore, clock: ManualClock, damage: Callable[[MemoryStore, int], None]
) -> None:
    sound = _bytes(objects)
    for number in _checkpoints(objects):
        damage(objects, number)
    assert len(_repaired(objects, clock).repairs) == 2
    assert _bytes(objects) == sound


def test_all_checkpoints_and_the_hint_lost(objects: MemoryStore, clock: ManualClock) -> None:
    for number in _checkpoints(objects):
        _lose(objects, number)
    objects.delete([keys.latest(0)])
    (found,) = _repaired(objects, clock).repairs
    assert (found.key, found.damage) == (keys.latest(0), "it is missing")
    assert len(_checkpoints(objects)) == 1


@pytest.mark.parametrize("damage", [_alter_head, _alter_batches])
def test_older_damaged_checkpoint_is_deleted_below_a_sound_one(
    objects: MemoryStore, clock: ManualClock, damage: Callable[[MemoryStore, int], None]
) -> None:
    """It would be written again only by folding the chain from its first entry; no process will ever read it."""
    damage(objects, 64)
    (found,) = _repaired(objects, clock).repairs
    assert (found.key, found.action.startswith("deleted: ")) == (keys.checkpoint_head(0, 64), True)
    assert _checkpoints(objects) == [128]


def test_hint_to_a_chain_without_entries_is_deleted(clock: ManualClock) -> None:
    objects = MemoryStore(clock=clock)
    new_store(clock, objects)
    objects.put(keys.latest(0), b"garbage")
    plan = _plan(objects, clock)
    repair(Connection(objects, runtime=runtime(clock)), plan)
    assert _plan(objects, clock) == RepairPlan()
    assert keys.latest(0) not in _bytes(objects)


# The identity ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("damage", [None, b"", b'{"version":1,"store'])
def test_store_document_is_rebuilt(objects: MemoryStore, clock: ManualClock, damage: bytes | None) -> None:
    before = decode(StoreDocument, keys.STORE, objects.get(keys.STORE))
    objects.delete([keys.STORE]) if damage is None else objects.put(keys.STORE, damage)
    plan = _repaired(objects, clock)
    (found,) = plan.repairs
    assert (found.key, found.create) == (keys.STORE, damage is None)
    after = decode(StoreDocument, keys.STORE, objects.get(keys.STORE))
    assert (after.store_id, after.chains) == (before.store_id, before.chains)


def test_store_document_of_several_chains_is_rebuilt_from_a_checkpoint(clock: ManualClock) -> None:
    objects = MemoryStore(clock=clock)
    store = new_store(clock, objects, chains=3)
    store.create_topic("t", partitions=3)
    commit(store, [b"a"], partition=1)
    store.checkpoint()
    identity = store.store_id
    objects.delete([keys.STORE])
    with pytest.raises(InvalidConfigError, match="has 3 chains, as a checkpoint"):
        _plan(objects, clock, chains=4)
    repair(Connection(objects, runtime=runtime(clock)), _plan(objects, clock))
    with open_on(objects, runtime=runtime(clock)) as again:
        assert (again.store_id, len(connection_of(again).chains), values(again)) == (identity, 3, [b"a"])
        assert again.verify().ok


@ONE_CHAIN
def test_number_of_chains_is_asked_for_if_no_checkpoint_has_it(clock: ManualClock, chains: int) -> None:
    objects = MemoryStore(clock=clock)
    store = new_store(clock, objects, chains=chains)
    store.create_topic("t", partitions=5)
    commit(store, [b"a"])
    objects.delete([keys.STORE])
    plan = _plan(objects, clock)
    assert (plan.repairs, plan.opens) == ((), False)
    assert "--chains" in plan.lost[0].consequence
    with pytest.raises(InvalidConfigError, match="is in chain 0"):
        _plan(objects, clock, chains=3)
    with pytest.raises(InvalidConfigError, match="chains"):
        _plan(objects, clock, chains=0)
    repair(Connection(objects, runtime=runtime(clock)), _plan(objects, clock, chains=1))
    with open_on(objects, runtime=runtime(clock)) as again:
        assert values(again) == [b"a"]


def test_chains_that_were_lost_are_counted(clock: ManualClock) -> None:
    objects = MemoryStore(clock=clock)
    store = new_store(clock, objects, chains=3)
    store.create_topic("t", partitions=3)
    for number in range(3):
        commit(store, [b"a"], partition=number)
    objects.delete([keys.STORE])
    with pytest.raises(InvalidConfigError, match="more than 2 chains"):
        _plan(objects, clock, chains=2)


def test_document_is_not_rebuilt_among_chains_of_several_stores(objects: MemoryStore, clock: ManualClock) -> None:
    objects.put("chains/018bcfe5-6800-7259-8652-237b4f65d4d9/0000/entries/00000000000000000001.json", b"x")
    assert _plan(objects, clock) == RepairPlan()
    objects.delete([keys.STORE])
    plan = _plan(objects, clock)
    assert (plan.repairs, len(plan.lost)) == ((), 1)
    assert "018bcfe5-6800-7259-8652-237b4f65d4d9" in plan.lost[0].consequence


def test_no_store_is_an_error(clock: ManualClock) -> None:
    objects = MemoryStore(clock=clock)
    with pytest.raises(StoreNotFoundError):
        _plan(objects, clock)
    objects.put(keys.STORE, b"of something else")
    with pytest.raises(StoreNotFoundError, match="belongs to something else"):
        _plan(objects, clock)


def test_document_of_a_newer_format_is_not_damage(objects: MemoryStore, clock: ManualClock) -> None:
    document = json.loads(objects.get(keys.STORE)) | {"version": 99}
    del document["checksum"]
    objects.put(keys.STORE, sealed(json.dumps(document, separators=(",", ":")).encode()))
    with pytest.raises(UnsupportedFormatError):
        _plan(objects, clock)


def test_document_that_another_process_has_put_back_is_kept(objects: MemoryStore, clock: ManualClock) -> None:
    document = decode(StoreDocument, keys.STORE, objects.get(keys.STORE))
    sound = encode(document.model_copy(update={"created_at": 1}))
    objects.delete([keys.STORE])
    plan = _plan(objects, clock)
    objects.put(keys.STORE, sound)
    with pytest.raises(CorruptionError, match="meanwhile"):
        repair(Connection(objects, runtime=runtime(clock)), plan)
    assert objects.get(keys.STORE) == sound


# What is lost ---------------------------------------------------------------------------------------------------------


def _last(objects: MemoryStore) -> int:
    return int(objects.list(keys.entries(0))[-1].key[-25:-5])


def test_missing_entry_after_the_checkpoint_is_named(objects: MemoryStore, clock: ManualClock) -> None:
    """OBJ-13: which sequence, up to where the state is known, and what is lost with it."""
    before, last = _bytes(objects), _last(objects)
    objects.delete([keys.entry(0, 130)])
    plan = _plan(objects, clock)
    (loss,) = plan.lost
    assert (plan.repairs, plan.opens, loss.key) == ((), False, keys.entry(0, 130))
    assert loss.damage == "entry 130 of chain 0 cannot be found"
    assert "known up to entry 129" in loss.consequence
    assert f"the entries up to {last}, which exist" in loss.consequence
    objects.put(keys.entry(0, 130), before[keys.entry(0, 130)])
    assert _plan(objects, clock) == RepairPlan()


def test_gap_of_several_entries_is_one_loss(objects: MemoryStore, clock: ManualClock) -> None:
    """More names in a row than a chain looks at to find its end."""
    objects.delete([keys.entry(0, number) for number in range(131, 138)])
    objects.delete([keys.latest(0)])
    plan = _plan(objects, clock)
    (loss,) = plan.lost
    assert loss.damage == "entries 131, 132, 133, 134, 135 and 2 more of chain 0 cannot be found"
    assert [item.key for item in plan.repairs] == [keys.latest(0)], "the hint can be rebuilt nevertheless"


def test_gap_of_more_entries_than_are_read_at_once_is_a_loss(objects: MemoryStore, clock: ManualClock) -> None:
    """Read alone, it looks like the end of the chain; a list shows that it is none."""
    for number in _checkpoints(objects):
        _lose(objects, number)
    objects.delete([keys.entry(0, number) for number in range(2, 101)])
    plan = _plan(objects, clock)
    (loss,) = plan.lost
    assert (loss.key, plan.opens) == (keys.entry(0, 2), False)
    assert loss.damage == "entries 2, 3, 4, 5, 6 and 94 more of chain 0 cannot be found"
    assert plan.repairs == (), "no checkpoint is written of a state that is not the newest"


@pytest.mark.parametrize("last", [False, True])
def test_altered_entry_is_named(objects: MemoryStore, clock: ManualClock, last: bool) -> None:
    number = _last(objects) if last else 140
    _flip(objects, keys.entry(0, number))
    (loss,) = _plan(objects, clock).lost
    assert loss.key == keys.entry(0, number)
    assert "altered" in loss.damage
    assert f"known up to entry {number - 1}" in loss.consequence
    assert ("which exist" in loss.consequence) is not last


def test_rewritten_entry_with_a_good_checksum_is_named(objects: MemoryStore, clock: ManualClock) -> None:
    """The entry after it tells: the altered one is named, not the one that shows it."""
    document = json.loads(objects.get(keys.entry(0, 140))) | {"writer_id": "another"}
    del document["checksum"]
    objects.put(keys.entry(0, 140), sealed(json.dumps(document, separators=(",", ":")).encode()))
    (loss,) = _plan(objects, clock).lost
    assert loss.key == keys.entry(0, 140)
    assert "known up to entry 139" in loss.consequence


def test_missing_entry_before_a_sound_checkpoint_does_not_matter(objects: MemoryStore, clock: ManualClock) -> None:
    """The store opens; a verification names the entry."""
    objects.delete([keys.entry(0, 70)])
    assert _plan(objects, clock) == RepairPlan()


def test_checkpoint_cannot_be_rebuilt_over_a_missing_entry(objects: MemoryStore, clock: ManualClock) -> None:
    """The newest is damaged, and between the older one and it an entry is missing."""
    objects.delete([keys.entry(0, 70)])
    _alter_head(objects, 128)
    plan = _plan(objects, clock)
    assert (plan.opens, [loss.key for loss in plan.lost]) == (False, [keys.entry(0, 70)])
    assert keys.checkpoint_head(0, 128) not in {item.key for item in plan.repairs}, "what is left of it stays"


def test_only_the_damaged_chain_is_reported(clock: ManualClock) -> None:
    objects = MemoryStore(clock=clock)
    store = new_store(clock, objects, chains=3)
    store.create_topic("t", partitions=3)
    for number in range(3):
        commit(store, [b"a"], partition=number)
        commit(store, [b"b"], partition=number)
    names = connection_of(store).keys
    objects.delete([names.entry(2, 2)])
    (loss,) = _plan(objects, clock).lost
    assert loss.key == names.entry(2, 2)
    assert "chain 2" in loss.consequence


def test_read_only_connection_repairs_nothing(objects: MemoryStore, clock: ManualClock) -> None:
    with pytest.raises(ReadOnlyError):
        repair(Connection(objects, read_only=True, runtime=runtime(clock)), RepairPlan())


def test_repair_while_others_write(objects: MemoryStore, clock: ManualClock) -> None:
    """The plan is of entries that existed; an entry that is written meanwhile is no damage, and is kept."""
    objects.delete([keys.latest(0)])
    with open_on(objects, runtime=runtime(clock)) as writer:
        plan = _plan(objects, clock)
        commit(writer, [b"meanwhile"])
        repair(Connection(objects, runtime=runtime(clock)), plan)
    with open_on(objects, runtime=runtime(clock)) as store:
        assert values(store)[-1] == b"meanwhile"
        assert isinstance(store, Store)
        assert store.verify().ok
