"""Index files: the batches that a range of entries has added to a chain's logs and removed from them.

A checkpoint names the index files that together cover the entries up to its own. They are immutable and shared by
checkpoints, so that a checkpoint costs what is new, and they are decoded only where a reader needs their batches. See
docs/format.md and docs/internals/design/history.md.

The files of a checkpoint end at the *edges* of its number: the number without its last digits in base 8. So a file is
merged into one of eight times as many entries as soon as these exist, and checkpoints of all processes share them.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from dataclasses import fields
from functools import cache, lru_cache
from itertools import accumulate, pairwise
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from txnstore.chain.codec import Int64, Stored, check_inlined_segments, content_hash, decode, encode, reason
from txnstore.chain.payload import line_of, with_payload
from txnstore.core.log.batches import BatchList
from txnstore.core.log.model import Batch, Partition, Segment
from txnstore.core.model import Map, TopicPartition, items_of, value_class
from txnstore.errors import CorruptionError
from txnstore.threads import load

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq

#: The factor between the numbers of entries that the files of a checkpoint cover. All edges but the last one of a
#: checkpoint are multiples of it.
FAN = 8
#: The number of batches in a row group of an index file; they are decoded together.
_ROW_GROUP = 512
#: The number of decoded row groups of a file that stay in memory.
_CACHED_GROUPS = 32

_BATCH_FIELDS = [field.name for field in fields(Batch) if field.name != "segment"]
_SEGMENT_FIELDS = [field.name for field in fields(Segment)]
_COLUMNS = [*_BATCH_FIELDS, *_SEGMENT_FIELDS]
_TEXTS = {"object", "format", "sha256", "footer_sha256", "timestamp_type"}
_BOOLEANS = {"explicit_offsets", "transactional"}

Partitions: TypeAlias = "Map[TopicPartition, Partition]"


class Edge(NamedTuple):
    """An entry at which index files may end, with the logs after it.

    ``entry_hash``: the hash of that entry. Of the logs only the batches count. ``Edge()`` is the one before entry 1.
    """

    sequence: int = 0
    entry_hash: str = ""
    partitions: Partitions = Map()


@value_class()
class PartitionRows:
    """The changes that a range of entries has made to the batches of a partition.

    Attributes:
        removed: The offsets ``[start, limit)`` of the batches that were removed; before others were added.
        rows: The number of batches that were added: rows of the file, which follow those of the partition before.
        runs: Of those in each row group, the base offset of the first one and the limit of the last one.
    """

    tp: TopicPartition
    removed: list[tuple[int, int]]
    rows: int
    runs: list[tuple[int, int]]


@value_class(kw_only=True)
class IndexDocument(Stored):
    """The line of an index file; the Parquet file before it has a row for each batch, ``sha256`` is its hash."""

    after: Int64
    until: Int64
    previous: str
    entry_hash: str
    partitions: list[PartitionRows]
    sha256: str


def edge_numbers(sequence: int) -> list[int]:
    """Return the numbers of a checkpoint's edges after the one before entry 1, ascending, its own last."""
    sequences, unit = {sequence}, FAN
    while unit <= sequence:
        sequences.add(sequence - sequence % unit)
        unit *= FAN
    return sorted(sequences - {0})


def may_need(sequence: int, after: int, until: int) -> bool:
    """Whether a checkpoint may name the index file of the entries from ``after + 1`` to ``until``."""
    ends = {0, *edge_numbers(sequence)}
    return after in ends and until in ends


class KnownEdges:
    """The edges that a later checkpoint of a chain may need, as far as this process has passed them."""

    def __init__(self) -> None:
        #: In the order of their entries. Written under the lock of the chain that publishes a state, and replaced in
        #: one step, so that a thread reads it without a lock. Invariant: all that a later entry may need, from the
        #: first edge that this process has passed.
        self._edges: tuple[Edge, ...] = ()

    def add(self, edge: Edge) -> None:
        """Add the edge at the next multiple of :data:`FAN`, and drop those that no later checkpoint needs."""
        numbers = edge_numbers(edge.sequence)[:-1]
        self._edges = (*(earlier for earlier in self._edges if earlier.sequence in numbers), edge)

    def begin_with(self, stored: Sequence[Edge]) -> None:
        """Begin with the edges of a checkpoint that was read."""
        self._edges = tuple(stored)

    def up_to(self, last: Edge) -> list[Edge]:
        """Return the known edges for an entry, in order, from the empty logs before the first entry to ``last``."""
        numbers = edge_numbers(last.sequence)[:-1]
        return [Edge(), *(edge for edge in self._edges if edge.sequence in numbers), last]


# Writing --------------------------------------------------------------------------------------------------------------


