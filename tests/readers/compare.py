"""Compares the rows of a table, as an engine reads them, with those of a topic, as ``scan`` reads them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import Any

from txnstore.snapshot import Snapshot
from txnstore.store import Store

Row = dict[str, Any]
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class Manner:
    """What an engine cannot represent, and where it is known to be wrong.

    Attributes:
        no_nulls_in: The nested types of which it has no null: ``list``, ``map``, ``struct``, and ``list of struct`` and
            ``map of struct`` for those with such elements or values only. An empty list or map, or a struct of nulls,
            stands for it.
        misses_late_times: It does not find rows by their time in segments that were written while their topic had no
            table.
    """

    no_nulls_in: frozenset[str] = frozenset()
    misses_late_times: bool = False


EXACT = Manner()


def expected_rows(store: Store, topic: str, snapshot: Snapshot) -> list[Row]:
    """The rows of a topic in a snapshot, with the names of the table's columns."""
    table = store.scan(topic, snapshot=snapshot).to_table().drop_columns(["_topic"])
    names = ["_partition_id" if name == "_partition" else name for name in table.column_names]
    rows: list[Row] = table.rename_columns(names).to_pylist()
    return rows


def canonical(schema: Mapping[str, Any], rows: Iterable[Row], manner: Manner = EXACT) -> list[Row]:
    """Rows in the order of their partition and offset, each value in the one form that it has whatever library made it.

    Args:
        schema: The schema of the table, in Iceberg's JSON: what the values mean. A column that a row lacks is null.
        rows: The rows; columns that the schema does not have are left as they are.
        manner: What the engine cannot represent.
    """
    kinds = {field["name"]: field["type"] for field in schema["fields"]}
    listed = [
        {**row, **{name: _canonical(kind, row.get(name), manner) for name, kind in kinds.items()}} for row in rows
    ]
    return sorted(listed, key=lambda row: (row["_partition_id"], row["_offset"]))


def difference(expected: list[Row], found: list[Row]) -> str | None:
    """The first difference between rows in canonical form; None if they are equal."""
    if len(expected) != len(found):
        there = {(row["_partition_id"], row["_offset"]) for row in expected}
        here = [(row["_partition_id"], row["_offset"]) for row in found]
        missing = sorted(there - set(here))
        more = sorted(set(here) - there)
        return (
            f"{len(found)} rows instead of {len(expected)}; missing: {missing[:5]}; too many: {more[:5]}; "
            f"repeated: {len(here) - len(set(here))}"
        )
    for mine, theirs in zip(expected, found, strict=True):
        if mine != theirs:
            names = [name for name in {**mine, **theirs} if mine.get(name, ...) != theirs.get(name, ...)]
            place = mine["_partition_id"], mine["_offset"]
            values = {name: (mine.get(name, "no column"), theirs.get(name, "no column")) for name in names}
            return f"the row at {place} differs, expected and found: {values}"
    return None


def _canonical(kind: Any, value: Any, manner: Manner) -> Any:
    if isinstance(kind, dict):
        return _nested(kind, value, manner)
    if value is None:
        return None
    if kind in {"int", "long"}:
        return int(value)
    if kind in {"float", "double"}:
        return repr(float(value))  # Not a number is equal to itself here, and 0.0 is not -0.0.
    if kind == "string":
        return value if isinstance(value, bytes) else value.encode()
    if kind == "date":
        return value.date() if isinstance(value, datetime) else _date(value)
    if kind in {"timestamp", "timestamptz"}:
        return _microseconds(value)
    return value


def _nested(kind: Mapping[str, Any], value: Any, manner: Manner) -> Any:
    if value is None and not manner.no_nulls_in & _kinds(kind):
        return None
    if kind["type"] == "struct":
        fields = {} if value is None else value
        return {each["name"]: _canonical(each["type"], fields.get(each["name"]), manner) for each in kind["fields"]}
    if value is None:
        return []
    if kind["type"] == "list":
        return [_canonical(kind["element"], each, manner) for each in value]
    pairs = value.items() if isinstance(value, dict) else map(_pair, value)
    items = ((_canonical(kind["key"], key, manner), _canonical(kind["value"], each, manner)) for key, each in pairs)
    return sorted(items, key=lambda item: item[0])


def _kinds(kind: Mapping[str, Any]) -> set[str]:
    """The names of a nested type in :attr:`Manner.no_nulls_in`."""
    inner = kind.get("element", kind.get("value"))
    more = {f"{kind['type']} of struct"} if isinstance(inner, dict) and inner["type"] == "struct" else set()
    return {kind["type"], *more}


def _pair(item: Any) -> tuple[Any, Any]:
    """An item of a map, which some libraries represent as a struct."""
    return (item["key"], item["value"]) if isinstance(item, dict) else item


def _date(value: Any) -> Any:
    return value if isinstance(value, date) else date(1970, 1, 1) + timedelta(days=value)


def _microseconds(value: datetime) -> int:
    """Microseconds since the epoch; a time without a zone is taken for one of UTC."""
    moment = value if value.tzinfo is not None else value.replace(tzinfo=UTC)
    return (moment - _EPOCH) // timedelta(microseconds=1)
