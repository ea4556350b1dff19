"""The sums of records that compactions conserve: recorded by each of them, and compared by a verification."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pyarrow as pa
import pytest

from tests.helpers.compaction import T0, abort, begin, commit, new_store
from tests.helpers.connections import connection_of
from tests.helpers.verification import _entry, _fresh, _rewrite
from txnstore.core.log.sums import ConservedSums, Sums, add_up
from txnstore.core.maintenance import SegmentsReplaced
from txnstore.segment.sums import sums_of
from txnstore.store import Store
from txnstore.testing import ManualClock

COMPACT = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0", "delete.retention.ms": "0"}


@pytest.fixture
def store(clock: ManualClock) -> Store:
    store = new_store(clock)
    store.create_topic("t")
    return store


def _replacements(store: Store) -> dict[int, SegmentsReplaced]:
    """The compactions by entry."""
    last = connection_of(store).view().sequence
    return {
        number: event
        for number in range(1, last + 1)
        for event in _entry(store, number).events
        if isinstance(event, SegmentsReplaced)
    }


def _sums(store: Store) -> list[ConservedSums]:
    recorded = [event.sums for event in _replacements(store).values()]
    return [sums for sums in recorded if sums is not None]


def _content(store: Store) -> Sums:
    """The sums of what a reader finds."""
    return sums_of(store.scan("t").to_table())


def _records(sums: ConservedSums) -> tuple[int, int, int]:
    return sums.read.records, sums.removed.records, sum(item.records for item in sums.added)


def _alter(store: Store, number: int, change: Callable[[ConservedSums], ConservedSums | None]) -> None:
    """Change the sums of a compaction in its entry."""
    sequence, event = sorted(_replacements(store).items())[number]
    assert event.sums is not None
    changed = replace(event, sums=change(event.sums))
    _rewrite(store, sequence, replace(_entry(store, sequence), events=[changed]))


def _names(store: Store, *, deep: bool) -> set[str]:
    return {item.name for item in _fresh(store).verify(deep=deep).violations}


def _append(store: Store, table: pa.Table) -> None:
    with store.producer("w") as producer, producer.transaction():
        producer.send_table("t", table)


@pytest.mark.usefixtures("own_objects")
def test_a_merge_records_the_sums_of_the_committed_records(store: Store) -> None:
    commit(store, [b"a", b"b"])
    abort(store, [b"aborted"])
    commit(store, [b"c"])
    before = _content(store)
    store.compact()
    assert _sums(store) == [ConservedSums(before, Sums(), (before,))]
    assert (_content(store), before.records) == (before, 3)
    assert store.verify(deep=True).ok


@pytest.mark.usefixtures("own_objects")
def test_a_merge_of_merged_segments_has_the_sums_of_both(store: Store) -> None:
    for number in range(4):
        commit(store, [b"%d" % number])
        commit(store, [b"x" * number])
        store.compact()
    read = [sums.read for sums in _sums(store)]
    assert [item.records for item in read] == [2, 4, 6, 8]
    assert read[-1] == _content(store)
    assert store.verify(deep=True).ok


@pytest.mark.usefixtures("own_objects")
def test_what_a_clean_removes_is_accounted_for(clock: ManualClock) -> None:
    """Records with a newer one, tombstones past their horizon, and records without a key; aborted ones are not read."""
    store = new_store(clock)
    store.create_topic("t")
    with store.producer("w") as producer, producer.transaction():
        producer.send("t", b"no key", partition=0)
    commit(store, [b"old", b"old", b"new"])
    abort(store, [b"aborted"])
    store.alter_topic("t", config=COMPACT)
    with store.producer("w") as producer, producer.transaction():
        producer.send("t", None, key=b"k0", partition=0)
        producer.send("t", b"new", key=b"k1", partition=0)
    before = _content(store)
    store.compact()
    clock.advance(1)
    store.compact(force=True)
    first, second = _sums(store)
    assert (_records(first), _records(second)) == ((6, 3, 3), (3, 1, 2))
    assert first.read == before
    assert second.read == add_up(first.added)
    assert add_up(second.added) == _content(store)
    assert store.verify(deep=True).ok


@pytest.mark.usefixtures("own_objects")
def test_a_clean_above_the_high_watermark_is_accounted_for(clock: ManualClock) -> None:
    store = new_store(clock)
    store.create_topic("t", config=COMPACT)
    with begin(store, [b"open"]) as producer:
        commit(store, [b"old"])
        commit(store, [b"new"])
        store.compact(past_hw=True, force=True)
        assert [_records(sums) for sums in _sums(store)] == [(2, 1, 1)]
        assert store.verify(deep=True).ok
        producer.commit_transaction()


@pytest.mark.usefixtures("own_objects")
def test_a_clean_of_a_batch_that_the_log_start_cuts(clock: ManualClock) -> None:
    """Only the rest of the merged segment is read, so its sums are not those of the segment."""
    store = new_store(clock)
    store.create_topic("t", config={"cleanup.policy": "delete"})
    for _ in range(2):
        commit(store, [b"1", b"2", b"3"])
    store.compact()
    store.delete_records({T0: 2})
    store.alter_topic("t", config={**COMPACT, "cleanup.policy": "compact,delete"})
    before = _content(store)
    store.compact(force=True)
    merged, cleaned = _sums(store)
    assert (merged.read.records, cleaned.read) == (6, before)
    assert store.verify(deep=True).ok


@pytest.mark.usefixtures("own_objects")
def test_sums_do_not_depend_on_the_schema_at_the_time_of_a_merge(clock: ManualClock) -> None:
    store = new_store(clock)
    store.create_topic("t", schema=pa.schema([("n", pa.int32()), ("r", pa.float32())]))
    for number in range(2):
        _append(store, pa.table({"n": pa.array([number], pa.int32()), "r": pa.array([0.1], pa.float32())}))
    store.compact()
    wider = pa.schema([("r", pa.float64()), ("n", pa.int64()), ("later", pa.string())])
    store.alter_topic("t", schema=wider)
    assert store.verify(deep=True).ok
    _append(store, pa.table({"r": [0.5], "n": [7], "later": ["x"]}, wider))
    store.compact()
    assert [_records(sums) for sums in _sums(store)] == [(2, 0, 2), (3, 0, 3)]
    assert store.verify(deep=True).ok


# What a verification finds --------------------------------------------------------------------------------------------


@pytest.fixture
def compacted(store: Store) -> Store:
    """A merge, and a clean of the segment that it wrote."""
    commit(store, [b"old", b"b"])
    commit(store, [b"new"])
    store.compact()
    store.alter_topic("t", config=COMPACT)
    store.compact()
    assert [_records(sums) for sums in _sums(store)] == [(3, 0, 3), (3, 1, 2)]
    assert store.verify(deep=True).ok
    return store


def _other(sums: Sums) -> Sums:
    return replace(sums, hash=f"{int(sums.hash, 16) ^ 1:016x}")


@pytest.mark.usefixtures("own_objects")
def test_a_segment_without_the_records_that_were_read_is_found(compacted: Store) -> None:
    """Its bytes are those that were uploaded, and the number of records is right."""
    _alter(compacted, -1, lambda sums: replace(sums, removed=_other(sums.removed), added=(_other(sums.added[0]),)))
    changed = _sums(compacted)[-1]
    _alter(compacted, -1, lambda sums: replace(sums, removed=_minus(sums.read, changed.added[0])))
    assert _names(compacted, deep=False) == set()
    assert _names(compacted, deep=True) == {"segment_sums"}


def _minus(sums: Sums, other: Sums) -> Sums:
    value = (int(sums.hash, 16) - int(other.hash, 16)) % (1 << 64)
    return Sums(sums.records - other.records, sums.bytes - other.bytes, f"{value:016x}")


@pytest.mark.usefixtures("own_objects")
def test_a_compaction_that_did_not_read_what_another_one_wrote_is_found(compacted: Store) -> None:
    """Without reading any segment, and long after a vacuum has deleted the first one."""
    _alter(compacted, 0, lambda sums: ConservedSums(_other(sums.read), Sums(), (_other(sums.read),)))
    assert _names(compacted, deep=False) == {"compaction_conserves_sums"}


@pytest.mark.parametrize(
    ("number", "change"),
    [
        (0, lambda sums: replace(sums, read=_other(sums.read))),
        (0, lambda sums: replace(sums, removed=sums.read, added=(Sums(),))),
        (0, lambda sums: replace(sums, added=(sums.read, Sums()))),
        (0, lambda sums: ConservedSums(Sums(), Sums(), (Sums(),))),
        (1, lambda sums: replace(sums, removed=Sums(1, sums.removed.bytes + 1, sums.removed.hash))),
        (1, lambda sums: ConservedSums(sums.added[0], Sums(), sums.added)),
    ],
)
@pytest.mark.usefixtures("own_objects")
def test_sums_that_do_not_agree_are_found(
    compacted: Store, number: int, change: Callable[[ConservedSums], ConservedSums]
) -> None:
    _alter(compacted, number, change)
    assert _names(compacted, deep=False) == {"compaction_conserves_sums"}


@pytest.mark.usefixtures("own_objects")
def test_compactions_of_earlier_releases_have_no_sums(compacted: Store) -> None:
    for number in (0, 1):
        _alter(compacted, number, lambda _: None)
    assert _sums(compacted) == []
    assert _names(compacted, deep=True) == set()
