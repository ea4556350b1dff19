"""Transactions of Kafka's clients through a gateway: librdkafka and aiokafka speak version 1 of them."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiokafka
import confluent_kafka
import pytest

import txnstore
from tests.helpers.gateway import RunningGateway, serving
from tests.helpers.kafka_wire import RawClient
from txnstore.core.model import TopicPartition
from txnstore.core.routing import chain_of_group, chain_of_transactional_id
from txnstore.gateway.apis import Api
from txnstore.gateway.peers import Node, Peers


@pytest.fixture(params=[1, 3])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[txnstore.Store]:
    with txnstore.create(str(tmp_path), request.param) as created:
        created.create_topic("in", partitions=3)
        created.create_topic("out", partitions=3)
        yield created


@pytest.fixture
def gateway(store: txnstore.Store) -> Iterator[RunningGateway]:
    with serving(store) as running:
        yield running


def _producer(gateway: RunningGateway, name: str = "job") -> confluent_kafka.Producer:
    producer = confluent_kafka.Producer({"bootstrap.servers": gateway.bootstrap, "transactional.id": name})
    producer.init_transactions(30)
    return producer


def _values(store: txnstore.Store, topic: str = "out", isolation: Any = "read_committed") -> list[bytes]:
    return sorted(store.scan(topic, isolation=isolation).to_table()["value"].to_pylist())


def test_many_transactions_of_one_epoch(gateway: RunningGateway, store: txnstore.Store) -> None:
    """TV1: each is committed or aborted as its client asks, though all have the same producer id and epoch."""
    producer = _producer(gateway)
    expected = []
    for number in range(8):
        producer.begin_transaction()
        values = [b"%d-%d" % (number, each) for each in range(5)]
        for each, value in enumerate(values):
            producer.produce("out", value, partition=each % 3)
        if number % 3 == 1:
            producer.abort_transaction(30)
        else:
            producer.commit_transaction(30)
            expected += values
    assert _values(store) == sorted(expected)


def test_a_newer_instance_fences_the_older_one(gateway: RunningGateway, store: txnstore.Store) -> None:
    older = _producer(gateway)
    older.begin_transaction()
    older.produce("out", b"old", partition=0)
    older.flush(30)
    newer = _producer(gateway)
    newer.begin_transaction()
    newer.produce("out", b"new", partition=0)
    newer.commit_transaction(30)
    older.produce("out", b"late", partition=0)
    with pytest.raises(confluent_kafka.KafkaException) as raised:
        older.commit_transaction(30)
    assert raised.value.args[0].fatal()
    assert _values(store) == [b"new"]


def test_a_transaction_that_others_aborted_is_not_committed(gateway: RunningGateway, store: txnstore.Store) -> None:
    producer = _producer(gateway)
    producer.begin_transaction()
    producer.produce("out", b"value", partition=1)
    producer.flush(30)
    store.abort_transaction("job")
    with pytest.raises(confluent_kafka.KafkaException):
        producer.commit_transaction(30)
    assert _values(store) == []


def test_offsets_are_committed_with_the_records(gateway: RunningGateway, store: txnstore.Store) -> None:
    """OFF: consume, transform, produce; what is read again after a restart is nothing."""
    with store.producer() as writer:
        for number in range(12):
            writer.send("in", value=b"%d" % number, partition=number % 3)
    config = {"bootstrap.servers": gateway.bootstrap, "group.id": "g", "auto.offset.reset": "earliest"}
    consumer = confluent_kafka.Consumer({**config, "enable.auto.commit": False})
    consumer.subscribe(["in"])
    producer = _producer(gateway)
    read = 0
    while read < 12:
        messages = consumer.consume(4, timeout=30)
        producer.begin_transaction()
        for message in messages:
            assert message.error() is None
            producer.produce("out", b"out " + (message.value() or b""), partition=message.partition() or 0)
        producer.send_offsets_to_transaction(
            consumer.position(consumer.assignment()), consumer.consumer_group_metadata(), 30
        )
        producer.commit_transaction(30)
        read += len(messages)
    consumer.close()
    assert _values(store) == sorted(b"out %d" % number for number in range(12))
    positions = {position.tp: position.offset for position in store.group("g").positions}
    assert positions == {TopicPartition("in", number): 4 for number in range(3)}


def test_aborted_offsets_are_not_committed(gateway: RunningGateway, store: txnstore.Store) -> None:
    producer = _producer(gateway)
    consumer = confluent_kafka.Consumer({"bootstrap.servers": gateway.bootstrap, "group.id": "g"})
    metadata = consumer.consumer_group_metadata()
    for offset, ends in ((1, producer.commit_transaction), (2, producer.abort_transaction)):
        producer.begin_transaction()
        producer.send_offsets_to_transaction([confluent_kafka.TopicPartition("in", 0, offset)], metadata, 30)
        ends(30)
    consumer.close()
    (position,) = store.group("g").positions
    assert position.offset == 1


def test_aiokafka_commits_and_aborts(gateway: RunningGateway, store: txnstore.Store) -> None:
    async def run() -> None:
        producer = aiokafka.AIOKafkaProducer(bootstrap_servers=gateway.bootstrap, transactional_id="aio")
        await producer.start()
        for number in range(4):
            await producer.begin_transaction()
            await producer.send_and_wait("out", b"%d" % number, partition=0)
            await (producer.abort_transaction() if number == 2 else producer.commit_transaction())
        await producer.stop()

    asyncio.run(run())
    assert _values(store) == [b"0", b"1", b"3"]
    assert _values(store, isolation="read_uncommitted") == [b"0", b"1", b"2", b"3"]


def test_a_transaction_continues_at_another_gateway(store: txnstore.Store) -> None:
    """The client's gateway dies in a transaction; the other one knows all that was acknowledged."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(2)]
    peers = [bound.getsockname() for bound in sockets]
    gateways = [RunningGateway(store, bound=bound, peers=peers) for bound in sockets]
    for gateway in gateways:
        gateway.start()
    servers = ",".join(gateway.bootstrap for gateway in gateways)
    producer = confluent_kafka.Producer({"bootstrap.servers": servers, "transactional.id": "job"})
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce("out", b"before", partition=0)
    assert producer.flush(30) == 0
    gateways[0].stop()
    producer.produce("out", b"after", partition=1)
    producer.commit_transaction(60)
    producer.begin_transaction()
    producer.produce("out", b"next", partition=2)
    producer.commit_transaction(60)
    gateways[1].stop()
    assert _values(store) == [b"after", b"before", b"next"]


