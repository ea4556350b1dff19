"""Clocks that are wrong, in stores of several chains: what a chain takes for now may be far ahead of another one's.

No chain's time ever goes back, so one writer with a wrong clock moves it for good.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

import pytest

from tests.helpers import keys
from tests.helpers.chains import ids_of, partitions_of, process, shared_topic, value_counts, write_everywhere
from tests.helpers.connections import connection_of
from txnstore.chain.context import CHECKPOINT_EVERY
from txnstore.core.invariants.check import check_view
from txnstore.core.log.commands import Added, Append
from txnstore.core.log.model import NewBatch, Segment
from txnstore.core.model import Outcome, ProducerIdentity, TopicPartition
from txnstore.core.transactions.commands import EndTxn, InitProducer
from txnstore.core.transactions.model import TxnState
from txnstore.errors import ProducerFencedError, UploadExpiredError
from txnstore.storage.counting import CountingStore
from txnstore.storage.memory import MemoryStore
from txnstore.store import Store
from txnstore.testing import ManualClock

CHAINS, PARTITIONS = 3, 6
HOUR_MS = 3_600_000


@pytest.fixture
def bucket(clock: ManualClock) -> MemoryStore:
    return shared_topic(clock, CHAINS, PARTITIONS)


def ahead(bucket: MemoryStore, clock: ManualClock, chain: int, ms: int) -> None:
    """Another process, whose clock is so far ahead, writes one entry of a chain."""
    connection_of(process(bucket, ManualClock(clock() + ms))).chains[chain].submit(InitProducer())


def batch(store: Store, chain: int) -> NewBatch:
    """The first batch of a producer in a partition of a chain."""
    place = partitions_of(store, chain)[0]
    segment = Segment(f"topics/t/{place}/{connection_of(store).runtime.new_id()}.parquet", "parquet", 10, "0" * 64, 1)
    return NewBatch("t", place, segment, 7, 8, 0)


@pytest.mark.parametrize("chain", range(CHAINS))
@pytest.mark.parametrize("home", range(CHAINS))
def test_obj_05_chain_with_clock_far_ahead_blocks_no_producer(
    bucket: MemoryStore, clock: ManualClock, chain: int, home: int
) -> None:
    """OBJ-05: transactions with partitions of that chain continue, whichever chain coordinates them.

    One whose coordinator did not know yet may be aborted; the next one of its producer is fine.
    """
    store = process(bucket, clock)
    producer = store.producer(ids_of(store, home))
    ahead(bucket, clock, chain, 365 * 24 * HOUR_MS)
    with suppress(UploadExpiredError), producer.transaction() as txn:
        write_everywhere(txn, b"first")
    with producer.transaction() as txn:
        write_everywhere(txn, b"second")
    assert value_counts(process(bucket, clock))[b"second"] == PARTITIONS
    assert check_view(connection_of(store).view()) == []


@pytest.mark.parametrize("far", [0, 48 * HOUR_MS, 10_000 * HOUR_MS], ids=["right", "two-days", "a-year"])
def test_add_07_late_batch_is_refused_whatever_clock_of_coordinator(
    bucket: MemoryStore, clock: ManualClock, far: int
) -> None:
    """ADD-07: its partition has forgotten the epoch of the marker, so its age has to tell."""
    store = process(bucket, clock)
    if far:
        ahead(bucket, clock, 1, far)
    tp = TopicPartition("t", partitions_of(store, 2)[0])
    zombie: ProducerIdentity = connection_of(store).submit(InitProducer(ids_of(store, 1)))
    connection_of(store).chains[1].submit(Append(zombie, partitions=(tp,)))
    added = Added(1, connection_of(store).chains[1].state.sequence, connection_of(store).chains[1].state.timestamp)
    connection_of(store).submit(EndTxn(zombie, Outcome.ABORT))
    assert connection_of(store).view().states[2].partitions[tp].producers.get(zombie.producer_id) is not None
    for _ in range(3):
        clock.advance(25 * HOUR_MS)
        later = process(bucket, clock)
        later.expire()
        append = Append(zombie, (batch(later, 2),), added=added)
        with pytest.raises((ProducerFencedError, UploadExpiredError)):
            connection_of(later).chains[2].submit(append)
        assert check_view(connection_of(later).view()) == []


class Sleepy(CountingStore):
    """Something happens once while a checkpoint is written."""

    meanwhile: Callable[[], None] | None = None

    def put(self, key: str, data: bytes) -> None:
        super().put(key, data)
        if key.startswith(keys.CHAINS) and self.meanwhile is not None:
            meanwhile, self.meanwhile = self.meanwhile, None
            meanwhile()


def test_add_07_evidence_of_coordinator_is_older_than_end_of_transaction(
    bucket: MemoryStore, clock: ManualClock
) -> None:
    """ADD-07: a thread stops between its entry and the look at it, for longer than epochs are remembered.

    Meanwhile others abort the transaction and forget its producer, which another thread of its process hears of. Here
    it stops where its entry has made a checkpoint due.
    """
    sleepy = Sleepy(bucket)
    store = process(sleepy, clock)
    name, home = ids_of(store, 1), connection_of(store).chains[1]
    producer = connection_of(store).submit(InitProducer(name))
    append = Append(producer, (batch(store, 2),))
    while home.state.sequence % CHECKPOINT_EVERY != CHECKPOINT_EVERY - 1:
        home.submit(InitProducer())

    def meanwhile() -> None:
        clock.advance(HOUR_MS)
        assert process(bucket, clock).recover().aborted == (name,)
        clock.advance(25 * HOUR_MS)
        process(bucket, clock).expire()
        ahead(bucket, clock, 1, 0)
        connection_of(store).view()

    sleepy.meanwhile = meanwhile
    with pytest.raises(ProducerFencedError):
        connection_of(store).submit(append)
    assert "meanwhile" in vars(sleepy)
    view = connection_of(process(bucket, clock)).view()
    assert view.transactions[name].state is TxnState.COMPLETE_ABORT
    assert check_view(view) == []
