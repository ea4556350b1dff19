"""Consumer offsets inside transactions, through the real producer (OFF-03…06, 11…13, 15; API-20)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.helpers.connections import connection_of
from tests.helpers.producing import Bench
from tests.helpers.reading import kinds
from tests.helpers.shell import ONE_CHAIN, T0, T1, another_process, entries, sound, values
from txnstore.core.groups.model import GroupMetadata, OffsetAndMetadata
from txnstore.core.groups.offsets import committed
from txnstore.core.model import TopicPartition
from txnstore.errors import (
    IllegalGenerationError,
    InvalidConfigError,
    InvalidTopicError,
    InvalidTxnStateError,
    OffsetMetadataTooLargeError,
    ProducerClosedError,
    ProducerFencedError,
    UnknownMemberError,
    UnknownTopicOrPartitionError,
    UnstableOffsetCommitError,
)
from txnstore.producer import Producer


@pytest.fixture
def bench(chains: int) -> Bench:
    return Bench(chains=chains)


def position(bench: Bench, tp: TopicPartition = T0, group: str = "g", *, stable: bool = False) -> int | None:
    position_and_metadata = committed(sound(bench.store), group, tp, require_stable=stable)
    return None if position_and_metadata is None else position_and_metadata.offset


def plain(bench: Bench, offset: int, tp: TopicPartition = T0) -> None:
    """A commit outside a transaction."""
    bench.store.consumer(["t"], "g").commit({tp: offset})


def begun(bench: Bench, name: str = "id") -> Producer:
    producer = bench.store.producer(name)
    producer.begin_transaction()
    return producer


@ONE_CHAIN
def test_offsets_and_records_become_visible_together(bench: Bench) -> None:
    """OFF-03, BUG-19: before the commit neither, after it both, in one entry."""
    producer = begun(bench)
    producer.send("t", b"out", partition=1)
    producer.send_offsets({T0: 5}, "g")
    producer.flush()
    assert (values(bench.store), position(bench)) == ([], None)
    producer.commit_transaction()
    assert (values(bench.store), position(bench)) == ([b"out"], 5)
    last = entries(bench.inner)[-1]
    assert {"MarkerWritten", "GroupMarkerWritten", "TxnCompleted"} <= {event.type for event in last.events}


def test_an_abort_leaves_the_offsets_as_they_were(bench: Bench) -> None:
    plain(bench, 3)
    producer = begun(bench)
    producer.send_offsets({T0: 5}, "g")
    producer.send("t", b"x")
    producer.flush()
    producer.abort_transaction()
    assert position(bench, stable=True) == 3


def test_stable_read_of_pending_offsets_is_refused(bench: Bench) -> None:
    """OFF-09, KIP-447."""
    plain(bench, 3)
    producer = begun(bench)
    producer.send_offsets({T0: 5}, "g")
    producer.send("t", b"x")
    producer.flush()
    assert position(bench) == 3
    with pytest.raises(UnstableOffsetCommitError, match="t-0 in group 'g'"):
        position(bench, stable=True)
    assert position(bench, T1, stable=True) is None
    producer.commit_transaction()
    assert position(bench, stable=True) == 5


def test_the_last_offset_of_a_partition_wins_and_groups_are_apart(bench: Bench) -> None:
    """OFF-12."""
    with begun(bench) as producer:
        producer.send_offsets({T0: 10, T1: 5}, "g")
        producer.send_offsets({T0: 20}, "g")
        producer.send_offsets({T0: 7}, "h")
        producer.commit_transaction()
    assert [position(bench, tp, group) for tp, group in ((T0, "g"), (T1, "g"), (T0, "h"))] == [20, 5, 7]


@pytest.mark.parametrize("plain_first", [True, False])
def test_the_later_write_in_the_log_wins_not_the_later_commit(bench: Bench, *, plain_first: bool) -> None:
    """OFF-11."""
    producer = begun(bench)
    if plain_first:
        plain(bench, 90)
    producer.send_offsets({T0: 100}, "g")
    producer.send("t", b"x")
    producer.flush()
    if not plain_first:
        plain(bench, 90)
    producer.commit_transaction()
    assert position(bench) == (100 if plain_first else 90)


def test_two_producers_hold_offsets_of_one_group(bench: Bench) -> None:
    """OFF-13: each resolves its own, and a stable read waits for both."""
    a, b = begun(bench, "a"), begun(bench, "b")
    for producer, offsets in ((a, {T0: 1}), (b, {T0: 2, T1: 2})):
        producer.send_offsets(offsets, "g")
        producer.send("t", b"x")
        producer.flush()
    a.commit_transaction()
    assert position(bench) == 1
    with pytest.raises(UnstableOffsetCommitError):
        position(bench, stable=True)
    b.abort_transaction()
    assert position(bench, stable=True) == 1
    assert position(bench, T1, stable=True) is None


def test_offsets_of_a_zombie_are_refused(bench: Bench) -> None:
    """OFF-05."""
    zombie = begun(bench)
    zombie.send_offsets({T0: 5}, "g")
    bench.store.producer("id")
    with pytest.raises(ProducerFencedError):
        zombie.commit_transaction()
    assert position(bench) is None


def test_offsets_of_a_removed_member_are_refused_and_its_transaction_can_be_aborted(bench: Bench) -> None:
    """OFF-06: abortable; nothing of the transaction is visible, and the producer continues."""
    plain(bench, 3)
    producer = begun(bench)
    producer.send("t", b"x")
    with pytest.raises(UnknownMemberError, match="no member 'm'"):
        producer.send_offsets({T0: 5}, GroupMetadata("g", generation=7, member_id="m"))
    with pytest.raises(InvalidTxnStateError, match="abort it"):
        producer.commit_transaction()
    producer.abort_transaction()
    assert (values(bench.store), position(bench)) == ([], 3)
    with producer.transaction() as txn:
        txn.send_offsets({T0: 6}, GroupMetadata("g"))
    assert position(bench) == 6


def test_send_offsets_raises_what_this_process_can_know_and_the_commit_the_rest(bench: Bench) -> None:
    """OFF-06: as Kafka's ``TxnOffsetCommit``. The known state is enough, but for one GET where it disagrees."""
    consumer = bench.store.consumer(["t"], "g")
    consumer.poll()
    producer, metadata = begun(bench), consumer.group_metadata()
    counts = connection_of(bench.store).counts
    counts.reset()
    producer.send_offsets({T0: 1}, metadata)
    assert kinds(bench.store) == []
    other = another_process(bench.store).consumer(["t"], "g")
    other.poll()
    producer.send_offsets({T0: 2}, metadata)
    assert kinds(bench.store) == [], "another process has rebalanced the group: the commit finds it"
    with pytest.raises(IllegalGenerationError):
        producer.commit_transaction()
    producer.abort_transaction()
    producer.begin_transaction()
    counts.reset()
    with pytest.raises(IllegalGenerationError, match="at generation 2, not 1"):
        producer.send_offsets({T0: 2}, metadata)
    assert kinds(bench.store) == ["get"]
    with pytest.raises(InvalidTxnStateError, match="abort it"):
        producer.commit_transaction()
    producer.abort_transaction()
    assert position(bench) is None


