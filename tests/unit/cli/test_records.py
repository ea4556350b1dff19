"""Lines and files become records; what is wrong with them names the line."""

from __future__ import annotations

import io
import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from txnstore.cli.context import CommandError
from txnstore.cli.records import InputFormat, pieces_of_file, pieces_of_stream

TYPED = pa.schema([pa.field("id", pa.int64(), nullable=False), ("name", pa.string())])
TEXT = InputFormat(None, as_json=False)
JSON = InputFormat(None, as_json=True)


def _rows(data: bytes, reading: InputFormat) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for piece in pieces_of_stream(io.BytesIO(data), "input", reading):
        rows += piece.records if isinstance(piece.records, list) else piece.records.to_pylist()
    return rows


class _Trickle(io.BytesIO):
    """A stream that gives three bytes at a time, as a slow pipe may."""

    def read(self, size: int | None = -1, /) -> bytes:
        return super().read(3)


@pytest.mark.parametrize(
    ("data", "values"),
    [
        (b"", []),
        (b"a", [b"a"]),
        (b"a\n", [b"a"]),
        (b"a\n\nb\n", [b"a", b"", b"b"]),
        (b"a\r\n\r\nb\rc\r\r\nd\r", [b"a", b"", b"b\rc\r", b"d"]),
        (b"long line\nx\n\xff\n", [b"long line", b"x", b"\xff"]),
    ],
)
def test_text_line_is_a_value_without_its_line_end(data: bytes, values: list[bytes]) -> None:
    assert [row["value"] for row in _rows(data, TEXT)] == values
    pieces = [piece.records for piece in pieces_of_stream(_Trickle(data), "input", TEXT)]
    assert [value for rows in pieces if isinstance(rows, pa.Table) for value in rows["value"].to_pylist()] == values


def test_key_precedes_the_first_separator() -> None:
    rows = _rows(b"k=v=w\n=x\n", InputFormat(None, as_json=False, key_separator="="))
    assert [(row["key"], row["value"]) for row in rows] == [(b"k", b"v=w"), (b"", b"x")]


def test_document_is_an_unchanged_value_with_its_key_field() -> None:
    rows = _rows(b'{"id": 7}\n{"id": null}\n{"id": "x"}\n', InputFormat(None, as_json=True, key_field="id"))
    assert rows == [
        {"key": b"7", "value": b'{"id": 7}'},
        {"key": None, "value": b'{"id": null}'},
        {"key": b"x", "value": b'{"id": "x"}'},
    ]


def test_a_byte_order_mark_is_not_part_of_a_value() -> None:
    """cli_06: it stayed in the first value of a topic, which is no JSON then."""
    data = b'\xef\xbb\xbf{"id": 1}\r\n{"id": 2}\r\n'
    rows = _rows(data, InputFormat(None, as_json=True, key_field="id"))
    assert [row["value"] for row in rows] == [b'{"id": 1}', b'{"id": 2}']
    assert [row["id"] for row in _rows(data, InputFormat(TYPED, as_json=True))] == [1, 2]


def test_a_number_is_exact_in_keys_values_and_headers() -> None:
    """cli_01."""
    number = "12345678901234567.89"
    line = f'{{"key":{number},"value":{{"a":[{number},1e400,-0.0]}},"headers":[["h",{number}]]}}\n'.encode()
    (row,) = _rows(line, JSON)
    assert (row["key"], row["headers"]) == (number.encode(), [("h", number.encode())])
    assert row["value"] == f'{{"a":[{number},1e400,-0.0]}}'.encode()
    (row,) = _rows(f'{{"id": {number}}}\n'.encode(), InputFormat(None, as_json=True, key_field="id"))
    assert row["key"] == number.encode()


def test_a_record_in_json_is_what_consume_prints() -> None:
    line = (
        b'{"topic":"t","partition":1,"offset":5,"timestamp":9,"key":null,"value":"v",'
        b'"headers":[["h",{"base64":"/w=="}]]}\n\n'
    )
    assert _rows(line, JSON) == [
        {"key": None, "value": b"v", "headers": [("h", b"\xff")], "partition": 1, "timestamp": 9},
    ]


KEYED = InputFormat(None, as_json=True, key_field="b")


