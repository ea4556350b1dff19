"""OFF-18: offsets that a process with an old catalog commits for a topic that was recreated in between."""

from __future__ import annotations

import pytest

from tests.helpers.chains import groups_of, ids_of, process
from tests.helpers.connections import connection_of
from txnstore.core.groups.commands import CommitOffsets, TxnOffsets
from txnstore.core.groups.events import GroupOffset
from txnstore.core.groups.model import GroupMetadata
from txnstore.core.invariants.check import check_view
from txnstore.core.model import TopicPartition
from txnstore.core.routing import chain_of_group, chain_of_partition
from txnstore.errors import UnknownTopicOrPartitionError
from txnstore.storage.memory import MemoryStore
from txnstore.store import Store
from txnstore.testing import ManualClock

CHAINS = 3
T0 = TopicPartition("t", 0)
#: A group whose chain is neither that of the catalog nor that of the partition.
GROUP = next(
    name for name in map(str, range(99)) if chain_of_group(name, CHAINS) not in {0, chain_of_partition(T0, CHAINS)}
)


class Recreated:
    """A process that read the topic before another one deleted, recreated and filled it."""

    def __init__(self, *, committed: int | None) -> None:
        clock, bucket = ManualClock(), MemoryStore()
        self.store = process(bucket, clock, chains=CHAINS)
        self.store.create_topic("t")
        self.stale = process(bucket, clock)
        self.old = connection_of(self.stale).view(refresh=False).topics["t"].topic_id
        self.store.delete_topic("t")
        self.store.create_topic("t")
        if committed is not None:
            self.commit(self.store, committed)

    def commit(self, store: Store, offset: int) -> None:
        store.consumer(group=GROUP).commit({T0: offset})

    @property
    def committed(self) -> int | None:
        assert check_view(connection_of(self.store).view()) == []
        return self.store.consumer(group=GROUP).committed(T0)


def commit_old(store: Store, topic_id: str, kind: str) -> None:
    """Commit offset 7 of the topic that was read."""
    item = GroupOffset(topic="t", partition=0, offset=7, topic_id=topic_id)
    if kind == "plain":
        connection_of(store).submit(CommitOffsets(TxnOffsets(GROUP, (item,))))
        return
    producer = store.producer(ids_of(store, int(kind)))
    producer.begin_transaction()
    producer.send_offsets({T0: 7}, GroupMetadata(GROUP, topic_ids={"t": topic_id}))
    producer.commit_transaction()


@pytest.mark.parametrize("kind", ["plain", "0", "1", "2"])
@pytest.mark.parametrize("first", [None, 2], ids=["first", "later"])
def test_off_18_offset_of_the_old_topic_replaces_none_of_the_new_one(kind: str, first: int | None) -> None:
    """Plain, and in transactions that each of the chains coordinates."""
    case = Recreated(committed=first)
    case.commit(case.store, 3)
    with pytest.raises(UnknownTopicOrPartitionError, match="created again"):
        commit_old(case.stale, case.old, kind)
    assert case.committed == 3


def test_offset_by_name_is_one_of_the_new_topic() -> None:
    """The caller names no id: the head of the catalog decides, not what the process happens to know."""
    case = Recreated(committed=3)
    case.commit(case.stale, 5)
    assert case.committed == 5


def test_offset_of_the_new_topic_replaces_one_of_the_old() -> None:
    """In one attempt, for a process that knows the newest catalog."""
    clock, bucket = ManualClock(), MemoryStore()
    store = process(bucket, clock, chains=CHAINS)
    store.create_topic("t")
    store.consumer(group=GROUP).commit({T0: 9})
    store.delete_topic("t")
    store.create_topic("t")
    assert store.consumer(group=GROUP).committed(T0) is None
    connection_of(store).counts.reset()
    store.consumer(group=GROUP).commit({T0: 1})
    assert [kind for kind, _ in connection_of(store).counts.log] == ["put_if_absent"]
    assert store.consumer(group=GROUP).committed(T0) == 1


def test_delayed_commit_that_was_checked_at_the_head_is_refused() -> None:
    """The check and the commit are two steps: the topic may be recreated, and read, between them."""
    case = Recreated(committed=None)
    checked = TxnOffsets(GROUP, (GroupOffset(topic="t", partition=0, offset=7, topic_id=case.old),), catalog=1)
    case.commit(case.store, 3)
    number = chain_of_group(GROUP, CHAINS)
    with pytest.raises(UnknownTopicOrPartitionError, match="too long ago"):
        connection_of(case.stale).chains[number].submit(CommitOffsets(checked))
    assert case.committed == 3


