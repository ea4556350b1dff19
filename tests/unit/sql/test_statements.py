"""Which queries run in the database that all calls share, and what runs alone."""

from __future__ import annotations

import duckdb
import pytest

from txnstore.sql.statements import is_plain
from txnstore.store import create

#: Table functions of DuckDB that neither list nor change what a database contains, except for files.
HARMLESS = frozenset(
    {
        "arrow_scan", "arrow_scan_dumb", "checkpoint", "force_checkpoint",
        "generate_series", "glob", "histogram", "histogram_values", "icu_calendar_names", "json_each", "json_tree",
        "pandas_scan", "parquet_bloom_probe", "parquet_file_metadata", "parquet_full_metadata", "parquet_kv_metadata",
        "parquet_metadata", "parquet_page_index", "parquet_scan", "parquet_schema", "python_arrow_scan",
        "python_map_function", "range", "read_blob", "read_csv", "read_csv_auto", "read_duckdb", "read_json",
        "read_json_auto", "read_json_objects", "read_json_objects_auto", "read_ndjson", "read_ndjson_auto",
        "read_ndjson_objects", "read_parquet", "read_single_csv_file", "read_single_json_file",
        "read_single_parquet_file", "read_text", "repeat", "repeat_row", "seq_scan", "sniff_csv", "summary",
        "test_all_types", "test_vector_types", "unnest", "which_secret",
    }
)  # fmt: skip


def test_each_table_function_of_duckdb_is_harmless_or_runs_alone() -> None:
    """A release of DuckDB may add one that lists or changes a database."""
    with duckdb.connect() as con:
        found = con.execute(
            "SELECT DISTINCT function_name FROM duckdb_functions() WHERE function_type IN ('table', 'table_macro')"
        ).fetchall()
    names = {name for (name,) in found}
    assert {name for name in names if is_plain(f"FROM {name}()", [])} <= HARMLESS
    assert names >= {"duckdb_views", "json_execute_serialized_sql", "add_grammar_extension"}


@pytest.mark.parametrize("name", ["in_search_path", "has_schema_privilege", "json_serialize_plan", "current_setting"])
def test_a_function_that_looks_into_the_catalog_runs_alone(name: str) -> None:
    assert not is_plain(f"SELECT {name}('a', 'b')", [])


@pytest.mark.parametrize(
    "query", ["SELECT x FROM orders ORDER BY x DESC", "SELECT has_privilege, logs FROM t", "FROM read_json('a.json')"]
)
def test_a_query_with_similar_words_is_plain(query: str) -> None:
    assert is_plain(query, [])


@pytest.mark.parametrize(
    "query", ["SELECT '/*'; /* */ DESC", "/* /* */ */ DESC", "SELECT '/*', * FROM(/* */DESC SCHEMAS)", "-- a\nDESC"]
)
def test_a_listing_behind_a_comment_is_found(query: str) -> None:
    """Comments nest, and their signs may stand in a text: with any of them the word alone counts."""
    assert not is_plain(query, [])


def test_a_query_that_runs_alone_has_its_parameters(memory_store_url: str) -> None:
    with create(memory_store_url) as store:
        assert store.sql("SELECT current_setting('TimeZone'), ?", params=[1]).fetchall() == [("UTC", 1)]
