"""Random schemas, and columns of values that readers and engines are likely to get wrong."""

from __future__ import annotations

import random
from collections.abc import Iterable
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.types as pt

from tests.readers.values import TYPES, present, wider

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
#: Names that some engine might take for something else; each life of a topic has a number of its own behind them.
_NAMES = ("größe", "with space", "a-b", "order", "Upper", "n.n", "value", "key", "timestamp", "filename", "x", "y", "z")
#: How the values of a column of a batch are chosen: their number, the share of nulls.
_PATTERNS: tuple[tuple[int | None, float], ...] = (
    (None, 0.0),
    (None, 0.3),
    (None, 1.0),
    (1, 0.0),
    (1, 0.4),
    (2, 0.2),
    (3, 0.0),
    (3, 0.8),
)
_SIMPLE = (pa.float64(), pa.float32(), pa.string(), pa.binary(), pa.int32())
_EXTREME_TEXTS = ("", "%", "_", "a'b", "\x01", "zz" * 200, "ÿ", "𝄞", "a", "A", "nan", "NULL")


def new_schema(rng: random.Random, life: int) -> pa.Schema:
    """A schema with the columns ``id`` and ``name``, and some of all types whose names only this life has."""
    names = rng.sample(_NAMES, rng.randint(1, 5))
    own = [pa.field(f"{name}{life}", _type(rng)) for name in names]
    return pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("name", pa.string()), *own])


def with_column(rng: random.Random, schema: pa.Schema, life: int) -> pa.Schema:
    """The schema with one more column, somewhere."""
    unused = [name for name in (f"{name}{life}" for name in _NAMES) if name not in schema.names]
    fields = list(schema)
    if unused:
        fields.insert(rng.randint(0, len(fields)), pa.field(rng.choice(unused), _type(rng)))
    return pa.schema(fields)


def widened(rng: random.Random, schema: pa.Schema, key: str | None) -> pa.Schema:
    """The schema with one column of a wider type, or in another order if none can be wider."""
    fields = list(schema)
    wide = [place for place, field in enumerate(fields) if wider(field.type) is not None and field.name != key]
    if wide:
        place = rng.choice(wide)
        fields[place] = fields[place].with_type(wider(fields[place].type))
    else:
        rng.shuffle(fields)
    return pa.schema(fields)


def _type(rng: random.Random) -> pa.DataType:
    return rng.choice(_SIMPLE if rng.random() < 0.4 else TYPES)


def column(rng: random.Random, data_type: pa.DataType, count: int) -> list[Any]:
    """The values of a column of a batch."""
    distinct, nulls = rng.choice(_PATTERNS)
    pool = None if distinct is None else [value(rng, data_type) for _ in range(distinct)]
    return [
        None if rng.random() < nulls else value(rng, data_type) if pool is None else rng.choice(pool)
        for _ in range(count)
    ]


def value(rng: random.Random, data_type: pa.DataType) -> Any:
    """A value that is not null, an extreme one now and then."""
    if pt.is_floating(data_type) and rng.random() < 0.4:
        return rng.choice([float("nan"), float("nan"), float("inf"), -0.0, 1.0])
    if (pt.is_string(data_type) or pt.is_large_string(data_type)) and rng.random() < 0.4:
        return rng.choice(_EXTREME_TEXTS)
    if pt.is_timestamp(data_type) and rng.random() < 0.1:
        moment = rng.choice([datetime(1, 1, 1), datetime(9999, 12, 31, 23, 59, 59, 999_000)])  # noqa: DTZ001 - without a zone
        return moment if data_type.tz is None else moment.replace(tzinfo=UTC)
    return present(rng, data_type)


def canonical(given: Any) -> Any:
    """A value in the one form that it has, whatever library made it; values of different kinds differ."""
    if isinstance(given, float):
        return "nan" if given != given else repr(given)  # noqa: PLR0124 - not a number is not equal to itself.
    if isinstance(given, bool) or given is None:
        return given
    if isinstance(given, datetime):
        moment = given if given.tzinfo is not None else given.replace(tzinfo=UTC)
        return (moment - _EPOCH) // timedelta(microseconds=1)
    if isinstance(given, Decimal):
        return str(given)
    if isinstance(given, date):
        return given.isoformat()
    if isinstance(given, dict):
        return {name: canonical(each) for name, each in given.items()}
    if isinstance(given, bytes | bytearray | memoryview):
        return bytes(given)
    if isinstance(given, Iterable) and not isinstance(given, str):
        return [canonical(each) for each in given]
    return given