def encode_file(before: Edge, after: Edge) -> bytes:
    """Encode the index file of the entries between two edges."""
    rows: list[Batch] = []
    partitions: list[PartitionRows] = []
    for tp, removed, added in _changed_partitions(before.partitions, after.partitions):
        earlier = before.partitions.get(tp)
        ranges = list(_removed_ranges(earlier.batches, removed)) if earlier is not None else []
        bounds = [bound - len(rows) for bound in _row_group_bounds(len(rows), len(rows) + len(added))]
        runs = [(added[first].base_offset, added[end - 1].limit) for first, end in pairwise(bounds)]
        partitions.append(PartitionRows(tp, ranges, len(added), runs))
        rows += added
    data = _encode_rows(rows)
    document = IndexDocument(
        after=before.sequence,
        until=after.sequence,
        previous=before.entry_hash,
        entry_hash=after.entry_hash,
        partitions=partitions,
        sha256=content_hash(data),
    )
    return with_payload(encode(document), data)


def _changed_partitions(
    before: Partitions, after: Partitions
) -> Iterator[tuple[TopicPartition, list[Batch], list[Batch]]]:
    """Yield the partitions whose batches differ, in order, with the removed and the added batches."""
    empty = Partition()
    logs = [(tp, before.get(tp, empty), log) for tp, log in items_of(after)]
    logs += [(tp, log, empty) for tp, log in items_of(before) if tp not in after]
    for tp, old, new in sorted(logs, key=lambda item: item[0]):
        if old.batches is not new.batches:
            removed, added = old.batches.changes(new.batches)
            if removed or added:
                yield tp, removed, added


def _row_group_bounds(first: int, limit: int) -> list[int]:
    """Return the bounds of the runs of the rows ``[first, limit)``, one per row group; empty without rows."""
    return [first, *range(first - first % _ROW_GROUP + _ROW_GROUP, limit, _ROW_GROUP), limit] if first < limit else []


def _removed_ranges(batches: BatchList[Batch], removed: Sequence[Batch]) -> Iterator[tuple[int, int]]:
    """Yield the offset ranges of removed batches; ranges with no remaining batch between them are joined."""
    if not removed:
        return
    start, limit = removed[0].base_offset, removed[0].limit
    for batch in removed[1:]:
        staying = next(batches.overlapping(limit, batch.base_offset), None)
        if staying is not None:
            yield start, limit
            start = batch.base_offset
        limit = batch.limit
    yield start, limit


def _encode_rows(rows: Sequence[Batch]) -> bytes:
    """Encode the rows of an index file as Parquet: each a batch with its segment."""
    if not rows:
        return b""
    load("pandas")  # pa.table imports it, if it is installed.
    pa, pq = _arrow()
    columns: dict[str, list[Any]] = {name: [getattr(row, name) for row in rows] for name in _BATCH_FIELDS}
    segments = [row.segment for row in rows]
    columns |= {name: [getattr(segment, name) for segment in segments] for name in _SEGMENT_FIELDS}
    numbers = [name for name in _COLUMNS if name not in _TEXTS | _BOOLEANS]
    sink = io.BytesIO()
    pq.write_table(
        pa.table(columns, schema=_schema()),
        sink,
        compression="zstd",
        row_group_size=_ROW_GROUP,
        use_dictionary=["object", "format", "sha256", "footer_sha256", "timestamp_type"],
        column_encoding=dict.fromkeys(numbers, "DELTA_BINARY_PACKED"),
        write_statistics=False,
    )
    return sink.getvalue()


def _arrow() -> tuple[ModuleType, ModuleType]:
    """Import Arrow when it is needed: opening a store without it takes half the time."""
    load("pyarrow.parquet")
    import pyarrow as pa
    import pyarrow.parquet as pq

    return pa, pq


@cache
def _schema() -> pa.Schema:
    pa, _ = _arrow()
    kinds = {**dict.fromkeys(_TEXTS, pa.string()), **dict.fromkeys(_BOOLEANS, pa.bool_())}
    return pa.schema([(name, kinds.get(name, pa.int64())) for name in _COLUMNS])


# Reading --------------------------------------------------------------------------------------------------------------


class _RowReader:
    """Decodes the rows of an index file.

    Args:
        key: The key of the file.
        data: The bytes of its Parquet file.
        number: The number of rows.
    """

    def __init__(self, key: str, data: memoryview, number: int) -> None:
        self._key, self._data, self._number = key, data, number
        self._metadata: pq.FileMetaData | None = None

    def decode(self, group: int) -> list[Batch]:
        """Decode the batches of a row group."""
        try:
            pa, pq = _arrow()
            self._metadata = self._metadata or pq.read_metadata(pa.BufferReader(self._data))
            # Without Arrow's threads: a process that exits while Arrow starts one is aborted.
            file = pq.ParquetFile(pa.BufferReader(self._data), metadata=self._metadata)
            table = file.read_row_group(group, use_threads=False)
            if table.num_rows != min(_ROW_GROUP, self._number - group * _ROW_GROUP):
                raise ValueError(f"row group {group} has {table.num_rows} rows")
            columns = table.select(_COLUMNS).to_pydict()
            segments = [Segment(*row) for row in zip(*(columns[name] for name in _SEGMENT_FIELDS), strict=True)]
            check_inlined_segments(self._key, segments)
            rows = zip(segments, *(columns[name] for name in _BATCH_FIELDS), strict=True)
            return [Batch(segment=segment, **dict(zip(_BATCH_FIELDS, row, strict=True))) for segment, *row in rows]
        except (MemoryError, CorruptionError):
            raise
        except Exception as error:
            msg = f"{self._key} cannot be read, although its bytes are intact: {reason(error)}"
            raise CorruptionError(msg) from error


