"""One process of a torture run: ``python -m tests.harness.torture.worker TASK``.

It runs one operation after the other and writes to its history before and after each. It exits with 0 when its end is
requested, and with 3 after an error that is fatal for a client; a new process replaces it then, as after a kill.
"""

from __future__ import annotations

import faulthandler
import itertools
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, suppress

import txnstore
from tests.harness.history import (
    Assign,
    Offsets,
    Poll,
    Recorder,
    Send,
    Type,
    outcome_of_call,
    outcome_of_txn,
    to_file,
)
from tests.harness.history.format import MicroOp
from tests.harness.short_history import short_history
from tests.harness.torture.plan import (
    ID_EXPIRATION,
    INPUT,
    LEASE_MS,
    OUTPUT,
    TRANSACTION_TIMEOUT,
    VACUUM_GRACE,
    Task,
    observe,
    polled,
)
from txnstore.core.model import TopicPartition
from txnstore.errors import (
    CompactionConflictError,
    InvalidConfigError,
    StorageError,
    TxnStoreError,
    UnknownOutcomeError,
)
from txnstore.producer.futures import RecordFuture
from txnstore.read.plan import IsolationLevel
from txnstore.snapshot import Snapshot

#: The exit code of a client after a fatal error.
ENDED = 3
_ATTEMPTS = 5


class Worker:
    """The base of all roles: the store, the history, their own randomness, unique values."""

    def __init__(self, task: Task, store: txnstore.Store, recorder: Recorder) -> None:
        self.task = task
        self.store = store
        self.recorder = recorder
        self.rng = random.Random(f"{task.seed} {task.name}")
        self._numbers = itertools.count()

    def value(self) -> str:
        """A value that no other process sends."""
        return f"{self.task.name}-{next(self._numbers)}"

    def partitions(self, topic: str) -> list[TopicPartition]:
        """All partitions of a topic."""
        return [TopicPartition(topic, number) for number in range(self.store.topic(topic).partitions)]

    def transactional_producer(self) -> txnstore.Producer:
        """Initialise the transactional id of this task, which fences the previous process."""
        name = self.task.transactional_id
        self.recorder.invoke("init", transactional_id=name)
        try:
            producer = self.store.producer(transactional_id=name, transaction_timeout=TRANSACTION_TIMEOUT)
        except TxnStoreError as error:
            self.recorder.complete(outcome_of_call(error), error=str(error))
            raise
        self.recorder.complete(Type.OK, producer_id=producer.producer_id, epoch=producer.epoch)
        return producer

    def transact(self, producer: txnstore.Producer, sends: list[Send], poll: Poll, offsets: Offsets | None) -> bool:
        """One transaction, to its end; whether it has happened. Raises errors that are fatal for the client."""
        more: list[MicroOp] = [poll] if poll.records else []
        value: list[MicroOp] = [*more, *sends, *([offsets] if offsets is not None else [])]
        self.recorder.invoke(
            "txn",
            value,
            transactional_id=producer.transactional_id,
            producer_id=producer.producer_id,
            epoch=producer.epoch,
        )
        commits: list[BaseException | None] = []
        try:
            futures = self._write(producer, sends, offsets)
            if self.rng.random() < 1 / 16:
                producer.abort_transaction()
                self.recorder.complete(outcome_of_txn([], aborted=True))
                return False
            self.recorder.committing()
            self._commit(producer, commits)
        except TxnStoreError as error:
            aborted = self._abort(producer, error)
            self.recorder.complete(outcome_of_txn(commits, aborted=aborted), error=repr(error))
            if not aborted:
                raise
            return False
        landed = [
            Send(send.key, send.value, future.result().offset, send.source)
            for send, future in zip(sends, futures, strict=True)
        ]
        self.recorder.complete(Type.OK, [*more, *landed, *([offsets] if offsets is not None else [])])
        return True

    def _write(self, producer: txnstore.Producer, sends: list[Send], offsets: Offsets | None) -> list[RecordFuture]:
        producer.begin_transaction()
        futures = []
        for send in sends:
            tp = _parse(send.key)
            futures.append(producer.send(tp.topic, str(send.value).encode(), partition=tp.partition))
            if self.rng.random() < 0.15:
                producer.flush()
        if offsets is not None:
            producer.send_offsets({_parse(key): offset for key, offset in offsets.offsets.items()}, offsets.group)
        return futures

    @staticmethod
    def _commit(producer: txnstore.Producer, commits: list[BaseException | None]) -> None:
        """Commit; retries while the storage is unavailable or does not answer."""
        while True:
            try:
                producer.commit_transaction()
            except TxnStoreError as error:
                commits.append(error)
                if not isinstance(error, StorageError) or len(commits) >= _ATTEMPTS:
                    raise
            else:
                commits.append(None)
                return

    @staticmethod
    def _abort(producer: txnstore.Producer, error: TxnStoreError) -> bool:
        if error.fatal or isinstance(error, UnknownOutcomeError):
            return False
        try:
            producer.abort_transaction()
        except TxnStoreError:
            return False
        return True


