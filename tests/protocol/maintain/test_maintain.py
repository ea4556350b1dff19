"""What a process that maintains a store does, and what it costs, alone and beside others."""

from __future__ import annotations

import itertools
import logging
import shutil
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

import txnstore
from tests.helpers.compaction import DAY_MS, HOUR_MS, begin, new_store, reopen, runtime, values
from tests.helpers.connections import connection_of
from tests.helpers.shell import ONE_CHAIN
from tests.helpers.shop import BOB, Shop, allow
from tests.helpers.tables import EngineObjects
from txnstore.chain.keys import table_hint
from txnstore.chain.maintained import read_maintained
from txnstore.compactor import MaintenanceRound
from txnstore.compactor.compact.lease import DURATION_MS
from txnstore.compactor.maintain import maintenance
from txnstore.core.authorization.model import CLUSTER
from txnstore.core.model import TopicPartition
from txnstore.errors import (
    AuthorizationError,
    CorruptionError,
    InvalidConfigError,
    ReadOnlyError,
    StorageError,
    StorageReplacedError,
    StoreNotFoundError,
)
from txnstore.metrics import MAINTENANCE_KINDS
from txnstore.storage.memory import MemoryStore
from txnstore.store import Store, open_on
from txnstore.testing import Fault, FaultStore, ManualClock, SimulatedCrash, crash_at, on


@pytest.fixture
def faults(clock: ManualClock) -> FaultStore:
    return FaultStore(EngineObjects(clock), sleep=clock.sleep)


@pytest.fixture
def store(clock: ManualClock, faults: FaultStore, chains: int) -> Store:
    store = new_store(clock, faults, chains=chains)
    store.create_topic("t", partitions=2, config={"retention.ms": HOUR_MS})
    store.create_topic("k", config={"cleanup.policy": "compact"})
    return store


def kinds_of(round_: MaintenanceRound) -> list[str]:
    return [result.kind for result in round_.results]


def send(store: Store, clock: ManualClock, count: int = 3, topic: str = "t") -> None:
    with store.producer() as producer:
        for number in range(count):
            producer.send(topic, b"%d" % number, key=b"k", partition=0, timestamp=clock())
            producer.flush()


def later(rounds: Iterator[MaintenanceRound], clock: ManualClock, ms: int) -> list[MaintenanceRound]:
    """The rounds that end until so many ms have passed."""
    limit = clock() + ms
    return list(itertools.takewhile(lambda _: clock() < limit, rounds))


def test_each_round_does_what_is_due(store: Store, clock: ManualClock) -> None:
    store.tables.enable("t")
    send(store, clock)
    send(store, clock, topic="k")
    held = begin(store, [b"x"], topic="k")
    rounds = iter(store.maintain())
    assert kinds_of(next(rounds)) == ["compact", "tables"]
    assert set(kinds_of(next(rounds))) <= {"tables"}  # Where the tables are published, entries may follow.
    clock.advance(65_000)
    assert "recover" in kinds_of(next(rounds))
    clock.advance(HOUR_MS)
    assert "retain" in kinds_of(next(rounds))
    clock.advance(DAY_MS)
    assert {"expire", "vacuum"} <= set(kinds_of(next(rounds)))
    held.close()
    assert values(store) == []


def test_retention_is_met_within_a_round_and_nothing_expires_early(store: Store, clock: ManualClock) -> None:
    """Small commits of an eighth of the retention are merged, and go together."""
    tp, round_ms, sent = TopicPartition("t", 0), 300_000, list[int]()
    rounds = iter(store.maintain(["retain"], every={"retain": round_ms / 1000}))
    while not sent or store.offsets(*tp).log_start < len(sent):
        assert not next(rounds).errors
        log_start = store.offsets(*tp).log_start
        assert all(clock() - at > HOUR_MS for at in sent[:log_start])
        assert all(clock() - at <= HOUR_MS * 9 / 8 + round_ms for at in sent[log_start:])
        if len(sent) < 100:
            for _ in range(10):
                sent.append(clock())
                send(store, clock, 1)
                clock.advance(1_000)
    assert clock() < sent[-1] + HOUR_MS * 9 / 8 + 2 * round_ms


