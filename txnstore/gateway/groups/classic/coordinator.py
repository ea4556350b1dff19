"""JoinGroup, SyncGroup, Heartbeat and LeaveGroup: an asyncio shell around one state machine per classic group.

It loads a group from the chain with the first request, stores its generations, and forgets it when the chain has all of
it. If another gateway has stored a generation meanwhile, the chain refuses the one of this gateway, and all waiting
requests are answered NOT_COORDINATOR. Every request is answered. One that is cancelled, because its connection was
closed, counts for its member until that expires, as in Kafka.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial

from kio.schema.errors import ErrorCode

from txnstore.core.authorization.rights import read_group
from txnstore.core.groups.commands import StoreGeneration
from txnstore.errors import (
    AuthorizationError,
    IllegalGenerationError,
    InconsistentGroupProtocolError,
    InvalidConfigError,
    ReadOnlyError,
    StorageError,
    TxnStoreError,
)
from txnstore.gateway.apis import Api
from txnstore.gateway.errors import RefusedError, code_of
from txnstore.gateway.groups.classic.group import Actions, Answer, ClassicGroup, Fields, State, code_of_member
from txnstore.gateway.groups.coordinator import RETRY_MS, Coordinator, LiveGroup
from txnstore.gateway.logs import limited_logger
from txnstore.gateway.server import Client, Handler
from txnstore.gateway.services import Services
from txnstore.gateway.wire import Request
from txnstore.validation import check_id

_LOG = limited_logger(__name__)

#: The time for which a loaded group without members waits for requests: all may have been cancelled.
_EMPTY_GROUP_MS = 1_000


class ClassicCoordinator(Coordinator[ClassicGroup]):
    """The classic groups that this gateway coordinates."""

    def __init__(self, services: Services, coordinates: Callable[[str], bool]) -> None:
        super().__init__(services, coordinates)
        self._loads: dict[str, asyncio.Task[ErrorCode]] = {}
        #: The last generation of each dropped group, which may not be stored.
        self._last_generations: dict[str, int] = {}

    def handlers(self) -> dict[Api, Handler]:
        """The handlers of its members' requests."""
        return {
            Api.JOIN_GROUP: partial(self._handle, self._handle_join),
            Api.SYNC_GROUP: partial(self._handle, self._handle_sync),
            Api.HEARTBEAT: partial(self._handle, self._handle_heartbeat),
            Api.LEAVE_GROUP: partial(self._handle, self._handle_leave),
        }

    # Members ----------------------------------------------------------------------------------------------------------

    async def _handle(
        self,
        handle: Callable[[LiveGroup[ClassicGroup], Request, Client], Awaitable[Fields]],
        request: Request,
        client: Client,
    ) -> Fields:
        """Check the right to the group, load it, and handle a request; an error has the form of its response."""
        try:
            self._services.check(client, read_group(request.body.group_id))
            live_group = await self._live_group(request.body.group_id)
        except (TxnStoreError, RefusedError) as error:
            code = code_of(error, Api(request.api), request.version)
            if request.api == Api.JOIN_GROUP:
                return {"error_code": code, "member_id": request.body.member_id}
            return {"error_code": code_of_member(code)}
        return await handle(live_group, request, client)

    async def _handle_join(self, live_group: LiveGroup[ClassicGroup], request: Request, client: Client) -> Fields:
        """Join a group, or take part in its next generation; waits for the other members."""
        return await self._request(
            live_group, partial(live_group.group.join, request.body, request.client_id or "", client.host)
        )

    async def _handle_sync(self, live_group: LiveGroup[ClassicGroup], request: Request, _client: Client) -> Fields:
        """Return the assignment of a member, once the chain has stored what the leader assigned."""
        return await self._request(live_group, partial(live_group.group.sync, request.body))

    async def _handle_heartbeat(self, live_group: LiveGroup[ClassicGroup], request: Request, _client: Client) -> Fields:
        code = live_group.group.heartbeat(request.body, self._now())
        # It only moves a deadline away, so the timer stays: it will find nothing due and be set again.
        if live_group.group.is_idle:
            self._forget(live_group)
        return {"error_code": code}

    async def _handle_leave(self, live_group: LiveGroup[ClassicGroup], request: Request, _client: Client) -> Fields:
        """Remove members; for the last one, wait until the chain has stored the group without members."""
        return await self._request(live_group, partial(live_group.group.leave, request.body))

    def is_completing(self, name: str, member_id: str, generation: int) -> bool:
        """Whether the member has joined this generation, which is not stored yet.

        The chain refuses its commits as of an illegal generation; Kafka answers REBALANCE_IN_PROGRESS.
        """
        live_group = self._groups.get(name)
        return live_group is not None and live_group.group.is_completing(member_id, generation)

    # Groups -----------------------------------------------------------------------------------------------------------

    def live_groups(self) -> dict[str, Fields]:
        """Describe the groups in memory; the chain has all others, which are empty or not served yet."""
        return {
            name: live_group.group.describe()
            for name, live_group in self._groups.items()
            if self.state(name) is not None
        }

    def state(self, name: str) -> State | None:
        """The state of a group in memory; None if it is not there, or nothing of it exists."""
        live_group = self._groups.get(name)
        return None if live_group is None or live_group.group.is_unknown else live_group.group.state

    async def describe(self, name: str) -> Fields:
        """Describe a group for DescribeGroups.

        Raises:
            RefusedError: It cannot be loaded, or another gateway coordinates it.
        """
        live_group = await self._live_group(name)
        fields = live_group.group.describe()
        if live_group.group.is_idle:
            self._forget(live_group)
        return fields

    def take_over(self) -> None:
        """Load stored groups, so that members whose clients have ended expire."""
        for name, group in self._view.groups.items():
            if group.classic_members and self._coordinates(name):
                self._spawn(self._load_until_answered(name))

    def _hand_over(self, live_group: LiveGroup[ClassicGroup]) -> None:
        self._drop(live_group, ErrorCode.not_coordinator)

    async def _live_group(self, name: str) -> LiveGroup[ClassicGroup]:
        """Return the group, loaded if it is not in memory.

        Raises:
            RefusedError: It has no valid name, cannot be loaded, or another gateway coordinates it.
        """
        try:
            check_id("group.id", name)
        except InvalidConfigError as error:
            raise RefusedError(ErrorCode.invalid_group_id, str(error)) from None
        while True:
            self.check_coordinator(name)
            live_group = self._groups.get(name)
            if live_group is not None:
                return live_group
            load = self._loads.get(name)
            if load is None:
                load = self._loads[name] = self._spawn(self._load(name))
                load.add_done_callback(lambda _task: self._loads.pop(name))
            code = await asyncio.shield(load)  # Shielded: other requests wait for it, even if this one is cancelled.
            if code:
                raise RefusedError(code, f"the group {name!r} cannot be loaded")

    async def _load(self, name: str) -> ErrorCode:
        """Load a group from the heads of the chains; return the code of the error, or NONE."""
        try:
            stored_group = (await self._services.freshness.head()).groups.get(name)
            if stored_group is not None:
                expired_members = dict(self._services.connection.chains.expired_members(name))
                members = stored_group.members.values()
                if any(expired_members.get(member.member_id) != member.seen_at for member in members):
                    msg = f"group {name!r} has live members that are no classic members, so none can join it"
                    raise InconsistentGroupProtocolError(msg)
        except Exception as error:  # noqa: BLE001 - every error has a code
            return _log_and_code(error, name)
        now, last_generation = self._now(), self._last_generations.pop(name, 0)
        runtime = self._services.connection.runtime
        group = ClassicGroup(
            name,
            self._services.properties,
            runtime.new_id,
            stored_group,
            now,
            epoch=runtime.clock() - now,
            last_generation=last_generation,
        )
        live_group = self._groups[name] = LiveGroup(name, group)
        if group.is_idle:
            self._set_timer(live_group, now + _EMPTY_GROUP_MS)
        else:
            self._arm(live_group)
        return ErrorCode.none

    async def _load_until_answered(self, name: str, seconds: float = 0) -> None:
        """Load a group as soon as the storage answers: its members must expire even if no request loads it."""
        code = ErrorCode.coordinator_not_available
        while code is ErrorCode.coordinator_not_available:
            await asyncio.sleep(seconds)
            seconds = RETRY_MS / 1000
            try:
                await self.describe(name)
            except RefusedError as error:
                code = error.code
            else:
                return

    def _drop(self, live_group: LiveGroup[ClassicGroup], code: ErrorCode) -> None:
        """Forget a group that another gateway coordinates, or whose stored generation is unknown."""
        self._forget(live_group)
        self._last_generations[live_group.name] = live_group.group.last_generation
        extra = {"group": live_group.name, "generation": live_group.group.generation, "reason": code.name.upper()}
        _LOG.info("the gateway leaves a group", extra=extra)
        self._answer_all(live_group.group.end(code))

    # The machine's inputs and actions ---------------------------------------------------------------------------------

    async def _request(
        self, live_group: LiveGroup[ClassicGroup], request: Callable[[asyncio.Future[Fields], int], Actions]
    ) -> Fields:
        answer: asyncio.Future[Fields] = asyncio.get_running_loop().create_future()
        self._apply(live_group, partial(request, answer))
        return await answer

    def _apply(self, live_group: LiveGroup[ClassicGroup], input_at: Callable[[int], Actions]) -> None:
        """Pass an input to the state machine at the current time, and carry out its actions."""
        old_state = live_group.group.state
        actions = input_at(self._now())
        self._answer_all(actions)
        for action in actions:
            if isinstance(action, StoreGeneration):
                self._spawn(self._store(live_group, action))
        group = live_group.group
        if group.state is not old_state:
            extra = {"group": group.name, "state": group.state.value, "generation": group.generation}
            _LOG.info("group changed its state", extra=extra)
            _LOG.debug("last rebalance of the group", extra={"group": group.name, "reason": group.reason})
        self._arm_or_forget(live_group)

    @staticmethod
    def _answer_all(actions: Actions) -> None:
        for action in actions:
            # The request of a closed connection was cancelled.
            if isinstance(action, Answer) and isinstance(action.token, asyncio.Future) and not action.token.done():
                action.token.set_result(action.response)

    async def _store(self, live_group: LiveGroup[ClassicGroup], command: StoreGeneration) -> None:
        """Commit a generation; on an error drop the group, which is loaded again as it is stored."""
        code = ErrorCode.none
        try:
            await self._services.commits.submit(command, None)
        except Exception as error:  # noqa: BLE001 - every error has a code
            code = _log_and_code(error, live_group.name)
        if self._groups.get(live_group.name) is not live_group:
            return
        if not code:
            self._apply(live_group, live_group.group.stored)
            return
        # The outcome may be unknown: clients repeat their requests, which load the group as it is stored.
        self._drop(live_group, code)
        if code is not ErrorCode.not_coordinator:
            self._spawn(self._load_until_answered(live_group.name, RETRY_MS / 1000))

    def _expire(self, live_group: LiveGroup[ClassicGroup], now: int) -> None:
        # Not the current time: a timer may be early by the fraction of a millisecond.
        self._apply(live_group, lambda _now: live_group.group.tick(now))

    def _resume(self, live_group: LiveGroup[ClassicGroup], now: int) -> None:
        """Drop the group: another gateway may coordinate its members, which could not reach this one."""
        self._drop(live_group, ErrorCode.not_coordinator)
        self._spawn(self._load_until_answered(live_group.name, RETRY_MS / 1000))


def _log_and_code(error: Exception, group: str) -> ErrorCode:
    """Log why a group could not be loaded or stored, unless others cause it; return the code for its requests."""
    match error:
        case IllegalGenerationError():  # Another gateway has stored a generation.
            return ErrorCode.not_coordinator
        case AuthorizationError() | ReadOnlyError():
            return ErrorCode.group_authorization_failed
        case StorageError() | InvalidConfigError():  # The latter if the assignments are too large.
            _LOG.warning("group cannot be loaded or stored: %s", error, extra={"group": group, "error": str(error)})
            is_temporary = isinstance(error, StorageError)
            return ErrorCode.coordinator_not_available if is_temporary else ErrorCode.unknown_server_error
    return code_of(error, Api.SYNC_GROUP, 0)
