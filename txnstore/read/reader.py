"""Reads a slice: fetches its segment, checks it, decodes the needed columns, and adds the reserved ones.

The chain records the size and the hash of each object, the number of its rows and the offset of the first one. So a
segment costs one GET, and any difference from the chain is a :class:`~txnstore.errors.CorruptionError` that names the
object. Of a large segment only what is needed is fetched, and checked (:mod:`txnstore.read.ranged`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from txnstore.catalog.schemas import is_wider, schema_from_text
from txnstore.chain.codec import content_hash
from txnstore.chain.payload import payload_of
from txnstore.core.catalog.model import CatalogTopic
from txnstore.core.log.model import Batch, Segment
from txnstore.core.log.visibility import Slice
from txnstore.core.model import TopicPartition
from txnstore.errors import CorruptionError, ObjectNotFoundError, SchemaMismatchError
from txnstore.read.ranged import (
    DAMAGE,
    WHOLE_BYTES,
    RangedObject,
    RangedSegment,
    SegmentNotFoundError,
    has_footer,
    missing,
    reads_ranges,
)
from txnstore.segment.codec import least_row_groups, verify_checksum
from txnstore.segment.convert import conform
from txnstore.segment.pieces import DecodedSegment, SegmentFile, open_segment
from txnstore.segment.schema import (
    HORIZON_FIELD,
    OFFSET_FIELD,
    PARTITION_FIELD,
    RESERVED_FIELDS,
    TIMESTAMP_FIELD,
    TOPIC_FIELD,
    stored_schema,
    timestamps_of,
)
from txnstore.storage.base import ObjectStore
from txnstore.storage.recent import KeptValues, read_cache_of

#: What a conversion raises if the bytes have the hash that the chain names, but not the columns of the topic.
_UNFIT = (*DAMAGE, SchemaMismatchError)
_RESERVED = {field.name for field in RESERVED_FIELDS}


class Projection:
    """The columns that a read of a topic returns, and the columns of a segment that they need.

    Args:
        topic: The topic.
        columns: The columns in the order of the result; None for ``_topic, _partition, _offset, _timestamp`` and then
            all columns of the topic.

    Raises:
        SchemaMismatchError: A column is unknown or is listed twice; the message names it.

    Attributes:
        columns: The names of the columns.
        schema: The Arrow schema of every table of the read, also of an empty one.
        time_column: The column that ``_timestamp`` is taken from, unless the time of the append was; None if the topic
            has none.
    """

    def __init__(self, topic: CatalogTopic, columns: Sequence[str] | None = None) -> None:
        self.topic = topic
        self._topic_schema = schema_from_text(topic.schema) if topic.schema is not None else None
        self._everything = stored_schema(self._topic_schema)
        everything = pa.schema([*RESERVED_FIELDS, *self._everything])
        #: The columns that a segment may have.
        self._known = frozenset((*everything.names, HORIZON_FIELD.name))
        if columns is not None:
            _check_columns(topic.name, columns, everything)
        self.columns: tuple[str, ...] = tuple(everything.names if columns is None else columns)
        self.schema = pa.schema([everything.field(name) for name in self.columns])
        self._stored = [name for name in self.columns if name not in _RESERVED]
        self._target = pa.schema([self._everything.field(name) for name in self._stored])
        self.time_column = "timestamp" if topic.schema is None else topic.timestamp
        self._constants: dict[str | int, Any] = {}

    def needs(self, batch: Batch) -> list[str]:
        """The columns to decode from the segment of a batch."""
        names, explicit = list(self._stored), batch.segment.explicit_offsets
        if TIMESTAMP_FIELD.name in self.columns:
            if explicit:
                names.append(TIMESTAMP_FIELD.name)
            column = self.time_column_of(batch)
            if column is not None and column not in names:
                names.append(column)
        if explicit:
            names += [PARTITION_FIELD.name, OFFSET_FIELD.name]
        return names

    def check_columns(self, segment: Segment, names: Collection[str]) -> None:
        """Refuse a segment with a column that this version of the topic lacks: no change of a schema drops one.

        Raises:
            CorruptionError: It has one; rows without it would be rows that were never written.
        """
        if not self._known.issuperset(names):
            unknown = ", ".join(repr(name) for name in names if name not in self._known)
            error = NewerSchemaError(f"it has the unknown columns {unknown}")
            raise unreadable(segment, error) from error

    def time_column_of(self, batch: Batch) -> str | None:
        """The column of a segment without ``_timestamp`` that has the event times of a batch.

        None: they are all the same, because the topic has no such column, or took the time of the append.
        """
        return None if batch.timestamp_type == "LogAppendTime" else self.time_column

    def reads_ranges(self, part: Slice) -> bool:
        """Whether a slice is read by ranges of its segment, not whole."""
        names = [name for name in self.needs(part.batch) if name != PARTITION_FIELD.name]  # Small, or not there.
        own = 2 if part.batch.segment.explicit_offsets else 0  # _offset and _timestamp
        return reads_ranges(part, len(names), len(self._everything) + own)

    def fetched_bytes(self, part: Slice) -> int:
        """How many bytes opening a slice fetches: it also decodes the slice, if that is a single piece."""
        segment = part.batch.segment
        if not self.reads_ranges(part):
            return segment.size
        footer, rows = segment.footer_size or 0, min(part.batch.records, part.limit - part.start)
        if not self.needs(part.batch) or least_row_groups(rows, segment.size * rows // max(1, segment.rows)) > 1:
            return footer
        return footer + segment.size // least_row_groups(segment.rows, segment.size)

    def fit(self, table: pa.Table, runs: Sequence[Run]) -> pa.Table:
        """Convert decoded rows to the columns of the read. The cost hardly grows with the number of runs.

        Args:
            table: The rows: those of the runs, in their order.
            runs: Which slices they belong to; all of the topic, and all with stored offsets or none.

        Raises:
            NewerSchemaError: A column has a wider type than in this version of the topic.
            CorruptionError: The rows store another partition than the chain says.
        """
        if PARTITION_FIELD.name in table.column_names:
            _check_partitions(table.column(PARTITION_FIELD.name), runs)
        stored = table if table.schema.equals(self._target) else self._conform(table)
        arrays = [
            self._reserved(name, table, runs) if name in _RESERVED else stored.column(name) for name in self.columns
        ]
        return pa.Table.from_arrays(arrays, schema=self.schema)

    def _conform(self, table: pa.Table) -> pa.Table:
        """Rows of an earlier schema in the types of this version of the topic."""
        for field in table.schema:
            index = self._target.get_field_index(field.name)
            known = field.type if index < 0 else self._target.field(index).type
            if known != field.type and is_wider(known, field.type):
                msg = f"column {field.name!r} is of type {field.type}, and known as {known}"
                raise NewerSchemaError(msg)
        return conform(table, self._topic_schema, self._stored)

    def _reserved(self, name: str, table: pa.Table, runs: Sequence[Run]) -> Any:
        if name == TOPIC_FIELD.name:
            return self._constant(self.topic.name, TOPIC_FIELD.type, table.num_rows)
        if name == PARTITION_FIELD.name:
            partition = _per_row([run.part.tp.partition for run in runs], runs)
            if isinstance(partition, int):
                return self._constant(partition, PARTITION_FIELD.type, table.num_rows)
            return pa.array(partition, PARTITION_FIELD.type)
        if name == OFFSET_FIELD.name:
            return table.column(name) if runs[0].part.batch.segment.explicit_offsets else pa.array(_offsets(runs))
        defaults = _per_row([self.default_timestamp(run.part) for run in runs], runs)
        return timestamps_of(table, self.time_column_of(runs[0].part.batch), defaults)

    def default_timestamp(self, part: Slice) -> int:
        """The ``_timestamp`` of a row without a stored time, in milliseconds since the epoch."""
        return self.timestamp_range(part)[1]

    def _constant(self, key: str | int, data_type: pa.DataType, rows: int) -> Any:
        """A column with the value ``key`` in each row: a slice of the longest such column so far."""
        longest = self._constants.get(key)
        if longest is None or len(longest) < rows:
            longest = self._constants[key] = pa.repeat(pa.scalar(key, data_type), rows)
        return longest.slice(0, rows)

    def timestamp_range(self, part: Slice) -> tuple[int, int]:
        """The range of ``_timestamp`` in a slice, in milliseconds, both ends included, without reading it."""
        return part.batch.min_timestamp, part.batch.max_timestamp


def _per_row(values: Sequence[int], runs: Sequence[Run]) -> int | np.ndarray:
    """The value of each row, given that of each run; one number if all have the same."""
    if len(set(values)) == 1:
        return values[0]
    return np.repeat(np.array(values, np.int64), [run.rows for run in runs])


def _offsets(runs: Sequence[Run]) -> np.ndarray:
    """The offset of each row of runs without stored offsets."""
    return np.concatenate([np.arange(run.offset, run.offset + run.rows, dtype=np.int64) for run in runs])


def _check_partitions(stored: pa.ChunkedArray, runs: Sequence[Run]) -> None:
    """Compare the partitions that a merged segment stores with those of the chain."""
    wrong = stored.to_numpy() != _per_row([run.part.tp.partition for run in runs], runs)
    if wrong.any():
        ends = np.cumsum([run.rows for run in runs])
        part = runs[int(np.searchsorted(ends, wrong.argmax(), "right"))].part
        msg = f"segment {part.batch.segment.key} has rows of {part.tp} with another partition"
        raise CorruptionError(msg)


def _check_columns(topic: str, columns: Sequence[str], schema: pa.Schema) -> None:
    if isinstance(columns, str):
        msg = f"columns must be a list of names, not the string {columns!r}"
        raise SchemaMismatchError(msg)
    for number, name in enumerate(columns):
        if name not in schema.names:
            msg = f"topic {topic!r} has no column {name!r}; it has {', '.join(schema.names)}"
            raise SchemaMismatchError(msg)
        if name in columns[:number]:
            msg = f"column {name!r} is listed twice"
            raise SchemaMismatchError(msg)


class NewerSchemaError(SchemaMismatchError):
    """A segment has a column, or a type, that the version of its topic does not know: the catalog is an earlier one."""


class Run(NamedTuple):
    """Consecutive rows of a slice: how many, and the offset of the first one if the segment stores no offsets."""

    part: Slice
    rows: int
    offset: int


class PieceRows(NamedTuple):
    """The rows ``[first_row, first_row + rows)`` of a piece of a segment; ``offset`` is the offset of the first one."""

    number: int
    first_row: int
    rows: int
    offset: int


class OpenSlice:
    """A slice whose segment, or the footer of a large one, was fetched and checked. Thread-safe."""

    def __init__(self, part: Slice, projection: Projection, file: SegmentFile, pieces: Sequence[PieceRows]) -> None:
        projection.check_columns(part.batch.segment, file.columns)
        self.part = part
        self._projection = projection
        self._file = file
        self._pieces = pieces

    def __len__(self) -> int:
        """The number of pieces with rows of the slice."""
        return len(self._pieces)

    def share(self, number: int, count: int) -> OpenSlice:
        """One of ``count`` runs of the pieces, with a ``number`` from 0."""
        first, last = (len(self._pieces) * each // count for each in (number, number + 1))
        return OpenSlice(self.part, self._projection, self._file, self._pieces[first:last])

    def read(self, number: int) -> pa.Table:
        """Decode one piece; of a large segment it is fetched first.

        Args:
            number: The number of the piece, from 0.

        Returns:
            The rows of the slice in this piece, in offset order.

        Raises:
            CorruptionError: The piece cannot be decoded; or the segment is missing or damaged.
        """
        return _fit(self._projection, *self._decode(number))

    def decoded(self) -> Iterator[tuple[pa.Table, Run]]:
        """Decode all pieces, without the conversion to the columns of the read; see :func:`read_together`."""
        return map(self._decode, range(len(self)))

    def _decode(self, number: int) -> tuple[pa.Table, Run]:
        piece, segment = self._pieces[number], self.part.batch.segment
        try:
            table = self._file.read(piece.number, self._projection.needs(self.part.batch))
            if piece.rows != table.num_rows:
                table = table.slice(piece.first_row, piece.rows)
            if segment.explicit_offsets:
                table = _cut(table, self.part.start, self.part.limit)
        except DAMAGE as error:
            raise unreadable(segment, error) from error
        return table, Run(self.part, table.num_rows, piece.offset)


def open_slice(objects: ObjectStore, part: Slice, projection: Projection, *, in_parts: bool = False) -> OpenSlice:
    """Fetch the segment of a slice, or the footer of a large one, with one GET, and check it.

    A segment of several batches is opened once for a caller with a read cache
    (:meth:`~txnstore.storage.recent.RecentObjects.with_read_cache`), and costs the others no request.

    Args:
        objects: The object store.
        part: The slice.
        projection: The columns to read.
        in_parts: Read by ranges wherever it is possible, because only some pieces will be read.

    Raises:
        CorruptionError: The segment is missing, or differs from its description in the chain.
    """
    segment = part.batch.segment
    file: SegmentFile | None = None
    cache = read_cache_of(objects) if not part.batch.alone else None
    if cache is not None and _reads_whole_object(part, cache.partitions):
        tp, decoded = part.tp, cache.decoded
        # By all that the chain says of it, which the opening checks.
        file = cache.once(
            segment, segment.size, lambda: _KeptSegment(open_whole(objects, tp, segment), segment, decoded)
        )
    if file is None and (projection.reads_ranges(part) or (in_parts and has_footer(segment))):
        file = RangedSegment(objects, part.tp, segment)
        check_file(segment, file)
    if file is None:
        file = open_whole(objects, part.tp, segment)
    return OpenSlice(part, projection, file, pieces_of(part, file))


class _KeptSegment:
    """A segment that a reader keeps for other batches. Thread-safe.

    The rows of partitions that are read one after the other lie in the same piece: it is decoded once for them.
    """

    def __init__(self, file: SegmentFile, segment: Segment, decoded: KeptValues) -> None:
        self._file, self._segment, self._decoded = file, segment, decoded
        self.columns, self.rows = file.columns, file.rows

    def offset_range(self, piece: int) -> tuple[int, int] | None:
        return self._file.offset_range(piece)

    def read(self, piece: int, columns: Sequence[str]) -> pa.Table:
        name = self._segment, piece, tuple(columns)
        table = self._decoded.find(name)
        if table is None:
            table = self._file.read(piece, columns)
            self._decoded.keep(name, table, table.nbytes)
        return table


def _reads_whole_object(part: Slice, partitions: Mapping[str, int] | None) -> bool:
    """Whether a reader of so many partitions needs about half of the segment of a slice, or has to fetch it whole."""
    segment = part.batch.segment
    if not has_footer(segment):
        return True
    rows = min(part.batch.records, part.limit - part.start)
    if partitions is not None and 2 * rows * partitions.get(part.tp.topic, 1) < segment.rows:
        return False
    return segment.size <= WHOLE_BYTES


def open_whole(objects: ObjectStore, tp: TopicPartition, segment: Segment, *, hashed: bool = False) -> SegmentFile:
    """Fetch all bytes of a segment with one GET, and check them; ``hashed``: see :func:`fetch`.

    Raises:
        CorruptionError: The segment is missing, or differs from its description in the chain.
    """
    data = fetch(objects, tp, segment, hashed=hashed)
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


def read_together(slices: Iterable[OpenSlice], projection: Projection) -> pa.Table:
    """Decode slices of small segments, in order, and convert them together: for each alone, that costs more.

    Args:
        slices: The open slices, all of this projection.
        projection: The columns of the read.

    Returns:
        Their rows, in one chunk.

    Raises:
        CorruptionError: A slice cannot be decoded.
    """
    tables: list[pa.Table] = []
    decoded = (rows for opened in slices for rows in opened.decoded())

    def kind(rows: tuple[pa.Table, Run]) -> tuple[object, ...]:
        """What rows have in common that are converted together. Merged segments have a column more."""
        return rows[0].schema, projection.time_column_of(rows[1].part.batch)

    for _, alike in groupby(decoded, kind):
        rows, runs = zip(*alike, strict=True)
        try:
            tables.append(projection.fit(_concatenated(rows), runs))
        except _UNFIT:
            for table, run in zip(rows, runs, strict=True):
                _fit(projection, table, run)  # Names the segment.
            raise
    return pa.concat_tables(tables).combine_chunks() if tables else projection.schema.empty_table()


def _fit(projection: Projection, table: pa.Table, run: Run) -> pa.Table:
    try:
        return projection.fit(table, [run])
    except _UNFIT as error:
        raise unreadable(run.part.batch.segment, error) from error


def _concatenated(tables: Sequence[pa.Table]) -> pa.Table:
    """The rows of tables with the same columns, which may be none: then Arrow would forget how many rows there are."""
    if tables[0].num_columns:
        return pa.concat_tables(tables)
    return pa.table({"row": pa.nulls(sum(table.num_rows for table in tables))}).select([])


def check_file(segment: Segment, file: SegmentFile) -> None:
    """Compare an open segment with its description in the chain.

    Raises:
        CorruptionError: It has another number of rows, or no column of offsets or times.
    """
    if sum(file.rows) != segment.rows:
        msg = f"segment {segment.key} has {sum(file.rows)} rows; expected {segment.rows}"
        raise CorruptionError(msg)
    for field in (OFFSET_FIELD, TIMESTAMP_FIELD) if segment.explicit_offsets else ():
        if field.name not in file.columns:
            msg = f"segment {segment.key} has no column {field.name}, which every merged segment has"
            raise CorruptionError(msg)


def read_slice(objects: ObjectStore, part: Slice, projection: Projection) -> pa.Table:
    """Fetch and decode all rows of a slice.

    Raises:
        CorruptionError: The segment is missing or damaged.
    """
    opened = open_slice(objects, part, projection)
    tables = [opened.read(number) for number in range(len(opened))]
    return pa.concat_tables(tables) if tables else projection.schema.empty_table()


def fetch(objects: ObjectStore, tp: TopicPartition, segment: Segment, *, hashed: bool = False) -> bytes:
    """Fetch the bytes of a segment, and check them: by their hash, or those of a large one by its checksums of blocks.

    Args:
        objects: The object store.
        tp: The partition, for messages.
        segment: The segment.
        hashed: Check also a large one by its hash.

    Raises:
        CorruptionError: The segment is missing, or differs from its description in the chain.
    """
    name, start = f"segment {segment.key} of {tp}", segment.first_byte
    try:
        data = (
            objects.get(segment.object) if start is None else objects.get(segment.object, start, start + segment.size)
        )
        if has_footer(segment) and not hashed:
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
        raise missing(tp, segment) from SegmentNotFoundError(tp, segment.key)
    return data


def is_missing(error: CorruptionError) -> bool:
    """Whether the segment does not exist: a reader with an old plan makes a new plan and tries again."""
    return isinstance(error.__cause__, ObjectNotFoundError)


def is_newer(error: CorruptionError) -> bool:
    """Whether the segment has what the version of its topic does not know: the reader reads the catalog once more."""
    return isinstance(error.__cause__, NewerSchemaError)


def unreadable(segment: Segment, error: Exception) -> CorruptionError:
    """The error of a segment whose bytes are damaged, or that is newer than the catalog of the reader."""
    if isinstance(error, NewerSchemaError):
        msg = f"segment {segment.key} does not fit what is known of its topic: {error}. Read the topic again"
        return CorruptionError(f"{msg}; if the error stays, the catalog is not that of the segment")
    return CorruptionError(f"segment {segment.key} cannot be decoded as {segment.format}: {error}")


def pieces_of(part: Slice, file: SegmentFile) -> list[PieceRows]:
    """The pieces of a segment with rows of the slice.

    Raises:
        CorruptionError: It is a merged segment with the rows of several batches, and does not store their partitions.
    """
    batch = part.batch
    if batch.segment.explicit_offsets and not batch.alone and PARTITION_FIELD.name not in file.columns:
        msg = (
            f"segment {batch.segment.key} has no column {PARTITION_FIELD.name}, which every merged segment of several "
            "batches has"
        )
        raise CorruptionError(msg)
    first, limit = batch.first_row, batch.first_row + batch.records
    if not batch.segment.explicit_offsets:
        limit = first + part.limit - batch.base_offset
        first += part.start - batch.base_offset
    result, at = [], 0
    for number, rows in enumerate(file.rows):
        start, end = max(first, at), min(limit, at + rows)
        if start < end and _may_hold(file, number, part):
            offset = batch.base_offset + start - batch.first_row
            result.append(PieceRows(number, start - at, end - start, offset))
        at += rows
    return result


def _may_hold(file: SegmentFile, piece: int, part: Slice) -> bool:
    """Whether a piece of a merged segment may contain an offset of the slice."""
    if part.whole or not part.batch.segment.explicit_offsets:
        return True
    offsets = file.offset_range(piece)
    return offsets is None or (offsets[0] < part.limit and offsets[1] >= part.start)


def _cut(table: pa.Table, start: int, limit: int) -> pa.Table:
    """The rows with stored offsets in ``[start, limit)``; offsets ascend."""
    offsets = table.column(OFFSET_FIELD.name).cast(pa.int64()).to_numpy()
    first, last = np.searchsorted(offsets, [start, limit])
    return table.slice(int(first), int(last - first))
