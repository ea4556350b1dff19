"""The commands on a store with several chains."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest

import txnstore
from tests.harness.executors import DeferredExecutor
from tests.helpers.cli import Cli
from tests.helpers.connections import connection_of
from txnstore.chain.committer.sharing import VARIABLE
from txnstore.core.model import Outcome, ProducerIdentity, TopicPartition
from txnstore.core.routing import chain_of_transactional_id
from txnstore.core.transactions.commands import EndTxn
from txnstore.runtime import Runtime
from txnstore.storage.registry import open_store
from txnstore.store import open_on


@pytest.fixture
def cli(local_store_url: str, monkeypatch: pytest.MonkeyPatch) -> Cli:
    """Three chains, a topic with a partition in each, and three records in one transaction."""
    monkeypatch.delenv("TXNSTORE_STORE", raising=False)
    cli = Cli(local_store_url, monkeypatch)
    cli.ok("init", "--chains", "3")
    cli.ok("topic", "create", "orders", "--partitions", "3")
    cli.ok("produce", "orders", "--transactional-id", "job", "--format", "json", stdin=_RECORDS)
    return cli


_RECORDS = "".join(f'{{"value": "{number}", "partition": {number}}}\n' for number in range(3))


def _open_everywhere(url: str) -> tuple[txnstore.Store, ProducerIdentity]:
    """An open transaction over all chains, of a process that will not write a marker outside its coordinator's."""
    store = open_on(open_store(url, None), runtime=Runtime(background=DeferredExecutor))
    producer = store.producer("everywhere")
    producer.begin_transaction()
    for partition in range(3):
        producer.send("orders", b"x", partition=partition)
    producer.flush()
    return store, ProducerIdentity(producer.producer_id, producer.epoch, "everywhere")


def test_info_shows_the_number_of_chains(cli: Cli, tmp_path: Path) -> None:
    (created,) = cli.ok("init", (tmp_path / "more").as_uri(), "--chains", "2", "--json").lines
    assert created["chains"] == 2
    (info,) = cli.ok("info", "--json").lines
    assert (info["chains"], sum(info["entries_per_chain"]), len(info["entries_per_chain"])) == (3, info["entries"], 3)
    assert "entries per chain" in cli.ok("info").out


@pytest.mark.parametrize("sharing", ["on", "off"])
def test_info_shows_who_commits_for_others(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sharing: str
) -> None:
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:  # Short, as a path of a socket must be.
        monkeypatch.setenv("XDG_RUNTIME_DIR", folder)
        monkeypatch.setenv(VARIABLE, "on")
        url = (tmp_path / "shared").as_uri()
        with txnstore.create(url, chains=2) as store:
            assert cli("info", "--json", url=url).lines[0]["committers"] == {}
            committer = store._connection.chains[1]._committer
            assert committer is not None
            committer.join(listen=True)
            monkeypatch.setenv(VARIABLE, sharing)
            (info,) = cli("info", "--json", url=url).lines
            text = cli("info", url=url).out
    assert (f"process {os.getpid()} for chain 1" in text) is (sharing == "on")
    by_chain = {chain: (each["process_id"], each["is_answering"]) for chain, each in info["committers"].items()}
    assert by_chain == ({"1": (os.getpid(), True)} if sharing == "on" else {})


def test_info_shows_the_largest_timeout(cli: Cli, tmp_path: Path) -> None:
    """INIT-11: ``transaction.max.timeout.ms``; fixed when the store is created."""
    url = (tmp_path / "slow").as_uri()
    cli.ok("init", url, "--transaction-max-timeout", "1h")
    assert cli("info", "--json", url=url).lines[0]["transaction_max_timeout_ms"] == 3_600_000
    assert cli.ok("info", "--json").lines[0]["transaction_max_timeout_ms"] == 900_000
    refused = cli("init", url, "--exist-ok", "--transaction-max-timeout", "1m")
    assert (refused.status, "of 3600000, not of 60000" in refused.err) == (1, True)


