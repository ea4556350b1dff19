"""The events of what was unused for too long. They are part of :data:`txnstore.core.events.Event`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from txnstore.core.model import TopicPartition


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducersExpired:
    """A partition forgets these producers: their epochs, and their last batches."""

    type: Literal["ProducersExpired"] = "ProducersExpired"
    topic: str
    partition: int
    producer_ids: list[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class FencesExpired:
    """The chain forgets these producers of other chains: the epochs below which it accepts nothing of them."""

    type: Literal["FencesExpired"] = "FencesExpired"
    producer_ids: list[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionalIdExpired:
    """A transactional id is not known any more, nor that these producer ids, its last and older ones, were its own."""

    type: Literal["TransactionalIdExpired"] = "TransactionalIdExpired"
    transactional_id: str
    producer_ids: list[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetsExpired:
    """A group has no committed offsets of these partitions any more."""

    type: Literal["OffsetsExpired"] = "OffsetsExpired"
    group: str
    partitions: list[TopicPartition]
