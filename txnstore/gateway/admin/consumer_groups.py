"""ConsumerGroupDescribe: the groups of KIP-848."""

from __future__ import annotations

from kio.schema.errors import ErrorCode

from txnstore.core.authorization.rights import Right
from txnstore.core.groups.model import Group, Member
from txnstore.core.model import TopicPartition
from txnstore.core.view import View
from txnstore.errors import TxnStoreError
from txnstore.gateway.admin.common import refusal
from txnstore.gateway.apis import Api
from txnstore.gateway.errors import RefusedError
from txnstore.gateway.groups.consumer import LEAVING_FOR_NOW, KeptMember, assignor_name, state_of
from txnstore.gateway.groups.consumer_handlers import ConsumerGroups, assignment_of, by_topic, describe_topics
from txnstore.gateway.operations import NO_OPERATIONS, operations_of
from txnstore.gateway.server import Fields, Handler, Peer
from txnstore.gateway.services import Services
from txnstore.gateway.wire import Request

#: The type of a member that speaks the protocol of KIP-848; 0 is that of a classic one.
_CONSUMER_MEMBER = 1


class DescribedConsumerGroups:
    """Describes groups of KIP-848.

    Args:
        services: The services.
        coordinator: Times the members of the groups that this gateway coordinates.
    """

    def __init__(self, services: Services, coordinator: ConsumerGroups) -> None:
        self._services = services
        self._coordinator = coordinator

    def handlers(self) -> dict[Api, Handler]:
        """The handler of its API."""
        return {Api.CONSUMER_GROUP_DESCRIBE: self.describe}

    async def describe(self, request: Request, peer: Peer) -> Fields:
        """Groups with their members."""
        await self._services.freshness.head()
        view, wanted = self._services.freshness.view, bool(request.body.include_authorized_operations)
        names = dict.fromkeys(request.body.group_ids)
        return {"groups": [self._described(view, name, request.version, peer, wanted=wanted) for name in names]}

    def _described(self, view: View, name: str, version: int, peer: Peer, *, wanted: bool) -> Fields:
        group = view.groups.get(name, Group())
        members = [member for _, member in sorted(group.members.items())]
        try:
            self._services.check(peer, Right("DESCRIBE", "GROUP", (name,)))
            if not name:
                raise RefusedError(ErrorCode.invalid_group_id, "the name of the group is empty")
            self._coordinator.check_coordinator(name)
            if group.kind != "consumer":
                raise RefusedError(ErrorCode.group_id_not_found, f"Group {name} is not a consumer group.")
            topics = {topic for member in members for topic in (*member.topics, *(tp.topic for tp in member.target))}
            self._services.check(peer, describe_topics(topics))
        except (TxnStoreError, RefusedError) as error:
            return {"group_id": name, **refusal(error, Api.CONSUMER_GROUP_DESCRIBE, version)}
        kept = self._coordinator.kept(name)
        return {
            "group_id": name,
            "error_code": ErrorCode.none,
            "group_state": state_of(group),
            "group_epoch": group.generation,
            "assignment_epoch": group.generation,
            "assignor_name": assignor_name(members),
            "members": [_member(view, group, member, kept[member.member_id]) for member in members],
            "authorized_operations": operations_of(self._services, peer, "GROUP", name) if wanted else NO_OPERATIONS,
        }


def _member(view: View, group: Group, member: Member, kept: KeptMember) -> Fields:
    assert group.epochs is not None
    return {
        "member_id": member.member_id,
        "instance_id": member.instance_id,
        "rack_id": kept.rack_id,
        "member_epoch": LEAVING_FOR_NOW if kept.is_away else group.epochs[member.member_id],
        "client_id": kept.client_id,
        "client_host": kept.client_host,
        "subscribed_topic_names": sorted(kept.names),
        "subscribed_topic_regex": kept.regex or None,
        "assignment": _partitions(view, member.assigned),
        "target_assignment": _partitions(view, member.target),
        "member_type": _CONSUMER_MEMBER,
    }


def _partitions(view: View, tps: tuple[TopicPartition, ...]) -> Fields:
    return {"topic_partitions": by_topic(assignment_of(view, tps))}
