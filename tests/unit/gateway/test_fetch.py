"""What a fetch with a session answers after it has waited, and what the client of the session knows then."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, cast

import pytest
from kio.index import load_request_schema
from kio.schema.errors import ErrorCode

from txnstore.core.authorization.model import Acl
from txnstore.core.model import TopicPartition
from txnstore.gateway.apis import Api
from txnstore.gateway.fetch import Fetch
from txnstore.gateway.fetch_sessions import SessionPartition
from txnstore.gateway.freshness import Freshness
from txnstore.gateway.hot import HotBatches
from txnstore.gateway.server import Client
from txnstore.gateway.services import Services
from txnstore.gateway.wire import Request, build
from txnstore.storage.memory import MemoryStore
from txnstore.store import Store, create_on

#: A version that names topics by their names.
VERSION = 12


@pytest.fixture
def store() -> Iterator[Store]:
    with create_on(MemoryStore()) as store:
        store.create_topic("t", partitions=3)
        yield store


class Consumer:
    """A client with a session."""

    def __init__(self, fetch: Fetch, freshness: Freshness) -> None:
        self._fetch, self._freshness, self.hot_batches = fetch, freshness, fetch._hot_batches
        self.client = Client("127.0.0.1", authenticated=True)
        self.session, self.epoch = 0, 0

    async def fetch(
        self,
        partitions: Sequence[tuple[int, int]] = (),
        *,
        max_wait: int = 0,
        isolation: int = 1,
        min_bytes: int = 1,
        max_bytes: int = 1 << 20,
    ) -> Any:
        """Fetch; adds these partitions with their offsets. Returns the fields of those in the response, by number."""
        parts = [
            {"partition": number, "fetch_offset": offset, "partition_max_bytes": 1 << 20}
            for number, offset in partitions
        ]
        fields: dict[str, Any] = {"session_id": self.session, "session_epoch": self.epoch, "max_bytes": max_bytes}
        fields |= {
            "max_wait": max_wait,
            "min_bytes": min_bytes,
            "isolation_level": isolation,
            "forgotten_topics_data": [],
        }
        fields["topics"] = [{"topic": "t", "partitions": parts}]
        body = build(load_request_schema(Api.FETCH, VERSION), fields)
        self.epoch += 1
        response = await self._fetch.fetch(Request(Api.FETCH, VERSION, 1, None, body), self.client)
        self.session = cast("int", response["session_id"])
        topics = cast("Any", response["responses"])
        return {part["partition_index"]: part for topic in topics for part in topic["partitions"]}

    async def begin_to_wait(self, *args: Any, **options: Any) -> asyncio.Task[Any]:
        """Begin a fetch that waits for records."""
        task = asyncio.create_task(self.fetch(*args, max_wait=30_000, **options))
        while not self._is_waiting():
            assert not task.done()
            await asyncio.sleep(0)
        return task

    def _is_waiting(self) -> bool:
        watched = self._freshness._watched.values()
        return any(watch._wake is not None for partition in watched for watch in partition.watches)


def run(store: Store, scenario: Callable[[Consumer, Freshness], Awaitable[None]]) -> None:
    async def with_consumer() -> None:
        with ThreadPoolExecutor(4) as threads:
            freshness, none = Freshness(store._connection, threads), cast("Any", None)  # Fetch uses no other part.
            services = Services(store._connection, threads, none, none, freshness, none, none)
            await scenario(Consumer(Fetch(services, HotBatches()), freshness), freshness)
            await freshness.close()

    asyncio.run(with_consumer())


async def send(store: Store, freshness: Freshness, partition: int) -> None:
    """Append a record, and let the gateway know."""
    with store.producer() as producer:
        producer.send("t", b"v", partition=partition)
    await freshness.head()


def test_the_first_response_names_all_partitions_also_after_a_wait(store: Store) -> None:
    """Java's consumer drops a response that does not, with its records."""

    async def scenario(consumer: Consumer, freshness: Freshness) -> None:
        waiting = await consumer.begin_to_wait([(0, 0), (1, 0), (2, 0)])
        await send(store, freshness, 1)
        parts = await waiting
        assert {number: bool(part["records"]) for number, part in parts.items()} == {0: False, 1: True, 2: False}
        assert sorted(await consumer.fetch()) == [1]

    run(store, scenario)


