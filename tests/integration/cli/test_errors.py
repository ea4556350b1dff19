"""Whatever is given to the command line, it says in one line what was wrong and what to do, by the right status."""

from __future__ import annotations

import errno
import json
import os
import re
import signal
import sys
from pathlib import Path

import pytest

import txnstore
from tests.harness.s3.servers import S3Server
from tests.helpers.cli import Cli
from tests.helpers.s3_servers import fresh_bucket
from txnstore.chain import codec
from txnstore.cli.app import run


@pytest.fixture
def cli(local_store_url: str, monkeypatch: pytest.MonkeyPatch) -> Cli:
    """The command line on a store with one topic."""
    with txnstore.create(local_store_url) as store:
        store.create_topic("orders")
    monkeypatch.delenv("TXNSTORE_STORE", raising=False)
    return Cli(local_store_url, monkeypatch)


def _refused(cli: Cli, status: int, *arguments: str, stdin: str = "", url: str | None = None) -> str:
    """The message of a command that must fail: one line, nothing on standard output, no traceback."""
    result = cli(*arguments, stdin=stdin, url=url)
    assert (result.status, result.out) == (status, ""), result
    assert result.err.startswith("error: ")
    assert result.err.count("\n") == 1
    return result.err


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["topic", "describe", "orders"], "No such command 'describe': here it is `txnstore topic show`"),
        (["group", "describe", "g"], "here it is `txnstore group show`"),
        (["txn", "describe", "job"], "here it is `txnstore txn show`"),
        (["txn", "describe-producers", "orders", "0"], "here it is `txnstore txn producers`"),
        (["topic", "shwo", "orders"], "'show'"),
    ],
)
def test_words_of_kafka_get_ours(cli: Cli, arguments: list[str], says: str) -> None:
    assert says in _refused(cli, 2, *arguments)


@pytest.mark.parametrize(
    ("arguments", "command"),
    [
        (["--store"], "txnstore"),
        (["table", "sync", "--rebuild"], "txnstore table sync"),
        (["consume", "orders", "--max"], "txnstore consume"),
        (["log", "show", "--max"], "txnstore log show"),
        (["verify", "--deep=yes"], "txnstore verify"),
    ],
)
def test_an_error_of_an_option_names_the_help_of_its_command(cli: Cli, arguments: list[str], command: str) -> None:
    """Also those that click's parser raises without a context."""
    assert _refused(cli, 2, *arguments).endswith(f"See `{command} --help`.\n")


def test_missing_partition_is_no_missing_topic(cli: Cli) -> None:
    error = _refused(cli, 1, "consume", "orders", "--partition", "9")
    assert "topic 'orders' has no partition 9: its partitions are 0 to 0. Check the name of the topic and" in error
    assert "reate the topic" not in error


