"""A publication shows in each table what a scan of committed records sees at the same cut."""

from __future__ import annotations

import pyarrow as pa
import pytest

from tests.helpers.compaction import DAY_MS, HOUR_MS, abort, commit, new_store
from tests.helpers.connections import connection_of
from tests.helpers.merging import merge_now
from tests.helpers.shell import ONE_CHAIN
from tests.helpers.tables import EngineObjects, another, newest, published, rows_of, scanned, state_of, table_rows
from txnstore.catalog.iceberg.files import DataFile, TableFiles
from txnstore.catalog.iceberg.location import location_of
from txnstore.catalog.iceberg.manifest import Status
from txnstore.chain import keys
from txnstore.core.model import TopicPartition
from txnstore.errors import (
    CorruptionError,
    InvalidConfigError,
    SnapshotExpiredError,
    UnknownTopicOrPartitionError,
)
from txnstore.store import Store, create_on
from txnstore.tables import version
from txnstore.tables.published import HINT_EVERY
from txnstore.testing import ManualClock


@pytest.fixture
def objects(clock: ManualClock) -> EngineObjects:
    return EngineObjects(clock)


@pytest.fixture
def store(clock: ManualClock, objects: EngineObjects, chains: int) -> Store:
    store = new_store(clock, objects, chains=chains)
    store.create_topic("t", partitions=2)
    store.tables.enable("t")
    return store


def _operations(store: Store, topic: str = "t") -> list[str]:
    return [snapshot.summary["operation"] for snapshot in state_of(store, topic).metadata.snapshots]


def _sync(store: Store, topic: str = "t") -> tuple[str, ...]:
    """Publish, and compare; returns the kinds of new snapshots."""
    report = store.tables.sync()
    assert table_rows(store, topic) == scanned(store, topic, newest(store))
    checked = store.tables.check(deep=True)
    assert (checked.problems, checked.skipped) == ((), "")
    assert newest(store).tables[topic].bytes == state_of(store, topic).files.size
    return next((change.operations for change in report.changes if change.topic == topic), ())


def test_a_table_without_rows_can_be_read(store: Store) -> None:
    assert _sync(store) == ()
    assert table_rows(store, "t") == []
    assert state_of(store, "t").metadata.current is None


def test_committed_rows_are_shown_and_aborted_or_open_ones_are_not(store: Store) -> None:
    commit(store, [b"a", b"b"])
    abort(store, [b"never"])
    with store.producer("open") as producer:
        producer.begin_transaction()
        producer.send("t", value=b"later", partition=1)
        producer.flush()
        commit(store, [b"behind it"], partition=1)
        assert _sync(store) == ("append",)
        assert [row[2][1] for row in table_rows(store, "t")] == [b"a", b"b"]
        producer.commit_transaction()
    assert _sync(store) == ("append",)
    assert [row[2][1] for row in table_rows(store, "t")] == [b"a", b"b", b"later", b"behind it"]


def test_an_expired_transaction_does_not_hold_a_table_back(store: Store, clock: ManualClock) -> None:
    producer = store.producer("lost", transaction_timeout=10)
    producer.begin_transaction()
    producer.send("t", value=b"never", partition=0)
    producer.flush()
    commit(store, [b"behind it"])
    clock.advance(HOUR_MS)
    _sync(store)
    assert [row[2][1] for row in table_rows(store, "t")] == [b"behind it"]


def test_a_compaction_replaces_the_copies(store: Store) -> None:
    for number in range(5):
        commit(store, [b"%d" % number], partition=number % 2)
        assert _sync(store) == ("append",)
    store.compact()
    assert _sync(store) == ("replace",)
    details = store.tables.show("t")
    assert (details.rows, details.files, details.copied_files) == (5, 2, 0)


def test_rows_that_a_compaction_wrote_before_they_were_shown_are_appended_first(store: Store) -> None:
    commit(store, [b"shown"])
    _sync(store)
    commit(store, [b"new"])
    store.compact()
    assert _sync(store) == ("append", "replace")
    commit(store, [b"alone"], partition=1)
    commit(store, [b"too"], partition=1)
    store.compact()
    assert _sync(store) == ("append",)
    assert store.tables.show("t").copied_files == 0


