"""``compact`` cleans topics by key, and says what it removed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

import txnstore
from tests.helpers.cli import Cli
from tests.helpers.connections import connection_of
from txnstore.core.model import TopicPartition
from txnstore.producer import Producer


@pytest.fixture
def cli(local_store_url: str, monkeypatch: pytest.MonkeyPatch) -> Cli:
    with txnstore.create(local_store_url) as store:
        store.create_topic("users", config={"cleanup.policy": "compact"})
        with store.producer() as producer:
            for value in (b"1", b"2", b"3"):
                producer.send("users", value, key=b"a")
                producer.flush()
    return Cli(local_store_url, monkeypatch)


def test_compact_prints_what_a_clean_removed(cli: Cli) -> None:
    """CMP-20."""
    assert "Would do 1 clean by key" in cli("compact", "--dry-run").err
    result = cli("compact", "--memory-limit", "128MB")
    assert result.status == 0
    assert "Did 1 clean by key: 2 superseded records and 0 tombstones removed" in result.err
    assert cli("compact", "--force").err == "Nothing to compact\n"


@pytest.mark.parametrize("json", [True, False])
def test_compact_prints_what_it_did_before_the_error_of_damage(cli: Cli, json: bool) -> None:
    with txnstore.open(cli.url) as store:
        store.create_topic("broken", config={"inline.bytes": 0})
        for value in (b"1", b"2"):
            with store.producer() as producer:
                producer.send("broken", value)
        key = next(iter(connection_of(store).view().find_partition(TopicPartition("broken", 0)).batches)).segment.key
        connection_of(store).objects.delete([key])
    result = cli("compact", *(["--json"] if json else []))
    assert result.status == 1
    if json:
        users = next(row for row in result.lines if row["partition"] == "users-0")
        assert (users["cleans"], users["superseded"]) == (1, 2)
    else:
        assert "users-0" in result.out
        assert "Did 1 clean by key" in result.err
    assert result.err.splitlines()[-1].startswith("error: the merge of broken-0 failed: ")
    assert result.err.count(key) == 1
    alone = cli("compact")
    assert (alone.status, "Nothing to compact" in alone.err) == (1, False)


@contextmanager
def _beside_an_open_transaction(cli: Cli) -> Iterator[Producer]:
    """A transaction is open, and one record above its beginning is superseded by another."""
    with txnstore.open(cli.url) as store, store.producer("open") as held, store.producer() as producer:
        held.begin_transaction()
        held.send("users", b"x", key=b"b")
        held.flush()
        for value in (b"4", b"5"):
            producer.send("users", value, key=b"a")
            producer.flush()
        yield held


def test_compact_cleans_past_the_hw_when_asked_to(cli: Cli) -> None:
    """CMP-04."""
    with _beside_an_open_transaction(cli) as held:
        assert cli.ok("compact", "--json").lines[0]["superseded"] == 2
        assert cli.ok("compact", "--past-hw", "--json").lines[0]["superseded"] == 1
        held.abort_transaction()


def test_maintenance_cleans_past_the_hw_when_asked_to(cli: Cli) -> None:
    """CMP-04: it removes two records below the open transaction, and one above it."""
    with _beside_an_open_transaction(cli) as held:
        assert "superseded 3" in cli.ok("maintain", "--once", "--only", "compact", "--past-hw").out
        held.abort_transaction()


def test_bad_options_of_a_clean_change_nothing(cli: Cli) -> None:
    small = cli("compact", "--memory-limit", "1MB")
    assert (small.status, "a clean needs at least" in small.err) == (1, True)
    assert "is not a size" in cli("compact", "--memory-limit", "much").err
