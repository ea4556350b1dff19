"""Record batches to columns and back, compared with what ``aiokafka`` reads and writes."""

from __future__ import annotations

import random
import struct
import tracemalloc
from typing import Any

import cramjam
import numpy as np
import pyarrow as pa
import pytest
from crc32c import crc32c
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.helpers.kafka_batches import KafkaRecord, kafka_batch, read_kafka_batch, values_batch
from txnstore.gateway.records import columns
from txnstore.gateway.records.batch import (
    HEADER_SIZE,
    BatchError,
    BatchTooLargeError,
    Codec,
    CorruptBatchError,
    InvalidBatchError,
    InvalidTimestampError,
    RawBatch,
    UnsupportedCodecError,
    at_offset,
    check_produced,
    read_batches,
    varint,
)
from txnstore.gateway.records.columns import DecodedRecords, EncodedBatch, to_batches, to_table
from txnstore.segment.schema import HEADERS, RECORD_SCHEMA, TIMESTAMP

LIMIT = 1 << 27
YEAR_10000 = 253_402_300_800_000


def decode(*batches: bytes, **options: Any) -> DecodedRecords:
    return decode_both_ways([check_produced(batch, LIMIT) for batch in batches], **options)


def decode_both_ways(batches: list[RawBatch], **options: Any) -> DecodedRecords:
    """Few records are decoded one by one, many by numpy: with the same result."""
    decoded = to_table(batches, **options)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(columns, "_FEW_RECORDS", 0)
        as_many = to_table(batches, **options)
    assert decoded.table.equals(as_many.table)
    assert decoded.counts == as_many.counts
    assert {number: repr(error) for number, error in decoded.errors.items()} == {
        number: repr(error) for number, error in as_many.errors.items()
    }
    return decoded


def sealed(records: bytes, count: int, base_timestamp: int = 1_000, attributes: int = 0) -> RawBatch:
    """A batch with a valid header and any bytes as records."""
    covered = (
        struct.pack(">hiqqqhii", attributes, count - 1, base_timestamp, base_timestamp, -1, -1, -1, count) + records
    )
    start = struct.pack(">qiibI", 0, len(covered) + 9, -1, 2, crc32c(covered))
    return check_produced(start + covered, LIMIT)


def record(*fields: bytes | int, length: int | None = None) -> bytes:
    """A record of an attribute byte and fields: integers are written as numbers."""
    body = b"\0" + b"".join(field if isinstance(field, bytes) else varint(field) for field in fields)
    return varint(len(body) if length is None else length) + body


def rows(table: pa.Table) -> list[tuple[Any, ...]]:
    """The records as aiokafka has them: timestamp, key, value, headers."""
    found = []
    for row in table.to_pylist():
        moment = -1 if row["timestamp"] is None else round(row["timestamp"].timestamp() * 1000)
        headers = [(header["key"], header["value"]) for header in row["headers"] or ()]
        found.append((moment, row["key"], row["value"], headers))
    return found


def expected(*batches: bytes) -> list[tuple[Any, ...]]:
    return [record[1:] for batch in batches for record in read_kafka_batch(batch)]


# Decoding -------------------------------------------------------------------------------------------------------------

_cells = st.none() | st.binary(max_size=5) | st.sampled_from([bytes(63), bytes(64), b"x" * 8191, b"y" * 8192])
_headers = st.lists(st.tuples(st.text(max_size=5), st.none() | st.binary(max_size=70)), max_size=4)
_times = st.integers(0, YEAR_10000 - 1) | st.just(-1)
_records = st.lists(st.tuples(_times, _cells, _cells, _headers), min_size=1, max_size=8)
_codecs = st.sampled_from(list(Codec))


def batch_of(records: list[Any], codec: int = 0) -> bytes:
    return kafka_batch([(number, *record) for number, record in enumerate(records)], codec=codec)


