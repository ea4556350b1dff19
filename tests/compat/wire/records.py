"""Scenarios of records: Produce, Fetch, ListOffsets, epochs of leaders, deletions of records."""

from __future__ import annotations

import struct
from typing import Any
from uuid import UUID

from crc32c import crc32c

from tests.compat.wire.connection import Wire, batch, produced, values
from tests.compat.wire.transactions import UNKNOWN_PRODUCER, added
from txnstore.gateway.apis import Api

UNKNOWN_TOPIC = UUID(int=0x1234567890ABCDEF1234567890ABCDEF)


def _with_attributes(data: bytes, attributes: int) -> bytes:
    """A batch with other attributes, and the checksum that fits."""
    changed = data[:21] + struct.pack(">h", attributes) + data[23:]
    return changed[:17] + struct.pack(">I", crc32c(changed[21:])) + changed[21:]


def _several(*topics: tuple[str, list[tuple[int, bytes]]], transactional_id: str | None = None) -> dict[str, Any]:
    data = [
        {"name": name, "partition_data": [{"index": number, "records": each} for number, each in parts]}
        for name, parts in topics
    ]
    return {"transactional_id": transactional_id, "acks": -1, "timeout": 30_000, "topic_data": data}


def appends(wire: Wire) -> None:
    """SEQ-01…SEQ-10, SEQ-12, SEQ-18, SEQ-22, CTL-03, CTL-06: what is taken, and what is refused with which code."""
    t, keyed = wire.topic("t", 2), wire.topic("keyed", policy="compact")
    for version in (*range(3, 13), 13):
        topic = wire.topic_ids[t] if version == 13 else t
        wire.show("a record", Api.PRODUCE, version, produced(topic, batch(b"1")))
        wire.show("an unknown partition", Api.PRODUCE, version, produced(topic, batch(b"1"), partition=7))
        missing = UNKNOWN_TOPIC if version == 13 else "missing"
        wire.show("an unknown topic", Api.PRODUCE, version, produced(missing, batch(b"1")))
    wire.show("no topic id", Api.PRODUCE, 13, produced(UUID(int=0), batch(b"1")))
    plain = batch(b"1")
    damaged = plain[:-2] + bytes([plain[-2] ^ 1]) + plain[-1:]
    for label, fields in (
        ("of one acknowledgement", produced(t, plain, acks=1)),
        ("of two acknowledgements", produced(t, plain, acks=2)),
        ("of minus two acknowledgements", produced(t, plain, acks=-2)),
        ("a damaged batch", produced(t, damaged)),
        ("two batches", produced(t, plain + plain)),
        ("an empty set of records", produced(t, b"")),
        ("no records", produced(t, None)),
        ("a control batch", produced(t, _with_attributes(plain, 0x20))),
        ("a transactional batch without a producer", produced(t, _with_attributes(plain, 0x10))),
        ("a record without a key where one is needed", produced(keyed, plain)),
        ("a key of transactions without a transactional batch", produced(t, plain, "x")),
        ("an unknown compression", produced(t, _with_attributes(plain, 7))),
        ("one of several topics is unknown", _several((t, [(0, plain), (1, plain)]), ("missing", [(0, plain)]))),
    ):
        wire.show(label, Api.PRODUCE, 9, fields)
    zstd = batch(b"1" * 100)
    wire.show("zstd before it was known", Api.PRODUCE, 6, produced(t, _with_attributes(zstd, 4)))


