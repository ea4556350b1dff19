"""INIT: producer ids and epochs, decided without storage."""

from __future__ import annotations

import pytest

from tests.helpers.core import RC, T0, T1, World
from txnstore.core.model import NO_PRODUCER, Outcome
from txnstore.core.transactions.commands import InitProducer
from txnstore.core.transactions.model import MAX_EPOCH, MAX_TIMEOUT_MS, TxnState
from txnstore.errors import InvalidPidMappingError, InvalidTxnTimeoutError, ProducerFencedError


@pytest.fixture
def world() -> World:
    return World(partitions=2)


def test_the_first_init_grants_a_new_id_and_epoch_0(world: World) -> None:
    """INIT-01: the mapping is in the state; an init whose answer was lost is repeated with the next epoch."""
    first = world.client("a")
    assert first.epoch == 0
    assert world.txn("a").producer_id == first.producer_id
    again = world.client("a")
    assert (again.producer_id, again.epoch) == (first.producer_id, 1)


def test_init_fences_earlier_instance(world: World) -> None:
    """INIT-02, FEN-01: same producer id, greater epoch; the older instance can do nothing any more."""
    old = world.client("a")
    old.send(3)
    new = world.client("a")
    assert new.producer_id == old.producer_id
    assert new.epoch > old.epoch
    world.refuse(ProducerFencedError, old.append(old.numbered()))
    world.refuse(ProducerFencedError, old.append(old.numbered(tp=T1)))
    world.refuse(ProducerFencedError, old.end(Outcome.COMMIT))
    world.refuse(ProducerFencedError, old.end(Outcome.ABORT))
    world.refuse(ProducerFencedError, InitProducer("a", expected=(old.producer_id, old.epoch)))
    assert world.read(RC) == []


def test_init_aborts_open_transaction_of_earlier_instance(world: World) -> None:
    """INIT-03: when it returns, nothing is undecided: LSO = HW, and the next transaction may begin."""
    old = world.client("a")
    old.send(3)
    old.send_offsets({T1: 7})
    assert world.ends() == (0, 3)
    new = world.client("a")
    assert world.ends() == (4, 4)
    assert world.read(RC) == []
    assert world.offset(T1) is None
    assert world.pending() == {}
    new.send(2)
    new.commit()
    assert world.read(RC) == [4, 5]


def test_init_never_undoes_commit(world: World) -> None:
    """INIT-03 b, INIT-05: a decided transaction stays decided; the init only grants."""
    old = world.client("a")
    old.commit(old.numbered(2))
    world.client("a")
    assert world.read(RC) == [0, 1]
    assert world.last_events() == ["ProducerInitialized"]


def test_abort_epoch_fences_open_transaction(world: World) -> None:
    """TST-08, INIT-04, TV2-09: ongoing at e, marker at e+1, grant e+2; the fence epoch is never granted."""
    old = world.client("a")
    for _ in range(3):
        old.send()
        old.commit()
    old.send()
    assert old.epoch == 3
    new = world.client("a")
    assert new.epoch == 5
    assert world.log().producers[old.producer_id].epoch == 4
    world.refuse(ProducerFencedError, old.append(old.numbered()))


def test_producer_ids_are_never_granted_twice(world: World) -> None:
    """INIT-06, INIT-13: sessions without a transactional id get new ones each time, always at epoch 0."""
    clients = [world.client(name) for name in ("a", None, "b", None, None)]
    ids = [client.producer_id for client in clients]
    assert len(set(ids)) == 5
    assert {client.epoch for client in clients} == {0}
    assert world.client("a").producer_id == ids[0]
    assert world.client(None).producer_id not in ids


def test_idempotent_producers_get_separate_producer_ids(world: World) -> None:
    """INIT-13: idempotence lasts for a session; the same records sent by the next one are in the log twice."""
    for _ in range(2):
        assert world.client().send(2).duplicate is False
    assert world.read(RC) == [0, 1, 2, 3]


def test_an_exhausted_epoch_rotates_the_producer_id(world: World) -> None:
    """TST-08, INIT-07: 32766 is the last epoch that a client holds; the next one is 0 of a new id."""
    start = world.at_epoch("a", MAX_EPOCH - 1)
    last, rotated, after = world.client("a"), world.client("a"), world.client("a")
    assert (last.producer_id, last.epoch) == (start.producer_id, 32766)
    assert rotated.producer_id != start.producer_id
    assert (rotated.epoch, after.epoch) == (0, 1)
    assert after.producer_id == rotated.producer_id
    world.refuse(ProducerFencedError, last.append(last.numbered()))
    world.refuse(ProducerFencedError, last.end(Outcome.COMMIT))


