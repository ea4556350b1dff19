"""Values that the subjects of the core share: partitions, isolation levels, outcomes, producers, fences."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from rpds import HashTrieMap

#: A persistent map: changing it gives a new one that shares what did not change.
Map = HashTrieMap

#: The epoch and producer id of records that no idempotent producer wrote.
NO_PRODUCER = -1


class TopicPartition(NamedTuple):
    """A partition of a topic."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


class Isolation(StrEnum):
    """What a reader sees: committed records below the LSO, or everything below the high watermark."""

    READ_COMMITTED = "read_committed"
    READ_UNCOMMITTED = "read_uncommitted"


class Outcome(StrEnum):
    """How a transaction ends."""

    COMMIT = "COMMIT"
    ABORT = "ABORT"


class Fence(NamedTuple):
    """What a chain accepts of a producer of another chain: nothing below ``epoch``.

    ``at``: when the chain last heard of the producer, in ms. ``held``: its transaction of this epoch is prepared for an
    outside coordinator (KIP-939), so nothing of this epoch is accepted either, until its marker.
    """

    epoch: int
    at: int
    held: bool = False


@dataclass(frozen=True, slots=True)
class ProducerIdentity:
    """Who appends: producer id and epoch, and the transactional id if there is one."""

    producer_id: int = NO_PRODUCER
    epoch: int = NO_PRODUCER
    transactional_id: str | None = None

    def __str__(self) -> str:
        name = f"{self.transactional_id!r}, " if self.transactional_id is not None else ""
        return f"producer {name}id {self.producer_id}, epoch {self.epoch}"
