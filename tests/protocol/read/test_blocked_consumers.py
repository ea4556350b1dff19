"""Consumers end expired transactions that hold back what they read; lag, and hanging transactions."""

from __future__ import annotations

import pytest

from tests.helpers.blocked import LATER_MS, TIMEOUT_MS, WAITING, hold_back, one, reader_of, store, warned
from tests.helpers.connections import connection_of
from tests.helpers.reading import T0, T1, another_process, append, begin, kinds, texts
from txnstore.store import Store
from txnstore.testing import ManualClock

__all__ = ["one", "store"]


# Consumers ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("group", [None, "g"])
def test_poll_that_finds_data_ends_an_expired_transaction_too(
    store: Store, clock: ManualClock, group: str | None
) -> None:
    """TMO-01: not only a poll that finds nothing; a busy partition does not hide the other one."""
    hold_back(store)
    consumer = another_process(store, clock).consumer(["t"], group)
    assert consumer.poll() == []
    clock.advance(LATER_MS)
    append(store, "busy", tp=T1)
    values = texts(consumer.poll(max_records=1_000)) + texts(consumer.poll(max_records=1_000))
    assert sorted(values) == sorted([*WAITING, "busy"])


def test_empty_poll_tells_what_it_waits_for(store: Store, clock: ManualClock) -> None:
    opened_at = clock()
    hold_back(store)
    append(store, "seen", tp=T1)
    consumer = another_process(store, clock).consumer(["t"])
    assert warned(consumer.poll) == [], "it has found something"
    assert [(part.tp, part.records) for part in consumer.blocked()] == [(T0, 40)]
    (warning,) = warned(consumer.poll)
    assert "40 committed records of t-0" in str(warning.message)
    assert warned(consumer.poll) == []
    (part,) = consumer.blocked()
    assert (part.transactional_id, part.since, part.expires_at) == ("dead", opened_at, opened_at + TIMEOUT_MS)
    assert (consumer.lag()[T0], consumer.end_offsets()[T0]) == (0, 0), "both end at the LSO"
    consumer.seek(T0, 11)
    consumer.poll()
    assert consumer.blocked()[0].records == 30, "those after its position"
    consumer.unsubscribe()
    consumer.assign([T1])
    assert consumer.blocked() == ()


def test_consumer_that_may_not_write_tells_who_does(store: Store, clock: ManualClock) -> None:
    hold_back(store)
    clock.advance(LATER_MS)
    consumer = reader_of(store, clock).consumer(["t"])
    (warning,) = warned(consumer.poll)
    assert "`txnstore recover`" in str(warning.message)
    assert consumer.poll() == []


def test_uncommitted_reader_waits_for_nothing(store: Store, clock: ManualClock) -> None:
    hold_back(store)
    consumer = another_process(store, clock).consumer(["t"], isolation="read_uncommitted")
    assert len(consumer.poll()) == 41
    assert warned(consumer.poll) == []
    assert consumer.blocked() == ()


def test_ends_are_those_without_expired_transactions(one: Store, clock: ManualClock) -> None:
    """A consumer that reads up to ``end_offsets`` reads the records that waited."""
    hold_back(one)
    consumer = another_process(one, clock).consumer(["t"])
    assert len(warned(consumer.end_offsets)) == 1
    clock.advance(LATER_MS)
    assert consumer.end_offsets()[T0] == 42, "41 records and the marker"


@pytest.mark.usefixtures("own_objects")
def test_poll_makes_one_request_more_for_an_expired_transaction(one: Store, clock: ManualClock) -> None:
    hold_back(one)
    reader = another_process(one, clock)
    consumer = reader.consumer(["t"])
    objects = connection_of(reader).counts
    objects.reset()
    consumer.poll()
    assert kinds(reader) == ["get"]
    clock.advance(LATER_MS)
    objects.reset()
    assert texts(consumer.poll()) == WAITING
    # The store's identity and the head after a pause; two slots, checked before a write; the abort; the segment.
    assert kinds(reader) == ["get", "get", "get", "get", "put_if_absent", "get"]


# Administration -------------------------------------------------------------------------------------------------------


def test_adm_04_expired_transaction_that_blocks_readers_hangs(store: Store, clock: ManualClock) -> None:
    """ADM-04, LSO-17: not only when it is long past its timeout; one that blocks no reader is not reported yet."""
    hold_back(store)
    begin(store, "alone", "undecided", tp=T1)
    clock.advance(TIMEOUT_MS)
    assert store.find_hanging() == []
    clock.advance(1)
    (hanging,) = store.find_hanging()
    assert (hanging.tp, hanging.transactional_id, hanging.reason) == (T0, "dead", "expired")
    clock.advance(300_000)
    assert [item.reason for item in store.find_hanging()] == ["late", "late"]


def test_lso_13_group_shows_lag_to_the_lso_and_what_waits_after_it(store: Store, clock: ManualClock) -> None:
    append(store, "read", "unread")
    hold_back(store)
    store.consumer(["t"], "g").commit({T0: 1, T1: 0})
    first, second = store.group("g").positions
    assert (first.offset, first.end, first.lag, first.high_watermark) == (1, 2, 1, 43)
    assert first.blocked is not None
    assert (first.blocked.records, first.blocked.transactional_id) == (40, "dead")
    assert second.blocked is None
