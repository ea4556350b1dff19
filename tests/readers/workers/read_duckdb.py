"""Reads tables with DuckDB; its extensions are packages, so that nothing is downloaded at run time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import duckdb
import duckdb_extension_avro
import duckdb_extension_httpfs
import duckdb_extension_iceberg

from tests.readers.workers.serving import Request, condition, serve


def main() -> None:
    connection = duckdb.connect(config={"threads": 1})
    for package in (duckdb_extension_avro, duckdb_extension_httpfs, duckdb_extension_iceberg):
        [extension] = Path(package.__path__[0]).rglob("*.duckdb_extension")
        connection.execute(f"LOAD '{extension}'")
    connection.execute("SET TimeZone = 'UTC'")

    def read(request: Request) -> Any:
        if request["s3"] is not None:
            connection.execute(_secret(**request["s3"]))
        at = "" if request["snapshot"] is None else f", snapshot_from_id = {request['snapshot']}"
        where = request.get("sql", condition(request, "TIMESTAMPTZ '{}+00'"))
        columns = ", ".join(f'"{name}"' for name in request["columns"]) if "columns" in request else "*"
        query = f"SELECT {columns} FROM iceberg_scan('{request['metadata']}'{at}) WHERE {where}"
        return connection.execute(query).to_arrow_table()

    serve(read)


def _secret(endpoint_url: str, key: str, secret: str, region: str) -> str:
    endpoint = endpoint_url.removeprefix("http://")
    return (
        f"CREATE OR REPLACE SECRET s (TYPE s3, KEY_ID '{key}', SECRET '{secret}', REGION '{region}', "
        f"ENDPOINT '{endpoint}', URL_STYLE 'path', USE_SSL false)"
    )


if __name__ == "__main__":
    main()
