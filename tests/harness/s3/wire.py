"""An HTTP proxy for an S3 server: logs every request, and injects network faults according to a plan."""

from __future__ import annotations

import asyncio
import hashlib
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from types import TracebackType
from typing import Self
from urllib.parse import parse_qsl, unquote, urlsplit

from tests.harness.s3.http import Message, body_of, read_head, read_response, status_of


class Break(Enum):
    """The kinds of network faults."""

    DROP_BEFORE = "drop-before"
    """The connection closes; the server does not receive the request."""
    DROP_AFTER = "drop-after"
    """The server executes the request; the connection closes without a response."""
    STATUS = "status"
    """The proxy answers with ``status`` and the S3 error ``code``; the server does not receive the request."""
    STATUS_AFTER = "status-after"
    """The server executes the request; the proxy answers with ``status`` and, if it is an error, ``code``."""
    ANSWER = "answer"
    """Something else answers with ``status``, ``headers`` and ``body``; the server does not receive the request."""
    ANSWER_AFTER = "answer-after"
    """The server executes the request; the answer is that of :attr:`ANSWER`."""
    ALTER = "alter"
    """The server executes the request; the last byte of its answer is altered, and its length stays."""
    CUT = "cut"
    """The server executes the request; the connection closes before the last byte of its answer."""
    UNCONDITIONAL = "unconditional"
    """The server executes the request; the answer is that of one that ignores its condition: 200, with an ETag."""
    HANG_AFTER = "hang-after"
    """The server executes the request; the response is delayed by ``delay_s``, so that the client's timeout passes."""


@dataclass(frozen=True, slots=True)
class WireFault:
    """A fault of one request.

    Attributes:
        what: The kind.
        status: The HTTP status, for :attr:`Break.STATUS` and :attr:`Break.STATUS_AFTER`.
        code: The S3 error code, for the same.
        delay_s: The delay in seconds, for :attr:`Break.HANG_AFTER`.
        body: The body of an answer that is not the server's, for :attr:`Break.ANSWER` and :attr:`Break.ANSWER_AFTER`.
        headers: Its headers, for the same.
    """

    what: Break
    status: int = 503
    code: str = "ServiceUnavailable"
    delay_s: float = 0.0
    body: bytes = b""
    headers: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class WireRequest:
    """A request on the wire.

    Attributes:
        n: Its number, from 1.
        kind: PUT, GET, HEAD, LIST, DELETE or POST.
        method: The HTTP method.
        bucket: The bucket.
        key: The key, without the bucket.
        query: The query parameters.
        headers: The headers; names are lower case.
        body_bytes: The size of the body.
        status: The HTTP status of the response; None before it, or without one.
    """

    n: int
    kind: str
    method: str
    bucket: str
    key: str
    query: dict[str, str]
    headers: dict[str, str]
    body_bytes: int
    status: int | None = None

    @property
    def conditional(self) -> bool:
        """Whether the request has ``If-None-Match: *``."""
        return self.headers.get("if-none-match") == "*"


WirePlan = Callable[[WireRequest], "WireFault | None"]


