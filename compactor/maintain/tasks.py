"""What each kind of maintenance does: whether the state shows something to do, and the call that does it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from txnstore.admin.upkeep import is_retention_due
from txnstore.catalog.settings import publishes_table
from txnstore.chain.checkpoints.checkpoint import decode_hint, interval, read_hint
from txnstore.chain.context import CHECKPOINT_EVERY
from txnstore.chain.maintained import read_maintained
from txnstore.compactor.compact.lease import CompactionLease
from txnstore.compactor.compact.rounds import Rounds
from txnstore.compactor.retention import retain
from txnstore.compactor.vacuum.vacuum import vacuum
from txnstore.connection import Connection
from txnstore.coordinator.copies import half_deleted_topics, has_stale_copies
from txnstore.coordinator.expiration import expire_due
from txnstore.coordinator.recovery import FINISH_AFTER_MS, recover
from txnstore.core.authorization.rights import CLUSTER_ACTION
from txnstore.core.model import TopicPartition, items_of
from txnstore.core.transactions.model import DECIDED
from txnstore.core.view import View
from txnstore.errors import TxnStoreError
from txnstore.tables.tables import Tables

#: What a vacuum leases, so that one of several processes does it. No topic has such a name.
VACUUM_LEASE = TopicPartition(":vacuum", 0)
#: A chain gets a checkpoint from here if its writers have left out so many.
_MISSED_CHECKPOINTS = 2
#: The pause after a task that another process does, or that could do nothing, in ms.
_LATER_MS = 300_000
#: Tables are published so often without a new entry, in ms.
_TABLES_CHECK_MS = 3_600_000


@dataclass(frozen=True, slots=True)
class Done:
    """What a task has done.

    Attributes:
        counts: Numbers of what it has done, by what they count; only those that are not 0.
        error: Why it did not do all; None if it did.
        again_ms: It is due again after so many ms; None: after its interval.
        is_elsewhere: Whether another process did it, or does it now.
    """

    counts: Mapping[str, int]
    error: Exception | None = None
    again_ms: int | None = None
    is_elsewhere: bool = False


@dataclass(frozen=True, slots=True)
class Task:
    """A kind of maintenance.

    Attributes:
        is_needed: Whether the view shows, at a time of the storage in ms, that there may be something to do. A request
            at most where that cannot be known otherwise.
        run: Does it.
    """

    is_needed: Callable[[View, int], bool]
    run: Callable[[], Done]


def tasks_of(connection: Connection, rounds: Rounds, vacuum_every_ms: int) -> dict[str, Task]:
    """All kinds of maintenance."""
    checkpoints, tables = _Checkpoints(connection), _PublishedTables(connection)
    return {
        "recover": Task(lambda view, _: _is_abandoned(connection, view), lambda: _recover(connection)),
        "retain": Task(is_retention_due, lambda: _retain(connection)),
        "compact": Task(lambda *_: True, lambda: _compact(rounds)),
        "expire": Task(lambda *_: True, lambda: _expire(connection)),
        "checkpoint": Task(checkpoints.is_needed, checkpoints.run),
        "tables": Task(tables.is_needed, tables.run),
        "vacuum": Task(lambda *_: True, lambda: _vacuum(connection, vacuum_every_ms)),
    }


def _counts(**counts: int) -> dict[str, int]:
    return {name: count for name, count in counts.items() if count}


def _is_abandoned(connection: Connection, view: View) -> bool:
    """Whether a transaction waits to be completed or aborted, or the catalog of a chain is behind."""
    ages = connection.chains.ages
    for state in view.states:
        for _, txn in items_of(state.transactions):
            if txn.state in DECIDED and ages.is_over(state, txn.updated_at, FINISH_AFTER_MS):
                return True
            if ages.has_expired(state, txn):
                return True
    return has_stale_copies(view) or any(True for _ in half_deleted_topics(view))


def _recover(connection: Connection) -> Done:
    connection.check_writable("its transactions cannot be ended")
    report = recover(connection.chains, connection.coordinator)
    error = None
    if report.failed:
        name, reason = report.failed[0]
        error = TxnStoreError(f"{len(report.failed)} transactions could not be ended, the first is {name!r}: {reason}")
    counts = _counts(completed=len(report.finished), aborted=len(report.aborted), topics=report.topics)
    return Done(counts, error, again_ms=None if counts or error else _LATER_MS)


def _retain(connection: Connection) -> Done:
    errors: list[Exception] = []
    report = retain(connection, on_error=errors.append)
    counts = _counts(records=report.records, bytes=report.bytes, partitions=len(report.partitions))
    return Done(counts, next(iter(errors), None))


def _compact(rounds: Rounds) -> Done:
    """Run one round of compaction; the task is due again at once if it has left work."""
    found = rounds.run()
    report = found.report
    counts = _counts(
        partitions=len(report.partitions) if found.worked else 0,
        segments_before=report.segments_before,
        segments_after=report.segments_after,
        superseded=report.superseded,
        records=report.deleted_records,
        conflicts=report.conflicts,
    )
    goes_on = found.left and found.worked and found.error is None
    return Done(
        counts if found.worked or found.error else {},
        found.error,
        again_ms=0 if goes_on else None,
        is_elsewhere=0 < found.held == found.due,
    )


def _expire(connection: Connection) -> Done:
    """Remove state that was unused for longer than its limit."""
    connection.check_rights(CLUSTER_ACTION)
    report = expire_due(connection.chains, connection.runtime.clock())
    return Done(
        _counts(
            producers=report.producers,
            transactional_ids=len(report.transactional_ids),
            offsets=report.offsets,
            groups=len(report.groups),
        )
    )


class _Checkpoints:
    """Writes the checkpoints that the writers of a chain have not written: they died, or may not."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        #: The entry of the last checkpoint of each chain, as far as it is known.
        self._saved: dict[int, int] = {}

    def is_needed(self, view: View, _: int) -> bool:
        return bool(self._missing(view))

    def run(self) -> Done:
        connection = self._connection
        connection.check_rights(CLUSTER_ACTION)
        for number in self._missing(connection.view(refresh=False)):
            hint = decode_hint(connection.keys, number, read_hint(connection.objects, number))
            self._saved[number] = max(self._saved.get(number, 0), hint.sequence)
        chains = self._missing(connection.view(refresh=False))
        for number in chains:
            self._saved[number] = connection.chains[number].checkpoint()
        return Done(_counts(chains=len(chains)))

    def _missing(self, view: View) -> list[int]:
        """The chains with too many entries since the last known checkpoint."""
        return [
            state.chain
            for state in view.states
            if state.sequence - self._saved.get(state.chain, 0)
            >= _MISSED_CHECKPOINTS * interval(state, CHECKPOINT_EVERY)
        ]


