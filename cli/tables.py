"""Lays out rows as text: a table if it fits the terminal, else one block of lines per row.

A line is never longer than the terminal unless a single word is: cells are folded between words and after punctuation,
and numbers and words stay whole. Without a terminal there is no limit, and each row is one line.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

_GAP = "  "
#: The least width to which a column of text is folded: lines of one syllable are unreadable.
_MIN_FOLDED_WIDTH = 16
#: The pieces that stay on one line: text up to and with a space or punctuation. A time is folded after its date.
_PIECE = re.compile(r"\d{4}-\d\d-\d\d(?=T\d)|T(?=\d\d:)[\d:.]+Z?|[\d.,:+-]*\d[\d.,:+-]*|[^\s\-_./:,;=]*[\s\-_./:,;=]?")
_CONTROL = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f]")


@dataclass(frozen=True, slots=True)
class Column:
    """A column of text.

    Attributes:
        title: The heading.
        cells: The text of each row.
        number: Whether the cells are aligned to the right.
    """

    title: str
    cells: Sequence[str]
    number: bool = False

    @property
    def full_width(self) -> int:
        """The width without folding."""
        return max((_cell_width(line) for text in (self.title, *self.cells) for line in text.split("\n")), default=0)

    @property
    def min_width(self) -> int:
        """The smallest width that breaks no word."""
        pieces = [_cell_width(piece.rstrip()) for text in self.cells for piece in _split_pieces(text)]
        words = [_cell_width(word) for word in self.title.split()]
        return max(*pieces, *words, min(self.full_width, 0 if self.number else _MIN_FOLDED_WIDTH), 0)


def layout(columns: Sequence[Column], width: int | None, *, drop_empty: bool = True) -> list[str]:
    """Lay out columns as the lines of a table, or of blocks if no table fits.

    Args:
        columns: The columns, with equally many cells.
        width: The cells of a line of the terminal; None for no limit.
        drop_empty: Leave out columns without any value where the table does not fit otherwise.
    """
    columns = [
        Column(column.title, [_escape_controls(text) for text in column.cells], column.number) for column in columns
    ]
    if width is None:
        return _table_lines(columns, [column.full_width for column in columns])
    if drop_empty and sum(column.full_width + len(_GAP) for column in columns) - len(_GAP) > width:
        columns = [column for column in columns if any(column.cells)]
    widths = _column_widths(columns, width)
    if widths is not None:
        return _table_lines(columns, widths)
    lines: list[str] = []
    for row in range(len(columns[0].cells)):
        values = {column.title: column.cells[row] for column in columns}
        lines += [*([""] if lines else []), *member_lines(values, width)]
    return lines


def member_lines(values: Mapping[str, str], width: int | None) -> list[str]:
    """Lay out members as lines with name and value; values are folded below their beginning."""
    name_width = max(map(_cell_width, values), default=0)
    room = None if width is None else width - name_width - len(_GAP)
    lines = []
    for name, value in values.items():
        text = _escape_controls(value)
        text_lines = _fold(text, room) if room is not None and room >= _MIN_FOLDED_WIDTH else text.split("\n")
        lines += [
            _pad(name if index == 0 else "", name_width) + _GAP + text_line
            for index, text_line in enumerate(text_lines)
        ]
    return [line.rstrip() for line in lines]


def _column_widths(columns: Sequence[Column], width: int) -> list[int] | None:
    """The widths of the columns in a table of this width; None if it does not fit."""
    widths = [column.min_width for column in columns]
    room = width - sum(widths) - len(_GAP) * (len(columns) - 1)
    if room < 0:
        return None
    # The columns that need the least are widened first; the others share the rest.
    needs = sorted((column.full_width - widths[index], index) for index, column in enumerate(columns))
    for position, (need, index) in enumerate(needs):
        added_width = min(need, room // (len(needs) - position))
        widths[index] += added_width
        room -= added_width
    # Folding between words may need less than the share.
    return [
        max(_cell_width(line) for text in (column.title, *column.cells) for line in _fold(text, share))
        for column, share in zip(columns, widths, strict=True)
    ]


def _table_lines(columns: Sequence[Column], widths: Sequence[int]) -> list[str]:
    titles = [_fold(column.title, width) for column, width in zip(columns, widths, strict=True)]
    height = max(map(len, titles), default=0)
    lines = _row_lines(columns, [[""] * (height - len(title)) + title for title in titles], widths)
    lines.append(_GAP.join("─" * width for width in widths))
    for cells in zip(*(column.cells for column in columns), strict=True):
        lines += _row_lines(columns, [_fold(cell, width) for cell, width in zip(cells, widths, strict=True)], widths)
    return lines


def _row_lines(columns: Sequence[Column], cells: Sequence[Sequence[str]], widths: Sequence[int]) -> list[str]:
    """Return the lines of a row: as many as its highest cell has."""
    lines = []
    for index in range(max(map(len, cells), default=0)):
        parts = [cell[index] if index < len(cell) else "" for cell in cells]
        padded_parts = [
            _pad(part, width, right=column.number) for part, width, column in zip(parts, widths, columns, strict=True)
        ]
        lines.append(_GAP.join(padded_parts).rstrip())
    return lines


def _fold(text: str, width: int) -> list[str]:
    """Fold the text of a cell into lines; only a piece that is wider than the cell makes a longer line."""
    lines = []
    for paragraph in text.split("\n"):
        line = ""
        for piece in _split_pieces(paragraph) if _cell_width(paragraph) > width else [paragraph]:
            if line and _cell_width((line + piece).rstrip()) > width:
                lines.append(line.rstrip())
                line = ""
            line += piece
        lines.append(line.rstrip())
    return lines


def _split_pieces(text: str) -> list[str]:
    return [piece for piece in _PIECE.findall(text) if piece] or [""]


def _escape_controls(text: str) -> str:
    """Escape control characters: those in data must not move the cursor of a terminal."""
    return _CONTROL.sub(lambda match: f"\\x{ord(match[0]):02x}", text.expandtabs())


def _pad(text: str, width: int, *, right: bool = False) -> str:
    space = " " * (width - _cell_width(text))
    return space + text if right else text + space


def _cell_width(text: str) -> int:
    """The cells of the terminal that a text takes: two for a wide character."""
    if text.isascii():
        return len(text)
    from rich.cells import cell_len

    return cell_len(text)