@ONE_CHAIN
def test_an_idle_hour_costs_what_the_page_says(store: Store, clock: ManualClock) -> None:
    """docs/howto/sizing.md: four GETs each 30 seconds, and little else."""
    send(store, clock)
    counts, maintained = connection_of(store).counts, store.maintain()
    rounds = iter(maintained)
    later(rounds, clock, 2 * HOUR_MS)
    before, spent = counts.snapshot(), maintained.counts.requests
    hour = later(rounds, clock, HOUR_MS)
    cost = counts.snapshot() - before
    assert all(round_.idle for round_ in hour)
    assert cost.get <= 520
    assert cost.now_ms <= 30
    assert cost.puts <= 4
    assert cost.list == cost.delete == 0
    assert cost.requests == maintained.counts.requests - spent


@ONE_CHAIN
def test_the_budget_is_kept(store: Store, clock: ManualClock) -> None:
    send(store, clock)
    counts = connection_of(store).counts
    rounds = iter(store.maintain(budget=100))
    later(rounds, clock, 3 * HOUR_MS)
    before = counts.snapshot()
    later(rounds, clock, 10 * HOUR_MS)
    assert 500 <= (counts.snapshot() - before).requests <= 1_100


@ONE_CHAIN
def test_a_budget_below_the_cost_of_a_round_reaches_each_kind(store: Store, clock: ManualClock) -> None:
    """What is left is spent on a kind, not on the next look; and the kind that waits longest is first."""
    store.tables.enable("k")
    send(store, clock, 200)
    send(store, clock, topic="k")
    maintained = store.maintain(budget=50)
    later(iter(maintained), clock, DAY_MS)
    connection = connection_of(store)
    assert set(read_maintained(connection.objects, connection.keys)) == set(MAINTENANCE_KINDS)
    assert {"retain", "compact", "tables"} <= set(maintained.counts.done)
    assert values(store) == []


def test_retention_by_size_does_not_ask_for_the_time_of_records(store: Store, clock: ManualClock) -> None:
    store.create_topic("b", config={"retention.bytes": 0})
    with store.producer() as producer:
        producer.send("b", b"x", timestamp=clock() + 30 * DAY_MS)
    assert kinds_of(next(iter(store.maintain(["retain"])))) == ["retain"]
    assert values(store, "b") == []


def test_names_of_tables_are_looked_at_each_hour_without_an_entry(
    store: Store, faults: FaultStore, clock: ManualClock
) -> None:
    """docs/tables.md: what others have written, or deleted, is mended."""
    store.tables.enable("k")
    send(store, clock, topic="k")
    rounds = iter(store.maintain(["tables"]))
    later(rounds, clock, 60_000)
    faults.inner.delete([table_hint("k")])
    later(rounds, clock, HOUR_MS + 60_000)
    assert table_hint("k") in [item.key for item in faults.inner.list("tables/")]


def test_a_long_pause_is_no_problem_and_a_round_that_does_not_come_is(store: Store, clock: ManualClock) -> None:
    maintained = store.maintain(["vacuum"], every={"vacuum": 7 * DAY_MS / 1000})
    assert next(iter(maintained)).wait == pytest.approx(7 * DAY_MS / 1000, abs=1)
    clock.advance(7 * DAY_MS)
    assert maintained.problem() == ""
    clock.advance(2 * DAY_MS)
    assert "a round was due 28" in maintained.problem()


@pytest.mark.parametrize("is_single", [False, True])
def test_a_compaction_of_much_leaves_time_for_other_kinds(
    store: Store, clock: ManualClock, monkeypatch: pytest.MonkeyPatch, *, is_single: bool
) -> None:
    """A round takes on one partition more than the limit allows, and the next one follows at once; a single one all."""
    monkeypatch.setattr(maintenance, "_ROUND_BYTES", 1)
    topics = [f"k{number}" for number in range(3)]
    for topic in topics:
        store.create_topic(topic, config={"cleanup.policy": "compact"})
        send(store, clock, topic=topic)
    if is_single:
        (round_,) = store.maintain(["compact"], rounds=1)
        assert round_.results[0].counts["partitions"] == 3
        return
    rounds = iter(store.maintain(["compact", "retain"], every={"retain": 1}))
    found = [next(rounds) for _ in range(4)]
    assert [[result.counts["partitions"] for result in round_.results] for round_ in found] == [[1], [1], [1], []]
    assert [round_.wait for round_ in found[:2]] == [0, 0]
    assert min(round_.wait for round_ in found[2:]) > 0


# Errors ---------------------------------------------------------------------------------------------------------------


