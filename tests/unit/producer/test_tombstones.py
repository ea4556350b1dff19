"""Tombstones of typed topics in the producer: a send without a value is a row with the key and the column as true."""

from __future__ import annotations

import datetime as dt
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tests.helpers.connections import connection_of
from tests.helpers.producing import Bench, read
from tests.helpers.shell import another_process
from txnstore.core.partitioner import partition_for_key
from txnstore.errors import RecordTooLargeError, SchemaMismatchError
from txnstore.producer import Producer

MARKED = {"tombstone.column": "gone"}
SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string()), ("gone", pa.bool_())])


def rows(bench: Bench) -> list[dict[str, Any]]:
    return read(bench, "typed", columns=["id", "name", "gone"])


def test_a_tombstone_is_a_row_of_its_key(bench: Bench, producer: Producer) -> None:
    """Among rows and tables, with or without a policy that removes what it deletes."""
    bench.store.create_topic("typed", schema=SCHEMA, key="id", config=MARKED)
    producer.send("typed", {"id": 1, "name": "a"})
    producer.send("typed", None, key=1)
    producer.send_table("typed", [{"id": 2}])
    producer.send("typed", key=2, value=None)
    producer.flush()
    assert rows(bench) == [
        {"id": 1, "name": "a", "gone": None},
        {"id": 1, "name": None, "gone": True},
        {"id": 2, "name": None, "gone": None},
        {"id": 2, "name": None, "gone": True},
    ]


@pytest.mark.parametrize(
    ("kind", "key", "packed"),
    [
        (pa.int16(), 258, b"\1\2"),
        (pa.int64(), np.int64(5), b"\0\0\0\0\0\0\0\5"),
        (pa.float64(), 0.5, b"\x3f\xe0\0\0\0\0\0\0"),
        (pa.string(), "é", "é".encode()),
        (pa.large_string(), np.str_("k"), b"k"),
        (pa.binary(), b"\xff", b"\xff"),
        (pa.binary(2), b"ab", b"ab"),
    ],
    ids=str,
)
def test_a_tombstone_goes_where_the_rows_of_its_key_go(
    bench: Bench, producer: Producer, kind: pa.DataType, key: Any, packed: bytes
) -> None:
    """The key is a value of the key column, as rows have it, and not its bytes."""
    schema = pa.schema([("id", kind), ("gone", pa.bool_())])
    bench.store.create_topic("typed", 50, schema=schema, key="id", config=MARKED)
    sent = [producer.send("typed", {"id": key}), producer.send("typed", None, key=key)]
    places = [future.result() for future in sent]
    assert {place.partition for place in places} == {partition_for_key(packed, 50)}
    assert read(bench, "typed", columns=["id", "gone"]) == [{"id": key, "gone": None}, {"id": key, "gone": True}]


@pytest.mark.parametrize("nullable", [True, False])
@pytest.mark.parametrize(
    "kind", [pa.int64(), pa.timestamp("ms"), pa.timestamp("us"), pa.timestamp("us", "UTC")], ids=str
)
def test_the_time_of_a_tombstone_is_that_of_its_send(
    bench: Bench, producer: Producer, kind: pa.DataType, *, nullable: bool
) -> None:
    """Also where the column of the event time is declared not null."""
    schema = pa.schema([*SCHEMA, pa.field("at", kind, nullable)])
    bench.store.create_topic("typed", schema=schema, key="id", timestamp="at", config=MARKED)
    now = connection_of(bench.store).runtime.clock()
    assert producer.send("typed", None, key=1).result().timestamp == now
    (row,) = read(bench, "typed")
    moment = dt.datetime.fromtimestamp(now / 1000, dt.UTC)
    assert row["_timestamp"] == moment
    assert row["at"] == (now if kind == pa.int64() else moment if kind.tz else moment.replace(tzinfo=None))


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({}, "a tombstone of topic 'typed' needs key=: the value of column 'id' that it deletes"),
        ({"key": b"\0\0\0\0\0\0\0\1"}, "'id'"),
        ({"key": "1"}, "'id'"),
        ({"key": 2**63}, "'id'"),
        ({"key": {"id": 1}}, "'id'"),
        ({"key": 1, "headers": {"a": b"b"}}, "its key and timestamp are columns, and it has no headers"),
        ({"key": 1, "timestamp": 5}, "its key and timestamp are columns, and it has no headers"),
        ({"key": 1, "value": {"id": 1}}, "its key and timestamp are columns, and it has no headers"),
        ({"key": 1, "value": {}}, "its key and timestamp are columns, and it has no headers"),
    ],
    ids=str,
)
def test_what_is_no_tombstone_is_refused_alone(bench: Bench, options: dict[str, Any], says: str) -> None:
    bench.store.create_topic("typed", schema=SCHEMA, key="id", config=MARKED)
    with bench.store.producer(linger=None) as producer:
        good = producer.send("typed", None, key=7)
        with pytest.raises(SchemaMismatchError, match=says):
            producer.send("typed", **options)
        assert good.result().offset == 0
    assert len(rows(bench)) == 1


def test_a_topic_without_the_setting_has_no_tombstones(bench: Bench, producer: Producer) -> None:
    bench.store.create_topic("typed", schema=SCHEMA, key="id")
    with pytest.raises(SchemaMismatchError, match=r"no tombstone\.column, so it has no tombstones: name a boolean"):
        producer.send("typed", None, key=1)
    with pytest.raises(SchemaMismatchError, match=r"no tombstone\.column"):
        producer.send("typed")


def test_a_column_that_is_not_null_needs_a_whole_row(bench: Bench, producer: Producer) -> None:
    """It may be a tombstone then; one without values would have a null where readers expect none."""
    schema = pa.schema([*SCHEMA, pa.field("size", pa.int8(), nullable=False)])
    bench.store.create_topic("typed", schema=schema, key="id", config=MARKED)
    with pytest.raises(
        SchemaMismatchError, match="no value in 'size', which the topic declares not null: send a whole"
    ):
        producer.send("typed", None, key=1)
    producer.send("typed", {"id": 1, "size": 0, "gone": True})
    producer.flush()
    assert rows(bench) == [{"id": 1, "name": None, "gone": True}]


def test_a_tombstone_that_is_refused_makes_the_transaction_abortable(bench: Bench) -> None:
    """API-05."""
    bench.store.create_topic("typed", schema=SCHEMA, key="id", config=MARKED)
    with bench.store.producer("id") as producer:
        producer.begin_transaction()
        producer.send("typed", None, key=1)
        with pytest.raises(SchemaMismatchError):
            producer.send("typed", None, key="x")
        assert repr(producer).endswith("ABORTABLE_ERROR>")
        producer.abort_transaction()
    assert rows(bench) == []


def test_a_tombstone_is_no_larger_than_a_record_may_be(bench: Bench, producer: Producer) -> None:
    schema = pa.schema([("id", pa.string()), ("gone", pa.bool_())])
    config = {**MARKED, "max.message.bytes": 100}
    bench.store.create_topic("typed", schema=schema, key="id", config=config)
    with pytest.raises(RecordTooLargeError):
        producer.send("typed", None, key="x" * 200)


def test_a_producer_finds_the_setting_that_another_process_has_made(bench: Bench, producer: Producer) -> None:
    bench.store.create_topic("typed", schema=SCHEMA, key="id")
    producer.send("typed", {"id": 1}).result()
    another_process(bench.store, bench.inner).alter_topic("typed", config=MARKED)
    producer.send("typed", None, key=1).result()
    assert [row["gone"] for row in rows(bench)] == [None, True]
