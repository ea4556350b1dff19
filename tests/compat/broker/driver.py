"""Runs operations against a broker: Kafka's own producers and administration, and single requests."""

from __future__ import annotations

import time
from collections import Counter
from typing import Any

from tests.compat.broker.client import ClientProducer
from tests.compat.broker.cluster import again
from tests.compat.broker.consumers import ClientConsumer, ClientConsumers
from tests.compat.broker.groups import ClassicGroups, ConsumerGroups
from tests.compat.broker.requests import BrokerError
from tests.compat.broker.running import Naming, RunningBroker, retried
from tests.compat.broker.upkeep import Upkeep, settings_of
from tests.compat.broker.view import BrokerView
from tests.harness.differential.members import Members
from tests.harness.differential.names import ProducerIds
from tests.harness.differential.store_support import bad_offsets, in_threads
from tests.harness.traces import Op

#: Kafka's exceptions that do not come from an answer of a broker.
CLIENT_ERRORS = {
    "CommitFailedException": "COMMIT_FAILED",
    "IllegalStateException": "ILLEGAL_STATE",
    "TransactionalIdNotFoundException": "TRANSACTIONAL_ID_NOT_FOUND",
    "NoOffsetForPartitionException": "NO_OFFSET",
    "OffsetOutOfRangeException": "OFFSET_OUT_OF_RANGE",
}
#: The name of the state after an error that has no name of its own.
IN_ERROR_STATE = "IN_ERROR_STATE"
#: How the messages of a ``KafkaException`` end that has no other class.
MESSAGES = {
    "The group id is invalid.": "INVALID_GROUP_ID",
    "The metadata field of the offset request was too large.": "OFFSET_METADATA_TOO_LARGE",
    "because we are in an error state": IN_ERROR_STATE,
}
#: Not observed after these. A broker aborts expired transactions by itself while time passes: observed after the
#: sweep (DIF-10). Kafka's producer sends positions immediately: observed after the flush.
UNSEEN = {"tick", "begin", "send", "send_offsets"}
#: These end transactions; their markers are written after the answer.
ENDS = {"abort", "at_once", "close", "commit", "fence", "init", "raw_end_txn", "raw_init"}


