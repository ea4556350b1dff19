"""Hand-made slices of each kind: how their rows are stored, and the rows that each reader must show."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product
from typing import Any, Literal

import pyarrow as pa

from txnstore.core.catalog.model import CatalogTopic
from txnstore.core.log.model import Batch, Segment, TimestampType
from txnstore.core.log.slices import Slice
from txnstore.core.model import TopicPartition
from txnstore.segment.codec import encode
from txnstore.segment.schema import OFFSET_FIELD, PARTITION_FIELD, TIMESTAMP_FIELD, schema_to_text
from txnstore.storage.base import ObjectStore

#: Partition, offset, time in ms, and the columns ``n`` and ``s``.
Row = tuple[int, int, int, int, str | None]

INSTANT = pa.timestamp("us", "UTC")
#: The columns of the topic; an older segment has a narrower ``n``, and no ``s``.
SCHEMA = pa.schema(
    [("n", pa.int64()), ("us", INSTANT), ("ms", TIMESTAMP_FIELD.type), ("i", pa.int64()), ("s", "string")]
)
_OLD = pa.schema([pa.field("n", pa.int32()), *list(SCHEMA)[1:4]])
#: The greatest time of a batch: that of a row without one.
LATEST = 90_000

#: ``own``: a segment of one batch; ``parts``: of several; ``merged``: of one, with offsets; ``merged_parts``: of
#: several, with them.
Layout = Literal["own", "parts", "merged", "merged_parts"]
LAYOUTS: tuple[Layout, ...] = ("own", "parts", "merged", "merged_parts")
#: A column of the topic, no column, or the time of the append.
Time = Literal["us", "ms", "i", "none", "append"]
TIMES: tuple[Time, ...] = ("us", "ms", "i", "none", "append")
MERGED: tuple[Layout, ...] = ("merged", "merged_parts")


@dataclass(frozen=True)
class Case:
    """A segment, and what of it is visible."""

    layout: Layout
    cut: bool = False
    time: Time = "us"
    old: bool = False

    def __str__(self) -> str:
        return "-".join([self.layout, "cut" if self.cut else "whole", self.time, *(["old"] if self.old else [])])


CASES = tuple(Case(*each) for each in product(LAYOUTS, (False, True), TIMES, (False, True)))


@dataclass(frozen=True)
class Made:
    """What a case is made of.

    Attributes:
        topic: The topic.
        table: The rows of the segment.
        slices: What is visible of its batches.
        rows: The visible rows, in their order.
    """

    topic: CatalogTopic
    table: pa.Table
    slices: tuple[Slice, ...]
    rows: tuple[Row, ...]

    def put(self, objects: ObjectStore, table: pa.Table | None = None) -> tuple[Slice, ...]:
        """Store the rows of the segment, or others; returns the slices of a segment with these bytes."""
        encoded = encode(self.table if table is None else table, row_group_rows=4)
        old = self.slices[0].batch.segment
        objects.put(old.key, encoded.data)
        segment = encoded.segment(old.key, old.explicit_offsets)
        return tuple(replace(part, batch=replace(part.batch, segment=segment)) for part in self.slices)


def made(case: Case) -> Made:
    """The segment of a case: two batches of partition 1, then one of partition 2; of ``own`` and ``merged`` one."""
    merged, several = case.layout in MERGED, case.layout in ("parts", "merged_parts")
    counts = [(1, 100, 6), (1, 200, 3), (2, 7, 4)] if several else [(1, 100, 6)]
    step = 3 if merged else 1
    rows = [(partition, base + step * row) for partition, base, count in counts for row in range(count)]
    at = [None if row % 3 == 2 else 1_000 * row for row in range(len(rows))]
    config = {"message.timestamp.type": "LogAppendTime"} if case.time == "append" else {}
    column = "us" if case.time == "append" else None if case.time == "none" else case.time
    topic = CatalogTopic("t", "id", 3, schema=schema_to_text(SCHEMA), timestamp=column, config=config)
    table = _table(rows, at, case)
    segment = Segment("topics/t/1/made.parquet", "parquet", 0, "", table.num_rows, merged)
    slices: list[Slice] = []
    shown: list[Row] = []
    first_row = 0
    for number, (partition, base, count) in enumerate(counts):
        limit = base + step * count + (2 if merged else 0)
        kind: TimestampType = "LogAppendTime" if case.time == "append" and not merged else "CreateTime"
        batch = Batch(base, limit, count, segment, 0, LATEST, first_row=first_row, timestamp_type=kind)
        start = base + step + 1 if case.cut and number == 0 else base
        end = base + step * (count - 1) if case.cut and number == len(counts) - 1 else limit
        slices.append(Slice(TopicPartition("t", partition), batch, start, end))
        shown += [
            (partition, offset, _time(case, at[row]), row, None if case.old else f"s{row}")
            for row, (_, offset) in list(enumerate(rows))[first_row : first_row + count]
            if start <= offset < end
        ]
        first_row += count
    return Made(topic, table, tuple(slices), tuple(shown))


def _table(rows: list[tuple[int, int]], at: list[int | None], case: Case) -> pa.Table:
    number = len(rows)
    filled = [LATEST if moment is None else moment for moment in at]
    columns: dict[str, Any] = {
        "n": range(number),
        "us": [None if moment is None else moment * 1_000 + 7 for moment in at],
        "ms": filled,  # Writers replace a null event time; DuckDB uses a column of the type of ``_timestamp`` as it is.
        "i": at,
        "s": [f"s{row}" for row in range(number)],
        "_partition": [partition for partition, _ in rows],
        "_offset": [offset for _, offset in rows],
        "_timestamp": [LATEST if moment is None else moment + 1 for moment in at],
    }
    stored = [*(_OLD if case.old else SCHEMA)]
    if case.layout in MERGED:
        place = [PARTITION_FIELD] if case.layout == "merged_parts" else []
        stored = [*place, OFFSET_FIELD, TIMESTAMP_FIELD, *stored]
    return pa.Table.from_arrays(
        [pa.array(columns[field.name], field.type) for field in stored], schema=pa.schema(stored)
    )


def _time(case: Case, moment: int | None) -> int:
    """The time of a row: stored by a compaction, else of the append, or that of the column."""
    if case.layout in MERGED:
        return LATEST if moment is None else moment + 1
    return LATEST if moment is None or case.time in ("append", "none") else moment


@dataclass(frozen=True)
class Damage:
    """What is wrong with a segment of a layout.

    Attributes:
        name: Describes it.
        layout: Of which segment.
        message: What a reader that opens the file says of it.
        engines: Whether the engines that open files themselves see it, too.
        verified: Whether a verification reports it.
    """

    name: str
    layout: Layout
    message: str
    engines: bool = False
    verified: bool = True

    def __str__(self) -> str:
        return f"{self.layout}-{self.name}"

    def table(self, table: pa.Table) -> pa.Table:
        """The rows of the segment as they are stored."""
        match self.name:
            case "unknown column":
                return table.append_column("later", pa.nulls(len(table), pa.int8()))
            case "another partition":
                other = pa.array([9, *table["_partition"].to_pylist()[1:]], pa.int32())
                return table.set_column(table.schema.get_field_index("_partition"), PARTITION_FIELD, other)
            case "a row too few":
                return table.slice(1)
        return table.drop_columns([self.name])


def damages() -> Iterator[Damage]:
    """What readers must refuse."""
    for layout in MERGED:
        yield Damage("_offset", layout, "no column _offset", engines=True)
        yield Damage("_timestamp", layout, "no column _timestamp")
    yield Damage("_partition", "merged_parts", "no column _partition", engines=True)
    yield Damage("another partition", "merged_parts", "another partition")
    for layout in LAYOUTS:
        yield Damage("unknown column", layout, "unknown column", verified=False)
        yield Damage("a row too few", layout, "rows; expected")


DAMAGES = tuple(damages())
