"""The listener of a gateway: connections, the order of requests, back-pressure, draining.

The requests of a connection start in the order of their arrival, and their responses leave in that order. Produce
requests overlap: the next one is read when the batches of the last one are staged. Everything else waits for its
predecessor, and what follows waits for it.

A request that was received completely runs even if its client has disconnected, as at a broker: the client may have
sent one without an answer, or left its group. Only a fetch ends with its connection, and a request of a transaction
does not begin after it: a client of transactions v1 has the same epoch for all of them, so a request that it has given
up would get into the next one. A process that was suspended carries out no change that was sent before it woke: the
client may have repeated it at another gateway, and changed more since. It closes the connections of these requests, and
answers those that only read.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
import time
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from txnstore.gateway.apis import VERSIONS, Api
from txnstore.gateway.budget import Budget, Held, Room
from txnstore.gateway.errors import code_of, message_of
from txnstore.gateway.failures import failed_fields, tells_failure
from txnstore.gateway.frames import START_SIZE, Frame, MalformedRequestError, Start, checked_frame, read_start
from txnstore.gateway.logs import limited_logger
from txnstore.gateway.stream import AHEAD, CHUNK, Stream
from txnstore.gateway.wire import PREFIX, Request, read_request, value, write_response

_LOG = limited_logger(__name__)

Fields = Mapping[str, Any]
#: Makes the fields of a large response, in a thread.
Built = Callable[[], Fields]
#: Handles a request: the fields of its response; None: it has none; what builds them, if they are so many that the
#: event loop would stand still; or an awaitable of fields or None, for a request that has begun and whose successors
#: may begin.
Handler = Callable[[Request, "Client"], Awaitable["Fields | Built | Awaitable[Fields | None] | None"]]

#: Kafka's ``socket.request.max.bytes``, here for Produce.
MAX_REQUEST_BYTES = 100 << 20
#: The largest request of another API: Kafka keeps no group or transaction that needs more than 1 MB.
MAX_OTHER_BYTES = 2 << 20
#: The largest request of a client that has not authenticated.
MAX_UNAUTHENTICATED_BYTES = 128 << 10
#: Seconds within which the next :data:`~txnstore.gateway.stream.CHUNK` of a request must follow.
READ_TIMEOUT = 30.0
#: Seconds after which a client is looked at that sends or takes too little while others wait for its bytes.
STEP = 2.0
#: Seconds within which a request must arrive that is received beyond the budget while others wait.
PREFERRED_TIME = 10.0
#: Kafka's ``connections.max.idle.ms``, in seconds.
MAX_IDLE = 600.0
#: Seconds within which a client must authenticate.
AUTHENTICATION_TIME = 60.0
#: The responses of a connection that may wait to be sent; then its next request is not read.
MAX_UNANSWERED = 64
#: The memory that the values of a request may take without being counted: those of most requests, while they wait.
_UNCOUNTED = 64 << 10
#: What belongs to a transaction, beside batches, or ends those before it.
_OF_TRANSACTIONS = {
    Api.INIT_PRODUCER_ID, Api.ADD_PARTITIONS_TO_TXN, Api.ADD_OFFSETS_TO_TXN, Api.TXN_OFFSET_COMMIT, Api.END_TXN
}  # fmt: skip
#: What a process that was suspended answers all the same: reads, which are true at some time after they were asked for,
#: and what members of groups say, since what is stored of a group that another gateway leads is refused by the chain.
_HARMLESS = {
    Api.API_VERSIONS, Api.SASL_HANDSHAKE, Api.SASL_AUTHENTICATE, Api.METADATA, Api.FETCH, Api.LIST_OFFSETS,
    Api.OFFSET_FETCH, Api.OFFSET_FOR_LEADER_EPOCH, Api.FIND_COORDINATOR, Api.JOIN_GROUP, Api.SYNC_GROUP, Api.HEARTBEAT,
    Api.CONSUMER_GROUP_HEARTBEAT, Api.DESCRIBE_GROUPS, Api.CONSUMER_GROUP_DESCRIBE, Api.LIST_GROUPS, Api.DESCRIBE_ACLS,
    Api.DESCRIBE_CONFIGS, Api.DESCRIBE_LOG_DIRS, Api.DESCRIBE_CLUSTER, Api.DESCRIBE_PRODUCERS,
    Api.DESCRIBE_TRANSACTIONS, Api.LIST_TRANSACTIONS, Api.LIST_PARTITION_REASSIGNMENTS, Api.LIST_CONFIG_RESOURCES,
    Api.DESCRIBE_TOPIC_PARTITIONS,
}  # fmt: skip
#: What a client may ask before it has authenticated.
_BEFORE_AUTHENTICATION = {Api.API_VERSIONS, Api.SASL_HANDSHAKE, Api.SASL_AUTHENTICATE}
#: Seconds for which a client may take none of its responses; and while other clients wait for room for theirs.
WRITE_TIMEOUT, SHORT_WRITE_TIMEOUT = 60.0, 4.0
#: Seconds for which the last bytes of a connection that is closed may take to leave.
_LINGER = 1.0
#: Seconds within which a client must begin and end TLS.
_TLS_TIMEOUT = 10.0
#: Seconds between two looks at the clock, and the least between them that shows that the process was suspended. Clients
#: wait longer for an answer before they ask another gateway.
_LOOK, _SUSPENDED = 0.5, 2.5
#: Seconds of silence after which a connection is probed, between probes, and the probes that may fail.
_PROBES = {"TCP_KEEPIDLE": 60, "TCP_KEEPINTVL": 10, "TCP_KEEPCNT": 3}


class SlowClientError(Exception):
    """A client sends or takes too little. Its connection is closed."""


class SuspendedError(Exception):
    """A change was asked for before the process was suspended, or while it was. Its connection is closed."""


@dataclass(slots=True)
class Client:
    """The client of a connection.

    Attributes:
        host: Its address.
        authenticated: Whether it may send other requests than those by which it authenticates.
        principal: Who it is; None: clients do not authenticate here, and the gateway asks for what its clients do.
        sasl: The state of its authentication.
        software: The name of its software; empty until it says it (KIP-511).
        room: What responses may take of the memory.
    """

    host: str
    authenticated: bool
    principal: str | None = None
    sasl: Any = None
    software: str = ""
    room: Room = field(default_factory=Room)


@dataclass(slots=True)
class Traffic:
    """What the listener counts since its start.

    Attributes:
        connections: The connections that are open.
        accepted: The connections that were accepted.
        requests: The requests by API.
        bytes_in: The bytes of requests.
        bytes_out: The bytes of responses.
        errors: The codes in responses by their names.
        closed: The connections that the gateway has closed, by the reason: ``malformed``, ``slow``, ``failed``,
            ``full``, ``suspended``.
    """

    connections: int = 0
    accepted: int = 0
    requests: Counter[str] = field(default_factory=Counter)
    bytes_in: int = 0
    bytes_out: int = 0
    errors: Counter[str] = field(default_factory=Counter)
    closed: Counter[str] = field(default_factory=Counter)


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
        self.authenticates = authenticates
        self._max_connections = max_connections
        self._scratch = memoryview(bytearray(CHUNK))
        self._connections: dict[asyncio.Task[None], _Connection] = {}
        self._server: asyncio.Server | None = None
        #: When this process last looked at the clock of the loop, the processor time that it had used, its next look.
        self._looked_at = self._used = 0.0
        self._next_look: asyncio.TimerHandle | None = None
        self.is_draining = False
        self.budget, self.room = Budget(), Room()
        self.traffic = Traffic()
        #: Encodes large responses, one at a time, because one of 100,000 partitions takes much memory meanwhile.
        self._encoder = ThreadPoolExecutor(1, thread_name_prefix="gateway responses")

    async def listen(self, bound: socket.socket, tls: ssl.SSLContext | None = None) -> None:
        """Start to listen on a bound socket."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(
            lambda: Stream(self._scratch, self._connected),
            sock=bound,
            ssl=tls,
            backlog=1024,
            ssl_handshake_timeout=_TLS_TIMEOUT if tls is not None else None,
            ssl_shutdown_timeout=_TLS_TIMEOUT if tls is not None else None,
        )
        self._looked_at, self._used = loop.time(), time.process_time()
        self._next_look = loop.call_later(_LOOK, self._look, loop)

    def _look(self, loop: asyncio.AbstractEventLoop) -> None:
        """Give up the changes that were asked for before this process woke, if it was suspended or its loop stood.

        The loop calls this before anything continues that waited for bytes, or for the storage. What has arrived
        meanwhile is read by then, or, if the wait for it was interrupted, in the next turn of the loop, before a timer.
        """
        seconds, used = loop.time() - self._looked_at, time.process_time() - self._used
        if seconds > _SUSPENDED:
            changing = [task for task, connection in self._connections.items() if connection.is_changing]
            extra = {"connections": len(self._connections), "closed": len(changing), "ms": int(seconds * 1000)}
            if used > _LOOK:  # More than before it was suspended.
                _LOG.warning("giving up what changes the store: the event loop of the gateway stood still", extra=extra)
            else:
                _LOG.warning("giving up what changes the store: the gateway was suspended", extra=extra)
            self.traffic.closed["suspended"] += len(changing)
            for task in changing:
                task.cancel()
            for connection in self._connections.values():
                connection.woke()
            loop.call_later(0, self._all_read, list(self._connections.values()))
        self._looked_at, self._used = loop.time(), time.process_time()
        self._next_look = loop.call_later(_LOOK, self._look, loop)

    def _all_read(self, connections: list[_Connection]) -> None:
        """What arrived before the process woke has been read: what arrives from now on came after it."""
        for connection in connections:
            connection.read_all()

    async def close(self, grace: float) -> bool:
        """Take no more requests, answer those that have arrived, and close all connections.

        Args:
            grace: Seconds after which requests that have not ended are given up.

        Returns:
            Whether all have ended.
        """
        self.is_draining = True
        if self._next_look is not None:
            self._next_look.cancel()
        if self._server is not None:
            self._server.close()
        for connection in self._connections.values():
            connection.drain()
        if not self._connections:
            self._encoder.shutdown(wait=False)
            return True
        _, pending = await asyncio.wait(self._connections, timeout=grace)
        if pending:
            _LOG.warning("connections are closed before their requests have ended", extra={"connections": len(pending)})
            for task in pending:
                task.cancel()
            await asyncio.wait(pending, timeout=2 * _LINGER)
        self._encoder.shutdown(wait=False, cancel_futures=True)
        return not pending

    def _connected(self, stream: Stream) -> None:
        name = stream.transport.get_extra_info("peername")
        host = str(name[0]) if name else "unknown"
        if self.is_draining or len(self._connections) >= self._max_connections:
            if not self.is_draining:
                self.traffic.closed["full"] += 1
                extra = {"client": host, "connections": len(self._connections)}
                _LOG.warning("refusing a connection: there are too many", extra=extra)
            stream.transport.abort()
            return
        self.traffic.accepted += 1
        _keep_alive(stream.transport)
        connection = _Connection(self, stream, Client(host, authenticated=not self.authenticates, room=self.room))
        task = asyncio.get_running_loop().create_task(self._serve(connection, host))
        self._connections[task] = connection
        task.add_done_callback(self._connections.pop)

    async def _serve(self, connection: _Connection, host: str) -> None:
        self.traffic.connections += 1
        reason = None
        try:
            await connection.serve()
        except MalformedRequestError as error:
            reason = "malformed"
            _LOG.warning("closing a connection: %s", error, extra={"client": host, "error": str(error)})
        except SlowClientError as error:
            reason = "slow"
            _LOG.warning("closing a connection: %s", error, extra={"client": host, "error": str(error)})
        except SuspendedError:
            reason = "suspended"
        except ConnectionAbortedError as error:
            reason = "failed"
            _LOG.warning("closing a connection: %s", error, extra={"client": host, "error": str(error)})
        except (OSError, asyncio.IncompleteReadError, asyncio.CancelledError) as error:
            _LOG.debug("connection closed", extra={"client": host, "reason": repr(error)})
        except Exception:  # noqa: BLE001 - The gateway continues without this connection.
            reason = "failed"
            _LOG.exception("closing a connection after an unexpected error", extra={"client": host})
        finally:
            self.traffic.connections -= 1
            if reason is not None:
                self.traffic.closed[reason] += 1
            await connection.end(at_once=reason == "slow")

    # For connections --------------------------------------------------------------------------------------------------

    def check_start(self, start: Start, size: int, client: Client) -> None:
        """Check what the beginning of a request tells, before the rest of it is read.

        Raises:
            MalformedRequestError: It is of an API or a version that was not offered, or too large.
        """
        if start.api not in self._handlers:
            raise MalformedRequestError(f"a request of API {start.api}, which this gateway does not have")
        api = Api(start.api)
        if not (client.authenticated or api in _BEFORE_AUTHENTICATION):
            raise MalformedRequestError(f"a request of {api.name} before the client has authenticated")
        first, last = VERSIONS[api]
        is_known = first <= start.version <= last or (api is Api.API_VERSIONS and start.version > last)
        if not is_known:
            msg = f"a request of {api.name} in version {start.version}; this gateway has versions {first} to {last}"
            raise MalformedRequestError(msg)
        most = MAX_REQUEST_BYTES if api is Api.PRODUCE else MAX_OTHER_BYTES
        if size > (most if client.authenticated else MAX_UNAUTHENTICATED_BYTES):
            raise MalformedRequestError(f"a request of {api.name} of {size} bytes; the largest has {most}")

    def check(self, data: bytes, start: Start) -> Frame | None:
        """The frame of a request; None if it is of a version of ApiVersions that the gateway does not know.

        Raises:
            MalformedRequestError: It is none.
        """
        self.traffic.bytes_in += len(data)
        self.traffic.requests[Api(start.api).name] += 1
        if start.api == Api.API_VERSIONS and start.version > VERSIONS[Api.API_VERSIONS].last:
            return None
        return checked_frame(data)

    def handler(self, api: int) -> Handler:
        """The handler of an API."""
        return self._handlers[Api(api)]

    def encode(self, start: Start | Request, fields: Fields) -> bytes:
        """The bytes of a response, whose codes are counted."""
        return write_response(start.api, start.version, start.correlation_id, fields, self.traffic.errors)

    async def encode_in_thread(self, request: Request, build: Built) -> bytes:
        """The bytes of a large response, whose fields are built in a thread, too."""
        errors = Counter[str]()

        def encode() -> bytes:
            return write_response(request.api, request.version, request.correlation_id, build(), errors)

        response = await asyncio.get_running_loop().run_in_executor(self._encoder, encode)
        self.traffic.errors.update(errors)
        return response

    def unknown_version(self, start: Start) -> bytes:
        """The response to a version of ApiVersions that the gateway does not know: of version 0 (KIP-511)."""
        return self.encode(Start(start.api, 0, start.correlation_id), self._versions_response())

    def failure(self, request: Request, error: Exception) -> bytes:
        """The response to a request whose handler has failed.

        Raises:
            Exception: The error, if no response can tell it: the connection is closed then.
        """
        if not tells_failure(request):
            raise error
        code = code_of(error, Api(request.api), request.version)
        return self.encode(request, failed_fields(request, {"error_code": code, "error_message": message_of(error)}))


