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
from txnstore.gateway.wire import Request, field_value

#: Kafka's ``offset.metadata.max.bytes``.
_MAX_METADATA_CHARS = 4096
#: The first version of OffsetCommit with the epochs of members of KIP-848.
_FIRST_WITH_EPOCHS = 9
#: The first versions of OffsetFetch with a code for the whole response, with several groups, with ids of topics.
_FIRST_WITH_ERROR_CODE, _FIRST_WITH_GROUPS, _FIRST_BY_ID = 2, 8, 10

#: The offset of a partition, and NONE; or None, and the code that refuses it.
CheckedOffset = tuple[GroupOffset | None, ErrorCode]


class GroupOffsets:
    """Commits offsets of groups, and looks them up."""

    def __init__(self, services: Services, coordinator: ClassicCoordinator) -> None:
        self._services = services
        self._coordinator = coordinator

    def handlers(self) -> dict[Api, Handler]:
        """The handlers of OffsetCommit and OffsetFetch."""
        return {Api.OFFSET_COMMIT: self.commit, Api.OFFSET_FETCH: self.fetch}

    # Commits ----------------------------------------------------------------------------------------------------------

    async def commit(self, request: Request, client: Client) -> Fields:
        """Commit offsets of a group outside of a transaction."""
        body = request.body
        generation = field_value(body, "generation_id_or_member_epoch", field_value(body, "generation_id", -1))
        checked_offsets = await self.check_offsets(
            body.topics, body.group_id, Api.OFFSET_COMMIT, request.version, client
        )
        offsets = tuple(offset for offset, _ in checked_offsets if offset is not None)
        failure: ErrorCode | None = None
        if offsets:
            commit = TxnOffsets(
                body.group_id, offsets, generation, body.member_id, field_value(body, "group_instance_id")
            )
            try:
                try:
                    await self._services.commits.submit(CommitOffsets(commit), client.principal)
                except IllegalGenerationError:
                    failure = await self._illegal_generation(commit, request.version)
            except TxnStoreError as error:
                failure = code_of(error, Api.OFFSET_COMMIT, request.version)
        return {"topics": commit_response_topics(body.topics, checked_offsets, failure)}

    async def _illegal_generation(self, commit: TxnOffsets, version: int) -> ErrorCode:
        """Return the code for a commit whose generation or member epoch is not that of the group."""
        if self._coordinator.is_completing(commit.group, commit.member_id, commit.generation):  # It is not stored yet.
            return ErrorCode.rebalance_in_progress
        # Looked up at the heads: it may be newer than the view.
        stored_group = (await self._services.freshness.head()).groups.get(commit.group)
        if stored_group is None and version >= _FIRST_WITH_EPOCHS:
            return ErrorCode.group_id_not_found
        if stored_group is not None and stored_group.kind == "consumer":
            return ErrorCode.stale_member_epoch if version >= _FIRST_WITH_EPOCHS else ErrorCode.unsupported_version
        return ErrorCode.illegal_generation

    async def check_offsets(
        self, topics: Sequence[Any], group: str, api: Api, version: int, client: Client
    ) -> list[CheckedOffset]:
        """Check the offsets of a request; the results are in the order of the partitions in ``topics``."""
        checked_offsets: list[CheckedOffset] = []
        for topic in topics:
            for partition in topic.partitions:
                try:
                    self._services.check(client, read_group(group))
                    offset = await self._group_offset(topic, partition, client)
                    checked_offsets.append((offset, ErrorCode.none))
                except (TxnStoreError, RefusedError) as error:
                    checked_offsets.append((None, code_of(error, api, version)))
        return checked_offsets

    async def _group_offset(self, topic: Any, partition: Any, client: Client) -> GroupOffset:
        """Check an offset of a request: rights, topic, partition and metadata; return it for the commit."""
        name = field_value(topic, "name")
        if name is not None:
            self._services.check(client, read_topics([name]))
        catalog_topic = await self._services.find(name, field_value(topic, "topic_id"), partition.partition_index)
        self._services.check(client, read_topics([catalog_topic.name]))
        metadata = partition.committed_metadata or ""
        if len(metadata.encode("utf-16-le")) > 2 * _MAX_METADATA_CHARS:
            raise OffsetMetadataTooLargeError(f"the metadata has more than {_MAX_METADATA_CHARS} characters")
        return GroupOffset(
            topic=catalog_topic.name,
            partition=partition.partition_index,
            offset=partition.committed_offset,
            metadata=metadata,
            leader_epoch=field_value(partition, "committed_leader_epoch", -1),
            topic_id=catalog_topic.topic_id,
        )

    # Look-ups ---------------------------------------------------------------------------------------------------------

    async def fetch(self, request: Request, client: Client) -> Fields:
        """Return the committed offsets of groups, at the heads of the chains."""
        body = request.body
        requested_groups = body.groups if request.version >= _FIRST_WITH_GROUPS else (body,)
        view = await self._services.freshness.head()
        requires_stable = bool(field_value(body, "require_stable", False))
        if requires_stable:
            # require_stable clients retry until no offset is pending: end abandoned transactions first.
            groups_of_view = (
                view.groups.get(requested_group.group_id) or Group() for requested_group in requested_groups
            )
            pending_producer_ids = {producer_id for group in groups_of_view for producer_id in group.pending}
            view = await self._services.freshness.unblocked(view, pending_producer_ids)
        groups = [
            self._group_fields(view, requested_group, request.version, client, requires_stable=requires_stable)
            for requested_group in requested_groups
        ]
        if request.version >= _FIRST_WITH_GROUPS:
            return {"groups": groups}
        return _before_groups(groups[0], body, request.version)

    def _group_fields(
        self, view: View, requested_group: Any, version: int, client: Client, *, requires_stable: bool
    ) -> Mapping[str, Any]:
        """Return the committed offsets of one group, of the requested topics or all, or the code that refuses it."""
        group = view.groups.get(requested_group.group_id) or Group()
        try:
            self._services.check(client, Right("DESCRIBE", "GROUP", (requested_group.group_id,)))
            check_epoch_of_fetch(
                group, field_value(requested_group, "member_id"), field_value(requested_group, "member_epoch", -1)
            )
        except (TxnStoreError, RefusedError) as error:
            code = code_of(error, Api.OFFSET_FETCH, version)
            return {"group_id": requested_group.group_id, "topics": (), "error_code": code}
        by_id = version >= _FIRST_BY_ID
        topics = self._all_topics(view, group, client) if requested_group.topics is None else requested_group.topics
        responses = []
        for topic in topics:
            name, numbers, code = self._resolve(view, topic, client, by_id=by_id)
            offsets = [
                _committed_fields(group, TopicPartition(name, number), code, requires_stable=requires_stable)
                for number in numbers
            ]
            responses.append({"name": name, "topic_id": _id_of(view, topic, name), "partitions": offsets})
        return {"group_id": requested_group.group_id, "topics": responses, "error_code": ErrorCode.none}

    def _all_topics(self, view: View, group: Group, client: Client) -> list[tuple[str, list[int]]]:
        """Return the topics with committed offsets that the client may see, with their partitions."""
        numbers_by_topic: dict[str, list[int]] = {}
        for tp in sorted(group.offsets):
            if tp.topic in view.topics and self._services.may(client, Right("DESCRIBE", "TOPIC", (tp.topic,))):
                numbers_by_topic.setdefault(tp.topic, []).append(tp.partition)
        return list(numbers_by_topic.items())

    def _resolve(self, view: View, topic: Any, client: Client, *, by_id: bool) -> tuple[str, Sequence[int], ErrorCode]:
        """Return the name and the partitions of a requested topic, and the code that refuses it, or NONE."""
        if isinstance(topic, tuple):
            return topic[0], topic[1], ErrorCode.none
        numbers = topic.partition_indexes
        try:
            name = topic_by_id(view, topic.topic_id).name if by_id else topic.name
            self._services.check(client, Right("DESCRIBE", "TOPIC", (name,)))
        except (TxnStoreError, RefusedError) as error:
            return field_value(topic, "name", ""), numbers, code_of(error, Api.OFFSET_FETCH, 0)
        return name, numbers, ErrorCode.none


