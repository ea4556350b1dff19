"""The files of a table as its manifests describe them. Offsets are those of the log, times are in ms."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class DataFile:
    """A Parquet file with rows of one partition, in offset order.

    Attributes:
        path: The absolute location.
        first: An offset that is not above that of the first row.
        last: An offset that is not below that of the last row.
        rows: The number of rows, deleted ones included.
        size: The size in bytes.
        oldest: A time that is not after that of any row.
        newest: A time that is not before that of any row.
    """

    path: str
    partition: int
    first: int
    last: int
    rows: int
    size: int
    oldest: int
    newest: int


@dataclass(frozen=True, slots=True)
class DeleteFile:
    """A Parquet file with the positions of the first rows of one data file, which are deleted.

    Attributes:
        path: The absolute location.
        data_path: The location of the data file.
        rows: The number of deleted rows.
        size: The size in bytes.
    """

    path: str
    partition: int
    data_path: str
    rows: int
    size: int


@dataclass(frozen=True, slots=True)
class TableFiles:
    """The live files of a table: data files by location, and delete files by the location of their data file."""

    data: dict[str, DataFile]
    deletes: dict[str, DeleteFile]

    @property
    def rows(self) -> int:
        """The number of rows that readers see."""
        return sum(file.rows for file in self.data.values()) - sum(file.rows for file in self.deletes.values())

    @property
    def size(self) -> int:
        """The size of all files in bytes."""
        return sum(file.size for file in self.data.values()) + sum(file.size for file in self.deletes.values())
