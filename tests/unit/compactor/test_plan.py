"""Plans of merges, from chains that were never written: runs, limits, aborted data, the high-watermark."""

from __future__ import annotations

import hypothesis.strategies as st
import pytest
from hypothesis import given

from txnstore.compactor import MergePlan, plan_merges
from txnstore.core.log.batches import BatchList
from txnstore.core.log.model import AbortedTxn, Batch, Partition, Segment
from txnstore.core.log.visibility import aborted_batches
from txnstore.core.model import Map, TopicPartition

TP = TopicPartition("t", 0)
MIB = 1 << 20
ABORTER = 7


def _batch(base: int, records: int, size: int = 1_000, producer: int = 1) -> Batch:
    segment = Segment(f"topics/t/0/{base}.parquet", "parquet", size, "00", records)
    return Batch(base, base + records, records, segment, 0, 0, producer_id=producer, transactional=True)


def _log(*sizes: int, aborted: tuple[int, ...] = (), open_from: int | None = None) -> Partition:
    """Batches of ten records with a marker after each; ``aborted``: the numbers of those that were aborted."""
    batches, index = [], []
    for number, size in enumerate(sizes):
        base = number * 11
        batches.append(_batch(base, 10, size, ABORTER if number in aborted else 1))
        if number in aborted:
            index.append(AbortedTxn(ABORTER, base, base + 10, base + 11))
    open_txns = Map({9: open_from * 11}) if open_from is not None else Map()
    return Partition(
        high_watermark=len(sizes) * 11, batches=BatchList(batches), open_txns=open_txns, aborted=tuple(index)
    )


def _spans(plans: list[MergePlan]) -> list[tuple[int, int, int]]:
    """First offset, limit and number of sources of each plan."""
    return [(plan.base_offset, plan.limit, len(plan.sources)) for plan in plans]


def test_adjacent_segments_become_one_merge() -> None:
    plans = plan_merges(TP, _log(500, 700, 900), MIB)
    assert _spans(plans) == [(0, 32, 3)]
    assert (plans[0].records, plans[0].source_bytes, plans[0].aborted) == (30, 2_100, 0)


def test_empty_log_and_single_segment_need_no_merge() -> None:
    assert plan_merges(TP, Partition(), MIB) == []
    assert plan_merges(TP, _log(500), MIB) == []


def test_run_ends_before_it_exceeds_the_target() -> None:
    assert _spans(plan_merges(TP, _log(400, 400, 400, 400, 400), 1_000)) == [(0, 21, 2), (22, 43, 2)]


def test_segment_over_half_of_the_target_is_not_merged() -> None:
    assert _spans(plan_merges(TP, _log(100, 100, 501, 100, 100), 1_000)) == [(0, 21, 2), (33, 54, 2)]
    assert _spans(plan_merges(TP, _log(100, 100, 500, 100), 1_000)) == [(0, 43, 4)]


def test_merged_segments_are_not_merged_again() -> None:
    """The result of a merge weighs over half of the target, or has nothing left beside it."""
    assert plan_merges(TP, _log(800), 1_000) == []
    assert plan_merges(TP, _log(800, 900), 1_000) == []


def test_a_few_new_records_do_not_rewrite_the_largest_segment() -> None:
    assert _spans(plan_merges(TP, _log(40 * MIB, 2 * MIB, 2 * MIB), 128 * MIB)) == [(11, 32, 2)]
    assert _spans(plan_merges(TP, _log(40 * MIB, 5 * MIB, 5 * MIB), 128 * MIB)) == [(0, 32, 3)]
    assert plan_merges(TP, _log(40 * MIB, 2 * MIB), 128 * MIB) == []


def test_min_segments_is_respected() -> None:
    assert plan_merges(TP, _log(500, 500), MIB, min_segments=3) == []
    assert len(plan_merges(TP, _log(500, 500, 500), MIB, min_segments=3)) == 1


