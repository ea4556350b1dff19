"""Comparing what a state says of its segments with the objects: by their listing, or by all of their bytes."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future
from dataclasses import dataclass, field

import pyarrow as pa

from txnstore.chain import keys
from txnstore.compactor.violation import Violation
from txnstore.core.model import Batch, Isolation, State, Topic, TopicPartition
from txnstore.core.visibility import Slice, visible
from txnstore.errors import CorruptionError, SchemaMismatchError
from txnstore.reading.reader import Projection, read_slice
from txnstore.segment.schema import OFFSET_FIELD, TIMESTAMP_FIELD
from txnstore.storage.base import ObjectStore

#: Segments that are read and decoded at a time.
_WINDOW = 4


@dataclass(slots=True)
class SegmentFindings:
    """What was found, and what it took."""

    violations: list[Violation] = field(default_factory=list)
    segments: int = 0
    bytes_read: int = 0


def verify_segments(
    objects: ObjectStore, pool: Executor, states: Sequence[State], topics: Mapping[str, Topic], *, deep: bool
) -> SegmentFindings:
    """Every segment that one of the states names: it is there and has its size.

    ``states``: of the chains whose newest state is known. ``topics``: the catalog, as far as it is known.
    ``deep``: each segment is read and decoded too; hash, rows, offsets and timestamps must be what the chain says.
    """
    found = SegmentFindings()
    sizes = {item.key: item.size for item in objects.list(keys.TOPICS)}
    for state in states:
        _verify_chain(found, objects, pool, state, topics, sizes, deep=deep)
    return found


def _verify_chain(
    found: SegmentFindings,
    objects: ObjectStore,
    pool: Executor,
    state: State,
    topics: Mapping[str, Topic],
    sizes: Mapping[str, int],
    *,
    deep: bool,
) -> None:
    intact: list[Slice] = []
    for part in _slices(state):
        problems = _listed(part, sizes)
        found.violations += problems
        found.segments += 1
        if not problems:
            intact.append(part)
    if deep:
        for problems in _in_parallel(objects, pool, intact, _current(state, topics)):
            found.violations += problems
        found.bytes_read += sum(part.batch.segment.size for part in intact)


def _current(state: State, topics: Mapping[str, Topic]) -> dict[str, Topic]:
    """The topics of a chain as the catalog has them, whose columns may be newer than those of the chain's copy."""
    return {
        name: known if (known := topics.get(name)) is not None and known.topic_id == copy.topic_id else copy
        for name, copy in state.topics.items()
    }


def _slices(state: State) -> Iterator[Slice]:
    """All batches of all partitions, whole, those of aborted and open transactions too."""
    for tp in sorted(state.partitions):
        partition = state.partitions[tp]
        yield from visible(tp, partition, Isolation.READ_UNCOMMITTED)


def _listed(part: Slice, sizes: Mapping[str, int]) -> list[Violation]:
    """What the listing tells of a segment."""
    segment, found = part.batch.segment, []
    size = sizes.get(segment.key)
    if size is None:
        message = (
            f"it is missing; {part.tp} names it for the offsets {part.batch.base_offset} to {part.batch.limit - 1}"
        )
        found.append(Violation("segment_present", segment.key, message))
    elif size != segment.size:
        change = "truncated" if size < segment.size else "altered"
        message = f"it was {change}: it has {size} bytes; {segment.size} were expected"
        found.append(Violation("segment_size", segment.key, message))
    return found


def _in_parallel(
    objects: ObjectStore, pool: Executor, parts: Iterable[Slice], topics: Mapping[str, Topic]
) -> Iterator[list[Violation]]:
    """What reading each segment tells, a few at a time."""
    projections: dict[str, Projection] = {}
    flying: deque[Future[list[Violation]]] = deque()
    for part in parts:
        name = part.tp.topic
        if name not in projections:
            projections[name] = Projection(topics[name])
        if len(flying) == _WINDOW:
            yield flying.popleft().result()
        flying.append(pool.submit(_read, objects, part, projections[name]))
    while flying:
        yield flying.popleft().result()


def _read(objects: ObjectStore, part: Slice, projection: Projection) -> list[Violation]:
    """What the bytes of a segment tell: the hash, and whether the rows are those that the chain describes."""
    key = part.batch.segment.key
    try:
        table = read_slice(objects, part, projection)
    except (CorruptionError, SchemaMismatchError) as error:
        return [Violation("segment_content", key, str(error))]
    found = [Violation("segment_rows", key, message) for message in _rows(part.tp, part.batch, table)]
    times = table.column(TIMESTAMP_FIELD.name).cast(pa.int64()).to_numpy()
    first, last = projection.timestamp_range(part)
    if len(times) and (times.min() < first or times.max() > last):
        message = f"it holds timestamps from {times.min()} to {times.max()}; {first} to {last} were expected"
        found.append(Violation("segment_timestamps", key, message))
    return found


def _rows(tp: TopicPartition, batch: Batch, table: pa.Table) -> Iterator[str]:
    """What is wrong with the number of rows of a batch and with their offsets."""
    if table.num_rows != batch.records:
        yield f"it holds {table.num_rows} records for {tp}; {batch.records} were expected"
    offsets = table.column(OFFSET_FIELD.name).to_numpy()
    if len(offsets) and (
        offsets[0] < batch.base_offset or offsets[-1] >= batch.limit or (offsets[1:] <= offsets[:-1]).any()
    ):
        yield (
            f"its offsets {offsets[0]} to {offsets[-1]} do not ascend inside the range {batch.base_offset} to "
            f"{batch.limit - 1} of {tp}"
        )