def test_membership_that_is_newer_than_the_known_state_is_looked_up(bench: Bench) -> None:
    """A consumer of another store object has joined since this one has read the chain: one GET, and no error."""
    producer, counts = begun(bench), connection_of(bench.store).counts
    consumer = another_process(bench.store).consumer(["t"], "g")
    consumer.poll()
    counts.reset()
    producer.send_offsets({T0: 1}, consumer.group_metadata())
    assert set(kinds(bench.store)) == {"get"}
    producer.commit_transaction()
    assert position(bench) == 1


def test_group_metadata_of_consumer_is_accepted_by_producer(bench: Bench) -> None:
    consumer = bench.store.consumer(["t"], "g")
    with begun(bench) as producer:
        producer.send_offsets_to_transaction({T0: 4}, consumer.group_metadata())
        producer.commit_transaction()
    assert position(bench) == 4


def test_metadata_and_leader_epoch_are_returned(bench: Bench) -> None:
    """OFF-15: Kafka's own vector."""
    value = OffsetAndMetadata(110, "some metadata ü", 15)
    with begun(bench) as producer:
        producer.send_offsets({T0: value}, "g")
        producer.commit_transaction()
    with another_process(bench.store, bench.inner) as other:
        assert other.consumer(["t"], "g").committed(T0, metadata=True) == value


def test_empty_offsets_are_ignored(bench: Bench) -> None:
    """API-20."""
    producer = begun(bench)
    producer.send_offsets({}, "g")
    connection_of(bench.store).counts.reset()
    producer.commit_transaction()
    assert bench.log() == []


@pytest.mark.parametrize("name", ["id", None], ids=["transactional", "idempotent"])
def test_empty_offsets_need_no_transaction(bench: Bench, name: str | None) -> None:
    """API-20: ``KafkaProducer.sendOffsetsToTransaction`` returns before it looks at the state; a closed one raises."""
    producer = bench.store.producer(name)
    producer.send_offsets({}, "g")
    with pytest.raises(InvalidTxnStateError):
        producer.send_offsets({T0: 1}, "g")
    producer.close()
    with pytest.raises(ProducerClosedError):
        producer.send_offsets({}, "g")


@pytest.mark.parametrize("number", [3, np.int64(3), np.int8(3), np.uint32(3)], ids=lambda value: type(value).__name__)
def test_any_integer_is_an_offset(bench: Bench, number: Any) -> None:
    with begun(bench) as producer:
        producer.send_offsets({TopicPartition("t", np.int32(0)): number}, "g")  # type: ignore[arg-type]
        producer.commit_transaction()
    offset = position(bench)
    assert (offset, type(offset)) == (3, int)


