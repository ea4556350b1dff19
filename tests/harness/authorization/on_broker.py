"""Runs the operations of a history on a broker with ``StandardAuthorizer``, by Kafka's own clients."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

from tests.compat.broker.client import SETTINGS as PRODUCER_SETTINGS
from tests.compat.broker.cluster import again, credentials
from tests.compat.broker.driver import CLIENT_ERRORS, MESSAGES
from tests.compat.broker.running import RunningBroker, retried
from tests.harness.authorization.history import ADMIN, GROUP_NAMES, USERS, Op

#: What a broker of these histories needs: everyone on the listener without users is a super user.
AUTHORIZER = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": f"User:ANONYMOUS;{ADMIN}",
}
#: How Kafka prints a rule: one call of the virtual machine shows all of them.
_BINDING = re.compile(
    r"resourceType=(\w+), name=([^,]+), patternType=(\w+)\), "
    r"entry=\(principal=([^,]+), host=\*, operation=(\w+), permissionType=(\w+)"
)
_IN_ERROR = {"ABORTABLE_ERROR", "FATAL_ERROR"}
#: A client raises the error of an answer that came before the last change of a rule once, and not again and again.
_REPEATED = 5
#: A refusal of a partition without records comes with the answer to a fetch: these polls end without one.
_QUIET = 3


def broker_settings(*, allow_if_no_acl: bool) -> dict[str, str]:
    """The settings of a broker."""
    return {**AUTHORIZER, "allow.everyone.if.no.acl.found": str(allow_if_no_acl).lower()}


class JavaError(Exception):
    """An exception of Java that a client has not raised yet."""

    def __init__(self, java_exception: Any) -> None:
        super().__init__()
        self.java_exception = java_exception


class OnBroker:
    """One history on a broker. The names of a history begin with its number; those of principals do not."""

    def __init__(self, running: RunningBroker) -> None:
        running.histories += 1
        self._prefix = f"h{running.histories}."
        self._running, self._machine, self._admin = running, running.machine, running.admin
        self._producers: dict[str, Any] = {}
        self._transactional: dict[str, bool] = {}
        self._consumers: dict[str, tuple[Any, str, list[Any]]] = {}
        self._topics: dict[str, int] = {}
        #: By partition its start, its end, and its records, as they were read.
        self._read: dict[str, tuple[tuple[int, int], list[tuple[int, str]]]] = {}
        self._rules: set[tuple[str, ...]] = set()
        self._admins: dict[str, Any] = running.__dict__.setdefault("admins_of_users", {})
        #: How often a part of a refused request was done, and undone afterwards (docs/kafka-differences.md).
        self.undone = 0

    def close(self) -> None:
        """Drop the clients, the rules and the topics; the broker stays."""
        for producer in self._producers.values():
            producer.close(self._machine.java.time.Duration.ZERO)
        for consumer, _, _ in self._consumers.values():
            consumer.close(self._machine.java.time.Duration.ZERO)
        self._change([], sorted(self._rules), self._admin)
        self._admin.deleteTopics([self._prefix + name for name in self._topics]).all().get()

    # Names and values -------------------------------------------------------------------------------------------------

    def _name(self, name: str) -> str:
        return name if name in {"*", "kafka-cluster"} else self._prefix + name

    def _tp(self, name: str) -> Any:
        topic, _, number = name.rpartition(".")
        return self._machine.kafka.common.TopicPartition(self._prefix + topic, int(number))

    def _offsets(self, offsets: Mapping[str, int]) -> Any:
        positions = self._machine.java.util.HashMap()
        for name, offset in offsets.items():
            positions.put(self._tp(name), self._machine.kafka.clients.consumer.OffsetAndMetadata(offset))
        return positions

    def _admin_of(self, principal: str) -> Any:
        if principal not in self._admins:
            settings = {"bootstrap.servers": self._running.cluster.users_address, **credentials(_user(principal))}
            self._admins[principal] = self._machine.kafka.clients.admin.Admin.create(self._machine.properties(settings))
        return self._admins[principal]

    # Operations -------------------------------------------------------------------------------------------------------

    def apply(self, op: Op) -> dict[str, Any]:
        """The answer to an operation."""
        from py4j.protocol import Py4JJavaError

        failed = self._state(op) in _IN_ERROR and op["op"] != "init"
        try:
            answer = {"error": None, "refused": []} | (getattr(self, f"op_{op['op']}")(op) or {})
        except (JavaError, Py4JJavaError) as error:
            answer = {"error": "IN_ERROR_STATE", "refused": []} if failed else self._named(error.java_exception)
        if op["op"] in {"commit", "abort", "close", "init", "fence"}:
            self._wait_until_quiet()
        if op.get("producer") in self._producers:
            answer["state"] = self._state(op)
            if op["op"] == "send" and answer["error"] is not None and answer["state"] == "IN_TRANSACTION":
                answer["state"] = self._state_after_a_failure(op)
        return answer

    def _state_after_a_failure(self, op: Op) -> str | None:
        """Java's sender completes the future of a failed record, and changes the state then."""
        with suppress(TimeoutError):
            for _ in again("the transaction should fail", seconds=5):
                if self._state(op) != "IN_TRANSACTION":
                    break
        return self._state(op)

    def _state(self, op: Op) -> str | None:
        producer = self._producers.get(op.get("producer", ""))
        if producer is None:
            return None
        manager = self._machine.field(producer, "transactionManager")
        return str(self._machine.field(manager, "currentState").name())

    def _named(self, exception: Any) -> dict[str, Any]:
        """Kafka's name of the first exception of the causes that has one, and the resources that they name."""
        errors, cause, error = self._machine.kafka.common.protocol.Errors, exception, str(exception.toString())
        refused, named = list[str](), False
        while cause is not None:
            kind, text = str(cause.getClass().getSimpleName()), str(cause.getMessage())
            name = CLIENT_ERRORS.get(kind) or str(errors.forException(cause).name())
            name = next((value for end, value in MESSAGES.items() if text.endswith(end)), name)
            if not named and name != "UNKNOWN_SERVER_ERROR":
                error, named = name, True
            if kind == "TopicAuthorizationException":
                refused += [str(topic) for topic in cause.unauthorizedTopics()]
            elif kind == "GroupAuthorizationException" and cause.groupId() is not None:
                refused.append(str(cause.groupId()))
            cause = cause.getCause()
        return {"error": error, "refused": sorted({item.removeprefix(self._prefix) for item in refused})}

    def _wait_until_quiet(self) -> None:
        """Wait until no end of a transaction is in progress (DIF-08)."""
        for _ in again("all transactions should be complete"):
            listed = self._admin.listTransactions().all().get()
            mine = [item for item in listed if str(item.transactionalId()).startswith(self._prefix)]
            if not any(str(item.state().toString()).startswith("Prepare") for item in mine):
                return

    # Rules ------------------------------------------------------------------------------------------------------------

    def op_acls(self, op: Op) -> None:
        self._change(op["create"], op["delete"], self._admin_of(op["principal"]))

    def _change(self, created: list[Any], deleted: list[Any], admin: Any) -> None:
        if deleted:
            admin.deleteAcls([self._binding(rule).toFilter() for rule in deleted]).all().get()
            self._rules -= {tuple(rule) for rule in deleted}
        if created:
            admin.createAcls([self._binding(rule) for rule in created]).all().get()
            self._rules |= {tuple(rule) for rule in created}
        for _ in again("the broker should know the rules"):
            if {tuple(rule) for rule in self._acls()} == self._rules:
                return

    def _binding(self, rule: list[str]) -> Any:
        principal, permission, operation, kind, name, pattern = rule
        common = self._machine.kafka.common
        resource = common.resource.ResourcePattern(
            getattr(common.resource.ResourceType, kind),
            self._name(name),
            getattr(common.resource.PatternType, pattern),
        )
        entry = common.acl.AccessControlEntry(
            principal,
            "*",
            getattr(common.acl.AclOperation, operation),
            getattr(common.acl.AclPermissionType, permission),
        )
        return common.acl.AclBinding(resource, entry)

    def _acls(self) -> list[list[str]]:
        every = self._machine.kafka.common.acl.AclBindingFilter.ANY
        shown = str(self._admin.describeAcls(every).values().get().toString())
        return sorted(
            [principal, permission, operation, kind, name.removeprefix(self._prefix), pattern]
            for kind, name, pattern, principal, operation, permission in _BINDING.findall(shown)
        )

    # Producers --------------------------------------------------------------------------------------------------------

    def op_init(self, op: Op) -> None:
        self.op_forget(op)
        settings = {
            "bootstrap.servers": self._running.cluster.users_address,
            **PRODUCER_SETTINGS,
            **credentials(_user(op["principal"])),
        }
        if op["id"] is not None:
            settings |= {"transactional.id": self._prefix + op["id"], "transaction.timeout.ms": "600000"}
        producer = self._machine.kafka.clients.producer.KafkaProducer(self._machine.properties(settings))
        try:
            if op["id"] is not None:
                producer.initTransactions()
            else:
                self._wait_for_id(producer)
        except BaseException:
            producer.close(self._machine.java.time.Duration.ZERO)
            raise
        self._producers[op["producer"]] = producer
        self._transactional[op["producer"]] = op["id"] is not None

    def _wait_for_id(self, producer: Any) -> None:
        """Without transactions, a producer requests its id in the background.

        Refused, it fails the records that it has, and requests again: it is usable as soon as it has the right. The
        error is there until the next request.
        """
        manager = self._machine.field(producer, "transactionManager")
        for _ in again("the producer should get an id"):
            error = self._machine.field(manager, "lastError")
            if error is not None:
                raise JavaError(error)
            if self._machine.field(self._machine.field(manager, "producerIdAndEpoch"), "producerId") >= 0:
                return

    def op_forget(self, op: Op) -> None:
        if op["producer"] in self._producers:
            self._producers.pop(op["producer"]).close(self._machine.java.time.Duration.ZERO)

    def op_begin(self, op: Op) -> None:
        self._producers[op["producer"]].beginTransaction()

    def op_send(self, op: Op) -> dict[str, Any]:
        producer, futures = self._producers[op["producer"]], []
        for topic, partition, value in op["records"]:
            record = self._machine.kafka.clients.producer.ProducerRecord(self._prefix + topic, partition, None, value)
            futures.append(producer.send(record))
            if self._transactional[op["producer"]] and futures[-1].isDone():
                futures[-1].get()
        producer.flush()
        outcomes = [self._outcome(future) for future in futures]
        # Batches that were not sent after another one was refused have no error of their own.
        errors = [outcome for outcome in outcomes if outcome is not None and outcome["error"] != "TRANSACTION_ABORTED"]
        answer = {
            "error": errors[0]["error"] if errors else None,
            "refused": sorted({name for error in errors for name in error["refused"]}),
        }
        if not self._transactional[op["producer"]]:
            answer["outcomes"] = [outcome and outcome["error"] for outcome in outcomes]
        return answer

    def _outcome(self, future: Any) -> dict[str, Any] | None:
        from py4j.protocol import Py4JJavaError

        try:
            future.get()
        except Py4JJavaError as error:
            return self._named(error.java_exception)
        return None

    def op_send_offsets(self, op: Op) -> None:
        group = self._machine.kafka.clients.consumer.ConsumerGroupMetadata(self._prefix + op["group"])
        self._producers[op["producer"]].sendOffsetsToTransaction(self._offsets(op["offsets"]), group)

    def op_commit(self, op: Op) -> None:
        self._producers[op["producer"]].commitTransaction()

    def op_abort(self, op: Op) -> None:
        self._producers[op["producer"]].abortTransaction()

    def op_close(self, op: Op) -> None:
        self._producers.pop(op["producer"]).close()

    def op_fence(self, op: Op) -> None:
        self._admin_of(op["principal"]).fenceProducers([self._prefix + op["id"]]).all().get()

    # Groups and consumers ---------------------------------------------------------------------------------------------

    @contextmanager
    def _whole(self, group: str) -> Iterator[None]:
        """Undo what a refused request did for other topics: the broker decides for each one, a store for all."""
        from py4j.protocol import Py4JJavaError

        before = self._committed(group)
        try:
            yield
        except Py4JJavaError:
            after = self._committed(group)
            if after != before:
                self.undone += 1
                changed = {name: offset for name, offset in before.items() if after.get(name) != offset}
                if changed:
                    self._admin.alterConsumerGroupOffsets(self._prefix + group, self._offsets(changed)).all().get()
                if new := [self._tp(name) for name in after if name not in before]:
                    tps = self._machine.java.util.HashSet()
                    for tp in new:
                        tps.add(tp)
                    self._admin.deleteConsumerGroupOffsets(self._prefix + group, tps).all().get()
            raise

    def op_commit_offsets(self, op: Op) -> None:
        with self._consumer(op["principal"], op["group"]) as consumer, self._whole(op["group"]):
            consumer.commitSync(self._offsets(op["offsets"]))

    def op_reset_offsets(self, op: Op) -> None:
        with self._whole(op["group"]):
            offsets = self._offsets(op["offsets"])
            admin = self._admin_of(op["principal"])
            admin.alterConsumerGroupOffsets(self._prefix + op["group"], offsets).all().get()

    def op_delete_group(self, op: Op) -> None:
        self._admin_of(op["principal"]).deleteConsumerGroups([self._prefix + op["group"]]).all().get()

    @contextmanager
    def _consumer(self, principal: str, group: str | None) -> Iterator[Any]:
        consumer = self._new_consumer(principal, group)
        try:
            yield consumer
        finally:
            consumer.close()

    def _new_consumer(self, principal: str, group: str | None) -> Any:
        settings = {
            "bootstrap.servers": self._running.cluster.users_address,
            **credentials(_user(principal)),
            "auto.offset.reset": "earliest",
            "heartbeat.interval.ms": "200",
            "metadata.max.age.ms": "200",
            "default.api.timeout.ms": "60000",
        }
        if group is not None:
            settings["group.id"] = self._prefix + group
        return self._running.consumer("read_committed", settings)

    def op_consume(self, op: Op) -> dict[str, Any]:
        with self._consumer(op["principal"], op["group"]) as consumer:
            consumer.subscribe([self._prefix + op["topic"]])
            tps = [self._tp(f"{op['topic']}.{number}") for number in range(self._topics[op["topic"]])]
            values = self._to_the_end(consumer, tps)
            consumer.commitSync()
            return {"values": values}

    def op_poll(self, op: Op) -> dict[str, Any]:
        if op["consumer"] not in self._consumers:
            consumer = self._new_consumer(op["principal"], None)
            tps = [self._tp(f"{op['topic']}.{number}") for number in range(2)]
            consumer.assign(tps)
            self._consumers[op["consumer"]] = consumer, op["topic"], tps
        consumer, _, tps = self._consumers[op["consumer"]]
        try:
            return {"values": self._to_the_end(consumer, tps)}
        finally:
            time.sleep(0.05)  # A fetch that waits for new records was allowed by the rules of its time.

    def _to_the_end(self, consumer: Any, tps: list[Any]) -> list[str]:
        """Poll until the consumer has these partitions, and has read to their ends, or raises again and again."""
        from py4j.protocol import Py4JJavaError

        values, errors, quiet = list[str](), 0, 0
        ends = self._running.readers["read_committed"].endOffsets(tps)
        pause = self._machine.java.time.Duration.ofMillis(50)
        for _ in again("the consumer should read to the end"):
            try:
                values += [str(record.value()) for record in consumer.poll(pause).iterator()]
                if len(consumer.assignment()) == len(tps) and all(consumer.position(tp) >= ends[tp] for tp in tps):
                    quiet += 1
                    if quiet == _QUIET:
                        break
            except Py4JJavaError:
                errors, quiet = errors + 1, 0
                if errors == _REPEATED:
                    raise
        return sorted(values)

    # Topics -----------------------------------------------------------------------------------------------------------

    def op_create_topic(self, op: Op) -> None:
        topic = self._machine.kafka.clients.admin.NewTopic(self._prefix + op["topic"], 2, 1)
        self._admin_of(op["principal"]).createTopics([topic]).all().get()
        self._topics[op["topic"]] = 2
        self._wait_for(op["topic"])

    def op_add_partitions(self, op: Op) -> None:
        increase = self._machine.kafka.clients.admin.NewPartitions.increaseTo(op["partitions"])
        changes = self._machine.java.util.HashMap()
        changes.put(self._prefix + op["topic"], increase)
        self._admin_of(op["principal"]).createPartitions(changes).all().get()
        self._topics[op["topic"]] = op["partitions"]
        self._wait_for(op["topic"])

    def _wait_for(self, topic: str) -> None:
        from py4j.protocol import Py4JJavaError

        for _ in again(f"the broker should know topic {topic!r}"):
            with suppress(Py4JJavaError):
                tps = [self._tp(f"{topic}.{number}") for number in range(self._topics[topic])]
                self._running.readers["read_committed"].endOffsets(tps)
                return

    def op_alter_config(self, op: Op) -> None:
        admin = self._machine.kafka.clients.admin
        config = self._machine.kafka.common.config.ConfigResource
        resource = config(config.Type.TOPIC, self._prefix + op["topic"])
        kind = getattr(admin, "AlterConfigOp$OpType").SET
        change = admin.AlterConfigOp(admin.ConfigEntry("retention.ms", str(op["retention"])), kind)
        changes = self._machine.java.util.HashMap()
        changes.put(resource, [change])
        self._admin_of(op["principal"]).incrementalAlterConfigs(changes).all().get()
        for _ in again("the broker should know the setting"):
            if self._retentions()[op["topic"]] == str(op["retention"]):
                return

    def op_delete_topic(self, op: Op) -> None:
        self._admin_of(op["principal"]).deleteTopics([self._prefix + op["topic"]]).all().get()
        del self._topics[op["topic"]]
        for name in [name for name, item in self._consumers.items() if item[1] == op["topic"]]:
            self._consumers.pop(name)[0].close(self._machine.java.time.Duration.ZERO)
        for _ in again("the broker should forget the topic"):
            if self._prefix + op["topic"] not in set(self._admin.listTopics().names().get()):
                return

    def op_delete_records(self, op: Op) -> None:
        rows = self._records()[f"{op['topic']}.{op['partition']}"]
        [offset] = [offset for offset, value in rows if value == op["before"]]
        deletions = self._machine.java.util.HashMap()
        deletions.put(self._tp(f"{op['topic']}.{op['partition']}"), self._before(offset))
        self._admin_of(op["principal"]).deleteRecords(deletions).all().get()

    def _before(self, offset: int) -> Any:
        """A ``RecordsToDelete``, whose static method has a namesake that is not, which py4j finds first."""
        java = self._machine.java.lang
        kind = java.Class.forName("org.apache.kafka.clients.admin.RecordsToDelete")
        types = self._machine.array(java.Class, [java.Long.TYPE])
        method = kind.getMethod("beforeOffset", types)
        return method.invoke(None, self._machine.array(java.Object, [java.Long.valueOf(offset)]))

    # Observations -----------------------------------------------------------------------------------------------------

    def observe(self) -> dict[str, Any]:
        """What is visible: rules, topics, committed records, committed offsets."""
        offsets = {group: positions for group in GROUP_NAMES if (positions := self._committed(group))}
        retentions = self._retentions()
        topics = {topic: [count, retentions[topic]] for topic, count in self._topics.items()}
        records = {name: [value for _, value in rows] for name, rows in self._records().items() if rows}
        return {"acls": self._acls(), "topics": topics, "records": records, "offsets": offsets}

    def _retentions(self) -> dict[str, str]:
        config = self._machine.kafka.common.config.ConfigResource
        resources = {topic: config(config.Type.TOPIC, self._prefix + topic) for topic in self._topics}
        described = self._admin.describeConfigs(list(resources.values())).all().get()
        return {topic: str(described[key].get("retention.ms").value()) for topic, key in resources.items()}

    @property
    def _partitions(self) -> list[str]:
        return [f"{topic}.{number}" for topic, count in self._topics.items() for number in range(count)]

    def _records(self) -> dict[str, list[tuple[int, str]]]:
        """Offsets and values by partition; read again where the start or the end has moved."""
        reader, tps = self._running.readers["read_committed"], {name: self._tp(name) for name in self._partitions}
        every = list(tps.values())
        starts, ends = reader.beginningOffsets(every), reader.endOffsets(every)
        bounds = {name: (int(starts[tp]), int(ends[tp])) for name, tp in tps.items()}
        moved = [name for name, bound in bounds.items() if bound != self._read.get(name, (None, None))[0]]
        rows: dict[str, list[tuple[int, str]]] = {name: [] for name in moved}
        reader.assign([tps[name] for name in moved])
        for name in moved:
            reader.seek(tps[name], bounds[name][0])
        pause = self._machine.java.time.Duration.ofMillis(100)
        for _ in again("the reader should read to the ends"):
            if all(reader.position(tps[name]) >= bounds[name][1] for name in moved):
                break
            for record in reader.poll(pause).iterator():
                name = f"{str(record.topic()).removeprefix(self._prefix)}.{record.partition()}"
                rows[name].append((int(record.offset()), str(record.value())))
        self._read |= {name: (bounds[name], rows[name]) for name in moved}
        return {name: self._read[name][1] for name in bounds}

    def _committed(self, group: str) -> dict[str, int]:
        names = self._partitions
        if not names:
            return {}
        stored = retried(
            lambda: self._running.requests.committed(
                self._prefix + group, [self._dashed(name) for name in names], require_stable=False
            )
        )
        return {name: int(offset) for name in names if (offset := stored[self._dashed(name)]) is not None}

    def _dashed(self, name: str) -> str:
        topic, _, number = name.rpartition(".")
        return f"{self._prefix}{topic}-{number}"


def _user(principal: str) -> str:
    user = principal.removeprefix("User:")
    return user if user in USERS else "admin"
