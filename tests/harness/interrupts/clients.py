"""What is interrupted: each client does one step at a time, and notes the outcome of each record."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pyarrow as pa

from tests.harness.interrupts.signals import Interrupts
from txnstore.core.model import TopicPartition
from txnstore.errors import InvalidTxnStateError, TxnStoreError, UnknownOutcomeError
from txnstore.producer import Producer, RecordFuture
from txnstore.store import Store

TOPIC, PARTITIONS, GROUP = "t", 3, "g"


@dataclass
class Ledger:
    """What was said about each value: stored, not stored, or nothing certain; transactions are kept whole."""

    sent: set[str] = field(default_factory=set)
    stored: set[str] = field(default_factory=set)
    refused: set[str] = field(default_factory=set)
    unknown: set[str] = field(default_factory=set)
    #: The values of each transaction whose outcome is unknown: all of them are stored, or none.
    undecided: list[frozenset[str]] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)

    def count(self, step: str) -> None:
        """Count a step."""
        self.counts[step] = self.counts.get(step, 0) + 1

    def judge(self, read: list[str]) -> None:
        """Compare with the values that a reader found."""
        values = set(read)
        if len(values) != len(read):
            self.problems.append(f"doubled: {sorted(value for value in values if read.count(value) > 1)[:5]}")
        for problem, wrong in [("lost", self.stored - values), ("refused, and stored", self.refused & values)]:
            if wrong:
                self.problems.append(f"{problem}: {sorted(wrong)[:5]} ({len(wrong)} records)")
        if strange := {value for value in values - self.sent if value.startswith("m-")}:
            self.problems.append(f"never sent: {sorted(strange)[:5]}")
        for whole in self.undecided:
            if whole & values and not whole <= values:
                self.problems.append(f"half a transaction: {sorted(whole & values)[:5]}")


class Client:
    """A client of the store, in the main thread."""

    numbers = itertools.count()

    def __init__(self, store: Store, ledger: Ledger, interrupts: Interrupts, rng: random.Random) -> None:
        self.store, self.ledger, self.interrupts, self.rng = store, ledger, interrupts, rng

    def step(self) -> None:
        """Do something that can be interrupted."""
        raise NotImplementedError

    def close(self) -> None:
        """End, when there are no more interrupts."""

    def value(self) -> str:
        """A value that no other record has."""
        value = f"m-{next(self.numbers)}"
        self.ledger.sent.add(value)
        return value

    def fail(self, call: str, error: BaseException) -> None:
        """An error that nothing explains."""
        self.ledger.problems.append(f"{type(self).__name__}.{call}: {error!r}")

    def sure(self, call: Callable[[], Any], name: str) -> Any:
        """Call until it is not interrupted; an error is a problem, but for an unknown outcome: then repeat it."""
        for _ in range(1000):
            try:
                return self.interrupts.until_done(call)
            except UnknownOutcomeError:
                self.ledger.count("unknown outcome")
            except Exception as error:  # noqa: BLE001 - reported
                self.fail(name, error)
                return None
        self.ledger.problems.append(f"{name} never succeeded")
        return None


class Idempotent(Client):
    """An idempotent producer: sends rows and tables, waits for some, flushes, is closed and opened again."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.producer: Producer | None = None
        self.waiting: list[tuple[list[str], Any]] = []

    def step(self) -> None:
        if self.producer is None:
            linger = self.rng.choice([None, 0.0, 0.002])
            self.producer = self.sure(lambda: self.store.producer(linger=linger, batch_bytes=400), "producer")
            return
        for _ in range(self.rng.randint(1, 6)):
            self.send(self.producer)
        choice = self.rng.random()
        if choice < 0.3:
            self.flush(self.producer)
        elif choice < 0.4 and self.waiting:
            self.hear(*self.waiting.pop(self.rng.randrange(len(self.waiting))), timeout=self.rng.choice([None, 60.0]))
        elif choice < 0.45:
            self.close()

    def send(self, producer: Producer) -> None:
        """Send a record or a table; what an interrupt leaves of it is unknown, and never sent again."""
        self.ledger.count("send")
        partition = self.rng.randrange(PARTITIONS)
        if self.rng.random() < 0.8:
            values = [self.value()]
            call: Callable[[], Any] = partial(producer.send, TOPIC, values[0].encode(), partition=partition)
        else:
            values = [self.value() for _ in range(3)]
            rows = pa.table({"value": [value.encode() for value in values]})
            call = partial(producer.send_table, TOPIC, rows, partition=partition)
        try:
            done, future = self.interrupts.once(call)
        except TxnStoreError as error:  # That of an earlier batch, or of this one.
            self.ledger.count(f"send: {type(error).__name__}")
            done, future = False, None
        if done:
            self.waiting.append((values, future))
        else:
            self.ledger.unknown.update(values)

    def flush(self, producer: Producer) -> None:
        """Flush until it ends; it may report the error of a batch, whose future has it too."""
        for _ in range(50):
            try:
                self.interrupts.until_done(producer.flush)
            except TxnStoreError as error:
                self.ledger.count(f"flush: {type(error).__name__}")
            except Exception as error:  # noqa: BLE001 - reported
                self.fail("flush", error)
            else:
                self.ledger.count("flush")
                break
        else:
            self.ledger.problems.append("a flush never succeeded")
        for values, future in self.waiting:
            if not future.done():
                self.ledger.problems.append(f"not settled after a flush: {values}")
            self.hear(values, future, timeout=0)
        self.waiting.clear()

    def hear(self, values: list[str], future: RecordFuture, timeout: float | None) -> None:
        """Ask a future for the outcome."""
        try:
            self.interrupts.until_done(lambda: future.result(timeout))
        except UnknownOutcomeError:
            self.ledger.unknown.update(values)
        except TimeoutError:
            self.ledger.problems.append(f"no outcome of {values} within {timeout} s")
        except TxnStoreError as error:
            self.ledger.count(f"future: {type(error).__name__}")
            self.ledger.refused.update(values)
        else:
            self.ledger.stored.update(values)

    def close(self) -> None:
        if self.producer is None:
            return
        producer, self.producer = self.producer, None
        while True:
            try:
                self.interrupts.until_done(producer.close)
                break
            except UnknownOutcomeError:
                continue
            except TxnStoreError as error:  # Reported once: of a batch that failed.
                self.ledger.count(f"close: {type(error).__name__}")
        for values, future in self.waiting:
            if not future.done():
                self.ledger.problems.append(f"not settled after a close: {values}")
            self.hear(values, future, timeout=0)
        self.waiting.clear()