class _PublishedTables:
    """Publishes the tables if an entry was added since."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._had_tables = False
        #: When they were published last, in ms of the uptime.
        self._published_at = 0
        #: The entries that were published last.
        self._heads: list[int] = []

    def is_needed(self, view: View, _: int) -> bool:
        has_tables = any(publishes_table(topic.config) for topic in view.topics.values())
        is_behind = self._heads != [state.sequence for state in view.states]
        # A publisher looks once an hour for versions that others have written or dropped.
        is_old = self._connection.runtime.uptime() - self._published_at >= _TABLES_CHECK_MS
        return (is_behind or is_old) and (has_tables or self._had_tables)  # The last table gets a last version, too.

    def run(self) -> Done:
        errors: list[Exception] = []
        self._had_tables, self._published_at = True, self._connection.runtime.uptime()
        report = Tables(self._connection).sync(on_error=errors.append)
        self._had_tables = report.tables > 0
        self._heads = [] if errors else [*report.heads]
        changes = report.changes
        copied_bytes = sum(change.copied_bytes for change in changes)
        return Done(
            _counts(tables=len(changes), copied_bytes=copied_bytes, foreign=len(report.foreign)),
            next(iter(errors), None),
        )


def vacuum_wait(done: Mapping[str, int], now: int, every_ms: int) -> int:
    """The ms after which a vacuum is due by the record of the last one; 0 if it is, or that is of the future."""
    age_ms = now - done.get("vacuum", now + 1)
    return max(0, every_ms - age_ms) if age_ms >= 0 else 0


def _vacuum(connection: Connection, every_ms: int) -> Done:
    """Vacuum, unless another process does, or has done so within the interval."""
    connection.check_writable("nothing in it can be deleted")
    connection.check_rights(CLUSTER_ACTION)
    with CompactionLease(connection.objects, connection.keys, connection.runtime) as lease:
        if not lease.take(lambda held: {VACUUM_LEASE} - held):
            return Done({}, again_ms=_LATER_MS, is_elsewhere=True)
        wait_ms = vacuum_wait(
            read_maintained(connection.objects, connection.keys), connection.objects.now_ms(), every_ms
        )
        if wait_ms > 0:
            return Done({}, again_ms=wait_ms, is_elsewhere=True)
        report = vacuum(connection, expire=False)
    return Done(_counts(objects=report.objects, bytes=report.bytes, announced=report.announced))
