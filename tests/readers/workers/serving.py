"""What the workers share: a request is a line of JSON on stdin, its answer a line on stdout, rows are an Arrow file.

The environment of an engine has pyarrow.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from typing import Any

import pyarrow as pa

#: ``metadata``: the location of a version; ``folder``: that of the table; ``number``: of the version; ``snapshot``: an
#: id, or None for the current one; ``out``: the path of the Arrow file.
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