def test_a_partition_that_was_added_is_named_also_after_a_wait(store: Store) -> None:
    """Kafka Streams waits until it knows the end of each partition."""

    async def scenario(consumer: Consumer, freshness: Freshness) -> None:
        await consumer.fetch([(0, 0)])
        waiting = await consumer.begin_to_wait([(1, 0)])
        await send(store, freshness, 0)
        assert sorted(await waiting) == [0, 1]

    run(store, scenario)


def test_offsets_that_changed_before_the_records_came_are_named(store: Store) -> None:
    """The client knows nothing of a partition that a fetch has read and that another one made it read again."""

    async def scenario(consumer: Consumer, freshness: Freshness) -> None:
        await consumer.fetch([(0, 0), (1, 0)])
        with store.producer("id") as producer, producer.transaction() as txn:
            txn.send("t", b"v", partition=0)
            producer.flush()
            await freshness.head()
            waiting = await consumer.begin_to_wait()
            await send(store, freshness, 1)
            parts = await waiting
            assert {number: part["high_watermark"] for number, part in parts.items()} == {0: 1, 1: 1}
            assert sorted(await consumer.fetch([(1, 1)])) == []

    run(store, scenario)


def test_a_fetch_that_is_cancelled_leaves_nothing(store: Store) -> None:
    """Its client has closed the connection."""

    async def scenario(consumer: Consumer, freshness: Freshness) -> None:
        waiting = await consumer.begin_to_wait([(0, 0), (1, 0)])
        waiting.cancel()
        await asyncio.wait({waiting})
        assert not consumer._is_waiting()
        assert freshness.waiters == 0

    run(store, scenario)


def test_a_fetch_of_another_connection_does_not_hide_records(store: Store) -> None:
    """A client goes back, on another connection, while its last fetch waits at the end of the log."""

    async def scenario(consumer: Consumer, freshness: Freshness) -> None:
        await send(store, freshness, 0)
        await consumer.fetch([(0, 1), (1, 0)])
        waiting = await consumer.begin_to_wait()
        assert sorted(await consumer.fetch([(0, 0)])) == [0]
        await send(store, freshness, 1)
        await waiting
        assert sorted(await consumer.fetch()) == [0, 1]

    run(store, scenario)


def test_a_marker_takes_the_room_of_its_own_batch(store: Store) -> None:
    """Not that of the records before it."""

    async def scenario(consumer: Consumer, freshness: Freshness) -> None:
        with store.producer("id") as producer, producer.transaction() as txn:
            txn.send("t", b"v" * 1000, partition=0)
        await send(store, freshness, 1)
        parts = await consumer.fetch([(0, 0), (1, 0)])
        consumer.session = consumer.epoch = 0
        room = sum(len(part["records"]) for part in parts.values())
        assert await consumer.fetch([(0, 0), (1, 0)], max_bytes=room) == parts

    run(store, scenario)


def test_the_number_of_a_session_is_a_positive_int32(store: Store) -> None:
    async def scenario(consumer: Consumer, _: Freshness) -> None:
        for _number in range(32):
            consumer.session = consumer.epoch = 0
            await consumer.fetch([(0, 0)])
            assert 0 < consumer.session < 2**31

    run(store, scenario)


def test_an_error_of_a_session_names_no_session(store: Store) -> None:
    async def scenario(consumer: Consumer, _: Freshness) -> None:
        await consumer.fetch([(0, 0)])
        assert consumer.session > 0
        consumer.epoch = 7
        assert await consumer.fetch() == {}
        assert consumer.session == 0

    run(store, scenario)


