"""Record batches to the columns of a topic without a schema, and back, many records at a time.

Few records are decoded one by one. Decoding many loops in Python over their lengths only. The other numbers are read by
numpy, each kind for all records at once. Keys and values are cut from one buffer by one ``BinaryArray`` (key, rest,
value, rest, …), of which :meth:`pyarrow.Array.take` copies every fourth. Encoding joins columns of bytes element by
element: the buffer of the result *is* the records of a batch.

Source: Kafka's ``DefaultRecord``, ``LogValidator``.
"""

from __future__ import annotations

import gzip
import io
import struct
import zlib
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from typing import Any

import cramjam
import numpy as np
import numpy.typing as npt
import pyarrow as pa
from aiokafka import codec as codecs

from txnstore import compute as pc
from txnstore.gateway.records.batch import (
    HEADER_SIZE,
    MAX_DELTA,
    MAX_LISTED,
    BatchError,
    BatchTooLargeError,
    Buffer,
    Codec,
    CorruptBatchError,
    InvalidBatchError,
    InvalidTimestampError,
    RawBatch,
    RecordError,
    encode_batch,
)
from txnstore.producer.records import MAX_TIMESTAMP
from txnstore.segment.schema import HEADERS, RECORD_SCHEMA, TIMESTAMP, RecordTuple, records_to_table

#: Bytes that the records of one batch may have when they are decompressed.
MAX_DECOMPRESSED = 64 << 20
#: Bytes of decompressed records after which no further batch is decoded: a kilobyte can become the largest size.
_MAX_TOTAL = 128 << 20
#: Records that a batch may have, and headers: a few kilobytes can be decompressed to ten million, which take gigabytes.
MAX_RECORDS = 1 << 20
#: Bytes of records that are decoded at a time: the arrays of numpy for them fit in the cache of a processor.
_GROUP_BYTES = 2 << 20
#: Records that are decoded one by one: for fewer, the arrays of numpy take longer than all else.
_FEW_RECORDS = 48
#: The shortest record: six fields of one byte after its length.
_MIN_RECORD = 7
#: Zero bytes after the last record, so that a number is read up to its tenth byte without a check.
_PADDING = bytes(16)
#: Bytes of a 32-bit and of a 64-bit number.
_VARINT, _VARLONG = 5, 10
#: The most headers of a record that are read together with those of other records; more are read one by one.
_MAX_BULK_HEADERS = 32

#: The magic of snappy as Java's library (xerial) writes it, and the bytes of its header.
_XERIAL, _XERIAL_HEADER = b"\x82SNAPPY\0", 16

_Int64 = npt.NDArray[np.int64]
_Bytes = npt.NDArray[np.uint8]
_Bools = npt.NDArray[np.bool_]
#: Place and length of the bytes of each row; a negative length is null.
_Cells = tuple[_Int64, _Int64]


# Decoding -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class DecodedRecords:
    """The records of several batches.

    Attributes:
        table: The records of the good batches, in the order of the batches, with the columns of
            :data:`~txnstore.segment.schema.RECORD_SCHEMA`. Missing timestamps and
            headers are null.
        counts: The number of rows of each batch; 0 for a refused one. Batches at the end have no count if all would
            take too much memory: they are left to another call.
        first_rows: The first row of each batch, and the number of all rows.
        errors: The errors of refused batches, by index in the sequence.
    """

    table: pa.Table
    counts: tuple[int, ...]
    first_rows: tuple[int, ...]
    errors: dict[int, BatchError]

    def rows(self, index: int) -> pa.Table:
        """The records of the batch with this index in the sequence."""
        count = self.counts[index]
        return self.table if count == self.table.num_rows else self.table.slice(self.first_rows[index], count)


@dataclass(frozen=True, slots=True)
class _Payload:
    """The records of a batch, decompressed.

    Attributes:
        number: The index of the batch in the sequence.
        data: The decompressed records.
    """

    number: int
    batch: RawBatch
    data: Buffer


