"""Where the parts of a compaction or a verification are executed: in this process, or in others.

A job only reads and uploads segments, so any process may execute it, and repeat it. The process that planned it commits
what it has uploaded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor
from functools import partial
from typing import Protocol, TypeVar

from txnstore.chain.chains import Chains
from txnstore.connection import Connection
from txnstore.core.model import TopicPartition
from txnstore.core.routing import chain_of_partition
from txnstore.runtime import Runtime
from txnstore.storage.base import ObjectStore

K = TypeVar("K")
T = TypeVar("T")

#: A part of the work. It can be pickled.
Job = Callable[[ObjectStore, Executor, Runtime], T]


class Engine(Protocol):
    """Executes jobs."""

    def run(self, jobs: Iterable[tuple[K, Job[T]]]) -> Iterator[tuple[K, Callable[[], T]]]:
        """Execute jobs.

        Args:
            jobs: The jobs, each with a value that stays in this process.

        Returns:
            That value of each job, and a call that returns its result or raises its error.
        """
        ...


class LocalEngine:
    """Executes each job in this process, when its result is asked for."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def run(self, jobs: Iterable[tuple[K, Job[T]]]) -> Iterator[tuple[K, Callable[[], T]]]:
        """Yield the value of each job, and the call that executes it."""
        connection = self._connection
        objects = connection.objects.with_read_cache()  # Other partitions have segments in the same entries.
        for value, job in jobs:
            yield value, partial(job, objects, connection.pool, connection.runtime)


def time_of_upload(runtime: Runtime, chains: Chains, tp: TopicPartition) -> int:
    """The time in ms at which a job that starts now uploads at the earliest.

    The later of two clocks: if that of another writer is ahead, an upload must not look old to the chain.
    """
    return max(runtime.clock(), chains[chain_of_partition(tp, len(chains))].state.timestamp)
