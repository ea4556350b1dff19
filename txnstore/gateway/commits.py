"""Commits commands of many connections together: one committing thread for each chain."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from functools import partial
from typing import Any, NamedTuple

from txnstore.connection import Connection
from txnstore.core.commands import Command
from txnstore.core.log.commands import Append

_LOG = logging.getLogger(__name__)

#: Commands that are committed at the same time in a store with several chains, which carry them one by one.
_THREADS = 32


class _Asked(NamedTuple):
    """A command that waits for its commit, who asks for it, and the future of its answer."""

    command: Command
    principal: str | None
    future: asyncio.Future[Any]


class Commits:
    """Commits commands in the order in which they are given.

    In a store with one chain, all commands that wait share the next entry, so a thousand clients need one PUT. Several
    chains take a command each through the coordinator, in threads, whose commits share entries where they meet. There
    the batches of a producer for a partition wait for each other: only these have to keep their order.

    Args:
        connection: The connection to the store.
        threads: Runs what waits for the storage.
        committed: Called when the callers of a commit have their answers.
    """

    def __init__(self, connection: Connection, threads: Executor, committed: Callable[[], None]) -> None:
        self._connection = connection
        self._threads = threads
        self._committed = committed
        self._single = not connection.several_chains
        #: The commands that no commit has taken, oldest first. Only the event loop changes it.
        self._waiting: deque[_Asked] = deque()
        #: With several chains: what waits for an earlier command of the same order, by :func:`_order_of`. An order is
        #: in it as long as a command of it is not committed. Only the event loop changes it.
        self._behind: dict[tuple[int, str, int] | None, deque[_Asked]] = {}
        #: The commits under way. Only the event loop changes it.
        self._running: set[asyncio.Task[None]] = set()
        #: The commits that were begun, and the commands in them.
        self.commits, self.commands = 0, 0
        #: Whether the event loop will look at the commands that wait.
        self._starting = False
        #: Set while no command waits.
        self._taken = asyncio.Event()
        self._taken.set()

    def submit(self, command: Command, principal: str | None) -> asyncio.Future[Any]:
        """Commit a command; the future has its answer, or the error that refuses it.

        Args:
            command: The command.
            principal: Who asks for it; None: the principal of the gateway.
        """
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        asked = _Asked(command, principal, future)
        order = None if self._single else _order_of(command)
        if order in self._behind:
            self._behind[order].append(asked)
            return future
        if order is not None:
            self._behind[order] = deque()
        self._waiting.append(asked)
        self._taken.clear()
        if not self._starting:  # Not at once: the commands that the caller submits together share the entry.
            self._starting = True
            asyncio.get_running_loop().call_soon(self._start)
        return future

    def _start(self) -> None:
        self._starting = False
        most = 1 if self._single else _THREADS
        while self._waiting and len(self._running) < most:
            taken = list(self._waiting) if self._single else [self._waiting.popleft()]
            if self._single:
                self._waiting.clear()
            self.commits += 1
            self.commands += len(taken)
            task = asyncio.get_running_loop().create_task(self._commit(taken))
            self._running.add(task)
            task.add_done_callback(partial(self._ended, taken))
        if not self._waiting:
            self._taken.set()

    async def taken(self) -> None:
        """Wait until the commits under way have taken all commands."""
        await self._taken.wait()

    def _ended(self, taken: Sequence[_Asked], task: asyncio.Task[None]) -> None:
        self._running.discard(task)
        for order in filter(None, (_order_of(asked.command) for asked in taken if not self._single)):
            behind = self._behind[order]
            if behind:
                self._waiting.append(behind.popleft())
            else:
                del self._behind[order]
        if not task.cancelled() and task.exception() is not None:
            _LOG.error("the commit of requests failed", exc_info=task.exception())
        self._start()

    async def _commit(self, taken: list[_Asked]) -> None:
        commands = [(asked.command, asked.principal) for asked in taken]
        loop = asyncio.get_running_loop()
        try:
            answers = await loop.run_in_executor(self._threads, self._connection.submit_all, commands)
        except BaseException as error:
            answers = [error if isinstance(error, Exception) else RuntimeError(repr(error))] * len(commands)
            if not isinstance(error, Exception):
                raise
        finally:
            for asked, answer in zip(taken, answers, strict=True):
                future = asked.future
                if future.done():
                    continue
                if isinstance(answer, BaseException):
                    future.set_exception(answer)
                else:
                    future.set_result(answer)
            loop.call_soon(self._committed)  # After the callbacks of the futures, which run before it.


def _order_of(command: Command) -> tuple[int, str, int] | None:
    """The producer id and the partition of a command that appends a batch; None: it need not keep an order."""
    if not isinstance(command, Append) or not command.batches:
        return None
    (batch,) = command.batches
    return command.producer.producer_id, batch.topic, batch.partition
