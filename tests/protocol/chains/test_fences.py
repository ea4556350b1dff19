"""One fence table per chain: what has ended, was fenced or is prepared elsewhere takes nothing more anywhere in it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.helpers.chains import Cluster, groups_of, ids_of, partitions_of, process, value_counts
from tests.helpers.connections import connection_of
from txnstore.coordinator.copies import submit_copying_topics
from txnstore.core.catalog.model import CatalogTopic, CloseTopic, CopyTopic, CreateTopic, DeleteTopic
from txnstore.core.groups.commands import CommitOffsets, TxnOffsets
from txnstore.core.groups.events import GroupOffset
from txnstore.core.groups.offsets import committed
from txnstore.core.invariants.check import check_view
from txnstore.core.log.commands import Added, Append
from txnstore.core.log.model import NewBatch, Segment
from txnstore.core.model import Map, Outcome, TopicPartition
from txnstore.core.routing import chain_of_group
from txnstore.core.transactions.commands import EndTxn, FenceProducer, InitProducer, PrepareTxn, WriteMarkers
from txnstore.errors import (
    InvalidTxnStateError,
    ProducerFencedError,
    TopicChangedError,
    UnknownOutcomeError,
    UnknownTopicOrPartitionError,
)
from txnstore.storage.memory import MemoryStore
from txnstore.store import Store
from txnstore.testing import Fault, FaultStore, ManualClock, on

GROUPS = [name for name in (f"g{number}" for number in range(99)) if chain_of_group(name, 2) == 1]


def positions(group: str, partition: int = 0, at: int = 5) -> TxnOffsets:
    return TxnOffsets(group, (GroupOffset(topic="t", partition=partition, offset=at),))


@pytest.fixture
def cluster() -> Cluster:
    """Two chains; a transactional id of chain 0 is initialised."""
    cluster = Cluster(chains=2)
    cluster.name = cluster.home(0)
    cluster.identity = cluster.do(0, InitProducer(cluster.name))
    return cluster


def added(cluster: Cluster, *tps: TopicPartition, groups: tuple[str, ...] = ()) -> Added:
    """The coordinator has these in the open transaction."""
    cluster.do(0, Append(cluster.identity, partitions=tps, groups=groups))
    return Added(0, cluster.states[0].sequence, cluster.states[0].timestamp)


# A marker fences the chain --------------------------------------------------------------------------------------------


def test_fen_02_late_batch_is_refused_in_recreated_topic(cluster: Cluster) -> None:
    """FEN-02, END-07: chain 1 has not heard that the topic was deleted and created again when it gets the marker."""
    tp = cluster.led_by(1)[0]
    cluster.delete("t")
    topic: CatalogTopic = cluster.do(0, CreateTopic(CatalogTopic("t", "t-id-2", 4)))
    evidence = added(cluster, tp)
    append = Append(cluster.identity, (cluster.batch(tp),), added=evidence)
    cluster.prepare(Outcome.ABORT)
    cluster.finish()
    cluster.do(1, CopyTopic("t", topic, topic.revision))
    with pytest.raises(ProducerFencedError):
        cluster.do(1, append)
    assert cluster.states[1].partitions[tp].open_txns == Map()
    cluster.sound()


def test_fen_02_takeover_fences_topics_unknown_to_chain(cluster: Cluster) -> None:
    """TPC-05: the fence of KIP-939 survives that the topic is deleted and created again."""
    tp = cluster.led_by(1)[0]
    evidence = added(cluster, tp)
    cluster.do(0, PrepareTxn(cluster.identity))
    grant = cluster.do(0, InitProducer(cluster.name, keep_prepared=True))
    cluster.do(1, FenceProducer(grant.producer, grant.partitions, grant.groups, (0, cluster.states[0].sequence)))
    cluster.delete("t")
    topic: CatalogTopic = cluster.do(0, CreateTopic(CatalogTopic("t", "t-id-2", 4)))
    cluster.do(1, CopyTopic("t", topic, topic.revision))
    with pytest.raises(ProducerFencedError):
        cluster.do(1, Append(cluster.identity, (cluster.batch(tp),), added=evidence))


def test_fen_02_marker_fences_whole_chain(cluster: Cluster) -> None:
    """One table: an older epoch is refused in every partition and group of the chain."""
    first, second = cluster.led_by(1)
    evidence = added(cluster, first)
    cluster.prepare(Outcome.ABORT)
    cluster.finish()
    for append in (
        Append(cluster.identity, (cluster.batch(second),), added=evidence),
        Append(cluster.identity, (), (positions(GROUPS[1]),), added=evidence),
    ):
        with pytest.raises(ProducerFencedError):
            cluster.do(1, append)
    cluster.sound()


@pytest.mark.parametrize("copies_current", [False, True])
def test_end_07_marker_is_not_written_to_recreated_topic(cluster: Cluster, *, copies_current: bool) -> None:
    """END-07: a transaction names its topics, so the next topic of the name gets no marker of it."""
    tp = cluster.led_by(1)[0]
    cluster.do(0, Append(cluster.identity, partitions=(tp,), topic_ids=(("t", "t-id"),)))
    cluster.prepare(Outcome.ABORT)
    cluster.delete("t")
    topic: CatalogTopic = cluster.do(0, CreateTopic(CatalogTopic("t", "t-id-2", 4)))
    cluster.do(1, CopyTopic("t", topic, topic.revision))
    assert cluster.decided is not None
    markers = WriteMarkers(cluster.decided, (0, cluster.states[0].sequence), copies_current=copies_current)
    if not copies_current:
        with pytest.raises(UnknownTopicOrPartitionError, match="does not know"):
            cluster.do(1, markers)
        return
    cluster.do(1, markers)
    assert cluster.states[1].partitions[tp].high_watermark == 0
    assert cluster.states[1].fences[cluster.identity.producer_id].epoch == cluster.identity.epoch + 1
    cluster.sound()


# Two-phase commit -----------------------------------------------------------------------------------------------------


def batch_for(store: Store, chain: int, sequence: int = 0) -> NewBatch:
    number = partitions_of(store, chain)[0]
    key = f"topics/t/{number}/{sequence}.parquet"
    return NewBatch("t", number, Segment(key, "parquet", 10, "0" * 64, 1), 7, 8, sequence)


def test_tpc_03_prepared_transaction_refuses_batches_in_all_chains() -> None:
    """TPC-03: its coordinator refuses them, also where the partition was added before."""
    clock = ManualClock()
    store = process(MemoryStore(clock=clock), clock, chains=2)
    store.create_topic("t", partitions=4)
    identity = connection_of(store).submit(InitProducer(ids_of(store, 0)))
    connection_of(store).submit(Append(identity, (batch_for(store, 1),)))
    connection_of(store).submit(PrepareTxn(identity))
    for append in (
        Append(identity, (batch_for(store, 1, 1),)),
        Append(identity, offsets=(positions(groups_of(store, 1)),)),
    ):
        with pytest.raises(InvalidTxnStateError, match=r"^transaction 'id-.* is prepared"):
            connection_of(store).submit(append)
    assert connection_of(store).submit(EndTxn(identity, Outcome.COMMIT)).producer.epoch == identity.epoch + 1
    store.recover()
    assert check_view(connection_of(store).view()) == []


def test_tpc_03_batch_added_before_prepare_is_refused_after_it() -> None:
    """TPC-03: the coordinator's word is older than the prepare, and reaches the other chain after it."""
    clock = ManualClock()
    bucket = MemoryStore(clock=clock)
    store = process(bucket, clock, chains=2)
    store.create_topic("t", partitions=4)
    identity = connection_of(store).submit(InitProducer(ids_of(store, 0)))
    connection_of(store).submit(Append(identity, (batch_for(store, 1),)))
    state = connection_of(store).chains[0].state
    evidence = Added(0, state.sequence, state.timestamp)
    connection_of(process(bucket, clock)).submit(PrepareTxn(identity))
    for append in (
        Append(identity, (batch_for(store, 1, 1),), added=evidence),
        Append(identity, (), (positions(groups_of(store, 1)),), added=evidence),
    ):
        with pytest.raises(InvalidTxnStateError, match="prepared"):
            connection_of(store).chains[1].submit(append)


