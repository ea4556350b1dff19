"""Sessions of clients of transactions v1: one epoch for many transactions, sequences that run on (KIP-98)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.helpers.core import RC, T0, T1, World, offsets, with_partition, with_txn
from tests.helpers.sessions import SessionClient, session
from txnstore.core.catalog.model import CloseTopic, DeleteTopic
from txnstore.core.expiration import Expire
from txnstore.core.log.commands import Append
from txnstore.core.log.model import MAX_SEQUENCE, WINDOW
from txnstore.core.model import NO_FEATURES, Outcome, ProducerIdentity, TopicPartition
from txnstore.core.transactions.commands import AbortTxn, EndTxn, InitProducer, PrepareTxn
from txnstore.core.transactions.model import MAX_EPOCH, TxnState
from txnstore.core.transactions.sessions import SESSIONS, client_identity, identity_in
from txnstore.errors import (
    InvalidPidMappingError,
    InvalidTxnStateError,
    OutOfOrderSequenceError,
    ProducerFencedError,
    TxnStoreError,
    UnknownTopicOrPartitionError,
)

COMMIT, ABORT = Outcome.COMMIT, Outcome.ABORT
OUTCOMES = pytest.mark.parametrize("outcome", Outcome)
DAY_MS = 86_400_000


@pytest.fixture
def world() -> World:
    return World(partitions=3)


@pytest.fixture
def client(world: World) -> SessionClient:
    return session(world)


def fence_by_timeout(world: World, client: SessionClient) -> None:
    """Another process aborts the open transaction, whose timeout has passed."""
    txn = world.txn("a")
    world.do(AbortTxn("a", (txn.producer_id, txn.epoch), expired_only=True))


# The session continues ------------------------------------------------------------------------------------------------


def test_one_epoch_for_many_transactions(world: World, client: SessionClient) -> None:
    """FEN-01, SEQ-06: the client keeps its identity, each transaction has an epoch of its own, sequences run on."""
    for number, outcome in enumerate((COMMIT, ABORT, COMMIT, COMMIT)):
        assert client.identity == replace(client.client, epoch=number)
        assert client.send(2).base_offset == 5 * number
        client.send(2)
        client.finish(outcome)
        assert client_identity(world.txn("a")) == (client.client.producer_id, client.client.epoch)
    assert client.sequences[T0] == 16
    assert world.read(RC) == [0, 1, 2, 3, 10, 11, 12, 13, 15, 16, 17, 18]


def test_feature_is_required_from_the_first_session_on(world: World, client: SessionClient) -> None:
    """A writer that does not know sessions would take the next batch for a gap."""
    client.send()
    assert world.state.requires == NO_FEATURES
    client.finish()
    assert world.state.requires == SESSIONS


def test_offsets_of_a_session(world: World, client: SessionClient) -> None:
    """OFF-02, OFF-13: pending in each transaction, and applied or dropped with it."""
    client.send_offsets({T0: 3})
    client.finish()
    client.send_offsets({T0: 9})
    assert world.pending() == {client.client.producer_id: {T0: 9}}
    client.finish(ABORT)
    assert world.offset() == 3
    assert world.pending() == {}


def test_late_duplicate_of_an_earlier_transaction(world: World, client: SessionClient) -> None:
    """SEQ-03, SEQ-14: it is answered with its first offsets: after the end, and in a later transaction."""
    batch = client.numbered(3)
    client.transact(3)
    before = world.state
    client.sequences = {T0: 3}
    for _ in range(2):
        again = client.again(batch)
        assert (again.base_offset, again.limit, again.duplicate) == (0, 3, True)
    assert world.state is before
    client.send(tp=T1)
    assert client.again(batch).duplicate, "also where the partition is not in the open transaction"
    client.send()
    assert client.again(batch).base_offset == 0
    assert world.ends()[1] == 5


def test_sequences_of_an_aborted_batch_are_not_those_of_a_repetition(world: World, client: SessionClient) -> None:
    """SEQ-03: librdkafka gives new records the sequences of a batch whose request it has given up before an abort.

    Kafka answers with the offsets of the aborted batch, so the new records are lost.
    """
    batch = client.numbered(3)
    client.transact(3, outcome=ABORT)
    before = world.state
    for _ in range(2):
        with pytest.raises(OutOfOrderSequenceError, match="earlier transaction, which was aborted"):
            client.again(batch)
    assert world.state is before
    client.sequences = {T0: 3}
    client.send()  # The sequences continue as after a commit.
    with pytest.raises(OutOfOrderSequenceError, match="earlier transaction, which was aborted"):
        client.again(batch)
    client.finish()
    assert world.ends()[0] == 6


def test_window_has_five_batches_over_the_session(world: World, client: SessionClient) -> None:
    """SEQ-03, SEQ-04: of any transactions; an older batch is out of order, and is not appended again."""
    batches = []
    for number in range(WINDOW + 2):
        batches.append(client.numbered(2))
        client.send(2)
        if number % 3 == 1:
            client.finish()
    assert [client.again(batch).base_offset for batch in batches[-WINDOW:]] == [5, 7, 9, 12, 14]
    for batch in batches[:-WINDOW]:
        world.refuse(OutOfOrderSequenceError, client.produce(batch))


def test_gap_between_transactions_is_refused(world: World, client: SessionClient) -> None:
    """SEQ-02: the first batch of the next transaction follows the last one of the session, also after an abort."""
    client.transact(3)
    client.transact(2, outcome=ABORT)
    world.do(client.adding(T0))
    for sequence in (0, 3, 4, 6):
        world.refuse(OutOfOrderSequenceError, client.produce(client.numbered(9, sequence=sequence)))
    assert client.send(1).base_offset == 7


def test_partition_that_is_not_in_each_transaction(world: World, client: SessionClient) -> None:
    """SEQ-01: its sequences continue where they were, several transactions later."""
    first = client.numbered(2)
    client.transact(2)
    for _ in range(3):
        client.transact(1, T1)
    client.send(2)
    assert client.again(first).base_offset == 0
    client.send(tp=TopicPartition("t", 2))
    client.finish()


def test_partition_without_data_keeps_its_window(world: World, client: SessionClient) -> None:
    """END-09: its marker does not end what is remembered of earlier transactions."""
    batch = client.numbered(2)
    client.transact(2)
    world.do(client.adding(T0))
    client.finish()
    assert client.again(batch).duplicate
    client.send(1)


def test_sequences_wrap_between_transactions(world: World, client: SessionClient) -> None:
    """SEQ-05: after 2**31 - 1 comes 0, whatever transaction ends there."""
    client.transact()
    window = world.log().session_windows[client.client.producer_id]
    last = replace(window.batches[0], first_sequence=MAX_SEQUENCE, last_sequence=MAX_SEQUENCE)
    windows = world.log().session_windows.insert(client.client.producer_id, replace(window, batches=(last,)))
    world.start = world.state = with_partition(world.state, replace(world.log(), session_windows=windows))
    world.entries = []
    assert client.send(2, sequence=0).base_offset == 2
    assert client.again(client.numbered(1, sequence=MAX_SEQUENCE)).base_offset == 0
    client.finish()
    client.transact()


def test_compaction_keeps_the_windows(world: World, client: SessionClient) -> None:
    """CMP-13: merged batches have no producer; what the producer is known by does not depend on them."""
    batch = client.numbered(2)
    client.transact(2)
    client.transact(1)
    world.compact()
    assert client.again(batch).base_offset == 0
    client.transact(2)


def test_end_appends_its_batches_in_a_session(world: World, client: SessionClient) -> None:
    """SEQ-03: batches that the end brings are in the window of the next transaction, too."""
    batch = client.numbered(2)
    world.do(EndTxn(client.identity, COMMIT, (batch,), session=True))
    again = client.again(batch)
    assert (again.base_offset, again.duplicate) == (0, True)
    client.sequences = {T0: 2}
    client.transact()


# What comes late ------------------------------------------------------------------------------------------------------


def test_late_produce_of_an_ended_transaction_is_never_new(world: World, client: SessionClient) -> None:
    """FEN-02, ADD-07: it was looked up when it arrived, so it is refused, though its sequence would be the next one."""
    client.send(2)
    late = client.produce(client.numbered(2))
    client.finish()
    world.refuse(ProducerFencedError, late)
    world.do(client.adding(T0))
    world.refuse(ProducerFencedError, late)
    client.sequences = {T0: 2}
    assert client.send(2).base_offset == 3
    world.refuse(ProducerFencedError, late)


@OUTCOMES
def test_late_end_does_not_end_the_next_transaction(world: World, client: SessionClient, outcome: Outcome) -> None:
    """BUG-01, END-04: a retried EndTxn whose first attempt has ended the transaction before."""
    client.send()
    late = client.end(outcome)
    assert world.do(late) == world.do(late), "the session has nothing new"
    client.send()
    world.refuse(ProducerFencedError, late)
    client.finish()
    assert world.do(replace(client.end(COMMIT))).unfinished is None


def test_late_addition_does_not_join_the_next_transaction(world: World, client: SessionClient) -> None:
    """ADD-03: it has the epoch of its own transaction."""
    client.send()
    late = client.adding(T1)
    client.finish()
    world.refuse(ProducerFencedError, late)


# EndTxn, by Kafka's table for transactions v1 -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("last", "outcome", "error"),
    [
        (None, COMMIT, InvalidTxnStateError),
        (None, ABORT, InvalidTxnStateError),
        (COMMIT, COMMIT, None),
        (COMMIT, ABORT, InvalidTxnStateError),
        (ABORT, COMMIT, InvalidTxnStateError),
        (ABORT, ABORT, None),
    ],
)
@pytest.mark.parametrize("arrived", ["before", "after"])
def test_repeated_end(
    world: World,
    client: SessionClient,
    last: Outcome | None,
    outcome: Outcome,
    error: type[TxnStoreError] | None,
    arrived: str,
) -> None:
    """END-03, TST-08: whether the repetition was looked up before the first attempt was decided or after it."""
    early = EndTxn(client.identity, outcome, session=True)
    if last is not None:
        client.transact(outcome=last)
    command = early if arrived == "before" else client.end(outcome)
    before = world.state
    if error is not None:
        world.refuse(error, command)
    else:
        assert world.do(command).producer == client.identity
        assert world.state is before
    client.transact()


# What ends a session --------------------------------------------------------------------------------------------------


def test_abort_after_the_timeout_fences_the_client(world: World, client: SessionClient) -> None:
    """TMO-01, FEN-01: whichever process aborts it, the epoch of the client ends."""
    client.transact()
    client.send()
    late, end = client.produce(client.numbered()), client.end(COMMIT)
    aborting = client.end(ABORT)
    fence_by_timeout(world, client)
    for command in (late, end, aborting):
        world.refuse(ProducerFencedError, command)
    with pytest.raises(ProducerFencedError):
        identity_in(world.state, client.client)
    assert world.read(RC) == [0]


def test_abort_after_the_timeout_fences_the_client_in_its_first_transaction(
    world: World, client: SessionClient
) -> None:
    """TMO-01: the epoch of the client is that of its transaction then."""
    client.send()
    aborting = client.end(ABORT)
    fence_by_timeout(world, client)
    world.refuse(ProducerFencedError, aborting)
    with pytest.raises(ProducerFencedError):
        identity_in(world.state, client.client)


@pytest.mark.parametrize("begun", [False, True])
def test_new_instance_fences_the_session(world: World, client: SessionClient, begun: bool) -> None:
    """INIT-02, INIT-04, SEQ-06: it gets an epoch that no marker has used, and begins at sequence 0."""
    old = client.numbered(2)
    client.transact(2)
    client.transact(1)
    if begun:
        client.send(1)
    used = world.log().producers[client.client.producer_id].epoch
    other = session(world)
    assert other.client.epoch > max(used, client.client.epoch)
    with pytest.raises(ProducerFencedError):
        identity_in(world.state, client.client)
    high = world.ends()[1]
    world.do(other.adding(T0))
    world.refuse(OutOfOrderSequenceError, other.produce(other.numbered(1, sequence=3)))
    again = other.again(replace(old, segment=world.segment(2)))
    assert (again.base_offset, again.duplicate) == (high, False), "the same sequences are other records now"
    other.finish()
    other.sequences = {T0: 2}
    assert other.transact(1).base_offset == high + 3


def test_window_of_an_earlier_session_is_not_of_the_next_one(world: World, client: SessionClient) -> None:
    """SEQ-06: also where the new session has only written a marker."""
    old = client.numbered(2)
    client.transact(2)
    other = session(world)
    world.do(other.adding(T0, T1))
    other.finish()
    world.do(other.adding(T0))
    world.refuse(OutOfOrderSequenceError, other.produce(other.numbered(1, sequence=2)))
    assert not other.again(replace(old, segment=world.segment(2))).duplicate


@pytest.mark.parametrize("transactions", [0, 1, 3])
@pytest.mark.parametrize("begun", [False, True])
def test_client_bumps_its_own_epoch(world: World, client: SessionClient, transactions: int, begun: bool) -> None:
    """INIT-08, KIP-360: by the epoch that it has; a repetition gets the same answer, any other is fenced."""
    for _ in range(transactions):
        client.transact()
    if begun:
        client.send()
    late = client.adding(T0)
    pid, epoch = client.client.producer_id, client.client.epoch
    for other in range(epoch + 1, epoch + transactions + 1):
        world.refuse(ProducerFencedError, InitProducer("a", expected=(pid, other)))
    bump = InitProducer("a", expected=(pid, epoch))
    granted = world.do(bump)
    assert granted.epoch > epoch
    assert world.do(bump) == granted
    world.refuse(ProducerFencedError, late)
    with pytest.raises(ProducerFencedError):
        identity_in(world.state, client.client)
    again = SessionClient(world, granted)
    again.transact(2)
    again.transact(2)
    world.refuse(ProducerFencedError, bump)
    assert world.do(InitProducer("a", expected=(pid, granted.epoch))).epoch > granted.epoch


def test_epochs_of_a_session_have_more_than_16_bits(world: World) -> None:
    """INIT-07: the client keeps its identity and its windows after 32,766 transactions; the next instance does not."""
    client = session(world)
    client.transact(2)
    txn = replace(world.txn("a"), epoch=MAX_EPOCH)
    world.start, world.entries = with_txn(world.state, txn), []
    world.state = world.start
    pid = client.client.producer_id
    batch = client.numbered(2)
    for epoch in range(MAX_EPOCH, MAX_EPOCH + 3):
        assert client.identity == ProducerIdentity(pid, epoch, "a")
        client.transact(2)
    assert client.again(batch).duplicate
    client.send()
    fence_by_timeout(world, client)
    assert (world.txn("a").producer_id, world.txn("a").epoch) == (pid + 1, 0)
    with pytest.raises(ProducerFencedError):
        identity_in(world.state, client.client)
    assert session(world).client == ProducerIdentity(pid + 1, 1, "a")


def test_instance_after_a_long_session_has_another_producer_id(world: World, client: SessionClient) -> None:
    """INIT-07: a client never gets an epoch of more than 16 bits; a bump of its own (KIP-360) is recognised."""
    client.transact()
    world.start, world.entries = with_txn(world.state, replace(world.txn("a"), epoch=MAX_EPOCH + 7)), []
    world.state = world.start
    client.send()
    bump = InitProducer("a", expected=(client.client.producer_id, client.client.epoch))
    granted = world.do(bump)
    assert (granted.producer_id, granted.epoch) == (client.client.producer_id + 1, 0)
    assert world.do(bump) == granted


# Partitions are added by requests of their own ------------------------------------------------------------------------


def test_produce_before_its_partition_is_added_is_refused(world: World, client: SessionClient) -> None:
    """ADD-06, KIP-890: and begins no transaction; so do offsets of a group that was not added."""
    produce = client.produce(client.numbered())
    group = Append(client.identity, offsets=(offsets({T0: 1}),), added_only=True)
    for command in (produce, group, Append(client.identity, partitions=(T0,), added_only=True)):
        world.refuse(InvalidTxnStateError, command)
    assert world.txn("a").state is TxnState.EMPTY
    world.do(client.adding(T1))
    for command in (produce, group):
        world.refuse(InvalidTxnStateError, command)
    world.do(client.adding(T0, groups=("g",)))
    world.do(produce)
    world.do(group)
    client.finish()
    world.refuse(InvalidTxnStateError, client.produce(client.numbered(sequence=1)))
    assert world.txn("a").state is TxnState.COMPLETE_COMMIT


def test_repeated_batch_brings_no_partitions_along(world: World, client: SessionClient) -> None:
    """ADD-06: it does not answer for what other chains have to append, and were not asked yet."""
    batch = client.numbered()
    client.transact()
    with pytest.raises(InvalidTxnStateError):
        world.do(replace(client.produce(batch), partitions=(T1,)))
    with pytest.raises(InvalidTxnStateError):
        world.do(replace(client.produce(batch), groups=("g",)))


def test_repeated_batch_brings_no_offsets_along(world: World, client: SessionClient) -> None:
    """ADD-06: a command with anything new is refused as a whole."""
    batch = client.numbered()
    client.transact()
    command = Append(client.identity, (batch,), (offsets({T0: 1}),), added_only=True)
    world.refuse(InvalidTxnStateError, command)
    world.refuse(InvalidTxnStateError, replace(command, batches=(batch, client.numbered()), offsets=()))


def test_partition_to_add_must_exist(world: World, client: SessionClient) -> None:
    """ADD-09: an unknown one, and one of a topic that is being deleted."""
    world.refuse(UnknownTopicOrPartitionError, client.adding(TopicPartition("t", 3)))
    world.refuse(UnknownTopicOrPartitionError, client.adding(TopicPartition("u", 0)))
    world.do(CloseTopic("t", world.state.topics["t"].revision))
    world.refuse(UnknownTopicOrPartitionError, client.adding(T0))


# What is forgotten ----------------------------------------------------------------------------------------------------


def test_producer_state_expires_in_a_session(world: World, client: SessionClient) -> None:
    """PST-06, SEQ-08, TST-05: the session outlives it, so its next batch may have any sequence, as in Kafka."""
    client.transact(3)
    client.transact(1, T1)
    world.now += 2 * DAY_MS
    world.do(Expire())
    assert not world.log().session_windows
    client.transact(2)
    world.do(client.adding(T0))
    world.refuse(OutOfOrderSequenceError, client.produce(client.numbered(sequence=9)))
    client.send()


def test_first_transaction_begins_at_0_without_a_state(world: World, client: SessionClient) -> None:
    """SEQ-01: an init has reset the sequences, so there is nothing to have expired."""
    world.do(client.adding(T0))
    world.refuse(OutOfOrderSequenceError, client.produce(client.numbered(sequence=1)))


def test_transactional_id_expires_with_its_session(world: World, client: SessionClient) -> None:
    """TMO-07."""
    client.transact()
    world.now += 8 * DAY_MS
    world.do(Expire())
    with pytest.raises(InvalidPidMappingError):
        identity_in(world.state, client.client)


def test_recreated_topic_in_a_session(world: World, client: SessionClient) -> None:
    """END-07: nothing of the old topic answers for a batch of the new one; the client continues in either way."""
    old = client.numbered(2)
    client.transact(2)
    world.do(DeleteTopic("t"))
    world.create("t", 3)
    world.do(client.adding(T0))
    assert not client.again(replace(old, segment=world.segment(2))).duplicate
    client.sequences = {T0: 2}
    client.transact()


@pytest.mark.parametrize("forged", [("gone", 0, 0), ("a", 1, 0), ("b", 0, 0), ("a", -1, -1)])
def test_identity_of_another_id(world: World, client: SessionClient, forged: tuple[str, int, int]) -> None:
    """ADD-03, END-02: the mapping of the producer id is checked before the epoch."""
    session(world, "b")
    name, producer_id, epoch = forged
    with pytest.raises(InvalidPidMappingError):
        identity_in(world.state, ProducerIdentity(producer_id, epoch, name))


@pytest.mark.parametrize("epoch", [1, 2, 5])
def test_epochs_that_the_client_does_not_have(world: World, client: SessionClient, epoch: int) -> None:
    """FEN-01: those of its transactions are no client's, nor are larger ones."""
    client.transact()
    client.transact()
    with pytest.raises(ProducerFencedError):
        identity_in(world.state, replace(client.client, epoch=epoch))


# Two-phase commit -----------------------------------------------------------------------------------------------------


def test_two_phase_commit_needs_transactions_v2(world: World, client: SessionClient) -> None:
    """TPC-01: KIP-939 is for clients of transactions v2."""
    client.transact()
    client.send()
    world.refuse(InvalidTxnStateError, PrepareTxn(client.identity))
    other = SessionClient(world, world.do(InitProducer("b", two_phase=True)))
    other.send()
    world.refuse(InvalidTxnStateError, other.end())
    third = session(world, "c")
    third.send()
    world.do(PrepareTxn(third.identity))
    world.refuse(InvalidTxnStateError, third.end())