@pytest.mark.parametrize("chains", ["0", "257", "many"])
def test_invalid_number_of_chains_is_refused(cli: Cli, tmp_path: Path, chains: str) -> None:
    """COORD-02."""
    assert cli("init", (tmp_path / "more").as_uri(), "--chains", chains).status == 2
    assert not (tmp_path / "more").exists()


def test_the_number_of_chains_cannot_be_changed(cli: Cli) -> None:
    """COORD-02: refused, not hashed again."""
    again = cli("init", cli.url, "--chains", "2", "--exist-ok")
    assert again.status == 1
    assert "has 3 chains, not 2" in again.err
    assert "with 3 chains" in cli.ok("init", cli.url, "--exist-ok").out


def test_the_log_shows_all_chains_or_one(cli: Cli) -> None:
    """CTL-09."""
    (info,) = cli.ok("info", "--json").lines
    shown = cli.ok("log", "show", "--max", "100", "--json").lines
    assert len(shown) == info["entries"]
    assert [item["timestamp"] for item in shown] == sorted(item["timestamp"] for item in shown)
    for chain in range(3):
        of_chain = [item["entry"] for item in shown if item["chain"] == chain]
        assert of_chain == list(range(1, info["entries_per_chain"][chain] + 1))
        one = cli.ok("log", "show", "--chain", str(chain), "--json").lines
        assert one == [item for item in shown if item["chain"] == chain]
        assert cli.ok("log", "show", "--chain", str(chain), "--before", "2", "--json").lines == one[:1]
    assert cli.ok("log", "show", "--max", "2", "--json").lines == shown[-2:]
    assert cli.ok("log", "show").out.split()[:2] == ["chain", "entry"]


def test_entry_number_needs_a_chain(cli: Cli) -> None:
    home = chain_of_transactional_id("job", 3)
    (info,) = cli.ok("info", "--json").lines
    entries = [
        cli.ok("log", "entry", str(number), "--chain", str(home), "--json").lines[0]
        for number in range(1, info["entries_per_chain"][home] + 1)
    ]
    assert {entry["chain"] for entry in entries} == {home}
    assert "TxnDecided" in {event["type"] for entry in entries for event in entry["events"]}
    for arguments, words in [
        (("log", "entry", "1"), "Add --chain 0 to --chain 2"),
        (("log", "show", "--before", "2"), "Add --chain 0 to --chain 2"),
        (("log", "entry", "1", "--chain", "3"), "no chain 3"),
        (("log", "entry", "999", "--chain", "1"), "no entry 999 in chain 1"),
    ]:
        refused = cli(*arguments)
        assert (refused.status, words in refused.err) == (1, True), refused


def test_recover_completes_abandoned_transactions(cli: Cli) -> None:
    """REC-02: what is decided is carried out, once."""
    nothing = {"finished": [], "aborted": [], "failed": [], "topics": 0, "repaired": [], "lost": [], "past": []}
    nothing |= {"stores": [], "foreign": []}
    assert cli.ok("recover", "--json").lines == [nothing]
    store, identity = _open_everywhere(cli.url)
    assert cli.ok("recover", "--json").lines == [nothing], "it is open, and in time"
    connection_of(store).submit(EndTxn(identity, Outcome.COMMIT))
    (txn,) = cli.ok("txn", "list", "--state", "PREPARE_COMMIT", "--json").lines
    assert (txn["transactional_id"], txn["chain"]) == ("everywhere", chain_of_transactional_id("everywhere", 3))
    assert len(cli.ok("consume", "orders", "--json").lines) == 6, "readers do not wait for that"
    assert cli.ok("recover", "--json").lines == [{**nothing, "finished": ["everywhere"]}]
    assert cli.ok("recover", "--json").lines == [nothing]
    assert cli.ok("recover").out.startswith("0 decided transactions")
    assert cli.ok("verify", "--deep", "--json").lines[0]["ok"]
    store.close()


