"""A commit across chains that fails before PREPARE, after some of its markers, or after COMPLETE before the answer."""

from __future__ import annotations

import pytest

from tests.helpers.chains import process, shared_topic, value_counts, write_everywhere
from tests.helpers.connections import connection_of
from tests.helpers.recovering import CHAINS, PARTITIONS, ended, name_and_group
from txnstore.core.invariants.check import check_view
from txnstore.core.model import TopicPartition
from txnstore.core.transactions.model import DECIDED, TxnState
from txnstore.errors import (
    UnknownOutcomeError,
)
from txnstore.storage.memory import MemoryStore
from txnstore.store import Store
from txnstore.testing import Fault, FaultStore, ManualClock, SimulatedCrash, no_faults, on


@pytest.fixture
def bucket(clock: ManualClock) -> MemoryStore:
    return shared_topic(clock, CHAINS, PARTITIONS)


def at_commit(bucket: MemoryStore, clock: ManualClock, key_contains: str, skip: int = 0) -> Store:
    """A process that dies at a conditional PUT of its commit, before the storage sees it."""
    store = process(faults := FaultStore(bucket, no_faults), clock)
    producer = store.producer(name_and_group(store)[0])
    producer.begin_transaction()
    write_everywhere(producer, b"value")
    producer.flush()
    faults.plan = on(Fault.CRASH_BEFORE, "put_if_absent", key_contains=key_contains, skip=skip)
    with pytest.raises(SimulatedCrash):
        producer.commit_transaction()
    return process(bucket, clock)


def test_failure_before_prepare(bucket: MemoryStore, clock: ManualClock) -> None:
    """REC-01, REC-02 (S003): nothing is decided; the next instance rolls it back before it begins."""
    store = at_commit(bucket, clock, "/0001/")
    assert value_counts(store) == {}
    assert value_counts(store, isolation="read_uncommitted") == {b"value": PARTITIONS}
    name, _ = name_and_group(store)
    assert connection_of(store).view().transactions[name].state is TxnState.ONGOING
    store.producer(name)
    assert (value_counts(store), ended(store)) == ({}, False)


def test_failure_after_prepare_with_some_markers_written(bucket: MemoryStore, clock: ManualClock) -> None:
    """TMO-05, END-06, REC-02, END-11 (S003): the decision stands, and is seen at once; the markers are written by
    the next one.
    """
    store = at_commit(bucket, clock, "chains/", skip=2)
    name, _ = name_and_group(store)
    view = connection_of(store).view()
    logs = [view.log(TopicPartition("t", number)) for number in range(PARTITIONS)]
    assert {bool(log.open_txns) for log in logs if log is not None} == {False, True}
    assert view.transactions[name].state is TxnState.PREPARE_COMMIT
    assert value_counts(store) == {b"value": PARTITIONS}
    assert store.recover().finished == (name,)
    assert value_counts(store) == {b"value": PARTITIONS}
    assert store.recover().finished == ()
    assert check_view(connection_of(store).view()) == []


def test_failure_after_complete_before_answer(bucket: MemoryStore, clock: ManualClock) -> None:
    """REC-03, REC-02, END-03 (S003): the answer was lost; the same call gets the same one, and the records are there
    once.
    """
    faults = FaultStore(bucket, no_faults)
    store = process(faults, clock)
    producer = store.producer(name_and_group(store)[0])
    producer.begin_transaction()
    write_everywhere(producer, b"value")
    epoch = producer.epoch
    # The decision is written, its answer is not read, the storage is unavailable; another process completes it.
    faults.plan = lambda n, operation, key: (
        Fault.LOST_RESPONSE if "/0001/entries" in key and _is_prepare(bucket, key, operation) else None
    )
    with pytest.raises(UnknownOutcomeError):
        producer.commit_transaction()
    faults.plan = no_faults
    other = process(bucket, clock)
    other.recover()
    assert ended_with(other, b"value")
    producer.commit_transaction()
    assert producer.epoch == epoch + 1
    assert ended_with(process(bucket, clock), b"value")
    with producer.transaction() as txn:
        write_everywhere(txn, b"next")
    assert value_counts(process(bucket, clock)) == {b"value": PARTITIONS, b"next": PARTITIONS}


def _is_prepare(bucket: MemoryStore, key: str, operation: str) -> bool:
    """The entries of the coordinator's chain: 1 the copy of the topic, 2 the grant, 3 AddPartitions, 4 the decision."""
    return int(key.rpartition("/")[2].removesuffix(".json")) >= 4


def ended_with(store: Store, value: bytes) -> bool:
    view = connection_of(store).view()
    assert check_view(view) == []
    assert all(txn.state not in DECIDED for txn in view.transactions.values())
    return value_counts(store) == {value: PARTITIONS}