# Topics ---------------------------------------------------------------------------------------------------------------


def test_deleted_topic_acknowledges_no_records() -> None:
    """A process deletes a topic whose copies it has never seen: every chain refuses what comes after."""
    clock = ManualClock()
    bucket = MemoryStore(clock=clock)
    first = process(bucket, clock, chains=2)
    second = process(bucket, clock)
    first.create_topic("t", partitions=2)
    producer = first.producer(linger=None)
    for number in range(2):
        producer.send("t", b"before", partition=number)
    producer.flush()
    (number,) = partitions_of(first, 1)
    second.delete_topic("t")
    with pytest.raises(UnknownTopicOrPartitionError):
        producer.send("t", b"after", partition=number).result()
    assert connection_of(first).chains[1].refresh().partitions.get(TopicPartition("t", number)) is None


def test_deletion_fails_if_chain_cannot_close_topic() -> None:
    """The catalog deletes only what no chain takes records of any more; a repeated call, or a recovery, continues."""
    clock = ManualClock()
    bucket = MemoryStore(clock=clock)
    store = process(bucket, clock, chains=3)
    store.create_topic("t", partitions=6)
    producer = store.producer(linger=None)
    write = {chain: partitions_of(store, chain)[0] for chain in range(3)}
    for number in write.values():
        producer.send("t", b"before", partition=number)
    producer.flush()
    away = on(Fault.ERROR_BEFORE, "put_if_absent", key_contains="/0002/", times=None)
    with pytest.raises(UnknownOutcomeError):
        process(FaultStore(bucket, away), clock).delete_topic("t")
    assert value_counts(store) == {b"before": 3}
    for chain, number in write.items():
        if chain == 1:
            with pytest.raises(UnknownTopicOrPartitionError, match="is being deleted"):
                producer.send("t", b"after", partition=number).result()
        else:
            producer.send("t", b"after", partition=number).result()
    assert process(bucket, clock).recover().topics == 1
    assert store.topics() == []
    assert check_view(connection_of(store).view()) == []
    for number in write.values():
        with pytest.raises(UnknownTopicOrPartitionError):
            process(bucket, clock).producer(linger=None).send("t", b"late", partition=number)


