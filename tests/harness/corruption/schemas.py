"""Hostile schemas, rows that fit them, and texts that are no schema."""

from __future__ import annotations

import base64
import random
from collections.abc import Callable
from datetime import date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa

from tests.harness.corruption.texts import text

#: Types that topics may have.
PLAIN: tuple[pa.DataType, ...] = (
    pa.bool_(), pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.float32(), pa.float64(), pa.string(), pa.binary(),
    pa.large_string(), pa.large_binary(), pa.date32(), pa.timestamp("ms"), pa.timestamp("us", "UTC"),
    pa.decimal128(38, 10),
    pa.binary(16),
)  # fmt: skip
#: Types that at least one reader cannot show.
REFUSED: tuple[pa.DataType, ...] = (
    pa.null(), pa.uint8(), pa.uint64(), pa.float16(), pa.date64(), pa.time32("s"), pa.time64("ns"), pa.duration("s"),
    pa.timestamp("ns"), pa.timestamp("s", "Europe/Berlin"), pa.decimal256(60, 2), pa.string_view(), pa.binary_view(),
    pa.dictionary(pa.int8(), pa.string()), pa.large_list(pa.int8()), pa.list_(pa.int8(), 3),
    pa.run_end_encoded(pa.int32(), pa.int8()), pa.list_view(pa.int8()), pa.month_day_nano_interval(),
    pa.sparse_union([pa.field("a", pa.int8())]), pa.dense_union([pa.field("a", pa.int8())]),
)  # fmt: skip


def _type(rng: random.Random, depth: int) -> pa.DataType:
    choice = rng.random()
    if depth <= 0 or choice < 0.5:
        return rng.choice(PLAIN) if rng.random() < 0.85 else rng.choice(REFUSED)
    if choice < 0.7:
        return pa.list_(_type(rng, depth - 1))
    if choice < 0.8:
        return pa.map_(rng.choice(PLAIN), _type(rng, depth - 1))
    return pa.struct([pa.field(_name(rng), _type(rng, depth - 1)) for _ in range(rng.randint(0, 3))])


def _name(rng: random.Random) -> str:
    """A name of a column; one that is UTF-8, which Arrow itself asks for."""
    name = text(rng) if rng.random() < 0.3 else f"c{rng.randrange(1000)}"
    return name.encode("utf-8", "replace").decode()


def _deep(depth: int) -> pa.DataType:
    nested: pa.DataType = pa.int64()
    for level in range(depth):
        nested = pa.list_(nested) if level % 2 else pa.struct([pa.field("a", nested)])
    return nested


def schema(rng: random.Random) -> pa.Schema:
    """A schema: random, wide, deep, with columns of one name, or empty."""
    shape = rng.choice(["random"] * 8 + ["wide", "deep", "double", "empty", "case"])
    if shape == "wide":
        return pa.schema([pa.field(f"c{number}", rng.choice(PLAIN)) for number in range(rng.choice([200, 2000]))])
    if shape == "deep":
        return pa.schema([pa.field("a", _deep(rng.choice([8, 15, 16, 17, 60, 120])))])
    if shape == "double":
        return pa.schema([pa.field("a", pa.int64()), pa.field("a", pa.string())])
    if shape == "empty":
        return pa.schema([])
    if shape == "case":
        return pa.schema([pa.field("a", pa.int64()), pa.field(rng.choice(["A", "Å", "ａ"]), pa.int64())])
    depth = rng.randint(0, 4)
    return pa.schema([
        pa.field(_name(rng), _type(rng, depth), nullable=rng.random() < 0.8) for _ in range(rng.randint(1, 5))
    ])  # fmt: skip


def rows(rng: random.Random, fields: pa.Schema) -> pa.Table:
    """Three rows of a schema that was accepted."""
    return pa.table([pa.array([_value(rng, it.type, it.nullable) for _ in range(3)], it.type) for it in fields], fields)


#: Extreme values that every reader can show.
_VALUES: dict[str, list[Any]] = {
    "bool": [True, False], "int8": [-128, 127], "int16": [-(2**15)], "int32": [2**31 - 1], "int64": [-(2**63),
    2**63 - 1],
    "float": [0.0, -1.5], "double": [1e308, 5e-324], "string": ["", "a\x1b[31mb", "é", "NULL"],
    "large_string": ["x" * 500], "binary": [b"", b"\x00\xff"], "large_binary": [b"\xff" * 500],
    "fixed_size_binary[16]": [b"\x00" * 16], "date32[day]": [date(1, 1, 1), date(9999, 12, 31)],
}  # fmt: skip


def _value(rng: random.Random, kind: pa.DataType, nullable: bool = True) -> Any:
    if nullable and rng.random() < 0.2:
        return None
    makers: list[tuple[Callable[[pa.DataType], bool], Callable[[], Any]]] = [
        (pa.types.is_struct, lambda: {it.name: _value(rng, it.type, it.nullable) for it in kind}),
        (pa.types.is_map, lambda: [(_value(rng, kind.key_type, False), _value(rng, kind.item_type))]),
        (pa.types.is_list, lambda: [_value(rng, kind.value_type) for _ in range(rng.randint(0, 2))]),
        (pa.types.is_decimal, lambda: Decimal("-1.5")),
        (pa.types.is_timestamp, lambda: datetime(2026, 1, 2, 3, 4, 5)),  # noqa: DTZ001 - Arrow adds the zone.
    ]
    for fits, make in makers:
        if fits(kind):
            return make()
    return rng.choice(_VALUES[str(kind)])


def schema_text(rng: random.Random) -> str:
    """The text of a schema in an entry: of a schema that no topic may have, cut, or no schema at all."""
    data = schema(rng).serialize().to_pybytes()
    choice = rng.random()
    if choice < 0.3:
        data = data[: rng.randrange(len(data))]
    elif choice < 0.5:
        place = rng.randrange(len(data))
        data = data[:place] + bytes([data[place] ^ 1 << rng.randrange(8)]) + data[place + 1 :]
    elif choice < 0.6:
        data = pa.table({"a": [1]}).to_batches()[0].serialize().to_pybytes()
    return base64.b64encode(data).decode() if choice < 0.95 else text(rng)
