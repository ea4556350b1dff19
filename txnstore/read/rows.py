"""The one source of rows: what the columns of the rows of slices are, as data that each reader interprets; no I/O.

Which batches are visible is decided in :mod:`txnstore.core.log.visibility`, which rows of a segment a slice has in
:mod:`txnstore.core.log.slices`. Here is what these rows show: :class:`Columns` gives for each column a :data:`Value`.
:func:`evaluate` computes values from decoded rows; SQL and Spark print the same ones in their dialects. See
docs/internals/design/rows.md.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa

from txnstore.catalog.schemas import is_wider, schema_from_text
from txnstore.core.catalog.model import CatalogTopic
from txnstore.core.log.model import Batch, Layout, Segment
from txnstore.core.log.slices import Slice, Times
from txnstore.errors import CorruptionError, SchemaMismatchError
from txnstore.segment.convert import conform
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
from txnstore.segment.sums import sums_of

#: The columns that segments of each layout have besides those of the topic; a row without one of them is damage.
PLACE: dict[Layout, tuple[pa.Field, ...]] = {
    Layout.APPENDED: (),
    Layout.MERGED: (OFFSET_FIELD, TIMESTAMP_FIELD),
    Layout.MERGED_SHARED: (PARTITION_FIELD, OFFSET_FIELD, TIMESTAMP_FIELD),
}


# Values of columns ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Constant:
    """The same text in all rows of a topic."""

    text: str


@dataclass(frozen=True, slots=True)
class PerFile:
    """A number that all rows of a file have, taken from the first slice of the file."""

    of_slice: Callable[[Slice], int]


@dataclass(frozen=True, slots=True)
class RowOffset:
    """The number of the row in its file, from 0, plus a number of the file."""

    origin: PerFile


@dataclass(frozen=True, slots=True)
class Stored:
    """A column of the file. If it is not required, it is null in a file without it; narrower types are widened."""

    name: str
    required: bool = False


@dataclass(frozen=True, slots=True)
class EventTime:
    """A column of the file as a time in ms, rounded down; None: the topic has none. ``default``: where it is null."""

    name: str | None
    default: PerFile


Value: TypeAlias = Constant | PerFile | RowOffset | Stored | EventTime

_PARTITION = PerFile(lambda part: part.tp.partition)
_ORIGIN = PerFile(lambda part: part.origin or 0)
#: The bounds of the offsets of a file.
START, LIMIT = PerFile(lambda part: part.start), PerFile(lambda part: part.limit)


class NewerSchemaError(SchemaMismatchError):
    """A segment has a column, or a type, that the version of its topic does not know: the catalog is an earlier one."""


def unreadable(segment: Segment, error: Exception) -> CorruptionError:
    """The error of a segment whose bytes are damaged, or that is newer than the catalog of the reader."""
    if isinstance(error, NewerSchemaError):
        msg = f"segment {segment.key} does not fit what is known of its topic: {error}. Read the topic again"
        return CorruptionError(f"{msg}; if the error stays, the catalog is not that of the segment")
    return CorruptionError(f"segment {segment.key} cannot be decoded as {segment.format}: {error}")


class Columns:
    """The columns that a read of a topic shows, and what each of them is in the rows of a slice.

    Args:
        names: The columns in the order of the result; None for ``_topic, _partition, _offset, _timestamp`` and then all
            columns of the topic.
        hidden: Further columns of segments that other readers do not show.
        conserves: Rows are written again: a conversion that changes a value is refused.
        latest: Converts the time of a row without one, in ms.

    Raises:
        SchemaMismatchError: A column is unknown or is listed twice; the message names it.

    Attributes:
        names: The names of the columns.
        schema: The Arrow schema of every table of the read, also of an empty one.
        topic_fields: The columns of the topic as segments store them.
        hidden: The names of the hidden columns.
        conserves: See above.
    """

    def __init__(
        self,
        topic: CatalogTopic,
        names: Sequence[str] | None = None,
        *,
        hidden: Sequence[pa.Field] = (),
        conserves: bool = False,
        latest: Callable[[int], int] = int,
    ) -> None:
        self.topic = topic
        self._topic_schema = schema_from_text(topic.schema) if topic.schema is not None else None
        self.topic_fields = stored_schema(self._topic_schema)
        shown_fields = pa.schema([*RESERVED_FIELDS, *self.topic_fields])
        #: The columns that a segment may have.
        self._known = frozenset((*shown_fields.names, HORIZON_FIELD.name))
        if names is not None:
            _check_names(topic.name, names, shown_fields)
        all_fields = pa.schema([*shown_fields, *hidden])
        self.names: tuple[str, ...] = (
            *(shown_fields.names if names is None else names),
            *(field.name for field in hidden),
        )
        self.schema = pa.schema([all_fields.field(name) for name in self.names])
        self.hidden = frozenset(field.name for field in hidden)
        reserved = {field.name for field in RESERVED_FIELDS} | self.hidden
        self._stored = [name for name in self.names if name not in reserved]
        self._target_schema = pa.schema([self.topic_fields.field(name) for name in self._stored])
        self._time_column = "timestamp" if topic.schema is None else topic.timestamp
        self._default = PerFile(lambda part: latest(part.time_range[1]))
        self.conserves = conserves
        self._values: dict[tuple[Layout, Times], dict[str, Value]] = {}
        self._needs: dict[tuple[Layout, Times], list[str]] = {}
        self._constants: dict[tuple[str, str | int], Any] = {}

    @classmethod
    def of_segments(
        cls, topic: CatalogTopic, layout: Layout, *, hidden: Sequence[pa.Field] = (), conserves: bool = False
    ) -> Columns:
        """All columns that a segment of this layout stores, in their order."""
        schema = schema_from_text(topic.schema) if topic.schema is not None else None
        names = [field.name for field in (*PLACE[layout], *stored_schema(schema))]
        return cls(topic, names, hidden=hidden, conserves=conserves)

    def kind(self, part: Slice) -> tuple[Layout, Times]:
        """What the rows of slices have in common that have the same :meth:`values`."""
        times = part.times
        return part.batch.layout, Times.APPEND if times is Times.COLUMN and self._time_column is None else times

    def values(self, kind: tuple[Layout, Times]) -> Mapping[str, Value]:
        """What each column is in the rows of slices of a kind, the reserved ones included."""
        values = self._values.get(kind)
        if values is None:
            names = [*(field.name for field in RESERVED_FIELDS), *self.names]
            values = self._values[kind] = {name: self._value_of(name, *kind) for name in names}
        return values

    def _value_of(self, name: str, layout: Layout, times: Times) -> Value:
        """Return where the values of a column come from, in segments of this layout."""
        if name in {field.name for field in PLACE[layout]}:
            return Stored(name, required=True)
        if name == TOPIC_FIELD.name:
            return Constant(self.topic.name)
        if name == PARTITION_FIELD.name:
            return _PARTITION
        if name == OFFSET_FIELD.name:
            return RowOffset(_ORIGIN)
        if name == TIMESTAMP_FIELD.name:
            return EventTime(self._time_column if times is Times.COLUMN else None, self._default)
        return Stored(name)

    def needs(self, part: Slice) -> list[str]:
        """The columns to decode from the segment of a slice; of merged ones also those that are compared."""
        kind = self.kind(part)
        names = self._needs.get(kind)
        if names is None:
            values = self.values(kind)
            # First those of the topic: what is decoded then often has its schema, and needs no conversion.
            needed = [*self._stored, *(_stored_name(values[name]) for name in self.names)]
            if kind[0] is not Layout.APPENDED:
                needed += [PARTITION_FIELD.name, OFFSET_FIELD.name]
            names = self._needs[kind] = [*dict.fromkeys(filter(None, needed))]
        return names

    def stored(self, layout: Layout) -> pa.Schema:
        """All columns that a segment of this version of the topic stores."""
        return pa.schema([*PLACE[layout], *self.topic_fields])

    def check(self, batch: Batch, stored_names: Collection[str]) -> None:
        """Refuse a segment with a column that this version of the topic lacks: no change of a schema drops one.

        Raises:
            CorruptionError: It has one; rows without it would be rows that were never written. Or it lacks one of those
                that a merge adds.
        """
        check_table_location(batch, stored_names)
        if not self._known.issuperset(stored_names):
            unknown = ", ".join(repr(name) for name in stored_names if name not in self._known)
            error = NewerSchemaError(f"it has the unknown columns {unknown}")
            raise unreadable(batch.segment, error) from error

    # Evaluation -------------------------------------------------------------------------------------------------------

    def conform(self, table: pa.Table) -> pa.Table:
        """The columns of the topic of decoded rows, in the types of this version of it.

        Raises:
            NewerSchemaError: A column has a wider type than in this version of the topic.
        """
        if table.schema.equals(self._target_schema):
            return table
        for field in table.schema:
            index = self._target_schema.get_field_index(field.name)
            known_type = field.type if index < 0 else self._target_schema.field(index).type
            if known_type != field.type and is_wider(known_type, field.type):
                msg = f"column {field.name!r} is of type {field.type}, and known as {known_type}"
                raise NewerSchemaError(msg)
        return conform(table, self._topic_schema, self._stored)

    def constant(self, name: str, value: str | int, rows: int) -> Any:
        """The column ``name`` with one value in each row: a slice of the longest such column so far."""
        longest = self._constants.get((name, value))
        if longest is None or len(longest) < rows:
            scalar = pa.scalar(value, self.schema.field(name).type)
            longest = self._constants[name, value] = pa.repeat(scalar, rows)
        return longest.slice(0, rows)


def _stored_name(value: Value) -> str | None:
    return value.name if isinstance(value, Stored | EventTime) else None


def _check_names(topic: str, names: Sequence[str], schema: pa.Schema) -> None:
    """Refuse columns that the topic does not have, or that are named twice."""
    if isinstance(names, str):
        msg = f"columns must be a list of names, not the string {names!r}"
        raise SchemaMismatchError(msg)
    for number, name in enumerate(names):
        if name not in schema.names:
            msg = f"topic {topic!r} has no column {name!r}; it has {', '.join(schema.names)}"
            raise SchemaMismatchError(msg)
        if name in names[:number]:
            msg = f"column {name!r} is listed twice"
            raise SchemaMismatchError(msg)


def check_table_location(batch: Batch, stored_names: Collection[str]) -> None:
    """Refuse a merged segment without the columns that a merge adds.

    Raises:
        CorruptionError: It lacks one.
    """
    for field in PLACE[batch.layout]:
        if field.name not in stored_names:
            kind = "merged segment of several batches" if field.name == PARTITION_FIELD.name else "merged segment"
            raise CorruptionError(f"segment {batch.segment.key} has no column {field.name}, which every {kind} has")


# The interpreter for decoded rows -------------------------------------------------------------------------------------


class Run(NamedTuple):
    """Consecutive rows of a slice: how many, and the number of the first one in the segment."""

    part: Slice
    rows: int
    start_row: int


def evaluate(columns: Columns, decoded: pa.Table, runs: Sequence[Run]) -> pa.Table:
    """The columns of decoded rows. The cost hardly grows with the number of runs.

    Args:
        decoded: The rows: those of the runs, in their order.
        runs: Which slices they belong to; all of the topic, and of one kind.

    Raises:
        NewerSchemaError: A column has a wider type than in this version of the topic.
        CorruptionError: The rows store another partition than the chain says, or no place in the log; or a conversion
            of rows that are written again has changed a value.
    """
    _check_partitions(decoded, runs)
    conformed = columns.conform(decoded)
    if columns.conserves:
        _check_sums(decoded, conformed, runs)
    values = columns.values(columns.kind(runs[0].part))
    arrays = [_column_values(name, values[name], columns, conformed, decoded, runs) for name in columns.names]
    return pa.Table.from_arrays(arrays, schema=columns.schema)


def _column_values(
    column: str, value: Value, columns: Columns, conformed: pa.Table, decoded: pa.Table, runs: Sequence[Run]
) -> Any:
    """Return the values of a column for rows that were decoded and conformed to the topic."""
    match value:
        case Stored(name, required=False):
            if name not in columns.hidden:
                return conformed.column(name)
            is_stored = name in decoded.column_names
            return decoded.column(name) if is_stored else pa.nulls(decoded.num_rows, columns.schema.field(name).type)
        case Stored(name):
            stored = decoded.column(name)
            if stored.null_count:
                msg = f"segment {runs[0].part.batch.segment.key} has rows without {name}"
                raise CorruptionError(msg)
            return stored
        case Constant(text):
            return columns.constant(column, text, decoded.num_rows)
        case PerFile():
            number = _number_per_row(value, runs)
            if isinstance(number, int):
                return columns.constant(column, number, decoded.num_rows)
            return pa.array(number, columns.schema.field(column).type)
        case RowOffset(origin):
            first_offsets = [origin.of_slice(run.part) + run.start_row for run in runs]
            return pa.array(range_numbers(first_offsets, [run.rows for run in runs]))
        case EventTime(name, default):
            return timestamps_of(decoded, name, _number_per_row(default, runs))


def range_numbers(first_numbers: Sequence[int], counts: Sequence[int]) -> np.ndarray:
    """The numbers of consecutive ranges: the first one of each, and how many it has."""
    if len(first_numbers) == 1:
        return np.arange(first_numbers[0], first_numbers[0] + counts[0], dtype=np.int64)
    ends = np.cumsum(counts)
    return np.repeat(np.array(first_numbers, np.int64) - ends + counts, counts) + np.arange(ends[-1])


def _number_per_row(number: PerFile, runs: Sequence[Run]) -> int | np.ndarray:
    """The number of each row's file; one number if all have the same."""
    values = [number.of_slice(run.part) for run in runs]
    if len(set(values)) == 1:
        return values[0]
    return np.repeat(np.array(values, np.int64), [run.rows for run in runs])


