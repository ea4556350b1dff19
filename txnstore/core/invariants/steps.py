"""Invariants of a transition, checked for each entry.

Offsets and decisions do not change; epochs and positions only grow. A topic that was deleted and created again is
another topic.
"""

from __future__ import annotations

from collections.abc import Iterator

from txnstore.core.invariants.common import changed_items, offsets_of
from txnstore.core.log.model import AbortedTxn, Batch, Partition, Segment
from txnstore.core.log.released import released_at
from txnstore.core.log.visibility import aborted_batches, is_open
from txnstore.core.model import NO_PRODUCER, TopicPartition
from txnstore.core.state import State
from txnstore.core.transactions.machine import may_enter
from txnstore.core.transactions.model import DECIDED, TxnState


def positions_never_go_back(before: State, after: State) -> Iterator[str]:
    """High watermark, LSO, log start, cleaner checkpoint and revision only grow (LSO-05, CMP-21)."""
    for tp, old, new in _changed_logs(before, after):
        for name in ("high_watermark", "last_stable_offset", "log_start", "clean_until", "revision"):
            was, is_now = getattr(old, name), getattr(new, name)
            if is_now < was:
                yield f"{tp}: {name} went back from {was} to {is_now}"


def offsets_never_renumbered(before: State, after: State) -> Iterator[str]:
    """A batch keeps its offsets (API-13); a compaction may replace it by a merged one."""
    for tp, old, new in _changed_logs(before, after):
        for batch in old.batches.changes(new.batches)[1]:
            if batch.base_offset >= old.high_watermark:
                continue
            replaced_batches = old.batches.overlapping(batch.base_offset, batch.limit)
            if batch.records > sum(other.records for other in replaced_batches):
                yield f"{tp}: the batch {offsets_of(batch)} has more records than the batches that it replaces"
            if batch.producer_id != NO_PRODUCER or batch.transactional:
                yield f"{tp}: the batch {offsets_of(batch)} is not a valid merged batch"


def revisions_follow_replacements(before: State, after: State) -> Iterator[str]:
    """What replaces or deletes batches, or moves the log start, gives the partition a new revision."""
    for tp, old, new in _changed_logs(before, after):
        has_replaced = new.log_start != old.log_start or old.batches.changes(new.batches)[0]
        if has_replaced and new.revision <= old.revision:
            yield f"{tp}: batches were replaced or deleted at revision {old.revision}, and it is {new.revision}"


def undecided_data_is_kept(before: State, after: State) -> Iterator[str]:
    """Nothing at or above the LSO is deleted, and no batch of an open transaction is replaced (CMP-03, RET-01)."""
    for tp, old, new in _changed_logs(before, after):
        stable = max(old.last_stable_offset, min(new.open_txns.values(), default=new.high_watermark))
        for batch in old.batches.changes(new.batches)[0]:
            is_undecided = is_open(old, batch) and is_open(new, batch)
            if batch.limit > stable and (is_undecided or batch.limit <= new.log_start):
                yield f"{tp}: the batch {offsets_of(batch)} above the last stable offset {stable} was removed"


def deletion_keeps_what_it_cuts(before: State, after: State) -> Iterator[str]:
    """A batch that a new log start cuts stays, or what a compaction made of it: its last records can be read."""
    for tp, old, new in _changed_logs(before, after):
        if new.log_start == old.log_start:
            continue
        is_aborted = aborted_batches(old)
        for batch in old.batches.overlapping(new.log_start, new.log_start + 1):
            remaining_batches = new.batches.overlapping(batch.base_offset, batch.limit)
            if next(remaining_batches, None) is None and not is_aborted(batch):
                yield f"{tp}: the batch {offsets_of(batch)}, which the log start {new.log_start} cuts, was removed"


def decided_stays_decided(before: State, after: State) -> Iterator[str]:
    """Stable committed records are never aborted later, and an aborted transaction stays aborted (END-01).

    An aborted transaction may leave the aborted index only with its last batch.
    """
    for tp, old, new in _changed_logs(before, after):
        # The index may be long and mostly grows at its end: the common beginning is not hashed for each entry.
        shared_count = len(old.aborted) if new.aborted[: len(old.aborted)] == old.aborted else 0
        before_entries, after_entries = set(old.aborted[shared_count:]), set(new.aborted[shared_count:])
        for entry in old.aborted[shared_count:]:
            if entry not in after_entries and entry.last_offset >= new.log_start and _has_data(new, entry):
                yield f"{tp}: the transaction {entry.first_offset}-{entry.last_offset} left the aborted index with data"
        for entry in new.aborted[shared_count:]:
            if entry not in before_entries and entry.first_offset < old.last_stable_offset:
                yield f"{tp}: the offsets {entry.first_offset}-{entry.last_offset} were aborted after they were stable"


