"""Predicates that choose the records to erase: a key, or an expression of SQL over the columns of a topic."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Protocol

import pyarrow as pa
import pyarrow.compute as pc

from txnstore.catalog.writing import topic_writer
from txnstore.core.catalog.model import CatalogTopic
from txnstore.errors import InvalidConfigError
from txnstore.read.rows import Columns
from txnstore.segment.partition import key_bytes
from txnstore.segment.schema import RESERVED_FIELDS
from txnstore.threads import load

if TYPE_CHECKING:
    import duckdb

#: The relation that an expression is evaluated over, and what it is made of.
_ROWS, _GIVEN = "records", "given"
#: The numbers that DuckDB gives the rows of a table, and a column for them if the topic has one of that name; no topic
#: can have this one, whose name begins as that of a column that reads add.
_NUMBER, _OWN_NUMBER = "rowid", "_offset_of_row"
#: Nothing is downloaded, and no variable of Python is a relation. With one thread rows are inserted in their order.
_SETTINGS: dict[str, str | bool | int | float | list[str]] = {
    "autoinstall_known_extensions": False,
    "autoload_known_extensions": False,
    "python_enable_replacements": False,
    "threads": 1,
}
#: The least length of bytes that are looked for in all objects.
_LEAST_NEEDLE = 4
#: What DuckDB calls an expression that is not of one row: a query, and functions over several rows.
_NOT_OF_A_ROW = {"SUBQUERY": "a query", "WINDOW": "a window function", "PARAMETER": "a parameter"}

#: The parts of an expression that are null for a null value, unless their other values decide them.
_STRICT = frozenset(
    {
        "COLUMN_REF", "COMPARE_BETWEEN", "COMPARE_EQUAL", "COMPARE_GREATERTHAN", "COMPARE_GREATERTHANOREQUALTO",
        "COMPARE_IN", "COMPARE_LESSTHAN", "COMPARE_LESSTHANOREQUALTO", "COMPARE_NOTEQUAL", "CONJUNCTION_AND",
        "CONJUNCTION_OR", "OPERATOR_CAST", "OPERATOR_NOT", "TYPE", "VALUE_CONSTANT",
    }
)  # fmt: skip
_PLACES = frozenset(each.name for each in RESERVED_FIELDS)

#: Functions that return the time, or what the session is; DuckDB has one word for these and for those of time zones.
_OF_THE_CALL = frozenset(
    {
        "age", "ago", "current_catalog", "current_database", "current_date", "current_localtime",
        "current_localtimestamp", "current_query", "current_query_id", "current_role", "current_schema",
        "current_schemas", "current_setting", "current_time", "current_timestamp", "current_transaction_id",
        "current_user", "get_current_time", "get_current_timestamp", "getvariable", "in_search_path", "localtime",
        "localtimestamp", "now", "session_user", "today", "transaction_timestamp", "txid_current", "user", "version",
    }
)  # fmt: skip


class Predicate(Protocol):
    """Chooses rows."""

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that it needs, of the topic and of those that reads add."""
        ...

    @property
    def needle(self) -> bytes | None:
        """Bytes that each chosen record has, as they are stored; None: they are not known, or too few to look for."""
        ...

    @property
    def strict(self) -> bool:
        """Whether rows with null for a place are false only if they are false at each place."""
        ...

    def matches(self, table: pa.Table) -> Any:
        """Whether each row is chosen: booleans, null where null values leave it unknown.

        Args:
            table: The rows; it has the needed columns.

        Raises:
            InvalidConfigError: The expression fails for a row.
        """
        ...


class KeyPredicate:
    """Chooses the records with one key.

    Keys are compared as the bytes that choose the partition.

    Args:
        key: The key; text is UTF-8 where keys are bytes.

    Raises:
        InvalidConfigError: The topic has no key, or the value is no key of it.
    """

    strict = True

    def __init__(self, topic: CatalogTopic, key: object) -> None:
        writer = topic_writer(topic)
        if writer.key_column is None:
            msg = f"topic {topic.name!r} has no key column: choose records by where"
            raise InvalidConfigError(msg)
        kind = writer.stored.field(writer.key_column).type
        if isinstance(key, str) and not pa.types.is_string(kind) and not pa.types.is_large_string(kind):
            key = key.encode() if pa.types.is_binary(kind) or pa.types.is_large_binary(kind) else key
        load("pandas")  # pa.array imports it, if it is installed.
        try:
            if key is None or isinstance(key, bool):
                raise TypeError
            array = pa.array([key], kind)
        except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
            msg = f"{key!r} is no key of topic {topic.name!r}, whose column {writer.key_column!r} is of type {kind}"
            raise InvalidConfigError(msg) from error
        self._column = writer.key_column
        self.columns: tuple[str, ...] = (writer.key_column,)
        self._key: bytes = key_bytes(array, writer.key_column)[0].as_py()
        # A number is stored otherwise, and a few bytes are found anywhere by chance.
        is_text = writer.schema is None or not pa.types.is_primitive(kind)
        self.needle: bytes | None = self._key if is_text and len(self._key) >= _LEAST_NEEDLE else None

    def matches(self, table: pa.Table) -> Any:
        """Whether each row has the key."""
        keys = key_bytes(table.column(self._column), self._column).cast(pa.large_binary())
        return pc.equal(keys, pa.scalar(self._key, pa.large_binary()))


