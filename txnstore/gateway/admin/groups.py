"""ListGroups, DescribeGroups, DeleteGroups: consumer groups."""

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
from txnstore.core.groups.commands import DeleteGroup
from txnstore.core.groups.model import Group, Member
from txnstore.core.groups.offsets import exists
from txnstore.core.view import View
from txnstore.errors import TxnStoreError
from txnstore.gateway.admin.common import on_cluster, operations_of, refusal
from txnstore.gateway.apis import Api
from txnstore.gateway.errors import RefusedError, code_of
from txnstore.gateway.server import Fields, Handler, Peer
from txnstore.gateway.services import Services
from txnstore.gateway.wire import Request, build, value

#: The protocol of consumers, and its first version, in which subscriptions and assignments are told.
_CONSUMER, _PROTOCOL_VERSION = "consumer", b"\0\0"
#: The first version of DescribeGroups with GROUP_ID_NOT_FOUND (KIP-1043); earlier ones describe a dead group.
_WITH_NOT_FOUND = 6
#: Says that the operations were not asked for.
_NO_OPERATIONS = -(2**31)


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
    """

    name: str
    state: str
    group_type: str = "classic"
    protocol_type: str = ""
    protocol: str = ""
    members: tuple[GroupMember, ...] = ()


class Groups:
    """Lists, describes and deletes groups."""

    def __init__(self, services: Services) -> None:
        self._services = services

    def handlers(self) -> dict[Api, Handler]:
        """The handlers of its APIs."""
        return {
            Api.LIST_GROUPS: self.list,
            Api.DESCRIBE_GROUPS: self.describe,
            Api.DELETE_GROUPS: self.delete,
        }

    async def _states(self, view: View, names: Sequence[str]) -> list[GroupState | None]:
        """The groups of these names; None for one that does not exist.

        Groups whose members a gateway keeps are to be asked of their coordinator here: it knows more than the chain.
        """
        expired_members = self._services.connection.chains.ages.expired_members

        def describe() -> list[GroupState | None]:  # In a thread: the storage may be asked for the age of an entry.
            states: list[GroupState | None] = []
            for name in names:
                group = view.groups.get(name)
                if group is None or not exists(group):
                    states.append(None)
                else:
                    states.append(_native(name, group, {member for member, _ in expired_members(view.states, name)}))
            return states

        return await self._services.in_thread(describe)

    async def list(self, request: Request, peer: Peer) -> Fields:
        """The groups in these states and of these types; without filters all."""
        view, services = await self._services.freshness.head(), self._services
        if services.may(peer, on_cluster("DESCRIBE")):
            names = sorted(view.groups)
        else:
            names = [name for name in sorted(view.groups) if services.may(peer, _on_group("DESCRIBE", name))]
        states = {name.lower() for name in value(request.body, "states_filter", ())}
        types = {name.lower() for name in value(request.body, "types_filter", ())}
        groups = [
            {
                "group_id": group.name,
                "protocol_type": group.protocol_type,
                "group_state": group.state,
                "group_type": group.group_type,
            }
            for group in await self._states(view, names)
            if group is not None
            and (not states or group.state.lower() in states)
            and (not types or group.group_type in types)
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
        allowed = [name for name in names if name not in denied]
        states = dict(zip(allowed, await self._states(view, allowed), strict=True))
        wanted = bool(value(request.body, "include_authorized_operations", False))
        groups: list[Fields] = []
        for name in names:
            state = states.get(name)
            if name in denied:
                groups.append({"group_id": name, **denied[name]})
            elif state is None:
                groups.append({"group_id": name, "group_state": "Dead", **_absence(name, request.version)})
            else:
                allowed_bits = operations_of(self._services, peer, "GROUP", name) if wanted else _NO_OPERATIONS
                groups.append(_described(state, allowed_bits))
        return {"groups": groups}

    async def delete(self, request: Request, peer: Peer) -> Fields:
        """Delete groups that have no live member."""
        names = list(dict.fromkeys(request.body.groups_names))
        codes = await asyncio.gather(*(self._delete(name, request.version, peer) for name in names))
        results = [{"group_id": name, "error_code": code} for name, code in zip(names, codes, strict=True)]
        return {"results": results}

    async def _delete(self, name: str, version: int, peer: Peer) -> ErrorCode:
        try:
            self._services.check(peer, _on_group("DELETE", name))
            if not name:
                raise RefusedError(ErrorCode.invalid_group_id, "the name of the group is empty")
            await self._services.commits.submit(DeleteGroup(name), peer.principal)
        except (TxnStoreError, RefusedError) as error:
            return code_of(error, Api.DELETE_GROUPS, version)
        return ErrorCode.none


def _on_group(operation: Operation, name: str) -> Right:
    return Right(operation, "GROUP", (name,))


def _absence(name: str, version: int) -> Fields:
    if version < _WITH_NOT_FOUND:
        return {}
    return {"error_code": ErrorCode.group_id_not_found, "error_message": f"Group {name} not found."}


def _described(state: GroupState, operations: int) -> Fields:
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


# Groups of consumers that use the store itself ------------------------------------------------------------------------


def _native(name: str, group: Group, expired: set[str]) -> GroupState:
    """A group whose members are processes that use the store itself: what it would be with a broker."""
    members = [member for member_id, member in sorted(group.members.items()) if member_id not in expired]
    protocol_type = _CONSUMER if members or group.generation >= 0 else ""
    if not members:
        return GroupState(name, "Empty", protocol_type=protocol_type)
    is_stable = all(member.assigned == member.target == member.held for member in members)
    assignor = members[0].assignor if is_stable else ""
    described = tuple(_member(member) for member in members)
    return GroupState(name, "Stable" if is_stable else "PreparingRebalance", "classic", _CONSUMER, assignor, described)


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
