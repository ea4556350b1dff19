"""A flow: one partition on its way to the application.

It holds planned slices, requested segments, and the piece that a poll returns next. Its position is the offset of the
next record to return; a seek drops everything after the position and plans it again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from concurrent.futures import Executor, Future

import pyarrow as pa

from txnstore.core.log.model import Partition
from txnstore.core.log.visibility import Slice, visible
from txnstore.core.model import Isolation, TopicPartition
from txnstore.read.readahead import Fetched, fetch_slice, one_ahead
from txnstore.read.reader import Projection
from txnstore.storage.base import ObjectStore


class Flow:
    """One partition on its way to the application."""

    __slots__ = (
        "_asked",
        "_left",
        "_part",
        "_pool",
        "_rest",
        "_slices",
        "_tables",
        "begun",
        "planned",
        "position",
        "projection",
        "tp",
    )

    def __init__(self, tp: TopicPartition, projection: Projection, position: int) -> None:
        self.tp = tp
        self.projection = projection
        self.begun = position  # the first position
        self.position = position
        self.planned = position  # the slices up to here are planned
        self._slices: deque[Slice] = deque()
        self._asked: deque[tuple[Slice, Future[Fetched]]] = deque()
        self._pool: Executor | None = None  # fetches the pieces of a large segment
        self._part: Slice | None = None  # the slice that is being handed out …
        self._tables: Iterator[pa.Table] = iter(())  # … its pieces that were not begun …
        self._left = 0  # … how many they are …
        self._rest: pa.Table | None = None  # … and what is left of the one that was.

    def plan(self, partition: Partition, isolation: Isolation) -> None:
        """Plan up to where the isolation lets a reader go. The position passes what holds nothing to read (CON-06)."""
        limit = partition.read_limit(isolation)
        if limit > self.planned:
            self._slices.extend(visible(self.tp, partition, isolation, self.planned, limit))
            self.planned = limit
        self._pass_gap()

    @property
    def arriving(self) -> bool:
        """Whether rows are fetched, or being fetched."""
        return self._part is not None or bool(self._asked)

    @property
    def between(self) -> bool:
        """Whether the next record is the first of a slice, so that another partition may take its turn."""
        return self._part is None

    @property
    def asked(self) -> int:
        """The number of segments being fetched or waiting to be read."""
        return len(self._asked)

    @property
    def asked_bytes(self) -> int:
        """Their size in bytes."""
        return sum(self.projection.fetched_bytes(part) for part, _ in self._asked)

    @property
    def wants_more(self) -> bool:
        """Whether there are planned slices that are not being fetched."""
        return bool(self._slices)

    def ask(self, objects: ObjectStore, pool: Executor) -> None:
        """Start to fetch the next slice."""
        part = self._slices.popleft()
        self._pool = pool
        self._asked.append((part, pool.submit(fetch_slice, objects, part, self.projection)))

    def take(self, rows: int) -> pa.Table | None:
        """Up to ``rows`` of the next rows, from one piece, and move the position after them.

        Waits for a segment that is being fetched; if that failed, raises its error and drops the plan. Returns None if
        no fetched rows are left.
        """
        try:
            table = self._next_rows()
        except BaseException:
            self.drop()
            raise
        if table is None:
            return None
        if table.num_rows > rows:
            taken, self._rest = table.slice(0, rows), table.slice(rows)
        else:
            taken, self._rest = table, None
        self.position = taken.column("_offset")[-1].as_py() + 1
        if self._rest is None and not self._left:
            self._end_slice()
        return taken

    def _next_rows(self) -> pa.Table | None:
        """The rest of the piece, or the next piece with rows."""
        if self._rest is not None:
            return self._rest
        while True:
            if self._part is None:
                if not self._asked:
                    return None
                part, arriving = self._asked[0]
                fetched = arriving.result()
                self._asked.popleft()
                self._part, self._tables, self._left = part, fetched.tables, fetched.pieces
                if self._pool is not None and fetched.pieces > 1 and self.projection.reads_ranges(part):
                    self._tables = one_ahead(self._pool, fetched.opened)
            for table in self._tables:
                self._left -= 1
                if table.num_rows:
                    return table
            self._end_slice()

    def _end_slice(self) -> None:
        assert self._part is not None  # only a slice that was begun ends
        self.position = max(self.position, self._part.limit)
        self._part = None
        self._pass_gap()

    def _pass_gap(self) -> None:
        """Move the position over markers, aborted and compacted records to the next slice."""
        if self._part is not None:
            return
        following = self._asked[0][0] if self._asked else self._slices[0] if self._slices else None
        self.position = max(self.position, following.start if following is not None else self.planned)

    def drop(self) -> None:
        """Drop all fetched and planned rows."""
        for _, arriving in self._asked:
            arriving.cancel()
        self._asked.clear()
        self._slices.clear()
        self._part, self._tables, self._left, self._rest = None, iter(()), 0, None
        self.planned = self.position

    def seek(self, position: int) -> None:
        """Continue at this offset; fetched rows are dropped (OFF-20)."""
        self.position = position
        self.drop()
