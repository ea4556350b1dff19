"""Clients of others write to a store and read it through a gateway: librdkafka, kafka-python, aiokafka."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import aiokafka
import confluent_kafka
import kafka
import pytest
from kio.schema.errors import ErrorCode

import txnstore
from tests.helpers.gateway import RunningGateway, serving
from tests.helpers.gateway_process import Client, fetch_fields
from tests.helpers.kafka_wire import ServedStore
from txnstore.gateway.apis import Api
from txnstore.storage.memory import MemoryStore
from txnstore.store import create_on, open_on

CODECS = ["none", "gzip", "snappy", "lz4", "zstd"]


@pytest.fixture(params=[1, 3])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[txnstore.Store]:
    with txnstore.create(str(tmp_path), request.param) as created:
        created.create_topic("t", partitions=3)
        yield created


@pytest.fixture
def gateway(store: txnstore.Store) -> Iterator[RunningGateway]:
    with serving(store) as running:
        yield running


def _produce(gateway: RunningGateway, records: Sequence[dict[str, Any]], **config: Any) -> list[tuple[int, int]]:
    """Write records with librdkafka; returns the partition and the offset of each."""
    places: list[tuple[int, int]] = []

    def delivered(error: Any, message: Any) -> None:
        assert error is None
        places.append((message.partition(), message.offset()))

    producer = confluent_kafka.Producer({"bootstrap.servers": gateway.bootstrap, **config})
    for record in records:
        producer.produce(**record, on_delivery=delivered)
    assert producer.flush(30) == 0
    return places


def _consume(gateway: RunningGateway, count: int, *, partitions: int = 3, **config: Any) -> list[Any]:
    """Read records with librdkafka from the beginning of each partition."""
    settings = {"bootstrap.servers": gateway.bootstrap, "group.id": "unused", "enable.auto.commit": False, **config}
    consumer = confluent_kafka.Consumer(settings)
    try:
        consumer.assign([confluent_kafka.TopicPartition("t", number, 0) for number in range(partitions)])
        messages: list[Any] = []
        while len(messages) < count:
            (message,) = consumer.consume(1, timeout=30)
            assert message.error() is None
            messages.append(message)
        return messages
    finally:
        consumer.close()


@pytest.mark.parametrize("codec", CODECS)
def test_records_of_librdkafka_come_back(gateway: RunningGateway, store: txnstore.Store, codec: str) -> None:
    records = [
        {"topic": "t", "key": f"k{number}", "value": f"value {number}" * 9, "headers": [("h", b"\x00"), ("h", None)]}
        for number in range(200)
    ]
    places = _produce(gateway, [*records, {"topic": "t", "key": b"", "value": None}], **{"compression.type": codec})
    assert len(set(places)) == 201
    read = _consume(gateway, 201)
    assert {(each.key(), each.value()) for each in read} == {
        *((str(each["key"]).encode(), str(each["value"]).encode()) for each in records),
        (b"", None),
    }
    assert [each.headers() for each in read if each.value() is not None] == [[("h", b"\x00"), ("h", None)]] * 200
    # Beside the gateway, the library reads the same.
    table = store.scan("t").to_table()
    assert table.num_rows == 201
    assert sorted(zip(table["_partition"].to_pylist(), table["_offset"].to_pylist(), strict=True)) == sorted(places)


@pytest.mark.parametrize("codec", [None, "gzip"])  # It lacks the libraries of the others.
def test_records_of_kafka_python_come_back(gateway: RunningGateway, codec: str | None) -> None:
    producer = kafka.KafkaProducer(bootstrap_servers=gateway.bootstrap, compression_type=codec)
    futures = [
        producer.send("t", f"v{number}".encode(), key=b"k", partition=number % 3, timestamp_ms=1_000 + number)
        for number in range(30)
    ]
    offsets = [future.get(30).offset for future in futures]
    producer.close()
    assert offsets == [number // 3 for number in range(30)]
    consumer = kafka.KafkaConsumer(bootstrap_servers=gateway.bootstrap, group_id=None, auto_offset_reset="earliest")
    tps = [kafka.TopicPartition("t", number) for number in range(3)]
    consumer.assign(tps)
    records = list(islice(consumer, 30))
    assert sorted((each.value, each.timestamp) for each in records) == sorted(
        (f"v{number}".encode(), 1_000 + number) for number in range(30)
    )
    assert consumer.beginning_offsets(tps) == dict.fromkeys(tps, 0)
    assert consumer.end_offsets(tps) == dict.fromkeys(tps, 10)
    found = consumer.offsets_for_times(dict.fromkeys(tps, 1_010))
    assert {tp.partition: each.offset for tp, each in found.items()} == {0: 4, 1: 3, 2: 3}
    consumer.close()


@pytest.mark.parametrize("idempotent", [True, False])
def test_records_of_aiokafka_come_back(gateway: RunningGateway, *, idempotent: bool) -> None:
    """Without idempotence it sends sequence numbers, and no producer id."""

    async def run() -> list[bytes | None]:
        producer = aiokafka.AIOKafkaProducer(bootstrap_servers=gateway.bootstrap, enable_idempotence=idempotent)
        await producer.start()
        for number in range(20):
            await producer.send_and_wait("t", f"v{number}".encode(), partition=0)
        await producer.stop()
        consumer = aiokafka.AIOKafkaConsumer(bootstrap_servers=gateway.bootstrap, auto_offset_reset="earliest")
        await consumer.start()
        consumer.assign([aiokafka.TopicPartition("t", 0)])
        values = [(await consumer.getone()).value for _ in range(20)]
        await consumer.stop()
        return values

    assert asyncio.run(run()) == [f"v{number}".encode() for number in range(20)]


def test_records_of_the_library_are_read_by_kafka_clients(gateway: RunningGateway, store: txnstore.Store) -> None:
    """Committed by others, aborted, and behind a marker: a read_committed consumer reaches the end of the log."""
    with store.producer("job") as producer:
        with producer.transaction():
            producer.send("t", value=b"committed", key=b"k", partition=0)
        producer.begin_transaction()
        producer.send("t", value=b"aborted", key=b"k", partition=0)
        producer.flush()
        producer.abort_transaction()
        with producer.transaction():
            producer.send("t", value=b"last", key=b"k", partition=0)
    read = _consume(gateway, 2, partitions=1, **{"isolation.level": "read_committed"})
    assert [each.value() for each in read] == [b"committed", b"last"]
    read = _consume(gateway, 3, partitions=1, **{"isolation.level": "read_uncommitted"})
    assert [each.value() for each in read] == [b"committed", b"aborted", b"last"]
    consumer = kafka.KafkaConsumer(
        bootstrap_servers=gateway.bootstrap,
        group_id=None,
        auto_offset_reset="earliest",
        isolation_level="read_committed",
    )
    tp = kafka.TopicPartition("t", 0)
    consumer.assign([tp])
    records = [record.value for record in islice(consumer, 2)]
    assert records == [b"committed", b"last"]
    end = store.offsets("t", 0).last_stable
    while consumer.position(tp) < end:  # The position passes the marker, though no record follows it.
        assert consumer.poll(timeout_ms=1000) == {}
    consumer.close()


def test_a_fetch_begins_inside_a_batch(gateway: RunningGateway, store: txnstore.Store) -> None:
    with store.producer() as producer:
        for number in range(10):
            producer.send("t", value=b"%d" % number, partition=0)
    consumer = kafka.KafkaConsumer(bootstrap_servers=gateway.bootstrap, group_id=None)
    tp = kafka.TopicPartition("t", 0)
    consumer.assign([tp])
    consumer.seek(tp, 7)
    assert [record.value for record in islice(consumer, 3)] == [b"7", b"8", b"9"]
    consumer.close()


def test_an_offset_out_of_range_is_refused(gateway: RunningGateway) -> None:
    consumer = kafka.KafkaConsumer(bootstrap_servers=gateway.bootstrap, group_id=None, auto_offset_reset="none")
    tp = kafka.TopicPartition("t", 0)
    consumer.assign([tp])
    consumer.seek(tp, 7)
    with pytest.raises(kafka.errors.OffsetOutOfRangeError):
        consumer.poll(timeout_ms=30_000)
    consumer.close()


def test_a_record_that_is_too_large_is_refused_alone(gateway: RunningGateway, store: txnstore.Store) -> None:
    store.alter_topic("t", config={"max.message.bytes": 10_000})
    small, large = _outcomes(gateway, "t", b"small", b"x" * 20_000)
    assert small is None
    assert large.code() == confluent_kafka.KafkaError.MSG_SIZE_TOO_LARGE


def test_a_gateway_has_a_limit_for_topics_without_one(store: txnstore.Store) -> None:
    store.create_topic("own", config={"max.message.bytes": 30_000})
    with serving(store, {"message.max.bytes": "10000"}) as gateway:
        (refused,), (taken,) = (_outcomes(gateway, topic, b"x" * 20_000) for topic in ("t", "own"))
    assert refused.code() == confluent_kafka.KafkaError.MSG_SIZE_TOO_LARGE
    assert taken is None


def _outcomes(gateway: RunningGateway, topic: str, *values: bytes) -> list[Any]:
    """Write records to a partition, one after the other; returns the error of each."""
    errors: list[Any] = []
    producer = confluent_kafka.Producer({"bootstrap.servers": gateway.bootstrap, "linger.ms": 0})
    for value in values:
        producer.produce(topic, value, partition=0, on_delivery=lambda error, _: errors.append(error))
        assert producer.flush(30) == 0
    return errors


def test_a_compacted_topic_needs_keys(gateway: RunningGateway, store: txnstore.Store) -> None:
    store.create_topic("c", config={"cleanup.policy": "compact"})
    errors: list[Any] = []
    producer = confluent_kafka.Producer({"bootstrap.servers": gateway.bootstrap})
    producer.produce("c", b"v", on_delivery=lambda error, _: errors.append(error))
    assert producer.flush(30) == 0
    assert [error.code() for error in errors] == [confluent_kafka.KafkaError.INVALID_RECORD]
    assert store.scan("c").to_table().num_rows == 0


def test_an_unknown_topic_is_created_where_that_is_allowed(store: txnstore.Store) -> None:
    with serving(store, {"auto.create.topics.enable": "true", "num.partitions": "2"}) as gateway:
        producer = kafka.KafkaProducer(bootstrap_servers=gateway.bootstrap)
        producer.send("new", b"v").get(30)
        producer.close()
    assert store.topic("new").partitions == 2


def test_large_batches_are_uploaded_and_read_cold(store: txnstore.Store, tmp_path: Path) -> None:
    """A gateway that has appended nothing itself reads segments."""
    values = [bytes([number]) * 100_000 for number in range(20)]
    with serving(store) as gateway:
        _produce(gateway, [{"topic": "t", "value": value, "partition": 1} for value in values])
    assert list(tmp_path.rglob("*.parquet"))
    with serving(store) as gateway:
        assert [each.value() for each in _consume(gateway, 20)] == values


def test_a_fetch_reads_the_head_after_a_pause(gateway: RunningGateway, tmp_path: Path) -> None:
    """A gateway that had no clients for long knows neither new records nor which segments are deleted by now."""
    with txnstore.open(str(tmp_path)) as other, other.producer() as producer:
        producer.send("t", value=b"of another process", partition=0)
    with Client(*gateway.address) as client:  # It asks for nothing else, as a consumer that has its metadata.
        part = client.ask(Api.FETCH, 11, fetch_fields("t", 0)).responses[0].partitions[0]
    assert (part.error_code, b"of another process" in part.records) == (0, True)


def test_the_first_fetch_by_name_is_of_the_topic_that_exists() -> None:
    """Another process has created it again since the gateway read the catalog."""
    objects = MemoryStore()
    with create_on(objects) as store:
        store.create_topic("t")
        with open_on(objects) as other:
            other.delete_topic("t")
            other.create_topic("t")
            with other.producer() as producer:
                producer.send("t", value=b"new").result()
        with serving(store) as gateway:
            answer = ServedStore(store, gateway).ask(Api.FETCH, fetch_fields("t", 0), 11)
    part = answer.responses[0].partitions[0]
    assert (part.error_code, part.high_watermark) == (ErrorCode.none, 1)
