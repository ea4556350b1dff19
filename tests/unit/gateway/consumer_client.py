"""Clients of groups of KIP-848 that send heartbeats to one of several gateways."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from kio.index import load_request_schema
from kio.schema.errors import ErrorCode

from tests.unit.gateway.gateways import Gateway, topic_id
from txnstore.gateway.apis import Api
from txnstore.gateway.wire import build

#: The properties of the gateways, in ms.
SESSION, INTERVAL, REBALANCE = 45_000, 5_000, 300_000


async def ask(gateway: Gateway, version: int = 1, **fields: Any) -> dict[str, Any]:
    """The fields of the response to a heartbeat, with those that are left out."""
    schema: Any = load_request_schema(int(Api.CONSUMER_GROUP_HEARTBEAT), version)
    body = build(schema, {"group_id": "g", "rebalance_timeout": -1, "topic_partitions": None, **fields})
    return {"error_code": ErrorCode.none, "assignment": None, **await gateway.send(body)}


@dataclass
class Client:
    """A consumer that follows its assignment with its next heartbeat."""

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
        answer = await ask(
            self.gateway,
            **{
                "member_id": self.member_id,
                "member_epoch": self.epoch,
                "instance_id": self.instance_id,
                **fields,
            },
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
