"""Compacts a store: cleans by key, then merges, and replaces the sources; never blocks other clients."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from functools import cache, partial

from txnstore.catalog.writing import topic_writer
from txnstore.compactor.compact.cleaning import CleanResult, TopicLog, clean
from txnstore.compactor.compact.failures import PARTIAL, Failures
from txnstore.compactor.compact.lease import CompactionLease
from txnstore.compactor.compact.memory import Memory
from txnstore.compactor.compact.merge import Merged, merge, replacement
from txnstore.compactor.compact.merge_plan import MergePlan
from txnstore.compactor.compact.on_request import plan_merges
from txnstore.compactor.compact.options import CompactionOptions
from txnstore.compactor.compact.replacements import Replacements
from txnstore.compactor.compact.report import CompactionProgress, CompactionReport, PartitionCompaction, Progress
from txnstore.compactor.engine import Engine, Job, LocalEngine, time_of_upload
from txnstore.compactor.retention import RetentionReport, apply_retention
from txnstore.connection import Connection
from txnstore.coordinator.expiration import expire_due
from txnstore.core.authorization.rights import CLUSTER_ACTION
from txnstore.core.catalog.model import CatalogTopic
from txnstore.core.log.model import Partition
from txnstore.core.log.released import is_released
from txnstore.core.log.retention import with_log_start
from txnstore.core.model import TopicPartition
from txnstore.core.routing import chain_of_partition
from txnstore.core.view import View
from txnstore.errors import CompactionConflictError, CorruptionError, TxnStoreError, raise_or_report
from txnstore.runtime import Runtime
from txnstore.storage.base import ObjectStore

_LOG = logging.getLogger(__name__)

#: The maximum size of a merged segment in the Arrow format, even if ``segment.bytes`` is larger: it is read whole.
_MAX_ARROW_BYTES = 128 << 20


def largest_segment(topic: CatalogTopic, target: int | None = None) -> int:
    """The maximum size of a new segment of a topic, in bytes; ``target``: instead of its ``segment.bytes``.

    Raises:
        CorruptionError: The settings of the topic cannot be read.
    """
    config = topic_writer(topic).config
    size = config.segment_bytes if target is None else target
    return min(size, _MAX_ARROW_BYTES) if config.segment_format == "arrow" else size


def compact(
    connection: Connection,
    topic: str | None = None,
    *,
    target_bytes: int | None = None,
    min_segments: int = 2,
    dry_run: bool = False,
    progress: Progress | None = None,
    expire: bool = True,
    force: bool = False,
    memory_limit: int | None = None,
    past_hw: bool = False,
    engine: Engine | None = None,
    on_error: Callable[[TxnStoreError], object] | None = None,
) -> CompactionReport:
    """Apply retention (:func:`retain`), clean by key, merge small committed segments, and drop aborted data.

    A clean of a topic with ``cleanup.policy=compact`` keeps the newest committed record of each key, by offset. It
    takes the partitions whose dirty part is larger than ``min.cleanable.dirty.ratio``, or older than
    ``max.compaction.lag.ms``, and leaves records alone that are younger than ``min.compaction.lag.ms``. A tombstone
    goes ``delete.retention.ms`` after the first clean that reads it.

    Only batches below the last stable offset of a partition take part. Transactions that hold it back are completed
    first: those that are decided and lack a marker in the partition's chain, and those past their timeout (REC-01,
    TMO-01). Each merge is one entry of the partition's chain, so readers see either the old segments or the new one.
    Readers with an older snapshot read the replaced objects, which exist until a vacuum. A merge that conflicts with a
    concurrent compaction has no effect; its upload is left for the vacuum.

    The partitions to compact are leased, so that another compaction leaves them out and reports their number
    (``held``). A compactor that died holds them for three minutes.

    Args:
        connection: The connection to the store.
        topic: The topic; None for all.
        target_bytes: The maximum size of a merged segment; by default the topic's ``segment.bytes``. At most 128 MiB
            in the Arrow format.
        min_segments: The minimum number of segments of a merge.
        dry_run: Change nothing; return the expected result.
        progress: Called after each replacement.
        expire: Also expire unused state; see :meth:`txnstore.Store.expire`.
        force: Clean also partitions whose dirty part is small.
        memory_limit: The memory of a clean or a merge in bytes, by default 1 GiB and at least 128 MiB. Keys that do not
            fit are spilled to the temporary folder of the system.
        past_hw: Clean also above the last stable offset: decided records between two undecided ones supersede each
            other. The cleaner checkpoint stays below it, so they take part in the next clean again.
        engine: Executes cleans and merges; None: this process, one after another. This process plans, and commits what
            an engine has uploaded.
        on_error: Called at the end with the error of what could not be compacted, instead of raising it, so that the
            report of the rest is returned.

    Raises:
        ReadOnlyError: The store was opened read-only, and this is not a dry run.
        InvalidConfigError: ``memory_limit`` is too small.
        UnknownTopicOrPartitionError: The topic does not exist.
        CorruptionError: A topic cannot be read, or sources are missing or damaged; the message names all of them.
            Everything else is compacted and expired before this is raised, but a partition whose clean failed is not
            merged.
        NoSpaceError: A clean or merge cannot write to the temporary folder. The same, if nothing is damaged.
        StorageError: The storage refuses objects of a partition, or does not answer for them. The same. At once, if
            it does not answer at all.
    """
    options = CompactionOptions(
        target_bytes=target_bytes,
        min_segments=min_segments,
        dry_run=dry_run,
        progress=progress,
        expire=expire,
        force=force,
        memory_limit=memory_limit,
        past_hw=past_hw,
    )
    failures = Failures()
    report = compact_sound(connection, topic, options, failures, engine)
    raise_or_report(failures.error, on_error)
    return report


def compact_sound(
    connection: Connection,
    topic: str | None,
    options: CompactionOptions,
    failures: Failures,
    engine: Engine | None = None,
) -> CompactionReport:
    """:func:`compact` of what can be compacted.

    Args:
        topic: The topic; None for all.
        options: What to do.
        failures: Gets each topic that cannot be read, and each clean and merge of damaged segments or without space.
        engine: See :func:`compact`.
    """
    # A dry run calls no job, and the local engine runs only what is called.
    engine = LocalEngine(connection) if engine is None or options.dry_run else engine
    return _Compaction(connection, options, failures, engine).run(topic)


@dataclass(frozen=True, slots=True)
class _Scope:
    """What a compaction plans with. A plan of parts of several views would rest on a catalog older than its logs.

    Attributes:
        topics: The topics to compact, as the view has them.
        targets: The maximum size of a merged segment, by topic.
    """

    view: View
    topics: Sequence[CatalogTopic]
    targets: Mapping[str, int]


class _Compaction:
    """One compaction.

    Args:
        options: What to do.
        failures: Gets what cannot be compacted.
        engine: Executes cleans and merges.
        storage_clock: Returns the time of the storage; None: that of its first use, which costs one request.
    """

    def __init__(
        self,
        connection: Connection,
        options: CompactionOptions,
        failures: Failures,
        engine: Engine,
        storage_clock: Callable[[], int] | None = None,
    ) -> None:
        self._connection, self._options, self._failures, self._engine = connection, options, failures, engine
        self._storage_clock = storage_clock if storage_clock is not None else cache(connection.objects.now_ms)

    def run(self, name: str | None) -> CompactionReport:
        """Compact one topic, or all: apply the retention, clean, merge, and expire unused state, in this order."""
        connection, dry_run = self._connection, self._options.dry_run
        view = connection.view()
        if name is not None:
            view.find_topic(name)
        if not dry_run:
            connection.check_writable("it cannot be compacted")  # Before anything is uploaded.
            connection.check_rights(CLUSTER_ACTION)
            connection.chains.save_if_overdue()
        if not dry_run and connection.end_abandoned(_open_producers(view, _topics(view, name))):
            view = connection.view(refresh=False)
        scope = self._scope(view, name)
        retained = apply_retention(connection, view, scope.topics, dry_run=dry_run)
        if retained.partitions and not dry_run:
            scope = self._scope(connection.view(refresh=False), name)
        planned = self._expected_results(scope, retained)
        if dry_run:
            return CompactionReport(tuple(planned.values()), dry_run, retained)
        results, held_count = self._compact_leased(tuple(planned.values()), name)
        if self._options.expire:
            expire_due(connection.chains, connection.runtime.clock())
        report = CompactionReport(tuple(results.values()), dry_run, retained, held_count)
        _log_report(report, len(self._failures))
        return report

    def _scope(self, view: View, name: str | None) -> _Scope:
        """What is planned with, all of one view: the topic of this name or all, without those that cannot be read."""
        topics = _topics(view, name)
        targets = {topic.name: target for topic in topics if (target := self._target_bytes(topic)) is not None}
        return _Scope(view, [topic for topic in topics if topic.name in targets], targets)

    def _expected_results(self, scope: _Scope, retained: RetentionReport) -> dict[TopicPartition, PartitionCompaction]:
        """The expected results of the partitions that are due; no segment is read."""
        plan = replace(self._options, dry_run=True, progress=self._options.progress if self._options.dry_run else None)
        planner = _Compaction(self._connection, plan, Failures(), LocalEngine(self._connection), self._storage_clock)
        logs = _logs(scope, retained)
        return planner._merge(logs, scope, planner._clean(logs, scope))

    def _compact_leased(
        self, planned: Sequence[PartitionCompaction], name: str | None
    ) -> tuple[dict[TopicPartition, PartitionCompaction], int]:
        """Lease partitions that are due, and compact them; returns the results, and how many of them others hold."""
        held_count = 0

        def choose(others: frozenset[TopicPartition]) -> Collection[TopicPartition]:
            nonlocal held_count
            held_count = sum(partition.tp in others for partition in planned)
            return self._options.choose(planned, others)

        connection = self._connection
        with CompactionLease(connection.objects, connection.keys, connection.runtime) as lease:
            leased = lease.take(choose) if planned else frozenset[TopicPartition]()
            if not leased:
                return {}, held_count
            # Others may have compacted them and released their lease, or altered topics, since they were planned.
            return self._compact_partitions(name, leased), held_count

    def _compact_partitions(
        self, name: str | None, leased: Collection[TopicPartition]
    ) -> dict[TopicPartition, PartitionCompaction]:
        """Clean and merge these partitions."""
        scope = self._scope(self._connection.view(), name)
        results = self._clean(_logs(scope, selected=leased), scope)
        if results:
            scope = self._scope(self._connection.view(refresh=False), name)
        return self._merge(_logs(scope, selected=leased), scope, results)

    def _target_bytes(self, topic: CatalogTopic) -> int | None:
        """The maximum size of a merged segment; None, and a failure, for a topic that cannot be read."""
        try:
            return largest_segment(topic, self._options.target_bytes)
        except CorruptionError as error:
            self._failures.topic(topic.name, error)
            return None

    def _clean(self, logs: list[TopicLog], scope: _Scope) -> dict[TopicPartition, PartitionCompaction]:
        """Clean the partitions that are due; the results of these."""
        cleans = clean(
            self._connection, logs, scope.targets, self._options, self._failures, self._engine, self._storage_clock
        )
        return {tp: _with_cleans(_unchanged_result(tp, log), cleans[tp]) for _, tp, log in logs if tp in cleans}

    def _merge(
        self, logs: list[TopicLog], scope: _Scope, cleaned: Mapping[TopicPartition, PartitionCompaction]
    ) -> dict[TopicPartition, PartitionCompaction]:
        """Merge segments, but not where a clean failed; returns the results of the cleans and merges."""
        options = self._options
        work = [
            (
                topic,
                tp,
                log,
                plan_merges(
                    tp,
                    log,
                    scope.targets[topic.name],
                    options.min_segments,
                    topic_writer(topic).config,
                    partial(is_released, scope.view.states[chain_of_partition(tp, scope.view.chains)]),
                ),
            )
            for topic, tp, log in logs
            if tp not in self._failures.uncleaned
        ]
        total_bytes = sum(plan.removed_bytes for *_, plans in work for plan in plans)
        results = {
            tp: cleaned.get(tp, _unchanged_result(tp, log)) for _, tp, log, plans in work if plans or tp in cleaned
        }
        done_bytes, replacements = 0, Replacements.of(self._connection)
        for (topic, plan, started), upload in self._engine.run(self._merge_jobs(work)):
            result = results[plan.tp]
            try:
                results[plan.tp] = (
                    _with_plan(result, plan)
                    if options.dry_run
                    else _with_merge(result, topic, plan, started, upload, replacements)
                )
            except PARTIAL as error:
                self._failures.merge(plan.tp, error)
            done_bytes += plan.removed_bytes
            if options.progress is not None:
                options.progress(CompactionProgress(plan.tp, done_bytes, total_bytes))
        return results

    def _merge_jobs(
        self, work: Iterable[tuple[CatalogTopic, TopicPartition, Partition, list[MergePlan]]]
    ) -> Iterator[tuple[tuple[CatalogTopic, MergePlan, int], Job[Merged]]]:
        """The jobs that upload merged segments, each with its topic, its plan and the time from which on it uploads."""
        connection = self._connection
        for topic, tp, _, plans in work:
            for plan in plans:
                started = time_of_upload(connection.runtime, connection.chains, tp)
                yield (topic, plan, started), partial(_merge_one, topic=topic, plan=plan, memory=self._options.memory)


def _log_report(report: CompactionReport, failure_count: int) -> None:
    """Log what a compaction did, with the number of topics and partitions that failed."""
    counts = {
        "cleans": report.cleans,
        "superseded": report.superseded,
        "merges": report.merges,
        "records": report.records,
        "aborted": report.aborted,
        "failed": failure_count,
    }
    _LOG.info("compacted", extra={**counts, "conflicts": report.conflicts})


def _open_producers(view: View, topics: Iterable[CatalogTopic]) -> set[int]:
    """The producer ids with open transactions in these topics."""
    logs = (view.log(tp) for topic in topics for tp in _partitions(topic))
    return {producer_id for log in logs if log is not None for producer_id in log.open_txns}


def _topics(view: View, name: str | None) -> list[CatalogTopic]:
    """The topic of this name, or all; none if it was deleted."""
    if name is None:
        return view.sorted_topics()
    return [view.topics[name]] if name in view.topics else []


def _logs(
    scope: _Scope, retained: RetentionReport | None = None, selected: Collection[TopicPartition] | None = None
) -> list[TopicLog]:
    """The logs of all partitions, or of these; in a dry run without what the retention would delete.

    Each is in the state of its own chain, which decides a replacement. Nothing of a topic that is being deleted is
    compacted: a chain that has closed it may have an older copy, and takes no newer one.
    """
    new_starts: dict[TopicPartition, int] = {}
    if retained is not None and retained.dry_run:  # Else the logs of the view have the new starts.
        new_starts = {retention.tp: retention.new_log_start for retention in retained.partitions}
    logs: list[TopicLog] = []
    for topic in scope.topics:
        for tp in _partitions(topic):
            log = scope.view.log(tp)
            state = scope.view.states[chain_of_partition(tp, scope.view.chains)]
            if log is None or state.is_closed(topic) or (selected is not None and tp not in selected):
                continue
            logs.append((topic, tp, with_log_start(log, new_starts[tp]) if tp in new_starts else log))
    return logs


def _partitions(topic: CatalogTopic) -> list[TopicPartition]:
    """The partitions of a topic in order."""
    return [TopicPartition(topic.name, number) for number in range(topic.partitions)]


def _unchanged_result(tp: TopicPartition, partition: Partition) -> PartitionCompaction:
    """The result of a compaction that does nothing to a partition."""
    sizes = [batch.size for batch in partition.batches]
    return PartitionCompaction(tp, len(sizes), len(sizes), sum(sizes), sum(sizes))


def _with_cleans(result: PartitionCompaction, cleans: Iterable[CleanResult]) -> PartitionCompaction:
    """The result with the cleans of the partition."""
    for clean_result in cleans:
        plan, cleaned = clean_result.plan, clean_result.cleaned
        removed_batches = plan.removed if cleaned.changed else ()
        added_bytes = sum(batch.size for batch in cleaned.added)
        removed_bytes = sum(batch.size for batch in removed_batches)
        result = replace(
            result,
            segments_after=result.segments_after + len(cleaned.added) - len(removed_batches),
            bytes_after=result.bytes_after + added_bytes - removed_bytes,
            aborted=result.aborted + (plan.aborted if cleaned.changed else 0),
            bytes_read=result.bytes_read + plan.removed_bytes,
            dirty_ratio=max(result.dirty_ratio, plan.dirty_ratio),
            conflicts=result.conflicts + clean_result.conflict,
            cleans=result.cleans + (not clean_result.conflict),
            superseded=result.superseded + cleaned.superseded + cleaned.keyless,
            tombstones=result.tombstones + cleaned.tombstones,
        )
    return result


def _with_plan(result: PartitionCompaction, plan: MergePlan) -> PartitionCompaction:
    """The result with a plan of a dry run: the merged segment is assumed to be as large as its sources."""
    return _with_replacement(result, plan, 1 if plan.sources else 0, plan.source_bytes)


def _merge_one(
    objects: ObjectStore, pool: Executor, runtime: Runtime, *, topic: CatalogTopic, plan: MergePlan, memory: Memory
) -> Merged:
    (merged,) = merge(objects, pool, runtime, topic=topic, plans=[plan], memory=memory)
    return merged


def _with_merge(
    result: PartitionCompaction,
    topic: CatalogTopic,
    plan: MergePlan,
    started: int,
    upload: Callable[[], Merged],
    replacements: Replacements,
) -> PartitionCompaction:
    """Upload a merged segment and replace its sources; returns the result with it."""
    try:
        added_batches, _ = replacements.replace(topic, plan, upload, lambda merged: replacement(plan, merged, started))
    except CompactionConflictError as error:
        _LOG.info("merge had no effect: concurrent change", extra={"partition": str(plan.tp), "reason": str(error)})
        return replace(result, conflicts=result.conflicts + 1)
    return _with_replacement(result, plan, len(added_batches), sum(batch.size for batch in added_batches))


def _with_replacement(result: PartitionCompaction, plan: MergePlan, merges: int, size: int) -> PartitionCompaction:
    """Return the result with one more replacement counted."""
    return replace(
        result,
        segments_after=result.segments_after - len(plan.removed) + merges,
        bytes_after=result.bytes_after - plan.removed_bytes + size,
        merges=result.merges + merges,
        records=result.records + plan.records,
        aborted=result.aborted + plan.aborted,
        bytes_read=result.bytes_read + plan.source_bytes,
    )
