"""What was unused for too long is forgotten, each by a clock of its own (RET-13), and nothing that fences or decides.

Decided by the pure core; times in milliseconds since the entry that counts.
"""

from __future__ import annotations

import pytest

from tests.helpers.core import RC, RU, T0, T1, Client, World, offsets
from tests.helpers.expiry import DAY, NEVER, PRODUCERS, later
from txnstore.core.decide import decide
from txnstore.core.expiration import MAX_EVENTS, Expire, Expired, is_due
from txnstore.core.log.appending import MAX_ADDED_AGE_MS
from txnstore.core.log.commands import Added, Append
from txnstore.core.model import Command, Outcome, ProducerIdentity
from txnstore.core.state import begin_entry
from txnstore.core.transactions.commands import InitProducer
from txnstore.errors import (
    InvalidConfigError,
    InvalidPidMappingError,
    OutOfOrderSequenceError,
    ProducerFencedError,
    UploadExpiredError,
)

IDS = Expire(producer_ms=NEVER, offsets_ms=NEVER)


def foreign(world: World) -> int:
    """A producer id that another chain granted."""
    return (world.state.chain + 1) << 32


# Producers ------------------------------------------------------------------------------------------------------------


def test_pst_06_idle_producer_expires_after_a_day() -> None:
    """PST-06, PST-11, TST-06: kept until one millisecond before 24 h; nothing else changes, and no entry without a
    reason is written.
    """
    world = World()
    client = world.client()
    client.send(2)
    entries = len(world.entries)
    assert later(world, DAY - 1, Expire()) == Expired()
    assert len(world.entries) == entries
    assert later(world, DAY, Expire()) == Expired(producers=1)
    assert world.last_events() == ["ProducersExpired"]
    assert len(world.log().producers) == 0
    assert world.read(RC) == [0, 1]


def test_pst_09_seq_08_expired_idempotent_producer_continues_with_any_sequence() -> None:
    """SEQ-08, PST-09: its next sequence is accepted; so is a late retry, which only the window would have shown."""
    world = World()
    client = world.client()
    client.send(3)
    later(world, DAY, Expire())
    assert client.send(1).base_offset == 3
    later(world, DAY, Expire())
    assert not client.send(3, sequence=0).duplicate


def test_pst_15_producers_that_live_for_a_day_do_not_pile_up() -> None:
    """PST-15: with three new producers a day, the partition knows those of one day, on the first as on the eighth."""
    world, known = World(), set[int]()
    for _ in range(8):
        for _ in range(3):
            world.client().send(1)
        known.add(len(world.log().producers))
        assert later(world, DAY, Expire()) == Expired(producers=3)
    assert known == {3}


def test_pst_07_producer_with_open_transaction_does_not_expire() -> None:
    """PST-07: open for days, it stays; ended, it goes a day later."""
    world = World(2)
    client, other = world.client("tx"), world.client()
    client.send(tp=T0)
    other.send(tp=T1)
    assert later(world, 2 * DAY, PRODUCERS) == Expired(producers=1)
    assert client.producer_id in world.log(T0).producers
    client.abort()
    assert later(world, DAY - 1, PRODUCERS) == Expired()
    assert later(world, DAY, PRODUCERS) == Expired(producers=1)


def test_pst_08_marker_renews_producer_state() -> None:
    """BUG-04, PST-08: data at 0, abort marker at 23 h: at 24 h the epoch is still there, and fences the
    zombie (KAFKA-9144).
    """
    world = World()
    client = world.client("tx")
    client.send()
    zombie = Client(world, client.identity)
    world.now += 23 * 3_600_000
    client.abort()
    assert later(world, 3_600_000, PRODUCERS) == Expired()
    assert world.log().producers[client.producer_id].epoch == zombie.epoch + 1
    world.refuse(ProducerFencedError, zombie.append(zombie.numbered()))


def test_pst_12_transaction_continues_after_producer_state_expired() -> None:
    """PST-12: the two clocks are independent. The partition forgot the producer, the coordinator did not."""
    world = World()
    client = world.client("tx")
    client.send()
    client.commit()
    later(world, DAY, PRODUCERS)
    zombie = ProducerIdentity(client.producer_id, client.epoch - 1, "tx")
    world.refuse(ProducerFencedError, Append(zombie, (world.batch(1, T0, 0),)))
    world.refuse(OutOfOrderSequenceError, client.append(client.numbered(sequence=5)))
    client.send()
    client.commit()
    assert world.read(RC) == [0, 2]


def test_pst_12_producer_state_expires_during_transaction_without_data_there() -> None:
    """PST-12: forgotten between AddPartitions and the first batch; the transaction ends as if nothing had been."""
    world = World(2)
    client = world.client("tx")
    client.send(tp=T1)
    client.commit()
    client.send(tp=T0)
    later(world, DAY, PRODUCERS)
    client.send(tp=T1)
    client.commit()
    assert (world.read(RC, T0), world.read(RC, T1)) == ([0], [0, 2])


def test_add_07_late_batch_is_refused_for_age_before_fence_expires() -> None:
    """ADD-07, PST-09: of another chain's transaction only a marker's epoch, or the age of the batch, is known here."""
    assert Expire().producer_ms // 2 >= MAX_ADDED_AGE_MS
    world = World()
    late = ProducerIdentity(foreign(world), 3, "tx")
    added = Added(1, 7, world.state.timestamp)
    command = Append(late, (world.batch(1, T0, 0),), added=added)
    world.now += Expire().producer_ms
    world.refuse(UploadExpiredError, command)


