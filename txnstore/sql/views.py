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
from collections.abc import Callable, Sequence

import pyarrow as pa
import pyarrow.types as pt

from txnstore.core.catalog.model import CatalogTopic
from txnstore.core.log.model import Layout, Segment
from txnstore.core.log.visibility import visible_slices
from txnstore.core.model import Isolation
from txnstore.core.view import View
from txnstore.read.rows import (
    LIMIT,
    START,
    Columns,
    Constant,
    EventTime,
    File,
    Group,
    PerFile,
    RowOffset,
    RowPlan,
    Stored,
)
from txnstore.segment.schema import OFFSET_FIELD, PARTITION_FIELD, TIMESTAMP_FIELD
from txnstore.sql.types import duckdb_type, literal, quote, shown_ms

#: Returns the path or URL at which DuckDB reads a segment.
Locate = Callable[[Segment], str]

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
    topics_by_name: dict[str, list[CatalogTopic]] = {}
    for topic in sorted(view.topics.values(), key=lambda topic: (topic.created_at, topic.name)):
        topics_by_name.setdefault(topic.name.lower(), []).append(topic)
    return {
        topic.name: topic.name if number == 1 else f"{topic.name}#{number}"
        for name, topics in topics_by_name.items()
        for number, topic in enumerate(topics, 2 if _OWN_VIEWS.fullmatch(name) else 1)
    }


def shown_columns(topic: CatalogTopic) -> Columns:
    """The columns of a view, with the times that SQL shows."""
    return Columns(topic, latest=shown_ms)


def shown_plan(topic: str, view: View, isolation: Isolation) -> RowPlan:
    """What the view of a topic has, with the columns of the topic in the same view of the store."""
    catalog_topic = view.find_topic(topic)
    logs = view.partitions_of(topic)
    slices = tuple(part for tp, log in logs for part in visible_slices(tp, log, isolation))
    return RowPlan(shown_columns(catalog_topic), slices)