def test_a_failure_of_one_kind_stops_no_other_one(
    store: Store, faults: FaultStore, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    send(store, clock)
    store.tables.enable("k")
    clock.advance(2 * HOUR_MS)
    faults.plan = on(Fault.ERROR_BEFORE, "list", key_contains="topics/", times=None)
    maintained = store.maintain()
    rounds = iter(maintained)
    with caplog.at_level(logging.INFO):
        round_ = next(rounds)
    assert kinds_of(round_) == ["retain", "tables", "vacuum"]
    assert [result.kind for result in round_.errors] == ["vacuum"]
    assert isinstance(round_.errors[0].error, StorageError)
    assert [
        (record.msg, getattr(record, "kind", "")) for record in caplog.records if record.levelno > logging.INFO
    ] == [("maintenance failed: %s", "vacuum")]
    assert [record.__dict__["failed"] for record in caplog.records if record.msg == "round of maintenance"] == [1]
    assert (maintained.counts.failures, maintained.counts.rounds) == (Counter(vacuum=1), 1)
    assert "vacuum" not in read_maintained(faults, connection_of(store).keys)
    faults.plan = lambda *_: None
    assert not any(round_.errors for round_ in later(rounds, clock, 60_000))
    assert "vacuum" in read_maintained(faults, connection_of(store).keys)


def test_a_storage_that_does_not_answer_is_an_error_of_the_round(
    store: Store, faults: FaultStore, clock: ManualClock
) -> None:
    faults.plan = on(Fault.ERROR_BEFORE, times=None)
    rounds = iter(store.maintain())
    round_ = next(rounds)
    assert kinds_of(round_) == ["state"]
    assert round_.wait == 30
    faults.plan = lambda *_: None
    assert not next(rounds).errors


def test_a_clock_that_fails_after_a_long_task_does_not_end_the_rounds(
    store: Store, faults: FaultStore, clock: ManualClock
) -> None:
    @contextmanager
    def activity(kind: str) -> Iterator[None]:
        yield
        if kind == "compact":
            clock.advance(2 * HOUR_MS)
            faults.plan = on(Fault.ERROR_BEFORE, "now_ms", times=None)

    maintained = store.maintain(["compact"])
    maintained.observe(activity)
    rounds = iter(maintained)
    assert not next(rounds).errors
    assert kinds_of(next(rounds)) == ["state"]
    faults.plan = lambda *_: None
    assert not next(rounds).errors


def test_damage_is_an_error_and_the_rest_runs(store: Store, faults: FaultStore, clock: ManualClock) -> None:
    store.alter_topic("k", config={"inline.bytes": 0, "segment.own.bytes": 0})
    send(store, clock, topic="k")
    send(store, clock)
    faults.inner.delete([item.key for item in faults.inner.list("topics/k/")])
    clock.advance(2 * HOUR_MS)
    round_ = next(iter(store.maintain()))
    assert [type(result.error) for result in round_.errors if result.kind == "compact"] == [CorruptionError]
    assert "vacuum" in [result.kind for result in round_.errors]  # It deletes nothing of a store that is not sound.
    assert values(store) == []


def test_a_store_that_is_deleted_ends_the_rounds(store: Store, faults: FaultStore, clock: ManualClock) -> None:
    rounds = iter(store.maintain())
    next(rounds)
    faults.inner.delete([item.key for item in faults.inner.list("")])
    clock.advance(60_000)
    with pytest.raises(StoreNotFoundError):
        list(rounds)
    assert not faults.inner.list("")


def test_a_folder_that_is_deleted_ends_the_rounds(tmp_path: Path) -> None:
    """A process of it would fail for ever otherwise, and no service manager would start it again."""
    with txnstore.create(tmp_path / "store") as store:
        shutil.rmtree(tmp_path / "store")
        with pytest.raises(StorageReplacedError):
            next(iter(store.maintain()))


def test_who_has_no_right_is_told_and_does_the_rest() -> None:
    shop = Shop()
    with shop.stack:
        shop.admin.create_topic("old", config={"retention.ms": 1_000})
        held = begin(shop.admin, [b"x"], topic="in")
        shop.clock.advance(HOUR_MS)
        bob = shop.as_(BOB)
        rounds = iter(bob.maintain())
        round_ = next(rounds)
        assert [result.kind for result in round_.results] == [*MAINTENANCE_KINDS]
        assert [result.kind for result in round_.errors] == [*MAINTENANCE_KINDS[1:]]
        assert all(isinstance(result.error, AuthorizationError) for result in round_.errors)
        assert round_.results[0].counts == {"aborted": 1}
        assert not any(round_.errors for round_ in later(rounds, shop.clock, HOUR_MS - 60_000))
        shop.admin.acls.create(allow(BOB, "CLUSTER_ACTION", "CLUSTER", CLUSTER))
        shop.clock.advance(HOUR_MS)
        assert not next(rounds).errors
        held.close()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"only": ["nonsense"]}, "there is no kind of maintenance 'nonsense': they are recover, retain"),
        ({"only": "retain"}, "only must be a list of names"),
        ({"only": []}, "only names no kind"),
        ({"every": {"nonsense": 5}}, "every: there is no kind of maintenance 'nonsense'"),
        ({"every": {"retain": 0}}, "every retain must be a number of seconds from 1 to"),
        ({"every": 5}, "every must be a mapping"),
        ({"budget": 0}, "budget must be"),
        ({"budget": -1}, "budget must be"),
        ({"rounds": 0}, "rounds must be"),
        ({"max_bytes": 0}, "max_bytes must be"),
        ({"memory_limit": 1}, "a clean needs at least"),
        (
            {"only": ["compact"], "every": {"tables": 5}},
            "every tables has no effect without tables, which is not among",
        ),
        ({"only": ["retain"], "max_bytes": 5}, "max_bytes has no effect without compact"),
        ({"only": ["retain"], "memory_limit": 1 << 30}, "memory_limit has no effect without compact"),
        ({"only": ["retain"], "past_hw": True}, "past_hw has no effect without compact"),
    ],
)
def test_wrong_arguments_are_refused_before_the_first_round(
    store: Store, arguments: dict[str, Any], message: str
) -> None:
    with pytest.raises(InvalidConfigError, match=message):
        store.maintain(**arguments)


