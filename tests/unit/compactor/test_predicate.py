"""What an expression chooses of rows that come in any chunks, by any plan of DuckDB."""

from __future__ import annotations

import random

import pyarrow as pa
import pytest

from txnstore.catalog.topics import new_topic
from txnstore.compactor.erase.predicate import SqlPredicate
from txnstore.errors import InvalidConfigError
from txnstore.runtime import Runtime
from txnstore.segment.schema import RESERVED_FIELDS

#: With so many values DuckDB joins the rows with them, which returns small chunks after later ones.
_MANY = (1, 7, 9, 10, 11, 47, 70, 2_050, 4_000)


def _matches(where: str, table: pa.Table) -> list[bool | None]:
    topic = new_topic(Runtime(), "t", 1, table.schema, None, None, {})
    rows = table
    for field in RESERVED_FIELDS:  # As readers add them.
        rows = rows.append_column(field, pa.nulls(table.num_rows, field.type))
    matches: list[bool | None] = SqlPredicate(topic, where).matches(rows).to_pylist()
    return matches


@pytest.mark.parametrize("name", ["id", "rowid", "RowId", "number", "given", "matched"])
@pytest.mark.parametrize("sizes", [(6, 82), (1, 1, 60, 4_000), (5_000,), (63, 2_048, 1, 2_000)])
def test_each_row_has_its_own_match(sizes: tuple[int, ...], name: str) -> None:
    values = [*range(sum(sizes))]
    random.Random(7).shuffle(values)
    rest = iter(values)
    table = pa.table({name: pa.chunked_array([pa.array([next(rest) for _ in range(size)]) for size in sizes])})
    listed = ", ".join(map(str, _MANY))
    assert _matches(f'"{name}" IN ({listed})', table) == [value in _MANY for value in values]
    assert _matches(f'"{name}" NOT IN ({listed}) OR "{name}" = 7', table) == [
        value not in _MANY or value == 7 for value in values
    ]


def test_an_expression_of_whole_rows_sees_no_number_of_a_row() -> None:
    table = pa.table({"id": pa.chunked_array([[100] * 6, [100] * 82]), "name": ["n"] * 88})
    assert not any(_matches("records::VARCHAR LIKE '%5%' OR records::VARCHAR LIKE '%row%'", table))
    assert all(_matches("records::VARCHAR LIKE '%100%'", table))
    with pytest.raises(InvalidConfigError, match="whole rows, and topic 't' has a column rowid: name the columns"):
        _matches("records::VARCHAR LIKE '%5%'", table.rename_columns(["rowid", "name"]))
