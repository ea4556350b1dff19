"""Which store is here: nothing is created over another one, opened as empty beside it, or deleted of it.

A root can lose its ``store.json``, get that of another store from a backup, or have the objects of two stores.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence

import pytest

from tests.harness.executors import InlineExecutor, never
from tests.helpers import keys
from tests.helpers.compaction import DAY_MS, commit, values
from tests.helpers.connections import connection_of
from tests.helpers.documents import hint
from tests.helpers.repairs import bytes_of
from tests.helpers.shell import GatedStore, in_threads
from txnstore.chain.codec import LatestDocument, StoreDocument, decode, encode
from txnstore.chain.keys import Keys
from txnstore.chain.traces import first_segment, stores
from txnstore.compactor import doctor, plan_repairs, repair, vacuum, verify
from txnstore.compactor.doctor.findings import Severity
from txnstore.connection import Connection
from txnstore.errors import (
    CorruptionError,
    InvalidConfigError,
    LostIdentityError,
    StoreNotFoundError,
    UnsoundStoreError,
)
from txnstore.runtime import Runtime
from txnstore.storage.base import ObjectInfo
from txnstore.storage.counting import CountingStore
from txnstore.storage.memory import MemoryStore
from txnstore.store import Store, create_on, open_on
from txnstore.testing import ManualClock

OTHER = "018bcfe5-6800-7259-8652-237b4f65d4d9"


def process(clock: ManualClock) -> Runtime:
    """A process on a manual clock, whose stores have ids of their own."""
    return Runtime(clock, clock.sleep, background=InlineExecutor, spawn=never)


@pytest.fixture
def chains() -> int:
    return 1


@pytest.fixture
def store(objects: MemoryStore, clock: ManualClock, chains: int) -> Store:
    """A store with records in a segment of their own, and in an entry."""
    store = create_on(objects, chains, runtime=process(clock))
    store.create_topic("t", config={"inline.bytes": 0})
    commit(store, [b"a"])
    store.create_topic("u")
    commit(store, [b"b"], topic="u")
    return store


def reopened(objects: MemoryStore, clock: ManualClock) -> Store:
    return open_on(objects, runtime=process(clock))


def planned(objects: MemoryStore, clock: ManualClock, identity: str | None = None):  # type: ignore[no-untyped-def]  # noqa: ANN201
    return plan_repairs(Connection(objects, read_only=True, runtime=process(clock)), identity=identity)


def repaired(objects: MemoryStore, clock: ManualClock, identity: str | None = None) -> None:
    repair(Connection(objects, runtime=process(clock)), planned(objects, clock, identity))


def swapped(objects: MemoryStore, clock: ManualClock) -> str:
    """Lay the ``store.json`` of another store over that of this one; returns the id of the other one."""
    elsewhere = MemoryStore(clock=clock)
    other = create_on(elsewhere, runtime=process(clock))
    objects.put(keys.STORE, elsewhere.get(keys.STORE))
    return other.store_id


# A root without store.json --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("exist_ok", [False, True])
@pytest.mark.parametrize(
    "kept",
    [
        lambda key: key != keys.STORE,
        lambda key: key.startswith("chains/0"),
        lambda key: key.startswith(keys.HINTS),
        lambda key: key.startswith(keys.TOPICS),
    ],
    ids=["all but store.json", "chains", "hint", "segments"],
)
def test_no_store_is_created_over_what_is_left_of_one(
    store: Store, objects: MemoryStore, clock: ManualClock, kept: Callable[[str], bool], exist_ok: bool
) -> None:
    """D1: the error names `recover` before it says how to start over, and nothing is written."""
    store.checkpoint()
    objects.delete([item.key for item in objects.list("") if not kept(item.key)])
    before = bytes_of(objects)
    with pytest.raises(CorruptionError) as raised:
        create_on(objects, exist_ok=exist_ok, runtime=process(clock))
    message = str(raised.value)
    assert 0 < message.index("txnstore recover") < message.index("delete chains/")
    left = {key for key in bytes_of(objects) if not key.startswith("_probe/")}
    assert left == {key for key in before if not key.startswith("_probe/")}


def test_error_of_an_open_names_recover_first(store: Store, objects: MemoryStore, clock: ManualClock) -> None:
    """D1: no words of it make a store over another one."""
    store.checkpoint()
    objects.delete([keys.STORE])
    with pytest.raises(CorruptionError, match=f"has chains of the store {store.store_id}") as raised:
        reopened(objects, clock)
    message = str(raised.value)
    assert message.index("txnstore recover") < message.index("txnstore init")
    clock.advance(DAY_MS)
    with pytest.raises(StoreNotFoundError, match=r"has lost its store\.json .* `txnstore recover`"):
        store.create_topic("v")
    repaired(objects, clock)
    assert values(reopened(objects, clock)) == [b"a"]
    store.create_topic("v")


def test_files_of_others_are_nothing_of_a_store(objects: MemoryStore, clock: ManualClock) -> None:
    """Such as those of Kafka Connect. Their folders are passed over, however many files they have."""
    for number in range(2_500):
        objects.put(f"topics/t/partition=0/t+0+{number:010}.parquet", b"x")
    objects.put("topics/t/readme.txt", b"x")
    objects.put("topics/t/partition=1/x.parquet", b"x")
    objects.put("chains.txt", b"x")
    counting = CountingStore(objects, log=True)
    assert first_segment(counting) is None
    assert counting.snapshot().list < 5
    with create_on(objects, runtime=process(clock)) as store:
        store.create_topic("t")
        assert reopened(objects, clock).store_id == store.store_id
    objects.put("topics/t/17/x.parquet", b"x")
    assert first_segment(objects) == "topics/t/17/x.parquet"


class _FewLists(MemoryStore):
    """Raises at the tenth list."""

    def list(self, prefix: str, start_after: str = "", limit: int | None = None) -> Sequence[ObjectInfo]:
        self.lists = getattr(self, "lists", 0) + 1
        assert self.lists < 10, f"{self.lists} lists, the last one after {start_after}"
        return super().list(prefix, start_after, limit)


@pytest.mark.parametrize("key", ["topics/t/partition=0/é.json", "chains/é/é.json", "chains/a/é.json"])
def test_names_of_others_behind_all_of_ours_are_passed_over(key: str) -> None:
    """The folder of a name that is greater than those of a store is passed over, too, and not listed without end."""
    objects = _FewLists()
    objects.put(key, b"")
    assert first_segment(objects) is None
    assert stores(objects) == []


def test_process_that_creates_the_store_second_opens_it(objects: MemoryStore, clock: ManualClock) -> None:
    """The first one has written to it between the two looks of the second one: that is nothing that was left."""
    gated = GatedStore(objects)
    gate = gated.hold("list", keys.CHAINS)

    def second(number: int) -> str:
        if number == 0:
            with create_on(gated, exist_ok=True, runtime=process(clock)) as slow:
                slow.create_topic("slow")
                return slow.store_id
        gate.wait_for()
        with create_on(objects, runtime=process(clock)) as fast:
            fast.create_topic("fast")
            gate.open()
            return fast.store_id

    ids = in_threads(2, second)
    assert ids[0] == ids[1]
    assert [topic.name for topic in reopened(objects, clock).topics()] == ["fast", "slow"]


def test_many_processes_create_one_store(objects: MemoryStore, clock: ManualClock) -> None:
    def create(number: int) -> str:
        with create_on(objects, exist_ok=True, runtime=process(clock)) as store:
            store.create_topic(f"t{number}")
            return store.store_id

    assert len({str(each) for each in in_threads(8, create)}) == 1
    assert len(reopened(objects, clock).topics()) == 8


def test_recover_chooses_among_the_chains_of_several_stores(
    store: Store, objects: MemoryStore, clock: ManualClock
) -> None:
    """Without a choice it says what each of them holds."""
    store.checkpoint()
    elsewhere = MemoryStore(clock=clock)
    other = create_on(elsewhere, runtime=process(clock))
    other.create_topic("w")
    commit(other, [b"x", b"y"], topic="w")
    other.checkpoint()
    for key, data in bytes_of(elsewhere).items():
        if key != keys.STORE and not key.startswith(keys.HINTS):
            objects.put(key, data)
    objects.delete([keys.STORE])
    plan = planned(objects, clock)
    assert (plan.repairs, plan.opens) == ((), False)
    (loss,) = plan.lost
    assert "--identity" in loss.consequence
    assert f"{store.store_id}: 1 chain; 6 entries" in loss.consequence
    assert "topics t (1 record), u (1 record)" in loss.consequence
    assert f"{other.store_id}: 1 chain; 3 entries" in loss.consequence
    assert "topic w (2 records)" in loss.consequence
    assert {item.store_id: item.topics for item in plan.stores} == {
        store.store_id: {"t": 1, "u": 1},
        other.store_id: {"w": 2},
    }
    before = bytes_of(objects)
    with pytest.raises(InvalidConfigError, match=f"nothing is left of the store {OTHER}.*{store.store_id}"):
        planned(objects, clock, OTHER)
    for store_id, topic, expected in ((other.store_id, "w", [b"x", b"y"]), (store.store_id, "t", [b"a"])):
        repaired(objects, clock, store_id)
        with reopened(objects, clock) as again:
            assert (again.store_id, values(again, topic)) == (store_id, expected)
            with pytest.raises(UnsoundStoreError):
                again.vacuum(0)
    assert before.items() <= bytes_of(objects).items(), "nothing of either was deleted or changed"


def test_segments_alone_are_not_taken_for_nothing(store: Store, objects: MemoryStore, clock: ManualClock) -> None:
    objects.delete([item.key for item in objects.list("") if not item.key.startswith(keys.TOPICS)])
    plan = planned(objects, clock)
    assert (plan.repairs, plan.opens) == ((), False)
    assert "1 object of" in plan.lost[0].consequence
    objects.delete([item.key for item in objects.list("")])
    with pytest.raises(StoreNotFoundError):
        planned(objects, clock)


# store.json of another store ------------------------------------------------------------------------------------------


def test_store_document_of_another_store_is_noticed(store: Store, objects: MemoryStore, clock: ManualClock) -> None:
    """D2: it does not open as an empty store; each command names both ids and what to do."""
    store.checkpoint()
    mine, other = store.store_id, swapped(objects, clock)
    before = bytes_of(objects)
    for read_only in (False, True):
        with pytest.raises(CorruptionError, match=f"{other}, which is empty.*{mine}.*recover --identity {mine}"):
            open_on(objects, read_only=read_only, runtime=process(clock))
    with pytest.raises(CorruptionError, match=mine):
        create_on(objects, exist_ok=True, runtime=process(clock))
    report = verify(Connection(objects, read_only=True, runtime=process(clock)))
    assert [(item.name, item.subject) for item in report.violations] == [("identity_intact", keys.STORE)]
    assert not doctor(Connection(objects, read_only=True, runtime=process(clock))).ok
    plan = planned(objects, clock)
    assert (plan.repairs, plan.opens) == ((), False)
    assert f"{mine}: 1 chain; 6 entries" in plan.lost[0].consequence
    clock.advance(30 * DAY_MS)
    with pytest.raises(CorruptionError, match=mine):
        vacuum(Connection(objects, runtime=process(clock)), 0)
    assert {**bytes_of(objects), **before} == bytes_of(objects)
    repaired(objects, clock, mine)
    assert decode(StoreDocument, keys.STORE, objects.get(keys.STORE)).store_id == mine
    with reopened(objects, clock) as again:
        assert (values(again), values(again, "u")) == ([b"a"], [b"b"])
        assert again.vacuum(0).referenced == 1
        assert again.verify(deep=True).ok


@pytest.mark.parametrize("chains", [1, 3])
def test_young_store_is_chosen_with_one_attempt(
    store: Store, objects: MemoryStore, clock: ManualClock, chains: int
) -> None:
    """Without a checkpoint nothing shows how many chains it has: the plan names both options."""
    mine = store.store_id
    swapped(objects, clock)
    command = f"`txnstore recover --identity {mine} --chains N`"
    assert command in planned(objects, clock).lost[0].consequence
    with pytest.raises(CorruptionError, match=f"recover --identity {mine}.*whether --chains must be given"):
        reopened(objects, clock)
    assert f"({chains} chain{'s' if chains > 1 else ''} at least)" in planned(objects, clock, mine).lost[0].consequence
    objects.put(f"chains/{OTHER}/0000/entries/00000000000000000001.json", b"x")
    objects.delete([keys.STORE])
    for store_id in (mine, OTHER):
        assert f"`txnstore recover --identity {store_id} --chains N`" in planned(objects, clock).lost[0].consequence
    plan = plan_repairs(Connection(objects, runtime=process(clock)), chains, identity=mine)
    repair(Connection(objects, runtime=process(clock)), plan)
    assert values(reopened(objects, clock)) == [b"a"]


def test_empty_store_beside_another_one_is_kept_if_it_is_the_right_one(
    store: Store, objects: MemoryStore, clock: ManualClock
) -> None:
    """The other one is of no use: its chains are deleted on request, its segments with the next vacuum."""
    mine, other = store.store_id, swapped(objects, clock)
    connection = Connection(objects, runtime=process(clock))
    with pytest.raises(InvalidConfigError, match="names it"):
        vacuum(connection, foreign=[other])
    with pytest.raises(InvalidConfigError, match=f"of the stores {mine}"):
        vacuum(connection, foreign=[OTHER])
    with pytest.raises(InvalidConfigError, match="list of ids"):
        vacuum(connection, foreign=mine)
    count = len(objects.list(Keys(mine).chains))
    assert vacuum(connection, foreign=[mine], dry_run=True).objects == count
    assert len(objects.list(Keys(mine).chains)) == count
    assert vacuum(connection, foreign=[mine]).objects == count
    assert objects.list(Keys(mine).chains) == []
    with pytest.raises(CorruptionError, match="has the form of a segment"):
        reopened(objects, clock)
    objects.delete([item.key for item in objects.list(keys.TOPICS)])
    assert reopened(objects, clock).store_id == other


def test_store_that_lost_all_of_its_chains_is_not_empty(store: Store, objects: MemoryStore, clock: ManualClock) -> None:
    """Its store.json is there, and its segments: a store without topics has none."""
    objects.delete([item.key for item in objects.list(keys.CHAINS)])
    with pytest.raises(CorruptionError, match=r"topics/t/0/.* has the form of a segment.*are lost"):
        reopened(objects, clock)
    plan = planned(objects, clock)
    assert (plan.repairs, plan.opens) == ((), False)
    with pytest.raises(UnsoundStoreError, match="is missing, though entry 6 was read"):
        store.vacuum(0)
    assert objects.list(keys.TOPICS)


def test_hint_of_a_store_whose_chains_are_lost_is_not_nothing(
    store: Store, objects: MemoryStore, clock: ManualClock
) -> None:
    """It is all that is left of it; or a process has written it that had the store open while it was deleted."""
    store.checkpoint()
    mine, other = store.store_id, swapped(objects, clock)
    chains = {key: data for key, data in bytes_of(objects).items() if key.startswith(("chains/0", keys.TOPICS))}
    objects.delete([*chains])
    with pytest.raises(CorruptionError, match=rf"{other}, which is empty, but {keys.latest(0)} is a hint of .*{mine}"):
        reopened(objects, clock)
    plan = planned(objects, clock)
    assert (plan.repairs, plan.opens) == ((), False)
    assert vacuum(Connection(objects, runtime=process(clock)), foreign=[mine]).deleted == (keys.latest(0),)
    assert reopened(objects, clock).store_id == other


def test_opening_a_store_with_entries_lists_its_checkpoints_only(
    store: Store, objects: MemoryStore, clock: ManualClock
) -> None:
    objects.put(f"chains/{OTHER}/0000/entries/00000000000000000001.json", b"x")
    counting = CountingStore(objects, log=True)
    with open_on(counting, read_only=True, runtime=process(clock)) as again:
        checkpoints = connection_of(again).keys.checkpoints(0)
        assert [key for kind, key in counting.log if kind == "list"] == [checkpoints]


# Vacuum ---------------------------------------------------------------------------------------------------------------


def test_vacuum_deletes_nothing_beside_another_store(store: Store, objects: MemoryStore, clock: ManualClock) -> None:
    """Segments that this store does not name may be the other one's, however old all of it is."""
    objects.put(f"chains/{OTHER}/0000/entries/00000000000000000001.json", b"x")
    objects.put("topics/t/0/theirs.parquet", b"x")
    before = bytes_of(objects)
    clock.advance(400 * DAY_MS)
    for force in (False, True):
        with pytest.raises(UnsoundStoreError, match=f"recover --identity {OTHER}.*vacuum --foreign {OTHER}"):
            store.vacuum(0, force=force)
    assert before.items() <= bytes_of(objects).items()
    assert store.vacuum(foreign=[OTHER]).objects == 1
    assert store.vacuum(0).deleted == ("topics/t/0/theirs.parquet",)


