"""Crashes across chains: the outcome is the decided one, or abort, and any process can complete it.

The producer and the recoverer die at every one of their requests (REC-01, REC-02). The three failure points of the
seeds have a test each: before PREPARE, after PREPARE with some markers written, after COMPLETE before the answer.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from tests.harness.executors import DeferredExecutor
from tests.helpers.chains import ids_of, partitions_of, process, shared_topic, value_counts, write_everywhere
from tests.helpers.connections import connection_of
from tests.helpers.producers import upload_all
from tests.helpers.recovering import CHAINS, PARTITIONS, T0, ended, name_and_group, outcome
from txnstore.coordinator.recovery import FINISH_AFTER_MS
from txnstore.core.invariants.check import check_view
from txnstore.core.log.model import NewBatch, Segment
from txnstore.core.maintenance import DropObjects
from txnstore.core.model import Outcome, ProducerIdentity, TopicPartition
from txnstore.core.transactions.commands import Ended, EndTxn, InitProducer
from txnstore.core.transactions.model import TxnState
from txnstore.errors import (
    ProducerFencedError,
    StorageError,
    TxnStoreError,
    UploadExpiredError,
)
from txnstore.storage.memory import MemoryStore
from txnstore.store import Store
from txnstore.testing import Fault, FaultStore, ManualClock, SimulatedCrash, crash_at, no_faults, on


@pytest.fixture
def bucket(clock: ManualClock) -> MemoryStore:
    return shared_topic(clock, CHAINS, PARTITIONS)


def run(store: Store) -> None:
    """One transaction over everything: two flushes, offsets, commit."""
    name, group = name_and_group(store)
    producer = store.producer(name)
    producer.begin_transaction()
    write_everywhere(producer, b"first")
    producer.flush()
    write_everywhere(producer, b"second")
    producer.send_offsets({T0: 7}, group)
    producer.commit_transaction()


def requests_of(work: Callable[[Store], object], bucket: MemoryStore, clock: ManualClock) -> int:
    faults = FaultStore(bucket, no_faults)
    store = process(faults, clock)
    before = len(faults.requests)
    work(store)
    return len(faults.requests) - before


def die_at(
    number: int, work: Callable[[Store], object], bucket: MemoryStore, clock: ManualClock, *, after: bool
) -> bool:
    """The process dies at the n-th request of its work, before or after the storage has done it; whether it did."""
    faults = FaultStore(bucket, no_faults)
    store = process(faults, clock)
    faults.plan = crash_at(len(faults.requests) + number, after=after)
    try:
        work(store)
    except SimulatedCrash:
        return True
    return False  # A read that finds nothing has no "after".


def copy(bucket: MemoryStore, clock: ManualClock) -> MemoryStore:
    """The same objects, as old as they are."""
    times = {item.key: item.modified_ms for item in bucket.list("")}
    stamp: list[int] = []
    target = MemoryStore(clock=lambda: stamp[0] if stamp else clock())
    for key, at in times.items():
        stamp[:] = [at]
        target.put(key, bucket.get(key))
    stamp.clear()
    return target


def recover_by_init(store: Store, clock: ManualClock) -> None:
    store.producer(name_and_group(store)[0])


def recover_by_anybody(store: Store, clock: ManualClock) -> None:
    clock.advance(61_000)
    report = store.recover()
    assert report.failed == ()


def recover_by_reading(store: Store, clock: ManualClock) -> None:
    """A consumer that is held back, and whose group is."""
    clock.advance(61_000)
    consumer = store.consumer(["t"], name_and_group(store)[1] + "-other")
    while consumer.poll(max_records=1000):
        pass
    store.recover()  # A transaction that blocks no reader, such as one of offsets alone, is not visible.


@pytest.mark.slow
@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("recover", [recover_by_init, recover_by_anybody, recover_by_reading])
def test_rec_01_producer_crash_at_any_request(
    bucket: MemoryStore, clock: ManualClock, recover: Callable[[Store, ManualClock], None], *, after: bool
) -> None:
    """OBJ-12, REC-01, REC-02, END-01, INIT-03: before the decision it is aborted, from the decision on it is
    committed.
    """
    outcomes = []
    for number in range(1, requests_of(run, copy(bucket, clock), clock) + 1):
        trial = copy(bucket, clock)
        if not die_at(number, run, trial, clock, after=after):
            continue
        decided = outcome(process(trial, clock))
        recover(process(trial, clock), clock)
        assert ended(process(trial, clock)) is decided
        outcomes.append(decided)
    assert outcomes == sorted(outcomes)
    assert outcomes.count(True) >= CHAINS  # Markers in two chains and the completion come after the decision.
    assert outcomes.count(False) > 10


@pytest.mark.slow
@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_rec_02_recovery_crash_at_any_request(bucket: MemoryStore, clock: ManualClock, *, after: bool) -> None:
    """OBJ-12, REC-02, INIT-05: whatever a recoverer has done, the next one only continues."""
    crashes = {}
    total = requests_of(run, copy(bucket, clock), clock)
    for number in range(total - 8, total + 1):
        trial = copy(bucket, clock)
        die_at(number, run, trial, clock, after=False)
        crashes[number] = (trial, outcome(process(trial, clock)))
    assert {decided for _, decided in crashes.values()} == {False, True}
    clock.advance(61_000)
    for trial, decided in crashes.values():
        for number in range(1, requests_of(Store.recover, copy(trial, clock), clock) + 1):
            attempt = copy(trial, clock)
            die_at(number, Store.recover, attempt, clock, after=after)
            assert outcome(process(attempt, clock)) is decided
            process(attempt, clock).recover()
            assert ended(process(attempt, clock)) is decided


# Concurrent recoveries, unavailable chains-----------------------------------------------------------------------------


def test_rec_concurrent_recoveries_write_nothing_twice(bucket: MemoryStore, clock: ManualClock) -> None:
    """REC-13, REC-01: one stands in front of each of its requests while the other one does everything."""
    crashed = copy(bucket, clock)
    die_at(requests_of(run, copy(bucket, clock), clock) - 2, run, crashed, clock, after=True)
    clock.advance(61_000)
    for number in range(1, requests_of(Store.recover, copy(crashed, clock), clock) + 1):
        trial = copy(crashed, clock)
        faults = FaultStore(trial, no_faults)
        first = process(faults, clock)
        at = len(faults.requests) + number

        def meanwhile(n: int, operation: str, key: str, at: int = at, trial: MemoryStore = trial) -> Fault | None:
            if n == at:
                process(trial, clock).recover()
            return None

        faults.plan = meanwhile
        assert first.recover().failed == ()
        assert ended(process(trial, clock))


def test_coord_08_unavailable_chain_delays_only_its_own_partitions(bucket: MemoryStore, clock: ManualClock) -> None:
    """COORD-08, END-11 (S003): the commit returns, the other chains have their markers, the rest follows later."""
    faults = FaultStore(bucket, no_faults)
    store = process(faults, clock)
    producer = store.producer(ids_of(store, 1))
    producer.begin_transaction()
    write_everywhere(producer, b"value")
    producer.flush()
    faults.plan = on(Fault.UNAVAILABLE_503, "put_if_absent", key_contains="/0002/", times=None)
    producer.commit_transaction()
    view = connection_of(process(bucket, clock)).view()
    for chain, blocked in ((0, False), (1, False), (2, True)):
        for number in partitions_of(store, chain):
            log = view.log(TopicPartition("t", number))
            assert log is not None
            assert bool(log.open_txns) is blocked
    assert value_counts(process(bucket, clock)) == {b"value": PARTITIONS}
    with store.producer(ids_of(store, 0)) as other, other.transaction() as txn:
        txn.send("t", b"other", partition=partitions_of(store, 0)[0])
    producer.begin_transaction()
    producer.send("t", b"next", partition=partitions_of(store, 1)[0])
    with pytest.raises(StorageError):
        producer.commit_transaction()  # The transaction before it is not ended in chain 2 yet.
    faults.plan = no_faults
    producer.commit_transaction()
    assert value_counts(process(bucket, clock)) == {b"value": PARTITIONS, b"other": 1, b"next": 1}
    assert ended_clean(process(bucket, clock))


def ended_clean(store: Store) -> bool:
    store.recover()
    return check_view(connection_of(store).view()) == [] and store.verify(deep=True).ok


def test_next_transaction_completes_previous_one(bucket: MemoryStore, clock: ManualClock) -> None:
    """BUG-13, ADD-05: what the background has not done yet is done first."""
    background = DeferredExecutor()
    store = process(bucket, clock, background=lambda: background)
    producer = store.producer(ids_of(store, 1))
    for value in (b"one", b"two", b"three"):
        with producer.transaction() as txn:
            write_everywhere(txn, value)
        assert value_counts(process(bucket, clock)).get(value) == PARTITIONS
    assert connection_of(store).view().transactions[ids_of(store, 1)].state is TxnState.PREPARE_COMMIT
    background.run_all()
    assert connection_of(store).view().transactions[ids_of(store, 1)].state is TxnState.COMPLETE_COMMIT
    assert ended_clean(process(bucket, clock))


def test_zombie_is_fenced_in_other_chains(bucket: MemoryStore, clock: ManualClock) -> None:
    """FEN-02, JEP-21: it pauses during the init of a newer instance, then continues, and is refused everywhere."""
    old = process(bucket, clock)
    name = ids_of(old, 1)
    zombie = old.producer(name)
    zombie.begin_transaction()
    zombie.send("t", b"zombie", partition=partitions_of(old, 0)[0])
    zombie.flush()
    successor = process(bucket, clock).producer(name)
    with successor.transaction() as txn:
        write_everywhere(txn, b"good")
    zombie.send("t", b"zombie", partition=partitions_of(old, 0)[0])
    with pytest.raises(ProducerFencedError):
        zombie.commit_transaction()
    with pytest.raises(TxnStoreError):
        zombie.send("t", b"zombie", partition=partitions_of(old, 2)[0])
    assert value_counts(process(bucket, clock)) == {b"good": PARTITIONS}
    assert ended_clean(process(bucket, clock))


def test_refused_batch_in_one_chain_aborts_whole_transaction(bucket: MemoryStore, clock: ManualClock) -> None:
    """ERR-05, ADD-09: what other chains took before is aborted with it, and the producer continues."""
    store = process(bucket, clock)
    producer = store.producer(ids_of(store, 1))
    producer.begin_transaction()
    write_everywhere(producer, b"lost")
    partition = partitions_of(store, 0)[0]
    for batch in upload_all(producer):
        if batch.partition == partition:
            connection_of(process(bucket, clock)).submit(DropObjects((batch.segment.key,)))
    with pytest.raises(UploadExpiredError):
        producer.commit_transaction()
    assert connection_of(process(bucket, clock)).view().transactions[ids_of(store, 1)].state is TxnState.ONGOING
    producer.abort_transaction()
    with producer.transaction() as txn:
        write_everywhere(txn, b"again")
    assert value_counts(process(bucket, clock)) == {b"again": PARTITIONS}
    assert ended_clean(process(bucket, clock))


def test_reader_leaves_completion_to_producer_at_first(bucket: MemoryStore, clock: ManualClock) -> None:
    """A consumer reads a decided transaction immediately; it writes the markers only after ten seconds."""
    background = DeferredExecutor()
    store = process(bucket, clock, background=lambda: background)
    name = ids_of(store, 1)
    with store.producer(name).transaction() as txn:
        write_everywhere(txn, b"value")
    reader = process(bucket, clock).consumer()
    reader.assign([("t", number) for number in range(PARTITIONS)])
    assert len(reader.poll(max_records=100)) + len(reader.poll(max_records=100)) == PARTITIONS
    assert reader.poll() == []
    assert connection_of(process(bucket, clock)).view().transactions[name].state is TxnState.PREPARE_COMMIT
    clock.advance(FINISH_AFTER_MS + 1)
    assert reader.poll() == []
    assert connection_of(process(bucket, clock)).view().transactions[name].state is TxnState.COMPLETE_COMMIT
    assert background.run_all() == 2
    assert ended_clean(process(bucket, clock))


def test_repeated_version_of_job_gets_same_answer(bucket: MemoryStore, clock: ManualClock) -> None:
    """TV2-02: its batches in other chains are aborted, the answer is lost, and the same call gets it again."""
    store = process(bucket, clock)
    name = ids_of(store, 1)

    def end(identity: ProducerIdentity) -> EndTxn:
        keys = [
            (number, f"topics/t/{number}/{connection_of(store).runtime.new_id()}.parquet")
            for number in range(PARTITIONS)
        ]
        batches = [NewBatch("t", number, Segment(key, "parquet", 10, "0" * 64, 1), 7, 8, 0) for number, key in keys]
        return EndTxn(identity, Outcome.COMMIT, tuple(batches), versions=(("s", 1),))

    first: Ended = connection_of(store).submit(end(connection_of(store).submit(InitProducer(name))))
    command = end(first.producer)
    answer = connection_of(store).submit(command)
    assert answer.repeated
    assert (
        connection_of(process(bucket, clock)).submit(command)
        == connection_of(store).submit(command)
        == replace(answer, unfinished=None)
    )
    assert connection_of(store).view().transactions[name].state is TxnState.COMPLETE_ABORT
    assert check_view(connection_of(store).view()) == []
