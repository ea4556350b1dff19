"""Responses that are made of an encoded one."""

from __future__ import annotations

import uuid
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from txnstore.gateway.apis import VERSIONS, Api
from txnstore.gateway.wire import _APPENDED, _encode_response, _write_appended

PRODUCE = VERSIONS[Api.PRODUCE]
TOPIC_ID = uuid.UUID(int=7)


def response(name: str, topic_id: uuid.UUID, **numbers: Any) -> dict[str, Any]:
    partition = {"index": 3, "base_offset": 2**40 + 1, "log_start_offset": -1, "log_append_time": None} | numbers
    topic = {"name": name, "topic_id": topic_id, "partition_responses": [{"error_code": ErrorCode.none} | partition]}
    return {"responses": [topic]}


@pytest.mark.parametrize("version", range(PRODUCE.first, PRODUCE.last + 1))
@pytest.mark.parametrize("name", ["topic", "é" * 100])
def test_the_response_to_an_appended_batch_is_as_others(version: int, name: str) -> None:
    for numbers in ({}, {"index": 0, "base_offset": 0, "log_start_offset": 7}):
        fields = response(name, TOPIC_ID, **numbers)
        assert _write_appended(version, 99, fields) == _encode_response(Api.PRODUCE, version, 99, fields, None)


def test_other_responses_are_encoded_in_full() -> None:
    packer, mark = _APPENDED["base_offset"]
    looks_like_a_number = uuid.UUID(bytes=packer.pack(mark) * 2)
    (topic,) = response("topic", TOPIC_ID)["responses"]
    others: list[dict[str, Any]] = [
        response("topic", looks_like_a_number),
        response("topic", TOPIC_ID, error_code=ErrorCode.not_leader_or_follower),
        response("topic", TOPIC_ID, log_append_time=5),
        {"responses": []},
        {},
        {"responses": [{"name": "topic", "topic_id": TOPIC_ID, "partition_responses": [{"index": 1}]}]},
        {"responses": [topic, topic]},
        {"responses": [topic], "throttle_time_ms": 5},
        response("topic", TOPIC_ID, error_message="why"),
        {"responses": [topic | {"partition_responses": topic["partition_responses"] * 2}]},
    ]
    for fields in others:
        assert _write_appended(PRODUCE.last, 1, fields) is None
