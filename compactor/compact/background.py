"""Merges small commits: in the background of the process whose entry makes a checkpoint due, never in a commit.

The rows of small commits are in memory of a process that follows the chain. So a merge costs no GET for them, one PUT
for each topic, and no entry of its own if another command comes soon. The chain refuses it if another process has
replaced one of its batches, and what it has uploaded is then left to a vacuum.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from txnstore.catalog.settings import TopicConfig
from txnstore.catalog.writing import topic_writer
from txnstore.compactor.compact.lease import CompactionLease
from txnstore.compactor.compact.memory import MIN_MEMORY, Memory
from txnstore.compactor.compact.merge import merge, replacement
from txnstore.compactor.compact.merge_plan import MergePlan
from txnstore.compactor.compact.replacements import Replacements
from txnstore.compactor.compact.small_commits import inlined_only, plan_small_commits
from txnstore.compactor.engine import time_of_upload
from txnstore.connection import OpenParts
from txnstore.coordinator.completion import LINGER
from txnstore.coordinator.copies import copy_topics
from txnstore.core.catalog.model import CatalogTopic
from txnstore.core.log.model import Partition
from txnstore.core.maintenance import ReplaceSegments
from txnstore.core.model import Command, Map, TopicPartition
from txnstore.core.routing import CATALOG
from txnstore.core.state import State
from txnstore.errors import CompactionConflictError, CorruptionError, StorageError, TxnStoreError

_LOG = logging.getLogger(__name__)

#: The most replacements of an entry, each of which takes about a kilobyte.
_REPLACEMENTS_PER_ENTRY = 1024
#: What is fetched ahead, decoded and encoded at a time, in the thread of the merge.
_MEMORY = Memory(MIN_MEMORY)


@dataclass(slots=True)
class BackgroundReport:
    """What the merges of a chain have done.

    Attributes:
        batches: The number of batches that were replaced.
        left: The partitions of which something is left to merge, though they may never change again.
        failures: Topics with the reason why, except for leases of compactors and replacements by others.
        damaged: The objects of older segments that could not be merged: they, or others with them, are damaged.
    """

    batches: int = 0
    left: set[TopicPartition] = field(default_factory=set)
    failures: list[tuple[str, Exception]] = field(default_factory=list)
    damaged: set[str] = field(default_factory=set)

    @property
    def errors(self) -> list[Exception]:
        """The reasons of the failures."""
        return [error for _, error in self.failures]

    def leave(self, topic: CatalogTopic, partitions: Iterable[TopicPartition], error: Exception | None = None) -> None:
        """Leave partitions of a topic for the merges after the next checkpoint."""
        self.left.update(partitions)
        if isinstance(error, CompactionConflictError):
            _LOG.info("small commits not merged: concurrent change", extra={"reason": str(error)})
        elif error is not None:
            self.failures.append((topic.name, error))


class _ClosedError(Exception):
    """The connection was closed meanwhile."""


class _BackgroundMerger:
    """Merges the small commits of a chain, in one task at a time."""

    def __init__(self) -> None:
        #: Held by the task, from before it is submitted.
        self._task_lock = threading.Lock()
        #: The logs of which nothing was left, as they were planned. Written by the task, as the next two.
        self._merged_logs: Map[TopicPartition, Partition] = Map()
        #: The kinds of failures of the last task: a process that may not write a topic has one each time, and others
        #: merge that.
        self._failed_kinds = set[tuple[str, type[Exception]]]()
        #: The objects that stay as they are: see :attr:`BackgroundReport.damaged`.
        self._damaged_objects = set[str]()

    def begin(self, parts: OpenParts, state: State, submit: Callable[..., object]) -> None:
        """Merge by a task, unless one does so already."""
        if not self._task_lock.acquire(blocking=False):
            return
        try:
            submit(self._merge, parts, state)
        except BaseException:
            self._task_lock.release()
            raise

    def _merge(self, parts: OpenParts, state: State) -> None:
        """Merge the small commits of a chain since the last time, then release the task lock, which the caller holds.

        An error is logged and counted.
        """
        try:
            if not parts.open:
                return  # The task runs in the thread of a commit that a close has overtaken.
            report = merge_small_commits(parts, state, self._merged_logs, self._damaged_objects)
            self._damaged_objects |= report.damaged
            parts.chains[state.chain].metrics.background_merged_batches += report.batches
            self._merged_logs = state.partitions
            for tp in report.left:
                self._merged_logs = self._merged_logs.discard(tp)
            self._report(parts, state, report.failures)
        except Exception as error:  # noqa: BLE001 - logged and counted; the next checkpoint tries again
            self._report(parts, state, [("", error)])
        finally:
            self._task_lock.release()

    def _report(self, parts: OpenParts, state: State, failures: Iterable[tuple[str, Exception]]) -> None:
        """Count failures, and log them: as a warning the first one of its kind, that is of a topic and a class."""
        earlier_kinds, self._failed_kinds = self._failed_kinds, set()
        for topic, error in failures:
            kind = topic, type(error)
            is_known = kind in earlier_kinds or kind in self._failed_kinds
            _report_failure(parts, state, error, logging.INFO if is_known else logging.WARNING)
            self._failed_kinds.add(kind)


def merge_later(parts: OpenParts, state: State, *, in_background: bool = False) -> None:
    """Merge the small commits of a chain in the background, unless a thread does so: the next checkpoint has the rest.

    Raises nothing: the commit that made it due is durable. A failure is logged and counted.

    Args:
        in_background: This thread is one of the background: it merges.
    """
    try:
        merger: _BackgroundMerger = parts.connection.cached((_BackgroundMerger, state.chain), _BackgroundMerger)
        merger.begin(parts, state, _call if in_background else parts.background.submit)
    except Exception as error:  # noqa: BLE001 - no thread or no memory for the task: logged and counted
        _report_failure(parts, state, error)


def _call(merge: Callable[..., object], *arguments: object) -> None:
    merge(*arguments)


def _report_failure(parts: OpenParts, state: State, error: Exception, level: int = logging.WARNING) -> None:
    parts.chains[state.chain].metrics.background_merge_failures += 1
    extra = {"chain": state.chain, "sequence": state.sequence, "error": f"{type(error).__name__}: {error}"}
    _LOG.log(level, "small commits not merged: %s", error, extra=extra)


def merge_small_commits(
    parts: OpenParts, state: State, merged_logs: Map[TopicPartition, Partition], damaged: Collection[str] = ()
) -> BackgroundReport:
    """Merge the small commits of a chain. One topic after the other, so that a damaged one holds no other one up.

    Costs a LIST for the leases of compactors, and for each topic with small commits one PUT, and GETs of what is not in
    memory; in a store with several chains also a GET for the catalog. A backlog is merged by 16 MiB of entries at a
    time, each of which is fetched once: memory holds these, some megabytes of rows, and of the segments that are merged
    with them what is stored, and some decoded row groups, up to 64 MiB each. Ends early if the connection is closed.

    Args:
        merged_logs: See :func:`plan_small_commits`.
        damaged: The same.

    Raises:
        TxnStoreError: The storage failed before anything was merged.
    """
    report = BackgroundReport()

    def config_of(topic: CatalogTopic) -> TopicConfig | None:
        try:
            return topic_writer(topic).config
        except CorruptionError as error:
            report.leave(topic, (TopicPartition(topic.name, number) for number in range(topic.partitions)), error)
            return None

    planned = plan_small_commits(state, merged_logs, config_of, damaged)
    if not planned:
        return report
    connection = parts.connection
    leased = CompactionLease(connection.objects, parts.chains.keys, connection.runtime).others()
    catalog = state if state.chain == CATALOG else parts.chains[CATALOG].refresh()
    merges = _Merges(parts, state.chain, report)
    for topic_merge in planned:
        topic = catalog.topics.get(topic_merge.topic.name)
        report.left |= leased.intersection(plan.tp for plan in topic_merge.plans)
        if topic is not None and topic.topic_id == topic_merge.topic.topic_id:  # Else it was deleted.
            # The topic of the catalog, which is read after the logs: what older releases wrote may have columns that
            # the chain's copy lacks.
            merges.merge_topic(topic, [plan for plan in topic_merge.plans if plan.tp not in leased])
    return report


class _Merges:
    """Executes the merges of the small commits of a chain, and adds to a report what became of them."""

    def __init__(self, parts: OpenParts, number: int, report: BackgroundReport) -> None:
        self._parts, self._report = parts, report
        self._chain = parts.chains[number]
        self._replacements = Replacements(parts.chains, self._submit_all)

    def merge_topic(self, topic: CatalogTopic, planned: Sequence[MergePlan]) -> bool:
        """Merge a part of a topic into one segment.

        Returns:
            Whether all that was planned was merged and uploaded; the chain may still have refused it.
        """
        plans = [plan for plan in planned if self._is_current(topic, plan)]
        if not plans:
            return not planned
        parts = self._parts
        try:
            self._check_open()
            self._chain.check_features()
            self._update_copy(topic)
            objects, runtime = parts.connection.objects, parts.connection.runtime
            started = time_of_upload(runtime, parts.chains, plans[0].tp)
            merged = merge(
                objects, parts.pool, runtime, topic=topic, plans=plans, memory=_MEMORY, check=self._check_open
            )
        except _ClosedError:
            self._report.leave(topic, {plan.tp for plan in plans})
            return False
        except Exception as error:  # noqa: BLE001 - of this topic only
            self._leave_failed(topic, plans, error)
            return False
        commands = [replacement(plan, added, started) for plan, added in zip(plans, merged, strict=True)]
        self._submit_replacements(topic, commands)
        return len(plans) == len(planned)

    def _leave_failed(self, topic: CatalogTopic, plans: Sequence[MergePlan], error: Exception) -> None:
        """Report a merge that failed, and merge the small commits of its plans without the older segments."""
        if isinstance(error, CorruptionError):
            with suppress(TxnStoreError):  # A chain that cannot be read does not tell why: it is damage until then.
                error = self._replacements.reason(topic, plans, error)
        self._report.leave(topic, {plan.tp for plan in plans}, error)
        older = {batch.segment.object for plan in plans for batch in plan.removed if not batch.segment.inlined}
        # One of these objects cannot be read, which one is unknown: it must not keep later commits from being merged.
        # One that the storage does not answer for may be read the next time.
        if older and isinstance(error, CorruptionError | StorageError):
            others_merged = self.merge_topic(topic, [*inlined_only(plans)])
            if others_merged and isinstance(error, CorruptionError):
                self._report.damaged |= older

    def _submit_replacements(self, topic: CatalogTopic, commands: Sequence[ReplaceSegments]) -> None:
        """Commit the replacements, and report what the chain refused."""
        for first in range(0, len(commands), _REPLACEMENTS_PER_ENTRY):
            chunk = commands[first : first + _REPLACEMENTS_PER_ENTRY]
            refused = self._replacements.submit(topic, chunk)
            for tp, reason in refused.items():
                self._report.leave(topic, [tp], reason)
            self._report.batches += sum(len(command.removed) for command in chunk if command.tp not in refused)

    def _is_current(self, topic: CatalogTopic, plan: MergePlan) -> bool:
        """Whether the chain may accept a plan: nothing is uploaded for one that it would refuse."""
        try:
            self._replacements.check(topic, plan)
        except CompactionConflictError as error:
            self._report.leave(topic, [plan.tp], error)
            return False
        return True

    def _update_copy(self, topic: CatalogTopic) -> None:
        """Copy a topic to a chain that has an older version, and would refuse a plan with this one."""
        copy = self._chain.state.topics.get(topic.name)
        if copy is not None and copy.topic_id == topic.topic_id and copy.version < topic.version:
            copy_topics(self._parts.chains, self._chain.number, [topic.name])

    def _submit_all(self, commands: Sequence[Command]) -> list[Any]:
        """Commit commands with the next entry of this process, or after a moment with one of their own."""
        waiters = [self._chain.enqueue(command) for command in commands]
        self._parts.connection.runtime.sleep(LINGER)
        answers: list[Any] = []
        for waiter in waiters:
            try:
                answers.append(self._chain.commit_queued(waiter))
            except TxnStoreError as error:
                answers.append(error)
        return answers

    def _check_open(self) -> None:
        if not self._parts.open:
            raise _ClosedError
