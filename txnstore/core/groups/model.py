"""The values of a consumer group: offsets, members."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from txnstore.core.model import Map, TopicPartition


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
class GroupMetadata:
    """The membership of a consumer, as ``send_offsets`` of a producer needs it (KIP-447: ``ConsumerGroupMetadata``).

    Attributes:
        group: The group.
        generation: The generation of the last poll; -1: a consumer that is no member, its partitions given by hand.
        member_id: The id of the member; empty if it is none.
        instance_id: The name of a static member (KIP-345).
        topic_ids: The ids of the topics that it reads. An offset of one that was created again meanwhile is refused
            (OFF-18).
    """

    group: str
    generation: int = -1
    member_id: str = ""
    instance_id: str | None = None
    topic_ids: Mapping[str, str] = field(default_factory=dict)
