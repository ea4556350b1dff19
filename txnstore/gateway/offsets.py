"""ListOffsets and OffsetForLeaderEpoch: the offsets of logs."""

from __future__ import annotations

from collections import Counter
from functools import partial
from typing import Any

from kio.schema.errors import ErrorCode

from txnstore.core.authorization.rights import Right
from txnstore.core.log.model import Partition
from txnstore.core.model import Isolation, TopicPartition
from txnstore.core.view import View
from txnstore.errors import TxnStoreError
from txnstore.gateway.apis import Api
from txnstore.gateway.errors import RefusedError, code_of
from txnstore.gateway.server import Client, Fields, Handler
from txnstore.gateway.services import LEADER_EPOCH, Services, check_leader_epoch
from txnstore.gateway.wire import Request, field_value
from txnstore.read.plan import OffsetAndTimestamp, offset_for_time, offset_of_greatest_time

#: Special timestamps: the end of the log, its start, the record with the greatest timestamp (KIP-734), the start of
#: the local log, the end of the remote log (KIP-1005), and the start of what is only local.
_LATEST, _EARLIEST, _GREATEST, _EARLIEST_LOCAL, _LATEST_TIERED, _EARLIEST_PENDING = -1, -2, -3, -4, -5, -6
#: The first version of ListOffsets with each of them that not all versions have.
_FIRST_VERSION = {_GREATEST: 7, _EARLIEST_LOCAL: 8, _LATEST_TIERED: 9, _EARLIEST_PENDING: 11}


class Offsets:
    """Looks up offsets of logs."""

    def __init__(self, services: Services) -> None:
        self._services = services

    def handlers(self) -> dict[Api, Handler]:
        """The handlers of ListOffsets and OffsetForLeaderEpoch."""
        return {Api.LIST_OFFSETS: self.list_offsets, Api.OFFSET_FOR_LEADER_EPOCH: self.offset_for_leader_epoch}

    async def list_offsets(self, request: Request, client: Client) -> Fields:
        """Return the ends of logs, or the first offsets from a time on, at the heads of the chains."""
        view = await self._services.freshness.head()
        level = field_value(request.body, "isolation_level", 0)
        isolation = Isolation.READ_COMMITTED if level == 1 else Isolation.READ_UNCOMMITTED
        counts = Counter(
            (topic.name, partition.partition_index) for topic in request.body.topics for partition in topic.partitions
        )
        topics = []
        for topic in request.body.topics:  # As in Kafka, a partition that is named twice is refused, once.
            distinct_partitions = {partition.partition_index: partition for partition in topic.partitions}.values()
            results = [
                await self._list(view, topic.name, partition, isolation, request, client)
                if counts[topic.name, partition.partition_index] == 1
                else _without_offset(partition.partition_index, ErrorCode.invalid_request)
                for partition in distinct_partitions
            ]
            topics.append({"name": topic.name, "partitions": results})
        return {"topics": topics}

    async def _list(
        self, view: View, topic: str, partition: Any, isolation: Isolation, request: Request, client: Client
    ) -> Fields:
        """Return the offset of a partition for a time as fields, or the code that refuses it."""
        try:
            if request.version < _FIRST_VERSION.get(partition.timestamp, 0):
                raise RefusedError(ErrorCode.unsupported_version, f"this version has no time {partition.timestamp}")
            offset_and_time = await self._look_up(view, topic, partition, isolation, client)
        except (TxnStoreError, RefusedError) as error:
            return _without_offset(partition.partition_index, code_of(error, Api.LIST_OFFSETS, 0))
        if offset_and_time is None:
            return _without_offset(partition.partition_index)
        position = {
            "timestamp": offset_and_time.timestamp,
            "offset": offset_and_time.offset,
            "leader_epoch": LEADER_EPOCH,
        }
        return {**_without_offset(partition.partition_index), **position}

    async def _look_up(
        self, view: View, topic: str, partition: Any, isolation: Isolation, client: Client
    ) -> OffsetAndTimestamp | None:
        """Return the offset for a time or a special value of ListOffsets; None if there is none."""
        tp = TopicPartition(topic, partition.partition_index)
        log = self._log(view, tp, client)
        check_leader_epoch(field_value(partition, "current_leader_epoch", -1))
        timestamp, objects = partition.timestamp, self._services.connection.objects
        if timestamp == _LATEST:
            return OffsetAndTimestamp(log.read_limit(isolation), -1)
        if timestamp in {_EARLIEST, _EARLIEST_LOCAL}:
            return OffsetAndTimestamp(log.log_start, -1)
        if timestamp == _GREATEST:
            return await self._services.in_thread(partial(offset_of_greatest_time, objects, view, tp, isolation))
        if timestamp in {_LATEST_TIERED, _EARLIEST_PENDING}:
            return None
        if timestamp < 0:
            raise RefusedError(ErrorCode.unsupported_version, f"there is no time {timestamp}")
        return await self._services.in_thread(partial(offset_for_time, objects, view, tp, isolation, timestamp))

    def _log(self, view: View, tp: TopicPartition, client: Client) -> Partition:
        self._services.check(client, Right("DESCRIBE", "TOPIC", (tp.topic,)))
        log = view.partition(tp)
        if log is None:
            raise RefusedError(ErrorCode.unknown_topic_or_partition, f"there is no partition {tp}")
        return log

    async def offset_for_leader_epoch(self, request: Request, client: Client) -> Fields:
        """Return the end of a leader epoch: the log end for the only epoch that exists."""
        view = await self._services.freshness.head()
        topics = [
            {
                "topic": topic.topic,
                "partitions": [
                    self._end_of_epoch(view, topic.topic, partition, client) for partition in topic.partitions
                ],
            }
            for topic in request.body.topics
        ]
        return {"topics": topics}

    def _end_of_epoch(self, view: View, topic: str, partition: Any, client: Client) -> Fields:
        """Return the end offset of a leader epoch: the high watermark, as there is one epoch only."""
        fields = {"partition": partition.partition, "error_code": ErrorCode.none, "leader_epoch": -1, "end_offset": -1}
        try:
            log = self._log(view, TopicPartition(topic, partition.partition), client)
            check_leader_epoch(field_value(partition, "current_leader_epoch", -1))
        except (TxnStoreError, RefusedError) as error:
            return {**fields, "error_code": code_of(error, Api.OFFSET_FOR_LEADER_EPOCH, 0)}
        if partition.leader_epoch != LEADER_EPOCH:
            return fields
        return {**fields, "leader_epoch": LEADER_EPOCH, "end_offset": log.high_watermark}


def _without_offset(partition: int, code: ErrorCode = ErrorCode.none) -> Fields:
    """The fields of a partition for which no offset is returned."""
    return {"partition_index": partition, "error_code": code, "timestamp": -1, "offset": -1, "leader_epoch": -1}
