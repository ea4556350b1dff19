"""What a caller may ask of a chain, and what it is answered."""

from __future__ import annotations

from dataclasses import dataclass

from txnstore.core.events import GroupOffset
from txnstore.core.model import NO_PRODUCER, Batch, NewBatch, Outcome, Topic, TopicPartition


@dataclass(frozen=True, slots=True)
class ProducerIdentity:
    """Who appends: producer id and epoch, and the transactional id if there is one."""

    producer_id: int = NO_PRODUCER
    epoch: int = NO_PRODUCER
    transactional_id: str | None = None

    def __str__(self) -> str:
        name = f"{self.transactional_id!r}, " if self.transactional_id is not None else ""
        return f"producer {name}id {self.producer_id}, epoch {self.epoch}"


@dataclass(frozen=True, slots=True)
class CreateTopic:
    """Create a topic. Answered with the :class:`~txnstore.core.model.Topic`."""

    topic: Topic


@dataclass(frozen=True, slots=True)
class AlterTopic:
    """Replace a topic's schema, settings, partition count. Refused if ``expected_version`` is not its version."""

    topic: Topic
    expected_version: int


@dataclass(frozen=True, slots=True)
class DeleteTopic:
    """Delete a topic. Answered with None.

    ``revision``: refused if it has another one; None: whatever it has. ``after``: for each other chain that leads a
    partition of it, an entry at which it is closed.
    """

    name: str
    revision: int | None = None
    after: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class InitProducer:
    """Grant a producer id and epoch; fence and recover the previous instance. Answered with a ProducerIdentity.

    Where the previous transaction has to be ended in other chains first, the answer is :class:`Unfinished`: finish it,
    then ask again. ``keep_held``: a transaction that an outside coordinator decides goes on under the new epoch
    (KIP-939); the answer is then :class:`Kept`. ``expected``: the (producer id, epoch) that the caller holds and wants
    bumped (KIP-360).
    """

    transactional_id: str | None = None
    timeout_ms: int = 60_000
    expected: tuple[int, int] | None = None
    keep_held: bool = False


@dataclass(frozen=True, slots=True)
class TxnOffsets:
    """Positions of a group to commit with a transaction. ``generation`` -1: without a membership (OFF-08)."""

    group: str
    offsets: tuple[GroupOffset, ...]
    generation: int = -1
    member_id: str = ""
    instance_id: str | None = None


@dataclass(frozen=True, slots=True)
class Append:
    """Append batches, in order; inside the open transaction if the identity is transactional.

    All or nothing. Answered with a tuple of :class:`Appended`, one a batch. In the coordinator's chain ``partitions``
    and ``groups`` of other chains join the transaction (AddPartitionsToTxn, AddOffsetsToTxn). In another chain
    ``added`` is what the coordinator answered to that. ``topic_ids``: pairs of name and id of the topics of
    ``partitions``, where they are known.
    """

    producer: ProducerIdentity
    batches: tuple[NewBatch, ...] = ()
    offsets: tuple[TxnOffsets, ...] = ()
    partitions: tuple[TopicPartition, ...] = ()
    groups: tuple[str, ...] = ()
    added: Added | None = None
    topic_ids: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Added:
    """The coordinator has partitions and groups of this chain in the open transaction.

    As of entry ``sequence`` of chain ``chain``, at the time ``timestamp`` in ms of that chain.
    """

    chain: int
    sequence: int
    timestamp: int


@dataclass(frozen=True, slots=True)
class EndTxn:
    """Append what is left, then commit or abort. Answered with :class:`Ended`.

    ``versions``: pairs of (scope, version) of an idempotent job; if one is committed already, nothing is done.
    ``after``: for each other chain that takes part, an entry at which all of its batches and offsets are there.
    """

    producer: ProducerIdentity
    outcome: Outcome
    batches: tuple[NewBatch, ...] = ()
    offsets: tuple[TxnOffsets, ...] = ()
    versions: tuple[tuple[str, int], ...] = ()
    after: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class HoldTxn:
    """All is written, and an outside coordinator decides: no timeout from now on (KIP-939). Answered with None.

    In another chain that takes part: accept nothing more of the transaction. ``after``: then the coordinator's chain
    and its entry that holds the same.
    """

    producer: ProducerIdentity
    after: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class FenceProducer:
    """Accept nothing of an older epoch from a producer of another chain. Answered with None.

    ``after``: the coordinator's chain and its entry that granted the epoch.
    """

    producer: ProducerIdentity
    partitions: tuple[TopicPartition, ...]
    groups: tuple[str, ...]
    after: tuple[int, int]


