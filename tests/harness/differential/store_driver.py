"""Runs operations against a real store in memory: real producers, consumers, scans; raw commands; a manual clock."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from tests.harness.differential.consumers import StoreConsumer, StoreConsumers
from tests.harness.differential.members import Claim, Members
from tests.harness.differential.names import ProducerIds
from tests.harness.differential.store_support import (
    KAFKA_NAMES,
    Results,
    TransactionalIdNotFound,
    as_bytes,
    as_text,
    bad_offsets,
    in_threads,
    offsets_of,
    partition_of,
    write_epoch,
)
from tests.harness.differential.store_view import StoreView
from tests.harness.executors import InlineExecutor, never
from tests.harness.traces import Op
from tests.helpers.connections import stored_topic
from tests.helpers.keys import FixedRuntime
from txnstore.catalog.writing import topic_writer
from txnstore.consumer import Consumer
from txnstore.core.groups.commands import CommitOffsets, Heartbeat, JoinGroup, LeaveGroup
from txnstore.core.groups.membership import MAX_SESSION_TIMEOUT_MS
from txnstore.core.groups.model import GroupMetadata, OffsetAndMetadata
from txnstore.core.groups.offsets import committed
from txnstore.core.log.commands import Append
from txnstore.core.log.model import NewBatch
from txnstore.core.model import Outcome, ProducerIdentity, TopicPartition
from txnstore.core.routing import chain_of_transactional_id
from txnstore.core.transactions.commands import EndTxn, InitProducer
from txnstore.errors import GroupError, TxnStoreError
from txnstore.producer import Producer
from txnstore.producer.futures import RecordFuture
from txnstore.producer.records import check_rows
from txnstore.producer.upload import upload
from txnstore.runtime import Runtime
from txnstore.segment.schema import records_to_table
from txnstore.storage.memory import MemoryStore
from txnstore.store import Store, create_on, open_on
from txnstore.testing.clock import ManualClock


class StoreDriver(StoreConsumers):
    """A store of ``chains`` chains with its producers. ``restart`` opens it again; old producers keep the old one.

    ``thorough``: read all records after each operation, and not only at a restart, a compaction and the end.
    """

    supports = frozenset({"clean", "compact", "delete_records", "members"})

    def __init__(self, chains: int = 1, *, thorough: bool = True) -> None:
        self.clock = ManualClock()
        self.producers: dict[str, Producer] = {}
        self.consumers: dict[str, StoreConsumer] = {}
        self._refused: dict[str, GroupError] = {}
        self._futures: dict[str, list[tuple[str, RecordFuture]]] = {}
        self._objects = MemoryStore(clock=self.clock)
        self._opened = 0
        self._ids = ProducerIds()
        self._members = Members()
        self._view = StoreView(self._objects, chains, self._ids, thorough=thorough)
        self.store: Store = create_on(self._objects, chains, runtime=self._runtime())
        self._stores = [self.store]

    def _runtime(self) -> Runtime:
        """No threads and no pauses: nothing is in progress after an operation (DIF-08)."""
        self._opened += 1
        rng = random.Random(f"differential/{self._opened}")
        return FixedRuntime(
            self.clock, lambda _: None, rng, executor=InlineExecutor, background=InlineExecutor, spawn=never
        )

    def apply(self, op: Op) -> dict[str, Any]:
        """The answer to an operation: ``{"answer": ...}`` or ``{"error": Kafka's name}``."""
        try:
            answer = getattr(self, f"op_{op['op']}")(op)
        except TxnStoreError as error:
            name = type(error).__name__
            return {"error": KAFKA_NAMES.get(name, name)}
        return {"answer": answer}

    def close(self) -> None:
        """Close every store that was opened."""
        for store in self._stores:
            store.close()

    # The application --------------------------------------------------------------------------------------------------

    def op_init(self, op: Op) -> dict[str, int]:
        timeout = op.get("timeout_ms", 60_000) / 1000
        producer = self.store.producer(op.get("id"), timeout, linger=None)
        self.producers[op["producer"]] = producer
        self._futures[op["producer"]] = []
        return self._identity(producer)

    def op_begin(self, op: Op) -> None:
        self.producers[op["producer"]].begin_transaction()

    def op_send(self, op: Op) -> None:
        tp = partition_of(op["partition"])
        future = self.producers[op["producer"]].send(
            tp.topic,
            as_bytes(op.get("value")),
            as_bytes(op.get("key")),
            tp.partition,
            headers=[(name, as_bytes(value)) for name, value in op.get("headers", [])],
            timestamp=op.get("timestamp", self.clock() - op.get("age_ms", 0)),
        )
        self._futures[op["producer"]].append((op["partition"], future))

    def op_send_offsets(self, op: Op) -> None:
        offsets = {partition_of(tp): offset for tp, offset in op["offsets"].items()}
        group: Any = op["group"]
        claim = self._members.claim(op)
        if claim != Claim():
            group = GroupMetadata(op["group"], claim.generation, claim.member_id, claim.instance)
        try:
            self.producers[op["producer"]].send_offsets(offsets, group)
        except GroupError as refused:
            self._refused[op["producer"]] = refused

    def _raise(self, op: Op) -> None:
        """Raise what a membership was refused for: a trace has it with the next flush or commit."""
        refused = self._refused.pop(op["producer"], None)
        if refused is not None:
            raise refused

    def op_send_bad_offsets(self, op: Op) -> None:
        topic, partition, metadata, group = bad_offsets(op["what"])
        offsets = {TopicPartition(topic, partition): OffsetAndMetadata(1, metadata)}
        self.producers[op["producer"]].send_offsets(offsets, group)

    def op_flush(self, op: Op) -> dict[str, Any]:
        self._raise(op)
        with self._results(op) as results:
            self.producers[op["producer"]].flush()
            return {"offsets": results.offsets()}

    def op_commit(self, op: Op) -> dict[str, Any]:
        producer = self.producers[op["producer"]]
        self._raise(op)
        with self._results(op) as results:
            producer.commit_transaction()
            return {"offsets": results.offsets(), **self._identity(producer)}

    def op_abort(self, op: Op) -> dict[str, int]:
        producer = self.producers[op["producer"]]
        self._refused.pop(op["producer"], None)
        with self._results(op):
            producer.abort_transaction()
        return self._identity(producer)

    def op_close(self, op: Op) -> None:
        with self._results(op):
            self.producers[op["producer"]].close()

    def op_kill(self, op: Op) -> None:
        del self.producers[op["producer"]]

    def op_commit_offsets(self, op: Op) -> None:
        claim = self._members.claim(op)
        if claim != Claim():
            self.store._connection.submit(CommitOffsets(offsets_of(op, claim)))
            return
        with Consumer(self.store._connection, group=op["group"]) as consumer:
            consumer.commit({partition_of(tp): offset for tp, offset in op["offsets"].items()})

    def op_join(self, op: Op) -> dict[str, int]:
        group, name, instance = op["group"], op["member"], op.get("instance")
        counts = {topic.name: topic.partitions for topic in self.store._connection.view().sorted_topics()}
        topics = tuple((topic, counts.get(topic, 0)) for topic in op.get("topics", counts))
        membership = self.store._connection.submit(
            JoinGroup(group, name, topics, session_timeout_ms=MAX_SESSION_TIMEOUT_MS, instance_id=instance)
        )
        self._members.update(group, name, Claim(name, membership.generation, instance))
        self._settle(group)
        return {"generation": self._members.claim_of(group, name).generation}

    def op_leave(self, op: Op) -> None:
        claim = self._members.claim(op)
        self.store._connection.submit(LeaveGroup(op["group"], claim.member_id, claim.instance))
        self._settle(op["group"])

    def op_heartbeat(self, op: Op) -> None:
        claim, group = self._members.claim(op), self.store._connection.view().groups.get(op["group"])
        member = group.members.get(claim.member_id) if group is not None else None
        owned = member.assigned if member is not None else ()
        self.store._connection.submit(Heartbeat(op["group"], claim.member_id, owned, instance_id=claim.instance))

    def _settle(self, group: str) -> None:
        """Heartbeats of all members until each has the current generation: partitions move in the first round."""
        for _ in range(2):
            for name, member in sorted(self.store._connection.view().groups[group].members.items()):
                beat = Heartbeat(group, name, member.assigned, instance_id=member.instance_id)
                membership = self.store._connection.submit(beat)
                self._members.update(group, name, Claim(name, membership.generation, member.instance_id))

    def op_at_once(self, op: Op) -> list[dict[str, Any]]:
        return in_threads(self.apply, op["ops"])

    def _results(self, op: Op) -> Results:
        return Results(self._futures[op["producer"]])

    # Raw requests -----------------------------------------------------------------------------------------------------

    def op_raw_init(self, op: Op) -> dict[str, int]:
        expected = (self._ids.real(op["producer_id"]), op["epoch"]) if "producer_id" in op else None
        return self._identity(
            self.store._connection.submit(InitProducer(op.get("id"), op.get("timeout_ms", 60_000), expected))
        )

    def op_raw_append(self, op: Op) -> dict[str, Any]:
        tp, time = partition_of(op["partition"]), self.clock() - op.get("age_ms", 0)
        batch = self._uploaded(tp, op["sequence"], op["records"], time)
        [appended] = self.store._connection.submit(Append(self._who(op), (batch,)))
        return {"base_offset": appended.base_offset, "duplicate": appended.duplicate}

    def _uploaded(self, tp: TopicPartition, sequence: int, records: list[list[str]], time: int) -> NewBatch:
        """A batch of records."""
        table = records_to_table([(as_bytes(key), as_bytes(value), None, time) for key, value in records], time)
        writer = topic_writer(stored_topic(self.store, tp.topic))
        check_rows(writer, table)
        batch = upload(self.store._connection.objects, self.store._connection.runtime, writer, tp, table)
        return replace(batch, base_sequence=sequence)

    def op_raw_add_partitions(self, op: Op) -> None:
        """A request only to the coordinator; its chain knows the partitions of other chains only by name."""
        chain = self.store._connection.chains[chain_of_transactional_id(op["id"], len(self.store._connection.chains))]
        chain.submit(Append(self._who(op), partitions=tuple(partition_of(tp) for tp in op["partitions"])))

    def op_raw_txn_offset_commit(self, op: Op) -> None:
        self.store._connection.submit(Append(self._who(op), offsets=(offsets_of(op, self._members.claim(op)),)))

    def op_raw_end_txn(self, op: Op) -> dict[str, int]:
        outcome = Outcome.COMMIT if op["commit"] else Outcome.ABORT
        return self._identity(self.store._connection.submit(EndTxn(self._who(op), outcome)).producer)

    def op_fence(self, op: Op) -> None:
        self.store._connection.submit(InitProducer(op["id"]))

    def op_set_epoch(self, op: Op) -> None:
        """Writes an entry directly, with the result of many transactions."""
        write_epoch(self.store, self._objects, op["id"], op["epoch"], self.clock())

    # The environment --------------------------------------------------------------------------------------------------

    def op_create_topic(self, op: Op) -> None:
        self.store.create_topic(
            op["topic"], op.get("partitions", 1), config={"segment.format": "arrow", **op.get("config", {})}
        )

    def op_delete_topic(self, op: Op) -> None:
        self.store.delete_topic(op["topic"])
        self._view.forget_topic(op["topic"])

    def op_tick(self, op: Op) -> None:
        self.clock.advance(op["ms"])

    def op_sweep(self, op: Op) -> dict[str, Any]:
        return {"aborted": sorted(self.store.recover().aborted)}

    def op_restart(self, op: Op) -> None:
        self.store = open_on(self._objects, runtime=self._runtime())
        self._stores.append(self.store)
        self._view.forget()

    def op_compact(self, op: Op) -> None:
        self.store.compact(op["topic"])
        self._view.forget()

    def op_clean(self, op: Op) -> None:
        """A clean with settings that apply to it only; of everything that is dirty, unless it is ``due``."""
        with self._set(op["topic"], op.get("config", {})):
            self.store.compact(op["topic"], force=not op.get("due", False))
        self._view.forget()

    def op_retain(self, op: Op) -> None:
        """``keep``: as many bytes as that number of batches like the oldest one."""
        log = self.store._connection.view().partitions[TopicPartition(op["topic"], 0)]
        settings = {"retention.ms": op.get("ms", -1)}
        if "keep" in op:
            settings["retention.bytes"] = op["keep"] * next(iter(log.batches)).size
        with self._set(op["topic"], settings):
            self.store.retain(op["topic"])
        self._view.forget()

    @contextmanager
    def _set(self, topic: str, settings: Mapping[str, object]) -> Iterator[None]:
        """Change settings of a topic for a while."""
        if settings:
            self.store.alter_topic(topic, config=settings)
        yield
        if settings:
            self.store.alter_topic(topic, config=dict.fromkeys(settings))

    def op_delete_records(self, op: Op) -> dict[str, int]:
        tp = partition_of(op["partition"])
        moved = self.store.delete_records({tp: op["offset"]})
        self._view.forget()
        return {"log_start": moved[tp]}

    def look_again(self) -> dict[str, Any]:
        """An observation that reads all records."""
        self._view.forget()
        return self.observe()

    # Questions --------------------------------------------------------------------------------------------------------

    def op_fetch(self, op: Op) -> list[list[Any]]:
        isolation, tp = op.get("isolation", "read_committed"), partition_of(op["partition"])
        with Consumer(self.store._connection, isolation=isolation, auto_offset_reset="none") as consumer:
            consumer.assign(tp)
            consumer.seek(tp, op["from"])
            rows: list[list[Any]] = []
            while len(rows) < op.get("max", 500) and (records := consumer.poll(max_records=op.get("max", 500))):
                rows += [[record.offset, as_text(record.key), as_text(record.value)] for record in records]
            return rows[: op.get("max", 500)]

    def op_end_offsets(self, op: Op) -> dict[str, int]:
        view = self.store._connection.view()
        topics = [topic.name for topic in view.sorted_topics()]
        with Consumer(self.store._connection, topics, isolation=op.get("isolation", "read_committed")) as consumer:
            return {str(tp): offset for tp, offset in sorted(consumer.end_offsets().items())}

    def op_committed(self, op: Op) -> int | None:
        if op.get("require_stable", True):
            with Consumer(self.store._connection, group=op["group"]) as consumer:
                return consumer.committed(partition_of(op["partition"]))
        stored = committed(
            self.store._connection.view(), op["group"], partition_of(op["partition"]), require_stable=False
        )
        return stored.offset if stored is not None else None

    def op_describe_producers(self, op: Op) -> list[list[Any]]:
        return self._view.producers(self.store._connection.view().partitions[partition_of(op["partition"])])

    def op_describe_txn(self, op: Op) -> dict[str, Any]:
        matches = [txn for txn in self.store.transactions() if txn.transactional_id == op["id"]]
        if not matches:
            raise TransactionalIdNotFound
        return self._view.transaction(matches[0])

    def op_list_txn(self, op: Op) -> list[str]:
        return [txn.transactional_id for txn in self.store.transactions(op.get("state"))]

    def observe(self) -> dict[str, Any]:
        """The observation that is compared after a step."""
        return self._view.observe(self.store)

    # Shared -----------------------------------------------------------------------------------------------------------

    def _who(self, op: Op) -> ProducerIdentity:
        return ProducerIdentity(self._ids.real(op["producer_id"]), op["epoch"], op.get("id"))

    def _identity(self, who: Producer | ProducerIdentity) -> dict[str, int]:
        return {"producer_id": self._ids.number(who.producer_id), "epoch": who.epoch}
