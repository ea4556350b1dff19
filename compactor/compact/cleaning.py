"""Cleans the partitions of topics with ``cleanup.policy=compact``: plans, executes, and replaces, filthiest first."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Executor
from dataclasses import dataclass, field
from functools import partial

from txnstore.catalog.writing import topic_writer
from txnstore.compactor.compact.clean import Clean, Cleaned
from txnstore.compactor.compact.clean_plan import CleanPlan, plan_clean, plan_past_hw
from txnstore.compactor.compact.copying import Copying
from txnstore.compactor.compact.failures import PARTIAL, Failures
from txnstore.compactor.compact.memory import Memory
from txnstore.compactor.compact.options import CompactionOptions
from txnstore.compactor.compact.replacements import Replacements
from txnstore.compactor.engine import Engine, Job, time_of_upload
from txnstore.connection import Connection
from txnstore.core.catalog.model import CatalogTopic
from txnstore.core.log.model import Partition
from txnstore.core.maintenance import ReplaceSegments
from txnstore.core.model import TopicPartition
from txnstore.errors import CompactionConflictError
from txnstore.runtime import Runtime
from txnstore.storage.base import ObjectStore

_LOG = logging.getLogger(__name__)


#: A topic, one of its partitions, and the log of that.
TopicLog = tuple[CatalogTopic, TopicPartition, Partition]


@dataclass(frozen=True, slots=True)
class CleanResult:
    """The clean of one partition.

    Attributes:
        cleaned: What the clean did; nothing in a dry run.
        conflict: Whether it had no effect, because the log was changed concurrently.
    """

    plan: CleanPlan
    cleaned: Cleaned = field(default_factory=Cleaned)
    conflict: bool = False


def clean(
    connection: Connection,
    logs: Iterable[TopicLog],
    targets: Mapping[str, int],
    options: CompactionOptions,
    failures: Failures,
    engine: Engine,
    storage_clock: Callable[[], int],
) -> dict[TopicPartition, list[CleanResult]]:
    """Clean the partitions that are due (CMP-20); those of other policies are passed over.

    A clean is one entry: readers see the old segments and the old checkpoint, or the new ones (CMP-22).

    Args:
        logs: The partitions, with their topics and logs.
        targets: The maximum size of a new segment, by topic.
        options: How to clean.
        failures: Gets the cleans that failed; the other partitions are cleaned.
        engine: Executes the cleans.
        storage_clock: Returns the time of the storage, which is requested only if there is something to clean.
    """
    compacted_logs = [(topic, tp, log) for topic, tp, log in logs if _is_compacted(topic)]
    if not compacted_logs:
        return {}
    # The clock of the storage: that of this machine may be wrong, and would remove tombstones early.
    now = storage_clock()
    plans = [(topic, plan) for topic, tp, log in compacted_logs for plan in _due_cleans(topic, tp, log, now, options)]
    plans.sort(key=lambda topic_and_plan: topic_and_plan[1].dirty_ratio, reverse=True)

    def jobs() -> Iterator[tuple[tuple[CatalogTopic, CleanPlan, int], Job[Cleaned]]]:
        for topic, plan in plans:
            target_bytes = targets[topic.name]
            job: Job[Cleaned] = partial(
                _clean_partition, topic=topic, plan=plan, now=now, target_bytes=target_bytes, memory=options.memory
            )
            yield (topic, plan, time_of_upload(connection.runtime, connection.chains, plan.tp)), job

    results: dict[TopicPartition, list[CleanResult]] = {}
    replacements = Replacements.of(connection)
    for (topic, plan, started_at), upload in engine.run(jobs()):
        try:
            if options.dry_run:
                result = CleanResult(plan)
            else:
                result = _replace_cleaned(topic, plan, started_at, upload, replacements)
        except PARTIAL as error:
            failures.clean(plan.tp, error)
            continue
        results.setdefault(plan.tp, []).append(result)
        had_no_effect = not (options.dry_run or result.conflict or result.cleaned.changed)
        if plan.past_hw and had_no_effect and options.known_clean is not None:
            options.known_clean.add(plan)
    return results


def _due_cleans(
    topic: CatalogTopic, tp: TopicPartition, log: Partition, now: int, options: CompactionOptions
) -> Iterable[CleanPlan]:
    """The cleans of a partition that are due."""
    config = topic_writer(topic).config
    plan = plan_clean(tp, log, config, now, force=options.force)
    if plan is not None:
        yield plan
    if options.past_hw:
        known_clean = options.known_clean.keys_of(tp, log) if options.known_clean is not None else ()
        yield from plan_past_hw(tp, log, config, now, force=options.force, known_clean=known_clean)


def _is_compacted(topic: CatalogTopic) -> bool:
    """Whether the newest record of each key of the topic stays. Without a key column all records would go."""
    writer = topic_writer(topic)
    return writer.config.compacts and writer.key_column is not None


def _clean_partition(
    objects: ObjectStore,
    pool: Executor,
    runtime: Runtime,
    *,
    topic: CatalogTopic,
    plan: CleanPlan,
    now: int,
    target_bytes: int,
    memory: Memory,
) -> Cleaned:
    """Copy what stays of the sources of one plan."""
    copying = Copying(objects, pool, runtime, topic, plan, target_bytes, memory)
    return Clean(copying, plan, now).run()


def _replace_cleaned(
    topic: CatalogTopic, plan: CleanPlan, started: int, upload: Callable[[], Cleaned], replacements: Replacements
) -> CleanResult:
    """Upload the records that stay, then replace the sources and move the checkpoint with one entry."""

    def command(cleaned: Cleaned) -> ReplaceSegments:
        return ReplaceSegments(
            plan.tp,
            plan.removed if cleaned.changed else (),
            tuple(cleaned.added),
            started,
            clean_until=plan.clean_until,
            past_hw=plan.past_hw,
            sums=cleaned.sums,
            revision=plan.revision,
        )

    try:
        cleaned = replacements.replace(topic, plan, upload, command)
    except CompactionConflictError as error:
        _LOG.info("clean had no effect: concurrent change", extra={"partition": str(plan.tp), "reason": str(error)})
        return CleanResult(plan, conflict=True)
    counts = {"superseded": cleaned.superseded, "tombstones": cleaned.tombstones, "clean_until": plan.clean_until}
    _LOG.info("cleaned", extra={"partition": str(plan.tp), **counts})
    return CleanResult(plan, cleaned)
