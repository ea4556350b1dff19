"""Settles chains: in the background of the process whose entry makes a checkpoint due, never in a commit.

The rows of small commits are in memory of a process that follows the chain. So a settlement costs no GET for them, one
PUT for each topic, and no entry of its own if another command comes soon. It is an ordinary merge: the chain refuses
it if another process has replaced one of its batches, and what it has uploaded is then left to a vacuum.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from txnstore.catalog.writing import topic_writer
from txnstore.chain import keys
from txnstore.compactor.compact.lease import CompactionLease
from txnstore.compactor.compact.merge_plan import MergePlan
from txnstore.compactor.settle.plan import plan_settling
from txnstore.connection import Connection
from txnstore.coordinator.completion import LINGER
from txnstore.core.catalog.model import CatalogTopic
from txnstore.core.log.model import Batch
from txnstore.core.log.sums import ConservedSums, Sums
from txnstore.core.maintenance import ReplaceSegments
from txnstore.core.state import State
from txnstore.errors import CorruptionError, TxnStoreError
from txnstore.read.reader import Projection, read_together
from txnstore.read.sharing import SharedSegments
from txnstore.segment.codec import encode
from txnstore.segment.schema import OFFSET_FIELD, PARTITION_FIELD, TIMESTAMP_FIELD
from txnstore.segment.sums import sums_of
from txnstore.threads import ForkLock

_LOG = logging.getLogger(__name__)


class _Settler:
    """Settles the chains of a connection, each by one task at a time."""

    def __init__(self) -> None:
        #: Guards the fields below, and no request.
        self._lock = ForkLock()
        #: The chains that a task is settling.
        self._busy: set[int] = set()
        #: For each chain the state at which it was last planned. Written by its task.
        self._planned: dict[int, State] = {}

    def begin(self, connection: Connection, state: State) -> None:
        """Settle a chain in the background, unless that goes on already."""
        with self._lock.own:
            if state.chain in self._busy:
                return
            self._busy.add(state.chain)
        try:
            connection.background.submit(self._settle, connection, state)
        except BaseException:
            self._end(state)
            raise

    def _settle(self, connection: Connection, state: State) -> None:
        try:
            settle(connection, state, self._planned.get(state.chain))
            self._planned[state.chain] = state
        except Exception as error:  # noqa: BLE001 - logged and counted; the next checkpoint tries again
            _failed(connection, state, error)
        finally:
            self._end(state)

    def _end(self, state: State) -> None:
        with self._lock.own:
            self._busy.discard(state.chain)


def settle_later(connection: Connection, state: State) -> None:
    """Settle a chain in the background, unless that goes on already: the next checkpoint settles the rest.

    Raises nothing: the commit that made it due is durable. A failure is logged and counted.
    """
    try:
        settler: _Settler = connection.cached("settler", _Settler)
        settler.begin(connection, state)
    except Exception as error:  # noqa: BLE001 - no thread or no memory for the task: logged and counted
        _failed(connection, state, error)


def _failed(connection: Connection, state: State, error: Exception) -> None:
    connection.chains[state.chain].metrics.settle_failures += 1
    extra = {"chain": state.chain, "sequence": state.sequence, "error": f"{type(error).__name__}: {error}"}
    _LOG.warning("small commits not settled: %s", error, extra=extra)


def settle(connection: Connection, state: State, before: State | None = None) -> int:
    """Settle a chain; returns the number of batches that were replaced.

    Costs a LIST for the leases of compactors, and for each topic with small commits one PUT, and GETs of what is not in
    memory.

    Args:
        connection: The connection to the store.
        state: The state of the chain.
        before: See :func:`plan_settling`.

    Raises:
        TxnStoreError: A segment is damaged, the storage failed, or the chain refused a replacement.
    """
    settlements = plan_settling(state, before, lambda topic: topic_writer(topic).config)
    leased = CompactionLease(connection).others() if settlements else frozenset()
    commands: list[ReplaceSegments] = []
    for settlement in settlements:
        plans = [plan for plan in settlement.plans if plan.tp not in leased]
        if plans:
            commands += _merged(connection, settlement.topic, plans)
    return _replace(connection, state.chain, commands)


def _replace(connection: Connection, number: int, commands: Sequence[ReplaceSegments]) -> int:
    """Register merged segments with the next entry of this process, or after a moment with one of their own.

    Raises:
        TxnStoreError: The first error, after the others are registered.
    """
    if not commands:
        return 0
    chain = connection.chains[number]
    queued = [(command, chain.enqueue(command)) for command in commands]
    connection.runtime.sleep(LINGER)
    replaced, failure = 0, None
    for command, waiter in queued:
        try:
            chain.commit_queued(waiter)
            replaced += len(command.removed)
        except TxnStoreError as error:
            failure = failure or error
    chain.metrics.settled += replaced
    if failure is not None:
        raise failure
    return replaced


@dataclass(frozen=True, slots=True)
class _Rows:
    """The rows of the batches of a plan that become one."""

    plan: MergePlan
    table: pa.Table
    sums: Sums


def _merged(connection: Connection, topic: CatalogTopic, plans: Sequence[MergePlan]) -> Iterable[ReplaceSegments]:
    """Upload the rows of plans as one segment; returns the commands that put its batches in their place."""
    started = max(connection.runtime.clock(), connection.chains.view().timestamp)
    projection = _Settled(topic)
    parts = [*_rows(connection, projection, plans)]
    config, compression = topic_writer(topic).config, topic_writer(topic).compression
    rows = pa.concat_tables([part.table for part in parts])
    encoded = encode(rows, config.segment_format, compression, parts=[part.table.num_rows for part in parts])
    tp = plans[0].tp
    segment = encoded.segment(
        keys.segment(tp.topic, tp.partition, connection.runtime.new_id(), config.segment_format), explicit_offsets=True
    )
    connection.objects.put(segment.object, encoded.data)
    commands, first_row = [], 0
    for part in parts:
        times = pc.min_max(part.table.column(TIMESTAMP_FIELD.name).cast(pa.int64())).as_py()
        batch = Batch(
            part.plan.base_offset,
            part.plan.limit,
            part.table.num_rows,
            segment,
            times["min"],
            times["max"],
            first_row,
            appended_at=max(source.batch.appended_at for source in part.plan.sources),
        )
        sums = ConservedSums(part.sums, Sums(), (part.sums,))
        commands.append(
            ReplaceSegments(
                part.plan.tp,
                part.plan.removed,
                (batch,),
                started,
                sums=sums,
                topic_id=topic.topic_id,
                revision=part.plan.revision,
            )
        )
        first_row += part.table.num_rows
    return commands


class _Settled(Projection):
    """The columns of a settled segment: ``_partition``, ``_offset``, ``_timestamp``, and those of the topic."""

    def __init__(self, topic: CatalogTopic) -> None:
        reserved = [PARTITION_FIELD.name, OFFSET_FIELD.name, TIMESTAMP_FIELD.name]
        super().__init__(topic, [*reserved, *topic_writer(topic).stored.names])


def _rows(connection: Connection, projection: Projection, plans: Sequence[MergePlan]) -> Iterable[_Rows]:
    """The rows of each plan, in order, all decoded together."""
    sources = [source for plan in plans for source in plan.sources]
    shared: SharedSegments = connection.cached(
        "settling", lambda: SharedSegments(connection.objects, lambda: connection.pool)
    )
    table, at = read_together(shared.open(sources, projection), projection), 0
    for plan in plans:
        rows = table.slice(at, plan.records)
        at += plan.records
        _check(plan, rows)
        yield _Rows(plan, rows, sums_of(rows.drop_columns([PARTITION_FIELD.name])))


def _check(plan: MergePlan, rows: pa.Table) -> None:
    """Check that the rows are those that the chain describes.

    Raises:
        CorruptionError: They are not.
    """
    offsets = rows.column(OFFSET_FIELD.name).to_numpy()
    if (
        len(offsets) != plan.records
        or offsets[0] < plan.base_offset
        or offsets[-1] >= plan.limit
        or (offsets[1:] <= offsets[:-1]).any()
    ):
        msg = (
            f"the small commits of {plan.tp} between the offsets {plan.base_offset} and {plan.limit} have "
            f"{len(offsets)} records out of order; expected {plan.records}"
        )
        raise CorruptionError(msg)
