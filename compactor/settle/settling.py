"""Settles chains: in the background of the process whose entry makes a checkpoint due, never in a commit.

The rows of small commits are in memory of a process that follows the chain. So a settlement costs no GET for them, one
PUT for each topic, and no entry of its own if another command comes soon. It is an ordinary merge: the chain refuses
it if another process has replaced one of its batches, and what it has uploaded is then left to a vacuum.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from txnstore.catalog.settings import TopicConfig
from txnstore.catalog.writing import topic_writer
from txnstore.chain import keys
from txnstore.chain.chain import Chain
from txnstore.compactor.compact.background import in_blocks
from txnstore.compactor.compact.lease import CompactionLease
from txnstore.compactor.compact.merge_plan import MergePlan
from txnstore.compactor.settle.plan import Place, inlined_only, place_of, plan_settling
from txnstore.connection import OpenParts
from txnstore.coordinator.completion import LINGER
from txnstore.coordinator.copies import copy_topics
from txnstore.core.catalog.model import CatalogTopic
from txnstore.core.log.model import Batch, Layout, Partition, Segment
from txnstore.core.log.slices import Slice
from txnstore.core.log.sums import ConservedSums, Sums
from txnstore.core.maintenance import ReplaceRuns, ReplaceSegments
from txnstore.core.model import Map, TopicPartition
from txnstore.core.routing import CATALOG
from txnstore.core.state import State
from txnstore.errors import CompactionConflictError, CorruptionError, TxnStoreError
from txnstore.read.readahead import read_ahead
from txnstore.read.reader import is_missing, read_decoded
from txnstore.read.rows import Columns
from txnstore.read.sharing import SharedSegments
from txnstore.segment.codec import EncodedSegment, SegmentWriter
from txnstore.segment.pieces import DecodedSegment
from txnstore.segment.schema import OFFSET_FIELD, PARTITION_FIELD, TIMESTAMP_FIELD
from txnstore.segment.sums import row_hashes, total
from txnstore.threads import ForkLock

_LOG = logging.getLogger(__name__)

#: The most bytes of rows that are taken from inlined segments together, and of other segments that are fetched ahead.
_BLOCK_BYTES = 8 << 20
#: The most replacements of an entry, each of which takes about a kilobyte.
_RUNS = 1024
#: So many entries are fetched before the next look at whether the connection is still open.
_FETCHES = 256
#: The maximum size in bytes of the rows that wait to be encoded, and the least of a row group that ends with a run.
_GROUP_BYTES, _PART_BYTES = 16 << 20, 128 << 10

Numbers: TypeAlias = npt.NDArray[np.int64]


@dataclass(slots=True)
class Settled:
    """What a settlement of a chain has done.

    Attributes:
        batches: The number of batches that were replaced.
        left: The partitions of which something is left to settle, though they may never change again.
        failures: Topics with the reason why, except for leases of compactors and replacements by others.
        revisions: The revisions of partitions after what it has replaced in them.
        damaged: The objects of older settled segments that could not be merged: they, or others with them, are damaged.
    """

    batches: int = 0
    left: set[TopicPartition] = field(default_factory=set)
    failures: list[tuple[str, Exception]] = field(default_factory=list)
    revisions: dict[TopicPartition, int] = field(default_factory=dict)
    damaged: set[str] = field(default_factory=set)

    @property
    def errors(self) -> list[Exception]:
        """The reasons of the failures."""
        return [error for _, error in self.failures]

    def leave(self, topic: CatalogTopic, partitions: Iterable[TopicPartition], error: Exception | None = None) -> None:
        """Leave partitions of a topic for the next settlement."""
        self.left.update(partitions)
        if isinstance(error, CompactionConflictError):
            _LOG.info("small commits not settled: concurrent change", extra={"reason": str(error)})
        elif error is not None:
            self.failures.append((topic.name, error))


class _ClosedError(Exception):
    """The connection was closed meanwhile."""


class _Settler:
    """Settles the chains of a connection, each by one task at a time."""

    def __init__(self) -> None:
        #: Guards the field below, and no request.
        self._lock = ForkLock()
        #: The chains that a task is settling.
        self._busy: set[int] = set()
        #: For each chain the logs of which nothing was left, as they were planned. Written by its task.
        self._done: dict[int, Map[TopicPartition, Partition]] = {}
        #: For each chain the kinds of failures of its last settlement: a process that may not write a topic has one
        #: each time, and others settle that. Written by its task.
        self._failing: dict[int, set[tuple[str, type[Exception]]]] = {}
        #: For each chain the settled segments that stay as they are: see :attr:`Settled.damaged`. Written by its task.
        self._damaged: dict[int, set[str]] = {}

    def begin(self, parts: OpenParts, state: State) -> None:
        """Settle a chain in the background, unless a thread does so already."""
        with self._lock.own:
            if state.chain in self._busy:
                return
            self._busy.add(state.chain)
        try:
            parts.background.submit(self._settle, parts, state)
        except BaseException:
            self._end(state)
            raise

    def _settle(self, parts: OpenParts, state: State) -> None:
        try:
            if not parts.open:
                return  # The task runs in the thread of a commit that a close has overtaken.
            damaged = self._damaged.setdefault(state.chain, set())
            settled = settle(parts, state, self._done.get(state.chain, Map()), damaged)
            damaged |= settled.damaged
            parts.chains[state.chain].metrics.settled += settled.batches
            done = state.partitions
            for tp in settled.left:
                done = done.discard(tp)
            self._done[state.chain] = done
            self._report(parts, state, settled.failures)
        except Exception as error:  # noqa: BLE001 - logged and counted; the next checkpoint tries again
            self._report(parts, state, [("", error)])
        finally:
            self._end(state)

    def _report(self, parts: OpenParts, state: State, failures: Iterable[tuple[str, Exception]]) -> None:
        """Count failures, and log them: as a warning the first one of its kind, that is of a topic and a class."""
        before, now = self._failing.get(state.chain, set()), set[tuple[str, type[Exception]]]()
        for topic, error in failures:
            kind = topic, type(error)
            _failed(parts, state, error, logging.INFO if kind in before | now else logging.WARNING)
            now.add(kind)
        self._failing[state.chain] = now

    def _end(self, state: State) -> None:
        with self._lock.own:
            self._busy.discard(state.chain)


def settle_later(parts: OpenParts, state: State) -> None:
    """Settle a chain in the background, unless a thread does so already: the next checkpoint settles the rest.

    Raises nothing: the commit that made it due is durable. A failure is logged and counted.
    """
    try:
        settler: _Settler = parts.connection.cached("settler", _Settler)
        settler.begin(parts, state)
    except Exception as error:  # noqa: BLE001 - no thread or no memory for the task: logged and counted
        _failed(parts, state, error)


def _failed(parts: OpenParts, state: State, error: Exception, level: int = logging.WARNING) -> None:
    parts.chains[state.chain].metrics.settle_failures += 1
    extra = {"chain": state.chain, "sequence": state.sequence, "error": f"{type(error).__name__}: {error}"}
    _LOG.log(level, "small commits not settled: %s", error, extra=extra)


def settle(
    parts: OpenParts, state: State, done: Map[TopicPartition, Partition], damaged: Collection[str] = ()
) -> Settled:
    """Settle a chain. One topic after the other, so that a damaged one holds no other one up.

    Costs a LIST for the leases of compactors, and for each topic with small commits one PUT, and GETs of what is not in
    memory; in a store with several chains also a GET for the catalog. A backlog is settled by 16 MiB of entries at a
    time, each of which is fetched once: memory holds these, some megabytes of rows, and of the segments that are merged
    with them what is stored, and some decoded row groups, up to 64 MiB each. Ends early if the connection is closed.

    Args:
        done: See :func:`plan_settling`.
        damaged: The same.

    Raises:
        TxnStoreError: The storage failed before anything was settled.
    """
    settled = Settled()

    def config_of(topic: CatalogTopic) -> TopicConfig | None:
        try:
            return topic_writer(topic).config
        except CorruptionError as error:
            settled.leave(topic, (TopicPartition(topic.name, number) for number in range(topic.partitions)), error)
            return None

    settlements = plan_settling(state, done, config_of, damaged)
    if not settlements:
        return settled
    connection = parts.connection
    leased = CompactionLease(connection.objects, parts.chains.keys, connection.runtime).others()
    catalog = state if state.chain == CATALOG else parts.chains[CATALOG].refresh()
    for settlement in settlements:
        topic, partitions = catalog.topics.get(settlement.topic.name), {plan.tp for plan in settlement.plans}
        settled.left |= partitions & leased
        if topic is None or topic.topic_id != settlement.topic.topic_id:
            continue  # It was deleted.
        plans = [plan for plan in settlement.plans if plan.tp not in leased]
        # The topic of the catalog, which is read after the logs: what older releases wrote may have columns that the
        # chain's copy lacks.
        _settle(parts, state.chain, topic, plans, settled)
    return settled


def _settle(parts: OpenParts, number: int, topic: CatalogTopic, planned: Iterable[MergePlan], settled: Settled) -> None:
    """Settle a part of a topic; adds to ``settled`` what became of it."""
    logs = parts.chains[number].state.partitions
    plans, obsolete = list[MergePlan](), set[TopicPartition]()
    for plan in planned:
        log, revision = logs.get(plan.tp), settled.revisions.get(plan.tp, plan.revision)
        if log is None or log.revision != revision:
            obsolete.add(plan.tp)  # Nothing is uploaded for what the chain would refuse.
        else:
            plans.append(replace(plan, revision=revision))
    settled.leave(topic, obsolete)
    if not plans:
        return
    partitions = {plan.tp for plan in plans}
    try:
        _check_open(parts)
        parts.chains[number].check_features()
        _update_copy(parts, number, topic)
        commands = _merged(parts, topic, plans)
    except _ClosedError:
        settled.leave(topic, partitions)
    except Exception as error:  # noqa: BLE001 - of this topic only
        missing = isinstance(error, CorruptionError) and is_missing(error)
        if missing and any(_is_overtaken(parts.chains[number], plan) for plan in plans):
            error = CompactionConflictError(str(error))  # Another process has replaced it, and a vacuum deleted it.
        settled.leave(topic, partitions, error)
        older = {batch.segment.object for plan in plans for batch in plan.removed if not batch.segment.inlined}
        if older and isinstance(error, CorruptionError):
            failures = len(settled.failures)
            _settle(parts, number, topic, inlined_only(plans), settled)
            if len(settled.failures) == failures:
                settled.damaged |= older  # One of them is, which must not keep later commits from being settled.
    else:
        _replace(parts, number, topic, commands, settled)


def _update_copy(parts: OpenParts, number: int, topic: CatalogTopic) -> None:
    """Copy a topic to a chain that has an older version, and would refuse a plan with this one."""
    copy = parts.chains[number].state.topics.get(topic.name)
    if copy is not None and copy.topic_id == topic.topic_id and copy.version < topic.version:
        copy_topics(parts.chains, number, [topic.name])


def _is_overtaken(chain: Chain, plan: MergePlan) -> bool:
    log = chain.refresh().partitions.get(plan.tp)
    return log is None or log.revision != plan.revision


def _replace(
    parts: OpenParts, number: int, topic: CatalogTopic, commands: Iterable[ReplaceSegments], settled: Settled
) -> None:
    """Register merged segments with the next entry of this process, or after a moment with one of their own."""
    chain = parts.chains[number]
    for some in _of_entries(commands):
        queued = []
        for tp, runs in some.items():
            revision = settled.revisions.get(tp, runs[0].revision)
            queued.append((tp, runs, chain.enqueue(ReplaceRuns((replace(runs[0], revision=revision), *runs[1:])))))
        parts.connection.runtime.sleep(LINGER)
        for tp, runs, waiter in queued:
            try:
                settled.revisions[tp] = chain.commit_queued(waiter)
            except TxnStoreError as error:
                settled.leave(topic, [tp], error)
            else:
                settled.batches += sum(len(command.removed) for command in runs)


def _of_entries(commands: Iterable[ReplaceSegments]) -> Iterator[dict[TopicPartition, list[ReplaceSegments]]]:
    """The runs of each partition that go into an entry together: nearly always all of them."""
    some: dict[TopicPartition, list[ReplaceSegments]] = {}
    for number, command in enumerate(commands, 1):
        some.setdefault(command.tp, []).append(command)
        if number % _RUNS == 0:
            yield some
            some = {}
    if some:
        yield some


def _merged(parts: OpenParts, topic: CatalogTopic, plans: Sequence[MergePlan]) -> list[ReplaceSegments]:
    """Upload the rows of plans as one segment; returns the commands that put its batches in their place.

    Raises:
        CorruptionError: A source differs from its description in the chain; nothing was uploaded.
        _ClosedError: The connection was closed meanwhile; the same.
    """
    started = max([parts.connection.runtime.clock(), *(chain.state.timestamp for chain in parts.chains)])
    merges = [_Merge(plan) for plan in plans]
    with_rows = [merge for merge in merges if merge.plan.sources]
    segment = _upload(parts, topic, with_rows) if with_rows else None
    commands: list[ReplaceSegments] = []
    first_row = 0
    for merge in merges:
        plan = merge.plan
        added = (merge.batch(segment, first_row),) if segment is not None and plan.sources else ()
        sums = ConservedSums(merge.sums, Sums(), (merge.sums,)) if added else None
        first_row += merge.rows
        commands.append(
            ReplaceSegments(
                plan.tp,
                plan.removed,
                added,
                started,
                topic_id=topic.topic_id,
                topic_version=topic.version,
                sums=sums,
                revision=plan.revision,
            )
        )
    return commands


@dataclass(slots=True)
class _Merge:
    """What the chain records of the rows of a plan, which are added in order."""

    plan: MergePlan
    rows: int = 0
    last: int = -1
    oldest: int = 0
    newest: int = 0
    sums: Sums = field(default_factory=Sums)

    def add(self, partitions: Numbers, offsets: Numbers, times: Numbers, sums: Sums) -> None:
        """Add rows.

        Raises:
            CorruptionError: They are not those that the chain describes.
        """
        plan, first = self.plan, max(self.last + 1, self.plan.base_offset)
        ascends = offsets[0] >= first and offsets[-1] < plan.limit and not (offsets[1:] <= offsets[:-1]).any()
        if not ascends or (partitions != plan.tp.partition).any():
            msg = (
                f"the small commits of {plan.tp} between the offsets {plan.base_offset} and {plan.limit} have the "
                f"offsets {offsets[0]} to {offsets[-1]} out of order; expected ascending ones from {first} on"
            )
            raise CorruptionError(msg)
        oldest, newest = int(times.min()), int(times.max())
        self.oldest = min(self.oldest, oldest) if self.rows else oldest
        self.newest = max(self.newest, newest) if self.rows else newest
        self.rows, self.last, self.sums = self.rows + len(offsets), int(offsets[-1]), self.sums + sums

    def batch(self, segment: Segment, first_row: int) -> Batch:
        """The batch that takes the place of the sources."""
        return Batch(
            self.plan.base_offset,
            self.plan.limit,
            self.rows,
            segment,
            self.oldest,
            self.newest,
            first_row,
            appended_at=max(source.batch.appended_at for source in self.plan.sources),
        )


def _upload(parts: OpenParts, topic: CatalogTopic, merges: Sequence[_Merge]) -> Segment:
    """Upload the rows of all plans as one segment, and add to each of them what is recorded of its rows."""
    config, compression = topic_writer(topic).config, topic_writer(topic).compression
    tp = merges[0].plan.tp
    key = keys.segment(tp.topic, tp.partition, parts.connection.runtime.new_id(), config.segment_format)
    columns = Columns.of_segments(topic, Layout.SETTLED, conserves=True)
    encoded = _encode(parts, columns, merges, config.segment_format, compression)
    parts.connection.objects.put(key, encoded.data)
    return encoded.segment(key, explicit_offsets=True)


def _encode(parts: OpenParts, columns: Columns, merges: Sequence[_Merge], fmt: str, compression: str) -> EncodedSegment:
    """The rows of all plans as one segment.

    Raises:
        CorruptionError: They are not those that the chain describes.
    """
    sources = [source for merge in merges for source in merge.plan.sources]
    ends = np.cumsum([merge.plan.records for merge in merges])
    for_table = topic_writer(columns.topic).config.has_table
    with SegmentWriter(columns.schema, fmt, compression, row_group_bytes=_GROUP_BYTES, for_table=for_table) as writer:
        for table in _tables(parts, sources, columns):
            _check_open(parts)
            hashes, sizes = row_hashes(table)
            partitions, offsets, times = _numbers(table)
            start = 0
            while start < table.num_rows:
                number = int(np.searchsorted(ends, writer.rows, "right"))  # Of the plan of the next row.
                rows = slice(start, min(table.num_rows, start + int(ends[number]) - writer.rows))
                merges[number].add(partitions[rows], offsets[rows], times[rows], total(hashes[rows], sizes[rows]))
                writer.append(table.slice(start, rows.stop - start))
                if writer.rows == ends[number]:
                    writer.end_row_group(_PART_BYTES)  # A reader of one partition decodes little more.
                start = rows.stop
        if writer.rows != ends[-1]:
            msg = f"small commits of topic {columns.topic.name!r} have {writer.rows} records; expected {ends[-1]}"
            raise CorruptionError(msg)
        return writer.finish()


def _numbers(table: pa.Table) -> tuple[Numbers, Numbers, Numbers]:
    """The partition, the offset and the time in ms of each row."""
    columns = [table.column(field.name) for field in (PARTITION_FIELD, OFFSET_FIELD, TIMESTAMP_FIELD)]
    partitions, offsets, times = (column.cast(pa.int64()).to_numpy() for column in columns)
    return partitions, offsets, times


def _tables(parts: OpenParts, sources: Sequence[Slice], columns: Columns) -> Iterator[pa.Table]:
    """The rows of sources in order: of inlined ones some megabytes together, of others one row group at a time.

    Each entry, and each small segment of several partitions, is fetched once.

    Raises:
        _ClosedError: The connection was closed meanwhile.
    """
    files = _entries(parts, [source for source in sources if source.batch.segment.inlined])
    objects = parts.connection.objects.with_read_cache()
    for inlined, run in groupby(sources, lambda source: source.batch.segment.inlined):
        if inlined:
            for block in _blocks(run):
                yield read_decoded([(source, files[place_of(source.batch.segment)]) for source in block], columns)
        else:
            yield from in_blocks(read_ahead(objects, parts.pool, run, columns, window=_BLOCK_BYTES, decode_ahead=False))


def _entries(parts: OpenParts, sources: Iterable[Slice]) -> dict[Place, DecodedSegment]:
    """The inlined segments of sources by place, decoded: each has rows of many of them."""
    distinct = list({place_of(source.batch.segment): source for source in sources}.values())
    shared = SharedSegments(parts.connection.objects, lambda: parts.pool, bound=0)
    files: dict[Place, DecodedSegment] = {}
    for first in range(0, len(distinct), _FETCHES):
        _check_open(parts)
        block = shared.decoded(distinct[first : first + _FETCHES])
        files |= {place_of(source.batch.segment): file for source, file in block}
    return files


def _check_open(parts: OpenParts) -> None:
    if not parts.open:
        raise _ClosedError


def _blocks(sources: Iterable[Slice]) -> Iterator[list[Slice]]:
    block: list[Slice] = []
    size = 0
    for source in sources:
        if block and size + source.batch.size > _BLOCK_BYTES:
            yield block
            block, size = [], 0
        block.append(source)
        size += source.batch.size
    if block:
        yield block
