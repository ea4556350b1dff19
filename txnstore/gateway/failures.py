"""The response to a request that failed as a whole: each item of the request gets the code of the error.

As Kafka's ``AbstractRequest.getErrorResponse``, for the APIs whose responses have no code of their own.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from txnstore.gateway.apis import Api
from txnstore.gateway.wire import Request, field_value, has_error_code


@dataclass(frozen=True, slots=True)
class _Items:
    """An array of a request, and that of the response which has an item for each of its items.

    Attributes:
        request_array: The name of the array in the request.
        response_array: The name of the array in the response.
        keys: The fields that identify an item, by name in the response: their names in the request. An item without
            fields is a name itself.
        inner_items: An array in each item, whose items get the code; None: the items themselves get it.
        extra_fields: Further fields of an item with a code, whose default of zero would mean something.
    """

    request_array: str
    response_array: str
    keys: Mapping[str, str]
    inner_items: _Items | None = None
    extra_fields: Mapping[str, int] = field(default_factory=dict)

    def error_items(self, message: Any, code: Mapping[str, Any]) -> dict[str, Any]:
        """Return the response's array, under its name, for a message of the request."""
        return {
            self.response_array: [
                self._error_item(item, code) for item in field_value(message, self.request_array) or ()
            ]
        }

    def _error_item(self, item: Any, code: Mapping[str, Any]) -> dict[str, Any]:
        """Return the response item of a request item: what identifies it, and the code, in it or its inner items."""
        identifying_fields = {
            name: field_value(item, request_array) if dataclasses.is_dataclass(item) else item
            for name, request_array in self.keys.items()
        }
        return {
            **identifying_fields,
            **self.extra_fields,
            **(code if self.inner_items is None else self.inner_items.error_items(item, code)),
        }


_TOPIC_KEYS = {"name": "name", "topic_id": "topic_id"}
_RESOURCE_KEYS = {"resource_type": "resource_type", "resource_name": "resource_name"}
_WITHOUT_OFFSET = {"offset": -1, "end_offset": -1, "timestamp": -1, "leader_epoch": -1, "committed_offset": -1}
_WITHOUT_OFFSET |= {"low_watermark": -1, "high_watermark": -1, "last_stable_offset": -1, "log_start_offset": -1}
_WITHOUT_PRODUCER = {"producer_id": -1, "producer_epoch": -1}


def _partition_items(
    request_array: str = "partitions",
    name: str = "partition_index",
    response_array: str = "partitions",
    number: str = "partition_index",
) -> _Items:
    """The partitions of a topic: their array and number in the request, and in the response."""
    return _Items(request_array, response_array, {number: name}, extra_fields=_WITHOUT_OFFSET)


_TOPIC_ITEMS = _Items("topics", "topics", _TOPIC_KEYS, _partition_items())
_PARTITION_NUMBER_ITEMS = _Items("topics", "topics", _TOPIC_KEYS, _partition_items("partition_indexes"))
_GROUP_KEY = {"group_id": "group_id"}

#: The arrays of each API; of several, each version has one. Without Produce: a batch behind a refused one must not be
#: stored before that is repeated, so the connection ends; and without Metadata, whose response must list the gateways.
_ITEMS: dict[Api, tuple[_Items, ...]] = {
    Api.FETCH: (_Items("topics", "responses", {"topic": "topic"}, _partition_items(name="partition")),),
    Api.LIST_OFFSETS: (_TOPIC_ITEMS,),
    Api.OFFSET_COMMIT: (_TOPIC_ITEMS,),
    Api.OFFSET_FETCH: (_Items("groups", "groups", _GROUP_KEY), _PARTITION_NUMBER_ITEMS),
    Api.FIND_COORDINATOR: (
        _Items("coordinator_keys", "coordinators", {"key": "key"}, extra_fields={"node_id": -1, "port": -1}),
    ),
    Api.DESCRIBE_GROUPS: (_Items("groups", "groups", _GROUP_KEY),),
    Api.CREATE_TOPICS: (_Items("topics", "topics", _TOPIC_KEYS),),
    Api.DELETE_TOPICS: (
        _Items("topics", "responses", _TOPIC_KEYS),
        _Items("topic_names", "responses", {"name": "name"}),
    ),
    Api.DELETE_RECORDS: (_TOPIC_ITEMS,),
    Api.OFFSET_FOR_LEADER_EPOCH: (
        _Items("topics", "topics", {"topic": "topic"}, _partition_items(name="partition", number="partition")),
    ),
    Api.ADD_PARTITIONS_TO_TXN: (
        _Items(
            "v3_and_below_topics",
            "results_by_topic_v3_and_below",
            _TOPIC_KEYS,
            _partition_items(response_array="results_by_partition"),
        ),
    ),
    Api.WRITE_TXN_MARKERS: (_Items("markers", "markers", {"producer_id": "producer_id"}, _PARTITION_NUMBER_ITEMS),),
    Api.TXN_OFFSET_COMMIT: (_TOPIC_ITEMS,),
    Api.CREATE_ACLS: (_Items("creations", "results", {}),),
    Api.DELETE_ACLS: (_Items("filters", "filter_results", {}),),
    Api.DESCRIBE_CONFIGS: (_Items("resources", "results", _RESOURCE_KEYS),),
    Api.ALTER_CONFIGS: (_Items("resources", "responses", _RESOURCE_KEYS),),
    Api.INCREMENTAL_ALTER_CONFIGS: (_Items("resources", "responses", _RESOURCE_KEYS),),
    Api.CREATE_PARTITIONS: (_Items("topics", "results", _TOPIC_KEYS),),
    Api.DELETE_GROUPS: (_Items("groups_names", "results", _GROUP_KEY),),
    Api.ELECT_LEADERS: (
        _Items(
            "topic_partitions",
            "replica_election_results",
            {"topic": "topic"},
            _partition_items(response_array="partition_result", number="partition_id"),
        ),
    ),
    Api.DESCRIBE_PRODUCERS: (_PARTITION_NUMBER_ITEMS,),
    Api.DESCRIBE_TRANSACTIONS: (
        _Items("transactional_ids", "transaction_states", {"transactional_id": "id"}, extra_fields=_WITHOUT_PRODUCER),
    ),
    Api.CONSUMER_GROUP_DESCRIBE: (_Items("group_ids", "groups", _GROUP_KEY),),
    Api.DESCRIBE_TOPIC_PARTITIONS: (_Items("topics", "topics", _TOPIC_KEYS),),
}  # fmt: skip


def can_report_failure(request: Request) -> bool:
    """Whether the response to a request can report that all of it has failed.

    If neither the response has a code nor the request has items, the response would be an empty list.
    """
    return has_error_code(request.api, request.version) or any(
        field_value(request.body, items.request_array) for items in _ITEMS.get(Api(request.api), ())
    )


def failure_fields(request: Request, code: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of the response to a request that failed as a whole.

    Args:
        request: A request that :func:`can_report_failure`.
        code: The fields of the error, ``error_code`` and ``error_message``.
    """
    if has_error_code(request.api, request.version):
        return dict(code)
    code = {**code, "partition_error_code": code["error_code"]}
    requested_items = next(
        items for items in _ITEMS[Api(request.api)] if field_value(request.body, items.request_array)
    )
    return requested_items.error_items(request.body, code)
