"""Inlined segments that are decoded once, and slices that are converted together."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from tests.harness.executors import InlineExecutor
from tests.helpers.connections import connection_of, stored_topic
from tests.helpers.reading import append, new_store, read_slice
from txnstore.core.catalog.model import CatalogTopic
from txnstore.core.log.model import Batch
from txnstore.core.log.slices import Slice
from txnstore.core.model import TopicPartition
from txnstore.errors import CorruptionError
from txnstore.read.readahead import read_ahead
from txnstore.read.reader import open_slice, read_together
from txnstore.read.rows import Columns
from txnstore.read.sharing import SharedSegments
from txnstore.segment.codec import encode
from txnstore.segment.schema import schema_to_text
from txnstore.storage.counting import CountingStore
from txnstore.storage.memory import MemoryStore
from txnstore.testing import ManualClock

SCHEMA = pa.schema([("n", pa.int64()), ("at", pa.timestamp("ms", "UTC")), ("s", pa.string())])


def topic(**changes: Any) -> CatalogTopic:
    return replace(CatalogTopic("t", "id", 3, schema=schema_to_text(SCHEMA), timestamp="at"), **changes)


def slices_of(objects: CountingStore, fmt: str, seed: int = 1) -> list[Slice]:
    """Parts of batches that share segments: of both schemas of the topic, fresh and merged ones, in random order."""
    draw = random.Random(seed)
    result = []
    for number in range(12):
        rows = draw.randint(2, 30)
        table = pa.table(
            {
                "n": pa.array([number * 100 + row for row in range(rows)], pa.int32()),
                "at": pa.array(
                    [draw.choice([None, number * 1000 + row]) for row in range(rows)], SCHEMA.field("at").type
                ),
            }
        )
        if number % 3:
            table = pa.Table.from_arrays(
                [table["n"].cast(pa.int64()), table["at"], pa.nulls(rows, pa.string())], SCHEMA.names
            )
        merged = number % 4 == 3
        if merged:
            table = table.append_column("_offset", pa.array([5 * row for row in range(rows)]))
            table = table.append_column("_timestamp", pa.array(list(range(rows)), pa.timestamp("ms", "UTC")))
        key = f"chains/0/entries/{number:020}.json"
        encoded = encode(table, fmt, row_group_rows=draw.randint(1, rows))
        objects.put(key, bytes(encoded.data) + b"\n{}")
        segment = replace(encoded.segment(key, merged), first_byte=0)
        at = 0
        while at < rows:
            count = rows if merged else draw.randint(1, rows - at)
            base = 0 if merged else draw.randint(0, 1000)
            limit = base + (5 * rows if merged else count)
            batch = Batch(base, limit, count, segment, 1, 2_000 + number, first_row=at, appended_at=3_000 + number)
            start = draw.randint(base, limit - 1)
            result.append(Slice(TopicPartition("t", draw.randrange(3)), batch, start, draw.randint(start + 1, limit)))
            at += count
    draw.shuffle(result)
    return result


def rows_of(part: Slice) -> list[tuple[int, int, int]]:
    """The partition, offset and value of ``n`` of each row of a slice, by the rules of :func:`slices_of`."""
    batch, number = part.batch, int(part.batch.segment.object[-25:-5])
    if batch.segment.explicit_offsets:
        offsets = {5 * row: row for row in range(batch.records)}
    else:
        offsets = {batch.base_offset + row: batch.first_row + row for row in range(batch.records)}
    return [
        (part.tp.partition, offset, 100 * number + row)
        for offset, row in offsets.items()
        if part.start <= offset < part.limit
    ]


@pytest.fixture
def objects() -> CountingStore:
    return CountingStore(MemoryStore())


@pytest.mark.parametrize("fmt", ["parquet", "arrow"])
@pytest.mark.parametrize("config", [{}, {"message.timestamp.type": "LogAppendTime"}])
@pytest.mark.parametrize("names", [None, ["_offset", "s"], ["_partition"], ["n", "_timestamp"]])
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_slices_that_are_converted_together_have_the_rows_of_each(
    objects: CountingStore, fmt: str, config: dict[str, str], names: list[str] | None, seed: int
) -> None:
    slices = slices_of(objects, fmt, seed)
    columns = Columns(topic(config=config), names)
    expected = pa.concat_tables(read_slice(objects, part, columns) for part in slices)
    together = read_together([open_slice(objects, part, columns) for part in slices], columns)
    assert together.schema == expected.schema == columns.schema
    assert together.to_pylist() == expected.to_pylist()
    if names is None:
        assert list(zip(*(together[name].to_pylist() for name in ("_partition", "_offset", "n")), strict=True)) == [
            row for part in slices for row in rows_of(part)
        ]
    assert max(column.num_chunks for column in together.columns) == 1
    segments = SharedSegments(objects, InlineExecutor)
    for _ in range(2):
        assert segments.read(slices, columns).to_pylist() == expected.to_pylist()


def test_no_slices_have_no_rows(objects: CountingStore) -> None:
    columns = Columns(topic())
    assert SharedSegments(objects, InlineExecutor).read([], columns).equals(columns.schema.empty_table())


def test_a_segment_is_fetched_once_however_many_batches_and_readers_it_has(objects: CountingStore) -> None:
    slices, columns = slices_of(objects, "arrow"), Columns(topic())
    segments = SharedSegments(objects, InlineExecutor)
    segments.read(slices[:3], columns)
    segments.read(slices, columns)
    segments.read(slices, Columns(topic(), ["n"]))
    assert objects.snapshot().get == len({part.batch.segment.key for part in slices}) == 12 < len(slices)


def test_what_is_kept_is_bounded_and_the_last_ones_stay(objects: CountingStore) -> None:
    slices, columns = slices_of(objects, "arrow"), Columns(topic())
    by_key = {part.batch.segment.key: part for part in slices}
    first, *_, last = by_key.values()
    segments = SharedSegments(objects, InlineExecutor, bound=8_000)
    for part in by_key.values():
        segments.read([first, part], columns)
    before = objects.snapshot().get
    segments.read([first, last], columns)
    assert objects.snapshot().get == before
    segments.read([*by_key.values()], columns)
    assert objects.snapshot().get > before
    nothing = SharedSegments(objects, InlineExecutor, bound=0)
    assert nothing.read(slices, columns).num_rows


def test_damage_is_named_and_not_kept(objects: CountingStore) -> None:
    slices, columns = slices_of(objects, "arrow"), Columns(topic())
    segment = slices[0].batch.segment
    data = objects.get(segment.object)
    segments = SharedSegments(objects, InlineExecutor)
    objects.put(segment.object, data[:20] + b"\xff" + data[21:])
    with pytest.raises(CorruptionError, match=segment.key):
        segments.read(slices, columns)
    objects.put(segment.object, data)
    assert segments.read(slices, columns).num_rows


def test_another_description_of_a_segment_is_compared_with_its_bytes(objects: CountingStore) -> None:
    part, *_ = slices_of(objects, "arrow")
    segments, columns = SharedSegments(objects, InlineExecutor), Columns(topic())
    segments.read([part], columns)
    other = replace(part.batch.segment, rows=part.batch.segment.rows + 1)
    with pytest.raises(CorruptionError, match="rows; expected"):
        segments.read([replace(part, batch=replace(part.batch, segment=other))], columns)


@pytest.mark.usefixtures("unmerged")
def test_a_read_ahead_takes_shared_segments_together(clock: ManualClock) -> None:
    """Also if the caller does not ask for it; the rows before a missing one come first."""
    store = new_store(clock)
    store.create_topic("t")
    for number in range(64):
        append(store, str(number))
    slices, columns = store.scan("t").plan(), Columns(stored_topic(store, "t"), ["value"])
    objects = connection_of(store).objects
    tables = [*read_ahead(objects, InlineExecutor(), slices, columns)]
    assert [table.num_rows for table in tables] == [4] * 16
    assert [value for table in tables for value in table["value"].to_pylist()] == [
        b"%d" % number for number in range(64)
    ]
    objects.forget()
    key = slices[34].batch.segment.object
    objects.delete([key])
    read = read_ahead(objects, InlineExecutor(), slices, columns)
    before = [table["value"].to_pylist() for table in itertools.islice(read, 9)]
    assert [value for values in before for value in values] == [b"%d" % number for number in range(34)]
    with pytest.raises(CorruptionError, match=key):
        next(read)
