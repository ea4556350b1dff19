"""A disk that shows what it has not flushed: no such object is a reason to acknowledge or to delete anything."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tests.helpers import keys
from tests.helpers.compaction import DAY_MS, begin, commit, new_store, rows
from tests.helpers.connections import connection_of
from tests.helpers.shell import a_chain, another_process, names_in_bucket, runtime, topic
from txnstore.compactor import backup, watch_backup
from txnstore.connection import open_connection
from txnstore.coordinator.copies import copy_everywhere
from txnstore.core.catalog.model import CreateTopic
from txnstore.core.model import TopicPartition
from txnstore.core.routing import chain_of_group, chain_of_partition
from txnstore.errors import StorageError, TopicExistsError, UnknownOutcomeError, UnknownTopicOrPartitionError
from txnstore.storage.base import ObjectInfo
from txnstore.storage.memory import MemoryStore
from txnstore.store import create_on, open_on
from txnstore.testing import Fault, FaultStore, ManualClock, no_faults, on, seeded

#: The chain of the group ``g`` in a store of three chains.
CHAIN_OF_G = chain_of_group("g", 3)


def test_acknowledged_commit_survives_a_power_cut() -> None:
    """OBJ-02: the flush of its entry fails once; the commit is acknowledged when an answer says that it is flushed."""
    disk = MemoryStore()
    objects = FaultStore(disk, on(Fault.UNSYNCED, "put_if_absent"))
    with a_chain(objects) as chain:
        chain.submit(CreateTopic(topic("ours")))
    objects.power_loss()
    assert names_in_bucket(disk) == ["ours"]


def test_commit_on_a_disk_that_never_flushes_is_unknown() -> None:
    disk = MemoryStore()
    objects = FaultStore(disk, on(Fault.UNSYNCED, "put_if_absent", times=None))
    with a_chain(objects) as chain:
        with pytest.raises(UnknownOutcomeError):
            chain.submit(CreateTopic(topic("ours")))
        assert names_in_bucket(disk) == ["ours"], "it is visible"
    assert objects.power_loss() == 1
    assert names_in_bucket(disk) == []


def test_entry_that_a_reader_of_the_process_has_found_is_not_taken_for_durable() -> None:
    """The outcome is unknown, a reader folds the visible entry, and the next command has no events of its own."""
    disk = MemoryStore()
    objects = FaultStore(disk, on(Fault.UNSYNCED, "put_if_absent", times=8))
    with a_chain(objects) as chain:
        with pytest.raises(UnknownOutcomeError):
            chain.submit(CreateTopic(topic("ours")))
        assert set(chain.refresh().topics) == {"ours"}
        chain.submit(CreateTopic(topic("next")))
    objects.power_loss()
    assert names_in_bucket(disk) == ["ours", "next"]


def test_refusal_because_of_an_entry_that_is_not_flushed_waits_for_the_flush() -> None:
    """A caller that repeats its command after an unknown outcome takes "it exists already" for success."""
    disk = MemoryStore()
    objects = FaultStore(disk, on(Fault.UNSYNCED, "put_if_absent", times=9))
    with a_chain(objects) as chain:
        with pytest.raises(UnknownOutcomeError):
            chain.submit(CreateTopic(topic("ours")))
        chain.refresh()
        with pytest.raises(Exception, match="exists already"):
            chain.submit(CreateTopic(topic("ours")))
        assert objects.unsynced == []


def test_refusal_because_of_an_entry_of_another_process_waits_for_the_flush() -> None:
    objects = FaultStore(MemoryStore(), on(Fault.UNSYNCED, "put_if_absent", times=None))
    with a_chain(objects) as theirs, a_chain(objects) as ours:
        with pytest.raises(UnknownOutcomeError):
            theirs.submit(CreateTopic(topic("theirs")))
        assert objects.unsynced
        with pytest.raises(TopicExistsError):
            ours.submit(CreateTopic(topic("theirs")))
        assert objects.unsynced == []


def test_a_deletion_that_only_its_visible_entry_shows_waits_for_the_flush(clock: ManualClock) -> None:
    """A caller that repeats a deletion after an unknown outcome finds the records deleted."""
    objects = FaultStore(MemoryStore())
    store = new_store(clock, objects)
    store.create_topic("t")
    commit(store, [b"a", b"b"])
    tp = TopicPartition("t", 0)
    objects.plan = on(Fault.UNSYNCED, "put_if_absent", times=None)
    with pytest.raises(UnknownOutcomeError):
        store.delete_records({tp: 1})
    assert connection_of(store).view().find_partition(tp).log_start == 1
    assert objects.unsynced
    objects.plan = no_faults
    assert store.delete_records({tp: 1}) == {tp: 1}
    assert objects.unsynced == []


@pytest.mark.parametrize("call", ["abort_transaction", "abort_hanging"])
def test_an_abort_that_only_its_visible_entry_shows_waits_for_the_flush(clock: ManualClock, call: str) -> None:
    """ADM-05: an abort that is repeated after an unknown outcome answers that no transaction is open."""
    objects = FaultStore(MemoryStore())
    store = new_store(clock, objects)
    store.create_topic("t")
    begin(store, [b"a"], writer="x")
    (producer,) = store.producers("t", 0)
    objects.plan = on(Fault.UNSYNCED, "put_if_absent", times=None)
    with pytest.raises(UnknownOutcomeError):
        store.abort_transaction("x")
    assert objects.unsynced
    objects.plan = no_faults
    operator = another_process(store)
    if call == "abort_transaction":
        assert operator.abort_transaction("x") is False
    else:
        assert operator.abort_hanging("t", 0, producer.producer_id) is False
    assert objects.unsynced == []


def test_checkpoint_has_only_entries_that_are_durable() -> None:
    """A power cut would leave the checkpoint of an entry that is lost: readers of entries end before it, and fork."""
    disk = MemoryStore()
    objects = FaultStore(disk)
    with a_chain(objects) as theirs, a_chain(objects) as ours:
        ours.submit(CreateTopic(topic("ours")))
        objects.plan = on(Fault.UNSYNCED, "put_if_absent", times=None)
        with pytest.raises(UnknownOutcomeError):
            theirs.submit(CreateTopic(topic("theirs")))
        assert objects.unsynced == [keys.entry(0, 2)]
        objects.plan = on(Fault.UNSYNCED, "sync", times=None)
        with pytest.raises(StorageError):
            ours.checkpoint()
        assert not [each for each in disk.list("") if "/checkpoints/" in each.key], "the flush comes first"
        objects.plan = no_faults
        assert ours.checkpoint() == 2
        assert objects.unsynced == []


def test_entry_that_an_entry_of_another_chain_follows_from_is_durable(clock: ManualClock) -> None:
    """Else a power cut takes back an entry that an acknowledged commit depends on, and the store does not open."""
    disk = MemoryStore(clock=clock)
    new_store(clock, disk, chains=3).close()
    objects = FaultStore(disk)
    theirs, ours = (open_on(objects, runtime=runtime(clock)) for _ in range(2))
    objects.plan = on(Fault.UNSYNCED, "put_if_absent", times=None)
    with pytest.raises(UnknownOutcomeError):
        theirs.create_topic("t", partitions=8)
    assert objects.unsynced, "the topic is only visible"
    objects.plan = no_faults
    syncs = len(_syncs(objects))
    for partition in range(8):
        commit(ours, [b"%d" % partition], partition=partition)
    assert 1 <= len(_syncs(objects)) - syncs <= 3, "once for each chain, not for each commit"
    objects.power_loss()
    assert len(rows(open_on(disk, runtime=runtime(clock)))) == 8


@pytest.mark.parametrize("transactional", [False, True])
def test_records_before_a_committed_offset_are_durable(clock: ManualClock, transactional: bool) -> None:
    """Else a power cut takes them back, others get their offsets, and the group never reads those."""
    disk = MemoryStore(clock=clock)
    with new_store(clock, disk, chains=3) as store:
        store.create_topic("t", partitions=8)
    objects = FaultStore(disk)
    theirs, ours = (open_on(objects, runtime=runtime(clock)) for _ in range(2))
    number = next(number for number in range(8) if chain_of_partition(TopicPartition("t", number), 3) != CHAIN_OF_G)
    tp = TopicPartition("t", number)
    producer = theirs.producer(linger=None)
    producer.send("t", b"1", partition=number)
    objects.plan = on(Fault.UNSYNCED, "put_if_absent", times=None)
    with pytest.raises(UnknownOutcomeError):
        producer.flush()
    objects.plan = no_faults
    consumer = ours.consumer(group="g")
    consumer.assign([tp])
    assert len(consumer.poll()) == 1, "it is visible"
    before = len(_syncs(objects))
    if transactional:
        with ours.producer("job").transaction() as txn:
            txn.send_offsets({tp: 1}, "g")
    else:
        consumer.commit()
    assert 1 <= len(_syncs(objects)) - before <= 2, "one for all chains that it has read, not one for each"
    objects.power_loss()
    after = open_on(disk, runtime=runtime(clock))
    assert after.consumer(group="g").committed(tp) == 1
    assert len(rows(after)) == 1


def _syncs(objects: FaultStore) -> list[str]:
    return [request.key for request in objects.requests if request.operation == "sync"]


def test_created_store_survives_a_power_cut() -> None:
    disk = MemoryStore()
    objects = FaultStore(disk, on(Fault.UNSYNCED, "put_if_absent", key_contains="store.json"))
    create_on(objects, runtime=runtime()).close()
    objects.power_loss()
    open_on(disk, runtime=runtime()).close()


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6))
def test_acknowledged_records_survive_power_cuts(clock: ManualClock, chains: int, seed: int) -> None:
    """Every third write is shown and not flushed; the power fails after each commit, and everything starts again."""
    disk = MemoryStore(clock=clock)
    new_store(clock, disk, chains=chains).create_topic("t", partitions=2)
    acknowledged: list[bytes] = []
    for number in range(12):
        plan = seeded(100 * seed + number, 0.3, faults=[Fault.UNSYNCED], operations=["put", "put_if_absent"])
        objects = FaultStore(disk, plan)
        store = open_on(objects, runtime=runtime(clock))
        value = b"%d" % number
        try:
            commit(store, [value])
            acknowledged.append(value)
        except StorageError:
            pass  # Unknown: the record may be there or not.
        objects.power_loss()
    store = open_on(disk, runtime=runtime(clock))
    assert set(acknowledged) <= {row["value"] for row in rows(store)}
    assert acknowledged
    assert store.verify(deep=True).ok


class Disk(MemoryStore):
    """Records what is flushed and what is deleted, in order."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__(clock=clock)
        self.log: list[tuple[str, frozenset[str]]] = []

    def sync(self, names: Sequence[str]) -> None:
        self.log.append(("sync", frozenset(names)))

    def delete(self, names: Sequence[str]) -> None:
        self.log.append(("delete", frozenset(names)))
        super().delete(names)

    def listed(self, prefix: str) -> list[ObjectInfo]:
        return [*self.list(prefix)]


