"""The counters of a gateway, as plain values and as metric families of Prometheus."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple

_LOG = logging.getLogger(__name__)

#: The content type of the text.
_CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
#: The bytes of the longest request for metrics, and the seconds that one may take.
_MAX_REQUEST_BYTES, _TIMEOUT = 8 << 10, 5.0


@dataclass(frozen=True, slots=True)
class GatewayMetrics:
    """The counts of a gateway since its start, and the bytes that it holds.

    Attributes:
        connections: The connections that are open.
        accepted: The connections that were accepted.
        closed: The connections that the gateway has closed, by the reason: ``malformed`` (what arrived was no request),
            ``slow``, ``failed`` (a request failed that has no code for it), ``full`` (there were too many),
            ``suspended`` (the process was).
        requests: The requests by API.
        errors: The codes of errors in responses by their names.
        bytes_in: The bytes of requests.
        bytes_out: The bytes of responses.
        held_bytes: The bytes of the requests that are in memory.
        unsent_bytes: The bytes of the responses that are not sent.
        flushes: The times that batches of producers were taken together.
        batches: The batches that these flushes have converted.
        commits: The commits that were begun; each is an entry, if nothing else writes to the chain.
        commands: The commands in these commits.
        hot_bytes: The bytes of the newest batches that are kept.
        hot_hits: The batches that fetches found there.
        hot_misses: The batches that fetches did not find there.
        waiting_fetches: The fetches under way, most of which wait for records.
        failures: The errors outside of requests: each is logged with its traceback.
    """

    connections: int
    accepted: int
    closed: Mapping[str, int]
    requests: Mapping[str, int]
    errors: Mapping[str, int]
    bytes_in: int
    bytes_out: int
    held_bytes: int
    unsent_bytes: int
    flushes: int
    batches: int
    commits: int
    commands: int
    hot_bytes: int
    hot_hits: int
    hot_misses: int
    waiting_fetches: int
    failures: int


class MetricFamily(NamedTuple):
    """A metric family of Prometheus: one value, or one for each value of a label."""

    name: str
    help: str
    value: Callable[[GatewayMetrics], int | Mapping[str, int]]
    label: str | None = None
    kind: Literal["counter", "gauge"] = "counter"


FAMILIES: tuple[MetricFamily, ...] = (
    MetricFamily("gateway_connections", "Open connections.", lambda metrics: metrics.connections, kind="gauge"),
    MetricFamily("gateway_connections_accepted", "Accepted connections.", lambda metrics: metrics.accepted),
    MetricFamily(
        "gateway_connections_closed", "Connections that the gateway closed.", lambda metrics: metrics.closed, "reason"
    ),
    MetricFamily("gateway_requests", "Requests, by API.", lambda metrics: metrics.requests, "api"),
    MetricFamily("gateway_errors", "Codes of errors in responses.", lambda metrics: metrics.errors, "code"),
    MetricFamily("gateway_received_bytes", "Bytes of requests.", lambda metrics: metrics.bytes_in),
    MetricFamily("gateway_sent_bytes", "Bytes of responses.", lambda metrics: metrics.bytes_out),
    MetricFamily(
        "gateway_held_bytes", "Bytes of requests in memory.", lambda metrics: metrics.held_bytes, kind="gauge"
    ),
    MetricFamily(
        "gateway_unsent_bytes", "Bytes of unsent responses.", lambda metrics: metrics.unsent_bytes, kind="gauge"
    ),
    MetricFamily("gateway_flushes", "Times that batches were taken together.", lambda metrics: metrics.flushes),
    MetricFamily("gateway_flushed_batches", "Batches in these flushes.", lambda metrics: metrics.batches),
    MetricFamily("gateway_commits", "Commits of commands of clients.", lambda metrics: metrics.commits),
    MetricFamily("gateway_commands", "Commands in these commits.", lambda metrics: metrics.commands),
    MetricFamily("gateway_hot_bytes", "Bytes of the newest batches.", lambda metrics: metrics.hot_bytes, kind="gauge"),
    MetricFamily("gateway_hot_hits", "Batches that fetches found in memory.", lambda metrics: metrics.hot_hits),
    MetricFamily("gateway_hot_misses", "Batches that they did not find there.", lambda metrics: metrics.hot_misses),
    MetricFamily(
        "gateway_waiting_fetches",
        "Fetches under way, most of which wait for records.",
        lambda metrics: metrics.waiting_fetches,
        kind="gauge",
    ),
    MetricFamily("gateway_failures", "Errors of the gateway that no request has.", lambda metrics: metrics.failures),
)


#: The metrics of the parent of several workers: name, help and kind.
WORKER_FAMILIES: tuple[tuple[str, str, Literal["counter", "gauge"]], ...] = (
    ("gateway_workers", "Workers that serve.", "gauge"),
    ("gateway_worker_restarts", "Workers that have died, and were started again.", "counter"),
)


class MetricsServer:
    """Serves metrics to Prometheus: ``GET /metrics`` over HTTP/1.0; and ``GET /health``, with status 200 or 503.

    Args:
        text: Returns the text of a response, without a request to the storage; or awaits it.
        problem: Returns why the process is not healthy; an empty text if it is.
    """

    def __init__(self, text: Callable[[], str | Awaitable[str]], problem: Callable[[], str] = str) -> None:
        self._text, self._problem = text, problem
        self._server: asyncio.Server | None = None

    async def listen(self, listener: socket.socket) -> None:
        """Start to listen on a bound socket."""
        self._server = await asyncio.start_server(self._serve, sock=listener, limit=_MAX_REQUEST_BYTES)

    def close(self) -> None:
        """Stop listening."""
        if self._server is not None:
            self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer one request of HTTP/1.0, and close its connection."""
        try:
            async with asyncio.timeout(_TIMEOUT):
                head = await reader.readuntil(b"\r\n\r\n")
                writer.write(await self._response(head))
                await writer.drain()
                writer.close()
                await writer.wait_closed()
        except (OSError, EOFError, asyncio.LimitOverrunError, TimeoutError) as error:
            _LOG.debug("a request for metrics failed", extra={"reason": repr(error)})
        finally:
            writer.transport.abort()  # Without effect once it is closed.

    async def _response(self, head: bytes) -> bytes:
        """Answer ``/metrics`` and ``/health`` by HTTP 1.0; anything else is not found."""
        method, _, target_and_version = head.partition(b" ")
        path = target_and_version.partition(b" ")[0].partition(b"?")[0]
        status, content_type = "200 OK", "text/plain; charset=utf-8"
        if method in {b"GET", b"HEAD"} and path == b"/metrics":
            text, content_type = self._text(), _CONTENT_TYPE
            body = (text if isinstance(text, str) else await text).encode()
        elif method in {b"GET", b"HEAD"} and path == b"/health":
            problem = self._problem()
            status = "503 Service Unavailable" if problem else status
            body = f"{problem or 'ok'}\n".encode()
        else:
            return b"HTTP/1.0 404 Not Found\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
        header = f"HTTP/1.0 {status}\r\nContent-Type: {content_type}\r\nContent-Length: {len(body)}"
        return f"{header}\r\nConnection: close\r\n\r\n".encode() + (body if method == b"GET" else b"")
