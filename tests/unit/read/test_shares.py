"""Shares of a large segment: together they are its rows, and each fetches only its own bytes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tests.helpers.reading import read_slice
from txnstore.core.catalog.model import CatalogTopic
from txnstore.core.log.model import Batch, Segment
from txnstore.core.log.slices import Slice
from txnstore.core.model import TopicPartition
from txnstore.errors import CorruptionError
from txnstore.read.reader import Share, read_share, share_count
from txnstore.read.rows import Columns
from txnstore.segment.blocks import BLOCK_BYTES
from txnstore.segment.codec import encode
from txnstore.segment.schema import TIMESTAMP
from txnstore.storage.counting import CountingStore
from txnstore.storage.memory import MemoryStore

T0 = TopicPartition("t", 0)
TOPIC = CatalogTopic(
    name="t", topic_id="id", partitions=1, schema=None, key=None, timestamp=None, config={}, created_at=0
)
PROJECTION = Columns(TOPIC, ["_offset", "value"])


def stored(
    objects: CountingStore, offsets: range | list[int], *, merged: bool, width: int = 1, group: int = 2
) -> Slice:
    """A segment of these records in row groups of ``group`` rows, as a slice of all of them."""
    numbers = np.random.default_rng(7)
    columns: dict[str, Any] = {"value": [b"%d:" % offset + numbers.bytes(width) for offset in offsets]}
    if merged:
        columns |= {"_offset": offsets, "_timestamp": pa.array(offsets, TIMESTAMP)}
    encoded = encode(pa.table(columns), row_group_rows=group)
    objects.put("segment", encoded.data)
    segment = encoded.segment("segment", explicit_offsets=merged)
    batch = Batch(offsets[0], offsets[-1] + 1, len(offsets), segment, 0, 0)
    return Slice(T0, batch, batch.base_offset, batch.limit)


@pytest.fixture
def objects(small_ranges: None) -> CountingStore:
    return CountingStore(MemoryStore())


@pytest.mark.parametrize("merged", [False, True])
@pytest.mark.parametrize("count", [1, 2, 3, 7, 20])
def test_every_row_is_in_one_share(objects: CountingStore, count: int, *, merged: bool) -> None:
    """In order; also of a slice that is a part of the segment, and where there are more shares than row groups."""
    part = stored(objects, [*range(10, 20), *range(30, 35)] if merged else range(10, 25), merged=merged)
    for start, limit in ((10, 35), (11, 24), (13, 14), (19, 30)):
        cut = replace(part, start=start, limit=min(limit, part.limit))
        tables = [
            table for number in range(count) for table in read_share(objects, cut, PROJECTION, Share(number, count))
        ]
        rows_read = pa.concat_tables([PROJECTION.schema.empty_table(), *tables])
        assert rows_read.equals(read_slice(objects, cut, PROJECTION))


def test_a_share_fetches_its_own_row_groups(objects: CountingStore) -> None:
    """One GET for the footer, which a process keeps, and one for each row group."""
    part = stored(objects, range(16), merged=False, width=200_000)
    read, gets = 0, []
    for number in range(4):
        before = objects.snapshot()
        assert sum(table.num_rows for table in read_share(objects, part, PROJECTION, Share(number, 4))) == 4
        after = objects.snapshot()
        gets.append(after.get - before.get)
        read += after.bytes_in - before.bytes_in
    assert gets == [3, 2, 2, 2]
    assert read < part.batch.segment.size + 8 * 2 * BLOCK_BYTES, "each row group, and the blocks around it"
    before = objects.snapshot()
    assert list(read_share(objects, part, PROJECTION, Share(0, 20))) == []
    assert objects.snapshot().get == before.get


def test_a_segment_is_split_only_into_its_row_groups() -> None:
    """As far as the chain knows them: a row group holds 128k rows at most, or 64 MB."""

    def count(rows: int, size: int, target: int, **changes: Any) -> int:
        fmt, footer = changes.pop("format", "parquet"), changes.pop("footer_size", 100)
        segment = Segment("s", fmt, size, "", rows, footer_size=footer, footer_sha256="")
        batch = Batch(0, rows, rows, segment, 0, 0)
        return share_count(replace(Slice(T0, batch, 0, rows), **changes), target)

    mb, rows = 1 << 20, 128 * 1024
    assert count(16 * rows, 1024 * mb, 64 * mb) == 16
    assert count(16 * rows, 40 * mb, 4 * mb) == 10
    assert count(2 * rows, 40 * mb, 4 * mb) == 2
    assert count(2 * rows + 1, 40 * mb, 4 * mb) == 3
    assert count(100, 640 * mb, 64 * mb) == 10
    assert count(16 * rows, 1024 * mb, 64 * mb, limit=4 * rows) == 4
    assert count(16 * rows, 1024 * mb, 64 * mb, format="arrow") == 1
    assert count(16 * rows, 1024 * mb, 64 * mb, footer_size=None) == 1, "each task would have to read all of it"
    assert count(16 * rows, 16 * mb, 1 * mb, footer_size=None) == 16
    assert count(1, 10, 64 * mb) == 1


def test_damage_of_a_share_is_named(objects: CountingStore) -> None:
    part = stored(objects, range(16), merged=False, width=1000)
    segment, data = part.batch.segment, objects.get("segment")

    def read(**changes: Any) -> None:
        altered = replace(part, batch=replace(part.batch, segment=replace(segment, **changes)))
        for number in range(2):
            for _ in read_share(objects, altered, PROJECTION, Share(number, 2)):
                pass

    with pytest.raises(CorruptionError, match="has 16 rows; expected 17"):
        read(rows=17)
    with pytest.raises(CorruptionError, match="no column _offset"):
        read(explicit_offsets=True)
    with pytest.raises(CorruptionError, match="the footer of segment segment of t-0 was altered: its SHA-256 is"):
        read(footer_sha256="0" * 64)
    with pytest.raises(CorruptionError, match="segment other of t-0 is missing"):
        read(object="other")
    objects.put("segment", data[:-1000])
    with pytest.raises(CorruptionError, match="segment segment of t-0 is truncated: it ends before byte"):
        read(footer_sha256="1" * 64)
    for place in (0, 5, len(data) // 2, len(data) - (segment.footer_size or 0) - 1):
        damaged = bytearray(data)
        damaged[place] ^= 1
        objects.put("segment", bytes(damaged))
        with pytest.raises(CorruptionError, match=r"segment segment of t-0 was altered: its bytes .* checksum"):
            read()
