"""An erasure removes the records of a key, or of a predicate, from every reader and every object; all others stay."""

from __future__ import annotations

import threading
from contextlib import suppress

import pyarrow as pa
import pytest

from tests.helpers.compaction import (
    T0,
    HookStore,
    abort,
    begin,
    lose_leases,
    new_store,
    reopen,
    rows,
    runtime,
)
from tests.helpers.connections import connection_of
from tests.helpers.merging import merge_now
from tests.helpers.shell import ONE_CHAIN
from tests.helpers.tables import EngineObjects, newest, scanned, state_of, table_rows
from txnstore.chain import keys
from txnstore.compactor.compact.lease import CompactionLease
from txnstore.core.authorization.model import CLUSTER, Acl
from txnstore.core.model import TopicPartition
from txnstore.core.transactions.model import TxnState
from txnstore.errors import (
    ClusterAuthorizationError,
    CompactionConflictError,
    InvalidConfigError,
    ReadOnlyError,
    SnapshotExpiredError,
    TopicAuthorizationError,
    UndecidedRecordsError,
    UnknownTopicOrPartitionError,
)
from txnstore.store import Store, open_on
from txnstore.testing import FaultStore, ManualClock, SimulatedCrash, crash_at, no_faults

SECRET = b"ann@example.org"
#: Larger than what an entry contains.
LARGE = 70_000


@pytest.fixture
def store(clock: ManualClock, chains: int) -> Store:
    store = new_store(clock, chains=chains)
    store.create_topic("t", partitions=2)
    return store


def put(store: Store, *keys: bytes, topic: str = "t", size: int = 1) -> None:
    """One committed transaction with these keys."""
    with store.producer("w") as producer, producer.transaction():
        for number, key in enumerate(keys):
            producer.send(topic, b"v" * size, key=key, partition=number % 2, timestamp=1_000)


def places(store: Store, topic: str = "t") -> list[tuple[int, int, bytes]]:
    return sorted((row["_partition"], row["_offset"], row["key"]) for row in rows(store, topic))


def without(before: list[tuple[int, int, bytes]], key: bytes = SECRET) -> list[tuple[int, int, bytes]]:
    return [row for row in before if row[2] != key]


def objects_with(store: Store, needle: bytes = SECRET) -> list[str]:
    """The objects that have bytes, as stored: nothing is compressed in small segments of entries."""
    objects = connection_of(store).objects
    return [item.key for item in objects.list("") if needle in objects.get(item.key)]


@pytest.mark.parametrize("size", [1, LARGE])
@pytest.mark.parametrize("compacted", [False, True])
@pytest.mark.parametrize("merged", [False, True])
def test_records_of_a_key_leave_all_objects(
    store: Store, clock: ManualClock, size: int, compacted: bool, merged: bool
) -> None:
    for number in range(3):
        put(store, b"a%d" % number, SECRET, SECRET, b"b", size=size)
    if merged:
        merge_now(store)
    if compacted:
        store.compact()
        put(store, SECRET, b"c", size=size)
    before = places(store)
    report = store.erase("t", key=SECRET, prove=True)
    assert report.traces == ()
    assert places(store) == places(reopen(store, clock)) == without(before)
    assert report.records == len(before) - len(without(before))
    assert objects_with(store) == []
    assert store.verify(deep=True).ok
    again = store.erase("t", key=SECRET)
    assert (again.records, again.found) == (0, ())


def test_a_predicate_chooses_rows_of_a_typed_topic(store: Store, clock: ManualClock) -> None:
    """Also rows from before a column was added, whose value of it is null."""
    schema = pa.schema([pa.field("id", pa.int64()), pa.field("name", pa.string())])
    store.create_topic("typed", schema=schema, key="name", partitions=2)
    with store.producer() as producer:
        producer.send_table("typed", pa.table({"id": [1, 2, 3], "name": ["ann", "bob", "ann"]}))
    store.alter_topic("typed", schema=schema.append(pa.field("age", pa.int32())))
    with store.producer() as producer:
        producer.send_table("typed", pa.table({"id": [4, 5], "name": ["ann", "bob"], "age": [7, 8]}))
    assert store.erase("typed", where="age = 7 and name = 'ann'", prove=True).records == 1
    assert sorted(row["id"] for row in rows(store, "typed")) == [1, 2, 3, 5]
    assert store.erase("typed", where="ID < 3 -- by any case", prove=True).traces == ()
    assert sorted(row["id"] for row in rows(store, "typed")) == [3, 5]
    assert store.erase("typed", key="ann").records == 1
    assert [row["id"] for row in rows(reopen(store, clock), "typed")] == [5]
    assert store.verify(deep=True).ok


