"""A snapshot of many chains is taken by many requests; whatever is committed between any two of them is seen whole.

Another process commits right before each request that a snapshot makes of the chains, in turn. The reader is a fresh
one, or one that has read before and only looks for what is new.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from contextlib import suppress

import pytest

from tests.harness.executors import DeferredExecutor
from tests.helpers import keys
from tests.helpers.chains import groups_of, ids_of, process, value_counts, write_everywhere
from tests.helpers.connections import connection_of
from txnstore.core.invariants.check import check_view
from txnstore.core.model import TopicPartition
from txnstore.core.routing import chain_of_partition
from txnstore.errors import UnknownMemberError
from txnstore.storage.memory import MemoryStore
from txnstore.store import Store
from txnstore.testing import Fault, FaultStore, ManualClock, no_faults

CHAINS, PARTITIONS = 3, 6
WHOLE = {b"first": PARTITIONS}, {b"first": PARTITIONS, b"second": PARTITIONS}


class Scene:
    """A store with one committed transaction, and one that is sent whole but not committed, coordinated by ``home``."""

    def __init__(self, home: int, *, markers: bool) -> None:
        self.clock = ManualClock()
        self.bucket = MemoryStore(clock=self.clock)
        process(self.bucket, self.clock, chains=CHAINS).create_topic("t", partitions=PARTITIONS)
        # What is not run at once is never run: then the markers in other chains stay unwritten.
        store = process(self.bucket, self.clock) if markers else self._without_markers()
        self.producer = store.producer(ids_of(store, home))
        with process(self.bucket, self.clock).producer(ids_of(store, home) + "-before").transaction() as txn:
            write_everywhere(txn, b"first")
        self.producer.begin_transaction()
        write_everywhere(self.producer, b"second")
        self.producer.flush()

    def _without_markers(self) -> Store:
        return process(self.bucket, self.clock, background=DeferredExecutor)

    def snapshot_with_commit_before(self, number: int, *, fresh: bool) -> dict[bytes, int] | None:
        """What a snapshot shows if the commit comes right before its n-th request for a chain; None if it has fewer."""
        remaining = number

        def plan(n: int, operation: str, key: str) -> Fault | None:
            nonlocal remaining
            if key.startswith("chains/"):
                remaining -= 1
                if remaining == 0:
                    self.producer.commit_transaction()
            return None

        faults = FaultStore(self.bucket, plan if fresh else no_faults)
        reader = process(faults, self.clock)
        if not fresh:
            connection_of(reader).view()
            faults.plan = plan
        shown = value_counts(reader)
        assert check_view(connection_of(reader).view()) == []
        return None if remaining > 0 else shown


def whole_or_nothing(look: Callable[[int], dict[bytes, int] | None]) -> None:
    """Look with the commit before the first request, before the second, and so on to the last."""
    answers = (look(number) for number in itertools.count(1))
    shown = list(itertools.takewhile(lambda answer: answer is not None, answers))
    assert all(answer in WHOLE for answer in shown), shown
    assert shown[0] == WHOLE[1]
    assert shown[-1] == WHOLE[0]


@pytest.mark.slow
@pytest.mark.parametrize("markers", [True, False], ids=["markers", "no-markers"])
@pytest.mark.parametrize("home", range(CHAINS))
def test_snapshot_is_consistent_with_commit_between_any_two_requests(home: int, *, markers: bool) -> None:
    """JEP-16, END-06: all of the transaction is seen or nothing of it, and both happen."""
    whole_or_nothing(lambda number: Scene(home, markers=markers).snapshot_with_commit_before(number, fresh=False))


@pytest.mark.slow
def test_open_is_consistent_with_commit_between_any_two_requests() -> None:
    """JEP-16, REC-10, TST-15: the same for a process that opens the store, hint, checkpoint and tails."""
    whole_or_nothing(lambda number: Scene(1, markers=True).snapshot_with_commit_before(number, fresh=True))


class BusyScene:
    """A store where another writer commits in all chains whenever a reader that was at every head gets an entry."""

    LIMIT = 20

    def __init__(self) -> None:
        clock = ManualClock()
        bucket = MemoryStore(clock=clock)
        self.writer = process(bucket, clock, chains=CHAINS)
        self.writer.create_topic("t", partitions=PARTITIONS)
        self.producer = self.writer.producer("busy")
        faults = FaultStore(bucket)
        self.reader = process(faults, clock)
        self.commit()
        connection_of(self.reader).view()
        self.heads: set[int] = set()
        self.commits = self.requests = 0
        faults.plan = self.plan

    def commit(self) -> None:
        with self.producer.transaction() as txn:
            write_everywhere(txn, b"value")

    def plan(self, n: int, operation: str, key: str) -> Fault | None:
        self.requests += 1
        chain, entry = int(key.split("/")[2]), int(key.rsplit("/", maxsplit=1)[-1].partition(".")[0])
        head = connection_of(self.writer).chains[chain].state.sequence
        last_one = self.commits == 0 and chain == CHAINS - 1
        if last_one or (len(self.heads) == CHAINS and entry <= head and self.commits < self.LIMIT):
            self.commits += 1
            self.commit()
        elif entry > head:
            self.heads.add(chain)
        return None


def test_snapshot_terminates_during_continuous_commits() -> None:
    """A chain that others rest on is read to the entry that is needed, not to its head, which rests on newer ones."""
    scene = BusyScene()
    view = connection_of(scene.reader).view()
    assert check_view(view) == []
    assert len(scene.heads) == CHAINS
    assert 1 < scene.commits < scene.LIMIT
    requests = scene.requests
    connection_of(scene.reader).chains.view([])
    assert scene.requests == requests  # What is known needs no request.


# Groups ---------------------------------------------------------------------------------------------------------------


def takes_over(home: int, number: int, *, join: bool) -> tuple[list[object], int] | None:
    """What a consumer gets, and its position, if others continue right before its n-th request for the group's chain.

    Another process appends to a partition of another chain, a second one reads that and commits it to the group, so all
    there is has been read. None if there are fewer requests.
    """
    clock = ManualClock()
    bucket = MemoryStore(clock=clock)
    store = process(bucket, clock, chains=CHAINS)
    store.create_topic("t", partitions=PARTITIONS)
    group = groups_of(store, home)
    place = next(n for n in range(PARTITIONS) if chain_of_partition(TopicPartition("t", n), CHAINS) != home)
    tp = TopicPartition("t", place)
    writer = process(bucket, clock).producer()
    writer.send("t", b"old", partition=place)
    writer.flush()
    before = process(bucket, clock).consumer(group=group)
    before.assign([tp])
    remaining = number

    def plan(n: int, operation: str, key: str) -> Fault | None:
        nonlocal remaining
        remaining -= key.startswith(keys.entries(home))
        if remaining == 0:
            remaining = -1
            writer.send("t", b"new", partition=place)
            writer.flush()
            assert [record.value for record in before.poll()] == [b"old", b"new"]
            with suppress(UnknownMemberError):  # The other one is a member already.
                before.commit()
        return None

    faults = FaultStore(bucket, no_faults)
    reader = process(faults, clock)
    connection_of(reader).view()
    faults.plan = plan
    after = reader.consumer(["t"] if join else None, group)
    if not join:
        after.assign([tp])
    values: list[object] = [record.value for record in after.poll()]
    return (values, after.position(tp)) if remaining < 0 else None


@pytest.mark.parametrize("join", [False, True], ids=["assigned", "member"])
@pytest.mark.parametrize("home", range(CHAINS))
def test_off_10_group_offset_beyond_known_log_is_not_reset(home: int, *, join: bool) -> None:
    """OFF-10: its offset is past the end of the log as it was looked at before, and not out of range.

    Or the consumer saw nothing of the commit, and begins at what was committed before: nowhere, so at the beginning.
    """
    outcomes = [takes_over(home, number, join=join) for number in range(1, 8)]
    answers = [answer for answer in outcomes if answer is not None]
    assert set(map(str, answers)) <= {str(([], 2)), str(([b"old", b"new"], 2)), str(([b"old"], 1))}
    assert ([], 2) in answers
