"""Mutants of settling: what is merged, what is recorded of it, and what is left for the next time."""

from __future__ import annotations

from tests.mutants.mutant import Mutant
from txnstore.compactor.compact import merge_plan
from txnstore.compactor.settle import plan, settling
from txnstore.compactor.verify import segments
from txnstore.core import maintenance
from txnstore.core.log import released
from txnstore.read import reader
from txnstore.spark.reads import native
from txnstore.sql import views

_PLAN = "unit/compactor/test_settle_plan.py::"
_SETTLING = "protocol/compact/test_settling.py::"
_ROWS = _SETTLING + "test_a_settled_segment_has_the_rows_of_all_partitions_and_who_they_belong_to"
_BLOCKS = _SETTLING + "test_rows_of_many_blocks_and_row_groups"
_LATER = _SETTLING + "test_what_failed_is_settled_later_though_it_did_not_change"
_STAYS = _SETTLING + "test_a_settled_segment_stays_while_a_partition_has_rows_in_it"
_WHICH = "unit/sql/test_views.py::test_a_settled_file_gives_the_rows_of_the_visible_batches"
_BACKLOG = _PLAN + "test_a_backlog_is_merged_by_windows_of_entries_over_all_partitions"
_WRITTEN = _PLAN + "test_a_byte_is_written_once_for_each_size_at_most_whatever_the_order_of_commits"
_RUNS = _SETTLING + "test_several_runs_of_a_partition_are_one_segment_and_one_entry"
_DAMAGED = _SETTLING + "test_a_damaged_settled_segment_stays_and_later_commits_are_settled"
_HIDDEN = _SETTLING + "test_a_failing_topic_does_not_hide_another_failure"

