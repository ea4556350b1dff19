"""Mutants of the rules by which a name gives no right, and one topic's name or value does not stop the others."""

from __future__ import annotations

from tests.mutants.mutant import Mutant
from txnstore.catalog import topics
from txnstore.compactor.compact import replacements
from txnstore.compactor.verify import segments as verify_segments
from txnstore.segment import convert
from txnstore.sql import filesystem, inspection, planning, session, shared, types, views
from txnstore.tables import publish
from txnstore.values import maps

_RIGHTS, _GUARDS = "integration/sql/test_rights.py::", "integration/sql/test_guards.py::"
_FILES, _MAPS = "unit/sql/test_filesystem.py::", "unit/values/test_maps.py::"
_REVOKED = _RIGHTS + "test_a_revoked_right_ends_earlier_views_and_their_files"
_OBJECTS = _RIGHTS + "test_the_tables_of_objects_show_what_the_principal_may_read"
_NAMES = "unit/catalog/test_topics.py::test_a_name_is_accepted_if_kafka_and_the_storage_accept_it"
_NO_KEY = _FILES + "test_an_object_that_is_no_segment_has_no_path"
_ONE = "integration/test_one_topic.py::"
_COMMENT = "integration/sql/test_emit.py::test_nothing_in_a_name_ends_a_comment"

NAMES = (
    Mutant(
        "the shared database outlives a change of the rules",
        shared.SharedDatabase.cursor,
        "$database.rules is not $rules",
        "False",
        test=_REVOKED,
    ),
    Mutant(
        "files of earlier views outlive a change of the rules",
        session.Session._show,
        "if $plan.rules is not self._rules:",
        "if False:",
        test=_REVOKED,
    ),
    Mutant(
        "earlier files are never forgotten",
        filesystem.SegmentFileSystem.forget_earlier,
        "self._earlier.clear()",
        "pass",
        test=_FILES + "test_a_segment_that_was_not_added_is_no_file_whatever_names_it",
    ),
    Mutant(
        "a file is forgotten at once that a running query reads",
        filesystem.SegmentFileSystem.add,
        "if $path not in $files",
        "if False",
        test=_FILES + "test_tables_of_earlier_snapshots_stay_for_queries_that_run",
    ),
    Mutant(
        "the tables of objects show all topics",
        inspection.table,
        "if $name in _OF_OBJECTS:",
        "if False:",
        test=_OBJECTS,
    ),
    Mutant(
        "a caller that may describe a topic sees its objects",
        planning._readable,
        '"READ", "TOPIC"',
        '"DESCRIBE", "TOPIC"',
        test=_OBJECTS,
    ),
    Mutant(
        "any key is that of a segment",
        filesystem.segment_path,
        "if not has_segments($segment.key):",
        "if False:",
        test=_NO_KEY,
    ),
    Mutant(
        "a topic may have a name that the storage refuses",
        topics._check_new_name,
        'check_key(keys.segment($name, 0, "0", "parquet"))',
        "pass",
        test=_NAMES,
    ),
    Mutant(
        "a column may have the name of an inner one",
        views._inner_name,
        'f"{PARTITION_FIELD.name} {$name}"',
        'f"{$name} of the topic"',
        test=_GUARDS + "test_a_column_may_have_any_name",
    ),
    Mutant(
        "a view that DuckDB refuses stops all others",
        session.Session._replace_views,
        "if $creating not in $plan.topics:",
        "if True:",
        test=_GUARDS + "test_views_that_duckdb_refuses_raise_why_and_hide_no_other",
    ),
    Mutant(
        "a topic hides a view of DuckDB",
        views.view_names,
        "2 if _OWN_VIEWS.fullmatch($name) else 1",
        "1",
        test="unit/sql/test_views.py::test_a_topic_does_not_hide_a_view_that_duckdb_needs",
    ),
    Mutant(
        "a line break ends a comment",
        types.comment,
        "_BREAKS.sub(lambda found: repr(found.group())[1:-1], $text)",
        "$text",
        test=_COMMENT,
    ),
    Mutant(
        "maps with equal keys are accepted in a table that fits",
        convert._check_values,
        "check_maps($column, $field.name)",
        "pass",
        test=_MAPS + "test_equal_keys_are_refused_and_named",
    ),
    Mutant(
        "0.0 and -0.0 are different keys",
        maps._wrong_key,
        "if pt.is_floating($keys.type):",
        "if False:",
        test=_MAPS + "test_what_is_accepted_is_what_duckdb_reads",
    ),
    Mutant(
        "what a null hides is a value",
        maps._find,
        "if $array.null_count:",
        "if False:",
        test=_MAPS + "test_what_a_null_hides_is_no_value",
    ),
    Mutant(
        "a compaction tries all topics of a storage that does not answer",
        replacements.Replacements._uploaded,
        "self._connection.view()",
        "pass",
        test=_ONE + "test_a_storage_that_does_not_answer_ends_a_compaction_at_once",
    ),
    Mutant(
        "a table that is not published is not named",
        publish.Publisher._attempt,
        "self._failed[$topic] = $failure",
        "pass",
        test=_ONE + "test_the_tables_of_the_others_are_published",
    ),
    Mutant(
        "a table is shown for the next topic of its name",
        publish.Publisher._versions,
        " or ($name in self._failed and $topics[$name].topic_id != $table.topic_id)",
        "",
        test=_ONE + "test_the_table_of_a_deleted_topic_is_not_shown_for_its_successor",
    ),
    Mutant(
        "a copy that failed is not looked for again",
        publish.Publisher._complete,
        "if not self._failed:",
        "if True:",
        test=_ONE + "test_a_copy_that_the_storage_refuses_is_made_by_the_next_publication",
    ),
    Mutant(
        "an object that is refused ends a verification",
        verify_segments._read,
        "except StorageError",
        "except LookupError",
        test=_ONE + "test_a_verification_names_the_topic_and_checks_the_others",
    ),
)
