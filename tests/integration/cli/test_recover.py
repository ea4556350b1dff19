"""``txnstore recover`` on damaged stores: the plan first, nothing without an answer, the status."""

from __future__ import annotations

from pathlib import Path

import pytest

import txnstore
from tests.helpers.cli import Cli


@pytest.fixture
def cli(local_store_url: str, monkeypatch: pytest.MonkeyPatch) -> Cli:
    """The command line on a store with a checkpoint, and entries after it."""
    with txnstore.create(local_store_url) as store:
        store.create_topic("orders")
        store.checkpoint()
        for name in ("a", "b", "c"):
            store.create_topic(name)
    return Cli(local_store_url, monkeypatch)


@pytest.fixture
def hint(cli: Cli) -> Path:
    return Path(cli.url.removeprefix("file://")) / "chains" / "latest" / "0000.json"


def _entry(cli: Cli, number: int) -> Path:
    (path,) = Path(cli.url.removeprefix("file://")).glob(f"chains/*/0000/entries/*{number}.json")
    return path


def test_sound_store_is_not_asked_about(cli: Cli) -> None:
    (report,) = cli.ok("recover", "--json").lines
    assert (report["repaired"], report["lost"]) == ([], [])
    assert cli.ok("recover", "--dry-run").out == "0 objects would be rebuilt, 0 cannot be\n"


def test_nothing_is_repaired_without_an_answer(cli: Cli, hint: Path) -> None:
    sound = hint.read_bytes()
    hint.unlink()
    refused = cli("recover")
    assert (refused.status, refused.out) == (1, "")
    assert "--dry-run" in refused.err
    answered = cli("recover", stdin="n\n", terminal=True)
    assert (answered.status, answered.out) == (1, "")
    assert answered.err.endswith("error: not confirmed, so nothing was changed\n")
    planned = cli("recover", "--dry-run", "--json")
    assert planned.status == 1
    assert planned.lines[0]["repaired"][0]["key"] == "chains/latest/0000.json"
    assert not hint.exists()
    repaired = cli("recover", "--yes")
    assert repaired.status == 0
    assert repaired.out.startswith("1 object rebuilt, 0 decided transactions completed")
    assert "it is missing" in repaired.err
    assert hint.read_bytes() == sound
    assert cli("recover").err == ""


def test_answer_yes_repairs(cli: Cli, hint: Path) -> None:
    sound = hint.read_bytes()
    hint.write_bytes(b"garbage")
    assert cli("recover", stdin="y\n", terminal=True).status == 0
    assert hint.read_bytes() == sound


def test_one_object_was_rebuilt_beside_a_loss(cli: Cli, hint: Path) -> None:
    (hint.parent.parent.parent / "store.json").unlink()
    _entry(cli, 3).unlink()
    result = cli("recover", "--yes", "--chains", "1")
    assert (result.status, result.out) == (1, "1 object was rebuilt, 1 cannot be\n")


def test_lost_entry_is_status_1_and_said(cli: Cli) -> None:
    _entry(cli, 3).unlink()
    result = cli("recover", "--yes")
    assert (result.status, result.out) == (1, "0 objects were rebuilt, 1 cannot be\n")
    assert "entry 3 of chain 0 cannot be found" in " ".join(result.err.split())
    (report,) = cli("recover", "--json").lines
    assert report["lost"][0]["blocks"] is True
    assert report["lost"][0]["key"].endswith("00003.json")


def test_lost_records_are_status_1_and_said(cli: Cli) -> None:
    """The store opens nevertheless, and its transactions are looked after."""
    with txnstore.open(cli.url) as store:
        with store.producer("writer") as producer, producer.transaction():
            producer.send("orders", b"lost", partition=0)
        last = store.checkpoint()
        store.create_topic("d")
    _entry(cli, last).unlink()
    planned = cli("recover", "--dry-run")
    assert (planned.status, planned.out) == (1, "0 objects would be rebuilt, 1 cannot be\n")
    assert "orders-0 offsets 0 to 0" in " ".join(planned.err.split())
    result = cli("recover")
    assert result.status == 1
    assert result.out.startswith("1 object cannot be rebuilt, 0 decided transactions completed")
    (report,) = cli("recover", "--json").lines
    assert [(item["damage"], item["blocks"]) for item in report["lost"]] == [("it is missing", False)]


def test_store_document_is_rebuilt(cli: Cli) -> None:
    document = Path(cli.url.removeprefix("file://")) / "store.json"
    sound = document.read_bytes()
    document.unlink()
    assert "txnstore recover" in cli("topic", "list").err
    assert cli("recover", "--yes").status == 0
    assert len(document.read_bytes()) == len(sound)
    assert len(cli.ok("topic", "list", "--json").lines) == 4


def test_missing_store_is_an_error(cli: Cli, tmp_path: Path) -> None:
    missing = cli("recover", "--yes", url=(tmp_path / "nothing").as_uri())
    assert (missing.status, missing.out) == (1, "")
    assert "there is no txnstore" in missing.err