@pytest.mark.parametrize("what", ["checkpoint", "index", "entry", "newest entry", "boundary"])
def test_vacuum_refuses_a_store_that_is_not_sound(objects: MemoryStore, clock: ManualClock, what: str) -> None:
    """The cheap part of a verification comes first; `force` continues where that is possible."""
    store = create_on(objects, runtime=process(clock))
    store.create_topic("t", config={"inline.bytes": 0})
    for _ in range(3):
        commit(store, [b"a"])
        store.checkpoint()
        clock.advance(8 * DAY_MS)
        store.vacuum()
        clock.advance(DAY_MS)  # The lease has expired: the next hint names the new boundary.
    names, head = connection_of(store).keys, store.checkpoint()
    commit(store, [b"z"])
    orphan = "topics/t/0/orphan.parquet"
    objects.put(orphan, b"x")
    clock.advance(2 * DAY_MS)
    lost = {
        "checkpoint": names.checkpoint_state(0, head),
        "index": objects.list(names.checkpoints(0))[-1].key,
        "entry": names.entry(0, head + 1),
        "newest entry": names.entry(0, connection_of(store).view().sequence),
        "boundary": objects.list(names.boundaries(0))[-1].key,
    }[what]
    objects.put(lost, b"damaged") if what in ("checkpoint", "index") else objects.delete([lost])
    assert not store.doctor().ok
    with pytest.raises(UnsoundStoreError, match=r"is not sound.*txnstore recover") as raised:
        store.vacuum()
    assert lost in str(raised.value) or what == "index", "the head names it"
    assert objects.list(orphan)
    if what not in ("boundary", "newest entry"):
        assert orphan in store.vacuum(force=True).deleted