def test_a_predicate_chooses_rows_by_their_places(store: Store) -> None:
    for _ in range(2):
        put(store, b"a", b"b", size=LARGE)
        put(store, b"a", b"b")
    before = places(store)
    assert store.erase("t", where="_partition = 1 and _offset = 2", prove=True).records == 1
    assert places(store) == [row for row in before if row[:2] != (1, 2)]
    merge_now(store)
    store.compact()
    assert store.erase("t", where="_partition = 0 and _offset < 2", prove=True).traces == ()
    assert places(store) == [row for row in before if row[:2] != (1, 2) and not (row[0] == 0 and row[1] < 2)]


def test_what_nothing_names_any_more_goes_too(store: Store, clock: ManualClock) -> None:
    """Replaced segments that wait for a vacuum, aborted records, deleted ones, and an upload of a dead writer."""
    put(store, SECRET, SECRET, size=LARGE)
    put(store, SECRET, b"a")
    with store.producer("aborter") as producer:
        producer.begin_transaction()
        producer.send("t", b"v" * LARGE, key=SECRET, partition=0)
        producer.flush()
        producer.abort_transaction()
    store.compact()
    put(store, SECRET, SECRET, b"b", b"c")
    merge_now(store)
    store.delete_records({T0: 2})
    objects = connection_of(store).objects
    named = [item.key for item in objects.list("topics/t/0/")]
    objects.put("topics/t/0/0123.parquet", objects.get(named[0]))
    before = places(store)
    report = store.erase("t", key=SECRET, prove=True)
    assert report.traces == ()
    assert "topics/t/0/0123.parquet" in [item.key for item in report.found]
    assert places(store) == without(before)
    assert store.verify(deep=True).ok
    assert store.vacuum(older_than=0).deleted is not None
    assert places(reopen(store, clock)) == without(before)


@ONE_CHAIN
def test_rows_of_a_shared_segment_that_no_batch_has_are_found(store: Store) -> None:
    """The segment has rows of two partitions, and those of one of them were deleted."""
    put(store, SECRET, b"a")
    put(store, b"b", b"c")
    merge_now(store)
    (shared,) = (item.key for item in connection_of(store).objects.list("topics/"))
    store.delete_records({T0: -1})
    report = store.erase("t", key=SECRET, prove=True)
    assert (report.records, report.traces) == (0, ())
    assert [item.key for item in report.found] == [
        item.key for item in report.objects if item.key == shared or item.outcome == "emptied"
    ]
    assert [key for *_, key in places(store)] == [b"a", b"c"]
    assert store.verify(deep=True).ok


def test_records_of_others_in_an_entry_are_moved(store: Store, clock: ManualClock) -> None:
    store.create_topic("other", partitions=2)
    with store.producer("w") as producer, producer.transaction():
        producer.send("t", b"v", key=SECRET, partition=0)
        producer.send("other", b"v", key=b"kept", partition=0)
        producer.send("other", b"v", key=SECRET, partition=1)
    report = store.erase("t", key=SECRET)
    assert [(item.tp.topic, item.records) for item in report.partitions] == [("t", 1)]
    assert places(store) == []
    assert places(reopen(store, clock), "other") == [(0, 0, b"kept"), (1, 0, SECRET)]
    assert store.verify(deep=True).ok
    traces = store.erase("t", key=SECRET, prove=True).traces
    assert traces is not None
    assert {trace.where for trace in traces} == {"bytes"}, "the other topic has the key, too, and is not erased"
    assert store.erase("other", key=SECRET, prove=True).traces == ()