@dataclass(frozen=True, slots=True)
class AbortTxn:
    """Abort a transaction that another process left, if it is still open. Answered with :class:`Unfinished` or None.

    Its owner is fenced. ``identity``: the (producer id, epoch) of the transaction that is meant; None: whichever is
    open. ``expired_only``: only if it is past its time-out by the time of the chain (TMO-01).
    """

    transactional_id: str
    identity: tuple[int, int] | None = None
    expired_only: bool = False


@dataclass(frozen=True, slots=True)
class WriteMarkers:
    """Write the markers of a decided transaction in a chain that takes part in it. Answered with None.

    May be repeated at any time by anybody: a marker that is there is not written again (END-08).
    ``after``: the coordinator's chain and its entry that holds the decision. ``told``: the chain has been told what the
    catalog knows of the topics, so what it does not know is deleted; else it refuses the command.
    """

    decided: Unfinished
    after: tuple[int, int]
    told: bool = False


@dataclass(frozen=True, slots=True)
class CompleteTxn:
    """All markers of a decided transaction are written. Answered with None, also if that was known already.

    ``after``: for each chain that took part, an entry at which its markers are there.
    """

    decided: Unfinished
    after: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class CopyTopic:
    """Take over what the catalog's chain says of a topic, unless something newer is known. Answered with None.

    ``topic`` None: it was deleted. ``revision``: the entry of the catalog's chain that said so.
    """

    name: str
    topic: Topic | None
    revision: int


@dataclass(frozen=True, slots=True)
class CloseTopic:
    """Take no more records of a topic that is about to be deleted, and no copy of it. Answered with None.

    Without an effect on a copy that is newer than ``revision``: the deletion is refused by the catalog then.
    """

    name: str
    revision: int


@dataclass(frozen=True, slots=True)
class CommitOffsets:
    """Commit positions of a group outside a transaction. Answered with None."""

    offsets: TxnOffsets


@dataclass(frozen=True, slots=True)
class JoinGroup:
    """Become a member of a group, or change what a member reads. Answered with a :class:`Membership`.

    ``topics``: the topics to read, each with its number of partitions as the caller sees it: another chain may hold
    them. ``instance_id``: of a static member; it takes the place of the member that had the name (KIP-345).
    """

    group: str
    member_id: str
    topics: tuple[tuple[str, int], ...]
    assignor: str = "cooperative-sticky"
    session_timeout_ms: int = 45_000
    instance_id: str | None = None


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """Renew a member's lease and say which partitions it still reads. Answered with a :class:`Membership`.

    ``topics`` as in :class:`JoinGroup`; None: as before.
    """

    group: str
    member_id: str
    owned: tuple[TopicPartition, ...]
    topics: tuple[tuple[str, int], ...] | None = None
    instance_id: str | None = None


@dataclass(frozen=True, slots=True)
class LeaveGroup:
    """Stop being a member; also one that is gone already is content. Answered with None.

    ``instance_id``: the static member of this name is meant, whatever its ``member_id``.
    """

    group: str
    member_id: str = ""
    instance_id: str | None = None


@dataclass(frozen=True, slots=True)
class ResetOffsets:
    """Set positions of a group that has no live member. Answered with None."""

    offsets: TxnOffsets


@dataclass(frozen=True, slots=True)
class DeleteGroup:
    """Delete a group that has no live member, with its offsets, committed and pending. Answered with None."""

    group: str


