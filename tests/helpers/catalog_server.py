"""Catalogs over a real socket: in this process, and as processes of the command line."""

from __future__ import annotations

import http.client
import json
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from txnstore.runtime import monotonic_ms
from txnstore.tables.serve.routes import Router
from txnstore.tables.serve.server import CatalogServer, Limits

#: The seconds after which a test gives up.
PATIENCE = 60.0


@dataclass(frozen=True)
class Answer:
    """A response, whole."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def document(self) -> Any:
        """Its document."""
        return json.loads(self.body)

    @property
    def kind(self) -> str:
        """Iceberg's name of the error."""
        kind: str = self.document["error"]["type"]
        return kind


@dataclass(frozen=True)
class Catalog:
    """A catalog that runs.

    Attributes:
        port: Its port at 127.0.0.1.
        server: The server, if it runs in this process.
    """

    port: int
    server: CatalogServer | None = None

    def connect(self) -> http.client.HTTPConnection:
        """A new connection, for one request after the other."""
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE)

    def ask(self, target: str, method: str = "GET", body: Any = None, **headers: str) -> Answer:
        """The response to a request on a connection of its own."""
        connection = self.connect()
        try:
            return ask_on(connection, target, method, body, **headers)
        finally:
            connection.close()

    def send(self, data: bytes) -> socket.socket:
        """A new connection on which these bytes were sent."""
        connection = socket.create_connection(("127.0.0.1", self.port), PATIENCE)
        connection.sendall(data)
        return connection

    def exchange(self, data: bytes) -> bytes:
        """All that the server sends back for these bytes until it ends the connection."""
        with self.send(data) as connection:
            return received(connection)


def ask_on(
    connection: http.client.HTTPConnection, target: str, method: str = "GET", body: Any = None, **headers: str
) -> Answer:
    """The response to the next request on a connection; names of headers have underscores for dashes."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    connection.request(method, target, body, named)
    response = connection.getresponse()
    return Answer(response.status, {name.lower(): value for name, value in response.getheaders()}, response.read())


def received(connection: socket.socket) -> bytes:
    """All that arrives on a connection until its end."""
    data = b""
    while part := connection.recv(1 << 16):
        data += part
    return data


def parsed(data: bytes) -> Answer:
    """The one response that was received."""
    head, _, body = data.partition(b"\r\n\r\n")
    first, *lines = head.decode("ascii").split("\r\n")
    headers = dict(line.lower().split(": ", 1) for line in lines)
    assert int(headers["content-length"]) == len(body)
    return Answer(int(first.split(" ")[1]), headers, body)


@contextmanager
def serving(router: Router, limits: Limits | None = None) -> Iterator[Catalog]:
    """A catalog in this process, on a free port; it has ended after the block."""
    bound = socket.create_server(("127.0.0.1", 0))
    server = CatalogServer(bound, router, monotonic_ms, limits)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield Catalog(bound.getsockname()[1], server)
    finally:
        server.stop()
        thread.join(PATIENCE)
    assert not thread.is_alive()


@dataclass(frozen=True)
class CatalogProcess:
    """A catalog that is a process of its own."""

    process: subprocess.Popen[str]
    catalog: Catalog
    log: Path

    def stop(self, number: int = signal.SIGTERM) -> int:
        """End it by a signal; its exit status."""
        self.process.send_signal(number)
        return self.process.wait(PATIENCE)


@contextmanager
def catalog_process(store: str | Path, log: Path, *options: str) -> Iterator[CatalogProcess]:
    """``txnstore table serve`` on a store, on a free port; killed at the end. ``log`` gets its log lines."""
    command = [sys.executable, "-m", "txnstore.cli", "table", "serve", "--store", str(store)]
    with log.open("a", encoding="utf-8") as stream:
        process = subprocess.Popen(
            [*command, "--listen", "127.0.0.1:0", *options], stdout=subprocess.PIPE, stderr=stream, text=True
        )
    try:
        assert process.stdout is not None
        first = process.stdout.readline()
        assert first.startswith("listening on 127.0.0.1:"), log.read_text(encoding="utf-8")
        yield CatalogProcess(process, Catalog(int(first.rpartition(":")[2])), log)
    finally:
        process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()
