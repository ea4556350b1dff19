"""A backup is the store at one cut, whoever writes, compacts and vacuums meanwhile."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from tests.helpers import keys
from tests.helpers.backups import (
    PARTITIONS,
    Watched,
    back_up,
    check_copy,
    everywhere,
    keys_of,
    one_thread,
    restore_from,
    shown,
)
from tests.helpers.compaction import DAY_MS, commit, reopen, runtime
from tests.helpers.connections import connection_of
from tests.helpers.history import pass_days
from tests.helpers.shell import ONE_CHAIN
from tests.helpers.shop import ADMIN, ALICE
from txnstore import errors
from txnstore.chain import backups
from txnstore.chain.backups import newest_backup
from txnstore.chain.codec import encode
from txnstore.chain.identity import document_of
from txnstore.compactor import backup, plan_repairs, restore_in_place
from txnstore.compactor.backup import copying
from txnstore.connection import Connection
from txnstore.core.authorization.model import ANONYMOUS
from txnstore.storage.memory import MemoryStore
from txnstore.store import Store, create_on, open_on
from txnstore.testing import Fault, FaultStore, ManualClock
from txnstore.testing.faults import no_faults, on


class Untouchable(Watched):
    """A storage that must only be read."""

    def put(self, key: str, data: bytes) -> None:
        raise AssertionError(f"{key} was written")

    def put_if_absent(self, key: str, data: bytes) -> bool:
        raise AssertionError(f"{key} was created")

    def delete(self, names: Sequence[str]) -> None:
        raise AssertionError(f"{names} were deleted")

    def now_ms(self) -> int:
        raise AssertionError("the clock of a folder is read by a write")


@pytest.fixture
def target(clock: ManualClock) -> MemoryStore:
    return MemoryStore(clock=clock)


@pytest.fixture
def store(chains: int, objects: MemoryStore, clock: ManualClock) -> Store:
    store = create_on(objects, chains, runtime=runtime(clock))
    store.create_topic("t", partitions=PARTITIONS)
    store.create_topic("own", partitions=PARTITIONS, config={"inline.bytes": 0})
    return store


def replace_segments(store: Store, clock: ManualClock) -> None:
    """Compact, and let two vacuums delete what was replaced, and the history."""
    store.compact(min_segments=2)
    store.checkpoint()
    for _ in range(2):
        clock.advance(2 * DAY_MS)
        store.vacuum(older_than=0, history=0)


# One cut --------------------------------------------------------------------------------------------------------------


def test_a_backup_is_the_store_at_one_cut(
    store: Store, objects: MemoryStore, target: MemoryStore, clock: ManualClock
) -> None:
    """Also of transactions over all chains, of an aborted and an open one; it can be read, and not written."""
    everywhere(store, b"1")
    everywhere(store, b"2", "aborter", commits=False)
    producer = store.producer("open")
    producer.begin_transaction()
    producer.send("t", b"open", partition=0).result()
    source = Untouchable(objects)
    report = back_up(source, target, clock, verify=True)
    assert report.copied == report.objects > 0
    assert report.heads == store.snapshot().heads
    everywhere(store, b"3")
    copy = check_copy(store, target, clock)
    assert [record["value"] for record in copy.scan("t").to_table().to_pylist()].count(b"3") == 0
    with pytest.raises(errors.StorageRefusedError, match=r"is a backup, which can only be read. `txnstore restore`"):
        open_on(target, runtime=one_thread(clock))
    with pytest.raises(errors.ReadOnlyError):
        copy.create_topic("new")
    producer.close()


def test_a_second_backup_copies_only_what_is_new(
    store: Store, objects: MemoryStore, target: MemoryStore, clock: ManualClock
) -> None:
    everywhere(store, b"1")
    first = back_up(objects, target, clock)
    again = back_up(objects, target, clock)
    assert (again.cut, again.copied, again.heads) == (first.cut, 0, first.heads)
    before = {key: target.get(key) for key in keys_of(target)}
    everywhere(store, b"2")
    second = back_up(objects, target, clock)
    assert (second.cut, second.objects) == (first.cut + 1, first.objects + second.copied)
    assert {key: target.get(key) for key in before} == before, "nothing is overwritten or deleted"
    check_copy(store, target, clock)


def test_a_backup_opened_before_follows_later_cuts(
    store: Store, objects: MemoryStore, target: MemoryStore, clock: ManualClock
) -> None:
    everywhere(store, b"1")
    back_up(objects, target, clock)
    reader = open_on(target, read_only=True, runtime=one_thread(clock))
    heads = reader.snapshot().heads
    everywhere(store, b"2")
    assert reader.snapshot().heads == heads
    everywhere(store, b"3")
    report = back_up(objects, target, clock)
    assert reader.snapshot().heads == report.heads > heads
    assert shown(reader) == shown(store)


def test_a_reader_learns_that_a_backup_was_made_a_store(
    store: Store, objects: MemoryStore, target: MemoryStore, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backups, "_LIST_EVERY", 1)
    everywhere(store, b"1")
    back_up(objects, target, clock)
    reader = open_on(target, read_only=True, runtime=one_thread(clock))
    restore_in_place(target, one_thread(clock), ANONYMOUS)
    with pytest.raises(errors.BackupError, match="is no backup any more: it was made a store"):
        reader.snapshot()
    reader.close()
    assert shown(reader)["heads"] == store.snapshot().heads, "opened again, it is read as a store"


@pytest.mark.parametrize("with_topic", [False, True])
def test_an_empty_store_has_a_backup(
    objects: MemoryStore, target: MemoryStore, clock: ManualClock, chains: int, with_topic: bool
) -> None:
    store = create_on(objects, chains, runtime=runtime(clock))
    if with_topic:
        store.create_topic("t")
    back_up(objects, target, clock, verify=True)
    with open_on(target, read_only=True, runtime=one_thread(clock)) as copy:
        assert [topic.name for topic in copy.topics()] == ["t"] * with_topic


def test_large_objects_are_copied_in_pieces(
    store: Store, objects: MemoryStore, target: MemoryStore, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(copying, "_PIECE_BYTES", 100)
    everywhere(store, b"x" * 100)
    back_up(objects, target, clock, verify=True)
    check_copy(store, target, clock)


# Vacuums, compactions, history ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("skip", [0, 3])
def test_a_vacuum_that_deletes_what_the_cut_names_leads_to_a_new_cut(
    store: Store, objects: MemoryStore, target: MemoryStore, clock: ManualClock, skip: int
) -> None:
    for number in range(4):
        everywhere(store, b"%d" % number)
    source = Watched(objects, "topics/own", lambda: replace_segments(store, clock), skip=skip)
    before = store.snapshot().heads
    report = back_up(source, target, clock)
    assert report.heads == store.snapshot().heads > before
    check_copy(store, target, clock)


@pytest.mark.slow
@pytest.mark.parametrize("folder", ["entries", "checkpoints", "boundaries"])
def test_history_that_is_deleted_between_two_lists_leads_to_a_new_cut(
    store: Store, objects: MemoryStore, target: MemoryStore, clock: ManualClock, folder: str
) -> None:
    for number in range(4):
        everywhere(store, b"%d" % number)
        store.checkpoint()
    source = Watched(objects, f"/{folder}/", lambda: replace_segments(store, clock), operation="list")
    back_up(source, target, clock)
    check_copy(store, target, clock)


@pytest.mark.slow
def test_a_backup_of_each_day_of_a_store_whose_history_is_deleted(
    used_for_days: Store, objects: MemoryStore, target: MemoryStore, clock: ManualClock
) -> None:
    back_up(objects, target, clock)
    for days in (8, 2, 2, 2):
        pass_days(used_for_days, clock, days=days)
        back_up(objects, target, clock)
    check_copy(used_for_days, target, clock)
    assert newest_backup(target).boundaries[0] > 2  # type: ignore[union-attr]
    first = int(keys_of(objects, keys.entries(0))[0][-25:-5])
    assert first > 1
    assert keys_of(target, keys.entries(0))[0].endswith(f"{1:020d}.json"), "the backup keeps what the store deletes"
    new = MemoryStore(clock=clock)
    restore_from(target, new, clock)
    assert keys_of(new, keys.entries(0))[0].endswith(f"{newest_boundary(new) + 1:020d}.json")
    check_copy(used_for_days, new, clock)


def newest_boundary(objects: MemoryStore) -> int:
    with Connection(objects, read_only=True) as connection:
        return connection.chains.boundaries()[0]


@ONE_CHAIN
def test_entries_that_were_shortened_since_keep_their_records_in_the_backup(
    store: Store, objects: MemoryStore, target: MemoryStore, clock: ManualClock
) -> None:
    for number in range(3):
        commit(store, [b"%d" % number])
    back_up(objects, target, clock)
    sizes = {item.key: item.size for item in objects.list(keys.CHAINS)}
    store.compact()
    clock.advance(2 * DAY_MS)
    store.vacuum()
    shortened = [item.key for item in objects.list(keys.CHAINS) if item.size < sizes.get(item.key, 0)]
    assert any("/entries/" in key for key in shortened)
    back_up(objects, target, clock, verify=True)
    assert {key: target.stat(key).size for key in shortened} == {key: sizes[key] for key in shortened}
    check_copy(store, target, clock)
    other = MemoryStore(clock=clock)
    back_up(objects, other, clock, verify=True)
    check_copy(store, other, clock)


@ONE_CHAIN
def test_records_that_are_erased_from_entries_meanwhile_lead_to_a_new_cut(
    store: Store, objects: MemoryStore, target: MemoryStore, clock: ManualClock
) -> None:
    """The line of an entry stays, so the entry is there, and the cut that was taken before needs what it had."""
    for number in range(3):
        commit(store, [b"%d" % number])
    source = Watched(objects, "/entries/", lambda: store.erase("t", key=b"k0"), operation="list")
    report = back_up(source, target, clock)
    assert report.heads == store.snapshot().heads
    copy = check_copy(store, target, clock)
    assert copy.scan("t").to_table().num_rows == 0


@pytest.mark.slow
def test_a_backup_that_is_older_than_the_history_is_not_continued(
    store: Store, objects: MemoryStore, target: MemoryStore, clock: ManualClock
) -> None:
    everywhere(store, b"1")
    back_up(objects, target, clock)
    before = keys_of(target)
    pass_days_of(store, clock)
    with pytest.raises(
        errors.BackupError, match=r"a vacuum has deleted .*/entries/.*, so nothing shows that the store"
    ):
        back_up(objects, target, clock)
    assert keys_of(target) == before


def pass_days_of(store: Store, clock: ManualClock) -> None:
    """Entries, checkpoints and vacuums of some weeks."""
    for number in range(12):
        everywhere(store, b"%d" % number)
        store.checkpoint()
        clock.advance(2 * DAY_MS)
        store.vacuum(older_than=0, history=DAY_MS / 1000)
    store.compact()
    for _ in range(3):
        everywhere(store, b"last")
        store.checkpoint()
        clock.advance(2 * DAY_MS)
        store.vacuum(older_than=0, history=0)


# Places that are no backup of this store ------------------------------------------------------------------------------


def test_a_target_that_is_a_store_is_refused(store: Store, objects: MemoryStore, clock: ManualClock) -> None:
    """The source itself, a store of others, and a backup that was made a store: nothing of them is touched."""
    everywhere(store, b"1")
    other, promoted = MemoryStore(clock=clock), MemoryStore(clock=clock)
    create_on(other, runtime=runtime(clock)).create_topic("mine")
    back_up(objects, promoted, clock)
    restore_in_place(promoted, one_thread(clock), ANONYMOUS)
    with open_on(promoted, runtime=runtime(clock)) as writer:
        everywhere(writer, b"theirs")
    for place in (objects, other, promoted):
        before = keys_of(place)
        with pytest.raises(errors.BackupError, match="nothing was copied: there is a store at"):
            back_up(objects, place, clock)
        assert keys_of(place) == before


def test_a_target_with_another_stores_backup_or_objects_is_refused(
    store: Store, objects: MemoryStore, target: MemoryStore, clock: ManualClock
) -> None:
    everywhere(store, b"1")
    other = MemoryStore(clock=clock)
    create_on(other, runtime=replace(runtime(clock))).create_topic("mine")
    document = newest_backup_of_another(other, clock)
    with pytest.raises(errors.BackupError, match="has a backup of the store 0000bbbb"):
        back_up(objects, document, clock)
    target.put(f"{keys.TOPICS}x/0/{'0' * 36}.parquet", b"of others")
    with pytest.raises(errors.BackupError, match="is no backup, and not empty: topics/x/0"):
        back_up(objects, target, clock)
    assert len(keys_of(target)) == 1


def newest_backup_of_another(objects: MemoryStore, clock: ManualClock) -> MemoryStore:
    """A backup of a store with another identity."""
    place, renamed = MemoryStore(clock=clock), MemoryStore(clock=clock)
    back_up(objects, place, clock)
    document = newest_backup(place)
    assert document is not None
    text = document.store.replace(keys.STORE_ID, keys.STORE_ID.replace("aaaa", "bbbb"))
    body = encode(replace(document.document, store_id=keys.STORE_ID.replace("aaaa", "bbbb"))).decode()
    assert text != body  # Its checksum differs.
    renamed.put("backups/00000000000000000000.json", encode(replace(document, number=0, store=body)))
    return renamed


def test_a_store_that_went_back_in_time_does_not_continue_its_backup(
    store: Store, objects: MemoryStore, target: MemoryStore, clock: ManualClock
) -> None:
    """Its later entries are in the backup: it would be a mixture of two histories."""
    everywhere(store, b"1")
    earlier = MemoryStore(clock=clock)
    back_up(objects, earlier, clock)
    everywhere(store, b"2")
    back_up(objects, target, clock)
    restore_in_place(earlier, one_thread(clock), ANONYMOUS)
    with pytest.raises(errors.BackupError, match=r"is of another history of the store: it has .*, and the store ends"):
        back_up(earlier, target, clock)
    with open_on(earlier, runtime=runtime(clock)) as restored:
        for _ in range(3):
            everywhere(restored, b"other")
    with pytest.raises(errors.BackupError, match="is of another history of the store: it has another"):
        back_up(earlier, target, clock)
    check_copy(store, target, clock)


def test_two_backups_at_once_to_one_target(
    store: Store, objects: MemoryStore, target: MemoryStore, clock: ManualClock
) -> None:
    """The one that ends last takes another cut, which has all that the other one has."""
    everywhere(store, b"1")

    def other() -> None:
        everywhere(store, b"2")
        back_up(objects, target, clock)
        everywhere(store, b"3")

    place = Watched(target, "backups/00000000000000000001", other, operation="put_if_absent")
    report = back_up(objects, place, clock)
    assert (report.cut, report.heads) == (2, store.snapshot().heads)
    check_copy(store, target, clock)


def test_a_principal_needs_the_right_to_read_each_topic(
    store: Store, objects: MemoryStore, target: MemoryStore, clock: ManualClock
) -> None:
    everywhere(store, b"1")
    store.acls.enable(super_users=[ADMIN, ANONYMOUS])
    with (
        open_on(objects, read_only=True, principal=ALICE, runtime=one_thread(clock)) as alice,
        pytest.raises(errors.TopicAuthorizationError, match="READ"),
    ):
        backup(connection_of(alice), target)
    with open_on(objects, read_only=True, principal=ADMIN, runtime=one_thread(clock)) as admin:
        backup(connection_of(admin), target)
    copy = open_on(target, read_only=True, principal=ALICE, runtime=one_thread(clock))
    with pytest.raises(errors.TopicAuthorizationError):
        copy.scan("t")


# Damage ---------------------------------------------------------------------------------------------------------------


def test_a_damaged_object_of_the_store_is_not_copied(
    store: Store, objects: MemoryStore, target: MemoryStore, clock: ManualClock
) -> None:
    everywhere(store, b"1")
    first = back_up(objects, target, clock)
    everywhere(store, b"2")
    key = next(key for key in keys_of(objects, keys.TOPICS) if key not in keys_of(target))
    data = objects.get(key)
    objects.put(key, data[:-9] + b"x" + data[-8:])
    with pytest.raises(errors.CorruptionError, match=f"{key} is damaged: its bytes are not those"):
        back_up(objects, target, clock)
    objects.delete([key])
    with pytest.raises(errors.CorruptionError, match=f"{key} is missing, though the store needs it"):
        back_up(objects, target, clock)
    assert newest_backup(target).number == first.cut  # type: ignore[union-attr]
    check_copy_opens(target, clock)
    objects.put(key, data)
    back_up(objects, target, clock)
    check_copy(store, target, clock)


def check_copy_opens(target: MemoryStore, clock: ManualClock) -> None:
    with open_on(target, read_only=True, runtime=one_thread(clock)) as copy:
        assert copy.verify(deep=True).ok


def test_a_damaged_old_checkpoint_is_left_out(
    store: Store, objects: MemoryStore, target: MemoryStore, clock: ManualClock
) -> None:
    for number in range(2):
        everywhere(store, b"%d" % number)
        store.checkpoint()
    key = next(key for key in keys_of(objects, keys.checkpoints(0)) if key.endswith("state.json"))
    objects.put(key, objects.get(key)[:-9])
    back_up(objects, target, clock)
    assert key not in keys_of(target)
    check_copy(store, target, clock)


def test_verify_finds_damage_of_the_copy_and_the_cut_does_not_count(
    store: Store, objects: MemoryStore, target: MemoryStore, clock: ManualClock
) -> None:
    everywhere(store, b"1")
    first = back_up(objects, target, clock)
    key = keys_of(target, keys.TOPICS)[0]
    data = target.get(key)
    target.put(key, data[:-9] + b"x" + data[-8:])
    everywhere(store, b"2")
    with pytest.raises(errors.CorruptionError, match=r"the copy at .* is damaged: topics/.* Delete the object there"):
        back_up(objects, target, clock, verify=True)
    assert newest_backup(target).number == first.cut  # type: ignore[union-attr]
    target.delete([key])
    back_up(objects, target, clock, verify=True)
    check_copy(store, target, clock)


# Unfinished copies ----------------------------------------------------------------------------------------------------


def test_an_unfinished_copy_is_no_store_for_any_command(
    store: Store, objects: MemoryStore, target: MemoryStore, clock: ManualClock
) -> None:
    everywhere(store, b"1")
    place = FaultStore(target, on(Fault.ERROR_BEFORE, "put", key_contains="topics/own"))
    with pytest.raises(errors.StorageError):
        back_up(objects, place, clock)
    unfinished = "is not complete: .* was interrupted. Run it again: it continues"
    for command in (
        lambda: open_on(target, read_only=True, runtime=one_thread(clock)),
        lambda: create_on(target, runtime=one_thread(clock)),
        lambda: plan_repairs(Connection(target)),
        lambda: restore_from(target, MemoryStore(clock=clock), clock),
    ):
        with pytest.raises(errors.BackupError, match=unfinished):
            command()
    assert back_up(objects, target, clock).copied < len(keys_of(target))
    with pytest.raises(errors.BackupError, match="there is a backup of the store"):
        plan_repairs(Connection(target))
    with pytest.raises(errors.BackupError, match="there is a backup of the store"):
        create_on(target, runtime=one_thread(clock))
    check_copy(store, target, clock)


@pytest.mark.slow
def test_a_reader_of_a_backup_sees_nothing_of_an_unfinished_cut(
    store: Store, objects: MemoryStore, target: MemoryStore, clock: ManualClock
) -> None:
    everywhere(store, b"1")
    back_up(objects, target, clock)
    reader = open_on(target, read_only=True, runtime=one_thread(clock))
    before = shown(reader)
    for number in range(3):
        everywhere(store, b"%d" % number)
        store.checkpoint()
    store.compact()
    place = FaultStore(target, no_faults)

    def fail(n: int, operation: str, key: str) -> None:
        if key.startswith("backups/") and operation == "put_if_absent":
            raise errors.StorageRefusedError("no")

    place.plan = fail
    with pytest.raises(errors.StorageRefusedError):
        back_up(objects, place, clock)
    assert len(keys_of(target, keys.entries(0))) > before["heads"][0]
    assert shown(reader) == before
    reopened = open_on(target, read_only=True, runtime=one_thread(clock))
    assert shown(reopened) == before
    assert reopened.verify(deep=True).ok
    restored = MemoryStore(clock=clock)
    restore_from(target, restored, clock, verify=True)
    restore_in_place(target, one_thread(clock), ANONYMOUS, verify=True)
    for place_of_store in (restored, target):
        with open_on(place_of_store, runtime=runtime(clock)) as again:
            assert shown(again) == before
            everywhere(again, b"new")
            assert again.verify(deep=True).ok
            assert shown(reopen(again, clock))["heads"] > before["heads"]


def test_a_backup_has_no_identity_of_another_store(
    store: Store, objects: MemoryStore, target: MemoryStore, clock: ManualClock
) -> None:
    """An operator has put ``store.json`` of another store there: the copy would be taken for one of that."""
    everywhere(store, b"1")
    connection = connection_of(store)
    document = objects.get(keys.STORE)
    other_id = keys.STORE_ID.replace("aaaa", "bbbb")
    objects.put(keys.STORE, encode(replace(document_of(document, "there"), store_id=other_id)))
    with pytest.raises(errors.StoreNotFoundError, match=f"{other_id} was created in its place"):
        backup(connection, target)
    assert newest_backup(target) is None
    objects.put(keys.STORE, document)
    assert backup(connection, target).heads == store.snapshot().heads
