"""A large segment is read by ranges: what a read needs is fetched, and each byte that is fetched is checked."""

from __future__ import annotations

import hashlib
import random
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.harness.executors import InlineExecutor
from tests.helpers.reading import read_slice
from txnstore.core.catalog.model import CatalogTopic
from txnstore.core.log.model import Batch, Segment
from txnstore.core.log.slices import Slice
from txnstore.core.model import TopicPartition
from txnstore.errors import CorruptionError
from txnstore.read import ranged, readahead
from txnstore.read.ranged import (
    Fetch,
    HashedSegment,
    PartialFile,
    RangedObject,
    choose_fetch_mode,
    forget_footers,
    has_footer,
)
from txnstore.read.readahead import one_ahead
from txnstore.read.reader import Share, fetch, fetched_bytes, is_missing, open_slice, read_share
from txnstore.read.rows import Columns
from txnstore.segment import codec, sink
from txnstore.segment.blocks import BLOCK_BYTES, BLOCKS_KEY, Blocks, BlockSums
from txnstore.segment.codec import EncodedSegment, SegmentWriter, encode
from txnstore.segment.schema import TIMESTAMP, schema_to_text
from txnstore.sql.filesystem import segment_path
from txnstore.storage.counting import CountingStore
from txnstore.storage.memory import MemoryStore
from txnstore.storage.recent import ReadCache, RecentObjects
from txnstore.store import create_on

T0 = TopicPartition("t", 0)
COLUMNS = [f"c{number}" for number in range(8)]
SCHEMA = pa.schema([(name, pa.binary()) for name in COLUMNS])
TOPIC = CatalogTopic(
    name="t",
    topic_id="id",
    partitions=1,
    schema=schema_to_text(SCHEMA),
    key=None,
    timestamp=None,
    config={},
    created_at=0,
)
ROWS, GROUP = 40, 10
#: Bytes of a column in a row group: some blocks.
WIDTH = 3 * BLOCK_BYTES // GROUP


@pytest.fixture
def objects(small_ranges: None) -> CountingStore:
    return CountingStore(MemoryStore(), log=True)


def table() -> pa.Table:
    numbers = random.Random(3)
    return pa.table({name: [numbers.randbytes(WIDTH) for _ in range(ROWS)] for name in COLUMNS}, schema=SCHEMA)


def stored(objects: CountingStore, encoded: EncodedSegment, key: str = "segment") -> Slice:
    objects.put(key, encoded.data)
    return Slice(T0, Batch(100, 100 + ROWS, ROWS, encoded.segment(key), 0, 0), 100, 100 + ROWS)


def fetched(objects: CountingStore, part: Slice, names: list[str] | None = None) -> tuple[pa.Table, int, int]:
    """The rows, the number of GETs and that of their bytes; the footer is kept by an earlier read."""
    columns = Columns(TOPIC, names)
    open_slice(objects, part, columns)
    before = objects.snapshot()
    rows_read = read_slice(objects, part, columns)
    after = objects.snapshot()
    return rows_read, after.get - before.get, after.bytes_in - before.bytes_in


def test_a_read_fetches_its_columns(objects: CountingStore) -> None:
    whole = table()
    part = stored(objects, encode(whole, row_group_rows=GROUP))
    rows_read, gets, moved = fetched(objects, part, ["c4", "c3"])
    assert rows_read.equals(whole.select(["c4", "c3"]))
    column = GROUP * WIDTH
    assert gets == 4, "the two columns of a row group are neighbours"
    far, gets, moved = fetched(objects, part, ["c7", "c0"])
    assert far.equals(whole.select(["c7", "c0"]))
    assert gets == 8
    assert moved < 4 * 2 * (column + 2 * BLOCK_BYTES) + 10_000


def test_a_range_of_offsets_fetches_its_row_groups(objects: CountingStore) -> None:
    whole = table()
    part = stored(objects, encode(whole, row_group_rows=GROUP))
    cut = Slice(T0, part.batch, 112, 113)
    rows_read, gets, moved = fetched(objects, cut, COLUMNS)
    assert rows_read.equals(whole.slice(12, 1))
    assert gets == 1
    assert moved < part.batch.segment.size // 4 + 2 * BLOCK_BYTES


