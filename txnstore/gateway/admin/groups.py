"""ListGroups, DescribeGroups, DeleteGroups, OffsetDelete: consumer groups."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from io import BytesIO

from kio.schema.consumer_protocol_assignment.v0.data import ConsumerProtocolAssignment
from kio.schema.consumer_protocol_subscription.v0.data import ConsumerProtocolSubscription
from kio.schema.errors import ErrorCode
from kio.serial import entity_writer

from txnstore.core.authorization.model import Operation
from txnstore.core.authorization.rights import Right
from txnstore.core.groups.commands import DeleteGroup, DeleteOffsets
from txnstore.core.groups.model import Group, Member
from txnstore.core.groups.offsets import exists
from txnstore.core.model import TopicPartition
from txnstore.core.routing import chain_of_group
from txnstore.core.view import View
from txnstore.errors import TxnStoreError
from txnstore.gateway.admin.common import led_chains, on_cluster, on_topic, refusal
from txnstore.gateway.apis import Api
from txnstore.gateway.errors import RefusedError, code_of
from txnstore.gateway.groups.consumer import state_of
from txnstore.gateway.groups.coordinator import GroupCoordinator
from txnstore.gateway.groups.model import Code, DescribedGroup, ListedGroup, State
from txnstore.gateway.operations import NO_OPERATIONS, operations_of
from txnstore.gateway.server import Fields, Handler, Peer
from txnstore.gateway.services import Services
from txnstore.gateway.wire import Request, build, value

#: The protocol of consumers, and its first version, which has subscriptions and assignments.
_CONSUMER, _PROTOCOL_VERSION = "consumer", b"\0\0"
#: The type of groups that DescribeGroups describes; those of KIP-848 are of the type ``consumer``.
_CLASSIC = "classic"
#: The first version of DescribeGroups with GROUP_ID_NOT_FOUND (KIP-1043); earlier ones describe a dead group.
_WITH_NOT_FOUND = 6


@dataclass(frozen=True, slots=True)
class GroupMember:
    """A member of a group, in the form of the classic protocol."""

    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    member_metadata: bytes
    member_assignment: bytes


@dataclass(frozen=True, slots=True)
class GroupState:
    """A group as clients see it.

    Attributes:
        name: Its name.
        state: ``Empty``, ``PreparingRebalance``, ``CompletingRebalance``, ``Stable`` or ``Dead``.
        group_type: ``classic`` or ``consumer``.
        protocol_type: ``consumer``; empty for a group that never had members.
        protocol: The assignor.
        members: Its live members.
        is_kept_by_coordinator: Whether a gateway keeps its members, and knows more of them.
    """

    name: str
    state: str
    group_type: str = _CLASSIC
    protocol_type: str = ""
    protocol: str = ""
    members: tuple[GroupMember, ...] = ()
    is_kept_by_coordinator: bool = False


class Groups:
    """Lists, describes and deletes groups, and their offsets.

    Args:
        services: The services.
        coordinator: Keeps the classic groups that this gateway coordinates.
    """

    def __init__(self, services: Services, coordinator: GroupCoordinator) -> None:
        self._services = services
        self._coordinator = coordinator

    def handlers(self) -> dict[Api, Handler]:
        """The handlers of its APIs."""
        return {
            Api.LIST_GROUPS: self.list,
            Api.DESCRIBE_GROUPS: self.describe,
            Api.DELETE_GROUPS: self.delete,
            Api.OFFSET_DELETE: self.delete_offsets,
        }

    async def _stored(self, view: View, names: Sequence[str]) -> dict[str, GroupState]:
        """Those of the groups that exist, as the chain has them."""
        expired_members = self._services.connection.chains.ages.expired_members

        def describe() -> dict[str, GroupState]:  # In a thread: the storage may be asked for the age of an entry.
            states: dict[str, GroupState] = {}
            for name in names:
                group = view.groups.get(name)
                if group is not None and exists(group):
                    states[name] = _state(name, group, {member for member, _ in expired_members(view.states, name)})
            return states

        return await self._services.in_thread(describe)

    def _live(self) -> dict[str, ListedGroup]:
        """The classic groups that this gateway coordinates now: it knows more of them than the chain."""
        return {group.group: group for group in self._coordinator.list() if group.state is not State.DEAD}

    async def list(self, request: Request, peer: Peer) -> Fields:
        """The groups that this gateway coordinates, in these states and of these types; without filters all."""
        view, services = await self._services.freshness.head(), self._services
        sees_all = services.may(peer, on_cluster("DESCRIBE"))
        visible = [name for name in sorted(view.groups) if sees_all or services.may(peer, _on_group("DESCRIBE", name))]
        led = led_chains(services)
        found = await self._stored(view, [name for name in visible if chain_of_group(name, view.chains) in led])
        for name, group in self._live().items():
            if sees_all or services.may(peer, _on_group("DESCRIBE", name)):
                found[name] = GroupState(name, group.state, protocol_type=group.protocol_type)
        states = {name.lower() for name in value(request.body, "states_filter", ())}
        types = {name.lower() for name in value(request.body, "types_filter", ())}
        groups = [
            {
                "group_id": name,
                "protocol_type": group.protocol_type,
                "group_state": group.state,
                "group_type": group.group_type,
            }
            for name, group in sorted(found.items())
            if (not states or group.state.lower() in states) and (not types or group.group_type in types)
        ]
        return {"groups": groups}

    async def describe(self, request: Request, peer: Peer) -> Fields:
        """Groups with their members."""
        view, names = await self._services.freshness.head(), list(dict.fromkeys(request.body.groups))
        denied: dict[str, Fields] = {}
        for name in names:
            try:
                self._services.check(peer, _on_group("DESCRIBE", name))
            except TxnStoreError as error:
                denied[name] = refusal(error, Api.DESCRIBE_GROUPS, request.version)
        stored = await self._stored(view, [name for name in names if name not in denied])
        wanted = bool(value(request.body, "include_authorized_operations", False))
        groups: list[Fields] = []
        for name in names:
            if name in denied:
                groups.append({"group_id": name, **denied[name]})
                continue
            operations = operations_of(self._services, peer, "GROUP", name) if wanted else NO_OPERATIONS
            groups.append(await self._described(name, stored.get(name), operations, request.version))
        return {"groups": groups}

    async def _described(self, name: str, stored: GroupState | None, operations: int, version: int) -> Fields:
        state = stored
        if name in self._live() or (stored is not None and stored.is_kept_by_coordinator):
            described = await self._coordinator.describe(name)
            if isinstance(described, Code):
                return {"group_id": name, "error_code": ErrorCode(int(described)), "error_message": described.name}
            state = _classic(described) if described.state is not State.DEAD else stored
        if state is None or state.group_type != _CLASSIC:  # ConsumerGroupDescribe describes those of KIP-848.
            return {"group_id": name, "group_state": State.DEAD, **_absence(name, version)}
        return _fields(state, operations)

    # Deleting ---------------------------------------------------------------------------------------------------------

    async def delete(self, request: Request, peer: Peer) -> Fields:
        """Delete groups that have no live member."""
        names = list(dict.fromkeys(request.body.groups_names))
        codes = await asyncio.gather(*(self._delete(name, request.version, peer) for name in names))
        results = [{"group_id": name, "error_code": code} for name, code in zip(names, codes, strict=True)]
        return {"results": results}

    async def _delete(self, name: str, version: int, peer: Peer) -> ErrorCode:
        try:
            self._services.check(peer, _on_group("DELETE", name))
            live = self._live().get(name)
            if live is not None and live.state is not State.EMPTY:
                raise RefusedError(ErrorCode.non_empty_group, f"the group {name!r} has members")
            await self._services.commits.submit(DeleteGroup(name), peer.principal)
        except (TxnStoreError, RefusedError) as error:
            return code_of(error, Api.DELETE_GROUPS, version)
        return ErrorCode.none

    async def delete_offsets(self, request: Request, peer: Peer) -> Fields:
        """Delete committed offsets of a group, but for topics that a live member reads (KIP-496)."""
        name, services = request.body.group_id, self._services
        codes: dict[TopicPartition, ErrorCode] = {}
        try:
            services.check(peer, _on_group("DELETE", name))
            if not name:
                raise RefusedError(ErrorCode.invalid_group_id, "the name of the group is empty")
            for topic in request.body.topics:
                for partition in topic.partitions:
                    tp = TopicPartition(topic.name, partition.partition_index)
                    codes[tp] = await self._deletable(tp, request.version, peer)
            chosen = tuple(tp for tp, code in codes.items() if code is ErrorCode.none)
            kept: tuple[TopicPartition, ...] = await services.commits.submit(
                DeleteOffsets(name, chosen), peer.principal
            )
        except (TxnStoreError, RefusedError) as error:
            return {"error_code": code_of(error, Api.OFFSET_DELETE, request.version), "topics": ()}
        codes |= dict.fromkeys(kept, ErrorCode.group_subscribed_to_topic)
        topics = [
            {
                "name": topic.name,
                "partitions": [
                    {
                        "partition_index": each.partition_index,
                        "error_code": codes[TopicPartition(topic.name, each.partition_index)],
                    }
                    for each in topic.partitions
                ],
            }
            for topic in request.body.topics
        ]
        return {"topics": topics}

    async def _deletable(self, tp: TopicPartition, version: int, peer: Peer) -> ErrorCode:
        try:
            self._services.check(peer, on_topic("READ", tp.topic))
            await self._services.find(tp.topic, None, tp.partition)
        except (TxnStoreError, RefusedError) as error:
            return code_of(error, Api.OFFSET_DELETE, version)
        return ErrorCode.none


def _on_group(operation: Operation, name: str) -> Right:
    return Right(operation, "GROUP", (name,))


def _absence(name: str, version: int) -> Fields:
    if version < _WITH_NOT_FOUND:
        return {}
    return {"error_code": ErrorCode.group_id_not_found, "error_message": f"Group {name} not found."}


def _fields(state: GroupState, operations: int) -> Fields:
    members = [
        {
            "member_id": member.member_id,
            "group_instance_id": member.group_instance_id,
            "client_id": member.client_id,
            "client_host": member.client_host,
            "member_metadata": member.member_metadata,
            "member_assignment": member.member_assignment,
        }
        for member in state.members
    ]
    return {
        "group_id": state.name,
        "group_state": state.state,
        "protocol_type": state.protocol_type,
        "protocol_data": state.protocol,
        "members": members,
        "authorized_operations": operations,
    }


# Groups as the chain has them -----------------------------------------------------------------------------------------


def _state(name: str, group: Group, expired: set[str]) -> GroupState:
    """A group, without the members whose leases are over."""
    match group.kind:
        case "classic":
            protocol_type = (group.classic.protocol_type if group.classic else None) or ""
            state = State.STABLE if group.classic_members else State.EMPTY
            return GroupState(name, state, protocol_type=protocol_type, is_kept_by_coordinator=True)
        case "consumer":
            return GroupState(name, state_of(group), _CONSUMER, _CONSUMER)
    return _native(name, group, expired)


def _native(name: str, group: Group, expired: set[str]) -> GroupState:
    """A group whose members are processes that use the store itself: what it would be with a broker."""
    members = [member for member_id, member in sorted(group.members.items()) if member_id not in expired]
    protocol_type = _CONSUMER if members or group.generation >= 0 else ""
    if not members:
        return GroupState(name, State.EMPTY, protocol_type=protocol_type)
    is_stable = all(member.assigned == member.target == member.held for member in members)
    state, assignor = (State.STABLE, members[0].assignor) if is_stable else (State.PREPARING_REBALANCE, "")
    return GroupState(name, state, _CLASSIC, _CONSUMER, assignor, tuple(_member(member) for member in members))


def _classic(group: DescribedGroup) -> GroupState:
    """A group as its coordinator knows it."""
    members = tuple(
        GroupMember(
            member.member_id,
            member.instance_id,
            member.client_id,
            member.client_host,
            member.subscription,
            member.assignment,
        )
        for member in group.members
    )
    return GroupState(group.group, group.state, _CLASSIC, group.protocol_type, group.protocol, members)


def _member(member: Member) -> GroupMember:
    """A member; its id ends with the host and the process that it runs in."""
    numbers: dict[str, list[int]] = {}
    for tp in member.assigned:
        numbers.setdefault(tp.topic, []).append(tp.partition)
    assigned = [{"topic": topic, "partitions": partitions} for topic, partitions in sorted(numbers.items())]
    return GroupMember(
        member.member_id,
        member.instance_id,
        client_id=member.member_id,
        client_host="",
        member_metadata=_protocol_data(ConsumerProtocolSubscription, {"topics": sorted(member.topics)}),
        member_assignment=_protocol_data(ConsumerProtocolAssignment, {"assigned_partitions": assigned}),
    )


def _protocol_data(schema: type, fields: Fields) -> bytes:
    """A message of the protocol that consumers speak with each other, which clients decode."""
    buffer = BytesIO(_PROTOCOL_VERSION)
    buffer.seek(len(_PROTOCOL_VERSION))
    entity_writer(schema)(buffer, build(schema, fields))
    return buffer.getvalue()
