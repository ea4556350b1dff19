"""Replaces the sources of plans that one compactor has made together.

A replacement is refused if the revision of its partition, or the version of its topic, is not that of the plan. A
compactor's own replacements raise the revision, too; they make none of its other plans obsolete.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

from txnstore.compactor.compact.clean_plan import CleanPlan
from txnstore.compactor.compact.failures import RefusedObjectError
from txnstore.compactor.compact.merge_plan import MergePlan
from txnstore.compactor.outdated import refusal
from txnstore.connection import Connection
from txnstore.core.catalog.model import CatalogTopic
from txnstore.core.maintenance import ReplaceSegments, check_revision, check_version
from txnstore.core.model import TopicPartition
from txnstore.core.routing import CATALOG, chain_of_partition
from txnstore.errors import (
    CompactionConflictError,
    CorruptionError,
    NoSpaceError,
    StorageError,
    StorageFullError,
    UnknownTopicOrPartitionError,
)
from txnstore.read.reader import is_missing, is_newer

T = TypeVar("T")


class Replacements:
    """Commits the replacements of one compactor, and knows the revisions that they have made."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        #: The revision of each partition after this compactor's own last replacement in it.
        self._own: dict[TopicPartition, int] = {}

    def replace(
        self,
        topic: CatalogTopic,
        plan: CleanPlan | MergePlan,
        upload: Callable[[], T],
        command: Callable[[T], ReplaceSegments],
    ) -> T:
        """Upload the segments of a plan, then replace its sources with one entry.

        Args:
            topic: The topic that the plan was made with.
            upload: Uploads the new segments; not called if the plan is obsolete.
            command: The command that registers what ``upload`` returned.

        Returns:
            What ``upload`` returned.

        Raises:
            CompactionConflictError: Another process has replaced or deleted batches, or altered the topic, since the
                plan was made; the uploads, if there are any, are left for a vacuum.
            CorruptionError: A source is damaged, or missing although the log still contains all of them.
            RefusedObjectError: The storage fails for a source or an upload, but not for the chain.
        """
        try:
            self._check(topic, plan)
            result = self._uploaded(upload)
            self._submit(topic, command(result))
        except CorruptionError as error:
            if is_newer(error):
                raise refusal(self._connection.chains, topic, error) from error
            # 1. Another compactor replaces a source. 2. After the grace period, a vacuum deletes the object. 3. This
            # compactor, slow or suspended, reads it and finds it missing: that is no damage.
            if is_missing(error) and self._is_overtaken(plan):
                raise CompactionConflictError(str(error)) from error
            raise
        return result

    def _uploaded(self, upload: Callable[[], T]) -> T:
        """What ``upload`` returns. A failure is that of its objects only if the storage still answers."""
        try:
            return upload()
        except (NoSpaceError, StorageFullError):
            raise
        except StorageError as error:
            self._connection.view()
            raise RefusedObjectError(str(error)) from error

    def _check(self, topic: CatalogTopic, plan: CleanPlan | MergePlan) -> None:
        """Check a plan against what this process knows of the chains, without a request, before its segments are read.

        Raises:
            CompactionConflictError: Another process has replaced or deleted batches, or altered the topic, since then.
        """
        chains, tp = self._connection.chains, plan.tp
        check_version(chains[CATALOG].state, tp, topic.topic_id, topic.version)
        state = chains[chain_of_partition(tp, len(chains))].state
        check_revision(tp, state.partitions.get(tp), self._own.get(tp, plan.revision))

    def _submit(self, topic: CatalogTopic, command: ReplaceSegments) -> None:
        """Commit a replacement, at the revision of this compactor's last one.

        Raises:
            CompactionConflictError: Another process has replaced or deleted batches, or altered the topic or begun to
                delete it, since then.
        """
        revision = self._own.get(command.tp, command.revision)
        command = replace(command, revision=revision, topic_id=topic.topic_id, topic_version=topic.version)
        try:
            self._own[command.tp] = self._connection.submit(command)
        except UnknownTopicOrPartitionError as error:  # The chain has closed the topic, and takes no newer copy of it.
            raise CompactionConflictError(f"topic {topic.name!r} is being deleted: {error}") from error

    def _is_overtaken(self, plan: CleanPlan | MergePlan) -> bool:
        """Whether the log no longer contains the batches of a plan, so that a vacuum may have deleted a source.

        A plan without batches reads nothing, so nothing of it can be missing.
        """
        log = self._connection.view().log(plan.tp)
        if log is None or not plan.removed:
            return log is None
        return tuple(log.batches.overlapping(plan.removed[0].base_offset, plan.removed[-1].limit)) != plan.removed