@pytest.mark.slow
def test_segments_of_one_row_group_count_whole_in_the_window(
    objects: CountingStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are fetched and decoded when they are opened: 16 of them would take a gigabyte (CON-12)."""
    encoded = encode(table())
    parts = [stored(objects, encoded, f"segment{number}") for number in range(8)]
    monkeypatch.setattr(readahead, "MAX_FETCH_BYTES", encoded.size * 5 // 2)
    monkeypatch.setattr(readahead, "_MAX_DECODES", 2)
    for names, opened in ((None, 5), (["c0"], 5), (["_offset"], 8)):
        forget_footers()
        columns, before = Columns(TOPIC, names), len(objects.log)
        tables = readahead.read_ahead(objects, InlineExecutor(), parts, columns)
        assert next(tables).num_rows == ROWS
        assert len({request[1] for request in list(objects.log)[before:]}) <= opened
        assert sum(rows.num_rows for rows in tables) == 7 * ROWS


def test_small_and_unchecked_segments_are_read_whole() -> None:
    def by_ranges(size: int, *, columns: int = 8, limit: int = 140, footer_size: int | None = 1000) -> bool:
        segment = EncodedSegment(b"", "parquet", ROWS, "").segment("s")
        segment = type(segment)("s", "parquet", size, "", ROWS, footer_size=footer_size, footer_sha256="")
        part = Slice(T0, Batch(100, 140, ROWS, segment, 0, 0), 100, limit)
        return choose_fetch_mode(part, Columns(TOPIC, COLUMNS[:columns])) is Fetch.RANGES

    mb = 1 << 20
    assert not by_ranges(10 * mb)
    assert by_ranges(10 * mb, columns=3)
    assert by_ranges(10 * mb, limit=119)
    assert not by_ranges(10 * mb, limit=120)
    assert by_ranges(17 * mb)
    assert not by_ranges(4 * mb, columns=1)
    assert not by_ranges(1000 * mb, columns=1, footer_size=None)


def test_what_a_reader_with_a_cache_fetches() -> None:
    """It keeps a segment of several batches of which it reads about half, or that has no footer."""
    mb = 1 << 20

    def chosen(cache: ReadCache | None, **changes: Any) -> Fetch:
        values = {"size": 10 * mb, "footer_size": 1000, "rows": 10 * ROWS, **changes}
        segment = replace(EncodedSegment(b"", "parquet", 0, "").segment("s"), **values)
        part = Slice(T0, Batch(100, 100 + ROWS, ROWS, segment, 0, 0), 100, 100 + ROWS)
        return choose_fetch_mode(part, Columns(TOPIC), cache)

    assert chosen(ReadCache()) is Fetch.KEPT
    assert chosen(ReadCache({"t": 5})) is Fetch.KEPT
    assert chosen(ReadCache({"t": 4})) is Fetch.RANGES
    assert chosen(ReadCache({"t": 4}), size=4 * mb) is Fetch.RANGES
    assert chosen(ReadCache({"t": 1}), footer_size=None) is Fetch.KEPT
    assert chosen(None, footer_size=None) is Fetch.WHOLE
    assert chosen(ReadCache(), size=17 * mb) is Fetch.RANGES
    assert chosen(ReadCache(), rows=ROWS) is Fetch.WHOLE, "no other batch is in it"
    assert chosen(None) is Fetch.RANGES


@pytest.mark.usefixtures("small_ranges")
def test_the_window_counts_what_a_reader_with_a_cache_fetches(monkeypatch: pytest.MonkeyPatch) -> None:
    """A segment that is kept for several batches is fetched once: not for each of them, and not in parts."""
    monkeypatch.setattr(ranged, "WHOLE_BYTES", 1 << 30)
    counted = CountingStore(MemoryStore())
    shared = stored(counted, encode(table(), row_group_rows=GROUP)).batch
    parts = [
        Slice(T0, replace(shared, base_offset=first, limit=first + GROUP, records=GROUP, first_row=first), first, limit)
        for first, limit in ((first, first + GROUP) for first in range(0, ROWS, GROUP))
    ]
    objects, columns = RecentObjects(counted).with_read_cache(), Columns(TOPIC)
    expected = sum(fetched_bytes(objects, part, columns) for part in parts)
    for part in parts:
        read_slice(objects, part, columns)
    assert counted.snapshot().bytes_in == pytest.approx(expected, rel=0.1)


@pytest.mark.slow
def test_each_altered_byte_that_is_read_is_found(objects: CountingStore) -> None:
    encoded = encode(table(), row_group_rows=GROUP)
    footer = encoded.footer_size or 0
    places = [*random.Random(7).sample(range(4, encoded.size), 60), 4, encoded.size - footer - 1, encoded.size - 1]
    for number, place in enumerate(places):
        damaged = bytearray(encoded.data)
        damaged[place] ^= 1 << number % 8
        part = stored(objects, encoded)
        objects.put("segment", bytes(damaged))
        forget_footers()
        if place >= encoded.size - footer:
            segment = part.batch.segment
            with pytest.raises(CorruptionError, match="the footer of segment segment of t-0 was altered"):
                RangedObject(objects, T0, segment).footer()
        else:
            with pytest.raises(CorruptionError, match=r"segment segment of t-0 was altered: its bytes [\d,]+ to"):
                fetched(objects, part)


@pytest.mark.slow
def test_each_altered_byte_of_a_whole_read_is_noticed(objects: CountingStore) -> None:
    """By the checksums of blocks, and of the footer; a verification compares the hash of all bytes."""
    encoded = encode(table(), row_group_rows=GROUP)
    segment = stored(objects, encoded).batch.segment
    footer = encoded.size - (encoded.footer_size or 0)
    assert fetch(objects, T0, segment) == encoded.data
    for number, place in enumerate([*random.Random(8).sample(range(encoded.size), 60), 0, footer - 1, footer]):
        damaged = bytearray(encoded.data)
        damaged[place] ^= 1 << number % 8
        objects.put("segment", bytes(damaged))
        what = "the footer of segment segment of t-0" if place >= footer else "segment segment of t-0"
        how = "its SHA-256 is" if place >= footer else r"its bytes [\d,]+ to"
        with pytest.raises(CorruptionError, match=f"^{what} was altered: {how}"):
            fetch(objects, T0, segment)
        with pytest.raises(CorruptionError, match=r"^segment segment of t-0 was altered: its SHA-256 is"):
            fetch(objects, T0, segment, check_hash=True)


@pytest.mark.parametrize(("change", "problem"), [(-1, "is truncated"), (1, "is too long")])
def test_whole_read_of_another_size_is_damage(objects: CountingStore, change: int, problem: str) -> None:
    encoded = encode(table(), row_group_rows=GROUP)
    segment = stored(objects, encoded).batch.segment
    objects.put("segment", (bytes(encoded.data) + b"x")[: encoded.size + change])
    with pytest.raises(CorruptionError, match=problem):
        fetch(objects, T0, segment)


@pytest.mark.parametrize("size", [0, -1, "size + 1", 2**62])
def test_a_footer_that_no_segment_can_have_is_damage(objects: CountingStore, size: int | str) -> None:
    """As an entry describes it; nothing is requested."""
    part = stored(objects, encode(table(), row_group_rows=GROUP))
    segment = part.batch.segment
    refused(objects, part, replace(segment, footer_size=segment.size + 1 if isinstance(size, str) else size))


@pytest.mark.parametrize("sha256", [None, "", "0" * 63, "A" * 64, "../x"])
def test_a_footer_without_a_hash_is_damage(objects: CountingStore, sha256: str | None) -> None:
    part = stored(objects, encode(table(), row_group_rows=GROUP))
    refused(objects, part, replace(part.batch.segment, footer_sha256=sha256))


def test_a_footer_that_is_no_parquet_is_damage(objects: CountingStore) -> None:
    """Its hash is right: its writer was wrong."""
    encoded = encode(table(), row_group_rows=GROUP)
    assert encoded.footer_size is not None
    footer = bytes(encoded.footer_size)
    data = bytes(encoded.data[: -encoded.footer_size]) + footer
    part = stored(objects, replace(encoded, data=data, footer_sha256=hashlib.sha256(footer).hexdigest()))
    with pytest.raises(CorruptionError, match="segment segment cannot be read as parquet"):
        read_slice(objects, part, Columns(TOPIC))


def refused(objects: CountingStore, part: Slice, segment: Segment) -> None:
    """No reader reads a segment that is described like this."""
    before, altered = objects.snapshot().get, replace(part, batch=replace(part.batch, segment=segment))
    for read in (
        lambda: read_slice(objects, altered, Columns(TOPIC)),
        lambda: read_share(objects, altered, Columns(TOPIC), Share(0, 2)),
        lambda: segment_path(segment),
    ):
        with pytest.raises(CorruptionError, match="segment segment is described with a footer of"):
            read()
    assert objects.snapshot().get == before


def test_offsets_of_another_type_are_damage(objects: CountingStore) -> None:
    encoded = encode(
        pa.table({"_offset": ["a"] * ROWS, "_timestamp": pa.nulls(ROWS, TIMESTAMP), "c0": [b"x"] * ROWS}),
        row_group_rows=GROUP,
    )
    part = stored(objects, encoded)
    merged = replace(part, batch=replace(part.batch, segment=replace(part.batch.segment, explicit_offsets=True)))
    for start in (100, 110):
        with pytest.raises(CorruptionError, match="segment segment cannot be decoded as parquet"):
            read_slice(objects, replace(merged, start=start), Columns(TOPIC, ["c0"]))


def test_a_verification_reads_each_byte_once(objects: CountingStore) -> None:
    """The footer, and each row group with one GET; a block between two of them is in both."""
    segment = stored(objects, encode(table(), row_group_rows=GROUP)).batch.segment
    before = objects.snapshot()
    file = HashedSegment(objects, T0, segment)
    assert pa.concat_tables([file.read(number, ["c3"]) for number in range(4)]).equals(table().select(["c3"]))
    file.compare()
    after = objects.snapshot()
    assert after.get - before.get == 5
    assert after.bytes_in - before.bytes_in < segment.size + 4 * BLOCK_BYTES
    some = HashedSegment(objects, T0, segment)
    assert some.read(2, ["c3"]).num_rows == GROUP
    some.compare()


def test_a_segment_that_goes_while_it_is_read_is_missing(objects: CountingStore) -> None:
    """So that a reader with an old plan makes a new one."""
    part = stored(objects, encode(table(), row_group_rows=GROUP))
    opened = open_slice(objects, part, Columns(TOPIC))
    assert opened.read(0).num_rows == GROUP
    objects.delete(["segment"])
    with pytest.raises(CorruptionError, match="segment segment of t-0 is missing") as caught:
        opened.read(1)
    assert is_missing(caught.value)


def test_the_next_piece_is_fetched_while_one_is_used(objects: CountingStore) -> None:
    """One, not all: a consumer that polls few records holds two row groups."""
    part = stored(objects, encode(table(), row_group_rows=GROUP))
    opened = open_slice(objects, part, Columns(TOPIC))
    with ThreadPoolExecutor(1) as pool:
        before, pieces = objects.snapshot().get, one_ahead(pool, opened)
        gets = []
        for _ in range(3):
            assert next(pieces).num_rows == GROUP
            pool.submit(int).result()  # The read of the next piece was submitted before this.
            gets.append(objects.snapshot().get - before)
        assert gets == [2, 3, 4]
        assert next(pieces).num_rows == GROUP
        assert list(pieces) == []
        assert list(one_ahead(pool, opened.share(Share(0, 100)))) == []


@pytest.mark.slow
def test_a_consumer_reads_a_large_segment_piece_by_piece(
    objects: CountingStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(codec, "ROW_GROUP_BYTES", GROUP * WIDTH * len(COLUMNS))
    with create_on(objects) as store:
        store.create_topic("t", schema=SCHEMA, config={"segment.bytes": 1 << 30})
        whole = table()
        with store.producer() as producer:
            for start in range(0, ROWS, 4):
                producer.send_table("t", whole.slice(start, 4))
                producer.flush()
        store.compact("t")
        before = objects.snapshot().get
        with store.consumer(["t"]) as consumer:
            tables: list[pa.Table] = []
            while sum(each.num_rows for each in tables) < ROWS:
                tables.append(consumer.poll_table(max_records=3))
        assert objects.snapshot().get - before >= 4, "one GET at least for each row group"
        assert pa.concat_tables(tables).select(COLUMNS).equals(whole)


@pytest.mark.parametrize("fmt", ["parquet", "arrow"])
def test_a_large_segment_is_written_to_a_file(
    objects: CountingStore, monkeypatch: pytest.MonkeyPatch, fmt: str
) -> None:
    """A merge of any size keeps one row group in memory."""
    monkeypatch.setattr(sink, "MEMORY_BYTES", 100_000)
    whole = table()
    with SegmentWriter(SCHEMA, fmt, row_group_rows=GROUP) as writer:
        for batch in whole.to_batches(max_chunksize=7):
            writer.append(batch)
        encoded = writer.finish()
    assert type(encoded.data).__name__ == "mmap"
    assert (encoded.footer_size is None) == (fmt == "arrow")
    part = stored(objects, encoded)
    assert fetched(objects, part, COLUMNS)[0].equals(whole)
    segment = part.batch.segment
    assert (segment.size, segment.sha256) == (len(encoded.data), encoded.sha256)


def test_the_footer_is_plain_parquet() -> None:
    """Other readers take the checksums for metadata of the file."""
    encoded = encode(pa.table({"n": pa.array(range(300_000), pa.int64()), "x": [random.Random(1).random()] * 300_000}))
    assert encoded.footer_size is None, "it is small"
    random_numbers = random.Random(5)
    encoded = encode(pa.table({"x": [random_numbers.random() for _ in range(300_000)]}))
    assert encoded.footer_size is not None
    file = pq.ParquetFile(pa.BufferReader(encoded.data))
    body = encoded.size - encoded.footer_size
    blocks = Blocks.from_text(file.metadata.metadata[BLOCKS_KEY], body)
    assert len(blocks.sums) == -(-body // BLOCK_BYTES)
    assert blocks.find_damage(0, encoded.data[:body]) is None


@given(st.lists(st.integers(0, 3 * BLOCK_BYTES), max_size=5), st.integers(0, 2**32))
def test_checksums_do_not_depend_on_how_bytes_are_written(sizes: list[int], seed: int) -> None:
    data = random.Random(seed).randbytes(sum(sizes))
    sums, at = BlockSums(), 0
    for size in sizes:
        sums.update(data[at : at + size])
        at += size
    blocks = Blocks.from_text(sums.to_text().encode(), len(data))
    assert blocks.find_damage(0, data) is None
    whole = BlockSums()
    whole.update(data)
    assert whole.to_text() == sums.to_text()


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (b"{", "cannot be read"),
        (b"[]", "cannot be read"),
        (b'{"size": 10}', "cannot be read"),
        (b'{"size": 10, "crc32": "AA"}', "cannot be read"),
        (b'{"size": 10, "crc32": ""}', "it has 0 checksums of blocks of 10 bytes for 100 bytes"),
        (b'{"size": 0, "crc32": ""}', "it has 0 checksums"),
        (b'{"size": "1", "crc32": ""}', "it has 0 checksums"),
        (b'{"size": NaN, "crc32": ""}', "it has 0 checksums"),
        (b"[" * 100_000, "cannot be read"),
    ],
)
def test_checksums_that_cannot_be_read(text: bytes, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        Blocks.from_text(text, 100)


def test_bytes_that_were_not_fetched_cannot_be_read() -> None:
    file = PartialFile(100, {10: b"0123456789", 50: b"abc"})

    def read(start: int, size: int) -> Any:
        file.seek(start)
        return file.read(size)

    assert read(12, 5) == b"23456"
    assert read(50, 3) == b"abc"
    assert (read(100, 5), read(200, 5), read(50, 0)) == (b"", b"", b"")
    for start, size in ((0, 5), (9, 2), (15, 10), (53, 1), (50, -1)):
        with pytest.raises(OSError, match="were not fetched"):
            read(start, size)


@pytest.mark.parametrize("place", [(-1, 5), (5, 4), (0, 10**9)])
def test_bytes_outside_of_the_file_are_not_fetched(objects: CountingStore, place: tuple[int, int]) -> None:
    part = stored(objects, encode(table(), row_group_rows=GROUP))
    with pytest.raises(CorruptionError, match="a column is outside the file"):
        RangedObject(objects, T0, part.batch.segment).fetch([place])


def test_a_place_in_an_entry_or_a_pack_has_no_footer_of_its_own(objects: CountingStore) -> None:
    """Its bytes are at the end of no object; a chain that says otherwise is not believed."""
    segment = stored(objects, encode(table(), row_group_rows=GROUP)).batch.segment
    assert has_footer(segment)
    pack = "topics/t/0/018bcfe5-8311-7417-8ac5-c9472b1defda.pack"
    assert not has_footer(replace(segment, object=pack, first_byte=0))
