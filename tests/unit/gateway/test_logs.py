"""Lines that clients can cause are written at a bounded rate, and the log says how many were left out."""

from __future__ import annotations

import logging

from txnstore.gateway.logs import RateLimit


def line(at: float, place: int = 1, level: int = logging.WARNING, text: str = "bad") -> logging.LogRecord:
    record = logging.LogRecord("txnstore.gateway", level, "server.py", place, "%s", (text,), None)
    record.created = at
    return record


def test_ten_lines_of_a_place_are_written_at_once_and_then_one_in_six_seconds() -> None:
    limit = RateLimit()
    assert sum(limit.filter(line(0, text=str(number))) for number in range(1000)) == 10
    assert sum(limit.filter(line(at)) for at in range(1, 61)) == 10


def test_the_next_line_says_how_many_were_left_out() -> None:
    limit = RateLimit()
    for _ in range(25):
        limit.filter(line(0))
    after = line(7)
    assert limit.filter(after)
    assert after.getMessage() == "bad (15 more like it were left out)"
    quiet = line(100)
    assert limit.filter(quiet)
    assert quiet.getMessage() == "bad"


def test_the_last_line_left_out_is_written_later_if_no_other_comes() -> None:
    limit = RateLimit()
    for number in range(25):
        limit.filter(line(0, text=str(number)))
    assert limit.take_omitted(5) == []
    (late,) = limit.take_omitted(7)
    assert late.created == 7
    assert limit.filter(late)
    assert late.getMessage() == "24 (14 more like it were left out)"
    assert limit.take_omitted(100) == []


def test_at_the_end_all_lines_left_out_are_said() -> None:
    limit = RateLimit()
    for _ in range(11):
        limit.filter(line(0))
        limit.filter(line(0, place=2))
    late = limit.take_omitted(0, take_all=True)
    assert [limit.filter(each) and each.getMessage() for each in late] == ["bad", "bad"]


def test_places_are_limited_each_on_its_own_and_debug_lines_are_not() -> None:
    limit = RateLimit()
    for _ in range(20):
        limit.filter(line(0))
    assert limit.filter(line(0, place=2))
    assert all(limit.filter(line(0, level=logging.DEBUG)) for _ in range(100))


def test_a_clock_that_goes_back_stops_nothing() -> None:
    limit = RateLimit()
    for _ in range(20):
        limit.filter(line(1000))
    assert not limit.filter(line(0))
    assert limit.filter(line(7))
