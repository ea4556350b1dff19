"""Anomalies of log ends and of retention: JEP-18, JEP-19, JEP-23 and JEP-24."""

from __future__ import annotations

from collections.abc import Iterator

from tests.harness.history.format import Operation, Snapshot, Type, Value
from tests.harness.history.index import Anomaly, Index, anomaly

_NAMES = (("log_start", "log-start-regression"), ("lso", "lso-regression"), ("hw", "hw-regression"))


def _snapshots(index: Index) -> Iterator[tuple[Operation, Snapshot]]:
    for op in index.operations:
        if op.type is Type.OK:
            for snapshot in op.snapshots:
                yield op, snapshot


def _in_order(index: Index) -> Iterator[tuple[Operation, Snapshot, list[tuple[Operation, Snapshot]]]]:
    """Snapshots by invocation, each with those that ended since the invocation of the previous one."""
    begun = list(_snapshots(index))
    ended = sorted(begun, key=lambda pair: pair[0].completed or 0)
    place = 0
    for op, snapshot in begun:
        news = []
        while place < len(ended) and (ended[place][0].completed or 0) < op.invoked:
            news.append(ended[place])
            place += 1
        yield op, snapshot, news


def regressions(index: Index) -> Iterator[Anomaly]:
    """JEP-18: an end is lower than in a snapshot that completed before."""
    highest: dict[tuple[str, str], tuple[int, Operation]] = {}
    for op, snapshot, news in _in_order(index):
        for earlier, observed in news:
            for key, bounds in observed.bounds.items():
                for name, _ in _NAMES:
                    value = getattr(bounds, name)
                    if value > highest.get((key, name), (-1, earlier))[0]:
                        highest[key, name] = (value, earlier)
        for key, bounds in snapshot.bounds.items():
            for name, kind in _NAMES:
                earlier_bound = highest.get((key, name))
                if earlier_bound is not None and getattr(bounds, name) < earlier_bound[0]:
                    detail = f"{name} was {earlier_bound[0]} and is {getattr(bounds, name)}"
                    yield anomaly(kind, detail, earlier_bound[1], op, key=key)


def stuck(index: Index) -> Iterator[Anomaly]:
    """JEP-19: at the end, after all producers stopped and a recovery ran, something is still undecided."""
    last: dict[str, tuple[Operation, str]] = {}
    for op, snapshot in _snapshots(index):
        if not op.final:
            continue
        for key, bounds in snapshot.bounds.items():
            last[key] = (op, f"LSO {bounds.lso} is not HW {bounds.hw}" if bounds.lso != bounds.hw else "")
        for group in {*snapshot.groups, *snapshot.unstable}:
            pending = f"group {group!r} has offsets of an open transaction" if group in snapshot.unstable else ""
            last[f"group {group}"] = (op, pending)
    for key, (op, detail) in last.items():
        if detail:
            yield anomaly("stuck-lso", detail, op, key=key)


def removals(index: Index) -> Iterator[Anomaly]:
    """JEP-24: the log start is above the LSO, or a record at or above the log start disappeared.

    JEP-23: a record came back, or appeared below an LSO that was observed without it.
    """
    newest: dict[str, tuple[Operation, Snapshot]] = {}
    for op, snapshot, news in _in_order(index):
        for earlier, observed in news:
            newest.update(dict.fromkeys(observed.records, (earlier, observed)))
        for key, bounds in snapshot.bounds.items():
            if bounds.log_start > bounds.lso:
                detail = f"log start {bounds.log_start} is above LSO {bounds.lso}"
                yield anomaly("retention-anomaly", detail, op, key=key)
        for key in snapshot.records:
            if key in newest:
                yield from _compare(index, key, *newest[key], op, snapshot)


def _compare(
    index: Index, key: str, earlier: Operation, before: Snapshot, later: Operation, after: Snapshot
) -> Iterator[Anomaly]:
    old, new = set(before.records[key]), set(after.records[key])
    start = after.bounds[key].log_start if key in after.bounds else 0
    for offset, value in sorted(old - new, key=str):
        if offset >= start and key not in index.history.compacted:
            yield anomaly("retention-anomaly", f"{value!r} at {offset} disappeared", earlier, later, key=key)
    limit = before.bounds[key].lso if key in before.bounds else 0
    for offset, value in sorted(new - old, key=str):
        if offset < limit:
            detail = f"{value!r} at {offset} was not there when the LSO was {limit}"
            yield anomaly("compaction-anomaly", detail, earlier, later, key=key)


def compactions(index: Index) -> Iterator[Anomaly]:
    """JEP-23: in a key under log compaction the last committed record of a record key is missing at the end."""
    for key in sorted(index.history.compacted):
        last: dict[str, tuple[int, Value]] = {}
        for (name, value), (op, send) in index.writers.items():
            offset = index.offset(send)
            if name != key or send.record_key is None or offset is None or not index.committed_send(op, send):
                continue
            last[send.record_key] = max(last.get(send.record_key, (-1, value)), (offset, value), key=lambda it: it[0])
        final = [(op, it) for op, it in _snapshots(index) if op.final and key in it.records]
        for op, snapshot in final[-1:]:
            there = set(snapshot.records[key])
            for record_key, (offset, value) in last.items():
                bounds = snapshot.bounds.get(key)
                below = bounds is None or bounds.log_start <= offset < bounds.lso
                if below and (offset, value) not in there:
                    detail = f"the last record of {record_key!r}, {value!r} at {offset}, is missing"
                    yield anomaly("compaction-anomaly", detail, op, key=key)
