"""The events of consumer groups."""

from __future__ import annotations

from typing import Literal

from txnstore.core.groups.model import ClassicMember
from txnstore.core.model import NO_PRODUCER, Outcome, TopicPartition, value_class


@value_class(kw_only=True)
class GroupOffset:
    """An offset of a group: the next offset to read in a partition of the topic with this id (None: not known)."""

    topic: str
    partition: int
    offset: int
    metadata: str = ""
    leader_epoch: int = -1
    topic_id: str | None = None

    @property
    def tp(self) -> TopicPartition:
        """The partition."""
        return TopicPartition(self.topic, self.partition)


@value_class(kw_only=True)
class OffsetsCommitted:
    """Offsets of a group were committed: immediately, or as pending in the transaction of ``producer_id``.

    The lease of the member ``member_id``, if there is one, is renewed.
    """

    type: Literal["OffsetsCommitted"] = "OffsetsCommitted"
    group: str
    offsets: list[GroupOffset]
    producer_id: int = NO_PRODUCER
    epoch: int = NO_PRODUCER
    member_id: str = ""


@value_class(kw_only=True)
class GroupMarkerWritten:
    """The pending offsets of a transaction were applied (COMMIT) or removed (ABORT). ``epoch``: that after its own."""

    type: Literal["GroupMarkerWritten"] = "GroupMarkerWritten"
    group: str
    producer_id: int
    epoch: int
    outcome: Outcome


@value_class(kw_only=True)
class MemberJoined:
    """A member got a lease, or changed its topics.

    ``topics``: the number of partitions that it has seen in each topic that it reads. ``replaces``: the member with
    the same ``instance_id`` whose partitions it takes over (KIP-345).
    """

    type: Literal["MemberJoined"] = "MemberJoined"
    group: str
    member_id: str
    topics: dict[str, int]
    assignor: str
    session_timeout_ms: int
    instance_id: str | None = None
    replaces: str = ""


@value_class(kw_only=True)
class MemberLeft:
    """A member was removed, with the partitions that it held: it left, or its lease had expired."""

    type: Literal["MemberLeft"] = "MemberLeft"
    group: str
    member_id: str
    reason: Literal["left", "expired"]


@value_class(kw_only=True)
class MemberSeen:
    """A member renewed its lease. ``topics``: the number of partitions in each topic, if that has changed."""

    type: Literal["MemberSeen"] = "MemberSeen"
    group: str
    member_id: str
    topics: dict[str, int] | None = None


@value_class(kw_only=True)
class MemberPartitions:
    """The target of a member, and its held partitions, which no other member may read until it releases them."""

    member_id: str
    target: list[TopicPartition]
    held: list[TopicPartition]


@value_class(kw_only=True)
class GroupRebalanced:
    """Targets or held partitions changed. ``members``: those whose partitions changed.

    The ``generation`` is a new one if the members or their topics have changed.
    """

    type: Literal["GroupRebalanced"] = "GroupRebalanced"
    group: str
    generation: int
    members: list[MemberPartitions]


@value_class(kw_only=True)
class MemberReconciled:
    """A member of a group of the kind ``consumer`` reads nothing but its targets of the generation ``epoch``."""

    type: Literal["MemberReconciled"] = "MemberReconciled"
    group: str
    member_id: str
    epoch: int


@value_class(kw_only=True)
class GroupDeleted:
    """A group was deleted with its committed and pending offsets (OFF-17)."""

    type: Literal["GroupDeleted"] = "GroupDeleted"
    group: str


@value_class(kw_only=True)
class GenerationStored:
    """A gateway stored a generation of a classic group: all values are new. Without ``members`` the group is empty."""

    type: Literal["GenerationStored"] = "GenerationStored"
    group: str
    generation: int
    protocol_type: str | None
    protocol: str | None
    leader: str | None
    members: list[ClassicMember]


@value_class(kw_only=True)
class OffsetsDeleted:
    """The committed and pending offsets of these partitions were removed from a group (KIP-496, OFF-17)."""

    type: Literal["OffsetsDeleted"] = "OffsetsDeleted"
    group: str
    partitions: list[TopicPartition]
