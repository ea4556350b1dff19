"""The catalog over a real socket: what engines send, and damaged requests."""

from __future__ import annotations

import random
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing

import pytest

from tests.helpers.catalog_server import PATIENCE, Catalog, ask_on, parsed, received, serving
from tests.helpers.cuts import LOCATION, WrittenCuts
from txnstore.catalog.iceberg.cut import PublishedTable
from txnstore.tables.serve.messages import Request, Response
from txnstore.tables.serve.routes import Router
from txnstore.tables.serve.server import Limits

TABLES = "/v1/live/namespaces/tables/tables"
GOOD = b"GET /v1/config HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"


@pytest.fixture
def cuts() -> WrittenCuts:
    cuts = WrittenCuts()
    cuts.publish({"orders": 1, "eu.payments": 1})
    return cuts


@pytest.fixture
def catalog(cuts: WrittenCuts) -> Iterator[Catalog]:
    with serving(Router(cuts, LOCATION)) as catalog:
        yield catalog


# Requests of engines --------------------------------------------------------------------------------------------------


def test_every_route_answers(catalog: Catalog) -> None:
    targets = ["/v1/config", "/v1/config?warehouse=pinned", "/v1/cut-1/namespaces", "/v1/live/namespaces/tables"]
    for target in (*targets, TABLES, f"{TABLES}/orders", f"{TABLES}/eu%2Epayments"):
        answer = catalog.ask(target)
        assert (answer.status, answer.headers["content-type"]) == (200, "application/json")
        assert answer.document
        head = catalog.ask(target, "HEAD")
        assert (head.status in {200, 204}, head.body) == (True, b""), target


def test_a_connection_is_kept_for_the_next_request(catalog: Catalog) -> None:
    """Also after bodies, HEAD, refusals and responses without content."""
    connection = catalog.connect()
    body = b"x" * 100_000
    exchanges = [
        ("/v1/config", "GET", None, 200),
        (f"{TABLES}/orders", "HEAD", None, 204),
        (f"{TABLES}/orders", "POST", body, 403),
        (f"{TABLES}/orders/metrics", "POST", body, 204),
        (f"{TABLES}/nope", "HEAD", None, 404),
        (f"{TABLES}/nope", "GET", body, 404),
        ("/v1/config?warehouse=x", "GET", None, 400),
        ("/v1/config", "OPTIONS", None, 501),
        (f"{TABLES}/orders", "GET", None, 200),
    ]
    used = None
    for target, method, sent, status in exchanges:
        assert ask_on(connection, target, method, sent).status == status
        assert connection.sock is not None
        used = used or connection.sock
        assert connection.sock is used
    connection.close()


def test_requests_that_come_together_are_answered_in_order(catalog: Catalog) -> None:
    """The bytes of all arrive before the first one is read."""
    first = b"POST /v1/live/namespaces HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\n\r\nbody"
    second = b"GET /v1/live/namespaces HTTP/1.1\r\nHost: a\r\n\r\n"
    data = catalog.exchange(first + second + GOOD)
    assert [part[:3] for part in data.split(b"HTTP/1.1 ")[1:]] == [b"403", b"200", b"200"]


def test_a_commit_is_refused(catalog: Catalog) -> None:
    answer = catalog.ask(f"{TABLES}/orders", "POST", b'{"requirements":[],"updates":[]}')
    assert (answer.status, answer.kind) == (403, "ForbiddenException")


def test_a_body_of_unknown_length_ends_the_connection(catalog: Catalog) -> None:
    answer = catalog.ask(f"{TABLES}/orders", "POST", iter([b"{", b"}"]), transfer_encoding="chunked")
    assert (answer.status, answer.headers["connection"]) == (403, "close")


def test_a_token_is_asked_for(cuts: WrittenCuts) -> None:
    with serving(Router(cuts, LOCATION, ["sixteen-letters-or-more"])) as catalog:
        for headers in ({}, {"authorization": "Bearer something-else-entirely"}):
            answer = catalog.ask("/v1/config", **headers)
            assert (answer.status, answer.kind) == (401, "NotAuthorizedException")
            assert answer.headers["www-authenticate"] == "Bearer"
        assert catalog.ask("/v1/config", authorization="Bearer sixteen-letters-or-more").status == 200


def test_a_load_of_what_the_engine_has_transfers_nothing(catalog: Catalog) -> None:
    tag = catalog.ask(f"{TABLES}/orders").headers["etag"]
    answer = catalog.ask(f"{TABLES}/orders", if_none_match=tag)
    assert (answer.status, answer.headers["etag"], answer.body) == (304, tag, b"")


def test_metadata_of_many_megabytes_arrives_whole(catalog: Catalog, cuts: WrittenCuts) -> None:
    key = cuts.cuts[1].tables["orders"].metadata
    cuts.objects[key] = b'{"properties":{"large":"' + b"x" * (32 << 20) + b'"}}'
    answer = catalog.ask(f"{TABLES}/orders")
    assert len(answer.document["metadata"]["properties"]["large"]) == 32 << 20


# Damaged requests ----------------------------------------------------------------------------------------------------

