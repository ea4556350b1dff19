"""A producer of a gateway, alone and beside consumers that wait for other partitions; what idle connections cost.

A consumer is a connection of an asyncio client, with a fetch session of partitions of its own, which fetches again
when the gateway has let it wait for 500 ms, as Java's does. The producer sends one small record after the other. All
are on one machine, so ratios and processor times compare, and rates do not.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import shutil
import socket
import struct
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import txnstore
from benchmarks.gateway_client import _is_success, _produce_frame
from benchmarks.measure import Result
from tests.helpers.gateway_process import request_frame
from txnstore.gateway.apis import Api

#: The consumers of each measurement, and the partitions of each of them.
CONSUMERS = ((1, 2_000), (20, 500), (100, 50), (300, 50), (1_000, 50))
#: The most that the producer's median may be of that alone, before and after.
BESIDE = 1.2
#: Partitions of a topic, and the milliseconds that a fetch may wait.
OF_A_TOPIC, MAX_WAIT = 1_000, 500
IDLE = 5_000
#: Requests of the producer in each measurement, and seconds for which idle connections are watched.
REQUESTS, SECONDS = int(os.environ.get("TXNSTORE_REQUESTS", "200")), 10.0
_VERSION = 11
#: In a response of Fetch: length, correlation id, throttle time, code, session.
_HEAD = struct.Struct(">iiihi")


class _Consumer(asyncio.Protocol):
    """A consumer that gets nothing; ``began`` is set when it has waited once."""

    def __init__(self, number: int, each: int) -> None:
        self._partitions = [divmod(partition, OF_A_TOPIC) for partition in range(number * each, (number + 1) * each)]
        self._data = bytearray()
        self._epoch = self._session = 0
        self.began: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin a session."""
        self._transport: Any = transport
        topics: dict[int, list[dict[str, Any]]] = {}
        for topic, number in self._partitions:
            asked = {"partition": number, "fetch_offset": 0, "partition_max_bytes": 1 << 20, "current_leader_epoch": -1}
            topics.setdefault(topic, []).append(asked)
        self._fetch([{"topic": f"t{topic}", "partitions": parts} for topic, parts in topics.items()])

    def _fetch(self, topics: list[dict[str, Any]]) -> None:
        fields: dict[str, Any] = {"max_wait": MAX_WAIT, "min_bytes": 1, "max_bytes": 1 << 20, "topics": topics}
        fields |= {"session_id": self._session, "session_epoch": self._epoch, "rack_id": ""}
        self._transport.write(request_frame(Api.FETCH, _VERSION, fields))
        self._epoch += 1

    def data_received(self, data: bytes) -> None:
        """Fetch again after a response."""
        self._data += data
        if len(self._data) < _HEAD.size:
            return
        size, _, _, code, session = _HEAD.unpack_from(self._data)
        if len(self._data) < size + 4:
            return
        if code or not session:
            raise RuntimeError(f"a fetch failed: code {code}, session {session}")
        self._session = session
        self._data.clear()
        self._fetch([])
        if not self.began.done():
            self.began.set_result(None)


async def _consume(port: int, count: int, each: int) -> None:
    """Have consumers that wait; prints a line when all do, and ends with its input."""
    loop = asyncio.get_running_loop()
    made = (partial(_Consumer, number, each) for number in range(count))
    consumers = [(await loop.create_connection(make, "127.0.0.1", port))[1] for make in made]
    await asyncio.gather(*(consumer.began for consumer in consumers))
    print("waiting", flush=True)
    await asyncio.to_thread(sys.stdin.read)


async def _connect(port: int, count: int, _: int) -> None:
    """Have connections that have sent one request; as :func:`_consume`."""
    streams = []
    for _ in range(count):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(request_frame(Api.API_VERSIONS, 0, {}))
        (size,) = struct.unpack(">i", await reader.readexactly(4))
        await reader.readexactly(size)
        streams.append((reader, writer))
    print("waiting", flush=True)
    await asyncio.to_thread(sys.stdin.read)


