"""Executes merges: reads the sources of plans, and uploads their records as one segment."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from functools import partial
from typing import TypeAlias

import pyarrow as pa

from txnstore.catalog.writing import topic_writer
from txnstore.chain import keys
from txnstore.compactor.compact.encoding import BackgroundQueue, begin
from txnstore.compactor.compact.memory import Memory
from txnstore.compactor.compact.merge_plan import MergePlan
from txnstore.compactor.compact.sources import Numbers, RowOrder, read_sources
from txnstore.core.catalog.model import CatalogTopic
from txnstore.core.log.model import Batch, Layout, Segment
from txnstore.core.log.sums import ConservedSums, Sums
from txnstore.core.maintenance import ReplaceSegments
from txnstore.read.rows import Columns
from txnstore.runtime import Runtime
from txnstore.segment.codec import EncodedSegment, SegmentWriter
from txnstore.segment.schema import OFFSET_FIELD, TIMESTAMP_FIELD
from txnstore.segment.sums import Sizes, Words, row_hashes, total_sums
from txnstore.storage.base import ObjectStore
from txnstore.threads import Task

#: The least size in bytes of a row group that ends where the rows of a plan end.
_PART_BYTES = 128 << 10

#: What takes the place of the batches of a plan: a batch and the sums of its records; nothing without records.
Merged: TypeAlias = tuple[tuple[Batch, ...], ConservedSums | None]


def merge(
    objects: ObjectStore,
    pool: Executor,
    runtime: Runtime,
    *,
    topic: CatalogTopic,
    plans: Sequence[MergePlan],
    memory: Memory = Memory(),  # noqa: B008 - immutable
    check: Callable[[], object] = lambda: None,
) -> list[Merged]:
    """Upload the records of all plans as one segment, in their order.

    Costs one GET per object of the sources, concurrent and ahead of use, then one PUT under a unique name, unless no
    plan has sources; large sources are read by row group. Memory holds some row groups, what is read ahead, and with
    many threads up to 32 MiB of rows that wait to be encoded: a large segment is in a temporary file. The segment has
    ``_offset`` and ``_timestamp`` of each record, ``_partition`` if several plans have records, then the columns of the
    topic. Offsets do not change (CMP-01).

    Args:
        pool: Fetches, decodes, hashes and encodes concurrently.
        runtime: Names the segment.
        topic: The topic of all plans.
        memory: How much is in memory at a time.
        check: Called from time to time; what it raises ends the merge, and nothing is uploaded.

    Returns:
        For each plan what can replace its batches.

    Raises:
        CorruptionError: A source differs from its description in the chain; nothing was uploaded.
        NoSpaceError: There is no space left for the temporary file.
    """
    merges = [_Merge(plan) for plan in plans]
    merges_with_rows = [merge for merge in merges if merge.plan.sources]
    if merges_with_rows:
        tp, config = merges_with_rows[0].plan.tp, topic_writer(topic).config
        encoded = _encode(objects, pool, topic, merges_with_rows, memory, check)
        key = keys.segment(tp.topic, tp.partition, runtime.new_id(), config.segment_format)
        objects.put(key, encoded.data)
        segment, first_row = encoded.segment(key, explicit_offsets=True), 0
        for merge in merges_with_rows:
            merge.place(segment, first_row)
            first_row += merge.order.rows
    return [merge.merged for merge in merges]


def replacement(plan: MergePlan, merged: Merged, uploaded_at: int) -> ReplaceSegments:
    """The command that replaces the batches of a plan."""
    added, sums = merged
    return ReplaceSegments(plan.tp, plan.removed, added, uploaded_at, sums=sums, revision=plan.revision)


class _Merge:
    """The rows of a plan, which are added in order.

    Attributes:
        merged: See :data:`Merged`; set by :meth:`place`.
    """

    def __init__(self, plan: MergePlan) -> None:
        self.plan, self.order = plan, RowOrder(plan.tp, plan.sources)
        self.sums = Sums()
        self._oldest: list[int] = []
        self._newest: list[int] = []
        self.merged: Merged = (), None

    def add(self, offsets: Numbers, times: Numbers) -> None:
        """Add rows; raises :class:`CorruptionError` if the chain does not describe them."""
        self.order.check_next(offsets)
        self._oldest.append(int(times.min()))
        self._newest.append(int(times.max()))

    def place(self, segment: Segment, first_row: int) -> None:
        """Describe the merged batch, whose rows begin at ``first_row`` of the segment, and its sums."""
        batch = Batch(
            base_offset=self.plan.base_offset,
            limit=self.plan.limit,
            records=self.order.rows,
            segment=segment,
            min_timestamp=min(self._oldest),
            max_timestamp=max(self._newest),
            first_row=first_row,
            appended_at=max(source.batch.appended_at for source in self.plan.sources),
        )
        self.merged = (batch,), ConservedSums(self.sums, Sums(), (self.sums,))


def _encode(
    objects: ObjectStore,
    pool: Executor,
    topic: CatalogTopic,
    merges: Sequence[_Merge],
    memory: Memory,
    check: Callable[[], object],
) -> EncodedSegment:
    """The rows of all plans as one segment."""
    config = topic_writer(topic).config
    layout = Layout.MERGED if len(merges) == 1 else Layout.MERGED_SHARED
    columns = Columns.of_segments(topic, layout, conserves=True)
    sources = [source for merge in merges for source in merge.plan.sources]
    fmt, compression = config.segment_format, topic_writer(topic).compression
    hashes = _Hashes(pool, memory)
    unfinished = deque(merges)
    with (
        SegmentWriter(
            columns.schema, fmt, compression, row_group_bytes=memory.rows, for_table=config.has_table
        ) as writer,
        BackgroundQueue(pool, memory) as writing,
    ):
        for table in read_sources(objects, pool, sources, columns, memory):
            check()
            parts = _add_rows(unfinished, table)
            hashes.add(table, parts)
            ends = [rows.stop for merge, rows in parts if not merge.order.missing_rows and merge is not merges[-1]]
            writing.run(partial(_append, writer, table, ends), table.nbytes)
            del table  # Else it is in memory while the next rows are decoded.
        writing.wait()
        for merge in merges:
            merge.order.check_end()
        hashes.collect()
        return writer.finish()


def _add_rows(unfinished: deque[_Merge], table: pa.Table) -> list[tuple[_Merge, slice]]:
    """Add the next rows to the merges that miss some, in order; return which rows each has got."""
    offsets = table.column(OFFSET_FIELD.name).to_numpy()
    times = table.column(TIMESTAMP_FIELD.name).cast(pa.int64()).to_numpy()
    parts: list[tuple[_Merge, slice]] = []
    start = 0
    while start < table.num_rows:
        merge = unfinished[0]
        rows = slice(start, min(table.num_rows, start + merge.order.missing_rows))
        merge.add(offsets[rows], times[rows])
        parts.append((merge, rows))
        if not merge.order.missing_rows:
            unfinished.popleft()
        start = rows.stop
    return parts


def _append(writer: SegmentWriter, table: pa.Table, ends: Sequence[int]) -> None:
    """Encode rows; the row groups end where the rows of a plan end, so that a reader of one decodes little more."""
    start = 0
    for end in ends:
        writer.append(table.slice(start, end - start))
        writer.end_row_group(_PART_BYTES)
        start = end
    if start < table.num_rows:
        writer.append(table.slice(start))


class _Hashes:
    """Hashes tables for the sums of merges, beside what the caller does next; one at a time, so that few are kept."""

    def __init__(self, pool: Executor, memory: Memory) -> None:
        self._pool, self._memory = pool, memory
        self._task: Task[tuple[Words, Sizes]] | None = None
        self._parts: list[tuple[_Merge, slice]] = []

    def add(self, table: pa.Table, parts: list[tuple[_Merge, slice]]) -> None:
        """Begin to hash a table, of which each merge gets the sums of its rows."""
        self.collect()
        self._task, self._parts = begin(self._pool, self._memory, partial(row_hashes, table)), parts

    def collect(self) -> None:
        """Add what was hashed to the sums."""
        task, self._task = self._task, None
        if task is not None:
            hashes, sizes = task.result()
            for merge, rows in self._parts:
                merge.sums += total_sums(hashes[rows], sizes[rows])