class IndexFile:
    """An index file that was read; its batches are decoded when they are needed.

    Raises:
        CorruptionError: The bytes are altered.
        UnsupportedFormatError: Another version of the format.
    """

    def __init__(self, key: str, data: bytes) -> None:
        self.key = key
        line = line_of(data)
        self.document = decode(IndexDocument, key, line)
        rows = memoryview(data)[: -len(line) - 1]
        if content_hash(rows) != self.document.sha256:
            msg = f"{key} was altered: the SHA-256 of its rows differs from the one in its last line"
            raise CorruptionError(msg)
        self._data = data
        #: The batches of a row group. It holds no reference to this object: a cycle would keep the bytes for long.
        number = sum(partition.rows for partition in self.document.partitions)
        self.group = lru_cache(_CACHED_GROUPS)(_RowReader(key, rows, number).decode)

    def __reduce__(self) -> tuple[type[IndexFile], tuple[str, bytes]]:
        return IndexFile, (self.key, self._data)

    def apply(self, partitions: Partitions) -> Partitions:
        """Return the logs after the range of entries, from the logs before it; only their batches count.

        Raises:
            CorruptionError: The file does not fit them.
        """
        limits = list(accumulate((partition.rows for partition in self.document.partitions), initial=0))
        for partition, (first, limit) in zip(self.document.partitions, pairwise(limits), strict=True):
            log = partitions.get(partition.tp)
            batches = log.batches if log is not None else BatchList[Batch]()
            removed = [batch for start, end in partition.removed for batch in batches.overlapping(start, end)]
            batches = batches.replace(removed, ()).extended(self._runs(first, limit, partition.runs))
            partitions = partitions.insert(partition.tp, Partition(batches=batches))
        return partitions

    def _runs(self, first: int, limit: int, offsets: Sequence[tuple[int, int]]) -> list[StoredRun]:
        """Return the rows ``[first, limit)`` as runs, one per row group."""
        rows = list(pairwise(_row_group_bounds(first, limit)))
        if len(rows) != len(offsets):
            msg = f"{self.key} is not a valid index file: {limit - first} rows of a partition are the runs {offsets}"
            raise CorruptionError(msg)
        return [StoredRun(self, *run, *covered) for run, covered in zip(rows, offsets, strict=True)]


class StoredRun:
    """Batches of a partition in a row group of an index file.

    Args:
        first: The number of the first row in the file.
        end: The number after the last row.
        base_offset: The first offset of the first batch.
        limit: The limit of the last batch.
    """

    __slots__ = ("_begin", "_end", "_file", "_group", "base_offset", "limit")

    def __init__(self, file: IndexFile, first: int, end: int, base_offset: int, limit: int) -> None:
        self._file, self._group = file, first // _ROW_GROUP
        self._begin, self._end = first - self._group * _ROW_GROUP, end - self._group * _ROW_GROUP
        self.base_offset, self.limit = base_offset, limit

    def _batches(self) -> list[Batch]:
        return self._file.group(self._group)[self._begin : self._end]

    def __len__(self) -> int:
        return self._end - self._begin

    def __getitem__(self, index: int, /) -> Batch:
        return self._file.group(self._group)[self._end + index if index < 0 else self._begin + index]

    def __iter__(self) -> Iterator[Batch]:
        return iter(self._batches())

    def __reversed__(self) -> Iterator[Batch]:
        return reversed(self._batches())


def decoded_edges(files: Sequence[IndexFile], shared: Sequence[Edge] = (Edge(),)) -> list[Edge]:
    """Return the edges at which consecutive index files end, after the shared edges that they follow.

    Raises:
        CorruptionError: One does not follow the one before it.
    """
    result = list(shared)
    for file in files:
        last_edge, document = result[-1], file.document
        if (document.after, document.previous) != (last_edge.sequence, last_edge.entry_hash):
            expected = f"{last_edge.sequence} ({last_edge.entry_hash})"
            msg = f"{file.key} follows entry {document.after} ({document.previous}); expected {expected}"
            raise CorruptionError(msg)
        result.append(Edge(document.until, document.entry_hash, file.apply(last_edge.partitions)))
    return result
