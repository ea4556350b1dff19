"""The steps of a transaction across chains, one by one, in the pure core: who may do what, when, how often."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from tests.helpers.chains import Cluster
from txnstore.core.groups.commands import TxnOffsets
from txnstore.core.groups.events import GroupOffset
from txnstore.core.groups.offsets import committed
from txnstore.core.log.appending import MAX_ADDED_AGE_MS
from txnstore.core.log.commands import Added, Append
from txnstore.core.model import Outcome, TopicPartition
from txnstore.core.routing import (
    chain_of_group,
    chain_of_partition,
    chain_of_producer,
    chain_of_transactional_id,
    first_producer_id,
)
from txnstore.core.transactions.commands import AbortTxn, CompleteTxn, DecidedTransaction, EndTxn, InitProducer
from txnstore.core.transactions.model import MAX_EPOCH, TxnState
from txnstore.errors import (
    ConcurrentTransactionsError,
    InvalidTxnStateError,
    ProducerFencedError,
    UploadExpiredError,
)

#: From the hash of the format: they must never change.
VECTORS = [15, 2, 6, 29, 41, 38]
GROUP = next(f"g{number}" for number in range(99) if chain_of_group(f"g{number}", 2) == 1)


def positions(at: int, group: str = GROUP) -> TxnOffsets:
    return TxnOffsets(group, (GroupOffset(topic="t", partition=0, offset=at),))


@pytest.fixture
def cluster() -> Cluster:
    """Two chains; chain 0 coordinates a transaction with data in both, and offsets of a group of chain 1."""
    cluster = Cluster(chains=2)
    cluster.begin(cluster.home(0), groups={1: positions(5)})
    return cluster


def foreign(cluster: Cluster) -> TopicPartition:
    """The partition of chain 1 that the transaction writes to."""
    return cluster.led_by(1)[0]


# Where things are -----------------------------------------------------------------------------------------------------


def test_coord_01_all_processes_route_to_same_chain() -> None:
    """COORD-01: pure functions with test vectors; another release, or language, must give the same."""
    assert [chain_of_transactional_id(f"id-{number}", 50) for number in range(6)] == VECTORS
    assert all(0 <= chain_of_transactional_id(f"x{number}", 7) < 7 for number in range(1_000))
    assert {chain_of_group(name, 1) for name in ("a", "b", "ä", "")} == {0}


def test_the_partitions_of_a_topic_spread_evenly() -> None:
    chains = [chain_of_partition(TopicPartition("orders", number), 8) for number in range(16)]
    assert sorted(chains) == sorted([*range(8)] * 2)


def test_init_06_no_two_chains_grant_the_same_producer_id() -> None:
    """INIT-06."""
    assert [first_producer_id(chain) for chain in range(3)] == [0, 1 << 32, 2 << 32]
    assert chain_of_producer(first_producer_id(2) + 17) == 2
    cluster = Cluster(chains=2)
    granted = [cluster.do(number, InitProducer(cluster.home(number))) for number in (0, 1, 0, 1)]
    assert [chain_of_producer(identity.producer_id) for identity in granted] == [0, 1, 0, 1]


# The steps ------------------------------------------------------------------------------------------------------------


def test_the_decision_is_one_entry_and_markers_follow(cluster: Cluster) -> None:
    """END-05, END-07: PREPARE is the decision; own markers are in its entry, the others' follow, COMPLETE ends it."""
    name, own, other = cluster.name, cluster.led_by(0)[0], foreign(cluster)
    answer = cluster.prepare()
    assert answer.unfinished is not None
    assert answer.producer.epoch == cluster.identity.epoch + 1
    zero, one = cluster.states
    assert zero.transactions[name].state is TxnState.PREPARE_COMMIT
    assert zero.partitions[own].open_txns.get(cluster.identity.producer_id) is None
    assert one.partitions[other].last_stable_offset == 0
    cluster.mark(1)
    assert cluster.states[1].partitions[other].last_stable_offset == 2
    assert cluster.states[0].transactions[name].state is TxnState.PREPARE_COMMIT
    cluster.complete()
    txn = cluster.states[0].transactions[name]
    assert (txn.state, txn.epoch, txn.partitions) == (TxnState.COMPLETE_COMMIT, answer.producer.epoch, frozenset())
    cluster.sound()


