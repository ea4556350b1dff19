"""``txnstore metrics``: the state of a store as Prometheus text or JSON, without a write."""

from __future__ import annotations

import pytest

import txnstore
from tests.helpers.cli import Cli


@pytest.fixture
def cli(local_store_url: str, monkeypatch: pytest.MonkeyPatch) -> Cli:
    """The command line on a store with a record."""
    with txnstore.create(local_store_url) as store:
        store.create_topic("orders")
        with store.producer() as producer:
            producer.send("orders", b"v")
    return Cli(local_store_url, monkeypatch)


def test_metrics_prints_the_state_of_the_store(cli: Cli) -> None:
    text = cli.ok("metrics").out
    url = txnstore.open(cli.url).url
    assert f'txnstore_partition_high_watermark{{store="{url}",topic="orders",partition="0"}} 1\n' in text
    assert "txnstore_requests_total" not in text
    with_process = cli.ok("metrics", "--process").out
    assert f'txnstore_requests_total{{store="{url}",kind="put"}} 0\n' in with_process, "looking changes nothing"
    assert "txnstore_request_duration_seconds_bucket{" in with_process


def test_metrics_as_json(cli: Cli) -> None:
    (status,) = cli.ok("metrics", "--json").lines
    parts = {"chains", "partitions", "transactions", "groups", "lags", "tables", "maintenance", "retention"}
    assert set(status) == parts
    assert status["partitions"][0]["lso_distance"] == 0
    (both,) = cli.ok("metrics", "--process", "--json").lines
    for each in (both["status"], status):
        assert {row["age"] >= 0 for row in each.pop("maintenance")} == {True}
    assert both["status"] == status
    assert both["durations"]["get"]["total_ms"] >= 0
