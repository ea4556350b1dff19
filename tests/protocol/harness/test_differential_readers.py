"""Every reader shows what a plain model shows, whatever another process does between two requests.

`python -m tests.harness differential-readers` runs more histories.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.harness.readers.conditions import Condition, Tree
from tests.harness.readers.faults import FAULTS, SOUGHT, Fault
from tests.harness.readers.model import Part, Rec, Txn
from tests.harness.readers.run import Failure, drawn, run, shortest
from tests.mutants.mutant import Mutant

#: In each case there are this many histories.
_EACH = 5
#: Faults that histories of few steps find.
_QUICK = [fault for fault in FAULTS if fault.quick]


@pytest.mark.slow
@pytest.mark.one_in(3)
@pytest.mark.parametrize("first", range(0, 50, _EACH))
def test_all_readers_agree_with_the_model(first: int) -> None:
    for seed in range(first, first + _EACH):
        failure, _ = run(seed, drawn(seed))
        assert failure is None, shortest(failure)


@pytest.mark.slow
def test_the_same_seed_is_the_same_history() -> None:
    one, two = (run(3, drawn(3))[1] for _ in range(2))
    assert (one.steps, one.pairs, one.rows) == (two.steps, two.pairs, two.rows)


@pytest.mark.slow
def test_a_reader_without_a_record_is_a_difference(monkeypatch: pytest.MonkeyPatch) -> None:
    """The harness can fail, and leaves out the steps that it does not need."""
    monkeypatch.setattr(Part, "visible", lambda part, _: [*sorted(part.present.items())[1:]])
    failure, _ = run(1, drawn(1))
    assert failure is not None
    shorter = shortest(failure)
    assert isinstance(shorter, Failure)
    assert len(shorter.steps) < min(8, len(failure.steps))


@pytest.mark.slow
@pytest.mark.parametrize("fault", _QUICK, ids=lambda fault: fault.name)
def test_a_history_finds_the_fault(fault: Fault) -> None:
    assert fault.failure(fault.seed) is not None


@pytest.mark.parametrize("fault", [*FAULTS, *SOUGHT], ids=lambda fault: fault.name)
def test_a_fault_is_of_the_present_code(fault: Fault) -> None:
    for change in (*fault.given, *fault.changes):
        with Mutant(fault.name, *change).alive():
            pass


def test_only_superseded_records_may_be_cleaned() -> None:
    aborted, keyed = Txn("a", "aborted"), {"cleanup.policy": "compact"}
    part = Part(past={number: Rec(number, {}, None, key=b"k") for number in range(2)})
    part.past[2] = Rec(2, {}, aborted, key=b"k")
    assert part.may_be_cleaned(0, keyed, 0)
    assert not part.may_be_cleaned(1, keyed, 0)
    assert part.may_be_cleaned(2, {}, 0)
    assert not part.may_be_cleaned(0, {"cleanup.policy": "delete"}, 0)


@pytest.mark.parametrize(
    ("tree", "row", "lacking", "chosen"),
    [
        ((">", "x", 5.0), {"x": float("nan")}, set(), {False}),
        (("not", ("<=", "x", 5.0)), {"x": float("nan")}, set(), {True}),
        (("!=", "x", 5), {"x": None}, set(), {False}),
        (("!=", "x", 5), {"x": None}, {"x"}, {False, True}),
        (("not", (">", "x", 5)), {"x": None}, {"x"}, {False, True}),
        (("not", ("in", "x", [1, 2])), {"x": None}, set(), {True}),
        (("not", ("in", "x", [1, 1])), {"x": None}, set(), {False}),
        (("or", ("null", "x"), (">", "y", 5)), {"x": None, "y": None}, {"x", "y"}, {True}),
        (("and", (">", "x", 5), ("null", "y")), {"x": None, "y": None}, {"x", "y"}, {False}),
    ],
)
def test_a_condition_of_pyiceberg(tree: Tree, row: dict[str, Any], lacking: set[str], chosen: set[bool]) -> None:
    """What pyiceberg makes of nulls and of what is not a number, or may make of them where a file lacks the column."""
    assert {Condition(tree).chooses(row, lacking, found) for found in (False, True)} == chosen


def test_further_readers_come_after_the_steps_of_a_history() -> None:
    steps = drawn(3)
    assert [step.name for step in drawn(3, readers=["scan"], also=["pyiceberg"])][-3:] == ["sync", "scan", "pyiceberg"]
    assert drawn(3) == steps
