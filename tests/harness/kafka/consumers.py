"""Kafka's own consumer, driven in the language of the traces."""

from __future__ import annotations

from typing import Any

from tests.harness.differential.trace import Op
from tests.harness.kafka.cluster import again
from tests.harness.kafka.requests import topic_partition
from tests.harness.kafka.running import RunningBroker

#: Automatic commits happen at the close only.
NEVER_MS = "86400000"


class ClientConsumer:
    """A ``KafkaConsumer``."""

    def __init__(self, running: RunningBroker, op: Op) -> None:
        self._running = running
        self._machine = running.machine
        settings = {
            "auto.offset.reset": op["reset"],
            "enable.auto.commit": str(op.get("auto_commit", False)).lower(),
            "auto.commit.interval.ms": NEVER_MS,
            "default.api.timeout.ms": "60000",
        }
        if op.get("group") is not None:
            settings["group.id"] = op["group"]
        self._client = running.consumer(op["isolation"], settings)
        self._wanted = 0

    def assign(self, partitions: list[str]) -> None:
        self._client.assign([self._tp(name) for name in partitions])

    def subscribe(self, topics: list[str]) -> None:
        """Subscribe; the first poll joins the group."""
        self._client.subscribe(topics)
        self._wanted = sum(len(list(self._client.partitionsFor(topic))) for topic in topics)

    def poll(self) -> dict[str, Any]:
        """All records up to the ends of the partitions that are not paused."""
        found: dict[str, list[Any]] = {}
        pause = self._machine.java.time.Duration.ofMillis(50)
        for _ in again("the consumer should read to the end"):
            for record in self._client.poll(pause).iterator():
                found.setdefault(f"{record.topic()}-{record.partition()}", []).append(self._row(record))
            if self._at_end():
                break
        return dict(sorted(found.items()))

    def _at_end(self) -> bool:
        paused = {str(tp.toString()) for tp in self._client.paused()}
        tps = [tp for tp in self._client.assignment() if str(tp.toString()) not in paused]
        ends, limits = self._client.endOffsets(tps), self._running.readers["read_uncommitted"].endOffsets(tps)
        joined = self._client.assignment().size() >= self._wanted
        return joined and all(ends[tp] <= self._client.position(tp) <= limits[tp] for tp in tps)

    def position(self, name: str) -> int:
        return int(self._client.position(self._tp(name)))

    def seek(self, name: str, offset: int) -> None:
        self._client.seek(self._tp(name), offset)

    def seek_to(self, name: str, end: str) -> None:
        seek = self._client.seekToBeginning if end == "earliest" else self._client.seekToEnd
        seek([self._tp(name)])

    def pauses(self, name: str, *, paused: bool) -> None:
        (self._client.pause if paused else self._client.resume)([self._tp(name)])

    def commit(self, offsets: dict[str, int] | None) -> None:
        if offsets is None:
            self._client.commitSync()
            return
        positions = self._machine.java.util.HashMap()
        for name, offset in offsets.items():
            positions.put(self._tp(name), self._machine.kafka.clients.consumer.OffsetAndMetadata(offset))
        self._client.commitSync(positions)

    def offsets_for_times(self, times: dict[str, int]) -> dict[str, Any]:
        asked = self._machine.java.util.HashMap()
        for name, time in times.items():
            asked.put(self._tp(name), time)
        answer = self._client.offsetsForTimes(asked)
        rows = {name: answer.get(self._tp(name)) for name in times}
        return {name: [row.offset(), row.timestamp()] if row is not None else None for name, row in rows.items()}

    def close(self) -> None:
        self._client.close()

    def _tp(self, name: str) -> Any:
        return self._machine.kafka.common.TopicPartition(*topic_partition(name))

    @staticmethod
    def _row(record: Any) -> list[Any]:
        headers = [[header.key(), _text(header.value())] for header in record.headers().toArray()]
        return [record.offset(), record.key(), record.value(), record.timestamp(), headers]


def _text(value: bytes | None) -> str | None:
    return bytes(value).decode() if value is not None else None


class ClientConsumers:
    """The operations of consumers."""

    running: RunningBroker
    consumers: dict[str, ClientConsumer]

    def op_consumer(self, op: Op) -> None:
        self.consumers[op["consumer"]] = ClientConsumer(self.running, op)

    def op_assign(self, op: Op) -> None:
        self.consumers[op["consumer"]].assign(op["partitions"])

    def op_subscribe(self, op: Op) -> None:
        self.consumers[op["consumer"]].subscribe(op["topics"])

    def op_poll(self, op: Op) -> dict[str, Any]:
        return self.consumers[op["consumer"]].poll()

    def op_position(self, op: Op) -> int:
        return self.consumers[op["consumer"]].position(op["partition"])

    def op_seek(self, op: Op) -> None:
        self.consumers[op["consumer"]].seek(op["partition"], op["offset"])

    def op_seek_to(self, op: Op) -> None:
        self.consumers[op["consumer"]].seek_to(op["partition"], op["end"])

    def op_pause(self, op: Op) -> None:
        self.consumers[op["consumer"]].pauses(op["partition"], paused=True)

    def op_resume(self, op: Op) -> None:
        self.consumers[op["consumer"]].pauses(op["partition"], paused=False)

    def op_commit_positions(self, op: Op) -> None:
        self.consumers[op["consumer"]].commit(op.get("offsets"))

    def op_offsets_for_times(self, op: Op) -> dict[str, Any]:
        return self.consumers[op["consumer"]].offsets_for_times(op["times"])

    def op_close_consumer(self, op: Op) -> None:
        self.consumers.pop(op["consumer"]).close()
