"""Plans and executes what takes the place of batches whose objects have records to erase."""

from __future__ import annotations

from collections.abc import Callable, Collection, Container, Iterable, Iterator, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from txnstore.compactor.compact.copying import Copying
from txnstore.compactor.compact.memory import Memory
from txnstore.compactor.compact.merge_plan import Plan
from txnstore.compactor.erase.predicate import Predicate
from txnstore.core.catalog.model import CatalogTopic
from txnstore.core.log.model import Batch, Partition
from txnstore.core.log.slices import Slice
from txnstore.core.log.visibility import aborted_batches, is_open
from txnstore.core.maintenance import ReplaceSegments
from txnstore.core.model import TopicPartition, sorted_items
from txnstore.core.view import View
from txnstore.errors import CompactionConflictError, UndecidedRecordsError
from txnstore.phrases import some
from txnstore.runtime import Runtime, instant
from txnstore.segment.schema import PARTITION_FIELD, TOPIC_FIELD
from txnstore.storage.base import ObjectStore


@dataclass(frozen=True, slots=True)
class Rewrite:
    """What is to be rewritten of a partition.

    Attributes:
        topic: Its topic; another one, if an entry has records of it beside those that are erased.
        runs: Adjacent batches, each of which becomes what stays of it.
        clean_until: The cleaner checkpoint of the partition, which stays.
    """

    topic: CatalogTopic
    tp: TopicPartition
    runs: tuple[Plan, ...]
    clean_until: int


def plan_rewrites(view: View, objects: Collection[str], *, ended: Container[int] = (), done: str = "") -> list[Rewrite]:
    """Plan the replacement of all batches that have rows in some objects, so that nothing names these any more.

    Args:
        view: The view; each log is taken in the state of its chain, which decides a replacement.
        objects: The keys of the objects.
        ended: Producers whose open transactions will be ended before.
        done: What has been erased already, for the error.

    Raises:
        UndecidedRecordsError: An open transaction has some of them; names it, and until when it may be open.
        CompactionConflictError: A topic with some of them is being deleted.
    """
    wanted = {key.casefold() for key in objects}
    rewrites: list[Rewrite] = []
    held: dict[int, TopicPartition] = {}
    for state in view.states:
        for tp, log in sorted_items(state.partitions):
            runs = [*_runs(log, wanted)]
            if not runs:
                continue
            topic = view.topics.get(tp.topic)
            if topic is None or state.is_closed(topic):
                raise CompactionConflictError(f"topic {tp.topic!r} is being deleted, and an entry has records of it")
            held |= {
                batch.producer_id: tp
                for run in runs
                for batch in run
                if is_open(log, batch) and batch.producer_id not in ended
            }
            rewrites.append(Rewrite(topic, tp, tuple(_plan(tp, log, run) for run in runs), log.clean_until))
    if held:
        raise _held_error(view, held, done or "nothing was erased")
    return rewrites


def _runs(log: Partition, wanted: Collection[str]) -> Iterator[list[Batch]]:
    """Adjacent batches in these objects; none crosses the cleaner checkpoint, or the last stable offset."""
    run: list[Batch] = []
    ends = (log.clean_until, log.last_stable_offset)
    for batch in log.batches:
        is_wanted = batch.segment.object.casefold() in wanted
        if run and (not is_wanted or any(run[-1].base_offset < end <= batch.base_offset for end in ends)):
            yield run
            run = []
        if is_wanted:
            run.append(batch)
    if run:
        yield run


def _plan(tp: TopicPartition, log: Partition, run: Sequence[Batch]) -> Plan:
    is_aborted = aborted_batches(log)
    sources = tuple(
        Slice(tp, batch, max(log.log_start, batch.base_offset), batch.limit) for batch in run if not is_aborted(batch)
    )
    return Plan(tp, tuple(run), sources, revision=log.revision)


def _held_error(view: View, held: dict[int, TopicPartition], done: str) -> UndecidedRecordsError:
    """The error of records that open transactions hold, by their producers."""
    holders: list[str] = []
    for producer_id, tp in sorted(held.items()):
        txn = view.owner(producer_id)
        name = f"producer id {producer_id}" if txn is None else f"transactional id {txn.transactional_id!r}"
        if txn is not None and txn.expires_at is not None:
            until = f"until {instant(txn.expires_at)} at the latest"
        else:
            until = "without a timeout: until its owner, or an operator, ends it"
        holders.append(f"that of {name} in {tp}, {until}")
    msg = f"{done}, because open transactions hold records to erase, or records in the same objects: {some(holders)}"
    return UndecidedRecordsError(msg)


@dataclass(frozen=True, slots=True)
class Rewritten:
    """What was uploaded for a partition.

    Attributes:
        commands: The replacement of each run.
        removed: The number of records that they do not have any more.
        added: The keys of the new segments.
    """

    commands: tuple[ReplaceSegments, ...]
    removed: int
    added: tuple[str, ...]


def rewrite(
    objects: ObjectStore,
    pool: Executor,
    runtime: Runtime,
    *,
    item: Rewrite,
    predicate: Predicate | None,
    uploaded_at: int,
    target_bytes: int,
    memory: Memory,
) -> Rewritten:
    """Upload what stays of a partition.

    Args:
        predicate: Chooses the records that do not stay; None: all stay.
        uploaded_at: The time in ms at which the first upload begins at the earliest.

    Raises:
        CorruptionError: A source is missing, or differs from its description in the chain.
    """
    commands: list[ReplaceSegments] = []
    select = _without(item, predicate)
    for plan in item.runs:
        copying = Copying(objects, pool, runtime, item.topic, plan, target_bytes, memory)
        added = copying.copy(select)
        commands.append(
            ReplaceSegments(
                plan.tp,
                plan.removed,
                tuple(added),
                uploaded_at,
                clean_until=item.clean_until,
                past_hw=True,
                sums=copying.sums if plan.sources else None,
                revision=plan.revision,
            )
        )
    removed = sum(command.sums.removed.records for command in commands if command.sums is not None)
    return Rewritten(
        tuple(commands), removed, tuple(batch.segment.object for command in commands for batch in command.added)
    )


def _without(item: Rewrite, predicate: Predicate | None) -> Callable[[pa.Table], pa.Table]:
    """The selection of the rows that stay."""
    if predicate is None:
        return lambda table: table
    constants: list[tuple[pa.Field, Any]] = [(PARTITION_FIELD, item.tp.partition), (TOPIC_FIELD, item.topic.name)]

    def select(table: pa.Table) -> pa.Table:
        rows = table
        for field, value in constants:
            if field.name in predicate.columns:
                rows = rows.append_column(field, pa.repeat(pa.scalar(value, field.type), rows.num_rows))
        return table.filter(pc.invert(pc.fill_null(predicate.matches(rows), fill_value=False)))

    return select


def keys_of(rewrites: Iterable[Rewrite]) -> set[str]:
    """The objects that rewrites read."""
    return {batch.segment.object for item in rewrites for plan in item.runs for batch in plan.removed}
