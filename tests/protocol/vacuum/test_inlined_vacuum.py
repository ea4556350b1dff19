"""The payloads of entries: a vacuum deletes them, damage of one is named, and the chain is whole without them."""

from __future__ import annotations

from collections.abc import Callable

import duckdb
import pytest

from tests.helpers.compaction import (
    DAY_MS,
    HOUR_MS,
    batches,
    commit,
    reopen,
    rows,
    runtime,
    values,
)
from tests.helpers.connections import connection_of
from tests.helpers.inlining import counted_store, inlined, payloads, requests
from txnstore.chain.keys import entry_sequence
from txnstore.chain.payload import line_of, payload_of
from txnstore.core.maintenance import FORGET_AFTER_MS
from txnstore.core.model import TopicPartition
from txnstore.errors import CorruptionError, SnapshotExpiredError, StorageRefusedError
from txnstore.storage.memory import MemoryStore
from txnstore.store import Store, create_on, open_on
from txnstore.testing import FaultStore, ManualClock

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


@pytest.fixture
def store(clock: ManualClock, objects: MemoryStore) -> Store:
    return counted_store(clock, objects)


# Compaction and vacuum ------------------------------------------------------------------------------------------------


def test_a_vacuum_deletes_the_payloads_that_a_compaction_replaced(
    store: Store, clock: ManualClock, objects: MemoryStore
) -> None:
    """RET-09: after the grace period, from the replacement on; the entries stay as lines, and the chain is whole.

    Without later checkpoints the history of the chain does not end behind them.
    """
    for number in range(3):
        commit(store, [b"%d" % number])
    before, old = payloads(objects), store.snapshot()
    entries = {key: objects.get(key) for key in before}
    store.compact()
    clock.advance(DAY_MS - 1)
    assert store.vacuum().objects == 0
    assert values(store) == [row["value"] for row in rows(store, snapshot=old)] == [b"0", b"1", b"2"]
    clock.advance(1)
    expected = store.vacuum(dry_run=True)
    assert payloads(objects) == before, "a dry run deletes nothing"
    report = store.vacuum()
    assert (report.objects, report.bytes) == (expected.objects, expected.bytes) == (3, sum(before.values()))
    assert payloads(objects) == {}
    assert {key: objects.get(key) for key in before} == {key: line_of(data) for key, data in entries.items()}
    fresh = reopen(store, clock)
    assert values(fresh) == [b"0", b"1", b"2"]
    assert fresh.verify(deep=True).violations == ()
    assert not connection_of(fresh).chain.state.released_entries, "nothing can refer to them again"
    assert store.vacuum().objects == 0


def test_the_payload_of_an_old_entry_in_use_stays(store: Store, clock: ManualClock, objects: MemoryStore) -> None:
    commit(store, [b"value"])
    clock.advance(30 * DAY_MS)
    assert store.vacuum().objects == 0
    assert len(payloads(objects)) == 1


@pytest.mark.slow
def test_many_payloads_cost_no_request_each(store: Store, clock: ManualClock, objects: MemoryStore) -> None:
    """They go with their entries, 1,000 in a request."""
    with store.producer("id") as producer:
        for _ in range(400):
            with producer.transaction() as txn:
                txn.send("t", b"value", partition=0)
    store.compact()
    few = 2 * 64 + 20  # The entries after the older one of the newest two checkpoints.
    for days in (1, 7, 1):
        clock.advance(days * DAY_MS)
        requests(store)
        expected = store.vacuum(dry_run=True)
        assert requests(store)["get"] < few
        report = store.vacuum()
        counts = requests(store)
        assert max(counts["get"], counts["put"], counts["put_if_absent"]) < few
        assert report.objects == expected.objects
    assert report.objects > 400 - few, "the entries that were announced a day before"
    assert payloads(objects) == {}
    assert len(values(reopen(store, clock))) == 400


