"""Actors that read: consumers of both isolation levels, copy jobs, scans of one snapshot."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any

import pyarrow as pa

from tests.harness.simulation.actor import Actor
from tests.harness.simulation.transacting import Known, TransactionalActor
from tests.harness.simulation.world import SIDE, SOURCE, TARGET, Copied, Process, World
from txnstore.consumer import Consumer
from txnstore.core.model import TopicPartition, sorted_items
from txnstore.errors import (
    AuthorizationError,
    CorruptionError,
    SnapshotExpiredError,
    StorageError,
    TxnStoreError,
    UnstableOffsetCommitError,
)
from txnstore.producer import Producer
from txnstore.read.plan import IsolationLevel
from txnstore.read.records import Record
from txnstore.store import Store

TOPICS = (SOURCE, SIDE, TARGET)
Polled = dict[str, list[tuple[int, int]]]


class Reader(Actor):
    """Reads all topics from the beginning, once in each process; also queries the ends of the logs."""

    isolation: IsolationLevel = "read_committed"

    def live(self, process: Process) -> None:
        history = self.world.history
        try:
            consumer = self.insist(lambda: process.store.consumer(TOPICS, isolation=self.isolation))
        except StorageError:
            return self.pause(1_000)
        history.invoke(process.name, "assign", self.world.partitions)
        history.ok(process.name)
        while self.next_operation():
            self._poll(process, consumer)
            self._ends(process)
            self.breathe()
        return None

    def _poll(self, process: Process, consumer: Consumer) -> None:
        history = self.world.history
        history.invoke(process.name, "poll", [("poll",)])
        try:
            records = consumer.poll(max_records=self.rng.choice((2, 5, 50)))
        except TxnStoreError as error:
            self.check_expected(process, "poll", error, ())
            history.fail(process.name, error)
        else:
            history.ok(process.name, [("poll", polled(records))])

    def _ends(self, process: Process) -> None:
        history = self.world.history
        history.invoke(process.name, "ends")
        heads = dict(self.world.bucket.heads)
        try:
            view = process.store._connection.view()
        except TxnStoreError as error:
            self.check_expected(process, "ends", error, ())
            history.fail(process.name, error)
            return
        self.check_fresh(process, heads)
        partitions = view.partitions
        ends = {
            str(tp): (log.log_start, log.last_stable_offset, log.high_watermark)
            for tp, log in partitions.items()
            if tp.topic in TOPICS
        }
        history.ok(process.name, dict(sorted(ends.items())))


class UncommittedReader(Reader):
    """Reads everything below the high watermark."""

    isolation: IsolationLevel = "read_uncommitted"


class Copy(TransactionalActor):
    """Consume, transform, produce, exactly once: the offsets are committed with the copies.

    Two instances share the transactional id, so only the newest one can commit.
    """

    source = SOURCE
    group = "copy"
    #: The options of its membership that differ from the defaults.
    membership: Mapping[str, Any] = MappingProxyType({})

    def live(self, process: Process) -> None:
        while self.left > 0:
            producer = self.initialize(process, self.label.partition("/")[0])
            if producer is None:
                return None
            try:
                consumer = self.insist(partial(process.store.consumer, [self.source], self.group, **self.membership))
            except StorageError:
                return self.pause(1_000)
            history = self.world.history
            history.invoke(process.name, "subscribe", self.world.partitions)
            history.ok(process.name)
            while self.usable and self.next_operation():
                self._copy(process, producer, consumer)
                self.breathe()
            if self.rng.random() < 0.5:
                return None
            process = self.renamed(process)
        return None

    def _copy(self, process: Process, producer: Producer, consumer: Consumer) -> None:
        try:
            records = consumer.poll(max_records=self.rng.choice((1, 3, 10)))
        except TxnStoreError as error:
            return self.check_expected(process, "poll", error, (UnstableOffsetCommitError,))
        if not records:
            return None
        history = self.world.history
        plan = [(record, self.rng.randrange(self.world.settings.partitions)) for record in records]
        copies = [(number, self._copied(record)) for record, number in plan]
        sends = [("send", f"{TARGET}-{number}", value) for number, value in copies]
        after = {tp: consumer.position(tp) for tp in sorted({TopicPartition(r.topic, r.partition) for r in records})}
        moved = ("offsets", self.group, {str(tp): offset for tp, offset in sorted(after.items())})
        history.invoke(process.name, "txn", [("poll", polled(records)), moved, *sends], self.identity(producer))

        def offsets() -> None:
            producer.send_offsets(after, consumer.group_metadata())

        def body() -> None:
            early = self.rng.random() < 0.5
            if early:
                offsets()
            for number, value in copies:
                producer.send(TARGET, b"%d" % value, partition=number)
                if self.rng.random() < 0.3:
                    self.insist(producer.flush)
            if not early:
                offsets()
            if self.rng.random() < 0.1:
                self.change_of_mind()

        outcome, why = self.transact(process, producer, body)
        if outcome is Known.COMMITTED:
            history.ok(process.name)
            return None
        if outcome is Known.ABORTED:
            history.fail(process.name, why)
        else:
            history.info(process.name, why)
        consumer.rewind_to_committed()
        return None

    def _copied(self, record: Record) -> int:
        value = self.world.next_value()
        self.world.copied[value] = Copied(f"{record.topic}-{record.partition}", record.offset)
        return value


class Member(Copy):
    """A copy whose instances have one transactional id each: the generation of their group fences them (KIP-447).

    Some are static members; their leases last shorter than a pause, or longer than the run.
    """

    source = SIDE
    group = "members"

    def __init__(self, world: World, name: str) -> None:
        super().__init__(world, name)
        rng = world.rng(f"{name}/membership")
        self.membership = {
            "assignor": rng.choice(("range", "cooperative-sticky")),
            "session_timeout": rng.choice((6.0, 45.0, 1_800.0)),
            "group_instance_id": rng.choice((None, self.label)),
        }


class Scanner(Actor):
    """Reads all topics of one snapshot under both isolation levels; also an older one, while its segments exist."""

    def live(self, process: Process) -> None:
        while self.next_operation():
            self._snapshot(process)
            self.breathe()

    def _snapshot(self, process: Process) -> None:
        history, store = self.world.history, process.store
        history.invoke(process.name, "snapshot")
        heads, rulebook = dict(self.world.bucket.heads), self.world.rulebook
        since = rulebook.now() if rulebook is not None else 0
        try:
            content = look(store)
        except (StorageError, SnapshotExpiredError, CorruptionError, AuthorizationError) as error:
            if isinstance(error, AuthorizationError) and not self.is_refusal(error):
                raise
            if isinstance(error, CorruptionError) and not self.world.explains(error):
                self.unexpected(process, "scan", error)
            history.fail(process.name, error)
            return
        self.check_fresh(process, heads)
        if rulebook is not None:
            rulebook.may_read(process.principal, TOPICS, since)
        history.ok(process.name, content)


def look(store: Store, isolations: Sequence[IsolationLevel] = ("read_committed", "read_uncommitted")) -> dict[str, Any]:
    """The content of one snapshot: the records under these isolation levels, the ends of the logs, the groups."""
    snapshot = store.snapshot()
    content: dict[str, Any] = {}
    for isolation in isolations:
        tables = (store.scan(topic, isolation, snapshot=snapshot).to_table() for topic in TOPICS)
        content[isolation] = {key: pairs for table in tables for key, pairs in scanned(table).items()}
    state = snapshot.view
    content["ends"] = {
        str(tp): (log.last_stable_offset, log.high_watermark, dict(sorted_items(log.open_txns)), log.log_start)
        for tp, log in sorted(state.partitions.items())
        if tp.topic in TOPICS
    }
    content["groups"] = {
        name: {str(tp): value.value.offset for tp, value in sorted(group.offsets.items())}
        for name, group in sorted(state.groups.items())
    }
    content["unstable"] = sorted(name for name, group in state.groups.items() if any(map(len, group.pending.values())))
    return content


def polled(records: Iterable[Record]) -> Polled:
    """The records of a poll, by partition."""
    by_partition: Polled = {}
    for record in records:
        assert isinstance(record.value, bytes)
        by_partition.setdefault(f"{record.topic}-{record.partition}", []).append((record.offset, int(record.value)))
    return by_partition


def scanned(table: pa.Table) -> Polled:
    """The records of a scan, by partition."""
    by_partition: Polled = {}
    columns = (table[name].to_pylist() for name in ("_topic", "_partition", "_offset", "value"))
    for topic, number, offset, value in zip(*columns, strict=True):
        by_partition.setdefault(f"{topic}-{number}", []).append((offset, int(value)))
    return by_partition