@dataclass(frozen=True, slots=True)
class ReplaceSegments:
    """Put merged batches in the place of others. Refused if one of ``removed`` is gone or not below the HW rule.

    ``uploaded_at``: when the first of ``added`` was uploaded, in ms; see :class:`~txnstore.core.model.NewBatch`.
    """

    tp: TopicPartition
    removed: tuple[Batch, ...]
    added: tuple[Batch, ...]
    uploaded_at: int | None = None


@dataclass(frozen=True, slots=True)
class DropObjects:
    """Announce the deletion of segments. Answered with the keys that may be deleted: those that nothing names.

    The chain orders it with the appends: one that came before keeps its segment, one that comes after is refused.
    """

    keys: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ForgetObjects:
    """Forget objects that were dropped and deleted long ago. Answered with None."""

    keys: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Expire:
    """Forget what was unused for so many milliseconds, by the time of the chain. Answered with :class:`Expired`.

    ``producer_ms``: Kafka's ``producer.id.expiration.ms``; ``transactional_id_ms``: its
    ``transactional.id.expiration.ms``; ``offsets_ms``: its ``offsets.retention.minutes``.
    """

    producer_ms: int = 86_400_000
    transactional_id_ms: int = 7 * 86_400_000
    offsets_ms: int = 7 * 86_400_000


Command = (
    CreateTopic
    | AlterTopic
    | DeleteTopic
    | InitProducer
    | Append
    | EndTxn
    | HoldTxn
    | FenceProducer
    | AbortTxn
    | WriteMarkers
    | CompleteTxn
    | CopyTopic
    | CloseTopic
    | CommitOffsets
    | JoinGroup
    | Heartbeat
    | LeaveGroup
    | ResetOffsets
    | DeleteGroup
    | ReplaceSegments
    | DropObjects
    | ForgetObjects
    | Expire
)


@dataclass(frozen=True, slots=True)
class Expired:
    """What a chain has forgotten: producers (once a partition, once as a fence), transactional ids, offsets, groups.

    ``more``: not all of it, because an entry has its limits; the same command again goes on.
    """

    producers: int = 0
    transactional_ids: tuple[str, ...] = ()
    offsets: int = 0
    groups: tuple[str, ...] = ()
    more: bool = False


@dataclass(frozen=True, slots=True)
class Membership:
    """What a member is told: the generation of its group, and the partitions that it may read now."""

    member_id: str
    generation: int
    assigned: tuple[TopicPartition, ...]


@dataclass(frozen=True, slots=True)
class Appended:
    """Where a batch landed: offsets ``[base_offset, limit)``. ``duplicate``: an earlier attempt had put it there.

    Both offsets are -1 if an end is repeated so late that a compaction has merged the batch already.
    """

    tp: TopicPartition
    base_offset: int
    limit: int
    timestamp: int
    duplicate: bool = False


@dataclass(frozen=True, slots=True)
class Unfinished:
    """A transaction whose outcome is decided, and which still has to be ended in other chains.

    ``partitions`` and ``groups``: all that take part. The marker's epoch is ``epoch + 1`` (KIP-890). ``topic_ids``:
    pairs of name and id of the topics in other chains, where they are known.
    """

    transactional_id: str
    producer_id: int
    epoch: int
    outcome: Outcome
    partitions: tuple[TopicPartition, ...]
    groups: tuple[str, ...]
    topic_ids: tuple[tuple[str, str], ...] = ()

    def names(self, topic: Topic) -> bool:
        """Whether the transaction takes part in this topic, and not only in another one that had its name."""
        known = {topic_id for name, topic_id in self.topic_ids if name == topic.name}
        return not known or topic.topic_id in known


@dataclass(frozen=True, slots=True)
class Kept:
    """An identity whose transaction goes on, and where it takes part: there its old epoch is to be fenced."""

    producer: ProducerIdentity
    partitions: tuple[TopicPartition, ...]
    groups: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Ended:
    """How a transaction ended: the identity of the next one, and where its last batches landed.

    ``unfinished``: it is decided and durable, but other chains have still to be told.

    ``repeated``: the version of the job was committed before, so nothing was committed now; what was still open of this
    attempt is aborted.
    """

    producer: ProducerIdentity
    appended: tuple[Appended, ...] = ()
    repeated: bool = False
    unfinished: Unfinished | None = None
