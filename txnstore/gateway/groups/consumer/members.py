"""Members of groups of KIP-848: the state that a gateway keeps of them, and its checks of their heartbeats. No I/O.

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

#: A heartbeat as a member sends it.
MemberHeartbeat = ConsumerGroupHeartbeatRequest
#: Epochs of requests: to join; to leave; to leave as a static member that will come back.
JOINING, LEAVING, LEAVING_FOR_NOW = 0, -1, -2
#: The assignors of brokers, the default first, and the names that they have in the chain.
ASSIGNORS = {"uniform": "cooperative-sticky", "range": "range"}
#: The rebalance timeout of a member whose client has not sent it to this gateway yet (``max.poll.interval.ms``).
_REBALANCE_MS = 300_000
#: The first version of ConsumerGroupHeartbeat in which clients choose their member ids (KIP-1082).
_FIRST_WITH_CLIENT_ID = 1


@dataclass(slots=True)
class KeptMember:
    """The state that a gateway keeps of a member. Times are in ms of a monotonic clock.

    Attributes:
        expires_at: When its session ends.
        names: The subscribed topics; of a member that another gateway has served: all topics that it reads.
        regex: The subscribed regular expression; empty: none.
        has_sent_request: Whether the member has sent a request to this gateway.
        is_away: Whether it has left for now, as a static member.
        epoch: The epoch of the last response to it.
        previous_epoch: The epoch before that one; None: not known.
        sent_assignment: The assignment that was sent to it last, in the form of the response; None: not known.
        revoke_by: When it must have given up revoked partitions; None: it has none.
    """

    expires_at: int
    names: frozenset[str] = frozenset()
    regex: str = ""
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    rebalance_timeout_ms: int = _REBALANCE_MS
    has_sent_request: bool = False
    is_away: bool = False
    epoch: int | None = None
    previous_epoch: int | None = None
    sent_assignment: object = None
    revoke_by: int | None = None

    @property
    def deadline(self) -> int:
        """The time at which it is removed, unless it sends a request before."""
        return self.expires_at if self.revoke_by is None else min(self.expires_at, self.revoke_by)

    def record_request(
        self, request: MemberHeartbeat, client_id: str, client_host: str, now: int, session_ms: int
    ) -> None:
        """Update the state by a request that :func:`check_request` has accepted."""
        self.expires_at = now + session_ms
        names = request.subscribed_topic_names
        regex = _regex(request)
        if names is not None:
            self.names = frozenset(names)
        elif regex and not self.has_sent_request:
            self.names = frozenset()  # What the expression matched for another gateway is not what the client names.
        if regex is not None:
            self.regex = regex
        if request.rack_id is not None:
            self.rack_id = request.rack_id
        if _has_timeout(request):
            self.rebalance_timeout_ms = int(request.rebalance_timeout.total_seconds() * 1000)
        self.client_id, self.client_host = client_id, client_host
        self.has_sent_request, self.is_away = True, False

    def await_release(self, member: Member, now: int) -> None:
        """Start the time to release revoked partitions: the member learns of them by this response."""
        if self.revoke_by is None and not is_released(member):
            self.revoke_by = now + self.rebalance_timeout_ms

    def record_response(self, epoch: int, assignment: object) -> bool:
        """Update the state by a response; return whether the assignment differs from the last one sent."""
        if epoch != self.epoch:
            self.epoch, self.previous_epoch = epoch, self.epoch if self.epoch is not None else JOINING
        is_new = self.sent_assignment != assignment
        self.sent_assignment = assignment
        return is_new


@dataclass(slots=True)
class KeptGroup:
    """The members of a group that a gateway times; ``is_removing``: it removes those whose sessions have ended."""

    properties: Properties
    members: dict[str, KeptMember] = field(default_factory=dict)
    is_removing: bool = False

    def follow(self, group: Group, now: int) -> None:
        """Adopt the members that the chain has; one that is new here gets its full session."""
        stored_members: Mapping[str, Member] = {} if group.epochs is None else group.members
        for member_id in self.members.keys() - stored_members.keys():
            del self.members[member_id]
        for member_id, member in stored_members.items():
            kept_member = self.members.get(member_id)
            if kept_member is None:
                expires_at = now + self.properties.group_consumer_session_timeout_ms
                kept_member = KeptMember(expires_at, frozenset(member.topics))
                self.members[member_id] = kept_member
            epoch = _epoch(group, member_id)
            if kept_member.epoch != epoch:  # Another gateway has sent it one.
                kept_member.epoch = epoch
                kept_member.previous_epoch = None
                kept_member.sent_assignment = None
            if is_released(member):
                kept_member.revoke_by = None

    def renew(self, now: int) -> None:
        """Give all members their full session: they could not reach this process while it was paused."""
        for kept_member in self.members.values():
            kept_member.expires_at = now + self.properties.group_consumer_session_timeout_ms
            kept_member.revoke_by = None

    @property
    def deadline(self) -> int | None:
        """The time at which the next member is removed; None: there is none, or others are being removed."""
        if self.is_removing:
            return None
        return min((kept_member.deadline for kept_member in self.members.values()), default=None)

    @property
    def is_idle(self) -> bool:
        """Whether the group has no members, and so needs no memory."""
        return not self.members and not self.is_removing

    def overdue_ids(self, now: int) -> list[str]:
        """The ids of the members whose deadline has passed."""
        return sorted(member_id for member_id, kept_member in self.members.items() if kept_member.deadline <= now)


# Requests -------------------------------------------------------------------------------------------------------------


def check_request(request: MemberHeartbeat) -> None:
    """Check a request by itself.

    Raises:
        RefusedError: It is not valid, or asks for an unknown assignor.
    """
    for name, text in (
        ("GroupId", request.group_id),
        ("InstanceId", request.instance_id),
        ("RackId", request.rack_id),
    ):
        if text is not None and not text.strip():
            raise _invalid_request(f"{name} can't be empty.")
    if request.member_epoch < LEAVING_FOR_NOW:
        raise _invalid_request("MemberEpoch is invalid.")
    may_lack_id = request.__version__ < _FIRST_WITH_CLIENT_ID and request.member_epoch == JOINING
    if not request.member_id.strip() and not may_lack_id:
        raise _invalid_request("MemberId can't be empty.")
    if request.member_epoch == JOINING:
        if not _has_timeout(request):
            raise _invalid_request("RebalanceTimeoutMs must be provided in first request.")
        if request.topic_partitions is None or request.topic_partitions:
            raise _invalid_request("TopicPartitions must be empty when (re-)joining.")
        # None of the topics has to exist, and there may be none: such a member is a part of the group.
        if request.subscribed_topic_names is None and _regex(request) is None:
            raise _invalid_request(
                "Either SubscribedTopicNames or SubscribedTopicRegex must be non-null when (re-)joining."
            )
    if request.member_epoch == LEAVING_FOR_NOW and request.instance_id is None:
        raise _invalid_request("InstanceId can't be null.")
    if request.server_assignor is not None and request.server_assignor not in ASSIGNORS:
        names = ", ".join(ASSIGNORS)
        message = f"ServerAssignor {request.server_assignor} is not supported. Supported assignors: {names}."
        raise RefusedError(ErrorCode.unsupported_assignor, message)
    if regex := _regex(request):
        matching_topics(regex, ())


def is_full_request(request: MemberHeartbeat) -> bool:
    """Whether a client has sent all of its fields, and so asks for its assignment."""
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


def member_of_request(
    group: Group, kept_group: KeptGroup, request: MemberHeartbeat, owned_tps: Collection[TopicPartition] | None
) -> Member | None:
    """Return the stored member of a request: the same id, or the static name that it takes over; None: new.

    Raises:
    RefusedError: The member does not exist, another one has its name, its epoch is another one, or the group is
        full.
    """
    members: Mapping[str, Member] = {} if group.epochs is None else group.members
    member = members.get(request.member_id)
    if request.instance_id is not None:
        static_member = next((other for other in members.values() if other.instance_id == request.instance_id), None)
        if request.member_epoch == JOINING:
            _check_name_is_free(static_member, kept_group, request)
            member = static_member or member
        elif static_member is None:
            raise _unknown_member(request)
        elif static_member.member_id != request.member_id:
            message = f"{request.member_id} was fenced by {static_member.member_id}, which has its instance id."
            raise RefusedError(ErrorCode.fenced_instance_id, message)
    if request.member_epoch == JOINING:
        # Kafka refuses a member that joins again with 110 until its session ends, unless it has just joined. It has
        # given up all of its partitions, so nothing is in doubt.
        if member is None and len(members) >= kept_group.properties.group_consumer_max_size:
            raise RefusedError(ErrorCode.group_max_size_reached, f"The group has {len(members)} members.")
        return member
    if member is None:
        raise _unknown_member(request)
    if request.member_epoch > JOINING:
        _check_epoch(group, member, kept_group.members[member.member_id], request.member_epoch, owned_tps)
    return member


def _check_name_is_free(holder: Member | None, kept_group: KeptGroup, request: MemberHeartbeat) -> None:
    """Refuse a static name whose ``holder`` is another member, unless that one has left for now.

    Whether a member that another gateway has served had left is unknown. UNRELEASED_INSTANCE_ID ends clients, and
    the newer client is more often the live one, so it is accepted, and the older one is fenced.
    """
    if holder is None or holder.member_id == request.member_id:
        return
    kept_holder = kept_group.members[holder.member_id]
    if kept_holder.has_sent_request and not kept_holder.is_away:
        message = f"The instance id {request.instance_id} is owned by the member {holder.member_id}."
        raise RefusedError(ErrorCode.unreleased_instance_id, message)


def _check_epoch(
    group: Group,
    member: Member,
    kept_member: KeptMember,
    epoch_of_request: int,
    owned_tps: Collection[TopicPartition] | None,
) -> None:
    """Refuse any epoch but the member's, or the one before if the response with the newer one may be lost.

    With the epoch before, the member must own only partitions that it also has in the newer one. If another gateway
    has served the member, its epoch before is unknown, and any older one is accepted.
    """
    epoch = _epoch(group, member.member_id)
    is_previous = epoch_of_request < epoch and kept_member.previous_epoch in (None, epoch_of_request)
    owns_only_assigned = owned_tps is not None and set(owned_tps) <= set(member.assigned)
    if epoch_of_request != epoch and not (is_previous and owns_only_assigned):
        message = (
            f"The member {member.member_id} has the epoch {epoch}, not {epoch_of_request}. "
            "The member must abandon all its partitions and rejoin."
        )
        raise RefusedError(ErrorCode.fenced_member_epoch, message)


def is_released(member: Member) -> bool:
    """Whether a member holds only partitions of its target."""
    return set(member.held) <= set(member.target)


def would_change(group: Group, member: Member, owned_tps: Collection[TopicPartition] | None) -> bool:
    """Whether a heartbeat changes the stored member: it releases partitions or gets a new epoch."""
    revoked_tps = set(member.held) - set(member.target)
    if owned_tps is not None and revoked_tps - set(owned_tps):
        return True
    return not revoked_tps and _epoch(group, member.member_id) != group.generation


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
    assignor = assignor_of(members) if members else None
    names = (name for name, stored_name in ASSIGNORS.items() if CHAIN_ASSIGNORS[stored_name] is assignor)
    return next(names, next(iter(ASSIGNORS)))


def _epoch(group: Group, member_id: str) -> int:
    return group.generation if group.epochs is None else group.epochs.get(member_id, group.generation)


def check_epoch_of_fetch(group: Group, member_id: str | None, epoch: int) -> None:
    """Check the member id and epoch of an OffsetFetch; without them, any client may fetch.

    Raises:
    RefusedError: The group has no such member, or it has another epoch.
    """
    if group.kind != "consumer" or (member_id is None and epoch < 0):
        return
    if member_id is None or member_id not in group.members:
        raise RefusedError(ErrorCode.unknown_member_id, f"the group has no member {member_id!r}")
    if epoch != _epoch(group, member_id):
        raise RefusedError(ErrorCode.stale_member_epoch, f"the member {member_id!r} has another epoch than {epoch}")


def _invalid_request(message: str) -> RefusedError:
    return RefusedError(ErrorCode.invalid_request, message)


def _unknown_member(request: MemberHeartbeat) -> RefusedError:
    # Kafka answers GROUP_ID_NOT_FOUND if there is no group either, which ends its Java client; this one joins again.
    message = f"Member {request.member_id} is not a member of group {request.group_id}."
    return RefusedError(ErrorCode.unknown_member_id, message)


# Regular expressions --------------------------------------------------------------------------------------------------


@lru_cache(maxsize=32)
def matching_topics(regex: str, names: tuple[str, ...]) -> frozenset[str]:
    """Return the names that a regular expression matches as a whole. RE2, as in Kafka: no expression takes long.

    Raises:
    RefusedError: The expression is not valid.
    """
    try:
        # Checked alone: the suffix below might complete an invalid one.
        pc.match_substring_regex(pa.array([""]), pattern=regex)
        array = pa.array(names, pa.string())
        is_match = pc.match_substring_regex(array, pattern=rf"\A(?:{regex})\z")
    except pa.ArrowInvalid as error:
        message = f"SubscribedTopicRegex `{regex}` is not a valid regular expression: {error}."
        raise RefusedError(ErrorCode.invalid_regular_expression, message) from None
    return frozenset(array.filter(is_match).to_pylist())
