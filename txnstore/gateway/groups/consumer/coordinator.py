"""ConsumerGroupHeartbeat: the members of groups of KIP-848.

A heartbeat becomes a command only if it changes what the chain has. Sessions are timed here, by the loop's clock; a
command names the members that have left. Of two gateways that both believe that they coordinate, the chain takes the
commands of both: nothing that a member may do depends on what a gateway believes. One that does not hear of a member
for a whole session removes it, and it joins again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any
from uuid import UUID

from kio.schema.errors import ErrorCode

from txnstore.core.authorization.rights import Right, read_group
from txnstore.core.groups.commands import Heartbeat, JoinGroup, LeaveGroup, Membership
from txnstore.core.groups.model import Group, Member
from txnstore.core.model import TopicPartition
from txnstore.core.view import View
from txnstore.errors import InvalidConfigError, TxnStoreError, UnknownMemberError
from txnstore.gateway.apis import Api
from txnstore.gateway.errors import RefusedError, code_of, message_of
from txnstore.gateway.groups.consumer.members import (
    ASSIGNORS,
    JOINING,
    LEAVING_FOR_NOW,
    KeptGroup,
    KeptMember,
    MemberHeartbeat,
    check_request,
    is_full_request,
    is_released,
    matching_topics,
    member_of_request,
    would_change,
)
from txnstore.gateway.groups.coordinator import RETRY_MS, Coordinator, LiveGroup
from txnstore.gateway.logs import limited_logger
from txnstore.gateway.server import Client, Fields, Handler
from txnstore.gateway.services import Services, topic_uuid
from txnstore.gateway.wire import Request
from txnstore.validation import is_topic_name

_LOG = limited_logger(__name__)

#: An assignment in the order of a response: the id and the name of each topic, and its partitions.
Assignment = tuple[tuple[Any, str, tuple[int, ...]], ...]
#: Partitions that a member says it reads; None: the same ones as before.
Owned = tuple[TopicPartition, ...] | None


class ConsumerCoordinator(Coordinator[KeptGroup]):
    """The groups of KIP-848 that this gateway coordinates."""

    def __init__(self, services: Services, coordinates: Callable[[str], bool]) -> None:
        super().__init__(services, coordinates)
        self._sweep: asyncio.TimerHandle | None = None

    def handlers(self) -> dict[Api, Handler]:
        """The handler of its members' heartbeats."""
        return {Api.CONSUMER_GROUP_HEARTBEAT: self.heartbeat}

    # Members ----------------------------------------------------------------------------------------------------------

    async def heartbeat(self, request: Request, client: Client) -> Fields:
        """Let a member join, extend its session, or let it leave; return its epoch and a changed assignment."""
        message: MemberHeartbeat = request.body
        name = message.group_id
        try:
            self._services.check(client, read_group(name))
            await self._services.freshness.recent()  # The request may refer to topics that others have created.
            check_request(message)
            self.check_coordinator(name)
            if message.subscribed_topic_names:
                self._services.check(client, describe_topics(message.subscribed_topic_names))
            try:
                if message.member_epoch < JOINING:
                    return await self._handle_leave(message, client)
                return await self._handle_heartbeat(
                    message, self._owned_partitions(message), request.client_id or "", client
                )
            finally:
                if (live_group := self._groups.get(name)) is not None:
                    self._arm_or_forget(live_group)
        except (TxnStoreError, RefusedError) as error:
            return {"error_code": _error_code(error, request.version), "error_message": message_of(error)}

    def _owned_partitions(self, message: MemberHeartbeat) -> Owned:
        """The partitions that a member says it reads, without those of deleted topics; None: as before."""
        if not message.topic_partitions:
            return None if message.topic_partitions is None else ()
        names_by_id: dict[UUID | None, str] = {topic_uuid(topic): name for name, topic in self._view.topics.items()}
        return tuple(
            TopicPartition(names_by_id[topic.topic_id], int(number))
            for topic in message.topic_partitions
            if topic.topic_id in names_by_id
            for number in topic.partitions
        )

    async def _handle_heartbeat(
        self, message: MemberHeartbeat, owned_tps: Owned, client_id: str, client: Client
    ) -> Fields:
        """Join or change the member if the request demands it, record what it holds, and return its assignment."""
        name, now = message.group_id, self._now()
        live_group, group = self._live_group(name), self._group(name)
        stored_member = member_of_request(group, live_group.group, message, owned_tps)
        member_id = message.member_id or self._services.connection.runtime.new_id()
        session_ms = self._services.properties.group_consumer_session_timeout_ms
        kept_member = live_group.group.members.get(member_id) or KeptMember(now + session_ms)
        kept_member.record_request(message, client_id, client.host, now, session_ms)
        topics = self._subscribed_topics(kept_member, client)
        assignor = ASSIGNORS[message.server_assignor] if message.server_assignor is not None else None
        if assignor is None:
            assignor = stored_member.assignor if stored_member is not None else next(iter(ASSIGNORS.values()))
        # One heartbeat of Kafka may join, subscribe to other topics and release partitions: two commands of the chain.
        submit, membership = self._services.commits.submit, None
        joins = message.member_epoch == JOINING or stored_member is None
        if joins or stored_member is None or (stored_member.topics, stored_member.assignor) != (topics, assignor):
            instance_id = message.instance_id if stored_member is None or joins else stored_member.instance_id
            join = JoinGroup(name, member_id, tuple(topics.items()), assignor, session_ms, instance_id, kind="consumer")
            membership = await submit(join, client.principal)
            if stored_member is None or joins:
                extra = {"group": name, "member_id": member_id, "generation": membership.generation}
                _LOG.info("member joins the group", extra=extra)
        if stored_member is not None and (
            owned_tps is not None if membership is not None else would_change(group, stored_member, owned_tps)
        ):
            try:
                membership = await submit(Heartbeat(name, member_id, owned_tps), client.principal)
            except UnknownMemberError:
                if message.member_epoch != JOINING:
                    raise
                # Its session ended after it had rejoined, while the storage did not answer: it joins as a new member.
                return await self._handle_heartbeat(message, owned_tps, client_id, client)
        if membership is None:
            assert stored_member is not None
            assert group.epochs is not None
            kept_member.await_release(stored_member, now)
            membership = Membership(member_id, group.epochs[member_id], stored_member.assigned)
        return self._response(live_group, message, kept_member, membership, stored_member)

    def _response(
        self,
        live_group: LiveGroup[KeptGroup],
        message: MemberHeartbeat,
        kept_member: KeptMember,
        membership: Membership,
        stored_member: Member | None,
    ) -> Fields:
        """Keep the member, and return its fields, with the assignment if it has changed or the request was full."""
        if stored_member is not None and stored_member.member_id != membership.member_id:
            live_group.group.members.pop(stored_member.member_id, None)
        live_group.group.members[membership.member_id] = kept_member
        if self._coordinates(live_group.name):  # The group may have been forgotten meanwhile, when it had no members.
            self._arm(self._groups.setdefault(live_group.name, live_group))
        assignment = assignment_by_topic(self._view, membership.assigned)
        fields: dict[str, Any] = {
            "member_id": membership.member_id,
            "member_epoch": membership.generation,
            "heartbeat_interval": self._services.properties.group_consumer_heartbeat_interval_ms,
        }
        if kept_member.record_response(membership.generation, assignment) or is_full_request(message):
            fields["assignment"] = {"topic_partitions": topic_partitions_fields(assignment)}
        return fields

    def _subscribed_topics(self, kept_member: KeptMember, client: Client) -> dict[str, int]:
        """The topics that a member subscribes to, with their numbers of partitions: 0 if the topic does not exist.

        An invalid topic name is left out: Metadata refuses it, and clients report that.
        """
        topics = self._view.topics
        names = {name for name in kept_member.names if is_topic_name(name)}
        if kept_member.regex:
            matching_names = matching_topics(kept_member.regex, tuple(sorted(topics)))
            names |= {name for name in matching_names if self._services.may(client, describe_topics((name,)))}
        return {name: topics[name].partitions if name in topics else 0 for name in sorted(names)}

    async def _handle_leave(self, message: MemberHeartbeat, client: Client) -> Fields:
        """Remove a member; a static one that leaves for now only releases its partitions."""
        name = message.group_id
        live_group, group = self._live_group(name), self._group(name)
        member = member_of_request(group, live_group.group, message, None)
        assert member is not None
        submit = self._services.commits.submit
        if message.member_epoch == LEAVING_FOR_NOW:
            if not is_released(member):
                await submit(Heartbeat(name, member.member_id, ()), client.principal)
            kept_member = live_group.group.members[member.member_id]
            kept_member.has_sent_request = kept_member.is_away = True
        else:
            await submit(LeaveGroup(name, member.member_id), client.principal)
            live_group.group.members.pop(member.member_id, None)
        extra = {"group": name, "member_id": member.member_id, "member_epoch": message.member_epoch}
        _LOG.info("member leaves the group", extra=extra)
        return {"member_id": member.member_id, "member_epoch": message.member_epoch}

    # Groups -----------------------------------------------------------------------------------------------------------

    def kept_members(self, name: str) -> Mapping[str, KeptMember]:
        """The state that this gateway keeps of each member of a group that it coordinates."""
        live_group = self._live_group(name)
        members = dict(live_group.group.members)
        self._arm_or_forget(live_group)
        return members

    def take_over(self) -> None:
        """Time the members of stored groups from now on: those whose clients have ended must expire.

        Repeated once per session timeout: the chain may have a member whose join was not answered, because its
        connection or the storage failed.
        """
        if self._sweep is not None:
            self._sweep.cancel()
        for name, group in self._view.groups.items():
            if group.kind == "consumer" and group.members and self._coordinates(name):
                self._live_group(name)
        seconds = self._services.properties.group_consumer_session_timeout_ms / 1000
        self._sweep = asyncio.get_running_loop().call_later(seconds, self.take_over)

    async def close(self) -> None:
        """Leave all groups, and wait for commits under way."""
        if self._sweep is not None:
            self._sweep.cancel()
        await super().close()

    def _group(self, name: str) -> Group:
        return self._view.groups.get(name, Group())

    def _live_group(self, name: str) -> LiveGroup[KeptGroup]:
        """Return the group as the newest view has it, and time its members from now on."""
        live_group = self._groups.get(name)
        if live_group is None:
            live_group = self._groups[name] = LiveGroup(name, KeptGroup(self._services.properties))
        live_group.group.follow(self._group(name), self._now())
        self._arm(live_group)
        return live_group

    def _resume(self, live_group: LiveGroup[KeptGroup], now: int) -> None:
        live_group.group.renew(now)
        self._arm_or_forget(live_group)

    def _expire(self, live_group: LiveGroup[KeptGroup], now: int) -> None:
        if live_group.group.overdue_ids(now):
            live_group.group.is_removing = True
            self._spawn(self._remove(live_group))
        else:
            self._arm_or_forget(live_group)

    async def _remove(self, live_group: LiveGroup[KeptGroup]) -> None:
        """Remove the overdue members; one that another gateway has heard of since stays, and its timer restarts."""
        name = live_group.name
        try:
            await self._services.freshness.head()
            group = self._group(name)
            live_group.group.follow(group, self._now())
            overdue_ids = live_group.group.overdue_ids(self._now())
            if overdue_ids:
                expired_members = tuple((member_id, group.members[member_id].seen_at) for member_id in overdue_ids)
                await self._services.commits.submit(LeaveGroup(name, expired=expired_members), None)
                for member_id in overdue_ids:
                    live_group.group.members.pop(member_id, None)
                _LOG.info("the sessions of members expired", extra={"group": name, "left": overdue_ids})
        except TxnStoreError as error:
            _LOG.warning("members cannot be removed: %s", error, extra={"group": name, "error": str(error)})
        except Exception:  # noqa: BLE001 - The next attempt may succeed, and without one no member would be removed.
            _LOG.exception("members cannot be removed", extra={"group": name})
        live_group.group.is_removing = False
        if self._groups.get(name) is live_group:
            self._arm_or_forget(live_group, self._now() + RETRY_MS)


def assignment_by_topic(view: View, tps: Iterable[TopicPartition]) -> Assignment:
    """Group partitions by topic, without those of deleted topics."""
    numbers_by_topic: dict[str, list[int]] = {}
    for tp in tps:
        numbers_by_topic.setdefault(tp.topic, []).append(tp.partition)
    return tuple(
        (topic_uuid(view.topics[name]), name, tuple(sorted(of_topic)))
        for name, of_topic in sorted(numbers_by_topic.items())
        if name in view.topics
    )


def topic_partitions_fields(assignment: Assignment) -> list[Fields]:
    """The fields of an assignment in a response."""
    return [{"topic_id": topic_id, "topic_name": name, "partitions": numbers} for topic_id, name, numbers in assignment]


def describe_topics(names: Collection[str]) -> Right:
    """The right to see topics."""
    return Right("DESCRIBE", "TOPIC", names)


def _error_code(error: TxnStoreError | RefusedError, version: int) -> ErrorCode:
    if isinstance(error, InvalidConfigError):
        return ErrorCode.invalid_request
    return code_of(error, Api.CONSUMER_GROUP_HEARTBEAT, version)
