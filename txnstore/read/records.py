"""Records as an application reads them, one by one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

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