def to_table(
    batches: Sequence[RawBatch], *, max_decompressed: int = MAX_DECOMPRESSED, keyed_batches: Collection[int] = ()
) -> DecodedRecords:
    """Decode the records of all batches in one pass. A bad batch is refused alone.

    Args:
        batches: Batches that :func:`~txnstore.gateway.records.batch.check_produced` has accepted. Their offset deltas
            must count from 0.
        max_decompressed: Bytes that the records of one batch may have when they are decompressed; at most 1 GiB.
        keyed_batches: The places of the batches whose topic is compacted, so each record needs a key.
    """
    errors: dict[int, BatchError] = {}
    tables: list[pa.Table] = []
    group: list[_Payload] = []
    size = total_size = batch_count = 0
    for index, batch in enumerate(batches):
        if total_size > _MAX_TOTAL:
            break
        batch_count = index + 1
        try:
            if batch.count > MAX_RECORDS:
                raise BatchTooLargeError(f"the batch has {batch.count} records, more than {MAX_RECORDS}")
            data = _decompress(batch, min(max_decompressed, 1 << 30))
            if not 1 <= batch.count <= len(data) // _MIN_RECORD:
                raise InvalidBatchError(f"{len(data)} bytes are no {batch.count} records")
        except BatchError as error:
            errors[index] = error
            continue
        if group and size + len(data) > _GROUP_BYTES:
            tables.append(_decode(group, keyed_batches, errors))
            group, size = [], 0
        group.append(_Payload(index, batch, data))
        size += len(data)
        total_size += len(data)
    if group or not tables:
        tables.append(_decode(group, keyed_batches, errors))
    counts = tuple(0 if index in errors else batch.count for index, batch in enumerate(batches[:batch_count]))
    table = tables[0] if len(tables) == 1 else pa.concat_tables(tables)
    return DecodedRecords(table, counts, tuple(accumulate(counts, initial=0)), errors)


def _decode(group: list[_Payload], keyed_batches: Collection[int], errors: dict[int, BatchError]) -> pa.Table:
    """Decode the good batches of a group, and add the errors of the others to ``errors``."""
    if sum(payload.batch.count for payload in group) <= _FEW_RECORDS:
        table = _decode_few(group, keyed_batches)
        if table is not None:
            return table
    data = b"".join([*(payload.data for payload in group), _PADDING])
    marks: list[int] = []
    good_payloads: list[_Payload] = []
    end = 0
    for payload in group:
        start, end, count_before = end, end + len(payload.data), len(marks)
        if _find_records(data, start, end, payload.batch.count, marks):
            good_payloads.append(payload)
        else:
            del marks[count_before:]
            errors[payload.number] = InvalidBatchError("the lengths of the records do not add up to their bytes")
    if not marks:
        return RECORD_SCHEMA.empty_table()
    records = _Records(data, np.fromiter(marks, np.int64, len(marks)), good_payloads, keyed_batches)
    errors_by_index = records.errors()
    if not errors_by_index:
        return records.table()
    errors.update(errors_by_index)
    return _decode(
        [payload for payload in good_payloads if payload.number not in errors_by_index], keyed_batches, errors
    )


def _decode_few(group: Sequence[_Payload], keyed_batches: Collection[int]) -> pa.Table | None:
    """Decode records one by one; None for :class:`_Records`: one is refused, has no time, or has many headers."""
    records: list[RecordTuple] = []
    for payload in group:
        if not _read_records(payload, payload.number in keyed_batches, records):
            return None
    return records_to_table(records, 0)


def _read_records(payload: _Payload, needs_keys: bool, records: list[RecordTuple]) -> bool:
    """Append the records of a batch; False if one is refused, has no time, or has many headers."""
    batch, data = payload.batch, bytes(payload.data)
    if batch.base_timestamp < 0:  # There are no times, or their sums depend on the overflow of 64 bits.
        return False
    end = 0
    try:
        for offset in range(batch.count):
            length, position = _varint(data, end)
            end = position + length
            if length < _MIN_RECORD - 1 or end > len(data):
                return False
            delta, position = _varint(data, position + 1, _VARLONG)  # The attributes have no meaning.
            offset_delta, position = _varint(data, position)
            key, position = _cell(data, position)
            value, position = _cell(data, position)
            header_count, position = _varint(data, position)
            headers = _read_headers(data, position, end, header_count)
            moment = batch.max_timestamp if batch.has_append_time else batch.base_timestamp + delta
            if (
                offset_delta != offset
                or headers is None
                or (needs_keys and key is None)
                or not 0 <= moment <= MAX_TIMESTAMP
            ):
                return False
            records.append((key, value, headers or None, moment))
    except (IndexError, ValueError):  # It ends within a number, or the name of a header is no UTF-8.
        return False
    return end == len(data)


