"""A random history of a store whose topics have tables, and what was published in it."""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from tests.harness.executors import InlineExecutor, never
from tests.helpers.connections import connection_of
from tests.helpers.keys import FixedRuntime
from tests.helpers.merging import merge_now
from tests.readers.plain import PlainTable
from tests.readers.values import evolved, new_schema, rows
from txnstore.chain import keys
from txnstore.core.model import TopicPartition
from txnstore.errors import TxnStoreError
from txnstore.producer import Producer
from txnstore.runtime import Runtime
from txnstore.storage.local import LocalStore
from txnstore.storage.registry import open_store
from txnstore.store import Store, create_on, open_on
from txnstore.tables.published import published_of
from txnstore.testing import ManualClock

HOUR_MS = 3_600_000
_NAMES = ("orders", "events-1", "a.b", "Clicks_2")


@dataclass(frozen=True)
class Publication:
    """A table as a cut has published it.

    Attributes:
        cut: The number of the cut.
        topic: The topic.
        topic_id: Its id, which is that of the table.
        life: How often a table of this name was rebuilt before: after ``disable``, or as another topic's.
        version: The number of the version of the metadata.
        metadata: The location of the metadata.
        snapshot_id: The current snapshot; None: it has none.
        heads: The last entry of each chain.
        dropped: Whether this version says that there is no such table any more.
        late: Whether the topic was without a table for some time, in which its segments were not written for one.
    """

    cut: int
    topic: str
    topic_id: str
    life: int
    version: int
    metadata: str
    snapshot_id: int | None
    heads: tuple[int, ...]
    dropped: bool
    late: bool


@dataclass
class _Topic:
    name: str
    schema: pa.Schema | None
    key: str | None
    compacted: bool
    partitions: int
    table: bool
    late: bool


class _ClockedStore(LocalStore):
    """A folder whose time is that of the history."""

    def __init__(self, root: Path, clock: ManualClock) -> None:
        super().__init__(root)
        self._clock = clock

    def now_ms(self) -> int:
        return self._clock()


