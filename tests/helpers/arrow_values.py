"""Every type that a topic allows, with its values."""

from __future__ import annotations

import datetime as dt
import math
import struct
from decimal import Decimal
from operator import itemgetter
from typing import Any

import pyarrow as pa
from hypothesis import strategies as st

UTC = dt.UTC

_text = st.text(st.characters(exclude_categories=["Cs"]), max_size=6)
_naive = st.datetimes()


def _milliseconds(moment: dt.datetime) -> dt.datetime:
    return moment.replace(microsecond=moment.microsecond // 1000 * 1000)


def _decimals(precision: int, scale: int) -> st.SearchStrategy[Decimal]:
    most = 10**precision - 1
    return st.integers(-most, most).map(lambda number: Decimal(f"{number}E-{scale}"))


#: Every type that a topic allows, with its values.
TYPES: list[tuple[pa.DataType, st.SearchStrategy[Any]]] = [
    (pa.bool_(), st.booleans()),
    (pa.int8(), st.integers(-(2**7), 2**7 - 1)),
    (pa.int16(), st.integers(-(2**15), 2**15 - 1)),
    (pa.int32(), st.integers(-(2**31), 2**31 - 1)),
    (pa.int64(), st.integers(-(2**63), 2**63 - 1)),
    (pa.float32(), st.floats(width=32)),
    (pa.float64(), st.floats()),
    (pa.string(), _text),
    (pa.large_string(), _text),
    (pa.binary(), st.binary(max_size=5)),
    (pa.large_binary(), st.binary(max_size=5)),
    (pa.binary(3), st.binary(min_size=3, max_size=3)),
    (pa.date32(), st.dates()),
    (pa.timestamp("ms"), _naive.map(_milliseconds)),
    (pa.timestamp("us"), _naive),
    (pa.timestamp("ms", "UTC"), _naive.map(_milliseconds).map(lambda moment: moment.replace(tzinfo=UTC))),
    (pa.timestamp("us", "UTC"), _naive.map(lambda moment: moment.replace(tzinfo=UTC))),
    (pa.decimal128(5, 2), _decimals(5, 2)),
    (pa.decimal128(38, 38), _decimals(38, 38)),
    (pa.decimal128(38, 0), _decimals(38, 0)),
    (pa.list_(pa.int32()), st.lists(st.none() | st.integers(-5, 5), max_size=3)),
    (pa.list_(pa.list_(pa.string())), st.lists(st.none() | st.lists(st.none() | _text, max_size=2), max_size=3)),
    (
        pa.struct([pa.field("a b", pa.int64()), pa.field('"', pa.list_(pa.binary()))]),
        st.fixed_dictionaries(
            {"a b": st.none() | st.integers(0, 9), '"': st.none() | st.lists(st.binary(max_size=2), max_size=2)}
        ),
    ),
    (
        pa.map_(pa.string(), pa.float64()),
        st.lists(st.tuples(_text, st.none() | st.floats()), max_size=3, unique_by=itemgetter(0)),
    ),
    (
        pa.map_(pa.int16(), pa.struct([pa.field("x", pa.date32())])),
        st.lists(
            st.tuples(st.integers(-9, 9), st.none() | st.fixed_dictionaries({"x": st.none() | st.dates()})),
            max_size=3,
            unique_by=itemgetter(0),
        ),
    ),
    (
        pa.list_(pa.map_(pa.large_string(), pa.decimal128(4, 1))),
        st.lists(
            st.none() | st.lists(st.tuples(_text, st.none() | _decimals(4, 1)), max_size=2, unique_by=itemgetter(0)),
            max_size=2,
        ),
    ),
]


def columns() -> st.SearchStrategy[tuple[pa.DataType, st.SearchStrategy[Any]]]:
    """A type of a topic, of any depth up to four, with its values."""
    plain = st.sampled_from([each for each in TYPES if not pa.types.is_nested(each[0])])
    return st.recursive(plain, _wrapped, max_leaves=3)


def _wrapped(
    inner: st.SearchStrategy[tuple[pa.DataType, st.SearchStrategy[Any]]],
) -> st.SearchStrategy[tuple[pa.DataType, st.SearchStrategy[Any]]]:
    return st.one_of(
        inner.map(lambda one: (pa.list_(one[0]), st.lists(st.none() | one[1], max_size=2))),
        inner.map(lambda one: (pa.struct([("x", one[0])]), st.fixed_dictionaries({"x": st.none() | one[1]}))),
        inner.map(
            lambda one: (
                pa.map_(pa.string(), one[0]),
                st.lists(st.tuples(_text, st.none() | one[1]), max_size=2, unique_by=itemgetter(0)),
            )
        ),
        inner.map(
            lambda one: (
                pa.map_(pa.int64(), one[0]),
                st.lists(st.tuples(st.integers(-9, 9), st.none() | one[1]), max_size=2, unique_by=itemgetter(0)),
            )
        ),
    )


def bits(value: Any) -> Any:
    """A value of which equality is that of all its bits: NaN equals itself, and 0.0 not -0.0."""
    if isinstance(value, float):
        return "nan" if math.isnan(value) else struct.pack(">d", value)
    if isinstance(value, dict):
        return {name: bits(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [bits(inner) for inner in value]
    return value
