"""Records as an application reads them, one by one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from txnstore.core.model import Topic

Headers = tuple[tuple[str, bytes | None], ...]


@dataclass(frozen=True, slots=True)
class Record:
    """A record of a partition.

    ``timestamp`` is in milliseconds since the epoch. In a topic without a schema ``key`` and ``value`` are bytes or
    None, as in Kafka. In a typed topic ``value`` is a dict of all columns and ``key`` the value of the key column
    (None if the topic has no key); it has no headers.
    """

    topic: str
    partition: int
    offset: int
    timestamp: int
    key: Any
    value: bytes | Mapping[str, Any] | None
    headers: Headers = field(default=())


def records_of(table: pa.Table, topic: Topic, partition: int) -> list[Record]:
    """The rows of a table with all columns of a read, as records."""
    offsets = table["_offset"].to_pylist()
    timestamps = table["_timestamp"].cast(pa.int64()).to_pylist()
    name = topic.name
    if topic.schema is None:
        return [
            Record(name, partition, offset, timestamp, key, value, _headers(headers))
            for offset, timestamp, key, value, headers in zip(
                offsets,
                timestamps,
                table["key"].to_pylist(),
                table["value"].to_pylist(),
                table["headers"].to_pylist(),
                strict=True,
            )
        ]
    rows = table.drop_columns(["_topic", "_partition", "_offset", "_timestamp"]).to_pylist()
    key_column = topic.key
    return [
        Record(name, partition, offset, timestamp, row[key_column] if key_column is not None else None, row)
        for offset, timestamp, row in zip(offsets, timestamps, rows, strict=True)
    ]


def _headers(stored: list[dict[str, Any]] | None) -> Headers:
    return tuple((header["key"], header["value"]) for header in stored) if stored else ()