def test_single_committed_segment_is_not_rewritten() -> None:
    assert plan_merges(TP, _log(500), MIB, min_segments=1) == []


def test_aborted_batches_are_removed_and_not_read() -> None:
    """CMP-06."""
    (plan,) = plan_merges(TP, _log(500, 9_000, 500, aborted=(1,)), MIB)
    assert [batch.base_offset for batch in plan.removed] == [0, 11, 22]
    assert [part.batch.base_offset for part in plan.sources] == [0, 22]
    assert (plan.aborted, plan.source_bytes, plan.removed_bytes) == (1, 1_000, 10_000)


def test_aborted_batches_do_not_count_towards_the_target() -> None:
    assert _spans(plan_merges(TP, _log(400, 900, 900, 400, aborted=(1, 2)), 1_000)) == [(0, 43, 2)]


def test_run_of_aborted_batches_is_a_removal() -> None:
    assert _spans(plan_merges(TP, _log(500, 500, aborted=(0, 1)), MIB)) == [(0, 21, 0)]


def test_aborted_batches_around_an_unmerged_segment_are_removed() -> None:
    """CMP-06: the large segment is not rewritten, and what was aborted on both sides of it goes all the same."""
    plans = plan_merges(TP, _log(500, 900, 500, aborted=(0, 2)), 1_000)
    assert _spans(plans) == [(0, 10, 0), (22, 32, 0)]
    assert _spans(plan_merges(TP, _log(500, 400, 500, aborted=(0, 2)), 1_000)) == [(0, 10, 0), (22, 32, 0)]


def test_only_batches_below_the_last_stable_offset_take_part() -> None:
    """CMP-02: the first offset of the earliest open transaction is the limit."""
    log = _log(500, 500, 500, 500, open_from=2)
    assert _spans(plan_merges(TP, log, MIB)) == [(0, 21, 2)]
    assert plan_merges(TP, _log(500, 500, 500, open_from=0), MIB) == []
    assert plan_merges(TP, _log(500, 500, 500, open_from=1), MIB) == []


def test_aborted_data_above_an_open_transaction_stays() -> None:
    """CMP-02, CMP-04: also what is decided waits until everything before it is."""
    assert plan_merges(TP, _log(500, 500, 500, aborted=(1, 2), open_from=0), MIB) == []


@given(
    sizes=st.lists(st.integers(1, 1_200), max_size=40),
    aborted=st.sets(st.integers(0, 39)),
    open_from=st.none() | st.integers(0, 39),
    target=st.integers(1, 4_000),
    least=st.integers(1, 4),
)
def test_random_plans_satisfy_all_rules(
    sizes: list[int], aborted: set[int], open_from: int | None, target: int, least: int
) -> None:
    log = _log(*sizes, aborted=tuple(aborted), open_from=open_from if open_from in range(len(sizes)) else None)
    is_aborted = aborted_batches(log)
    plans = plan_merges(TP, log, target, least)
    touched = [batch for plan in plans for batch in plan.removed]
    assert touched == sorted(touched, key=lambda batch: batch.base_offset)
    assert len({batch.base_offset for batch in touched}) == len(touched)
    assert all(batch.limit <= log.last_stable_offset for batch in touched)
    for plan in plans:
        assert tuple(log.batches.overlapping(plan.base_offset, plan.limit)) == plan.removed
        assert [part.batch for part in plan.sources] == [batch for batch in plan.removed if not is_aborted(batch)]
        assert all(part.whole for part in plan.sources)
        assert len(plan.sources) == 0 or len(plan.sources) >= max(2, least)
        assert plan.source_bytes <= target
    stable_aborted = [batch for batch in log.batches if is_aborted(batch) and batch.limit <= log.last_stable_offset]
    assert [batch for batch in touched if is_aborted(batch)] == stable_aborted


@pytest.mark.parametrize("target", [1, 100, MIB])
def test_log_without_gain_is_not_merged(target: int) -> None:
    assert plan_merges(TP, _log(2 * MIB, open_from=None), target) == []
