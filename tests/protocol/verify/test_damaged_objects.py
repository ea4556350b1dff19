"""Entries, checkpoints and segments that are damaged, or of a newer format: refused by name, with nothing written."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from typing import Any

import duckdb
import pytest

from tests.helpers import keys
from tests.helpers.connections import connection_of
from tests.helpers.later import append_entry
from tests.helpers.refusals import refused, sample_bucket
from tests.helpers.shell import T0, another_process, runtime, sound
from txnstore.chain.boundary import BoundaryDocument
from txnstore.chain.codec import FORMAT_VERSION, encode
from txnstore.compactor.doctor.doctor import doctor
from txnstore.compactor.repair.repair import plan_repairs
from txnstore.compactor.verify.verify import verify
from txnstore.connection import Connection
from txnstore.errors import (
    CorruptionError,
    UnsupportedFormatError,
)
from txnstore.storage.memory import MemoryStore
from txnstore.store import Store, open_on


@pytest.fixture
def bucket(own_objects: None) -> MemoryStore:
    """Its segments are objects; tests/protocol/chain/test_inlined_segments.py damages inlined ones."""
    return sample_bucket()


@pytest.fixture
def store(bucket: MemoryStore) -> Store:
    return open_on(bucket, runtime=runtime())


def segment(bucket: MemoryStore, prefix: str = "topics/t/0/") -> str:
    return next(item.key for item in bucket.list(prefix))


def resealed(document: dict[str, Any]) -> bytes:
    """A document with a checksum that fits."""
    document.pop("checksum", None)
    body = json.dumps(document, separators=(",", ":")).encode()
    return body[:-1] + b',"checksum":"' + hashlib.sha256(body).hexdigest().encode() + b'"}'


# Other formats --------------------------------------------------------------------------------------------------------


VERSIONS = pytest.mark.parametrize("version", [FORMAT_VERSION - 1, FORMAT_VERSION + 1])


def of_version(version: int, bucket: MemoryStore, key: str) -> None:
    payload, _, line = bucket.get(key).rpartition(b"\n")
    line = resealed({**json.loads(line), "version": version, "colour": "red"})
    bucket.put(key, payload + b"\n" + line if payload else line)


def last_entry(bucket: MemoryStore) -> str:
    return [item.key for item in bucket.list(keys.entries(0))][-1]


@VERSIONS
@pytest.mark.parametrize("which", ["store.json", "hint", "entry", "boundary", "index", "checkpoint"])
def test_an_object_of_another_format_version_is_refused(bucket: MemoryStore, which: str, version: int) -> None:
    """Also by what examines or repairs a store: it names the object, and writes nothing."""
    key = {
        "store.json": keys.STORE,
        "hint": keys.latest(0),
        "entry": last_entry(bucket),
        "boundary": keys.boundary(0, 1),
        "index": next(item.key for item in bucket.list(keys.checkpoints(0)) if item.key.endswith(".index")),
        "checkpoint": next(item.key for item in bucket.list(keys.checkpoints(0)) if item.key.endswith("state.json")),
    }[which]
    if which == "boundary":
        boundary = BoundaryDocument(sequence=1, timestamp=0, modified_ms=0)
        bucket.put(key, encode(boundary))
    of_version(version, bucket, key)
    says = f"{key} has format version {version}; this txnstore reads version {FORMAT_VERSION}"
    for call in (
        lambda: open_on(bucket),
        lambda: plan_repairs(Connection(bucket)),
        lambda: verify(Connection(bucket, read_only=True)),
    ):
        with refused(bucket, UnsupportedFormatError, says):
            call()
    before = {item.key: bucket.get(item.key) for item in bucket.list("")}
    assert says in " ".join(item.message for item in doctor(Connection(bucket, read_only=True)).findings)
    assert {item.key: bucket.get(item.key) for item in bucket.list("")} == before


@VERSIONS
def test_a_store_of_another_format_version_without_its_identity_is_not_repaired(
    bucket: MemoryStore, version: int
) -> None:
    """``recover`` would write a ``store.json`` of this version beside it."""
    for item in [*bucket.list("chains/"), *bucket.list(keys.STORE)]:
        of_version(version, bucket, item.key)
    with refused(bucket, UnsupportedFormatError, f"{keys.STORE} has format version {version}"):
        open_on(bucket)
    bucket.delete([keys.STORE, keys.latest(0)])
    for chains in (None, 1):
        with refused(bucket, UnsupportedFormatError, f"has format version {version}"):
            plan_repairs(Connection(bucket), chains)
    bucket.delete([item.key for item in bucket.list(keys.checkpoints(0))])
    with refused(bucket, UnsupportedFormatError, f"has format version {version}"):
        plan_repairs(Connection(bucket), 1)


def test_entry_of_a_newer_format_while_the_store_is_open(bucket: MemoryStore, store: Store) -> None:
    """Written by a colleague's newer release: nothing is read past it, and nothing written after it."""
    with another_process(store, bucket) as other:
        other.create_topic("u")
    key = last_entry(bucket)
    of_version(FORMAT_VERSION + 1, bucket, key)
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


@pytest.mark.parametrize("name", ["chains/foo", "chains/x/0000/entries/0000000000000000000x.json"])
def test_an_entry_with_a_segment_that_cannot_be_there(bucket: MemoryStore, store: Store, name: str) -> None:
    """It is refused where it is read, and not by a deletion of its records."""
    last = json.loads(bucket.get(last_entry(bucket)))
    (event,) = [event for event in last["events"] if event["type"] == "BatchesAppended"][-1:]
    event["segment"] |= {"object": name, "first_byte": 0}
    key = append_entry(bucket, [event])
    with refused(bucket, CorruptionError, f"{key} describes a segment in {name}"):
        open_on(bucket)
    with refused(bucket, CorruptionError, key):
        store.delete_records({T0: 1})
    assert ("entry_intact", key) in [(item.name, item.subject) for item in store.verify().violations]


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
    """Every reader names the object; a compaction never merges it."""
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
