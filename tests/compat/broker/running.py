"""A running broker with the clients that observe it, shared by the histories that are run one after another."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self

from tests.compat.broker.cluster import Cluster, VirtualMachine, again
from tests.compat.broker.requests import VERSIONS, BrokerError, Requests

#: Transient errors.
UNDER_WAY = {
    "CONCURRENT_TRANSACTIONS",
    "COORDINATOR_LOAD_IN_PROGRESS",
    "COORDINATOR_NOT_AVAILABLE",
    "NOT_ENOUGH_REPLICAS",
    "NOT_COORDINATOR",
    "NOT_LEADER_OR_FOLLOWER",  # a broker that has just started leads its partitions a little later
}
TEXT = "org.apache.kafka.common.serialization.StringDeserializer"


class RunningBroker:
    """A broker, the Java virtual machine of its clients, and the clients that every observation needs.

    ``transactions`` is the version of transactions that broker and clients use (1: before KIP-890).
    """

    def __init__(
        self,
        jars: Path,
        settings: Mapping[str, str] | None = None,
        users: Sequence[str] = (),
        transactions: int = 2,
    ) -> None:
        self.histories = 0
        self.transactions = transactions
        with ExitStack() as started:
            self.cluster = self._start(jars, settings, users)
            started.callback(self.cluster.close)
            self.machine = VirtualMachine(jars)
            started.callback(self.machine.close)
            self.requests = Requests(self.machine, self.cluster, VERSIONS[transactions])
            address = self.machine.properties({"bootstrap.servers": self.cluster.address})
            self.admin: Any = self.machine.kafka.clients.admin.Admin.create(address)
            self.readers = {name: self.consumer(isolation=name) for name in ("read_committed", "read_uncommitted")}
            retried(self.requests.find_coordinators)
            self._started = started.pop_all()

    def _start(self, jars: Path, settings: Mapping[str, str] | None, users: Sequence[str]) -> Any:
        """Start the broker."""
        return Cluster(jars, settings, users, transactions=self.transactions)

    def consumer(self, isolation: str, settings: Mapping[str, str] | None = None) -> Any:
        """A new ``KafkaConsumer`` of texts; by default without group and reset policy."""
        values = {
            "bootstrap.servers": self.cluster.address,
            "isolation.level": isolation,
            "key.deserializer": TEXT,
            "value.deserializer": TEXT,
            "enable.auto.commit": "false",
            "auto.offset.reset": "none",
            "fetch.max.wait.ms": "20",
            **(settings or {}),
        }
        return self.machine.kafka.clients.consumer.KafkaConsumer(self.machine.properties(values))

    def close(self) -> None:
        """Stop the broker and its clients."""
        self._started.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


class Naming:
    """The names of a history in a broker that has seen others: topics, groups and transactional ids get a suffix."""

    def __init__(self, number: int) -> None:
        self.suffix = f".h{number}"

    def real(self, op: Mapping[str, Any]) -> dict[str, Any]:
        """An operation with the names that the broker knows."""
        return {key: self._real(key, value) for key, value in op.items()}

    def _real(self, key: str, value: Any) -> Any:
        if value is None or (key, type(value)) == ("partitions", int):
            return value
        if key in {"topic", "group", "id"}:
            return f"{value}{self.suffix}"
        if key == "partition":
            return self._partition(value)
        if key == "partitions":
            return [self._partition(name) for name in value]
        if key == "topics":
            return [f"{name}{self.suffix}" for name in value]
        if key in {"offsets", "times"}:
            return {self._partition(name): item for name, item in value.items()}
        return value

    def _partition(self, name: str) -> str:
        topic, _, number = name.rpartition("-")
        return f"{topic}{self.suffix}-{number}"

    def shown(self, value: Any) -> Any:
        """An answer or an observation with the names of the history."""
        if isinstance(value, Mapping):
            return {self.shown(key): self.shown(item) for key, item in value.items()}
        if isinstance(value, list):
            return [self.shown(item) for item in value]
        return value.replace(self.suffix, "") if isinstance(value, str) else value


def retried(call: Callable[[], Any]) -> Any:
    """The answer of a call that is repeated while an end is in progress or a coordinator starts, as clients do."""
    for _ in again("the broker should be ready"):
        try:
            return call()
        except BrokerError as error:
            if error.name not in UNDER_WAY:
                raise
    return None
