"""Commands that read behind a producer that was killed in a transaction."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

import txnstore
from tests.helpers.cli import ROOT, Cli
from txnstore.runtime import wall_clock_ms

#: Writes one record in a transaction with this timeout (seconds), then waits to be killed. Its own clock stands still,
#: so the record is sent in time however short the timeout is.
_PRODUCER = """
import sys, txnstore
store = txnstore.open(sys.argv[1], runtime=txnstore.Runtime(monotonic=lambda: 0))
producer = store.producer("dead", float(sys.argv[2]))
producer.begin_transaction()
producer.send("orders", b"undecided")
producer.flush()
print("flushed", flush=True)
sys.stdin.read()
"""


def _killed(url: str, timeout: float) -> None:
    """A producer process that is killed after it has flushed a record."""
    arguments = [sys.executable, "-c", _PRODUCER, url, str(timeout)]
    with subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"flushed\n"
        process.send_signal(signal.SIGKILL)


@pytest.fixture
def cli(local_store_url: str, monkeypatch: pytest.MonkeyPatch) -> Cli:
    """The command line on a store with an empty topic."""
    with txnstore.create(local_store_url) as store:
        store.create_topic("orders")
    monkeypatch.delenv("TXNSTORE_STORE", raising=False)
    return Cli(local_store_url, monkeypatch)


def _send(cli: Cli) -> None:
    cli("produce", "orders", stdin="".join(f"order-{number}\n" for number in range(40)))


@pytest.fixture
def waiting(cli: Cli) -> Cli:
    """40 records behind a transaction whose timeout is not over."""
    _killed(cli.url, 900.0)
    _send(cli)
    return cli


@pytest.fixture
def expired(cli: Cli) -> Cli:
    """40 records behind a transaction whose timeout of a millisecond has passed."""
    _killed(cli.url, 0.001)
    _send(cli)
    with txnstore.open(cli.url, read_only=True) as store:
        (blocked,) = store.snapshot().blocked()
    while blocked.expires_at is None or wall_clock_ms() <= blocked.expires_at:
        pass
    return cli


SQL = ("sql", "select count(*) as records from orders")
COMMANDS = pytest.mark.parametrize("command", [("consume", "orders"), SQL], ids=["consume", "sql"])


@COMMANDS
def test_command_tells_what_waits_behind_whom_in_one_line(waiting: Cli, command: tuple[str, ...]) -> None:
    result = waiting(*command)
    assert result.status == 0
    assert "order" not in result.out
    (line,) = [line for line in result.err.splitlines() if line.startswith("warning: ")]
    assert line.startswith("warning: 40 committed records of orders-0 cannot be read yet: waiting since ")
    assert "behind the open transaction of 'dead'" in line


@COMMANDS
def test_command_that_may_write_ends_an_expired_transaction(expired: Cli, command: tuple[str, ...]) -> None:
    result = expired(*command)
    assert "warning" not in result.err
    assert result.out.count("order-") == 40 or "40" in result.out


def test_member_of_a_group_reads_what_waited(expired: Cli) -> None:
    result = expired("consume", "orders", "--group", "g")
    assert (result.out.count("order-"), "warning" in result.err) == (40, False)


def test_group_show_counts_what_waits(waiting: Cli) -> None:
    waiting("consume", "orders", "--group", "g")
    with txnstore.open(waiting.url) as store:
        store.reset_offsets("g", "earliest", ["orders"])
    result = waiting("--json", "group", "show", "g")
    (offsets,) = result.lines[0]["offsets"]
    assert (offsets["end"], offsets["lag"], offsets["high_watermark"], offsets["blocked"]) == (0, 0, 41, 40)
    assert result.err.startswith("warning: 40 committed records of orders-0")


def test_find_hanging_shows_an_expired_transaction_that_blocks_readers(expired: Cli) -> None:
    (hanging,) = expired.ok("--json", "txn", "find-hanging").lines
    assert (hanging["transactional_id"], hanging["reason"]) == ("dead", "expired")


def test_partitions_show_what_waits(waiting: Cli) -> None:
    (row,) = waiting("--json", "sql", "select blocked_records, blocked_by from txn.partitions").lines
    assert row == {"blocked_records": 40, "blocked_by": "dead"}
