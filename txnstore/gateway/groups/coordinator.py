"""The groups that a gateway coordinates, kept in memory and timed by the loop's clock: what both protocols share.

A gateway decides nothing that must last: the chain takes or refuses what it stores. So of two gateways that both
believe that they coordinate a group, one is refused, or both are right, and no time in the chain ends a member.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from kio.schema.errors import ErrorCode

from txnstore.core.view import View
from txnstore.gateway.apis import Api
from txnstore.gateway.errors import RefusedError
from txnstore.gateway.server import Handler
from txnstore.gateway.services import Services

#: A timer that is later than this shows that the process was paused. Peers call a gateway dead after as long.
_PAUSE_MS = 3_000
#: The time between two attempts at a request that the storage has refused.
RETRY_MS = 1_000


class GroupState(Protocol):
    """The state that a gateway keeps of a group. Times are in ms of the loop's clock."""

    @property
    def deadline(self) -> int | None:
        """The next time at which the state changes by itself; None: never."""
        ...

    @property
    def is_idle(self) -> bool:
        """Whether the chain has the whole state, so that it can be forgotten."""
        ...


G = TypeVar("G", bound=GroupState)


@dataclass(eq=False, slots=True)
class LiveGroup(Generic[G]):
    """A group in memory, and its timer."""

    name: str
    group: G
    timer: asyncio.TimerHandle | None = None
    timer_at: int = 0


class Coordinator(ABC, Generic[G]):
    """The groups of one protocol that this gateway coordinates; used in one event loop.

    Args:
        coordinates: Whether this gateway is the coordinator of a group at the moment. After it has changed, call
            :meth:`release` and :meth:`take_over`.
    """

    def __init__(self, services: Services, coordinates: Callable[[str], bool]) -> None:
        self._services = services
        self._coordinates = coordinates
        self._groups: dict[str, LiveGroup[G]] = {}
        #: Tasks that no request waits for; a loop keeps only weak references to its tasks.
        self._tasks: set[asyncio.Task[Any]] = set()

    @abstractmethod
    def handlers(self) -> dict[Api, Handler]:
        """The handlers of its members' requests."""

    @abstractmethod
    def take_over(self) -> None:
        """Time the members of stored groups from now on: those whose clients have ended must expire."""

    @abstractmethod
    def _expire(self, live_group: LiveGroup[G], now: int) -> None:
        """Act on the deadline of a group, which has passed."""

    @abstractmethod
    def _resume(self, live_group: LiveGroup[G], now: int) -> None:
        """Act on a deadline that passed while the process was paused: members could not reach it."""

    def _hand_over(self, live_group: LiveGroup[G]) -> None:
        """Leave a group that another gateway coordinates now."""
        self._forget(live_group)

    def check_coordinator(self, name: str) -> None:
        """Check that this gateway coordinates a group.

        Raises:
            RefusedError: Another gateway does.
        """
        if not self._coordinates(name):
            self.release()
            raise RefusedError(ErrorCode.not_coordinator, f"another gateway coordinates the group {name}")

    def release(self) -> None:
        """Leave the groups that other gateways coordinate now."""
        for live_group in [*self._groups.values()]:
            if not self._coordinates(live_group.name):
                self._hand_over(live_group)

    async def close(self) -> None:
        """Leave all groups, and wait for commits under way."""
        self._coordinates = lambda _group: False
        self.release()
        await asyncio.gather(*self._tasks)
        self.release()  # A task may have loaded a group meanwhile.

    # Groups in memory -------------------------------------------------------------------------------------------------

    @property
    def _view(self) -> View:
        return self._services.freshness.view

    @staticmethod
    def _now() -> int:
        return int(asyncio.get_running_loop().time() * 1000)

    def _spawn(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def _forget(self, live_group: LiveGroup[G]) -> None:
        if live_group.timer is not None:
            live_group.timer.cancel()
            live_group.timer = None
        if self._groups.get(live_group.name) is live_group:
            del self._groups[live_group.name]

    def _arm_or_forget(self, live_group: LiveGroup[G], earliest_ms: int = 0) -> None:
        """Set the timer to the next deadline of a group, or forget an idle group."""
        if live_group.group.is_idle:
            self._forget(live_group)
        else:
            self._arm(live_group, earliest_ms)

    # Timers -----------------------------------------------------------------------------------------------------------

    def _arm(self, live_group: LiveGroup[G], earliest_ms: int = 0) -> None:
        """Set the timer; one that is too early finds nothing due, and is set again."""
        deadline = live_group.group.deadline
        deadline = None if deadline is None else max(deadline, earliest_ms)
        if live_group.timer is not None:
            if deadline is not None and live_group.timer_at <= deadline:
                return
            live_group.timer.cancel()
            live_group.timer = None
        if deadline is not None:
            self._set_timer(live_group, deadline)

    def _set_timer(self, live_group: LiveGroup[G], deadline: int) -> None:
        live_group.timer_at = deadline
        live_group.timer = asyncio.get_running_loop().call_at(deadline / 1000, self._tick, live_group)

    def _tick(self, live_group: LiveGroup[G]) -> None:
        """Handle the timer of a group: hand it over, end timeouts, or restart them if the process was paused."""
        live_group.timer = None
        now = max(self._now(), live_group.timer_at)
        if not self._coordinates(live_group.name):
            self._hand_over(live_group)
        elif now - live_group.timer_at > _PAUSE_MS:
            self._resume(live_group, now)
        else:
            self._expire(live_group, now)
