"""DeleteRecords, DescribeLogDirs, ElectLeaders, ListPartitionReassignments: operations of brokers on partitions."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any

from kio.schema.errors import ErrorCode

from txnstore.core.authorization.rights import delete_records_of
from txnstore.core.log.commands import DeleteRecords, Deletion
from txnstore.core.log.model import Partition
from txnstore.core.log.retention import open_below
from txnstore.core.model import TopicPartition
from txnstore.core.routing import chain_of_partition
from txnstore.core.view import View
from txnstore.errors import AuthorizationError, TxnStoreError, UndecidedRecordsError
from txnstore.gateway.admin.common import error_fields, is_led, on_cluster
from txnstore.gateway.apis import Api
from txnstore.gateway.errors import RefusedError, code_of
from txnstore.gateway.server import Client, Fields, Handler
from txnstore.gateway.services import Services
from txnstore.gateway.wire import Request

#: Stands for an unknown size: the storage has no limit.
_UNKNOWN = -1


class Partitions:
    """Deletes records, and describes disks and replicas as a broker does."""

    def __init__(self, services: Services) -> None:
        self._services = services

    def handlers(self) -> dict[Api, Handler]:
        """The handlers of its APIs."""
        return {
            Api.DELETE_RECORDS: self.delete_records,
            Api.DESCRIBE_LOG_DIRS: self.describe_log_dirs,
            Api.ELECT_LEADERS: self.elect_leaders,
            Api.LIST_PARTITION_REASSIGNMENTS: self.list_reassignments,
        }

    async def delete_records(self, request: Request, client: Client) -> Fields:
        """Move the starts of logs; each partition is refused alone."""
        topics = []
        for topic in request.body.topics:
            results = [self._delete(topic.name, partition, request.version, client) for partition in topic.partitions]
            topics.append({"name": topic.name, "partitions": await asyncio.gather(*results)})
        return {"topics": topics}

    async def _delete(self, topic: str, partition: Any, version: int, client: Client) -> Fields:
        """Delete the records of a partition below an offset; return its fields, with the new log start or an error."""
        services, number = self._services, partition.partition_index
        fields = {"partition_index": number, "error_code": ErrorCode.none, "low_watermark": _UNKNOWN}
        try:
            services.check(client, delete_records_of([topic]))
            catalog_topic = await services.find(topic, None, number)
            deletion = Deletion(TopicPartition(topic, number), partition.offset, catalog_topic.topic_id)
            start = await self._move_log_start(deletion, client)
        except UndecidedRecordsError:
            return {**fields, "error_code": ErrorCode.offset_out_of_range}
        except (TxnStoreError, RefusedError) as error:
            return {**fields, "error_code": code_of(error, Api.DELETE_RECORDS, version)}
        return {**fields, "low_watermark": start}

    async def _move_log_start(self, deletion: Deletion, client: Client) -> int:
        """Return the new log start; abandoned and decided transactions that refuse the deletion are ended first."""
        services, command = self._services, DeleteRecords((deletion,))
        try:
            starts = await services.commits.submit(command, client.principal)
        except UndecidedRecordsError:
            log = (await services.freshness.head()).log(deletion.tp) or Partition()
            blocking = open_below(log, deletion.offset)
            await services.in_thread(partial(services.connection.end_abandoned, blocking, decided_at_once=True))
            starts = await services.commits.submit(command, client.principal)
        new_start: int = starts[deletion.tp]
        return new_start

    async def describe_log_dirs(self, request: Request, client: Client) -> Fields:
        """Describe the store as the only directory, with the size of each partition that this gateway leads."""
        try:
            self._services.check(client, on_cluster("DESCRIBE"))
        except AuthorizationError as error:
            return {"error_code": code_of(error, Api.DESCRIBE_LOG_DIRS, request.version), "results": ()}
        view = await self._services.freshness.head()
        requested_topics = request.body.topics
        if requested_topics is None:
            numbers_by_topic = {name: list(range(topic.partitions)) for name, topic in sorted(view.topics.items())}
        else:
            numbers_by_topic = {topic.topic: list(topic.partitions) for topic in requested_topics}

        def is_own(tp: TopicPartition) -> bool:
            return is_led(self._services, chain_of_partition(tp, view.chains), *tp)

        topics = await self._services.in_thread(lambda: _partition_sizes(view, numbers_by_topic, is_own))
        directory = {
            "log_dir": self._services.connection.url,
            "topics": topics,
            "total_bytes": _UNKNOWN,
            "usable_bytes": _UNKNOWN,
        }
        return {"results": [directory]}

    async def elect_leaders(self, request: Request, client: Client) -> Fields:
        """Answer that no partition needs an election: each has its only leader."""
        body, refusal = request.body, None
        try:
            self._services.check(client, on_cluster("ALTER"))
        except AuthorizationError as error:
            refusal = error_fields(error, Api.ELECT_LEADERS, request.version)
        if body.topic_partitions is None:  # All: those that need no election are not listed.
            return {"error_code": refusal["error_code"] if refusal else ErrorCode.none, "replica_election_results": ()}
        view = await self._services.freshness.head()
        results = [
            {
                "topic": topic.topic,
                "partition_result": [
                    {"partition_id": number, **(refusal or _election_fields(view, TopicPartition(topic.topic, number)))}
                    for number in topic.partitions
                ],
            }
            for topic in body.topic_partitions
        ]
        return {"error_code": refusal["error_code"] if refusal else ErrorCode.none, "replica_election_results": results}

    async def list_reassignments(self, request: Request, client: Client) -> Fields:
        """Return no reassignment: partitions have no replicas that could move."""
        try:
            self._services.check(client, on_cluster("DESCRIBE"))
        except AuthorizationError as error:
            return {**error_fields(error, Api.LIST_PARTITION_REASSIGNMENTS, request.version), "topics": ()}
        return {"topics": ()}


def _partition_sizes(
    view: View, numbers_by_topic: dict[str, list[int]], is_own: Callable[[TopicPartition], bool]
) -> list[Fields]:
    """The size of each existing partition that is this gateway's. In a thread: a log may have a million batches."""
    topics: list[Fields] = []
    for name, numbers in numbers_by_topic.items():
        tps = [TopicPartition(name, number) for number in numbers]
        logs = [(tp.partition, view.partition(tp)) for tp in tps if is_own(tp)]
        partitions = [
            {"partition_index": number, "partition_size": sum(batch.size for batch in log.batches)}
            for number, log in logs
            if log is not None
        ]
        if partitions:
            topics.append({"name": name, "partitions": partitions})
    return topics


def _election_fields(view: View, tp: TopicPartition) -> dict[str, object]:
    if view.partition(tp) is None:
        return {"error_code": ErrorCode.unknown_topic_or_partition, "error_message": f"No such partition as {tp}"}
    return {"error_code": ErrorCode.election_not_needed, "error_message": "the partition has its leader"}
