"""The history of a run for the checker of :mod:`tests.harness.history`, which is independent of the simulation."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from tests.harness.history import (
    Assign,
    Bounds,
    Event,
    Offsets,
    Poll,
    Send,
    Snapshot,
    Type,
    check,
    history_of,
)
from tests.harness.history.format import MicroOp
from tests.harness.simulation.journal import Journal
from tests.harness.simulation.recorder import Operation
from tests.harness.simulation.world import KEYED, PASSING, Copied

#: Jobs stop in the middle of a run, so unconsumed records are not lost.
_ALLOWED = frozenset({"unconsumed"})


def found_by_checker(
    operations: Iterable[Operation], copied: dict[int, Copied], journal: Journal, final: dict[str, Any]
) -> Iterator[str]:
    """The anomalies of a history, with a snapshot at its end and the decisions of the chains."""
    deleted = _deleted(journal)
    events = [_event(operation, copied, deleted) for operation in operations if operation.f not in ("crash", "delete")]
    last = _snapshot(final)
    time = events[-1].time + 1 if events else 0
    for f, micro in (("snapshot", last), ("poll", Poll(last.records))):
        events += [Event("final", kind, f, time, (micro,), final=True) for kind in (Type.INVOKE, Type.OK)]
    for anomaly in check(history_of(events, journal.decisions)):
        if anomaly.kind not in _ALLOWED:
            yield str(anomaly)


def _deleted(journal: Journal) -> dict[int, int]:
    """The offset of each value that was deleted: only with it the checker knows that no reader must find it."""
    return {
        record.value: record.offset
        for key, start in journal.starts.items()
        for record in journal.logs.get(key, ())
        if record.value is not None and record.offset < start
    }


def _event(operation: Operation, copied: dict[int, Copied], deleted: dict[int, int]) -> Event:
    name, producer_id, epoch = operation.txn or (None, None, None)
    value = operation.value
    if operation.f == "init":
        name, producer_id, epoch = value["transactional_id"], value.get("producer_id"), value.get("epoch")
    isolated = not operation.process.startswith("uncommitted")
    return Event(
        process=operation.process,
        type=Type(operation.type),
        f=operation.f,
        time=operation.index,
        value=tuple(_micro_ops(operation, copied, deleted)),
        transactional_id=name,
        producer_id=producer_id,
        epoch=epoch,
        isolation="read_committed" if isolated else "read_uncommitted",
        error=operation.error,
    )


def _micro_ops(operation: Operation, copied: dict[int, Copied], deleted: dict[int, int]) -> Iterator[MicroOp]:
    if operation.f in ("txn", "send", "poll"):
        for micro in operation.value:
            if micro[0] == "send" and micro[1].startswith((f"{PASSING}-", f"{KEYED}-")):
                continue  # They have no readers here; :mod:`.checks` and :mod:`.cleaning` check them.
            yield from _micro_op(micro, copied, deleted)
    elif operation.f in ("assign", "subscribe"):
        yield Assign(tuple(operation.value))
    elif operation.type == "ok" and operation.f == "ends":
        yield Snapshot({key: Bounds(*ends) for key, ends in operation.value.items()})
    elif operation.type == "ok" and operation.f == "snapshot":
        yield _snapshot(operation.value)


def _micro_op(micro: tuple[Any, ...], copied: dict[int, Copied], deleted: dict[int, int]) -> Iterator[MicroOp]:
    match micro:
        case ("send", key, (offset, value)):
            yield Send(key, value, offset, _source(value, copied))
        case ("send", key, value):
            yield Send(key, value, deleted.get(value), _source(value, copied))
        case ("poll", records):
            yield Poll({key: tuple(pairs) for key, pairs in records.items()})
        case ("offsets", group, offsets):
            yield Offsets(group, offsets)


def _source(value: int, copied: dict[int, Copied]) -> tuple[str, int] | None:
    source = copied.get(value)
    return (source.key, source.offset) if source is not None else None


def _snapshot(value: dict[str, Any]) -> Snapshot:
    return Snapshot(
        bounds={key: Bounds(start, stable, end) for key, (stable, end, _, start) in value["ends"].items()},
        records={key: tuple(value["read_committed"].get(key, ())) for key in value["ends"]},
        groups=value["groups"],
        unstable=tuple(value["unstable"]),
    )
