"""Commits commands of many connections together: a store of one chain has one committing thread."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import Executor
from contextlib import suppress
from typing import Any, NamedTuple

from txnstore.connection import Connection
from txnstore.core.log.commands import Append
from txnstore.core.model import Command
from txnstore.core.routing import chain_of_partition

_LOG = logging.getLogger(__name__)

#: Commands that are committed at the same time in a store with several chains, which carry them one by one.
_THREADS = 32


class _Asked(NamedTuple):
    """A command that waits for its commit, who asks for it, and the future of its answer."""

    command: Command
    principal: str | None
    future: asyncio.Future[Any]


class _Lane:
    """The commands of a lane that no commit has taken.

    Attributes:
        asked: The commands, oldest first.
        taken: Set when a commit has taken them.
    """

    __slots__ = ("asked", "taken")

    def __init__(self) -> None:
        self.asked: list[_Asked] = []
        self.taken = asyncio.Event()


class Commits:
    """Commits commands, those of one lane in the order in which they are given.

    All commands of a lane that wait are committed together, after those of it that are under way. A store with one
    chain has one lane, so a thousand clients need one PUT. Of several chains each has a lane for the batches of its
    partitions, and each producer one for the batches of its transactions: those of a flush go to all chains at the same
    time. Whatever else has a lane of its own: the coordinator takes it, whose commits share entries where they meet.

    Args:
        threads: Runs what waits for the storage.
        committed: Called when the callers of a commit have their answers.
    """

    def __init__(self, connection: Connection, threads: Executor, committed: Callable[[], None]) -> None:
        self._connection = connection
        self._threads = threads
        self._committed = committed
        self._chains = len(connection.chains)
        #: The lanes with commands that no commit has taken, oldest first. Only the event loop changes it.
        self._waiting: dict[Hashable, _Lane] = {}
        #: The commits under way, and their lanes. Only the event loop changes it.
        self._running: dict[asyncio.Task[None], Hashable] = {}
        #: The commits that were begun, and the commands in them.
        self.commits, self.commands = 0, 0
        #: Whether the event loop will look at the commands that wait.
        self._starting = False

    def submit(self, command: Command, principal: str | None) -> asyncio.Future[Any]:
        """Commit a command; the future has its answer, or the error that refuses it. Cancel it to withdraw the command.

        A command that a commit has taken is not withdrawn. Those behind a command that fails can be: its callers get
        the error before the next commit begins.

        Args:
            principal: Who asks for it; None: the principal of the gateway.
        """
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        name = self._lane(command)
        lane = self._waiting.get(name)
        if lane is None:
            lane = self._waiting[name] = _Lane()
        lane.asked.append(_Asked(command, principal, future))
        if not self._starting:  # Not at once: the commands that the caller submits together share the entry.
            self._starting = True
            asyncio.get_running_loop().call_soon(self._start)
        return future

    def _start(self) -> None:
        self._starting = False
        busy = set(self._running.values())
        for name in [name for name in self._waiting if name not in busy][: _THREADS - len(busy)]:
            lane = self._waiting.pop(name)
            lane.taken.set()
            asked = [each for each in lane.asked if not each.future.done()]
            self.commits += 1
            self.commands += len(asked)
            task = asyncio.get_running_loop().create_task(self._commit(asked))
            self._running[task] = name
            task.add_done_callback(self._ended)

    def _lane(self, command: Command) -> Hashable:
        """What keeps a command in order: a client sends the batches of a partition without waiting for answers."""
        if self._chains == 1:
            return None
        if not isinstance(command, Append) or len(command.batches) != 1:
            return object()
        tp = command.batches[0].tp
        if command.producer.transactional_id is None:
            return chain_of_partition(tp, self._chains)
        return "transaction", command.producer.producer_id

    async def taken(self) -> None:
        """Wait until commits have taken all commands that wait now; not for those that arrive meanwhile."""
        for lane in list(self._waiting.values()):
            await lane.taken.wait()

    def _ended(self, task: asyncio.Task[None]) -> None:
        del self._running[task]
        if not task.cancelled() and (error := task.exception()) is not None:
            _LOG.error("the commit of requests failed", exc_info=error, extra={"error": repr(error)})
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
        with suppress(Exception):  # What is committed has its answer; the next look reports the error.
            self._connection.view(refresh=False)
        return answers
