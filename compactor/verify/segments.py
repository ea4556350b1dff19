"""Verifies segments: compares their descriptions in the chains with a listing and, optionally, with their content."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future
from dataclasses import dataclass, field
from functools import partial

import pyarrow as pa

from txnstore.chain import keys
from txnstore.compactor.engine import Engine, Job
from txnstore.core.catalog.model import CatalogTopic
from txnstore.core.invariants.common import Violation
from txnstore.core.log.model import Batch, Segment
from txnstore.core.log.sums import Sums
from txnstore.core.log.visibility import Slice
from txnstore.core.state import State
from txnstore.errors import CorruptionError, SchemaMismatchError
from txnstore.read.ranged import forget_footers
from txnstore.read.reader import Projection, Run, open_slice
from txnstore.runtime import Runtime
from txnstore.segment.schema import OFFSET_FIELD, PARTITION_FIELD, TIMESTAMP_FIELD
from txnstore.segment.sums import sums_of
from txnstore.storage.base import ObjectStore
from txnstore.storage.recent import forget

#: Segments read and decoded concurrently.
_WINDOW = 4
#: How many segments, and about how many of their bytes, one job reads.
_JOB_SEGMENTS, _JOB_BYTES = 1_000, 64 << 20
#: A batch with its topic, and the sums of its records where a compaction recorded them.
_Part = tuple[Slice, CatalogTopic, Sums | None]


@dataclass(slots=True)
class SegmentFindings:
    """The violations, the number of segments checked, the number of those whose content was read, and the bytes."""

    violations: list[Violation] = field(default_factory=list)
    segments: int = 0
    contents: int = 0
    bytes_read: int = 0


def verify_segments(
    objects: ObjectStore,
    states: Sequence[State],
    topics: Mapping[str, CatalogTopic],
    sums: Mapping[tuple[str, int], Sums],
    payloads: Mapping[str, int],
    deep: Engine | None,
) -> SegmentFindings:
    """Check that every segment referenced by the states exists and has the recorded size.

    Args:
        objects: The object store.
        states: The newest states of the undamaged chains.
        topics: The topics of the catalog, as far as known.
        sums: The sums of the records of batches that compactions wrote, by the key of the segment and the first row.
        payloads: The sizes of the payloads of entries, by key.
        deep: Also reads and decodes each segment; hash, rows, offsets, timestamps and sums must be as recorded. None:
            not.
    """
    findings = SegmentFindings()
    sizes = {**payloads, **{item.key: item.size for item in objects.list(keys.TOPICS)}}
    intact = [
        (part, topic, sums.get((part.batch.segment.key, part.batch.first_row)))
        for state in states
        for part, topic in _listed_as_recorded(findings, state, topics, sizes)
    ]
    if deep is not None:
        for _, violations in deep.run((None, job) for job in _jobs(intact)):
            findings.violations += violations()
        findings.contents = len(intact)
        findings.bytes_read = sum(part.batch.size for part, *_ in intact)
    return findings


def _listed_as_recorded(
    findings: SegmentFindings, state: State, topics: Mapping[str, CatalogTopic], sizes: Mapping[str, int]
) -> Iterator[tuple[Slice, CatalogTopic]]:
    """Compare the segments of a chain with the listing; yields those that agree, with their topics."""
    current = _current(state, topics)
    for part in slices(state):
        problems = _listed(part, sizes)
        findings.violations += problems
        findings.segments += 1
        if not problems:
            yield part, current[part.tp.topic]


def _jobs(parts: Iterable[_Part]) -> Iterator[Job[list[Violation]]]:
    """Jobs that read and check segments."""
    group: list[_Part] = []
    size = 0
    for part in parts:
        group.append(part)
        size += part[0].batch.size
        if len(group) == _JOB_SEGMENTS or size >= _JOB_BYTES:
            yield partial(_read_all, parts=group)
            group, size = [], 0
    if group:
        yield partial(_read_all, parts=group)


def _current(state: State, topics: Mapping[str, CatalogTopic]) -> dict[str, CatalogTopic]:
    """The topics of a chain, from the catalog if it has them: their columns may be newer than in the chain's copy."""
    return {
        name: in_catalog
        if (in_catalog := topics.get(name)) is not None and in_catalog.topic_id == copy.topic_id
        else copy
        for name, copy in state.topics.items()
    }


def slices(state: State) -> Iterator[Slice]:
    """All batches of all partitions, aborted and open ones included, and the whole of one that the log start cuts."""
    for tp in sorted(state.partitions):
        for batch in state.partitions[tp].batches:
            yield Slice(tp, batch, batch.base_offset, batch.limit)


