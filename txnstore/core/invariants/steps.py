"""Invariants of a step: what one entry may change.

Offsets stay, epochs and positions only grow, and a decision stays. A topic that was deleted and created again is
another topic.
"""

from __future__ import annotations

from collections.abc import Iterator

from txnstore.core.invariants.common import by_id, by_name, offsets_of
from txnstore.core.log.model import AbortedTxn, Partition
from txnstore.core.model import NO_PRODUCER, TopicPartition
from txnstore.core.state import State


def ends_never_go_back(before: State, after: State) -> Iterator[str]:
    """HW, LSO and log start only grow (LSO-05): a reader that was at one of them never has to turn round."""
    for tp, old, new in _logs(before, after):
        for name in ("high_watermark", "last_stable_offset", "log_start"):
            was, is_now = getattr(old, name), getattr(new, name)
            if is_now < was:
                yield f"{tp}: {name} went back from {was} to {is_now}"


def offsets_never_renumbered(before: State, after: State) -> Iterator[str]:
    """A batch keeps its offsets (API-13). Only below the LSO may a compaction put a merged one in its place."""
    for tp, old, new in _logs(before, after):
        for batch in old.batches.changes(new.batches)[1]:
            if batch.base_offset >= old.high_watermark:
                continue
            replaced = old.batches.overlapping(batch.base_offset, batch.limit)
            if batch.records > sum(other.records for other in replaced):
                yield f"{tp}: the batch {offsets_of(batch)} has more records than there were"
            if batch.limit > new.last_stable_offset or batch.producer_id != NO_PRODUCER or batch.transactional:
                yield f"{tp}: the batch {offsets_of(batch)} is not one that a compaction may have made"


def undecided_data_is_kept(before: State, after: State) -> Iterator[str]:
    """Nothing at or above the LSO is removed (invariant 9), but with its whole topic."""
    for tp, old, new in _logs(before, after):
        stable = max(old.last_stable_offset, new.last_stable_offset)
        for batch in old.batches.changes(new.batches)[0]:
            if batch.limit > stable:
                yield f"{tp}: the batch {offsets_of(batch)} is gone from above the last stable offset {stable}"


def decided_stays_decided(before: State, after: State) -> Iterator[str]:
    """What was stable as committed is never aborted later, and an aborted transaction stays so (END-01).

    Only with its last batch may it go from the index of what is aborted.
    """
    for tp, old, new in _logs(before, after):
        # The index only grows at its end, and may be long: what both begin with is not hashed at each step.
        shared = len(old.aborted) if new.aborted[: len(old.aborted)] == old.aborted else 0
        known, kept = set(old.aborted[shared:]), set(new.aborted[shared:])
        for entry in old.aborted[shared:]:
            if entry not in kept and entry.last_offset >= new.log_start and _has_data(new, entry):
                yield f"{tp}: the transaction {entry.first_offset}-{entry.last_offset} is not aborted any more"
        for entry in new.aborted[shared:]:
            if entry not in known and entry.first_offset < old.last_stable_offset:
                yield f"{tp}: the stable offsets {entry.first_offset}-{entry.last_offset} were aborted afterwards"


def segments_go_through_dropped(before: State, after: State) -> Iterator[str]:
    """A segment that is not needed any more is noted for the vacuum, and never comes back."""
    gone, fresh = set[str](), set[str]()
    for tp in sorted({*before.partitions, *after.partitions}):
        old, new = before.partitions.get(tp, Partition()), after.partitions.get(tp, Partition())
        if old is not new:
            removed, added = old.batches.changes(new.batches)
            gone |= {batch.segment.key for batch in removed}
            fresh |= {batch.segment.key for batch in added}
    for key in sorted(gone - fresh):
        if key not in after.dropped:
            yield f"{key} is not needed any more, but nobody will delete it"
    for key in sorted(fresh):
        if key in before.dropped:
            yield f"{key} was dropped, and is needed again: it may be deleted already"


