"""Kafka's own producer, driven in the language of the traces."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tests.compat.broker.cluster import Cluster, VirtualMachine, again
from tests.compat.broker.requests import topic_partition
from tests.harness.differential.members import Claim
from tests.harness.traces import Op

TEXT = "org.apache.kafka.common.serialization.StringSerializer"
#: Records linger for longer than any trace, so they wait for a flush or an end, as the trace language requires.
SETTINGS = {
    "key.serializer": TEXT,
    "value.serializer": TEXT,
    "enable.idempotence": "true",
    "linger.ms": "1800000",
    "delivery.timeout.ms": "1900000",
    "request.timeout.ms": "5000",
    "max.block.ms": "10000",
}


class ClientProducer:
    """A ``KafkaProducer``. Its exceptions are those of Java; a record that cannot be sent raises immediately."""

    def __init__(
        self, machine: VirtualMachine, cluster: Cluster, transactional_id: str | None, timeout_ms: int
    ) -> None:
        from py4j.protocol import Py4JJavaError

        self._machine = machine
        self._refused = Py4JJavaError
        settings = {"bootstrap.servers": cluster.address, **SETTINGS}
        if transactional_id is not None:
            settings |= {"transactional.id": transactional_id, "transaction.timeout.ms": str(timeout_ms)}
        self._client: Any = machine.kafka.clients.producer.KafkaProducer(machine.properties(settings))
        self._manager: Any = machine.field(self._client, "transactionManager")
        self._futures: list[tuple[str, Any]] = []
        self._refusal: Exception | None = None
        if transactional_id is not None:
            self._client.initTransactions()
        self._wait_for_id()

    def _wait_for_id(self) -> None:
        """Without transactions, a producer requests its id in the background."""
        for _ in again("the producer should get an id"):
            if self.identity[0] >= 0:
                return

    @property
    def identity(self) -> tuple[int, int]:
        """Producer id and epoch."""
        identity = self._machine.field(self._manager, "producerIdAndEpoch")
        return self._machine.field(identity, "producerId"), self._machine.field(identity, "epoch")

    def begin(self) -> None:
        self._client.beginTransaction()

    def send(self, op: Op) -> None:
        """Put a record into the buffer."""
        partition = op["partition"]
        topic, number = topic_partition(partition)
        header = self._machine.kafka.common.header.internals.RecordHeader
        headers = [header(name, value.encode() if value is not None else None) for name, value in op.get("headers", [])]
        record = self._machine.kafka.clients.producer.ProducerRecord(
            topic, number, op.get("timestamp"), op.get("key"), op.get("value"), headers
        )
        future = self._client.send(record)
        if future.isDone():
            future.get()
        self._futures.append((partition, future))

    def send_offsets(self, offsets: Mapping[str, int], group: str, claim: Claim) -> None:
        """Send positions immediately, as Kafka's producer does; a flush raises the errors of the coordinator."""
        consumer, positions = self._machine.kafka.clients.consumer, self._machine.java.util.HashMap()
        for name, offset in offsets.items():
            tp = self._machine.kafka.common.TopicPartition(*topic_partition(name))
            positions.put(tp, consumer.OffsetAndMetadata(offset))
        instance = self._machine.java.util.Optional.ofNullable(claim.instance)
        metadata = consumer.ConsumerGroupMetadata(group, claim.generation, claim.member_id, instance)
        asks = self._manager.isTransactional() and self._state() == "IN_TRANSACTION"
        try:
            self._client.sendOffsetsToTransaction(positions, metadata)
        except self._refused as refused:
            if not asks:
                raise
            self._refusal = refused

    def send_bad_offsets(self, topic: str, partition: int, metadata: str, group: str) -> None:
        """Send positions that the coordinator refuses, or that the producer waits for in vain."""
        consumer, positions = self._machine.kafka.clients.consumer, self._machine.java.util.HashMap()
        tp = self._machine.kafka.common.TopicPartition(topic, partition)
        positions.put(tp, consumer.OffsetAndMetadata(1, self._machine.java.util.Optional.empty(), metadata))
        self._client.sendOffsetsToTransaction(positions, consumer.ConsumerGroupMetadata(group))

    def _state(self) -> str:
        return str(self._machine.field(self._manager, "currentState").name())

    def flush(self) -> dict[str, list[int]]:
        """Send the buffered records; returns their offsets."""
        self._raise()
        self._client.flush()
        return self._settled()

    def commit(self) -> dict[str, list[int]]:
        """Send the buffered records, and commit."""
        self._raise()
        self._client.commitTransaction()
        return self._settled()

    def abort(self) -> None:
        """Drop the buffered records, and abort."""
        self._refusal = None
        self._client.abortTransaction()
        self._futures.clear()

    def close(self) -> None:
        """Send the buffered records outside a transaction; abort an open one."""
        self._client.close()

    def kill(self) -> None:
        """Drop it without another request."""
        self._client.close(self._machine.java.time.Duration.ZERO)

    def _raise(self) -> None:
        refusal, self._refusal = self._refusal, None
        if refusal is not None:
            raise refusal

    def _settled(self) -> dict[str, list[int]]:
        futures, self._futures = self._futures, []
        by_partition: dict[str, list[int]] = {}
        for partition, future in futures:
            by_partition.setdefault(partition, []).append(future.get().offset())
        return by_partition
