"""Invariants that take several chains: each holds in what the protocol makes, and is shown to fail on damage."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.helpers.chains import Cluster
from txnstore.core.invariants.check import ACROSS, EVENTS, check_event, check_step, check_view
from txnstore.core.invariants.fences import FENCE_ACROSS
from txnstore.core.log.commands import Append
from txnstore.core.model import Outcome
from txnstore.core.state import State
from txnstore.core.transactions.commands import CompleteTxn, EndTxn
from txnstore.core.transactions.model import TxnState
from txnstore.core.view import View


@pytest.fixture
def cluster() -> Cluster:
    """Two chains: a transaction of chain 0 is prepared, and chain 1 has its data and no marker yet."""
    cluster = Cluster(chains=2, partitions=4)
    cluster.begin(cluster.home(0))
    cluster.prepare()
    return cluster


def names(view: View) -> set[str]:
    return {violation.name for violation in check_view(view)}


def test_a_prepared_transaction_is_sound(cluster: Cluster) -> None:
    assert check_view(cluster.view()) == []


def test_cut_without_decision_is_found(cluster: Cluster) -> None:
    before = cluster.states[0]
    cluster.finish()
    assert check_view(cluster.view()) == []
    earlier = replace(before, sequence=before.sequence - 1)
    assert "cut_is_consistent" in names(View((earlier, cluster.states[1])))


def test_copy_newer_than_catalog_is_found(cluster: Cluster) -> None:
    one = cluster.states[1]
    newer = replace(one, topics=one.topics.insert("t", replace(one.topics["t"], revision=99)))
    assert "copies_follow_the_catalog" in names(View((cluster.states[0], newer)))


def test_hanging_transaction_is_found(cluster: Cluster) -> None:
    """ADD-07: a hanging transaction."""
    zero = cluster.states[0]
    txn = replace(zero.transactions[cluster.name], partitions=frozenset(), state=TxnState.EMPTY)
    forgot = replace(zero, transactions=zero.transactions.insert(cluster.name, txn))
    assert "foreign_data_has_an_owner" in names(View((forgot, cluster.states[1])))


def test_every_rule_across_chains_is_shown_to_fail() -> None:
    assert {rule.__name__ for rule in {*ACROSS} - {*FENCE_ACROSS}} == {
        "cut_is_consistent",
        "copies_follow_the_catalog",
        "foreign_data_has_an_owner",
    }


def test_a_decision_that_changes_is_found(cluster: Cluster) -> None:
    """Invariant 7."""
    state = cluster.states[0]
    txn = state.transactions[cluster.name]

    def became(**changes: Any) -> set[str]:
        after = replace(state, transactions=state.transactions.insert(cluster.name, replace(txn, **changes)))
        return {violation.name for violation in check_event(state, after)}

    assert {rule.__name__ for rule in EVENTS} == {"decisions_never_change"}
    assert "decisions_never_change" in became(state=TxnState.PREPARE_ABORT)
    assert "decisions_never_change" in became(state=TxnState.ONGOING, epoch=txn.epoch + 5)
    assert "decisions_never_change" not in became(updated_at=txn.updated_at + 1)


def test_an_entry_may_complete_a_transaction_and_decide_the_next_one(cluster: Cluster) -> None:
    """Invariant 7: both commands of a producer that continued at once may share an entry; each event is right."""
    cluster.mark(1)
    assert cluster.decided is not None
    before, own = cluster.states[0], cluster.led_by(0)[0]
    following = replace(cluster.identity, epoch=cluster.identity.epoch + 1)
    batch = cluster.batch(own)
    cluster.do(
        0,
        CompleteTxn(cluster.decided, ((1, cluster.states[1].sequence),)),
        Append(following, (batch,), (), (own,)),
        EndTxn(following, Outcome.ABORT),
    )
    assert cluster.states[0].sequence == before.sequence + 1
    txn = cluster.states[0].transactions[cluster.name]
    assert (txn.state, txn.epoch) == (TxnState.COMPLETE_ABORT, following.epoch + 1)
    cluster.sound()


def test_a_cut_that_goes_back_is_found(cluster: Cluster) -> None:
    before = cluster.states[1]
    after: State = replace(before, seen=before.seen.insert(0, 0))
    assert "cut_never_goes_back" in {violation.name for violation in check_step(before, after)}