def sequences(wire: Wire) -> None:
    """SEQ-01…SEQ-08, SEQ-10, SEQ-12: of an idempotent producer, and of one in a transaction."""
    t = wire.topic("t", 3)
    for version in (9, 12):
        who = wire.producer()
        for label, sequence, number in (
            ("the first batch", 0, 2), ("the next", 2, 1), ("the next again", 2, 1), ("a part of the first", 0, 1),
            ("more than the next", 2, 2), ("after a gap", 9, 1), ("the third", 3, 1), ("the fourth", 4, 1),
            ("the fifth", 5, 1), ("the sixth", 6, 1), ("the first again, behind the window", 0, 2),
            ("the second again, in the window", 2, 1),
        ):  # fmt: skip
            each = batch(*[b"%d" % sequence] * number, who=who, sequence=sequence)
            wire.show(label, Api.PRODUCE, version, produced(t, each))
        newer = (who[0], who[1] + 1)
        for label, each, number in (
            ("a newer epoch in its middle", batch(b"e", who=newer, sequence=5), 0),
            ("a newer epoch", batch(b"e", who=newer, sequence=0), 0),
            ("the older epoch", batch(b"o", who=who, sequence=7), 0),
            ("a producer that nobody knows", batch(b"u", who=(UNKNOWN_PRODUCER + version, 0), sequence=0), 2),
            ("one that nobody knows, later", batch(b"m", who=(UNKNOWN_PRODUCER + 9 + version, 0), sequence=5), 2),
            ("a producer without sequence", batch(b"s", who=who), 0),
            ("a sequence without producer", batch(b"p", sequence=0), 0),
        ):
            wire.show(label, Api.PRODUCE, version, produced(t, each, partition=number))
        other = wire.producer()
        two = _several((t, [(0, batch(b"1", who=newer, sequence=1)), (1, batch(b"1", who=other, sequence=0))]))
        wire.show("two producers in a request", Api.PRODUCE, version, two)


def transactional_appends(wire: Wire) -> None:
    """SEQ-10, ADD-06, ADD-08, ADD-09, FEN-01, FEN-06, CTL-03."""
    t = wire.topic("t", 3)
    for version in (9, 11, 12):
        name = f"append-{version}"
        old = wire.producer(name)
        who = wire.producer(name)
        first = batch(b"1", who=who, sequence=0, transactional=True)
        if version < 12:
            wire.show("a partition that is not added", Api.PRODUCE, version, produced(t, first, name))
            wire.ask(Api.ADD_PARTITIONS_TO_TXN, 3, added(name, who, (t, 0)))
        wire.show("a record", Api.PRODUCE, version, produced(t, first, name))
        for label, fields in (
            ("the same again", produced(t, first, name)),
            ("a gap", produced(t, batch(b"g", who=who, sequence=5, transactional=True), name)),
            ("an older epoch", produced(t, batch(b"o", who=old, sequence=0, transactional=True), name)),
            (
                "an older epoch elsewhere",
                produced(t, batch(b"o", who=old, sequence=0, transactional=True), name, partition=1),
            ),
            ("outside of the transaction", produced(t, batch(b"n", who=who, sequence=1))),
            ("not transactional, with an id", produced(t, batch(b"n", who=who, sequence=1), name)),
            ("without the id", produced(t, batch(b"w", who=who, sequence=1, transactional=True))),
            ("an empty id", produced(t, batch(b"w", who=who, sequence=1, transactional=True), "")),
            ("of another id", produced(t, batch(b"w", who=who, sequence=1, transactional=True), "unknown")),
            (
                "in its middle elsewhere",
                produced(t, batch(b"m", who=who, sequence=4, transactional=True), name, partition=2),
            ),
            (
                "an unknown partition",
                produced(t, batch(b"u", who=who, sequence=0, transactional=True), name, partition=9),
            ),
            ("the next", produced(t, batch(b"2", who=who, sequence=1, transactional=True), name)),
            # A broker keeps the lowest sequence of what it has refused, and refuses what is above that.
            ("an epoch of the future", produced(t, batch(b"f", who=(who[0], 9), sequence=0, transactional=True), name)),
        ):
            wire.show(label, Api.PRODUCE, version, fields)
        wire.finish(name, who)


def without_acknowledgement(wire: Wire) -> None:
    """Produce with acks 0 has no response; an error closes the connection."""
    t = wire.topic("t")
    for version in (7, 12):
        with wire.other() as client:
            client.begin(Api.PRODUCE, version, produced(t, batch(b"1"), acks=0))
            answer = client.ask(Api.METADATA, 12, {"topics": []})  # The next response is that of the next request.
            wire.note(f"the next request after Produce {version}", answer.throttle_time)
        with wire.other() as client:
            client.begin(Api.PRODUCE, version, produced("missing", batch(b"1"), acks=0))
            wire.note(f"an unknown topic closes after Produce {version}", client.is_closed())
    for _ in range(100):
        if wire.end(t) == 2:
            break
        wire.pause()
    wire.note("records", wire.end(t))


