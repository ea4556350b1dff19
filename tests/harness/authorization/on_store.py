"""Runs the operations of a history on a store."""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

from tests.harness.authorization.history import ADMIN, GROUP_NAMES, Op
from tests.harness.differential.store_support import KAFKA_NAMES
from tests.harness.executors import InlineExecutor, never
from tests.helpers.connections import connection_of
from tests.helpers.keys import FixedRuntime
from tests.helpers.producers import state_name
from txnstore import Consumer, Producer, Store, TopicPartition
from txnstore.core.authorization.model import Acl
from txnstore.core.groups.offsets import committed
from txnstore.errors import AuthorizationError, TxnStoreError
from txnstore.storage.memory import MemoryStore
from txnstore.store import create_on, open_on
from txnstore.testing.clock import ManualClock

_IN_ERROR = {"ABORTABLE_ERROR", "FATAL_ERROR"}
_MORE_NAMES = {
    "GroupNotFoundError": "GROUP_ID_NOT_FOUND",
    "GroupNotEmptyError": "NON_EMPTY_GROUP",
}


class OnStore:
    """A store with authorization; each principal has a process of its own, which stays open."""

    def __init__(self, chains: int, *, allow_if_no_acl: bool) -> None:
        self.clock = ManualClock()
        self._objects = MemoryStore(clock=self.clock)
        self._stack = ExitStack()
        self._opened = 0
        self.admin = self._stack.enter_context(
            create_on(self._objects, chains, principal=ADMIN, runtime=self._runtime())
        )
        self.admin.acls.enable(ADMIN, allow_if_no_acl=allow_if_no_acl)
        self._stores = {ADMIN: self.admin}
        self._producers: dict[str, Producer] = {}
        self._forgotten: list[Producer] = []
        self._consumers: dict[str, tuple[Consumer, str]] = {}

    def _runtime(self) -> FixedRuntime:
        self._opened += 1
        rng = random.Random(f"authorization/{self._opened}")
        return FixedRuntime(
            self.clock, lambda _: None, rng, executor=InlineExecutor, background=InlineExecutor, spawn=never
        )

    def _as(self, principal: str) -> Store:
        if principal not in self._stores:
            store = open_on(self._objects, principal=principal, runtime=self._runtime())
            self._stores[principal] = self._stack.enter_context(store)
        return self._stores[principal]

    def close(self) -> None:
        """Close all stores."""
        self._stack.close()

    # Operations -------------------------------------------------------------------------------------------------------

    def apply(self, op: Op) -> dict[str, Any]:
        """The answer to an operation."""
        self.clock.advance(1)
        producer = self._producers.get(op.get("producer", ""))
        failed = producer is not None and state_name(producer) in _IN_ERROR and op["op"] != "init"
        try:
            answer = {"error": None, "refused": []} | (getattr(self, f"op_{op['op']}")(op) or {})
        except TxnStoreError as error:
            answer = {"error": "IN_ERROR_STATE", "refused": []} if failed else _named(error)
        producer = self._producers.get(op.get("producer", ""))
        if producer is not None:
            answer["state"] = state_name(producer)
        return answer

    def op_acls(self, op: Op) -> None:
        acls = self._as(op["principal"]).acls
        if op["delete"]:
            acls.delete([Acl(*rule) for rule in op["delete"]])
        if op["create"]:
            acls.create([Acl(*rule) for rule in op["create"]])

    def op_init(self, op: Op) -> None:
        self._producers[op["producer"]] = self._as(op["principal"]).producer(op["id"], linger=None)

    def op_forget(self, op: Op) -> None:
        """The application of a producer ends without a word. It is kept: one that is collected aborts."""
        if op["producer"] in self._producers:
            self._forgotten.append(self._producers.pop(op["producer"]))

    def op_begin(self, op: Op) -> None:
        self._producers[op["producer"]].begin_transaction()

    def op_send(self, op: Op) -> dict[str, Any]:
        producer, sent, first = self._producers[op["producer"]], list[Any](), None
        for topic, partition, value in op["records"]:
            try:
                sent.append(producer.send(topic, value.encode(), partition=partition))
            except AuthorizationError as error:
                first = first or error
                sent.append(error)
                if producer.transactional_id is not None:
                    raise
        try:
            producer.flush()
        except AuthorizationError as error:
            first = first or error
            if producer.transactional_id is not None:
                raise
        if producer.transactional_id is not None:
            return {}
        outcomes = [future if isinstance(future, Exception) else _outcome(future) for future in sent]
        return _of_outcomes([_named(error) if error is not None else None for error in outcomes])

    def op_send_offsets(self, op: Op) -> None:
        producer = self._producers[op["producer"]]
        producer.send_offsets({_tp(name): offset for name, offset in op["offsets"].items()}, op["group"])
        producer.flush()

    def op_commit(self, op: Op) -> None:
        self._producers[op["producer"]].commit_transaction()

    def op_abort(self, op: Op) -> None:
        self._producers[op["producer"]].abort_transaction()

    def op_close(self, op: Op) -> None:
        producer = self._producers.pop(op["producer"])
        self._forgotten.append(producer)
        producer.close()

    def op_fence(self, op: Op) -> None:
        self._as(op["principal"]).fence_producers([op["id"]])

    def op_commit_offsets(self, op: Op) -> None:
        with self._as(op["principal"]).consumer(group=op["group"]) as consumer:
            consumer.commit({_tp(name): offset for name, offset in op["offsets"].items()})

    def op_reset_offsets(self, op: Op) -> None:
        self._as(op["principal"]).reset_offsets(op["group"], {_tp(name): n for name, n in op["offsets"].items()})

    def op_delete_group(self, op: Op) -> None:
        self._as(op["principal"]).delete_group(op["group"])

    def op_consume(self, op: Op) -> dict[str, Any]:
        with self._as(op["principal"]).consumer([op["topic"]], op["group"], auto_offset_reset="earliest") as consumer:
            values = _polled(consumer)
            consumer.commit()
            return {"values": values}

    def op_poll(self, op: Op) -> dict[str, Any]:
        if op["consumer"] not in self._consumers:
            consumer = self._as(op["principal"]).consumer(auto_offset_reset="earliest")
            partitions = self.admin.topic(op["topic"]).partitions
            consumer.assign([TopicPartition(op["topic"], number) for number in range(min(partitions, 2))])
            self._consumers[op["consumer"]] = consumer, op["topic"]
        return {"values": _polled(self._consumers[op["consumer"]][0])}

    def op_create_topic(self, op: Op) -> None:
        self._as(op["principal"]).create_topic(op["topic"], partitions=2)

    def op_add_partitions(self, op: Op) -> None:
        self._as(op["principal"]).alter_topic(op["topic"], partitions=op["partitions"])

    def op_alter_config(self, op: Op) -> None:
        self._as(op["principal"]).alter_topic(op["topic"], config={"retention.ms": op["retention"]})

    def op_delete_topic(self, op: Op) -> None:
        self._as(op["principal"]).delete_topic(op["topic"])
        self._consumers = {name: item for name, item in self._consumers.items() if item[1] != op["topic"]}

    def op_delete_records(self, op: Op) -> None:
        """Delete all records of a partition before the one with a value."""
        rows = self._rows(op["topic"])
        [offset] = [row["_offset"] for row in rows if row["value"] == op["before"].encode()]
        self._as(op["principal"]).delete_records({TopicPartition(op["topic"], op["partition"]): offset})

    # Observations -----------------------------------------------------------------------------------------------------

    def _rows(self, topic: str) -> list[dict[str, Any]]:
        rows = self.admin.scan(topic).to_table().to_pylist()
        return sorted(rows, key=lambda row: (row["_partition"], row["_offset"]))

    def observe(self) -> dict[str, Any]:
        """What is visible: rules, topics, committed records, committed offsets."""
        view = connection_of(self.admin).view()
        records: dict[str, list[str]] = {}
        topics: dict[str, list[Any]] = {}
        for topic in self.admin.topics():
            topics[topic.name] = [topic.partitions, str(topic.config.get("retention.ms", -1))]
            for row in self._rows(topic.name):
                records.setdefault(f"{topic.name}.{row['_partition']}", []).append(row["value"].decode())
        offsets: dict[str, dict[str, int]] = {}
        for group in GROUP_NAMES:
            for name, (count, _) in topics.items():
                for number in range(count):
                    stored = committed(view, group, TopicPartition(name, number), require_stable=False)
                    if stored is not None:
                        offsets.setdefault(group, {})[f"{name}.{number}"] = stored.offset
        acls = sorted([*_fields(acl)] for acl in self.admin.acls.list())
        return {"acls": acls, "topics": topics, "records": records, "offsets": offsets}

    def allows(self, principal: str, operation: Any, kind: Any, name: str) -> bool:
        """Whether the rules allow something."""
        authorization = connection_of(self.admin).chain.refresh().authorization
        return authorization.allows(principal, operation, kind, name)


