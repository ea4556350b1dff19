"""Gateways on one chain without storage, as far as groups need them; it takes its time, and may fail."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Mapping
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast
from uuid import NAMESPACE_OID, UUID, uuid5

from tests.helpers.core import World
from txnstore.core.authorization.rights import Right
from txnstore.core.groups.commands import StoreGeneration
from txnstore.core.groups.model import Group
from txnstore.core.model import Command
from txnstore.errors import TopicAuthorizationError
from txnstore.gateway.apis import Api
from txnstore.gateway.groups.classic.coordinator import ClassicCoordinator
from txnstore.gateway.groups.consumer.coordinator import ConsumerCoordinator
from txnstore.gateway.properties import Properties
from txnstore.gateway.server import Client
from txnstore.gateway.services import Services
from txnstore.gateway.wire import Request
from txnstore.runtime import Runtime


def topic_id(name: str, world: World) -> UUID:
    return uuid5(NAMESPACE_OID, world.state.topics[name].topic_id)


class Chain:
    """The chain that gateways share.

    Attributes:
        world: What it has decided.
        generations: The generations of classic groups that were stored, in order.
        looks: How often gateways have asked for its head.
        seconds: Returns how long each half of a request takes.
        fail: Called before ("head", "commit") and after ("committed") the effect of a request; it may raise.
    """

    def __init__(self, world: World | None = None) -> None:
        self.world = World() if world is None else world
        self.world.blind = True  # No lease ends: a gateway names whom it has not heard.
        self.generations: list[StoreGeneration] = []
        self.looks = 0
        self.seconds: Callable[[], float] = lambda: 0.0
        self.fail: Callable[[str], None] = lambda _when: None

    def group(self, name: str = "g") -> Group:
        return self.world.state.groups[name]

    def do(self, command: Command) -> Any:
        entries = len(self.world.entries)
        answer = self.world.do(command)
        if isinstance(command, StoreGeneration) and len(self.world.entries) > entries:
            self.generations.append(command)
        return answer

    async def pause(self) -> None:
        if seconds := self.seconds():
            await asyncio.sleep(seconds)


class Gateway:
    """A gateway.

    Attributes:
        leads: Whether it takes itself for the coordinator.
        commands: What it has asked the chain for.
        hidden: The topics that clients have no right to see.
        fail: In the place of that of the chain, for this gateway alone; None: that one.
    """

    def __init__(
        self,
        chain: Chain | World,
        leads: Callable[[], bool] | None = None,
        runtime: Runtime | None = None,
        **properties: Any,
    ) -> None:
        self.chain = chain if isinstance(chain, Chain) else Chain(chain)
        self.world = self.chain.world
        self.leads = True
        self.commands: list[Command] = []
        self.hidden: set[str] = set()
        self.fail: Callable[[str], None] | None = None
        self.view = self._newest()
        self._commits: set[asyncio.Task[None]] = set()
        numbers = itertools.count(1)
        services = SimpleNamespace(
            freshness=self,
            commits=self,
            properties=Properties(**properties),
            connection=SimpleNamespace(
                runtime=runtime or SimpleNamespace(new_id=lambda: f"new-{next(numbers)}"),
                chains=SimpleNamespace(expired_members=lambda _group: ()),
            ),
            check=self._check,
            may=lambda _client, right: not self.hidden & set(right.names),
        )

        def coordinates(_group: str) -> bool:
            return self.leads if leads is None else leads()

        self.classic = ClassicCoordinator(cast("Services", services), coordinates)
        self.consumers = ConsumerCoordinator(cast("Services", services), coordinates)
        self._handlers = self.classic.handlers() | self.consumers.handlers()

    def _newest(self) -> Any:
        state = self.world.state
        topics = {
            name: replace(topic, topic_id=str(topic_id(name, self.world))) for name, topic in state.topics.items()
        }
        return SimpleNamespace(groups=state.groups, topics=topics, entries=len(self.world.entries))

    def _show(self, view: Any) -> None:
        if view.entries > self.view.entries:
            self.view = view

    def _check(self, _client: Client, *rights: Right) -> None:
        for right in rights:
            if self.hidden & set(right.names):
                raise TopicAuthorizationError("no right", "p", right.operation, tuple(right.names))

    def _fail(self, when: str) -> None:
        (self.fail or self.chain.fail)(when)

    async def recent(self) -> Any:
        return await self.head()

    async def head(self) -> Any:
        self.chain.looks += 1
        await asyncio.sleep(self.chain.seconds())
        self._fail("head")
        view = self._newest()
        await self.chain.pause()
        self._show(view)
        return self.view

    def submit(self, command: Command, _principal: str | None) -> asyncio.Future[Any]:
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.commands.append(command)
        task = asyncio.get_running_loop().create_task(self._commit(command, future))
        self._commits.add(task)
        task.add_done_callback(self._commits.discard)
        return future

    async def _commit(self, command: Command, future: asyncio.Future[Any]) -> None:
        """As the real one: requests see the new view after the caller has its answer."""
        error: Exception | None = None
        answer = None
        try:
            await self.chain.pause()
            self._fail("commit")
            answer = self.chain.do(command)
            self._fail("committed")
            await self.chain.pause()
        except Exception as failure:  # noqa: BLE001 - The caller gets it.
            error = failure
        if future.done():  # The process has died.
            return
        if error is None:
            future.set_result(answer)
        else:
            future.set_exception(error)
        asyncio.get_running_loop().call_soon(lambda: self._show(self._newest()))

    async def send(self, body: Any) -> Mapping[str, Any]:
        """The fields of the response to a request."""
        request = Request(body.__api_key__, body.__version__, 1, "client", body)
        answer = await self._handlers[Api(request.api)](request, Client("10.0.0.1", authenticated=True))
        return cast("Mapping[str, Any]", answer)

    @property
    def group(self) -> Group:
        return self.chain.group()
