"""The response to a request that has failed as a whole: each item that it names has the code of the error.

As Kafka's ``AbstractRequest.getErrorResponse``, for the APIs whose responses have no code of their own.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from txnstore.gateway.apis import Api
from txnstore.gateway.wire import Request, has_error_code, value


@dataclass(frozen=True, slots=True)
class _Items:
    """An array of a request, and that of the response which has an item for each of its items.

    Attributes:
        asked: The array of the request.
        answered: The array of the response.
        names: The fields of the response that name an item, and those of the request. Items without fields are names.
        inner: An array in each item, whose items have the codes; None: the items themselves have them.
        other: Further fields of an item with a code, where their zeros would mean something.
    """

    asked: str
    answered: str
    names: Mapping[str, str]
    inner: _Items | None = None
    other: Mapping[str, int] = field(default_factory=dict)

    def refused(self, message: Any, code: Mapping[str, Any]) -> dict[str, Any]:
        """The array of the response to a message of a request, by its name."""
        return {self.answered: [self._item(item, code) for item in value(message, self.asked) or ()]}

    def _item(self, item: Any, code: Mapping[str, Any]) -> dict[str, Any]:
        named = {
            name: value(item, asked) if dataclasses.is_dataclass(item) else item for name, asked in self.names.items()
        }
        return {**named, **self.other, **(code if self.inner is None else self.inner.refused(item, code))}


_TOPIC = {"name": "name", "topic_id": "topic_id"}
_RESOURCE = {"resource_type": "resource_type", "resource_name": "resource_name"}
_NO_OFFSET = {"offset": -1, "end_offset": -1, "timestamp": -1, "leader_epoch": -1, "committed_offset": -1}
_NO_OFFSET |= {"low_watermark": -1, "high_watermark": -1, "last_stable_offset": -1, "log_start_offset": -1}
_NO_PRODUCER = {"producer_id": -1, "producer_epoch": -1}


def _partitions(
    asked: str = "partitions",
    name: str = "partition_index",
    answered: str = "partitions",
    number: str = "partition_index",
) -> _Items:
    """The partitions of a topic: their array and number in the request, and in the response."""
    return _Items(asked, answered, {number: name}, other=_NO_OFFSET)


_OF_TOPICS = _Items("topics", "topics", _TOPIC, _partitions())
_OF_NUMBERS = _Items("topics", "topics", _TOPIC, _partitions("partition_indexes"))
_GROUPS = {"group_id": "group_id"}

#: What the APIs name; of several arrays each version has one. Not here is Produce: a batch behind a refused one must
#: not be stored before that is repeated, so the connection ends; and Metadata, whose response must name the gateways.
_NAMED: dict[Api, tuple[_Items, ...]] = {
    Api.FETCH: (_Items("topics", "responses", {"topic": "topic"}, _partitions(name="partition")),),
    Api.LIST_OFFSETS: (_OF_TOPICS,),
    Api.OFFSET_COMMIT: (_OF_TOPICS,),
    Api.OFFSET_FETCH: (_Items("groups", "groups", _GROUPS), _OF_NUMBERS),
    Api.FIND_COORDINATOR: (
        _Items("coordinator_keys", "coordinators", {"key": "key"}, other={"node_id": -1, "port": -1}),
    ),
    Api.DESCRIBE_GROUPS: (_Items("groups", "groups", _GROUPS),),
    Api.CREATE_TOPICS: (_Items("topics", "topics", _TOPIC),),
    Api.DELETE_TOPICS: (_Items("topics", "responses", _TOPIC), _Items("topic_names", "responses", {"name": "name"})),
    Api.DELETE_RECORDS: (_OF_TOPICS,),
    Api.OFFSET_FOR_LEADER_EPOCH: (
        _Items("topics", "topics", {"topic": "topic"}, _partitions(name="partition", number="partition")),
    ),
    Api.ADD_PARTITIONS_TO_TXN: (
        _Items(
            "v3_and_below_topics",
            "results_by_topic_v3_and_below",
            _TOPIC,
            _partitions(answered="results_by_partition"),
        ),
    ),
    Api.WRITE_TXN_MARKERS: (_Items("markers", "markers", {"producer_id": "producer_id"}, _OF_NUMBERS),),
    Api.TXN_OFFSET_COMMIT: (_OF_TOPICS,),
    Api.CREATE_ACLS: (_Items("creations", "results", {}),),
    Api.DELETE_ACLS: (_Items("filters", "filter_results", {}),),
    Api.DESCRIBE_CONFIGS: (_Items("resources", "results", _RESOURCE),),
    Api.ALTER_CONFIGS: (_Items("resources", "responses", _RESOURCE),),
    Api.INCREMENTAL_ALTER_CONFIGS: (_Items("resources", "responses", _RESOURCE),),
    Api.CREATE_PARTITIONS: (_Items("topics", "results", _TOPIC),),
    Api.DELETE_GROUPS: (_Items("groups_names", "results", _GROUPS),),
    Api.ELECT_LEADERS: (
        _Items(
            "topic_partitions",
            "replica_election_results",
            {"topic": "topic"},
            _partitions(answered="partition_result", number="partition_id"),
        ),
    ),
    Api.DESCRIBE_PRODUCERS: (_OF_NUMBERS,),
    Api.DESCRIBE_TRANSACTIONS: (
        _Items("transactional_ids", "transaction_states", {"transactional_id": "id"}, other=_NO_PRODUCER),
    ),
    Api.CONSUMER_GROUP_DESCRIBE: (_Items("group_ids", "groups", _GROUPS),),
    Api.DESCRIBE_TOPIC_PARTITIONS: (_Items("topics", "topics", _TOPIC),),
}  # fmt: skip


def tells_failure(request: Request) -> bool:
    """Whether a response to a request can tell that all of it has failed.

    Without a code for all of it, a response to one that names nothing, such as a list of everything, would be an empty
    list.
    """
    return has_error_code(request.api, request.version) or any(
        value(request.body, items.asked) for items in _NAMED.get(Api(request.api), ())
    )


def failed_fields(request: Request, code: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of the response to a request all of which has failed.

    Args:
        request: One whose response can tell it (:func:`tells_failure`).
        code: The fields that tell the error, ``error_code`` and ``error_message``.
    """
    if has_error_code(request.api, request.version):
        return dict(code)
    code = {**code, "partition_error_code": code["error_code"]}
    named = next(items for items in _NAMED[Api(request.api)] if value(request.body, items.asked))
    return named.refused(request.body, code)
