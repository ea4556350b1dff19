"""Turning a batch into a segment: encoded, named, uploaded, described for the chain."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass

import pyarrow as pa

from txnstore.catalog.writing import TopicWriter
from txnstore.chain import keys
from txnstore.core.log.model import WINDOW, NewBatch
from txnstore.core.model import TopicPartition
from txnstore.errors import StorageError, StorageRefusedError
from txnstore.producer.batches import Batch
from txnstore.runtime import Runtime
from txnstore.segment.codec import encode
from txnstore.segment.schema import fill_timestamps, timestamp_range
from txnstore.storage.base import ObjectStore

#: Seconds: bounds of the pause between two tries of an upload, doubling from the first to the last.
_FIRST_PAUSE, _MAX_PAUSE = 0.01, 2.0
_MAX_DOUBLINGS = 10


@dataclass(frozen=True, slots=True)
class EncodedBatch:
    """The bytes of a segment, and its description for the chain, which names its key."""

    data: bytes
    new_batch: NewBatch


def encode_batch(
    runtime: Runtime, writer: TopicWriter, tp: TopicPartition, table: pa.Table, chain_time: int
) -> EncodedBatch:
    """Rows of the topic's stored schema as one segment with a name that nobody else has."""
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
    described = NewBatch(
        tp.topic,
        tp.partition,
        encoded.segment(key),
        first,
        last,
        uploaded_at=max(now, chain_time),
        topic_id=writer.topic.topic_id,
    )
    return EncodedBatch(encoded.data, described)


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
    the age of an upload is measured.
    """
    encoded = encode_batch(runtime, writer, tp, table, chain_time)
    objects.put(encoded.new_batch.segment.key, encoded.data)
    return encoded.new_batch


def deliver(
    objects: ObjectStore,
    runtime: Runtime,
    encoded: EncodedBatch,
    timeout: float,
    given_up: Callable[[], bool],
) -> None:
    """PUT the segment; a transient error is followed by another try, for ``timeout`` seconds (``delivery.timeout.ms``).

    Every try writes the same bytes under the same name, so a late one changes nothing. The time is that of the
    runtime's clock, or that of the pauses if the clock stands still.

    Raises:
        StorageRefusedError: The storage will refuse again.
        StorageError: The last try failed; nothing happened, since no entry names the object.
    """
    began, paused, tries = runtime.clock(), 0.0, 0
    while True:
        try:
            objects.put(encoded.new_batch.segment.key, encoded.data)
        except StorageRefusedError:
            raise
        except StorageError as error:
            tries += 1
            if given_up() or max(paused, (runtime.clock() - began) / 1000) >= timeout:
                tp = encoded.new_batch.tp
                msg = f"a segment of {tp} could not be uploaded within {timeout:g} s ({tries} tries): {error}"
                raise StorageError(msg) from error
        else:
            return
        bound = min(_MAX_PAUSE, _FIRST_PAUSE * 2 ** min(tries, _MAX_DOUBLINGS))
        pause = runtime.rng.uniform(0, bound)
        runtime.sleep(pause)
        paused += pause


class Upload:
    """A sealed batch on its way to the storage.

    ``task``: the thread of the pool that uploads it; None until it is submitted. It ends with ``new_batch`` or
    ``error``. ``abandoned``: nobody needs it any more, so it is not tried again. ``buffered``: it counts as part of the
    producer's buffer.
    """

    __slots__ = ("abandoned", "batch", "buffered", "error", "new_batch", "size", "task")

    def __init__(self, batch: Batch) -> None:
        self.batch = batch
        self.size = batch.bytes
        self.task: Future[None] | None = None
        self.new_batch: NewBatch | None = None
        self.error: Exception | None = None
        self.abandoned = False
        self.buffered = True

    @property
    def ended(self) -> bool:
        """Whether it is uploaded, or failed for good."""
        return self.new_batch is not None or self.error is not None

    @property
    def registrable(self) -> NewBatch:
        """What was uploaded."""
        assert self.new_batch is not None
        return self.new_batch


def rounds(uploads: Sequence[Upload]) -> list[list[Upload]]:
    """Batches in order, cut where a partition would get more of them than its producer window remembers.

    A repeated append is recognised by that window, so one entry carries at most five batches per partition.
    """
    found: list[list[Upload]] = []
    counts: dict[TopicPartition, int] = {}
    for upload in uploads:
        tp = upload.batch.tp
        if not found or counts.get(tp, 0) >= WINDOW:
            found.append([])
            counts = {}
        found[-1].append(upload)
        counts[tp] = counts.get(tp, 0) + 1
    return found
