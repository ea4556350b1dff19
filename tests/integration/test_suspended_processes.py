"""Real processes that are suspended (SIGSTOP) within a request while old entries are deleted (OBJ-06).

Their lease is short, so that it has expired when they continue, as it has after 12 hours.
See docs/internals/design/history.md.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import txnstore
from tests.helpers.aging import age

#: The process suspends itself within the given request for an entry, the first time after it was armed.
SLEEPER = """
import os, signal, sys
import txnstore
from txnstore.chain import boundary
from txnstore.errors import UnknownOutcomeError
from txnstore.storage.local import LocalStore

root, role, moment = sys.argv[1:]
boundary.LEASE_MS = 1
armed = []

def suspending(name):
    request = getattr(LocalStore, name)
    def suspended(self, key, *rest):
        here = armed and "/entries/" in key
        if here:
            armed.clear()
        if here and moment == "before":
            os.kill(os.getpid(), signal.SIGSTOP)
        try:
            return request(self, key, *rest)
        finally:
            if here and moment == "after":
                os.kill(os.getpid(), signal.SIGSTOP)
    setattr(LocalStore, name, suspended)

with txnstore.open(root) as store:
    if role == "writer":
        producer = store.producer("sleeper")
        producer.begin_transaction()
        producer.send("t", b"sleeper")
        suspending("put_if_absent")
        armed.append(True)
        try:
            producer.commit_transaction()
            print("committed")
        except UnknownOutcomeError as error:
            print("unknown:", error)
            try:
                producer.commit_transaction()
                print("then committed")
            except txnstore.TxnStoreError as error:
                print("then", type(error).__name__)
    else:
        consumer = store.consumer()
        consumer.assign([("t", 0)])
        consumer.seek(("t", 0), 0)
        records = consumer.poll(timeout=0)
        suspending("get")
        armed.append(True)
        while len(records) < 5:
            records += consumer.poll(timeout=1)
        print(*(record.value.decode() for record in records))
"""


@contextmanager
def suspended(root: Path, role: str, moment: str) -> Iterator[list[str]]:
    """A process that has suspended itself; it continues after the block. Gives what it says then, line by line."""
    output: list[str] = []
    process = subprocess.Popen(
        [sys.executable, "-c", SLEEPER, str(root), role, moment], stdout=subprocess.PIPE, text=True
    )
    try:
        _, status = os.waitpid(process.pid, os.WUNTRACED)
        assert os.WIFSTOPPED(status), "it has ended instead"
        yield output
        process.send_signal(signal.SIGCONT)
        output += process.communicate(timeout=300)[0].splitlines()
    finally:
        process.kill()
        process.communicate()


def send(store: txnstore.Store, value: str) -> None:
    with store.producer("daily") as producer, producer.transaction() as txn:
        txn.send("t", value.encode())


def forget(root: Path) -> list[str]:
    """Commit for some days, and delete the entries of the days before; returns the deleted ones."""
    with txnstore.open(str(root)) as store:
        for number in range(4):
            send(store, f"day{number}")
            store.checkpoint()
        age(root, days=8)
        assert store.vacuum().announced
        age(root, days=1)
        return [key for key in store.vacuum().deleted if "/entries/" in key]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "store"
    with txnstore.create(str(root)) as store:
        store.create_topic("t", config={"inline.bytes": 0})
        send(store, "first")
        store.checkpoint()
    return root


def values(root: Path) -> list[str]:
    with txnstore.open(str(root)) as store:
        assert store.verify(deep=True).violations == ()
        stored: list[bytes] = store.scan("t").to_table()["value"].to_pylist()
        return [value.decode() for value in stored]


def test_a_commit_under_a_name_that_was_deleted_is_not_acknowledged(root: Path) -> None:
    """The create succeeds, since the name is free again, and the entry is none of the chain."""
    with suspended(root, "writer", "before") as output:
        assert forget(root)
    assert output[0].startswith("unknown:")
    assert "suspended" in output[0]
    stored = values(root)
    assert stored[:5] == ["first", "day0", "day1", "day2", "day3"]
    assert stored[5:] == (["sleeper"] if output[1] == "then committed" else []), output


def test_a_commit_that_was_written_before_its_entry_was_deleted_is_there_once(root: Path) -> None:
    with suspended(root, "writer", "after") as output:
        assert forget(root)
    assert output[-1] in ("committed", "then committed")
    assert values(root) == ["first", "sleeper", "day0", "day1", "day2", "day3"]


@pytest.mark.parametrize("moment", ["before", "after"])
def test_a_consumer_reads_on_at_the_head(root: Path, moment: str) -> None:
    """Its next entry was deleted, which is no end of the chain."""
    with suspended(root, "reader", moment) as output:
        assert forget(root)
    assert output[-1].split() == ["first", "day0", "day1", "day2", "day3"]
