"""Reads tables with pyiceberg."""

from __future__ import annotations

from typing import Any

from pyiceberg.table import StaticTable

from tests.readers.workers.serving import Request, condition, iceberg_options, serve


def read(request: Request) -> Any:
    table = StaticTable.from_metadata(request["metadata"], iceberg_options(request))
    if request["after"] is not None:
        return table.incremental_append_scan(from_snapshot_id_exclusive=request["after"]).to_arrow()
    where = condition(request, "'{}+00:00'").replace("TRUE", "true")
    return table.scan(row_filter=where, snapshot_id=request["snapshot"]).to_arrow()


if __name__ == "__main__":
    serve(read)
