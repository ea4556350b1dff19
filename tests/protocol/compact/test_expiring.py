"""Expirations in a store, of one chain and of several: by hand, and along with compaction and vacuum (RET-13)."""

from __future__ import annotations

from typing import Any

import pytest

from tests.helpers.chains import groups_of, ids_of, process, write_everywhere
from tests.helpers.connections import connection_of
from txnstore.consumer import Consumer
from txnstore.coordinator.expiration import ExpiryReport
from txnstore.core.groups.offsets import committed
from txnstore.core.invariants.check import check_view
from txnstore.core.model import TopicPartition
from txnstore.core.transactions.model import TxnState
from txnstore.errors import InvalidConfigError, InvalidPidMappingError, ReadOnlyError
from txnstore.storage.memory import MemoryStore
from txnstore.store import Store, open_on
from txnstore.testing import ManualClock

DAY_MS = 86_400_000
PARTITIONS = 6
T0 = TopicPartition("t", 0)


@pytest.fixture(params=[1, 3])
def store(request: pytest.FixtureRequest, clock: ManualClock) -> Store:
    """A topic whose partitions the chains share."""
    store = process(MemoryStore(clock=clock), clock, chains=request.param)
    store.create_topic("t", partitions=PARTITIONS)
    return store


def names(store: Store) -> tuple[str, str]:
    """A transactional id of the last chain, and a group of the first one."""
    return ids_of(store, len(connection_of(store).chains) - 1), groups_of(store, 0)


def transact(store: Store) -> None:
    """One transaction over all partitions, with an offset."""
    name, group = names(store)
    with store.producer(name) as producer:
        producer.begin_transaction()
        write_everywhere(producer, b"value")
        producer.send_offsets({T0: 1}, group)
        producer.commit_transaction()


def entries(store: Store) -> int:
    return connection_of(store).view().sequence


def test_ret_13_each_limit_applies_to_all_chains(store: Store, clock: ManualClock) -> None:
    """PST-06, TMO-07, OFF-16: producers after a day, ids and offsets after a week; then the chains know nothing."""
    transact(store)
    name, group = names(store)
    before = entries(store)
    assert store.expire() == ExpiryReport()
    assert entries(store) == before, "no entry if nothing expired"
    clock.advance(DAY_MS)
    fences = len(connection_of(store).chains) - 1  # Each chain but the producer's own has a fence.
    assert store.expire() == ExpiryReport(producers=PARTITIONS + fences)
    assert committed(connection_of(store).view(), group, T0) is not None
    clock.advance(6 * DAY_MS)
    assert store.expire() == ExpiryReport(transactional_ids=(name,), offsets=1, groups=(group,))
    view = connection_of(store).view()
    assert not any(log.producers for log in view.partitions.values())
    assert (len(view.transactions), len(view.transactional_ids), len(view.groups)) == (0, 0, 0)
    assert check_view(view) == []
    assert store.verify(deep=True).ok
    assert store.expire() == ExpiryReport()


@pytest.mark.parametrize("routine", ["expire", "vacuum"])
def test_end_08_decided_transaction_keeps_its_fences_until_it_is_completed(
    store: Store, clock: ManualClock, monkeypatch: pytest.MonkeyPatch, routine: str
) -> None:
    """END-08: its process dies after the markers; the completion a day later must not write them again."""
    completions = connection_of(store).coordinator.completions
    monkeypatch.setattr(completions, "finish_later", completions._write_markers)
    transact(store)
    before = connection_of(store).view()
    lacks_completion = len(connection_of(store).chains) > 1
    assert [txn.state is TxnState.PREPARE_COMMIT for _, txn in before.transactions.items()] == [lacks_completion]
    clock.advance(2 * DAY_MS)
    other = process(connection_of(store).objects, clock)
    getattr(other, routine)()
    assert len(other.recover().finished) == lacks_completion
    view = connection_of(other).view()
    assert {tp: log.high_watermark for tp, log in view.partitions.items()} == {
        tp: log.high_watermark for tp, log in before.partitions.items()
    }
    assert check_view(view) == []
    other.expire()
    assert not any(state.fences for state in connection_of(other).view().states), "a completed one keeps nothing"


def test_tmo_08_producer_of_expired_id_is_refused(store: Store, clock: ManualClock) -> None:
    """BUG-23, TST-05, TMO-08, D7: fatal for the old instance, in every chain; the new one has another producer id."""
    name, _ = names(store)
    producer = store.producer(name)
    clock.advance(7 * DAY_MS)
    store.expire()
    producer.begin_transaction()
    write_everywhere(producer, b"late")
    with pytest.raises(InvalidPidMappingError) as raised:
        producer.commit_transaction()
    assert raised.value.fatal
    successor = store.producer(name)
    assert (successor.epoch, successor.producer_id) == (0, producer.producer_id + 1)
    assert check_view(connection_of(store).view()) == []


def test_seq_08_idempotent_producer_continues_after_expiration(store: Store, clock: ManualClock) -> None:
    """SEQ-08: its sequences continue in partitions whose producer state has expired."""
    producer = store.producer()
    for _ in range(2):
        write_everywhere(producer, b"value")
        producer.flush()
        clock.advance(2 * DAY_MS)
        assert store.expire().producers == PARTITIONS
    producer.close()
    assert store.scan("t").to_table().num_rows == 2 * PARTITIONS


@pytest.mark.parametrize("routine", ["compact", "vacuum"])
def test_tmo_07_maintenance_calls_also_expire(store: Store, clock: ManualClock, routine: str) -> None:
    """TMO-07: compaction and vacuum also expire state; a dry run and ``expire=False`` leave all as it is."""
    transact(store)
    clock.advance(30 * DAY_MS)
    run = getattr(store, routine)
    run(dry_run=True)
    run(expire=False)
    assert len(connection_of(store).view().transactions) == 1
    run()
    view = connection_of(store).view()
    assert (len(view.transactions), len(view.groups)) == (0, 0)
    before = entries(store)
    run()
    assert entries(store) == before


def test_off_16_a_live_member_keeps_the_offsets(store: Store, clock: ManualClock) -> None:
    """OFF-16: a consumer that polls, however seldom something comes, finds its position."""
    _, group = names(store)
    transact(store)
    with Consumer(connection_of(store), ["t"], group, session_timeout=1_800.0) as consumer:
        clock.advance(8 * DAY_MS)
        consumer.poll()
        assert store.expire(offsets=60.0).offsets == 0
        assert committed(connection_of(store).view(), group, T0) is not None


def test_read_only_store_expires_nothing(store: Store) -> None:
    reader = open_on(connection_of(store).objects, read_only=True)
    with pytest.raises(ReadOnlyError):
        reader.expire()


@pytest.mark.parametrize("limits", [{"producer_ids": 43_200.0}, {"offsets": float("nan")}, {"transactional_ids": True}])
def test_pst_09_invalid_limits_are_refused(store: Store, limits: dict[str, Any]) -> None:
    """PST-09: below 12 hours a late batch would not meet the epoch that fences it."""
    with pytest.raises(InvalidConfigError):
        store.expire(**limits)
