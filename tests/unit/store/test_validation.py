"""Each kind of argument has one check, which returns the plain value or names what is wrong."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from txnstore.core.model import Isolation
from txnstore.errors import InvalidConfigError
from txnstore.validation import (
    as_integer,
    check_choice,
    check_expression,
    check_integer,
    check_milliseconds,
    check_number,
    check_seconds,
)


def test_an_integer_of_any_kind_becomes_a_plain_one() -> None:
    number = check_integer("limit", np.int64(7), 1, 9)
    assert (number, type(number)) == (7, int)
    assert as_integer(np.int32(-3)) == -3


@pytest.mark.parametrize("value", [True, 1.0, "1", None, math.nan])
def test_non_integer_is_refused(value: Any) -> None:
    assert as_integer(value) is None
    with pytest.raises(InvalidConfigError, match="limit must be an integer, not"):
        check_integer("limit", value)


@pytest.mark.parametrize(
    ("bounds", "says"),
    [
        ((1, None), "limit must be an integer, 1 or more, not 0"),
        ((1, 9), "limit must be an integer from 1 to 9, not 0"),
        ((None, -1), "limit must be an integer, -1 or less, not 0"),
    ],
)
def test_an_integer_out_of_range_is_refused_with_the_range(bounds: tuple[int | None, int | None], says: str) -> None:
    with pytest.raises(InvalidConfigError, match=says):
        check_integer("limit", 0, *bounds)


def test_numbers_in_their_range_are_returned_as_they_are() -> None:
    assert check_number("ratio", 0.5, least=0, most=1) == 0.5
    assert check_seconds("timeout", 0) == 0
    assert check_seconds("timeout", math.inf) == math.inf
    assert check_seconds("interval", 1, above=0, most=1) == 1


@pytest.mark.parametrize("value", [True, "1", None, math.nan, -1, 2])
def test_a_number_out_of_range_is_refused(value: Any) -> None:
    with pytest.raises(InvalidConfigError, match="ratio must be a number from 0 to 1, not"):
        check_number("ratio", value, least=0, most=1)


@pytest.mark.parametrize("value", [0, -0.5, math.nan, "5"])
def test_a_duration_above_a_bound_says_so(value: Any) -> None:
    with pytest.raises(InvalidConfigError, match="interval must be a number of seconds above 0, not"):
        check_seconds("interval", value, above=0)


def test_milliseconds_are_rounded_up() -> None:
    assert check_milliseconds("late", 1.0001) == 1001
    assert check_milliseconds("late", 0) == 0


@pytest.mark.parametrize("value", [math.inf, math.nan, -1, True])
def test_milliseconds_are_finite(value: Any) -> None:
    with pytest.raises(InvalidConfigError, match="late must be a"):
        check_milliseconds("late", value)


def test_a_choice_is_returned_as_the_member_that_it_names() -> None:
    assert check_choice("isolation", "read_committed", Isolation) is Isolation.READ_COMMITTED
    assert check_choice("assignor", "range", ["range", "sticky"]) == "range"


@pytest.mark.parametrize("value", ["serializable", None, b"read_committed", 1])
def test_a_choice_that_does_not_exist_is_refused_with_those_that_do(value: Any) -> None:
    with pytest.raises(InvalidConfigError, match="isolation must be 'read_committed' or 'read_uncommitted', not"):
        check_choice("isolation", value, Isolation)


@pytest.mark.parametrize("pattern", ["(", b"a", 7])
def test_invalid_regular_expression_is_refused(pattern: Any) -> None:
    with pytest.raises(InvalidConfigError, match="is not a regular expression"):
        check_expression(pattern)


@pytest.mark.parametrize("check", [check_integer, check_number])
def test_storage_options_in_the_wrong_place_are_not_shown(check: Callable[..., object]) -> None:
    with pytest.raises(InvalidConfigError, match=r"chains must be a.*, not a dict") as caught:
        check("chains", {"secret": "hunter2"})
    assert "hunter2" not in str(caught.value)