@pytest.mark.parametrize("size", [1, LARGE])
def test_a_keyed_topic_keeps_its_checkpoint_and_its_horizons(store: Store, clock: ManualClock, size: int) -> None:
    store.create_topic("keyed", config={"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0"})
    with store.producer("w") as producer, producer.transaction():
        for key, value in ((b"k", b"v" * size), (b"k", None), (SECRET, b"v"), (b"l", b"v")):
            producer.send("keyed", value, key=key)
    store.compact()
    for key in (SECRET, b"m"):
        put(store, key, topic="keyed")
    tp = TopicPartition("keyed", 0)
    before = connection_of(store).view().partitions[tp]
    store.erase("keyed", key=SECRET, prove=True)
    after = connection_of(store).view().partitions[tp]
    assert (after.clean_until, after.last_stable_offset) == (before.clean_until, before.last_stable_offset)
    horizons = [batch.delete_horizon for batch in before.batches if batch.delete_horizon is not None]
    assert [batch.delete_horizon for batch in after.batches if batch.delete_horizon is not None] == horizons
    assert {row["key"] for row in rows(store, "keyed")} == {b"k", b"l", b"m"}
    clock.advance(25 * 3_600_000)
    store.compact(force=True)
    assert {row["key"] for row in rows(store, "keyed")} == {b"l", b"m"}
    assert store.verify(deep=True).ok


def test_an_open_transaction_that_holds_such_records_refuses(store: Store, clock: ManualClock) -> None:
    put(store, b"k0", b"a")
    before = places(store)
    with begin(store, [b"open"]) as producer:
        with pytest.raises(UndecidedRecordsError, match=r"id 'open' in t-0, until 20\d\d-.* at the latest"):
            store.erase("t", key=b"k0")
        with pytest.raises(UndecidedRecordsError):
            store.erase("t", key=b"k0", dry_run=True)
        assert places(store) == before
        assert store.erase("t", key=b"a").records == 1, "what it does not hold"
        producer.commit_transaction()
    assert store.erase("t", key=b"k0", prove=True).records == 2


def test_a_prepared_transaction_has_no_timeout(store: Store, clock: ManualClock) -> None:
    producer = store.producer("two", two_phase_commit=True)
    producer.begin_transaction()
    producer.send("t", b"v", key=SECRET, partition=0)
    producer.prepare_transaction()
    with pytest.raises(UndecidedRecordsError, match="without a timeout"):
        store.erase("t", key=SECRET)
    store.abort_transaction("two")
    assert store.erase("t", key=SECRET, prove=True).traces == ()


def test_an_expired_transaction_is_ended_first(store: Store, clock: ManualClock) -> None:
    producer = store.producer("lost", transaction_timeout=10)
    producer.begin_transaction()
    producer.send("t", b"v" * LARGE, key=SECRET, partition=0)
    producer.flush()
    clock.advance(3_600_000)
    assert store.erase("t", key=SECRET, prove=True).traces == ()
    assert rows(store, isolation="read_uncommitted") == []


def test_a_decided_transaction_is_completed_first(clock: ManualClock) -> None:
    """Its producer has died between the decision and the markers in the other chains."""
    completed = 0
    for number in range(1, 12):
        bucket = EngineObjects(clock)
        new_store(clock, bucket, chains=3).create_topic("t", partitions=2)
        faults = FaultStore(bucket, no_faults)
        producer = open_on(faults, runtime=runtime(clock)).producer("w")
        producer.begin_transaction()
        for partition in range(2):
            producer.send("t", b"v", key=SECRET, partition=partition)
        faults.plan = crash_at(len(faults.requests) + number)
        with suppress(SimulatedCrash):
            producer.commit_transaction()
        survivor = open_on(bucket, runtime=runtime(clock))
        if survivor.transaction("w").state is TxnState.PREPARE_COMMIT:
            completed += 1
            assert survivor.erase("t", key=SECRET, prove=True).traces == ()
            assert survivor.verify(deep=True).ok
    assert completed > 0


def test_committed_records_behind_an_open_transaction_are_erased(store: Store, clock: ManualClock) -> None:
    with begin(store, [b"open"] * 2) as producer:
        put(store, SECRET, b"a", b"b")
        assert store.erase("t", key=SECRET, prove=True).records == 1
        producer.commit_transaction()
    assert [key for *_, key in places(store)] == [b"k0", b"k1", b"b", b"a"]
    assert store.verify(deep=True).ok


def test_an_earlier_snapshot_does_not_show_them(store: Store, clock: ManualClock) -> None:
    put(store, b"a", b"b")
    clock.advance(1)
    first = store.snapshot()
    put(store, SECRET, b"c")
    second = store.snapshot()
    store.erase("t", key=SECRET)
    for reader in (store, reopen(store, clock)):
        assert {row["key"] for row in rows(reader, snapshot=reader.snapshot(first.entry))} == {b"a", b"b"}
        with pytest.raises(SnapshotExpiredError):
            rows(reader, snapshot=reader.snapshot(second.entry))


