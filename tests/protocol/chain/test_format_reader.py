"""docs/format.md is enough to read a store: a reader that is written from it alone answers what txnstore answers."""

from __future__ import annotations

import ast
import datetime as dt
import itertools
import random
from contextlib import suppress
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pyarrow as pa
import pytest

from tests.harness.executors import DeferredExecutor
from tests.helpers import compaction, format_reader
from tests.helpers.compaction import DAY_MS, HOUR_MS, runtime
from tests.helpers.format_answers import answers, objects_of, read_answers, states_of
from tests.helpers.format_reader import Reader
from tests.helpers.keys import FixedRuntime
from txnstore.consumer import Consumer
from txnstore.core.model import TopicPartition
from txnstore.errors import InvalidProducerEpochError, TxnStoreError
from txnstore.producer import Producer
from txnstore.segment.codec import encode
from txnstore.storage.memory import MemoryStore
from txnstore.store import Store, create_on, open_on
from txnstore.testing import ManualClock

EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
TYPED = pa.schema([("id", pa.int32()), ("at", pa.timestamp("us", "UTC")), ("name", pa.string())])
TOPICS: dict[str, dict[str, Any]] = {
    "plain": {"partitions": 3},
    "arrow": {"config": {"segment.format": "arrow"}},
    "typed": {"partitions": 2, "schema": TYPED, "key": "id", "timestamp": "at"},
    "keyed": {"config": {"cleanup.policy": "compact,delete", "min.cleanable.dirty.ratio": 0.0}},
    "apart": {"partitions": 15, "config": {"inline.bytes": 0}},
    "own": {"partitions": 2, "config": {"inline.bytes": 0, "segment.own.bytes": 0}},
    "appended": {"partitions": 2, "config": {"message.timestamp.type": "LogAppendTime"}},
    "again": {"partitions": 2},
}


def test_the_reader_knows_nothing_of_txnstore() -> None:
    tree = ast.parse(Path(format_reader.__file__).read_text())
    imported = {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    imported |= {name.name for node in ast.walk(tree) if isinstance(node, ast.Import) for name in node.names}
    assert not {name for name in imported if name.startswith(("txnstore", "tests"))}


@pytest.mark.slow
@pytest.mark.parametrize("chains", [1, 3])
@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (1, 2))])
@pytest.mark.parametrize("forgets", [False, True], ids=["all entries", "entries are deleted"])
def test_the_documented_format_is_complete(
    clock: ManualClock, monkeypatch: pytest.MonkeyPatch, chains: int, seed: int, *, forgets: bool
) -> None:
    """All answers of all entries, from the first entries on and from late checkpoints on; and all checkpoints."""
    monkeypatch.setattr(compaction, "_SEEDS", itertools.count())  # The same ids, whatever tests ran before.
    bucket = MemoryStore(clock=clock)
    history = History(bucket, clock, chains, random.Random(seed))
    for number in range(80):
        clock.advance(1_000)
        history.step()
        if number == 40:
            history.send_large()
        if number % 10 == 0:
            history.store.checkpoint()
        if forgets and number in (40, 55, 70):
            history.forget()
    objects = objects_of(bucket)
    reading = open_on(bucket, read_only=True, runtime=runtime(clock))
    expected = answers(reading)
    check = Mock(wraps=format_reader.check_blocks)
    monkeypatch.setattr(format_reader, "check_blocks", check)
    complete = Reader(objects, complete=True)
    assert complete.compared >= chains
    assert all(first > 0 for first in complete.firsts) is forgets
    for name, value in read_answers(complete).items():
        assert value == expected[name], name
    assert check.called
    assert read_answers(Reader(objects)) == expected
    hinted = read_answers(Reader(objects, hints=True))
    for name in ("heads", "topics", "records", "offsets", "shown", "groups"):
        assert hinted[name] == expected[name], name
    compare_batches(complete, reading)
    assert not open_on(bucket, read_only=True, runtime=runtime(clock)).verify(deep=True).violations


def compare_batches(reader: Reader, store: Store) -> None:
    """The batches of all states, field by field."""
    formats = set[str]()
    for read, folded in zip(reader.states, states_of(store), strict=True):
        for number, state in folded.items():
            for tp, log in state.partitions.items():
                listed = [format_batch(batch) for batch in log.batches]
                formats.update(batch["segment"]["format"] for batch in listed)
                assert [batch for _, batch in sorted(read[number].partitions[tp]["batches"].items())] == listed
    assert formats == {"arrow_stream", "arrow", "parquet"}


def format_batch(batch: Any) -> dict[str, Any]:
    members = {name: getattr(batch, name) for name in batch.__slots__}
    return {**members, "segment": {name: getattr(batch.segment, name) for name in batch.segment.__slots__}}


@pytest.mark.parametrize("place", [100, -100], ids=["block", "footer"])
def test_documented_checksums_of_blocks_show_damage(place: int) -> None:
    segment = encode(pa.table({"value": [random.Random(1).randbytes(1 << 20)] * 2}))
    described = {"footer_size": segment.footer_size, "footer_sha256": segment.footer_sha256}
    data = bytearray(segment.data)
    format_reader.check_blocks(bytes(data), described)
    data[place] ^= 1
    with pytest.raises(AssertionError):
        format_reader.check_blocks(bytes(data), described)


