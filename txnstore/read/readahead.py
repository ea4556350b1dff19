"""Read-ahead: fetches and decodes slices concurrently, ahead of the reader, in bounded memory (CON-12).

Two windows move over the slices: one of segments that are fetched (bound by latency), one of pieces of the fetched
segments that are decoded (bound by CPU). The thread that fetched a segment of one piece also decodes it. Of a large
segment the first window fetches the footer, the second one the pieces. Of inlined segments, and of small ones that are
read together, one task fetches several, and another one decodes them: a task for each would cost more than that.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import CancelledError, Executor, Future
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import pyarrow as pa

from txnstore.core.log.slices import Slice
from txnstore.read.reader import OpenSlice, fetched_bytes, open_slice, read_together
from txnstore.read.rows import Columns
from txnstore.storage.base import ObjectStore

#: The maximum number of segments fetched concurrently, and of their bytes; one segment may be larger.
MAX_FETCHES = 16
MAX_FETCH_BYTES = 32 << 20
#: The maximum number of files fetched concurrently, and decoded if they have one piece: one more than are decoded at a
#: time, so that none is awaited. Further ones displace each other's memory in the caches of two processors.
_FILE_FETCHES = min(4, 1 + (os.cpu_count() or 2))
#: The maximum number of pieces that are being decoded, or are decoded and not yet returned.
_MAX_DECODES = max(2, min(8, os.cpu_count() or 2))
#: The maximum number of segments that are read together, of the bytes of one, and of those of all.
_MAX_TOGETHER, _MAX_SMALL_BYTES, _MAX_TOGETHER_BYTES = 32, 256 << 10, 2 << 20


def max_fetches(objects: ObjectStore) -> int:
    """The maximum number of segments fetched concurrently."""
    return _FILE_FETCHES if objects.url.startswith("file:") else MAX_FETCHES


@dataclass(slots=True)
class Fetched:
    """A fetched segment, or a large one whose footer was fetched.

    Attributes:
        opened: The slice, whose pieces can be read.
        only_table: The table of the only piece, already decoded; None if there are several pieces, or none.
        tables: The tables of the pieces in order; each is decoded when it is taken.
        pieces: The number of pieces.
    """

    opened: OpenSlice
    only_table: pa.Table | None
    tables: Iterator[pa.Table]
    pieces: int


def fetch_slice(objects: ObjectStore, part: Slice, columns: Columns) -> Fetched:
    """Open a slice, and decode it if it has one piece."""
    opened = open_slice(objects, part, columns)
    if len(opened) == 1:
        table = opened.read(0)
        return Fetched(opened, table, iter((table,)), 1)
    return _fetched_undecoded(opened)


def _fetched_undecoded(opened: OpenSlice) -> Fetched:
    return Fetched(opened, None, map(opened.read, range(len(opened))), len(opened))


def _fetch_undecoded(objects: ObjectStore, part: Slice, columns: Columns) -> Fetched:
    """Open a slice, and decode nothing."""
    return _fetched_undecoded(open_slice(objects, part, columns))


class _FetchedTogether:
    """Slices of small segments that were fetched by one task, to be decoded by one.

    ``error``: why the segment after them could not be fetched; None if it was not asked for, or they are all.
    """

    def __init__(self, slices: Sequence[OpenSlice], columns: Columns, error: Exception | None) -> None:
        self._slices = [opened for opened in slices if len(opened)]
        self._columns = columns
        self.error = error

    def __len__(self) -> int:
        """The number of slices with rows."""
        return len(self._slices)

    def read(self) -> pa.Table:
        """The rows of all of them in order, in one chunk: encoding many costs more than this copy of a few rows."""
        return read_together(self._slices, self._columns)


def _fetch(
    objects: ObjectStore, parts: Sequence[Slice], columns: Columns, *, decode: bool
) -> Fetched | _FetchedTogether:
    """Open one slice, or several of small segments."""
    if len(parts) == 1:
        fetched = fetch_slice if decode else _fetch_undecoded
        return fetched(objects, parts[0], columns)
    opened: list[OpenSlice] = []
    try:
        for part in parts:
            opened.append(open_slice(objects, part, columns))  # noqa: PERF401 - those before an error are kept
    except Exception as error:
        if not opened:
            raise
        return _FetchedTogether(opened, columns, error)
    return _FetchedTogether(opened, columns, None)


def one_ahead(pool: Executor, opened: OpenSlice) -> Iterator[pa.Table]:
    """The pieces of a slice in order; while one is used, the next one is fetched and decoded.

    Closing the iterator cancels a read that has not started.
    """
    next_read = pool.submit(opened.read, 0) if len(opened) else None
    try:
        for number in range(1, len(opened) + 1):
            assert next_read is not None  # there is a piece for each turn
            current_read = next_read
            next_read = pool.submit(opened.read, number) if number < len(opened) else None
            yield current_read.result()
    finally:
        if next_read is not None:
            next_read.cancel()


def read_ahead(
    objects: ObjectStore,
    pool: Executor,
    slices: Iterable[Slice],
    columns: Columns,
    *,
    together: bool = False,
    window: int = MAX_FETCH_BYTES,
    decode_ahead: bool = True,
) -> Iterator[pa.Table]:
    """Read slices in order.

    Nothing is fetched before the first table is taken. Closing the iterator cancels tasks that have not started.

    Args:
        pool: Fetches and decodes concurrently.
        slices: The slices, all of the topic of ``columns``.
        columns: The columns to read.
        together: One task may fetch several small segments, one after the other, and their rows be one table: less
            work in all, but the first rows come later. It always may fetch several inlined ones.
        window: The maximum number of bytes that are fetched and not yet returned; one segment may be larger.
        decode_ahead: Decode in the pool, ahead of use. Otherwise a table is decoded when it is taken, in the calling
            thread, and no other one is in memory.

    Yields:
        The rows, as tables of ``columns.schema``.

    Raises:
        CorruptionError: A segment is missing or damaged; raised after the rows of the slices before it. If it cannot be
            converted, the rows of those that are read together with it are left out.
    """
    fetches = _Fetches(objects, pool, slices, columns, together=together, window=window, decode=decode_ahead)
    decodes = _MAX_DECODES if decode_ahead else 1
    tables: deque[Future[pa.Table] | pa.Table] = deque()
    pieces: Iterator[Future[pa.Table] | pa.Table] = iter(())
    try:
        while True:
            while len(tables) < decodes:
                next_table = next(pieces, None)
                if next_table is not None:
                    tables.append(next_table)
                elif fetches.fill() and (not tables or fetches.has_next_arrived()):
                    pieces = _decode(pool, fetches.pop(), ahead=decode_ahead)
                    fetches.fill()
                else:
                    break
            if not tables:
                return
            yield _take_table(tables)
    finally:
        fetches.cancel()
        for table in tables:
            if isinstance(table, Future):
                table.cancel()


def _take_table(tables: deque[Future[pa.Table] | pa.Table]) -> pa.Table:
    """The next table, to which nothing else refers from now on."""
    table = tables.popleft()
    return table.result() if isinstance(table, Future) else table


class _Fetches:
    """The window of segments that are being fetched."""

    def __init__(
        self,
        objects: ObjectStore,
        pool: Executor,
        slices: Iterable[Slice],
        columns: Columns,
        *,
        together: bool,
        window: int,
        decode: bool,
    ) -> None:
        self._objects, self._pool, self._columns = objects, pool, columns
        self._fetch = partial(_fetch, objects, columns=columns, decode=decode)
        # One thread at a time uses a window.
        #: The slices that are not requested yet, in order.
        self._waiting = deque(slices)
        #: The fetches that were begun and not taken, in order, each with its number of bytes.
        self._in_flight: deque[tuple[int, Future[Fetched | _FetchedTogether]]] = deque()
        #: The bytes of these fetches in total, and the number from which on no other one is begun.
        self._bytes, self._window = 0, min(window, MAX_FETCH_BYTES)
        #: The largest number of these fetches.
        self._max_fetches = max_fetches(objects)
        # Few segments are fetched concurrently, not one after the other.
        self._max_together = min(_MAX_TOGETHER, len(self._waiting) // MAX_FETCHES)
        self._together = together

    def fill(self) -> bool:
        """Start fetches until the window is full; returns whether any segment is in the window."""
        while (
            self._waiting
            and len(self._in_flight) < self._max_fetches
            and (not self._in_flight or self._bytes < self._window)
        ):
            parts = self._take_next_slices()
            size = sum(fetched_bytes(self._objects, part, self._columns) for part in parts)
            self._in_flight.append((size, self._pool.submit(self._fetch, parts)))
            self._bytes += size
        return bool(self._in_flight)

    def _take_next_slices(self) -> list[Slice]:
        """The next slice, with those of small segments that are fetched together with it."""
        parts = [self._waiting.popleft()]
        size = parts[0].batch.segment.size
        while size <= _MAX_TOGETHER_BYTES and self._waiting and len(parts) < self._max_together:
            last_segment, next_segment = parts[-1].batch.segment, self._waiting[0].batch.segment
            if not (self._together or (last_segment.inlined and next_segment.inlined)):
                break
            if max(last_segment.size, next_segment.size) > _MAX_SMALL_BYTES:
                break
            parts.append(self._waiting.popleft())
            size += next_segment.size
        return parts

    def has_next_arrived(self) -> bool:
        """Whether the next segment has been fetched."""
        return self._in_flight[0][1].done()

    def pop(self) -> Future[Fetched | _FetchedTogether]:
        """Remove the next segment from the window; waits until it has been fetched."""
        size, future = self._in_flight.popleft()
        self._bytes -= size
        with suppress(CancelledError):
            future.exception()
        return future

    def cancel(self) -> None:
        for _, future in self._in_flight:
            future.cancel()


def _decode(pool: Executor, fetch: Future[Any], *, ahead: bool) -> Iterator[Future[pa.Table] | pa.Table]:
    """The pieces of a segment; taking one starts its decoding, or with ``ahead=False`` decodes it.

    A failed fetch is returned as the only piece.
    """
    if fetch.exception() is not None:
        yield fetch
        return
    fetched: Fetched | _FetchedTogether = fetch.result()
    if isinstance(fetched, _FetchedTogether):
        if len(fetched):
            yield pool.submit(fetched.read) if ahead else fetched.read()
        if fetched.error is not None:
            yield _failed_future(fetched.error)
        return
    if fetched.only_table is not None:
        yield fetched.only_table
        return
    for number in range(fetched.pieces):
        yield pool.submit(fetched.opened.read, number) if ahead else fetched.opened.read(number)


def _failed_future(error: Exception) -> Future[pa.Table]:
    future: Future[pa.Table] = Future()
    future.set_exception(error)
    return future
