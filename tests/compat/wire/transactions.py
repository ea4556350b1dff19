"""Scenarios of producers and transactions: ids, partitions, offsets, ends."""

from __future__ import annotations

from typing import Any

from tests.compat.wire.connection import NO_PRODUCER, Wire, batch, ended, produced
from txnstore.gateway.apis import Api

UNKNOWN_PRODUCER = 987_654_321


def init(transactional_id: str | None, who: tuple[int, int] | None = None, timeout_ms: int = 60_000) -> dict[str, Any]:
    """The fields of InitProducerId."""
    identity = NO_PRODUCER if who is None else {"producer_id": who[0], "producer_epoch": who[1]}
    return {"transactional_id": transactional_id, "transaction_timeout": timeout_ms, **identity}


def added(transactional_id: str, who: tuple[int, int], *partitions: tuple[str, int]) -> dict[str, Any]:
    """The fields of AddPartitionsToTxn."""
    topics: dict[str, list[int]] = {}
    for name, number in partitions:
        topics.setdefault(name, []).append(number)
    return {
        "v3_and_below_transactional_id": transactional_id,
        "v3_and_below_producer_id": who[0],
        "v3_and_below_producer_epoch": who[1],
        "v3_and_below_topics": [{"name": name, "partitions": numbers} for name, numbers in topics.items()],
    }


def with_group(transactional_id: str, who: tuple[int, int], group: str) -> dict[str, Any]:
    """The fields of AddOffsetsToTxn."""
    return {
        "transactional_id": transactional_id,
        "producer_id": who[0],
        "producer_epoch": who[1],
        "group_id": group,
    }


def offsets(
    transactional_id: str, who: tuple[int, int], group: str, *parts: tuple[str, int, int, str], **member: Any
) -> dict[str, Any]:
    """The fields of TxnOffsetCommit: topic, partition, offset and metadata of each part."""
    topics = [
        {
            "name": name,
            "partitions": [
                {
                    "partition_index": number,
                    "committed_offset": offset,
                    "committed_leader_epoch": -1,
                    "committed_metadata": metadata,
                }
            ],
        }
        for name, number, offset, metadata in parts
    ]
    membership = {"generation_id": -1, "member_id": "", "group_instance_id": None, **member}
    return {**with_group(transactional_id, who, group), "topics": topics, **membership}


def producer_ids(wire: Wire) -> None:
    """INIT-01, INIT-02, INIT-08, INIT-10, INIT-11, INIT-13, COORD-06, FEN-01."""
    for version in range(6):
        wire.show("a new id", Api.INIT_PRODUCER_ID, version, init(f"new-{version}"))
        wire.show("the same id again", Api.INIT_PRODUCER_ID, version, init(f"new-{version}"))
        wire.show("without an id", Api.INIT_PRODUCER_ID, version, init(None))
        wire.show("an empty id", Api.INIT_PRODUCER_ID, version, init(""))
        wire.show("no timeout", Api.INIT_PRODUCER_ID, version, init("timeout", timeout_ms=0))
        wire.show("a negative timeout", Api.INIT_PRODUCER_ID, version, init("timeout", timeout_ms=-1))
        wire.show("a timeout of too long", Api.INIT_PRODUCER_ID, version, init("timeout", timeout_ms=900_001))
        wire.show("the longest timeout", Api.INIT_PRODUCER_ID, version, init(f"long-{version}", timeout_ms=900_000))
        wire.show("a timeout without an id", Api.INIT_PRODUCER_ID, version, init(None, timeout_ms=0))
    for version in (3, 4, 5):
        name = f"expected-{version}"
        who = wire.producer(name)
        wire.show("an id without its epoch", Api.INIT_PRODUCER_ID, version, init(name, (who[0], -1)))
        wire.show("an epoch without its id", Api.INIT_PRODUCER_ID, version, init(name, (-1, 0)))
        wire.show("the current epoch", Api.INIT_PRODUCER_ID, version, init(name, who))
        wire.show("the same again", Api.INIT_PRODUCER_ID, version, init(name, who))
        wire.show("an epoch of the future", Api.INIT_PRODUCER_ID, version, init(name, (who[0], 7)))
        wire.show("an epoch of another producer", Api.INIT_PRODUCER_ID, version, init(name, (UNKNOWN_PRODUCER, 0)))
        wire.show("a newer instance", Api.INIT_PRODUCER_ID, version, init(name))
        wire.show("the epoch of the older instance", Api.INIT_PRODUCER_ID, version, init(name, (who[0], who[1] + 1)))
        wire.show("an identity without an id", Api.INIT_PRODUCER_ID, version, init(None, (who[0], 0)))
    for version in (3, 4, 5):
        unknown = init(f"unknown-{version}", wire.producer("known"))
        wire.show("an identity of an unknown id", Api.INIT_PRODUCER_ID, version, unknown)


