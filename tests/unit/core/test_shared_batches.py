"""The batches of one segment in an append: rows of it that have nothing in common, described in the same way."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.helpers.shell import topic
from txnstore.core.catalog.model import CreateTopic
from txnstore.core.decide import decide
from txnstore.core.log.commands import Append
from txnstore.core.log.events import BatchesAppended
from txnstore.core.log.model import NewBatch, Segment
from txnstore.core.model import ProducerIdentity
from txnstore.core.state import State, begin_entry, first_state
from txnstore.errors import ProducerError

SEGMENT = Segment("topics/t/0/a.parquet", "parquet", 9, "5" * 64, 10)


def rows(partition: int, first: int, count: int, name: str = "t") -> NewBatch:
    return NewBatch(name, partition, SEGMENT, 1, 2, first_row=first, rows=count)


@pytest.fixture
def state() -> State:
    state = first_state()
    for name in ("t", "u"):
        state = decide(begin_entry(state, 1), CreateTopic(topic(name, 3))).state
    return state


def test_batches_of_a_segment_come_in_any_order(state: State) -> None:
    batches = (rows(2, 7, 3), rows(0, 0, 4), rows(1, 4, 3))
    answer = decide(begin_entry(state, 2), Append(ProducerIdentity(), batches))
    assert [part.limit for part in answer.result] == [3, 4, 3]
    (event,) = answer.events
    assert isinstance(event, BatchesAppended)
    assert [item.first_row for item in event.batches] == [7, 0, 4]


@pytest.mark.parametrize(
    ("other", "problem"),
    [
        (rows(1, 3, 3), "t-0 and t-1, which both have its row 3"),
        (rows(1, 0, 4), "both have its row 0"),
        (rows(0, 2, 1), "t-0 and t-0, which both have its row 2"),
        (rows(0, 4, 3, "u"), "of different topics"),
        (replace(rows(1, 4, 3), timestamp_type="LogAppendTime"), "describe it differently"),
        (replace(rows(1, 4, 3), segment=replace(SEGMENT, size=8)), "describe it differently"),
        (replace(rows(1, 4, 3), segment=replace(SEGMENT, sha256="6" * 64)), "describe it differently"),
    ],
    ids=str,
)
def test_batches_that_contradict_each_other_are_refused(state: State, other: NewBatch, problem: str) -> None:
    """The event names the segment once, so what a second batch says of it would be lost."""
    for batches in ((rows(0, 0, 4), other), (rows(2, 8, 2), rows(0, 0, 4), other)):
        with pytest.raises(ProducerError, match=f"batches of the segment {SEGMENT.key} to .*{problem}"):
            decide(begin_entry(state, 2), Append(ProducerIdentity(), batches))
