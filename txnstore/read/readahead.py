"""The rows of many slices in order, fetched and decoded ahead of the reader in parallel, in bounded memory (CON-12).

Two windows move over the slices: segments are fetched ahead (what costs time there is the round trip), and pieces of
the segments that have arrived are decoded ahead (what costs time there is the processor). A segment of one piece is
decoded by the thread that fetched it.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Executor, Future, wait
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from txnstore.core.log.visibility import Slice
from txnstore.read.reader import OpenSlice, Projection, open_slice
from txnstore.storage.base import ObjectStore

#: Segments on their way at a time: so many, and so many bytes of them beyond the first.
MAX_FETCHES = 16
MAX_FETCH_BYTES = 32 << 20
#: Pieces that are decoded or wait decoded at a time.
_MAX_DECODES = max(2, min(8, os.cpu_count() or 2))


@dataclass(slots=True)
class Fetched:
    """A segment that has arrived: its only piece decoded, or the pieces still to be decoded.

    ``tables``: the pieces in order, each decoded when it is asked for. ``pieces``: how many there are.
    """

    opened: OpenSlice
    only: pa.Table | None
    tables: Iterator[pa.Table]
    pieces: int


def fetch_slice(objects: ObjectStore, part: Slice, projection: Projection) -> Fetched:
    """Fetch a slice; decode it if it is one piece, in the thread that fetched it."""
    opened = open_slice(objects, part, projection)
    if len(opened) == 1:
        table = opened.read(0)
        return Fetched(opened, table, iter((table,)), 1)
    return Fetched(opened, None, map(opened.read, range(len(opened))), len(opened))


def read_ahead(
    objects: ObjectStore,
    pool: Executor,
    slices: Iterable[Slice],
    projection: Projection,
) -> Iterator[pa.Table]:
    """The rows of the slices in their order, as tables of ``projection.schema``.

    Nothing is fetched before the first table is asked for. Closing the iterator drops what was not started. Errors
    of a slice are raised where its rows would have come.
    """
    fetches = _Fetches(objects, pool, slices, projection)
    tables: deque[Future[pa.Table] | pa.Table] = deque()
    pieces: Iterator[Future[pa.Table] | pa.Table] = iter(())
    try:
        while True:
            while len(tables) < _MAX_DECODES:
                following = next(pieces, None)
                if following is not None:
                    tables.append(following)
                elif fetches.fill() and (not tables or fetches.arrived()):
                    pieces = _decode(pool, fetches.pop())
                    fetches.fill()
                else:
                    break
            if not tables:
                return
            table = tables.popleft()
            yield table.result() if isinstance(table, Future) else table
    finally:
        fetches.cancel()
        for table in tables:
            if isinstance(table, Future):
                table.cancel()


class _Fetches:
    """The window over segments that are on their way."""

    def __init__(self, objects: ObjectStore, pool: Executor, slices: Iterable[Slice], projection: Projection) -> None:
        self._objects, self._pool, self._projection = objects, pool, projection
        self._waiting = deque(slices)
        self._flying: deque[tuple[int, Future[Fetched]]] = deque()
        self._bytes = 0

    def fill(self) -> bool:
        """Start as many fetches as the window takes; False if there is nothing left to wait for."""
        while self._waiting and len(self._flying) < MAX_FETCHES and (not self._flying or self._bytes < MAX_FETCH_BYTES):
            part = self._waiting.popleft()
            size = part.batch.segment.size
            self._flying.append((size, self._pool.submit(fetch_slice, self._objects, part, self._projection)))
            self._bytes += size
        return bool(self._flying)

    def arrived(self) -> bool:
        """Whether the next segment is here."""
        return self._flying[0][1].done()

    def pop(self) -> Future[Fetched]:
        """The next segment; wait for it if it is not here."""
        size, future = self._flying.popleft()
        self._bytes -= size
        wait([future])
        return future

    def cancel(self) -> None:
        for _, future in self._flying:
            future.cancel()


def _decode(pool: Executor, arrived: Future[Any]) -> Iterator[Future[pa.Table] | pa.Table]:
    """The pieces of a segment, each on its way as soon as it is asked for; a failed fetch is a failed piece."""
    if arrived.exception() is not None:
        yield arrived
        return
    fetched: Fetched = arrived.result()
    if fetched.only is not None:
        yield fetched.only
        return
    for number in range(fetched.pieces):
        yield pool.submit(fetched.opened.read, number)
