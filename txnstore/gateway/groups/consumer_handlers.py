"""ConsumerGroupHeartbeat: the members of groups of KIP-848.

A heartbeat becomes a command only if it changes what the chain has. Sessions are timed here, by the loop's clock; a
command names the members that have left. Of two gateways that both believe that they coordinate, the chain takes the
commands of both: nothing that a member may do depends on what a gateway believes. One that does not hear of a member
for a whole session removes it, and it joins again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from kio.schema.errors import ErrorCode

from txnstore.core.authorization.rights import Right, read_group
from txnstore.core.groups.commands import Heartbeat, JoinGroup, LeaveGroup, Membership
from txnstore.core.groups.model import Group, Member
from txnstore.core.model import TopicPartition
from txnstore.core.view import View
from txnstore.errors import InvalidConfigError, TxnStoreError, UnknownMemberError
from txnstore.gateway.apis import Api
from txnstore.gateway.errors import RefusedError, code_of, message_of
from txnstore.gateway.groups.consumer import (
    ASSIGNORS,
    JOINING,
    LEAVING_FOR_NOW,
    KeptGroup,
    KeptMember,
    MemberRequest,
    check_request,
    is_released,
    matching,
    member_before,
    would_change,
)
from txnstore.gateway.logs import limited_logger
from txnstore.gateway.server import Fields, Handler, Peer
from txnstore.gateway.services import Services, topic_uuid
from txnstore.gateway.wire import Request, value
from txnstore.validation import is_topic_name

_LOG = limited_logger(__name__)

#: A timer that is later than this shows that the process was paused. Peers call a gateway dead after as long.
_PAUSE_MS = 3_000
#: The time between two attempts to remove members.
_RETRY_MS = 1_000
#: An assignment in the order of a response: the id and the name of each topic, and its partitions.
Assignment = tuple[tuple[Any, str, tuple[int, ...]], ...]


@dataclass(eq=False, slots=True)
class _Live:
    """A group that this gateway coordinates, and its timer."""

    kept: KeptGroup
    timer: asyncio.TimerHandle | None = None
    at: int = 0
    removing: asyncio.Task[None] | None = field(default=None, repr=False)


class ConsumerGroups:
    """Answers the members of groups of KIP-848. To be used in one event loop, whose clock it reads.

    Args:
        services: The services.
        coordinates: Whether this gateway is the coordinator of a group at the moment. After it has changed, call
            :meth:`release` and :meth:`take_over`.
    """

    def __init__(self, services: Services, coordinates: Callable[[str], bool]) -> None:
        self._services = services
        self._coordinates = coordinates
        self._groups: dict[str, _Live] = {}
        self._sweep: asyncio.TimerHandle | None = None

    def handlers(self) -> dict[Api, Handler]:
        """The handler of its API."""
        return {Api.CONSUMER_GROUP_HEARTBEAT: self.heartbeat}

    # Members ----------------------------------------------------------------------------------------------------------

    async def heartbeat(self, request: Request, peer: Peer) -> Fields:
        """A member joins, is alive, or leaves; it gets its epoch and, if it changes, its assignment."""
        try:
            self._services.check(peer, read_group(request.body.group_id))
            asked = await self._asked(request, peer)
            check_request(asked)
            self.check_coordinator(asked.group)
            if asked.names:
                self._services.check(peer, describe_topics(asked.names))
            try:
                return await (self._heartbeat if asked.epoch >= JOINING else self._leave)(asked, peer)
            finally:
                self._forget_empty(asked.group)
        except (TxnStoreError, RefusedError) as error:
            return {"error_code": _code(error, request.version), "error_message": message_of(error)}

    async def _asked(self, request: Request, peer: Peer) -> MemberRequest:
        """The request with the names of its topics in the place of their ids; deleted ones are left out."""
        body = request.body
        await self._services.freshness.recent()  # It may refer to topics that others have created.
        owned = body.topic_partitions
        if owned is not None:
            names = {topic_uuid(topic): name for name, topic in self._view.topics.items()} if owned else {}
            known = [each for each in owned if each.topic_id in names]
            owned = tuple(TopicPartition(names[each.topic_id], int(n)) for each in known for n in each.partitions)
        rebalance_ms = int(body.rebalance_timeout.total_seconds() * 1000)
        names_asked = body.subscribed_topic_names
        return MemberRequest(
            str(body.group_id),
            body.member_id,
            int(body.member_epoch),
            body.instance_id,
            body.rack_id,
            rebalance_ms if rebalance_ms >= 0 else None,
            tuple(map(str, names_asked)) if names_asked is not None else None,
            value(body, "subscribed_topic_regex"),
            body.server_assignor,
            owned,
            request.client_id or "",
            peer.host,
            request.version,
        )

    async def _heartbeat(self, asked: MemberRequest, peer: Peer) -> Fields:
        live, now = self._live(asked.group), self._now()
        group = self._group(asked.group)
        before = member_before(group, live.kept, asked)
        member_id = asked.member_id or self._services.connection.runtime.new_id()
        session_ms = self._services.properties.group_consumer_session_timeout_ms
        kept = live.kept.members.get(member_id) or KeptMember(now + session_ms)
        kept.hear(asked, now, session_ms)
        topics = self._topics(kept, peer)
        assignor = ASSIGNORS[asked.assignor] if asked.assignor is not None else None
        if assignor is None:
            assignor = before.assignor if before is not None else next(iter(ASSIGNORS.values()))
        submit, membership = self._services.commits.submit, None
        joins = asked.epoch == JOINING or before is None
        if joins or before is None or (before.topics, before.assignor) != (topics, assignor):
            instance_id = asked.instance_id if before is None or joins else before.instance_id
            join = JoinGroup(
                asked.group, member_id, tuple(topics.items()), assignor, session_ms, instance_id, kind="consumer"
            )
            membership = await submit(join, peer.principal)
            if before is None or joins:
                extra = {"group": asked.group, "member_id": member_id, "generation": membership.generation}
                _LOG.info("member joins the group", extra=extra)
        if before is not None and (
            asked.owned is not None if membership is not None else would_change(group, before, asked.owned)
        ):
            try:
                membership = await submit(Heartbeat(asked.group, member_id, asked.owned), peer.principal)
            except UnknownMemberError:
                if asked.epoch != JOINING:
                    raise
                # Its session ended after it had joined again, while the storage did not answer: now it is new.
                return await self._heartbeat(asked, peer)
        if membership is None:
            assert before is not None
            assert group.epochs is not None
            kept.await_release(before, now)
            membership = Membership(member_id, group.epochs[member_id], before.assigned)
        return self._answered(live, asked, kept, membership, before)

    def _answered(
        self, live: _Live, asked: MemberRequest, kept: KeptMember, membership: Membership, before: Member | None
    ) -> Fields:
        if before is not None and before.member_id != membership.member_id:
            live.kept.members.pop(before.member_id, None)
        live.kept.members[membership.member_id] = kept
        if self._coordinates(asked.group):  # Without members it may have been forgotten meanwhile.
            self._arm(asked.group, self._groups.setdefault(asked.group, live))
        assignment = assignment_of(self._view, membership.assigned)
        fields: dict[str, Any] = {
            "member_id": membership.member_id,
            "member_epoch": membership.generation,
            "heartbeat_interval": self._services.properties.group_consumer_heartbeat_interval_ms,
        }
        if kept.tell(membership.generation, assignment) or asked.is_full:
            fields["assignment"] = {"topic_partitions": by_topic(assignment)}
        return fields

    def _topics(self, kept: KeptMember, peer: Peer) -> dict[str, int]:
        """The topics that a member reads, with their partitions: none of one that does not exist yet.

        A name that no topic can have is left out, as if it did not exist: Metadata refuses it, and clients report that.
        """
        topics = self._view.topics
        names = {name for name in kept.names if is_topic_name(name)}
        if kept.regex:
            matches = matching(kept.regex, tuple(sorted(topics)))
            names |= {name for name in matches if self._services.may(peer, describe_topics((name,)))}
        return {name: topics[name].partitions if name in topics else 0 for name in sorted(names)}

    async def _leave(self, asked: MemberRequest, peer: Peer) -> Fields:
        live = self._live(asked.group)
        group = self._group(asked.group)
        member = member_before(group, live.kept, asked)
        assert member is not None
        submit = self._services.commits.submit
        if asked.epoch == LEAVING_FOR_NOW:
            if not is_released(member):
                await submit(Heartbeat(asked.group, member.member_id, ()), peer.principal)
            kept = live.kept.members[member.member_id]
            kept.is_heard = kept.is_away = True
        else:
            await submit(LeaveGroup(asked.group, member.member_id), peer.principal)
            live.kept.members.pop(member.member_id, None)
        extra = {"group": asked.group, "member_id": member.member_id, "member_epoch": asked.epoch}
        _LOG.info("member leaves the group", extra=extra)
        return {"member_id": member.member_id, "member_epoch": asked.epoch}

    # Groups -----------------------------------------------------------------------------------------------------------

    def check_coordinator(self, group: str) -> None:
        """Check that this gateway coordinates a group.

        Raises:
            RefusedError: Another gateway does.
        """
        if not self._coordinates(group):
            self.release()
            raise RefusedError(ErrorCode.not_coordinator, f"another gateway coordinates the group {group}")

    def kept(self, group: str) -> Mapping[str, KeptMember]:
        """What this gateway, which coordinates the group, knows of each member that the newest view has."""
        try:
            return dict(self._live(group).kept.members)
        finally:
            self._forget_empty(group)

    def release(self) -> None:
        """Leave the groups that other gateways coordinate now."""
        for name in [name for name in self._groups if not self._coordinates(name)]:
            self._forget(name)

    def take_over(self) -> None:
        """Time the members of all groups that this gateway coordinates: those whose clients have ended must expire.

        Once in a session timeout it looks again. A member whose join was not answered, because its connection or the
        storage failed, may be in the chain.
        """
        if self._sweep is not None:
            self._sweep.cancel()
        for name, group in self._view.groups.items():
            if group.kind == "consumer" and group.members and self._coordinates(name):
                self._live(name)
        seconds = self._services.properties.group_consumer_session_timeout_ms / 1000
        self._sweep = asyncio.get_running_loop().call_later(seconds, self.take_over)

    async def close(self) -> None:
        """Leave all groups, and wait for what is being committed."""
        self._coordinates = lambda _group: False
        if self._sweep is not None:
            self._sweep.cancel()
        removing = [live.removing for live in self._groups.values() if live.removing is not None]
        self.release()
        await asyncio.gather(*removing)

    @property
    def _view(self) -> View:
        return self._services.freshness.view

    def _group(self, name: str) -> Group:
        return self._view.groups.get(name, Group())

    def _live(self, name: str) -> _Live:
        """The group as the newest view has it; its members are timed from now on."""
        live = self._groups.get(name)
        if live is None:
            live = self._groups[name] = _Live(KeptGroup(self._services.properties))
        live.kept.follow(self._group(name), self._now())
        self._arm(name, live)
        return live

    # Timers -----------------------------------------------------------------------------------------------------------

    @staticmethod
    def _now() -> int:
        return int(asyncio.get_running_loop().time() * 1000)

    def _forget(self, name: str) -> None:
        live = self._groups.pop(name)
        if live.timer is not None:
            live.timer.cancel()

    def _forget_empty(self, name: str) -> None:
        """A group without members needs no memory."""
        live = self._groups.get(name)
        if live is not None and not live.kept.members and live.removing is None:
            self._forget(name)

    def _arm(self, name: str, live: _Live, earliest: int = 0) -> None:
        """Set the timer; one that is too early finds nothing due, and is set again."""
        at = live.kept.deadline
        if live.removing is not None or at is None:
            return
        at = max(at, earliest)
        if live.timer is not None:
            if live.at <= at:
                return
            live.timer.cancel()
        live.at = at
        live.timer = asyncio.get_running_loop().call_at(at / 1000, self._tick, name, live)

    def _tick(self, name: str, live: _Live) -> None:
        live.timer = None
        now = max(self._now(), live.at)
        if not self._coordinates(name):
            self._forget(name)
            return
        if now - live.at > _PAUSE_MS:
            live.kept.renew(now)
        if live.kept.overdue(now):
            live.removing = asyncio.get_running_loop().create_task(self._remove(name, live))
        else:
            self._rest(name, live)

    async def _remove(self, name: str, live: _Live) -> None:
        """Remove the overdue members. One that another gateway has heard of since stays, and its timer restarts."""
        try:
            await self._services.freshness.head()
            group = self._group(name)
            live.kept.follow(group, self._now())
            overdue = live.kept.overdue(self._now())
            if overdue:
                expired = tuple((member_id, group.members[member_id].seen_at) for member_id in overdue)
                await self._services.commits.submit(LeaveGroup(name, expired=expired), None)
                for member_id in overdue:
                    live.kept.members.pop(member_id, None)
                _LOG.info("the sessions of members expired", extra={"group": name, "left": overdue})
        except TxnStoreError as error:
            _LOG.warning("members cannot be removed: %s", error, extra={"group": name, "error": str(error)})
        except Exception:  # noqa: BLE001 - The next attempt may succeed, and without one no member would be removed.
            _LOG.exception("members cannot be removed", extra={"group": name})
        live.removing = None
        if self._groups.get(name) is live:
            self._rest(name, live, self._now() + _RETRY_MS)

    def _rest(self, name: str, live: _Live, earliest: int = 0) -> None:
        """Wait for the next deadline."""
        self._arm(name, live, earliest)
        self._forget_empty(name)


def assignment_of(view: View, tps: Iterable[TopicPartition]) -> Assignment:
    """Partitions by topic; those of a deleted topic are left out."""
    numbers: dict[str, list[int]] = {}
    for tp in tps:
        numbers.setdefault(tp.topic, []).append(tp.partition)
    return tuple(
        (topic_uuid(view.topics[name]), name, tuple(sorted(of_topic)))
        for name, of_topic in sorted(numbers.items())
        if name in view.topics
    )


def by_topic(assignment: Assignment) -> list[Fields]:
    """An assignment in a response."""
    return [{"topic_id": topic_id, "topic_name": name, "partitions": numbers} for topic_id, name, numbers in assignment]


def describe_topics(names: Collection[str]) -> Right:
    """The right to see topics."""
    return Right("DESCRIBE", "TOPIC", names)


def _code(error: TxnStoreError | RefusedError, version: int) -> ErrorCode:
    if isinstance(error, InvalidConfigError):
        return ErrorCode.invalid_request
    return code_of(error, Api.CONSUMER_GROUP_HEARTBEAT, version)
