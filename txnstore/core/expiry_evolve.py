"""Folding the events of what was unused for too long; a part of :mod:`txnstore.core.evolve`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any, TypeVar

from txnstore.core.expiry_events import (
    FencesExpired,
    OffsetsExpired,
    ProducersExpired,
    TransactionalIdExpired,
)
from txnstore.core.model import Map, State, TopicPartition

K = TypeVar("K")
V = TypeVar("V")


def _producers_expired(state: State, event: ProducersExpired) -> State:
    tp = TopicPartition(event.topic, event.partition)
    partition = state.partitions[tp]
    partition = replace(partition, producers=_without(partition.producers, event.producer_ids))
    return replace(state, partitions=state.partitions.insert(tp, partition))


def _fences_expired(state: State, event: FencesExpired) -> State:
    return replace(state, fences=_without(state.fences, event.producer_ids))


def _transactional_id_expired(state: State, event: TransactionalIdExpired) -> State:
    return replace(
        state,
        transactions=state.transactions.remove(event.transactional_id),
        transactional_ids=_without(state.transactional_ids, event.producer_ids),
    )


def _offsets_expired(state: State, event: OffsetsExpired) -> State:
    group = state.groups[event.group]
    group = replace(group, offsets=_without(group.offsets, event.partitions))
    return replace(state, groups=state.groups.insert(event.group, group))


def _without(values: Map[K, V], gone: Iterable[K]) -> Map[K, V]:
    for key in gone:
        values = values.remove(key)
    return values


EXPIRY: dict[type, Callable[[State, Any], State]] = {
    ProducersExpired: _producers_expired,
    FencesExpired: _fences_expired,
    TransactionalIdExpired: _transactional_id_expired,
    OffsetsExpired: _offsets_expired,
}
