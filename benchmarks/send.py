"""Sending records, before anything is uploaded: bytes, rows of a schema, many sealed batches; files that a call enters.

The rates are absolute, so they are given twice: by the wall clock, and by the CPU time of the calling thread, which a
busy neighbour spoils less. The target is for the second one. The raw baseline, in turns, appends tuples to a list.
"""

from __future__ import annotations

import datetime as dt
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType

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
_PACKAGE = str(Path(txnstore.__file__).parent)


def run() -> Iterator[Result]:
    """Rates of ``send`` in one thread on a store in memory, and the files of the library that a call enters."""
    store = txnstore.create("memory://benchmark-send")
    store.create_topic("records", 3)
    store.create_topic("rows", 3, schema=SCHEMA, timestamp="at")
    with store.producer(linger=None) as producer:
        sends: dict[str, Callable[[], object]] = {
            "records": lambda: producer.send("records", VALUE),
            "rows": lambda: producer.send("rows", ROW),
        }
        kept: list[tuple[bytes, int]] = []
        times: dict[str, list[tuple[float, float]]] = {name: [] for name in (*sends, "raw")}
        for _ in range(ROUNDS):
            for name, send in sends.items():
                times[name].append(_timed(send))
            times["raw"].append(_timed(lambda: kept.append((VALUE, len(kept)))))
            producer.flush()
    for name, target in (("records", 250_000), ("rows", 50_000)):
        detail = f"{_rate(times[name], 0):,.0f}/s by the clock; raw {_rate(times['raw'], 1):,.0f}/s"
        rate = _rate(times[name], 1) / 1000
        yield Result(f"send: 1,000 {name}/s by CPU time", rate, target / 1000, at_most=False, detail=detail)
    yield _many_batches(store)
    yield from _files(store)
    store.close()


def _timed(call: Callable[[], object]) -> tuple[float, float]:
    """Seconds of the clock and of this thread's CPU."""
    clock, cpu = time.perf_counter(), time.thread_time()
    for _ in range(RECORDS):
        call()
    return time.perf_counter() - clock, time.thread_time() - cpu


def _rate(times: list[tuple[float, float]], which: int) -> float:
    """The best round: neighbours only ever make it slower."""
    return RECORDS / min(found[which] for found in times)


def _many_batches(store: txnstore.Store) -> Result:
    """The same work whether no batch waits, or as many as 60,000 records fill."""
    with store.producer(linger=None, batch_bytes=16_384) as producer:
        slices = [_timed(lambda: producer.send("records", VALUE)) for _ in range(3)]
        waiting = len(producer._accumulator.sealed)  # noqa: SLF001 - a figure for the reader
    first, last = slices[0][1], slices[-1][1]
    detail = f"{RECORDS / first:,.0f}/s, then {RECORDS / last:,.0f}/s with {waiting} batches sealed"
    name = f"send: last {RECORDS:,} of {3 * RECORDS:,} records / first, small batches"
    return Result(name, last / first, 1.5, at_most=True, detail=detail)


def _files(store: txnstore.Store) -> Iterator[Result]:
    producer = store.producer("benchmark")
    for _ in range(2):  # What happens once only is not counted.
        with producer.transaction() as txn:
            txn.send("records", VALUE)
    producer.begin_transaction()
    producer.send("records", VALUE)
    for name, call, target in (
        ("send", lambda: producer.send("records", VALUE), 6),
        ("commit", producer.commit_transaction, 20),
    ):
        found = files_entered(call)
        yield Result(f"files entered by a {name}", len(found), target, at_most=True, detail=" ".join(sorted(found)))


def files_entered(call: Callable[[], object]) -> set[str]:
    """The files of the library whose functions a call runs, in this thread."""
    found: set[str] = set()

    def watch(frame: FrameType, event: str, _: object) -> None:
        name = frame.f_code.co_filename
        if event == "call" and name.startswith(_PACKAGE):
            found.add(name[len(_PACKAGE) + 1 :])

    sys.setprofile(watch)
    try:
        call()
    finally:
        sys.setprofile(None)
    return found
