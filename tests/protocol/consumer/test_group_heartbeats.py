"""Heartbeats between polls, and consumers that do not poll (Kafka: ``HeartbeatThread``, ``max.poll.interval.ms``)."""

from __future__ import annotations

import gc
import logging
import random
from collections.abc import Callable

import pytest

from tests.harness.executors import InlineExecutor, never
from tests.helpers.connections import connection_of
from tests.helpers.core import World
from tests.helpers.groups import group, join
from tests.helpers.keys import FixedRuntime
from tests.helpers.members import PARTS, SESSION, _fill, _group, _member, _numbers, _settle
from tests.helpers.reading import another_process, kinds, read_all, texts
from tests.helpers.timers import Timers
from txnstore.consumer import Consumer
from txnstore.core.groups.commands import Heartbeat
from txnstore.core.view import View
from txnstore.errors import (
    FencedInstanceError,
    InvalidConfigError,
    StorageError,
    StorageRefusedError,
    UnknownMemberError,
)
from txnstore.storage.counting import CountingStore
from txnstore.storage.memory import MemoryStore
from txnstore.store import Store, create_on, open_on
from txnstore.testing import FaultStore, ManualClock
from txnstore.testing.faults import no_faults


class _Failing(MemoryStore):
    """Fails to create objects while it has an error to raise."""

    error: StorageError | None = None

    def put_if_absent(self, key: str, data: bytes) -> bool:
        if self.error is not None:
            raise self.error
        return super().put_if_absent(key, data)


class Bench:
    """A store of a process whose timers a test rings."""

    def __init__(self, clock: ManualClock) -> None:
        self.clock, self.timers = clock, Timers(clock)
        self.objects = _Failing(clock=clock)
        self.faults = FaultStore(self.objects, no_faults)
        self.store: Store = create_on(CountingStore(self.faults, log=True), runtime=self.runtime(1))
        self.store.create_topic("t", partitions=4)

    def runtime(self, seed: int) -> FixedRuntime:
        clock, rng = self.clock, random.Random(seed)
        return FixedRuntime(clock, clock.sleep, rng, background=InlineExecutor, spawn=never, timer=self.timers.make)

    def other(self) -> Store:
        """Another process, whose members send heartbeats too."""
        return open_on(CountingStore(self.objects, log=True), runtime=self.runtime(2))

    def wait(self, seconds: int, other: Consumer) -> None:
        """Let the time pass while the other consumer polls."""
        for _ in range(seconds):
            self.timers.pass_time(1)
            other.poll()

    def puts(self, call: Callable[[], object]) -> int:
        """How many entries a call writes."""
        connection_of(self.store).counts.reset()
        call()
        return kinds(self.store).count("put_if_absent")


@pytest.fixture
def bench(clock: ManualClock) -> Bench:
    return Bench(clock)


# The lease ------------------------------------------------------------------------------------------------------------


def test_work_longer_than_the_session_timeout_keeps_the_membership(bench: Bench) -> None:
    """4 minutes between two polls: one entry each half of the session timeout, no rebalance."""
    _fill(bench.store, "a")
    consumer, other = _member(bench.store), _member(bench.other())
    consumer.poll()
    assert bench.puts(lambda: bench.timers.pass_time(240)) == 10
    _settle(other, consumer, other)
    generation = _group(bench.store).generation
    bench.wait(240, other)
    assert [_numbers(consumer), _numbers(other)] == [[0, 1], [2, 3]]
    consumer.commit()
    assert _group(bench.store).generation == generation


def test_consumer_that_polls_sends_no_heartbeat_more(bench: Bench) -> None:
    """The same requests as in a process without timers."""
    counts = []
    for store in (bench.store, another_process(bench.store, bench.clock)):
        consumer = _member(store)
        consumer.poll()
        connection_of(store).counts.reset()
        for _ in range(60):
            bench.timers.pass_time(5)
            consumer.poll()
        counts.append(sorted(kinds(store)))
        consumer.close()
    assert counts[0] == counts[1]
    assert counts[0].count("put_if_absent") == 20


def test_commits_replace_heartbeats(bench: Bench) -> None:
    """Those of the consumer between two polls; those in transactions, of which a poll learns in the chain."""
    consumer, producer = _member(bench.store), bench.store.producer("p")
    consumer.poll()
    for _ in range(12):
        assert bench.puts(lambda: bench.timers.pass_time(20)) == 0
        consumer.commit({PARTS[0]: 0})
    consumer.poll()
    for _ in range(12):
        assert bench.puts(lambda: bench.timers.pass_time(10)) == 0
        with producer.transaction() as txn:
            txn.send_offsets({PARTS[0]: 0}, consumer.group_metadata())
        assert bench.puts(consumer.poll) == 0
    assert _group(bench.store).generation == 1


def test_heartbeat_between_polls_releases_no_partition() -> None:
    """The application still works on what it was given; only its next poll gives partitions back."""
    world = World()
    first = join(world, "a")
    join(world, "b")
    world.do(Heartbeat("g", "a", None))
    assert [tp.partition for tp in group(world).members["a"].held] == [0, 1, 2, 3]
    first.beat()
    assert [tp.partition for tp in group(world).members["a"].held] == [0, 1]


