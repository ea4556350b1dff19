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
from collections.abc import Awaitable, Callable, Hashable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from txnstore.caches import ByteCache
from txnstore.errors import InvalidConfigError
from txnstore.gateway.apis import VERSIONS, Api
from txnstore.gateway.budget import Budget, Reservation, ResponseBudget
from txnstore.gateway.errors import code_of, message_of
from txnstore.gateway.failures import can_report_failure, failure_fields
from txnstore.gateway.frames import START_SIZE, Frame, MalformedRequestError, Start, check_frame, read_start
from txnstore.gateway.logs import limited_logger
from txnstore.gateway.stream import AHEAD, CHUNK, SLICE, Stream
from txnstore.gateway.wire import PREFIX, Request, field_value, read_request, with_correlation_id, write_response

_LOG = limited_logger(__name__)

Fields = Mapping[str, Any]
#: Makes the fields of a large response, in a thread.
ResponseBuilder = Callable[[], Fields]


@dataclass(frozen=True, slots=True)
class SharedResponse:
    """A response without errors that requests share, but for the correlation id.

    Attributes:
        cache: The responses, as encoded.
        key: Equal for requests that share a response.
        build: Makes its fields.
        in_thread: Whether it builds so many fields that it must run in a thread.
    """

    cache: ByteCache[Hashable, bytes]
    key: Hashable
    build: ResponseBuilder
    in_thread: bool


#: What a handler returns: the fields of the response; None: there is none; a callable that builds so many of them that
#: it must run in a thread; a response that requests share; or an awaitable of fields or None, for a request that has
#: begun and whose successors may begin.
Result = Fields | ResponseBuilder | SharedResponse | Awaitable[Fields | None] | None
#: Handles a request.
Handler = Callable[[Request, "Client"], Awaitable[Result]]

