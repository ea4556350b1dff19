"""A gateway: what it is made of, started and stopped."""

from __future__ import annotations

import asyncio
import signal
import socket
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor

from kio.schema.errors import ErrorCode

from txnstore.connection import Connection
from txnstore.gateway.apis import Api
from txnstore.gateway.commits import Commits
from txnstore.gateway.fetch import Fetch
from txnstore.gateway.freshness import Freshness
from txnstore.gateway.groups.coordinator import GroupCoordinator
from txnstore.gateway.groups.handlers import ClassicGroups
from txnstore.gateway.groups.offsets import GroupOffsets
from txnstore.gateway.groups.stored import ChainGenerations
from txnstore.gateway.hot import HotBatches
from txnstore.gateway.metadata import Metadata, versions_fields
from txnstore.gateway.offsets import Offsets
from txnstore.gateway.produce import Produce
from txnstore.gateway.properties import Properties
from txnstore.gateway.security import OPEN, Security
from txnstore.gateway.server import Fields, Handler, Peer, Server
from txnstore.gateway.services import Node, Services
from txnstore.gateway.sessions import Sessions
from txnstore.gateway.transactions import Transactions
from txnstore.gateway.wire import Request

#: Threads that wait for the storage.
_THREADS = 64
#: Seconds that a gateway waits for requests which have begun, when it is stopped.
GRACE = 10.0


class Gateway:
    """A gateway on a store; made and used in one event loop.

    Args:
        connection: The connection to the store.
        properties: Its properties.
        bound: The socket to listen on.
        advertised: The address and the port that clients connect to; None: those of the socket.
        security: How clients are known, and whether connections are encrypted.
    """

    def __init__(
        self,
        connection: Connection,
        properties: Properties,
        bound: socket.socket,
        advertised: tuple[str, int] | None = None,
        security: Security = OPEN,
    ) -> None:
        self._bound, self._tls = bound, security.tls
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="gateway")
        self._freshness = Freshness(connection, self._threads)
        host, port = advertised or bound.getsockname()[:2]
        node = Node(0, host, port)
        commits = Commits(connection, self._threads, self._freshness.note)
        sessions = Sessions(self._freshness, commits)
        services = Services(connection, self._threads, commits, sessions, self._freshness, properties, node, (node,))
        hot, offsets = HotBatches(), GroupOffsets(services)
        self._produce = Produce(services, hot)
        generations = ChainGenerations(connection, self._freshness, commits)
        self._groups = GroupCoordinator(generations, properties, connection.runtime)
        self._handlers = _handlers(
            [
                Metadata(services).handlers(),
                self._produce.handlers(),
                Fetch(services, hot).handlers(),
                Offsets(services).handlers(),
                offsets.handlers(),
                ClassicGroups(services, self._groups).handlers(),
                Transactions(services, offsets).handlers(),
                security.handlers(),
            ]
        )
        self._server = Server(
            self._handlers,
            lambda: versions_fields(self._handlers, ErrorCode.unsupported_version),
            authenticates=security.users is not None,
        )

    async def start(self) -> None:
        """Listen."""
        await self._server.listen(self._bound, self._tls)

    async def close(self) -> None:
        """Take no more requests, and end those that have begun."""
        await self._server.close(GRACE)
        await self._groups.close()
        await self._produce.close()
        await self._freshness.close()
        self._threads.shutdown(wait=True, cancel_futures=True)


def _handlers(parts: Iterable[dict[Api, Handler]]) -> dict[Api, Handler]:
    """All handlers, and that of ApiVersions, which lists them."""
    handlers: dict[Api, Handler] = {}

    async def api_versions(request: Request, peer: Peer) -> Fields:  # noqa: ARG001 - A handler takes both.
        return versions_fields(handlers)

    handlers[Api.API_VERSIONS] = api_versions
    for part in parts:
        handlers.update(part)
    return handlers


async def run(
    connection: Connection,
    properties: Properties,
    bound: socket.socket,
    advertised: tuple[str, int] | None,
    security: Security,
    ready: Callable[[], None],
) -> None:
    """Run a gateway until SIGTERM or SIGINT.

    Args:
        connection: The connection to the store.
        properties: Its properties.
        bound: The socket to listen on.
        advertised: The address and the port that clients connect to; None: those of the socket.
        security: How clients are known, and whether connections are encrypted.
        ready: Called when clients can connect.
    """
    loop, ended = asyncio.get_running_loop(), asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, ended.set)
    gateway = Gateway(connection, properties, bound, advertised, security)
    await gateway.start()
    ready()
    try:
        await ended.wait()
    finally:
        await gateway.close()
