"""The commands of consumer groups, and their answers."""

from __future__ import annotations

from typing import Literal

from txnstore.core.groups.events import GroupOffset
from txnstore.core.groups.model import ClassicMember
from txnstore.core.model import Command, TopicPartition, value_class

#: Members whose leases the caller has measured to be over: each id with the time in ms of the newest renewal that the
#: caller knew. A command removes those that have not renewed their leases since (``docs/internals/design/fences.md``).
ExpiredMembers = tuple[tuple[str, int], ...]


@value_class()
class TxnOffsets:
    """Offsets of a group to commit, with the membership of the caller.

    Attributes:
        offsets: The next offset to read, by partition.
        generation: The generation of the membership; -1 without a membership (OFF-08).
        member_id: The id of the member; empty without a membership.
        instance_id: The name of a static member (KIP-345).
        expired: The members whose leases have expired.
        catalog: The entry of the catalog's chain up to which the caller has read the ids of the topics; None if the
            chain of the group knows them itself.
    """

    group: str
    offsets: tuple[GroupOffset, ...]
    generation: int = -1
    member_id: str = ""
    instance_id: str | None = None
    expired: ExpiredMembers = ()
    catalog: int | None = None


@value_class()
class CommitOffsets(Command):
    """Commit offsets of a group outside a transaction. Answered with None."""

    offsets: TxnOffsets


@value_class()
class JoinGroup(Command):
    """Join a group, or change the topics of a member. Answered with a :class:`Membership`.

    Attributes:
        topics: Pairs of (topic, number of partitions as the caller sees it); another chain may lead the partitions.
        assignor: The assignor that the member asks for.
        session_timeout_ms: The length of the lease in ms.
        instance_id: The name of a static member, which replaces the member that has this name (KIP-345).
        expired: The members whose leases have expired; of the kind ``consumer``: those that the gateway has timed out.
        kind: ``native``, or ``consumer``: a gateway joins for a client of KIP-848.
    """

    group: str
    member_id: str
    topics: tuple[tuple[str, int], ...]
    assignor: str = "cooperative-sticky"
    session_timeout_ms: int = 45_000
    instance_id: str | None = None
    expired: ExpiredMembers = ()
    kind: Literal["native", "consumer"] = "native"


@value_class()
class Heartbeat(Command):
    """Renew the lease of a member and report the partitions that it still reads. Answered with a :class:`Membership`.

    A member of the kind ``consumer`` has no lease: for it the command writes only changes.

    Attributes:
        owned: The partitions that the member still reads; it releases the held ones that are neither among these nor
            among its targets. None: it releases none.
        topics: As in :class:`JoinGroup`; None: unchanged.
        instance_id: The name of a static member (KIP-345).
        expired: The members whose leases have expired.
    """

    group: str
    member_id: str
    owned: tuple[TopicPartition, ...] | None
    topics: tuple[tuple[str, int], ...] | None = None
    instance_id: str | None = None
    expired: ExpiredMembers = ()


@value_class()
class LeaveGroup(Command):
    """Leave a group; without effect if there is no such member. Answered with None.

    With ``instance_id`` the static member of this name leaves; if ``member_id`` is given as well, it must be its id.
    The members ``expired`` leave in any case: with neither name they alone do, whom a gateway has timed out.
    """

    group: str
    member_id: str = ""
    instance_id: str | None = None
    expired: ExpiredMembers = ()


@value_class()
class ResetOffsets(Command):
    """Set offsets of a group that has no live member. Answered with None."""

    offsets: TxnOffsets


@value_class()
class DeleteGroup(Command):
    """Delete a group that has no live member, with its committed and pending offsets. Answered with None."""

    group: str
    expired: ExpiredMembers = ()


@value_class()
class StoreGeneration(Command):
    """Store a generation of a classic group; the gateway that coordinates the group asks. Answered with None.

    Attributes:
        expected: The generation that is stored; -1 if there is no group, or it has never had members.
        generation: The new one, above ``expected``; the same one if static members are replaced.
        protocol: The protocol that the members have agreed on; of no meaning without members.
        leader: The id of the member that has assigned; of no meaning without members.
        members: All members; none: the group is empty.
        replaces: Within a generation: the ids of the members whose static names others have now (KIP-345).
        expired: The members with leases that have expired, of a group that was native.
    """

    group: str
    expected: int
    generation: int
    protocol_type: str | None
    protocol: str | None
    leader: str | None
    members: tuple[ClassicMember, ...]
    replaces: tuple[str, ...] = ()
    expired: ExpiredMembers = ()


@value_class()
class DeleteOffsets(Command):
    """Delete committed and pending offsets of a group (KIP-496).

    Answered with the partitions whose offsets stay, because a live member reads their topic: a tuple, sorted.
    """

    group: str
    partitions: tuple[TopicPartition, ...]
    expired: ExpiredMembers = ()


@value_class()
class Membership:
    """The answer to a member: the generation of its group, and the partitions that it may read now.

    The generation for a member of the kind ``consumer`` is its epoch: the one that it has reconciled (KIP-848).
    """

    member_id: str
    generation: int
    assigned: tuple[TopicPartition, ...]