def test_maintenance_covers_all_chains(cli: Cli) -> None:
    for _ in range(2):
        cli.ok("produce", "orders", "--transactional-id", "job", "--format", "json", stdin=_RECORDS)
    assert len(cli.ok("compact", "--json").lines) == 3
    (saved,) = cli.ok("checkpoint", "--json").lines
    (info,) = cli.ok("info", "--json").lines
    assert saved["sequence"] == info["entries"]
    (report,) = cli.ok("vacuum", "--older-than", "0s", "--yes", "--json", warns="the grace period is 0 s").lines
    assert len(report["deleted"]) == 9
    assert cli.ok("verify", "--deep", "--json").lines[0]["ok"]
    (row,) = cli.ok("sql", "select count(*) as n from orders", "--json").lines
    assert row == {"n": 9}


def test_expire_covers_all_chains(cli: Cli) -> None:
    """RET-13, TMO-07: nothing is old enough yet; with limits of one's own it is, and ids go by their own clock."""
    nothing = {"producers": 0, "transactional_ids": [], "offsets": 0, "groups": [], "dry_run": False}
    assert cli.ok("expire", "--yes", "--json").lines == [nothing]
    (report,) = cli.ok("expire", "--transactional-ids", "1ms", "--yes", "--json").lines
    assert report == {**nothing, "transactional_ids": ["job"]}
    assert cli.ok("expire", "--yes").out.startswith("Expired 0 producer states")
    refused = cli("expire", "--producers", "12h", "--yes")
    assert (refused.status, "producer.id.expiration.ms" in refused.err) == (1, True)
    assert cli.ok("txn", "list", "--json").lines == []
    assert cli.ok("compact", "--no-expire", "--json").lines == []


def test_txn_show_history_and_abort(cli: Cli) -> None:
    """ADM-01, ADM-02, ADM-05, TST-23: list, show, history, abort; what is asked twice is done once."""
    store, identity = _open_everywhere(cli.url)
    (listed,) = cli.ok(
        "txn", "list", "--producer-id", str(identity.producer_id), "--pattern", "every.*", "--json"
    ).lines
    (shown,) = cli.ok("txn", "show", "everywhere", "--json").lines
    assert shown.items() >= {"state": "ONGOING", "chain": listed["chain"], "prepared": False, "versions": {}}.items()
    assert [item["partition"] for item in shown["open"]] == ["orders-0", "orders-1", "orders-2"]
    assert cli.ok("txn", "abort", "--yes", "everywhere", "--json").lines == [{"ended": True}]
    assert cli.ok("txn", "abort", "--yes", "everywhere").out == "'everywhere' has no open transaction\n"
    steps = cli.ok("txn", "history", "everywhere", "--json").lines
    names = [step["step"] for step in steps if step["step"] != "ADD_PARTITIONS"]
    assert names == ["INIT", "BEGIN", "PREPARE_ABORT", *["ABORT(PID)"] * 3, "ABORTED"]
    marked = [step for step in steps if step["step"] == "ABORT(PID)"]
    assert sorted(step["chain"] for step in marked) == [0, 1, 2]
    assert sorted(name for step in marked for name in step["partitions"]) == ["orders-0", "orders-1", "orders-2"]
    table = cli.ok("txn", "history", "everywhere", "--since", "1h").out
    assert "PREPARE_ABORT" in table
    bounded = cli("txn", "history", "everywhere", "--limit", "3")
    assert (bounded.status, "newest 3 entries" in bounded.err) == (0, True)
    store.close()


