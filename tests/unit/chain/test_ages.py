"""The ages of entries: bounds from what this process has seen of a chain."""

from __future__ import annotations

from txnstore.chain.ages import _MAX_KNOWN_HEADS, _KnownHeads


def test_known_heads_stay_few_and_no_entry_seems_to_be_too_old() -> None:
    """An entry each second, seen 5 ms after it was written; every other one is forgotten when there are too many."""
    heads = _KnownHeads()
    last = 10 * _MAX_KNOWN_HEADS
    for number in range(last + 1):
        heads.add(number * 1000, number * 1000 + 5, None)
        assert len(heads._known_heads) <= _MAX_KNOWN_HEADS
    now = last * 1000 + 5
    least = [heads.bounds(number * 1000, now)[0] for number in range(last + 1)]
    assert all(age <= now - (number * 1000 + 5) for number, age in enumerate(least))
    assert least == sorted(least, reverse=True)
    assert least[0] > 0


def test_age_is_between_the_looks_at_the_head() -> None:
    heads = _KnownHeads()
    heads.add(1000, 1010, 1020)
    heads.add(2000, 2010, None)
    assert heads.bounds(1500, 2100) == (90, 1080)
    assert heads.bounds(1000, 2100) == (1090, None)
    assert heads.bounds(2500, 2100) == (0, None)
