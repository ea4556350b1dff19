"""KIP-664 and ``fenceProducers`` on a store, of one chain and of several: descriptions, aborts, fences."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.helpers.administration import ALL, DAY_MS, PARTITIONS, T0, decided, name_of, open_everywhere
from tests.helpers.chains import groups_of, ids_of, partitions_of, process, sound_store, value_counts, write_everywhere
from tests.helpers.connections import connection_of
from tests.helpers.shell import in_threads
from txnstore.core.groups.offsets import committed
from txnstore.core.invariants.check import check_view
from txnstore.core.model import Outcome, TopicPartition
from txnstore.core.transactions.model import TxnState
from txnstore.errors import (
    InvalidConfigError,
    InvalidProducerEpochError,
    ProducerFencedError,
    ReadOnlyError,
    TransactionalIdNotFoundError,
    UnknownTopicOrPartitionError,
)
from txnstore.storage.memory import MemoryStore
from txnstore.store import Store, open_on
from txnstore.testing import ManualClock


@pytest.fixture(params=[1, 3])
def store(request: pytest.FixtureRequest, clock: ManualClock) -> Iterator[Store]:
    yield from sound_store(clock, request.param, PARTITIONS)


# List and describe ----------------------------------------------------------------------------------------------------


def test_adm_01_transactions_are_filtered(store: Store) -> None:
    """ADM-01: by state, producer id, and a pattern that the whole id matches; a wrong pattern or state is refused."""
    first, second = store.producer("loader-1"), open_everywhere(store, "loader-2")
    assert [txn.transactional_id for txn in store.transactions()] == ["loader-1", "loader-2"]
    assert [txn.transactional_id for txn in store.transactions("ongoing")] == ["loader-2"]
    assert [txn.producer_id for txn in store.transactions(producer_id=first.producer_id)] == [first.producer_id]
    assert [txn.transactional_id for txn in store.transactions(pattern=r"loader-\d")] == ["loader-1", "loader-2"]
    assert store.transactions(pattern="loader") == []
    with pytest.raises(InvalidConfigError):
        store.transactions(pattern="(")
    with pytest.raises(InvalidConfigError):
        store.transactions("nothing")
    second.abort_transaction()


def test_adm_02_a_transaction_is_described_in_each_state(store: Store, clock: ManualClock) -> None:
    """ADM-02: its chain, identity, timeout, start, partitions and groups."""
    name, producer = name_of(store), store.producer(name_of(store), transaction_timeout=30.0)
    description = store.transaction(name)
    assert (description.state, description.chain, description.timeout_ms) == (
        TxnState.EMPTY,
        len(connection_of(store).chains) - 1,
        30_000,
    )
    clock.advance(7)
    started = clock()
    producer.begin_transaction()
    write_everywhere(producer, b"value")
    producer.send_offsets({T0: 1}, "g")
    producer.flush()
    description = store.transaction(name)
    assert (description.state, description.producer_id, description.epoch) == (
        TxnState.ONGOING,
        producer.producer_id,
        producer.epoch,
    )
    assert (description.partitions, description.groups, description.started_at) == (ALL, ("g",), started)
    assert [(item.tp, item.first_offset, item.last_stable, item.high_watermark) for item in description.open] == [
        (tp, 0, 0, 1) for tp in ALL
    ]
    producer.commit_transaction()
    description = store.transaction(name)
    assert (description.state, description.partitions, description.open) == (TxnState.COMPLETE_COMMIT, (), ())


def test_adm_02_decided_transaction_lists_partitions_without_marker(clock: ManualClock) -> None:
    """ADM-02: after PREPARE only partitions and groups of other chains than the coordinator's are left."""
    store = process(MemoryStore(clock=clock), clock, chains=3)
    store.create_topic("t", partitions=PARTITIONS)
    decided(store, clock)
    name, group = name_of(store), groups_of(store, 0)
    description = store.transaction(name)
    assert (description.state, description.groups) == (TxnState.PREPARE_COMMIT, (group,))
    assert set(description.partitions) == set(ALL) - {TopicPartition("t", number) for number in partitions_of(store, 2)}
    store.recover()
    assert store.transaction(name).state is TxnState.COMPLETE_COMMIT


def test_adm_02_unknown_id_is_not_found(store: Store) -> None:
    """ADM-02: and an empty one is refused."""
    for call in (store.transaction, store.abort_transaction, store.transaction_history):
        with pytest.raises(TransactionalIdNotFoundError):
            call("nobody")
        with pytest.raises(InvalidConfigError):
            call("")


def test_adm_03_producers_of_a_partition_are_described(store: Store, clock: ManualClock) -> None:
    """ADM-03, PST-16: an open one, one that ended, an idempotent one; no last sequence is -1."""
    open_one, ended, plain = store.producer("open"), store.producer("ended"), store.producer()
    for producer in (ended, open_one):
        producer.begin_transaction()
        producer.send("t", b"1", partition=0)
        producer.send("t", b"2", partition=0)
        producer.flush()
        if producer is ended:
            producer.commit_transaction()
    clock.advance(1)
    plain.send("t", b"3", partition=0)
    plain.flush()
    by_id = {item.producer_id: item for item in store.producers("t", 0)}
    first = by_id[open_one.producer_id]
    assert (first.epoch, first.last_sequence, first.first_offset) == (open_one.epoch, 1, 3)
    assert first.transactional_id == "open"
    marked = by_id[ended.producer_id]
    assert (marked.epoch, marked.last_sequence, marked.first_offset) == (ended.epoch, -1, None)
    own = by_id[plain.producer_id]
    assert (own.last_sequence, own.last_timestamp, own.transactional_id) == (0, clock(), None)
    assert store.producers("t", 1) == []
    with pytest.raises(UnknownTopicOrPartitionError):
        store.producers("t", PARTITIONS)


