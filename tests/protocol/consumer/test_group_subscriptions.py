"""Members of a group: callbacks, positions before the first poll, and changed subscriptions."""

from __future__ import annotations

import pytest

from tests.helpers.members import PARTS, SESSION, _fill, _group, _member, _numbers, _settle
from tests.helpers.reading import another_process, new_store, texts
from txnstore.core.model import TopicPartition
from txnstore.errors import (
    UnknownMemberError,
)
from txnstore.store import Store
from txnstore.testing import ManualClock


@pytest.fixture
def store(clock: ManualClock) -> Store:
    store = new_store(clock)
    store.create_topic("t", partitions=4)
    return store


def test_offsets_can_be_committed_in_revocation_callback(store: Store, clock: ManualClock) -> None:
    """The callback comes before the partition can be read by others."""
    _fill(store, "a", "b")
    calls: list[tuple[str, list[int]]] = []

    def revoked(tps: list[TopicPartition]) -> None:
        calls.append(("revoked", [tp.partition for tp in tps]))
        first.commit()

    first = _member(store, on_revoked=revoked, on_assigned=lambda tps: calls.append(("assigned", [*map(_number, tps)])))
    assert len(first.poll()) == 8
    second = _member(another_process(store, clock))
    second.poll()
    first.poll()
    assert calls == [("assigned", [0, 1, 2, 3]), ("revoked", [2, 3])]
    assert second.poll() == [], "it begins behind what the first one has read"
    assert [second.position(tp) for tp in second.assignment()] == [2, 2]


def _number(tp: TopicPartition) -> int:
    return tp.partition


def test_error_in_callback_releases_no_partition(store: Store, clock: ManualClock) -> None:
    """The next poll asks again."""
    calls = []

    def revoked(tps: list[TopicPartition]) -> None:
        calls.append(tps)
        if len(calls) == 1:
            raise ZeroDivisionError

    first, second = _member(store, on_revoked=revoked), _member(another_process(store, clock))
    first.poll()
    second.poll()
    with pytest.raises(ZeroDivisionError):
        first.poll()
    assert _numbers(first) == [0, 1, 2, 3]
    assert _settle(second, first) == [[2, 3], [0, 1]]
    assert calls == [PARTS[2:], PARTS[2:]]


def test_automatic_commit_precedes_revocation(store: Store, clock: ManualClock) -> None:
    _fill(store, "a", "b")
    first = _member(store, enable_auto_commit=True)
    assert len(first.poll()) == 8
    second = _member(another_process(store, clock))
    _settle(second, first)
    assert [second.position(tp) for tp in second.assignment()] == [2, 2]


def test_automatic_commit_of_expired_member_raises_no_error(store: Store, clock: ManualClock) -> None:
    _fill(store, "a")
    slow, quick = _member(store, enable_auto_commit=True), _member(another_process(store, clock))
    _settle(slow, quick)
    clock.advance(SESSION + 1)
    quick.poll()
    slow.poll()
    slow.close()


def test_position_sought_before_first_poll_is_kept(store: Store) -> None:
    _fill(store, "a", "b", "c")
    consumer = _member(store)
    consumer.seek(PARTS[1], 2)
    assert [text for text in texts(consumer.poll()) if text.startswith("1")] == ["1.c"]


def test_position_read_before_first_poll_is_not_kept(store: Store, clock: ManualClock) -> None:
    """The owner of the partition at that time has committed since."""
    _fill(store, "a", "b", "c")
    consumer, owner = _member(store), _member(another_process(store, clock))
    assert consumer.position(PARTS[0]) == 0
    owner.poll()
    owner.commit()
    owner.close()
    assert consumer.poll() == []


def test_new_subscription_changes_membership(store: Store, clock: ManualClock) -> None:
    store.create_topic("u", partitions=2)
    first, second = _member(store), _member(another_process(store, clock))
    _settle(first, second)
    first.subscribe(["u"])
    assert _settle(first, second) == [[0, 1], [0, 1, 2, 3]]
    assert {tp.topic for tp in first.assignment()} == {"u"}
    assert len(_group(store).members) == 2


def test_assigning_by_hand_after_the_end_of_the_membership(store: Store, clock: ManualClock) -> None:
    """Without members any client can commit offsets."""
    first, second = _member(store), _member(another_process(store, clock))
    _settle(first, second)
    first.unsubscribe()
    first.assign(PARTS[:1])
    second.poll()
    assert _numbers(second) == [0, 1, 2, 3]
    with pytest.raises(UnknownMemberError, match="has members"):
        first.commit({PARTS[0]: 1})
    second.close()
    first.commit({PARTS[0]: 1})


def test_a_table_of_a_member_without_partitions_has_its_columns(store: Store, clock: ManualClock) -> None:
    first, second = _member(store), _member(another_process(store, clock))
    first.poll()
    assert second.poll_table().equals(store.scan("t").to_table())
    assert _numbers(second) == []


def test_partitions_that_were_assigned_by_hand_are_not_revoked(store: Store) -> None:
    """Only a group takes partitions away."""
    calls: list[object] = []
    consumer = store.consumer(group="g", on_revoked=calls.append)
    consumer.assign(PARTS[:2])
    consumer.poll()
    consumer.close()
    assert calls == []


def test_an_error_in_the_callback_of_an_assignment_repeats_it(store: Store) -> None:
    """With the next poll, which keeps the positions that the callback has set before it failed."""
    _fill(store, "a")
    calls: list[list[int]] = []

    def assigned(tps: list[TopicPartition]) -> None:
        calls.append([tp.partition for tp in tps])
        if len(calls) == 1:
            consumer.seek(PARTS[0], 1)
            raise ZeroDivisionError

    consumer = _member(store, on_assigned=assigned)
    with pytest.raises(ZeroDivisionError):
        consumer.poll()
    assert _numbers(consumer) == []
    assert {record.partition for record in consumer.poll()} == {1, 2, 3}
    assert calls == [[0, 1, 2, 3], [0, 1, 2, 3]]
    assert consumer.position(PARTS[0]) == 1