def _listed(part: Slice, sizes: Mapping[str, int]) -> list[Violation]:
    """Compare a segment with the listing."""
    segment, batch = part.batch.segment, part.batch
    damage = damage_of(segment, sizes)
    if damage is None:
        return []
    if segment.object in sizes:
        return [Violation("segment_size", damage, segment.key)]
    message = f"{damage}; {part.tp} references it for the offsets {batch.base_offset} to {batch.limit - 1}"
    return [Violation("segment_present", message, segment.key)]


def damage_of(segment: Segment, sizes: Mapping[str, int]) -> str | None:
    """What the listed sizes of objects show to be wrong with a segment; None if nothing is."""
    size, end = sizes.get(segment.object), (segment.first_byte or 0) + segment.size
    if size is None:
        return "it is missing"
    if size == segment.size or (segment.is_range and size >= end):
        return None
    change = "truncated" if size < end else "altered"
    return f"it was {change}: it has {size} bytes; expected {end}"


def _read_all(objects: ObjectStore, pool: Executor, _runtime: Runtime, *, parts: list[_Part]) -> list[Violation]:
    """Read and check segments, a few concurrently."""
    forget_footers()
    forget(objects)
    violations: list[Violation] = []
    projections: dict[str, Projection] = {}
    flying: deque[Future[list[Violation]]] = deque()
    for part, topic, expected in parts:
        if topic.name not in projections:
            projections[topic.name] = _Verified(topic)
        if len(flying) == _WINDOW:
            violations += flying.popleft().result()
        flying.append(pool.submit(_read, objects, part, projections[topic.name], expected))
    while flying:
        violations += flying.popleft().result()
    return violations


class _Verified(Projection):
    """All columns of a topic; compares the partitions that merged segments store with those of the chain."""

    def needs(self, batch: Batch) -> list[str]:
        names = super().needs(batch)
        return [*names, PARTITION_FIELD.name] if batch.segment.explicit_offsets else names

    def fit(self, table: pa.Table, runs: Sequence[Run]) -> pa.Table:
        if PARTITION_FIELD.name in table.column_names:
            _check_partitions(table, runs[0].part)
        return super().fit(table, runs)


def _check_partitions(table: pa.Table, part: Slice) -> None:
    stored = table.column(PARTITION_FIELD.name).to_numpy()
    if (stored != part.tp.partition).any():
        msg = f"segment {part.batch.segment.key} has rows of {part.tp} with another partition"
        raise CorruptionError(msg)


def _read(objects: ObjectStore, part: Slice, projection: Projection, expected: Sums | None) -> list[Violation]:
    """Read a segment and compare its hash, rows, offsets, timestamps and sums with the chain; by row group."""
    key, content, sums = part.batch.segment.key, _ContentSummary(), Sums()
    try:
        opened = open_slice(objects, part, projection, hashed=True)
        for number in range(len(opened)):
            table = opened.read(number)
            content.add(table)
            if expected is not None:
                sums += sums_of(table)
        opened.compare_hash()
    except (CorruptionError, SchemaMismatchError) as error:
        return [Violation("segment_content", str(error), key)]
    violations = [Violation("segment_rows", message, key) for message in content.problems(part)]
    first, last = projection.timestamp_range(part)
    if content.rows and (content.oldest < first or content.newest > last):
        message = f"it has timestamps from {content.oldest} to {content.newest}; expected {first} to {last}"
        violations.append(Violation("segment_timestamps", message, key))
    if expected is not None and sums != expected:
        message = f"it has {sums}; the compaction that wrote it recorded {expected}"
        violations.append(Violation("segment_sums", message, key))
    return violations


@dataclass(slots=True)
class _ContentSummary:
    """What a verification compares of the rows of a batch, which are added in order."""

    rows: int = 0
    first: int = 0
    last: int = 0
    ascends: bool = True
    oldest: int = 0
    newest: int = 0

    def add(self, table: pa.Table) -> None:
        if not table.num_rows:
            return
        offsets = table.column(OFFSET_FIELD.name).to_numpy()
        times = table.column(TIMESTAMP_FIELD.name).cast(pa.int64()).to_numpy()
        self.ascends = self.ascends and not (offsets[1:] <= offsets[:-1]).any()
        if self.rows:
            self.ascends = self.ascends and bool(offsets[0] > self.last)
            self.oldest, self.newest = min(self.oldest, times.min()), max(self.newest, times.max())
        else:
            self.first, self.oldest, self.newest = offsets[0], times.min(), times.max()
        self.rows, self.last = self.rows + table.num_rows, offsets[-1]

    def problems(self, part: Slice) -> Iterator[str]:
        """Check the number of rows of the batch and their offsets; yields messages."""
        tp, batch = part.tp, part.batch
        if self.rows != batch.records:
            yield f"it has {self.rows} records for {tp}; expected {batch.records}"
        if self.rows and (self.first < batch.base_offset or self.last >= batch.limit or not self.ascends):
            yield (
                f"its offsets {self.first} to {self.last} do not ascend inside the range {batch.base_offset} to "
                f"{batch.limit - 1} of {tp}"
            )
