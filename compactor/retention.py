"""Deletes the oldest records: those below given offsets, and those that the retention of their topic has passed."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial

from txnstore.catalog.settings import TopicConfig
from txnstore.connection import Connection
from txnstore.coordinator.copies import unknown_if_partial
from txnstore.core.authorization.rights import CLUSTER_ACTION, delete_records_of
from txnstore.core.catalog.model import CatalogTopic
from txnstore.core.log.commands import DeleteRecords, Deletion
from txnstore.core.log.model import Partition
from txnstore.core.log.retention import new_log_start, open_below, plan_retention
from txnstore.core.log.visibility import count_records
from txnstore.core.model import TopicPartition
from txnstore.core.routing import chain_of_partition
from txnstore.core.view import View
from txnstore.errors import (
    CorruptionError,
    StorageError,
    TopicChangedError,
    TxnStoreError,
    UnknownTopicOrPartitionError,
    joined,
    raise_or_report,
)
from txnstore.validation import check_integer, check_mapping, check_pair

_LOG = logging.getLogger(__name__)

#: How often the deletions of a topic are planned that another process alters before each of them.
MAX_PLANS = 5

#: The most partitions of one entry.
_DELETIONS_PER_ENTRY = 1_000


@dataclass(frozen=True, slots=True)
class PartitionRetention:
    """The records deleted from one partition; after a dry run, the expected result.

    Attributes:
        tp: The partition.
        log_start: The log start before.
        new_log_start: The log start after it.
        batches: The batches that left the log.
        records: The deleted records, including aborted ones. If the new log start is inside a merged batch with gaps,
            an upper bound.
        bytes: The size of these batches. Their objects exist until a vacuum deletes them.
    """

    tp: TopicPartition
    log_start: int
    new_log_start: int
    batches: int
    records: int
    bytes: int


@dataclass(frozen=True, slots=True)
class RetentionReport:
    """The deletions by partition, without partitions that lost nothing."""

    partitions: tuple[PartitionRetention, ...] = ()
    dry_run: bool = False

    @property
    def records(self) -> int:
        """The number of deleted records, including aborted ones."""
        return sum(partition.records for partition in self.partitions)

    @property
    def bytes(self) -> int:
        """The size of what was deleted, in bytes."""
        return sum(partition.bytes for partition in self.partitions)


def retain(
    connection: Connection,
    topic: str | None = None,
    *,
    dry_run: bool = False,
    on_error: Callable[[TxnStoreError], object] | None = None,
) -> RetentionReport:
    """Delete the records that the retention of their topic has passed (RET-03).

    Applies to topics whose ``cleanup.policy`` has ``delete`` and that have a ``retention.ms`` or a ``retention.bytes``;
    without one, records are kept. Whole batches are deleted, the oldest first, and never at or above the last stable
    offset; transactions that hold it back are completed first, as by a compaction. One entry for the partitions of a
    chain. The age of records is measured by the clock of the storage.

    Args:
        connection: The connection to the store.
        topic: The topic; None for all.
        dry_run: Delete nothing; return the expected result.
        on_error: Called at the end with the error of topics whose settings cannot be read, instead of raising it, so
            that the report of the others is returned.

    Raises:
        ReadOnlyError: The store was opened read-only, and this is not a dry run.
        UnknownTopicOrPartitionError: The topic does not exist.
        CorruptionError: The settings of topics cannot be read; the message names all of them. The retention of the
            others is applied before this is raised.
    """
    view = connection.view()
    if not dry_run:
        connection.check_writable("no records of it can be deleted")
        connection.check_rights(CLUSTER_ACTION)
    topics, failures = _split_readable(_topics_to_retain(view, topic))
    logs = [log for topic in topics if _retention_of(topic) is not None for _, log in _logs_of(view, topic)]
    if not dry_run and connection.end_abandoned({producer_id for log in logs for producer_id in log.open_txns}):
        view = connection.view(refresh=False)
        topics, failures = _split_readable(_topics_to_retain(view, topic))
    report = apply_retention(connection, view, topics, dry_run=dry_run)
    raise_or_report(joined(failures, "topics were left out"), on_error)
    return report


def _split_readable(topics: Iterable[CatalogTopic]) -> tuple[list[CatalogTopic], list[TxnStoreError]]:
    """Return the topics whose settings can be read, and an error for each other one."""
    readable: list[CatalogTopic] = []
    failures: list[TxnStoreError] = []
    for topic in topics:
        try:
            _retention_of(topic)
        except CorruptionError as error:
            _LOG.warning("retention not applied: unreadable", extra={"topic": topic.name, "error": str(error)})
            failures.append(CorruptionError(f"the retention of topic {topic.name!r} cannot be applied: {error}"))
        else:
            readable.append(topic)
    return readable, failures


def _topics_to_retain(view: View, name: str | None) -> list[CatalogTopic]:
    return [view.find_topic(name)] if name is not None else view.sorted_topics()


def apply_retention(
    connection: Connection,
    view: View,
    topics: Iterable[CatalogTopic],
    *,
    dry_run: bool = False,
    plans: int = MAX_PLANS,
) -> RetentionReport:
    """:func:`retain` for these readable topics of a view; no request if they have no retention.

    The chains refuse a deletion by settings that are not those of the topic any more: it is planned again, with at most
    ``plans`` in all. A topic that is altered before each of them is left to the next retention.
    """
    topics_with_limits = [(topic, config) for topic in topics if (config := _retention_of(topic)) is not None]
    now = connection.objects.now_ms() if any(config.retention_ms >= 0 for _, config in topics_with_limits) else 0
    planned: list[PartitionRetention] = []
    deletions: list[Deletion] = []
    for topic, config in topics_with_limits:
        for tp, log in _logs_of(view, topic):
            plan = plan_retention(log, config.retention_ms, config.retention_bytes, now)
            if plan.removed:
                planned.append(_effect_of_log_start(view, tp, plan.offset))
                deletions.append(Deletion(tp, plan.offset, topic.topic_id, topic.version))
    if dry_run or not deletions:
        return RetentionReport(tuple(planned), dry_run)
    altered = set[str]()
    new_starts = _delete_in_chains(connection, deletions, altered)
    report = RetentionReport(tuple(partition for partition in planned if partition.tp in new_starts))
    counts = {"partitions": len(report.partitions), "records": report.records, "bytes": report.bytes}
    _LOG.info("retention applied", extra=counts)
    if altered and plans > 1:
        view = connection.view()
        retried, _ = _split_readable(view.topics[name] for name in sorted(altered) if name in view.topics)
        later_report = apply_retention(connection, view, retried, plans=plans - 1)
        report = RetentionReport(report.partitions + later_report.partitions)
    elif altered:
        _LOG.warning("retention left to the next one: altered too often", extra={"topics": sorted(altered)})
    return report


def delete_records(
    connection: Connection, offsets: Mapping[TopicPartition, int], *, dry_run: bool = False
) -> dict[TopicPartition, PartitionRetention]:
    """Delete the records of partitions below given offsets; see :meth:`txnstore.Store.delete_records`.

    Returns:
        What is deleted from each partition, also if that is nothing.
    """
    starts = {
        TopicPartition(*check_pair(key)): check_integer(f"the offset for {key}", offset)
        for key, offset in check_mapping("offsets", offsets).items()
    }
    if not dry_run:
        connection.check_writable("no records of it can be deleted")
    if not starts:
        return {}
    if not dry_run:  # The chains check, too, but each only its own partitions: one may have deleted its records then.
        connection.check_rights(delete_records_of(tp.topic for tp in starts))
    view = connection.view()
    logs = [(view.log(tp) or view.find_partition(tp), offset) for tp, offset in starts.items()]
    blocking = {producer_id for log, offset in logs for producer_id in open_below(log, offset)}
    if not dry_run and connection.end_abandoned(blocking, decided_at_once=True):
        view = connection.view(refresh=False)
    planned = {tp: _plan_deletion(view, tp, offset) for tp, offset in starts.items()}
    if dry_run:
        return planned
    # Also those that seem to be deleted: the entry that did it may only be visible, and the chain makes it durable.
    new_starts = _delete_in_chains(
        connection, [Deletion(tp, starts[tp], view.find_topic(tp.topic).topic_id) for tp in planned]
    )
    deleted = {tp: _effect_of_log_start(view, tp, new_starts[tp]) for tp in planned}
    moved = [partition for partition in deleted.values() if partition.new_log_start > partition.log_start]
    counts = {"partitions": len(moved), "records": sum(partition.records for partition in moved)}
    _LOG.info("records deleted", extra=counts)
    return deleted


def _plan_deletion(view: View, tp: TopicPartition, offset: int) -> PartitionRetention:
    """Plan a deletion in one partition; a refusal names the blocking transactions, which the chain may not know."""

    def holder(producer_id: int) -> str | None:
        txn = view.owner(producer_id)
        return txn.transactional_id if txn is not None else None

    start = new_log_start(view.find_topic(tp.topic), tp, view.find_partition(tp), offset, holder)
    return _effect_of_log_start(view, tp, start)


def _effect_of_log_start(view: View, tp: TopicPartition, start: int) -> PartitionRetention:
    """Return what a partition loses when its log start moves up to ``start``."""
    log = view.log(tp) or Partition()
    deleted_batches = [batch for batch in log.batches.overlapping(0, start) if batch.limit <= start]
    records = count_records(log, log.log_start, start)
    return PartitionRetention(
        tp, log.log_start, start, len(deleted_batches), records, sum(batch.size for batch in deleted_batches)
    )


def _delete_in_chains(
    connection: Connection, deletions: list[Deletion], altered: set[str] | None = None
) -> dict[TopicPartition, int]:
    """Move the log starts in all chains concurrently, and return the new ones.

    Args:
        deletions: The new log starts.
        altered: Leave out partitions that were deleted, or whose topic was altered, and add the names of the latter
            topics to this; None: raise the refusal.
    """
    by_chain: dict[int, list[Deletion]] = {}
    for deletion in deletions:
        by_chain.setdefault(chain_of_partition(deletion.tp, len(connection.chains)), []).append(deletion)
    work = {number: partial(_delete_in_chain, connection, items, altered) for number, items in by_chain.items()}
    moved_by_chain, errors = connection.chains.try_concurrently(work)
    refused = [errors[number] for number in sorted(errors) if not isinstance(errors[number], StorageError)]
    if refused:
        raise refused[0]
    for number in sorted(errors):
        raise unknown_if_partial(errors[number], happened=bool(moved_by_chain)) from errors[number]
    return {tp: start for moved in moved_by_chain.values() for tp, start in moved.items()}


def _delete_in_chain(
    connection: Connection, deletions: list[Deletion], altered: set[str] | None
) -> dict[TopicPartition, int]:
    """Move the log starts in one chain, some partitions per entry; after a refusal each partition on its own."""
    moved: dict[TopicPartition, int] = {}
    for start in range(0, len(deletions), _DELETIONS_PER_ENTRY):
        items = deletions[start : start + _DELETIONS_PER_ENTRY]
        try:
            moved |= connection.submit(DeleteRecords(tuple(items)))
        except (TopicChangedError, UnknownTopicOrPartitionError) as error:
            if altered is None:
                raise
            if len(items) > 1:
                for deletion in items:
                    moved |= _delete_in_chain(connection, [deletion], altered)
                continue
            if isinstance(error, TopicChangedError):
                altered.add(items[0].tp.topic)
            _LOG.info("retention skipped", extra={"partition": str(items[0].tp), "reason": str(error)})
    return moved


def _logs_of(view: View, topic: CatalogTopic) -> Iterator[tuple[TopicPartition, Partition]]:
    """Yield the partition logs of a topic; none if the topic was deleted meanwhile."""
    current = view.topics.get(topic.name)
    if current is None or current.topic_id != topic.topic_id:
        return
    for number in range(current.partitions):
        tp = TopicPartition(topic.name, number)
        log = view.log(tp)
        if log is not None:
            yield tp, log


def _retention_of(topic: CatalogTopic) -> TopicConfig | None:
    """Return the settings of a topic that deletes records by age or size; None for other topics."""
    config = TopicConfig.from_stored(topic.config)
    return config if config.deletes and max(config.retention_ms, config.retention_bytes) >= 0 else None