def _check_partitions(decoded: pa.Table, runs: Sequence[Run]) -> None:
    """Compare the partitions that a merged segment stores with those of the chain."""
    if PARTITION_FIELD.name not in decoded.column_names:
        return
    is_wrong = decoded.column(PARTITION_FIELD.name).to_numpy() != _number_per_row(_PARTITION, runs)
    if is_wrong.any():
        first_wrong_row = is_wrong.argmax()
        ends = np.cumsum([run.rows for run in runs])  # The rows are those of the runs, in their order.
        part = runs[int(np.searchsorted(ends, first_wrong_row, "right"))].part
        msg = f"segment {part.batch.segment.key} has rows of {part.tp} with another partition"
        raise CorruptionError(msg)


def _check_sums(stored: pa.Table, converted: pa.Table, runs: Sequence[Run]) -> None:
    """Compare the sums of rows before their conversion with those after it: columns of nulls add nothing."""
    held_fields = [field for field in converted.schema if field.name in stored.column_names]
    if len(held_fields) == len(converted.schema) and all(
        stored.schema.field(field.name).type == field.type for field in held_fields
    ):
        return
    stored_sums, converted_sums = sums_of(stored.select([field.name for field in held_fields])), sums_of(converted)
    if stored_sums != converted_sums:
        segment = runs[0].part.batch.segment
        msg = f"the conversion of segment {segment.key} has changed records: {stored_sums} became {converted_sums}"
        raise CorruptionError(msg)


