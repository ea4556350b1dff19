"""Topics with a schema, through a gateway: the value of a record is its row as JSON."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import confluent_kafka
import pyarrow as pa
import pytest
from kio.schema.errors import ErrorCode

import txnstore
from tests.helpers.gateway import RunningGateway, serving
from tests.helpers.gateway_process import fetch_fields, produce_fields
from tests.helpers.kafka_batches import kafka_batch, read_kafka_batch
from tests.helpers.kafka_wire import ServedStore
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


#: Every type of a column, and a value of it as a client may write it: not as the gateway does.
COLUMNS: list[tuple[pa.DataType, str]] = [
    (pa.bool_(), " true"),
    (pa.int8(), " -8"),
    (pa.int16(), " 16"),
    (pa.int32(), " 32"),
    (pa.int64(), "64 "),
    (pa.float32(), "1.50"),
    (pa.float64(), "25e-1"),
    (pa.string(), '"\\u00e9"'),
    (pa.large_string(), '"\\/"'),
    (pa.binary(), ' "/w=="'),
    (pa.large_binary(), ' ""'),
    (pa.binary(3), ' "YWJj"'),
    (pa.date32(), ' "20260102"'),
    (pa.timestamp("ms"), '"2026-01-02 03:04"'),
    (pa.timestamp("us"), '"2026-01-02"'),
    (pa.timestamp("ms", "UTC"), '"2026-01-02T03:04:05+02:00"'),
    (pa.timestamp("us", "UTC"), '"2026-01-02T03:04:05.5Z"'),
    (pa.decimal128(5, 2), "7"),
    (pa.list_(pa.int32()), "[1, null]"),
    (pa.struct([pa.field("x", pa.int8()), pa.field("y", pa.int8())]), '{"y": 1}'),
    (pa.map_(pa.string(), pa.float64()), '[{"key": "a", "value": 1}]'),
]


@pytest.mark.parametrize("inline_bytes", [0, 1 << 20], ids=["uploaded", "inlined"])
@pytest.mark.parametrize(
    ("key", "expected"), [("c4", (64).to_bytes(8, "big")), ("c7", "é".encode()), ("c11", b"abc"), (None, None)]
)
def test_an_offset_reads_the_same_at_each_gateway(
    store: txnstore.Store, key: str | None, expected: bytes | None, inline_bytes: int
) -> None:
    """The gateway that took a batch gives its rows, as another one does: not what the client sent."""
    schema = pa.schema([pa.field(f"c{number}", kind) for number, (kind, _) in enumerate(COLUMNS)])
    store.create_topic("t", schema=schema, key=key, config={"inline.bytes": inline_bytes})
    texts = {f"c{number}": text for number, (_, text) in enumerate(COLUMNS)}
    row = ", ".join(f'"{name}": {text}' for name, text in texts.items())
    first = f'"{key or "c0"}": {texts[key or "c0"]}'
    batch = kafka_batch([
        (0, 1_000, expected, f"{{{row}}}".encode(), []),
        (1, 2_000, None, f"{{{row}}}".encode(), []),
        (2, 3_000, None, f"{{{first}}}".encode(), []),
    ])  # fmt: skip

    def read(gateway: RunningGateway) -> bytes:
        answer = ServedStore(store, gateway).ask(Api.FETCH, fetch_fields("t", 0), 12)
        return bytes(answer.responses[0].partitions[0].records)

    with serving(store) as one, serving(store) as other:
        answer = ServedStore(store, one).ask(Api.PRODUCE, produce_fields("t", batch), 12)
        assert answer.responses[0].partition_responses[0].error_code is ErrorCode.none
        data = read(one)
        assert [read(one), read(other)] == [data, data]
    records = read_kafka_batch(data)
    times = store.scan("t").to_table()["_timestamp"].cast(pa.int64()).to_pylist()
    assert [record[1] for record in records] == times
    assert [record[2] for record in records] == [expected] * 3
    assert b'"c0":true,"c1":-8,' in (records[0][3] or b"")
