"""Every place of every served request at which a client can claim too much, or say nothing, sent to a real process."""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.helpers.gateway_process import Client, GatewayProcess
from tests.helpers.kafka_frames import SERVED, FrameWriter, Written, hostile
from txnstore.gateway.apis import VERSIONS, Api
from txnstore.gateway.wire import PREFIX

#: What a log has after an error that no code foresees.
_UNFORESEEN = re.compile(r"Traceback|unexpected error|continues after an error")
#: The memory that the process may take beside what it took when it had answered one request, in bytes.
_MOST_GROWTH = 64 << 20
_PAIRS = pytest.mark.parametrize("api", VERSIONS, ids=[api.name for api in VERSIONS])


def _greatest_memory(gateway: GatewayProcess) -> int:
    status = Path(f"/proc/{gateway.process.pid}/status").read_text(encoding="ascii")
    found = re.search(r"VmHWM:\s+(\d+) kB", status)
    assert found is not None
    return int(found[1]) << 10


def _number(path: str) -> int:
    return 1 if path in {"acks", "min_bytes"} else 100 if path == "max_bytes" else 0


def _written(version: tuple[Api, int], *, null: str | None = None) -> Written:
    """A request about the topic ``t``; ``null``: the field that is null, ``""`` for all that may be."""
    api, number = version
    nulls = {place.name for place in FrameWriter().write(api, number).places if place.is_nullable}
    chosen = nulls if null == "" else {null}
    return FrameWriter(
        lambda path: None if path in chosen else 1,
        lambda path: None if path in chosen else b"t",
        _number,
        has_tags=null is None,
        has_entities=null != "",
    ).write(api, number)


def _send(client: Client, data: bytes) -> None:
    client.send(PREFIX.pack(len(data)) + data)


def _versions(api: Api) -> Iterator[tuple[Api, int]]:
    return (pair for pair in SERVED if pair[0] is api)


@pytest.fixture(scope="module")
def first_memory(gateway: GatewayProcess) -> int:
    with gateway.client() as client:
        _send(client, _written((Api.METADATA, 9)).data)
        client.receive()
    return _greatest_memory(gateway)


@pytest.fixture(autouse=True)
def serves(gateway: GatewayProcess, first_memory: int) -> Iterator[None]:
    """After each API the process lives, serves others, has taken little memory, and foresaw what happened."""
    before = len(gateway.log_lines())
    yield
    assert gateway.process.poll() is None
    with gateway.client() as client:
        _send(client, _written((Api.METADATA, 9)).data)
        assert struct.unpack_from(">i", client.receive()) == (1,)
    assert _greatest_memory(gateway) - first_memory < _MOST_GROWTH
    assert [line for line in gateway.log_lines()[before:] if _UNFORESEEN.search(line)] == []


@_PAIRS
def test_a_count_that_the_frame_does_not_hold_ends_its_connection_only(gateway: GatewayProcess, api: Api) -> None:
    """In each version, at each place: a number that is too great, one below null, and null where it may not be."""
    for version in _versions(api):
        written = _written(version)
        chosen = {(place, max(min(number, 0), -2)): number for place, number in hostile(written)}
        for (place, _), number in chosen.items():
            with gateway.client() as client:
                _send(client, written.replaced(place, number))
                assert client.is_closed(), f"{version}: {place} takes {number}"


@_PAIRS
def test_each_field_that_may_be_null_is_answered(gateway: GatewayProcess, api: Api) -> None:
    """One after the other, and all of a request."""
    for version in _versions(api):
        nullable = {place.name for place in FrameWriter().write(*version).places if place.is_nullable}
        for name in {"", *nullable}:
            with gateway.client() as client:
                _send(client, _written(version, null=name).data)
                assert struct.unpack_from(">i", client.receive()) == (1,), f"{version}: {name}"
