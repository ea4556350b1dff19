"""A gateway: composition, start and stop."""

from __future__ import annotations

import asyncio
import gc
import resource
import signal
import socket
from collections.abc import Awaitable, Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

from kio.schema.errors import ErrorCode

from txnstore.connection import Connection
from txnstore.core.routing import chain_of_group
from txnstore.errors import StorageError, TxnStoreError
from txnstore.gateway.admin.handlers import admin_handlers
from txnstore.gateway.apis import Api
from txnstore.gateway.commits import Commits
from txnstore.gateway.fetch import Fetch
from txnstore.gateway.freshness import Freshness
from txnstore.gateway.groups.classic.coordinator import ClassicCoordinator
from txnstore.gateway.groups.consumer.coordinator import ConsumerCoordinator
from txnstore.gateway.groups.offsets import GroupOffsets
from txnstore.gateway.hot import HotBatches
from txnstore.gateway.logs import limited_logger, log_omitted, log_omitted_periodically, report_failure
from txnstore.gateway.metadata import Metadata, versions_fields
from txnstore.gateway.metrics import GatewayMetrics, MetricsServer
from txnstore.gateway.offsets import Offsets
from txnstore.gateway.peers import SOFTWARE, Node, Peers, rack_feature
from txnstore.gateway.produce import Produce
from txnstore.gateway.properties import Properties
from txnstore.gateway.security import OPEN, Security
from txnstore.gateway.server import Client, Fields, Handler, Result, Server
from txnstore.gateway.services import Services
from txnstore.gateway.sessions import Sessions
from txnstore.gateway.transactions import Transactions
from txnstore.gateway.wire import Request, field_value
from txnstore.gateway.workers import Siblings
from txnstore.phrases import address_text
from txnstore.storage.probe import check_writes
from txnstore.storage.redact import redact
from txnstore.threads import load

_LOG = limited_logger(__name__)

#: Threads that wait for the storage.
_THREADS = 64
#: The objects that are made, beyond those that end, before the youngest are looked at for cycles (Python: 700).
_COLLECT_AFTER = 20_000
#: Seconds that a gateway waits for requests which have begun, when it is stopped.
GRACE = 10.0
#: Seconds between two looks at the files of users, certificates and keys.
_WATCH = 2.0
#: Seconds between two attempts to read which groups to take over.
_TAKE_OVER_RETRY = 1.0
#: The most connections, the fewest whatever the limit of open files, and the files that the storage may need besides.
_MAX_CONNECTIONS, _MIN_CONNECTIONS, _OTHER_FILES = 20_000, 64, 512


