"""The response to a request that has failed as a whole."""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Iterator, Mapping
from typing import Any
from uuid import UUID

import pytest
from kio.index import load_request_schema, load_response_schema
from kio.schema.errors import ErrorCode
from kio.serial import entity_reader

from txnstore.errors import StorageError
from txnstore.gateway.apis import VERSIONS, Api
from txnstore.gateway.errors import code_of
from txnstore.gateway.failures import can_report_failure, failure_fields
from txnstore.gateway.wire import Request, build, has_error_code, write_response

CODE = ErrorCode.kafka_storage_error
#: Where a client learns from the end of its connection that its request has failed.
CLOSED = {Api.PRODUCE, Api.METADATA, Api.DESCRIBE_LOG_DIRS}
#: The APIs whose responses have no text of the request.
UNNAMED = {Api.CREATE_ACLS, Api.DELETE_ACLS}
EACH = [(api, version) for api, (first, last) in VERSIONS.items() for version in range(first, last + 1)]


def _sample(hint: Any) -> Any:
    """A value of a type: arrays have two items, so that all of them are seen."""
    arguments = [each for each in typing.get_args(hint) if each is not type(None)]
    if typing.get_origin(hint) is tuple:
        return [_sample(arguments[0])] * 2
    if type(None) in typing.get_args(hint):
        return _sample(arguments[0])
    if dataclasses.is_dataclass(hint):
        return {name: _sample(inner) for name, inner in _hints(hint).items()}
    if isinstance(hint, type) and issubclass(hint, bool | int | str | bytes | UUID):
        return next(value for kind, value in _VALUES.items() if issubclass(hint, kind))
    return None


_ID = UUID(int=7)
_VALUES: dict[type, Any] = {bool: True, int: 3, str: "name", bytes: b"v", UUID: _ID}


def _hints(schema: Any) -> dict[str, Any]:
    hints = typing.get_type_hints(schema)
    fields = {field.name: hints[field.name] for field in dataclasses.fields(schema)}
    return {name: hint for name, hint in fields.items() if _sample(hint) is not None}


def _request(api: Api, version: int, fields: Mapping[str, Any] | None = None) -> Request:
    schema: Any = load_request_schema(int(api), version)
    return Request(int(api), version, 1, None, build(schema, _sample(schema) if fields is None else fields))


def _values(message: Any, kind: type) -> Iterator[Any]:
    for field in dataclasses.fields(message):
        item = getattr(message, field.name)
        for each in item if isinstance(item, tuple) else (item,):
            if dataclasses.is_dataclass(each):
                yield from _values(each, kind)
            elif isinstance(each, kind):
                yield each


def _answer(request: Request) -> Any:
    """The response to a request that has failed, as its client decodes it."""
    schema: Any = load_response_schema(request.api, request.version)
    fields = failure_fields(request, {"error_code": CODE, "error_message": "down"})
    frame = write_response(request.api, request.version, 1, fields)[4:]
    _, start = entity_reader(schema.__header_schema__)(frame, 0)
    return entity_reader(schema)(frame, start)[0]


@pytest.mark.parametrize(("api", "version"), EACH)
def test_each_item_of_a_request_has_the_code(api: Api, version: int) -> None:
    request = _request(api, version)
    if not can_report_failure(request):
        assert api in CLOSED
        return
    response = _answer(request)
    codes, names = [*_values(response, ErrorCode)], {*_values(response, str), *_values(response, UUID)}
    assert set(codes) == {CODE}
    has_one = has_error_code(int(api), version)
    assert (len(codes) == 1) is has_one
    assert has_one or names & {"name", _ID} or api in UNNAMED


@pytest.mark.parametrize(
    ("api", "array", "items"),
    [(Api.DESCRIBE_TOPIC_PARTITIONS, "topics", ()), (Api.ELECT_LEADERS, "topic_partitions", None)],
)
def test_a_list_that_cannot_tell_its_failure_is_not_sent_empty(api: Api, array: str, items: Any) -> None:
    fields = {**_sample(load_request_schema(int(api), 0)), array: items}
    assert not can_report_failure(_request(api, 0, fields))


def test_items_have_the_names_and_numbers_of_the_request() -> None:
    (topic,) = {each.topic for each in _answer(_request(Api.OFFSET_FOR_LEADER_EPOCH, 4)).topics}
    assert topic == "name"
    epochs = _answer(_request(Api.OFFSET_FOR_LEADER_EPOCH, 4)).topics[1].partitions
    assert [(each.partition, each.leader_epoch, each.end_offset) for each in epochs] == [(3, -1, -1)] * 2
    states = _answer(_request(Api.DESCRIBE_TRANSACTIONS, 0)).transaction_states
    assert [(each.transactional_id, each.producer_id) for each in states] == [("name", -1)] * 2
    markers = _answer(_request(Api.WRITE_TXN_MARKERS, 1)).markers
    numbers = [each.partition_index for marker in markers for topic in marker.topics for each in topic.partitions]
    assert (markers[0].producer_id, numbers) == (3, [3] * 8)


@pytest.mark.parametrize(
    ("api", "code"),
    [
        (Api.OFFSET_FOR_LEADER_EPOCH, ErrorCode.kafka_storage_error),
        (Api.DESCRIBE_TRANSACTIONS, ErrorCode.coordinator_not_available),
        (Api.DESCRIBE_GROUPS, ErrorCode.coordinator_not_available),
        (Api.CONSUMER_GROUP_DESCRIBE, ErrorCode.coordinator_not_available),
        (Api.LIST_GROUPS, ErrorCode.coordinator_not_available),
        (Api.LIST_TRANSACTIONS, ErrorCode.coordinator_load_in_progress),
        (Api.DESCRIBE_PRODUCERS, ErrorCode.not_leader_or_follower),
        (Api.WRITE_TXN_MARKERS, ErrorCode.not_leader_or_follower),
    ],
)
def test_the_code_is_one_after_which_the_client_asks_again(api: Api, code: ErrorCode) -> None:
    """As the handlers of Java's admin client, and its consumer, have it."""
    assert code_of(StorageError("down"), api, 0) is code
