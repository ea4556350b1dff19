"""Rounds of a compactor above the transactional high watermark: what is decided there is cleaned, once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest

from tests.helpers.compaction import T0, batches, rows
from tests.helpers.connections import connection_of
from tests.helpers.rounds import compact_rounds
from tests.helpers.shell import another_process, new_store
from txnstore.compactor.compact.rounds import Round
from txnstore.core.log.model import Partition
from txnstore.producer import Producer
from txnstore.storage.memory import MemoryStore
from txnstore.store import Store
from txnstore.testing import FaultStore, ManualClock

pytestmark = pytest.mark.usefixtures("own_objects")


@pytest.fixture
def faults(clock: ManualClock) -> FaultStore:
    return FaultStore(MemoryStore(clock=clock))


@pytest.fixture
def store(faults: FaultStore, clock: ManualClock, chains: int) -> Iterator[Store]:
    with new_store(faults, clock=clock, chains=chains) as made:
        made.alter_topic("t", config={"cleanup.policy": "compact"})
        yield made


@pytest.fixture(name="waiting")
def open_transaction(store: Store) -> Producer:
    """A producer whose transaction holds the LSO back, below all that a test appends."""
    waiting = store.producer("waiting")
    waiting.begin_transaction()
    append(waiting, b"a")
    return waiting


def append(producer: Producer, *keys: bytes) -> None:
    """One segment for each key."""
    for key in keys:
        producer.send("t", b"value", key=key, partition=0)
        producer.flush()


def log(store: Store) -> Partition:
    return connection_of(store).view().partitions[T0]


def superseded(round_: Round) -> int:
    assert round_.error is None
    return round_.report.superseded


def segments_read(faults: FaultStore, since: int) -> int:
    return sum(request.operation == "get" and "topics/" in request.key for request in faults.requests[since:])


def test_a_round_cleans_above_the_hw_and_later_ones_are_idle(store: Store, waiting: Producer) -> None:
    """CMP-03, CMP-04: what is open stays where it is, and the cleaner checkpoint at the LSO."""
    append(store.producer(), b"b", b"b", b"c")
    held, before = batches(store)[0], rows(store, isolation="read_committed")
    with closing(compact_rounds(store, past_hw=True)) as rounds:
        assert superseded(next(rounds)) == 1
        assert batches(store)[0] == held
        assert log(store).clean_until == log(store).last_stable_offset == 0
        sequences = [state.sequence for state in connection_of(store).view().states]
        assert [next(rounds).idle for _ in range(3)] == [True, True, True]
        assert [state.sequence for state in connection_of(store).view().states] == sequences
        assert rows(store, isolation="read_committed") == before == []
        waiting.commit_transaction()
        assert superseded(next(rounds)) == 0
        assert log(store).clean_until == log(store).last_stable_offset > 0
    assert [row["key"] for row in rows(store)] == [b"a", b"b", b"c"]
    assert store.verify(deep=True).ok


@pytest.mark.usefixtures("waiting")
def test_what_a_round_found_nothing_in_is_not_read_again(store: Store, faults: FaultStore) -> None:
    """The log does not tell that it was read: its batches and the checkpoint are as before."""
    append(store.producer(), b"b", b"c", b"d")
    with closing(compact_rounds(store, past_hw=True)) as rounds:
        first = next(rounds)
        assert (superseded(first), first.report.cleans) == (0, 1)
        since, sequences = len(faults.requests), [state.sequence for state in connection_of(store).view().states]
        assert [next(rounds).idle for _ in range(3)] == [True, True, True]
        assert segments_read(faults, since) == 0
        assert [state.sequence for state in connection_of(store).view().states] == sequences


@pytest.mark.usefixtures("waiting")
def test_more_than_the_ratio_of_new_bytes_is_read_again_with_the_rest(store: Store, faults: FaultStore) -> None:
    producer = store.producer()
    append(producer, b"b", b"c", b"d")
    with closing(compact_rounds(store, past_hw=True)) as rounds:
        assert superseded(next(rounds)) == 0
        since = len(faults.requests)
        append(producer, b"b", b"c")
        assert next(rounds).idle
        assert segments_read(faults, since) == 0
        append(producer, b"d", b"e")
        assert superseded(next(rounds)) == 3
        assert next(rounds).idle
    assert store.verify(deep=True).ok


def test_a_round_without_change_above_the_hw_is_followed_by_longer_pauses(
    faults: FaultStore, clock: ManualClock, store: Store, waiting: Producer
) -> None:
    append(store.producer(), b"b", b"c")
    for number, round_ in enumerate(compact_rounds(store, past_hw=True, rounds=8), 1):
        assert round_.idle is (number not in (1, 6))
        if number == 5:
            waiting.abort_transaction()
    assert log(store).clean_until == log(store).last_stable_offset


@pytest.mark.usefixtures("waiting")
def test_each_compactor_reads_it_once(store: Store, faults: FaultStore) -> None:
    """What one has found is not in the chain; but it costs another one a single round."""
    append(store.producer(), b"b", b"c")
    with another_process(store) as other:
        ours, theirs = (compact_rounds(process, past_hw=True) for process in (store, other))
        with closing(ours), closing(theirs):
            assert superseded(next(ours)) == 0
            ours.close()
            assert superseded(next(theirs)) == 0
            since = len(faults.requests)
            assert [next(theirs).idle for _ in range(2)] == [True, True]
            assert segments_read(faults, since) == 0


@pytest.mark.usefixtures("waiting")
def test_aborted_records_alone_are_no_reason_for_a_clean(store: Store) -> None:
    """CMP-05: they supersede nothing, and go when the LSO has passed them, or with what is cleaned beside them."""
    producer = store.producer("aborts")
    producer.begin_transaction()
    append(producer, b"b", b"b")
    producer.abort_transaction()
    assert store.compact(past_hw=True, force=True).partitions == ()
    with closing(compact_rounds(store, past_hw=True)) as rounds:
        assert next(rounds).idle


@pytest.mark.usefixtures("waiting")
def test_rounds_end_at_the_hw_unless_they_are_asked_to_pass_it(store: Store) -> None:
    append(store.producer(), b"b", b"b")
    with closing(compact_rounds(store)) as rounds:
        assert next(rounds).idle
