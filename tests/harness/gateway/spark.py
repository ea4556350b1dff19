"""A job of Spark beside the gateways: ``python -m tests.harness.gateway.spark TASK``.

A streaming query copies the input to the output by the library's own source and sink, and each record names the one
that it is made of. It keeps no history: :func:`copies` makes one of what was read of it. A producer writes frames to
the input, each in one transaction, and keeps a history.
"""

from __future__ import annotations

import faulthandler
import itertools
import os
import random
import shutil
import signal
import sys
import threading
import time
import traceback
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from tests.harness.gateway.plan import ENDED, ClientTask
from tests.harness.gateway.watch import Watch
from tests.harness.gateway.worker import end_with_parent
from tests.harness.history import Event, History, Offsets, Operation, Poll, Recorder, Send, Type, to_file
from tests.harness.history.format import MicroOp, Value
from tests.harness.history.index import observed
from tests.harness.streaming.driver import storage_options
from tests.harness.torture.plan import INPUT, OUTPUT
from tests.helpers.spark_home import environment, local_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: The home of Spark, in the folder of the run.
HOME = "spark-home"
#: The processes of the history that is made of its copies.
COPIED = "copied-"
_CHECKPOINT = "spark-checkpoint"
_MARK = "spark|"
#: How many records a micro-batch has at most, and how often there is one.
_OFFSETS, _TRIGGER = 300, "2 seconds"
#: The share of starts without the checkpoint of the earlier ones.
_LOSES_ITS_CHECKPOINT = 0.15
#: How many records a frame has for each of its partitions at most.
_RECORDS = 20


def copies(operations: Iterable[Operation]) -> Iterator[Event]:
    """The transactions of Spark that have written what was read: one for each record, which is all that is known."""
    seen: set[tuple[str, str]] = set()
    for op in operations:
        for key, offset, value in observed(op):
            if not (isinstance(value, str) and value.startswith(_MARK)) or (key, value) in seen:
                continue
            seen.add((key, value))
            _, group, source, at, original = value.split("|", 4)
            poll = Poll({source: ((int(at), original),)})
            send = Send(key, value, offset, (source, int(at)))
            name = f"{COPIED}{len(seen)}"
            # From the beginning of time to an unknown end.
            yield Event(name, Type.INVOKE, "txn", 0, (poll, send, Offsets(group, {source: int(at) + 1})), name)


def without_aborted_copies(history: History) -> History:
    """The history without records of Spark that only read_uncommitted consumers have read.

    They are of micro-batches that were aborted, and written again with the same values.
    """
    operations = history.operations
    committed = {(key, offset) for op in operations if op.committed_reads for key, offset, _ in observed(op)}

    def is_kept(key: str, offset: int, value: Value) -> bool:
        return (key, offset) in committed or not (isinstance(value, str) and value.startswith(_MARK))

    def filtered(item: MicroOp) -> MicroOp:
        if not isinstance(item, Poll):
            return item
        return Poll(
            {key: tuple(record for record in records if is_kept(key, *record)) for key, records in item.records.items()}
        )

    return replace(
        history,
        operations=tuple(
            op if op.committed_reads else replace(op, value=tuple(map(filtered, op.value))) for op in operations
        ),
    )


def copy(task: ClientTask, spark: SparkSession, watch: Watch, recorder: Recorder) -> None:
    """Copy the input to the output."""
    group = task.groups[0]
    checkpoint = Path(task.folder) / _CHECKPOINT
    if random.Random(f"{task.seed} {task.name}").random() < _LOSES_ITS_CHECKPOINT:
        shutil.rmtree(checkpoint, ignore_errors=True)
    options = {**storage_options(task.options), "group": group}
    reader = spark.readStream.format("txnstore").options(topic=INPUT, maxOffsetsPerTrigger=_OFFSETS, **options)
    made = reader.load(task.url).selectExpr(
        f"concat_ws('|', 'spark', '{group}', concat('{INPUT}-', _partition), _offset, decode(value, 'utf-8')) as value",
        f"cast((_offset + _partition) % {task.partitions} as int) as _partition",
    )
    writer = made.writeStream.format("txnstore").options(topic=OUTPUT, path=task.url, **options)
    writer = writer.option("checkpointLocation", str(checkpoint))
    query = writer.trigger(processingTime=_TRIGGER).start()
    recorder.invoke("start")
    recorder.complete(Type.OK)
    latest = None
    while not task.over and not query.awaitTermination(1):
        progress = query.lastProgress
        if progress is not None and progress.timestamp != latest:  # Idle triggers make progress, too.
            latest = progress.timestamp
            watch.note(f"after micro-batch {progress.batchId}")
    query.stop()


def produce(task: ClientTask, spark: SparkSession, watch: Watch, recorder: Recorder) -> None:
    """Append frames to two partitions of the input, of which each of two tasks writes one, in order."""
    rng, numbers = random.Random(f"{task.seed} {task.name}"), itertools.count()
    while not task.over:
        count = rng.randint(1, _RECORDS)
        places = [place for place in rng.sample(range(task.partitions), 2) for _ in range(count)]
        sends = [Send(f"{INPUT}-{place}", f"{task.name}-{next(numbers)}") for place in places]
        rows = [(place, str(send.value)) for place, send in zip(places, sends, strict=True)]
        frame = spark.createDataFrame(rows, "_partition int, value string")
        recorder.invoke("txn", sends)
        watch.note(f"write {len(rows)} records")
        writer = frame.write.format("txnstore").options(topic=INPUT, **storage_options(task.options))
        try:
            writer.mode("append").save(task.url)
        except Exception as failure:
            recorder.complete(Type.INFO, error=repr(failure)[:500])
            raise
        recorder.complete(Type.OK, sends)
        time.sleep(rng.uniform(0.0, task.pause))


KINDS = {"job": copy, "producer": produce}


def main(argument: str) -> int:
    """Do the task; the exit code."""
    faulthandler.register(signal.SIGUSR1)  # What hangs shows where.
    threading.Thread(target=end_with_parent, daemon=True).start()
    task = ClientTask.from_json(argument)
    try:
        watch = Watch(task.calls)
        os.environ.update(environment(Path(task.folder) / HOME))
        spark = local_session("txnstore-gateways")
        with task.history.open("a") as file:
            KINDS[task.kind](task, spark, watch, Recorder(task.name, time.monotonic_ns, to_file(file)))
        spark.stop()
    except Exception:  # noqa: BLE001 - Whatever ends a query, the next process continues.
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(ENDED)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
