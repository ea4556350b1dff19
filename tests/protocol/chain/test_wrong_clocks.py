"""Wrong clocks, far ahead or behind: nothing alive ends, nothing is deleted early, nothing stands still."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.harness.executors import InlineExecutor
from tests.helpers.chains import groups_of, ids_of, process, sound_store, value_counts
from tests.helpers.connections import connection_of
from txnstore.consumer import Consumer
from txnstore.core.groups.commands import JoinGroup
from txnstore.core.groups.offsets import committed
from txnstore.core.model import TopicPartition
from txnstore.core.routing import chain_of_group
from txnstore.core.transactions.commands import InitProducer
from txnstore.errors import GroupNotEmptyError, InvalidConfigError
from txnstore.runtime import Runtime
from txnstore.storage.memory import MemoryStore
from txnstore.store import Store, open_on
from txnstore.testing import ManualClock

MINUTE, HOUR, DAY = 60_000, 3_600_000, 86_400_000
YEAR = 365 * DAY
T0 = TopicPartition("t", 0)
PARTITIONS = 6


@pytest.fixture(params=[1, 3])
def store(request: pytest.FixtureRequest, clock: ManualClock) -> Iterator[Store]:
    yield from sound_store(clock, request.param, PARTITIONS)


def wrong(store: Store, clock: ManualClock, off: int) -> Store:
    """Another process, whose clock is off by so much; the storage's clock is right."""
    return process(connection_of(store).counts.inner, Skewed(clock, off))


class Skewed:
    """The clock of a machine that is wrong by a constant."""

    def __init__(self, clock: ManualClock, off: int) -> None:
        self._clock, self._off = clock, off

    def __call__(self) -> int:
        return self._clock() + self._off


def right(store: Store, clock: ManualClock) -> Store:
    """A process of its own with the right clock."""
    return process(connection_of(store).counts.inner, clock)


def touch_all(store: Store) -> None:
    """One entry in each chain."""
    for chain in connection_of(store).chains:
        chain.submit(InitProducer())


def polled(consumer: Consumer) -> int:
    """How many partitions it has after a poll."""
    consumer.poll(timeout=0)
    return len(consumer.assignment())


