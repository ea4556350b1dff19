"""Compares the observations of the clients of a run with the entries."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator
from typing import Any

from tests.harness.simulation.journal import Journal, Written, life
from tests.harness.simulation.readers import TOPICS, Copy, Member, scanned
from tests.harness.simulation.recorder import Operation
from tests.harness.simulation.world import PASSING, World
from txnstore.core.groups.offsets import OFFSETS_RETENTION_MS
from txnstore.core.model import Outcome
from txnstore.store import Store

#: How many copies of a record may exist, by the type of the operation that sent it.
_WANTED = {"ok": {1}, "fail": {0}, "info": {0, 1}}
Pairs = list[tuple[int, int]]
#: The errors after which a producer takes its transaction for not committed.
_FENCED = (
    "ProducerFenced",
    "TransactionalIdAuthorization",
    "TopicAuthorization",
    "GroupAuthorization",
)


def outcomes(history: Iterable[Operation], journal: Journal) -> Iterator[str]:
    """JEP-22: the records of ok exist, of fail do not, of info all or none; and there are no duplicates."""
    places = journal.places()
    for operation in history:
        if operation.f not in ("txn", "send") or operation.type not in _WANTED:
            continue
        landed = []
        for micro in operation.value:
            if micro[0] != "send":
                continue
            offset, value = micro[2] if isinstance(micro[2], tuple) else (None, micro[2])
            records = [record for record in places.get(value, ()) if journal.committed(record)]
            landed.append(len(records))
            if len(records) > 1:
                yield f"duplicate: {value} is committed at {[(r.key, r.offset) for r in records]}"
            if records and (_name(records[0].key) != micro[1] or offset not in (None, records[0].offset)):
                yield f"wrong-offset: {operation.process} got {micro}, but it is at {records[0]}"
        expected = _WANTED[operation.type]
        if landed and (len(set(landed)) > 1 or not set(landed) <= expected):
            yield f"wrong-outcome: {operation.process} {operation.type} {operation.value}: committed {landed}"


def fences(history: Iterable[Operation], journal: Journal) -> Iterator[str]:
    """TV2-02: a committed transaction is answered with *fenced* only if a newer instance was initialised meanwhile.

    So is a refusal for a missing right: the repetition of a commit is answered, whatever rights are left.
    """
    operations = list(history)
    names: dict[str, str] = {}
    begun: dict[str, int] = {}
    inits: list[tuple[str, str, int, int]] = []
    for at, operation in enumerate(operations):
        if operation.type == "invoke":
            begun[operation.process] = at
            if operation.f == "init":
                names[operation.process] = operation.value["transactional_id"]
        elif operation.f == "init" and operation.type != "committing":
            inits.append((names[operation.process], operation.process, begun[operation.process], at))
    places = journal.places()
    for at, operation in enumerate(operations):
        if operation.type == "invoke":
            begun[operation.process] = at
        if (
            operation.f != "txn"
            or operation.type not in ("fail", "info")
            or not (operation.error or "").startswith(_FENCED)
        ):
            continue
        values = [micro[2] for micro in operation.value if micro[0] == "send"]
        if not any(journal.committed(record) for value in values for record in places.get(value, ())):
            continue
        who, since = operation.process, begun[operation.process]
        if not any(
            name == names[who] and other != who and first < at and last > since for name, other, first, last in inits
        ):
            yield f"fenced-without-cause: {who} got {operation.error}, but {values} are committed"


def polls(history: Iterable[Operation], journal: Journal) -> Iterator[str]:
    """Consumers without a group read from the beginning every visible record once, in order."""
    positions: dict[tuple[str, str], int] = {}
    for operation in history:
        if operation.f != "poll" or operation.type != "ok":
            continue
        isolated = operation.process.startswith("committed")
        for key, pairs in operation.value[0][1].items():
            at = positions.get((operation.process, key), 0)
            yield from _run(operation.process, key, at, pairs, journal, isolated=isolated)
            positions[operation.process, key] = pairs[-1][0] + 1


def _run(who: str, key: str, at: int, pairs: Pairs, journal: Journal, *, isolated: bool) -> Iterator[str]:
    """Whether these pairs are the records of the log from ``at`` on, without a gap in the visible ones."""
    log = journal.logs.get(key, [])
    limit = pairs[-1][0] + 1
    below = log[bisect_left(log, at, key=_offset) : bisect_left(log, limit, key=_offset)]
    readable = [(record.offset, record.value, journal.committed(record)) for record in below]
    may = {
        (offset, value) for offset, value, committed in readable if value is not None and (committed or not isolated)
    }
    start = journal.starts.get(key, 0)  # A record below it may have been deleted before the poll.
    must = {(offset, value) for offset, value, committed in readable if value is not None and committed}
    must = {pair for pair in must if pair[0] >= start}
    for pair in pairs:
        if pair not in may:
            yield f"aborted-or-unknown-read: {who} read {pair} in {key} from {at}"
    for pair in sorted(must - set(pairs)):
        yield f"skipped: {who} passed {pair} in {key} from {at}"
    if [offset for offset, _ in pairs] != sorted({offset for offset, _ in pairs}):
        yield f"not-in-order: {who} read {pairs} in {key}"


def snapshots(history: Iterable[Operation], journal: Journal) -> Iterator[str]:
    """A snapshot contains exactly its stable records, and of a transaction all or nothing (JEP-16, LSO-19)."""
    records: dict[tuple[int, int], list[Written]] = {}
    for log in journal.logs.values():
        for record in log:
            if (
                record.key == _name(record.key)
                and record.txn is not None
                and journal.outcomes.get(record.txn) is Outcome.COMMIT
            ):
                records.setdefault(record.txn, []).append(record)
    for operation in history:
        if operation.f == "snapshot" and operation.type == "ok":
            yield from _snapshot(operation.process, operation.value, journal, records)


def _snapshot(
    who: str, snapshot: dict[str, Any], journal: Journal, records: dict[tuple[int, int], list[Written]]
) -> Iterator[str]:
    visible = snapshot["read_committed"]
    for key, (stable, end, _, start) in snapshot["ends"].items():
        log = [record for record in journal.logs.get(key, []) if record.offset >= start]
        must = [(r.offset, r.value) for r in log if r.offset < stable and journal.committed(r)]
        if visible.get(key, []) != must:
            yield f"wrong-snapshot: {who} saw {visible.get(key, [])} in {key} below {stable}, not {must}"
        may = {(r.offset, r.value) for r in log if r.offset < end}
        everything = snapshot["read_uncommitted"].get(key, [])
        stray = set(everything) - may
        lost = {(r.offset, r.value) for r in log if r.offset < end and journal.committed(r)} - set(everything)
        if stray or lost:
            yield f"wrong-uncommitted-snapshot: {who} {key} below {end}: strange {stray}, lost {lost}"
    shown = {(key, offset) for key, pairs in visible.items() for offset, _ in pairs}
    for txn, parts in records.items():
        there = [record for record in parts if (record.key, record.offset) in shown]
        for record in parts if there and len(there) < len(parts) else ():
            _, _, unstable, start = snapshot["ends"].get(record.key, (0, 0, {}, 0))
            if (
                record.offset >= start
                and (record.key, record.offset) not in shown
                and not any(first <= record.offset for producer_id, first in unstable.items() if producer_id != txn[0])
            ):
                yield f"torn-txn: {who} saw {there} of {txn}, but not {record}"


def ends(history: Iterable[Operation]) -> Iterator[str]:
    """JEP-18: a later query returns no lower log start, LSO or HW than an earlier answer."""
    highest: dict[str, tuple[int, ...]] = {}
    before: dict[str, dict[str, tuple[int, ...]]] = {}
    for operation in history:
        if operation.f != "ends":
            continue
        if operation.type == "invoke":
            before[operation.process] = dict(highest)
        elif operation.type == "ok":
            for key, bounds in operation.value.items():
                earlier = before[operation.process].get(key, (0, 0, 0))
                if any(now < was for now, was in zip(bounds, earlier, strict=True)):
                    yield f"end-regression: {operation.process} saw {bounds} of {key} after {earlier}"
                highest[key] = tuple(map(max, bounds, highest.get(key, (0, 0, 0))))


def deletions(history: Iterable[Operation], journal: Journal) -> Iterator[str]:
    """Records sent after the acknowledged deletion of a topic are not in it: they would be acknowledged, and lost."""
    places = journal.places()
    deleted: dict[str, int] = {}
    begun: dict[str, int] = {}
    for at, operation in enumerate(history):
        if operation.type == "invoke":
            begun[operation.process] = at
        elif operation.f == "delete" and operation.type == "ok":
            deleted.setdefault(operation.value["topic_id"], at)
        elif operation.f in ("txn", "send") and operation.type in ("ok", "fail", "info"):
            for value in _values(operation):
                for record in places.get(value, ()):
                    topic_id = record.key.partition("@")[2]
                    if deleted.get(topic_id, at) < begun[operation.process]:
                        yield f"sent-to-a-deleted-topic: {operation.process} {operation.type}: {record}"


def shortened(world: World, journal: Journal) -> Iterator[str]:
    """An acknowledged deletion lasts."""
    for key, start in sorted(world.shortened.items()):
        if journal.starts.get(key, 0) < start:
            yield f"lost-deletion: {key} begins at {journal.starts.get(key, 0)}, acknowledged was {start}"


def _values(operation: Operation) -> Iterator[int]:
    for micro in operation.value:
        if micro[0] == "send":
            yield micro[2][1] if isinstance(micro[2], tuple) else micro[2]


def _name(key: str) -> str:
    """The key as clients use it, which does not distinguish a topic from a recreated one."""
    return key.partition("@")[0]


def settled(store: Store, journal: Journal, final: dict[str, Any]) -> Iterator[str]:
    """JEP-05, JEP-19: after recovery no transaction hangs, and exactly the committed records can be read."""
    state = store._connection.view()
    for tp, partition in sorted(state.partitions.items()):
        if partition.last_stable_offset != partition.high_watermark:
            yield f"stuck-lso: {tp} at {partition.last_stable_offset} of {partition.high_watermark}"
    for name, group in state.groups.items():
        if any(len(pending) for pending in group.pending.values()):
            yield f"stuck-offsets: group {name!r} has pending offsets"
    for txn in state.transactions.values():
        if txn.state.name not in ("EMPTY", "COMPLETE_COMMIT", "COMPLETE_ABORT"):
            yield f"stuck-transaction: {txn.transactional_id!r} is {txn.state.name}"
    readable, topics = dict(final["read_committed"]), list(TOPICS)
    if PASSING in state.topics:
        topics.append(PASSING)
        readable |= scanned(store.scan(PASSING).to_table())
    for topic in topics:
        for tp, _ in state.partitions_of(topic):
            key = life(*tp, state.topics[topic].topic_id) if topic == PASSING else str(tp)
            log = [record for record in journal.logs.get(key, []) if record.offset >= journal.starts.get(key, 0)]
            must = [(r.offset, r.value) for r in log if journal.committed(r)]
            if readable.get(str(tp), []) != must:
                yield f"unseen-or-strange: {key} holds {readable.get(str(tp), [])}, committed is {must}"


def copies(world: World, store: Store, journal: Journal) -> Iterator[str]:
    """JEP-15, JEP-17: each record below the group's offset was copied in exactly one committed transaction.

    In a run that pauses made longer than a week, the offsets of a group may have expired: it was copied once at most.
    """
    places = journal.places()
    count: dict[tuple[str, int], int] = {}
    for value, source in world.copied.items():
        count.setdefault((source.key, source.offset), 0)
        count[source.key, source.offset] += sum(journal.committed(record) for record in places.get(value, ()))
    groups = store._connection.view().groups
    positions = {
        str(tp): value.value.offset
        for job in (Copy, Member)
        for tp, value in (groups[job.group].offsets.items() if job.group in groups else ())
    }
    for key, log in journal.logs.items():
        for record in log if key.startswith((f"{Copy.source}-", f"{Member.source}-")) else ():
            expected = journal.committed(record) and record.offset < positions.get(key, 0)
            copied = count.pop((key, record.offset), 0)
            may_be = (0, 1) if key not in positions and world.scheduler.now >= OFFSETS_RETENTION_MS else (expected,)
            if copied not in may_be:
                yield f"not-exactly-once: {record} was copied {copied} times; the group is at {positions.get(key)}"
    for (key, offset), copied in count.items():
        if copied:
            yield f"copied-from-nowhere: {key}@{offset}"


def verified(store: Store) -> Iterator[str]:
    """Every invariant, entry by entry, and every checkpoint equals the fold from entry 1; all records are conserved."""
    for violation in store.verify(deep=True).violations:
        yield f"verify: {violation}"


def _offset(record: Written) -> int:
    return record.offset
