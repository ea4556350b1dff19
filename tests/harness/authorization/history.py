"""Random histories of producers, consumers and administrators whose rights come and go."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

#: One step: ``{"op": name, ...}``.
Op = dict[str, Any]

ADMIN = "User:admin"
USERS = ("admin", "alice", "bob", "eve")
PRINCIPALS = ("User:alice", "User:bob", "User:eve")
TOPIC_NAMES = ("a-1", "a-2", "b-1", "b-2", "b-3", "c-1", "c-2", "c-3")
GROUP_NAMES = ("g-1", "g-2", "k-1")
IDS = ("t-1", "t-2", "u-1")
CLUSTER = "kafka-cluster"
#: The names and prefixes of each type of resource that rules are for.
_NAMES: Mapping[str, tuple[str, ...]] = {"TOPIC": TOPIC_NAMES[:5], "GROUP": GROUP_NAMES, "TRANSACTIONAL_ID": IDS}
_PREFIXES = {"TOPIC": ("a-", "b-", "c-"), "GROUP": ("g-", "k-"), "TRANSACTIONAL_ID": ("t-", "u-")}
#: DENY of DESCRIBE is left out: a store has no such right for clients (docs/kafka-differences.md).
_OPERATIONS = {
    "TOPIC": ("WRITE",) * 5 + ("READ",) * 4 + ("ALL", "ALL", "DESCRIBE", "CREATE", "DELETE", "ALTER", "ALTER_CONFIGS"),
    "GROUP": ("READ", "READ", "READ", "ALL", "DELETE", "DESCRIBE"),
    "TRANSACTIONAL_ID": ("WRITE", "WRITE", "WRITE", "ALL", "DESCRIBE"),
    "CLUSTER": ("IDEMPOTENT_WRITE", "IDEMPOTENT_WRITE", "CREATE", "ALTER", "ALL"),
}
#: What a history does, and how often.
_WEIGHTS = {
    "acls": 9,
    "acls_of_others": 1,
    "init": 5,
    "send": 14,
    "send_offsets": 6,
    "commit": 6,
    "abort": 2,
    "close": 1,
    "fence": 1,
    "commit_offsets": 2,
    "reset_offsets": 2,
    "delete_group": 1,
    "consume": 1,
    "poll": 4,
    "create_topic": 1,
    "add_partitions": 1,
    "alter_config": 1,
    "delete_topic": 1,
    "delete_records": 2,
}
#: What an application does with a producer that has failed.
_AFTER_A_FAILURE = {"abort": 8, "commit": 2, "send": 2, "send_offsets": 1, "begin": 1, "close": 2, "init": 2}


@dataclass
class _Producer:
    name: str
    principal: str
    id: str | None
    state: str = "READY"
    #: How often it was used after it had failed.
    tries: int = 0


@dataclass
class _Open:
    """What an open transaction may have touched."""

    topics: set[str] = field(default_factory=set)
    groups: set[str] = field(default_factory=set)
    #: Whether records of it were refused: a broker has those of other topics, and a store has none of them.
    refused: bool = False


class History:
    """A history of ``length`` steps by a seed. It continues from the answers and what is visible."""

    def __init__(self, seed: int, length: int) -> None:
        self._rng = random.Random(f"authorization/{seed}")
        self._length = length
        self._producers: dict[str, _Producer] = {}
        self._open: dict[str, _Open] = {}
        self._visible: dict[str, Any] = {"acls": [], "topics": {}, "records": {}, "offsets": {}}
        self._unused = list(TOPIC_NAMES)
        self._deleted_from: set[str] = set()
        self._steps = self._numbers = 0
        self._next = self._start()

    # Steps ------------------------------------------------------------------------------------------------------------

    def next(self) -> Op | None:
        """The next step; None at the end, when no transaction is open any more."""
        while not self._next:
            if self._steps >= self._length:
                ids = sorted(self._open)
                if not ids:
                    return None
                self._next = [{"op": "fence", "principal": ADMIN, "id": ids[0]}]
                break
            self._steps += 1
            failed = [one for one in self._producers.values() if one.state.endswith("_ERROR")]
            if failed and self._rng.random() < 0.7:
                producer = self._rng.choice(failed)
                producer.tries += 1
                kinds = _AFTER_A_FAILURE if producer.tries < 3 else {"close": 1, "init": 1}
                self._next = self._of_producer(self._draw(kinds), producer)
            else:
                self._next = getattr(self, f"_{self._draw(_WEIGHTS)}")() or []
        return self._next.pop(0)

    def learn(self, op: Op, answer: Mapping[str, Any], visible: dict[str, Any]) -> None:
        """What came of a step."""
        done, self._visible = answer["error"] is None, visible
        name = op.get("producer", "")
        if op["op"] == "init":
            if done:
                self._ended(op["id"])
                for other in [one for one in self._producers.values() if one.id is not None and one.id == op["id"]]:
                    self.forget(other.name)
                self._producers[name] = _Producer(name, op["principal"], op["id"])
            else:
                self._producers.pop(name, None)
        elif op["op"] == "fence" and done:
            self._ended(op["id"])
            for other in [one for one in self._producers.values() if one.id == op["id"]]:
                self.forget(other.name)
        elif name in self._producers:
            producer = self._producers[name]
            if op["op"] == "close":
                self._producers.pop(name)
                if done and producer.state != "FATAL_ERROR":
                    self._ended(producer.id)
                return
            if op["op"] == "send" and not done and producer.id in self._open:
                self._open[producer.id or ""].refused = True
            if op["op"] in {"commit", "abort"} and done:
                self._ended(producer.id)
            producer.state = answer.get("state", producer.state)
            if not producer.state.endswith("_ERROR"):
                producer.tries = 0

    def forget(self, producer: str) -> None:
        """Use a producer no more."""
        one = self._producers.pop(producer, None)
        if one is not None:
            self._next = [op for op in self._next if op.get("producer") != producer]
            self._next.append({"op": "forget", "producer": producer})

    def open_of(self, producer: str) -> tuple[str, _Open] | None:
        """The open transaction of a producer."""
        one = self._producers.get(producer)
        if one is None or one.id not in self._open:
            return None
        return one.id or "", self._open[one.id or ""]

    def give_up(self, producer: str, opened: tuple[str, _Open] | None) -> None:
        """Use a producer no more whose state differs; end the transaction that it may have left open somewhere."""
        self.forget(producer)
        if opened is not None:
            self._open[opened[0]] = opened[1]
            self._next.append({"op": "fence", "principal": ADMIN, "id": opened[0]})

    def owner(self, producer: str) -> tuple[str | None, str | None]:
        """The principal and the transactional id of a producer."""
        one = self._producers.get(producer)
        return (one.principal, one.id) if one is not None else (None, None)

    def _ended(self, transactional_id: str | None) -> None:
        self._open.pop(transactional_id or "", None)

    @property
    def held_back(self) -> set[str]:
        """Topics in which a broker may have undecided records that a store has refused, with all after them."""
        return {topic for item in self._open.values() if item.refused for topic in item.topics}

    def _draw(self, weights: Mapping[str, int]) -> str:
        return self._rng.choices(list(weights), list(weights.values()))[0]

    def _principal(self) -> str:
        return self._rng.choices(PRINCIPALS, (5, 3, 2))[0]

    def _number(self) -> int:
        self._numbers += 1
        return self._numbers

    @property
    def _topics(self) -> list[str]:
        return sorted(self._visible["topics"])

    @property
    def _touched_topics(self) -> set[str]:
        return {topic for item in self._open.values() for topic in item.topics}

    @property
    def _quiet_groups(self) -> list[str]:
        touched = {group for item in self._open.values() for group in item.groups}
        return [group for group in GROUP_NAMES if group not in touched]

    # Rules ------------------------------------------------------------------------------------------------------------

    def _start(self) -> list[Op]:
        topics = [self._unused.pop(0) for _ in range(3)]
        made = [{"op": "create_topic", "principal": ADMIN, "topic": topic} for topic in topics]
        first = [
            ["User:alice", "ALLOW", "ALL", "TOPIC", "a-", "PREFIXED"],
            ["User:alice", "ALLOW", "ALL", "TRANSACTIONAL_ID", "t-", "PREFIXED"],
            ["User:alice", "ALLOW", "READ", "GROUP", "*", "LITERAL"],
            ["User:bob", "ALLOW", "WRITE", "TOPIC", "*", "LITERAL"],
            ["User:bob", "ALLOW", "WRITE", "TRANSACTIONAL_ID", "u-1", "LITERAL"],
        ]
        rules = [rule for rule in first if self._rng.random() < 0.8] + [self._rule() for _ in range(3)]
        return [*made, _change(ADMIN, _distinct(rules), [])]

    def _rule(self) -> list[str]:
        kind = self._rng.choices(["TOPIC", "GROUP", "TRANSACTIONAL_ID", "CLUSTER"], (8, 3, 3, 1))[0]
        operation = self._rng.choice(_OPERATIONS[kind])
        permission = "DENY" if self._rng.random() < 0.25 and operation != "DESCRIBE" else "ALLOW"
        principal = self._rng.choices([*PRINCIPALS, "User:*"], (4, 3, 2, 1))[0]
        if kind == "CLUSTER":
            return [principal, permission, operation, kind, CLUSTER, "LITERAL"]
        form = self._rng.random()
        if form < 0.15:
            return [principal, permission, operation, kind, "*", "LITERAL"]
        if form < 0.45:
            return [principal, permission, operation, kind, self._rng.choice(_PREFIXES[kind]), "PREFIXED"]
        return [principal, permission, operation, kind, self._rng.choice(_NAMES[kind]), "LITERAL"]

    def _acls(self) -> list[Op]:
        """Create rules or delete some; most often such that an open transaction or a failed producer notices."""
        rules = self._visible["acls"]
        if rules and self._rng.random() < 0.5:
            count = min(len(rules), self._rng.choice([1, 1, 2, 3]))
            return [_change(ADMIN, [], self._rng.sample(rules, count))]
        created = [self._rule() for _ in range(self._rng.choice([1, 1, 2]))]
        if self._producers and self._rng.random() < 0.5:
            created.append(self._rule_for(self._rng.choice(list(self._producers.values()))))
        created = [rule for rule in _distinct(created) if rule not in rules]
        return [_change(ADMIN, created, [])] if created else []

    def _rule_for(self, producer: _Producer) -> list[str]:
        permission = self._rng.choice(["ALLOW", "ALLOW", "DENY"])
        resources = [("WRITE", "TOPIC", topic) for topic in self._topics]
        if producer.id is not None:
            resources += [("WRITE", "TRANSACTIONAL_ID", producer.id)] * 2
            resources += [("READ", "GROUP", group) for group in GROUP_NAMES]
        return [producer.principal, permission, *self._rng.choice(resources), "LITERAL"]

    def _acls_of_others(self) -> list[Op]:
        rule = [self._rng.choice(PRINCIPALS), "ALLOW", "READ", "TOPIC", "c-9", "LITERAL"]
        return [
            _change(self._principal(), [rule], []) if rule not in self._visible["acls"] else _change(ADMIN, [], [rule])
        ]

    # Producers --------------------------------------------------------------------------------------------------------

    def _init(self) -> list[Op]:
        if self._rng.random() < 0.7:  # Those who had the rights at first.
            return self._new(
                *self._rng.choice([(PRINCIPALS[0], IDS[0]), (PRINCIPALS[0], IDS[1]), (PRINCIPALS[1], IDS[2])])
            )
        return self._new(self._principal(), self._rng.choice([*IDS, None, None]))

    def _new(self, principal: str, transactional_id: str | None) -> list[Op]:
        return [{"op": "init", "principal": principal, "producer": f"P{self._number()}", "id": transactional_id}]

    def _one(self, *states: str) -> _Producer | None:
        ready = [one for one in self._producers.values() if one.state in states]
        return self._rng.choice(ready) if ready else None

    def _of_producer(self, kind: str, producer: _Producer) -> list[Op]:
        """A step of a producer."""
        if kind == "send":
            return self._records(producer)
        if kind == "send_offsets" and producer.id is not None:
            return self._positions(producer)
        if kind == "init":
            self.forget(producer.name)
            return self._next + self._new(producer.principal, producer.id)
        if producer.id is None and kind != "close":
            return self._records(producer)
        return [{"op": kind, "producer": producer.name}]

    def _begun(self, producer: _Producer) -> list[Op]:
        if producer.id is None or producer.state != "READY":
            return []
        return [{"op": "begin", "producer": producer.name}]

    def _records(self, producer: _Producer) -> list[Op]:
        topics = self._rng.sample(self._topics, min(len(self._topics), self._rng.choice([1, 1, 2, 3])))
        if not topics:
            return []
        records = [[topic, self._rng.randrange(2), f"v{self._number()}"] for topic in topics]
        if producer.id is not None:
            self._open.setdefault(producer.id, _Open()).topics.update(topics)
        return [*self._begun(producer), {"op": "send", "producer": producer.name, "records": records}]

    def _positions(self, producer: _Producer) -> list[Op]:
        if not self._topics:
            return []
        opened, group = self._open.setdefault(producer.id or "", _Open()), self._rng.choice(GROUP_NAMES)
        offsets = self._offsets()
        opened.groups.add(group)
        opened.topics.update(name.rpartition(".")[0] for name in offsets)
        op = {"op": "send_offsets", "producer": producer.name, "group": group, "offsets": offsets}
        return [*self._begun(producer), op]

    def _send(self) -> list[Op]:
        producer = self._one("READY", "READY", "IN_TRANSACTION")
        return self._records(producer) if producer is not None else self._init()

    def _send_offsets(self) -> list[Op]:
        producer = self._one("IN_TRANSACTION")
        return self._positions(producer) if producer is not None else []

    def _commit(self) -> list[Op]:
        producer = self._one("IN_TRANSACTION")
        return [{"op": "commit", "producer": producer.name}] if producer is not None else []

    def _abort(self) -> list[Op]:
        producer = self._one("IN_TRANSACTION")
        return [{"op": "abort", "producer": producer.name}] if producer is not None else []

    def _close(self) -> list[Op]:
        producer = self._one("READY", "IN_TRANSACTION")
        return [{"op": "close", "producer": producer.name}] if producer is not None else []

    def _fence(self) -> list[Op]:
        return [{"op": "fence", "principal": self._principal(), "id": self._rng.choice(IDS)}]

    # Groups and consumers ---------------------------------------------------------------------------------------------

    def _offsets(self) -> dict[str, int]:
        topics = self._rng.sample(self._topics, min(len(self._topics), self._rng.choice([1, 1, 2])))
        return {f"{topic}.{self._rng.randrange(2)}": self._rng.randrange(9) for topic in topics}

    def _of_group(self, kind: str) -> list[Op]:
        groups = self._quiet_groups
        if not groups or not self._topics:
            return []
        op = {"op": kind, "principal": self._principal(), "group": self._rng.choice(groups)}
        return [{**op, "offsets": self._offsets()}]

    def _commit_offsets(self) -> list[Op]:
        return self._of_group("commit_offsets")

    def _reset_offsets(self) -> list[Op]:
        """To the start: an offset out of range is refused by a store (docs/kafka-differences.md)."""
        [op] = self._of_group("reset_offsets") or [{"offsets": {}}]
        offsets = {name: 0 for name in op["offsets"] if name.rpartition(".")[0] not in self._deleted_from}
        return [{**op, "offsets": offsets}] if offsets else []

    def _delete_group(self) -> list[Op]:
        groups = [group for group in self._quiet_groups if group in self._visible["offsets"]]
        if not groups:
            return []
        return [{"op": "delete_group", "principal": self._principal(), "group": self._rng.choice(groups)}]

    def _consume(self) -> list[Op]:
        topics = sorted(set(self._topics) - self._touched_topics)
        if not topics or not self._quiet_groups:
            return []
        group, topic = self._rng.choice(self._quiet_groups), self._rng.choice(topics)
        stored = self._visible["offsets"].get(group, {})
        if any(name.rpartition(".")[0] == topic for name in stored):
            return []  # An offset by chance may be out of range.
        return [{"op": "consume", "principal": self._principal(), "group": group, "topic": topic}]

    def _poll(self) -> list[Op]:
        if not self._topics:
            return []
        principal, topic = self._principal(), self._rng.choice(self._topics)
        if topic in self.held_back:
            return []
        return [{"op": "poll", "consumer": f"{principal} {topic}", "principal": principal, "topic": topic}]

    # Topics -----------------------------------------------------------------------------------------------------------

    def _create_topic(self) -> list[Op]:
        if not self._unused:
            return []
        topic = self._unused[0]
        principal = self._rng.choice([self._principal(), ADMIN])
        if principal == ADMIN or self._rng.random() < 0.5:
            self._unused.remove(topic)
        return [{"op": "create_topic", "principal": principal, "topic": topic}] if topic not in self._topics else []

    def _of_topic(self, kind: str, topics: list[str], **values: Any) -> list[Op]:
        if not topics:
            return []
        return [{"op": kind, "principal": self._principal(), "topic": self._rng.choice(topics), **values}]

    def _add_partitions(self) -> list[Op]:
        topics = [topic for topic in self._topics if self._visible["topics"][topic][0] == 2]
        return self._of_topic("add_partitions", topics, partitions=3)

    def _alter_config(self) -> list[Op]:
        return self._of_topic("alter_config", self._topics, retention=10**12 + self._number())

    def _delete_topic(self) -> list[Op]:
        topics = sorted(set(self._topics) - self._touched_topics)
        return self._of_topic("delete_topic", topics) if len(self._topics) > 2 else []

    def _delete_records(self) -> list[Op]:
        touched = self._touched_topics
        names = [name for name in sorted(self._visible["records"]) if name.rpartition(".")[0] not in touched]
        if not names:
            return []
        name = self._rng.choice(names)
        topic, _, number = name.rpartition(".")
        before = self._rng.choice(self._visible["records"][name])
        self._deleted_from.add(topic)
        return self._of_topic("delete_records", [topic], partition=int(number), before=before)


def _change(principal: str, created: list[list[str]], deleted: list[list[str]]) -> Op:
    return {"op": "acls", "principal": principal, "create": created, "delete": deleted}


def _distinct(rules: list[list[str]]) -> list[list[str]]:
    return [list(rule) for rule in dict.fromkeys(map(tuple, rules))]
