"""What a consumer has planned, fetched and decoded, partition by partition.

A flow is one partition on its way to the application: slices that are planned, segments that were asked for, the piece
that is being handed out. Its position is the offset of the next record that it hands out; everything behind the
position can be dropped and made again at any time, which is what a seek does.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Executor, Future
from dataclasses import dataclass

import pyarrow as pa

from txnstore.core.model import Isolation, Partition, TopicPartition
from txnstore.core.visibility import Slice, read_limit, visible
from txnstore.errors import TxnStoreError
from txnstore.read.readahead import MAX_FETCH_BYTES, MAX_FETCHES, Fetched, fetch_slice
from txnstore.read.reader import Projection
from txnstore.storage.base import ObjectStore


class Flow:
    """One partition on its way to the application."""

    __slots__ = ("_asked", "_left", "_part", "_rest", "_slices", "_tables", "planned", "position", "projection", "tp")

    def __init__(self, tp: TopicPartition, projection: Projection, position: int) -> None:
        self.tp = tp
        self.projection = projection
        self.position = position
        self.planned = position  # the slices up to here are planned
        self._slices: deque[Slice] = deque()
        self._asked: deque[tuple[Slice, Future[Fetched]]] = deque()
        self._part: Slice | None = None  # the slice that is being handed out …
        self._tables: Iterator[pa.Table] = iter(())  # … its pieces that were not begun …
        self._left = 0  # … how many they are …
        self._rest: pa.Table | None = None  # … and what is left of the one that was.

    def plan(self, partition: Partition, isolation: Isolation) -> None:
        """Plan up to where the isolation lets a reader go. The position passes what holds nothing to read (CON-06)."""
        limit = read_limit(partition, isolation)
        if limit > self.planned:
            self._slices.extend(visible(self.tp, partition, isolation, self.planned, limit))
            self.planned = limit
        self._pass_gap()

    @property
    def arriving(self) -> bool:
        """Whether there is something to take, now or when it has arrived."""
        return self._part is not None or bool(self._asked)

    @property
    def between(self) -> bool:
        """Whether the next record is the first of a slice: a good moment to let another partition have its turn."""
        return self._part is None

    @property
    def asked(self) -> int:
        """How many segments were asked for and not handed out yet."""
        return len(self._asked)

    @property
    def asked_bytes(self) -> int:
        """Their size."""
        return sum(part.batch.segment.size for part, _ in self._asked)

    @property
    def wants_more(self) -> bool:
        """Whether there are slices that were not asked for."""
        return bool(self._slices)

    def ask(self, objects: ObjectStore, pool: Executor) -> None:
        """Begin to fetch the next slice."""
        part = self._slices.popleft()
        self._asked.append((part, pool.submit(fetch_slice, objects, part, self.projection)))

    def take(self, rows: int) -> pa.Table | None:
        """Up to so many of the next rows, of one piece; None if what was asked for is handed out.

        Moves the position behind them. Waits for a segment that is on its way and raises what went wrong with it;
        then the flow is as if nothing had been planned.
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
        """What is left of the piece, or the next piece that has rows."""
        if self._rest is not None:
            return self._rest
        while True:
            if self._part is None:
                if not self._asked:
                    return None
                part, arriving = self._asked[0]
                fetched = arriving.result()
                self._asked.popleft()
                self._part, self._tables, self._left = part, fetched.tables(), len(fetched.opened)
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
        """Move over markers, aborted records and compacted ones, up to the next slice."""
        if self._part is not None:
            return
        following = self._asked[0][0] if self._asked else self._slices[0] if self._slices else None
        self.position = max(self.position, following.start if following is not None else self.planned)

    def drop(self) -> None:
        """Forget everything behind the position."""
        for _, arriving in self._asked:
            arriving.cancel()
        self._asked.clear()
        self._slices.clear()
        self._part, self._tables, self._left, self._rest = None, iter(()), 0, None
        self.planned = self.position

    def seek(self, position: int) -> None:
        """Go on at this offset; what was fetched is dropped (OFF-20)."""
        self.position = position
        self.drop()


def ask_ahead(flows: Iterable[Flow], objects: ObjectStore, pool: Executor) -> None:
    """Keep a bounded window of segments on their way, a slice of each partition in turn (CON-12)."""
    everyone = list(flows)
    count = sum(flow.asked for flow in everyone)
    size = sum(flow.asked_bytes for flow in everyone)
    hungry = deque(sorted((flow for flow in everyone if flow.wants_more), key=lambda flow: flow.asked))
    while hungry and count < MAX_FETCHES and (count == 0 or size < MAX_FETCH_BYTES):
        flow = hungry.popleft()
        before = flow.asked_bytes
        flow.ask(objects, pool)
        count, size = count + 1, size + flow.asked_bytes - before
        if flow.wants_more:
            hungry.append(flow)


@dataclass(frozen=True, slots=True)
class Taken:
    """Rows of one partition, with all columns of a read, on their way to the application."""

    tp: TopicPartition
    projection: Projection
    table: pa.Table


def drain(
    flows: deque[Flow],
    objects: ObjectStore,
    pool: Executor,
    rows: int,
    size: int,
    *,
    one_schema: bool = False,
) -> list[Taken]:
    """The next rows of the flows: up to ``rows``, and not much more than ``size`` bytes beyond the first (CON-18).

    A partition has its turn until a slice ends, then the next one has (the deque is turned). ``one_schema``: only rows
    of the same columns. An error is raised only if it comes first; else what came before it is returned, and the
    error comes back with the next call.
    """
    result: list[Taken] = []
    schema: pa.Schema | None = None
    while rows > 0 and size > 0:
        ask_ahead(flows, objects, pool)
        flow = next((f for f in flows if f.arriving and (schema is None or f.projection.schema == schema)), None)
        if flow is None:
            break
        try:
            table = flow.take(rows)
        except TxnStoreError:
            if result:
                break
            raise
        if table is not None:
            result.append(Taken(flow.tp, flow.projection, table))
            schema = flow.projection.schema if one_schema else None
            rows -= table.num_rows
            size -= table.nbytes
        if flow.between:
            flows.remove(flow)
            flows.append(flow)
    return result
