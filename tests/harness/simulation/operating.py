"""An operator who restores the wrong files below the root of a store that is in use, and creates a store over it.

A process that notices it may raise an error that names what is wrong. Nothing else may happen: nothing is created over
what is there, no vacuum deletes an object of another store or one that an acknowledged record needs, and after the
operator has put everything right all records are there, as in runs without him.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from functools import cache

from tests.harness.executors import InlineExecutor, never
from tests.harness.simulation.actor import Actor
from tests.harness.simulation.storage import OPERATED, Step
from tests.harness.simulation.world import SOURCE, Process, World
from tests.helpers import keys
from txnstore.chain.identity import CONFIRM_MS
from txnstore.errors import CorruptionError
from txnstore.runtime import Runtime
from txnstore.storage.memory import MemoryStore
from txnstore.store import create_on

_ROUNDS = 8


def _runtime(seed: str) -> Runtime:
    """A runtime without threads: they would be no tasks of the simulation, whose locks do not block them."""
    rng = random.Random(seed)
    return Runtime(lambda: 0, lambda _: None, rng, InlineExecutor, background=InlineExecutor, spawn=never)


@cache
def _elsewhere(chains: int) -> Mapping[str, bytes]:
    """The objects of another store with a topic of the same name, in which nothing is inlined."""
    bucket = MemoryStore(clock=lambda: 0)
    with create_on(bucket, chains, runtime=_runtime("elsewhere")) as store:
        store.create_topic(SOURCE, config={"inline.bytes": 0, "segment.format": "arrow"})
        with store.producer() as producer:
            producer.send(SOURCE, b"-1", partition=0)
        store.checkpoint()
    return {item.key: bucket.get(item.key) for item in bucket.list("")}


class Operator(Actor):
    """Makes a mistake, and puts it right after a while. His requests never fail."""

    def __init__(self, world: World, name: str) -> None:
        super().__init__(world, name)
        self.left = _ROUNDS
        self._other = _elsewhere(world.settings.chains)
        self._other_id = next(filter(None, map(keys.store_of, self._other)))

    def run(self) -> None:
        mistakes: tuple[Callable[[], None], ...] = (
            self._swap_document,
            self._lose_document,
            self._copy_another_store,
            self._swap_hint,
            self._restore_hint,
        )
        while self.next_operation():
            self.pause(self.rng.choice((500, 20_000, 500_000)))
            mistake = self.rng.choice(mistakes)
            self._note(mistake.__name__.strip("_"))
            mistake()

    def live(self, process: Process) -> None:
        """It has no process."""

    def _note(self, operation: str) -> None:
        self.world.trace.append(Step(self.world.scheduler.now, self.name, "", operation, "", OPERATED))

    def _wait(self) -> None:
        self.pause(self.rng.choice((500, 20_000, 3_000_000)))

    def _swap_document(self) -> None:
        """``store.json`` is that of another store for a while."""
        bucket = self.world.bucket
        self.world.misplaced |= {keys.STORE, self._other_id}
        before = bucket.get(keys.STORE)
        bucket.place({keys.STORE: self._other[keys.STORE]})
        self._wait()
        bucket.place({keys.STORE: before})
        # A process that has just read it would use the chains that the next mistake puts there.
        self.world.scheduler.sleep(CONFIRM_MS + 1)

    def _lose_document(self) -> None:
        """``store.json`` is lost, and he creates the store again; then he restores it."""
        bucket = self.world.bucket
        self.world.misplaced |= {keys.STORE}
        before = bucket.get(keys.STORE)
        bucket.remove([keys.STORE])
        self._wait()
        try:
            exist_ok = self.rng.random() < 0.5
            create_on(bucket, self.world.settings.chains, exist_ok=exist_ok, runtime=_runtime("again"))
        except CorruptionError as error:
            if not str(error).startswith("nothing was created at "):
                raise
        else:
            self.world.anomalies.append("created-over-a-store: its store.json was lost, and nothing else")
        bucket.place({keys.STORE: before})

    def _copy_another_store(self) -> None:
        """Chains and segments of another store lie beside its own, with the hints or without them."""
        bucket = self.world.bucket
        prefixes = self.rng.choice(((keys.CHAINS, keys.TOPICS), (f"{keys.CHAINS}{self._other_id}", keys.TOPICS)))
        files = {key: data for key, data in self._other.items() if key.startswith(prefixes)}
        self.world.misplaced.add(self._other_id)
        bucket.place(files)
        self._wait()
        mine = [key for key in files if not key.startswith(keys.HINTS)]
        for key in mine:
            if not bucket.has(key):
                self.world.anomalies.append(f"deleted-of-another-store: {key}")
        bucket.remove(mine)

    def _swap_hint(self) -> None:
        """A hint is that of another store, until a process writes it again."""
        hints = [key for key in self._other if key.startswith(keys.HINTS)]
        key = self.rng.choice(hints)
        self.world.bucket.place({key: self._other[key]})

    def _restore_hint(self) -> None:
        """A hint is an old one, until a process writes it again."""
        versions = self.world.bucket.hints
        if versions:
            key = self.rng.choice(sorted(versions))
            self.world.bucket.place({key: self.rng.choice(versions[key])})
