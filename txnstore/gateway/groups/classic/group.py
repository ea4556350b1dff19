"""A classic consumer group of Kafka as a pure state machine (KIP-62, 345, 394, 559, 800, 814).

Each input carries the time and returns actions: answers to requests, and generations to store. A request that waits is
known by its token, an opaque object, and is answered exactly once. Requests are kio's messages of any version, typed
here as the newest; answers are the fields of a response under kio's names. The reference is Kafka's
``GroupMetadataManager``; where this machine differs, a comment says why.

One generation is stored per rebalance, when the leader's assignment arrives; SyncGroup waits for it. At most one is
being stored at a time: what changes meanwhile is stored next. A refused generation, or one whose outcome is unknown,
ends the machine (:meth:`ClassicGroup.end`): the chain knows better, and the next request loads from it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from kio.schema.errors import ErrorCode
from kio.schema.heartbeat.v4.request import HeartbeatRequest
from kio.schema.join_group.v9.request import JoinGroupRequest
from kio.schema.leave_group.v5.request import LeaveGroupRequest
from kio.schema.sync_group.v5.request import SyncGroupRequest

from txnstore.core.groups.commands import StoreGeneration
from txnstore.core.groups.model import ClassicMember, Group
from txnstore.gateway.properties import Properties
from txnstore.validation import MAX_NAME_LENGTH

#: The time for which a JoinGroup of a new member waits; Kafka has no setting for it.
_NEW_MEMBER_JOIN_MS = 300_000
#: The characters of a client's name that its member id begins with, at most.
_MAX_PREFIX_CHARS = 128
#: The first version of JoinGroup whose new members first get an id, with which they join (KIP-394), and the first one
#: whose clients know ``skip_assignment`` (KIP-814).
_REQUIRES_ID, _SKIPS_ASSIGNMENT = 4, 9
#: Identifies a request: the caller passes it, and gets it back with the answer.
Token = object
#: The fields of a response.
Fields = Mapping[str, Any]


class State(StrEnum):
    """The state of a group, as Kafka names it."""

    EMPTY = "Empty"
    PREPARING_REBALANCE = "PreparingRebalance"
    COMPLETING_REBALANCE = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


@dataclass(frozen=True, slots=True)
class Answer:
    """Answer the request of this token."""

    token: Token
    response: Fields


#: The caller answers a request, or submits a command and then calls :meth:`ClassicGroup.stored` or ``end``.
Action = Answer | StoreGeneration
Actions = list[Action]


@dataclass(slots=True)
class _Member:
    """A member and its waiting requests.

    Attributes:
        expires_at: When its session ends; without effect while a request of it waits.
        is_new: Whether it waits for its first generation: then it may expire, because it cannot send heartbeats.
        former_leader: Of a replaced static member: the leader that a client before KIP-814 gets, so that it does not
            take itself for one; None if the client knows ``skip_assignment``.
    """

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocols: tuple[tuple[str, bytes], ...]
    assignment: bytes = b""
    expires_at: int = 0
    is_new: bool = False
    join: Token | None = None
    sync: Token | None = None
    former_leader: str | None = None

    @property
    def waits(self) -> bool:
        """Whether a waiting request stands in for its heartbeats."""
        return not self.is_new and (self.join is not None or self.sync is not None)

    def subscription(self, protocol: str) -> bytes:
        return dict(self.protocols).get(protocol, b"")

    def stored(self, protocol: str) -> ClassicMember:
        return ClassicMember(
            self.member_id,
            self.instance_id,
            self.client_id,
            self.client_host,
            self.session_timeout_ms,
            self.rebalance_timeout_ms,
            self.subscription(protocol),
            self.assignment,
        )


class ClassicGroup:
    """One group. Times are in ms of any monotonic clock.

    Args:
        name: The name of the group.
        properties: Timeouts and sizes.
        new_id: Returns a globally unique id, a part of member ids.
        stored_group: That in the chain, which may have had another kind; each member gets its full session timeout.
        now: The time.
        epoch: The wall clock's time, in ms since 1970, at which the clock of ``now`` was 0.
        last_generation: The last generation that an earlier machine of this process began. It may not be stored; a
            late request of its members must not be taken for one of this machine's.
    """

    def __init__(
        self,
        name: str,
        properties: Properties,
        new_id: Callable[[], str],
        stored_group: Group | None,
        now: int,
        *,
        epoch: int,
        last_generation: int = 0,
    ) -> None:
        self.name = name
        self.state = State.EMPTY
        self.generation = 0
        #: The reason of the last rebalance.
        self.reason = ""
        self._properties = properties
        self._new_id = new_id
        self._now = now
        self._epoch = epoch
        self._last_generation = last_generation
        self._actions: Actions = []
        self._protocol_type = ""
        self._protocol = ""
        self._leader = ""
        self._members: dict[str, _Member] = {}
        #: The number of members that support each protocol.
        self._support_counts = Counter[str]()
        #: The member id of each static member, by instance id.
        self._static_ids: dict[str, str] = {}
        #: New members that have got their id, and until when they may join with it (KIP-394).
        self._pending_until: dict[str, int] = {}
        #: The latest end of the join phase.
        self._join_at: int | None = None
        #: Of the first rebalance of an empty group: until when further members may extend it.
        self._extend_until: int | None = None
        self._is_extended = False
        #: The time at which members without a SyncGroup are removed, and their ids.
        self._sync_at: int | None = None
        self._unsynced_ids: set[str] = set()
        #: Whether the leader has assigned this generation, which is then stored.
        self._has_assigned = False
        #: The generation in the chain, -1 if it has none, and the ids of its members.
        self._stored_generation = -1
        self._stored_ids: frozenset[str] = frozenset()
        self._generation_to_store: StoreGeneration | None = None
        #: Answers to LeaveGroup that wait until the empty generation is stored.
        self._leave_answers: list[Answer] = []
        if stored_group is not None:
            self._restore(stored_group)

    def _restore(self, group: Group) -> None:
        """Take over a stored group: its members are stable, and their session timeouts begin now."""
        self._stored_generation = group.generation
        self.generation = max(group.generation, 0)
        classic = group.classic
        if classic is None:
            return
        self._protocol_type, self._protocol = classic.protocol_type or "", classic.protocol or ""
        self._leader = classic.leader or ""
        self._stored_ids = frozenset(member.member_id for member in classic.members)
        for member in classic.members:
            self._insert(
                _Member(
                    member.member_id,
                    member.instance_id,
                    member.client_id,
                    member.client_host,
                    member.session_timeout_ms,
                    member.rebalance_timeout_ms,
                    ((self._protocol, member.subscription),),
                    member.assignment,
                    expires_at=self._now + member.session_timeout_ms,
                )
            )
        if self._members:
            self.state = State.STABLE
        if len(self._members) > self._properties.group_max_size:
            self._prepare("the loaded group has more members than allowed")

    # --- inputs -------------------------------------------------------------------------------------------------------

    def join(self, request: JoinGroupRequest, client_id: str, client_host: str, token: Token, now: int) -> Actions:
        """Handle a JoinGroup request."""
        self._now = now
        code = self._join_error(request)
        if code is ErrorCode.group_max_size_reached:
            self._respond(token, {"error_code": code})
            self._reject_member(request.member_id)
        elif code:
            self._respond(token, {"error_code": code, "member_id": request.member_id})
        elif not request.member_id:
            self._join_new(request, client_id, client_host, token)
        elif request.member_id in self._pending_until:
            self._add(request, request.member_id, client_id, client_host, token)
        else:
            self._rejoin(request, self._members[request.member_id], token)
        return self._take()

    def sync(self, request: SyncGroupRequest, token: Token, now: int) -> Actions:
        """Handle a SyncGroup request; only the leader's has assignments."""
        self._now = now
        code = self._sync_error(request)
        if code:
            self._respond(token, {"error_code": code})
            return self._take()
        member = self._members[request.member_id]
        self._unsynced_ids.discard(member.member_id)
        if self.state is State.STABLE:
            self._respond(token, self._sync_response(member))
            return self._take()
        self._fail_sync(member, ErrorCode.rebalance_in_progress)  # a request that the client has given up
        member.sync = token
        # A repeated request of the leader must not change what is being stored.
        if member.member_id == self._leader and not self._has_assigned:
            self._has_assigned = True
            assignments = {assignment.member_id: assignment.assignment for assignment in request.assignments}
            for member_of_group in self._members.values():
                member_of_group.assignment = assignments.get(member_of_group.member_id, b"")
            self._store_if_due()
        return self._take()

    def heartbeat(self, request: HeartbeatRequest, now: int) -> ErrorCode:
        """Handle a Heartbeat request: extend the member's session. It never waits."""
        code = self._member_error(request.member_id, _instance_id(request))
        if code:
            return code
        if request.generation_id != self.generation:
            return ErrorCode.illegal_generation
        self._renew(self._members[request.member_id], now)
        return ErrorCode.rebalance_in_progress if self.state is State.PREPARING_REBALANCE else ErrorCode.none

    def leave(self, request: LeaveGroupRequest, token: Token, now: int) -> Actions:
        """Handle a LeaveGroup request; that of the last member waits until the group is stored as empty."""
        self._now = now
        count_before = len(self._members)
        leaving_members: Iterable[Any] = getattr(request, "members", (request,))  # Before version 3 it has one member.
        results = [self._leave(member.member_id, _instance_id(member)) for member in leaving_members]
        code = ErrorCode.none if hasattr(request, "members") else results[0]["error_code"]
        answer = Answer(token, {"error_code": code, "members": results})
        # Kafka rebalances a stable group also if only a pending member leaves; nothing has changed for the others then.
        if len(self._members) < count_before:
            self._rebalance(f"{count_before - len(self._members)} members left")
        else:
            self._complete_if_joined()
        if self.state is State.EMPTY and self._generation_to_store is not None:
            self._leave_answers.append(answer)
        else:
            self._actions.append(answer)
        return self._take()

    def tick(self, now: int) -> Actions:
        """Expire what is due by ``now``; call it when the time has reached :attr:`deadline`."""
        self._now = now
        expired_ids = [
            member.member_id for member in self._members.values() if member.expires_at <= now and not member.waits
        ]
        for member_id in expired_ids:
            self._remove(member_id)
        for member_id in [member_id for member_id, until in self._pending_until.items() if until <= now]:
            del self._pending_until[member_id]
        if expired_ids:
            self._rebalance(f"the sessions of {', '.join(expired_ids)} expired")
        else:
            self._complete_if_joined()
        if self._join_at is not None and self._join_at <= now:
            self._end_join_phase()
        if self._sync_at is not None and self._sync_at <= now:
            self._end_sync_phase()
        return self._take()

    def stored(self, now: int) -> Actions:
        """Continue after the generation of the last command was stored."""
        assert self._generation_to_store is not None
        self._now = now
        self._stored_generation = self._generation_to_store.generation
        self._stored_ids = _member_ids(self._generation_to_store)
        self._generation_to_store = None
        # The group may have another state by now. The generation is stored, but no member waits for it.
        if self.state is State.COMPLETING_REBALANCE and self._stored_generation == self.generation:
            self.state = State.STABLE
            for member in self._members.values():
                if member.sync is not None:
                    self._respond(member.sync, self._sync_response(member))
                    member.sync = None
                    self._renew(member, now)
        elif self.state is State.STABLE:
            for member in self._members.values():
                if member.member_id in self._stored_ids and member.join is not None:
                    self._respond_to_replacement(member)
        self._store_if_due()
        if self._generation_to_store is None:
            self._actions += self._leave_answers
            self._leave_answers.clear()
        return self._take()

    def end(self, code: ErrorCode) -> Actions:
        """Shut this state machine down: answer all waiting requests with ``code``.

        A static member whose new id was not stored gets UNKNOWN_MEMBER_ID, so that it rejoins without an id: another
        coordinator may have assigned a newer id, and the old one would be fenced.
        """
        self.state = State.DEAD
        for member in self._members.values():
            is_id_stored = member.instance_id is None or member.member_id in self._stored_ids
            self._respond_to_join(member, {"error_code": code})
            self._fail_sync(member, code_of_member(code) if is_id_stored else ErrorCode.unknown_member_id)
        for answer in self._leave_answers:
            self._respond(answer.token, {"error_code": code_of_member(code)})
        self._leave_answers.clear()
        return self._take()

    # --- state --------------------------------------------------------------------------------------------------------

    @property
    def deadline(self) -> int | None:
        """The time at which to call :meth:`tick`, if no input moves it; None if time changes nothing."""
        times = [member.expires_at for member in self._members.values() if not member.waits]
        times += self._pending_until.values()
        times += (phase_end for phase_end in (self._join_at, self._sync_at) if phase_end is not None)
        return min(times, default=None)

    @property
    def last_generation(self) -> int:
        """The last generation that this machine, or one before it in this process, has begun."""
        return max(self.generation, self._last_generation)

    @property
    def is_idle(self) -> bool:
        """Whether the chain has the whole state, so that this machine can be forgotten."""
        return self.state is State.EMPTY and not self._pending_until and self._generation_to_store is None

    @property
    def is_unknown(self) -> bool:
        """Whether the group has no members, and nothing of it is stored."""
        return self.is_idle and self._stored_generation < 0

    def describe(self) -> Fields:
        """Describe the group for DescribeGroups and ListGroups; ``Dead`` if it is unknown.

        It has subscriptions and the protocol only while it is stable.
        """
        protocol = self._protocol if self.state is State.STABLE else ""
        return {
            "group_id": self.name,
            "group_type": "classic",
            "group_state": State.DEAD if self.is_unknown else self.state,
            "protocol_type": self._protocol_type,
            "protocol_data": protocol,
            "members": [
                {
                    "member_id": member.member_id,
                    "group_instance_id": member.instance_id,
                    "client_id": member.client_id,
                    "client_host": member.client_host,
                    "member_metadata": member.subscription(protocol),
                    "member_assignment": member.assignment,
                }
                for member in self._members.values()
            ],
        }

    def is_completing(self, member_id: str, generation: int) -> bool:
        """Whether the member has joined this generation, which is not stored yet.

        The chain refuses its commits as of an illegal generation; Kafka answers REBALANCE_IN_PROGRESS.
        """
        is_joined = generation == self.generation and member_id in self._members
        return is_joined and self.state is State.COMPLETING_REBALANCE

    # --- joining ------------------------------------------------------------------------------------------------------

    def _join_error(self, request: JoinGroupRequest) -> ErrorCode:
        """Return the code that refuses a JoinGroup, or NONE."""
        min_ms, max_ms = self._properties.group_min_session_timeout_ms, self._properties.group_max_session_timeout_ms
        if not min_ms <= _milliseconds(request.session_timeout) <= max_ms:
            return ErrorCode.invalid_session_timeout
        # The chain would refuse the generation, and no other member could continue.
        instance_id = _instance_id(request)
        if instance_id is not None and not _is_valid_instance_id(instance_id):
            return ErrorCode.invalid_request
        if not self._has_room_for(request.member_id, instance_id):
            return ErrorCode.group_max_size_reached
        if not self._supports(request):
            return ErrorCode.inconsistent_group_protocol
        # The instance id of a pending member could be that of another one: only dynamic members are pending.
        if request.member_id and (instance_id is not None or request.member_id not in self._pending_until):
            return self._member_error(request.member_id, instance_id)
        return ErrorCode.none

    def _has_room_for(self, member_id: str, instance_id: str | None) -> bool:
        """Whether a member may join; a static member that returns replaces itself, which Kafka refuses if full."""
        member = self._members.get(member_id or self._static_ids.get(instance_id or "", ""))
        max_size = self._properties.group_max_size
        if self.state is State.EMPTY or len(self._members) < max_size:
            return True
        if self.state is not State.PREPARING_REBALANCE:
            return member is not None
        # If there are too many members, those that join last are rejected.
        joined_count = sum(other.join is not None for other in self._members.values())
        return joined_count < max_size or (member is not None and member.join is not None)

    def _supports(self, request: JoinGroupRequest) -> bool:
        """Whether the group with this member still has a protocol that all members support."""
        if not self._members:
            return bool(request.protocol_type and request.protocols)
        is_common = (self._support_counts[protocol.name] == len(self._members) for protocol in request.protocols)
        return request.protocol_type == self._protocol_type and any(is_common)

    def _member_error(self, member_id: str, instance_id: str | None) -> ErrorCode:
        """Return the code for a request with this member id and instance id: fenced, unknown, or NONE."""
        if instance_id is not None:
            current_id = self._static_ids.get(instance_id, "")
            # FENCED_INSTANCE_ID ends a client, and the only one of its name must live: its newer id may have been lost
            # with its coordinator, before the id was stored. It gets another id. Kafka fences it.
            if current_id != member_id and _id_number(member_id, instance_id) < _id_number(current_id, instance_id):
                return ErrorCode.fenced_instance_id
            if current_id != member_id:
                return ErrorCode.unknown_member_id
        return ErrorCode.none if member_id in self._members else ErrorCode.unknown_member_id

    def _reject_member(self, member_id: str) -> None:
        """Remove a member for which the group has no room."""
        if member_id in self._members:
            self._remove(member_id)
        self._pending_until.pop(member_id, None)
        self._complete_if_joined()

    def _join_new(self, request: JoinGroupRequest, client_id: str, client_host: str, token: Token) -> None:
        """Handle a JoinGroup without a member id: replace a static member, demand an id (KIP-394), or add it."""
        instance_id = _instance_id(request)
        if instance_id is not None:
            # The number orders the ids of one instance id, even if two coordinators have assigned them.
            id_number = max(_id_number(self._static_ids.get(instance_id, ""), instance_id) + 1, self._epoch + self._now)
            member_id = f"{_prefix(instance_id)}{id_number}-{self._new_id()}"
        else:
            member_id = f"{_prefix(client_id)}{self._new_id()}"
        if instance_id is not None and instance_id in self._static_ids:
            self._replace(request, member_id, client_id, client_host, token)
        elif instance_id is None and request.__version__ >= _REQUIRES_ID:
            self._pending_until[member_id] = self._now + _milliseconds(request.session_timeout)
            self._respond(token, {"error_code": ErrorCode.member_id_required, "member_id": member_id})
        else:
            self._add(request, member_id, client_id, client_host, token)

    def _add(self, request: JoinGroupRequest, member_id: str, client_id: str, client_host: str, token: Token) -> None:
        """Add a new member, the first one as leader, and begin a rebalance."""
        self._pending_until.pop(member_id, None)
        if not self._members:
            self._protocol_type = request.protocol_type
        member = _Member(
            member_id,
            _instance_id(request),
            client_id,
            client_host,
            _milliseconds(request.session_timeout),
            _join_timeout_ms(request),
            _protocols(request),
            # A client that gives up and retries without an id would leave members behind, so their time is limited.
            expires_at=self._now + _NEW_MEMBER_JOIN_MS,
            is_new=True,
            join=token,
        )
        self._insert(member)
        self._leader = self._leader or member_id
        self._is_extended = self._extend_until is not None
        self._rebalance(_reason(f"{member_id} joined", request))

    def _rejoin(self, request: JoinGroupRequest, member: _Member, token: Token) -> None:
        """Handle a JoinGroup of a member: repeat the response if nothing has changed, else begin a rebalance."""
        same_protocols = _protocols(request) == member.protocols
        # The leader of a stable group joins because something else has changed that concerns the assignment.
        is_leader_of_stable = self.state is State.STABLE and member.member_id == self._leader
        if self.state is not State.PREPARING_REBALANCE and same_protocols and not is_leader_of_stable:
            self._respond(token, self._join_response(member))
        else:
            self._update(member, request, token)
            self._rebalance(_reason(f"{member.member_id} joined again", request))

    def _replace(
        self, request: JoinGroupRequest, member_id: str, client_id: str, client_host: str, token: Token
    ) -> None:
        """Give a static member that returns without its member id a new one; the old one is fenced (KIP-345)."""
        old_member = self._members[self._static_ids[_instance_id(request) or ""]]
        refusal = {"error_code": ErrorCode.fenced_instance_id, "member_id": old_member.member_id}
        self._respond_to_join(old_member, refusal)
        self._fail_sync(old_member, ErrorCode.fenced_instance_id)
        is_unsynced = old_member.member_id in self._unsynced_ids
        self._discard(old_member)
        member = replace(
            old_member,
            member_id=member_id,
            client_id=client_id,
            client_host=client_host,
            is_new=False,
            former_leader=None if request.__version__ >= _SKIPS_ASSIGNMENT else self._leader,
        )
        self._insert(member)
        if self._leader == old_member.member_id:
            self._leader = member_id
        if is_unsynced:
            self._unsynced_ids.add(member_id)
        self._update(member, request, token)
        self._renew(member, self._now)
        if self.state is State.STABLE and self._select_protocol() == self._protocol:
            self._store_if_due()
        else:
            self._rebalance(_reason(f"{member_id} replaced {old_member.member_id}", request))

    def _respond_to_replacement(self, member: _Member) -> None:
        """Answer the join of a static member whose new id is now stored.

        Clients before KIP-814 get the former leader, so that they do not compute an assignment.
        """
        response = self._join_response(member)
        if member.former_leader is not None:
            response |= {"leader": member.former_leader, "members": ()}
        else:
            response["skip_assignment"] = member.member_id == self._leader
        self._respond_to_join(member, response)
        self._renew(member, self._now)

    # --- rebalances ---------------------------------------------------------------------------------------------------

    def _rebalance(self, reason: str) -> None:
        """Begin a rebalance, or continue the one that has begun."""
        if self.state is State.PREPARING_REBALANCE:
            self._complete_if_joined()
        else:
            self._prepare(reason)

    def _prepare(self, reason: str) -> None:
        """Begin the join phase; that of an empty group ends after an initial delay, which each new member extends."""
        for member in self._members.values():
            self._fail_sync(member, ErrorCode.rebalance_in_progress)
        self._sync_at = None
        self._has_assigned = False
        self._unsynced_ids.clear()
        was_empty = self.state is State.EMPTY
        self.state = State.PREPARING_REBALANCE
        self.reason = reason
        self._join_at = self._now + self._rebalance_timeout_ms()
        if was_empty:
            self._extend_until = self._join_at
            self._is_extended = False
            self._join_at = self._now + self._properties.group_initial_rebalance_delay_ms
        self._complete_if_joined()

    def _complete_if_joined(self) -> None:
        """End the join phase early if all members have joined, and no more may come."""
        if self.state is not State.PREPARING_REBALANCE or self._extend_until is not None or self._pending_until:
            return
        if all(member.join is not None for member in self._members.values()):
            self._complete()

    def _end_join_phase(self) -> None:
        """End the join phase when its time has passed; extend that of a new group while members join."""
        if self._is_extended and self._extend_until is not None and self._now < self._extend_until:
            self._is_extended = False
            self._join_at = min(self._now + self._properties.group_initial_rebalance_delay_ms, self._extend_until)
        else:
            self._complete()

    def _complete(self) -> None:
        """End the join phase with the members that have joined; static members keep their place until they expire."""
        self._join_at, self._extend_until = None, None
        for member in [*self._members.values()]:
            if member.join is None and member.instance_id is None:
                self._remove(member.member_id)
        joined_ids = [member.member_id for member in self._members.values() if member.join is not None]
        if self._members and not joined_ids:  # Only static members that have not joined are left: wait for them again.
            self._join_at = self._now + self._rebalance_timeout_ms()
            return
        self.generation = self.last_generation + 1
        if not joined_ids:
            self.state, self._protocol, self._leader = State.EMPTY, "", ""
            self._store_if_due()
            return
        if self._leader not in joined_ids:
            self._leader = joined_ids[0]
        self.state, self._protocol = State.COMPLETING_REBALANCE, self._select_protocol()
        self._unsynced_ids = set(self._members)
        self._sync_at = self._now + self._rebalance_timeout_ms()
        for member in self._members.values():
            member.is_new = False
            self._respond_to_join(member, self._join_response(member))
            self._renew(member, self._now)

    def _end_sync_phase(self) -> None:
        """Remove the members that have joined, but sent no SyncGroup in time."""
        self._sync_at = None
        if self._unsynced_ids:
            names = ", ".join(sorted(self._unsynced_ids))
            for member_id in [*self._unsynced_ids]:
                self._remove(member_id)
            self._prepare(f"no SyncGroup came from {names}")

    def _select_protocol(self) -> str:
        """Return the protocol with the most first choices among those that every member supports.

        On a tie, the one voted for first.
        """
        votes = Counter(
            next(name for name, _ in member.protocols if self._support_counts[name] == len(self._members))
            for member in self._members.values()
        )
        return votes.most_common(1)[0][0]

    def _rebalance_timeout_ms(self) -> int:
        return max((member.rebalance_timeout_ms for member in self._members.values()), default=0)

    # --- syncing and leaving ------------------------------------------------------------------------------------------

    def _sync_error(self, request: SyncGroupRequest) -> ErrorCode:
        """Return the code that refuses a SyncGroup, or NONE."""
        code = self._member_error(request.member_id, _instance_id(request))
        if code:
            return code
        if request.generation_id != self.generation:
            return ErrorCode.illegal_generation
        # From version 5 on it has both, which may not be missing.
        for name, group_value in (("protocol_type", self._protocol_type), ("protocol_name", self._protocol)):
            if getattr(request, name, group_value) != group_value:
                return ErrorCode.inconsistent_group_protocol
        return ErrorCode.rebalance_in_progress if self.state is State.PREPARING_REBALANCE else ErrorCode.none

    def _leave(self, requested_id: str, instance_id: str | None) -> Fields:
        """Remove a member that leaves; an administrator gives only its instance id."""
        member_id = requested_id or self._static_ids.get(instance_id or "", "")
        code = ErrorCode.none
        if member_id not in self._pending_until:
            code = self._member_error(member_id, instance_id)
        if not code:
            self._pending_until.pop(member_id, None)
            self._remove(member_id)
        return {"member_id": requested_id, "group_instance_id": instance_id, "error_code": code}

    # --- storing ------------------------------------------------------------------------------------------------------

    def _store_if_due(self) -> None:
        """Store the state that the chain lacks, unless a generation is being stored."""
        if self._generation_to_store is not None:
            return
        match self.state:
            case State.COMPLETING_REBALANCE:
                is_due = self._has_assigned
            case State.STABLE:  # a static member waits for its new member id
                is_due = any(member.join is not None for member in self._members.values())
            case State.EMPTY:
                is_due = bool(self._stored_ids)
            case _:
                is_due = False
        if is_due:
            replaced_ids = self._stored_ids - set(self._members) if self.generation == self._stored_generation else ()
            self._generation_to_store = StoreGeneration(
                self.name,
                self._stored_generation,
                self.generation,
                self._protocol_type or None,
                self._protocol or None,
                self._leader or None,
                tuple(member.stored(self._protocol) for member in self._members.values()),
                replaces=tuple(sorted(replaced_ids)),
            )
            self._actions.append(self._generation_to_store)

    # --- members and answers ------------------------------------------------------------------------------------------

    def _insert(self, member: _Member) -> None:
        self._members[member.member_id] = member
        self._support_counts.update(_protocol_names(member.protocols))
        if member.instance_id is not None:
            self._static_ids[member.instance_id] = member.member_id

    def _discard(self, member: _Member) -> None:
        del self._members[member.member_id]
        self._support_counts.subtract(_protocol_names(member.protocols))
        if member.instance_id is not None:
            del self._static_ids[member.instance_id]
        self._unsynced_ids.discard(member.member_id)

    def _remove(self, member_id: str) -> None:
        """Remove a member, and fail its waiting requests so that a live client joins again."""
        member = self._members.get(member_id)
        if member is None:
            return
        self._discard(member)
        self._respond_to_join(member, {"error_code": ErrorCode.unknown_member_id})
        self._fail_sync(member, ErrorCode.unknown_member_id)
        if self._leader == member_id:
            self._leader = next(iter(self._members), "")

    def _update(self, member: _Member, request: JoinGroupRequest, token: Token) -> None:
        """Replace the protocols and timeouts of a member by those of a JoinGroup, which waits for its response now."""
        self._support_counts.subtract(_protocol_names(member.protocols))
        member.protocols = _protocols(request)
        self._support_counts.update(_protocol_names(member.protocols))
        member.session_timeout_ms = _milliseconds(request.session_timeout)
        member.rebalance_timeout_ms = _join_timeout_ms(request)
        # The client has given up the earlier request; Kafka never answers it.
        self._respond_to_join(member, {"error_code": ErrorCode.rebalance_in_progress, "member_id": member.member_id})
        member.join = token

    @staticmethod
    def _renew(member: _Member, now: int) -> None:
        member.expires_at = now + member.session_timeout_ms

    def _join_response(self, member: _Member) -> dict[str, Any]:
        """The response to a member that has joined; only the leader's has the members."""
        other_members: Iterable[_Member] = self._members.values() if member.member_id == self._leader else ()
        return {
            "error_code": ErrorCode.none,
            "member_id": member.member_id,
            "generation_id": self.generation,
            "protocol_type": self._protocol_type,
            "protocol_name": self._protocol,
            "leader": self._leader,
            "members": [
                {
                    "member_id": other.member_id,
                    "group_instance_id": other.instance_id,
                    "metadata": other.subscription(self._protocol),
                }
                for other in other_members
            ],
        }

    def _sync_response(self, member: _Member) -> Fields:
        return {
            "error_code": ErrorCode.none,
            "protocol_type": self._protocol_type,
            "protocol_name": self._protocol,
            "assignment": member.assignment,
        }

    def _respond_to_join(self, member: _Member, response: Fields) -> None:
        if member.join is not None:
            self._respond(member.join, response)
            member.join = None

    def _fail_sync(self, member: _Member, code: ErrorCode) -> None:
        """Answer a waiting SyncGroup with an error."""
        if member.sync is not None:
            self._respond(member.sync, {"error_code": code})
            member.sync = None

    def _respond(self, token: Token, response: Fields) -> None:
        self._actions.append(Answer(token, response))

    def _take(self) -> Actions:
        actions, self._actions = self._actions, []
        return actions


