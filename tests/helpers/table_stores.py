"""Stores with tables, and a reader of them that knows Iceberg and nothing of txnstore: fastavro and PyArrow."""

from __future__ import annotations

import io
import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
import pyarrow.parquet as pq

from tests.harness.executors import InlineExecutor, never
from txnstore.runtime import Runtime
from txnstore.store import Store, create
from txnstore.testing import ManualClock

#: Money of an account; the amounts of a transaction add up to 0.
ENTRIES = pa.schema([("account", pa.int64()), ("amount", pa.int64())])
DELETED = 2


def runtime(clock: ManualClock, seed: int = 0) -> Runtime:
    """A runtime on a manual clock; commits return with all markers written."""
    return Runtime(clock, clock.sleep, random.Random(seed), background=InlineExecutor, spawn=never)


def store_with_tables(folder: Path, clock: ManualClock, topics: Mapping[str, int], chains: int = 1) -> Store:
    """A new store with topics of :data:`ENTRIES`, given with their numbers of partitions; each has a table."""
    store = create(folder, chains, runtime=runtime(clock))
    for topic, partitions in topics.items():
        store.create_topic(topic, partitions, schema=ENTRIES, key="account")
        store.tables.enable(topic)
    return store


def send(producer: Any, topic: str, rows: list[tuple[int, int]]) -> None:
    """Send accounts and amounts, in the transaction that is open."""
    producer.send_table(topic, pa.table([list(column) for column in zip(*rows, strict=True)], schema=ENTRIES))


def rows_of(metadata: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The rows of the current snapshot of a table without deletes, by its metadata, in no order."""
    current = metadata.get("current-snapshot-id")
    if current is None:
        return []
    (snapshot,) = [each for each in metadata["snapshots"] if each["snapshot-id"] == current]
    rows: list[dict[str, Any]] = []
    for manifest in _avro(snapshot["manifest-list"]):
        assert manifest["content"] == 0, "the table has position deletes"
        for entry in _avro(manifest["manifest_path"]):
            if entry["status"] != DELETED:
                rows += pq.read_table(_path(entry["data_file"]["file_path"]), partitioning=None).to_pylist()
    return rows


def _avro(location: str) -> list[Any]:
    return list(fastavro.reader(io.BytesIO(_path(location).read_bytes())))


def _path(location: str) -> Path:
    return Path(location.removeprefix("file://"))
