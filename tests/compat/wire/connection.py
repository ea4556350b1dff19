"""A connection that keeps what it was answered."""

from __future__ import annotations

import struct
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from uuid import UUID

from kio.schema.errors import ErrorCode

from tests.compat.wire.shown import Shown
from tests.helpers.gateway_process import Client
from tests.helpers.kafka_batches import read_kafka_batch, values_batch
from txnstore.gateway.apis import Api

#: What a broker answers while something is under way: a client repeats it.
UNDER_WAY = {
    ErrorCode.concurrent_transactions,
    ErrorCode.coordinator_load_in_progress,
    ErrorCode.coordinator_not_available,
    ErrorCode.not_coordinator,
    ErrorCode.not_leader_or_follower,
    ErrorCode.leader_not_available,
    ErrorCode.not_enough_replicas,
}
Row = tuple[str, Any]


class Wire:
    """Sends requests to one address, and collects the responses: a label, and the fields of the response.

    ``prefix`` begins all names of topics, groups and transactional ids, for a server that has seen other scenarios.
    """

    def __init__(self, host: str, port: int, prefix: str = "") -> None:
        self._address = host, port
        self._client = Client(host, port)
        self._shown = Shown(prefix)
        self._prefix = prefix
        self.rows: list[Row] = []
        self.topic_ids: dict[str, UUID] = {}

    def close(self) -> None:
        """Close the connection."""
        self._client.socket.close()

    @contextmanager
    def other(self) -> Iterator[Client]:
        """Another connection."""
        with Client(*self._address) as client:
            yield client

    def ask(self, api: Api, version: int, fields: Mapping[str, Any]) -> Any:
        """The response to a request, which is repeated while a client would repeat it; it is not collected."""
        for _ in range(200):
            answer = self._client.ask(api, version, prefixed(fields, self._prefix))
            if not UNDER_WAY & set(codes(answer)):
                return answer
            self.pause()
        return answer

    def pause(self) -> None:
        """A moment, in which a broker completes what it has answered."""
        time.sleep(0.05)

    def show(self, label: str, api: Api, version: int, fields: Mapping[str, Any]) -> Any:
        """Send a request and collect the response, or that the connection was closed, or that there was none."""
        label = f"{label}, {api.name} {version}"
        assert label not in dict(self.rows), label
        try:
            answer = self.ask(api, version, fields)
        except (EOFError, ConnectionError, TimeoutError) as error:
            self.rows.append((label, "no answer" if isinstance(error, TimeoutError) else "closed"))
            self._client.socket.close()
            self._client = Client(*self._address)
            return None
        self.rows.append((label, self._shown.value(answer)))
        return answer

    def note(self, label: str, value: Any) -> None:
        """Collect a value."""
        self.rows.append((label, self._shown.value(value)))

    # What scenarios begin with ----------------------------------------------------------------------------------------

    def topic(self, name: str, partitions: int = 1, policy: str | None = None) -> str:
        """Create a topic; ``policy`` is its ``cleanup.policy``."""
        settings = [{"name": "cleanup.policy", "value": policy}] if policy is not None else []
        wanted = {"name": name, "num_partitions": partitions, "replication_factor": 1, "configs": settings}
        (created,) = self.ask(Api.CREATE_TOPICS, 7, {"topics": [wanted], "timeout": 30_000}).topics
        assert created.error_code is ErrorCode.none, created
        self.topic_ids[name] = created.topic_id
        for number in range(partitions):  # A broker leads it a little later.
            for _ in range(100):
                if self.end(name, number) >= 0:
                    break
                self.pause()
        return name

    def end(self, topic: str, partition: int = 0, isolation: int = 0) -> int:
        """The end of a partition; negative if it is not led yet."""
        asked = {"topics": [{"name": topic, "partitions": [{"partition_index": partition, "timestamp": -1}]}]}
        fields = prefixed({"replica_id": -1, "isolation_level": isolation, **asked}, self._prefix)
        answer = self._client.ask(Api.LIST_OFFSETS, 5, fields)
        found = answer.topics[0].partitions[0]
        return int(found.offset) if found.error_code is ErrorCode.none else -1

    def producer(self, transactional_id: str | None = None, timeout_ms: int = 60_000) -> tuple[int, int]:
        """A new producer id and epoch."""
        fields = {"transactional_id": transactional_id, "transaction_timeout": timeout_ms, **NO_PRODUCER}
        answer = self.ask(Api.INIT_PRODUCER_ID, 5, fields)
        assert answer.error_code is ErrorCode.none, answer
        return answer.producer_id, answer.producer_epoch

    def produce(self, topic: str, batch: bytes, transactional_id: str | None = None, partition: int = 0) -> Any:
        """Append a batch; it must be taken."""
        answer = self.ask(Api.PRODUCE, 12, produced(topic, batch, transactional_id, partition=partition))
        part = answer.responses[0].partition_responses[0]
        assert part.error_code is ErrorCode.none, part
        return part

    def finish(self, transactional_id: str, who: tuple[int, int], *, commit: bool = True) -> tuple[int, int]:
        """End a transaction (v2), and wait until it has ended everywhere; the next identity."""
        answer = self.ask(Api.END_TXN, 5, ended(transactional_id, who, commit=commit))
        assert answer.error_code is ErrorCode.none, answer
        self.settled(transactional_id)
        return answer.producer_id, answer.producer_epoch

    def settled(self, transactional_id: str) -> None:
        """Wait until no end of a transaction is under way."""
        for _ in range(200):
            everything: dict[str, Any] = {"state_filters": [], "producer_id_filters": []}
            listed = self._client.ask(Api.LIST_TRANSACTIONS, 0, everything).transaction_states
            states = {each.transactional_id: each.transaction_state for each in listed}
            if not states.get(self._prefix + transactional_id, "Empty").startswith("Prepare"):
                return
            self.pause()

    def described(self, label: str, *transactional_ids: str) -> list[dict[str, Any]]:
        """Collect a response of DescribeTransactions, which kio does not read: a time may be -1."""
        fields = prefixed({"transactional_ids": transactional_ids}, self._prefix)
        self._client.begin(Api.DESCRIBE_TRANSACTIONS, 0, fields)
        rows = descriptions(self._client.receive())
        for row in rows:
            refused = row["error_code"] != "none"
            shown = (
                {"error_code": row["error_code"]}
                if refused
                else {**row, "producer_id": self._shown.value(row["producer_id"], "producer_id")}
            )
            name = row["transactional_id"].removeprefix(self._prefix)
            self.rows.append((f"{label}, {name!r}, DESCRIBE_TRANSACTIONS 0", self._shown.value(shown)))
        return rows


