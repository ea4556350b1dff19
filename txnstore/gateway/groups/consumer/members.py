"""Members of groups of KIP-848: what a gateway knows of them, and what of their heartbeats it decides. No I/O.

The chain assigns partitions and keeps members and their epochs (``docs/internals/design/groups.md``). A gateway
adds what it alone can know: when a member last sent a request, what it was sent, and what the chain does not keep: its
client, and its regular expression. All of this may be lost: a client sends it again when it changes its coordinator.
Heartbeats are kio's messages; in one of version 0 the fields of version 1 are missing. The reference is Kafka's
``GroupMetadataManager``; where this differs, a comment says why.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from functools import lru_cache

import pyarrow as pa
import pyarrow.compute as pc
from kio.schema.consumer_group_heartbeat.v1.request import ConsumerGroupHeartbeatRequest
from kio.schema.errors import ErrorCode

from txnstore.core.groups.assignors import ASSIGNORS as CHAIN_ASSIGNORS
from txnstore.core.groups.assignors import assignor_of
from txnstore.core.groups.model import Group, Member
from txnstore.core.model import TopicPartition, items_of
from txnstore.gateway.errors import RefusedError
from txnstore.gateway.properties import Properties

#: What a member sends.
MemberHeartbeat = ConsumerGroupHeartbeatRequest
#: Epochs of requests: to join; to leave; to leave as a static member that will come back.
JOINING, LEAVING, LEAVING_FOR_NOW = 0, -1, -2
#: The assignors of brokers, the default first, and the names that they have in the chain.
ASSIGNORS = {"uniform": "cooperative-sticky", "range": "range"}
#: The rebalance timeout of a member whose client has not sent it to this gateway yet (``max.poll.interval.ms``).
_REBALANCE_MS = 300_000
#: The first version of ConsumerGroupHeartbeat in which clients choose their member ids (KIP-1082).
_ID_OF_CLIENT = 1


@dataclass(slots=True)
class KeptMember:
    """What a gateway itself knows of a member. Times are in ms of a monotonic clock.

    Attributes:
        expires_at: When its session ends.
        names: The topics that it names; of a member that another gateway has served: all that it reads.
        regex: Its regular expression; empty: none.
        is_heard: Whether it has sent anything to this gateway.
        is_away: Whether it has left for now, as a static member.
        epoch: The epoch that it was sent last.
        previous: The epoch before that one; None: not known.
        sent: The assignment that it was sent last, in the form of the response; None: not known.
        revoke_by: When it must have given up partitions; None: it has none to give up.
    """

    expires_at: int
    names: frozenset[str] = frozenset()
    regex: str = ""
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    rebalance_timeout_ms: int = _REBALANCE_MS
    is_heard: bool = False
    is_away: bool = False
    epoch: int | None = None
    previous: int | None = None
    sent: object = None
    revoke_by: int | None = None

    @property
    def deadline(self) -> int:
        """When it is to be removed unless it sends a request."""
        return self.expires_at if self.revoke_by is None else min(self.expires_at, self.revoke_by)

    def hear(self, request: MemberHeartbeat, client_id: str, client_host: str, now: int, session_ms: int) -> None:
        """Note what a request says; :func:`check_request` has accepted it."""
        self.expires_at = now + session_ms
        names, regex = request.subscribed_topic_names, _regex(request)
        if regex and names is None and not self.is_heard:
            self.names = frozenset()  # What the expression matched for another gateway is not what the client names.
        self.names = self.names if names is None else frozenset(names)
        self.regex = self.regex if regex is None else regex
        self.rack_id = self.rack_id if request.rack_id is None else request.rack_id
        if _has_timeout(request):
            self.rebalance_timeout_ms = int(request.rebalance_timeout.total_seconds() * 1000)
        self.client_id, self.client_host = client_id, client_host
        self.is_heard, self.is_away = True, False

    def await_release(self, member: Member, now: int) -> None:
        """From the heartbeat on whose response tells it, a member has its rebalance timeout to give up partitions."""
        if self.revoke_by is None and not is_released(member):
            self.revoke_by = now + self.rebalance_timeout_ms

    def tell(self, epoch: int, assignment: object) -> bool:
        """Note what a response says; returns whether the assignment is another one than before."""
        if epoch != self.epoch:
            self.epoch, self.previous = epoch, self.epoch if self.epoch is not None else JOINING
        is_new = self.sent != assignment
        self.sent = assignment
        return is_new


@dataclass(slots=True)
class KeptGroup:
    """The members of a group that a gateway times; ``is_removing``: it removes those whose sessions have ended."""

    properties: Properties
    members: dict[str, KeptMember] = field(default_factory=dict)
    is_removing: bool = False

    def follow(self, group: Group, now: int) -> None:
        """Keep the members that the chain has; one that is new here has its full session."""
        stored: Mapping[str, Member] = {} if group.epochs is None else group.members
        for member_id in [member_id for member_id in self.members if member_id not in stored]:
            del self.members[member_id]
        for member_id, member in stored.items():
            kept = self.members.get(member_id)
            if kept is None:
                expires_at = now + self.properties.group_consumer_session_timeout_ms
                kept = self.members[member_id] = KeptMember(expires_at, frozenset(member.topics))
            epoch = _epoch(group, member_id)
            if kept.epoch != epoch:  # Another gateway has sent it one.
                kept.epoch, kept.previous, kept.sent = epoch, None, None
            if is_released(member):
                kept.revoke_by = None

    def renew(self, now: int) -> None:
        """Give all members their full times: this process was paused, and they could not reach it."""
        for kept in self.members.values():
            kept.expires_at = now + self.properties.group_consumer_session_timeout_ms
            kept.revoke_by = None

    @property
    def deadline(self) -> int | None:
        """When the next member is to be removed; None: there is none, or others are being removed."""
        return None if self.is_removing else min((kept.deadline for kept in self.members.values()), default=None)

    @property
    def idle(self) -> bool:
        """Whether it needs no memory: it has no members."""
        return not self.members and not self.is_removing

    def overdue(self, now: int) -> list[str]:
        """The members that are to be removed."""
        return sorted(member_id for member_id, kept in self.members.items() if kept.deadline <= now)


# Requests -------------------------------------------------------------------------------------------------------------


def check_request(request: MemberHeartbeat) -> None:
    """Check a request by itself.

    Raises:
        RefusedError: It is not valid, or asks for an unknown assignor.
    """
    for what, text in (
        ("GroupId", request.group_id),
        ("InstanceId", request.instance_id),
        ("RackId", request.rack_id),
    ):
        if text is not None and not text.strip():
            raise _invalid(f"{what} can't be empty.")
    if request.member_epoch < LEAVING_FOR_NOW:
        raise _invalid("MemberEpoch is invalid.")
    may_lack_id = request.__version__ < _ID_OF_CLIENT and request.member_epoch == JOINING
    if not request.member_id.strip() and not may_lack_id:
        raise _invalid("MemberId can't be empty.")
    if request.member_epoch == JOINING:
        if not _has_timeout(request):
            raise _invalid("RebalanceTimeoutMs must be provided in first request.")
        if request.topic_partitions is None or request.topic_partitions:
            raise _invalid("TopicPartitions must be empty when (re-)joining.")
        # None of the topics has to exist, and there may be none: such a member is a part of the group.
        if request.subscribed_topic_names is None and _regex(request) is None:
            raise _invalid("Either SubscribedTopicNames or SubscribedTopicRegex must be non-null when (re-)joining.")
    if request.member_epoch == LEAVING_FOR_NOW and request.instance_id is None:
        raise _invalid("InstanceId can't be null.")
    if request.server_assignor is not None and request.server_assignor not in ASSIGNORS:
        names = ", ".join(ASSIGNORS)
        message = f"ServerAssignor {request.server_assignor} is not supported. Supported assignors: {names}."
        raise RefusedError(ErrorCode.unsupported_assignor, message)
    if regex := _regex(request):
        matching(regex, ())


def is_full(request: MemberHeartbeat) -> bool:
    """Whether a client has sent all it has, and so asks for its assignment."""
    has_topics = request.subscribed_topic_names is not None or bool(_regex(request))
    return request.member_epoch == JOINING or (
        _has_timeout(request) and has_topics and request.topic_partitions is not None
    )


def _regex(request: MemberHeartbeat) -> str | None:
    """The regular expression for further topics; empty: none, None: the same as before."""
    regex: str | None = getattr(request, "subscribed_topic_regex", None)
    return regex


def _has_timeout(request: MemberHeartbeat) -> bool:
    """Whether a request has a rebalance timeout; without one it is -1, for the same one as before."""
    return request.rebalance_timeout.total_seconds() >= 0


def member_before(
    group: Group, kept: KeptGroup, request: MemberHeartbeat, owned: Collection[TopicPartition] | None
) -> Member | None:
    """The member that a request is of: the same one, or that whose static name it takes over. None: it is new.

    Raises:
        RefusedError: The member does not exist, another one has its name, its epoch is another one, or the group is
            full.
    """
    members: Mapping[str, Member] = {} if group.epochs is None else group.members
    member = members.get(request.member_id)
    if request.instance_id is not None:
        static = next((each for each in members.values() if each.instance_id == request.instance_id), None)
        if request.member_epoch == JOINING:
            _check_released(static, kept, request)
            member = static or member
        elif static is None:
            raise _unknown(request)
        elif static.member_id != request.member_id:
            message = f"{request.member_id} was fenced by {static.member_id}, which has its instance id."
            raise RefusedError(ErrorCode.fenced_instance_id, message)
    if request.member_epoch == JOINING:
        # Kafka refuses a member that joins again with 110 until its session ends, unless it has just joined. It has
        # given up all of its partitions, so nothing is in doubt.
        if member is None and len(members) >= kept.properties.group_consumer_max_size:
            raise RefusedError(ErrorCode.group_max_size_reached, f"The group has {len(members)} members.")
        return member
    if member is None:
        raise _unknown(request)
    if request.member_epoch > JOINING:
        _check_epoch(group, member, kept.members[member.member_id], request.member_epoch, owned)
    return member


def _check_released(static: Member | None, kept: KeptGroup, request: MemberHeartbeat) -> None:
    """Refuse a static name that a member has, unless it has left for now.

    It is unknown whether a member that another gateway has served had left. The error ends clients, and the newer one
    is right more often; the older one learns that it is fenced.
    """
    if static is None or static.member_id == request.member_id:
        return
    holder = kept.members[static.member_id]
    if holder.is_heard and not holder.is_away:
        message = f"The instance id {request.instance_id} is owned by the member {static.member_id}."
        raise RefusedError(ErrorCode.unreleased_instance_id, message)


def _check_epoch(
    group: Group, member: Member, kept: KeptMember, asked: int, owned: Collection[TopicPartition] | None
) -> None:
    """Refuse another epoch than the member's: but for the one before, if the response with the newer one may be lost.

    It then owns nothing that it does not have in the newer one. Which one was before is not known of a member that
    another gateway has served: any older one is taken.
    """
    epoch = _epoch(group, member.member_id)
    is_previous = asked < epoch and kept.previous in (None, asked)
    owns_its_own = owned is not None and set(owned) <= set(member.assigned)
    if asked != epoch and not (is_previous and owns_its_own):
        message = (
            f"The member {member.member_id} has the epoch {epoch}, not {asked}. "
            "The member must abandon all its partitions and rejoin."
        )
        raise RefusedError(ErrorCode.fenced_member_epoch, message)


def is_released(member: Member) -> bool:
    """Whether a member holds nothing but its targets."""
    return set(member.held) <= set(member.target)


def would_change(group: Group, member: Member, owned: Collection[TopicPartition] | None) -> bool:
    """Whether a heartbeat would change what the chain has of a member: it releases partitions, or gets an epoch."""
    leaving = set(member.held) - set(member.target)
    if owned is not None and leaving - set(owned):
        return True
    return not leaving and _epoch(group, member.member_id) != group.generation


def state_of(group: Group) -> str:
    """The state of a group, as Kafka names it."""
    if not group.members:
        return "Empty"
    is_stable = all(
        _epoch(group, member_id) == group.generation and set(member.assigned) == set(member.target)
        for member_id, member in items_of(group.members)
    )
    return "Stable" if is_stable else "Reconciling"


def assignor_name(members: list[Member]) -> str:
    """The name of the assignor of a group; the default one without members."""
    chosen = assignor_of(members) if members else None
    names = (name for name, alias in ASSIGNORS.items() if CHAIN_ASSIGNORS[alias] is chosen)
    return next(names, next(iter(ASSIGNORS)))


def _epoch(group: Group, member_id: str) -> int:
    return group.generation if group.epochs is None else group.epochs.get(member_id, group.generation)


def check_epoch_of_fetch(group: Group, member_id: str | None, epoch: int) -> None:
    """Check the membership that a client names when it asks for offsets; without one anybody may.

    Raises:
        RefusedError: It is none, or of another epoch.
    """
    if group.kind != "consumer" or (member_id is None and epoch < 0):
        return
    if member_id is None or member_id not in group.members:
        raise RefusedError(ErrorCode.unknown_member_id, f"the group has no member {member_id!r}")
    if epoch != _epoch(group, member_id):
        raise RefusedError(ErrorCode.stale_member_epoch, f"the member {member_id!r} has another epoch than {epoch}")


def _invalid(message: str) -> RefusedError:
    return RefusedError(ErrorCode.invalid_request, message)


def _unknown(request: MemberHeartbeat) -> RefusedError:
    # Kafka answers GROUP_ID_NOT_FOUND if there is no group either, which ends its Java client; this one joins again.
    message = f"Member {request.member_id} is not a member of group {request.group_id}."
    return RefusedError(ErrorCode.unknown_member_id, message)


# Regular expressions --------------------------------------------------------------------------------------------------


@lru_cache(maxsize=32)
def matching(regex: str, names: tuple[str, ...]) -> frozenset[str]:
    """The names that a regular expression matches as a whole. RE2, as Kafka has it: no expression takes long.

    Raises:
        RefusedError: The expression is not valid.
    """
    try:
        pc.match_substring_regex(pa.array([""]), pattern=regex)  # Alone: what follows might complete it.
        array = pa.array(names, pa.string())
        matches = pc.match_substring_regex(array, pattern=rf"\A(?:{regex})\z")
    except pa.ArrowInvalid as error:
        message = f"SubscribedTopicRegex `{regex}` is not a valid regular expression: {error}."
        raise RefusedError(ErrorCode.invalid_regular_expression, message) from None
    return frozenset(array.filter(matches).to_pylist())
