"""The coordinator of classic groups: an asyncio shell around one state machine per group.

It loads a group from the chain with the first request, times it by the loop's clock, stores its generations and
forgets it when the chain has all of it. What another gateway has stored meanwhile shows when this one stores: it is
refused, and all that wait are answered NOT_COORDINATOR.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from txnstore.errors import (
    AuthorizationError,
    IllegalGenerationError,
    InvalidConfigError,
    ReadOnlyError,
    StorageError,
    TxnStoreError,
)
from txnstore.gateway.groups.classic import Actions, Answer, ClassicGroup, Store, code_of_member
from txnstore.gateway.groups.model import (
    Code,
    DescribedGroup,
    HeartbeatRequest,
    HeartbeatResponse,
    JoinRequest,
    JoinResponse,
    LeaveRequest,
    LeaveResponse,
    ListedGroup,
    State,
    StoredGeneration,
    SyncRequest,
    SyncResponse,
)
from txnstore.gateway.logs import limited_logger
from txnstore.gateway.properties import Properties
from txnstore.runtime import Runtime
from txnstore.validation import check_id

_LOG = limited_logger(__name__)

#: A timer that is later than this shows that the process was paused. Peers call a gateway dead after as long.
_PAUSE_MS = 3_000
#: The time between two attempts to load a group whose generation could not be stored.
_RETRY_MS = 1_000
#: How long a group that was loaded, and is empty, is kept for those that wait for it, which may all have ended.
_EMPTY_MS = 1_000


class Generations(Protocol):
    """The chain's side: where generations are stored. Neither method blocks the loop."""

    async def load(self, group: str) -> StoredGeneration | None:
        """The newest stored generation of a group, read at the head of its chain; None if it never had members.

        A group that is empty and was of another kind counts on from its generation.

        Raises:
            TxnStoreError: With Kafka's code INCONSISTENT_GROUP_PROTOCOL, if the group has members of another kind.
        """
        ...

    async def store(self, group: str, expected: StoredGeneration | None, generation: StoredGeneration) -> None:
        """Store a generation, or find that it is stored already.

        The number alone does not tell whether ``expected`` is stored: a static member that is replaced changes its
        member id, and not the generation.

        Raises:
            IllegalGenerationError: The stored generation is not ``expected``.
        """
        ...


@dataclass(eq=False, slots=True)
class _Live:
    """A group in memory, and its timer."""

    machine: ClassicGroup
    state: State
    timer: asyncio.TimerHandle | None = None
    at: int = 0