class History:
    """A random history; the same seed gives the same one.

    Args:
        seed: The seed.
        place: A folder that does not exist, or the URL of a store that does not.
        options: The options of the storage.
        on_publication: Called after each ``sync`` with the history, and with each table that it has changed.
    """

    def __init__(
        self,
        seed: int,
        place: str | Path,
        options: dict[str, Any] | None = None,
        on_publication: Callable[[History, Publication], object] = lambda *_: None,
    ) -> None:
        self.rng = random.Random(f"readers/{seed}")
        #: After the times at which the files of a folder are written, so that leases of compactions are over.
        self.clock = ManualClock(2_000_000_000_000)
        self._on_publication = on_publication
        if isinstance(place, Path):
            objects: Any = _ClockedStore(place, self.clock)
        else:
            objects = open_store(place, options)
        self.store = create_on(objects, self.rng.choice([1, 3]), runtime=self._runtime())
        #: Two processes publish in turns, so that each reads what the other has published.
        self._publishers = [self.store, open_on(objects, runtime=self._runtime())]
        self.publications: list[Publication] = []
        self.log: list[str] = []
        self._topics: dict[str, _Topic] = {}
        self._open: list[Producer] = []
        self._next_id = 0
        self._lives: dict[str, int] = {}

    def close(self) -> None:
        """Abort what is open, and close the store."""
        while self._open:
            self._finish(self._open.pop(), commit=False)
        for store in self._publishers:
            store.close()

    def run(self, steps: int) -> None:
        """Take some steps, and publish at the end."""
        for name in self.rng.sample(_NAMES, 2):
            self._create(name)
        names, weights = zip(*_STEPS.items(), strict=True)
        for _ in range(steps):
            [name] = self.rng.choices(names, weights)
            self.log.append(name)
            getattr(self, f"_{name}")()
        self._sync()

    @property
    def chains(self) -> int:
        return len(connection_of(self.store).chains)

    @property
    def topics(self) -> list[str]:
        """The topics that have a table."""
        return [topic.name for topic in self._topics.values() if topic.table]

    def table(self, metadata: str) -> PlainTable:
        """A table by a version of its metadata, for the plain reader."""
        objects, root = connection_of(self.store).objects, location_of(self.store, "")
        return PlainTable(metadata, lambda location: objects.get(location.removeprefix(root)))

    def _runtime(self) -> Runtime:
        rng = random.Random(self.rng.getrandbits(64))
        return FixedRuntime(
            self.clock, lambda _: None, rng, executor=InlineExecutor, background=InlineExecutor, spawn=never
        )

    # Topics -----------------------------------------------------------------------------------------------------------

    def _create(self, name: str) -> None:
        rng = self.rng
        schema = new_schema(rng) if rng.random() < 0.7 else None
        compacted = rng.random() < 0.4
        key = "name" if schema is not None and (compacted or rng.random() < 0.3) else None
        moments = [] if schema is None else [each.name for each in schema if pa.types.is_timestamp(each.type)]
        config: dict[str, object] = {
            "cleanup.policy": "compact,delete" if compacted else "delete",
            "inline.bytes": rng.choice([0, 1_500, 65_536]),
            "segment.own.bytes": rng.choice([0, 262_144]),
            "segment.bytes": rng.choice([4_000, 30_000, 1 << 30]),
            "compression.type": rng.choice(["zstd", "snappy", "gzip", "uncompressed"]),
            "min.cleanable.dirty.ratio": rng.choice([0.0, 0.5]),
            "delete.retention.ms": rng.choice([0, HOUR_MS]),
        }
        table = rng.random() < 0.8
        if table:
            config["table.format"] = "iceberg"
        partitions = rng.randint(1, 4)
        timestamp = rng.choice([None, *moments])
        self.store.create_topic(name, partitions, schema, key, timestamp, config)
        self._topics[name] = _Topic(name, schema, key, compacted, partitions, table, late=not table)

    def _any_topic(self) -> _Topic:
        return self.rng.choice(list(self._topics.values()))

    def _recreate(self) -> None:
        """Delete a topic and create another one of its name, or one more."""
        name = self.rng.choice(_NAMES)
        if name in self._topics:
            if self._open:  # A transaction holds the topic.
                return
            self.store.delete_topic(name)
            del self._topics[name]
            if len(self._topics) > 1 and self.rng.random() < 0.4:
                return
        self._create(name)

    def _evolve(self) -> None:
        topic = self._any_topic()
        if topic.schema is not None:
            topic.schema = evolved(self.rng, topic.schema, topic.key)
            self.store.alter_topic(topic.name, schema=topic.schema)

    def _grow(self) -> None:
        topic = self._any_topic()
        if topic.partitions < 6:
            topic.partitions += 1
            self.store.alter_topic(topic.name, partitions=topic.partitions)

    def _toggle(self) -> None:
        """Give a topic a table, or take it away."""
        topic, tables = self._any_topic(), self.store.tables
        if topic.table and self.rng.random() < 0.3:
            tables.disable(topic.name)
            topic.table, topic.late = False, True
        else:
            tables.enable(topic.name)
            topic.table = True

    # Rows -------------------------------------------------------------------------------------------------------------

    def _send(self, producer: Producer, topic: _Topic, count: int) -> None:
        rng, partition = self.rng, None
        if topic.schema is not None:
            if topic.key is None:
                partition = rng.randrange(topic.partitions)
            data = rows(rng, topic.schema, self._next_id, count, names=12)
            producer.send_table(topic.name, data, partition)
        else:
            partition = rng.randrange(topic.partitions)
            for number in range(self._next_id, self._next_id + count):
                key = b"k%d" % rng.randrange(12) if topic.compacted or rng.random() < 0.8 else None
                value = None if rng.random() < 0.1 else b"%d %s" % (number, rng.randbytes(rng.randint(0, 30)))
                headers = [(f"h{place}", rng.choice([None, b"", b"x"])) for place in range(rng.randint(0, 2))]
                moment = rng.choice([None, rng.randrange(1, 2_000_000_000_000)])
                producer.send(topic.name, value, key, partition, headers, moment)
        self._next_id += count

    def _several(self, producer: Producer, most: int) -> None:
        for _ in range(self.rng.randint(1, 3)):
            self._send(producer, self._any_topic(), self.rng.randint(1, most))

    def _writer(self, name: str) -> Producer:
        return self.store.producer(name, 900.0, linger=None)

    def _commit(self) -> None:
        with self._writer(f"w{self.rng.randrange(3)}") as producer, producer.transaction():
            self._several(producer, 12)

    def _large(self) -> None:
        with self._writer("large") as producer, producer.transaction():
            self._send(producer, self._any_topic(), self.rng.randint(100, 400))

    def _abort(self) -> None:
        with self._writer("aborter") as producer:
            producer.begin_transaction()
            self._several(producer, 12)
            producer.flush()
            producer.abort_transaction()

    def _append(self) -> None:
        with self.store.producer(linger=None) as producer:
            self._several(producer, 8)

    def _small(self) -> None:
        """Many small commits, which are merged then."""
        topics = [self._any_topic() for _ in range(2)]
        with self.store.producer(linger=None) as producer:
            for _ in range(self.rng.randint(5, 25)):
                self._send(producer, self.rng.choice(topics), 1)
                producer.flush()
        for chain in range(self.chains):
            merge_now(self.store, chain)

    def _begin(self) -> None:
        if len(self._open) < 2:
            producer = self._writer(f"open-{self._next_id}")
            producer.begin_transaction()
            self._several(producer, 6)
            producer.flush()
            self._open.append(producer)

    def _end(self) -> None:
        if self._open:
            producer = self._open.pop(self.rng.randrange(len(self._open)))
            self._finish(producer, commit=self.rng.random() < 0.7)

    @staticmethod
    def _finish(producer: Producer, *, commit: bool) -> None:
        with producer, suppress(TxnStoreError):  # If its timeout has passed meanwhile, it was aborted.
            (producer.commit_transaction if commit else producer.abort_transaction)()

    # Maintenance ------------------------------------------------------------------------------------------------------

    def _compact(self) -> None:
        topic = self._any_topic().name if self.rng.random() < 0.7 else None
        self.store.compact(topic, force=self.rng.random() < 0.6, min_segments=self.rng.choice([1, 2, 4]), expire=False)

    def _delete(self) -> None:
        """Delete the first records of a partition, mostly not all: the log start is in a segment then."""
        topic = self._any_topic()
        partition = self.rng.randrange(topic.partitions)
        offsets = self.store.offsets(topic.name, partition)
        first, last = offsets.log_start, offsets.last_stable
        if last > first:
            until = first + max(1, round((last - first) * self.rng.choice([0.1, 0.3, 0.6, 1.0])))
            self.store.delete_records({TopicPartition(topic.name, partition): until})

    def _retain(self) -> None:
        topic = self._any_topic().name
        self.store.alter_topic(topic, config={"retention.bytes": self.rng.choice([2_000, 20_000])})
        self.store.retain(topic)
        self.store.alter_topic(topic, config={"retention.bytes": None})

    def _wait(self) -> None:
        self.clock.advance(self.rng.choice([1, 1_000, 60_000, 600_000]))

    def _wait_long(self) -> None:
        self.clock.advance(self.rng.choice([1, 5, 13]) * HOUR_MS)

    # Publications -----------------------------------------------------------------------------------------------------

    def _sync(self) -> None:
        store = self.rng.choice(self._publishers)
        report = store.tables.sync()
        if not report.changes:
            return
        location = published_of(connection_of(store))
        cut = location.cut(report.cut)
        assert cut is not None
        for change in report.changes:
            table = cut.tables[change.topic]
            publication = Publication(
                report.cut,
                change.topic,
                table.topic_id,
                self._lives.get(change.topic, 0),
                table.number,
                location_of(store, table.metadata),
                table.snapshot_id,
                report.heads,
                table.dropped,
                change.topic in self._topics and self._topics[change.topic].late,
            )
            self._lives[change.topic] = publication.life + table.dropped
            self.publications.append(publication)
            self._on_publication(self, publication)


def location_of(store: Store, key: str) -> str:
    """The location of an object of a store, as metadata names it."""
    return f"{store.url.rstrip('/')}/{key}"


def newest_version(store: Store, topic: str) -> int:
    """The number of the newest version of a table, as readers find it by its hint."""
    return int(connection_of(store).objects.get(keys.table_hint(topic)))


def version_of(store: Store, topic: str, number: int) -> str:
    """The location of a version of a table, under the name by which readers find it."""
    return location_of(store, keys.table_version(topic, number))


#: How often each step is taken.
_STEPS = {
    "commit": 14,
    "large": 3,
    "abort": 4,
    "append": 6,
    "small": 3,
    "begin": 3,
    "end": 5,
    "compact": 8,
    "delete": 5,
    "retain": 1,
    "evolve": 4,
    "grow": 1,
    "recreate": 1,
    "toggle": 2,
    "wait": 4,
    "wait_long": 1,
    "sync": 16,
}
