"""How a Spark job commits, and how a second commit of it is recognised, without Spark."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from tests.harness.executors import InlineExecutor
from tests.helpers import keys
from tests.helpers.connections import connection_of, stored_topic
from tests.helpers.keys import FixedRuntime
from txnstore.catalog.writing import topic_writer
from txnstore.core.log.model import NewBatch
from txnstore.core.model import TopicPartition
from txnstore.core.routing import chain_of_partition
from txnstore.core.transactions.model import TxnState
from txnstore.errors import ProducerFencedError, StorageError, UnknownOutcomeError, UnknownTopicOrPartitionError
from txnstore.producer.upload import upload
from txnstore.segment.convert import normalize
from txnstore.spark.writes import jobs
from txnstore.storage.memory import MemoryStore
from txnstore.store import Store, create_on, open_on
from txnstore.testing import Fault, FaultStore, ManualClock, no_faults
from txnstore.testing.faults import on


@pytest.fixture
def faults() -> FaultStore:
    """The storage below the store."""
    return FaultStore(MemoryStore())


@pytest.fixture
def store(faults: FaultStore, clock: ManualClock, chains: int) -> Iterator[Store]:
    with create_on(
        faults, chains, runtime=FixedRuntime(clock, clock.sleep, random.Random(1), background=InlineExecutor)
    ) as created:
        created.create_topic("t", partitions=2)
        yield created


def uploaded(store: Store, *values: str, partition: int = 0) -> NewBatch:
    """A segment that a task uploaded."""
    rows = normalize([{"value": value.encode()} for value in values], None)
    writer = topic_writer(stored_topic(store, "t"))
    return upload(
        connection_of(store).objects, connection_of(store).runtime, writer, TopicPartition("t", partition), rows
    )


def begin(store: Store, name: str | None = None, version: int | None = None) -> jobs.Job:
    versions = () if version is None else (("", version),)
    return jobs.begin(connection_of(store), name, versions, {topic.name: topic.topic_id for topic in store.topics()})


def values(store: Store) -> list[bytes]:
    stored: list[bytes] = store.scan("t", columns=["value"]).to_table()["value"].to_pylist()
    return stored


def test_sequences_are_contiguous_in_each_partition_in_the_order_of_the_messages(store: Store) -> None:
    """SEQ-01: from 0, without a gap, whatever the number of segments: far more than a producer's window of five."""
    job = begin(store)
    batches = [uploaded(store, f"a{n}", f"b{n}", partition=n % 2) for n in range(20)]
    jobs.commit(connection_of(store), job, batches)
    partition = connection_of(store).view().partitions[TopicPartition("t", 1)]
    assert [batch.base_sequence for batch in partition.batches] == list(range(0, 20, 2))
    assert values(store)[:4] == [b"a0", b"b0", b"a2", b"b2"]
    assert partition.high_watermark == 21  # Twenty records and one marker.


@pytest.mark.parametrize("name", [None, "loader"])
@pytest.mark.parametrize("version", [None, 3])
def test_a_second_commit_of_the_same_job_does_nothing(store: Store, name: str | None, version: int | None) -> None:
    job = begin(store, name, version if name else None)
    batch = uploaded(store, "a")
    jobs.commit(connection_of(store), job, [batch])
    sequence = connection_of(store).view().sequence
    jobs.commit(connection_of(store), job, [batch])
    assert connection_of(store).view().sequence == sequence
    assert values(store) == [b"a"]


@pytest.mark.parametrize("fault", [Fault.LOST_RESPONSE, Fault.ERROR_BEFORE, Fault.UNAVAILABLE_503, Fault.CONFLICT_409])
@pytest.mark.parametrize("name", [None, "loader"])
def test_unknown_outcome_of_a_commit_is_resolved(
    store: Store, faults: FaultStore, name: str | None, fault: Fault
) -> None:
    """Storage that fails or does not tell costs time, never rows, and never gives them twice."""
    job = begin(store, name)
    batch = uploaded(store, "a")
    faults.plan = on(fault, "put_if_absent", times=2)
    jobs.commit(connection_of(store), job, [batch])
    faults.plan = on(fault, "put_if_absent", times=0)
    assert values(store) == [b"a"]
    assert connection_of(store).view().partitions[TopicPartition("t", 0)].high_watermark == 2


