"""Mutants of the rules by which readers plan from a catalog that is at least as new as the rows."""

from __future__ import annotations

from tests.mutants.mutant import Mutant
from txnstore.consumer.fetcher import Poller
from txnstore.gateway.fetch import Fetch
from txnstore.producer import upload
from txnstore.read.reader import Projection
from txnstore.spark.streams.stream import Stream

_AGES = "protocol/read/test_plans_of_one_age.py::"
_UNORDERED = _AGES + "test_rows_that_no_entry_orders_after_their_schema_are_refused"

READERS = (
    Mutant(
        "a reader leaves out a column that it does not know",
        Projection.check_columns,
        "if not self._known.issuperset($names):",
        "if False:",
        test=_UNORDERED + "[column]",
    ),
    Mutant(
        "a reader narrows a type that was widened",
        Projection._conform,
        "is_wider($known, $field.type)",
        "False",
        test=_UNORDERED + "[type]",
    ),
    Mutant(
        "a consumer does not read the catalog again for an unknown column",
        Poller._poll,
        "$view = self._connection.view()",
        "pass",
        test=_UNORDERED + "[column]",
    ),
    Mutant(
        "a fetch that waited reads with the columns of its arrival",
        Fetch._read_all,
        "$topic = $view.topics.get($each.tp.topic)",
        "$topic = $each.topic",
        test="unit/gateway/test_cold.py::test_a_fetch_that_waited_reads_the_columns_of_what_came",
    ),
    Mutant(
        "a stream plans slices of another view than its offsets",
        Stream._commit,
        "self._show(self._connection.view(refresh=False))",
        "self._view = self._connection.view(refresh=False)",
        test="unit/spark/test_stream.py::test_a_plan_after_a_commit_is_of_the_same_view_as_its_logs",
    ),
    Mutant(
        "readers find the time of the upload where the producer reports that of the append",
        upload.encode_rows,
        '"LogAppendTime" if $writer.event_time is None else "CreateTime"',
        "$writer.config.message_timestamp_type",
        test="protocol/producer/test_timestamps.py",
    ),
)
