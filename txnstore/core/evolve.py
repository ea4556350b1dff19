"""Folding events into a state: ``evolve(state, event) -> state``.

No event of a valid chain fails here, and nothing is decided: every number is in the event. ``state.timestamp`` is the
time of the entry that holds the event. What happens to topics is folded here; the other subjects have rooms of their
own (``*_evolve``).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from txnstore.core.events import (
    Event,
    Observed,
    TopicAltered,
    TopicClosed,
    TopicCreated,
    TopicDeleted,
)
from txnstore.core.expiry_evolve import EXPIRY
from txnstore.core.group_evolve import MEMBERSHIP
from txnstore.core.log_evolve import LOGS
from txnstore.core.model import (
    CommittedOffset,
    Group,
    Map,
    Partition,
    State,
    TopicPartition,
)
from txnstore.core.offset_evolve import OFFSETS
from txnstore.core.routing import CATALOG, chain_of_partition, first_producer_id
from txnstore.core.transaction_evolve import TRANSACTIONS


def evolve(state: State, event: Event) -> State:
    """The state after ``event``."""
    return _HANDLERS[type(event)](state, event)


def first_state(chain: int = 0, chains: int = 1) -> State:
    """The state of a chain before its first entry."""
    return State(chain=chain, chains=chains, next_producer_id=first_producer_id(chain))


def begin_entry(state: State, now: int) -> State:
    """The state in which the events of the next entry are folded: its number and its time, which never goes back."""
    return replace(state, sequence=state.sequence + 1, timestamp=max(now, state.timestamp))


# Topics ---------------------------------------------------------------------------------------------------------------


def _topic_created(state: State, event: TopicCreated) -> State:
    return _with_partitions(state, event.topic.name, 0, event.topic.partitions, event)


def _topic_altered(state: State, event: TopicAltered) -> State:
    before = state.topics[event.topic.name].partitions
    return _with_partitions(state, event.topic.name, before, event.topic.partitions, event)


def _with_partitions(
    state: State,
    name: str,
    first: int,
    limit: int,
    event: TopicCreated | TopicAltered,
) -> State:
    partitions = state.partitions
    for number in range(first, limit):
        tp = TopicPartition(name, number)
        if chain_of_partition(tp, state.chains) == state.chain:
            partitions = partitions.insert(tp, Partition())
    return replace(
        state, topics=state.topics.insert(name, event.topic), partitions=partitions, deleted=state.deleted.discard(name)
    )


def _topic_closed(state: State, event: TopicClosed) -> State:
    """What is there can still be read and ended: only the catalog deletes."""
    return replace(state, deleted=state.deleted.insert(event.name, event.revision))


def _topic_deleted(state: State, event: TopicDeleted) -> State:
    """A deleted topic takes its partitions with it, also out of open transactions and groups (OFF-18, END-07).

    Of a transaction only those that this chain leads: another chain may have data of the transaction still, or already
    have the next topic of this name, in which the transaction takes part. It gets its marker, or says that it is gone.
    """
    topic = state.topics[event.name]
    gone = {TopicPartition(event.name, number) for number in range(topic.partitions)}
    led = gone & set(state.partitions)
    deleted = state.deleted if state.chain == CATALOG else state.deleted.insert(event.name, event.revision)
    partitions, dropped = state.partitions, state.dropped
    for tp in led:
        for batch in partitions[tp].batches:
            dropped = dropped.insert(batch.segment.key, state.timestamp)
        partitions = partitions.remove(tp)
    transactions = state.transactions
    for txn_id, txn in state.transactions.items():
        if txn.partitions & led:
            transactions = transactions.insert(txn_id, replace(txn, partitions=txn.partitions - led))
    groups = state.groups
    for name, group in state.groups.items():
        groups = groups.insert(name, _without_offsets(group, gone, event.topic_id))
    return replace(
        state,
        topics=state.topics.remove(event.name),
        partitions=partitions,
        transactions=transactions,
        groups=groups,
        dropped=dropped,
        deleted=deleted,
    )


def _without_offsets(group: Group, gone: set[TopicPartition], topic_id: str) -> Group:
    pending = group.pending
    for producer_id, values in group.pending.items():
        pending = pending.insert(producer_id, _without(values, gone, topic_id))
    return replace(group, offsets=_without(group.offsets, gone, topic_id), pending=pending)


def _without(
    offsets: Map[TopicPartition, CommittedOffset], gone: set[TopicPartition], topic_id: str
) -> Map[TopicPartition, CommittedOffset]:
    """Without those of the topic that is gone; a chain may hear of that after offsets of the next one of its name."""
    for tp in gone:
        known = offsets.get(tp)
        if known is not None and known.topic_id in (None, topic_id):
            offsets = offsets.remove(tp)
    return offsets


def _observed(state: State, event: Observed) -> State:
    return replace(state, seen=state.seen.insert(event.chain, max(event.sequence, state.seen.get(event.chain, 0))))


_HANDLERS: dict[type, Callable[[State, Any], State]] = {
    TopicCreated: _topic_created,
    TopicAltered: _topic_altered,
    TopicClosed: _topic_closed,
    TopicDeleted: _topic_deleted,
    Observed: _observed,
    **TRANSACTIONS,
    **LOGS,
    **OFFSETS,
    **MEMBERSHIP,
    **EXPIRY,
}
