"""Anomalies of order: a process reads and writes in increasing order without a gap. JEP-06 to JEP-10.

Distances are counted in the version order, not in offsets, because markers and aborted records leave gaps.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from tests.harness.history.format import Assign, Operation, Poll, Records, Type, Value
from tests.harness.history.index import Anomaly, Index, KeyOrder, anomaly

_EMPTY = KeyOrder()


@dataclass
class _Reader:
    """The position of a process: for each key the last record of an ``ok`` operation, and that operation."""

    last: dict[str, tuple[int, Value, Operation]] = field(default_factory=dict)
    subscribed: bool = False


def polls(index: Index) -> Iterator[Anomaly]:
    """JEP-06, JEP-07: between the polls of a process. JEP-08: inside one operation.

    Only ``ok`` operations move the position; ``assign`` and ``subscribe`` keep it for the keys that stay.
    """
    readers: dict[str, _Reader] = {}
    for op in index.operations:
        yield from _inside(index, op)
        reader = readers.setdefault(op.process, _Reader())
        if op.type is not Type.OK:
            continue
        for item in op.value:
            if isinstance(item, Assign):
                reader.subscribed = op.f == "subscribe"
                staying = set(item.keys) - set(item.moved)
                reader.last = {key: last for key, last in reader.last.items() if key in staying}
        yield from _between(index, op, reader)


def _between(index: Index, op: Operation, reader: _Reader) -> Iterator[Anomaly]:
    for key, records in polled(op).items():
        before = reader.last.get(key)
        if before is not None and key not in op.rebalanced:
            kind = _step(index, key, before[:2], records[0])
            if kind is not None:
                detail = f"{before[1]!r} at {before[0]}, then {records[0][1]!r} at {records[0][0]}"
                yield anomaly(kind, detail, before[2], op, key=key, subscribed=reader.subscribed)
        reader.last[key] = (*records[-1], op)


def _inside(index: Index, op: Operation) -> Iterator[Anomaly]:
    groups: list[Mapping[str, Records]] = [polled(op), *(snapshot.records for snapshot in op.snapshots)]
    for group in groups:
        for key, records in group.items():
            if key in op.rebalanced:
                continue
            for before, after in itertools.pairwise(records):
                kind = _step(index, key, before, after)
                if kind is not None:
                    detail = f"{before[1]!r} at {before[0]}, then {after[1]!r} at {after[0]} in one operation"
                    yield anomaly(f"int-{kind}", detail, op, key=key)


def _step(index: Index, key: str, before: tuple[int, Value], after: tuple[int, Value]) -> str | None:
    """The anomaly of reading these two records in this order; None if there is none.

    Values that are not in the version order (uncommitted ones) are compared by their offsets alone.
    """
    order = index.orders.get(key, _EMPTY)
    one, two = order.first.get(before[1]), order.first.get(after[1])
    if one is None or two is None:
        return "nonmonotonic-poll" if after[0] <= before[0] else None
    if two <= one:
        return "nonmonotonic-poll"
    # Offsets ascend, so if the last record between the two may be deleted, all of them may.
    if two == one + 1 or index.may_be_deleted(key, order.offsets[two - 1]):
        return None
    return "poll-skip"


def polled(op: Operation) -> dict[str, Records]:
    """All records of an operation's polls by key, in order; keys without a record are not in it."""
    by_key: dict[str, list[tuple[int, Value]]] = {}
    for item in op.value:
        if isinstance(item, Poll):
            for key, records in item.records.items():
                if records:
                    by_key.setdefault(key, []).extend(records)
    return {key: tuple(records) for key, records in by_key.items()}


def sends(index: Index) -> Iterator[Anomaly]:
    """JEP-09: inside one operation. JEP-10: between the operations of a process, ``ok`` and ``info``."""
    last: dict[tuple[str, str], tuple[int, Operation]] = {}
    for op in index.operations:
        if op.type is Type.FAIL:
            continue
        for key, numbers in _sent(index, op):
            for one, two in itertools.pairwise(numbers):
                if two != one + 1:
                    kind = "int-nonmonotonic-send" if two <= one else "int-send-skip"
                    yield anomaly(kind, f"sent one after the other, written at {one} and {two} in order", op, key=key)
            before = last.get((op.process, key))
            if before is not None and numbers[0] <= before[0]:
                detail = f"sent later, but written at {numbers[0]} in order, before {before[0]}"
                yield anomaly("nonmonotonic-send", detail, before[1], op, key=key)
            last[op.process, key] = (numbers[-1], op)


def _sent(index: Index, op: Operation) -> Iterable[tuple[str, list[int]]]:
    """The places in the version order of an operation's sends by key, where they are known."""
    places: dict[str, list[int]] = {}
    for send in op.sends:
        number = index.orders.get(send.key, _EMPTY).first.get(send.value)
        if number is not None:
            places.setdefault(send.key, []).append(number)
    return places.items()
