"""Slices on their way from objects to tables: windows, threads, what a segment promises."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from tests.helpers.connections import connection_of, stored_topic
from tests.helpers.reading import T0, append, new_store, read_slice
from txnstore.core.log.slices import Slice
from txnstore.errors import CorruptionError, UnsupportedFormatError
from txnstore.read import readahead
from txnstore.read.readahead import read_ahead
from txnstore.read.reader import open_slice
from txnstore.read.rows import Columns
from txnstore.segment.codec import encode
from txnstore.segment.pieces import open_segment
from txnstore.segment.schema import TIMESTAMP
from txnstore.storage.counting import CountingStore
from txnstore.store import Store
from txnstore.testing import ManualClock


class _Inline(Executor):
    """Runs each task when it is submitted, and counts them."""

    def __init__(self) -> None:
        self.submitted = 0

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        self.submitted += 1
        future: Future[Any] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except Exception as error:  # noqa: BLE001 - a pool gives any error to the one who waits
            future.set_exception(error)
        return future


@pytest.fixture
def store(clock: ManualClock) -> Store:
    store = new_store(clock)
    store.create_topic("t")
    return store


def _slices(store: Store, count: int) -> list[Slice]:
    for number in range(count):
        append(store, str(number))
    return store.scan("t").plan()


@pytest.mark.usefixtures("own_objects")
def test_readahead_window_bounds_pending_fetches(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """CON-12: by number, and by bytes beyond the first."""
    slices = _slices(store, 60)
    columns = Columns(stored_topic(store, "t"))
    for window, largest in [(readahead.MAX_FETCH_BYTES, readahead.MAX_FETCHES + 10), (1, 10)]:
        monkeypatch.setattr(readahead, "MAX_FETCH_BYTES", window)
        pool = _Inline()
        tables = read_ahead(connection_of(store).objects, pool, slices, columns)
        assert pool.submitted == 0, "nothing is fetched before it is asked for"
        next(tables)
        assert 1 <= pool.submitted <= largest
        assert [table["value"][0].as_py() for table in tables] == [b"%d" % number for number in range(1, 60)]
        assert pool.submitted == 60


@pytest.mark.usefixtures("own_objects")
def test_a_caller_may_fetch_less_ahead(store: Store) -> None:
    slices = _slices(store, 40)
    pool = _Inline()
    tables = read_ahead(
        connection_of(store).objects,
        pool,
        slices,
        Columns(stored_topic(store, "t")),
        window=slices[0].batch.segment.size,
    )
    next(tables)
    assert pool.submitted <= readahead._MAX_DECODES + 2
    assert len(list(tables)) == 39


@pytest.mark.usefixtures("own_objects")
@pytest.mark.parametrize("together", [False, True])
def test_a_caller_may_decode_nothing_ahead(store: Store, *, together: bool) -> None:
    """Then the pool only fetches, and each table is decoded when it is taken, in the calling thread."""
    slices = _slices(store, 40)
    pool = _Inline()
    tables = read_ahead(
        connection_of(store).objects,
        pool,
        slices,
        Columns(stored_topic(store, "t")),
        together=together,
        decode_ahead=False,
    )
    assert [value for table in tables for value in _values(table)] == [b"%d" % number for number in range(40)]
    assert pool.submitted == (20 if together else 40)


def _values(table: pa.Table) -> list[bytes]:
    return [bytes(value) for value in table["value"].to_pylist()]


@pytest.mark.usefixtures("unmerged")
def test_small_segments_that_are_read_together_share_tasks(store: Store) -> None:
    """Still in order, and one request each; with few segments each has a task, so that no request waits for another."""
    slices = _slices(store, 100)
    columns = Columns(stored_topic(store, "t"))
    pool, objects = _Inline(), CountingStore(connection_of(store).objects)
    tables = list(read_ahead(objects, pool, slices, columns, together=True))
    assert [value for table in tables for value in _values(table)] == [b"%d" % number for number in range(100)]
    assert {table.num_rows for table in tables} == {6, 4}
    assert pool.submitted == 2 * len(tables), "one task fetches, one decodes"
    assert objects.snapshot().get == 100
    pool = _Inline()
    assert len(list(read_ahead(objects, pool, slices[:16], columns, together=True))) == pool.submitted == 16


@pytest.mark.usefixtures("unmerged")
def test_a_segment_that_is_not_small_is_read_alone(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    long = random.Random(7).randbytes(3_000).hex()
    for number in range(100):
        append(store, long if number == 50 else str(number))
    slices = store.scan("t").plan()
    monkeypatch.setattr(readahead, "_MAX_SMALL_BYTES", 3_000)
    tables = list(
        read_ahead(connection_of(store).objects, _Inline(), slices, Columns(stored_topic(store, "t")), together=True)
    )
    (large,) = (table for table in tables if long.encode() in _values(table))
    assert large.num_rows == 1
    assert sum(table.num_rows for table in tables) == 100
    assert len(tables) < 25


@pytest.mark.usefixtures("unmerged")
def test_segments_are_read_together_up_to_a_size(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    slices = _slices(store, 100)
    monkeypatch.setattr(readahead, "_MAX_TOGETHER_BYTES", slices[0].batch.segment.size)
    columns = Columns(stored_topic(store, "t"))
    tables = read_ahead(connection_of(store).objects, _Inline(), slices, columns, together=True)
    assert max(table.num_rows for table in tables) == 2


@pytest.mark.usefixtures("own_objects")
def test_damage_among_segments_that_are_read_together_is_named(store: Store) -> None:
    slices = _slices(store, 64)
    objects = connection_of(store).objects
    key = slices[33].batch.segment.key
    objects.delete([key])
    tables = read_ahead(objects, _Inline(), slices, Columns(stored_topic(store, "t")), together=True)
    assert _values(next(tables))[:1] == [b"0"]
    with pytest.raises(CorruptionError, match=key):
        list(tables)


@pytest.mark.slow
def test_pieces_may_be_read_by_many_threads_at_once() -> None:
    """Wide enough to catch a file object that threads share: pyarrow crashes or mixes up its read cache then."""
    pieces, rows = 16, 2_000
    values = pa.array([str(number * 7919 % 100_003) * 3 for number in range(pieces * rows)])
    table = pa.table({f"c{number}": values for number in range(30)})
    names = [table.column_names] * pieces
    for fmt in ("parquet", "arrow"):
        file = open_segment(encode(table, fmt, "zstd", rows).data, fmt)
        assert file.rows == [rows] * pieces
        with ThreadPoolExecutor(8) as pool:
            for _ in range(3):
                assert pa.concat_tables(pool.map(file.read, range(pieces), names)).equals(table)


def test_piece_has_offsets_of_parquet_metadata() -> None:
    table = pa.table({"_offset": pa.arange(10, 20), "x": pa.arange(0, 10)})
    file = open_segment(encode(table, "parquet", "zstd", 4).data, "parquet")
    assert [file.offset_range(number) for number in range(3)] == [(10, 13), (14, 17), (18, 19)]
    assert open_segment(encode(table, "arrow", "zstd").data, "arrow").offset_range(0) is None


def test_an_unknown_format_is_refused() -> None:
    with pytest.raises(UnsupportedFormatError, match="'orc'"):
        open_segment(b"", "orc")


def _with(store: Store, data: bytes, part: Slice, **changes: Any) -> Slice:
    """The slice with a segment whose bytes are these, rightly described but for the changes."""
    segment = replace(part.batch.segment, size=len(data), sha256=hashlib.sha256(data).hexdigest(), **changes)
    connection_of(store).objects.put(segment.key, data)
    return replace(part, batch=replace(part.batch, segment=segment))


@pytest.mark.usefixtures("own_objects")
def test_segment_that_differs_from_chain_is_named(store: Store) -> None:
    (part,) = _slices(store, 1)
    columns = Columns(stored_topic(store, "t"))
    two_rows = encode(pa.table({"key": [b"a", b"b"], "value": [b"a", b"b"]})).data
    with pytest.raises(CorruptionError, match=f"{part.batch.segment.key} has 2 rows; expected 1"):
        open_slice(connection_of(store).objects, _with(store, two_rows, part), columns)
    with pytest.raises(CorruptionError, match="no column _partition, which every merged segment of"):
        open_slice(connection_of(store).objects, _with(store, two_rows, part, rows=2, explicit_offsets=True), columns)
    with pytest.raises(CorruptionError, match=f"{part.batch.segment.key} cannot be decoded as parquet"):
        open_slice(connection_of(store).objects, _with(store, b"not parquet", part), columns)


@pytest.mark.usefixtures("own_objects")
def test_two_batches_may_share_a_segment(store: Store) -> None:
    """``first_row`` tells where the batch begins in it."""
    (part,) = _slices(store, 1)
    table = pa.table({"key": [b"k"] * 6, "value": [b"%d" % number for number in range(6)]})
    shared = _with(store, encode(table, row_group_rows=2).data, part, rows=6)
    batch = replace(shared.batch, base_offset=100, limit=103, records=3, first_row=2)
    columns = Columns(stored_topic(store, "t"), ["_offset", "value"])
    assert read_slice(connection_of(store).objects, Slice(T0, batch, 100, 103), columns).to_pydict() == {
        "_offset": [100, 101, 102],
        "value": [b"2", b"3", b"4"],
    }
    assert read_slice(connection_of(store).objects, Slice(T0, batch, 102, 103), columns).to_pydict() == {
        "_offset": [102],
        "value": [b"4"],
    }


@pytest.mark.usefixtures("own_objects")
def test_a_merged_segment_is_cut_by_its_offsets(store: Store) -> None:
    """Gaps at both ends and over whole pieces; only the pieces that may hold an offset are decoded."""
    (part,) = _slices(store, 1)
    offsets = [3, 5, 9, 20, 21, 40]
    place = {"_offset": offsets, "_timestamp": pa.array(offsets, TIMESTAMP)}
    table = pa.table({**place, "value": [b"%d" % offset for offset in offsets]})
    merged = _with(store, encode(table, row_group_rows=2).data, part, rows=6, explicit_offsets=True)
    batch = replace(merged.batch, base_offset=0, limit=50, records=6)
    columns = Columns(stored_topic(store, "t"), ["_offset", "value"])
    for start in range(0, 51, 3):
        for limit in range(start, 51, 5):
            cut = Slice(T0, batch, start, limit)
            rows_read = read_slice(connection_of(store).objects, cut, columns)
            assert rows_read["_offset"].to_pylist() == [offset for offset in offsets if start <= offset < limit]
            assert rows_read.schema == columns.schema
    assert len(open_slice(connection_of(store).objects, Slice(T0, batch, 20, 30), columns)) == 2
    assert len(open_slice(connection_of(store).objects, Slice(T0, batch, 41, 50), columns)) == 0
