"""The view of the store that a gateway has: shared looks at the heads, and waits for changes."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Collection, Iterator, Sequence
from concurrent.futures import Executor
from contextlib import contextmanager
from contextvars import ContextVar
from operator import is_, is_not
from typing import Any, cast

from txnstore.connection import Connection
from txnstore.core.log.changes import changed_partitions
from txnstore.core.log.model import Partition
from txnstore.core.model import TopicPartition
from txnstore.core.state import State
from txnstore.core.view import View
from txnstore.errors import TxnStoreError
from txnstore.gateway.logs import limited_logger, report_failure

_LOG = limited_logger(__name__)

#: Seconds between two looks at the heads of the chains while a client waits for records of other processes.
POLL = 0.1
#: Seconds between two checks for abandoned transactions with open records.
_UNBLOCK = 1.0
#: Seconds for which requests for metadata share a view.
RECENT = 1.0


class _Arrival:
    """The time of a request's arrival, by the clock of the loop, and the newest view then; None once it is handled."""

    __slots__ = ("arrived_at", "view")

    def __init__(self, arrived_at: float, view: View) -> None:
        self.arrived_at, self.view = arrived_at, cast("View | None", view)


#: The arrival of the request under way. Timers and tasks that a handler starts have it as well, but not the view.
_ARRIVAL: ContextVar[_Arrival | None] = ContextVar("_ARRIVAL", default=None)


class _Watched:
    """A partition that requests or sessions watch: its log in the newest view, and their watches."""

    __slots__ = ("log", "watches")

    def __init__(self, log: Partition | None) -> None:
        self.log = log
        self.watches: set[Watch] = set()