def test_a_hint_is_written_again_beside_a_damaged_boundary(objects: MemoryStore, clock: ManualClock) -> None:
    store = create_on(objects, runtime=process(clock))
    store.create_topic("t")
    for _ in range(3):
        commit(store, [b"a"])
        store.checkpoint()
        clock.advance(9 * DAY_MS)
        store.vacuum()
    boundaries = objects.list(connection_of(store).keys.boundaries(0))
    objects.put(boundaries[-1].key, b"damaged")
    objects.delete([keys.latest(0)])
    plan = planned(objects, clock)
    assert {item.key for item in plan.repairs} == {boundaries[-1].key, keys.latest(0)}
    repair(Connection(objects, runtime=process(clock)), plan)
    assert planned(objects, clock).repairs == ()


@pytest.mark.parametrize("what", ["renamed", "missing", "truncated"])
def test_a_vacuum_deletes_nothing_while_objects_in_use_are_lost(
    store: Store, objects: MemoryStore, clock: ManualClock, what: str
) -> None:
    """What no chain names may be the only copy of what is missing: the folder of a topic that was renamed by hand."""
    store.create_topic("large", config={"inline.bytes": 0})
    for value in (b"a", b"b"):
        commit(store, [value], topic="large")
    clock.advance(2 * DAY_MS)
    first, second = (item.key for item in objects.list("topics/large/"))
    for key in (first, second):
        data = objects.get(key)
        objects.delete([key])
        if what != "missing":
            objects.put(key.replace("large", "other") if what == "renamed" else key, data[:-1])
    clock.advance(2 * DAY_MS)
    assert [item.severity for item in store.doctor().findings if first in item.message] == [Severity.BAD]
    change = "truncated" if what == "truncated" else "missing"
    also = "and 1 more object with records in use"
    with pytest.raises(UnsoundStoreError, match=f"{first}: it (is|was) {change}.*, {also}"):
        store.vacuum()
    if what == "renamed":
        assert first.replace("large", "other") in store.vacuum(force=True, dry_run=True).deleted