def test_a_payload_stays_while_a_batch_names_one_of_its_segments(
    store: Store, clock: ManualClock, objects: MemoryStore
) -> None:
    for number in range(2):
        with store.producer("id") as producer, producer.transaction() as txn:
            txn.send("t", b"zero %d" % number, partition=0)
            if number == 0:
                txn.send("t", b"one", partition=1)
    first, second = payloads(objects)
    store.compact()
    clock.advance(FORGET_AFTER_MS + DAY_MS)
    store.vacuum()
    assert list(payloads(objects)) == [first]
    assert values(reopen(store, clock)) == [b"zero 0", b"zero 1", b"one"]
    store.delete_records({T1: 1})
    store.vacuum()
    assert list(payloads(objects)) == [first], "the grace period of the other segment"
    clock.advance(DAY_MS)
    store.vacuum()
    assert payloads(objects) == {}
    assert objects.get(second) == line_of(objects.get(second))


def test_an_entry_is_remembered_once_for_all_of_its_dropped_segments(store: Store, clock: ManualClock) -> None:
    """Each checkpoint has what was dropped within the grace period: most transactions of a day."""
    for _ in range(2):
        with store.producer("id") as producer, producer.transaction() as txn:
            for partition in range(2):
                txn.send("t", b"value", partition=partition)
    entries = {entry_sequence(batch.segment.object) for tp in (T0, T1) for batch in batches(store, tp)}
    store.compact()
    (span,) = connection_of(store).chain.state.released_entries
    assert {span.first, span.last} == entries
    clock.advance(DAY_MS)
    assert store.vacuum().kinds[0].kind == "inlined"
    assert not connection_of(store).chain.state.released_entries


@pytest.mark.parametrize("delete", [lambda s: s.delete_records({T0: 1}), lambda s: s.delete_topic("t")])
def test_deleted_records_leave_the_storage(
    store: Store, clock: ManualClock, objects: MemoryStore, delete: Callable[[Store], object]
) -> None:
    """Also with a grace period that is longer than dropped keys of uploads are remembered."""
    store.create_topic("plain", config={"compression.type": "uncompressed"})
    commit(store, [b"personal data"])
    commit(store, [b"personal data"], topic="plain")
    delete(store)
    store.delete_records({TopicPartition("plain", 0): 1})
    assert any(b"personal data" in objects.get(item.key) for item in objects.list(""))
    clock.advance(FORGET_AFTER_MS + DAY_MS)
    month = 30 * DAY_MS // 1000
    store.vacuum(month)
    clock.advance(30 * DAY_MS)
    store.vacuum(month)
    assert payloads(objects) == {}
    assert not any(b"personal data" in objects.get(item.key) for item in objects.list(""))


def test_a_live_segment_does_not_keep_deleted_ones_beside_it(
    store: Store, clock: ManualClock, objects: MemoryStore
) -> None:
    """The next compaction writes it to an object, although there is nothing to merge; then the payload can go."""
    store.create_topic("people")
    with store.producer("id") as producer, producer.transaction() as txn:
        txn.send("t", b"audit", partition=0)
        txn.send("people", b"personal")
    store.compact()
    assert inlined(store) == [True]
    store.delete_topic("people")
    store.compact()
    assert inlined(store) == [False]
    clock.advance(DAY_MS)
    store.vacuum()
    assert payloads(objects) == {}
    assert values(reopen(store, clock)) == [b"audit"]
    assert store.compact().segments_before == 0


def test_an_entry_that_is_released_again_keeps_its_payload_for_the_grace_period(
    store: Store, clock: ManualClock, objects: MemoryStore
) -> None:
    """RET-09: a compaction moves what was left in it, which a snapshot of before still reads there."""
    with store.producer("id") as producer, producer.transaction() as txn:
        txn.send("t", b"zero", partition=0)
        txn.send("t", b"one", partition=1)
    store.delete_records({T0: 1})
    clock.advance(25 * HOUR_MS)
    old = store.snapshot()
    store.compact()
    assert inlined(store, T1) == [False]
    clock.advance(60_000)
    assert store.vacuum().objects == 0
    connection_of(store).objects.forget()
    assert [row["value"] for row in rows(store, snapshot=old)] == [b"one"]
    clock.advance(DAY_MS)
    assert store.vacuum().objects == 1
    assert payloads(objects) == {}


