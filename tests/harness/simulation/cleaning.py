"""A topic with ``cleanup.policy=compact``: its producers, its cleaners, and what must be left of it at the end."""

from __future__ import annotations

from collections.abc import Iterator

from tests.harness.simulation.actor import Actor
from tests.harness.simulation.journal import Journal, Written
from tests.harness.simulation.producers import TransactionalProducer
from tests.harness.simulation.world import KEYED, Process, World
from tests.helpers.connections import connection_of
from txnstore.core.model import TopicPartition
from txnstore.errors import TxnStoreError
from txnstore.producer import Producer
from txnstore.producer.futures import RecordFuture
from txnstore.store import Store

#: The number of record keys: few, so that most records are superseded.
_KEYS = 3


class KeyedProducer(TransactionalProducer):
    """Transactions of records of a few keys, with tombstones among them."""

    def _plan(self) -> list[tuple[str, int, int]]:
        partitions = self.world.settings.partitions
        return [(KEYED, self.rng.randrange(partitions), self.world.next_value()) for _ in range(self.rng.randint(1, 4))]

    def _send(
        self, process: Process, producer: Producer, plan: list[tuple[str, int, int]], futures: list[RecordFuture]
    ) -> None:
        for topic, number, value in plan:
            if self.world.keyed_rows:
                row = {"value": b"%d" % value, "key": self._key()}
                futures.append(producer.send(topic, row, partition=number))
            else:
                futures.append(producer.send(topic, b"%d" % value, key=self._key(), partition=number))
            if self.rng.random() < 0.3:
                producer.send(topic, None, key=self._key(), partition=number)
            if self.rng.random() < 0.3:
                self.insist(producer.flush)
            if self.rng.random() < 0.1:
                self.pause(self.rng.choice((100, 2_000, 130_000)))
        if self.rng.random() < 0.2:
            self.change_of_mind()

    def _key(self) -> bytes:
        return b"k%d" % self.rng.randrange(_KEYS)


class Cleaner(Actor):
    """Cleans the topic, whatever its ratio; sometimes also above the last stable offset."""

    def live(self, process: Process) -> None:
        while self.next_operation():
            try:
                process.store.compact(KEYED, force=True, past_hw=self.rng.random() < 0.5)
            except TxnStoreError as error:
                self.check_expected(process, "clean", error, ())
            self.breathe()


def cleaned(world: World, store: Store, journal: Journal) -> Iterator[str]:
    """CMP-05, CMP-17, CMP-18: the newest record of each key is left, and no record has changed."""
    if not any(name.startswith("keys:") for name in world.settings.actors):
        return
    yield from _compare(store, journal, world.settings.partitions, "during the run")
    store.compact(KEYED, force=True)
    yield from _compare(store, journal, world.settings.partitions, "by the last clean")


def _compare(store: Store, journal: Journal, partitions: int, when: str) -> Iterator[str]:
    table = store.scan(KEYED, "read_committed").to_table().select(["_partition", "_offset", "key", "value"])
    for number in range(partitions):
        name = f"{KEYED}-{number}"
        log = [record for record in journal.logs.get(name, ()) if journal.committed(record)]
        true = {record.offset: (record.record_key, record.value) for record in log}
        present = {
            row["_offset"]: (row["key"], int(row["value"]) if row["value"] is not None else None)
            for row in table.to_pylist()
            if row["_partition"] == number
        }
        for offset in sorted(present):
            if true.get(offset) != present[offset]:
                yield f"clean-changed: {name}@{offset} is {present[offset]} {when}, was {true.get(offset)}"
        clean_until = connection_of(store).view().partitions[TopicPartition(KEYED, number)].clean_until
        yield from (f"{each} in {name} {when}" for each in _lost(log, present, clean_until))


def _lost(log: list[Written], present: dict[int, tuple[bytes | None, int | None]], clean_until: int) -> Iterator[str]:
    """What is missing, and what should be deleted. Above the checkpoint a clean may remove superseded records, too.

    The newest record below the checkpoint stays even if a newer one follows above: that one was undecided, or not yet
    visible to all.
    """
    newest = {record.record_key: record.offset for record in log}
    newest_clean = {record.record_key: record.offset for record in log if record.offset < clean_until}
    for record in log:
        if record.offset >= clean_until:
            missing = newest[record.record_key] == record.offset and record.offset not in present
        else:
            is_newest = newest_clean[record.record_key] == record.offset
            missing = is_newest and record.value is not None and record.offset not in present
            if record.offset in present and not is_newest:
                yield f"clean-kept: {record.record_key!r}@{record.offset} below the checkpoint {clean_until}"
        if missing:
            yield f"clean-lost: {record.record_key!r}@{record.offset}"