# Hints ----------------------------------------------------------------------------------------------------------------


def test_hint_names_its_store_and_the_hash_of_its_entry(store: Store, objects: MemoryStore) -> None:
    sequence = store.checkpoint()
    document = decode(LatestDocument, keys.latest(0), objects.get(keys.latest(0)))
    state = connection_of(store).view().states[0]
    digest = state.entry_hash
    assert document == hint(sequence, digest, store_id=store.store_id)


def test_hint_of_another_store_is_ignored(store: Store, objects: MemoryStore, clock: ManualClock) -> None:
    """E3: neither its checkpoint nor its boundary counts, and the next hint does not carry it on."""
    store.checkpoint()
    foreign = encode(hint(6_400, boundary=7, store_id=OTHER))
    objects.put(keys.latest(0), foreign)
    plan = planned(objects, clock)
    assert ([item.key for item in plan.repairs], plan.lost) == ([keys.latest(0)], ())
    with reopened(objects, clock) as again:
        assert values(again) == [b"a"]
        assert again.verify().ok
        clock.advance(DAY_MS)
        again.vacuum()
        assert "store " + OTHER in " ".join(item.message for item in again.doctor().findings)
        again.checkpoint()
    document = decode(LatestDocument, keys.latest(0), objects.get(keys.latest(0)))
    assert (document.store_id, document.boundary) == (store.store_id, 0)


