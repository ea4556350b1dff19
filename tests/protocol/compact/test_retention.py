"""``delete_records`` of a store: what goes, what stays, and what readers and writers meet."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.helpers.compaction import (
    DAY_MS,
    HOUR_MS,
    T0,
    batches,
    begin,
    commit,
    named_keys,
    new_store,
    reopen,
    rows,
    segment_keys,
    values,
)
from tests.helpers.connections import connection_of
from tests.helpers.retention import HookStore, send
from txnstore.core.model import TopicPartition
from txnstore.errors import (
    InvalidConfigError,
    OffsetOutOfRangeError,
    PolicyViolationError,
    ReadOnlyError,
    SnapshotExpiredError,
    UndecidedRecordsError,
    UnknownTopicOrPartitionError,
)
from txnstore.store import Store, open_on
from txnstore.testing import ManualClock

T1 = TopicPartition("t", 1)


@pytest.fixture
def objects(clock: ManualClock) -> HookStore:
    return HookStore(clock=clock)


@pytest.fixture
def store(clock: ManualClock, objects: HookStore, chains: int) -> Store:
    store = new_store(clock, objects, chains=chains)
    store.create_topic("t", partitions=2)
    return store


# delete_records -------------------------------------------------------------------------------------------------------


def test_records_below_an_offset_are_deleted(store: Store, clock: ManualClock) -> None:
    """RET-04, RET-06: readers begin at the new log start; the rest of a batch stays."""
    send(store, clock, b"a", b"b")
    send(store, clock, b"c", b"d")
    send(store, clock, b"e", partition=1)
    moved = store.delete_records({T0: 3, ("t", 1): -1})  # type: ignore[dict-item]
    assert moved == {T0: 3, T1: 1}
    assert store.offsets("t", 0).log_start == 3
    assert values(store) == [b"d"]
    assert [row["_offset"] for row in rows(store)] == [3]
    assert [row[0] for row in store.sql("select value from t").fetchall()] == [b"d"]
    assert store.delete_records({T0: 1}) == {T0: 3}
    assert store.delete_records({}) == {}
    assert reopen(store, clock).offsets("t", 0).log_start == 3
    assert store.verify(deep=True).ok


def test_one_entry_for_the_partitions_of_a_chain(clock: ManualClock, chains: int) -> None:
    store = new_store(clock, chains=chains)
    store.create_topic("t", partitions=6)
    for partition in range(6):
        send(store, clock, b"a", partition=partition)
    before = [chain.state.sequence for chain in connection_of(store).chains]
    store.delete_records({TopicPartition("t", partition): 1 for partition in range(6)})
    after = [chain.state.sequence for chain in connection_of(store).chains]
    assert [new - old for old, new in zip(before, after, strict=True)] == [1] * chains


def test_what_a_deletion_costs(clock: ManualClock) -> None:
    """One look at the head and one entry; a retention without any setting one look, and no clock.

    A deletion that changes nothing looks once more: it is acknowledged at the head, whose entries are durable.
    """
    store = new_store(clock)
    store.create_topic("t", partitions=2)
    send(store, clock, b"a")

    def cost(call: Callable[[], object]) -> tuple[int, int]:
        before = store.metrics()
        call()
        after = store.metrics()
        return after.gets - before.gets, after.puts - before.puts

    look, _ = cost(store.snapshot)
    assert cost(lambda: store.delete_records({T0: 1, T1: 0})) == (look, 1)
    assert cost(lambda: store.delete_records({T0: 1})) == (look + 1, 0)
    assert cost(store.retain) == (look, 0)
    store.alter_topic("t", config={"retention.ms": 1, "retention.bytes": 0})
    send(store, clock, b"b")
    clock.advance(10)
    assert cost(store.retain) == (look, 1)


def test_a_deletion_is_refused_as_a_whole(store: Store, clock: ManualClock) -> None:
    """RET-06, RET-01: also if other partitions belong to other chains; nothing is half done."""
    send(store, clock, b"a", b"b")
    commit(store, [b"c"], partition=1)
    with begin(store, [b"open"], partition=1, writer="loader"):
        for offsets, error, says in (
            ({T0: 1, T1: 3}, UndecidedRecordsError, "of transactional id 'loader' begins at offset 2"),
            ({T0: 1, T1: -1}, UndecidedRecordsError, "'loader'"),
            ({T0: 1, T1: 9}, OffsetOutOfRangeError, "its high watermark is 3"),
            ({T0: 1, T1: -2}, OffsetOutOfRangeError, "below offset -2"),
            ({T0: 1, ("t", 7): 0}, UnknownTopicOrPartitionError, "partition 7"),
            ({T0: 1, ("u", 0): 0}, UnknownTopicOrPartitionError, "'u'"),
            ({T0: 1, "t": 0}, InvalidConfigError, "TopicPartition"),
            ({T0: 1.5}, InvalidConfigError, "1.5"),
        ):
            with pytest.raises(error, match=says):
                store.delete_records(offsets)  # type: ignore[arg-type]
            assert store.offsets("t", 0).log_start == 0
        assert store.delete_records({T0: 1, T1: 2}) == {T0: 1, T1: 2}


def test_a_topic_without_delete_keeps_its_records(store: Store, clock: ManualClock) -> None:
    """RET-06."""
    send(store, clock, b"a")
    store.alter_topic("t", config={"cleanup.policy": "compact"})
    with pytest.raises(PolicyViolationError, match="is compact"):
        store.delete_records({T0: 1})


def test_a_store_that_is_read_only_deletes_nothing(store: Store, clock: ManualClock, objects: HookStore) -> None:
    send(store, clock, b"a")
    reader = open_on(objects, read_only=True)
    for delete in (lambda: reader.delete_records({T0: 1}), reader.retain):
        with pytest.raises(ReadOnlyError, match="no records of it can be deleted"):
            delete()


def test_an_abandoned_transaction_is_ended_first(store: Store, clock: ManualClock) -> None:
    """RET-01, TMO-01: one past its timeout does not hold the deletion."""
    begin(store, [b"open"])
    send(store, clock, b"a")
    clock.advance(DAY_MS)
    assert store.delete_records({T0: -1}) == {T0: 3}


def test_repeated_batches_and_open_transactions_survive(store: Store, clock: ManualClock) -> None:
    """RET-05, PST-10: the sequence continues, the transaction commits."""
    producer = store.producer()
    producer.send("t", b"a", partition=0)
    producer.flush()
    open_one = begin(store, [b"x"])
    store.delete_records({T0: 1})
    producer.send("t", b"b", partition=0)
    producer.close()
    open_one.commit_transaction()
    assert values(store) == [b"x", b"b"]
    assert store.verify(deep=True).ok


# Objects --------------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("own_objects")
def test_a_vacuum_deletes_the_objects_after_its_grace_period(store: Store, clock: ManualClock) -> None:
    """RET-09: a snapshot from before is read until then; afterwards the loss is an error, not an empty result."""
    send(store, clock, b"a")
    send(store, clock, b"b")
    snapshot = store.snapshot()
    clock.advance(DAY_MS)
    store.delete_records({T0: 1})
    store.vacuum()
    assert [row["value"] for row in rows(store, snapshot=snapshot)] == [b"a", b"b"]
    clock.advance(DAY_MS + HOUR_MS)
    assert len(store.vacuum().deleted) >= 1
    assert segment_keys(store) == named_keys(store)
    with pytest.raises(SnapshotExpiredError):
        rows(store, snapshot=snapshot)
    assert values(store) == [b"b"]


def test_a_compaction_that_began_before_brings_nothing_back(
    store: Store, clock: ManualClock, objects: HookStore
) -> None:
    """RET-04, CMP-22: it conflicts, whether the log start is at a batch or inside one; the next one succeeds."""
    for offset in (2, 3):
        send(store, clock, b"a", b"b")
        send(store, clock, b"c", b"d")
        start = store.offsets("t", 0).high_watermark - 4
        objects.before_put = lambda to=start + offset: store.delete_records({T0: to})
        (result,) = store.compact().partitions
        assert (result.merges, result.conflicts) == (0, 1)
        assert values(store) == [b"c", b"d"][offset - 2 :]
    send(store, clock, b"e")
    send(store, clock, b"f")
    assert store.compact().merges == 1
    assert values(store) == [b"d", b"e", b"f"]
    assert store.verify(deep=True).ok


@pytest.mark.usefixtures("own_objects")
def test_an_upload_from_before_is_appended_behind_the_log_start(
    store: Store, clock: ManualClock, objects: HookStore
) -> None:
    """RET-10: a deletion between upload and registration."""
    send(store, clock, b"a")
    objects.before_put = lambda: store.delete_records({T0: -1})
    send(store, clock, b"late")
    assert (values(store), store.offsets("t", 0).log_start) == ([b"late"], 1)


# Readers --------------------------------------------------------------------------------------------------------------


def test_a_consumer_below_the_log_start_is_reset_or_gets_an_error(store: Store, clock: ManualClock) -> None:
    """RET-04, CON-13: with a committed offset, and with a position."""
    send(store, clock, *(b"%d" % number for number in range(6)))
    with store.consumer(["t"], "g", auto_offset_reset="none") as consumer:
        consumer.commit({T0: 1, T1: 0})
    store.delete_records({T0: 4})
    offsets = {}
    for policy in ("earliest", "latest"):
        with store.consumer(auto_offset_reset=policy, group="g") as consumer:
            consumer.assign([T0])
            offsets[policy] = [record.offset for record in consumer.poll()]
    assert offsets == {"earliest": [4, 5], "latest": []}
    with store.consumer(auto_offset_reset="none", group="g") as consumer:
        consumer.assign([T0])
        with pytest.raises(OffsetOutOfRangeError, match="holds 4 up to 6"):
            consumer.poll()
        consumer.seek(T0, 5)
        assert [record.offset for record in consumer.poll()] == [5]
        assert consumer.beginning_offsets([T0]) == {T0: 4}


def test_a_scan_from_below_the_log_start_is_refused(store: Store, clock: ManualClock) -> None:
    """RET-04: it would leave out records without a word."""
    send(store, clock, b"a", b"b", b"c")
    before = store.snapshot()
    store.delete_records({T0: 2})
    with pytest.raises(OffsetOutOfRangeError, match="records of t-0 below offset 2 were deleted"):
        store.scan("t", start={0: 1})
    assert store.scan("t", start={0: 2}).to_table().num_rows == 1
    assert store.scan("t", start={0: 1}, snapshot=before).to_table().num_rows == 2
    assert store.scan("t", start=0, partitions=[1]).to_table().num_rows == 0
    assert store.scan("t", end=1, partitions=[0]).to_table().num_rows == 0


def test_the_rest_of_an_aborted_transaction_stays_hidden(store: Store, clock: ManualClock) -> None:
    """RET-07, RET-08."""
    with store.producer("a") as producer:
        producer.begin_transaction()
        for value in (b"x", b"y"):
            producer.send("t", value, partition=0)
            producer.flush()
        producer.abort_transaction()
    send(store, clock, b"z")
    store.delete_records({T0: 1})
    assert (values(store), values(store, isolation="read_uncommitted")) == ([b"z"], [b"y", b"z"])
    store.compact()
    assert values(store, isolation="read_uncommitted") == [b"z"]


def test_a_batch_that_is_cut_is_left_out_of_merges(store: Store, clock: ManualClock) -> None:
    """RET-06, CMP-01: merging continues behind it."""
    for value in (b"a", b"c", b"e"):
        send(store, clock, value, value)
    store.delete_records({T0: 1})
    assert store.compact().merges == 1
    assert [batch.base_offset for batch in batches(store)] == [0, 2]
    assert values(store) == [b"a", b"c", b"c", b"e", b"e"]
    store.delete_records({T0: 3})
    assert [batch.base_offset for batch in batches(store)] == [2]
    assert values(store) == [b"c", b"e", b"e"]
    assert store.verify(deep=True).ok
