"""The HTTP server around the router: bounded in connections, bytes and time, whatever clients send.

A thread for each connection, at most :attr:`Limits.connections` of them. What a client can make the server hold is the
head of one request for each connection; bodies are read and dropped.
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

#: The bytes of a body, or of what follows a last response, that are read at a time.
_CHUNK = 64 << 10
#: Seconds in which what follows a last response is read.
_LINGER_S = 2.0
#: Statuses of responses without content, which have no length either.
_EMPTY = frozenset({204, 304})


@dataclass(frozen=True, slots=True)
class Limits:
    """What clients may occupy.

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
    """What arrives on a connection, within limits of bytes and time that are set for each request.

    Args:
        clock: Returns the time in milliseconds since some time in the past.
    """

    def __init__(self, connection: socket.socket, clock: Callable[[], int]) -> None:
        self._connection, self._clock = connection, clock
        #: The time of the clock at which reads end.
        self._deadline = 0
        #: Seconds after the next byte at which they do; None: the deadline stays.
        self._then: float | None = None
        #: The bytes that may arrive before another limit is set.
        self._left = 0

    @property
    def waits(self) -> bool:
        """Whether no byte has arrived since :meth:`wait`."""
        return self._then is not None

    def wait(self, size: int, seconds: float, then: float) -> None:
        """Allow ``size`` bytes: the first one within ``seconds``, all others within ``then`` seconds after it."""
        self._left, self._then = size, then
        self._deadline = self._clock() + round(seconds * 1000)

    def allow(self, size: int) -> None:
        """Allow ``size`` bytes, until the same deadline."""
        self._left = size

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        """Read some bytes.

        Raises:
            TimeoutError: The time has passed.
            _TooLongError: All bytes that were allowed have arrived.
        """
        if self._left <= 0:
            raise _TooLongError
        rest = self._deadline - self._clock()
        if rest <= 0:
            raise TimeoutError
        self._connection.settimeout(rest / 1000)
        size = self._connection.recv_into(memoryview(buffer)[: self._left])
        self._left -= size
        if size and self._then is not None:
            self._deadline, self._then = self._clock() + round(self._then * 1000), None
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
        """Read a request; returns the response to it, None if no request has come."""
        limits = self.server.limits
        self._incoming.wait(limits.head_bytes, limits.idle_s, limits.request_s)
        try:
            if not self._read_request():
                return None
        except RefusedError as refused:
            return self._refused(refused)
        except _TooLongError:
            return self._refused(RefusedError(431, "BadRequestException", "the headers of the request are too long"))
        except TimeoutError:
            if self._incoming.waits:
                return None
            return self._refused(RefusedError(408, "BadRequestException", "the request did not arrive in time"))
        headers = {name.lower(): value for name, value in self.headers.items()}
        return self.server.answer(Request(self.command, self.path, headers))

    def _refused(self, refused: RefusedError) -> Response:
        """The response to bytes that are no request, after which the server ends the connection."""
        self.close_connection = self._unread = True
        return refused.response

    def _read_request(self) -> bool:
        """Read a request with its body; False if there is none."""
        most = self.server.limits.line_bytes
        self.raw_requestline = self.rfile.readline(most + 1)
        if not self.raw_requestline:
            return False
        if len(self.raw_requestline) > most:
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
        if len(length) > 18 or int(length) > self.server.limits.body_bytes:
            raise RefusedError(413, "BadRequestException", "the body of the request is too long")
        left = int(length)
        self._incoming.allow(left)
        while left > 0:
            data = self.rfile.read1(min(left, _CHUNK))
            if not data:
                raise RefusedError(400, "BadRequestException", "the body of the request is not complete")
            left -= len(data)

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Refuse what the base class cannot parse."""
        raise RefusedError(int(code), "BadRequestException", message or "this is no request of HTTP/1.1")

    def _send(self, response: Response) -> None:
        # The time for all of it: sendall takes the timeout of the socket for that.
        self.request.settimeout(self.server.limits.response_s)
        self.send_response(response.status)
        for name, value in response.headers:
            self.send_header(name, value)
        if response.status not in _EMPTY:
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
        """Read what still arrives: unread bytes would make the system reset the connection, and drop the response."""
        with suppress(OSError, _TooLongError):
            self.request.shutdown(socket.SHUT_WR)
            self._incoming.wait(self.server.limits.body_bytes, _LINGER_S, _LINGER_S)
            while self.rfile.read1(_CHUNK):
                pass

    def version_string(self) -> str:
        return "txnstore"

    def log_request(self, code: int | str = "-", size: int | str = "-") -> None:
        """Nothing: each answer is in the log."""

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing: what is wrong with a request is in its response."""


