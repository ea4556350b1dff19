"""Gateways as real processes, and a client that sends them any bytes."""

from __future__ import annotations

import os
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any, Self

from kio.index import load_request_schema, load_response_schema
from kio.serial import entity_reader, entity_writer

from txnstore.gateway.wire import PREFIX, build


@dataclass
class GatewayProcess:
    """A gateway that runs.

    Attributes:
        process: Its process.
        host: Where it listens.
        port: The port.
        metrics: The URL of its metrics; None if it serves none.
        log: The file with its log lines.
    """

    process: subprocess.Popen[str]
    host: str
    port: int
    metrics: str | None
    log: Path

    @property
    def address(self) -> str:
        """Its address as a bootstrap server."""
        return f"{self.host}:{self.port}"

    @property
    def resident_bytes(self) -> int:
        """The memory that the process occupies."""
        pages = int(Path(f"/proc/{self.process.pid}/statm").read_text(encoding="ascii").split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")

    def log_lines(self) -> list[str]:
        """What it has logged, at information and above."""
        return self.log.read_text(encoding="utf-8").splitlines()

    def client(self, timeout: float = 30.0) -> Client:
        """A new connection."""
        return Client(self.host, self.port, timeout)

    def stop(self, timeout: float = 30.0) -> int:
        """End it by SIGTERM; its exit status."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        return self.process.wait(timeout)


@contextmanager
def gateway_process(store: str | Path, log: Path, *options: str) -> Iterator[GatewayProcess]:
    """A gateway on a store, on a free port of this machine; killed at the end.

    Args:
        store: The URL or the folder of the store.
        log: The file that gets its log lines.
        options: Further options of ``txnstore gateway``.
    """
    command = [sys.executable, "-m", "txnstore.cli", "gateway", "--store", str(store), "--listen", "127.0.0.1:0"]
    with log.open("w", encoding="utf-8") as stream:
        process = subprocess.Popen([*command, *options], stdout=subprocess.PIPE, stderr=stream, text=True)
    try:
        assert process.stdout is not None
        first = process.stdout.readline()
        assert first.startswith("listening on "), log.read_text(encoding="utf-8")
        host, _, port = first.removeprefix("listening on ").strip().rpartition(":")
        metrics = process.stdout.readline().removeprefix("metrics on ").strip() if "--metrics" in options else None
        yield GatewayProcess(process, host, int(port), metrics, log)
    finally:
        process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()


class Client:
    """A connection that sends requests, or any other bytes."""

    def __init__(self, host: str, port: int, timeout: float = 30.0) -> None:
        self.socket = socket.create_connection((host, port), timeout)
        self._correlation = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def send(self, data: bytes) -> None:
        """Send bytes as they are."""
        self.socket.sendall(data)

    def begin(self, api: int, version: int, fields: Mapping[str, Any]) -> int:
        """Send a request; its correlation id."""
        self._correlation += 1
        self.send(request_frame(api, version, fields, self._correlation))
        return self._correlation

    def receive(self) -> bytes:
        """The next response, without its length.

        Raises:
            EOFError: The gateway has closed the connection.
        """
        (size,) = PREFIX.unpack(self._exactly(PREFIX.size))
        return self._exactly(size)

    def ask(self, api: int, version: int, fields: Mapping[str, Any]) -> Any:
        """The response to a request, decoded."""
        correlation = self.begin(api, version, fields)
        received, body = decode_response(api, version, self.receive())
        assert received == correlation
        return body

    def is_closed(self) -> bool:
        """Whether the gateway closes the connection, without a response before."""
        try:
            return self.socket.recv(1) == b""
        except ConnectionError:
            return True

    def reset(self) -> None:
        """End the connection at once, as a process that is killed under load."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.socket.close()

    def _exactly(self, size: int) -> bytes:
        data = bytearray()
        while len(data) < size:
            part = self.socket.recv(min(size - len(data), 1 << 20))
            if not part:
                raise EOFError(f"the gateway has closed the connection after {len(data)} of {size} bytes")
            data += part
        return bytes(data)


def request_frame(api: int, version: int, fields: Mapping[str, Any], correlation: int = 1) -> bytes:
    """The bytes of a request, with their length; fields that are not given have the value that stands for none."""
    schema: Any = load_request_schema(api, version)
    header: Any = schema.__header_schema__
    buffer = BytesIO()
    values = {
        "request_api_key": api,
        "request_api_version": version,
        "correlation_id": correlation,
        "client_id": "test",
    }
    entity_writer(header)(buffer, build(header, values))
    entity_writer(schema)(buffer, build(schema, fields))
    data = buffer.getvalue()
    return PREFIX.pack(len(data)) + data


def decode_response(api: int, version: int, data: bytes) -> tuple[int, Any]:
    """The correlation id and the message of a response; every byte of it must be read."""
    schema: Any = load_response_schema(api, version)
    header, start = entity_reader(schema.__header_schema__)(data, 0)
    body, size = entity_reader(schema)(data, start)
    assert start + size == len(data), f"{len(data) - start - size} bytes follow the response"
    return header.correlation_id, body


def record_batch(values: Sequence[bytes], *, producer: tuple[int, int, int] = (-1, -1, -1), codec: int = 0) -> bytes:
    """A batch of records with these values.

    Args:
        values: The values of the records.
        producer: The producer id, its epoch, and the sequence number of the first record.
        codec: The number of the compression; 0: none.
    """
    from aiokafka.record.default_records import DefaultRecordBatchBuilder

    builder = DefaultRecordBatchBuilder(
        2, codec, False, producer[0], producer[1], producer[2], sum(map(len, values)) + 100 * len(values) + 100
    )
    for number, each in enumerate(values):
        assert builder.append(number, 1_700_000_000_000, None, each, []) is not None
    return bytes(builder.build())


def produce_fields(topic: str, batch: bytes | None, *, partition: int = 0, acks: int = -1) -> dict[str, Any]:
    """The fields of a Produce request by name, of one batch."""
    parts = [{"index": partition, "records": batch}]
    return {"acks": acks, "timeout": 30_000, "topic_data": [{"name": topic, "partition_data": parts}]}


def fetch_fields(topic: str, offset: int, *, max_wait: int = 0, max_bytes: int = 50 << 20) -> dict[str, Any]:
    """The fields of a Fetch request by name, of one partition."""
    parts = [{"partition": 0, "fetch_offset": offset, "partition_max_bytes": max_bytes}]
    return {
        "replica_id": -1,
        "max_wait": max_wait,
        "min_bytes": 1,
        "max_bytes": max_bytes,
        "topics": [{"topic": topic, "partitions": parts}],
    }
