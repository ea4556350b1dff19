"""The values of a partition log: segments, batches, producers, the index of aborted transactions.

Offsets are half-open where a range is meant: ``base_offset`` up to, not including, ``limit``.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

from txnstore.core.model import NO_PRODUCER, Map, TopicPartition

_CHUNK = 256


class Ranged(Protocol):
    """Something that covers the offsets ``[base_offset, limit)``."""

    @property
    def base_offset(self) -> int: ...

    @property
    def limit(self) -> int: ...


T = TypeVar("T", bound=Ranged)


class BatchList(Generic[T]):
    """An immutable sequence of batches, ordered by offset, without overlaps."""

    __slots__ = ("_chunks", "_tail")

    def __init__(self, batches: Iterable[T] = ()) -> None:
        items = tuple(batches)
        full = len(items) - len(items) % _CHUNK
        self._chunks: tuple[tuple[T, ...], ...] = tuple(items[at : at + _CHUNK] for at in range(0, full, _CHUNK))
        self._tail: tuple[T, ...] = items[full:]

    def append(self, batch: T) -> BatchList[T]:
        """A list that also holds ``batch``, which must lie behind all others."""
        result: BatchList[T] = BatchList()
        tail = (*self._tail, batch)
        if len(tail) == _CHUNK:
            result._chunks, result._tail = (*self._chunks, tail), ()
        else:
            result._chunks, result._tail = self._chunks, tail
        return result

    def replace(self, removed: Iterable[T], added: Iterable[T]) -> BatchList[T]:
        """A list without the ``removed`` batches and with the ``added`` ones, in offset order."""
        gone = {batch.base_offset for batch in removed}
        kept = [batch for batch in self if batch.base_offset not in gone]
        return BatchList(sorted([*kept, *added], key=lambda batch: batch.base_offset))

    def overlapping(self, start: int, limit: int) -> Iterator[T]:
        """The batches that cover at least one of the offsets ``[start, limit)``, in order."""
        if start >= limit:
            return
        runs = (*self._chunks, self._tail)
        first = max(0, bisect_right(runs, start, key=lambda run: run[0].base_offset if run else limit) - 1)
        for run in runs[first:]:
            at = max(0, bisect_right(run, start, key=lambda batch: batch.base_offset) - 1)
            for batch in run[at:]:
                if batch.base_offset >= limit:
                    return
                if batch.limit > start:
                    yield batch

    def changes(self, later: BatchList[T]) -> tuple[list[T], list[T]]:
        """What a later version of this list has lost, and what it has got. Costs the chunks that are not shared."""
        shared = 0
        for mine, theirs in zip(self._chunks, later._chunks, strict=False):
            if mine is not theirs:
                break
            shared += 1
        before, after = self._after(shared), later._after(shared)
        return [*_missing(before, after)], [*_missing(after, before)]

    def _after(self, chunks: int) -> dict[int, T]:
        runs = (*self._chunks[chunks:], self._tail)
        return {batch.base_offset: batch for run in runs for batch in run}

    def __iter__(self) -> Iterator[T]:
        for chunk in self._chunks:
            yield from chunk
        yield from self._tail

    def __reversed__(self) -> Iterator[T]:
        yield from reversed(self._tail)
        for chunk in reversed(self._chunks):
            yield from reversed(chunk)

    def __len__(self) -> int:
        return len(self._chunks) * _CHUNK + len(self._tail)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, BatchList) and tuple(self) == tuple(other)

    def __hash__(self) -> int:
        return hash(tuple(self))

    def __repr__(self) -> str:
        return f"BatchList({list(self)!r})"


def _missing(batches: dict[int, T], other: dict[int, T]) -> Iterator[T]:
    """Those of ``batches`` that ``other`` does not have, in order."""
    return (batch for offset, batch in batches.items() if other.get(offset) != batch)


#: Batches a producer's window remembers in each partition (Kafka: ``ProducerStateEntry.NUM_BATCHES_TO_RETAIN``).
WINDOW = 5

#: Sequence numbers wrap after this value (Kafka: ``DefaultRecordBatch.incrementSequence``).
MAX_SEQUENCE = 2**31 - 1


@dataclass(frozen=True, slots=True)
class Segment:
    """An immutable object that holds records, as the chain knows it.

    ``key`` is relative to the store's root; ``size`` is in bytes; ``sha256`` is the hex digest of all its bytes.
    ``explicit_offsets``: the object has an ``_offset`` column (a compacted one); otherwise the offset of a row is the
    batch's base offset plus the row's number counted from ``first_row`` of the batch.
    """

    key: str
    format: str
    size: int
    sha256: str
    rows: int
    explicit_offsets: bool = False


@dataclass(frozen=True, slots=True)
class Batch:
    """Records of one partition that were appended together, or merged by a compaction.

    Covers the offsets ``[base_offset, limit)``; ``records`` of them have a record (fewer than the range is wide only
    after a compaction). Timestamps are in milliseconds. A merged batch belongs to no producer any more.
    """

    base_offset: int
    limit: int
    records: int
    segment: Segment
    min_timestamp: int
    max_timestamp: int
    first_row: int = 0
    producer_id: int = NO_PRODUCER
    epoch: int = NO_PRODUCER
    base_sequence: int = NO_PRODUCER
    transactional: bool = False
    appended_at: int = 0


@dataclass(frozen=True, slots=True)
class NewBatch:
    """A batch whose segment is uploaded, and which has no offsets yet.

    ``uploaded_at``: when its writer uploaded it, in ms, but not before the entries that the writer knew; an old one is
    refused, because a vacuum may have deleted it. ``topic_id``: the topic whose schema its rows have; it is refused if
    another one has got the name meanwhile. None: not checked.
    """

    topic: str
    partition: int
    segment: Segment
    min_timestamp: int
    max_timestamp: int
    base_sequence: int = NO_PRODUCER
    uploaded_at: int | None = None
    topic_id: str | None = None

    @property
    def tp(self) -> TopicPartition:
        """The partition it goes to."""
        return TopicPartition(self.topic, self.partition)

    @property
    def records(self) -> int:
        """How many records it holds, which is how many offsets it takes."""
        return self.segment.rows


@dataclass(frozen=True, slots=True)
class BatchMetadata:
    """What a producer's window remembers of a batch, so that a retry is answered with the first offsets (SEQ-03).

    ``timestamp`` is the time of the append, which the first answer gave, too.
    """

    first_sequence: int
    last_sequence: int
    base_offset: int
    last_offset: int
    timestamp: int


@dataclass(frozen=True, slots=True)
class ProducerState:
    """What a partition knows of a producer: its epoch, its last five batches, its open transaction."""

    epoch: int
    batches: tuple[BatchMetadata, ...] = ()
    last_timestamp: int = 0
    current_txn_first_offset: int | None = None

    @property
    def last_sequence(self) -> int:
        """The last sequence number, or -1 if none was accepted in this epoch."""
        return self.batches[-1].last_sequence if self.batches else -1


@dataclass(frozen=True, slots=True)
class AbortedTxn:
    """An entry of the aborted-transaction index (LSO-06): Kafka's ``AbortedTxn``.

    ``last_offset`` is the offset of the abort marker.
    """

    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int


@dataclass(frozen=True, slots=True)
class Partition:
    """One partition log: its offsets, its batches, what it knows of producers."""

    log_start: int = 0
    high_watermark: int = 0
    batches: BatchList[Batch] = field(default_factory=BatchList)
    producers: Map[int, ProducerState] = field(default_factory=Map)
    open_txns: Map[int, int] = field(default_factory=Map)
    aborted: tuple[AbortedTxn, ...] = ()

    @property
    def last_stable_offset(self) -> int:
        """The first offset of the earliest open transaction, or the high watermark (LSO-01)."""
        return max(self.log_start, min(self.open_txns.values(), default=self.high_watermark))


def next_sequence(sequence: int, increment: int = 1) -> int:
    """``sequence + increment``, wrapped past :data:`MAX_SEQUENCE` (SEQ-05)."""
    return (sequence + increment) % (MAX_SEQUENCE + 1)


#: An upload older than this is not registered any more.
MAX_UPLOAD_AGE_MS = 3 * 86_400_000