@pytest.mark.parametrize("fault", [Fault.LOST_RESPONSE, Fault.UNAVAILABLE_503])
def test_commit_resumes_after_a_failure_of_one_chain(store: Store, faults: FaultStore, fault: Fault) -> None:
    """SEQ-03, REC-01: what the other chains have registered already is recognised, though it is far more than five."""
    job = begin(store, "loader", 1)
    batches = [uploaded(store, f"{n:02}", partition=n % 2) for n in range(24)]
    number = max(chain_of_partition(TopicPartition("t", p), len(connection_of(store).chains)) for p in range(2))
    faults.plan = on(fault, "put_if_absent", key_contains=keys.entries(number), times=8)
    jobs.commit(connection_of(store), job, batches)
    faults.plan = on(fault, times=0)
    assert sorted(values(store)) == [b"%02d" % n for n in range(24)]
    assert [connection_of(store).view().partitions[TopicPartition("t", p)].high_watermark for p in range(2)] == [13, 13]
    assert begin(store, "loader", 1).repeated
    assert store.verify(deep=True).ok


def test_commit_raises_after_repeated_storage_errors(store: Store, faults: FaultStore, clock: ManualClock) -> None:
    job = begin(store, "loader")
    batch = uploaded(store, "a")
    faults.plan = on(Fault.UNAVAILABLE_503, "put_if_absent", times=None)
    with pytest.raises(StorageError):
        jobs.commit(connection_of(store), job, [batch])
    faults.plan = on(Fault.UNAVAILABLE_503, "put_if_absent", times=0)
    assert values(store) == []


def test_a_version_that_is_committed_is_known_before_anything_is_computed(store: Store) -> None:
    jobs.commit(connection_of(store), begin(store, "loader", 4), [uploaded(store, "a")])
    sequence = connection_of(store).view().sequence
    for version in (4, 3, 0):
        assert begin(store, "loader", version).repeated
    assert connection_of(store).view().sequence == sequence  # A job without effect fences no producer.
    assert not begin(store, "loader", 5).repeated
    assert not begin(store, "other", 4).repeated


def test_two_jobs_of_one_version_race_and_one_commits(store: Store) -> None:
    """Both computed; the later one fences the earlier (INIT-01)."""
    first, second = begin(store, "loader", 1), begin(store, "loader", 1)
    with pytest.raises(ProducerFencedError, match=r"a newer job with the transactionalId 'loader'.*run it again"):
        jobs.commit(connection_of(store), first, [uploaded(store, "a")])
    jobs.commit(connection_of(store), second, [uploaded(store, "b")])
    jobs.commit(connection_of(store), first, [uploaded(store, "a")])  # By now its version is there: nothing to do.
    assert values(store) == [b"b"]


def test_job_without_rows(store: Store) -> None:
    """Without rows there is nothing to commit but a version."""
    sequence = connection_of(store).view().sequence
    jobs.commit(connection_of(store), begin(store), [])
    assert connection_of(store).view().sequence == sequence
    named = begin(store, "loader")
    jobs.commit(connection_of(store), named, [])
    assert connection_of(store).view().transactions["loader"].state is TxnState.EMPTY
    jobs.commit(connection_of(store), begin(store, "loader", 1), [])
    assert begin(store, "loader", 1).repeated


def test_recreated_topic_is_not_written(store: Store) -> None:
    job = begin(store)
    batch = uploaded(store, "a")
    store.delete_topic("t")
    with pytest.raises(UnknownTopicOrPartitionError, match="'t' was deleted while the job ran"):
        jobs.commit(connection_of(store), job, [batch])
    store.create_topic("t", partitions=2)
    with pytest.raises(UnknownTopicOrPartitionError, match="'t' was deleted while the job ran"):
        jobs.commit(connection_of(store), job, [batch])
    assert values(store) == []


def test_a_job_is_committed_already_only_if_that_is_durable(clock: ManualClock) -> None:
    """Its caller does not run it again after a power cut."""
    faults = FaultStore(MemoryStore())
    runtime = FixedRuntime(clock, clock.sleep, random.Random(1), background=InlineExecutor)
    with create_on(faults, runtime=runtime) as store:
        store.create_topic("t")
        job = begin(store, "job", 1)
        faults.plan = on(Fault.UNSYNCED, "put_if_absent", times=None)
        with pytest.raises(UnknownOutcomeError):
            jobs.commit(connection_of(store), job, [uploaded(store, "a")])
        faults.plan = no_faults
        assert faults.unsynced
        with open_on(faults, runtime=runtime) as again:
            assert begin(again, "job", 1).repeated
        assert faults.unsynced == []
