"""Readers end expired transactions that hold back what they read, and tell what waits behind others."""

from __future__ import annotations

import pickle
import warnings
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from tests.harness.executors import InlineExecutor
from tests.helpers.blocked import LATER_MS, TIMEOUT_MS, WAITING, hold_back, one, reader_of, store, warned
from tests.helpers.connections import connection_of
from tests.helpers.keys import FixedRuntime
from tests.helpers.reading import (
    T0,
    T1,
    abort,
    append,
    begin,
    commit,
    kinds,
    scanned,
)
from txnstore import BlockedPartition, BlockedReadWarning
from txnstore.connection import open_to_read
from txnstore.core.invariants.check import check_view
from txnstore.errors import InvalidProducerEpochError
from txnstore.producer import Producer
from txnstore.snapshot import Snapshot
from txnstore.storage.local import LocalStore
from txnstore.storage.memory import MemoryStore
from txnstore.store import Store, create_on, open_on
from txnstore.testing import Fault, FaultStore, ManualClock, on

__all__ = ["one", "store"]


def _by_scan(store: Store) -> list[str]:
    return scanned(store)


def _by_snapshot(store: Store) -> list[str]:
    table = store.scan("t", snapshot=store.snapshot()).to_table()
    return [value.decode() for value in table["value"].to_pylist()]


def _by_sql(store: Store) -> list[str]:
    table = store.sql("select value from t order by _partition, _offset").to_arrow_table()
    return [value.decode() for value in table["value"].to_pylist()]


def _by_duckdb(store: Store) -> list[str]:
    with store.duckdb() as connection:
        table = connection.sql("select value from t order by _partition, _offset").to_arrow_table()
    return [value.decode() for value in table["value"].to_pylist()]


READERS = pytest.mark.parametrize(
    "read", [_by_scan, _by_snapshot, _by_sql, _by_duckdb], ids=["scan", "snapshot", "sql", "duckdb"]
)
Read = Callable[[Store], list[str]]


@READERS
def test_lso_19_every_reader_ends_an_expired_transaction_that_hides_records(
    store: Store, clock: ManualClock, read: Read
) -> None:
    """TMO-01, LSO-19: acknowledged records are not hidden without end behind a producer that has died."""
    hold_back(store)
    with pytest.warns(BlockedReadWarning, match="'dead'"):
        assert read(store) == []
    clock.advance(TIMEOUT_MS)
    assert read(store) == [], "the timeout is not over yet"
    clock.advance(1)
    assert read(store) == WAITING
    assert store.snapshot().blocked() == ()
    assert store.transaction("dead").state.name == "COMPLETE_ABORT"
    assert check_view(connection_of(store).view()) == []


@READERS
def test_reader_that_may_not_write_tells_who_does(store: Store, clock: ManualClock, read: Read) -> None:
    hold_back(store)
    clock.advance(LATER_MS)
    reader = reader_of(store, clock)
    with pytest.warns(BlockedReadWarning, match="read_only and cannot abort it; `txnstore recover`"):
        assert read(reader) == []
    assert read(store) == WAITING


def test_owner_of_ended_transaction_may_go_on(one: Store, clock: ManualClock) -> None:
    """TMO-03: it is aborted and fenced by the same entry, as by any other process."""
    owner = begin(one, "slow", "undecided")
    append(one, *WAITING)
    clock.advance(LATER_MS)
    assert scanned(one) == WAITING
    with pytest.raises(InvalidProducerEpochError):
        owner.commit_transaction()
    owner.abort_transaction()


@pytest.mark.usefixtures("own_objects")
def test_one_request_for_an_expired_transaction_and_none_without(one: Store, clock: ManualClock) -> None:
    hold_back(one)
    objects = connection_of(one).counts
    objects.reset()
    one.snapshot()
    assert kinds(one) == ["get"], "the transaction may still be committed: the head of the chain alone is read"
    clock.advance(LATER_MS)
    objects.reset()
    one.snapshot()
    # store.json; the head; two slots after it, which are checked for entries before a write; the abort.
    assert kinds(one) == ["get", "get", "get", "get", "put_if_absent"]
    objects.reset()
    assert scanned(one) == WAITING
    assert kinds(one) == ["get", "get"], "the head and the segment"


def test_transaction_that_holds_nothing_back_is_left_alone(one: Store, clock: ManualClock) -> None:
    """Neither one without later records, nor one in another partition, nor below the end of the read."""
    append(one, "before")
    begin(one, "alone", "undecided")
    begin(one, "elsewhere", "undecided", tp=T1)
    append(one, "waits", tp=T1)
    clock.advance(LATER_MS)
    objects = connection_of(one).counts
    objects.reset()
    assert one.scan("t", partitions=[0]).to_table().num_rows == 1
    assert one.scan("t", end={1: 1}).to_table().num_rows == 1
    assert one.scan("t", "read_uncommitted").to_table().num_rows == 4
    assert "put_if_absent" not in kinds(one)
    assert {txn.state.name for txn in one.transactions()} == {"ONGOING"}


