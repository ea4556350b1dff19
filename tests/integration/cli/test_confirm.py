"""Commands that delete, reset or abort show the plan and ask; without a terminal they need ``--yes``."""

from __future__ import annotations

import pytest

import txnstore
from tests.helpers.cli import Cli


@pytest.fixture
def cli(local_store_url: str, monkeypatch: pytest.MonkeyPatch) -> Cli:
    """A topic with records, a group that has read them, and an open transaction."""
    with txnstore.create(local_store_url) as store:
        store.create_topic("orders")
        with store.producer() as producer:
            for _ in range(3):
                producer.send("orders", b"x")
        with store.consumer("orders", group="billing") as consumer:
            consumer.poll()
            consumer.commit()
        producer = store.producer(transactional_id="job", transaction_timeout=900.0)
        producer.begin_transaction()
        producer.send("orders", b"open")
        producer.flush()
    monkeypatch.delenv("TXNSTORE_STORE", raising=False)
    return Cli(local_store_url, monkeypatch)


def _state(cli: Cli) -> tuple[object, ...]:
    """All that the commands below change."""
    with txnstore.open(cli.url, read_only=True) as store:
        view = store.snapshot().view
        return (
            view.sequence,
            sorted(view.topics),
            sorted(view.groups),
            [log.log_start for log in view.partitions.values()],
        )


COMMANDS = [
    (["topic", "delete", "orders"], ["orders", "billing", "cannot be undone"]),
    (["group", "delete", "billing"], ["orders", "committed", "cannot be undone"]),
    (["group", "reset-offsets", "billing", "--to", "earliest"], ["before", "3", "Set the committed offsets"]),
    (["txn", "abort", "job"], ["ONGOING", "orders-0", "fence its producer"]),
    (["txn", "abort", "--partition", "orders-0", "--producer-id", "1"], ["job", "Abort the open records"]),
    (["txn", "fence", "job", "new"], ["ONGOING", "does not exist", "Fence their producers"]),
    (["topic", "delete-records", "orders", "0", "2"], ["orders-0", "Delete 2 records", "cannot be undone"]),
    (["expire", "--transactional-ids", "1ms", "--offsets", "1ms"], ["billing", "group", "cannot be undone"]),
]


@pytest.mark.parametrize(("arguments", "shown"), COMMANDS)
def test_the_plan_is_shown_and_no_changes_nothing(cli: Cli, arguments: list[str], shown: list[str]) -> None:
    before = _state(cli)
    result = cli(*arguments, stdin="n\n", terminal=True)
    assert (result.status, result.out) == (1, ""), result
    for text in shown:
        assert text in result.err
    assert result.err.endswith("error: not confirmed, so nothing was changed\n")
    assert _state(cli) == before


@pytest.mark.parametrize("arguments", [arguments for arguments, _ in COMMANDS])
def test_yes_on_the_terminal_and_by_option_do_the_same(cli: Cli, arguments: list[str]) -> None:
    before = _state(cli)
    assert cli(*arguments, stdin="y\n", terminal=True).status == 0
    assert _state(cli) != before


@pytest.mark.parametrize("command", ["abort", "fence"])
def test_a_question_about_a_prepared_transaction_says_what_would_be_lost(cli: Cli, command: str) -> None:
    """KIP-939: its external coordinator may have decided to commit it."""
    with txnstore.open(cli.url) as store:
        producer = store.producer(transactional_id="two-phase", two_phase_commit=True)
        producer.begin_transaction()
        producer.send("orders", b"open")
        producer.prepare_transaction()
    listed = {row["transactional_id"]: row for row in cli.ok("txn", "list", "--json").lines}
    assert (listed["two-phase"]["prepared"], listed["two-phase"]["expires_at"]) == (True, None)
    assert (listed["job"]["prepared"], listed["job"]["expires_at"] is None) == (False, False)
    before = _state(cli)
    result = cli("txn", command, "two-phase", stdin="n\n", terminal=True)
    assert "'two-phase' is prepared: its external coordinator decides it" in " ".join(result.err.split())
    assert "prepared" not in cli("txn", command, "job", stdin="n\n", terminal=True).err
    by_partition = ("txn", "abort", "--partition", "orders-0", "--producer-id", str(listed["two-phase"]["producer_id"]))
    result = cli(*by_partition, stdin="n\n", terminal=True)
    assert "'two-phase' is prepared: its external coordinator decides it" in " ".join(result.err.split())
    assert _state(cli) == before


