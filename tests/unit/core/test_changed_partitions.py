"""The partitions that events name are all whose records or offsets differ for readers."""

from __future__ import annotations

import random
from typing import Any

import pytest

from txnstore.core.log.changes import changed_partitions
from txnstore.core.model import TopicPartition
from txnstore.core.view import View
from txnstore.storage.memory import MemoryStore
from txnstore.store import Store, create_on, open_on

PARTITIONS = 6


def what_readers_see(view: View) -> dict[TopicPartition, Any]:
    """All that a fetch answers of each partition."""
    return {
        tp: (log.high_watermark, log.last_stable_offset, log.log_start, [*log.batches], log.aborted)
        for tp, log in view.partitions.items()
    }


def events_between(store: Store, before: View, after: View) -> list[Any]:
    events: list[Any] = []
    for chain, old, new in zip(store._connection.chains, before.states, after.states, strict=True):
        kept = chain.events_between(old.sequence, new.sequence)
        assert kept is not None
        events += kept
    return events


class Writer:
    """Does something at random to a topic, in and out of transactions."""

    def __init__(self, store: Store, rng: random.Random) -> None:
        self._store, self._rng = store, rng
        self._producers = {name: store.producer(name) for name in ("a", "b")}
        self._open_txns: set[str] = set()

    def step(self) -> None:
        name, partition = self._rng.choice(sorted(self._producers)), self._rng.randrange(PARTITIONS)
        match self._rng.choice(("plain", "send", "send", "send", "end", "delete", "compact", "create")):
            case "plain":
                with self._store.producer() as producer:
                    producer.send("t", b"v", partition=partition)
            case "send":
                self._send(name)
            case "end" if name in self._open_txns:
                self._end(name)
            case "delete":
                tp = TopicPartition("t", partition)
                log = self._store._connection.view().log(tp)  # Of its chain alone, which may lack markers for a moment.
                assert log is not None
                self._store.delete_records({tp: log.last_stable_offset})
            case "compact":
                self._store.compact()
            case "create":
                self._store.create_topic("u", exist_ok=True)

    def _send(self, name: str) -> None:
        producer = self._producers[name]
        if name not in self._open_txns:
            self._open_txns.add(name)
            producer.begin_transaction()
        for number in self._rng.sample(range(PARTITIONS), 3):
            producer.send("t", b"v", partition=number)
        producer.flush()

    def _end(self, name: str) -> None:
        self._open_txns.remove(name)
        producer = self._producers[name]
        (producer.commit_transaction if self._rng.random() < 0.5 else producer.abort_transaction)()

    def close(self) -> None:
        for name in sorted(self._open_txns):
            self._end(name)


@pytest.mark.parametrize("chains", [1, 3])
@pytest.mark.parametrize("seed", range(3))
def test_readers_see_no_change_elsewhere(chains: int, seed: int) -> None:
    """Chain by chain, so also between the decision of a transaction and its markers."""
    rng, objects = random.Random(seed), MemoryStore()
    store = create_on(objects, chains)
    store.create_topic("t", partitions=PARTITIONS)
    reader, writer = open_on(objects), Writer(store, rng)
    named = unnamed = 0
    view = reader._connection.view()
    for _ in range(60):
        writer.step()
        for chain in rng.sample(list(reader._connection.chains), chains):
            chain.refresh()
            newer = reader._connection.loaded_view()
            if newer is None:
                continue
            changed = changed_partitions(events_between(reader, view, newer), newer)
            before, after = what_readers_see(view), what_readers_see(newer)
            different = {tp for tp in before.keys() | after.keys() if before.get(tp) != after.get(tp)}
            if changed is not None:
                assert different <= changed
                named, unnamed = named + len(changed), unnamed + len(after.keys() - changed)
            view = newer
    assert named > 50
    assert unnamed > 100
    writer.close()


def test_events_are_kept_of_the_newest_entries_only() -> None:
    """A look that is further behind must look at everything."""
    with create_on(MemoryStore()) as store:
        store.create_topic("t")
        chain = store._connection.chain
        first = chain.state.sequence
        for _ in range(20):
            with store.producer() as producer:
                producer.send("t", b"v")
        last = chain.state.sequence
        assert chain.events_between(first, last) is None
        assert len(chain.events_between(last - 16, last) or ()) >= 16
        assert chain.events_between(last, last) == []
        assert chain.events_between(last - 1, last + 1) is None
