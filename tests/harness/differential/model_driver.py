"""Runs operations against the model."""

from __future__ import annotations

from typing import Any

from tests.harness.differential.consumers import ModelConsumers
from tests.harness.differential.members import Claim, Members
from tests.harness.differential.names import ProducerIds
from tests.harness.model import Broker, Identity, Log, Producer, RefusedError
from tests.harness.model.broker import Data, Offsets
from tests.harness.model.consumer import Consumer
from tests.harness.model.group import Claim as Membership
from tests.harness.traces import Op

#: What is wrong with positions, and the error of it. A store's class of a wrong group has no other name.
BAD_OFFSETS = {
    "group": "InvalidConfigError",
    "metadata": "OFFSET_METADATA_TOO_LARGE",
    "partition": "UNKNOWN_TOPIC_OR_PARTITION",
    "topic": "UNKNOWN_TOPIC_OR_PARTITION",
}


class ModelDriver(ModelConsumers):
    """A model cluster with its producers."""

    supports = frozenset({"clean", "compact", "delete_records", "members"})

    def __init__(self, broker: Broker | None = None, producer: type[Producer] = Producer) -> None:
        self.broker = broker if broker is not None else Broker()
        self.producers: dict[str, Producer] = {}
        self.consumers: dict[str, Consumer] = {}
        self._producer = producer
        self._ids = ProducerIds()
        self._members = Members()

    def apply(self, op: Op) -> dict[str, Any]:
        """The answer to an operation: ``{"answer": ...}`` or ``{"error": Kafka's name}``."""
        try:
            answer = getattr(self, f"op_{op['op']}")(op)
        except RefusedError as refused:
            return {"error": refused.error}
        return {"answer": answer}

    def close(self) -> None:
        """Nothing to close."""

    # The application --------------------------------------------------------------------------------------------------

    def op_init(self, op: Op) -> dict[str, int]:
        producer = self._producer(self.broker, op.get("id"), op.get("timeout_ms", 60_000))
        self.producers[op["producer"]] = producer
        return self._identity(producer.identity)

    def op_begin(self, op: Op) -> None:
        self.producers[op["producer"]].begin()

    def op_send(self, op: Op) -> None:
        more = (op["timestamp"], op.get("headers", [])) if "timestamp" in op else ()
        self.producers[op["producer"]].send(op["partition"], (op.get("key"), op.get("value"), *more))

    def op_send_offsets(self, op: Op) -> None:
        self.producers[op["producer"]].send_offsets(self._offsets(op))

    def op_send_bad_offsets(self, op: Op) -> None:
        self.producers[op["producer"]].send_bad_offsets(BAD_OFFSETS[op["what"]])

    def op_flush(self, op: Op) -> dict[str, Any]:
        return {"offsets": self.producers[op["producer"]].flush()}

    def op_commit(self, op: Op) -> dict[str, Any]:
        producer = self.producers[op["producer"]]
        return {"offsets": producer.commit(), **self._identity(producer.identity)}

    def op_abort(self, op: Op) -> dict[str, int]:
        producer = self.producers[op["producer"]]
        producer.abort()
        return self._identity(producer.identity)

    def op_close(self, op: Op) -> None:
        self.producers[op["producer"]].close()

    def op_kill(self, op: Op) -> None:
        del self.producers[op["producer"]]

    def op_commit_offsets(self, op: Op) -> None:
        self.broker.commit_offsets(self._offsets(op))

    def op_join(self, op: Op) -> dict[str, int]:
        instance = op.get("instance")
        self._members.update(op["group"], op["member"], Claim(op["member"], instance=instance))
        self.broker.group(op["group"]).join(op["member"], instance)
        return {"generation": self._rebalanced(op["group"])}

    def op_leave(self, op: Op) -> None:
        self.broker.group(op["group"]).leave(self._claim(op))
        self._rebalanced(op["group"])

    def op_heartbeat(self, op: Op) -> None:
        self.broker.group(op["group"]).heartbeat(self._claim(op))

    def _rebalanced(self, name: str) -> int:
        group = self.broker.group(name)
        for member, instance in group.members.items():
            self._members.update(name, member, Claim(member, group.generation, instance))
        return group.generation

    def op_at_once(self, op: Op) -> list[dict[str, Any]]:
        """Calls whose order makes no difference."""
        return [self.apply(one) for one in op["ops"]]

    # Raw requests -----------------------------------------------------------------------------------------------------

    def op_raw_init(self, op: Op) -> dict[str, int]:
        expected = (self._ids.real(op["producer_id"]), op["epoch"]) if "producer_id" in op else None
        return self._identity(self.broker.init(op.get("id"), op.get("timeout_ms", 60_000), expected))

    def op_raw_append(self, op: Op) -> dict[str, Any]:
        age = op.get("age_ms", 0)
        data = Data(op["partition"], op["sequence"], [(key, value) for key, value in op["records"]], age)
        [(base_offset, duplicate)] = self.broker.produce(self._who(op), [data])
        return {"base_offset": base_offset, "duplicate": duplicate}

    def op_raw_add_partitions(self, op: Op) -> None:
        self.broker.add_partitions(self._who(op), op["partitions"])

    def op_raw_txn_offset_commit(self, op: Op) -> None:
        self.broker.produce(self._who(op), [], [self._offsets(op)])

    def op_raw_end_txn(self, op: Op) -> dict[str, int]:
        return self._identity(self.broker.end(self._who(op), "COMMIT" if op["commit"] else "ABORT"))

    def op_fence(self, op: Op) -> None:
        self.broker.init(op["id"])

    def op_set_epoch(self, op: Op) -> None:
        txn = self.broker.transactions[op["id"]]
        txn.epoch, txn.state, txn.last = op["epoch"], "EMPTY", None

    # The environment --------------------------------------------------------------------------------------------------

    def op_create_topic(self, op: Op) -> None:
        self.broker.create_topic(op["topic"], op.get("partitions", 1), op.get("config"))

    def op_delete_topic(self, op: Op) -> None:
        self.broker.delete_topic(op["topic"])

    def op_tick(self, op: Op) -> None:
        self.broker.now += op["ms"]

    def op_sweep(self, op: Op) -> dict[str, Any]:
        return {"aborted": self.broker.sweep()}

    def op_restart(self, op: Op) -> None:
        """A restart loses nothing."""

    def op_compact(self, op: Op) -> None:
        """A compaction changes nothing that a reader of committed data could see."""

    def op_clean(self, op: Op) -> None:
        for log in self.broker.of_topic(op["topic"]):
            log.clean(self.broker.now, int(op.get("config", {}).get("min.compaction.lag.ms", 0)))

    def op_retain(self, op: Op) -> None:
        for log in self.broker.of_topic(op["topic"]):
            log.retain(self.broker.now, op.get("ms", -1), op.get("keep"))

    def op_delete_records(self, op: Op) -> dict[str, int]:
        log = self._log(op["partition"])
        log.delete_before(op["offset"])
        return {"log_start": log.start}

    # Questions --------------------------------------------------------------------------------------------------------

    def op_fetch(self, op: Op) -> list[list[Any]]:
        records = self._log(op["partition"]).fetch(op["from"], op.get("isolation", "read_committed"))
        return [list(record) for record in records[: op.get("max", 500)]]

    def op_end_offsets(self, op: Op) -> dict[str, int]:
        return {tp: log.limit(op.get("isolation", "read_committed")) for tp, log in sorted(self.broker.logs.items())}

    def op_committed(self, op: Op) -> int | None:
        stable = op.get("require_stable", True)
        return self.broker.committed(op["group"], op["partition"], require_stable=stable)

    def op_describe_producers(self, op: Op) -> list[list[Any]]:
        return self._producers(self._log(op["partition"]))

    def op_describe_txn(self, op: Op) -> dict[str, Any]:
        if op["id"] not in self.broker.transactions:
            raise RefusedError("TRANSACTIONAL_ID_NOT_FOUND")
        return self._transaction(op["id"])

    def op_list_txn(self, op: Op) -> list[str]:
        state = op.get("state")
        return sorted(name for name, txn in self.broker.transactions.items() if state in {None, txn.state})

    # Observations -----------------------------------------------------------------------------------------------------

    def observe(self) -> dict[str, Any]:
        """The observation that is compared after a step."""
        transactions = {name: self._transaction(name) for name in sorted(self.broker.transactions)}
        return {
            "transactions": transactions,
            "partitions": {tp: self._partition(log) for tp, log in sorted(self.broker.logs.items())},
            "groups": {name: self._group(name) for name in sorted(self.broker.groups) if self._group(name)},
        }

    def _partition(self, log: Log) -> dict[str, Any]:
        return {
            "log_start": log.start,
            "lso": log.last_stable_offset,
            "hw": log.end,
            "committed": [list(record) for record in log.visible("read_committed")],
            "uncommitted": [list(record) for record in log.visible("read_uncommitted")],
            "markers": [
                [batch.base, batch.marker, self._ids.number(batch.producer_id), batch.epoch]
                for batch in log.batches
                if batch.marker
            ],
            "aborted": [[self._ids.number(producer_id), *rest] for producer_id, *rest in log.aborted],
            "producers": self._producers(log),
        }

    def _producers(self, log: Log) -> list[list[Any]]:
        producer_ids = {batch.producer_id for batch in log.batches if batch.producer_id >= 0}
        opened = log.open_transactions()
        rows = []
        for producer_id in producer_ids:
            window = log.window(producer_id)
            last = window[-1].last_sequence if window else -1
            rows.append([self._ids.number(producer_id), log.epoch_of(producer_id), last, opened.get(producer_id)])
        return sorted(rows, key=lambda row: row[0])

    def _transaction(self, name: str) -> dict[str, Any]:
        txn = self.broker.transactions[name]
        return {
            "state": txn.state,
            "producer_id": self._ids.number(txn.producer_id),
            "epoch": txn.epoch,
            "timeout_ms": txn.timeout_ms,
            "partitions": sorted(txn.partitions),
            "groups": sorted(txn.groups),
        }

    def _group(self, name: str) -> dict[str, Any]:
        group = self.broker.groups[name]
        return {tp: [group.committed(tp), group.unstable(tp)] for tp in group.partitions() if _shown(group, tp)}

    # Shared -----------------------------------------------------------------------------------------------------------

    def _log(self, partition: str) -> Log:
        if partition not in self.broker.logs:
            raise RefusedError("UNKNOWN_TOPIC_OR_PARTITION")
        return self.broker.logs[partition]

    def _who(self, op: Op) -> Identity:
        return Identity(self._ids.real(op["producer_id"]), op["epoch"], op.get("id"))

    def _identity(self, identity: Identity) -> dict[str, int]:
        return {"producer_id": self._ids.number(identity.producer_id), "epoch": identity.epoch}

    def _offsets(self, op: Op) -> Offsets:
        return Offsets(op["group"], op["offsets"], self._claim(op))

    def _claim(self, op: Op) -> Membership:
        claim = self._members.claim(op)
        return Membership(claim.member_id, claim.generation, claim.instance)


def _shown(group: Any, partition: str) -> bool:
    """Drops partitions of which a group has only aborted offsets."""
    return group.committed(partition) is not None or group.unstable(partition)
