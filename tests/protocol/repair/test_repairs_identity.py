"""``store.json`` is rebuilt from the chains of the store, or what is missing for that is said."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from tests.helpers import keys
from tests.helpers.compaction import commit, new_store, runtime, values
from tests.helpers.connections import connection_of
from tests.helpers.damage import sealed
from tests.helpers.documents import store_document
from tests.helpers.repairs import planned, repaired, sample_objects
from tests.helpers.shell import ONE_CHAIN
from txnstore.chain.codec import StoreDocument, decode, encode
from txnstore.compactor import repair
from txnstore.connection import Connection
from txnstore.errors import (
    CorruptionError,
    InvalidConfigError,
    StoreNotFoundError,
    UnsupportedFormatError,
)
from txnstore.storage.memory import MemoryStore
from txnstore.store import open_on
from txnstore.testing import ManualClock

ANOTHER = "00000000-0000-7000-8000-00000000000a"


@pytest.fixture
def objects(clock: ManualClock) -> MemoryStore:
    return sample_objects(clock)


@pytest.mark.parametrize("damage", [None, b"", b'{"version":1,"store'])
def test_store_document_is_rebuilt(objects: MemoryStore, clock: ManualClock, damage: bytes | None) -> None:
    before = decode(StoreDocument, keys.STORE, objects.get(keys.STORE))
    objects.delete([keys.STORE]) if damage is None else objects.put(keys.STORE, damage)
    plan = repaired(objects, clock)
    (item,) = plan.repairs
    assert (item.key, item.create) == (keys.STORE, damage is None)
    assert item.action.endswith("; the largest timeout of transactions is 15 minutes, whatever it was before")
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
        planned(objects, clock, chains=4)
    repair(Connection(objects, runtime=runtime(clock)), planned(objects, clock))
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
    plan = planned(objects, clock)
    assert (plan.repairs, plan.opens) == ((), False)
    assert "--chains" in plan.lost[0].consequence
    with pytest.raises(InvalidConfigError, match="is in chain 0"):
        planned(objects, clock, chains=3)
    with pytest.raises(InvalidConfigError, match="chains"):
        planned(objects, clock, chains=0)
    repair(Connection(objects, runtime=runtime(clock)), planned(objects, clock, chains=1))
    with open_on(objects, runtime=runtime(clock)) as again:
        assert values(again) == [b"a"]


@ONE_CHAIN
def test_wrong_number_of_chains_that_makes_an_entry_invalid_is_not_written(clock: ManualClock, chains: int) -> None:
    objects = MemoryStore(clock=clock)
    store = new_store(clock, objects, chains=chains)
    store.create_topic("a")
    for number in range(8):  # With two chains, half of their partitions would be in the other one.
        store.create_topic(f"t{number}")
        with store.producer() as producer:
            producer.send(f"t{number}", value=b"x")
    objects.delete([keys.STORE])
    plan = planned(objects, clock, chains=2)
    assert (plan.repairs, plan.opens) == ((), False)
    assert plan.lost[0].key == keys.STORE
    assert "does not open with 2 chains" in plan.lost[0].consequence
    repair(Connection(objects, runtime=runtime(clock)), plan)
    repair(Connection(objects, runtime=runtime(clock)), planned(objects, clock, chains=1))
    with open_on(objects, runtime=runtime(clock)) as again:
        assert again.verify().ok


def test_number_of_chains_that_store_json_contradicts_is_refused(objects: MemoryStore, clock: ManualClock) -> None:
    with pytest.raises(InvalidConfigError, match="says that the store has 1 chain, not 2, and it can be read"):
        planned(objects, clock, chains=2)
    assert planned(objects, clock, chains=1).repairs == ()


def test_document_of_another_store_is_not_said_to_be_missing(clock: ManualClock) -> None:
    objects = MemoryStore(clock=clock)
    store = new_store(clock, objects, chains=1)
    store.create_topic("t")
    objects.put(keys.STORE, encode(store_document(ANOTHER)))
    (loss,) = planned(objects, clock, identity=store.store_id).lost
    assert loss.damage == f"it names the store {ANOTHER}"
    assert "--chains" in loss.consequence


def test_chains_that_were_lost_are_counted(clock: ManualClock) -> None:
    objects = MemoryStore(clock=clock)
    store = new_store(clock, objects, chains=3)
    store.create_topic("t", partitions=3)
    for number in range(3):
        commit(store, [b"a"], partition=number)
    objects.delete([keys.STORE])
    with pytest.raises(InvalidConfigError, match="more than 2 chains"):
        planned(objects, clock, chains=2)


def test_document_is_not_rebuilt_among_chains_of_several_stores(objects: MemoryStore, clock: ManualClock) -> None:
    other = "018bcfe5-6800-7259-8652-237b4f65d4d9"
    objects.put(f"chains/{other}/0000/entries/00000000000000000001.json", b"x")
    beside = planned(objects, clock)
    assert (beside.repairs, beside.lost) == ((), ())
    assert [item.store_id for item in beside.stores] == [keys.STORE_ID, other]
    objects.delete([keys.STORE])
    plan = planned(objects, clock)
    assert (plan.repairs, len(plan.lost)) == ((), 1)
    assert other in plan.lost[0].consequence
    assert "--identity" in plan.lost[0].consequence
    assert plan.stores == beside.stores


def test_no_store_is_an_error(clock: ManualClock) -> None:
    objects = MemoryStore(clock=clock)
    with pytest.raises(StoreNotFoundError):
        planned(objects, clock)
    objects.put(keys.STORE, b"of something else")
    with pytest.raises(StoreNotFoundError, match="belongs to something else"):
        planned(objects, clock)


def test_document_of_a_newer_format_is_not_damage(objects: MemoryStore, clock: ManualClock) -> None:
    document = json.loads(objects.get(keys.STORE)) | {"version": 99}
    del document["checksum"]
    objects.put(keys.STORE, sealed(json.dumps(document, separators=(",", ":")).encode()))
    with pytest.raises(UnsupportedFormatError):
        planned(objects, clock)


def test_document_that_another_process_has_put_back_is_kept(objects: MemoryStore, clock: ManualClock) -> None:
    document = decode(StoreDocument, keys.STORE, objects.get(keys.STORE))
    sound = encode(replace(document, created_at=1))
    objects.delete([keys.STORE])
    plan = planned(objects, clock)
    objects.put(keys.STORE, sound)
    with pytest.raises(CorruptionError, match="meanwhile"):
        repair(Connection(objects, runtime=runtime(clock)), plan)
    assert objects.get(keys.STORE) == sound
