"""Each API in each version that a gateway lists answers a minimal request, and each wrong one with an error."""

from __future__ import annotations

import pytest

from tests.helpers.gateway_process import (
    Client,
    GatewayProcess,
    decode_response,
    produce_fields,
    record_batch,
    request_frame,
)
from txnstore.gateway.apis import LISTED_FIRST, VERSIONS, Api

#: Requests that name nothing, with the fields that a version needs to be answered at all.
_FIELDS = {
    Api.PRODUCE: {"acks": -1},
    Api.FETCH: {"max_wait": 0},
    Api.INIT_PRODUCER_ID: {"producer_id": -1, "producer_epoch": -1},
    Api.DESCRIBE_TOPIC_PARTITIONS: {"response_partition_limit": 10},
}


def listed(client: Client) -> dict[Api, tuple[int, int]]:
    """The APIs that a gateway says it has, with their versions."""
    response = client.ask(Api.API_VERSIONS, 3, {})
    return {Api(each.api_key): (each.min_version, each.max_version) for each in response.api_keys}


def test_the_listed_versions_are_those_of_the_table(gateway: GatewayProcess) -> None:
    with gateway.client() as client:
        versions = listed(client)
    assert {Api.PRODUCE, Api.FETCH, Api.METADATA, Api.API_VERSIONS} <= set(versions)
    for api, (first, last) in versions.items():
        assert (first, last) == (LISTED_FIRST.get(api, VERSIONS[api].first), VERSIONS[api].last)


@pytest.mark.parametrize("api", list(VERSIONS), ids=lambda api: api.name)
def test_each_version_answers_a_minimal_request(gateway: GatewayProcess, api: Api) -> None:
    first, last = VERSIONS[api]
    with gateway.client() as client:
        if api not in listed(client):
            client.begin(api, last, _FIELDS.get(api, {}))
            assert client.is_closed()
            return
    for version in range(first, last + 1):
        with gateway.client() as client:  # Of its own, as a failure may close it.
            client.ask(api, version, _FIELDS.get(api, {}))
            client.ask(Api.API_VERSIONS, 0, {})


@pytest.mark.parametrize("version", range(VERSIONS[Api.PRODUCE].first, 13))
def test_each_version_of_produce_appends(gateway: GatewayProcess, version: int) -> None:
    with gateway.client() as client:
        response = client.ask(Api.PRODUCE, version, produce_fields("t", record_batch([b"v"])))
    (topic,) = response.responses
    assert [part.error_code for part in topic.partition_responses] == [0]


@pytest.mark.parametrize("version", [5, 9, 100, 32767])
def test_an_unknown_version_of_api_versions_is_answered_in_version_0(gateway: GatewayProcess, version: int) -> None:
    with gateway.client() as client:
        frame = bytearray(request_frame(Api.API_VERSIONS, 4, {}, 77))
        frame[6:8] = version.to_bytes(2, "big")
        client.send(bytes(frame))
        correlation, body = decode_response(Api.API_VERSIONS, 0, client.receive())
        assert (correlation, body.error_code) == (77, 35)
        assert body.api_keys
        client.ask(Api.API_VERSIONS, 3, {})
