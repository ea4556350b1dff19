"""ListOffsets and OffsetForLeaderEpoch: the offsets of logs."""

from __future__ import annotations

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
from txnstore.gateway.server import Fields, Handler, Peer
from txnstore.gateway.services import Services
from txnstore.gateway.wire import Request, value
from txnstore.read.plan import OffsetAndTimestamp, offset_for_time

#: What stands for a timestamp: the end of the log, its start, the record with the greatest timestamp (KIP-734), the
#: start of the local log, the end of the remote log (KIP-1005), and the start of what is only local.
_LATEST, _EARLIEST, _GREATEST, _EARLIEST_LOCAL, _LATEST_TIERED, _EARLIEST_PENDING = -1, -2, -3, -4, -5, -6
#: Clients see one leader of a partition, which never changes.
_LEADER_EPOCH = 0


class Offsets:
    """Looks up offsets of logs."""

    def __init__(self, services: Services) -> None:
        self._services = services

    def handlers(self) -> dict[Api, Handler]:
        """The handlers of its APIs."""
        return {Api.LIST_OFFSETS: self.list_offsets, Api.OFFSET_FOR_LEADER_EPOCH: self.offset_for_leader_epoch}

    async def list_offsets(self, request: Request, peer: Peer) -> Fields:
        """The ends of logs, or the first offsets from a time on, at the heads of the chains."""
        view = await self._services.freshness.head()
        level = value(request.body, "isolation_level", 0)
        isolation = Isolation.READ_COMMITTED if level == 1 else Isolation.READ_UNCOMMITTED
        topics = [
            {
                "name": topic.name,
                "partitions": [
                    await self._listed(view, topic.name, partition, isolation, peer) for partition in topic.partitions
                ],
            }
            for topic in request.body.topics
        ]
        return {"topics": topics}

    async def _listed(self, view: View, topic: str, asked: Any, isolation: Isolation, peer: Peer) -> Fields:
        fields = {"partition_index": asked.partition_index, "error_code": ErrorCode.none, "leader_epoch": -1}
        try:
            found = await self._look_up(view, topic, asked, isolation, peer)
        except (TxnStoreError, RefusedError) as error:
            code = code_of(error, Api.LIST_OFFSETS, 0)
            return {**fields, "error_code": code, "timestamp": -1, "offset": -1}
        if found is None:
            return {**fields, "timestamp": -1, "offset": -1}
        return {**fields, "timestamp": found.timestamp, "offset": found.offset, "leader_epoch": _LEADER_EPOCH}

    async def _look_up(
        self, view: View, topic: str, asked: Any, isolation: Isolation, peer: Peer
    ) -> OffsetAndTimestamp | None:
        tp = TopicPartition(topic, asked.partition_index)
        log = self._log(view, tp, peer)
        timestamp, objects = asked.timestamp, self._services.connection.objects
        if timestamp == _LATEST:
            return OffsetAndTimestamp(log.read_limit(isolation), -1)
        if timestamp in {_EARLIEST, _EARLIEST_LOCAL}:
            return OffsetAndTimestamp(log.log_start, -1)
        if timestamp == _GREATEST:
            return await self._services.in_thread(partial(self._greatest, view, tp, log, isolation))
        if timestamp in {_LATEST_TIERED, _EARLIEST_PENDING}:
            return None
        if timestamp < 0:
            raise RefusedError(ErrorCode.unsupported_version, f"there is no time {timestamp}")
        return await self._services.in_thread(partial(offset_for_time, objects, view, tp, isolation, timestamp))

    def _greatest(
        self, view: View, tp: TopicPartition, log: Partition, isolation: Isolation
    ) -> OffsetAndTimestamp | None:
        """The first record with the greatest timestamp (KIP-734). In a thread."""
        batches = log.batches.overlapping(log.log_start, log.read_limit(isolation))
        greatest = max((batch.max_timestamp for batch in batches), default=None)
        if greatest is None:
            return None
        return offset_for_time(self._services.connection.objects, view, tp, isolation, greatest)

    def _log(self, view: View, tp: TopicPartition, peer: Peer) -> Partition:
        self._services.check(peer, Right("DESCRIBE", "TOPIC", (tp.topic,)))
        log = view.partition(tp)
        if log is None:
            raise RefusedError(ErrorCode.unknown_topic_or_partition, f"there is no partition {tp}")
        return log

    async def offset_for_leader_epoch(self, request: Request, peer: Peer) -> Fields:
        """The end of an epoch of a leader: the log end for the only one that there is."""
        view = await self._services.freshness.head()
        topics = [
            {
                "topic": topic.topic,
                "partitions": [self._end_of_epoch(view, topic.topic, each, peer) for each in topic.partitions],
            }
            for topic in request.body.topics
        ]
        return {"topics": topics}

    def _end_of_epoch(self, view: View, topic: str, asked: Any, peer: Peer) -> Fields:
        fields = {"partition": asked.partition, "error_code": ErrorCode.none, "leader_epoch": -1, "end_offset": -1}
        try:
            log = self._log(view, TopicPartition(topic, asked.partition), peer)
            current = value(asked, "current_leader_epoch", -1)
            if current > _LEADER_EPOCH:
                raise RefusedError(ErrorCode.unknown_leader_epoch, f"there is no leader epoch {current} yet")
        except (TxnStoreError, RefusedError) as error:
            return {**fields, "error_code": code_of(error, Api.OFFSET_FOR_LEADER_EPOCH, 0)}
        if asked.leader_epoch != _LEADER_EPOCH:
            return fields
        return {**fields, "leader_epoch": _LEADER_EPOCH, "end_offset": log.high_watermark}
