"""Closing a store while other threads use it."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from tests.helpers.connections import connection_of
from txnstore.storage.memory import MemoryStore
from txnstore.store import create, create_on


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


def test_store_works_for_callers_during_close() -> None:
    """As after the close, it connects again: what Python says of ended threads is no error of ours."""
    store = create("memory://")
    store.create_topic("t")
    found: list[list[bytes]] = []

    class Ending(ThreadPoolExecutor):
        """Its threads have ended, and the close that ended them has not returned yet."""

        def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
            super().shutdown(wait=True, cancel_futures=cancel_futures)
            with store.producer() as producer:
                for partition in range(2):
                    producer.send("t", b"%d" % partition, key=b"%d" % partition)
            found.append(store.scan("t").to_table()["value"].to_pylist())

    connection_of(store)._pools["requests"] = Ending(1)
    store.close()
    assert found == [[b"0", b"1"]]
    store.close()