# Plans of files -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class File:
    """A segment with what is visible of it: one slice, or of a shared one that was merged all of its slices."""

    slices: tuple[Slice, ...]

    @property
    def segment(self) -> Segment:
        """The segment."""
        return self.slices[0].batch.segment

    @property
    def whole(self) -> bool:
        """Whether all of its rows are visible."""
        return sum(part.batch.records for part in self.slices if part.whole) == self.segment.rows

    def bounds(self) -> list[dict[int, tuple[int, int]]]:
        """The visible ranges of offsets by partition: the first one of each, then the second ones, and so on.

        Slices with no rows between them are one range.
        """
        ranges: dict[int, list[tuple[int, int]]] = {}
        end = 0  # of the rows of the slice before
        for part in self.slices:
            partition_ranges = ranges.setdefault(part.tp.partition, [])
            start = part.start
            if partition_ranges and part.rows.start == end:
                start, _ = partition_ranges.pop()
            partition_ranges.append((start, part.limit))
            end = part.rows.stop
        max_ranges = max(map(len, ranges.values()), default=0)
        return [
            {partition: bounds[number] for partition, bounds in ranges.items() if number < len(bounds)}
            for number in range(max_ranges)
        ]


@dataclass(frozen=True, slots=True)
class Group:
    """Files that are read alike.

    Attributes:
        layout: How they store rows.
        values: What each column is.
        cut: Whether some of their rows are not visible.
    """

    layout: Layout
    values: Mapping[str, Value]
    cut: bool
    files: tuple[File, ...]

    def numbers(self, number: PerFile) -> list[int]:
        """Return the number for each file."""
        return [number.of_slice(file.slices[0]) for file in self.files]

    def by(self, key: Callable[[File], object]) -> list[Group]:
        """The files of each key as a group of their own."""
        files: dict[object, list[File]] = {}
        for file in self.files:
            files.setdefault(key(file), []).append(file)
        return [Group(self.layout, self.values, self.cut, tuple(own)) for own in files.values()]


