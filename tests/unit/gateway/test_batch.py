"""The format of record batches: headers, what a producer may send, patches, and batches for gaps."""

from __future__ import annotations

import socket
import struct
import warnings

import pytest
from aiokafka.consumer.fetcher import READ_COMMITTED, PartitionRecords
from aiokafka.record.default_records import DefaultRecordBatch
from aiokafka.record.memory_records import MemoryRecords
from aiokafka.record.util import encode_varint
from aiokafka.structs import TopicPartition
from confluent_kafka import Consumer, Producer
from confluent_kafka import TopicPartition as ConfluentPartition
from crc32c import crc32c

from tests.helpers.kafka_batches import kafka_batch, read_kafka_batch, values_batch
from txnstore.gateway.records.batch import (
    MAX_DELTA,
    BatchError,
    BatchTooLargeError,
    Codec,
    CorruptBatchError,
    InvalidBatchError,
    InvalidTimestampError,
    UnsupportedCodecError,
    at_offset,
    check_produced,
    gap_batch,
    read_batches,
    varint,
)

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # It reads its protocol in a way that Python 3.11 deprecates.
    from kafka.consumer.fetcher import Fetcher
    from kafka.protocol.consumer import IsolationLevel
    from kafka.record.memory_records import MemoryRecords as KafkaPythonRecords
    from kafka.structs import TopicPartition as KafkaPythonPartition

LIMIT = 1 << 20
BATCH = kafka_batch(
    [(0, 1_000, b"k", b"v", [("h", b"x")]), (1, 3_000, None, b"w", []), (2, 2_000, b"k", None, [])],
    transactional=True,
    producer=(7, 3, 40),
)


def changed(at: int, layout: str, value: int, data: bytes = BATCH) -> bytes:
    """The batch with another number at a place, and the checksum of what it holds then."""
    patched = bytearray(data)
    struct.pack_into(layout, patched, at, value)
    struct.pack_into(">I", patched, 17, crc32c(bytes(patched[21:])))
    return bytes(patched)


def test_a_header_is_read_as_aiokafka_writes_it() -> None:
    batch = check_produced(BATCH, LIMIT)
    assert (batch.base_offset, batch.last_offset, batch.leader_epoch, batch.magic) == (0, 2, -1, 2)
    assert (batch.base_timestamp, batch.max_timestamp) == (1_000, 3_000)
    assert (batch.producer_id, batch.producer_epoch, batch.base_sequence, batch.count) == (7, 3, 40, 3)
    assert (batch.codec, batch.is_transactional, batch.is_control, batch.has_append_time) == (0, True, False, False)
    assert bytes(batch.data) == BATCH


@pytest.mark.parametrize("codec", Codec)
def test_the_compression_is_read(codec: Codec) -> None:
    assert check_produced(values_batch([bytes(1000)], codec=codec), LIMIT).codec is codec


def test_consecutive_batches_are_read_one_by_one() -> None:
    batches = [values_batch([b"a"]), BATCH, values_batch([b"b", None])]
    assert [bytes(batch.data) for batch in read_batches(b"".join(batches))] == batches
    assert read_batches(b"") == []


@pytest.mark.parametrize("size", range(len(BATCH), 2 * len(BATCH)))
def test_a_batch_that_is_cut_off_is_corrupt(size: int) -> None:
    if size == len(BATCH):
        assert len(read_batches((BATCH + BATCH)[:size])) == 1
        return
    with pytest.raises(CorruptBatchError, match="ends after"):
        read_batches((BATCH + BATCH)[:size])


