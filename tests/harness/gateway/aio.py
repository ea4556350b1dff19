"""Clients of aiokafka, in an event loop of their own: transactions v1.

aiokafka passes no generation with offsets. So a transaction must end before the group of its consumer rebalances, and
the transactional id, which all members of the group have, fences what a dead one has left.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import CancelledError
from typing import Any

import aiokafka
from aiokafka.coordinator.assignors.range import RangePartitionAssignor
from aiokafka.errors import KafkaConnectionError, KafkaError, KafkaTimeoutError, ProducerFenced
from aiokafka.structs import TopicPartition

from tests.harness.gateway.client import Assigned, EndedError, Places, Read, RefusedError
from tests.harness.gateway.plan import (
    HEARTBEAT_INTERVAL_MS,
    PATIENCE,
    REQUEST_TIMEOUT_MS,
    SESSION_TIMEOUT_MS,
    TRANSACTION_TIMEOUT_MS,
    ClientTask,
)


class Loop:
    """An event loop in a thread."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, daemon=True).start()

    def call(self, work: Coroutine[Any, Any, Any], seconds: float = PATIENCE) -> Any:
        """Run to its end; raises :class:`TimeoutError` if it takes longer."""
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result(seconds)
        finally:
            future.cancel()

    def end(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)


class Producer:
    def __init__(self, loop: Loop, bootstrap: str, transactional_id: str | None) -> None:
        self._loop = loop

        async def make() -> aiokafka.AIOKafkaProducer:
            producer = aiokafka.AIOKafkaProducer(
                bootstrap_servers=bootstrap,
                request_timeout_ms=REQUEST_TIMEOUT_MS,
                transactional_id=transactional_id,
                transaction_timeout_ms=TRANSACTION_TIMEOUT_MS,
                enable_idempotence=True,
                max_batch_size=400,
            )
            try:
                await producer.start()
            except BaseException:
                await producer.stop()
                raise
            return producer

        self._producer = self._ask(make, RefusedError)

    def _ask(self, work: Callable[[], Coroutine[Any, Any, Any]], refused: type[Exception]) -> Any:
        try:
            return self._loop.call(work())
        except (ProducerFenced, TimeoutError) as failure:
            raise EndedError(repr(failure)) from failure
        except KafkaError as failure:
            raise refused(repr(failure)) from failure
        except Exception as failure:  # What has ended its background task is raised by each call.
            raise EndedError(repr(failure)) from failure

    def begin(self) -> None:
        self._ask(self._producer.begin_transaction, EndedError)

    def send(self, topic: str, partition: int, value: bytes) -> Callable[[], int]:
        sent = self._ask(lambda: self._producer.send(topic, value, partition=partition), RefusedError)

        async def delivered() -> int:
            return int((await sent).offset)

        return lambda: self._ask(delivered, RefusedError)

    def flush(self) -> None:
        self._ask(self._producer.flush, RefusedError)

    def send_offsets(self, offsets: Mapping[tuple[str, int], int], consumer: Any) -> None:
        positions = {TopicPartition(*place): offset for place, offset in offsets.items()}
        self._ask(lambda: self._producer.send_offsets_to_transaction(positions, consumer.group), RefusedError)

    def commit(self) -> None:
        self._ask(self._producer.commit_transaction, RefusedError)

    def abort(self) -> None:
        self._ask(self._producer.abort_transaction, EndedError)

    def close(self) -> None:
        try:
            self._loop.call(self._producer.stop(), 20)
        except (KafkaError, TimeoutError) as failure:
            raise EndedError(repr(failure)) from failure