def _instance_id(message: Any) -> str | None:
    """The instance id of a static member; the first versions of requests have none."""
    name: str | None = getattr(message, "group_instance_id", None)
    return name


def _milliseconds(duration: Any) -> int:
    return int(duration.total_seconds() * 1000)


def _join_timeout_ms(request: JoinGroupRequest) -> int:
    """The rebalance timeout; requests of version 0 have none but their session timeout (KIP-62)."""
    return _milliseconds(getattr(request, "rebalance_timeout", request.session_timeout))


def _protocols(request: JoinGroupRequest) -> tuple[tuple[str, bytes], ...]:
    """The assignors that a member supports, most preferred first, each with its subscription."""
    return tuple((protocol.name, protocol.metadata) for protocol in request.protocols)


def _member_ids(command: StoreGeneration) -> frozenset[str]:
    return frozenset(member.member_id for member in command.members)


def _id_number(member_id: str, instance_id: str) -> int:
    """The number of a static member's id, which grows with each new id of its instance id; 0 if it has none."""
    digits = member_id.removeprefix(_prefix(instance_id)).partition("-")[0]
    return int(digits) if digits.isdecimal() else 0


def _prefix(name: str) -> str:
    """The beginning of member ids for a name, short and printable, as ids in the chain must be."""
    return "".join(filter(str.isprintable, name[:_MAX_PREFIX_CHARS])) + "-"


def _is_valid_instance_id(name: str) -> bool:
    return name.isprintable() and 0 < len(name) <= MAX_NAME_LENGTH


def _protocol_names(protocols: Iterable[tuple[str, bytes]]) -> set[str]:
    return {name for name, _ in protocols}


def _reason(event: str, request: JoinGroupRequest) -> str:
    return f"{event}; reason of the client: {getattr(request, 'reason', None) or 'not provided'}"


def code_of_member(code: ErrorCode) -> ErrorCode:
    """Translate a code for a member of a group that has members of another kind now: it is unknown, as in Kafka.

    Java's consumer fails on INCONSISTENT_GROUP_PROTOCOL here; after UNKNOWN_MEMBER_ID it rejoins, and gets the reason.
    """
    return ErrorCode.unknown_member_id if code is ErrorCode.inconsistent_group_protocol else code
