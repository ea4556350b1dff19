"""Warns of blocked reads: committed records that cannot be read yet, and what they wait for."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from typing import TYPE_CHECKING

from txnstore.core.blocked import BlockedPartition
from txnstore.runtime import instant, level_of_caller
from txnstore.validation import BlockedReadWarning

if TYPE_CHECKING:
    from txnstore.connection import Connection
    from txnstore.core.view import View

#: Why a read is blocked: (transactional id or producer id, kind of wait).
Cause = tuple[str | int, str]


def warn_blocked(connection: Connection, blocked: Iterable[BlockedPartition], snapshot: View | None = None) -> None:
    """Issue a :class:`BlockedReadWarning` for each cause that this store has not warned of.

    Args:
        snapshot: The view of the snapshot that the caller chose, whose transactions may have ended; None for a new one.
    """
    warned: set[Cause] = connection.cached("blocked reads", set)
    is_past = snapshot is not None and snapshot.sequence < connection.view(refresh=False).sequence
    for cause, text in describe(
        blocked, connection.runtime.clock(), read_only=connection.read_only, past=is_past
    ).items():
        if cause not in warned:
            warned.add(cause)
            warnings.warn(text, BlockedReadWarning, stacklevel=level_of_caller())


def describe(blocked: Iterable[BlockedPartition], now: int, *, read_only: bool, past: bool = False) -> dict[Cause, str]:
    """A text for each cause: what waits, since when, behind which transaction, and what ends it.

    Args:
        now: The time in milliseconds since the epoch.
        read_only: Whether the reader may not write.
        past: Whether the reader shows an earlier snapshot.
    """
    causes: dict[Cause, list[BlockedPartition]] = {}
    for part in blocked:
        causes.setdefault(_cause(part, "past" if past else _kind_of_wait(part, now)), []).append(part)
    return {cause: _describe_wait(cause[1], parts, read_only=read_only) for cause, parts in causes.items()}


def _cause(part: BlockedPartition, kind: str) -> Cause:
    return part.producer_id if part.transactional_id is None else part.transactional_id, kind


def _kind_of_wait(part: BlockedPartition, now: int) -> str:
    if part.transactional_id is None:
        return "unknown"
    if part.expires_at is None:
        return "prepared"
    return "expired" if part.expires_at < now else "open"


def _describe_wait(kind: str, parts: list[BlockedPartition], *, read_only: bool) -> str:
    """Describe records that cannot be read: how many, since when, behind which transaction, and what to do."""
    count = sum(part.records for part in parts)
    names = ", ".join(str(part.tp) for part in parts[:3])
    more = f" and {len(parts) - 3} more partitions" if len(parts) > 3 else ""
    first = parts[0]
    since = instant(min(part.since for part in parts))
    behind = f"the {'prepared' if first.prepared else 'open'} transaction of {first.transactional_id!r}"
    if first.transactional_id is None:
        behind = f"a transaction of producer id {first.producer_id}, which no coordinator knows"
    records = "1 committed record" if count == 1 else f"{count:,} committed records"
    when = "in this snapshot" if kind == "past" else "yet"
    return (
        f"{records} of {names}{more} cannot be read {when}: waiting since {since} behind {behind}. "
        f"{_advice(kind, first.expires_at, read_only=read_only)}"
    )


def _advice(kind: str, expires_at: int | None, *, read_only: bool) -> str:
    """Say what ends the transaction, by its kind."""
    match kind:
        case "past":
            return "A snapshot after the end of this transaction shows what waits."
        case "unknown":
            return "`txnstore txn find-hanging` shows it, and `txnstore txn abort` ends it."
        case "prepared":
            return "It has no timeout: its external coordinator decides it."
        case "expired" if read_only:
            end = "this reader is read_only and cannot abort it; `txnstore recover`, or a reader that may write, does"
        case "expired":
            end = (
                "it could not be aborted, because this reader may not write (see the log), or because this machine's "
                "clock is ahead of the storage's. `txnstore recover` tries again"
            )
        case _:
            return f"Unless it ends before, a reader that may write aborts it after {_instant_or_timeout(expires_at)}."
    return f"It is past its timeout since {_instant_or_timeout(expires_at)}: {end}."


def _instant_or_timeout(moment: int | None) -> str:
    return instant(moment) if moment is not None else "its timeout"
