"""Stores that are damaged or forged: their objects, earlier versions of these, backups, objects of another store."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import pyarrow as pa

from tests.harness.corruption.buckets import Bucket, reachable
from tests.harness.corruption.readers import READERS, Reader
from tests.harness.executors import InlineExecutor, never
from tests.harness.simulation.parts import reading_parts
from tests.helpers import keys
from tests.helpers.keys import FixedRuntime
from txnstore.connection import Connection
from txnstore.runtime import Runtime
from txnstore.storage.memory import MemoryStore
from txnstore.store import Store, create_on, open_on
from txnstore.testing import ManualClock

DAY_MS = 24 * 60 * 60 * 1000
_DAYS = 7
_TOPICS = ("t", "typed", "arrow")
#: The id of the store that foreign objects are of.
FOREIGN_ID = "ffffaaaa-0000-7000-8000-00000000cafe"

Objects = dict[str, bytes]


class _ForeignRuntime(FixedRuntime):
    def new_store_id(self) -> str:
        return FOREIGN_ID


@dataclass(frozen=True)
class World:
    """A sound store, and what may get into it by mistake.

    Attributes:
        objects: Its objects.
        modified_ms: When each was written, by the storage's clock.
        now_ms: The time.
        older: Earlier versions of objects that were written over, and objects that were deleted, by key.
        backups: All objects at earlier times.
        foreign: Objects of another store, under the keys that they would have in this one.
        answers: What readers return.
    """

    objects: Objects
    modified_ms: dict[str, int]
    now_ms: int
    older: dict[str, list[bytes]]
    backups: list[Objects]
    foreign: Objects
    answers: dict[str, Any]

    def runtime(self) -> Runtime:
        """That of a process that works with a copy of the store."""
        return _runtime(ManualClock(self.now_ms))

    def bucket(self, objects: Objects, name: str) -> Bucket:
        """A copy of the store with these objects; one that is not its own was written now."""
        clock = ManualClock(0)
        bucket = Bucket(name, clock=clock)
        for key, data in objects.items():
            is_own = self.objects.get(key) == data
            clock.advance((self.modified_ms[key] if is_own else self.now_ms) - clock())
            bucket.put(key, data)
        clock.advance(self.now_ms - clock())
        return bucket


def _runtime(clock: ManualClock, kind: type[FixedRuntime] = FixedRuntime) -> Runtime:
    return kind(
        clock, lambda _: None, random.Random(0), executor=InlineExecutor, background=InlineExecutor, spawn=never
    )


def world(name: str, chains: int, parts: bool = False) -> World:
    """``plain``: a store that keeps all entries; ``history``: one whose old entries are deleted day by day.

    ``parts``: segments are read by ranges.
    """
    with reading_parts(parts):
        return _world(name, chains, parts)


@cache
def _world(name: str, chains: int, _parts: bool) -> World:
    clock = ManualClock(1_700_000_000_000)
    bucket = MemoryStore(clock=clock)
    backups: list[Objects] = []
    days = _DAYS if name == "history" else 1
    _use(bucket, clock, chains, days, FixedRuntime, lambda: backups.append(_objects(bucket)))
    objects, older = _objects(bucket), dict[str, list[bytes]]()
    for earlier in backups:
        for key, data in earlier.items():
            if objects.get(key) != data and data not in older.setdefault(key, []):
                older[key].append(data)
    other = MemoryStore(clock=clock)
    _use(other, clock, chains, 3, _ForeignRuntime, lambda: None)
    foreign = {key.replace(FOREIGN_ID, keys.STORE_ID): data for key, data in _objects(other).items()}
    world = World(
        objects=objects,
        modified_ms={item.key: item.modified_ms for item in bucket.list("")},
        now_ms=clock(),
        older={key: versions for key, versions in older.items() if versions},
        backups=backups[:-1],
        foreign=foreign,
        answers={},
    )
    with (
        reachable(world.bucket(objects, "sound")) as sound,
        open_on(sound, runtime=world.runtime()) as store,
    ):
        world.answers.update({name: read(store) for name, read in ANSWERS.items()})
    return world


def _objects(bucket: MemoryStore) -> Objects:
    return {item.key: bucket.get(item.key) for item in bucket.list("")}


def _use(
    bucket: MemoryStore,
    clock: ManualClock,
    chains: int,
    days: int,
    kind: type[FixedRuntime],
    observe: Callable[[], object],
) -> None:
    """Records of all kinds in shared segments, entries and objects of their own; transactions, a group, checkpoints."""
    with create_on(bucket, chains, runtime=_runtime(clock, kind)) as store:
        store.create_topic("t", partitions=3, config={"inline.bytes": 0})
        store.create_topic("typed", schema=pa.schema([pa.field("id", pa.int64()), pa.field("name", pa.string())]))
        store.create_topic("arrow", config={"segment.format": "arrow"})
        for day in range(days):
            _work(store, day, 1 if days > 1 else 4)
            observe()
            store.checkpoint()
            observe()
            clock.advance(DAY_MS)
            if days > 1:
                store.vacuum(history=2 * DAY_MS / 1000)
                observe()
        _work(store, days, 1)
        observe()


def _work(store: Store, day: int, times: int) -> None:
    with store.producer("id") as producer, store.producer(linger=None) as plain:
        for number in range(times):
            with producer.transaction() as txn:
                for partition in range(3):
                    txn.send("t", b"%d.%d" % (day, number), partition=partition)
            with producer.transaction() as txn:  # Alone, so that its entry contains the record.
                txn.send("typed", {"id": number, "name": f"name {day}"})
            if number % 5 == 0:
                plain.send("arrow", b"%d" % day)
                plain.flush()
        producer.begin_transaction()
        producer.send("t", b"aborted", partition=0)
        producer.flush()
        producer.abort_transaction()
    with store.consumer(["t"], group="g") as consumer:
        consumer.poll(max_records=10)
        consumer.commit()
    if day % 3 == 2:
        store.compact("t")
        store.compact("typed")


# What readers return --------------------------------------------------------------------------------------------------


def _describe(store: Store) -> Any:
    topics = [(topic.name, topic.partitions, str(topic.schema)) for topic in store.topics()]
    return topics, [str(txn) for txn in store.transactions()], str(store.group("g"))


def _of_all_topics(read: Reader, store: Store) -> list[pa.Table]:
    return read(store, _TOPICS)


#: All that a store is asked for: what it describes, and the rows that each reader returns.
ANSWERS: dict[str, Callable[[Store], Any]] = {
    "describe": _describe,
    **{name: partial(_of_all_topics, read) for name, read in READERS.items()},
}


def connected(bucket: Bucket, of: World) -> Connection:
    """A connection of a process that has read nothing yet."""
    return Connection(bucket, runtime=of.runtime())
