"""Record batches as ``aiokafka`` makes and reads them: what the gateway's own reading and writing is compared with."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from aiokafka.record.default_records import DefaultRecordBatch, DefaultRecordBatchBuilder

#: Offset delta, timestamp in milliseconds, key, value and headers.
KafkaRecord = tuple[int, int, bytes | None, bytes | None, list[tuple[str, bytes | None]]]


def kafka_batch(
    records: Iterable[KafkaRecord],
    *,
    codec: int = 0,
    transactional: bool = False,
    producer: tuple[int, int, int] = (-1, -1, -1),
) -> bytes:
    """A batch with the records, as a producer sends it.

    Args:
        records: The records.
        codec: The number of the compression.
        transactional: Whether it is part of a transaction.
        producer: Producer id, epoch and the first sequence number.
    """
    builder = DefaultRecordBatchBuilder(2, codec, int(transactional), *producer, 1 << 27)
    for record in records:
        assert builder.append(*record) is not None
    return bytes(builder.build())


def values_batch(values: Sequence[bytes | None], **options: Any) -> bytes:
    """A batch of records with these values, without keys and headers."""
    return kafka_batch([(number, 1_000 + number, None, value, []) for number, value in enumerate(values)], **options)


def read_kafka_batch(data: bytes) -> list[KafkaRecord]:
    """The records of a batch: offset, timestamp, key, value and headers."""
    batch = DefaultRecordBatch(data)
    assert batch.validate_crc()
    return [(record.offset, record.timestamp, record.key, record.value, record.headers) for record in batch]
