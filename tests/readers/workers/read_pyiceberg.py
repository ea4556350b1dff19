"""Reads tables with pyiceberg."""

from __future__ import annotations

from typing import Any

from pyiceberg.table import StaticTable

from tests.readers.workers.serving import Request, serve


def read(request: Request) -> Any:
    table = StaticTable.from_metadata(request["metadata"])
    return table.scan(snapshot_id=request["snapshot"]).to_arrow()


if __name__ == "__main__":
    serve(read)
