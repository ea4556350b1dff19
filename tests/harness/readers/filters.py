"""Random filters over columns of every type: as SQL, and as what they mean."""

from __future__ import annotations

import math
import random
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.types as pt

from tests.harness.readers import values

#: True, False, or None for unknown.
Truth = bool | None
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class Filter:
    """A condition.

    Attributes:
        sql: It as SQL.
        holds: What it is of a row with the values of its columns.
        names: The columns that it reads.
    """

    sql: str
    holds: Callable[[Mapping[str, Any]], Truth]
    names: frozenset[str] = frozenset()


def draw(rng: random.Random, schema: pa.Schema, rows: Sequence[Mapping[str, Any]], depth: int = 2) -> Filter:
    """A filter.

    Args:
        rng: The source of randomness.
        schema: The columns of the view.
        rows: What is there, of whose values literals are taken.
        depth: How deeply conditions are nested.
    """
    kind = rng.random()
    if depth and kind < 0.15:
        inner = draw(rng, schema, rows, depth - 1)
        return Filter(f"not ({inner.sql})", lambda row: not_(inner.holds(row)), inner.names)
    if depth and kind < 0.4:
        one, two = (draw(rng, schema, rows, depth - 1) for _ in range(2))
        names = one.names | two.names
        if kind < 0.28:
            return Filter(f"({one.sql}) and ({two.sql})", lambda row: and_(one.holds(row), two.holds(row)), names)
        return Filter(
            f"({one.sql}) or ({two.sql})", lambda row: not_(and_(not_(one.holds(row)), not_(two.holds(row)))), names
        )
    # Engines disagree most about floats.
    field = rng.choices(list(schema), [3 if pt.is_floating(each.type) else 1 for each in schema])[0]
    condition = _of(rng, field, [row.get(field.name) for row in rows])
    return replace(condition, names=frozenset({field.name}))


def _of(rng: random.Random, field: pa.Field, there: Sequence[Any]) -> Filter:
    """A condition on one column."""
    name = field.name
    quoted = '"' + name.replace('"', '""') + '"'
    simple = not pt.is_nested(field.type)
    kind = rng.choice(["null", "compare", "compare", "compare", "distinct", "in", "between", "special"])
    if not simple or kind == "null":
        if rng.random() < 0.5:
            return Filter(f"{quoted} is null", lambda row: row[name] is None)
        return Filter(f"{quoted} is not null", lambda row: row[name] is not None)
    if kind == "special":
        special = _special(rng, field.type, quoted, name)
        if special is not None:
            return special
    chosen = [_chosen(rng, field.type, there) for _ in range(3)]
    texts = [literal(field.type, each) for each in chosen]
    keys = [order(each) for each in chosen]
    if kind == "distinct":
        if rng.random() < 0.5:
            return Filter(f"{quoted} is distinct from {texts[0]}", lambda row: order(row[name]) != keys[0])
        return Filter(f"{quoted} is not distinct from {texts[0]}", lambda row: order(row[name]) == keys[0])
    if kind == "in":
        within = rng.random() < 0.3
        listed = ", ".join([*texts, *(["null"] if within else [])])
        return Filter(f"{quoted} in ({listed})", lambda row: _in(order(row[name]), keys, null=within))
    if kind == "between":
        low, high = sorted((0, 1), key=lambda place: keys[place])
        return Filter(
            f"{quoted} between {texts[low]} and {texts[high]}",
            lambda row: None if row[name] is None else keys[low] <= order(row[name]) <= keys[high],
        )
    sign, compare = rng.choice(_SIGNS)
    return Filter(
        f"{quoted} {sign} {texts[0]}", lambda row: None if row[name] is None else compare(order(row[name]), keys[0])
    )


_SIGNS: tuple[tuple[str, Callable[[Any, Any], bool]], ...] = (
    ("=", lambda a, b: bool(a == b)),
    ("<>", lambda a, b: bool(a != b)),
    ("<", lambda a, b: bool(a < b)),
    ("<=", lambda a, b: bool(a <= b)),
    (">", lambda a, b: bool(a > b)),
    (">=", lambda a, b: bool(a >= b)),
)


def _special(rng: random.Random, data_type: pa.DataType, quoted: str, name: str) -> Filter | None:
    """A condition that only columns of this type have."""
    if pt.is_floating(data_type):
        return Filter(f"isnan({quoted})", lambda row: None if row[name] is None else math.isnan(row[name]))
    if pt.is_string(data_type) or pt.is_large_string(data_type):
        pattern = rng.choice(["a%", "%a%", "_", "%", "", "z%", "n_", "%\x01", "日%"])
        parts = (".*" if each == "%" else "." if each == "_" else re.escape(each) for each in pattern)
        regex = re.compile("".join(parts), re.DOTALL)
        return Filter(
            f"{quoted} like '{pattern}'",
            lambda row: None if row[name] is None else regex.fullmatch(row[name]) is not None,
        )
    return None


def _chosen(rng: random.Random, data_type: pa.DataType, there: Sequence[Any]) -> Any:
    """A value to compare with: one that is there, most often, and then often the least or the largest one."""
    present = [each for each in there if each is not None]
    if present and rng.random() < 0.7:
        # Statistics end at the least and the largest one, which are numbers.
        ordered = sorted((each for each in present if each == each), key=order)  # noqa: PLR0124 - not a number
        return rng.choice([rng.choice(present), *([ordered[0], ordered[-1]] if ordered else [])])
    return pa.array([values.value(rng, data_type)], data_type).to_pylist()[0]


def _in(key: Any, keys: list[Any], *, null: bool) -> Truth:
    if key is None:
        return None
    if key in keys:
        return True
    return None if null else False


def not_(truth: Truth) -> Truth:
    """The negation of SQL."""
    return None if truth is None else not truth


def and_(one: Truth, two: Truth) -> Truth:
    """The conjunction of SQL."""
    if one is False or two is False:
        return False
    return None if one is None or two is None else True


def order(given: Any) -> Any:
    """What DuckDB compares: not a number is equal to itself and above all others; texts are compared by their bytes."""
    if isinstance(given, float):
        return (1, 0.0) if math.isnan(given) else (0, given)
    if isinstance(given, str):
        return given.encode()
    if isinstance(given, datetime):
        return values.canonical(given)
    return given


def literal(data_type: pa.DataType, given: Any) -> str:
    """A value as SQL."""
    if pt.is_boolean(data_type):
        return str(given).lower()
    if pt.is_integer(data_type):
        return f"({given})"
    if pt.is_floating(data_type):
        return f"'{given!r}'::{'FLOAT' if pt.is_float32(data_type) else 'DOUBLE'}"
    if isinstance(given, str):
        return "'" + given.replace("'", "''") + "'"
    if isinstance(given, bytes):
        return "'" + "".join(f"\\x{byte:02X}" for byte in given) + "'::BLOB"
    if isinstance(given, Decimal):
        return f"'{given}'::DECIMAL({data_type.precision},{data_type.scale})"
    if isinstance(given, datetime):
        micros = (given if given.tzinfo else given.replace(tzinfo=UTC)) - _EPOCH
        number = micros // timedelta(microseconds=1)
        return f"make_timestamptz({number})" if data_type.tz else f"make_timestamp({number})"
    assert isinstance(given, date)
    return f"'{given.isoformat()}'::DATE"