class Gateway:
    """A gateway on a store; made and used in one event loop.

    Args:
        listener: The socket to listen on.
        advertised_address: The address and the port that clients connect to; None: those of the socket.
        peers: The addresses of all gateways of the store, in the same order at each of them, this one included; empty:
            there is only this one.
        security: How clients are known, and whether connections are encrypted.
        siblings: The other workers of this machine; None: it has none.
        rack: The zone of this gateway; empty: it has none.
    """

    def __init__(
        self,
        connection: Connection,
        properties: Properties,
        listener: socket.socket,
        advertised_address: tuple[str, int] | None = None,
        peers: Sequence[tuple[str, int]] = (),
        security: Security = OPEN,
        siblings: Siblings | None = None,
        rack: str = "",
    ) -> None:
        self._listeners = [listener] if siblings is None else [listener, siblings.shared]
        self._listener, self._security, self._url = listener, security, redact(connection.url)
        self._failures = 0
        self._taking_over: asyncio.Task[None] | None = None
        self._log_task: asyncio.Task[None] | None = None
        self._watch_task: asyncio.Task[None] | None = None
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="gateway")
        self._freshness = Freshness(connection, self._threads)
        host, port = advertised_address or listener.getsockname()[:2]
        nodes = [Node(number, *address) for number, address in enumerate(peers or [(host, port)])]
        own_node = next(node for node in nodes if (node.host, node.port) == (host, port))
        chains, encrypted = len(connection.chains), security.tls is not None
        self._peers = Peers(
            nodes,
            own_node,
            chains,
            connection.store_id,
            encrypted=encrypted,
            on_change=self._on_peer_change,
            workers=1 if siblings is None else siblings.count,
            local=None if siblings is None else siblings.local,
            rack=rack,
        )
        self._commits = commits = Commits(connection, self._threads, self._freshness.publish_loaded)
        sessions = Sessions(self._freshness, commits)
        services = Services(connection, self._threads, commits, sessions, self._freshness, properties, self._peers)
        self._hot_batches = HotBatches()
        self._produce = Produce(services, self._hot_batches)
        classic = ClassicCoordinator(services, self._coordinates)
        consumers = ConsumerCoordinator(services, self._coordinates)
        self._coordinators = classic, consumers
        offsets = GroupOffsets(services, classic)
        self._handlers = _handlers(
            services,
            [
                Metadata(services).handlers(),
                self._produce.handlers(),
                Fetch(services, self._hot_batches).handlers(),
                Offsets(services).handlers(),
                offsets.handlers(),
                classic.handlers(),
                consumers.handlers(),
                Transactions(services, offsets).handlers(),
                admin_handlers(services, classic, consumers),
                security.handlers(),
            ],
        )
        self._server = Server(
            self._handlers,
            lambda: versions_fields(self._handlers, ErrorCode.unsupported_version),
            authenticates=security.authenticates,
            principal_of=security.principal_of,
            max_connections=_max_connections(),
        )

    async def start(self) -> None:
        """Import the modules that the first request needs, and listen."""
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(self._on_loop_error)
        self._log_task = loop.create_task(log_omitted_periodically())
        self._log_task.add_done_callback(report_failure)
        if self._security.watched:
            self._watch_task = loop.create_task(self._watch())
            self._watch_task.add_done_callback(report_failure)
        await loop.run_in_executor(self._threads, _warm_up)
        address = address_text(*self._listener.getsockname()[:2])
        await self._server.listen(*self._listeners, tls=self._security.listener_context())
        await self._peers.start()
        if self._taking_over is None:
            self._take_over()  # No peer changed, so the view of the new connection is recent enough.
        extra = {"url": self._url, "address": address, "apis": len(self._handlers)}
        _LOG.info("the gateway listens", extra=extra)

    async def _watch(self) -> None:
        """Read files of users, certificates and keys again when they change."""
        while True:
            await asyncio.sleep(_WATCH)
            await self.reload()

    async def reload(self, *, force: bool = False) -> None:
        """Read the files of users, certificates and keys that have changed; by ``force`` all of them.

        New connections meet what is new. Those that are open stay as they are.
        """
        for watched in self._security.watched:
            await asyncio.get_running_loop().run_in_executor(self._threads, partial(watched.reload, force=force))

    def _coordinates(self, group: str) -> bool:
        """Whether this gateway is the coordinator of a group, as far as it can tell."""
        return self._peers.leader(chain_of_group(group, self._peers.chains), group) == self._peers.own

    def _on_peer_change(self) -> None:
        """Leave the groups that other gateways coordinate now, and take over those that this one does."""
        for coordinator in self._coordinators:
            coordinator.release()
        if self._taking_over is not None:
            self._taking_over.cancel()
        self._taking_over = asyncio.get_running_loop().create_task(self._take_over_stored())
        self._taking_over.add_done_callback(report_failure)

    async def _take_over_stored(self) -> None:
        """Take over groups as other gateways stored them last; retry until the heads can be read."""
        while True:
            try:
                await self._freshness.head()
            except TxnStoreError as error:
                _LOG.warning(
                    "the groups of a gateway that has ended cannot be read: %s", error, extra={"error": str(error)}
                )
                await asyncio.sleep(_TAKE_OVER_RETRY)
            else:
                return self._take_over()

    def _take_over(self) -> None:
        """Take over the groups in the known view that this gateway coordinates."""
        for coordinator in self._coordinators:
            coordinator.take_over()

    async def close(self) -> None:
        """Take no more requests, and end those that have begun, at the latest :data:`GRACE` seconds later."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + GRACE
        await self._peers.close()
        if self._taking_over is not None:
            self._taking_over.cancel()
        # Members that wait for others are answered by the group, so the listener need not wait for them.
        requests_ended, *_ = await asyncio.gather(
            self._server.close(GRACE),
            *(_ended_before(coordinator.close(), deadline) for coordinator in self._coordinators),
        )
        flush_ended = await _ended_before(self._produce.close(), max(deadline, loop.time() + 1))
        await self._freshness.close()
        for task in (self._log_task, self._watch_task):
            if task is not None:
                task.cancel()
        log_omitted(take_all=True)
        # A thread that still waits for the storage ends with its timeout; this call does not wait for it.
        self._threads.shutdown(wait=requests_ended and flush_ended, cancel_futures=True)
        extra = {"url": self._url, "requests": self._server.traffic.requests.total()}
        _LOG.info("the gateway has ended", extra=extra)

    def metrics(self) -> GatewayMetrics:
        """Return the counters of the gateway, without a request to the storage."""
        traffic, commits, hot = self._server.traffic, self._commits, self._hot_batches
        return GatewayMetrics(
            connections=traffic.connections,
            accepted=traffic.accepted,
            closed=dict(traffic.closed),
            requests=dict(traffic.requests),
            errors=dict(traffic.errors),
            bytes_in=traffic.bytes_in,
            bytes_out=traffic.bytes_out,
            held_bytes=self._server.budget.used,
            unsent_bytes=self._server.room.used,
            flushes=self._produce.flushes,
            batches=self._produce.batches,
            commits=commits.commits,
            commands=commits.commands,
            hot_bytes=hot.size,
            hot_hits=hot.hits,
            hot_misses=hot.misses,
            waiting_fetches=self._freshness.waiters,
            failures=self._failures,
        )

    def _on_loop_error(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Log and count an error of a callback or a background task. The gateway continues."""
        self._failures += 1
        error, exception = context["message"], context.get("exception")
        _LOG.error("the gateway continues after an error: %s", error, exc_info=exception, extra={"error": error})