@pytest.mark.parametrize(
    ("data", "error", "code", "message"),
    [
        (b"", InvalidBatchError, 87, "no record batch"),
        (BATCH + BATCH, InvalidBatchError, 87, "more than one"),
        (BATCH[:-1], CorruptBatchError, 2, "ends after"),
        (BATCH[:10], CorruptBatchError, 2, "ends after 10 bytes"),
        (changed(8, ">i", 20), CorruptBatchError, 2, "shorter than its header"),
        (changed(8, ">i", -(2**31)), CorruptBatchError, 2, "shorter than its header"),
        (changed(16, ">b", 1), InvalidBatchError, 87, "magic 1"),
        (BATCH[:-1] + b"?", CorruptBatchError, 2, "checksum"),
        (BATCH[:17] + b"1234" + BATCH[21:], CorruptBatchError, 2, "checksum"),
        (changed(21, ">h", 0x30), InvalidBatchError, 87, "control"),
        (changed(21, ">h", 0x18), InvalidTimestampError, 32, "append time"),
        (changed(21, ">h", 0x15), UnsupportedCodecError, 76, "number 5"),
        (changed(57, ">i", 0), InvalidBatchError, 87, "0 records"),
        (changed(57, ">i", -1), InvalidBatchError, 87, "-1 records"),
        (changed(57, ">i", 4), InvalidBatchError, 87, "4 records and the last offset delta 2"),
        (changed(23, ">i", 1), InvalidBatchError, 87, "3 records and the last offset delta 1"),
        (changed(53, ">i", -1), InvalidBatchError, 87, "sequence number -1"),
        (changed(51, ">h", -1), InvalidBatchError, 87, "epoch -1"),
        (changed(43, ">q", -1), InvalidBatchError, 87, "no producer id"),
    ],
)
def test_a_batch_that_a_producer_must_not_send(data: bytes, error: type[BatchError], code: int, message: str) -> None:
    with pytest.raises(error, match=message) as raised:
        check_produced(data, LIMIT)
    assert raised.value.kafka_code == code
    assert raised.value.record_errors == ()


def test_the_size_is_that_of_the_batch_as_it_came() -> None:
    assert check_produced(BATCH, len(BATCH)).count == 3
    with pytest.raises(BatchTooLargeError, match=rf"{len(BATCH)} bytes is over max.message.bytes") as raised:
        check_produced(BATCH, len(BATCH) - 1)
    assert raised.value.kafka_code == 10


def test_a_batch_is_placed_without_a_new_checksum() -> None:
    data = at_offset(check_produced(BATCH, LIMIT), 2**40, leader_epoch=5)
    assert data[21:] == BATCH[21:]
    (batch,) = read_batches(data)
    assert (batch.base_offset, batch.last_offset, batch.leader_epoch) == (2**40, 2**40 + 2, 5)
    assert [record[0] for record in read_kafka_batch(data)] == [2**40, 2**40 + 1, 2**40 + 2]


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.LZ4])
def test_an_append_time_replaces_all_timestamps(codec: Codec) -> None:
    sent = values_batch([bytes(500), b"b"], codec=codec)
    data = at_offset(check_produced(sent, LIMIT), 9, append_time=777)
    assert [record[:2] for record in read_kafka_batch(data)] == [(9, 777), (10, 777)]
    (batch,) = read_batches(data)
    assert (batch.has_append_time, batch.max_timestamp, batch.codec, batch.base_timestamp) == (True, 777, codec, 1_000)
    assert len(data) == len(sent)


@pytest.mark.parametrize("number", [0, -1, 1, 63, 64, -64, -65, 8191, 8192, 2**31 - 1, -(2**31)])
def test_numbers_are_those_of_aiokafka(number: int) -> None:
    expected = bytearray()
    encode_varint(number, expected.append)
    assert varint(number) == bytes(expected)


# Gaps -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("first", "last"), [(0, 0), (5, 9), (2**40, 2**40 + 70_000), (1, 1 + MAX_DELTA)])
def test_a_gap_is_one_control_batch(first: int, last: int) -> None:
    data = gap_batch(first, last)
    (batch,) = read_batches(data)
    assert (batch.base_offset, batch.last_offset, batch.count, batch.leader_epoch) == (first, last, 1, 0)
    assert batch.is_control
    assert read_kafka_batch(data) == [(last, -1, b"\0\0\0\1", bytes(6), [])]
    assert DefaultRecordBatch(data).next_offset == last + 1


