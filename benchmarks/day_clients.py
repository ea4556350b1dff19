"""The clients of a replayed day: producers whose transactional ids come and go, consumers, and a job that copies."""

from __future__ import annotations

import random
from dataclasses import dataclass

from txnstore.core.model import TopicPartition
from txnstore.producer import Producer
from txnstore.store import Store
from txnstore.testing import ManualClock

DAY_MS = 24 * 60 * 60 * 1000
ORDERS, BALANCES, AUDIT = "orders", "balances", "audit"
#: The keys of the compacted topic; the time between two transactions.
KEYS, PAUSE_MS = 2_000, 2_000
#: The session timeout of the consumer, in seconds: it sleeps in quiet hours of small runs.
SESSION = 1_800.0
#: Shares of transactions: with a record for the audit, with offsets of a group of the id, aborted, by the copying job.
_AUDITED, _WITH_OFFSETS, _ABORTED, _COPIED = 0.25, 0.05, 0.02, 0.04
#: How an id ends: its producer is closed; or vanishes; or vanishes and leaves a transaction open.
_ENDS = (0.8, 0.15, 0.05)


def create_topics(store: Store, audit_bytes: int) -> None:
    """One topic that keeps a day, one that keeps the newest record of each key, one that keeps some bytes."""
    store.create_topic(ORDERS, partitions=8, config={"retention.ms": DAY_MS})
    store.create_topic(BALANCES, partitions=4, config={"cleanup.policy": "compact"})
    # A segment is deleted as a whole, so they must be smaller than what is kept.
    limits = {"retention.bytes": audit_bytes, "segment.bytes": audit_bytes // 4}
    store.create_topic(AUDIT, partitions=2, config=limits)


@dataclass(slots=True)
class _Life:
    """A producer with an id of its own, and the transactions that it has left."""

    producer: Producer
    left: int


class Clients:
    """All clients of the store, in one process and one thread.

    Args:
        store: The store.
        clock: The virtual clock.
        rng: Decides what they do.
        each: The mean number of transactions of an id.
        living: How many ids live at a time.
    """

    def __init__(self, store: Store, clock: ManualClock, rng: random.Random, each: int, living: int) -> None:
        self._store, self._clock, self._rng, self._each, self._living = store, clock, rng, each, living
        self.ids = self.transactions = 0
        self._lives: list[_Life] = []
        self._consumer = store.consumer(ORDERS, group="totals", session_timeout=SESSION)
        self._copier = store.producer("totals")

    def step(self) -> None:
        """The next transaction, of any of the clients; then the clock advances."""
        self.transactions += 1
        if self._rng.random() < _COPIED:
            self._copy()
        else:
            self._transaction()
        self._clock.advance(PAUSE_MS)

    def close(self) -> None:
        """Close what is open."""
        self._consumer.close()
        self._copier.close()
        for life in self._lives:
            life.producer.close()

    def _transaction(self) -> None:
        if len(self._lives) < self._living:
            self._lives.append(_Life(self._store.producer(f"id-{self.ids}"), self._length()))
            self.ids += 1
        rng = self._rng
        life = rng.choice(self._lives)
        producer = life.producer
        producer.begin_transaction()
        self._send(producer)
        if rng.random() < _WITH_OFFSETS:
            group = f"group of {producer.transactional_id}"
            producer.send_offsets({TopicPartition(ORDERS, rng.randrange(8)): self.transactions}, group)
        if rng.random() < _ABORTED:
            producer.flush()
            producer.abort_transaction()
        else:
            producer.commit_transaction()
        life.left -= 1
        if not life.left:
            self._end(life)

    def _length(self) -> int:
        """The first ids end at different times, as those that are there on any day do."""
        share = self._rng.uniform(0.5, 1.5)
        return max(1, round(self._each * (share if self.ids >= self._living else share * self._rng.random())))

    def _send(self, producer: Producer) -> None:
        rng = self._rng
        for _ in range(rng.randint(1, 3)):
            producer.send(ORDERS, rng.randbytes(60), key=b"order-%d" % rng.getrandbits(40))
        producer.send(BALANCES, rng.randbytes(40), key=b"account-%d" % rng.randrange(KEYS))
        if rng.random() < _AUDITED:
            producer.send(AUDIT, rng.randbytes(80))

    def _end(self, life: _Life) -> None:
        self._lives.remove(life)
        (end,) = self._rng.choices(range(3), _ENDS)
        if end == 0:
            life.producer.close()
        elif end == 2:
            life.producer.begin_transaction()
            self._send(life.producer)
            life.producer.flush()

    def _copy(self) -> None:
        """Read what is new, and commit what follows from it with the offsets."""
        records = self._consumer.poll()
        with self._copier.transaction():
            for record in records[:2]:
                self._copier.send(BALANCES, record.value, key=b"account-%d" % self._rng.randrange(KEYS))
            read = {record.partition: record.offset + 1 for record in records}
            if read:
                offsets = {TopicPartition(ORDERS, partition): offset for partition, offset in read.items()}
                self._copier.send_offsets(offsets, self._consumer.group_metadata())
