"""A run: steps of all clients under interrupts, another thread beside them, and the judgement in the end."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Self

from tests.harness.interrupts.clients import PARTITIONS, TOPIC, Client, Idempotent, Ledger, Transactional
from tests.harness.interrupts.readers import Janitor, Queries, Reader, Scanner
from tests.harness.interrupts.signals import GUARD, Interrupts
from txnstore.errors import StorageError, TxnStoreError, UnknownOutcomeError
from txnstore.store import Store, create

KINDS: dict[str, tuple[type[Client], int]] = {
    "producer": (Idempotent, 4),
    "transactions": (Transactional, 4),
    "consumer": (Reader, 6),
    "scan": (Scanner, 1),
    "sql": (Queries, 1),
    "maintenance": (Janitor, 1),
}


@dataclass(frozen=True)
class Settings:
    """A run.

    Attributes:
        interrupts: The number of interrupts.
        seed: Of the steps, and of the time between interrupts.
        url: Where the store is created.
        chains: Its chains.
        only: The clients to run; all of :data:`KINDS` by default.
        mean: The mean time between two interrupts, in seconds.
    """

    interrupts: int = 1000
    seed: int = 0
    url: str = "memory://interrupts"
    chains: int = 1
    only: tuple[str, ...] = tuple(KINDS)
    mean: float = 0.003


@dataclass
class Report:
    """What a run has found."""

    settings: Settings
    ledger: Ledger
    sent: int = 0
    records: int = 0
    beside: int = 0
    places: dict[str, int] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        """Whether nothing was found."""
        return not self.ledger.problems

    def lines(self) -> Iterator[str]:
        """The report."""
        yield f"interrupts: {self.sent:,} at {len(self.places)} functions; seed {self.settings.seed}"
        yield "steps: " + ", ".join(f"{count} {step}" for step, count in sorted(self.ledger.counts.items()))
        yield (
            f"records: {self.records:,} stored; acknowledged {len(self.ledger.stored):,}, refused "
            f"{len(self.ledger.refused):,}, unknown {len(self.ledger.unknown):,}; {self.beside:,} of another thread"
        )
        yield f"problems: {len(self.ledger.problems) or 'none'}"
        yield from self.ledger.problems[:20]


class Beside:
    """Another thread that uses the same store, and is never interrupted: it must neither hang nor fail."""

    def __init__(self, store: Store, ledger: Ledger) -> None:
        self.store, self.ledger = store, ledger
        self.acknowledged: list[str] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="beside", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stop.set()
        self._thread.join(GUARD)
        if self._thread.is_alive():
            self.ledger.problems.append("the other thread hangs")

    def _run(self) -> None:
        try:
            with self.store.producer(linger=None) as producer:
                number = 0
                while not self._stop.wait(0.002):
                    value = f"b-{number}"
                    number += 1
                    future = producer.send(TOPIC, value.encode(), partition=number % PARTITIONS)
                    while True:
                        try:
                            future.result()
                        except UnknownOutcomeError:
                            if not future.done():
                                continue
                        else:
                            self.acknowledged.append(value)
                        break
                    self.store.offsets(TOPIC, 0)
        except BaseException as error:  # noqa: BLE001 - reported
            self.ledger.problems.append(f"the other thread failed: {error!r}")


def interrupt(settings: Settings) -> Report:
    """Run; the store at ``settings.url`` must not exist."""
    rng, ledger = random.Random(settings.seed), Ledger()
    report = Report(settings, ledger)
    with create(settings.url, settings.chains) as store:
        store.create_topic(TOPIC, partitions=PARTITIONS)
        store.sql(f"SELECT count(*) FROM {TOPIC}").fetchall()  # Imports DuckDB.
        interrupts = Interrupts(settings.interrupts, settings.mean, rng)
        running = {name: KINDS[name][0](store, ledger, interrupts, rng) for name in settings.only}
        for client in running.values():  # Not interrupted: Python's imports are not safe from interrupts.
            for _ in range(12):
                client.step()
        with interrupts:
            weights = [KINDS[name][1] for name in settings.only]
            with Beside(store, ledger) as beside:
                while not interrupts.done and not ledger.problems:
                    (name,) = rng.choices(settings.only, weights)
                    running[name].step()
                for client in running.values():
                    client.close()
            report.sent, report.places = interrupts.sent, interrupts.places
        _judge(store, ledger, running, beside)
        report.beside = len(beside.acknowledged)
        report.records = store.scan(TOPIC).to_table().num_rows
    return report


def _judge(store: Store, ledger: Ledger, running: dict[str, Client], beside: Beside) -> None:
    try:
        store.recover()
        table = store.scan(TOPIC).to_table()
    except (StorageError, TxnStoreError) as error:
        ledger.problems.append(f"the end: {error!r}")
        return
    values = [value.decode() for value in table["value"].to_pylist()]
    ledger.judge(values)
    if lost := set(beside.acknowledged) - set(values):
        ledger.problems.append(f"lost of the other thread: {sorted(lost)[:5]}")
    visible: dict[int, list[int]] = {number: [] for number in range(PARTITIONS)}
    for partition, offset in zip(table["_partition"].to_pylist(), table["_offset"].to_pylist(), strict=True):
        visible[partition].append(offset)
    for client in running.values():
        if isinstance(client, Reader):
            client.judge({number: sorted(offsets) for number, offsets in visible.items()})
    if open_ := store.transactions("ONGOING"):
        ledger.problems.append(f"still open: {[txn.transactional_id for txn in open_]}")
    ledger.problems += [f"verify: {violation}" for violation in store.verify(deep=True).violations]
