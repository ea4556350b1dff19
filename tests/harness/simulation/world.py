"""The state of one run: the bucket, the clock, the processes and what they observed."""

from __future__ import annotations

import random
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING
from uuid import UUID

import pyarrow as pa

from tests.harness.simulation.creates import Creates
from tests.harness.simulation.ledger import Ledger
from tests.harness.simulation.meeting import Machine, Meeting
from tests.harness.simulation.network import NetworkedConnection
from tests.harness.simulation.power import Power
from tests.harness.simulation.recorder import Recorder
from tests.harness.simulation.rulebook import ROOT, USERS, Rulebook, everything
from tests.harness.simulation.runtime import EPOCH_MS, WrongClock, simulated_runtime
from tests.harness.simulation.scheduler import Scheduler
from tests.harness.simulation.settings import Settings
from tests.harness.simulation.site import Site
from tests.harness.simulation.stale_absence import HiddenEntries
from tests.harness.simulation.storage import (
    WRITES,
    Bucket,
    Copies,
    Mishap,
    SimulatedFolder,
    SimulatedStorage,
    Step,
    is_hint,
)
from tests.helpers import keys
from tests.helpers.keys import FixedRuntime
from txnstore.connection import Connection
from txnstore.core.model import TopicPartition
from txnstore.errors import CorruptionError, SnapshotExpiredError, StoreNotFoundError, UnsoundStoreError
from txnstore.gateway.properties import Properties
from txnstore.runtime import Runtime
from txnstore.storage.base import ObjectStore
from txnstore.storage.retry import RetryingStore
from txnstore.store import Store, create_on

if TYPE_CHECKING:
    from tests.harness.simulation.actor import Actor
    from tests.harness.simulation.engine_tables import Look
    from tests.harness.simulation.nodes import Node

#: The topic of producers, the target of copies, and a second target that makes transactions span topics.
SOURCE, SIDE, TARGET = "source", "side", "target"
#: The errors that may name what is damaged below the root.
_OF_DAMAGE = (CorruptionError, UnsoundStoreError, SnapshotExpiredError, StoreNotFoundError)
#: A topic that is deleted and recreated.
PASSING = "passing"
#: A topic that is cleaned by key.
KEYED = "keyed"
#: A topic that gets columns, and one whose settings let records go for a while.
WIDENED, GOVERNED = "widened", "governed"
#: Where the objects of a run with tables are, as engines name it.
TABLES_AT = "s3://bucket/store"


@dataclass(slots=True)
class Process:
    """A process of an actor: its name in the history, its store, the storage that fails for it."""

    name: str
    store: Store
    storage: SimulatedStorage
    meeting: Meeting | None = None

    def end(self) -> None:
        """Close what only a living process has open."""
        if self.meeting is not None:
            self.meeting.die()

    @property
    def principal(self) -> str:
        """Who asks for what it does."""
        return self.store.principal


@dataclass(frozen=True, slots=True)
class Away:
    """Requests of one chain that fail for every process, until a time of the virtual clock."""

    prefix: str = ""
    until: int = 0
    operations: frozenset[str] = frozenset()
    mishap: Mishap = Mishap.ERROR


@dataclass(slots=True)
class Copied:
    """The key and offset of the source of a copied record."""

    key: str
    offset: int


