"""The events of partition logs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from txnstore.core.log.model import Batch
from txnstore.core.model import Outcome, TopicPartition


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchAppended:
    """Records got their offsets in a partition; those of an open transaction are not stable yet."""

    type: Literal["BatchAppended"] = "BatchAppended"
    topic: str
    partition: int
    batch: Batch


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerFenced:
    """This chain accepts nothing of an epoch below ``epoch`` from a producer of another chain.

    ``partitions`` and ``groups``: those of its open transaction that are known here.
    """

    type: Literal["ProducerFenced"] = "ProducerFenced"
    producer_id: int
    epoch: int
    partitions: list[TopicPartition]
    groups: list[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class MarkerWritten:
    """The control marker of a transaction took ``offset`` in a partition; ``epoch`` is already the bumped one."""

    type: Literal["MarkerWritten"] = "MarkerWritten"
    topic: str
    partition: int
    producer_id: int
    epoch: int
    outcome: Outcome
    offset: int
