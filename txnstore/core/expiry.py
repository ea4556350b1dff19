"""The rules of what expires: producers, transactional ids, offsets of groups; each has a clock of its own (RET-13).

Time is that of the chain. Nothing expires that an open transaction needs. When a fence of another chain's producer
expires, a late batch of a transaction that it fenced is refused for its age
(:data:`~txnstore.core.appending.MAX_ADDED_AGE_MS`); a late batch of this chain's producers is refused for the epoch
that their coordinator knows.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from txnstore.core.appending import MAX_ADDED_AGE_MS
from txnstore.core.commands import Expire, Expired
from txnstore.core.draft import Draft
from txnstore.core.events import Event
from txnstore.core.evolve import begin_entry
from txnstore.core.expiry_events import (
    FencesExpired,
    OffsetsExpired,
    ProducersExpired,
    TransactionalIdExpired,
)
from txnstore.core.group_events import GroupDeleted
from txnstore.core.groups import expired_offsets, is_dead
from txnstore.core.model import Group, Partition, State, Transaction, TxnState
from txnstore.errors import InvalidConfigError

#: What one entry tells of at most, in events; the rest follows with the next command (TMO-07).
MAX_EVENTS = 2_000
#: Kafka's ``isTransactionalIdExpirable``: nothing is open, and nothing is to be finished.
_AT_REST = {TxnState.EMPTY, TxnState.COMPLETE_COMMIT, TxnState.COMPLETE_ABORT}


def expire(draft: Draft, command: Expire) -> Expired:
    """Forget what was unused for too long; no entry if there is nothing."""
    _check(command)
    found = Expired()
    for number, event in enumerate(_due(draft.state, command)):
        if number >= MAX_EVENTS:
            return replace(found, more=True)
        draft.emit(event)
        found = _counted(found, event)
    return found


def is_due(state: State, command: Expire, now: int) -> bool:
    """Whether the command would have anything to do at the time ``now``, as far as this state tells."""
    _check(command)
    return next(_due(begin_entry(state, now), command), None) is not None


def _check(command: Expire) -> None:
    if command.producer_ms <= MAX_ADDED_AGE_MS:
        msg = (
            f"producer.id.expiration.ms must be above {MAX_ADDED_AGE_MS}, not {command.producer_ms}: a late batch of a "
            "transaction must find the epoch that fences it"
        )
        raise InvalidConfigError(msg)
    for name, value in (
        ("transactional.id.expiration.ms", command.transactional_id_ms),
        ("the retention of offsets in ms", command.offsets_ms),
    ):
        if value < 1:
            msg = f"{name} must be at least 1, not {value}"
            raise InvalidConfigError(msg)


def _due(state: State, command: Expire) -> Iterator[Event]:
    """What expires in this state, at its time."""
    now = state.timestamp
    for tp in sorted(state.partitions):
        idle = _idle_producers(state.partitions[tp], now - command.producer_ms)
        if idle:
            yield ProducersExpired(topic=tp.topic, partition=tp.partition, producer_ids=idle)
    fences = _idle_fences(state, now - command.producer_ms)
    if fences:
        yield FencesExpired(producer_ids=fences)
    yield from _due_ids(state, now - command.transactional_id_ms)
    for name in sorted(state.groups):
        yield from _due_in_group(name, state.groups[name], now, command)


def _idle_producers(partition: Partition, limit: int) -> list[int]:
    """Those whose last batch or marker is not after ``limit`` (PST-06, PST-08) and which have nothing open (PST-07)."""
    return sorted(
        producer_id
        for producer_id, producer in partition.producers.items()
        if producer.last_timestamp <= limit and producer_id not in partition.open_txns
    )


def _idle_fences(state: State, limit: int) -> list[int]:
    """Producers of other chains that were last heard of at ``limit`` or before, and have nothing open here.

    The fence of a producer with open data or pending offsets tells the marker that they wait for from older ones.
    """
    idle = {producer_id for producer_id, fence in state.fences.items() if fence.at <= limit}
    for partition in state.partitions.values() if idle else ():
        idle.difference_update(partition.open_txns)
    for group in state.groups.values() if idle else ():
        idle.difference_update(group.pending)
    return sorted(idle)


def _due_ids(state: State, limit: int) -> Iterator[TransactionalIdExpired]:
    names = [name for name, txn in sorted(state.transactions.items(), key=_by_name) if _is_idle(txn, limit)]
    if not names:
        return
    owned: dict[str, list[int]] = {name: [] for name in names}
    for producer_id, name in state.transactional_ids.items():
        if name in owned:
            owned[name].append(producer_id)
    for name in names:
        yield TransactionalIdExpired(transactional_id=name, producer_ids=sorted(owned[name]))


def _is_idle(txn: Transaction, limit: int) -> bool:
    """Nothing is under way since ``limit`` (TMO-07). An id that knows versions of a job stays: they say what is done.

    A job that comes back after years must not do its last version again.
    """
    return txn.state in _AT_REST and txn.updated_at <= limit and not txn.versions


def _due_in_group(name: str, group: Group, now: int, command: Expire) -> Iterator[Event]:
    """Offsets of a group without live members (OFF-16), then the group."""
    offsets = expired_offsets(group, now, command.offsets_ms)
    if offsets:
        yield OffsetsExpired(group=name, partitions=offsets)
    left = len(group.offsets) - len(offsets)
    if not left and not group.pending and is_dead(replace(group, offsets=type(group.offsets)()), now):
        yield GroupDeleted(group=name)


def _counted(found: Expired, event: Event) -> Expired:
    match event:
        case ProducersExpired() | FencesExpired():
            return replace(found, producers=found.producers + len(event.producer_ids))
        case TransactionalIdExpired():
            return replace(found, transactional_ids=(*found.transactional_ids, event.transactional_id))
        case OffsetsExpired():
            return replace(found, offsets=found.offsets + len(event.partitions))
        case GroupDeleted():
            return replace(found, groups=(*found.groups, event.group))
        case _:  # pragma: no cover - there are no others
            return found


def _by_name(item: tuple[str, object]) -> str:
    return item[0]
