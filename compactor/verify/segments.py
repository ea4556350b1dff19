"""Verifies segments: compares their descriptions in the chains with a listing and, optionally, with their content."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby

import pyarrow as pa

from txnstore.chain import keys
from txnstore.compactor.engine import Engine, Job
from txnstore.core.catalog.model import CatalogTopic
from txnstore.core.invariants.common import Violation
from txnstore.core.log.model import Segment
from txnstore.core.log.slices import Slice, whole_batch
from txnstore.core.log.sums import Sums
from txnstore.core.state import State
from txnstore.errors import CorruptionError, SchemaMismatchError, StorageError
from txnstore.read import ranged
from txnstore.read.ranged import DAMAGE, HashedSegment, forget_footers, has_footer
from txnstore.read.reader import PieceRows, check_file, open_whole, pieces_of
from txnstore.read.rows import Columns, Run, check_table_location, evaluate, unreadable
from txnstore.runtime import Runtime
from txnstore.segment.pieces import SegmentFile
from txnstore.segment.schema import OFFSET_FIELD, TIMESTAMP_FIELD
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
        states: The newest states of the undamaged chains.
        topics: The topics of the catalog, as far as known.
        sums: The sums of the records of batches that compactions wrote, by the key of the segment and the first row.
        payloads: The sizes of the payloads of entries, by key.
        deep: Also reads and decodes each segment; hash, rows, offsets, timestamps and sums must be as recorded. None:
            not.
    """
    findings = SegmentFindings()
    sizes = {**payloads, **{info.key: info.size for info in objects.list(keys.TOPICS)}}
    intact_batches = [
        (part, topic, sums.get((part.batch.segment.key, part.rows.start)))
        for state in states
        for part, topic in _intact_batches(findings, state, topics, sizes)
    ]
    if deep is not None:
        segments = _group_by_segment(intact_batches)
        for _, violations in deep.run((None, job) for job in _reading_jobs(segments)):
            findings.violations += violations()
        findings.contents = len(intact_batches)
        findings.bytes_read = sum(map(_segment_size, segments))
    return findings


def _intact_batches(
    findings: SegmentFindings, state: State, topics: Mapping[str, CatalogTopic], sizes: Mapping[str, int]
) -> Iterator[tuple[Slice, CatalogTopic]]:
    """Compare the segments of a chain with the listing; yield those that agree, with their topics."""
    current = _current_topics(state, topics)
    for part in all_batches(state):
        problems = _check_listing(part, sizes)
        findings.violations += problems
        findings.segments += 1
        if not problems:
            yield part, current[part.tp.topic]


def _group_by_segment(parts: Iterable[_Part]) -> list[list[_Part]]:
    """Group batches by segment, which is read once for all of them."""
    segments: dict[Segment, list[_Part]] = {}
    for part in parts:
        segments.setdefault(part[0].batch.segment, []).append(part)
    return list(segments.values())


def _reading_jobs(segments: Iterable[list[_Part]]) -> Iterator[Job[list[Violation]]]:
    """Yield jobs that read and check segments."""
    group: list[list[_Part]] = []
    size = 0
    for parts in segments:
        group.append(parts)
        size += _segment_size(parts)
        if len(group) == _JOB_SEGMENTS or size >= _JOB_BYTES:
            yield partial(_check_contents, segments=group)
            group, size = [], 0
    if group:
        yield partial(_check_contents, segments=group)


def _segment_size(parts: Sequence[_Part]) -> int:
    return parts[0][0].batch.segment.size


def _current_topics(state: State, topics: Mapping[str, CatalogTopic]) -> dict[str, CatalogTopic]:
    """Return the topics of a chain, in the catalog's version if it has them: columns may be newer there."""
    return {
        name: in_catalog
        if (in_catalog := topics.get(name)) is not None and in_catalog.topic_id == copy.topic_id
        else copy
        for name, copy in state.topics.items()
    }


def all_batches(state: State) -> Iterator[Slice]:
    """Yield all batches, also aborted and open ones, and as a whole those that the log start cuts."""
    for tp in sorted(state.partitions):
        for batch in state.partitions[tp].batches:
            yield whole_batch(tp, batch)


def _check_listing(part: Slice, sizes: Mapping[str, int]) -> list[Violation]:
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
    """Describe the damage of a segment that the listed sizes of objects show; None without any."""
    size = sizes.get(segment.object)
    end = (segment.first_byte or 0) + segment.size
    if size is None:
        return "it is missing"
    if size == segment.size or (segment.is_range and size >= end):
        return None
    change = "truncated" if size < end else "altered"
    return f"it was {change}: it has {size} bytes; expected {end}"


def _check_contents(
    objects: ObjectStore, pool: Executor, _runtime: Runtime, *, segments: list[list[_Part]]
) -> list[Violation]:
    """Read and check segments, a few concurrently."""
    forget_footers()
    forget(objects)
    violations: list[Violation] = []
    by_topic: dict[str, Columns | None] = {}
    pending: deque[Future[list[Violation]]] = deque()
    for parts in segments:
        topic = parts[0][1]
        if topic.name not in by_topic:
            by_topic[topic.name] = _readable_columns(topic)
        columns = by_topic[topic.name]
        if columns is None:
            continue
        if len(pending) == _WINDOW:
            violations += pending.popleft().result()
        pending.append(pool.submit(_check_content, objects, parts, columns))
    while pending:
        violations += pending.popleft().result()
    return violations


