"""The values of consumer groups: offsets and members."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from txnstore.core.model import Features, Map, TopicPartition, value_class


@dataclass(frozen=True, slots=True)
class OffsetAndMetadata:
    """The *next* offset to read, with metadata of the application (OFF-15, OFF-19; Kafka: ``OffsetAndMetadata``)."""

    offset: int
    metadata: str = ""
    leader_epoch: int = -1


@value_class()
class CommittedOffset:
    """A committed or pending offset of a group.

    Attributes:
        commit_position: The number of this offset in the order of all offset commits of the chain. The
            later one wins (OFF-11).
        committed_at: The time of the commit in ms.
        topic_id: The topic that was read; a topic that is created again under its name has another id (OFF-18).
    """

    value: OffsetAndMetadata
    commit_position: int
    committed_at: int = 0
    topic_id: str | None = None


@dataclass(frozen=True)
class Member:
    """A member of a group, with a lease of ``session_timeout_ms`` from ``seen_at`` on.

    Attributes:
        topics: The number of partitions that it has seen in each topic that it reads.
        assignor: The assignor that it asks for.
        session_timeout_ms: The length of the lease in ms.
        instance_id: The name of a static member, which it keeps over restarts (KIP-345).
        seen_at: The time of the last renewal in ms.
        target: The partitions that it is to read.
        held: The partitions that no other member may read, because this one has not released them.
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
        """The partitions that it may read now: targets that it holds."""
        return tuple(tp for tp in self.target if tp in self.held)

    @property
    def expires_at(self) -> int:
        """When its lease ends unless it is renewed, in ms."""
        return self.seen_at + self.session_timeout_ms

    def is_expired(self, now: int) -> bool:
        """Whether its lease has expired at the time ``now`` (ms), if the clock of its writer is right.

        ``chain.ages.Ages`` decides whether others may remove it.
        """
        return self.seen_at + self.session_timeout_ms < now


@dataclass(frozen=True, slots=True)
class PartitionHolder:
    """A member that holds partitions for which another member of its group waits.

    Attributes:
        member_id: The id of the member, which ends with the host and the process that it runs in.
        instance_id: The name of a static member (KIP-345), or None.
        partitions: The partitions.
        expires_at: When its lease ends unless it is renewed, in milliseconds since the epoch; then others may read
            them. They may sooner, if the member polls or closes.
    """

    member_id: str
    instance_id: str | None
    partitions: tuple[TopicPartition, ...]
    expires_at: int


@value_class()
class ClassicMember:
    """A member of a classic group. A gateway times it; in the chain it has no lease.

    Attributes:
        instance_id: The name of a static member (KIP-345), or None.
        client_id: The ``client.id`` of its requests.
        client_host: The address that they come from.
        rebalance_timeout_ms: The time that it has to join again in a rebalance, in ms.
        subscription: What it has sent for the protocol of the generation; only its clients know what it means.
        assignment: What the leader has given to it.
    """

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    subscription: bytes
    assignment: bytes

    @property
    def lasting_name(self) -> tuple[Literal["instance", "member"], str]:
        """The name that the member keeps over restarts: its static name, else its id."""
        return ("member", self.member_id) if self.instance_id is None else ("instance", self.instance_id)


@value_class()
class ClassicGeneration:
    """The generation of a classic group as a gateway has stored it (Kafka: ``GroupMetadataValue``).

    Attributes:
        protocol_type: The type of its protocols: ``consumer``, ``connect`` or another one; None: not known.
        protocol: The protocol that the members have agreed on; None without members.
        leader: The id of the member that has assigned; None without members.
        members: The members, sorted by id.
        stored_at: The time of the entry in ms.
    """

    protocol_type: str | None
    protocol: str | None
    leader: str | None
    members: tuple[ClassicMember, ...]
    stored_at: int = 0


#: ``native``: the members have leases in the chain. A gateway keeps the members of the others: of Kafka's protocol
#: ``classic``, or ``consumer`` (KIP-848).
GroupKind = Literal["native", "classic", "consumer"]

#: The feature of the format that a chain with groups of gateways requires of its writers, who would otherwise accept
#: offsets of members that are fenced.
GROUPS = Features(write=("groups",))


@dataclass(frozen=True)
class Group:
    """A consumer group.

    Attributes:
        pending: The pending offsets of each open transaction, by producer id.
        generation: Grows with every change of the members; -1 before the first member.
        last_producer: The (producer id, epoch) of the last transaction that committed offsets.
        members: The members that the chain assigns to, by id.
        emptied_at: The last time at which its last member was removed, in ms; kept when members join again, 0: never.
        classic: What a gateway has stored last of a classic group; None: it is none. It has members only if ``members``
            is empty.
        epochs: The generation that each of ``members`` has reconciled, in a group of the kind ``consumer``: its commits
            name it; None: the group is none.
    """

    offsets: Map[TopicPartition, CommittedOffset] = field(default_factory=Map)
    pending: Map[int, Map[TopicPartition, CommittedOffset]] = field(default_factory=Map)
    generation: int = -1
    last_producer: tuple[int, int] | None = None
    members: Map[str, Member] = field(default_factory=Map)
    emptied_at: int = 0
    classic: ClassicGeneration | None = None
    epochs: Map[str, int] | None = None

    @property
    def kind(self) -> GroupKind:
        """The kind of the group, which can change while it has no members."""
        if self.classic is not None:
            return "classic"
        return "native" if self.epochs is None else "consumer"

    @property
    def has_members_at_gateway(self) -> bool:
        """Whether a gateway keeps members: they have no leases, and are live until it removes them."""
        return bool(self.classic_members) or (self.epochs is not None and bool(self.members))

    @property
    def classic_members(self) -> tuple[ClassicMember, ...]:
        """The members that a gateway keeps."""
        return () if self.classic is None else self.classic.members


@dataclass(frozen=True, slots=True)
class GroupMetadata:
    """The membership of a consumer, for ``send_offsets`` of a producer (KIP-447: ``ConsumerGroupMetadata``).

    Attributes:
        group: The group.
        generation: The generation of the last poll; -1 for a consumer that is no member, with partitions assigned by
            hand.
        member_id: The id of the member; empty for a consumer that is no member.
        instance_id: The name of a static member (KIP-345).
        topic_ids: The ids of the topics that it reads. An offset of a topic that was created again since is refused
            (OFF-18).
    """

    group: str
    generation: int = -1
    member_id: str = ""
    instance_id: str | None = None
    topic_ids: Mapping[str, str] = field(default_factory=dict)