class _Connection:
    """One connection: reads its requests, and sends their responses in order."""

    def __init__(self, server: Server, stream: Stream, client: Client) -> None:
        self._server, self._stream, self._client = server, stream, client
        #: The responses of Produce requests in the order of these, and who sends them; None: all are sent.
        self._unsent: deque[asyncio.Task[bytes | None]] = deque()
        self._sender: asyncio.Task[None] | None = None
        self._slots = asyncio.Semaphore(MAX_UNANSWERED)
        #: The task that serves the connection, and why the sender ended it.
        self._serving: asyncio.Task[Any] | None = None
        self._failure: BaseException | None = None
        #: The fetch under way, which ends with the connection.
        self._fetch: asyncio.Task[bytes | None] | None = None
        #: Whether nothing more arrives.
        self._is_over = False
        #: Whether no more responses are sent.
        self._is_closed = False
        #: Whether a part of the next request has arrived.
        self._is_reading = False
        #: The API of the request that is read or carried out, as far as it is known.
        self._api: int | None = None
        #: The bytes of responses that are not sent, which count in the room.
        self._unsent_bytes = 0
        stream.ended = self._ended

    async def serve(self) -> None:
        """Read and start requests until the client closes the connection."""
        self._serving = asyncio.current_task()
        try:
            await self._serve_all()
        except asyncio.CancelledError:
            if self._failure is None:
                raise
            raise self._failure from None

    async def _serve_all(self) -> None:
        with suppress(asyncio.IncompleteReadError):
            while True:
                await self._serve_next()
        if self._is_reading and not self._server.is_draining:
            _LOG.info(
                "a client has closed its connection in the middle of a request", extra={"client": self._client.host}
            )
        await self._all_sent()

    async def _serve_next(self) -> None:
        await self._slots.acquire()
        held = self._server.budget.hold()
        try:
            start, request = await self._read_request(held)
            if request is not None and self._stream.is_given_up and _is_of_transaction(request):
                raise ConnectionResetError("a request of a transaction was given up before it was begun")
            if request is not None and request.api == Api.PRODUCE:
                # Staged before the next request is read; the response follows when its batches are committed.
                later = await self._server.handler(request.api)(request, self._client)
                self._send_later(asyncio.get_running_loop().create_task(self._response(request, later)), held)
                held = self._server.budget.hold()  # Its bytes are those of the task now.
                return
            await self._all_sent()
            await self._client.room.wait(2)  # A fetch waits on its own: it knows when it reads.
            unknown = None if request is not None else self._counted(self._server.unknown_version(start))
            await self._send(unknown if request is None else await self._handle(request))
            self._slots.release()
        finally:
            self._api = None
            held.release()

    @property
    def is_changing(self) -> bool:
        """Whether a request is read or carried out that may change something. Staged batches are still committed."""
        return self._is_reading if self._api is None else self._api not in _HARMLESS

    def woke(self) -> None:
        """The process was suspended: no change is carried out that was asked for before :meth:`read_all`."""
        self._stream.mark_stale(1 << 62)

    def read_all(self) -> None:
        """All that arrived before the process woke is in the buffer, unless the client sends more than that holds."""
        if not (self._is_reading or self._stream.is_full):
            self._stream.mark_stale(self._stream.buffered)

    # Reading ----------------------------------------------------------------------------------------------------------

    async def _read_request(self, held: Held) -> tuple[Start, Request | None]:
        """The next request, once there is room for its values; None if it is of an unknown version of ApiVersions.

        Raises:
            MalformedRequestError: It is none.
        """
        start, data = await self._read_frame(held)
        self._is_reading = False
        frame = self._server.check(data, start)
        if frame is None:
            return start, None
        if frame.decoded_size > _UNCOUNTED:
            await held.add(frame.decoded_size)
        return start, read_request(frame)

    async def _read_frame(self, held: Held) -> tuple[Start, bytes]:
        """The next request.

        Raises:
            MalformedRequestError: Its length, API or version is not possible.
            asyncio.IncompleteReadError: The client has closed the connection.
            SlowClientError: It is slower than allowed.
            SuspendedError: It would change something, and arrived before the process woke.
        """
        (size,) = PREFIX.unpack(await self._read_prefix())
        self._is_reading, is_stale = True, self._stream.was_stale
        if not START_SIZE <= size <= MAX_REQUEST_BYTES:
            raise MalformedRequestError(f"a request of {size} bytes; the largest has {MAX_REQUEST_BYTES}")
        first = await self._read(min(size, AHEAD), held)  # Small requests are in memory whatever else is.
        start = read_start(first)
        self._server.check_start(start, size, self._client)
        self._api = start.api
        if is_stale and start.api not in _HARMLESS:
            raise SuspendedError
        if size > AHEAD or start.api == Api.PRODUCE:
            await held.add(len(first))
        if size == len(first):
            return start, first
        chunks, rest = [first], size - len(first)
        clock, preferred_at = asyncio.get_running_loop().time, None
        while rest:
            if held.exceeds_share:
                preferred_at = preferred_at or clock()
                if clock() - preferred_at > PREFERRED_TIME:
                    raise SlowClientError(f"others wait while it sends a request of {size} bytes")
            chunk = await self._read(min(rest, CHUNK), held)
            await held.add(len(chunk))
            chunks.append(chunk)
            rest -= len(chunk)
        return start, b"".join(chunks)

    async def _read_prefix(self) -> bytes:
        if self._stream.has(PREFIX.size):
            return await self._stream.read(PREFIX.size)
        try:
            async with asyncio.timeout(MAX_IDLE if self._client.authenticated else AUTHENTICATION_TIME):
                return await self._stream.read(PREFIX.size)
        except TimeoutError:
            raise ConnectionResetError("the connection is idle") from None

    async def _read(self, size: int, held: Held) -> bytes:
        if self._stream.has(size):
            return await self._stream.read(size)
        waited = 0.0
        while True:
            try:
                async with asyncio.timeout(STEP):
                    return await self._stream.read(size)
            except TimeoutError:
                waited += STEP
                if waited >= READ_TIMEOUT or held.exceeds_share:
                    raise SlowClientError(f"it has not sent {size} bytes of a request in {waited:.0f} s") from None

    # Requests ---------------------------------------------------------------------------------------------------------

    async def _handle(self, request: Request) -> bytes | None:
        if request.api != Api.FETCH:
            return await self._response(request, None)
        if self._stream.has_ended:
            self._leave_out()
            return None
        self._fetch = asyncio.get_running_loop().create_task(self._response(request, None))
        try:
            await asyncio.wait({self._fetch})
            if not self._fetch.cancelled():
                return self._fetch.result()
            if self._is_over:
                self._leave_out()
                return None
            raise ConnectionAbortedError("a fetch was given up")
        finally:
            self._fetch.cancel()
            self._fetch = None

    async def _response(
        self, request: Request, later: Fields | Built | Awaitable[Fields | None] | None
    ) -> bytes | None:
        """The bytes of a response, or of an error: of a request whose handler has begun it, or is to be called."""
        try:
            if request.api != Api.PRODUCE:
                later = await self._server.handler(request.api)(request, self._client)
            if callable(later):
                return self._counted(await self._server.encode_in_thread(request, later))
            fields = later if later is None or isinstance(later, Mapping) else await later
            return None if fields is None else self._counted(self._server.encode(request, fields))
        except ConnectionAbortedError:
            raise
        except Exception as error:  # noqa: BLE001 - Its client gets the code.
            return self._counted(self._server.failure(request, error))

    def _leave_out(self) -> None:
        """End a fetch without a response, and send no later one: its client would take it for that of the fetch."""
        self._is_closed = True

    def _counted(self, response: bytes) -> bytes:
        if self._is_closed:
            return response  # It is not sent.
        self._unsent_bytes += len(response)
        self._client.room.add(len(response))
        return response

    def _ended(self) -> None:
        self._is_over = True
        if self._fetch is not None:
            self._fetch.cancel()

    def drain(self) -> None:
        """Take no more requests; what has arrived is answered, but for a fetch, which may wait for records."""
        self._stream.stop_reading()

    # Responses --------------------------------------------------------------------------------------------------------

    def _send_later(self, response: asyncio.Task[bytes | None], held: Held) -> None:
        response.add_done_callback(lambda _: held.release())
        self._unsent.append(response)
        if self._sender is None:
            self._sender = asyncio.get_running_loop().create_task(self._send_all())
            self._sender.add_done_callback(self._sender_ended)

    async def _send_all(self) -> None:
        while self._unsent:
            response = self._unsent[0]
            await asyncio.wait({response})  # It continues if this task is cancelled.
            await self._send(response.result())
            self._unsent.popleft()
            self._slots.release()

    def _sender_ended(self, task: asyncio.Task[None]) -> None:
        self._sender = None
        if task.cancelled():
            self._failure = ConnectionResetError("a request was given up")
        elif (error := task.exception()) is not None:
            self._failure = error
        elif self._unsent:  # One has come since the sender looked.
            self._sender = asyncio.get_running_loop().create_task(self._send_all())
            self._sender.add_done_callback(self._sender_ended)
        if self._failure is not None and self._serving is not None:
            self._serving.cancel()

    async def _all_sent(self) -> None:
        while self._sender is not None:
            await asyncio.wait({self._sender})
        if self._failure is not None:
            raise self._failure

    async def _send(self, response: bytes | None) -> None:
        if response is None or self._is_closed:
            return
        try:
            await self._stream.write(response, STEP, self._is_slow)
        except TimeoutError as error:
            raise SlowClientError(str(error)) from None
        self._server.traffic.bytes_out += len(response)
        self._unsent_bytes -= len(response)
        self._client.room.remove(len(response))

    def _is_slow(self, waited: float) -> bool:
        return waited >= (SHORT_WRITE_TIMEOUT if self._client.room.is_short else WRITE_TIMEOUT)

    async def end(self, *, at_once: bool) -> None:
        """Close the connection. Its requests run to their ends, and their bytes count as long as they are in memory."""
        self._is_closed = True
        if self._sender is not None:
            self._sender.remove_done_callback(self._sender_ended)
            self._sender.cancel()
        for response in self._unsent:
            if self._server.is_draining:  # Its time has passed.
                response.cancel()
            response.add_done_callback(_retrieve)
        self._client.room.remove(self._unsent_bytes)
        with suppress(asyncio.CancelledError):
            await self._stream.close(linger=0 if at_once else _LINGER)


def _is_of_transaction(request: Request) -> bool:
    """Whether a request is of a transaction, or ends those before it. Who has given it up repeats it, or aborts."""
    return request.api in _OF_TRANSACTIONS or (
        request.api == Api.PRODUCE and value(request.body, "transactional_id") is not None
    )


def _retrieve(task: asyncio.Task[bytes | None]) -> None:
    """Retrieve the error of a request whose connection was closed."""
    if not task.cancelled() and (error := task.exception()) is not None:
        _LOG.debug("a request failed after its connection", exc_info=error, extra={"error": repr(error)})


def _keep_alive(transport: asyncio.Transport) -> None:
    connected = transport.get_extra_info("socket")
    if connected is not None:
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, number in _PROBES.items():
            if hasattr(socket, name):
                connected.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), number)
