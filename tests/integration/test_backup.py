"""The example that copies a store while it is used."""

from __future__ import annotations

import runpy
from collections.abc import Iterator
from pathlib import Path

import pytest

import txnstore
from tests.helpers.shell import values
from txnstore import Store, TopicPartition

PARTITIONS = 4

backup = runpy.run_path(str(Path(__file__).parents[2] / "examples" / "backup.py"))["backup"]


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
