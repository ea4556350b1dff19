"""``erase`` asks, erases and says what it does not reach; ``topic create --like`` for a corrected topic."""

from __future__ import annotations

from typing import Any

import pytest

import txnstore
from tests.helpers.cli import Cli
from tests.helpers.connections import connection_of


@pytest.fixture
def cli(local_store_url: str, monkeypatch: pytest.MonkeyPatch) -> Cli:
    with txnstore.create(local_store_url) as store:
        store.create_topic("orders", partitions=2)
        with store.producer() as producer:
            for key in (b"ann@example.org", b"bob", b"ann@example.org"):
                producer.send("orders", b"x", key=key)
    monkeypatch.delenv("TXNSTORE_STORE", raising=False)
    return Cli(local_store_url, monkeypatch)


def _keys(cli: Cli) -> list[str]:
    return [row["key"] for row in cli("consume", "orders", "--format", "json").lines]


def test_it_shows_what_it_erases_and_asks(cli: Cli) -> None:
    refused = cli("erase", "orders", "--key", "ann@example.org", stdin="n\n", terminal=True)
    assert (refused.status, refused.out) == (1, "")
    assert "Erase 2 records in 1 object?" in refused.err
    assert len(_keys(cli)) == 3
    erased = cli("erase", "orders", "--key", "ann@example.org", "--prove", stdin="y\n", terminal=True)
    assert erased.status == 0, erased
    assert "Erased 2 records in 1 object" in erased.out
    assert "Nothing of it was found" in erased.err
    assert "Not erased: versions of objects that the bucket keeps, and backups" in erased.err
    assert _keys(cli) == ["bob"]


def test_json_and_status_of_what_is_found(cli: Cli) -> None:
    (dry,) = cli.ok("erase", "orders", "--where", "key = 'bob'", "--dry-run", "--json").lines
    assert (dry["records"], dry["partitions"][0]["records"], dry["dry_run"]) == (1, 1, True)
    with txnstore.open(cli.url) as store, store.producer() as producer:
        producer.send("orders", b"mail to ann@example.org", key=b"c")
    result = cli("erase", "orders", "--key", "ann@example.org", "--prove", "--yes", "--json")
    assert result.status == 1, "the bytes are in a value"
    assert [trace["where"] for trace in result.lines[0]["traces"]] == ["bytes"]


@pytest.mark.s3
def test_on_s3_nothing_of_it_is_left_in_the_bucket(s3_bucket_url: str, storage_options: dict[str, Any]) -> None:
    """In entries, segments, what a compaction has replaced, and the copies for a table."""
    key, url = b"ann@example.org", f"{s3_bucket_url}/events"
    with txnstore.create(url, storage_options=storage_options) as store:
        store.create_topic("orders", config={"table.format": "iceberg"})
        for size in (70_000, 1, 1):
            with store.producer("w") as producer, producer.transaction():
                producer.send("orders", b"v" * size, key=key)
                producer.send("orders", b"v" * size, key=b"bob")
            store.tables.sync()
        store.compact()
        with store.producer() as producer:
            producer.send("orders", b"v", key=key)
        report = store.erase("orders", key=key, prove=True)
        assert (report.records, report.tables, report.traces) == (4, True, ())
        assert {item.outcome for item in report.found} == {"deleted", "emptied"}
        assert store.verify(deep=True).ok
    with txnstore.open(url, storage_options=storage_options) as store:
        assert [row["key"] for row in store.scan("orders").to_table().to_pylist()] == [b"bob"] * 3
        check = store.tables.check(deep=True)
        assert (check.problems, check.rows) == ((), 3)
        objects = connection_of(store).objects
        assert [item.key for item in objects.list("") if key in objects.get(item.key)] == []


def test_objects_that_wait_for_the_grace_period_are_no_failure(cli: Cli) -> None:
    """The proof is the run after it, by the same command."""
    result = cli("erase", "orders", "--key", "bob", "--grace", "24h", "--prove", "--yes")
    assert result.status == 0
    assert "1 object with erased records wait for the end of the grace period: repeat the command in" in result.err
    assert "Nothing of it was found in any other object" in result.err


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ([], "give --key, or --where"),
        (["--key", "k", "--where", "true"], "and not both"),
        (["--where", "nope = 1", "--yes"], "nope"),
        (["--key", "k"], "confirm with --yes"),
    ],
)
def test_wrong_use(cli: Cli, arguments: list[str], problem: str) -> None:
    result = cli("erase", "orders", *arguments)
    assert result.status in {1, 2}
    assert problem in result.err


def test_a_key_has_the_type_of_its_column(cli: Cli) -> None:
    cli.ok("topic", "create", "typed", "--column", "id:int64!", "--column", "name:string", "--key", "id")
    with txnstore.open(cli.url) as store, store.producer() as producer:
        producer.send_table("typed", [{"id": 7, "name": "ann"}, {"id": 8, "name": "bob"}])
    wrong = cli("erase", "typed", "--key", "seven", "--yes")
    assert (wrong.status, "int64" in wrong.err) == (2, True)
    (erased,) = cli.ok("erase", "typed", "--key", "7", "--yes", "--json").lines
    assert erased["records"] == 1


def test_a_topic_like_another_one(cli: Cli) -> None:
    arguments = ("--column", "id:int64!", "--key", "id", "--partitions", "3", "--config", "compression.type=snappy")
    cli.ok("topic", "create", "old", *arguments)
    cli.ok("topic", "create", "new", "--like", "old", "--config", "segment.bytes=5000000")
    with txnstore.open(cli.url, read_only=True) as store:
        old, new = store.topic("old"), store.topic("new")
    assert (new.schema, new.key, new.partitions) == (old.schema, old.key, old.partitions)
    assert new.config == {**old.config, "segment.bytes": "5000000"}
    assert cli("topic", "create", "x", "--like", "old", "--key", "id").status == 2
    assert cli("topic", "create", "x", "--like", "nope").status == 1