class Consumer:
    def __init__(self, loop: Loop, lock: threading.Lock, bootstrap: str, group: str | None, isolation: str) -> None:
        self._loop, self._lock, self.group = loop, lock, group

        async def make() -> aiokafka.AIOKafkaConsumer:
            return aiokafka.AIOKafkaConsumer(
                bootstrap_servers=bootstrap,
                group_id=group,
                enable_auto_commit=False,
                auto_offset_reset="earliest",
                isolation_level=isolation,
                request_timeout_ms=REQUEST_TIMEOUT_MS,
                session_timeout_ms=SESSION_TIMEOUT_MS,
                heartbeat_interval_ms=HEARTBEAT_INTERVAL_MS,
                fetch_max_wait_ms=500,
                partition_assignment_strategy=(RangePartitionAssignor,),
            )

        self._consumer = loop.call(make())
        deadline = time.monotonic() + PATIENCE
        while True:
            try:
                loop.call(self._consumer.start())
                return
            except (KafkaConnectionError, KafkaTimeoutError) as failure:
                if time.monotonic() > deadline:
                    raise EndedError(repr(failure)) from failure

    def subscribe(self, topic: str, assigned: Assigned) -> None:
        lock = self._lock

        class Listener(aiokafka.ConsumerRebalanceListener):  # type: ignore[misc]
            has_lock = False

            async def on_partitions_revoked(self, revoked: Any) -> None:
                while not (self.has_lock or lock.acquire(blocking=False)):  # noqa: ASYNC110 - Another thread has it.
                    await asyncio.sleep(0.01)
                self.has_lock = True

            async def on_partitions_assigned(self, partitions: Any) -> None:
                new = [(each.topic, each.partition) for each in partitions]
                assigned(new, new)
                if self.has_lock:
                    self.has_lock = False
                    lock.release()

        async def subscribe() -> None:
            self._consumer.subscribe([topic], listener=Listener())

        self._loop.call(subscribe())

    def assign(self, places: Places) -> None:
        async def assign() -> None:
            self._consumer.assign([TopicPartition(*place) for place in places])
            for place in places:
                self._consumer.seek(TopicPartition(*place), 0)

        self._loop.call(assign())

    def poll(self, count: int, seconds: float) -> list[Read]:
        """Empty while the group rebalances, which waits for the end of :meth:`Aiokafka.working`."""

        async def poll() -> dict[TopicPartition, list[Any]]:
            try:
                getting = self._consumer.getmany(timeout_ms=int(seconds * 1000), max_records=count)
                return dict(await asyncio.wait_for(getting, seconds + 1))
            except TimeoutError:
                return {}

        try:
            found = self._loop.call(poll())
        except (KafkaError, TimeoutError) as failure:
            raise EndedError(repr(failure)) from failure
        return [Read(tp.topic, tp.partition, each.offset, each.value.decode()) for tp in found for each in found[tp]]

    def rewind(self, offsets: Mapping[tuple[str, int], int]) -> None:
        async def rewind() -> None:
            own = self._consumer.assignment()
            for place, offset in offsets.items():
                if TopicPartition(*place) in own:
                    self._consumer.seek(TopicPartition(*place), offset)

        self._loop.call(rewind())

    def close(self) -> None:
        try:
            self._loop.call(self._consumer.stop(), 20)
        except (
            KafkaError,
            TimeoutError,
            CancelledError,
        ) as failure:  # It may wait for a task of its own that it cancels.
            raise EndedError(repr(failure)) from failure


class Aiokafka:
    def __init__(self, task: ClientTask) -> None:
        self._bootstrap = task.bootstrap
        self._loop = Loop()
        #: Held while a transaction runs, and while the group rebalances.
        self._lock = threading.Lock()

    def producer(self, transactional_id: str | None) -> Producer:
        return Producer(self._loop, self._bootstrap, transactional_id)

    def consumer(self, group: str | None, isolation: str) -> Consumer:
        return Consumer(self._loop, self._lock, self._bootstrap, group, isolation)

    def working(self) -> None:
        self._lock.acquire()

    def idle(self) -> None:
        self._lock.release()
        time.sleep(0.03)  # A rebalance that waits gets it.

    def close(self) -> None:
        self._loop.end()
