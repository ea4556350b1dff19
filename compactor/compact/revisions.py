"""The revisions of the partitions that one compactor works on: its own replacements make no plan of it obsolete."""

from __future__ import annotations

from dataclasses import replace

from txnstore.connection import Connection
from txnstore.core.maintenance import ReplaceSegments, check_revision
from txnstore.core.model import TopicPartition
from txnstore.core.routing import chain_of_partition


class Revisions:
    """Commits the replacements of plans that were made together.

    Args:
        connection: The connection to the store.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._mine: dict[TopicPartition, int] = {}

    def check(self, tp: TopicPartition, planned: int | None) -> None:
        """Check a plan against what this process knows of the chain, without a request, before its segments are read.

        Raises:
            CompactionConflictError: Another process has replaced or deleted batches since the plans were made.
        """
        chains = self._connection.chains
        state = chains[chain_of_partition(tp, len(chains))].state
        check_revision(tp, state.partitions.get(tp), self._mine.get(tp, planned))

    def submit(self, command: ReplaceSegments) -> None:
        """Commit a replacement, at the revision that this compactor made last.

        Raises:
            CompactionConflictError: Another process has replaced or deleted batches since the plans were made.
        """
        command = replace(command, revision=self._mine.get(command.tp, command.revision))
        self._mine[command.tp] = self._connection.submit(command)
