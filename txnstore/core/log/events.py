"""The events of partition logs."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from txnstore.core.log.model import Batch
from txnstore.core.model import Outcome, TopicPartition, value


@value()
class BatchAppended:
    """A batch was appended to a partition; in a transaction, its records are not stable until the marker."""

    type: Literal["BatchAppended"] = field(default="BatchAppended", kw_only=True)
    topic: str
    partition: int
    batch: Batch


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerFenced:
    """The chain refuses epochs below ``epoch`` of a producer of another chain.

    ``partitions`` and ``groups``: those of its open transaction that this chain has.
    """

    type: Literal["ProducerFenced"] = "ProducerFenced"
    producer_id: int
    epoch: int
    partitions: list[TopicPartition]
    groups: list[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class LogStartMoved:
    """The records of a partition below ``offset`` were deleted; no record of an open transaction is among them."""

    type: Literal["LogStartMoved"] = "LogStartMoved"
    topic: str
    partition: int
    offset: int


@value()
class MarkerWritten:
    """The marker of a transaction took ``offset`` in a partition; ``epoch`` is the transaction's plus 1 (KIP-890)."""

    type: Literal["MarkerWritten"] = field(default="MarkerWritten", kw_only=True)
    topic: str
    partition: int
    producer_id: int
    epoch: int
    outcome: Outcome
    offset: int
