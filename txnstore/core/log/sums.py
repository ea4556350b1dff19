"""Sums of records, which a compaction conserves: read equals written plus removed."""

from __future__ import annotations

from collections.abc import Iterable

from txnstore.core.model import value_class

#: Hashes of records are added modulo this number.
MODULUS = 1 << 64


@value_class()
class Sums:
    """The sums of some records.

    Attributes:
        records: Their number.
        bytes: The size of their values in bytes, independent of the file format.
        hash: The sum of the hashes of the records modulo :data:`MODULUS`, in 16 hex digits.
    """

    records: int = 0
    bytes: int = 0
    hash: str = "0" * 16

    def __str__(self) -> str:
        return f"{self.records} records of {self.bytes} bytes ({self.hash})"

    def __add__(self, other: Sums) -> Sums:
        """Return the sums of both."""
        value = (int(self.hash, 16) + int(other.hash, 16)) % MODULUS
        return Sums(self.records + other.records, self.bytes + other.bytes, f"{value:016x}")


@value_class()
class ConservedSums:
    """The sums of a compaction.

    Attributes:
        read: Of the committed records that it read.
        removed: Of those that a clean removed; of none for a merge.
        added: Of each new batch, in order.
    """

    read: Sums
    removed: Sums
    added: tuple[Sums, ...]

    @property
    def conserved(self) -> bool:
        """Whether the records read are those written and removed."""
        return self.read == self.removed + add_up(self.added)


def add_up(sums: Iterable[Sums]) -> Sums:
    """Add up sums."""
    return sum(sums, Sums())