def test_repair_of_a_foreign_hint_writes_one_of_this_store(
    store: Store, objects: MemoryStore, clock: ManualClock
) -> None:
    sequence = store.checkpoint()
    objects.put(keys.latest(0), encode(hint(6_400, boundary=7, store_id=OTHER)))
    repaired(objects, clock)
    document = decode(LatestDocument, keys.latest(0), objects.get(keys.latest(0)))
    assert (document.store_id, document.sequence, document.boundary) == (store.store_id, sequence, 0)
    assert objects.list(Keys(store.store_id).boundaries(0)) == []


def test_hint_with_another_hash_is_another_history(store: Store, objects: MemoryStore, clock: ManualClock) -> None:
    """D9: the checkpoint that it names, or the entry if that cannot be read, must have the hash."""
    names, sequence = connection_of(store).keys, store.checkpoint()
    objects.put(keys.latest(0), encode(hint(sequence, store_id=store.store_id)))
    with pytest.raises(CorruptionError, match=r"another history .* and the checkpoint one with"):
        reopened(objects, clock)
    saved = {item.key: objects.get(item.key) for item in objects.list(names.checkpoints(0))}
    objects.delete([*saved])
    with pytest.raises(CorruptionError, match=r"another history .* and that has another one"):
        reopened(objects, clock)
    for key, data in saved.items():
        objects.put(key, data)
    plan = planned(objects, clock)
    assert plan.opens
    assert "two histories" in plan.lost[0].consequence
    repaired(objects, clock)
    assert values(reopened(objects, clock)) == [b"a"]


