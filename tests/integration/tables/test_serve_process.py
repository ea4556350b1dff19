"""``txnstore table serve`` as a command, and as a process on a store that is written to."""

from __future__ import annotations

import signal
import socket
from pathlib import Path
from typing import Any

import pytest

import txnstore
from tests.helpers.catalog_server import Catalog, catalog_process
from tests.helpers.cli import Cli
from tests.helpers.table_stores import ENTRIES, rows_of, send
from txnstore.store import Store

TOKEN = "0123456789abcdef"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "store"


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "log"


@pytest.fixture
def store(folder: Path) -> Store:
    store = txnstore.create(folder)
    for topic in ("debits", "credits.eu"):
        store.create_topic(topic, 2, schema=ENTRIES, key="account")
        store.tables.enable(topic)
    return store


def transfer(store: Store, amount: int) -> None:
    with store.producer("bank") as producer, producer.transaction():
        send(producer, "debits", [(1, -amount)])
        send(producer, "credits.eu", [(2, amount)])


def prefix(catalog: Catalog, warehouse: str) -> str:
    name: str = catalog.ask(f"/v1/config?warehouse={warehouse}").document["overrides"]["prefix"]
    return name


def amounts(catalog: Catalog, prefix: str, topic: str) -> list[int]:
    """The amounts in a table, in order."""
    answer = catalog.ask(f"/v1/{prefix}/namespaces/tables/tables/{topic}")
    rows: list[dict[str, Any]] = rows_of(answer.document["metadata"])
    return sorted(row["amount"] for row in rows)


# A process ------------------------------------------------------------------------------------------------------------


def test_sessions_of_each_warehouse_over_a_restart(store: Store, folder: Path, log: Path) -> None:
    """Prefixes name cuts, so a server that was started again knows them."""
    transfer(store, 10)
    store.tables.sync()
    with catalog_process(folder, log) as running:
        pinned, live = prefix(running.catalog, "pinned"), prefix(running.catalog, "live")
        assert amounts(running.catalog, pinned, "debits") == [-10]
        transfer(store, 20)
        assert amounts(running.catalog, live, "debits") == [-10]
        store.tables.sync()
        assert amounts(running.catalog, live, "debits") == [-20, -10]
        assert amounts(running.catalog, pinned, "credits.eu") == [10]
        assert running.stop() == 0
    with catalog_process(folder, log) as running:
        assert amounts(running.catalog, pinned, "debits") == [-10]
        assert amounts(running.catalog, prefix(running.catalog, "1"), "credits.eu") == [10]
        assert amounts(running.catalog, prefix(running.catalog, "pinned"), "credits.eu") == [10, 20]
        assert running.catalog.ask("/v1/live/namespaces", "POST", b"{}").status == 403
        assert running.stop(signal.SIGINT) == 0
    assert log.read_text(encoding="utf-8") == ""


def test_a_fresh_catalog_publishes(store: Store, folder: Path, log: Path) -> None:
    with catalog_process(folder, log, "--fresh", "0") as running:
        for number in (1, 2, 3):
            transfer(store, number)
            assert amounts(running.catalog, "live", "debits") == sorted(-each for each in range(1, number + 1))
        pinned = prefix(running.catalog, "pinned")
        assert sum(amounts(running.catalog, pinned, "debits") + amounts(running.catalog, pinned, "credits.eu")) == 0
        assert running.stop() == 0
    assert log.read_text(encoding="utf-8").count("tables published cut=") == 3


def test_a_catalog_without_fresh_writes_nothing(store: Store, folder: Path, log: Path) -> None:
    transfer(store, 10)
    store.tables.sync()
    store.close()
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    with catalog_process(folder, log) as running:
        assert amounts(running.catalog, prefix(running.catalog, "pinned"), "debits") == [-10]
        assert running.stop() == 0
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before