def _cell(data: bytes, position: int) -> tuple[bytes | None, int]:
    """Read a length and as many bytes, fewer at the end of the data; return them, or null, and the position behind."""
    length, position = _varint(data, position)
    return (None, position) if length < 0 else (data[position : position + length], position + length)


def _read_headers(data: bytes, position: int, end: int, count: int) -> list[tuple[str, bytes | None]] | None:
    """The headers of a record; None if they do not fill it up to its end, or are more than a few."""
    if count == 0 and position == end:
        return []
    if not 0 < count <= _MAX_BULK_HEADERS:
        return None
    places = _header_places(data, position, end, count)
    if places is None:
        return None
    cells = iter(places)
    return [
        (data[name : name + name_length].decode(), None if length < 0 else data[value : value + length])
        for name, name_length, value, length in zip(cells, cells, cells, cells, strict=True)
    ]


def _find_records(data: bytes, position: int, end: int, count: int, marks: list[int]) -> bool:
    """Append the start of each record to ``marks``; return whether the records fill the bytes.

    This is the only loop over single records, so it checks nothing: starts only grow, so the last one shows whether all
    are inside. A negative length counts as positive here, and is found later.
    """
    append = marks.append
    try:
        for _ in range(count):
            append(position)
            first_byte = data[position]
            if first_byte < 0x80:
                position += (first_byte >> 1) + 1
            elif (second_byte := data[position + 1]) < 0x80:
                position += (first_byte >> 1) + (second_byte << 6) - 62  # (first & 0x7F | second << 7) // 2 + 2
            else:
                length, position = _varint(data, position)
                position += abs(length)
    except (IndexError, ValueError):
        return False
    return position == end


def _varint(data: bytes, position: int, max_bytes: int = _VARINT) -> tuple[int, int]:
    """Read the number at a position; return it and the position behind it."""
    number = 0
    for index in range(max_bytes):
        byte = data[position + index]
        number |= (byte & 0x7F) << 7 * index
        if byte < 0x80:
            return (number >> 1) ^ -(number & 1), position + index + 1
    raise ValueError(f"a number of more than {max_bytes} bytes")


class _Cursor:
    """A position in each of many records, to read the same field of all of them.

    A record whose field exceeds it is *broken*: its position stays within the record, and the values read of it mean
    nothing.

    Args:
        bytes_: The bytes of the records and padding.
        positions: The positions.
        ends: The end of each record.
    """

    def __init__(self, bytes_: _Bytes, positions: _Int64, ends: _Int64) -> None:
        self._bytes = bytes_
        self._ends = ends
        self.positions = positions
        self.is_broken: _Bools = np.zeros(len(positions), np.bool_)

    def numbers(self, max_bytes: int = _VARINT) -> _Int64:
        """Read a number of at most ``max_bytes`` bytes."""
        self.is_broken |= self.positions >= self._ends
        numbers, self.positions, too_long = _varints(self._bytes, np.minimum(self.positions, self._ends), max_bytes)
        if too_long.size:
            self.is_broken[too_long] = True
        return numbers

    def cells(self) -> _Cells:
        """Read a length and as many bytes; a negative length is null."""
        lengths = self.numbers()
        starts = np.minimum(self.positions, self._ends)
        room = self._ends - starts
        self.is_broken |= lengths > room
        self.positions = starts + np.minimum(np.maximum(lengths, 0), room)
        return starts, np.minimum(lengths, room)


