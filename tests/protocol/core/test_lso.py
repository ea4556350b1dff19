"""LSO, CON and CTL: what is stable, what is aborted, what readers get, decided from the state alone."""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations

import pytest

from tests.helpers.core import RC, RU, T0, T1, Client, World, with_partition
from txnstore.core.log.model import AbortedTxn
from txnstore.core.model import Outcome, TopicPartition


@pytest.fixture
def world() -> World:
    return World(partitions=2)


def _clients(world: World, count: int) -> list[Client]:
    return [world.client(f"p{number + 1}") for number in range(count)]


def test_the_lso_is_the_first_offset_of_the_earliest_open_transaction(world: World) -> None:
    """TST-14, LSO-01, LSO-02: Kafka's ``testFetchUpToLastStableOffset``: 26 records and 2 markers."""
    p1, p2 = _clients(world, 2)
    p1.send(5)
    world.plain(3)
    p2.send(2)
    p1.send(4)
    world.plain(2)
    p1.send(10)
    assert world.ends() == (0, 26)
    p1.commit()
    assert world.ends() == (8, 27)
    assert world.read(RC) == list(range(8))
    p2.abort()
    assert world.ends() == (28, 28)
    assert world.read(RC) == [*range(8), *range(10, 26)]


def test_aborted_index_matches_kafka_example(world: World) -> None:
    """LSO-10, TST-14, LSO-03, LSO-06: ``testTransactionIndexUpdated``, and the same from a replay of all events."""
    p1, p2, p3, p4 = _clients(world, 4)
    ends: list[int] = []

    def step(_: object) -> None:
        ends.append(world.ends()[1])

    step(p1.send(5))
    step(world.plain(3))
    step(p2.send(2))
    step(p1.send(4))
    step(p3.send(3))
    step(world.plain(2))
    step(p1.send(10))
    step(p1.abort())
    assert world.ends() == (8, 30)
    step(p2.send(6))
    step(p4.send(3))
    step(world.plain(10))
    step(p3.send(9))
    step(p3.commit())
    step(p4.send(8))
    step(p2.send(7))
    step(p2.abort())
    assert world.ends() == (36, 75)
    step(world.plain(10))
    step(p4.send(4))
    step(p4.commit())
    assert ends == [5, 8, 10, 14, 17, 19, 29, 30, 36, 39, 49, 58, 59, 67, 74, 75, 85, 89, 90]
    assert world.ends() == (90, 90)
    expected = (AbortedTxn(p1.producer_id, 0, 29, 8), AbortedTxn(p2.producer_id, 8, 74, 36))
    assert world.log().aborted == expected
    assert world.replay().partitions[T0].aborted == expected
    assert world.read(RC) == [
        *range(5, 8), *range(14, 19), *range(36, 58), *range(59, 67), *range(75, 89),
    ]  # fmt: skip


@pytest.mark.parametrize("tp", [T0, T1], ids=str)
def test_decided_data_above_open_transaction_is_not_read(world: World, tp: TopicPartition) -> None:
    """LSO-04, LSO-19: ``testReadCommittedConsumerShouldNotSeeUndecidedData``: the LSO cuts through p2's commit."""
    p1, p2 = _clients(world, 2)
    for client in (p2, p1, p1, p2):
        client.send(1, tp)
    p2.commit()
    assert world.ends(tp) == (1, 5)
    assert world.read(RU, tp) == [0, 1, 2, 3]
    assert world.read(RC, tp) == [0]
    assert world.log(tp).read_limit(RC) == 1
    p1.commit()
    assert world.read(RC, tp) == [0, 1, 2, 3]


@pytest.mark.parametrize(("log_start", "stable"), [(0, 2), (2, 2), (5, 5), (8, 8)])
def test_the_lso_is_never_below_the_log_start(world: World, log_start: int, stable: int) -> None:
    """LSO-05: where the log start has passed the beginning of an open transaction."""
    (p1,) = _clients(world, 1)
    world.plain(2)
    p1.send(8)
    moved = replace(world.log(), log_start=log_start)
    assert moved.last_stable_offset == stable
    world.state = with_partition(world.state, moved)
    assert world.read(RC) == list(range(log_start, 2))


def test_aborted_index_entry_requires_data(world: World) -> None:
    """LSO-06: none for a partition without data, or a commit; the entries are in the order of their markers."""
    p1, p2, p3 = _clients(world, 3)
    p1.send(2)
    p2.send(1)
    p3.send(1, T1)
    p2.abort()
    p3.abort()
    p1.abort()
    p1.send(1)
    p1.commit()
    assert world.log().aborted == (AbortedTxn(p2.producer_id, 2, 3, 0), AbortedTxn(p1.producer_id, 0, 4, 5))
    assert world.log(T1).aborted == (AbortedTxn(p3.producer_id, 0, 1, 2),)


def test_a_read_may_begin_anywhere(world: World) -> None:
    """LSO-07: the vector of AutoMQ#754: offsets 2 and 4 are aborted by different producers, 3 is not."""
    p1, p2 = _clients(world, 2)
    world.plain(2)
    p1.send(1)
    world.plain(1)
    p2.send(1)
    p1.abort()
    p2.abort()
    assert world.read(RC, start=2) == [3]
    assert world.read(RU, start=2) == [2, 3, 4]


def test_a_read_may_begin_inside_an_aborted_transaction(world: World) -> None:
    """LSO-07, BUG-26: the marker is far behind, the first batch before the start; nothing of it leaks."""
    (p1,) = _clients(world, 1)
    for _ in range(4):
        p1.send(3)
        world.plain(1)
    p1.abort()
    assert world.read(RC, start=5) == [7, 11, 15]
    assert world.read(RC, start=9) == [11, 15]


