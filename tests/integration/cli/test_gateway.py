"""``txnstore gateway`` with options that are wrong: nothing listens, and the message says what to do."""

from __future__ import annotations

import logging
import re
import signal
import socket
from pathlib import Path
from typing import Any

import pytest

import txnstore
from tests.helpers.cli import Cli
from txnstore.cli.logs import printed_logs
from txnstore.errors import StorageRefusedError
from txnstore.gateway import gateway
from txnstore.gateway.gateway import Gateway
from txnstore.gateway.security import read_users
from txnstore.storage import probe
from txnstore.storage.local import LocalStore


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cli:
    url = str(tmp_path / "store")
    txnstore.create(url).close()
    return Cli(url, monkeypatch)


@pytest.mark.parametrize(
    ("options", "status", "text"),
    [
        (["--listen", "nonsense"], 2, "is not HOST:PORT"),
        (["--listen", "127.0.0.1:70000"], 2, "is not HOST:PORT"),
        (["--listen", "0.0.0.0:0"], 1, "lacks TLS or authentication"),
        (["--listen", "0.0.0.0:0", "--insecure"], 2, "--advertise is missing"),
        (["--property", "num.partition=2"], 2, "did you mean num.partitions?"),
        (["--property", "num.partitions"], 2, "is not NAME=VALUE"),
        (["--property", "num.partitions=many"], 2, "must be a whole number from 1 on, not 'many'"),
        (["--property", "num.partitions=-1"], 2, "must be a whole number from 1 on, not '-1'"),
        (["--property", "group.initial.rebalance.delay.ms=x"], 2, "must be a whole number from 0 on"),
        (["--property", "num.partitions=0"], 2, "from 1 on"),
        (["--property", "auto.create.topics.enable=yes"], 2, "must be true or false"),
        (["--property", "group.consumer.heartbeat.interval.ms=50000"], 2, "below group.consumer.session.timeout.ms"),
        (["--tls-cert", __file__], 2, "are given together"),
        (["--tls-cert", __file__, "--tls-key", __file__], 1, "TLS cannot use"),
        (["--sasl", __file__], 1, "cannot be read"),
        (["--tls-client-ca", __file__], 2, "needs --tls-cert"),
        (["--property", "sasl.oauthbearer.jwks.endpoint.url=file:///none"], 1, "expected.issuer is missing"),
        (["--property", "sasl.oauthbearer.expected.audience=a"], 2, "tokens need sasl.oauthbearer.jwks.endpoint.url"),
        (["--property", "ssl.principal.mapping.rules=RULE:(.*)/$1/"], 2, "needs --tls-client-ca"),
        (["--workers", "0"], 2, "1<=x<=64"),
        (["--workers", "2", "--listen", "127.0.0.1:65534"], 2, "there are no 2 ports after 127.0.0.1:65534"),
        (
            ["--workers", "2", "--listen", "127.0.0.1:0", "--advertise", "a:1", "--peers", "a:1,a:2"],
            2,
            "two of them have a worker at a:3",
        ),
        (["--rack", ""], 2, "is no name of a zone"),
        (["--rack", "a,b"], 2, "is no name of a zone"),
        (["--sasl", "/none"], 2, "does not exist"),
        (["--listen", "127.0.0.1:0", "--peers", "10.0.0.1:9092"], 2, "is not one of them"),
        (["--listen", "127.0.0.1:0", "--advertise", "a:1", "--peers", "a:1,b:1,b:1"], 2, "b:1 is named twice"),
        (["--listen", "127.0.0.1:0", "--advertise", "a:1", "--peers", "a:1,b:1,a:1"], 2, "a:1 is named twice"),
        (
            ["--listen", "127.0.0.1:0", "--advertise", "a:1", "--peers", "a:1,[::1]:1,[::1]:1"],
            2,
            "[::1]:1 is named twi",
        ),
    ],
)
def test_wrong_options_are_refused(cli: Cli, options: list[str], status: int, text: str) -> None:
    result = cli("gateway", *options)
    assert (result.status, result.err.startswith("error: "), text in result.err) == (status, True, True), result


def test_a_port_in_use_is_said(cli: Cli) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        host, port = taken.getsockname()
        result = cli("gateway", "--listen", f"{host}:{port}")
    assert (result.status, f"{host}:{port} cannot be listened on" in result.err) == (1, True), result


def test_a_port_in_use_is_said_of_workers_too(cli: Cli) -> None:
    """Though they share theirs with each other: also if it is that of a worker, of another store perhaps."""
    with socket.create_server(("127.0.0.1", 0), reuse_port=True) as taken:
        host, port = taken.getsockname()
        for first in (port, port - 1):
            result = cli("gateway", "--listen", f"{host}:{first}", "--workers", "2")
            assert (result.status, f"{host}:{port} cannot be listened on" in result.err) == (1, True), result


def test_a_store_that_does_not_exist_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    result = Cli(str(tmp_path / "none"), monkeypatch)("gateway", "--listen", "127.0.0.1:0")
    assert (result.status, "there is no txnstore at" in result.err) == (1, True), result


# What is said at the start --------------------------------------------------------------------------------------------


