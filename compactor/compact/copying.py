"""Copies the rows that stay of some batches into new segments: what a clean and an erasure write."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from txnstore.catalog.writing import TopicWriter, topic_writer
from txnstore.chain import keys
from txnstore.compactor.compact.encoding import BackgroundQueue, begin
from txnstore.compactor.compact.memory import Memory
from txnstore.compactor.compact.merge_plan import Plan, by_period
from txnstore.compactor.compact.newest import Offsets
from txnstore.compactor.compact.sources import RowOrder, read_sources
from txnstore.core.catalog.model import CatalogTopic
from txnstore.core.log.model import Batch, Layout
from txnstore.core.log.slices import Slice
from txnstore.core.log.sums import ConservedSums, Sums, add_up
from txnstore.read.rows import Columns
from txnstore.runtime import Runtime
from txnstore.segment.codec import EncodedSegment, SegmentWriter
from txnstore.segment.schema import HORIZON_FIELD, OFFSET_FIELD, TIMESTAMP_FIELD
from txnstore.segment.sums import row_hashes, total_sums
from txnstore.storage.base import ObjectStore

#: Returns the rows of a table that stay, in their order.
Select: TypeAlias = Callable[[pa.Table], pa.Table]


class Copying:
    """Copies what stays of the sources of one plan.

    Args:
        pool: Fetches, decodes, hashes and encodes concurrently.
        runtime: Names the new segments.
        topic: The topic of the sources.
        target_bytes: The maximum size of a new segment.
        memory: How much is in memory at a time.
    """

    def __init__(
        self,
        objects: ObjectStore,
        pool: Executor,
        runtime: Runtime,
        topic: CatalogTopic,
        plan: Plan,
        target_bytes: int,
        memory: Memory,
    ) -> None:
        self._objects, self._pool, self._runtime = objects, pool, runtime
        self.topic, self.memory = topic, memory
        self._plan, self._target_bytes = plan, target_bytes
        self._writer: TopicWriter = topic_writer(topic)
        hidden = [HORIZON_FIELD] if self._writer.tombstone_column is not None else []
        self._columns = Columns.of_segments(topic, Layout.MERGED, hidden=hidden, conserves=True)
        self._added: list[Batch] = []
        #: The sums of what was read and of what was removed so far, and those of each uploaded segment.
        self._read_sums, self._removed_sums, self._added_sums = Sums(), Sums(), list[Sums]()
        #: The sums of tables that are being hashed, and are not added to these yet.
        self._sums_tasks: list[Future[ConservedSums]] = []

    def copy(self, select: Select) -> list[Batch]:
        """Upload the rows that stay, as segments of at most the target size, and of one period of the retention.

        Returns:
            The batches that replace the sources.

        Raises:
            CorruptionError: A source is missing, or differs from its description in the chain.
        """
        for sources in by_period(self._plan.sources, self._writer.config):
            self._copy_together(sources, select)
        self._collect_sums()
        return self._added

    @property
    def sums(self) -> ConservedSums:
        """The sums of what was read, removed and written."""
        return ConservedSums(self._read_sums, self._removed_sums, tuple(self._added_sums))

    def tables(self, sources: tuple[Slice, ...], columns: Columns) -> Iterator[pa.Table]:
        """The tables of the sources in offset order, checked."""
        order = RowOrder(self._plan.tp, sources)
        for table in read_sources(self._objects, self._pool, sources, columns, self.memory):
            order.check_next(table.column(OFFSET_FIELD.name).to_numpy())
            yield table
            del table  # Else it is in memory while the next one is decoded.
        order.check_end()

    def _copy_together(self, sources: tuple[Slice, ...], select: Select) -> None:
        """Copy the surviving rows of several batches into segments that they share."""
        with closing(_PendingSegments()) as pending, BackgroundQueue(self._pool, self.memory) as writing:
            for table in self.tables(sources, self._columns):
                offsets = table.column(OFFSET_FIELD.name).to_numpy()
                rows = select(table)
                sums = self._begin_sums(table, offsets, rows.column(OFFSET_FIELD.name).to_numpy())
                if not rows.num_rows:
                    continue
                writing.run(partial(self._append_rows, pending, rows, sums), rows.nbytes)
                del table, offsets, rows
                self._upload(pending)
            writing.wait()
            pending.finish()
            self._upload(pending)

    def _append_rows(self, pending: _PendingSegments, rows: pa.Table, sums: Future[ConservedSums]) -> None:
        """Append rows to the pending segment, which is begun if there is none, and finished if it is large enough."""
        if pending.writer is None:
            config, schema = self._writer.config, self._columns.schema
            pending.writer = SegmentWriter(
                schema,
                config.segment_format,
                config.compression,
                row_group_bytes=self.memory.rows,
                for_table=config.has_table,
            )
        pending.writer.append(rows)
        pending.ranges.append(_range_of(rows, sums))
        if pending.writer.size >= self._target_bytes:
            pending.finish()

    def _begin_sums(self, table: pa.Table, offsets: Offsets, remaining: Offsets) -> Future[ConservedSums]:
        """Hash the rows of a table beside what follows; one table at a time, so that few are in memory."""
        self._collect_sums()
        stays = np.zeros(len(offsets), np.bool_)
        stays[np.searchsorted(offsets, remaining)] = True  # Both ascend, and one is a part of the other.
        task = begin(self._pool, self.memory, partial(_sums_of_parts, table, stays))
        self._sums_tasks.append(task)
        return task

    def _collect_sums(self) -> None:
        """Add the hashed rows to the sums of what was read and what was removed."""
        for task in self._sums_tasks:
            self._read_sums += task.result().read
            self._removed_sums += task.result().removed
        self._sums_tasks.clear()

    def _upload(self, pending: _PendingSegments) -> None:
        """Upload the segments that are finished, in the calling thread, where an interrupt ends it."""
        while pending.finished:
            self._upload_segment(*pending.finished.popleft())

    def _upload_segment(self, encoded: EncodedSegment, ranges: list[_Range]) -> None:
        """Upload an encoded segment of these ranges, adjacent ones in offset order; add its batch, and its sums."""
        tp, config = self._plan.tp, self._writer.config
        key = keys.segment(tp.topic, tp.partition, self._runtime.new_id(), config.segment_format)
        self._objects.put(key, encoded.data)
        base, limit = ranges[0].first, ranges[-1].last + 1
        replaced_batches = [each.batch for each in self._plan.sources if each.start < limit and each.limit > base]
        self._added_sums.append(add_up(sums for each in ranges for sums in each.sums.result().added))
        self._added.append(
            Batch(
                base_offset=base,
                limit=limit,
                records=encoded.rows,
                segment=encoded.segment(key, explicit_offsets=True),
                min_timestamp=min(each.oldest for each in ranges),
                max_timestamp=max(each.newest for each in ranges),
                appended_at=max(batch.appended_at for batch in replaced_batches),
                delete_horizon=min((each.horizon for each in ranges if each.horizon is not None), default=None),
            )
        )


class _PendingSegments:
    """The segment that is being written, with the ranges of its rows, and those that are finished and not uploaded."""

    def __init__(self) -> None:
        self.writer: SegmentWriter | None = None
        self.ranges: list[_Range] = []
        self.finished: deque[tuple[EncodedSegment, list[_Range]]] = deque()

    def finish(self) -> None:
        """End the segment, if there is one."""
        if self.writer is not None:
            with self.writer:
                self.finished.append((self.writer.finish(), self.ranges))
            self.writer, self.ranges = None, []

    def close(self) -> None:
        """Discard what is not uploaded."""
        if self.writer is not None:
            self.writer.close()


@dataclass(frozen=True, slots=True)
class _Range:
    """The ranges of the offsets and times of some rows, their first delete horizon, and their sums."""

    first: int
    last: int
    oldest: int
    newest: int
    horizon: int | None
    sums: Future[ConservedSums]


def _sums_of_parts(table: pa.Table, stays: npt.NDArray[np.bool_]) -> ConservedSums:
    """The sums of the rows of a table, of those that go, and of those that stay."""
    hashes, sizes = row_hashes(table)
    removed_sums, added_sums = total_sums(hashes[~stays], sizes[~stays]), total_sums(hashes[stays], sizes[stays])
    return ConservedSums(total_sums(hashes, sizes), removed_sums, (added_sums,))


def _range_of(table: pa.Table, sums: Future[ConservedSums]) -> _Range:
    offsets = table.column(OFFSET_FIELD.name)
    times = pc.min_max(table.column(TIMESTAMP_FIELD.name).cast(pa.int64()))
    horizon = pc.min(table.column(HORIZON_FIELD.name)).as_py() if HORIZON_FIELD.name in table.column_names else None
    return _Range(offsets[0].as_py(), offsets[-1].as_py(), times["min"].as_py(), times["max"].as_py(), horizon, sums)
