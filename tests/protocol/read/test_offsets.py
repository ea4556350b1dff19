"""Consume, transform, produce: offsets inside transactions, aborts, rewinds, hand-overs (OFF)."""

from __future__ import annotations

import random

import pytest

from tests.helpers.reading import T0, another_process, append, new_store, read_all, scanned, texts
from txnstore.core.model import TopicPartition
from txnstore.errors import UnstableOffsetCommitError
from txnstore.producer import Producer
from txnstore.read.records import Record
from txnstore.store import Store
from txnstore.testing import ManualClock

INPUTS = [TopicPartition("in", number) for number in range(3)]


@pytest.fixture
def store(clock: ManualClock, chains: int) -> Store:
    """Twelve inputs in each of three partitions, in batches of four."""
    store = new_store(clock, chains=chains)
    store.create_topic("in", partitions=3)
    store.create_topic("t")
    for first in range(0, 12, 4):
        for tp in INPUTS:
            append(store, *(f"{tp.partition}.{number}" for number in range(first, first + 4)), tp=tp)
    return store


def _everything() -> list[str]:
    return sorted(f"{partition}.{number}" for partition in range(3) for number in range(12))


def _copy(producer: Producer, records: list[Record]) -> None:
    producer.begin_transaction()
    for record in records:
        assert isinstance(record.value, bytes)
        producer.send("t", record.value)


def test_a_loop_with_random_aborts_copies_each_record_once(store: Store, clock: ManualClock) -> None:
    """OFF-03, OFF-20, TST-22, BUG-03, BUG-27: the copier aborts a third, also the very first, and rewinds."""
    rng = random.Random(5)
    job = another_process(store, clock)
    consumer, producer = job.consumer(["in"], group="copy"), job.producer("copier")
    aborted = 0
    while records := consumer.poll(max_records=rng.randint(1, 7)):
        _copy(producer, records)
        offsets = {tp: consumer.position(tp) for tp in INPUTS}
        producer.send_offsets(offsets, consumer.group_metadata())
        if aborted == 0 or rng.random() < 1 / 3:
            aborted += 1
            producer.flush()
            producer.abort_transaction()
            consumer.rewind_to_committed()
        else:
            producer.commit_transaction()
    assert aborted > 3
    assert sorted(scanned(store)) == _everything()
    assert len(scanned(store, "read_uncommitted")) > 36


def test_rewind_drops_fetched_records_of_all_partitions(store: Store) -> None:
    """OFF-20: three partitions, prefetched buffers, nothing committed yet, then something."""
    consumer = store.consumer(["in"], group="g")
    lost = consumer.poll(max_records=5)
    assert {record.partition for record in lost} == {0, 1}
    consumer.rewind_to_committed()
    first = consumer.poll(max_records=5)
    assert [consumer.position(tp) for tp in INPUTS] == [0, 4, 1], "the turn continues, the positions do not"
    consumer.commit()
    second = consumer.poll(max_records=6)
    consumer.rewind_to_committed()
    rest = read_all(consumer)
    assert sorted(texts(second)) != sorted(texts(first))
    assert sorted(texts(first + rest)) == _everything()


def test_a_rewind_without_a_commit_goes_back_to_the_beginning_of_this_consumer(store: Store) -> None:
    """OFF-20: with ``latest``, too: what came since and was aborted is not skipped; and a seek is a beginning."""
    consumer = store.consumer(["in"], group="g", auto_offset_reset="latest")
    assert consumer.poll() == []
    append(store, "new", tp=INPUTS[1])
    assert texts(consumer.poll()) == ["new"]
    consumer.rewind_to_committed()
    assert texts(consumer.poll()) == ["new"]
    consumer.seek(INPUTS[0], 10)
    assert texts(read_all(consumer)) == ["0.10", "0.11"]
    consumer.rewind_to_committed()
    assert sorted(texts(read_all(consumer))) == ["0.10", "0.11", "new"]


