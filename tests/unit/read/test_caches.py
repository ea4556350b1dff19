"""What is kept in memory: the values that were used last, within a bound in bytes."""

from __future__ import annotations

from txnstore.caches import ByteCache


def test_the_values_that_were_used_last_are_kept() -> None:
    values = ByteCache[str, str](10)
    for name in "abc":
        values.keep(name, name.upper(), 5)
        assert values.find("a" if name == "b" else name)
    assert [values.find(name) for name in "abc"] == ["A", None, "C"]
    assert (values.size, values.has_room(0), values.has_room(1)) == (10, True, False)


def test_a_value_takes_the_place_of_the_one_with_its_key() -> None:
    values = ByteCache[str, int](10)
    values.keep("a", 1, 4)
    values.keep("a", 2, 6)
    assert (values.find("a"), values.size) == (2, 6)


def test_a_value_that_is_too_large_is_not_kept() -> None:
    values = ByteCache[str, int](10)
    values.keep("a", 1, 4)
    values.keep("b", 2, 11)
    assert (values.find("a"), values.find("b"), values.size) == (None, None, 0)
    values.keep("a", 1, 4)
    values.forget()
    assert (values.find("a"), values.size) == (None, 0)
