"""Processes of gateways, the network between them and their clients, and what each believes of the others.

A gateway here is the real :class:`~txnstore.gateway.gateway.Gateway`, with its loop and its threads as tasks of the
scheduler. Only sockets are left out: the listener and the questions to its peers. The clients' requests are put into
the loop, and may be lost, given up, or late; so may be what a gateway knows of the others.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from kio.schema.errors import ErrorCode

from tests.harness.simulation.actor import Actor
from tests.harness.simulation.creates import Interrupted
from tests.harness.simulation.loops import ScheduledLoop, Waiter
from tests.harness.simulation.runtime import TaskExecutor
from tests.harness.simulation.storage import Mishap, Step
from tests.harness.simulation.world import Process, World
from tests.helpers.connections import connection_of
from txnstore.core.routing import chain_of_group
from txnstore.errors import CorruptionError, StorageError, StoreNotFoundError, TxnStoreError
from txnstore.gateway import gateway as module
from txnstore.gateway.apis import Api
from txnstore.gateway.errors import code_of
from txnstore.gateway.gateway import Gateway
from txnstore.gateway.peers import Peers
from txnstore.gateway.server import Client, Traffic
from txnstore.gateway.wire import Request, has_error_code
from txnstore.testing.faults import SimulatedCrash

#: A process that stood still for longer closes all connections (``server.py``), and its peers call it dead.
_SUSPENDED_MS = 3_000
_PORT = 9092


@dataclass(eq=False, slots=True)
class Call:
    """A request of a client that has arrived at a gateway.

    Attributes:
        request: The request.
        waiter: Who waits for the answer.
        answer: The fields of the response.
        is_closed: Whether its connection was closed before that.
        task: What handles it.
    """

    request: Request
    waiter: Waiter
    answer: Mapping[str, Any] | None = None
    is_closed: bool = False
    task: asyncio.Task[None] | None = field(default=None, repr=False)

    @property
    def is_done(self) -> bool:
        """Whether its client need not wait any longer."""
        return self.answer is not None or self.is_closed


class _Listener:
    """In the place of the listener: clients call the handlers."""

    def __init__(self, handlers: Mapping[Any, Any], *_: Any, **__: Any) -> None:
        self.handlers = handlers
        self.traffic = Traffic()

    async def listen(self, *_: object, tls: object = None) -> None:
        """No client connects."""

    async def close(self, _grace: float) -> bool:
        """No connection is open."""
        return True


class _Peers(Peers):
    """What a gateway believes of the others: it learns late when they start and end, and is sometimes wrong."""

    async def start(self) -> None:
        self.believe(_node().seen())

    async def close(self) -> None:
        pass

    async def confirm(self, names: Collection[tuple[int, str]]) -> None:
        """It believes the last report."""

    def believe(self, live: set[int]) -> None:
        """Take these for the gateways that live."""
        nodes = tuple(
            sorted(node for node in (*self._other_nodes, self.own) if node.node_id in live or node == self.own)
        )
        if nodes != self.live:
            self.live = nodes
            self._on_change()


class _Bound:
    """In the place of the socket."""

    def __init__(self, host: str) -> None:
        self._host = host

    def getsockname(self) -> tuple[str, int]:
        """Its address."""
        return self._host, _PORT


class _NodeLoop(ScheduledLoop):
    """The loop of a gateway; its gateway's parts find their process by it."""

    node: Node
    threads: TaskExecutor


def _node() -> Node:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, _NodeLoop)
    return loop.node


def _threads(*_: object, **__: object) -> TaskExecutor:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, _NodeLoop)
    return loop.threads


@contextmanager
def without_sockets() -> Iterator[None]:
    """Inside the block, gateways have neither sockets nor threads of their own."""
    replaced: dict[str, Any] = {
        "ThreadPoolExecutor": _threads,
        "Peers": _Peers,
        "Server": _Listener,
        "_max_connections": lambda: 1,
        "_warm_up": lambda: None,
    }
    before = {name: getattr(module, name) for name in replaced}
    try:
        for name, part in replaced.items():
            setattr(module, name, part)
        yield
    finally:
        for name, part in before.items():
            setattr(module, name, part)


