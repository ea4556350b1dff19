"""A clean by key beside DuckDB's own query for the latest record of each key, and the memory of a clean."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import duckdb

from benchmarks.folders import VALUE, fill, records, segments
from benchmarks.measure import Result, interleaved, median_ms
from txnstore.storage.local import LocalStore
from txnstore.store import open_on

SEGMENTS, ROWS, KEYS = 100, 5_000, 150_000
ROUNDS = 3
#: The memory limit in bytes, and how many times as large the partition is.
LIMIT, TIMES = 128 << 20, 4
#: What a clean takes beyond its limit, in bytes, whatever the limit and the partition (docs/howto/compaction.md).
OVERHEAD = 64 << 20
_CONFIG = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0"}

#: Cleans the store of its argument, and prints how many bytes the peak of its memory is above the start. The start
#: is after a clean of the other store, which loads what a clean needs. Linux only: getrusage would give the peak of the
#: parent if that is larger, since a new process begins as a copy of it.
_CHILD = """
import sys
from txnstore.storage.local import LocalStore
from txnstore.store import open_on

def clean(folder):
    with open_on(LocalStore(folder)) as store:
        assert store.compact(memory_limit=int(sys.argv[3])).cleans == 1
    with open("/proc/self/status") as status:
        (peak,) = (line.split()[1] for line in status if line.startswith("VmHWM:"))
    return int(peak) * 1024

print(-clean(sys.argv[1]) + clean(sys.argv[2]))
"""


def run() -> Iterator[Result]:
    """The speed of a clean, and its memory."""
    with tempfile.TemporaryDirectory() as temporary:
        base = Path(temporary)
        folders = [base / f"store-{number}" for number in range(ROUNDS)]
        fill(folders, (records(number, ROWS, KEYS) for number in range(SEGMENTS)), _CONFIG)
        yield _speed(base, folders)
    with tempfile.TemporaryDirectory() as temporary:
        yield _memory(Path(temporary))


def _speed(base: Path, folders: list[Path]) -> Result:
    files, target = segments(folders[0]), base / "latest.parquet"
    following = iter(folders)
    with duckdb.connect() as connection:
        newest = ", ".join(f"max_by({name}, timestamp) AS {name}" for name in ("value", "headers"))
        latest = f"SELECT key, {newest}, max(timestamp) AS timestamp FROM read_parquet({files!r}) GROUP BY key"

        def query() -> None:
            connection.execute(f"COPY ({latest}) TO '{target}' (FORMAT parquet, COMPRESSION zstd, COMPRESSION_LEVEL 1)")

        def clean() -> None:
            with open_on(LocalStore(str(next(following)))) as store:
                assert store.compact().cleans == 1

        times = {
            name: median_ms(taken) for name, taken in interleaved({"clean": clean, "query": query}, ROUNDS).items()
        }
    detail = f"DuckDB {times['query']:.0f} ms, txnstore {times['clean']:.0f} ms"
    return Result("clean: speed over DuckDB's latest by key", times["query"] / times["clean"], 0.6, False, detail)


def _memory(base: Path) -> Result:
    """The peak memory of a child process, above that after a small clean."""
    rows = 50_000
    count = -(-LIMIT * TIMES // ((VALUE + 16) * rows))
    small, large = base / "small", base / "large"
    fill([small], (records(number, 100, 10) for number in range(2)), _CONFIG)
    fill([large], (records(number, rows, count * rows // 2) for number in range(count)), _CONFIG)
    command = [sys.executable, "-c", _CHILD, str(small), str(large), str(LIMIT)]
    path = os.pathsep.join([str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(command, env={**os.environ, "PYTHONPATH": path}, check=True, capture_output=True, text=True)
    peak = int(done.stdout)
    detail = f"{peak >> 20} MiB above the start, for {count * rows:,} records in {LIMIT * TIMES >> 20} MiB"
    name = f"clean of {TIMES} x the limit: peak / (limit + {OVERHEAD >> 20} MiB)"
    return Result(name, peak / (LIMIT + OVERHEAD), 1.0, at_most=True, detail=detail)
