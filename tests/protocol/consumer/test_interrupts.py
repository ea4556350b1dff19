"""A Ctrl-C anywhere in a consumer skips no record, returns none twice, and leaves the consumer usable."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest

from tests.helpers.interrupts import Interrupter, everywhere, places
from tests.helpers.reading import T0, T1, append, begin, commit, new_store, read_all, texts
from txnstore.consumer import Consumer
from txnstore.consumer.fetcher import PolledRows, Poller, fetch_ahead, take_rows
from txnstore.consumer.flow import Flow
from txnstore.consumer.group import ConsumerGroup
from txnstore.consumer.leases import MemberLease
from txnstore.consumer.membership import GroupMembership
from txnstore.consumer.subscription import AssignedPartition, Positions
from txnstore.core.model import TopicPartition
from txnstore.storage.memory import MemoryStore
from txnstore.store import Store
from txnstore.testing import ManualClock

READING = places(
    Consumer.poll, Consumer._poll, Poller.poll, Poller.all_or_nothing, Poller._take_rows, take_rows, fetch_ahead,
    PolledRows.records,
    Flow.plan, Flow.take, Flow._next_table, Flow._end_slice, Flow._pass_gap, Positions.update, Positions._locate,
)  # fmt: skip
SHARING = places(
    ConsumerGroup.follow, GroupMembership.follow, GroupMembership._join, GroupMembership._submit,
    GroupMembership._assign, GroupMembership._call_back, Positions.begin_sharing, Positions.share,
)  # fmt: skip


def full_store(clock: ManualClock) -> Store:
    """Two partitions of several segments, with gaps for markers and aborted records."""
    store = new_store(clock)
    store.create_topic("t", partitions=2)
    append(store, "a0", "a1", "a2")
    append(store, "b0", "b1", tp=T1)
    begin(store, "aborted", "x0", "x1").abort_transaction()
    commit(store, "a3", "a4")
    append(store, "b2", "b3", tp=T1)
    append(store, "a5")
    return store


VALUES = ["a0", "a1", "a2", "a3", "a4", "a5", "b0", "b1", "b2", "b3"]


@pytest.mark.slow
@pytest.mark.parametrize("polls", [0, 1, 2])
def test_poll_interrupted_anywhere_skips_no_record(clock: ManualClock, polls: int) -> None:
    """CON-18: the next poll returns what the interrupted one would have returned."""
    store = full_store(clock)

    def attempt(interrupter: Interrupter) -> bool:
        with store.consumer("t") as consumer:
            polled = [text for _ in range(polls) for text in texts(consumer.poll(max_records=2))]
            taken: list[str] = []
            interrupted = interrupter.run(lambda: taken.extend(texts(consumer.poll(max_records=3))))
            polled += taken + texts(read_all(consumer, max_records=2))
            assert sorted(polled) == VALUES
            return interrupted

    assert len(list(everywhere(READING | places(Flow.fetch_next) if polls == 0 else READING, attempt))) > 50


class Interrupted(MemoryStore):
    """Ctrl-C strikes while the second segment is read, so after the rows of the first one were taken."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__(clock=clock)
        self.reads: int | None = None

    def get(self, key: str, start: int | None = None, end: int | None = None) -> bytes:
        if self.reads is not None and key.startswith("topics/"):
            self.reads += 1
            if self.reads == 2:
                raise KeyboardInterrupt
        return super().get(key, start, end)


@pytest.mark.usefixtures("own_objects")
@pytest.mark.parametrize("then", [Consumer.poll, Consumer.commit, Consumer.close])
def test_second_interrupt_while_positions_are_restored_skips_no_record(
    clock: ManualClock, then: Callable[[Consumer], object]
) -> None:
    """CON-18: the next call continues with the restoration, be it a poll, a commit, or a close that commits."""
    objects = Interrupted(clock)
    store = new_store(clock, objects)
    store.create_topic("t", partitions=2)
    append(store, "a0", "a1")
    append(store, "b0", "b1", tp=T1)
    numbers = itertools.count()

    def attempt(interrupter: Interrupter) -> bool:
        group = f"g{next(numbers)}"
        consumer = store.consumer("t", group=group, enable_auto_commit=True)
        objects.reads = 0
        assert interrupter.run(consumer.poll)
        objects.reads = None
        if then is Consumer.poll:
            assert sorted(texts(read_all(consumer))) == ["a0", "a1", "b0", "b1"]
        else:
            then(consumer)
            with store.consumer(group=group) as other:
                assert not other.committed(T0)
                assert not other.committed(T1)
        consumer.close()
        return interrupter.struck

    restoring = places(Poller.all_or_nothing, Poller.restore, AssignedPartition.move, Flow.drop)
    assert len(list(everywhere(restoring, attempt))) > 10


@pytest.mark.slow
def test_lag_interrupted_anywhere_skips_no_record(clock: ManualClock) -> None:
    """A change of the topic makes it plan again."""

    def attempt(interrupter: Interrupter) -> bool:
        with full_store(clock) as store, store.consumer("t") as consumer:
            polled = texts(consumer.poll(max_records=2))
            store.alter_topic("t", config={"segment.bytes": "1000000"})
            interrupted = interrupter.run(consumer.lag)
            assert sorted(polled + texts(read_all(consumer))) == VALUES
            return interrupted

    assert len(list(everywhere(places(Consumer.lag, Flow.drop, Positions.locate), attempt))) > 10


@pytest.mark.slow
def test_first_poll_of_a_member_interrupted_anywhere_joins_once(clock: ManualClock) -> None:
    """The callback is called for each assignment that is read, and a position sought before is kept."""

    def attempt(interrupter: Interrupter) -> bool:
        with full_store(clock) as store:
            assigned: list[TopicPartition] = []
            with store.consumer("t", group="g", on_assigned=assigned.extend) as consumer:
                consumer.seek(T1, 2)
                taken: list[str] = []
                interrupted = interrupter.run(lambda: taken.extend(texts(consumer.poll())))
                taken += texts(read_all(consumer))
                assert sorted(taken) == [value for value in VALUES if value not in {"b0", "b1"}]
                assert assigned[-2:] == [T0, T1]
                assert len(store.group("g").members) == 1
            assert store.group("g").members == ()
            return interrupted

    assert len(list(everywhere(SHARING, attempt))) > 20


@pytest.mark.slow
def test_close_interrupted_anywhere_leaves_the_group(clock: ManualClock) -> None:
    def attempt(interrupter: Interrupter) -> bool:
        with full_store(clock) as store:
            consumer = store.consumer("t", group="g")
            consumer.poll()
            interrupted = interrupter.run(consumer.close)
            consumer.close()
            assert store.group("g").members == ()
            return interrupted

    closing: tuple[Callable[..., object], ...] = (
        Consumer.close,
        ConsumerGroup.close,
        GroupMembership.leave,
        MemberLease.leave,
    )
    assert len(list(everywhere(places(*closing), attempt))) > 5
