"""Epochs of the real producer: one for each transaction, bumped by init, exhausted (INIT, TV2)."""

from __future__ import annotations

import pytest

from tests.helpers import keys
from tests.helpers.connections import connection_of
from tests.helpers.producers import set_epoch
from tests.helpers.producing import Bench
from tests.helpers.shell import T0, sound, values
from txnstore.chain.codec import Entry, content_hash, encode
from txnstore.core.routing import chain_of_transactional_id
from txnstore.core.transactions.events import ProducerInitialized
from txnstore.core.transactions.model import MAX_EPOCH
from txnstore.errors import (
    StorageError,
)
from txnstore.producer import Producer


@pytest.fixture
def bench(chains: int) -> Bench:
    return Bench(chains=chains)


def test_every_transaction_has_an_epoch_of_its_own(bench: Bench) -> None:
    """TV2-01: KIP-890: the epoch goes up with each commit and each abort, the producer id stays."""
    producer = bench.store.producer("id")
    identities = []
    for end in ("commit_transaction", "abort_transaction", "commit_transaction"):
        identities.append((producer.producer_id, producer.epoch))
        producer.begin_transaction()
        producer.send("t", b"x", partition=0)
        producer.flush()
        getattr(producer, end)()
    identities.append((producer.producer_id, producer.epoch))
    assert identities == [(identities[0][0], epoch) for epoch in range(4)]


def test_a_new_instance_bumps_the_epoch(bench: Bench) -> None:
    first = bench.store.producer("id")
    second = bench.store.producer("id")
    assert (second.producer_id, second.epoch) == (first.producer_id, first.epoch + 1)


def test_sequences_begin_at_zero_in_each_transaction(bench: Bench) -> None:
    """TV2-01."""
    with bench.store.producer("id") as producer:
        for _ in range(2):
            with producer.transaction() as txn:
                txn.send("t", b"a", partition=0)
                txn.flush()
                txn.send("t", b"b", partition=0)
    batches = sound(bench.store).partitions[T0].batches
    assert [(batch.epoch, batch.base_sequence) for batch in batches] == [(0, 0), (0, 1), (1, 0), (1, 1)]


@pytest.mark.parametrize("how", ["commit_transaction", "abort_transaction", "init"])
def test_exhausted_epoch_continues_with_new_producer_id(bench: Bench, how: str) -> None:
    """INIT-06, TV2: Kafka's last epoch is 32,766; the chain is brought there by hand, the producer is the real one."""
    producer = bench.store.producer("id")
    exhausted(bench, producer, MAX_EPOCH)
    old = producer.producer_id
    if how == "init":
        producer = bench.store.producer("id")
    else:
        producer.begin_transaction()
        producer.send("t", b"last", partition=0)
        producer.flush()
        getattr(producer, how)()
    assert producer.producer_id > old
    assert producer.epoch == 0
    with producer.transaction() as txn:
        txn.send("t", b"next", partition=0)
    assert values(bench.store) == ([b"last", b"next"] if how == "commit_transaction" else [b"next"])


@pytest.mark.parametrize("applied", [True, False])
def test_a_commit_at_the_last_epoch_whose_answer_is_lost_finds_its_successor(bench: Bench, *, applied: bool) -> None:
    producer = bench.store.producer("id")
    exhausted(bench, producer, MAX_EPOCH)
    old = producer.producer_id
    producer.begin_transaction()
    producer.send("t", b"last", partition=0)
    with bench.silent(applied=applied), pytest.raises(StorageError):
        producer.commit_transaction()
    producer.commit_transaction()
    assert (producer.producer_id, producer.epoch) == (old + 1, 0)
    with producer.transaction() as txn:
        txn.send("t", b"next", partition=0)
    assert values(bench.store) == [b"last", b"next"]


def exhausted(bench: Bench, producer: Producer, epoch: int) -> None:
    """Write an entry that grants ``epoch``, as many transactions would have done."""
    chain = connection_of(bench.store).chains[chain_of_transactional_id("id", len(connection_of(bench.store).chains))]
    state = chain.refresh()
    granted = ProducerInitialized(
        producer_id=producer.producer_id, epoch=epoch, transactional_id="id", timeout_ms=60_000
    )
    entry = Entry(
        sequence=state.sequence + 1,
        entry_id="by hand",
        writer_id="by hand",
        timestamp=state.timestamp,
        previous=state.entry_hash,
        payload=None,
        requires=None,
        principals=None,
        events=[granted],
    )
    assert bench.inner.put_if_absent(keys.entry(chain.number, entry.sequence), encode(entry))
    assert chain.refresh().entry_hash == content_hash(encode(entry))
    set_epoch(producer, epoch)
