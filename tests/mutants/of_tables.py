"""Mutants of the publication of tables, and of what a vacuum keeps for engines."""

from __future__ import annotations

from tests.mutants.mutant import Mutant
from txnstore.catalog.iceberg import groups
from txnstore.catalog.iceberg.metadata import TableMetadata
from txnstore.compactor.compact import merge_plan
from txnstore.compactor.vacuum import vacuum
from txnstore.tables import lineage, plan, publish, sweep
from txnstore.tables.check import _Check
from txnstore.tables.published import Published

_PLAN, _ICEBERG = "unit/tables/test_plan.py::", "unit/tables/test_iceberg.py::"
_PUBLISHERS, _SYNC = "protocol/tables/test_publishers.py::", "protocol/tables/test_sync.py::"
_SHOWN_ONCE = _PLAN + "test_each_publication_shows_what_is_visible_and_appends_each_row_once"
_JOINED = _PLAN + "test_offsets_without_rows_that_are_joined_to_shown_rows_are_no_new_rows"

_LOST = "test_entries_that_were_lost_are_told_from_those_that_took_their_numbers"

TABLES = (
    Mutant(
        "a cut is continued although other entries have taken the numbers of its last ones",
        lineage.check_lineage,
        "$found is not None and $found != $expected",
        "False",
        test=f"protocol/tables/test_accidents.py::{_LOST}",
    ),
    Mutant(
        "only entries at the end of a chain are compared with those of a cut",
        lineage._hash_at,
        "return $following[0].previous if $following is not None else None",
        "return None",
        test=f"protocol/tables/test_accidents.py::{_LOST}",
    ),
    Mutant(
        "a cut is continued that has more entries than the chains",
        lineage.is_beyond,
        "any($state.sequence < $head for $state, $head in zip($view.states, $cut.heads, strict=True))",
        "False",
        test=f"protocol/tables/test_accidents.py::{_LOST}",
    ),
    Mutant(
        "a compaction leaves single segments that a table cannot use",
        merge_plan._moves,
        "if $config.has_table and not is_direct($batch):",
        "if False:",
        test=_SYNC + "test_a_compaction_makes_each_segment_of_a_table_one_that_it_can_use",
    ),
    Mutant(
        "a new file is appended with rows that the log start has deleted",
        plan.plan_partition,
        "$first = max($end, $log_start)",
        "$first = $end",
        test=_SHOWN_ONCE,
    ),
    Mutant(
        "a segment that shares its object is a data file",
        plan.is_direct,
        " and $batch.alone",
        "",
        test=_PLAN + "test_only_objects_of_one_batch_with_offsets_are_used_where_they_are",
    ),
    Mutant(
        "new rows of a file that has shown ones are not appended",
        plan.plan_partition,
        "if $file.first < $end <= $file.last",
        "if False",
        test=_PLAN + "test_a_direct_file_with_shown_and_new_rows_is_preceded_by_a_copy_of_the_new_ones",
    ),
    Mutant(
        "a file is trimmed again at the same log start",
        plan.plan_partition,
        "and ($log_start != $before.log_start or $file.path not in $known)",
        "",
        test=_PLAN + "test_a_file_that_the_log_start_is_in_is_trimmed_once_for_each_log_start",
    ),
    Mutant(
        "copies of what a clean has read stay",
        plan.plan_partition,
        "$bounds.clean_until if $bounds.clean_until != $before.clean_until else 0",
        "0",
        test=_PLAN + "test_a_clean_replaces_the_copies_of_what_it_has_read",
    ),
    Mutant(
        "a copy that the log start is in stays",
        plan.plan_partition,
        "$file.first >= max($cleaned, $log_start)",
        "$file.first >= $cleaned",
        test=_PLAN + "test_a_copy_that_the_log_start_is_in_is_written_again",
    ),
    Mutant(
        "a copy stays beside the segment that has its rows",
        plan._is_tail_of,
        "or _overlaps($occupied, $file.first, $file.last)",
        "",
        test=_PLAN + "test_a_copy_of_which_a_segment_has_a_part_is_written_again_without_it",
    ),
    Mutant(
        "offsets without rows are new rows",
        plan._shown_until,
        "return $limit if $records == sum($file.rows for $file in $inside) else $end",
        "return $end if $limit else sum($file.rows for $file in $inside) + $records",
        test=_JOINED,
    ),
    Mutant(
        "rows that are joined to shown ones are not new",
        plan._shown_until,
        "return $limit if $records == sum($file.rows for $file in $inside) else $end",
        "return $limit",
        test=_PLAN + "test_new_rows_that_are_joined_to_shown_rows_are_copied",
    ),
    Mutant(
        "rows are counted in what a clean has cut",
        plan._shown_until,
        " or $bounds.clean_until:",
        ":",
        test=_PLAN + "test_rows_that_were_cleaned_are_no_reason_to_leave_new_ones_out",
    ),
    Mutant(
        "a file that is removed leaves its deletes behind",
        plan.steps,
        "{$file.path} if $gone is None else {$file.path, $gone.path}",
        "{$file.path}",
        test=_SHOWN_ONCE,
    ),
    Mutant(
        "a cleaned table has only other files",
        plan.steps,
        "$changes = $replace if $same else $overwrite",
        "$changes = $replace",
        test=_PLAN + "test_a_clean_replaces_the_copies_of_what_it_has_read",
    ),
    Mutant(
        "a removed file is in no manifest",
        groups._without,
        "if $entry.file.path in $removed\n",
        "if $entry.file.path in ()\n",
        test=_ICEBERG + "test_manifests_have_the_files_that_snapshots_added_and_not_those_that_they_removed",
    ),
    Mutant(
        "joined manifests have the files that earlier ones removed",
        groups._joined,
        "elif $entry.live:",
        "else:",
        test=_ICEBERG + "test_many_small_manifests_are_joined_and_their_files_stay_those_of_their_snapshots",
    ),
    Mutant(
        "manifests are not joined",
        groups._joined,
        "if len($small) < _MOST:",
        "if True:",
        test=_ICEBERG + "test_many_small_manifests_are_joined_and_their_files_stay_those_of_their_snapshots",
    ),
    Mutant(
        "the current snapshot of a table becomes too old",
        TableMetadata.with_history,
        "*self.snapshots[-1:]]",
        "*(each for each in self.snapshots[-1:] if each.timestamp >= since)]",
        test=_ICEBERG + "test_old_snapshots_are_removed_and_the_current_one_stays",
    ),
    Mutant(
        "a snapshot is removed by its age",
        TableMetadata.with_history,
        "if newer.published >= since]",
        "if newer.timestamp >= since]",
        test=_SYNC + "test_a_reader_that_follows_a_quiet_table_finds_its_place",
    ),
    Mutant(
        "a publisher that slept for long goes on",
        publish.Publisher._publish,
        "if $connection.runtime.uptime() - $began > _LONGEST_MS:",
        "if False:",
        test=_PUBLISHERS + "test_a_publisher_that_slept_too_long_begins_again",
    ),
    Mutant(
        "a publisher that slept for days believes its memory",
        publish.Publisher._publish,
        "self._remembered($published) if $began - self._looked_at < _LONGEST_MS else None",
        "self._cut",
        test=_PUBLISHERS + "test_a_publisher_that_slept_for_days_does_not_believe_its_memory",
    ),
    Mutant(
        "a publisher does not look whether another one has decided",
        publish.Publisher._publish,
        ".settle($connection.objects, $connection.runtime.backoff) != $data:",
        ".settle($connection.objects, $connection.runtime.backoff) == b'':",
        test=_PUBLISHERS + "test_of_two_publishers_one_decides_and_the_other_begins_again",
    ),
    Mutant(
        "a hint that was set back stays",
        publish.Publisher._publish,
        " or $began - self._names_checked_at >= _LONGEST_MS",
        "",
        test=_PUBLISHERS + "test_a_hint_that_a_slow_publisher_sets_back_is_mended",
    ),
    Mutant(
        "a version that an engine wrote to a quiet table is not looked for",
        publish.Publisher._publish,
        "self._find_foreign($cut)",
        "pass",
        test=_PUBLISHERS + "test_a_version_of_an_engine_of_a_quiet_table_is_passed",
    ),
    Mutant(
        "the version after a dropped table stays hidden",
        publish.Publisher._versions,
        "(not $table.dropped or $name in self._hidden)",
        "not $table.dropped",
        test=_PUBLISHERS + "test_a_dropped_table_passes_the_version_of_an_engine",
    ),
    Mutant(
        "what a cut shows is not flushed",
        publish.Publisher._publish,
        "make_durable($connection.objects, _newest_entries($connection, $view))",
        "pass",
        test=_PUBLISHERS + "test_a_cut_and_its_entries_last_before_readers_see_them",
    ),
    Mutant(
        "a version of a faster publisher is foreign",
        publish.Publisher._free_number,
        "        $number += 1\n",
        "        self._found_foreign(keys.table_version(topic, $number))\n        $number += 1\n",
        test=_PUBLISHERS + "test_versions_of_a_faster_publisher_are_not_reported_as_foreign",
    ),
    Mutant(
        "an older snapshot names nothing",
        Published.paths,
        "self.metadata(table)).snapshots\n",
        "self.metadata(table)).snapshots[-1:]\n",
        test=_PUBLISHERS + "test_a_vacuum_keeps_the_files_of_retained_snapshots",
    ),
    Mutant(
        "segments that only tables have are deleted",
        vacuum._choose,
        "$young |= {$key for $key in $removed if _in_tables($named.view, $in_use, $key)}",
        "pass",
        test=_PUBLISHERS + "test_segments_of_an_unpublished_compaction_are_kept_with_no_tables",
    ),
    Mutant(
        "a cut was complete when it was created",
        sweep.tables_in_use,
        "if $before != $first and not _was_complete(",
        "if False and not _was_complete(",
        test=_PUBLISHERS + "test_a_vacuum_keeps_the_version_that_a_hint_named_until_now",
    ),
    Mutant(
        "cuts are deleted with the objects that they name",
        sweep.unneeded,
        "> $now - max(CUTS_MS, $grace_ms)",
        "> young",
        test=_PUBLISHERS + "test_a_vacuum_deletes_what_no_cut_of_the_grace_period_names",
    ),
    Mutant(
        "the objects of dropped tables are kept",
        sweep._named,
        "if $topic not in $shown:",
        "if False:",
        test=_SYNC + "test_a_dropped_table_leaves_the_cut_when_its_objects_are_deleted",
    ),
    Mutant(
        "dropped tables stay in each cut",
        publish.Publisher._publish,
        "if not ($table.dropped and $name in self._swept)",
        "",
        test=_SYNC + "test_a_dropped_table_leaves_the_cut_when_its_objects_are_deleted",
    ),
    Mutant(
        "a table is wrong whose log start has moved over no row",
        _Check._is_empty,
        "if $plan.deleted or $plan.outdated or $plan.replacing:",
        "if $plan.deleted or $plan.trims or $plan.outdated or $plan.replacing:",
        test=_SYNC + "test_a_log_start_among_offsets_of_aborted_records_deletes_no_row",
    ),
)
