"""The records that consumers and scans return."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

Headers = tuple[tuple[str, bytes | None], ...]


@dataclass(frozen=True, slots=True)
class Record:
    """A record of a partition.

    Attributes:
        topic: The name of the topic.
        partition: The number of the partition.
        offset: The position in the partition.
        timestamp: The time of the record, in milliseconds since the epoch.
        key: Bytes or None, as in Kafka. In a topic with a schema: the value of the key column; None without one.
        value: Bytes or None, as in Kafka. In a topic with a schema: a dict of all columns.
        headers: The headers in their order; names may repeat. Empty in a topic with a schema.
    """

    topic: str
    partition: int
    offset: int
    timestamp: int
    key: Any
    value: bytes | Mapping[str, Any] | None
    headers: Headers = field(default=())
