"""Sessions of clients of transactions v1 over several chains: in the pure core, and through the coordinator."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace

import pytest

from tests.helpers.chains import Cluster, ids_of, process
from tests.helpers.connections import connection_of
from tests.helpers.format_answers import objects_of
from tests.helpers.format_reader import Reader
from tests.helpers.sessions import Gateway
from txnstore.core.expiration import Expire
from txnstore.core.invariants.check import check_view
from txnstore.core.log.commands import Added, Append, Appended
from txnstore.core.log.model import NewBatch
from txnstore.core.model import NO_FEATURES, Outcome, ProducerIdentity, TopicPartition
from txnstore.core.transactions.commands import AbortTxn, EndTxn, InitProducer, WriteMarkers
from txnstore.core.transactions.model import TxnState
from txnstore.core.transactions.sessions import SESSIONS, client_identity, identity_in
from txnstore.errors import (
    ConcurrentTransactionsError,
    InvalidTxnStateError,
    OutOfOrderSequenceError,
    ProducerFencedError,
)
from txnstore.storage.memory import MemoryStore
from txnstore.store import Store
from txnstore.testing import ManualClock

COMMIT, ABORT = Outcome.COMMIT, Outcome.ABORT
DAY_MS = 86_400_000

# The pure core --------------------------------------------------------------------------------------------------------


class Session(Cluster):
    """Two chains; chain 0 coordinates a client of transactions v1, whose transactions are written step by step."""

    def __init__(self) -> None:
        super().__init__(chains=2)
        self.name = self.home(0)
        self.client: ProducerIdentity = self.do(0, InitProducer(self.name))
        self.here, self.there = self.led_by(0)[0], self.led_by(1)[0]

    def arrive(self) -> ProducerIdentity:
        """The identity of its transaction, for a request that arrives now."""
        self.identity = identity_in(self.view(), self.client)
        return self.identity

    def add(self, *tps: TopicPartition) -> Added:
        identity = self.arrive()
        self.do(0, Append(identity, partitions=tps))
        state = self.states[0]
        return Added(0, state.sequence, state.timestamp, state.transactions[self.name].session_epoch)

    def produce(self, batch: NewBatch) -> Append:
        """The command for the other chain, of a request that arrives now."""
        added = self.add(batch.tp)
        return Append(self.identity, (batch,), added=added)

    def end(self, outcome: Outcome = COMMIT) -> None:
        """The decision; :meth:`finish` writes what follows."""
        after = ((1, self.states[1].sequence),)
        ended = self.do(0, EndTxn(self.arrive(), outcome, after=after, session=True))
        self.decided = ended.unfinished

    def transact(self, batch: NewBatch, outcome: Outcome = COMMIT) -> Appended:
        (appended,) = self.do(1, self.produce(batch))
        self.end(outcome)
        self.finish()
        self.sound()
        assert isinstance(appended, Appended)
        return appended


@pytest.fixture
def cluster() -> Session:
    return Session()


@pytest.mark.parametrize("outcome", Outcome)
def test_sequences_run_on_in_other_chains(cluster: Session, outcome: Outcome) -> None:
    """SEQ-01, SEQ-03: also when the chain took no part in the transactions between."""
    there = cluster.there
    first = cluster.batch(there, 0, records=3)
    assert cluster.transact(first, outcome).base_offset == 0
    for number in range(2):
        cluster.add(cluster.here)
        cluster.do(0, Append(cluster.identity, (cluster.batch(cluster.here, number),)))
        cluster.end()
    for gap in (0, 2, 4):
        with pytest.raises(OutOfOrderSequenceError):
            cluster.do(1, cluster.produce(cluster.batch(there, gap, records=2)))
    if outcome is Outcome.COMMIT:
        (again,) = cluster.do(1, cluster.produce(first))
        assert (again.base_offset, again.duplicate) == (0, True)
    else:
        with pytest.raises(OutOfOrderSequenceError, match="was aborted"):
            cluster.do(1, cluster.produce(first))
    assert cluster.transact(cluster.batch(there, 3)).base_offset == 4
    assert client_identity(cluster.states[0].transactions[cluster.name]) == (cluster.client.producer_id, 0)


def test_both_chains_require_the_feature(cluster: Session) -> None:
    """Each chain that keeps a window, by an entry of its own."""
    cluster.do(1, cluster.produce(cluster.batch(cluster.there)))
    cluster.end()
    assert [state.requires for state in cluster.states] == [SESSIONS, NO_FEATURES]
    cluster.finish()
    assert [state.requires for state in cluster.states] == [SESSIONS, SESSIONS]


def test_markers_of_a_session_may_be_written_again(cluster: Session) -> None:
    """END-08: the window is kept once, by whichever process the markers are written, and later ones change nothing."""
    batch = cluster.batch(cluster.there, 0, records=2)
    cluster.do(1, cluster.produce(batch))
    cluster.end()
    decided = cluster.decided
    assert decided is not None
    late = WriteMarkers(decided, (0, cluster.states[0].sequence))
    cluster.finish()
    after = cluster.states[1]
    cluster.do(1, late)
    assert cluster.states[1] is after
    cluster.do(1, cluster.produce(cluster.batch(cluster.there, 2)))
    open_one = cluster.states[1]
    cluster.do(1, late)
    assert cluster.states[1] is open_one
    cluster.sound()


def test_client_is_told_to_wait_until_markers_are_written(cluster: Session) -> None:
    """ADD-05: what arrives after the decision is of the next transaction, which cannot begin yet."""
    cluster.do(1, cluster.produce(cluster.batch(cluster.there)))
    early = cluster.arrive()
    cluster.end()
    assert cluster.states[0].transactions[cluster.name].state is TxnState.PREPARE_COMMIT
    late = cluster.arrive()
    assert late.epoch == early.epoch + 1
    for command in (Append(late, partitions=(cluster.there,)), EndTxn(late, COMMIT, session=True)):
        with pytest.raises(ConcurrentTransactionsError):
            cluster.do(0, command)
    repeated = cluster.do(0, EndTxn(early, COMMIT, session=True))
    assert repeated.unfinished == cluster.decided
    cluster.finish()
    assert cluster.do(0, EndTxn(late, COMMIT, session=True)).unfinished is None


def test_late_batch_of_an_ended_transaction_in_another_chain(cluster: Session) -> None:
    """FEN-02: it is the next one by its sequence, and it was added; the fence refuses it."""
    cluster.do(1, cluster.produce(cluster.batch(cluster.there)))
    late = cluster.produce(cluster.batch(cluster.there, 1))
    cluster.end()
    cluster.finish()
    for _ in range(2):
        with pytest.raises(ProducerFencedError):
            cluster.do(1, late)
        cluster.add(cluster.there)


def test_session_that_another_process_ends(cluster: Session) -> None:
    """TMO-01, SEQ-06: markers say so in each chain, and the next instance begins at 0."""
    first = cluster.batch(cluster.there, 0, records=2)
    cluster.transact(first)
    cluster.do(1, cluster.produce(cluster.batch(cluster.there, 2)))
    end = EndTxn(cluster.arrive(), ABORT, session=True)
    cluster.decided = cluster.do(0, AbortTxn(cluster.name))
    with pytest.raises(ProducerFencedError):
        cluster.arrive()
    with pytest.raises(ProducerFencedError):
        cluster.do(0, end)
    cluster.finish()
    with pytest.raises(ProducerFencedError):
        cluster.do(0, end)
    cluster.client = cluster.do(0, InitProducer(cluster.name))
    assert not cluster.transact(replace(first, segment=cluster.batch(cluster.there, 0, records=2).segment)).duplicate
    cluster.transact(cluster.batch(cluster.there, 2))


def test_bump_of_the_client_over_chains(cluster: Session) -> None:
    """INIT-08, KIP-360: the abort is completed in other chains before the command is repeated."""
    cluster.transact(cluster.batch(cluster.there))
    cluster.do(1, cluster.produce(cluster.batch(cluster.there, 1)))
    bump = InitProducer(cluster.name, expected=(cluster.client.producer_id, cluster.client.epoch))
    cluster.decided = cluster.do(0, bump)
    cluster.finish()
    granted = cluster.do(0, bump)
    assert cluster.do(0, bump) == granted
    with pytest.raises(ProducerFencedError):
        cluster.arrive()
    cluster.client = granted
    with pytest.raises(OutOfOrderSequenceError):
        cluster.do(1, cluster.produce(cluster.batch(cluster.there, 2)))
    cluster.transact(cluster.batch(cluster.there, 0))


def test_bump_after_another_process_has_aborted(cluster: Session) -> None:
    """INIT-08, TMO-01: refused before the markers are written as afterwards; no epoch of the transaction is granted."""
    cluster.transact(cluster.batch(cluster.there))
    cluster.do(1, cluster.produce(cluster.batch(cluster.there, 1)))
    cluster.decided = cluster.do(0, AbortTxn(cluster.name))
    bump = InitProducer(cluster.name, expected=(cluster.client.producer_id, cluster.client.epoch))
    with pytest.raises(ProducerFencedError):
        cluster.do(0, bump)
    cluster.finish()
    with pytest.raises(ProducerFencedError):
        cluster.do(0, bump)


def test_client_is_fenced_before_the_markers_of_its_aborted_transaction_are_written(cluster: Session) -> None:
    """FEN-01: in its first transaction the epoch is that of the client, and changes with the completion only."""
    cluster.do(1, cluster.produce(cluster.batch(cluster.there)))
    cluster.decided = cluster.do(0, AbortTxn(cluster.name))
    with pytest.raises(ProducerFencedError):
        cluster.arrive()
    cluster.finish()
    with pytest.raises(ProducerFencedError):
        cluster.arrive()


def test_fences_and_windows_expire_in_a_session(cluster: Session) -> None:
    """PST-06, ADD-07: the next batch continues, as in Kafka."""
    cluster.transact(cluster.batch(cluster.there, 0, records=2))
    cluster.now += 2 * DAY_MS
    cluster.do(1, Expire())
    assert not cluster.states[1].fences
    assert not cluster.states[1].partitions[cluster.there].session_windows
    cluster.transact(cluster.batch(cluster.there, 2))
    cluster.transact(cluster.batch(cluster.there, 3))


# Through the coordinator ----------------------------------------------------------------------------------------------


def place(number: int) -> TopicPartition:
    return TopicPartition("t", number)


@pytest.fixture
def bucket() -> MemoryStore:
    return MemoryStore(clock=ManualClock())


@pytest.fixture(params=[1, 3])
def chains(request: pytest.FixtureRequest) -> int:
    count: int = request.param
    return count


@pytest.fixture
def stores(bucket: MemoryStore, chains: int) -> Iterator[list[Store]]:
    clock = ManualClock()
    first = process(bucket, clock, chains=chains)
    first.create_topic("t", partitions=6)
    yield [first, process(bucket, clock)]
    assert check_view(connection_of(process(bucket, clock)).view()) == []


def test_session_over_two_processes(bucket: MemoryStore, stores: list[Store], chains: int) -> None:
    """SEQ-03, END-04, OBJ-19: each request in another process; what is late is answered as in one chain."""
    gateway = Gateway(stores, ids_of(stores[0], chains - 1))
    batches, aborted = [], []
    for number in range(6):
        partitions = [number % 6, (number + 1) % 6, 5]
        gateway.add(*map(place, partitions))
        for partition in dict.fromkeys(partitions):
            batches.append(gateway.batch(place(partition), f"a{number}", f"b{number}"))
            (appended,) = gateway.produce(batches[-1])
            assert not appended.duplicate
            (again,) = gateway.produce(batches[-1])
            assert (again.base_offset, again.duplicate) == (appended.base_offset, True)
        if number % 3 == 2:
            aborted += batches[-len({*partitions}) :]
        gateway.end(ABORT if number % 3 == 2 else COMMIT)
        gateway.end(ABORT if number % 3 == 2 else COMMIT)
    *late, first = [batch for batch in reversed(batches) if batch.partition == 5]
    late += [batch for batch in batches if batch.partition != 5]
    late = [batch for batch in late if batch not in aborted]
    assert all(gateway.produce(batch)[0].duplicate for batch in late)
    for batch in aborted:
        with pytest.raises(OutOfOrderSequenceError, match="was aborted"):
            gateway.produce(batch)
    with pytest.raises(InvalidTxnStateError):
        gateway.produce(first)
    gateway.add(place(5))
    assert all(gateway.produce(batch)[0].duplicate for batch in late)
    with pytest.raises(OutOfOrderSequenceError):
        gateway.produce(first)
    gateway.produce(gateway.batch(place(5), "last"))
    gateway.end()
    assert stores[0].verify(deep=True).violations == ()
    for store in stores:
        store.checkpoint()
    assert Reader(objects_of(bucket), complete=True).compared == chains


def test_batches_of_several_chains_are_repeated_together(stores: list[Store], chains: int) -> None:
    """SEQ-03: an append whose batches several chains lead is answered whole, or refused whole."""
    gateway = Gateway(stores, ids_of(stores[0], chains - 1))
    gateway.add(*map(place, range(6)))
    batches = tuple(gateway.batch(place(partition), "x") for partition in range(6))
    appended = gateway.produce(*batches)
    gateway.end()
    assert gateway.produce(*batches) == tuple(replace(each, duplicate=True) for each in appended)
    for number in range(6):
        mixed = (*batches[:number], gateway.batch(place(number), "y"), *batches[number + 1 :])
        with pytest.raises(InvalidTxnStateError):
            gateway.produce(*mixed)


def test_nothing_joins_a_transaction_by_itself(stores: list[Store], chains: int) -> None:
    """ADD-06: in any chain; and where one of several partitions was added."""
    gateway = Gateway(stores, ids_of(stores[0], chains - 1))
    for partition in range(6):
        with pytest.raises(InvalidTxnStateError):
            gateway.arrive(Append(gateway.client, (gateway.batch(place(partition), "x"),), added_only=True))
    gateway.sequences = {}
    txn = connection_of(stores[0]).view().transactions[str(gateway.client.transactional_id)]
    assert txn.state is TxnState.EMPTY
    gateway.add(place(0), place(1))
    batches = tuple(gateway.batch(place(partition), "x") for partition in (0, 1, 2))
    with pytest.raises(InvalidTxnStateError):
        gateway.arrive(Append(gateway.client, batches, added_only=True))
    assert [item.base_offset for item in gateway.arrive(Append(gateway.client, batches[:2], added_only=True))] == [0, 0]
    gateway.end()


def test_partition_is_added_at_the_head(stores: list[Store], chains: int) -> None:
    """ADD-01: a process that has not seen the end of the transaction does not answer that its partition is added."""
    gateway = Gateway(stores[:1], ids_of(stores[0], chains - 1))
    slow = connection_of(stores[1])
    gateway.add(place(0))
    slow.view()
    early = identity_in(slow.view(refresh=False), gateway.client)
    gateway.produce(gateway.batch(place(0), "x"))
    gateway.end()
    with pytest.raises(ProducerFencedError):
        slow.coordinator.submit(Append(early, partitions=(TopicPartition("t", 0),)))
    gateway.stores = itertools.cycle([stores[1]])
    gateway.add(place(0))
    assert connection_of(stores[0]).view().transactions[str(gateway.client.transactional_id)].state is TxnState.ONGOING
    gateway.produce(gateway.batch(place(0), "x"))
    gateway.end()


def test_partition_joins_without_data(stores: list[Store], chains: int) -> None:
    """ADD-01, END-09: AddPartitionsToTxn alone begins a transaction, and each partition gets a marker."""
    gateway = Gateway(stores, ids_of(stores[0], chains - 1))
    gateway.add(place(0), place(1), place(2), groups=("g",))
    txn = connection_of(stores[0]).view().transactions[str(gateway.client.transactional_id)]
    assert (txn.state, len(txn.partitions), txn.groups) == (TxnState.ONGOING, 3, frozenset({"g"}))
    gateway.end()
    view = connection_of(stores[0]).view()
    assert [view.partitions[TopicPartition("t", number)].high_watermark for number in range(4)] == [1, 1, 1, 0]


def test_checkpoint_has_sessions(bucket: MemoryStore, stores: list[Store], chains: int) -> None:
    """OBJ-09: a process that opens the store at a checkpoint answers as one that has folded all entries."""
    gateway = Gateway(stores[:1], ids_of(stores[0], chains - 1))
    gateway.add(place(0))
    batch = gateway.batch(place(0), "x", "y", "z")
    gateway.produce(batch)
    stores[0].checkpoint()
    gateway.end()
    stores[0].checkpoint()
    opened = process(bucket, ManualClock())
    assert connection_of(opened).view() == connection_of(stores[0]).view()
    gateway.stores = itertools.cycle([opened])
    assert gateway.produce(batch)[0].duplicate
    gateway.add(place(0))
    gateway.produce(gateway.batch(place(0), "x"))
    gateway.end()