def test_hint_shows_that_a_chain_has_lost_its_newest_entries(
    store: Store, objects: MemoryStore, clock: ManualClock
) -> None:
    """Nothing else names them. An open says so, `recover` names the loss, and then the store opens."""
    names, first = connection_of(store).keys, store.checkpoint()
    commit(store, [b"c"])
    last = store.checkpoint()
    objects.delete([names.entry(0, number) for number in range(first + 1, last + 1)])
    objects.delete([item.key for item in objects.list(names.checkpoints(0)) if f"{last:020d}" in item.key])
    before = bytes_of(objects)
    with pytest.raises(CorruptionError, match=f"{names.entry(0, first + 1)} is missing, but chains/latest/0000.json"):
        reopened(objects, clock)
    plan = planned(objects, clock)
    assert plan.opens
    assert any(f"entries {first + 1} to {last} are lost" in item.consequence for item in plan.lost)
    assert bytes_of(objects) == before
    repaired(objects, clock)
    assert values(reopened(objects, clock)) == [b"a"]


def test_hint_shows_that_all_of_a_chain_is_lost(objects: MemoryStore, clock: ManualClock) -> None:
    """Of a chain that is not the catalog's. Its hint is not removed: it is what shows the loss."""
    store = create_on(objects, 3, runtime=process(clock))
    store.create_topic("t", partitions=3)
    for number in range(3):
        commit(store, [b"a"], partition=number)
    store.checkpoint()
    names = connection_of(store).keys
    lost = {item.key: objects.get(item.key) for item in objects.list(names.chain(2))}
    objects.delete([*lost])
    with pytest.raises(CorruptionError, match=f"{names.entry(2, 1)} is missing, but chains/latest/0002.json names"):
        reopened(objects, clock)
    plan = planned(objects, clock)
    assert (plan.repairs, plan.opens) == ((), False)
    assert "nothing is left of chain 2" in plan.lost[0].consequence
    for key, data in lost.items():
        objects.put(key, data)
    assert sorted(values(reopened(objects, clock))) == [b"a"] * 3