class RequestLog:
    """The proxy: ``with RequestLog(server_url) as log: … open a store at log.url …; log.counts()``.

    It listens on a free port of 127.0.0.1 and keeps connections alive on both sides.

    Args:
        upstream_url: The endpoint of the server.
        plan: Returns the fault of a request, or None; None for no faults.
        latency_s: A delay of every request in seconds, to simulate a remote server.
    """

    def __init__(self, upstream_url: str, plan: WirePlan | None = None, *, latency_s: float = 0.0) -> None:
        parts = urlsplit(upstream_url)
        self._upstream = (parts.hostname or "127.0.0.1", parts.port or 80)
        self.plan = plan
        self.latency_s = latency_s
        self.port = 0
        self._lock = threading.Lock()
        self._requests: list[WireRequest] = []
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._serving: set[asyncio.Task[None]] = set()

    @property
    def url(self) -> str:
        """The endpoint URL for clients."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def requests(self) -> Sequence[WireRequest]:
        """The requests since the start or the last :meth:`clear`, in order of arrival."""
        with self._lock:
            return list(self._requests)

    def clear(self) -> None:
        """Clear the log."""
        with self._lock:
            self._requests.clear()

    def counts(self) -> Counter[str]:
        """The number of requests by kind: PUT, GET, HEAD, LIST, DELETE, POST."""
        return Counter(request.kind for request in self.requests)

    def start(self) -> Self:
        """Start listening; returns itself."""
        ready = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(ready,), name="request-log", daemon=True)
        self._thread.start()
        ready.wait()
        return self

    def stop(self) -> None:
        """Close all connections and stop."""
        loop, thread = self._loop, self._thread
        if loop is not None and thread is not None:
            loop.call_soon_threadsafe(loop.stop)
            thread.join()
            self._loop = self._thread = None

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _run(self, ready: threading.Event) -> None:
        loop = self._loop = asyncio.new_event_loop()
        server = loop.run_until_complete(asyncio.start_server(self._serve, "127.0.0.1", 0, limit=1 << 20))
        self.port = server.sockets[0].getsockname()[1]
        ready.set()
        try:
            loop.run_forever()
        finally:
            # Accept no more; the server is closed after the connections that wait to be served, which need it.
            for listening in server.sockets:
                loop.remove_reader(listening.fileno())
            # The event loop serves the connections that it accepted last, and closes aborted ones, in later iterations.
            # Only tasks that serve one are cancelled: another one would leave its connection to the garbage collector.
            idle = 0
            while idle < 4:
                for task in self._serving:
                    task.cancel()
                loop.run_until_complete(asyncio.sleep(0))
                idle = 0 if asyncio.all_tasks(loop) else idle + 1
            server.close()
            loop.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Handle one client connection, with its own connection to the server."""
        server = _Upstream(*self._upstream)
        task = asyncio.current_task()
        assert task is not None
        self._serving.add(task)
        try:
            while (received := await _receive(reader, writer)) is not None:
                message, body = received
                request = self._admit(message, len(body))
                fault = self.plan(request) if self.plan is not None else None
                if self.latency_s:
                    await asyncio.sleep(self.latency_s)
                what = None if fault is None else fault.what
                if what is Break.DROP_BEFORE:
                    break
                if fault is not None and what in (Break.STATUS, Break.ANSWER):
                    response, keep = _injected(fault, head_only=request.method == "HEAD"), True
                else:
                    response, keep = await server.ask(message.raw + body, request.method)
                    if fault is not None:
                        answer, response = response, _changed(response, fault, body, head_only=request.method == "HEAD")
                        keep = keep or response is not answer  # An answer of the proxy announces no close.
                self._answered(request, status_of(response))
                if what is Break.DROP_AFTER:
                    break
                if fault is not None and what is Break.HANG_AFTER:
                    await asyncio.sleep(fault.delay_s)
                writer.write(response[:-1] if what is Break.CUT else response)
                await writer.drain()
                if what is Break.CUT:
                    writer.close()
                    break
                if not keep:
                    break
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            self._serving.discard(task)
            server.close()
            writer.transport.abort()

    def _admit(self, message: Message, body_bytes: int) -> WireRequest:
        method, target, _ = message.start.split(" ", 2)
        parts = urlsplit(target)
        query = dict(parse_qsl(parts.query, keep_blank_values=True))
        bucket, _, key = unquote(parts.path).lstrip("/").partition("/")
        kind = method
        if method == "GET" and not key:
            kind = "LIST"
        elif method == "POST" and "delete" in query:
            kind = "DELETE"
        with self._lock:
            n = len(self._requests) + 1
            request = WireRequest(n, kind, method, bucket, key, query, message.headers, body_bytes)
            self._requests.append(request)
        return request

    def _answered(self, request: WireRequest, status: int) -> None:
        with self._lock:
            for index in range(len(self._requests) - 1, -1, -1):
                if self._requests[index] is request:
                    self._requests[index] = replace(request, status=status)
                    return


class _Upstream:
    """A connection to the server, opened on demand, and again after the server closed it."""

    def __init__(self, host: str, port: int) -> None:
        self._address = (host, port)
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def ask(self, request: bytes, method: str) -> tuple[bytes, bool]:
        """Forward a request; returns the response, and whether the connection stays open after it."""
        if self._streams is None:
            self._streams = await asyncio.open_connection(*self._address)
        reader, writer = self._streams
        writer.write(request)
        await writer.drain()
        response, keep = await read_response(reader, method)
        if not keep:
            self.close()
        return response, keep

    def close(self) -> None:
        if self._streams is not None:
            self._streams[1].transport.abort()
            self._streams = None


async def _receive(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> tuple[Message, bytes] | None:
    """The next request of a client; None if it closed the connection."""
    message = await read_head(reader)
    if message is None:
        return None
    if message.headers.get("expect", "").lower() == "100-continue":
        writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        message = message.without("expect")
    return message, await body_of(message, reader)


def _changed(response: bytes, fault: WireFault, body: bytes, *, head_only: bool) -> bytes:
    """The response that a client gets for a request that the server has executed."""
    if fault.what is Break.ALTER:
        return response[:-1] + bytes([response[-1] ^ 1])
    if fault.what is Break.UNCONDITIONAL:
        etag = hashlib.md5(body, usedforsecurity=False).hexdigest()
        return _injected(WireFault(Break.ANSWER, 200, headers=(("ETag", f'"{etag}"'),)), head_only=head_only)
    if fault.what in (Break.STATUS_AFTER, Break.ANSWER_AFTER):
        return _injected(fault, head_only=head_only)
    return response


def _injected(fault: WireFault, *, head_only: bool) -> bytes:
    """The response of a fault: an error of S3, or for a status of success one without a body."""
    body = f'<?xml version="1.0"?><Error><Code>{fault.code}</Code><Message>injected</Message></Error>'.encode()
    if fault.status < 400:
        body = b""
    headers = [("Content-Type", "application/xml")]
    if fault.what in (Break.ANSWER, Break.ANSWER_AFTER):
        body, headers = fault.body, [*fault.headers]
    lines = "".join(f"{name}: {value}\r\n" for name, value in (*headers, ("Content-Length", str(len(body)))))
    head = f"HTTP/1.1 {fault.status} Injected\r\n{lines}\r\n"
    return head.encode() + (b"" if head_only else body)
