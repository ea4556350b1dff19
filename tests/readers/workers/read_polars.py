"""Reads tables with the reader of Polars itself."""

from __future__ import annotations

from typing import Any

import polars as pl

from tests.readers.workers.serving import Request, serve


def read(request: Request) -> Any:
    table = pl.scan_iceberg(request["metadata"], snapshot_id=request["snapshot"], reader_override="native")
    return table.collect().to_arrow()


if __name__ == "__main__":
    serve(read)
