"""ListOffsets: the record with the greatest timestamp among those that a client may read (KIP-734)."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.helpers.gateway import serving
from tests.helpers.kafka_wire import ServedStore
from txnstore.core.model import TopicPartition
from txnstore.gateway.apis import Api
from txnstore.storage.memory import MemoryStore
from txnstore.store import Store, create_on

_GREATEST = -3


@pytest.fixture
def served() -> Iterator[ServedStore]:
    with create_on(MemoryStore()) as store, serving(store) as gateway:
        store.create_topic("t")
        yield ServedStore(store, gateway)


def _send(store: Store, *moments: int) -> None:
    """Append a batch with records of these times, in ms."""
    with store.producer() as producer:
        for moment in moments:
            producer.send("t", value=b"v", timestamp=moment)


def _greatest(served: ServedStore, isolation: int) -> tuple[int, int]:
    partition = {"partition_index": 0, "timestamp": _GREATEST}
    asked = {"isolation_level": isolation, "topics": [{"name": "t", "partitions": [partition]}]}
    (topic,) = served.ask(Api.LIST_OFFSETS, asked).topics
    return topic.partitions[0].offset, topic.partitions[0].timestamp


def test_an_aborted_record_is_not_the_one_with_the_greatest_timestamp(served: ServedStore) -> None:
    assert _greatest(served, 1) == (-1, -1)
    _send(served.store, 1_000)
    with served.store.producer("x") as producer:
        producer.begin_transaction()
        producer.send("t", value=b"v", timestamp=2_000)
        producer.flush()
        producer.abort_transaction()
    assert _greatest(served, 0) == (1, 2_000)
    assert _greatest(served, 1) == (0, 1_000)


@pytest.mark.parametrize(("start", "expected"), [(0, (0, 3_000)), (1, (4, 2_000)), (5, (5, 1_000))])
def test_a_deleted_record_is_not_the_one_with_the_greatest_timestamp(
    served: ServedStore, start: int, expected: tuple[int, int]
) -> None:
    """A part of a batch is deleted; of two records of the same time the first one counts."""
    _send(served.store, 3_000, 1_000, 1_500)
    _send(served.store, 1_000, 2_000, 1_000)
    _send(served.store, 500)
    served.store.delete_records({TopicPartition("t", 0): start})
    assert _greatest(served, 1) == expected
