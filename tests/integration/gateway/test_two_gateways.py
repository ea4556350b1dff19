"""Two gateways of one store: what is written through one is read through the other."""

from __future__ import annotations

from pathlib import Path

import txnstore
from tests.helpers.gateway import serving
from tests.helpers.kafka_batches import values_batch
from tests.helpers.kafka_wire import RawClient
from txnstore.gateway.apis import Api


def test_a_consumer_that_never_waits_gets_the_records_of_another_gateway(tmp_path: Path) -> None:
    """``fetch.max.wait.ms=0``: no fetch is under way when the gateway looks whether any waits."""
    partition = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1 << 20}
    asked = {"max_wait": 0, "min_bytes": 1, "max_bytes": 1 << 20, "topics": [{"topic": "t", "partitions": [partition]}]}
    batch = {"index": 0, "records": values_batch([b"v"])}
    with txnstore.create(tmp_path) as first, txnstore.open(tmp_path) as second:
        first.create_topic("t", partitions=1)
        with serving(first) as one, serving(second) as two, RawClient(one) as producer, RawClient(two) as consumer:
            assert not consumer.ask(Api.FETCH, asked, 11).responses[0].partitions[0].records
            topics = [{"name": "t", "partition_data": [batch]}]
            response = producer.ask(Api.PRODUCE, {"acks": -1, "topic_data": topics}, 9)
            assert response.responses[0].partition_responses[0].base_offset == 0
            while not consumer.ask(Api.FETCH, asked, 11).responses[0].partitions[0].records:
                pass  # The test's own timeout ends it.