@pytest.mark.parametrize("outcome", Outcome)
def test_transaction_is_seen_whole_at_each_step(cluster: Cluster, outcome: Outcome) -> None:
    """OBJ-12, JEP-16: its records and its group's offsets are visible, or not, together: from the decision
    on (OFF-21).
    """
    pid = cluster.identity.producer_id

    def state_of_it() -> set[tuple[bool, ...]]:
        view = cluster.view()
        logs = [view.partitions[tp] for tp in (cluster.led_by(0)[0], foreign(cluster))]
        stable = {log.last_stable_offset > 0 for log in logs}
        aborted = {any(entry.producer_id == pid for entry in log.aborted) for log in logs}
        assert len(stable) == len(aborted) == 1
        return {(*stable, *aborted)}

    assert state_of_it() == {(False, False)}
    expected = (True, outcome is Outcome.ABORT)
    offset = None if outcome is Outcome.ABORT else 5
    cluster.prepare(outcome)
    steps: list[Callable[[], None]] = [lambda: None, lambda: cluster.mark(1), cluster.complete]
    for step in steps:
        step()
        assert state_of_it() == {expected}
        value = committed(cluster.view(), GROUP, TopicPartition("t", 0))
        assert (value.offset if value is not None else None) == offset


def test_end_08_markers_may_be_written_again_at_any_time(cluster: Cluster) -> None:
    """BUG-24, END-08, BUG: a late recoverer repeats the markers when the next transaction is already open there."""
    cluster.prepare()
    cluster.finish()
    decided, marked = cluster.decided, cluster.states[1]
    cluster.mark(1)
    assert cluster.states[1] is marked
    cluster.identity = replace(cluster.identity, epoch=cluster.identity.epoch + 1)
    cluster.send([foreign(cluster)])
    open_now = cluster.states[1].partitions[foreign(cluster)].open_txns
    assert cluster.decided is decided
    cluster.mark(1)
    cluster.complete()
    assert cluster.states[1].partitions[foreign(cluster)].open_txns == open_now
    assert cluster.states[0].transactions[cluster.name].state is TxnState.ONGOING
    cluster.sound()


def test_stm_02_decision_is_never_repeated(cluster: Cluster) -> None:
    """END-13, STM-02, INIT-05, END-01: who commits again gets the same answer, who aborts is refused, init
    only finishes it.
    """
    first = cluster.prepare()
    state = cluster.states[0]
    repetition = cluster.prepare()
    assert (repetition.producer, repetition.unfinished) == (first.producer, first.unfinished)
    with pytest.raises(InvalidTxnStateError, match="is committed"):
        cluster.do(0, EndTxn(cluster.identity, Outcome.ABORT))
    answer = cluster.do(0, InitProducer(cluster.name))
    assert isinstance(answer, DecidedTransaction)
    assert answer.outcome is Outcome.COMMIT
    assert isinstance(cluster.do(0, AbortTxn(cluster.name)), DecidedTransaction)
    assert cluster.states[0] is state


def test_commit_after_abort_by_other_process_is_fenced(cluster: Cluster) -> None:
    """KAFKA-20785, TMO-03: the owner must not take the abort for its own commit."""
    assert isinstance(cluster.do(0, AbortTxn(cluster.name)), DecidedTransaction)
    with pytest.raises(ProducerFencedError):
        cluster.do(0, EndTxn(cluster.identity, Outcome.COMMIT))


def test_add_05_next_transaction_waits_for_completion(cluster: Cluster) -> None:
    """ADD-05: CONCURRENT_TRANSACTIONS until all markers are known to be written."""
    answer = cluster.prepare()
    for command in (
        Append(answer.producer, partitions=(foreign(cluster),)),
        EndTxn(answer.producer, Outcome.ABORT),
        Append(cluster.identity, partitions=(foreign(cluster),)),
    ):
        with pytest.raises(ConcurrentTransactionsError):
            cluster.do(0, command)
    cluster.finish()
    cluster.do(0, Append(answer.producer, partitions=(foreign(cluster),)))


def test_late_completion_has_no_effect(cluster: Cluster) -> None:
    """END-12."""
    cluster.prepare()
    cluster.finish()
    assert cluster.decided is not None
    completion = CompleteTxn(cluster.decided, ())
    before = cluster.states[0]
    cluster.do(0, completion)
    assert cluster.states[0] is before


def test_init_07_an_exhausted_epoch_rotates_across_chains() -> None:
    """INIT-07, TV2: the next producer id is decided with the outcome, so its producer need not wait for the end."""
    cluster = Cluster(chains=2)
    name = cluster.home(0)
    cluster.do(0, InitProducer(name))
    state = cluster.states[0]
    txn = replace(state.transactions[name], epoch=MAX_EPOCH)
    cluster.states[0] = replace(state, transactions=state.transactions.insert(name, txn))
    cluster.name, cluster.identity = name, replace(cluster.do(0, InitProducer(name, expected=(0, MAX_EPOCH))))
    assert (cluster.identity.producer_id, cluster.identity.epoch) == (1, 0)
    state = cluster.states[0]
    txn = replace(state.transactions[name], epoch=MAX_EPOCH)
    cluster.states[0] = replace(state, transactions=state.transactions.insert(name, txn))
    cluster.identity = replace(cluster.identity, epoch=MAX_EPOCH)
    cluster.send([foreign(cluster)])
    answer = cluster.prepare()
    assert (answer.producer.producer_id, answer.producer.epoch) == (2, 0)
    other = cluster.do(0, InitProducer("another"))
    assert other.producer_id == 3
    cluster.finish()
    txn = cluster.states[0].transactions[name]
    assert (txn.producer_id, txn.epoch, txn.previous_producer_id) == (2, 0, 1)
    assert cluster.states[1].partitions[foreign(cluster)].producers[1].epoch == MAX_EPOCH + 1
    cluster.sound()


