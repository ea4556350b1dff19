"""What a gateway knows of the store: the newest view, shared looks at the heads, and who waits for changes."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Collection, Iterator
from concurrent.futures import Executor
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from operator import is_, is_not
from typing import cast

from txnstore.connection import Connection
from txnstore.core.state import State
from txnstore.core.view import View
from txnstore.errors import TxnStoreError
from txnstore.gateway.logs import limited_logger, report_failure

_LOG = limited_logger(__name__)

#: Seconds between two looks at the heads of the chains while a client waits for records of other processes.
POLL = 0.1
#: Seconds between two checks for abandoned transactions with open records.
_UNBLOCK = 1.0
#: Seconds for which metadata are answered from the same view.
RECENT = 1.0


class _Arrival:
    """When a request arrived, by the clock of the loop, and the newest view then; None once it is handled."""

    __slots__ = ("at", "view")

    def __init__(self, at: float, view: View) -> None:
        self.at, self.view = at, cast("View | None", view)


#: The arrival of the request under way. Timers and tasks that a handler starts have it as well, but not the view.
_ARRIVAL: ContextVar[_Arrival | None] = ContextVar("_ARRIVAL", default=None)


class Freshness:
    """The newest view of the store that the gateway knows, and its refreshes.

    Args:
        threads: Runs what waits for the storage.
    """

    def __init__(self, connection: Connection, threads: Executor) -> None:
        self._connection = connection
        self._threads = threads
        self._loop = asyncio.get_running_loop()
        #: The look at the heads that runs now, and the one that will follow it: requests that come meanwhile share it.
        self._running: asyncio.Task[View] | None = None
        self._next: asyncio.Future[View] | None = None
        #: When the newest look at the heads began, by the clock of the loop.
        self._read_at = -math.inf
        self._changed: asyncio.Event = asyncio.Event()
        self._waiting = 0
        #: Whether the poller looks once more, though no request waits.
        self._is_wanted = False
        self._poller: asyncio.Task[None] | None = None
        #: The newest view that requests may see: that of a commit only after its callers have their answers.
        self.view = connection.view(refresh=False)

    @property
    def waiters(self) -> int:
        """The fetches under way, most of which wait for records."""
        return self._waiting

    async def head(self) -> View:
        """The view at the heads of the chains, read after this call: requests that wait share one look.

        A look that has begun before the call is not enough: it may have passed an entry that the client knows of.
        """
        if self._running is None:
            self._running = self._loop.create_task(self._look())
            self._running.add_done_callback(_retrieve)
            return await asyncio.shield(self._running)
        if self._next is None:
            self._next = self._loop.create_future()
            self._next.add_done_callback(_retrieve)
        return await asyncio.shield(self._next)

    async def recent(self, seconds: float | None = None) -> View:
        """A view that was read less than so many seconds ago, :data:`RECENT` by default.

        What others have changed since may be missing in it.
        """
        limit = RECENT if seconds is None else seconds
        return self.view if self._loop.time() - self._read_at < limit else await self.head()

    @contextmanager
    def request(self) -> Iterator[None]:
        """While the block runs, it handles a request that has just arrived."""
        arrival = _Arrival(self._loop.time(), self.view)
        _ARRIVAL.set(arrival)
        try:
            yield
        finally:
            arrival.view = None

    @property
    def view_at_arrival(self) -> View:
        """The newest view when the request under way arrived."""
        arrival = _ARRIVAL.get()
        return self.view if arrival is None or arrival.view is None else arrival.view

    async def since_request(self) -> View:
        """A view that was read after the request under way arrived: it asks for the heads once, whatever it names."""
        arrival = _ARRIVAL.get()
        return self.view if arrival is not None and self._read_at >= arrival.at else await self.head()

    async def unblocked(self, view: View, producer_ids: Collection[int]) -> View:
        """A view without the abandoned transactions of these producers, which hold back what a client waits for.

        Args:
            view: A view at the heads; returned if none of the transactions is abandoned.
            producer_ids: Whose transactions.
        """
        if not producer_ids:
            return view
        has_changed = await self._loop.run_in_executor(self._threads, self._connection.unblock, producer_ids)
        return await self.head() if has_changed else view

    async def _look(self) -> View:
        began = self._loop.time()
        try:
            view = await self._loop.run_in_executor(self._threads, self._connection.view)
            self._read_at = began
            self._show(view)
            return self.view
        finally:
            self._running = None
            waiting, self._next = self._next, None
            if waiting is not None:
                self._running = self._loop.create_task(self._look())
                self._running.add_done_callback(lambda task: _copy(task, waiting))

    # Waiting for changes ----------------------------------------------------------------------------------------------

    def note(self) -> None:
        """Show requests what the process knows of the store by now, and wake those that wait for a change."""
        view = self._connection.loaded_view()
        if view is not None:
            self._show(view)
        elif self._running is None:  # What is missing is read in a thread: here, all clients would wait for it.
            self._running = self._loop.create_task(self._look())
            self._running.add_done_callback(_report)

    def _show(self, view: View) -> None:
        """Show requests a view, as far as it is newer: of two views, each may know a chain better than the other."""
        states = tuple(map(_newer, self.view.states, view.states))
        if any(map(is_not, states, self.view.states)):
            self.view = view if all(map(is_, states, view.states)) else View(states)
            self._changed.set()
            self._changed = asyncio.Event()

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """While the block runs, the gateway looks for entries of other processes every :data:`POLL` seconds."""
        self._waiting += 1
        self._start_poller()
        try:
            yield
        finally:
            self._waiting -= 1

    def look_soon(self) -> None:
        """Look for entries of others once, within :data:`POLL` seconds: a client that does not wait asks again."""
        self._is_wanted = True
        self._start_poller()

    def _start_poller(self) -> None:
        if self._poller is None:
            self._poller = self._loop.create_task(self._poll())
            self._poller.add_done_callback(report_failure)

    async def change(self, since: View, seconds: float) -> None:
        """Wait until the view differs from ``since``, at most so many seconds."""
        changed = self._changed
        if self.view is not since or seconds <= 0:
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await changed.wait()

    async def _poll(self) -> None:
        """Look at the heads as long as anybody wants records; a failure is logged, and repeated."""
        unblocked_at = self._loop.time()
        try:
            while self._waiting or self._is_wanted:
                await asyncio.sleep(POLL)
                if not (self._waiting or self._is_wanted):
                    break
                self._is_wanted = False
                try:
                    view = await self.head()
                    if self._loop.time() - unblocked_at > _UNBLOCK and view.open_partitions:
                        unblocked_at = self._loop.time()
                        await self._loop.run_in_executor(self._threads, self._connection.unblock, _open_txns(view))
                        self.note()
                except TxnStoreError as error:
                    _LOG.warning("the heads of the chains cannot be read: %s", error, extra={"error": str(error)})
                    await asyncio.sleep(1)
        finally:
            self._poller = None

    async def close(self) -> None:
        """End the poller."""
        if self._poller is not None:
            self._poller.cancel()


def _open_txns(view: View) -> set[int]:
    """The producers with open records, also where no others follow: clients wait until they reach the end of a log."""
    return {producer_id for tp in view.open_partitions for producer_id in view.partitions[tp].open_txns}


def _newer(known: State, other: State) -> State:
    return other if other.sequence > known.sequence else known


def _report(look: asyncio.Task[View]) -> None:
    """Report the error of a look that no request waits for; a failure of the storage is no fault of the gateway."""
    error = None if look.cancelled() else look.exception()
    if isinstance(error, TxnStoreError):
        _LOG.warning("the heads of the chains cannot be read: %s", error, extra={"error": str(error)})
    else:
        report_failure(look)


def _retrieve(look: asyncio.Future[View]) -> None:
    """The error of a look: all that wait for it may have been cancelled, with their connections."""
    if not look.cancelled():
        look.exception()


def _copy(task: asyncio.Task[View], future: asyncio.Future[View]) -> None:
    if future.done():
        return
    if task.cancelled():
        future.cancel()
    elif (error := task.exception()) is not None:
        future.set_exception(error)
    else:
        future.set_result(task.result())
