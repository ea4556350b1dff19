"""Executes a planned merge: reads the source segments and uploads the merged one."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor, Future
from functools import partial
from types import TracebackType
from typing import Self

import pyarrow as pa
import pyarrow.compute as pc

from txnstore.catalog.writing import topic_writer
from txnstore.chain import keys
from txnstore.compactor.plan import MergePlan
from txnstore.core.catalog.model import Topic
from txnstore.core.log.model import Batch
from txnstore.core.log.sums import ConservedSums, Sums
from txnstore.errors import CorruptionError
from txnstore.read.readahead import read_ahead
from txnstore.read.reader import Projection
from txnstore.runtime import Runtime
from txnstore.segment.codec import EncodedSegment, SegmentWriter
from txnstore.segment.schema import OFFSET_FIELD, TIMESTAMP_FIELD
from txnstore.segment.sums import RunningSums
from txnstore.storage.base import ObjectStore

#: Rows that are checked, hashed and encoded at a time.
_BLOCK_ROWS = 16 * 1024


def merge(
    objects: ObjectStore, pool: Executor, runtime: Runtime, topic: Topic, plan: MergePlan
) -> tuple[Batch, ConservedSums]:
    """Upload the records of a plan's sources as one segment.

    Costs one GET per source, concurrent and ahead of use, then one PUT under a unique name; large sources are read by
    row group. Memory holds one row group and what is read ahead: a large merged segment is in a temporary file. The
    segment contains ``_offset`` and ``_timestamp`` of each record, then the columns of the topic's current schema.
    Offsets do not change (CMP-01).

    Returns:
        The batch that can replace the sources, and the sums of its records.

    Raises:
        CorruptionError: A source differs from its description in the chain; nothing was uploaded.
        StorageRefusedError: There is no space left for the temporary file.
    """
    config = topic_writer(topic).config
    encoded, sums, first, last = _encode(objects, pool, topic, plan, config.segment_format, config.compression)
    key = keys.segment(plan.tp.topic, plan.tp.partition, runtime.new_id(), config.segment_format)
    objects.put(key, encoded.data)
    batch = Batch(
        base_offset=plan.base_offset,
        limit=plan.limit,
        records=encoded.rows,
        segment=encoded.segment(key, explicit_offsets=True),
        min_timestamp=first,
        max_timestamp=last,
        appended_at=max(source.batch.appended_at for source in plan.sources),
    )
    return batch, ConservedSums(sums, Sums(), (sums,))


def _encode(
    objects: ObjectStore,
    pool: Executor,
    topic: Topic,
    plan: MergePlan,
    fmt: str,
    compression: str,
) -> tuple[EncodedSegment, Sums, int, int]:
    """The merged segment, the sums of the records, and their minimum and maximum timestamp in milliseconds."""
    projection = _projection(topic)
    ranges: list[tuple[int, int]] = []
    sums = RunningSums(pool)
    with SegmentWriter(projection.schema, fmt, compression) as writer, _Beside(pool) as writing:
        at = plan.base_offset - 1
        for table in _in_blocks(read_ahead(objects, pool, [*plan.sources], projection, together=True)):
            at = _check_order(plan, table.column(OFFSET_FIELD.name), at)
            ranges.append(_range(table.column(TIMESTAMP_FIELD.name)))
            sums.add(table)
            writing.run(partial(writer.append, table))
        writing.wait()
        encoded = writer.finish()
    if encoded.rows != plan.records or encoded.rows == 0:
        msg = (
            f"{_segments(plan)} of {plan.tp} between the offsets {plan.base_offset} and {plan.limit} have "
            f"{encoded.rows} records; expected {plan.records}"
        )
        raise CorruptionError(msg)
    return encoded, sums.total(), min(first for first, _ in ranges), max(last for _, last in ranges)


def _in_blocks(tables: Iterable[pa.Table]) -> Iterator[pa.Table]:
    """The rows in tables of at least :data:`_BLOCK_ROWS`, but for the last one: each table costs time of its own."""
    waiting: list[pa.Table] = []
    rows = 0
    for table in tables:
        waiting.append(table)
        rows += table.num_rows
        if rows >= _BLOCK_ROWS:
            yield pa.concat_tables(waiting)
            waiting, rows = [], 0
    if rows:
        yield pa.concat_tables(waiting)


class _Beside:
    """Runs one piece of work after the other in a pool, beside what the caller does.

    Its end waits for work that runs, also after an interrupt, and lets none begin: nothing may write to what the caller
    closes next.

    Args:
        pool: Runs the work.
    """

    def __init__(self, pool: Executor) -> None:
        self._pool = pool
        self._running: Future[None] | None = None
        self._lock = threading.Lock()
        self._ended = False

    def run(self, work: Callable[[], None]) -> None:
        """Start it when the one before has ended. Raises what that raised."""
        self.wait()
        self._running = self._pool.submit(self._work, work)

    def wait(self) -> None:
        """Wait until nothing runs. Raises what the last one raised."""
        if self._running is not None:
            self._running.result()

    def _work(self, work: Callable[[], None]) -> None:
        with self._lock:
            if not self._ended:
                work()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._lock:
            self._ended = True


def _segments(plan: MergePlan) -> str:
    """The segments of a plan, for an error; not all, since there may be thousands."""
    keys = [source.batch.segment.key for source in plan.sources]
    return f"the segments {keys[0]} to {keys[-1]}" if keys else "the segments"


def _projection(topic: Topic) -> Projection:
    """``_offset`` and ``_timestamp``, then all columns of the topic."""
    return Projection(topic, [OFFSET_FIELD.name, TIMESTAMP_FIELD.name, *topic_writer(topic).stored.names])


def _check_order(plan: MergePlan, offsets: pa.ChunkedArray, before: int) -> int:
    """Check that the offsets ascend from after ``before`` and are inside the plan; returns the last one."""
    values = offsets.to_numpy()
    first, last = int(values[0]), int(values[-1])
    if first <= before or last >= plan.limit or (values[1:] <= values[:-1]).any():
        msg = (
            f"one of {_segments(plan)} of {plan.tp} has the offsets {first} to {last} out of order; expected ascending "
            f"offsets after {before} and below {plan.limit}"
        )
        raise CorruptionError(msg)
    return last


def _range(timestamps: pa.ChunkedArray) -> tuple[int, int]:
    ends = pc.min_max(timestamps.cast(pa.int64()))
    return ends["min"].as_py(), ends["max"].as_py()
