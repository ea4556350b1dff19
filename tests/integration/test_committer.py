"""Real processes that share the entries of a chain: through one of them, and on when it is killed or stands still.

They are on one machine, or each in a runtime folder of its own, as on several machines, and meet by the network.
"""

from __future__ import annotations

import os
import signal
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import get_context
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from pathlib import Path

import pytest

import txnstore
from txnstore.chain.committer.sharing import VARIABLE

#: The commits of a process at each request.
COMMITS = 10


@pytest.fixture(autouse=True, params=["on", "tcp://127.0.0.1"])
def runtime_folder(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:  # Short, as a path of a socket must be.
        monkeypatch.setenv("XDG_RUNTIME_DIR", folder)
        monkeypatch.setenv(VARIABLE, request.param)
        yield


@pytest.fixture
def url(tmp_path: Path) -> str:
    with txnstore.create(tmp_path / "store") as store:
        store.create_topic("t")
    return str(tmp_path / "store")


def _work(url: str, name: str, pipe: Connection) -> None:
    """Join, then commit at each request; answers the numbers of own entries, and ends at None."""
    if os.environ[VARIABLE] != "on":
        os.environ["XDG_RUNTIME_DIR"] += f"/{name}"
    with txnstore.open(url) as store, store.producer(name) as producer:
        chain = store._connection.chains[0]
        committer = chain._committer
        assert committer is not None
        pipe.send(committer.join(listen=True))
        while (first := pipe.recv()) is not None:
            before = chain.metrics.commits
            for number in range(first, first + COMMITS):
                with producer.transaction() as txn:
                    txn.send("t", value=f"{name}-{number}".encode())
            pipe.send(chain.metrics.commits - before)


class Worker:
    """A process that has joined."""

    def __init__(self, url: str, name: str) -> None:
        context = get_context("spawn")
        self.pipe, theirs = context.Pipe()
        self.process: SpawnProcess = context.Process(target=_work, args=(url, name, theirs), daemon=True)
        self.process.start()
        theirs.close()
        self.is_caller = self.pipe.recv()

    def send(self, signal_number: int) -> None:
        assert self.process.pid is not None
        os.kill(self.process.pid, signal_number)


@contextmanager
def workers(url: str, *names: str) -> Iterator[list[Worker]]:
    started: list[Worker] = []
    try:
        started.extend(Worker(url, name) for name in names)
        yield started
    finally:
        for worker in started:
            worker.send(signal.SIGCONT)
            worker.process.kill()
            worker.process.join()


def values(url: str) -> list[str]:
    with txnstore.open(url, read_only=True) as store:
        return sorted(value.decode() for value in store.scan("t").to_table()["value"].to_pylist())


def expected(*ranges: tuple[str, int]) -> list[str]:
    return sorted(f"{name}-{number}" for name, first in ranges for number in range(first, first + COMMITS))


def commit(*ranges: tuple[Worker, int]) -> list[int]:
    """Let workers commit at the same time; returns the numbers of their own entries."""
    for worker, first in ranges:
        worker.pipe.send(first)
    return [worker.pipe.recv() for worker, _ in ranges]


def test_one_process_writes_the_entries_of_all(url: str) -> None:
    with workers(url, "a", "b", "c") as (a, b, c):
        assert (a.is_caller, b.is_caller, c.is_caller) == (False, True, True)
        own, *others = commit((a, 0), (b, 0), (c, 0))
    assert others == [0, 0]
    assert own > 0
    assert values(url) == expected(("a", 0), ("b", 0), ("c", 0))


def test_the_others_go_on_when_the_committer_is_killed(url: str) -> None:
    with workers(url, "a", "b", "c") as (a, b, c):
        for worker in (b, c):
            worker.pipe.send(0)
        a.send(signal.SIGKILL)
        for worker in (b, c):
            worker.pipe.recv()
        commit((b, 100), (c, 100))
    assert values(url) == expected(("b", 0), ("c", 0), ("b", 100), ("c", 100))


def test_the_others_go_on_when_the_committer_stands_still_and_it_follows_them_later(url: str) -> None:
    with workers(url, "a", "b", "c") as (a, b, c):
        commit((b, 0), (c, 0))
        a.send(signal.SIGSTOP)
        commit((b, 100), (c, 100))
        a.send(signal.SIGCONT)
        commit((a, 200), (b, 200), (c, 200))
    assert values(url) == expected(("b", 0), ("c", 0), ("b", 100), ("c", 100), ("a", 200), ("b", 200), ("c", 200))
