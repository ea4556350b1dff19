"""Reads tables with the reader of Polars itself."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import polars as pl

from tests.readers.workers.serving import Request, iceberg_options, serve


def read(request: Request) -> Any:
    table = pl.scan_iceberg(
        request["metadata"],
        snapshot_id=request["snapshot"],
        storage_options=iceberg_options(request),
        reader_override="native",
    )
    if request["where"] is not None:
        table = table.filter(_condition(request["where"]))
    return table.collect().to_arrow()


def _condition(where: dict[str, Any]) -> pl.Expr:
    column = pl.col(where["column"])
    bounds = [
        pl.lit(each)
        if where["column"] == "_offset"
        else pl.lit(datetime.fromtimestamp(each / 1000, UTC), pl.Datetime("us", "UTC"))
        for each in (where["first"], where["end"])
    ]
    both = (column >= bounds[0]) & (column < bounds[1])
    return both if where["partition"] is None else both & (pl.col("_partition_id") == where["partition"])


if __name__ == "__main__":
    serve(read)
