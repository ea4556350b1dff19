"""The check of the values of a record: what is taken as it is, and the size that counts for batches and limits."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pyarrow as pa
import pytest

from txnstore.producer.records import value_check

NOON, NOON_UTC = dt.datetime(1970, 1, 1, 12), dt.datetime(1970, 1, 1, 12, tzinfo=dt.UTC)  # noqa: DTZ001 - a column without a zone
TAKEN = [
    (pa.bool_(), True, True, 1),
    (pa.int8(), -128, -128, 1),
    (pa.int16(), 2**15 - 1, 2**15 - 1, 2),
    (pa.int32(), -(2**31), -(2**31), 4),
    (pa.int64(), 2**63 - 1, 2**63 - 1, 8),
    (pa.uint8(), 0, 0, 1),
    (pa.uint64(), 2**64 - 1, 2**64 - 1, 8),
    (pa.float64(), 1.5, 1.5, 8),
    (pa.string(), "ab", "ab", 10),
    (pa.binary(), b"abc", b"abc", 11),
    (pa.date32(), dt.date(2026, 1, 1), dt.date(2026, 1, 1), 4),
    (pa.timestamp("ms"), NOON, 43_200_000, 8),
    (pa.timestamp("us", "UTC"), NOON_UTC, 43_200_000_000, 8),
]
LEFT_TO_THE_CONVERSION = [
    (pa.bool_(), 1),
    (pa.int8(), True),
    (pa.int8(), 128),
    (pa.int8(), -129),
    (pa.uint8(), -1),
    (pa.float64(), 1),
    (pa.string(), b"a"),
    (pa.binary(), "a"),
    (pa.date32(), NOON),
    (pa.timestamp("ms"), NOON_UTC),
    (pa.timestamp("us", "UTC"), NOON),
    (pa.timestamp("ms"), NOON - dt.timedelta(days=1, microseconds=1)),
]


@pytest.mark.parametrize(("kind", "value", "stored", "size"), TAKEN, ids=str)
def test_plain_value_is_taken_with_its_size(kind: pa.DataType, value: Any, stored: Any, size: int) -> None:
    check = value_check(kind, is_time=False)
    assert check is not None
    assert check(value) == (stored, size)


@pytest.mark.parametrize(("kind", "value"), LEFT_TO_THE_CONVERSION, ids=str)
def test_other_value_is_left_to_the_conversion_of_tables(kind: pa.DataType, value: Any) -> None:
    check = value_check(kind, is_time=False)
    assert check is not None
    assert check(value) is None
