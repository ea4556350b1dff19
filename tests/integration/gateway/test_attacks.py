"""Clients that send bad bytes, too much or too little: each gets an error or is closed, and the others are served."""

from __future__ import annotations

import re
import socket
import struct
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from typing import Any

import pytest

from tests.helpers.gateway_process import (
    Client,
    GatewayProcess,
    decode_response,
    fetch_fields,
    produce_fields,
    record_batch,
    request_frame,
)
from txnstore.gateway.apis import VERSIONS, Api

MB = 1 << 20


@pytest.fixture(autouse=True)
def served(gateway: GatewayProcess) -> Iterator[None]:
    """After each attack another client appends a record, and reads it back."""
    yield
    with gateway.client() as client:
        assert append(client, b"after the attack") == [0]
        assert client.ask(Api.METADATA, 4, {"topics": [{"name": "t"}]}).topics[0].error_code == 0


def append(client: Client, value: bytes) -> list[int]:
    response = client.ask(Api.PRODUCE, 7, produce_fields("t", record_batch([value])))
    return [part.error_code for topic in response.responses for part in topic.partition_responses]


def wait_until(condition: Callable[[], bool]) -> None:
    while not condition():  # The test's own timeout ends it.
        time.sleep(0.02)  # noqa: TID251 - A real process has no other clock.


def metric(gateway: GatewayProcess, name: str) -> float:
    assert gateway.metrics is not None
    with urllib.request.urlopen(gateway.metrics, timeout=30) as response:  # noqa: S310 - Our own endpoint.
        text = response.read().decode()
    samples = re.findall(rf"^txnstore_{name}{{[^}}]*}} (\S+)$", text, re.MULTILINE)
    return sum(map(float, samples))


BAD = {
    "TLS hello": bytes.fromhex("160301020001000001fc0303") + b"\7" * 500,
    "HTTP": b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "zeros": b"\0" * 64,
    "0xff": b"\xff" * 64,
    "negative length": struct.pack(">i", -5) + b"x" * 10,
    "huge length": struct.pack(">i", 2**31 - 1) + b"x" * 10,
    "shorter than a header": struct.pack(">i", 7) + b"x" * 7,
    "unknown API": struct.pack(">ihhi", 8, 999, 0, 1),
    "negative API": struct.pack(">ihhi", 8, -1, 0, 1),
    "API of brokers": struct.pack(">ihhi", 8, 4, 0, 1),
    "Produce 2": struct.pack(">ihhi", 8, 0, 2, 1),
    "Fetch 99": struct.pack(">ihhi", 8, 1, 99, 1),
    "negative version": struct.pack(">ihhi", 8, 18, -1, 1),
    "no body": struct.pack(">ihhih", 10, 3, 9, 1, -1),
    "huge array": struct.pack(">ihhihi", 14, 3, 1, 1, -1, 2**31 - 1),
    "null topics": struct.pack(">ihhihhhii", 22, 0, 3, 1, -1, -1, -1, 30_000, -1),
    "large Metadata": struct.pack(">ihhih", 3 * MB, 3, 1, 1, -1) + b"\0" * 70_000,
}


@pytest.mark.parametrize("data", BAD.values(), ids=BAD)
def test_bad_bytes_close_the_connection(gateway: GatewayProcess, data: bytes) -> None:
    before = len(gateway.log_lines())
    with gateway.client() as client:
        client.send(data)
        assert client.is_closed()
    assert len(gateway.log_lines()) - before <= 1


def test_bad_bytes_do_not_fill_the_log(gateway: GatewayProcess) -> None:
    before = len(gateway.log_lines())
    for _ in range(300):
        with gateway.client() as client:
            client.send(BAD["HTTP"])
            assert client.is_closed()
    assert len(gateway.log_lines()) - before < 20


def test_a_wrong_checksum_is_corrupt_message_and_the_connection_stays(gateway: GatewayProcess) -> None:
    batch = bytearray(record_batch([b"value"]))
    batch[-2] ^= 1
    with gateway.client() as client:
        response = client.ask(Api.PRODUCE, 7, produce_fields("t", bytes(batch)))
        assert response.responses[0].partition_responses[0].error_code == 2
        assert append(client, b"good") == [0]