def partitions_of_transactions(wire: Wire) -> None:
    """ADD-03, ADD-04, FEN-01, COORD-06."""
    t, other = wire.topic("t"), wire.topic("other", 2)
    for version in range(4):
        name = f"add-{version}"
        old = wire.producer(name)
        who = wire.producer(name)
        for label, fields in (
            ("an older epoch", added(name, old, (t, 0))),
            ("an epoch of the future", added(name, (who[0], 9), (t, 0))),
            ("another producer id", added(name, (UNKNOWN_PRODUCER, 0), (t, 0))),
            ("an unknown id", added("unknown", who, (t, 0))),
            ("an empty id", added("", who, (t, 0))),
            ("an unknown topic beside one that exists", added(name, who, (t, 0), ("missing", 0))),
            ("an unknown partition", added(name, who, (t, 5), (other, 1))),
            ("no partition", added(name, who)),
            ("partitions", added(name, who, (t, 0), (other, 1))),
            ("the same again", added(name, who, (t, 0), (other, 1))),
            ("one more", added(name, who, (other, 0))),
        ):
            wire.show(label, Api.ADD_PARTITIONS_TO_TXN, version, fields)
        wire.described(f"after version {version}", name)
        wire.finish(name, who, commit=False)


def groups_of_transactions(wire: Wire) -> None:
    """OFF-01, FEN-01, COORD-06."""
    for version in range(5):
        name = f"group-{version}"
        old = wire.producer(name)
        who = wire.producer(name)
        for label, fields in (
            ("an older epoch", with_group(name, old, "g")),
            ("another producer id", with_group(name, (UNKNOWN_PRODUCER, 0), "g")),
            ("an unknown id", with_group("unknown", who, "g")),
            ("an empty id", with_group("", who, "g")),
            ("an empty group", with_group(name, who, "")),
            ("a group", with_group(name, who, "g")),
            ("the same again", with_group(name, who, "g")),
        ):
            wire.show(label, Api.ADD_OFFSETS_TO_TXN, version, fields)
        wire.finish(name, who, commit=False)


def offsets_of_transactions(wire: Wire) -> None:
    """OFF-02, OFF-05, OFF-06, OFF-08, OFF-15, ADD-08, FEN-01."""
    t = wire.topic("t")
    for version in range(6):
        name = f"offsets-{version}"
        old = wire.producer(name)
        who = wire.producer(name)
        if version < 5:
            wire.show(
                "a group that is not added", Api.TXN_OFFSET_COMMIT, version, offsets(name, who, "g", (t, 0, 1, ""))
            )
            wire.ask(Api.ADD_OFFSETS_TO_TXN, 3, with_group(name, who, "g"))
        for label, fields in (
            ("an offset", offsets(name, who, "g", (t, 0, 1, "m"))),
            ("an older epoch", offsets(name, old, "g", (t, 0, 1, ""))),
            ("an epoch of the future", offsets(name, (who[0], 9), "g", (t, 0, 1, ""))),
            ("another producer id", offsets(name, (UNKNOWN_PRODUCER, 0), "g", (t, 0, 1, ""))),
            ("an unknown id", offsets("unknown", who, "g", (t, 0, 1, ""))),
            ("an empty id", offsets("", who, "g", (t, 0, 1, ""))),
            ("an empty group", offsets(name, who, "", (t, 0, 1, ""))),
            ("an unknown topic beside one that exists", offsets(name, who, "g", (t, 0, 2, ""), ("missing", 0, 1, ""))),
            ("an unknown partition", offsets(name, who, "g", (t, 3, 1, ""))),
            ("too large metadata", offsets(name, who, "g", (t, 0, 1, "x" * 4097))),
            ("a negative offset", offsets(name, who, "g", (t, 0, -5, ""))),
            ("no topic", offsets(name, who, "g")),
        ):
            wire.show(label, Api.TXN_OFFSET_COMMIT, version, fields)
        if version >= 3:
            for label, member in (
                ("a generation without members", {"generation_id": 1, "member_id": "m"}),
                ("a member without generation", {"member_id": "m"}),
                ("an instance without members", {"group_instance_id": "i"}),
            ):
                fields = offsets(name, who, "g", (t, 0, 1, ""), **member)
                wire.show(label, Api.TXN_OFFSET_COMMIT, version, fields)
        asked = {"groups": [{"group_id": "g", "topics": [{"name": t, "partition_indexes": [0]}]}]}
        wire.show(f"pending, after version {version}", Api.OFFSET_FETCH, 9, {**asked, "require_stable": True})
        wire.show(f"the same, not stable, after version {version}", Api.OFFSET_FETCH, 9, asked)
        wire.finish(name, who, commit=version % 2 == 0)
        wire.show(f"decided, after version {version}", Api.OFFSET_FETCH, 9, {**asked, "require_stable": True})


