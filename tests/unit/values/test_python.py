"""Arrow values as Python values; what Python has no value for is text that DuckDB reads."""

from __future__ import annotations

import random
from datetime import UTC, date, datetime
from typing import Any

import duckdb
import pyarrow as pa
import pytest

from txnstore.values.json_text import to_json
from txnstore.values.python import python_rows, python_values

_SQL = {
    "timestamp 'infinity'": "infinity",
    "timestamptz '-infinity'": "-infinity",
    "date 'infinity'": "infinity",
    "timestamp_s '-infinity'": "-infinity",
    "timestamp_ns 'infinity'": "infinity",
    "date '0044-03-15 (BC)'": "0044-03-15 (BC)",
    "date '10000-01-01'": "10000-01-01",
    "timestamp '290000-01-01'": "290000-01-01T00:00:00",
    "timestamptz '0044-03-15 (BC) 10:00:00.5+00'": "0044-03-15 (BC) 10:00:00.500000Z",
    "timestamp_ns '2020-01-01 00:00:00.123456789'": "2020-01-01T00:00:00.123456789",
    "timestamp_ns '2020-01-01 00:00:00.123456'": "2020-01-01T00:00:00.123456",
    "timestamptz '2020-01-01 00:00:00+00'": "2020-01-01T00:00:00Z",
    "time '01:02:03.5'": "01:02:03.500000",
    "time '24:00:00'": "24:00:00",
    "time_ns '01:02:03.123456789'": "01:02:03.123456789",
    "interval '1 year 2 months -3 days 04:05:06.789'": "1 year 2 months -3 days 04:05:06.789",
    "interval '-14 months -1 days -04:05:06'": "-1 year -2 months -1 day -04:05:06",
    "interval '24 months'": "2 years",
    "interval '0 days'": "00:00:00",
    "[timestamp '290000-01-01', null]": ["290000-01-01T00:00:00", None],
    "[[date '2020-01-01'], null, []]": [["2020-01-01"], None, []],
    "[date '10000-02-03', null]::date[2]": ["10000-02-03", None],
    "{'a': date 'infinity', 'b': 1}": {"a": "infinity", "b": 1},
    "map {'a': interval '1 day', 'b': null}": {"a": "1 day", "b": None},
    "map {1: 2}": [{"key": 1, "value": 2}],
    "map {}::map(varchar, int)": {},
    "map {}::map(int, int)": [],
    "null::map(varchar, int)": None,
    "union_value(day := date '10000-01-01')": "10000-01-01",
    "'a'::enum('a', 'b')": "a",
    "170141183460469231731687303715884105727::hugeint": "170141183460469231731687303715884105727",
    "'nan'::double": "NaN",
    "[-'inf'::float]": ["-Infinity"],
    "'\\xff'::blob": {"base64": "/w=="},
}


@pytest.mark.parametrize(("expression", "expected"), _SQL.items(), ids=_SQL)
def test_every_value_of_duckdb_has_a_form_in_json(expression: str, expected: Any) -> None:
    with duckdb.connect() as connection:
        connection.execute("set timezone = 'UTC'")
        table = connection.sql(f"select {expression} as x from range(2) union all select null").to_arrow_table()
    shown = [to_json(row) for row in python_rows(table)]
    assert shown == [to_json({"x": expected})] * 2 + ['{"x":null}']
    assert [to_json(row) for row in python_rows(table.slice(1))] == shown[1:]


def test_what_python_has_is_a_python_value() -> None:
    moment = datetime(2026, 1, 2, 3, tzinfo=UTC)
    table = pa.table({"t": pa.array([moment], pa.timestamp("ms", "UTC")), "d": pa.array([date.max]), "x": [1.5]})
    assert python_rows(table) == [{"t": moment, "d": date.max, "x": 1.5}]
    assert python_rows(table.to_batches()[0].select([])) == [{}]


@pytest.mark.slow
def test_times_of_all_years_are_those_of_duckdb() -> None:
    draws = random.Random(1)
    days = [draws.randint(-2_000_000, 2_000_000) * draws.choice([1, 300]) for _ in range(300)]
    moments = [draws.randint(-(2**55), 2**62) for _ in range(300)]
    intervals = [
        (draws.randint(-100, 100), draws.randint(-9, 9), draws.randint(-(10**9), 10**9) * draws.choice([1, 10**6]))
        for _ in range(300)
    ]
    with duckdb.connect() as connection:
        connection.execute("set timezone = 'UTC'")

        def ask(query: str, value: Any) -> Any:
            return connection.execute(f"select {query} from (values (?)) t(x)", [value]).fetchall()[0][0]

        for day, shown in zip(days, python_values(pa.array(days, pa.int32()).cast(pa.date32())), strict=True):
            assert str(shown) == ask("(date '1970-01-01' + x::int)::varchar", day)
        shown_moments = python_values(pa.array(moments, pa.timestamp("us", "UTC")))
        for moment, shown in zip(moments, shown_moments, strict=True):
            assert ask("epoch_us(x::timestamptz)", to_json(shown).strip('"')) == moment
        values = [pa.MonthDayNano([months, day, micros * 1_000]) for months, day, micros in intervals]
        for (months, day, micros), shown in zip(intervals, python_values(pa.array(values)), strict=True):
            text = ask(f"(to_months({months}) + to_days({day}) + to_microseconds(x::bigint))::varchar", micros)
            assert shown == text
