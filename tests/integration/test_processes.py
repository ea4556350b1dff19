"""Several operating-system processes on one store (OBJ-10, OBJ-17, OBJ-18)."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

import txnstore
from tests.helpers.connections import connection_of
from txnstore.chain.payload import decode_entry
from txnstore.core.transactions.events import TxnDecided
from txnstore.errors import ProducerClosedError

COMMITS = 200

WRITER = """
import sys
import txnstore

url, name, commits = sys.argv[1], sys.argv[2], int(sys.argv[3])
with txnstore.open(url) as store, store.producer(transactional_id=name) as producer:
    for number in range(commits):
        with producer.transaction() as txn:
            txn.send("events", f"{name}-{number}".encode(), partition=number % 2)
    print(store.metrics().conflicts)
"""


def test_two_processes_that_commit_200_times_each_lose_nothing(tmp_path: Path) -> None:
    """No failure, no loss, contiguous offsets, each writer's records in its order."""
    url = str(tmp_path / "store")
    with txnstore.create(url) as store:
        store.create_topic("events", partitions=2)
    writers = [
        subprocess.Popen([sys.executable, "-c", WRITER, url, name, str(COMMITS)], stdout=subprocess.PIPE, text=True)
        for name in ("a", "b")
    ]
    conflicts = [int(writer.communicate(timeout=300)[0]) for writer in writers]
    assert [writer.returncode for writer in writers] == [0, 0]
    with txnstore.open(url) as store:
        for partition in range(2):
            rows = store.scan("events", partitions=[partition]).to_table()
            values = [value.decode() for value in rows["value"].to_pylist()]
            for name in ("a", "b"):
                mine = [value for value in values if value.startswith(name)]
                assert mine == [f"{name}-{number}" for number in range(partition, COMMITS, 2)]
            # Each record is followed by its commit marker, so the offsets are 0, 2, 4, …
            assert rows["_offset"].to_pylist() == list(range(0, 2 * COMMITS, 2))
        # The processes share entries, but each commit is decided once.
        connection = connection_of(store)
        keys = [connection.keys.entry(0, number) for number in range(1, connection.view().sequence + 1)]
        entries = [decode_entry(key, connection.objects.get(key)) for key in keys]
        decided = [event.transactional_id for each in entries for event in each.events if isinstance(event, TxnDecided)]
        assert Counter(decided) == {"a": COMMITS, "b": COMMITS}
        assert store.verify(deep=True).ok
    assert all(count >= 0 for count in conflicts)


def test_a_store_is_usable_after_a_fork_and_a_producer_is_not(tmp_path: Path) -> None:
    """The child reads and writes through the inherited store, but never under the parent's producer id."""
    with txnstore.create(str(tmp_path / "store")) as store:
        store.create_topic("events")
        producer = store.producer()
        producer.send("events", b"parent").result()
        child = os.fork()
        if child == 0:
            os._exit(_in_child(store, producer))
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        producer.send("events", b"parent again").result()
        assert store.scan("events").to_table()["value"].to_pylist() == [b"parent", b"child", b"parent again"]


def _in_child(store: txnstore.Store, producer: txnstore.Producer) -> int:
    try:
        with pytest.raises(ProducerClosedError, match="parent process"):
            producer.send("events", b"x")
        with store.producer() as own:
            own.send("events", b"child").result()
    except BaseException:  # noqa: BLE001 - the parent sees the exit code
        return 1
    return 0