def test_exhausted_epoch_rotates_for_expected_identity(world: World) -> None:
    """INIT-07, INIT-09: with a matching expectation it rotates; the retry gets the same grant, a stranger none."""
    client = world.at_epoch("a", MAX_EPOCH)
    expected = (client.producer_id, MAX_EPOCH)
    granted = world.client("a", expected)
    assert granted.producer_id != client.producer_id
    assert granted.epoch == 0
    retried = world.client("a", expected)
    assert retried.identity == granted.identity
    assert world.last_events() == ["ProducerInitialized"]
    world.refuse(ProducerFencedError, InitProducer("a", expected=(client.producer_id, 5)))
    world.refuse(ProducerFencedError, InitProducer("a", expected=(99, 0)))


def test_rotated_producer_id_is_dropped_with_next_transaction(world: World) -> None:
    """INIT-09: the old id may ask for the grant that followed it, not for a later one with the same number."""
    old = world.at_epoch("a", MAX_EPOCH)
    new = world.client("a", (old.producer_id, MAX_EPOCH))
    new.send()
    new.commit()
    world.refuse(ProducerFencedError, InitProducer("a", expected=(old.producer_id, MAX_EPOCH)))
    world.refuse(ProducerFencedError, InitProducer("a", expected=(old.producer_id, 0)))
    assert world.client("a", (new.producer_id, 0)).epoch == 1


def test_requested_epoch_bump_may_be_retried(world: World) -> None:
    """TST-08, INIT-08: current is bumped; last is a retry and gets the same answer without a bump; anything else is
    fenced.
    """
    client = world.client("a")
    bumped = world.client("a", (client.producer_id, 0))
    assert bumped.epoch == 1
    assert world.txn("a").last_epoch == 0
    entries = len(world.entries)
    assert world.client("a", (client.producer_id, 0)).epoch == 1
    assert len(world.entries) == entries
    world.client("a", (client.producer_id, 1))
    world.refuse(ProducerFencedError, InitProducer("a", expected=(client.producer_id, 0)))
    world.refuse(ProducerFencedError, InitProducer("a", expected=(client.producer_id, 9)))
    world.refuse(ProducerFencedError, InitProducer("a", expected=(client.producer_id, NO_PRODUCER)))


@pytest.mark.parametrize("epoch", [0, MAX_EPOCH - 1, MAX_EPOCH])
def test_requested_epoch_bump_with_abort_may_be_retried(world: World, epoch: int) -> None:
    """INIT-08: the abort in between is no reason to fence the producer that asked; also where the id rotates."""
    client = world.at_epoch("a", epoch)
    client.send(2)
    expected = (client.producer_id, epoch)
    granted = world.client("a", expected)
    assert world.client("a", expected).identity == granted.identity
    assert world.read(RC) == []
    world.refuse(ProducerFencedError, client.append(client.numbered()))
    granted.send()
    granted.commit()
    assert world.read(RC) == [3]


def test_init_without_expected_identity_invalidates_earlier_retry(world: World) -> None:
    """INIT-10: the last epoch is forgotten, so the old instance's retry is fenced, not served."""
    old = world.client("a")
    world.client("a", (old.producer_id, 0))
    new = world.client("a")
    assert world.txn("a").last_epoch == NO_PRODUCER
    for epoch in (0, 1, NO_PRODUCER):
        world.refuse(ProducerFencedError, InitProducer("a", expected=(old.producer_id, epoch)))
    assert world.txn("a").epoch == new.epoch


def test_expected_identity_of_unknown_transactional_id_is_refused(world: World) -> None:
    """An id that is not known (any more) cannot be continued: the caller may have been replaced."""
    error = world.refuse(InvalidPidMappingError, InitProducer("gone", expected=(0, 0)))
    assert "'gone'" in str(error)


@pytest.mark.parametrize("timeout_ms", [MAX_TIMEOUT_MS + 1, 0, -1])
def test_a_timeout_out_of_range_is_refused(world: World, timeout_ms: int) -> None:
    """INIT-11: and no transactional id is created."""
    world.refuse(InvalidTxnTimeoutError, InitProducer("a", timeout_ms))
    assert "a" not in world.state.transactions


def test_each_init_stores_its_timeout(world: World) -> None:
    """INIT-12; the largest one is allowed."""
    world.client("a", timeout_ms=MAX_TIMEOUT_MS)
    world.client("a", timeout_ms=5_000)
    assert world.txn("a").timeout_ms == 5_000


def test_only_last_of_many_inits_is_not_fenced(world: World) -> None:
    """INIT-14: all epochs differ, and all but the last are fenced."""
    clients = [world.client("a") for _ in range(10)]
    assert len({client.epoch for client in clients}) == 10
    for client in clients[:-1]:
        world.refuse(ProducerFencedError, client.append(client.numbered()))
    clients[-1].send()
    clients[-1].commit()
    assert world.txn("a").state is TxnState.COMPLETE_COMMIT
    assert world.read(RC, T0) == [0]