def test_an_abort_alone_rewinds_nothing(store: Store) -> None:
    """OFF-20: the position is the application's."""
    consumer, producer = store.consumer(["in"], group="g"), store.producer("p")
    records = consumer.poll(max_records=3)
    _copy(producer, records)
    producer.abort_transaction()
    assert not set(texts(records)) & set(texts(consumer.poll()))


def test_a_new_owner_waits_for_the_old_owners_transaction(store: Store, clock: ManualClock) -> None:
    """OFF-09, OFF-10: it begins behind a commit, and at the old offset after an abort; nothing twice, nothing lost."""
    for outcome, rest in [("commit", 8), ("abort", 12)]:
        old, group = store.producer(f"owner-{outcome}"), f"group-{outcome}"
        owner = store.consumer(group=group)
        owner.assign(INPUTS[0])
        _copy(old, owner.poll(max_records=4))
        old.send_offsets({INPUTS[0]: owner.position(INPUTS[0])}, owner.group_metadata())
        old.flush()
        successor = another_process(store, clock).consumer(group=group)
        successor.assign(INPUTS[0])
        assert successor.poll(timeout=1.0) == []
        (old.commit_transaction if outcome == "commit" else old.abort_transaction)()
        assert len(read_all(successor)) == rest


def test_only_the_partition_that_is_undecided_waits(store: Store, clock: ManualClock) -> None:
    """OFF-09: pending for partition 0 only; the others are read meanwhile."""
    producer = store.producer("p")
    producer.begin_transaction()
    producer.send_offsets({INPUTS[0]: 12}, "g")
    producer.send("t", b"x")
    producer.flush()
    consumer = another_process(store, clock).consumer(["in"], group="g")
    assert {record.partition for record in consumer.poll(timeout=1.0)} == {1, 2}
    assert consumer.poll() == []
    with pytest.raises(UnstableOffsetCommitError, match="in-0"):
        consumer.position(INPUTS[0], timeout=0)
    assert consumer.committed(INPUTS[1]) is None
    producer.commit_transaction()
    assert consumer.poll() == []
    assert consumer.position(INPUTS[0]) == 12


def test_a_crashed_owner_is_recovered_by_its_successor(store: Store, clock: ManualClock) -> None:
    """REC-02, OFF-10: the init of the same transactional id aborts what it left, and the group is stable again.

    Its partitions are free when its session has expired.
    """
    owner, crashed = store.consumer(["in"], group="g"), store.producer("worker")
    records = owner.poll(max_records=10)
    _copy(crashed, records)
    crashed.send_offsets({tp: owner.position(tp) for tp in INPUTS}, owner.group_metadata())
    crashed.flush()
    clock.advance(45_001)
    process = another_process(store, clock)
    producer, consumer = process.producer("worker"), process.consumer(["in"], group="g")
    while batch := consumer.poll(timeout=1.0):
        _copy(producer, batch)
        producer.send_offsets({tp: consumer.position(tp) for tp in INPUTS}, consumer.group_metadata())
        producer.commit_transaction()
    assert sorted(scanned(store)) == _everything()


def test_commit_is_visible_to_another_process_immediately(store: Store, clock: ManualClock) -> None:
    """OFF-21: stronger than Kafka: no window after the commit."""
    reader = another_process(store, clock).consumer(["t"])
    assert reader.poll() == []
    with store.producer("p") as producer, producer.transaction() as txn:
        txn.send("t", b"now")
        txn.send_offsets({INPUTS[0]: 3}, "g")
    assert texts(reader.poll()) == ["now"]
    assert another_process(store, clock).consumer(["in"], group="g").committed(INPUTS[0]) == 3


def test_read_to_end_loop_terminates(store: Store) -> None:
    """CON-09, BUG-22: the last offsets are markers; position meets the end offset nevertheless."""
    with store.producer("p") as producer:
        for number in range(3):
            with producer.transaction() as txn:
                txn.send("t", b"%d" % number)
    consumer = store.consumer(["t"])
    end, records = consumer.end_offsets()[T0], []
    while consumer.position(T0) < end:
        records += consumer.poll(max_records=1)
    assert [record.offset for record in records] == [0, 2, 4]
    assert (end, consumer.position(T0)) == (6, 6)
