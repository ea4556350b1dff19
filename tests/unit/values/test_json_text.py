"""JSON as text: numbers stay as they were written, and every Python value has one form."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

import pytest

from txnstore.values.json_text import Number, bytes_from_json, parse_json, row_as_json, to_json


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, None),
        (True, True),
        (2**63 - 1, 2**63 - 1),
        (1.5, 1.5),
        (float("nan"), "NaN"),
        (float("inf"), "Infinity"),
        ([float("-inf")], ["-Infinity"]),
        ("é\n", "é\n"),
        (b"text", "text"),
        (b"\xff", {"base64": "/w=="}),
        (Decimal("1.50"), "1.50"),
        (date(2024, 1, 2), "2024-01-02"),
        (datetime(2024, 1, 2, 3, 4, 5, 678000, UTC), "2024-01-02T03:04:05.678000Z"),
        (datetime(2024, 1, 2, 3, tzinfo=timezone(timedelta(hours=2))), "2024-01-02T01:00:00Z"),
        (datetime(2024, 1, 2, 3), "2024-01-02T03:00:00"),  # noqa: DTZ001 - a time without a zone is what is tested
        (timedelta(minutes=1), 60.0),
        ([(b"a", None)], [["a", None]]),
        ({"a": {1: b"b"}}, {"a": {"1": "b"}}),
    ],
)
def test_every_value_has_one_form_in_json(value: Any, expected: Any) -> None:
    text = to_json(value)
    assert json.loads(text) == expected
    assert "\n" not in text


def test_numbers_are_parsed_as_they_were_written() -> None:
    text = '{"a": 1.10, "b": [12345678901234567.89, 1e400], "c": 10000000000000000000000, "d": -0, "e": 7}'
    row = parse_json(text)
    assert row == {"a": "1.10", "b": ["12345678901234567.89", "1e400"], "c": 10**22, "d": "-0", "e": 7}
    assert all(type(number) is Number for number in (row["a"], *row["b"], row["d"]))
    assert bytes_from_json(row) == text.replace(" ", "").encode()
    assert parse_json("[1.5]", exact=False) == [1.5]


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, None),
        ("a", b"a"),
        (7, b"7"),
        (True, b"true"),
        (Number("12345678901234567.89"), b"12345678901234567.89"),
        ({"base64": "AAE="}, b"\x00\x01"),
        ({"a": [1, "\u00fc\n"]}, b'{"a":[1,"\xc3\xbc\\n"]}'),
        ({"base64": "AAE=", "b": 1}, b'{"base64":"AAE=","b":1}'),
        ({"base64": 1}, b'{"base64":1}'),
    ],
)
def test_keys_and_values_in_json_are_text_base64_or_json(value: Any, expected: bytes | None) -> None:
    assert bytes_from_json(value) == expected


def test_maps_of_arrow_are_objects_or_lists_of_entries() -> None:
    row = {
        "m": [("a", 1)],
        "n": [(1, [("b", None)])],
        "twice": [("a", 1), ("a", 2)],
        "l": [1],
        "none": [],
        "null": None,
    }
    assert row_as_json(row) == {
        "m": {"a": 1},
        "n": [{"key": 1, "value": {"b": None}}],
        "twice": [{"key": "a", "value": 1}, {"key": "a", "value": 2}],
        "l": [1],
        "none": [],
        "null": None,
    }


def test_a_name_that_occurs_twice_among_many_is_found_in_one_pass() -> None:
    """A record of a client: a comparison of each name with each other one held a thread of the gateway for minutes."""
    names = ",".join(f'"{number}":0' for number in range(100_000))
    with pytest.raises(ValueError, match="the name '99999' occurs twice in an object"):
        parse_json(f'{{{names},"99999":1}}')