def test_with_a_grace_period_objects_stay_until_it_ends(store: Store, clock: ManualClock) -> None:
    put(store, SECRET, b"a", size=LARGE)
    put(store, SECRET, b"b")
    snapshot = store.snapshot()
    report = store.erase("t", key=SECRET, grace=3600, prove=True)
    assert (report.records, report.waiting, report.traces) == (2, 2, ())
    assert SECRET not in {row["key"] for row in rows(store)}
    assert SECRET in {row["key"] for row in rows(store, snapshot=snapshot)}
    clock.advance(1_800_000)
    assert store.erase("t", key=SECRET, grace=3600).waiting == 2
    clock.advance(1_900_000)
    put(store, b"c")  # The time of a chain is that of its entries.
    report = store.erase("t", key=SECRET, grace=3600, prove=True)
    assert (report.records, report.waiting, report.traces) == (0, 0, ())
    assert objects_with(store) == []


def test_a_dry_run_changes_nothing(store: Store, clock: ManualClock) -> None:
    put(store, SECRET, b"a", SECRET)
    abort(store, [b"x"])
    before = {item.key: item for item in connection_of(store).objects.list("")}
    report = store.erase("t", key=SECRET, dry_run=True)
    assert (report.records, [item.outcome for item in report.found]) == (2, ["found"])
    assert {item.key: item for item in connection_of(store).objects.list("")} == before
    assert store.erase("t", key=SECRET).records == 2


def test_wrong_input(store: Store, clock: ManualClock) -> None:
    schema = pa.schema([pa.field("id", pa.int64()), pa.field("name", pa.string())])
    store.create_topic("typed", schema=schema, key="id")
    store.create_topic("keyless", schema=schema)
    with pytest.raises(UnknownTopicOrPartitionError):
        store.erase("nope", key=b"k")
    wrong: list[tuple[str, dict[str, object], str]] = [
        ("t", {}, "takes a key, or an expression"),
        ("t", {"key": b"k", "where": "true"}, "and not both"),
        ("t", {"key": 7}, "is no key of topic 't'"),
        ("typed", {"key": "seven"}, "of type int64"),
        ("typed", {"key": True}, "is no key"),
        ("keyless", {"key": 7}, "no key column"),
        ("typed", {"where": 7}, "must be an expression"),
        ("typed", {"where": " "}, "must be an expression"),
        ("typed", {"where": "id ="}, "no expression of SQL"),
        ("typed", {"where": "id = 1; select 1"}, "no expression of SQL"),
        ("typed", {"where": "id = 1) from records, (select 1"}, "no expression of SQL|ends the statement"),
        ("typed", {"where": "id, name"}, "no predicate"),
        ("typed", {"where": "nope = 1"}, "nope"),
        ("typed", {"where": "id"}, "of type BIGINT, not BOOLEAN"),
        ("typed", {"where": "true"}, "names no column"),
        ("typed", {"where": "id in (select 1)"}, "a query"),
        ("typed", {"where": "exists (from read_text('/etc/passwd'))"}, "a query"),
        ("typed", {"where": "sum(id) > 1"}, "aggregates"),
        ("typed", {"where": "row_number() over () > id"}, "a window function"),
        ("typed", {"where": "id > ?"}, "a parameter"),
        ("typed", {"where": "id > random()"}, "random"),
        ("typed", {"where": "_timestamp < now()"}, "now|current_timestamp"),
        ("typed", {"where": "_timestamp < CURRENT_DATE"}, "current_date"),
        ("typed", {"where": "_timestamp < current_timestamp - interval 1 day"}, "current_timestamp"),
        ("typed", {"where": "columns(*) is null"}, "BOOLEAN, BOOLEAN"),
        ("typed", {"where": "id > 1", "grace": -1}, "grace"),
        ("typed", {"where": "id > 1", "dry_run": "no"}, "dry_run"),
    ]
    for topic, arguments, problem in wrong:
        with pytest.raises(InvalidConfigError, match=problem):
            store.erase(topic, **arguments)  # type: ignore[arg-type]