@pytest.mark.parametrize(
    ("good", "line", "reading", "message"),
    [
        (b'{"value":"v"}', b"no json", JSON, "not valid JSON"),
        (b'{"value":"v"}', b"[1]", JSON, "expected a JSON object"),
        (b'{"value":"v"}', b'{"key":"k"}', JSON, "it has no 'value'"),
        (b'{"value":"v"}', b'{"value":"v","extra":1}', JSON, "'extra'"),
        (b'{"value":"v"}', b'{"value":"v","headers":{"a":"b"}}', JSON, "headers must be a list of pairs"),
        (b'{"value":"v"}', b'{"value":"v","headers":{}}', JSON, "headers must be a list of pairs"),
        (b'{"value":"v"}', b'{"value":"v","headers":[[null,"b"]]}', JSON, "headers must be a list of pairs"),
        (b'{"value":"v"}', b'{"value":"v","headers":[[1,"b"]]}', JSON, "headers must be a list of pairs"),
        (b'{"value":"v"}', b'{"value":"v","partition":"1"}', JSON, "partition must be a whole number"),
        (b'{"value":"v"}', b'{"value":"v","timestamp":true}', JSON, "timestamp must be a whole number"),
        (b'{"value":"v"}', b'{"value":{"base64":"*"}}', JSON, "base64"),
        (b'{"b":1}', b'{"a":1}', KEYED, "the key field 'b' is missing"),
        (b"a:b", b"none", InputFormat(None, as_json=False, key_separator=":"), "key separator ':' is missing"),
    ],
)
def test_errors_name_the_input_and_the_line(good: bytes, line: bytes, reading: InputFormat, message: str) -> None:
    with pytest.raises(CommandError, match=message) as caught:
        _rows(good + b"\n" + line + b"\n", reading)
    assert str(caught.value).startswith("input, line 2: ")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b'{"id":"x"}', "column 'id': 'x' is not int64"),
        (b'{"id":1,"nam":"x"}', "no column 'nam'"),
        (b'{"name":"x"}', "column 'id' is null or missing"),
        (b'{"id":1}\n\n{"name":"x"}', "column 'id' is null or missing"),
        (b'{"id":1}\n\n{"id":2,"name":1}\n{"id":3,"name":2}', "column 'name': 1 is not string"),
    ],
)
def test_a_row_that_does_not_fit_names_the_column_and_the_line(line: bytes, message: str) -> None:
    with pytest.raises(CommandError, match=message) as caught:
        _rows(line + b"\n", InputFormat(TYPED, as_json=True))
    assert str(caught.value).startswith(f"input, line {3 if line.count(10) else 1}: ")


# Files ----------------------------------------------------------------------------------------------------------------


def _file_rows(path: Path, reading: InputFormat) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for piece in pieces_of_file(path, reading):
        rows += piece.records if isinstance(piece.records, list) else piece.records.to_pylist()
    return rows


def test_a_csv_file_gives_rows_of_the_topics_types(tmp_path: Path) -> None:
    path = tmp_path / "data.csv"
    path.write_text('name,id\n007,1\nNA,2\n,3\n"",4\n"N/A",5\nN/A,6\n')
    names = ["007", "NA", "", "", "N/A", "N/A"]
    for nulls, expected in [
        ((), names),
        (("",), ["007", "NA", None, "", "N/A", "N/A"]),
        (("N/A", "NA"), ["007", None, "", "", "N/A", None]),
    ]:
        rows = _file_rows(path, InputFormat(TYPED, as_json=True, nulls=nulls))
        assert [row["name"] for row in rows] == expected
        assert [row["id"] for row in rows] == [1, 2, 3, 4, 5, 6]


def test_texts_that_look_like_nulls_stay_keys_and_values(tmp_path: Path) -> None:
    """cli_02: they became tombstones."""
    path = tmp_path / "data.csv"
    path.write_text('key,value\nNA,Namibia\nfr,"NA"\nde,"null"\nit,""\nch,\n')
    rows = _file_rows(path, TEXT)
    assert [(row["key"], row["value"]) for row in rows] == [
        (b"NA", b"Namibia"), (b"fr", b"NA"), (b"de", b"null"), (b"it", b""), (b"ch", b""),
    ]  # fmt: skip
    assert [row["value"] for row in _file_rows(path, InputFormat(None, as_json=False, nulls=("",)))][3:] == [b"", None]


@pytest.mark.parametrize(
    "text", ["01234", "9007199254740993", "36893488147419103232", "+49151", "1.10", "NA", "true", ""]
)
def test_a_cell_of_a_document_is_its_text(tmp_path: Path, text: str) -> None:
    """cli_03: types were guessed, so other keys went to other partitions."""
    path = tmp_path / "data.csv"
    path.write_text(f"id,v\n{text},a\n1,2\n")
    rows = _file_rows(path, InputFormat(None, as_json=True, key_field="id"))
    assert rows == [
        {"key": text.encode(), "value": f'{{"id":"{text}","v":"a"}}'.encode()},
        {"key": b"1", "value": b'{"id":"1","v":"2"}'},
    ]