def test_thousands_of_requests_in_one_go_are_answered_in_order(gateway: GatewayProcess) -> None:
    frames, expected = [], []
    for number in range(1, 3001):
        api = (Api.METADATA, Api.PRODUCE, Api.API_VERSIONS, Api.LIST_OFFSETS)[number % 4 if number % 50 == 0 else 1]
        fields: Any = produce_fields("t", record_batch([b"%d" % number])) if api is Api.PRODUCE else {}
        frames.append(request_frame(api, 3, fields, number))
        expected.append(number)
    with gateway.client() as client:
        client.socket.settimeout(60)
        sent = 0
        data = b"".join(frames)
        client.socket.setblocking(False)
        received = bytearray()
        deadline = time.monotonic() + 60  # noqa: TID251
        answers: list[int] = []
        while len(answers) < len(expected):
            assert time.monotonic() < deadline  # noqa: TID251
            if sent < len(data):
                with suppress(BlockingIOError):
                    sent += client.socket.send(data[sent : sent + 65536])
            try:
                part = client.socket.recv(1 << 16)
                assert part, "closed"
                received += part
            except BlockingIOError:
                time.sleep(0.001)  # noqa: TID251
            while len(received) >= 4 and len(received) >= 4 + struct.unpack_from(">i", received)[0]:
                size = struct.unpack_from(">i", received)[0]
                answers.append(struct.unpack_from(">i", received, 4)[0])
                del received[: 4 + size]
    assert answers == expected


def test_requests_that_arrived_are_carried_out_when_the_client_has_ended_its_side(gateway: GatewayProcess) -> None:
    with gateway.client() as client:
        frames = [request_frame(Api.PRODUCE, 7, produce_fields("t", record_batch([b"half"])), n) for n in range(1, 9)]
        client.send(b"".join(frames) + request_frame(Api.METADATA, 1, {}, 9))
        client.socket.shutdown(socket.SHUT_WR)
        answered = [struct.unpack_from(">i", client.receive())[0] for _ in range(9)]
        assert answered == list(range(1, 10))
        assert client.is_closed()


def test_a_request_without_acknowledgement_is_carried_out_when_its_client_leaves(gateway: GatewayProcess) -> None:
    end = end_offset(gateway)
    with gateway.client() as client:
        for _ in range(5):
            client.begin(Api.PRODUCE, 7, produce_fields("t", record_batch([b"no answer"]), acks=0))
    wait_until(lambda: end_offset(gateway) >= end + 5)
    assert end_offset(gateway) == end + 5


def end_offset(gateway: GatewayProcess) -> int:
    with gateway.client() as client:
        parts = [{"partition_index": 0, "timestamp": -1}]
        asked = {"replica_id": -1, "topics": [{"name": "t", "partitions": parts}]}
        return int(client.ask(Api.LIST_OFFSETS, 1, asked).topics[0].partitions[0].offset)