def test_an_expression_that_fails_for_a_record_erases_nothing(store: Store) -> None:
    put(store, *[b"1"] * 5, b"x", b"1", b"1", b"y", b"1", size=LARGE)
    before = places(store)
    for number, place in ((0, "offset 4 of t-0"), (1, "offset 2 of t-1")):
        with pytest.raises(InvalidConfigError, match=rf"for all records \(.*\): the record at {place}\. TRY_CAST, and"):
            store.erase("t", where=f"case when _partition = {number} then decode(key)::int = 1 else false end")
    assert places(store) == before
    store.delete_records({T0: -1, TopicPartition("t", 1): -1})
    with pytest.raises(InvalidConfigError, match=r"a row of topics/t/[01]/.*\.parquet, which no reader of the newest"):
        store.erase("t", where="decode(key)::int = 1")
    assert store.erase("t", where="try_cast(decode(key) as int) = 1", prove=True).traces == ()


def test_a_lease_of_a_compaction_refuses(store: Store, clock: ManualClock) -> None:
    put(store, SECRET)
    other = connection_of(reopen(store, clock))
    with CompactionLease(other.objects, other.keys, other.runtime) as lease:
        lease.take(lambda _: [T0])
        with pytest.raises(CompactionConflictError, match="t-0"):
            store.erase("t", key=SECRET)
    assert store.erase("t", key=SECRET).records == 1


def test_a_merge_beside_it_makes_it_begin_again(clock: ManualClock) -> None:
    bucket = HookStore(clock=clock)
    store = new_store(clock, bucket)
    store.create_topic("t", partitions=2)
    put(store, SECRET, b"a", b"b")
    put(store, b"c", b"d")
    other = reopen(store, clock)

    def merge() -> None:
        lose_leases(bucket)
        merge_now(other)

    bucket.after_put = merge
    report = store.erase("t", key=SECRET, prove=True)
    assert (report.records, report.traces) == (1, ())
    assert [key for *_, key in places(store)] == [b"b", b"c", b"a", b"d"]


def test_a_store_that_is_read_only_refuses(store: Store, clock: ManualClock) -> None:
    put(store, SECRET)
    reader = open_on(connection_of(store).counts.inner, read_only=True, runtime=runtime(clock))
    with pytest.raises(ReadOnlyError):
        reader.erase("t", key=SECRET)
    assert reader.erase("t", key=SECRET, dry_run=True).records == 1


def test_it_needs_the_rights_to_delete_and_to_maintain(store: Store, clock: ManualClock) -> None:
    put(store, SECRET)
    objects = connection_of(store).counts.inner

    def as_principal(name: str) -> Store:
        return open_on(objects, principal=f"User:{name}", runtime=runtime(clock))

    root = as_principal("root")
    root.acls.enable("User:root")
    for acl in (
        Acl("User:operator", "ALLOW", "CLUSTER_ACTION", "CLUSTER", CLUSTER, "LITERAL"),
        Acl("User:owner", "ALLOW", "DELETE", "TOPIC", "t", "LITERAL"),
        Acl("User:both", "ALLOW", "CLUSTER_ACTION", "CLUSTER", CLUSTER, "LITERAL"),
        Acl("User:both", "ALLOW", "DELETE", "TOPIC", "t", "LITERAL"),
    ):
        root.acls.create(acl)
    with pytest.raises(TopicAuthorizationError):
        as_principal("operator").erase("t", key=SECRET)
    with pytest.raises(ClusterAuthorizationError):
        as_principal("owner").erase("t", key=SECRET)
    assert as_principal("both").erase("t", key=SECRET, prove=True).traces == ()


