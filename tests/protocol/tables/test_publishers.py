"""Publishers that crash, sleep, race, or find what others have written; storage that loses answers."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from contextlib import suppress

import pytest

from tests.helpers.compaction import HOUR_MS, commit, new_store
from tests.helpers.connections import connection_of
from tests.helpers.tables import EngineObjects, Row, another, newest, published, rows_of, scanned, state_of, table_rows
from txnstore.chain import keys
from txnstore.core.model import TopicPartition
from txnstore.errors import StorageError
from txnstore.storage.base import ObjectInfo
from txnstore.store import Store
from txnstore.tables.published import TableState
from txnstore.tables.sweep import tables_in_use
from txnstore.testing import ManualClock
from txnstore.testing.faults import PASSING_FAULTS, Fault, FaultStore, SimulatedCrash, crash_at, on, script


@pytest.fixture
def objects(clock: ManualClock) -> EngineObjects:
    return EngineObjects(clock)


@pytest.fixture
def store(clock: ManualClock, objects: EngineObjects) -> Store:
    return _new(clock, objects)


def _new(clock: ManualClock, objects: EngineObjects) -> Store:
    """A store with two tables in a cut, and changes of all four kinds after it."""
    store = new_store(clock, objects)
    for topic in ("t", "u"):
        store.create_topic(topic, partitions=2)
        store.tables.enable(topic)
        for number in range(3):
            commit(store, [b"%d" % number, b"x"], topic, writer=topic)
    store.compact("t")
    store.tables.sync()
    store.delete_records({TopicPartition("t", 0): 2})
    with store.producer("both") as producer, producer.transaction():
        for topic in ("t", "u"):
            producer.send(topic, value=b"both", partition=1)
            producer.send(topic, value=b"both", partition=0)
    store.compact("u")
    return store


def _check_readable(store: Store) -> None:
    """What readers find, by the cut and by path, is a whole cut or the one before it."""
    cut = newest(store)
    for topic, table in cut.tables.items():
        assert table_rows(store, topic, table) == scanned(store, topic, cut)
        hint = int(connection_of(store).objects.get(keys.table_hint(topic)))
        assert connection_of(store).objects.get(keys.table_version(topic, hint))
        assert hint <= table.number


def _requests(clock: ManualClock) -> int:
    objects = EngineObjects(clock)
    store = _new(clock, objects)
    counting = FaultStore(objects)
    other = another(store, clock, counting)
    before = len(counting.requests)
    other.tables.sync()
    return len(counting.requests) - before


@pytest.mark.slow
@pytest.mark.parametrize("after", [False, True])
def test_a_publisher_crashes_at_each_request(clock: ManualClock, after: bool) -> None:
    count = _requests(clock)
    crashes = 0
    for number in range(1, count + 1):
        objects = EngineObjects(clock)
        store = _new(clock, objects)
        faulty = FaultStore(objects)
        other = another(store, clock, faulty)
        faulty.plan = crash_at(len(faulty.requests) + number, after=after)
        with suppress(SimulatedCrash):  # None after a request that fails anyhow, for an object that does not exist.
            other.tables.sync()
        crashes += faulty.crashed
        _check_readable(store)
        store.tables.sync()
        _check_readable(store)
        report = store.tables.check(deep=True)
        assert (number, report.problems) == (number, ())
        assert newest(store).number == 2
    assert crashes > 30


@pytest.mark.slow
@pytest.mark.parametrize("fault", PASSING_FAULTS)
def test_each_request_of_a_publication_fails_once(clock: ManualClock, fault: Fault) -> None:
    count = _requests(clock)
    for number in range(1, count + 1):
        objects = EngineObjects(clock)
        store = _new(clock, objects)
        faulty = FaultStore(objects, sleep=clock.sleep)
        other = another(store, clock, faulty)
        faulty.plan = script({len(faulty.requests) + number: fault})
        with suppress(StorageError):
            other.tables.sync()
        faulty.release()
        _check_readable(store)
        other.tables.sync()
        _check_readable(store)
        report = store.tables.check(deep=True)
        assert (number, report.problems) == (number, ())
        assert newest(store).number == 2


def test_of_two_publishers_one_decides_and_the_other_begins_again(
    store: Store, clock: ManualClock, objects: EngineObjects
) -> None:
    other = another(store, clock)
    races = itertools.count()

    def race(key: str) -> None:
        if key == keys.cut(2) and next(races) == 0:
            commit(store, [b"meanwhile"])
            assert other.tables.sync().cut == 2

    objects.before_create = race
    report = store.tables.sync()
    assert (report.cut, report.foreign) == (2, ())  # What it has found is what the other one has published.
    _check_readable(store)
    assert len(table_rows(store, "t")) == len(scanned(store, "t"))


def test_versions_of_a_faster_publisher_are_not_reported_as_foreign(
    store: Store, clock: ManualClock, objects: EngineObjects
) -> None:
    """A publisher may see them before it finds that the other one has decided."""
    other = another(store, clock)
    races = itertools.count()

    def race(key: str) -> None:
        if key == keys.cut(2) and next(races) == 0:
            commit(store, [b"meanwhile"])
            other.tables.sync()
            commit(store, [b"after it"])

    put = objects.put

    def slow(key: str, data: bytes) -> None:
        put(key, data)
        if key.startswith(keys.table("t")):
            race(keys.cut(2))  # Before it looks for a free number of the other table.

    objects.put = slow  # type: ignore[method-assign]
    report = store.tables.sync()
    assert (report.cut, report.foreign) == (3, ())
    _check_readable(store)


def test_a_publisher_that_slept_too_long_begins_again(store: Store, clock: ManualClock, objects: EngineObjects) -> None:
    sleeps: Iterator[int] = iter([2 * HOUR_MS])
    put = objects.put
    written: list[str] = []

    def slow(key: str, data: bytes) -> None:
        if key.startswith(keys.TABLES):
            written.append(key)
            clock.advance(next(sleeps, 0))
        put(key, data)

    objects.put = slow  # type: ignore[method-assign]
    store.tables.sync()
    named = set(_all_names(store))
    assert written[0] not in named  # What it wrote before it slept may have been deleted.
    _check_readable(store)


def _all_names(store: Store) -> Iterator[str]:
    for topic, table in newest(store).tables.items():
        yield from (table.metadata, keys.table_version(topic, table.number), keys.table_hint(topic))
        yield from (path.removeprefix("s3://bucket/store/") for path in published(store).all_locations(table))


def test_a_publisher_that_slept_for_days_does_not_believe_its_memory(
    store: Store, clock: ManualClock, objects: EngineObjects
) -> None:
    """Cuts that followed the last one that it knew may be deleted: their numbers are free, and not the newest."""
    store.tables.sync()
    other = another(store, clock)
    for number in range(20):
        commit(other, [b"%d" % number])
        other.tables.sync()
    newest_number = newest(other).number
    clock.advance(10 * 24 * HOUR_MS)
    other.vacuum(tables=False)
    assert [item.key for item in objects.list(keys.CUTS) if keys.cut_number(item.key)] == [keys.cut(newest_number)]
    commit(other, [b"last"])
    assert store.tables.sync().cut == newest_number + 1
    _check_readable(store)


def test_a_version_of_an_engine_is_reported_and_passed(
    store: Store, objects: EngineObjects, clock: ManualClock
) -> None:
    objects.put(keys.table_version("t", 2), b"{}")
    objects.put(keys.table_version("t", 3), b"{}")
    problems = [each.message for each in store.tables.check().problems]
    assert any("v2.metadata.json is in no cut: an engine wrote it" in message for message in problems)
    report = store.tables.sync()
    assert report.foreign == (keys.table_version("t", 2), keys.table_version("t", 3))
    assert newest(store).tables["t"].number == 4
    assert newest(store).tables["u"].number == 2
    _check_readable(store)
    assert store.tables.sync().foreign == ()
    assert store.tables.check().ok


def test_a_version_of_an_engine_of_a_quiet_table_is_passed(
    store: Store, objects: EngineObjects, clock: ManualClock
) -> None:
    """A Hadoop catalog counts on from the hint, so the table has to have a later version, though nothing is new."""
    store.tables.sync()
    objects.put(keys.table_version("t", 3), b"{}")
    objects.put(keys.table_hint("t"), b"3")
    report = another(store, clock).tables.sync()
    assert report.foreign == (keys.table_version("t", 3),)
    assert [change.topic for change in report.changes] == ["t"]
    assert newest(store).tables["t"].number == 4
    _check_readable(store)
    assert store.tables.check().ok
    objects.put(keys.table_version("t", 5), b"{}")
    assert store.tables.sync().changes == ()  # It looks once an hour.
    clock.advance(HOUR_MS)
    assert store.tables.sync().foreign == (keys.table_version("t", 5),)
    assert store.tables.check().ok


def test_a_dropped_table_passes_the_version_of_an_engine(store: Store, objects: EngineObjects) -> None:
    def insert(key: str) -> None:
        if key == keys.table_version("t", 2):
            objects.put(key, b"{}")

    store.tables.disable("t")
    objects.before_create = insert
    assert store.tables.sync().foreign == (keys.table_version("t", 2),)
    table = newest(store).tables["t"]
    assert (table.dropped, table.number) == (True, 3)
    assert store.tables.sync().changes == ()


def test_a_version_that_an_engine_creates_at_the_same_moment_is_passed(store: Store, objects: EngineObjects) -> None:
    def insert(key: str) -> None:
        if key == keys.table_version("t", 2):
            objects.put(key, b"{}")

    objects.before_create = insert
    report = store.tables.sync()
    assert report.foreign == (keys.table_version("t", 2),)
    assert newest(store).tables["t"].number == 3
    _check_readable(store)
    assert store.tables.check().ok


def test_a_lost_hint_to_the_cuts_costs_a_list(store: Store, objects: EngineObjects, clock: ManualClock) -> None:
    store.tables.sync()
    objects.delete([keys.LATEST_CUT])
    assert another(store, clock).tables.sync().cut == 2
    objects.put(keys.LATEST_CUT, b"garbage")
    assert another(store, clock).tables.sync().cut == 2


def test_a_lost_hint_to_a_version_is_written_again(store: Store, objects: EngineObjects, clock: ManualClock) -> None:
    store.tables.sync()
    objects.delete([keys.table_hint("t"), keys.table_version("t", 2)])
    assert not store.tables.check().ok
    another(store, clock).tables.sync()
    assert store.tables.check().ok


@pytest.mark.parametrize("part", [0, 1])
@pytest.mark.parametrize("from_end", [20, 200])
def test_nothing_is_taken_over_from_a_manifest_with_a_flipped_bit(
    store: Store, objects: EngineObjects, clock: ManualClock, part: int, from_end: int
) -> None:
    """Avro has no checksum: a publisher would take over other numbers, for good."""
    paths = [name for name in _paths_of(store, 1) if name.endswith(".avro")]
    assert len(paths) == 2
    commit(store, [b"more"])
    path = sorted(paths)[part]
    data = objects.get(path)
    place = len(data) - from_end
    objects.put(path, data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :])
    problems = [each.message for each in store.tables.check().problems]
    assert any(path in message for message in problems)
    assert [change.topic for change in another(store, clock).tables.sync().changes if change.rebuilt] == ["t"]
    _check_readable(store)


# Vacuum ---------------------------------------------------------------------------------------------------------------


def test_a_vacuum_keeps_what_an_engine_may_have_loaded(
    store: Store, clock: ManualClock, objects: EngineObjects
) -> None:
    state, rows = _replaced(store)
    clock.advance(30 * HOUR_MS)
    store.vacuum()  # Publishes: an engine may have loaded the table just before.
    assert newest(store).number == 3
    assert rows_of(store, "v", state.files) == rows
    clock.advance(23 * HOUR_MS)
    store.vacuum()
    assert rows_of(store, "v", state.files) == rows


def test_a_vacuum_deletes_what_no_cut_of_the_grace_period_names(
    store: Store, clock: ManualClock, objects: EngineObjects
) -> None:
    for number in range(5):
        commit(store, [b"%d" % number])
        store.tables.sync()
        clock.advance(HOUR_MS)
    store.compact()
    store.tables.sync()
    before = {item.key for item in objects.list("")}
    assert store.vacuum().tables == ""
    assert {item.key for item in objects.list(keys.TABLES)} >= {key for key in before if key.startswith(keys.TABLES)}
    clock.advance(40 * HOUR_MS)
    store.vacuum()  # Publishes, which ends the old snapshots.
    clock.advance(40 * HOUR_MS)
    store.vacuum()
    _check_readable(store)
    assert store.tables.check(deep=True).ok
    left = {item.key for item in objects.list(keys.TABLES)}
    cuts = {key for key in left if keys.cut_number(key) is not None}
    assert keys.cut(1) in cuts  # Its number is taken, for a publisher that has slept since.
    assert left - cuts - {keys.LATEST_CUT} == {name for name in _all_names(store) if name.startswith(keys.TABLES)}
    clock.advance(10 * 24 * HOUR_MS)
    store.vacuum()
    remaining = {item.key for item in objects.list(keys.CUTS)}
    assert remaining & cuts == {keys.cut(newest(store).number)}


def test_a_vacuum_keeps_the_files_of_retained_snapshots(
    store: Store, clock: ManualClock, objects: EngineObjects
) -> None:
    """Copies and segments: engines read the table as of them, whatever the grace period is."""
    names = _paths_of(store, 1)
    assert any(name.startswith(keys.TOPICS) for name in names)
    store.compact(target_bytes=10_000_000)
    store.tables.sync()
    clock.advance(4 * HOUR_MS)
    another(store, clock).vacuum(0)
    assert names <= {item.key for item in objects.list("")}
    clock.advance(12 * HOUR_MS)
    another(store, clock).vacuum(0)
    clock.advance(4 * HOUR_MS)
    another(store, clock).vacuum(0)
    assert not names <= {item.key for item in objects.list("")}


def test_segments_of_an_unpublished_compaction_are_kept_with_no_tables(store: Store, clock: ManualClock) -> None:
    """A vacuum that does not publish keeps all that the newest cut names, however old."""
    state, rows = _replaced(store)
    for _ in range(3):
        clock.advance(100 * HOUR_MS)
        store.vacuum(tables=False)
    assert rows_of(store, "v", state.files) == rows
    store.tables.sync()
    for _ in range(2):
        clock.advance(100 * HOUR_MS)
        store.vacuum()
    keys_of = {item.key for item in connection_of(store).objects.list(keys.TOPICS)}
    assert not {path.removeprefix("s3://bucket/store/") for path in state.files.data} & keys_of


def _replaced(store: Store) -> tuple[TableState, list[Row]]:
    """A table of a segment that a compaction has replaced since, with its rows."""
    store.create_topic("v", config={"table.format": "iceberg"})
    for number in range(3):
        commit(store, [b"%d" % number], "v")
    store.compact("v")
    store.tables.sync()
    state, rows = state_of(store, "v"), table_rows(store, "v")
    commit(store, [b"more"], "v")
    store.compact("v")
    (path,) = state.files.data
    assert path.removeprefix("s3://bucket/store/") in connection_of(store).view().removals
    return state, rows


def test_a_vacuum_that_cannot_publish_says_so(store: Store, clock: ManualClock, objects: EngineObjects) -> None:
    objects.delete([newest(store).tables["t"].metadata])
    clock.advance(100 * HOUR_MS)
    report = another(store, clock).vacuum()
    assert "are kept" in report.tables


def test_a_hint_that_a_slow_publisher_sets_back_is_mended(
    store: Store, clock: ManualClock, objects: EngineObjects
) -> None:
    """Also if the table has not changed since, by a publisher that has seen it right."""
    store.tables.sync()
    commit(store, [b"only u"], "u")
    store.tables.sync()
    objects.put(keys.table_hint("t"), b"1")
    another(store, clock).tables.sync()
    assert objects.get(keys.table_hint("t")) == b"2"
    objects.put(keys.table_hint("t"), b"1")
    clock.advance(2 * HOUR_MS)
    store.tables.sync()
    assert objects.get(keys.table_hint("t")) == b"2"
    assert store.tables.check().ok


def test_a_cut_and_its_entries_last_before_readers_see_them(store: Store, clock: ManualClock) -> None:
    """On a folder, another process may have written them, and not have lived to flush them."""
    synced: list[str] = []

    class Folder(FaultStore):
        def sync(self, names: Sequence[str]) -> None:
            synced.extend(names)

    inner = connection_of(store).counts.inner
    folder = Folder(inner)
    publisher = another(store, clock, folder)
    publisher.tables.sync()
    view = connection_of(publisher).view()
    assert synced == [keys.cut(1), connection_of(store).keys.entry(0, view.sequence)]
    synced.clear()
    another(store, clock, folder).tables.sync()
    assert synced == [keys.cut(2)]


@pytest.mark.slow
def test_a_vacuum_keeps_the_version_that_a_hint_named_until_now(
    store: Store, clock: ManualClock, objects: EngineObjects
) -> None:
    """A publisher died between a cut and the copies of its versions: engines have loaded the one before."""
    faulty = FaultStore(objects)
    faulty.plan = on(Fault.CRASH_BEFORE, "put_if_absent", key_contains=keys.table_version("t", 2))
    with pytest.raises(SimulatedCrash):
        another(store, clock, faulty).tables.sync()
    clock.advance(100 * HOUR_MS)
    loaded = int(objects.get(keys.table_hint("t")))
    names = {keys.table_version("t", loaded), *_paths_of(store, 1)}
    for _ in range(2):
        another(store, clock).vacuum()
        assert names <= {item.key for item in objects.list("")}
        clock.advance(HOUR_MS)
    clock.advance(100 * HOUR_MS)
    another(store, clock).vacuum()
    assert not names <= {item.key for item in objects.list("")}


@pytest.mark.parametrize(("is_dropped", "numbers"), [(True, {2}), (False, {1, 2})])
def test_a_hint_that_is_deleted_after_it_was_read_is_a_missing_hint(
    clock: ManualClock, is_dropped: bool, numbers: set[int]
) -> None:
    """Another vacuum deletes a dropped table; without the hint to a live one, engines may have the cut before."""
    objects = _WithDeletedHint(clock)
    store = _new(clock, objects)
    if is_dropped:
        store.tables.disable("t")
    store.tables.sync()
    clock.advance(2 * HOUR_MS)
    in_use = tables_in_use(connection_of(store), published(store), clock(), HOUR_MS)
    assert in_use.numbers == numbers


class _WithDeletedHint(EngineObjects):
    """Objects of which another process deletes a hint as soon as its time is asked for."""

    def stat(self, key: str) -> ObjectInfo:
        if key == keys.table_hint("t"):
            self.delete([key])
        return super().stat(key)


def _paths_of(store: Store, number: int) -> set[str]:
    cut = published(store).cut(number)
    assert cut is not None
    paths = published(store).all_locations(cut.tables["t"])
    return {path.removeprefix("s3://bucket/store/") for path in paths}
