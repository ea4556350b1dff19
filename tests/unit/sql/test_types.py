"""Names and types in DuckDB's SQL."""

from __future__ import annotations

import duckdb
import pyarrow as pa
import pytest

from txnstore.catalog.schemas import MAX_DEPTH
from txnstore.errors import UnsupportedFormatError
from txnstore.sql.types import duckdb_type, literal, quote


@pytest.mark.parametrize("name", ["orders", "a.b-c", 'quo"te', "it's", "select"])
def test_names_and_strings_come_back_as_they_are(name: str) -> None:
    with duckdb.connect() as con:
        relation = con.sql(f"SELECT {literal(name)} AS {quote(name)}")
        assert relation.columns == [name]
        assert relation.fetchall() == [(name,)]


@pytest.mark.parametrize(
    ("arrow", "sql"),
    [
        (pa.large_string(), "VARCHAR"),
        (pa.binary(3), "BLOB"),
        (pa.timestamp("ms"), "TIMESTAMP"),
        (pa.timestamp("us", "UTC"), "TIMESTAMP WITH TIME ZONE"),
        (pa.decimal128(38, 4), "DECIMAL(38, 4)"),
        (pa.map_(pa.string(), pa.list_(pa.int8())), "MAP(VARCHAR, TINYINT[])"),
        (pa.struct([('a "b"', pa.float64())]), 'STRUCT("a ""b""" DOUBLE)'),
    ],
)
def test_each_type_of_a_topic_has_one_in_duckdb(arrow: pa.DataType, sql: str) -> None:
    assert duckdb_type(arrow) == sql


def test_a_type_that_no_topic_has_is_refused() -> None:
    with pytest.raises(UnsupportedFormatError, match="duration"):
        duckdb_type(pa.list_(pa.duration("s")))


def test_the_deepest_type_of_a_topic_is_the_deepest_in_duckdb() -> None:
    def nested(levels: int) -> pa.DataType:
        return pa.int64() if levels == 1 else pa.list_(nested(levels - 1))

    assert duckdb_type(nested(MAX_DEPTH)) == f"BIGINT{'[]' * (MAX_DEPTH - 1)}"
    with pytest.raises(UnsupportedFormatError, match=f"more than {MAX_DEPTH} levels deep"):
        duckdb_type(nested(MAX_DEPTH + 1))
