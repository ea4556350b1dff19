"""The HTTP server around the router: bounded in connections, bytes and time, whatever clients send.

A thread for each connection, at most :attr:`Limits.connections` of them. The server holds at most the head of one
request for each connection; bodies are read and dropped.
"""

from __future__ import annotations

import io
import logging
import signal
import socket
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from txnstore.tables.serve.messages import RefusedError, Request, Response
from txnstore.tables.serve.routes import Router

_LOG = logging.getLogger(__name__)

#: The bytes that are read at a time of a body, or of input after the last response.
_CHUNK = 64 << 10
#: Seconds for which input after the last response is read.
_LINGER_S = 2.0
#: The most digits of a length that are parsed: more are too many bytes in any case.
_MAX_LENGTH_DIGITS = 18
#: Statuses of responses without content, which have no length either.
_WITHOUT_CONTENT = frozenset({204, 304})


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits on clients.

    Attributes:
        connections: The connections that are open at a time.
        line_bytes: The length of a request line.
        head_bytes: The length of a request line with its headers.
        body_bytes: The length of a body.
        idle_s: Seconds in which a connection waits for a request.
        request_s: Seconds in which a request arrives, from its first byte on.
        response_s: Seconds in which a client reads a response.
        end_s: Seconds in which requests under way are answered when the server ends.
    """

    connections: int = 64
    line_bytes: int = 8 << 10
    head_bytes: int = 32 << 10
    body_bytes: int = 1 << 20
    idle_s: float = 60.0
    request_s: float = 20.0
    response_s: float = 60.0
    end_s: float = 30.0


class _TooLongError(Exception):
    """A request has more bytes than it may have."""


class _Incoming(io.RawIOBase):
    """The input of a connection, within limits of bytes and time that are set for each request.

    Args:
        clock: Returns the time in milliseconds since some time in the past.
    """

    def __init__(self, connection: socket.socket, clock: Callable[[], int]) -> None:
        self._connection, self._clock = connection, clock
        #: The time of the clock at which reads end.
        self._deadline = 0
        #: The seconds after the first byte that become the deadline then; None: the deadline stays.
        self._seconds_after_first: float | None = None
        #: The bytes that may arrive before another limit is set.
        self._allowed_bytes = 0

    @property
    def waits(self) -> bool:
        """Whether no byte has arrived since :meth:`wait`."""
        return self._seconds_after_first is not None

    def wait(self, size: int, seconds: float, seconds_after_first: float) -> None:
        """Allow ``size`` bytes: the first within ``seconds``, all others within ``seconds_after_first``."""
        self._allowed_bytes, self._seconds_after_first = size, seconds_after_first
        self._deadline = self._clock() + round(seconds * 1000)

    def allow(self, size: int) -> None:
        """Allow ``size`` bytes, until the same deadline."""
        self._allowed_bytes = size

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        """Read some bytes.

        Raises:
            TimeoutError: The time has passed.
            _TooLongError: All bytes that were allowed have arrived.
        """
        if self._allowed_bytes <= 0:
            raise _TooLongError
        remaining_ms = self._deadline - self._clock()
        if remaining_ms <= 0:
            raise TimeoutError
        self._connection.settimeout(remaining_ms / 1000)
        size = self._connection.recv_into(memoryview(buffer)[: self._allowed_bytes])
        self._allowed_bytes -= size
        if size and self._seconds_after_first is not None:
            self._deadline, self._seconds_after_first = self._clock() + round(self._seconds_after_first * 1000), None
        return size


class _Handler(BaseHTTPRequestHandler):
    """Reads the requests of a connection, one after the other."""

    server: CatalogServer
    protocol_version = "HTTP/1.1"
    #: That of a request line without one; responses to HTTP/0.9 have no headers.
    default_request_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def setup(self) -> None:
        super().setup()
        self.rfile.close()
        self._incoming = _Incoming(self.request, self.server.clock)
        self.rfile = io.BufferedReader(self._incoming)
        #: Whether the client may still send bytes that the server does not read.
        self._unread = False

    def handle_one_request(self) -> None:
        """Answer one request; the connection stays open only if both sides want it."""
        self.close_connection = True
        self.command, self.path, self.request_version = "", "", self.default_request_version
        try:
            response = self._response()
            if response is not None:
                self._send(response)
        except OSError as error:
            _LOG.debug("a connection ended", extra={"error": error})
            self.close_connection = True

    def _response(self) -> Response | None:
        """Read a request, and return its response; None if none has arrived."""
        limits = self.server.limits
        self._incoming.wait(limits.head_bytes, limits.idle_s, limits.request_s)
        try:
            if not self._read_request():
                return None
        except RefusedError as refused:
            return self._refusal_response(refused)
        except _TooLongError:
            return self._refusal_response(
                RefusedError(431, "BadRequestException", "the headers of the request are too long")
            )
        except TimeoutError:
            if self._incoming.waits:
                return None
            return self._refusal_response(
                RefusedError(408, "BadRequestException", "the request did not arrive in time")
            )
        headers = {name.lower(): value for name, value in self.headers.items()}
        return self.server.answer(Request(self.command, self.path, headers))

    def _refusal_response(self, refused: RefusedError) -> Response:
        """The response to a malformed request, after which the server ends the connection."""
        self.close_connection = self._unread = True
        return refused.response

    def _read_request(self) -> bool:
        """Read a request with its body; False if there is none."""
        max_bytes = self.server.limits.line_bytes
        self.raw_requestline = self.rfile.readline(max_bytes + 1)
        if not self.raw_requestline:
            return False
        if len(self.raw_requestline) > max_bytes:
            raise RefusedError(414, "BadRequestException", "the target of the request is too long")
        if len(self.raw_requestline.split()) != 3:
            raise RefusedError(400, "BadRequestException", "this is no request of HTTP/1.1")
        if not self.parse_request():
            return False
        if self.headers.defects or any(name != name.strip() for name in self.headers):
            raise RefusedError(400, "BadRequestException", "the headers of the request are damaged")
        self._drop_body()
        return True

    def _drop_body(self) -> None:
        """Read the body, which no route needs; one of unknown length stays unread, and the connection ends."""
        lengths = set(self.headers.get_all("Content-Length", ()))
        if "Transfer-Encoding" in self.headers:
            self.close_connection = self._unread = True
            return
        if not lengths:
            return
        length = lengths.pop()
        if lengths or not (length.isascii() and length.isdecimal()):
            raise RefusedError(400, "BadRequestException", "the Content-Length of the request is no number")
        if len(length) > _MAX_LENGTH_DIGITS or int(length) > self.server.limits.body_bytes:
            raise RefusedError(413, "BadRequestException", "the body of the request is too long")
        remaining = int(length)
        self._incoming.allow(remaining)
        while remaining > 0:
            data = self.rfile.read1(min(remaining, _CHUNK))
            if not data:
                raise RefusedError(400, "BadRequestException", "the body of the request is not complete")
            remaining -= len(data)

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Refuse what the base class cannot parse."""
        raise RefusedError(int(code), "BadRequestException", message or "this is no request of HTTP/1.1")

    def _send(self, response: Response) -> None:
        """Send a response, within the time for all of its bytes."""
        # The timeout of the socket bounds the whole response: sendall applies it to all bytes together.
        self.request.settimeout(self.server.limits.response_s)
        self.send_response(response.status)
        for name, value in response.headers:
            self.send_header(name, value)
        if response.status not in _WITHOUT_CONTENT:
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(response.body)))
            self.send_header("Cache-Control", "no-cache")
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        if self.command != "HEAD" and response.body:
            self.wfile.write(response.body)
        extra = {"method": self.command, "target": self.path, "status": response.status}
        _LOG.debug("request answered", extra=extra)

    def finish(self) -> None:
        if self._unread:
            self._linger()
        super().finish()

    def _linger(self) -> None:
        """Read remaining input: unread bytes would make the system reset the connection, and drop the response."""
        with suppress(OSError, _TooLongError):
            self.request.shutdown(socket.SHUT_WR)
            self._incoming.wait(self.server.limits.body_bytes, _LINGER_S, _LINGER_S)
            while self.rfile.read1(_CHUNK):
                pass

    def version_string(self) -> str:
        return "txnstore"

    def log_request(self, code: int | str = "-", size: int | str = "-") -> None:
        """Do nothing: :meth:`_send` logs each response."""

    def log_message(self, format: str, *args: Any) -> None:
        """Do nothing: the response has the fault of a request."""


