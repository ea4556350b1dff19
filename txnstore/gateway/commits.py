"""Commits commands of many connections together, and keeps the order of batches."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple

from txnstore.connection import Connection
from txnstore.core.commands import Command
from txnstore.core.log.commands import Append
from txnstore.core.model import TopicPartition
from txnstore.errors import TxnStoreError

_LOG = logging.getLogger(__name__)

#: Commits under way at the same time in a store with several chains.
_THREADS = 32
#: The order of all commands in a store with one chain.
_ALL = object()


class _Asked(NamedTuple):
    """A command that waits for its commit, who asks for it, and the future of its answer."""

    command: Command
    principal: str | None
    future: asyncio.Future[Any]


class _Run:
    """Commands that one thread commits, in their order.

    Attributes:
        order: What runs have in common that are not committed at the same time; None: nothing.
        asked: The commands.
        taken: Set when a commit has taken them.
    """

    __slots__ = ("asked", "order", "taken")

    def __init__(self, order: object | None) -> None:
        self.order = order
        self.asked: list[_Asked] = []
        self.taken = asyncio.Event()


class Commits:
    """Commits commands in the order in which they are given; with several chains, batches of a producer in a partition.

    In a store with one chain, all commands that wait share the next entry, so a thousand clients need one PUT. Several
    chains take a command each through the coordinator, whose commits share entries where they meet. Threads do not keep
    an order, so batches that come while others of their producer and partition are committed follow those, together.

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
        #: The runs that can begin, oldest first. Only the event loop changes what follows.
        self._waiting: deque[_Run] = deque()
        #: By order, the run that the next commands join: one that waits, or that follows one under way.
        self._next: dict[object, _Run] = {}
        #: The commits under way.
        self._running: set[asyncio.Task[None]] = set()
        #: The commits that were begun, and the commands in them.
        self.commits, self.commands = 0, 0
        #: Whether the event loop will look at the commands that wait.
        self._starting = False

    def submit(self, command: Command, principal: str | None) -> asyncio.Future[Any]:
        """Commit a command; the future has its answer, or the error that refuses it.

        Args:
            command: The command.
            principal: Who asks for it; None: the principal of the gateway.
        """
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        order = _ALL if self._single else _order(command)
        run = self._next.get(order)
        if run is None:
            run = _Run(order)
            self._waiting.append(run)
            if order is not None:
                self._next[order] = run
        run.asked.append(_Asked(command, principal, future))
        if not self._starting:  # Not at once: the commands that the caller submits together share the entry.
            self._starting = True
            asyncio.get_running_loop().call_soon(self._start)
        return future

    def _start(self) -> None:
        self._starting = False
        while self._waiting and len(self._running) < _THREADS:
            run = self._waiting.popleft()
            if run.order is not None:
                self._next[run.order] = _Run(run.order)
            run.taken.set()
            self.commits += 1
            self.commands += len(run.asked)
            task = asyncio.get_running_loop().create_task(self._commit(run.asked))
            self._running.add(task)
            task.add_done_callback(partial(self._ended, run.order))

    async def taken(self) -> None:
        """Wait until a commit has taken the newest command that could begin by now, if one waits."""
        run = self._waiting[-1] if self._waiting else self._next.get(_ALL)
        if run is not None and run.asked:
            await run.taken.wait()

    def _ended(self, order: object | None, task: asyncio.Task[None]) -> None:
        self._running.discard(task)
        if not task.cancelled() and task.exception() is not None:
            _LOG.error("the commit of requests failed", exc_info=task.exception())
        if order is not None and self._next[order].asked:
            self._waiting.append(self._next[order])
        elif order is not None:
            del self._next[order]
        self._start()

    async def _commit(self, taken: list[_Asked]) -> None:
        commands = [(asked.command, asked.principal) for asked in taken]
        loop = asyncio.get_running_loop()
        try:
            answers = await loop.run_in_executor(self._threads, self._submit_all, commands)
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

    def _submit_all(self, commands: Sequence[tuple[Command, str | None]]) -> list[Any]:
        """Commit commands, and read what their entries depend on, so that the event loop need not. In a thread."""
        answers = self._connection.submit_all(commands)
        with suppress(TxnStoreError):  # What is committed has its answer; the next look reports the error.
            self._connection.view(refresh=False)
        return answers


def _order(command: Command) -> tuple[int, TopicPartition] | None:
    """The producer and partition of batches, which keep their order; None for anything else."""
    tps = {batch.tp for batch in command.batches} if isinstance(command, Append) else ()
    return (command.producer.producer_id, next(iter(tps))) if isinstance(command, Append) and len(tps) == 1 else None