class _Records:
    """The fields of all records of a group.

    Args:
        data: The records of the batches, one after the other, and padding.
        marks: The start of each record.
        payloads: The batches that have records in ``marks``, in their order.
        keyed_batches: The places of batches whose records need a key.
    """

    def __init__(
        self, data: bytes, marks: _Int64, payloads: Sequence[_Payload], keyed_batches: Collection[int]
    ) -> None:
        self._data = data
        self._payloads = payloads
        batches = [payload.batch for payload in payloads]
        counts = np.array([batch.count for batch in batches], np.int64)
        #: The first row of each batch, and the number of all.
        self._first_rows = np.concatenate(([0], np.cumsum(counts)))

        # The fields in their order: length, attributes, time and offset less those of the batch, key, value, headers.
        bytes_ = np.frombuffer(data, np.uint8)
        lengths, positions, _ = _varints(bytes_, marks, _VARINT)
        ends = positions + np.maximum(lengths, 0)
        cursor = _Cursor(bytes_, positions + 1, ends)  # The attributes of a record have no meaning.
        deltas = cursor.numbers(_VARLONG)
        offsets = cursor.numbers()
        self._keys = cursor.cells()
        self._values = cursor.cells()
        header_counts = cursor.numbers()
        room = ends - cursor.positions
        # A header has at least two bytes.
        cursor.is_broken |= (header_counts < 0) | np.where(header_counts == 0, room != 0, 2 * header_counts > room)
        header_counts[cursor.is_broken] = 0
        #: Rows of batches with too many headers.
        self._has_too_many_headers = np.repeat(
            np.add.reduceat(header_counts, self._first_rows[:-1]) > MAX_RECORDS, counts
        )
        rows = np.flatnonzero((header_counts > 0) & ~self._has_too_many_headers)
        self._headers = _Headers(data, rows, cursor.positions[rows], ends[rows], header_counts[rows])
        cursor.is_broken[rows] = self._headers.is_broken
        #: Rows whose fields do not fit the record.
        self._is_broken = cursor.is_broken

        self._has_wrong_offset = offsets != np.arange(len(marks)) - np.repeat(self._first_rows[:-1], counts)
        # All records of a batch with the time of the append have that time, whatever they say.
        bases = [batch.max_timestamp if batch.has_append_time else batch.base_timestamp for batch in batches]
        if any(batch.has_append_time for batch in batches):
            deltas[np.repeat([batch.has_append_time for batch in batches], counts)] = 0
        self._times = np.repeat(np.array(bases, np.int64), counts) + deltas
        self._is_keyless = np.repeat([payload.number in keyed_batches for payload in payloads], counts) & (
            self._keys[1] < 0
        )

    def errors(self) -> dict[int, BatchError]:
        """The errors of refused batches, by index in the sequence."""
        wrong_times = (self._times < -1) | (self._times > MAX_TIMESTAMP)
        checks: list[tuple[_Bools, type[BatchError], str]] = [
            (self._has_too_many_headers, BatchTooLargeError, f"it is of a batch with more than {MAX_RECORDS} headers"),
            (self._is_broken, InvalidBatchError, "its fields do not fit its length"),
            (self._has_wrong_offset, InvalidBatchError, "its offset does not count from that of the first record"),
            (self._is_keyless, InvalidBatchError, "it has no key, and the topic is compacted by key"),
            (wrong_times, InvalidTimestampError, "its timestamp is not in the years 1970 to 9999"),
        ]
        if not self._is_broken.any():
            checks.append(
                (
                    self._headers.rows_with_invalid_names(len(wrong_times)),
                    InvalidBatchError,
                    "the name of a header is no UTF-8",
                )
            )
        errors: dict[int, BatchError] = {}
        for is_wrong, kind, text in checks:
            if not is_wrong.any():
                continue
            rows = np.flatnonzero(is_wrong)
            payload_indexes = np.searchsorted(self._first_rows, rows, side="right") - 1
            for payload_index in np.unique(payload_indexes).tolist():
                batch_index = self._payloads[payload_index].number
                if batch_index not in errors:
                    indexes = (
                        rows[payload_indexes == payload_index][:MAX_LISTED] - self._first_rows[payload_index]
                    ).tolist()
                    errors[batch_index] = kind.of_records([RecordError(index, text) for index in indexes])
        return errors

    def table(self) -> pa.Table:
        """The rows as a table; only if :meth:`errors` is empty."""
        keys, values = _binary_columns(self._data, self._keys, self._values)
        is_missing = self._times == -1
        times = pa.array(self._times, pa.int64(), mask=is_missing if is_missing.any() else None).cast(TIMESTAMP)
        return pa.Table.from_arrays([keys, values, self._headers.column(len(is_missing)), times], schema=RECORD_SCHEMA)