HEAD = b"GET /v1/config HTTP/1.1\r\nHost: a\r\n"


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(range(256)) + b"\n", 400),
        (b"\x00" * 1000 + b"\r\n\r\n", 400),
        (b"GET\r\n\r\n", 400),
        (b"GET /v1/config\r\n\r\n", 400),
        (b"GET /v1/config HTTP/1.1 more\r\n\r\n", 400),
        (b"GET /v1/config FTP/1.1\r\n\r\n", 400),
        (b"GET /v1/config HTTP/one\r\n\r\n", 400),
        (b"GET /v1/config HTTP/2.0\r\n\r\n", 505),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 505),
        (b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\n\r\n", 414),
        (b"a" * 900_000, 414),
        (HEAD + b"X: " + b"a" * 100_000 + b"\r\n\r\n", 431),
        (HEAD + b"X: a\r\n" * 200 + b"\r\n", 431),
        (HEAD + b"X: a\r\n" * 100_000 + b"\r\n", 431),
        (HEAD + b"Content-Length: -1\r\n\r\n", 400),
        (HEAD + b"Content-Length: x\r\n\r\n", 400),
        (HEAD + b"Content-Length: 1\r\nContent-Length: 2\r\n\r\nab", 400),
        (HEAD + b"bad header\r\nContent-Length: 2\r\n\r\nab", 400),
        (HEAD + b"Content-Length : 2\r\n\r\nab", 400),
        (HEAD + b"Content-Length: 1048577\r\n\r\n" + b"a" * 100_000, 413),
        (HEAD + b"Content-Length: " + b"9" * 5000 + b"\r\n\r\n", 413),
        (b"BREW /v1/config HTTP/1.1\r\nConnection: close\r\n\r\n", 501),
        (b"GET v1 HTTP/1.1\r\nConnection: close\r\n\r\n", 400),
        (b"GET /v1/\xff\xfe HTTP/1.1\r\nConnection: close\r\n\r\n", 406),
    ],
)
def test_what_is_no_request_is_refused_and_the_connection_ends(catalog: Catalog, data: bytes, status: int) -> None:
    """The whole response arrives, although more was sent than the server reads."""
    answer = parsed(catalog.exchange(data))
    assert (answer.status, answer.headers["connection"]) == (status, "close")
    assert answer.document["error"]["code"] == status
    assert catalog.ask("/v1/config").status == 200


def test_a_client_can_send_all_before_it_reads_the_refusal(catalog: Catalog) -> None:
    """More than both systems have in their buffers: a server that closes the connection before resets it."""
    with socket.socket() as connection:
        connection.settimeout(PATIENCE)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        connection.connect(("127.0.0.1", catalog.port))
        connection.sendall(b"a" * 900_000)
        assert parsed(received(connection)).status == 414


@pytest.mark.parametrize("data", [b"", b"GET", HEAD, HEAD + b"Content-Length: 10\r\n\r\nabc"])
def test_a_client_that_ends_early_leaves_nothing(catalog: Catalog, data: bytes) -> None:
    with catalog.send(data) as connection:
        connection.shutdown(socket.SHUT_WR)
        assert received(connection)[:12] in {b"", b"HTTP/1.1 200", b"HTTP/1.1 400"}
    assert catalog.ask("/v1/config").status == 200


@pytest.mark.parametrize(
    "data", [b"G", b"GET /v1/config HTTP/1.1\r\n", HEAD + b"X: y", HEAD + b"Content-Length: 9\r\n\r\nab"]
)
def test_a_request_that_does_not_arrive_in_time_is_refused(cuts: WrittenCuts, data: bytes) -> None:
    with serving(Router(cuts, LOCATION), Limits(request_s=0.05)) as catalog:
        answer = parsed(catalog.exchange(data))
    assert (answer.status, answer.headers["connection"]) == (408, "close")


def test_an_idle_connection_ends_without_a_word(cuts: WrittenCuts) -> None:
    with serving(Router(cuts, LOCATION), Limits(idle_s=0.05)) as catalog:
        assert catalog.exchange(b"") == b""


def test_a_client_that_does_not_read_is_left(cuts: WrittenCuts) -> None:
    key = cuts.cuts[1].tables["orders"].metadata
    cuts.objects[key] = b"[" + b" " * (64 << 20) + b"]"
    with serving(Router(cuts, LOCATION), Limits(response_s=0.05)) as catalog:
        request = f"GET {TABLES}/orders HTTP/1.1\r\nHost: a\r\n\r\n".encode()
        with catalog.send(request) as connection:
            ended(catalog)
            assert len(received(connection)) < 64 << 20


def ended(catalog: Catalog) -> None:
    """Wait until the server has no connection."""
    server = catalog.server
    assert server is not None
    # A connection that was made is accepted in any case: the next one that is answered came after it.
    assert catalog.ask("/v1/config").status == 200
    with server._connection_ended:
        assert server._connection_ended.wait_for(lambda: not server._open_connections, PATIENCE)


