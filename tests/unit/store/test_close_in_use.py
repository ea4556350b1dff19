"""Closing a store while other threads use it."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.connections import connection_of
from txnstore.storage.memory import MemoryStore
from txnstore.store import Store, create, create_on


def test_transaction_continues_after_its_store_is_closed() -> None:
    """A close releases threads and connections, and ends nothing else."""
    store = create_on(MemoryStore())
    store.create_topic("t")
    producer, consumer = store.producer("id"), store.consumer(["t"])
    producer.begin_transaction()
    producer.send("t", b"before")
    store.close()
    producer.send("t", b"after")
    producer.commit_transaction()
    store.close()
    assert [record.value for record in consumer.poll()] == [b"before", b"after"]
    store.close()


#: Calls of a store that only look, and those that write, each with its arguments.
CALLS: dict[str, tuple[Any, ...]] = {
    "alter_topic": ("t", 2), "backup": ("memory://closed-in-use",), "checkpoint": (), "compact": (),
    "consumer": ("t",), "create_topic": ("u",),
    "delete_records": ({("t", 0): 1},), "delete_topic": ("t",), "doctor": (), "duckdb": (), "expire": (),
    "find_hanging": (), "groups": (), "metrics": (), "offsets": ("t", 0), "producer": (), "producers": ("t", 0),
    "prometheus": (), "recover": (), "retain": (), "scan": ("t",), "snapshot": (), "sql": ("select * from t",),
    "topic": ("t",), "topics": (), "transactions": (), "vacuum": (0,), "verify": (), "fence_producers": (["id"],),
    "transaction": ("id",), "transaction_history": ("id",), "abort_transaction": ("id",), "group": ("g",),
    "delete_group": ("g",), "abort_hanging": ("t", 0, 1), "reset_offsets": ("g", "earliest", ["t"]),
    "remove_members": ("g",), "dump_log": ("t", 0),
}  # fmt: skip


@pytest.mark.parametrize("name", sorted(CALLS))
def test_each_call_of_a_closed_store_connects_again(name: str) -> None:
    store = create_on(MemoryStore())
    store.create_topic("t")
    with store.producer("id") as producer, producer.transaction():
        producer.send("t", b"a", partition=0)
    store.reset_offsets("g", "earliest", ["t"])
    store.close()
    getattr(store, name)(*CALLS[name])
    store.close()


def test_all_calls_of_a_store_are_tried() -> None:
    methods = {each for each in dir(Store) if not each.startswith("_") and callable(getattr(Store, each))}
    assert methods - set(CALLS) == {"backup_rounds", "close", "erase", "instrument", "maintain", "refresh"}, (
        "these continue with others"
    )


def test_store_works_for_callers_during_close() -> None:
    """As after the close, it connects again: what Python says of ended threads is no error of ours."""
    store = create("memory://")
    store.create_topic("t")
    scans: list[list[bytes]] = []

    class Ending(ThreadPoolExecutor):
        """Its threads have ended, and the close that ended them has not returned yet."""

        def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
            super().shutdown(wait=True, cancel_futures=cancel_futures)
            with store.producer() as producer:
                for partition in range(2):
                    producer.send("t", b"%d" % partition, key=b"%d" % partition)
            scans.append(store.scan("t").to_table()["value"].to_pylist())

    connection_of(store)._pools["requests"] = Ending(1)
    store.close()
    assert scans == [[b"0", b"1"]]
    store.close()


def test_producer_with_more_uploads_than_workers_continues_after_a_close(tmp_path: Path) -> None:
    """The store connects again with the workers that upload, so no upload may wait for the connection."""
    store = create(str(tmp_path / "store"))
    store.create_topic("t", partitions=40)
    with store.producer() as producer:
        for partition in range(40):
            producer.send("t", b"value", partition=partition)
        store.close()
        producer.flush()
    assert store.scan("t").to_table().num_rows == 40
    store.close()
