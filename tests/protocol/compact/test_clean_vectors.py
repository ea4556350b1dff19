"""The vectors of Kafka's ``LogCleanerTest`` with transactions, crashes of a clean, and cleans beside others.

Offsets are Kafka's: a marker takes one. Markers are not in segments here, so Kafka's lists appear without them.
"""

from __future__ import annotations

import pytest

from tests.helpers.compaction import (
    T0,
    HookStore,
    abort,
    batches,
    commit,
    lose_leases,
    new_store,
    reopen,
    rows,
    runtime,
)
from tests.helpers.connections import connection_of
from tests.helpers.core import World
from txnstore.core.log.model import Batch, Partition
from txnstore.core.maintenance import ReplaceSegments
from txnstore.errors import CompactionConflictError
from txnstore.producer import Producer
from txnstore.storage.memory import MemoryStore
from txnstore.store import Store, open_on
from txnstore.testing import FaultStore, ManualClock, SimulatedCrash, crash_at, no_faults

COMPACT = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0"}


@pytest.fixture
def store(clock: ManualClock) -> Store:
    store = new_store(clock)
    store.create_topic("t", config=COMPACT)
    return store


def log(store: Store) -> Partition:
    return connection_of(store).view().partitions[T0]


def offsets(store: Store, isolation: str = "read_uncommitted") -> list[int]:
    return [row["_offset"] for row in rows(store, isolation=isolation)]  # type: ignore[arg-type]


def begin(producer: Producer, *keys: int) -> None:
    """A transaction with one batch of these keys."""
    producer.begin_transaction()
    append(producer, *keys)


def append(producer: Producer, *keys: int) -> None:
    """One batch more with these keys."""
    for key in keys:
        producer.send("t", b"%d" % key, key=b"%d" % key, partition=0)
    producer.flush()


@pytest.mark.parametrize("passes", range(1, 4))
def test_several_passes_with_interleaved_transactions(store: Store, passes: int) -> None:
    """CMP-09, CMP-16, TST-16: ``testMultiPassSegmentCleaningWithAbortedTransactions``, in one pass or more."""
    one, two = store.producer("p1"), store.producer("p2")
    begin(one, 1, 2)
    begin(two, 2, 3)
    append(one, 3, 4)
    if passes > 2:
        store.compact()
        assert offsets(store) == [0, 1, 2, 3, 4, 5]  # Nothing is decided.
    one.commit_transaction()
    two.commit_transaction()
    if passes > 1:
        store.compact()
        assert offsets(store) == [0, 2, 4, 5]
    begin(one, 2, 3)
    one.abort_transaction()
    begin(two, 4, 5)
    begin(one, 5, 6)
    one.commit_transaction()
    if passes > 2:
        store.compact()
        assert offsets(store, "read_committed") == [0, 2, 4, 5]
        assert offsets(store) == [0, 2, 4, 5, 11, 12, 13, 14]
    two.abort_transaction()
    begin(two, 6, 7)
    two.commit_transaction()
    assert log(store).high_watermark == 20
    store.compact()
    assert offsets(store) == offsets(store, "read_committed") == [0, 2, 4, 5, 13, 17, 18]
    assert (log(store).aborted, log(store).clean_until, log(store).high_watermark) == ((), 20, 20)
    assert store.verify(deep=True).ok


@pytest.mark.parametrize("commits", [True, False])
def test_transactions_over_several_segments_and_passes(store: Store, *, commits: bool) -> None:
    """CMP-14: ``testCommittedTransactionSpanningSegments``, ``testAbortedTransactionSpanningSegments``."""
    producer = store.producer("p")
    begin(producer, 1)
    store.compact()
    append(producer, 2)
    store.compact(force=True)
    if commits:
        producer.commit_transaction()
    else:
        producer.abort_transaction()
    before = offsets(store, "read_committed")
    store.compact()
    assert offsets(store) == offsets(store, "read_committed") == before == ([0, 1] if commits else [])
    assert log(store).high_watermark == 3