def _led_by_both(chains: int) -> tuple[list[socket.socket], Peers]:
    """Addresses of two gateways each of which leads a chain."""
    while True:
        sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(2)]
        nodes = [Node(number, *bound.getsockname()) for number, bound in enumerate(sockets)]
        peers = Peers(nodes, nodes[0], chains, "store", encrypted=False, on_change=lambda: None)
        peers.live = tuple(nodes)
        if len({peers.leader(chain) for chain in range(chains)}) == 2:
            return sockets, peers
        for bound in sockets:
            bound.close()


def test_librdkafka_finds_the_next_coordinator_of_a_group(tmp_path: Path) -> None:
    """Librdkafka waits forever if the coordinator that it knows has left its metadata (issues 5456 and 5511)."""
    sockets, peers = _led_by_both(2)
    transactional_id = next(
        n for n in map(str, range(99)) if peers.leader(chain_of_transactional_id(n, 2)).node_id == 0
    )
    group = next(name for name in map(str, range(99)) if peers.leader(chain_of_group(name, 2)).node_id == 1)
    addresses = [bound.getsockname() for bound in sockets]
    with txnstore.create(str(tmp_path), 2) as store:
        store.create_topic("out", partitions=1)
        gateways = [RunningGateway(store, bound=bound, peers=addresses) for bound in sockets]
        for gateway in gateways:
            gateway.start()
        settings: dict[str, Any] = {"bootstrap.servers": gateways[0].bootstrap, "log_level": 0}
        producer = confluent_kafka.Producer({**settings, "transactional.id": transactional_id})
        consumer = confluent_kafka.Consumer({**settings, "group.id": group})
        while len(producer.list_topics(timeout=30).brokers) < 2:
            pass  # The test's own timeout ends it.
        producer.init_transactions(30)
        sent: list[int] = []

        def send(offset: int) -> None:
            positions = [confluent_kafka.TopicPartition("out", 0, offset)]
            producer.send_offsets_to_transaction(positions, consumer.consumer_group_metadata(), 30)
            sent.append(offset)

        producer.begin_transaction()
        send(1)
        producer.commit_transaction(30)
        gateways[1].stop()
        sockets[1].close()
        with RawClient(gateways[0]) as client:
            while client.ask(Api.FIND_COORDINATOR, {"key": group, "key_type": 0}, 3).node_id != 0:
                pass
        producer.list_topics(timeout=30)
        producer.begin_transaction()
        sending = threading.Thread(target=send, args=(2,), daemon=True)
        sending.start()
        sending.join(90)
        assert sent == [1, 2]
        producer.commit_transaction(30)
        gateways[0].stop()
        assert [each.offset for each in store.group(group).positions] == [2]