def produce(worker: Worker) -> None:
    """Transactions of one to four records over the partitions of the input, and a plain record now and then."""
    everywhere = worker.partitions(INPUT)
    rng = worker.rng
    with closing(worker.transactional_producer()) as producer, closing(worker.store.producer(linger=None)) as plain:
        while not worker.task.over:
            if rng.random() < 0.2:
                _plain(worker, plain, rng.choice(everywhere))
            else:
                keys = [str(rng.choice(everywhere)) for _ in range(rng.randint(1, 4))]
                worker.transact(producer, [Send(key, worker.value()) for key in keys], Poll(), None)
            time.sleep(rng.uniform(0.0, worker.task.pause))


def _plain(worker: Worker, producer: txnstore.Producer, tp: TopicPartition) -> None:
    send = Send(str(tp), worker.value())
    worker.recorder.invoke("send", [send])
    try:
        offset = producer.send(tp.topic, str(send.value).encode(), partition=tp.partition).result().offset
    except TxnStoreError as error:
        # Nothing is written so far, but the close of the producer sends again what the storage did not take.
        outcome = Type.INFO if isinstance(error, StorageError) else outcome_of_call(error)
        worker.recorder.complete(outcome, error=repr(error))
        if error.fatal or isinstance(error, StorageError):
            raise
    else:
        worker.recorder.complete(Type.OK, [Send(send.key, send.value, offset)])


def job(worker: Worker) -> None:
    """Consume, transform, produce: each record of its own partitions to the output, the positions with them."""
    task = worker.task
    own = [tp for tp in worker.partitions(INPUT) if tp.partition % task.count == task.number]
    with (
        closing(worker.transactional_producer()) as producer,
        closing(worker.store.consumer(group=task.groups[0])) as consumer,
    ):
        consumer.assign(own)
        while not task.over:
            try:
                records = consumer.poll(timeout=0.0 if task.drain else 0.2, max_records=worker.rng.randint(1, 20))
            except TxnStoreError as error:
                if not error.retriable:
                    raise
                continue
            if records:
                poll, outputs = polled(records), len(worker.partitions(OUTPUT))
                sends = [
                    Send(f"{OUTPUT}-{worker.rng.randrange(outputs)}", worker.value(), None, it) for it in _sources(poll)
                ]
                offsets = Offsets(task.groups[0], {key: items[-1][0] + 1 for key, items in poll.records.items()})
                if not worker.transact(producer, sends, poll, offsets):
                    consumer.rewind_to_committed()
                time.sleep(0.0 if task.drain else worker.rng.uniform(0.0, task.pause))
            elif task.drain and not any(consumer.lag().values()):
                return


def _sources(poll: Poll) -> Iterator[tuple[str, int]]:
    for key, records in poll.records.items():
        for offset, _ in records:
            yield key, offset


