"""A view of the whole store at one moment."""

from __future__ import annotations

from dataclasses import dataclass, field

from txnstore.core.model import State


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All topics, offsets and transactions as they were after one entry of the chain.

    Reads that share a snapshot agree with each other, whatever is committed in between. It costs nothing to keep,
    but what it names is there only as long as ``vacuum`` is told to keep it (its grace period).
    """

    state: State = field(repr=False)

    @property
    def sequence(self) -> int:
        """The number of the last entry that it contains."""
        return self.state.sequence

    @property
    def timestamp(self) -> int:
        """When that entry was written, in milliseconds since the epoch."""
        return self.state.timestamp

    def __repr__(self) -> str:
        return f"Snapshot(sequence={self.sequence}, timestamp={self.timestamp})"