@pytest.mark.parametrize(("options", "sent"), [([], 4_000), (["--transactional-id", "loader"], 0)])
def test_error_of_the_input_says_how_many_records_were_sent(cli: Cli, options: list[str], sent: int) -> None:
    """Pieces with the lines before it may have been sent: the error says after which record to continue."""
    lines = [json.dumps({"value": "x" * 1_000}) for _ in range(4_000)]
    error = _refused(cli, 1, "produce", "orders", "--format", "json", *options, stdin="\n".join([*lines, "bad"]))
    assert "standard input, line 4001: not valid JSON" in error
    match = re.search(r"; ([0-9,]+) records? sent to 'orders' before it\. Correct the input", error)
    with txnstore.open(cli.url) as store:
        stored = store.scan("orders").to_table().num_rows
    assert stored <= sent
    assert (match is None) == bool(options)
    assert match is None or int(match[1].replace(",", "")) == stored


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nothing"], "No such command"),
        (["topic", "create"], "Missing argument 'NAME'"),
        (["topic", "list", "--nothing"], "No such option"),
        (["topic", "create", "a", "--partitions", "0"], "--partitions"),
        (["topic", "create", "a", "--partitions", "two"], "'two' is not a valid integer."),
        (["topic", "create", "a", "--column", "id"], "NAME:TYPE"),
        (["topic", "create", "a", "--column", "id:integer"], "no column type 'integer'"),
        (["topic", "create", "a", "--config", "retention.ms"], "KEY=VALUE"),
        (["topic", "create", "a", "--key", "id"], "give the columns with --column"),
        (["topic", "create", "a", "--timestamp", "at"], "give the columns with --column"),
        (["topic", "alter", "orders"], "nothing to change"),
        (["topic", "alter", "orders", "--add-column", "a:int64"], "created without columns"),
        (["topic", "delete", "orders"], "--yes"),
        (["produce", "orders", "--file", "missing.csv"], "missing.csv"),
        (["produce", "orders", "--format", "xml"], "xml"),
        (["produce", "orders", "--key-separator", ""], "must not be empty"),
        (["produce", "orders", "--key-separator", ":", "--format", "json"], "--key-separator is for lines of text"),
        (["produce", "orders", "--key-field", "a", "--format", "text"], "--key-field"),
        (["consume", "orders", "--from", "yesterday"], "earliest, latest, an offset, a time such as"),
        (["consume", "orders", "--from", "-1x"], "-1h for an hour ago"),
        (["consume", "orders", "--from", "5", "--group", "g"], "--group"),
        (["consume", "orders", "--isolation", "serializable"], "serializable"),
        (["consume", "orders", "--max", "0"], "--max"),
        (["sql"], "contains no query"),
        (["sql", " "], "query is empty"),
        (["sql", "SELECT 1", "--emit-views"], "--emit-views takes no query"),
        (["vacuum", "--older-than", "tomorrow"], "not a duration"),
        (["expire", "--offsets", "90"], "not a duration"),
        (["log", "entry", "first"], "first"),
        (["info", "--storage-option", "secret-value"], "KEY=VALUE"),
        (
            ["info", "--storage-option", 'x={"a":"secret-value'],
            "x: not valid JSON (Unterminated string starting at: line 1",
        ),
        (["info", "--storage-option", 'x={"a":"secret-value","a":2}'], "x: not valid JSON (the name 'a' occurs twice"),
        (["info", "--storage-option", 'x={"a":9e999}'], "x: not valid JSON (a number is out of the range of a double)"),
        (["info", "--storage-option", 'x={"a":NaN}'], "x: not valid JSON (NaN is no JSON number)"),
        (
            ["info", "--storage-option", 'x=["secret-value",-Infinity]'],
            "x: not valid JSON (-Infinity is no JSON number)",
        ),
        (["demo", "--store", "memory://demo"], "several"),
        (["demo", "--limit", "5"], "--limit"),
    ],
)
def test_wrong_usage_is_status_2(cli: Cli, arguments: list[str], message: str) -> None:
    error = _refused(cli, 2, *arguments)
    assert message in error
    assert "--help" in error
    assert "secret-value" not in error


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["init"], "--exist-ok"),
        (["topic", "create", "orders"], "'orders' exists already"),
        (["topic", "create", "orders"], "--exist-ok"),
        (["topic", "create", "a", "--partitions", "1000000000"], "from 1 to 100000"),
        (["topic", "alter", "orders", "--unset", "retention.m"], "did you mean retention.ms"),
        (["init", ""], "must not be empty"),
        (["info", "--store", ""], "must not be empty"),
        (["topic", "create", "a/b"], "'/'"),
        (["topic", "create", "a", "--config", "retention.hours=1"], "retention"),
        (["topic", "show", "nothing"], "no topic 'nothing'"),
        (["topic", "show", "order"], "did you mean 'orders'?"),
        (["consume", "oders"], "did you mean 'orders'?"),
        (["txn", "producers", "ordes", "0"], "did you mean 'orders'?"),
        (["txn", "find-hanging", "--topic", "ordes"], "did you mean 'orders'?"),
        (["info", "--store", "s3:/bucket/events"], "s3://bucket/prefix"),
        (["init", "s3:bucket/events"], "./ before the name of a folder"),
        (["topic", "alter", "orders", "--partitions", "1", "--config", "nothing=1"], "nothing"),
        (["topic", "delete", "nothing", "--yes"], "nothing"),
        (["produce", "nothing"], "no topic 'nothing'"),
        (["produce", "orders", "--format", "json"], "line 1"),
        (["produce", "orders", "--partition", "7"], "partition 7"),
        (["produce", "orders", "--transactional-id", ""], "must not be empty"),
        (["consume", "nothing"], "no topic 'nothing'"),
        (["consume", "orders", "--partition", "7"], "no partition 7"),
        (["consume", "orders", "--group", ""], "must not be empty"),
        (["txn", "list", "--state", "NOTHING"], "NOTHING"),
        (["txn", "show", "nothing"], "txn list"),
        (["group", "show", "nothing"], "group list"),
        (["sql", "SELEC 1"], "Parser Error"),
        (["sql", "SELECT * FROM nothing"], "SHOW ALL TABLES"),
        (["sql", "SELECT CAST(_topic AS int) FROM (SELECT 'x' AS _topic)"], "Conversion Error"),
        (["compact", "nothing"], "no topic 'nothing'"),
        (["log", "entry", "99"], "no entry 99"),
    ],
)
def test_failure_is_status_1(cli: Cli, arguments: list[str], message: str) -> None:
    assert message in _refused(cli, 1, *arguments, stdin="x")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"value": "x", "partition": 9}', "no partition 9"),
        ('{"value": "x", "partition": -1}', "at least 0, not -1"),
        (json.dumps({"value": "x" * 2_000_000}), "over max.message.bytes"),
        ("\0{\0", "not valid JSON (Expecting value"),
    ],
)
def test_a_record_that_cannot_be_sent_is_found_by_its_line(cli: Cli, line: str, message: str) -> None:
    error = _refused(cli, 1, "produce", "orders", "--format", "json", stdin=line + "\n")
    assert error.startswith("error: standard input, line 1")
    assert message in error
    assert "Create the topic" not in error


