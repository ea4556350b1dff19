"""The example that copies a store while it is used."""

from __future__ import annotations

import json
import runpy
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import txnstore
from tests.helpers.aging import age
from tests.helpers.shell import values
from txnstore import Store, TopicPartition

PARTITIONS = 4

SCRIPT = Path(__file__).parents[2] / "examples" / "backup.py"

backup = runpy.run_path(str(SCRIPT))["backup"]


@pytest.fixture
def store(chains: int, tmp_path: Path) -> Iterator[Store]:
    with txnstore.create(tmp_path / "store", chains=chains) as store:
        store.create_topic("t", partitions=PARTITIONS)
        yield store


def everywhere(store: Store, transactional_id: str, value: bytes) -> None:
    """One transaction with a record in each partition, and an offset of a group."""
    with store.producer(transactional_id) as producer, producer.transaction() as txn:
        for partition in range(PARTITIONS):
            txn.send("t", value, partition=partition)
        txn.send_offsets({TopicPartition("t", 0): 1}, "group")
    store.recover()  # The markers of other chains are written now, not in the background.


def test_a_backup_is_the_store_at_a_snapshot(store: Store, tmp_path: Path) -> None:
    """Also of transactions over all chains, and of one that is open: it can be verified, read and written."""
    everywhere(store, "first", b"1")
    producer = store.producer("open")
    producer.begin_transaction()
    producer.send("t", b"open", partition=0).result()
    assert backup(store.url, str(tmp_path / "copy")) > 0
    everywhere(store, "second", b"2")
    with txnstore.open(tmp_path / "copy") as copy:
        report = copy.verify(deep=True)
        assert report.ok, report.violations
        assert values(copy) == [b"1"] * PARTITIONS
        assert [group.group for group in copy.groups()] == ["group"]
        everywhere(copy, "open", b"3")
        assert sorted(values(copy)) == sorted([b"1", b"3"] * PARTITIONS)
    producer.close()


def test_a_backup_has_the_checkpoints_that_its_chains_begin_with(store: Store, tmp_path: Path) -> None:
    """Where old entries are deleted, nothing else has their state."""
    for number in range(6):
        everywhere(store, f"id-{number % 2}", b"%d" % number)
        store.checkpoint()
    for _ in range(2):
        age(tmp_path / "store", days=10)
        deleted = store.vacuum(older_than=0, history=0).deleted
    assert any("/entries/" in key for key in deleted)
    before = sorted(values(store))
    backup(store.url, str(tmp_path / "copy"))
    with txnstore.open(tmp_path / "copy") as copy:
        assert sorted(values(copy)) == before
        assert copy.verify(deep=True).ok
        everywhere(copy, "new", b"new")
    assert backup(store.url, str(tmp_path / "copy")) == 0


def test_a_backup_into_another_store_is_refused(store: Store, tmp_path: Path) -> None:
    """It would be no backup: ``store.json``, of the same size, stays that of the other one."""
    everywhere(store, "first", b"1")
    with txnstore.create(tmp_path / "other") as other:
        other.create_topic("mine")
    before = sorted((tmp_path / "other").rglob("*"))
    with pytest.raises(SystemExit, match=r"nothing was copied: there is another store at .*other"):
        backup(store.url, str(tmp_path / "other"))
    assert sorted((tmp_path / "other").rglob("*")) == before
    backup(store.url, str(tmp_path / "copy"))
    document = tmp_path / "copy" / "store.json"
    document.write_bytes(document.read_bytes()[:40])  # A run that was interrupted.
    assert backup(store.url, str(tmp_path / "copy")) == 1


def test_a_backup_has_shared_segments(store: Store, tmp_path: Path) -> None:
    store.create_topic("shared", partitions=9, config={"inline.bytes": 0})
    with store.producer("id") as producer, producer.transaction() as txn:
        for partition in range(9):
            txn.send("shared", b"%d" % partition, partition=partition)
    store.recover()  # The markers of other chains are written now.
    assert len([*(tmp_path / "store" / "topics" / "shared").rglob("*.parquet")]) < 9
    backup(store.url, str(tmp_path / "copy"))
    with txnstore.open(tmp_path / "copy") as copy:
        assert sorted(values(copy, "shared")) == [b"%d" % partition for partition in range(9)]
        assert copy.verify(deep=True).ok
    assert backup(store.url, str(tmp_path / "copy")) == 0


def test_a_second_run_copies_what_is_new(store: Store, tmp_path: Path) -> None:
    everywhere(store, "first", b"1")
    target = str(tmp_path / "copy")
    first = backup(store.url, target)
    assert backup(store.url, target) == 0
    everywhere(store, "second", b"2")
    assert 0 < backup(store.url, target) < first
    with txnstore.open(target) as copy:
        report = copy.verify(deep=True)
        assert report.ok, report.violations
        assert sorted(values(copy)) == sorted([b"1", b"2"] * PARTITIONS)


@pytest.mark.usefixtures("own_objects")
def test_a_second_run_repairs_what_an_interrupted_one_left(store: Store, tmp_path: Path) -> None:
    everywhere(store, "first", b"1")
    target = tmp_path / "copy"
    backup(store.url, str(target))
    partial = [next(target.glob("topics/**/*.parquet")), next(target.glob("chains/**/*.json")), target / "store.json"]
    for path in partial:
        path.write_bytes(path.read_bytes()[:5])
    assert backup(store.url, str(target)) == len(partial)
    with txnstore.open(target) as copy:
        assert copy.verify(deep=True).ok


@pytest.mark.s3
def test_a_store_goes_to_a_server_and_back(
    store: Store, tmp_path: Path, s3_bucket_url: str, storage_options: dict[str, Any]
) -> None:
    """As a script, which gets the options of each side as JSON."""
    everywhere(store, "first", b"1")
    remote, options = f"{s3_bucket_url}/copy", json.dumps(storage_options)

    def run(*arguments: str) -> str:
        done = subprocess.run(
            [sys.executable, str(SCRIPT), *arguments], capture_output=True, text=True, check=False, timeout=300
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    copied = run(store.url, remote, "--target-options", options)
    assert run(store.url, remote, "--target-options", options) == "0 objects copied\n"
    assert run(remote, str(tmp_path / "back"), "--source-options", options) == copied
    with txnstore.open(tmp_path / "back") as back:
        assert back.verify(deep=True).ok
        assert values(back) == [b"1"] * PARTITIONS
