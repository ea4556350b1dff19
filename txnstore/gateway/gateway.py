"""A gateway: what it is made of, started and stopped."""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor

from kio.schema.errors import ErrorCode

from txnstore.connection import Connection
from txnstore.core.routing import chain_of_group
from txnstore.errors import TxnStoreError
from txnstore.gateway.apis import Api
from txnstore.gateway.commits import Commits
from txnstore.gateway.fetch import Fetch
from txnstore.gateway.freshness import Freshness
from txnstore.gateway.groups.consumer_handlers import ConsumerGroups
from txnstore.gateway.groups.coordinator import GroupCoordinator
from txnstore.gateway.groups.handlers import ClassicGroups
from txnstore.gateway.groups.offsets import GroupOffsets
from txnstore.gateway.groups.stored import ChainGenerations
from txnstore.gateway.hot import HotBatches
from txnstore.gateway.metadata import Metadata, versions_fields
from txnstore.gateway.offsets import Offsets
from txnstore.gateway.peers import Node, Peers
from txnstore.gateway.produce import Produce
from txnstore.gateway.properties import Properties
from txnstore.gateway.security import OPEN, Security
from txnstore.gateway.server import Fields, Handler, Peer, Server
from txnstore.gateway.services import Services
from txnstore.gateway.sessions import Sessions
from txnstore.gateway.transactions import Transactions
from txnstore.gateway.wire import Request

_LOG = logging.getLogger(__name__)

#: Seconds between two attempts to read the groups of other gateways.
_RETRY = 1.0
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
        peers: The addresses of all gateways of the store, in the same order at each of them, this one included; empty:
            there is only this one.
        security: How clients are known, and whether connections are encrypted.
    """

    def __init__(
        self,
        connection: Connection,
        properties: Properties,
        bound: socket.socket,
        advertised: tuple[str, int] | None = None,
        peers: Sequence[tuple[str, int]] = (),
        security: Security = OPEN,
    ) -> None:
        self._bound, self._tls = bound, security.tls
        self._taking_over: asyncio.Task[None] | None = None
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="gateway")
        self._freshness = Freshness(connection, self._threads)
        host, port = advertised or bound.getsockname()[:2]
        nodes = [Node(number, *address) for number, address in enumerate(peers or [(host, port)])]
        own = next(node for node in nodes if (node.host, node.port) == (host, port))
        chains, encrypted = len(connection.chains), security.tls is not None
        self._peers = Peers(nodes, own, chains, encrypted=encrypted, changed=self._peers_changed)
        commits = Commits(connection, self._threads, self._freshness.note)
        sessions = Sessions(self._freshness, commits)
        services = Services(connection, self._threads, commits, sessions, self._freshness, properties, self._peers)
        hot = HotBatches()
        self._produce = Produce(services, hot)
        generations = ChainGenerations(connection, self._freshness, commits)
        self._groups = GroupCoordinator(generations, properties, connection.runtime, self._coordinates)
        self._consumers = ConsumerGroups(services, self._coordinates)
        offsets = GroupOffsets(services, self._groups)
        self._handlers = _handlers(
            [
                Metadata(services).handlers(),
                self._produce.handlers(),
                Fetch(services, hot).handlers(),
                Offsets(services).handlers(),
                offsets.handlers(),
                ClassicGroups(services, self._groups).handlers(),
                self._consumers.handlers(),
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
        await self._peers.start()
        self._peers_changed()

    def _coordinates(self, group: str) -> bool:
        """Whether this gateway is the coordinator of a group, as far as it can tell."""
        return self._peers.leader(chain_of_group(group, self._peers.chains)) == self._peers.own

    def _peers_changed(self) -> None:
        """Leave the groups that other gateways coordinate now, and take over those that this one does."""
        self._groups.release()
        self._consumers.release()
        if self._taking_over is not None:
            self._taking_over.cancel()
        self._taking_over = asyncio.get_running_loop().create_task(self._take_over())

    async def _take_over(self) -> None:
        """Time the members of stored groups that this gateway coordinates: those whose clients are gone must expire."""
        while True:
            try:
                view = await self._freshness.head()  # Who led the groups before has changed them last.
                break
            except TxnStoreError as error:
                _LOG.warning("the groups of other gateways cannot be read: %s", error)
                await asyncio.sleep(_RETRY)
        self._consumers.take_over()
        stored = [name for name, group in view.groups.items() if group.classic is not None and group.classic.members]
        for name in filter(self._coordinates, stored):
            await self._groups.describe(name)

    async def close(self) -> None:
        """Take no more requests, and end those that have begun."""
        await self._peers.close()
        if self._taking_over is not None:
            self._taking_over.cancel()
        await self._server.close(GRACE)
        await self._groups.close()
        await self._consumers.close()
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
    peers: Sequence[tuple[str, int]],
    security: Security,
    ready: Callable[[], None],
) -> None:
    """Run a gateway until SIGTERM or SIGINT.

    Args:
        connection: The connection to the store.
        properties: Its properties.
        bound: The socket to listen on.
        advertised: The address and the port that clients connect to; None: those of the socket.
        peers: The addresses of all gateways of the store; empty: there is only this one.
        security: How clients are known, and whether connections are encrypted.
        ready: Called when clients can connect.
    """
    loop, ended = asyncio.get_running_loop(), asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, ended.set)
    gateway = Gateway(connection, properties, bound, advertised, peers, security)
    await gateway.start()
    ready()
    try:
        await ended.wait()
    finally:
        await gateway.close()
