"""Commits commands of many connections together: a store of one chain has one committing thread."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import CancelledError, Executor, Future
from contextlib import suppress
from typing import Any, NamedTuple

from txnstore.connection import Connection
from txnstore.core.log.commands import Append
from txnstore.core.model import Command
from txnstore.core.routing import chain_of_partition

_LOG = logging.getLogger(__name__)

#: Commands that are committed at the same time in a store with several chains, which carry them one by one.
_THREADS = 32


class _WaitingCommand(NamedTuple):
    """A command that waits for its commit, its principal, and the future of its answer."""

    command: Command
    principal: str | None
    future: asyncio.Future[Any]


class _Lane:
    """The commands of a lane that no commit has taken.

    Attributes:
        waiting: The commands, oldest first.
        taken_event: Set when a commit has taken them.
    """

    __slots__ = ("taken_event", "waiting")

    def __init__(self) -> None:
        self.waiting: list[_WaitingCommand] = []
        self.taken_event = asyncio.Event()


class Commits:
    """Commits commands, those of one lane in the order of submission.

    All commands of a lane that wait are committed together, after those of it that are under way. A store with one
    chain has one lane, so a thousand clients need one PUT. Of several chains each has a lane for the batches of its
    partitions, and each producer one for the batches of its transactions: those of a flush go to all chains at the same
    time. Any other command has a lane of its own: the coordinator commits it, and shares entries among those that meet.

    Args:
        threads: Runs what waits for the storage.
        on_commit: Called when the callers of a commit have their answers.
    """

    def __init__(self, connection: Connection, threads: Executor, on_commit: Callable[[], None]) -> None:
        self._connection = connection
        self._threads = threads
        self._on_commit = on_commit
        self._chains = len(connection.chains)
        #: The lanes with commands that no commit has taken, oldest first. Only the event loop changes it.
        self._waiting_lanes: dict[Hashable, _Lane] = {}
        #: The lanes with a commit under way. Only the event loop changes it.
        self._running_lanes: set[Hashable] = set()
        #: The commits that were begun, and the commands in them.
        self.commits, self.commands = 0, 0
        #: Whether the event loop will look at the commands that wait.
        self._is_starting = False

    def submit(self, command: Command, principal: str | None) -> asyncio.Future[Any]:
        """Commit a command; the future has its answer, or the error that refuses it. Cancel it to withdraw the command.

        A command that a commit has taken is not withdrawn. Commands queued behind a failed one can still be withdrawn:
        its caller learns of the failure before the next commit begins.

        Args:
            principal: The principal that the rules are checked for; None: that of the gateway.
        """
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        lane_key = self._lane_key(command)
        lane = self._waiting_lanes.get(lane_key)
        if lane is None:
            lane = self._waiting_lanes[lane_key] = _Lane()
        lane.waiting.append(_WaitingCommand(command, principal, future))
        if not self._is_starting:  # Not at once: the commands that the caller submits together share the entry.
            self._is_starting = True
            asyncio.get_running_loop().call_soon(self._start)
        return future

    def _start(self) -> None:
        """Begin a commit for each lane that waits and has none under way."""
        self._is_starting = False
        due_lanes = [lane_key for lane_key in self._waiting_lanes if lane_key not in self._running_lanes]
        for lane_key in due_lanes[: _THREADS - len(self._running_lanes)]:
            lane = self._waiting_lanes.pop(lane_key)
            lane.taken_event.set()
            commands = [command for command in lane.waiting if not command.future.done()]
            self.commits += 1
            self.commands += len(commands)
            self._running_lanes.add(lane_key)
            self._commit(lane_key, commands)

    def _lane_key(self, command: Command) -> Hashable:
        """The key of the lane that keeps a command in order: clients pipeline the batches of a partition."""
        if self._chains == 1:
            return None
        if not isinstance(command, Append) or len(command.batches) != 1:
            return object()
        tp = command.batches[0].tp
        if command.producer.transactional_id is None:
            return chain_of_partition(tp, self._chains)
        return "transaction", command.producer.producer_id

    async def wait_until_taken(self) -> None:
        """Wait until commits have taken all commands that wait now; not those that are submitted meanwhile."""
        for lane in list(self._waiting_lanes.values()):
            await lane.taken_event.wait()

    def _commit(self, lane_key: Hashable, waiting_commands: list[_WaitingCommand]) -> None:
        """Submit commands together in a thread, whose end the event loop gets without a task, which costs as much."""
        loop = asyncio.get_running_loop()

        def on_end(commit: Future[list[Any]]) -> None:
            if not loop.is_closed():
                loop.call_soon_threadsafe(self._answer, lane_key, waiting_commands, commit)

        try:
            commit = self._threads.submit(
                self._submit_all, [(command.command, command.principal) for command in waiting_commands]
            )
        except RuntimeError as error:  # The gateway has closed.
            commit = Future()
            commit.set_exception(error)
        commit.add_done_callback(on_end)

    def _answer(self, lane_key: Hashable, waiting_commands: list[_WaitingCommand], commit: Future[list[Any]]) -> None:
        """Give each caller its answer or error; the next commit of the lane begins after their callbacks."""
        error = CancelledError() if commit.cancelled() else commit.exception()
        if error is None:
            answers = commit.result()
        else:
            answers = [error if isinstance(error, Exception) else RuntimeError(repr(error))] * len(waiting_commands)
            if not isinstance(error, Exception):
                _LOG.error("the commit of requests failed", exc_info=error, extra={"error": repr(error)})
        try:
            for command, answer in zip(waiting_commands, answers, strict=True):
                future = command.future
                if future.done():
                    continue
                if isinstance(answer, StopIteration):  # No future takes it, and those behind would get no answer.
                    future.set_exception(RuntimeError(repr(answer)))
                elif isinstance(answer, BaseException):
                    future.set_exception(answer)
                else:
                    future.set_result(answer)
        finally:  # A lane that stays busy would hang in silence.
            asyncio.get_running_loop().call_soon(self._on_answered, lane_key)

    def _on_answered(self, lane_key: Hashable) -> None:
        self._running_lanes.remove(lane_key)
        try:
            self._on_commit()
        finally:
            self._start()

    def _submit_all(self, commands: Sequence[tuple[Command, str | None]]) -> list[Any]:
        """Commit commands in a thread, and read what their entries depend on, so that the event loop need not."""
        answers = self._connection.submit_all(commands)
        with suppress(Exception):  # The commands are committed; the next look at the heads reports the error.
            self._connection.view(refresh=False)
        return answers