def test_the_sequences_of_producers_survive_a_clean_of_all_their_records() -> None:
    """CMP-07, CMP-10, CMP-11, CMP-12, CMP-13, CMP-15: they are in the state, so no empty batch has to stay for them.

    ``testLogCleanerRetainsProducerLastSequence``, ``testLogCleanerRetainsLastSequenceEvenIfTransactionAborted``,
    ``testEmptyBatchRemovalWithSequenceReuse``.
    """
    world = World()
    plain, aborting = world.client(), world.client("a")
    first, last = plain.send(2), plain.send(1)
    aborting.send(3)
    aborting.abort()
    aborting.send(1, sequence=0)
    before = world.log()
    removed = tuple(before.batches)[:-1]
    world.do(ReplaceSegments(T0, removed, (), clean_until=before.last_stable_offset))
    after = world.log()
    assert (after.producers, after.open_txns, after.high_watermark) == (
        before.producers,
        before.open_txns,
        before.high_watermark,
    )
    for appended, sequence in ((first, 0), (last, 2)):
        again = plain.send(2 if sequence == 0 else 1, sequence=sequence)
        assert (again.duplicate, again.base_offset) == (True, appended.base_offset)
    assert plain.send(1, sequence=3).base_offset == before.high_watermark


def test_a_clean_after_records_were_deleted_starts_at_the_log_start(store: Store) -> None:
    """CMP-21, CMP-25: the log start inside a cleaned segment; the checkpoint never counts what was deleted."""
    store.alter_topic("t", config={"cleanup.policy": "compact,delete"})
    for number in range(4):
        commit(store, [b"%d" % number] * 3)
    store.compact()
    assert offsets(store) == [12, 13, 14]
    commit(store, [b"x"])
    store.delete_records({T0: 14})
    store.compact(force=True)
    assert offsets(store) == [14, 16]
    assert log(store).first_dirty_offset == log(store).last_stable_offset == 18
    assert store.verify(deep=True).ok


def _filled(clock: ManualClock) -> MemoryStore:
    bucket = MemoryStore(clock=clock)
    store = new_store(clock, bucket)
    store.create_topic("t", config=COMPACT)
    for number in range(3):
        commit(store, [b"%d" % number] * 2)
    abort(store, [b"never"])
    return bucket


@pytest.mark.slow
@pytest.mark.usefixtures("own_objects")
@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_a_crash_at_any_request_leaves_the_old_or_the_new_segments(clock: ManualClock, *, after: bool) -> None:
    """CMP-21, CMP-22: the checkpoint moves with the segments, and the next clean finishes the work."""
    faults = FaultStore(_filled(clock), no_faults)
    whole = open_on(faults, runtime=runtime(clock))
    opening = len(faults.requests)
    whole.compact()
    crashes, states = 0, set()
    for number in range(1, len(faults.requests) - opening + 1):
        bucket = _filled(clock)
        faults = FaultStore(bucket, no_faults)
        victim = open_on(faults, runtime=runtime(clock))
        faults.plan = crash_at(len(faults.requests) + number, after=after)
        try:
            victim.compact()
        except SimulatedCrash:
            crashes += 1
        survivor = open_on(bucket, runtime=runtime(clock))
        state = (tuple(offsets(survivor)), log(survivor).clean_until)
        assert state in {((0, 1, 3, 4, 6, 7, 9), 0), ((6, 7), 11)}
        states.add(state)
        assert survivor.verify(deep=True).ok
        lose_leases(bucket)
        survivor.compact()
        assert (offsets(survivor), log(survivor).clean_until) == ([6, 7], 11)
    assert crashes > 5
    assert len(states) == 2, "only one request, the entry, changes what is there"


def test_of_two_cleans_of_the_same_log_one_has_no_effect(clock: ManualClock) -> None:
    """No record goes because of one that the other clean removed; the checkpoint is that of the winner."""
    bucket = HookStore(clock=clock)
    store = new_store(clock, bucket)
    store.create_topic("t", config=COMPACT)
    for number in range(3):
        commit(store, [b"%d" % number])
    before: list[list[Batch]] = []

    def other() -> None:
        rival = reopen(store, clock)
        lose_leases(bucket)
        rival.compact()
        commit(rival, [b"newer"])
        rival.compact()
        before.append(batches(rival))

    bucket.after_put = other
    report = store.compact()
    assert (report.conflicts, report.cleans, report.superseded) == (1, 0, 0)
    assert [batches(store)] == before
    assert [row["value"] for row in rows(store)] == [b"newer"]
    assert store.verify(deep=True).ok


def _keyed(producer: Producer, *records: tuple[bytes, bytes | None]) -> None:
    for key, value in records:
        producer.send("t", value, key=key, partition=0)
    producer.flush()


