"""Helpers of the requests of administrators: rights on the cluster, changes of a topic, repeated names."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable
from typing import TypeVar

from kio.schema.errors import ErrorCode

from txnstore.catalog.topics import check_table_location
from txnstore.core.authorization.model import CLUSTER, Operation
from txnstore.core.authorization.rights import Right
from txnstore.core.catalog.model import AlterTopic, CatalogTopic
from txnstore.core.view import View
from txnstore.errors import TopicChangedError, TxnStoreError
from txnstore.gateway.apis import Api
from txnstore.gateway.errors import RefusedError, code_of, message_of
from txnstore.gateway.server import Client
from txnstore.gateway.services import Services

H = TypeVar("H", bound=Hashable)


def on_cluster(operation: Operation) -> Right:
    """The right to an operation on the cluster."""
    return Right(operation, "CLUSTER", (CLUSTER,))


def on_topic(operation: Operation, name: str) -> Right:
    """The right to an operation on a topic."""
    return Right(operation, "TOPIC", (name,))


def is_led(services: Services, chain: int, name: str, number: int = 0) -> bool:
    """Whether this gateway leads what has this name: clients ask all gateways for lists, and merge the responses."""
    return services.peers.leader(chain, name, number) == services.peers.own


def error_fields(error: TxnStoreError | RefusedError, api: Api, version: int) -> dict[str, object]:
    """The fields of a response with an error."""
    return {"error_code": code_of(error, api, version), "error_message": message_of(error)}


def duplicates(items: Iterable[H]) -> set[H]:
    """The items that occur more than once: Kafka refuses all of them."""
    return {value for value, count in Counter(items).items() if count > 1}


def topic_of(view: View, name: str) -> CatalogTopic:
    """Return the topic of a name; the error suggests no other topic, which the client may not be allowed to see.

    Raises:
        RefusedError: There is none.
    """
    topic = view.topics.get(name)
    if topic is None:
        raise RefusedError(ErrorCode.unknown_topic_or_partition, f"there is no topic {name!r}")
    return topic


async def alter_topic(
    services: Services,
    client: Client,
    name: str,
    change: Callable[[CatalogTopic], CatalogTopic],
    *,
    validate_only: bool,
) -> CatalogTopic:
    """Change a topic, and keep changes that other processes make meanwhile.

    Args:
        services: The services.
        client: The client that needs the right.
        name: The name of the topic.
        change: Returns the next version of a topic.
        validate_only: Check the next version without storing it.

    Raises:
        RefusedError: There is no such topic.
        TxnStoreError: The change is refused, or cannot be stored.
    """
    while True:
        view = await services.freshness.head()
        topic = topic_of(view, name)
        try:
            next_topic = change(topic)
        except RefusedError:  # It may have so many partitions already.
            await services.make_durable(view)
            raise
        check_table_location(services.connection.objects, next_topic, topic)
        if validate_only:
            return next_topic
        try:
            command = AlterTopic(next_topic, topic.version)
            stored_topic: CatalogTopic = await services.commits.submit(command, client.principal)
        except TopicChangedError:
            continue  # Only after a change by another process, so the loop ends.
        if stored_topic.config != topic.config:
            await services.log_neglect(stored_topic)
        return stored_topic