class Transactional(Client):
    """A transactional producer: every step is a transaction, with records, and offsets of the consumer's group."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.producer: Producer | None = None

    def step(self) -> None:
        if self.producer is None or self.rng.random() < 0.05:
            self.producer = self.sure(lambda: self.store.producer("id", batch_bytes=400), "init")
            if self.producer is None:
                return
        producer = self.producer
        self.ledger.count("transaction")
        if not self.begin(producer):
            return
        sent: set[str] = set()  # The call has returned, so a commit includes the record.
        begun: set[str] = set()  # It was interrupted.
        for _ in range(self.rng.randint(0, 6)):
            value = self.value()
            begun.add(value)
            partition = self.rng.randrange(PARTITIONS)
            with suppress(TxnStoreError):
                if self.interrupts.once(partial(producer.send, TOPIC, value.encode(), partition=partition))[0]:
                    begun.remove(value)
                    sent.add(value)
            if self.rng.random() < 0.2:
                with suppress(TxnStoreError):
                    self.interrupts.once(producer.flush)
        if self.rng.random() < 0.3:
            with suppress(TxnStoreError):
                self.interrupts.once(lambda: producer.send_offsets({TopicPartition(TOPIC, 0): 1}, "other"))
        self.end(producer, sent, begun, abort=self.rng.random() < 0.2)

    def begin(self, producer: Producer) -> bool:
        """Begin a transaction. A begin that was interrupted may have begun it."""
        try:
            done, _ = self.interrupts.once(producer.begin_transaction)
            if not done:
                with suppress(InvalidTxnStateError):
                    self.interrupts.until_done(producer.begin_transaction)
        except TxnStoreError as error:
            self.fail("begin", error)
            self.producer = None
            return False
        return True

    def end(self, producer: Producer, sent: set[str], begun: set[str], *, abort: bool) -> None:
        """Commit, or abort if it is wanted or asked for, until one of them succeeds."""
        for _ in range(1000):
            try:
                self.interrupts.until_done(producer.abort_transaction if abort else producer.commit_transaction)
            except UnknownOutcomeError:
                self.ledger.count("unknown outcome")
            except TxnStoreError as error:
                if abort:
                    self.fail("abort", error)
                    break
                self.ledger.count(f"commit: {type(error).__name__}")
                abort = True
            else:
                self.ledger.count("abort" if abort else "commit")
                (self.ledger.refused if abort else self.ledger.stored).update(sent)
                (self.ledger.refused if abort else self.ledger.unknown).update(begun)
                return
        self.producer = None
        self.ledger.unknown.update(begun)
        self.ledger.undecided.append(frozenset(sent))
        self.ledger.unknown.update(sent)
        self.fail("end", TimeoutError("the transaction never ended"))

    def close(self) -> None:
        if self.producer is not None:
            self.sure(self.producer.close, "close")