@pytest.mark.parametrize("past_hw", [False, True])
@pytest.mark.parametrize("commits", [False, True])
def test_both_ways_end_with_the_same_records(store: Store, *, past_hw: bool, commits: bool) -> None:
    """CMP-03, CMP-04, CMP-05, CMP-23: above the LSO decided records take part; open ones stay and supersede nothing."""
    plain, waiting, other = store.producer(), store.producer("w"), store.producer("o")
    _keyed(plain, (b"a", b"below"), (b"b", b"below"), (b"d", b"below"))
    waiting.begin_transaction()
    _keyed(waiting, (b"a", b"open"))
    _keyed(plain, (b"b", b"1"), (b"c", b"1"))
    _keyed(plain, (b"c", b"2"), (b"d", None))
    other.begin_transaction()
    _keyed(other, (b"c", b"never"))
    other.abort_transaction()
    _keyed(waiting, (b"c", b"open"))
    _keyed(plain, (b"c", b"3"), (b"a", b"3"))
    before = rows(store)
    report = store.compact(past_hw=past_hw)
    assert rows(store) == before
    assert log(store).clean_until == log(store).last_stable_offset == 3
    held = [(row["_offset"], row["value"]) for row in rows(store, isolation="read_uncommitted")]
    assert {value for _, value in held if value == b"open"} == {b"open"}
    if past_hw:
        # c@5 is superseded by c@6. An open record is between c@6 and c@11, so c@6 stays; and so does the tombstone.
        assert [offset for offset, _ in held] == [0, 1, 2, 3, 4, 6, 7, 10, 11, 12]
        assert (report.superseded, report.aborted) == (1, 1)
    else:
        assert [offset for offset, _ in held] == [0, 1, 2, 3, 4, 5, 6, 7, 8, 10, 11, 12]
    assert store.verify(deep=True).ok
    if commits:
        waiting.commit_transaction()
    else:
        waiting.abort_transaction()
    store.compact(past_hw=past_hw)
    assert [(row["_offset"], row["key"], row["value"]) for row in rows(store)] == [
        (4, b"b", b"1"),
        (7, b"d", None),
        (11, b"c", b"3"),
        (12, b"a", b"3"),
    ]
    assert [batch.delete_horizon is None for batch in batches(store)] == [False]
    assert store.verify(deep=True).ok


def test_a_second_clean_above_the_hw_finds_nothing(store: Store) -> None:
    plain, waiting = store.producer(), store.producer("w")
    waiting.begin_transaction()
    _keyed(waiting, (b"a", b"open"))
    _keyed(plain, (b"b", b"1"), (b"b", b"2"))
    assert store.compact(past_hw=True).superseded == 1
    sequence = connection_of(store).view().sequence
    assert store.compact(past_hw=True, force=True).partitions == ()
    assert connection_of(store).view().sequence == sequence


def test_tombstones_above_the_hw_wait(store: Store, clock: ManualClock) -> None:
    """CMP-04, CMP-08: a reader of committed records must see it first, and it has to remove what is below the LSO."""
    plain, waiting = store.producer(), store.producer("w", transaction_timeout=800)
    _keyed(plain, (b"a", b"1"))
    waiting.begin_transaction()
    _keyed(waiting, (b"b", b"open"))
    _keyed(plain, (b"a", b"2"), (b"a", None))
    for _ in range(2):
        store.compact(past_hw=True, force=True)
        clock.advance(60_000)
        assert [batch.delete_horizon for batch in batches(store)][-1] is None
    waiting.abort_transaction()
    store.compact()
    assert [(row["_offset"], row["value"]) for row in rows(store)] == [(3, None)]
    clock.advance(86_400_000)
    assert store.compact(force=True).tombstones == 1
    assert rows(store) == []


def test_what_belongs_to_an_open_transaction_is_never_replaced(store: Store) -> None:
    """CMP-03: whatever a compactor asks for."""
    plain, waiting = store.producer(), store.producer("w")
    _keyed(plain, (b"a", b"1"))
    waiting.begin_transaction()
    _keyed(waiting, (b"a", b"open"))
    _keyed(plain, (b"a", b"2"))
    first, held, last = batches(store)
    for removed in ((held,), (first, held), (held, last)):
        with pytest.raises(CompactionConflictError, match="above the last stable offset 1"):
            connection_of(store).submit(ReplaceSegments(T0, removed, (), clean_until=0, past_hw=True))
    with pytest.raises(CompactionConflictError, match="above the last stable offset 1"):
        connection_of(store).submit(ReplaceSegments(T0, (last,), (), clean_until=0))
    assert batches(store) == [first, held, last]
