"""Bad input, one test a kind: an error of the right class that says what is wrong and where, and nothing half done.

"Nothing half done" is checked on the bytes of the whole store: what was there is there, unchanged, and nothing that a
state names was added or deleted.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import txnstore
from tests.helpers import keys
from tests.helpers.connections import connection_of
from tests.helpers.refusals import refused, sample_bucket
from tests.helpers.shell import another_process, runtime, values
from txnstore.core.model import TopicPartition
from txnstore.errors import (
    CorruptionError,
    InvalidConfigError,
    InvalidTopicError,
    InvalidTxnStateError,
    InvalidTxnTimeoutError,
    ProducerClosedError,
    ProducerFencedError,
    RecordTooLargeError,
    SchemaMismatchError,
    StorageRefusedError,
    StoreExistsError,
    StoreNotFoundError,
    TxnStoreError,
    UnknownTopicOrPartitionError,
)
from txnstore.storage.memory import MemoryStore
from txnstore.store import Store, open_on


@pytest.fixture
def bucket() -> MemoryStore:
    return sample_bucket()


@pytest.fixture
def store(bucket: MemoryStore) -> Store:
    return open_on(bucket, runtime=runtime())


def calls(*functions: Callable[[], object]) -> tuple[Callable[[], object], ...]:
    """These calls, for a loop."""
    return functions


# The store ------------------------------------------------------------------------------------------------------------


def test_a_missing_store(tmp_path: Path) -> None:
    for url in (tmp_path / "nothing", tmp_path / "deep" / "er"):
        with pytest.raises(StoreNotFoundError, match=r"no txnstore at file://.*: it has no store\.json") as raised:
            txnstore.open(url)
        assert "txnstore.create" in raised.value.advice
    assert list(tmp_path.iterdir()) == []


def test_a_folder_with_other_files(tmp_path: Path) -> None:
    (tmp_path / "README").write_text("not a store")
    with pytest.raises(StoreNotFoundError, match=r"it has no store\.json"):
        txnstore.open(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["README"]


@pytest.mark.parametrize("content", ['{"name": "a web shop"}', "<html></html>", "[]", "\0\1\2"], ids=ascii)
def test_a_store_json_of_something_else(tmp_path: Path, content: str) -> None:
    """It is not opened, and not overwritten by a create either."""
    (tmp_path / "store.json").write_text(content)
    for call in calls(lambda: txnstore.open(tmp_path), lambda: txnstore.create(tmp_path, exist_ok=True)):
        with pytest.raises(StoreNotFoundError, match=r"store\.json belongs to something else"):
            call()
    with pytest.raises(StoreExistsError, match=r"it has a store\.json"):
        txnstore.create(tmp_path)
    assert (tmp_path / "store.json").read_text() == content


@pytest.mark.parametrize("length", [0, 5, 40, -1])
def test_a_truncated_store_json(bucket: MemoryStore, length: int) -> None:
    bucket.put(keys.STORE, bucket.get(keys.STORE)[:length])
    with refused(bucket, CorruptionError, "store.json is truncated or altered"):
        open_on(bucket)


def test_a_file_in_the_place_of_the_folder(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    for call in calls(lambda: txnstore.open(tmp_path / "file"), lambda: txnstore.create(tmp_path / "file" / "store")):
        with pytest.raises(StorageRefusedError, match=r"/file: it is a file, not a folder\. Choose"):
            call()
    assert (tmp_path / "file").read_text() == "x"


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("", "must not be empty"),
        ("http://host/x", "cannot store anything at http:// URLs"),
        ("s3://", "names no bucket"),
        ("s3://bucket/../x", "not legal"),
        ("s3://user:password@bucket/x", "contains credentials"),
        ("gs://bucket/x", "is not supported"),
        ("file://host/x", "not the URL of a folder"),
    ],
)
def test_unsupported_url(url: str, says: str) -> None:
    for call in calls(lambda: txnstore.open(url), lambda: txnstore.create(url)):
        with pytest.raises(InvalidConfigError, match=says) as raised:
            call()
        assert "password" not in str(raised.value)


def test_options_for_a_store_without_options(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfigError, match="takes no storage_options, but got: secret"):
        txnstore.create(tmp_path / "store", storage_options={"secret": "hush"})
    assert list(tmp_path.iterdir()) == []


# Names and places -----------------------------------------------------------------------------------------------------


CALLS_WITH_A_TOPIC: dict[str, Callable[[Store, str], object]] = {
    "send": lambda store, name: store.producer(linger=None).send(name, b"x"),
    "send_table": lambda store, name: store.producer(linger=None).send_table(name, [{"value": b"x"}]),
    "topic": lambda store, name: store.topic(name),
    "alter": lambda store, name: store.alter_topic(name, partitions=9),
    "delete": lambda store, name: store.delete_topic(name),
    "scan": lambda store, name: store.scan(name).to_table(),
    "consumer": lambda store, name: store.consumer().end_offsets([(name, 0)]),
    "offsets": lambda store, name: store.offsets(name, 0),
    "compact": lambda store, name: store.compact(name),
}


@pytest.mark.parametrize("call", CALLS_WITH_A_TOPIC)
def test_an_unknown_topic(bucket: MemoryStore, store: Store, call: str) -> None:
    """An idempotent producer may have been granted its id before; nothing else happens."""
    store.producer(linger=None)
    chain = len(bucket.list(keys.entries(0)))
    with pytest.raises(UnknownTopicOrPartitionError, match="nowhere") as raised:
        CALLS_WITH_A_TOPIC[call](store, "nowhere")
    assert type(raised.value) is UnknownTopicOrPartitionError
    assert len(bucket.list(keys.entries(0))) == chain + call.startswith("send")
    assert "nowhere" not in connection_of(store).view().topics


@pytest.mark.parametrize(
    "name", ["../x", "..", ".", "", "x" * 250, "a/b", "a\0b", "ünïcode", "a b", "C:\\x", "topic\n"], ids=ascii
)
def test_an_illegal_topic_name(bucket: MemoryStore, store: Store, name: str) -> None:
    with refused(bucket, InvalidTopicError, "topic"):
        store.create_topic(name)


def test_an_illegal_topic_name_never_reaches_the_file_system(tmp_path: Path) -> None:
    with txnstore.create(tmp_path / "deep" / "store") as store:
        for name in ("../x", "../../x", "/x", "a/../../x"):
            with pytest.raises(InvalidTopicError):
                store.create_topic(name)
            with pytest.raises(TxnStoreError), store.producer(linger=None) as producer:
                producer.send(name, b"x")
    assert [path.name for path in tmp_path.iterdir()] == ["deep"]
    assert [path.name for path in (tmp_path / "deep").iterdir()] == ["store"]
    assert not (tmp_path / "deep" / "store" / "topics").exists()


@pytest.mark.parametrize("partition", [2, 99, -1])
def test_an_unknown_partition(bucket: MemoryStore, store: Store, partition: int) -> None:
    producer = store.producer()
    tp = TopicPartition("t", partition)
    for call in (
        lambda: producer.send("t", b"x", partition=partition),
        lambda: producer.send_table("t", [{"value": b"x"}], partition=partition),
        lambda: store.offsets("t", partition),
        lambda: store.scan("t", partitions=[partition]).to_table(),
        lambda: store.consumer().end_offsets([tp]),
    ):
        with refused(bucket, UnknownTopicOrPartitionError, "t", str(partition)):
            call()
    producer.close()


# Data -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "column"),
    [
        ([{"id": "one"}], "'id'"),
        ([{"id": 1, "colour": "red"}], "'colour'"),
        ([{"id": 1}, {"id": 2.5}], "'id'"),
        (pa.table({"id": pa.array([1.5])}), "'id'"),
        (pa.table({"id": [1], "name": [b"\xff"]}), "'name'"),
        (pa.table({"id": [1], "name": [{"a": 1}]}), "'name'"),
    ],
    ids=range(6),
)
def test_a_wrong_schema(bucket: MemoryStore, store: Store, data: Any, column: str) -> None:
    """The column is named; a producer without transactions continues without these rows, one with them has to abort."""
    with store.producer("id") as transactional, pytest.raises(InvalidTxnStateError):  # noqa: PT012 - the commit raises
        transactional.begin_transaction()
        with refused(bucket, SchemaMismatchError, column):
            transactional.send_table("typed", data)
        transactional.commit_transaction()
    producer = store.producer()
    with refused(bucket, SchemaMismatchError, column):
        producer.send_table("typed", data)
    producer.send("typed", {"id": 2})
    producer.close()
    assert another_process(store, bucket).scan("typed").to_table()["id"].to_pylist() == [1, 2]


def test_a_record_that_is_too_large(bucket: MemoryStore, store: Store) -> None:
    store.create_topic("small", config={"max.message.bytes": 10})
    producer = store.producer()
    for call in (
        lambda: producer.send("small", b"x" * 11),
        lambda: producer.send("small", b"x" * 5, key=b"y" * 6),
        lambda: producer.send_table("small", [{"value": b"x" * 11}]),
        lambda: producer.send("typed", {"id": 1, "name": "x" * 2_000}),
    ):
        with refused(bucket, RecordTooLargeError, "over max.message.bytes"):
            call()
    producer.send("small", b"x" * 10)
    producer.close()
    assert values(store, "small") == [b"x" * 10]


# Producers ------------------------------------------------------------------------------------------------------------


def test_a_closed_producer(bucket: MemoryStore, store: Store) -> None:
    producer = store.producer("id")
    producer.begin_transaction()
    producer.close()
    for call in (
        lambda: producer.send("t", b"x"),
        lambda: producer.send_table("t", [{"value": b"x"}]),
        producer.begin_transaction,
        producer.commit_transaction,
        producer.flush,
    ):
        with refused(bucket, ProducerClosedError, "the producer is closed"):
            call()


def test_use_after_fencing(bucket: MemoryStore, store: Store) -> None:
    zombie = store.producer("id")
    zombie.begin_transaction()
    zombie.send("t", b"zombie", partition=0)
    with another_process(store, bucket) as other:
        other.producer("id")
    with refused(bucket, ProducerFencedError, "'id'", "epoch", uploads=True):
        zombie.commit_transaction()
    for call in (lambda: zombie.send("t", b"x"), zombie.begin_transaction, zombie.abort_transaction, zombie.flush):
        with refused(bucket, ProducerFencedError, "'id'"):
            call()


def test_the_wrong_state_for_a_call(bucket: MemoryStore, store: Store) -> None:
    """The whole table is in test_producer_states."""
    producer = store.producer("id")
    for call, says in (
        (lambda: producer.send("t", b"x"), "call begin_transaction() first"),
        (producer.commit_transaction, "cannot commit: no transaction is open"),
        (producer.abort_transaction, "cannot abort: no transaction is open"),
    ):
        with refused(bucket, InvalidTxnStateError, says):
            call()
    producer.begin_transaction()
    with refused(bucket, InvalidTxnStateError, "the previous one is still open; commit or abort it first"):
        producer.begin_transaction()


@pytest.mark.parametrize(
    ("call", "error", "says"),
    [
        (lambda store: store.create_topic("u", 0), InvalidConfigError, "partitions of topic 'u'"),
        (lambda store: store.create_topic("u", config={"retention.ms": "x"}), InvalidConfigError, "retention.ms"),
        (lambda store: store.create_topic("u", config={"no.such": 1}), InvalidConfigError, "no.such"),
        (lambda store: store.alter_topic("t", 1), InvalidConfigError, "partitions can be added"),
        (lambda store: store.producer("id", transaction_timeout=0), InvalidTxnTimeoutError, "1 to 900000 ms"),
        (lambda store: store.producer("id", transaction_timeout="x"), InvalidConfigError, "transaction_timeout"),
        (lambda store: store.producer("id", batch_bytes=0), InvalidConfigError, "batch_bytes"),
        (lambda store: store.producer("id", buffer_bytes=0), InvalidConfigError, "buffer_bytes"),
        (lambda store: store.producer("id", linger=-1), InvalidConfigError, "linger"),
        (lambda store: store.consumer(["t"]).poll("1"), InvalidConfigError, "timeout must be a number"),
        (lambda store: store.consumer(["t"]).poll(float("nan")), InvalidConfigError, "timeout must be a number"),
        (lambda store: store.consumer(["t"]).poll_table(timeout=-1), InvalidConfigError, "timeout must be a number"),
        (lambda store: store.producer(""), InvalidConfigError, "transactional_id"),
        (lambda store: store.consumer(["t"], group=""), InvalidConfigError, "group"),
        (lambda store: store.consumer(["t"], isolation="dirty"), InvalidConfigError, "isolation"),
        (lambda store: store.consumer(["t"], auto_offset_reset="now"), InvalidConfigError, "auto_offset_reset"),
        (lambda store: store.scan("t", "dirty").to_table(), InvalidConfigError, "isolation"),
        (lambda store: store.transactions("OPEN"), InvalidConfigError, "OPEN"),
        (lambda store: store.vacuum(older_than=-1), InvalidConfigError, "older_than"),
    ],
)
def test_a_bad_setting(
    bucket: MemoryStore, store: Store, call: Callable[[Store], object], error: type[TxnStoreError], says: str
) -> None:
    with refused(bucket, error, says):
        call(store)