def test_heartbeat_of_a_busy_member_keeps_the_partitions_that_others_wait_for(bench: Bench) -> None:
    consumer, other = _member(bench.store), _member(bench.other())
    consumer.poll()
    bench.wait(120, other)
    assert [_numbers(consumer), _numbers(other)] == [[0, 1, 2, 3], []]
    assert _settle(consumer, other) == [[0, 1], [2, 3]]


def test_heartbeat_that_fails_is_repeated_before_the_lease_ends(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    consumer = _member(bench.store)
    consumer.poll()
    renewed = _group(bench.store).members[consumer.group_metadata().member_id].seen_at
    bench.objects.error = StorageError("unreachable")
    bench.timers.pass_time(25)
    assert "heartbeat of group g failed: unreachable" in caplog.text
    bench.objects.error = None
    bench.timers.pass_time(10)
    seen_at = _group(bench.store).members[consumer.group_metadata().member_id].seen_at
    assert seen_at - renewed < SESSION
    consumer.poll()


def test_next_poll_raises_a_failure_that_no_repetition_cures(bench: Bench) -> None:
    """Once; after the cause is removed the consumer continues."""
    consumer = _member(bench.store)
    consumer.poll()
    bench.objects.error = StorageRefusedError("no permission")
    bench.timers.pass_time(30)
    bench.objects.error = None
    with pytest.raises(StorageRefusedError):
        consumer.poll()
    consumer.poll()
    assert bench.puts(lambda: bench.timers.pass_time(60)) > 0
    consumer.poll()
    assert _numbers(consumer) == [0, 1, 2, 3]


def test_fenced_static_member_finds_out_with_its_next_poll(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    """Its heartbeats end, and do not disturb the new holder of the name."""
    old = _member(bench.store, group_instance_id="one")
    old.poll()
    new = _member(bench.other(), group_instance_id="one")
    new.poll()
    bench.timers.pass_time(30)
    assert bench.puts(lambda: bench.timers.pass_time(60)) == 0
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]
    with pytest.raises(FencedInstanceError):
        old.poll()
    new.poll()
    assert _numbers(new) == [0, 1, 2, 3]


# The poll interval ----------------------------------------------------------------------------------------------------


def test_consumer_that_does_not_poll_leaves_after_the_interval(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    """Its commit is refused, with the reason; its next poll joins again, and continues at the committed offsets."""
    lost: list[int] = []
    slow = _member(bench.store, on_revoked=lambda tps: lost.extend(tp.partition for tp in tps))
    other = _member(bench.other())
    _settle(slow, other)
    lost.clear()
    _fill(bench.store, "a")
    assert texts(slow.poll()) == ["0.a", "1.a"]
    bench.wait(299, other)
    assert len(_group(bench.store).members) == 2
    bench.wait(3, other)
    assert len(_group(bench.store).members) == 1
    assert "did not poll for 300 s (max_poll_interval)" in caplog.text
    assert bench.puts(lambda: bench.timers.pass_time(120)) == 0, "it has left"
    other.poll()
    assert _numbers(other) == [0, 1, 2, 3]
    for _ in range(2):
        with pytest.raises(UnknownMemberError, match=r"did not poll for 300 s \(max_poll_interval\)"):
            slow.commit()
    assert lost == []
    slow.poll()
    assert lost == [0, 1]
    assert sorted(_settle(slow, other)) == [[0, 1], [2, 3]]
    slow.commit()


def test_static_member_that_does_not_poll_stays_until_its_lease_ends(bench: Bench) -> None:
    """KIP-345, as in Kafka: it does not leave; its heartbeats end."""
    slow, other = _member(bench.store, group_instance_id="one"), _member(bench.other())
    _settle(slow, other)
    slow.poll()
    bench.wait(302, other)
    assert bench.puts(lambda: bench.wait(20, other)) == 0
    assert len(_group(bench.store).members) == 2
    bench.wait(60, other)
    assert _numbers(other) == [0, 1, 2, 3]
    with pytest.raises(UnknownMemberError, match="max_poll_interval"):
        slow.commit({PARTS[0]: 0})
    slow.poll()
    assert sorted(_settle(slow, other)) == [[0, 1], [2, 3]]


def test_auto_commit_of_the_poll_after_the_interval_names_it(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    """That poll commits before it joins again: the warning that it is refused has the reason."""
    _fill(bench.store, "a")
    slow = _member(bench.store, enable_auto_commit=True, auto_commit_interval=1.0)
    assert slow.poll()
    bench.timers.pass_time(302)
    caplog.clear()
    assert slow.poll(), "it joins again, at the committed offsets"
    (refused,) = [item.getMessage() for item in caplog.records if item.getMessage().startswith("not committed")]
    assert "did not poll for 300 s (max_poll_interval)" in refused


def test_heartbeats_begin_again_with_a_poll_after_the_interval(bench: Bench) -> None:
    """Also if the lease was renewed just before the interval was over, so that no poll would have to renew it yet."""
    slow, other = _member(bench.store, group_instance_id="one"), _member(bench.other())
    _settle(slow, other)
    slow.poll()
    bench.wait(302, other)
    slow.poll()
    bench.wait(299, other)
    slow.commit({PARTS[0]: 0})
    assert [_numbers(slow), _numbers(other)] == [[0, 1], [2, 3]]


def test_heartbeats_begin_again_after_a_leave_that_failed(bench: Bench) -> None:
    consumer = _member(bench.store, max_poll_interval=30.0)
    consumer.poll()
    bench.timers.pass_time(29)
    bench.objects.error = StorageRefusedError("no permission")
    bench.timers.pass_time(3)
    bench.objects.error = None
    with pytest.raises(StorageRefusedError):
        consumer.poll()
    consumer.poll()
    assert bench.puts(lambda: bench.timers.pass_time(29)) > 0


def test_interval_shorter_than_the_session_timeout(bench: Bench) -> None:
    consumer = _member(bench.store, max_poll_interval=5.0)
    consumer.poll()
    for _ in range(10):
        bench.timers.pass_time(4)
        consumer.poll()
    assert len(_group(bench.store).members) == 1
    bench.timers.pass_time(11)
    assert not _group(bench.store).members


def test_long_poll_is_no_silence(bench: Bench) -> None:
    """A poll that waits for records for longer than the interval keeps the membership."""
    object.__setattr__(connection_of(bench.store).runtime, "sleep", bench.timers.pass_time)
    consumer = _member(bench.store, poll_interval=1.0, max_poll_interval=30.0)
    consumer.poll(timeout=400.0)
    assert len(_group(bench.store).members) == 1
    assert _group(bench.store).generation == 1


def test_each_record_of_an_iteration_counts_as_a_poll(bench: Bench) -> None:
    _fill(bench.store, *"abcdefgh", parts=PARTS[:1])
    consumer = _member(bench.store, consumer_timeout=0)
    for _ in consumer:
        bench.timers.pass_time(100)
    consumer.commit()
    assert _group(bench.store).generation == 1


@pytest.mark.parametrize("interval", [0, -1.0, "300", None])
def test_interval_is_checked(bench: Bench, interval: object) -> None:
    with pytest.raises(InvalidConfigError, match="max_poll_interval"):
        _member(bench.store, max_poll_interval=interval)


# The end --------------------------------------------------------------------------------------------------------------


def test_closed_consumer_sends_no_heartbeat(bench: Bench) -> None:
    """Of a static member too, which stays in the group."""
    for name in (None, "one"):
        consumer = _member(bench.store, group_instance_id=name)
        consumer.poll()
        consumer.close()
        assert bench.puts(lambda: bench.timers.pass_time(400)) == 0
    assert all(timer.stopped for timer in bench.timers.made)


def test_heartbeat_does_not_open_a_closed_store(bench: Bench) -> None:
    """An application that uses the consumer again connects again, and its heartbeats continue."""
    consumer = _member(bench.store)
    consumer.poll()
    bench.store.close()
    requests = len(bench.faults.requests)
    bench.timers.pass_time(30)
    assert len(bench.faults.requests) == requests
    consumer.poll()
    assert _numbers(consumer) == [0, 1, 2, 3]
    assert bench.puts(lambda: bench.timers.pass_time(60)) > 0


def test_heartbeat_to_a_store_that_closes_meanwhile_is_not_sent(bench: Bench) -> None:
    """The connection is closed between the look of the timer and its command."""
    consumer = _member(bench.store)
    consumer.poll()
    connection = connection_of(bench.store)
    view_if_open = connection.view_if_open

    def close_after() -> View | None:
        view = view_if_open()
        bench.store.close()
        return view

    object.__setattr__(connection, "view_if_open", close_after)
    requests = len(bench.faults.requests)
    bench.timers.pass_time(30)
    assert len(bench.faults.requests) == requests


def test_consumer_without_membership_has_no_timer(bench: Bench) -> None:
    alone, assigned = bench.store.consumer("t"), bench.store.consumer(group="g")
    assigned.assign(PARTS)
    assert (alone.poll(), assigned.poll(), bench.timers.made) == ([], [], [])


def test_collected_consumer_sends_no_heartbeat(bench: Bench) -> None:
    consumer = _member(bench.store)
    consumer.poll()
    del consumer
    gc.collect()
    assert bench.puts(lambda: bench.timers.pass_time(400)) == 0
    assert [timer.stopped for timer in bench.timers.made] == [True]


def test_thread_renews_the_lease_by_itself() -> None:
    """With the real clock and the real thread."""
    with create_on(MemoryStore()) as store:
        store.create_topic("t")
        with store.consumer(["t"], group="g", session_timeout=0.02) as consumer:
            consumer.poll()
            (first,) = _group(store).members.values()
            while (member := _group(store).members[first.member_id]).seen_at == first.seen_at:
                pass
            assert member.held == first.held
            _fill(store, "a", parts=PARTS[:1])
            assert texts(read_all(consumer)) == ["0.a"]