class CatalogServer(ThreadingHTTPServer):
    """Serves a catalog.

    Args:
        bound: The socket that listens; closed by :meth:`stop`.
        router: Answers the requests.
        clock: Returns the time in milliseconds since some time in the past: the real one, as sockets have.
        limits: What clients may occupy.
    """

    daemon_threads = True  # Those that wait for storage longer than the end does are left to the exit.

    def __init__(
        self, bound: socket.socket, router: Router, clock: Callable[[], int], limits: Limits | None = None
    ) -> None:
        super().__init__(bound.getsockname(), _Handler, bind_and_activate=False)
        self.socket.close()
        self.socket = bound
        self.router, self.clock, self.limits = router, clock, limits or Limits()
        #: Guards the field below; notified when a connection has ended.
        self._changed = threading.Condition()
        #: The open connections.
        self._open: set[Any] = set()

    def answer(self, request: Request) -> Response:
        """The response to a request, also if the server has an error."""
        try:
            return self.router.answer(request)
        except Exception:  # noqa: BLE001 - The client gets a response whatever fails.
            _LOG.exception("a request failed", extra={"target": request.target})
            return RefusedError(500, "ServiceFailureException", "the server has an error: see its log").response

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self._admitted(request):
            self._refuse(request)
            return
        try:
            super().process_request(request, client_address)
        except BaseException:
            self._ended(request)
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._ended(request)

    def _admitted(self, connection: Any) -> bool:
        """Count a connection among the open ones; False if there are too many."""
        with self._changed:
            if len(self._open) >= self.limits.connections:
                return False
            self._open.add(connection)
            return True

    def _ended(self, connection: Any) -> None:
        with self._changed:
            self._open.discard(connection)
            self._changed.notify_all()

    def _refuse(self, connection: Any) -> None:
        """Refuse a connection, without a wait for its client."""
        body = RefusedError(503, "ServiceUnavailableException", "too many connections are open").response.body
        head = (
            "HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\nRetry-After: 1\r\n"
            f"Connection: close\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        connection.setblocking(False)
        with suppress(OSError):
            connection.send(head.encode("ascii") + body)
            connection.shutdown(socket.SHUT_WR)
            connection.recv(_CHUNK)
        self.shutdown_request(connection)
        _LOG.debug("a connection was refused: too many are open", extra={"connections": self.limits.connections})

    def handle_error(self, request: Any, client_address: Any) -> None:
        error = sys.exception()
        if isinstance(error, OSError):  # The client has ended it, before it was read from.
            _LOG.debug("a connection ended", extra={"error": error})
        else:
            _LOG.error("a connection failed", exc_info=error, extra={"error": error})

    def stop(self) -> None:
        """Accept no connection any more, answer the requests under way, and close all connections.

        :meth:`serve_forever` must run in another thread.
        """
        self.shutdown()
        with self._changed:
            for each in self._open:
                with suppress(OSError):
                    each.shutdown(socket.SHUT_RD)  # Idle ones end; the others do after their response.
            self._changed.wait_for(lambda: not self._open, self.limits.end_s)
        self.server_close()


def run(server: CatalogServer, ready: Callable[[], None]) -> None:
    """Serve until SIGTERM or an interrupt (Ctrl-C); a second one ends the process. Called in the main thread.

    Args:
        ready: Called as soon as connections are accepted.
    """
    sender, receiver = socket.socketpair()
    numbers = (signal.SIGTERM, signal.SIGINT)

    def end(*_: object) -> None:
        for number in numbers:
            signal.signal(number, signal.SIG_DFL)
        sender.send(b"\0")

    with sender, receiver:
        before = {number: signal.signal(number, end) for number in numbers}
        try:
            threading.Thread(target=server.serve_forever, name="txnstore-tables", daemon=True).start()
            ready()
            receiver.recv(1)
            server.stop()
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
