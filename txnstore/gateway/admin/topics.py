"""CreateTopics, DeleteTopics, CreatePartitions."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any
from uuid import UUID

from kio.schema.errors import ErrorCode

from txnstore.catalog.settings import INERT_NAMES
from txnstore.catalog.topics import MAX_PARTITIONS, altered_topic, check_place, new_topic
from txnstore.core.authorization.rights import Right
from txnstore.core.catalog.model import CatalogTopic, CreateTopic, DeleteTopic
from txnstore.core.decide import decide
from txnstore.core.routing import CATALOG
from txnstore.core.state import begin_entry
from txnstore.errors import TopicChangedError, TopicExistsError, TxnStoreError
from txnstore.gateway.admin.common import alter_topic, on_topic, refusal, repeated, topic_of
from txnstore.gateway.admin.configs import described_settings
from txnstore.gateway.apis import Api
from txnstore.gateway.errors import RefusedError
from txnstore.gateway.metadata import INTERNAL_TOPICS
from txnstore.gateway.server import Client, Fields, Handler
from txnstore.gateway.services import Services, topic_by_id, topic_uuid
from txnstore.gateway.wire import Request, value
from txnstore.validation import check_topic_name

#: Stands for the default of a number.
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
        asked = {topic.name: topic for topic in request.body.topics}
        twice = repeated(topic.name for topic in request.body.topics)
        answers = [self._created(topic, request, client, is_repeated=name in twice) for name, topic in asked.items()]
        return {"topics": await asyncio.gather(*answers)}

    async def _created(self, asked: Any, request: Request, client: Client, *, is_repeated: bool) -> Fields:
        name = asked.name
        try:
            if is_repeated:
                raise RefusedError(ErrorCode.invalid_request, "Duplicate topic name.")
            self._services.check(client, Right("CREATE", "TOPIC", (name,), ("CREATE", "CLUSTER", "kafka-cluster")))
            if name == _CLUSTER_METADATA:
                raise RefusedError(ErrorCode.invalid_request, f"Creation of internal topic {name} is prohibited.")
            check_topic_name(name)
            if name in INTERNAL_TOPICS:
                # What they hold is in the chains, so there is nothing to create for a client that wants to be sure.
                shape = self._shape(asked, _INTERNAL_PARTITIONS)
                shown = {"num_partitions": shape.partitions, "replication_factor": shape.replicas, "configs": ()}
                return {"name": name, **shown}
            topic, shape = await self._create(asked, client, validate_only=request.body.validate_only)
        except (TxnStoreError, RefusedError) as error:
            return {"name": name, "configs": (), **refusal(error, Api.CREATE_TOPICS, request.version)}
        return {"name": name, "topic_id": topic_uuid(topic), **self._details(topic, shape, client)}

    async def _create(self, asked: Any, client: Client, *, validate_only: bool) -> tuple[CatalogTopic, _Shape]:
        services = self._services
        view = await services.view_with(lambda view: asked.name not in view.topics)
        if asked.name in view.topics:
            raise TopicExistsError(f"Topic '{asked.name}' already exists.")
        without = [config.name for config in asked.configs if config.value is None]
        if without:
            raise RefusedError(ErrorCode.invalid_request, f"Null value not supported for : {', '.join(without)}")
        shape = self._shape(asked, services.properties.num_partitions)
        config = {config.name: config.value for config in asked.configs}
        runtime = services.connection.runtime
        topic = new_topic(runtime, asked.name, shape.partitions, config=config, inert=INERT_NAMES)
        check_place(services.connection.objects, topic)
        if not validate_only:
            return await services.commits.submit(CreateTopic(topic), client.principal), shape
        state = (await services.freshness.head()).states[CATALOG]
        decide(begin_entry(state, runtime.clock()), CreateTopic(topic), services.principal(client))
        return topic, shape

    def _shape(self, asked: Any, default: int) -> _Shape:
        """The partitions and replicas of a new topic, by Kafka's rules. All replicas but one are in the storage."""
        partitions, replicas = asked.num_partitions, asked.replication_factor
        if asked.assignments:
            return self._assigned(asked)
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

    def _assigned(self, asked: Any) -> _Shape:
        """The number of partitions that are assigned; which gateway serves them is not for clients to choose."""
        if asked.replication_factor != _DEFAULT or asked.num_partitions != _DEFAULT:
            which = "replication factor" if asked.replication_factor != _DEFAULT else "numPartitions"
            msg = f"A manual partition assignment was specified, but {which} was not set to -1."
            raise RefusedError(ErrorCode.invalid_request, msg)
        numbers = sorted(each.partition_index for each in asked.assignments)
        if numbers != list(range(len(numbers))):
            msg = "partitions should be a consecutive 0-based integer sequence"
            raise RefusedError(ErrorCode.invalid_replica_assignment, msg)
        self._check_brokers([each.broker_ids for each in asked.assignments])
        return _Shape(len(numbers), len(asked.assignments[0].broker_ids))

    def _check_brokers(self, assignments: list[tuple[int, ...]]) -> None:
        known = {node.node_id for node in self._services.peers.nodes}
        for brokers in assignments:
            if not brokers or len(set(brokers)) < len(brokers) or not set(brokers) <= known:
                msg = f"a partition has each replica on another one of the brokers {sorted(known)}, not {list(brokers)}"
                raise RefusedError(ErrorCode.invalid_replica_assignment, msg)
        if len({len(brokers) for brokers in assignments}) > 1:
            raise RefusedError(ErrorCode.invalid_replica_assignment, "partitions have different numbers of replicas")

    def _details(self, topic: CatalogTopic, shape: _Shape, client: Client) -> Fields:
        """What the response says about a new topic (KIP-525), if the client may know its settings."""
        if not self._services.may(client, on_topic("DESCRIBE_CONFIGS", topic.name)):
            return {"topic_config_error_code": int(ErrorCode.topic_authorization_failed.value), "configs": None}
        return {
            "num_partitions": topic.partitions,
            "replication_factor": shape.replicas,
            "configs": described_settings(topic, self._services.properties, include_synonyms=False),
        }

    # Deleting ---------------------------------------------------------------------------------------------------------

    async def delete(self, request: Request, client: Client) -> Fields:
        """Delete topics, named by their names, or by their ids."""
        names = value(request.body, "topic_names")
        asked: list[tuple[str | None, UUID | None]]
        if names is not None:
            asked = [(name, None) for name in names]
        else:
            asked = [(topic.name, topic.topic_id or None) for topic in request.body.topics]
        twice = repeated(asked)
        answers = [
            self._deleted(name, topic_id, request.version, client, is_repeated=(name, topic_id) in twice)
            for name, topic_id in dict.fromkeys(asked)
        ]
        return {"responses": await asyncio.gather(*answers)}

    async def _deleted(
        self, name: str | None, topic_id: UUID | None, version: int, client: Client, *, is_repeated: bool
    ) -> Mapping[str, Any]:
        try:
            if (name is None) == (topic_id is None):
                what = "Neither topic name nor id were specified." if name is None else "Name and id were specified."
                raise RefusedError(ErrorCode.invalid_request, what)
            if is_repeated:
                what = "Duplicate topic name." if topic_id is None else "Duplicate topic id."
                raise RefusedError(ErrorCode.invalid_request, what)
            deleted = await (self._delete(name, client) if name is not None else self._delete_by_id(topic_id, client))
        except (TxnStoreError, RefusedError) as error:
            return {"name": name, "topic_id": topic_id, **refusal(error, Api.DELETE_TOPICS, version)}
        return {"name": deleted.name, "topic_id": topic_uuid(deleted)}

    async def _delete(self, name: str, client: Client) -> CatalogTopic:
        services = self._services
        services.check(client, on_topic("DELETE", name))
        topic = topic_of(await services.view_with(lambda view: name in view.topics), name)
        await services.commits.submit(DeleteTopic(name), client.principal)
        return topic

    async def _delete_by_id(self, topic_id: UUID | None, client: Client) -> CatalogTopic:
        services = self._services
        while True:
            topic = topic_by_id(await services.freshness.head(), topic_id)
            services.check(client, on_topic("DELETE", topic.name))
            try:
                # Of this revision: another topic may have the name by now.
                await services.commits.submit(DeleteTopic(topic.name, topic.revision), client.principal)
            except TopicChangedError:
                continue
            return topic

    # Partitions -------------------------------------------------------------------------------------------------------

    async def create_partitions(self, request: Request, client: Client) -> Fields:
        """Add partitions to topics."""
        asked = {topic.name: topic for topic in request.body.topics}
        twice = repeated(topic.name for topic in request.body.topics)
        answers = [self._enlarged(topic, request, client, is_repeated=name in twice) for name, topic in asked.items()]
        return {"results": await asyncio.gather(*answers)}

    async def _enlarged(self, asked: Any, request: Request, client: Client, *, is_repeated: bool) -> Fields:
        try:
            if is_repeated:
                raise RefusedError(ErrorCode.invalid_request, "Duplicate topic name.")
            self._services.check(client, on_topic("ALTER", asked.name))
            change = partial(self._with_partitions, asked)
            validate_only = request.body.validate_only
            await alter_topic(self._services, client, asked.name, change, validate_only=validate_only)
        except (TxnStoreError, RefusedError) as error:
            return {"name": asked.name, **refusal(error, Api.CREATE_PARTITIONS, request.version)}
        return {"name": asked.name}

    def _with_partitions(self, asked: Any, topic: CatalogTopic) -> CatalogTopic:
        count, before = asked.count, topic.partitions
        if count == before:
            raise RefusedError(ErrorCode.invalid_partitions, f"Topic already has {before} partition(s).")
        if count < before:
            msg = f"The topic {topic.name} currently has {before} partition(s); {count} would not be an increase."
            raise RefusedError(ErrorCode.invalid_partitions, msg)
        if count > MAX_PARTITIONS:
            msg = f"a topic has at most {MAX_PARTITIONS} partitions, not {count}"
            raise RefusedError(ErrorCode.invalid_partitions, msg)
        if asked.assignments is not None:
            if len(asked.assignments) != count - before:
                msg = (
                    f"Attempted to add {count - before} additional partition(s), but only {len(asked.assignments)} "
                    "assignment(s) were specified."
                )
                raise RefusedError(ErrorCode.invalid_replica_assignment, msg)
            self._check_brokers([each.broker_ids for each in asked.assignments])
        return altered_topic(topic, count)
