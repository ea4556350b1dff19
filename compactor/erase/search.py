"""Looks for records in all objects of a store that may hold them: named, replaced, or of no use to anybody.

An object is looked into once. What it holds of a topic is known by its rows, whether a chain names them or not: a
compaction, an abort or a deletion leaves rows in objects that nothing names any more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from itertools import groupby
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from txnstore.chain import keys
from txnstore.chain.payload import decode_entry, payload_of
from txnstore.compactor.compact.memory import Memory
from txnstore.compactor.compact.sources import read_sources
from txnstore.compactor.erase.predicate import Predicate
from txnstore.connection import Connection
from txnstore.core.catalog.model import CatalogTopic
from txnstore.core.log.events import BatchesAppended
from txnstore.core.log.model import Batch
from txnstore.core.log.slices import whole_batch
from txnstore.core.model import TopicPartition, sorted_items
from txnstore.core.view import View
from txnstore.errors import (
    CorruptionError,
    InvalidConfigError,
    SchemaMismatchError,
    UnsupportedFormatError,
)
from txnstore.read.expired import judge_missing_segment
from txnstore.read.reader import read_decoded
from txnstore.read.rows import Columns
from txnstore.segment.pieces import DecodedSegment, SegmentFile, open_segment
from txnstore.segment.schema import HORIZON_FIELD, OFFSET_FIELD, PARTITION_FIELD, RESERVED_FIELDS, TOPIC_FIELD
from txnstore.storage.base import ObjectInfo, iterate_objects, read_if_there

#: The number of entries that are fetched at a time.
_ENTRIES = 64
#: Why the rows of an object that nothing names are unknown: it is damaged, or of another topic of this name.
_UNREADABLE = (CorruptionError, SchemaMismatchError, UnsupportedFormatError, pa.ArrowException, OSError)
_PLACES = [PARTITION_FIELD.name, OFFSET_FIELD.name]
_RESERVED = frozenset(each.name for each in RESERVED_FIELDS)

#: A batch, with its partition.
Named = tuple[TopicPartition, Batch]


@cache
def _no_places() -> pa.Table:
    """Return no rows. Made at its first use, since Arrow imports pandas, of 40 MB, to make a table."""
    return pa.schema([PARTITION_FIELD, OFFSET_FIELD]).empty_table()


@dataclass(frozen=True, slots=True)
class Looked:
    """An object that was looked into.

    Attributes:
        rows: The rows in it that the predicate chooses. -1: they are unknown, of an object that nothing names.
        size: Its size in bytes.
        modified_ms: When it was written, by the clock of the storage.
        places: ``_partition`` and ``_offset`` of those of the rows that batches had when it was looked into.
    """

    key: str
    rows: int
    size: int
    modified_ms: int
    places: pa.Table = field(default_factory=_no_places, repr=False, compare=False)

    @property
    def found(self) -> bool:
        """Whether it has, or may have, such a row."""
        return self.rows != 0


class NamedObjects:
    """The objects that the batches of a view name, with these."""

    def __init__(self, view: View) -> None:
        #: By the key as a file system that ignores case has it.
        self._batches: dict[str, list[Named]] = {}
        for state in view.states:
            for tp, log in sorted_items(state.partitions):  # In the order of the rows of index files.
                for batch in log.batches:
                    self._batches.setdefault(batch.segment.object.casefold(), []).append((tp, batch))

    def batches_of(self, key: str) -> Sequence[Named]:
        """The batches that an object has rows of."""
        return self._batches.get(key.casefold(), ())


class Listed(NamedTuple):
    """The objects that may have rows of a topic: segments, entries, copies of its table."""

    segments: list[ObjectInfo]
    entries: list[ObjectInfo]
    copies: list[ObjectInfo]


def list_objects(connection: Connection, topic: str) -> Listed:
    """List what may have rows of a topic, before the view is read: what is listed is then known to be in use."""
    objects = connection.objects
    return Listed(
        [item for item in iterate_objects(objects, f"{keys.TOPICS}{topic}/") if keys.has_segments(item.key)],
        [
            item
            for chain in range(len(connection.chains))
            for item in iterate_objects(objects, connection.keys.entries(chain))
            if keys.entry_sequence(item.key) is not None
        ],
        [item for item in iterate_objects(objects, f"{keys.table(topic)}data/") if item.key.endswith(".parquet")],
    )


class Search:
    """The search for the rows of a topic that a predicate chooses.

    Args:
        topic: The topic, as the newest view has it.
        memory: How much is fetched ahead.

    Attributes:
        looked: What was looked into, by key.
    """

    def __init__(self, connection: Connection, topic: CatalogTopic, predicate: Predicate, memory: Memory) -> None:
        self._connection, self._topic, self._predicate, self._memory = connection, topic, predicate, memory
        self.looked: dict[str, Looked] = {}
        names = [name for name in predicate.columns if name not in _PLACES]
        self._columns = Columns(topic, [*_PLACES, *names])
        self._own = Columns(topic, [name for name in names if name not in _RESERVED])
        self._known = frozenset((*Columns(topic).names, HORIZON_FIELD.name))
        self._needed_places = _RESERVED.intersection(predicate.columns) - {TOPIC_FIELD.name}

    def look(self, listed: Listed, named: NamedObjects) -> list[Looked]:
        """Look into what was not looked into before; returns what has, or may have, such rows.

        Costs a GET for each object, and for each entry.

        Args:
            listed: The objects.
            named: What the view names that was read after they were listed.

        Raises:
            CorruptionError: An object with rows in use is missing or damaged.
        """
        self._look_into_segments([item for item in listed.segments if item.key not in self.looked], named)
        entries = [item for item in listed.entries if item.key not in self.looked]
        for start in range(0, len(entries), _ENTRIES):
            page = entries[start : start + _ENTRIES]
            names = [item.key for item in page]
            payloads = self._connection.pool.map(partial(read_if_there, self._connection.objects), names)
            for item, data in zip(page, payloads, strict=True):
                if data is not None:  # A vacuum may have deleted it since it was listed.
                    self._look_into_entry(item, data, named)
        for item in listed.copies:
            if item.key not in self.looked:
                self._note(item, self._rows_in_bytes(item.key, is_copy=True))
        found = (self.looked.get(item.key) for items in listed for item in items)
        return [item for item in found if item is not None and item.found]

    def forget(self, found: Iterable[str]) -> None:
        """Look into these again, next time: they were changed."""
        for key in found:
            self.looked.pop(key, None)

    def _note(self, item: ObjectInfo, rows: int, places: pa.Table | None = None) -> None:
        known = places if places is not None else _no_places()
        self.looked[item.key] = Looked(item.key, rows, item.size, item.modified_ms, known)

    def _places_of_chosen(self, table: pa.Table) -> pa.Table:
        """The places of the chosen rows."""

        def place_of(row: int) -> str:
            partition, offset = (table.column(name)[row].as_py() for name in _PLACES)
            return f"the record at offset {offset} of {TopicPartition(self._topic.name, partition)}"

        matches = self._matches(table, place_of)
        return table.filter(pc.fill_null(matches, fill_value=False)).select(_PLACES)

    def _matches(self, table: pa.Table, place_of: Callable[[int], str]) -> Any:
        """Whether each row is chosen, null where that is unknown.

        Args:
            place_of: Names a row, for the error.

        Raises:
            InvalidConfigError: The expression cannot be evaluated for a row.
        """
        try:
            return self._predicate.matches(table)
        except InvalidConfigError as error:
            row = _first_failing(self._predicate, table)
            msg = f"{error}: {place_of(row)}. TRY_CAST, and CASE, return a value for each row"
            raise InvalidConfigError(msg) from error.__cause__

    # Segments ---------------------------------------------------------------------------------------------------------

    def _look_into_segments(self, items: Sequence[ObjectInfo], named: NamedObjects) -> None:
        """Look into the objects with segments: by the batches that they have, and by the bytes for all other rows."""
        batches = [each for item in items for each in named.batches_of(item.key)]
        places = self._places_by_object(batches)
        for item in items:
            found = places.get(item.key.casefold(), _no_places())
            rows = found.num_rows
            if not rows and _has_other_rows(named.batches_of(item.key)):
                rows = self._rows_in_bytes(item.key)
            self._note(item, rows, found)

    def _places_by_object(self, batches: Iterable[Named]) -> dict[str, pa.Table]:
        """The places of the chosen rows of batches, by their object without its case."""
        connection, places = self._connection, dict[str, list[pa.Table]]()
        by_place = sorted(batches, key=lambda each: (each[0], each[1].base_offset))
        for tp, group in groupby(by_place, lambda each: each[0]):
            ordered = [batch for _, batch in group]
            bases = np.array([batch.base_offset for batch in ordered])
            sources = [whole_batch(tp, batch) for batch in ordered]
            for table in read_sources(connection.objects, connection.pool, sources, self._columns, self._memory):
                chosen = self._places_of_chosen(table)
                indexes = np.searchsorted(bases, chosen.column(OFFSET_FIELD.name).to_numpy(), side="right") - 1
                for index in np.unique(indexes):
                    key = ordered[index].segment.object.casefold()
                    places.setdefault(key, []).append(chosen.filter(pa.array(indexes == index)))
        return {key: pa.concat_tables(tables) for key, tables in places.items()}

    def _rows_in_bytes(self, key: str, *, is_copy: bool = False) -> int:
        """The number of chosen rows of an object by its bytes alone."""
        data = read_if_there(self._connection.objects, key)
        if data is None:
            return 0
        try:
            file = open_segment(data, "parquet" if key.endswith(".parquet") else "arrow")
            if is_copy and "file_path" in file.columns:
                return 0  # Position deletes.
            if not self._known.issuperset(file.columns):
                return -1  # No change of a schema drops a column: it is of an earlier topic of this name.
            return self._chosen_rows(key, file, None if is_copy else keys.partition_in(key).partition)
        except _UNREADABLE:
            return -1

    def _chosen_rows(self, key: str, file: SegmentFile, partition: int | None) -> int:
        """The number of chosen rows of a file; a row counts, too, if only its place could show that it is not chosen.

        Args:
            partition: The partition that the key of the file names.
        """
        stored = set(file.columns)
        if OFFSET_FIELD.name not in stored:
            partition = None  # Of rows as they were appended, it may be one of several.
        is_unknown = bool(self._needed_places - stored - ({PARTITION_FIELD.name} if partition is not None else set()))
        if is_unknown and not self._predicate.strict:
            return sum(file.rows)
        rows = 0
        for piece in range(len(file.rows)):
            table = self._with_places(file.read(piece, file.columns), partition)
            matches = self._matches(table, lambda _: f"a row of {key}, which no reader of the newest state sees")
            rows += pc.sum(pc.fill_null(matches, fill_value=is_unknown)).as_py() or 0
        return rows

    def _with_places(self, stored: pa.Table, partition: int | None) -> pa.Table:
        """The columns that the predicate needs, of the stored rows of a file; null where it does not store them."""
        own = self._own.conform(stored.select([name for name in self._own.names if name in stored.column_names]))
        constants = {TOPIC_FIELD.name: self._topic.name, PARTITION_FIELD.name: partition}
        arrays: list[Any] = []
        for each in self._columns.schema:
            if each.name in self._own.names:
                arrays.append(own.column(each.name))
            elif each.name in stored.column_names:
                arrays.append(stored.column(each.name).cast(each.type))
            else:
                arrays.append(pa.repeat(pa.scalar(constants.get(each.name), each.type), stored.num_rows))
        return pa.Table.from_arrays(arrays, schema=self._columns.schema)

    # Entries ----------------------------------------------------------------------------------------------------------

    def _look_into_entry(self, item: ObjectInfo, data: bytes, named: NamedObjects) -> None:
        """Look into the records in an entry."""
        payload = payload_of(data)
        if not payload:
            self._note(item, 0)
            return
        entry = decode_entry(item.key, data)
        appends = [
            event
            for event in entry.events
            if isinstance(event, BatchesAppended)
            and event.topic == self._topic.name
            and event.segment.object == item.key
        ]
        try:
            tables = [self._places_in_append(payload, event, entry.timestamp) for event in appends]
        except _UNREADABLE:
            if any(tp.topic == self._topic.name for tp, _ in named.batches_of(item.key)):
                raise
            self._note(item, -1)
            return
        places = pa.concat_tables([_no_places(), *tables])
        self._note(item, places.num_rows, places)

    def _places_in_append(self, payload: bytes, event: BatchesAppended, appended_at: int) -> pa.Table:
        segment = event.segment
        first = segment.first_byte or 0
        file = _decoded(open_segment(payload[first : first + segment.size], segment.format))
        parts = [(whole_batch(tp, batch), file) for tp, batch in event.placed_batches(appended_at)]
        return self._places_of_chosen(read_decoded(parts, self._columns))


def look_unleased(connection: Connection, topic: str, search_in: Callable[[View], Search]) -> tuple[View, list[Looked]]:
    """Look beside other erasures and compactions: what they delete meanwhile is no damage, and is looked for again."""
    while True:
        listed, view = list_objects(connection, topic), connection.view()
        try:
            return view, search_in(view).look(listed, NamedObjects(view))
        except CorruptionError as error:
            if judge_missing_segment(connection, error) is error:
                raise


def _first_failing(predicate: Predicate, table: pa.Table) -> int:
    """The first row for which a predicate cannot be evaluated, of rows that have one."""
    start, count = 0, table.num_rows
    while count > 1:
        half = count // 2
        try:
            predicate.matches(table.slice(start, half))
        except InvalidConfigError:
            count = half
        else:
            start, count = start + half, count - half
    return start


def _has_other_rows(batches: Sequence[Named]) -> bool:
    """Whether an object has rows that no batch has, as far as the batches show it: it has none, or they are fewer."""
    rows = {batch.segment.first_byte: batch.segment.rows for _, batch in batches}
    return sum(rows.values()) != sum(batch.records for _, batch in batches) or not batches or None not in rows


def _decoded(file: SegmentFile) -> DecodedSegment:
    """All rows of a small segment."""
    if isinstance(file, DecodedSegment):
        return file
    return DecodedSegment(pa.concat_tables([file.read(number, file.columns) for number in range(len(file.rows))]))