class _Headers:
    """The headers of the rows that have any.

    Args:
        data: The records of the batches, and padding.
        starts: Where the headers of each row begin.
        ends: Where each row ends.
        counts: How many headers each row has.
    """

    def __init__(self, data: bytes, rows: _Int64, starts: _Int64, ends: _Int64, counts: _Int64) -> None:
        self._data = data
        self._rows = rows
        self._counts = counts
        #: Of the rows those whose headers do not fit the record.
        self.is_broken: _Bools = np.zeros(len(rows), np.bool_)
        #: The first header of each row, and the number of all.
        first_headers = np.concatenate(([0], np.cumsum(counts)))
        #: Place and length of the name, place and length of the value of each header.
        self._header_cells = np.zeros((4, int(first_headers[-1])), np.int64)
        self._read_bulk(np.frombuffer(data, np.uint8), starts.copy(), ends, first_headers)
        for row in np.flatnonzero(counts > _MAX_BULK_HEADERS).tolist():
            places = _header_places(data, int(starts[row]), int(ends[row]), int(counts[row]))
            if places is None:
                self.is_broken[row] = True
            else:
                self._header_cells[:, first_headers[row] : first_headers[row + 1]] = np.array(places).reshape(-1, 4).T

    def _read_bulk(self, bytes_: _Bytes, positions: _Int64, ends: _Int64, first_headers: _Int64) -> None:
        """Read the headers of rows with few: the first one of all rows, then the second ones, and so on."""
        bulk_rows = np.flatnonzero(self._counts <= _MAX_BULK_HEADERS)
        rows = bulk_rows
        for number in range(int(self._counts[rows].max(initial=0))):
            rows = rows[self._counts[rows] > number]
            cursor = _Cursor(bytes_, positions[rows], ends[rows])
            header_indexes = first_headers[rows] + number
            self._header_cells[0, header_indexes], self._header_cells[1, header_indexes] = names = cursor.cells()
            self._header_cells[2, header_indexes], self._header_cells[3, header_indexes] = cursor.cells()
            positions[rows] = cursor.positions
            self.is_broken[rows] |= cursor.is_broken | (names[1] < 0)
        self.is_broken[bulk_rows] |= positions[bulk_rows] != ends[bulk_rows]

    def rows_with_invalid_names(self, count: int) -> _Bools:
        """A mask over ``count`` rows: whether a header's name is no UTF-8."""
        is_wrong = np.zeros(count, np.bool_)
        if not len(self._rows):
            return is_wrong
        names = _binary_columns(self._data, (self._header_cells[0], self._header_cells[1]))[0]
        try:
            names.cast(pa.string())
        except pa.ArrowInvalid:
            rows = np.repeat(self._rows, self._counts).tolist()
            is_wrong[[row for row, name in zip(rows, names.to_pylist(), strict=True) if not _is_utf8(name)]] = True
        return is_wrong

    def column(self, count: int) -> pa.Array:
        """The column of headers for ``count`` rows."""
        if not len(self._rows):
            return pa.nulls(count, HEADERS)
        names, values = _binary_columns(
            self._data, (self._header_cells[0], self._header_cells[1]), (self._header_cells[2], self._header_cells[3])
        )
        counts = np.zeros(count, np.int32)
        counts[self._rows] = self._counts
        offsets = np.zeros(count + 1, np.int32)
        np.cumsum(counts, out=offsets[1:])
        pairs = pa.StructArray.from_arrays([names.cast(pa.string()), values], fields=list(HEADERS.value_type))
        return pa.ListArray.from_arrays(pa.array(offsets), pairs, type=HEADERS, mask=pa.array(counts == 0))


def _header_places(data: bytes, position: int, end: int, count: int) -> list[int] | None:
    """Position and length of the name and value of each header of a record; None if they do not fill it."""
    places: list[int] = []
    try:
        for _ in range(count):
            name_length, name_start = _varint(data, position)
            if name_length < 0 or name_start + name_length >= end:
                return None
            value_length, value_start = _varint(data, name_start + name_length)
            places += (name_start, name_length, value_start, value_length)
            position = value_start + max(value_length, 0)
            if position > end:
                return None
    except ValueError:
        return None
    return places if position == end else None


