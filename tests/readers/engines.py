"""The engines, each a process with an environment of its own, which reads one table after the other."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any

import pyarrow as pa

from tests.readers.checks import Read, Reader
from tests.readers.compare import EXACT, Manner, Row

_ROOT = Path(__file__).parents[2]


class EngineError(Exception):
    """What an engine says of a table that it does not read."""


@dataclass(frozen=True)
class Engine:
    """An engine.

    Attributes:
        name: Its name, which its folder and its worker have.
        manner: What it cannot represent, and where it is known to be wrong.
        kinds: What it can read, of :attr:`tests.readers.checks.Read.kind`.
    """

    name: str
    manner: Manner = EXACT
    kinds: frozenset[str] = frozenset({"snapshots", "ranges"})


ENGINES = {
    engine.name: engine
    for engine in (
        # https://github.com/apache/iceberg-python/issues/3833
        Engine(
            "pyiceberg",
            Manner(frozenset({"list of struct", "map of struct"})),
            frozenset({"snapshots", "ranges", "increments"}),
        ),
        Engine("duckdb"),
        # ClickHouse has no null of a list, a map or a tuple.
        Engine("chdb", Manner(frozenset({"list", "map", "struct"}))),
        Engine("polars"),
        # https://github.com/apache/iceberg/issues/18173
        Engine("spark", Manner(misses_late_times=True), frozenset({"snapshots", "ranges", "increments", "streams"})),
    )
}


class Worker:
    """A running engine.

    Args:
        process: Its process.
        out: The path of the Arrow file that it writes.
    """

    def __init__(self, process: subprocess.Popen[str], out: Path) -> None:
        self._process, self._out = process, out

    def reader(self, options: Mapping[str, Any] | None) -> Reader:
        """What reads tables of a store; ``options`` are those of its storage, None for a folder."""
        s3 = None
        if options is not None:
            region = options["client_kwargs"]["region_name"]
            s3 = {**{name: options[name] for name in ("endpoint_url", "key", "secret")}, "region": region}
        return lambda read: self.read(read, s3)

    def read(self, read: Read, s3: Mapping[str, str] | None = None) -> list[Row]:
        """The rows of a table.

        Args:
            read: What is read.
            s3: ``endpoint_url``, ``key``, ``secret`` and ``region``; None for a folder.

        Raises:
            EngineError: The engine refuses, or its process has ended.
        """
        request = {
            "metadata": read.metadata,
            "folder": read.metadata.rpartition("/metadata/")[0],
            "number": read.number,
            "snapshot": read.snapshot_id,
            "after": read.after,
            "stream": read.stream,
            "where": None if read.where is None else asdict(read.where),
            "s3": s3,
        }
        return self.ask(request)

    def execute(self, warehouse: str, statement: str) -> list[Row]:
        """The rows that a statement returns, which may write.

        Args:
            warehouse: The URL of a store.
            statement: The statement; ``{catalog}`` is the catalog of the store.

        Raises:
            EngineError: The engine refuses, or its process has ended.
        """
        return self.ask({"warehouse": warehouse, "statement": statement})

    def ask(self, request: Mapping[str, Any]) -> list[Row]:
        """Send a request, and read the rows that answer it."""
        _pipe(self._process.stdin).write(f"{json.dumps({**request, 'out': str(self._out)})}\n")
        _pipe(self._process.stdin).flush()
        answer = self.answer()
        if "error" in answer:
            raise EngineError(answer["error"])
        with pa.OSFile(str(self._out), "rb") as file:
            rows: list[Row] = pa.ipc.open_file(file).read_all().to_pylist()
        return rows

    def answer(self) -> dict[str, Any]:
        line = _pipe(self._process.stdout).readline()
        if not line:
            raise EngineError(f"the process has ended with status {self._process.wait()}")
        answer: dict[str, Any] = json.loads(line)
        return answer


def _environment(python: Path) -> dict[str, str]:
    """That of an engine, without what leads to this environment."""
    kept = {
        name: value for name, value in os.environ.items() if name not in {"PYTHONPATH", "VIRTUAL_ENV", "SPARK_HOME"}
    }
    ours = str(python.absolute())
    return {
        **kept,
        "PYTHONPATH": str(_ROOT),
        "PYSPARK_PYTHON": ours,
        "PYSPARK_DRIVER_PYTHON": ours,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "TZ": "UTC",
    }


def _pipe(pipe: IO[str] | None) -> IO[str]:
    assert pipe is not None
    return pipe


@contextmanager
def running(
    engine: Engine, environments: Path, folder: Path, arguments: Sequence[str] = (), does: str = "read"
) -> Iterator[Worker]:
    """Start an engine, and end it.

    Args:
        engine: The engine.
        environments: A folder with an environment for each engine, of its name.
        folder: Where its log and its answers are.
        arguments: Those of its worker.
        does: ``read``, or ``write`` for one that executes statements.
    """
    python = environments / engine.name / "bin" / "python"
    module = f"tests.readers.workers.{does}_{engine.name}"
    with (folder / f"{engine.name}.log").open("w") as log:
        process = subprocess.Popen(
            [str(python.absolute()), "-m", module, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            env=_environment(python),
        )
        try:
            worker = Worker(process, folder / f"{engine.name}.arrow")
            worker.answer()
            yield worker
        finally:
            _pipe(process.stdin).close()
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            _pipe(process.stdout).close()
