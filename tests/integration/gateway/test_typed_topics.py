"""Topics with a schema, through a gateway: the value of a record is its row as JSON."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import confluent_kafka
import confluent_kafka.admin
import kafka
import pyarrow as pa
import pytest
from kio.schema.errors import ErrorCode

import txnstore
from tests.helpers.gateway import RunningGateway, serving
from tests.helpers.gateway_process import Client, fetch_fields, produce_fields, record_batch
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


@pytest.mark.parametrize(
    ("row", "says"),
    [
        (b'{"id": null, "at": 5}', "record 1: its column 'id' is null, and the topic is compacted by key"),
        (b'{"id": 2, "at": 9999999999999999}', "column 'at' of topic 'keyed' holds a time outside the years 1 to 9999"),
    ],
    ids=["null-key", "time"],
)
def test_rows_that_a_producer_of_txnstore_refuses_are_refused(
    gateway: RunningGateway, store: txnstore.Store, row: bytes, says: str
) -> None:
    """A compacted topic would lose the row without a key, and no reader could show a time past the year 9999."""
    schema = pa.schema([("id", pa.int64()), ("at", pa.int64())])
    store.create_topic("keyed", schema=schema, key="id", timestamp="at", config={"cleanup.policy": "compact"})
    with Client(*gateway.address) as client:
        answer = client.ask(Api.PRODUCE, 8, produce_fields("keyed", record_batch([b'{"id": 1, "at": 5}', row])))
        (partition,) = answer.responses[0].partition_responses
    assert partition.error_code is ErrorCode.invalid_record
    assert says in partition.error_message
    assert store.scan("keyed").to_table().num_rows == 0


@pytest.mark.parametrize(
    ("properties", "codec"),
    [({"message.max.bytes": "4000000"}, 0), ({}, 1)],
    ids=["limit-of-the-gateway", "compressed"],
)
def test_a_row_may_be_as_large_as_its_batch(store: txnstore.Store, properties: dict[str, str], codec: int) -> None:
    """As in Kafka, the limit is that of the gateway unless the topic has its own, and of the batch as it came."""
    batch = record_batch([b'{"id": 1, "name": "%s"}' % (b"x" * 2_000_000)], codec=codec)
    with serving(store, properties) as gateway, Client(*gateway.address) as client:
        answer = client.ask(Api.PRODUCE, 8, produce_fields("people", batch))
    assert answer.responses[0].partition_responses[0].error_code is ErrorCode.none
    assert store.scan("people", columns=["id"]).to_table().num_rows == 1


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


# Tombstones -----------------------------------------------------------------------------------------------------------

MARKED = pa.schema([("id", pa.int64()), ("name", pa.string()), ("gone", pa.bool_())])


def _id(number: int) -> bytes:
    """A key as Kafka's LongSerializer makes it."""
    return number.to_bytes(8, "big")


@pytest.fixture
def marked(store: txnstore.Store) -> txnstore.Store:
    """With a topic that is a table of the newest rows."""
    config = {"cleanup.policy": "compact", "tombstone.column": "gone", "delete.retention.ms": 0}
    store.create_topic("marked", schema=MARKED, key="id", config=config)
    return store


def _shown(store: txnstore.Store) -> list[dict[str, Any]]:
    shown: list[dict[str, Any]] = store.scan("marked", columns=["id", "name", "gone"]).to_table().to_pylist()
    return shown


@pytest.mark.slow
def test_a_record_without_a_value_is_a_tombstone(marked: txnstore.Store, gateway: RunningGateway) -> None:
    """In one batch with rows; a clean removes what it deletes, and then itself."""
    producer = kafka.KafkaProducer(bootstrap_servers=gateway.bootstrap, linger_ms=60_000)
    sent = [
        producer.send("marked", b'{"id": 1, "name": "a"}', _id(1)),
        producer.send("marked", None, _id(1)),
        producer.send("marked", b'{"id": 2, "name": "b"}'),
        producer.send("marked", b'{"id": 3, "gone": true}'),
    ]
    producer.flush(30)
    assert [future.get(10).offset for future in sent] == [0, 1, 2, 3]
    producer.close()
    kept = {"id": 2, "name": "b", "gone": None}
    third = {"id": 3, "name": None, "gone": True}
    assert _shown(marked) == [
        {"id": 1, "name": "a", "gone": None}, {"id": 1, "name": None, "gone": True}, kept, third,
    ]  # fmt: skip
    marked.compact("marked", force=True)
    assert _shown(marked) == [{"id": 1, "name": None, "gone": True}, kept, third]
    marked.compact("marked", force=True)
    assert _shown(marked) == [kept]