@pytest.mark.parametrize("off", [YEAR, 8 * DAY, -26 * HOUR], ids=["year-ahead", "8-days-ahead", "26-hours-behind"])
def test_group_leases_outlive_one_entry_of_a_wrong_clock(store: Store, clock: ManualClock, off: int) -> None:
    """A member that is alive stays; one that is dead goes when its session timeout has passed."""
    alive = right(store, clock).consumer(topics=["t"], group="g")
    assert polled(alive) == PARTITIONS
    touch_all(wrong(store, clock, off))
    other = right(store, clock).consumer(topics=["t"], group="g")
    polled(other)
    member = alive.group_metadata().member_id
    for _ in range(6):
        clock.advance(10_000)
        for each in (alive, other):
            polled(each)
    assert alive.group_metadata().member_id == member
    assert (polled(alive), polled(other)) == (PARTITIONS // 2, PARTITIONS // 2)
    for _ in range(6):  # ``alive`` polls no more.
        clock.advance(10_000)
        polled(other)
    assert polled(other) == PARTITIONS


@pytest.mark.parametrize("off", [YEAR, -26 * HOUR], ids=["year-ahead", "26-hours-behind"])
def test_a_consumer_with_a_wrong_clock_removes_no_live_member(store: Store, clock: ManualClock, off: int) -> None:
    alive = right(store, clock).consumer(topics=["t"], group="g")
    assert polled(alive) == PARTITIONS
    member = alive.group_metadata().member_id
    other = wrong(store, clock, off).consumer(topics=["t"], group="g")
    polled(other)
    with pytest.raises(GroupNotEmptyError):
        wrong(store, clock, off).delete_group("g")
    for _ in range(3):
        polled(alive)
        polled(other)
    assert alive.group_metadata().member_id == member
    assert (polled(alive), polled(other)) == (PARTITIONS // 2, PARTITIONS // 2)


@pytest.mark.parametrize("off", [YEAR, 8 * DAY, -26 * HOUR], ids=["year-ahead", "8-days-ahead", "26-hours-behind"])
def test_transaction_timeouts_outlive_one_entry_of_a_wrong_clock(store: Store, clock: ManualClock, off: int) -> None:
    """TMO-01: an open transaction is not aborted early, and not left open for a year."""
    name = ids_of(store, 0)
    producer = right(store, clock).producer(name)
    producer.begin_transaction()
    producer.send("t", b"open", partition=0)
    producer.flush()
    touch_all(wrong(store, clock, off))
    assert wrong(store, clock, off).recover().aborted == ()
    assert right(store, clock).recover().aborted == ()
    touch_all(right(store, clock))
    other = right(store, clock).producer("late")
    other.begin_transaction()
    other.send("t", b"late", partition=1)
    other.flush()
    clock.advance(MINUTE - 1)
    assert right(store, clock).recover().aborted == ()
    clock.advance(100)  # Times of entries may be some milliseconds ahead since.
    assert right(store, clock).recover().aborted == tuple(sorted((name, "late")))


@pytest.mark.parametrize("off", [YEAR, -26 * HOUR], ids=["year-ahead", "26-hours-behind"])
def test_a_reader_ends_what_it_has_watched_for_the_whole_timeout(store: Store, clock: ManualClock, off: int) -> None:
    """TMO-01: also without the storage's clock, which stands still here."""
    inner = connection_of(store).counts.inner
    touch_all(wrong(store, clock, off))
    producer = right(store, clock).producer("p")
    producer.begin_transaction()
    producer.send("t", b"open", partition=0)
    producer.flush()
    stopped = clock()
    inner._clock = lambda: stopped  # type: ignore[attr-defined]
    watching = right(store, clock)
    watching.recover()
    clock.advance(MINUTE)
    assert watching.recover().aborted == ()
    clock.advance(1)
    assert watching.recover().aborted == ("p",)


def test_a_clock_that_jumps_ends_nothing_that_was_seen_to_begin(store: Store, clock: ManualClock) -> None:
    """On a local folder the storage's clock is that of the machine: it jumps, too."""
    inner = connection_of(store).counts.inner
    ahead_ms = [0]
    inner._clock = lambda: clock() + ahead_ms[0]  # type: ignore[attr-defined]
    runtime = Runtime(inner._clock, lambda _: None, executor=InlineExecutor, monotonic=clock)  # type: ignore[attr-defined]
    watching = open_on(inner, runtime=runtime)
    watching.recover()
    clock.advance(1)
    producer = right(store, clock).producer("p")
    producer.begin_transaction()
    producer.send("t", b"open", partition=0)
    producer.flush()
    clock.advance(MINUTE // 2 - 1)
    watching.recover()
    ahead_ms[0] = YEAR
    assert watching.recover().aborted == ()
    clock.advance(MINUTE // 2)
    assert watching.recover().aborted == ()
    producer.commit_transaction()


def test_a_renewal_since_the_watched_one_keeps_the_member(store: Store, clock: ManualClock) -> None:
    """The command names what was watched; the chain refuses it if there was another renewal since."""
    command = JoinGroup("g", "a", (("t", PARTITIONS),))
    connection_of(store).submit(command)
    number = chain_of_group("g", len(connection_of(store).chains))
    chain = connection_of(store).chains[number]
    watched = (("a", chain.state.groups["g"].members["a"].seen_at),)
    clock.advance(1)
    connection_of(store).submit(command)
    chain.submit(JoinGroup("g", "b", (("t", PARTITIONS),), expired=watched))
    assert sorted(chain.state.groups["g"].members) == ["a", "b"]
    watched = (("a", chain.state.groups["g"].members["a"].seen_at),)
    chain.submit(JoinGroup("g", "c", (("t", PARTITIONS),), expired=watched))
    assert sorted(chain.state.groups["g"].members) == ["b", "c"]


def test_times_of_a_chain_tell_entries_apart_while_a_clock_is_behind(store: Store, clock: ManualClock) -> None:
    touch_all(wrong(store, clock, YEAR))
    later = right(store, clock)
    connection_of(later).view()
    times = []
    for _ in range(3):
        connection_of(later).chains[0].submit(InitProducer())
        times.append(connection_of(later).chains[0].state.timestamp)
    assert times == sorted(set(times))


@pytest.mark.parametrize("off", [8 * DAY, YEAR, -8 * DAY], ids=["8-days-ahead", "year-ahead", "8-days-behind"])
@pytest.mark.parametrize("affected", ["writer", "maintenance", "both"])
@pytest.mark.parametrize("call", [Store.compact, Store.expire, Store.vacuum], ids=["compact", "expire", "vacuum"])
def test_a_wrong_clock_expires_nothing_in_use(
    store: Store, clock: ManualClock, off: int, affected: str, call: Callable[[Store], object]
) -> None:
    """OFF-16, TMO-07, PST-06: offsets, transactional ids and producers that were used just now."""
    user = wrong(store, clock, off) if affected != "maintenance" else right(store, clock)
    name, group = ids_of(store, 0), groups_of(store, len(connection_of(store).chains) - 1)
    producer, plain = user.producer(name), user.producer()
    with producer.transaction() as txn:
        txn.send("t", b"1", partition=0)
        txn.send_offsets({T0: 7}, group)
    plain.send("t", b"2", partition=1)
    plain.flush()
    call(wrong(store, clock, off) if affected != "writer" else right(store, clock))
    touch_all(right(store, clock))
    call(right(store, clock))
    with producer.transaction() as txn:
        txn.send("t", b"3", partition=0)
    plain.send("t", b"4", partition=1)
    plain.flush()
    view = connection_of(right(store, clock)).view()
    value = committed(view, group, T0)
    assert value is not None
    assert value.offset == 7
    assert view.transactions[name].producer_id == producer.producer_id
    assert value_counts(right(store, clock)) == {b"%d" % number: 1 for number in range(1, 5)}


@pytest.mark.parametrize("off", [YEAR, -8 * DAY], ids=["year-ahead", "8-days-behind"])
def test_offsets_and_ids_expire_although_a_clock_was_wrong(store: Store, clock: ManualClock, off: int) -> None:
    """OFF-16, TMO-07: a week after their last use, by the storage's clock."""
    touch_all(wrong(store, clock, off))
    user = right(store, clock)
    name, group = ids_of(store, 0), groups_of(store, 0)
    with user.producer(name).transaction() as txn:
        txn.send("t", b"1", partition=0)
        txn.send_offsets({T0: 7}, group)
    touch_all(right(store, clock))
    clock.advance(7 * DAY - 1)
    report = right(store, clock).expire()
    assert (report.transactional_ids, report.offsets) == ((), 0)
    clock.advance(1)
    report = right(store, clock).expire()
    assert (report.transactional_ids, report.offsets) == ((name,), 1)


@pytest.mark.parametrize("off", [YEAR, -26 * HOUR], ids=["year-ahead", "26-hours-behind"])
def test_a_vacuum_measures_the_grace_period_on_the_storage(store: Store, clock: ManualClock, off: int) -> None:
    """RET-09: segments that a compaction with a wrong clock has replaced stay for the grace period, and no longer."""
    for number in range(4):
        with store.producer("p").transaction() as txn:
            txn.send("t", b"%d" % number, partition=0)
    clock.advance(2 * DAY)
    scan = store.scan("t")
    assert wrong(store, clock, off).compact().merges > 0
    assert right(store, clock).vacuum(expire=False).deleted == ()
    clock.advance(DAY - 1)
    assert right(store, clock).vacuum(expire=False).deleted == ()
    assert scan.to_table().num_rows == 4
    touch_all(right(store, clock))
    clock.advance(1)
    assert len(right(store, clock).vacuum(expire=False).deleted) == 4


@pytest.mark.parametrize("written", [True, False], ids=["by-this-version", "in-an-entry"])
def test_a_time_after_the_year_9999_breaks_no_query(store: Store, clock: ManualClock, *, written: bool) -> None:
    """No database shows such a time; an entry of another writer may have it."""
    writer = wrong(store, clock, 10**18)
    if not written:
        for chain in connection_of(writer).chains:
            chain.now = lambda: 10**18  # type: ignore[method-assign]
    with writer.producer("p").transaction() as txn:
        txn.send("t", b"1", partition=0, timestamp=5)
    touch_all(writer)
    reader = right(store, clock)
    assert len(reader.sql("SELECT * FROM t").fetchall()) == 1
    for view in ("snapshot", "batches", "producers", "transactions", "entries", "partitions"):
        reader.sql(f"SELECT * FROM txn.{view}").fetchall()
    reader.close()


def test_finished_background_work_is_not_kept(clock: ManualClock) -> None:
    store = process(MemoryStore(clock=clock), clock, chains=3)
    store.create_topic("t", partitions=PARTITIONS)
    for number in range(20):
        with store.producer(f"id-{number}").transaction() as txn:
            txn.send("t", b"1", partition=number % PARTITIONS)
    assert connection_of(store).coordinator.completions._work_by_id == {}


@pytest.mark.parametrize("off", [YEAR, 0, -8 * DAY], ids=["year-ahead", "right", "8-days-behind"])
def test_a_group_with_a_live_member_and_no_offsets_stays(store: Store, clock: ManualClock, off: int) -> None:
    """OFF-16: only a group without live members is deleted, also after a week without entries."""
    touch_all(wrong(store, clock, off))
    clock.advance(8 * DAY)
    reader = right(store, clock).consumer(topics=["t"], group="g")
    assert polled(reader) == PARTITIONS
    member = reader.group_metadata().member_id
    assert right(store, clock).expire().groups == ()
    assert polled(reader) == PARTITIONS
    assert reader.group_metadata().member_id == member


# Time travel ----------------------------------------------------------------------------------------------------------


def _committed(store: Store, value: bytes) -> None:
    with store.producer() as producer:
        producer.send("t", value, partition=0)


def _ages(store: Store) -> list[float]:
    """The ages of open transactions in the metrics, in seconds."""
    status = store.metrics(status=True).status
    assert status is not None
    return [item.age for item in status.transactions]


def test_a_time_that_a_fast_clock_has_left_out_is_refused(store: Store, clock: ManualClock) -> None:
    """One commit from a clock three days ahead: all later entries have its time, and a time finds none of them."""
    sound = connection_of(store).snapshot()
    clock.advance(HOUR)
    before = clock()
    clock.advance(HOUR)
    _committed(wrong(store, clock, 3 * DAY), b"fast")
    clock.advance(HOUR)
    _committed(store, b"sound")
    heads = connection_of(store).snapshot().heads
    clock.advance(HOUR)
    with pytest.raises(InvalidConfigError, match="the clock of a writer was ahead") as raised:
        store.snapshot(timestamp=clock() - MINUTE)
    assert f"By the clock of the storage the last entry was {heads if len(heads) > 1 else heads[0]}:" in str(
        raised.value
    )
    assert store.scan("t", snapshot=store.snapshot(entry=heads)).to_table().num_rows == 2
    assert store.snapshot(timestamp=before).heads == sound.heads
    clock.advance(4 * DAY)
    with pytest.raises(InvalidConfigError, match="the clock of a writer was ahead"):
        store.snapshot(timestamp=clock() - 3 * DAY)
    assert store.snapshot(timestamp=clock()).heads == heads


def test_a_time_is_found_though_clocks_differ_a_little(store: Store, clock: ManualClock) -> None:
    clock.advance(HOUR)
    _committed(wrong(store, clock, MINUTE), b"fast")
    clock.advance(HOUR)
    _committed(store, b"sound")
    assert store.scan("t", snapshot=store.snapshot(timestamp=clock() - MINUTE)).to_table().num_rows == 1


def test_doctor_names_entries_that_are_ahead_of_the_storage(store: Store, clock: ManualClock) -> None:
    producer = store.producer("open", 900.0)
    producer.begin_transaction()
    producer.send("t", b"open", partition=0)
    producer.flush()
    assert not [item for item in store.doctor().findings if item.name == "entry-times"]
    touch_all(wrong(store, clock, 3 * DAY))
    findings = [item for item in store.doctor().findings if item.name == "entry-times"]
    assert [item.severity.name for item in findings] == ["WARN"] * len(connection_of(store).chains)
    assert "3 d ahead of the storage" in findings[0].message
    (opened,) = [item for item in store.doctor().findings if item.section == "transactions"]
    assert "'open' is open since 0 s" in opened.message
    assert _ages(store) == [0]
    producer.abort_transaction()
    clock.advance(3 * DAY)
    assert not [item for item in store.doctor().findings if item.name == "entry-times"]


def test_a_transaction_that_began_at_a_fast_clock_has_no_negative_age(store: Store, clock: ManualClock) -> None:
    touch_all(wrong(store, clock, 3 * DAY))
    producer = store.producer("open", 900.0)
    producer.begin_transaction()
    producer.send("t", b"open", partition=0)
    producer.flush()
    assert _ages(store) == [0]
    producer.abort_transaction()


def test_an_expired_lease_stays_expired_however_often_it_is_read(store: Store, clock: ManualClock) -> None:
    """The storage is not asked again so soon; its answer counts on. Else a reset of offsets was refused forever."""
    consumer = right(store, clock).consumer(["t"], "g")
    consumer.poll()
    clock.advance(48_000)  # Its process was killed; the session timeout is 45 s.
    operator = right(store, clock)
    assert [operator.group("g").state for _ in range(4)] == ["Empty"] * 4
    clock.advance(1_000)
    assert operator.group("g").state == "Empty"
    operator.reset_offsets("g", {T0: 0})
    operator.delete_group("g")
