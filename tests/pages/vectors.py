"""Makes the test vectors of the format, ``docs/format/vectors``: small stores, and what a reader answers of each.

``python -m tests.pages.vectors`` writes them. The same releases of txnstore and of Arrow make the same bytes, because
clocks and random numbers are fixed. ``make docs`` leaves the files alone: another release of Arrow writes other bytes
with the same meaning.
"""

from __future__ import annotations

import datetime as dt
import gzip
import io
import json
import random
import re
import sys
import tarfile
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa

from tests.harness.executors import DeferredExecutor, InlineExecutor, never
from tests.helpers import keys
from tests.helpers.connections import connection_of
from tests.helpers.format_answers import answers, objects_of
from tests.helpers.keys import FixedRuntime
from tests.helpers.later import append_entry, change
from tests.helpers.later import text as later_text
from tests.helpers.sessions import Gateway
from txnstore.chain.codec import FORMAT_VERSION
from txnstore.chain.keys import latest
from txnstore.compactor.compact.background import merge_small_commits
from txnstore.core.authorization.model import Acl
from txnstore.core.groups.commands import DeleteOffsets, Heartbeat, JoinGroup, LeaveGroup, StoreGeneration
from txnstore.core.groups.model import ClassicMember
from txnstore.core.maintenance import ReplaceSegments
from txnstore.core.model import Map, Outcome, ProducerIdentity, TopicPartition
from txnstore.core.routing import chain_of_group, chain_of_partition, chain_of_transactional_id
from txnstore.core.transactions.commands import EndTxn
from txnstore.producer import Producer
from txnstore.segment.codec import encode
from txnstore.segment.schema import RECORD_SCHEMA
from txnstore.storage.memory import MemoryStore
from txnstore.store import Store, create_on, open_on
from txnstore.testing import ManualClock

FOLDER = Path(__file__).parents[2] / "docs" / "format" / "vectors"
README = FOLDER / "README.md"
BEGIN_MS = 1_700_000_000_000
_DAY_MS = 86_400_000
_APART = {"inline.bytes": 0}
_OWN = {"inline.bytes": 0, "segment.own.bytes": 0}
_CLEANED = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": 0, "delete.retention.ms": 3_600_000}


class Story:
    """A store that is being made. Each step has its own time.

    Args:
        name: The seed of all ids.
        chains: The number of chains.
    """

    def __init__(self, name: str, chains: int = 1) -> None:
        self.name, self.clock = name, ManualClock(BEGIN_MS)
        self.bucket = MemoryStore(clock=self.clock)
        self.processes = 0
        self.store = create_on(self.bucket, chains, runtime=self.runtime())
        connection_of(self.store).merge_later = None
        #: What stays open to the end: a producer that is collected would abort, a consumer would leave.
        self.kept: list[Any] = []

    def runtime(self, background: Callable[[], Any] = InlineExecutor) -> FixedRuntime:
        self.processes += 1
        rng = random.Random(f"{self.name}/{self.processes}")
        return FixedRuntime(
            self.clock, self.clock.sleep, rng, InlineExecutor, background, spawn=never, process=lambda: "host-1"
        )

    def process(self, background: Callable[[], Any] = InlineExecutor) -> Store:
        """The store as another process opens it."""
        store = open_on(self.bucket, runtime=self.runtime(background))
        connection_of(store).merge_later = None  # Only `merge` does, in a step of its own.
        return store

    def step(self, ms: int = 1_000) -> None:
        self.clock.advance(ms)

    def commit(self, values: Mapping[str, list[str | None]], writer: str | None = None, *, abort: bool = False) -> None:
        """A transaction, or plain records without a writer's name: the values go to each partition of their topic."""
        with self.store.producer(writer) if writer else self.store.producer() as producer:
            if writer:
                producer.begin_transaction()
            self.send(producer, values)
            if abort:
                producer.flush()
                producer.abort_transaction()
            elif writer:
                producer.commit_transaction()
        self.step()

    def send(self, producer: Producer, values: Mapping[str, list[str | None]]) -> None:
        for topic, texts in values.items():
            for partition in range(self.store.topic(topic).partitions):
                for number, text in enumerate(texts):
                    value = None if text is None else f"{text} {partition}.{number}".encode()
                    producer.send(topic, value, b"k%d" % (number % 3), partition, timestamp=1_000 * partition + number)

    def begin(
        self, values: Mapping[str, list[str | None]], writer: str, store: Store | None = None, **options: Any
    ) -> Producer:
        producer: Producer = (store or self.process()).producer(writer, **options)
        producer.begin_transaction()
        self.send(producer, values)
        producer.flush()
        self.kept.append(producer)
        return producer

    def merge(self) -> None:
        """Merge the small commits of all chains, as happens in the background of a checkpoint."""
        connection = connection_of(self.process())
        for state in connection.view().states:
            parts = connection.parts_if_open()
            assert parts is not None
            assert not merge_small_commits(parts, state, Map()).errors
        self.step()


STORIES: dict[str, tuple[int, Callable[[Story], None]]] = {}


def story(chains: int = 1) -> Callable[[Callable[[Story], None]], Callable[[Story], None]]:
    def register(tell: Callable[[Story], None]) -> Callable[[Story], None]:
        STORIES[tell.__name__] = (chains, tell)
        return tell

    return register


@story()
def empty(_: Story) -> None:
    """A store without an entry."""


@story()
def inlined(s: Story) -> None:
    """Plain records, inlined in entries: nulls, headers, an empty partition."""
    s.store.create_topic("plain", 3)
    s.step()
    with s.store.producer() as producer:
        headers = [("h", b"1"), ("h", b"\xff"), ("none", None)]
        producer.send("plain", b"value", b"key", 0, headers, 1_000)
        producer.send("plain", None, None, 0, None, 0)
        producer.send("plain", b"", b"", 0, [], BEGIN_MS)
        producer.send("plain", b"\x00\xff", b"k", 1)
    s.step()
    for number in range(4):
        s.commit({"plain": [f"v{number}"]} if number % 2 else {"plain": ["a", "b"]})