def _check_writes(connection: Connection) -> None:
    """Log at the start that writes fail, if they do: a gateway that only reads may be wanted."""
    try:
        check_writes(connection.objects, connection.runtime.new_id)
    except StorageError as error:
        extra = {"url": redact(connection.url), "error": str(error)}
        _LOG.warning("nothing can be written to the store, clients can only read: %s", error, extra=extra)


async def _ended_before(work: Awaitable[None], deadline: float) -> bool:
    """Wait until ``work`` ends, and return whether it did before a time of the loop; log its error."""
    try:
        async with asyncio.timeout_at(deadline):
            await work
    except TimeoutError:
        return False
    except Exception as error:  # noqa: BLE001 - What remains is closed all the same.
        _LOG.exception("a part of the gateway has not ended in order", extra={"error": repr(error)})
    return True


def _max_connections() -> int:
    """The most connections that the limit of open files allows; raise that limit as far as possible."""
    soft_limit, hard_limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft_limit != resource.RLIM_INFINITY and (hard_limit == resource.RLIM_INFINITY or soft_limit < hard_limit):
        wanted_files = _MAX_CONNECTIONS + _OTHER_FILES
        raised_limit = max(
            soft_limit, wanted_files if hard_limit == resource.RLIM_INFINITY else min(hard_limit, wanted_files)
        )
        resource.setrlimit(resource.RLIMIT_NOFILE, (raised_limit, hard_limit))
        soft_limit = raised_limit
    return (
        _MAX_CONNECTIONS
        if soft_limit == resource.RLIM_INFINITY
        else max(min(_MAX_CONNECTIONS, soft_limit - _OTHER_FILES), _MIN_CONNECTIONS)
    )


def _warm_up() -> None:
    """Import the modules that the first Produce would import, which takes a second."""
    for name in ("pandas", "pyarrow.compute", "pyarrow.parquet"):
        load(name)


