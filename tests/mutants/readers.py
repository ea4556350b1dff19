"""Faults in what readers plan from: a catalog at least as new as the rows, and statistics that engines trust."""

from __future__ import annotations

from tests.mutants.mutant import Mutant
from txnstore.consumer.fetcher import Poller
from txnstore.gateway.fetch import Fetch
from txnstore.gateway.fetch_sessions import FetchSession
from txnstore.gateway.freshness import Watch
from txnstore.producer import upload
from txnstore.read.rows import Columns
from txnstore.segment import parquet
from txnstore.spark.streams.stream import Stream
from txnstore.sql import views

_AGES = "protocol/read/test_plans_of_one_age.py::"
_UNORDERED = _AGES + "test_rows_that_no_entry_orders_after_their_schema_are_refused"
_WRITTEN = "unit/segment/test_codec.py::test_statistics_are_written_only_where_every_engine_is_right"
_SESSIONS = "unit/gateway/test_fetch.py::"
_OLDER = "integration/sql/test_filters.py::test_filters_find_the_rows_of_a_scan_in_segments_of_older_releases"

READERS = (
    Mutant(
        "a reader leaves out a column that it does not know",
        Columns.check,
        "if not self._known.issuperset($found):",
        "if False:",
        test=_UNORDERED + "[column]",
    ),
    Mutant(
        "a reader narrows a type that was widened",
        Columns.conform,
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
        "a session keeps what an older request has read",
        FetchSession.keep_reading,
        "self._is_ended or $reading.number != self._readings or $reading.has_errors",
        "$reading.has_errors",
        test=_SESSIONS + "test_a_fetch_of_another_connection_does_not_hide_records",
    ),
    Mutant(
        "a session keeps what it has read of topics that were created again",
        Fetch._reading,
        "$kept.catalog is self._services.freshness.view.topics",
        "True",
        test=_SESSIONS + "test_a_topic_that_was_created_again_is_found_again",
    ),
    Mutant(
        "a watch forgets what changed while no request waits",
        Watch.note,
        "self._changed.add($tp)",
        "self._wake is not None and self._changed.add($tp)",
        test=_SESSIONS + "test_records_that_came_between_two_requests_are_read",
    ),
    Mutant(
        "a stream plans slices of another view than its offsets",
        Stream._commit_offsets,
        "self._use_view(self._connection.view(refresh=False))",
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
    # What segments say to engines, and what keeps the conclusions of those out of answers ----------------------------
    Mutant(
        "floats get statistics, which do not count NaN",
        parquet._has_statistics,
        "if pt.is_floating($data_type):",
        "if False:",
        test=_WRITTEN,
    ),
    Mutant(
        "text without a dictionary gets statistics",
        parquet._has_statistics,
        "not (_is_variable_length($data_type) or pt.is_fixed_size_binary($data_type))",
        "not pt.is_fixed_size_binary($data_type)",
        test=_WRITTEN,
    ),
    Mutant(
        "bytes of a fixed size get statistics",
        parquet._has_statistics,
        "not (_is_variable_length($data_type) or pt.is_fixed_size_binary($data_type))",
        "not _is_variable_length($data_type)",
        test=_WRITTEN,
    ),
    Mutant(
        "a column with the path of a part of a nested one gives it statistics",
        parquet._encoding_options,
        'if pt.is_nested($field.type) or ($nested and "." in $name):',
        "if pt.is_nested($field.type):",
        test=_WRITTEN,
    ),
    Mutant(
        "text with a dictionary has no statistics",
        parquet._has_statistics,
        "return $dictionary or",
        "return",
        test="unit/segment/test_codec.py::test_parquet_encodings_follow_the_values",
    ),
    Mutant(
        "a view lets DuckDB decide filters by statistics of floats",
        views.read_parquet_from,
        ", can_have_nan = true",
        "",
        test=_OLDER,
    ),
)