def test_a_cell_is_of_any_size_and_has_line_breaks(tmp_path: Path) -> None:
    """A row that is longer than a block was an error after a part of the file was sent."""
    path = tmp_path / "data.csv"
    cell = "line, with a comma\r\nanother\n\n" * 100_000
    small = "".join(f"{number},x\r\n" for number in range(200_000))
    path.write_bytes(f'\ufeffid,name\r\n{small}7,"{cell}"\r\n\r\n8,"a ""b"""\r\n9,5" pipe\r\n'.encode())
    rows = _file_rows(path, InputFormat(TYPED, as_json=True))
    assert [row["id"] for row in rows] == [*range(200_000), 7, 8, 9]
    assert [row["name"] for row in rows[-3:]] == [cell, 'a "b"', '5" pipe']


@pytest.mark.parametrize("end", ['2,"x', '2,"x\n', '2,"x\n3,y\n', '2,"', '2,"a ""b""', '"', '2,"x\r\n'])
def test_a_csv_file_that_ends_inside_of_quotation_marks_is_refused(tmp_path: Path, end: str) -> None:
    path = tmp_path / "data.csv"
    path.write_bytes(f"key,value\n1,a\n{end}".encode())
    pieces = pieces_of_file(path, TEXT)
    with pytest.raises(CommandError, match=r"data\.csv"):
        next(pieces)  # Before a piece is sent: the rest of the file is in its last cell.


def test_a_row_of_another_number_of_cells_is_named(tmp_path: Path) -> None:
    """By the number that errors of its cells have, also behind many blocks."""
    path = tmp_path / "data.csv"
    rows = 300_000
    path.write_text("key,value\n" + "k,v\n" * rows + "\nk,v,w\n")
    with pytest.raises(CommandError, match=rf"^data\.csv, row {rows + 1}: Expected 2 columns, got 3: k,v,w$"):
        for _ in pieces_of_file(path, TEXT):
            pass


@pytest.mark.parametrize("end", ['2,"x"', '2,"x"\n', '2,""', "2,", '2,x"', '2,"a ""b"""\n', '2,"x\n"\n\n'])
def test_a_csv_file_that_ends_after_quotation_marks_is_read(tmp_path: Path, end: str) -> None:
    path = tmp_path / "data.csv"
    path.write_bytes(f"key,value\n1,a\n{end}".encode())
    assert len(_file_rows(path, TEXT)) == 2


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("x,1", "row 3: column 'id': 'x' is not int64"),
        ("1.0,1", "row 3: column 'id': '1.0' is not int64"),
        (",1", "row 3: column 'id' is null or missing"),
        ("0x1F,1", "row 3: column 'id': '0x1F' is not int64"),
        ("9223372036854775808,1", "row 3: column 'id': 9223372036854775808 is not int64"),
        ("1,\xff", "row 3: column 'name': b'\\xff' is not string: it is not UTF-8"),
    ],
)
def test_a_cell_that_does_not_fit_names_its_row_and_column(tmp_path: Path, row: str, message: str) -> None:
    path = tmp_path / "data.csv"
    path.write_bytes(f"id,name\n1,a\n2,b\n{row}\n".encode("latin-1"))
    with pytest.raises(CommandError) as caught:
        _file_rows(path, InputFormat(TYPED, as_json=True))
    assert str(caught.value).startswith(f"data.csv, {message}")


@pytest.mark.parametrize(
    ("kind", "cell"),
    [
        (pa.float32(), "1e400"),
        (pa.float32(), "16777217"),
        (pa.float32(), "3.4028236e38"),
        (pa.float64(), "1e400"),
        (pa.float64(), "9007199254740993"),
        (pa.float64(), "1,5"),
        (pa.float64(), "0x1F"),
        (pa.decimal128(5, 2), "1000"),
        (pa.decimal128(5, 2), "1.555"),
        (pa.decimal128(5, 2), "1e3"),
        (pa.decimal128(2, 2), "1"),
        (pa.date32(), "31.01.2026"),
        (pa.date32(), "0000-12-31"),
        (pa.timestamp("ms", "UTC"), "2026-01-31 12:00"),
        (pa.timestamp("ms", "UTC"), "20260131"),
        (pa.timestamp("us"), "2026-01-31T12:00:00Z"),
        (pa.bool_(), "yes"),
        (pa.list_(pa.int8()), "[300]"),
        (pa.binary(2), "x"),
    ],
    ids=str,
)
def test_a_cell_is_never_changed(tmp_path: Path, kind: pa.DataType, cell: str) -> None:
    path = tmp_path / "data.csv"
    path.write_text(f'n,c\n1,\n2,"{cell}"\n')
    schema = pa.schema([("n", pa.int8()), ("c", kind)])
    with pytest.raises(CommandError, match=r"data\.csv, row 2: column 'c': .* is not "):
        _file_rows(path, InputFormat(schema, as_json=True, nulls=("",)))


