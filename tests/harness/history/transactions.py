"""Anomalies of transactions: whole at every snapshot, exactly once, never by a zombie. JEP-15 to -17, -20 to -22."""

from __future__ import annotations

from collections.abc import Iterator

from tests.harness.history.format import Decision, Offsets, Operation, Poll, Send, Snapshot, Type
from tests.harness.history.index import Anomaly, Index, anomaly, atomic

#: A group and the key that it consumes.
_Input = tuple[str, str]


def torn(index: Index) -> Iterator[Anomaly]:
    """JEP-16: a snapshot has a part of a transaction, and lacks another part below the LSO of that key.

    At or above the LSO a record may be missing: the LSO may cut through a committed transaction (LSO-19).
    """
    for op, snapshot in _snapshots(index):
        places = _places(snapshot)
        writers = {sent[0].index: sent[0] for place in places if (sent := index.writers.get(place)) is not None}
        for writer in writers.values():
            if not atomic(writer) or writer.type is Type.FAIL:
                continue
            for send in writer.sends:
                if (send.key, send.value) not in places and _must_show(index, snapshot, send):
                    detail = f"{send.value!r} at {index.offset(send)} is not in the snapshot, the rest is; {writer}"
                    yield anomaly("torn-txn", detail, writer, op, key=send.key)


def _must_show(index: Index, snapshot: Snapshot, send: Send) -> bool:
    """Whether a snapshot must show this record if it is committed: its offset is known and below the LSO."""
    offset, bounds = index.offset(send), snapshot.bounds.get(send.key)
    if send.key not in snapshot.records or bounds is None or index.may_be_deleted(send.key, offset or 0):
        return False
    if offset is None:
        return bounds.lso == bounds.hw  # Its offset is unknown, but the whole key is decided.
    return offset < bounds.lso


def _snapshots(index: Index) -> Iterator[tuple[Operation, Snapshot]]:
    for op in index.operations:
        if op.type is Type.OK and op.committed_reads:
            for snapshot in op.snapshots:
                yield op, snapshot


def _places(snapshot: Snapshot) -> set[tuple[str, int | str]]:
    return {(key, value) for key, records in snapshot.records.items() for _, value in records}


def offsets_and_data(index: Index) -> Iterator[Anomaly]:
    """JEP-17: in any snapshot, the outputs of a job are exactly those of the inputs below its group's offset.

    A job makes at least one record of each input, and names it as the record's ``source``.
    """
    made = _made(index)
    for op, snapshot in _snapshots(index):
        places = _places(snapshot)
        for (group, key), by_offset in made.items():
            if group not in snapshot.groups or key not in snapshot.records:
                continue
            limit = snapshot.groups[group].get(key, 0)
            for offset, candidates in by_offset.items():
                if offset >= limit and any((send.key, send.value) in places for _, send in candidates):
                    detail = f"group {group!r} is at {limit}, but the output of {offset} exists"
                    yield anomaly("offsets-data-mismatch", detail, op, key=key)
            for offset, _ in snapshot.records[key]:
                if offset < limit and not _output_may_be(index, snapshot, places, by_offset.get(offset, [])):
                    detail = f"group {group!r} is at {limit}, but the output of {offset} is missing"
                    yield anomaly("offsets-data-mismatch", detail, op, key=key)


def _output_may_be(
    index: Index, snapshot: Snapshot, places: set[tuple[str, int | str]], candidates: list[tuple[Operation, Send]]
) -> bool:
    """Whether a record made of an input exists, or may exist above the LSO of the snapshot."""
    return any(
        (send.key, send.value) in places or (op.type is not Type.FAIL and not _must_show(index, snapshot, send))
        for op, send in candidates
    )


def _made(index: Index) -> dict[_Input, dict[int, list[tuple[Operation, Send]]]]:
    """For each group and key that jobs consume: the records that were made of each offset."""
    made: dict[_Input, dict[int, list[tuple[Operation, Send]]]] = {}
    for op in index.operations:
        inputs = _inputs(op)
        for send in op.sends:
            if send.source is None:
                continue
            for group, keys in inputs.items():
                if send.source[0] in keys:
                    made.setdefault((group, send.source[0]), {}).setdefault(send.source[1], []).append((op, send))
    return made


def _inputs(op: Operation) -> dict[str, set[str]]:
    """The keys whose offsets go with the operation, by group."""
    inputs: dict[str, set[str]] = {}
    for item in op.value:
        if isinstance(item, Offsets):
            inputs.setdefault(item.group, set()).update(item.offsets)
    return inputs


