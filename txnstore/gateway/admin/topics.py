"""CreateTopics, DeleteTopics, CreatePartitions."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any
from uuid import UUID

from kio.schema.errors import ErrorCode

from txnstore.catalog.settings import INERT_NAMES
from txnstore.catalog.topics import MAX_PARTITIONS, altered_topic, check_table_location, new_topic
from txnstore.core.authorization.rights import Right
from txnstore.core.catalog.model import CatalogTopic, CreateTopic, DeleteTopic
from txnstore.core.decide import decide
from txnstore.core.routing import CATALOG
from txnstore.core.state import begin_entry
from txnstore.errors import TopicChangedError, TopicExistsError, TxnStoreError
from txnstore.gateway.admin.common import alter_topic, duplicates, error_fields, on_topic, topic_of
from txnstore.gateway.admin.configs import settings_fields
from txnstore.gateway.apis import Api
from txnstore.gateway.errors import RefusedError
from txnstore.gateway.metadata import INTERNAL_TOPICS
from txnstore.gateway.server import Client, Fields, Handler
from txnstore.gateway.services import Services, topic_by_id, topic_uuid
from txnstore.gateway.wire import Request, field_value
from txnstore.validation import check_topic_name

#: Stands for a default number of partitions or replicas.
_DEFAULT = -1
#: The partitions of Kafka's internal topics.
_INTERNAL_PARTITIONS = 50
#: The topic of KRaft, which no client may create.
_CLUSTER_METADATA = "__cluster_metadata"


@dataclass(frozen=True, slots=True)
class _Shape:
    """The partitions and replicas that a client asks for."""

    partitions: int
    replicas: int


class Topics:
    """Creates, deletes and enlarges topics."""

    def __init__(self, services: Services) -> None:
        self._services = services

    def handlers(self) -> dict[Api, Handler]:
        """The handlers of its APIs."""
        return {
            Api.CREATE_TOPICS: self.create,
            Api.DELETE_TOPICS: self.delete,
            Api.CREATE_PARTITIONS: self.create_partitions,
        }

    # Creating ---------------------------------------------------------------------------------------------------------

    async def create(self, request: Request, client: Client) -> Fields:
        """Create topics; each is refused alone."""
        return {
            "topics": await _for_each_topic(request, partial(self._create_or_error, request=request, client=client))
        }

    async def _create_or_error(
        self, requested_topic: Any, request: Request, client: Client, *, is_repeated: bool
    ) -> Fields:
        """Create or validate one requested topic; return its fields, with the error if it was refused."""
        name = requested_topic.name
        try:
            if is_repeated:
                raise RefusedError(ErrorCode.invalid_request, "Duplicate topic name.")
            self._services.check(client, Right("CREATE", "TOPIC", (name,), ("CREATE", "CLUSTER", "kafka-cluster")))
            if name == _CLUSTER_METADATA:
                raise RefusedError(ErrorCode.invalid_request, f"Creation of internal topic {name} is prohibited.")
            check_topic_name(name)
            if name in INTERNAL_TOPICS:
                # The chains have their content, so creating them has no effect.
                shape = self._shape(requested_topic, _INTERNAL_PARTITIONS)
                shape_fields = {"num_partitions": shape.partitions, "replication_factor": shape.replicas, "configs": ()}
                return {"name": name, **shape_fields}
            topic, shape = await self._create(requested_topic, client, validate_only=request.body.validate_only)
        except (TxnStoreError, RefusedError) as error:
            return {"name": name, "configs": (), **error_fields(error, Api.CREATE_TOPICS, request.version)}
        return {"name": name, "topic_id": topic_uuid(topic), **self._details_fields(topic, shape, client)}

    async def _create(
        self, requested_topic: Any, client: Client, *, validate_only: bool
    ) -> tuple[CatalogTopic, _Shape]:
        """Create a topic, or only decide whether it could be created; return it with its partitions and replicas."""
        services = self._services
        view = await services.view_with(lambda view: requested_topic.name not in view.topics)
        if requested_topic.name in view.topics:
            await services.make_durable(view)
            raise TopicExistsError(f"Topic '{requested_topic.name}' already exists.")
        without_value = [config.name for config in requested_topic.configs if config.value is None]
        if without_value:
            raise RefusedError(ErrorCode.invalid_request, f"Null value not supported for : {', '.join(without_value)}")
        shape = self._shape(requested_topic, services.properties.num_partitions)
        config = {config.name: config.value for config in requested_topic.configs}
        runtime = services.connection.runtime
        topic = new_topic(runtime, requested_topic.name, shape.partitions, config=config, inert=INERT_NAMES)
        check_table_location(services.connection.objects, topic)
        if not validate_only:
            created: CatalogTopic = await services.commits.submit(CreateTopic(topic), client.principal)
            await services.log_neglect(created)
            return created, shape
        state = (await services.freshness.head()).states[CATALOG]
        decide(begin_entry(state, runtime.clock()), CreateTopic(topic), services.principal(client))
        return topic, shape

    def _shape(self, requested_topic: Any, default: int) -> _Shape:
        """The partitions and replicas of a new topic, by Kafka's rules. All replicas but one are in the storage."""
        partitions, replicas = requested_topic.num_partitions, requested_topic.replication_factor
        if requested_topic.assignments:
            return self._assigned_shape(requested_topic)
        if replicas < _DEFAULT or replicas == 0:
            msg = "Replication factor must be larger than 0, or -1 to use the default value."
            raise RefusedError(ErrorCode.invalid_replication_factor, msg)
        if partitions < _DEFAULT or partitions == 0:
            msg = "Number of partitions was set to an invalid non-positive value."
            raise RefusedError(ErrorCode.invalid_partitions, msg)
        if partitions > MAX_PARTITIONS:
            msg = f"a topic has at most {MAX_PARTITIONS} partitions, not {partitions}"
            raise RefusedError(ErrorCode.invalid_partitions, msg)
        return _Shape(default if partitions == _DEFAULT else partitions, 1 if replicas == _DEFAULT else replicas)

    def _assigned_shape(self, requested_topic: Any) -> _Shape:
        """Count the assigned partitions and replicas; clients cannot choose the gateways of partitions."""
        if requested_topic.replication_factor != _DEFAULT or requested_topic.num_partitions != _DEFAULT:
            field_name = "replication factor" if requested_topic.replication_factor != _DEFAULT else "numPartitions"
            msg = f"A manual partition assignment was specified, but {field_name} was not set to -1."
            raise RefusedError(ErrorCode.invalid_request, msg)
        numbers = sorted(assignment.partition_index for assignment in requested_topic.assignments)
        if numbers != list(range(len(numbers))):
            msg = "partitions should be a consecutive 0-based integer sequence"
            raise RefusedError(ErrorCode.invalid_replica_assignment, msg)
        self._check_brokers([assignment.broker_ids for assignment in requested_topic.assignments])
        return _Shape(len(numbers), len(requested_topic.assignments[0].broker_ids))

    def _check_brokers(self, assignments: list[tuple[int, ...]]) -> None:
        """Check the replica assignments of a request: known brokers, no repetition, as many for each partition."""
        broker_ids = {node.node_id for node in self._services.peers.nodes}
        for brokers in assignments:
            if not brokers or len(set(brokers)) < len(brokers) or not set(brokers) <= broker_ids:
                known_ids = sorted(broker_ids)
                msg = f"a partition has each replica on another one of the brokers {known_ids}, not {list(brokers)}"
                raise RefusedError(ErrorCode.invalid_replica_assignment, msg)
        if len({len(brokers) for brokers in assignments}) > 1:
            raise RefusedError(ErrorCode.invalid_replica_assignment, "partitions have different numbers of replicas")

    def _details_fields(self, topic: CatalogTopic, shape: _Shape, client: Client) -> Fields:
        """The details of a new topic in the response (KIP-525), if the client may see its settings."""
        if not self._services.may(client, on_topic("DESCRIBE_CONFIGS", topic.name)):
            return {"topic_config_error_code": int(ErrorCode.topic_authorization_failed.value), "configs": None}
        return {
            "num_partitions": topic.partitions,
            "replication_factor": shape.replicas,
            "configs": settings_fields(topic, self._services.properties, include_synonyms=False),
        }

    # Deleting ---------------------------------------------------------------------------------------------------------

    async def delete(self, request: Request, client: Client) -> Fields:
        """Delete topics by name or by id."""
        names = field_value(request.body, "topic_names")
        keys: list[tuple[str | None, UUID | None]]
        if names is not None:
            keys = [(name, None) for name in names]
        else:
            keys = [(topic.name, topic.topic_id or None) for topic in request.body.topics]
        duplicate_keys = duplicates(keys)
        responses = [
            self._delete_or_error(
                name, topic_id, request.version, client, is_repeated=(name, topic_id) in duplicate_keys
            )
            for name, topic_id in dict.fromkeys(keys)
        ]
        return {"responses": await asyncio.gather(*responses)}

    async def _delete_or_error(
        self, name: str | None, topic_id: UUID | None, version: int, client: Client, *, is_repeated: bool
    ) -> Mapping[str, Any]:
        """Delete one topic by name or by id; return its fields, with the error if it was refused."""
        try:
            if (name is None) == (topic_id is None):
                message = "Neither topic name nor id were specified." if name is None else "Name and id were specified."
                raise RefusedError(ErrorCode.invalid_request, message)
            if is_repeated:
                message = "Duplicate topic name." if topic_id is None else "Duplicate topic id."
                raise RefusedError(ErrorCode.invalid_request, message)
            deletion = self._delete(name, client) if name is not None else self._delete_by_id(topic_id, client)
            deleted_topic = await deletion
        except (TxnStoreError, RefusedError) as error:
            return {"name": name, "topic_id": topic_id, **error_fields(error, Api.DELETE_TOPICS, version)}
        return {"name": deleted_topic.name, "topic_id": topic_uuid(deleted_topic)}

    async def _delete(self, name: str, client: Client) -> CatalogTopic:
        services = self._services
        services.check(client, on_topic("DELETE", name))
        view = await services.view_with(lambda view: name in view.topics)
        if name not in view.topics:
            await services.make_durable(view)
        topic = topic_of(view, name)
        await services.commits.submit(DeleteTopic(name), client.principal)
        return topic

    async def _delete_by_id(self, topic_id: UUID | None, client: Client) -> CatalogTopic:
        """Delete the topic with an id, whatever its name is by now."""
        services = self._services
        while True:
            view = await services.freshness.head()
            try:
                topic = topic_by_id(view, topic_id)
            except RefusedError:
                await services.make_durable(view)
                raise
            services.check(client, on_topic("DELETE", topic.name))
            try:
                # Only this revision: another topic may have the name by now.
                await services.commits.submit(DeleteTopic(topic.name, topic.revision), client.principal)
            except TopicChangedError:
                continue
            return topic

    # Partitions -------------------------------------------------------------------------------------------------------

    async def create_partitions(self, request: Request, client: Client) -> Fields:
        """Add partitions to topics; each is refused alone."""
        change = partial(self._enlarge_or_error, request=request, client=client)
        return {"results": await _for_each_topic(request, change)}

    async def _enlarge_or_error(
        self, requested_topic: Any, request: Request, client: Client, *, is_repeated: bool
    ) -> Fields:
        """Add partitions to one topic; return its fields, with the error if it was refused."""
        try:
            if is_repeated:
                raise RefusedError(ErrorCode.invalid_request, "Duplicate topic name.")
            self._services.check(client, on_topic("ALTER", requested_topic.name))
            change = partial(self._with_partition_count, requested_topic)
            validate_only = request.body.validate_only
            await alter_topic(self._services, client, requested_topic.name, change, validate_only=validate_only)
        except (TxnStoreError, RefusedError) as error:
            return {"name": requested_topic.name, **error_fields(error, Api.CREATE_PARTITIONS, request.version)}
        return {"name": requested_topic.name}

    def _with_partition_count(self, requested_topic: Any, topic: CatalogTopic) -> CatalogTopic:
        """Return the topic with the requested number of partitions, which must be larger than the current one."""
        count, current_count = requested_topic.count, topic.partitions
        if count == current_count:
            raise RefusedError(ErrorCode.invalid_partitions, f"Topic already has {current_count} partition(s).")
        if count < current_count:
            msg = (
                f"The topic {topic.name} currently has {current_count} partition(s); {count} would not be an increase."
            )
            raise RefusedError(ErrorCode.invalid_partitions, msg)
        if count > MAX_PARTITIONS:
            msg = f"a topic has at most {MAX_PARTITIONS} partitions, not {count}"
            raise RefusedError(ErrorCode.invalid_partitions, msg)
        if requested_topic.assignments is not None:
            if len(requested_topic.assignments) != count - current_count:
                msg = (
                    f"Attempted to add {count - current_count} additional partition(s), "
                    f"but only {len(requested_topic.assignments)} assignment(s) were specified."
                )
                raise RefusedError(ErrorCode.invalid_replica_assignment, msg)
            self._check_brokers([assignment.broker_ids for assignment in requested_topic.assignments])
        return altered_topic(topic, count)


async def _for_each_topic(request: Request, change: Callable[..., Awaitable[Fields]]) -> list[Fields]:
    """The fields of each topic of a request, changed at the same time; ``is_repeated``: the request names it twice."""
    topics_by_name = {topic.name: topic for topic in request.body.topics}
    repeated_names = duplicates(topic.name for topic in request.body.topics)
    return await asyncio.gather(
        *(change(topic, is_repeated=name in repeated_names) for name, topic in topics_by_name.items())
    )