@pytest.mark.parametrize("separator", [";", "\t", "|"])
def test_a_csv_file_with_another_separator_is_refused_and_its_separator_named(tmp_path: Path, separator: str) -> None:
    """Also for Kafka records, which would get one document with the whole row for each line."""
    path = tmp_path / "Ann's data.csv"
    path.write_text(f"id{separator}at\n1{separator}2026-01-31\n")
    for reading in (InputFormat(TYPED, as_json=True), InputFormat(None, as_json=True)):
        with pytest.raises(CommandError, match=r"one column, .* separated by .* commas") as caught:
            _file_rows(path, reading)
        assert repr(separator) in str(caught.value)
        assert f"TO '{tmp_path}/Ann''s data.parquet'" in caught.value.advice, "SQL that works in any folder"
    own = pa.schema([(f"id{separator}at", pa.string())])
    assert len(_file_rows(path, InputFormat(own, as_json=True))) == 1


def test_a_title_with_a_semicolon_is_the_name_of_a_column_if_the_first_row_has_none(tmp_path: Path) -> None:
    path = tmp_path / "data.csv"
    path.write_text("note; free text\nfirst\nsecond; and last\n")
    rows = _file_rows(path, InputFormat(None, as_json=True))
    assert [row["value"] for row in rows] == [
        b'{"note; free text":"first"}',
        b'{"note; free text":"second; and last"}',
    ]


def test_a_column_that_occurs_twice_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "data.csv"
    path.write_text("id,id\n1,2\n")
    for reading in (InputFormat(TYPED, as_json=True), InputFormat(None, as_json=True, key_field="id")):
        with pytest.raises(CommandError, match="several of its columns are 'id'"):
            _file_rows(path, reading)


def test_rows_become_documents_for_a_topic_without_schema(tmp_path: Path) -> None:
    path = tmp_path / "data.parquet"
    pq.write_table(pa.table({"id": [1, 2], "name": ["a", None]}), path)
    assert _file_rows(path, InputFormat(None, as_json=True, key_field="id")) == [
        {"key": b"1", "value": b'{"id":1,"name":"a"}'},
        {"key": b"2", "value": b'{"id":2,"name":null}'},
    ]


def test_file_with_a_value_column_gives_records(tmp_path: Path) -> None:
    path = tmp_path / "data.parquet"
    pq.write_table(pa.table({"key": [b"k"], "value": [b"v"]}), path)
    assert _file_rows(path, TEXT) == [{"key": b"k", "value": b"v"}]


@pytest.mark.parametrize("mark", ["", "\ufeff"])
def test_numeric_keys_and_values_stay_unchanged_bytes(tmp_path: Path, mark: str) -> None:
    """With the byte order mark, too, that spreadsheets write."""
    path = tmp_path / "data.csv"
    path.write_text(f"{mark}key,value\n007,1\n,2.50\n")
    assert _file_rows(path, TEXT) == [{"key": b"007", "value": b"1"}, {"key": b"", "value": b"2.50"}]
    lines = tmp_path / "data.jsonl"
    lines.write_text(f'{mark}{{"value": "a"}}\n{{"value": "b"}}\n')
    assert [row["value"] for row in _file_rows(lines, JSON)] == [b"a", b"b"]


def test_file_of_another_format_than_its_suffix_is_refused(tmp_path: Path) -> None:
    parquet, csv = tmp_path / "data.parquet", tmp_path / "data.csv"
    parquet.write_bytes(b"not parquet")
    csv.write_text("id\nx\n")
    with pytest.raises(CommandError, match=r"data\.parquet is not a Parquet file"):
        _file_rows(parquet, TEXT)
    with pytest.raises(CommandError, match=r"data\.csv"):
        _file_rows(csv, InputFormat(TYPED, as_json=True))


def test_missing_key_field_of_a_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "data.csv"
    path.write_text("id\n1\n")
    with pytest.raises(CommandError, match="no column 'key'"):
        _file_rows(path, InputFormat(None, as_json=True, key_field="key"))


@pytest.mark.parametrize(
    "reading", [JSON, InputFormat(TYPED, as_json=True), InputFormat(None, as_json=True, key_field="id")]
)
@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b'{"id": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", "nested too deeply"),
        (b'{"id": NaN}', "NaN is no JSON number"),
        (b'{"id": [-Infinity]}', "-Infinity is no JSON number"),
        (b'{"id": 1, "id": 2}', "'id' occurs twice"),
        (b'{"id": {"a": 1, "b": 2, "a": 1}}', "'a' occurs twice"),
    ],
)
def test_what_is_no_strict_json_is_refused_with_its_line(line: bytes, reason: str, reading: InputFormat) -> None:
    with pytest.raises(CommandError, match=f"input, line 2: .*{re.escape(reason)}"):
        _rows(b"\n" + line, reading)