class SqlPredicate:
    """Chooses the rows for which an expression of SQL is true.

    It is evaluated in a database that reads nothing else, and may depend on the row alone: so a repetition chooses the
    same records.

    Args:
        where: The expression, as after WHERE.

    Raises:
        InvalidConfigError: It is no expression of the columns of one row, or not of type boolean.
    """

    needle: bytes | None = None

    def __init__(self, topic: CatalogTopic, where: str) -> None:
        load("duckdb")
        import duckdb

        self._error, self._where = duckdb.Error, where
        self._database = duckdb.connect(":memory:", config=_SETTINGS)
        # The zone in which times without one are read, as in store.sql(); then nothing can be reached or set any more.
        self._database.execute(
            "SET GLOBAL TimeZone = 'UTC'; SET enable_progress_bar = false; SET temp_directory = ''; "
            "SET enable_external_access = false; SET lock_configuration = true"
        )
        expression = _parsed(self._database, where)
        _check_expression(self._database, where, expression)
        schema = Columns(topic).schema
        # A line feed, because the expression may end with a comment.
        self._query = f"SELECT ({where}\n) AS matched FROM {_ROWS}"
        kinds = self._bind(schema.empty_table())
        if kinds != ["BOOLEAN"]:
            raise InvalidConfigError(f"{where!r} is no predicate: it is of type {', '.join(kinds)}, not BOOLEAN")
        used = {name.lower() for name in _names_in(expression)}
        _check_names(where, used - {name.lower() for name in schema.names})
        is_all = any(map(_is_of_all, _nodes(expression)))
        self.columns: tuple[str, ...] = tuple(name for name in schema.names if is_all or name.lower() in used)
        self.strict = all(map(_is_strict, _nodes(expression)))
        self._number = _NUMBER if _NUMBER not in map(str.lower, self.columns) else _OWN_NUMBER
        if is_all and self._number != _NUMBER:
            msg = f"{where!r} is of whole rows, and topic {topic.name!r} has a column {_NUMBER}: name the columns"
            raise InvalidConfigError(msg)
        # Sorted, because a plan with a join, as of IN with many values, returns rows in another order.
        numbered = f"SELECT {self._number} AS number, ({where}\n) AS matched FROM {_ROWS}"
        self._ordered = f"SELECT matched FROM ({numbered}) ORDER BY number"
        if not self.columns:
            raise InvalidConfigError(f"{where!r} names no column of topic {topic.name!r}: it would choose all records")

    def _bind(self, rows: pa.Table) -> list[str]:
        """The type of the expression, several if it is a list of columns; WHERE also refuses aggregates."""
        self._database.register(_ROWS, rows)
        try:
            relation = self._database.sql(f"{self._query} WHERE ({self._where}\n)")
            return [str(kind) for kind in relation.types]
        except self._error as error:
            raise InvalidConfigError(f"{self._where!r} is no predicate: {_first_line(error)}") from error
        finally:
            self._database.unregister(_ROWS)

    def matches(self, table: pa.Table) -> Any:
        """Whether the expression is true for each row, in their order."""
        if not table.num_rows:
            return pa.array([], pa.bool_())
        database, rows = self._database, table.select(self.columns)  # The same row, whatever else a caller has read.
        if self._number == _OWN_NUMBER:
            rows = rows.append_column(_OWN_NUMBER, pa.array(range(table.num_rows), pa.int64()))
        database.register(_GIVEN, rows)
        try:
            # A table, because only its rows have numbers, which are no column for the expression.
            database.execute(f"CREATE OR REPLACE TEMP TABLE {_ROWS} AS SELECT * FROM {_GIVEN}")
            return database.sql(self._ordered).to_arrow_table().column(0)
        except self._error as error:
            msg = f"{self._where!r} cannot be evaluated for all records ({_first_line(error)})"
            raise InvalidConfigError(msg) from error
        finally:
            database.execute(f"DROP TABLE IF EXISTS {_ROWS}")
            database.unregister(_GIVEN)


