"""OffsetCommit and OffsetFetch, as far as a gateway decides something itself."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest
from kio.index import load_request_schema
from kio.schema.errors import ErrorCode

from txnstore.errors import StorageError
from txnstore.gateway.apis import Api
from txnstore.gateway.groups.coordinator import GroupCoordinator
from txnstore.gateway.groups.offsets import GroupOffsets
from txnstore.gateway.server import Peer
from txnstore.gateway.services import Services
from txnstore.gateway.wire import Request, build


@pytest.mark.parametrize("version", [1, 2, 7, 8, 9])
def test_offsets_cannot_be_read_now(version: int) -> None:
    """Each group gets a code after which its client asks again; a response of version 8 has none for all of it."""

    async def head() -> Any:
        raise StorageError("down")

    services = SimpleNamespace(freshness=SimpleNamespace(head=head))
    offsets = GroupOffsets(cast("Services", services), cast("GroupCoordinator", None))
    topics = [{"name": "t", "partition_indexes": [0]}]
    schema = cast("type", load_request_schema(int(Api.OFFSET_FETCH), version))
    groups = [{"group_id": name, "topics": topics} for name in ("a", "b")]
    request = Request(int(Api.OFFSET_FETCH), version, 1, None, build(schema, {**groups[0], "groups": groups}))
    answer = asyncio.run(offsets.fetch(request, Peer("h", authenticated=True)))
    described = answer["groups"] if version >= 8 else [answer]
    assert [each["group_id"] for each in described] == (["a", "b"] if version >= 8 else ["a"])
    assert {each["error_code"] for each in described} == {ErrorCode.coordinator_not_available}
    if version < 2:
        assert answer["topics"][0]["partitions"][0]["error_code"] is ErrorCode.coordinator_not_available