# Aborting and fencing -------------------------------------------------------------------------------------------------


def test_adm_05_an_open_transaction_is_aborted_and_its_owner_fenced(store: Store) -> None:
    """ADM-05: before its timeout, in all partitions; a second abort does nothing."""
    name = name_of(store)
    producer = open_everywhere(store, name)
    producer.send_offsets({T0: 5}, "g")
    producer.flush()
    assert store.abort_transaction(name)
    assert not store.abort_transaction(name)
    assert (value_counts(store), value_counts(store, isolation="read_uncommitted")) == ({}, {b"value": PARTITIONS})
    assert committed(connection_of(store).view(), "g", T0) is None
    with pytest.raises(InvalidProducerEpochError):
        producer.commit_transaction()


def test_adm_05_prepared_transaction_is_aborted(store: Store, clock: ManualClock) -> None:
    """ADM-05, TPC-02: nothing else ends it but that coordinator, which then finds nothing to complete."""
    producer = open_everywhere(store, name_of(store))
    name = producer.prepare_transaction()
    clock.advance(30 * DAY_MS)
    assert store.transaction(name_of(store)).prepared
    assert (store.find_hanging(late=0), store.recover().aborted) == ([], ())
    other = process(connection_of(store).counts.inner, clock)
    assert other.abort_transaction(name_of(store))
    assert not other.transaction(name_of(store)).prepared
    with pytest.raises(InvalidProducerEpochError):
        producer.complete_transaction(name)
    assert other.producer(name_of(store), keep_prepared=True).complete_transaction(name) is False
    assert value_counts(store) == {}


def test_adm_05_by_partition_and_producer_the_whole_transaction_is_aborted(store: Store) -> None:
    """ADM-05: where the coordinator knows it, nothing of it is left open elsewhere."""
    producer = open_everywhere(store, name_of(store))
    assert store.abort_hanging("t", 3, producer.producer_id)
    assert store.transaction(name_of(store)).state is TxnState.COMPLETE_ABORT
    assert value_counts(store) == {}


@pytest.mark.parametrize("outcome", list(Outcome))
def test_end_01_abort_of_decided_transaction_completes_it_as_decided(
    store: Store, clock: ManualClock, outcome: Outcome
) -> None:
    """END-01: an operator cannot abort it any more."""
    decided(store, clock, outcome)
    several = len(connection_of(store).chains) > 1  # In one chain the decision is the end.
    assert store.abort_transaction(name_of(store)) is several
    committing = outcome is Outcome.COMMIT
    assert value_counts(store) == ({b"value": PARTITIONS} if committing else {})
    assert store.transaction(name_of(store)).state.name == f"COMPLETE_{outcome.value}"


def test_adm_07_two_operators_abort_it_once(clock: ManualClock) -> None:
    """ADM-07: one entry of the coordinator's chain decides; the other one finds nothing to do."""
    store = process(MemoryStore(clock=clock), clock, chains=3)
    store.create_topic("t", partitions=PARTITIONS)
    name = name_of(store)
    producer = open_everywhere(store, name)
    others = [process(connection_of(store).counts.inner, clock) for _ in range(4)]
    assert all(result in (True, False) for result in in_threads(4, lambda n: others[n].abort_transaction(name)))
    assert store.transaction(name).epoch == producer.epoch + 1
    assert [step.step for step in store.transaction_history(name).steps].count("PREPARE_ABORT") == 1
    assert check_view(connection_of(store).view()) == []


def test_init_17_producers_are_fenced_by_their_ids(store: Store) -> None:
    """INIT-17: what they left open is aborted; they stop with their next call; their successors continue.

    An id that is given twice is fenced once.
    """
    names = [ids_of(store, chain) for chain in range(len(connection_of(store).chains))]
    producers = [open_everywhere(store, name, transaction_timeout=17.0) for name in names]
    identities = store.fence_producers([*names, "unknown", "unknown"])
    assert list(identities) == [*names, "unknown"]
    for name, producer in zip(names, producers, strict=True):
        assert identities[name].epoch > producer.epoch
        assert store.transaction(name).timeout_ms == 17_000
        with pytest.raises(ProducerFencedError):
            producer.commit_transaction()
    assert identities["unknown"].epoch == 0
    assert value_counts(store) == {}
    open_everywhere(store, names[0]).commit_transaction()
    assert value_counts(store) == {b"value": PARTITIONS}


def test_read_only_store_only_describes(store: Store) -> None:
    name = name_of(store)
    open_everywhere(store, name)
    reader = open_on(connection_of(store).objects, read_only=True, runtime=connection_of(store).runtime)
    assert reader.transaction(name).state is TxnState.ONGOING
    assert reader.find_hanging() == []
    assert len(reader.transaction_history(name).steps) >= 3
    for call in (reader.abort_transaction, lambda name: reader.fence_producers([name])):
        with pytest.raises(ReadOnlyError):
            call(name)
