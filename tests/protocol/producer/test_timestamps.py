"""The timestamp that a producer reports is the one that readers find, whatever passes between send and commit."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa
import pytest

from tests.helpers.compaction import new_store
from txnstore.storage.memory import MemoryStore
from txnstore.testing import ManualClock

TYPED = pa.schema([("a", pa.int64())])
TIMED = pa.schema([("a", pa.int64()), ("at", pa.timestamp("ms", "UTC"))])
KINDS: list[dict[str, Any]] = [
    {},
    {"schema": TYPED},
    {"schema": TIMED, "timestamp": "at"},
    {"config": {"message.timestamp.type": "LogAppendTime"}},
    {"schema": TYPED, "config": {"message.timestamp.type": "LogAppendTime"}},
]


class SlowUploads(MemoryStore):
    """Objects in memory; an upload takes some time of this clock."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__(clock=clock)
        self._passes = clock.advance

    def put(self, key: str, data: bytes) -> None:
        super().put(key, data)
        self._passes(40)


@pytest.mark.parametrize("chains", [1, 3])
@pytest.mark.parametrize("inlined", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_reported_timestamps_are_those_that_readers_find(
    clock: ManualClock, kind: Mapping[str, Any], inlined: bool, chains: int
) -> None:
    config = dict(kind.get("config", {})) | ({} if inlined else {"inline.bytes": 0})
    store = new_store(clock, SlowUploads(clock), chains=chains)
    store.create_topic("t", partitions=3, **{**kind, "config": config})
    typed = "schema" in kind
    with store.producer("w") as producer:
        producer.begin_transaction()
        futures = []
        for number in range(6):
            value: Any = {"a": number} if typed else b"%d" % number
            futures.append(producer.send("t", value, partition=number % 3))
            clock.advance(100)
            if number == 2 and not inlined:
                producer.flush()
                clock.advance(1_000)
        tables = [producer.send_table("t", pa.table({"a": [7, 8]}))] if typed else []
        clock.advance(1_000)
        producer.commit_transaction()
        reported = [future.result() for future in futures] + [row for table in tables for row in table.result()]
    clock.advance(60_000)
    for _ in range(2):
        found = store.scan("t").to_table()
        times = dict(
            zip(
                zip(found["_partition"].to_pylist(), found["_offset"].to_pylist(), strict=True),
                found["_timestamp"].cast(pa.int64()).to_pylist(),
                strict=True,
            )
        )
        assert {(each.partition, each.offset): each.timestamp for each in reported} == times
        store.compact(force=True)