def ends(wire: Wire) -> None:
    """END-02, END-03, END-04, TV2-01, TV2-02, TV2-03, TV2-08, FEN-01."""
    t = wire.topic("t")
    for version in range(6):
        name = f"end-{version}"
        old = wire.producer(name)
        who = wire.producer(name)
        for label, fields in (
            ("a commit of nothing", ended(name, who)),
            ("an older epoch", ended(name, old)),
            ("an epoch of the future", ended(name, (who[0], 9))),
            ("another producer id", ended(name, (UNKNOWN_PRODUCER, 0))),
            ("an unknown id", ended("unknown", who)),
            ("an empty id", ended("", who)),
        ):
            wire.show(label, Api.END_TXN, version, fields)
        for first, second in ((True, False), (False, True)):
            wire.ask(Api.ADD_PARTITIONS_TO_TXN, 3, added(name, who, (t, 0)))
            what = "a commit" if first else "an abort"
            answer = wire.show(what, Api.END_TXN, version, ended(name, who, commit=first))
            wire.settled(name)
            wire.show(f"{what} again", Api.END_TXN, version, ended(name, who, commit=first))
            wire.show(f"the opposite after {what}", Api.END_TXN, version, ended(name, who, commit=second))
            if version == 5:
                who = answer.producer_id, answer.producer_epoch
                wire.show(f"nothing committed after {what}", Api.END_TXN, version, ended(name, who))
                answer = wire.show(
                    f"nothing aborted after {what}", Api.END_TXN, version, ended(name, who, commit=False)
                )
                who = answer.producer_id, answer.producer_epoch
        wire.settled(name)
        wire.described(f"after version {version}", name)


def late_requests(wire: Wire) -> None:
    """ADD-06, ADD-07, OFF-05, END-04, FEN-03, FEN-06: after the end of the transaction in which they were sent."""
    t = wire.topic("t", 2)
    for version in (11, 12):
        name = f"late-{version}"
        who = wire.producer(name)
        if version < 12:
            wire.ask(Api.ADD_PARTITIONS_TO_TXN, 3, added(name, who, (t, 0)))
        record = batch(b"1", who=who, sequence=0, transactional=True)
        wire.show("a record", Api.PRODUCE, version, produced(t, record, name))
        end, offset = (4, 4) if version < 12 else (5, 5)
        answer = wire.show(f"its end before Produce {version}", Api.END_TXN, end, ended(name, who))
        wire.settled(name)
        wire.show("the same record", Api.PRODUCE, version, produced(t, record, name))
        late = batch(b"2", who=who, sequence=1, transactional=True)
        wire.show("the next record", Api.PRODUCE, version, produced(t, late, name))
        first = batch(b"3", who=who, sequence=0, transactional=True)
        wire.show("a record in another partition", Api.PRODUCE, version, produced(t, first, name, partition=1))
        fields = offsets(name, who, "g", (t, 0, 1, ""))
        wire.show("an offset after the end", Api.TXN_OFFSET_COMMIT, offset, fields)
        wire.show(f"the end again after Produce {version}", Api.END_TXN, end, ended(name, who))
        who = (answer.producer_id, answer.producer_epoch) if version == 12 else who
        newer = wire.producer(name)
        for label, api, api_version, asked in (
            ("a record of the older instance", Api.PRODUCE, version, produced(t, late, name)),
            ("its partition", Api.ADD_PARTITIONS_TO_TXN, 3, added(name, who, (t, 0))),
            ("its group", Api.ADD_OFFSETS_TO_TXN, 4, with_group(name, who, "g")),
            ("its offset", Api.TXN_OFFSET_COMMIT, offset, fields),
            ("its commit", Api.END_TXN, end, ended(name, who)),
            ("its abort", Api.END_TXN, end, ended(name, who, commit=False)),
        ):
            wire.show(f"{label} beside Produce {version}", api, api_version, asked)
        wire.finish(name, newer, commit=False)