@pytest.mark.slow
@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("table", [False, True], ids=["topic", "table"])
def test_a_crash_at_any_request_and_then_again(clock: ManualClock, *, after: bool, table: bool) -> None:
    """Each step repeats to the same result."""
    original = EngineObjects(clock)
    store = new_store(clock, original)
    store.create_topic("t", partitions=2, config={"table.format": "iceberg"} if table else {})
    put(store, SECRET, b"a", size=LARGE)
    put(store, SECRET, SECRET, b"b")
    store.tables.sync()
    store.compact()
    put(store, SECRET, b"c")
    store.tables.sync()

    def filled() -> EngineObjects:
        copy = EngineObjects(clock)
        for item in original.list(""):
            copy.put(item.key, original.get(item.key))
        return copy

    expected = without(places(open_on(filled(), runtime=runtime(clock))))
    faults = FaultStore(filled(), no_faults)
    whole = open_on(faults, runtime=runtime(clock))
    opening = len(faults.requests)
    whole.erase("t", key=SECRET)
    crashes = 0
    for number in range(1, len(faults.requests) - opening + 1):
        bucket = filled()
        faults = FaultStore(bucket, no_faults)
        victim = open_on(faults, runtime=runtime(clock))
        faults.plan = crash_at(len(faults.requests) + number, after=after)
        with suppress(SimulatedCrash):
            victim.erase("t", key=SECRET)
        crashes += faults.crashed
        survivor = open_on(bucket, runtime=runtime(clock))
        assert without(places(survivor)) == expected
        lose_leases(bucket)
        assert survivor.erase("t", key=SECRET, prove=True).traces == ()
        assert places(survivor) == expected
        assert objects_with(survivor) == []
        assert survivor.verify(deep=True).ok
        if table:
            survivor.tables.sync()
            checked = survivor.tables.check(deep=True)
            assert (checked.problems, checked.skipped) == ((), "")
            assert table_rows(survivor, "t") == scanned(survivor, "t", newest(survivor))
    assert crashes > 15


def test_tables_lose_the_rows_and_their_earlier_snapshots(clock: ManualClock) -> None:
    bucket = EngineObjects(clock)
    store = new_store(clock, bucket)
    store.create_topic("t", partitions=2, config={"table.format": "iceberg"})
    for size in (LARGE, 1):
        put(store, SECRET, b"a", size=size)
        store.tables.sync()
        store.compact()
        store.tables.sync()
    put(store, SECRET)  # A copy, all rows of which are erased.
    store.tables.sync()
    report = store.erase("t", key=SECRET, prove=True)
    assert (report.tables, report.traces) == (True, ())
    assert table_rows(store, "t") == scanned(store, "t", newest(store))
    assert len(state_of(store, "t").metadata.snapshots) == 1
    assert objects_with(store) == []
    assert not store.erase("t", key=SECRET).tables
    put(store, b"new")
    store.tables.sync()
    checked = store.tables.check(deep=True)
    assert (checked.problems, checked.skipped) == ((), "")
    store.tables.disable("t")
    store.tables.sync()
    assert store.erase("t", key=b"a", prove=True).traces == ()


def test_the_proof_finds_words_in_values_at_any_depth(store: Store) -> None:
    """What is compressed is decoded; a longer word is another one."""
    struct = pa.struct([pa.field("b", pa.list_(pa.string()))])
    schema = pa.schema(
        [pa.field("id", pa.int64()), pa.field("a", struct), pa.field("m", pa.map_(pa.string(), pa.binary()))]
    )
    store.create_topic("deep", schema=schema)
    put(store, b"customer-7", b"customer-77", b"other")

    def traces(**columns: object) -> list[str]:
        with store.producer() as producer:
            producer.send_table("deep", pa.Table.from_pylist([{"id": 1, **columns}] * 40_000, schema=schema))
        found = store.erase("t", key=b"customer-7", prove=True).traces
        assert found is not None
        store.erase("deep", where="id = 1")
        return sorted({trace.key.split("/")[1] for trace in found})

    assert traces(a={"b": ["x", "customer-77"]}, m=[("k", b"xcustomer-7")]) == []
    assert traces(a={"b": ["of customer-7."]}, m=[]) == ["deep"]
    assert traces(a=None, m=[("customer-7", b"")]) == ["deep"]
    assert traces(a=None, m=[("k", b"\xff customer-7")]) == ["deep"]


def test_requests(clock: ManualClock) -> None:
    """Of two segments, one with such a record, and nothing else."""
    store = new_store(clock)
    store.create_topic("t")
    for key in (SECRET, b"a"):
        put(store, key, size=LARGE)
    connection = connection_of(store)
    counts = connection.counts.snapshot()
    store.erase("t", key=SECRET)
    spent = connection.counts.snapshot() - counts
    entries = connection.view().states[0].sequence
    assert (spent.put, spent.delete) == (0, 2), "nothing stays of the segment; the object and the lease are deleted"
    assert spent.put_if_absent == 2, "the lease, and the replacement, which drops the object"
    assert spent.get <= 2 * entries + 12


