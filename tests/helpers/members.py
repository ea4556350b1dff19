"""Consumers that are members of group g, and what they read."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tests.helpers.connections import connection_of
from tests.helpers.reading import append
from txnstore.consumer import Consumer
from txnstore.core.groups.model import Group
from txnstore.core.model import TopicPartition
from txnstore.store import Store

PARTS = [TopicPartition("t", number) for number in range(4)]
SESSION = 45_000


def _fill(store: Store, *values: str, parts: Iterable[TopicPartition] = PARTS) -> None:
    for tp in parts:
        append(store, *(f"{tp.partition}.{value}" for value in values), tp=tp)


def _member(store: Store, **options: Any) -> Consumer:
    return store.consumer(["t"], group="g", **options)


def _numbers(consumer: Consumer) -> list[int]:
    return [tp.partition for tp in consumer.assignment()]


def _group(store: Store) -> Group:
    return connection_of(store).view().groups["g"]


def _settle(*consumers: Consumer) -> list[list[int]]:
    """Idle polls until each has given back what it must, and knows what it has got."""
    for _ in range(3):
        for consumer in consumers:
            consumer.poll()
    return [_numbers(consumer) for consumer in consumers]