def consumed(index: Index) -> Iterator[Anomaly]:
    """JEP-15: at most one committed transaction of a group consumes each record, at the end exactly one."""
    counts = _consumers(index)
    for (group, key), by_offset in counts.items():
        for offset, operations in by_offset.items():
            if len(operations) > 1:
                detail = f"offset {offset} was consumed {len(operations)} times by group {group!r}"
                yield anomaly("double-consume", detail, *operations, key=key)
    final = [(op, snapshot) for op, snapshot in _snapshots(index) if op.final]
    for op, snapshot in final[-1:]:
        for (group, key), by_offset in counts.items():
            for offset, value in snapshot.records.get(key, ()):
                if offset not in by_offset:
                    detail = f"{value!r} at {offset} was never consumed by group {group!r}"
                    yield anomaly("unconsumed", detail, op, key=key)


def _consumers(index: Index) -> dict[_Input, dict[int, list[Operation]]]:
    """The committed transactions that consumed each offset, for each group and key."""
    counts: dict[_Input, dict[int, list[Operation]]] = {}
    for op in index.operations:
        if not (atomic(op) and index.committed(op)):
            continue
        for group, keys in _inputs(op).items():
            for item in op.value:
                if isinstance(item, Poll):
                    for key in keys & set(item.records):
                        for offset, _ in item.records[key]:
                            counts.setdefault((group, key), {}).setdefault(offset, []).append(op)
    return counts


def epochs(index: Index) -> Iterator[Anomaly]:
    """JEP-20: the epochs of a producer id grow with each initialisation and with each commit (KIP-890)."""
    last: dict[tuple[str, int], tuple[Decision | None, Decision | None]] = {}
    for item in sorted(index.history.decisions or (), key=lambda it: (it.transactional_id, it.position)):
        if item.what == "abort":
            continue
        identity = (item.transactional_id, item.producer_id)
        init, commit = last.get(identity, (None, None))
        lowest = max(-1 if init is None else init.epoch, -1 if commit is None else commit.epoch + 1)
        if item.what == "init":
            lowest = max(lowest, -1 if init is None else init.epoch + 1)
        if item.epoch < lowest:
            decision = f"{item.what} of {item.transactional_id!r} at entry {item.position}"
            detail = f"{decision} has epoch {item.epoch}, which must be {lowest} at least"
            yield anomaly("epoch-regression", detail)
        last[identity] = (item, commit) if item.what == "init" else (init, item)


def zombies(index: Index) -> Iterator[Anomaly]:
    """JEP-21: a commit that was requested after another process was initialised with the same id."""
    inits: dict[str, list[Operation]] = {}
    for op in index.operations:
        if op.f == "init" and op.type is Type.OK and op.transactional_id is not None:
            inits.setdefault(op.transactional_id, []).append(op)
    for op in index.operations:
        if not atomic(op) or op.f == "init" or not index.committed(op):
            continue
        requested = op.invoked if op.committing is None else op.committing
        others = inits.get(op.transactional_id or "", [])
        for other in others:
            if other.completed is not None and other.completed < requested and _newer(other, op, others):
                yield anomaly("zombie-commit", f"{op} committed after {other}", other, op)


def _newer(init: Operation, txn: Operation, inits: list[Operation]) -> bool:
    """Whether an initialisation gave another process a newer identity than that of this transaction."""
    if init.process == txn.process:
        return False
    if init.producer_id is not None and init.producer_id == txn.producer_id and None not in (init.epoch, txn.epoch):
        return (init.epoch or 0) > (txn.epoch or 0)
    own = [it for it in inits if it.process == txn.process and it.completed is not None and it.completed <= txn.invoked]
    return not own or (own[-1].completed or 0) < init.invoked


def wrong_outcomes(index: Index) -> Iterator[Anomaly]:
    """JEP-22: the chains contradict the answer to the client."""
    if index.history.decisions is None:
        return
    for op in index.operations:
        if op.f != "txn" or op.epoch is None or not any(isinstance(item, Send | Offsets) for item in op.value):
            continue
        if op.type is Type.OK and (op.producer_id, op.epoch) not in index.committed_ids:
            yield anomaly("wrong-outcome", f"the chains have no commit of {op}", op)
        if op.type is Type.FAIL and index.decided_commit(op):
            yield anomaly("wrong-outcome", f"the chains have a commit of {op}", op)
