"""Fetch sessions on the wire: what an incremental response has, and what it leaves out because the client knows it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from tests.helpers.gateway import serving
from tests.helpers.kafka_wire import ServedStore
from txnstore.gateway.apis import Api
from txnstore.storage.memory import MemoryStore
from txnstore.store import create_on

#: A version that names topics by their names.
FETCH = 12


@pytest.fixture
def served() -> Iterator[ServedStore]:
    with create_on(MemoryStore()) as store, serving(store) as gateway:
        store.create_topic("t", partitions=3)
        yield ServedStore(store, gateway)


class Consumer:
    """A client with a session, each request on a connection of its own."""

    def __init__(self, served: ServedStore, isolation: int = 1) -> None:
        self._served, self._isolation = served, isolation
        self.session, self.epoch = 0, 0

    def fetch(
        self, offsets: dict[int, int] | None = None, forgotten: tuple[int, ...] = (), *, max_wait: int = 0
    ) -> dict[int, Any]:
        """The partitions of the next response, by number."""
        parts = [
            {"partition": number, "fetch_offset": offset, "partition_max_bytes": 1 << 20}
            for number, offset in (offsets or {}).items()
        ]
        fields = {
            "replica_id": -1,
            "max_wait": max_wait,
            "min_bytes": 1,
            "max_bytes": 1 << 20,
            "isolation_level": self._isolation,
            "session_id": self.session,
            "session_epoch": self.epoch,
            "topics": [{"topic": "t", "partitions": parts}] if parts else [],
            "forgotten_topics_data": [{"topic": "t", "partitions": [*forgotten]}] if forgotten else [],
        }
        response = self._served.ask(Api.FETCH, fields, FETCH)
        assert response.error_code is ErrorCode.none
        assert self.session in (0, response.session_id)
        self.session, self.epoch = response.session_id, self.epoch + 1
        return {part.partition_index: part for topic in response.responses for part in topic.partitions}


def send(served: ServedStore, *partitions: int) -> None:
    with served.store.producer() as producer:
        for partition in partitions:
            producer.send("t", b"v", partition=partition)


def test_the_first_response_names_all_partitions_and_later_ones_those_that_changed(served: ServedStore) -> None:
    consumer = Consumer(served)
    first = consumer.fetch({0: 0, 1: 0, 2: 0})
    assert {number: part.high_watermark for number, part in first.items()} == {0: 0, 1: 0, 2: 0}
    assert consumer.session > 0
    assert consumer.fetch() == {}
    send(served, 1)
    (part,) = consumer.fetch(max_wait=20_000).values()
    assert (part.partition_index, part.high_watermark, bool(part.records)) == (1, 1, True)
    (again,) = consumer.fetch().values()
    assert again.records == part.records, "the client has not said that it has read them"
    assert consumer.fetch({1: 1}) == {}
    send(served, 0, 1)
    assert sorted(consumer.fetch(max_wait=20_000)) == [0, 1]


def test_a_partition_that_the_client_has_forgotten_is_read_no_more(served: ServedStore) -> None:
    consumer = Consumer(served)
    consumer.fetch({0: 0, 1: 0})
    send(served, 0, 1)
    assert list(consumer.fetch(forgotten=(0,), max_wait=20_000)) == [1]
    assert list(consumer.fetch({2: 0, 1: 1})) == [2], "one that is new is always named"


def test_a_change_of_the_offsets_alone_is_news(served: ServedStore) -> None:
    """An open transaction moves the high watermark, and not what the client may read."""
    consumer, other = Consumer(served), Consumer(served, isolation=0)
    consumer.fetch({0: 0, 1: 0})
    with served.store.producer("id") as producer, producer.transaction() as txn:
        txn.send("t", b"v", partition=0)
        producer.flush()
        assert list(other.fetch({0: 0}, max_wait=20_000)) == [0]  # The gateway has seen it.
        (part,) = consumer.fetch().values()
        assert (part.high_watermark, part.last_stable_offset, bool(part.records)) == (1, 0, False)
        assert consumer.fetch() == {}
    (part,) = consumer.fetch(max_wait=20_000).values()
    assert (part.last_stable_offset, bool(part.records)) == (2, True)


def test_an_error_is_named_in_each_response_until_it_is_over(served: ServedStore) -> None:
    consumer = Consumer(served)
    first = consumer.fetch({0: 7, 1: 0, 3: 0})
    codes = {number: part.error_code for number, part in first.items()}
    assert codes == {
        0: ErrorCode.offset_out_of_range,
        1: ErrorCode.none,
        3: ErrorCode.unknown_topic_or_partition,
    }
    assert sorted(consumer.fetch()) == [0, 3]
    served.store.alter_topic("t", partitions=4)
    assert sorted(consumer.fetch({0: 0})) == [0, 3]
    assert consumer.fetch() == {}


def test_a_topic_that_was_created_again_is_another_one(served: ServedStore) -> None:
    consumer = Consumer(served)
    send(served, 0)
    consumer.fetch({0: 1})
    served.store.delete_topic("t")
    (part,) = consumer.fetch(max_wait=20_000).values()
    assert part.error_code is ErrorCode.unknown_topic_or_partition
    served.store.create_topic("t")
    (part,) = consumer.fetch().values()
    assert part.error_code is ErrorCode.offset_out_of_range


def test_clients_of_one_topic_have_sessions_of_their_own(served: ServedStore) -> None:
    one, other = Consumer(served), Consumer(served, isolation=0)
    one.fetch({0: 0})
    other.fetch({0: 0, 1: 0})
    assert one.session != other.session
    send(served, 1)
    assert list(other.fetch(max_wait=20_000)) == [1]
    assert one.fetch() == {}


def test_an_unknown_session_is_refused(served: ServedStore) -> None:
    fields = {"session_id": 7, "session_epoch": 1, "max_wait": 0, "min_bytes": 1, "topics": []}
    response = served.ask(Api.FETCH, fields, FETCH)
    assert (response.error_code, response.session_id) == (ErrorCode.fetch_session_id_not_found, 0)
