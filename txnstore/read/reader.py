"""Reads a slice: fetches its segment, checks it, decodes the needed columns, and adds the reserved ones.

The chain records the size and the hash of each object, the number of its rows and the offset of the first one. So a
segment costs one GET, and any difference from the chain is a :class:`~txnstore.errors.CorruptionError` that names the
object. Of a large segment only what is needed is fetched, and checked (:mod:`txnstore.read.ranged`).
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from txnstore.caches import ByteCache
from txnstore.chain.codec import content_hash
from txnstore.chain.payload import payload_of
from txnstore.core.log.model import Segment
from txnstore.core.log.slices import Slice
from txnstore.core.model import TopicPartition
from txnstore.errors import CorruptionError, ObjectNotFoundError, SchemaMismatchError
from txnstore.read.ranged import (
    DAMAGE,
    WHOLE_BYTES,
    Fetch,
    RangedObject,
    RangedSegment,
    SegmentNotFoundError,
    choose_fetch_mode,
    has_footer,
    missing_segment,
)
from txnstore.read.rows import Columns, NewerSchemaError, Run, evaluate, range_numbers, unreadable
from txnstore.segment.codec import min_row_groups, verify_checksum
from txnstore.segment.pieces import DecodedSegment, SegmentFile, open_segment
from txnstore.segment.schema import OFFSET_FIELD
from txnstore.storage.base import ObjectStore
from txnstore.storage.recent import read_cache_of

#: What a conversion raises if the bytes have the hash that the chain names, but not the columns of the topic.
_UNFIT = (*DAMAGE, SchemaMismatchError)


def fetched_bytes(objects: ObjectStore, part: Slice, columns: Columns) -> int:
    """How many bytes opening a slice fetches: it also decodes the slice, if that is a single piece.

    Of a segment that the read cache of ``objects`` keeps for all of its slices, each counts its share.
    """
    segment, cache = part.batch.segment, read_cache_of(objects)
    if cache is not None and cache.is_full:  # Most is fetched again for each slice.
        cache = None
    fetch_mode = choose_fetch_mode(part, columns, cache)
    if fetch_mode is not Fetch.RANGES:
        return part.most_bytes if fetch_mode is Fetch.KEPT else segment.size
    footer = segment.footer_size or 0
    if not columns.needs(part) or min_row_groups(part.most_records, part.most_bytes) > 1:
        return footer
    return footer + segment.size // min_row_groups(segment.rows, segment.size)


class PieceRows(NamedTuple):
    """The rows ``[start, start + rows)`` of a piece; ``start_row`` is the number of the first one in the segment."""

    number: int
    start: int
    rows: int
    start_row: int


@dataclass(frozen=True, slots=True)
class Share:
    """One of ``count`` runs of the pieces of a large segment, with a ``number`` from 0: several tasks read them.

    It is decided from the footer of the file, which each task fetches before its pieces: a plan needs no request. A
    small segment, whose footer has no checksums of its blocks, is fetched whole by each task.
    """

    number: int
    count: int


def share_count(part: Slice, target: int, overhead: int = 0) -> int:
    """Into how many shares a slice can be split, as far as is known without its footer.

    Args:
        target: The bytes of a share.
        overhead: The bytes that opening the segment counts for.
    """
    segment = part.batch.segment
    if segment.format != "parquet" or not segment.rows:
        return 1
    if segment.footer_size is None and segment.size > WHOLE_BYTES:
        return 1  # Each task would have to read it whole.
    size = part.most_bytes
    return max(1, min(min_row_groups(part.most_records, size), -(-(size + overhead) // target)))


class OpenSlice:
    """A slice whose segment, or the footer of a large one, was fetched and checked. Thread-safe."""

    def __init__(self, part: Slice, columns: Columns, file: SegmentFile, pieces: Sequence[PieceRows]) -> None:
        columns.check(part.batch, file.columns)
        self.part = part
        self.file = file
        self._columns = columns
        self._pieces = pieces

    def __len__(self) -> int:
        """The number of pieces with rows of the slice."""
        return len(self._pieces)

    @property
    def is_ranged(self) -> bool:
        """Whether each piece is fetched when it is read."""
        return isinstance(self.file, RangedSegment)

    def share(self, share: Share) -> OpenSlice:
        """The pieces of a share."""
        first_piece, end_piece = (len(self._pieces) * each // share.count for each in (share.number, share.number + 1))
        return OpenSlice(self.part, self._columns, self.file, self._pieces[first_piece:end_piece])

    def read(self, number: int) -> pa.Table:
        """Decode one piece; of a large segment it is fetched first.

        Args:
            number: The number of the piece, from 0.

        Returns:
            The rows of the slice in this piece, in offset order.

        Raises:
            CorruptionError: The piece cannot be decoded; or the segment is missing or damaged.
        """
        return _evaluate_run(self._columns, *self._decode(number))

    def decoded(self) -> Iterator[tuple[pa.Table, Run]]:
        """Decode all pieces, without the conversion to the columns of the read; see :func:`read_together`."""
        return map(self._decode, range(len(self)))

    def _decode(self, number: int) -> tuple[pa.Table, Run]:
        """Decode a piece, without rows outside of the slice; return it with the run of its rows."""
        piece, segment = self._pieces[number], self.part.batch.segment
        try:
            table = self.file.read(piece.number, self._columns.needs(self.part))
            if piece.rows != table.num_rows:
                table = table.slice(piece.start, piece.rows)
            if self.part.origin is None:
                table = _rows_between(table, self.part.start, self.part.limit)
        except DAMAGE as error:
            raise unreadable(segment, error) from error
        return table, Run(self.part, table.num_rows, piece.start_row)


def open_slice(objects: ObjectStore, part: Slice, columns: Columns, *, in_parts: bool = False) -> OpenSlice:
    """Fetch the segment of a slice, or the footer of a large one, with one GET, and check it.

    A caller with a read cache (:meth:`~txnstore.storage.recent.RecentObjects.with_read_cache`) opens a segment of
    several batches once; its later slices cost no request.

    Args:
        columns: The columns to read.
        in_parts: Read by ranges wherever it is possible, because only some pieces will be read.

    Raises:
        CorruptionError: The segment is missing, or differs from its description in the chain.
    """
    file = _open_file(objects, part, columns, in_parts=in_parts)
    return OpenSlice(part, columns, file, pieces_of(part, file))


def _open_file(objects: ObjectStore, part: Slice, columns: Columns, *, in_parts: bool) -> SegmentFile:
    """Open the segment of a slice: from the read cache, by ranges or whole."""
    tp, segment = part.tp, part.batch.segment
    cache = read_cache_of(objects)
    fetch_mode = choose_fetch_mode(part, columns, cache, in_parts=in_parts)
    if cache is not None and fetch_mode is Fetch.KEPT:
        # The key is the whole Segment: all that open_whole checks the file against.
        cached_file = cache.once(
            segment, segment.size, lambda: _cached_file(open_whole(objects, tp, segment), segment, cache.decoded)
        )
        if cached_file is not None:
            return cached_file
        fetch_mode = choose_fetch_mode(part, columns, in_parts=in_parts)  # The cache is full: choose without it.
    if fetch_mode is not Fetch.RANGES:
        return open_whole(objects, tp, segment)
    ranged_file = RangedSegment(objects, tp, segment)
    check_file(segment, ranged_file)
    return ranged_file


class _CachedSegment:
    """A segment in the read cache of a reader, for other batches. Thread-safe.

    The rows of partitions that are read one after the other lie in the same piece: it is decoded once for them.
    """

    def __init__(self, file: SegmentFile, segment: Segment, decoded: ByteCache[Hashable, Any]) -> None:
        self._file, self._segment, self._decoded = file, segment, decoded
        self.columns, self.rows = file.columns, file.rows

    def offset_range(self, piece: int) -> tuple[int, int] | None:
        return self._file.offset_range(piece)

    def read(self, piece: int, columns: Sequence[str]) -> pa.Table:
        cache_key = self._segment, piece, tuple(columns)
        table = self._decoded.find(cache_key)
        if table is None:
            table = self._file.read(piece, columns)
            self._decoded.keep(cache_key, table, table.nbytes)
        return table


def _cached_file(file: SegmentFile, segment: Segment, decoded: ByteCache[Hashable, Any]) -> SegmentFile:
    """A file that is read several times: one that is in memory needs no more."""
    return file if isinstance(file, DecodedSegment) else _CachedSegment(file, segment, decoded)


def open_whole(objects: ObjectStore, tp: TopicPartition, segment: Segment, *, check_hash: bool = False) -> SegmentFile:
    """Fetch all bytes of a segment with one GET, and check them; ``check_hash``: see :func:`fetch`.

    Raises:
        CorruptionError: The segment is missing, or differs from its description in the chain.
    """
    data = fetch(objects, tp, segment, check_hash=check_hash)
    try:
        file = open_segment(data, segment.format)
    except DAMAGE as error:
        raise unreadable(segment, error) from error
    check_file(segment, file)
    return file


def decode_whole(objects: ObjectStore, tp: TopicPartition, segment: Segment) -> DecodedSegment:
    """Fetch a small segment with one GET, check it, and decode all of its columns.

    Raises:
        CorruptionError: The segment is missing, differs from its description in the chain, or cannot be decoded.
    """
    file = open_whole(objects, tp, segment)
    if isinstance(file, DecodedSegment):
        return file
    try:
        pieces = [file.read(number, file.columns) for number in range(len(file.rows))]
        return DecodedSegment(pieces[0] if len(pieces) == 1 else pa.concat_tables(pieces))
    except DAMAGE as error:
        raise unreadable(segment, error) from error


def read_together(slices: Iterable[OpenSlice], columns: Columns) -> pa.Table:
    """Decode slices of small segments, in order, and convert them together: for each alone, that costs more.

    Args:
        slices: The open slices, all of these columns.
        columns: The columns of the read.

    Returns:
        Their rows, in one chunk.

    Raises:
        CorruptionError: A slice cannot be decoded.
    """
    tables: list[pa.Table] = []
    for _, alike in groupby(slices, lambda opened: isinstance(opened.file, DecodedSegment)):
        opened = [*alike]
        decoded = [
            (open_part.part, open_part.file) for open_part in opened if isinstance(open_part.file, DecodedSegment)
        ]
        tables += [read_decoded(decoded, columns)] if decoded else _read_pieces(opened, columns)
    return pa.concat_tables(tables).combine_chunks() if tables else columns.schema.empty_table()


def _read_pieces(slices: Iterable[OpenSlice], columns: Columns) -> Iterator[pa.Table]:
    """Decode slices, and convert neighbouring rows of one kind together."""
    decoded = (rows for opened in slices for rows in opened.decoded())

    def kind(rows: tuple[pa.Table, Run]) -> tuple[object, ...]:
        """What rows have in common that are converted together."""
        return rows[0].schema, columns.kind(rows[1].part)

    for _, alike in groupby(decoded, kind):
        rows, runs = zip(*alike, strict=True)
        try:
            yield evaluate(columns, _concatenate_rows(rows), runs)
        except _UNFIT:
            for table, run in zip(rows, runs, strict=True):
                _evaluate_run(columns, table, run)  # Names the segment.
            raise


def read_decoded(parts: Sequence[tuple[Slice, DecodedSegment]], columns: Columns) -> pa.Table:
    """The rows of slices of decoded segments, in order, taken all at once: each alone would cost more than its rows.

    Raises:
        CorruptionError: A segment is not what the chain or the topic says.
    """

    def kind(decoded: tuple[Slice, DecodedSegment]) -> tuple[object, ...]:
        """What slices have in common that are converted together."""
        part, file = decoded
        return file.table.schema, columns.kind(part)

    tables: list[pa.Table] = []
    for _, alike in groupby(parts, kind):
        together = [*alike]
        part, file = together[0]
        columns.check(part.batch, file.columns)  # They are alike.
        try:
            tables.append(evaluate(columns, *_take_rows(together, columns)))
        except _UNFIT as error:
            for decoded in together if len(together) > 1 else ():
                read_decoded([decoded], columns)  # Names the segment.
            raise unreadable(part.batch.segment, error) from error
    return pa.concat_tables(tables).combine_chunks() if tables else columns.schema.empty_table()


def _take_rows(parts: Sequence[tuple[Slice, DecodedSegment]], columns: Columns) -> tuple[pa.Table, list[Run]]:
    """The rows of slices of segments with the same columns, without the conversion to those of the read."""
    files = {id(file): file.table for _, file in parts}
    first_row_by_file = dict(zip(files, np.cumsum([0, *map(len, files.values())]).tolist(), strict=False))
    runs = [Run(part, len(part.rows), part.rows.start) for part, _ in parts]
    first_rows = [first_row_by_file[id(file)] + run.start_row for run, (_, file) in zip(runs, parts, strict=True)]
    row_numbers = range_numbers(first_rows, [run.rows for run in runs])
    part, file = parts[0]  # The others have the same columns.
    names = [name for name in columns.needs(part) if name in file.columns]
    if not names:
        return _without_columns(len(row_numbers)), runs
    tables = [table.select(names) for table in files.values()]
    table = pa.concat_tables(tables).combine_chunks().take(pa.array(row_numbers))
    return _without_rows_outside(table, runs) if part.origin is None else (table, runs)


def _without_rows_outside(table: pa.Table, runs: list[Run]) -> tuple[pa.Table, list[Run]]:
    """Remove rows whose stored offset is outside of their slice; of a slice, a merge may have removed any rows."""
    counts = [run.rows for run in runs]
    offsets = table.column(OFFSET_FIELD.name).to_numpy()
    starts, limits = (np.repeat([getattr(run.part, end) for run in runs], counts) for end in ("start", "limit"))
    is_inside = (offsets >= starts) & (offsets < limits)
    if is_inside.all():
        return table, runs
    counts_inside = [int(rows.sum()) for rows in np.split(is_inside, np.cumsum(counts)[:-1])]
    runs = [Run(run.part, count, run.start_row) for run, count in zip(runs, counts_inside, strict=True)]
    return table.filter(pa.array(is_inside)), runs


def _evaluate_run(columns: Columns, table: pa.Table, run: Run) -> pa.Table:
    try:
        return evaluate(columns, table, [run])
    except _UNFIT as error:
        raise unreadable(run.part.batch.segment, error) from error


def _concatenate_rows(tables: Sequence[pa.Table]) -> pa.Table:
    """The rows of tables with the same columns, which may be none."""
    if tables[0].num_columns:
        return pa.concat_tables(tables)
    return _without_columns(sum(table.num_rows for table in tables))


def _without_columns(rows: int) -> pa.Table:
    """So many rows without columns: Arrow would forget how many there are."""
    return pa.table({"row": pa.nulls(rows)}).select([])


def check_file(segment: Segment, file: SegmentFile) -> None:
    """Compare an open segment with its description in the chain.

    Raises:
        CorruptionError: It has another number of rows.
    """
    if sum(file.rows) != segment.rows:
        msg = f"segment {segment.key} has {sum(file.rows)} rows; expected {segment.rows}"
        raise CorruptionError(msg)


def read_share(objects: ObjectStore, part: Slice, columns: Columns, share: Share) -> Iterator[pa.Table]:
    """Read the rows of a share, one row group at a time.

    Raises:
        CorruptionError: The segment is missing or damaged.
    """
    opened = open_slice(objects, part, columns, in_parts=True).share(share)
    return map(opened.read, range(len(opened)))


def fetch(objects: ObjectStore, tp: TopicPartition, segment: Segment, *, check_hash: bool = False) -> bytes:
    """Fetch the bytes of a segment, and check them: by their hash, or those of a large one by its checksums of blocks.

    Args:
        tp: The partition, for messages.
        check_hash: Check also a large one by its hash.

    Raises:
        CorruptionError: The segment is missing, or differs from its description in the chain.
    """
    name, start = f"segment {segment.key} of {tp}", segment.first_byte
    try:
        data = (
            objects.get(segment.object) if start is None else objects.get(segment.object, start, start + segment.size)
        )
        if has_footer(segment) and not check_hash:
            RangedObject(objects, tp, segment).check_whole(data)
            return data
        if start is None or not segment.inlined:
            verify_checksum(name, data, segment.sha256, segment.size)
            return data
        if content_hash(data) != segment.sha256:
            payload = payload_of(objects.get(segment.object))
            if not payload:
                msg = f"a vacuum has deleted the payload of {segment.object}"
                raise ObjectNotFoundError(msg)
            data = payload[start : start + segment.size]  # What this process has kept may have been damaged on its way.
            verify_checksum(name, data, segment.sha256, segment.size)
    except ObjectNotFoundError:
        raise missing_segment(tp, segment) from SegmentNotFoundError(tp, segment.key)
    return data


def is_missing(error: CorruptionError) -> bool:
    """Whether the segment does not exist: a reader with an old plan makes a new plan and tries again."""
    return isinstance(error.__cause__, ObjectNotFoundError)


def is_newer(error: CorruptionError) -> bool:
    """Whether the segment has what the version of its topic does not know: the reader reads the catalog once more."""
    return isinstance(error.__cause__, NewerSchemaError)


def pieces_of(part: Slice, file: SegmentFile) -> list[PieceRows]:
    """The pieces of a segment with rows of the slice."""
    pieces, first_row, wanted_rows = [], 0, part.rows
    for number, rows in enumerate(file.rows):
        start = max(wanted_rows.start, first_row)
        end = min(wanted_rows.stop, first_row + rows)
        if start < end and _may_hold_offsets(file, number, part):
            pieces.append(PieceRows(number, start - first_row, end - start, start))
        first_row += rows
    return pieces


def _may_hold_offsets(file: SegmentFile, piece: int, part: Slice) -> bool:
    """Whether a piece of a merged segment may contain an offset of the slice."""
    if part.whole or part.origin is not None:
        return True
    offsets = file.offset_range(piece)
    return offsets is None or (offsets[0] < part.limit and offsets[1] >= part.start)


def _rows_between(table: pa.Table, start: int, limit: int) -> pa.Table:
    """The rows with stored offsets in ``[start, limit)``; offsets ascend."""
    offsets = table.column(OFFSET_FIELD.name).cast(pa.int64()).to_numpy()
    first, last = np.searchsorted(offsets, [start, limit])
    return table.slice(int(first), int(last - first))
