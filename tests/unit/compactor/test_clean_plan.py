"""Which partitions are due for a clean, what it covers, and what merges leave to it."""

from __future__ import annotations

from dataclasses import replace

from txnstore.catalog.settings import TopicConfig
from txnstore.compactor.compact.clean_plan import first_uncleanable_offset, plan_clean
from txnstore.compactor.compact.on_request import plan_merges
from txnstore.core.log.batches import BatchList
from txnstore.core.log.model import AbortedTxn, Batch, Partition, Segment
from txnstore.core.model import Map, TopicPartition

TP = TopicPartition("t", 0)
NOW = 10_000


def _batch(base: int, at: int = 0, size: int = 100) -> Batch:
    return Batch(base, base + 1, 1, Segment(f"topics/t/0/{base}", "parquet", size, "00", 1), at, at, appended_at=at)


def _log(*batches: Batch, clean_until: int = 0, open_from: int | None = None) -> Partition:
    open_txns: Map[int, int] = Map({5: open_from}) if open_from is not None else Map()
    end = batches[-1].limit
    return Partition(high_watermark=end, batches=BatchList(batches), open_txns=open_txns, clean_until=clean_until)


def _config(**settings: object) -> TopicConfig:
    names = {"policy": "cleanup.policy", "low": "min.compaction.lag.ms", "high": "max.compaction.lag.ms"}
    return TopicConfig.from_mapping({"cleanup.policy": "compact", **{names[k]: v for k, v in settings.items()}})


def test_a_partition_is_due_above_the_ratio() -> None:
    """CMP-20: strictly."""
    half = _log(_batch(0), _batch(1), clean_until=1)
    assert plan_clean(TP, half, _config(), NOW) is None
    forced = plan_clean(TP, half, _config(), NOW, force=True)
    assert forced is not None
    assert (forced.dirty_ratio, forced.clean_until, len(forced.removed)) == (0.5, 2, 2)
    log = replace(_log(_batch(0), _batch(1, size=101), clean_until=1), revision=3)
    more = plan_clean(TP, log, _config(), NOW)
    assert more is not None
    assert more.revision == 3


def test_nothing_new_is_never_due() -> None:
    clean = _log(_batch(0), _batch(1), clean_until=2)
    assert plan_clean(TP, clean, _config(high=1), NOW, force=True) is None


def test_an_expired_delete_horizon_is_reason_enough_for_a_forced_clean() -> None:
    stamped = replace(_batch(0), delete_horizon=NOW)
    log = _log(stamped, clean_until=1)
    assert plan_clean(TP, log, _config(), NOW - 1, force=True) is None
    assert plan_clean(TP, log, _config(), NOW) is None
    assert plan_clean(TP, log, _config(), NOW, force=True) is not None


def test_what_is_undecided_or_too_young_ends_a_clean() -> None:
    """CMP-02: the LSO, or the first batch that is too young; one that is clean already does not count."""
    log = _log(_batch(0), _batch(1, NOW - 99), _batch(2), _batch(3), open_from=3)
    assert first_uncleanable_offset(log, _config(), NOW) == 3
    assert first_uncleanable_offset(log, _config(low=100), NOW) == 1
    assert first_uncleanable_offset(log, _config(low=99), NOW) == 3
    assert first_uncleanable_offset(replace(log, clean_until=2), _config(low=100), NOW) == 3
    assert first_uncleanable_offset(_log(_batch(0, NOW + 1)), _config(), NOW) == 1, "no record is too young by default"


def test_a_dirty_record_that_is_too_old_makes_a_partition_due() -> None:
    """CMP-20."""
    log = _log(_batch(0, size=1_000), _batch(1, NOW - 100), clean_until=1)
    assert plan_clean(TP, log, _config(high=100), NOW) is None
    assert plan_clean(TP, log, _config(high=99), NOW) is not None


def test_aborted_batches_are_replaced_and_are_no_source() -> None:
    """CMP-05, CMP-06, CMP-16."""
    aborted = replace(_batch(1), producer_id=7, epoch=0, base_sequence=0, transactional=True)
    log = replace(_log(_batch(0), aborted, _batch(3)), aborted=(AbortedTxn(7, 1, 2, 3),))
    plan = plan_clean(TP, log, _config(), NOW)
    assert plan is not None
    assert [batch.base_offset for batch in plan.removed] == [0, 1, 3]
    assert [source.start for source in plan.sources] == [0, 3]
    assert plan.aborted == 1


def test_a_clean_starts_at_the_log_start() -> None:
    """CMP-21: also inside of a segment."""
    wide = Batch(0, 5, 5, Segment("topics/t/0/wide", "parquet", 10, "00", 5), 0, 0)
    log = replace(_log(wide, _batch(5)), log_start=3)
    plan = plan_clean(TP, log, _config(), NOW)
    assert plan is not None
    assert [(source.start, source.limit, source.whole) for source in plan.sources] == [(3, 5, False), (5, 6, True)]


def test_merges_leave_segments_with_delete_horizons_alone() -> None:
    """CMP-08: a merge does not copy the hidden column."""
    log = _log(_batch(0), replace(_batch(1), delete_horizon=5), _batch(2), _batch(3))
    assert [[batch.base_offset for batch in plan.removed] for plan in plan_merges(TP, log, 10_000)] == [[2, 3]]


def test_merges_do_not_mix_clean_and_dirty_batches() -> None:
    log = _log(*(_batch(number) for number in range(5)), clean_until=2)
    assert [[batch.base_offset for batch in plan.removed] for plan in plan_merges(TP, log, 10_000)] == [
        [0, 1],
        [2, 3, 4],
    ]