@story()
def shared(s: Story) -> None:
    """Objects: segments of their own, and segments that batches of several partitions share, in all formats."""
    s.store.create_topic("apart", 4, config=_APART)
    s.store.create_topic("arrow", 3, config={**_APART, "segment.format": "arrow", "compression.type": "lz4"})
    s.store.create_topic("bare", 2, config={**_APART, "segment.format": "arrow", "compression.type": "uncompressed"})
    s.store.create_topic("own", 2, config=_OWN)
    s.store.create_topic("large", config={"compression.type": "uncompressed"})
    s.step()
    for number in range(3):
        s.commit({name: [f"{number}", None, "c"] for name in ("apart", "arrow", "bare", "own")}, "writer")
    with s.store.producer() as producer:  # More than 1 MiB: with checksums of its blocks.
        for number in range(24):
            producer.send("large", b"%d " % number + b"x" * 50_000, timestamp=number)
    s.step()
    s.commit({"apart": ["gone"], "own": ["gone"]}, "aborter", abort=True)
    s.commit({"apart": ["after"], "own": ["after"]})


_LAST_DAY = dt.datetime(1969, 12, 31, 23, 59, 59, 999_999)  # noqa: DTZ001 - without a zone
_NEW_YEAR = dt.datetime(2024, 1, 1)  # noqa: DTZ001
_STRUCT = pa.struct([("a", pa.int32()), ("b", pa.list_(pa.string()))])
_TYPES: dict[str, tuple[pa.DataType, list[Any]]] = {
    "bool": (pa.bool_(), [True, False]),
    "int8": (pa.int8(), [-128, 127]),
    "int16": (pa.int16(), [-32768, 32767]),
    "int32": (pa.int32(), [-(2**31), 2**31 - 1]),
    "int64": (pa.int64(), [-(2**63), 2**63 - 1]),
    "float": (pa.float32(), [0.5, float("nan")]),
    "double": (pa.float64(), [0.1, float("-inf")]),
    "string": (pa.string(), ["Grüße", ""]),
    "large_string": (pa.large_string(), ["x", "y"]),
    "binary": (pa.binary(), [b"\x00\xff", b""]),
    "large_binary": (pa.large_binary(), [b"x", b"y"]),
    "fixed": (pa.binary(4), [b"abcd", b"\x00\x00\x00\x01"]),
    "date": (pa.date32(), [dt.date(1969, 12, 31), dt.date(2024, 2, 29)]),
    "local_ms": (pa.timestamp("ms"), [_LAST_DAY.replace(microsecond=999_000), _NEW_YEAR]),
    "local_us": (pa.timestamp("us"), [_LAST_DAY, _NEW_YEAR]),
    "utc_ms": (pa.timestamp("ms", "UTC"), [_NEW_YEAR.replace(tzinfo=dt.UTC), dt.datetime(1, 1, 1, tzinfo=dt.UTC)]),
    "utc_us": (pa.timestamp("us", "UTC"), [_LAST_DAY.replace(tzinfo=dt.UTC), dt.datetime(9999, 12, 31, tzinfo=dt.UTC)]),
    "decimal": (pa.decimal128(10, 2), [Decimal("-12345678.90"), Decimal("0.01")]),
    "list": (pa.list_(pa.int32()), [[1, None, 3], []]),
    "struct": (_STRUCT, [{"a": 1, "b": ["x", None]}, {"a": None, "b": None}]),
    "map": (pa.map_(pa.string(), pa.int64()), [[("x", 1), ("y", None)], []]),
}


@story()
def typed(s: Story) -> None:
    """Each type of a column, and a schema that changes: columns are added, types are widened."""
    s.store.create_topic("types", 1, pa.schema([(name, kind) for name, (kind, _) in _TYPES.items()]), key="string")
    before = pa.schema(
        [("id", pa.int8()), ("ratio", pa.float32()), ("price", pa.decimal128(6, 2)), ("name", pa.string())]
    )
    s.store.create_topic("evolving", 2, before, key="name", config=_APART)
    s.step()
    schema = s.store.topic("types").schema
    columns = {name: pa.array([*values, None], kind) for name, (kind, values) in _TYPES.items()}
    for _ in range(2):
        with s.store.producer() as producer:
            producer.send_table("types", pa.table(columns, schema=schema))
        s.step()

    def rows(first: int, **more: Any) -> None:
        with s.store.producer() as producer:
            for number in range(first, first + 3):
                row = {"id": number, "ratio": number / 2, "price": Decimal(number) / 4, "name": f"n{number}", **more}
                producer.send("evolving", row)
        s.step()

    rows(0)
    widened = [("note", pa.string()), ("id", pa.int64()), ("price", pa.decimal128(12, 2)), ("ratio", pa.float64())]
    s.store.alter_topic("evolving", schema=pa.schema([*widened, ("name", pa.large_string())]))
    s.step()
    rows(3, note="new")
    s.process().compact("evolving", force=True)
    s.step()
    s.store.alter_topic("evolving", schema=s.store.topic("evolving").schema.append(pa.field("last", pa.int32())))  # type: ignore[union-attr]
    rows(6, last=1)


