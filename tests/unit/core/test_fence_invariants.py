"""Invariants of fences and of deleted topics: each is shown to fail on damage."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.helpers.chains import Cluster
from txnstore.core.invariants.check import check, check_step, check_view
from txnstore.core.invariants.fences import (
    FENCE_ACROSS,
    FENCE_INVARIANTS,
    FENCE_STEPS,
    open_data_is_of_the_topic_of_its_transaction,
)
from txnstore.core.log.appending import MAX_ADDED_AGE_MS
from txnstore.core.model import Fence, Map, TopicPartition
from txnstore.core.state import State
from txnstore.core.view import View


@pytest.fixture
def cluster() -> Cluster:
    """Two chains: a transaction of chain 0 is prepared, and chain 1 has its data, its fence and no marker yet."""
    cluster = Cluster(chains=2, partitions=4)
    cluster.begin(cluster.home(0))
    cluster.prepare()
    return cluster


def producer_id(cluster: Cluster) -> int:
    return next(iter(cluster.states[1].fences))


def with_fence(cluster: Cluster, **changes: Any) -> State:
    state, key = cluster.states[1], producer_id(cluster)
    return replace(state, fences=state.fences.insert(key, state.fences[key]._replace(**changes)))


def violations_of(state: State) -> set[str]:
    return {violation.name for violation in check(state)}


def stepped(before: State, after: State) -> set[str]:
    return {violation.name for violation in check_step(before, after)}


def across(cluster: Cluster, one: State) -> set[str]:
    return {violation.name for violation in check_view(View((cluster.states[0], one)))}


def open_partition(state: State) -> TopicPartition:
    return next(tp for tp in sorted(state.partitions) if state.partitions[tp].open_txns)


def test_a_fence_of_a_producer_of_this_chain_is_found(cluster: Cluster) -> None:
    state = cluster.states[1]
    assert violations_of(state) == set()
    own = replace(state, fences=state.fences.insert(state.next_producer_id, Fence(0, 0, prepared=False)))
    assert "fences_are_of_other_chains" in violations_of(own)
    assert "fences_are_of_other_chains" in violations_of(with_fence(cluster, epoch=-1))


def test_open_data_without_a_fence_is_found(cluster: Cluster) -> None:
    state = cluster.states[1]
    assert "open_data_has_a_fence" in violations_of(replace(state, fences=state.fences.remove(producer_id(cluster))))


def test_a_fence_that_goes_back_is_found(cluster: Cluster) -> None:
    before = with_fence(cluster, epoch=5, prepared=True)
    assert "fences_never_go_back" in stepped(before, with_fence(cluster, epoch=4))
    assert "fences_never_go_back" in stepped(before, with_fence(cluster, epoch=5, prepared=False))
    forgotten = replace(before, fences=before.fences.remove(producer_id(cluster)))
    assert "fences_never_go_back" in stepped(before, forgotten)
    late = replace(forgotten, timestamp=before.timestamp + MAX_ADDED_AGE_MS + 1)
    assert "fences_never_go_back" not in stepped(before, late)


def test_a_batch_below_a_fence_is_found(cluster: Cluster) -> None:
    after = cluster.states[1]
    tp = open_partition(after)
    log = after.partitions[tp]
    empty = replace(log, batches=type(log.batches)(), high_watermark=0, open_txns=type(log.open_txns)())
    before = replace(with_fence(cluster, epoch=9), partitions=after.partitions.insert(tp, empty))
    assert "nothing_below_a_fence" in stepped(before, with_fence(cluster, epoch=9))
    assert "nothing_below_a_fence" not in stepped(replace(after, partitions=before.partitions), after)


def test_a_record_in_a_closed_topic_is_found(cluster: Cluster) -> None:
    after = cluster.states[1]
    tp = open_partition(after)
    log = after.partitions[tp]
    empty = replace(log, batches=type(log.batches)(), high_watermark=0, open_txns=type(log.open_txns)())
    before = replace(after, partitions=after.partitions.insert(tp, empty))
    closed = replace(before, deleted=before.deleted.insert(tp.topic, before.topics[tp.topic].revision))
    assert "closed_topics_take_nothing" in stepped(closed, after)
    assert "closed_topics_take_nothing" not in stepped(before, after)


def test_a_fence_of_an_epoch_that_was_never_granted_is_found(cluster: Cluster) -> None:
    assert across(cluster, cluster.states[1]) == set()
    assert "fences_known_to_coordinator" in across(cluster, with_fence(cluster, epoch=100))


def test_open_data_in_another_topic_of_the_name_is_found(cluster: Cluster) -> None:
    zero, one = cluster.states[0], cluster.states[1]
    named = replace(zero.transactions[cluster.name], topic_ids=Map({"t": ("another",)}))
    elsewhere = replace(zero, transactions=zero.transactions.insert(cluster.name, named))
    names = {violation.name for violation in check_view(View((elsewhere, one)))}
    assert "open_data_is_of_the_topic_of_its_transaction" in names
    own = replace(elsewhere, partitions=one.partitions)
    assert list(open_data_is_of_the_topic_of_its_transaction(View((own, replace(one, partitions=Map()))))) == []


def test_a_deleted_topic_that_takes_records_is_found(cluster: Cluster) -> None:
    zero = cluster.states[0]
    deleted = replace(zero, topics=zero.topics.remove("t"))
    names = {violation.name for violation in check_view(View((deleted, cluster.states[1])))}
    assert "deleted_topics_are_closed" in names


def test_every_rule_is_shown_to_fail() -> None:
    assert {rule.__name__ for rule in (*FENCE_INVARIANTS, *FENCE_STEPS, *FENCE_ACROSS)} == {
        "fences_are_of_other_chains",
        "open_data_has_a_fence",
        "fences_never_go_back",
        "nothing_below_a_fence",
        "closed_topics_take_nothing",
        "fences_known_to_coordinator",
        "open_data_is_of_the_topic_of_its_transaction",
        "deleted_topics_are_closed",
    }
