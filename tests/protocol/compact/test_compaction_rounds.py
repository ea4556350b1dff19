"""Compactors that work round after round, several of them on one store."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace

import pytest

from tests.helpers.connections import connection_of
from tests.helpers.rounds import compact_rounds
from tests.helpers.shell import ONE_CHAIN, T0, T1, T2, another_process, new_store, rows, runtime
from txnstore.compactor.compact.rounds import Round
from txnstore.core.catalog.model import CreateTopic
from txnstore.core.model import TopicPartition
from txnstore.errors import (
    CorruptionError,
    InvalidConfigError,
    ReadOnlyError,
    StorageError,
)
from txnstore.storage.counting import CountingStore
from txnstore.storage.memory import MemoryStore
from txnstore.store import Store, open_on
from txnstore.testing import Fault, FaultStore, ManualClock
from txnstore.testing.faults import on


@pytest.fixture
def faults(clock: ManualClock) -> FaultStore:
    return FaultStore(MemoryStore(clock=clock))


@pytest.fixture
def store(faults: FaultStore, clock: ManualClock, chains: int) -> Iterator[Store]:
    with new_store(faults, clock=clock, chains=chains) as made:
        yield made


def fill(store: Store, segments: int = 3, partitions: tuple[int, ...] = (0, 1, 2)) -> None:
    with store.producer() as producer:
        for number in range(segments):
            for partition in partitions:
                producer.send("t", b"%d" % number, partition=partition)
            producer.flush()


def compacted(round_: Round) -> list[TopicPartition]:
    return [item.tp for item in round_.report.partitions]


def test_compactors_share_the_partitions(store: Store) -> None:
    """Each takes what is left: no partition is read twice, no replacement conflicts."""
    fill(store)
    before = rows(store)
    with another_process(store) as one, another_process(store) as two:
        ours, theirs = (compact_rounds(process, max_bytes=1) for process in (one, two))
        first_rounds = [next(ours), next(theirs), next(ours)]
        assert sorted(tp for round_ in first_rounds for tp in compacted(round_)) == [T0, T1, T2]
        assert [round_.report.conflicts for round_ in first_rounds] == [0, 0, 0]
        assert [next(theirs).idle, next(ours).idle] == [True, True]
    assert rows(store) == before


def test_the_partition_with_the_most_segments_comes_first(store: Store) -> None:
    fill(store, 2, (0,))
    fill(store, 5, (1,))
    fill(store, 3, (2,))
    order = [compacted(round_) for round_ in compact_rounds(store, max_bytes=1, rounds=3)]
    assert order == [[T1], [T2], [T0]]


@pytest.mark.usefixtures("own_objects")
def test_the_filthiest_partition_comes_first(store: Store) -> None:
    """CMP-20: before one that is less dirty with more segments, and before one that has only merges."""
    store.create_topic("k", partitions=2, config={"cleanup.policy": "compact"})
    rng = random.Random(1)
    with store.producer() as producer:

        def append(partition: int, size: int, segments: int = 1) -> None:
            for _ in range(segments):
                producer.send("k", rng.randbytes(size), key=rng.randbytes(8), partition=partition)
                producer.flush()

        append(0, 10_000)
        store.compact("k", force=True)
        append(0, 5_000, 5)
        append(1, 1_000, 2)
    fill(store, 9, (0,))
    order = [compacted(round_) for round_ in compact_rounds(store, max_bytes=1, rounds=3)]
    assert order == [[TopicPartition("k", 1)], [TopicPartition("k", 0)], [T0]]


def test_a_round_takes_as_many_partitions_as_its_budget_allows(store: Store) -> None:
    fill(store)
    sizes = [item.bytes_read for item in store.compact(dry_run=True).partitions]
    partitions = [compacted(round_) for round_ in compact_rounds(store, max_bytes=sizes[0] + sizes[1], rounds=2)]
    assert [len(tps) for tps in partitions] == [2, 1]


def test_an_error_of_the_storage_is_part_of_its_round(store: Store, faults: FaultStore) -> None:
    fill(store)
    with closing(compact_rounds(store)) as rounds:
        faults.plan = on(Fault.ERROR_BEFORE, "put", key_contains="topics/t", times=1)
        round_ = next(rounds)
        assert isinstance(round_.error, StorageError)
        assert not round_.idle
        assert round_.due == 3
        assert sorted(item.merges for item in round_.report.partitions) == [0, 1, 1]
        assert [item.merges for item in next(rounds).report.partitions] == [1]


@pytest.mark.usefixtures("own_objects")
def test_damage_holds_up_no_other_partition(store: Store, faults: FaultStore) -> None:
    """The partition with the most debt is damaged, and the budget of a round is one partition."""
    fill(store, 4, (0,))
    fill(store, 3, (1, 2))
    log = connection_of(store).view().find_partition(T0)
    faults.inner.delete([next(iter(log.batches)).segment.key])
    with closing(compact_rounds(store, max_bytes=1)) as rounds:
        first_rounds = [next(rounds) for _ in range(4)]
    assert [isinstance(round_.error, CorruptionError) for round_ in first_rounds] == [True, False, False, True]
    assert [compacted(round_) for round_ in first_rounds[1:3]] == [[T1], [T2]]


@pytest.mark.usefixtures("own_objects")
def test_a_round_with_damage_reports_what_it_compacted(store: Store, faults: FaultStore) -> None:
    fill(store)
    log = connection_of(store).view().find_partition(T1)
    faults.inner.delete([next(iter(log.batches)).segment.key])
    with closing(compact_rounds(store)) as rounds:
        round_ = next(rounds)
    assert isinstance(round_.error, CorruptionError)
    assert {item.tp: item.merges for item in round_.report.partitions} == {T0: 1, T1: 0, T2: 1}
    assert (round_.worked, round_.idle) == (True, False)


def test_a_topic_that_cannot_be_read_holds_up_no_other(store: Store) -> None:
    fill(store, partitions=(0,))
    state = connection_of(store).view().states[0]
    broken = replace(state.topics["t"], name="broken", topic_id="broken", schema="{", revision=0)
    connection_of(store).submit(CreateTopic(broken))
    with closing(compact_rounds(store)) as rounds:
        round_ = next(rounds)
    assert compacted(round_) == [T0]
    assert "broken" in str(round_.error)


@ONE_CHAIN
def test_an_idle_round_costs_a_get(store: Store, faults: FaultStore) -> None:
    fill(store)
    store.compact()
    with closing(compact_rounds(store)) as rounds:
        next(rounds)
        since = len(faults.requests)
        next(rounds)
        assert [request.operation for request in faults.requests[since:]] == ["get"]


def test_a_reader_cannot_compact(store: Store, faults: FaultStore) -> None:
    with open_on(CountingStore(faults), runtime=runtime(), read_only=True) as reader, pytest.raises(ReadOnlyError):
        next(compact_rounds(reader))
    with pytest.raises(InvalidConfigError, match="max_bytes"):
        next(compact_rounds(store, max_bytes=0))