@pytest.mark.slow
@given(st.lists(st.tuples(_records, _codecs), min_size=1, max_size=4))
@settings(max_examples=60)
def test_all_batches_are_decoded_as_by_aiokafka(batches: list[tuple[list[Any], Codec]]) -> None:
    sent = [batch_of(records, codec) for records, codec in batches]
    decoded = decode(*sent)
    assert decoded.errors == {}
    assert decoded.table.schema.equals(RECORD_SCHEMA)
    decoded.table.validate(full=True)
    assert rows(decoded.table) == expected(*sent)
    assert decoded.counts == tuple(len(records) for records, _ in batches)
    for number, batch in enumerate(sent):
        assert rows(decoded.rows(number)) == expected(batch)


def test_missing_parts_are_null() -> None:
    decoded = decode(kafka_batch([(0, 5, b"", b"", [("", None)]), (1, -1, None, None, [])]))
    assert decoded.table.to_pylist()[1] == {"key": None, "value": None, "headers": None, "timestamp": None}
    assert rows(decoded.table)[0] == (5, b"", b"", [("", None)])


def test_an_append_time_is_that_of_all_records() -> None:
    raw = check_produced(kafka_batch([(0, 1_000, b"a", None, []), (1, 9_000, b"b", None, [])]), LIMIT)
    (stamped,) = read_batches(at_offset(raw, 0, append_time=777))
    decoded = to_table([raw, stamped])
    assert [row[0] for row in rows(decoded.table)] == [1_000, 9_000, 777, 777]


def test_nothing_is_an_empty_table() -> None:
    assert to_table([]).table.equals(RECORD_SCHEMA.empty_table())


def test_groups_are_decoded_one_after_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(columns, "_GROUP_BYTES", 60)
    sent = [values_batch([b"%d" % number] * 5) for number in range(10)]
    decoded = decode(*sent)
    assert rows(decoded.table) == expected(*sent)
    assert decoded.table["value"].num_chunks == 10
    assert [decoded.rows(n)["value"][0].as_py() for n in range(10)] == [b"%d" % n for n in range(10)]


def test_many_headers_and_long_names() -> None:
    headers: list[tuple[str, bytes | None]] = [(f"é{n}" * (n % 40), bytes(n % 130)) for n in range(300)]
    sent = kafka_batch([(0, 0, None, b"v", headers), (1, 0, None, b"w", []), (2, 0, None, b"x", headers[:3])])
    assert rows(decode(sent).table) == expected(sent)


# What is refused ------------------------------------------------------------------------------------------------------

GOOD = kafka_batch([(0, 1_000, b"k", b"good", [("h", b"1")]), (1, 1_001, b"l", b"too", [])])
FINE = record(0, 0, -1, 1, b"v", 0)

#: A header without value.
HEADER: list[bytes | int] = [1, b"h", -1]