def test_vacuum_flushes_what_replaces_the_objects_that_it_deletes(clock: ManualClock) -> None:
    """Checkpoints, boundaries and entries may be visible only; those that they replace are durable."""
    disk = Disk(clock)
    store = new_store(clock, disk)
    store.create_topic("t")
    for _ in range(4):
        commit(store, [b"x"])
        clock.advance(DAY_MS)
        store.checkpoint()
    store.compact()
    deleted: set[str] = set()
    for _ in range(3):
        clock.advance(2 * DAY_MS)
        disk.log.clear()
        another_process(store).vacuum(older_than=0, history=0)
        flushed: set[str] = set()
        for operation, names in disk.log:
            if operation == "sync":
                flushed |= names
                continue
            if all(name.startswith(("_probe/", "leases/")) for name in names):
                continue
            assert any(keys.entry_sequence(name) for name in flushed), "the newest entry"
            if any(name.startswith("chains/") for name in names):
                assert sum(keys.checkpoint_sequence(name) is not None for name in flushed) >= 2
            if any(keys.entry_sequence(name) for name in names):
                assert any(keys.boundary_number(name) for name in flushed)
            assert not flushed & names
            deleted |= names
    assert any(keys.entry_sequence(name) for name in deleted), "entries went, too"
    log, before = len(disk.log), disk.listed("")
    another_process(store).vacuum(older_than=0, history=0, dry_run=True)
    assert (disk.log[log:], disk.listed("")) == ([], before), "a dry run flushes nothing"


