"""Expiration of producers, transactional ids and group offsets: commands, events, rules, folding (RET-13).

Times are those of the chain's entries, in ms; the storage's clock tells how old they are. Nothing that an open
transaction needs expires. Until a decided transaction is completed, its fences are kept, too: they show that its
markers are written, and without them a completion would write the markers again. The producer state of a
partition holds the epoch that fences late batches. After it has expired, a late batch is still refused: one of another
chain's transaction for its age (:data:`~txnstore.core.log.appending.MAX_ADDED_AGE_MS`), one of this chain's transaction
by the epoch in the transaction table.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import islice
from typing import Literal, TypeVar

from txnstore.core.authorization.rights import maintains
from txnstore.core.declaration import command
from txnstore.core.groups.events import GroupDeleted
from txnstore.core.groups.model import Group
from txnstore.core.groups.offsets import expired_offsets, is_dead
from txnstore.core.log.appending import MAX_ADDED_AGE_MS
from txnstore.core.log.model import Partition
from txnstore.core.model import Command, Map, TopicPartition, items_of, sorted_items, value_class
from txnstore.core.state import Draft, State, begin_entry, fold
from txnstore.core.transactions.machine import may_enter
from txnstore.core.transactions.model import DECIDED, Transaction, TxnState
from txnstore.errors import InvalidConfigError


@value_class()
class Expire(Command):
    """Remove state that was not used for longer than its limit. Answered with :class:`Expired`.

    Attributes:
        producer_ms: Kafka's ``producer.id.expiration.ms``.
        transactional_id_ms: Kafka's ``transactional.id.expiration.ms``.
        offsets_ms: Kafka's ``offsets.retention.minutes``, in ms.
        oldest: For each of these limits the time of the chain up to which its entries are that old by the storage's
            clock: what was used later does not expire, whatever the clocks of the writers. None: not measured; only for
            tests of the rules and to find out whether anything is due.
        decided: The producer ids of transactions of all chains that are decided and not completed.
    """

    producer_ms: int = 86_400_000
    transactional_id_ms: int = 7 * 86_400_000
    offsets_ms: int = 7 * 86_400_000
    oldest: tuple[int, int, int] | None = None
    decided: tuple[int, ...] = ()

    def limits(self, now: int) -> tuple[int, int, int]:
        """Return the times of the chain up to which unused state expires, at the time ``now`` (ms) of the chain.

        Producers and fences must also be old by the times of the chain, because these decide which late batch is
        refused for its age (ADD-07).
        """
        producers, ids, offsets = now - self.producer_ms, now - self.transactional_id_ms, now - self.offsets_ms
        return (producers, ids, offsets) if self.oldest is None else (min(producers, self.oldest[0]), *self.oldest[1:])


@value_class()
class Expired:
    """The state that one entry has removed.

    Attributes:
        producers: The number of producer states and fences; a producer counts once per partition and once as a fence.
        offsets: The number of committed offsets.
        more: More has expired than one entry takes (:data:`MAX_EVENTS`): repeat the command.
    """

    producers: int = 0
    transactional_ids: tuple[str, ...] = ()
    offsets: int = 0
    groups: tuple[str, ...] = ()
    more: bool = False


@value_class(kw_only=True)
class ProducersExpired:
    """The states of these producers (epoch, window) were removed from a partition."""

    type: Literal["ProducersExpired"] = "ProducersExpired"
    topic: str
    partition: int
    producer_ids: list[int]


@value_class(kw_only=True)
class FencesExpired:
    """The fences of these producers of other chains were removed."""

    type: Literal["FencesExpired"] = "FencesExpired"
    producer_ids: list[int]


@value_class(kw_only=True)
class TransactionalIdExpired:
    """A transactional id was removed with the mapping of its producer ids, current and earlier."""

    type: Literal["TransactionalIdExpired"] = "TransactionalIdExpired"
    transactional_id: str
    producer_ids: list[int]


@value_class(kw_only=True)
class OffsetsExpired:
    """The committed offsets of these partitions were removed from a group."""

    type: Literal["OffsetsExpired"] = "OffsetsExpired"
    group: str
    partitions: list[TopicPartition]


#: The events of an expiration.
Expiration = ProducersExpired | FencesExpired | TransactionalIdExpired | OffsetsExpired | GroupDeleted

#: The most events of one expiration entry; the next command expires the rest (TMO-07).
MAX_EVENTS = 2_000


@command(Expire, route=None, right=maintains)
def expire(draft: Draft, command: Expire) -> Expired:
    """Remove expired state, at most :data:`MAX_EVENTS` events per entry; emit nothing if nothing is expired."""
    _check_limits(command)
    candidates = list(islice(_expired_events(draft.state, command), MAX_EVENTS + 1))
    events = candidates[:MAX_EVENTS]
    draft.emit(*events)
    return _count_removed(events, has_more=len(candidates) > MAX_EVENTS)


def preview(state: State, command: Expire, now: int) -> Expired:
    """Return what the command would remove in entries at the time ``now`` (ms) after this state."""
    _check_limits(command)
    return _count_removed(_expired_events(begin_entry(state, now), command))


def is_due(state: State, command: Expire, now: int) -> bool:
    """Whether the command would emit events in an entry at the time ``now`` (ms) after this state."""
    _check_limits(command)
    return next(_expired_events(begin_entry(state, now), command), None) is not None


def decided_producers(states: Iterable[State]) -> tuple[int, ...]:
    """Return the producer ids of decided transactions that are not completed (:attr:`Expire.decided`).

    Args:
        states: The chains in a closed cut: the decision is in it if one of its markers is.
    """
    return tuple(
        txn.producer_id for state in states for _, txn in sorted_items(state.transactions) if txn.state in DECIDED
    )


def _check_limits(command: Expire) -> None:
    """Refuse limits that would remove state that a late request may still need."""
    if command.producer_ms <= MAX_ADDED_AGE_MS:
        msg = (
            f"producer.id.expiration.ms must be above {MAX_ADDED_AGE_MS}, not {command.producer_ms}: the epoch of a "
            "producer must be kept until its late batches are refused for their age"
        )
        raise InvalidConfigError(msg)
    for name, value in (
        ("transactional.id.expiration.ms", command.transactional_id_ms),
        ("the retention of offsets in ms", command.offsets_ms),
    ):
        if value < 1:
            msg = f"{name} must be at least 1, not {value}"
            raise InvalidConfigError(msg)


def _expired_events(state: State, command: Expire) -> Iterator[Expiration]:
    """Yield the events of what has expired at the time of the state."""
    producers, ids, offsets = command.limits(state.timestamp)
    idle_producers = {tp: _idle_producers(partition, producers) for tp, partition in items_of(state.partitions)}
    for tp in sorted(tp for tp, producer_ids in idle_producers.items() if producer_ids):
        yield ProducersExpired(topic=tp.topic, partition=tp.partition, producer_ids=idle_producers[tp])
    fences = _idle_fences(state, producers, command.decided)
    if fences:
        yield FencesExpired(producer_ids=fences)
    yield from _expired_ids(state, ids)
    for name, group in sorted_items(state.groups):
        yield from _expired_in_group(name, group, offsets, command)


def _idle_producers(partition: Partition, limit: int) -> list[int]:
    """Return producers without open data (PST-07), and without a batch or marker after ``limit`` (PST-06, PST-08)."""
    return sorted(
        producer_id
        for producer_id, producer in items_of(partition.producers)
        if producer.last_timestamp <= limit and producer_id not in partition.open_txns
    )


def _idle_fences(state: State, limit: int, decided_ids: Iterable[int]) -> list[int]:
    """Return the producers of other chains whose fences here were last raised or confirmed by ``limit`` and may go.

    While a producer has open data or pending offsets, its fence distinguishes the marker of that transaction from late
    markers of earlier ones, so it is kept. That of a decided transaction, whatever chain has decided it, shows a
    repeated completion that its markers are written.

    Args:
        decided_ids: The producers of decided transactions that are not completed, in all chains.
    """
    idle_ids = {producer_id for producer_id, fence in items_of(state.fences) if fence.at <= limit}
    idle_ids.difference_update(decided_ids)
    if not idle_ids:
        return []  # Most often, and without a look at each partition.
    for _, partition in items_of(state.partitions):
        idle_ids.difference_update(partition.open_txns)
    for _, group in items_of(state.groups):
        idle_ids.difference_update(group.pending)
    return sorted(idle_ids)


def _expired_ids(state: State, limit: int) -> Iterator[TransactionalIdExpired]:
    """Yield an event for each idle transactional id, with all producer ids that it has had."""
    names = sorted(name for name, txn in items_of(state.transactions) if _is_idle(txn, limit))
    if not names:
        return
    ids_by_name: dict[str, list[int]] = {name: [] for name in names}
    for producer_id, name in items_of(state.transactional_ids):
        if name in ids_by_name:
            ids_by_name[name].append(producer_id)
    for name in names:
        yield TransactionalIdExpired(transactional_id=name, producer_ids=sorted(ids_by_name[name]))


def _is_idle(txn: Transaction, limit: int) -> bool:
    """Whether a transactional id expires: no open transaction, and unchanged since ``limit`` (TMO-07).

    An id with versions of an idempotent job never expires: without them the job would commit its last version again.
    """
    return may_enter(txn, TxnState.DEAD) and txn.updated_at <= limit and not txn.versions


def _expired_in_group(name: str, group: Group, limit: int, command: Expire) -> Iterator[Expiration]:
    """Yield the expired offsets of a group, and the group if nothing of it remains (OFF-16).

    A member whose lease had expired at ``limit`` holds up neither. A later one does, also if its lease has ended since:
    how old an entry after ``limit`` is was not measured.
    """
    offsets = expired_offsets(group, limit + command.offsets_ms, command.offsets_ms)
    if offsets:
        yield OffsetsExpired(group=name, partitions=offsets)
    remaining_count = len(group.offsets) - len(offsets)
    if not remaining_count and not group.pending and is_dead(replace(group, offsets=type(group.offsets)()), limit):
        yield GroupDeleted(group=name)


def _count_removed(events: Iterable[Expiration], *, has_more: bool = False) -> Expired:
    """Count the state that these events remove."""
    producers, offsets, ids, groups = 0, 0, list[str](), list[str]()
    for event in events:
        match event:
            case ProducersExpired() | FencesExpired():
                producers += len(event.producer_ids)
            case TransactionalIdExpired():
                ids.append(event.transactional_id)
            case OffsetsExpired():
                offsets += len(event.partitions)
            case GroupDeleted():
                groups.append(event.group)
    return Expired(producers, tuple(ids), offsets, tuple(groups), has_more)


K = TypeVar("K")

V = TypeVar("V")


@fold(ProducersExpired)
def _producers_expired(state: State, event: ProducersExpired) -> State:
    """Remove the producers of a partition, with the windows of their sessions."""
    tp = TopicPartition(event.topic, event.partition)
    partition = state.partitions[tp]
    windows = partition.session_windows
    for producer_id in event.producer_ids:
        windows = windows.discard(producer_id)
    partition = replace(
        partition, producers=_without_keys(partition.producers, event.producer_ids), session_windows=windows
    )
    return replace(state, partitions=state.partitions.insert(tp, partition))


@fold(FencesExpired)
def _fences_expired(state: State, event: FencesExpired) -> State:
    return replace(state, fences=_without_keys(state.fences, event.producer_ids))


@fold(TransactionalIdExpired)
def _transactional_id_expired(state: State, event: TransactionalIdExpired) -> State:
    return replace(
        state,
        transactions=state.transactions.remove(event.transactional_id),
        transactional_ids=_without_keys(state.transactional_ids, event.producer_ids),
    )


@fold(OffsetsExpired)
def _offsets_expired(state: State, event: OffsetsExpired) -> State:
    group = state.groups[event.group]
    group = replace(group, offsets=_without_keys(group.offsets, event.partitions))
    return replace(state, groups=state.groups.insert(event.group, group))


def _without_keys(values: Map[K, V], removed_keys: Iterable[K]) -> Map[K, V]:
    for key in removed_keys:
        values = values.remove(key)
    return values
