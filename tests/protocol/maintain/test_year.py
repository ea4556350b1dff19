"""A year of a store in virtual time, in which nothing but ``txnstore maintain`` looks after it."""

from __future__ import annotations

import random
from dataclasses import dataclass

import pytest

from tests.helpers.compaction import DAY_MS, HOUR_MS, new_store, reopen, runtime
from tests.helpers.connections import connection_of
from txnstore.chain.context import CHECKPOINT_EVERY
from txnstore.chain.keys import boundary_number
from txnstore.compactor import MaintenanceRound
from txnstore.core.model import TopicPartition
from txnstore.storage.counting import CountingStore
from txnstore.storage.memory import MemoryStore
from txnstore.store import Store, open_on
from txnstore.testing import Fault, FaultStore, ManualClock, SimulatedCrash
from txnstore.testing.faults import seeded

DAYS, MONTH = 365, 30
#: How often each kind is looked at, and how long records of a topic are kept.
ROUND_MS, RETENTION_MS = 12 * HOUR_MS, 4 * DAY_MS
T0, KEYED = TopicPartition("t", 0), TopicPartition("keyed", 0)
#: What a month may have more than an earlier one, by chance.
FLAT = 1.4
#: The requests of an open: the entries since the last checkpoint, of which one may have failed, and a few more.
OPENING = 2 * CHECKPOINT_EVERY + 16


@dataclass
class Month:
    """The end of a month: what is stored, what an open takes, and the requests of maintenance."""

    objects: int
    bytes: int
    opening: int
    requests: int
    ids: int


class Year:
    """Writers, and one process after the other that maintains their store; each dies in the middle of a request."""

    def __init__(self, clock: ManualClock, seed: int) -> None:
        self.clock, self.rng = clock, random.Random(f"year/{seed}")
        self.objects = MemoryStore(clock=clock)
        self.store = new_store(clock, self.objects)
        self.store.create_topic("t", config={"retention.ms": RETENTION_MS})
        self.store.create_topic("keyed", config={"cleanup.policy": "compact"})
        #: When each record of the topic was sent, by its offset; what the newest record of each key is.
        self.sent: dict[int, int] = {}
        self.newest: dict[bytes, bytes] = {}
        self.crashes = self.failures = self.requests = self.loaded_at = self.blocked = 0

    def load(self) -> None:
        """Some transactions of ids that never come again, one of which may be left open; not after a repetition."""
        if self.clock() - self.loaded_at < ROUND_MS / 2:
            return
        self.loaded_at = self.clock()
        for _ in range(self.rng.randint(1, 3)):
            producer = self.store.producer(f"id-{self.rng.getrandbits(40)}")
            producer.begin_transaction()
            if self.rng.random() < 0.1:
                producer.send("t", b"open", partition=0)
                producer.flush()
                continue  # Its process has died.
            futures = [producer.send("t", b"x" * 50, timestamp=self.clock()) for _ in range(self.rng.randint(1, 3))]
            key, value = b"k%d" % self.rng.randrange(20), b"%d" % self.rng.getrandbits(30)
            producer.send("keyed", value, key=key)
            producer.commit_transaction()
            self.sent |= {future.result().offset: self.clock() for future in futures}
            self.newest[key] = value

    def maintainer(self) -> Store:
        """A process that maintains the store; one request in 300 fails, and one of the first 6,000 is its last one."""
        faulty, last = FaultStore(self.objects, sleep=self.clock.sleep), self.rng.randrange(500, 6_000)
        failing = seeded(self.rng.getrandbits(30), 1 / 300)

        def plan(n: int, operation: str, key: str) -> Fault | None:
            if n == last:
                return Fault.CRASH_AFTER if operation.startswith("put") else Fault.CRASH_BEFORE
            return failing(n, operation, key)

        store = open_on(faulty, runtime=runtime(self.clock))
        faulty.plan = plan
        return store

    def check(self, round_: MaintenanceRound) -> None:
        """Nothing has expired early, retention was applied within two rounds, and nobody waits for a dead producer."""
        log = connection_of(self.store).view().find_partition(T0)
        gone = [at for offset, at in self.sent.items() if offset < log.log_start]
        assert all(self.clock() - at > RETENTION_MS for at in gone)
        self.sent = {offset: at for offset, at in self.sent.items() if offset >= log.log_start}
        if not round_.errors and self.clock() - self.loaded_at > ROUND_MS / 2:
            assert all(self.clock() - at <= RETENTION_MS * 9 / 8 + 2 * ROUND_MS for at in self.sent.values())
            self.blocked = self.blocked + 1 if log.last_stable_offset < log.high_watermark else 0
            assert self.blocked <= 1  # A request for the age of an entry may have failed, which is no error.

    def month(self) -> Month:
        """Count what there is now."""
        counting = CountingStore(self.objects)
        with open_on(counting, runtime=runtime(self.clock), read_only=True) as opened:
            opening = counting.snapshot().requests
            table = opened.scan("keyed").to_table()
            newest = dict(zip(table["key"].to_pylist(), table["value"].to_pylist(), strict=True))
            assert newest == self.newest
            ids = len(connection_of(opened).view().states[0].transactions)
        # Boundaries are never deleted: one for each vacuum that announces something.
        listed = [item for item in self.objects.list("") if boundary_number(item.key) is None]
        requests, self.requests = self.requests, 0
        return Month(len(listed), sum(item.size for item in listed), opening, requests, ids)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("seed", [1])
def test_a_store_that_is_only_maintained_stays_as_it_is(clock: ManualClock, seed: int) -> None:
    year, months, begin = Year(clock, seed), list[Month](), clock()
    every = dict.fromkeys(("recover", "retain", "compact", "expire", "checkpoint", "tables"), ROUND_MS / 1000)
    while clock() < begin + DAYS * DAY_MS:
        try:
            for round_ in year.maintainer().maintain(every=every):
                year.failures += len(round_.errors)
                year.requests += round_.requests
                year.check(round_)
                year.load()
                if clock() >= begin + (len(months) + 1) * MONTH * DAY_MS:
                    months.append(year.month())
                    year.store = reopen(year.store, clock)
                if clock() >= begin + DAYS * DAY_MS:
                    break
        except SimulatedCrash:
            year.crashes += 1
    print(*months, f"{year.crashes} crashes, {year.failures} failures", sep="\n")  # noqa: T201 - with -s: the figures
    assert year.crashes > 3
    assert year.failures > 3
    assert max(month.opening for month in months) <= OPENING
    for name in ("objects", "bytes", "requests", "ids"):
        early, late = ([getattr(month, name) for month in part] for part in (months[1:4], months[-4:]))
        assert max(late) <= FLAT * max(early), (name, early, late)
    assert year.store.verify(deep=True).ok
    assert year.store.doctor().ok