def _settle_memory() -> None:
    """Let the collector of cycles pass over what stays until the end, and look less often at what comes and goes.

    The modules have a million objects, and requests hardly any cycles: a tenth of the processor time was spent on them.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(_COLLECT_AFTER, *gc.get_threshold()[1:])


def _handlers(services: Services, handler_groups: Iterable[dict[Api, Handler]]) -> dict[Api, Handler]:
    """Return all handlers, which read the rules first, and that of ApiVersions."""
    handlers: dict[Api, Handler] = {}

    def reading_rules_first(handle: Handler) -> Handler:
        """Wrap a handler: read the rules of the store before it, so that it checks rights by the newest ones."""

        async def read_rules_and_handle(request: Request, client: Client) -> Result:
            with services.freshness.request():
                await services.read_rules()
                return await handle(request, client)

        return read_rules_and_handle

    async def api_versions(request: Request, client: Client) -> Fields:
        """Answer ApiVersions; another gateway also learns the rack of this one."""
        client.software = field_value(request.body, "client_software_name", "")
        version = field_value(request.body, "client_software_version", "")
        is_foreign = client.software == SOFTWARE and version != services.connection.store_id
        answer = versions_fields(handlers, ErrorCode.inconsistent_cluster_id if is_foreign else ErrorCode.none)
        rack = services.peers.rack(services.peers.own)
        if client.software == SOFTWARE and rack is not None:
            answer = {**answer, "supported_features": [*answer["supported_features"], rack_feature(rack)]}
        return answer

    handlers[Api.API_VERSIONS] = api_versions
    for part in handler_groups:
        handlers.update((api, reading_rules_first(handle)) for api, handle in part.items())
    return handlers


async def run(
    connection: Connection,
    properties: Properties,
    listener: socket.socket,
    advertised_address: tuple[str, int] | None,
    peers: Sequence[tuple[str, int]],
    security: Security,
    on_ready: Callable[[], None],
    metrics: tuple[socket.socket | None, Callable[[GatewayMetrics], str]] | None = None,
    siblings: Siblings | None = None,
    rack: str = "",
    problem: Callable[[], str] = str,
) -> None:
    """Run a gateway until SIGTERM or SIGINT; a second one ends the process at once.

    A worker ends by SIGTERM, once, and with its parent, which gets the signals of a terminal.

    Args:
        listener: The socket to listen on.
        advertised_address: The address and the port that clients connect to; None: those of the socket.
        peers: The addresses of all gateways of the store; empty: there is only this one.
        security: How clients are known, and whether connections are encrypted.
        on_ready: Called when clients can connect.
        metrics: The socket to serve metrics on, and what makes their text; None: they are not served. A worker has no
            such socket.
        siblings: The other workers of this machine; None: it has none.
        rack: The zone of this gateway; empty: it has none.
        problem: Returns why the process is not healthy, though the gateway serves; an empty text if it is.
    """
    loop, stop_signal = asyncio.get_running_loop(), asyncio.Event()

    def stop() -> None:
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)
            signal.signal(number, signal.SIG_DFL)
        stop_signal.set()

    if siblings is None:
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stop)
    else:
        loop.add_signal_handler(signal.SIGTERM, stop_signal.set)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    limited_logger("asyncio")  # It logs errors of accepting connections, which clients can cause.
    gateway = Gateway(connection, properties, listener, advertised_address, peers, security, siblings, rack)
    if security.watched:
        reloads = set[asyncio.Task[None]]()

        def reload() -> None:
            task = loop.create_task(gateway.reload(force=True))
            reloads.add(task)
            task.add_done_callback(reloads.discard)
            task.add_done_callback(report_failure)

        loop.add_signal_handler(signal.SIGHUP, reload)
    metrics_server: MetricsServer | None = None
    try:
        await asyncio.to_thread(_check_writes, connection)
        await gateway.start()
        if metrics is not None and metrics[0] is not None:
            metrics_server = MetricsServer(lambda: metrics[1](gateway.metrics()), problem)
            await metrics_server.listen(metrics[0])
        if siblings is not None:
            siblings.attach(stop_signal.set, lambda: "" if metrics is None else metrics[1](gateway.metrics()))
        _settle_memory()
        on_ready()
        await stop_signal.wait()
    finally:
        await gateway.close()
        if metrics_server is not None:
            metrics_server.close()
