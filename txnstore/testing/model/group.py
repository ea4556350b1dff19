"""The offsets of one consumer group: a log of writes and markers, as the offsets topic is one.

The offset of a partition is that of the last write in the log that took effect: a plain one at once, one of a
transaction with its commit marker. So log order decides, not the order of the commits (OFF-11).
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class Write:
    """A position, of a transaction if there is a producer id."""

    partition: str
    offset: int
    producer_id: int | None


@dataclass
class Marker:
    """How the transaction of a producer id ended."""

    producer_id: int
    outcome: str


class Group:
    """The offsets of a group. It has no members, so whoever says that he is one is unknown (OFF-08)."""

    def __init__(self) -> None:
        self.log: list[Write | Marker] = []

    def outcome(self, place: int) -> str | None:
        """What became of the write at this place of the log; None while that is not decided."""
        write = self.log[place]
        assert isinstance(write, Write)
        if write.producer_id is None:
            return "COMMIT"
        return next(
            (
                later.outcome
                for later in self.log[place:]
                if isinstance(later, Marker) and later.producer_id == write.producer_id
            ),
            None,
        )

    def committed(self, partition: str) -> int | None:
        """The committed offset."""
        for place in reversed(range(len(self.log))):
            write = self.log[place]
            if isinstance(write, Write) and write.partition == partition and self.outcome(place) == "COMMIT":
                return write.offset
        return None

    def unstable(self, partition: str) -> bool:
        """Whether an open transaction holds an offset of the partition (OFF-09)."""
        return any(
            isinstance(write, Write) and write.partition == partition and self.outcome(place) is None
            for place, write in enumerate(self.log)
        )

    def partitions(self) -> list[str]:
        """The partitions that have a committed offset or an undecided one."""
        return sorted({write.partition for write in self.log if isinstance(write, Write)})
