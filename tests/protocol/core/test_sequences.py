"""SEQ and PST: what a partition accepts from a producer, and what it remembers of it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.helpers.core import RC, RU, T0, T1, Client, World, with_partition
from txnstore.core.log.commands import Append
from txnstore.core.log.events import MarkerWritten
from txnstore.core.log.model import MAX_SEQUENCE, WINDOW, BatchMetadata, ProducerState
from txnstore.core.model import NO_PRODUCER, Outcome, ProducerIdentity
from txnstore.core.transactions.events import PartitionsAdded
from txnstore.core.transactions.model import MAX_EPOCH
from txnstore.errors import (
    InvalidPidMappingError,
    InvalidTxnStateError,
    OutOfOrderSequenceError,
    ProducerError,
    ProducerFencedError,
    TxnStoreError,
    UnknownTopicOrPartitionError,
)


@pytest.fixture
def world() -> World:
    return World(partitions=3)


def _window(world: World, client: Client) -> list[tuple[int, int]]:
    producer = world.log().producers[client.producer_id]
    return [(batch.first_sequence, batch.last_sequence) for batch in producer.batches]


def _at_sequence(world: World, client: Client, last: int) -> None:
    """The state after the producer has sent records up to sequence ``last``."""
    batch = BatchMetadata(last, last, 0, 0, world.now)
    world.plain()
    log = world.log()
    producers = log.producers.insert(client.producer_id, ProducerState(0, (batch,), world.now))
    world.start = world.state = with_partition(world.state, replace(log, producers=producers))
    world.entries = []


def test_sequence_advances_by_record_count(world: World) -> None:
    """SEQ-01: batches of 1, 5, 3 records have base sequences 0, 1, 6."""
    client = world.client()
    for records, sequence in ((1, 0), (5, 1), (3, 6)):
        client.send(records, sequence=sequence)
    assert world.log().producers[client.producer_id].last_sequence == 8
    assert world.read(RC) == list(range(9))


def test_sequence_gap_is_refused(world: World) -> None:
    """SEQ-02: nothing is appended, and the next in sequence is still welcome."""
    client = world.client()
    client.send(5)
    error = world.refuse(OutOfOrderSequenceError, client.append(client.numbered(sequence=6)))
    assert "5 is expected" in str(error)
    assert world.ends() == (5, 5)
    assert client.send(sequence=5).base_offset == 5


def test_duplicate_in_window_gets_first_answer(world: World) -> None:
    """TST-14, SEQ-03, SEQ-04: Kafka's ``testDuplicateAppends``, with the offsets and the time of the first append."""
    client = world.client()
    first = [client.send(sequence=sequence) for sequence in range(6)]
    last = client.send(3, sequence=6)
    before = world.state
    assert client.send(3, sequence=6) == replace(last, duplicate=True)
    assert client.send(sequence=2) == replace(first[2], duplicate=True)
    assert client.send(sequence=5) == replace(first[5], duplicate=True)
    world.refuse(OutOfOrderSequenceError, client.append(client.numbered(2, sequence=7)))
    world.refuse(OutOfOrderSequenceError, client.append(client.numbered(sequence=1)))
    assert world.state == before
    assert world.ends() == (9, 9)


def test_batch_overlapping_window_is_refused(world: World) -> None:
    """SEQ-04: neither a success nor appended."""
    client = world.client()
    client.send(4)
    world.refuse(OutOfOrderSequenceError, client.append(client.numbered(2, sequence=3)))
    world.refuse(OutOfOrderSequenceError, client.append(client.numbered(3, sequence=0)))
    world.refuse(OutOfOrderSequenceError, client.append(client.numbered(2, sequence=0)))


def test_sequences_wrap(world: World) -> None:
    """TST-13, SEQ-05: after 2^31-1 comes 0."""
    client = world.client()
    _at_sequence(world, client, MAX_SEQUENCE)
    world.refuse(OutOfOrderSequenceError, client.append(client.numbered(sequence=1)))
    assert client.send(2, sequence=0).base_offset == 1


def test_batch_may_span_sequence_wrap(world: World) -> None:
    """TST-13, SEQ-05: 21 records from MAX-10 end at 9; the next sequence is 10, and the duplicate is found."""
    client = world.client()
    _at_sequence(world, client, MAX_SEQUENCE - 11)
    first = client.send(21, sequence=MAX_SEQUENCE - 10)
    assert _window(world, client)[-1] == (MAX_SEQUENCE - 10, 9)
    assert client.send(21, sequence=MAX_SEQUENCE - 10) == replace(first, duplicate=True)
    assert client.send(sequence=10).base_offset == first.limit


def test_new_epoch_starts_at_sequence_0(world: World) -> None:
    """TST-13, SEQ-06, SEQ-07: it replaces the window; what comes late from the old one is fenced, not a duplicate."""
    client = world.client()
    client.send(10)
    bumped = Client(world, replace(client.identity, epoch=1))
    world.refuse(OutOfOrderSequenceError, bumped.append(bumped.numbered(sequence=10)))
    bumped.send(sequence=0)
    assert _window(world, client) == [(0, 0)]
    world.refuse(ProducerFencedError, client.append(client.numbered(10, sequence=0)))
    world.refuse(ProducerFencedError, client.append(client.numbered(sequence=10)))