def _before_groups(fields: Mapping[str, Any], body: Any, version: int) -> Fields:
    """Return the response of a version without groups; the oldest have an error code in each partition only."""
    code = fields["error_code"]
    if version >= _FIRST_WITH_ERROR_CODE or code is ErrorCode.none:
        return fields
    topics = [
        {"name": topic.name, "partitions": [_without_offset(number, code) for number in topic.partition_indexes]}
        for topic in body.topics or ()
    ]
    return {**fields, "topics": topics}


def commit_response_topics(
    topics: Sequence[Any], checked_offsets: Sequence[CheckedOffset], failure: ErrorCode | None
) -> list[Fields]:
    """Return the topics of a response: each partition has the code that refused its offset, else that of the commit.

    Args:
        topics: The topics of the request.
        checked_offsets: The results of :meth:`GroupOffsets.check_offsets` for these topics.
        failure: The code of a commit that failed; None if it succeeded.
    """
    requested_partitions = [
        (topic_index, partition) for topic_index, topic in enumerate(topics) for partition in topic.partitions
    ]
    partitions: list[list[Fields]] = [[] for _ in topics]
    for (topic_index, partition), (offset, refusal) in zip(requested_partitions, checked_offsets, strict=True):
        error_code = refusal if offset is None else failure or ErrorCode.none
        partitions[topic_index].append({"partition_index": partition.partition_index, "error_code": error_code})
    return [
        {"name": field_value(topic, "name", ""), "topic_id": field_value(topic, "topic_id"), "partitions": of_topic}
        for topic, of_topic in zip(topics, partitions, strict=True)
    ]


def _committed_fields(group: Group, tp: TopicPartition, code: ErrorCode, *, requires_stable: bool) -> Fields:
    """Return the committed offset of a partition; -1 without one, or with a code, also if it is not stable."""
    if code is not ErrorCode.none:
        return _without_offset(tp.partition, code)
    if requires_stable and any(tp in offsets for offsets in group.pending.values()):
        return _without_offset(tp.partition, ErrorCode.unstable_offset_commit)
    committed_offset = group.offsets.get(tp)
    if committed_offset is None:
        return _without_offset(tp.partition, ErrorCode.none)
    return {
        "partition_index": tp.partition,
        "committed_offset": committed_offset.value.offset,
        "committed_leader_epoch": committed_offset.value.leader_epoch,
        "metadata": committed_offset.value.metadata,
        "error_code": ErrorCode.none,
    }


def _without_offset(partition: int, code: ErrorCode) -> Fields:
    return {
        "partition_index": partition,
        "committed_offset": -1,
        "committed_leader_epoch": -1,
        "metadata": "",
        "error_code": code,
    }


def _id_of(view: View, topic: Any, name: str) -> Any:
    """The topic id for a response: that of the request, else that of the topic of this name."""
    topic_id = field_value(topic, "topic_id")
    topic_of_name = view.topics.get(name)
    return topic_id if topic_id is not None or topic_of_name is None else topic_uuid(topic_of_name)
