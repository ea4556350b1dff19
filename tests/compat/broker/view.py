"""Observes a broker after a step, through Kafka's consumer and administration, and from its files."""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any

from tests.compat.broker.cluster import again
from tests.compat.broker.requests import topic_partition
from tests.compat.broker.running import RunningBroker
from tests.harness.differential.names import ProducerIds

#: An entry of the index of aborted transactions: version, producer id, first and last offset, last stable offset.
ABORTED = struct.Struct(">hqqqq")
#: The header of a batch: first offset, length, leader's epoch, magic, CRC, attributes, last offset delta, first and
#: last timestamp, producer id, its epoch, first sequence, number of records.
BATCH = struct.Struct(">qiibIhiqqqhii")
#: The bytes of a batch that its length does not count.
OVERHEAD = 12
#: The attribute of a batch that holds a marker.
CONTROL = 0x20


class BrokerView:
    """Observations of a broker: what :class:`~tests.harness.differential.StoreDriver` shows of a store."""

    def __init__(self, running: RunningBroker, ids: ProducerIds, suffix: str) -> None:
        self._machine = running.machine
        self._cluster = running.cluster
        self._requests = running.requests
        self._ids = ids
        self._suffix = suffix
        self._admin_api: Any = running.machine.kafka.clients.admin
        self.admin = running.admin
        self._readers = running.readers
        self.partitions: list[str] = []
        self.groups: set[str] = set()

    def create_topic(self, name: str, count: int, config: Mapping[str, str] | None = None) -> None:
        """Create a topic, and wait until the broker knows it."""
        from py4j.protocol import Py4JJavaError

        topic = self._admin_api.NewTopic(name, count, 1)
        if config:
            topic.configs(self._machine.properties(config))
        self.admin.createTopics([topic]).all().get()
        self.partitions = sorted([*self.partitions, *(f"{name}-{number}" for number in range(count))])
        for _ in again(f"the broker should know topic {name!r}"):
            with suppress(Py4JJavaError):
                self.offsets("earliest")
                return

    def delete_topic(self, name: str) -> None:
        """Delete a topic, and wait until the broker does not know it."""
        self.admin.deleteTopics([name]).all().get()
        self.partitions = [partition for partition in self.partitions if topic_partition(partition)[0] != name]
        for _ in again(f"the broker should forget topic {name!r}"):
            if name not in set(self.admin.listTopics().names().get()):
                return

    def delete_topics(self) -> None:
        """Delete all topics."""
        for name in {topic_partition(partition)[0] for partition in self.partitions}:
            self.delete_topic(name)

    def observe(self) -> dict[str, Any]:
        """The observation that is compared after a step."""
        self.wait_until_quiet()
        starts = self.offsets("earliest")
        stable, ends = self.end_offsets("read_committed"), self.end_offsets("read_uncommitted")
        shown = {}
        for name in self.partitions:
            shown[name] = {
                "log_start": starts[name],
                "lso": stable[name],
                "hw": ends[name],
                "committed": self._records(name, starts[name], stable[name], "read_committed"),
                "uncommitted": self._records(name, starts[name], ends[name], "read_uncommitted"),
                "markers": self._markers(name),
                "aborted": self._aborted(name),
                "producers": self.producers(name),
            }
        return {
            "transactions": {name: self.transaction(name) for name in self.transactional_ids()},
            "partitions": shown,
            "groups": {name: rows for name in sorted(self.groups) if (rows := self._group(name))},
        }

    def wait_until_quiet(self) -> None:
        """Wait until no end of a transaction is in progress (DIF-08)."""
        for _ in again("all transactions should be complete"):
            if not any(self._state(name).startswith("PREPARE") for name in self.transactional_ids()):
                return

    # Transactions -----------------------------------------------------------------------------------------------------

    def transactional_ids(self, state: str | None = None) -> list[str]:
        """All transactional ids, or those in a state."""
        listed = sorted(str(listing.transactionalId()) for listing in self.admin.listTransactions().all().get())
        mine = [name for name in listed if name.endswith(self._suffix)]
        return [name for name in mine if state is None or self._state(name) == state]

    def describe(self, name: str) -> Any:
        """The coordinator's description of a transactional id."""
        return self.admin.describeTransactions([name]).description(name).get()

    def _state(self, name: str) -> str:
        return _upper(self.describe(name).state().toString())

    def transaction(self, name: str) -> dict[str, Any]:
        """The columns of a trace; Kafka does not describe the groups."""
        description = self.describe(name)
        partitions = [f"{tp.topic()}-{tp.partition()}" for tp in description.topicPartitions()]
        return {
            "state": _upper(description.state().toString()),
            "producer_id": self._ids.number(description.producerId()),
            "epoch": description.producerEpoch(),
            "timeout_ms": description.transactionTimeoutMs(),
            "partitions": sorted(tp for tp in partitions if not tp.startswith("__")),
        }

    # Partitions -------------------------------------------------------------------------------------------------------

    def offsets(self, which: str, isolation: str = "read_uncommitted") -> dict[str, int]:
        """Of each partition the first offset (``earliest``), or the end that an isolation level sees (``latest``)."""
        spec = getattr(self._admin_api.OffsetSpec, which)
        tps = {name: self._tp(name) for name in self.partitions}
        query = self._machine.java.util.HashMap()
        for tp in tps.values():
            query.put(tp, spec())
        level = getattr(self._machine.kafka.common.IsolationLevel, isolation.upper())
        answer = self.admin.listOffsets(query, self._admin_api.ListOffsetsOptions(level))
        return {name: int(answer.partitionResult(tp).get().offset()) for name, tp in tps.items()}

    def end_offsets(self, isolation: str) -> dict[str, int]:
        """The end of each partition that an isolation level sees."""
        return self.offsets("latest", isolation)

    def _tp(self, name: str) -> Any:
        return self._machine.kafka.common.TopicPartition(*topic_partition(name))

    def _records(self, name: str, start: int, end: int, isolation: str) -> list[list[Any]]:
        return self.fetch(name, start, end, isolation) if end > start else []

    def fetch(self, name: str, start: int, end: int, isolation: str) -> list[list[Any]]:
        """The records from an offset up to another."""
        if end <= start <= self.end_offsets("read_uncommitted")[name]:
            return []
        if start < end:
            end = max(start, self._end_of_batches(name, end))
        consumer, tp = self._readers[isolation], self._tp(name)
        consumer.assign([tp])
        consumer.seek(tp, start)
        rows: list[list[Any]] = []
        pause = self._machine.java.time.Duration.ofMillis(200)
        for _ in again(f"{isolation} should read {name} up to {end}"):
            rows += [[record.offset(), record.key(), record.value()] for record in consumer.poll(pause).iterator()]
            # Beyond the end, a poll fails as soon as the broker has answered.
            if start <= end <= consumer.position(tp):
                break
        return rows

    def _end_of_batches(self, name: str, limit: int) -> int:
        """Where the batches below an offset end. A consumer comes no further, if a clean has removed those after it."""
        rows = (row for path in self._cluster.log_files(name, ".log") for _, row in batches(path.read_bytes()))
        return max((offset + last + 1 for offset, _, _, _, _, _, last, *_ in rows if offset < limit), default=0)

    def producers(self, name: str) -> list[list[Any]]:
        """Producer id, epoch, last sequence, first offset of the open transaction."""
        tp = self._tp(name)
        rows = []
        for producer in self.admin.describeProducers([tp]).partitionResult(tp).get().activeProducers():
            opened = producer.currentTransactionStartOffset()
            first = opened.getAsLong() if opened.isPresent() else None
            rows.append(
                [self._ids.number(producer.producerId()), producer.producerEpoch(), producer.lastSequence(), first]
            )
        return sorted(rows, key=lambda row: row[0])

    def _markers(self, name: str) -> list[list[Any]]:
        data = b"".join(path.read_bytes() for path in self._cluster.log_files(name, ".log"))
        return [
            [offset, kind, self._ids.number(producer_id), epoch] for offset, kind, producer_id, epoch in markers(data)
        ]

    def _aborted(self, name: str) -> list[list[int]]:
        data = b"".join(path.read_bytes() for path in self._cluster.log_files(name, ".txnindex"))
        return [[self._ids.number(row[1]), *row[2:]] for row in ABORTED.iter_unpack(data)]

    # Groups -----------------------------------------------------------------------------------------------------------

    def _group(self, name: str) -> dict[str, list[Any]]:
        if not self.partitions:
            return {}
        offsets = self._requests.committed(name, self.partitions, require_stable=False)
        stable = self._requests.committed(name, self.partitions, require_stable=True)
        rows = {tp: [offset, isinstance(stable[tp], str)] for tp, offset in offsets.items()}
        return {tp: row for tp, row in sorted(rows.items()) if row != [None, False]}


