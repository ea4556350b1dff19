"""Points in time as arguments: milliseconds since the epoch, ISO 8601, or a ``datetime`` with a time zone.

Text without a zone is in UTC, in Python, on the command line and in Spark's options. A ``datetime`` without one is
refused: Python takes it for local time, Arrow for UTC, and nothing in it says which was meant.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from txnstore.errors import InvalidConfigError
from txnstore.validation import as_integer

#: A point in time: milliseconds since the epoch, ISO 8601 (in UTC without a zone), or a ``datetime`` with a zone.
Time = int | str | datetime

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)


def check_time(name: str, value: object, *, round_up: bool = False) -> int:
    """Return a point in time as milliseconds since the epoch.

    Args:
        name: The name of the argument, for the message.
        value: Milliseconds since the epoch, text in ISO 8601, or a ``datetime`` with a time zone.
        round_up: Whether a time between two milliseconds is the later one: the first that is not before the time.

    Raises:
        InvalidConfigError: It is none of these.
    """
    milliseconds = as_integer(value)
    if milliseconds is not None:
        return milliseconds
    if isinstance(value, str):
        moment = parse_time(value)
    else:
        moment = value if isinstance(value, datetime) else None
        if moment is not None and moment.utcoffset() is None:
            msg = f"{name} is {without_zone(moment)}"
            raise InvalidConfigError(msg)
    if moment is None:
        msg = (
            f"{name} must be an integer of milliseconds since the epoch, a time such as '2026-01-31T12:00:00Z', or a "
            f"datetime with a time zone, not {value!r}"
        )
        raise InvalidConfigError(msg)
    return first_millisecond(moment) if round_up else last_millisecond(moment)


def parse_time(text: str) -> datetime | None:
    """Parse a text in ISO 8601, as UTC if it names no zone; None for other text."""
    try:
        moment = datetime.fromisoformat(text.strip())
    except ValueError:
        return None
    return moment if moment.utcoffset() is not None else moment.replace(tzinfo=UTC)


def without_zone(moment: datetime) -> str:
    """Return the end of a sentence that refuses a time without a zone, and says what to write."""
    plain = datetime(*moment.timetuple()[:6], moment.microsecond, fold=moment.fold)  # noqa: DTZ001 - as it was given
    shown = repr(plain).removeprefix("datetime.")
    return (
        f"{shown}, which has no time zone: write {shown[:-1]}, tzinfo=UTC) for a time in UTC, or {shown}.astimezone() "
        "for the time zone of this machine"
    )


def first_millisecond(moment: datetime) -> int:
    """Return the first millisecond since the epoch that is not before a time with a zone."""
    return -((_EPOCH - moment) // _MILLISECOND)


def last_millisecond(moment: datetime) -> int:
    """Return the last millisecond since the epoch that is not after a time with a zone."""
    return (moment - _EPOCH) // _MILLISECOND
