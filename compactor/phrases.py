"""Numbers, durations and lists as the messages of the maintenance write them."""

from __future__ import annotations

from collections.abc import Iterable


def counted(count: int, what: str, many: str = "") -> str:
    """A number with its noun: ``1 segment``, ``1,000 segments``; ``many``: a plural that is not formed by an s."""
    return f"{count:,} {what if count == 1 else many or f'{what}s'}"


def lasting(milliseconds: int) -> str:
    """A duration in the largest unit of which it has two: ``90 s``, ``2 min``, ``3 h``, ``9 d``."""
    seconds = max(0, milliseconds) // 1000
    for unit, length in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds // length:,} {unit}"
    return f"{seconds} s"


def some(names: Iterable[str], most: int = 5) -> str:
    """The first names of a list, and how many more there are."""
    found = list(names)
    more = f" and {len(found) - most:,} more" if len(found) > most else ""
    return ", ".join(found[:most]) + more
