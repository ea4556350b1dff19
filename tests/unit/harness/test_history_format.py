"""Histories as JSON lines, and which end an error means."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from tests.harness.history import (
    Assign,
    Bounds,
    Decision,
    Event,
    Offsets,
    Poll,
    Recorder,
    Send,
    Snapshot,
    Type,
    from_line,
    history_of,
    outcome_of_call,
    outcome_of_txn,
    read_history,
    to_file,
    to_line,
)
from txnstore import errors

EVERYTHING = Event(
    "p1",
    Type.OK,
    "txn",
    17,
    (
        Send("in-0", "a"),
        Send("in-0", 2, 5, ("in-1", 7)),
        Send("in-0", "c", record_key="u"),
        Poll({"in-1": ((7, "x"), (9, "y"))}),
        Offsets("g", {"in-1": 10}),
        Assign(("in-0", "in-1"), ("in-1",)),
        Snapshot({"in-0": Bounds(0, 5, 7)}, {"in-0": ((3, "x"),)}, {"g": {"in-1": 10}}, ("g",)),
    ),
    transactional_id="t",
    producer_id=0,
    epoch=3,
    isolation="read_uncommitted",
    rebalanced=("in-1",),
    final=True,
    error="none",
)


@pytest.mark.parametrize("item", [EVERYTHING, Event("p", Type.INVOKE, "poll", 0), Decision("commit", "t", 1, 2, 3)])
def test_a_line_says_all_that_the_event_says(item: Event | Decision) -> None:
    assert from_line(to_line(item)) == item


def test_a_recorder_writes_each_event_before_the_next_call_and_half_a_line_is_none(tmp_path: Path) -> None:
    """An operation without an end is ``info``; a process that was killed while it wrote loses that line only."""
    path = tmp_path / "p1.jsonl"
    clock = itertools.count()
    with path.open("a") as file:
        recorder = Recorder("p1", lambda: next(clock), to_file(file))
        recorder.invoke("txn", [Send("k", "a")], transactional_id="t", producer_id=0, epoch=1)
        recorder.committing()
        recorder.complete(Type.OK, [Send("k", "a", 4)])
        recorder.invoke("txn", [Send("k", "b")])
        assert len(path.read_text().splitlines()) == 4
        file.write('{"process":"p1","type":"o')
    first, second = read_history([path]).operations
    assert (first.type, first.sends, first.invoked, first.committing, first.completed) == (
        Type.OK,
        [Send("k", "a", 4)],
        0,
        1,
        2,
    )
    assert (first.transactional_id, first.producer_id, first.epoch) == ("t", 0, 1)
    assert (second.type, second.sends, second.completed) == (Type.INFO, [Send("k", "b")], None)


def test_an_end_without_a_beginning_is_refused() -> None:
    with pytest.raises(ValueError, match="did not begin"):
        history_of([Event("p", Type.OK, "poll", 0)])


ALL_ERRORS = [
    item for item in vars(errors).values() if isinstance(item, type) and issubclass(item, errors.TxnStoreError)
]


@pytest.mark.parametrize("kind", ALL_ERRORS, ids=lambda kind: kind.__name__)
def test_only_an_unknown_outcome_is_info(kind: type[errors.TxnStoreError]) -> None:
    """A definite refusal is ``fail``; in this library all are definite but one."""
    expected = Type.INFO if kind is errors.UnknownOutcomeError else Type.FAIL
    assert outcome_of_call(kind("no")) is expected
    assert outcome_of_txn([kind("no")]) is expected


@pytest.mark.parametrize("error", [KeyboardInterrupt(), TimeoutError(), OSError()])
def test_foreign_errors_have_unknown_outcome(error: BaseException) -> None:
    """Timeout, Interrupt, network: ``info``."""
    assert outcome_of_call(error) is Type.INFO
    assert outcome_of_txn([error]) is Type.INFO


UNKNOWN, FENCED = errors.UnknownOutcomeError("?"), errors.ProducerFencedError("!")


@pytest.mark.parametrize(
    ("commits", "aborted", "expected"),
    [
        ([None], False, Type.OK),
        ([UNKNOWN, None], False, Type.OK),
        ([], False, Type.FAIL),  # Without a commit request: no other process may commit.
        ([], True, Type.FAIL),
        ([FENCED], False, Type.FAIL),  # No earlier call can have been applied.
        ([UNKNOWN, FENCED], False, Type.INFO),  # The earlier call may be why.
        ([errors.StorageError("away"), FENCED], False, Type.FAIL),
        ([errors.StorageError("away")], True, Type.FAIL),
    ],
)
def test_the_end_of_a_transaction_follows_from_all_calls_of_commit(
    commits: list[BaseException | None], aborted: bool, expected: Type
) -> None:
    """Stricter than Jepsen where an earlier call may have been applied."""
    assert outcome_of_txn(commits, aborted=aborted) is expected