@story()
def times(s: Story) -> None:
    """Event times: of rows, of appends, of topics whose rule was altered, of columns of each unit, rounded down."""
    s.store.create_topic("appended", 2, config={"message.timestamp.type": "LogAppendTime"})
    s.store.create_topic("created", 2)
    fields = {"ms": pa.timestamp("ms"), "us": pa.timestamp("us", "UTC"), "number": pa.int64()}
    for name, kind in fields.items():
        s.store.create_topic(f"by_{name}", 1, pa.schema([("at", kind), ("n", pa.int32())]), timestamp="at")
    s.store.create_topic("by_none", 1, pa.schema([("n", pa.int32())]))
    s.step()

    def rows() -> None:
        s.commit({"appended": ["a", "b"], "created": ["a", "b"]})
        for name, kind in fields.items():
            moments = (
                pa.array([-1, None, 1_700_000_000_001_999], pa.int64()) if name != "ms" else pa.array([-1, None, 5])
            )
            with s.store.producer() as producer:
                table = pa.table(
                    {
                        "at": (pa.array([-1, None, 5]) if name == "number" else moments).cast(kind),
                        "n": pa.array([1, 2, 3], pa.int32()),
                    }
                )
                producer.send_table(f"by_{name}", table)
            s.step()
        with s.store.producer() as producer:
            producer.send("by_none", {"n": 1})
            producer.send("by_none", {"n": 2})
        s.step()

    rows()
    s.store.alter_topic("appended", config={"message.timestamp.type": "CreateTime"})
    s.store.alter_topic("created", config={"message.timestamp.type": "LogAppendTime"})
    s.step()
    rows()
    s.process().compact("by_us", force=True)
    s.process().compact("created", force=True)
    s.step()
    rows()


@story()
def transactions(s: Story) -> None:
    """Committed, aborted, open and prepared transactions, and records behind them."""
    s.store.create_topic("t", 2)
    s.store.create_topic("u", 2, config=_APART)
    s.store.create_topic("held", 1)
    s.step()
    s.commit({"t": ["c1"], "u": ["c1"]}, "writer")
    s.commit({"t": ["x1"], "u": ["x1"]}, "aborter", abort=True)
    s.commit({"t": ["c2", "c2"]}, "writer")
    first, second = s.begin({"t": ["open first"]}, "first"), s.begin({"t": ["open second"], "u": ["open"]}, "second")
    s.step()
    s.commit({"t": ["behind"], "u": ["behind"]})
    s.commit({"t": ["behind", "aborted"]}, "aborter", abort=True)
    second.abort_transaction()
    s.step()
    first.commit_transaction()
    s.step()
    for writer in ("again", "again"):  # Its next transaction: an epoch more.
        s.commit({"t": [writer]}, writer)
    s.begin({"u": ["stays open"]}, "open")
    s.begin({"held": ["prepared"]}, "prepared", two_phase_commit=True).prepare_transaction()
    s.step()
    s.commit({"u": ["behind what is open"], "held": ["behind"]}, "writer")


@story(chains=3)
def chains(s: Story) -> None:
    """Several chains: undecided, decided and incomplete transactions; copies of topics; offsets of a deleted topic."""
    for name in ("t", "u", "again"):
        s.store.create_topic(name, 3, config=_APART if name == "u" else {})
        s.step()
    s.commit({"t": ["c1"], "u": ["c1"], "again": ["old"]}, "writer")
    s.commit({"t": ["x1"], "u": ["x1"]}, "aborter", abort=True)
    for group in ("g1", "g2"):
        with s.store.producer("offsets") as producer, producer.transaction():
            producer.send_offsets({TopicPartition("t", 0): 1, TopicPartition("again", 1): 1}, group)
        s.step()
    s.store.delete_topic("again")
    s.step()
    s.store.create_topic("again", 2)
    s.step()
    s.commit({"again": ["new"]})
    for outcome in ("commit", "abort"):  # The process dies before the markers of other chains.
        store = s.process(DeferredExecutor)
        producer = s.begin({"t": [f"decided {outcome}"], "u": [f"decided {outcome}"]}, f"decided-{outcome}", store)
        producer.send_offsets({TopicPartition("t", 1): 2, TopicPartition("u", 2): 1}, f"decided-{outcome}")
        producer.flush()
        (producer.commit_transaction if outcome == "commit" else producer.abort_transaction)()
        s.step()
    open_ = s.begin({"t": ["open"], "u": ["open"]}, "open")
    open_.send_offsets({TopicPartition("t", 2): 1}, "pending")
    open_.flush()
    s.begin({"u": ["prepared"]}, "prepared", two_phase_commit=True).prepare_transaction()
    s.step()
    s.commit({"t": ["behind"], "u": ["behind"], "again": ["behind"]}, "writer")
    s.store.checkpoint()


@story()
def groups(s: Story) -> None:
    """Groups: members, static ones, pending, expired and deleted offsets, plain commits behind pending ones."""
    s.store.create_topic("t", 4)
    s.store.create_topic("again", 1)
    s.step()
    s.commit({"t": ["a", "b", "c"], "again": ["a"]})
    s.commit({"t": ["w"]}, "forgotten")
    s.process().reset_offsets("old", {TopicPartition("t", 0): 1})
    s.process().reset_offsets("removed", {TopicPartition("t", 0): 2})
    s.process().reset_offsets("mixed", {TopicPartition("t", 0): 1, TopicPartition("again", 0): 1})
    s.step(8 * _DAY_MS)
    s.process().reset_offsets("mixed", {TopicPartition("again", 0): 0})  # The other one of the group expires.
    with s.process().producer("copier") as producer, producer.transaction():
        producer.send_offsets({TopicPartition("t", 1): 2, TopicPartition("t", 2): 3}, "copiers")
    s.step()
    s.process().expire()
    s.step()
    s.process().reset_offsets("removed", {TopicPartition("t", 0): 2, TopicPartition("again", 0): 0})
    s.process().reset_offsets("kept", {TopicPartition("t", 3): 1, TopicPartition("again", 0): 1})
    s.process().delete_group("removed")
    s.store.delete_topic("again")
    s.store.create_topic("again", 1)
    s.step()
    for instance in (None, "static", None):
        consumer = s.process().consumer(["t"], "readers", group_instance_id=instance)
        s.kept.append(consumer)
        for each in [each for each in s.kept for _ in range(2)]:
            each.poll()
            s.step()
    s.kept[0].commit()
    s.kept.pop(0).close()
    s.step()
    pending = s.begin({"t": ["p"]}, "pending")
    pending.send_offsets({TopicPartition("t", 0): 3, TopicPartition("t", 1): 1}, "copiers")
    pending.send_offsets({TopicPartition("t", 0): 1}, "others")
    pending.flush()
    s.step()
    s.process().reset_offsets("others", {TopicPartition("t", 0): 2})
    s.store.checkpoint()
    for end in ("commit", "abort"):
        producer = s.begin({"t": [end]}, end)
        producer.send_offsets({TopicPartition("t", 3): 1 if end == "commit" else 2}, "ended")
        (producer.commit_transaction if end == "commit" else producer.abort_transaction)()
        s.step()


