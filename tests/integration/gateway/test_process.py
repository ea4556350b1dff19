"""A gateway as a process: its end by SIGTERM, its log, its metrics, many connections."""

from __future__ import annotations

import signal
import socket
import struct
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from datetime import datetime, timedelta
from pathlib import Path

import pytest

import txnstore
from tests.helpers.gateway_process import (
    GatewayProcess,
    fetch_fields,
    gateway_process,
    produce_fields,
    record_batch,
    request_frame,
)
from txnstore.gateway.apis import Api
from txnstore.gateway.metrics import FAMILIES

MB = 1 << 20
START, END = "the gateway listens", "the gateway has ended"


@pytest.fixture
def gateway(tmp_path: Path) -> Iterator[GatewayProcess]:
    with txnstore.create(tmp_path / "store") as store:
        store.create_topic("t", partitions=1)
    with gateway_process(tmp_path / "store", tmp_path / "log", "--metrics", "127.0.0.1:0") as running:
        yield running


def scrape(gateway: GatewayProcess, path: str = "") -> str:
    assert gateway.metrics is not None
    with urllib.request.urlopen(gateway.metrics + path, timeout=30) as response:  # noqa: S310 - Our own endpoint.
        assert response.headers["Content-Type"].startswith("text/plain; version=0.0.4")
        return str(response.read().decode())


def test_sigterm_answers_what_has_arrived_and_what_is_answered_is_stored(
    gateway: GatewayProcess, tmp_path: Path
) -> None:
    frames = [request_frame(Api.PRODUCE, 7, produce_fields("t", record_batch([b"%d" % n])), n) for n in range(1, 41)]
    with gateway.client() as producing, gateway.client() as waiting:
        waiting.begin(Api.FETCH, 4, fetch_fields("t", 0, max_wait=30_000))
        producing.send(b"".join(frames))
        assert struct.unpack_from(">i", producing.receive())[0] == 1
        gateway.process.send_signal(signal.SIGTERM)
        answered = 1
        try:
            while True:
                assert struct.unpack_from(">i", producing.receive())[0] == answered + 1
                answered += 1
        except (EOFError, ConnectionError):
            pass
        assert gateway.process.wait(30) == 0
    with pytest.raises(ConnectionRefusedError):
        gateway.client()
    with txnstore.open(tmp_path / "store", read_only=True) as store:
        values = store.scan("t").to_table()["value"].to_pylist()
    assert values[:answered] == [b"%d" % number for number in range(1, answered + 1)]
    assert all(START in line or END in line for line in gateway.log_lines())


def connect_until_refused(gateway: GatewayProcess) -> None:
    while True:
        gateway.client().socket.close()


def test_a_second_sigterm_ends_the_process_at_once(gateway: GatewayProcess) -> None:
    """The first one waits for a client that does not read its response."""
    with gateway.client() as client:
        for _ in range(10):
            client.ask(Api.PRODUCE, 7, produce_fields("t", record_batch([b"v" * 900_000])))
        client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.begin(Api.FETCH, 4, fetch_fields("t", 0))
        client.socket.recv(1, socket.MSG_PEEK)  # The response is on its way.
        gateway.process.send_signal(signal.SIGTERM)
        with pytest.raises((ConnectionRefusedError, ConnectionResetError)):
            connect_until_refused(gateway)
        gateway.process.send_signal(signal.SIGTERM)
        assert gateway.process.wait(30) == -signal.SIGTERM


def test_metrics_show_what_clients_have_done(gateway: GatewayProcess) -> None:
    with gateway.client() as client:
        for _ in range(3):
            client.ask(Api.PRODUCE, 7, produce_fields("t", record_batch([b"v"])))
        client.ask(Api.PRODUCE, 7, produce_fields("missing", record_batch([b"v"])))
        client.ask(Api.FETCH, 4, fetch_fields("t", 0))
        text = scrape(gateway)
    samples = {line.rsplit(" ", 1)[0]: float(line.rsplit(" ", 1)[1]) for line in text.splitlines() if line[0] != "#"}
    (store,) = {line.split('store="')[1].split('"')[0] for line in samples}
    label = f'{{store="{store}"'
    assert samples[f'txnstore_gateway_requests_total{label},api="PRODUCE"}}'] == 4
    assert samples[f'txnstore_gateway_errors_total{label},code="unknown_topic_or_partition"}}'] == 1
    assert samples[f"txnstore_gateway_connections{label}}}"] == 1
    assert samples[f"txnstore_gateway_flushed_batches_total{label}}}"] == 3
    assert samples[f"txnstore_gateway_commands_total{label}}}"] == 3
    assert samples[f"txnstore_gateway_hot_hits_total{label}}}"] == 3
    assert samples[f"txnstore_gateway_received_bytes_total{label}}}"] > 300
    assert samples[f"txnstore_commits_total{label}}}"] >= 3  # What the process did to the storage is there, too.
    assert {f"txnstore_{each.name}" for each in FAMILIES if each.label is None} <= {
        name.partition("{")[0].removesuffix("_total") for name in samples
    }


def test_the_endpoint_of_metrics_serves_nothing_else(gateway: GatewayProcess) -> None:
    assert gateway.metrics is not None
    with pytest.raises(urllib.error.HTTPError, match="404"):
        scrape(gateway, "/../etc/passwd")
    host, _, port = gateway.metrics.removeprefix("http://").removesuffix("/metrics").partition(":")
    with socket.create_connection((host, int(port)), 30) as connection:
        connection.sendall(b"x" * 20_000)
        with suppress(ConnectionError):
            assert connection.recv(100) == b""
    assert "txnstore_gateway_connections" in scrape(gateway)


def test_thousands_of_idle_connections_take_little(gateway: GatewayProcess) -> None:
    with gateway.client() as client:
        client.ask(Api.PRODUCE, 7, produce_fields("t", record_batch([b"v"])))
        before = gateway.resident_bytes
        with ExitStack() as stack:
            for _ in range(3000):
                stack.enter_context(socket.create_connection((gateway.host, gateway.port), 30))
            client.ask(Api.PRODUCE, 7, produce_fields("t", record_batch([b"v"])))
            assert gateway.resident_bytes - before < 3000 * 40_000
    assert all(START in line or END in line for line in gateway.log_lines())


def test_start_and_end_are_in_the_log(tmp_path: Path) -> None:
    with txnstore.create(tmp_path / "store"):
        pass
    with gateway_process(tmp_path / "store", tmp_path / "log") as gateway:
        with gateway.client() as client:
            client.ask(Api.METADATA, 1, {})
        assert gateway.stop() == 0
    start, end = (line for line in gateway.log_lines() if START in line or END in line)
    assert START in start
    assert all(datetime.fromisoformat(line.split(" ", 1)[0]).utcoffset() == timedelta() for line in (start, end))
    assert f"address=127.0.0.1:{gateway.port} " in start
    assert END in end
    assert end.endswith("requests=1")
