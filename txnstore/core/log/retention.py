"""Deleting the oldest records: the log start moves up, never above the last stable offset (RET-01).

Two callers move it: an administrator (Kafka's ``deleteRecords``), and the retention of a topic, whose new log starts
:func:`retained_from` plans. Records that are deleted leave the log with their batch; a batch that the log start cuts
stays, and readers begin at the log start. Producer states and transactions stay (RET-05).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator
from functools import partial

from txnstore.core.authorization.rights import Right, delete_records_of
from txnstore.core.catalog.model import CatalogTopic
from txnstore.core.catalog.versions import is_outdated
from txnstore.core.declaration import command
from txnstore.core.log.appending import partition_of, with_partition
from txnstore.core.log.commands import DeleteRecords
from txnstore.core.log.events import LogStartMoved
from txnstore.core.log.model import Batch, Partition
from txnstore.core.log.released import with_removed
from txnstore.core.model import TopicPartition, value_class
from txnstore.core.routing import chain_of_partition, chain_of_producer
from txnstore.core.state import Draft, State, fold, replace
from txnstore.errors import (
    OffsetOutOfRangeError,
    PolicyViolationError,
    TopicChangedError,
    UndecidedRecordsError,
    UnknownTopicOrPartitionError,
)

#: The offset of a :class:`~txnstore.core.log.commands.Deletion` that means the high watermark.
HIGH_WATERMARK = -1


def to_leader(command: DeleteRecords, chains: int) -> int:
    """Return the chain that leads all partitions of the command."""
    (leader,) = {chain_of_partition(tp, chains) for tp in partitions_of_deletions(command)}
    return leader


def partitions_of_deletions(command: DeleteRecords) -> Iterator[TopicPartition]:
    """The partitions with records to delete."""
    return (deletion.tp for deletion in command.deletions)


def deletes_records(command: DeleteRecords, _: State) -> list[Right]:
    """The right to delete records of the topics, or to maintain the store."""
    return [delete_records_of(deletion.tp.topic for deletion in command.deletions)]


@command(DeleteRecords, route=to_leader, right=deletes_records, partitions=partitions_of_deletions)
def delete_records(draft: Draft, command: DeleteRecords) -> dict[TopicPartition, int]:
    """Move the log starts; one below the present log start changes nothing (RET-06)."""
    starts: dict[TopicPartition, int] = {}
    for deletion in command.deletions:
        tp, state = deletion.tp, draft.state
        partition = partition_of(state, tp)
        topic = state.topics[tp.topic]
        if deletion.topic_id not in {None, topic.topic_id}:
            msg = f"topic {tp.topic!r} was deleted and created again; records of the new topic are not deleted"
            raise UnknownTopicOrPartitionError(msg)
        if is_outdated(state, tp.topic, topic.topic_id, deletion.topic_version):
            msg = f"topic {tp.topic!r} was altered since the deletion of records of {tp} was planned: plan it again"
            raise TopicChangedError(msg)
        start = new_log_start(topic, tp, partition, deletion.offset, partial(_transactional_id_of, state))
        if start > partition.log_start:
            draft.emit(LogStartMoved(topic=tp.topic, partition=tp.partition, offset=start))
        starts[tp] = start
    return starts


def new_log_start(
    topic: CatalogTopic, tp: TopicPartition, partition: Partition, offset: int, holder: Callable[[int], str | None]
) -> int:
    """Return the log start after the deletion of the records below ``offset``: at least the present one.

    Args:
        partition: Its log.
        offset: The new log start; :data:`HIGH_WATERMARK` for all records.
        holder: The transactional id of a producer id, or None if it is not known.

    Raises:
        PolicyViolationError: The topic's ``cleanup.policy`` has no ``delete``.
        OffsetOutOfRangeError: The offset is above the high watermark, or negative.
        UndecidedRecordsError: An open transaction has records below the offset.
    """
    if not deletes(topic):
        policy = topic.config["cleanup.policy"] or "empty"
        msg = f"records of {tp} cannot be deleted: cleanup.policy of topic {tp.topic!r} is {policy}, without delete"
        raise PolicyViolationError(msg)
    high_watermark = partition.high_watermark
    start = high_watermark if offset == HIGH_WATERMARK else offset
    if not 0 <= start <= high_watermark:
        msg = f"cannot delete the records of {tp} below offset {offset}: its high watermark is {high_watermark}"
        raise OffsetOutOfRangeError(msg)
    last_stable_offset = partition.last_stable_offset
    if start > last_stable_offset:
        producer_id = min(partition.open_txns, key=partition.open_txns.__getitem__)
        name = holder(producer_id)
        whose = f"of transactional id {name!r}" if name is not None else f"of producer id {producer_id}"
        msg = (
            f"cannot delete the records of {tp} below offset {start}: the open transaction {whose} begins at offset "
            f"{last_stable_offset}"
        )
        raise UndecidedRecordsError(msg)
    return max(start, partition.log_start)


def open_below(partition: Partition, offset: int) -> set[int]:
    """Return the producers whose transactions refuse the deletion of the records below ``offset``."""
    return {
        producer_id
        for producer_id, first_offset in partition.open_txns.items()
        if first_offset < offset or offset == HIGH_WATERMARK
    }


def deletes(topic: CatalogTopic) -> bool:
    """Whether the ``cleanup.policy`` of a topic has ``delete``."""
    return "delete" in topic.config.get("cleanup.policy", "delete").split(",")


def _transactional_id_of(state: State, producer_id: int) -> str | None:
    """Return the transactional id of a producer id; None if another chain has granted it."""
    return state.transactional_ids.get(producer_id) if chain_of_producer(producer_id) == state.chain else None


@fold(LogStartMoved)
def _log_start_moved(state: State, event: LogStartMoved) -> State:
    tp = TopicPartition(event.topic, event.partition)
    partition = state.partitions[tp]
    partition_after = replace(with_log_start(partition, event.offset), revision=state.sequence)
    removed_batches = [batch for batch in partition.batches.overlapping(0, event.offset) if batch.limit <= event.offset]
    return with_removed(with_partition(state, tp, partition_after), removed_batches)


def with_log_start(partition: Partition, offset: int) -> Partition:
    """Return the log from ``offset`` on; a batch that the offset cuts stays.

    An entry of the aborted index is removed with its marker (RET-08): until then it hides the remaining batches of its
    transaction (RET-07). Markers ascend in the index.
    """
    batches = partition.batches.starting_at(offset)
    aborted = partition.aborted[bisect_left(partition.aborted, offset, key=lambda entry: entry.last_offset) :]
    return replace(partition, log_start=offset, batches=batches, aborted=aborted)


# Retention ------------------------------------------------------------------------------------------------------------


@value_class()
class RetentionPlan:
    """The deletion that a retention makes in a partition.

    Attributes:
        offset: The new log start.
        removed: The batches that leave the log, the oldest first; empty if nothing is deleted.
    """

    offset: int
    removed: tuple[Batch, ...] = ()


def plan_retention(partition: Partition, retention_ms: int, retention_bytes: int, now: int) -> RetentionPlan:
    """Plan what the retention of a topic deletes: whole batches from the head of the log, below the LSO (RET-03).

    Kafka's rules, for batches in the place of its segments: a batch is too old if its newest record is more than
    ``retention_ms`` old, and one too many if the partition keeps at least ``retention_bytes`` without it. The first
    batch that is neither ends the deletion.

    Args:
        partition: The log.
        retention_ms: The age of records in ms; -1: no limit.
        retention_bytes: The size of the partition in bytes; -1: no limit.
        now: The present time in ms.
    """
    removed_batches: list[Batch] = []
    surplus_bytes = sum(batch.size for batch in partition.batches) - retention_bytes if retention_bytes >= 0 else -1
    for batch in partition.batches.overlapping(partition.log_start, partition.last_stable_offset):
        is_old = 0 <= retention_ms < now - batch.max_timestamp
        if not (is_old or batch.size <= surplus_bytes):
            break
        removed_batches.append(batch)
        surplus_bytes -= batch.size
    if not removed_batches:
        return RetentionPlan(partition.log_start)
    later_batches = partition.batches.overlapping(removed_batches[-1].limit, partition.high_watermark)
    start = next((batch.base_offset for batch in later_batches), partition.high_watermark)
    return RetentionPlan(min(start, partition.last_stable_offset), tuple(removed_batches))


def overdue_since(partition: Partition, retention_ms: int, retention_bytes: int) -> int | None:
    """Return the time in ms from which on a retention deletes the first batch; None if there is no such time yet.

    As :func:`plan_retention` decides it, by the timestamps of records: of a limit in bytes, the time of the batch with
    which the partition keeps enough without the first one. The result may be in the future.
    """
    first = next(partition.batches.overlapping(partition.log_start, partition.last_stable_offset), None)
    if first is None:
        return None
    times = [first.max_timestamp + retention_ms + 1] if retention_ms >= 0 else []
    kept_bytes = -first.size
    for batch in partition.batches if retention_bytes >= 0 else ():
        kept_bytes += batch.size
        if kept_bytes >= retention_bytes:
            times.append(batch.max_timestamp)
            break
    return min(times, default=None)
