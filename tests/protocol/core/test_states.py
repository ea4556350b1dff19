"""STM and ADD: the states of a transaction, and how partitions come into it."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from itertools import permutations

import pytest

from tests.helpers.core import RC, RU, T0, T1, World, with_txn
from txnstore.core.catalog.model import AlterTopic
from txnstore.core.invariants.steps import decisions_never_change
from txnstore.core.log.commands import Append
from txnstore.core.model import Command, Outcome, ProducerIdentity, TopicPartition
from txnstore.core.transactions.events import PartitionsAdded
from txnstore.core.transactions.machine import VALID_PREVIOUS_STATES, check_transition
from txnstore.core.transactions.model import TxnState
from txnstore.errors import (
    InvalidPidMappingError,
    InvalidTxnStateError,
    ProducerFencedError,
    UnknownTopicOrPartitionError,
)

COMMIT = Outcome.COMMIT


@pytest.fixture
def world() -> World:
    return World(partitions=3)


# STM ------------------------------------------------------------------------------------------------------------------


def test_states_have_kafka_ids() -> None:
    """STM-01."""
    assert [(state.value, state.name) for state in TxnState] == [
        (0, "EMPTY"),
        (1, "ONGOING"),
        (2, "PREPARE_COMMIT"),
        (3, "PREPARE_ABORT"),
        (4, "COMPLETE_COMMIT"),
        (5, "COMPLETE_ABORT"),
        (6, "DEAD"),
        (7, "PREPARE_EPOCH_FENCE"),
    ]


def test_valid_previous_states_match_kafka() -> None:
    """STM-02, TST-11: all 64 pairs, each row a state and the digits of those from which it may be entered."""
    table = {0: "045", 1: "0145", 2: "1", 3: "01457", 4: "2", 5: "3", 6: "045", 7: "1"}
    for state in TxnState:
        for before in TxnState:
            assert (before in VALID_PREVIOUS_STATES[state]) is (str(before.value) in table[state.value])


@pytest.mark.parametrize("state", TxnState)
@pytest.mark.parametrize("before", TxnState)
def test_no_transition_outside_of_the_table(world: World, before: TxnState, state: TxnState) -> None:
    """STM-02: the check of the rules, and the invariant that replays each event, read the one table."""
    world.client("a")
    txn = replace(world.txn("a"), state=before)
    valid = before in VALID_PREVIOUS_STATES[state]
    with nullcontext() if valid else pytest.raises(InvalidTxnStateError, match=f"cannot become {state.name}"):
        check_transition(txn, state)
    if state is not before:
        messages = list(
            decisions_never_change(with_txn(world.state, txn), with_txn(world.state, replace(txn, state=state)))
        )
        assert any("no transition" in message for message in messages) is not valid


def test_a_transaction_passes_through_the_states(world: World) -> None:
    """STM-06: partitions only grow while it is open, its start stays, and the end empties it."""
    client = world.client("a")
    assert world.txn("a").state is TxnState.EMPTY
    client.send()
    begun = world.txn("a")
    assert (begun.state, begun.partitions, begun.started_at) == (TxnState.ONGOING, frozenset({T0}), world.now)
    client.send(tp=T1)
    grown = world.txn("a")
    assert (grown.partitions, grown.started_at, grown.updated_at) == (frozenset({T0, T1}), begun.started_at, world.now)
    client.abort()
    ended = world.txn("a")
    assert (ended.state, ended.partitions, ended.started_at) == (TxnState.COMPLETE_ABORT, frozenset(), None)


def test_clock_that_goes_back_blocks_no_command(world: World) -> None:
    """STM-06: the time of the chain stands still until the clock has caught up."""
    client = world.client("a")
    client.send()
    at = world.state.timestamp
    world.now -= 3_600_000
    client.send()
    client.commit()
    assert world.state.timestamp == at
    assert world.read(RC) == [0, 1]


def test_the_next_transaction_has_its_own_partitions(world: World) -> None:
    """STM-07: the second one writes no marker where only the first one was."""
    client = world.client("a")
    t2 = TopicPartition("t", 2)
    client.send()
    client.send(tp=T1)
    client.send_offsets({T0: 1})
    client.commit()
    client.send(tp=t2)
    client.commit()
    assert [world.ends(tp)[1] for tp in (T0, T1, t2)] == [2, 2, 2]
    assert world.last_events() == ["TxnDecided", "MarkerWritten", "TxnCompleted"]


# ADD ------------------------------------------------------------------------------------------------------------------


def test_a_partition_is_listed_before_its_first_record(world: World) -> None:
    """ADD-01: in the same entry, before the data; in a stable order."""
    client = world.client("a")
    world.do(client.append(client.numbered(1, T1), client.numbered(1, T0)))
    assert world.last_events() == ["PartitionsAdded", "BatchesAppended", "BatchesAppended"]
    (added, *_) = world.entries[-1][1]
    assert isinstance(added, PartitionsAdded)
    assert added.partitions == sorted([T0, T1])


def test_first_partition_starts_timeout(world: World) -> None:
    """ADD-02: not the init; the second one does not start it again."""
    client = world.client("a")
    world.now += 50_000
    client.send()
    started = world.now
    world.now += 10_000
    client.send(tp=T1)
    client.send_offsets({T0: 1})
    assert world.txn("a").started_at == started


def test_first_offsets_start_timeout(world: World) -> None:
    """ADD-02."""
    client = world.client("a")
    client.send_offsets({T0: 1})
    assert world.txn("a").started_at == world.now


def test_adding_partitions_checks_identity(world: World) -> None:
    """TST-08, ADD-03: mapping before epoch; a partition that is in it already is no write to the transaction."""
    client, other = world.client("a"), world.client("b")
    pid = client.producer_id
    batch = client.numbered()
    world.refuse(InvalidPidMappingError, Append(ProducerIdentity(pid, 0, "gone"), (batch,)))
    world.refuse(InvalidPidMappingError, Append(ProducerIdentity(other.producer_id, 0, "a"), (batch,)))
    world.refuse(InvalidPidMappingError, Append(ProducerIdentity(other.producer_id, 9, "a"), (batch,)))
    world.refuse(ProducerFencedError, Append(ProducerIdentity(pid, 1, "a"), (batch,)))
    client.send()
    client.send()
    assert world.last_events() == ["BatchesAppended"]


def test_one_unknown_topic_fails_the_whole_add(world: World) -> None:
    """ADD-04: none is added; the good one works afterwards."""
    client = world.client("a")
    good, missing = client.numbered(), client.numbered(1, TopicPartition("missing", 0))
    error = world.refuse(UnknownTopicOrPartitionError, client.append(good, missing))
    assert "'missing'" in str(error)
    world.refuse(UnknownTopicOrPartitionError, client.end(COMMIT, good, missing))
    assert world.txn("a").state is TxnState.EMPTY
    client.send()


@pytest.mark.parametrize("then", ["nothing", "open", "committed"])
def test_delayed_batch_starts_no_transaction(world: World, then: str) -> None:
    """BUG-01, BUG-07, ADD-07: neither one of its own, nor does it join the next one; and it is in no read."""
    client = world.client("a")
    client.send(2)
    delayed = client.append(client.numbered(), client.numbered(1, T1))
    client.abort()
    if then != "nothing":
        client.send()
    if then == "committed":
        client.commit()
    world.refuse(ProducerFencedError, delayed)
    if then == "open":
        client.abort()
    assert world.ends() == (world.ends()[1],) * 2
    assert world.ends(T1) == (0, 0)
    assert world.read(RU)[:2] == [0, 1]


def test_batch_has_epoch_of_open_transaction(world: World) -> None:
    """ADD-10: neither below nor above it."""
    client = world.client("a")
    for _ in range(5):
        client.send()
        client.commit()
    client.send()
    for epoch in (4, 6):
        world.refuse(
            ProducerFencedError,
            Append(ProducerIdentity(client.producer_id, epoch, "a"), (client.numbered(sequence=0),)),
        )


def test_late_partition_gets_marker_or_is_refused() -> None:
    """BUG-12, ADD-12: a send to a new partition and the end, in both orders; nothing is ever left open."""
    for order in permutations(["send", "end"]):
        world = World(partitions=2)
        client = world.client("a")
        client.send()
        commands: dict[str, Command] = {"send": client.append(client.numbered(1, T1)), "end": client.end(COMMIT)}
        world.do(commands[order[0]])
        if order[0] == "send":
            world.do(commands["end"])
            assert world.ends(T1) == (2, 2)
        else:
            world.refuse(ProducerFencedError, commands["send"])
            assert world.ends(T1) == (0, 0)


def test_a_new_partition_joins_an_open_transaction(world: World) -> None:
    """ADD-01: partitions that a topic gets while the transaction is open are like the others."""
    client = world.client("a")
    client.send()
    topic = world.state.topics["t"]
    grown = type(topic)(name="t", topic_id=topic.topic_id, partitions=4, version=1)
    world.do(AlterTopic(grown, topic.version))
    new = TopicPartition("t", 3)
    client.send(tp=new)
    client.commit()
    assert world.read(RC, new) == [0]