def test_group_touched_only_by_ended_transactions_does_not_exist(cli: Cli) -> None:
    """OFF-16: what its chain keeps to fence late offsets is not a group, neither in the list nor in the number."""
    store = txnstore.open(cli.url)
    groups = [f"g{number}" for number in range(4)]
    producer = store.producer("job")
    producer.begin_transaction()
    for group in groups:
        producer.send_offsets({TopicPartition("orders", 0): 1}, group)
    producer.flush()
    assert [row["group"] for row in cli.ok("group", "list", "--json").lines] == groups
    assert cli.ok("info", "--json").lines[0]["groups"] == 4
    producer.abort_transaction()
    store.close()
    cli.ok("recover")
    assert cli.ok("group", "list", "--json").lines == []
    assert cli.ok("info", "--json").lines[0]["groups"] == 0


def test_producers_are_fenced_by_their_ids(cli: Cli) -> None:
    """INIT-17."""
    (before,) = cli.ok("txn", "show", "job", "--json").lines
    rows = cli.ok("txn", "fence", "--yes", "job", "other", "--json").lines
    assert [(row["transactional_id"], row["epoch"]) for row in rows] == [("job", before["epoch"] + 1), ("other", 0)]
    assert [step["step"] for step in cli.ok("txn", "history", "job", "--json").lines][-2:] == ["FENCED", "INIT"]


def test_hanging_transactions_are_found(cli: Cli) -> None:
    """ADM-04."""
    assert cli.ok("txn", "find-hanging", "--json").lines == []
    still = txnstore.Runtime(monotonic=lambda: 0)  # The records are sent in time, however slow the machine is.
    store = txnstore.open(cli.url, runtime=still)
    producer = store.producer("late", transaction_timeout=0.001)
    producer.begin_transaction()
    producer.send("orders", b"x", partition=1)
    producer.flush()
    (row,) = cli.ok("txn", "find-hanging", "--topic", "orders", "--late", "0s", "--json").lines
    assert row.items() >= {"partition": "orders-1", "transactional_id": "late", "reason": "late"}.items()
    arguments = ["txn", "abort", "--yes", "--partition", row["partition"], "--producer-id", str(row["producer_id"])]
    assert cli.ok(*arguments).out == f"Ended the transaction of producer id {row['producer_id']} in orders-1\n"
    assert cli.ok(*arguments, "--json").lines == [{"ended": False}]
    blocking = store.producer("blocking", transaction_timeout=0.001)
    blocking.begin_transaction()
    blocking.send_offsets({TopicPartition("orders", 0): 1}, "billing")
    blocking.flush()
    (row,) = cli.ok("txn", "find-hanging", "--late", "0s", "--json").lines
    expected = {"partition": None, "group": "billing", "transactional_id": "blocking", "first_offset": None}
    assert row.items() >= expected.items()
    assert "billing" in cli.ok("txn", "find-hanging", "--late", "0s").out
    assert cli.ok("txn", "abort", "--yes", "blocking", "--json").lines == [{"ended": True}]
    store.close()


@pytest.mark.parametrize(
    ("arguments", "status", "words"),
    [
        (["abort"], 2, "TRANSACTIONAL_ID"),
        (["abort", "x", "--partition", "orders-0", "--producer-id", "1"], 2, "TRANSACTIONAL_ID"),
        (["abort", "--partition", "orders-0"], 2, "TRANSACTIONAL_ID"),
        (["abort", "--partition", "orders", "--producer-id", "1"], 2, "TOPIC-N"),
        (["abort", "--yes", "--partition", "orders-9", "--producer-id", "1"], 1, "'orders' has no partition 9"),
        (["abort", "--yes", "nothing"], 1, "txn list"),
        (["history", "nothing"], 1, "txn list"),
        (["find-hanging", "--topic", "nothing"], 1, "nothing"),
        (["list", "--pattern", "("], 1, "regular expression"),
        (["fence", "--yes", ""], 1, "must not be empty"),
        (["fence"], 2, "TRANSACTIONAL_IDS"),
    ],
)
def test_impossible_transaction_commands_are_reported(cli: Cli, arguments: list[str], status: int, words: str) -> None:
    refused = cli("txn", *arguments)
    assert (refused.status, words in refused.err, refused.out) == (status, True, ""), refused
