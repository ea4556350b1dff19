"""Verification of segments: missing, truncated, altered, or with rows that their batch does not have."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from typing import TypeVar

import pyarrow as pa
import pytest

from tests.harness.executors import InlineExecutor
from tests.helpers import keys
from tests.helpers.compaction import T0, batches, runtime
from tests.helpers.connections import connection_of
from tests.helpers.merging import merge_now, numbers, send
from tests.helpers.verification import _violations, sample_store
from txnstore.compactor.compact import merge
from txnstore.compactor.engine import Job
from txnstore.compactor.verify.segments import _check_contents, all_batches, verify_segments
from txnstore.core.catalog.model import CatalogTopic
from txnstore.core.log.model import Batch, Segment
from txnstore.core.log.slices import Slice
from txnstore.core.log.sums import Sums
from txnstore.core.maintenance import ReplaceSegments
from txnstore.core.model import TopicPartition
from txnstore.read import ranged
from txnstore.read.ranged import forget_footers
from txnstore.segment import blocks
from txnstore.segment.codec import encode as encode_segment
from txnstore.segment.schema import HEADERS, HORIZON_FIELD, OFFSET_FIELD, TIMESTAMP, TIMESTAMP_FIELD
from txnstore.storage.counting import CountingStore
from txnstore.storage.memory import MemoryStore
from txnstore.store import Store, create_on
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


K = TypeVar("K")
T = TypeVar("T")
PARTITIONS = range(6)


def _shared_segment(clock: ManualClock, *, merged: bool = True) -> tuple[Store, CountingStore, Segment]:
    """A store with one segment of the rows of six partitions, merged or in an entry, and what counts its requests."""
    objects = CountingStore(MemoryStore(clock=clock), log=True)
    store = create_on(objects, runtime=runtime(clock))
    store.create_topic("t", partitions=len(PARTITIONS))
    send(store, numbers(5 if merged else 1), partitions=PARTITIONS)
    if merged:
        merge_now(store)
    (segment,) = {batch.segment for number in PARTITIONS for batch in batches(store, TopicPartition("t", number))}
    return store, objects, segment


class _Elsewhere:
    """Executes jobs as another process does, which keeps nothing of what it has read."""

    def __init__(self, objects: CountingStore) -> None:
        self._objects = objects

    def run(self, jobs: Iterable[tuple[K, Job[T]]]) -> Iterator[tuple[K, Callable[[], T]]]:
        for value, job in jobs:
            yield value, partial(job, self._objects, InlineExecutor(), runtime(ManualClock()))


def _cost(store: Store, objects: CountingStore, segment: Segment) -> tuple[int, int]:
    """The GETs of the object with a segment, and the bytes of all objects, that a deep verification fetches for it."""
    forget_footers()
    states = connection_of(store).view().states
    payloads = {segment.object: (segment.first_byte or 0) + segment.size} if segment.inlined else {}
    objects.reset()
    findings = verify_segments(objects, states, {}, {}, payloads, _Elsewhere(objects))
    assert (findings.violations, findings.contents, findings.bytes_read) == ([], len(PARTITIONS), segment.size)
    return objects.log.count(("get", segment.object)), objects.snapshot().bytes_in


@pytest.mark.parametrize(("part_bytes", "groups"), [(1, len(PARTITIONS)), (1 << 20, 1)])
def test_a_large_segment_of_many_batches_is_read_once(
    clock: ManualClock, small_ranges: None, monkeypatch: pytest.MonkeyPatch, part_bytes: int, groups: int
) -> None:
    """Its footer, and each row group, with one GET; no byte twice but those of a block that two row groups share."""
    monkeypatch.setattr(blocks, "BLOCK_BYTES", 16)
    monkeypatch.setattr(merge, "_PART_BYTES", part_bytes)
    store, objects, segment = _shared_segment(clock)
    gets, fetched = _cost(store, objects, segment)
    assert gets == 1 + groups
    assert segment.size <= fetched < segment.size + 16 * groups
    assert store.verify(deep=True).bytes_read == store.verify().bytes_read + segment.size


@pytest.mark.parametrize("merged", [False, True])
def test_a_small_segment_of_many_batches_is_fetched_once(clock: ManualClock, *, merged: bool) -> None:
    """Also the records of a commit to many partitions, which are in an entry."""
    store, objects, segment = _shared_segment(clock, merged=merged)
    assert segment.inlined != merged
    assert _cost(store, objects, segment) == (1, segment.size)


@pytest.mark.parametrize("ranges", [True, False])
def test_a_damaged_segment_of_many_batches_is_one_violation(
    clock: ManualClock, request: pytest.FixtureRequest, *, ranges: bool
) -> None:
    if ranges:
        request.getfixturevalue("small_ranges")
    store, objects, segment = _shared_segment(clock)
    data = bytearray(objects.get(segment.object))
    data[segment.size // 3] ^= 1
    objects.put(segment.object, bytes(data))
    assert _violations(store.verify(deep=True)) == [("segment_content", segment.key)]


def test_each_batch_of_a_shared_segment_is_compared(clock: ManualClock) -> None:
    """A batch that claims a row of the next one is named, once, and the others are sound."""
    store, _, segment = _shared_segment(clock)
    state = connection_of(store).view().states[0]
    wrong = [*all_batches(state)]
    third = wrong[2].batch
    wrong[2] = replace(wrong[2], batch=replace(third, first_row=third.first_row + 1))
    parts: list[tuple[Slice, CatalogTopic, Sums | None]] = [(part, state.topics["t"], None) for part in wrong]
    (violation,) = _check_contents(connection_of(store).objects, InlineExecutor(), runtime(clock), segments=[parts])
    assert (violation.name, violation.subject) == ("segment_content", segment.key)
    assert "has rows of t-2 with another partition" in violation.message


def _replace_first(
    store: Store,
    offsets: list[int],
    timestamps: list[int],
    claimed: int | None = None,
    *,
    wrong_hash: bool = False,
    more: dict[str, pa.Array] | None = None,
) -> str:
    """A faulty compaction of the first batch: the rows that it stored are these."""
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
