"""The command line deletes old entries, and shows what is left."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.helpers.aging import age
from tests.helpers.cli import Cli


@pytest.fixture
def cli(local_store_url: str, monkeypatch: pytest.MonkeyPatch) -> Cli:
    """Entries 1 to 5, with checkpoints of 2, 3, 4 and 5."""
    monkeypatch.delenv("TXNSTORE_STORE", raising=False)
    cli = Cli(local_store_url, monkeypatch)
    cli.ok("init")
    for name in "abcde":
        cli.ok("topic", "create", name)
        cli.ok("checkpoint")
    return cli


def test_old_entries_are_announced_and_deleted_a_day_later(cli: Cli, local_store_url: str) -> None:
    root = Path(urlsplit(local_store_url).path)
    assert cli.ok("vacuum", "--yes", "--json").lines[0]["announced"] == 0
    age(root, days=8)
    text = "announce 4 entries of the history: a vacuum after 24 hours deletes them\n"
    assert f"Would {text}" in cli("vacuum", "--dry-run").err
    assert cli.ok("vacuum", "--history", "9d", "--dry-run", "--json").lines[0]["announced"] == 0
    assert "Announced 4 entries of the history" in cli("vacuum", "--yes").err
    age(root, days=1)
    (report,) = cli.ok("vacuum", "--yes", "--json").lines
    assert sum("/entries/" in key for key in report["deleted"]) == 4
    assert [line["entry"] for line in cli.ok("log", "show", "--json").lines] == [5]
    refused = cli("log", "entry", "3")
    assert (refused.status, "the history begins after entry 4" in refused.err) == (1, True)
    early = cli("sql", "--at", "3", "select 1")
    assert (early.status, "deleted the history of chain 0 before entry 4" in early.err) == (1, True)
    assert [line["topic"] for line in cli.ok("topic", "list", "--json").lines] == [*"abcde"]
    cli.ok("verify", "--deep")
    assert cli.ok("recover", "--dry-run").out.startswith("0 objects would be rebuilt")


def test_the_history_of_a_transaction_says_where_it_begins(cli: Cli, local_store_url: str) -> None:
    root = Path(urlsplit(local_store_url).path)
    cli.ok("produce", "a", "--transactional-id", "old", stdin="value\n")
    cli.ok("checkpoint")
    cli.ok("topic", "create", "f")
    cli.ok("checkpoint")
    assert cli("txn", "history", "old", "--limit", "1").err.endswith("--limit reads more\n")
    age(root, days=6)
    cli("vacuum", "--yes", "--history", "5d")
    age(root, days=1)
    cli("vacuum", "--yes", "--history", "5d")
    result = cli("txn", "history", "old")
    assert result.status == 0
    assert "The history begins after entry 7 of chain 0: a vacuum deletes older entries" in result.err
    assert "--limit" not in result.err
    cli.ok("produce", "a", "--transactional-id", "new", stdin="value\n")
    assert "--limit" in cli("txn", "history", "new", "--since", "1h", "--limit", "1").err
    assert cli.ok("txn", "history", "new", "--since", "1h").err == ""


def test_a_history_that_is_no_duration_is_refused(cli: Cli) -> None:
    assert cli("vacuum", "--history", "soon").status == 2
