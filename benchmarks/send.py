"""Sending records, before anything is uploaded: bytes, rows of a schema, many sealed batches.

The rates are absolute, so they are given twice: by the wall clock, and by the CPU time of the calling thread, which a
busy neighbour spoils less. The target is for the second one. The raw baseline, in turns, appends tuples to a list.
"""

from __future__ import annotations

import datetime as dt
import time
from collections.abc import Callable, Iterator

import pyarrow as pa

import txnstore
from benchmarks.measure import Result

RECORDS, ROUNDS, VALUE = 20_000, 7, b"v" * 100
SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64()),
        pa.field("name", pa.string()),
        pa.field("at", pa.timestamp("ms", "UTC")),
        pa.field("price", pa.float64()),
    ]
)
ROW = {"id": 1, "name": "a name", "at": dt.datetime(2024, 1, 1, tzinfo=dt.UTC), "price": 1.5}


def run() -> Iterator[Result]:
    """Rates of ``send`` in one thread on a store in memory."""
    store = txnstore.create("memory://benchmark-send")
    store.create_topic("records", 3)
    store.create_topic("rows", 3, schema=SCHEMA, timestamp="at")
    with store.producer(linger=None) as producer:
        sends: dict[str, Callable[[], object]] = {
            "records": lambda: producer.send("records", VALUE),
            "rows": lambda: producer.send("rows", ROW),
        }
        appended: list[tuple[bytes, int]] = []
        times: dict[str, list[tuple[float, float]]] = {name: [] for name in (*sends, "raw")}
        for _ in range(ROUNDS):
            for name, send in sends.items():
                times[name].append(_timed(send))
            times["raw"].append(_timed(lambda: appended.append((VALUE, len(appended)))))
            producer.flush()
    for name, target in (("records", 250_000), ("rows", 50_000)):
        detail = f"{_rate(times[name], 0):,.0f}/s by the clock; raw {_rate(times['raw'], 1):,.0f}/s"
        rate = _rate(times[name], 1) / 1000
        yield Result(f"send: 1,000 {name}/s by CPU time", rate, target / 1000, at_most=False, detail=detail)
    yield _many_batches(store)
    store.close()


def _timed(call: Callable[[], object]) -> tuple[float, float]:
    """Seconds of the clock and of this thread's CPU."""
    clock, cpu = time.perf_counter(), time.thread_time()
    for _ in range(RECORDS):
        call()
    return time.perf_counter() - clock, time.thread_time() - cpu


def _rate(times: list[tuple[float, float]], which: int) -> float:
    """The best round: neighbours only ever make it slower."""
    return RECORDS / min(durations[which] for durations in times)


def _many_batches(store: txnstore.Store) -> Result:
    """The same work whether no batch waits, or as many as 60,000 records fill."""
    with store.producer(linger=None, batch_bytes=16_384) as producer:
        slices = [_timed(lambda: producer.send("records", VALUE)) for _ in range(3)]
        waiting = len(producer._sender.buffer.sealed)  # noqa: SLF001 - a figure for the reader
    first, last = slices[0][1], slices[-1][1]
    detail = f"{RECORDS / first:,.0f}/s, then {RECORDS / last:,.0f}/s with {waiting} batches sealed"
    name = f"send: last {RECORDS:,} of {3 * RECORDS:,} records / first, small batches"
    return Result(name, last / first, 1.5, at_most=True, detail=detail)
