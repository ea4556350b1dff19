"""What the chain accepts as the result of a compaction."""

from __future__ import annotations

from dataclasses import replace

import pytest

from txnstore.core.catalog.model import CatalogTopic
from txnstore.core.decide import decide
from txnstore.core.log.batches import BatchList
from txnstore.core.log.model import MAX_UPLOAD_AGE_MS, Batch, Partition, Segment
from txnstore.core.log.sums import ConservedSums, Sums
from txnstore.core.maintenance import ReplaceSegments, SegmentsReplaced
from txnstore.core.model import Map, TopicPartition
from txnstore.core.state import State
from txnstore.errors import CompactionConflictError, CorruptionError

TP = TopicPartition("t", 0)


def _batch(base: int, limit: int, name: str | None = None, records: int | None = None) -> Batch:
    rows = records if records is not None else limit - base
    segment = Segment(
        f"topics/t/0/{name or base}.parquet", "parquet", 10, "00", rows, explicit_offsets=name is not None
    )
    return Batch(base, limit, rows, segment, 0, 0)


#: Three batches with a marker after each; a transaction is open from offset 22 on.
FIRST, SECOND, OPEN = _batch(0, 10), _batch(11, 21), _batch(22, 30)
MERGED = _batch(0, 21, "merged", 20)


@pytest.fixture
def state() -> State:
    partition = Partition(high_watermark=30, batches=BatchList([FIRST, SECOND, OPEN]), open_txns=Map({5: 22}))
    return State(topics=Map({"t": CatalogTopic("t", "id", 1)}), partitions=Map({TP: partition}), timestamp=77)


def _refused(state: State, removed: tuple[Batch, ...], added: tuple[Batch, ...], match: str) -> None:
    with pytest.raises(CompactionConflictError, match=match):
        decide(state, ReplaceSegments(TP, removed, added))


def test_adjacent_batches_are_replaced_and_recorded_as_dropped(state: State) -> None:
    decision = decide(state, ReplaceSegments(TP, (FIRST, SECOND), (MERGED,)))
    assert decision.events == (SegmentsReplaced(topic="t", partition=0, removed=[0, 11], added=[MERGED]),)
    partition = decision.state.partitions[TP]
    assert list(partition.batches) == [MERGED, OPEN]
    assert (partition.high_watermark, partition.last_stable_offset) == (30, 22)
    assert dict(decision.state.dropped.items()) == {FIRST.segment.key: 77, SECOND.segment.key: 77}


SUMS = Sums(20, 200, "00000000000000aa")
LESS = Sums(19, 190, "00000000000000a9")
ONE = Sums(1, 10, "0000000000000001")


def test_sums_are_recorded(state: State) -> None:
    sums = ConservedSums(SUMS, Sums(), (SUMS,))
    (event,) = decide(state, ReplaceSegments(TP, (FIRST, SECOND), (MERGED,), sums=sums)).events
    assert isinstance(event, SegmentsReplaced)
    assert event.sums == sums


@pytest.mark.parametrize(
    ("sums", "match"),
    [
        (ConservedSums(SUMS, Sums(), (LESS,)), "it read 20 .* is not the sum of removed 0 .* and written 19 records"),
        (ConservedSums(SUMS, Sums(), (replace(SUMS, hash="00000000000000ab"),)), "00000000000000aa.*00000000000000ab"),
        (ConservedSums(SUMS, ONE, (LESS,)), "a merge removes nothing"),
        (ConservedSums(LESS, Sums(), (LESS,)), r"have the record counts \[20\], and their sums \[19\]"),
        (ConservedSums(SUMS, Sums(), (LESS, ONE)), r"have the record counts \[20\], and their sums \[19, 1\]"),
    ],
)
def test_a_compaction_that_would_change_records_is_refused(state: State, sums: ConservedSums, match: str) -> None:
    with pytest.raises(CorruptionError, match=match):
        decide(state, ReplaceSegments(TP, (FIRST, SECOND), (MERGED,), sums=sums))


def test_a_run_may_be_removed_without_a_replacement(state: State) -> None:
    assert list(decide(state, ReplaceSegments(TP, (SECOND,), ())).state.partitions[TP].batches) == [FIRST, OPEN]


def test_a_run_may_become_several_segments(state: State) -> None:
    added = (_batch(0, 5, "a"), _batch(5, 21, "b", 15))
    assert list(decide(state, ReplaceSegments(TP, (FIRST, SECOND), added)).state.partitions[TP].batches) == [
        *added,
        OPEN,
    ]


def test_batches_of_an_open_transaction_are_not_replaced(state: State) -> None:
    """CMP-02."""
    _refused(state, (SECOND, OPEN), (_batch(11, 30, "merged", 18),), "above the last stable offset 22")


def test_already_replaced_batches_are_a_conflict(state: State) -> None:
    after = decide(state, ReplaceSegments(TP, (FIRST, SECOND), (MERGED,))).state
    _refused(after, (FIRST, SECOND), (_batch(0, 21, "late", 20),), "topics/t/0/0.parquet of t-0 was replaced")


def test_a_deleted_partition_is_a_conflict(state: State) -> None:
    _refused(replace(state, partitions=Map()), (FIRST,), (), "t-0 was deleted")


def test_a_gap_in_the_run_is_refused(state: State) -> None:
    """A segment between the removed ones would end up inside the merged one's offsets."""
    plain = replace(state, partitions=Map({TP: replace(state.partitions[TP], open_txns=Map())}))
    _refused(plain, (FIRST, OPEN), (_batch(0, 30, "merged", 18),), "not contiguous")
    _refused(plain, (SECOND, FIRST), (), "not neighbours|was replaced")


def test_an_empty_removal_is_refused(state: State) -> None:
    _refused(state, (), (MERGED,), "must replace at least one batch")
    _refused(state, (), (), "must replace at least one batch")


@pytest.mark.parametrize(
    ("added", "match"),
    [
        ((_batch(0, 22, "long", 20),), "not removed"),
        ((_batch(11, 21, "low"), _batch(0, 10, "order")), "not removed"),
        ((_batch(0, 12, "a"), _batch(11, 21, "overlap", 8)), "not removed"),
        ((_batch(5, 5, "empty"),), "not removed"),
        ((_batch(0, 21, "more", 21),), "cannot turn 20 records into 21"),
        ((replace(MERGED, producer_id=4),), "must have no producer"),
        ((replace(MERGED, transactional=True),), "must have no producer"),
    ],
)
def test_replacement_must_match_removed_batches(state: State, added: tuple[Batch, ...], match: str) -> None:
    _refused(state, (FIRST, SECOND), added, match)


def test_merged_segment_announced_by_a_vacuum_is_refused(state: State) -> None:
    """OBJ-06: announced, or so old that the announcement may be forgotten."""
    announced = replace(state, dropped=Map({MERGED.segment.key: 5}))
    _refused(announced, (FIRST, SECOND), (MERGED,), "vacuumed")
    late = replace(state, timestamp=MAX_UPLOAD_AGE_MS + 10)
    command = ReplaceSegments(TP, (FIRST, SECOND), (MERGED,), uploaded_at=9)
    with pytest.raises(CompactionConflictError, match="over 3 days ago"):
        decide(late, command)
    assert decide(late, replace(command, uploaded_at=10)).events
