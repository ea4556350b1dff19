"""Scenarios of administration: what exists, who coordinates, producers, transactions."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from tests.compat.wire.connection import Wire, batch, produced
from tests.compat.wire.records import UNKNOWN_TOPIC
from tests.compat.wire.transactions import UNKNOWN_PRODUCER, added
from txnstore.gateway.apis import Api


def versions_of_apis(wire: Wire) -> None:
    """ApiVersions: an unknown version is answered in version 0, transactions are of version 2."""
    software = {"client_software_name": "test", "client_software_version": "1"}
    for version in range(5):
        answer = wire.ask(Api.API_VERSIONS, version, software)
        features = {each.name: each.max_version_level for each in getattr(answer, "finalized_features", ())}
        wire.note(
            f"version {version}",
            [answer.error_code, getattr(answer, "throttle_time", None), features.get("transaction.version")],
        )
        listed = {each.api_key: (each.min_version, each.max_version) for each in answer.api_keys}
        wire.note(f"Produce in version {version}", listed[0][0])
    for name in ("", "with space", "-begins", "a" * 200):
        fields = {"client_software_name": name, "client_software_version": "1"}
        answer = wire.ask(Api.API_VERSIONS, 3, fields)
        wire.note(f"a client {name[:12]!r}", answer.error_code)


def coordinators(wire: Wire) -> None:
    """COORD-01, COORD-06: one key, several, and none; kinds that do not exist."""
    for version in range(7):
        for kind in (0, 1, 2, 5):
            for keys in (["a"], ["a", "b", "a"], [""], []):
                if version < 4 and len(keys) != 1:
                    continue
                if version < 1 and kind > 0:
                    continue
                fields = {"key": keys[0] if keys else "", "key_type": kind, "coordinator_keys": keys}
                wire.show(f"of kind {kind}, {keys}", Api.FIND_COORDINATOR, version, fields)


def metadata(wire: Wire) -> None:
    """Topics by name, by id, all, none; names that are none."""
    wire.topic("t", 2)
    for version in range(14):
        rows: list[tuple[str, Any]] = [
            ("a topic", [{"name": "t"}]),
            ("an unknown one", [{"name": "missing"}]),
            ("a name of bad letters", [{"name": "a b"}]),
            ("an empty name", [{"name": ""}]),
            ("a topic twice", [{"name": "t"}, {"name": "t"}]),
            ("one that exists and one that does not", [{"name": "t"}, {"name": "missing"}]),
        ]
        if version >= 1:
            rows += [("no topics", [])]
        if version >= 12:
            rows += [
                ("a topic by its id", [{"name": None, "topic_id": wire.topic_ids["t"]}]),
                ("an unknown id", [{"name": None, "topic_id": UNKNOWN_TOPIC}]),
                ("neither name nor id", [{"name": None, "topic_id": UUID(int=0)}]),
            ]
        for label, topics in rows:
            asked = [{"topic_id": UUID(int=0), **each} for each in topics]
            fields = {"topics": asked, "allow_auto_topic_creation": False}
            wire.show(label, Api.METADATA, version, fields)
    for label, topics, options in (
        ("topics", ["t", "missing"], {}),
        ("a name of bad letters", ["a b"], {}),
        ("of one partition", ["t"], {"response_partition_limit": 1}),
        ("from the second partition on", ["t"], {"cursor": {"topic_name": "t", "partition_index": 1}}),
        ("from a negative partition on", ["t"], {"cursor": {"topic_name": "t", "partition_index": -1}}),
        ("of no partition", ["t"], {"response_partition_limit": 0}),
    ):
        asked = [{"name": each} for each in topics]
        fields = {"topics": asked, "response_partition_limit": 2000, "cursor": None, **options}
        wire.show(label, Api.DESCRIBE_TOPIC_PARTITIONS, 0, fields)


def producers_of_partitions(wire: Wire) -> None:
    """ADM-03: open, ended, of markers only, without transactions; partitions that do not exist."""
    t = wire.topic("t", 2)
    plain, who = wire.producer(), wire.producer("x")
    wire.produce(t, batch(b"1", b"2", who=plain, sequence=0))
    wire.produce(t, batch(b"3", who=who, sequence=0, transactional=True), "x")
    asked = {"topics": [{"name": t, "partition_indexes": [0, 1, 7]}, {"name": "missing", "partition_indexes": [0]}]}
    wire.show("open", Api.DESCRIBE_PRODUCERS, 0, asked)
    who = wire.finish("x", who)
    wire.show("ended", Api.DESCRIBE_PRODUCERS, 0, asked)
    wire.ask(Api.ADD_PARTITIONS_TO_TXN, 3, added("x", who, (t, 1)))
    wire.finish("x", who, commit=False)
    wire.show("with a marker only", Api.DESCRIBE_PRODUCERS, 0, asked)
    wire.show("nothing", Api.DESCRIBE_PRODUCERS, 0, {"topics": []})
    wire.show("no partition", Api.DESCRIBE_PRODUCERS, 0, {"topics": [{"name": t, "partition_indexes": []}]})


def transactions(wire: Wire) -> None:
    """ADM-01, ADM-02: descriptions by state, filters by state, producer, duration and pattern."""
    t = wire.topic("t")
    empty, ongoing, committed, aborted = (wire.producer(name) for name in ("empty", "ongoing", "committed", "aborted"))
    wire.produce(t, batch(b"1", who=ongoing, sequence=0, transactional=True), "ongoing")
    for name, who in (("committed", committed), ("aborted", aborted)):
        wire.ask(Api.ADD_PARTITIONS_TO_TXN, 3, added(name, who, (t, 0)))
        wire.finish(name, who, commit=name == "committed")
    names = ["empty", "ongoing", "committed", "aborted"]
    for name in (*names, "unknown", ""):
        wire.described(f"of {name!r}", name)
    wire.described("of none")
    wire.described("of one twice", "empty", "empty")
    everything = {
        "state_filters": [],
        "producer_id_filters": [],
        "duration_filter": -1,
        "transactional_id_pattern": None,
    }

    def listed(label: str, version: int, **filters: Any) -> None:
        answer = wire.ask(Api.LIST_TRANSACTIONS, version, {**everything, **filters})
        rows = sorted((each.transactional_id, each.transaction_state) for each in answer.transaction_states)
        wire.note(f"{label}, LIST_TRANSACTIONS {version}", [answer.error_code, answer.unknown_state_filters, rows])

    for version in range(3):
        listed("all", version)
        for states in (["Ongoing"], ["Empty", "CompleteCommit"], ["ongoing"], ["Other"], ["Other", "Empty"], ["Dead"]):
            listed(f"in {states}", version, state_filters=states)
        listed("of a producer", version, producer_id_filters=[ongoing[0]])
        listed("of an unknown producer", version, producer_id_filters=[UNKNOWN_PRODUCER])
        listed("of both filters", version, producer_id_filters=[ongoing[0]], state_filters=["Empty"])
        if version >= 1:
            for duration in (0, 600_000, -5):
                listed(f"open for {duration}", version, duration_filter=duration)
        if version >= 2:
            for pattern in ("", ".*", "o", "o.*", "(", "on|empty", "^ongoing$"):
                listed(f"called {pattern!r}", version, transactional_id_pattern=pattern)
    assert empty
    wire.finish("ongoing", ongoing)


def markers_by_hand(wire: Wire) -> None:
    """ADM-05, CTL-01, TV2-07: WriteTxnMarkers of an administrator (KIP-664)."""
    t = wire.topic("t", 2)
    for version in (1, 2):
        name = f"hanging-{version}"
        who = wire.producer(name)
        wire.produce(t, batch(b"1", who=who, sequence=0, transactional=True), name)

        def marker(*partitions: int, topic: str = t, epoch: int = who[1], producer: int = who[0]) -> dict[str, Any]:
            topics = [{"name": topic, "partition_indexes": list(partitions)}]
            one = {"producer_id": producer, "producer_epoch": epoch, "transaction_result": False, "topics": topics}
            return {"markers": [{**one, "coordinator_epoch": 0, "transaction_version": 0}]}

        for label, fields in (
            ("of an unknown topic", marker(0, topic="missing")),
            ("of an unknown partition", marker(9)),
            ("of an abort", marker(0)),
            ("of the abort again", marker(0)),
        ):
            wire.show(label, Api.WRITE_TXN_MARKERS, version, fields)
        stable = {"topics": [{"name": t, "partitions": [{"partition_index": 0, "timestamp": -1}]}]}
        wire.show(
            f"the end after version {version}", Api.LIST_OFFSETS, 7, {"replica_id": -1, "isolation_level": 1, **stable}
        )


def topics(wire: Wire) -> None:
    """What CreateTopics, DeleteTopics and CreatePartitions refuse."""
    wire.topic("t", 2)

    def wanted(name: str, partitions: int = 1, factor: int = 1, **options: Any) -> dict[str, Any]:
        return {"name": name, "num_partitions": partitions, "replication_factor": factor, **options}

    for version in range(2, 8):
        for label, asked in (
            ("one that exists", [wanted("t")]),
            ("a name of bad letters", [wanted("a b")]),
            ("an empty name", [wanted("")]),
            ("a dot", [wanted(".")]),
            ("a long name", [wanted("x" * 250)]),
            ("no partitions", [wanted("none", 0)]),
            ("minus two partitions", [wanted("none", -2)]),
            ("no replicas", [wanted("none", 1, 0)]),
            ("an unknown setting", [wanted("none", configs=[{"name": "no.such", "value": "1"}])]),
            ("a bad value", [wanted("none", configs=[{"name": "retention.ms", "value": "x"}])]),
            ("a topic twice", [wanted("twice"), wanted("twice")]),
            (
                "partitions and an assignment",
                [wanted("none", 1, 1, assignments=[{"partition_index": 0, "broker_ids": [1]}])],
            ),
            ("nothing", []),
        ):
            fields = {"topics": asked, "timeout": 10_000, "validate_only": False}
            wire.show(label, Api.CREATE_TOPICS, version, fields)
        checked = {"topics": [wanted("checked")], "timeout": 10_000, "validate_only": True}
        answer = wire.ask(Api.CREATE_TOPICS, version, checked)
        wire.note(f"checked in version {version}", [each.error_code for each in answer.topics])
    for version in range(1, 7):
        by_name: dict[str, Any] = {"topic_names": ["missing"], "topics": [{"name": "missing", "topic_id": UUID(int=0)}]}
        wire.show("an unknown topic", Api.DELETE_TOPICS, version, {**by_name, "timeout": 10_000})
        twice = {"topic_names": ["missing", "missing"], "topics": 2 * by_name["topics"]}
        if version == 6:
            wire.show("a topic twice", Api.DELETE_TOPICS, version, {**twice, "timeout": 10_000})
            for label, named in (
                ("an unknown id", {"name": None, "topic_id": UNKNOWN_TOPIC}),
                ("neither name nor id", {"name": None, "topic_id": UUID(int=0)}),
                ("name and id", {"name": "t", "topic_id": wire.topic_ids["t"]}),
            ):
                wire.show(label, Api.DELETE_TOPICS, version, {"topics": [named], "timeout": 10_000})
    for version in range(4):
        for label, name, count in (
            ("as many partitions", "t", 2), ("fewer", "t", 1), ("none", "t", 0), ("of an unknown topic", "missing", 3),
        ):  # fmt: skip
            fields = {
                "topics": [{"name": name, "count": count, "assignments": None}],
                "timeout": 10_000,
                "validate_only": False,
            }
            wire.show(label, Api.CREATE_PARTITIONS, version, fields)


def without_users(wire: Wire) -> None:
    """A listener without users refuses to authenticate."""
    for version in range(2):
        wire.show("a handshake", Api.SASL_HANDSHAKE, version, {"mechanism": "PLAIN"})
    for version in range(3):
        wire.show("a password", Api.SASL_AUTHENTICATE, version, {"auth_bytes": b""})


def of_duplicates(wire: Wire) -> None:
    """SEQ-03: a batch of the window has its first offset, also of an ended transaction of another epoch."""
    t = wire.topic("t")
    who = wire.producer("x")
    first = batch(b"1", b"2", who=who, sequence=0, transactional=True)
    wire.show("first", Api.PRODUCE, 12, produced(t, first, "x"))
    wire.show("again", Api.PRODUCE, 12, produced(t, first, "x"))
    wire.finish("x", who)
    wire.show("after the end", Api.PRODUCE, 12, produced(t, first, "x"))
