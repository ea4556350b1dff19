"""Topics with a schema, through a gateway: the value of a record is its row as JSON."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import confluent_kafka
import kafka
import pyarrow as pa
import pytest

import txnstore
from tests.helpers.gateway import RunningGateway, serving
from tests.helpers.gateway_process import Client, produce_fields, record_batch
from txnstore.gateway.apis import Api

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("name", pa.string())])


@pytest.fixture
def store(tmp_path: Path) -> Iterator[txnstore.Store]:
    with txnstore.create(str(tmp_path)) as created:
        created.create_topic("people", schema=SCHEMA, key="id", config={"cleanup.policy": "compact"})
        yield created


@pytest.fixture
def gateway(store: txnstore.Store) -> Iterator[RunningGateway]:
    with serving(store) as running:
        yield running


def _error(gateway: RunningGateway, value: bytes | None, **record: Any) -> Any:
    """The error of a record that is written; None if it is accepted."""
    errors: list[Any] = []
    producer = confluent_kafka.Producer({"bootstrap.servers": gateway.bootstrap, "linger.ms": 0})
    producer.produce("people", value, on_delivery=lambda error, _: errors.append(error), **record)
    assert producer.flush(30) == 0
    return errors[0]


def test_rows_are_written_and_read_as_json(gateway: RunningGateway, store: txnstore.Store) -> None:
    assert _error(gateway, b'{"id": 1, "name": "Ada"}') is None
    with store.producer() as producer:
        producer.send("people", value={"id": 2, "name": None})
    assert store.scan("people", columns=["id", "name"]).to_table().to_pylist() == [
        {"id": 1, "name": "Ada"},
        {"id": 2, "name": None},
    ]
    consumer = confluent_kafka.Consumer({"bootstrap.servers": gateway.bootstrap, "group.id": "g"})
    consumer.assign([confluent_kafka.TopicPartition("people", 0, 0)])
    messages = [consumer.consume(1, timeout=30)[0] for _ in range(2)]
    consumer.close()
    assert [json.loads(message.value() or b"") for message in messages] == [
        {"id": 1, "name": "Ada"},
        {"id": 2, "name": None},
    ]


@pytest.mark.parametrize(
    ("value", "record"),
    [
        (b"no json", {}),
        (b'{"id": "text", "name": "x"}', {}),
        (b'{"name": "no id"}', {}),
        (b'{"id": 1, "other": 2}', {}),
        (None, {"key": b"1"}),
        (b'{"id": 1}', {"headers": [("h", b"v")]}),
    ],
)
def test_what_does_not_fit_the_schema_is_refused(
    gateway: RunningGateway, store: txnstore.Store, value: bytes | None, record: dict[str, Any]
) -> None:
    assert _error(gateway, value, **record).code() == confluent_kafka.KafkaError.INVALID_RECORD
    assert store.scan("people").to_table().num_rows == 0


@pytest.mark.usefixtures("unlimited")
@pytest.mark.parametrize(
    ("topic", "key", "bad"),
    [
        ("people", None, {"value": b'{"id": "text"}'}),
        ("people", None, {"value": b'{"id": 1}', "headers": [("h", b"v")]}),
        ("keyed", b"k", {"value": b"v"}),
    ],
)
def test_a_refusal_names_the_record(
    gateway: RunningGateway,
    store: txnstore.Store,
    caplog: pytest.LogCaptureFixture,
    topic: str,
    key: bytes | None,
    bad: dict[str, Any],
) -> None:
    """In the message of the batch, and in that of the record: some clients show only one of them."""
    store.create_topic("keyed", config={"cleanup.policy": "compact"})
    caplog.set_level(logging.INFO, "txnstore.gateway")
    producer = kafka.KafkaProducer(bootstrap_servers=gateway.bootstrap, linger_ms=60_000)
    accepted = [producer.send(topic, b'{"id": 1}', key) for _ in range(3)]
    refused = producer.send(topic, **bad)
    producer.flush(30)
    assert all(future.failed() for future in accepted)
    assert str(refused.exception.args[0]).startswith("record 3: ")
    producer.close()
    (line,) = (each for each in caplog.records if each.getMessage() == "a batch was refused")
    fields = line.__dict__
    assert (line.levelno, fields["topic"], fields["partition"]) == (logging.INFO, topic, 0)
    assert (fields["reason"], fields["records"]) == ("invalid_record", [3])
    assert store.scan(topic).to_table().num_rows == 0


@pytest.mark.usefixtures("unlimited")
def test_the_message_of_a_refused_batch_names_the_record_and_no_log_has_its_text(
    gateway: RunningGateway, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "txnstore.gateway")
    batch = record_batch([b'{"id": 1}', b'{"id": "hunter2"}'])
    with Client(*gateway.address) as client:
        answer = client.ask(Api.PRODUCE, 8, produce_fields("people", batch))
        (partition,) = answer.responses[0].partition_responses
        assert partition.error_message.startswith("record 1: column 'id': ")
        assert [each.batch_index_error_message for each in partition.record_errors] == [partition.error_message]
        client.begin(Api.PRODUCE, 8, produce_fields("people", batch, acks=0))
        assert client.is_closed()
    assert [each.getMessage() for each in caplog.records].count("a batch was refused") == 2
    assert "hunter2" not in str([each.__dict__ for each in caplog.records])