@pytest.mark.parametrize("size", [1, 70_000, 300_000])
def test_a_compaction_makes_each_segment_of_a_table_one_that_it_can_use(store: Store, size: int) -> None:
    """Also a single one: in an entry, in an object with others, and in an object of its own without offsets."""
    with store.producer("writer") as producer, producer.transaction():
        producer.send("t", value=b"a" * size, partition=0)
        producer.send("t", value=b"b" * size, partition=1)
    _sync(store)
    assert store.tables.show("t").copied_files == 2
    store.compact()
    assert _sync(store) == ("replace",)
    assert store.tables.show("t").copied_files == 0
    assert store.compact(dry_run=True).partitions == ()


@ONE_CHAIN
@pytest.mark.parametrize("log_start", [0, 1])
def test_offsets_of_aborted_records_that_a_merge_joins_to_shown_ones_change_nothing(
    store: Store, log_start: int
) -> None:
    """They are in a segment of two partitions, which tables do not use where it is."""
    for number in range(3):
        commit(store, [b"%d" % number], partition=0)
        commit(store, [b"%d" % number], partition=1)
    if log_start:
        store.delete_records({TopicPartition("t", 0): log_start})
    _sync(store)
    abort(store, [b"never", b"never"], partition=0)
    cut = newest(store).number
    merge_now(store)
    batches = connection_of(store).view().partitions[TopicPartition("t", 0)].batches
    assert [(batch.records, batch.limit > 6) for batch in batches][-1][1]
    for _ in range(2):
        assert _sync(store) == ()
        assert newest(store).number == cut
    commit(store, [b"new"], partition=0)
    merge_now(store)
    assert _sync(store) == ("append",)


@ONE_CHAIN
def test_a_log_start_among_offsets_of_aborted_records_deletes_no_row(store: Store) -> None:
    """A compaction has joined them to a segment; no row goes, so the table is right."""
    with store.producer("w") as producer:
        producer.begin_transaction()
        for _ in range(2):
            producer.send("t", b"never", partition=0)
        producer.flush()
        producer.abort_transaction()
    for value in (b"c", b"d"):
        commit(store, [value], partition=0)
    store.compact(force=True)
    _sync(store)
    store.delete_records({TopicPartition("t", 0): 2})
    store.create_topic("u", config={"table.format": "iceberg"})
    commit(store, [b"x"], topic="u")
    assert _sync(store) == ()
    assert _sync(store, "u") == ()
    store.delete_records(
        {TopicPartition("t", 0): 4}
    )  # A row goes: until it is published, the table is that of its cut.
    assert _sync(store) == ("delete",)


def test_delete_records_in_the_middle_of_a_segment_deletes_positions(store: Store) -> None:
    for number in range(4):
        commit(store, [b"%d" % number, b"x"])
    store.compact()
    _sync(store)
    store.delete_records({TopicPartition("t", 0): 4})
    assert _sync(store) == ("delete",)
    assert store.tables.show("t").deleted_rows > 0
    store.delete_records({TopicPartition("t", 0): 7})
    assert _sync(store) == ("delete",)
    assert len(state_of(store, "t").files.deletes) == 1
    store.delete_records({TopicPartition("t", 0): -1})
    assert _sync(store) == ("delete",)
    assert state_of(store, "t").files.data == {}
    assert state_of(store, "t").files.deletes == {}


def test_delete_records_in_the_middle_of_a_copy_writes_the_rest_again(store: Store) -> None:
    commit(store, [b"a", b"b", b"c"])
    _sync(store)
    store.delete_records({TopicPartition("t", 0): 2})
    assert _sync(store) == ("overwrite",)
    assert [row[2][1] for row in table_rows(store, "t")] == [b"c"]