class BrokerDriver(ClientConsumers):
    """One history in a broker: its producers, and its topics, groups and transactional ids."""

    supports = frozenset({"clean", "compact", "delete_records", "members"})

    def __init__(self, running: RunningBroker) -> None:
        self.producers: dict[str, ClientProducer] = {}
        self.consumers: dict[str, ClientConsumer] = {}
        self.running = running
        self._last: Op = {}
        self._observed: dict[str, Any] = {}
        self._ids = ProducerIds()
        self._members = Members()
        self._groups: dict[str, ClassicGroups | ConsumerGroups] = {}
        running.histories += 1
        self._names = Naming(running.histories)
        self.cluster, self.machine, self._requests = running.cluster, running.machine, running.requests
        self._protocols: dict[str, ClassicGroups | ConsumerGroups] = {
            "classic": ClassicGroups(self.machine, self._requests, self._members),
            "consumer": ConsumerGroups(self.machine, self._requests, self._members),
        }
        self._view = self._new_view(running)
        self._upkeep = Upkeep(running, self._view, self._names.suffix)

    def _new_view(self, running: RunningBroker) -> BrokerView:
        return BrokerView(running, self._ids, self._names.suffix)

    def close(self) -> None:
        """Drop the producers and delete the topics; the broker stays."""
        for producer in self.producers.values():
            producer.kill()
        for consumer in self.consumers.values():
            consumer.close()
        self._upkeep.close()
        self._view.delete_topics()

    def apply(self, op: Op) -> dict[str, Any]:
        """The answer to an operation: ``{"answer": ...}`` or ``{"error": Kafka's name}``."""
        from py4j.protocol import Py4JJavaError

        self._last, real = op, self._names.real(op)
        self._view.groups.update([real["group"]] if real.get("group") is not None else [])
        try:
            answer = retried(lambda: getattr(self, f"op_{op['op']}")(real))
        except BrokerError as error:
            return {"error": error.name}
        except Py4JJavaError as error:
            return {"error": self._name(error.java_exception)}
        return {"answer": self._names.shown(answer)}

    def observe(self) -> dict[str, Any]:
        """The observation that is compared after a step."""
        if self._last["op"] not in UNSEEN:
            self._observed = self.look_again()
        return self._observed

    def settle(self) -> None:
        """Wait until the last operation is complete, without an observation (DIF-08)."""
        if self._last["op"] in ENDS:
            retried(self._view.wait_until_quiet)

    def look_again(self) -> dict[str, Any]:
        """An observation, whatever the last operation was."""
        observation: dict[str, Any] = self._names.shown(retried(self._view.observe))
        return observation

    def _name(self, exception: Any) -> str:
        """Kafka's name of an exception: that of the first in the chain of causes that has one."""
        errors, cause, state = self.machine.kafka.common.protocol.Errors, exception, None
        while cause is not None:
            kind = str(cause.getClass().getSimpleName())
            name = CLIENT_ERRORS.get(kind) or str(errors.forException(cause).name())
            text = str(cause.getMessage())
            name = next((error_name for end, error_name in MESSAGES.items() if text.endswith(end)), name)
            if name == IN_ERROR_STATE:  # Unless it was the client itself that came to a conclusion.
                state = name
            elif name != "UNKNOWN_SERVER_ERROR" and (state is None or kind in CLIENT_ERRORS):
                return name
            cause = cause.getCause()
        return state or str(exception.toString())

    # The application --------------------------------------------------------------------------------------------------

    def op_init(self, op: Op) -> dict[str, int]:
        timeout_ms = op.get("timeout_ms", 60_000)
        producer = ClientProducer(self.machine, self.cluster, op.get("id"), timeout_ms)
        self.producers[op["producer"]] = producer
        return self._named(producer.identity)

    def op_begin(self, op: Op) -> None:
        self.producers[op["producer"]].begin()

    def op_send(self, op: Op) -> None:
        self.producers[op["producer"]].send({**op, "timestamp": self._time_of(op)})

    def op_send_offsets(self, op: Op) -> None:
        self.producers[op["producer"]].send_offsets(op["offsets"], op["group"], self._members.claim(op))

    def op_send_bad_offsets(self, op: Op) -> None:
        topic, partition, metadata, group = bad_offsets(op["what"])
        real = self._names.real({"partition": f"{topic}-{partition}"})["partition"].rpartition("-")[0]
        self.producers[op["producer"]].send_bad_offsets(real, partition, metadata, group)

    def op_flush(self, op: Op) -> dict[str, Any]:
        return {"offsets": self.producers[op["producer"]].flush()}

    def op_commit(self, op: Op) -> dict[str, Any]:
        producer = self.producers[op["producer"]]
        return {"offsets": producer.commit(), **self._named(producer.identity)}

    def op_abort(self, op: Op) -> dict[str, int]:
        producer = self.producers[op["producer"]]
        producer.abort()
        return self._named(producer.identity)

    def op_close(self, op: Op) -> None:
        self.producers[op["producer"]].close()

    def op_kill(self, op: Op) -> None:
        self.producers.pop(op["producer"]).kill()

    def op_commit_offsets(self, op: Op) -> None:
        self._requests.commit_offsets(op["group"], op["offsets"], self._members.claim(op))

    def op_join(self, op: Op) -> dict[str, int] | None:
        group, topics = op["group"], Counter(name.rpartition("-")[0] for name in self._view.partitions)
        topics = Counter({name: topics[name] for name in op.get("topics", topics)})
        self._groups[group] = self._protocols[op.get("protocol", "classic")]
        return self._groups[group].join(group, op["member"], op.get("instance"), topics)

    def op_leave(self, op: Op) -> None:
        self._groups[op["group"]].leave(op["group"], self._members.claim(op))

    def op_heartbeat(self, op: Op) -> None:
        self._groups[op["group"]].heartbeat(op["group"], self._members.claim(op))

    def op_at_once(self, op: Op) -> list[dict[str, Any]]:
        answers = in_threads(self.apply, op["ops"])
        self._last = op
        return answers

    def _named(self, identity: tuple[int, int]) -> dict[str, int]:
        return {"producer_id": self._ids.number(identity[0]), "epoch": identity[1]}

    def _time_of(self, op: Op) -> int | None:
        return timestamp_of(op)

    # Raw requests -----------------------------------------------------------------------------------------------------

    def op_raw_init(self, op: Op) -> dict[str, int]:
        expected = (self._ids.real(op["producer_id"]), op["epoch"]) if "producer_id" in op else None
        return self._named(self._requests.init(op.get("id"), op.get("timeout_ms", 60_000), expected))

    def op_raw_append(self, op: Op) -> dict[str, Any]:
        who = (op.get("id"), self._ids.real(op["producer_id"]), op["epoch"])
        return {
            "base_offset": self._requests.append(who, op["partition"], op["sequence"], op["records"], self._time_of(op))
        }

    def op_raw_add_partitions(self, op: Op) -> None:
        self._requests.add_partitions(op["id"], self._ids.real(op["producer_id"]), op["epoch"], op["partitions"])

    def op_raw_txn_offset_commit(self, op: Op) -> None:
        who = (op.get("id"), self._ids.real(op["producer_id"]), op["epoch"])
        self._requests.commit_transaction_offsets(who, op["group"], op["offsets"], self._members.claim(op))

    def op_raw_end_txn(self, op: Op) -> dict[str, int]:
        real = self._ids.real(op["producer_id"])
        return self._named(self._requests.end(op["id"], real, op["epoch"], commit=op["commit"]))

    def op_fence(self, op: Op) -> None:
        """The administrator's init also sets a timeout; 60 s are the default of a producer."""
        options = self.machine.kafka.clients.admin.FenceProducersOptions().timeoutMs(60_000)
        self._view.admin.fenceProducers([op["id"]], options).all().get()

    def op_set_epoch(self, op: Op) -> None:
        """Repeat inits up to the epoch."""
        description = self._view.describe(op["id"])
        while (missing := op["epoch"] - self._view.describe(op["id"]).producerEpoch()) > 0:
            self._requests.init(op["id"], description.transactionTimeoutMs(), None, times=missing)

    def partitions(self) -> list[str]:
        """The partitions of the existing topics."""
        return self._view.partitions

    # The environment --------------------------------------------------------------------------------------------------

    def op_create_topic(self, op: Op) -> None:
        self._view.create_topic(op["topic"], op.get("partitions", 1), settings_of(op.get("config", {})))

    def op_delete_topic(self, op: Op) -> None:
        self._view.delete_topic(op["topic"])

    def op_tick(self, op: Op) -> None:
        time.sleep(op["ms"] / 1000)

    def op_sweep(self, op: Op) -> None:
        """Wait until the broker aborts the expired transactions by itself."""
        for _ in again("the broker should abort what has timed out"):
            if not any(self._timed_out(name) for name in self._view.transactional_ids("ONGOING")):
                return

    def _timed_out(self, name: str) -> bool:
        description = self._view.describe(name)
        started = description.transactionStartTimeMs()
        return bool(
            started.isPresent() and started.getAsLong() + description.transactionTimeoutMs() < time.time() * 1000
        )

    def op_restart(self, op: Op) -> None:
        self.cluster.restart()

    def op_compact(self, op: Op) -> None:
        """Does nothing: Kafka's cleaner differs, and a compaction changes nothing that a reader sees."""

    def op_clean(self, op: Op) -> None:
        self._upkeep.clean(op["topic"], op.get("config", {}), due=op.get("due", False))

    def op_retain(self, op: Op) -> None:
        self._upkeep.retain(op["topic"], op.get("ms", -1), op.get("keep"))

    def op_delete_records(self, op: Op) -> dict[str, int]:
        return {"log_start": self._requests.delete_records(op["partition"], op["offset"])}

    # Questions --------------------------------------------------------------------------------------------------------

    def op_fetch(self, op: Op) -> list[list[Any]]:
        isolation = op.get("isolation", "read_committed")
        end = self._view.end_offsets(isolation)[op["partition"]]
        return self._view.fetch(op["partition"], op["from"], end, isolation)[: op.get("max", 500)]

    def op_end_offsets(self, op: Op) -> dict[str, int]:
        return self._view.end_offsets(op.get("isolation", "read_committed"))

    def op_committed(self, op: Op) -> int | None:
        tp = op["partition"]
        stored = self._requests.committed(op["group"], [tp], require_stable=op.get("require_stable", True))[tp]
        if isinstance(stored, str):
            raise BrokerError(stored)
        return stored

    def op_describe_producers(self, op: Op) -> list[list[Any]]:
        return self._view.producers(op["partition"])

    def op_describe_txn(self, op: Op) -> dict[str, Any]:
        return self._view.transaction(op["id"])

    def op_list_txn(self, op: Op) -> list[str]:
        return self._view.transactional_ids(op.get("state"))


def timestamp_of(op: Op) -> int | None:
    """The timestamp of the records of an operation: given, or by their age; None for that of the request."""
    return int(time.time() * 1000) - op["age_ms"] if "age_ms" in op else op.get("timestamp")
