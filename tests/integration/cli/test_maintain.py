"""``txnstore maintain``: once, as a service, with wrong options; the warnings of a store that nobody maintains."""

from __future__ import annotations

import json
import os
import signal
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest

import txnstore
from tests.helpers.cli import Cli, finished, process
from tests.helpers.connections import connection_of
from txnstore.chain.keys import LEASES


@pytest.fixture
def cli(local_store_url: str, monkeypatch: pytest.MonkeyPatch) -> Cli:
    """The command line on a store with records that are past their retention, and others of equal keys."""
    with txnstore.create(local_store_url) as store:
        store.create_topic("orders", config={"retention.ms": 1_000})
        store.create_topic("users", config={"cleanup.policy": "compact"})
        with store.producer() as producer:
            for number in range(3):
                producer.send("orders", b"%d" % number, timestamp=1_000)
                producer.send("users", b"%d" % number, key=b"a")
                producer.flush()
    return Cli(local_store_url, monkeypatch)


def _round(cli: Cli, *arguments: str) -> Any:
    (line,) = cli.ok("maintain", "--once", "--json", *arguments).lines
    return line


def test_once_does_what_is_due(cli: Cli) -> None:
    first = cli.ok("maintain", "--once").out
    assert "retain: records 3, " in first
    assert "compact: partitions 1, segments before 3, segments after 1, superseded 2" in first
    second = _round(cli)
    assert (second["number"], second["results"]) == (1, [])
    assert cli.ok("sql", "select count(*) from orders", "--json").lines == [{"count_star()": 0}]


def test_a_failure_is_status_1_and_the_rest_is_done(cli: Cli) -> None:
    with txnstore.open(cli.url) as store, store.producer() as producer:
        store.create_topic("lost", config={"inline.bytes": 0, "segment.own.bytes": 0})
        for _ in range(2):
            producer.send("lost", b"x").result()
    for segment in Path(cli.url.removeprefix("file://")).glob("topics/lost/0/*"):
        segment.unlink()
    result = cli("maintain", "--once", "--json")
    assert result.status == 1
    (line,) = result.lines
    assert [each["kind"] for each in line["results"]] == ["retain", "compact", "vacuum"]
    assert [each["error"] is None for each in line["results"]] == [True, False, False]
    assert result.err.startswith("warning: round 1: compact: the merge of lost-0 failed: ")
    assert "superseded" in line["results"][1]["counts"]


def test_only_what_is_asked_for_is_done(cli: Cli) -> None:
    assert [each["kind"] for each in _round(cli, "--only", "retain", "--only", "vacuum")["results"]] == ["retain"]
    assert [each["kind"] for each in _round(cli)["results"]] == ["compact"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--only", "nonsense"], "'nonsense' is not one of 'recover', 'retain', 'compact'"),
        (["--budget", "-1"], "-1 is not in the range x>=1"),
        (["--budget", "5"], "--budget is for a service: --once does all that is due"),
        (["--budget", "many"], "'many' is not a valid integer"),
        (["--every", "retain"], "'retain' is not KIND=DURATION, such as tables=5s"),
        (["--every", "nonsense=5s"], "is not KIND=DURATION"),
        (["--every", "retain=often"], "'often' is not a duration"),
        (["--every", "vacuum=0"], "every vacuum must be a number of seconds from 1 to"),
        (["--every", "retain=5s"], "--every retain is for a service: --once looks at each kind"),
        (["--only", "retain", "--every", "vacuum=6h"], "every vacuum has no effect without vacuum"),
        (["--max-bytes", "0"], "max_bytes must be an integer, 1 or more"),
        (["--memory-limit", "1MB"], "a clean needs at least"),
        (["--metrics", "9193"], "'9193' is not HOST:PORT"),
    ],
)
def test_wrong_options_are_refused(cli: Cli, arguments: list[str], message: str) -> None:
    result = cli("maintain", "--once", *arguments)
    assert (result.status, message in result.err, result.out) == (2, True, ""), result


