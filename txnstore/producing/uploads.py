"""Turning a batch into a segment: encoded, named, uploaded, described for the chain."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import Any

import pyarrow as pa

from txnstore.catalog.writing import TopicWriter
from txnstore.chain import keys
from txnstore.core.model import NewBatch, TopicPartition
from txnstore.ids import Runtime
from txnstore.producing.batching import PendingBatch
from txnstore.segment.codec import encode
from txnstore.segment.schema import fill_timestamps, timestamp_range
from txnstore.storage.base import ObjectStore


def upload(
    objects: ObjectStore,
    runtime: Runtime,
    writer: TopicWriter,
    tp: TopicPartition,
    table: pa.Table,
    chain_time: int = 0,
) -> NewBatch:
    """Upload rows of the topic's stored schema as one segment, and describe it. One PUT.

    The object has a unique name and belongs to nobody until an entry of the chain names it. ``chain_time``: that of the
    last entry that the writer knows. Where another writer's clock went ahead, so did the time of the chain, in which
    the age of an upload is told.
    """
    now = runtime.clock()
    column = writer.timestamp_column
    config = writer.config
    if column is not None:
        if config.append_time:
            moments = table.schema.field(column)
            table = table.set_column(table.schema.names.index(column), moments, pa.nulls(table.num_rows, moments.type))
        table = fill_timestamps(table, column, now)
    first, last = timestamp_range(table, column, now)
    encoded = encode(table, config.segment_format, config.compression)
    key = keys.segment(tp.topic, tp.partition, runtime.new_id(), config.segment_format)
    objects.put(key, encoded.data)
    return NewBatch(
        tp.topic,
        tp.partition,
        encoded.segment(key),
        first,
        last,
        uploaded_at=max(now, chain_time),
        topic_id=writer.topic.topic_id,
    )


@dataclass(frozen=True, slots=True)
class Upload:
    """A sealed batch on its way to the storage."""

    batch: PendingBatch
    size: int
    future: Future[NewBatch]

    @property
    def new_batch(self) -> NewBatch:
        """What was uploaded; waits for it."""
        return self.future.result()


class Unstarted:
    """Uploads for the thread that waits for them: handing the last one to another thread would only cost time."""

    __slots__ = ("_tasks",)

    def __init__(self) -> None:
        self._tasks: list[tuple[Future[NewBatch], Callable[[], NewBatch]]] = []

    def add(self, upload: Callable[..., NewBatch], *args: Any) -> Future[NewBatch]:
        """The future of an upload that :meth:`run` will do."""
        future: Future[NewBatch] = Future()
        self._tasks.append((future, partial(upload, *args)))
        return future

    def run(self) -> None:
        """Do the uploads; an error, also an interrupt, goes to the future, as it would in another thread.

        A task is let go of when its future has ended, so that an interrupt leaves none that is waited for in vain.
        """
        while self._tasks:
            future, task = self._tasks[0]
            try:
                if not future.done():
                    future.set_result(task())
            except BaseException as error:  # noqa: BLE001 - whoever asks the future gets it
                if not future.done():
                    future.set_exception(error)
            del self._tasks[0]

    def drop(self, error: BaseException) -> None:
        """Give up what was not begun."""
        tasks, self._tasks = self._tasks, []
        for future, _ in tasks:
            if not future.done():
                future.set_exception(error)