def _fetch(topic: str | UUID, offset: int, **options: Any) -> dict[str, Any]:
    part = {
        "partition": options.pop("partition", 0),
        "fetch_offset": offset,
        "partition_max_bytes": options.pop("partition_max_bytes", 1 << 20),
        "current_leader_epoch": options.pop("epoch", -1),
        "last_fetched_epoch": options.pop("fetched_epoch", -1),
        "log_start_offset": -1,
    }
    named = {"topic_id": topic} if isinstance(topic, UUID) else {"topic": topic}
    return {
        "replica_id": -1,
        "max_wait": 0,
        "min_bytes": 0,
        "max_bytes": 50 << 20,
        "session_id": 0,
        "session_epoch": -1,
        "topics": [{**named, "partitions": [part]}],
        **options,
    }


def _fetched(wire: Wire, label: str, version: int, fields: dict[str, Any]) -> None:
    """Collect a response with its records as values, without markers and aborted records: a reader sees the same."""
    answer = wire.ask(Api.FETCH, version, fields)
    rows: list[Any] = [getattr(answer, "error_code", None)]
    for topic in answer.responses:
        for part in topic.partitions:
            aborted = {each.producer_id for each in part.aborted_transactions or ()}
            row = {
                "partition": part.partition_index,
                "code": part.error_code,
                "high_watermark": part.high_watermark,
                "last_stable_offset": part.last_stable_offset,
                "log_start": getattr(part, "log_start_offset", None),
                "values": values(part.records) if not aborted else "aborted ones are named",
                "preferred": getattr(part, "preferred_read_replica", None),
            }
            rows.append(row)
    wire.note(f"{label}, FETCH {version}", [rows[0], *rows[1:]])


def fetches(wire: Wire) -> None:
    """LSO-11, LSO-12, CON-02, CON-07, CON-18: isolation, offsets out of range, topics, epochs, sessions."""
    t = wire.topic("t", 2)
    for value in (b"0", b"1", b"2"):
        wire.produce(t, batch(value))
    who = wire.producer("open")
    wire.produce(t, batch(b"3", who=who, sequence=0, transactional=True), "open")
    wire.produce(t, batch(b"4"))
    for version in range(4, 18):
        topic: str | UUID = wire.topic_ids[t] if version >= 13 else t
        missing: str | UUID = UNKNOWN_TOPIC if version >= 13 else "missing"
        for label, fields in (
            ("committed records", _fetch(topic, 0, isolation_level=1)),
            ("all records", _fetch(topic, 0)),
            ("from the middle", _fetch(topic, 1)),
            ("at the last stable offset", _fetch(topic, 3, isolation_level=1)),
            ("between the last stable offset and the end", _fetch(topic, 4, isolation_level=1)),
            ("at the end", _fetch(topic, 5)),
            ("above the end", _fetch(topic, 6)),
            ("above the end, committed", _fetch(topic, 6, isolation_level=1)),
            ("a negative offset", _fetch(topic, -1)),
            ("an unknown partition", _fetch(topic, 0, partition=9)),
            ("an unknown topic", _fetch(missing, 0)),
            ("an empty partition", _fetch(topic, 0, partition=1)),
            ("of one byte", _fetch(topic, 0, max_bytes=1, partition_max_bytes=1)),
            ("nothing", {**_fetch(topic, 0), "topics": []}),
        ):
            _fetched(wire, label, version, fields)
        if version >= 9:
            _fetched(wire, "the current epoch", version, _fetch(topic, 0, epoch=0))
            _fetched(wire, "an epoch of the future", version, _fetch(topic, 0, epoch=5))
        if version >= 12:
            _fetched(wire, "the epoch of the last record", version, _fetch(topic, 0, epoch=0, fetched_epoch=0))
        if version >= 7:
            _fetched(wire, "an unknown session", version, _fetch(topic, 0, session_id=77, session_epoch=3))
            _fetched(wire, "the end of a session", version, _fetch(topic, 0, session_id=77, session_epoch=-1))
    wire.finish("open", who, commit=False)
    _fetched(wire, "after the end", 12, _fetch(t, 4))


def _times(topic: str, timestamp: int, partition: int = 0, epoch: int = -1, isolation: int = 0) -> dict[str, Any]:
    part = {"partition_index": partition, "timestamp": timestamp, "current_leader_epoch": epoch}
    return {
        "replica_id": -1,
        "isolation_level": isolation,
        "topics": [{"name": topic, "partitions": [part]}],
        "timeout": 1000,
    }


