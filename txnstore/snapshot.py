"""A view of the whole store at one moment."""

from __future__ import annotations

from dataclasses import dataclass, field

from txnstore.core.view import View


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All topics, offsets and transactions as they were at one moment; made by :meth:`txnstore.Store.snapshot`.

    That is after one entry of the chain; in a store of several chains it is a consistent cut over all of them. Reads
    that share a snapshot agree with each other, whatever is committed in between. It costs nothing to keep, but the
    segments that it names exist only as long as ``vacuum`` keeps them (its grace period).

    Attributes:
        view: What the chains hold at that moment.
    """

    view: View = field(repr=False)

    @property
    def sequence(self) -> int:
        """The number of the last entry that it contains; with several chains, of all entries in them."""
        return self.view.sequence

    @property
    def timestamp(self) -> int:
        """When its newest entry was written, in milliseconds since the epoch."""
        return self.view.timestamp

    def __repr__(self) -> str:
        return f"Snapshot(sequence={self.sequence}, timestamp={self.timestamp})"
