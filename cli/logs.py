"""Log records on standard error, with their fields: what --debug shows."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager

#: The attributes of every record; all others are fields.
_STANDARD = frozenset(logging.makeLogRecord({}).__dict__) | {"message", "asctime", "taskName"}


class FieldFormatter(logging.Formatter):
    """Level, logger and message of a record, then its fields: ``INFO txnstore.connection: store opened ms=12``."""

    def __init__(self) -> None:
        super().__init__("%(levelname)s %(name)s: %(message)s")

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - The name of the base class.
        fields = ((name, value) for name, value in record.__dict__.items() if name not in _STANDARD)
        return " ".join([super().formatMessage(record), *(f"{name}={value}" for name, value in fields)])


@contextmanager
def printed_logs(level: int = logging.DEBUG) -> Iterator[None]:
    """Show the records of txnstore from a level on, on standard error, while the block runs."""
    logger, handler = logging.getLogger("txnstore"), logging.StreamHandler(sys.stderr)
    handler.setFormatter(FieldFormatter())
    before, propagated = logger.level, logger.propagate
    logger.setLevel(level)
    logger.addHandler(handler)
    logger.propagate = False
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(before)
        logger.propagate = propagated
