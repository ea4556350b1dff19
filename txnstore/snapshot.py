"""Snapshots: pinned views of the whole store, now or at an earlier entry."""

from __future__ import annotations

from dataclasses import dataclass, field

from txnstore.core.blocked import BlockedPartition, blocked_partitions
from txnstore.core.view import View
from txnstore.errors import InvalidConfigError
from txnstore.runtime import instant
from txnstore.times import last_millisecond, parse_time


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All topics, offsets and transactions at one moment; made by :meth:`txnstore.Store.snapshot`.

    It is the state after one entry of the chain, or a closed cut of several chains. Reads that share a snapshot see the
    same records, whatever is committed in between. The segments that it names exist until a vacuum deletes them, not
    before its grace period has passed.

    Attributes:
        view: The states of the chains, combined.
        store_id: The id of the store.
    """

    view: View = field(repr=False)
    store_id: str = field(default="", repr=False)

    @property
    def sequence(self) -> int:
        """The number of entries in the snapshot; of one chain the number of the last one, :attr:`entry`."""
        return self.view.sequence

    @property
    def entry(self) -> int | tuple[int, ...]:
        """The number of its last entry, of several chains that of each; ``store.snapshot(entry=…)`` returns to it."""
        return self.heads if len(self.heads) > 1 else self.heads[0]

    @property
    def heads(self) -> tuple[int, ...]:
        """The number of the last entry of each chain."""
        return tuple(state.sequence for state in self.view.states)

    @property
    def timestamp(self) -> int:
        """When its newest entry was written, in milliseconds since the epoch."""
        return self.view.timestamp

    def blocked(self) -> tuple[BlockedPartition, ...]:
        """The partitions with committed records that ``read_committed`` does not show in this snapshot, by name.

        They wait for an open transaction of another producer in the same partition.
        """
        return blocked_partitions(self.view)

    def __repr__(self) -> str:
        return f"Snapshot(entry={self.entry}, timestamp={instant(self.timestamp)!r})"


def check_snapshot(snapshot: object, store_id: str) -> Snapshot:
    """Check that a snapshot is of this store, and return it.

    Raises:
        InvalidConfigError: It is none, or one of another store than ``store_id``.
    """
    if not isinstance(snapshot, Snapshot):
        msg = f"snapshot must come from store.snapshot(), not {snapshot!r}"
        raise InvalidConfigError(msg)
    if snapshot.store_id not in {"", store_id}:
        msg = f"the snapshot is one of the store with the id {snapshot.store_id}; this store has the id {store_id}"
        raise InvalidConfigError(msg)
    return snapshot


@dataclass(frozen=True, slots=True)
class Moment:
    """The arguments of :meth:`txnstore.Store.snapshot`, where text names a snapshot.

    Attributes:
        entry: The last entry of each chain; None if ``timestamp`` is given.
        timestamp: In milliseconds since the epoch; None if ``entry`` is given.
    """

    entry: tuple[int, ...] | None = None
    timestamp: int | None = None


def parse_moment(name: str, text: str) -> Moment:
    """Parse the number of an entry, those of each chain (``21,40,21``), or a time in ISO 8601 (UTC without a zone).

    Args:
        name: The option, for the message.

    Raises:
        InvalidConfigError: It is none of them.
    """
    numbers = [part.strip() for part in text.split(",")]
    if all(part.isascii() and part.isdecimal() and len(part) < 19 for part in numbers):
        return Moment(entry=tuple(map(int, numbers)))
    moment = parse_time(text)
    if moment is None:
        msg = (
            f"{name} must be an entry such as 42 (of several chains one each: 21,40,21), or a time such as "
            f"2026-01-31T12:00:00Z, not {text!r}"
        )
        raise InvalidConfigError(msg)
    return Moment(timestamp=last_millisecond(moment))
