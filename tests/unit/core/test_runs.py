"""Consecutive events of partitions are folded together: the same state as one by one, for less work."""

from __future__ import annotations

from typing import Any

import pytest

from tests.helpers.shell import topic
from txnstore.core.catalog.model import CreateTopic
from txnstore.core.decide import Decision, decide
from txnstore.core.evolve import evolve
from txnstore.core.log import appending
from txnstore.core.log.commands import Append
from txnstore.core.log.model import NewBatch, Segment
from txnstore.core.model import Command, Outcome, ProducerIdentity, TopicPartition
from txnstore.core.state import State, begin_entry, first_state, replace
from txnstore.core.transactions.commands import EndTxn, InitProducer

PARTITIONS = 50


def decided(state: State, command: Command) -> Decision:
    return decide(begin_entry(state, state.timestamp + 1), command)


def batches(*sequences: int) -> tuple[NewBatch, ...]:
    """A batch of one record for each partition and sequence."""
    return tuple(
        NewBatch("t", partition, Segment(f"{partition}/{sequence}", "parquet", 1, "", 1), 0, 0, sequence)
        for sequence in sequences
        for partition in range(PARTITIONS)
    )


@pytest.fixture
def begun() -> tuple[State, ProducerIdentity]:
    state = decided(first_state(), CreateTopic(topic("t", PARTITIONS))).state
    answer = decided(state, InitProducer("p"))
    return answer.state, answer.result


@pytest.mark.parametrize("outcome", list(Outcome))
def test_events_folded_together_and_one_by_one_give_the_same_state(
    begun: tuple[State, ProducerIdentity], outcome: Outcome
) -> None:
    before, producer = begun
    answer = decided(before, EndTxn(producer, outcome, batches(0, 1)))
    start = begin_entry(before, before.timestamp + 1)
    one_by_one = start
    for event in answer.events:
        one_by_one = evolve(one_by_one, event)
    assert evolve(start, *answer.events) == one_by_one == answer.state
    assert len(answer.events) == 1 + 2 * PARTITIONS + 1 + PARTITIONS + 1
    assert [part.base_offset for part in answer.result.appended] == [0] * PARTITIONS + [1] * PARTITIONS


def test_a_batch_is_checked_after_those_of_its_partition_before_it(begun: tuple[State, ProducerIdentity]) -> None:
    """Also when a run of batches of other partitions is not folded yet; a repeated batch gets the first answer."""
    state, producer = begun
    state = decided(state, Append(producer, batches(0)[:1])).state
    appended = decided(state, Append(producer, batches(0, 1, 0))).result
    assert [part.base_offset for part in appended] == [0] * PARTITIONS + [1] * PARTITIONS + [0] * PARTITIONS
    assert [part.duplicate for part in appended] == [True] + [False] * (2 * PARTITIONS - 1) + [True] * PARTITIONS


def test_a_transaction_changes_the_map_of_partitions_once(
    begun: tuple[State, ProducerIdentity], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reader of its entry changes the map twice, for the batches and for the markers, whatever their number."""
    changes: list[dict[str, Any]] = []

    def counted(state: State, **changed: Any) -> State:
        changes.append(changed)
        return replace(state, **changed)

    monkeypatch.setattr(appending, "replace", counted)
    before, producer = begun
    answer = decided(before, EndTxn(producer, Outcome.COMMIT, batches(0)))
    assert [list(changed) for changed in changes] == [["partitions"]]
    changes.clear()
    assert evolve(begin_entry(before, before.timestamp + 1), *answer.events) == answer.state
    assert [list(changed) for changed in changes] == [["partitions"]] * 2


@pytest.mark.parametrize("outcome", list(Outcome))
@pytest.mark.parametrize("begins", [False, True])
def test_batches_folded_with_their_markers_and_before_them_give_the_same_state(
    begun: tuple[State, ProducerIdentity], outcome: Outcome, *, begins: bool
) -> None:
    """Of a transaction that has batches in earlier entries, and of one that has none; the aborted index is the same."""
    before, producer = begun
    if begins:
        before = decided(before, Append(producer, batches(0))).state
    last = batches(1)[:7] if begins else batches(0)
    answer = decided(before, EndTxn(producer, outcome, last))
    assert evolve(begin_entry(before, before.timestamp + 1), *answer.events) == answer.state
    first = answer.state.partitions[TopicPartition("t", 0)]
    assert [entry.first_offset for entry in first.aborted] == ([0] if outcome is Outcome.ABORT else [])
    assert first.high_watermark == len(first.batches) + 1 == (3 if begins else 2)
