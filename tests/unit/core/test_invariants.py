"""Each invariant finds the damage that it is there for, and says where; sound states have none."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from tests.helpers.core import T0, T1, World, with_partition, with_txn
from txnstore.core.catalog.model import DeleteTopic
from txnstore.core.groups.model import CommittedOffset, Group, OffsetAndMetadata
from txnstore.core.invariants.check import INVARIANTS, STEPS, check, check_step
from txnstore.core.invariants.common import Violation
from txnstore.core.invariants.fences import FENCE_INVARIANTS, FENCE_STEPS
from txnstore.core.invariants.groups import GROUP_INVARIANTS, GROUP_STEPS
from txnstore.core.log.batches import BatchList
from txnstore.core.log.model import AbortedTxn, Batch, ProducerState
from txnstore.core.maintenance import DropObjects, ForgetObjects
from txnstore.core.model import Outcome, TopicPartition
from txnstore.core.state import State
from txnstore.core.transactions.model import TxnState

NOWHERE = TopicPartition("nowhere", 0)


def _world() -> World:
    """In ``t-0``: plain 0-1, aborted 2-4 of ``b`` (marker 5), committed 6-7 of ``a`` (marker 8), open 9-10 of ``c``."""
    world = World(partitions=2)
    a, b, c = world.client("a"), world.client("b"), world.client("c")
    world.plain(2)
    b.send(3)
    b.abort()
    a.send(2)
    a.send_offsets({T0: 2})
    world.do(a.end(Outcome.COMMIT, versions=(("scope", 4),)))
    c.send(1)
    c.send(1)
    c.send_offsets({T1: 1})
    idempotent = world.client()
    idempotent.send(2, T1)
    idempotent.send(1, T1)
    world.compact(T1)
    world.create("old")
    world.plain(1, TopicPartition("old", 0))
    world.do(DeleteTopic("old"))
    return world


@pytest.fixture(scope="module")
def sound() -> State:
    return _world().state


def _log(state: State, tp: TopicPartition = T0, **changes: Any) -> State:
    return with_partition(state, replace(state.partitions[tp], **changes), tp)


def _batch(state: State, number: int, tp: TopicPartition = T0, **changes: Any) -> State:
    batches = list(state.partitions[tp].batches)
    batches[number] = replace(batches[number], **changes)
    return _log(state, tp, batches=BatchList(batches))


def _segment(state: State, number: int, tp: TopicPartition = T0, **changes: Any) -> State:
    segment = list(state.partitions[tp].batches)[number].segment
    return _batch(state, number, tp, segment=replace(segment, **changes))


def _txn(before: State, name: str, /, **changes: Any) -> State:
    return with_txn(before, replace(before.transactions[name], **changes))


def _producer(state: State, name: str, **changes: Any) -> State:
    producer_id = state.transactions[name].producer_id
    producers = state.partitions[T0].producers
    return _log(state, producers=producers.insert(producer_id, replace(producers[producer_id], **changes)))


def _window(state: State, number: int, **changes: Any) -> State:
    producer = state.partitions[T0].producers[state.transactions["c"].producer_id]
    batches = list(producer.batches)
    batches[number] = replace(batches[number], **changes)
    return _producer(state, "c", batches=tuple(batches))


def _aborted(state: State, *more: AbortedTxn, **changes: Any) -> State:
    (entry,) = state.partitions[T0].aborted
    return _log(state, aborted=(replace(entry, **changes), *more))


def _group(state: State, **changes: Any) -> State:
    return replace(state, groups=state.groups.insert("g", replace(state.groups["g"], **changes)))


def _offset(state: State, tp: TopicPartition, position: int = 0) -> State:
    value = CommittedOffset(OffsetAndMetadata(1), position)
    return _group(state, offsets=state.groups["g"].offsets.insert(tp, value))


def _pid(state: State, name: str) -> int:
    return state.transactions[name].producer_id


DAMAGE: list[tuple[str, str, Callable[[State], State]]] = [
    ("topics_own_their_partitions", "t-1", lambda s: replace(s, partitions=s.partitions.remove(T1))),
    ("topics_own_their_partitions", "t-0", lambda s: replace(s, topics=s.topics.remove("t"))),
    (
        "topics_own_their_partitions",
        "stored with the name u",
        lambda s: replace(s, topics=s.topics.insert("t", replace(s.topics["t"], name="u"))),
    ),
    ("offsets_in_order", "t-0", lambda s: _log(s, log_start=12)),
    ("offsets_in_order", "t-0", lambda s: _log(s, log_start=-1)),
    ("offsets_in_order", "t-0", lambda s: _log(s, high_watermark=8)),
    ("checkpoint_of_cleans", "not between 0 and the last stable offset", lambda s: _log(s, clean_until=99)),
    ("checkpoint_of_cleans", "not between 0 and the last stable offset", lambda s: _log(s, clean_until=-1)),
    ("revisions_are_entries", "not the number of an entry", lambda s: _log(s, revision=s.sequence + 1)),
    ("revisions_are_entries", "not the number of an entry", lambda s: _log(s, revision=-1)),
    ("batches_in_order", "1-4", lambda s: _batch(s, 1, base_offset=1)),
    ("batches_in_order", "2-1", lambda s: _batch(s, 1, limit=2)),
    ("batches_in_order", "outside the log", lambda s: _log(s, high_watermark=10)),
    ("batches_in_order", "outside the log", lambda s: _log(s, log_start=3)),
    ("batches_hold_their_offsets", "3 records in 2 offsets", lambda s: _batch(s, 0, records=3)),
    ("batches_hold_their_offsets", "1 records in 2 offsets", lambda s: _batch(s, 0, records=1)),
    ("batches_hold_their_offsets", "2 rows from row 1", lambda s: _batch(s, 0, first_row=1)),
    ("batches_hold_their_offsets", "no clean has written it", lambda s: _batch(s, 0, delete_horizon=5)),
    ("batches_hold_their_offsets", "0 rows", lambda s: _batch(s, 0, T1, records=0)),
    ("batches_hold_their_offsets", "has no producer", lambda s: _batch(s, 0, transactional=True)),
    (
        "segments_referenced_once",
        "in a batch of t-0",
        lambda s: _segment(s, 1, object=next(iter(s.partitions[T0].batches)).segment.key),
    ),
    (
        "dropped_segments_unreferenced",
        "t-0: the batch 0-1",
        lambda s: replace(s, dropped=s.dropped.insert(next(iter(s.partitions[T0].batches)).segment.key, 1)),
    ),
    ("transactions_well_formed", "'c' is ONGOING", lambda s: _txn(s, "c", started_at=None)),
    ("transactions_well_formed", "PREPARE_COMMIT", lambda s: _txn(s, "a", state=TxnState.PREPARE_COMMIT)),
    ("transactions_well_formed", "'a' is COMPLETE_COMMIT", lambda s: _txn(s, "a", groups=frozenset({"g"}))),
    ("transactions_well_formed", "began in entry 99", lambda s: _txn(s, "c", first_entry=99)),
    ("transactions_well_formed", "'a' is COMPLETE_COMMIT", lambda s: _txn(s, "a", first_entry=1)),
    ("transactions_well_formed", "'a' has epoch 32767", lambda s: _txn(s, "a", epoch=32767)),
    ("open_transactions_listed", "t-0", lambda s: _txn(s, "c", partitions=frozenset({T1}))),
    ("open_transactions_listed", "t-0", lambda s: _txn(s, "c", state=TxnState.COMPLETE_ABORT)),
    ("open_transactions_listed", "t-1", lambda s: _log(s, T1, open_txns=s.partitions[T1].open_txns.insert(99, 0))),
    (
        "open_transactions_hold_the_lso",
        "begins at 9",
        lambda s: _log(s, open_txns=s.partitions[T0].open_txns.remove(_pid(s, "c"))),
    ),
    (
        "open_transactions_hold_the_lso",
        "says 10",
        lambda s: _log(s, open_txns=s.partitions[T0].open_txns.insert(_pid(s, "c"), 10)),
    ),
    (
        "open_transactions_hold_the_lso",
        "nowhere-0",
        lambda s: _txn(s, "c", partitions=s.transactions["c"].partitions | {NOWHERE}),
    ),
    (
        "stable_data_is_decided",
        "outside the log",
        lambda s: _log(s, open_txns=s.partitions[T0].open_txns.insert(_pid(s, "c"), 11)),
    ),
    (
        "stable_data_is_decided",
        "spans the last stable offset 7",
        lambda s: _log(s, open_txns=s.partitions[T0].open_txns.insert(_pid(s, "c"), 7)),
    ),
    ("aborted_index_sound", "outside the log", lambda s: _aborted(s, last_offset=11)),
    ("aborted_index_sound", "outside the log", lambda s: _aborted(s, first_offset=5)),
    ("aborted_index_sound", "behind its marker", lambda s: _aborted(s, last_stable_offset=7)),
    ("aborted_index_sound", "does not follow", lambda s: _aborted(s, AbortedTxn(0, 0, 4, 4))),
    ("aborted_index_sound", "below the log start 6", lambda s: _log(s, log_start=6)),
    ("aborted_index_sound", "before the previous one", lambda s: _aborted(s, AbortedTxn(_pid(s, "b"), 4, 8, 8))),
    ("aborted_index_sound", "not transactional", lambda s: _batch(s, 1, transactional=False)),
    ("aborted_index_sound", "several epochs", lambda s: _batch(
        _aborted(s, first_offset=0), 0, producer_id=_pid(s, "b"), transactional=True)),
    ("aborted_index_sound", "a record at the offset of its marker", lambda s: _aborted(s, last_offset=4)),
    ("producer_windows_sound", "6 batches", lambda s: _producer(
        s, "c", batches=s.partitions[T0].producers[_pid(s, "c")].batches * 3)),
    ("producer_windows_sound", "a gap before sequence 2", lambda s: _window(s, 1, first_sequence=2, last_sequence=2)),
    ("producer_windows_sound", "a gap before sequence 1", lambda s: _window(s, 1, base_offset=9)),
    ("producer_windows_sound", "not in the log", lambda s: _window(s, 1, last_offset=11)),
    ("producer_windows_sound", "do not match its number of offsets", lambda s: _window(s, 0, last_sequence=5)),
    ("producer_windows_sound", "begins its transaction", lambda s: _producer(s, "c", current_txn_first_offset=10)),
    ("epochs_known_to_coordinator", "epoch 2, above 1", lambda s: _producer(s, "a", epoch=2)),
    ("epochs_known_to_coordinator", "epoch 1, above 0", lambda s: _producer(s, "c", epoch=1)),
    ("producer_ids_unique", "maps to 'b'", lambda s: replace(
        s, transactional_ids=s.transactional_ids.insert(_pid(s, "a"), "b"))),
    ("producer_ids_unique", "was never granted", lambda s: replace(s, next_producer_id=2)),
    ("producer_ids_unique", "t-1: producer id 50", lambda s: _log(
        s, T1, producers=s.partitions[T1].producers.insert(50, ProducerState(0)))),
    ("pending_offsets_have_a_transaction", "group 'g'", lambda s: _txn(s, "c", groups=frozenset())),
    ("pending_offsets_have_a_transaction", "producer id 77", lambda s: _group(
        s, pending=s.groups["g"].pending.insert(77, s.groups["g"].offsets))),
    ("group_offsets_sound", "nowhere-0", lambda s: _offset(s, NOWHERE)),
    ("group_offsets_sound", "commit position 9", lambda s: _offset(s, T1, 9)),
]  # fmt: skip


def _named(violations: list[Violation], name: str) -> str:
    return "; ".join(violation.message for violation in violations if violation.name == name)


def test_a_sound_state_has_no_violation(sound: State) -> None:
    assert check(sound) == []
    assert check(State()) == []
    assert check_step(State(), sound) == []
    assert check_step(sound, sound) == []


@pytest.mark.parametrize(("name", "where", "damage"), DAMAGE, ids=[f"{item[0]}-{item[1]}" for item in DAMAGE])
def test_damage_is_found(sound: State, name: str, where: str, damage: Callable[[State], State]) -> None:
    assert where in _named(check(damage(sound)), name)


def test_each_invariant_is_shown_to_fail() -> None:
    """Those of the members of groups are in test_group_invariants."""
    assert {rule.__name__ for rule in {*INVARIANTS} - {*GROUP_INVARIANTS, *FENCE_INVARIANTS}} == {
        name for name, _, _ in DAMAGE
    }


def test_a_violation_reads_as_a_sentence() -> None:
    assert str(Violation("offsets_in_order", "t-0: wrong")) == "offsets_in_order: t-0: wrong"


def _merged(state: State, **changes: Any) -> State:
    """As if a compaction had merged the first two batches of ``t-0``, in some wrong way."""
    first, second, *rest = state.partitions[T0].batches
    segment = replace(first.segment, object="merged", rows=5, explicit_offsets=True)
    batch = replace(Batch(0, second.limit, 2, segment, 0, 0), **changes)
    dropped = state.dropped.insert(first.segment.key, 1).insert(second.segment.key, 1)
    return replace(_log(state, batches=BatchList([batch, *rest])), dropped=dropped)


STEP_DAMAGE: list[tuple[str, str, Callable[[State], State]]] = [
    ("positions_never_go_back", "high_watermark went back from 11 to 10", lambda s: _log(s, high_watermark=10)),
    (
        "positions_never_go_back",
        "last_stable_offset went back from 9 to 7",
        lambda s: _log(s, open_txns=s.partitions[T0].open_txns.insert(_pid(s, "c"), 7)),
    ),
    ("offsets_never_renumbered", "more records than the batches", lambda s: _merged(s, records=6)),
    ("offsets_never_renumbered", "not a valid merged batch", lambda s: _merged(s, producer_id=0)),
    ("offsets_never_renumbered", "3-5", lambda s: _batch(s, 1, base_offset=3, limit=6)),
    (
        "undecided_data_is_kept",
        "9-9 above the last stable offset 9 was removed",
        lambda s: _log(s, batches=BatchList([item for item in s.partitions[T0].batches if item.base_offset != 9])),
    ),
    (
        "deletion_keeps_what_it_cuts",
        "the batch 6-7, which the log start 7 cuts, was removed",
        lambda s: _log(s, log_start=7, batches=BatchList([b for b in s.partitions[T0].batches if b.base_offset > 7])),
    ),
    ("positions_never_go_back", "revision went back", lambda s: _log(s, revision=0)),
    ("revisions_follow_replacements", "were replaced or deleted at revision", _merged),
    ("revisions_follow_replacements", "were replaced or deleted at revision", lambda s: _log(s, log_start=1)),
    ("decided_stays_decided", "2-5 left the aborted index", lambda s: _log(s, aborted=())),
    (
        "decided_stays_decided",
        "6-8 were aborted after they were stable",
        lambda s: _log(s, aborted=(*s.partitions[T0].aborted, AbortedTxn(_pid(s, "a"), 6, 8, 9))),
    ),
    (
        "segments_go_through_dropped",
        "no vacuum will delete it",
        lambda s: replace(_merged(s), dropped=s.dropped),
    ),
    (
        "segments_go_through_dropped",
        "which was dropped",
        lambda s: _segment(s, 0, object=next(iter(s.dropped))),
    ),
    ("epochs_never_go_back", "'a': the epoch went back from 1 to 0", lambda s: _txn(s, "a", epoch=0)),
    ("epochs_never_go_back", "producer id 1 was granted before", lambda s: _txn(s, "a", producer_id=1)),
    ("epochs_never_go_back", "t-0: the epoch of producer id 0", lambda s: _producer(s, "a", epoch=0)),
    (
        "producer_ids_never_move",
        "producer id 0 moved from transactional id 'a' to 'b'",
        lambda s: replace(s, transactional_ids=s.transactional_ids.insert(0, "b")),
    ),
    ("counters_never_go_back", "sequence", lambda s: replace(s, sequence=1)),
    ("counters_never_go_back", "journal_watermark", lambda s: _txn(s, "c", first_entry=1)),
    ("counters_never_go_back", "timestamp", lambda s: replace(s, timestamp=1)),
    ("counters_never_go_back", "next_producer_id", lambda s: replace(s, next_producer_id=1)),
    ("counters_never_go_back", "next_commit_position", lambda s: replace(s, next_commit_position=1)),
    (
        "versions_never_go_back",
        "version of 'scope' went back from 4 to 3",
        lambda s: _txn(s, "a", versions=s.transactions["a"].versions.insert("scope", 3)),
    ),
    ("group_offsets_by_position", "t-0 went back from commit position 0 to -1", lambda s: _offset(s, T0, -1)),
]


@pytest.mark.parametrize(("name", "where", "damage"), STEP_DAMAGE, ids=[f"{item[0]}-{item[1]}" for item in STEP_DAMAGE])
def test_invalid_transition_is_found(sound: State, name: str, where: str, damage: Callable[[State], State]) -> None:
    assert where in _named(check_step(sound, damage(sound)), name)


def test_each_rule_of_a_step_is_shown_to_fail() -> None:
    across = {"cut_never_goes_back"}  # tests/unit/core/test_invariants_across.py
    rules = {
        rule.__name__ for rule in {*STEPS} - {*GROUP_STEPS, *FENCE_STEPS}
    }  # test_group_invariants.py, test_fence_invariants.py
    assert rules == {name for name, _, _ in STEP_DAMAGE} | across


def test_the_log_start_never_goes_back(sound: State) -> None:
    assert "log_start went back from 1 to 0" in _named(
        check_step(_log(sound, log_start=1), sound), "positions_never_go_back"
    )


def test_recreated_topic_is_another_topic() -> None:
    """Its log begins at 0, and that is no step back."""
    world = _world()
    before = world.state
    world.do(DeleteTopic("t"))
    world.create("t", 2)
    assert check_step(before, world.state) == []


def test_a_vacuum_is_no_violation() -> None:
    world = _world()
    keys = tuple(world.state.dropped)
    assert len(keys) >= 3
    assert world.do(DropObjects((*keys, "orphan"))) == (*keys, "orphan")
    assert "orphan" in world.state.dropped
    world.do(ForgetObjects((*keys, "orphan")))
    assert set(world.state.dropped) == set()


def test_deleted_group_is_no_violation(sound: State) -> None:
    """Deleting a group or its offsets is not a step back."""
    assert check_step(sound, replace(sound, groups=sound.groups.insert("g", Group()))) == []
