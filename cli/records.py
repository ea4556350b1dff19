"""Reads the input of ``produce``: text lines, JSON lines, and files.

The input is read in pieces; a piece is a table for ``send_table``, or a list of keyword arguments for ``send``. Lines
are passed on as they arrive, so records of a slow pipe are not delayed until a block is full.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from txnstore.cli.context import CommandError
from txnstore.cli.csv_files import csv_batches
from txnstore.threads import load
from txnstore.values.json_text import bytes_from_json, parse_json, plain, to_json

if TYPE_CHECKING:
    import pyarrow as pa

_BLOCK_BYTES = 1 << 20
_FILE_ROWS = 65_536
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_RECORD_MEMBERS = frozenset({"topic", "partition", "offset", "timestamp", "key", "value", "headers"})


@dataclass(frozen=True, slots=True)
class InputPiece:
    """A piece of the input.

    Attributes:
        records: A table, or keyword arguments for ``send``.
        where: The position in the input, for messages.
        done: The bytes (for a Parquet file the rows) read so far.
    """

    records: list[dict[str, Any]] | pa.Table
    where: str
    done: int

    @property
    def count(self) -> int:
        """The number of records."""
        return self.records.num_rows if hasattr(self.records, "num_rows") else len(self.records)


@dataclass(frozen=True, slots=True)
class InputFormat:
    """The format of the input.

    Attributes:
        schema: The schema of the topic; None for Kafka records.
        as_json: Whether lines are JSON.
        key_field: The field of a document that is the key.
        key_separator: The text between key and value in a line of text.
        nulls: The texts that are null in a CSV file where they are not in quotation marks.
    """

    schema: pa.Schema | None
    as_json: bool
    key_field: str | None = None
    key_separator: str | None = None
    nulls: tuple[str, ...] = ()


def pieces_of_stream(stream: BinaryIO, name: str, input_format: InputFormat) -> Iterator[InputPiece]:
    """Read lines of text or JSON. Errors name the line."""
    line_number, done_bytes = 1, 0
    for lines in _lines(stream):
        done_bytes += sum(map(len, lines)) + len(lines)
        place = f"{name}, line {line_number}"
        yield InputPiece(_parse_lines(lines, name, line_number, input_format), place, done_bytes)
        line_number += len(lines)


def _lines(stream: BinaryIO) -> Iterator[list[bytes]]:
    """Yield the complete lines that are available, without line ends: LF, or CRLF as Windows writes it.

    Kafka's console producer reads lines the same way (``BufferedReader.readLine``).
    """
    read_block = stream.read1 if isinstance(stream, io.BufferedReader) else stream.read
    unfinished_line: list[bytes] = []
    while data := read_block(_BLOCK_BYTES):
        *lines, last_part = data.split(b"\n")
        if lines:
            lines[0] = b"".join([*unfinished_line, lines[0]])
            unfinished_line = []
            yield [line.removesuffix(b"\r") for line in lines]
        if last_part:
            unfinished_line.append(last_part)
    if unfinished_line:
        yield [b"".join(unfinished_line).removesuffix(b"\r")]


def _parse_lines(
    lines: list[bytes], name: str, first_number: int, input_format: InputFormat
) -> list[dict[str, Any]] | pa.Table:
    """Parse lines of text or JSON as records, or as rows of the schema; an error names the line."""
    import pyarrow as pa

    if not input_format.as_json:
        keys: list[bytes | None] = [None] * len(lines)
        if input_format.key_separator is not None:
            keys, lines = _split_keys(lines, name, first_number, input_format.key_separator.encode())
        load("pandas")  # pa.array imports it, if it is installed, and its import may lose an interrupt.
        return pa.table({"key": pa.array(keys, pa.binary()), "value": pa.array(lines, pa.binary())})
    documents: dict[int, dict[str, Any]] = {}
    for number, line in enumerate(lines, first_number):
        if not line.strip():
            continue
        try:
            documents[number] = _parse_line(line.removeprefix(_BYTE_ORDER_MARK), input_format)
        except ValueError as error:
            raise _input_error(f"{name}, line {number}", error) from None
    if input_format.schema is None:
        return list(documents.values())
    return _rows_to_table(documents, name, input_format.schema)


#: The advice for input that cannot be sent.
ADVICE = "Correct the input, without what was sent; with --transactional-id all of it is sent, or nothing."


def _input_error(place: str, reason: object) -> CommandError:
    return CommandError(f"{place}: {reason}", ADVICE)


def _rows_to_table(rows: Mapping[int, dict[str, Any]], name: str, schema: pa.Schema) -> pa.Table:
    """Convert rows, by the numbers of their lines, to a table of the topic's schema."""
    import pyarrow as pa

    from txnstore.values.columns import columns_of

    errors: dict[int, str] = {}
    columns = columns_of(list(rows.values()), schema, errors, text=True)
    for row, number in enumerate(rows):
        if row in errors:
            raise _input_error(f"{name}, line {number}", errors[row])
    return pa.Table.from_arrays(columns, schema=schema)


