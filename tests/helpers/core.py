"""A world of the pure core alone: commands in, one entry each, and everything that must hold is checked after each.

``World.do`` decides a command as the chain does, and asserts that the invariants hold in the state and in the step, and
that folding all events from the first one gives the state that was decided. ``World.refuse`` asserts the class of the
error, and that nothing at all has changed (SEQ-11).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from txnstore.core.catalog.model import CatalogTopic, CreateTopic
from txnstore.core.decide import decide
from txnstore.core.events import Event
from txnstore.core.evolve import evolve
from txnstore.core.groups.commands import CommitOffsets, ExpiredMembers, TxnOffsets
from txnstore.core.groups.events import GroupOffset
from txnstore.core.groups.model import Group
from txnstore.core.groups.offsets import committed
from txnstore.core.invariants.check import check, check_event, check_step
from txnstore.core.log.commands import Append, Appended
from txnstore.core.log.model import Batch, NewBatch, Partition, Segment, next_sequence
from txnstore.core.log.visibility import visible_slices
from txnstore.core.maintenance import ReplaceSegments
from txnstore.core.model import (
    NO_FEATURES,
    NO_PRODUCER,
    Command,
    Features,
    Isolation,
    Outcome,
    ProducerIdentity,
    TopicPartition,
)
from txnstore.core.routes import with_expired
from txnstore.core.state import State, begin_entry
from txnstore.core.transactions.commands import Ended, EndTxn, InitProducer
from txnstore.core.transactions.model import Transaction
from txnstore.errors import TxnStoreError

T0 = TopicPartition("t", 0)
T1 = TopicPartition("t", 1)
RC, RU = Isolation.READ_COMMITTED, Isolation.READ_UNCOMMITTED


def check_entry(before: State, now: int, events: Iterable[Event], after: State) -> None:
    """Assert that an entry leads to this state, and that neither it nor one of its events violates an invariant."""
    state = begin_entry(before, now, after.requires.without(before.requires))
    for event in events:
        earlier, state = state, evolve(state, event)
        assert check_event(earlier, state) == []
    assert state == after
    assert check(after) == []
    assert check_step(before, after) == []


class World:
    """A chain without storage, with one topic ``t`` to begin with. The clock advances by 1 ms an entry."""

    def __init__(self, partitions: int = 1) -> None:
        self.start = self.state = State()
        self.now = 1_000
        #: Commands name the expired members themselves.
        self.blind = False
        self.entries: list[tuple[int, tuple[Event, ...], Features]] = []
        self._segments = 0
        #: The offsets of the rows of the segments that a compaction made.
        self.rows: dict[str, tuple[int, ...]] = {}
        self.create("t", partitions)

    # Commands ---------------------------------------------------------------------------------------------------------

    def do(self, command: Command) -> Any:
        """Decide a command in an entry of its own; its answer."""
        self.now += 1
        decision = decide(begin_entry(self.state, self.now), self._watched(command))
        if decision.events:
            self._enter(decision.events, decision.state.requires.without(self.state.requires))
            assert self.state == decision.state
        return decision.result

    def _watched(self, command: Command) -> Command:
        """The command of a process that has watched the group, with a right clock; unless the test says who expired."""
        now = max(self.now, self.state.timestamp)

        def expired(name: str) -> ExpiredMembers:
            members = self.state.groups.get(name, Group()).members.values()
            return tuple((member.member_id, member.seen_at) for member in members if member.is_expired(now))

        return command if self.blind else with_expired(command, expired)

    def happen(self, *events: Event) -> None:
        """An entry of events that no single command of today makes, such as a partition without data."""
        self.now += 1
        self._enter(events)

    def refuse(self, error: type[TxnStoreError], command: Command) -> TxnStoreError:
        """A command is refused with exactly this class, and nothing has changed."""
        with pytest.raises(error) as raised:
            decide(begin_entry(self.state, self.now), self._watched(command))
        assert type(raised.value) is error
        assert self.replay() == self.state
        return raised.value

    def _enter(self, events: tuple[Event, ...], requires: Features = NO_FEATURES) -> None:
        before = self.state
        self.entries.append((self.now, events, requires))
        self.state = self.replay()
        check_entry(before, self.now, events, self.state)

    def replay(self) -> State:
        """The fold of all entries from the first one."""
        state = self.start
        for now, events, requires in self.entries:
            state = begin_entry(state, now, requires)
            for event in events:
                state = evolve(state, event)
        return state

    def last_events(self) -> list[str]:
        """The types of the events of the last entry."""
        return [type(event).__name__ for event in self.entries[-1][1]]

    # Shorthands -------------------------------------------------------------------------------------------------------

    def create(self, name: str, partitions: int = 1) -> CatalogTopic:
        """Create a topic; each time with another id."""
        topic = CatalogTopic(name=name, topic_id=f"{name}-{len(self.entries)}", partitions=partitions)
        self.do(CreateTopic(topic))
        return topic

    def segment(self, rows: int, *, explicit_offsets: bool = False) -> Segment:
        """A segment that no other batch has."""
        self._segments += 1
        key = f"topics/{self._segments:06}.parquet"
        return Segment(key, "parquet", rows * 10, f"{self._segments:064}", rows, explicit_offsets)

    def batch(self, records: int = 1, tp: TopicPartition = T0, sequence: int = NO_PRODUCER) -> NewBatch:
        """A batch that is uploaded; its records are of 1970, so that no test takes them for the time of the append."""
        return NewBatch(tp.topic, tp.partition, self.segment(records), 7, 8, sequence)

    def plain(self, records: int = 1, tp: TopicPartition = T0) -> Appended:
        """Append without a producer id."""
        (appended,) = self.do(Append(ProducerIdentity(), (self.batch(records, tp),)))
        assert isinstance(appended, Appended)
        return appended

    def client(
        self,
        transactional_id: str | None = None,
        expected: tuple[int, int] | None = None,
        timeout_ms: int = 60_000,
    ) -> Client:
        """A producer that has just got its identity."""
        return Client(self, self.do(InitProducer(transactional_id, timeout_ms, expected)))

    def at_epoch(self, transactional_id: str, epoch: int) -> Client:
        """A producer with an epoch that would take thousands of transactions to reach."""
        client = self.client(transactional_id)
        txn = replace(self.txn(transactional_id), epoch=epoch)
        self.start = self.state = replace(
            self.state, transactions=self.state.transactions.insert(transactional_id, txn)
        )
        self.entries = []
        client.identity = replace(client.identity, epoch=epoch)
        return client

    def commit_offset(self, offset: int, tp: TopicPartition = T0, group: str = "g", generation: int = -1) -> None:
        """Commit a position outside a transaction."""
        self.do(CommitOffsets(offsets({tp: offset}, group, generation)))

    def compact(self, tp: TopicPartition = T0) -> None:
        """Merge everything below the LSO into one batch, as the compactor does."""
        partition = self.log(tp)
        removed = tuple(partition.batches.overlapping(0, partition.last_stable_offset))
        if not removed:
            return
        offsets = tuple(self.read(RC, tp))
        added: tuple[Batch, ...] = ()
        if offsets:
            segment = self.segment(len(offsets), explicit_offsets=True)
            self.rows[segment.key] = offsets
            start, limit = removed[0].base_offset, removed[-1].limit
            added = (Batch(start, limit, len(offsets), segment, 7, 8),)
        self.do(ReplaceSegments(tp, removed, added))

    # Looking ----------------------------------------------------------------------------------------------------------

    def log(self, tp: TopicPartition = T0) -> Partition:
        return self.state.partitions[tp]

    def txn(self, transactional_id: str) -> Transaction:
        return self.state.transactions[transactional_id]

    def read(self, isolation: Isolation, tp: TopicPartition = T0, start: int | None = None) -> list[int]:
        """The offsets of the records that a reader gets, in the order in which it gets them."""
        offsets = []
        for part in visible_slices(tp, self.log(tp), isolation, start):
            rows = self.rows.get(part.batch.segment.key, range(part.batch.base_offset, part.batch.limit))
            offsets += [offset for offset in rows if part.start <= offset < part.limit]
        return offsets

    def ends(self, tp: TopicPartition = T0) -> tuple[int, int]:
        """LSO and high watermark."""
        log = self.log(tp)
        return log.last_stable_offset, log.high_watermark

    def offset(self, tp: TopicPartition = T0, group: str = "g", *, require_stable: bool = False) -> int | None:
        """The committed position of a group."""
        value = committed(self.state, group, tp, require_stable=require_stable)
        return None if value is None else value.offset

    def pending(self, group: str = "g") -> dict[int, dict[TopicPartition, int]]:
        """The pending positions by producer id."""
        pending = self.state.groups[group].pending
        return {producer: {tp: item.value.offset for tp, item in items.items()} for producer, items in pending.items()}


@dataclass
class Client:
    """A producer as the shell drives it: it numbers its batches from 0 in each epoch, and adopts what answers say."""

    world: World
    identity: ProducerIdentity
    sequences: dict[TopicPartition, int] = field(default_factory=dict)

    @property
    def epoch(self) -> int:
        return self.identity.epoch

    @property
    def producer_id(self) -> int:
        return self.identity.producer_id

    def numbered(self, records: int = 1, tp: TopicPartition = T0, sequence: int | None = None) -> NewBatch:
        """A batch with the next sequence, or with this one."""
        return self.world.batch(records, tp, self.sequences.get(tp, 0) if sequence is None else sequence)

    def append(self, *batches: NewBatch, offsets: TxnOffsets | None = None) -> Append:
        """The command that appends these batches."""
        return Append(self.identity, batches, () if offsets is None else (offsets,))

    def send(self, records: int = 1, tp: TopicPartition = T0, sequence: int | None = None) -> Appended:
        """Append a batch and continue behind it."""
        batch = self.numbered(records, tp, sequence)
        (appended,) = self.world.do(self.append(batch))
        assert isinstance(appended, Appended)
        self.sequences[tp] = next_sequence(batch.base_sequence, records)
        return appended

    def send_offsets(self, positions: dict[TopicPartition, int], group: str = "g", generation: int = -1) -> None:
        """Commit positions of a group with the transaction."""
        self.world.do(self.append(offsets=offsets(positions, group, generation)))

    def end(self, outcome: Outcome, *batches: NewBatch, versions: tuple[tuple[str, int], ...] = ()) -> EndTxn:
        """The command that ends the transaction."""
        return EndTxn(self.identity, outcome, batches, (), versions)

    def commit(self, *batches: NewBatch) -> Ended:
        return self._ended(self.end(Outcome.COMMIT, *batches))

    def abort(self) -> Ended:
        return self._ended(self.end(Outcome.ABORT))

    def _ended(self, command: EndTxn) -> Ended:
        ended = self.world.do(command)
        assert isinstance(ended, Ended)
        self.identity, self.sequences = ended.producer, {}
        return ended


def offsets(positions: dict[TopicPartition, int], group: str = "g", generation: int = -1) -> TxnOffsets:
    """Positions of a group, to commit in or out of a transaction."""
    items = (GroupOffset(topic=tp.topic, partition=tp.partition, offset=at) for tp, at in positions.items())
    return TxnOffsets(group, tuple(items), generation)


def with_partition(state: State, partition: Partition, tp: TopicPartition = T0) -> State:
    """The state with another value of a partition: for what no command makes yet, and for damage on purpose."""
    return replace(state, partitions=state.partitions.insert(tp, partition))


def with_txn(state: State, txn: Transaction) -> State:
    """The state with another value of a transaction."""
    return replace(state, transactions=state.transactions.insert(txn.transactional_id, txn))
