"""1,000 commits of 100 records that nothing has compacted: SQL and a scan, beside files with the same rows.

In turns: DuckDB over 1,000 Parquet files and PyArrow over them, against a store that was just opened, and one that has
answered before. Every commit is inlined, so its records are in its entry of the chain. What counts is processor time,
which says what a call costs on a machine that does other things, too.
"""

from __future__ import annotations

import random
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.measure import Result, median_ms
from txnstore.storage.local import LocalStore
from txnstore.storage.memory import MemoryStore
from txnstore.store import Store, create_on, open_on

COMMITS, RECORDS = 1000, 100
ROUNDS = 5
SCHEMA = pa.schema(
    [("id", pa.int64()), ("name", pa.string()), ("amount", pa.float64()), ("at", pa.timestamp("us", "UTC"))]
)
QUERY = "SELECT count(*), sum(id), max(name) FROM {}"


def run() -> Iterator[Result]:
    """SQL over fresh commits against DuckDB, and a scan of them against PyArrow."""
    with tempfile.TemporaryDirectory() as folder:
        _fill(Path(folder))
        yield from _measure(Path(folder))


def _fill(folder: Path) -> None:
    """Make the store in memory and copy its objects, which takes less time than a sync for each commit."""
    objects, draw = MemoryStore(), random.Random(1)
    (folder / "files").mkdir()
    with create_on(objects) as store:
        store.create_topic("t", schema=SCHEMA)
        with store.producer() as producer:
            for number in range(COMMITS):
                table = _table(number, draw)
                producer.send_table("t", table)
                producer.flush()
                pq.write_table(table, folder / f"files/{number:04}.parquet", compression="zstd")
        store.checkpoint()
    for item in objects.list(""):
        path = folder / "store" / item.key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(objects.get(item.key))


def _table(number: int, draw: random.Random) -> pa.Table:
    columns = {
        "id": [number * RECORDS + row for row in range(RECORDS)],
        "name": [draw.randbytes(50).hex() for _ in range(RECORDS)],
        "amount": [draw.random() for _ in range(RECORDS)],
        "at": [1_700_000_000_000_000 + number] * RECORDS,
    }
    return pa.table(columns, schema=SCHEMA)


def _measure(folder: Path) -> Iterator[Result]:
    files = sorted(str(path) for path in (folder / "files").iterdir())
    with duckdb.connect() as plain:
        raw: dict[str, Callable[[], Any]] = {
            "DuckDB": lambda: plain.sql(QUERY.format(f"read_parquet({files!r})")).fetchall(),
            "PyArrow": lambda: pa.concat_tables(pq.ParquetFile(path).read(use_threads=False) for path in files),
        }
        raw["DuckDB"]()  # It imports and starts what it needs.
        times: dict[str, list[float]] = {}
        for _ in range(ROUNDS):
            with open_on(LocalStore(str(folder / "store"))) as store:
                store.sql("SELECT 1").fetchall()  # The benchmark "sql" measures what a database takes.
                for name, call in (*raw.items(), *_calls(store).items()):
                    times.setdefault(name, []).append(_processor_seconds(call))
    medians = {name: median_ms(taken) for name, taken in times.items()}
    for name, other, target in (("first", "DuckDB", 1.0), ("again", "DuckDB", 0.2), ("scan", "PyArrow", 0.5)):
        label = f"{'scan' if name == 'scan' else f'SQL, {name},'} of {COMMITS:,} fresh commits / {other}"
        detail = f"{medians[name]:.0f} ms / {medians[other]:.0f} ms"
        yield Result(label, medians[name] / medians[other], target, at_most=True, detail=detail)


def _processor_seconds(run: Callable[[], object]) -> float:
    start = time.process_time()
    run()
    return time.process_time() - start


def _calls(store: Store) -> dict[str, Callable[[], Any]]:
    """The calls on a store that was just opened, in this order."""
    ask = partial(store.sql, QUERY.format("t"))
    return {
        "scan": lambda: store.scan("t").to_table(),
        "first": lambda: ask().fetchall(),
        "again": lambda: ask().fetchall(),
    }
