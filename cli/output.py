"""All that commands print: tables and progress for people, JSON lines for programs, errors in one line.

Data goes to standard output, everything else to standard error. With ``--json`` each row or result is one JSON object
a line; its members are a contract. Instants are ISO 8601 in UTC, bytes are text if they are UTF-8, else
``{"base64": "…"}``.
"""

from __future__ import annotations

import base64
import json
import math
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, date, datetime, time, timedelta
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress


class Advance(Protocol):
    """Tells a progress bar how far the work is."""

    def __call__(self, done: float, total: float | None = None) -> None: ...


class Output:
    """Where the results of one run go."""

    def __init__(self, *, as_json: bool = False) -> None:
        self.as_json = as_json
        self._bar: Progress | None = None

    # Data -------------------------------------------------------------------------------------------------------------

    def rows(
        self,
        rows: Iterable[Mapping[str, Any]],
        columns: Sequence[str],
        *,
        empty: str = "",
        verbatim: bool = False,
    ) -> None:
        """A table of these columns, or one JSON object a row with all of its members.

        ``empty``: what people are told instead of a table without rows. ``verbatim``: the columns have the user's
        names.
        """
        if self.as_json:
            for row in rows:
                self.line(to_json(row))
            return
        from rich import box
        from rich.table import Table
        from rich.text import Text

        found = list(rows)
        if not found:
            if empty:
                self.note(empty)
            return
        table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
        for column in columns:
            number = any(_is_number(row.get(column)) for row in found)
            title = Text(column if verbatim else column.replace("_", " "))
            table.add_column(title, justify="right" if number else "left", overflow="fold")
        for row in found:
            table.add_row(*(Text(display(row.get(column))) for column in columns))
        self._stdout().print(table)

    def record(self, values: Mapping[str, Any]) -> None:
        """One result: a name and a value a line, or one JSON object."""
        if self.as_json:
            self.line(to_json(values))
            return
        width = max(map(len, values), default=0)
        for name, value in values.items():
            self.line(f"{name.replace('_', ' '):<{width}}  {display(value)}".rstrip())

    def result(self, text: str, **values: Any) -> None:
        """What a command did: a sentence for people, the values for programs."""
        self.line(to_json(values) if self.as_json else text)

    def line(self, text: str) -> None:
        """One line on standard output, whatever its encoding can show."""
        self.write(text.encode("utf-8", "backslashreplace") + b"\n")

    def write(self, data: bytes) -> None:
        """Bytes on standard output as they are."""
        if self._bar is not None and sys.stdout.isatty():
            # The line goes above the bar, which is on the same terminal.
            self._bar.console.print(data.decode("utf-8", "backslashreplace"), end="", markup=False, soft_wrap=True)
            return
        sys.stdout.flush()
        sys.stdout.buffer.write(data)

    def flush(self) -> None:
        """Hand over what is buffered. A reader that has gone away shows here."""
        sys.stdout.flush()

    # Everything else --------------------------------------------------------------------------------------------------

    def note(self, text: str) -> None:
        """A remark for people, on standard error; nothing with ``--json``."""
        if not self.as_json:
            print(text, file=sys.stderr, flush=True)

    def error(self, message: str, advice: str = "") -> None:
        """An error in one line on standard error, with what to do next."""
        text = " ".join(message.split())
        if advice:
            text += ("" if text.endswith((".", "!", "?")) else ".") + " " + advice
        print(f"error: {text}", file=sys.stderr, flush=True)

    @contextmanager
    def progress(self, what: str, total: float | None = None) -> Iterator[Advance]:
        """A progress bar on standard error while the block runs; nothing where that is no terminal."""
        if not sys.stderr.isatty():
            yield lambda done, total=None: None
            return
        from rich.console import Console
        from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

        shown = [
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.percentage:>3.0f} %"),
        ]
        bar = Progress(*shown, TimeElapsedColumn(), console=Console(stderr=True), transient=True)
        with bar:
            task = bar.add_task(what, total=total)

            def advance(done: float, total: float | None = None) -> None:
                bar.update(task, completed=done, total=total)  # None leaves the total as it is

            try:
                yield advance
            finally:
                self._bar = None

    def _stdout(self) -> Console:
        """A console as wide as the terminal; as wide as the table where there is none."""
        from rich.console import Console

        on_terminal = sys.stdout.isatty()
        return Console(highlight=False, soft_wrap=not on_terminal, width=None if on_terminal else 10_000)


def to_json(value: Any) -> str:
    """A value as one line of JSON."""
    return json.dumps(_plain(value), ensure_ascii=False, separators=(",", ":"), allow_nan=False)


def _plain(value: Any) -> Any:
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if value - value == 0 else None  # JSON has no NaN and no infinity.
    if isinstance(value, bytes | bytearray | memoryview):
        data = bytes(value)
        try:
            return data.decode()
        except UnicodeDecodeError:
            return {"base64": base64.b64encode(data).decode()}
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat().replace("+00:00", "Z") if value.tzinfo else value.isoformat()
    if isinstance(value, date | time):
        return value.isoformat()
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, Iterable):
        return [_plain(item) for item in value]
    return str(value)


def display(value: Any) -> str:
    """A value for people: nothing for None, texts as they are, the rest as in JSON."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, str):
        return value
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    plain = _plain(value)
    if isinstance(plain, list) and not any(isinstance(item, list | dict) for item in plain):
        return ", ".join(map(display, plain))
    return plain if isinstance(plain, str) else to_json(plain)


def instant(milliseconds: int | None) -> str | None:
    """A time of the library (milliseconds since the epoch) as ISO 8601 in UTC."""
    if milliseconds is None:
        return None
    moment = datetime.fromtimestamp(milliseconds / 1000, UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def counted(count: int, what: str) -> str:
    """A number of things: ``1 record``, ``1,000 records``."""
    return f"{count:,} {what}" if count == 1 else f"{count:,} {what}s"


def size(count: int) -> str:
    """A number of bytes for people."""
    amount = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if amount < 1024:
            return f"{amount:,.0f} {unit}" if unit == "B" else f"{amount:,.1f} {unit}"
        amount /= 1024
    return f"{amount:,.1f} TiB"


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
