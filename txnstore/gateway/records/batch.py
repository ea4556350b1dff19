"""The format of record batches (magic 2): headers, checks of what clients produce, patches, batches for gaps.

Source: Kafka's ``DefaultRecordBatch``, ``LogValidator`` and ``ProduceRequest``.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Self

from crc32c import crc32c

from txnstore.errors import InvalidRecordError, RecordTooLargeError, TxnStoreError

#: base_offset, length, leader_epoch, magic, crc, attributes, last_offset_delta, base_timestamp, max_timestamp,
#: producer_id, producer_epoch, base_sequence, count.
_HEADER = struct.Struct(">qiibIhiqqqhii")
HEADER_SIZE = _HEADER.size
#: The end of base_offset and length, which the length does not count.
_LENGTH_END = 12
#: The start of the attributes; the checksum covers them and all that follows.
_CHECKSUM_START = 21
#: The fields at the beginning of all magics.
_START = struct.Struct(">qiib")
_MAGIC = 2
#: The first fields under the checksum: attributes, last_offset_delta, base_timestamp, max_timestamp.
_TIMES = struct.Struct(">hiqq")

_CODEC, _LOG_APPEND_TIME, _TRANSACTIONAL, _CONTROL = 0x07, 0x08, 0x10, 0x20

#: Deltas of offsets are 32-bit integers.
MAX_DELTA = 2**31 - 1
#: The most refused records of a batch that an error lists.
MAX_LISTED = 100

Buffer = bytes | memoryview


class Codec(IntEnum):
    """A compression of records, by its number in the attributes."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


@dataclass(frozen=True, slots=True)
class RecordError:
    """A record of a batch that is refused.

    Attributes:
        index: The index in the batch, from 0.
        message: The fault.
    """

    index: int
    message: str

    def __str__(self) -> str:
        return f"record {self.index}: {self.message}"


class BatchError(TxnStoreError):
    """A batch is refused as a whole.

    Args:
        message: The fault.
        record_errors: The records that are the reason, in their order, at most 100; empty if the reason is another.
    """

    def __init__(self, message: str, record_errors: Sequence[RecordError] = ()) -> None:
        super().__init__(message)
        self.record_errors = tuple(record_errors)

    @classmethod
    def of_records(cls, errors: Sequence[RecordError]) -> Self:
        """Make the error of a batch with these bad records, at least one."""
        return cls(str(errors[0]), errors[:MAX_LISTED])


class CorruptBatchError(BatchError):
    """The bytes are damaged: they are cut off, do not have their checksum, or cannot be decompressed."""

    kafka_code = 2


class BatchTooLargeError(BatchError, RecordTooLargeError):
    """The batch is larger than allowed, as it came or decompressed. Kafka's producers split it and send the parts."""


class InvalidTimestampError(BatchError):
    """A record has a timestamp that no column of times holds, or the client claims an append time."""

    kafka_code = 32


class UnsupportedCodecError(BatchError):
    """The compression is none of :class:`Codec`."""

    kafka_code = 76


class InvalidBatchError(BatchError, InvalidRecordError):
    """The batch or a record is against the rules, so the same bytes will never be accepted."""

    advice = ""


