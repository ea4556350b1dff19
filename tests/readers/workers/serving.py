"""What the workers share: a request is a line of JSON on stdin, its answer a line on stdout, rows are an Arrow file.

The environment of an engine has pyarrow.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa

#: ``metadata``: the location of a version; ``folder``: that of the table; ``number``: of the version; ``snapshot``: an
#: id, or None for the current one; ``after``: only rows that were appended after this snapshot, or None; ``stream``:
#: the numbers of the versions that a stream reads one after the other, or none; ``where``: a range of rows with
#: ``partition``, ``column``, ``first`` and ``end``, or None for all; ``s3``: ``endpoint_url``, ``key``, ``secret`` and
#: ``region``, or None of a folder; ``out``: the path of the Arrow file. Instead of ``where`` there may be ``filter``, a
#: pickled tree of :mod:`tests.harness.readers.conditions`, or ``sql``; and the names of the ``columns``.
Request = dict[str, Any]


def serve(read: Callable[[Request], Any]) -> None:
    """Answer requests until stdin ends."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # Whatever a library prints goes to stderr.
    print(json.dumps({"ready": True}), file=answers, flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        try:
            table = read(request)
            with pa.OSFile(request["out"], "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
                writer.write_table(table)
            answer = {"rows": table.num_rows}
        except BaseException as error:  # noqa: BLE001 - some engines raise panics, which are no Exception.
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), file=answers, flush=True)


def iceberg_options(request: Request) -> dict[str, str]:
    """The options of the storage under the names of Iceberg's."""
    s3 = request["s3"]
    names = {"endpoint_url": "endpoint", "key": "access-key-id", "secret": "secret-access-key", "region": "region"}
    return {} if s3 is None else {f"s3.{names[name]}": value for name, value in s3.items()}


def condition(request: Request, moment: str) -> str:
    """The condition on rows in SQL.

    Args:
        request: The request.
        moment: How a time in UTC is written, with ``{}`` in the place of its text.
    """
    where = request["where"]
    if where is None:
        return "TRUE"

    def value(number: int) -> str:
        if where["column"] == "_offset":
            return str(number)
        return moment.format(datetime.fromtimestamp(number / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%S.%f"))

    both = f"{where['column']} >= {value(where['first'])} AND {where['column']} < {value(where['end'])}"
    return both if where["partition"] is None else f"_partition_id = {where['partition']} AND {both}"
