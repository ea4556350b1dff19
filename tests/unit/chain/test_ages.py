"""The ages of entries: bounds from what this process has seen of a chain."""

from __future__ import annotations

from txnstore.chain.ages import _MAX_MARKS, _KnownHeads


def test_marks_stay_few_and_no_entry_seems_to_be_too_old() -> None:
    """An entry each second, seen 5 ms after it was written; every other mark is forgotten when there are too many."""
    marks = _KnownHeads()
    last = 10 * _MAX_MARKS
    for number in range(last + 1):
        marks.add(number * 1000, number * 1000 + 5, None)
        assert len(marks._known_heads) <= _MAX_MARKS
    now = last * 1000 + 5
    least = [marks.bounds(number * 1000, now)[0] for number in range(last + 1)]
    assert all(age <= now - (number * 1000 + 5) for number, age in enumerate(least))
    assert least == sorted(least, reverse=True)
    assert least[0] > 0


def test_age_is_between_the_looks_at_the_head() -> None:
    marks = _KnownHeads()
    marks.add(1000, 1010, 1020)
    marks.add(2000, 2010, None)
    assert marks.bounds(1500, 2100) == (90, 1080)
    assert marks.bounds(1000, 2100) == (1090, None)
    assert marks.bounds(2500, 2100) == (0, None)