def test_given_snapshot_stays_as_it_is(one: Store, clock: ManualClock) -> None:
    hold_back(one)
    snapshot = one.snapshot()
    clock.advance(LATER_MS)
    assert one.scan("t", snapshot=snapshot).to_table().num_rows == 0
    assert one.sql("select * from t", snapshot=snapshot).fetchall() == []
    assert [part.records for part in snapshot.blocked()] == [40]


def test_scan_returns_rows_if_the_transaction_cannot_be_ended(clock: ManualClock) -> None:
    """What is below it is read; the warning tells that it could not be aborted."""
    faults = FaultStore(MemoryStore(clock=clock))
    store = create_on(faults, runtime=FixedRuntime(clock, clock.sleep))
    store.create_topic("t")
    append(store, "below")
    hold_back(store)
    clock.advance(LATER_MS)
    faults.plan = on(Fault.ERROR_BEFORE, "put_if_absent", times=None)
    with pytest.warns(BlockedReadWarning, match="could not be aborted"):
        assert scanned(store) == ["below"]


# What waits -----------------------------------------------------------------------------------------------------------


def test_snapshot_tells_what_waits_behind_whom(store: Store, clock: ManualClock) -> None:
    """LSO-01, LSO-19: the earliest open transaction, and the committed records after it."""
    append(store, "before")
    opened_at = clock()
    first = begin(store, "first", "undecided")
    clock.advance(1_000)
    commit(store, "waits")
    abort(store, "never")
    second = begin(store, "second", "undecided")
    append(store, "waits", "waits")
    expected = BlockedPartition(T0, 1, 3, first.producer_id, "first", opened_at, opened_at + TIMEOUT_MS)
    snapshot = store.snapshot()
    assert snapshot.blocked() == (expected,)
    assert store.scan("t").blocked() == (expected,)
    assert store.scan("t", start={0: 3}).blocked()[0].records == 2, "without the one at offset 2"
    assert store.scan("t", end={0: 3}).blocked()[0].records == 1
    assert store.scan("t", partitions=[1]).blocked() == ()
    assert store.scan("t", "read_uncommitted").blocked() == ()
    first.commit_transaction()
    (blocked,) = store.snapshot().blocked()
    assert (blocked.records, blocked.transactional_id) == (2, "second")
    second.abort_transaction()
    assert store.snapshot().blocked() == ()
    assert snapshot.blocked() == (expected,), "a snapshot is pinned"


def test_prepared_transaction_has_no_end_of_its_own(store: Store, clock: ManualClock) -> None:
    """TPC-02: readers do not end it, and name who decides it."""
    begin(store, "prepared", "undecided").prepare_transaction()
    append(store, "waits")
    clock.advance(100 * LATER_MS)
    with pytest.warns(BlockedReadWarning, match="prepared transaction of 'prepared'.* external coordinator"):
        assert scanned(store) == []
    (part,) = store.snapshot().blocked()
    assert (part.prepared, part.expires_at) == (True, None)


def _partition_rows(store: Store) -> list[dict[str, Any]]:
    columns = "blocked_records, blocked_by, blocked_by_producer_id, blocked_since, blocked_until"
    query = f"select {columns} from txn.partitions order by partition"
    rows: list[dict[str, Any]] = store.sql(query).to_arrow_table().to_pylist()
    return rows


def test_partitions_table_shows_what_waits(one: Store, clock: ManualClock) -> None:
    hold_back(one)
    blocked, free = _partition_rows(one)
    since = datetime.fromtimestamp(clock() / 1000, UTC)
    assert free == {"blocked_records": 0} | dict.fromkeys(list(free)[1:])
    assert list(blocked.values())[:2] == [40, "dead"]
    assert (blocked["blocked_since"], (blocked["blocked_until"] - since).total_seconds()) == (since, 60)


# The warning ----------------------------------------------------------------------------------------------------------


def test_warning_comes_once_per_store_and_cause(one: Store, clock: ManualClock) -> None:
    hold_back(one)
    assert len(warned(lambda: scanned(one))) == 1
    assert warned(lambda: (scanned(one), _by_sql(one), one.scan("t"))) == []
    hold_back(one, "another", T1)
    assert len(warned(lambda: scanned(one))) == 1
    reader = reader_of(one, clock)
    assert len(warned(lambda: scanned(reader))) == 2
    clock.advance(LATER_MS)
    assert len(warned(lambda: scanned(reader))) == 2, "past its timeout is another cause"
    assert warned(lambda: scanned(one)) == []


def test_warning_names_records_partitions_and_times(one: Store, clock: ManualClock) -> None:
    with begin(one, "wide", "undecided") as producer:
        producer.send("t", b"undecided", partition=1)
        producer.flush()
        append(one, "waits")
        append(one, "waits", tp=T1)
        (warning,) = warned(lambda: scanned(one))
    assert str(warning.message) == (
        "2 committed records of t-0, t-1 cannot be read yet: waiting since 2023-11-14T22:13:20Z behind the open "
        "transaction of 'wide'. Unless it ends before, a reader that may write aborts it after 2023-11-14T22:14:20Z."
    )