#: Kafka's ``socket.request.max.bytes``, here for Produce.
MAX_REQUEST_BYTES = 100 << 20
#: The largest request of another API: Kafka keeps no group or transaction that needs more than 1 MB.
MAX_OTHER_BYTES = 2 << 20
#: The largest request of a client that has not authenticated.
MAX_UNAUTHENTICATED_BYTES = 128 << 10
#: Seconds within which the next :data:`~txnstore.gateway.stream.CHUNK` of a request must follow.
READ_TIMEOUT = 30.0
#: Seconds between two checks of a client that sends or takes too little while others wait for its bytes.
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
#: The requests, besides batches, that belong to a transaction, or end earlier ones.
_TRANSACTION_APIS = {
    Api.INIT_PRODUCER_ID, Api.ADD_PARTITIONS_TO_TXN, Api.ADD_OFFSETS_TO_TXN, Api.TXN_OFFSET_COMMIT, Api.END_TXN
}  # fmt: skip
#: The requests that a process answers even if it was suspended: reads, which are right for some time after the request,
#: and those of members of groups, since the chain refuses changes of a group that another gateway leads.
_SAFE_AFTER_SUSPENSION = {
    Api.API_VERSIONS, Api.SASL_HANDSHAKE, Api.SASL_AUTHENTICATE, Api.METADATA, Api.FETCH, Api.LIST_OFFSETS,
    Api.OFFSET_FETCH, Api.OFFSET_FOR_LEADER_EPOCH, Api.FIND_COORDINATOR, Api.JOIN_GROUP, Api.SYNC_GROUP, Api.HEARTBEAT,
    Api.CONSUMER_GROUP_HEARTBEAT, Api.DESCRIBE_GROUPS, Api.CONSUMER_GROUP_DESCRIBE, Api.LIST_GROUPS, Api.DESCRIBE_ACLS,
    Api.DESCRIBE_CONFIGS, Api.DESCRIBE_LOG_DIRS, Api.DESCRIBE_CLUSTER, Api.DESCRIBE_PRODUCERS,
    Api.DESCRIBE_TRANSACTIONS, Api.LIST_TRANSACTIONS, Api.LIST_PARTITION_REASSIGNMENTS, Api.LIST_CONFIG_RESOURCES,
    Api.DESCRIBE_TOPIC_PARTITIONS,
}  # fmt: skip
#: The requests that a client may send before it has authenticated.
_BEFORE_AUTHENTICATION = {Api.API_VERSIONS, Api.SASL_HANDSHAKE, Api.SASL_AUTHENTICATE}
#: Seconds for which a client may take none of its responses; and while other clients wait for room for theirs.
WRITE_TIMEOUT, SHORT_WRITE_TIMEOUT = 60.0, 4.0
#: Seconds for which the last bytes of a connection that is closed may take to leave.
_LINGER = 1.0
#: Seconds within which a client must begin and end TLS.
_TLS_TIMEOUT = 10.0
#: Seconds between two looks at the clock, and the least between them that shows that the process was suspended. Clients
#: wait longer for an answer before they ask another gateway.
_CLOCK_INTERVAL, _SUSPENSION = 0.5, 2.5
#: More bytes than any connection receives.
_ALL_BYTES = 1 << 62
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
        principal: Its principal; None: clients do not authenticate, and the gateway's principal applies.
        sasl: The state of its authentication.
        software: The name of its software; empty until it says it (KIP-511).
        room: What responses may take of the memory.
    """

    host: str
    authenticated: bool
    principal: str | None = None
    sasl: Any = None
    software: str = ""
    room: ResponseBudget = field(default_factory=ResponseBudget)


@dataclass(slots=True)
class Traffic:
    """The counts of the listener since its start.

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
        principal_of: Returns the principal of a new connection; None: it has none, or must authenticate first.
        max_connections: The number of connections after which further ones are closed.
    """

    def __init__(
        self,
        handlers: Mapping[Api, Handler],
        versions_response: Callable[[], Fields],
        *,
        authenticates: bool,
        principal_of: Callable[[asyncio.BaseTransport], str | None] = lambda _: None,
        max_connections: int = 20_000,
    ) -> None:
        self._handlers = handlers
        self._versions_response = versions_response
        self.authenticates = authenticates
        self._principal_of = principal_of
        self._max_connections = max_connections
        self._scratch = memoryview(bytearray(CHUNK))
        self._connections: dict[asyncio.Task[None], _Connection] = {}
        self._servers: list[asyncio.Server] = []
        #: The time of the last check of the loop's clock, the processor time then, and the next check.
        self._checked_at = self._processor_time = 0.0
        self._next_clock_check: asyncio.TimerHandle | None = None
        self.is_draining = False
        self.budget, self.room = Budget(), ResponseBudget()
        self.traffic = Traffic()
        #: Encodes large responses, one at a time, because one of 100,000 partitions takes much memory meanwhile.
        self._encoder = ThreadPoolExecutor(1, thread_name_prefix="gateway responses")

    async def listen(self, *listeners: socket.socket, tls: ssl.SSLContext | None = None) -> None:
        """Start to listen on bound sockets."""
        loop = asyncio.get_running_loop()
        for listener in listeners:
            server = await loop.create_server(
                lambda: Stream(self._scratch, self._connected),
                sock=listener,
                ssl=tls,
                backlog=1024,
                ssl_handshake_timeout=_TLS_TIMEOUT if tls is not None else None,
                ssl_shutdown_timeout=_TLS_TIMEOUT if tls is not None else None,
            )
            self._servers.append(server)
        self._checked_at, self._processor_time = loop.time(), time.process_time()
        self._next_clock_check = loop.call_later(_CLOCK_INTERVAL, self._check_clock, loop)

    def _check_clock(self, loop: asyncio.AbstractEventLoop) -> None:
        """Give up changes requested before this process woke, if it was suspended or its loop was blocked.

        The loop calls this before anything continues that waited for bytes, or for the storage. What has arrived
        meanwhile is read by then, or, if the wait for it was interrupted, in the next turn of the loop, before a timer.
        """
        seconds, processor_seconds = loop.time() - self._checked_at, time.process_time() - self._processor_time
        if seconds > _SUSPENSION:
            changing_tasks = [task for task, connection in self._connections.items() if connection.is_changing]
            extra = {"connections": len(self._connections), "closed": len(changing_tasks), "ms": int(seconds * 1000)}
            if processor_seconds > _CLOCK_INTERVAL:  # It was busy: a suspended process uses no processor time.
                _LOG.warning("giving up what changes the store: the event loop of the gateway stood still", extra=extra)
            else:
                _LOG.warning("giving up what changes the store: the gateway was suspended", extra=extra)
            self.traffic.closed["suspended"] += len(changing_tasks)
            for task in changing_tasks:
                task.cancel()
            for connection in self._connections.values():
                connection.mark_suspended()
            loop.call_later(0, self._on_all_read, list(self._connections.values()))
        self._checked_at, self._processor_time = loop.time(), time.process_time()
        self._next_clock_check = loop.call_later(_CLOCK_INTERVAL, self._check_clock, loop)

    def _on_all_read(self, connections: list[_Connection]) -> None:
        """End the suspension for connections that have read all bytes from before the process woke."""
        for connection in connections:
            connection.end_suspension()

    async def close(self, grace: float) -> bool:
        """Take no more requests, answer those that have arrived, and close all connections.

        Args:
            grace: Seconds after which requests that have not ended are given up.

        Returns:
            Whether all have ended.
        """
        self.is_draining = True
        if self._next_clock_check is not None:
            self._next_clock_check.cancel()
        for server in self._servers:
            server.close()
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
        self._encoder.shutdown(wait=False)
        return not pending

    def _connected(self, stream: Stream) -> None:
        """Serve a new connection, unless there are too many or the listener drains."""
        name = stream.transport.get_extra_info("peername")
        host = str(name[0]) if name else "unknown"
        if self.is_draining or len(self._connections) >= self._max_connections:
            if not self.is_draining:
                self.traffic.closed["full"] += 1
                extra = {"client": host, "connections": len(self._connections)}
                _LOG.warning("refusing a connection: there are too many", extra=extra)
            stream.transport.abort()
            return
        try:
            principal = self._principal_of(stream.transport)
        except InvalidConfigError as error:
            self.traffic.closed["failed"] += 1
            _LOG.warning("closing a connection: %s", error, extra={"client": host, "error": str(error)})
            stream.transport.abort()
            return
        self.traffic.accepted += 1
        _keep_alive(stream.transport)
        is_known = principal is not None or not self.authenticates
        connection = _Connection(self, stream, Client(host, is_known, principal, room=self.room))
        task = asyncio.get_running_loop().create_task(self._serve(connection, host))
        self._connections[task] = connection
        task.add_done_callback(self._connections.pop)

    async def _serve(self, connection: _Connection, host: str) -> None:
        """Serve a connection to its end, and count and log the reason if the gateway closes it."""
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
        """Check the first fields of a request before the rest of it is read.

        Raises:
            MalformedRequestError: The API or version was not offered, or the request is too large.
        """
        if start.api not in self._handlers:
            raise MalformedRequestError(f"a request of API {start.api}, which this gateway does not have")
        api = Api(start.api)
        if not (client.authenticated or api in _BEFORE_AUTHENTICATION):
            raise MalformedRequestError(f"a request of {api.name} before the client has authenticated")
        oldest, newest = VERSIONS[api]
        is_known = oldest <= start.version <= newest or (api is Api.API_VERSIONS and start.version > newest)
        if not is_known:
            msg = f"a request of {api.name} in version {start.version}; this gateway has versions {oldest} to {newest}"
            raise MalformedRequestError(msg)
        max_bytes = MAX_REQUEST_BYTES if api is Api.PRODUCE else MAX_OTHER_BYTES
        if size > (max_bytes if client.authenticated else MAX_UNAUTHENTICATED_BYTES):
            raise MalformedRequestError(f"a request of {api.name} of {size} bytes; the largest has {max_bytes}")

    def check(self, data: bytes, start: Start) -> Frame | None:
        """Count a request, and check its frame; None if it is of an unknown version of ApiVersions.

        Raises:
            MalformedRequestError: It is none.
        """
        self.traffic.bytes_in += len(data)
        self.traffic.requests[Api(start.api).name] += 1
        if start.api == Api.API_VERSIONS and start.version > VERSIONS[Api.API_VERSIONS].last:
            return None
        return check_frame(data)

    def handler(self, api: int) -> Handler:
        """The handler of an API."""
        return self._handlers[Api(api)]

    def encode(self, start: Start | Request, fields: Fields) -> bytes:
        """Encode a response, and count its error codes."""
        return write_response(start.api, start.version, start.correlation_id, fields, self.traffic.errors)

    async def encode_in_thread(self, request: Request, build: ResponseBuilder) -> bytes:
        """Build and encode a large response in a thread."""
        errors = Counter[str]()

        def encode() -> bytes:
            return write_response(request.api, request.version, request.correlation_id, build(), errors)

        response = await asyncio.get_running_loop().run_in_executor(self._encoder, encode)
        self.traffic.errors.update(errors)
        return response

    async def encode_shared(self, request: Request, shared: SharedResponse) -> bytes:
        """Return a response that requests share; encode it, and keep it, if it is not kept."""

        def encode() -> bytes:
            response = shared.cache.find(shared.key)  # Another request may have encoded it while this one waited.
            if response is None:
                response = write_response(request.api, request.version, request.correlation_id, shared.build())
                shared.cache.keep(shared.key, response, len(response))
            return response

        response = shared.cache.find(shared.key)
        if response is None and shared.in_thread:
            response = await asyncio.get_running_loop().run_in_executor(self._encoder, encode)
        elif response is None:
            response = encode()
        return with_correlation_id(response, request.correlation_id)

    def unknown_version(self, start: Start) -> bytes:
        """Encode the response to an unknown version of ApiVersions: in version 0 (KIP-511)."""
        return self.encode(Start(start.api, 0, start.correlation_id), self._versions_response())

    def failure(self, request: Request, error: Exception) -> bytes:
        """Encode the response to a request whose handler has failed.

        Raises:
            Exception: The error, if no response can report it: the connection is closed then.
        """
        if not can_report_failure(request):
            raise error
        code = code_of(error, Api(request.api), request.version)
        return self.encode(request, failure_fields(request, {"error_code": code, "error_message": message_of(error)}))


class _Connection:
    """One connection: reads its requests, and sends their responses in order."""

    def __init__(self, server: Server, stream: Stream, client: Client) -> None:
        self._server, self._stream, self._client = server, stream, client
        #: The staged requests without a response, in order, with the fields that they get.
        self._staged: deque[tuple[Request, asyncio.Future[Fields | None]]] = deque()
        #: The task that waits for a client that takes its responses slowly; and what waits until all are sent.
        self._sender: asyncio.Task[None] | None = None
        self._sent_future: asyncio.Future[None] | None = None
        self._slots = asyncio.Semaphore(MAX_UNANSWERED)
        #: The task that serves the connection, and the error by which something else ended it.
        self._serve_task: asyncio.Task[Any] | None = None
        self._failure: BaseException | None = None
        #: The time from which the connection waits for the next request; None: it does not.
        self._idle_since: float | None = None
        self._idle_timer: asyncio.TimerHandle | None = None
        #: The fetch under way, which ends with the connection.
        self._fetch: asyncio.Task[bytes | None] | None = None
        #: Whether no more responses are sent.
        self._is_closed = False
        #: Whether a part of the next request has arrived.
        self._is_reading = False
        #: The API of the request that is read or carried out, as far as it is known.
        self._api: int | None = None
        #: The bytes of responses that are not sent, which count in the room.
        self._unsent_bytes = 0
        stream.on_end = self._cancel_fetch

    async def serve(self) -> None:
        """Read and start requests until the client closes the connection."""
        self._serve_task = asyncio.current_task()
        self._watch_idle()
        try:
            await self._serve_all()
        except asyncio.CancelledError:
            if self._failure is None:
                raise
            raise self._failure from None

    async def _serve_all(self) -> None:
        """Serve requests until the client sends no more, then wait until all responses are sent."""
        with suppress(asyncio.IncompleteReadError):
            while True:
                await self._serve_next()
        if self._is_reading and not self._server.is_draining:
            _LOG.info(
                "a client has closed its connection in the middle of a request", extra={"client": self._client.host}
            )
        await self._wait_until_sent()

    async def _serve_next(self) -> None:
        """Read and handle the next request; a Produce request is only staged, and its response sent later."""
        await self._slots.acquire()
        reservation = self._server.budget.new_reservation()
        try:
            start, request = await self._read_request(reservation)
            if request is not None and self._stream.client_closed and _is_of_transaction(request):
                raise ConnectionResetError("a request of a transaction was given up before it was begun")
            if request is not None and request.api == Api.PRODUCE:
                # Staged before the next request is read; the response follows when its batches are committed.
                await self._stage(request, reservation)
                reservation = self._server.budget.new_reservation()  # Its bytes are those of the task now.
                return
            await self._wait_until_sent()
            await self._client.room.wait(2)  # Twice the size: a fetch waits itself, before it reads.
            if request is None:
                response: bytes | None = self._counted_as_unsent(self._server.unknown_version(start))
            else:
                response = await self._respond(request)
            await self._send(response)
            self._slots.release()
        finally:
            self._api = None
            reservation.release()

    @property
    def is_changing(self) -> bool:
        """Whether a request under way may change something. Staged batches are still committed."""
        return self._is_reading if self._api is None else self._api not in _SAFE_AFTER_SUSPENSION

    def mark_suspended(self) -> None:
        """Refuse changes that were requested before :meth:`end_suspension`: the process was suspended."""
        self._stream.mark_stale(_ALL_BYTES)

    def end_suspension(self) -> None:
        """Accept changes that arrive from now on; buffered bytes stay marked, unless more may be waiting."""
        if not (self._is_reading or self._stream.is_full):
            self._stream.mark_stale(self._stream.buffered)

    # Reading ----------------------------------------------------------------------------------------------------------

    async def _read_request(self, reservation: Reservation) -> tuple[Start, Request | None]:
        """Read the next request when there is room for its values; None if it is of an unknown version of ApiVersions.

        Raises:
            MalformedRequestError: It is none.
        """
        start, data = await self._read_frame(reservation)
        self._is_reading = False
        frame = self._server.check(data, start)
        if frame is None:
            return start, None
        if frame.decoded_size > _UNCOUNTED:
            await reservation.add(frame.decoded_size)
        return start, read_request(frame)

    async def _read_frame(self, reservation: Reservation) -> tuple[Start, bytes]:
        """Read the first fields and all bytes of the next request.

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
        first_bytes = await self._read(min(size, AHEAD), reservation)  # Not counted: small requests never wait.
        start = read_start(first_bytes)
        self._server.check_start(start, size, self._client)
        self._api = start.api
        if is_stale and start.api not in _SAFE_AFTER_SUSPENSION:
            raise SuspendedError
        if size > AHEAD or start.api == Api.PRODUCE:
            await reservation.add(len(first_bytes))
        if size == len(first_bytes):
            return start, first_bytes
        chunks, bytes_left = [first_bytes], size - len(first_bytes)
        clock, preferred_at = asyncio.get_running_loop().time, None
        while bytes_left:
            if reservation.exceeds_share:
                preferred_at = preferred_at or clock()
                if clock() - preferred_at > PREFERRED_TIME:
                    raise SlowClientError(f"others wait while it sends a request of {size} bytes")
            chunk = await self._read(min(bytes_left, CHUNK), reservation)
            await reservation.add(len(chunk))
            chunks.append(chunk)
            bytes_left -= len(chunk)
        return start, b"".join(chunks)

    async def _read_prefix(self) -> bytes:
        """Read the length of the next request; the wait for it is limited by the idle time."""
        if self._stream.has(PREFIX.size):
            return await self._stream.read(PREFIX.size)
        self._idle_since = asyncio.get_running_loop().time()
        try:
            return await self._stream.read(PREFIX.size)
        finally:
            self._idle_since = None

    def _watch_idle(self) -> None:
        """Look once in a while whether the client is idle: a timer for each request would cost as much as its bytes."""
        loop, seconds = asyncio.get_running_loop(), AUTHENTICATION_TIME
        if self._idle_since is not None:
            max_idle = MAX_IDLE if self._client.authenticated else AUTHENTICATION_TIME
            seconds = min(seconds, self._idle_since + max_idle - loop.time())
        if seconds > 0:
            self._idle_timer = loop.call_later(seconds, self._watch_idle)
        else:
            self._fail(ConnectionResetError("the connection is idle"))

    async def _read(self, size: int, reservation: Reservation) -> bytes:
        """Read ``size`` bytes of a request that has begun; a client that is too slow is given up."""
        if self._stream.has(size):
            return await self._stream.read(size)
        waited = 0.0
        while True:
            try:
                async with asyncio.timeout(STEP):
                    return await self._stream.read(size)
            except TimeoutError:
                waited += STEP
                if waited >= READ_TIMEOUT or reservation.exceeds_share:
                    raise SlowClientError(f"it has not sent {size} bytes of a request in {waited:.0f} s") from None

    # Requests ---------------------------------------------------------------------------------------------------------

    async def _respond(self, request: Request) -> bytes | None:
        """Return the response; None if none is sent: the client's input has ended, which cancels a waiting fetch."""
        if request.api != Api.FETCH:
            return await self._response(request)
        if self._input_has_ended():
            self._drop_responses()
            return None
        self._fetch = asyncio.get_running_loop().create_task(self._response(request))
        try:
            await asyncio.wait({self._fetch})
            if not self._fetch.cancelled():
                return self._fetch.result()
            if self._input_has_ended():
                self._drop_responses()
                return None
            raise ConnectionAbortedError("the fetch was cancelled while its client was still connected")
        finally:
            self._fetch.cancel()
            self._fetch = None

    def _input_has_ended(self) -> bool:
        """Whether nothing more arrives; a call, as the value changes while a fetch waits."""
        return self._stream.has_ended

    async def _response(self, request: Request) -> bytes | None:
        """Return the bytes of a response, or of an error."""
        try:
            response = await self._encoded(request, await self._server.handler(request.api)(request, self._client))
        except ConnectionAbortedError:
            raise
        except Exception as error:  # noqa: BLE001 - Its client gets the code.
            response = self._server.failure(request, error)
        return None if response is None else self._counted_as_unsent(response)

    async def _encoded(self, request: Request, result: Result) -> bytes | None:
        """Encode what a handler returned; None if there is no response."""
        if isinstance(result, SharedResponse):
            return await self._server.encode_shared(request, result)
        if callable(result):
            return await self._server.encode_in_thread(request, result)
        fields = result if result is None or isinstance(result, Mapping) else await result
        return None if fields is None else self._server.encode(request, fields)

    def _drop_responses(self) -> None:
        """Send no more responses: after a fetch that ended without one, a client would take the next one for it."""
        self._is_closed = True

    def _counted_as_unsent(self, response: bytes) -> bytes:
        """Count the bytes of a response as unsent, and return it."""
        if self._is_closed:
            return response  # It will not be sent.
        self._unsent_bytes += len(response)
        self._client.room.add(len(response))
        return response

    def _cancel_fetch(self) -> None:
        if self._fetch is not None:
            self._fetch.cancel()

    def drain(self) -> None:
        """Take no more requests; those that have arrived are answered, but for a fetch, which may wait for records."""
        self._stream.stop_reading()

    # Responses --------------------------------------------------------------------------------------------------------

    async def _stage(self, request: Request, reservation: Reservation) -> None:
        """Begin a Produce request, whose response follows; its bytes are in memory until then."""
        result: Any = await self._server.handler(request.api)(request, self._client)
        fields: asyncio.Future[Fields | None] = asyncio.ensure_future(result)
        fields.add_done_callback(lambda _: reservation.release())
        self._staged.append((request, fields))
        fields.add_done_callback(self._send_ready)

    def _send_ready(self, _: object = None) -> None:
        """Send the responses of staged requests that are ready, in the order of the requests.

        A task sends what the client does not take at once, and then calls this.
        """
        try:
            while self._staged and self._staged[0][1].done() and self._sender is None and self._failure is None:
                response = self._staged_response(*self._staged[0])
                if response is None or self._is_closed:
                    self._end_staged()
                elif len(response) > SLICE:
                    self._send_slowly(self._counted_as_unsent(response))
                else:
                    self._server.traffic.bytes_out += len(response)
                    if self._stream.write_slice(response):
                        self._end_staged()
                    else:
                        self._send_slowly(b"")
        except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001 - It ends the connection.
            self._fail(error)
        if self._sent_future is not None and not self._staged and not self._sent_future.done():
            self._sent_future.set_result(None)

    def _staged_response(self, request: Request, fields: asyncio.Future[Fields | None]) -> bytes | None:
        """Encode the response of a staged request, or that of its error; None if there is none."""
        if fields.cancelled():
            raise ConnectionResetError("a request was given up")
        failure = fields.exception()
        if isinstance(failure, ConnectionAbortedError):  # Raised here, it would refer to the request by its traceback.
            self._fail(failure)
            return None
        try:
            found = fields.result()
            return None if found is None else self._server.encode(request, found)
        except Exception as error:  # noqa: BLE001 - Its client gets the code.
            return self._server.failure(request, error)

    def _end_staged(self) -> None:
        """Let another request take the place of the first staged one, whose response is sent."""
        self._staged.popleft()
        self._slots.release()

    def _send_slowly(self, response: bytes) -> None:
        """Send the response of the first staged request by a task, which waits for the client."""
        self._sender = asyncio.get_running_loop().create_task(self._send(response))
        self._sender.add_done_callback(self._on_sent_slowly)

    def _on_sent_slowly(self, task: asyncio.Task[None]) -> None:
        self._sender = None
        if task.cancelled() or task.exception() is not None:
            self._fail(ConnectionResetError("a request was given up") if task.cancelled() else task.exception())
            return
        self._end_staged()
        self._send_ready()

    def _fail(self, error: BaseException | None) -> None:
        """End the connection by an error."""
        self._failure = error
        if self._serve_task is not None:
            self._serve_task.cancel()

    async def _wait_until_sent(self) -> None:
        """Wait until all staged requests have their responses."""
        while self._staged and self._failure is None:
            self._sent_future = asyncio.get_running_loop().create_future()
            await self._sent_future
        if self._failure is not None:
            raise self._failure

    async def _send(self, response: bytes | None) -> None:
        """Send a response, unless none are sent any more, and return its bytes to the room."""
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
        return waited >= (SHORT_WRITE_TIMEOUT if self._client.room.has_waiters else WRITE_TIMEOUT)

    async def end(self, *, at_once: bool) -> None:
        """Close the connection. Its requests run on, and their bytes count as long as they are in memory."""
        self._is_closed = True
        self._stream.on_end = None  # It refers to the connection: only the collector of cycles would end them.
        if self._idle_timer is not None:
            self._idle_timer.cancel()
        if self._sender is not None:
            self._sender.remove_done_callback(self._on_sent_slowly)
            self._sender.cancel()
        for _, fields in self._staged:
            fields.remove_done_callback(self._send_ready)
            if self._server.is_draining:  # The grace period has passed.
                fields.cancel()
            fields.add_done_callback(_log_late_error)
        self._failure = None  # Its traceback refers to the connection.
        self._client.room.remove(self._unsent_bytes)
        with suppress(asyncio.CancelledError):
            await self._stream.close(linger=0 if at_once else _LINGER)


def _is_of_transaction(request: Request) -> bool:
    """Whether a request is of a transaction, or ends earlier ones: a client that gave it up repeats it, or aborts."""
    return request.api in _TRANSACTION_APIS or (
        request.api == Api.PRODUCE and field_value(request.body, "transactional_id") is not None
    )


def _log_late_error(fields: asyncio.Future[Fields | None]) -> None:
    """Log the error of a request whose connection was closed."""
    if not fields.cancelled() and (error := fields.exception()) is not None:
        _LOG.debug("a request failed after its connection", exc_info=error, extra={"error": repr(error)})


def _keep_alive(transport: asyncio.Transport) -> None:
    """Let TCP probe the connection, so that one whose client has vanished ends."""
    connected = transport.get_extra_info("socket")
    if connected is not None:
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in _PROBES.items():
            if hasattr(socket, name):
                connected.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