@pytest.mark.parametrize("arguments", [["txn", "fence", "job"], ["expire"], ["retain"], ["vacuum"]])
def test_without_a_terminal_it_is_refused_before_the_store_is_opened(cli: Cli, arguments: list[str]) -> None:
    assert cli(*arguments, url=cli.url + "-missing").status == 2


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["topic", "delete", "ordres"], "there is no topic 'ordres'; the store has orders; did you mean 'orders'?"),
        (["topic", "delete-records", "nosuch", "0", "2"], "there is no topic 'nosuch'"),
        (["topic", "delete-records", "orders", "9", "2"], "topic 'orders' has no partition 9"),
        (["group", "delete", "nosuch"], "nosuch"),
        (["group", "reset-offsets", "g", "--topic", "nosuch", "--to", "earliest"], "there is no topic 'nosuch'"),
        (["txn", "abort", "nosuch"], "nosuch"),
        (["txn", "abort", "--partition", "nosuch-0", "--producer-id", "1"], "there is no topic 'nosuch'"),
    ],
)
def test_what_does_not_exist_is_said_before_a_confirmation_is_asked_for(
    cli: Cli, arguments: list[str], says: str
) -> None:
    for yes in ([], ["--yes"]):
        result = cli(*arguments, *yes)
        assert (result.status, says in result.err, "--yes" in result.err) == (1, True, False), result.err


@pytest.mark.parametrize("arguments", [*(arguments for arguments, _ in COMMANDS), ["vacuum"]])
def test_without_a_terminal_it_is_refused(cli: Cli, arguments: list[str]) -> None:
    before = _state(cli)
    result = cli(*arguments)
    assert (result.status, result.out) == (2, "")
    assert _state(cli) == before
    assert "there is no terminal to ask" in result.err
    assert "--yes" in result.err
    dry_run = arguments[0] in ("vacuum", "expire") or bool({"reset-offsets", "delete-records"} & {*arguments})
    assert ("--dry-run" in result.err) is dry_run
    assert cli(*arguments, "--yes").status == 0


def test_vacuum_asks_only_if_it_has_something_to_delete(cli: Cli) -> None:
    result = cli("vacuum", stdin="", terminal=True)
    assert (result.status, "Delete" in result.err) == (0, False), result
    cli.ok("txn", "abort", "job", "--yes")
    assert cli("compact").status == 0
    before = _state(cli)
    refused = cli("vacuum", "--older-than", "0", stdin="n\n", terminal=True)
    assert refused.status == 1
    prompt = " ".join(refused.err.split())
    assert "Delete 1 object " in prompt
    assert "the grace period is 0 s, less than an hour: readers of pinned or earlier snapshots fail" in prompt
    assert _state(cli) == before
    assert cli("vacuum", "--older-than", "0", stdin="y\n", terminal=True).out.startswith("Deleted 1 object ")


def test_expire_shows_what_it_would_remove(cli: Cli) -> None:
    cli.ok("txn", "abort", "job", "--yes")
    before = _state(cli)
    options = ["--transactional-ids", "1ms", "--offsets", "1ms"]
    (would,) = cli.ok("expire", *options, "--dry-run", "--json").lines
    assert (would["transactional_ids"], would["groups"], would["dry_run"]) == (["job"], ["billing"], True)
    assert _state(cli) == before
    (done,) = cli.ok("expire", *options, "--yes", "--json").lines
    assert done == {**would, "dry_run": False}
    nothing = cli("expire", *options, terminal=True)
    assert (nothing.status, nothing.out) == (0, "Nothing has expired\n")


def test_a_reset_of_an_unknown_group_says_that_it_is_new(cli: Cli) -> None:
    result = cli(
        "group", "reset-offsets", "biling", "--to", "earliest", "--topic", "orders", stdin="n\n", terminal=True
    )
    assert "It has none yet" in result.err


def test_a_transaction_that_has_ended_needs_no_answer(cli: Cli) -> None:
    cli.ok("txn", "abort", "job", "--yes")
    result = cli("txn", "abort", "job", terminal=True)
    assert (result.status, result.out) == (0, "'job' has no open transaction\n")