def _readable_columns(topic: CatalogTopic) -> Columns | None:
    """Return all columns of a topic; None if they cannot be read, which the check of topics reports."""
    try:
        return Columns(topic)
    except CorruptionError:
        return None


def _check_content(objects: ObjectStore, parts: Sequence[_Part], columns: Columns) -> list[Violation]:
    """Read a segment once, and compare its hash and the rows of its batches with the chain.

    One row group of a large segment is in memory, however many batches have rows of it.
    """
    segment = parts[0][0].batch.segment
    contents = [_Content(part, columns, expected) for part, _, expected in parts]
    try:
        file = _open_hashed(objects, parts[0][0])
        pieces = [(rows, content) for content in contents for rows in pieces_of(content.part, file)]
        check_table_location(parts[0][0].batch, file.columns)
        names = list(dict.fromkeys(name for content in contents for name in columns.needs(content.part)))
        for number, together in groupby(sorted(pieces, key=_piece_number), _piece_number):
            table = file.read(number, names)
            for rows, content in together:
                content.add(table.slice(rows.start, rows.rows), rows.start_row)
        if isinstance(file, HashedSegment):
            file.compare()
    except CorruptionError as error:
        return [Violation("segment_content", str(error), segment.key)]
    except StorageError as error:
        objects.stat(keys.STORE)  # Raises if the storage does not answer at all.
        return [Violation("segment_content", f"it cannot be read, so nothing is known of it: {error}", segment.key)]
    except DAMAGE as error:
        return [Violation("segment_content", str(unreadable(segment, error)), segment.key)]
    return [violation for content in contents for violation in content.violations()]


def _open_hashed(objects: ObjectStore, part: Slice) -> SegmentFile:
    """Open a segment whose bytes are all compared: whole, or by row groups if it is large.

    Raises:
        CorruptionError: It is missing, or differs from its description in the chain.
    """
    segment = part.batch.segment
    if not has_footer(segment) or segment.size <= ranged.WHOLE_BYTES:
        return open_whole(objects, part.tp, segment, check_hash=True)
    file = HashedSegment(objects, part.tp, segment)
    check_file(segment, file)
    return file


def _piece_number(piece: tuple[PieceRows, _Content]) -> int:
    return piece[0].number


class _Content:
    """The rows of a batch, added by row group and compared with the chain.

    Args:
        part: The batch.
        columns: All columns of its topic.
        expected: The recorded sums of its records; None if none are.
    """

    def __init__(self, part: Slice, columns: Columns, expected: Sums | None) -> None:
        self.part = part
        self._readable_columns, self._expected = columns, expected
        self._summary, self._sums = _ContentSummary(), Sums()
        self._damage: Exception | None = None

    def add(self, rows: pa.Table, start_row: int) -> None:
        """Add rows, beginning with row ``start_row`` of the segment."""
        try:
            table = evaluate(self._readable_columns, rows, [Run(self.part, rows.num_rows, start_row)])
            self._summary.add(table)
            if self._expected is not None:
                self._sums += sums_of(table)
        except (CorruptionError, SchemaMismatchError) as error:
            self._damage = self._damage or error

    def violations(self) -> Iterator[Violation]:
        """Compare the added rows with the batch: their number, offsets, timestamps and sums."""
        key, content = self.part.batch.segment.key, self._summary
        if self._damage is not None:
            yield Violation("segment_content", str(self._damage), key)
            return
        for message in content.problems(self.part):
            yield Violation("segment_rows", message, key)
        earliest, latest = self.part.time_range
        if content.rows and (content.oldest < earliest or content.newest > latest):
            message = f"it has timestamps from {content.oldest} to {content.newest}; expected {earliest} to {latest}"
            yield Violation("segment_timestamps", message, key)
        if self._expected is not None and self._sums != self._expected:
            message = f"it has {self._sums}; the compaction that wrote it recorded {self._expected}"
            yield Violation("segment_sums", message, key)


@dataclass(slots=True)
class _ContentSummary:
    """A summary of the rows of a batch, which are added in order, for a verification."""

    rows: int = 0
    first: int = 0
    last: int = 0
    ascends: bool = True
    oldest: int = 0
    newest: int = 0

    def add(self, table: pa.Table) -> None:
        """Add the rows of a piece: whether offsets ascend, the first and last, and the range of times."""
        if not table.num_rows:
            return
        offsets = table.column(OFFSET_FIELD.name).fill_null(-1).to_numpy()
        times = table.column(TIMESTAMP_FIELD.name).cast(pa.int64()).to_numpy()
        self.ascends = self.ascends and not (offsets[1:] <= offsets[:-1]).any()
        if self.rows:
            self.ascends = self.ascends and bool(offsets[0] > self.last)
            self.oldest, self.newest = min(self.oldest, times.min()), max(self.newest, times.max())
        else:
            self.first, self.oldest, self.newest = offsets[0], times.min(), times.max()
        self.rows, self.last = self.rows + table.num_rows, offsets[-1]

    def problems(self, part: Slice) -> Iterator[str]:
        """Check the number of rows of the batch and their offsets; yield messages."""
        tp, batch = part.tp, part.batch
        if self.rows != batch.records:
            yield f"it has {self.rows} records for {tp}; expected {batch.records}"
        if self.rows and (self.first < batch.base_offset or self.last >= batch.limit or not self.ascends):
            yield (
                f"its offsets {self.first} to {self.last} do not ascend inside the range {batch.base_offset} to "
                f"{batch.limit - 1} of {tp}"
            )
