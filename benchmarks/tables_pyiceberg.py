"""Appends rows to a table with pyiceberg, once for each line of stdin. Arguments: FOLDER PARTITIONS ROWS."""

from __future__ import annotations

import sys
from datetime import UTC, datetime

import pyarrow as pa
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import IntegerType, LongType, NestedField, StringType, TimestamptzType


def main(folder: str, partitions: int, rows: int) -> None:
    """Serve until stdin ends."""
    catalog = SqlCatalog("benchmark", uri=f"sqlite:///{folder}/catalog.db", warehouse=f"file://{folder}")
    catalog.create_namespace("tables")
    schema = Schema(
        NestedField(1, "_partition_id", IntegerType(), required=False),
        NestedField(2, "_offset", LongType(), required=False),
        NestedField(3, "_timestamp", TimestamptzType(), required=False),
        NestedField(4, "id", LongType(), required=False),
        NestedField(5, "name", StringType(), required=False),
    )
    spec = PartitionSpec(PartitionField(1, 1000, IdentityTransform(), "_partition_id"))
    table = catalog.create_table("tables.orders", schema, partition_spec=spec)
    offset = 0
    for _ in sys.stdin:
        numbers = [number for _ in range(partitions) for number in range(rows)]
        columns = {
            "_partition_id": pa.array([each for each in range(partitions) for _ in range(rows)], pa.int32()),
            "_offset": pa.array([offset + number for number in numbers], pa.int64()),
            "_timestamp": pa.array([datetime.now(UTC)] * len(numbers), pa.timestamp("us", "UTC")),
            "id": pa.array(numbers, pa.int64()),
            "name": pa.array([f"name {number}" for number in numbers]),
        }
        table.append(pa.table(columns))
        offset += rows
        print("appended", flush=True)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
