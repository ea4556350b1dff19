"""A gateway in a thread of the test's process, on a socket of 127.0.0.1."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import txnstore
from txnstore.gateway.gateway import Gateway
from txnstore.gateway.properties import Properties
from txnstore.gateway.security import OPEN, Security

#: Members join at once: no test waits for others.
QUICK = {"group.initial.rebalance.delay.ms": "0"}


class RunningGateway:
    """A gateway that clients can connect to.

    Attributes:
        address: Its host and port.
        bootstrap: The same, as clients write it.
    """

    def __init__(
        self,
        store: txnstore.Store,
        properties: Mapping[str, str] | None = None,
        security: Security = OPEN,
        bound: socket.socket | None = None,
        peers: Sequence[tuple[str, int]] = (),
        rack: str = "",
    ) -> None:
        self._peers, self._rack = peers, rack
        self._store = store
        self._properties = Properties.from_mapping({**QUICK, **(properties or {})})
        self._security = security
        bound = self._bound = bound or socket.create_server(("127.0.0.1", 0))
        self.address: tuple[str, int] = bound.getsockname()
        self.bootstrap = f"127.0.0.1:{self.address[1]}"
        self._ready, self._failed = threading.Event(), list[BaseException]()
        self._thread = threading.Thread(target=self._run, name="gateway of a test", daemon=True)

    def start(self) -> None:
        """Start it; returns when it listens."""
        self._thread.start()
        self._ready.wait()
        if self._failed:
            raise self._failed[0]

    def stop(self) -> None:
        """End it, and wait for its end."""
        self._loop.call_soon_threadsafe(self._ended.set)
        self._thread.join()
        if self._failed:
            raise self._failed[0]

    def reload(self) -> None:
        """Let it look at its files now."""
        asyncio.run_coroutine_threadsafe(self._gateway.reload(), self._loop).result()

    def requests(self, api: str) -> int:
        """How many requests of an API it had."""
        return self._gateway.metrics().requests.get(api, 0)

    @contextmanager
    def running(self) -> Iterator[RunningGateway]:
        """In the block it runs."""
        self.start()
        try:
            yield self
        finally:
            self.stop()

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except BaseException as error:  # noqa: BLE001 - The test gets it.
            self._failed.append(error)
        finally:
            self._ready.set()

    async def _serve(self) -> None:
        self._loop, self._ended = asyncio.get_running_loop(), asyncio.Event()
        gateway = self._gateway = Gateway(
            self._store._connection, self._properties, self._bound, None, self._peers, self._security, rack=self._rack
        )
        try:
            await gateway.start()
            self._ready.set()
            await self._ended.wait()
        finally:
            await gateway.close()


@contextmanager
def serving(
    store: txnstore.Store, properties: Mapping[str, str] | None = None, security: Security = OPEN
) -> Iterator[RunningGateway]:
    """In the block a gateway serves the store."""
    with RunningGateway(store, properties, security).running() as gateway:
        yield gateway