def _split_keys(
    lines: list[bytes], name: str, first_number: int, separator: bytes
) -> tuple[list[bytes | None], list[bytes]]:
    """Split lines into keys and values; the error of a line without separator names the line."""
    keys: list[bytes | None] = []
    values = []
    for number, line in enumerate(lines, first_number):
        key, found_separator, value = line.partition(separator)
        if not found_separator:
            msg = f"{name}, line {number}: the key separator {separator.decode()!r} is missing"
            raise CommandError(msg, ADVICE)
        keys.append(key)
        values.append(value)
    return keys, values


def _parse_line(line: bytes, input_format: InputFormat) -> dict[str, Any]:
    """Parse a line of JSON: a row, a document with its key, or a record as ``consume --json`` prints it."""
    try:
        document = parse_json(line.decode())
    except ValueError as error:
        msg = f"not valid JSON ({error})"
        raise ValueError(msg) from None
    if not isinstance(document, dict):
        msg = f"expected a JSON object, not {str(line[:40], 'utf-8', 'replace')!r}"
        raise ValueError(msg)
    if input_format.schema is not None:
        return _check_members(document, input_format.schema.names)
    if input_format.key_field is not None:
        return {"key": _key_of_document(document, input_format.key_field), "value": line}
    return _parse_record(document)


def _check_members(document: dict[str, Any], names: list[str]) -> dict[str, Any]:
    if unknown_names := [repr(name) for name in document if name not in names]:
        msg = f"the topic has no column {', '.join(unknown_names)}; it has {', '.join(names)}"
        raise ValueError(msg)
    return document


def _key_of_document(document: Mapping[str, Any], field: str) -> bytes | None:
    if field not in document:
        msg = f"the key field {field!r} is missing"
        raise ValueError(msg)
    return bytes_from_json(document[field])