def test_pending_offset_of_the_old_topic_replaces_none_of_the_new_one() -> None:
    """One transaction has a pending offset of the new topic when the other one sends that of the old topic."""
    case = Recreated(committed=None)
    producer = case.store.producer("new")
    producer.begin_transaction()
    producer.send_offsets({T0: 3}, GROUP)
    producer.flush()
    with pytest.raises(UnknownTopicOrPartitionError, match="created again"):
        commit_old(case.stale, case.old, "1")
    producer.commit_transaction()
    assert case.committed == 3


@pytest.mark.parametrize("recreated", [False, True], ids=["deleted", "recreated"])
@pytest.mark.parametrize("pending", [False, True], ids=["committed", "pending"])
def test_off_18_group_of_another_chain_lists_no_offsets_of_a_deleted_topic(*, recreated: bool, pending: bool) -> None:
    """The chain of the group does not learn of the deletion; a pending offset blocks no reader of the new topic."""
    store = process(MemoryStore(), ManualClock(), chains=CHAINS)
    store.create_topic("t")
    store.create_topic("kept")
    store.consumer(group=GROUP).commit({TopicPartition("kept", 0): 1})
    producer = store.producer("a")
    producer.begin_transaction()
    if pending:
        producer.send_offsets({T0: 9}, GROUP)
        producer.flush()
    else:
        store.consumer(group=GROUP).commit({T0: 9})
    store.delete_topic("t")
    if recreated:
        store.create_topic("t")
        assert store.consumer(group=GROUP).committed(T0) is None
    rows = store.sql("select topic, committed_offset from txn.groups").fetchall()
    assert rows == [("kept", 1)]
    assert [position.tp.topic for position in store.group(GROUP).positions] == ["kept"]
    producer.abort_transaction()
    assert check_view(connection_of(store).view()) == []


@pytest.mark.parametrize("recreated", [False, True], ids=["first", "recreated"])
@pytest.mark.parametrize("home", range(CHAINS))
@pytest.mark.parametrize("first", range(CHAINS))
@pytest.mark.parametrize("second", range(CHAINS))
@pytest.mark.parametrize("step", ["flush", "prepare", "commit"])
def test_own_entries_do_not_outdate_the_lookup_of_topics(
    home: int, first: int, second: int, step: str, *, recreated: bool
) -> None:
    """Offsets of two groups in one transaction, whichever chains coordinate them, and each part is written once.

    The coordinator's entry may be in the catalog's chain, and the chain of a group follows from it: the topics are
    looked up after that entry, not before.
    """
    store = process(MemoryStore(), ManualClock(), chains=CHAINS)
    store.create_topic("t")
    names = {groups_of(store, first), groups_of(store, second)}
    if recreated:
        for name in names:
            store.consumer(group=name).commit({T0: 9})
        store.delete_topic("t")
        store.create_topic("t")
    producer = store.producer(ids_of(store, home))
    producer.begin_transaction()
    producer.send("t", b"v", partition=0)
    for name in sorted(names):
        producer.send_offsets({T0: 3}, name)
    before = entries_of(store)
    if step != "commit":
        producer.flush()
        parts = {home, chain_of_partition(T0, CHAINS), first, second}
        assert entries_of(store) - before <= len(parts) + 1  # An entry that adds the other chains goes ahead.
    if step == "prepare":
        producer.prepare_transaction()
    producer.commit_transaction()
    assert check_view(connection_of(store).view()) == []
    assert {store.consumer(group=name).committed(T0) for name in names} == {3}


def entries_of(store: Store) -> int:
    """The number of entries in all chains."""
    return sum(state.sequence for state in connection_of(store).view().states)


def test_first_offset_of_a_partition_needs_no_newest_catalog() -> None:
    """Nothing can be replaced by it, so entries of other processes in the catalog's chain do not delay it."""
    case = Recreated(committed=None)
    case.commit(case.store, 3)
    other, number = TopicPartition("u", 0), chain_of_group(GROUP, CHAINS)
    case.store.create_topic("u")
    before = connection_of(case.store).view().states[0].sequence
    case.store.create_topic("v")
    case.store.consumer(group=GROUP).commit({TopicPartition("v", 0): 1})
    item = GroupOffset(topic="u", partition=0, offset=7, topic_id=case.store.topic("u").topic_id)
    assert connection_of(case.store).chains[number].state.seen[0] > before
    connection_of(case.store).chains[number].submit(CommitOffsets(TxnOffsets(GROUP, (item,), catalog=before)))
    assert case.store.consumer(group=GROUP).committed(other) == 7
    assert check_view(connection_of(case.store).view()) == []
