"""The command line where ``store.json`` is lost, or is that of another store: what it says, and its status."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import txnstore
from tests.helpers.cli import Cli


@pytest.fixture
def cli(local_store_url: str, monkeypatch: pytest.MonkeyPatch) -> Cli:
    with txnstore.create(local_store_url) as store:
        store.create_topic("orders", config={"inline.bytes": 0})
        with store.producer() as producer:
            for number in range(10):
                producer.send("orders", b"%d" % number)
        store.checkpoint()
    return Cli(local_store_url, monkeypatch)


@pytest.fixture
def root(cli: Cli) -> Path:
    return Path(cli.url.removeprefix("file://"))


@pytest.fixture
def other(tmp_path: Path) -> Path:
    """Another store, without a topic."""
    txnstore.create(tmp_path / "other").close()
    return tmp_path / "other"


def _objects(root: Path) -> set[str]:
    return {str(path.relative_to(root)) for path in root.rglob("*") if path.is_file() and "_probe" not in path.parts}


def _id(root: Path) -> str:
    (store_id,) = {path.name for path in (root / "chains").iterdir()} - {"latest"}
    return store_id


def test_init_over_a_store_that_lost_its_document_is_refused(cli: Cli, root: Path) -> None:
    """Each command names `recover` first; after it all records are there."""
    (root / "store.json").unlink()
    before = _objects(root)
    for arguments in (["init"], ["init", "--exist-ok"], ["topic", "list"], ["vacuum", "--yes"]):
        result = cli(*arguments)
        text = " ".join(result.err.split())
        assert (result.status, result.out) == (1, "")
        assert _id(root) in text
        assert "txnstore recover" in text.partition("txnstore init")[0].partition("delete chains/")[0]
    doctor = cli("doctor")
    assert (doctor.status, "lost its store.json" in " ".join(doctor.out.split())) == (1, True)
    verify = cli("verify")
    assert (verify.status, "identity_intact" in verify.out) == (1, True)
    assert _objects(root) == before
    assert cli("recover", "--yes").status == 0
    assert cli.ok("sql", "select count(*) from orders", "--json").lines == [{"count_star()": 10}]


def test_document_of_another_store_is_refused_and_chosen(cli: Cli, root: Path, other: Path) -> None:
    mine = _id(root)
    shutil.copy(other / "store.json", root / "store.json")
    before = _objects(root)
    for arguments in (["topic", "list"], ["vacuum", "--older-than", "0", "--yes"], ["init", "--exist-ok"]):
        result = cli(*arguments)
        assert (result.status, f"recover --identity {mine}" in " ".join(result.err.split())) == (1, True), result
    assert (cli("doctor").status, cli("verify").status) == (1, 1)
    planned = cli("recover", "--dry-run")
    assert planned.status == 1
    assert f"{mine} 1 " in " ".join(planned.err.split())
    (report,) = cli("recover", "--dry-run", "--json").lines
    assert [(item["store_id"], item["topics"]) for item in report["stores"]] == [(mine, {"orders": 10})]
    assert _objects(root) == before
    assert cli("recover", "--identity", "no-such", "--dry-run").status == 1
    assert cli("recover", "--identity", mine, "--yes").status == 0
    assert _objects(root) == before
    assert cli.ok("sql", "select count(*) from orders", "--json").lines == [{"count_star()": 10}]


def test_chains_of_another_store_go_on_request_only(cli: Cli, root: Path, tmp_path: Path) -> None:
    with txnstore.create(tmp_path / "full") as full:
        full.create_topic("theirs")
        theirs = full.store_id
    shutil.copytree(tmp_path / "full" / "chains" / theirs, root / "chains" / theirs)
    before = _objects(root)
    refused = cli("vacuum", "--older-than", "0", "--force", "--yes")
    assert (refused.status, f"vacuum --foreign {theirs}" in " ".join(refused.err.split())) == (1, True)
    assert cli("doctor").status == 1
    for arguments in (["verify"], ["recover"], ["recover", "--dry-run"]):
        result = cli(*arguments)
        text = " ".join(result.err.split())
        assert (result.status, f"chains/{theirs}/ belongs to another store" in text) == (1, True), arguments
        assert text.index(f"`txnstore recover --identity {theirs}`") < text.index(
            f"`txnstore vacuum --foreign {theirs}`"
        )
    for command in ("verify", "recover"):
        assert theirs in str(cli(command, "--json").lines[0]["foreign"])
    kept = cli("vacuum", "--foreign", theirs, stdin="n\n", terminal=True)
    assert (kept.status, f"of {theirs}?" in " ".join(kept.err.split())) == (1, True)
    assert cli("vacuum", "--foreign", theirs).status == 2, "there is no terminal to ask"
    assert cli.ok("vacuum", "--foreign", theirs, "--dry-run").out.startswith("Would delete 1 object ")
    assert _objects(root) == before
    assert cli.ok("vacuum", "--foreign", theirs, "--yes").out.startswith("Deleted 1 object ")
    assert cli.ok("vacuum", "--yes").status == 0
    assert (cli.ok("recover").err, cli.ok("verify").err) == ("", "")
    assert cli("vacuum", "--foreign", theirs, "--yes").status == 1


def test_choice_of_a_store_names_the_chains_of_the_other_one(cli: Cli, root: Path, tmp_path: Path) -> None:
    """It is made, and the status says that there is something left to decide."""
    with txnstore.create(tmp_path / "full") as full:
        full.create_topic("theirs")
        full.checkpoint()
        theirs, mine = full.store_id, _id(root)
    shutil.copytree(tmp_path / "full" / "chains" / theirs, root / "chains" / theirs)
    result = cli("recover", "--identity", theirs, "--yes")
    assert (result.status, result.out.startswith("2 objects rebuilt")) == (1, True)
    assert f"chains/{mine}/ belongs to another store" in " ".join(result.err.split())
    assert [row["topic"] for row in cli.ok("topic", "list", "--json").lines] == ["theirs"]


def test_short_grace_period_is_warned_about_without_a_question(cli: Cli) -> None:
    """Snapshots that are pinned lose their segments: their error says so, and is no damage."""
    result = cli("vacuum", "--older-than", "0", "--yes")
    assert result.status == 0
    assert result.err.startswith("warning: the grace period is 0 s, less than an hour: readers of pinned")
    assert cli.ok("vacuum", "--yes").err == ""