def _parse_record(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return a record of JSON as arguments of ``send``; refuse members that it does not have."""
    unknown_members = sorted(document.keys() - _RECORD_MEMBERS)
    if unknown_members or "value" not in document:
        problem = f"it has {unknown_members[0]!r}" if unknown_members else "it has no 'value'"
        msg = f"a record has value, key, headers, partition, timestamp, but {problem}; use --key-field for documents"
        raise ValueError(msg)
    headers = [] if document.get("headers") is None else document["headers"]
    if not isinstance(headers, list) or not all(map(_is_header, headers)):
        msg = 'headers must be a list of pairs: [["name","value"]]'
        raise ValueError(msg)
    for member in ("partition", "timestamp"):
        if not isinstance(document.get(member), int | None) or isinstance(document.get(member), bool):
            msg = f"{member} must be a whole number"
            raise ValueError(msg)
    return {
        "key": bytes_from_json(document.get("key")),
        "value": bytes_from_json(document["value"]),
        "headers": [(name, bytes_from_json(value)) for name, value in headers] or None,
        "partition": document.get("partition"),
        "timestamp": document.get("timestamp"),
    }


def _is_header(pair: Any) -> bool:
    return isinstance(pair, list) and len(pair) == 2 and type(pair[0]) is str


# Files ----------------------------------------------------------------------------------------------------------------


def size_of_file(path: Path) -> int:
    """Return the value of :attr:`InputPiece.done` at the end of the file."""
    if path.suffix == ".parquet":
        return int(_open_parquet(path).metadata.num_rows)
    return path.stat().st_size


def pieces_of_file(path: Path, input_format: InputFormat) -> Iterator[InputPiece]:
    """Read a Parquet, CSV or JSON lines file."""
    if path.suffix in (".jsonl", ".ndjson"):
        with path.open("rb") as stream:
            yield from pieces_of_stream(stream, path.name, input_format)
        return
    row = 0
    if path.suffix == ".csv":
        for batch, done_amount in csv_batches(path, input_format.nulls, ADVICE):
            yield InputPiece(_convert_cells(batch, path, row, input_format), f"{path.name}, row {row + 1}", done_amount)
            row += batch.num_rows
        return
    for batch, done_amount in _parquet_batches(path):
        yield InputPiece(_as_records(batch, path.name, input_format), f"{path.name}, row {row + 1}", done_amount)
        row += batch.num_rows


def _open_parquet(path: Path) -> Any:
    """Open a Parquet file, with an error that names the file."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        return pq.ParquetFile(path)
    except pa.ArrowException as error:
        msg = f"{path.name} is not a Parquet file: {error}"
        raise CommandError(msg) from None


def _parquet_batches(path: Path) -> Iterator[tuple[pa.RecordBatch, int]]:
    done_rows = 0
    with _open_parquet(path) as file:
        for batch in file.iter_batches(_FILE_ROWS):
            done_rows += batch.num_rows
            yield batch, done_rows


def _convert_cells(
    cells: pa.RecordBatch, path: Path, first_row: int, input_format: InputFormat
) -> list[dict[str, Any]] | pa.Table:
    """Convert the rows of a CSV file to the types of the topic; documents and other columns stay text."""
    import pyarrow as pa

    from txnstore.segment.schema import RECORD_SCHEMA
    from txnstore.values.columns import column_of_cells

    schema = pa.schema([]) if _are_documents(cells, input_format) else input_format.schema or RECORD_SCHEMA
    if first_row == 0:
        _check_separator(cells, schema, path)
    errors: dict[int, str] = {}
    columns = []
    for column, array in zip(cells.schema.names, cells.columns, strict=True):
        index = schema.get_field_index(column)
        field = pa.field(column, pa.string()) if index < 0 else schema.field(index)
        columns.append(column_of_cells(array, field, errors, milliseconds=schema is RECORD_SCHEMA))
    if errors:
        row = min(errors)
        raise _input_error(f"{path.name}, row {first_row + row + 1}", errors[row])
    return _as_records(pa.RecordBatch.from_arrays(columns, names=cells.schema.names), path.name, input_format)


def _check_separator(cells: pa.RecordBatch, schema: pa.Schema, path: Path) -> None:
    """Refuse a file whose cells are not separated by commas: each row would be one cell."""
    if cells.num_columns != 1 or (header := cells.schema.names[0]) in schema.names:
        return
    first_cell = cells.column(0)[0].as_py() or b""
    separator = next(
        (character for character in ";\t|" if character in header and character.encode() in first_cell), None
    )
    if separator is not None:
        from txnstore.sql.types import literal

        source, parquet = literal(str(path)), literal(str(path.with_suffix(".parquet")))
        raise CommandError(
            f"{path.name} has one column, {header!r}: its cells seem to be separated by {separator!r}; "
            "produce reads commas only",
            f'Send it as Parquet: txnstore sql "COPY (FROM read_csv({source})) TO {parquet}"',
        )


def _are_documents(batch: pa.RecordBatch, input_format: InputFormat) -> bool:
    """Whether rows are documents of a topic without a schema: they have no ``value``, or a key field is given."""
    return input_format.schema is None and (input_format.key_field is not None or "value" not in batch.schema.names)


def _as_records(batch: pa.RecordBatch, name: str, input_format: InputFormat) -> list[dict[str, Any]] | pa.Table:
    """Convert rows for a topic with a schema, records with a column ``value``, or documents."""
    import pyarrow as pa

    from txnstore.values.python import python_rows

    names = batch.schema.names
    if repeated_names := sorted({repr(column) for column in names if names.count(column) > 1}):
        raise _input_error(name, f"several of its columns are {', '.join(repeated_names)}")
    if not _are_documents(batch, input_format):
        return pa.Table.from_batches([batch])  # pa.table would import pandas, if it is installed.
    if input_format.key_field is not None and input_format.key_field not in names:
        msg = f"{name} has no column {input_format.key_field!r} for the key; it has {', '.join(names)}"
        raise CommandError(msg)
    return [
        {
            "key": _key_bytes(row[input_format.key_field]) if input_format.key_field is not None else None,
            "value": to_json(row).encode(),
        }
        for row in python_rows(batch)
    ]


def _key_bytes(value: Any) -> bytes | None:
    """The bytes of a key: bytes and text unchanged, other values as JSON."""
    if value is None or isinstance(value, bytes):
        return value
    json_value = plain(value)
    return json_value.encode() if isinstance(json_value, str) else to_json(value).encode()