# Fences ---------------------------------------------------------------------------------------------------------------


def test_fen_02_marker_fences_late_batch_in_partition_without_data() -> None:
    """FEN-02, ADD-07, BUG: the partition was added, the abort came first, then the batch: it is refused."""
    cluster = Cluster(chains=2)
    cluster.name = cluster.home(0)
    cluster.identity = cluster.do(0, InitProducer(cluster.name))
    tp = foreign(cluster)
    cluster.do(0, Append(cluster.identity, partitions=(tp,), groups=(GROUP,)))
    added = Added(0, cluster.states[0].sequence, cluster.states[0].timestamp)
    cluster.prepare(Outcome.ABORT)
    cluster.finish()
    for append in (
        Append(cluster.identity, (cluster.batch(tp),), added=added),
        Append(cluster.identity, (), (positions(3),), added=added),
    ):
        with pytest.raises(ProducerFencedError):
            cluster.do(1, append)
    assert cluster.states[1].partitions[tp].last_stable_offset == cluster.states[1].partitions[tp].high_watermark == 1
    cluster.sound()


def test_fen_02_zombie_cannot_add_partition_of_new_chain(cluster: Cluster) -> None:
    """FEN-03, FEN-02: a new instance has fenced it in the coordinator's chain, which it has to ask first."""
    answer = cluster.do(0, InitProducer(cluster.name))
    assert isinstance(answer, DecidedTransaction)
    cluster.decided = answer
    cluster.finish()
    granted = cluster.do(0, InitProducer(cluster.name))
    assert granted.epoch == cluster.identity.epoch + 2
    with pytest.raises(ProducerFencedError):
        cluster.do(0, Append(cluster.identity, partitions=(cluster.led_by(1)[1],)))
    with pytest.raises(ProducerFencedError):
        cluster.send([foreign(cluster)], sequence=1)


def test_batch_of_partition_not_added_is_refused(cluster: Cluster) -> None:
    """ADD-06: a chain takes no batch of another's transaction without evidence of its coordinator."""
    with pytest.raises(InvalidTxnStateError, match="must add"):
        cluster.do(1, Append(cluster.identity, (cluster.batch(foreign(cluster), 1),)))


def test_batch_of_partition_added_long_ago_is_refused(cluster: Cluster) -> None:
    """ADD-07: by then a partition may have forgotten the epoch of the markers."""
    added = Added(0, cluster.states[0].sequence, cluster.now)
    cluster.now += MAX_ADDED_AGE_MS + 1
    append = Append(cluster.identity, (cluster.batch(foreign(cluster), 1),), added=added)
    with pytest.raises(UploadExpiredError, match="12 hours ago"):
        cluster.do(1, append)


def test_tmo_01_only_expired_transaction_is_aborted(cluster: Cluster) -> None:
    """TMO-01, TMO-03: the one that was watched; the time of the chain does not count, which a wrong clock may move."""
    identity = (cluster.identity.producer_id, cluster.identity.epoch)
    cluster.now += 365 * 86_400_000
    assert cluster.do(0, AbortTxn(cluster.name, expired_only=True)) is None
    assert cluster.do(0, AbortTxn(cluster.name, (identity[0], identity[1] + 1), expired_only=True)) is None
    assert cluster.states[0].transactions[cluster.name].state is TxnState.ONGOING
    answer = cluster.do(0, AbortTxn(cluster.name, identity, expired_only=True))
    assert isinstance(answer, DecidedTransaction)
    assert answer.outcome is Outcome.ABORT
    assert cluster.do(0, AbortTxn(cluster.name, identity=(cluster.identity.producer_id, 99))) is None


def test_off_11_position_in_chain_of_group_decides_across_chains(cluster: Cluster) -> None:
    """OFF-11: a plain commit that came after the pending one in the group's chain wins over it."""
    from txnstore.core.groups.commands import CommitOffsets

    cluster.do(1, CommitOffsets(positions(9)))
    cluster.prepare()
    cluster.finish()
    value = committed(cluster.view(), GROUP, TopicPartition("t", 0))
    assert value is not None
    assert value.offset == 9