def test_first_batch_of_unknown_producer(world: World) -> None:
    """SEQ-08: a transactional one begins at 0; the state of an idempotent one may have expired, so any will do."""
    transactional, idempotent = world.client("a"), world.client()
    world.refuse(OutOfOrderSequenceError, transactional.append(transactional.numbered(sequence=7)))
    assert idempotent.send(sequence=7).duplicate is False
    world.refuse(OutOfOrderSequenceError, idempotent.append(idempotent.numbered(sequence=9)))


@pytest.mark.parametrize("outcome", list(Outcome))
def test_a_marker_clears_the_window(world: World, outcome: Outcome) -> None:
    """TST-13, SEQ-09: e0 has 0-4; after the marker of e1 only e1 with sequence 0 is accepted."""
    client = world.client("a")
    client.send(5)
    client.commit() if outcome is Outcome.COMMIT else client.abort()
    assert world.log().producers[client.producer_id] == ProducerState(epoch=1, last_timestamp=world.now)
    world.refuse(OutOfOrderSequenceError, client.append(client.numbered(sequence=5)))
    client.send(sequence=0)


def test_marker_alone_fences_partition(world: World) -> None:
    """SEQ-09, PST-13: listed without data, and the entry is kept with the new epoch, and nothing is in the index."""
    client = world.client("a")
    identity = client.identity
    world.happen(
        PartitionsAdded(
            transactional_id="a", producer_id=identity.producer_id, epoch=identity.epoch, partitions=[T0, T1]
        ),
    )
    new = world.client("a")
    assert world.log(T1).producers[client.producer_id] == ProducerState(epoch=1, last_timestamp=world.now)
    assert world.log(T1).aborted == ()
    assert world.ends(T1) == (1, 1)
    world.refuse(ProducerFencedError, client.append(client.numbered(tp=T1)))
    world.refuse(OutOfOrderSequenceError, new.append(new.numbered(tp=T1, sequence=17)))
    assert new.send(tp=T1).base_offset == 1


def test_marker_without_data_sets_producer_epoch_of_partition(world: World) -> None:
    """SEQ-07: a marker at epoch 2 of a producer that the partition did not know; epoch 0 is refused there."""
    idempotent = world.client()
    world.happen(
        MarkerWritten(
            topic="t", partition=0, producer_id=idempotent.producer_id, epoch=2, outcome=Outcome.ABORT, offset=0
        ),
    )
    world.refuse(ProducerFencedError, idempotent.append(idempotent.numbered()))
    bumped = Client(world, replace(idempotent.identity, epoch=2))
    world.refuse(OutOfOrderSequenceError, bumped.append(bumped.numbered(sequence=17)))
    bumped.send(sequence=0)


def test_a_transactional_producer_cannot_append_outside_its_transaction(world: World) -> None:
    """SEQ-10, CTL-03: its batches carry the flag, or are refused; whether its transaction is open or not."""
    client = world.client("a")
    outside = Append(ProducerIdentity(client.producer_id, 0), (client.numbered(),))
    world.refuse(InvalidTxnStateError, outside)
    client.send()
    world.refuse(InvalidTxnStateError, Append(outside.producer, (client.numbered(),)))


def test_refused_batch_refuses_whole_command(world: World) -> None:
    """SEQ-11: the first partition's batch was fine, and is not in the log either."""
    client = world.client("a")
    good, gap = client.numbered(2), client.numbered(2, T1, 5)
    world.refuse(OutOfOrderSequenceError, client.append(good, gap))
    assert world.ends() == (0, 0)
    assert world.txn("a").partitions == frozenset()
    missing = client.numbered(1, T1._replace(partition=3))
    error = world.refuse(UnknownTopicOrPartitionError, client.append(good, missing))
    assert "3 partitions" in str(error)


@pytest.mark.parametrize(
    ("identity", "error"),
    [
        (ProducerIdentity(0, NO_PRODUCER), ProducerError),
        (ProducerIdentity(NO_PRODUCER, 0), ProducerError),
        (ProducerIdentity(-2, 0), InvalidPidMappingError),
    ],
)
def test_producer_id_epoch_and_sequence_must_be_set_together(
    world: World, identity: ProducerIdentity, error: type[TxnStoreError]
) -> None:
    """SEQ-12: a batch of a producer without an epoch, or the other way round, is malformed."""
    world.client()
    sequence = 0 if identity.producer_id >= 0 else NO_PRODUCER
    world.refuse(error, Append(identity, (world.batch(sequence=sequence),)))


def test_malformed_batches_are_refused(world: World) -> None:
    """SEQ-12: no records, no sequence, a sequence that does not exist, or one without a producer."""
    client = world.client()
    world.refuse(ProducerError, client.append(client.numbered(0)))
    world.refuse(ProducerError, client.append(world.batch()))
    world.refuse(ProducerError, client.append(client.numbered(sequence=MAX_SEQUENCE + 1)))
    world.refuse(ProducerError, Append(ProducerIdentity(), (world.batch(sequence=0),)))