def test_a_reader_maintains_nothing(store: Store, faults: FaultStore) -> None:
    with open_on(faults, read_only=True) as reader, pytest.raises(ReadOnlyError):
        reader.maintain()


# Several --------------------------------------------------------------------------------------------------------------


def test_two_that_begin_together_vacuum_once(store: Store, clock: ManualClock, faults: FaultStore) -> None:
    other = reopen(store, clock)
    ours, theirs = iter(store.maintain()), iter(other.maintain())
    for _ in range(4):
        next(ours)
        next(theirs)
    for _ in range(3):
        clock.advance(DAY_MS)
        for _ in range(4):
            assert not next(ours).errors
            assert not next(theirs).errors
    vacuums = [request for request in faults.requests if (request.operation, request.key) == ("list", "_probe/")]
    assert len(vacuums) == 1 + 3


def test_a_vacuum_that_another_process_does_now_is_left_to_it(store: Store, clock: ManualClock) -> None:
    """And if that one dies, the vacuum is done when its lease has ended."""
    other = reopen(store, clock)
    dead = FaultStore(connection_of(store).counts.inner, sleep=clock.sleep)
    dead.plan = on(Fault.CRASH_BEFORE, "list", key_contains="topics/")
    with open_on(dead, runtime=connection_of(other).runtime) as dying, pytest.raises(SimulatedCrash):
        next(iter(dying.maintain(["vacuum"])))
    rounds = iter(other.maintain(["vacuum"]))
    assert next(rounds).idle
    keys = connection_of(other).keys
    assert "vacuum" not in read_maintained(connection_of(other).objects, keys)
    later(rounds, clock, 2 * DURATION_MS + 300_000)
    assert "vacuum" in read_maintained(connection_of(other).objects, keys)


@pytest.mark.slow
def test_what_one_that_is_killed_leaves_another_one_does(clock: ManualClock, chains: int) -> None:
    """At any third request of its first round, which has all kinds to do; the other one is there already."""
    original = EngineObjects(clock)
    store = new_store(clock, original, chains=chains)
    store.create_topic("t", config={"retention.ms": HOUR_MS})
    store.create_topic("k", config={"cleanup.policy": "compact", "table.format": "iceberg"})
    send(store, clock)
    send(store, clock, topic="k")
    begin(store, [b"x"], topic="k").flush()
    clock.advance(2 * HOUR_MS)

    def copied() -> EngineObjects:
        bucket = EngineObjects(clock)
        for item in original.list(""):
            bucket.put(item.key, original.get(item.key))
        return bucket

    whole = FaultStore(copied(), sleep=clock.sleep)
    with open_on(whole, runtime=runtime(clock)) as undisturbed:
        opened = len(whole.requests)
        next(iter(undisturbed.maintain()))
    assert len(whole.requests) - opened > 30
    for number in range(1, len(whole.requests) - opened + 1, 3):
        bucket = copied()
        victim = FaultStore(bucket, sleep=clock.sleep)
        dying = open_on(victim, runtime=runtime(clock))
        with open_on(bucket, runtime=runtime(clock)) as other:
            assert not next(iter(other.maintain(["recover"]))).errors
            victim.plan = crash_at(len(victim.requests) + number, after=number % 2 == 0)
            with suppress(SimulatedCrash):
                next(iter(dying.maintain()))
            rounds = later(iter(other.maintain()), clock, 2 * DURATION_MS + 300_000)
            assert not any(round_.errors for round_ in rounds)
            assert not sum(result.counts.get("conflicts", 0) for round_ in rounds for result in round_.results)
            assert values(other) == []
            assert len(values(other, "k")) == 1
            assert other.tables.check(deep=True).problems == ()
            assert set(read_maintained(bucket, connection_of(other).keys)) == set(MAINTENANCE_KINDS)


