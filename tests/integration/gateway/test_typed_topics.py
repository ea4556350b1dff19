"""Topics with a schema, through a gateway: the value of a record is its row as JSON."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import confluent_kafka
import pyarrow as pa
import pytest

import txnstore
from tests.helpers.gateway import RunningGateway, serving

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