def test_a_token_of_the_file_is_asked_for(store: Store, folder: Path, log: Path, tmp_path: Path) -> None:
    tokens = tmp_path / "tokens"
    tokens.write_text(f"\n{TOKEN}\n  another-token-of-the-file \n", encoding="utf-8")
    with catalog_process(folder, log, "--token-file", str(tokens), "--debug") as running:
        assert running.catalog.ask("/v1/config").status == 401
        for token in (TOKEN, "another-token-of-the-file"):
            assert running.catalog.ask("/v1/config", authorization=f"Bearer {token}").status == 200
    written = log.read_text(encoding="utf-8")
    assert ("request answered" in written, TOKEN in written) == (True, False)


# Options --------------------------------------------------------------------------------------------------------------


@pytest.fixture
def cli(store: Store, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Cli:
    store.close()
    return Cli(str(folder), monkeypatch)


@pytest.mark.parametrize(
    ("options", "status", "text"),
    [
        (["--listen", "nonsense"], 2, "is not HOST:PORT, such as 127.0.0.1:8181"),
        (["--listen", "0.0.0.0:0"], 1, "can be reached from other machines"),
        (["--listen", "[::]:0", "--fresh", "5"], 1, "Add --token-file"),
        (["--fresh", "-1"], 2, "--fresh"),
        (["--fresh", "nan"], 2, "--fresh"),
        (["--fresh", "inf"], 2, "--fresh"),
        (["--fresh", "soon"], 2, "--fresh"),
        (["--token-file", "/none"], 2, "does not exist"),
    ],
)
def test_wrong_options_are_refused(cli: Cli, options: list[str], status: int, text: str) -> None:
    result = cli("table", "serve", *options)
    assert (result.status, result.err.startswith("error: "), text in result.err) == (status, True, True), result


@pytest.mark.parametrize("option", ["--token-file", "--insecure-listen"])
def test_other_machines_are_allowed_by_a_token_or_in_so_many_words(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, option: str
) -> None:
    """This address is one of this machine, but not one that the command knows as such."""
    tokens = tmp_path / "tokens"
    tokens.write_text(TOKEN, encoding="utf-8")
    monkeypatch.setattr("txnstore.tables.serve.server.run", lambda _server, ready: ready())
    options = [option] if option == "--insecure-listen" else [option, str(tokens)]
    assert cli("table", "serve", "--listen", "127.0.0.2:0").status == 1
    result = cli("table", "serve", "--listen", "127.0.0.2:0", *options)
    assert (result.status, result.out.startswith("listening on 127.0.0.2:")) == (0, True), result


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (b"", "has no token"),
        (b" \n\n", "has no token"),
        (b"short\n", "token 1 of"),
        (b"0123456789abcdef\ntwo words with blanks\n", "token 2 of"),
        ("0123456789abcdéf\n".encode(), "token 1 of"),
        (b"\xff\xfe0123456789abcdef", "is no text"),
    ],
)
def test_a_file_without_good_tokens_is_refused(cli: Cli, tmp_path: Path, content: bytes, text: str) -> None:
    """The message has none of them."""
    path = tmp_path / "tokens"
    path.write_bytes(content)
    result = cli("table", "serve", "--listen", "127.0.0.1:0", "--token-file", str(path))
    assert (result.status, text in result.err) == (1, True), result
    assert not any(word in result.err for word in ("short", "blanks", "0123"))


def test_a_port_in_use_is_said(cli: Cli) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        host, port = taken.getsockname()
        result = cli("table", "serve", "--listen", f"{host}:{port}")
    assert (result.status, f"{host}:{port} cannot be listened on" in result.err) == (1, True), result


def test_a_store_that_cannot_have_tables_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "with a blank"
    txnstore.create(folder).close()
    result = Cli(str(folder), monkeypatch)("table", "serve", "--listen", "127.0.0.1:0")
    assert (result.status, "cannot have tables" in result.err) == (1, True), result


def test_a_store_that_does_not_exist_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    result = Cli(str(tmp_path / "none"), monkeypatch)("table", "serve", "--listen", "127.0.0.1:0")
    assert (result.status, "there is no txnstore at" in result.err) == (1, True), result
