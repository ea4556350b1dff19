"""Writes the SELECT of a topic over the segments that a reader of a snapshot sees; no I/O.

A view reads its segments with DuckDB's Parquet reader, which pushes columns and filters into the files. The columns and
their types are given (``schema``), so DuckDB opens no file to infer them; segments of an older schema are widened and
filled with nulls. Rows of shared segments are in files with all columns (:mod:`txnstore.sql.combined_files`).
Columns that the files do not store are computed from the file of the row:

- few files: from the file's *name*. The path contains the partition; a map gives the base offset of a freshly appended
  segment. A filter on such a column removes files from the list without opening them. Merged segments store their
  offsets, so they need no map and any number of them counts as few.
- many files: from the file's *number* in the list, whose cost does not grow with the list. Numbers shift when files are
  removed from the list, so each partition is a branch of a UNION ALL, in which it is a constant.

DuckDB 2.0 raises an internal error when a filter on one *virtual* column (``file_index``, ``file_row_number``) meets
``ORDER BY … LIMIT``: its late materialisation looks the column up among the stored ones. So every expression here
refers to two of them, which keeps such a filter out of the scan.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from operator import itemgetter

import pyarrow as pa
import pyarrow.types as pt

from txnstore.core.catalog.model import CatalogTopic
from txnstore.core.log.model import Segment
from txnstore.core.log.visibility import Slice, visible
from txnstore.core.model import Isolation
from txnstore.core.view import View
from txnstore.read.reader import Projection
from txnstore.segment.schema import OFFSET_FIELD, PARTITION_FIELD, RESERVED_FIELDS, TIMESTAMP_FIELD, TOPIC_FIELD
from txnstore.sql.types import duckdb_type, literal, quote, shown_ms

#: Returns the path or URL at which DuckDB reads a segment.
Locate = Callable[[Segment], str]

_RESERVED = {field.name for field in RESERVED_FIELDS}
#: Up to this number of files, values are looked up by name: DuckDB plans the map again for each query.
_FEW = 64
#: Above this number of partitions, neighbours share a branch of the UNION ALL: each branch costs about 1 ms to plan.
_MAX_BRANCHES = 16
#: The names of virtual columns of DuckDB's reader; a topic's column with such a name is renamed inside the view.
_VIRTUAL = frozenset({"filename", "file_index", "file_row_number"})
#: The column inside the view with the path of the file of a row. Names of a topic's columns cannot begin like this.
_FILE = f"{PARTITION_FIELD.name} file"


#: The views of DuckDB that its own commands, such as ``SHOW TABLES``, read by name; a topic's view would hide them.
_OWN_VIEWS = re.compile(r"duckdb_\w+|sqlite_(?:temp_)?(?:master|schema)|pragma_database_list", re.IGNORECASE)


def view_names(view: View) -> dict[str, str]:
    """Return the name of the view of each topic: the topic's name.

    DuckDB ignores case in names. Topics whose names differ in case only cannot be created any more; of those that an
    older release has created, the first one has its name, so that its queries stay, and the next ones get ``#2``,
    ``#3``, in the order of their creation. A topic with the name of a view of DuckDB gets ``#2``, too.
    """
    alike: dict[str, list[CatalogTopic]] = {}
    for topic in sorted(view.topics.values(), key=lambda topic: (topic.created_at, topic.name)):
        alike.setdefault(topic.name.lower(), []).append(topic)
    return {
        topic.name: topic.name if number == 1 else f"{topic.name}#{number}"
        for name, topics in alike.items()
        for number, topic in enumerate(topics, 2 if _OWN_VIEWS.fullmatch(name) else 1)
    }


def visible_slices(topic: CatalogTopic, view: View, isolation: Isolation) -> list[Slice]:
    """Return the slices that a reader of the topic sees, by partition, then offset."""
    return [part for tp, partition in view.partitions_of(topic.name) for part in visible(tp, partition, isolation)]


def topic_select(topic: CatalogTopic, slices: Iterable[Slice], locate: Locate, fresh: Sequence[str] = ()) -> str:
    """Write the SELECT of the rows of the slices, with the columns and types of a scan, in no particular order.

    Args:
        topic: The topic.
        slices: The slices.
        locate: Returns the path or URL of a segment.
        fresh: The paths of files with further rows, which have all columns of a scan.
    """
    projection = Projection(topic)
    schema = projection.schema
    parts = list(slices)
    appended = sum(not part.batch.segment.explicit_offsets for part in parts)
    width = topic.partitions if appended <= _FEW else -(-topic.partitions // _MAX_BRANCHES)
    groups: dict[tuple[bool, int, bool, bool], list[Slice]] = {}
    settled: dict[str, list[Slice]] = {}
    for part in parts:
        explicit = part.batch.segment.explicit_offsets
        if explicit and not part.batch.alone:
            settled.setdefault(part.batch.segment.key, []).append(part)
            continue
        block = 0 if explicit else part.tp.partition // width
        at_append = not explicit and projection.time_column_of(part.batch) is None
        kind = (explicit, block, _is_whole_file(part), at_append)
        groups.setdefault(kind, []).append(part)
    branches = [
        _Branch(topic, projection, alike, locate, explicit, whole).select()
        for (explicit, _, whole, _), alike in sorted(groups.items(), key=itemgetter(0))
    ]
    branches += _settled_selects(topic, schema, settled.values(), locate)
    if fresh:
        branches.append(_select_all(schema, fresh))
    return "\nUNION ALL\n".join(branches) if branches else _empty(schema)


def _settled_selects(
    topic: CatalogTopic, schema: pa.Schema, segments: Iterable[Sequence[Slice]], locate: Locate
) -> Iterator[str]:
    """Write the SELECTs over segments with rows of several partitions, which store the partition of each row.

    Segments of which all rows are visible are read together, and each of the others alone.

    Args:
        topic: The topic.
        schema: The columns of the view.
        segments: The slices of each segment.
        locate: Returns the path or URL of a segment.
    """
    whole: list[str] = []
    for slices in segments:
        first = slices[0]
        path = locate(first.batch.segment)
        rows = sum(part.batch.records for part in slices if part.whole)
        if rows == first.batch.segment.rows:
            whole.append(path)
            continue
        yield _settled_select(topic, schema, [path], slices)
    if whole:
        yield _settled_select(topic, schema, whole)


def _settled_select(topic: CatalogTopic, schema: pa.Schema, paths: Sequence[str], slices: Sequence[Slice] = ()) -> str:
    """Write a SELECT over settled segments; with ``slices`` only of their rows, which are those of one segment."""
    stored = [field for field in schema if field.name != TOPIC_FIELD.name]

    def column(name: str) -> str:
        inner = quote(_inner_name(name))
        if name == TOPIC_FIELD.name:
            return literal(topic.name)
        if name not in {PARTITION_FIELD.name, OFFSET_FIELD.name}:
            return inner
        # A file without the column is damage, and must neither give nulls nor lose its rows.
        return f"CASE WHEN {inner} IS NULL THEN error({literal(f'a settled segment has no {name}')}) ELSE {inner} END"

    columns = ", ".join(f"{column(field.name)} AS {quote(field.name)}" for field in schema)
    source = read_parquet(paths, pa.schema(stored), [_inner_name(field.name) for field in stored])
    conditions = _conditions(slices, column(PARTITION_FIELD.name), column(OFFSET_FIELD.name))
    where = f"\nWHERE {' OR '.join(conditions)}" if conditions else ""
    return f"SELECT {columns}\nFROM {source}{where}"


def _conditions(slices: Sequence[Slice], partition: str, offset: str) -> list[str]:
    """The conditions on rows of a settled segment, one of which is true of the rows of the slices.

    There is one condition for all partitions, which looks the bounds of each up; in a term for each, planning a query
    takes a time quadratic in them. Further ones are of partitions with rows between their slices that no slice has.

    Args:
        slices: The slices, by partition, then offset.
        partition: The SQL expression of the partition of a row.
        offset: That of its offset.
    """
    ranges: dict[int, list[tuple[int, int]]] = {}
    end = 0  # of the rows of the slice before
    for part in slices:
        own, start = ranges.setdefault(part.tp.partition, []), part.start
        if own and part.batch.first_row == end:
            start, _ = own.pop()
        own.append((start, part.limit))
        end = part.batch.first_row + part.batch.records
    conditions = []
    for number in range(max(map(len, ranges.values()), default=0)):
        bounds = {key: own[number] for key, own in ranges.items() if number < len(own)}
        first, last = min(bounds), max(bounds)
        # As text a list is one constant, however long it is.
        starts, limits = (
            f"'{[bounds.get(key, (0, 0))[each] for key in range(first, last + 1)]}'::BIGINT[]" for each in (0, 1)
        )
        row = f"{partition} - {first} + 1"
        conditions.append(
            f"({partition} BETWEEN {first} AND {last}"
            f" AND {offset} >= ({starts})[{row}] AND {offset} < ({limits})[{row}])"
        )
    return conditions


def read_parquet(
    paths: Sequence[str],
    columns: pa.Schema,
    names: Sequence[str] | None = None,
    file_column: str | None = None,
) -> str:
    """Write a call of ``read_parquet`` with explicit columns, so that DuckDB opens no file to infer them.

    Args:
        paths: The files.
        columns: The columns to read. One that a file lacks is null; a narrower one is widened.
        names: The names of the columns inside the query; None for those in the files.
        file_column: The name of an additional column with the path of the file of each row; None for no such column.
    """
    files = ",\n  ".join(literal(path) for path in paths)
    return read_parquet_from(f"[\n  {files}\n]", columns, names, file_column)


def read_parquet_from(
    source: str,
    columns: pa.Schema,
    names: Sequence[str] | None = None,
    file_column: str | None = None,
) -> str:
    """Like :func:`read_parquet`; ``source`` is an SQL expression of the paths."""
    entries = ", ".join(
        f"{literal(column.name)}: "
        f"{{name: {literal(name)}, type: {literal(duckdb_type(column.type))}, default_value: NULL}}"
        for column, name in zip(columns, names or columns.names, strict=True)
    )
    named = "" if file_column is None else f", filename = {literal(file_column)}"
    # Segments of older releases have statistics of floats, which do not count NaN.
    return f"read_parquet({source}, schema = MAP {{{entries}}}{named}, can_have_nan = true)"


def _is_whole_file(part: Slice) -> bool:
    """Whether every row of the segment is in the slice."""
    batch = part.batch
    return part.whole and batch.first_row == 0 and batch.records == batch.segment.rows


def _select_all(schema: pa.Schema, paths: Sequence[str]) -> str:
    """The SELECT of the rows of files that have all columns."""
    names = [_inner_name(name) for name in schema.names]
    columns = ", ".join(f"{quote(name)} AS {quote(field.name)}" for name, field in zip(names, schema, strict=True))
    return f"SELECT {columns}\nFROM {read_parquet(paths, schema, names)}"


def _empty(schema: pa.Schema) -> str:
    columns = ", ".join(f"CAST(NULL AS {duckdb_type(field.type)}) AS {quote(field.name)}" for field in schema)
    return f"SELECT {columns} WHERE false"


class _Branch:
    """Slices that are read in the same way: with stored or computed offsets, whole files or parts of files."""

    def __init__(
        self,
        topic: CatalogTopic,
        projection: Projection,
        slices: Sequence[Slice],
        locate: Locate,
        explicit: bool,
        whole: bool,
    ) -> None:
        self._topic = topic
        self._projection = projection
        self._schema = projection.schema
        self._slices = slices
        self._explicit = explicit
        self._whole = whole
        self._paths = [locate(part.batch.segment) for part in slices]
        self._names = [path.rpartition("/")[2] for path in self._paths]
        # A file of which two parts are read is listed twice, so its name is ambiguous.
        unique = len(set(self._names)) == len(slices)
        self._by_name = unique and (len(slices) <= _FEW or (explicit and whole))

    def select(self) -> str:
        """Write one SELECT over all files of the branch."""
        stored = [field for field in self._schema if field.name not in _RESERVED]
        if self._explicit:
            stored = [*stored, OFFSET_FIELD, TIMESTAMP_FIELD]
        source = read_parquet(
            self._paths,
            pa.schema(stored),
            [_inner_name(field.name) for field in stored],
            _FILE if self._by_name else None,
        )
        columns = ", ".join(f"{self._column(field)} AS {quote(field.name)}" for field in self._schema)
        where = "" if self._whole else f"\nWHERE {self._condition()}"
        return f"SELECT {columns}\nFROM {source}{where}"

    def _column(self, field: pa.Field) -> str:
        if field.name == TOPIC_FIELD.name:
            return literal(self._topic.name)
        if field.name == PARTITION_FIELD.name:
            return f"({self._partition()})::INTEGER"
        if field.name == OFFSET_FIELD.name and not self._explicit:
            return self._offset()
        if field.name == TIMESTAMP_FIELD.name and not self._explicit:
            return self._timestamp()
        if field.name == OFFSET_FIELD.name:
            return self._stored_offset()
        return quote(_inner_name(field.name))

    def _stored_offset(self) -> str:
        """The offset of a row in a merged segment. A file without that column is damage, and must not give nulls."""
        column = quote(_inner_name(OFFSET_FIELD.name))
        names = ", ".join(literal(part.batch.segment.key) for part in self._slices)
        file = quote(_FILE) if self._by_name else f"[{names}][(file_index + 0 * file_row_number)::BIGINT + 1]"
        message = f"{literal('a merged segment has no offsets: ')} || {file}"
        return f"CASE WHEN {column} IS NULL THEN error({message}) ELSE {column} END"

    def _partition(self) -> str:
        partitions = [part.tp.partition for part in self._slices]
        if self._by_name and self._whole and len(set(partitions)) > 1:
            # topics/<topic>/<partition>/<name>; a segment of which only a part is read may be of several partitions.
            return f"split_part({quote(_FILE)}, '/', -2)"
        return self._per_file(partitions)

    def _offset(self) -> str:
        """The offset of a row in a freshly appended segment."""
        first = [part.batch.base_offset - part.batch.first_row for part in self._slices]
        return f"{self._lookup(first)} + file_row_number"

    def _timestamp(self) -> str:
        """The ``_timestamp`` of freshly appended rows, by the rules of a scan.

        Writers replace a null event time by the append time, so a column of the right type is used unchanged: then
        filters on ``_timestamp`` skip row groups. Merged segments store ``_timestamp`` itself.
        """
        default = self._instants([self._projection.timestamp_range(part)[1] for part in self._slices])
        name = self._projection.time_column_of(self._slices[0].batch)
        if name is None:
            return default
        data_type, column = self._schema.field(name).type, quote(_inner_name(name))
        if data_type == TIMESTAMP_FIELD.type:
            return column
        if pt.is_integer(data_type):
            return f"coalesce(make_timestamptz({column} * 1000), {default})"
        micros = f"epoch_us({column})"
        if data_type.unit != "ms":
            micros = f"({micros} - (({micros} % 1000) + 1000) % 1000)"
        return f"coalesce(make_timestamptz({micros}), {default})"

    def _condition(self) -> str:
        """The condition on rows of a file that belong to its slice."""
        position = f"({self._stored_offset() if self._explicit else self._offset()})"
        first = self._per_file([part.start for part in self._slices])
        limit = self._per_file([part.limit for part in self._slices])
        return f"{position} >= {first} AND {position} < {limit}"

    def _lookup(self, values: Sequence[int]) -> str:
        """A BIGINT with one value per file; use it only together with a second virtual column."""
        if self._by_name:
            entries = ", ".join(f"{literal(name)}: {value}" for name, value in zip(self._names, values, strict=True))
            return f"(MAP {{{entries}}}[split_part({quote(_FILE)}, '/', -1)])::BIGINT"
        return f"([{', '.join(map(str, values))}]::BIGINT[])[file_index::BIGINT + 1]"

    def _per_file(self, values: Sequence[int]) -> str:
        """Like :meth:`_lookup`, but usable alone; a constant if all files have the same value."""
        if len(set(values)) == 1:
            return f"{values[0]}::BIGINT"
        return self._lookup(values) if self._by_name else f"({self._lookup(values)} + 0 * file_row_number)"

    def _instants(self, milliseconds: Sequence[int]) -> str:
        return f"make_timestamptz({self._per_file([shown_ms(value) * 1000 for value in milliseconds])})"


def _inner_name(name: str) -> str:
    """The name of a column inside the view; for one that the reader uses itself, a name that no column can have."""
    return f"{PARTITION_FIELD.name} {name}" if name.lower() in _VIRTUAL else name
