"""Names that Kafka refuses are refused, and the message says what is wrong."""

from __future__ import annotations

import pytest

from txnstore.errors import InvalidConfigError, InvalidTopicError
from txnstore.validation import check_id, check_topic_name


@pytest.mark.parametrize("name", ["a", "orders", "Orders.v2_final-1", "...", "-", "x" * 249, "__consumer_offsets"])
def test_legal_topic_names(name: str) -> None:
    assert check_topic_name(name) == name


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("", "empty"),
        (".", "'.'"),
        ("..", "'..'"),
        ("../etc", "'/'"),
        ("a/b", "'/'"),
        ("a\\b", r"'\\\\'"),
        ("a b", "' '"),
        ("a\n", r"'\\n'"),
        ("a\0", r"'\\x00'"),
        ("ö", "'ö'"),
        ("a%2fb", "'%'"),
        ("١", "only letters"),
        ("x" * 250, "250 characters"),
    ],
)
def test_illegal_topic_names(name: str, says: str) -> None:
    with pytest.raises(InvalidTopicError, match=says):
        check_topic_name(name)


@pytest.mark.parametrize("name", [None, b"orders", 7])
def test_a_topic_name_is_a_string(name: object) -> None:
    with pytest.raises(InvalidTopicError, match=type(name).__name__):
        check_topic_name(name)  # type: ignore[arg-type]


@pytest.mark.parametrize("value", ["loader-7", "a b/c", "Zürich", "x" * 249])
def test_legal_ids(value: str) -> None:
    assert check_id("transactional.id", value) == value


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ("", "must not be empty"),
        ("x" * 250, "250 characters"),
        ("a\nb", "cannot be printed"),
        ("\ud800", "cannot be printed"),
        (None, "NoneType"),
        (b"x", "bytes"),
    ],
)
def test_illegal_ids(value: object, says: str) -> None:
    """COORD-06: an empty transactional id is refused everywhere."""
    with pytest.raises(InvalidConfigError, match=rf"group\.id.*{says}"):
        check_id("group.id", value)  # type: ignore[arg-type]
