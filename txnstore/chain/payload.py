"""Entries with inlined segments: their bytes stand before the line of JSON that describes them.

An entry is one line of JSON, after its payload and a line feed if it has one::

    segment segment … segment <line feed> {"version":4, … "payload":{"size":…,"sha256":"…"}, … "checksum":"…"}

The hash of an entry is that of its line, which has the hash of the payload. So a vacuum can delete the payload of an
entry, and the chain of hashes stays whole. See docs/format.md and docs/internals/design/segments.md.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import replace

from txnstore.chain.codec import Entry, PayloadInfo, check_inlined_segments, content_hash, decode, encode, segments_of
from txnstore.core.events import Event
from txnstore.core.log.commands import Append
from txnstore.core.log.events import BatchesAppended
from txnstore.core.log.model import NewBatch, Segment
from txnstore.core.model import Command
from txnstore.core.transactions.commands import EndTxn

_SEPARATOR = b"\n"


class Payload:
    """The segments that are inlined in an entry, in the order in which they are placed.

    Args:
        key: The key of the entry.
    """

    def __init__(self, key: str) -> None:
        self._key = key
        self._parts: list[bytes] = []
        self._size = 0
        #: By the identity of their bytes, which batches share, also those of several commands.
        self._segments: dict[int, Segment] = {}

    def place(self, command: Command) -> Command:
        """Return the command with a place for each segment that is to be inlined, and add the bytes to the payload."""
        if not isinstance(command, Append | EndTxn) or all(batch.data is None for batch in command.batches):
            return command
        return replace(command, batches=tuple(map(self._place_batch, command.batches)))

    def _place_batch(self, batch: NewBatch) -> NewBatch:
        """Return a batch with its place in the payload; batches of one segment share it."""
        data = batch.data
        if data is None:
            return batch
        segment = self._segments.get(id(data))
        if segment is None:
            segment = self._segments[id(data)] = replace(batch.segment, object=self._key, first_byte=self._size)
            self._parts.append(data)
            self._size += len(data)
        return replace(batch, segment=segment, data=None)

    @property
    def mark(self) -> tuple[int, int]:
        """The number of segments and bytes so far, for :meth:`remove_after`."""
        return len(self._parts), self._size

    def keep_if_named(self, mark: tuple[int, int], events: Sequence[Event]) -> Sequence[Event]:
        """Return the events; remove the segments added since ``mark`` if no event names them (a repeated command)."""
        named = (isinstance(event, BatchesAppended) and event.segment.object == self._key for event in events)
        if mark != self.mark and not any(named):
            self.remove_after(mark)
        return events

    def remove_after(self, mark: tuple[int, int]) -> None:
        """Remove the segments added since ``mark``: the command that brought them was refused."""
        parts, self._size = mark
        for data in self._parts[parts:]:
            del self._segments[id(data)]
        del self._parts[parts:]

    def describe(self) -> PayloadInfo | None:
        """Return size and hash of the payload, which are part of the entry; None if it is empty."""
        if not self._parts:
            return None
        self._parts = [b"".join(self._parts)]
        return PayloadInfo(size=self._size, sha256=content_hash(self._parts[0]))

    @property
    def data(self) -> bytes:
        """The bytes of the payload."""
        return b"".join(self._parts)


def encode_entry(entry: Entry, payload: bytes = b"") -> bytes:
    """Encode an entry: its payload, if it has one, and its line.

    Raises:
        InvalidConfigError: A value has a wrong type.
    """
    return with_payload(encode(entry), payload)


def with_payload(line: bytes, payload: bytes) -> bytes:
    """Join a payload, if there is one, and a line."""
    return b"".join((payload, _SEPARATOR, line)) if payload else line


def decode_entry(key: str, data: bytes) -> Entry:
    """Decode the line of an entry.

    Damage of its payload does not keep a reader from following the chain: a segment is checked where it is read.

    Raises:
        CorruptionError: The checksum of the line does not match, or the entry is invalid.
        UnsupportedFormatError: A newer version of the format.
    """
    entry = decode(Entry, key, line_of(data))
    check_inlined_segments(key, segments_of(entry))
    return entry


def payload_damage(entry: Entry, data: bytes) -> str | None:
    """Describe the damage of an entry's payload; None if it is intact, or a vacuum has deleted it."""
    payload, separator, _ = data.rpartition(_SEPARATOR)
    described = entry.payload
    if not separator or (described == PayloadInfo(size=max(1, len(payload)), sha256=content_hash(payload))):
        return None
    if described is None:
        return f"{len(payload)} bytes stand before its line, which describes none"
    return f"its payload of {len(payload)} bytes was altered; expected {described.size} with another SHA-256"


def line_of(data: bytes) -> bytes:
    """Return the line of an entry or an index file, without its payload."""
    return data[data.rfind(_SEPARATOR) + 1 :]


def payload_of(data: bytes) -> bytes:
    """Return the payload of an entry or an index file; empty if it has none, or a vacuum has deleted it."""
    return data.rpartition(_SEPARATOR)[0]


def entry_hash(data: bytes) -> str:
    """Return the hash by which the next entry names this one: the hex SHA-256 of its line."""
    return hashlib.sha256(line_of(data)).hexdigest()
