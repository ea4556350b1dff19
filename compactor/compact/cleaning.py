"""Cleans the partitions of topics with ``cleanup.policy=compact``: plans, executes, and replaces, filthiest first."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import partial

from txnstore.catalog.writing import topic_writer
from txnstore.compactor.compact.clean import Clean, Cleaned
from txnstore.compactor.compact.clean_plan import CleanPlan, Settled, plan_clean, plan_past_hw
from txnstore.compactor.compact.failures import PARTIAL, Failures
from txnstore.compactor.compact.memory import DEFAULT_MEMORY, MIN_MEMORY, Memory
from txnstore.compactor.compact.revisions import Revisions
from txnstore.compactor.engine import Engine, Job, time_of_upload
from txnstore.connection import Connection
from txnstore.core.catalog.model import Topic
from txnstore.core.log.model import Partition
from txnstore.core.maintenance import ReplaceSegments
from txnstore.core.model import TopicPartition
from txnstore.errors import CompactionConflictError, CorruptionError, InvalidConfigError
from txnstore.read.reader import is_missing
from txnstore.runtime import Runtime
from txnstore.storage.base import ObjectStore
from txnstore.validation import check_integer

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class CleanOptions:
    """How to clean.

    Attributes:
        force: Clean also partitions whose dirty part is small (``min.cleanable.dirty.ratio``).
        memory_limit: The memory of a clean in bytes; by default 1 GiB.
        dry_run: Only plan.
        past_hw: Clean also above the transactional high-watermark, around what is undecided.
        settled: What cleans above it need not read again, because an earlier one found nothing to remove; gets what
            this one finds. None: each reads all that is due.
    """

    force: bool = False
    memory_limit: int | None = None
    dry_run: bool = False
    past_hw: bool = False
    settled: Settled | None = None

    def __post_init__(self) -> None:
        if self.memory_limit is not None:
            check_integer("memory_limit", self.memory_limit, 1)
            if self.memory_limit < MIN_MEMORY:
                msg = f"memory_limit is {self.memory_limit:,} bytes; a clean needs at least {MIN_MEMORY:,}"
                raise InvalidConfigError(msg)

    @property
    def memory(self) -> Memory:
        """The memory of a clean."""
        return Memory(self.memory_limit if self.memory_limit is not None else DEFAULT_MEMORY)


@dataclass(frozen=True, slots=True)
class CleanResult:
    """The clean of one partition; ``conflict``: it had no effect, because the log was changed concurrently."""

    plan: CleanPlan
    done: Cleaned
    conflict: bool = False


def clean(
    connection: Connection,
    work: Iterable[tuple[Topic, TopicPartition, Partition]],
    targets: Mapping[str, int],
    options: CleanOptions,
    failures: Failures,
    engine: Engine,
) -> dict[TopicPartition, list[CleanResult]]:
    """Clean the partitions that are due (CMP-20); those of other policies are passed over.

    A clean is one entry: readers see the old segments and the old checkpoint, or the new ones (CMP-22).

    Args:
        connection: The connection to the store.
        work: The partitions, with their topics and logs.
        targets: The maximum size of a new segment, by topic.
        options: How to clean.
        failures: Gets the cleans that failed; the other partitions are cleaned.
        engine: Executes the cleans.
    """
    compacted = [item for item in work if _is_compacted(item[0])]
    if not compacted:
        return {}
    # The clock of the storage: that of this machine may be wrong, and would remove tombstones early.
    now = connection.objects.now_ms()
    plans = [(topic, plan) for topic, tp, log in compacted for plan in _plans(topic, tp, log, now, options)]
    plans.sort(key=lambda item: item[1].dirty_ratio, reverse=True)

    def job(topic: Topic, plan: CleanPlan) -> Job[Cleaned]:
        return partial(_clean, topic=topic, plan=plan, now=now, target_bytes=targets[topic.name], memory=options.memory)

    jobs = (((topic, plan, time_of_upload(connection, plan.tp)), job(topic, plan)) for topic, plan in plans)
    found: dict[TopicPartition, list[CleanResult]] = {}
    revisions = Revisions(connection)
    for (topic, plan, started), run in engine.run(jobs):
        if options.dry_run:
            found.setdefault(plan.tp, []).append(CleanResult(plan, Cleaned()))
            continue
        try:
            result = _replace(connection, topic, plan, started, run, revisions)
            found.setdefault(plan.tp, []).append(result)
            if options.settled is not None and plan.past_hw and not (result.conflict or result.done.changed):
                options.settled.add(plan)
        except PARTIAL as error:
            failures.clean(plan.tp, error)
    return found


def _plans(topic: Topic, tp: TopicPartition, log: Partition, now: int, options: CleanOptions) -> Iterable[CleanPlan]:
    """The cleans of a partition that are due."""
    config = topic_writer(topic).config
    plan = plan_clean(tp, log, config, now, force=options.force)
    if plan is not None:
        yield plan
    if options.past_hw:
        settled = options.settled.known(tp, log) if options.settled is not None else ()
        yield from plan_past_hw(tp, log, config, now, force=options.force, settled=settled)


def _is_compacted(topic: Topic) -> bool:
    """Whether the newest record of each key of the topic stays. Without a key column all records would go."""
    writer = topic_writer(topic)
    return writer.config.compacts and writer.key_column is not None


def _clean(
    objects: ObjectStore,
    pool: Executor,
    runtime: Runtime,
    *,
    topic: Topic,
    plan: CleanPlan,
    now: int,
    target_bytes: int,
    memory: Memory,
) -> Cleaned:
    return Clean(objects, pool, runtime, topic, plan, now, target_bytes, memory).run()


def _replace(
    connection: Connection,
    topic: Topic,
    plan: CleanPlan,
    started: int,
    run: Callable[[], Cleaned],
    revisions: Revisions,
) -> CleanResult:
    """Upload the records that stay, then replace the sources and move the checkpoint with one entry."""
    try:
        revisions.check(plan.tp, plan.revision)
        done = run()
        removed = plan.removed if done.changed else ()
        command = ReplaceSegments(
            plan.tp,
            removed,
            tuple(done.added),
            started,
            clean_until=plan.clean_until,
            topic_id=topic.topic_id,
            past_hw=plan.past_hw,
            sums=done.sums,
            revision=plan.revision,
        )
        revisions.submit(command)
    except (CompactionConflictError, CorruptionError) as error:
        if isinstance(error, CorruptionError) and not (is_missing(error) and _overtaken(connection, plan)):
            raise
        _LOG.info("clean had no effect: concurrent change", extra={"partition": str(plan.tp), "reason": str(error)})
        return CleanResult(plan, Cleaned(), conflict=True)
    counts = {"superseded": done.superseded, "tombstones": done.tombstones, "clean_until": plan.clean_until}
    _LOG.info("cleaned", extra={"partition": str(plan.tp), **counts})
    return CleanResult(plan, done)


def _overtaken(connection: Connection, plan: CleanPlan) -> bool:
    """Whether the log no longer contains the batches of the plan, so that a vacuum may have deleted a source."""
    log = connection.view().log(plan.tp)
    if log is None or not plan.removed:
        return True
    return tuple(log.batches.overlapping(plan.removed[0].base_offset, plan.removed[-1].limit)) != plan.removed