def test_what_was_dropped_beside_a_live_segment_is_not_forgotten(
    store: Store, clock: ManualClock, objects: MemoryStore
) -> None:
    """However late the compaction comes that moves the live one."""
    with store.producer("id") as producer, producer.transaction() as txn:
        txn.send("t", b"personal", partition=0)
        txn.send("t", b"audit", partition=1)
    store.delete_records({T0: 1})
    clock.advance(30 * DAY_MS)
    store.vacuum()
    assert len(payloads(objects)) == 1
    store.compact()
    assert inlined(store, T1) == [False]
    clock.advance(DAY_MS)
    store.vacuum()
    assert payloads(objects) == {}


def test_a_long_grace_period_holds_for_old_entries(store: Store, clock: ManualClock, objects: MemoryStore) -> None:
    """RET-09: also when names of dropped objects are forgotten earlier."""
    for number in range(2):
        commit(store, [b"%d" % number])
    clock.advance(60 * DAY_MS)
    old = store.snapshot()
    store.compact()
    month = 30 * DAY_MS // 1000
    for _ in range(2):
        clock.advance(FORGET_AFTER_MS + DAY_MS)
        store.vacuum(month)
    assert len(payloads(objects)) == 2
    connection_of(store).objects.forget()
    assert [row["value"] for row in rows(store, snapshot=old)] == [b"0", b"1"]
    clock.advance(30 * DAY_MS)
    store.vacuum(month)
    assert payloads(objects) == {}


def test_records_leave_the_entries_when_a_topic_is_no_longer_inlined(
    store: Store, clock: ManualClock, objects: MemoryStore
) -> None:
    """For readers of the chain that must not see them: a compaction moves even a single segment."""
    commit(store, [b"secret"])
    assert store.compact().segments_before == 0, "there is nothing to merge"
    store.alter_topic("t", config={"inline.bytes": 0})
    assert store.compact().segments_before == 1
    clock.advance(DAY_MS)
    store.vacuum()
    assert payloads(objects) == {}
    assert values(reopen(store, clock)) == [b"secret"]
    assert store.compact().segments_before == 0


def test_each_chain_forgets_its_own_segments(clock: ManualClock) -> None:
    store = create_on(MemoryStore(clock=clock), 3, runtime=runtime(clock))
    store.create_topic("t", partitions=3)
    for _ in range(2):
        with store.producer() as producer:
            for number in range(3):
                producer.send("t", b"plain", partition=number)
    store.compact()
    clock.advance(DAY_MS)
    assert store.vacuum().objects > 0
    assert [len(state.released_entries) for state in connection_of(store).view().states] == [0, 0, 0]
    assert values(reopen(store, clock)) == [b"plain"] * 6


def test_a_vacuum_after_one_that_crashed(store: Store, clock: ManualClock, objects: MemoryStore) -> None:
    commit(store, [b"a"])
    commit(store, [b"b"])
    store.compact()
    clock.advance(DAY_MS)
    entry = next(iter(payloads(objects)))
    objects.put(entry, line_of(objects.get(entry)))  # What a vacuum has done that crashed after this request.
    report = store.vacuum()
    assert report.objects == 1
    assert payloads(objects) == {}
    assert not connection_of(store).chain.state.released_entries


