"""Mutants of what is written for engines, and of what keeps their conclusions out of answers."""

from __future__ import annotations

from tests.mutants.mutant import Mutant
from txnstore.segment import parquet
from txnstore.sql import views

_WRITTEN = "unit/segment/test_codec.py::test_statistics_are_written_only_where_every_engine_is_right"
_OLDER = "integration/sql/test_filters.py::test_filters_find_the_rows_of_a_scan_in_segments_of_older_releases"

ENGINES = (
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
        "not (_is_variable($data_type) or pt.is_fixed_size_binary($data_type))",
        "not pt.is_fixed_size_binary($data_type)",
        test=_WRITTEN,
    ),
    Mutant(
        "bytes of a fixed size get statistics",
        parquet._has_statistics,
        "not (_is_variable($data_type) or pt.is_fixed_size_binary($data_type))",
        "not _is_variable($data_type)",
        test=_WRITTEN,
    ),
    Mutant(
        "a column with the path of a part of a nested one gives it statistics",
        parquet._encodings,
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
