"""Processes that begin together on one chain: the first commit of each is measured with the others.

Each has imported what a commit needs: on two processors, the imports of sixteen take longer than all else.

On a folder, on a store with 20 ms per request, and on the server of the S3 tests: ``TXNSTORE_TEST_S3=minio`` with MinIO
on the PATH measures a real one. A commit is an entry, or an upload and an entry.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path

import txnstore
from benchmarks.far import FarStore, far_bucket, processes, sharing
from benchmarks.measure import Result
from tests.harness.s3.servers import S3Server
from txnstore.segment.codec import encode
from txnstore.segment.schema import records_to_table
from txnstore.storage.local import LocalStore
from txnstore.storage.memory import MemoryStore
from txnstore.store import Store, create_on, open_on

LATENCY = 0.02
SECONDS = 8.0
COUNTS = (4, 8, 16)
#: The least commits of so many processes that share entries, over one's.
SHARED_AIMS = {"20 ms": (2.0, 3.5, 6.0), "S3": (1.0, 1.0, 1.0)}
#: The processes on a folder, the commits of each, and how often they do it.
IN_FOLDER, EACH, ROUNDS = 4, 50, 5
#: The values of a record: of one that is stored in its entry, and of one that is uploaded.
VALUES = {"small": b"v" * 100, "64 KiB": os.urandom(64 * 1024)}
#: The most that the slowest commit takes, in medians of all.
SLOWEST = 5


@dataclass(frozen=True, slots=True)
class Figures:
    """What processes did together.

    Attributes:
        first: For each process the seconds from the beginning to its first commit, with the grant of its producer id.
        durations: For each process the seconds of its later commits.
        puts: The conditional PUTs of entries of all of them.
    """

    first: list[float]
    durations: list[list[float]]
    puts: int

    @property
    def commits(self) -> int:
        return len(self.first) + sum(map(len, self.durations))

    @property
    def share(self) -> float:
        """The commits of the least served process over those of the most served."""
        return (1 + min(map(len, self.durations))) / (1 + max(map(len, self.durations)))

    @property
    def waits(self) -> list[float]:
        """The seconds of all commits, ascending."""
        return sorted([*self.first, *(wait for durations in self.durations for wait in durations)])

    def line(self) -> str:
        """All of it, readable."""
        waits = self.waits
        first = f"first commit {1000 * statistics.median(self.first):.0f}, at most {1000 * max(self.first):.0f} ms"
        return (
            f"{self.commits / SECONDS:.1f} commits/s, {self.puts / self.commits:.2f} PUTs, median "
            f"{1000 * statistics.median(waits):.0f} ms, slowest {1000 * waits[-1]:.0f} ms; {first}"
        )


def run() -> Iterator[Result]:
    """The commits of 4, 8 and 16 processes beside those of one, small and large ones."""
    with tempfile.TemporaryDirectory() as folder:
        yield _folder(Path(folder))
    for kind, value in VALUES.items():
        yield from _compared(f"20 ms, {kind}", partial(_far, value))
    with S3Server() as server:
        for kind, value in VALUES.items():
            yield from _compared(f"S3, {kind}", partial(_s3, server, value))


def _compared(name: str, measure: Callable[[int], Figures]) -> Iterator[Result]:
    """Processes of a machine that share entries, of several that do, and of as many that take turns."""
    one = measure(1)
    yield Result(f"{name}: 1 process", 1.0, 1.0, False, one.line())
    for count, aim in zip(COUNTS, SHARED_AIMS[name.split(",", maxsplit=1)[0]], strict=True):
        for way, least, most_puts in (("sharing", aim, 0.6), ("by a network", aim, 0.6), ("in turns", 0.7, 2.0)):
            with sharing(way != "in turns", network=way == "by a network"):
                together = measure(count)
            label = f"{name}: {count} processes {way}"
            yield Result(f"{label}: commits over one's", together.commits / one.commits, least, False, together.line())
            yield Result(f"{label}: PUTs per commit", together.puts / together.commits, most_puts, True, "")
            slowest = together.waits[-1] / statistics.median(together.waits)
            yield Result(f"{label}: slowest / median", slowest, SLOWEST, True, "")
            yield Result(f"{label}: least / most served", together.share, 0.5, False, "")


def _folder(folder: Path) -> Result:
    """A number of commits of each of four processes, beside as many pairs of synced files of each of them."""
    with txnstore.create(f"{folder}/store") as store:
        store.create_topic("t", partitions=IN_FOLDER)
    raws, ours = list[float](), list[float]()
    for _ in range(ROUNDS):
        for write, times in ((_write_files, raws), (_write_commits, ours)):
            reports = processes(IN_FOLDER, partial(write, str(folder)))
            times.append(max(end for _, end in reports) - min(begin for begin, _ in reports))
    detail = f"raw {statistics.median(raws):.2f} s, txnstore {statistics.median(ours):.2f} s"
    name = f"folder: {IN_FOLDER} processes, {EACH} commits each / raw"
    return Result(name, statistics.median(ours) / statistics.median(raws), 1.2, True, detail)


def _write_files(folder: str, number: int, pipe: Connection) -> None:
    objects = LocalStore(f"{folder}/raw")
    records = [(b"key-%d" % at, VALUES["small"], None, None) for at in range(100)]
    encode(records_to_table(records, 0))
    pipe.send("ready")
    pipe.recv()
    begin = time.monotonic()
    for _ in range(EACH):
        objects.put(f"topics/t/{number}/{uuid.uuid4()}.parquet", encode(records_to_table(records, 0)).data)
        assert objects.put_if_absent(f"entries/{uuid.uuid4()}.json", b"x" * 1000)
    pipe.send((begin, time.monotonic()))


def _write_commits(folder: str, number: int, pipe: Connection) -> None:
    commit_in_memory(VALUES["small"])
    with txnstore.open(f"{folder}/store") as store:
        pipe.send("ready")
        pipe.recv()
        begin = time.monotonic()
        with store.producer(f"writer-{number}") as producer:
            for _ in range(EACH):
                with producer.transaction() as txn:
                    for at in range(100):
                        txn.send("t", VALUES["small"], b"key-%d" % at, partition=number)
        pipe.send((begin, time.monotonic()))


def _far(value: bytes, count: int) -> Figures:
    with far_bucket() as address:
        create_on(FarStore(address, LATENCY)).create_topic("t", partitions=count)
        return _figures(processes(count, partial(_write, partial(_open_far, address), value)))


def _open_far(address: object) -> Store:
    return open_on(FarStore(address, LATENCY))


def _s3(server: S3Server, value: bytes, count: int) -> Figures:
    url = f"{server.create_bucket(f'bench-{time.time_ns()}')}/store"
    with txnstore.create(url, storage_options=server.storage_options) as store:
        store.create_topic("t", partitions=count)
    opened = partial(txnstore.open, url, storage_options=server.storage_options)
    return _figures(processes(count, partial(_write, opened, value)))


def _figures(reports: list[tuple[float, list[float], int]]) -> Figures:
    first, durations, puts = zip(*reports, strict=True)
    return Figures(list(first), list(durations), sum(puts))


def _write(opened: Callable[[], Store], value: bytes, number: int, pipe: Connection) -> None:
    """One process: it has opened the store when it is ready, and commits until the time is over.

    Sends the seconds of its first commit and of the others, and its conditional PUTs of entries.
    """
    commit_in_memory(value)
    with opened() as store:
        pipe.send("ready")
        pipe.recv()
        began = last = time.monotonic()
        waits: list[float] = []
        with store.producer(f"writer-{number}") as producer:
            while last < began + SECONDS:
                with producer.transaction() as txn:
                    txn.send("t", value, partition=number)
                waits.append(time.monotonic() - last)
                last = time.monotonic()
        metrics = store.metrics()
        pipe.send((waits[0], waits[1:], metrics.commits + metrics.conflicts))


def commit_in_memory(value: bytes) -> None:
    """Import what a commit needs."""
    with create_on(MemoryStore()) as store, store.producer("any") as producer, producer.transaction() as txn:
        store.create_topic("t")
        txn.send("t", value)
