"""The values a chain's state is made of.

Everything here is immutable: a state is a fold of events, and a commit that loses its race just forgets the state
it had prepared. The maps are persistent (structural sharing), so an event costs what it touches, not what exists.
Offsets are half-open where a range is meant: ``base_offset`` up to, not including, ``limit``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from enum import Enum, StrEnum
from typing import NamedTuple

from rpds import HashTrieMap

from txnstore.core.batches import BatchList

#: A persistent map: changing it gives a new one that shares what did not change.
Map = HashTrieMap

#: Batches a producer's window remembers in each partition (Kafka: ``ProducerStateEntry.NUM_BATCHES_TO_RETAIN``).
WINDOW = 5
#: Sequence numbers wrap after this value (Kafka: ``DefaultRecordBatch.incrementSequence``).
MAX_SEQUENCE = 2**31 - 1
#: The last epoch a client may hold; at this one the producer id is rotated (Kafka: ``isEpochExhausted``).
MAX_EPOCH = 2**15 - 2
#: The epoch and producer id of records that no idempotent producer wrote.
NO_PRODUCER = -1


class TopicPartition(NamedTuple):
    """A partition of a topic."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


class Isolation(StrEnum):
    """What a reader sees: committed records below the LSO, or everything below the high watermark."""

    READ_COMMITTED = "read_committed"
    READ_UNCOMMITTED = "read_uncommitted"


class Outcome(StrEnum):
    """How a transaction ends."""

    COMMIT = "COMMIT"
    ABORT = "ABORT"


class TxnState(Enum):
    """The states of a transaction, with Kafka's stable ids (``TransactionState``)."""

    EMPTY = 0
    ONGOING = 1
    PREPARE_COMMIT = 2
    PREPARE_ABORT = 3
    COMPLETE_COMMIT = 4
    COMPLETE_ABORT = 5
    DEAD = 6
    PREPARE_EPOCH_FENCE = 7


#: The states from which each state may be entered (STM-02; Kafka: ``TransactionState.VALID_PREVIOUS_STATES``).
VALID_PREVIOUS_STATES: dict[TxnState, frozenset[TxnState]] = {
    TxnState.EMPTY: frozenset({TxnState.EMPTY, TxnState.COMPLETE_COMMIT, TxnState.COMPLETE_ABORT}),
    TxnState.ONGOING: frozenset(
        {TxnState.ONGOING, TxnState.EMPTY, TxnState.COMPLETE_COMMIT, TxnState.COMPLETE_ABORT},
    ),
    TxnState.PREPARE_COMMIT: frozenset({TxnState.ONGOING}),
    TxnState.PREPARE_ABORT: frozenset(
        {
            TxnState.ONGOING,
            TxnState.PREPARE_EPOCH_FENCE,
            TxnState.EMPTY,
            TxnState.COMPLETE_COMMIT,
            TxnState.COMPLETE_ABORT,
        },
    ),
    TxnState.COMPLETE_COMMIT: frozenset({TxnState.PREPARE_COMMIT}),
    TxnState.COMPLETE_ABORT: frozenset({TxnState.PREPARE_ABORT}),
    TxnState.DEAD: frozenset({TxnState.EMPTY, TxnState.COMPLETE_COMMIT, TxnState.COMPLETE_ABORT}),
    TxnState.PREPARE_EPOCH_FENCE: frozenset({TxnState.ONGOING}),
}


#: The states of a transaction whose outcome is decided and whose markers are being written.
_DECIDED = {TxnState.PREPARE_COMMIT: Outcome.COMMIT, TxnState.PREPARE_ABORT: Outcome.ABORT}


@dataclass(frozen=True, slots=True)
class Segment:
    """An immutable object that holds records, as the chain knows it.

    ``key`` is relative to the store's root; ``size`` is in bytes; ``sha256`` is the hex digest of all its bytes.
    ``explicit_offsets``: the object has an ``_offset`` column (a compacted one); otherwise the offset of a row is the
    batch's base offset plus the row's number counted from ``first_row`` of the batch.
    """

    key: str
    format: str
    size: int
    sha256: str
    rows: int
    explicit_offsets: bool = False


@dataclass(frozen=True, slots=True)
class Batch:
    """Records of one partition that were appended together, or merged by a compaction.

    Covers the offsets ``[base_offset, limit)``; ``records`` of them have a record (fewer than the range is wide only
    after a compaction). Timestamps are in milliseconds. A merged batch belongs to no producer any more.
    """

    base_offset: int
    limit: int
    records: int
    segment: Segment
    min_timestamp: int
    max_timestamp: int
    first_row: int = 0
    producer_id: int = NO_PRODUCER
    epoch: int = NO_PRODUCER
    base_sequence: int = NO_PRODUCER
    transactional: bool = False
    appended_at: int = 0


