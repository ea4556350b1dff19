"""JSON lines are a contract; tables are for people."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from txnstore.cli.output import Output, display, instant
from txnstore.phrases import size


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, ""),
        (False, "no"),
        (2013, "2013"),
        ([], ""),
        (["a", "b"], "a, b"),
        ({"a": 1}, '{"a":1}'),
        (b"x", "x"),
        (math.inf, "inf"),
    ],
)
def test_display_formats_values_briefly(value: Any, text: str) -> None:
    assert display(value) == text


def test_sizes_and_instants_are_readable() -> None:
    assert [size(0), size(1023), size(1536), size(5 << 40)] == ["0 B", "1,023 B", "1.5 KiB", "5.0 TiB"]
    assert instant(1_700_000_000_123) == "2023-11-14T22:13:20.123Z"
    assert instant(None) is None


def test_rows_print_json_lines_or_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    rows: list[dict[str, Any]] = [{"a_b": 1, "c": "x [red]"}, {"a_b": None, "c": "y"}]
    Output(as_json=True).rows(rows, ["a_b"])
    assert [json.loads(line) for line in capsys.readouterr().out.splitlines()] == rows
    Output().rows(rows, ["a_b", "c"])
    out = capsys.readouterr().out
    assert "a b" in out
    assert "x [red]" in out, "what is in the data is no markup"


def test_empty_table_prints_a_note_to_standard_error(capsys: pytest.CaptureFixture[str]) -> None:
    Output().rows([], ["a"], empty="No rows")
    assert capsys.readouterr() == ("", "No rows\n")
    Output(as_json=True).rows([], ["a"], empty="No rows")
    assert capsys.readouterr() == ("", "")


def test_error_is_one_line_with_advice(capsys: pytest.CaptureFixture[str]) -> None:
    Output().error("it\nfailed", "Try again.")
    Output().error("It failed.", "Try again.")
    assert capsys.readouterr().err == "error: it failed. Try again.\nerror: It failed. Try again.\n"


def test_wide_row_is_not_truncated_without_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    Output().rows([{"a": "x" * 500, "b": "end"}], ["a", "b"])
    (line,) = [line for line in capsys.readouterr().out.splitlines() if "xxx" in line]
    assert "x" * 500 in line
    assert line.rstrip().endswith("end")


def test_numbers_are_aligned_to_the_right_and_flags_to_the_left(capsys: pytest.CaptureFixture[str]) -> None:
    Output().rows([{"number": 7, "is open": True, "text": "x"}], ["number", "is open", "text"])
    title, row = (line for line in capsys.readouterr().out.splitlines() if "number" in line or "7" in line)
    assert row.index("7") == title.index("number") + len("number") - 1
    assert row.index("yes") == title.index("is open")
    assert row.index("x") == title.index("text")
