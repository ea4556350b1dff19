"""What is printed of a value of any type is read back to the same bits."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.helpers.arrow_values import TYPES, bits, columns
from txnstore.catalog.schemas import check_schema
from txnstore.cli.records import InputFormat, pieces_of_file
from txnstore.gateway.records.typed import json_rows, rows_from_json
from txnstore.segment.convert import normalize
from txnstore.segment.schema import stored_schema
from txnstore.values.columns import columns_of
from txnstore.values.json_text import parse_json, row_as_json, to_json
from txnstore.values.python import python_rows

_ANY_TYPE = pytest.mark.parametrize(("kind", "values"), TYPES, ids=[str(kind) for kind, _ in TYPES])
FEW = settings(max_examples=30)


def _schema(kind: pa.DataType) -> pa.Schema:
    return pa.schema([pa.field("c", kind)])


def _table(column: list[Any], schema: pa.Schema) -> pa.Table:
    return pa.table([pa.array(column, schema.field(0).type)], schema=schema)


def _read(texts: list[str], schema: pa.Schema) -> pa.Table:
    errors: dict[int, str] = {}
    arrays = columns_of([parse_json(text) for text in texts], schema, errors, text=True)
    assert not errors
    return pa.Table.from_arrays(arrays, schema=schema)


@_ANY_TYPE
def test_json_of_the_command_line(kind: pa.DataType, values: st.SearchStrategy[Any]) -> None:
    schema = _schema(kind)

    @given(st.lists(st.none() | values, max_size=6))
    @FEW
    def check(column: list[Any]) -> None:
        table = _table(column, schema)
        consumed = [to_json(row_as_json(row)) for row in table.to_pylist()]
        queried = [to_json(row) for row in python_rows(table)]
        for texts in (consumed, queried):
            assert all(json.loads(text, parse_constant=pytest.fail) for text in texts)
            assert bits(_read(texts, schema).to_pylist()) == bits(table.to_pylist())

    check()


@_ANY_TYPE
def test_python_values(kind: pa.DataType, values: st.SearchStrategy[Any]) -> None:
    """What a consumer returns can be sent, in lists of rows and in frames of objects."""
    schema = _schema(kind)

    @given(st.lists(st.none() | values, min_size=1, max_size=6))
    @FEW
    def check(column: list[Any]) -> None:
        table = _table(column, schema)
        again = normalize(table.to_pylist(), schema)
        again.validate(full=True)
        assert again.schema == stored_schema(schema)
        assert bits(again.to_pylist()) == bits(table.to_pylist())

    check()


@_ANY_TYPE
def test_frames_of_pandas(kind: pa.DataType, values: st.SearchStrategy[Any]) -> None:
    """As columns, and as an index; with pandas' own types, which have no null beside NaN, and with Arrow's."""
    schema = _schema(kind)

    @given(st.lists(values, min_size=1, max_size=6))
    @FEW
    def check(column: list[Any]) -> None:
        table = _table(column, schema)
        frame = table.to_pandas(types_mapper=pd.ArrowDtype)
        assert bits(normalize(frame, schema).to_pylist()) == bits(table.to_pylist())
        if not pa.types.is_nested(kind):
            assert bits(normalize(frame.set_index("c"), schema).to_pylist()) == bits(table.to_pylist())
            plain = normalize(table.to_pandas(), schema).to_pylist()
            expected = [{"c": None if row["c"] != row["c"] else row["c"]} for row in table.to_pylist()]
            assert bits(plain) == bits(expected)

    check()


@_ANY_TYPE
def test_cells_of_csv_files(kind: pa.DataType, values: st.SearchStrategy[Any], tmp_path: Path) -> None:
    """Python's module writes what JSON has for a value: text as it is, everything else as JSON."""
    schema = _schema(kind)
    path = tmp_path / "data.csv"

    def cell(value: Any) -> bytes:
        if isinstance(value, bytes | str):
            return value if isinstance(value, bytes) else value.encode()
        text = to_json(row_as_json(value))
        return (json.loads(text) if text.startswith('"') else text).encode()

    @given(st.lists(st.none() | values, max_size=6))
    @FEW
    def check(column: list[Any]) -> None:
        table = _table(column, schema)
        cells = [b"" if value is None else b'"' + cell(value).replace(b'"', b'""') + b'"' for value in column]
        path.write_bytes(b"\r\n".join([b"n,c", *(b"%d,%s" % pair for pair in enumerate(cells)), b""]))
        numbered = schema.insert(0, pa.field("n", pa.int64()))
        pieces = [piece.records for piece in pieces_of_file(path, InputFormat(numbered, as_json=True, nulls=("",)))]
        rows = [row for piece in pieces if isinstance(piece, pa.Table) for row in piece.to_pylist()]
        assert bits([row["c"] for row in rows]) == bits(table["c"].to_pylist())

    check()


@pytest.mark.slow
def test_texts_of_csv_files_of_python(tmp_path: Path) -> None:
    path = tmp_path / "data.csv"
    schema = pa.schema([("a", pa.string()), ("b", pa.string())])
    text = st.text(st.characters(exclude_categories=["Cs"]), max_size=9)

    @given(st.lists(st.tuples(text, text), max_size=5), st.sampled_from(["\n", "\r\n"]), st.booleans())
    @settings(max_examples=100)
    def check(rows: list[tuple[str, str]], end: str, mark: bool) -> None:
        written = io.StringIO()
        csv.writer(written, lineterminator=end, quoting=csv.QUOTE_ALL).writerows([("a", "b"), *rows])
        path.write_bytes((("\ufeff" if mark else "") + written.getvalue()).encode())
        read = [piece.records for piece in pieces_of_file(path, InputFormat(schema, as_json=True))]
        assert [(*row.values(),) for piece in read if isinstance(piece, pa.Table) for row in piece.to_pylist()] == rows

    check()


@pytest.mark.slow
@given(st.data())
@settings(max_examples=150)
def test_nested_columns_of_every_way(data: st.DataObject) -> None:
    """The gateway, the command line and Python agree on columns of any depth."""
    kind, values = data.draw(columns())
    schema = _schema(kind)
    check_schema(schema)
    table = _table(data.draw(st.lists(st.none() | values, max_size=4)), schema).slice(data.draw(st.integers(0, 1)))
    expected = bits(table.to_pylist())
    keys, texts = json_rows(table, None)
    assert bits(rows_from_json(texts, keys, schema, None).to_pylist()) == expected
    assert bits(_read([to_json(row) for row in python_rows(table)], schema).to_pylist()) == expected
    assert bits(_read([to_json(row_as_json(row)) for row in table.to_pylist()], schema).to_pylist()) == expected
    assert bits(normalize(table.to_pylist(), schema).to_pylist()) == expected