@dataclass(frozen=True, slots=True)
class RawBatch:
    """The bytes of one batch, and its header.

    Attributes:
        data: The whole batch. It may share memory with the request it came in.
        base_offset: The offset of the first record.
        leader_epoch: The leader epoch of the partition.
        crc: The CRC-32C that the header gives; :func:`check_produced` compares it.
        attributes: The bits; see the properties.
        last_offset_delta: The last offset minus ``base_offset``.
        base_timestamp: Milliseconds from which the records count theirs; -1 without timestamps.
        max_timestamp: The greatest timestamp in milliseconds, or the append time.
        producer_id: The producer; -1 without idempotence.
        producer_epoch: Its epoch; -1 without idempotence.
        base_sequence: The sequence number of the first record; -1 without idempotence.
        count: The number of records.
    """

    data: Buffer
    base_offset: int
    leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    count: int

    @property
    def codec(self) -> Codec:
        """The compression of the records.

        Raises:
            UnsupportedCodecError: The number is none of Kafka's.
        """
        codec_number = self.attributes & _CODEC
        try:
            return Codec(codec_number)
        except ValueError:
            raise UnsupportedCodecError(f"the records have a compression of number {codec_number}") from None

    @property
    def has_append_time(self) -> bool:
        """Whether every record has ``max_timestamp`` as its time; else each has its own."""
        return bool(self.attributes & _LOG_APPEND_TIME)

    @property
    def is_transactional(self) -> bool:
        """Whether the batch is part of a transaction."""
        return bool(self.attributes & _TRANSACTIONAL)

    @property
    def is_control(self) -> bool:
        """Whether the batch is a marker."""
        return bool(self.attributes & _CONTROL)

    @property
    def last_offset(self) -> int:
        """The last offset that the batch covers, with or without a record."""
        return self.base_offset + self.last_offset_delta

    @property
    def records(self) -> memoryview:
        """The bytes after the header: the records, compressed or not."""
        return memoryview(self.data)[HEADER_SIZE:]


def read_batches(data: Buffer) -> list[RawBatch]:
    """Split consecutive batches. Their checksums are not compared.

    Raises:
        CorruptBatchError: A batch is cut off, or shorter than its header.
        InvalidBatchError: A batch is of another magic than 2.
    """
    view = memoryview(data)
    batches: list[RawBatch] = []
    position = 0
    while position < len(view):
        batch = _read_batch(view[position:])
        batches.append(batch)
        position += len(batch.data)
    return batches


def _read_batch(view: memoryview) -> RawBatch:
    """Read the batch at the beginning of ``view``."""
    if len(view) < _START.size:
        raise CorruptBatchError(f"a record batch ends after {len(view)} bytes")
    _, length, _, magic = _START.unpack_from(view)
    if magic != _MAGIC:
        raise InvalidBatchError(f"a record batch has the format of magic {magic}; the gateway takes magic {_MAGIC}")
    size = length + _LENGTH_END
    if size < HEADER_SIZE:
        raise CorruptBatchError(f"a record batch of {size} bytes is shorter than its header")
    if size > len(view):
        raise CorruptBatchError(f"a record batch of {size} bytes ends after {len(view)}")
    base_offset, _, *fields = _HEADER.unpack_from(view)
    return RawBatch(view[:size], base_offset, *fields)


def check_produced(data: Buffer, max_bytes: int) -> RawBatch:
    """Check the header of a batch that a client produces to a partition, without a look at the records.

    Args:
        data: The records of the partition in the request.
        max_bytes: The topic's ``max.message.bytes``.

    Returns:
        The batch. :func:`~txnstore.gateway.records.columns.to_table` checks its records.

    Raises:
        BatchError: The batch is refused. As in Kafka, another magic, a second batch, a control batch and a wrong number
            of records are INVALID_RECORD.
    """
    if not data:
        raise InvalidBatchError("there is no record batch")
    batch = _read_batch(memoryview(data))
    if len(batch.data) < len(data):
        raise InvalidBatchError("there is more than one record batch")
    if len(data) > max_bytes:
        raise BatchTooLargeError(f"a record batch of {len(data)} bytes is over max.message.bytes ({max_bytes})")
    if crc32c(memoryview(data)[_CHECKSUM_START:]) != batch.crc:
        raise CorruptBatchError("a record batch does not have its checksum")
    if batch.is_control:
        raise InvalidBatchError("clients write no control batches")
    if batch.count < 1 or batch.last_offset_delta != batch.count - 1:
        msg = f"a record batch has {batch.count} records and the last offset delta {batch.last_offset_delta}"
        raise InvalidBatchError(msg)
    if batch.producer_id >= 0:
        if batch.base_sequence < 0 or batch.producer_epoch < 0:
            msg = f"a producer sends the sequence number {batch.base_sequence} and the epoch {batch.producer_epoch}"
            raise InvalidBatchError(msg)
    elif batch.is_transactional:
        raise InvalidBatchError("a transactional record batch has no producer id")
    if batch.has_append_time:
        raise InvalidTimestampError("the client claims an append time, which only a broker sets")
    _ = batch.codec
    return batch


