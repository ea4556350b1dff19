"""Gateways of two zones: clients that name theirs are sent to its gateway."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import ExitStack

import confluent_kafka
import pytest
from confluent_kafka.admin import AdminClient

from tests.helpers.gateway import RunningGateway
from tests.helpers.kafka_wire import RawClient
from txnstore.gateway.apis import Api
from txnstore.gateway.metadata import rack_of
from txnstore.gateway.wire import Request
from txnstore.storage.memory import MemoryStore
from txnstore.store import create_on

PARTITIONS = 4


@pytest.fixture
def gateways() -> Iterator[list[RunningGateway]]:
    """One in the zone ``a`` and one in ``b``, who know each other's."""
    bound = [socket.create_server(("127.0.0.1", 0)) for _ in range(2)]
    addresses = [each.getsockname() for each in bound]
    with create_on(MemoryStore(), 2) as store, ExitStack() as running:
        store.create_topic("t", partitions=PARTITIONS)
        made = [
            RunningGateway(store, bound=each, peers=addresses, rack=rack)
            for each, rack in zip(bound, "ab", strict=True)
        ]
        for gateway in made:
            running.enter_context(gateway.running())
        while any(racks_seen_by(gateway) != {0: "a", 1: "b"} for gateway in made):
            pass  # They ask each other every second.
        yield made


def racks_seen_by(gateway: RunningGateway) -> dict[int, str | None]:
    with RawClient(gateway) as client:
        return {broker.node_id: broker.rack for broker in client.ask(Api.METADATA, {"topics": ()}, 9).brokers}


def leaders_for(gateway: RunningGateway, client_id: str) -> set[int]:
    """The leaders that a client of librdkafka learns of."""
    admin = AdminClient({"bootstrap.servers": gateway.bootstrap, "client.id": client_id})
    return {partition.leader for partition in admin.list_topics("t", 30).topics["t"].partitions.values()}


def test_a_client_that_names_its_zone_learns_of_leaders_there(gateways: list[RunningGateway]) -> None:
    for gateway in gateways:
        assert leaders_for(gateway, "billing") == {0, 1}
        assert leaders_for(gateway, "billing,rack=a") == {0}
        assert leaders_for(gateway, "rack=b") == {1}
        assert leaders_for(gateway, "rack=c") == {0, 1}, "no gateway is there"


def test_a_consumer_of_a_zone_reads_from_its_gateway(gateways: list[RunningGateway]) -> None:
    producer = confluent_kafka.Producer({"bootstrap.servers": gateways[0].bootstrap})
    for partition in range(PARTITIONS):
        producer.produce("t", b"v", partition=partition)
    assert producer.flush(60) == 0
    before = gateways[1].requests("FETCH")
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": gateways[0].bootstrap,
            "group.id": "g",
            "client.rack": "b",
            "auto.offset.reset": "earliest",
        }
    )
    consumer.assign([confluent_kafka.TopicPartition("t", number, 0) for number in range(PARTITIONS)])
    read = 0
    while read < PARTITIONS:
        message = consumer.poll(1)
        read += message is not None and message.error() is None
    consumer.close()
    assert gateways[1].requests("FETCH") > before


def test_a_gateway_of_another_zone_returns_no_records_but_the_gateway_to_ask(gateways: list[RunningGateway]) -> None:
    partition = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1 << 20}
    fields = {"max_wait": 30_000, "min_bytes": 1, "max_bytes": 1 << 20, "session_epoch": -1, "rack_id": "b"}
    for version in (11, 12):
        asked = {**fields, "topics": [{"topic": "t", "partitions": [partition, {**partition, "partition": 9}]}]}
        with RawClient(gateways[0]) as client:
            found, missing = client.ask(Api.FETCH, asked, version).responses[0].partitions
        assert (found.preferred_read_replica, found.records or b"", found.high_watermark) == (1, b"", 0)
        assert (missing.preferred_read_replica, missing.error_code.name) == (-1, "unknown_topic_or_partition")
    with RawClient(gateways[1]) as client:
        asked = {**fields, "max_wait": 0, "topics": [{"topic": "t", "partitions": [partition]}]}
        (own,) = client.ask(Api.FETCH, asked, 11).responses[0].partitions
    assert own.preferred_read_replica == -1


@pytest.mark.parametrize(
    ("client_id", "rack"),
    [(None, None), ("", None), ("rack=", None), ("a,rack=b", "b"), ("a, rack=b ,c", "b"), ("my-rack=b", None)],
)
def test_the_zone_is_a_part_of_the_client_id(client_id: str | None, rack: str | None) -> None:
    assert rack_of(Request(Api.METADATA, 9, 1, client_id, None)) == rack