def test_maintainers_and_writers_do_not_hinder_each_other(store: Store, clock: ManualClock) -> None:
    """Two processes maintain, one of which dies again and again; a third one writes: no work is done twice."""
    before = connection_of(store).chain.metrics
    ours, theirs = (
        iter(store.maintain(every={"compact": 30})),
        iter(reopen(store, clock).maintain(every={"compact": 30})),
    )
    conflicts, merged = 0, 0
    writer = reopen(store, clock)
    for number in range(12):
        send(writer, clock, 2, "k")
        clock.advance(30_000)
        if number % 4 == 3:
            theirs = iter(reopen(store, clock).maintain(every={"compact": 30}))
        for round_ in (next(ours), next(theirs)):
            assert not round_.errors
            conflicts += sum(result.counts.get("conflicts", 0) for result in round_.results)
            merged += sum(result.kind == "compact" for result in round_.results)
    assert merged >= 6
    assert conflicts == 0
    assert before.conflicts == 0
    assert len(values(store, "k")) <= 4


def test_the_record_of_others_counts_and_a_damaged_one_does_not(
    store: Store, clock: ManualClock, faults: FaultStore
) -> None:
    keys = connection_of(store).keys
    next(iter(store.maintain()))
    clock.advance(HOUR_MS)
    done = read_maintained(faults, keys)
    assert set(done) == set(MAINTENANCE_KINDS)
    next(iter(reopen(store, clock).maintain(["vacuum"])))
    assert read_maintained(faults, keys) == done
    faults.put(keys.maintenance, b"damaged")
    assert read_maintained(faults, keys) == {}
    clock.advance(HOUR_MS)
    next(iter(store.maintain()))
    assert read_maintained(faults, keys)["vacuum"] > done["vacuum"]


def test_a_time_of_the_future_counts_for_nothing(store: Store, clock: ManualClock, faults: FaultStore) -> None:
    """The storage's clock was set back."""
    keys = connection_of(store).keys
    clock.advance(DAY_MS)
    next(iter(store.maintain()))
    clock.advance(-DAY_MS)
    next(iter(reopen(store, clock).maintain()))
    assert read_maintained(faults, keys) == pytest.approx(dict.fromkeys(MAINTENANCE_KINDS, clock()), abs=1_000)


# In the background ----------------------------------------------------------------------------------------------------


def test_a_block_is_maintained_in_the_background(objects: MemoryStore) -> None:
    from txnstore.store import create_on

    with create_on(objects) as store:
        store.create_topic("t", config={"retention.ms": 1})
        with store.producer() as producer:
            producer.send("t", b"x", timestamp=1).result()
        ended: list[MaintenanceRound] = []
        maintenance = store.maintain()
        maintenance.observe(on_round=ended.append)
        with maintenance:
            assert maintenance.problem() == ""
            while not ended:
                maintenance.wait(0.01)
        assert maintenance.stop(30)
        assert "retain" in kinds_of(ended[0])
        assert store.scan("t").to_table().num_rows == 0
        assert maintenance.error is None


class SlowStore(MemoryStore):
    """Each read takes 20 ms."""

    def get(self, key: str, start: int | None = None, end: int | None = None) -> bytes:
        assert isinstance(self._clock, ManualClock)
        self._clock.advance(20)
        return super().get(key, start, end)


def test_kinds_that_are_looked_at_as_often_share_a_look(clock: ManualClock) -> None:
    """Also if each takes its time."""
    store = new_store(clock, SlowStore(clock=clock))
    store.create_topic("t", config={"retention.ms": 1, "table.format": "none"})
    rounds = iter(store.maintain())
    for _ in range(3):
        next(rounds)
        send(store, clock)
    assert len(later(rounds, clock, HOUR_MS)) <= 122