def test_a_clean_overwrites(store: Store, clock: ManualClock) -> None:
    store.create_topic("keyed", config={"cleanup.policy": "compact", "table.format": "iceberg"})
    for number in range(3):
        with store.producer("writer") as producer, producer.transaction():
            producer.send("keyed", key=b"k", value=b"%d" % number)
            producer.send("keyed", key=b"only %d" % number, value=b"x")
    assert _sync(store, "keyed") == ("append",)
    clock.advance(1)
    store.compact(force=True)
    assert _sync(store, "keyed") == ("overwrite",)
    assert [row[2][:2] for row in table_rows(store, "keyed")] == [
        (b"only 0", b"x"),
        (b"only 1", b"x"),
        (b"k", b"2"),
        (b"only 2", b"x"),
    ]


@pytest.mark.slow
def test_small_commits_that_are_merged_are_not_copied_again(store: Store) -> None:
    for number in range(300):
        commit(store, [b"%d" % number], partition=number % 2)
        if number % 100 == 7:
            _sync(store)
    assert set(_sync(store)) <= {"append", "replace"}
    version = newest(store).tables["t"].number
    assert _sync(store) == ()
    assert newest(store).tables["t"].number == version


def test_columns_that_a_topic_gains_keep_the_ids_of_the_others(store: Store) -> None:
    schema = pa.schema([("id", pa.int32()), ("tags", pa.map_(pa.string(), pa.list_(pa.int8())))])
    store.create_topic("typed", schema=schema, config={"table.format": "iceberg"})
    with store.producer("writer") as producer, producer.transaction():
        producer.send_table("typed", [{"id": 1, "tags": [("a", [1])]}])
    _sync(store, "typed")
    before = state_of(store, "typed").metadata.columns
    inner = pa.struct([("x", pa.float32()), ("y", pa.date32())])
    wider = pa.schema([("extra", inner), ("tags", schema.field("tags").type), ("id", pa.int64())])
    store.alter_topic("typed", schema=wider)
    assert _sync(store, "typed") == ()
    after = state_of(store, "typed").metadata
    ids = dict(after.columns.ids())
    assert dict(before.ids()).items() <= ids.items()
    assert len(ids) == len(dict(before.ids())) + 3
    assert after.schema_id == 1
    with store.producer("writer") as producer, producer.transaction():
        producer.send_table("typed", [{"id": 2**40, "tags": None, "extra": {"x": 0.5, "y": None}}])
    assert _sync(store, "typed") == ("append",)
    store.compact()
    assert _sync(store, "typed") == ("replace",)


def test_a_topic_gains_partitions(store: Store) -> None:
    commit(store, [b"a"])
    _sync(store)
    store.alter_topic("t", partitions=3)
    commit(store, [b"b"], partition=2)
    assert _sync(store) == ("append",)


def test_a_topic_that_is_created_again_has_another_table(store: Store) -> None:
    commit(store, [b"a"])
    _sync(store)
    first = state_of(store, "t").metadata
    store.delete_topic("t")
    store.create_topic("t", config={"table.format": "iceberg"})
    commit(store, [b"b"])
    assert _sync(store) == ("append",)
    second = state_of(store, "t").metadata
    assert second.uuid != first.uuid
    assert len(second.snapshots) == 1
    assert newest(store).tables["t"].number == 2


def test_the_table_of_a_deleted_topic_ends_without_rows(store: Store) -> None:
    commit(store, [b"a"])
    _sync(store)
    store.delete_topic("t")
    report = store.tables.sync()
    assert (report.tables, [change.rows for change in report.changes]) == (0, [0])
    table = newest(store).tables["t"]
    assert table.dropped
    assert connection_of(store).objects.get(keys.table_version("t", table.number)) == connection_of(store).objects.get(
        table.metadata
    )
    assert store.tables.list() == []
    assert store.tables.sync().changes == ()


