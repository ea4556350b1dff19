"""Log lines that clients can cause, at a bounded rate: bad requests do not fill a disk."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from typing import Any

#: The lines of one place in the code that are written at once, and the seconds after which one more is.
_BURST, _SECONDS = 10, 6.0


@dataclass(slots=True)
class _Place:
    """A place in the code that writes lines.

    Attributes:
        left: The lines that it may write at once.
        at: The time of the last look.
        omitted: The lines left out since the last one that was written.
        last: The last of them.
    """

    left: float
    at: float
    omitted: int = 0
    last: logging.LogRecord | None = None

    def may_write(self, now: float) -> bool:
        self.left = min(self.left + max(now - self.at, 0.0) / _SECONDS, _BURST)
        self.at = now
        return self.left + 1e-9 >= 1


class RateLimit(logging.Filter):
    """Leaves lines out where one place in the code writes too many; the next line that is written says how many.

    The lines of a place, which is a file and a line, are limited together, whatever they say. Debug lines are not.
    Where no further line comes, :meth:`late` has the last one that was left out.
    """

    def __init__(self) -> None:
        super().__init__()
        self._places: dict[tuple[str, int], _Place] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether a line is written."""
        if record.levelno <= logging.DEBUG:
            return True
        place = self._places.setdefault((record.pathname, record.lineno), _Place(_BURST, record.created))
        if not place.may_write(record.created):
            place.omitted, place.last = place.omitted + 1, record
            return False
        if place.omitted:
            record.msg, record.args = f"{record.getMessage()} ({place.omitted} more like it were left out)", ()
        place.left, place.omitted, place.last = place.left - 1, 0, None
        return True

    def late(self, now: float, *, ends: bool = False) -> list[logging.LogRecord]:
        """The last line left out of each place that may write one again; to be logged now.

        Args:
            now: The time, which the lines get.
            ends: No further lines will come, so all are due.
        """
        lines = []
        for place in list(self._places.values()):
            if place.last is not None and (place.may_write(now) or ends):
                place.left = max(place.left, 1.0)
                place.last.created = now
                lines.append(place.last)
                place.omitted, place.last = place.omitted - 1, None
        return lines


#: The loggers that are limited.
_LIMITED: list[tuple[logging.Logger, RateLimit]] = []


def limited_logger(name: str) -> logging.Logger:
    """The logger of a module whose lines clients can cause."""
    logger = logging.getLogger(name)
    if not any(isinstance(each, RateLimit) for each in logger.filters):
        limit = RateLimit()
        logger.addFilter(limit)
        _LIMITED.append((logger, limit))
    return logger


def log_omitted(*, ends: bool = False) -> None:
    """Say what the limited loggers have left out, where no later line has said it; ``ends``: all of it."""
    now = logging.makeLogRecord({}).created
    for logger, limit in _LIMITED:
        for record in limit.late(now, ends=ends):
            logger.handle(record)


async def log_omitted_often() -> None:
    """Say it as often as lines may be written."""
    while True:
        await asyncio.sleep(_SECONDS)
        log_omitted()


def report_failure(task: asyncio.Task[Any]) -> None:
    """Report the error of a task in the background; a callback of it."""
    if not task.cancelled() and (error := task.exception()) is not None:
        message = f"the task {task.get_name()} has failed"
        task.get_loop().call_exception_handler({"message": message, "exception": error, "task": task})
