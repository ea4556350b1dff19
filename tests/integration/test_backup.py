"""``txnstore backup`` and ``restore`` as commands: folders, S3 and back, and a mirror that is stopped."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import txnstore
from tests.helpers.shell import values
from txnstore import Store

PARTITIONS = 4


@pytest.fixture
def store(chains: int, tmp_path: Path) -> Store:
    store = txnstore.create(tmp_path / "store", chains=chains)
    store.create_topic("t", partitions=PARTITIONS)
    store.create_topic("own", partitions=PARTITIONS, config={"inline.bytes": 0})
    return store


def everywhere(store: Store, value: bytes) -> None:
    with store.producer("id") as producer, producer.transaction() as txn:
        for partition in range(PARTITIONS):
            txn.send("t", value, partition=partition)
            txn.send("own", value, partition=partition)
    store.recover()  # The markers of other chains are written now.


def run(*arguments: str | Path) -> Any:
    """The JSON that a command prints."""
    command = [sys.executable, "-m", "txnstore.cli", *map(str, arguments), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def options_as(name: str, options: dict[str, Any]) -> list[str]:
    """Storage options, as a command takes them."""
    texts = {key: value if isinstance(value, str) else json.dumps(value) for key, value in options.items()}
    return [part for key, text in texts.items() for part in (name, f"{key}={text}")]


@pytest.mark.s3
def test_a_store_goes_to_a_server_and_back(
    store: Store, tmp_path: Path, s3_bucket_url: str, storage_options: dict[str, Any]
) -> None:
    """Folder to S3, S3 to S3, S3 to folder."""
    everywhere(store, b"1")
    backup, second = f"{s3_bucket_url}/backup", f"{s3_bucket_url}/second"
    there = options_as("--target-option", storage_options)
    first = run("--store", store.url, "backup", backup, *there, "--verify")
    assert (first["copied"], first["verified"]) == (first["objects"], True)
    everywhere(store, b"2")
    assert 0 < run("--store", store.url, "backup", backup, *there)["copied"] < first["copied"]
    here = options_as("--storage-option", storage_options)
    copied = run("--store", backup, *here, "backup", second, *there)["copied"]
    restored = run("--store", tmp_path / "new", "restore", second, *options_as("--backup-option", storage_options))
    assert (restored["copied"], restored["tables"]) == (copied, "")
    on_s3 = run("--store", f"{s3_bucket_url}/new", *here, "restore", backup, "--new-identity",
                *options_as("--backup-option", storage_options))  # fmt: skip
    assert on_s3["store_id"] != store.store_id == restored["store_id"]
    assert run("--store", f"{s3_bucket_url}/new", *here, "verify", "--deep")["ok"]
    with txnstore.open(tmp_path / "new") as new:
        assert sorted(values(new)) == sorted([b"1", b"2"] * PARTITIONS)
        everywhere(new, b"3")
        assert new.verify(deep=True).ok


def test_a_mirror_ends_at_sigterm_and_becomes_the_store(store: Store, tmp_path: Path) -> None:
    everywhere(store, b"1")
    command = [
        sys.executable,
        "-m",
        "txnstore.cli",
        "--store",
        store.url,
        "backup",
        str(tmp_path / "mirror"),
        "--watch",
    ]
    with subprocess.Popen([*command, "--interval", "50ms", "--json"], stdout=subprocess.PIPE, text=True) as mirror:
        assert mirror.stdout is not None
        cut = json.loads(mirror.stdout.readline())["report"]["cut"]
        everywhere(store, b"2")
        heads = list(store.snapshot().heads)
        for line in mirror.stdout:
            round_ = json.loads(line)
            assert round_["error"] is None
            assert round_["behind"] is not None
            if round_["report"]["heads"] == heads:
                break
        mirror.send_signal(signal.SIGTERM)
        mirror.stdout.read()
        assert mirror.wait() == 0
    assert round_["report"]["cut"] > cut
    run("--store", tmp_path / "mirror", "restore", "--yes")
    with txnstore.open(tmp_path / "mirror") as promoted:
        assert sorted(values(promoted)) == sorted([b"1", b"2"] * PARTITIONS)


def test_wrong_calls_end_with_a_sentence(store: Store, tmp_path: Path) -> None:
    everywhere(store, b"1")

    def fail(*arguments: str | Path) -> str:
        command = [sys.executable, "-m", "txnstore.cli", *map(str, arguments)]
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=300, stdin=subprocess.DEVNULL
        )
        assert done.returncode in (1, 2)
        return done.stderr

    assert "are one place, or one is inside" in fail("--store", store.url, "backup", tmp_path / "store")
    assert "--interval needs --watch" in fail("--store", store.url, "backup", tmp_path / "copy", "--interval", "1s")
    assert "--backup-option needs BACKUP" in fail("--store", tmp_path / "copy", "restore", "--backup-option", "a=b")
    assert "no terminal to ask" in fail("--store", tmp_path / "copy", "restore")
    assert "there is no backup" in fail("--store", tmp_path / "copy", "restore", "--yes")
