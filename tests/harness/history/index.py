"""The index that the parts of the checker share: writer and readers of a value, and the order of values per key."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from tests.harness.history.format import History, Operation, Send, Type, Value

#: A value in its key.
Place = tuple[str, Value]

#: Anomalies that are legal in Kafka (JEP-13): it does not order writes of several partitions by transaction.
ALLOWED = frozenset({"int-send-skip", "G0", "G0-process", "G0-realtime", "PL-2-cycle"})
#: Anomalies that a rebalance may cause for a consumer that subscribes.
_ALLOWED_WHEN_SUBSCRIBED = frozenset({"poll-skip", "nonmonotonic-poll"})


@dataclass(frozen=True, slots=True)
class Anomaly:
    """An observation that contradicts exactly-once, or is legal if ``allowed``; ``operations`` are indices."""

    kind: str
    detail: str
    operations: tuple[int, ...] = ()
    key: str | None = None
    allowed: bool = False

    def __str__(self) -> str:
        where = f" in {self.key}" if self.key is not None else ""
        who = f" (operations {', '.join(map(str, self.operations))})" if self.operations else ""
        verdict = ", allowed" if self.allowed else ""
        return f"{self.kind}{verdict}{where}: {self.detail}{who}"


def anomaly(
    kind: str, detail: str, *operations: Operation, key: str | None = None, subscribed: bool = False
) -> Anomaly:
    """An anomaly, allowed by JEP-13 or not; ``subscribed``: of a consumer whose keys a group assigns."""
    allowed = kind in ALLOWED or (subscribed and kind in _ALLOWED_WHEN_SUBSCRIBED)
    return Anomaly(kind, detail, tuple(op.index for op in operations), key, allowed)


@dataclass
class KeyOrder:
    """The version order of a key: its committed values by offset, gaps removed."""

    values: list[Value] = field(default_factory=list)
    offsets: list[int] = field(default_factory=list)
    first: dict[Value, int] = field(default_factory=dict)
    last: dict[Value, int] = field(default_factory=dict)

    def add(self, offset: int, value: Value) -> None:
        """The next value."""
        index = len(self.values)
        self.values.append(value)
        self.offsets.append(offset)
        self.first.setdefault(value, index)
        self.last[value] = index


class Index:
    """An index of a history. Built once, in one pass per table."""

    def __init__(self, history: History) -> None:
        self.history = history
        self.operations = history.operations
        self.writers: dict[Place, tuple[Operation, Send]] = {}
        self.readers: dict[Place, list[Operation]] = {}
        self.log_starts: dict[str, int] = {}
        self.observed_values: dict[str, dict[int, dict[Value, None]]] = {}
        self.by_identity: dict[tuple[int | None, int | None], list[Operation]] = {}
        for op in self.operations:
            self._add(op)
        self.committed_ids = {(it.producer_id, it.epoch) for it in history.decisions or () if it.what == "commit"}
        self._must = {op.index for op in self.operations if self._must_have_committed(op)}
        self.orders = self._orders()

    def _add(self, op: Operation) -> None:
        for send in op.sends:
            place = (send.key, send.value)
            if place in self.writers:
                msg = f"the workload sends {send.value!r} to {send.key} twice, so a read does not identify its writer"
                raise ValueError(msg)
            self.writers[place] = (op, send)
        if op.f == "txn" and op.epoch is not None:
            self.by_identity.setdefault((op.producer_id, op.epoch), []).append(op)
        for key, _, value in observed(op):
            if op.type is Type.OK:
                self.readers.setdefault((key, value), []).append(op)
        for snapshot in op.snapshots:
            for key, bounds in snapshot.bounds.items():
                self.log_starts[key] = max(self.log_starts.get(key, 0), bounds.log_start)

    def _must_have_committed(self, op: Operation) -> bool:
        """It is ``ok``; or it is ``info``, all or nothing, and a part of it was read or the chain has its commit."""
        if op.type is not Type.INFO or not atomic(op):
            return op.type is Type.OK
        if self.decided_commit(op):
            return True
        return any(self.read((send.key, send.value)) for send in op.sends)

    def decided_commit(self, op: Operation) -> bool:
        """Whether the chains have the commit of this transaction.

        A transaction of which nothing was written leaves its epoch to the next one; then the commit is that one's.
        """
        identity = (op.producer_id, op.epoch)
        if identity not in self.committed_ids:
            return False
        return all(other is op or other.type is Type.FAIL for other in self.by_identity.get(identity, ()))

    def committed(self, op: Operation) -> bool:
        """Whether the operation happened, independent of the answer to its client."""
        return op.index in self._must

    def committed_send(self, op: Operation, send: Send) -> bool:
        """Whether a record must exist; that of a plain send of unknown outcome must if it was read."""
        return self.committed(op) or (op.type is Type.INFO and self.read((send.key, send.value)))

    def offset(self, send: Send) -> int | None:
        """The offset of a record, from its writer or a reader."""
        if send.offset is not None:
            return send.offset
        order = self.orders.get(send.key)
        number = order.first.get(send.value) if order is not None else None
        return order.offsets[number] if order is not None and number is not None else None

    def read(self, place: Place) -> bool:
        """Whether a reader of committed records has polled the value in an ``ok`` operation."""
        return any(op.committed_reads for op in self.readers.get(place, ()))

    def may_be_deleted(self, key: str, offset: int | None) -> bool:
        """Whether the record may have been deleted: below the log start, or in a key under log compaction.

        ``offset``: None if its writer died before it learned it.
        """
        start = self.log_starts.get(key, 0)
        return key in self.history.compacted or (start > 0 if offset is None else offset < start)

    def _orders(self) -> dict[str, KeyOrder]:
        """Also stores in ``observed_values`` the values that observers associate with an offset of a key."""
        values_by_offset: dict[str, dict[int, dict[Value, None]]] = {}
        for (key, value), (op, send) in self.writers.items():
            if send.offset is None:
                continue
            self.observed_values.setdefault(key, {}).setdefault(send.offset, {})[value] = None
            if self.committed_send(op, send):
                values_by_offset.setdefault(key, {}).setdefault(send.offset, {})[value] = None
        for op in self.operations:
            for key, offset, value in observed(op):
                self.observed_values.setdefault(key, {}).setdefault(offset, {})[value] = None
                if op.committed_reads:
                    values_by_offset.setdefault(key, {}).setdefault(offset, {})[value] = None
        orders = {}
        for key, by_offset in values_by_offset.items():
            order = orders[key] = KeyOrder()
            for offset, values in sorted(by_offset.items()):
                for value in values:
                    order.add(offset, value)
        return orders


def atomic(op: Operation) -> bool:
    """Whether it is a transaction: all of it happens or nothing."""
    return op.f == "txn" or op.transactional_id is not None


def observed(op: Operation) -> Iterator[tuple[str, int, Value]]:
    """All records that the operation read, in polls and in snapshots."""
    yield from op.reads
    for snapshot in op.snapshots:
        for key, records in snapshot.records.items():
            for offset, value in records:
                yield key, offset, value