def test_warning_points_at_the_code_of_the_caller(one: Store) -> None:
    hold_back(one)
    (warning,) = warned(lambda: one.scan("t"))
    assert warning.filename == __file__


def test_query_warns_of_the_topics_that_it_names(one: Store) -> None:
    one.create_topic("other")
    hold_back(one)
    assert warned(lambda: one.sql("select * from other")) == []
    assert len(warned(lambda: one.sql("select * from T"))) == 1


def test_open_transaction_that_hides_nothing_is_no_cause(one: Store) -> None:
    append(one, "before")
    producer: Producer = begin(one, "busy", "undecided")
    assert warned(lambda: scanned(one)) == []
    producer.abort_transaction()


def test_snapshot_of_an_empty_store_blocks_nothing() -> None:
    assert Snapshot(connection_of(create_on(MemoryStore())).view()).blocked() == ()


class Unidentified(MemoryStore):
    """A store that is probed each time."""

    identity = None


def test_reader_checks_the_storage_before_its_first_write_only(clock: ManualClock) -> None:
    """A job that only reads needs no permission to write; what it may not write it does not."""
    inner = Unidentified(clock=clock)
    store = create_on(inner, runtime=FixedRuntime(clock, clock.sleep))
    store.create_topic("t")
    producer = store.producer("dead", transaction_timeout=0.001)
    producer.begin_transaction()
    producer.send("t", b"undecided")
    producer.flush()
    append(store, "waits")
    clock.advance(1_000)  # The storage's clock tells that it has expired.
    refused: list[str] = []

    def refuse(n: int, operation: str, key: str) -> Fault | None:
        if operation != "put_if_absent":
            return None
        refused.append(key.partition("/")[0])
        return Fault.ERROR_BEFORE

    with open_to_read(FaultStore(inner, refuse)) as reader:
        view = reader.view()
        assert refused == []
        assert reader.unblocked(view) is view
    assert set(refused) == {"_probe"}, "the chain was not written to"
    with open_to_read(FaultStore(inner)) as reader:
        assert reader.snapshot().blocked() == ()


def test_waiting_reader_seldom_repeats_a_write_that_is_refused(store: Store, clock: ManualClock) -> None:
    """It looks at the chain twice a second, and would send as many writes, and log as many warnings."""
    hold_back(store)
    writes: list[str] = []
    allowed = [True]

    def refuse(n: int, operation: str, key: str) -> Fault | None:
        if allowed or operation != "put_if_absent":
            return None
        writes.append(key)
        return Fault.ERROR_BEFORE

    objects = FaultStore(connection_of(store).counts.inner, refuse)
    reader = open_on(
        objects, runtime=FixedRuntime(clock, clock.sleep, executor=InlineExecutor, background=InlineExecutor)
    )
    consumer = reader.consumer(["t"])
    allowed.clear()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", BlockedReadWarning)
        clock.advance(LATER_MS)
        assert consumer.poll(timeout=0.0) == []
        first_writes = len(writes)
        assert consumer.poll(timeout=300.0) == []
    assert 0 < first_writes <= len(writes) <= 12 * first_writes
    allowed.append(True)
    clock.advance(30_000)
    assert len(consumer.poll(timeout=0.0)) == len(WAITING)


def test_pickled_reader_checks_the_storage_before_its_first_write_too(tmp_path: Path) -> None:
    objects = LocalStore(tmp_path / "store")
    create_on(objects).close()
    with open_to_read(objects) as reader, pickle.loads(pickle.dumps(reader)) as copy:  # noqa: S301 - our own
        assert (reader._checked, copy._checked) == (False, False)


def test_open_transaction_with_two_phase_commit_has_no_end_of_its_own(store: Store, clock: ManualClock) -> None:
    """TPC-02: also before it is prepared, and the warning does not call it prepared."""
    producer = store.producer("undecided", two_phase_commit=True)
    producer.begin_transaction()
    producer.send("t", b"undecided", partition=0)
    producer.flush()
    append(store, "waits")
    clock.advance(100 * LATER_MS)
    with pytest.warns(BlockedReadWarning, match="open transaction of 'undecided'.* external coordinator"):
        assert scanned(store) == []
    (part,) = store.snapshot().blocked()
    assert (part.prepared, part.expires_at) == (False, None)


def test_what_a_consumer_waits_for_costs_no_request(store: Store) -> None:
    """As of its last request; a poll looks for it."""
    hold_back(store)
    consumer = store.consumer()
    consumer.assign([T0])
    with pytest.warns(BlockedReadWarning):
        assert consumer.poll() == []
    counts = connection_of(store).counts
    before = counts.snapshot()
    assert [item.records for item in consumer.blocked()] == [len(WAITING)]
    assert (counts.snapshot() - before).requests == 0


@pytest.mark.parametrize(("method", "warnings"), [("beginning_offsets", 0), ("end_offsets", 1), ("lag", 1)])
def test_only_what_ends_before_records_warns_of_them(store: Store, method: str, warnings: int) -> None:
    """The first offsets are the same with them and without them."""
    hold_back(store)
    consumer = store.consumer()
    consumer.assign([T0])
    assert len(warned(getattr(consumer, method))) == warnings
