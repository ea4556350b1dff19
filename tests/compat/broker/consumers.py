"""Kafka's own consumer, driven in the language of the traces."""

from __future__ import annotations

from typing import Any

from tests.compat.broker.cluster import again
from tests.compat.broker.requests import topic_partition
from tests.compat.broker.running import RunningBroker
from tests.harness.differential.consuming import ConsumerOperations
from tests.harness.traces import Op

#: Automatic commits happen at the close only.
NEVER_MS = "86400000"
#: How late a consumer may notice other members and other topics.
SOON_MS = "200"


class ClientConsumer:
    """A ``KafkaConsumer``."""

    def __init__(self, running: RunningBroker, op: Op) -> None:
        self.group, self.topics = op.get("group"), list[str]()
        self._running = running
        self._machine = running.machine
        settings = {
            "auto.offset.reset": op["reset"],
            "enable.auto.commit": str(op.get("auto_commit", False)).lower(),
            "auto.commit.interval.ms": NEVER_MS,
            "default.api.timeout.ms": "300000",
            "heartbeat.interval.ms": SOON_MS,
            "metadata.max.age.ms": SOON_MS,
            "max.poll.interval.ms": NEVER_MS,
            "session.timeout.ms": "1800000",
        }
        if op.get("group") is not None:
            settings["group.id"] = op["group"]
        self._client = running.consumer(op["isolation"], settings)

    def assign(self, partitions: list[str]) -> None:
        self._client.assign([self._tp(name) for name in partitions])

    def subscribe(self, topics: list[str]) -> None:
        """Subscribe; the first poll joins the group."""
        self.topics = topics
        self._client.subscribe(topics)

    def poll(self) -> dict[str, Any]:
        """All records up to the ends of the partitions that are not paused."""
        by_partition: dict[str, list[Any]] = {}
        for _ in again("the consumer should read to the end"):
            self.poll_once(by_partition)
            if self.at_end():
                break
        return dict(sorted(by_partition.items()))

    def poll_once(self, by_partition: dict[str, list[Any]]) -> None:
        """Add the records of one poll, by partition."""
        pause = self._machine.java.time.Duration.ofMillis(50)
        for record in self._client.poll(pause).iterator():
            by_partition.setdefault(f"{record.topic()}-{record.partition()}", []).append(self._row(record))

    def assigned(self) -> list[str]:
        """The partitions that it has now."""
        return [str(tp.toString()) for tp in self._client.assignment()]

    def at_end(self) -> bool:
        """Whether it has read its partitions up to their ends, but for those that are paused."""
        paused = {str(tp.toString()) for tp in self._client.paused()}
        tps = [tp for tp in self._client.assignment() if str(tp.toString()) not in paused]
        ends, limits = self._client.endOffsets(tps), self._running.readers["read_uncommitted"].endOffsets(tps)
        return all(ends[tp] <= self._client.position(tp) <= limits[tp] for tp in tps)

    def position(self, partition: str) -> int:
        return int(self._client.position(self._tp(partition)))

    def seek(self, partition: str, offset: int) -> None:
        self._client.seek(self._tp(partition), offset)

    def seek_to(self, partition: str, end: str) -> None:
        seek = self._client.seekToBeginning if end == "earliest" else self._client.seekToEnd
        seek([self._tp(partition)])

    def pauses(self, partition: str, *, paused: bool) -> None:
        (self._client.pause if paused else self._client.resume)([self._tp(partition)])

    def commit(self, offsets: dict[str, int] | None = None) -> None:
        if offsets is None:
            self._client.commitSync()
            return
        positions = self._machine.java.util.HashMap()
        for name, offset in offsets.items():
            positions.put(self._tp(name), self._machine.kafka.clients.consumer.OffsetAndMetadata(offset))
        self._client.commitSync(positions)

    def offsets_for_times(self, times: dict[str, int]) -> dict[str, Any]:
        query = self._machine.java.util.HashMap()
        for name, time in times.items():
            query.put(self._tp(name), time)
        answer = self._client.offsetsForTimes(query)
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


class ClientConsumers(ConsumerOperations[ClientConsumer]):
    """Kafka's consumers."""

    running: RunningBroker

    def op_consumer(self, op: Op) -> None:
        self.consumers[op["consumer"]] = ClientConsumer(self.running, op)

    def op_poll(self, op: Op) -> dict[str, Any]:
        consumer = self.consumers[op["consumer"]]
        return self.op_poll_all({"op": "poll_all", "group": consumer.group}) if consumer.topics else consumer.poll()

    def op_poll_all(self, op: Op) -> dict[str, Any]:
        """All members poll until each partition of their topics has one owner, which has read to its end."""
        by_partition: dict[str, Any] = {}
        members = self._sharing(op["group"])
        for _ in again(f"the members of {op['group']!r} should read to the end"):
            for member in members:
                member.poll_once(by_partition)
            owned = [name for member in members for name in member.assigned()]
            subscribed = [name for name in self.partitions() if topic_partition(name)[0] in members[0].topics]
            if sorted(owned) == sorted(subscribed) and all(member.at_end() for member in members):
                return dict(sorted(by_partition.items()))
        return {}

    def op_commit_all(self, op: Op) -> None:
        for member in self._sharing(op["group"]):
            member.commit()

    def partitions(self) -> list[str]:
        """The partitions of the existing topics."""
        raise NotImplementedError

    def _sharing(self, group: str) -> list[ClientConsumer]:
        return [consumer for consumer in self.consumers.values() if consumer.group == group and consumer.topics]
