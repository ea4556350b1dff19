"""The messages that members of groups of the protocol type ``consumer`` exchange (Kafka: ``ConsumerProtocol``).

A gateway and the chain store it as it is. Version 0 is the beginning of all versions, so only this part is read: an
``int16`` version, then an array of topics.
"""

from __future__ import annotations

import struct
from typing import Any

from txnstore.core.model import TopicPartition

#: The type of protocols whose members send this.
PROTOCOL_TYPE = "consumer"


def subscribed_topics(protocol_type: str | None, subscription: bytes) -> tuple[str, ...] | None:
    """Return the topics of a subscription, in its order; None if it is not of this protocol type."""
    if protocol_type != PROTOCOL_TYPE:
        return None
    reader = _Reader(subscription)
    try:
        return tuple(reader.text() for _ in range(reader.length()))
    except (struct.error, ValueError):
        return None


def assigned_partitions(protocol_type: str | None, assignment: bytes) -> tuple[TopicPartition, ...]:
    """Return the partitions of an assignment, sorted; none if it is not of this protocol type."""
    if protocol_type != PROTOCOL_TYPE:
        return ()
    reader = _Reader(assignment)
    try:
        topics = [(reader.text(), reader.numbers()) for _ in range(reader.length())]
    except (struct.error, ValueError):
        return ()
    return tuple(sorted(TopicPartition(topic, number) for topic, numbers in topics for number in numbers))


class _Reader:
    """Reads Kafka's primitive types, behind the version."""

    __slots__ = ("_data", "_position")

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._position = 2

    def length(self) -> int:
        """Read the length of an array, whose items have at least a byte each."""
        length: int = self._next(">i")[0]
        if not 0 <= length <= len(self._data):
            raise ValueError
        return length

    def text(self) -> str:
        length: int = self._next(">h")[0]
        if length < 0:
            raise ValueError
        data: bytes = self._next(f"{length}s")[0]
        return data.decode()

    def numbers(self) -> tuple[int, ...]:
        return self._next(f">{self.length()}i")

    def _next(self, form: str) -> tuple[Any, ...]:
        values = struct.unpack_from(form, self._data, self._position)
        self._position += struct.calcsize(form)
        return values
