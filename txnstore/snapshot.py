"""Snapshots: pinned views of the whole store."""

from __future__ import annotations

from dataclasses import dataclass, field

from txnstore.core.blocked import BlockedPartition, blocked_partitions
from txnstore.core.view import View


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All topics, offsets and transactions at one moment; made by :meth:`txnstore.Store.snapshot`.

    It is the state after one entry of the chain, or a closed cut of several chains. Reads that share a snapshot see the
    same records, whatever is committed in between. The segments that it names exist until a vacuum deletes them, not
    before its grace period is over.

    Attributes:
        view: The states of the chains, combined.
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

    def blocked(self) -> tuple[BlockedPartition, ...]:
        """The partitions with committed records that ``read_committed`` does not show in this snapshot, by name.

        They wait for an open transaction of another producer in the same partition.
        """
        return blocked_partitions(self.view)

    def __repr__(self) -> str:
        return f"Snapshot(sequence={self.sequence}, timestamp={self.timestamp})"
