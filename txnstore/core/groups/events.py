"""The events of consumer groups."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from txnstore.core.model import NO_PRODUCER, Outcome, TopicPartition


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupOffset:
    """One position of a group: the next offset to read in a partition of the topic with this id (None: not known)."""

    topic: str
    partition: int
    offset: int
    metadata: str = ""
    leader_epoch: int = -1
    topic_id: str | None = None

    @property
    def tp(self) -> TopicPartition:
        """The partition that was consumed."""
        return TopicPartition(self.topic, self.partition)


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetsCommitted:
    """A group's offsets were committed: at once, or pending the end of the transaction of ``producer_id``.

    The lease of ``member_id``, if it is a member's, is renewed.
    """

    type: Literal["OffsetsCommitted"] = "OffsetsCommitted"
    group: str
    offsets: list[GroupOffset]
    producer_id: int = NO_PRODUCER
    epoch: int = NO_PRODUCER
    member_id: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupMarkerWritten:
    """The pending offsets of a transaction became the group's offsets (COMMIT), or are gone (ABORT)."""

    type: Literal["GroupMarkerWritten"] = "GroupMarkerWritten"
    group: str
    producer_id: int
    epoch: int
    outcome: Outcome


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberJoined:
    """A member has a lease from now on, or reads other topics than before.

    ``topics``: what it reads and how many partitions it saw in each. ``replaces``: the member whose place it takes,
    with its partitions, because it has the same ``instance_id`` (KIP-345).
    """

    type: Literal["MemberJoined"] = "MemberJoined"
    group: str
    member_id: str
    topics: dict[str, int]
    assignor: str
    session_timeout_ms: int
    instance_id: str | None = None
    replaces: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberLeft:
    """A member is gone with all that it held: it left, or its lease had run out."""

    type: Literal["MemberLeft"] = "MemberLeft"
    group: str
    member_id: str
    reason: Literal["left", "expired"]


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberSeen:
    """A member renewed its lease. ``topics``: how many partitions it sees in each, if that has changed."""

    type: Literal["MemberSeen"] = "MemberSeen"
    group: str
    member_id: str
    topics: dict[str, int] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberPartitions:
    """The partitions that a member is to read, and those that nobody else may read until it gives them back."""

    member_id: str
    target: list[TopicPartition]
    held: list[TopicPartition]


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupRebalanced:
    """Partitions changed hands. ``members``: those for whom something is different now.

    A new ``generation``: the members, or what they read, have changed.
    """

    type: Literal["GroupRebalanced"] = "GroupRebalanced"
    group: str
    generation: int
    members: list[MemberPartitions]


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupDeleted:
    """A group is gone with all of its offsets, committed and pending (OFF-17)."""

    type: Literal["GroupDeleted"] = "GroupDeleted"
    group: str
