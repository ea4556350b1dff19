"""Accidents around the tables: stores that move, clocks, engines with all rights, and tables that end."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace

import pyarrow as pa
import pytest

from tests.helpers.compaction import DAY_MS, HOUR_MS, commit, new_store, runtime
from tests.helpers.connections import connection_of
from tests.helpers.tables import EngineObjects, another, newest, published, scanned, state_of, table_rows
from txnstore.catalog.iceberg.columns import check_columns, table_columns
from txnstore.catalog.iceberg.cut import Moment
from txnstore.catalog.iceberg.location import location_of
from txnstore.chain import keys
from txnstore.chain.codec import encode
from txnstore.compactor.doctor.findings import Severity
from txnstore.core.catalog.model import CatalogTopic
from txnstore.errors import (
    CorruptionError,
    InvalidConfigError,
    StorageRefusedError,
    UnknownOutcomeError,
    UnknownTopicOrPartitionError,
)
from txnstore.segment.schema import schema_to_text
from txnstore.store import Store, open_on
from txnstore.tables.serve.cuts import StoredCuts
from txnstore.tables.version import TableWork
from txnstore.testing import ManualClock
from txnstore.testing.faults import Fault, FaultStore, no_faults, on


class MovedObjects(EngineObjects):
    """Objects in a bucket that may be renamed, and that refuses writes below a prefix."""

    bucket, refused = "bucket", "none/"

    @property
    def url(self) -> str:
        return f"s3://{self.bucket}/store"

    def put(self, key: str, data: bytes) -> None:
        if key.startswith(self.refused):
            raise StorageRefusedError(f"Cannot write {key}: access denied.")
        super().put(key, data)


@pytest.fixture
def objects(clock: ManualClock) -> MovedObjects:
    return MovedObjects(clock)


@pytest.fixture
def store(clock: ManualClock, objects: MovedObjects) -> Store:
    store = new_store(clock, objects)
    for topic in ("t", "u"):
        store.create_topic(topic, partitions=2)
        store.tables.enable(topic)
    commit(store, [b"a"])
    store.tables.sync()
    return store


def test_the_tables_of_a_store_that_was_moved_are_rebuilt(
    store: Store, clock: ManualClock, objects: MovedObjects
) -> None:
    """Also the one without rows, whose metadata has no other location than its own."""
    objects.bucket = "other"
    moved = another(store, clock)
    assert any(
        "published when the store was at another place" in each.message for each in moved.tables.check().problems
    )
    assert [(change.topic, change.rebuilt) for change in moved.tables.sync().changes] == [("t", True), ("u", True)]
    assert moved.tables.check(deep=True).ok
    assert state_of(moved, "u").metadata.location == "s3://other/store/tables/u"
    assert "at another place" in moved.vacuum().tables
    clock.advance(30 * HOUR_MS)
    assert another(moved, clock).vacuum().tables == ""


def test_metadata_is_not_older_than_its_snapshots(store: Store, clock: ManualClock, objects: MovedObjects) -> None:
    """A publisher's clock may be behind; Spark refuses such a table (`Invalid update timestamp`)."""
    commit(store, [b"b"])
    late = ManualClock(clock() - 10 * HOUR_MS)
    open_on(objects, runtime=runtime(late)).tables.sync()
    metadata = state_of(store, "t").metadata
    assert metadata.current is not None
    assert metadata.updated >= metadata.current.timestamp
    published_at = [snapshot.published for snapshot in metadata.snapshots]
    assert published_at == sorted(published_at)


@pytest.mark.parametrize("changes", [False, True])
def test_a_running_publisher_rebuilds_a_dropped_table(
    store: Store, clock: ManualClock, objects: MovedObjects, changes: bool
) -> None:
    """An engine has dropped it, with all that is below its folder. A quiet one is looked at once an hour."""
    objects.delete([item.key for item in objects.list(keys.table("t"))])
    if changes:
        commit(store, [b"b"])
    else:
        clock.advance(HOUR_MS)
    (change,) = store.tables.sync().changes
    assert (change.topic, change.rebuilt) == ("t", True)
    assert table_rows(store, "t") == scanned(store, "t")
    assert store.tables.check(deep=True).ok


