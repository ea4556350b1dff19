"""A Kafka client in a process of its own: ``python -m benchmarks.gateway_client ADDRESS KIND NAME=VALUE …``.

Prints what it measured as JSON. The clients are librdkafka's, except for the many small producers: they are sockets
that repeat one request, since librdkafka starts threads for each, which would take the processors of the server.
"""

from __future__ import annotations

import json
import random
import selectors
import socket
import struct
import sys
import time
from collections.abc import Callable
from statistics import quantiles
from typing import Any

import numpy as np

#: Values of the records that are produced, drawn in turns.
_VALUES = 4096
#: Records of one call.
_CALL = 500
#: The size of a Kafka frame.
_SIZE = struct.Struct(">i")
_WAIT = 60.0


def values(size: int, seed: int = 0) -> list[bytes]:
    """Values that compress like text does."""
    rng = np.random.default_rng(seed)
    return [rng.integers(97, 105, size, dtype=np.uint8).tobytes() for _ in range(_VALUES)]


def produce(
    address: str,
    *,
    topic: str,
    size: int,
    count: int,
    batch: int,
    partitions: int = 4,
    idempotent: int = 0,
    codec: str = "none",
) -> dict[str, float]:
    """Send records as fast as the server takes them; the seconds until all are acknowledged.

    An idempotent producer has at most five requests on their way; librdkafka's others have as many as the server takes.
    """
    from confluent_kafka import Producer

    producer = Producer(
        {
            "bootstrap.servers": address,
            "enable.idempotence": bool(idempotent),
            "batch.size": batch,
            "compression.type": codec,
            "linger.ms": 20,
            "queue.buffering.max.messages": 1_000_000,
            "queue.buffering.max.kbytes": 64 << 10,
            "message.timeout.ms": 120_000,
            "delivery.report.only.error": True,
        }
    )
    producer.list_topics(topic, timeout=_WAIT)
    failed: list[Any] = []

    def not_delivered(error: Any, message: Any) -> None:  # noqa: ARG001 - Kafka's callback has both.
        failed.append(error)

    # Records fill one partition's batch after the other, as they do with the partitioner of Java's producer.
    each = max(1, batch // size)
    records = [{"value": value} for value in values(size)]
    began = time.perf_counter()
    for partition, first in enumerate(range(0, count, each)):
        rest = min(each, count - first)
        while rest:
            taken = records[: min(rest, _CALL)]
            records = records[len(taken) :] + taken
            _enqueue(producer, topic, partition % partitions, taken, not_delivered)
            rest -= len(taken)
    remaining = producer.flush(120)
    seconds = time.perf_counter() - began
    if remaining or failed:
        raise RuntimeError(f"{remaining} records were not acknowledged: {failed[:1]}")
    return {"seconds": seconds, "records": count, "bytes": count * size}


def _enqueue(
    producer: Any, topic: str, partition: int, records: list[dict[str, Any]], not_delivered: Callable[[Any, Any], None]
) -> None:
    """Add records; wait while the buffer is full."""
    producer.produce_batch(topic, records, partition, not_delivered)
    producer.poll(0)
    while records := [record for record in records if record.pop("_error", None) is not None]:
        producer.poll(0.01)
        producer.produce_batch(topic, records, partition, not_delivered)


def acknowledge(address: str, *, topic: str, count: int, size: int = 1000) -> dict[str, float]:
    """Send one record after the other, each after the last one's acknowledgement; milliseconds."""
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": address, "enable.idempotence": True, "linger.ms": 0})
    waits: list[float] = []
    value = values(size)[0]

    def delivered(error: Any, message: Any) -> None:  # noqa: ARG001 - Kafka's callback has both.
        if error is not None:
            raise RuntimeError(str(error))
        waits.append((time.perf_counter() - began) * 1000)

    for _ in range(count):
        began = time.perf_counter()
        producer.produce(topic, value, partition=0, on_delivery=delivered)
        producer.flush(_WAIT)
    waits = waits[count // 10 :]  # The first ones connect.
    cuts = quantiles(waits, n=100)
    return {"p50": cuts[49], "p99": cuts[98], "requests": count}


def consume(address: str, *, topic: str, count: int, partitions: int = 4) -> dict[str, float]:
    """Read a topic from its beginning."""
    from confluent_kafka import Consumer, TopicPartition

    consumer = Consumer(
        {
            "bootstrap.servers": address,
            "group.id": f"benchmark-{random.random()}",
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "queued.max.messages.kbytes": 128 << 10,
            "fetch.max.bytes": 50 << 20,
            "max.partition.fetch.bytes": 8 << 20,
            "fetch.wait.max.ms": 100,
        }
    )
    consumer.list_topics(topic, timeout=_WAIT)
    began, records, size = time.perf_counter(), 0, 0
    consumer.assign([TopicPartition(topic, number, 0) for number in range(partitions)])
    while records < count:
        messages = consumer.consume(10_000, 0.5)
        for message in messages:
            if message.error() is not None:
                raise RuntimeError(str(message.error()))
        records += len(messages)
        size += sum(len(message.value() or b"") for message in messages[:1]) * len(messages)
        if time.perf_counter() - began > _WAIT:
            raise RuntimeError(f"{records} of {count} records in {_WAIT:.0f} s")
    seconds = time.perf_counter() - began
    consumer.close()
    return {"seconds": seconds, "records": records, "bytes": size}


def small(
    address: str, *, topic: str, seconds: float, connections: int, size: int = 100, partitions: int = 4
) -> dict[str, float]:
    """Many producers: each sends one record, and the next one when it is acknowledged."""
    host, port = address.split(":")
    selector = selectors.DefaultSelector()
    frames = [_produce_frame(topic, number, size) for number in range(partitions)]
    for number in range(connections):
        connected = socket.create_connection((host, int(port)))
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        selector.register(connected, selectors.EVENT_READ, [frames[number % partitions], 0.0])
    began = time.perf_counter()
    for key in list(selector.get_map().values()):
        key.data[1] = time.perf_counter()
        key.fileobj.sendall(key.data[0])  # type: ignore[union-attr]
    waits: list[float] = []
    while (now := time.perf_counter()) < began + seconds:
        for key, _ in selector.select(1):
            client: Any = key.fileobj
            response = client.recv(4096)
            (length,) = _SIZE.unpack_from(response)
            if len(response) != length + _SIZE.size or not _is_success(response):
                raise RuntimeError(f"a produce request failed: {response!r}")
            now = time.perf_counter()
            waits.append((now - key.data[1]) * 1000)
            key.data[1] = now
            client.sendall(key.data[0])
    elapsed = time.perf_counter() - began
    cuts = quantiles(waits, n=100)
    return {"seconds": elapsed, "requests": len(waits), "p50": cuts[49], "p99": cuts[98]}


def _produce_frame(topic: str, partition: int, size: int) -> bytes:
    """A Produce request of version 7 with one record, and its length."""
    from aiokafka.record.default_records import DefaultRecordBatchBuilder

    builder = DefaultRecordBatchBuilder(
        magic=2, compression_type=0, is_transactional=0, producer_id=-1, producer_epoch=-1, base_sequence=-1,
        batch_size=1 << 20,
    )  # fmt: skip
    builder.append(0, timestamp=1_700_000_000_000, key=None, value=b"v" * size, headers=[])
    records, name = bytes(builder.build()), topic.encode()
    body = struct.pack(">hhih6s", 0, 7, 1, 6, b"client") + struct.pack(">hhii", -1, -1, 30_000, 1)
    body += struct.pack(f">h{len(name)}s", len(name), name) + struct.pack(">iii", 1, partition, len(records)) + records
    return _SIZE.pack(len(body)) + body


def _is_success(response: bytes) -> bool:
    """Whether a Produce response of version 7 with one partition has no error."""
    (name,) = struct.unpack_from(">h", response, 12)
    (code,) = struct.unpack_from(">h", response, 14 + name + 8)
    return bool(code == 0)


KINDS: dict[str, Callable[..., dict[str, float]]] = {
    "produce": produce,
    "acknowledge": acknowledge,
    "consume": consume,
    "small": small,
}


def main(address: str, kind: str, *options: str) -> None:
    """Run a client, and print its figures."""
    named = (option.split("=", 1) for option in options)
    arguments: dict[str, Any] = {name: int(text) if text.isdecimal() else text for name, text in named}
    print(json.dumps(KINDS[kind](address, **arguments)))


if __name__ == "__main__":
    main(*sys.argv[1:])