BROKEN: dict[str, tuple[bytes, int]] = {
    "no record": (b"\0" * 7, 1),
    "a byte too many": (FINE + b"\0", 1),
    "a byte too few": (FINE[:-1], 1),
    "a record too many": (FINE, 2),
    "a record too few": (FINE + record(0, 1, -1, 1, b"v", 0), 1),
    "a negative length": (record(0, 0, -1, 1, b"v", 0, length=-8), 1),
    "a length of another record": (record(0, 0, -1, 1, b"v", 0, length=16) + record(0, 1, -1, 1, b"v", 0), 2),
    "an endless length": (b"\xff" * 20, 1),
    "a key after the end": (record(0, 0, 5, b"k", 1, b"v", 0), 1),
    "a value after the end": (record(0, 0, -1, 3, b"v", 0), 1),
    "an enormous value": (record(0, 0, -1, 2**31 - 1, b"v", 0), 1),
    "an endless number": (record(0, 0, -1, b"\xff" * 6, b"v", 0), 1),
    "an endless timestamp": (record(b"\xff" * 10, 0, -1, 1, b"v", 0), 1),
    "no header count": (record(0, 0, -1, 2, b"vv", b""), 1),
    "a negative header count": (record(0, 0, -1, 1, b"v", -1), 1),
    "headers that are missing": (record(0, 0, -1, 1, b"v", 2, 1, b"h", -1), 1),
    "headers after the end": (record(0, 0, -1, 1, b"v", 1, 1, b"h", 9, b"v"), 1),
    "a header without value": (record(0, 0, -1, 1, b"v", 1, 1, b"h"), 1),
    "a negative header name": (record(0, 0, -1, 1, b"v", 1, -1, -1), 1),
    "an enormous header count": (record(0, 0, -1, 1, b"v", 2**31 - 1), 1),
    "bytes after the headers": (record(0, 0, -1, 1, b"v", 1, 1, b"h", -1, b"?"), 1),
    "bytes instead of headers": (record(0, 0, -1, 1, b"v", 0, b"?"), 1),
    "many headers cut off": (record(0, 0, -1, 1, b"v", 40, *HEADER * 39, 1, b"h", 9), 1),
    "many headers with a negative name": (record(0, 0, -1, 1, b"v", 40, *HEADER * 39, -1, -1, b"?"), 1),
    "many headers and a byte": (record(0, 0, -1, 1, b"v", 40, *HEADER * 40, b"?"), 1),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_batch_is_refused_alone(name: str) -> None:
    """As by Kafka's ``DefaultRecord.readFrom`` and ``DefaultRecordBatch``: INVALID_RECORD."""
    good = check_produced(GOOD, LIMIT)
    decoded = decode_both_ways([good, sealed(*BROKEN[name]), good])
    assert decoded.counts == (2, 0, 2)
    assert rows(decoded.table) == expected(GOOD, GOOD)
    (number,) = decoded.errors
    assert (number, type(decoded.errors[number]), decoded.errors[number].kafka_code) == (1, InvalidBatchError, 87)


def test_what_is_not_broken_is_taken() -> None:
    """The pieces of which the broken records are made."""
    assert to_table([sealed(FINE, 1), sealed(record(0, 0, -1, 1, b"v", 1, 1, b"h", -1), 1)]).errors == {}
    assert to_table([sealed(record(0, 0, -1, 1, b"v", 40, *HEADER * 40), 1)]).errors == {}


def test_a_broken_record_is_named() -> None:
    bad = record(0, 1, -1, 9, b"v", 0)
    decoded = to_table([sealed(FINE + bad + record(0, 2, -1, 1, b"v", 0) + record(0, 3, -1, 7, b"v", 0), 4)])
    assert str(decoded.errors[0]) == "record 1: its fields do not fit its length"
    assert [error.index for error in decoded.errors[0].record_errors] == [1, 3]


def test_offsets_count_from_the_first() -> None:
    decoded = to_table([sealed(FINE + record(0, 2, -1, 1, b"v", 0), 2), check_produced(GOOD, LIMIT)])
    assert [(type(error), error.kafka_code) for error in decoded.errors.values()] == [(InvalidBatchError, 87)]
    assert [error.index for error in decoded.errors[0].record_errors] == [1]
    assert decoded.counts == (0, 2)


@pytest.mark.parametrize("moment", [-2, YEAR_10000, -(2**62), 2**62])
def test_a_timestamp_outside_of_the_years(moment: int) -> None:
    sent = kafka_batch([(0, 0, None, b"a", []), (1, moment, None, b"b", []), (2, moment, None, b"c", [])])
    decoded = decode(GOOD, sent)
    assert (type(decoded.errors[1]), decoded.errors[1].kafka_code) == (InvalidTimestampError, 32)
    assert [error.index for error in decoded.errors[1].record_errors] == [1, 2]
    assert rows(decoded.table) == expected(GOOD)


def test_a_time_of_more_than_64_bits_is_cut_off() -> None:
    """As by Kafka's ``ByteUtils.readVarlong``."""
    sent = sealed(record(2**63, 0, -1, 1, b"v", 0), 1, base_timestamp=-(2**63))
    assert type(decode_both_ways([sent]).errors[0]) is InvalidTimestampError


def test_a_compacted_topic_needs_keys() -> None:
    sent = kafka_batch([(0, 0, b"k", b"a", []), (1, 0, None, b"b", []), (2, 0, b"", b"c", []), (3, 0, None, b"d", [])])
    assert decode(sent, sent).errors == {}
    decoded = decode(sent, GOOD, sent, keyed_batches=[1, 2])
    assert [*decoded.errors] == [2]
    assert decoded.errors[2].kafka_code == 87
    assert [(error.index, error.message) for error in decoded.errors[2].record_errors] == [
        (1, "it has no key, and the topic is compacted by key"),
        (3, "it has no key, and the topic is compacted by key"),
    ]


@pytest.mark.parametrize("before", [0, 50])
def test_the_name_of_a_header_is_text(before: int) -> None:
    names = record(0, 1, -1, 1, b"v", before + 1, *HEADER * before, 2, b"\xc3\x28", -1)
    decoded = to_table([sealed(FINE + names, 2), check_produced(GOOD, LIMIT)])
    assert [error.index for error in decoded.errors[0].record_errors] == [1]
    assert "UTF-8" in str(decoded.errors[0])
    assert decoded.errors[0].kafka_code == 87
    assert decoded.counts == (0, 2)


def test_the_list_of_refused_records_is_short() -> None:
    decoded = decode(kafka_batch([(n, 0, None, b"", []) for n in range(1000)]), keyed_batches=[0])
    assert len(decoded.errors[0].record_errors) == 100


def test_records_and_headers_have_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a few kilobytes of zstd would take gigabytes of memory. Java's producer splits the batch."""
    monkeypatch.setattr(columns, "MAX_RECORDS", 100)
    headers: list[tuple[str, bytes | None]] = [("h", None)] * 50
    decoded = decode(
        values_batch([b""] * 100),
        values_batch([b""] * 101),
        kafka_batch([(0, 0, None, b"", headers), (1, 0, None, b"", headers)]),
        kafka_batch([(0, 0, None, b"", headers), (1, 0, None, b"", headers), (2, 0, None, b"", headers[:1])]),
        GOOD,
    )
    assert decoded.counts == (100, 0, 2, 0, 2)
    assert {number: type(error) for number, error in decoded.errors.items()} == {
        1: BatchTooLargeError,
        3: BatchTooLargeError,
    }


def test_a_batch_without_records_is_refused() -> None:
    (empty,) = read_batches(values_batch([b""])[:8] + struct.pack(">i", 49) + values_batch([b""])[12:57] + bytes(4))
    decoded = to_table([empty, check_produced(GOOD, LIMIT)])
    assert (type(decoded.errors[0]), decoded.counts) == (InvalidBatchError, (0, 2))


# Compression ----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD])
def test_compressed_records_have_a_limit(codec: Codec) -> None:
    sent = values_batch([bytes(1 << 20)] * 32, codec=codec)
    decoded = decode(sent, GOOD)
    assert (decoded.errors, decoded.counts) == ({}, (32, 2))
    decoded = decode(sent, GOOD, max_decompressed=1 << 20)
    assert (type(decoded.errors[0]), decoded.errors[0].kafka_code) == (BatchTooLargeError, 10)
    assert decoded.counts == (0, 2)


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD])
def test_the_limit_itself_is_allowed(codec: Codec) -> None:
    sent = values_batch([bytes(10_000)], codec=codec)
    size = len(values_batch([bytes(10_000)])) - HEADER_SIZE
    assert decode(sent, max_decompressed=size).errors == {}
    assert type(decode(sent, max_decompressed=size - 1).errors[0]) is BatchTooLargeError


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD])
@pytest.mark.parametrize("records", [b"", b"no such format", b"\x82SNAPPY\0" + bytes(8) + b"\0\0", bytes(100)])
def test_what_cannot_be_decompressed_is_corrupt(codec: Codec, records: bytes) -> None:
    decoded = to_table([sealed(records, 1, attributes=codec), check_produced(GOOD, LIMIT)])
    assert type(decoded.errors[0]) in {CorruptBatchError, InvalidBatchError}
    assert decoded.counts == (0, 2)


