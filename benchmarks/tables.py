"""Publications of a table beside ``append`` of pyiceberg, of the same rows in the same columns, in turns.

pyiceberg writes the data itself; a commit of txnstore has written it before, and a publication copies what no
compaction has taken. ``python -m tests.harness readers --short`` installs pyiceberg; :data:`PYTHON` is the Python of
its environment.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Self

import pyarrow as pa

import txnstore
from benchmarks.measure import Result, interleaved, median_ms
from txnstore.store import Store

PYTHON = Path(os.environ.get("TXNSTORE_PYICEBERG", "build/readers/pyiceberg/bin/python"))
TOPIC = "orders"
PARTITIONS, ROWS, ROUNDS = 4, 1_000, 60
SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string())])


def run() -> Iterator[Result]:
    """A commit and its publication, a publication alone, and the files that both leave."""
    if not PYTHON.exists():
        install = "python -m tests.harness readers --short"
        msg = f"{PYTHON} is the Python of an environment with pyiceberg: `{install}` installs it"
        raise SystemExit(msg)
    with tempfile.TemporaryDirectory() as temporary, ExitStack() as stack:
        base = Path(temporary)
        store = stack.enter_context(txnstore.create(base / "store"))
        store.create_topic(TOPIC, PARTITIONS, SCHEMA, config={"table.format": "iceberg"})
        append = stack.enter_context(_Pyiceberg(base / "pyiceberg")).append
        _commit(store)
        store.tables.sync()
        append()
        runs: dict[str, Callable[[], object]] = {
            "commit": lambda: _commit(store),
            "publication": store.tables.sync,
            "append": append,
        }
        times = {name: median_ms(taken) for name, taken in interleaved(runs, ROUNDS).items()}
        counts = {name: _files(base / name) for name in ("store/tables", "pyiceberg")}
    detail = ", ".join(f"{name} {each:.1f} ms" for name, each in times.items())
    both = times["commit"] + times["publication"]
    yield Result(
        "table: a commit and its publication / pyiceberg's append",
        both / times["append"],
        1.5,
        at_most=True,
        detail=detail,
    )
    detail = f"{counts['store/tables']} and {counts['pyiceberg']} files"
    ratio = counts["store/tables"] / counts["pyiceberg"]
    yield Result("table: files below tables/ over pyiceberg's", ratio, 1.5, at_most=True, detail=detail)


def _commit(store: Store) -> None:
    with store.producer("writer") as producer, producer.transaction():
        for partition in range(PARTITIONS):
            rows = {"id": range(ROWS), "name": [f"name {number}" for number in range(ROWS)]}
            producer.send_table(TOPIC, pa.table(rows, SCHEMA), partition)


def _files(folder: Path) -> int:
    return sum(path.is_file() for path in folder.rglob("*"))


class _Pyiceberg:
    """pyiceberg in a process of its own: a table in a folder, with SQLite as its catalog."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        script = Path(__file__).with_name("tables_pyiceberg.py")
        self._process = subprocess.Popen(
            [PYTHON, script, folder, str(PARTITIONS), str(ROWS)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self._process.communicate()

    def append(self) -> None:
        """Append the rows of a commit."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        if self._process.stdout.readline() != "appended\n":
            msg = f"pyiceberg ended with status {self._process.wait()}"
            raise RuntimeError(msg)