def epochs_never_go_back(before: State, after: State) -> Iterator[str]:
    """Once fenced, always fenced (invariant 6): a (producer id, epoch) that was left is never current again."""
    for name, old in sorted(before.transactions.items(), key=by_name):
        new = after.transactions.get(name)
        if new is None:
            continue
        if new.producer_id == old.producer_id and new.epoch < old.epoch:
            yield f"transactional id {name!r}: the epoch went back from {old.epoch} to {new.epoch}"
        reserved = old.outcome is not None and new.producer_id == old.next_producer_id
        if new.producer_id != old.producer_id and new.producer_id < before.next_producer_id and not reserved:
            yield f"transactional id {name!r}: producer id {new.producer_id} is not a new one"
    for tp, log, later in _logs(before, after):
        for producer_id, producer in sorted(log.producers.items(), key=by_id):
            seen = later.producers.get(producer_id)
            if seen is not None and seen.epoch < producer.epoch:
                yield f"{tp}: the epoch of producer id {producer_id} went back from {producer.epoch} to {seen.epoch}"


def decisions_never_change(before: State, after: State) -> Iterator[str]:
    """A transaction is prepared once (invariant 7): what is decided is what it completes as."""
    for name, old in sorted(before.transactions.items(), key=by_name):
        new = after.transactions.get(name)
        if old.outcome is None or new is None or new is old:
            continue
        same = new.outcome is old.outcome and (new.producer_id, new.epoch) == (old.producer_id, old.epoch)
        followed = (new.producer_id, new.epoch) == (old.next_producer_id, old.next_epoch)
        if not same and not followed:
            yield f"transactional id {name!r} was {old.state.name}, and is {new.state.name} at epoch {new.epoch}"


def cut_never_goes_back(before: State, after: State) -> Iterator[str]:
    """What this chain rests on in others only grows."""
    for chain, sequence in sorted(before.seen.items(), key=by_id):
        if after.seen.get(chain, 0) < sequence:
            yield f"entry {sequence} of chain {chain} was seen, and is not any more"


def producer_ids_never_move(before: State, after: State) -> Iterator[str]:
    """A producer id belongs to one transactional id for ever (FEN-05)."""
    for producer_id, name in sorted(before.transactional_ids.items(), key=by_id):
        now = after.transactional_ids.get(producer_id, name)
        if now != name:
            yield f"producer id {producer_id} moved from transactional id {name!r} to {now!r}"


def counters_never_go_back(before: State, after: State) -> Iterator[str]:
    """Entries, time, producer ids and the order of offset commits only grow."""
    for name in ("sequence", "timestamp", "next_producer_id", "next_offset_position"):
        was, is_now = getattr(before, name), getattr(after, name)
        if is_now < was:
            yield f"{name} went back from {was} to {is_now}"


def versions_never_go_back(before: State, after: State) -> Iterator[str]:
    """A version of a job that is committed stays so: else the job would be done twice."""
    for name, old in sorted(before.transactions.items(), key=by_name):
        new = after.transactions.get(name)
        for scope, version in sorted(old.versions.items(), key=by_name) if new is not None else ():
            now = new.versions.get(scope, -1) if new is not None else -1
            if now < version:
                yield f"transactional id {name!r}: version {version} of {scope!r} became {now}"


def group_offsets_by_position(before: State, after: State) -> Iterator[str]:
    """The later commit in the log wins (OFF-11): a group's offset is never replaced by an earlier one."""
    for name, old in sorted(before.groups.items(), key=by_name):
        new = after.groups.get(name)
        for tp, value in old.offsets.items():
            now = new.offsets.get(tp) if new is not None else None
            if now is not None and now.position < value.position:
                yield f"group {name!r}: the offset of {tp} went back from position {value.position} to {now.position}"


def _logs(before: State, after: State) -> Iterator[tuple[TopicPartition, Partition, Partition]]:
    """The logs that are in both states; a topic that was created again is another one."""
    for tp in sorted(before.partitions):
        old, new = before.topics.get(tp.topic), after.topics.get(tp.topic)
        same = old is not None and new is not None and old.topic_id == new.topic_id
        if same and tp in after.partitions and after.partitions[tp] is not before.partitions[tp]:
            yield tp, before.partitions[tp], after.partitions[tp]


def _has_data(partition: Partition, entry: AbortedTxn) -> bool:
    inside = partition.batches.overlapping(entry.first_offset, entry.last_offset)
    return any(batch.producer_id == entry.producer_id for batch in inside)