# Chains without entries -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kept", ["checkpoints", "boundaries", "index"])
def test_chain_without_entries_is_empty_only_if_nothing_is_left_of_it(
    store: Store, objects: MemoryStore, clock: ManualClock, kept: str
) -> None:
    """D10: without a hint, too: a sound checkpoint has the state. `recover` says what it can do, and the loss."""
    store.checkpoint()
    commit(store, [b"c"])
    last = store.checkpoint()
    clock.advance(8 * DAY_MS)
    store.vacuum()
    names = connection_of(store).keys
    folder = names.boundaries(0) if kept == "boundaries" else names.checkpoints(0)
    for item in objects.list(names.chain(0)):
        if not item.key.startswith(folder) or (kept == "index" and not item.key.endswith(".index")):
            objects.delete([item.key])
    objects.delete([keys.latest(0), *(item.key for item in objects.list(keys.TOPICS))])
    if kept != "checkpoints":
        with pytest.raises(CorruptionError, match=f"{names.entry(0, 1)} is missing|no readable checkpoint"):
            reopened(objects, clock)
    plan = planned(objects, clock)
    assert plan.lost
    assert plan.opens == (kept == "checkpoints")
    if not plan.opens:
        return
    assert names.entry(0, last) in {item.key for item in plan.lost}
    repaired(objects, clock)
    with reopened(objects, clock) as again:
        assert [topic.name for topic in again.topics()] == ["t", "u"]
    assert names.entry(0, last) in {item.key for item in planned(objects, clock).lost}