@pytest.mark.parametrize("ending", [signal.SIGTERM, signal.SIGINT])
def test_a_service_ends_by_a_signal(cli: Cli, ending: signal.Signals) -> None:
    """A service manager sends SIGTERM, a terminal SIGINT: no partition is held after either."""
    with process("--store", cli.url, "maintain", "--every", "retain=1s") as running:
        assert running.stdout is not None
        assert "retain: records 3" in running.stdout.readline()
        assert "nothing to do" in running.stdout.readline()
        running.send_signal(ending)
        _, err = running.communicate(timeout=60)
        assert (running.returncode, err) == ({signal.SIGTERM: 0, signal.SIGINT: 130}[ending], "")
    with txnstore.open(cli.url) as store:
        assert not connection_of(store).objects.list(LEASES)


def test_what_is_due_and_was_ended_before_its_end_is_not_status_0(cli: Cli) -> None:
    """A cron job or a Kubernetes job that reaches its deadline."""
    with txnstore.open(cli.url) as store:
        record = Path(cli.url.removeprefix("file://")) / connection_of(store).keys.maintenance
    record.parent.mkdir(parents=True, exist_ok=True)
    os.mkfifo(record)  # The first round reads it, and waits.
    with process("--store", cli.url, "maintain", "--once", "--metrics", "127.0.0.1:0") as running:
        assert running.stderr is not None
        assert running.stderr.readline().startswith("metrics on ")
        running.send_signal(signal.SIGTERM)
        running.communicate(timeout=60)
        assert running.returncode == 143


def test_a_service_shows_its_metrics_and_its_health(cli: Cli) -> None:
    with process("--store", cli.url, "maintain", "--metrics", "127.0.0.1:0") as running:
        assert running.stdout is not None
        assert running.stderr is not None
        url = running.stderr.readline().removeprefix("metrics on ").strip()
        assert "round 1" in running.stdout.readline()
        with urllib.request.urlopen(url, timeout=60) as response:  # noqa: S310 - our own endpoint
            text = response.read().decode()
        with urllib.request.urlopen(url.replace("/metrics", "/health"), timeout=60) as response:  # noqa: S310 - the same
            assert response.read() == b"ok\n"
        with pytest.raises(urllib.error.HTTPError, match="404"):
            urllib.request.urlopen(url.replace("/metrics", "/"), timeout=60)  # noqa: S310 - the same
        running.terminate()
        running.communicate(timeout=60)
    store = f'store="{txnstore.open(cli.url).url}"'
    assert f'txnstore_maintenance_done_total{{{store},kind="retain"}} 1\n' in text
    assert f'txnstore_retention_overdue_seconds{{{store},topic="orders"}} 0\n' in text
    assert "txnstore_last_maintenance_seconds" in text
    assert "txnstore_requests_total" in text


def test_a_second_one_on_the_address_is_refused(cli: Cli) -> None:
    with process("--store", cli.url, "maintain", "--metrics", "127.0.0.1:0") as running:
        assert running.stderr is not None
        address = running.stderr.readline().split("//")[1].split("/")[0]
        other = finished("--store", cli.url, "maintain", "--metrics", address)
        assert (other.status, "cannot be listened on" in other.err) == (1, True)
        running.terminate()
        running.communicate(timeout=60)


# What is not maintained says so ---------------------------------------------------------------------------------------


def test_a_topic_whose_settings_nobody_applies_is_warned_of(cli: Cli) -> None:
    beginning = "topic 'new' has retention.ms, which takes effect when the store is maintained, and no process has"
    cli.ok("topic", "create", "new", "--config", "retention.ms=1000", warns=beginning)
    cli.ok("topic", "create", "plain")
    cli.ok("topic", "alter", "plain", "--config", "segment.bytes=1000000")
    looked = cli("doctor")
    assert looked.status == 1
    assert "txnstore maintain" in looked.out
    cli.ok("maintain", "--once")
    cli.ok("topic", "alter", "new", "--config", "retention.ms=2000")
    (report,) = cli.ok("doctor", "--json").lines
    (finding,) = (item for item in report["findings"] if item["section"] == "maintenance")
    assert finding["severity"] == "ok"
    assert json.loads(cli.ok("metrics", "--json").out)["maintenance"][0]["kind"] == "recover"
