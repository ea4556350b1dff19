"""Many writers on a slow store: one chain for all of them, against a chain each.

Eight processes commit to partitions of their own. Every request takes 30 ms, so what is measured is how often they
stand in each other's way.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection
from typing import Any

from benchmarks.far import LATENCY, FarStore, beside_each_other
from benchmarks.measure import Result
from txnstore.core.model import TopicPartition
from txnstore.core.routing import chain_of_partition, chain_of_transactional_id
from txnstore.store import open_on

WRITERS = 8
SECONDS = 8.0


def run() -> Iterator[Result]:
    """The commits a second of eight writers with eight chains, over those with one."""
    rates, conflicts = {}, {}
    for chains in (1, WRITERS):
        commits, conflicts[chains] = _measure(chains)
        rates[chains] = commits / SECONDS
    detail = (
        f"one chain {rates[1]:.0f}/s ({conflicts[1]} lost races), {WRITERS} chains {rates[WRITERS]:.0f}/s "
        f"({conflicts[WRITERS]}), {LATENCY * 1000:.0f} ms a request"
    )
    name = f"{WRITERS} processes: commits/s with {WRITERS} chains / one"
    yield Result(name, rates[WRITERS] / rates[1], 4.0, at_most=False, detail=detail)


def _measure(chains: int) -> tuple[int, int]:
    """The commits of all writers, and the races that they lost."""
    reports = beside_each_other(WRITERS, write, chains)
    return sum(commits for commits, _ in reports), sum(lost for _, lost in reports)


def write(address: Any, number: int, pipe: Connection) -> None:
    """One writer: a transaction a commit, in a partition whose chain coordinates it, until the time is over."""
    store = open_on(FarStore(address))
    count = store.snapshot().view.chains
    chain = chain_of_partition(TopicPartition("t", number), count)
    names = (f"writer-{number}-{place}" for place in range(sys.maxsize))
    producer = store.producer(next(name for name in names if chain_of_transactional_id(name, count) == chain))

    def commit() -> None:
        with producer.transaction() as txn:
            txn.send("t", b"value", partition=number)

    commit()  # Imports what the first commit needs.
    pipe.send("ready")
    pipe.recv()
    end, commits = time.monotonic() + SECONDS, 0
    while time.monotonic() < end:
        commit()
        commits += 1
    pipe.send((commits, store.metrics().conflicts))
