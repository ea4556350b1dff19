"""Streaming queries that fail at their start, instead of later in the background.

Spark calls a Python sink for the first time in the first micro-batch, and reads a checkpoint in the thread of the
query, after ``start()`` has returned. So the checks of the sink are made here before the start, and errors of sources
and checkpoints are awaited after it.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING

from txnstore.errors import InvalidConfigError
from txnstore.spark.options import sink_options
from txnstore.spark.stores import cached_connection
from txnstore.spark.streams.checkpoint import check_checkpoint
from txnstore.spark.workers import check_workers
from txnstore.spark.writes.writer import find_topics

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

_LOG = logging.getLogger(__name__)

#: The pause between two looks at a query, in seconds.
_PAUSE_S = 0.05
#: How often a query is started whose Python process was too slow: Spark waits 10 seconds, and has no setting for it.
_STARTS = 5
#: What Spark says of a Python process that had not connected after these 10 seconds.
_TOO_SLOW = "Python worker failed to connect back"


def make_stream_writer(frame: DataFrame, options: Mapping[str, str]) -> DataStreamWriter:
    """Implements :func:`txnstore.spark.write_stream`."""
    sink = sink_options(options)
    if not frame.isStreaming:
        msg = "this DataFrame is no stream: read it with spark.readStream, or write it with df.write"
        raise InvalidConfigError(msg)
    check_workers(frame.sparkSession)
    connection = cached_connection(sink.location)
    find_topics(connection, sink, frame.schema)
    if sink.group is not None and sink.checkpoint is not None:
        check_checkpoint(sink.checkpoint, sink.location)
    return frame.writeStream.format("txnstore").options(**dict(options))


def start_and_wait(writer: DataStreamWriter, timeout: float) -> StreamingQuery:
    """Implements :func:`txnstore.spark.start`."""
    from pyspark.errors import StreamingQueryException

    for start in range(1, _STARTS + 1):
        query = writer.start()
        try:
            for _ in range(max(1, int(timeout / _PAUSE_S))):
                if query.awaitTermination(_PAUSE_S) or _has_progressed(query):  # type: ignore[arg-type]  # It takes fractions.
                    break
        except StreamingQueryException as error:
            # The query has read and written nothing: the process of its source had not even started.
            if start == _STARTS or _TOO_SLOW not in str(error):
                raise
            _LOG.warning(
                "Spark gave up on a Python process after 10 seconds: query started again", extra={"attempt": start}
            )
            continue
        break
    return query


def _has_progressed(query: StreamingQuery) -> bool:
    """Whether a query has committed a micro-batch, or has found nothing to read."""
    return query.lastProgress is not None or str(query.status["message"]).startswith("Waiting for")