class History:
    """Random operations on a store with each kind of topic."""

    def __init__(self, bucket: MemoryStore, clock: ManualClock, chains: int, rng: random.Random) -> None:
        self.bucket, self.clock, self.rng = bucket, clock, rng
        self.store = create_on(bucket, chains, runtime=runtime(clock))
        self.open: list[Producer] = []
        self.lost: list[Producer] = []
        self.consumers: list[Consumer] = []
        self.sent = self.columns = 0
        for name, options in TOPICS.items():
            self.store.create_topic(name, **options)

    def step(self) -> None:
        kinds = [self.commit] * 5 + [self.append, self.abort, self.begin, self.end] * 2
        kinds += [self.tidy, self.cut, self.members, self.commit, self.alter, self.again, self.lose, self.expire]
        self.rng.choice(kinds)()

    def send(self, producer: Producer, topics: int = 4) -> None:
        size = self.rng.choice((10, 10, 10, 40_000))
        for _ in range(self.rng.randint(1, topics)):
            name = self.rng.choice([*TOPICS])
            for _ in range(self.rng.randint(1, 5)):
                self.sent += 1
                text = f"{self.sent} ".ljust(size, "x")
                if name == "typed":
                    at = EPOCH + dt.timedelta(microseconds=1_000 * self.sent + 999) if self.sent % 3 else None
                    producer.send(name, {"id": self.sent % 7, "at": at, "name": text})
                else:
                    headers = [("h", b"%d" % self.sent), ("h", None)] if self.sent % 5 == 0 else None
                    value = None if name == "keyed" and self.sent % 4 == 0 else text.encode()
                    producer.send(name, value, b"k%d" % (self.sent % 5), headers=headers, timestamp=self.sent)

    def position(self, producer: Producer, group: str) -> None:
        tp = TopicPartition("plain", self.rng.randrange(3))
        producer.send_offsets({tp: self.store.offsets(*tp).log_start, TopicPartition("again", 0): 0}, group)

    def commit(self) -> None:
        with self.store.producer(f"id{self.rng.randrange(3)}") as producer, producer.transaction():
            self.send(producer)
            if self.rng.random() < 0.5:
                self.position(producer, self.rng.choice(("copiers", "others")))

    def send_large(self) -> None:
        """A segment with checksums of its blocks."""
        with self.store.producer() as producer:
            for _ in range(30):
                producer.send("plain", self.rng.randbytes(50_000), partition=1)

    def append(self) -> None:
        with self.store.producer() as producer:
            self.send(producer)

    def abort(self) -> None:
        with self.store.producer("aborter") as producer:
            producer.begin_transaction()
            self.send(producer)
            self.position(producer, "copiers")
            producer.flush()
            producer.abort_transaction()

    def begin(self) -> None:
        two_phase = self.rng.random() < 0.5
        options: Any = {"two_phase_commit": True} if two_phase else {"transaction_timeout": 800}
        producer = self.store.producer(f"open{self.sent}", **options)
        producer.begin_transaction()
        self.send(producer, 2)
        self.position(producer, f"group{self.sent % 3}")
        producer.flush()
        if two_phase:
            producer.prepare_transaction()
        self.open.append(producer)

    def end(self) -> None:
        if self.open:
            producer = self.open.pop(self.rng.randrange(len(self.open)))
            end = self.rng.choice((producer.commit_transaction, producer.abort_transaction))
            with suppress(InvalidProducerEpochError):  # It was aborted after its timeout.
                end()

    def lose(self) -> None:
        """A process dies between the decision and the markers of other chains."""
        environment = runtime(self.clock)
        lasting = FixedRuntime(
            self.clock, self.clock.sleep, self.rng, environment.executor, DeferredExecutor, spawn=environment.spawn
        )
        producer = open_on(self.bucket, runtime=lasting).producer(f"lost{self.sent}")
        producer.begin_transaction()
        self.send(producer)
        self.position(producer, "others")
        producer.flush()
        self.rng.choice((producer.commit_transaction, producer.abort_transaction))()
        self.lost.append(producer)

    def members(self) -> None:
        if len(self.consumers) > 2:
            self.consumers.pop(0).close()
        instance = self.rng.choice((None, "static"))
        store = open_on(self.bucket, runtime=runtime(self.clock))
        self.consumers.append(store.consumer(["plain", "again"], "readers", group_instance_id=instance))
        for consumer in self.consumers * 2:
            try:
                consumer.poll()
                consumer.commit()
            except TxnStoreError:  # Another one has its place.
                self.consumers.remove(consumer)
                break

    def tidy(self) -> None:
        self.store.compact(force=self.rng.random() < 0.5)
        self.store.vacuum(0)

    def cut(self) -> None:
        tp = TopicPartition(self.rng.choice(("plain", "keyed", "appended")), 0)
        ends = self.store.offsets(*tp)
        self.store.delete_records({tp: self.rng.randint(ends.log_start, ends.last_stable)})

    def alter(self) -> None:
        """Another time column's rule, one more column, a wider type."""
        kind = self.rng.choice(("CreateTime", "LogAppendTime"))
        for name in ("appended", "plain"):
            self.store.alter_topic(name, config={"message.timestamp.type": kind})
        self.columns += 1
        schema = self.store.topic("typed").schema
        assert schema is not None
        self.store.alter_topic("typed", schema=schema.append(pa.field(f"more{self.columns}", pa.float64())))

    def again(self) -> None:
        self.store.delete_topic("again")
        self.store.create_topic("again", partitions=self.rng.randint(1, 3))

    def expire(self) -> None:
        self.store.recover()
        self.clock.advance(2 * HOUR_MS)
        self.store.expire()

    def forget(self) -> None:
        """Delete the history up to now."""
        for _ in [*self.open]:
            self.end()
        self.store.recover()
        for _ in range(2):
            self.store.checkpoint()
            self.clock.advance(10 * DAY_MS)
            self.store.expire()
            self.store.vacuum()
