"""A history: steps that change a store and its model, with a step of another process between two requests of each."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

import duckdb
import pyarrow as pa

from tests.harness.executors import InlineExecutor, never
from tests.harness.readers import values
from tests.harness.readers.model import ISOLATIONS, Model, Moment, Part, Rec, Topic, Txn
from tests.harness.readers.objects import Hooked, Kind
from tests.helpers.keys import FixedRuntime
from tests.helpers.merging import merge_quietly
from tests.helpers.tables import EngineObjects
from txnstore.chain import keys
from txnstore.core.authorization.model import Acl
from txnstore.core.model import TopicPartition
from txnstore.core.transactions.model import TxnState
from txnstore.errors import (
    CorruptionError,
    OffsetOutOfRangeError,
    SchemaMismatchError,
    TopicAuthorizationError,
    TransactionalIdNotFoundError,
    TxnStoreError,
    UnknownTopicOrPartitionError,
)
from txnstore.producer import Producer
from txnstore.read.plan import IsolationLevel
from txnstore.runtime import Runtime
from txnstore.snapshot import Snapshot
from txnstore.store import Store, create_on, open_on
from txnstore.testing import ManualClock

HOUR_MS = 3_600_000
ROOT, BOB = "User:root", "User:bob"
_NAMES = ("orders", "events-1", "a.b", "Clicks_2")
#: Records of one step have numbers below this.
_PER_STEP = 10_000
#: Settings by which a step may change a topic, with the values that it may set.
_SETTINGS: dict[str, tuple[object, ...]] = {
    "cleanup.policy": ("delete", "compact", "compact,delete"),
    "retention.ms": (-1, 1_000, 100_000_000),
    "retention.bytes": (-1, 500),
    "inline.bytes": (0, 0, 65_536),
    "segment.own.bytes": (0, 262_144),
    "segment.bytes": (4_000, 1 << 30),
    "delete.retention.ms": (0, HOUR_MS),
    "min.cleanable.dirty.ratio": (0.0, 0.5),
    "compression.type": ("zstd", "snappy", "uncompressed"),
    "table.format": ("iceberg", "none"),
}

#: Settings with which nothing is removed but by request.
_SPARING = {"cleanup.policy": "delete", "retention.ms": "-1", "retention.bytes": "-1"}

#: Settings by which upkeep removes records, or replaces many small segments, at nearly each step.
_UPKEEP: tuple[dict[str, object], ...] = (
    {"cleanup.policy": "compact", "inline.bytes": 0, "segment.own.bytes": 0, "min.cleanable.dirty.ratio": 0.0},
    {"cleanup.policy": "compact", "segment.own.bytes": 262_144, "min.cleanable.dirty.ratio": 0.0},
    {"cleanup.policy": "compact", "delete.retention.ms": HOUR_MS, "inline.bytes": 0},
    {"cleanup.policy": "delete", "retention.ms": 1_000, "inline.bytes": 0},
    {"cleanup.policy": "compact,delete", "retention.ms": 1_000, "min.cleanable.dirty.ratio": 0.0},
    {"cleanup.policy": "delete", "inline.bytes": 0, "segment.own.bytes": 262_144},
)


class DifferenceError(Exception):
    """A reader, or a step, did not do what the model says.

    Args:
        who: The reader or step.
        problem: What is different.
    """

    def __init__(self, who: str, problem: str) -> None:
        super().__init__(f"{who}: {problem}")
        self.who = who


@dataclass(frozen=True)
class Step:
    """A step of a history.

    Attributes:
        number: Its place in the history before steps were left out; the numbers of its records begin with it.
        name: What is done.
        seed: The seed of its choices.
        injected: The steps that another process takes before a request of this one.
        at: The number of that request.
        kind: Requests of which kind are counted; None: all.
    """

    number: int
    name: str
    seed: int
    injected: tuple[str, ...] = ()
    at: int = 0
    kind: Kind | None = None

    def __str__(self) -> str:
        kind = "" if self.kind is None else f" ({self.kind})"
        beside = f" with {', '.join(self.injected)} before its request {self.at}{kind}" if self.injected else ""
        return f"{self.number}: {self.name}{beside}"


@dataclass
class Kept:
    """A snapshot, and what it must show ever after."""

    snapshot: Snapshot
    moment: Moment


@dataclass(frozen=True)
class Publication:
    """What was published at once.

    Attributes:
        moments: What it may show: one of these.
        versions: The number of the version of each table that each of the moments has.
        mixed: Whether it may also show a moment between entries of what another process did in the midst of it.
    """

    moments: list[Moment]
    versions: dict[str, int]
    mixed: bool


@dataclass
class Reading:
    """What a reader may see: one of the moments, the last of which is now.

    Attributes:
        moments: The moment before it began, and the one after the injected step.
        chains: The number of chains.
        injected: The names of the injected steps that were taken.
        committed: Whether the reader leaves out what is undecided.
    """

    moments: list[Moment]
    chains: int = 1
    injected: tuple[str, ...] = ()
    committed: bool = True

    @property
    def mixed(self) -> bool:
        """Whether the injected steps take several entries, between which a reader may look."""
        several = {"compact", "retain", "merge", "recreate", "small"}
        if self.chains > 1:
            several |= {"append"} if self.committed else {"append", "begin", "commit", "abort", "end"}
        return len(self.injected) > 1 or not several.isdisjoint(self.injected)


@dataclass
class Coverage:
    """What the histories have reached.

    Attributes:
        steps: How often each step was taken.
        pairs: How often a step was taken between two requests of another one.
        reads: How many answers of each reader were compared, and their rows.
    """

    steps: Counter[str] = field(default_factory=Counter)
    pairs: Counter[tuple[str, str]] = field(default_factory=Counter)
    reads: Counter[str] = field(default_factory=Counter)
    rows: Counter[str] = field(default_factory=Counter)

    def add(self, other: Coverage) -> None:
        for mine, theirs in (
            (self.steps, other.steps),
            (self.pairs, other.pairs),
            (self.reads, other.reads),
            (self.rows, other.rows),
        ):
            mine.update(theirs)  # type: ignore[arg-type]


@dataclass
class _Process:
    """A process that uses the store."""

    objects: Hooked
    store: Store


@dataclass
class _Open:
    """A transaction that a step leaves open, in the process that began it."""

    producer: Producer
    txn: Txn
    process: _Process


def is_narrow(seed: int) -> bool:
    """Whether a history is mostly upkeep of few topics, in the midst of which they are changed."""
    return seed % 2 == 1


def is_marked(seed: int) -> bool:
    """Whether typed topics of a history have tombstones: in half of those that are mostly upkeep."""
    return seed % 4 == 3


class History:
    """A store with its model.

    Args:
        seed: The seed of everything that is not chosen by a step.
        objects: Makes the storage, whose clock is given; None: in memory.
    """

    def __init__(self, seed: int, objects: Callable[[ManualClock], Any] = EngineObjects) -> None:
        self.seed = seed
        rng = self._rng = random.Random(f"differential readers {seed}")
        self.clock = ManualClock(2_000_000_000_000)
        self.objects = objects(self.clock)
        self.chains = rng.choice([1, 3])
        #: Whether there are few topics, most of which upkeep has much to do with.
        self.narrow = is_narrow(seed)
        self.rights = rng.random() < 0.4
        #: Whether topics with a key column have one that marks tombstones.
        self.marks = is_marked(seed)
        self.model = Model()
        self.coverage = Coverage()
        self.processes = [self._process(first=True), self._process(), self._process()]
        #: Looks at the store after each step.
        self.eye = self._process().store
        if self.rights:
            self.eye.acls.enable(ROOT)
        #: The names of topics that were compacted once: a producer may not have read yet that they need no keys now.
        self._keyed: set[str] = set()
        #: The topics that Bob may read.
        self.permitted: set[str] = set()
        self.bob = self._process(principal=BOB)
        self.kept: list[Kept] = []
        #: What the newest tables may show; None before the first publication.
        self.published: list[Moment] | None = None
        #: All that was published, the newest last.
        self.publications: list[Publication] = []
        self._open: list[_Open] = []
        self._lives = 0
        #: The steps that are being taken, outermost first.
        self._taking: list[Step] = []
        #: Removed records that are judged when the outermost step has ended: they may have been superseded by it.
        self._suspects: list[tuple[Topic, Part, int, dict[str, str], int]] = []
        self._failed_beside = False
        #: Whether a topic was ever deleted: then a process may name one that is not there.
        self.has_deleted = False
        #: The topic that the outermost step works on, which the injected ones prefer.
        self._focus: str | None = None
        #: The one that the step before it worked on, which it prefers itself: users do several things to one topic.
        self._before: str | None = None
        self.reading: Reading | None = None

    def _process(self, *, first: bool = False, principal: str = ROOT) -> _Process:
        objects = Hooked(self.objects)
        runtime = self._runtime()
        if first:
            return _Process(objects, create_on(objects, self.chains, principal=principal, runtime=runtime))
        return _Process(objects, open_on(objects, principal=principal, runtime=runtime))

    def _runtime(self) -> Runtime:
        rng = random.Random(self._rng.getrandbits(64))
        return FixedRuntime(
            self.clock, self.clock.sleep, rng, executor=InlineExecutor, background=InlineExecutor, spawn=never
        )

    def close(self) -> None:
        """Abort what is open, and close the store."""
        for opened in self._open:
            with suppress(TxnStoreError):
                opened.producer.close()
        for process in (*self.processes, self.bob):
            process.store.close()
        self.eye.close()

    # Taking steps -----------------------------------------------------------------------------------------------------

    def take(self, step: Step, does: Callable[[History, Store, random.Random], object]) -> None:
        """Take a step, and compare what the store has with the model.

        Raises:
            DifferenceError: They differ, or the step failed without a reason.
        """
        rng = random.Random(f"{self.seed}/{step.seed}")
        self.clock.advance(rng.choice([0, 1, 7, 40]))
        process = rng.choice(self.processes)
        if step.name == "end" and self._open:
            process = self._open[0].process
        self._taking, self._failed_beside = [step], False
        reads = step.name in READS
        reached = False
        self.reading = Reading([self.model.moment()], self.chains) if reads or step.name == "sync" else None

        def inject() -> None:
            nonlocal reached
            reached = True
            self._inject(step, process)

        if step.injected:
            process.objects.arm(step.at, inject, step.kind)
        self.coverage.steps[step.name] += 1
        failed: TxnStoreError | None = None
        try:
            does(self, process.store, rng)
        except CorruptionError as error:
            raise DifferenceError(step.name, f"says that there is damage: {error}") from error
        except duckdb.Error as error:
            if not reached or {"delete", "recreate"}.isdisjoint(step.injected) or not _is_unknown(error):
                raise
        except TxnStoreError as error:
            failed = error
            may = self._may_fail(error, step.injected) if reads else self._may_be_refused(error)
            if not _is_outdated(error) and (not reached or not may):
                raise DifferenceError(step.name, f"failed: {error!r}") from error
        finally:
            process.objects.disarm()
        self._before = self._focus or self._before
        self._taking, self._focus = [], None
        if not reads:
            self.look(doubtful=failed is not None or self._failed_beside)

    @staticmethod
    def _may_fail(error: TxnStoreError, beside: tuple[str, ...]) -> bool:
        """Whether a reader may fail so, beside these steps."""
        if isinstance(error, UnknownTopicOrPartitionError):
            return not {"delete", "recreate"}.isdisjoint(beside)
        if isinstance(error, SchemaMismatchError):  # The columns that are read are those of the life before.
            return "recreate" in beside
        if isinstance(error, OffsetOutOfRangeError):
            return not {"delete_records", "retain", "recreate"}.isdisjoint(beside)
        return isinstance(error, TopicAuthorizationError) and "acl" in beside

    def _may_be_refused(self, error: TxnStoreError) -> bool:
        """Whether a change may fail so, beside others: every chain has a topic that was never deleted."""
        return self.has_deleted or not isinstance(error, UnknownTopicOrPartitionError)

    def _inject(self, step: Step, process: _Process) -> None:
        """Take the injected steps as another process, which mostly does something to the topic of the outer one."""
        rng = random.Random(f"{self.seed}/{step.seed}/injected")
        others = [other for other in self.processes if other is not process]
        self._focus = self._focus or (rng.choice(sorted(self.model.topics)) if self.model.topics else None)
        for place, name in enumerate(step.injected):
            self._inject_one(step, name, place, rng.choice(others).store, rng)
        if self.reading is not None:
            self.reading.moments.append(self.model.moment())
            self.reading.injected = step.injected

    def _inject_one(self, step: Step, name: str, place: int, store: Store, rng: random.Random) -> None:
        self._taking.append(replace(step, name=name, number=step.number + 1_000 * (place + 1)))
        self.coverage.pairs[step.name, name] += 1
        self.look(during=step.name)
        failed = False
        try:
            CHANGES[name](self, store, rng)
        except CorruptionError as error:
            raise DifferenceError(name, f"says that there is damage: {error}") from error
        except TxnStoreError as error:
            if not _is_outdated(error) and (step.name in READS or not self._may_be_refused(error)):
                raise DifferenceError(name, f"failed: {error!r}") from error
            failed = self._failed_beside = True
        self.look(during=step.name, doubtful=failed)
        self._taking.pop()

    # Looking at the store ---------------------------------------------------------------------------------------------

    def look(self, *, during: str | None = None, doubtful: bool = False) -> None:
        """Find the places of new records, and judge what was removed.

        Args:
            during: The step in the midst of which this is.
            doubtful: Whether a step has failed: then the catalog may be either.

        Raises:
            DifferenceError: Something else has changed.
        """
        changing = during is not None and during not in READS
        there = {topic.name: topic for topic in self.eye.topics()}
        for name, topic in list(self.model.topics.items()):
            found = there.pop(name, None)
            if found is None:
                if doubtful and during is None:
                    del self.model.topics[name]
                elif not changing and not doubtful:
                    raise DifferenceError("catalog", f"there is no topic {name}")
                continue
            self._look_at_catalog(topic, found, either=changing or doubtful, adopt=doubtful and during is None)
            self._look_at_log(topic)
        if there and not changing and not doubtful:
            raise DifferenceError("catalog", f"there are the topics {sorted(there)}")
        if during is None and doubtful:
            for name in there:
                self.eye.delete_topic(name)  # Half created: nothing is known of it.
        if during is None or during in READS:
            self._judge()

    def _look_at_catalog(self, topic: Topic, found: Any, *, either: bool, adopt: bool) -> None:
        mine = (topic.schema, len(topic.parts), topic.config)
        theirs = (found.schema, found.partitions, found.config)
        if mine == theirs:
            return
        if not either:
            raise DifferenceError("catalog", f"{topic.name} is {theirs} instead of {mine}")
        if adopt:
            topic.schema, topic.config = found.schema, found.config
            topic.parts += [Part() for _ in range(found.partitions - len(topic.parts))]

    def _look_at_log(self, topic: Topic) -> None:
        uid = "headers" if topic.schema is None else "id"
        try:
            starts = [self.eye.offsets(topic.name, number).log_start for number in range(len(topic.parts))]
            columns = ["_partition", "_offset", "_timestamp", uid, *(["timestamp"] if topic.schema is None else [])]
            rows = self.eye.scan(topic.name, "read_uncommitted", columns=columns).to_table().to_pylist()
        except UnknownTopicOrPartitionError:
            return  # It is being created, deleted, or is given partitions.
        except CorruptionError as error:
            raise DifferenceError("look", f"there is damage: {error}") from error
        found: dict[int, set[int]] = {}
        for row in rows:
            number = int(row["headers"][0]["value"]) if uid == "headers" else row["id"]
            found.setdefault(row["_partition"], set()).add(row["_offset"])
            if row["_partition"] < len(topic.parts):
                self._place(topic, row, number)
        for number, (part, start) in enumerate(zip(topic.parts, starts, strict=True)):
            self._look_at_start(topic, part, start)
            for offset in [offset for offset in part.present if offset not in found.get(number, ())]:
                if offset >= start:
                    self._suspects.append((topic, part, offset, dict(topic.config), self.clock()))
                del part.present[offset]

    def _place(self, topic: Topic, row: dict[str, Any], uid: int) -> None:
        rec = self.model.sent.get(uid)
        if rec is None:
            raise DifferenceError("look", f"nothing has sent {row}")
        part, offset = topic.parts[row["_partition"]], row["_offset"]
        before = part.past.setdefault(offset, rec)
        moment = values.canonical(row["_timestamp"]) // 1000
        if before is not rec or (rec.seen_at and offset not in part.present):
            raise DifferenceError("look", f"{topic.name}-{row['_partition']}: {row} is another record than before")
        part.present[offset] = rec
        if not rec.seen_at:
            rec.seen_at, rec.place = self.clock(), (topic.name, row["_partition"], offset)
            if rec.timestamp is None or topic.config.get("message.timestamp.type") == "LogAppendTime":
                rec.timestamp = moment
            if topic.schema is None and rec.timestamp == moment:
                rec.values["timestamp"] = row["timestamp"]
            if topic.timestamp is not None and rec.values.get(topic.timestamp, ...) is None:
                rec.values[topic.timestamp] = row["_timestamp"]  # A writer does so, as KIP-32 says of records.
        if rec.timestamp != moment:
            raise DifferenceError("look", f"{row} has the time {moment} instead of {rec.timestamp}")

    def _look_at_start(self, topic: Topic, part: Part, start: int) -> None:
        """Judge what retention has deleted."""
        if start == part.log_start:
            return
        if start == part.wanted:
            part.log_start = start
            return
        if start < part.log_start:
            raise DifferenceError("look", f"the log of {topic.name} begins at {start}, no longer at {part.log_start}")
        config = topic.config
        age = int(config.get("retention.ms", -1))
        deleted = [rec for offset, rec in part.present.items() if offset < start]
        old = age >= 0 and all(rec.timestamp is not None and rec.timestamp < self.clock() - age for rec in deleted)
        allowed = "delete" in config.get("cleanup.policy", "delete") and (
            old or int(config.get("retention.bytes", -1)) >= 0
        )
        if not allowed:
            problem = f"the records of {topic.name} below {start} were deleted; its settings are {config}"
            raise DifferenceError("retention", problem)
        part.log_start = start

    def _judge(self) -> None:
        """Judge what compactions have removed."""
        suspects, self._suspects = self._suspects, []
        for topic, part, offset, config, now in suspects:
            if not part.may_be_cleaned(offset, config, now):
                rec = part.past[offset]
                problem = f"the record {rec.values} at {offset} of {topic.name} is removed; the settings are {config}"
                raise DifferenceError("compaction", problem)

    # What steps choose from -------------------------------------------------------------------------------------------

    def topic(self, rng: random.Random) -> Topic | None:
        """Any topic; of an injected step mostly that of the outer one. None if there is none."""
        if not self.model.topics:
            return None
        topic = self.model.topics[rng.choice(sorted(self.model.topics))]
        outermost = len(self._taking) == 1
        preferred = self._before if outermost else self._focus
        if preferred in self.model.topics and rng.random() < (0.8 if self.narrow or not outermost else 0.4):
            topic = self.model.topics[preferred]
        if outermost:
            self._focus = topic.name
        return topic

    @property
    def number(self) -> int:
        """The number of the first record of the step that is being taken."""
        return self._taking[-1].number

    def isolation(self, rng: random.Random) -> IsolationLevel:
        level: IsolationLevel = rng.choice(ISOLATIONS)  # type: ignore[arg-type]
        if self.reading is not None:
            self.reading.committed = level == "read_committed"
        return level

    # Topics -----------------------------------------------------------------------------------------------------------

    def create(self, store: Store, rng: random.Random) -> None:
        unused = [name for name in _NAMES if name not in self.model.topics]
        if unused and len(self.model.topics) < (2 if self.narrow else 3):
            self.create_named(store, rng, rng.choice(unused))

    def create_named(self, store: Store, rng: random.Random, name: str) -> None:
        life = self._lives = self._lives + 1
        schema = values.new_schema(rng, life) if rng.random() < 0.65 else None
        config = {
            setting: rng.choice(choices)
            for setting, choices in _SETTINGS.items()
            if rng.random() < 0.5 and not setting.startswith("retention")
        }
        if rng.random() < 0.5:
            config["table.format"] = "iceberg"
        if rng.random() < 0.5:
            config["cleanup.policy"] = rng.choice(_SETTINGS["cleanup.policy"])
        if rng.random() < 0.15:
            config["retention.ms"] = 100_000_000
        if self.narrow:
            config |= rng.choice(_UPKEEP)
        if rng.random() < 0.15:
            config["message.timestamp.type"] = "LogAppendTime"
        compacted = "compact" in str(config.get("cleanup.policy"))
        if compacted:
            self._keyed.add(name)
        key = "name" if schema is not None and (compacted or rng.random() < 0.6) else None
        times = [] if schema is None else [each.name for each in schema if pa.types.is_timestamp(each.type)]
        timestamp = None if "message.timestamp.type" in config else rng.choice([None, *times])
        if schema is not None and key is not None and self.marks:
            config["tombstone.column"] = f"gone{life}"
            schema = schema.append(pa.field(f"gone{life}", pa.bool_()))
        partitions = rng.randint(1, 3)
        store.create_topic(name, partitions, schema, key, timestamp, config)
        texts = {setting: str(value) for setting, value in config.items()}
        self.model.topics[name] = Topic(name, life, schema, key, timestamp, texts, [Part() for _ in range(partitions)])

    def delete(self, store: Store, rng: random.Random) -> None:
        topic = self.topic(rng)
        if topic is not None and not self._is_held(topic):
            self._delete(store, topic)

    def _delete(self, store: Store, topic: Topic) -> None:
        """Delete a topic, or its next life, if it was created again in the midst of this."""
        self.has_deleted = True
        store.delete_topic(topic.name)
        self._altered(topic)
        if self.model.topics.get(topic.name) is topic:
            del self.model.topics[topic.name]

    def recreate(self, store: Store, rng: random.Random) -> None:
        topic = self.topic(rng)
        if topic is not None and not self._is_held(topic):
            self._delete(store, topic)
            self.create_named(store, rng, topic.name)

    def _is_held(self, topic: Topic) -> bool:
        """Whether an open transaction of this history has records in a topic."""
        return any(
            rec.txn is not None and rec.txn.state == "open" for part in topic.parts for rec in part.past.values()
        )

    def add_column(self, store: Store, rng: random.Random) -> None:
        topic = self.topic(rng)
        if topic is not None and topic.schema is not None:
            schema = values.with_column(rng, topic.schema, topic.life)
            store.alter_topic(topic.name, schema=schema)
            topic.schema = schema
            self._altered(topic)

    def widen(self, store: Store, rng: random.Random) -> None:
        topic = self.topic(rng)
        if topic is not None and topic.schema is not None:
            schema = values.widened(rng, topic.schema, topic.key)
            store.alter_topic(topic.name, schema=schema)
            floats = {each.name for each in topic.schema if pa.types.is_float32(each.type)}
            topic.rounded |= {each.name for each in schema if each.name in floats and pa.types.is_float64(each.type)}
            topic.schema = schema
            self._altered(topic)

    def grow(self, store: Store, rng: random.Random) -> None:
        topic = self.topic(rng)
        if topic is not None and len(topic.parts) < 4:
            count = len(topic.parts) + 1
            store.alter_topic(topic.name, partitions=count)
            topic.parts += [Part() for _ in range(count - len(topic.parts))]
            self._altered(topic)

    def policy(self, store: Store, rng: random.Random) -> None:
        topic = self.topic(rng)
        if topic is None:
            return
        wanted = rng.choice(["cleanup.policy", "retention.ms", "table.format", *_SETTINGS])
        value = rng.choice(_SETTINGS[wanted])
        if wanted == "cleanup.policy" and "compact" in str(value) and topic.schema is not None and topic.key is None:
            return
        self._configure(store, topic, {wanted: str(value)})
        if wanted == "cleanup.policy" and "compact" in str(value):
            self._keyed.add(topic.name)

    def spare(self, store: Store, rng: random.Random) -> None:
        """Change the settings of a topic so that nothing of it may be removed any more."""
        topic = self.topic(rng)
        if topic is not None:
            self._configure(store, topic, _SPARING)

    def _configure(self, store: Store, topic: Topic, config: dict[str, str]) -> None:
        """Another process may configure the topic meanwhile: either of them is the later one then."""
        before = dict(topic.config)
        store.alter_topic(topic.name, config=config)
        self._failed_beside |= topic.config != before
        topic.config |= config
        self._altered(topic)

    def _altered(self, topic: Topic) -> None:
        """A topic was altered by its name: if it has another life meanwhile, either may have been."""
        if self.model.topics.get(topic.name) is not topic:
            self._failed_beside = True

    def acl(self, store: Store, rng: random.Random) -> None:
        topic = self.topic(rng)
        if topic is None:
            return
        rule = Acl(BOB, "ALLOW", "READ", "TOPIC", topic.name, "LITERAL")
        if topic.name in self.permitted:
            store.acls.delete(rule)
            self.permitted.discard(topic.name)
        else:
            store.acls.create(rule)
            self.permitted.add(topic.name)

    # Rows -------------------------------------------------------------------------------------------------------------

    def _send(
        self, producer: Producer, rng: random.Random, txn: Txn | None, topic: Topic, first: int, count: int
    ) -> None:
        partition = None if topic.key is not None else rng.randrange(len(topic.parts))
        if topic.schema is None:
            for uid in range(first, first + count):
                key = (
                    b"k%d" % rng.randrange(rng.choice([3, 30]))
                    if rng.random() < 0.8 or topic.name in self._keyed
                    else None
                )
                value = None if rng.random() < 0.2 else rng.choice([b"", b"v", b"%d" % uid, b"x" * 300])
                headers = [("id", b"%d" % uid), *[("h", rng.choice([None, b"", b"x"]))] * rng.randint(0, 1)]
                moment = rng.choice([None, rng.randrange(1, self.clock())])
                shown = {"key": key, "value": value}
                shown["headers"] = [{"key": name, "value": text} for name, text in headers]  # type: ignore[assignment]
                if moment is not None:
                    shown["timestamp"] = datetime.fromtimestamp(moment / 1000, UTC)  # type: ignore[assignment]
                self.model.sent[uid] = Rec(uid, shown, txn, key, value is None, moment)
                producer.send(topic.name, value, key, partition, headers, moment)
            return
        columns = {
            "id": list(range(first, first + count)),
            "name": [f"n{rng.randrange(5)}" for _ in range(count)],
        }
        mark = topic.tombstone
        if mark is not None:
            marks = random.Random(f"{self.seed} tombstones of {first}")
            columns[mark] = [marks.choice([None, None, False, True]) for _ in range(count)]
        for each in topic.schema:
            if each.name not in columns:
                columns[each.name] = values.column(rng, each.type, count)
            if each.name in topic.rounded:  # A producer may not have read yet that the column holds doubles.
                columns[each.name] = pa.array(columns[each.name], pa.float32()).to_pylist()
        table = pa.table({each.name: pa.array(columns[each.name], each.type) for each in topic.schema})
        if topic.timestamp is not None:
            table = self._with_times(rng, table, topic.timestamp)
        table = table.cast(topic.schema)
        for row in table.to_pylist():
            time = None if topic.timestamp is None else row[topic.timestamp]
            moment = None if time is None else values.canonical(time) // 1000
            key = None if topic.key is None else row[topic.key]
            is_tombstone = mark is not None and row[mark] is True
            self.model.sent[row["id"]] = Rec(row["id"], row, txn, key, is_tombstone, moment)
        producer.send_table(topic.name, table, partition)

    def _with_times(self, rng: random.Random, table: pa.Table, name: str) -> pa.Table:
        """The rows with event times that topics may have."""
        at = table.schema.get_field_index(name)
        data_type = table.schema.field(at).type
        unit = 1_000 if data_type.unit == "us" else 1
        times = [None if rng.random() < 0.2 else rng.randrange(self.clock()) * unit for _ in range(len(table))]
        return table.set_column(at, name, pa.array(times, pa.int64()).cast(data_type))

    def _several(self, producer: Producer, rng: random.Random, txn: Txn | None, most: int) -> None:
        number = self.number * _PER_STEP
        for batch in range(1 if txn is None else rng.randint(1, 3)):
            topic = self.topic(rng)
            if topic is not None:
                self._send(producer, rng, txn, topic, number + 1 + 100 * batch, rng.randint(1, most))

    def _writer(self, store: Store, txn: Txn) -> Producer:
        return store.producer(txn.name, 900.0, linger=None, two_phase_commit=not txn.timed)

    def _transaction(self, store: Store, rng: random.Random, *, commit: bool) -> None:
        txn = Txn(f"w{self.number}")
        try:
            with self._writer(store, txn) as producer:
                producer.begin_transaction()
                self._several(producer, rng, txn, rng.choice([3, 12, 60]))
                if not commit or rng.random() < 0.5:
                    producer.flush()
                (producer.commit_transaction if commit else producer.abort_transaction)()
            txn.state = "committed" if commit else "aborted"
        except TxnStoreError:
            self._resolve(txn)
            raise

    def _resolve(self, txn: Txn) -> None:
        """Find out how a transaction has ended whose producer has failed."""
        self.eye.recover()
        try:
            state = self.eye.transaction(txn.name).state
        except TransactionalIdNotFoundError:
            state = None
        if state is TxnState.ONGOING:
            self.eye.abort_transaction(txn.name)
        txn.state = "committed" if state in {TxnState.PREPARE_COMMIT, TxnState.COMPLETE_COMMIT} else "aborted"

    def commit(self, store: Store, rng: random.Random) -> None:
        self._transaction(store, rng, commit=True)

    def abort(self, store: Store, rng: random.Random) -> None:
        self._transaction(store, rng, commit=False)

    def append(self, store: Store, rng: random.Random) -> None:
        with store.producer(linger=None) as producer:
            self._several(producer, rng, None, 8)

    def small(self, store: Store, rng: random.Random) -> None:
        """Many small commits, which are merged then."""
        number, topic = self.number * _PER_STEP, self.topic(rng)
        if topic is None:
            return
        with store.producer(linger=None) as producer:
            for each in range(rng.randint(3, 12)):
                self._send(producer, rng, None, topic, number + 1 + each, 1)
                producer.flush()

    def begin(self, store: Store, rng: random.Random) -> None:
        if len(self._open) >= 2:
            return
        txn = Txn(f"open{self.number}", timed=rng.random() < 0.5)
        producer = self._writer(store, txn)
        try:
            producer.begin_transaction()
            self._several(producer, rng, txn, 6)
            producer.flush()
        except TxnStoreError:
            with suppress(TxnStoreError):
                producer.close()
            self._resolve(txn)
            raise
        (process,) = (each for each in self.processes if each.store is store)
        self._open.append(_Open(producer, txn, process))

    def end(self, store: Store, rng: random.Random) -> None:
        """End the oldest open transaction."""
        if self._open:
            self._end(self._open.pop(0), commit=rng.random() < 0.7)

    def _end(self, opened: _Open, *, commit: bool) -> None:
        producer, txn = opened.producer, opened.txn
        try:
            with producer:
                (producer.commit_transaction if commit else producer.abort_transaction)()
            txn.state = "committed" if commit else "aborted"
        except TxnStoreError:
            self._resolve(txn)
            raise

    # Maintenance ------------------------------------------------------------------------------------------------------

    def merge(self, store: Store, rng: random.Random) -> None:
        store.topics()
        for chain in range(self.chains):
            for error in merge_quietly(store, chain).errors:
                raise error

    def compact(self, store: Store, rng: random.Random) -> None:
        topic = self.topic(rng)
        name = topic.name if topic is not None and rng.random() < 0.4 else None
        store.compact(name, force=rng.random() < 0.7, min_segments=rng.choice([1, 2]), expire=False)

    def retain(self, store: Store, rng: random.Random) -> None:
        self.clock.advance(rng.choice([0, 2_000, 2_000]))
        store.retain()

    def delete_records(self, store: Store, rng: random.Random) -> None:
        topic = self.topic(rng)
        if topic is None or "delete" not in topic.config.get("cleanup.policy", "delete"):
            return
        number = rng.randrange(len(topic.parts))
        part = topic.parts[number]
        stable = part.stable
        offsets = [offset + 1 for offset in part.past if stable is None or offset < stable]
        offsets = [offset for offset in offsets if offset > part.log_start]
        if offsets:
            until = rng.choice(offsets)
            tp = TopicPartition(topic.name, number)
            part.wanted = until
            found = store.delete_records({tp: until})[tp]
            part.log_start = max(part.log_start, found)
            again = self.model.topics.get(topic.name)
            if again is not None and number < len(again.parts):  # It may have been created again in the midst of this.
                again.parts[number].wanted = until
            if found < until:
                raise DifferenceError("delete_records", f"answers {found} instead of {until}")

    def sync(self, store: Store, rng: random.Random) -> None:
        self.published = None
        store.tables.sync()
        if len(self._taking) == 1 and self.reading is not None:
            self.published = self.reading.moments
        elif self._taking[0].name in READS:
            self.published = [self.model.moment()]
        if self.published is not None:
            names = [
                name
                for name in self.published[0]
                if all(name in each and each[name].has_table for each in self.published)
            ]
            versions = {name: int(self.objects.get(keys.table_hint(name))) for name in names}
            mixed = len(self.published) > 1 and self.reading is not None and self.reading.mixed
            self.publications.append(Publication(self.published, versions, mixed))

    def wait(self, store: Store, rng: random.Random) -> None:
        self.clock.advance(rng.choice([1, 1_000, 60_000]))

    def wait_long(self, store: Store, rng: random.Random) -> None:
        """Let leases and horizons pass; no transaction with a timeout is open then."""
        for opened in [opened for opened in self._open if opened.txn.timed]:
            self._open.remove(opened)
            self._end(opened, commit=rng.random() < 0.7)
        self.clock.advance(rng.choice([1, 5, 13]) * HOUR_MS)

    def checkpoint(self, store: Store, rng: random.Random) -> None:
        store.checkpoint()

    def keep(self, store: Store, rng: random.Random) -> None:
        """Keep a snapshot, which must show the same ever after."""
        moment = self.model.moment()
        self.kept.append(Kept(store.snapshot(), moment))


def _is_outdated(error: TxnStoreError) -> bool:
    """Whether records are for a topic that another process has created again (docs/kafka-differences.md)."""
    return isinstance(error, UnknownTopicOrPartitionError) and "records for the old topic are refused" in str(error)


def _is_unknown(error: duckdb.Error) -> bool:
    """Whether a query names a topic, or a column, that there is not."""
    return isinstance(error, duckdb.CatalogException | duckdb.BinderException)


#: What an injected step, and a step, may do.
CHANGES: dict[str, Callable[[History, Store, random.Random], object]] = {
    "create": History.create,
    "delete": History.delete,
    "recreate": History.recreate,
    "add_column": History.add_column,
    "widen": History.widen,
    "grow": History.grow,
    "policy": History.policy,
    "spare": History.spare,
    "acl": History.acl,
    "commit": History.commit,
    "abort": History.abort,
    "append": History.append,
    "small": History.small,
    "begin": History.begin,
    "end": History.end,
    "merge": History.merge,
    "compact": History.compact,
    "retain": History.retain,
    "delete_records": History.delete_records,
    "sync": History.sync,
    "checkpoint": History.checkpoint,
}
#: What only a step does.
ALONE: dict[str, Callable[[History, Store, random.Random], object]] = {
    "wait": History.wait,
    "wait_long": History.wait_long,
    "keep": History.keep,
}
#: The names of the steps that read; :mod:`tests.harness.readers.answers` adds them.
READS: dict[str, Callable[[History, Store, random.Random], object]] = {}
