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
from txnstore.core.log.slices import Slice
from txnstore.core.log.visibility import visible_slices
from txnstore.core.model import Isolation, TopicPartition
from txnstore.read.readahead import Fetched, fetch_slice, one_ahead
from txnstore.read.reader import fetched_bytes
from txnstore.read.rows import Columns
from txnstore.storage.base import ObjectStore


class Flow:
    """The rows of one partition on their way to the application.

    Not thread-safe, as its consumer. ``position`` is at most ``planned``, and all that a reader may see between the two
    is in the slices, in this order: the remainder, the pieces of the begun slice, the fetches, the planned slices.

    Attributes:
        columns: The columns to read, of one version of the topic.
        first_position: The position with which it was made.
        position: The offset of the next record to return.
        planned: The offset up to which the log is in slices, or was passed because it holds nothing to read.
    """

    __slots__ = (
        "_fetches",
        "_pool",
        "_remainder",
        "_slice",
        "_slices",
        "_tables",
        "_unread_pieces",
        "columns",
        "first_position",
        "planned",
        "position",
        "tp",
    )

    def __init__(self, tp: TopicPartition, columns: Columns, position: int) -> None:
        self.tp = tp
        self.columns = columns
        self.first_position = position
        self.position = position
        self.planned = position
        #: Planned slices that are not being fetched, and then slices that are, with their fetches.
        self._slices: deque[Slice] = deque()
        #: The fetches that were begun and not taken, in order, each with its number of bytes.
        self._fetches: deque[tuple[Slice, int, Future[Fetched]]] = deque()
        #: Fetches the pieces of a large segment; None before the first fetch.
        self._pool: Executor | None = None
        #: The slice whose rows are being returned, its pieces that were not begun, and their number.
        self._slice: Slice | None = None
        self._tables: Iterator[pa.Table] = iter(())
        self._unread_pieces = 0
        #: The rows of the begun piece that were not returned.
        self._remainder: pa.Table | None = None

    def plan(self, partition: Partition, isolation: Isolation) -> None:
        """Plan the slices up to the read limit, and move the position over what holds nothing to read (CON-06)."""
        limit = partition.read_limit(isolation)
        if limit > self.planned:
            self._slices.extend(visible_slices(self.tp, partition, isolation, self.planned, limit))
            self.planned = limit
        self._pass_gap()

    @property
    def has_rows(self) -> bool:
        """Whether rows are fetched, or being fetched."""
        return self._slice is not None or bool(self._fetches)

    @property
    def between_slices(self) -> bool:
        """Whether the next record is the first of a slice, so that another partition may take its turn."""
        return self._slice is None

    @property
    def fetches(self) -> int:
        """The number of segments being fetched or waiting to be read."""
        return len(self._fetches)

    @property
    def fetching_bytes(self) -> int:
        """The size of the segments being fetched or waiting to be read, in bytes."""
        return sum(size for _, size, _ in self._fetches)

    @property
    def has_unfetched(self) -> bool:
        """Whether there are planned slices that are not being fetched."""
        return bool(self._slices)

    def fetch_next(self, objects: ObjectStore, pool: Executor) -> None:
        """Start to fetch the next slice."""
        next_slice = self._slices.popleft()
        self._pool = pool
        size = fetched_bytes(objects, next_slice, self.columns)
        self._fetches.append((next_slice, size, pool.submit(fetch_slice, objects, next_slice, self.columns)))

    def take(self, rows: int) -> pa.Table | None:
        """Return up to ``rows`` of the next rows, from one piece, and move the position after them.

        Waits for a segment that is being fetched; if that failed, raises its error and drops the plan. Returns None
        without fetched rows.
        """
        try:
            table = self._next_table()
        except BaseException:
            self.drop()
            raise
        if table is None:
            return None
        taken_rows = table
        if table.num_rows > rows:
            taken_rows, self._remainder = table.slice(0, rows), table.slice(rows)
        else:
            self._remainder = None
        self.position = taken_rows.column("_offset")[-1].as_py() + 1
        if self._remainder is None and not self._unread_pieces:
            self._end_slice()
        return taken_rows

    def _next_table(self) -> pa.Table | None:
        """Return the remaining rows of the piece, or the next piece with rows."""
        if self._remainder is not None:
            return self._remainder
        while True:
            if self._slice is None:
                if not self._fetches:
                    return None
                fetched_slice, _, fetch = self._fetches[0]
                fetched = fetch.result()
                self._fetches.popleft()
                self._slice, self._tables, self._unread_pieces = fetched_slice, fetched.tables, fetched.pieces
                if self._pool is not None and fetched.pieces > 1 and fetched.opened.is_ranged:
                    self._tables = one_ahead(self._pool, fetched.opened)
            for table in self._tables:
                self._unread_pieces -= 1
                if table.num_rows:
                    return table
            self._end_slice()

    def _end_slice(self) -> None:
        assert self._slice is not None  # only a slice that was begun ends
        self.position = max(self.position, self._slice.limit)
        self._slice = None
        self._pass_gap()

    def _pass_gap(self) -> None:
        """Move the position over markers, aborted and compacted records to the next slice."""
        if self._slice is not None:
            return
        if self._fetches:
            next_offset = self._fetches[0][0].start
        elif self._slices:
            next_offset = self._slices[0].start
        else:
            next_offset = self.planned
        self.position = max(self.position, next_offset)

    def drop(self) -> None:
        """Drop all fetched and planned rows."""
        for *_, fetch in self._fetches:
            fetch.cancel()
        self._fetches.clear()
        self._slices.clear()
        self._slice, self._tables, self._unread_pieces, self._remainder = None, iter(()), 0, None
        self.planned = self.position

    def seek(self, position: int) -> None:
        """Continue at this offset; fetched rows are dropped (OFF-20)."""
        self.position = position
        self.drop()