@contextlib.contextmanager
def _clients(kind: str, port: int, count: int, each: int = 0) -> Iterator[None]:
    """In the block these clients wait, in a process of their own."""
    command = [sys.executable, "-m", "benchmarks.waiting", kind, str(port), str(count), str(each)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        if process.stdout.readline() != "waiting\n":
            raise RuntimeError(f"{count} clients of kind {kind} cannot wait")
        yield
    finally:
        process.stdin.close()
        process.wait()
        process.stdout.close()


def _produce(port: int) -> float:
    """The median wait of a producer, in ms.

    A gateway that stood still for 2.5 s closes its connection, which happens where other work takes the processors.
    """
    frame, waits = _produce_frame("p", 0, 100), list[float]()
    while len(waits) < REQUESTS:
        with socket.create_connection(("127.0.0.1", port)) as connected:
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            while len(waits) < REQUESTS:
                began = time.perf_counter()
                connected.sendall(frame)
                response = connected.recv(4096)
                if not response:
                    break
                if not _is_success(response):
                    raise RuntimeError("a produce request failed")
                waits.append((time.perf_counter() - began) * 1000)
    return median(waits[REQUESTS // 10 :])


def _processor_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return sum(map(int, fields[11:13])) / os.sysconf("SC_CLK_TCK")


def _resident_mb(pid: int) -> float:
    pages = int(Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def _share(pid: int, work: Callable[[], float]) -> tuple[float, float]:
    """The result of work, and the processors that a process used meanwhile."""
    used, began = _processor_seconds(pid), time.perf_counter()
    result = work()
    return result, (_processor_seconds(pid) - used) / (time.perf_counter() - began)


def _fetches(metrics: str) -> int:
    """The Fetch requests that the gateway had."""
    with urllib.request.urlopen(metrics, timeout=60) as response:  # noqa: S310 - Our own endpoint.
        match = re.search(
            r'^txnstore_gateway_requests_total{.*api="FETCH"} (\d+)$', response.read().decode(), re.MULTILINE
        )
    return int(match[1]) if match else 0


def _watch() -> float:
    time.sleep(SECONDS)
    return 0.0


def run() -> Iterator[Result]:
    """Medians of the producer beside consumers over those alone; what idle connections take."""
    folder = Path(tempfile.mkdtemp(prefix="waiting-"))
    url = str(folder / "store")
    with txnstore.create(url) as store:
        store.create_topic("p")
        for number in range(-(-max(count * each for count, each in CONSUMERS) // OF_A_TOPIC)):
            store.create_topic(f"t{number}", OF_A_TOPIC)
    command = [sys.executable, "-m", "txnstore.cli", "gateway", "--store", url, "--listen", "127.0.0.1:0"]
    command += ["--metrics", "127.0.0.1:0"]
    gateway = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert gateway.stdout is not None
    try:
        port = int(gateway.stdout.readline().rpartition(":")[2])
        metrics = gateway.stdout.readline().removeprefix("metrics on ").strip()
        _produce(port)
        alone = _produce(port)
        for count, each in CONSUMERS:
            with _clients("consume", port, count, each):
                fetches, used, began = _fetches(metrics), _processor_seconds(gateway.pid), time.perf_counter()
                _watch()
                used, fetches = _processor_seconds(gateway.pid) - used, _fetches(metrics) - fetches
                share = used / (time.perf_counter() - began)
                beside = _produce(port)
            before, alone = alone, _produce(port)
            cost = f"{1000 * used / max(fetches, 1):.2f} processor ms for each of {fetches} fetches"
            detail = f"{before:.1f}, {beside:.1f} and {alone:.1f} ms; {cost}, {share:.2f} processors"
            ratio = 2 * beside / (before + alone)
            yield Result(f"producer beside {count} x {each}", ratio, BESIDE, at_most=True, detail=detail)
        before = _resident_mb(gateway.pid)
        with _clients("connect", port, IDLE):
            kilobytes = (_resident_mb(gateway.pid) - before) * 1000 / IDLE
            idle = _share(gateway.pid, _watch)[1]
            beside = _produce(port)
        detail = f"{kilobytes:.1f} kB each; processors {idle:.3f} idle"
        yield Result(f"producer beside {IDLE} idle connections", beside / alone, 1.5, at_most=True, detail=detail)
    finally:
        gateway.terminate()
        gateway.wait()
        gateway.stdout.close()
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    asyncio.run({"consume": _consume, "connect": _connect}[sys.argv[1]](*map(int, sys.argv[2:])))
