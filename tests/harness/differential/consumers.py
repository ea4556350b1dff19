"""The consumer's API in the language of the traces: on the model, and on a store.

A poll returns all records that can be read, by partition: offset, key, value, timestamp, headers.
"""

from __future__ import annotations

import itertools
from typing import Any

from tests.harness.differential.store_support import as_text, partition_of
from tests.harness.differential.trace import Op
from tests.harness.model import Broker
from tests.harness.model.consumer import Consumer as ModelConsumer
from tests.harness.model.group import Claim as Membership
from txnstore.consumer import Consumer
from txnstore.read.records import Record
from txnstore.store import Store

#: Automatic commits happen at the close only.
NEVER_SECONDS = 86_400.0


class ModelConsumers:
    """Consumers of the model."""

    broker: Broker
    consumers: dict[str, ModelConsumer]

    def op_consumer(self, op: Op) -> None:
        self.consumers[op["consumer"]] = ModelConsumer(
            self.broker, op.get("group"), op["isolation"], op["reset"], auto_commit=op.get("auto_commit", False)
        )

    def op_assign(self, op: Op) -> None:
        self.consumers[op["consumer"]].assign(op["partitions"])

    def op_subscribe(self, op: Op) -> None:
        """The model has no rebalances: the only member of a group has its generation."""
        consumer = self.consumers[op["consumer"]]
        consumer.subscribe(op["topics"])
        assert consumer.group is not None
        group = self.broker.group(consumer.group)
        group.join(op["consumer"], None)
        consumer.member = Membership(op["consumer"], group.generation)

    def op_poll(self, op: Op) -> dict[str, Any]:
        found = self.consumers[op["consumer"]].poll()
        return {tp: [[offset, *record] for offset, record in rows] for tp, rows in sorted(found.items())}

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
        found = self.consumers[op["consumer"]].offsets_for_times(op["times"])
        return {tp: list(row) if row is not None else None for tp, row in found.items()}

    def op_close_consumer(self, op: Op) -> None:
        consumer = self.consumers.pop(op["consumer"])
        consumer.close()
        if consumer.member.member and consumer.group is not None:
            self.broker.group(consumer.group).leave(consumer.member)


class StoreConsumers:
    """Consumers of a store."""

    store: Store
    consumers: dict[str, Consumer]

    def op_consumer(self, op: Op) -> None:
        self.consumers[op["consumer"]] = self.store.consumer(
            group=op.get("group"),
            isolation=op["isolation"],
            auto_offset_reset=op["reset"],
            enable_auto_commit=op.get("auto_commit", False),
            auto_commit_interval=NEVER_SECONDS,
        )

    def op_assign(self, op: Op) -> None:
        self.consumers[op["consumer"]].assign([partition_of(name) for name in op["partitions"]])

    def op_subscribe(self, op: Op) -> None:
        self.consumers[op["consumer"]].subscribe(op["topics"])

    def op_poll(self, op: Op) -> dict[str, Any]:
        found: dict[str, list[Any]] = {}
        poll = self.consumers[op["consumer"]].poll
        for record in itertools.chain.from_iterable(iter(poll, [])):
            found.setdefault(f"{record.topic}-{record.partition}", []).append(_row(record))
        return dict(sorted(found.items()))

    def op_position(self, op: Op) -> int:
        return self.consumers[op["consumer"]].position(partition_of(op["partition"]))

    def op_seek(self, op: Op) -> None:
        self.consumers[op["consumer"]].seek(partition_of(op["partition"]), op["offset"])

    def op_seek_to(self, op: Op) -> None:
        consumer, tp = self.consumers[op["consumer"]], partition_of(op["partition"])
        (consumer.seek_to_beginning if op["end"] == "earliest" else consumer.seek_to_end)(tp)

    def op_pause(self, op: Op) -> None:
        self.consumers[op["consumer"]].pause(partition_of(op["partition"]))

    def op_resume(self, op: Op) -> None:
        self.consumers[op["consumer"]].resume(partition_of(op["partition"]))

    def op_commit_positions(self, op: Op) -> None:
        offsets = op.get("offsets")
        found = None if offsets is None else {partition_of(tp): offset for tp, offset in offsets.items()}
        self.consumers[op["consumer"]].commit(found)

    def op_offsets_for_times(self, op: Op) -> dict[str, Any]:
        times = {partition_of(tp): time for tp, time in op["times"].items()}
        found = self.consumers[op["consumer"]].offsets_for_times(times)
        return {str(tp): [row.offset, row.timestamp] if row is not None else None for tp, row in found.items()}

    def op_close_consumer(self, op: Op) -> None:
        self.consumers.pop(op["consumer"]).close()


def _row(record: Record) -> list[Any]:
    headers = [[name, as_text(value)] for name, value in record.headers]
    return [record.offset, as_text(record.key), as_text(record.value), record.timestamp, headers]