def topic_select(plan: RowPlan, locate: Locate, fresh: Sequence[str] = ()) -> str:
    """Write the SELECT of the rows of a plan, with the columns and types of a scan, in no particular order.

    Args:
        locate: Returns the path or URL of a segment.
        fresh: The paths of files with further rows, which have all columns of a scan.
    """
    groups = plan.groups()
    appended_files = sum(len(group.files) for group in groups if group.layout is Layout.APPENDED)
    partitions = plan.columns.topic.partitions
    # Partitions per SELECT of appended files.
    width = partitions if appended_files <= _FEW else -(-partitions // _MAX_BRANCHES)
    groups = [branch for group in groups for branch in _split_into_branches(group, width)]
    branches = [_Branch(plan.columns, group, locate).select() for group in groups]
    if fresh:
        branches.append(_select_all(plan.columns.schema, fresh))
    return "\nUNION ALL\n".join(branches) if branches else _empty_select(plan.columns.schema)


def _split_into_branches(group: Group, width: int) -> list[Group]:
    """Divide the files of a group into those that one SELECT reads: appended ones by ``width`` partitions."""
    if group.layout is Layout.APPENDED:
        return group.by(lambda file: file.slices[0].tp.partition // width)  # Such a file has one slice.
    if group.layout is Layout.MERGED_SHARED and group.cut:
        return group.by(lambda file: file.segment.key)
    return [group]


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
    file_name_option = "" if file_column is None else f", filename = {literal(file_column)}"
    # Segments of older releases have statistics of floats, which do not count NaN.
    return f"read_parquet({source}, schema = MAP {{{entries}}}{file_name_option}, can_have_nan = true)"


def _select_all(schema: pa.Schema, paths: Sequence[str]) -> str:
    """The SELECT of the rows of files that have all columns."""
    names = [_inner_name(name) for name in schema.names]
    columns = ", ".join(f"{quote(name)} AS {quote(field.name)}" for name, field in zip(names, schema, strict=True))
    return f"SELECT {columns}\nFROM {read_parquet(paths, schema, names)}"


def _empty_select(schema: pa.Schema) -> str:
    columns = ", ".join(f"CAST(NULL AS {duckdb_type(field.type)}) AS {quote(field.name)}" for field in schema)
    return f"SELECT {columns} WHERE false"


class _Branch:
    """Prints files that are read alike as one SELECT."""

    def __init__(self, columns: Columns, group: Group, locate: Locate) -> None:
        self._columns, self._group = columns, group
        self._paths = [locate(file.segment) for file in group.files]
        self._names = [path.rpartition("/")[2] for path in self._paths]
        # A file of which two parts are read is listed twice, so its name is ambiguous.
        has_unique_names = len(set(self._names)) == len(self._names)
        stores_offsets = group.layout is not Layout.APPENDED and not group.cut
        self._by_name = has_unique_names and (len(self._names) <= _FEW or stores_offsets)

    def select(self) -> str:
        """Write one SELECT over all files of the branch."""
        stored_schema = self._columns.stored(self._group.layout)
        source = read_parquet(
            self._paths,
            stored_schema,
            [_inner_name(name) for name in stored_schema.names],
            _FILE if self._by_name else None,
        )
        columns = ", ".join(f"{self._column(field.name)} AS {quote(field.name)}" for field in self._columns.schema)
        where_clause = f"\nWHERE {self._condition()}" if self._group.cut else ""
        return f"SELECT {columns}\nFROM {source}{where_clause}"

    def _column(self, name: str) -> str:
        """Return the SQL of a column, by where its values come from."""
        match self._group.values[name]:
            case Constant(text):
                return literal(text)
            case PerFile() as partition:
                return f"({self._partition(partition)})::INTEGER"
            case RowOffset(origin):
                return f"{self._lookup(self._group.numbers(origin))} + file_row_number"
            case EventTime(column, default):
                return self._event_time(column, default)
            case Stored(column, required):
                is_checked = required and column != TIMESTAMP_FIELD.name  # An expression would end skipping by times.
                return self._required_column(column) if is_checked else quote(_inner_name(column))

    def _partition(self, number: PerFile) -> str:
        """The partition of a row, from the path of its file where that names it."""
        numbers = self._group.numbers(number)
        if self._by_name and not self._group.cut and len(set(numbers)) > 1:
            # topics/<topic>/<partition>/<name>; a segment of which only a part is read may be of several partitions.
            return f"split_part({quote(_FILE)}, '/', -2)"
        return self._value_per_file(numbers)

    def _required_column(self, name: str) -> str:
        """A column that a merge adds. A file without it is damage, and must neither give nulls nor lose its rows."""
        column = quote(_inner_name(name))
        names = ", ".join(literal(file.segment.key) for file in self._group.files)
        file = quote(_FILE) if self._by_name else f"[{names}][(file_index + 0 * file_row_number)::BIGINT + 1]"
        message = f"{literal(f'a merged segment has no {name}: ')} || {file}"
        return f"CASE WHEN {column} IS NULL THEN error({message}) ELSE {column} END"

    def _event_time(self, name: str | None, default: PerFile) -> str:
        """The event time of freshly appended rows, by the rules of a scan.

        Writers replace a null event time by the append time, so a column of the right type is used unchanged: then
        filters on ``_timestamp`` skip row groups.
        """
        micros = [milliseconds * 1000 for milliseconds in self._group.numbers(default)]
        latest = f"make_timestamptz({self._value_per_file(micros)})"
        if name is None:
            return latest
        data_type = self._columns.topic_fields.field(name).type
        column = quote(_inner_name(name))
        if data_type == TIMESTAMP_FIELD.type:
            return column
        if pt.is_integer(data_type):
            return f"coalesce(make_timestamptz({column} * 1000), {latest})"
        time = f"epoch_us({column})"
        if data_type.unit != "ms":
            time = f"({time} - (({time} % 1000) + 1000) % 1000)"
        return f"coalesce(make_timestamptz({time}), {latest})"

    def _condition(self) -> str:
        """The condition on rows of a file that are visible."""
        offset = f"({self._column(OFFSET_FIELD.name)})"
        if self._group.layout is Layout.MERGED_SHARED:
            (file,) = self._group.files
            return _visible_condition(file, self._column(PARTITION_FIELD.name), offset)
        first, limit = (self._value_per_file(self._group.numbers(bound)) for bound in (START, LIMIT))
        return f"{offset} >= {first} AND {offset} < {limit}"

    def _lookup(self, values: Sequence[int]) -> str:
        """A BIGINT with one value per file; use it only together with a second virtual column."""
        if self._by_name:
            entries = ", ".join(f"{literal(name)}: {value}" for name, value in zip(self._names, values, strict=True))
            return f"(MAP {{{entries}}}[split_part({quote(_FILE)}, '/', -1)])::BIGINT"
        return f"([{', '.join(map(str, values))}]::BIGINT[])[file_index::BIGINT + 1]"

    def _value_per_file(self, values: Sequence[int]) -> str:
        """Like :meth:`_lookup`, but usable alone; a constant if all files have the same value."""
        if len(set(values)) == 1:
            return f"{values[0]}::BIGINT"
        return self._lookup(values) if self._by_name else f"({self._lookup(values)} + 0 * file_row_number)"


def _visible_condition(file: File, partition: str, offset: str) -> str:
    """The condition on the visible rows of a merged segment of several batches.

    There is one term for all partitions, which looks the bounds of each up; with a term for each, planning a query
    takes a time quadratic in them. Further ones are of partitions with rows between their slices that are not visible.
    """
    terms = []
    for bounds in file.bounds():
        first, last = min(bounds), max(bounds)
        ranges = [bounds.get(number, (0, 0)) for number in range(first, last + 1)]
        # As text a list is one constant, however long it is.
        starts = f"'{[start for start, _ in ranges]}'::BIGINT[]"
        limits = f"'{[limit for _, limit in ranges]}'::BIGINT[]"
        index = f"{partition} - {first} + 1"
        terms.append(
            f"({partition} BETWEEN {first} AND {last}"
            f" AND {offset} >= ({starts})[{index}] AND {offset} < ({limits})[{index}])"
        )
    return " OR ".join(terms)


def _inner_name(name: str) -> str:
    """The name of a column inside the view; for one that the reader uses itself, a name that no column can have."""
    return f"{PARTITION_FIELD.name} {name}" if name.lower() in _VIRTUAL else name