@pytest.mark.parametrize("later", [False, True])
def test_a_backup_has_only_entries_that_are_durable(clock: ManualClock, *, later: bool) -> None:
    """A power cut would leave a copy of an entry that is lost: a backup of another history, which cannot go on."""
    objects, target = FaultStore(MemoryStore()), MemoryStore()
    store = new_store(clock, objects)
    store.create_topic("t")
    with open_connection(objects, read_only=True, runtime=runtime(clock)) as connection:
        rounds = watch_backup(connection, target)
        if later:
            next(rounds)
        objects.plan = on(Fault.UNSYNCED, "put_if_absent", times=None)
        with pytest.raises(UnknownOutcomeError):
            store.create_topic("u")
        assert objects.unsynced
        objects.plan = no_faults
        assert next(rounds).error is None
    objects.power_loss()
    loaded = another_process(store)
    loaded.create_topic("v")
    with open_connection(objects, read_only=True, runtime=runtime(clock)) as connection:
        assert backup(connection, target).copied
    assert [topic.name for topic in open_on(target, read_only=True, runtime=runtime(clock)).topics()] == ["t", "u", "v"]


def test_a_backup_flushes_the_entries_of_every_chain(clock: ManualClock) -> None:
    objects = FaultStore(MemoryStore())
    store = new_store(clock, objects, chains=3)
    store.create_topic("t", partitions=8)
    partition = next(number for number in range(8) if chain_of_partition(TopicPartition("t", number), 3) == 1)
    with store.producer() as producer:
        producer.send("t", b"a", partition=partition)
        producer.flush()
        objects.plan = on(Fault.UNSYNCED, "put_if_absent", key_contains="/0001/entries/", times=None)
        producer.send("t", b"b", partition=partition)
        with pytest.raises(UnknownOutcomeError):
            producer.flush()
        assert objects.unsynced
        objects.plan = no_faults
        with open_connection(objects, read_only=True, runtime=runtime(clock)) as connection:
            backup(connection, MemoryStore())
        assert objects.unsynced == []


