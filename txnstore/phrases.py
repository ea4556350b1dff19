"""Numbers, sizes, durations, addresses and lists in messages."""

from __future__ import annotations

from collections.abc import Iterable


def counted(count: int, noun: str, plural: str = "") -> str:
    """Return a number with its noun: ``1 segment``, ``1,000 segments``; ``plural``: one not formed by an s."""
    return f"{count:,} {noun if count == 1 else plural or f'{noun}s'}"


def size(count: int) -> str:
    """Return a number of bytes with a binary unit: ``1.5 MiB``."""
    amount = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if amount < 1024:
            return f"{amount:,.0f} {unit}" if unit == "B" else f"{amount:,.1f} {unit}"
        amount /= 1024
    return f"{amount:,.1f} TiB"


def duration(milliseconds: int) -> str:
    """Return a duration in the largest unit of which it has two: ``90 s``, ``2 min``, ``3 h``, ``9 d``."""
    seconds = max(0, milliseconds) // 1000
    for unit, length in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds // length:,} {unit}"
    return f"{seconds} s"


def address_text(host: str, port: int) -> str:
    """Return ``HOST:PORT``, with an IPv6 address in brackets, as in URLs and options."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def some(names: Iterable[str], limit: int = 5) -> str:
    """Return the first names of a list, and how many more there are."""
    listed = list(names)
    more = f" and {len(listed) - limit:,} more" if len(listed) > limit else ""
    return ", ".join(listed[:limit]) + more