@pytest.mark.parametrize(
    "command",
    [
        Expire(producer_ms=MAX_ADDED_AGE_MS),
        Expire(producer_ms=0),
        Expire(transactional_id_ms=0),
        Expire(offsets_ms=-1),
    ],
)
def test_pst_09_unsafe_limits_are_refused(command: Expire) -> None:
    world = World()
    world.refuse(InvalidConfigError, command)
    with pytest.raises(InvalidConfigError):
        is_due(world.state, command, world.now)


# Transactional ids ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("end", ["init", "commit", "abort"])
def test_tmo_07_idle_transactional_id_expires_after_a_week(end: str) -> None:
    """TMO-07, TST-10: EMPTY, COMPLETE_COMMIT, COMPLETE_ABORT: kept until 1 ms before 7 d, then deleted with its ids."""
    world = World()
    client = world.client("tx")
    if end != "init":
        client.send()
        client.commit() if end == "commit" else client.abort()
    assert later(world, 7 * DAY - 1, IDS) == Expired()
    assert later(world, 7 * DAY, IDS) == Expired(transactional_ids=("tx",))
    assert len(world.state.transactions) == len(world.state.transactional_ids) == 0


def test_tmo_08_owner_of_expired_id_is_refused_and_new_init_starts_over() -> None:
    """TMO-08, D7: the old instance gets InvalidPidMappingError, which is fatal; init grants a new id at epoch 0."""
    world = World()
    client = world.client("tx")
    client.send()
    client.commit()
    later(world, 7 * DAY, IDS)
    calls: list[Command] = [
        client.append(client.numbered()),
        client.append(offsets=offsets({T0: 1})),
        client.end(Outcome.COMMIT),
        client.end(Outcome.ABORT),
        InitProducer("tx", expected=(client.producer_id, client.epoch)),
    ]
    errors = [world.refuse(InvalidPidMappingError, call) for call in calls]
    assert all(error.fatal for error in errors)
    successor = world.client("tx")
    assert successor.identity == ProducerIdentity(client.producer_id + 1, 0, "tx")
    for call in calls[:-1]:
        world.refuse(InvalidPidMappingError, call)
    world.refuse(ProducerFencedError, calls[-1])
    successor.send()
    successor.commit()
    assert world.read(RC) == [0, 2]


def test_tmo_07_open_transaction_keeps_transactional_id() -> None:
    """TMO-07, TMO-13, STM-08: ONGOING is not at rest, however long."""
    world = World()
    client = world.client("tx", timeout_ms=1)
    client.send()
    assert later(world, 30 * DAY, IDS) == Expired()


def test_tmo_07_transactional_id_with_versions_does_not_expire() -> None:
    """A job that comes back after a month must not do again what it has done."""
    world = World()
    client = world.client("job")
    client.send()
    world.do(client.end(Outcome.COMMIT, versions=(("scope", 7),)))
    assert later(world, 30 * DAY, IDS) == Expired()


def test_tmo_07_expiration_removes_all_producer_ids_of_transactional_id() -> None:
    """A rotated one, too: it can neither append with the id nor without."""
    world = World()
    client = world.at_epoch("tx", 2**15 - 2)
    old = client.producer_id
    client.send()
    client.commit()
    assert sorted(world.state.transactional_ids) == [old, client.producer_id]
    later(world, 7 * DAY, IDS)
    assert len(world.state.transactional_ids) == 0


def test_tmo_07_init_before_expiration_keeps_transactional_id() -> None:
    """TMO-07: the race with init has one order, that of the chain."""
    world = World()
    world.client("tx")
    world.now += 7 * DAY - 1
    client = world.client("tx")
    assert client.identity == ProducerIdentity(0, 1, "tx")
    assert world.do(IDS) == Expired()


def test_tmo_07_one_entry_expires_a_bounded_number() -> None:
    """TMO-07: in batches, so that no entry grows without limit; the answer says that there is more."""
    world = World()
    state = world.state
    for number in range(MAX_EVENTS + 5):
        state = decide(begin_entry(state, world.now), InitProducer(f"tx-{number}")).state
    decision = decide(begin_entry(state, world.now + 7 * DAY), Expire())
    assert len(decision.events) == len(decision.result.transactional_ids) == MAX_EVENTS
    assert decision.result.more
    rest = decide(begin_entry(decision.state, world.now + 7 * DAY), Expire())
    assert len(rest.result.transactional_ids) == 5
    assert not rest.result.more


# The index of aborted transactions ------------------------------------------------------------------------------------


def test_cmp_aborted_index_drops_transaction_with_its_last_batch() -> None:
    """A compaction that dropped all batches of an aborted transaction takes its entry, and no other one."""
    world = World()
    first, second = world.client("a"), world.client("b")
    first.send()
    second.send()
    first.abort()
    assert [entry.producer_id for entry in world.log().aborted] == [first.producer_id]
    world.compact()  # Up to the LSO: the open transaction begins behind the aborted data.
    assert world.log().aborted == ()
    second.abort()
    first.send()
    first.commit()
    assert [entry.producer_id for entry in world.log().aborted] == [second.producer_id]
    world.compact()
    assert world.log().aborted == ()
    assert world.read(RC) == world.read(RU) == [4]


def test_cmp_aborted_index_keeps_transaction_with_remaining_batch() -> None:
    """LSO-06: what is not compacted yet is still hidden from a reader of committed data."""
    world = World()
    client, other = world.client("a"), world.client("b")
    client.send()
    other.send()
    client.send()
    client.abort()
    world.compact()
    assert world.ends()[0] == 1
    assert [(entry.first_offset, entry.last_offset) for entry in world.log().aborted] == [(0, 3)]
    other.commit()
    assert world.read(RC) == [1]
    world.compact()
    assert world.log().aborted == ()


def test_nothing_expires_in_new_state() -> None:
    world = World()
    world.client().send()
    assert not is_due(world.state, Expire(), world.now)
    assert is_due(world.state, Expire(), world.now + 8 * DAY)