def test_a_consumer_reads_on(store: Store, clock: ManualClock) -> None:
    """It has planned with segments that are deleted meanwhile."""
    for number in range(4):
        put(store, b"a%d" % number, SECRET, size=LARGE)
    with reopen(store, clock).consumer("t") as consumer:
        found = [record.key for record in consumer.poll(max_records=1)]
        store.erase("t", where="_offset > 0 and key = 'ann@example.org'")
        while records := consumer.poll():
            found += [record.key for record in records]
    assert [key for key in found if key != SECRET] == [b"a0", b"a1", b"a2", b"a3"]


def test_a_topic_that_is_altered_or_created_again_meanwhile(clock: ManualClock) -> None:
    schema = pa.schema([pa.field("id", pa.int64()), pa.field("name", pa.string())])
    bucket = HookStore(clock=clock)
    store = new_store(clock, bucket)
    store.create_topic("typed", schema=schema)
    with store.producer() as producer:
        producer.send_table("typed", pa.table({"id": [1, 2], "name": ["ann", "bob"]}))
    other = reopen(store, clock)

    def alter() -> None:
        other.alter_topic("typed", schema=schema.append(pa.field("age", pa.int32())))
        with other.producer() as producer:
            producer.send_table("typed", pa.table({"id": [3, 4], "name": ["ann", "bob"], "age": [7, 8]}))

    bucket.after_put = alter
    assert store.erase("typed", where="name = 'ann'", prove=True).records == 2
    assert [row["id"] for row in rows(store, "typed")] == [2, 4]

    def recreate() -> None:
        other.delete_topic("typed")
        other.create_topic("typed", schema=schema)

    bucket.after_put = recreate
    with pytest.raises(UnknownTopicOrPartitionError, match="created again"):
        store.erase("typed", where="id = 2")


def test_a_dry_run_takes_an_expired_transaction_for_ended(store: Store, clock: ManualClock) -> None:
    """The question of the command line is asked after a dry run."""
    put(store, b"a", SECRET)
    producer = store.producer("lost", transaction_timeout=10)
    producer.begin_transaction()
    producer.send("t", b"v" * LARGE, key=SECRET, partition=0)
    producer.flush()
    clock.advance(3_600_000)
    put(store, b"b")  # The time of a chain is that of its entries.
    assert store.erase("t", key=SECRET, dry_run=True).records == store.erase("t", key=SECRET).records == 1


def test_the_error_says_what_was_erased_before_a_transaction_began(clock: ManualClock) -> None:
    bucket = HookStore(clock=clock)
    store = new_store(clock, bucket)
    store.create_topic("t")
    with store.producer("w") as producer, producer.transaction():
        for key in (SECRET, b"a"):
            producer.send("t", b"v", key=key)

    def begin_another() -> None:
        begun = reopen(store, clock).producer("open")
        begun.begin_transaction()
        begun.send("t", b"v", key=SECRET)
        begun.flush()

    bucket.after_put = begin_another
    with pytest.raises(UndecidedRecordsError, match=r"^erased 1 record, and no more, because .* id 'open'"):
        store.erase("t", key=SECRET)
    assert [key for *_, key in places(store)] == [b"a"]


@pytest.mark.parametrize("dry_run", [True, False], ids=["dry run", "proof"])
def test_what_another_erasure_deletes_meanwhile_is_no_damage(clock: ManualClock, *, dry_run: bool) -> None:
    """They look without the lease, and an erasure keeps nothing for a grace period."""
    bucket = HookStore(clock=clock)
    store = new_store(clock, bucket)
    store.create_topic("t")
    for key in (b"a", b"b", SECRET):
        put(store, key, size=LARGE)
    lock, state = threading.Lock(), "looks" if dry_run else "leased"

    def plan(_: int, operation: str, key: str) -> None:
        nonlocal state
        with lock:  # Requests of other threads wait for the other erasure.
            if state == "leased" and operation == "delete" and key.startswith(keys.LEASES):
                state = "looks"
            elif state == "looks" and operation == "get" and key.startswith(keys.TOPICS):
                state = "done"
                assert reopen(store, clock).erase("t", key=b"b").records == 1

    looking = open_on(FaultStore(bucket, plan), runtime=runtime(clock))
    report = looking.erase("t", key=SECRET, dry_run=dry_run, prove=not dry_run)
    assert (state, report.records, report.traces) == ("done", 1, None if dry_run else ())