@story()
def compacted(s: Story) -> None:
    """Merged, settled and cleaned partitions, with tombstones, aborted and open transactions in between."""
    s.store.create_topic("merged", 2, config=_APART)
    s.store.create_topic("settled", 3)
    s.store.create_topic("cleaned", 2, config=_CLEANED)
    s.step()
    for number in range(3):
        s.commit({"merged": [f"m{number}"], "settled": [f"s{number}"]}, "writer")
        s.commit({"merged": ["gone"], "settled": ["gone"], "cleaned": ["gone"]}, "aborter", abort=True)
        s.commit({"cleaned": [f"c{number}", None if number == 1 else "x", f"c{number}"]}, "writer")
    s.store.checkpoint()
    s.merge()
    s.process().compact("merged", force=True)
    s.step()
    s.process().compact("cleaned", force=True)
    s.step()
    for number in range(3, 6):
        s.commit({"settled": [f"s{number}", "t"]}, "writer")
        s.commit({"cleaned": [f"c{number}", None]})
    s.merge()
    s.begin({"settled": ["open"], "cleaned": ["open"]}, "open")
    s.process().compact("cleaned", force=True)
    s.step(_DAY_MS)
    s.commit({"cleaned": ["late", "late"], "settled": ["late"]})
    s.process().compact("cleaned", force=True)
    s.store.checkpoint()
    s.commit({"settled": ["last"]})


@story()
def marked(s: Story) -> None:
    """A cleaned topic with columns, one of which marks tombstones: they are rows, and their horizons are not shown."""
    schema = pa.schema([("id", pa.int64()), ("name", pa.string()), ("gone", pa.bool_())])
    s.store.create_topic("t", 2, schema, "id", config={**_CLEANED, "tombstone.column": "gone"})
    s.step()
    for number in range(3):
        with s.store.producer("writer") as producer, producer.transaction():
            for key in range(6):
                producer.send("t", {"id": key, "name": f"n{number}", "gone": [None, False, key == 5][number]})
            producer.send("t", None, key=number)
        s.step()
    s.process().compact("t", force=True)
    s.step(_DAY_MS)
    with s.store.producer() as producer:
        producer.send("t", None, key=3)
    s.step()
    s.process().compact("t", force=True)
    s.store.checkpoint()
    with s.store.producer() as producer:
        producer.send_table("t", [{"id": 4, "gone": True}, {"id": 5, "name": "again"}])


@story()
def deleted(s: Story) -> None:
    """Deleted records, deleted topics, and topics that are created again; a batch that the log start cuts."""
    for name in ("t", "gone", "again"):
        s.store.create_topic(name, 2, config=_APART if name == "gone" else {})
    s.step()
    s.commit({"t": ["a", "b", "c", "d"], "gone": ["a"], "again": ["old", "old"]}, "writer")
    s.commit({"t": ["x"], "again": ["x"]}, "aborter", abort=True)
    s.commit({"t": ["e"]}, "writer")
    s.store.delete_records({TopicPartition("t", 0): 2, TopicPartition("t", 1): -1})
    s.step()
    s.store.delete_topic("gone")
    s.store.delete_topic("again")
    s.step()
    s.store.create_topic("again", 3)
    s.step()
    s.commit({"t": ["f"], "again": ["new"]}, "writer")
    s.store.delete_records({TopicPartition("t", 0): 7})
    s.step()
    s.store.checkpoint()
    s.commit({"t": ["g"]})


