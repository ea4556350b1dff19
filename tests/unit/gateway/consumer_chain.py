"""Groups of KIP-848 on the pure core: gateways that share a chain, and clients that send heartbeats to one of them."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any, cast
from uuid import NAMESPACE_OID, UUID, uuid5

from kio.index import load_request_schema
from kio.schema.errors import ErrorCode

from tests.helpers.core import World
from txnstore.core.authorization.rights import Right
from txnstore.core.commands import Command
from txnstore.core.groups.model import Group
from txnstore.errors import TopicAuthorizationError
from txnstore.gateway.apis import Api
from txnstore.gateway.groups.consumer_handlers import ConsumerGroups
from txnstore.gateway.properties import Properties
from txnstore.gateway.server import Peer
from txnstore.gateway.services import Services
from txnstore.gateway.wire import Request, build

#: The properties of the gateways, in ms.
SESSION, INTERVAL, REBALANCE = 45_000, 5_000, 300_000


def topic_id(name: str, world: World) -> UUID:
    return uuid5(NAMESPACE_OID, world.state.topics[name].topic_id)


class Gateway:
    """A gateway, as far as the groups of KIP-848 need one.

    Attributes:
        leads: Whether it takes itself for the coordinator.
        commands: What it has asked the chain for.
        hidden: The topics that clients have no right to see.
        fail: Called before and after the effect of a command; it may raise.
    """

    def __init__(self, world: World, **properties: Any) -> None:
        self.world = world
        self.leads = True
        self.commands: list[Command] = []
        self.hidden: set[str] = set()
        self.fail: Callable[[str], None] = lambda _when: None
        self._numbers = itertools.count(1)
        self.view = self._newest()
        runtime = SimpleNamespace(new_id=lambda: f"new-{next(self._numbers)}")
        services = SimpleNamespace(
            freshness=self,
            commits=self,
            properties=Properties(**properties),
            connection=SimpleNamespace(runtime=runtime),
            check=self._check,
            may=lambda _peer, right: not self.hidden & set(right.names),
        )
        self.groups = ConsumerGroups(cast("Services", services), lambda _group: self.leads)

    def _newest(self) -> Any:
        state = self.world.state
        topics = {
            name: replace(topic, topic_id=str(topic_id(name, self.world))) for name, topic in state.topics.items()
        }
        return SimpleNamespace(groups=state.groups, topics=topics)

    def _check(self, _peer: Peer, *rights: Right) -> None:
        for right in rights:
            if self.hidden & set(right.names):
                raise TopicAuthorizationError("no right", "p", right.operation, tuple(right.names))

    async def recent(self) -> Any:
        return await self.head()

    async def head(self) -> Any:
        await asyncio.sleep(0)
        self.fail("head")
        self.view = self._newest()
        return self.view

    def submit(self, command: Command, _principal: str | None) -> asyncio.Future[Any]:
        """As the real one: requests see the new view after the caller has its answer."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Any] = loop.create_future()

        def commit() -> None:
            try:
                self.fail("commit")
                answer = self.world.do(command)
                self.fail("committed")
                future.set_result(answer)
            except Exception as error:  # noqa: BLE001 - The caller gets it.
                future.set_exception(error)
            loop.call_soon(lambda: setattr(self, "view", self._newest()))

        self.commands.append(command)
        loop.call_soon(commit)
        return future

    async def ask(self, version: int = 1, **fields: Any) -> dict[str, Any]:
        """The fields of a response, with those that are left out."""
        schema: Any = load_request_schema(int(Api.CONSUMER_GROUP_HEARTBEAT), version)
        body = build(schema, {"group_id": "g", "rebalance_timeout": -1, "topic_partitions": None, **fields})
        request = Request(int(Api.CONSUMER_GROUP_HEARTBEAT), version, 1, "client", body)
        answer = await self.groups.heartbeat(request, Peer("10.0.0.1", authenticated=True))
        assert answer is not None
        return {"error_code": ErrorCode.none, "assignment": None, **cast("dict[str, Any]", answer)}

    @property
    def group(self) -> Group:
        return self.world.state.groups["g"]


@dataclass
class Client:
    """A consumer that does what it is told with its next heartbeat."""

    gateway: Gateway
    member_id: str
    names: tuple[str, ...] | None = ("t",)
    instance_id: str | None = None
    regex: str | None = None
    assignor: str | None = None
    epoch: int = 0
    owned: list[int] = field(default_factory=list)

    async def join(self, **fields: Any) -> dict[str, Any]:
        """Send all it has, as to a new coordinator."""
        if self.epoch == 0:
            self.owned = []
        return await self.beat(
            rebalance_timeout=REBALANCE,
            subscribed_topic_names=self.names,
            subscribed_topic_regex=self.regex,
            server_assignor=self.assignor,
            **{"topic_partitions": self.partitions(), **fields},
        )

    async def beat(self, **fields: Any) -> dict[str, Any]:
        answer = await self.gateway.ask(
            **{
                "member_id": self.member_id,
                "member_epoch": self.epoch,
                "instance_id": self.instance_id,
                **fields,
            }
        )
        if answer["error_code"] is ErrorCode.none and answer["member_epoch"] >= 0:
            self.epoch = answer["member_epoch"]
            if answer["assignment"] is not None:
                topics = answer["assignment"]["topic_partitions"]
                self.owned = [number for topic in topics for number in topic["partitions"]]
        return answer

    async def release(self) -> dict[str, Any]:
        """Send what it owns, as after it has given up partitions."""
        return await self.beat(topic_partitions=self.partitions())

    def partitions(self) -> list[dict[str, Any]]:
        if not self.owned:
            return []
        return [{"topic_id": topic_id("t", self.gateway.world), "partitions": self.owned}]