def test_topic_altered_during_deletion_is_closed_again() -> None:
    """The deletion names the revision that it has closed: what was opened since is closed before it is deleted."""
    clock = ManualClock()
    bucket = MemoryStore(clock=clock)
    store = process(bucket, clock, chains=2)
    topic = store.create_topic("t", partitions=2)
    connection_of(store).chains[1].submit(CloseTopic("t", connection_of(store).chains[0].state.topics["t"].revision))
    with pytest.raises(UnknownTopicOrPartitionError):
        store.producer(linger=None).send("t", b"1", partition=partitions_of(store, 1)[0]).result()
    stale = DeleteTopic("t", connection_of(store).chains[0].state.topics["t"].revision)
    store.alter_topic("t", partitions=4)
    assert not connection_of(store).chains[1].refresh().is_closed(connection_of(store).chains[1].state.topics["t"])
    with pytest.raises(TopicChangedError):
        connection_of(store).chains[0].submit(stale)
    store.delete_topic(topic.name)
    state = connection_of(store).chains[1].refresh()
    assert stale.revision is not None
    connection_of(store).chains[1].submit(
        CopyTopic("t", CatalogTopic("t", "t-id", 2, revision=stale.revision), stale.revision)
    )
    assert connection_of(store).chains[1].state is state, "a copy that comes late revives nothing"


def test_off_18_offsets_of_topic_unknown_to_chain_of_group() -> None:
    """OFF-18: a group's chain without a copy of the topic gets one, as for a record."""
    clock = ManualClock()
    bucket = MemoryStore(clock=clock)
    process(bucket, clock, chains=2)
    away = on(Fault.UNAVAILABLE_503, "put_if_absent", key_contains="/0001/", times=None)
    process(FaultStore(bucket, away), clock).create_topic("t", partitions=4)
    store = process(bucket, clock)
    group, number = groups_of(store, 1), partitions_of(store, 1)[0]
    assert "t" not in connection_of(store).chains[1].state.topics
    tp = TopicPartition("t", number)
    connection_of(store).submit(CommitOffsets(positions(group, number)))
    stored = committed(connection_of(store).view(), group, tp)
    assert stored is not None
    assert stored.offset == 5
    assert value_counts(store) == {}


def test_fen_02_late_batch_is_refused_in_recreated_topic_with_markers() -> None:
    """FEN-02: chain 1 is away while a topic is created again, and its first batch comes after the abort."""
    clock = ManualClock()
    bucket = MemoryStore(clock=clock)
    first = process(bucket, clock, chains=2)
    first.create_topic("t", partitions=4)
    catalog, other = connection_of(first).chains
    tp, revision = TopicPartition("t", partitions_of(first, 1)[0]), catalog.state.topics["t"].revision
    other.submit(CloseTopic("t", revision))
    catalog.submit(DeleteTopic("t", revision, ((1, other.state.sequence),)))
    away = on(Fault.UNAVAILABLE_503, "put_if_absent", key_contains="/0001/", times=None)
    process(FaultStore(bucket, away), clock).create_topic("t", partitions=4)
    slow = process(bucket, clock)
    identity = connection_of(slow).submit(InitProducer(ids_of(slow, 0)))
    coordinator = connection_of(slow).chains[0]
    topic_id = coordinator.state.topics["t"].topic_id
    coordinator.submit(Append(identity, partitions=(tp,), topic_ids=(("t", topic_id),)))
    evidence = Added(0, coordinator.state.sequence, coordinator.state.timestamp)
    connection_of(process(bucket, clock)).submit(InitProducer(ids_of(slow, 0)))
    append = Append(identity, (replace(batch_for(slow, 1), topic_id=topic_id),), added=evidence)
    with pytest.raises(ProducerFencedError):
        submit_copying_topics(connection_of(slow).chains, 1, append)
    last = process(bucket, clock)
    last.recover()
    assert check_view(connection_of(last).view()) == []