def descriptions(data: bytes) -> list[dict[str, Any]]:
    """The transactions in a response of DescribeTransactions: its header, the throttle time, and a compact array."""
    place = 9

    def number(kind: str) -> int:
        nonlocal place
        (value,) = struct.unpack_from(f">{kind}", data, place)
        place += struct.calcsize(f">{kind}")
        return int(value)

    def size() -> int:
        return number("B") - 1  # None here has more than 126 of anything.

    def text() -> str:
        nonlocal place
        length = size()
        place += length
        return data[place - length : place].decode()

    rows = []
    for _ in range(size()):
        row: dict[str, Any] = {"error_code": ErrorCode(number("h")).name, "transactional_id": text(), "state": text()}
        row |= {"timeout_ms": number("i"), "began": number("q") >= 0}
        row |= {"producer_id": number("q"), "producer_epoch": number("h"), "partitions": []}
        for _ in range(size()):
            name = text()
            row["partitions"] += sorted(f"{name}-{number('i')}" for _ in range(size()))
            number("B")
        number("B")
        rows.append(row)
    return rows


#: The fields with names of topics, groups or transactional ids, in requests.
_NAMES = {
    "name", "topic", "group_id", "groups", "groups_names", "group_ids", "key", "coordinator_keys", "transactional_id",
    "v3_and_below_transactional_id", "transactional_ids", "subscribed_topic_names",
}  # fmt: skip


def prefixed(value: Any, prefix: str, name: str = "") -> Any:
    """The fields of a request with the prefix before the names in it; an empty name stays."""
    if isinstance(value, Mapping):
        return {key: prefixed(item, prefix, key) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [prefixed(item, prefix, name) for item in value]
    is_setting = value in {"cleanup.policy", "range"}
    return prefix + value if name in _NAMES and isinstance(value, str) and value and not is_setting else value


NO_PRODUCER = {"producer_id": -1, "producer_epoch": -1}


def codes(answer: Any) -> list[ErrorCode]:
    """All error codes in a response."""
    found: list[ErrorCode] = []
    for name in getattr(answer, "__dataclass_fields__", ()):
        value = getattr(answer, name)
        if isinstance(value, ErrorCode):
            found.append(value)
        elif isinstance(value, tuple):
            found += [code for item in value for code in codes(item)]
    return found


def batch(*values: bytes, who: tuple[int, int] = (-1, -1), sequence: int = -1, transactional: bool = False) -> bytes:
    """A batch of records with these values."""
    return values_batch(values, producer=(*who, sequence), transactional=transactional)


def produced(
    topic: Any, records: bytes | None, transactional_id: str | None = None, *, partition: int = 0, acks: int = -1
) -> dict[str, Any]:
    """The fields of a Produce request of one batch, for a topic by name or by id."""
    named = {"topic_id": topic} if isinstance(topic, UUID) else {"name": topic}
    parts = [{"index": partition, "records": records}]
    data = [{**named, "partition_data": parts}]
    return {"transactional_id": transactional_id, "acks": acks, "timeout": 30_000, "topic_data": data}


def ended(transactional_id: str, who: tuple[int, int], *, commit: bool = True) -> dict[str, Any]:
    """The fields of EndTxn."""
    return {
        "transactional_id": transactional_id,
        "producer_id": who[0],
        "producer_epoch": who[1],
        "committed": commit,
    }


def values(records: bytes | None) -> list[list[Any]]:
    """The offsets and values of the records of a response, without control batches."""
    found: list[list[Any]] = []
    data = bytes(records or b"")
    while len(data) >= 61 and len(data) >= 12 + int.from_bytes(data[8:12], "big"):
        size = 12 + int.from_bytes(data[8:12], "big")
        if not data[22] & 0x20:
            found += [[row[0], (row[3] or b"").decode()] for row in read_kafka_batch(data[:size])]
        data = data[size:]
    return found