def segments_go_through_dropped(before: State, after: State) -> Iterator[str]:
    """The object of a removed batch is dropped or released, and a dropped object is never named again."""
    left_batches, new_segments = dict[str, Batch](), dict[str, Segment]()
    logs = [(old, new or Partition()) for _, old, new in changed_items(before.partitions, after.partitions)]
    logs += [(Partition(), new) for _, new, old in changed_items(after.partitions, before.partitions) if old is None]
    for old, new in logs:
        removed_batches, added_batches = old.batches.changes(new.batches)
        left_batches |= {batch.segment.key: batch for batch in removed_batches}
        new_segments |= {batch.segment.key: batch.segment for batch in added_batches}
    for key in sorted(left_batches):
        segment = left_batches[key].segment
        if left_batches[key].alone and not segment.is_range:
            is_remembered = segment.object in after.dropped or key in new_segments
        else:
            is_remembered = released_at(after, segment) == after.timestamp
        if not is_remembered:
            yield f"a batch of {key} was removed, but that is neither dropped nor released: no vacuum will delete it"
    for key in sorted(new_segments):
        if new_segments[key].object in before.dropped:
            yield f"a batch names {key}, which was dropped: it may be deleted"


def epochs_never_go_back(before: State, after: State) -> Iterator[str]:
    """A fenced (producer id, epoch) is never current again (FEN-01)."""
    for name, old, new in changed_items(before.transactions, after.transactions):
        if new is None:
            continue
        if new.producer_id == old.producer_id and new.epoch < old.epoch:
            yield f"transactional id {name!r}: the epoch went back from {old.epoch} to {new.epoch}"
        was_reserved = old.state in DECIDED and new.producer_id == old.next_producer_id
        if new.producer_id != old.producer_id and new.producer_id < before.next_producer_id and not was_reserved:
            yield f"transactional id {name!r}: producer id {new.producer_id} was granted before"
    for tp, log, later_log in _changed_logs(before, after):
        for producer_id, producer, later_producer in changed_items(log.producers, later_log.producers):
            if later_producer is not None and later_producer.epoch < producer.epoch:
                yield (
                    f"{tp}: the epoch of producer id {producer_id} went back from {producer.epoch} to "
                    f"{later_producer.epoch}"
                )


def decisions_never_change(before: State, after: State) -> Iterator[str]:
    """A transaction is decided once, and completes with the decided outcome (END-01).

    Each change of a state is in the table of transitions (STM-02); the removal of a transactional id enters DEAD.
    """
    for name, old, new in changed_items(before.transactions, after.transactions):
        state = TxnState.DEAD if new is None else new.state
        if state is not old.state and not may_enter(old, state):
            yield f"transactional id {name!r} changed from {old.state.name} to {state.name}, which is no transition"
            continue
        if old.state not in DECIDED or new is None:
            continue
        is_same = new.state is old.state and (new.producer_id, new.epoch) == (old.producer_id, old.epoch)
        has_followed = (new.producer_id, new.epoch) == (old.next_producer_id, old.next_epoch)
        if not is_same and not has_followed:
            yield f"transactional id {name!r} changed from {old.state.name} to {new.state.name} at epoch {new.epoch}"


def cut_never_goes_back(before: State, after: State) -> Iterator[str]:
    """The entries of other chains that this chain follows from (``State.seen``) only grow."""
    for chain, sequence, now in changed_items(before.seen, after.seen):
        if (now or 0) < sequence:
            yield f"the last seen entry of chain {chain} went back from {sequence} to {now or 0}"


def producer_ids_never_move(before: State, after: State) -> Iterator[str]:
    """A producer id never moves to another transactional id (FEN-05)."""
    for producer_id, name, now in changed_items(before.transactional_ids, after.transactional_ids):
        if now is not None and now != name:
            yield f"producer id {producer_id} moved from transactional id {name!r} to {now!r}"


def counters_never_go_back(before: State, after: State) -> Iterator[str]:
    """The sequence, the time, the next producer id, position of offset commits and journal watermark only grow."""
    for name in ("sequence", "timestamp", "next_producer_id", "next_commit_position", "journal_watermark"):
        was, is_now = getattr(before, name), getattr(after, name)
        if is_now < was:
            yield f"{name} went back from {was} to {is_now}"


def versions_never_go_back(before: State, after: State) -> Iterator[str]:
    """The committed version of a job never decreases: the job would commit it again."""
    for name, old, new in changed_items(before.transactions, after.transactions):
        for scope, version, now in changed_items(old.versions, new.versions) if new is not None else ():
            if now is None or now < version:
                yield f"transactional id {name!r}: the version of {scope!r} went back from {version} to {now}"


def group_offsets_by_position(before: State, after: State) -> Iterator[str]:
    """The later commit wins (OFF-11): an offset of a group is never replaced by one with an earlier position."""
    for name, old, new in changed_items(before.groups, after.groups):
        for tp, value, now in changed_items(old.offsets, new.offsets) if new is not None else ():
            if now is not None and now.commit_position < value.commit_position:
                positions = f"from commit position {value.commit_position} to {now.commit_position}"
                yield f"group {name!r}: the offset of {tp} went back {positions}"


def _changed_logs(before: State, after: State) -> Iterator[tuple[TopicPartition, Partition, Partition]]:
    """Yield the logs of both states that differ; a topic that was created again is another one."""
    for tp, log, later_log in changed_items(before.partitions, after.partitions):
        old, new = before.topics.get(tp.topic), after.topics.get(tp.topic)
        if later_log is not None and old is not None and new is not None and old.topic_id == new.topic_id:
            yield tp, log, later_log


def _has_data(partition: Partition, entry: AbortedTxn) -> bool:
    batches = partition.batches.overlapping(entry.first_offset, entry.last_offset)
    return any(batch.producer_id == entry.producer_id for batch in batches)