class GroupCoordinator:
    """The classic groups that this gateway coordinates.

    Every request is answered. One that is cancelled, because its connection was closed, counts on for its member until
    that expires, as in Kafka. To be used in one event loop, whose clock it reads.

    Args:
        generations: Where generations are stored.
        properties: Timeouts and sizes.
        runtime: The wall clock, and ids.
        coordinates: Whether this gateway is the coordinator of a group at the moment. After it has changed, call
            :meth:`release`.
    """

    def __init__(
        self,
        generations: Generations,
        properties: Properties,
        runtime: Runtime,
        coordinates: Callable[[str], bool] = lambda _group: True,
    ) -> None:
        self._generations = generations
        self._properties = properties
        self._runtime = runtime
        self._coordinates = coordinates
        self._groups: dict[str, _Live] = {}
        self._loads: dict[str, asyncio.Task[Code]] = {}
        #: The last generation of each group that was dropped in a generation which may not be stored.
        self._used: dict[str, int] = {}
        #: Tasks that no request waits for; a loop keeps only weak references to its tasks.
        self._tasks: set[asyncio.Task[None]] = set()

    async def join(self, request: JoinRequest) -> JoinResponse:
        """Answer a JoinGroup; it waits for the other members."""
        live = await self._live(request.group)
        if isinstance(live, Code):
            return JoinResponse(live, request.member_id)
        response: JoinResponse = await self._ask(live, partial(live.machine.join, request))
        return response

    async def sync(self, request: SyncRequest) -> SyncResponse:
        """Answer a SyncGroup; it waits for the leader's assignment, and until that is stored."""
        live = await self._live(request.group)
        if isinstance(live, Code):
            return SyncResponse(code_of_member(live))
        response: SyncResponse = await self._ask(live, partial(live.machine.sync, request))
        return response

    async def heartbeat(self, request: HeartbeatRequest) -> HeartbeatResponse:
        """Answer a Heartbeat."""
        live = await self._live(request.group)
        if isinstance(live, Code):
            return HeartbeatResponse(code_of_member(live))
        response = live.machine.heartbeat(request, self._now())
        # It only moves a deadline away, so the timer stays: it will find nothing due and be set again.
        if live.machine.idle:
            self._forget(live)
        return response

    async def leave(self, request: LeaveRequest) -> LeaveResponse:
        """Answer a LeaveGroup; that of the last member waits until the chain has the group without members."""
        live = await self._live(request.group)
        if isinstance(live, Code):
            return LeaveResponse(code_of_member(live))
        response: LeaveResponse = await self._ask(live, partial(live.machine.leave, request))
        return response

    async def describe(self, group: str) -> DescribedGroup | Code:
        """The group for DescribeGroups, or why it cannot be described."""
        live = await self._live(group)
        if isinstance(live, Code):
            return live
        description = live.machine.describe()
        if live.machine.idle:
            self._forget(live)
        return description

    async def take_over(self, group: str) -> None:
        """Time a stored group from now on, so that members in the chain that no gateway serves any more expire.

        To be called for each stored group with members when the gateway becomes its coordinator. If the group cannot be
        loaded now, it is loaded later.
        """
        if await self.describe(group) is Code.COORDINATOR_NOT_AVAILABLE:
            self._spawn(self._reload(group))

    def list(self) -> list[ListedGroup]:
        """The groups in memory; the chain has all others, which are empty or not served yet."""
        described = [live.machine.describe() for live in self._groups.values()]
        return [ListedGroup(group.group, group.state, group.protocol_type) for group in described]

    def is_completing(self, group: str, member_id: str, generation: int) -> bool:
        """Whether the member has joined this generation, which is not stored yet.

        The chain refuses its commits as of an illegal generation; Kafka answers REBALANCE_IN_PROGRESS.
        """
        live = self._groups.get(group)
        return live is not None and live.machine.is_completing(member_id, generation)

    def release(self) -> None:
        """Leave the groups that other gateways coordinate now: all that wait are answered NOT_COORDINATOR."""
        for live in [*self._groups.values()]:
            if not self._coordinates(live.machine.name):
                self._drop(live, Code.NOT_COORDINATOR)

    async def close(self) -> None:
        """Leave all groups, and wait for what is being stored."""
        self._coordinates = lambda _group: False
        self.release()
        await asyncio.gather(*self._loads.values(), *self._tasks)
        self.release()

    # --- groups in memory ---------------------------------------------------------------------------------------------

    async def _live(self, group: str) -> _Live | Code:
        """The group, loaded if it is not in memory, or the code of what prevents it."""
        try:
            check_id("group.id", group)
        except InvalidConfigError:
            return Code.INVALID_GROUP_ID
        while self._coordinates(group):
            live = self._groups.get(group)
            if live is not None:
                return live
            code = await self._load_once(group)
            if code:
                return code
        self.release()
        return Code.NOT_COORDINATOR

    async def _load_once(self, group: str) -> Code:
        """Load a group; requests that come meanwhile wait for the same, even if the first one is cancelled."""
        task = self._loads.get(group)
        if task is None:
            task = self._loads[group] = asyncio.create_task(self._load(group))
            task.add_done_callback(lambda _task: self._loads.pop(group))
        return await asyncio.shield(task)

    async def _load(self, group: str) -> Code:
        try:
            stored = await self._generations.load(group)
        except Exception as error:  # noqa: BLE001 - every error has a code
            return _code_of(error, group)
        now, used = self._now(), self._used.pop(group, 0)
        epoch = self._runtime.clock() - now
        machine = ClassicGroup(group, self._properties, self._runtime.new_id, stored, now, epoch=epoch, used=used)
        live = self._groups[group] = _Live(machine, machine.state)
        self._arm(live)
        if machine.idle:
            self._set_timer(live, now + _EMPTY_MS)
        return Code.NONE

    async def _reload(self, group: str) -> None:
        """Load a group after a failure, until it is in memory: its members must expire though none of them asks."""
        code = Code.COORDINATOR_NOT_AVAILABLE
        while code is Code.COORDINATOR_NOT_AVAILABLE:
            await asyncio.sleep(_RETRY_MS / 1000)
            live = await self._live(group)
            if not isinstance(live, Code):
                if live.machine.idle:
                    self._forget(live)
                return
            code = live

    def _forget(self, live: _Live) -> None:
        if live.timer is not None:
            live.timer.cancel()
            live.timer = None
        if self._groups.get(live.machine.name) is live:
            del self._groups[live.machine.name]

    def _drop(self, live: _Live, code: Code) -> None:
        """Forget a group that is not ours any more, or whose stored generation is not known."""
        self._forget(live)
        self._used[live.machine.name] = live.machine.used
        extra = {"group": live.machine.name, "generation": live.machine.generation, "reason": code.name}
        _LOG.info("the gateway leaves a group", extra=extra)
        self._answer_all(live.machine.end(code))

    # --- the machine's inputs and actions -----------------------------------------------------------------------------

    def _now(self) -> int:
        return int(asyncio.get_running_loop().time() * 1000)

    async def _ask(self, live: _Live, request: Callable[[asyncio.Future[Any], int], Actions]) -> Any:
        answer = asyncio.get_running_loop().create_future()
        self._act(live, request(answer, self._now()))
        return await answer

    def _act(self, live: _Live, actions: Actions) -> None:
        self._answer_all(actions)
        for action in actions:
            if isinstance(action, Store):
                self._spawn(self._store(live, action))
        machine = live.machine
        if live.state is not machine.state:
            live.state = machine.state
            extra = {"group": machine.name, "state": machine.state.value, "generation": machine.generation}
            _LOG.info("group changed its state", extra=extra)
            _LOG.debug("last rebalance of the group", extra={"group": machine.name, "reason": machine.reason})
        if machine.idle:
            self._forget(live)
        else:
            self._arm(live)

    @staticmethod
    def _answer_all(actions: Actions) -> None:
        for action in actions:
            # Whose connection is closed has cancelled its request.
            if isinstance(action, Answer) and isinstance(action.token, asyncio.Future) and not action.token.done():
                action.token.set_result(action.response)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _store(self, live: _Live, action: Store) -> None:
        group, code = live.machine.name, Code.NONE
        try:
            await self._generations.store(group, action.expected, action.generation)
        except Exception as error:  # noqa: BLE001 - every error has a code
            code = _code_of(error, group)
        if self._groups.get(group) is not live:
            return
        if not code:
            self._act(live, live.machine.stored(self._now()))
            return
        # The outcome may be unknown. The chain knows it: who waits asks again, and finds what is stored.
        self._drop(live, code)
        if code is not Code.NOT_COORDINATOR:
            self._spawn(self._reload(group))

    # --- timers -------------------------------------------------------------------------------------------------------

    def _arm(self, live: _Live) -> None:
        at = live.machine.deadline
        if live.timer is not None:
            if at is not None and live.at <= at:
                return
            live.timer.cancel()
            live.timer = None
        if at is not None:
            self._set_timer(live, at)

    def _set_timer(self, live: _Live, at: int) -> None:
        live.at = at
        live.timer = asyncio.get_running_loop().call_at(at / 1000, self._tick, live)

    def _tick(self, live: _Live) -> None:
        live.timer = None
        group, now = live.machine.name, max(self._now(), live.at)
        if not self._coordinates(group):
            self._drop(live, Code.NOT_COORDINATOR)
        elif now - live.at > _PAUSE_MS:
            # The members could not reach this process, and another one may coordinate them: none has expired.
            self._drop(live, Code.NOT_COORDINATOR)
            self._spawn(self._reload(group))
        else:
            self._act(live, live.machine.tick(now))


def _code_of(error: Exception, group: str) -> Code:
    """The code for requests whose group could not be loaded or stored."""
    match error:
        case IllegalGenerationError():
            return Code.NOT_COORDINATOR
        case AuthorizationError() | ReadOnlyError():
            return Code.GROUP_AUTHORIZATION_FAILED
        case TxnStoreError() if error.kafka_code == Code.INCONSISTENT_GROUP_PROTOCOL:
            return Code.INCONSISTENT_GROUP_PROTOCOL
        case StorageError() | InvalidConfigError():  # the latter if the assignments are too large
            _LOG.warning("group cannot be loaded or stored: %s", error, extra={"group": group, "error": str(error)})
            return Code.COORDINATOR_NOT_AVAILABLE if isinstance(error, StorageError) else Code.UNKNOWN_SERVER_ERROR
    _LOG.error("unexpected error of a group", exc_info=error, extra={"group": group})
    return Code.UNKNOWN_SERVER_ERROR
