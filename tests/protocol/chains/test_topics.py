"""Topics that go, and come again under the same name, while transactions over several chains are open."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.helpers.chains import Cluster, groups_of, ids_of, process, write_everywhere
from tests.helpers.connections import connection_of
from txnstore.core.catalog.model import CatalogTopic, CopyTopic, CreateTopic
from txnstore.core.groups.commands import CommitOffsets, TxnOffsets
from txnstore.core.groups.events import GroupOffset
from txnstore.core.groups.offsets import committed
from txnstore.core.invariants.check import check_view
from txnstore.core.log.visibility import visible_slices
from txnstore.core.model import Isolation, Outcome
from txnstore.core.routing import chain_of_group
from txnstore.core.transactions.commands import Ended, EndTxn, InitProducer
from txnstore.core.transactions.model import TxnState
from txnstore.errors import UnknownTopicOrPartitionError
from txnstore.storage.memory import MemoryStore
from txnstore.testing import ManualClock


@pytest.fixture
def cluster() -> Cluster:
    return Cluster(chains=3, partitions=6)


def recreated(cluster: Cluster) -> CatalogTopic:
    """The topic is deleted and created again, which only the catalog's chain knows yet."""
    cluster.delete("t")
    topic: CatalogTopic = cluster.do(0, CreateTopic(CatalogTopic("t", "t-id-2", 6)))
    return topic


def test_late_deletion_keeps_partitions_of_recreated_topic(cluster: Cluster) -> None:
    """END-05: a marker is written in every partition of a transaction, also if its coordinator knew an older topic.

    The one who created the topic again died before the copy to chain 1, and another process copies it while a
    transaction that chain 1 coordinates has data in the new topic already.
    """
    topic = recreated(cluster)
    cluster.do(2, CopyTopic("t", topic, topic.revision))
    tp = cluster.led_by(2)[0]
    cluster.name = cluster.home(1)
    cluster.identity = cluster.do(1, InitProducer(cluster.name))
    cluster.send([tp])
    cluster.do(1, CopyTopic("t", topic, topic.revision))
    cluster.sound()
    cluster.prepare(Outcome.COMMIT)
    cluster.finish()
    cluster.sound()
    assert cluster.states[2].partitions[tp].last_stable_offset == cluster.states[2].partitions[tp].high_watermark
    assert len(visible_slices(tp, cluster.states[2].partitions[tp], Isolation.READ_COMMITTED)) == 1


@pytest.mark.parametrize("outcome", [Outcome.COMMIT, Outcome.ABORT])
@pytest.mark.parametrize("decided", [False, True], ids=["open", "decided"])
@pytest.mark.parametrize("copied_to", [(), (1,), (2,), (1, 2)])
def test_end_07_topic_is_deleted_during_transaction(
    cluster: Cluster, outcome: Outcome, copied_to: tuple[int, ...], *, decided: bool
) -> None:
    """END-07: whichever chains have heard of it, nothing is unsound on the way, and the transaction ends."""
    cluster.begin(cluster.home(1))
    if decided:
        cluster.prepare(outcome)
    cluster.delete("t")
    cluster.sound()
    for number in copied_to:
        cluster.do(number, CopyTopic("t", None, cluster.states[0].sequence))
        cluster.sound()
    if not decided:
        cluster.prepare(outcome)
        cluster.sound()
    if cluster.decided is not None:
        remaining = tuple(tp for tp in cluster.decided.partitions if tp in cluster.states[2].partitions)
        assert bool(remaining) is (2 not in copied_to)
        cluster.decided = replace(cluster.decided, partitions=remaining)
        cluster.finish()
    cluster.sound()
    assert cluster.states[1].transactions[cluster.name].state in (TxnState.COMPLETE_COMMIT, TxnState.COMPLETE_ABORT)
    for number in {1, 2} - set(copied_to):
        cluster.do(number, CopyTopic("t", None, cluster.states[0].sequence))
    cluster.sound()


@pytest.mark.parametrize("home", range(3))
def test_repeated_end_is_answered_after_deletion_of_offset_topic(home: int) -> None:
    """TV2-02: the answer was lost, and the topic that was read is deleted before the call is repeated."""
    clock = ManualClock()
    bucket = MemoryStore(clock=clock)
    store = process(bucket, clock, chains=3)
    store.create_topic("read")
    identity = connection_of(store).submit(InitProducer(ids_of(store, home)))
    groups = [groups_of(store, chain) for chain in range(3)]
    offsets = tuple(TxnOffsets(group, (GroupOffset(topic="read", partition=0, offset=1),)) for group in groups)
    end = EndTxn(identity, Outcome.COMMIT, offsets=offsets)
    first: Ended = connection_of(store).submit(end)
    store.delete_topic("read")
    for caller in (store, process(bucket, clock)):
        assert connection_of(caller).submit(end).producer == first.producer


def test_topic_copy_in_chain_without_its_partitions_is_no_violation() -> None:
    """The chain of a marker gets a copy of the next, smaller topic; that one's deletion closes nothing there."""
    clock = ManualClock()
    bucket = MemoryStore(clock=clock)
    store, other = process(bucket, clock, chains=3), process(bucket, clock)
    store.create_topic("t", partitions=6)
    producer = store.producer(transactional_id=ids_of(store, 0))
    producer.begin_transaction()
    write_everywhere(producer, b"1")
    producer.flush()
    other.delete_topic("t")
    other.create_topic("t", partitions=1)
    producer.abort_transaction()
    store.recover()
    other.delete_topic("t")
    assert check_view(connection_of(process(bucket, clock)).view()) == []


def test_off_18_chain_with_old_topic_refuses_offsets_of_recreated_one(cluster: Cluster) -> None:
    """OFF-18: it gets a copy first, so the deletion alone leaves no offset of a topic that it does not know."""
    before = cluster.states[0]
    cluster.delete("t")
    deleted = cluster.states[0].sequence
    topic: CatalogTopic = cluster.do(0, CreateTopic(CatalogTopic("t", "t-id-2", 6)))
    number = cluster.led_by(1)[0].partition
    group = next(name for name in map(str, range(99)) if chain_of_group(name, 3) == 1)
    item = GroupOffset(topic="t", partition=number, offset=5, topic_id="t-id-2")
    commit = CommitOffsets(TxnOffsets(group, (item,)))
    with pytest.raises(UnknownTopicOrPartitionError, match="created again"):
        cluster.do(1, commit)
    cluster.do(1, CopyTopic("t", None, deleted))
    with pytest.raises(UnknownTopicOrPartitionError, match="no such partition"):
        cluster.do(1, commit)
    cluster.do(1, CopyTopic("t", topic, topic.revision))
    cluster.do(1, commit)
    stale = replace(item, offset=3, topic_id=before.topics["t"].topic_id)
    with pytest.raises(UnknownTopicOrPartitionError, match="created again"):
        cluster.do(1, CommitOffsets(TxnOffsets(group, (stale,))))
    stored = committed(cluster.view(), group, item.tp)
    assert stored is not None
    assert stored.offset == 5
