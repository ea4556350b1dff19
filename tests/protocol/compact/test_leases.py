"""Leases of compactors: who compacts which partitions, and when a lease ends."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import closing

import pytest

from tests.harness.executors import InlineExecutor, never
from tests.helpers.connections import connection_of
from tests.helpers.keys import FixedRuntime
from tests.helpers.rounds import compact_rounds
from tests.helpers.shell import ONE_CHAIN, T0, T1, T2, another_process, new_store, rows
from tests.helpers.timers import Timers
from txnstore.chain.codec import encode
from txnstore.chain.keys import LEASES
from txnstore.compactor import CompactionReport
from txnstore.compactor.compact.lease import DURATION_MS, LeaseDocument
from txnstore.core.model import TopicPartition
from txnstore.errors import StorageError, StorageRefusedError
from txnstore.storage.memory import MemoryStore
from txnstore.store import Store, open_on
from txnstore.testing import Fault, FaultStore, ManualClock
from txnstore.testing.faults import no_faults, on

LEASE = "leases/"


@pytest.fixture
def faults(clock: ManualClock) -> FaultStore:
    return FaultStore(MemoryStore(clock=clock))


@pytest.fixture
def worker(store: Store, faults: FaultStore) -> Iterator[tuple[Store, FaultStore]]:
    """A compactor in another process, with its own requests: others act while one of them waits."""
    own = FaultStore(faults.inner, no_faults)
    with another_process(store, own) as process:
        yield process, own


@pytest.fixture
def store(faults: FaultStore, clock: ManualClock, chains: int) -> Iterator[Store]:
    with new_store(faults, clock=clock, chains=chains) as made:
        yield made


def fill(store: Store, partitions: tuple[int, ...] = (0, 1, 2), segments: int = 3) -> None:
    with store.producer() as producer:
        for number in range(segments):
            for partition in partitions:
                producer.send("t", b"%d" % number, partition=partition)
            producer.flush()


def place(store: Store, *partitions: TopicPartition, number: int = 1, owner: str = "another") -> str:
    """The lease of another compactor; returns its key."""
    connection = connection_of(store)
    key = connection.keys.lease(number)
    document = LeaseDocument(owner=owner, duration_ms=DURATION_MS, partitions=[*partitions])
    connection.objects.put(key, encode(document))
    return key


def leases(store: Store) -> list[str]:
    return [item.key for item in connection_of(store).objects.list(LEASES)]


def compacted(report: CompactionReport) -> list[TopicPartition]:
    return [item.tp for item in report.partitions]


def while_it_works(faults: FaultStore, act: Callable[[], None]) -> None:
    """Call ``act`` before the next entry: its lease is taken, its work is done, nothing is replaced."""

    def plan(_: int, operation: str, key: str) -> None:
        if operation == "put_if_absent" and "/entries/" in key:
            faults.plan = no_faults
            act()

    faults.plan = plan


def test_of_two_compactions_at_the_same_time_each_partition_is_compacted_by_one(
    store: Store, worker: tuple[Store, FaultStore]
) -> None:
    """Two cron jobs: the second one has nothing left to do, says so, and reads no segment."""
    fill(store)
    before, others = rows(store), list[CompactionReport]()
    since = connection_of(store).counts.snapshot()
    while_it_works(worker[1], lambda: others.append(store.compact()))
    report = worker[0].compact()
    spent = connection_of(store).counts.snapshot() - since
    assert (compacted(report), report.held) == ([T0, T1, T2], 0)
    assert (compacted(others[0]), others[0].held) == ([], 3)
    assert (spent.puts, spent.list, spent.now_ms, spent.delete) == (0, 1, 1, 0)
    assert rows(store) == before
    assert leases(store) == []


def test_a_partition_that_another_compactor_holds_is_left_to_it(store: Store) -> None:
    fill(store)
    key = place(store, T0)
    report = store.compact()
    assert (compacted(report), report.held) == ([T1, T2], 1)
    assert leases(store) == [key]
    connection_of(store).objects.delete([key])
    report = store.compact()
    assert (compacted(report), report.held) == ([T0], 0)


def test_a_round_leaves_out_what_others_hold_and_says_how_much(store: Store) -> None:
    fill(store, (0,))
    key = place(store, T0)
    with closing(compact_rounds(store)) as rounds:
        round_ = next(rounds)
        assert (round_.due, round_.held, round_.idle) == (1, 1, True)
        connection_of(store).objects.delete([key])
        assert compacted(next(rounds).report) == [T0]


def test_a_dry_run_shows_all_and_takes_no_lease(store: Store, faults: FaultStore) -> None:
    fill(store)
    place(store, T0)
    since = len(faults.requests)
    assert compacted(store.compact(dry_run=True)) == [T0, T1, T2]
    assert {request.operation for request in faults.requests[since:]} == {"get"}


@pytest.mark.parametrize("ahead", [False, True])
def test_the_partitions_of_a_compactor_that_died_are_free_after_its_lease(
    store: Store, clock: ManualClock, *, ahead: bool
) -> None:
    """By the clock of the storage. A lease that it wrote before it was set back has no known end: it has expired."""
    fill(store, (0,))
    place(store, T0)
    clock.advance(-DURATION_MS if ahead else DURATION_MS)
    assert store.compact().held == 1
    clock.advance(-1 if ahead else 1)
    assert compacted(store.compact()) == [T0]
    assert leases(store) == [], "the expired one is deleted"


def test_the_clock_of_the_machine_ends_no_lease(store: Store, clock: ManualClock) -> None:
    fill(store, (0,))
    place(store, T0)
    rng = random.Random(1)
    for wrong in (365 * 86_400_000, -365 * 86_400_000):
        theirs = ManualClock(clock() + wrong)
        environment = FixedRuntime(theirs, theirs.sleep, rng, background=InlineExecutor, spawn=never)
        with open_on(connection_of(store).counts.inner, runtime=environment) as process:
            assert process.compact().held == 1


def test_a_lease_is_renewed_while_its_holder_works(store: Store, faults: FaultStore, clock: ManualClock) -> None:
    """A clean of a large partition takes hours; an error of one renewal ends nothing."""
    fill(store, (0, 1))
    timers, held = Timers(clock), list[int]()
    environment = FixedRuntime(
        clock, clock.sleep, random.Random(1), background=InlineExecutor, spawn=never, timer=timers.make
    )
    requests = FaultStore(faults.inner, no_faults)
    with open_on(requests, runtime=environment) as worker:

        def hours_later(_: object) -> None:
            requests.plan = on(Fault.ERROR_BEFORE, "put", key_contains=LEASE, times=1)
            timers.pass_time(2 * 3600)
            held.append(store.compact().held)

        assert compacted(worker.compact(progress=hours_later)) == [T0, T1]
    assert held == [1, 0], "the second partition is held, then nothing is due"
    assert [timer.stopped for timer in timers.made] == [True]
    assert leases(store) == []


def test_of_two_that_choose_the_same_partitions_at_once_one_has_them(
    store: Store, worker: tuple[Store, FaultStore]
) -> None:
    """Both have seen no lease: the second one finds that of the first in its place, and looks again."""
    fill(store, (0,))

    def first(_: int, operation: str, key: str) -> None:
        if operation == "put_if_absent" and key.startswith(LEASE):
            worker[1].plan = no_faults
            place(store, T0)

    worker[1].plan = first
    report = worker[0].compact()
    assert (compacted(report), report.held) == ([], 1)
    assert len(leases(store)) == 1, "it is the other one's"


def test_a_lease_has_a_larger_number_than_all_others(store: Store, worker: tuple[Store, FaultStore]) -> None:
    """Else one of two that look at the same time would not meet the other."""
    fill(store)
    place(store, T0, number=7)
    keys = list[str]()
    while_it_works(worker[1], lambda: keys.extend(leases(store)))
    assert compacted(worker[0].compact()) == [T1, T2]
    assert keys == [connection_of(store).keys.lease(7), connection_of(store).keys.lease(8)]


@pytest.mark.parametrize("readable", [True, False])
@pytest.mark.parametrize("number", [10**20 - 1, 10**20 // 2])
def test_an_object_with_a_number_that_no_lease_gets_is_no_lease(store: Store, number: int, *, readable: bool) -> None:
    """The name after the last one is not that of a lease, so a compactor would not see who has it."""
    fill(store)
    stray = place(store, T1, number=number)
    if not readable:
        connection_of(store).objects.put(stray, b"?")
    place(store, T0, number=7)
    report = store.compact()
    assert (compacted(report), report.held) == ([T1, T2], 1)
    assert leases(store) == [connection_of(store).keys.lease(7), stray]


def test_a_compactor_that_never_gets_a_lease_gives_up(store: Store, clock: ManualClock) -> None:
    """Another object has each name that it tries, and the list does not have it: it pauses, and ends with an error."""
    fill(store, (0,))
    last = 10**20 // 2 - 1
    place(store, T1, number=last)
    place(store, T1, number=last + 1)
    pauses = list[float]()
    faults = FaultStore(connection_of(store).counts.inner, no_faults)
    environment = FixedRuntime(clock, pauses.append, random.Random(1), background=InlineExecutor, spawn=never)
    with open_on(faults, runtime=environment) as worker:
        with pytest.raises(StorageRefusedError, match=f"no lease could be created .* {LEASE}.*{last + 1}.json.*delete"):
            worker.compact()
        tries = [request.operation for request in faults.requests if request.key.startswith(LEASE)]
    assert tries.count("put_if_absent") == tries.count("list") == len(pauses) == 20
    assert max(pauses) > 1


def test_what_was_compacted_before_the_lease_is_not_compacted_again(
    store: Store, worker: tuple[Store, FaultStore]
) -> None:
    """Another compactor has done all and released its lease after this one has planned."""
    fill(store)
    process, requests = worker

    def other_is_done(_: int, operation: str, key: str) -> None:
        if operation == "list" and key.startswith(LEASE):
            requests.plan = no_faults
            assert len(compacted(store.compact())) == 3

    requests.plan = other_is_done
    report = process.compact()
    assert (compacted(report), report.conflicts) == ([], 0)
    written = [request.key for request in requests.requests if "put" in request.operation]
    assert written == [connection_of(store).keys.lease(1)]


@pytest.mark.parametrize("data", [b"", b"{", b'{"version":99,"checksum":"0"}'])
def test_a_lease_that_cannot_be_read_holds_nothing(store: Store, data: bytes) -> None:
    fill(store, (0,))
    key = place(store, T0)
    connection_of(store).objects.put(key, data)
    assert compacted(store.compact()) == [T0]


def test_a_vacuum_deletes_leases_that_are_not_renewed(store: Store, clock: ManualClock) -> None:
    place(store, T0)
    connection_of(store).objects.put("leases/notes.txt", b"not of txnstore")
    clock.advance(3_600_000 - 1)
    store.vacuum(0)
    assert len(leases(store)) == 2
    clock.advance(1)
    assert store.vacuum(0).kinds[0].kind.startswith("leases/")
    assert leases(store) == ["leases/notes.txt"]


@ONE_CHAIN
def test_a_lease_costs_the_same_for_any_number_of_partitions(store: Store, faults: FaultStore) -> None:
    fill(store)
    since = len(faults.requests)
    store.compact()
    spent = [request.operation for request in faults.requests[since:] if request.key.startswith(LEASE)]
    assert spent == ["list", "put_if_absent", "delete"]


def test_a_lease_that_cannot_be_taken_stops_the_compaction(store: Store, faults: FaultStore) -> None:
    """As where a role may not write leases."""
    fill(store, (0,))
    faults.plan = on(Fault.UNAVAILABLE_503, "put_if_absent", key_contains=LEASE, times=None)
    with pytest.raises(StorageError):
        store.compact()


@pytest.mark.parametrize("fault", [Fault.ERROR_BEFORE, Fault.LOST_RESPONSE])
def test_a_lease_that_cannot_be_deleted_ends_by_itself(store: Store, faults: FaultStore, fault: Fault) -> None:
    fill(store, (0,))
    faults.plan = on(fault, "delete", key_contains=LEASE)
    assert compacted(store.compact()) == [T0]


def test_an_error_of_the_storage_releases_the_lease(store: Store, faults: FaultStore) -> None:
    fill(store, (0,))
    faults.plan = on(Fault.ERROR_BEFORE, "put", key_contains="topics/t", times=20)
    with pytest.raises(StorageError):
        store.compact()
    faults.plan = no_faults
    assert leases(store) == []


def test_a_lease_whose_creation_was_answered_late_is_this_compactors(store: Store, faults: FaultStore) -> None:
    fill(store, (0,))
    faults.plan = on(Fault.LOST_RESPONSE, "put_if_absent", key_contains=LEASE, times=1)
    assert compacted(store.compact()) == [T0]
    assert leases(store) == []