def predicate_of(topic: CatalogTopic, key: object, where: object) -> Predicate:
    """The predicate of a call, which gives a key or an expression.

    Raises:
        InvalidConfigError: It gives both or none, or a wrong one.
    """
    if (key is None) == (where is None):
        raise InvalidConfigError("erase takes a key, or an expression as where, and not both")
    if where is None:
        return KeyPredicate(topic, key)
    if not isinstance(where, str) or not where.strip():
        raise InvalidConfigError(f"where must be an expression of SQL, not {where!r}")
    return SqlPredicate(topic, where)


def _parsed(database: duckdb.DuckDBPyConnection, where: str) -> Mapping[str, Any]:
    """The expression as DuckDB parses it.

    Raises:
        InvalidConfigError: It is none.
    """
    serialized = "SELECT json_serialize_sql(?)"

    def parse(text: str) -> Any:
        row = database.execute(serialized, [f"SELECT ({text}\n) AS matched FROM {_ROWS}"]).fetchone()
        assert row is not None
        return json.loads(row[0])

    document = parse(where)
    if document.get("error"):
        raise InvalidConfigError(f"{where!r} is no expression of SQL: {document.get('error_message')}")
    # What is left without the expression must be what is left of TRUE: nothing else was written between the brackets.
    frames = [_frame(each) for each in (document, parse("TRUE"))]
    if len(document["statements"]) != 1 or frames[0] != frames[1]:
        raise InvalidConfigError(f"{where!r} is no expression of SQL: it ends the statement that it is a part of")
    selected: list[Mapping[str, Any]] = document["statements"][0]["node"]["select_list"]
    if len(selected) != 1:
        raise InvalidConfigError(f"{where!r} is not one expression, but {len(selected)}")
    return selected[0]


def _frame(document: Any) -> Any:
    """A parsed statement without its expressions and places."""
    text = json.dumps(document["statements"][0]["node"] | {"select_list": []})
    return json.loads(
        text, object_hook=lambda node: {name: node[name] for name in node if not name.startswith("query_location")}
    )


def _check_expression(database: duckdb.DuckDBPyConnection, where: str, expression: Mapping[str, Any]) -> None:
    """Refuse what is not decided by the row alone: queries, random numbers, the time, settings, variables."""
    for node in _nodes(expression):
        if what := _NOT_OF_A_ROW.get(str(node.get("class"))):
            raise InvalidConfigError(f"{where!r} contains {what}: it may depend on one record alone")
    names = sorted({str(node["function_name"]) for node in _nodes(expression) if "function_name" in node})
    volatile = {
        name
        for (name,) in database.execute(
            "SELECT function_name FROM duckdb_functions() "
            "WHERE stability = 'VOLATILE' AND list_contains(?, function_name)",
            [names],
        ).fetchall()
    }
    unstable = sorted(volatile | _OF_THE_CALL.intersection(names))
    if unstable:
        msg = f"{where!r} calls {unstable[0]}(): what it returns may differ from call to call; give the value"
        raise InvalidConfigError(msg)


def _check_names(where: str, names: set[str]) -> None:
    """Refuse names that are no columns, and that DuckDB takes for functions without brackets: ``current_date``."""
    if unstable := sorted(_OF_THE_CALL & names):
        msg = f"{where!r} names {unstable[0]}: what it is may differ from call to call; give the value"
        raise InvalidConfigError(msg)


def _is_of_all(node: Mapping[str, Any]) -> bool:
    """Whether a part of an expression is of all columns: a star, the row as a whole, a column by its number."""
    names = [name.lower() for name in node.get("column_names", ())]
    return node.get("class") in {"STAR", "POSITIONAL_REFERENCE"} or names == [_ROWS]


def _is_strict(node: Mapping[str, Any]) -> bool:
    """Whether a part of an expression is null where a place in it is, unless its other values decide it."""
    return node.get("type", "TYPE") in _STRICT or not any(
        _is_of_all(part) or _PLACES.intersection(name.lower() for name in part.get("column_names", ()))
        for part in _nodes(node)
    )


def _nodes(tree: Any) -> Iterator[Mapping[str, Any]]:
    """All nodes of a parsed expression."""
    if isinstance(tree, Mapping):
        yield tree
        for value in tree.values():
            yield from _nodes(value)
    elif isinstance(tree, list):
        for value in tree:
            yield from _nodes(value)


def _names_in(expression: Mapping[str, Any]) -> Iterator[str]:
    """The names that may be columns: of ``a.b``, both."""
    for node in _nodes(expression):
        if node.get("class") == "COLUMN_REF":
            yield from node["column_names"]


def _first_line(error: Exception) -> str:
    return str(error).split("\n", 1)[0]
