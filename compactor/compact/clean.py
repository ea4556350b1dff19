"""Executes a clean: keeps the newest committed record of each key of a partition, and removes old tombstones.

The sources are read twice: their keys, to find the newest record of each key, and then whole, to copy the records that
stay. See docs/internals/design/compaction.md.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from concurrent.futures import Executor, Future
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from txnstore.catalog.writing import TopicWriter, topic_writer
from txnstore.chain import keys
from txnstore.compactor.compact.clean_plan import CleanPlan
from txnstore.compactor.compact.encoding import BackgroundQueue, begin
from txnstore.compactor.compact.memory import Memory
from txnstore.compactor.compact.merge_plan import by_period
from txnstore.compactor.compact.newest import NewestByKey, Offsets
from txnstore.compactor.compact.sources import RowOrder, read_sources
from txnstore.core.catalog.model import CatalogTopic
from txnstore.core.log.model import Batch, Layout
from txnstore.core.log.slices import Slice
from txnstore.core.log.sums import ConservedSums, Sums, add_up
from txnstore.read.rows import Columns
from txnstore.runtime import Runtime
from txnstore.segment.codec import EncodedSegment, SegmentWriter
from txnstore.segment.partition import key_bytes
from txnstore.segment.schema import HORIZON_FIELD, OFFSET_FIELD, TIMESTAMP_FIELD
from txnstore.segment.sums import row_hashes, total_sums
from txnstore.storage.base import ObjectStore

_VALUE = "value"


@dataclass(slots=True)
class Cleaned:
    """What a clean did.

    Attributes:
        added: The batches that replace the sources.
        superseded: The records that were dropped because their key has a newer one.
        tombstones: The tombstones that were dropped because their delete horizon has passed.
        keyless: The records that were dropped because they have no key (CMP-19).
        stamped: The tombstones that got their delete horizon.
        sums: The sums of what it read, removed and wrote; None if nothing was changed, or nothing was read.
    """

    added: list[Batch] = field(default_factory=list)
    superseded: int = 0
    tombstones: int = 0
    keyless: int = 0
    stamped: int = 0
    sums: ConservedSums | None = None

    @property
    def changed(self) -> bool:
        """Whether the new segments differ from the sources."""
        return bool(self.superseded or self.tombstones or self.keyless or self.stamped)


class Clean:
    """One clean of one partition.

    Args:
        pool: Fetches and decodes concurrently.
        runtime: Names the new segments.
        plan: What to clean.
        now: The time in ms by the clock of the storage.
        target_bytes: The maximum size of a new segment.
    """

    def __init__(
        self,
        objects: ObjectStore,
        pool: Executor,
        runtime: Runtime,
        topic: CatalogTopic,
        plan: CleanPlan,
        now: int,
        target_bytes: int,
        memory: Memory,
    ) -> None:
        self._objects, self._pool, self._runtime = objects, pool, runtime
        self._topic, self._plan, self._now = topic, plan, now
        self._writer: TopicWriter = topic_writer(topic)
        self._target_bytes, self._memory = target_bytes, memory
        self._done = Cleaned()
        #: The sums of what was read and of what was removed so far, and those of each uploaded segment.
        self._read_sums, self._removed_sums, self._added_sums = Sums(), Sums(), list[Sums]()
        #: The sums of tables that are being hashed, and are not added to these yet.
        self._sums_tasks: list[Future[ConservedSums]] = []
        hidden = [HORIZON_FIELD] if topic.schema is None else []
        self._columns = Columns.of_segments(topic, Layout.MERGED, hidden=hidden, conserves=True)
        # A tombstone above the LSO is still to be seen by readers, and to remove records below the LSO.
        self._removes_tombstones = topic.schema is None and not plan.past_hw

    def run(self) -> Cleaned:
        """Read the sources, and upload the records that stay.

        Returns:
            What was done. Without any change nothing is uploaded: the sources stay, and only the checkpoint moves.

        Raises:
            CorruptionError: A source is missing, or differs from its description in the chain.
            InvalidConfigError: The memory is too small.
            NoSpaceError: There is no space left to spill.
        """
        with NewestByKey(self._memory.keys, threads=1 if self._memory.few_threads else None) as newest:
            records = self._read_keys(newest)
            distinct_keys = newest.count()
            self._done.keyless, self._done.superseded = records - newest.records, newest.records - distinct_keys
            if self._done.changed or self._has_removable_tombstones():
                self._copy_survivors(newest.offsets())
                self._collect_sums()
                if self._done.changed and self._plan.sources:
                    self._done.sums = ConservedSums(self._read_sums, self._removed_sums, tuple(self._added_sums))
        return self._done

    def _read_keys(self, newest: NewestByKey) -> int:
        """Read the keys of all sources; returns the number of records."""
        column, records = self._writer.key_column, 0
        assert column is not None, "only topics with a key are cleaned"
        columns = Columns(self._topic, [OFFSET_FIELD.name, column])
        for table in self._tables(self._plan.sources, columns):
            newest.add(key_bytes(table.column(column), column), table.column(OFFSET_FIELD.name))
            records += table.num_rows
            del table  # Else it is in memory while the next one is decoded.
        return records

    def _tables(self, sources: tuple[Slice, ...], columns: Columns) -> Iterator[pa.Table]:
        """The tables of the sources in offset order, checked."""
        order = RowOrder(self._plan.tp, sources)
        for table in read_sources(self._objects, self._pool, sources, columns, self._memory):
            order.add(table.column(OFFSET_FIELD.name).to_numpy())
            yield table
            del table  # Else it is in memory while the next one is decoded.
        order.end()

    def _has_removable_tombstones(self) -> bool:
        """Whether a tombstone can be removed, or has no delete horizon yet. Reads the dirty part only if it must."""
        if not self._removes_tombstones:
            return False
        if self._plan.has_expired_tombstones(self._now):
            return True
        dirty = tuple(
            source
            for source in self._plan.sources
            if source.limit > self._plan.dirty_from and source.batch.delete_horizon is None
        )
        columns = Columns(self._topic, [OFFSET_FIELD.name, _VALUE])
        return any(table.column(_VALUE).null_count for table in self._tables(dirty, columns))

    # Copying ----------------------------------------------------------------------------------------------------------

    def _copy_survivors(self, newest: Iterator[Offsets]) -> None:
        """Upload the records that stay, as segments of at most the target size, and of one period of the retention."""
        survivors = _Survivors(newest)
        for sources in by_period(self._plan.sources, self._writer.config):
            self._copy_together(sources, survivors)

    def _copy_together(self, sources: tuple[Slice, ...], survivors: _Survivors) -> None:
        """Copy the surviving rows of several batches into segments that they share."""
        with closing(_PendingSegments()) as pending, BackgroundQueue(self._pool, self._memory) as writing:
            for table in self._tables(sources, self._columns):
                offsets = table.column(OFFSET_FIELD.name).to_numpy()
                rows = self._without_old_tombstones(table.filter(pa.array(survivors.mask(offsets))))
                part = self._begin_sums(table, offsets, rows.column(OFFSET_FIELD.name).to_numpy())
                if not rows.num_rows:
                    continue
                writing.run(partial(self._encode_rows, pending, rows, part), rows.nbytes)
                del table, offsets, rows
                self._upload(pending)
            writing.wait()
            pending.finish()
            self._upload(pending)

    def _encode_rows(self, pending: _PendingSegments, rows: pa.Table, sums: Future[ConservedSums]) -> None:
        """Encode the rows that stay of a table; ends the segment if it is large enough."""
        if pending.writer is None:
            config, schema = self._writer.config, self._columns.schema
            pending.writer = SegmentWriter(
                schema,
                config.segment_format,
                config.compression,
                row_group_bytes=self._memory.rows,
                for_table=config.has_table,
            )
        pending.writer.append(rows)
        pending.parts.append(_range_of(rows, sums))
        if pending.writer.size >= self._target_bytes:
            pending.finish()

    def _begin_sums(self, table: pa.Table, offsets: Offsets, remaining: Offsets) -> Future[ConservedSums]:
        """Hash the rows of a table beside what follows; one table at a time, so that few are in memory."""
        self._collect_sums()
        stays = np.zeros(len(offsets), np.bool_)
        stays[np.searchsorted(offsets, remaining)] = True  # Both ascend, and one is a part of the other.
        task = begin(self._pool, self._memory, partial(_sums_of_parts, table, stays))
        self._sums_tasks.append(task)
        return task

    def _collect_sums(self) -> None:
        """Add the hashed rows to the sums of what was read and what was removed."""
        for account in self._sums_tasks:
            self._read_sums += account.result().read
            self._removed_sums += account.result().removed
        self._sums_tasks.clear()

    def _without_old_tombstones(self, table: pa.Table) -> pa.Table:
        """The rows without tombstones whose horizon has passed; those without a horizon get it (CMP-08, KIP-534)."""
        if not self._removes_tombstones or not table.column(_VALUE).null_count:
            return table
        is_tombstone, horizon = table.column(_VALUE).is_null(), table.column(HORIZON_FIELD.name)
        is_expired = pc.and_(is_tombstone, pc.fill_null(pc.less_equal(horizon, self._now), fill_value=False))
        is_new = pc.and_(is_tombstone, horizon.is_null())
        new_horizon = pa.scalar(self._now + self._writer.config.delete_retention_ms, HORIZON_FIELD.type)
        self._done.tombstones += pc.sum(is_expired).as_py() or 0
        self._done.stamped += pc.sum(is_new).as_py() or 0
        with_horizons = table.set_column(table.num_columns - 1, HORIZON_FIELD, pc.if_else(is_new, new_horizon, horizon))
        return with_horizons.filter(pc.invert(is_expired))

    def _upload(self, pending: _PendingSegments) -> None:
        """Upload the segments that are finished, in the calling thread, where an interrupt ends it."""
        while pending.finished:
            self._upload_one(*pending.finished.popleft())

    def _upload_one(self, encoded: EncodedSegment, parts: list[_Range]) -> None:
        """Upload an encoded segment, and describe it as the batch that replaces these ranges."""
        tp, config = self._plan.tp, self._writer.config
        key = keys.segment(tp.topic, tp.partition, self._runtime.new_id(), config.segment_format)
        self._objects.put(key, encoded.data)
        base, limit = parts[0].first, parts[-1].last + 1
        self._added_sums.append(add_up(sums for part in parts for sums in part.sums.result().added))
        self._done.added.append(
            Batch(
                base_offset=base,
                limit=limit,
                records=encoded.rows,
                segment=encoded.segment(key, explicit_offsets=True),
                min_timestamp=min(part.oldest for part in parts),
                max_timestamp=max(part.newest for part in parts),
                appended_at=max(
                    source.batch.appended_at
                    for source in self._plan.sources
                    if source.start < limit and source.limit > base
                ),
                delete_horizon=min((part.horizon for part in parts if part.horizon is not None), default=None),
            )
        )


class _PendingSegments:
    """The segment that is being written, with its parts, and those that are finished and not uploaded."""

    def __init__(self) -> None:
        self.writer: SegmentWriter | None = None
        self.parts: list[_Range] = []
        self.finished: deque[tuple[EncodedSegment, list[_Range]]] = deque()

    def finish(self) -> None:
        """End the segment, if there is one."""
        if self.writer is not None:
            with self.writer:
                self.finished.append((self.writer.finish(), self.parts))
            self.writer, self.parts = None, []

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


class _Survivors:
    """The offsets of the records that stay, taken in the order of the log."""

    def __init__(self, offsets: Iterator[Offsets]) -> None:
        self._offsets = offsets
        self._next_offsets: Offsets = np.empty(0, np.int64)

    def mask(self, offsets: Offsets) -> npt.NDArray[np.bool_]:
        """Which of these offsets stay; they follow those of the last call."""
        last_offset = offsets[-1]
        arrays = [self._next_offsets]
        while not len(arrays[-1]) or arrays[-1][-1] < last_offset:
            next_array = next(self._offsets, None)
            if next_array is None:
                break
            arrays.append(next_array)
        staying = np.concatenate(arrays)
        end = int(np.searchsorted(staying, last_offset, side="right"))
        self._next_offsets = staying[end:]
        return np.isin(offsets, staying[:end], assume_unique=True)
