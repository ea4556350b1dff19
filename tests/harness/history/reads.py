"""Anomalies of reads: JEP-01 to JEP-05 and JEP-11."""

from __future__ import annotations

from collections.abc import Iterator

from tests.harness.history.format import Operation, Poll, Send, Type, Value
from tests.harness.history.index import Anomaly, Index, anomaly, atomic, observed


def inconsistent_offsets(index: Index) -> Iterator[Anomaly]:
    """JEP-01: two values at one offset of a key."""
    for key, by_offset in index.observed_values.items():
        for offset, values in by_offset.items():
            if len(values) > 1:
                yield anomaly("inconsistent-offsets", f"offset {offset} has {list(values)}", key=key)


def duplicates(index: Index) -> Iterator[Anomaly]:
    """JEP-02: a value at two offsets of a key, for any observers."""
    for key, by_offset in index.observed_values.items():
        places: dict[Value, list[int]] = {}
        for offset, values in sorted(by_offset.items()):
            for value in values:
                places.setdefault(value, []).append(offset)
        for value, offsets in places.items():
            if len(offsets) > 1:
                yield anomaly("duplicate", f"{value!r} is at the offsets {offsets}", key=key)


def aborted_reads(index: Index) -> Iterator[Anomaly]:
    """JEP-03 (G1a): a reader of committed records polled a value whose writer has failed.

    The result of a poll counts, whatever the outcome of its operation is.
    """
    for op in index.operations:
        if not op.committed_reads:
            continue
        for key, offset, value in observed(op):
            writer = index.writers.get((key, value))
            if writer is not None and writer[0].type is Type.FAIL:
                yield anomaly("aborted-read", f"{value!r} at {offset} was written by {writer[0]}", op, key=key)


def lost_writes(index: Index) -> Iterator[Anomaly]:
    """JEP-04: readers have passed a committed value, and none has read it.

    If another record of its transaction was read, the transaction is torn as well (JEP-16).
    """
    for key, order in index.orders.items():
        read = [number for value, number in order.first.items() if index.read((key, value))]
        bound = max(read, default=-1)
        for value, last in order.last.items():
            if last > bound or index.read((key, value)) or index.may_be_deleted(key, order.offsets[last]):
                continue
            sent = index.writers.get((key, value))
            if sent is None or not index.committed(sent[0]):
                continue
            writer = sent[0]
            detail = f"{value!r} at {order.offsets[last]} was never read, a later one was; {writer}"
            yield anomaly("lost-write", detail, writer, key=key)
            yield from _torn(index, writer, sent[1])


def unseen(index: Index) -> Iterator[Anomaly]:
    """JEP-05: a committed value that was never polled, although a last phase read its key from the beginning."""
    final = {key for op in index.operations if op.final and op.type is Type.OK for key in _keys_read(op)}
    for (key, value), (op, send) in index.writers.items():
        if key not in final or not index.committed(op) or index.read((key, value)):
            continue
        if index.may_be_deleted(key, send.offset):
            continue
        where = f" at {send.offset}" if send.offset is not None else ""
        yield anomaly("unseen", f"{value!r}{where} was never read; {op}", op, key=key)
        yield from _torn(index, op, send)


def _keys_read(op: Operation) -> Iterator[str]:
    for item in op.value:
        if isinstance(item, Poll):
            yield from item.records
    for snapshot in op.snapshots:
        yield from snapshot.records


def _torn(index: Index, writer: Operation, missing: Send) -> Iterator[Anomaly]:
    others = [send for send in writer.sends if index.read((send.key, send.value))]
    if atomic(writer) and others:
        detail = f"{others[0].value!r} in {others[0].key} was read, {missing.value!r} in {missing.key} never; {writer}"
        yield anomaly("torn-txn", detail, writer, key=missing.key)


def precommitted_reads(index: Index) -> Iterator[Anomaly]:
    """JEP-11: a reader of committed records polled what its own transaction had sent and not yet committed."""
    for op in index.operations:
        if not (atomic(op) and op.committed_reads):
            continue
        sent: set[tuple[str, object]] = set()
        for item in op.value:
            if isinstance(item, Send):
                sent.add((item.key, item.value))
            elif isinstance(item, Poll):
                for key, records in item.records.items():
                    for _, value in records:
                        if (key, value) in sent:
                            yield anomaly("precommitted-read", f"{value!r} was polled before its commit", op, key=key)
