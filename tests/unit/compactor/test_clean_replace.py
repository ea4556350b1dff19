"""What the chain accepts as the result of a clean: fewer records, and a checkpoint that stays below the LSO."""

from __future__ import annotations

from dataclasses import replace

import pytest

from txnstore.chain.checkpoints.index import Edge, IndexFile, decoded_edges, encode_file
from txnstore.core.catalog.model import CatalogTopic
from txnstore.core.decide import decide
from txnstore.core.invariants.check import check, check_step
from txnstore.core.log.batches import BatchList
from txnstore.core.log.model import Batch, Partition, Segment
from txnstore.core.maintenance import ReplaceSegments, SegmentsReplaced
from txnstore.core.model import Map, TopicPartition
from txnstore.core.state import State, begin_entry
from txnstore.errors import CompactionConflictError

TP = TopicPartition("t", 0)


def _batch(base: int, limit: int, name: str | None = None, records: int | None = None) -> Batch:
    rows = records if records is not None else limit - base
    key = f"topics/t/0/{name or base}.parquet"
    return Batch(base, limit, rows, Segment(key, "parquet", 10, "00", rows, explicit_offsets=name is not None), 0, 0)


#: Two batches with a marker after each; a transaction is open from offset 22 on.
FIRST, SECOND = _batch(0, 10), _batch(11, 21)
OPEN = replace(_batch(22, 30), producer_id=5, epoch=0, base_sequence=0, transactional=True)
CLEANED = _batch(4, 21, "cleaned", 3)


@pytest.fixture
def state() -> State:
    partition = Partition(high_watermark=30, batches=BatchList([FIRST, SECOND, OPEN]), open_txns=Map({5: 22}))
    return State(
        sequence=9, topics=Map({"t": CatalogTopic("t", "id", 1)}), partitions=Map({TP: partition}), timestamp=77
    )


def test_a_clean_drops_records_and_moves_the_checkpoint_in_one_event(state: State) -> None:
    """CMP-21, CMP-22: one event, so a crash leaves the old segments and the old checkpoint, or both new ones."""
    decision = decide(state, ReplaceSegments(TP, (FIRST, SECOND), (CLEANED,), clean_until=22))
    assert decision.events == (
        SegmentsReplaced(topic="t", partition=0, removed=[0, 11], added=[CLEANED], clean_until=22),
    )
    partition = decision.state.partitions[TP]
    assert (list(partition.batches), partition.clean_until) == ([CLEANED, OPEN], 22)
    assert check_step(state, decision.state) == []
    assert "checkpoint_of_cleans" not in [item.name for item in check(decision.state)]


def test_a_clean_may_remove_all_records(state: State) -> None:
    after = decide(state, ReplaceSegments(TP, (FIRST, SECOND), (), clean_until=21)).state.partitions[TP]
    assert (list(after.batches), after.high_watermark, after.last_stable_offset) == ([OPEN], 30, 22)


def test_a_clean_that_finds_nothing_moves_the_checkpoint_only(state: State) -> None:
    command = ReplaceSegments(TP, (), (), clean_until=20)
    decision = decide(state, command)
    assert list(decision.state.partitions[TP].batches) == [FIRST, SECOND, OPEN]
    assert decision.state.partitions[TP].clean_until == 20
    assert decide(decision.state, command).events == ()


@pytest.mark.parametrize("removed", [(), (FIRST, SECOND)])
def test_the_checkpoint_does_not_pass_the_last_stable_offset(state: State, removed: tuple[Batch, ...]) -> None:
    """CMP-03: nothing undecided counts as clean."""
    with pytest.raises(CompactionConflictError, match="checkpoint 23 of t-0 would be above the last stable offset 22"):
        decide(state, ReplaceSegments(TP, removed, (), clean_until=23))


def test_the_checkpoint_does_not_go_back(state: State) -> None:
    """CMP-21: a clean that is behind another one keeps the other's checkpoint."""
    ahead = decide(state, ReplaceSegments(TP, (), (), clean_until=22)).state
    after = decide(begin_entry(ahead, 78), ReplaceSegments(TP, (FIRST,), (), clean_until=10))
    assert after.state.partitions[TP].clean_until == 22
    assert check_step(ahead, after.state) == []
    back = replace(after.state, partitions=Map({TP: replace(after.state.partitions[TP], clean_until=3)}))
    assert any("clean_until went back from 22 to 3" in item.message for item in check_step(after.state, back))


def test_a_merge_keeps_the_checkpoint(state: State) -> None:
    ahead = decide(state, ReplaceSegments(TP, (), (), clean_until=22)).state
    merged = _batch(0, 21, "merged", 20)
    assert decide(ahead, ReplaceSegments(TP, (FIRST, SECOND), (merged,))).state.partitions[TP].clean_until == 22


def test_a_clean_of_a_topic_that_was_created_again_is_a_conflict(state: State) -> None:
    """Also if it would only move the checkpoint: the new log has never been cleaned."""
    for removed in ((), (FIRST, SECOND)):
        with pytest.raises(CompactionConflictError, match="t-0 was deleted"):
            decide(state, ReplaceSegments(TP, removed, (), clean_until=9, topic_id="before"))
    assert decide(state, ReplaceSegments(TP, (), (), clean_until=9, topic_id="id")).events


def test_a_clean_cannot_add_without_removing(state: State) -> None:
    with pytest.raises(CompactionConflictError, match="must replace at least one batch"):
        decide(state, ReplaceSegments(TP, (), (CLEANED,), clean_until=9))


def test_the_first_dirty_offset_is_never_below_the_log_start() -> None:
    """CMP-21."""
    assert Partition(log_start=7, clean_until=5).first_dirty_offset == 7
    assert Partition(log_start=3, clean_until=5).first_dirty_offset == 5


def test_damage_of_the_checkpoint_and_of_horizons_is_found(state: State) -> None:
    def names(partition: Partition) -> list[str]:
        return [item.name for item in check(replace(state, partitions=Map({TP: partition})))]

    log = state.partitions[TP]
    assert "checkpoint_of_cleans" in names(replace(log, clean_until=23))
    assert "checkpoint_of_cleans" in names(replace(log, clean_until=-1))
    stamped = replace(FIRST, delete_horizon=5)
    assert "batches_hold_their_offsets" in names(replace(log, batches=BatchList([stamped, SECOND, OPEN])))


def test_a_checkpoint_keeps_delete_horizons(state: State) -> None:
    log = replace(state.partitions[TP], batches=BatchList([replace(CLEANED, delete_horizon=9), OPEN]))
    data = encode_file(Edge(), Edge(7, "hash", Map({TP: log})))
    (read,) = decoded_edges([IndexFile("key", data)])[1:]
    assert [batch.delete_horizon for batch in read.partitions[TP].batches] == [9, None]