def test_a_client_that_vanishes_in_the_middle_of_each_request_leaves_nothing(gateway: GatewayProcess) -> None:
    before = len(gateway.log_lines())
    for api, (first, last) in VERSIONS.items():
        for version in {first, last}:
            frame = request_frame(api, version, {}) + b"\0" * 4
            for cut in {3, 4, 9, len(frame) // 2, len(frame) - 1, len(frame)}:
                client = gateway.client()
                client.send(frame[:cut])
                client.reset() if cut % 2 else client.socket.close()
    wait_until(lambda: metric(gateway, "gateway_connections") == 0)
    assert metric(gateway, "gateway_held_bytes") == 0
    assert metric(gateway, "gateway_unsent_bytes") == 0
    assert metric(gateway, "gateway_failures_total") == 0
    assert len(gateway.log_lines()) - before < 60


def test_a_fetch_ends_with_its_client(gateway: GatewayProcess) -> None:
    end = end_offset(gateway)
    clients = [gateway.client() for _ in range(20)]
    for client in clients:
        client.begin(Api.FETCH, 4, fetch_fields("t", end, max_wait=30_000))
    wait_until(lambda: metric(gateway, "gateway_waiting_fetches") == 20)
    for client in clients:
        client.socket.close()
    wait_until(lambda: metric(gateway, "gateway_waiting_fetches") == 0)
    wait_until(lambda: metric(gateway, "gateway_connections") == 0)


def test_a_request_of_many_unknown_names_reads_the_heads_once(gateway: GatewayProcess) -> None:
    names = [{"name": f"missing-{number}"} for number in range(2000)]
    parts = [{"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1}]
    asked = [{"topic": each["name"], "partitions": parts} for each in names]
    with gateway.client() as client:
        before = metric(gateway, "requests_total")
        topics = client.ask(Api.METADATA, 4, {"topics": names, "allow_auto_topic_creation": False}).topics
        assert {topic.error_code for topic in topics} == {3}
        fetched = client.ask(Api.FETCH, 4, {**fetch_fields("t", 0), "topics": asked}).responses
        assert {part.error_code for topic in fetched for part in topic.partitions} == {3}
        assert metric(gateway, "requests_total") - before < 30


def test_batches_that_grow_when_they_are_decompressed_take_a_bounded_part_of_the_memory(
    gateway: GatewayProcess,
) -> None:
    batch = record_batch([b"\0" * 60_000_000], codec=4)
    assert len(batch) < 20_000
    before = gateway.resident_bytes
    with ExitStack() as stack:
        clients = [stack.enter_context(gateway.client(120)) for _ in range(12)]
        append(clients[0], b"first")
        for client in clients:  # A flush takes all that has come while the last one ran.
            client.begin(Api.PRODUCE, 7, produce_fields("t", batch))
        most = before
        for client in clients:
            _, body = decode_response(Api.PRODUCE, 7, client.receive())
            assert body.responses[0].partition_responses[0].error_code == 0
            most = max(most, gateway.resident_bytes)
    assert most - before < 1200 * MB


def test_malformed_large_requests_leave_the_budget_to_others(gateway: GatewayProcess) -> None:
    """Each was once never returned to the budget."""
    for _ in range(40):
        with gateway.client() as client:
            size = 2 * MB
            client.send(struct.pack(">ihhih", size, 0, 3, 1, -1) + b"\xff" * (size - 10))
            assert client.is_closed()
    assert metric(gateway, "gateway_held_bytes") == 0
    with gateway.client() as client:
        assert append(client, b"x" * 500_000) == [0]


def test_senders_that_announce_much_and_send_little_take_nothing(gateway: GatewayProcess) -> None:
    with ExitStack() as stack:
        for _ in range(200):
            client = stack.enter_context(gateway.client())
            client.send(struct.pack(">ihhih", 100 * MB, 0, 3, 1, -1) + b"x")
        with gateway.client() as other:
            for _ in range(20):
                assert append(other, b"y" * 500_000) == [0]
        assert metric(gateway, "gateway_held_bytes") < MB


def test_senders_that_fill_the_budget_make_no_other_client_wait_for_long(gateway: GatewayProcess) -> None:
    """Parts of requests that would fill the budget together: those that stall are closed, the others get through."""
    before, closed = gateway.resident_bytes, metric(gateway, "gateway_connections_closed_total")
    with ExitStack() as stack:
        for _ in range(40):
            client = stack.enter_context(gateway.client())
            client.socket.settimeout(0.5)
            try:
                client.send(struct.pack(">ihhih", 90 * MB, 0, 3, 1, -1) + b"x" * (3 * MB))
            except TimeoutError:  # The gateway reads no more of it.
                continue
        with gateway.client(90) as other:
            assert append(other, b"y" * 500_000) == [0]
            assert other.ask(Api.METADATA, 1, {}).topics
        assert gateway.resident_bytes - before < 200 * MB
        wait_until(lambda: metric(gateway, "gateway_connections_closed_total") > closed)
    wait_until(lambda: metric(gateway, "gateway_held_bytes") == 0)


def test_clients_that_read_nothing_take_a_bounded_part_of_the_memory(gateway: GatewayProcess) -> None:
    with gateway.client() as client:
        for _ in range(40):
            assert append(client, b"z" * 900_000) == [0]
    before = gateway.resident_bytes
    with ExitStack() as stack:
        for _ in range(60):
            client = stack.enter_context(gateway.client())
            client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            for _ in range(4):
                client.begin(Api.FETCH, 4, fetch_fields("t", 0))
        with gateway.client(90) as other:
            assert append(other, b"y") == [0]
            start = other.ask(Api.FETCH, 4, fetch_fields("t", 0, max_bytes=MB))
            assert start.responses[0].partitions[0].error_code == 0
        wait_until(lambda: metric(gateway, "gateway_unsent_bytes") <= 300 * MB)
        assert gateway.resident_bytes - before < 800 * MB
    wait_until(lambda: metric(gateway, "gateway_unsent_bytes") == 0)
