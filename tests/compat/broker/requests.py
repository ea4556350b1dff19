"""Single requests to a broker, also those that no correct client sends (DIF-06), encoded by Kafka's own classes."""

from __future__ import annotations

import select
import socket
import struct
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Self

from tests.compat.broker.cluster import Cluster, VirtualMachine
from tests.harness.differential.members import Claim

FIND_COORDINATOR = 5
INIT_PRODUCER_ID = 5
ADD_PARTITIONS = 3
OFFSET_COMMIT = 9
OFFSET_FETCH = 9
DELETE_RECORDS = 2


@dataclass(frozen=True)
class Versions:
    """The versions of requests that differ between transactions of version 1 and 2."""

    produce: int
    txn_offset_commit: int
    end_txn: int


#: By the version of transactions. Of the second one (KIP-890) an end bumps the epoch, and a first append adds.
VERSIONS = {1: Versions(11, 4, 4), 2: Versions(12, 5, 5)}


class BrokerError(Exception):
    """A broker has refused a request; ``name`` is one of Kafka's."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name


class Requests:
    """Requests over a connection of their own each."""

    def __init__(self, machine: VirtualMachine, cluster: Cluster, versions: Versions = VERSIONS[2]) -> None:
        self._machine = machine
        self._versions = versions
        self._cluster = cluster
        self._api: Any = machine.kafka.common.requests
        self._message: Any = machine.kafka.common.message

    def find_coordinators(self) -> None:
        """``FindCoordinator`` for a transactional id and for a group, to create the internal topics."""
        for kind in (
            self._api.FindCoordinatorRequest.CoordinatorType.TRANSACTION,
            self._api.FindCoordinatorRequest.CoordinatorType.GROUP,
        ):
            data = self._message.FindCoordinatorRequestData().setKeyType(kind.id()).setCoordinatorKeys(["any"])
            for coordinator in (
                self.send(self._api.FindCoordinatorRequest.Builder(data).build(FIND_COORDINATOR)).data().coordinators()
            ):
                self.check(coordinator.errorCode())

    def init(
        self, transactional_id: str | None, timeout_ms: int, expected: tuple[int, int] | None, times: int = 1
    ) -> tuple[int, int]:
        """``InitProducerId``, ``times`` times: the last producer id and its epoch."""
        producer_id, epoch = expected if expected is not None else (-1, -1)
        data = self._message.InitProducerIdRequestData()
        data.setTransactionalId(transactional_id).setTransactionTimeoutMs(timeout_ms)
        data.setProducerId(producer_id).setProducerEpoch(epoch)
        request = self._api.InitProducerIdRequest.Builder(data).build(INIT_PRODUCER_ID)
        answer = self.send(request, times).data()
        self.check(answer.errorCode())
        return answer.producerId(), answer.producerEpoch()

    def add_partitions(self, transactional_id: str, producer_id: int, epoch: int, partitions: list[str]) -> None:
        """``AddPartitionsToTxn`` of a client."""
        tps = [self._machine.kafka.common.TopicPartition(*topic_partition(name)) for name in partitions]
        builder = self._api.AddPartitionsToTxnRequest.Builder.forClient(transactional_id, producer_id, epoch, tps)
        answer = self.send(builder.build(ADD_PARTITIONS)).data()
        self.check(answer.errorCode())
        for topic in answer.resultsByTopicV3AndBelow().iterator():
            for partition in topic.resultsByPartition().iterator():
                self.check(partition.partitionErrorCode())

    def append(
        self,
        who: tuple[str | None, int, int],
        partition: str,
        sequence: int,
        records: list[list[str | None]],
        timestamp: int | None = None,
    ) -> int:
        """``Produce`` of one batch: its first offset."""
        transactional_id, producer_id, epoch = who
        topic, number = topic_partition(partition)
        rows = self._rows(records, timestamp if timestamp is not None else time.time_ns() // 1_000_000)
        batch = self._batch(producer_id, epoch, sequence, rows, transactional=transactional_id is not None)
        partition_data = self._message.ProduceRequestData.PartitionProduceData().setIndex(number).setRecords(batch)
        topic_data = self._message.ProduceRequestData.TopicProduceData().setName(topic)
        topic_data.setPartitionData([partition_data])
        topics = self._message.ProduceRequestData.TopicProduceDataCollection()
        topics.add(topic_data)
        data = self._message.ProduceRequestData().setTransactionalId(transactional_id).setAcks(-1).setTimeoutMs(10_000)
        request = self._api.ProduceRequest(data.setTopicData(topics), self._versions.produce)
        for response in self.send(request).data().responses().iterator():
            for answer in response.partitionResponses():
                self.check(answer.errorCode())
                return int(answer.baseOffset())
        raise BrokerError("UNKNOWN_SERVER_ERROR")

    def _rows(self, records: list[list[str | None]], timestamp: int) -> Any:
        record = self._machine.kafka.common.record.internal
        texts = [[None if text is None else text.encode() for text in pair] for pair in records]
        rows = [record.SimpleRecord(timestamp, key, value) for key, value in texts]
        return self._machine.array(record.SimpleRecord, rows)

    def _batch(self, producer_id: int, epoch: int, sequence: int, rows: Any, *, transactional: bool) -> Any:
        record = self._machine.kafka.common.record.internal
        build = (
            record.MemoryRecords.withTransactionalRecords
            if transactional
            else record.MemoryRecords.withIdempotentRecords
        )
        none = self._machine.kafka.common.compress.Compression.NONE
        return build(none, producer_id, epoch, sequence, rows)

    def commit_transaction_offsets(
        self, who: tuple[str | None, int, int], group: str, offsets: Mapping[str, int], claim: Claim
    ) -> None:
        """``TxnOffsetCommit``."""
        data = self._message.TxnOffsetCommitRequestData()
        transactional_id, producer_id, epoch = who
        data.setTransactionalId(transactional_id).setProducerId(producer_id).setProducerEpoch(epoch)
        data.setGroupId(group).setGenerationIdOrMemberEpoch(claim.generation)
        data.setMemberId(claim.member_id).setGroupInstanceId(claim.instance)
        kind = self._message.TxnOffsetCommitRequestData
        data.setTopics(self._offsets(kind.TxnOffsetCommitRequestTopic, kind.TxnOffsetCommitRequestPartition, offsets))
        parsed = self.send(self._api.TxnOffsetCommitRequest(data, self._versions.txn_offset_commit)).data()
        self._check_partitions(parsed)

    def commit_offsets(self, group: str, offsets: Mapping[str, int], claim: Claim) -> None:
        """``OffsetCommit``."""
        data = self._message.OffsetCommitRequestData().setGroupId(group)
        data.setGenerationIdOrMemberEpoch(claim.generation)
        data.setMemberId(claim.member_id).setGroupInstanceId(claim.instance)
        kind = self._message.OffsetCommitRequestData
        data.setTopics(self._offsets(kind.OffsetCommitRequestTopic, kind.OffsetCommitRequestPartition, offsets))
        self._check_partitions(self.send(self._api.OffsetCommitRequest(data, OFFSET_COMMIT)).data())

    def _offsets(self, of_topic: Any, of_partition: Any, offsets: Mapping[str, int]) -> list[Any]:
        topics: dict[str, list[Any]] = {}
        for name, offset in offsets.items():
            topic, number = topic_partition(name)
            topics.setdefault(topic, []).append(of_partition().setPartitionIndex(number).setCommittedOffset(offset))
        return [of_topic().setName(topic).setPartitions(partitions) for topic, partitions in topics.items()]

    def _check_partitions(self, answer: Any) -> None:
        for topic in answer.topics():
            for partition in topic.partitions():
                self.check(partition.errorCode())

    def end(self, transactional_id: str, producer_id: int, epoch: int, *, commit: bool) -> tuple[int, int]:
        """``EndTxn``: the identity of the next transaction."""
        data = self._message.EndTxnRequestData().setTransactionalId(transactional_id).setCommitted(commit)
        data.setProducerId(producer_id).setProducerEpoch(epoch)
        answer = self.send(
            self._api.EndTxnRequest.Builder(data, self._versions.end_txn >= 5).build(self._versions.end_txn)
        ).data()
        self.check(answer.errorCode())
        return answer.producerId(), answer.producerEpoch()

    def committed(self, group: str, partitions: list[str], *, require_stable: bool) -> dict[str, int | str | None]:
        """``OffsetFetch``: an offset, nothing, or the name of an error, by partition."""
        kind = self._message.OffsetFetchRequestData
        topics: dict[str, list[int]] = {}
        for name in partitions:
            topic, number = topic_partition(name)
            topics.setdefault(topic, []).append(number)
        queries = [
            kind.OffsetFetchRequestTopics().setName(topic).setPartitionIndexes(numbers)
            for topic, numbers in topics.items()
        ]
        data = kind().setGroups([kind.OffsetFetchRequestGroup().setGroupId(group).setTopics(queries)])
        request = self._api.OffsetFetchRequest.Builder.forTopicNames(data.setRequireStable(require_stable), False)
        offsets: dict[str, int | str | None] = {}
        for one in self.send(request.build(OFFSET_FETCH)).data().groups():
            self.check(one.errorCode())
            for topic in one.topics():
                for row in topic.partitions():
                    name, offset = f"{topic.name()}-{row.partitionIndex()}", row.committedOffset()
                    offsets[name] = self.error(row.errorCode()) or (offset if offset >= 0 else None)
        return offsets

    def delete_records(self, partition: str, offset: int) -> int:
        """``DeleteRecords``: the first offset from then on."""
        kind = self._message.DeleteRecordsRequestData
        topic, number = topic_partition(partition)
        row = kind.DeleteRecordsPartition().setPartitionIndex(number).setOffset(offset)
        data = kind().setTopics([kind.DeleteRecordsTopic().setName(topic).setPartitions([row])]).setTimeoutMs(10_000)
        for response in (
            self.send(self._api.DeleteRecordsRequest.Builder(data).build(DELETE_RECORDS)).data().topics().iterator()
        ):
            for answer in response.partitions().iterator():
                self.check(answer.errorCode())
                return int(answer.lowWatermark())
        raise BrokerError("UNKNOWN_SERVER_ERROR")

    def error(self, code: int) -> str | None:
        """Kafka's name of an error code; None if it is none."""
        return str(self._machine.kafka.common.protocol.Errors.forCode(code).name()) if code else None

    def check(self, code: int) -> None:
        """Raise the error of this code, if it is one."""
        name = self.error(code)
        if name is not None:
            raise BrokerError(name)

    def send(self, request: Any, times: int = 1) -> Any:
        """Send a request ``times`` times, and wait for the last answer."""
        with self.post(request, times) as pending:
            return pending.answer()

    def post(self, request: Any, times: int = 1) -> Pending:
        """Send a request without waiting for its answer."""
        header = self._api.RequestHeader(request.apiKey(), request.version(), "trace", 1)
        buffer = request.serializeWithHeader(header)
        sent = bytes(buffer.array())[: buffer.limit()]
        host, port = self._cluster.address.split(":")
        connection = socket.create_connection((host, int(port)), timeout=120)
        pending = Pending(connection, lambda data: self._parsed(data, header))
        for number in range(times):
            if number:
                pending.answer()
            connection.sendall(struct.pack(">i", len(sent)) + sent)
        return pending

    def _parsed(self, data: bytes, header: Any) -> Any:
        return self._api.AbstractResponse.parseResponse(self._machine.java.nio.ByteBuffer.wrap(data), header)


class Pending:
    """A request that was sent over a connection of its own; the coordinator of a group may answer much later."""

    def __init__(self, connection: socket.socket, parsed: Callable[[bytes], Any]) -> None:
        self._connection = connection
        self._parsed = parsed

    def ready(self, seconds: float) -> bool:
        """Whether the answer has arrived within a time."""
        return bool(select.select([self._connection], [], [], seconds)[0])

    def answer(self) -> Any:
        """Wait for the answer."""
        [size] = struct.unpack(">i", _received(self._connection, 4))
        return self._parsed(_received(self._connection, size))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self._connection.close()


def topic_partition(name: str) -> tuple[str, int]:
    """``t-0`` as the topic and the number."""
    topic, _, number = name.rpartition("-")
    return topic, int(number)


def _received(connection: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        part = connection.recv(size - len(data))
        if not part:
            raise ConnectionError("the broker has closed the connection")
        data += part
    return data