@pytest.mark.parametrize(
    ("offsets", "error", "says"),
    [
        ({T0: 1.5}, InvalidConfigError, "offset of t-0 must be an integer, not 1.5"),
        ({T0: "5"}, InvalidConfigError, "offset of t-0 must be an integer, not '5'"),
        ({T0: None}, InvalidConfigError, "offset of t-0 must be an integer, not None"),
        ({T0: True}, InvalidConfigError, "offset of t-0 must be an integer, not True"),
        ({("t", "0"): 1}, InvalidConfigError, "partition of 't' must be an integer, not '0'"),
        ({("t", 0.0): 1}, InvalidConfigError, "partition of 't' must be an integer, not 0.0"),
        ({(b"t", 0): 1}, InvalidTopicError, "a topic name is a string, not bytes"),
        ({"topic": 1}, InvalidConfigError, "given by TopicPartition, not by 'topic'"),
        ({7: 1}, InvalidConfigError, "given by TopicPartition, not by 7"),
        ({T0: OffsetAndMetadata(1, 5)}, InvalidConfigError, "metadata of t-0 must be a string"),  # type: ignore[arg-type]
        ({T0: OffsetAndMetadata(1, "\ud800")}, InvalidConfigError, "metadata of t-0 must be a string of Unicode"),
        ({T0: OffsetAndMetadata(1, "", "x")}, InvalidConfigError, "leader epoch of t-0"),  # type: ignore[arg-type]
        ({T0: -1}, InvalidConfigError, "offset -1 of t-0"),
        ({T0: 2**63}, InvalidConfigError, "offset 9223372036854775808 of t-0"),
        ({TopicPartition("t", -1): 1}, UnknownTopicOrPartitionError, "not -1"),
        ({TopicPartition("t", 3): 1}, UnknownTopicOrPartitionError, "has 3 partitions, so there is no partition 3"),
        ({TopicPartition("u", 0): 1}, UnknownTopicOrPartitionError, "there is no topic 'u'"),
        pytest.param(
            {T0: OffsetAndMetadata(1, "x" * 4097)}, OffsetMetadataTooLargeError, "longer than 4096", id="long"
        ),
    ],
    ids=str,
)
def test_invalid_offset_is_refused_by_send_offsets(
    bench: Bench, offsets: Any, error: type[Exception], says: str
) -> None:
    """It must never reach an entry: the store would be unreadable. API-05: the transaction cannot be committed.

    An application that logs the error and commits would read its input again, and write its output twice.
    """
    producer = begun(bench)
    producer.send("t", b"x", partition=0)
    producer.flush()
    with pytest.raises(error, match=says):
        producer.send_offsets(offsets, "g")
    for call in (producer.commit_transaction, lambda: producer.send("t", b"x"), producer.prepare_transaction):
        with pytest.raises(InvalidTxnStateError, match="abort it"):
            call()
    producer.abort_transaction()
    assert values(bench.store) == []
    with producer.transaction() as txn:
        txn.send("t", b"y", partition=0)
        txn.send_offsets({T0: 2}, "g")
    assert (values(bench.store), position(bench)) == ([b"y"], 2)


def test_commit_fails_for_offsets_of_a_deleted_topic(bench: Bench) -> None:
    """OFF-18: nothing of the transaction is committed, and it can be aborted."""
    bench.store.create_topic("u")
    producer = begun(bench)
    producer.send("t", b"x", partition=0)
    producer.send_offsets({TopicPartition("u", 0): 1}, "g")
    bench.store.delete_topic("u")
    before = entries(bench.inner)
    with pytest.raises(UnknownTopicOrPartitionError, match="u-0: there is no such partition"):
        producer.commit_transaction()
    assert entries(bench.inner) == before
    producer.abort_transaction()
    assert values(bench.store) == []


@pytest.mark.parametrize("group", [None, 5, b"g", pytest.param(object(), id="object"), "", "x" * 250, "a\tb"], ids=repr)
def test_invalid_group_is_refused(bench: Bench, group: Any) -> None:
    """API-20."""
    producer = begun(bench)
    with pytest.raises(InvalidConfigError, match="group"):
        producer.send_offsets({T0: 1}, group)
    with pytest.raises(InvalidTxnStateError, match="abort it"):
        producer.commit_transaction()
    producer.abort_transaction()


def test_off_10_flush_registers_offsets_without_records(bench: Bench) -> None:
    """OFF-02, OFF-10: after the flush no stable fetch returns the old offset, whatever the outcome."""
    plain(bench, 3)
    producer = begun(bench)
    producer.send_offsets({T0: 5}, "g")
    assert position(bench, stable=True) == 3
    producer.flush()
    with pytest.raises(UnstableOffsetCommitError):
        position(bench, stable=True)
    written = len(entries(bench.inner))
    producer.flush()
    assert len(entries(bench.inner)) == written
    producer.commit_transaction()
    assert position(bench, stable=True) == 5