def test_a_query_that_is_not_utf_8_is_wrong_usage(cli: Cli) -> None:
    assert "the query is not UTF-8" in _refused(cli, 2, "sql", "select '\udce9'")
    result = cli("sql", stdin=b"select '\xe9'")
    assert (result.status, result.out) == (2, "")
    assert "the query is not UTF-8" in result.err
    assert cli.ok("sql", "--json", stdin="\ufeffselect 'é' as x").lines == [{"x": "é"}]


def test_no_store_is_named(cli: Cli, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["info"]) == 2
    assert "TXNSTORE_STORE" in capsys.readouterr().err


def test_there_is_no_store(cli: Cli, tmp_path: Path) -> None:
    empty, missing, file = tmp_path / "empty", tmp_path / "missing", tmp_path / "file"
    empty.mkdir()
    file.write_text("x")
    for path in (empty, missing):
        assert "txnstore init" in _refused(cli, 1, "info", url=str(path))
    assert str(file) in _refused(cli, 1, "info", url=str(file))
    assert not missing.exists(), "looking makes nothing"
    assert "https://" in _refused(cli, 1, "info", url="https://example.com/store")


def test_store_cannot_be_created_there(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One thing to do, and it fits: the storage says what, and no advice about servers is added."""
    file = tmp_path / "file"
    file.write_text("x")
    for url in (file, file / "store"):
        expected = f"error: Cannot write to {file}: it is a file, not a folder. Choose another folder.\n"
        assert _refused(cli, 1, "init", str(url)) == expected

    def mkdir(path: str, *_: object) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)

    monkeypatch.setattr(os, "mkdir", mkdir)
    assert _refused(cli, 1, "init", str(tmp_path / "new")) == (
        f"error: Cannot make the folder {tmp_path}/new: permission denied. "
        "Give this user the right to read and write there, or choose another folder.\n"
    )


def test_init_of_a_memory_store_prints_a_note(cli: Cli) -> None:
    made = cli("init", "memory://cli-short-lived")
    assert (made.status, "ends with this command" in made.err) == (0, True)
    assert cli.ok("init", "memory://cli-short-lived", "--exist-ok", "--json").lines[0]["chains"] == 1


@pytest.mark.parametrize("name", ["p.csv", "p.parquet"])
def test_pipe_is_refused_for_formats_read_twice(cli: Cli, tmp_path: Path, name: str) -> None:
    os.mkfifo(tmp_path / name)
    assert f"--file {name}: only .jsonl" in _refused(cli, 2, "produce", "orders", "--file", str(tmp_path / name))


@pytest.mark.parametrize("stdin", ["", "x\n"])
def test_missing_partition_is_refused_before_reading_input(cli: Cli, stdin: str) -> None:
    """And before an older producer of the transactional id is fenced."""
    error = _refused(cli, 1, "produce", "orders", "--partition", "9", "--transactional-id", "job", stdin=stdin)
    assert error == "error: topic 'orders' has no partition 9. Give --partition 0 to 0, or leave it out.\n"
    assert cli.ok("txn", "list", "--json").lines == []


def test_a_store_of_a_newer_version_is_refused(cli: Cli) -> None:
    path = Path(cli.url.removeprefix("file://")) / "store.json"
    body = path.read_bytes()[: -codec._SUFFIX] + b"}"
    path.write_bytes(codec._with_checksum(re.sub(rb'"version":\d+', b'"version":99', body)))
    assert "Use a release of txnstore that supports it." in _refused(cli, 1, "info")


def test_a_damaged_entry_is_named(cli: Cli) -> None:
    folder = Path(cli.url.removeprefix("file://"))
    (entry,) = folder.glob("chains/*/0000/entries/*")
    entry.write_bytes(entry.read_bytes()[:-9])
    # What the message advises works on a store that no other command opens.
    assert "txnstore verify" in _refused(cli, 1, "topic", "list")
    result = cli("verify", "--json")
    assert (result.status, result.err) == (1, "")
    assert ("entry_intact", str(entry.relative_to(folder))) in [
        (item["name"], item["subject"]) for item in result.lines[0]["violations"]
    ]


def test_verify_reports_any_damage(cli: Cli, tmp_path: Path) -> None:
    assert "txnstore init" in _refused(cli, 1, "verify", url=str(tmp_path / "missing"))
    identity = Path(cli.url.removeprefix("file://")) / "store.json"
    identity.write_bytes(identity.read_bytes()[:-9])
    result = cli("verify")
    assert (result.status, result.err) == (1, "")
    assert "identity_intact" in result.out


@pytest.mark.parametrize("stdin", ["closed", "none"])
def test_standard_input_may_be_closed(cli: Cli, monkeypatch: pytest.MonkeyPatch, stdin: str, tmp_path: Path) -> None:
    """As a service manager or ``<&-`` leaves it."""
    file = (tmp_path / "empty").open("w+")
    file.close()
    monkeypatch.setattr(sys, "stdin", file if stdin == "closed" else None)
    monkeypatch.setattr(cli, "_monkeypatch", _Nothing())
    assert "standard input is closed" in _refused(cli, 1, "produce", "orders")
    assert "give a query" in _refused(cli, 2, "sql")
    assert "--yes" in _refused(cli, 2, "topic", "delete", "orders")


class _Nothing:
    """A monkeypatch that leaves standard input as the test has made it."""

    def setattr(self, *_: object) -> None:
        """Do nothing."""


def test_unreachable_endpoint_is_reported(cli: Cli) -> None:
    options = ["--storage-option", "key=k", "--storage-option", "secret=hunter2"]
    error = _refused(
        cli, 1, "info", *options, "--storage-option", "endpoint_url=http://127.0.0.1:9", url="s3://bucket/store"
    )
    assert "127.0.0.1:9" in error or "s3://bucket/store" in error
    assert "hunter2" not in error


@pytest.mark.s3
def test_storage_options_reach_a_real_server(cli: Cli, s3_server: S3Server) -> None:
    """A store is made, filled and read; a bucket that is not there is named; the secret never is."""
    given = s3_server.storage_options
    texts = {name: text if isinstance(text, str) else json.dumps(text) for name, text in given.items()}
    options = [option for name, text in texts.items() for option in ("--storage-option", f"{name}={text}")]
    url = fresh_bucket(s3_server) + "/events"
    assert cli("init", *options, url=url).status == 0
    assert cli("topic", "create", "t", *options, url=url).status == 0
    assert cli("produce", "t", *options, stdin="a\n", url=url).status == 0
    assert cli("consume", "t", *options, url=url).out == "a\n"
    error = _refused(cli, 1, "info", *options, url="s3://no-such-bucket/events")
    assert "no-such-bucket" in error
    assert given["secret"] not in error


def test_a_group_without_a_command_shows_its_help(cli: Cli) -> None:
    result = cli("topic")
    assert (result.status, result.out) == (2, "")
    assert "Usage: txnstore topic" in result.err


def test_debug_shows_the_traceback(cli: Cli) -> None:
    with pytest.raises(txnstore.StoreNotFoundError):
        cli("--debug", "info", url=cli.url + "-missing")


def test_an_interrupt_ends_a_long_query(cli: Cli) -> None:
    """It arrives while DuckDB computes: the timer counts the processor's time."""
    before = signal.signal(signal.SIGVTALRM, signal.default_int_handler)
    signal.setitimer(signal.ITIMER_VIRTUAL, 1.0)
    try:
        result = cli("sql", "SELECT count(*) FROM range(100000000) a, range(1000000) b WHERE a.range % 7 = b.range % 5")
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)
    assert (result.status, result.err.split()) == (130, ["interrupted"])
