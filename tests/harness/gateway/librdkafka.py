"""Clients of librdkafka: transactions v1."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

import confluent_kafka
from confluent_kafka import KafkaException, TopicPartition

from tests.harness.gateway.client import Assigned, EndedError, Places, Read, RefusedError
from tests.harness.gateway.plan import (
    HEARTBEAT_INTERVAL_MS,
    PATIENCE,
    REQUEST_TIMEOUT_MS,
    SESSION_TIMEOUT_MS,
    TRANSACTION_TIMEOUT_MS,
    ClientTask,
)

_SETTINGS = {
    "socket.timeout.ms": REQUEST_TIMEOUT_MS,
    "reconnect.backoff.ms": 50,
    "reconnect.backoff.max.ms": 500,
    "socket.connection.setup.timeout.ms": 3_000,
}


def _settings(task: ClientTask) -> dict[str, Any]:
    return {**_SETTINGS, "bootstrap.servers": task.bootstrap, **({"debug": task.debug} if task.debug else {})}


def _repeated(call: Callable[[], Any]) -> Any:
    """Call as librdkafka asks for: repeat, abort, or give up."""
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            return call()
        except KafkaException as failure:
            error = failure.args[0]
            if error.txn_requires_abort():
                raise RefusedError(repr(failure)) from failure
            if not error.retriable() or time.monotonic() > deadline:
                raise EndedError(repr(failure)) from failure


class Producer:
    def __init__(self, task: ClientTask, transactional_id: str | None) -> None:
        settings = {**_settings(task), "enable.idempotence": True, "linger.ms": 2}
        settings |= {"batch.num.messages": 10, "message.timeout.ms": TRANSACTION_TIMEOUT_MS}
        if transactional_id is not None:
            settings |= {"transactional.id": transactional_id, "transaction.timeout.ms": TRANSACTION_TIMEOUT_MS}
        self._producer = confluent_kafka.Producer(settings)
        if transactional_id is not None:
            _repeated(lambda: self._producer.init_transactions(10))

    def begin(self) -> None:
        _repeated(self._producer.begin_transaction)

    def send(self, topic: str, partition: int, value: bytes) -> Callable[[], int]:
        results: list[tuple[Any, Any]] = []
        try:
            self._producer.produce(
                topic, value, partition=partition, on_delivery=lambda error, message: results.append((error, message))
            )
        except KafkaException as failure:
            error = failure.args[0]
            raise (EndedError if error.fatal() else RefusedError)(repr(failure)) from failure

        def wait() -> int:
            while not results:
                self._producer.poll(0.1)
            error, message = results[0]
            if error is not None:
                raise (EndedError if error.fatal() else RefusedError)(repr(error))
            return int(message.offset())

        return wait

    def flush(self) -> None:
        try:
            self._producer.flush(PATIENCE)
        except SystemError as failure:  # The binding lets a callback run while a fatal error is set.
            raise EndedError(repr(failure)) from failure
        except KafkaException as failure:  # A fatal error that no call has reported.
            error = failure.args[0]
            raise (EndedError if error.fatal() else RefusedError)(repr(failure)) from failure

    def send_offsets(self, offsets: Mapping[tuple[str, int], int], consumer: Any) -> None:
        positions = [TopicPartition(*place, offset) for place, offset in offsets.items()]
        metadata = consumer.consumer.consumer_group_metadata()
        _repeated(lambda: self._producer.send_offsets_to_transaction(positions, metadata, 10))

    def commit(self) -> None:
        _repeated(lambda: self._producer.commit_transaction(10))

    def abort(self) -> None:
        try:
            _repeated(lambda: self._producer.abort_transaction(10))
        except RefusedError as failure:
            raise EndedError(str(failure)) from failure

    def close(self) -> None:
        self._producer.flush(10)


class Consumer:
    def __init__(self, task: ClientTask, group: str | None, isolation: str) -> None:
        settings = {
            **_settings(task),
            "group.id": group or "unused",
            "enable.auto.commit": False,
            "isolation.level": isolation,
            "auto.offset.reset": "earliest",
            "fetch.wait.max.ms": 500,
            "check.crcs": True,
        }
        if group is not None and task.protocol == "consumer":
            settings |= {"group.protocol": "consumer", "group.remote.assignor": "uniform"}
        else:
            settings |= {"partition.assignment.strategy": "range", "session.timeout.ms": SESSION_TIMEOUT_MS}
            settings |= {"heartbeat.interval.ms": HEARTBEAT_INTERVAL_MS}
        self.consumer = confluent_kafka.Consumer(settings)
        self._own: set[tuple[str, int]] = set()

    def subscribe(self, topic: str, assigned: Assigned) -> None:
        def on_assign(_consumer: Any, partitions: list[TopicPartition]) -> None:
            new = [(each.topic, each.partition) for each in partitions]
            self._own.update(new)
            assigned(sorted(self._own), new)

        def on_revoke(_consumer: Any, partitions: list[TopicPartition]) -> None:
            self._own.difference_update((each.topic, each.partition) for each in partitions)

        self.consumer.subscribe([topic], on_assign=on_assign, on_revoke=on_revoke, on_lost=on_revoke)

    def assign(self, places: Places) -> None:
        self.consumer.assign([TopicPartition(*place, 0) for place in places])

    def poll(self, count: int, seconds: float) -> list[Read]:
        reads = []
        for message in self.consumer.consume(count, seconds):
            each: Any = message
            if each.error() is None:
                reads.append(Read(each.topic(), each.partition(), each.offset(), each.value().decode()))
            elif each.error().fatal():
                raise EndedError(repr(each.error()))
        return reads

    def rewind(self, offsets: Mapping[tuple[str, int], int]) -> None:
        own = {(each.topic, each.partition) for each in self.consumer.assignment()}
        try:
            for place, offset in offsets.items():
                if place in own:
                    self.consumer.seek(TopicPartition(*place, offset))
        except KafkaException as failure:
            raise EndedError(repr(failure)) from failure

    def close(self) -> None:
        self.consumer.close()


class Librdkafka:
    def __init__(self, task: ClientTask) -> None:
        self._task = task

    def producer(self, transactional_id: str | None) -> Producer:
        return Producer(self._task, transactional_id)

    def consumer(self, group: str | None, isolation: str) -> Consumer:
        return Consumer(self._task, group, isolation)

    def working(self) -> None:
        """Rebalances happen in polls only."""

    def idle(self) -> None:
        """Rebalances happen in polls only."""

    def close(self) -> None:
        """Nothing is shared."""