@dataclass(frozen=True, slots=True)
class NewBatch:
    """A batch whose segment is uploaded, and which has no offsets yet.

    ``uploaded_at``: when its writer uploaded it, in ms, but not before the entries that the writer knew; an old one is
    refused, because a vacuum may have deleted it. ``topic_id``: the topic whose schema its rows have; it is refused if
    another one has got the name meanwhile. None: not checked.
    """

    topic: str
    partition: int
    segment: Segment
    min_timestamp: int
    max_timestamp: int
    base_sequence: int = NO_PRODUCER
    uploaded_at: int | None = None
    topic_id: str | None = None

    @property
    def tp(self) -> TopicPartition:
        """The partition it goes to."""
        return TopicPartition(self.topic, self.partition)

    @property
    def records(self) -> int:
        """How many records it holds, which is how many offsets it takes."""
        return self.segment.rows


@dataclass(frozen=True, slots=True)
class BatchMetadata:
    """What a producer's window remembers of a batch, so that a retry is answered with the first offsets (SEQ-03).

    ``timestamp`` is the time of the append, which the first answer gave, too.
    """

    first_sequence: int
    last_sequence: int
    base_offset: int
    last_offset: int
    timestamp: int


@dataclass(frozen=True, slots=True)
class ProducerState:
    """What a partition knows of a producer: its epoch, its last five batches, its open transaction."""

    epoch: int
    batches: tuple[BatchMetadata, ...] = ()
    last_timestamp: int = 0
    current_txn_first_offset: int | None = None

    @property
    def last_sequence(self) -> int:
        """The last sequence number, or -1 if none was accepted in this epoch."""
        return self.batches[-1].last_sequence if self.batches else -1


class Fence(NamedTuple):
    """What a chain accepts of a producer of another chain: nothing below ``epoch``.

    ``at``: when the chain last heard of the producer, in ms. ``held``: its transaction of this epoch is prepared for an
    outside coordinator (KIP-939), so nothing of this epoch is accepted either, until its marker.
    """

    epoch: int
    at: int
    held: bool = False


@dataclass(frozen=True, slots=True)
class AbortedTxn:
    """An entry of the aborted-transaction index (LSO-06): Kafka's ``AbortedTxn``.

    ``last_offset`` is the offset of the abort marker.
    """

    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int


