"""One client of a run: ``python -m tests.harness.gateway.worker TASK``.

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
from collections.abc import Iterable
from typing import Any, cast

from tests.harness.gateway.client import Consuming, EndedError, Library, Places, Producing, Read, RefusedError
from tests.harness.gateway.plan import ENDED, ClientTask
from tests.harness.gateway.watch import Watch, Watched
from tests.harness.history import Assign, Offsets, Poll, Recorder, Send, Type, to_file
from tests.harness.history.format import MicroOp, Value
from tests.harness.torture.plan import INPUT, OUTPUT


def _library(task: ClientTask) -> Library:
    """The library that a task names: only that one is imported, as all workers start together."""
    if task.library == "java":
        from tests.harness.gateway.java import Java

        return Java(task)
    if task.library == "aiokafka":
        from tests.harness.gateway.aio import Aiokafka

        return Aiokafka(task)
    from tests.harness.gateway.librdkafka import Librdkafka

    return Librdkafka(task)


class Worker:
    """A client, its history and its randomness."""

    def __init__(self, task: ClientTask, library: Library, recorder: Recorder) -> None:
        self.task, self.recorder = task, recorder
        self.rng = random.Random(f"{task.seed} {task.name}")
        self._watch = Watch(task.calls)
        self.library: Library = self._watched(library, task.library)
        self._numbers = itertools.count()

    def _watched(self, client: Any, name: str) -> Any:
        return Watched(client, self._watch, name)

    def producer(self, transactional_id: str | None) -> Producing:
        """A producer, transactional if there is an id."""
        name = "producer" if transactional_id else "plain producer"
        return cast("Producing", self._watched(self.library.producer(transactional_id), name))

    def consumer(self, group: str | None, isolation: str) -> Consuming:
        """A consumer."""
        return cast("Consuming", self._watched(self.library.consumer(group, isolation), "consumer"))

    def value(self) -> str:
        """A value that no other process sends."""
        return f"{self.task.name}-{next(self._numbers)}"

    def transactional_producer(self) -> Producing:
        """Initialise the transactional id of this task, which fences the previous process."""
        self.recorder.invoke("init", transactional_id=self.task.transactional_id)
        try:
            producer = self.producer(self.task.transactional_id)
        except (RefusedError, EndedError) as failure:
            self.recorder.complete(Type.INFO, error=str(failure))
            raise EndedError(str(failure)) from failure
        self.recorder.complete(Type.OK)
        return producer

    def transact(
        self, producer: Producing, sends: list[Send], poll: Poll, offsets: Offsets | None, consumer: Consuming | None
    ) -> bool:
        """One transaction, to its end; whether it has happened. Raises :class:`EndedError`."""
        recorder = self.recorder
        before: list[MicroOp] = [poll] if poll.records else []
        after: list[MicroOp] = [offsets] if offsets is not None else []
        recorder.invoke("txn", [*before, *sends, *after], transactional_id=self.task.transactional_id)
        committing = False
        try:
            producer.begin()
            waits = []
            for send in sends:
                waits.append(producer.send(*_place(send.key), str(send.value).encode()))
                if self.rng.random() < 0.15:
                    producer.flush()
            if offsets is not None and consumer is not None:
                producer.send_offsets({_place(key): offset for key, offset in offsets.offsets.items()}, consumer)
            if self.rng.random() < 1 / 16:
                producer.abort()
                recorder.complete(Type.FAIL)
                return False
            committing = True
            recorder.committing()
            producer.commit()
        except RefusedError as failure:
            try:
                producer.abort()
            except EndedError as end:
                recorder.complete(Type.INFO if committing else Type.FAIL, error=f"{failure}; then {end}")
                raise
            recorder.complete(Type.FAIL, error=str(failure))
            return False
        except EndedError as failure:
            recorder.complete(Type.INFO if committing else Type.FAIL, error=str(failure))
            raise
        landed = [Send(each.key, each.value, wait(), each.source) for each, wait in zip(sends, waits, strict=True)]
        recorder.complete(Type.OK, [*before, *landed, *after])
        return True


def produce(worker: Worker) -> None:
    """Transactions of one to four records over the input, and plain batches now and then, several in flight."""
    rng, plain = worker.rng, worker.producer(None)
    producer = worker.transactional_producer()
    while not worker.task.over:
        if rng.random() < 0.25:
            _send(worker, plain)
        else:
            keys = [f"{INPUT}-{rng.randrange(worker.task.partitions)}" for _ in range(rng.randint(1, 4))]
            worker.transact(producer, [Send(key, worker.value()) for key in keys], Poll(), None, None)
        time.sleep(rng.uniform(0.0, worker.task.pause))
    producer.close()
    plain.close()


def _send(worker: Worker, producer: Producing) -> None:
    """Records to one partition, in one go: batches of ten or fewer, one after the other."""
    key = f"{INPUT}-{worker.rng.randrange(worker.task.partitions)}"
    sends = [Send(key, worker.value()) for _ in range(worker.rng.choice([1, 5, 60]))]
    worker.recorder.invoke("send", sends)
    try:
        waits = [producer.send(*_place(key), str(send.value).encode()) for send in sends]
        landed = [Send(key, send.value, wait()) for send, wait in zip(sends, waits, strict=True)]
    except (RefusedError, EndedError) as failure:
        # The client may still send what waits: a new one begins again.
        worker.recorder.complete(Type.INFO, error=str(failure))
        raise EndedError(str(failure)) from failure
    worker.recorder.complete(Type.OK, landed)


def job(worker: Worker) -> None:
    """Consume, transform, produce, as a member of a group: the offsets go with the transaction."""
    task, recorder, library = worker.task, worker.recorder, worker.library
    producer = worker.transactional_producer()
    consumer = worker.consumer(task.groups[0], "read_committed")
    changes: list[tuple[Places, Places]] = []
    consumer.subscribe(INPUT, lambda own, new: changes.append((own, new)))
    while not task.over:
        library.working()
        try:
            reads = consumer.poll(100 if task.drain else worker.rng.randint(1, 20), 0.2)
            while changes:
                own, new = changes.pop(0)
                recorder.invoke("assign", [Assign(_keys(own), _keys(new))])
                recorder.complete(Type.OK)
            if reads:
                _copy(worker, producer, consumer, reads)
        finally:
            library.idle()
    consumer.close()
    producer.close()


def _copy(worker: Worker, producer: Producing, consumer: Consuming, reads: list[Read]) -> None:
    poll = _polled(reads)
    sends = [
        Send(f"{OUTPUT}-{worker.rng.randrange(worker.task.partitions)}", worker.value(), None, (key, offset))
        for key, records in poll.records.items()
        for offset, _ in records
    ]
    offsets = Offsets(worker.task.groups[0], {key: items[-1][0] + 1 for key, items in poll.records.items()})
    if not worker.transact(producer, sends, poll, offsets, consumer):
        consumer.rewind({_place(key): records[0][0] for key, records in poll.records.items()})


def consume(worker: Worker) -> None:
    """Read all records from the beginning."""
    isolation = "read_committed" if worker.task.number % 2 == 0 else "read_uncommitted"
    recorder = worker.recorder
    places = [(topic, number) for topic in (INPUT, OUTPUT) for number in range(worker.task.partitions)]
    consumer = worker.consumer(None, isolation)
    consumer.assign(places)
    recorder.invoke("assign", [Assign(_keys(places))])
    recorder.complete(Type.OK)
    while not worker.task.over:
        recorder.invoke("poll", isolation=isolation)
        recorder.complete(Type.OK, [_polled(consumer.poll(200, 0.2))])
    consumer.close()


def _polled(reads: Iterable[Read]) -> Poll:
    by_key: dict[str, list[tuple[int, Value]]] = {}
    for read in reads:
        by_key.setdefault(f"{read.topic}-{read.partition}", []).append((read.offset, read.value))
    return Poll({key: tuple(records) for key, records in by_key.items()})


def _keys(places: Places) -> tuple[str, ...]:
    return tuple(f"{topic}-{number}" for topic, number in places)


def _place(key: str) -> tuple[str, int]:
    topic, _, number = key.rpartition("-")
    return topic, int(number)


ROLES = {"producer": produce, "job": job, "consumer": consume}


def main(argument: str) -> int:
    """Do the task; the exit code."""
    faulthandler.register(signal.SIGUSR1)  # What hangs shows where.
    threading.Thread(target=end_with_parent, daemon=True).start()
    task = ClientTask.from_json(argument)
    with task.history.open("a") as file:
        recorder = Recorder(task.name, time.monotonic_ns, to_file(file))
        library = _library(task)
        try:
            ROLES[task.kind](Worker(task, library, recorder))
        except (EndedError, RefusedError) as failure:
            sys.stderr.write(f"ended: {failure!r}\n")
            sys.stderr.flush()
            # Without waiting for what its libraries still try in the background: as if it were killed.
            os._exit(ENDED)
        library.close()
    return 0


def end_with_parent() -> None:
    """End this process when the one that has started it ends."""
    while os.read(0, 1):  # Not through sys.stdin, whose lock would block the end of this process.
        pass
    os._exit(0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