@pytest.mark.parametrize("what", ["segment", "document"])
def test_what_a_backup_finds_copied_is_durable(clock: ManualClock, what: str) -> None:
    """An earlier backup was killed, or its disk failed, before it had flushed what the complete cut needs."""
    objects, target = MemoryStore(), FaultStore(MemoryStore())
    store = new_store(clock, objects)
    store.create_topic("t", 2, config={"inline.bytes": 0})
    commit(store, [b"a"])
    connection = connection_of(store)
    backup(connection, target)
    commit(store, [b"b"], partition=1)
    is_segment = what == "segment"
    part = "topics/" if is_segment else "backups/"
    target.plan = on(Fault.UNSYNCED, "put" if is_segment else "put_if_absent", key_contains=part, times=None)
    with pytest.raises(StorageError):
        backup(connection, target)
    target.plan = no_faults
    assert target.unsynced
    assert backup(connection, target).cut == 2
    assert target.unsynced == []


def test_a_deletion_that_another_one_has_done_is_durable(clock: ManualClock) -> None:
    """A deletion that is repeated after an unknown outcome raises that there is no such topic."""
    objects = FaultStore(MemoryStore())
    store = new_store(clock, objects, chains=3)
    store.create_topic("t")
    objects.plan = on(Fault.UNSYNCED, "put_if_absent", key_contains="/0000/entries/", times=None)
    with pytest.raises(UnknownOutcomeError):
        store.delete_topic("t")
    objects.plan = no_faults
    assert objects.unsynced
    with pytest.raises(UnknownTopicOrPartitionError):
        another_process(store).delete_topic("t")
    assert objects.unsynced == []


def test_a_copy_of_an_altered_topic_that_another_process_has_made_is_durable(clock: ManualClock) -> None:
    """Else a power cut lets its chain delete records by the settings before an acknowledged change."""
    objects = FaultStore(MemoryStore())
    store = new_store(clock, objects, chains=3)
    store.create_topic("t", partitions=8)
    objects.plan = on(Fault.UNSYNCED, "put_if_absent", key_contains="/0001/entries/", times=None)
    with pytest.raises(UnknownOutcomeError):
        store.alter_topic("t", config={"retention.ms": 1})
    objects.plan = no_faults
    assert objects.unsynced
    chains = connection_of(another_process(store)).chains
    assert copy_everywhere(chains, chains.view().topics["t"]) == []
    assert objects.unsynced == []
