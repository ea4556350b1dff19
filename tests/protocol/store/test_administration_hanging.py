"""KIP-664: transactions that hang are found, and data that no coordinator knows is aborted."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.helpers import keys
from tests.helpers.administration import ALL, DAY_MS, PARTITIONS, T0, decided, name_of, open_everywhere
from tests.helpers.chains import groups_of, sound_store, value_counts, write_everywhere
from tests.helpers.connections import connection_of
from txnstore.admin.descriptions import HangingTransaction
from txnstore.chain.codec import Entry, encode
from txnstore.core.events import Event
from txnstore.core.groups.events import GroupOffset, OffsetsCommitted
from txnstore.core.invariants.check import check_view
from txnstore.core.log.events import append_events
from txnstore.core.log.model import Batch, Segment
from txnstore.core.model import TopicPartition
from txnstore.core.routing import chain_of_partition
from txnstore.core.state import State
from txnstore.errors import (
    InvalidConfigError,
    InvalidProducerEpochError,
    ProducerFencedError,
    UnknownTopicOrPartitionError,
)
from txnstore.store import Store
from txnstore.testing import ManualClock


@pytest.fixture(params=[1, 3])
def store(request: pytest.FixtureRequest, clock: ManualClock) -> Iterator[Store]:
    yield from sound_store(clock, request.param, PARTITIONS)


def forge(store: Store, tp: TopicPartition, producer_id: int) -> None:
    """An entry with open data of a transaction that its coordinator does not know: damage that no command makes."""
    number = chain_of_partition(tp, len(connection_of(store).chains))
    state = connection_of(store).chains[number].refresh()
    at, now = state.partitions[tp].high_watermark, connection_of(store).runtime.clock()
    segment = Segment("topics/forged.parquet", "parquet", 1, "0" * 64, 1)
    batch = Batch(at, at + 1, 1, segment, 7, 8, 0, producer_id, 0, 0, transactional=True, appended_at=now)
    (event,) = append_events({tp: batch})
    write(store, number, state, event)


def write(store: Store, number: int, state: State, event: Event) -> None:
    """An entry that no command has made."""
    forged = Entry(
        sequence=state.sequence + 1,
        entry_id="forged",
        writer_id="forged",
        timestamp=connection_of(store).runtime.clock(),
        previous=state.entry_hash,
        payload=None,
        requires=None,
        principals=None,
        events=[event],
    )
    assert connection_of(store).objects.put_if_absent(keys.entry(number, forged.sequence), encode(forged))


@pytest.mark.parametrize("expired", [False, True])
def test_adm_04_adm_05_data_that_no_coordinator_knows_is_found_and_aborted(
    store: Store, clock: ManualClock, *, expired: bool
) -> None:
    """ADM-04, ADM-05: its readers continue, the aborted transaction has its entry; whether its id is known or not.

    A long transaction that its coordinator knows is not reported.
    """
    name = name_of(store)
    with store.producer(name) as ended:
        ended.begin_transaction()
        write_everywhere(ended, b"value")
        ended.commit_transaction()
    if expired:
        clock.advance(7 * DAY_MS)
        store.expire()
    healthy = open_everywhere(store, "healthy", transaction_timeout=900.0)
    assert store.find_hanging() == []
    healthy.commit_transaction()
    forge(store, T0, ended.producer_id)
    (hanging,) = store.find_hanging()
    transactional_id = None if expired else name
    assert hanging == HangingTransaction(T0, ended.producer_id, 0, 4, clock(), transactional_id, "unknown")
    assert [store.offsets("t", 0).last_stable, *store.find_hanging("t")] == [4, hanging]
    assert store.recover().aborted == (), "no other process knows the outcome"
    assert not store.abort_hanging("t", 1, ended.producer_id)
    assert store.abort_hanging("t", 0, ended.producer_id)
    assert not store.abort_hanging("t", 0, ended.producer_id)
    assert (store.find_hanging(), store.offsets("t", 0).last_stable) == ([], 6)
    log = connection_of(store).view().log(T0)
    assert log is not None
    assert [(entry.producer_id, entry.first_offset, entry.last_offset) for entry in log.aborted] == [
        (ended.producer_id, 4, 5)
    ]
    assert value_counts(store) == {b"value": 2 * PARTITIONS}


@pytest.mark.parametrize("elsewhere", [False, True])
def test_adm_05_open_data_of_the_current_epoch_fences_its_owner(store: Store, *, elsewhere: bool) -> None:
    """ADM-05: the marker takes the epoch after it, which its owner must not use; whether it has begun one or not.

    The owner's transaction, which does not have the partition, is aborted; its successors continue everywhere.
    """
    owner = store.producer(name_of(store))
    owner.begin_transaction()
    if elsewhere:
        owner.send("t", b"lost", partition=1)
        owner.flush()
    forge(store, T0, owner.producer_id)
    assert [item.reason for item in store.find_hanging()] == ["unknown"]
    assert store.abort_hanging("t", 0, owner.producer_id)
    assert check_view(connection_of(store).view()) == []
    assert (store.find_hanging(late=0), store.offsets("t", 0).last_stable) == ([], 2)
    with pytest.raises(InvalidProducerEpochError if elsewhere else ProducerFencedError):
        owner.send("t", b"lost", partition=0).result()
    with store.producer(name_of(store)) as successor, successor.transaction():
        write_everywhere(successor, b"next")
    assert value_counts(store) == {b"next": PARTITIONS}


def test_adm_05_open_data_of_an_earlier_epoch_leaves_its_owner_alone(store: Store) -> None:
    """ADM-05: the owner has a later epoch than the marker, so its transaction in other partitions goes on."""
    store.producer(name_of(store)).close()
    with store.producer(name_of(store)) as owner, owner.transaction():
        owner.send("t", b"kept", partition=1)
        owner.flush()
        forge(store, T0, owner.producer_id)
        assert store.abort_hanging("t", 0, owner.producer_id)
    assert value_counts(store) == {b"kept": 1}


def test_adm_04_transaction_long_past_its_timeout_is_found(store: Store, clock: ManualClock) -> None:
    """ADM-04, TMO-12: past the timeout by the margin, in each of its partitions; ``recover`` ends it."""
    producer = open_everywhere(store, name_of(store), transaction_timeout=60.0)
    clock.advance(60_000 + 300_000)
    assert store.find_hanging() == []
    assert len(store.find_hanging(late=299.0)) == PARTITIONS
    clock.advance(1)
    assert [(item.tp, item.reason) for item in store.find_hanging("t")] == [(tp, "late") for tp in ALL]
    store.recover()
    assert store.find_hanging() == []
    with pytest.raises(InvalidProducerEpochError):
        producer.commit_transaction()


def test_adm_04_a_group_that_a_transaction_blocks_is_found(store: Store, clock: ManualClock) -> None:
    """ADM-04, OFF-09: offsets pending without any data hold the group up; a group that has none is not blocked."""
    producer, group, other = (
        store.producer(name_of(store)),
        groups_of(store, 0),
        groups_of(store, len(connection_of(store).chains) - 1),
    )
    producer.begin_transaction()
    producer.send_offsets({T0: 5, ALL[1]: 6}, group)
    producer.send_offsets({}, other)
    producer.flush()
    at = clock()
    clock.advance(60_000)
    assert store.find_hanging() == []
    for past, reason in ((1, "expired"), (300_000, "late")):
        clock.advance(past)
        (hanging,) = store.find_hanging()
        assert hanging == HangingTransaction(
            None, producer.producer_id, producer.epoch, None, at, name_of(store), reason, group
        )
    store.create_topic("other")
    assert (store.find_hanging("t"), store.find_hanging("other")) == ([hanging], [])
    store.recover()
    assert store.find_hanging() == []


def test_adm_04_offsets_that_no_coordinator_knows_are_found(store: Store, clock: ManualClock) -> None:
    """ADM-04: damage; they go with their group."""
    group, name = groups_of(store, 0), name_of(store)
    store.producer(name).close()
    ended = store.transaction(name)
    state = connection_of(store).chains[0].refresh()
    pending = OffsetsCommitted(
        group=group,
        offsets=[GroupOffset(topic="t", partition=0, offset=1)],
        producer_id=ended.producer_id,
        epoch=ended.epoch,
    )
    write(store, 0, state, pending)
    (hanging,) = store.find_hanging()
    assert (hanging.group, hanging.transactional_id, hanging.reason) == (group, name, "unknown")
    assert (hanging.tp, hanging.producer_id, hanging.epoch) == (None, ended.producer_id, ended.epoch)
    store.delete_group(group)
    assert store.find_hanging() == []


def test_adm_04_decided_transaction_is_not_hanging(store: Store, clock: ManualClock) -> None:
    """The next process writes its markers, and no reader waits for them."""
    decided(store, clock)
    clock.advance(DAY_MS)
    assert store.find_hanging() == []
    store.recover()


@pytest.mark.parametrize("wrong", [{"topic": "nothing"}, {"late": -1.0}, {"late": float("inf")}])
def test_find_hanging_refuses_invalid_arguments(store: Store, wrong: dict[str, Any]) -> None:
    with pytest.raises((InvalidConfigError, UnknownTopicOrPartitionError)):
        store.find_hanging(**wrong)
