"""Reads tables with ClickHouse in this process: chdb."""

from __future__ import annotations

import os
from pathlib import PurePosixPath
from typing import Any

import pyarrow as pa
from chdb.session import Session

from tests.readers.workers.serving import Request, condition, serve

_SETTINGS = (
    "output_format_arrow_string_as_string = 0, output_format_arrow_compression_method = 'none', "
    "use_iceberg_metadata_files_cache = 0, session_timezone = 'UTC'"
)


def main() -> None:
    os.chdir("/")  # It reads files below the current folder only.
    session = Session()

    def read(request: Request) -> Any:
        folder, s3 = request["folder"], request["s3"]
        version = f"metadata/{PurePosixPath(request['metadata']).name}"
        function, arguments = "icebergLocal", f"'{folder.removeprefix('file://')}/'"
        if s3 is not None:
            place = f"{s3['endpoint_url']}/{folder.removeprefix('s3://')}/"
            function, arguments = "icebergS3", f"'{place}', '{s3['key']}', '{s3['secret']}'"
        table = f"{function}({arguments}, SETTINGS iceberg_metadata_file_path = '{version}')"
        settings = _SETTINGS
        where = condition(request, "toDateTime64('{}', 6, 'UTC')")
        if request["snapshot"] is not None:
            settings += f", iceberg_snapshot_id = {request['snapshot']}"
        answer = session.query(f"SELECT * FROM {table} WHERE {where} SETTINGS {settings}", "Arrow")
        return pa.ipc.open_file(answer.bytes()).read_all()

    serve(read)


if __name__ == "__main__":
    main()
