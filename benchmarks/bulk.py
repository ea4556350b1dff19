"""Bulk append and scan: 5 M records of a 16-byte key and a 200-byte value."""

from __future__ import annotations

import os
import resource
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import txnstore
from benchmarks.measure import Result, interleaved, median_ms
from txnstore.segment.schema import RECORD_SCHEMA

RECORDS, CHUNK, PARTITIONS = 5_000_000, 100_000, 4
ROUNDS = 3
#: Rows of 16 MiB in memory, what a batch of a producer takes.
FILE_ROWS = 71_000


def chunk(seed: int) -> pa.Table:
    """Records as a batch of them comes in: random keys, values that compress like text does."""
    rng = np.random.default_rng(seed)
    keys = rng.integers(0, 256, CHUNK * 16, dtype=np.uint8)
    words = rng.integers(97, 105, CHUNK * 200, dtype=np.uint8)
    times = pa.array(np.arange(CHUNK) + seed * CHUNK, pa.timestamp("ms", "UTC"))
    columns = [_binary(keys, 16), _binary(words, 200), pa.nulls(CHUNK, RECORD_SCHEMA.field("headers").type), times]
    return pa.table(columns, schema=RECORD_SCHEMA)


def _binary(data: np.ndarray, width: int) -> pa.Array:
    offsets = pa.py_buffer(np.arange(0, len(data) + 1, width, dtype=np.int32))
    return pa.Array.from_buffers(pa.binary(), len(data) // width, [None, offsets, pa.py_buffer(data)])


def run() -> Iterator[Result]:
    """Append through a transaction, and write the same rows as plain Parquet files; then read both."""
    chunks = [chunk(seed) for seed in range(10)]
    repeats = RECORDS // CHUNK

    def batches() -> pa.RecordBatchReader:
        stream = (batch for number in range(repeats) for batch in chunks[number % len(chunks)].to_batches())
        return pa.RecordBatchReader.from_batches(RECORD_SCHEMA, stream)

    with tempfile.TemporaryDirectory() as folder:
        base = Path(folder)
        counter = iter(range(1000))

        def raw() -> None:
            """Files of 16 MiB of rows, as a producer fills its batches, each one synced."""
            target = base / f"raw-{next(counter)}"
            target.mkdir()
            pending = RECORD_SCHEMA.empty_table()
            for batch in batches():
                pending = pa.concat_tables([pending, pa.table(batch)])
                while pending.num_rows >= FILE_ROWS:
                    _write(target, pending.slice(0, FILE_ROWS))
                    pending = pending.slice(FILE_ROWS)
            _write(target, pending)

        def append() -> None:
            store = txnstore.create(str(base / f"store-{next(counter)}"))
            store.create_topic("events", partitions=PARTITIONS)
            with store.producer(transactional_id="bulk") as producer, producer.transaction() as txn:
                txn.send_table("events", batches())
            store.close()

        before = _peak_mb()
        append()
        peak = _peak_mb() - before
        spent: dict[str, list[float]] = {"raw": [], "txnstore": []}

        def counted(name: str, write: Callable[[], None]) -> Callable[[], None]:
            def run() -> None:
                start = time.process_time()
                write()
                spent[name].append(time.process_time() - start)

            return run

        times = interleaved({"raw": counted("raw", raw), "txnstore": counted("txnstore", append)}, ROUNDS)
        ratio = median_ms(times["raw"]) / median_ms(times["txnstore"])
        detail = f"raw {median_ms(times['raw']):.0f} ms, txnstore {median_ms(times['txnstore']):.0f} ms; "
        detail += f"processor {median_ms(spent['raw']):.0f} ms, {median_ms(spent['txnstore']):.0f} ms"
        yield Result("bulk append of 5 M x 216 B: speed over raw Parquet", ratio, 0.9, at_most=False, detail=detail)
        detail = f"{peak:.0f} MB above the start, with buffers of 64 MB"
        yield Result("bulk append: peak memory in buffers of 64 MB", peak / 64, 3, at_most=True, detail=detail)
        yield from _scans(base)


def _write(target: Path, table: pa.Table) -> None:
    path = target / f"{len(list(target.iterdir()))}.parquet"
    pq.write_table(
        table, path, compression="zstd", compression_level=1, use_dictionary=False, write_statistics=["timestamp"],
        column_encoding={"timestamp": "DELTA_BINARY_PACKED"},
    )  # fmt: skip
    with path.open("rb+") as file:
        os.fsync(file.fileno())


def _scans(base: Path) -> Iterator[Result]:
    stores = sorted(base.glob("store-*"))
    store = txnstore.open(str(stores[-1]))
    files = [str(path) for path in (stores[-1] / "topics").rglob("*.parquet")]
    con = duckdb.connect(config={"threads": 2})
    query = "select count(*), sum(octet_length(value)), max(key) from "

    def plain() -> None:
        con.execute(query + "read_parquet(?)", [files]).fetchall()

    def view() -> None:
        view_con.execute(query + "events").fetchall()

    def arrow() -> None:
        for _ in store.scan("events").to_reader():
            pass

    def plain_arrow() -> None:
        for _ in con.sql("select * from read_parquet($files)", params={"files": files}).to_arrow_reader():
            pass

    view_con = store.duckdb()
    times = interleaved({"plain": plain, "view": view, "plain_arrow": plain_arrow, "arrow": arrow}, 5)
    for name, ours, theirs in (("SQL over the view", "view", "plain"), ("scan to Arrow", "arrow", "plain_arrow")):
        detail = f"DuckDB {median_ms(times[theirs]):.0f} ms, txnstore {median_ms(times[ours]):.0f} ms"
        ratio = median_ms(times[theirs]) / median_ms(times[ours])
        yield Result(f"{name}: speed over DuckDB on the same files", ratio, 0.95, at_most=False, detail=detail)
    store.close()


def _peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