@dataclass(frozen=True, slots=True)
class Partition:
    """One partition log: its offsets, its batches, what it knows of producers."""

    log_start: int = 0
    high_watermark: int = 0
    batches: BatchList[Batch] = field(default_factory=BatchList)
    producers: Map[int, ProducerState] = field(default_factory=Map)
    open_txns: Map[int, int] = field(default_factory=Map)
    aborted: tuple[AbortedTxn, ...] = ()

    @property
    def last_stable_offset(self) -> int:
        """The first offset of the earliest open transaction, or the high watermark (LSO-01)."""
        return max(self.log_start, min(self.open_txns.values(), default=self.high_watermark))


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic as the catalog knows it.

    ``schema`` is the Arrow schema in its text form, or None for a topic of Kafka records. ``version`` grows with each
    change, so that two who alter at once do not overwrite each other. ``config`` holds what was set, not the defaults.
    ``revision`` is the entry of the catalog's chain that made this value: it orders the copies in other chains.
    """

    name: str
    topic_id: str
    partitions: int
    schema: str | None = None
    key: str | None = None
    timestamp: str | None = None
    config: dict[str, str] = field(default_factory=dict)
    version: int = 0
    created_at: int = 0
    revision: int = 0


@dataclass(frozen=True, slots=True)
class Transaction:
    """What the coordinator knows of a transactional id: Kafka's ``TransactionMetadata``.

    ``epoch`` is the epoch of the current or next transaction; ``last_epoch`` that of the transaction that ended last
    (a retried commit carries it), ``previous_producer_id`` the producer id that went with it if that was another one.
    ``next_producer_id`` and ``next_epoch``: while it is prepared, the identity that follows its completion.
    ``topic_ids``: of each topic in other chains the ids under which it takes part, where its writers named them: a
    topic that is created again under its name is another one.
    ``held``: while an outside coordinator decides (KIP-939), the epoch that its batches have; such a transaction has no
    time-out. ``versions`` maps a job's scope to the last version it committed.
    """

    transactional_id: str
    producer_id: int
    epoch: int
    timeout_ms: int
    state: TxnState = TxnState.EMPTY
    last_epoch: int = NO_PRODUCER
    previous_producer_id: int = NO_PRODUCER
    next_producer_id: int = NO_PRODUCER
    next_epoch: int = NO_PRODUCER
    held: int = NO_PRODUCER
    partitions: frozenset[TopicPartition] = frozenset()
    groups: frozenset[str] = frozenset()
    topic_ids: Map[str, tuple[str, ...]] = field(default_factory=Map)
    started_at: int | None = None
    updated_at: int = 0
    versions: Map[str, int] = field(default_factory=Map)

    @property
    def data_epoch(self) -> int:
        """The epoch that the batches of the open transaction have."""
        return self.epoch if self.held == NO_PRODUCER else self.held

    @property
    def outcome(self) -> Outcome | None:
        """How it will end, if that is decided and not all of its markers are known to be written."""
        return _DECIDED.get(self.state)

    def expired(self, now: int) -> bool:
        """Whether it is open for longer than its time-out at the time ``now`` (TMO-01); then anybody may abort it.

        A transaction that an outside coordinator decides never is (TPC-02).
        """
        started = self.started_at if self.state is TxnState.ONGOING and self.held == NO_PRODUCER else None
        return started is not None and started + self.timeout_ms < now


@dataclass(frozen=True, slots=True)
class OffsetAndMetadata:
    """A consumed position: the *next* offset to read, with a note of the application (OFF-15, OFF-19)."""

    offset: int
    metadata: str = ""
    leader_epoch: int = -1


@dataclass(frozen=True, slots=True)
class CommittedOffset:
    """An offset in a group with its place in the log of offset commits: the later one wins (OFF-11).

    ``topic_id``: the topic that was read; a topic that is created again under its name has another one (OFF-18).
    """

    value: OffsetAndMetadata
    position: int
    committed_at: int = 0
    topic_id: str | None = None


@dataclass(frozen=True, slots=True)
class Member:
    """A member of a group: a lease that it renews before ``session_timeout_ms`` have passed since ``seen_at``.

    ``topics``: what it reads, and how many partitions it saw in each. ``target``: the partitions that it is to read.
    ``held``: those that nobody else may read: it was given them, and has not given them back. It reads what is in both.
    ``instance_id``: the name under which a static member comes back (KIP-345).
    """

    member_id: str
    topics: dict[str, int]
    assignor: str
    session_timeout_ms: int
    instance_id: str | None = None
    seen_at: int = 0
    target: tuple[TopicPartition, ...] = ()
    held: tuple[TopicPartition, ...] = ()

    @property
    def assigned(self) -> tuple[TopicPartition, ...]:
        """The partitions that it may read now."""
        return tuple(tp for tp in self.target if tp in self.held)

    def expired(self, now: int) -> bool:
        """Whether its lease has run out at the time ``now`` of the chain: then others may take its place."""
        return self.seen_at + self.session_timeout_ms < now


@dataclass(frozen=True, slots=True)
class Group:
    """A consumer group: committed offsets, the pending ones of each open transaction, and its members.

    ``generation`` grows with every change of the members; ``emptied_at`` is when the last one was gone.
    """

    offsets: Map[TopicPartition, CommittedOffset] = field(default_factory=Map)
    pending: Map[int, Map[TopicPartition, CommittedOffset]] = field(default_factory=Map)
    generation: int = -1
    last_producer: tuple[int, int] | None = None
    members: Map[str, Member] = field(default_factory=Map)
    emptied_at: int = 0


@dataclass(frozen=True, slots=True)
class State:
    """The state of a chain after entry ``sequence``: the fold of the events of entries 1 … ``sequence``.

    ``chain`` is its number, of ``chains`` in the store. ``seen``: of each other chain the last entry that this state
    follows from; a cut over all chains is consistent if it goes at least as far. ``deleted``, in a chain that has only
    copies of the catalog: topics that are deleted, or being deleted, and the newest revision that this concerns. No
    copy of at most that revision takes anything (:meth:`is_closed`). ``fences``: by producer id, for producers of other
    chains (:mod:`txnstore.core.fences`).
    """

    chain: int = 0
    chains: int = 1
    sequence: int = 0
    entry_hash: str = ""
    timestamp: int = 0
    next_producer_id: int = 0
    next_offset_position: int = 0
    topics: Map[str, Topic] = field(default_factory=Map)
    partitions: Map[TopicPartition, Partition] = field(default_factory=Map)
    transactions: Map[str, Transaction] = field(default_factory=Map)
    transactional_ids: Map[int, str] = field(default_factory=Map)
    groups: Map[str, Group] = field(default_factory=Map)
    dropped: Map[str, int] = field(default_factory=Map)
    seen: Map[int, int] = field(default_factory=Map)
    deleted: Map[str, int] = field(default_factory=Map)
    fences: Map[int, Fence] = field(default_factory=Map)

    def is_closed(self, topic: Topic) -> bool:
        """Whether a topic is being deleted: its records can be read until the catalog has deleted it."""
        return self.deleted.get(topic.name, -1) >= topic.revision

    def partition(self, tp: TopicPartition) -> Partition | None:
        """The partition log, or None if there is no such partition."""
        return self.partitions.get(tp)

    def sorted_topics(self) -> list[Topic]:
        """The topics by name."""
        return sorted(self.topics.values(), key=lambda topic: topic.name)

    def partitions_of(self, topic: str) -> Iterator[tuple[TopicPartition, Partition]]:
        """The partitions of a topic in order."""
        for number in range(self.topics[topic].partitions):
            tp = TopicPartition(topic, number)
            yield tp, self.partitions[tp]


def next_sequence(sequence: int, increment: int = 1) -> int:
    """``sequence + increment``, wrapped past :data:`MAX_SEQUENCE` (SEQ-05)."""
    return (sequence + increment) % (MAX_SEQUENCE + 1)


def sorted_tps(tps: Iterable[TopicPartition]) -> list[TopicPartition]:
    """The partitions in a stable order."""
    return sorted(tps)
