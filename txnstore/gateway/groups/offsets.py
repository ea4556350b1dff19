"""OffsetCommit and OffsetFetch: the committed offsets of groups."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from kio.schema.errors import ErrorCode

from txnstore.core.authorization.rights import Right, read_group, read_topics
from txnstore.core.groups.commands import CommitOffsets, TxnOffsets
from txnstore.core.groups.events import GroupOffset
from txnstore.core.groups.model import Group
from txnstore.core.model import TopicPartition
from txnstore.core.view import View
from txnstore.errors import IllegalGenerationError, OffsetMetadataTooLargeError, TxnStoreError
from txnstore.gateway.apis import Api
from txnstore.gateway.errors import RefusedError, code_of
from txnstore.gateway.groups.classic.coordinator import ClassicCoordinator
from txnstore.gateway.groups.consumer.members import check_epoch_of_fetch
from txnstore.gateway.server import Client, Fields, Handler
from txnstore.gateway.services import Services, topic_by_id, topic_uuid
from txnstore.gateway.wire import Request, value

#: Kafka's ``offset.metadata.max.bytes``.
_MAX_METADATA = 4096
#: The first version of OffsetCommit with the epochs of members of KIP-848.
_WITH_EPOCHS = 9
#: The first version of OffsetFetch that asks for several groups, and the first one that names topics by their ids.
_SEVERAL, _BY_ID = 8, 10


class GroupOffsets:
    """Commits offsets of groups, and looks them up."""

    def __init__(self, services: Services, coordinator: ClassicCoordinator) -> None:
        self._services = services
        self._coordinator = coordinator

    def handlers(self) -> dict[Api, Handler]:
        """The handlers of its APIs."""
        return {Api.OFFSET_COMMIT: self.commit, Api.OFFSET_FETCH: self.fetch}

    # Commits ----------------------------------------------------------------------------------------------------------

    async def commit(self, request: Request, client: Client) -> Fields:
        """Commit offsets of a group outside of a transaction."""
        body = request.body
        generation = value(body, "generation_id_or_member_epoch", value(body, "generation_id", -1))
        parts = await self.checked(body.topics, body.group_id, Api.OFFSET_COMMIT, request.version, client)
        offsets = tuple(offset for _, offset, _ in parts if offset is not None)
        failure: ErrorCode | None = None
        if offsets:
            commit = TxnOffsets(body.group_id, offsets, generation, body.member_id, value(body, "group_instance_id"))
            try:
                try:
                    await self._services.commits.submit(CommitOffsets(commit), client.principal)
                except IllegalGenerationError:
                    failure = await self._illegal_generation(commit, request.version)
            except TxnStoreError as error:
                failure = code_of(error, Api.OFFSET_COMMIT, request.version)
        return {"topics": committed_topics(body.topics, parts, failure)}

    async def _illegal_generation(self, commit: TxnOffsets, version: int) -> ErrorCode:
        """The error for a commit whose generation or member epoch is not that of the group."""
        if self._coordinator.is_completing(commit.group, commit.member_id, commit.generation):  # It is not stored yet.
            return ErrorCode.rebalance_in_progress
        stored = (await self._services.freshness.head()).groups.get(commit.group)  # It may be newer than the view.
        if stored is None and version >= _WITH_EPOCHS:
            return ErrorCode.group_id_not_found
        if stored is not None and stored.kind == "consumer":
            return ErrorCode.stale_member_epoch if version >= _WITH_EPOCHS else ErrorCode.unsupported_version
        return ErrorCode.illegal_generation

    async def checked(
        self, topics: Sequence[Any], group: str, api: Api, version: int, client: Client
    ) -> list[tuple[Any, GroupOffset | None, ErrorCode]]:
        """Each partition of a request with its offset, or the code that refuses it."""
        parts: list[tuple[Any, GroupOffset | None, ErrorCode]] = []
        for topic in topics:
            for partition in topic.partitions:
                try:
                    self._services.check(client, read_group(group))
                    parts.append((partition, await self._offset(topic, partition, client), ErrorCode.none))
                except (TxnStoreError, RefusedError) as error:
                    parts.append((partition, None, code_of(error, api, version)))
        return parts

    async def _offset(self, topic: Any, partition: Any, client: Client) -> GroupOffset:
        name = value(topic, "name")
        if name is not None:
            self._services.check(client, read_topics([name]))
        found = await self._services.find(name, value(topic, "topic_id"), partition.partition_index)
        self._services.check(client, read_topics([found.name]))
        metadata = partition.committed_metadata or ""
        if len(metadata.encode("utf-16-le")) > 2 * _MAX_METADATA:
            raise OffsetMetadataTooLargeError(f"the metadata has more than {_MAX_METADATA} characters")
        return GroupOffset(
            topic=found.name,
            partition=partition.partition_index,
            offset=partition.committed_offset,
            metadata=metadata,
            leader_epoch=value(partition, "committed_leader_epoch", -1),
            topic_id=found.topic_id,
        )

    # Look-ups ---------------------------------------------------------------------------------------------------------

    async def fetch(self, request: Request, client: Client) -> Fields:
        """The committed offsets of groups, at the heads of the chains."""
        body = request.body
        asked = body.groups if request.version >= _SEVERAL else (body,)
        view, stable = await self._services.freshness.head(), bool(value(body, "require_stable", False))
        if stable:  # The client waits until nothing is pending, so abandoned transactions are aborted.
            groups_of_view = (view.groups.get(each.group_id) or Group() for each in asked)
            pending_in = {producer_id for group in groups_of_view for producer_id in group.pending}
            view = await self._services.freshness.unblocked(view, pending_in)
        groups = [self._group(view, each, request.version, client, stable=stable) for each in asked]
        if request.version >= _SEVERAL:
            return {"groups": groups}
        fields = dict(groups[0])
        if request.version < 2 and fields["error_code"] is not ErrorCode.none:
            code = fields["error_code"]
            fields["topics"] = [
                {"name": topic.name, "partitions": [_missing(each, code) for each in topic.partition_indexes]}
                for topic in body.topics or ()
            ]
        return fields

    def _group(self, view: View, asked: Any, version: int, client: Client, *, stable: bool) -> Mapping[str, Any]:
        group = view.groups.get(asked.group_id) or Group()
        try:
            self._services.check(client, Right("DESCRIBE", "GROUP", (asked.group_id,)))
            check_epoch_of_fetch(group, value(asked, "member_id"), value(asked, "member_epoch", -1))
        except (TxnStoreError, RefusedError) as error:
            code = code_of(error, Api.OFFSET_FETCH, version)
            return {"group_id": asked.group_id, "topics": (), "error_code": code}
        by_id = version >= _BY_ID
        topics = self._all_topics(view, group, client) if asked.topics is None else asked.topics
        described = []
        for topic in topics:
            name, numbers, code = self._asked(view, topic, client, by_id=by_id)
            offsets = [_found(group, TopicPartition(name, number), code, stable=stable) for number in numbers]
            described.append({"name": name, "topic_id": _id_of(view, topic, name), "partitions": offsets})
        return {"group_id": asked.group_id, "topics": described, "error_code": ErrorCode.none}

    def _all_topics(self, view: View, group: Group, client: Client) -> list[tuple[str, list[int]]]:
        numbers: dict[str, list[int]] = {}
        for tp in sorted(group.offsets):
            if tp.topic in view.topics and self._services.may(client, Right("DESCRIBE", "TOPIC", (tp.topic,))):
                numbers.setdefault(tp.topic, []).append(tp.partition)
        return list(numbers.items())

    def _asked(self, view: View, topic: Any, client: Client, *, by_id: bool) -> tuple[str, Sequence[int], ErrorCode]:
        if isinstance(topic, tuple):
            return topic[0], topic[1], ErrorCode.none
        numbers = topic.partition_indexes
        try:
            name = topic_by_id(view, topic.topic_id).name if by_id else topic.name
            self._services.check(client, Right("DESCRIBE", "TOPIC", (name,)))
        except (TxnStoreError, RefusedError) as error:
            return value(topic, "name", ""), numbers, code_of(error, Api.OFFSET_FETCH, 0)
        return name, numbers, ErrorCode.none


def committed_topics(
    topics: Sequence[Any], parts: Sequence[tuple[Any, GroupOffset | None, ErrorCode]], failure: ErrorCode | None
) -> list[Fields]:
    """The answer for each partition: its own refusal, else the failure of the commit."""
    following = iter(parts)
    described: list[Fields] = []
    for topic in topics:
        partitions = []
        for partition in topic.partitions:
            _, offset, code = next(following)
            answer = code if offset is None else failure or ErrorCode.none
            partitions.append({"partition_index": partition.partition_index, "error_code": answer})
        described.append(
            {"name": value(topic, "name", ""), "topic_id": value(topic, "topic_id"), "partitions": partitions}
        )
    return described


def _found(group: Group, tp: TopicPartition, code: ErrorCode, *, stable: bool) -> Fields:
    if code is not ErrorCode.none:
        return _missing(tp.partition, code)
    if stable and any(tp in offsets for offsets in group.pending.values()):
        return _missing(tp.partition, ErrorCode.unstable_offset_commit)
    committed = group.offsets.get(tp)
    if committed is None:
        return _missing(tp.partition, ErrorCode.none)
    return {
        "partition_index": tp.partition,
        "committed_offset": committed.value.offset,
        "committed_leader_epoch": committed.value.leader_epoch,
        "metadata": committed.value.metadata,
        "error_code": ErrorCode.none,
    }


def _missing(partition: int, code: ErrorCode) -> Fields:
    return {
        "partition_index": partition,
        "committed_offset": -1,
        "committed_leader_epoch": -1,
        "metadata": "",
        "error_code": code,
    }


def _id_of(view: View, topic: Any, name: str) -> Any:
    asked = value(topic, "topic_id")
    found = view.topics.get(name)
    return asked if asked is not None or found is None else topic_uuid(found)
