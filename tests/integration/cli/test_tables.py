"""``txnstore table``: topics get tables, which are published, listed, shown, checked and taken away again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import txnstore
from tests.helpers.cli import Cli
from txnstore.chain import keys


@pytest.fixture
def folder(tmp_path: Path, chains: int) -> Path:
    """A store with two topics, one of them with compacted records and a fresh one."""
    folder = tmp_path / "store"
    with txnstore.create(str(folder), chains) as store:
        for name in ("orders", "audit"):
            store.create_topic(name, partitions=1)
    for number in range(9):
        _produce(folder, b"%d" % number)
    with txnstore.open(str(folder)) as store:
        store.compact()
    _produce(folder, b"fresh")
    return folder


@pytest.fixture
def cli(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Cli:
    monkeypatch.delenv("TXNSTORE_STORE", raising=False)
    return Cli(str(folder), monkeypatch)


def _produce(folder: Path, value: bytes) -> None:
    with txnstore.open(str(folder)) as store, store.producer() as producer:
        producer.send("orders", value=value)


def _one(cli: Cli, *arguments: str) -> Any:
    (line,) = cli.ok("table", *arguments, "--json").lines
    return line


def test_a_table_from_enable_to_disable(cli: Cli, folder: Path) -> None:
    cli.ok("table", "enable", "audit")
    assert "orders has a table" in cli("table", "enable", "orders").out
    (listed, other) = cli.ok("table", "list", "--json").lines
    assert (listed["topic"], listed["published"], listed["version"]) == ("audit", False, 0)
    assert (other["topic"], other["published"]) == ("orders", False)
    assert "orders version 1" in cli.ok("table", "sync").out
    assert "nothing has changed" in cli.ok("table", "sync").out
    shown, listed = _one(cli, "show", "orders"), cli.ok("table", "list", "--json").lines[1]
    assert shown["description"] == listed
    assert (shown["rows"], listed["rows"], listed["version"], listed["behind"]) == (10, 10, 1, 0)
    assert (folder / keys.table_version("orders", 1)).exists()
    assert listed["location"] == f"file://{folder}/tables/orders"
    checked = _one(cli, "check", "--deep")
    assert (checked["ok"], checked["tables"], checked["rows"]) == (True, 2, 10)
    _produce(folder, b"later")
    assert "entries" in cli.ok("table", "list").out
    cli.ok("table", "disable", "orders")
    assert "no rows" in cli.ok("table", "sync").out
    assert [each["topic"] for each in cli.ok("table", "list", "--json").lines] == ["audit"]


def test_who_enables_a_table_hears_of_segments_that_spark_reads_wrongly(cli: Cli) -> None:
    result = cli("table", "enable", "orders")
    assert result.status == 0
    assert "1 segment of orders may have been compacted when it had no table" in result.err
    assert "filter by _offset" in result.err
    assert cli.ok("table", "enable", "orders").err == ""  # It has a table already: nothing changes.
    assert cli.ok("table", "enable", "audit").err == ""  # Nothing of it was compacted.


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["enable", "order"], "there is no topic 'order'"),
        (["disable", "order"], "there is no topic 'order'"),
        (["show", "order"], "there is no topic 'order'"),
        (["show", "audit"], "topic 'audit' has no table: `txnstore table enable audit`"),
        (["sync", "--rebuild", "order"], "there is no topic 'order'"),
        (["sync", "--rebuild", "audit"], "topic 'audit' has no table"),
    ],
)
def test_topics_without_a_table_are_named(cli: Cli, arguments: list[str], expected: str) -> None:
    result = cli("table", *arguments)
    assert result.status == 1
    assert expected in result.err


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["sync", "--tail-bytes", "many"], "is not a size"),
        (["serve", "--fresh", "-1"], "--fresh"),
    ],
)
def test_options_that_contradict_each_other_are_refused(cli: Cli, arguments: list[str], expected: str) -> None:
    result = cli("table", *arguments)
    assert result.status == 2
    assert expected in result.err


def test_too_much_to_copy_is_refused_until_a_compaction(cli: Cli) -> None:
    cli("table", "enable", "orders")
    refused = cli("table", "sync", "--tail-bytes", "1")
    assert refused.status == 1
    assert "`txnstore compact` makes the copies unnecessary" in refused.err
    assert "orders version 1" in cli.ok("table", "sync", "--compact").out


def test_a_damaged_table_is_found_and_rebuilt(cli: Cli, folder: Path) -> None:
    cli("table", "enable", "orders")
    cli.ok("table", "sync")
    (copy,) = (folder / "tables" / "orders" / "data").iterdir()
    copy.unlink()
    found = cli("table", "check")
    assert found.status == 1
    assert "`txnstore table sync --rebuild orders`" in found.out
    assert "rebuilt" in cli.ok("table", "sync", "--rebuild", "*").out
    cli.ok("table", "check", "--deep")


def test_a_topic_that_engines_could_not_read_gets_no_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither when it is created nor later; what it had before a move stays."""
    monkeypatch.delenv("TXNSTORE_STORE", raising=False)
    folder, good = tmp_path / "my store", tmp_path / "store"
    txnstore.create(str(good)).close()
    cli = Cli(str(good), monkeypatch)
    cli.ok("topic", "create", "moved", "--config", "table.format=iceberg")
    good.rename(folder)
    cli = Cli(str(folder), monkeypatch)
    for arguments in (
        ["topic", "create", "orders", "--config", "table.format=iceberg"],
        ["table", "list"],
        ["table", "sync"],
    ):
        refused = cli(*arguments)
        assert refused.status == 1
        assert "cannot have tables: engines read its path in different ways" in refused.err
    cli.ok("topic", "create", "orders")
    assert cli("table", "enable", "orders").status == 1
    assert cli("table", "enable", "moved").status == 1
    with txnstore.open(str(folder)) as store:
        store.create_topic("moved", config={"table.format": "iceberg"}, exist_ok=True)
    cli.ok("topic", "alter", "moved", "--config", "segment.bytes=1000")