def test_a_gap_that_no_delta_covers_is_covered_in_part() -> None:
    (batch,) = read_batches(gap_batch(10, 10 + 2**40))
    assert batch.last_offset == 10 + MAX_DELTA
    with pytest.raises(ValueError, match="a gap from 3 to 2"):
        gap_batch(3, 2)


#: Records at 0 and 1, a gap to 6, a record at 7, a gap to 9.
LOG = (
    at_offset(check_produced(values_batch([b"a", b"b"]), LIMIT), 0)
    + gap_batch(2, 6)
    + at_offset(check_produced(values_batch([b"c"]), LIMIT), 7)
    + gap_batch(8, 9)
)


def log_from(start: int) -> bytes:
    """What a Fetch from an offset returns: the batches from the one that covers it on."""
    return b"".join(bytes(batch.data) for batch in read_batches(LOG) if batch.last_offset >= start)


@pytest.mark.parametrize(("start", "offsets"), [(0, [0, 1, 7]), (2, [7]), (4, [7]), (8, []), (9, [])])
@pytest.mark.parametrize("isolation", [READ_COMMITTED, 0])
def test_aiokafka_reads_on_after_gaps(start: int, offsets: list[int], isolation: int) -> None:
    records = PartitionRecords(
        TopicPartition("t", 0), MemoryRecords(log_from(start)), [], start, None, None, True, isolation
    )
    assert [record.offset for record in records] == offsets
    assert records.next_fetch_offset == 10


@pytest.mark.parametrize(("start", "offsets"), [(0, [0, 1, 7]), (2, [7]), (4, [7]), (8, []), (9, [])])
@pytest.mark.parametrize("isolation", [IsolationLevel.READ_COMMITTED, IsolationLevel.READ_UNCOMMITTED])
def test_kafka_python_reads_on_after_gaps(start: int, offsets: list[int], isolation: IsolationLevel) -> None:
    records = Fetcher.PartitionRecords(
        start, KafkaPythonPartition("t", 0), KafkaPythonRecords(log_from(start)), isolation_level=isolation
    )
    assert [record.offset for record in records.take()] == offsets
    assert records.next_fetch_offset == 10


@pytest.mark.parametrize("isolation", ["read_committed", "read_uncommitted"])
def test_librdkafka_reads_on_after_gaps(isolation: str) -> None:
    """Its mock broker counts one offset for each record, so it has records at 4 to 7: the gap of 3 to 7 hides them."""
    broker = Producer({"test.mock.num.brokers": 1, "bootstrap.servers": "", "log_level": 0, "test.mock.broker.rtt": 0})
    address = next(iter(broker.list_topics("t", timeout=10).brokers.values()))
    with socket.create_connection((address.host, address.port), timeout=10) as connection:
        for data in (
            values_batch([b"0", b"1", b"2"]),
            gap_batch(3, 7),
            values_batch([b"%d" % n for n in range(4, 10)]),
        ):
            produce(connection, data)
    consumer = Consumer(
        {
            "bootstrap.servers": f"{address.host}:{address.port}",
            "group.id": "g",
            "isolation.level": isolation,
            "check.crcs": True,
            "log_level": 0,
        }
    )
    try:
        consumer.assign([ConfluentPartition("t", 0, 0)])
        messages = consumer.consume(5, timeout=20)
        assert [message.offset() for message in messages] == [0, 1, 2, 8, 9]
        assert [message.value() for message in messages] == [b"0", b"1", b"2", b"8", b"9"]
    finally:
        consumer.close()


def produce(connection: socket.socket, data: bytes) -> None:
    """Send a Produce request of version 3 for partition 0 of topic ``t``, and wait for its answer."""
    body = struct.pack(">hhih1s", 0, 3, 1, 1, b"x") + struct.pack(">hhi", -1, -1, 5_000)
    body += struct.pack(">ih1siii", 1, 1, b"t", 1, 0, len(data)) + data
    connection.sendall(struct.pack(">i", len(body)) + body)
    (size,) = struct.unpack(">i", connection.recv(4, socket.MSG_WAITALL))
    assert len(connection.recv(size, socket.MSG_WAITALL)) == size
