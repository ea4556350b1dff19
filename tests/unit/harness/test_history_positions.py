"""Anomalies of order between and inside the operations of a process."""

from __future__ import annotations

from unittest.mock import Mock

import pytest

from tests.harness.history import Assign, Bounds, Poll, Snapshot
from tests.harness.history.index import Index
from tests.harness.history.positions import polls
from tests.helpers.histories import Story, poll, send


def written() -> Story:
    """Three values that another process has read, so that none is lost; the offsets have gaps of markers."""
    story = Story()
    for number, value in enumerate("abc"):
        story.op("w", "send", send(value, 10 * number))
    story.op("other", "poll", poll("k", (0, "a"), (10, "b"), (20, "c")))
    return story


def test_jep_06_a_gap_between_two_polls_is_a_poll_skip() -> None:
    story = written()
    story.op("p", "poll", poll("k", (0, "a")))
    story.op("q", "poll", poll("k", (0, "a")))
    story.op("q", "poll", poll("k", (10, "b")))
    assert story.kinds() == set()
    story.op("p", "poll", poll("k", (20, "c")))
    assert story.kinds() == {"poll-skip"}


@pytest.mark.parametrize(("log_start", "kinds"), [(10, {"poll-skip"}), (11, {"poll-skip"}), (21, set())])
def test_jep_06_a_gap_is_legal_if_all_of_it_may_be_deleted(log_start: int, kinds: set[str]) -> None:
    story = written()
    story.op("w", "send", send("d", 30))
    story.op("other", "poll", poll("k", (30, "d")))
    story.op("s", "snapshot", Snapshot({"k": Bounds(log_start, 31, 31)}))
    story.op("p", "poll", poll("k", (0, "a")))
    story.op("p", "poll", poll("k", (30, "d")))
    assert story.kinds() == kinds


def test_a_gap_costs_the_same_however_wide_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    story, records = Story(), [(number, str(number)) for number in range(100)]
    story.op("other", "poll", poll("k", *records))
    story.op("p", "poll", poll("k", records[0], records[-1]))
    index = Index(story.history(compacted=["k"]))
    may_be_deleted = Mock(return_value=True)
    monkeypatch.setattr(index, "may_be_deleted", may_be_deleted)
    assert list(polls(index)) == []
    may_be_deleted.assert_called_once_with("k", 98)


def test_jep_06_an_assignment_without_the_key_forgets_the_position() -> None:
    story = written()
    story.op("p", "poll", poll("k", (0, "a")))
    story.op("p", "assign", Assign(("j",)))
    story.op("p", "assign", Assign(("j", "k")))
    story.op("p", "poll", poll("k", (20, "c")))
    assert story.kinds() == set()


def test_jep_06_an_assignment_with_the_key_keeps_the_position() -> None:
    story = written()
    story.op("p", "poll", poll("k", (0, "a")))
    story.op("p", "assign", Assign(("j", "k")))
    story.op("p", "poll", poll("k", (20, "c")))
    assert story.kinds() == {"poll-skip"}


def test_jep_06_a_seek_forgets_the_position() -> None:
    story = written()
    story.op("p", "poll", poll("k", (20, "c")))
    story.op("p", "assign", Assign(("k",), ("k",)))
    story.op("p", "poll", poll("k", (0, "a")))
    assert story.kinds() == set()


@pytest.mark.parametrize("kind", ["info", "fail"])
def test_jep_06_an_operation_that_is_not_ok_does_not_move_the_position(kind: str) -> None:
    """JEP-25: a transaction that aborts is rewound."""
    story = written()
    story.op("p", "poll", poll("k", (0, "a")))
    story.op("p", "txn", poll("k", (10, "b")), kind=kind)
    story.op("p", "txn", poll("k", (10, "b")))
    assert story.kinds() == set()
    story.op("q", "poll", poll("k", (0, "a")))
    story.op("q", "txn", poll("k", (10, "b")), kind=kind)
    story.op("q", "txn", poll("k", (20, "c")))
    assert story.kinds() == {"poll-skip"}


@pytest.mark.parametrize("again", [(0, "a"), (10, "b")])
def test_jep_07_going_back_is_a_nonmonotonic_poll(again: tuple[int, str]) -> None:
    story = written()
    story.op("p", "poll", poll("k", (0, "a"), (10, "b")))
    story.op("p", "poll", Poll({"k": ()}))
    assert story.kinds() == set()
    story.op("p", "poll", poll("k", again))
    assert story.kinds() == {"nonmonotonic-poll"}


@pytest.mark.parametrize(
    ("records", "kind"),
    [
        (((0, "a"), (20, "c")), "int-poll-skip"),
        (((10, "b"), (0, "a")), "int-nonmonotonic-poll"),
        (((0, "a"), (10, "b")), None),
    ],
)
def test_jep_08_inside_one_operation(records: tuple[tuple[int, str], ...], kind: str | None) -> None:
    story = written()
    story.op("p", "poll", poll("k", *records))
    assert story.kinds() == ({kind} if kind else set())
    rebalanced = written()
    rebalanced.op("p", "poll", poll("k", *records), rebalanced=("k",))
    assert rebalanced.kinds() == set()


def test_jep_08_two_polls_of_one_operation_belong_together() -> None:
    story = written()
    story.op("p", "txn", [poll("k", (0, "a")), poll("k", (20, "c"))])
    assert story.kinds() == {"int-poll-skip"}


def test_jep_08_uncommitted_values_are_no_gap() -> None:
    """A reader of uncommitted records sees one more; the others did not skip it."""
    story = written()
    story.op("w", "txn", send("x"), kind="fail")
    story.op("u", "poll", poll("k", (10, "b"), (15, "x"), (20, "c")), isolation="read_uncommitted")
    story.op("p", "poll", poll("k", (10, "b"), (20, "c")))
    assert story.kinds() == set()
    story.op("u", "poll", poll("k", (15, "x")), isolation="read_uncommitted")
    assert story.kinds() == {"nonmonotonic-poll"}


def test_jep_09_sends_of_one_operation() -> None:
    """A gap is where others wrote, which is allowed; going back is not."""
    story = Story()
    story.op("p", "txn", [send("a", 3), send("b", 5)])
    story.op("q", "txn", send("x", 4))
    assert story.kinds() == set()
    assert story.kinds(allowed=True) == {"int-send-skip", "G0"}
    story.op("r", "txn", [send("c", 9), send("d", 8)])
    assert story.kinds() == {"int-nonmonotonic-send"}


@pytest.mark.parametrize("kind", ["ok", "fail"])
def test_jep_10_a_later_send_at_an_earlier_place(kind: str) -> None:
    story = Story()
    story.op("p", "send", send("a", 5))
    story.op("q", "send", send("x", 4))
    assert story.kinds() == set()
    story.op("p", "send", send("b", 3), kind=kind)
    assert story.kinds() == ({"nonmonotonic-send"} if kind == "ok" else set())


def test_jep_13_a_rebalance_may_move_a_consumer_that_subscribes() -> None:
    story = written()
    story.op("p", "subscribe", Assign(("k",)))
    story.op("p", "poll", poll("k", (20, "c")))
    story.op("p", "poll", poll("k", (0, "a")))
    assert story.kinds() == set()
    assert story.kinds(allowed=True) == {"nonmonotonic-poll"}
