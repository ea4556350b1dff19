"""Turning a batch into a segment: encoded, named, uploaded, described for the chain."""

from __future__ import annotations

import pyarrow as pa

from txnstore.catalog.writing import TopicWriter
from txnstore.chain import keys
from txnstore.core.model import NewBatch, Segment, TopicPartition
from txnstore.ids import Runtime
from txnstore.segment.codec import encode
from txnstore.segment.schema import fill_timestamps, timestamp_range
from txnstore.storage.base import ObjectStore


def upload(
    objects: ObjectStore,
    runtime: Runtime,
    writer: TopicWriter,
    tp: TopicPartition,
    table: pa.Table,
) -> NewBatch:
    """Upload rows of the topic's stored schema as one segment, and describe it. One PUT.

    The object has a unique name and belongs to nobody until an entry of the chain names it.
    """
    now = runtime.clock()
    column = writer.timestamp_column
    if column is not None:
        table = fill_timestamps(table, column, now)
    first, last = timestamp_range(table, column, now)
    config = writer.config
    encoded = encode(table, config.segment_format, config.compression)
    key = keys.segment(tp.topic, tp.partition, runtime.new_id(), config.segment_format)
    objects.put(key, encoded.data)
    segment = Segment(key, config.segment_format, encoded.size, encoded.sha256, encoded.rows)
    return NewBatch(tp.topic, tp.partition, segment, first, last)
