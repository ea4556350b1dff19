"""The command line deletes old entries, and shows what is left."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import urlsplit

import pytest

import txnstore
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


def test_the_log_of_a_partition_is_dumped_with_its_markers(cli: Cli, local_store_url: str) -> None:
    """CTL-09: by offset, in ranges, for both isolations, and as text."""
    with txnstore.open(local_store_url) as store, store.producer("id") as producer:
        with producer.transaction() as txn:
            txn.send("a", b"1")
        producer.begin_transaction()
        producer.send("a", b"2")
        producer.flush()
        producer.abort_transaction()
    lines = cli.ok("log", "dump", "a", "0", "--json").lines
    assert [(line["kind"], line["base_offset"], line["outcome"]) for line in lines] == [
        ("batch", 0, "committed"),
        ("marker", 1, "COMMIT"),
        ("batch", 2, "aborted"),
        ("marker", 3, "ABORT"),
    ]
    assert cli.ok("log", "dump", "a", "0", "--json", "--from", "1", "--to", "3").lines == lines[1:3]
    stable = cli.ok("log", "dump", "a", "0", "--json", "--isolation", "read_committed").lines
    assert [line["base_offset"] for line in stable] == [0, 1, 3]
    shown = cli("log", "dump", "a", "0", "--max", "1")
    assert (shown.status, "COMMIT" in shown.out, "3 more lines: --from 1" in shown.err) == (0, False, True)
    unread = cli("log", "dump", "a", "0", "--entries", "0")
    assert "Only the newest 0 entries were read" in unread.err
    missing = cli("log", "dump", "a", "7")
    assert (missing.status, "there is no partition a-7" in missing.err) == (1, True)