def test_ids_of_stores_are_found_with_a_list_for_each(objects: MemoryStore) -> None:
    for each in (OTHER, keys.STORE_ID):
        for number in range(1, 2_000):
            objects.put(Keys(each).entry(0, number), b"")
    objects.put("chains/0-readme.txt", b"")
    objects.put("chains/README/x", b"")
    objects.put(keys.latest(0), b"")
    counting = CountingStore(objects)
    assert stores(counting) == [keys.STORE_ID, OTHER]
    assert counting.snapshot().list <= 5
    assert stores(objects, skipped=OTHER) == [keys.STORE_ID]


@pytest.mark.parametrize("name", ["0-{:05}.txt", "0000/{:05}", "0-{:05}/x", "README/é{:05}", "0-{:05}/~x"])
def test_objects_of_others_cost_a_list_for_many(objects: MemoryStore, name: str) -> None:
    """Between the chains of two stores, and before them; the hints are behind all ids."""
    for number in range(2_500):
        objects.put(f"chains/{name.format(number)}", b"")
        objects.put(f"chains/1{name.format(number)}", b"")
    for each in (OTHER, keys.STORE_ID):
        objects.put(Keys(each).entry(0, 1), b"")
    objects.put(keys.latest(0), b"")
    counting = CountingStore(objects)
    assert stores(counting) == [keys.STORE_ID, OTHER]
    assert counting.snapshot().list <= 12


def test_a_store_that_is_created_while_it_is_opened_has_lost_nothing(clock: ManualClock) -> None:
    """Its ``store.json`` is missing, and then its first entry is there."""

    class Creating(MemoryStore):
        def list(self, prefix: str, start_after: str = "", limit: int | None = None) -> Sequence[ObjectInfo]:
            if self.absent:
                self.absent = False
                self.put(keys.STORE, document)
                create_on(self, exist_ok=True, runtime=process(clock)).create_topic("t")
            return super().list(prefix, start_after, limit)

        absent = False

    objects = Creating(clock=clock)
    with create_on(objects, runtime=process(clock)):
        document = objects.get(keys.STORE)
    objects.delete([keys.STORE])
    objects.absent = True
    assert [topic.name for topic in reopened(objects, clock).topics()] == ["t"]


def test_a_process_that_slept_over_the_files_of_two_stores_looks_again(clock: ManualClock) -> None:
    """``store.json`` is that of another store; while the chains of that are listed, they are there, and then not."""
    other = MemoryStore(clock=clock)
    with create_on(other, runtime=process(clock)) as store:
        store.create_topic("t")
    copied = {item.key: other.get(item.key) for item in other.list("")}
    names = Keys(json.loads(copied[keys.STORE])["store_id"])

    class Copied(MemoryStore):
        def list(self, prefix: str, start_after: str = "", limit: int | None = None) -> Sequence[ObjectInfo]:
            if prefix != names.chain(0) or self.looked:
                return super().list(prefix, start_after, limit)
            self.looked = True
            for key, data in copied.items():
                self.put(key, data)
            try:
                return super().list(prefix, start_after, limit)
            finally:
                self.delete([key for key in copied if key != keys.STORE])

        looked = False

    objects = Copied(clock=clock)
    with create_on(objects, runtime=process(clock)) as store:
        store.create_topic("mine")
    objects.put(keys.STORE, copied[keys.STORE])
    with pytest.raises(LostIdentityError, match="which is empty, but there are chains of the store"):
        reopened(objects, clock)
    assert objects.looked
