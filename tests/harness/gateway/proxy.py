"""A proxy before a gateway: it delays requests, cuts connections in the middle of them, and loses responses."""

from __future__ import annotations

import asyncio
import random
import socket
import struct
import threading
from collections import Counter
from contextlib import suppress

from txnstore.gateway.apis import VERSIONS, Api

#: The share of requests of the first and of all other APIs that meet a fault.
_CHANGING = {
    Api.PRODUCE, Api.INIT_PRODUCER_ID, Api.ADD_PARTITIONS_TO_TXN, Api.ADD_OFFSETS_TO_TXN, Api.END_TXN,
    Api.TXN_OFFSET_COMMIT, Api.JOIN_GROUP, Api.SYNC_GROUP, Api.OFFSET_FETCH, Api.LIST_OFFSETS,
}  # fmt: skip
_SHARES = (0.06, 0.006)
_KINDS = ("delay", "delay", "lost request", "cut request", "lost response", "lost response", "cut response", "late")
#: Transactions v1 have one epoch for many transactions, so a request that a client has given up, and that arrives in
#: its next transaction, belongs to that: in Kafka as well (KIP-890). The proxy brings these to the gateway late only if
#: their version is one of transactions v2.
_UNSAFE_BEFORE = {Api.END_TXN: 5, Api.TXN_OFFSET_COMMIT: 5, Api.ADD_PARTITIONS_TO_TXN: 99, Api.ADD_OFFSETS_TO_TXN: 99}
_PRODUCE_V2 = 12
_SIZE = struct.Struct(">i")
_START = struct.Struct(">hh")
#: Seconds.
_DELAYS, _LATE, _HALF_OPEN = (0.01, 0.6), (0.3, 9.0), (0.0, 3.0)


class Proxy:
    """Listens at ``bound`` in an event loop of its own thread; ``target`` is the address of the gateway."""

    def __init__(self, target: tuple[str, int], seed: object, bound: socket.socket) -> None:
        self.target = target
        self.faults: Counter[str] = Counter()
        self.quiet = False
        self._rng = random.Random(str(seed))
        self._bound = bound
        self.address: tuple[str, int] = self._bound.getsockname()[:2]
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        """Listen."""
        self._thread.start()

    def close(self) -> None:
        """End it; connections break."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._bound.close()

    def sever(self) -> None:
        """Break all connections."""
        self.faults["all connections cut"] += 1

        def abort_all() -> None:
            for writer in self._writers:
                writer.transport.abort()

        self._loop.call_soon_threadsafe(abort_all)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.create_task(asyncio.start_server(self._connected, sock=self._bound))
        self._loop.run_forever()
        tasks = asyncio.all_tasks(self._loop)
        for task in tasks:
            task.cancel()
        self._loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
        self._loop.close()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            upstream = await asyncio.open_connection(*self.target)
        except OSError:
            writer.transport.abort()
            return
        self._writers |= {writer, upstream[1]}
        #: Bytes of the next response after which it is cut; None: it is not.
        cuts: list[int] = []
        down = self._loop.create_task(self._responses(upstream[0], writer, upstream[1], cuts))
        self._tasks.add(down)
        down.add_done_callback(self._tasks.discard)
        with suppress(OSError, asyncio.IncompleteReadError):
            await self._requests(reader, writer, upstream[1], cuts)
        writer.transport.abort()
        upstream[1].transport.abort()
        self._writers -= {writer, upstream[1]}

    async def _requests(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        gateway: asyncio.StreamWriter,
        cuts: list[int],
    ) -> None:
        rng = self._rng
        while True:
            prefix = await reader.readexactly(_SIZE.size)
            frame = prefix + await reader.readexactly(*_SIZE.unpack(prefix))
            fault = self._fault(frame)
            if fault == "delay":
                await asyncio.sleep(rng.uniform(*_DELAYS))
            elif fault == "lost request":
                return
            elif fault == "cut request":
                gateway.write(frame[: rng.randrange(1, len(frame))])
                await gateway.drain()
                return
            elif fault == "cut response":
                cuts.append(rng.randrange(0, 30))
            elif fault == "late":
                writer.transport.abort()
                await asyncio.sleep(rng.uniform(*_LATE))
            gateway.write(frame)
            await gateway.drain()
            if fault in {"lost response", "late"}:
                await asyncio.sleep(rng.uniform(0.0, 0.1))
                writer.transport.abort()
                await asyncio.sleep(rng.uniform(*_HALF_OPEN))
                return

    async def _responses(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, gateway: asyncio.StreamWriter, cuts: list[int]
    ) -> None:
        with suppress(OSError, asyncio.IncompleteReadError):
            while data := await reader.read(1 << 16):
                if cuts:
                    writer.write(data[: cuts[0]])
                    await writer.drain()
                    break
                if not writer.is_closing():
                    writer.write(data)
                    await writer.drain()
            writer.close()
            gateway.close()

    def _fault(self, frame: bytes) -> str | None:
        number, version = _START.unpack_from(frame, _SIZE.size)
        if self.quiet or number not in VERSIONS:
            return None
        api = Api(number)
        if self._rng.random() >= _SHARES[api not in _CHANGING]:
            return None
        kind = self._rng.choice(_KINDS)
        safe_from = _PRODUCE_V2 if api is Api.PRODUCE and _has_transaction(frame) else _UNSAFE_BEFORE.get(api, 0)
        if kind == "late" and version < safe_from:
            kind = "lost response"
        self.faults[f"{kind}: {api.name}"] += 1
        return kind


def _has_transaction(frame: bytes) -> bool:
    """Whether a Produce request names a transactional id, which is its first field."""
    length = struct.unpack_from(">h", frame, 12)[0]
    at = 14 + max(length, 0)
    version = struct.unpack_from(">h", frame, 6)[0]
    if version >= 9:
        return bool(frame[at + 1])  # After the tagged fields of the header, a compact string.
    return bool(struct.unpack_from(">h", frame, at)[0] >= 0)
