"""Bad input, one test a kind: an error of the right class that says what is wrong and where, and nothing half done.

"Nothing half done" is checked on the bytes of the whole store: what was there is there, unchanged, and nothing that a
state names has come or gone.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest

import txnstore
from tests.helpers.connections import connection_of
from tests.helpers.shell import T0, another_process, new_store, runtime, sound, values
from txnstore.chain import keys
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
    UnsupportedFormatError,
)
from txnstore.storage.memory import MemoryStore
from txnstore.store import Store, open_on

SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string())])


@pytest.fixture
def bucket() -> MemoryStore:
    return sample_bucket()


def sample_bucket() -> MemoryStore:
    """A store with a topic of records and a typed one, two committed segments, a checkpoint and entries after it."""
    objects = MemoryStore()
    store = new_store(objects, partitions=2)
    store.create_topic("typed", schema=SCHEMA, config={"max.message.bytes": 1_000})
    with store.producer("writer") as producer:
        for partition in range(2):
            with producer.transaction() as txn:
                txn.send("t", b"x" * 200, partition=partition)
    store.checkpoint()
    with store.producer("writer") as producer, producer.transaction() as txn:
        txn.send("typed", {"id": 1, "name": "one"})
    store.close()
    return objects


@pytest.fixture
def store(bucket: MemoryStore) -> Store:
    return open_on(bucket, runtime=runtime())


def contents(bucket: MemoryStore, prefix: str = "") -> dict[str, bytes]:
    return {item.key: bucket.get(item.key) for item in bucket.list(prefix)}


@contextmanager
def refused(bucket: MemoryStore, error: type[TxnStoreError], *says: str, uploads: bool = False) -> Iterator[None]:
    """The block raises exactly this class, says all of this, and changes nothing (but for ``uploads`` nobody names)."""
    before = contents(bucket)
    with pytest.raises(error) as raised:
        yield
    assert type(raised.value) is error
    for text in says:
        assert text in str(raised.value)
    after = contents(bucket)
    if uploads:
        after = {key: data for key, data in after.items() if key in before or not keys.is_segment(key)}
    assert after == before


def segment(bucket: MemoryStore, prefix: str = "topics/t/0/") -> str:
    return next(item.key for item in bucket.list(prefix))


def resealed(document: dict[str, Any]) -> bytes:
    """A document with a checksum that fits."""
    document.pop("checksum", None)
    body = json.dumps(document, separators=(",", ":")).encode()
    return body[:-1] + b',"checksum":"' + hashlib.sha256(body).hexdigest().encode() + b'"}'


def calls(*found: Callable[[], object]) -> tuple[Callable[[], object], ...]:
    """These calls, for a loop."""
    return found


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


# Newer formats --------------------------------------------------------------------------------------------------------


def newer(bucket: MemoryStore, key: str) -> None:
    bucket.put(key, resealed({**json.loads(bucket.get(key)), "version": 2, "colour": "red"}))


def last_entry(bucket: MemoryStore) -> str:
    return [item.key for item in bucket.list(keys.entries(0))][-1]


@pytest.mark.parametrize("which", ["store.json", "hint", "entry", "checkpoint"])
def test_a_newer_format_version(bucket: MemoryStore, which: str) -> None:
    key = {
        "store.json": keys.STORE,
        "hint": keys.latest(0),
        "entry": last_entry(bucket),
        "checkpoint": next(item.key for item in bucket.list(keys.checkpoints(0)) if item.key.endswith("head.json")),
    }[which]
    newer(bucket, key)
    with refused(bucket, UnsupportedFormatError, f"{key} has format version 2; this txnstore reads up to 1"):
        open_on(bucket)


def test_entry_of_a_newer_format_while_the_store_is_open(bucket: MemoryStore, store: Store) -> None:
    """Written by a colleague's newer release: nothing is read past it, and nothing written after it."""
    with another_process(store, bucket) as other:
        other.create_topic("u")
    key = last_entry(bucket)
    newer(bucket, key)
    for call in (store.topics, lambda: store.create_topic("v"), lambda: store.producer("id")):
        with refused(bucket, UnsupportedFormatError, key):
            call()


def test_a_checkpoint_of_a_store_with_another_number_of_chains(bucket: MemoryStore) -> None:
    """COORD-02: a store.json that was exchanged is not believed."""
    open_on(bucket).checkpoint()
    bucket.put(keys.STORE, resealed({**json.loads(bucket.get(keys.STORE)), "chains": 4}))
    with refused(bucket, CorruptionError, "belongs to chain 0 of 1; expected chain 0 of 4"):
        open_on(bucket)


