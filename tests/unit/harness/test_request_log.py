"""The proxy that logs requests leaves nothing behind when it stops."""

from __future__ import annotations

import gc
import socket
import sys

import pytest

from tests.harness.s3.wire import RequestLog


@pytest.mark.slow
def test_connections_that_were_just_accepted_are_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever of them the event loop has begun with: nothing is left to the garbage collector, which would warn."""
    connections: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", connections.append)
    gc.collect()
    connections.clear()
    for number in range(60):
        log = RequestLog("http://127.0.0.1:9").start()
        clients = [socket.create_connection(("127.0.0.1", log.port)) for _ in range(number % 12)]
        log.stop()
        for client in clients:
            client.close()
    gc.collect()
    assert connections == []
