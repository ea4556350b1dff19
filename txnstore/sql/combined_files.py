"""The rows of shared segments as files that DuckDB reads: a few of them, however many commits there are.

DuckDB needs about a millisecond for a file that it reads through txnstore: for each small commit, that would be more
than its rows take. The visible slices of a topic whose segments share an object with others are cut into runs of at
most :data:`FILE_BYTES` of segments and :data:`FILE_SLICES`, oldest first, and each run is one virtual Parquet file with
all columns of the view. So a commit changes the last file only, and what a query holds at a time is bounded. A file is
made when a query first reads it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from functools import partial

from txnstore.core.log.slices import Slice
from txnstore.read.rows import RowPlan
from txnstore.read.sharing import SharedSegments
from txnstore.sql.filesystem import TableFile

#: The maximum size of the segments whose rows are one file, in bytes as they are stored.
FILE_BYTES = 16 << 20
#: The maximum number of slices whose rows are one file: 16 MiB may be many times as many when decompressed.
FILE_SLICES = 2048


def combined_files(plan: RowPlan, segments: SharedSegments) -> dict[str, TableFile]:
    """The files with the rows of a plan of shared segments, by their paths. Reads no object.

    Args:
        segments: Decodes them when a file is first read.

    Returns:
        The files; the path of one names its rows and their columns, so that equal paths have equal bytes.
    """
    topic = plan.columns.topic
    topic_state = f"{topic.topic_id}-{topic.version}-{topic.revision}"
    return {
        f"fresh/{topic_state}/{_rows_digest(run)}.parquet": TableFile(partial(segments.read, run, plan.columns))
        for run in runs(plan.slices)
    }


def runs(slices: Iterable[Slice]) -> Iterator[list[Slice]]:
    """The slices of each file; new ones come last, whatever their partition and chain is."""
    run: list[Slice] = []
    keys: set[str] = set()  # A segment is decoded whole, however small the share of it that a reader sees.
    size = 0
    for part in sorted(slices, key=lambda part: (part.batch.appended_at, part.batch.segment.key, part.rows.start)):
        segment = part.batch.segment
        added_bytes = 0 if segment.key in keys else segment.size
        if run and (size + added_bytes > FILE_BYTES or len(run) == FILE_SLICES):
            yield sorted(run, key=_partition_and_start)
            run, keys, size, added_bytes = [], set(), 0, segment.size
        run.append(part)
        keys.add(segment.key)
        size += added_bytes
    if run:
        yield sorted(run, key=_partition_and_start)


def _partition_and_start(part: Slice) -> tuple[int, int]:
    return part.tp.partition, part.start


def _rows_digest(slices: Sequence[Slice]) -> str:
    """A name for the rows of the slices."""
    names = [
        f"{part.tp.partition} {part.start} {part.limit} {part.origin} {part.rows.start} "
        f"{part.batch.segment.sha256} {part.batch.segment.key}\n"
        for part in slices
    ]
    return hashlib.sha256("".join(names).encode()).hexdigest()
