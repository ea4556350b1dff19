"""ListGroups, DescribeGroups, ConsumerGroupDescribe, DeleteGroups, OffsetDelete: consumer groups of all kinds."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from io import BytesIO
from typing import Any

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
from txnstore.gateway.admin.common import error_fields, is_led, on_cluster, on_topic
from txnstore.gateway.apis import Api
from txnstore.gateway.errors import RefusedError, code_of
from txnstore.gateway.groups.classic.coordinator import ClassicCoordinator
from txnstore.gateway.groups.classic.group import State
from txnstore.gateway.groups.consumer.coordinator import (
    ConsumerCoordinator,
    assignment_by_topic,
    describe_topics,
    topic_partitions_fields,
)
from txnstore.gateway.groups.consumer.members import LEAVING_FOR_NOW, KeptMember, assignor_name, state_of
from txnstore.gateway.operations import NO_OPERATIONS, operations_of
from txnstore.gateway.server import Client, Fields, Handler
from txnstore.gateway.services import Services
from txnstore.gateway.wire import Request, build, field_value

#: The protocol of consumers, and its first version, which has subscriptions and assignments.
_CONSUMER, _PROTOCOL_VERSION = "consumer", b"\0\0"
#: The types of groups: DescribeGroups describes classic ones, ConsumerGroupDescribe those of KIP-848.
_CLASSIC, _KIP_848 = "classic", "consumer"
#: The type of a member that speaks the protocol of KIP-848; 0 is that of a classic one.
_CONSUMER_MEMBER = 1
#: The first version of DescribeGroups with GROUP_ID_NOT_FOUND (KIP-1043); earlier ones describe a dead group.
_WITH_NOT_FOUND = 6


class Groups:
    """Lists, describes and deletes groups, and their offsets.

    Groups have the fields of DescribeGroups and ListGroups, under kio's names.

    Args:
        classic: Keeps the classic groups that this gateway coordinates.
        consumers: Times the members of the groups of KIP-848 that it coordinates.
    """

    def __init__(self, services: Services, classic: ClassicCoordinator, consumers: ConsumerCoordinator) -> None:
        self._services = services
        self._classic = classic
        self._consumers = consumers

    def handlers(self) -> dict[Api, Handler]:
        """The handlers of its APIs."""
        return {
            Api.LIST_GROUPS: self.list,
            Api.DESCRIBE_GROUPS: self.describe,
            Api.CONSUMER_GROUP_DESCRIBE: self.describe_consumers,
            Api.DELETE_GROUPS: self.delete,
            Api.OFFSET_DELETE: self.delete_offsets,
        }

    async def _describe_stored(self, view: View, names: Sequence[str]) -> dict[str, Fields]:
        """Describe the existing groups as the chain has them, by name."""
        expired_members = self._services.connection.chains.ages.expired_members

        def describe() -> dict[str, Fields]:  # In a thread: it may read the age of an entry.
            """Return the stored fields of each group that exists."""
            fields_by_name: dict[str, Fields] = {}
            for name in names:
                group = view.groups.get(name)
                if group is not None and exists(group):
                    fields_by_name[name] = _stored_group_fields(
                        name, group, {member for member, _ in expired_members(view.states, name)}
                    )
            return fields_by_name

        return await self._services.in_thread(describe)

    async def list(self, request: Request, client: Client) -> Fields:
        """Return the groups that this gateway coordinates, filtered by state and type."""
        view, services = await self._services.freshness.head(), self._services
        sees_all = services.may(client, on_cluster("DESCRIBE"))

        def visible(names: Iterable[str]) -> Sequence[str]:
            return [name for name in names if sees_all or services.may(client, _on_group("DESCRIBE", name))]

        stored_names = [
            name for name in visible(view.groups) if is_led(services, chain_of_group(name, view.chains), name)
        ]
        groups_by_name = await self._describe_stored(view, stored_names)
        loaded_groups = self._classic.live_groups()  # Newer than their state in the chain.
        groups_by_name |= {name: loaded_groups[name] for name in visible(loaded_groups)}
        states = {name.lower() for name in field_value(request.body, "states_filter", ())}
        types = {name.lower() for name in field_value(request.body, "types_filter", ())}
        groups = [
            group
            for _, group in sorted(groups_by_name.items())
            if (not states or group["group_state"].lower() in states) and (not types or group["group_type"] in types)
        ]
        return {"groups": groups}

    # Describing -------------------------------------------------------------------------------------------------------

    async def describe(self, request: Request, client: Client) -> Fields:
        """Describe groups and their members, in the form of the classic protocol."""
        view = await self._services.freshness.head()
        names = list(dict.fromkeys(request.body.groups))
        stored_groups = await self._describe_stored(view, names)
        groups: list[Fields] = []
        for name in names:
            try:
                self._services.check(client, _on_group("DESCRIBE", name))
                groups.append(await self._describe(view, name, stored_groups.get(name), request, client))
            except (TxnStoreError, RefusedError) as error:
                groups.append({"group_id": name, **error_fields(error, Api.DESCRIBE_GROUPS, request.version)})
        return {"groups": groups}

    async def _describe(
        self, view: View, name: str, stored_fields: Fields | None, request: Request, client: Client
    ) -> Fields:
        """Describe a classic group from its coordinator, or as the chain has it; DEAD if there is no such group."""
        fields = stored_fields
        is_classic = stored_fields is not None and view.groups[name].kind == "classic"
        if is_classic or self._classic.state(name) is not None:  # Its coordinator is ahead of the chain.
            live_fields = await self._classic.describe(name)
            fields = stored_fields if live_fields["group_state"] is State.DEAD else live_fields
        if fields is None or fields["group_type"] != _CLASSIC:
            absent_fields = {"group_id": name, "group_state": State.DEAD}
            if request.version < _WITH_NOT_FOUND:
                return absent_fields
            return {
                **absent_fields,
                "error_code": ErrorCode.group_id_not_found,
                "error_message": f"Group {name} not found.",
            }
        return {**fields, "authorized_operations": self._operations(request, name, client)}

    async def describe_consumers(self, request: Request, client: Client) -> Fields:
        """Describe groups of KIP-848 and their members."""
        await self._services.freshness.head()
        view, groups = self._services.freshness.view, []
        for name in dict.fromkeys(request.body.group_ids):
            try:
                groups.append(self._describe_consumer_group(view, name, request, client))
            except (TxnStoreError, RefusedError) as error:
                groups.append({"group_id": name, **error_fields(error, Api.CONSUMER_GROUP_DESCRIBE, request.version)})
        return {"groups": groups}

    def _describe_consumer_group(self, view: View, name: str, request: Request, client: Client) -> Fields:
        """Describe a group of KIP-848."""
        group = view.groups.get(name, Group())
        members = [member for _, member in sorted(group.members.items())]
        self._services.check(client, _on_group("DESCRIBE", name))
        if not name:
            raise RefusedError(ErrorCode.invalid_group_id, "the name of the group is empty")
        self._consumers.check_coordinator(name)
        if group.kind != "consumer":
            raise RefusedError(ErrorCode.group_id_not_found, f"Group {name} is not a consumer group.")
        topics = {topic for member in members for topic in (*member.topics, *(tp.topic for tp in member.target))}
        self._services.check(client, describe_topics(topics))
        kept_members = self._consumers.kept_members(name)
        return {
            "group_id": name,
            "error_code": ErrorCode.none,
            "group_state": state_of(group),
            "group_epoch": group.generation,
            "assignment_epoch": group.generation,
            "assignor_name": assignor_name(members),
            "members": [
                _consumer_member_fields(view, group, member, kept_members[member.member_id]) for member in members
            ],
            "authorized_operations": self._operations(request, name, client),
        }

    def _operations(self, request: Request, name: str, client: Client) -> int:
        """The operations that the client may do on a group, if it asks for them."""
        is_asked = field_value(request.body, "include_authorized_operations", False)
        return operations_of(self._services, client, "GROUP", name) if is_asked else NO_OPERATIONS

    # Deleting ---------------------------------------------------------------------------------------------------------

    async def delete(self, request: Request, client: Client) -> Fields:
        """Delete groups that have no live member."""
        names = list(dict.fromkeys(request.body.groups_names))
        codes = await asyncio.gather(*(self._delete(name, request.version, client) for name in names))
        results = [{"group_id": name, "error_code": code} for name, code in zip(names, codes, strict=True)]
        return {"results": results}

    async def _delete(self, name: str, version: int, client: Client) -> ErrorCode:
        """Delete a group without members; return the code."""
        try:
            self._services.check(client, _on_group("DELETE", name))
            if self._classic.state(name) not in (None, State.EMPTY):
                raise RefusedError(ErrorCode.non_empty_group, f"the group {name!r} has members")
            await self._services.commits.submit(DeleteGroup(name), client.principal)
        except (TxnStoreError, RefusedError) as error:
            return code_of(error, Api.DELETE_GROUPS, version)
        return ErrorCode.none

    async def delete_offsets(self, request: Request, client: Client) -> Fields:
        """Delete committed offsets of a group, but for topics that a live member reads (KIP-496)."""
        name, services = request.body.group_id, self._services
        codes: dict[TopicPartition, ErrorCode] = {}
        try:
            services.check(client, _on_group("DELETE", name))
            if not name:
                raise RefusedError(ErrorCode.invalid_group_id, "the name of the group is empty")
            for topic in request.body.topics:
                for partition in topic.partitions:
                    tp = TopicPartition(topic.name, partition.partition_index)
                    codes[tp] = await self._check_deletable(tp, request.version, client)
            to_delete = tuple(tp for tp, code in codes.items() if code is ErrorCode.none)
            undeleted_tps: tuple[TopicPartition, ...] = await services.commits.submit(
                DeleteOffsets(name, to_delete), client.principal
            )
        except (TxnStoreError, RefusedError) as error:
            return {"error_code": code_of(error, Api.OFFSET_DELETE, request.version), "topics": ()}
        codes |= dict.fromkeys(undeleted_tps, ErrorCode.group_subscribed_to_topic)
        topics = [
            {
                "name": topic.name,
                "partitions": [
                    {
                        "partition_index": partition.partition_index,
                        "error_code": codes[TopicPartition(topic.name, partition.partition_index)],
                    }
                    for partition in topic.partitions
                ],
            }
            for topic in request.body.topics
        ]
        return {"topics": topics}

    async def _check_deletable(self, tp: TopicPartition, version: int, client: Client) -> ErrorCode:
        """Return the code that refuses to delete the offset of a partition, or NONE."""
        try:
            self._services.check(client, on_topic("READ", tp.topic))
            await self._services.find(tp.topic, None, tp.partition)
        except (TxnStoreError, RefusedError) as error:
            return code_of(error, Api.OFFSET_DELETE, version)
        return ErrorCode.none


def _on_group(operation: Operation, name: str) -> Right:
    return Right(operation, "GROUP", (name,))


# Groups as the chain has them -----------------------------------------------------------------------------------------


def _stored_group_fields(name: str, group: Group, expired_ids: set[str]) -> Fields:
    """Describe a stored group without expired members, and without those that a gateway knows better."""
    fields: dict[str, Any] = {"group_id": name, "group_type": _CLASSIC, "group_state": State.EMPTY, "protocol_type": ""}
    if group.kind == "classic":
        state = State.STABLE if group.classic_members else State.EMPTY
        protocol_type = (group.classic.protocol_type if group.classic else None) or ""
        return {**fields, "group_state": state, "protocol_type": protocol_type}
    if group.kind == "consumer":
        return {**fields, "group_type": _KIP_848, "group_state": state_of(group), "protocol_type": _CONSUMER}
    # The members use the store without a gateway: describe the group as a broker would.
    members = [member for member_id, member in sorted(group.members.items()) if member_id not in expired_ids]
    if members or group.generation >= 0:
        fields["protocol_type"] = _CONSUMER
    if members:
        is_stable = all(member.assigned == member.target == member.held for member in members)
        fields["group_state"] = State.STABLE if is_stable else State.PREPARING_REBALANCE
        fields["protocol_data"] = members[0].assignor if is_stable else ""
        fields["members"] = [_native_member_fields(member) for member in members]
    return fields


def _native_member_fields(member: Member) -> Fields:
    """Describe a member that uses the store itself; its id ends with its host and process."""
    numbers_by_topic: dict[str, list[int]] = {}
    for tp in member.assigned:
        numbers_by_topic.setdefault(tp.topic, []).append(tp.partition)
    assigned = [{"topic": topic, "partitions": partitions} for topic, partitions in sorted(numbers_by_topic.items())]
    return {
        "member_id": member.member_id,
        "group_instance_id": member.instance_id,
        "client_id": member.member_id,
        "member_metadata": _protocol_data(ConsumerProtocolSubscription, {"topics": sorted(member.topics)}),
        "member_assignment": _protocol_data(ConsumerProtocolAssignment, {"assigned_partitions": assigned}),
    }


def _consumer_member_fields(view: View, group: Group, member: Member, kept_member: KeptMember) -> Fields:
    """Describe a member of KIP-848."""
    assert group.epochs is not None
    return {
        "member_id": member.member_id,
        "instance_id": member.instance_id,
        "rack_id": kept_member.rack_id,
        "member_epoch": LEAVING_FOR_NOW if kept_member.is_away else group.epochs[member.member_id],
        "client_id": kept_member.client_id,
        "client_host": kept_member.client_host,
        "subscribed_topic_names": sorted(kept_member.names),
        "subscribed_topic_regex": kept_member.regex or None,
        "assignment": _assignment_fields(view, member.assigned),
        "target_assignment": _assignment_fields(view, member.target),
        "member_type": _CONSUMER_MEMBER,
    }


def _assignment_fields(view: View, tps: tuple[TopicPartition, ...]) -> Fields:
    return {"topic_partitions": topic_partitions_fields(assignment_by_topic(view, tps))}


def _protocol_data(schema: type, fields: Fields) -> bytes:
    """Encode a message of the protocol among consumers, which clients decode."""
    buffer = BytesIO(_PROTOCOL_VERSION)
    buffer.seek(len(_PROTOCOL_VERSION))
    entity_writer(schema)(buffer, build(schema, fields))
    return buffer.getvalue()