@pytest.mark.slow
def test_a_row_that_is_a_tombstone_has_no_value_for_clients(marked: txnstore.Store, gateway: RunningGateway) -> None:
    """Whatever wrote it, before and after a clean, which does not change what they read."""
    with marked.producer() as producer:
        producer.send("marked", {"id": 1, "name": "a"})
        producer.send("marked", None, key=2)
        producer.send("marked", {"id": 3, "name": "last", "gone": True})
    expected = [(0, _id(1), {"id": 1, "name": "a", "gone": None}), (1, _id(2), None), (2, _id(3), None)]
    for cleaned in (False, True):
        if cleaned:
            marked.compact("marked", force=True)
        consumer = confluent_kafka.Consumer({"bootstrap.servers": gateway.bootstrap, "group.id": "g"})
        consumer.assign([confluent_kafka.TopicPartition("marked", 0, 0)])
        messages = [consumer.consume(1, timeout=30)[0] for _ in range(3)]
        consumer.close()
        assert [
            (message.offset(), message.key(), None if message.value() is None else json.loads(message.value() or b""))
            for message in messages
        ] == expected
    assert [row["gone"] for row in _shown(marked)] == [None, True, True]


@pytest.mark.parametrize(
    ("key", "says"),
    [
        (None, "record 1: it has neither a value nor a key: a tombstone deletes a key"),
        (b"2", "record 1: its key is no value of column 'id': it has 1 bytes, and int64 has 8"),
    ],
)
def test_what_is_no_tombstone_of_a_typed_topic_is_refused(
    marked: txnstore.Store, gateway: RunningGateway, key: bytes | None, says: str
) -> None:
    batch = kafka_batch([(0, 1_000, None, b'{"id": 1}', []), (1, 1_000, key, None, [])])
    with Client(*gateway.address) as client:
        answer = client.ask(Api.PRODUCE, 8, produce_fields("marked", batch))
        (partition,) = answer.responses[0].partition_responses
        assert (partition.error_code, partition.error_message) == (ErrorCode.invalid_record, says)
        without = kafka_batch([(0, 1_000, _id(1), None, [])])
        (partition,) = client.ask(Api.PRODUCE, 8, produce_fields("people", without)).responses[0].partition_responses
        assert partition.error_code is ErrorCode.invalid_record
        assert "tombstone.column" in partition.error_message
    assert _shown(marked) == []


def test_a_gateway_finds_the_setting_that_another_process_has_made(
    store: txnstore.Store, gateway: RunningGateway
) -> None:
    store.create_topic("marked", schema=MARKED, key="id")
    batch = kafka_batch([(0, 1_000, _id(1), None, [])])
    with Client(*gateway.address) as client:
        refused = client.ask(Api.PRODUCE, 8, produce_fields("marked", batch)).responses[0].partition_responses[0]
        assert refused.error_code is ErrorCode.invalid_record
        with txnstore.open(store.url) as other:
            other.alter_topic("marked", config={"tombstone.column": "gone"})
        taken = client.ask(Api.PRODUCE, 8, produce_fields("marked", batch)).responses[0].partition_responses[0]
        assert taken.error_code is ErrorCode.none
    assert _shown(store) == [{"id": 1, "name": None, "gone": True}]


def test_clients_set_the_column_of_tombstones(store: txnstore.Store, gateway: RunningGateway) -> None:
    """A wrong one is refused with INVALID_CONFIG, and the reason; a topic that a client creates has no columns."""
    store.create_topic("marked", schema=MARKED, key="id")
    admin = confluent_kafka.admin.AdminClient({"bootstrap.servers": gateway.bootstrap})

    def alter(column: str) -> None:
        entry = confluent_kafka.admin.ConfigEntry(
            "tombstone.column", column, incremental_operation=confluent_kafka.admin.AlterConfigOpType.SET
        )
        resource = confluent_kafka.admin.ConfigResource("topic", "marked", incremental_configs=[entry])
        admin.incremental_alter_configs([resource])[resource].result(10)

    with pytest.raises(
        confluent_kafka.KafkaException, match="must be a boolean column, not one of type string"
    ) as error:
        alter("name")
    assert error.value.args[0].code() == confluent_kafka.KafkaError.INVALID_CONFIG
    alter("gone")
    assert store.topic("marked").config == {"tombstone.column": "gone"}
    new = confluent_kafka.admin.NewTopic("new", 1, config={"tombstone.column": "gone"})
    with pytest.raises(confluent_kafka.KafkaException, match="needs a schema"):
        admin.create_topics([new])["new"].result(10)