def test_copies_for_a_table_wait_no_longer_than_the_grace_period(clock: ManualClock) -> None:
    """Also of a table that is published again and again."""
    store = new_store(clock, EngineObjects(clock))
    store.create_topic("t", partitions=2, config={"table.format": "iceberg"})
    put(store, SECRET, b"a")
    store.tables.sync()
    clock.advance(1_000_000)
    assert store.erase("t", key=SECRET, grace=3600).waiting == 2, "an entry, and a copy"
    for number in range(5):
        put(store, b"b%d" % number)
        store.tables.sync()
        assert store.erase("t", key=SECRET, grace=3600).waiting == (2 if number < 4 else 0)
        clock.advance(1_000_000)
    assert objects_with(store) == []


def test_a_damaged_version_of_a_table_stops_no_erasure(clock: ManualClock) -> None:
    """No engine can have loaded what it names."""
    bucket = EngineObjects(clock)
    store = new_store(clock, bucket)
    store.create_topic("t", config={"table.format": "iceberg"})
    put(store, SECRET)
    store.tables.sync()
    clock.advance(3_000_000)
    bucket.delete([newest(store).tables["t"].metadata])
    assert store.erase("t", key=SECRET, grace=3600).waiting == 2, "an entry, and a copy"
    clock.advance(1_000_000)
    put(store, b"a")
    report = store.erase("t", key=SECRET, grace=3600, prove=True)
    assert (report.waiting, report.traces) == (1, ()), "the entry: no engine reads the copy"


def test_the_damage_of_another_table_stops_no_erasure(clock: ManualClock) -> None:
    bucket = EngineObjects(clock)
    store = new_store(clock, bucket)
    for topic in ("t", "damaged"):
        store.create_topic(topic, config={"table.format": "iceberg"})
    put(store, SECRET, size=LARGE)
    store.tables.sync()
    put(store, b"a", topic="damaged", size=LARGE)
    bucket.delete([item.key for item in bucket.list("topics/damaged/")])
    report = reopen(store, clock).erase("t", key=SECRET, prove=True)
    assert (report.records, report.tables, report.traces) == (1, True, ())


def test_rows_of_an_earlier_topic_with_other_columns_go_too(store: Store) -> None:
    for size in (1, LARGE):
        put(store, SECRET, size=size)
    store.delete_topic("t")
    schema = pa.schema([pa.field("id", pa.string()), pa.field("number", pa.int64())])
    store.create_topic("t", schema=schema, key="id", partitions=2)
    with store.producer() as producer:
        producer.send_table("t", pa.table({"id": ["a"], "number": [1]}))
    assert store.erase("t", key=SECRET.decode(), prove=True).traces == ()
    assert [row["id"] for row in rows(store, "t")] == ["a"]


@ONE_CHAIN
def test_a_deleted_topic_is_erased_by_a_new_one_of_its_name(store: Store) -> None:
    """Also what a vacuum keeps for the history, and beside records of other topics."""
    store.create_topic("other")
    put(store, SECRET, size=LARGE)
    with store.producer("w") as producer, producer.transaction():
        producer.send("t", b"v", key=SECRET)
        producer.send("other", b"v", key=b"kept")
    for _ in range(2):
        put(store, b"kept", topic="other")
        store.checkpoint()
    store.delete_topic("t")
    store.compact()
    store.vacuum(older_than=0, history=0)
    assert objects_with(store) != []
    store.create_topic("t")
    assert store.erase("t", where="_offset >= 0", prove=True).traces == ()
    assert objects_with(store) == []
    assert [key for *_, key in places(store, "other")] == [b"kept"] * 3
    assert store.verify(deep=True).ok


@pytest.mark.parametrize(
    "where",
    [
        "case when _offset = 2 then true else false end",
        "(_offset = 2) is true",
        "coalesce(_offset, 0) = 2",
        "records._offset = 2 and records::text like '%ann@%'",
        "_offset = 2 and concat_ws(' ', *columns(*)) like '%ann@%'",
    ],
)
def test_expressions_of_unknown_places_and_of_whole_rows(clock: ManualClock, where: str) -> None:
    """The segments that a compaction has replaced do not store offsets."""
    store = new_store(clock)
    store.create_topic("t")
    for key in (b"a", SECRET, b"b"):
        put(store, key, size=LARGE)
    store.compact()
    assert store.erase("t", where=where, prove=True).records == 1
    assert objects_with(store) == []
    assert [key for *_, key in places(store)] == [b"a", b"b"]
