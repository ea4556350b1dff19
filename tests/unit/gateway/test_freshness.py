"""What a gateway knows of the store: the event loop makes no request."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import txnstore
from txnstore.core.model import TopicPartition
from txnstore.gateway.freshness import Freshness
from txnstore.storage.counting import CountingStore
from txnstore.store import Store


def run(store: Store, scenario: Callable[[Freshness], Awaitable[None]]) -> None:
    async def with_freshness() -> None:
        with ThreadPoolExecutor(4) as threads:
            freshness = Freshness(store._connection, threads)
            async with asyncio.timeout(30):
                await scenario(freshness)
            await freshness.close()

    asyncio.run(with_freshness())


def test_the_event_loop_reads_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A chain of this process knows of a transaction over chains, the others do not yet: threads read them."""
    store, other = txnstore.create(str(tmp_path), 4), txnstore.open(str(tmp_path))
    store.create_topic("t", partitions=8)
    store._connection.view()
    producer = other.producer("id")
    with producer.transaction():
        for partition in range(8):
            producer.send("t", b"v", partition=partition)
    got = CountingStore.get

    async def scenario(freshness: Freshness) -> None:
        loop = threading.current_thread()

        def get(self: CountingStore, key: str) -> bytes:
            assert threading.current_thread() is not loop
            return got(self, key)

        for chain in store._connection.chains:
            await asyncio.to_thread(chain.refresh)
            with monkeypatch.context() as patched:
                patched.setattr(CountingStore, "get", get)
                freshness.note()
            view = freshness.view
            await freshness.head()
            assert freshness.view.sequence >= view.sequence
        log = freshness.view.partition(TopicPartition("t", 7))
        assert log is not None
        assert log.last_stable_offset > 0

    run(store, scenario)
    producer.close()
