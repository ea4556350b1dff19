"""Small commits: 100 records a transaction, against the same Parquet bytes and a small put-if-absent."""

from __future__ import annotations

import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path

import txnstore
from benchmarks.measure import Result, median_ms, seconds
from txnstore.segment.codec import encode
from txnstore.segment.schema import records_to_table
from txnstore.storage.local import LocalStore

RECORDS, VALUE = 100, b"v" * 200
COMMITS = 2000


def run() -> Iterator[Result]:
    """Commit 2,000 times in turns with the raw baseline; compare medians, and the last 50 with the first 50."""
    with tempfile.TemporaryDirectory() as folder:
        raw_store = LocalStore(str(Path(folder) / "raw"))
        store = txnstore.create(str(Path(folder) / "store"))
        store.create_topic("events")
        producer = store.producer(transactional_id="bench")

        def raw(number: int) -> None:
            records = [(b"key-%d" % at, VALUE, None, None) for at in range(RECORDS)]
            segment = encode(records_to_table(records, 0), "parquet", "zstd")
            raw_store.put(f"topics/events/0/{uuid.uuid4()}.parquet", segment.data)
            assert raw_store.put_if_absent(f"entries/{number:020d}.json", b"x" * 1000)

        def commit() -> None:
            with producer.transaction() as txn:
                for at in range(RECORDS):
                    txn.send("events", key=b"key-%d" % at, value=VALUE)

        for warm in range(20):
            raw(warm)
            commit()
        raws, commits = [], []
        for number in range(COMMITS):
            raws.append(seconds(lambda number=number: raw(20 + number)))  # type: ignore[misc]
            commits.append(seconds(commit))
        store.close()
    detail = f"raw {median_ms(raws):.2f} ms, txnstore {median_ms(commits):.2f} ms"
    yield Result("commit of 100 records / raw", median_ms(commits) / median_ms(raws), 1.35, at_most=True, detail=detail)
    first, last = median_ms(commits[:50]), median_ms(commits[-50:])
    drift = median_ms(raws[-50:]) / median_ms(raws[:50])
    detail = f"first {first:.2f} ms, last {last:.2f} ms, while raw drifted by {drift:.2f}"
    name = f"last 50 of {COMMITS} commits / first 50, over the raw drift"
    yield Result(name, last / first / drift, 1.2, at_most=True, detail=detail)
