"""Log records on standard error, with their fields, for --debug."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime

#: The attributes of every record; all others are fields.
_STANDARD_ATTRIBUTES = frozenset(logging.makeLogRecord({}).__dict__) | {"message", "asctime", "taskName"}


class FieldFormatter(logging.Formatter):
    """Level, logger and message of a record, then its fields: ``INFO txnstore.connection: store opened ms=12``.

    An ``error`` that the message contains is no field. Unprintable text, such as a line end, is quoted.

    Args:
        times: Whether a line begins with its time, in UTC, in ISO 8601.
    """

    def __init__(self, *, times: bool = False) -> None:
        super().__init__("%(levelname)s %(name)s: %(message)s")
        self._times = times

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - The name of the base class.
        parts = [super().formatMessage(record)]
        if self._times:
            parts.insert(0, datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"))
        for name, value in record.__dict__.items():
            if name not in _STANDARD_ATTRIBUTES and not (name == "error" and str(value) in record.message):
                parts.append(f"{name}={value if str(value).isprintable() else repr(value)}")
        return " ".join(parts)


@contextmanager
def printed_logs(level: int = logging.DEBUG, name: str = "txnstore", *, times: bool = False) -> Iterator[None]:
    """Show the records of a logger from a level on, on standard error, while the block runs.

    Args:
        name: The name of the logger.
        times: Whether each line begins with its time.
    """
    logger = logging.getLogger(name)
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(FieldFormatter(times=times))
    old_level, old_handlers, old_propagate = logger.level, logger.handlers, logger.propagate
    logger.setLevel(level)
    logger.handlers = [handler]  # In place of the handlers of an outer block.
    logger.propagate = False
    try:
        yield
    finally:
        logger.handlers = old_handlers
        logger.setLevel(old_level)
        logger.propagate = old_propagate