@pytest.mark.parametrize("has_waited", [False, True])
def test_a_right_that_is_withdrawn_is_an_error_though_the_log_has_not_changed(has_waited: bool) -> None:
    """Also for a session that keeps what its last request has read."""
    denial = Acl("User:alice", "DENY", "READ", "TOPIC", "t")
    with create_on(MemoryStore(), principal="User:gateway") as store:
        store.create_topic("t")
        store.acls.enable(["User:gateway"])
        store.acls.create(Acl("User:alice", "ALLOW", "READ", "TOPIC", "t"))

        async def scenario(consumer: Consumer, _: Freshness) -> None:
            consumer.client.principal = "User:alice"
            assert (await consumer.fetch([(0, 0)]))[0]["error_code"] is ErrorCode.none
            if has_waited:
                assert await consumer.fetch(max_wait=1) == {}
            store.acls.create(denial)
            assert (await consumer.fetch(max_wait=1))[0]["error_code"] is ErrorCode.topic_authorization_failed
            store.acls.delete(denial)
            assert (await consumer.fetch(max_wait=1))[0]["error_code"] is ErrorCode.none

        run(store, scenario)


async def produce_hot(consumer: Consumer, store: Store, freshness: Freshness, size: int) -> None:
    """Append a batch that the gateway has in memory, as a Produce request leaves it."""
    end = (await freshness.head()).partitions[TopicPartition("t", 0)].high_watermark
    consumer.hot_batches.add(freshness.view.topics["t"].topic_id, 0, end, end + 1, bytes(size))
    await send(store, freshness, 0)


def test_batches_in_memory_are_counted_and_read_once_there_are_enough(store: Store) -> None:
    """A consumer that waits for many bytes costs an entry a look at their sizes."""

    async def scenario(consumer: Consumer, freshness: Freshness) -> None:
        waiting = await consumer.begin_to_wait([(0, 0)], min_bytes=250)
        for _ in range(2):
            await produce_hot(consumer, store, freshness, 100)
            assert not waiting.done()
        assert consumer.hot_batches.hits == 0
        await produce_hot(consumer, store, freshness, 100)
        assert len((await waiting)[0]["records"]) == 300
        assert consumer.hot_batches.hits == 3

    run(store, scenario)


def test_too_few_bytes_are_answered_at_the_end_of_the_wait(store: Store) -> None:
    async def scenario(consumer: Consumer, freshness: Freshness) -> None:
        await produce_hot(consumer, store, freshness, 100)
        assert len((await consumer.fetch([(0, 0)], max_wait=1, min_bytes=250))[0]["records"]) == 100

    run(store, scenario)


@pytest.mark.parametrize("max_bytes", [250, 150])
def test_a_client_gets_at_most_max_bytes_whatever_min_bytes_is(store: Store, max_bytes: int) -> None:
    """As in Kafka; and at once, though the next batch does not fit, and no response can have as many bytes."""

    async def scenario(consumer: Consumer, freshness: Freshness) -> None:
        for _ in range(3):
            await produce_hot(consumer, store, freshness, 100)
        parts = await consumer.fetch([(0, 0)], max_wait=30_000, min_bytes=1 << 20, max_bytes=max_bytes)
        assert len(parts[0]["records"]) == max_bytes // 100 * 100

    run(store, scenario)


def test_a_refusal_is_answered_at_once_though_no_byte_is_there(store: Store) -> None:
    async def scenario(consumer: Consumer, _: Freshness) -> None:
        parts = await consumer.fetch([(0, 0), (9, 0)], max_wait=30_000, min_bytes=250)
        assert parts[9]["error_code"] is ErrorCode.unknown_topic_or_partition
        parts = await consumer.fetch([(0, 7)], max_wait=30_000, min_bytes=250)
        assert parts[0]["error_code"] is ErrorCode.offset_out_of_range

    run(store, scenario)


