"""Maps with equal keys: Arrow stores them, and DuckDB then refuses the column of the whole topic."""

from __future__ import annotations

import datetime as dt
import random
from decimal import Decimal
from typing import Any

import duckdb
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from txnstore.errors import SchemaMismatchError
from txnstore.segment.convert import normalize
from txnstore.values.maps import WrongKey, _wrong_key_index, first_wrong_key

PLAIN = pa.map_(pa.string(), pa.int64())
NESTED = pa.list_(pa.struct([("inner", pa.map_(pa.int16(), PLAIN))]))


def schema(kind: pa.DataType) -> pa.Schema:
    return pa.schema([("n", pa.int64()), ("m", kind)])


GOOD = [[("a", 1), ("b", 2)], None, [], [("a", 1)]]
TWICE = [("a", 1), ("b", 2), ("a", 3)]


@pytest.mark.parametrize("how", ["rows", "table", "cast", "pandas", "chunks", "slice", "stream"])
def test_equal_keys_are_refused_and_named(how: str) -> None:
    rows = [{"n": number, "m": value} for number, value in enumerate([*GOOD, TWICE])]
    table = pa.table({"n": [1] * 5, "m": pa.array([*GOOD, TWICE], PLAIN)})
    data: Any = {
        "rows": rows,
        "table": table,
        "cast": table.select(["m"]).cast(pa.schema([("m", pa.map_(pa.string(), pa.int8()))])),
        "pandas": pd.DataFrame(rows),
        "chunks": pa.concat_tables([table[:2], table[2:]]),
        "slice": pa.concat_tables([table, table])[5:],
        "stream": pa.RecordBatchReader.from_batches(table.schema, table.to_batches()),
    }[how]
    with pytest.raises(SchemaMismatchError, match=r"column 'm' has a map with the key 'a' twice in row 4"):
        normalize(data, schema(PLAIN))


@pytest.mark.parametrize("rows", [[0, 1], [2], [3, 1], [1]])
def test_equal_keys_of_different_maps_are_allowed(rows: list[int]) -> None:
    table = pa.table({"n": rows, "m": pa.array([*GOOD, TWICE], PLAIN).take(rows)})
    assert normalize(table, schema(PLAIN)).equals(table)
    assert normalize(pa.table({"n": [1] * 5, "m": pa.array([*GOOD, TWICE], PLAIN)})[:4], schema(PLAIN)).num_rows == 4


def test_maps_inside_of_other_values_are_checked() -> None:
    good = [{"inner": [(1, [("x", 1)]), (2, [("x", 1)])]}, None, {"inner": None}]
    wrong: dict[str, Any]
    for wrong in ({"inner": [(1, []), (1, [])]}, {"inner": [(1, [("x", 1), ("x", 1)])]}):
        values = pa.array([good, None, [], [*good, wrong]], NESTED)
        with pytest.raises(SchemaMismatchError, match=r"column 'm' has a map with the key .* twice in row 3"):
            normalize(pa.table({"m": values}), schema(NESTED))
        assert first_wrong_key(values[:3]) is None
        assert first_wrong_key(values[3:]) is not None
    struct = pa.map_(pa.struct([("a", pa.int64())]), pa.int64())
    assert first_wrong_key(pa.array([[({"a": 1}, 1), ({"a": 2}, 1)]], struct)) is None
    assert first_wrong_key(pa.array([[({"a": 1}, 1), ({"a": 1}, 1)]], struct)) is not None


def test_what_a_null_hides_is_no_value() -> None:
    keys, items = pa.array(["a", "a", "b"]), pa.array([1, 2, 3])
    hidden = pa.MapArray.from_arrays(pa.array([0, 2, 3], pa.int32()), keys, items, mask=pa.array([True, False]))
    assert first_wrong_key(hidden) is None
    assert first_wrong_key(pa.MapArray.from_arrays([0, 2, 3], keys, items)) == (0, "a")


def test_a_null_key_is_wrong() -> None:
    """PyArrow makes no such map, but takes one from the memory of another library without a look."""
    assert _wrong_key_index(pa.array(["a", "a", None]), np.array([0, 1, 1])) == 2
    assert _wrong_key_index(pa.array(["a", "a", "b"]), np.array([0, 1, 1])) is None
    assert str(WrongKey(0, None)) == "a map with a null key"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (pa.bool_(), [True, False]),
        (pa.int8(), [0, -1, 5]),
        (pa.int64(), [2**62, 0]),
        (pa.float32(), [0.0, -0.0, float("nan"), 1.5]),
        (pa.float64(), [0.0, -0.0, float("nan"), float("inf")]),
        (pa.string(), ["", "a", "A", "ä"]),
        (pa.large_string(), ["", "a"]),
        (pa.binary(), [b"", b"\0", b"a"]),
        (pa.binary(2), [b"ab", b"\0\0"]),
        (pa.date32(), [dt.date(1970, 1, 1), dt.date(2, 1, 1)]),
        (pa.timestamp("us", "UTC"), [dt.datetime(1970, 1, 1, tzinfo=dt.UTC), dt.datetime(2026, 1, 1, tzinfo=dt.UTC)]),
        (pa.decimal128(5, 2), [Decimal("1.00"), Decimal("-1.00"), Decimal("0.00")]),
        (pa.list_(pa.int64()), [[1], [1, 2], []]),
    ],
    ids=str,
)
def test_what_is_accepted_is_what_duckdb_reads(kind: pa.DataType, values: list[Any]) -> None:
    rng, refused = random.Random(1), 0
    for _ in range(60):
        column = pa.array([[(rng.choice(values), 1) for _ in range(rng.randrange(4))] for _ in range(2)],
                          pa.map_(kind, pa.int64()))  # fmt: skip
        found, table = first_wrong_key(column), pa.table({"m": column})
        readable = reads(table)
        assert readable == (found is None), column
        refused += not readable
    assert 0 < refused < 60


def reads(table: pa.Table) -> bool:
    """Whether DuckDB reads the maps of a table."""
    with duckdb.connect() as con:
        con.register("rows", table)
        try:
            con.execute("SELECT m FROM rows").fetchall()
        except duckdb.InvalidInputException:
            return False
    return True
