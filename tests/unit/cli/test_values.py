"""What people type becomes what the library takes."""

from __future__ import annotations

import click
import pyarrow as pa
import pytest

from txnstore.cli.context import parse_pairs
from txnstore.cli.values import Duration, Size, parse_column, parse_data_type


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("0", 0), ("90s", 90), ("250ms", 0.25), ("30m", 1800), ("24h", 86_400), ("7d", 604_800), ("1.5 h", 5400)],
)
def test_a_duration_has_a_unit(text: str, seconds: float) -> None:
    assert Duration().convert(text, None, None) == seconds


@pytest.mark.parametrize("text", ["", "x", "-1s", "1y", "1h30m", "nan", "90", "1.5", "9" * 400 + "d"])
def test_invalid_duration_is_refused(text: str) -> None:
    with pytest.raises(click.UsageError, match="not a duration"):
        Duration().convert(text, None, None)


@pytest.mark.parametrize(
    ("text", "field"),
    [
        ("id:int64", pa.field("id", pa.int64())),
        ("id:int64!", pa.field("id", pa.int64(), nullable=False)),
        ("at:timestamp[ms, UTC]", pa.field("at", pa.timestamp("ms", "UTC"))),
        ("at:timestamp[us]", pa.field("at", pa.timestamp("us"))),
        ("amount:decimal(10, 2)!", pa.field("amount", pa.decimal128(10, 2), nullable=False)),
        ("tags:list<string>", pa.field("tags", pa.list_(pa.string()))),
    ],
)
def test_a_column_has_a_name_and_an_arrow_type(text: str, field: pa.Field) -> None:
    assert parse_column(text) == field


@pytest.mark.parametrize("text", ["id", ":int64", "id:", ""])
def test_a_column_without_a_name_or_a_type_is_refused(text: str) -> None:
    with pytest.raises(click.UsageError, match="NAME:TYPE"):
        parse_column(text)


@pytest.mark.parametrize("text", ["integer", "decimal(99, 1)", "list<nothing>"])
def test_unknown_type_is_refused(text: str) -> None:
    with pytest.raises(click.UsageError, match="no column type"):
        parse_data_type(text)


def test_pairs_are_split_at_the_first_equals_sign() -> None:
    assert parse_pairs(("a=b=c", " d ="), "--x", lambda _, text: text) == {"a": "b=c", "d": ""}


@pytest.mark.parametrize("text", ["hunter2", "=hunter2"])
def test_error_of_an_invalid_pair_does_not_contain_it(text: str) -> None:
    with pytest.raises(click.UsageError) as caught:
        parse_pairs((text,), "--storage-option", lambda _, value: value)
    assert "hunter2" not in caught.value.format_message()


def test_column_name_outside_utf8_is_a_usage_error() -> None:
    with pytest.raises(click.UsageError, match="a name in UTF-8"):
        parse_column("caf\udce9:int64")


@pytest.mark.parametrize(
    ("text", "size"), [("1000", 1_000), ("512MB", 512 << 20), ("1 GiB", 1 << 30), ("2k", 2_048), ("7B", 7)]
)
def test_size(text: str, size: int) -> None:
    assert Size().convert(text, None, None) == size


@pytest.mark.parametrize("text", ["", "-1", "1.5GB", "1 gigabyte", "MB"])
def test_bad_size(text: str) -> None:
    with pytest.raises(click.BadParameter, match="is not a size: write 512MB"):
        Size().convert(text, None, None)
