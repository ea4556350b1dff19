"""A data source in Python that only sends what is prepared: what Spark's transport of Arrow data alone takes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition


@dataclass
class File(InputPartition):
    """A file in the format of Arrow IPC, with the types of Spark."""

    path: str


class Prepared(DataSource):
    """Option ``files``: the paths, separated by commas. The schema must be given."""

    @classmethod
    def name(cls) -> str:
        return "prepared"

    def reader(self, schema: object) -> DataSourceReader:
        return _Reader(self.options["files"].split(","))


class _Reader(DataSourceReader):
    def __init__(self, paths: list[str]) -> None:
        self._paths = paths

    def partitions(self) -> list[File]:
        return [File(path) for path in self._paths]

    def read(self, partition: File) -> Iterator[pa.RecordBatch]:  # type: ignore[override]
        with pa.memory_map(partition.path) as source:
            file = pa.ipc.open_file(source)
            yield from map(file.get_batch, range(file.num_record_batches))