def test_snappy_without_blocks_is_read() -> None:
    """Go's clients and librdkafka send one block without the header of Java's library."""
    compressed = bytes(cramjam.snappy.compress_raw(FINE))
    assert to_table([sealed(compressed, 1, attributes=Codec.SNAPPY)]).table["value"].to_pylist() == [b"v"]


def test_an_unknown_compression_is_refused_alone() -> None:
    (unknown,) = read_batches(values_batch([b"v"])[:21] + b"\0\7" + values_batch([b"v"])[23:])
    decoded = to_table([unknown, check_produced(GOOD, LIMIT)])
    assert (type(decoded.errors[0]), decoded.counts) == (UnsupportedCodecError, (0, 2))


# Encoding -------------------------------------------------------------------------------------------------------------


def stored(records: list[KafkaRecord]) -> pa.Table:
    """Rows as reads return them."""
    offsets, times, keys, values, headers = zip(*records, strict=True)
    return pa.table(
        {
            "value": pa.array(values, pa.binary()),
            "_offset": pa.array(offsets, pa.int64()),
            "_timestamp": pa.array(times, pa.int64()).cast(TIMESTAMP),
            "headers": pa.array([pairs or None for pairs in headers], HEADERS),
            "key": pa.array(keys, pa.binary()),
            "timestamp": pa.nulls(len(keys), TIMESTAMP),
        }
    )


