"""Small commits: 100 records a transaction, against the same Parquet bytes and a small put-if-absent.

In a folder, where each object is synced, and on an S3 server (``TXNSTORE_TEST_S3``, else moto) with 20 ms added to
each request: a commit is one request, what it is compared with is two, one after the other.
"""

from __future__ import annotations

import itertools
import statistics
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing

from benchmarks.far import SlowWrites
from benchmarks.measure import Result, median_ms, seconds
from tests.harness.s3.servers import S3Server, storage_options
from txnstore.segment.codec import encode
from txnstore.segment.schema import records_to_table
from txnstore.storage.base import ObjectStore
from txnstore.storage.local import LocalStore
from txnstore.storage.registry import open_store
from txnstore.store import Store, create_on

RECORDS, VALUE = 100, b"v" * 200
COMMITS, FAR_COMMITS = 20_000, 200
#: The first and the last commits that are compared.
ENDS = 50
#: Seconds that are added to each request to the S3 server.
LATENCY = 0.02


def run() -> Iterator[Result]:
    """Commit in turns with the raw baseline; compare medians, the last 50 with the first 50, and the slowest."""
    with tempfile.TemporaryDirectory() as folder:
        raws, commits, spent = _times(LocalStore(f"{folder}/raw"), LocalStore(f"{folder}/store"), COMMITS)
    yield _beside("commit of 100 records / raw", raws, commits, 1.0)
    yield _beside("commit of 100 records: processor time / raw's", *spent, 2.0)
    first, last = median_ms(commits[:ENDS]), median_ms(commits[-ENDS:])
    drift = median_ms(raws[-ENDS:]) / median_ms(raws[:ENDS])
    detail = f"first {first:.2f} ms, last {last:.2f} ms, while raw drifted by {drift:.2f}"
    name = f"last {ENDS} of {COMMITS:,} commits / first {ENDS}, over the raw drift"
    yield Result(name, last / first / drift, 1.1, at_most=True, detail=detail)
    slow, raw_slow = (1000 * statistics.quantiles(times, n=100)[-1] for times in (commits, raws))
    detail = f"{slow:.2f} ms; of raw {raw_slow:.2f} ms, {raw_slow / median_ms(raws):.1f} times its median"
    yield Result("p99 of the commits / their median", slow / median_ms(commits), 5.0, at_most=True, detail=detail)
    with S3Server() as server:
        bucket, options = server.create_bucket("commits"), storage_options(server.url)
        raw_store, store = (SlowWrites(open_store(f"{bucket}/{name}", options), LATENCY) for name in ("raw", "store"))
        raws, commits, _ = _times(raw_store, store, FAR_COMMITS)
    name = f"commit of 100 records / raw, S3 with {1000 * LATENCY:.0f} ms added"
    yield _beside(name, raws, commits, 0.55)


def _beside(name: str, raws: Sequence[float], commits: Sequence[float], target: float) -> Result:
    raw, commit = median_ms([*raws]), median_ms([*commits])
    return Result(name, commit / raw, target, at_most=True, detail=f"raw {raw:.2f} ms, txnstore {commit:.2f} ms")


def _times(
    raw_store: ObjectStore, objects: ObjectStore, count: int
) -> tuple[list[float], list[float], tuple[list[float], list[float]]]:
    """The seconds of the baseline, and of the commits, in turns; then the seconds of processor time of both."""
    raws, commits, raw_spent, spent = list[float](), list[float](), list[float](), list[float]()
    with closing(raw_store), create_on(objects) as store:
        raw, commit = _raw(raw_store), _commit(store)
        for each in (*[raw, commit] * 20,):
            each()
        for _ in range(count):
            for call, times, used in ((raw, raws, raw_spent), (commit, commits, spent)):
                before = time.process_time()
                times.append(seconds(call))
                used.append(time.process_time() - before)
    return raws, commits, (raw_spent, spent)


def _raw(objects: ObjectStore) -> Callable[[], None]:
    numbers = itertools.count()

    def raw() -> None:
        records = [(b"key-%d" % at, VALUE, None, None) for at in range(RECORDS)]
        segment = encode(records_to_table(records, 0), "parquet", "zstd")
        objects.put(f"topics/events/0/{uuid.uuid4()}.parquet", segment.data)
        assert objects.put_if_absent(f"entries/{next(numbers):020d}.json", b"x" * 1000)

    return raw


def _commit(store: Store) -> Callable[[], None]:
    store.create_topic("events")
    producer = store.producer(transactional_id="bench")

    def commit() -> None:
        with producer.transaction() as txn:
            for at in range(RECORDS):
                txn.send("events", key=b"key-%d" % at, value=VALUE)

    return commit