def test_too_many_connections_are_refused_until_others_have_ended(cuts: WrittenCuts) -> None:
    with serving(Router(cuts, LOCATION), Limits(connections=3)) as catalog, ExitStack() as stack:
        kept = [stack.enter_context(closing(catalog.connect())) for _ in range(3)]
        for connection in kept:
            assert ask_on(connection, "/v1/config").status == 200
        answer = parsed(catalog.exchange(b""))
        assert (answer.status, answer.kind, answer.headers["retry-after"]) == (503, "ServiceUnavailableException", "1")
        assert [ask_on(connection, "/v1/config").status for connection in kept] == [200] * 3
        for connection in kept:
            connection.close()
        server = catalog.server
        assert server is not None
        with server._connection_ended:
            assert server._connection_ended.wait_for(lambda: not server._open_connections, PATIENCE)
        assert catalog.ask("/v1/config").status == 200


@pytest.mark.parametrize(
    ("error", "level", "message"),
    [
        (ConnectionResetError(104, "reset"), "DEBUG", "a connection ended"),
        (ZeroDivisionError("no"), "ERROR", "a connection failed"),
    ],
)
def test_what_fails_outside_of_a_request_is_in_the_log(
    catalog: Catalog, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch,
    error: Exception, level: str, message: str,
) -> None:  # fmt: skip
    """A client that resets its connection at once is no error of the server, and fills no log."""

    def fail(_: object) -> None:
        raise error

    monkeypatch.setattr("txnstore.tables.serve.server._Handler.setup", fail)
    with caplog.at_level("DEBUG", "txnstore"):
        assert catalog.exchange(b"") == b""
        server = catalog.server
        assert server is not None
        with server._connection_ended:
            assert server._connection_ended.wait_for(lambda: not server._open_connections, PATIENCE)
    assert [(record.levelname, record.getMessage()) for record in caplog.records] == [(level, message)]


@pytest.mark.parametrize("seed", range(4))
def test_requests_that_are_damaged_anywhere_do_no_harm(catalog: Catalog, seed: int) -> None:
    """Each gets responses of HTTP or none; the server answers the next one."""
    rng = random.Random(seed)
    whole = f"GET {TABLES}/orders?a=b HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\nConnection: close\r\n\r\nabc".encode()
    for _ in range(50):
        data = bytearray(whole)
        for _ in range(rng.randrange(1, 6)):
            place = rng.randrange(len(data))
            data[place : place + rng.choice([0, 1, 1, 9])] = rng.randbytes(rng.choice([0, 1, 1, 3]))
        with catalog.send(bytes(data)) as connection:
            connection.shutdown(socket.SHUT_WR)
            answer = received(connection)
        assert answer == b"" or answer.startswith(b"HTTP/1.1 "), bytes(data)
    assert catalog.ask("/v1/config").status == 200


# The end --------------------------------------------------------------------------------------------------------------


class SlowCuts(WrittenCuts):
    """Cuts whose metadata arrives when a test allows it."""

    def __init__(self) -> None:
        super().__init__()
        self.asked, self.allowed = threading.Event(), threading.Event()

    def metadata(self, table: PublishedTable) -> bytes | None:
        self.asked.set()
        assert self.allowed.wait(PATIENCE)
        return super().metadata(table)


def test_the_end_waits_for_requests_under_way_and_for_no_other(caplog: pytest.LogCaptureFixture) -> None:
    cuts = SlowCuts()
    cuts.publish({"orders": 1})
    with serving(Router(cuts, LOCATION)) as catalog:
        server = catalog.server
        assert server is not None
        idle = catalog.connect()
        assert ask_on(idle, "/v1/config").status == 200
        request = f"GET {TABLES}/orders HTTP/1.1\r\nHost: a\r\n\r\n".encode()
        with catalog.send(request) as connection:
            assert cuts.asked.wait(PATIENCE)
            stopping = threading.Thread(target=server.stop, daemon=True)
            stopping.start()
            assert idle.sock is not None
            assert idle.sock.recv(1) == b""
            cuts.allowed.set()
            assert parsed(received(connection)).status == 200
        stopping.join(PATIENCE)
        assert not stopping.is_alive()
        idle.close()
    assert caplog.records == []


def test_the_end_waits_no_longer_than_it_may() -> None:
    cuts = SlowCuts()
    cuts.publish({"orders": 1})
    with serving(Router(cuts, LOCATION), Limits(end_s=0.05)) as catalog:
        server = catalog.server
        assert server is not None
        with catalog.send(f"GET {TABLES}/orders HTTP/1.1\r\nHost: a\r\n\r\n".encode()):
            assert cuts.asked.wait(PATIENCE)
            server.stop()
            assert len(server._open_connections) == 1
            cuts.allowed.set()


def test_an_error_of_the_server_is_a_response_that_says_nothing_of_it(
    cuts: WrittenCuts, caplog: pytest.LogCaptureFixture
) -> None:
    class Broken(Router):
        def answer(self, request: Request) -> Response:
            raise ZeroDivisionError("secret")

    with serving(Broken(cuts, LOCATION)) as catalog:
        answer = catalog.ask("/v1/config")
    assert (answer.status, answer.kind, b"secret" in answer.body) == (500, "ServiceFailureException", False)
    assert [record.getMessage() for record in caplog.records] == ["a request failed"]
