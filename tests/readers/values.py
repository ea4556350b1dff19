"""Random schemas of typed topics, their evolution, and rows of them."""

from __future__ import annotations

import random
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.types as pt

#: A column of each type that a topic may have; nested ones have the others inside.
TYPES: tuple[pa.DataType, ...] = (
    pa.bool_(),
    pa.int8(),
    pa.int16(),
    pa.int32(),
    pa.int64(),
    pa.float32(),
    pa.float64(),
    pa.string(),
    pa.large_string(),
    pa.binary(),
    pa.large_binary(),
    pa.binary(5),
    pa.decimal128(7, 2),
    pa.decimal128(16, 4),
    pa.decimal128(33, 10),
    pa.date32(),
    pa.timestamp("ms"),
    pa.timestamp("us"),
    pa.timestamp("ms", "UTC"),
    pa.timestamp("us", "UTC"),
    pa.struct([("a", pa.int8()), ("b", pa.string()), ("at", pa.timestamp("ms", "UTC"))]),
    pa.list_(pa.int16()),
    pa.list_(pa.struct([("x", pa.float32()), ("y", pa.decimal128(9, 3))])),
    pa.list_(pa.list_(pa.string())),
    pa.map_(pa.string(), pa.int64()),
    pa.map_(pa.int32(), pa.struct([("p", pa.float64()), ("q", pa.list_(pa.date32()))])),
    pa.struct([("m", pa.map_(pa.string(), pa.list_(pa.int32()))), ("deep", pa.struct([("z", pa.binary(3))]))]),
)
#: Names that some engine might take for something else.
_NAMES = ("größe", "with space", "a-b", "order", "Upper", "n.n", "value", "key", "timestamp", "x1", "x2", "x3", "x4")
_WIDER: dict[pa.DataType, pa.DataType] = {
    pa.int8(): pa.int16(),
    pa.int16(): pa.int32(),
    pa.int32(): pa.int64(),
    pa.float32(): pa.float64(),
    pa.string(): pa.large_string(),
    pa.binary(): pa.large_binary(),
}
_WORDS = ("", "a", "ß", "日本", "two words", "x" * 40, 'q"uote', "null", "\n")


def new_schema(rng: random.Random) -> pa.Schema:
    """A schema with a column ``id``, a column ``name`` that may be a key, and some of all types."""
    names = rng.sample(_NAMES, rng.randint(2, 7))
    own = [pa.field(name, rng.choice(TYPES)) for name in names]
    return pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("name", pa.string()), *own])


def evolved(rng: random.Random, schema: pa.Schema, key: str | None) -> pa.Schema:
    """The schema with one change that is allowed: a new column, a wider one, or another order."""
    fields = list(schema)
    unused = [name for name in _NAMES if name not in schema.names]
    wide = [place for place, field in enumerate(fields) if wider(field.type) is not None and field.name != key]
    change = rng.choice(["add", "widen", "widen", "order"])
    if change == "add" and unused:
        fields.insert(rng.randint(0, len(fields)), pa.field(rng.choice(unused), rng.choice(TYPES)))
    elif change == "widen" and wide:
        place = rng.choice(wide)
        fields[place] = fields[place].with_type(wider(fields[place].type))
    else:
        rng.shuffle(fields)
    return pa.schema(fields)


def wider(data_type: pa.DataType) -> pa.DataType | None:
    if pt.is_decimal(data_type) and data_type.precision < 36:
        return pa.decimal128(data_type.precision + 2, data_type.scale)
    return _WIDER.get(data_type)


def rows(rng: random.Random, schema: pa.Schema, first_id: int, count: int, names: int) -> pa.Table:
    """Rows of a schema.

    Args:
        rng: The source of randomness.
        schema: The schema.
        first_id: The ``id`` of the first row; each has the next one.
        count: How many.
        names: How many names there are in the column ``name``.
    """
    columns = {
        "id": list(range(first_id, first_id + count)),
        "name": [f"n{rng.randrange(names)}" for _ in range(count)],
    }
    own = {field.name: [_value(rng, field.type) for _ in range(count)] for field in schema if field.name not in columns}
    return pa.table({field.name: pa.array({**columns, **own}[field.name], field.type) for field in schema}).cast(schema)


def _value(rng: random.Random, data_type: pa.DataType) -> Any:
    return None if rng.random() < 0.15 else present(rng, data_type)


def present(rng: random.Random, data_type: pa.DataType) -> Any:
    if pt.is_struct(data_type):
        return {field.name: _value(rng, field.type) for field in data_type}
    if pt.is_map(data_type):
        keys = {present(rng, data_type.key_type) for _ in range(rng.randint(0, 3))}
        return [(key, _value(rng, data_type.item_type)) for key in sorted(keys)]
    if pt.is_list(data_type):
        return [_value(rng, data_type.value_type) for _ in range(rng.randint(0, 3))]
    return next(make for test, make in _MAKE if test(data_type))(rng, data_type)


def _integer(rng: random.Random, data_type: pa.DataType) -> int:
    bits: int = data_type.bit_width - 1
    return rng.choice([0, -1, -(1 << bits), (1 << bits) - 1, rng.randint(-(1 << bits), (1 << bits) - 1)])


def _float(rng: random.Random, data_type: pa.DataType) -> float:
    return rng.choice([0.0, -0.0, 0.1, float("nan"), float("inf"), float("-inf"), 1e-30, rng.gauss(0, 1e6)])


def _text(rng: random.Random, data_type: pa.DataType) -> str:
    return rng.choice(_WORDS)


def _bytes(rng: random.Random, data_type: pa.DataType) -> bytes:
    return rng.randbytes(data_type.byte_width if pt.is_fixed_size_binary(data_type) else rng.randint(0, 12))


def _decimal(rng: random.Random, data_type: pa.DataType) -> Decimal:
    most = 10**data_type.precision - 1
    digits = str(rng.choice([0, 1, most, rng.randint(0, most)])).zfill(data_type.scale + 1)
    return Decimal(f"{rng.choice(['', '-'])}{digits[: -data_type.scale]}.{digits[-data_type.scale :]}")


def _date(rng: random.Random, data_type: pa.DataType) -> date:
    return date(1900, 1, 1) + timedelta(days=rng.randrange(140_000))


def _moment(rng: random.Random, data_type: pa.DataType) -> datetime:
    """A time from 1901 to 2290, the years that all engines have in microseconds."""
    step = timedelta(milliseconds=1) if data_type.unit == "ms" else timedelta(microseconds=1)
    moment = datetime(1901, 1, 1) + timedelta(days=rng.randrange(142_000)) + step * rng.randrange(86_400_000)  # noqa: DTZ001 - without a zone
    return moment if data_type.tz is None else moment.replace(tzinfo=UTC)


_MAKE: tuple[tuple[Callable[[pa.DataType], bool], Callable[[random.Random, pa.DataType], Any]], ...] = (
    (pt.is_boolean, lambda rng, _: rng.random() < 0.5),
    (pt.is_integer, _integer),
    (pt.is_floating, _float),
    (pt.is_string, _text),
    (pt.is_large_string, _text),
    (pt.is_binary, _bytes),
    (pt.is_large_binary, _bytes),
    (pt.is_fixed_size_binary, _bytes),
    (pt.is_decimal, _decimal),
    (pt.is_date, _date),
    (pt.is_timestamp, _moment),
)
