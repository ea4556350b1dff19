"""The consumer's API in the language of the traces: on the model, and on a store.

A poll returns all records that can be read, by partition: offset, key, value, timestamp, headers.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

from tests.harness.differential.consuming import ConsumerOperations
from tests.harness.differential.store_support import as_text, partition_of
from tests.harness.model import Broker
from tests.harness.model.consumer import Consumer as ModelConsumer
from tests.harness.model.group import Claim as Membership
from tests.harness.traces import Op
from txnstore.read.records import Record
from txnstore.store import Store

#: Automatic commits happen at the close only.
NEVER_SECONDS = 86_400.0


class ModelConsumers(ConsumerOperations[ModelConsumer]):
    """Consumers of the model, which has no rebalances: the members of a group are one consumer with several names."""

    broker: Broker

    def op_consumer(self, op: Op) -> None:
        self.consumers[op["consumer"]] = ModelConsumer(
            self.broker, op.get("group"), op["isolation"], op["reset"], auto_commit=op.get("auto_commit", False)
        )

    def op_subscribe(self, op: Op) -> None:
        """Join the group: from now on the consumer is the one that the group has already."""
        name = op["consumer"]
        alone = self.consumers[name]
        consumer = self.consumers[name] = next(self._sharing(alone.group), alone)
        consumer.subscribe(op["topics"])
        group = self.broker.group(consumer.group or "")
        group.join(name, None)
        consumer.member = Membership(name, group.generation)

    def op_poll_all(self, op: Op) -> dict[str, Any]:
        """Poll as a whole group, with the topics that exist now."""
        [consumer] = dict.fromkeys(self._sharing(op["group"]))
        consumer.subscribe(consumer.topics)
        return consumer.poll()

    def op_commit_all(self, op: Op) -> None:
        for consumer in dict.fromkeys(self._sharing(op["group"])):
            consumer.commit()

    def op_close_consumer(self, op: Op) -> None:
        name = op["consumer"]
        consumer = self.consumers.pop(name)
        consumer.close()
        if consumer.member.member and consumer.group is not None:
            group = self.broker.group(consumer.group)
            group.leave(Membership(name))
            other = next((other_name for other_name, sharing in self.consumers.items() if sharing is consumer), "")
            consumer.member = Membership(other, group.generation)

    def _sharing(self, group: str | None) -> Iterator[ModelConsumer]:
        return (consumer for consumer in self.consumers.values() if consumer.group == group and consumer.member.member)


class StoreConsumer:
    """A consumer of a store; ``shares``: with the other members of its group."""

    def __init__(self, store: Store, op: Op) -> None:
        self.group = op.get("group")
        self.shares = False
        self._client = store.consumer(
            group=self.group,
            isolation=op["isolation"],
            auto_offset_reset=op["reset"],
            enable_auto_commit=op.get("auto_commit", False),
            auto_commit_interval=NEVER_SECONDS,
        )

    def assign(self, partitions: list[str]) -> None:
        self._client.assign([partition_of(name) for name in partitions])

    def subscribe(self, topics: list[str]) -> None:
        self._client.subscribe(topics)
        self.shares = True

    def poll(self) -> dict[str, Any]:
        by_partition: dict[str, list[Any]] = {}
        for record in itertools.chain.from_iterable(iter(self._client.poll, [])):
            by_partition.setdefault(f"{record.topic}-{record.partition}", []).append(_row(record))
        return dict(sorted(by_partition.items()))

    def position(self, partition: str) -> int:
        return self._client.position(partition_of(partition))

    def seek(self, partition: str, offset: int) -> None:
        self._client.seek(partition_of(partition), offset)

    def seek_to(self, partition: str, end: str) -> None:
        seek = self._client.seek_to_beginning if end == "earliest" else self._client.seek_to_end
        seek(partition_of(partition))

    def pauses(self, partition: str, *, paused: bool) -> None:
        (self._client.pause if paused else self._client.resume)(partition_of(partition))

    def commit(self, offsets: dict[str, int] | None = None) -> None:
        self._client.commit(None if offsets is None else {partition_of(tp): offset for tp, offset in offsets.items()})

    def offsets_for_times(self, times: dict[str, int]) -> dict[str, Any]:
        offsets = self._client.offsets_for_times({partition_of(tp): time for tp, time in times.items()})
        return {str(tp): [row.offset, row.timestamp] if row is not None else None for tp, row in offsets.items()}

    def close(self) -> None:
        self._client.close()


class StoreConsumers(ConsumerOperations[StoreConsumer]):
    """Consumers of a store."""

    store: Store

    def op_consumer(self, op: Op) -> None:
        self.consumers[op["consumer"]] = StoreConsumer(self.store, op)

    def op_poll_all(self, op: Op) -> dict[str, Any]:
        """All members poll until two rounds return nothing: a partition moves when its former owner has polled."""
        by_partition: dict[str, Any] = {}
        idle = 0
        while idle < 2:
            rows = [row for member in self._sharing(op["group"]) for row in member.poll().items()]
            idle = 0 if rows else idle + 1
            for tp, records in rows:
                by_partition.setdefault(tp, []).extend(records)
        return dict(sorted(by_partition.items()))

    def op_commit_all(self, op: Op) -> None:
        for member in self._sharing(op["group"]):
            member.commit()

    def _sharing(self, group: str) -> list[StoreConsumer]:
        return [consumer for consumer in self.consumers.values() if consumer.group == group and consumer.shares]


def _row(record: Record) -> list[Any]:
    headers = [[name, as_text(value)] for name, value in record.headers]
    return [record.offset, as_text(record.key), as_text(record.value), record.timestamp, headers]