def test_records_that_must_be_read_from_the_storage_are_read(store: Store) -> None:
    """Their bytes in a response are known only then."""

    async def scenario(consumer: Consumer, freshness: Freshness) -> None:
        waiting = await consumer.begin_to_wait([(0, 0)], min_bytes=1 << 19)
        with store.producer() as producer:
            producer.send("t", bytes(600_000), partition=0)
        await freshness.head()
        assert len((await waiting)[0]["records"]) > 1 << 19

    run(store, scenario)


# What a session keeps from one request to the next --------------------------------------------------------------------


def test_a_consumer_that_waits_again_looks_at_no_partition(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the number of its partitions; and it gets the records that come to one of them."""

    async def scenario(consumer: Consumer, freshness: Freshness) -> None:
        await consumer.fetch([(0, 0), (1, 0), (2, 0)])
        assert await consumer.fetch(max_wait=1) == {}
        looked_at: list[int] = []
        has_nothing_new = SessionPartition.has_nothing_new

        def counted(partition: SessionPartition, *arguments: Any) -> bool:
            looked_at.append(partition.requested.partition)
            return has_nothing_new(partition, *arguments)

        monkeypatch.setattr(SessionPartition, "has_nothing_new", counted)
        monkeypatch.setattr(Fetch, "_resolve", None)
        assert await consumer.fetch(max_wait=1) == {}
        waiting = await consumer.begin_to_wait()
        assert looked_at == []
        await send(store, freshness, 1)
        assert sorted(await waiting) == [1]
        assert looked_at == [1]

    run(store, scenario)


def test_records_that_came_between_two_requests_are_read(store: Store) -> None:
    async def scenario(consumer: Consumer, freshness: Freshness) -> None:
        await consumer.fetch([(0, 0), (1, 0)])
        for number in (0, 1):
            assert await consumer.fetch(max_wait=1) == {}
            await send(store, freshness, number)
            assert sorted(await consumer.fetch(max_wait=30_000)) == [number]
            assert await consumer.fetch([(number, 1)]) == {}

    run(store, scenario)


def test_a_topic_that_was_created_again_is_found_again(store: Store) -> None:
    async def scenario(consumer: Consumer, freshness: Freshness) -> None:
        await consumer.fetch([(0, 0)])
        assert await consumer.fetch(max_wait=1) == {}
        waiting = await consumer.begin_to_wait()
        store.delete_topic("t")
        await freshness.head()
        assert (await waiting)[0]["error_code"] is ErrorCode.unknown_topic_or_partition
        store.create_topic("t", partitions=3)
        await send(store, freshness, 0)
        assert (await consumer.fetch())[0]["records"]

    run(store, scenario)


def test_another_isolation_reads_what_the_last_one_did_not_show(store: Store) -> None:
    async def scenario(consumer: Consumer, freshness: Freshness) -> None:
        with store.producer("id") as producer, producer.transaction() as txn:
            txn.send("t", b"v", partition=0)
            producer.flush()
            await freshness.head()
            await consumer.fetch([(0, 0)])
            assert await consumer.fetch(max_wait=1) == {}
            assert (await consumer.fetch(isolation=0))[0]["records"]

    run(store, scenario)


def test_a_session_that_ends_watches_nothing(store: Store) -> None:
    async def scenario(consumer: Consumer, freshness: Freshness) -> None:
        await consumer.fetch([(0, 0)])
        assert await consumer.fetch(max_wait=1) == {}
        assert len(freshness._watched) == 1
        waiting = await consumer.begin_to_wait()
        consumer.epoch = -1
        await consumer.fetch([(0, 0)])  # It ends the session, while a request of it waits.
        await send(store, freshness, 0)
        await waiting
        assert freshness._watched == {}

    run(store, scenario)
