"""The memory of a clean, or a merge, with a small limit does not grow with the partition: what Arrow's pool counted."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.helpers.connections import connection_of
from tests.helpers.shell import T0
from txnstore.compactor.compact.memory import DEFAULT_MEMORY, MIN_MEMORY, Memory
from txnstore.segment.schema import RECORD_SCHEMA
from txnstore.storage.memory import MemoryStore
from txnstore.store import Store, create_on

_ROWS, _VALUE = 500, 8 << 10
_SEGMENT = _ROWS * _VALUE


@contextmanager
def counted() -> Iterator[pa.MemoryPool]:
    """A pool that counts what is allocated from now on."""
    before = pa.default_memory_pool()
    pool = pa.proxy_memory_pool(before)
    pa.set_memory_pool(pool)
    try:
        yield pool
    finally:
        pa.set_memory_pool(before)


def filled(segments: int, policy: str = "compact") -> Store:
    """A partition in which half of the keys are superseded, with values that do not compress."""
    store = create_on(MemoryStore())
    store.create_topic("t", config={"cleanup.policy": policy})
    rng = np.random.default_rng(1)
    with store.producer() as producer:
        for number in range(segments):
            keys = [b"%d" % ((number * _ROWS + row) // 2) for row in range(_ROWS)]
            values = [rng.bytes(_VALUE) for _ in range(_ROWS)]
            times = pa.array([0] * _ROWS, RECORD_SCHEMA.field("timestamp").type)
            headers = pa.nulls(_ROWS, RECORD_SCHEMA.field("headers").type)
            columns = [pa.array(keys, pa.binary()), pa.array(values, pa.binary()), headers, times]
            producer.send_table("t", pa.table(columns, schema=RECORD_SCHEMA), partition=0).result()
    return store


def peak(segments: int) -> int:
    """The most bytes of Arrow during a clean, in MiB."""
    with filled(segments) as store:
        with counted() as pool:
            assert store.compact(memory_limit=MIN_MEMORY).superseded == segments * _ROWS // 2
            assert pool.bytes_allocated() < _SEGMENT
        assert connection_of(store).view().partitions[T0].clean_until == segments * _ROWS
        return int(pool.max_memory()) >> 20


@pytest.mark.slow
@pytest.mark.usefixtures("own_objects")
def test_a_clean_needs_the_same_memory_for_a_partition_of_any_size() -> None:
    """One segment that is decoded, what stays of it, and a row group that is encoded, besides DuckDB's half."""
    small, large = peak(8), peak(32)
    assert large <= small + 1
    assert large << 20 <= 3 * (_SEGMENT + Memory(MIN_MEMORY).rows)


@pytest.mark.slow
@pytest.mark.usefixtures("own_objects")
@pytest.mark.parametrize(
    ("policy", "limit", "count"),
    [("compact", MIN_MEMORY, 3), ("delete", MIN_MEMORY, 6), ("delete", DEFAULT_MEMORY, 3)],
)
def test_row_groups_are_small(policy: str, limit: int, count: int) -> None:
    """So that the next clean or merge, and a gateway, decode few rows at a time."""
    with filled(12, policy) as store:
        store.compact(memory_limit=limit)
        (batch,) = connection_of(store).view().partitions[T0].batches
        file = pq.ParquetFile(pa.BufferReader(connection_of(store).objects.get(batch.segment.key))).metadata
    groups = [file.row_group(number) for number in range(file.num_row_groups)]
    assert len(groups) == count
    assert max(group.total_byte_size for group in groups) <= Memory(limit).rows + (1 << 20)