def _is_utf8(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def _binary_columns(data: bytes, *columns: _Cells) -> list[pa.Array]:
    """Cut binary columns out of one buffer without a copy per cell.

    Args:
        columns: Places and lengths of the cells of each column; a negative length is null. The places of a row grow
            from column to column, and those of the next row are greater.
    """
    width = 2 * len(columns)
    count = width * len(columns[0][0])
    bounds = np.empty(count + 1, np.int32)
    for number, (starts, lengths) in enumerate(columns):
        bounds[2 * number : count : width] = starts
        bounds[2 * number + 1 : count : width] = starts + np.maximum(lengths, 0)
    bounds[count] = bounds[count - 1]
    cells = pa.Array.from_buffers(pa.binary(), count, [None, pa.py_buffer(bounds), pa.py_buffer(data)])
    arrays = []
    for number, (_, lengths) in enumerate(columns):
        null = lengths < 0
        places = np.arange(2 * number, count, width, dtype=np.int32)
        arrays.append(cells.take(pa.array(places, mask=null if null.any() else None)))
    return arrays


def _varints(bytes_: _Bytes, positions: _Int64, max_bytes: int) -> tuple[_Int64, _Int64, _Int64]:
    """Read a zigzag number at each position; return them, the positions behind, and the rows of too long ones."""
    byte = bytes_[positions]
    numbers = (byte & np.uint8(0x7F)).astype(np.uint64)
    next_positions = positions + 1
    unfinished = np.flatnonzero(byte >= 0x80)
    for shift in range(7, 7 * max_bytes, 7):
        if not unfinished.size:
            break
        byte = bytes_[next_positions[unfinished]]
        numbers[unfinished] |= (byte & np.uint8(0x7F)).astype(np.uint64) << np.uint64(shift)
        next_positions[unfinished] += 1
        unfinished = unfinished[byte >= 0x80]
    values = (numbers >> np.uint64(1)).view(np.int64) ^ -(numbers & np.uint64(1)).view(np.int64)
    return values, next_positions, unfinished


# Compression ----------------------------------------------------------------------------------------------------------


def _decompress(batch: RawBatch, max_bytes: int) -> Buffer:
    """Decompress the records of a batch; never takes much more memory than ``max_bytes``.

    ``aiokafka.codec`` uses the same libraries, without a limit.
    """
    codec, data = batch.codec, batch.records
    if codec is Codec.NONE:
        return data
    try:
        match codec:
            case Codec.GZIP:
                decompressed: Buffer = gzip.GzipFile(fileobj=io.BytesIO(data)).read(max_bytes + 1)
            case Codec.SNAPPY:
                decompressed = _decompress_snappy(data, max_bytes)
            case Codec.LZ4:
                decompressed = _decompress_into(cramjam.lz4.decompress_into, data, max_bytes)
            case Codec.ZSTD:
                decompressed = _decompress_into(cramjam.zstd.decompress_into, data, max_bytes)
    except (cramjam.DecompressionError, OSError, EOFError, zlib.error, struct.error) as error:
        raise CorruptBatchError(f"the records cannot be decompressed ({codec.name.lower()}): {error}") from error
    if len(decompressed) > max_bytes:
        raise _too_large(max_bytes)
    return decompressed


def _decompress_into(decompress: Callable[[Any, Any], int], data: memoryview, max_bytes: int) -> memoryview:
    """Decompress into a buffer of ``max_bytes``, of which the system provides only the written pages."""
    buffer = np.empty(max_bytes + 1, np.uint8)
    try:
        size = decompress(data, buffer)
    except cramjam.DecompressionError as error:
        if "whole buffer" in str(error):
            raise _too_large(max_bytes) from error
        raise
    return buffer[:size].data


def _decompress_snappy(data: memoryview, max_bytes: int) -> bytes:
    """Decompress snappy: one block, or the blocks with their sizes of Java's library (xerial)."""
    blocks = [data] if bytes(data[: len(_XERIAL)]) != _XERIAL else list(_xerial_blocks(data[_XERIAL_HEADER:]))
    if sum(map(cramjam.snappy.decompress_raw_len, blocks)) > max_bytes:
        raise _too_large(max_bytes)
    return b"".join(bytes(cramjam.snappy.decompress_raw(block)) for block in blocks)


def _xerial_blocks(data: memoryview) -> Iterator[memoryview]:
    """Yield the blocks of the framing that Java's snappy library writes: each has its length before it."""
    position = 0
    while position < len(data):
        (size,) = struct.unpack_from(">i", data, position)
        position += 4
        if not 0 < size <= len(data) - position:
            raise CorruptBatchError("a block of snappy is cut off")
        yield data[position : position + size]
        position += size


def _too_large(max_bytes: int) -> BatchTooLargeError:
    return BatchTooLargeError(f"the records of the batch have more than {max_bytes} bytes without compression")


# Encoding -------------------------------------------------------------------------------------------------------------

_COMPRESS: dict[Codec, Callable[[bytes], bytes]] = {
    Codec.GZIP: partial(codecs.gzip_encode, compresslevel=6),
    Codec.SNAPPY: codecs.snappy_encode,
    Codec.LZ4: partial(codecs.lz4_encode, level=1),  # Its default compresses ten times as slowly.
    Codec.ZSTD: codecs.zstd_encode,
}
#: Bytes of a record besides its key, value and headers: length, attributes, the deltas, three lengths.
_MAX_RECORD_OVERHEAD = 5 + 1 + 10 + 5 + 5 + 5 + 5
#: Bytes of the two lengths of a header.
_MAX_HEADER_OVERHEAD = 10


@dataclass(frozen=True, slots=True)
class EncodedBatch:
    """A batch that was made of rows.

    Attributes:
        first_offset: The offset of its first record.
        last_offset: The offset of its last record.
        data: The batch, as a client gets it.
    """

    first_offset: int
    last_offset: int
    data: bytes


def to_batches(
    table: pa.Table, *, max_bytes: int = 1 << 20, codec: Codec | None = None, append_time: bool = False
) -> list[EncodedBatch]:
    """Encode rows as record batches, in their order.

    Args:
        table: The columns ``_offset`` (ascending, holes allowed), ``_timestamp``, ``key``, ``value`` and ``headers``.
        max_bytes: The size of a batch before compression. A larger record has a batch of its own.
        codec: The compression; None for none.
        append_time: Whether the times are those of appends. A batch whose records have one time says so; a batch has no
            place for several.
    """
    columns = table.select(["_offset", "_timestamp", "key", "value", "headers"])
    if not columns.num_rows:
        return []
    offsets = _as_array(columns["_offset"]).to_numpy()
    sizes = np.zeros(len(offsets) + 1, np.int64)
    np.cumsum(_max_sizes(columns), out=sizes[1:])
    batches = []
    start = 0
    while start < len(offsets):
        end_by_size = int(np.searchsorted(sizes, sizes[start] + max_bytes - HEADER_SIZE, side="right")) - 1
        end_by_delta = int(np.searchsorted(offsets, offsets[start] + MAX_DELTA, side="right"))
        end = max(start + 1, min(end_by_size, end_by_delta, len(offsets)))
        rows = columns.slice(start, end - start)
        batches.append(_encode(rows, offsets[start:end], codec or Codec.NONE, append_time=append_time))
        start = end
    return batches


def _encode(rows: pa.Table, offsets: _Int64, codec: Codec, *, append_time: bool) -> EncodedBatch:
    """Encode one batch."""
    times = pc.fill_null(_as_array(rows["_timestamp"]).cast(TIMESTAMP).cast(pa.int64()), -1).to_numpy()
    keys, values = _as_array(rows["key"]), _as_array(rows["value"])
    counts, headers = _encoded_headers(_as_array(rows["headers"]))
    # The fields of a record in their order; its length, before all of them, is known when they are encoded.
    after_key, after_value = _Numbers(_lengths(values, -1)), _Numbers(counts)
    before_key = _Numbers(np.zeros(len(offsets), np.int64), times - times[0], offsets - offsets[0], _lengths(keys, -1))
    lengths = before_key.sizes + after_key.sizes + after_value.sizes
    lengths += _lengths(keys, 0) + _lengths(values, 0)
    pieces = [before_key, keys, after_key, values, after_value]
    if headers is not None:
        lengths += _lengths(headers, 0)
        pieces.append(headers)
    pieces[0] = before_key.with_first(lengths)
    joined_cells = pc.binary_join_element_wise(
        *(piece.array() if isinstance(piece, _Numbers) else piece for piece in pieces),
        b"",
        null_handling="replace",
        null_replacement=b"",
    )
    records: Buffer = _cell_bytes(joined_cells)
    if codec is not Codec.NONE:
        compressed = _COMPRESS[codec](bytes(records))
        codec, records = (codec, compressed) if len(compressed) < len(records) else (Codec.NONE, records)
    first_offset, last_offset = int(offsets[0]), int(offsets[-1])
    stamps = int(times[0]), int(times.max())
    one_time = append_time and times.min() == times.max()
    data = encode_batch(
        first_offset, last_offset - first_offset, stamps, len(offsets), records, codec=codec, append_time=one_time
    )
    return EncodedBatch(first_offset, last_offset, data)


class _Numbers:
    """Some zigzag numbers for each row, one after the other.

    Args:
        columns: The first number of each row, the second one, and so on.
    """

    def __init__(self, *columns: _Int64) -> None:
        self._columns = [((column << 1) ^ (column >> 63)).view(np.uint64) for column in columns]
        #: The bytes of each row.
        self.sizes: _Int64 = np.sum([_encoded_sizes(column) for column in self._columns], axis=0)

    def with_first(self, numbers: _Int64) -> _Numbers:
        """The same numbers with one more before them."""
        result = _Numbers(numbers)
        result._columns += self._columns
        result.sizes = result.sizes + self.sizes
        return result

    def array(self) -> pa.Array:
        """The bytes of each row: those of a matrix with room for the longest numbers that a row uses."""
        widths = [max(1, -(-int(column.max()).bit_length() // 7)) for column in self._columns]
        rows = len(self.sizes)
        matrix = np.empty((rows, sum(widths)), np.uint8)
        is_used = np.empty(matrix.shape, np.bool_)
        index = 0
        for column, width in zip(self._columns, widths, strict=True):
            for byte in range(width):
                bits = column >> np.uint64(7 * byte)
                has_more = bits >= 0x80
                matrix[:, index] = (bits & np.uint64(0x7F)).astype(np.uint8) | has_more.view(np.uint8) << np.uint8(7)
                is_used[:, index] = True if byte == 0 else bits != 0
                index += 1
        offsets = np.zeros(rows + 1, np.int32)
        np.cumsum(self.sizes, out=offsets[1:])
        data = matrix[is_used]
        return pa.Array.from_buffers(pa.binary(), rows, [None, pa.py_buffer(offsets), pa.py_buffer(data)])


def _encoded_sizes(numbers: npt.NDArray[np.uint64]) -> _Int64:
    """The encoded size of each number."""
    sizes = np.ones(len(numbers), np.int64)
    greatest_number, threshold = int(numbers.max()), 1 << 7
    while greatest_number >= threshold:
        sizes += numbers >= threshold
        threshold <<= 7
    return sizes


def _max_sizes(columns: pa.Table) -> _Int64:
    """The most bytes that each row can take in a batch."""
    sizes: _Int64 = _MAX_RECORD_OVERHEAD + _lengths(columns["key"], 0) + _lengths(columns["value"], 0)
    headers = _as_array(columns["headers"])
    if headers.null_count < len(headers):
        counts = _header_counts(headers)
        pairs = headers.flatten()
        header_sizes = _MAX_HEADER_OVERHEAD + _lengths(pairs.field("key"), 0) + _lengths(pairs.field("value"), 0)
        size_sums = np.concatenate(([0], np.cumsum(header_sizes)))
        ends = np.cumsum(counts)
        sizes = sizes + size_sums[ends] - size_sums[ends - counts]
    return sizes


def _encoded_headers(headers: pa.Array) -> tuple[_Int64, pa.Array | None]:
    """The number of headers of each row, and their bytes; None if no row has any."""
    counts = _header_counts(headers)
    pairs = headers.flatten()
    if not len(pairs):
        return counts, None
    names, values = pairs.field("key").cast(pa.binary()), pairs.field("value")
    joined_cells = pc.binary_join_element_wise(
        _Numbers(_lengths(names, 0)).array(),
        names,
        _Numbers(_lengths(values, -1)).array(),
        values,
        b"",
        null_handling="replace",
        null_replacement=b"",
    )
    # The headers of a row are neighbours, so the bytes of a row are a range of the same buffer.
    bounds = np.frombuffer(joined_cells.buffers()[1], np.int32)[: len(joined_cells) + 1]
    offsets = bounds[np.concatenate(([0], np.cumsum(counts)))]
    return counts, pa.Array.from_buffers(
        pa.binary(), len(counts), [None, pa.py_buffer(offsets), joined_cells.buffers()[2]]
    )


def _header_counts(headers: pa.Array) -> _Int64:
    counts: _Int64 = pc.fill_null(pc.list_value_length(headers), 0).to_numpy(zero_copy_only=False).astype(np.int64)
    return counts


def _lengths(column: Any, null: int) -> _Int64:
    """The length of each cell, ``null`` for a null cell."""
    lengths = pc.binary_length(column)
    if lengths.null_count:
        lengths = pc.fill_null(lengths, null)
    return lengths.to_numpy().astype(np.int64)  # type: ignore[no-any-return]


def _as_array(column: pa.ChunkedArray) -> pa.Array:
    """The column as one array."""
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def _cell_bytes(cells: pa.Array) -> memoryview:
    """The bytes of all cells of an array that begins with its buffer."""
    size = int(np.frombuffer(cells.buffers()[1], np.int32)[len(cells)])
    return memoryview(cells.buffers()[2])[:size]
