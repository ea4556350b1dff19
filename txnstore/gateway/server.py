"""The listener of a gateway: connections, the order of requests, back-pressure, draining.

The requests of a connection start in the order of their arrival, and their responses leave in that order. Produce
requests overlap: the next one is read when the batches of the last one are staged. Everything else waits for its
predecessor, and what follows waits for it.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from txnstore.gateway.apis import VERSIONS, Api
from txnstore.gateway.wire import (
    PREFIX,
    MalformedRequestError,
    Request,
    Start,
    read_request,
    read_start,
    write_response,
)

_LOG = logging.getLogger(__name__)

Fields = Mapping[str, Any]
#: Handles a request: the fields of its response; None: it has none; or an awaitable of either, for a request that has
#: begun and whose successors may begin.
Handler = Callable[[Request, "Peer"], Awaitable["Fields | Awaitable[Fields | None] | None"]]

#: Kafka's ``socket.request.max.bytes``.
MAX_REQUEST_BYTES = 100 << 20
#: Requests up to this size are read whatever else is in memory.
SMALL_REQUEST_BYTES = 64 << 10
#: The bytes of larger requests that are in memory before connections wait to send more.
MAX_STAGED_BYTES = 64 << 20
#: Seconds within which the rest of a request must follow its length.
READ_TIMEOUT = 30.0
#: Kafka's ``connections.max.idle.ms``, in seconds.
MAX_IDLE = 600.0
#: The responses of a connection that may wait to be sent; then its next request is not read.
MAX_UNANSWERED = 64
#: What a client may ask before it has authenticated.
_BEFORE_AUTHENTICATION = {Api.API_VERSIONS, Api.SASL_HANDSHAKE, Api.SASL_AUTHENTICATE}
#: Seconds for which a client may take none of its responses.
WRITE_TIMEOUT = 60.0


@dataclass(slots=True)
class Peer:
    """The client of a connection.

    Attributes:
        host: Its address.
        authenticated: Whether it may send other requests than those by which it authenticates.
        principal: Who it is; None: nobody authenticates here, and the gateway asks for what its clients do.
        sasl: The state of its authentication.
    """

    host: str
    authenticated: bool
    principal: str | None = None
    sasl: Any = None


class Budget:
    """Bounds the bytes of large requests in memory; whoever asks for more waits its turn."""

    def __init__(self, size: int) -> None:
        self._size, self._used = size, 0
        self._changed = asyncio.Condition()

    async def take(self, size: int) -> None:
        """Wait until this many bytes fit; a single larger request fits alone."""
        async with self._changed:
            await self._changed.wait_for(lambda: self._used == 0 or self._used + size <= self._size)
            self._used += size

    async def give_back(self, size: int) -> None:
        """Return what was taken."""
        async with self._changed:
            self._used -= size
            self._changed.notify_all()


@dataclass(slots=True)
class Traffic:
    """What the listener counts: connections, requests by API, bytes."""

    connections: int = 0
    requests: dict[str, int] = field(default_factory=dict)
    bytes_in: int = 0
    bytes_out: int = 0
    malformed: int = 0


class Server:
    """Listens for clients.

    Args:
        handlers: The handler of each API.
        versions_response: The response of ApiVersions to a version of it that the gateway does not know.
        authenticates: Whether clients have to authenticate first.
        max_connections: The number of connections after which further ones are closed.
    """

    def __init__(
        self,
        handlers: Mapping[Api, Handler],
        versions_response: Callable[[], Fields],
        *,
        authenticates: bool,
        max_connections: int = 20_000,
    ) -> None:
        self._handlers = handlers
        self._versions_response = versions_response
        self._authenticates = authenticates
        self._max_connections = max_connections
        self._budget = Budget(MAX_STAGED_BYTES)
        self._connections: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None
        self._draining = False
        self.traffic = Traffic()

    async def listen(self, bound: socket.socket, tls: ssl.SSLContext | None = None) -> None:
        """Start to listen on a bound socket."""
        self._server = await asyncio.start_server(self._connected, sock=bound, ssl=tls, limit=1 << 20, backlog=1024)

    async def close(self, grace: float) -> None:
        """Take no more requests, wait for those that have begun, and close all connections.

        Args:
            grace: Seconds after which requests that have not ended are given up.
        """
        self._draining = True
        if self._server is not None:
            self._server.close()
        for task in self._connections:
            task.cancel()
        if self._connections:
            await asyncio.wait(self._connections, timeout=grace)

    def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._draining or len(self._connections) >= self._max_connections:
            writer.transport.abort()
            return
        task = asyncio.get_running_loop().create_task(self._serve(reader, writer))
        self._connections.add(task)
        task.add_done_callback(self._connections.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.traffic.connections += 1
        name = writer.get_extra_info("peername")
        host = str(name[0]) if name else "unknown"
        peer = Peer(host, authenticated=not self._authenticates)
        _keep_alive(writer)
        connection = _Connection(self, reader, writer, peer)
        try:
            await connection.serve()
        except MalformedRequestError as error:
            self.traffic.malformed += 1
            _LOG.warning("closing the connection of %s: %s", host, error, extra={"peer": host})
        except (OSError, asyncio.IncompleteReadError, TimeoutError, asyncio.CancelledError) as error:
            _LOG.debug("connection closed", extra={"peer": host, "reason": repr(error)})
        except Exception:  # noqa: BLE001 - The gateway goes on without this connection.
            _LOG.exception("closing the connection of %s after an unexpected error", host, extra={"peer": host})
        finally:
            self.traffic.connections -= 1
            await connection.end()

    # For connections --------------------------------------------------------------------------------------------------

    async def read_frame(self, reader: asyncio.StreamReader) -> tuple[bytes, int]:
        """The next request, and the bytes that it has taken of the budget.

        Raises:
            MalformedRequestError: Its length is not possible.
            asyncio.IncompleteReadError: The client has closed the connection.
            TimeoutError: The client sends nothing for :data:`MAX_IDLE` seconds, or not the rest of a request.
        """
        async with asyncio.timeout(MAX_IDLE):
            (size,) = PREFIX.unpack(await reader.readexactly(PREFIX.size))
        if not 0 < size <= MAX_REQUEST_BYTES:
            raise MalformedRequestError(f"a request of {size} bytes; the largest has {MAX_REQUEST_BYTES}")
        taken = size if size > SMALL_REQUEST_BYTES else 0
        if taken:
            await self._budget.take(taken)
        try:
            async with asyncio.timeout(READ_TIMEOUT):
                frame = await reader.readexactly(size)
        except BaseException:
            await self.give_back(taken)
            raise
        self.traffic.bytes_in += size
        return frame, taken

    async def give_back(self, taken: int) -> None:
        """Return the budget of a request."""
        if taken:
            await self._budget.give_back(taken)

    def decode(self, frame: bytes) -> Request | bytes:
        """The request; or the response to a version of ApiVersions that the gateway does not know (KIP-511).

        Raises:
            MalformedRequestError: It is none, or of an API or version that was not offered.
        """
        start = read_start(frame)
        if start.api == Api.API_VERSIONS and start.version > VERSIONS[Api.API_VERSIONS].last:
            return write_response(start.api, 0, start.correlation_id, self._versions_response())
        if start.api not in self._handlers:
            raise MalformedRequestError(f"a request of API {start.api}, which this gateway does not have")
        first, last = VERSIONS[Api(start.api)]
        if not first <= start.version <= last:
            raise MalformedRequestError(_wrong_version(start, first, last))
        api = Api(start.api).name
        self.traffic.requests[api] = self.traffic.requests.get(api, 0) + 1
        return read_request(frame)

    def handler(self, request: Request) -> Handler:
        """The handler of a request."""
        return self._handlers[Api(request.api)]


class _Connection:
    """One connection: reads its requests, and sends their responses in order."""

    def __init__(self, server: Server, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, peer: Peer) -> None:
        self._server, self._reader, self._writer, self._peer = server, reader, writer, peer
        #: The responses in the order of their requests.
        self._unsent: asyncio.Queue[asyncio.Task[bytes | None]] = asyncio.Queue(MAX_UNANSWERED)
        self._sender = asyncio.get_running_loop().create_task(self._send())

    async def serve(self) -> None:
        """Read and start requests until the client closes the connection."""
        reading: asyncio.Task[None] | None = None
        while True:
            reading = asyncio.get_running_loop().create_task(self._serve_next())
            await asyncio.wait({reading, self._sender}, return_when=asyncio.FIRST_COMPLETED)
            if not reading.done():
                reading.cancel()
                with suppress(asyncio.CancelledError):
                    await reading
            if self._sender.done():
                self._sender.result()
                return
            reading.result()

    async def _serve_next(self) -> None:
        frame, taken = await self._server.read_frame(self._reader)
        decoded = self._server.decode(frame)
        if isinstance(decoded, bytes):
            await self._unsent.put(self._task(_ready(decoded), taken))
        elif not (self._peer.authenticated or decoded.api in _BEFORE_AUTHENTICATION):
            raise MalformedRequestError(f"a request of {Api(decoded.api).name} before the client has authenticated")
        elif decoded.api == Api.PRODUCE:
            # Staged before the next request is read; the response follows when its batches are committed.
            later = await self._server.handler(decoded)(decoded, self._peer)
            await self._unsent.put(self._task(self._respond(decoded, later), taken))
        else:
            await self._unsent.join()
            task = self._task(self._handle(decoded), taken)
            await self._unsent.put(task)
            await asyncio.wait({task})

    def _task(self, work: Any, taken: int) -> asyncio.Task[bytes | None]:
        async def run() -> bytes | None:
            try:
                response: bytes | None = await work
            finally:
                await self._server.give_back(taken)
            return response

        return asyncio.get_running_loop().create_task(run())

    async def _handle(self, request: Request) -> bytes | None:
        return await self._respond(request, await self._server.handler(request)(request, self._peer))

    async def _respond(self, request: Request, result: Fields | Awaitable[Fields | None] | None) -> bytes | None:
        if result is not None and not isinstance(result, Mapping):
            result = await result
        if result is None:
            return None
        return write_response(request.api, request.version, request.correlation_id, result)

    async def _send(self) -> None:
        while True:
            task = await self._unsent.get()
            response = await task
            if response is not None:
                self._writer.write(response)
                async with asyncio.timeout(WRITE_TIMEOUT):
                    await self._writer.drain()
                self._server.traffic.bytes_out += len(response)
            self._unsent.task_done()

    async def end(self) -> None:
        """Close the connection; requests that have begun are given up where they can be."""
        self._sender.cancel()
        while not self._unsent.empty():
            self._unsent.get_nowait().cancel()
        self._writer.close()
        with suppress(Exception):
            async with asyncio.timeout(1):
                await self._writer.wait_closed()


async def _ready(response: bytes) -> bytes:
    return response


def _wrong_version(start: Start, first: int, last: int) -> str:
    name = Api(start.api).name
    return f"a request of {name} in version {start.version}; this gateway has versions {first} to {last}"


def _keep_alive(writer: asyncio.StreamWriter) -> None:
    connected = writer.get_extra_info("socket")
    if connected is not None:
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
