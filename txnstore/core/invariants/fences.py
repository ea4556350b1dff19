"""Invariants of fences and of deleted topics: of a state, of a transition, and across chains."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from txnstore.core.invariants.common import changed_items, highest_epoch
from txnstore.core.log.appending import MAX_ADDED_AGE_MS
from txnstore.core.log.model import Partition
from txnstore.core.model import sorted_items
from txnstore.core.routing import CATALOG
from txnstore.core.state import State, is_foreign
from txnstore.core.view import View


def fences_are_of_other_chains(state: State) -> Iterator[str]:
    """A fence is of a producer that another chain coordinates, and has an epoch."""
    for producer_id, fence in sorted_items(state.fences):
        if not is_foreign(state, producer_id) or producer_id < 0:
            yield f"there is a fence of producer id {producer_id}, which no other chain coordinates"
        if fence.epoch < 0 or fence.at > state.timestamp:
            yield f"the fence of producer id {producer_id} has epoch {fence.epoch} and time {fence.at}"


def open_data_has_a_fence(state: State) -> Iterator[str]:
    """Open data and pending offsets have a fence, which distinguishes their marker from older ones (END-08)."""
    for tp in sorted(state.partitions):
        partition = state.partitions[tp]
        for producer_id in sorted(partition.open_txns):
            fence = state.fences.get(producer_id)
            producer = partition.producers.get(producer_id)
            if is_foreign(state, producer_id) and (
                fence is None or (producer is not None and producer.epoch > fence.epoch)
            ):
                yield f"{tp}: producer id {producer_id} has open data above its fence {fence}"
    for name in sorted(state.groups):
        for producer_id in sorted(state.groups[name].pending):
            if is_foreign(state, producer_id) and producer_id not in state.fences:
                yield f"group {name!r}: producer id {producer_id} has pending offsets, but no fence"


def fences_never_go_back(before: State, after: State) -> Iterator[str]:
    """A fence stays until late batches are refused for their age (ADD-07); a prepared transaction stays closed."""
    for producer_id, old, new in changed_items(before.fences, after.fences):
        if new is None:
            if after.timestamp - old.at <= MAX_ADDED_AGE_MS:
                yield f"the fence {old} of producer id {producer_id} expired too early, at {after.timestamp}"
        elif new.epoch < old.epoch or (new.epoch == old.epoch and old.prepared and not new.prepared):
            yield f"the fence of producer id {producer_id} went back from {old} to {new}"


def nothing_below_a_fence(before: State, after: State) -> Iterator[str]:
    """No batch below a fence is appended, also to a topic that was created again (FEN-02, TPC-03)."""
    for tp, new, old in changed_items(after.partitions, before.partitions):
        if old is None or not _same_topic(before, after, tp.topic):
            old = Partition()
        for batch in old.batches.changes(new.batches)[1]:
            fence = before.fences.get(batch.producer_id)
            if fence is not None and (batch.epoch < fence.epoch or (batch.epoch == fence.epoch and fence.prepared)):
                yield f"{tp}: a batch of producer id {batch.producer_id}, epoch {batch.epoch} came after {fence}"
    for name in sorted(after.groups):
        for producer_id, pending in sorted(after.groups[name].pending.items()):
            fence = before.fences.get(producer_id)
            is_new = any(value.commit_position >= before.next_commit_position for value in pending.values())
            if is_new and fence is not None and fence.prepared and fence.epoch == after.fences[producer_id].epoch:
                yield f"group {name!r}: offsets of producer id {producer_id} came after its transaction was prepared"


def closed_topics_take_nothing(before: State, after: State) -> Iterator[str]:
    """Nothing is appended to a topic that is being deleted: the records would be acknowledged and lost."""
    for tp, old, new in changed_items(before.partitions, after.partitions):
        topic = before.topics[tp.topic]
        if new is None or not _same_topic(before, after, tp.topic):
            continue
        if before.is_closed(topic) and after.topics[tp.topic].revision == topic.revision:
            end = old.high_watermark
            if any(batch.base_offset >= end for batch in new.batches.overlapping(end, new.high_watermark)):
                yield f"{tp}: records were appended from offset {end} on, though its topic is being deleted"


def fences_known_to_coordinator(view: View) -> Iterator[str]:
    """No fence is above the epoch that the coordinator granted: the chain would refuse the producer's own batches."""
    for state in view.states:
        for producer_id, fence in sorted_items(state.fences):
            txn = view.owner(producer_id)
            if txn is not None and fence.epoch > highest_epoch(txn):
                yield (
                    f"chain {state.chain}: the fence of producer id {producer_id} is at epoch {fence.epoch}, "
                    f"its coordinator at {txn.epoch}"
                )


def open_data_is_of_the_topic_of_its_transaction(view: View) -> Iterator[str]:
    """Open data is in a topic whose id its transaction names, not in a new topic of that name (END-07)."""
    for state in view.states:
        for tp in sorted(state.partitions):
            for producer_id in sorted(state.partitions[tp].open_txns):
                if not is_foreign(state, producer_id):
                    continue  # A transaction has the ids of its topics in other chains only.
                txn = view.owner(producer_id)
                topic_ids = txn.topic_ids.get(tp.topic) if txn is not None else None
                if topic_ids and state.topics[tp.topic].topic_id not in topic_ids:
                    yield f"{tp}: producer id {producer_id} has open data in another topic than {', '.join(topic_ids)}"


def deleted_topics_are_closed(view: View) -> Iterator[str]:
    """The catalog deletes a topic when every chain that leads a partition of it takes no more records.

    A chain that leads none may have a copy, too: it was asked for a partition that an earlier topic of the name had.
    """
    for state in view.states:
        for name in sorted({tp.topic for tp in state.partitions}) if state.chain != CATALOG else ():
            copy, topic = state.topics[name], view.topics.get(name)
            if (topic is None or topic.topic_id != copy.topic_id) and not state.is_closed(copy):
                yield f"chain {state.chain} takes records of topic {name} of id {copy.topic_id}, which is deleted"


def _same_topic(before: State, after: State, name: str) -> bool:
    old, new = before.topics.get(name), after.topics.get(name)
    return old is not None and new is not None and old.topic_id == new.topic_id


FENCE_INVARIANTS: tuple[Callable[[State], Iterator[str]], ...] = (
    fences_are_of_other_chains,
    open_data_has_a_fence,
)

FENCE_STEPS: tuple[Callable[[State, State], Iterator[str]], ...] = (
    fences_never_go_back,
    nothing_below_a_fence,
    closed_topics_take_nothing,
)

FENCE_ACROSS: tuple[Callable[[View], Iterator[str]], ...] = (
    fences_known_to_coordinator,
    open_data_is_of_the_topic_of_its_transaction,
    deleted_topics_are_closed,
)