def consume(worker: Worker) -> None:
    """Read all records from the beginning; query all ends often, and a snapshot of all records sometimes."""
    isolation: IsolationLevel = "read_committed" if worker.task.number % 2 == 0 else "read_uncommitted"
    recorder, rng = worker.recorder, worker.rng
    partitions = [*worker.partitions(INPUT), *worker.partitions(OUTPUT)]
    observed_at, pinned = time.monotonic(), worker.store.snapshot()
    with closing(worker.store.consumer(isolation=isolation)) as consumer:
        recorder.invoke("assign", [Assign(tuple(map(str, partitions)))])
        consumer.assign(partitions)
        recorder.complete(Type.OK)
        while not worker.task.over:
            if rng.random() < 0.2:
                whole = time.monotonic() - observed_at > 5
                observed_at = time.monotonic() if whole else observed_at
                recorder.invoke("snapshot")
                try:
                    recorder.complete(Type.OK, [observe(worker.store, records=whole, groups=worker.task.groups)])
                except TxnStoreError as error:
                    recorder.complete(Type.FAIL, error=repr(error))
                with suppress(StorageError):
                    pinned = _returned(worker.store, pinned) if whole else pinned
                continue
            recorder.invoke("poll", isolation=isolation)
            try:
                recorder.complete(Type.OK, [polled(consumer.poll(timeout=0.2, max_records=rng.randint(1, 200)))])
            except TxnStoreError as error:
                recorder.complete(Type.FAIL, error=repr(error))


def _returned(store: txnstore.Store, pinned: Snapshot) -> Snapshot:
    """A snapshot of now, after the entries of an earlier one have led back to it; else the process fails."""
    try:
        snapshot = store.snapshot(entry=pinned.heads)
    except InvalidConfigError as error:
        if "history" not in str(error):
            raise
        return store.snapshot()  # They were deleted.
    if snapshot != pinned:
        msg = f"entries {pinned.heads} do not lead to the state that was seen after them"
        raise RuntimeError(msg)
    return store.snapshot()


def tidy(worker: Worker) -> None:
    """Recover, vacuum, expire, delete records of the output and save checkpoints repeatedly."""
    store = worker.store

    def delete() -> object:
        tp = worker.rng.choice(worker.partitions(OUTPUT))
        ends = store.offsets(*tp)
        middle = (ends.log_start + ends.last_stable + 1) // 2
        return store.delete_records({tp: middle})

    _repeat(
        worker,
        {
            "delete": delete,
            "recover": store.recover,
            "vacuum": lambda: store.vacuum(older_than=VACUUM_GRACE, history=VACUUM_GRACE, expire=False),
            "expire": lambda: store.expire(transactional_ids=ID_EXPIRATION),
            "checkpoint": store.checkpoint,
        },
    )


def compact(worker: Worker) -> None:
    """Compact repeatedly, everything and in rounds that claim their partitions."""
    store = worker.store
    _repeat(
        worker,
        {
            "compact": lambda: store.compact(expire=False),
            "round": lambda: list(store.maintain(["compact"], rounds=1)),
        },
    )


def _repeat(worker: Worker, calls: Mapping[str, Callable[[], object]]) -> None:
    """Call one after the other until the end; each may meet another process that does the same, and an outage."""
    while not worker.task.over:
        for name, call in calls.items():
            worker.recorder.invoke(name)
            try:
                call()
            except (StorageError, CompactionConflictError) as error:
                worker.recorder.complete(outcome_of_call(error), error=repr(error))
            else:
                worker.recorder.complete(Type.OK)
        time.sleep(0.5)


ROLES = {"producer": produce, "job": job, "consumer": consume, "janitor": tidy, "compactor": compact}


def main(argument: str) -> int:
    """Do the task; the exit code."""
    faulthandler.register(signal.SIGUSR1)  # What hangs shows where.
    threading.Thread(target=_end_with_parent, daemon=True).start()
    task = Task.from_json(argument)
    with task.history.open("a") as file:
        recorder = Recorder(task.name, time.monotonic_ns, to_file(file))
        try:
            with short_history(LEASE_MS), task.open() as store:
                ROLES[task.role](Worker(task, store, recorder))
        except TxnStoreError as error:
            sys.stderr.write(f"{error!r}\n")
            return ENDED
    return 0


def _end_with_parent() -> None:
    while os.read(0, 1):  # Not through sys.stdin, whose lock would block the end of this process.
        pass
    os._exit(0)


def _parse(key: str) -> TopicPartition:
    topic, _, number = key.rpartition("-")
    return TopicPartition(topic, int(number))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
