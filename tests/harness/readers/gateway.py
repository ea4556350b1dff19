"""A gateway as a reader: fetches of Kafka's wire protocol."""

from __future__ import annotations

import random
import struct
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any

import pyarrow as pa
from aiokafka.record.default_records import DefaultRecord, DefaultRecordBatch
from kio.schema.errors import ErrorCode

from tests.harness.readers.answers import COMMITTED, compare, row_of, shown_in
from tests.harness.readers.history import READS, DifferenceError, History
from tests.harness.readers.model import Shown
from tests.harness.readers.values import canonical
from tests.helpers.gateway import serving
from tests.helpers.gateway_process import fetch_fields
from tests.helpers.kafka_wire import ServedStore
from txnstore.gateway.apis import Api
from txnstore.gateway.records.batch import InvalidBatchError
from txnstore.gateway.records.typed import rows_from_json
from txnstore.store import Store

_VERSION = 11


def gateway(history: History, store: Store, rng: random.Random) -> None:
    """Fetches each partition of a topic from its beginning, as a consumer without a position."""
    assert history.reading is not None
    moment = history.reading.moments[0]
    if history.rights or not moment:  # A gateway knows its clients by other names.
        return
    shown, isolation = moment[rng.choice(sorted(moment))], history.isolation(rng)
    with serving(store) as running:
        served = ServedStore(store, running)
        fetched = [
            (number, list(batch))
            for number, start in enumerate(shown.starts)
            for batch in _fetched(served, shown.name, number, start, committed=isolation == COMMITTED)
        ]
    lives = shown_in(history.reading, shown.name)
    found = _all_rows(lives, fetched, shown)
    candidates = []
    for each in lives:
        names = ["_partition", "_offset", "_timestamp"]
        names += ["key", "value", "headers"] if each.schema is None else each.names
        candidates.append([_as_read(each, row_of(each, placed, names)) for placed in each.rows[isolation]])
    if not history.reading.injected:
        compare(history, "gateway", f"{shown.name} ({isolation})", candidates, found)
        return
    history.coverage.reads["gateway"] += 1
    history.coverage.rows["gateway"] += len(found)
    # The text of a float is another number once it is read as a double.
    _compare_mixed(history, f"{shown.name} ({isolation})", candidates, found, _all_rows(lives[:1], fetched, shown))


def _all_rows(
    lives: Sequence[Shown], fetched: Sequence[tuple[int, list[DefaultRecord]]], shown: Shown
) -> list[dict[str, Any]]:
    rows = (row for number, records in fetched for row in _rows(lives, number, records))
    return [row for row in rows if row["_offset"] >= shown.starts[row["_partition"]]]


def _compare_mixed(
    history: History, what: str, candidates: list[list[Any]], found: list[Any], by_schema_before: list[Any]
) -> None:
    """Each partition is fetched for itself: rows may be of the moment before or of the one after."""
    assert history.reading is not None
    may = [_without_nulls(row) for rows in candidates for row in rows]
    forms = zip(found, by_schema_before, strict=True)
    wrong = [row for row, before in forms if _without_nulls(row) not in may and _without_nulls(before) not in may]
    if wrong:
        raise DifferenceError("gateway", f"{what}: a row that was never there: {wrong[0]}")
    if not {"delete", "recreate"}.isdisjoint(history.reading.injected):
        return
    places = {(row["_partition"], row["_offset"]) for row in found}
    sure = [{(row["_partition"], row["_offset"]) for row in rows} for rows in candidates]
    missing = sorted(set.intersection(*sure) - places)
    if missing:
        raise DifferenceError("gateway", f"{what}: {missing[:5]} were not returned")


def _without_nulls(row: Any) -> Any:
    """A row without what is null: a column that is there at one of two moments only."""
    return {name: value for name, value in row.items() if value is not None}


def _fetched(
    served: ServedStore, topic: str, number: int, offset: int, *, committed: bool
) -> Iterator[DefaultRecordBatch]:
    """The batches of a partition, without those that a read_committed consumer leaves out."""
    while True:
        fields = fetch_fields(topic, offset)
        fields["topics"][0]["partitions"][0]["partition"] = number
        answer = served.ask(Api.FETCH, {**fields, "isolation_level": int(committed)}, _VERSION)
        part = answer.responses[0].partitions[0]
        if part.error_code is ErrorCode.offset_out_of_range:  # Records were deleted meanwhile.
            offset = _earliest(served, topic, number)
            continue
        batches = list(_batches(part.records or b""))
        if not batches:
            return
        aborted = [(each.producer_id, each.first_offset) for each in part.aborted_transactions or ()]
        ended: set[tuple[int, int]] = set()
        for batch in batches:
            mine = [each for each in aborted if each[0] == batch.producer_id and each[1] <= batch.base_offset]
            if batch.is_control_batch:
                ended.update(mine)
            elif not committed or not batch.is_transactional or not set(mine) - ended:
                yield batch
        offset = batches[-1].next_offset


def _earliest(served: ServedStore, topic: str, number: int) -> int:
    """Where a consumer begins whose offset is out of range."""
    partition = {"partition_index": number, "timestamp": -2}
    asked = {"replica_id": -1, "isolation_level": 0, "topics": [{"name": topic, "partitions": [partition]}]}
    return int(served.ask(Api.LIST_OFFSETS, asked).topics[0].partitions[0].offset)


def _batches(data: bytes) -> Iterator[DefaultRecordBatch]:
    while len(data) > 12:
        (size,) = struct.unpack_from(">i", data, 8)
        yield DefaultRecordBatch(data[: size + 12])
        data = data[size + 12 :]


def _rows(lives: Sequence[Shown], number: int, records: list[DefaultRecord]) -> Iterator[dict[str, Any]]:
    """The rows of a batch, by the newest schema of the topic that they fit."""
    parsed = None
    for shown in reversed(lives):
        if shown.schema is not None:
            # Of a tombstone clients get the key only.
            is_row = [shown.tombstone is None or record.value is not None for record in records]
            values = pa.array([record.value for record, row in zip(records, is_row, strict=True) if row], pa.binary())
            with suppress(InvalidBatchError):
                rows = iter(rows_from_json(values, pa.nulls(len(values), pa.binary()), shown.schema, None).to_pylist())
                parsed = [next(rows) if is_row[at] else _tombstone(shown, record) for at, record in enumerate(records)]
                break
    for at, record in enumerate(records):
        own = {"_partition": number, "_offset": record.offset, "_timestamp": record.timestamp * 1000}
        if parsed is None:
            headers = [{"key": name, "value": value} for name, value in record.headers]
            yield {**own, "key": record.key, "value": record.value, "headers": headers}
        else:
            yield {**own, **{name: canonical(value) for name, value in parsed[at].items()}}


def _tombstone(shown: Shown, record: DefaultRecord) -> dict[str, Any]:
    """The row of a tombstone as far as clients see it."""
    assert shown.key is not None
    assert shown.tombstone is not None
    assert record.key is not None
    return {**dict.fromkeys(shown.names), shown.key: record.key.decode(), shown.tombstone: True}


def _as_read(shown: Shown, row: dict[str, Any]) -> dict[str, Any]:
    """A row as clients see it."""
    if shown.tombstone is None or row[shown.tombstone] is not True:
        return row
    seen = {"_partition", "_offset", "_timestamp", shown.key, shown.tombstone}
    return {name: value if name in seen else None for name, value in row.items()}


READS["gateway"] = gateway
