"""The services that all handlers of a gateway share."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import TypeVar
from uuid import UUID

from kio.schema.errors import ErrorCode

from txnstore.admin.upkeep import neglect_of
from txnstore.connection import Connection
from txnstore.core.authorization.rights import Right, check_rights
from txnstore.core.catalog.model import CatalogTopic
from txnstore.core.view import View
from txnstore.errors import AuthorizationError, UnknownTopicOrPartitionError
from txnstore.gateway.commits import Commits
from txnstore.gateway.errors import RefusedError
from txnstore.gateway.freshness import Freshness
from txnstore.gateway.logs import limited_logger
from txnstore.gateway.peers import Peers
from txnstore.gateway.properties import Properties
from txnstore.gateway.server import Client
from txnstore.gateway.sessions import Sessions

_LOG = limited_logger(__name__)

T = TypeVar("T")
#: The epoch of the leader of each partition.
LEADER_EPOCH = 0


@dataclass(frozen=True, slots=True)
class Services:
    """The services that handlers share.

    Attributes:
        threads: Runs what waits for the storage, and conversions that take long.
        commits: Commits commands.
        sessions: The identities of clients of transactions v1.
        freshness: The newest view, and changes of it.
        properties: The properties of the gateway.
        peers: The gateways of the store.
    """

    connection: Connection
    threads: Executor
    commits: Commits
    sessions: Sessions
    freshness: Freshness
    properties: Properties
    peers: Peers

    async def log_neglect(self, topic: CatalogTopic) -> None:
        """Log once that no process applies a setting of a topic that was created or altered, if that is so."""
        cached: dict[str, bool] = self.connection.cached("logged neglect", dict)
        if cached.get("is_logged"):
            return
        text = await self.in_thread(partial(neglect_of, self.connection, topic))
        if text:
            cached["is_logged"] = True
            _LOG.warning("the store is not maintained: %s", text, extra={"topic": topic.name, "reason": text})

    async def in_thread(self, call: Callable[[], T]) -> T:
        """Run a call that waits for the storage, or computes for long, outside the event loop."""
        return await asyncio.get_running_loop().run_in_executor(self.threads, call)

    async def view_with(self, is_enough: Callable[[View], bool]) -> View:
        """Return the known view if it is enough, else the view at the heads of the chains."""
        view = self.freshness.view
        return view if is_enough(view) else await self.freshness.since_request()

    async def make_durable(self, view: View) -> None:
        """Flush what a view shows, before a repeated request is answered by it: done already."""
        await self.in_thread(partial(self.connection.chains.make_durable, view))

    async def find(self, name: str | None, topic_id: UUID | None, partition: int) -> CatalogTopic:
        """Return the topic of a name, or of an id if the name is None; read at the heads if it is not known.

        Raises:
            RefusedError: There is none, or it has no such partition.
        """
        try:
            return _topic_in(self.freshness.view, name, topic_id, partition)
        except RefusedError:
            return _topic_in(await self.freshness.since_request(), name, topic_id, partition)

    async def read_rules(self) -> None:
        """Read the rules of the store if it checks rights, and they were last read a second ago; one GET.

        The chains check each command by the newest rules. Reads, and checks before a command, use these rules.
        """
        if self.connection.chain.state.authorization.mode != "off":
            await self.freshness.recent()

    def check(self, client: Client, *rights: Right) -> None:
        """Check that the principal of a connection has these rights, by the rules as they are known; no request.

        Raises:
            AuthorizationError: It lacks one.
        """
        check_rights(self.connection.chain.state.authorization, self.principal(client), rights)

    def may(self, client: Client, *rights: Right) -> bool:
        """Whether the principal of a connection has these rights."""
        try:
            self.check(client, *rights)
        except AuthorizationError:
            return False
        return True

    def principal(self, client: Client) -> str:
        """The principal of a connection; without authentication that of the gateway."""
        return client.principal or self.connection.principal


def _topic_in(view: View, name: str | None, topic_id: UUID | None, partition: int) -> CatalogTopic:
    topic = topic_by_id(view, topic_id) if name is None else view.topics.get(name)
    if topic is None or not 0 <= partition < topic.partitions:
        msg = f"there is no partition {partition} of {name or topic_id!r}"
        raise RefusedError(ErrorCode.unknown_topic_or_partition, msg)
    return topic


def newest_version(view: View, topic: CatalogTopic) -> CatalogTopic:
    """The version of a topic in a view, for records that were sent to this version.

    Raises:
        UnknownTopicOrPartitionError: It was deleted, also if another topic has its name now.
    """
    newest_topic = view.topics.get(topic.name)
    if newest_topic is None or newest_topic.topic_id != topic.topic_id:
        msg = f"topic {topic.name!r} was deleted{'' if newest_topic is None else ' and created again'}"
        raise UnknownTopicOrPartitionError(f"{msg}; records for the old topic are refused")
    return newest_topic


def topic_uuid(topic: CatalogTopic) -> UUID:
    """The id of a topic in Kafka's form."""
    return UUID(topic.topic_id)


def topic_by_id(view: View, topic_id: UUID | None) -> CatalogTopic:
    """The topic of an id.

    Raises:
        RefusedError: There is none.
    """
    topic = _topics_by_id(_CatalogKey(view.topics)).get(topic_id)
    if topic is None:
        raise RefusedError(ErrorCode.unknown_topic_id, f"there is no topic with the id {topic_id}")
    return topic


class _CatalogKey:
    """The topics by name as a cache key, compared by identity: the mapping never changes."""

    __slots__ = ("topics",)

    def __init__(self, topics: Mapping[str, CatalogTopic]) -> None:
        self.topics = topics

    def __hash__(self) -> int:
        return id(self.topics)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _CatalogKey) and other.topics is self.topics


@lru_cache(maxsize=4)
def _topics_by_id(catalog: _CatalogKey) -> dict[UUID | None, CatalogTopic]:
    """The topics by id, kept because a Fetch may name thousands."""
    return {topic_uuid(topic): topic for topic in catalog.topics.values()}


def check_leader_epoch(current_epoch: int) -> None:
    """Check the leader epoch that a client knows: each partition has one, which never changes.

    Raises:
        RefusedError: The epoch is a later one (UNKNOWN_LEADER_EPOCH).
    """
    if current_epoch > LEADER_EPOCH:
        raise RefusedError(ErrorCode.unknown_leader_epoch, f"there is no leader epoch {current_epoch} yet")