def test_read_uses_one_state(world: World) -> None:
    """LSO-08: LSO, index and batches are of one snapshot, which an abort afterwards does not change."""
    p1, p2 = _clients(world, 2)
    p1.send(1)
    p1.commit()
    before = world.state
    p2.send(1)
    after_send = world.state
    p2.abort()
    world.plain(1)
    assert world.read(RC) == [0, 4]
    for world.state in (before, after_send):
        assert world.read(RC) == [0]


def test_read_limit_by_isolation(world: World) -> None:
    """LSO-11: the end is the HW for read_uncommitted and the LSO for read_committed."""
    (p1,) = _clients(world, 1)
    world.plain(2)
    p1.send(3)
    assert world.log().read_limit(RU) == 5
    assert world.log().read_limit(RC) == 2


@pytest.mark.parametrize("order", list(permutations(range(3))))
def test_the_lso_moves_to_the_next_open_transaction(world: World, order: tuple[int, ...]) -> None:
    """REC-06, LSO-16, LSO-15: three interleaved transactions, ended in each order."""
    clients = _clients(world, 3)
    for _ in range(2):
        for client in clients:
            client.send(2)
    still = set(range(3))
    for number in order:
        clients[number].commit()
        still.discard(number)
        stable, end = world.ends()
        assert stable == (min(still) * 2 if still else end)
    assert world.ends() == (15, 15)
    assert world.read(RC) == list(range(12))


@pytest.mark.parametrize("order", list(permutations(range(3))))
def test_the_journal_watermark_is_the_first_entry_of_the_earliest_open_transaction(
    world: World, order: tuple[int, ...]
) -> None:
    """LSO-16: as the LSO of a partition, and over all of them; the next entry where none is open."""
    clients = _clients(world, 3)
    assert world.state.journal_watermark == world.state.sequence + 1
    began = []
    for _ in range(2):
        for client in clients:
            client.send(2)
            began.append(world.state.sequence)
    still = set(range(3))
    for number in order:
        assert world.state.journal_watermark == min(began[each] for each in still)
        clients[number].commit()
        still.discard(number)
    assert world.state.journal_watermark == world.state.sequence + 1
    clients[0].send(1)
    assert world.state.journal_watermark == world.state.sequence


def test_read_committed_returns_committed_records_in_order(world: World) -> None:
    """CON-02, CON-07: commits, aborts and plain records mixed; read_uncommitted gets all but the markers."""
    p1, p2 = _clients(world, 2)
    p1.send(2)
    world.plain(1)
    p2.send(2)
    p1.abort()
    p2.send(1)
    world.plain(1)
    p2.commit()
    p1.send(1)
    assert world.read(RC) == [2, 3, 4, 6, 7]
    assert world.read(RU) == [0, 1, 2, 3, 4, 6, 7, 9]


def test_aborts_and_commits_of_one_producer_alternate(world: World) -> None:
    """CON-03: ``testMultipleAbortMarkers``: abort, commit, abort, commit, with another producer in between."""
    p1, p2 = _clients(world, 2)
    for outcome in (Outcome.ABORT, Outcome.COMMIT, Outcome.ABORT, Outcome.COMMIT):
        p1.send(1)
        p2.send(1)
        p1.send(1)
        p1.commit() if outcome is Outcome.COMMIT else p1.abort()
    p2.commit()
    assert world.read(RC) == [1, 4, 5, 6, 9, 12, 13, 14]


def test_commit_does_not_end_aborted_range(world: World) -> None:
    """CON-04: p2's commit marker lies between p1's data and p1's abort."""
    p1, p2 = _clients(world, 2)
    p1.send(1)
    p2.send(1)
    p2.commit()
    p1.send(1)
    p1.abort()
    assert world.read(RC) == [1]


def test_log_that_ends_with_markers(world: World) -> None:
    """CON-05, CON-06: they are no records, and the position may still go to the end."""
    (p1,) = _clients(world, 1)
    p1.send(1)
    p1.commit()
    for isolation in (RC, RU):
        assert world.read(isolation, start=1) == []
        assert world.log().read_limit(isolation) == 2


def test_open_transaction_is_invisible(world: World) -> None:
    """CON-08: not even its own producer, in read_committed."""
    (p1,) = _clients(world, 1)
    p1.send(3)
    assert world.read(RC) == []
    assert world.read(RU) == [0, 1, 2]


def test_aborted_transaction_with_compacted_data(world: World) -> None:
    """CON-16: the entry of the index goes with its last batch; a reader who still has it misses nothing."""
    p1, p2 = _clients(world, 2)
    p1.send(2)
    p2.send(2)
    p1.abort()
    p2.commit()
    world.plain(1)
    before, index = world.read(RC), world.log().aborted
    assert index == (AbortedTxn(p1.producer_id, 0, 4, 2),)
    world.compact()
    assert world.read(RC) == before == [2, 3, 6]
    assert world.log().aborted == ()
    world.start = world.state = with_partition(world.state, replace(world.log(), aborted=index))
    world.entries = []
    assert world.read(RC) == before
    assert world.read(RC, start=3) == [3, 6]


def test_a_marker_takes_one_offset(world: World) -> None:
    """CTL-02: 3 records, a commit, 1 record: offsets 0, 1, 2, (3), 4; an abort the same."""
    (p1,) = _clients(world, 1)
    p1.send(3)
    p1.commit()
    assert p1.send(1).base_offset == 4
    p1.abort()
    assert world.plain().base_offset == 6
    assert world.read(RC) == [0, 1, 2, 6]
    assert world.read(RU) == [0, 1, 2, 4, 6]
