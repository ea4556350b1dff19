"""JoinGroup, SyncGroup, Heartbeat and LeaveGroup: the requests of members of classic groups."""

from __future__ import annotations

from typing import Any

from kio.schema.errors import ErrorCode

from txnstore.core.authorization.rights import read_group
from txnstore.errors import TxnStoreError
from txnstore.gateway.apis import Api
from txnstore.gateway.errors import code_of
from txnstore.gateway.groups.coordinator import GroupCoordinator
from txnstore.gateway.groups.model import (
    Code,
    HeartbeatRequest,
    JoinRequest,
    LeaveRequest,
    LeavingMember,
    SyncRequest,
)
from txnstore.gateway.server import Fields, Handler, Peer
from txnstore.gateway.services import Services
from txnstore.gateway.wire import Request, value

#: The first version of JoinGroup whose protocol may be missing, and the first one of LeaveGroup with several members.
_NO_PROTOCOL, _SEVERAL = 7, 3


class ClassicGroups:
    """Answers the members of classic groups."""

    def __init__(self, services: Services, coordinator: GroupCoordinator) -> None:
        self._services = services
        self._coordinator = coordinator

    def handlers(self) -> dict[Api, Handler]:
        """The handlers of its APIs."""
        return {
            Api.JOIN_GROUP: self.join,
            Api.SYNC_GROUP: self.sync,
            Api.HEARTBEAT: self.heartbeat,
            Api.LEAVE_GROUP: self.leave,
        }

    def _refused(self, request: Request, peer: Peer) -> ErrorCode | None:
        """The code for a client that may not read with the group."""
        try:
            self._services.check(peer, read_group(request.body.group_id))
        except TxnStoreError as error:
            return code_of(error, Api(request.api), request.version)
        return None

    async def join(self, request: Request, peer: Peer) -> Fields:
        """Join a group, or take part in its next generation; waits for the other members."""
        body = request.body
        refused = self._refused(request, peer)
        if refused is not None:
            return {"error_code": refused, "member_id": body.member_id, "generation_id": -1, "protocol_name": ""}
        session_ms = _milliseconds(body.session_timeout)
        response = await self._coordinator.join(
            JoinRequest(
                body.group_id,
                body.member_id,
                value(body, "group_instance_id"),
                body.protocol_type,
                tuple((protocol.name, protocol.metadata) for protocol in body.protocols),
                session_ms,
                _milliseconds(value(body, "rebalance_timeout", body.session_timeout)),
                request.client_id or "",
                peer.host,
                request.version,
                value(body, "reason"),
            )
        )
        protocol = response.protocol
        return {
            "error_code": _code(response.error),
            "generation_id": response.generation,
            "protocol_type": response.protocol_type,
            "protocol_name": "" if protocol is None and request.version < _NO_PROTOCOL else protocol,
            "leader": response.leader,
            "skip_assignment": response.skip_assignment,
            "member_id": response.member_id,
            "members": [
                {
                    "member_id": member.member_id,
                    "group_instance_id": member.instance_id,
                    "metadata": member.subscription,
                }
                for member in response.members
            ],
        }

    async def sync(self, request: Request, peer: Peer) -> Fields:
        """The assignment of a member; that of the leader brings all of them."""
        body = request.body
        refused = self._refused(request, peer)
        if refused is not None:
            return {"error_code": refused}
        response = await self._coordinator.sync(
            SyncRequest(
                body.group_id,
                body.generation_id,
                body.member_id,
                value(body, "group_instance_id"),
                value(body, "protocol_type"),
                value(body, "protocol_name"),
                tuple((each.member_id, each.assignment) for each in body.assignments),
                request.version,
            )
        )
        return {
            "error_code": _code(response.error),
            "protocol_type": response.protocol_type,
            "protocol_name": response.protocol,
            "assignment": response.assignment,
        }

    async def heartbeat(self, request: Request, peer: Peer) -> Fields:
        """A member is alive."""
        body = request.body
        refused = self._refused(request, peer)
        if refused is not None:
            return {"error_code": refused}
        instance_id = value(body, "group_instance_id")
        asked = HeartbeatRequest(body.group_id, body.generation_id, body.member_id, instance_id)
        return {"error_code": _code((await self._coordinator.heartbeat(asked)).error)}

    async def leave(self, request: Request, peer: Peer) -> Fields:
        """Members leave their group, or are removed from it."""
        body = request.body
        refused = self._refused(request, peer)
        if refused is not None:
            return {"error_code": refused}
        members = body.members if request.version >= _SEVERAL else [body]
        response = await self._coordinator.leave(LeaveRequest(body.group_id, tuple(map(_leaving, members))))
        error = response.error
        if request.version < _SEVERAL and not error and response.members:
            error = response.members[0].error
        return {
            "error_code": _code(error),
            "members": [
                {
                    "member_id": member.member_id,
                    "group_instance_id": member.instance_id,
                    "error_code": _code(member.error),
                }
                for member in response.members
            ],
        }


def _leaving(member: Any) -> LeavingMember:
    return LeavingMember(member.member_id, value(member, "group_instance_id"), value(member, "reason"))


def _code(code: Code) -> ErrorCode:
    return ErrorCode(int(code))


def _milliseconds(duration: Any) -> int:
    return int(duration.total_seconds() * 1000)
