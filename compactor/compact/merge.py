"""Executes a planned merge: reads the source segments and uploads the merged one."""

from __future__ import annotations

from concurrent.futures import Executor
from functools import partial

import pyarrow as pa
import pyarrow.compute as pc

from txnstore.catalog.writing import topic_writer
from txnstore.chain import keys
from txnstore.compactor.compact.background import BackgroundQueue, in_blocks
from txnstore.compactor.compact.merge_plan import MergePlan
from txnstore.core.catalog.model import CatalogTopic
from txnstore.core.log.model import Batch, Layout
from txnstore.core.log.sums import ConservedSums, Sums
from txnstore.errors import CorruptionError
from txnstore.read.readahead import read_ahead
from txnstore.read.rows import Columns
from txnstore.runtime import Runtime
from txnstore.segment.codec import EncodedSegment, SegmentWriter
from txnstore.segment.schema import OFFSET_FIELD, TIMESTAMP_FIELD
from txnstore.segment.sums import RunningSums
from txnstore.storage.base import ObjectStore


def merge(
    objects: ObjectStore, pool: Executor, runtime: Runtime, topic: CatalogTopic, plan: MergePlan
) -> tuple[Batch, ConservedSums]:
    """Upload the records of a plan's sources as one segment.

    Costs one GET per source, concurrent and ahead of use, then one PUT under a unique name; large sources are read by
    row group. Memory holds one row group, what is read ahead, and up to 32 MiB of rows that wait to be encoded: a large
    merged segment is in a temporary file. The segment contains ``_offset`` and ``_timestamp`` of each record, then the
    columns of the topic's current schema. Offsets do not change (CMP-01).

    Returns:
        The batch that can replace the sources, and the sums of its records.

    Raises:
        CorruptionError: A source differs from its description in the chain; nothing was uploaded.
        NoSpaceError: There is no space left for the temporary file.
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
    topic: CatalogTopic,
    plan: MergePlan,
    fmt: str,
    compression: str,
) -> tuple[EncodedSegment, Sums, int, int]:
    """The merged segment, the sums of the records, and their minimum and maximum timestamp in milliseconds."""
    columns = Columns.of_segments(topic, Layout.MERGED, conserves=True)
    ranges: list[tuple[int, int]] = []
    sums = RunningSums(pool)
    for_table = topic_writer(topic).config.has_table
    with (
        SegmentWriter(columns.schema, fmt, compression, for_table=for_table) as writer,
        BackgroundQueue(pool) as writing,
    ):
        at = plan.base_offset - 1
        for table in in_blocks(read_ahead(objects, pool, [*plan.sources], columns, together=True)):
            at = _check_order(plan, table.column(OFFSET_FIELD.name), at)
            ranges.append(_range(table.column(TIMESTAMP_FIELD.name)))
            sums.add(table)
            writing.run(partial(writer.append, table), table.nbytes)
        writing.wait()
        encoded = writer.finish()
    if encoded.rows != plan.records or encoded.rows == 0:
        msg = (
            f"{_segments(plan)} of {plan.tp} between the offsets {plan.base_offset} and {plan.limit} have "
            f"{encoded.rows} records; expected {plan.records}"
        )
        raise CorruptionError(msg)
    return encoded, sums.total(), min(first for first, _ in ranges), max(last for _, last in ranges)


def _segments(plan: MergePlan) -> str:
    """The segments of a plan, for an error; not all, since there may be thousands."""
    keys = [source.batch.segment.key for source in plan.sources]
    return f"the segments {keys[0]} to {keys[-1]}" if keys else "the segments"


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
