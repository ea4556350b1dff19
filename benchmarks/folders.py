"""Stores in folders, filled in memory: it takes less time than a sync for each commit."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np
import pyarrow as pa

from txnstore.segment.schema import RECORD_SCHEMA
from txnstore.storage.memory import MemoryStore
from txnstore.store import create_on

TOPIC = "t"
#: The length of a value in bytes; a key has 16.
VALUE = 200


def records(number: int, rows: int, keys: int) -> pa.Table:
    """The rows of segment ``number``: random keys out of ``keys`` many, values that compress like text does."""
    rng = np.random.default_rng(number)
    drawn = rng.integers(0, keys, rows, dtype=np.uint64)
    padded = np.stack([drawn, drawn * np.uint64(0x9E3779B97F4A7C15)], axis=1).view(np.uint8)
    words = rng.integers(97, 105, rows * VALUE, dtype=np.uint8)
    times = pa.array(np.arange(rows) + number * rows, pa.timestamp("ms", "UTC"))
    columns = [_binary(padded, 16), _binary(words, VALUE), pa.nulls(rows, RECORD_SCHEMA.field("headers").type), times]
    return pa.table(columns, schema=RECORD_SCHEMA)


def _binary(data: np.ndarray, width: int) -> pa.Array:
    offsets = pa.py_buffer(np.arange(0, data.size + 1, width, dtype=np.int32))
    return pa.Array.from_buffers(pa.binary(), data.size // width, [None, offsets, pa.py_buffer(data.reshape(-1))])


def fill(folders: Iterable[Path], tables: Iterable[pa.Table], config: Mapping[str, object]) -> None:
    """Equal stores with one topic of one partition; each table is one segment."""
    objects = MemoryStore()
    with create_on(objects) as store:
        store.create_topic(TOPIC, config=config)
        with store.producer() as producer:
            for table in tables:
                producer.send_table(TOPIC, table, partition=0).result()
        store.checkpoint()
    for folder in folders:
        for item in objects.list(""):
            path = folder / item.key
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(objects.get(item.key))


def segments(folder: Path) -> list[str]:
    """The files of the segments, in the order of the log."""
    return sorted(str(path) for path in (folder / "topics").rglob("*.parquet"))
