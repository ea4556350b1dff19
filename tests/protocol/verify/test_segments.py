"""Verification of segments: missing, truncated, altered, or with rows that their batch does not have."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa
import pytest

from tests.helpers import keys
from tests.helpers.compaction import T0, batches
from tests.helpers.connections import connection_of
from tests.helpers.verification import _violations, sample_store
from txnstore.core.log.model import Batch
from txnstore.core.maintenance import ReplaceSegments
from txnstore.read import ranged
from txnstore.segment import blocks
from txnstore.segment.codec import encode as encode_segment
from txnstore.segment.schema import HEADERS, HORIZON_FIELD, OFFSET_FIELD, TIMESTAMP, TIMESTAMP_FIELD
from txnstore.store import Store
from txnstore.testing import ManualClock


@pytest.fixture
def store(clock: ManualClock) -> Store:
    return sample_store(clock)


def test_a_missing_segment_is_named(store: Store) -> None:
    """OBJ-13, invariant 8."""
    (victim,) = {batch.segment.key for batch in batches(store) if batch.segment.explicit_offsets}
    connection_of(store).objects.delete([victim])
    assert _violations(store.verify()) == _violations(store.verify(deep=True)) == [("segment_present", victim)]


@pytest.mark.parametrize(("change", "word"), [(-1, "truncated"), (1, "altered")])
def test_segment_of_wrong_size_is_found_by_listing(store: Store, change: int, word: str) -> None:
    """OBJ-13."""
    victim = batches(store)[0].segment
    connection_of(store).objects.put(
        victim.key, (connection_of(store).objects.get(victim.key) + b"?")[: victim.size + change]
    )
    report = store.verify()
    assert _violations(report) == [("segment_size", victim.key)]
    assert word in report.violations[0].message


def test_an_altered_segment_of_the_same_size_is_found_by_a_deep_verification(store: Store) -> None:
    """OBJ-13."""
    victim = batches(store)[0].segment
    data = bytearray(connection_of(store).objects.get(victim.key))
    data[victim.size // 2] ^= 1
    connection_of(store).objects.put(victim.key, bytes(data))
    assert store.verify().ok
    assert _violations(store.verify(deep=True)) == [("segment_content", victim.key)]


@pytest.mark.parametrize("wrong", ["bytes", "hash", None])
def test_all_of_a_segment_that_is_read_by_ranges_is_compared(
    store: Store, small_ranges: None, monkeypatch: pytest.MonkeyPatch, wrong: str | None
) -> None:
    """Also the bytes of a column that no reader shows, and the hash of all bytes (OBJ-13)."""
    monkeypatch.setattr(blocks, "BLOCK_BYTES", 16)
    horizons = pa.array(range(10**17, 7 * 10**17, 10**17), pa.int64())
    key = _replace_first(
        store, [0, 1, 3, 4, 6, 7], [1_000] * 6, wrong_hash=wrong == "hash", more={HORIZON_FIELD.name: horizons}
    )
    objects, segment = connection_of(store).objects, batches(store)[0].segment
    if wrong == "bytes":
        data = bytearray(objects.get(key))
        data[segment.size - (segment.footer_size or 0) - 1] ^= 1
        objects.put(key, bytes(data))
        assert store.scan("t", partitions=[0]).to_table().num_rows >= 6, "no reader needs them"
    assert _violations(store.verify(deep=True)) == ([] if wrong is None else [("segment_content", key)])


def test_deep_verification_compares_the_hash_of_a_segment_that_is_read_whole(
    store: Store, small_ranges: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Readers compare the checksums of its blocks, which are right (OBJ-13)."""
    monkeypatch.setattr(ranged, "WHOLE_BYTES", 1 << 20)
    monkeypatch.setattr(ranged, "SMALL_BYTES", 1 << 20)
    key = _replace_first(store, [0, 1, 3, 4, 6, 7], [1_000] * 6, wrong_hash=True)
    assert store.scan("t", partitions=[0]).to_table().num_rows >= 6
    assert _violations(store.verify(deep=True)) == [("segment_content", key)]


def test_a_footer_that_was_read_before_is_verified_as_it_is_stored(store: Store, small_ranges: None) -> None:
    """A process keeps footers; a verification reads them again (OBJ-13)."""
    key = _replace_first(store, [0, 1, 3, 4, 6, 7], [1_000] * 6)
    before = store.scan("t").to_table()
    data = bytearray(connection_of(store).objects.get(key))
    data[-20] ^= 1
    connection_of(store).objects.put(key, bytes(data))
    assert store.scan("t").to_table().equals(before)
    assert _violations(store.verify(deep=True)) == [("segment_content", key)]


def _replace_first(
    store: Store,
    offsets: list[int],
    timestamps: list[int],
    claimed: int | None = None,
    *,
    wrong_hash: bool = False,
    more: dict[str, pa.Array] | None = None,
) -> str:
    """A compaction of the first batch, gone wrong: the rows that it stored are these."""
    (old,) = batches(store)[:1]
    count = len(offsets)
    table = pa.table(
        {
            OFFSET_FIELD.name: pa.array(offsets, pa.int64()),
            TIMESTAMP_FIELD.name: pa.array(timestamps, TIMESTAMP),
            "key": pa.nulls(count, pa.binary()),
            "value": pa.nulls(count, pa.binary()),
            "headers": pa.nulls(count, HEADERS),
            "timestamp": pa.array(timestamps, TIMESTAMP),
            **(more or {}),
        }
    )
    key = keys.segment("t", 0, "wrong", "parquet")
    encoded = encode_segment(table)
    connection_of(store).objects.put(key, encoded.data)
    segment = replace(encoded.segment(key, explicit_offsets=True), rows=claimed if claimed is not None else count)
    segment = replace(segment, sha256="0" * 64) if wrong_hash else segment
    new = Batch(old.base_offset, old.limit, old.records, segment, 1_000, 1_001)
    connection_of(store).submit(ReplaceSegments(T0, (old,), (new,)))
    return key


@pytest.mark.parametrize(
    ("offsets", "timestamp", "claimed", "name"),
    [
        ([0, 1, 3, 4, 6, 7], 1_000, None, None),
        ([0, 1, 3, 4, 6, 9], 1_000, None, "segment_rows"),
        ([0, 1, 3, 3, 6, 7], 1_000, None, "segment_rows"),
        ([1, 0, 3, 4, 6, 7], 1_000, None, "segment_rows"),
        ([0, 1, 3, 4, 6, 7], 999, None, "segment_timestamps"),
        ([0, 1, 3, 4, 6, 7], 1_002, None, "segment_timestamps"),
        ([0, 1, 3, 4, 6], 1_000, 6, "segment_content"),
    ],
)
def test_segment_with_unexpected_rows_is_found(
    store: Store, offsets: list[int], timestamp: int, claimed: int | None, name: str | None
) -> None:
    """Invariant 8: its bytes are those that were recorded, but they were wrong from the start."""
    key = _replace_first(store, offsets, [timestamp] * len(offsets), claimed)
    assert _violations(store.verify(deep=True)) == ([(name, key)] if name else [])