def markers(log: bytes) -> Iterator[tuple[int, str, int, int]]:
    """The control markers in a log file: offset, ``COMMIT`` or ``ABORT``, producer id, epoch.

    Kafka's format, version 2: a batch of control has one record, whose key is two numbers: its version and its kind.
    The cleaner may leave it without its record.
    """
    for place, row in batches(log):
        offset, _, _, _, _, attributes, _, _, _, producer_id, epoch, _, records = row
        if attributes & CONTROL and records:
            _, kind = struct.unpack_from(">hh", log, _key_of_record(log, place + BATCH.size))
            yield offset, ("ABORT", "COMMIT")[kind], producer_id, epoch


def batches(log: bytes) -> Iterator[tuple[int, tuple[int, ...]]]:
    """The batches in a log file: where each begins, and the fields of its header; without one that is not complete."""
    place = 0
    while place + OVERHEAD <= len(log):
        [length] = struct.unpack_from(">i", log, place + 8)
        if place + OVERHEAD + length > len(log):
            return
        yield place, BATCH.unpack_from(log, place)
        place += OVERHEAD + length


def _key_of_record(log: bytes, place: int) -> int:
    """Where the key of a record begins: after its length, attributes, timestamp and offset deltas, the key's length.

    All but the attributes are numbers of variable length, which end with a byte below 128.
    """
    place = _after_number(log, place) + 1
    for _ in range(3):
        place = _after_number(log, place)
    return place


def _after_number(log: bytes, place: int) -> int:
    while log[place] & 0x80:
        place += 1
    return place + 1


def _upper(name: str) -> str:
    """``CompleteCommit`` as ``COMPLETE_COMMIT``."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).upper()