def test_a_version_of_an_engine_is_not_forgotten_if_the_publication_fails(
    store: Store, clock: ManualClock, objects: MovedObjects
) -> None:
    objects.put(keys.table_version("t", 2), b"{}")
    faulty = FaultStore(objects)
    other = another(store, clock, faulty)
    connection_of(other).view()
    failed: list[str] = []

    def fail(key: str) -> None:
        if key == keys.cut(2) and not failed:
            failed.append(key)
            raise OSError("the machine has stopped")

    objects.before_create = fail
    with pytest.raises(OSError, match="stopped"):
        other.tables.sync()
    assert other.tables.sync().foreign == (keys.table_version("t", 2),)
    assert newest(store).tables["t"].number == 3


def test_a_version_of_an_engine_under_the_name_of_a_cuts_own_is_passed(
    store: Store, clock: ManualClock, objects: MovedObjects
) -> None:
    """The publisher died before it copied its version, and an engine took the name."""
    objects.put(keys.table_version("t", 1), b"{}")
    report = another(store, clock).tables.sync()
    assert report.foreign == (keys.table_version("t", 1),)
    assert newest(store).tables["t"].number == 2
    assert store.tables.check().ok


def test_a_publication_without_its_library_makes_no_request(
    store: Store, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = another(store, clock)
    monkeypatch.setitem(sys.modules, "fastavro", None)
    connection_of(other).counts.reset()
    with pytest.raises(InvalidConfigError, match="its extra tables"):
        other.tables.sync()
    assert connection_of(other).counts.snapshot().requests == 0


def test_a_server_forgets_a_cut_that_was_deleted(store: Store, clock: ManualClock, objects: MovedObjects) -> None:
    connection = connection_of(store)
    cuts = StoredCuts(connection, location_of(objects))
    commit(store, [b"b"])
    store.tables.sync()
    assert cuts.newest().cut == newest(store)
    objects.delete([item.key for item in objects.list(keys.TABLES)])
    clock.advance(HOUR_MS)
    another(store, clock).tables.sync()
    found = cuts.newest().cut
    assert found is not None
    assert found.number == 1


def test_a_server_looks_for_a_cut_on_a_machine_that_has_just_started(
    store: Store, clock: ManualClock, objects: MovedObjects
) -> None:
    other = open_on(objects, runtime=replace(runtime(clock), uptime=ManualClock(0)))
    cuts = StoredCuts(connection_of(other), location_of(objects))
    assert [cuts.newest().cut, cuts.newest().cut] == [newest(store)] * 2


def test_a_check_of_tables_that_were_deleted_finds_them_missing(store: Store, objects: MovedObjects) -> None:
    objects.delete([item.key for item in objects.list(keys.TABLES)])
    report = store.tables.check()
    assert [problem.topic for problem in report.problems] == ["t", "u"]
    assert (report.cut, report.tables, report.files, report.rows) == (0, 0, 0, 0)


def test_a_vacuum_ends_the_last_table(store: Store, clock: ManualClock) -> None:
    for topic in ("t", "u"):
        store.tables.disable(topic)
    another(store, clock).vacuum()
    assert all(table.dropped for table in newest(store).tables.values())


def test_a_dropped_table_whose_metadata_is_lost_holds_no_vacuum_up(
    store: Store, clock: ManualClock, objects: MovedObjects
) -> None:
    store.tables.disable("u")
    store.tables.sync()
    objects.delete([item.key for item in objects.list(keys.table("u"))])
    clock.advance(40 * HOUR_MS)
    assert another(store, clock).vacuum().tables == ""
    assert newest(store).tables.keys() == {"t"}


def test_a_vacuum_leaves_what_others_have_below_the_tables(
    store: Store, clock: ManualClock, objects: MovedObjects
) -> None:
    others = ("tables/README.txt", "tables/report/metadata/v1.metadata.json")
    for key in others:
        objects.put(key, b"{}")
    clock.advance(400 * HOUR_MS)
    another(store, clock).vacuum()
    assert {*others} <= {item.key for item in objects.list(keys.TABLES)}


def test_a_quiet_table_of_a_busy_store_is_not_behind(store: Store, clock: ManualClock) -> None:
    """A cut without a changed table, at most one an hour."""
    store.create_topic("busy")
    commit(store, [b"b"], "busy")
    assert store.tables.sync().cut == 1
    clock.advance(HOUR_MS)
    commit(store, [b"b"], "busy")
    report = store.tables.sync()
    assert (report.cut, report.changes) == (2, ())
    assert newest(store).timestamp == clock()
    assert newest(store).tables == published(store).cut(1).tables  # type: ignore[union-attr]
    assert store.tables.sync().cut == 2


def _topic(*fields: pa.Field) -> CatalogTopic:
    return CatalogTopic("t", "id", 1, schema=schema_to_text(pa.schema(list(fields))))


def test_field_ids_of_names_with_slashes_differ() -> None:
    inner = pa.struct([("b", pa.int64())])
    after = table_columns(_topic(pa.field("a", inner), pa.field("a/b", pa.int64())))
    ids = [after.fields[3]["id"], after.fields[3]["type"]["fields"][0]["id"], after.fields[4]["id"]]
    assert len(set(ids)) == 3


def test_names_that_engines_take_for_fields_of_others_are_refused() -> None:
    with pytest.raises(InvalidConfigError, match=r"two of its columns 'a\.b'"):
        check_columns(_topic(pa.field("a", pa.struct([("b", pa.int64())])), pa.field("a.b", pa.int64())))


def restore(objects: MovedObjects, saved: dict[str, bytes]) -> None:
    """Bring back a copy of everything but the tables, as an operator does with a backup."""
    objects.delete([item.key for item in objects.list("") if not item.key.startswith(keys.TABLES)])
    for key, data in saved.items():
        objects.put(key, data)


@pytest.mark.parametrize("others", [0, 1, 2, 3])
def test_lost_entries_differ_from_those_that_took_their_numbers(
    store: Store, clock: ManualClock, objects: MovedObjects, others: int
) -> None:
    """A cut that shows entries of before a restore is not continued, however many others were written since."""
    saved = {item.key: objects.get(item.key) for item in objects.list("") if not item.key.startswith(keys.TABLES)}
    commit(store, [b"lost"])
    commit(store, [b"lost, too"])
    store.tables.sync()
    restore(objects, saved)
    later = another(store, clock)
    for number in range(others):
        commit(later, [b"other %d" % number])
    reason = "ends at the entries" if others < 2 else "was another entry"
    with pytest.raises(CorruptionError, match=rf"{reason}.*table sync --rebuild '\*'"):
        later.tables.sync()
    for rebuild in ([], ["t"]):  # Not only once.
        with pytest.raises(CorruptionError, match=reason):
            later.tables.sync(rebuild=rebuild)
    objects_before = {item.key for item in objects.list("")}
    with pytest.raises(CorruptionError, match=reason):
        later.vacuum()
    assert {item.key for item in objects.list("")} == objects_before
    later.vacuum(tables=False)
    assert [problem.topic for problem in later.tables.check().problems] == ["t", "u"]
    assert reason in later.tables.check().problems[0].message
    cut = newest(store).number
    report = later.tables.sync(rebuild=["*"])
    assert report.cut == cut + 1
    assert {change.topic for change in report.changes if change.rebuilt} == {"t", "u"}
    assert table_rows(later, "t") == scanned(later, "t")
    assert later.tables.check(deep=True).ok
    commit(later, [b"after"])
    another(store, clock).tables.sync()
    assert table_rows(later, "t") == scanned(later, "t")


def test_a_table_that_cannot_be_rebuilt_shows_nothing_lost(
    store: Store, clock: ManualClock, objects: MovedObjects
) -> None:
    """Its copies have the offsets of other records now, and the next publication would keep them."""
    with store.producer("writer") as producer, producer.transaction():
        producer.send("t", b"b" * 100_000, partition=1)
    (segment,) = {info.key for info in objects.list("topics/t/")}
    data = objects.get(segment)
    saved = {item.key: objects.get(item.key) for item in objects.list("") if not item.key.startswith(keys.TABLES)}
    commit(store, [b"lost"])
    store.tables.sync()
    restore(objects, saved)
    objects.put(segment, bytes(len(data)))
    later = another(store, clock)
    cut, objects.refused = newest(store), keys.table("t")
    with pytest.raises(StorageRefusedError, match="is not published, and stays as it was"):
        later.tables.sync(rebuild=["*"])
    assert newest(store) == cut  # It can be neither rebuilt nor dropped.
    objects.refused = "none/"
    errors: list[Exception] = []
    later.tables.sync(rebuild=["*"], on_error=errors.append)
    assert "is not published, and has no rows" in str(errors[0])
    assert {name: (table.dropped, table.moment) for name, table in newest(store).tables.items()} == {
        "t": (True, None),
        "u": (False, None),
    }
    commit(later, [b"other"])
    objects.put(segment, data)
    later.tables.sync()
    assert table_rows(later, "t") == scanned(later, "t")
    assert later.tables.check(deep=True).ok


def test_a_comparison_that_was_refused_once_is_made_again(
    store: Store, clock: ManualClock, objects: MovedObjects
) -> None:
    """The hourly one of a running publisher, too."""
    cut = newest(store)
    commit(store, [b"b"])
    objects.put(keys.cut(cut.number), encode(replace(cut, hashes=["0" * 64])))
    clock.advance(HOUR_MS)
    for _ in range(2):
        with pytest.raises(CorruptionError, match="was another entry"):
            store.tables.sync()


def test_a_publisher_that_lives_through_a_restore_publishes_nothing_lost(
    store: Store, clock: ManualClock, objects: MovedObjects
) -> None:
    """It has read entries that the store does not have any more."""
    saved = {item.key: objects.get(item.key) for item in objects.list("") if not item.key.startswith(keys.TABLES)}
    for value in (b"lost", b"lost, too", b"lost, at last"):
        commit(store, [value])
    store.tables.sync()
    restore(objects, saved)
    later = another(store, clock)
    cut = later.tables.sync(rebuild=["*"]).cut
    with pytest.raises(CorruptionError, match="is missing, but this process has read entry"):
        store.tables.sync()
    assert newest(later).number == cut


def test_a_cut_says_which_tables_could_not_be_published_with_it(
    store: Store, clock: ManualClock, objects: MovedObjects
) -> None:
    """A reader of several tables at the cut would see a transaction in one of them only."""
    before = newest(store)
    with store.producer("writer") as producer, producer.transaction():
        for topic in ("t", "u"):
            producer.send(topic, b"b" * 100_000, partition=0)
    (segment,) = {info.key for info in objects.list("topics/t/")}
    data = objects.get(segment)
    objects.put(segment, bytes(len(data)))
    errors: list[Exception] = []
    store.tables.sync(on_error=errors.append)
    (error,) = errors
    assert "topic 't'" in str(error)
    cut = newest(store)
    assert (cut.tables["t"], cut.tables["u"].moment) == (replace(before.tables["t"], moment=cut.moment_of("t")), None)
    assert cut.moment_of("t") == Moment(heads=before.heads, timestamp=before.timestamp)
    assert table_rows(store, "t") == scanned(store, "t", before)
    (problem,) = store.tables.check().problems
    assert (problem.topic, "shows the entries" in problem.message) == ("t", True)
    heads = {table.topic: table.heads for table in store.tables.list()}
    assert heads == {"t": tuple(before.heads), "u": tuple(cut.heads)}
    status = store.metrics(status=True).status
    assert status is not None
    assert {table.topic: table.behind > 0 for table in status.tables} == {"t": True, "u": False}
    (finding,) = [each for each in store.doctor().findings if each.name == "outdated"]
    assert (finding.severity, finding.message[:16]) == (Severity.BAD, "the tables of t ")
    # The next cut has the earlier moment still, though the chains are at a later one.
    commit(store, [b"c"], topic="u")
    store.tables.sync(on_error=errors.append)
    assert newest(store).moment_of("t").heads == before.heads
    objects.put(segment, data)
    store.tables.sync()
    assert newest(store).tables["t"].moment is None
    assert store.tables.check(deep=True).ok


def test_a_table_that_only_a_visible_entry_enables_waits_for_the_flush(
    clock: ManualClock, objects: MovedObjects
) -> None:
    """A caller that repeats the call after an unknown outcome finds that the topic has a table."""
    disk = FaultStore(objects)
    store = new_store(clock, disk)
    store.create_topic("t")
    disk.plan = on(Fault.UNSYNCED, "put_if_absent", times=None)
    with pytest.raises(UnknownOutcomeError):
        store.tables.enable("t")
    assert disk.unsynced
    disk.plan = no_faults
    assert store.tables.enable("t") == 0
    assert disk.unsynced == []


def test_a_table_that_has_caught_up_without_new_rows_is_of_the_next_cut(
    store: Store, clock: ManualClock, objects: MovedObjects, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr("txnstore.tables.publish.TableWork", _refuse_work_of("t", TableWork))
        commit(store, [b"b"], topic="u")
        store.tables.sync(on_error=lambda _: None)
    earlier = newest(store)
    assert earlier.tables["t"].moment is not None
    assert store.tables.sync().changes == ()
    assert (newest(store).number, newest(store).tables["t"].moment) == (earlier.number + 1, None)
    assert store.tables.sync().cut == earlier.number + 1


def test_a_table_that_cannot_be_rebuilt_is_of_the_next_cut_if_that_has_no_later_entries(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A session of the cut sees it: it shows the same moment as the others."""
    with monkeypatch.context() as patched:
        patched.setattr("txnstore.tables.publish.TableWork", _refuse_work_of("t", TableWork))
        store.tables.sync(rebuild=["*"], on_error=lambda _: None)
    assert (newest(store).number, newest(store).tables["t"].moment) == (2, None)


def _refuse_work_of(topic: str, make_work: Callable[..., TableWork]) -> Callable[..., TableWork]:
    """TableWork, but planning that of one table finds damage."""

    def refuse(connection: object, view: object, of: CatalogTopic, *args: object) -> TableWork:
        if of.name == topic:
            raise CorruptionError("damaged")
        return make_work(connection, view, of, *args)

    return refuse


def test_what_the_hint_of_a_table_leads_to_stays_while_the_storage_refuses_to_write_it(
    store: Store, clock: ManualClock, objects: MovedObjects
) -> None:
    """Engines load it by path, however many versions are published meanwhile."""
    store.compact(force=True)
    store.tables.sync()
    table, rows = newest(store).tables["t"], table_rows(store, "t")
    objects.refused = keys.table_hint("t")
    for value in (b"b", b"c"):
        commit(store, [value])
        store.compact(force=True)
        store.tables.sync(on_error=lambda _: None)
        clock.advance(2 * DAY_MS)
        store.vacuum()
    assert objects.get(keys.table_hint("t")) == str(table.number).encode()
    assert objects.get(keys.table_version("t", table.number)) == objects.get(table.metadata)
    assert table_rows(store, "t", table) == rows
    objects.refused = "none/"
    store.tables.sync()
    clock.advance(2 * DAY_MS)
    deleted = store.vacuum().deleted
    assert {table.metadata, keys.table_version("t", table.number)} < {*deleted}
    assert [key for key in deleted if keys.has_segments(key)] != []


def test_all_tables_and_one_that_does_not_exist_are_refused(store: Store) -> None:
    with pytest.raises(UnknownTopicOrPartitionError, match="there is no topic 'nope'"):
        store.tables.sync(rebuild=["*", "nope"])


def test_a_cut_of_an_earlier_publisher_has_no_hashes(store: Store, clock: ManualClock, objects: MovedObjects) -> None:
    cut = newest(store)
    objects.put(keys.cut(cut.number), encode(replace(cut, hashes=[])))
    later = another(store, clock)
    commit(later, [b"b"])
    assert later.tables.sync().cut == cut.number + 1
    assert len(newest(store).hashes) == 1
