"""A merge of 1,000 small segments beside DuckDB's ``COPY`` of the same files, and the reading of what both wrote."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import duckdb

from benchmarks.folders import TOPIC, fill, records, segments
from benchmarks.measure import Result, interleaved, median_ms
from txnstore.storage.local import LocalStore
from txnstore.store import open_on

SEGMENTS, ROWS = 1_000, 500
ROUNDS, READS = 5, 15


def run() -> Iterator[Result]:
    """The speed of a merge, and of a query after it."""
    with tempfile.TemporaryDirectory() as temporary:
        base = Path(temporary)
        folders = [base / f"store-{number}" for number in range(ROUNDS)]
        fill(folders, (records(number, ROWS, 1 << 40) for number in range(SEGMENTS)), {})
        yield from _measure(base, folders)


def _measure(base: Path, folders: list[Path]) -> Iterator[Result]:
    files, plain = segments(folders[0]), base / "plain.parquet"
    following = iter(folders)
    with duckdb.connect() as connection:
        options = "FORMAT parquet, COMPRESSION zstd, COMPRESSION_LEVEL 1"

        def copy() -> None:
            connection.execute(f"COPY (SELECT * FROM read_parquet({files!r})) TO '{plain}' ({options})")

        def merge() -> None:
            with open_on(LocalStore(str(next(following)))) as store:
                assert store.compact().merges == 1

        # The first copy is of files that the merge will replace, and no vacuum deletes.
        times = {name: median_ms(taken) for name, taken in interleaved({"merge": merge, "copy": copy}, ROUNDS).items()}
        detail = f"DuckDB {times['copy']:.0f} ms, txnstore {times['merge']:.0f} ms"
        ratio = times["copy"] / times["merge"]
        yield Result(
            f"merge of {SEGMENTS:,} segments: speed over DuckDB's COPY", ratio, 0.8, at_most=False, detail=detail
        )

        query = "SELECT count(*), sum(octet_length(value)), max(key) FROM "
        with open_on(LocalStore(str(folders[0]))) as store:
            reads: dict[str, Callable[[], object]] = {
                "view": lambda: store.sql(query + TOPIC).fetchall(),
                "plain": lambda: connection.sql(f"{query} '{plain}'").fetchall(),
            }
            assert reads["view"]() == reads["plain"]()
            times = {name: median_ms(taken) for name, taken in interleaved(reads, READS).items()}
        detail = f"DuckDB {times['plain']:.0f} ms, txnstore {times['view']:.0f} ms"
        ratio = times["plain"] / times["view"]
        yield Result("SQL after the merge: speed over DuckDB on one file", ratio, 0.95, at_most=False, detail=detail)
