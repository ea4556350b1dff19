"""What an erasure has looked into, found and done."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from txnstore.core.model import TopicPartition

#: What became of an object: nothing was found in it; it was deleted; the records in it were deleted, and its line stays
#: (an entry); it waits for the end of the grace period; or, in a dry run, it would be one of these.
Outcome = Literal["clean", "deleted", "emptied", "waits", "found"]

#: What an erasure does not reach.
UNREACHED = (
    "versions of objects that the bucket keeps, and backups",
    "what engines, exports and other stores have copied",
    "the memory of running processes, until they end or read on",
    "uploads that were under way: the same command an hour later finds them, and so does the next vacuum",
)


@dataclass(frozen=True, slots=True)
class ErasedPartition:
    """A partition.

    Attributes:
        tp: The partition.
        records: The records that were erased; after a dry run, that would be.
    """

    tp: TopicPartition
    records: int


@dataclass(frozen=True, slots=True)
class ErasedObject:
    """An object that was looked into.

    Attributes:
        key: Its key.
        rows: The rows that were found, erased ones of other processes included; -1: it cannot be read, and nothing
            names it.
        outcome: What became of it.
    """

    key: str
    rows: int
    outcome: Outcome


@dataclass(frozen=True, slots=True)
class Trace:
    """A place in which ``prove`` has found what was erased.

    Attributes:
        key: The object.
        where: What of it: ``rows`` that the predicate chooses, or ``bytes`` that are those of the key, maybe by chance.
    """

    key: str
    where: str


@dataclass(frozen=True, slots=True)
class EraseReport:
    """The result of an erasure; after a dry run, the expected result.

    Attributes:
        topic: The topic.
        heads: The last entry of each chain in the view that nothing was found in any more.
        partitions: The partitions with records that were erased.
        objects: The objects that were looked into.
        waiting: The number of objects that wait for the end of the grace period: erase again after it.
        tables: Whether the table of the topic was built again, so that it has no earlier snapshots.
        dry_run: Whether nothing was changed.
        traces: What ``prove`` has found in the objects of the store, but in those that wait; None: it was not asked
            for.
        unreached: What an erasure does not reach.
    """

    topic: str
    heads: tuple[int, ...]
    partitions: tuple[ErasedPartition, ...]
    objects: tuple[ErasedObject, ...] = field(repr=False)
    waiting: int = 0
    tables: bool = False
    dry_run: bool = False
    traces: tuple[Trace, ...] | None = None
    unreached: tuple[str, ...] = field(default=UNREACHED, repr=False)

    @property
    def records(self) -> int:
        """The number of records that were erased."""
        return sum(item.records for item in self.partitions)

    @property
    def found(self) -> tuple[ErasedObject, ...]:
        """The objects in which something was found."""
        return tuple(item for item in self.objects if item.rows)
