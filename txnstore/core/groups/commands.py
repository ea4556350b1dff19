"""The commands of consumer groups, and their answers."""

from __future__ import annotations

from dataclasses import dataclass

from txnstore.core.groups.events import GroupOffset
from txnstore.core.model import TopicPartition


@dataclass(frozen=True, slots=True)
class TxnOffsets:
    """Positions of a group to commit with a transaction. ``generation`` -1: without a membership (OFF-08)."""

    group: str
    offsets: tuple[GroupOffset, ...]
    generation: int = -1
    member_id: str = ""
    instance_id: str | None = None


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
class Membership:
    """What a member is told: the generation of its group, and the partitions that it may read now."""

    member_id: str
    generation: int
    assigned: tuple[TopicPartition, ...]
