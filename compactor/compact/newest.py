"""Finds the newest record of each key with DuckDB, in bounded memory: what does not fit is spilled to a folder."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from txnstore.errors import InvalidConfigError, NoSpaceError
from txnstore.threads import load

#: The rows that are added with one statement, and read with one call.
_ROWS = 1 << 18
#: Fewer are added if they take more than this part of the memory.
_ADDED_PART = 8
_KEY, _OFFSET = "record_key", "place"

Offsets = npt.NDArray[np.int64]


class NewestByKey:
    """The greatest offset of each key. Use it as a context manager: its folder is deleted at the end.

    Args:
        memory: The memory of DuckDB in bytes.
        folder: The folder in which it may create a temporary folder; None: that of the system.
        threads: The threads of DuckDB; None: one per processor.

    Raises:
        NoSpaceError: There is no space left to spill.
        InvalidConfigError: The memory is too small.
    """

    def __init__(self, memory: int, folder: str | None = None, threads: int | None = None) -> None:
        load("duckdb")
        import duckdb

        self._out_of_memory = duckdb.OutOfMemoryException
        #: Arrow reports the errors of a query that DuckDB runs while its result is read.
        self._errors = (duckdb.Error, pa.ArrowException, OSError)
        try:
            self._folder = tempfile.TemporaryDirectory(prefix="txnstore-clean-", dir=folder)
        except OSError as error:
            msg = f"a clean cannot create a folder to spill to: {error}. Set TMPDIR to another folder"
            raise NoSpaceError(msg) from error
        self._memory = memory
        settings: dict[str, str | bool | int | float | list[str]] = {
            "memory_limit": f"{memory}B",
            "temp_directory": self._folder.name,
            "preserve_insertion_order": False,
            "autoinstall_known_extensions": False,
            "autoload_known_extensions": False,
        }
        if threads is not None:
            settings["threads"] = threads
        self._database = duckdb.connect(":memory:", config=settings)
        # In a process without a main file, such as an interactive one, DuckDB draws it on standard output.
        self._execute("SET enable_progress_bar = false")
        self._execute(f"CREATE TABLE seen ({_KEY} BLOB, {_OFFSET} BIGINT)")
        #: The tables that were added and are not in the database yet, and the number and size of their rows.
        self._pending: list[pa.Table] = []
        self._rows = self._bytes = 0
        #: The number of records with a key.
        self.records = 0

    def add(self, keys: pa.ChunkedArray, offsets: pa.ChunkedArray) -> None:
        """Add records; those with a null key are left out."""
        table = pa.table({_KEY: keys.cast(pa.large_binary()), _OFFSET: offsets})
        if keys.null_count:
            table = table.filter(keys.is_valid())
        self._pending.append(table)
        self._rows += table.num_rows
        self._bytes += table.nbytes
        self.records += table.num_rows
        if self._rows >= _ROWS or self._bytes >= self._memory // _ADDED_PART:
            self._store_pending()

    def _store_pending(self) -> None:
        if self._rows:
            table = pa.concat_tables(self._pending)
            self._pending, self._rows, self._bytes = [], 0, 0
            self._execute(f"INSERT INTO seen SELECT {_KEY}, max({_OFFSET}) FROM added GROUP BY {_KEY}", table)

    def count(self) -> int:
        """The number of keys; call it after the last :meth:`add` and before :meth:`offsets`."""
        self._store_pending()
        self._execute(f"CREATE TABLE newest AS SELECT max({_OFFSET}) AS {_OFFSET} FROM seen GROUP BY {_KEY}")
        self._execute("DROP TABLE seen")
        ((keys,),) = self._execute("SELECT count(*) FROM newest")
        return int(keys)

    def offsets(self) -> Iterator[Offsets]:
        """The offsets of the newest records, ascending, in arrays of limited length."""
        query = f"SELECT {_OFFSET} FROM newest ORDER BY {_OFFSET}"
        batches = iter(self._database.sql(query).to_arrow_reader(_ROWS))
        while True:
            try:
                batch = next(batches, None)
            except self._errors as error:
                raise self._clean_error(error) from error
            if batch is None:
                return
            yield batch.column(0).to_numpy()

    def _execute(self, query: str, table: pa.Table | None = None) -> list[Any]:
        try:
            if table is not None:
                self._database.register("added", table)
            return self._database.execute(query).fetchall()
        except self._errors as error:
            raise self._clean_error(error) from error

    def _clean_error(self, error: Exception) -> Exception:
        """The error of a clean that runs out of memory or space."""
        reason = str(error).partition("\n")[0]
        out_of_memory = isinstance(error, self._out_of_memory) or "could not allocate" in reason.lower()
        if out_of_memory and "offload" not in reason:
            msg = f"memory_limit is too small for this clean, which gives {self._memory:,} bytes to DuckDB: {reason}"
            return InvalidConfigError(msg)
        msg = (
            f"a clean cannot spill to {self._folder.name}: {reason}. Free space there, or set TMPDIR to another folder"
        )
        return NoSpaceError(msg)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._database.close()
        self._folder.cleanup()
