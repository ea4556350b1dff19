"""The output of commands: tables and progress bars, or JSON lines; errors in one line.

Data goes to standard output, everything else to standard error. With ``--json``, each row or result is one JSON object
per line, whose members are a stable interface. Times are ISO 8601 in UTC. Bytes are text if they are UTF-8, else
``{"base64": "…"}``.
"""

from __future__ import annotations

import math
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, TextIO

from txnstore.cli.progress import Advance, progress_bar
from txnstore.values.json_text import plain, to_json

if TYPE_CHECKING:
    from txnstore.core.blocked import BlockedPartition


class Output:
    """Prints the results of one invocation."""

    def __init__(self, *, as_json: bool = False) -> None:
        self.as_json = as_json
        self._has_printed = False

    # Data -------------------------------------------------------------------------------------------------------------

    def rows(
        self,
        rows: Iterable[Mapping[str, Any]],
        columns: Sequence[str],
        *,
        empty: str = "",
        verbatim: bool = False,
    ) -> None:
        """Print a table of these columns, or one JSON object per row with all members.

        Args:
            columns: The columns of the table.
            empty: Printed to standard error instead of an empty table.
            verbatim: Print column names unchanged instead of replacing underscores by spaces.
        """
        if self.as_json:
            for row in rows:
                self.line(to_json(row))
            return
        all_rows = list(rows)
        if all_rows:
            self._lines(_layout(all_rows, columns, sys.stdout, verbatim=verbatim))
        elif empty:
            self.note(empty)

    def plan(self, rows: Sequence[Mapping[str, Any]], columns: Sequence[str]) -> None:
        """Print the plan of a command as a table to standard error, also with ``--json``."""
        if rows:
            print("\n".join(_layout(rows, columns, sys.stderr)), file=sys.stderr, flush=True)

    def record(self, values: Mapping[str, Any]) -> None:
        """Print one result: a line with name and value per member, or one JSON object."""
        if self.as_json:
            self.line(to_json(values))
            return
        from txnstore.cli.tables import member_lines

        self._lines(
            member_lines({name.replace("_", " "): display(value) for name, value in values.items()}, _width(sys.stdout))
        )

    def result(self, text: str, **values: Any) -> None:
        """Print the result of a command: the sentence, or the values as JSON."""
        self.line(to_json(values) if self.as_json else text)

    def _lines(self, lines: Iterable[str]) -> None:
        """Print a table or a block; an empty line separates it from one before."""
        for line in [*([""] if self._has_printed else []), *lines]:
            self.line(line)
        self._has_printed = True

    def line(self, text: str) -> None:
        """Print one line to standard output as UTF-8."""
        self.write(text.encode("utf-8", "backslashreplace") + b"\n")

    def write(self, data: bytes) -> None:
        """Write bytes to standard output unchanged."""
        sys.stdout.flush()
        sys.stdout.buffer.write(data)

    def flush(self) -> None:
        """Flush standard output; raises ``BrokenPipeError`` if its reader has closed the pipe."""
        sys.stdout.flush()

    # Everything else --------------------------------------------------------------------------------------------------

    def note(self, text: str) -> None:
        """Print a note to standard error; nothing with ``--json``."""
        if not self.as_json:
            print(text, file=sys.stderr, flush=True)

    def warning(self, message: str) -> None:
        """Print a warning, in one line, to standard error."""
        print(f"warning: {' '.join(message.split())}", file=sys.stderr, flush=True)

    def blocked(self, partitions: Iterable[BlockedPartition]) -> None:
        """Warn of records that wait behind open transactions, one line for each transaction."""
        from txnstore.read.blocked import describe
        from txnstore.runtime import wall_clock_ms

        for text in describe(partitions, wall_clock_ms(), read_only=True).values():
            self.warning(text)

    def foreign(self, store_ids: Iterable[str]) -> None:
        """Report the chains of other stores; the exit status shows them, too."""
        from txnstore.chain.keys import Keys
        from txnstore.compactor.foreign import choice_advice

        for store_id in store_ids:
            hint = "`txnstore recover --dry-run` shows what it holds"
            self.error(f"{Keys(store_id).chains} belongs to another store: {hint}. {choice_advice(store_id)}")

    def error(self, message: str, advice: str = "") -> None:
        """Print an error with advice, in one line, to standard error."""
        text = " ".join(message.split())
        if advice:
            text += ("" if text.endswith((".", "!", "?")) else ".") + " " + advice
        print(f"error: {text}", file=sys.stderr, flush=True)

    @contextmanager
    def progress(
        self,
        activity: str,
        total: float | None = None,
        detail: Callable[[], str] | None = None,
        *,
        hidden: bool = False,
    ) -> Iterator[Advance]:
        """Show a progress bar on standard error if the block takes long; only on a terminal and without ``--json``."""
        if hidden or self.as_json or not sys.stderr.isatty():
            yield lambda done, total=None: None
            return
        with progress_bar(activity, total, detail) as advance:
            yield advance


def _layout(
    rows: Sequence[Mapping[str, Any]], columns: Sequence[str], stream: TextIO, *, verbatim: bool = False
) -> list[str]:
    """Return the lines of a table as wide as the terminal; ``verbatim`` keeps names and empty columns."""
    from txnstore.cli.tables import Column, layout

    text_columns = [
        Column(
            title=column if verbatim else column.replace("_", " "),
            cells=[display(row.get(column)) for row in rows],
            number=any(_is_number(row.get(column)) for row in rows),
        )
        for column in columns
    ]
    return layout(text_columns, _width(stream), drop_empty=not verbatim)


def _width(stream: TextIO) -> int | None:
    """The width of the terminal; None if the stream is no terminal."""
    return shutil.get_terminal_size().columns if stream.isatty() else None


def display(value: Any) -> str:
    """Format a value for people: None is empty, a bool yes or no, a flat list its items separated by commas.

    Strings are unchanged, NaN and infinite floats are Python's text, and other values are JSON.
    """
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, str):
        return value
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    json_value = plain(value)
    if isinstance(json_value, list) and not any(isinstance(item, list | dict) for item in json_value):
        return ", ".join(map(display, json_value))
    return json_value if isinstance(json_value, str) else to_json(json_value)


def instant(milliseconds: int | None) -> str | None:
    """Format a time in milliseconds since the epoch as ISO 8601 in UTC."""
    if milliseconds is None:
        return None
    from txnstore.runtime import LATEST_MS

    moment = datetime.fromtimestamp(min(milliseconds, LATEST_MS) / 1000, UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