def read(batches: list[EncodedBatch]) -> list[KafkaRecord]:
    """The records, after a look at the headers of the batches."""
    for batch in batches:
        (raw,) = read_batches(batch.data)
        assert (raw.base_offset, raw.last_offset, raw.leader_epoch) == (batch.first_offset, batch.last_offset, 0)
        assert (raw.producer_id, raw.is_transactional, raw.has_append_time) == (-1, False, False)
        read = read_kafka_batch(batch.data)
        assert (read[0][0], read[-1][0], len(read)) == (batch.first_offset, batch.last_offset, raw.count)
        assert raw.max_timestamp == max(record[1] for record in read)
    return [record for batch in batches for record in read_kafka_batch(batch.data)]


_steps = st.integers(1, 3) | st.sampled_from([64, 8_192, 2**31 - 1, 2**31, 2**40])


@pytest.mark.slow
@given(_records, st.lists(_steps, min_size=8, max_size=8), _codecs, st.integers(1, 20_000), st.integers(1, 8))
@settings(max_examples=60)
def test_batches_are_read_back_by_aiokafka(
    records: list[Any], steps: list[int], codec: Codec, max_bytes: int, chunk: int
) -> None:
    offsets = np.cumsum(steps[: len(records)]).tolist()
    rows = [(offset, max(record[0], 0), *record[1:]) for offset, record in zip(offsets, records, strict=True)]
    table = stored(rows)
    table = pa.concat_tables([table.slice(start, chunk) for start in range(0, len(rows), chunk)])
    batches = to_batches(table, max_bytes=max_bytes, codec=codec)
    assert read(batches) == rows
    for batch in batches:
        if batch.first_offset != batch.last_offset and codec is Codec.NONE:
            assert len(batch.data) <= max_bytes


def test_no_rows_are_no_batches() -> None:
    assert to_batches(stored([(0, 0, None, None, [])]).slice(1)) == []


def test_batches_are_as_large_as_allowed() -> None:
    rows: list[KafkaRecord] = [(n, n, None, bytes(1000), []) for n in range(5000)]
    batches = to_batches(stored(rows), max_bytes=1 << 20)
    assert read(batches) == rows
    assert len(batches) == 5
    assert all(len(batch.data) > 0.95 * (1 << 20) for batch in batches[:-1])


