"""Topics as a producer needs them: versions that are decoded once, and lookups at the head of the catalog."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa

from txnstore.catalog.writing import TopicWriter, topic_writer
from txnstore.connection import Connection
from txnstore.core.authorization.rights import write_topics
from txnstore.core.model import TopicPartition
from txnstore.errors import InvalidRecordError, RecordTooLargeError, SchemaMismatchError, UnknownTopicOrPartitionError
from txnstore.producer.batches import ProducerBatch
from txnstore.producer.records import RowFormat, check_rows
from txnstore.segment.convert import normalize, parts_of
from txnstore.validation import as_integer, check_topic_name

#: How a version of a topic refuses rows by its schema and settings: a newer version may accept them.
REFUSALS = (SchemaMismatchError, InvalidRecordError, RecordTooLargeError)
#: Milliseconds for which the head of the catalog is not read again for a topic whose version there refused a row.
_PAUSE_MS = 1000


class TopicVersion:
    """A decoded version of a topic.

    Attributes:
        topic: The version.
        writer: Its schema and settings, decoded.
        partitions: The number of partitions.
        tps: The partitions, by number.
        row_format: Checks and converts rows; None for a topic without a schema.
        max_bytes: The largest size of a record in bytes (``max.message.bytes``).
        keyed: Whether a record without a key is refused.
        stamped: Whether a record has its own timestamp, and not that of its append.
        looked_up_ms: When a lookup at the head of the catalog found no other version than this one, which refused a
            row, by the wall clock; None before one. Written without a lock: at worst a request more.
        state: The newest state of the catalog that has this version, so ``send`` compares one reference. Written
            without a lock: threads write equally good values.
        writable: The newest authorization by which the producer may write to it; None before the first check. Written
            without a lock, as ``state``.
        sticky: The open batch for records without a key, or the last one; read and written with the producer's lock.
    """

    __slots__ = (
        "keyed",
        "looked_up_ms",
        "max_bytes",
        "partitions",
        "row_format",
        "stamped",
        "state",
        "sticky",
        "topic",
        "tps",
        "writable",
        "writer",
    )

    def __init__(self, writer: TopicWriter) -> None:
        self.writer = writer
        self.topic = writer.topic
        self.partitions = writer.topic.partitions
        self.tps = [TopicPartition(writer.topic.name, number) for number in range(self.partitions)]
        self.row_format = RowFormat(writer) if writer.schema is not None else None
        self.max_bytes = writer.config.max_message_bytes
        self.keyed = writer.config.compacts
        # Under LogAppendTime a record gets the time of its append, not its own timestamp (as in Kafka).
        self.stamped = not writer.config.append_time
        self.looked_up_ms: int | None = None
        self.state: object = None
        self.writable: object = None
        self.sticky: ProducerBatch | None = None

    def check_number(self, partition: object) -> None:
        """Raise :class:`UnknownTopicOrPartitionError` unless it has this partition."""
        number = as_integer(partition)
        if number is None or number < 0:
            msg = f"partition must be an integer of at least 0, not {partition!r}"
            raise UnknownTopicOrPartitionError(msg)
        if number >= self.partitions:
            msg = f"topic {self.topic.name!r} has {self.partitions} partitions, so there is no partition {number}"
            raise UnknownTopicOrPartitionError(msg)


@dataclass(frozen=True, slots=True)
class TablePiece:
    """Rows of a sent table, in the topic's stored schema.

    Attributes:
        version: The topic.
        rows: The rows.
        first: The number of the first row in the sent data.
        shared: Whether the application may change their memory.
    """

    version: TopicVersion
    rows: pa.Table
    first: int
    shared: bool


class Topics:
    """The newest version of each topic that a producer sends to. It makes requests, and has no lock.

    Attributes:
        catalog: The chain of the catalog. Replaced after each request, since a store that was closed and used again has
            new chains.
        known: The versions. Each step with it is atomic; of two threads that decode a version, one keeps its object.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._clock = connection.runtime.clock
        self.catalog = connection.chain
        self.known: dict[str, TopicVersion] = {}

    def refresh_catalog(self) -> None:
        """Use the current catalog chain of the connection."""
        self.catalog = self._connection.chain

    def find(self, topic: str, partition: int | None = None, *, write: bool = True) -> TopicVersion:
        """Find a topic in the cached catalog state; read its head if the topic or the partition is not there.

        Raises:
            UnknownTopicOrPartitionError: There is no such topic or partition.
            TopicAuthorizationError: ``write`` is on, and the principal has no right to write to the topic.
        """
        version = self._find_version(topic, partition)
        if write and version.writable is not self.catalog.state.authorization:
            version.writable = self._connection.check_rights(write_topics([topic]))
        return version

    def _find_version(self, topic: str, partition: int | None) -> TopicVersion:
        """Return the version of a topic in the cached state; read the head if that lacks the topic or the partition."""
        state = self.catalog.state
        version = self.known.get(topic) if type(topic) is str else None
        # The usual case. A state shares the topics that did not change with the states before it.
        if version is not None and state.topics.get(topic) is version.topic:
            version.state = state
            if partition is None or (type(partition) is int and 0 <= partition < version.partitions):
                return version
        name = check_topic_name(topic)
        catalog_topic = state.topics.get(name)
        number = as_integer(partition)
        if catalog_topic is None or (number is not None and number >= catalog_topic.partitions):
            # Another process may have created or enlarged it.
            catalog_topic = self._connection.view().find_topic(name)
            self.refresh_catalog()
        version = self.known.get(name)
        if version is None or version.topic is not catalog_topic:
            version = TopicVersion(topic_writer(catalog_topic))
            self.known[name] = version
        if partition is not None:
            version.check_number(partition)
        return version

    def has_newer(self, version: TopicVersion) -> bool:
        """Whether the head of the catalog has another version of the topic, or none; makes the next use look it up."""
        now, last_lookup = self._clock(), version.looked_up_ms
        # An application that sends one row that is refused sends many: they cost one request per pause and topic.
        # The clock may have been set back: then the time of the lookup tells nothing.
        is_recent = last_lookup is not None and 0 <= now - last_lookup < _PAUSE_MS
        self._connection.view(refresh=not is_recent)
        self.refresh_catalog()
        if self.catalog.state.topics.get(version.topic.name) is not version.topic:
            return True
        if not is_recent:
            version.looked_up_ms = now
        return False

    def pieces(self, topic: str, data: object, partition: int | None, piece_bytes: int) -> Iterator[TablePiece]:
        """Yield the rows in the topic's schema, in pieces of at most ``piece_bytes``."""
        is_shared = not isinstance(data, Sequence)  # Python values are copied into the table.
        first = 0
        for part in parts_of(data):
            version, table = self._fit_rows(topic, part, partition)
            piece_rows = max(1, table.num_rows * piece_bytes // max(1, table.nbytes))
            for row in range(0, max(1, table.num_rows), piece_rows):
                yield TablePiece(version, table.slice(row, piece_rows), first + row, is_shared)
            first += table.num_rows

    def _fit_rows(self, topic: str, data: object, partition: int | None) -> tuple[TopicVersion, pa.Table]:
        """Return the topic's version, and the rows converted to its schema and checked."""
        while True:
            version = self.find(topic, partition)
            try:
                table = normalize(data, version.writer.schema)
                check_rows(version.writer, table)
            except REFUSALS:
                if not self.has_newer(version):
                    raise
            else:
                return version, table

    def row_format(self, writer: TopicWriter) -> RowFormat | None:
        """Return the converter from rows to columns for a version; None for a topic without a schema."""
        if writer.schema is None:
            return None
        version = self.known.get(writer.topic.name)
        return version.row_format if version is not None and version.writer is writer else RowFormat(writer)
