"""Kafka's own clients, in a Java virtual machine: transactions v2 (KIP-890)."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tests.compat.broker.cluster import VirtualMachine
from tests.harness.gateway.client import Assigned, EndedError, Places, Read, RefusedError
from tests.harness.gateway.plan import (
    HEARTBEAT_INTERVAL_MS,
    PATIENCE,
    REQUEST_TIMEOUT_MS,
    SESSION_TIMEOUT_MS,
    TRANSACTION_TIMEOUT_MS,
    ClientTask,
)

_TEXT = "org.apache.kafka.common.serialization.String"
#: After these the same call is to be repeated; after those the producer cannot continue.
_RETRIABLE = {"TimeoutException", "InterruptException"}
_FATAL = {
    "ProducerFencedException",
    "InvalidProducerEpochException",
    "OutOfOrderSequenceException",
    "AuthorizationException",
    "UnsupportedVersionException",
    "InvalidPidMappingException",
    "FencedInstanceIdException",
    "IllegalStateException",
}


def _name_of(failure: Any) -> str:
    return str(failure.java_exception.getClass().getSimpleName())


class Producer:
    def __init__(self, machine: VirtualMachine, bootstrap: str, transactional_id: str | None) -> None:
        from py4j.protocol import Py4JJavaError

        self._machine, self._error = machine, Py4JJavaError
        settings = {
            "bootstrap.servers": bootstrap,
            "key.serializer": _TEXT + "Serializer",
            "value.serializer": _TEXT + "Serializer",
            "request.timeout.ms": str(REQUEST_TIMEOUT_MS),
            "delivery.timeout.ms": str(TRANSACTION_TIMEOUT_MS),
            "max.block.ms": "10000",
            "linger.ms": "2",
            "batch.size": "400",
            "reconnect.backoff.max.ms": "500",
        }
        if transactional_id is not None:
            settings |= {"transactional.id": transactional_id, "transaction.timeout.ms": str(TRANSACTION_TIMEOUT_MS)}
        self._producer = machine.kafka.clients.producer.KafkaProducer(machine.properties(settings))
        if transactional_id is not None:
            self._repeated(self._producer.initTransactions)

    def _repeated(self, call: Callable[[], Any]) -> Any:
        deadline = time.monotonic() + PATIENCE
        while True:
            try:
                return call()
            except self._error as failure:
                name = _name_of(failure)
                text = str(failure.java_exception.toString())
                if name in _FATAL or (name in _RETRIABLE and time.monotonic() > deadline):
                    raise EndedError(text) from failure
                if name not in _RETRIABLE:
                    raise RefusedError(text) from failure

    def _once(self, call: Callable[[], Any]) -> Any:
        try:
            return call()
        except self._error as failure:
            text = str(failure.java_exception.toString())
            raise (EndedError if _name_of(failure) in _FATAL else RefusedError)(text) from failure

    def begin(self) -> None:
        self._once(self._producer.beginTransaction)

    def send(self, topic: str, partition: int, value: bytes) -> Callable[[], int]:
        number = self._machine.java.lang.Integer.valueOf(partition)
        record = self._machine.kafka.clients.producer.ProducerRecord(topic, number, None, value.decode())
        future = self._once(lambda: self._producer.send(record))
        return lambda: int(self._once(lambda: future.get().offset()))

    def flush(self) -> None:
        self._once(self._producer.flush)

    def send_offsets(self, offsets: Mapping[tuple[str, int], int], consumer: Any) -> None:
        positions = self._machine.java.util.HashMap()
        for (topic, partition), offset in offsets.items():
            key = self._machine.kafka.common.TopicPartition(topic, partition)
            positions.put(key, self._machine.kafka.clients.consumer.OffsetAndMetadata(offset))
        metadata = consumer.consumer.groupMetadata()
        self._repeated(lambda: self._producer.sendOffsetsToTransaction(positions, metadata))

    def commit(self) -> None:
        self._repeated(self._producer.commitTransaction)

    def abort(self) -> None:
        try:
            self._repeated(self._producer.abortTransaction)
        except RefusedError as failure:
            raise EndedError(str(failure)) from failure

    def close(self) -> None:
        self._producer.close(self._machine.java.time.Duration.ofSeconds(10))


class Consumer:
    def __init__(self, machine: VirtualMachine, task: ClientTask, group: str | None, isolation: str) -> None:
        from py4j.protocol import Py4JJavaError

        self._machine, self._error = machine, Py4JJavaError
        settings = {
            "bootstrap.servers": task.bootstrap,
            "key.deserializer": _TEXT + "Deserializer",
            "value.deserializer": _TEXT + "Deserializer",
            "group.id": group or "unused",
            "isolation.level": isolation,
            "enable.auto.commit": "false",
            "auto.offset.reset": "earliest",
            "request.timeout.ms": str(REQUEST_TIMEOUT_MS),
            "default.api.timeout.ms": "20000",
            "fetch.max.wait.ms": "500",
            "reconnect.backoff.max.ms": "500",
            "max.poll.records": "20",  # Each is a call into the machine: 500, the default, outlast a transaction.
        }
        if task.protocol == "consumer":
            settings |= {"group.protocol": "consumer", "group.remote.assignor": "uniform"}
        else:
            settings |= {"partition.assignment.strategy": "org.apache.kafka.clients.consumer.RangeAssignor"}
            settings |= {"session.timeout.ms": str(SESSION_TIMEOUT_MS)}
            settings |= {"heartbeat.interval.ms": str(HEARTBEAT_INTERVAL_MS)}
        self.consumer = machine.kafka.clients.consumer.KafkaConsumer(machine.properties(settings))
        self._assigned: Assigned = lambda _own, _new: None
        self._membership: object = None

    def _tp(self, place: tuple[str, int]) -> Any:
        return self._machine.kafka.common.TopicPartition(*place)

    def subscribe(self, topic: str, assigned: Assigned) -> None:
        self._assigned = assigned
        self.consumer.subscribe(self._machine.java.util.List.of(topic))

    def assign(self, places: Places) -> None:
        partitions = self._machine.java.util.ArrayList()
        for place in places:
            partitions.add(self._tp(place))
        self.consumer.assign(partitions)
        self.consumer.seekToBeginning(partitions)

    def poll(self, count: int, seconds: float) -> list[Read]:
        """All that a poll returns: the group cannot change between two polls, and ``count`` is only a wish."""
        try:
            found = self.consumer.poll(self._machine.java.time.Duration.ofMillis(int(seconds * 1000)))
        except self._error as failure:
            raise EndedError(str(failure.java_exception.toString())) from failure
        metadata = self.consumer.groupMetadata()
        own = sorted((each.topic(), each.partition()) for each in self.consumer.assignment())
        if (metadata.memberId(), metadata.generationId(), own) != self._membership:
            self._membership = metadata.memberId(), metadata.generationId(), own
            self._assigned(own, own)  # What it has kept is not distinguished from what was lost and given back.
        reads, records = [], found.iterator()
        while records.hasNext():
            each = records.next()
            reads.append(Read(each.topic(), each.partition(), each.offset(), each.value()))
        return reads

    def rewind(self, offsets: Mapping[tuple[str, int], int]) -> None:
        own = {(each.topic(), each.partition()) for each in self.consumer.assignment()}
        for place, offset in offsets.items():
            if place in own:
                self.consumer.seek(self._tp(place), offset)

    def close(self) -> None:
        self.consumer.close()


class Java:
    def __init__(self, task: ClientTask) -> None:
        self._task = task
        self._machine = VirtualMachine(Path(task.jars))

    def producer(self, transactional_id: str | None) -> Producer:
        return Producer(self._machine, self._task.bootstrap, transactional_id)

    def consumer(self, group: str | None, isolation: str) -> Consumer:
        return Consumer(self._machine, self._task, group, isolation)

    def working(self) -> None:
        """Rebalances happen in polls only."""

    def idle(self) -> None:
        """Rebalances happen in polls only."""

    def close(self) -> None:
        self._machine.close()
