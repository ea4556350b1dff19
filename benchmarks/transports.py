"""The two transports of a store on S3, in turns: small commits, and reads of segments.

The server is that of the S3 tests: ``TXNSTORE_TEST_S3=minio`` with MinIO on the PATH measures the transports, whereas
the default, a server in Python, measures itself.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial

import txnstore
from benchmarks.measure import Result, median_ms
from tests.harness.s3.servers import S3Server
from txnstore.producer import Producer
from txnstore.storage.registry import open_store

NAMES = ("s3fs", "obstore")
COMMITS, RECORDS, VALUE = 200, 100, b"v" * 200
SEGMENTS, SEGMENT_BYTES, READERS, ROUNDS = 200, 256 * 1024, 8, 10


def run() -> Iterator[Result]:
    """Commit 100 records, and read 200 segments with 8 threads; compare medians, and processor time of this process."""
    with S3Server() as server, ExitStack() as stack:
        producers: dict[str, Producer] = {}
        reads: dict[str, Callable[[], None]] = {}
        pool = stack.enter_context(ThreadPoolExecutor(READERS))
        for name in NAMES:
            url = server.create_bucket(f"bench-{time.time_ns()}-{name}")
            options = {**server.storage_options, "transport": name}
            store = stack.enter_context(txnstore.create(f"{url}/store", storage_options=options))
            store.create_topic("events")
            producers[name] = store.producer(transactional_id="bench")
            objects = open_store(f"{url}/objects", options)
            stack.callback(objects.close)
            keys = [f"segments/{number}" for number in range(SEGMENTS)]
            for key in keys:
                objects.put(key, bytes(SEGMENT_BYTES))
            reads[name] = partial(_read, pool, objects.get, keys)
        commits: dict[str, Callable[[], None]] = {name: partial(_commit, producers[name]) for name in NAMES}
        for operation, runs, rounds in (
            (f"commit of {RECORDS} records", commits, COMMITS),
            (f"read of {SEGMENTS} segments", reads, ROUNDS),
        ):
            yield from _compared(operation, runs, rounds)


def _commit(producer: Producer) -> None:
    with producer.transaction() as txn:
        for at in range(RECORDS):
            txn.send("events", key=b"key-%d" % at, value=VALUE)


def _read(pool: ThreadPoolExecutor, get: Callable[[str], bytes], keys: list[str]) -> None:
    assert sum(map(len, pool.map(get, keys))) == SEGMENTS * SEGMENT_BYTES


def _compared(operation: str, runs: dict[str, Callable[[], None]], rounds: int) -> Iterator[Result]:
    times: dict[str, list[float]] = {name: [] for name in NAMES}
    spent: dict[str, list[float]] = {name: [] for name in NAMES}
    for number in range(rounds + 3):
        for name in NAMES:
            began, used = time.perf_counter(), time.process_time()
            runs[name]()
            if number >= 3:
                times[name].append(time.perf_counter() - began)
                spent[name].append(time.process_time() - used)
    for unit, durations in (("time", times), ("processor time", spent)):
        medians = {name: median_ms(values) for name, values in durations.items()}
        detail = ", ".join(f"{name} {value:.2f} ms" for name, value in medians.items())
        ratio = statistics.median(durations["obstore"]) / statistics.median(durations["s3fs"])
        yield Result(f"{operation}, {unit}: obstore / s3fs", ratio, 1.0, at_most=True, detail=detail)