def listed_offsets(wire: Wire) -> None:
    """LSO-11, CON-13, CON-14: the special timestamps -1 to -6, times, isolation, epochs."""
    t, empty = wire.topic("t", 2), wire.topic("empty")
    wire.produce(t, batch(b"a", b"b", b"c"))  # At 1000, 1001, 1002.
    who = wire.producer("open")
    wire.produce(t, batch(b"d", b"e", who=who, sequence=0, transactional=True), "open")  # At 1000 and 1001 again.
    for version in range(1, 12):
        for timestamp in (-1, -2, -3, -4, -5, -6, -7):
            wire.show(f"of {timestamp}", Api.LIST_OFFSETS, version, _times(t, timestamp))
            if version >= 2:
                label = f"of {timestamp}, committed"
                wire.show(label, Api.LIST_OFFSETS, version, _times(t, timestamp, isolation=1))
            wire.show(f"of {timestamp} in an empty log", Api.LIST_OFFSETS, version, _times(empty, timestamp))
        for time in (0, 1000, 1001, 1002, 1003):
            wire.show(f"of the time {time}", Api.LIST_OFFSETS, version, _times(t, time))
        wire.show("of an unknown partition", Api.LIST_OFFSETS, version, _times(t, -1, partition=9))
        wire.show("of an unknown topic", Api.LIST_OFFSETS, version, _times("missing", -1))
        wire.show("of the future", Api.LIST_OFFSETS, version, _times(t, 1 << 50))
        if version >= 4:
            wire.show("of the current epoch", Api.LIST_OFFSETS, version, _times(t, -1, epoch=0))
            wire.show("of an epoch of the future", Api.LIST_OFFSETS, version, _times(t, -1, epoch=5))
        twice = _times(t, -1)
        twice["topics"] = [
            {"name": t, "partitions": [*twice["topics"][0]["partitions"], *_times(t, -2)["topics"][0]["partitions"]]}
        ]
        wire.show("of a partition that is named twice", Api.LIST_OFFSETS, version, twice)
        wire.show("of nothing", Api.LIST_OFFSETS, version, {**twice, "topics": []})
    wire.finish("open", who, commit=False)
    wire.show("the newest time, after an abort", Api.LIST_OFFSETS, 7, _times(t, -3))


def epochs_of_leaders(wire: Wire) -> None:
    """OffsetForLeaderEpoch: the end of an epoch, or none."""
    t, empty = wire.topic("t"), wire.topic("empty")
    wire.produce(t, batch(b"a", b"b"))
    for version in range(2, 5):
        for topic in (t, empty, "missing"):
            for epoch in (-1, 0, 1, 7):
                for current in (-1, 0, 3):
                    part = {"partition": 0, "leader_epoch": epoch, "current_leader_epoch": current}
                    fields = {"replica_id": -1, "topics": [{"topic": topic, "partitions": [part]}]}
                    label = f"of {topic}, epoch {epoch}, known {current}"
                    wire.show(label, Api.OFFSET_FOR_LEADER_EPOCH, version, fields)


def _deletion(topic: str, offset: int, partition: int = 0) -> dict[str, Any]:
    parts = [{"partition_index": partition, "offset": offset}]
    return {"timeout": 10_000, "topics": [{"name": topic, "partitions": parts}]}


def deletions(wire: Wire) -> None:
    """RET-04, RET-06, LSO-05."""
    t, keyed = wire.topic("t"), wire.topic("keyed", policy="compact")
    both = wire.topic("both", policy="compact,delete")
    for version in range(3):
        wire.produce(t, batch(b"a", b"b", b"c"))
        end = wire.end(t)
        for label, fields in (
            ("nothing new", _deletion(t, end - 3)),
            ("one", _deletion(t, end - 2)),
            ("below the start", _deletion(t, 0)),
            ("above the end", _deletion(t, end + 1)),
            ("a negative offset", _deletion(t, -2)),
            ("an unknown partition", _deletion(t, 0, partition=4)),
            ("an unknown topic", _deletion("missing", 0)),
            ("a compacted topic", _deletion(keyed, 0)),
            ("a topic that is compacted and deleted", _deletion(both, 0)),
            ("all", _deletion(t, -1)),
        ):
            wire.show(label, Api.DELETE_RECORDS, version, fields)
        wire.show(f"the start after version {version}", Api.LIST_OFFSETS, 7, _times(t, -2))
        _fetched(wire, f"below the start after version {version}", 12, _fetch(t, 0))
