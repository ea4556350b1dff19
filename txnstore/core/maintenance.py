"""Compaction and vacuum: replacing segments and announcing deletions. Commands, events, rules and folding."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import field, replace
from typing import Literal

from txnstore.core.authorization.rights import Right, erase_records_of, maintains
from txnstore.core.catalog.versions import is_outdated
from txnstore.core.declaration import command
from txnstore.core.log.appending import with_partition
from txnstore.core.log.batches import BatchList
from txnstore.core.log.model import MAX_UPLOAD_AGE_MS, AbortedTxn, Batch, Partition
from txnstore.core.log.released import with_removed
from txnstore.core.log.sums import ConservedSums, Sums, add_up
from txnstore.core.log.visibility import is_open
from txnstore.core.model import NO_PRODUCER, Command, EntrySpan, TopicPartition, sorted_items, value_class
from txnstore.core.routing import chain_of_partition
from txnstore.core.state import Draft, State, fold
from txnstore.errors import CompactionConflictError, CorruptionError


@value_class()
class ReplaceSegments(Command):
    """Replace batches by merged or cleaned ones. Answered with the revision of the partition from now on.

    Attributes:
        removed: The batches to replace: a contiguous run of the log, from the log start up to the LSO. May be empty
            for a clean that finds nothing to remove.
        added: The new batches; empty if none of the records of ``removed`` stays.
        uploaded_at: The time of the first upload of ``added``, in ms, as in
            :class:`~txnstore.core.log.model.NewBatch`.
        clean_until: The cleaner checkpoint after a clean, which may drop records; None for a merge, which keeps them.
        topic_id: The id of the topic that was read; refused if the topic was created again. None: not checked.
        topic_version: The version of the topic whose columns and settings this was planned with; refused if the topic
            has another one. None: not checked.
        past_hw: ``removed`` may be above the LSO, if none of it belongs to an open transaction; only for a clean.
        sums: The sums of what was read, removed and written; refused if they do not agree. None: not known.
        revision: The revision of the partition that this was planned at; refused if it has another one. None: not
            checked.
    """

    tp: TopicPartition
    removed: tuple[Batch, ...]
    added: tuple[Batch, ...]
    uploaded_at: int | None = None
    clean_until: int | None = None
    topic_id: str | None = None
    topic_version: int | None = None
    past_hw: bool = False
    sums: ConservedSums | None = None
    revision: int | None = None


@value_class()
class ReplaceRuns(Command):
    """Replace several runs of batches of one partition, all planned at the same revision, with one entry."""

    runs: tuple[ReplaceSegments, ...]


@value_class()
class EraseRecords(Command):
    """Replace runs of batches of one partition by what an erasure leaves of them, with one entry.

    It is a clean (``clean_until`` of each run is that of the partition, so that the checkpoint stays) that removes
    records for no other reason than the word of its principal, so it needs a right of its own.
    """

    runs: tuple[ReplaceSegments, ...]


@value_class()
class DropObjects(Command):
    """Announce the deletion of objects with segments. Answered with the keys that may be deleted: no batch names them.

    The chain orders this command and the appends: an earlier append keeps its segment, a later one is refused
    (``docs/internals/design/compaction.md``).
    """

    keys: tuple[str, ...]


@value_class()
class ForgetObjects(Command):
    """Remove objects from the state, :data:`FORGET_AFTER_MS` after their removal. Answered with None."""

    keys: tuple[str, ...]


@value_class()
class ForgetEntries(Command):
    """Remove spans of released entries from the state of a chain. Answered with None."""

    chain: int
    spans: tuple[EntrySpan, ...]


@value_class(kw_only=True)
class SegmentsReplaced:
    """A compaction replaced the batches with the base offsets ``removed`` by ``added``.

    ``clean_until``: the cleaner checkpoint from now on, if it was a clean. ``sums``: of the records that it read,
    removed and wrote; None in entries of releases that did not record them, and if no record was read.
    """

    type: Literal["SegmentsReplaced"] = "SegmentsReplaced"
    topic: str
    partition: int
    removed: list[int]
    added: list[Batch]
    clean_until: int | None = None
    sums: ConservedSums | None = None


@value_class(kw_only=True)
class ObjectsDropped:
    """A vacuum is about to delete these objects; a later batch with a segment in one of them is refused."""

    type: Literal["ObjectsDropped"] = "ObjectsDropped"
    keys: list[str]


@value_class(kw_only=True)
class ObjectsForgotten:
    """Objects were removed from the state: an append that names one is refused for its age (OBJ-06).

    ``entries``: spans of entries whose inlined segments no batch names any more, and that need no payload.
    """

    type: Literal["ObjectsForgotten"] = "ObjectsForgotten"
    keys: list[str]
    entries: list[EntrySpan] = field(default_factory=list)


def to_leader(command: ReplaceSegments, chains: int) -> int:
    """Return the chain that leads the partition."""
    return chain_of_partition(command.tp, chains)


@command(ReplaceSegments, route=to_leader, right=maintains, partitions=lambda command: (command.tp,))
def replace_segments(draft: Draft, command: ReplaceSegments) -> int:
    """Replace batches below the transactional high-watermark (the LSO).

    ``removed`` is a contiguous run of batches in the log. ``added`` lies inside the offsets of that run, in order. A
    clean also moves the cleaner checkpoint, which never goes back nor above the LSO (CMP-03, CMP-21).

    Raises:
        CompactionConflictError: The log has changed since the compaction read it, or ``added`` does not fit.
    """
    partition = draft.state.partition(command.tp)
    topic = draft.state.topics.get(command.tp.topic)
    if partition is None or (command.topic_id is not None and topic is not None and topic.topic_id != command.topic_id):
        msg = f"partition {command.tp} was deleted while it was compacted"
        raise CompactionConflictError(msg)
    check_version(draft.state, command.tp, command.topic_id, command.topic_version)
    clean_until = _clean_until(command, partition)
    if command.removed:
        _check_removed(command, partition)
        _check_added(command, draft.state)
        _check_upload_time(draft.state, command)
    elif clean_until is None or command.added:
        msg = f"a compaction of {command.tp} must replace at least one batch"
        raise CompactionConflictError(msg)
    check_revision(command.tp, partition, command.revision)
    if not command.removed and clean_until == partition.clean_until:
        return partition.revision
    draft.emit(
        SegmentsReplaced(
            topic=command.tp.topic,
            partition=command.tp.partition,
            removed=[batch.base_offset for batch in command.removed],
            added=list(command.added),
            clean_until=clean_until,
            sums=command.sums,
        ),
    )
    return draft.state.partitions[command.tp].revision


def to_leader_of_runs(command: ReplaceRuns | EraseRecords, chains: int) -> int:
    """Return the chain that leads the partition of all runs."""
    return to_leader(command.runs[0], chains)


@command(ReplaceRuns, route=to_leader_of_runs, right=maintains)
def replace_runs(draft: Draft, command: ReplaceRuns) -> int:
    """Replace all runs of a :class:`ReplaceRuns`.

    Raises:
        CompactionConflictError: One of them is refused, so that none is replaced.
    """
    first_run, *other_runs = command.runs
    revision = replace_segments(draft, first_run)
    for run in other_runs:
        revision = replace_segments(draft, replace(run, revision=None))  # Nothing but this command has changed the log.
    return revision


def erases(command: EraseRecords, _: State) -> list[Right]:
    """The rights to delete records of the topics, and to maintain the store."""
    return erase_records_of(run.tp.topic for run in command.runs)


@command(EraseRecords, route=to_leader_of_runs, right=erases)
def erase_records(draft: Draft, command: EraseRecords) -> int:
    """Replace all runs of an :class:`EraseRecords`; refused as those of a :class:`ReplaceRuns`."""
    return replace_runs(draft, ReplaceRuns(command.runs))


def check_version(state: State, tp: TopicPartition, topic_id: str | None, planned_version: int | None) -> None:
    """Check that a topic was not altered since a compaction of a partition was planned.

    Raises:
        CompactionConflictError: It was.
        UnknownTopicOrPartitionError: See :func:`~txnstore.core.catalog.versions.is_outdated`.
    """
    if is_outdated(state, tp.topic, topic_id, planned_version):
        current_version = state.topics[tp.topic].version
        msg = (
            f"a compaction of {tp} was planned with version {planned_version} of the topic, which has "
            f"{current_version} now: plan it again"
        )
        raise CompactionConflictError(msg)


def check_revision(tp: TopicPartition, partition: Partition | None, planned_revision: int | None) -> None:
    """Check that no batch of a partition was replaced or deleted since a compaction of it was planned.

    Raises:
        CompactionConflictError: The partition has another revision, or was deleted.
    """
    if planned_revision is not None and (partition is None or partition.revision != planned_revision):
        current_state = f"is {partition.revision} now" if partition is not None else "was deleted"
        msg = (
            f"a compaction of {tp} was planned at revision {planned_revision} of the partition, which {current_state}: "
            "plan it again"
        )
        raise CompactionConflictError(msg)


def _clean_until(command: ReplaceSegments, partition: Partition) -> int | None:
    """Return the cleaner checkpoint after a clean; it never goes back behind that of another clean."""
    if command.clean_until is None:
        return None
    if command.clean_until > partition.last_stable_offset:
        msg = (
            f"the cleaner checkpoint {command.clean_until} of {command.tp} would be above the last stable offset "
            f"{partition.last_stable_offset}"
        )
        raise CompactionConflictError(msg)
    return max(command.clean_until, partition.clean_until)


def _check_removed(command: ReplaceSegments, partition: Partition) -> None:
    """Check that ``removed`` is the whole log between its first and last offset, from the log start up to the LSO."""
    start, limit = command.removed[0].base_offset, command.removed[-1].limit
    is_decided = command.past_hw and not any(is_open(partition, batch) for batch in command.removed)
    if limit > partition.last_stable_offset and not is_decided:
        key = command.removed[-1].segment.key
        msg = f"segment {key} reaches above the last stable offset {partition.last_stable_offset} of {command.tp}"
        raise CompactionConflictError(msg)
    if any(batch.base_offset < partition.log_start for batch in command.added):
        msg = f"records of {command.tp} below offset {partition.log_start} were deleted while it was compacted"
        raise CompactionConflictError(msg)
    present_batches = tuple(partition.batches.overlapping(start, limit))
    if present_batches == command.removed:
        return
    replaced_batch = next((batch for batch in command.removed if batch not in present_batches), None)
    if replaced_batch is not None:
        msg = f"segment {replaced_batch.segment.key} of {command.tp} was replaced by another compaction"
    else:
        msg = f"the segments to replace between the offsets {start} and {limit} of {command.tp} are not contiguous"
    raise CompactionConflictError(msg)


def _check_added(command: ReplaceSegments, state: State) -> None:
    """Check that ``added`` is in order inside the removed range, has no producer, and has no more records."""
    next_offset, limit = command.removed[0].base_offset, command.removed[-1].limit
    for batch in command.added:
        if not next_offset <= batch.base_offset < batch.limit <= limit:
            msg = f"segment {batch.segment.key} covers offsets that were not removed from {command.tp}"
            raise CompactionConflictError(msg)
        if batch.transactional or batch.producer_id != NO_PRODUCER:
            msg = f"segment {batch.segment.key} is merged, so it must have no producer, not {batch.producer_id}"
            raise CompactionConflictError(msg)
        if batch.segment.object in state.dropped:
            msg = f"segment {batch.segment.key} was vacuumed before it was registered in {command.tp}"
            raise CompactionConflictError(msg)
        if batch.records != batch.limit - batch.base_offset and not batch.segment.explicit_offsets:
            msg = f"segment {batch.segment.key} has gaps in its offsets, so it must store the offset of each record"
            raise CompactionConflictError(msg)
        next_offset = batch.limit
    records_before = sum(batch.records for batch in command.removed)
    records_after = sum(batch.records for batch in command.added)
    if records_after > records_before:
        msg = f"a compaction of {command.tp} cannot turn {records_before} records into {records_after}"
        raise CompactionConflictError(msg)
    problem = sums_problem(command.added, command.sums, merge=command.clean_until is None)
    if problem is not None:
        msg = f"the compaction of {command.tp} has no effect, because it would change the records: {problem}"
        raise CorruptionError(msg)


def sums_problem(added_batches: Sequence[Batch], sums: ConservedSums | None, *, merge: bool) -> str | None:
    """Describe how the sums of a compaction disagree with each other or its new batches.

    None if they agree, or no sums were recorded.
    """
    if sums is None:
        return None
    if not sums.conserved:
        return f"it read {sums.read}, which is not the sum of removed {sums.removed} and written {add_up(sums.added)}"
    if merge and sums.removed != Sums():
        return f"a merge removes nothing, and it removed {sums.removed}"
    counts = [batch.records for batch in added_batches]
    summed_counts = [batch_sums.records for batch_sums in sums.added]
    if counts != summed_counts:
        return f"its new batches have the record counts {counts}, and their sums {summed_counts}"
    return None


def _check_upload_time(state: State, command: ReplaceSegments) -> None:
    """Refuse an old upload: a vacuum may have deleted it, and the chain may have forgotten the deletion (OBJ-06)."""
    if command.uploaded_at is not None and state.timestamp - command.uploaded_at > MAX_UPLOAD_AGE_MS:
        days = MAX_UPLOAD_AGE_MS // 86_400_000
        msg = f"the merge of {command.tp} was uploaded over {days} days ago: a vacuum may have deleted it"
        raise CompactionConflictError(msg)


@command(DropObjects, route=None, right=maintains)
def drop_objects(draft: Draft, command: DropObjects) -> tuple[str, ...]:
    """Announce the deletion of the objects of which no batch names a segment; return their keys."""
    dropped_keys, keys_in_use = draft.state.dropped, set[str]()
    # A dropped object has no batches left; a released one may. Scan only if a key is not dropped yet.
    if any(key not in dropped_keys for key in command.keys):
        # In the order of the rows of index files, each group of which is then decoded once.
        keys_in_use = {batch.segment.object for _, log in sorted_items(draft.state.partitions) for batch in log.batches}
    keys = tuple(key for key in command.keys if key not in keys_in_use)
    new_keys = [key for key in keys if key not in dropped_keys]
    if new_keys:
        draft.emit(ObjectsDropped(keys=new_keys))
    return keys


@command(ForgetObjects, route=None, right=maintains)
def forget_objects(draft: Draft, command: ForgetObjects) -> None:
    """Remove objects from the state."""
    state = draft.state
    keys = [key for key in command.keys if key in state.dropped or key in state.released]
    if keys:
        draft.emit(ObjectsForgotten(keys=keys))


@command(ForgetEntries, route=lambda command, _: command.chain, right=maintains)
def forget_entries(draft: Draft, command: ForgetEntries) -> None:
    """Remove spans of entries from the state; one that has grown stays."""
    spans = [span for span in command.spans if span in draft.state.released_entries]
    if spans:
        draft.emit(ObjectsForgotten(keys=[], entries=spans))


@fold(SegmentsReplaced)
def _segments_replaced(state: State, event: SegmentsReplaced) -> State:
    """Replace batches of a partition, and move its cleaner checkpoint if the event does."""
    tp = TopicPartition(event.topic, event.partition)
    partition = state.partitions[tp]
    removed_batches = _batches_at(partition.batches, event.removed)
    batches = partition.batches.replace(removed_batches, event.added)
    if removed_batches:
        aborted = _remaining_aborted(
            partition.aborted, batches, removed_batches[0].base_offset, removed_batches[-1].limit
        )
        partition = replace(partition, aborted=aborted)
    if event.clean_until is not None:
        partition = replace(partition, clean_until=event.clean_until)
    partition = replace(partition, batches=batches, revision=state.sequence)
    return with_removed(with_partition(state, tp, partition), removed_batches, event.added)


def _batches_at(batches: BatchList[Batch], offsets: Sequence[int]) -> list[Batch]:
    """Return the batches with these base offsets, which are adjacent; there may be thousands."""
    if not offsets:
        return []
    wanted_offsets = set(offsets)
    return [
        batch for batch in batches.overlapping(min(offsets), max(offsets) + 1) if batch.base_offset in wanted_offsets
    ]


def _remaining_aborted(
    index: tuple[AbortedTxn, ...], batches: BatchList[Batch], start: int, limit: int
) -> tuple[AbortedTxn, ...]:
    """Return the aborted index without the transactions that a compaction of ``[start, limit)`` left no batch.

    Kafka's log cleaner does the same (``CleanedTransactionMetadata``).
    """
    unchanged_count = bisect_left(index, start, key=lambda entry: entry.last_offset)
    remaining_entries = tuple(
        entry for entry in index[unchanged_count:] if entry.first_offset >= limit or _has_batches(batches, entry)
    )
    if unchanged_count + len(remaining_entries) == len(index):
        return index
    return (*index[:unchanged_count], *remaining_entries)


def _has_batches(batches: BatchList[Batch], entry: AbortedTxn) -> bool:
    batches_inside = batches.overlapping(entry.first_offset, entry.last_offset)
    return any(batch.transactional and batch.producer_id == entry.producer_id for batch in batches_inside)


@fold(ObjectsDropped)
def _objects_dropped(state: State, event: ObjectsDropped) -> State:
    dropped, released = state.dropped, state.released
    for key in event.keys:
        dropped, released = dropped.insert(key, state.timestamp), released.discard(key)
    return replace(state, dropped=dropped, released=released)


@fold(ObjectsForgotten)
def _objects_forgotten(state: State, event: ObjectsForgotten) -> State:
    dropped, released = state.dropped, state.released
    for key in event.keys:
        dropped, released = dropped.discard(key), released.discard(key)
    remaining_spans = tuple(span for span in state.released_entries if span not in event.entries)
    return replace(state, dropped=dropped, released=released, released_entries=remaining_spans)


#: The state keeps dropped objects for this long: longer than the greatest age of an upload, plus any clock difference.
FORGET_AFTER_MS = 7 * 86_400_000
