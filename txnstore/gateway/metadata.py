"""ApiVersions, Metadata, DescribeCluster, DescribeTopicPartitions, FindCoordinator: what exists, and where to ask."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from operator import is_not
from typing import Any

from kio.schema.errors import ErrorCode

from txnstore.caches import ByteCache
from txnstore.catalog.topics import new_topic
from txnstore.core.authorization.model import CLUSTER
from txnstore.core.authorization.rights import Right
from txnstore.core.catalog.model import CatalogTopic, CreateTopic
from txnstore.core.model import TopicPartition
from txnstore.core.routing import CATALOG, chain_of_group, chain_of_partition, chain_of_transactional_id
from txnstore.errors import AuthorizationError, TopicExistsError, TxnStoreError
from txnstore.gateway.apis import LISTED_FIRST, VERSIONS, Api
from txnstore.gateway.errors import RefusedError, code_of, message_of
from txnstore.gateway.operations import NO_OPERATIONS, operations_of
from txnstore.gateway.peers import Node
from txnstore.gateway.server import Client, Fields, Handler, ResponseBuilder, SharedResponse
from txnstore.gateway.services import Services, topic_uuid
from txnstore.gateway.wire import Request, field_value
from txnstore.validation import check_topic_name

#: Java clients from 4.0 on use transactions of version 2 if the cluster has the first feature (KIP-890); the second
#: tells tools that groups of KIP-848 are served.
_FEATURES = {"transaction.version": 2, "group.version": 1}
#: The first version of Metadata whose response may leave out the name of a topic that was asked for by its id.
_WITHOUT_NAME = 12
#: The name of Kafka's own clients, which continue without a broker that leaves the metadata.
_JAVA = "apache-kafka-java"
#: The endpoint type of brokers (KIP-919): a gateway lists no controllers.
_BROKERS = 1
#: The types of coordinators: groups, transactions.
_GROUP, _TRANSACTION = 0, 1
#: Partitions that the event loop describes at a time, which takes it about 50 ms: the most of a page, as in Kafka
#: (``max.request.partition.size.limit``), and of a response that is not built in a thread.
MOST_AT_ONCE = 2_000
#: The most bytes of encoded responses that are kept.
_KEPT_BYTES = 16 << 20
#: Topics of brokers. A gateway keeps what they hold in the chains; clients may ask whether they exist.
INTERNAL_TOPICS = frozenset({"__consumer_offsets", "__transaction_state"})


def versions_fields(apis: Iterable[Api], code: ErrorCode = ErrorCode.none) -> Fields:
    """Return the fields of a response to ApiVersions."""
    api_keys = [
        {
            "api_key": int(api),
            "min_version": LISTED_FIRST.get(api, VERSIONS[api].first),
            "max_version": VERSIONS[api].last,
        }
        for api in sorted(apis)
    ]
    features = [{"name": name, "min_version": 0, "max_version": level} for name, level in _FEATURES.items()]
    finalized_features = [
        {"name": name, "min_version_level": level, "max_version_level": level} for name, level in _FEATURES.items()
    ]
    return {
        "error_code": code,
        "api_keys": api_keys,
        "supported_features": features,
        "finalized_features": finalized_features,
        "finalized_features_epoch": 0,
    }


class Metadata:
    """Answers what exists, and which gateway serves it."""

    def __init__(self, services: Services) -> None:
        self._services = services
        #: Encoded responses, by what they depend on besides ``_basis``.
        self._responses: ByteCache[Hashable, bytes] = ByteCache(_KEPT_BYTES)
        #: The catalog, the rules and the live gateways by which the responses were made, compared by identity; each
        #: change of them has a number, so that a thread which was late keeps nothing for the next one.
        self._basis: tuple[object, ...] = ()
        self._basis_number = 0

    def handlers(self) -> dict[Api, Handler]:
        """The handlers of Metadata, DescribeCluster, DescribeTopicPartitions and FindCoordinator."""
        return {
            Api.METADATA: self.metadata,
            Api.DESCRIBE_CLUSTER: self.describe_cluster,
            Api.DESCRIBE_TOPIC_PARTITIONS: self.describe_topic_partitions,
            Api.FIND_COORDINATOR: self.find_coordinator,
        }

    # Topics -----------------------------------------------------------------------------------------------------------

    async def metadata(self, request: Request, client: Client) -> Fields | ResponseBuilder | SharedResponse:
        """Return the gateways, and topics with the leaders of their partitions."""
        requested_topics = field_value(request.body, "topics")
        with_operations = _wants_operations(request, "topic")
        topics: list[CatalogTopic | Fields]
        if requested_topics is None or (request.version == 0 and not requested_topics):
            view = await self._services.freshness.recent()
            topics = [topic for name, topic in sorted(view.topics.items()) if self._is_visible(name, client)]
        else:
            # Each once, as in Kafka.
            distinct_topics = {
                (field_value(requested_topic, "name"), field_value(requested_topic, "topic_id")): requested_topic
                for requested_topic in requested_topics
            }
            topics = [
                await self._resolve(requested_topic, request, client) for requested_topic in distinct_topics.values()
            ]
        nodes = self._listed_nodes(client)
        cluster_operations = self._cluster_operations(request, client)
        rack = rack_of(request)

        def build() -> Fields:
            topics_fields = [
                self._topic_fields(topic, client, with_operations=with_operations, rack=rack)
                if isinstance(topic, CatalogTopic)
                else topic
                for topic in topics
            ]
            return {**self._cluster_fields(nodes), **cluster_operations, "topics": topics_fields}

        found = [topic for topic in topics if isinstance(topic, CatalogTopic)]
        is_large = sum(topic.partitions for topic in found) > MOST_AT_ONCE
        catalog = self._services.freshness.view.topics
        if len(found) < len(topics) or any(catalog.get(topic.name) is not topic for topic in found):
            return build if is_large else build()
        # The rights of the client were checked above, for this request; what else depends on them is in the key.
        names = tuple(topic.name for topic in found)
        cache_key = request.version, names, with_operations, *cluster_operations.values(), rack
        key = self._number_of_basis(catalog), tuple(nodes), self._services.principal(client), *cache_key
        return SharedResponse(self._responses, key, build, in_thread=is_large)

    def _number_of_basis(self, catalog: object) -> int:
        """Return the number of the catalog, the rules and the live gateways; forget responses of earlier ones."""
        peers = self._services.peers
        basis = catalog, self._services.connection.chain.state.authorization, peers.live, peers.racks_changed
        if len(self._basis) != len(basis) or any(map(is_not, self._basis, basis)):
            self._basis, self._basis_number = basis, self._basis_number + 1
            self._responses.forget()
        return self._basis_number

    async def _resolve(self, requested_topic: Any, request: Request, client: Client) -> CatalogTopic | Fields:
        """Find or create a topic of a request; return the fields of its error if that is refused."""
        name, topic_id = field_value(requested_topic, "name"), field_value(requested_topic, "topic_id")
        try:
            if topic_id is not None:  # Java's consumer sends an empty name with it.
                topic = await self._services.find(None, topic_id, 0)
                self._check_described(topic.name, client)
                return topic
            may_create = bool(field_value(request.body, "allow_auto_topic_creation", True))
            return await self._find(name, client, may_create=may_create)
        except (TxnStoreError, RefusedError) as error:
            code = code_of(error, Api.METADATA, 0)
            response_name = None if topic_id is not None and request.version >= _WITHOUT_NAME else name or ""
            return {"error_code": code, "name": response_name, "topic_id": topic_id, "partitions": ()}

    def _check_described(self, name: str, client: Client) -> None:
        self._services.check(client, Right("DESCRIBE", "TOPIC", (name,)))

    def _is_visible(self, name: str, client: Client) -> bool:
        return self._services.may(client, Right("DESCRIBE", "TOPIC", (name,)))

    async def _find(self, name: str, client: Client, *, may_create: bool) -> CatalogTopic:
        """Find a topic, or create it if ``may_create`` and the gateway's properties allow that."""
        self._check_described(name, client)
        topic = (await self._services.freshness.recent()).topics.get(name)
        if topic is None:
            topic = (await self._services.freshness.since_request()).topics.get(name)
        if topic is not None:
            return topic
        check_topic_name(name)
        may_create = may_create and self._services.properties.auto_create_topics_enable and name not in INTERNAL_TOPICS
        if not may_create:
            raise RefusedError(ErrorCode.unknown_topic_or_partition, f"there is no topic {name!r}")
        if not self._services.may(client, Right("CREATE", "TOPIC", (name,), ("CREATE", "CLUSTER", None))):
            raise RefusedError(ErrorCode.topic_authorization_failed, f"{name!r} may not be created")
        topic = new_topic(self._services.connection.runtime, name, self._services.properties.num_partitions)
        try:
            created_topic: CatalogTopic = await self._services.commits.submit(CreateTopic(topic), client.principal)
        except TopicExistsError:  # Another request has created it meanwhile.
            return (await self._services.freshness.head()).find_topic(name)
        return created_topic

    def _topic_fields(
        self,
        topic: CatalogTopic,
        client: Client,
        *,
        with_operations: bool,
        first_partition: int = 0,
        count: int | None = None,
        rack: str | None = None,
    ) -> Fields:
        """Return the fields of a topic with ``count`` of its partitions from ``first_partition`` on; None: all."""
        operations = operations_of(self._services, client, "TOPIC", topic.name) if with_operations else NO_OPERATIONS
        end_partition = None if count is None else first_partition + count
        return {
            "error_code": ErrorCode.none,
            "name": topic.name,
            "topic_id": topic_uuid(topic),
            "is_internal": False,
            "partitions": [
                self._partition_fields(topic.name, number, rack)
                for number in range(topic.partitions)[first_partition:end_partition]
            ],
            "topic_authorized_operations": operations,
        }

    def _partition_fields(self, topic: str, number: int, rack: str | None = None) -> Mapping[str, Any]:
        """Return the fields of a partition: the gateway that leads its chain is its leader and only replica."""
        peers = self._services.peers
        chain = chain_of_partition(TopicPartition(topic, number), peers.chains)
        node = peers.leader(chain, topic, number, rack).node_id
        return {
            "error_code": ErrorCode.none,
            "partition_index": number,
            "leader_id": node,
            "leader_epoch": 0,
            "replica_nodes": (node,),
            "isr_nodes": (node,),
            "offline_replicas": (),
            "eligible_leader_replicas": (),
            "last_known_elr": (),
        }

    async def describe_topic_partitions(self, request: Request, client: Client) -> Fields:
        """Describe topics page by page (KIP-966), with what other gateways have changed."""
        cursor = request.body.cursor
        partitions_left = min(max(1, request.body.response_partition_limit), MOST_AT_ONCE)
        if cursor is not None and cursor.partition_index < 0:  # Kafka refuses the whole request.
            requested_names = {topic.name for topic in request.body.topics}
            refusal = {"error_code": ErrorCode.invalid_request, "topic_id": None, "partitions": ()}
            return {"topics": [{"name": name, **refusal} for name in sorted(requested_names)], "next_cursor": None}
        view = await self._services.freshness.since_request()
        names = sorted({topic.name for topic in request.body.topics})
        if not names:
            names = sorted(name for name in view.topics if self._is_visible(name, client))
        if cursor is not None:
            names = [name for name in names if name >= cursor.topic_name]
        topics: list[Mapping[str, Any]] = []
        for name in names:
            first_partition = cursor.partition_index if cursor is not None and name == cursor.topic_name else 0
            topic = await self._topic_or_error(name, client, first_partition, partitions_left, rack_of(request))
            topics.append(topic)
            count = len(topic["partitions"])
            partitions_left -= count
            if partitions_left <= 0:
                next_cursor = {"topic_name": name, "partition_index": first_partition + count}
                return {"topics": topics, "next_cursor": next_cursor}
        return {"topics": topics, "next_cursor": None}

    async def _topic_or_error(
        self, name: str, client: Client, first_partition: int, count: int, rack: str | None
    ) -> Mapping[str, Any]:
        """Describe a topic, or the error that the client gets in its place."""
        try:
            topic = await self._find(name, client, may_create=False)
            return self._topic_fields(
                topic, client, with_operations=True, first_partition=first_partition, count=count, rack=rack
            )
        except (TxnStoreError, RefusedError) as error:
            code = code_of(error, Api.DESCRIBE_TOPIC_PARTITIONS, 0)
            return {"error_code": code, "name": name, "topic_id": None, "partitions": ()}

    # Gateways ---------------------------------------------------------------------------------------------------------

    def _listed_nodes(self, client: Client) -> Sequence[Node]:
        """The gateways that a response lists: Java's tools would wait a minute for each that has ended."""
        peers = self._services.peers
        return peers.live if client.software == _JAVA else peers.listed()

    def _cluster_fields(self, nodes: Iterable[Node]) -> dict[str, Any]:
        """Return the gateways as brokers; the one that leads the chain of the catalog is the controller."""
        services = self._services
        return {
            "brokers": [
                {
                    "node_id": node.node_id,
                    "broker_id": node.node_id,
                    "host": node.host,
                    "port": node.port,
                    "rack": services.peers.rack(node),
                }
                for node in nodes
            ],
            "cluster_id": services.connection.store_id,
            "controller_id": services.peers.leader(CATALOG).node_id,
        }

    async def describe_cluster(self, request: Request, client: Client) -> Fields:
        """Return the gateways that live."""
        endpoint_type = field_value(request.body, "endpoint_type", _BROKERS)
        if endpoint_type != _BROKERS:
            code = ErrorCode.unsupported_endpoint_type
            message = f"endpoint type {endpoint_type} is not supported: there are only brokers"
            return {"error_code": code, "error_message": message, "cluster_id": "", "brokers": ()}
        return {
            **self._cluster_fields(self._services.peers.live),
            **self._cluster_operations(request, client),
            "endpoint_type": _BROKERS,
        }

    def _cluster_operations(self, request: Request, client: Client) -> dict[str, int]:
        """The operations that the client may do on the cluster, if it asks for them; none without DESCRIBE."""
        if not _wants_operations(request, "cluster"):
            operations = NO_OPERATIONS
        elif self._services.may(client, Right("DESCRIBE", "CLUSTER", (CLUSTER,))):
            operations = operations_of(self._services, client, "CLUSTER", CLUSTER)
        else:
            operations = 0
        return {"cluster_authorized_operations": operations}

    async def find_coordinator(self, request: Request, client: Client) -> Fields:
        """Return the gateway that coordinates a group or a transactional id, for each key."""
        kind = field_value(request.body, "key_type", _GROUP)
        keys = field_value(request.body, "coordinator_keys")
        requested_keys = [request.body.key] if keys is None else keys
        await self._services.peers.confirm({(self._chain_of_key(key, kind), key) for key in requested_keys})
        rack = rack_of(request) if kind == _TRANSACTION else None  # The members of a group must meet.
        coordinators = [self._coordinator(key, kind, client, rack) for key in requested_keys]
        return coordinators[0] if keys is None else {"coordinators": coordinators}

    def _chain_of_key(self, key: str, kind: int) -> int:
        return (chain_of_group if kind == _GROUP else chain_of_transactional_id)(key, self._services.peers.chains)

    def _coordinator(self, key: str, kind: int, client: Client, rack: str | None) -> Mapping[str, Any]:
        """Return the gateway that coordinates a group or a transactional id, or the error."""
        without_node = {"key": key, "node_id": -1, "host": "", "port": -1}
        if kind not in {_GROUP, _TRANSACTION}:
            return {**without_node, "error_code": ErrorCode.invalid_request, "error_message": f"no coordinator {kind}"}
        right = Right("DESCRIBE", "GROUP" if kind == _GROUP else "TRANSACTIONAL_ID", (key,))
        try:
            self._services.check(client, right)
        except AuthorizationError as error:
            code = code_of(error, Api.FIND_COORDINATOR, 0)
            return {**without_node, "error_code": code, "error_message": message_of(error)}
        node = self._services.peers.leader(self._chain_of_key(key, kind), key, rack=rack)
        return {"key": key, "node_id": node.node_id, "host": node.host, "port": node.port, "error_code": ErrorCode.none}


def rack_of(request: Request) -> str | None:
    """The zone that a client names in its client id: ``rack=NAME`` between commas. No other request has a field for it.

    A consumer also names its ``client.rack`` in Fetch requests.
    """
    parts = (part.strip() for part in (request.client_id or "").split(","))
    return next((part.removeprefix("rack=") for part in parts if part.startswith("rack=")), None) or None


def _wants_operations(request: Request, resource: str) -> bool:
    return bool(field_value(request.body, f"include_{resource}_authorized_operations", False))