def test_a_dropped_table_leaves_the_cut_when_its_objects_are_deleted(
    store: Store, objects: EngineObjects, clock: ManualClock
) -> None:
    """Engines that have loaded it before read it for the grace period."""
    commit(store, [b"a"])
    _sync(store)
    shown = newest(store).tables["t"]
    files = published(store).table_state(shown).files
    store.delete_topic("t")
    store.tables.sync()
    store.create_topic("u", config={"table.format": "iceberg"})
    for day in range(5):
        clock.advance(DAY_MS // 2)
        store.vacuum(expire=False)
        if day == 0:  # The grace period.
            published(store).table_state(shown)
            assert all(objects.stat(location_of(objects).key(path)) for path in files.data)
        store.tables.sync()
        assert store.tables.check(deep=True).ok
    assert newest(store).tables.keys() == {"u"}
    assert [item.key for item in objects.list(keys.table("t"))] == []
    store.create_topic("t", partitions=2, config={"table.format": "iceberg"})
    commit(store, [b"b"])
    assert _sync(store) == ("append",)
    assert another(store, clock).tables.check(deep=True).ok


def test_a_table_is_disabled_and_enabled_again(store: Store) -> None:
    commit(store, [b"a"])
    _sync(store)
    store.tables.disable("t")
    store.tables.sync()
    assert state_of(store, "t").files.data == {}
    store.tables.enable("t")
    assert _sync(store) == ("append",)
    assert newest(store).tables["t"].number == 3


@pytest.mark.parametrize("part", ["metadata", "list", "manifest"])
@pytest.mark.parametrize("damage", ["lost", "altered"])
def test_a_damaged_table_is_rebuilt(store: Store, clock: ManualClock, part: str, damage: str) -> None:
    commit(store, [b"a"])
    _sync(store)
    state, objects = state_of(store, "t"), connection_of(store).objects
    current, manifest = state.metadata.current, state.groups[0].manifest
    assert current is not None
    assert manifest is not None
    location = location_of(objects)
    key = {
        "metadata": state.key,
        "list": location.key(current.manifest_list),
        "manifest": location.key(manifest.path),
    }[part]
    if damage == "lost":
        objects.delete([key])
    else:
        objects.put(key, objects.get(key)[:-20])
    commit(store, [b"b"])
    objects.delete([keys.table_hint("t")])
    fresh = another(store, clock)
    assert any("`txnstore table sync` rebuilds the table" in each.message for each in fresh.tables.check().problems)
    (change,) = fresh.tables.sync().changes
    assert (change.rebuilt, change.operations, change.rows) == (True, ("append",), 2)
    assert fresh.tables.check(deep=True).ok


def test_a_table_that_has_lost_a_file_is_rebuilt_on_demand(store: Store) -> None:
    commit(store, [b"a"])
    _sync(store)
    (file,) = state_of(store, "t").files.data.values()
    objects = connection_of(store).objects
    objects.delete([location_of(objects).key(file.path)])
    (problem,) = store.tables.check().problems
    assert "is missing. `txnstore table sync --rebuild t` rebuilds the table" in problem.message
    assert store.tables.sync().changes == ()
    (change,) = store.tables.sync(rebuild=["t"]).changes
    assert (change.rebuilt, change.rows) == (True, 1)
    assert store.tables.check(deep=True).ok
    with pytest.raises(UnknownTopicOrPartitionError, match="there is no topic 'nope'"):
        store.tables.sync(rebuild=["nope"])


@ONE_CHAIN
@pytest.mark.parametrize("deleted", [0, 1])
def test_a_deep_check_reads_what_was_merged_after_the_cut(store: Store, clock: ManualClock, deleted: int) -> None:
    """A vacuum has deleted the small commits that the cut shows, and the table has not changed since."""
    for number in range(4):
        commit(store, [b"%d" % number], partition=number % 2)
    _sync(store)
    merge_now(store)
    if deleted:
        store.delete_records({TopicPartition("t", 0): 1})
    clock.advance(30 * HOUR_MS)
    store.vacuum(tables=False)
    fresh = another(store, clock)
    with pytest.raises(SnapshotExpiredError, match="was deleted by a vacuum"):
        scanned(fresh, "t", newest(fresh))
    report = fresh.tables.check(deep=True)
    assert report.problems == ()
    assert ("a vacuum has deleted rows of t-0" in report.skipped) is bool(deleted)


def test_an_altered_copy_is_found_by_a_deep_check(store: Store) -> None:
    commit(store, [b"a"])
    commit(store, [b"b"], partition=1)
    _sync(store)
    first, second = (file.path for file in state_of(store, "t").files.data.values())
    objects = connection_of(store).objects
    keys_of = location_of(objects).key
    objects.put(keys_of(first), objects.get(keys_of(second)))
    assert store.tables.check().ok
    assert "does not have the rows of its offsets" in store.tables.check(deep=True).problems[0].message


def test_all_tables_change_at_the_same_cut(store: Store) -> None:
    store.create_topic("u", config={"table.format": "iceberg"})
    for number in range(3):
        with store.producer("both") as producer, producer.transaction():
            producer.send("t", value=b"%d" % number)
            producer.send("u", value=b"%d" % number)
        store.tables.sync()
        cut = newest(store)
        assert len(table_rows(store, "t")) == len(table_rows(store, "u")) == number + 1
        assert cut.tables["t"].snapshot_id == cut.tables["u"].snapshot_id == sum(cut.heads)


def test_each_appended_row_is_appended_once(store: Store) -> None:
    """Readers of the increments see each row once, whatever compactions and retention do."""
    for number in range(12):
        commit(store, [b"%d" % number, b"more"], partition=number % 2)
        if number % 3 == 1:
            store.compact()
        if number % 4 == 3:
            store.delete_records({TopicPartition("t", 1): max(0, number // 2 - 1)})
        if number % 2:
            _sync(store)
    everything = store.scan("t", isolation="read_uncommitted").to_table().num_rows
    _sync(store)
    metadata = state_of(store, "t").metadata
    seen: list[tuple[int, int]] = []
    for snapshot in metadata.snapshots:
        if snapshot.summary["operation"] != "append":
            continue
        groups = published(store).groups(snapshot)
        added = {
            entry.file.path: entry.file
            for group in groups
            for entry in group.entries
            if entry.status is Status.ADDED
            and entry.snapshot_id == snapshot.snapshot_id
            and isinstance(entry.file, DataFile)
        }
        seen += [row[:2] for row in rows_of(store, "t", TableFiles(added, {}))]
    assert len(seen) == len(set(seen))
    assert len(seen) >= everything
    assert {row[:2] for row in table_rows(store, "t")} <= set(seen)


def test_a_reader_that_follows_a_quiet_table_finds_its_place(store: Store, clock: ManualClock) -> None:
    """A publication keeps the snapshot that was the current one before it, however old, for 12 hours."""
    commit(store, [b"a"])
    _sync(store)
    place = state_of(store, "t").metadata.current
    assert place is not None
    clock.advance(13 * HOUR_MS)
    commit(store, [b"b"])
    clock.advance(13 * HOUR_MS)  # No publisher has run meanwhile.
    _sync(store)
    assert place in state_of(store, "t").metadata.snapshots
    clock.advance(12 * HOUR_MS)
    assert store.tables.sync().changes == ()
    clock.advance(1)
    assert [change.operations for change in store.tables.sync().changes] == [()]
    assert [each.parent for each in state_of(store, "t").metadata.snapshots] == [place.snapshot_id]


# Costs ----------------------------------------------------------------------------------------------------------------


@ONE_CHAIN
def test_what_has_not_changed_costs_no_write_and_no_list(store: Store) -> None:
    commit(store, [b"a"])
    store.tables.sync()
    counts = connection_of(store).counts
    before = counts.snapshot()
    assert store.tables.sync().changes == ()
    spent = counts.snapshot() - before
    assert (spent.puts, spent.list, spent.delete) == (0, 0, 0)
    assert spent.get <= 4, "the newest cut, that it is there, and is the newest, and the heads of the chain"


@ONE_CHAIN
def test_a_changed_table_costs_five_puts_a_copy_and_one_for_the_cut(store: Store) -> None:
    commit(store, [b"a"], partition=0)
    store.tables.sync()
    commit(store, [b"b"], partition=0)
    commit(store, [b"b"], partition=1)
    counts = connection_of(store).counts
    before = counts.snapshot()
    store.tables.sync()
    spent = counts.snapshot() - before
    assert (spent.puts, spent.list) == (5 + 2 + 1, 0)


@ONE_CHAIN
def test_another_publisher_finds_the_newest_cut_without_a_list(store: Store, clock: ManualClock) -> None:
    for number in range(HINT_EVERY + 3):
        commit(store, [b"%d" % number])
        store.tables.sync()
    other = another(store, clock)
    counts = connection_of(other).counts
    before = counts.snapshot()
    assert other.tables.sync().cut == HINT_EVERY + 3
    spent = counts.snapshot() - before
    assert (spent.puts, spent.list) == (0, 0)


@pytest.mark.slow
def test_many_snapshots_are_removed_and_their_manifests_joined(
    store: Store, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(version, "HISTORY_SNAPSHOTS", 100)
    for number in range(110):
        commit(store, [b"%d" % number])
        clock.advance(1000)
        store.tables.sync()
    state = state_of(store, "t")
    assert len(state.metadata.snapshots) == 100
    assert len(state.groups) < 40
    assert table_rows(store, "t") == scanned(store, "t")
    clock.advance(13 * HOUR_MS)
    assert [change.operations for change in store.tables.sync().changes] == [()]
    assert len(state_of(store, "t").metadata.snapshots) == 1
    assert store.tables.sync().changes == ()


# Refusals -------------------------------------------------------------------------------------------------------------


def test_more_than_the_limit_is_not_copied(store: Store) -> None:
    commit(store, [b"a" * 5000])
    with pytest.raises(InvalidConfigError, match=r"must be copied.*`txnstore compact`"):
        store.tables.sync(tail_bytes=100)
    assert store.tables.list()[0].published is False
    _sync(store)


@pytest.mark.parametrize("name", ["_file", "_POS", "_row_id"])
def test_reserved_columns_are_refused(store: Store, name: str) -> None:
    store.create_topic("u", schema=pa.schema([(name, pa.int32())]))
    with pytest.raises(InvalidConfigError, match=f"Iceberg reserves the name of its column '{name}'"):
        store.tables.enable("u")
    with pytest.raises(InvalidConfigError, match=r"Iceberg reserves"):
        store.create_topic("v", schema=pa.schema([(name, pa.int32())]), config={"table.format": "iceberg"})
    store.create_topic("w", schema=pa.schema([("a", pa.int32())]), config={"table.format": "iceberg"})
    with pytest.raises(InvalidConfigError, match=r"Iceberg reserves"):
        store.alter_topic("w", schema=pa.schema([("a", pa.int32()), (name, pa.int32())]))


def test_arrow_segments_are_refused(store: Store) -> None:
    store.create_topic("u", config={"segment.format": "arrow"})
    with pytest.raises(InvalidConfigError, match=r"needs segment.format=parquet"):
        store.tables.enable("u")


def test_a_store_in_memory_has_no_tables(clock: ManualClock) -> None:
    store = new_store(clock)
    store.create_topic("t")
    with pytest.raises(InvalidConfigError, match="cannot have tables: other processes cannot read"):
        store.tables.enable("t")


def test_cuts_of_another_store_are_refused(clock: ManualClock, objects: EngineObjects) -> None:
    first = create_on(objects)
    first.create_topic("t", config={"table.format": "iceberg"})
    first.tables.sync()
    objects.delete([item.key for item in objects.list("") if not item.key.startswith(keys.TABLES)])
    second = create_on(objects)
    second.create_topic("t", config={"table.format": "iceberg"})
    with pytest.raises(CorruptionError, match=r"of another store.*Delete all objects below tables/"):
        second.tables.sync()