def test_a_vacuum_without_permission_to_overwrite_entries_says_so(
    store: Store, clock: ManualClock, objects: MemoryStore
) -> None:
    commit(store, [b"a"])
    commit(store, [b"b"])
    store.compact()
    clock.advance(DAY_MS)

    class Refusing(FaultStore):
        def put(self, key: str, data: bytes) -> None:
            if "/entries/" in key:
                raise StorageRefusedError("access denied.")
            super().put(key, data)

    operator = open_on(Refusing(objects), runtime=runtime(clock))
    operator.producer("idle")
    clock.advance(30 * DAY_MS)
    with pytest.raises(StorageRefusedError, match=r"access denied\..*must be allowed to overwrite entries"):
        operator.vacuum()
    assert values(reopen(store, clock)) == [b"a", b"b"]
    assert "idle" not in connection_of(operator).view().transactions, "all other steps are done"
    reopen(store, clock).vacuum()
    assert payloads(objects) == {}, "a later one knows them"


def test_an_old_snapshot_says_that_its_records_were_vacuumed(store: Store, clock: ManualClock) -> None:
    commit(store, [b"a"])
    commit(store, [b"b"])
    other = reopen(store, clock)
    connection_of(other).objects.forget()
    old = other.snapshot()
    store.compact()
    clock.advance(DAY_MS)
    store.vacuum()
    with pytest.raises(SnapshotExpiredError, match="was deleted by a vacuum"):
        rows(other, snapshot=old)
    assert values(other) == [b"a", b"b"]


def test_a_consumer_behind_a_vacuum_plans_again(store: Store, clock: ManualClock) -> None:
    commit(store, [b"a"])
    commit(store, [b"b"])
    reader = reopen(store, clock)
    consumer = reader.consumer(["t"])
    consumer.poll(timeout=0, max_records=1)
    connection_of(reader).objects.forget()
    store.compact()
    clock.advance(HOUR_MS)
    assert store.vacuum(0).objects == 2
    consumer.seek(T0, 0)
    assert [record.value for record in consumer.poll(timeout=0)] == [b"a", b"b"]


# Damage ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("damage", ["altered", "truncated"])
def test_a_damaged_payload_is_named_where_it_is_read(
    store: Store, clock: ManualClock, objects: MemoryStore, damage: str
) -> None:
    """OBJ-13: the store opens, other records are read, commits continue; only the segment cannot be read."""
    commit(store, [b"damaged"], partition=0)
    commit(store, [b"intact"], partition=1)
    entry, *_ = payloads(objects)
    data = objects.get(entry)
    payload = payload_of(data)
    altered = payload[:40] + bytes([payload[40] ^ 1]) + payload[41:]
    objects.put(entry, (altered if damage == "altered" else payload[:-9]) + data[len(payload) :])
    other = reopen(store, clock)
    assert other.scan("t", partitions=[1]).to_table()["value"].to_pylist() == [b"intact"]
    commit(other, [b"more"], partition=1)
    segment = batches(other)[0].segment.key
    with pytest.raises(CorruptionError, match=segment):
        values(other)
    with pytest.raises((CorruptionError, duckdb.Error), match=segment):
        other.sql("select * from t").fetchall()
    for deep, extra in ((False, []), (True, ["segment_content"])):
        names = [item.name for item in other.verify(deep=deep).violations]
        assert names == ["payload_intact", *(extra if damage == "altered" else ["segment_size"])]
    assert other.verify().violations[0].subject == entry


def test_bytes_that_were_damaged_on_their_way_are_read_again(store: Store, clock: ManualClock) -> None:
    """What a process keeps in memory is compared with the hash of the segment, and else read from the storage."""
    commit(store, [b"good"])
    key = batches(store)[0].segment.object
    kept = connection_of(store).objects
    kept.forget()
    kept.keep(key, b"garbage" * 1_000)
    assert values(store) == [b"good"]


def test_a_missing_payload_that_is_still_named_is_found(store: Store, objects: MemoryStore) -> None:
    commit(store, [b"lost"])
    (entry,) = payloads(objects)
    objects.put(entry, line_of(objects.get(entry)))
    assert [item.name for item in store.verify().violations] == ["segment_present"]
