"""What a gateway knows of the store: the event loop makes no request."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import txnstore
from txnstore.core.model import TopicPartition
from txnstore.core.view import View
from txnstore.errors import StorageError
from txnstore.gateway.freshness import Freshness
from txnstore.storage.counting import CountingStore
from txnstore.store import Store

U = TopicPartition("u", 0)


def run(store: Store, scenario: Callable[[Freshness], Awaitable[None]]) -> None:
    async def with_freshness() -> None:
        with ThreadPoolExecutor(4) as threads:
            freshness = Freshness(store._connection, threads)
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
                freshness.publish_loaded()
            view = freshness.view
            await freshness.head()
            assert freshness.view.sequence >= view.sequence
        log = freshness.view.partition(TopicPartition("t", 7))
        assert log is not None
        assert log.last_stable_offset > 0

    run(store, scenario)
    producer.close()


def test_a_look_that_fails_when_no_request_waits_for_it_is_no_failure_of_the_gateway(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its requests were cancelled with their connections."""
    store = txnstore.create(str(tmp_path))
    may_fail = threading.Event()

    def view(*_: object) -> object:
        may_fail.wait()
        raise StorageError("down")

    async def scenario(freshness: Freshness) -> None:
        failures: list[object] = []
        asyncio.get_running_loop().set_exception_handler(lambda _loop, context: failures.append(context))
        monkeypatch.setattr(store._connection, "view", view)
        waiting = [asyncio.create_task(freshness.head()) for _ in range(2)]
        await asyncio.sleep(0)
        for task in waiting:
            task.cancel()
        await asyncio.wait(waiting)
        may_fail.set()
        while freshness._running_look is not None:  # noqa: ASYNC110 - there is no event of its end
            await asyncio.sleep(0)
        gc.collect()
        assert failures == []

    run(store, scenario)


def test_a_look_without_a_waiting_request_reports_the_storage_as_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """What a commit has made known is to be read; that this fails is no fault of the gateway, which others see."""
    store = txnstore.create(str(tmp_path))

    def view(*_: object) -> object:
        raise StorageError("down")

    async def scenario(freshness: Freshness) -> None:
        failures: list[object] = []
        asyncio.get_running_loop().set_exception_handler(lambda _loop, context: failures.append(context))
        monkeypatch.setattr(store._connection, "view", view)
        monkeypatch.setattr(store._connection, "loaded_view", lambda: None)
        freshness.publish_loaded()
        look = freshness._running_look
        assert look is not None
        await asyncio.wait({look})
        await asyncio.sleep(0)
        assert failures == []

    run(store, scenario)
    assert [record.getMessage() for record in caplog.records] == ["the heads of the chains cannot be read: down"]


def test_a_change_wakes_those_who_wait_for_its_partition_and_no_other(tmp_path: Path) -> None:
    """A thousand consumers that wait elsewhere cost a commit nothing but a look at each of their partitions."""
    store = txnstore.create(str(tmp_path))
    store.create_topic("t", partitions=3)
    store.create_topic("u")
    first, second, third, other = (TopicPartition("t", 0), TopicPartition("t", 1), TopicPartition("t", 2), U)

    async def scenario(freshness: Freshness) -> None:
        view = await freshness.head()

        async def changed(partitions: Sequence[TopicPartition], known_view: View, seconds: float = 240) -> bool:
            watch = freshness.watch(partitions, known_view)
            try:
                return await watch.wait(seconds)
            finally:
                watch.close()

        def wait(*partitions: TopicPartition) -> asyncio.Task[bool]:
            return asyncio.create_task(changed(partitions, view))

        one, both, elsewhere, deleted = wait(first), wait(first, second), wait(third), wait(other)
        await asyncio.sleep(0)
        with store.producer() as producer:
            producer.send("t", b"x", partition=1)
        await freshness.head()
        assert await both
        assert not one.done()
        store.delete_topic("u")
        await freshness.head()
        await deleted
        with store.producer() as producer:
            producer.send("t", b"x", partition=0)
        await freshness.head()
        await one
        assert not elsewhere.done()
        elsewhere.cancel()
        await asyncio.wait({elsewhere})
        assert not await changed([third], freshness.view, 0)
        assert await changed([first, third], view, 0)  # It has changed since.
        assert freshness._watched == {}

    run(store, scenario)


def test_a_change_between_two_waits_is_not_missed(tmp_path: Path) -> None:
    """A request reads, and then waits for what differs from what it has read."""
    store = txnstore.create(str(tmp_path))
    store.create_topic("u")

    async def scenario(freshness: Freshness) -> None:
        view = await freshness.head()
        watch = freshness.watch([U], view)
        waiting = asyncio.create_task(watch.wait(240))
        await asyncio.sleep(0)
        for _ in range(2):
            with store.producer() as producer:
                producer.send("u", b"x")
            await freshness.head()
        assert await waiting
        assert watch.take() == {U}
        assert not await watch.wait(0)
        with store.producer() as producer:
            producer.send("u", b"x")
        await freshness.head()  # No request waits now.
        assert await watch.wait(240)

    run(store, scenario)


def test_a_poller_ends_when_no_request_waits_any_more(tmp_path: Path) -> None:
    async def scenario(freshness: Freshness) -> None:
        with freshness.waiting():
            poller = freshness._poller
        assert poller is not None
        await poller

    run(txnstore.create(str(tmp_path)), scenario)
