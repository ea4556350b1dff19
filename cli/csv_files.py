"""Reads CSV files: cells are bytes, which the type of the column converts."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from txnstore.cli.context import CommandError

if TYPE_CHECKING:
    import pyarrow as pa

#: The bytes of a block, which is doubled for a longer row; and the most that Arrow takes.
_BLOCK_BYTES = 1 << 20
_MAX_BLOCK_BYTES = (1 << 31) - 1


def csv_batches(path: Path, nulls: tuple[str, ...], advice: str) -> Iterator[tuple[pa.RecordBatch, int]]:
    """Yield the rows of a file in binary columns, with the bytes read so far.

    Args:
        path: The file.
        nulls: The texts that are null where they are not in quotation marks.
        advice: The advice of errors.

    Raises:
        CommandError: The file is no CSV file.
    """
    import pyarrow as pa

    block_bytes, done_rows = _BLOCK_BYTES, 0
    while True:
        try:
            for batch, position in _batches_from_row(path, block_bytes, nulls, done_rows):
                done_rows += batch.num_rows
                yield batch, position
        except pa.ArrowException as error:
            # A row does not fit into a block: read on with larger blocks, from the row after the last yielded one.
            if "straddling" in str(error) and block_bytes < _MAX_BLOCK_BYTES:
                block_bytes = min(2 * block_bytes, _MAX_BLOCK_BYTES)
                continue
            raise CommandError(f"{path.name}{_error_suffix(str(error))}", advice) from None
        return


def _error_suffix(error: str) -> str:
    """The row and text of an error of Arrow, which counts the header as a row."""
    match = re.match(r"CSV parse error: Row #(\d+): ", error)
    return f": {error}" if match is None else f", row {int(match[1]) - 1}: {error[match.end() :]}"


def _batches_from_row(
    path: Path, block_bytes: int, nulls: tuple[str, ...], rows_to_skip: int
) -> Iterator[tuple[pa.RecordBatch, int]]:
    """Yield the batches of a file without its first ``rows_to_skip`` rows."""
    import pyarrow as pa
    from pyarrow import csv

    options = csv.ConvertOptions(
        default_column_type=pa.binary(),
        null_values=list(nulls),
        strings_can_be_null=bool(nulls),
        quoted_strings_can_be_null=False,
    )
    pending: pa.RecordBatch | None = None
    with path.open("rb") as stream:
        reader = csv.open_csv(
            stream,
            read_options=csv.ReadOptions(block_size=block_bytes, use_threads=False),  # So that errors name the row.
            parse_options=csv.ParseOptions(newlines_in_values=True),
            convert_options=options,
        )
        # One batch is held back, because the last one is checked before it is sent.
        for batch in reader:
            skipped_rows = min(rows_to_skip, batch.num_rows)
            rows_to_skip -= skipped_rows
            if skipped_rows < batch.num_rows:
                if pending is not None:
                    yield pending, stream.tell()
                pending = batch.slice(skipped_rows)
        if pending is not None:
            _check_end(path, pending)
            yield pending, path.stat().st_size


def _check_end(path: Path, last_batch: pa.RecordBatch) -> None:
    """Refuse a file that ends inside of quotation marks: Arrow takes the rest of it for the last cell."""
    cell = last_batch.column(last_batch.num_columns - 1)[-1].as_py()
    quoted_cell = b'"' + (cell or b"").replace(b'"', b'""')
    with path.open("rb") as stream:
        file_size = stream.seek(0, 2)
        stream.seek(max(0, file_size - len(quoted_cell) - 1))
        tail = stream.read()
    if tail in {separator + quoted_cell for separator in (b",", b"\n", b"\r")}:
        msg = f"{path.name} ends inside of quotation marks: the last cell begins with {cell[:40]!r}"
        raise CommandError(msg, "Close them, or write a quotation mark that is part of a text twice.")