def _polled(consumer: Consumer) -> list[str]:
    values: list[str] = []
    for _ in range(3):  # The first polls of a member join the group.
        while records := consumer.poll():
            values += [record.value.decode() for record in records if isinstance(record.value, bytes)]
    return sorted(values)


def _outcome(future: Any) -> Exception | None:
    call: Callable[[], Any] = lambda: future.result(timeout=0)  # noqa: E731
    try:
        call()
    except TxnStoreError as error:
        return error
    return None


def _of_outcomes(outcomes: list[dict[str, Any] | None]) -> dict[str, Any]:
    """The answer to a send without a transaction: the first error, what all errors name, and the outcome of each."""
    errors = [outcome for outcome in outcomes if outcome is not None]
    return {
        "error": errors[0]["error"] if errors else None,
        "refused": sorted({name for error in errors for name in error["refused"]}),
        "outcomes": [outcome and outcome["error"] for outcome in outcomes],
    }


def _named(error: Exception) -> dict[str, Any]:
    name = type(error).__name__
    refused = list(error.resources) if isinstance(error, AuthorizationError) else []
    return {"error": KAFKA_NAMES.get(name, _MORE_NAMES.get(name, name)), "refused": refused}


def _fields(acl: Acl) -> tuple[str, ...]:
    return (acl.principal, acl.permission, acl.operation, acl.resource_type, acl.resource_name, acl.pattern_type)


def _tp(name: str) -> TopicPartition:
    topic, _, number = name.rpartition(".")
    return TopicPartition(topic, int(number))
