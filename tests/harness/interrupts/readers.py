"""The clients that read and that maintain the store."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import duckdb

from tests.harness.interrupts.clients import GROUP, PARTITIONS, TOPIC, Client
from txnstore.consumer import Consumer
from txnstore.core.model import TopicPartition
from txnstore.errors import CompactionConflictError, TxnStoreError
from txnstore.sql.interrupts import raise_interrupt


class Reader(Client):
    """A consumer of a group: polls, commits, and is closed and opened again; no record is skipped or read twice."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.consumer: Consumer | None = None
        #: The offsets that this consumer has returned, by partition, and where the next one may begin.
        self.read: dict[int, list[int]] = {}
        self.begins: dict[int, set[int]] = {number: {0} for number in range(PARTITIONS)}
        self.lives: list[tuple[int, list[int]]] = []

    def step(self) -> None:
        if self.consumer is None:
            self.consumer = self.sure(
                lambda: self.store.consumer([TOPIC], group=GROUP, group_instance_id="reader", max_poll_records=20),
                "consumer",
            )
            self.read = {}
            return
        consumer, choice = self.consumer, self.rng.random()
        if choice < 0.7:
            records = self.sure(consumer.poll, "poll") or []
            self.ledger.count("poll")
            self.ledger.counts["polled"] = self.ledger.counts.get("polled", 0) + len(records)
            for record in records:
                self.read.setdefault(record.partition, []).append(record.offset)
        elif choice < 0.9:
            self.commit(consumer)
        elif choice < 0.95:
            partition = self.rng.randrange(PARTITIONS)
            if (TopicPartition(TOPIC, partition) in consumer.assignment()) and self.read.get(partition):
                self.seek(consumer, partition)
        else:
            self.close()

    def commit(self, consumer: Consumer) -> None:
        """Commit: from the first attempt on, the next consumer may begin there; from the last on, it must."""
        positions = {number: offsets[-1] + 1 for number, offsets in self.read.items() if offsets}
        for number, position in positions.items():
            self.begins[number].add(position)
        before = len(self.ledger.problems)
        self.sure(consumer.commit, "commit")
        if len(self.ledger.problems) == before:
            self.ledger.count("group commit")
            for number, position in positions.items():
                self.begins[number] = {position}

    def seek(self, consumer: Consumer, partition: int) -> None:
        """Go back to a record that was read."""
        self.ledger.count("seek")
        again = self.rng.choice(self.read[partition])
        self.sure(lambda: consumer.seek(TopicPartition(TOPIC, partition), again), "seek")
        self.lives.append((partition, self.read[partition]))
        self.read[partition] = []

    def close(self) -> None:
        if self.consumer is None:
            return
        consumer, self.consumer = self.consumer, None
        self.sure(consumer.close, "close")
        for number, offsets in self.read.items():
            if offsets:
                self.lives.append((number, offsets))
        self.read = {}

    def judge(self, visible: dict[int, list[int]]) -> None:
        """Compare with the offsets of all records that are visible in the end, by partition."""
        for number, offsets in self.lives:
            first, last = offsets[0], offsets[-1]
            whole = [offset for offset in visible[number] if first <= offset <= last]
            if offsets != whole:
                skipped, twice = sorted(set(whole) - set(offsets)), len(offsets) - len(set(offsets))
                self.ledger.problems.append(
                    f"a consumer of partition {number} read {len(offsets)} of {len(whole)} records from {first} to "
                    f"{last}: skipped {skipped[:5]}, {twice} twice"
                )


class Scanner(Client):
    """Scans the topic: all that is acknowledged is there, once."""

    def step(self) -> None:
        self.ledger.count("scan")
        table = self.sure(lambda: self.store.scan(TOPIC).to_table(), "scan")
        if table is not None:
            self.ledger.judge([value.decode() for value in table["value"].to_pylist()])


class Queries(Client):
    """SQL over the topic, in the shared database and in one of its own."""

    def step(self) -> None:
        self.ledger.count("sql")
        query = f"SELECT decode(value) FROM {TOPIC}"
        rows = self.sure(lambda: self.run(query), "sql")
        if rows is not None:
            self.ledger.judge([value for (value,) in rows])

    def run(self, query: str) -> list[tuple[str]]:
        """The rows of a query. DuckDB itself, which evaluates the relation here, reports an interrupt as its error."""
        shared = self.rng.random() < 0.8
        relation = self.store.sql(query) if shared else self.store.duckdb().sql(query)
        try:
            return relation.fetchall()
        except (RuntimeError, duckdb.Error) as error:
            raise_interrupt(error)
            raise


class Janitor(Client):
    """Compacts, deletes what nothing refers to, writes checkpoints, verifies."""

    def step(self) -> None:
        steps: list[tuple[str, Callable[[], Any]]] = [
            ("compact", lambda: self.store.compact(TOPIC)),
            ("vacuum", self.store.vacuum),
            ("checkpoint", self.store.checkpoint),
            ("recover", self.store.recover),
            ("topics", self.store.topics),
        ]
        name, call = self.rng.choice(steps)
        self.ledger.count(name)
        try:
            self.interrupts.until_done(call)
        except CompactionConflictError:
            self.ledger.count("compaction conflict")
        except TxnStoreError as error:
            self.fail(name, error)