class Watch:
    """Partitions of which a request, or a fetch session, wants to know when they change.

    One request at a time uses it. It costs nothing until a partition changes, so a session keeps it between requests.
    """

    __slots__ = ("_changed", "_freshness", "_wake", "partitions")

    def __init__(self, freshness: Freshness, partitions: Sequence[TopicPartition]) -> None:
        self._freshness = freshness
        self.partitions = partitions
        self._changed: set[TopicPartition] = set()
        #: Ends the wait of the request that uses the watch.
        self._wake: asyncio.Future[None] | None = None

    def note(self, tp: TopicPartition) -> None:
        """Note a change of a partition, and wake the request that waits."""
        self._changed.add(tp)
        if self._wake is not None and not self._wake.done():
            self._wake.set_result(None)

    def take(self) -> set[TopicPartition]:
        """Return the partitions that have changed since the last call; any view that is read after it shows them."""
        changed, self._changed = self._changed, set()
        return changed

    async def wait(self, seconds: float) -> bool:
        """Wait until a partition has changed since the last :meth:`take`; False after ``seconds``."""
        if self._changed:
            return True
        self._wake = asyncio.get_running_loop().create_future()
        try:
            async with asyncio.timeout(seconds):
                await self._wake
            return True
        except TimeoutError:
            return False
        finally:
            self._wake = None

    def close(self) -> None:
        """Watch no longer."""
        self._freshness.end_watch(self)


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
        self._running_look: asyncio.Task[View] | None = None
        self._next_look: asyncio.Future[View] | None = None
        #: The time at which the newest look at the heads began, by the clock of the loop.
        self._refreshed_at = -math.inf
        #: The partitions that requests and sessions watch, with the log that each had last.
        self._watched: dict[TopicPartition, _Watched] = {}
        self._waiting_count = 0
        #: Whether the poller must look once more, though no request waits.
        self._poll_requested = False
        self._poller: asyncio.Task[None] | None = None
        #: The newest view that requests may see: that of a commit only after its callers have their answers.
        self.view = connection.view(refresh=False)

    @property
    def waiters(self) -> int:
        """The fetches under way, most of which wait for records."""
        return self._waiting_count

    async def head(self) -> View:
        """Read the view at the heads of the chains; requests that wait at the same time share one look.

        A look that has begun before the call is not enough: it may have passed an entry that the client knows of.
        """
        if self._running_look is None:
            self._running_look = self._loop.create_task(self._refresh())
            self._running_look.add_done_callback(_mark_retrieved)
            return await asyncio.shield(self._running_look)
        if self._next_look is None:
            self._next_look = self._loop.create_future()
            self._next_look.add_done_callback(_mark_retrieved)
        return await asyncio.shield(self._next_look)

    async def recent(self, seconds: float | None = None) -> View:
        """Return a view that was read at most ``seconds`` ago, :data:`RECENT` by default.

        Changes of other processes since then may be missing in it.
        """
        max_age = RECENT if seconds is None else seconds
        return self.view if self._loop.time() - self._refreshed_at < max_age else await self.head()

    @contextmanager
    def request(self) -> Iterator[None]:
        """Note the arrival of a request, which the block handles."""
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
        """Return a view read after the request under way arrived; at most one look at the heads per request."""
        arrival = _ARRIVAL.get()
        return self.view if arrival is not None and self._refreshed_at >= arrival.arrived_at else await self.head()

    async def unblocked(self, view: View, producer_ids: Collection[int]) -> View:
        """Abort abandoned transactions of these producers, and return a view without them.

        Args:
            view: A view at the heads; returned if none of the transactions is abandoned.
            producer_ids: The producers of the transactions.
        """
        if not producer_ids:
            return view
        has_changed = await self._loop.run_in_executor(self._threads, self._connection.end_abandoned, producer_ids)
        return await self.head() if has_changed else view

    async def _refresh(self) -> View:
        """Read the heads, publish the view, and start the next look if requests came meanwhile."""
        began_at = self._loop.time()
        try:
            view = await self._loop.run_in_executor(self._threads, self._connection.view)
            self._refreshed_at = began_at
            self._publish(view)
            return self.view
        finally:
            self._running_look = None
            next_look, self._next_look = self._next_look, None
            if next_look is not None:
                self._running_look = self._loop.create_task(self._refresh())
                self._running_look.add_done_callback(lambda task: _copy_result(task, next_look))

    # Waiting for changes ----------------------------------------------------------------------------------------------

    def publish_loaded(self) -> None:
        """Show requests the view that this process has loaded, and wake those that wait for a change."""
        view = self._connection.loaded_view()
        if view is not None:
            self._publish(view)
        elif self._running_look is None:  # A missing part is read in a thread, so that the event loop does not wait.
            self._running_look = self._loop.create_task(self._refresh())
            self._running_look.add_done_callback(_report)

    def _publish(self, view: View) -> None:
        """Take a newer view chain by chain: of two views, each may know one chain better than the other."""
        states = tuple(map(_newer_state, self.view.states, view.states))
        before = self.view.states
        if any(map(is_not, states, before)):
            self.view = view if all(map(is_, states, view.states)) else View(states)
            if self._watched:
                self._note_changes(self._changed_since(before))

    def _changed_since(self, states: Sequence[State]) -> Collection[TopicPartition] | None:
        """The partitions that the events of the entries after these states name; None: any may have changed."""
        all_events: list[Any] = []
        for chain, before, now in zip(self._connection.chains, states, self.view.states, strict=True):
            events = chain.events_between(before.sequence, now.sequence)
            if events is None:
                return None
            all_events += events
        return changed_partitions(all_events, self.view)

    def _note_changes(self, changed: Collection[TopicPartition] | None) -> None:
        """Note partitions that have changed for those that watch them; no other request runs.

        Args:
            changed: Those that may have changed; None: any.
        """
        logs = self.view.partitions
        for tp in self._watched if changed is None else changed:
            watched = self._watched.get(tp)
            if watched is None:
                continue
            log = logs.get(tp)
            if log is not watched.log:
                watched.log = log
                for watch in watched.watches:
                    watch.note(tp)

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Look for entries of other processes every :data:`POLL` seconds while the block runs."""
        self._waiting_count += 1
        self._start_poller()
        try:
            yield
        finally:
            self._waiting_count -= 1

    def request_poll(self) -> None:
        """Look for entries of other processes once, soon: the client will repeat its request."""
        self._poll_requested = True
        self._start_poller()

    def _start_poller(self) -> None:
        if self._poller is None:
            self._poller = self._loop.create_task(self._poll())
            self._poller.add_done_callback(report_failure)

    def watch(self, partitions: Sequence[TopicPartition], known_view: View) -> Watch:
        """Watch partitions: those whose log differs from that in ``known_view`` have changed already."""
        watch = Watch(self, partitions)
        for tp in partitions:
            watched = self._watched.get(tp)
            if watched is None:
                watched = self._watched[tp] = _Watched(self.view.partition(tp))
            watched.watches.add(watch)
            if watched.log is not known_view.partition(tp):
                watch.note(tp)
        return watch

    def end_watch(self, watch: Watch) -> None:
        """Forget a watch, and the partitions that no other one is for."""
        for tp in watch.partitions:
            watched = self._watched.get(tp)
            if watched is not None:
                watched.watches.discard(watch)
                if not watched.watches:
                    del self._watched[tp]

    async def _poll(self) -> None:
        """Look at the heads as long as clients wait for records; log a failure, and look again."""
        unblocked_at = self._loop.time()
        try:
            while self._waiting_count or self._poll_requested:
                await asyncio.sleep(POLL)
                if not (self._waiting_count or self._poll_requested):
                    break
                self._poll_requested = False
                try:
                    view = await self.head()
                    if self._loop.time() - unblocked_at > _UNBLOCK and view.open_partitions:
                        unblocked_at = self._loop.time()
                        await self._loop.run_in_executor(
                            self._threads, self._connection.end_abandoned, _open_txns(view)
                        )
                        self.publish_loaded()
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
    """The producers with open records; not only those that block others, for clients wait for the end of a log."""
    return {producer_id for tp in view.open_partitions for producer_id in view.partitions[tp].open_txns}


def _newer_state(current: State, other: State) -> State:
    return other if other.sequence > current.sequence else current


def _report(look: asyncio.Task[View]) -> None:
    """Report the error of a look that no request waits for; log a failure of the storage only as a warning."""
    error = None if look.cancelled() else look.exception()
    if isinstance(error, TxnStoreError):
        _LOG.warning("the heads of the chains cannot be read: %s", error, extra={"error": str(error)})
    else:
        report_failure(look)


def _mark_retrieved(look: asyncio.Future[View]) -> None:
    """Retrieve the error of a look, so that asyncio reports none if all that waited for it were cancelled."""
    if not look.cancelled():
        look.exception()


def _copy_result(task: asyncio.Task[View], future: asyncio.Future[View]) -> None:
    """End a future as the task has ended, unless its waiter has cancelled it."""
    if future.done():
        return
    if task.cancelled():
        future.cancel()
    elif (error := task.exception()) is not None:
        future.set_exception(error)
    else:
        future.set_result(task.result())
