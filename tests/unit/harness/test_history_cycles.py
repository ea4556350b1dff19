"""Cycles between committed operations (JEP-12), those that are allowed (JEP-13), and the work of a long history."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from types import FrameType
from typing import Any

import pytest

from tests.harness.history import History, Operation, Poll, Send, Snapshot, Type, check, find
from tests.harness.history.format import Bounds
from tests.helpers.histories import Story, poll, send


def test_jep_12_writes_in_opposite_orders_are_g0_which_is_allowed() -> None:
    story = Story()
    story.op("p", "txn", [send("a", 0), send("b", 1, "j")])
    story.op("q", "txn", [send("c", 1), send("d", 2, "j")])
    assert story.kinds(allowed=True) == set()
    story.op("r", "txn", [send("e", 2), send("f", 0, "j")])
    assert story.kinds(allowed=True) == {"G0"}
    assert story.kinds() == set()
    (anomaly,) = find(story.history())
    assert str(anomaly).startswith("G0, allowed: ")
    assert str(replace(anomaly, allowed=False)).startswith("G0: ")


@pytest.mark.parametrize(("second", "expected"), [("info", set()), ("ok", {"G1c"})])
def test_jep_12_mutual_reads_are_g1c(second: str, expected: set[str]) -> None:
    story = Story()
    story.op("p", "txn", [send("a", 0), poll("j", (0, "b"))], at=1, until=9)
    story.op("q", "txn", [send("b", 0, "j"), poll("k", (0, "a"))], kind=second, at=2, until=8)
    assert story.kinds() == expected


def test_jep_12_read_of_later_write_is_realtime_cycle() -> None:
    """The dependency alone is no cycle; the order of real time, or of a process, makes it one."""
    story = Story()
    story.op("p", "poll", poll("k", (0, "a")))
    story.op("q", "txn", send("a", 0))
    assert story.kinds() == {"G1c-realtime"}
    same = Story()
    same.op("p", "poll", poll("k", (0, "a")))
    same.op("p", "txn", send("a", 0))
    assert same.kinds() == {"G1c-process", "G1c-realtime"}


def test_jep_12_writes_against_real_time_are_g0_realtime() -> None:
    story = Story()
    story.op("p", "txn", send("a", 1))
    story.op("q", "txn", send("b", 0))
    assert story.kinds(allowed=True) == {"G0-realtime"}


def test_jep_13_a_cycle_of_both_kinds_is_legal() -> None:
    """An open transaction may read what another one wrote that continues after it in another key."""
    story = Story()
    story.op("p", "txn", [send("a", 0), poll("j", (0, "b"))], at=1, until=9)
    story.op("q", "txn", [send("b", 0, "j"), send("c", 1)], at=2, until=5)
    assert story.kinds() == set()
    assert story.kinds(allowed=True) == {"PL-2-cycle"}


def big_history(count: int) -> History:
    """Transactions of two sends, a reader after every ten, and a snapshot in the end."""
    operations: list[Operation] = []
    logs: dict[str, list[tuple[int, int | str]]] = {f"k-{number}": [] for number in range(8)}
    positions = dict.fromkeys(logs, 0)
    for number in range(count):
        now = 2 * number
        if number % 10 == 9:
            news = {key: tuple(log[positions[key] :]) for key, log in logs.items()}
            positions = {key: len(log) for key, log in logs.items()}
            value: tuple[Send | Poll | Snapshot, ...] = (Poll(news),)
        else:
            sends = []
            for place in (number % 8, (number + 3) % 8):
                log = logs[f"k-{place}"]
                sends.append(Send(f"k-{place}", number, 2 * len(log)))
                log.append((2 * len(log), number))
            value = tuple(sends)
        f = "poll" if number % 10 == 9 else "txn"
        process = "r" if f == "poll" else f"p{number % 5}"
        operations.append(Operation(number, process, Type.OK, f, value, now, now + 1))
    ends = {key: Bounds(0, 2 * len(log), 2 * len(log)) for key, log in logs.items()}
    snapshot = Snapshot(ends, {key: tuple(log) for key, log in logs.items()})
    operations.append(Operation(count, "f", Type.OK, "snapshot", (snapshot,), 2 * count, 2 * count + 1, final=True))
    return History(tuple(operations))


def executed_lines(work: Callable[[], object]) -> int:
    """The number of Python lines that run in a call, loops and comprehensions included."""
    count = 0

    def trace(_frame: FrameType, event: str, _argument: object) -> Any:
        nonlocal count
        count += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(before)
    return count


@pytest.mark.slow
def test_check_does_linear_work_in_the_length_of_a_history() -> None:
    short, long = big_history(500), big_history(1_000)
    assert check(short) == check(long) == []
    assert executed_lines(lambda: check(long)) <= 2.1 * executed_lines(lambda: check(short))
