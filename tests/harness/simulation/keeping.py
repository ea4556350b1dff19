"""Actors that keep answers and copies where no power cut takes them back: operators, a backup, a streaming query.

An answer without an entry, such as "done already", rests on what the process has read, which may be visible only. So do
a copy in another place, and positions in a checkpoint of Spark.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from typing import NamedTuple

from tests.harness.simulation.actor import Actor
from tests.harness.simulation.creates import Interrupted
from tests.harness.simulation.journal import Journal
from tests.harness.simulation.publishing import has_tables
from tests.harness.simulation.readers import look, scanned
from tests.harness.simulation.rulebook import ROOT
from tests.harness.simulation.transacting import REFUSALS
from tests.harness.simulation.world import SOURCE, Process, World
from tests.helpers.connections import connection_of
from txnstore.catalog.settings import publishes_table
from txnstore.chain.backups import newest_backup
from txnstore.compactor import backup, watch_backup
from txnstore.core.authorization.model import Acl
from txnstore.core.groups.offsets import OFFSETS_RETENTION_MS, committed, exists
from txnstore.core.model import TopicPartition
from txnstore.core.routing import CATALOG
from txnstore.core.transactions.model import TxnState
from txnstore.core.view import View
from txnstore.errors import (
    BackupError,
    CorruptionError,
    GroupNotFoundError,
    OffsetOutOfRangeError,
    SnapshotExpiredError,
    StorageError,
    TransactionalIdNotFoundError,
    TxnStoreError,
    UnknownTopicOrPartitionError,
)
from txnstore.snapshot import Snapshot
from txnstore.spark.options import stream_options
from txnstore.spark.streams.positions import Position
from txnstore.spark.streams.stream import Stream
from txnstore.store import Store, open_on

_ROUNDS = 12
#: Seconds. Only the operator ends its transactions within the simulation.
_TIMEOUT_S = 900.0
#: What the repetition of a call says that was done before.
_DONE = (UnknownTopicOrPartitionError, GroupNotFoundError)
_REFUSALS = (*REFUSALS, TransactionalIdNotFoundError, OffsetOutOfRangeError)
Holds = Callable[[View], bool]


class _Call(NamedTuple):
    """A call, what it is about, and what is so when it is done."""

    about: str
    make: Callable[[Store], object]
    holds: Holds


class _Keeper(Actor):
    """An actor that may do everything, unless a rule forbids it."""

    def __init__(self, world: World, name: str) -> None:
        super().__init__(world, name)
        self.left = max(self.left, _ROUNDS)
        world.keepers.append(self)

    def open_process(self) -> Process:
        return self.world.process(self.name, principal=ROOT)


class Repeater(_Keeper):
    """Repeats each call until it is answered, often in another process, and finds what it did whenever it looks."""

    def __init__(self, world: World, name: str) -> None:
        super().__init__(world, name)
        self._name = f"of-{self.label.replace('/', '-')}"
        #: Its topic, under another name after each deletion.
        self._topics = 0
        #: The call that has no answer yet.
        self._due: _Call | None = None
        #: What must be so, by what it is about.
        self.held: dict[str, Holds] = {}

    def live(self, process: Process) -> None:
        while self.next_operation():
            try:
                view = connection_of(process.store).view()
                self.world.anomalies += self.lost(view)
                self._due = self._due or self._next(process.store, view)
                self._call(process, self._due)
            except (StorageError, Interrupted):
                if self.rng.random() < 0.8:
                    return
            except TxnStoreError as error:
                self.check_expected(process, "operate", error, _REFUSALS)
                self._due = None
            self.pause(self.rng.choice((100, 1_000, 60_000)))

    def _call(self, process: Process, call: _Call) -> None:
        self.held.pop(call.about, None)
        with suppress(*_DONE):
            call.make(process.store)
        self.held[call.about], self._due = call.holds, None

    def lost(self, view: View) -> Iterator[str]:
        """What was acknowledged, and is not so."""
        for about, holds in self.held.items():
            if not holds(view) and not (about == "group" and self.world.scheduler.now >= OFFSETS_RETENTION_MS):
                yield f"lost-answer: of the {about} {self._name}, by {self.name}"

    @property
    def _topic(self) -> str:
        return f"{self._name}-{self._topics}"

    def _next(self, store: Store, view: View) -> _Call:
        name, rng = self._topic, self.rng
        if name not in view.topics and rng.random() < 0.6:
            return _Call(
                "topic", lambda store: store.create_topic(name, 2, exist_ok=True), lambda view: name in view.topics
            )
        calls = [self._reset, self._delete_group]
        if self.world.rulebook is None:
            calls.append(self._rule)
        if name in view.topics:
            calls += [self._delete_topic, self._alter, *[partial(self._abort, store)] * 4]
            if has_tables(self.world):
                calls += [self._table] * 4
        return rng.choice(calls)(view)

    def _delete_topic(self, _: View) -> _Call:
        name = self._topic
        self._topics += 1
        return _Call("topic", lambda store: store.delete_topic(name), lambda view: name not in view.topics)

    def _alter(self, _: View) -> _Call:
        config = {"retention.ms": str(self.rng.randrange(10**9, 10**10))}
        name = self._topic
        return _Call("topic", lambda store: store.alter_topic(name, config=config), self._has(config))

    def _table(self, view: View) -> _Call:
        name = self._topic
        if publishes_table(view.topics[name].config):
            return _Call("topic", lambda store: store.tables.disable(name), self._has({}, table=False))
        return _Call("topic", lambda store: store.tables.enable(name), self._has({}, table=True))

    def _has(self, config: Mapping[str, str], *, table: bool | None = None) -> Holds:
        name = self._topic

        def holds(view: View) -> bool:
            topic = view.topics.get(name)
            if topic is None or (table is not None and publishes_table(topic.config) != table):
                return False
            return config.items() <= topic.config.items()

        return holds

    def _rule(self, view: View) -> _Call:
        acl = Acl("User:other", "ALLOW", "READ", "TOPIC", self._name)
        if acl in view.states[CATALOG].authorization.acls:
            call, there = (lambda store: store.acls.delete(acl)), False
        else:
            call, there = (lambda store: store.acls.create(acl)), True
        return _Call("rule", call, lambda view: (acl in view.states[CATALOG].authorization.acls) == there)

    def _reset(self, view: View) -> _Call:
        tp = TopicPartition(SOURCE, 0)
        offset = self.rng.randint(0, view.find_partition(tp).last_stable_offset)

        def holds(view: View) -> bool:
            stored = committed(view, self._name, tp, require_stable=False)
            return stored is not None and stored.offset == offset

        return _Call("group", lambda store: store.reset_offsets(self._name, {tp: offset}), holds)

    def _delete_group(self, _: View) -> _Call:
        def holds(view: View) -> bool:
            return self._name not in view.groups or not exists(view.groups[self._name])

        return _Call("group", lambda store: store.delete_group(self._name), holds)

    def _abort(self, store: Store, _: View) -> _Call:
        """Leave a transaction open, which this operator aborts then."""
        name, topic = self._name, self._topic
        producer = store.producer(name, _TIMEOUT_S)
        producer.begin_transaction()
        producer.send(topic, b"%d" % self.world.next_value(), partition=0)
        producer.flush()
        identity = producer.producer_id, producer.epoch

        def holds(view: View) -> bool:
            txn = view.transactions.get(name)
            return txn is None or txn.state is not TxnState.ONGOING or (txn.producer_id, txn.epoch) != identity

        if self.rng.random() < 0.5:
            return _Call("transaction", lambda store: store.abort_transaction(name), holds)
        return _Call("transaction", lambda store: store.abort_hanging(topic, 0, identity[0]), holds)


class Archivist(_Keeper):
    """Keeps a backup in another folder; all later ones continue it, whatever a power cut has taken back."""

    def live(self, process: Process) -> None:
        source = connection_of(process.store)
        rounds = watch_backup(source, self.world.other_folder(process), interval=0.001)
        while self.next_operation():
            try:
                done = next(rounds)
            except BackupError as error:
                if "a vacuum has deleted" not in str(error):
                    self.unexpected(process, "backup", error)
                return self.world.copies.clear()
            except (StorageError, Interrupted):
                return None
            except TxnStoreError as error:
                return self.check_expected(process, "backup", error, ())
            if done.report is not None:
                self.world.copied_heads = done.report.heads
            elif isinstance(done.error, CorruptionError):
                self.check_expected(process, "backup", done.error, ())
            self.breathe()
        return None


class Query(_Keeper):
    """Reads a topic in micro-batches; its positions are stored elsewhere, and each micro-batch is written once."""

    def __init__(self, world: World, name: str) -> None:
        super().__init__(world, name)
        #: The end of the last micro-batch that was written, and that of the one that was planned after it.
        self._written: Position | None = None
        self._planned: Position | None = None
        #: What was written.
        self.rows: list[tuple[str, int, int]] = []

    def live(self, process: Process) -> None:
        stream = self._stream(process.store)
        while self.next_operation():
            try:
                self.step(process.store, stream)
            except TxnStoreError as error:
                return self.check_expected(process, "query", error, (SnapshotExpiredError,))
            self.breathe()
        return None

    def step(self, store: Store, stream: Stream) -> bool:
        """Write the next micro-batch; whether there was one."""
        if self._written is None:
            self._written = stream.initial_position()
        start = self._written
        end = self._planned = self._planned or stream.position_after(start)
        slices = [part for group in stream.plan(start, end) for part in group.slices]
        if slices:
            snapshot = Snapshot(stream.view, store.store_id)
            found = scanned(store.scan(SOURCE, snapshot=snapshot).to_table())
            self.rows += [
                (str(part.tp), offset, value)
                for part in slices
                for offset, value in found.get(str(part.tp), [])
                if part.start <= offset < part.limit
            ]
        self._written, self._planned = end, None
        return start != end

    def finish(self, store: Store) -> None:
        """Read all that is left."""
        while self.step(store, self._stream(store)):
            pass

    def _stream(self, store: Store) -> Stream:
        return Stream(connection_of(store), stream_options({"path": "p", "topic": SOURCE, "pollIntervalMs": "0"}))


def kept_elsewhere(world: World, store: Store, journal: Journal) -> Iterator[str]:
    """Check that acknowledged calls hold, a backup continues and equals the store, a query has each record once."""
    for keeper in world.keepers:
        if isinstance(keeper, Repeater):
            yield from keeper.lost(connection_of(store).view())
        elif isinstance(keeper, Query):
            keeper.finish(store)
            yield from _compared(keeper, journal)
        elif isinstance(keeper, Archivist):
            yield from _continued(world, store)


def _compared(query: Query, journal: Journal) -> Iterator[str]:
    must = sorted(
        (key, record.offset, record.value)
        for key, log in journal.logs.items()
        for record in log
        if key.startswith(f"{SOURCE}-") and journal.committed(record)
    )
    if sorted(query.rows) != must:
        strange, missing = sorted(set(query.rows) - set(must)), sorted(set(must) - set(query.rows))
        yield f"not-once: {query.name} has {len(query.rows)} rows of {len(must)}, strange {strange}, missing {missing}"


def _continued(world: World, store: Store) -> Iterator[str]:
    connection = connection_of(store)
    try:
        newest = newest_backup(world.copies)
        if world.copied_heads and (newest is None or tuple(newest.heads) < world.copied_heads):
            yield f"lost-backup: {world.copied_heads} was complete, and is not"
        backup(connection, world.copies, verify=True)
    except BackupError as error:
        if "a vacuum has deleted" not in str(error):
            yield f"refused-backup: {error}"
        return
    except CorruptionError as error:
        yield f"damaged-backup: {error}"
        return
    with open_on(world.copies, read_only=True, principal=ROOT, runtime=connection.runtime) as copy:
        if look(copy) != look(store):
            yield "other-backup: it differs from the store"
