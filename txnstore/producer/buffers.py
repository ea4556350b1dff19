"""What a producer knows of a topic, and rows on their way to its batches."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from txnstore.catalog.writing import TopicWriter
from txnstore.core.model import TopicPartition
from txnstore.producer.batches import Batch
from txnstore.producer.records import RowFormat


class TopicBuffer:
    """What a producer needs to know of one version of a topic, decoded once.

    Attributes:
        keyed: Whether a record without a key is refused.
        sticky: The open batch for records without a key.
        state: The newest state of the catalog in which this version was found to be current.
    """

    __slots__ = (
        "keyed",
        "max_bytes",
        "partitions",
        "row_format",
        "stamped",
        "state",
        "sticky",
        "topic",
        "tps",
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
        self.state: object = None
        self.sticky: Batch | None = None


@dataclass(frozen=True, slots=True)
class Piece:
    """Rows of the topic's stored schema.

    Attributes:
        buffer: The topic.
        rows: The rows.
        first: The row number of the first one in the sent data.
        shared: Whether the application may change their memory.
    """

    buffer: TopicBuffer
    rows: pa.Table
    first: int
    shared: bool
