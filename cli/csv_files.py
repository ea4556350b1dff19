"""Reads CSV files: cells are bytes, and the column of the topic decides what they are."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from txnstore.cli.context import CommandError

if TYPE_CHECKING:
    import pyarrow as pa

#: The bytes of a block, in which the longest row fits, or which is doubled; and the most that Arrow takes.
_BLOCK = 1 << 20
_MAX_BLOCK = (1 << 31) - 1


def csv_batches(path: Path, nulls: tuple[str, ...], advice: str) -> Iterator[tuple[pa.RecordBatch, int]]:
    """The rows of a file in columns of binary, with the bytes read so far.

    Args:
        path: The file.
        nulls: The texts that are null where they are not in quotation marks.
        advice: The advice of errors.

    Raises:
        CommandError: The file is no CSV file.
    """
    import pyarrow as pa

    block, done = _BLOCK, 0
    while True:
        try:
            for batch, position in _from_row(path, block, nulls, done):
                done += batch.num_rows
                yield batch, position
        except pa.ArrowException as error:
            # A row is longer than a block.
            if "straddling" in str(error) and block < _MAX_BLOCK:
                block = min(2 * block, _MAX_BLOCK)
                continue
            raise CommandError(f"{path.name}{_where_and_what(str(error))}", advice) from None
        return


def _where_and_what(error: str) -> str:
    """The end of the message of an error of Arrow, which counts the header as a row."""
    found = re.match(r"CSV parse error: Row #(\d+): ", error)
    return f": {error}" if found is None else f", row {int(found[1]) - 1}: {error[found.end() :]}"


def _from_row(path: Path, block: int, nulls: tuple[str, ...], first: int) -> Iterator[tuple[pa.RecordBatch, int]]:
    """The batches of the rows from a row on."""
    import pyarrow as pa
    from pyarrow import csv

    options = csv.ConvertOptions(
        default_column_type=pa.binary(),
        null_values=list(nulls),
        strings_can_be_null=bool(nulls),
        quoted_strings_can_be_null=False,
    )
    last: pa.RecordBatch | None = None
    with path.open("rb") as stream:
        reader = csv.open_csv(
            stream,
            read_options=csv.ReadOptions(block_size=block, use_threads=False),  # Errors name the row, without threads.
            parse_options=csv.ParseOptions(newlines_in_values=True),
            convert_options=options,
        )
        # The last batch is checked before it is sent.
        for batch in reader:
            skipped = min(first, batch.num_rows)
            first -= skipped
            if skipped < batch.num_rows:
                if last is not None:
                    yield last, stream.tell()
                last = batch.slice(skipped)
        if last is not None:
            _check_end(path, last)
            yield last, path.stat().st_size


def _check_end(path: Path, last: pa.RecordBatch) -> None:
    """Refuse a file that ends inside of quotation marks: Arrow takes the rest of it for the last cell."""
    cell = last.column(last.num_columns - 1)[-1].as_py()
    quoted = b'"' + (cell or b"").replace(b'"', b'""')
    with path.open("rb") as stream:
        end = stream.seek(0, 2)
        stream.seek(max(0, end - len(quoted) - 1))
        tail = stream.read()
    if tail in {between + quoted for between in (b",", b"\n", b"\r")}:
        msg = f"{path.name} ends inside of quotation marks: the last cell begins with {cell[:40]!r}"
        raise CommandError(msg, "Close them, or write a quotation mark that is part of a text twice.")