def test_a_large_record_has_a_batch_of_its_own() -> None:
    rows: list[KafkaRecord] = [(0, 0, None, b"a", []), (1, 0, None, bytes(5000), []), (2, 0, None, b"c", [])]
    assert [(batch.first_offset, batch.last_offset) for batch in to_batches(stored(rows), max_bytes=1000)] == [
        (0, 0), (1, 1), (2, 2),
    ]  # fmt: skip


def test_compression_is_left_out_where_it_gains_nothing() -> None:
    rows: list[KafkaRecord] = [(0, 0, None, random.Random(1).randbytes(500), [])]
    (batch,) = to_batches(stored(rows), codec=Codec.LZ4)
    assert read_batches(batch.data)[0].codec is Codec.NONE
    (batch,) = to_batches(stored([(0, 0, None, bytes(500), [])]), codec=Codec.LZ4)
    assert read_batches(batch.data)[0].codec is Codec.LZ4


@given(_records)
@settings(max_examples=50)
def test_a_slice_of_a_table_is_encoded(records: list[Any]) -> None:
    rows = [(number, max(record[0], 0), *record[1:]) for number, record in enumerate(records)]
    for start in range(len(rows)):
        assert read(to_batches(stored(rows).slice(start, 2))) == rows[start : start + 2]


# Fuzz -----------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_random_and_damaged_bytes_are_refused_in_bounded_memory() -> None:
    """The checksum of a damaged batch is computed again, so that the damage reaches the decoder."""
    randomness = random.Random(20_26)
    headers: list[tuple[str, bytes | None]] = [("name", b"value"), ("é", None)]
    samples = [
        kafka_batch([(n, 1_000 + n, b"key", bytes(n), headers[: n % 3]) for n in range(count)], codec=codec)
        for codec in Codec
        for count in (1, 40)
    ]
    good = check_produced(GOOD, LIMIT)
    refused = taken = 0
    tracemalloc.start()
    try:
        for _ in range(1_000):
            data = bytearray(randomness.choice(samples))
            for _ in range(randomness.randint(0, 4)):
                at = randomness.randrange(len(data))
                match randomness.randrange(4):
                    case 0:
                        data[at] = randomness.randrange(256)
                    case 1:
                        del data[at : at + randomness.randint(1, 9)]
                    case 2:
                        data[at:at] = randomness.randbytes(randomness.randint(1, 9))
                    case _:
                        data[HEADER_SIZE:] = randomness.randbytes(randomness.randint(0, 60))
                data += bytes(max(0, HEADER_SIZE - len(data)))
            if randomness.random() < 0.9:
                struct.pack_into(">iib", data, 8, len(data) - 12, 0, 2)
                struct.pack_into(">I", data, 17, crc32c(bytes(data[21:])))
            try:
                batch = check_produced(bytes(data), 1 << 20)
            except BatchError:
                refused += 1
                continue
            decoded = decode_both_ways([good, batch, good], max_decompressed=1 << 16)
            assert decoded.rows(0).equals(decoded.rows(2))
            assert decoded.counts in {(2, 0, 2), (2, batch.count, 2)}
            assert (1 in decoded.errors) == (decoded.counts[1] == 0)
            decoded.table.validate(full=True)
            refused += 1 in decoded.errors
            taken += 1 not in decoded.errors
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert refused > 200
    assert taken > 80
    assert peak < 16 << 20


def test_batches_that_take_too_much_memory_together_are_left_to_another_call(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(columns, "_MAX_TOTAL", 1000)
    batches = [check_produced(values_batch([b"v" * 600]), 1 << 20) for _ in range(5)]
    taken = []
    while batches:
        decoded = to_table(batches)
        taken.append(len(decoded.counts))
        assert [decoded.rows(number)["value"].to_pylist() for number in range(taken[-1])] == [[b"v" * 600]] * taken[-1]
        batches = batches[taken[-1] :]
    assert taken == [2, 2, 1]