# Damage ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("damage", ["truncated", "altered", "emptied"])
def test_a_damaged_entry(bucket: MemoryStore, damage: str) -> None:
    key = last_entry(bucket)
    bucket.put(key, damaged(bucket.get(key), damage))
    with refused(bucket, CorruptionError, key):
        open_on(bucket)


def test_an_entry_altered_with_a_good_checksum(bucket: MemoryStore) -> None:
    """Without a checkpoint behind it, the entry after it tells."""
    for item in bucket.list(keys.checkpoints(0)):
        bucket.delete([item.key])
    bucket.delete([keys.latest(0)])
    key = keys.entry(0, 2)
    bucket.put(key, resealed({**json.loads(bucket.get(key)), "timestamp": 5}))
    with refused(bucket, CorruptionError, f"{key} was altered", keys.entry(0, 3)):
        open_on(bucket)


def poll_partition_0(store: Store) -> object:
    with store.consumer() as consumer:
        consumer.assign([T0])
        return consumer.poll()


READERS: dict[str, Callable[[Store], object]] = {
    "scan": lambda store: store.scan("t").to_table(),
    "consumer": poll_partition_0,
    "compact": lambda store: store.compact("t"),
}


@pytest.mark.parametrize("damage", ["truncated", "altered", "emptied", "missing"])
@pytest.mark.parametrize("reader", READERS)
def test_a_damaged_segment(bucket: MemoryStore, store: Store, reader: str, damage: str) -> None:
    """The object is named by whoever reads it; a compaction never merges it."""
    with store.producer("writer") as producer, producer.transaction() as txn:
        txn.send("t", b"second", partition=0)  # A compaction needs two.
    key = next(iter(connection_of(store).view().partitions[T0].batches)).segment.key
    if damage == "missing":
        bucket.delete([key])
    else:
        bucket.put(key, damaged(bucket.get(key), damage))
    with refused(bucket, CorruptionError, key, uploads=True):
        READERS[reader](store)
    assert key in {batch.segment.key for batch in sound(store).partitions[T0].batches}


@pytest.mark.parametrize("damage", ["truncated", "altered", "emptied", "missing"])
def test_a_damaged_segment_in_sql(bucket: MemoryStore, store: Store, damage: str) -> None:
    """The relation is DuckDB's own, and so is its error; it says what ours says."""
    key = segment(bucket)
    if damage == "missing":
        bucket.delete([key])
    else:
        bucket.put(key, damaged(bucket.get(key), damage))
    with store.duckdb() as connection, pytest.raises(duckdb.Error, match=f"CorruptionError: segment {key}"):
        connection.execute("select value from t").fetchall()


def test_damaged_segment_does_not_affect_other_partitions(bucket: MemoryStore, store: Store) -> None:
    bucket.put(segment(bucket), b"garbage")
    assert store.scan("t", partitions=[1]).to_table()["value"].to_pylist() == [b"x" * 200]
    assert store.scan("typed").to_table()["id"].to_pylist() == [1]


def damaged(data: bytes, damage: str) -> bytes:
    if damage == "truncated":
        return data[: len(data) // 2]
    if damage == "emptied":
        return b""
    middle = len(data) // 2
    return data[:middle] + bytes([data[middle] ^ 0x40]) + data[middle + 1 :]


# Names and places -----------------------------------------------------------------------------------------------------

CALLS_WITH_A_TOPIC: dict[str, Callable[[Store, str], object]] = {
    "send": lambda store, name: store.producer(linger=None).send(name, b"x"),
    "send_table": lambda store, name: store.producer(linger=None).send_table(name, [{"value": b"x"}]),
    "topic": lambda store, name: store.topic(name),
    "alter": lambda store, name: store.alter_topic(name, partitions=9),
    "delete": lambda store, name: store.delete_topic(name),
    "scan": lambda store, name: store.scan(name).to_table(),
    "consumer": lambda store, name: store.consumer([name]).poll(),
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
        lambda: store.consumer().assign([tp]),
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
    """The column is named; a producer without transactions goes on without these rows, one with them has to abort."""
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
    with refused(bucket, InvalidTxnStateError, "cannot begin a transaction: the producer is IN_TRANSACTION"):
        producer.begin_transaction()


@pytest.mark.parametrize(
    ("call", "error", "says"),
    [
        (lambda store: store.create_topic("u", 0), InvalidConfigError, "partitions of topic 'u'"),
        (lambda store: store.create_topic("u", config={"retention.ms": "x"}), InvalidConfigError, "retention.ms"),
        (lambda store: store.create_topic("u", config={"no.such": 1}), InvalidConfigError, "no.such"),
        (lambda store: store.alter_topic("t", 1), InvalidConfigError, "can grow"),
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