SETTLING = (
    Mutant(
        "a settlement loses rows where a block of them ends",
        settling._blocks,
        "$block, $size = [], 0\n        $block.append($source)",
        "$block, $size = [], 0\n            continue\n        $block.append($source)",
        test=_BLOCKS,
    ),
    Mutant(
        "a settlement has the rows of a block twice",
        settling._blocks,
        "yield $block\n            $block, $size",
        "yield $block\n            yield $block\n            $block, $size",
        test=_BLOCKS,
    ),
    Mutant(
        "a run of small commits reaches across a batch of another kind",
        plan._runs,
        "$window != $current or",
        "($window is not None and $window != $current) or",
        test=_PLAN + "test_no_run_reaches_across_a_batch_of_another_kind",
    ),
    Mutant(
        "a settlement merges records above the last stable offset",
        plan._tail,
        "if $batch.limit <= $last_stable:",
        "if True:",
        test=_PLAN + "test_nothing_above_the_last_stable_offset_is_merged",
    ),
    Mutant(
        "a settlement merges records below the start of the log",
        plan._tail,
        " or $batch.base_offset < $log.log_start",
        "",
        test=_PLAN + "test_nothing_below_the_start_of_the_log_is_merged",
    ),
    Mutant(
        "a settlement keeps aborted records",
        plan._plans,
        " if not $is_aborted($batch)",
        "",
        test=_PLAN + "test_an_aborted_batch_is_removed_without_being_read",
    ),
    Mutant(
        "a settlement uploads a segment without rows for aborted batches",
        settling._merged,
        "if $merge.plan.sources]",
        "]",
        test=_SETTLING + "test_aborted_commits_alone_cost_no_upload",
    ),
    Mutant(
        "a settlement merges clean and dirty batches",
        plan._runs,
        "or $crosses or $own > $latest",
        "or $own > $latest",
        test=_PLAN + "test_clean_and_dirty_batches_are_not_merged",
    ),
    Mutant(
        "a settlement merges tombstones that a clean has read",
        plan._runs,
        " if $batch.delete_horizon is None else None",
        "",
        test=_PLAN + "test_a_batch_with_tombstones_that_a_clean_has_read_stays",
    ),
    Mutant(
        "a settlement makes records outlive their retention",
        plan._runs,
        "or $crosses or $own > $latest",
        "or $crosses",
        test=_PLAN + "test_no_record_outlives_its_retention_with_later_ones",
    ),
    Mutant(
        "a settlement has all entries of a backlog in memory",
        plan._windows,
        "if $size and $size + $its_size > _WINDOW:",
        "if False:",
        test=_SETTLING + "test_each_entry_of_a_backlog_is_fetched_once",
    ),
    Mutant(
        "each settlement of a backlog has other entries for each partition",
        plan._windows,
        "sorted($sizes)",
        "sorted($sizes, key=hash)",
        test=_BACKLOG,
    ),
    Mutant(
        "a run of small commits reaches across two settlements",
        plan._runs,
        "$window != $current or",
        "$window is None or",
        test=_BACKLOG,
    ),
    Mutant(
        "only the first part of a backlog is settled",
        settling._settle,
        "$settled.revisions.get($plan.tp, $plan.revision)",
        "$plan.revision",
        test=_SETTLING + "test_each_entry_of_a_backlog_is_fetched_once",
    ),
    Mutant(
        "a close waits for the entries of a settlement",
        settling._entries,
        "_check_open($parts)",
        "pass",
        test=_SETTLING + "test_a_close_does_not_wait_for_a_backlog",
    ),
    Mutant(
        "a close waits for the rows of a settlement",
        settling._encode,
        "_check_open($parts)",
        "pass",
        test=_SETTLING + "test_a_close_does_not_wait_for_what_is_encoded",
    ),
    Mutant(
        "a settlement merges again what a compaction wrote",
        plan._to_merge,
        "if $batch.alone else None",
        "if False else None",
        test=_SETTLING + "test_a_settlement_leaves_what_a_compaction_wrote",
    ),
    Mutant(
        "segments of a single partition are never merged",
        plan._to_merge,
        "in $groups.values()",
        "in [$groups[None]]",
        test=_PLAN + "test_segments_of_one_partition_alone_are_merged_with_each_other",
    ),
    Mutant(
        "segments are merged again and again that stay batches of their own",
        plan._to_merge,
        "($tp, period($batch, $config))",
        "($tp, 0)",
        test=_PLAN + "test_segments_of_one_partition_alone_are_not_merged_across_periods",
    ),
    Mutant(
        "settled segments keep the rows of idle partitions",
        plan._of_topic,
        "if $chosen:  # Also",
        "if False:  # Also",
        test=_PLAN + "test_merged_segments_are_left_by_partitions_that_have_not_changed_too",
    ),
    Mutant(
        "settled segments are merged in the order of their partitions",
        plan._to_merge,
        "key=lambda $key: ($newest[$key][0], $key), reverse=True",
        "key=lambda $key: $key, reverse=True",
        test=_PLAN + "test_the_order_of_segments_is_that_of_their_appends_in_all_partitions",
    ),
    Mutant(
        "settled segments that are large together are never merged",
        plan._enough,
        "return $run\n",
        "break\n",
        test=_PLAN + "test_segments_that_are_large_together_are_merged_before_there_are_eight",
    ),
    Mutant(
        "settled segments are merged again with each settlement",
        plan._enough,
        "if $count >= _FAN:",
        "if $count > 1:",
        test=_PLAN + "test_eight_settled_segments_of_a_size_are_merged_with_the_small_batches",
    ),
    Mutant(
        "a settled segment is merged into one of the same size",
        plan._enough,
        "if $segment.size >= $least:\n                $count, ",
        "if True:\n                $count, ",
        test=_WRITTEN,
    ),
    Mutant(
        "a larger segment keeps smaller ones from being merged",
        plan._enough,
        "continue",
        "break",
        test=_WRITTEN,
    ),
    Mutant(
        "a topic that is being deleted is settled",
        plan.plan_settling,
        "if not $state.is_closed($topic) else None",
        "if True else None",
        test=_PLAN + "test_a_topic_that_is_being_deleted_is_left_alone",
    ),
    Mutant(
        "all batches of a settled segment begin at its first row",
        settling._merged,
        "$first_row += $merge.rows",
        "pass",
        test=_ROWS,
    ),
    Mutant(
        "the rows of a settled segment are stored with another partition",
        settling._encode,
        "$writer.append($table.slice($start, $rows.stop - $start))",
        "$writer.append("
        "$table.set_column(0, $table.schema.field(0), [[0] * len($table)]).slice($start, $rows.stop - $start))",
        test=_ROWS,
    ),
    Mutant(
        "a settlement records no sums",
        settling._merged,
        "ConservedSums($merge.sums, Sums(), ($merge.sums,)) if $added else None",
        "None",
        test=_SETTLING + "test_the_entry_has_the_sums_of_what_was_read_and_written",
    ),
    Mutant(
        "a settlement drops the columns that the chain's copy of the topic lacks",
        settling.settle,
        "_settle($parts, $state.chain, $topic,",
        "_settle($parts, $state.chain, settlement.topic,",
        test=_SETTLING + "test_a_column_that_the_chain_does_not_know_yet_is_kept",
    ),
    Mutant(
        "a settlement ignores the leases of compactors",
        settling.settle,
        " if $plan.tp not in $leased]",
        "]",
        test=_SETTLING + "test_partitions_with_a_lease_are_left_alone_and_settled_when_it_is_over",
    ),
    Mutant(
        "partitions with a lease are never settled",
        settling.settle,
        "$settled.left |= $partitions & $leased",
        "pass",
        test=_LATER,
    ),
    Mutant(
        "what could not be settled never is",
        settling.Settled.leave,
        "self.left.update($partitions)",
        "pass",
        test=_LATER,
    ),
    Mutant(
        "what was left is not planned again",
        settling._Settler._settle,
        "$done = $done.discard($tp)",
        "pass",
        test=_LATER,
    ),
    Mutant(
        "a process that may not write a topic warns of it with each settlement",
        settling._Settler._report,
        "logging.INFO if $kind in $before | $now else logging.WARNING",
        "logging.WARNING",
        test=_SETTLING + "test_a_process_that_may_not_write_a_topic_settles_the_others_and_warns_once",
    ),
    Mutant(
        "a topic that may not be written hides the damage of another one",
        settling._Settler._report,
        "$kind = $topic, type($error)",
        "$kind = '', type($error)",
        test=_HIDDEN,
    ),
    Mutant(
        "a topic that may not be written hides its damage",
        settling._Settler._report,
        "$kind = $topic, type($error)",
        "$kind = $topic, Exception",
        test=_HIDDEN,
    ),
    Mutant(
        "a damaged settled segment keeps later commits from being settled",
        settling._settle,
        "if $older and isinstance($error, CorruptionError):",
        "if False:",
        test=_DAMAGED,
    ),
    Mutant(
        "a merge that cannot be read is tried with each settlement",
        settling._Settler._settle,
        "$damaged |= $settled.damaged",
        "pass",
        test=_DAMAGED,
    ),
    Mutant(
        "each settlement looks at all partitions",
        settling._Settler._settle,
        "self._done[$state.chain] = $done",
        "pass",
        test=_SETTLING + "test_an_idle_partition_is_not_looked_at_again",
    ),
    Mutant(
        "a settlement uploads what the chain will refuse",
        settling._settle,
        "if $log is None or $log.revision != $revision:",
        "if False:",
        test=_SETTLING + "test_nothing_is_uploaded_for_what_the_chain_would_refuse",
    ),
    Mutant(
        "one damaged topic keeps the others from being settled",
        settling.Settled.leave,
        "self.failures.append(($topic.name, $error))",
        "raise $error",
        test=_SETTLING + "test_a_damaged_topic_holds_no_other_one_up",
    ),
    Mutant(
        "what a vacuum deleted after another settlement counts as damage",
        settling._settle,
        "if $missing and any(",
        "if False and any(",
        test=_SETTLING + "test_what_a_vacuum_deleted_after_another_settlement_is_no_damage",
    ),
    Mutant(
        "only the first run of a partition is replaced",
        settling._replace,
        "*$runs[1:]",
        "*()",
        test=_RUNS,
    ),
    Mutant(
        "the second run of a partition is refused for the first one",
        maintenance.replace_runs,
        "replace($run, revision=None)",
        "$run",
        test=_RUNS,
    ),
    Mutant(
        "a replacement does not wait for the next entry",
        settling._replace,
        "$parts.connection.runtime.sleep(LINGER)",
        "pass",
        test=_SETTLING + "test_the_next_commit_carries_the_replacement",
    ),
    Mutant(
        "a settlement goes on after a close",
        settling._settle,
        "_check_open($parts)",
        "pass",
        test=_SETTLING + "test_a_settlement_that_a_close_overtakes_ends_with_the_topic",
    ),
    Mutant(
        "a settlement begins after a close",
        settling._Settler._settle,
        "if not $parts.open:",
        "if False:",
        test=_SETTLING + "test_a_close_does_not_connect_again",
    ),
    Mutant(
        "a settlement uploads to a store with an unknown feature of writers",
        settling._settle,
        "$parts.chains[$number].check_features()",
        "pass",
        test=_SETTLING + "test_nothing_is_written_with_an_unknown_feature_of_writers",
    ),
    Mutant(
        "a settled segment is dropped with one of its batches",
        released.with_removed,
        "elif $segment.is_range or not $batch.alone:",
        "elif $segment.is_range:",
        test=_STAYS,
    ),
    Mutant(
        "a compaction leaves the rest of a settled segment where it is",
        merge_plan._moves,
        "or not $batch.alone",
        "",
        test=_STAYS,
    ),
    Mutant(
        "a settled segment without partitions is read",
        reader.pieces_of,
        "if $batch.segment.explicit_offsets and not $batch.alone and PARTITION_FIELD.name not in $file.columns:",
        "if False:",
        test=_SETTLING + "test_a_segment_without_partitions_is_damage",
    ),
    Mutant(
        "a verification does not compare the stored partitions",
        segments._check_partitions,
        "if ($stored != $part.tp.partition).any():",
        "if False:",
        test=_SETTLING + "test_a_verification_compares_the_stored_partitions",
    ),
    Mutant(
        "SQL shows all rows of a settled segment of which some are visible",
        views._settled_selects,
        "if $rows == $first.batch.segment.rows:",
        "if $rows <= $first.batch.segment.rows:",
        test="integration/sql/test_settled.py::test_the_view_has_the_rows_of_a_scan",
    ),
    Mutant(
        "SQL shows the deleted records of a settled batch",
        views._settled_selects,
        "for $part in $slices if $part.whole)",
        "for $part in $slices)",
        test="integration/sql/test_settled.py::test_emitted_views_read_settled_files",
    ),
    Mutant(
        "SQL shows the removed batches of a settled segment between visible ones",
        views._conditions,
        "if $own and $part.batch.first_row == $end:",
        "if $own:",
        test=_WHICH,
    ),
    Mutant(
        "SQL shows the first visible batches alone of each partition in a settled segment",
        views._conditions,
        "range(max(map(len, $ranges.values()), default=0))",
        "range(bool($ranges))",
        test=_WHICH,
    ),
    Mutant(
        "SQL plans a term for each partition of a settled segment",
        views._conditions,
        "for $number in range(max(map(len, $ranges.values()), default=0)):\n"
        "        $bounds = {$key: $own[$number] for $key, $own in $ranges.items() if $number < len($own)}",
        "for $bounds in [{$key: pair} for $key, $own in $ranges.items() for pair in $own]:",
        test="unit/sql/test_views.py::test_the_condition_on_a_settled_file_has_no_term_for_each_partition",
    ),
    Mutant(
        "Spark reads a settled file of which some rows are not visible",
        native._kinds,
        "return None if $settled else $kinds",
        "return $kinds",
        test="unit/spark/test_native_files.py::test_files_of_which_some_rows_are_not_visible_are_not",
    ),
    Mutant(
        "one entry has all replacements, however many",
        settling._of_entries,
        "if $number % _RUNS == 0:",
        "if False:",
        test=_SETTLING + "test_commits_of_many_periods_of_the_retention_are_few_entries",
    ),
    Mutant(
        "sound segments are taken for damaged",
        settling._settle,
        "if len($settled.failures) == $failures:",
        "if True:",
        test=_SETTLING + "test_a_damaged_entry_leaves_older_segments_to_the_next_merge",
    ),
)
