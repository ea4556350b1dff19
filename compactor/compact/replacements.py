"""Replaces the sources of plans that one compactor has made together.

A replacement is refused if the revision of its partition, or the version of its topic, is not that of the plan. A
compactor's own replacements raise the revision, too; they make none of its other plans obsolete.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any, TypeAlias, TypeVar

from txnstore.chain.chains import Chains
from txnstore.compactor.compact.failures import RefusedObjectError
from txnstore.compactor.compact.merge_plan import Plan
from txnstore.connection import Connection
from txnstore.core.catalog.model import CatalogTopic
from txnstore.core.log.model import Partition
from txnstore.core.maintenance import EraseRecords, ReplaceRuns, ReplaceSegments, check_revision, check_version
from txnstore.core.model import Command, TopicPartition
from txnstore.core.routing import CATALOG, chain_of_partition
from txnstore.errors import (
    CompactionConflictError,
    CorruptionError,
    NoSpaceError,
    StorageError,
    StorageFullError,
    TxnStoreError,
    UnknownTopicOrPartitionError,
)
from txnstore.read.reader import is_missing, is_newer

T = TypeVar("T")

#: Commits commands, together where that is possible; returns the answer, or the error, of each.
SubmitAll: TypeAlias = Callable[[Sequence[Command]], Sequence[Any]]


class Replacements:
    """Commits the replacements of one compactor, and knows the revisions that they have made.

    Args:
        submit_all: Commits them.
    """

    def __init__(self, chains: Chains, submit_all: SubmitAll) -> None:
        self._chains, self._submit_all = chains, submit_all
        #: The revision of each partition after this compactor's own last replacement in it.
        self._own_revisions: dict[TopicPartition, int] = {}

    @classmethod
    def of(cls, connection: Connection) -> Replacements:
        """Make the replacements of a compaction on request: it commits each command before it continues."""

        def submit_all(commands: Sequence[Command]) -> Sequence[Any]:
            return connection.submit_all([(command, None) for command in commands])

        return cls(connection.chains, submit_all)

    def replace(
        self,
        topic: CatalogTopic,
        plan: Plan,
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
        self.check(topic, plan)
        try:
            result = upload()
        except CorruptionError as error:
            reason = self.reason(topic, [plan], error)
            if reason is error:
                raise
            raise reason from error
        except (NoSpaceError, StorageFullError):
            raise
        except StorageError as error:  # It is one of these objects only if the storage still answers.
            self._chains.view()
            raise RefusedObjectError(str(error)) from error
        for refusal in self.submit(topic, [command(result)]).values():
            raise refusal
        return result

    def check(self, topic: CatalogTopic, plan: Plan) -> None:
        """Check a plan against what this process knows of the chains, without a request, before its segments are read.

        Raises:
            CompactionConflictError: Another process has replaced or deleted batches, or altered the topic, since then.
        """
        chains, tp = self._chains, plan.tp
        check_version(chains[CATALOG].state, tp, topic.topic_id, topic.version)
        state = chains[chain_of_partition(tp, len(chains))].state
        check_revision(tp, state.partitions.get(tp), self._own_revisions.get(tp, plan.revision))

    def submit(
        self, topic: CatalogTopic, commands: Iterable[ReplaceSegments], *, erases: bool = False
    ) -> dict[TopicPartition, TxnStoreError]:
        """Commit replacements, at the revisions of this compactor's last ones: all of a partition, or none.

        Args:
            erases: They are of an erasure, which needs its own right.

        Returns:
            The error of each partition that was refused. A :class:`CompactionConflictError`: another process has
            replaced or deleted batches, or altered the topic or begun to delete it, since the plan was made.
        """
        runs: dict[TopicPartition, list[ReplaceSegments]] = {}
        for command in commands:
            revision = self._own_revisions.get(command.tp, command.revision)
            command = replace(command, revision=revision, topic_id=topic.topic_id, topic_version=topic.version)
            runs.setdefault(command.tp, []).append(command)
        combined: list[Command]
        if erases:
            combined = [EraseRecords(tuple(run)) for run in runs.values()]
        else:
            combined = [run[0] if len(run) == 1 else ReplaceRuns(tuple(run)) for run in runs.values()]
        refused: dict[TopicPartition, TxnStoreError] = {}
        for tp, answer in zip(runs, self._submit_all(combined), strict=True):
            if isinstance(answer, UnknownTopicOrPartitionError):  # The chain has closed it, and takes no newer copy.
                refused[tp] = CompactionConflictError(f"topic {topic.name!r} is being deleted: {answer}")
            elif isinstance(answer, TxnStoreError):
                refused[tp] = answer
            elif isinstance(answer, BaseException):
                raise answer
            else:
                self._own_revisions[tp] = answer
        return refused

    def reason(
        self, topic: CatalogTopic, plans: Iterable[Plan], error: CorruptionError
    ) -> CompactionConflictError | CorruptionError:
        """Why sources of plans could not be read: damage, or another process has altered the topic or replaced them.

        1. Another compactor replaces a source. 2. After the grace period, a vacuum deletes the object. 3. This
        compactor, slow or suspended, reads it and finds it missing: that is no damage. Nor is a column that the topic
        of the plan does not know, if the topic was altered since: who wrote the source has read the catalog before.
        Costs a GET for the catalog, or for each chain.
        """
        if is_newer(error):
            newest = self._chains[CATALOG].refresh().topics.get(topic.name)
            if newest is None or (newest.topic_id, newest.version) != (topic.topic_id, topic.version):
                return CompactionConflictError(f"topic {topic.name!r} was altered since the plan was made: {error}")
        elif is_missing(error):
            by_chain: dict[int, list[Plan]] = {}
            for plan in plans:
                by_chain.setdefault(chain_of_partition(plan.tp, len(self._chains)), []).append(plan)
            for number, its_plans in by_chain.items():  # No other chain: one that cannot be read stops none of these.
                partitions = self._chains[number].refresh().partitions
                if any(_is_overtaken(partitions.get(plan.tp), plan) for plan in its_plans):
                    return CompactionConflictError(str(error))
        return error


def _is_overtaken(log: Partition | None, plan: Plan) -> bool:
    """Whether a log no longer contains the batches of a plan, so that a vacuum may have deleted a source.

    A plan without batches reads nothing, so nothing of it can be missing.
    """
    if log is None or not plan.removed:
        return log is None
    return tuple(log.batches.overlapping(plan.removed[0].base_offset, plan.removed[-1].limit)) != plan.removed