@story(chains=2)
def history(s: Story) -> None:
    """Checkpoints and their index files, boundaries, deleted entries. One chain has no hint, one another store's."""
    s.store.create_topic("t", 2)
    s.store.create_topic("merged", 2, config=_APART)
    s.step()
    for number in range(12):
        s.commit({"t": [f"v{number}"], "merged": [f"v{number}"]}, "writer")
        if number % 3 == 2:
            s.process().compact("merged", force=True)
            s.store.checkpoint()
    for number in range(3):
        s.step(_DAY_MS)
        s.process().checkpoint()
        s.process().vacuum(older_than=60, history=_DAY_MS // 2_000)
        s.commit({"t": [f"late{number}"]}, "writer")
    s.process().checkpoint()
    s.commit({"t": ["last"], "merged": ["last"]}, "writer")
    assert not s.bucket.list(keys.entry(0, 1))
    s.bucket.delete([latest(0)])
    change(s.bucket, latest(1), store_id="ffffaaaa-0000-7000-8000-00000000cafe", sequence=3, head=9_999)


@story()
def compressed(s: Story) -> None:
    """Every compression that a segment may have, and columns with a dictionary."""
    for segment_format, compressions in (
        ("parquet", ("zstd", "lz4", "snappy", "gzip", "uncompressed")),
        ("arrow", ("zstd", "lz4", "uncompressed")),
    ):
        for compression in compressions:
            config = {**_APART, "segment.format": segment_format, "compression.type": compression}
            name = f"{segment_format}.{compression}"
            s.store.create_topic(name, config=config)
            s.commit({name: ["long " * 100] * 3})
    s.store.create_topic("repeated", config=_APART)
    with s.store.producer() as producer:
        for number in range(1_000):
            producer.send("repeated", b"same" if number % 3 else None, b"key", timestamp=number)
    s.step()


@story()
def takeovers(s: Story) -> None:
    """Groups: plain commits behind pending ones that end, a static member that takes over, leases that are renewed."""
    s.store.create_topic("t", 4)
    s.step()
    s.commit({"t": ["a", "b", "c"]})
    for end in ("commit", "abort"):
        producer = s.begin({"t": [end]}, end)
        producer.send_offsets({TopicPartition("t", 0): 1, TopicPartition("t", 1): 1}, end)
        producer.flush()
        s.step()
        s.process().reset_offsets(end, {TopicPartition("t", 0): 2})  # It stays: it was committed later.
        (producer.commit_transaction if end == "commit" else producer.abort_transaction)()
        s.step()
    consumers = []
    for instance in (None, "static"):
        consumers.append(s.process().consumer(["t"], "readers", group_instance_id=instance))
        for each in consumers * 2:
            each.poll()
            s.step()
    s.kept += [*consumers, s.process().consumer(["t"], "readers", group_instance_id="static")]
    s.kept[-1].poll()  # It takes over the partitions of the member of that name.
    s.step(20_000)
    consumers[0].poll()
    s.step()
    s.process().checkpoint()


@story()
def wide(s: Story) -> None:
    """An index file with two row groups, of which one partition has rows in both; several ranges of removed batches."""
    s.store.create_topic("cut", 1)
    s.store.create_topic("wide", 180)
    s.step()
    for number in range(3):
        s.commit({"cut": [f"c{number}"], "wide": [None]}, "writer")
    s.commit({"cut": ["last"]})
    connection, cut = connection_of(s.process()), TopicPartition("cut", 0)
    for batch in [*connection.view().partitions[cut].batches][::2]:
        connection.submit(ReplaceSegments(cut, (batch,), (), clean_until=batch.limit))
        s.step()
    s.process().checkpoint()


@story()
def vacuumed(s: Story) -> None:
    """What a vacuum announces and forgets: released objects, entries that were released, an upload without a batch."""
    hour = 3_600_000
    s.store.create_topic("apart", 3, config=_APART)
    s.store.create_topic("inlined", 2)
    s.step()
    for number in range(3):
        s.commit({"apart": [f"a{number}"]}, "writer")
        s.commit({"inlined": [f"i{number}"]}, "writer")
    s.bucket.put(keys.segment("apart", 0, "018bcfe5-0000-7000-8000-000000000bad", "parquet"), b"never committed")
    for last, names in ((2, ("apart", "inlined")), (4, ("apart",)), (4, ("inlined",))):
        s.store.delete_records({TopicPartition(name, number): last for name in names for number in range(2)})
        s.step(2 * hour)
    s.process().checkpoint()
    s.store.delete_records({TopicPartition("apart", 2): 2})  # Now no batch names the first object.
    s.step(_DAY_MS)
    s.process().vacuum(older_than=3_600, history=1_000_000)
    s.process().checkpoint()
    s.commit({"apart": ["b"]}, "writer")
    s.commit({"inlined": ["b"]}, "writer")
    s.store.delete_records({TopicPartition("apart", 2): 4, TopicPartition("inlined", 0): 6})
    s.step(7 * _DAY_MS + hour)
    for _ in range(2):
        s.process().vacuum(older_than=3_600, history=10_000_000)
        s.step(hour)
    s.commit({"apart": ["c"]})
    s.store.delete_records({TopicPartition("apart", 1): 6, TopicPartition("inlined", 1): 4})
    s.step()
    s.process().checkpoint()


@story(chains=3)
def identities(s: Story) -> None:
    """Producers that go on: kept transactions, versions of jobs, partitions that join late, decisions over old data."""
    for name in ("t", "u", "open", "more"):
        s.store.create_topic(name, 3)
    s.step()
    s.begin({"open": ["kept"]}, "kept", two_phase_commit=True).prepare_transaction()
    ended = s.begin({"t": ["kept, ended"]}, "kept-ended", two_phase_commit=True)
    prepared = ended.prepare_transaction()
    s.step()
    for name in ("kept", "kept-ended"):
        s.kept.append(s.process().producer(name, keep_prepared=True))
        s.step()
    s.store.checkpoint()
    s.kept[-1].complete_transaction(prepared)
    s.step()
    for version in (3, 4):
        job = s.begin({"t": [f"version {version}"]}, "job")
        identity = ProducerIdentity(job.producer_id, job.epoch, "job")
        connection_of(s.process()).submit(EndTxn(identity, Outcome.COMMIT, versions=(("scope", version),)))
        s.step()
    s.kept.append(s.process().producer("job"))  # It is initialized again, and has the version still.
    s.commit({"u": ["behind"]})
    growing = s.begin({"open": ["first"]}, "growing")
    s.step(5_000)
    s.send(growing, {"more": ["joined later"]})
    growing.flush()
    s.step()
    # The group and the producer of its transaction belong to different chains.
    assert chain_of_group("g", 3) != chain_of_transactional_id("late", 3)
    with s.process().producer("late") as first, first.transaction():
        s.send(first, {"t": ["committed"], "u": ["committed"]})
    s.process().reset_offsets("g", {TopicPartition("t", 2): 1})
    s.step()
    for outcome in ("abort", "commit"):  # Of the same producers, whose earlier records stay visible.
        name = "late" if outcome == "commit" else "aborted"
        s.commit({"t": ["before"], "u": ["before"]}, name)
        producer = s.begin({"t": [outcome], "u": [outcome]}, name, s.process(DeferredExecutor))
        producer.send_offsets({TopicPartition("t", number): 2 for number in range(3)}, "g")
        producer.flush()
        s.step()
        s.process().reset_offsets("g", {TopicPartition("t", 0): 5 if outcome == "commit" else 4})
        (producer.commit_transaction if outcome == "commit" else producer.abort_transaction)()
        s.step()
    s.process().checkpoint()


@story(chains=2)
def authorization(s: Story) -> None:
    """Rules that come and go, entries with who asked for them, and a chain that follows from the rules of chain 0."""
    rules = [
        Acl("User:billing", "ALLOW", "WRITE", "TOPIC", "invoices", "PREFIXED"),
        Acl("User:billing", "ALLOW", "WRITE", "TRANSACTIONAL_ID", "billing"),
        Acl("User:*", "ALLOW", "READ", "TOPIC", "*"),
        Acl("User:mallory", "DENY", "ALL", "TOPIC", "*"),
    ]
    s.store.create_topic("invoices", 2)
    s.step()
    s.store.acls.create(rules[:2])
    s.step()
    s.store.acls.enable("User:ANONYMOUS", allow_if_no_acl=True)
    s.step()
    s.store.acls.create(rules[1:])
    s.step()
    s.process().checkpoint()
    s.commit({"invoices": ["a"]}, "billing")
    with open_on(s.bucket, principal="User:billing", runtime=s.runtime()) as billing:
        connection_of(billing).merge_later = None
        with billing.producer("billing") as producer, producer.transaction():
            s.send(producer, {"invoices": ["b"]})
    s.step()
    s.store.acls.delete(rules[2])
    s.step()
    s.store.acls.enable(["User:ANONYMOUS", "User:operator"])
    s.step()
    s.commit({"invoices": ["c"]}, "billing")
    s.process().checkpoint()
    s.store.acls.disable()
    s.step()
    s.commit({"invoices": ["d"]})


@story(chains=2)
def gateways(s: Story) -> None:
    """Groups whose members a gateway keeps: generations, a static member that is replaced, offsets that are deleted."""
    s.store.create_topic("t", 3)
    s.step()
    first = _classic_member("first-1", "first", b"\x00\x01\xfb\xff")
    second = _classic_member("second-1", None, b"")
    generations = [
        StoreGeneration("g", -1, 1, "consumer", "range", "first-1", (first, second)),
        StoreGeneration("g", 1, 2, "consumer", "range", "second-1", (second, first)),
        StoreGeneration(
            "g", 2, 2, "consumer", "range", "second-1", (replace(first, member_id="first-2"), second), ("first-1",)
        ),
        StoreGeneration("g", 2, 3, "consumer", None, None, ()),
    ]
    for command in generations:
        connection_of(s.process()).submit(command)
        s.step()
        s.process().checkpoint()
    s.process().reset_offsets("g", {TopicPartition("t", number): 0 for number in range(3)})
    s.step()
    pending = s.begin({"t": ["a"]}, "writer")
    pending.send_offsets({TopicPartition("t", 0): 1, TopicPartition("t", 1): 1}, "g")
    pending.flush()
    s.step()
    connection_of(s.process()).submit(DeleteOffsets("g", (TopicPartition("t", 0), TopicPartition("t", 2))))
    s.step()
    pending.commit_transaction()
    s.step()
    s.process().checkpoint()
    _reconcile(s)
    for name in ("deleted", "native"):
        connection_of(s.process()).submit(StoreGeneration(name, -1, 1, "connect", "default", "m", (_worker("m"),)))
        connection_of(s.process()).submit(StoreGeneration(name, 1, 2, "connect", None, None, ()))
        s.step()
    s.process().checkpoint()
    s.process().delete_group("deleted")
    consumer = s.process().consumer(["t"], group="native")
    s.kept.append(consumer)
    consumer.poll()
    s.step()
    s.process().checkpoint()


@story(chains=2)
def sessions(s: Story) -> None:
    """One epoch of a client for many transactions: in both chains, one that goes on, one that an init has ended."""
    s.store.create_topic("t", 3)
    s.step()
    places = [TopicPartition("t", number) for number in range(3)]
    clients = [Gateway([s.store], name) for name in ("goes-on", "ended", "open")]
    for number in range(4):
        for client in clients:
            client.add(*places[number % 2 :])
            client.produce(*(client.batch(tp, f"{number}a", f"{number}b") for tp in places[number % 2 :]))
            s.step()
            client.end(Outcome.ABORT if number == 2 else Outcome.COMMIT)
            s.step()
        if number == 1:
            s.process().checkpoint()
    clients[1] = Gateway([s.store], "ended")
    for client in clients[1:]:
        client.add(places[0])
        client.produce(client.batch(places[0], "last"))
        s.step()
    clients[1].end()
    s.step()
    s.process().checkpoint()


def _reconcile(s: Story) -> None:
    """A group of the kind ``consumer``: a member that joins gets partitions when the other one has released them."""
    store = connection_of(s.process())
    store.submit(JoinGroup("c", "one", (("t", 3),), kind="consumer"))
    s.step()
    store.submit(JoinGroup("c", "two", (("t", 3),), kind="consumer", instance_id="two"))
    s.step()
    s.process().checkpoint()
    store.submit(Heartbeat("c", "one", (TopicPartition("t", 0), TopicPartition("t", 1))))
    store.submit(JoinGroup("c", "two-2", (("t", 3),), kind="consumer", instance_id="two"))
    s.step()
    s.process().checkpoint()
    store.submit(LeaveGroup("c", "one"))
    s.step()
    s.process().checkpoint()


def _worker(member_id: str) -> ClassicMember:
    return _classic_member(member_id, None, b"worker")


def _classic_member(member_id: str, instance_id: str | None, data: bytes) -> ClassicMember:
    return ClassicMember(member_id, instance_id, "client", "/127.0.0.1", 45_000, 300_000, data, data[::-1])


class _ByHand:
    """Writes entries that the fold defines, and that no release writes, or only with a race.

    Args:
        story: Its store, with two chains.
    """

    def __init__(self, story: Story) -> None:
        self.story, self.uploads = story, 0

    def entry(self, chain: int, *events: dict[str, Any], **members: Any) -> None:
        self.story.step()
        append_entry(self.story.bucket, events, chain=chain, **{"timestamp": self.story.clock(), **members})

    def segments(self, topic: str, *tables: pa.Table, explicit_offsets: bool = False) -> list[dict[str, Any]]:
        """Arrow files in one object: one that is all of it, or several, each with its first byte."""
        self.uploads += 1
        key = keys.segment(topic, 0, f"018bcfe5-0000-7000-8000-{self.uploads:012d}", "arrow")
        encoded, first, named = [encode(table, "arrow", "none") for table in tables], 0, []
        for each in encoded:
            place = first if len(encoded) > 1 else None
            named.append({**asdict(each.segment(key, explicit_offsets)), "first_byte": place})
            first += each.size
        self.story.bucket.put(key, b"".join(each.data for each in encoded))
        return named

    def rows(self, *values: str, **columns: pa.Array) -> pa.Table:
        """Kafka records, whose times are 1, 2, and so on."""
        none = pa.nulls(len(values))
        data = {"key": none, "value": [value.encode() for value in values], "headers": none}
        table = pa.table({**data, "timestamp": [*range(1, len(values) + 1)]}).cast(RECORD_SCHEMA)
        for name, column in columns.items():
            table = table.append_column(name, column)
        return table

    def append(
        self, place: tuple[str, int], base_offset: int, segment: dict[str, Any], producer: tuple[int, int] = (-1, -1),
        *, sequence: int = -1, transactional: bool = False,
    ) -> dict[str, Any]:  # fmt: skip
        rows = {"partition": place[1], "base_offset": base_offset, "records": segment["rows"], "first_row": 0}
        rows |= {"base_sequence": sequence, "min_timestamp": 1, "max_timestamp": segment["rows"]}
        return {
            "type": "BatchesAppended", "topic": place[0], "segment": segment, "producer_id": producer[0],
            "epoch": producer[1], "transactional": transactional, "timestamp_type": "CreateTime", "batches": [rows],
        }  # fmt: skip


@story(chains=2)
def unusual(s: Story) -> None:
    """Made by hand, what the rules define and no release writes: late clocks and epochs, a column of times."""
    by_hand = _ByHand(s)
    for name in ("t", "again", "open"):
        s.store.create_topic(name, 3)
        s.step()
    s.commit({"t": ["a"], "again": ["a"], "open": ["a"]}, "writer")
    s.process().checkpoint()
    there = 1
    place, log_start, aborted = ("t", 0), ("open", 1), ("t", 2)
    assert chain_of_partition(TopicPartition(*place), 2) == chain_of_partition(TopicPartition(*aborted), 2) == there
    assert chain_of_partition(TopicPartition(*log_start), 2) == there
    plain, foreign = (1 << 32) + 50, 40

    # The clock of a writer is behind: its batch has the time of the entry before. An epoch begins the window again.
    first, *others = by_hand.segments("t", *(by_hand.rows(f"w{number}") for number in range(4)))
    by_hand.entry(there, by_hand.append(place, 2, first), timestamp=BEGIN_MS)
    for number, (segment, epoch) in enumerate(zip(others, (0, 0, 1), strict=True)):
        by_hand.entry(there, by_hand.append(place, 3 + number, segment, (plain, epoch), sequence=number % 2))

    # Fences: an older epoch changes the time alone, the same one also `held`.
    def held(producer_id: int, epoch: int) -> dict[str, Any]:
        return {"type": "TxnPrepared", "transactional_id": "x", "producer_id": producer_id, "epoch": epoch}

    def fenced(producer_id: int, epoch: int, *partitions: tuple[str, int]) -> dict[str, Any]:
        names = {"partitions": [list(tp) for tp in partitions], "groups": []}
        return {"type": "ProducerFenced", "producer_id": producer_id, "epoch": epoch, **names}

    by_hand.entry(there, *(held(foreign + number, 5) for number in range(4)))
    by_hand.entry(there, held(foreign, 4), fenced(foreign + 1, 4), fenced(foreign + 2, 5))
    by_hand.entry(there, held(foreign + 2, 4))

    # A batch outside of the transaction does not keep an entry of the aborted index.
    both = by_hand.segments("t", by_hand.rows("in it"), by_hand.rows("not in it"), by_hand.rows("kept"))
    marker = {"type": "MarkerWritten", "topic": aborted[0], "partition": aborted[1], "outcome": "ABORT"}
    by_hand.entry(
        there,
        by_hand.append(aborted, 2, both[0], (foreign + 4, 0), sequence=0, transactional=True),
        by_hand.append(aborted, 3, both[1], (foreign + 4, 0), sequence=1),
        {**marker, "producer_id": foreign + 4, "epoch": 1, "offset": 4},
        by_hand.append(aborted, 5, both[2], (foreign + 5, 0), sequence=0, transactional=True),
        {**marker, "producer_id": foreign + 5, "epoch": 1, "offset": 6},
    )
    replaced = {"type": "SegmentsReplaced", "topic": aborted[0], "partition": aborted[1], "added": []}
    by_hand.entry(there, {**replaced, "removed": [2], "clean_until": 3})

    # A compacted batch: neither the column of the topic counts, nor the time of the entry.
    times = pa.array([9, 7, 99], pa.timestamp("ms", "UTC"))
    table = by_hand.rows("x", "y", "z", _offset=pa.array([3, 4, 5], pa.int64()), _timestamp=times)
    (segment,) = by_hand.segments("t", table, explicit_offsets=True)
    batch = {"base_offset": 3, "limit": 6, "records": 3, "segment": segment, "min_timestamp": 7, "max_timestamp": 99}
    batch |= {
        "first_row": 0,
        "producer_id": -1,
        "epoch": -1,
        "base_sequence": -1,
        "transactional": False,
        "timestamp_type": "CreateTime",
    }
    compacted = {"type": "SegmentsReplaced", "topic": place[0], "partition": place[1], "removed": [3, 4, 5]}
    by_hand.entry(there, {**compacted, "added": [{**batch, "appended_at": BEGIN_MS}]})

    # The log start is above the first offset of an open transaction, and cuts its batch.
    (segment, last) = by_hand.segments("open", by_hand.rows("o0", "o1", "o2"), by_hand.rows("behind"))
    by_hand.entry(
        there,
        by_hand.append(log_start, 2, segment, (foreign + 6, 0), sequence=0, transactional=True),
        by_hand.append(log_start, 5, last),
        {"type": "LogStartMoved", "topic": log_start[0], "partition": log_start[1], "offset": 4},
    )
    by_hand.entry(there, fenced(foreign + 6, 1, log_start))  # It stays open.

    # Offsets of a topic that is deleted: those without an id and with its id go, those of another topic stay.
    topic = s.store.topic("again")
    ids = [None, topic.topic_id, "018bcfe5-0000-7000-8000-000000000001"]
    offsets = [
        {"topic": "again", "partition": number, "offset": 1, "metadata": "", "leader_epoch": -1, "topic_id": topic_id}
        for number, topic_id in enumerate(ids)
    ]
    for group in ("g0", "g1"):
        committed = {"type": "OffsetsCommitted", "group": group, "offsets": offsets, "member_id": ""}
        owner = chain_of_group(group, 2)
        by_hand.entry(owner, *({**committed, "producer_id": each, "epoch": 0} for each in (-1, foreign + 7)))
    s.process().delete_topic("again")
    s.step()
    s.process().create_topic("again", 3)
    s.step()
    # Who deletes a topic dies after the first step.
    by_hand.entry(there, {"type": "TopicClosed", "name": "open", "revision": 3})
    lease = {"version": FORMAT_VERSION, "owner": "a-compactor", "duration_ms": 60_000, "partitions": [list(place)]}
    s.bucket.put(keys.KEYS.lease(1), later_text(lease))
    s.process().checkpoint()
    s.step(2 * _DAY_MS)
    s.process().expire()  # Most fences go.
    s.process().checkpoint()


@story()
def later(s: Story) -> None:
    """What a later release writes: members and events that this one does not know, and a feature for writers."""
    s.store.create_topic("t")
    s.step()
    s.commit({"t": ["before", "before"]})
    append_entry(s.bucket, more={"deep": [1]})
    append_entry(s.bucket, write=["signed-records"])
    last = [*s.bucket.list(keys.entries(0))][-1].key
    events = json.loads(s.bucket.get(last))["events"]
    append_entry(
        s.bucket, [*events, {"type": "LogStartMoved", "topic": "t", "partition": 0, "offset": 1, "why": "more"}]
    )


@story()
def refused(s: Story) -> None:
    """A later release has written an entry with a feature that readers must know: this store cannot be read."""
    s.store.create_topic("t")
    s.step()
    s.commit({"t": ["before"]})
    append_entry(s.bucket, read=["sealed-records"])


def make(name: str) -> Story:
    """A store, as it is at the end of its story."""
    number, tell = STORIES[name]
    made = Story(name, number)
    tell(made)
    return made


def expected_of(made: Story) -> dict[str, Any]:
    """What txnstore answers of a store."""
    if made.name == "refused":
        return {"about": about(made.name), "refused": "sealed-records"}
    store = open_on(made.bucket, read_only=True, runtime=made.runtime())
    return {"about": about(made.name), **answers(store)}


def packed(objects: Mapping[str, bytes]) -> bytes:
    """The archive of a store."""
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for key, data in sorted(objects.items()):
            member = tarfile.TarInfo(key)
            member.size, member.mode = len(data), 0o644
            archive.addfile(member, io.BytesIO(data))
    return gzip.compress(content.getvalue(), 9, mtime=0)


def unpacked(name: str) -> dict[str, bytes]:
    """The objects of a stored vector, by key."""
    objects = {}
    with tarfile.open(FOLDER / name / "store.tar.gz") as archive:
        for member in archive:
            content = archive.extractfile(member)
            assert content is not None
            objects[member.name] = content.read()
    return objects


def expected(name: str) -> dict[str, Any]:
    """The answers of a stored vector."""
    answered: dict[str, Any] = json.loads((FOLDER / name / "expected.json").read_text(encoding="utf-8"))
    return answered


def text_of(answered: Mapping[str, Any]) -> str:
    """Answers as a file: a line for each member, and for each state of the past."""
    lines = []
    for name, value in answered.items():
        if name == "past":
            states = ",\n  ".join(_compact(state) for state in value)
            lines.append(f' "past": [\n  {states}\n ]')
        else:
            lines.append(f' "{name}": {_compact(value)}')
    return "{\n" + ",\n".join(lines) + "\n}\n"


def _compact(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


_PLACE = re.compile(r"(?<=python -m tests.pages.vectors` -->\n).*?(?=<!-- /vectors -->)", re.DOTALL)


def about(name: str) -> str:
    """What a vector shows."""
    return " ".join((STORIES[name][1].__doc__ or "").split())


def with_table(text: str) -> str:
    """The README of the vectors with its table replaced by the current one."""
    # A line before and after the table: a comment inside would end it.
    page, count = _PLACE.subn("\n| vector | what is in it |\n|---|---|\n" + rows() + "\n", text)
    assert count == 1, f"{README} has no place for the table"
    return page


def rows() -> str:
    return "".join(f"| `{name}` | {about(name)} |\n" for name in STORIES)


def main(names: list[str]) -> None:
    """Write these vectors, or all, and the table of the README."""
    README.write_text(with_table(README.read_text(encoding="utf-8")), encoding="utf-8")
    for name in names or STORIES:
        made = make(name)
        answered = expected_of(made)
        folder = FOLDER / name
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "store.tar.gz").write_bytes(packed(objects_of(made.bucket)))
        (folder / "expected.json").write_text(text_of(answered), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
