"""Log lines that clients can cause, at a bounded rate: nobody fills a disk by bad requests."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

#: The lines of one place in the code that are written at once, and the seconds after which one more is.
_BURST, _SECONDS = 10, 6.0


class RateLimit(logging.Filter):
    """Leaves lines out where one place in the code writes too many; the next line that is written says how many.

    The lines of a place, which is a file and a line, are limited together, whatever they say. Debug lines are not.
    """

    def __init__(self) -> None:
        super().__init__()
        #: For each place: the lines that it may write at once, the time of the last look, the lines left out.
        self._places: dict[tuple[str, int], tuple[float, float, int]] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether a line is written."""
        if record.levelno <= logging.DEBUG:
            return True
        place = record.pathname, record.lineno
        left, at, omitted = self._places.get(place, (float(_BURST), record.created, 0))
        left = min(left + max(record.created - at, 0.0) / _SECONDS, _BURST)
        if left + 1e-9 < 1:
            self._places[place] = left, record.created, omitted + 1
            return False
        self._places[place] = left - 1, record.created, 0
        if omitted:
            record.msg, record.args = f"{record.getMessage()} ({omitted} more like it were left out)", ()
        return True


def limited_logger(name: str) -> logging.Logger:
    """The logger of a module whose lines clients can cause."""
    logger = logging.getLogger(name)
    if not any(isinstance(each, RateLimit) for each in logger.filters):
        logger.addFilter(RateLimit())
    return logger


def report_failure(task: asyncio.Task[Any]) -> None:
    """Report the error of a task that nobody waits for; a callback of it."""
    if not task.cancelled() and (error := task.exception()) is not None:
        message = f"the task {task.get_name()} has failed"
        task.get_loop().call_exception_handler({"message": message, "exception": error, "task": task})
