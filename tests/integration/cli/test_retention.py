"""``retain``, ``topic delete-records``, and what the other commands show of a log that does not begin at 0."""

from __future__ import annotations

import pytest

import txnstore
from tests.helpers.cli import Cli


@pytest.fixture
def cli(local_store_url: str, monkeypatch: pytest.MonkeyPatch) -> Cli:
    """Topic ``orders`` with 3 batches of 2 records and an open transaction behind them; ``kept`` without retention."""
    with txnstore.create(local_store_url) as store:
        store.create_topic("orders")
        store.create_topic("kept")
        with store.producer(linger=None) as producer:
            for _ in range(3):
                producer.send("orders", b"x")
                producer.send("orders", b"y")
                producer.send("kept", b"z")
                producer.flush()
        producer = store.producer(transactional_id="job", transaction_timeout=900.0)
        producer.begin_transaction()
        producer.send("orders", b"open")
        producer.flush()
    monkeypatch.delenv("TXNSTORE_STORE", raising=False)
    return Cli(local_store_url, monkeypatch)


def test_records_are_deleted_up_to_an_offset(cli: Cli) -> None:
    """RET-06: a dry run, the deletion, and one that has nothing to do."""
    (planned,) = cli.ok("topic", "delete-records", "orders", "0", "3", "--dry-run", "--json").lines
    (done,) = cli.ok("topic", "delete-records", "orders", "0", "3", "--yes", "--json").lines
    assert {**planned, "dry_run": False} == done
    assert (done["partition"], done["log_start"], done["new_log_start"]) == ("orders-0", 0, 3)
    assert (done["batches"], done["records"], done["dry_run"]) == (1, 3, False)
    assert "orders-0 begins at offset 3" in cli.ok("topic", "delete-records", "orders", "0", "1", "--yes").out
    (shown,) = cli.ok("topic", "show", "orders", "--json").lines
    assert [(item["log_start"], item["records"]) for item in shown["offsets"]] == [(3, 4)]
    (listed,) = [row for row in cli.ok("topic", "list", "--json").lines if row["topic"] == "orders"]
    assert listed["records"] == 4
    (counted,) = cli.ok("sql", "select log_start, records from txn.partitions where topic = 'orders'", "--json").lines
    assert counted == {"log_start": 3, "records": 4}


@pytest.mark.parametrize(
    ("arguments", "status", "says"),
    [
        (["orders", "0", "end"], 1, "the open transaction of transactional id 'job' begins at offset 6"),
        (["orders", "0", "9"], 1, "its high watermark is 7"),
        (["orders", "0", "x"], 2, "'x' is not an offset"),
        (["orders", "4", "1"], 1, "no partition 4"),
        (["order", "0", "1"], 1, "did you mean 'orders'?"),
    ],
)
def test_a_deletion_that_is_refused_says_why(cli: Cli, arguments: list[str], status: int, says: str) -> None:
    """RET-01, RET-06."""
    result = cli("topic", "delete-records", *arguments, "--yes")
    assert (result.status, result.out) == (status, "")
    assert says in result.err


def test_retention_deletes_what_the_settings_say(cli: Cli) -> None:
    """RET-03: only in topics that have a retention."""
    assert cli("retain", "--yes").err == "Nothing to delete\n"
    cli.ok("topic", "alter", "orders", "--config", "retention.bytes=0", warns="topic 'orders' has retention.bytes")
    (planned,) = cli.ok("retain", "--dry-run", "--json").lines
    (done,) = cli.ok("retain", "orders", "--yes", "--json").lines
    assert planned == done
    assert (done["partition"], done["new_log_start"], done["batches"], done["records"]) == ("orders-0", 6, 3, 6)
    assert cli("retain", "--yes").err == "Nothing to delete\n"


def test_a_compaction_says_what_retention_deleted(cli: Cli) -> None:
    cli.ok("topic", "alter", "orders", "--config", "retention.bytes=0", warns="topic 'orders' has retention.bytes")
    assert "Retention would delete 6 records" in cli("compact", "--dry-run").err
    assert "Retention deleted 6 records" in cli("compact").err
    assert cli.ok("verify", "--deep").status == 0
