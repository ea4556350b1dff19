"""What the event loop of a gateway converts itself."""

from __future__ import annotations

import pytest

from tests.helpers.kafka_batches import values_batch
from txnstore.core.catalog.model import CatalogTopic
from txnstore.core.model import ProducerIdentity, TopicPartition
from txnstore.gateway.produce import StagedBatch, _is_quick
from txnstore.gateway.records.batch import check_produced


def staged(size: int, codec: int = 0) -> StagedBatch:
    raw_batch = check_produced(values_batch([bytes(size)], codec=codec), 1 << 20)
    topic = CatalogTopic("t", "t-id", 1)
    return StagedBatch(topic, TopicPartition("t", 0), raw_batch, ProducerIdentity(), None, None)


@pytest.mark.parametrize(
    ("batches", "is_quick"),
    [
        ([staged(1)], True),
        ([staged(1_900)] * 4, True),
        ([staged(1)] * 5, False),
        ([staged(8_192)], False),
        ([staged(1), staged(1, codec=1)], False),
    ],
    ids=["one", "few", "many", "large", "compressed"],
)
def test_the_event_loop_converts_what_takes_a_millisecond(batches: list[StagedBatch], is_quick: bool) -> None:
    """Each batch may be encoded alone: 110 of them took 40 ms, in which no other client was served."""
    assert _is_quick(batches) is is_quick
