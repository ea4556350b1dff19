"""Shows the progress of a command that takes longer than a second on a terminal.

A faster command prints and imports nothing for it: a thread waits, and draws if the command still runs.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol

#: Seconds before anything is shown, and between two drawings.
DELAY, _REDRAW = 1.0, 0.2
#: The name of the thread that draws.
THREAD = "txnstore-progress"


class Advance(Protocol):
    """Updates a progress bar."""

    def __call__(self, done: float, total: float | None = None) -> None: ...


@contextmanager
def progress_bar(
    activity: str, total: float | None = None, detail: Callable[[], str] | None = None, *, delay: float = DELAY
) -> Iterator[Advance]:
    """Show a bar on standard error while the block runs, once it has run for ``delay`` seconds.

    Args:
        activity: The activity of the command.
        total: The amount of work; None if unknown: then the bar only moves.
        detail: Text after the bar, computed at each drawing in another thread.
        delay: Seconds before the bar is drawn.
    """
    amounts = [0.0, total]
    # A lock and not an event: releasing it is one step, so an interrupt cannot leave the thread waiting forever.
    running = threading.Lock()
    running.acquire()
    thread = threading.Thread(target=_draw, args=(activity, amounts, detail, running, delay), name=THREAD, daemon=True)
    thread.start()

    def advance(done: float, total: float | None = None) -> None:
        amounts[0] = done
        amounts[1] = total if total is not None else amounts[1]

    try:
        yield advance
    finally:
        running.release()
        thread.join()


def _draw(
    activity: str, amounts: list[float | None], detail: Callable[[], str] | None, running: threading.Lock, delay: float
) -> None:
    """Draw a progress bar until ``running`` is released, unless that happens within ``delay`` seconds."""
    if running.acquire(timeout=delay):
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = [SpinnerColumn(), TextColumn("{task.description}", markup=False), BarColumn(bar_width=20)]
    with Progress(
        *columns,
        TextColumn("{task.fields[detail]}", markup=False),
        TimeElapsedColumn(),
        console=Console(stderr=True),
        transient=True,
        auto_refresh=False,
        redirect_stdout=False,  # Data goes to standard output as bytes.
        redirect_stderr=False,
    ) as bar:
        task = bar.add_task(activity, total=amounts[1], detail="")
        while True:
            text = detail() if detail is not None else _percentage(amounts)
            bar.update(task, completed=amounts[0], total=amounts[1], detail=text, refresh=True)
            if running.acquire(timeout=_REDRAW):
                return


def _percentage(amounts: list[float | None]) -> str:
    done, total = amounts
    return f"{100 * done / total:.0f} %" if done is not None and total else ""
