"""Refused calls: the error says what is wrong, and the bytes of the store are unchanged."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pyarrow as pa
import pytest

from tests.helpers import keys
from tests.helpers.shell import new_store
from txnstore.errors import (
    TxnStoreError,
)
from txnstore.storage.memory import MemoryStore

SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string())])


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


def contents(bucket: MemoryStore, prefix: str = "") -> dict[str, bytes]:
    return {item.key: bucket.get(item.key) for item in bucket.list(prefix)}


@contextmanager
def refused(bucket: MemoryStore, error: type[TxnStoreError], *says: str, uploads: bool = False) -> Iterator[None]:
    """The block raises exactly this class with all these words, and changes nothing (except unnamed ``uploads``)."""
    before = contents(bucket)
    with pytest.raises(error) as raised:
        yield
    assert type(raised.value) is error
    for text in says:
        assert text in str(raised.value)
    after = contents(bucket)
    if uploads:
        after = {key: data for key, data in after.items() if key in before or not keys.has_segments(key)}
    assert after == before