def test_an_id_that_was_never_granted_is_refused(world: World) -> None:
    """ADD-03: the mapping comes before everything else."""
    world.refuse(InvalidPidMappingError, Append(ProducerIdentity(5, 0), (world.batch(sequence=0),)))


def test_five_batches_in_flight_stay_in_order(world: World) -> None:
    """SEQ-13: the second fails; those behind it are refused by their sequence, and all come again in order."""
    client = world.client()
    batches = [client.numbered(2, sequence=2 * number) for number in range(5)]
    world.do(client.append(batches[0]))
    for late in batches[2:]:
        world.refuse(OutOfOrderSequenceError, client.append(late))
    landed = [world.do(client.append(batch))[0] for batch in batches]
    assert [item.base_offset for item in landed] == [0, 2, 4, 6, 8]
    assert [item.duplicate for item in landed] == [True, False, False, False, False]
    assert world.read(RC) == list(range(10))


def test_a_repeated_append_of_many_batches_is_answered_batch_by_batch(world: World) -> None:
    """SEQ-14: an append whose outcome was unknown is sent again as it was, and is in the log once."""
    client = world.client("a")
    command = client.append(client.numbered(2), client.numbered(3, sequence=2), client.numbered(1, T1))
    first = world.do(command)
    again = world.do(command)
    assert again == tuple(replace(item, duplicate=True) for item in first)
    assert world.ends() == (0, 5)


def test_partitions_have_independent_sequences(world: World) -> None:
    """SEQ-18: a lost batch in one partition does not shift another."""
    client = world.client("a")
    t2 = T0._replace(partition=2)
    for tp in (T0, T1, t2):
        client.send(2, tp)
    world.refuse(OutOfOrderSequenceError, client.append(client.numbered(tp=T1, sequence=4)))
    assert client.send(tp=T0, sequence=2).base_offset == 2
    assert client.send(tp=t2, sequence=2).base_offset == 2
    assert client.send(tp=T1, sequence=2).base_offset == 2


def test_compaction_does_not_touch_sequences(world: World) -> None:
    """BUG-05, SEQ-19, PST-10: the window is not made of the batches that are left, so it survives their merge."""
    client = world.client()
    client.send(4)
    second = client.send(2)
    world.compact()
    assert [batch.producer_id for batch in world.log().batches] == [NO_PRODUCER]
    assert client.send(2, sequence=4) == replace(second, duplicate=True)
    assert client.send(sequence=6).base_offset == 6


def test_producers_without_id_are_never_deduplicated(world: World) -> None:
    """SEQ-22: they mix with open transactions, and read_committed sees them below the LSO only."""
    client = world.client("a")
    world.plain(2)
    client.send(2)
    world.plain(1)
    world.plain(1)
    assert world.read(RC) == [0, 1]
    assert world.read(RU) == [0, 1, 2, 3, 4, 5]
    client.commit()
    assert world.read(RC) == [0, 1, 2, 3, 4, 5]


def test_producer_state_has_fields_of_kafka(world: World) -> None:
    """PST-01: epoch, batches with sequences and offsets, the last time, where its transaction began."""
    client = world.client("a")
    world.plain(3)
    client.send(2)
    at = world.now
    client.send(1)
    assert world.log().producers[client.producer_id] == ProducerState(
        epoch=0,
        batches=(BatchMetadata(0, 1, 3, 4, at), BatchMetadata(2, 2, 5, 5, world.now)),
        last_timestamp=world.now,
        current_txn_first_offset=3,
    )


def test_all_five_batches_survive_a_replay(world: World) -> None:
    """PST-03: where Kafka's snapshot keeps the last batch only, the fold of the chain keeps five."""
    client = world.client()
    landed = [client.send() for _ in range(7)]
    world.state = world.replay()
    assert len(_window(world, client)) == WINDOW
    assert client.send(sequence=2) == replace(landed[2], duplicate=True)
    world.refuse(OutOfOrderSequenceError, client.append(client.numbered(sequence=1)))


def test_open_transaction_keeps_producer_state(world: World) -> None:
    """PST-07: two days later its state and the beginning of its transaction are still known."""
    client = world.client("a")
    client.send()
    world.now += 48 * 3_600_000
    world.plain()
    world.compact()
    assert world.log().producers[client.producer_id].current_txn_first_offset == 0
    client.commit(client.numbered(sequence=1))
    assert world.read(RC) == [0, 1, 2]


def test_last_epoch_has_markers(world: World) -> None:
    """TV2-04: the marker of epoch 32766 carries 32767, which no client ever holds; the old id is fenced by it."""
    client = world.at_epoch("a", MAX_EPOCH)
    old = client.identity
    client.send()
    client.commit()
    assert world.log().producers[old.producer_id].epoch == MAX_EPOCH + 1
    assert (client.epoch, client.producer_id == old.producer_id) == (0, False)
    world.refuse(ProducerFencedError, Append(old, (world.batch(sequence=0),)))