class World:
    """The state that the actors of a run share. Created before the first turn, when nothing fails yet."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.scheduler = Scheduler(self.rng("schedule"))
        self.trace: list[Step] = []
        self.history = Recorder(lambda: self.scheduler.now)
        self.bucket = Bucket(lambda: EPOCH_MS + self.scheduler.now)
        #: The anomalies that the actors reported.
        self.anomalies: list[str] = []
        self.copied: dict[int, Copied] = {}
        #: The log starts that acknowledged deletions have reached, by partition.
        self.shortened: dict[str, int] = {}
        #: The group, partition and topic id of acknowledged offsets of the topic that is recreated.
        self.followed: set[tuple[str, TopicPartition, str]] = set()
        #: The acknowledged generations of the classic group: each with its number and the ids of its members.
        self.generations: set[tuple[int, frozenset[str]]] = set()
        #: The generation and the id of each member that an acknowledged generation has fenced.
        self.fenced: set[tuple[int, str]] = set()
        #: The entries that a process did not find for a while.
        self.hidden: set[str] = set()
        #: The objects that were lost for a while, and those that a process was given other bytes for.
        self.lost: set[str] = set()
        self.garbled: set[str] = set()
        #: What an error names that an operator has misplaced.
        self.misplaced: set[str] = set()
        #: The processes of gateways, their clients that have not ended, and what the entries say of groups.
        self.nodes: list[Node] = []
        self.clients: set[str] = set()
        self.readers: list[Actor] = []
        #: The actors that keep answers and copies outside of the chains.
        self.keepers: list[Actor] = []
        #: What engines have read of tables, and the heads of each cut that a publisher got.
        self.looks: list[Look] = []
        self.cuts: dict[int, tuple[int, ...]] = {}
        self.ledger = Ledger(self.anomalies)
        self.gateway_properties = Properties()
        self.site = Site(Bucket(lambda: EPOCH_MS + self.scheduler.now))
        self.site.bucket.lasting = False
        #: The outage for all processes.
        self.away = Away()
        #: A backup in another folder of the same disk, and the heads of its last acknowledged cut.
        self.copies = Copies(lambda: EPOCH_MS + self.scheduler.now)
        self.copied_heads: tuple[int, ...] = ()
        buckets = (self.bucket, self.site.bucket, self.copies)
        self.power = Power(self.scheduler, self.rng("power"), settings, buckets, self.trace)
        #: The columns of each row that was sent to the topic that gets columns, by value, and those acknowledged.
        self.widened: dict[int, list[str]] = {}
        self.acknowledged: set[int] = set()
        #: How many records have stayed by the settings of their topic.
        self.governed = 0
        self.machines = [
            Machine(self.scheduler, self.rng(f"machine/{number}"), settings.cuts) for number in range(settings.machines)
        ]
        #: What connects the machines; None: nothing does.
        self.wires = Machine(self.scheduler, self.rng("wires"), settings.cuts) if settings.network else None
        self._values = 0
        self._lives = self.rng("lives")
        self._incarnations: dict[str, int] = {}
        #: None in a run without administrators.
        self.rulebook: Rulebook | None = None
        #: Whether the cleaned topic is typed: its tombstones are rows.
        self.keyed_rows = self.rng("keyed rows").random() < 0.5
        #: The randomness of what topics have a table; None in a run without tables.
        self._tables: random.Random | None = None
        if any(name.startswith("publish:") for name in settings.actors):
            self._tables = self.rng("tables")
            self.bucket.root = TABLES_AT
        if any(name.startswith("admin:") for name in settings.actors):
            self.rulebook = Rulebook(self.bucket, self.anomalies)
        has_gateways = any(name.startswith("node:") for name in settings.actors)
        if has_gateways:
            rng = self.rng("properties")
            self.gateway_properties = Properties(
                group_initial_rebalance_delay_ms=rng.choice((0, 0, 1_000)),
                group_consumer_session_timeout_ms=rng.choice((10_000, 45_000)),
                group_consumer_heartbeat_interval_ms=2_000,
            )
            self.bucket.entered = self.ledger.entered
        with self.honest(create=True) as store:
            passing = (PASSING,) if any(name.startswith("topics:") for name in settings.actors) else ()
            keyed = (KEYED,) if any(name.startswith("keys:") for name in settings.actors) else ()
            for topic in (SOURCE, SIDE, TARGET, *passing, *keyed):
                self.create_topic(store, topic)
            if any(name.startswith("widen:") for name in settings.actors):
                schema = pa.schema([("key", pa.binary()), ("value", pa.binary())])
                store.create_topic(WIDENED, schema=schema, config=self._format)
                store.create_topic(GOVERNED, config=self._format)
            if self.rulebook is not None and self.rng("rules").random() < 0.7:
                store.acls.create(everything())
                store.acls.enable(ROOT)
            #: The id of the topic that groups at gateways read, as requests have it.
            self.source_id = UUID(store._connection.view().topics[SOURCE].topic_id)

    @property
    def partitions(self) -> list[str]:
        """The keys of all partitions in a history."""
        return [f"{topic}-{number}" for topic in (SOURCE, SIDE, TARGET) for number in range(self.settings.partitions)]

    def create_topic(self, store: Store, name: str) -> None:
        """Create a topic of this run."""
        partitions = self._lives.randint(1, self.most_partitions) if name == PASSING else self.settings.partitions
        config = self._format
        if self._tables is not None and self._tables.random() < 0.7:
            config["table.format"] = "iceberg"
        if name == SIDE and any(actor.startswith("spread:") for actor in self.settings.actors):
            config["message.timestamp.type"] = "LogAppendTime"
        schema = None
        if name == KEYED:
            config |= {"cleanup.policy": "compact", "delete.retention.ms": 60_000}
            if self.keyed_rows:
                schema = pa.schema([("key", pa.binary()), ("value", pa.binary()), ("gone", pa.bool_())])
                config["tombstone.column"] = "gone"
        if name == TARGET and any(actor.startswith("shorten:") for actor in self.settings.actors):
            config["retention.bytes"] = 20_000  # A few batches: compactions delete the oldest, too.
        store.create_topic(name, partitions, schema, "key" if schema is not None else None, config=config)

    @property
    def _format(self) -> dict[str, object]:
        """The settings of all topics: how their records are stored."""
        is_parquet = self.settings.parts or self._tables is not None
        config: dict[str, object] = {"segment.format": "parquet" if is_parquet else "arrow"}
        if not self.settings.inline:
            config["inline.bytes"] = 0
        return config

    @property
    def most_partitions(self) -> int:
        """The most partitions that the passing topic has: it has another number of them in each life."""
        return self.settings.partitions + 1

    def rng(self, name: str) -> random.Random:
        """Separate randomness for each purpose, so that actors do not influence that of others."""
        return random.Random(f"{name}/{self.settings.seed}")

    def next_value(self) -> int:
        """A value that no other record has."""
        self._values += 1
        return self._values

    def honest(self, bucket: Bucket | None = None, *, create: bool = False) -> Store:
        """A store of a process whose requests never fail and whose clock is right."""
        name = self._incarnation("honest")
        rng = self.rng(name)
        runtime = simulated_runtime(self.scheduler, rng, lambda: EPOCH_MS + self.scheduler.now)
        if create:
            return create_on(self.bucket, self.settings.chains, principal=ROOT, runtime=runtime)
        store = Store(Connection(bucket or self.bucket, runtime=runtime, principal=ROOT))
        store._connection.load()
        return store

    def process(
        self,
        actor: str,
        bucket: Bucket | None = None,
        kind: type[Runtime] = FixedRuntime,
        principal: str | None = None,
    ) -> Process:
        """A new process of an actor. Raises what opening its store raises. ``principal``: None for one of the users."""
        name = self._incarnation(actor)
        rng = self.rng(name)
        settings = self.settings
        creates = Creates(self.scheduler, rng, settings.interrupts, self.anomalies)
        mishap = partial(self._mishap, rng, self.rng(f"{name}/apart"))
        kind_of_storage = SimulatedFolder if settings.syncs else SimulatedStorage
        storage = kind_of_storage(bucket or self.bucket, self.scheduler, name, rng, mishap, self.trace, creates)
        if settings.hidden and bucket is None:
            storage.hidden_entries = HiddenEntries(self.bucket, self.scheduler, rng, settings.hidden, self.hidden)
        storage.sync_failed = self.power.sync_failed
        storage.garbled = self.garbled
        who = principal or self.rng(f"{name}/principal").choice(USERS)
        if self.rulebook is not None and bucket is None:
            storage.wrote = partial(self.rulebook.wrote, who, self.rulebook.now())
        self.power.storages.append(storage)
        meeting = self._meeting(name) if bucket is None else None
        clock = WrongClock(self.scheduler, rng, skew_ms=settings.skew_ms, jumps=settings.jumps, far=settings.far)
        runtime = simulated_runtime(self.scheduler, rng, clock, kind, meeting)
        objects = RetryingStore(storage, attempts=3, sleep=runtime.sleep, rng=rng)
        store = Store(self._connection(objects, runtime, who, meeting))
        process = Process(name, store, storage, meeting)
        if meeting is not None:
            storage.on_crash = meeting.die
        for chain in store._connection.load():
            chain._checkpoint_every = settings.checkpoint_every
        return process

    def other_folder(self, process: Process) -> ObjectStore:
        """The folder of the backup, for a process; nothing goes wrong there but syncs."""
        name, syncs = process.name, self.settings.syncs
        rng = self.rng(f"{name}/other folder")

        def mishap(operation: str, _: str) -> Mishap | None:
            return Mishap.SYNC if operation in WRITES and rng.random() < syncs else None

        creates = Creates(self.scheduler, rng, 0.0, self.anomalies)
        storage = SimulatedFolder(self.copies, self.scheduler, name, rng, mishap, self.trace, creates)
        storage.sync_failed = self.power.sync_failed
        self.power.storages.append(storage)
        sleep = process.store._connection.runtime.sleep
        return RetryingStore(storage, attempts=3, sleep=sleep, rng=rng)

    def _connection(
        self, objects: ObjectStore, runtime: Runtime, principal: str, meeting: Meeting | None
    ) -> Connection:
        """The connection of a process, to other machines, too, if they are connected."""
        if self.wires is None or meeting is None:
            return Connection(objects, runtime=runtime, principal=principal)
        connection = NetworkedConnection(objects, runtime=runtime, principal=principal)
        connection.wires, connection.meeting = self.wires, meeting
        return connection

    def _meeting(self, name: str) -> Meeting | None:
        """Where a process meets others: each is on one of the machines of the run."""
        if not self.machines:
            return None
        return Meeting(self.rng(f"{name}/machine").choice(self.machines), name)

    def explains(self, error: BaseException) -> bool:
        """Whether the error is one of damage, and names an object that was hidden, lost, garbled or misplaced."""
        if not isinstance(error, _OF_DAMAGE):
            return False
        text, blamed = str(error), {name for key in self.lost | self.garbled for name in _blamed(key)}
        return any(name in text for name in (*self.hidden, *blamed, *self.misplaced))

    def renamed(self, process: Process, actor: str) -> Process:
        """The same process under another name in the history, for a new client in it."""
        return Process(self._incarnation(actor), process.store, process.storage, process.meeting)

    def end(self) -> None:
        """Kill all processes: a request that any of them makes after the run raises."""
        self.power.end_all()

    def _incarnation(self, name: str) -> str:
        self._incarnations[name] = self._incarnations.get(name, 0) + 1
        full = f"{name}#{self._incarnations[name]}"
        self.power.began(full)
        return full

    def _mishap(self, rng: random.Random, apart: random.Random, operation: str, key: str) -> Mishap | None:
        settings, away = self.settings, self.away
        if self.scheduler.now < away.until and key.startswith(away.prefix) and operation in away.operations:
            return away.mishap
        # Most requests only read; mishaps of writes matter more.
        rate = settings.rate * (2 if operation == "put_if_absent" else 0.5)
        if settings.mishaps and rng.random() < rate:
            return rng.choice(settings.mishaps)
        if settings.syncs and operation in WRITES and apart.random() < settings.syncs:
            return Mishap.SYNC
        if settings.old_hints and operation == "get" and is_hint(key):
            return Mishap.OLD if apart.random() < settings.old_hints else None
        # A folder makes its creates itself: nothing else answers them. Creates are few, and their answers matter more.
        if settings.elsewhere and operation in (("get",) if settings.syncs else ("get", "put_if_absent")):
            share = settings.elsewhere / (10 if operation == "get" else 1)
            return Mishap.ELSEWHERE if apart.random() < share else None
        return None


def _blamed(damaged: str) -> tuple[str, ...]:
    """What an error names whose cause is a lost or garbled object: that, or the folders of others that it blames."""
    chain, separator, _ = damaged.partition("boundaries/")
    if separator:
        return damaged, f"{chain}entries/"  # Entries that were deleted are missing.
    if keys.index_range(damaged) is not None:
        return (f"{damaged.rpartition('/')[0]}/",)  # No checkpoint that names the index file is complete.
    return (damaged,)