@pytest.fixture
def ends_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A gateway gets SIGTERM as soon as it has started."""
    start = Gateway.start

    async def start_and_end(self: Gateway) -> None:
        await start(self)
        signal.raise_signal(signal.SIGTERM)

    monkeypatch.setattr(Gateway, "start", start_and_end)


@pytest.mark.usefixtures("ends_at_once")
def test_a_gateway_where_nothing_can_be_written_says_so_and_serves_readers(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each Produce would fail; who only reads needs no right to write."""
    text = "nothing can be written to the store, clients can only read: read-only"
    result = cli("gateway", "--listen", "127.0.0.1:0")
    assert (result.status, text in result.err) == (0, False), result

    def refuse(*_: object) -> bool:
        raise StorageRefusedError("read-only")

    monkeypatch.setattr(LocalStore, "put", refuse)
    monkeypatch.setattr(LocalStore, "put_if_absent", refuse)
    monkeypatch.setattr(probe, "_proven", {None})
    result = cli("gateway", "--listen", "127.0.0.1:0")
    assert (result.status, result.err.count(text), "listening on" in result.out) == (0, 1, True), result


def test_a_gateway_checks_the_storage_before_it_serves(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    def create(*_: object) -> bool:
        return True

    monkeypatch.setattr(LocalStore, "put_if_absent", create)
    monkeypatch.setattr(probe, "_proven", {None})
    result = cli("gateway", "--listen", "127.0.0.1:0")
    assert (result.status, "create the same object" in result.err) == (1, True), result


@pytest.mark.usefixtures("ends_at_once")
def test_more_gateways_than_chains_are_said(cli: Cli) -> None:
    """Those that lead nothing serve all the same."""
    for peers, is_said in (("a:1", False), ("a:1,127.0.0.1:9", True)):
        result = cli("gateway", "--listen", "127.0.0.1:0", "--advertise", "a:1", "--peers", peers)
        assert (result.status, "fewer chains than gateways" in result.err) == (0, is_said), result


def test_a_gateway_finds_itself_among_the_peers_by_the_name_that_it_listens_on(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    own: list[tuple[str, int]] = []

    async def run(*options: Any, **_: Any) -> None:
        own.append(options[3])

    monkeypatch.setattr(gateway, "run", run)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    for options in ((), ("--peers", f"a:1,localhost:{port}"), ("--peers", f"127.0.0.1:{port},a:1")):
        assert cli("gateway", "--listen", f"localhost:{port}", *options).status == 0
    assert own == [("127.0.0.1", port), ("localhost", port), ("127.0.0.1", port)]


class _ListenerOnIPv6(socket.socket):
    """A socket as one on ``::1``, which not every machine has."""

    def getsockname(self) -> tuple[str, int, int, int]:
        return "::1", 9100, 0, 0


def test_ipv6_addresses_are_printed_in_brackets(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in each URL: a Prometheus takes the printed one."""

    async def run(*options: Any, **_: Any) -> None:
        options[6]()

    def create_server(*_: Any, **__: Any) -> socket.socket:
        return _ListenerOnIPv6()

    monkeypatch.setattr(gateway, "run", run)
    monkeypatch.setattr(socket, "create_server", create_server)
    result = cli("gateway", "--listen", "[::1]:9100", "--metrics", "[::1]:9100")
    assert (result.status, result.out.splitlines()) == (
        0,
        ["listening on [::1]:9100", "metrics on http://[::1]:9100/metrics"],
    )


# Passwords ------------------------------------------------------------------------------------------------------------


def test_a_password_is_read_from_a_pipe(cli: Cli, tmp_path: Path) -> None:
    result = cli("gateway", "--hash-password", stdin="secret\nmore\n")
    assert (result.status, result.err) == (0, "")
    (tmp_path / "users.toml").write_text(f'[users]\nalice = "{result.out.strip()}"\n')
    credential = read_users(tmp_path / "users.toml")["alice"]["SCRAM-SHA-256"]
    assert credential.matches("secret")


@pytest.mark.parametrize(
    ("typed", "reason"), [("", "is empty"), ("\n", "is empty"), ("a\x07b\n", "does not allow")], ids=repr
)
def test_a_password_that_no_client_can_use_is_refused(cli: Cli, typed: str, reason: str) -> None:
    result = cli("gateway", "--hash-password", stdin=typed)
    assert (result.status, result.out) == (1, "")
    assert result.err.startswith("error: the password ")
    assert reason in result.err


def test_an_empty_password_that_is_typed_is_refused(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("click.termui.hidden_prompt_func", lambda _: "")
    result = cli("gateway", "--hash-password", terminal=True)
    assert (result.status, result.out, "the password is empty" in result.err) == (1, "", True)


# The log --------------------------------------------------------------------------------------------------------------


def test_lines_have_times_and_say_an_error_once(capsys: pytest.CaptureFixture[str]) -> None:
    log = logging.getLogger("txnstore.gateway.test")
    with printed_logs(), printed_logs(logging.INFO, times=True):
        log.info("closing a connection: %s", "a reason", extra={"client": "::1", "error": "a reason"})
        log.info("it failed", extra={"error": "a reason", "user": "a\nb"})
    lines = capsys.readouterr().err.splitlines()
    time = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}\+00:00 INFO txnstore\.gateway\.test: "
    assert re.fullmatch(time + r"closing a connection: a reason client=::1", lines[0])
    assert re.fullmatch(time + r"it failed error=a reason user='a\\nb'", lines[1])
    assert len(lines) == 2