def at_offset(raw: RawBatch, base_offset: int, *, leader_epoch: int = 0, append_time: int | None = None) -> bytes:
    """Return the batch with its offset in the log.

    Base offset and leader epoch are outside of the checksum, so the rest is copied as it is.

    Args:
        base_offset: The offset of its first record.
        append_time: Milliseconds that replace the timestamps of all records; None keeps theirs.
    """
    data = memoryview(raw.data)
    start = _START.pack(base_offset, len(data) - _LENGTH_END, leader_epoch, raw.magic)
    if append_time is None:
        return b"".join((start, data[_START.size :]))
    covered_bytes = b"".join(
        (
            _TIMES.pack(raw.attributes | _LOG_APPEND_TIME, raw.last_offset_delta, raw.base_timestamp, append_time),
            data[_CHECKSUM_START + _TIMES.size :],
        )
    )
    return b"".join((start, struct.pack(">I", crc32c(covered_bytes)), covered_bytes))


def encode_batch(
    base_offset: int,
    last_offset_delta: int,
    timestamps: tuple[int, int],
    count: int,
    records: Buffer,
    *,
    codec: Codec = Codec.NONE,
    control: bool = False,
    append_time: bool = False,
) -> bytes:
    """Encode a batch without a producer.

    Args:
        base_offset: The offset from which the records count theirs.
        last_offset_delta: The last offset minus ``base_offset``.
        timestamps: The base, and the greatest timestamp, in milliseconds.
        count: The number of records.
        records: The records, compressed by ``codec``.
        codec: Their compression.
        control: Whether the batch is a marker, which is part of a transaction, too.
        append_time: Whether the greatest timestamp is that of the append, which all records have.
    """
    attributes = codec | (_CONTROL | _TRANSACTIONAL if control else 0) | (_LOG_APPEND_TIME if append_time else 0)
    covered_fields = struct.pack(">hiqqqhii", attributes, last_offset_delta, *timestamps, -1, -1, -1, count)
    crc = crc32c(records, crc32c(covered_fields))
    length = HEADER_SIZE - _LENGTH_END + len(records)
    return b"".join((_START.pack(base_offset, length, 0, _MAGIC), struct.pack(">I", crc), covered_fields, records))


def gap_batch(first_offset: int, last_offset: int) -> bytes:
    """Encode a marker without effect that covers offsets without records, so that consumers pass them.

    It is a COMMIT of no producer. Its record is at the last offset. Consumers never show it.

    Args:
        first_offset: The first offset of the gap.
        last_offset: The last one. A gap of more than 2³¹ offsets is covered in part: consumers ask for the rest.
    """
    delta = min(last_offset - first_offset, MAX_DELTA)
    if delta < 0:
        raise ValueError(f"a gap from {first_offset} to {last_offset}")
    body = b"".join(
        (
            b"\0\0",  # No attributes; the time of the batch.
            varint(delta),
            varint(len(_COMMIT_KEY)),
            _COMMIT_KEY,
            varint(len(_END_TXN_MARKER)),
            _END_TXN_MARKER,
            b"\0",  # No headers.
        )
    )
    return encode_batch(first_offset, delta, (-1, -1), 1, varint(len(body)) + body, control=True)


#: The key of a COMMIT marker (``ControlRecordType``): version 0, type 1.
_COMMIT_KEY = struct.pack(">hh", 0, 1)
#: The value of the marker (``EndTxnMarker``): version 0, coordinator epoch 0.
_END_TXN_MARKER = struct.pack(">hi", 0, 0)


def varint(number: int) -> bytes:
    """Encode a zigzag number in groups of seven bits, lowest first."""
    zigzag = number << 1 if number >= 0 else (-number << 1) - 1
    encoded = bytearray()
    while zigzag >= 0x80:
        encoded.append(zigzag & 0x7F | 0x80)
        zigzag >>= 7
    encoded.append(zigzag)
    return bytes(encoded)
