"""Log lines that clients can cause, at a bounded rate: bad requests do not fill a disk."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from typing import Any

#: The lines that one place in the code may write at once, and the seconds after which it may write one more.
_BURST, _REFILL_SECONDS = 10, 6.0
#: The rounding error of a sum of refills that must not delay a line.
_EPSILON = 1e-9


@dataclass(slots=True)
class _CallSite:
    """A place in the code that writes lines.

    Attributes:
        tokens: The lines that it may write at once, refilled with time.
        refilled_at: The time of the last refill.
        omitted_count: The lines left out since the last one that was written.
        last_omitted: The last line that was left out.
    """

    tokens: float
    refilled_at: float
    omitted_count: int = 0
    last_omitted: logging.LogRecord | None = None

    def may_write(self, now: float) -> bool:
        self.tokens = min(self.tokens + max(now - self.refilled_at, 0.0) / _REFILL_SECONDS, _BURST)
        self.refilled_at = now
        return self.tokens + _EPSILON >= 1


class RateLimit(logging.Filter):
    """Leaves lines out where one place in the code writes too many; the next line that is written says how many.

    The lines of a place, which is a file and a line, are limited together, whatever they say. Debug lines are not.
    Where no line follows, :meth:`take_omitted` returns the last one that was left out.
    """

    def __init__(self) -> None:
        super().__init__()
        self._call_sites: dict[tuple[str, int], _CallSite] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether to write a line."""
        if record.levelno <= logging.DEBUG:
            return True
        call_site = self._call_sites.setdefault((record.pathname, record.lineno), _CallSite(_BURST, record.created))
        if not call_site.may_write(record.created):
            call_site.omitted_count, call_site.last_omitted = call_site.omitted_count + 1, record
            return False
        if call_site.omitted_count:
            record.msg, record.args = (
                f"{record.getMessage()} ({call_site.omitted_count} more like it were left out)",
                (),
            )
        call_site.tokens, call_site.omitted_count, call_site.last_omitted = call_site.tokens - 1, 0, None
        return True

    def take_omitted(self, now: float, *, take_all: bool = False) -> list[logging.LogRecord]:
        """Return the last omitted line of each place that may write again, to be logged now.

        Args:
            now: The time, which the lines get.
            take_all: Return those of all places, because no further lines will follow.
        """
        lines = []
        for call_site in list(self._call_sites.values()):
            if call_site.last_omitted is not None and (call_site.may_write(now) or take_all):
                call_site.tokens = max(call_site.tokens, 1.0)
                call_site.last_omitted.created = now
                lines.append(call_site.last_omitted)
                call_site.omitted_count, call_site.last_omitted = call_site.omitted_count - 1, None
        return lines


#: The loggers that are limited.
_LIMITED: list[tuple[logging.Logger, RateLimit]] = []


def limited_logger(name: str) -> logging.Logger:
    """The logger of a module whose lines clients can cause."""
    logger = logging.getLogger(name)
    if not any(isinstance(log_filter, RateLimit) for log_filter in logger.filters):
        limit = RateLimit()
        logger.addFilter(limit)
        _LIMITED.append((logger, limit))
    return logger


def log_omitted(*, take_all: bool = False) -> None:
    """Log the omitted lines of the limited loggers that are due; with ``take_all``, all of them."""
    now = logging.makeLogRecord({}).created
    for logger, limit in _LIMITED:
        for record in limit.take_omitted(now, take_all=take_all):
            logger.handle(record)


async def log_omitted_periodically() -> None:
    """Log omitted lines as often as a place may write one."""
    while True:
        await asyncio.sleep(_REFILL_SECONDS)
        log_omitted()


def report_failure(task: asyncio.Task[Any]) -> None:
    """Report the error of a background task to the loop's exception handler; a done callback."""
    if not task.cancelled() and (error := task.exception()) is not None:
        message = f"the task {task.get_name()} has failed"
        task.get_loop().call_exception_handler({"message": message, "exception": error, "task": task})