@dataclass(frozen=True, slots=True)
class Ability:
    """Which segments an engine reads as files.

    Attributes:
        layouts: Those whose columns it can compute.
        formats: The formats that it reads; None for all.
        several: Whether it reads segments with appended rows of several batches.
    """

    layouts: frozenset[Layout] = frozenset(Layout)
    formats: frozenset[str] | None = frozenset({"parquet"})
    several: bool = False

    def opens(self, batch: Batch) -> bool:
        """Whether it reads the segment of a batch as a file, if all rows of that are visible."""
        segment = batch.segment
        can_compute = batch.layout in self.layouts and (self.formats is None or segment.format in self.formats)
        return (
            can_compute
            and not segment.is_range
            and (self.several or batch.alone or batch.layout is not Layout.APPENDED)
        )


@dataclass(frozen=True, slots=True)
class RowPlan:
    """Slices of a topic, by partition and offset, and the columns to show of them."""

    columns: Columns
    slices: tuple[Slice, ...]

    def groups(self) -> list[Group]:
        """The slices as files, in groups that are read alike."""
        kinds: dict[tuple[tuple[Layout, Times], bool], list[File]] = {}
        shared: dict[str, list[Slice]] = {}
        for part in self.slices:
            kind = self.columns.kind(part)
            if kind[0] is Layout.MERGED_SHARED:
                shared.setdefault(part.batch.segment.key, []).append(part)
            else:
                file = File((part,))
                kinds.setdefault((kind, not (part.whole and part.batch.alone)), []).append(file)
        for parts in shared.values():
            file = File(tuple(parts))
            kinds.setdefault((self.columns.kind(parts[0]), not file.whole), []).append(file)
        return [Group(kind[0], self.columns.values(kind), cut, tuple(files)) for (kind, cut), files in kinds.items()]

    def split(self, ability: Ability) -> tuple[RowPlan, RowPlan]:
        """What an engine reads as files, and what is left."""
        files, rest = list[Slice](), list[Slice]()
        for part in self.slices:
            (files if ability.opens(part.batch) else rest).append(part)
        return RowPlan(self.columns, tuple(files)), RowPlan(self.columns, tuple(rest))
