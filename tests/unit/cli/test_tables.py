"""Tables fit the terminal: words and numbers stay whole, and what does not fit becomes blocks of lines."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from txnstore.cli.tables import Column, layout, member_lines

_NAMES = Column("topic", ["orders", "flights"])
_COUNTS = Column("records", ["3", "12345"], number=True)


def test_a_table_aligns_text_to_the_left_and_numbers_to_the_right() -> None:
    assert layout([_NAMES, _COUNTS], 80) == [
        "topic    records",
        "───────  ───────",
        "orders         3",
        "flights    12345",
    ]


def test_long_text_is_folded_after_punctuation_and_a_time_after_its_date() -> None:
    ids = Column("transactional id", ["txnstore-demo-flights-delays-job-0", "job"])
    times = Column("updated at", ["2026-01-31T12:00:00.123Z", ""])
    assert layout([ids, times, _COUNTS], 50) == [
        "transactional id      updated at      records",
        "────────────────────  ──────────────  ───────",
        "txnstore-demo-        2026-01-31            3",
        "flights-delays-job-0  T12:00:00.123Z",
        "job                                     12345",
    ]


def test_a_table_that_would_break_words_becomes_blocks() -> None:
    assert layout([_NAMES, _COUNTS], 12) == [
        "topic    orders",
        "records  3",
        "",
        "topic    flights",
        "records  12345",
    ]


def test_columns_without_values_are_left_out_where_space_is_short() -> None:
    empty = Column("groups", ["", ""])
    assert "groups" in layout([_NAMES, empty, _COUNTS], 80)[0]
    assert "groups" not in layout([_NAMES, empty, _COUNTS], 20)[0]
    assert not any("groups" in line for line in layout([_NAMES, empty], 3))
    assert any("groups" in line for line in layout([_NAMES, empty], 3, drop_empty=False))


def test_without_a_terminal_each_row_is_one_line() -> None:
    lines = layout([Column("a", ["x " * 300]), Column("b", ["end"])], None)
    assert len(lines) == 3
    assert lines[-1].endswith("end")


def test_values_of_a_block_are_folded_below_their_beginning() -> None:
    assert member_lines({"name": "orders", "counters": "31 gets, 26288 bytes_in, 4 puts, 2 lists"}, 36) == [
        "name      orders",
        "counters  31 gets, 26288 bytes_in, 4",
        "          puts, 2 lists",
    ]


def test_wide_characters_take_two_cells() -> None:
    assert layout([Column("a", ["日本", "b"]), Column("n", ["1", "2"], number=True)], 80)[1:] == [
        "────  ─",
        "日本  1",
        "b     2",
    ]


def test_control_characters_of_the_data_do_not_reach_the_terminal() -> None:
    assert layout([Column("a", ["\x1b[31mred\r"])], None)[-1] == "\\x1b[31mred\\x0d"


_TEXT = st.text(st.sampled_from("ab1 -_.,"), max_size=40)


@given(st.lists(st.tuples(_TEXT, _TEXT, st.integers(0, 10**12)), min_size=1, max_size=5), st.integers(20, 90))
def test_a_table_keeps_every_character_and_fits(rows: list[tuple[str, str, int]], width: int) -> None:
    first, second, numbers = zip(*rows, strict=True)
    columns = [Column("a", first), Column("b", second), Column("n", [str(number) for number in numbers], number=True)]
    lines = layout(columns, width, drop_empty=False)
    kept = sorted("".join(lines).replace(" ", "").replace("─", ""))
    is_table = any("─" in line for line in lines)
    heads = "abn" if is_table else "abn" * len(rows)
    assert kept == sorted((heads + "".join(f"{a}{b}{n}" for a, b, n in rows)).replace(" ", ""))
    assert not is_table or max(map(len, lines)) <= width
    assert all(any(str(number) in line for line in lines) for number in numbers)
