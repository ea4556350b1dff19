"""The records that consumers and scans return."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, TypeVar

if TYPE_CHECKING:
    # Checkers know ``Record`` alone as ``Record[Any]``; the interpreter knows defaults from Python 3.13 on.
    from typing_extensions import TypeVar as TypeVarWithDefault

    V = TypeVarWithDefault("V", default=Any)
else:
    V = TypeVar("V")

Headers = tuple[tuple[str, bytes | None], ...]


@dataclass(frozen=True, slots=True)
class Record(Generic[V]):
    """A record of a partition.

    A checker takes what is read for ``Record[Any]``: one consumer reads topics with and without a schema. Say which
    where it matters: ``records: list[Record[bytes]] = consumer.poll()``, or ``Record[dict[str, Any]]`` for rows.

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
    value: V
    headers: Headers = field(default=())
