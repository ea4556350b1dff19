"""A store that was made of a backup: its identity, its tables, its clients."""

from __future__ import annotations

from pathlib import Path

import pytest

import txnstore
from tests.helpers.aging import age
from tests.helpers.backups import PARTITIONS, back_up, everywhere, restore_from, shown
from tests.helpers.compaction import reopen, runtime
from tests.helpers.connections import connection_of
from tests.helpers.shop import ADMIN, ALICE, allow
from tests.helpers.table_stores import runtime as table_runtime
from tests.helpers.table_stores import send, store_with_tables
from txnstore import errors
from txnstore.compactor import restore
from txnstore.core.authorization.model import ANONYMOUS
from txnstore.storage.memory import MemoryStore
from txnstore.store import Store, create_on, open_on
from txnstore.testing import ManualClock


@pytest.fixture
def store(chains: int, objects: MemoryStore, clock: ManualClock) -> Store:
    store = create_on(objects, chains, runtime=runtime(clock))
    store.create_topic("t", partitions=PARTITIONS)
    store.create_topic("own", partitions=PARTITIONS, config={"inline.bytes": 0})
    everywhere(store, b"1")
    return store


def test_a_copy_with_an_identity_of_its_own_is_used_beside_the_original(
    store: Store, objects: MemoryStore, clock: ManualClock
) -> None:
    """Its keys have the id of the original, which entries and index files name; whoever compares ids sees another."""
    backup, place = MemoryStore(clock=clock), MemoryStore(clock=clock)
    back_up(objects, backup, clock)
    report = restore_from(backup, place, clock, new_identity=True)
    copy = open_on(place, runtime=runtime(clock))
    assert copy.store_id == report.store_id == reopen(copy, clock).store_id
    assert copy.snapshot().store_id == copy.store_id
    assert connection_of(copy).keys.store_id == store.store_id
    with pytest.raises(errors.InvalidConfigError, match="the snapshot is one of the store with the id"):
        copy.scan("t", snapshot=store.snapshot())
    everywhere(copy, b"mine")
    everywhere(store, b"theirs")
    assert copy.verify(deep=True).ok
    with pytest.raises(errors.BackupError, match="has a backup of the store"):
        back_up(place, backup, clock)
    again = MemoryStore(clock=clock)
    back_up(place, again, clock)
    assert open_on(again, read_only=True, runtime=runtime(clock)).store_id == copy.store_id


def test_a_store_in_the_place_of_the_original_continues_it(
    store: Store, objects: MemoryStore, clock: ManualClock
) -> None:
    """Same id, offsets, groups and epochs; the next open begins at a hint."""
    backup, place = MemoryStore(clock=clock), MemoryStore(clock=clock)
    store.checkpoint()
    back_up(objects, backup, clock)
    restore_from(backup, place, clock)
    restored = open_on(place, runtime=runtime(clock))
    assert restored.store_id == store.store_id
    assert shown(restored) == shown(store)
    assert place.list("chains/latest/")
    assert not place.list("backups/")
    everywhere(restored, b"2")
    assert restored.verify(deep=True).ok
    assert all(finding.severity.value in ("ok", "note") for finding in restored.doctor().findings)


def test_the_rules_come_along_and_are_those_of_a_restore(
    store: Store, objects: MemoryStore, clock: ManualClock
) -> None:
    """Who may not read a topic restores nothing from a backup; the records of a restored store are as protected."""
    backup, place = MemoryStore(clock=clock), MemoryStore(clock=clock)
    store.acls.enable(super_users=[ADMIN, ANONYMOUS])
    store.acls.create(allow(ALICE, "READ", "TOPIC", "t"))
    back_up(objects, backup, clock)
    with (
        open_on(backup, read_only=True, principal=ALICE, runtime=runtime(clock)) as alice,
        pytest.raises(errors.TopicAuthorizationError, match="own"),
    ):
        restore(connection_of(alice), place)
    assert not place.list("topics/")
    assert not place.list("store.json")
    restore_from(backup, place, clock)
    with open_on(place, principal=ALICE, runtime=runtime(clock)) as alice:
        assert alice.scan("t").to_table().num_rows == PARTITIONS
        with pytest.raises(errors.TopicAuthorizationError):
            alice.scan("own")
    with open_on(place, principal=ADMIN, runtime=runtime(clock)) as admin:
        assert admin.acls.list() == store.acls.list()
        assert shown(admin)["hashes"] == shown(store)["hashes"]


def test_tables_of_a_restored_store_are_published_anew(tmp_path: Path, clock: ManualClock) -> None:
    with store_with_tables(tmp_path / "store", clock, {"t": 1}) as store:
        with store.producer("id") as producer, producer.transaction():
            send(producer, "t", [(1, 10), (2, -10)])
        store.tables.sync()
        store.backup(tmp_path / "backup")
        with store.producer("id") as producer, producer.transaction():
            send(producer, "t", [(3, 10)])
        store.tables.sync()
    assert not (tmp_path / "backup" / "tables").exists()
    report = txnstore.restore(
        tmp_path / "new", tmp_path / "backup", new_identity=True, runtime=table_runtime(clock, seed=1)
    )
    assert report.tables == ""
    with txnstore.open(tmp_path / "new", runtime=table_runtime(clock, seed=2)) as restored:
        check = restored.tables.check(deep=True)
        assert (check.problems, check.rows, check.tables) == ((), 2, 1)


def test_leftovers_of_killed_writers_are_in_no_copy_and_in_no_list(tmp_path: Path) -> None:
    """Temporary files of a folder are no objects for any of list, backup and vacuum, which deletes old ones."""
    with txnstore.create(tmp_path / "store") as store:
        store.create_topic("t", config={"inline.bytes": 0})
        with store.producer("id") as producer, producer.transaction() as txn:
            txn.send("t", b"1", partition=0)
        leftovers = [path.parent / ".tmp-1-x" for path in (tmp_path / "store").rglob("*") if path.is_file()]
        for path in leftovers:
            path.write_bytes(b"torn")
        report = store.backup(tmp_path / "backup", verify=True)
        names = [path.name for path in (tmp_path / "backup").rglob("*") if path.is_file()]
        assert len(names) == report.objects + 2  # The documents: begun, and the cut.
        assert not [name for name in names if name.startswith(".tmp-")]
        age(tmp_path / "store", days=2)
        assert store.vacuum().swept == len(set(leftovers))