class Node(Actor):
    """Serves clients, as one process after the other, until all clients have ended."""

    def __init__(self, world: World, name: str) -> None:
        super().__init__(world, name)
        self.number = len(world.nodes)
        self.host = f"gateway-{self.number}"
        world.nodes.append(self)
        #: The gateway of the process that runs, its loop, and its process; None between two.
        self.gateway: Gateway | None = None
        self.loop: _NodeLoop | None = None
        self.process: Process | None = None
        self._ended: asyncio.Event | None = None
        self._frozen_until = -1
        #: The requests under way, in the order of their arrival.
        self._calls: dict[Call, None] = {}
        self._again = Waiter(world.scheduler)
        self._pauses = Mishap.PAUSE in world.settings.mishaps

    # Used by clients --------------------------------------------------------------------------------------------------

    @property
    def is_up(self) -> bool:
        """Whether a client can connect."""
        return self.gateway is not None and self.process is not None and not self.process.storage.dead

    def leader(self, group: str) -> Node:
        """Whom it names as the coordinator of a group."""
        assert self.gateway is not None
        chain = chain_of_group(group, self.world.settings.chains)
        return self.world.nodes[self.gateway._peers.leader(chain).node_id]

    def arrive(self, call: Call) -> None:
        """A request arrives; a process that is not there closes its connection."""
        if self.loop is None or not self.is_up:
            call.is_closed = True
            call.waiter.wake()
            return
        self._calls[call] = None
        self.loop.call_soon_threadsafe(self._begin, call)

    def end(self) -> None:
        """All clients have ended."""
        self.left = 0
        self._again.wake()
        if self.loop is not None and self._ended is not None:
            self.loop.call_soon_threadsafe(self._ended.set)

    # A process --------------------------------------------------------------------------------------------------------

    def run(self) -> None:
        while self.left > 0:
            process: Process | None = None
            try:
                process = self.open_process()
                self.live(process)
                process.storage.crash()
            except (SimulatedCrash, Interrupted, CorruptionError, StoreNotFoundError) as error:
                if isinstance(error, TxnStoreError) and not self.world.explains(error):
                    raise
                if process is not None:
                    process.storage.crash()
            except StorageError:
                pass  # The store could not be opened.
            if self.left > 0:
                self._again.wait(self.rng.choice((10, 1_000, 20_000)))

    def live(self, process: Process) -> None:
        scheduler = self.world.scheduler
        loop = self.loop = _NodeLoop(scheduler, self.rng, self._turn)
        loop.node, loop.threads = self, TaskExecutor(scheduler, self.rng, (3, 3, 3, 40))
        loop.set_exception_handler(self._failed)
        self.process = process
        try:
            loop.run_until_complete(self._serve(process))
        finally:
            self.gateway = self.loop = self._ended = None
            process.storage.crash()  # What its threads still do is in vain.
            self._close_connections()
            loop.bury()
            self._tell_others()

    async def _serve(self, process: Process) -> None:
        self._ended = asyncio.Event()
        if self.left <= 0:  # The clients have ended while the store was opened.
            self._ended.set()
        addresses = [(node.host, _PORT) for node in self.world.nodes]
        bound: Any = _Bound(self.host)
        gateway = Gateway(connection_of(process.store), self.world.gateway_properties, bound, None, addresses)
        loop = asyncio.get_running_loop()
        self.gateway = gateway
        await gateway.start()
        loop.set_exception_handler(self._failed)
        self._tell_others()
        watch = loop.create_task(self._watch())
        try:
            async with asyncio.timeout(self.rng.choice((None, None, 20, 200))):
                await self._ended.wait()
        except TimeoutError:
            pass
        finally:
            watch.cancel()
        await gateway.close()

    def _failed(self, _loop: asyncio.AbstractEventLoop, context: Mapping[str, Any]) -> None:
        error = context.get("exception")
        if self.process is not None and not self.process.storage.dead and not isinstance(error, SimulatedCrash):
            self.world.anomalies.append(f"failure-of-a-gateway: {context['message']}: {error!r}")

    def _turn(self) -> None:
        """Before each round of callbacks: the process may be dead, or stand still for a while."""
        assert self.process is not None
        if self._pauses and self.rng.random() < self.world.settings.rate / 40:
            ms = self.rng.choice((500, 4_000, 60_000, 400_000))
            now = self.world.scheduler.now
            self.world.trace.append(Step(now, self.process.name, "stand still", "", Mishap.PAUSE.value, f"{ms} ms"))
            self._frozen_until = now + ms
            if ms > _SUSPENDED_MS:
                self.world.scheduler.later(_SUSPENDED_MS, self._tell_others)
            self.world.scheduler.sleep(ms)
            if ms > _SUSPENDED_MS:
                self._close_connections()
                self._tell_others()
        if self.process.storage.dead:
            raise SimulatedCrash(f"{self.process.name} died")

    # Peers ------------------------------------------------------------------------------------------------------------

    def seen(self) -> set[int]:
        """The gateways that answer now; now and then one of them cannot be reached."""
        now = self.world.scheduler.now
        up = {node.number for node in self.world.nodes if node.is_up and now >= node._frozen_until}
        wrong = self.world.settings.mishaps and self.rng.random() < 0.1
        return {self.number} if wrong else up

    def _tell_others(self) -> None:
        """This gateway has started or ended; the others notice it within four seconds."""
        for node in self.world.nodes:
            self.world.scheduler.later(node.rng.randrange(1, 4_000), node._look)

    def _look(self) -> None:
        if self.loop is not None and self.gateway is not None and self.is_up:
            peers: Any = self.gateway._peers
            self.loop.call_soon_threadsafe(lambda: peers.believe(self.seen()))

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(self.rng.choice((2, 20, 100)))
            self._look()

    # Requests ---------------------------------------------------------------------------------------------------------

    def _begin(self, call: Call) -> None:
        assert self.loop is not None
        if call.is_closed:
            return
        call.task = self.loop.create_task(self._handle(call))

    async def _handle(self, call: Call) -> None:
        assert self.gateway is not None
        listener: Any = self.gateway._server
        try:
            answer = await listener.handlers[call.request.api](call.request, Client("10.0.0.1", authenticated=True))
            if not isinstance(answer, Mapping):
                answer = await answer
        except ConnectionAbortedError:
            answer = None
        except Exception as error:  # noqa: BLE001 - The client gets it, where the response has a code for it.
            request, answer = call.request, None
            code = code_of(error, Api(request.api), request.version)
            if has_error_code(request.api, request.version):
                answer = {"error_code": code}
            if self.is_up and code is ErrorCode.unknown_server_error:
                self.world.anomalies.append(f"failed-request: {request}: {error!r}")
        self._calls.pop(call, None)
        if self.is_up and not call.is_closed:
            call.answer, call.is_closed = answer, answer is None
        else:
            call.is_closed = True
        call.waiter.wake()

    def _close_connections(self) -> None:
        """Clients notice it; a request under way ends where it waits."""
        for call in self._calls:
            call.is_closed = True
            if call.task is not None:
                call.task.cancel()
            call.waiter.wake()
        self._calls.clear()
