"""A producer whose flushes go to many partitions of two topics: their batches share segments, not outcomes."""

from __future__ import annotations

from tests.harness.simulation.actor import PATIENCE, Actor
from tests.harness.simulation.creates import Interrupted
from tests.harness.simulation.world import SIDE, SOURCE, Process
from txnstore.errors import (
    CorruptionError,
    ProducerFencedError,
    StorageError,
    StoreNotFoundError,
    TxnStoreError,
    UnknownOutcomeError,
    UploadExpiredError,
)
from txnstore.producer import Producer
from txnstore.producer.futures import RecordFuture

#: What says nothing of the parts of chains that had written theirs before: after the refusal of another part they are
#: submitted again, and then a process may find its chain damaged, or ``store.json`` misplaced.
_NO_ANSWER = (UnknownOutcomeError, Interrupted, StoreNotFoundError, CorruptionError)
#: What was sent to a partition: the values and their futures, by the client that the history has for the partition.
_Sent = dict[str, tuple[str, list[int], list[RecordFuture]]]


class Spreader(Actor):
    """An idempotent producer: each operation is a flush of up to three records for each of many partitions.

    Each partition is a client of its own in the history, because its batch is stored or not by itself.
    """

    refusals: tuple[type[TxnStoreError], ...] = (ProducerFencedError, UploadExpiredError)

    def live(self, process: Process) -> None:
        try:
            producer = self.insist(lambda: process.store.producer(linger=None))
        except StorageError:
            return self.pause(1_000)
        while self.next_operation():
            if not self._flush(process, producer):
                return None  # Batches of unknown outcome are abandoned with their producer.
            self.breathe()
        return None

    def _flush(self, process: Process, producer: Producer) -> bool:
        """Send and flush; False if the producer cannot continue."""
        sent: _Sent = {}
        try:
            try:
                self._send(process, producer, sent)
                error, unknown = self._insist(process, producer, sent)
            except TxnStoreError as failure:
                self.check_expected(process, "send", failure, self.refusals)
                error, unknown = failure, True  # Some of them may be buffered.
        except BaseException as failure:
            for client in sent:
                self.world.history.info(client, failure)
            raise
        settled = [self._settled(client, *outcome, error, unknown=unknown) for client, outcome in sent.items()]
        return all(settled)

    def _send(self, process: Process, producer: Producer, sent: _Sent) -> None:
        for topic in self.rng.sample((SOURCE, SIDE), self.rng.randint(1, 2)):
            for number in range(self.world.settings.partitions):
                if self.rng.random() < 0.2:
                    continue
                key, values = f"{topic}-{number}", [self.world.next_value() for _ in range(self.rng.randint(1, 3))]
                client, futures = f"{process.name}/{key}", list[RecordFuture]()
                self.world.history.invoke(client, "send", [("send", key, value) for value in values])
                sent[client] = key, values, futures
                futures += [producer.send(topic, b"%d" % value, partition=number) for value in values]

    def _insist(self, process: Process, producer: Producer, sent: _Sent) -> tuple[BaseException | None, bool]:
        """Flush until all records have an outcome; the last error, and whether an outcome was unknown."""
        error: BaseException | None = None
        unknown = False
        for _ in range(PATIENCE):
            try:
                producer.flush()
            except (StorageError, Interrupted) as failure:
                error, unknown = failure, unknown or isinstance(failure, (UnknownOutcomeError, Interrupted))
            except TxnStoreError as failure:
                self.check_expected(process, "send", failure, self.refusals)
                error = failure
            if all(future.done() for _, _, futures in sent.values() for future in futures):
                break
            self.pause(2_000)
        return error, unknown

    def _settled(
        self,
        client: str,
        key: str,
        values: list[int],
        futures: list[RecordFuture],
        flushed: BaseException | None,
        *,
        unknown: bool,
    ) -> bool:
        """Record the outcome of a partition; False if it is not known."""
        history = self.world.history
        done = len(futures) == len(values) and all(future.done() for future in futures)
        error = futures[0].exception() if done else flushed
        if done and error is None:
            offsets = [future.result().offset for future in futures]
            history.ok(client, [("send", key, pair) for pair in zip(offsets, values, strict=True)])
            return True
        if not done or unknown or isinstance(error, _NO_ANSWER):
            history.info(client, error)
            return False
        history.fail(client, error)
        return True
