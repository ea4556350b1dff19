"""Random histories of honest commands, and of files that are lost, restored, or those of another store.

Whatever happens to ``store.json``, the hints and the folders of chains: an acknowledged record is read, or an error
says that something is wrong, and no vacuum deletes a segment that a store names whose chains are here. After all
accidents are undone, all records are there.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable

import pytest

from tests.harness.executors import InlineExecutor, never
from tests.helpers import keys
from tests.helpers.compaction import DAY_MS, commit, values
from tests.helpers.connections import connection_of
from tests.helpers.documents import store_document
from tests.helpers.repairs import bytes_of
from txnstore.chain.codec import LatestDocument, decode, encode
from txnstore.chain.keys import Keys
from txnstore.chain.traces import first_segment, stores
from txnstore.compactor import plan_repairs, repair, vacuum
from txnstore.compactor.repair.planned import PlannedObjects
from txnstore.compactor.vacuum.vacuum import named_keys
from txnstore.connection import Connection
from txnstore.errors import (
    CorruptionError,
    InvalidConfigError,
    StoreExistsError,
    StoreNotFoundError,
    UnsoundStoreError,
)
from txnstore.runtime import Runtime
from txnstore.storage.memory import MemoryStore
from txnstore.store import Store, create_on, open_on
from txnstore.testing import ManualClock

#: What a command may raise in a root that something has happened to.
REFUSALS = (CorruptionError, InvalidConfigError, StoreExistsError, StoreNotFoundError, UnsoundStoreError)


class World:
    """A root and its past.

    Attributes:
        root: The objects below the root.
        acknowledged: The records that were committed to each store, by its id.
        backups: Copies of the root.
        away: The chains of the store while they are lost.
        done: How often each step did something.
    """

    def __init__(self, seed: int) -> None:
        self.rng, self.clock = random.Random(f"identity/{seed}"), ManualClock()
        self.root, other = MemoryStore(clock=self.clock), MemoryStore(clock=self.clock)
        self.acknowledged: dict[str, list[bytes]] = {}
        self.backups: list[dict[str, bytes]] = []
        self.away: dict[str, bytes] = {}
        self.done: Counter[str] = Counter()
        self.other_id = self.begin(other, self.rng.choice([0, 2, 40]))
        self.elsewhere = bytes_of(other)
        self.store_id = self.begin(self.root, self.rng.choice([0, 2, 40]))

    def runtime(self) -> Runtime:
        return Runtime(self.clock, self.clock.sleep, self.rng, background=InlineExecutor, spawn=never)

    def begin(self, objects: MemoryStore, commits: int) -> str:
        with create_on(objects, runtime=self.runtime()) as store:
            store.create_topic("t", config={"inline.bytes": self.rng.choice([0, 4_000])})
            self.acknowledged[store.store_id] = []
            self.commit(store, commits)
            return store.store_id

    def commit(self, store: Store, times: int) -> None:
        records = self.acknowledged[store.store_id]
        for _ in range(times):
            value = b"%d" % len(records)
            commit(store, [value])
            records.append(value)
        if self.rng.random() < 0.5:
            store.checkpoint()

    def put(self, objects: dict[str, bytes]) -> None:
        for key, data in objects.items():
            self.root.put(key, data)

    # Honest commands --------------------------------------------------------------------------------------------------

    def write(self) -> None:
        with open_on(self.root, runtime=self.runtime()) as store:
            self.commit(store, self.rng.choice([1, 2, 20]))

    def create(self) -> None:
        with create_on(self.root, exist_ok=self.rng.random() < 0.5, runtime=self.runtime()) as store:
            assert store.store_id in self.acknowledged, "a new store was created over another one"

    def compact(self) -> None:
        with open_on(self.root, runtime=self.runtime()) as store:
            store.compact()

    def vacuum(self) -> None:
        self.clock.advance(self.rng.choice([0, 2, 9, 40]) * DAY_MS)
        named = {key for store_id in stores(self.root) for key in self.named(store_id)}
        named &= {item.key for item in self.root.list(keys.TOPICS)}
        try:
            vacuum(Connection(self.root, runtime=self.runtime()), self.rng.choice([0, None]))
        finally:
            lost = named - {item.key for item in self.root.list(keys.TOPICS)}
            assert not lost, f"a vacuum has deleted {lost}"

    def named(self, store_id: str) -> set[str]:
        """The segments that a store names whose chains are here, whatever ``store.json`` says."""
        try:
            with open_on(
                PlannedObjects(self.root, [(keys.STORE, encode(store_document(store_id)))]),
                read_only=True,
                runtime=self.runtime(),
            ) as store:
                return named_keys(connection_of(store).view())
        except CorruptionError:
            return set()

    def recover(self) -> None:
        plan = plan_repairs(Connection(self.root, read_only=True, runtime=self.runtime()))
        repair(Connection(self.root, runtime=self.runtime()), plan)
        if not plan.lost:
            assert self.opens(), "nothing is lost, and yet it does not open"

    def choose(self) -> None:
        """By one who knows which store it should be."""
        connection = Connection(self.root, read_only=True, runtime=self.runtime())
        plan = plan_repairs(connection, 1, identity=self.store_id)
        repair(Connection(self.root, runtime=self.runtime()), plan)

    def back_up(self) -> None:
        self.backups.append(bytes_of(self.root))

    # Accidents --------------------------------------------------------------------------------------------------------

    def lose_document(self) -> None:
        self.root.delete([keys.STORE])

    def swap_document(self) -> None:
        self.root.put(keys.STORE, self.elsewhere[keys.STORE])

    def lose_hint(self) -> None:
        self.root.delete([keys.latest(0)])

    def swap_hint(self) -> None:
        self.put({key: data for key, data in self.elsewhere.items() if key == keys.latest(0)})

    def old_hint(self) -> None:
        if self.backups:
            self.put({key: data for key, data in self.rng.choice(self.backups).items() if key == keys.latest(0)})

    def lay_backup_over(self) -> None:
        """A copy over lost chains would be a store that goes back in time, which is another store: nothing shows it."""
        if self.backups and not self.away:
            prefix = self.rng.choice(["", keys.CHAINS, Keys(self.store_id).chains, keys.TOPICS])
            self.put({key: data for key, data in self.rng.choice(self.backups).items() if key.startswith(prefix)})

    def copy_chains(self) -> None:
        prefixes = self.rng.choice([(keys.CHAINS,), (Keys(self.other_id).chains,), (keys.CHAINS, keys.TOPICS)])
        self.put({key: data for key, data in self.elsewhere.items() if key.startswith(prefixes)})

    def lose_chains(self) -> None:
        """Until they are put back from a backup, with the segments: only chains show which segments are needed."""
        chains = Keys(self.store_id).chains
        lost = {key: data for key, data in bytes_of(self.root).items() if key.startswith((chains, keys.TOPICS))}
        self.away = self.away or lost
        self.root.delete([key for key in lost if key.startswith(chains)])

    def put_back(self) -> None:
        self.put(self.away)
        self.away = {}

    # What always holds ------------------------------------------------------------------------------------------------

    def shows_loss(self) -> bool:
        """Whether anything below the root shows that the lost chains existed."""
        hint = bytes_of(self.root).get(keys.latest(0))
        hinted = hint is not None and decode(LatestDocument, keys.latest(0), hint).store_id == self.store_id
        return hinted or bool(stores(self.root)) or first_segment(self.root) is not None

    def opens(self) -> bool:
        """Whether the root opens, with all records of the store. An error while it is opened or read is loud enough."""
        try:
            with open_on(self.root, read_only=True, runtime=self.runtime()) as store:
                records, store_id = values(store), store.store_id
        except CorruptionError:
            return False
        except StoreNotFoundError:
            assert not bytes_of(self.root), "there is something of a store"
            return False
        assert records == self.acknowledged[store_id]
        return True


#: Each step with its weight.
STEPS: dict[Callable[[World], None], int] = {
    World.write: 6, World.create: 2, World.compact: 1, World.vacuum: 5, World.recover: 3, World.choose: 4,
    World.back_up: 3, World.lose_document: 2, World.swap_document: 2, World.lose_hint: 1, World.swap_hint: 1,
    World.old_hint: 1, World.lay_backup_over: 2, World.copy_chains: 2, World.lose_chains: 1, World.put_back: 4,
}  # fmt: skip


def run(seed: int, steps: int = 30) -> Counter[str]:
    """A history; returns how often each step did something."""
    world = World(seed)
    for _ in range(steps):
        (step,) = world.rng.choices([*STEPS], [*STEPS.values()])
        try:
            step(world)
            world.done[step.__name__] += 1
        except REFUSALS:
            world.done[f"{step.__name__} refused"] += 1
        if world.away and not world.shows_loss():
            world.put_back()
        world.done["opened" if world.opens() else "did not open"] += 1
    world.put_back()
    world.choose()
    world.recover()
    assert world.opens(), "all accidents are undone"
    assert world.acknowledged[world.store_id] == values(open_on(world.root, runtime=world.runtime()))
    return world.done


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(24))
def test_no_accident_is_silent_and_none_is_for_good(seed: int) -> None:
    run(seed)


@pytest.mark.slow
def test_histories_reach_every_step() -> None:
    """Each of them succeeds and, where it can be, is refused."""
    done = sum((run(seed) for seed in range(100, 118)), Counter())
    assert not [step.__name__ for step in STEPS if not done[step.__name__]]
    for name in ("write", "create", "vacuum", "choose"):
        assert done[f"{name} refused"]
    assert done["opened"]
    assert done["did not open"]