class CatalogServer(ThreadingHTTPServer):
    """Serves a catalog.

    Args:
        listener: The socket that listens; closed by :meth:`stop`.
        router: Answers the requests.
        clock: Returns the time in milliseconds since some time in the past: the real one, as sockets have.
        limits: The limits on clients.
    """

    daemon_threads = True  # Threads that wait for the storage longer than :meth:`stop` does end with the process.

    def __init__(
        self, listener: socket.socket, router: Router, clock: Callable[[], int], limits: Limits | None = None
    ) -> None:
        super().__init__(listener.getsockname(), _Handler, bind_and_activate=False)
        self.socket.close()
        self.socket = listener
        self.router, self.clock, self.limits = router, clock, limits or Limits()
        #: Guards the field below; notified when a connection has ended.
        self._connection_ended = threading.Condition()
        #: The open connections.
        self._open_connections: set[Any] = set()

    def answer(self, request: Request) -> Response:
        """Answer a request; an error of the server becomes a response, too."""
        try:
            return self.router.answer(request)
        except Exception:  # noqa: BLE001 - The client gets a response whatever fails.
            _LOG.exception("a request failed", extra={"target": request.target})
            return RefusedError(500, "ServiceFailureException", "the server has an error: see its log").response

    def process_request(self, request: Any, client_address: Any) -> None:
        """Serve a connection in a thread, or refuse it if there are too many."""
        if not self._admit(request):
            self._refuse(request)
            return
        try:
            super().process_request(request, client_address)
        except BaseException:
            self._on_connection_end(request)
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._on_connection_end(request)

    def _admit(self, connection: Any) -> bool:
        """Count a connection as open; return False if there are too many."""
        with self._connection_ended:
            if len(self._open_connections) >= self.limits.connections:
                return False
            self._open_connections.add(connection)
            return True

    def _on_connection_end(self, connection: Any) -> None:
        with self._connection_ended:
            self._open_connections.discard(connection)
            self._connection_ended.notify_all()

    def _refuse(self, connection: Any) -> None:
        """Refuse a connection without waiting for its client."""
        body = RefusedError(503, "ServiceUnavailableException", "too many connections are open").response.body
        head = (
            "HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\nRetry-After: 1\r\n"
            f"Connection: close\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        connection.setblocking(False)
        with suppress(OSError):
            connection.send(head.encode("ascii") + body)
            connection.shutdown(socket.SHUT_WR)
            connection.recv(_CHUNK)  # Unread input would make the system reset the connection, and drop this response.
        self.shutdown_request(connection)
        _LOG.debug("a connection was refused: too many are open", extra={"connections": self.limits.connections})

    def handle_error(self, request: Any, client_address: Any) -> None:
        error = sys.exception()
        if isinstance(error, OSError):  # The client ended the connection before it was read.
            _LOG.debug("a connection ended", extra={"error": error})
        else:
            _LOG.error("a connection failed", exc_info=error, extra={"error": error})

    def stop(self) -> None:
        """Accept no connection any more, answer the requests under way, and close all connections.

        :meth:`serve_forever` must run in another thread.
        """
        self.shutdown()
        with self._connection_ended:
            for connection in self._open_connections:
                with suppress(OSError):
                    connection.shutdown(socket.SHUT_RD)  # Idle connections end at once, others after their response.
            self._connection_ended.wait_for(lambda: not self._open_connections, self.limits.end_s)
        self.server_close()


def run(server: CatalogServer, ready: Callable[[], None]) -> None:
    """Serve until SIGTERM or an interrupt (Ctrl-C); a second one ends the process. Called in the main thread.

    Args:
        ready: Called as soon as connections are accepted.
    """
    sender, receiver = socket.socketpair()
    numbers = (signal.SIGTERM, signal.SIGINT)

    def stop(*_: object) -> None:
        for number in numbers:
            signal.signal(number, signal.SIG_DFL)
        sender.send(b"\0")

    with sender, receiver:
        old_handlers = {number: signal.signal(number, stop) for number in numbers}
        try:
            threading.Thread(target=server.serve_forever, name="txnstore-tables", daemon=True).start()
            ready()
            receiver.recv(1)
            server.stop()
        finally:
            for number, handler in old_handlers.items():
                signal.signal(number, handler)
