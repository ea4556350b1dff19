"""Mutants of the rules by which inlined segments are decoded once, converted together, and shown in SQL."""

from __future__ import annotations

from tests.mutants.mutant import Mutant
from txnstore.read import readahead, reader, sharing
from txnstore.spark.reads import native
from txnstore.sql import fresh, inspection, planning

_READ, _SQL = "unit/read/test_sharing.py::", "integration/sql/test_fresh.py::"
_TOGETHER = _READ + "test_slices_that_are_converted_together_have_the_rows_of_each"
_ONCE = _SQL + "test_fresh_rows_are_fetched_once_and_a_refresh_fetches_new_ones"
_SEVERAL = _SQL + "test_many_fresh_rows_are_several_files_of_which_a_commit_changes_the_last"

FRESH = (
    Mutant(
        "rows of several batches have the offsets after that of the first one",
        reader._offsets,
        "np.arange($run.offset, $run.offset + $run.rows, dtype=np.int64) for $run in $runs",
        "np.arange($runs[0].offset + $run.offset * 0, $runs[0].offset + $run.rows, dtype=np.int64) for $run in $runs",
        test=_TOGETHER,
    ),
    Mutant(
        "rows of several batches have the partition and the time of the first one",
        reader._per_row,
        "if len(set($values)) == 1:",
        "if True:",
        test=_TOGETHER,
    ),
    Mutant(
        "a batch begins at the first row of the segment that it shares",
        reader.pieces_of,
        "$first, $limit = $batch.first_row, $batch.first_row + $batch.records",
        "$first, $limit = 0, $batch.records",
        test="unit/read/test_reader.py::test_two_batches_may_share_a_segment",
    ),
    Mutant(
        "a part of a batch has the rows from its beginning",
        reader.OpenSlice._decode,
        "$table.slice($piece.first_row, $piece.rows)",
        "$table.slice(0, $piece.rows)",
        test=_TOGETHER,
    ),
    Mutant(
        "all rows of a batch are in a file, also those before the start of the log",
        reader.OpenSlice._decode,
        "if $piece.rows != $table.num_rows:",
        "if False:",
        test=_SQL + "test_a_log_that_starts_inside_a_batch_is_read_from_there",
    ),
    Mutant(
        "rows of a segment without the columns are forgotten",
        reader._concatenated,
        "if $tables[0].num_columns:",
        "if True:",
        test=_TOGETHER,
    ),
    Mutant(
        "the error of a segment hides the rows before it",
        readahead._fetch,
        "if not $opened:",
        "if True:",
        test=_READ + "test_a_read_ahead_takes_shared_segments_together",
    ),
    Mutant(
        "the error of a segment that is read with others is swallowed",
        readahead._decode,
        "if $fetched.error is not None:",
        "if False:",
        test=_READ + "test_a_read_ahead_takes_shared_segments_together",
    ),
    Mutant(
        "what is decoded is not kept",
        sharing.SharedSegments.decoded,
        "self._keep($decoded)",
        "pass",
        test=_ONCE,
    ),
    Mutant(
        "what is decoded is kept without bound",
        sharing.SharedSegments._keep,
        "while self._kept and self._bytes > self._bound:",
        "while False:",
        test=_READ + "test_what_is_kept_is_bounded_and_the_last_ones_stay",
    ),
    Mutant(
        "another description of a segment is not compared with its bytes",
        sharing._name,
        "return $segment.key, $segment.sha256, $segment.rows",
        "return $segment.key, '', 0",
        test=_READ + "test_another_description_of_a_segment_is_compared_with_its_bytes",
    ),
    Mutant(
        "a file of fresh rows has the name of one whose log starts earlier",
        fresh._digest,
        "{$part.start} ",
        "",
        test=_SQL + "test_a_file_is_named_by_its_rows",
    ),
    Mutant(
        "a file of fresh rows has the name of one with other columns",
        fresh.fresh_files,
        "{$topic.version}",
        "",
        test=_SQL + "test_a_file_is_named_by_its_rows",
    ),
    Mutant(
        "fresh rows are one file, however many there are",
        fresh._runs,
        "if $run and (",
        "if False and (",
        test=_SEVERAL,
    ),
    Mutant(
        "a file decodes more than its bound of segments of which little is left",
        fresh._runs,
        "$segment = $part.batch.segment\n        $own = 0 if $segment.key in $keys else $segment.size",
        "$segment = $part.batch.segment\n        $own = $part.batch.size",
        test=_SQL + "test_a_file_decodes_no_more_than_its_bound_of_segments_that_are_mostly_deleted",
    ),
    Mutant(
        "fresh files are in the order of the partitions, so that a commit changes all of them",
        fresh._runs,
        "$part.batch.appended_at, $part.batch.segment.key, $part.batch.first_row",
        "$part.tp, $part.start",
        test=_SEVERAL,
    ),
    Mutant(
        "each shared segment is a file, too",
        planning.plan_topic,
        "if not $part.batch.shared",
        "",
        test=_SQL + "test_files_and_fresh_rows_are_one_topic_at_both_isolation_levels",
    ),
    Mutant(
        "each partition is shown with the records of all partitions of a segment",
        inspection._segment_rows,
        "sum($batch.records for $batch in $in_segment)",
        "$in_segment[0].segment.rows",
        test="integration/sql/test_inspection.py::test_txn_segments_shows_what_a_partition_has_of_a_segment",
    ),
    Mutant(
        "Spark's driver counts the shares of segments that it reads whole",
        native._stored_bytes,
        "sum({$part.batch.segment.key: $part.batch.segment.size for $part in $slices}.values())",
        "sum($part.batch.size for $part in $slices)",
        test="unit/spark/test_native_files.py::"
        "test_the_driver_fetches_each_shared_segment_once_and_counts_it_as_a_whole",
    ),
)
