"""An answer that needs no entry is given at the head of its chain, whatever was known before (FEN-01, OBJ-08)."""

from __future__ import annotations

import pytest

from tests.helpers.connections import connection_of
from tests.helpers.shell import another_process, new_store
from txnstore.core.transactions.commands import AbortTxn, InitProducer
from txnstore.errors import ProducerFencedError


def test_fen_01_fenced_producer_gets_no_answer_of_earlier_abort() -> None:
    """The process reads the abort after a conflict, but a newer instance was initialised after it."""
    store = new_store()
    producer = store.producer("id")
    producer.begin_transaction()
    producer.send("t", b"1", partition=0)
    producer.flush()
    other = another_process(store)
    connection_of(other).submit(AbortTxn("id"))
    other.producer("id")
    with pytest.raises(ProducerFencedError):
        producer.abort_transaction()


def test_init_10_repeated_init_is_fenced_after_init_of_another_instance() -> None:
    """INIT-10: the grant of the first init is no longer valid."""
    store = new_store()
    first = connection_of(store).submit(InitProducer("id"))
    command = InitProducer("id", expected=(first.producer_id, first.epoch))
    assert connection_of(store).submit(command) == connection_of(store).submit(command)
    another_process(store).producer("id")
    with pytest.raises(ProducerFencedError):
        connection_of(store).submit(command)


def test_init_08_repeated_epoch_bump_in_transaction_gets_same_answer() -> None:
    """INIT-08, KIP-360: the end of the transaction is the bump, with one chain as with several."""
    answers = set()
    for chains in (1, 3):
        store = new_store(chains=chains)
        held = connection_of(store).submit(InitProducer("id"))
        producer = store.producer("id")
        producer.begin_transaction()
        for partition in range(3):
            producer.send("t", b"1", partition=partition)
        producer.flush()
        bump = InitProducer("id", expected=(producer.producer_id, producer.epoch))
        granted = connection_of(store).submit(bump)
        assert granted == connection_of(store).submit(bump)
        answers.add(granted.epoch - held.epoch)
    assert answers == {2}
