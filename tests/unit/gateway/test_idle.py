"""The memory of connections that do nothing: there may be thousands."""

from __future__ import annotations

import asyncio
import socket
import tracemalloc
from collections.abc import Mapping
from typing import Any

import pytest

from tests.helpers.gateway_process import request_frame
from txnstore.gateway.apis import Api
from txnstore.gateway.server import Server

CONNECTIONS = 200
#: Bytes of a connection, which measured 6,700 in CPython 3.11: 10,000 take less than a tenth of a gateway's memory.
MOST = 10_000


async def _answer(*_: object) -> Mapping[str, Any]:
    return {"error_code": 0, "api_keys": []}


async def _bytes_of_a_connection(*, size: int) -> float:
    """What an idle connection takes, after a request with so many bytes; 0: none."""
    server = Server({Api.API_VERSIONS: _answer, Api.METADATA: _answer}, dict, authenticates=False)
    bound = socket.create_server(("127.0.0.1", 0), backlog=1024)
    await server.listen(bound)
    frame = request_frame(Api.METADATA, 1, {"topics": [{"name": "t" * 1000}] * (size // 1000)})
    clients: list[socket.socket] = []
    loop = asyncio.get_running_loop()

    async def connect(count: int) -> None:
        for _ in range(count):
            client = socket.socket()
            client.setblocking(False)
            clients.append(client)
            await loop.sock_connect(client, bound.getsockname())
            if size:
                await loop.sock_sendall(client, frame)
                assert await loop.sock_recv(client, 4096)
        while server.traffic.connections < len(clients):  # noqa: ASYNC110 - No event tells it.
            await asyncio.sleep(0)

    try:
        await connect(10)
        tracemalloc.start()
        before, _ = tracemalloc.get_traced_memory()
        await connect(CONNECTIONS)
        after, _ = tracemalloc.get_traced_memory()
        return (after - before) / CONNECTIONS
    finally:
        tracemalloc.stop()
        for client in clients:
            client.close()
        await server.close(10)


def test_a_connection_that_does_nothing_takes_few_bytes() -> None:
    assert 1_000 < asyncio.run(_bytes_of_a_connection(size=0)) < MOST


@pytest.mark.slow
def test_a_connection_keeps_nothing_of_a_large_request() -> None:
    assert 1_000 < asyncio.run(_bytes_of_a_connection(size=60_000)) < MOST
