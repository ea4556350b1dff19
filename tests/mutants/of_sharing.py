"""Mutants of the rules of shared segments: which batches share one, which rows are whose, and when it is deleted."""

from __future__ import annotations

from tests.mutants.mutant import Mutant
from txnstore.chain.payload import Payload
from txnstore.compactor.compact import merge_plan
from txnstore.compactor.vacuum.vacuum import _choose, named_keys
from txnstore.compactor.verify import segments as verify_segments
from txnstore.core import maintenance
from txnstore.core.log import appending, events, released
from txnstore.core.log.model import Batch, NewBatch
from txnstore.producer import batches, sharing, upload
from txnstore.producer.upload import Uploader

_SHARED, _VACUUM = "protocol/chain/test_shared_segments.py::", "protocol/vacuum/test_shared_vacuum.py::"
_SEAMS = "protocol/chain/test_shared_seams.py::"
_ALONE = "unit/core/test_released_spans.py::"

SHARING = (
    # What the core refuses.
    Mutant(
        "batches of a segment may have rows in common",
        appending._check_shared_segments,
        "elif $batch.first_row < $before.first_row + $before.records:",
        "elif False:",
        test="unit/core/test_shared_batches.py::test_batches_that_contradict_each_other_are_refused",
    ),
    Mutant(
        "batches of a segment may describe it differently",
        appending._check_shared_segments,
        "($other.topic, $before.segment, $before.timestamp_type) != ($tp.topic, $batch.segment, $batch.timestamp_type)",
        "False",
        test="unit/core/test_shared_batches.py::test_batches_that_contradict_each_other_are_refused",
    ),
    Mutant(
        "a command names the bytes of a refused one, which are removed",
        Payload.back_to,
        "del self._segments[id($data)]",
        "pass",
        test="unit/chain/test_entry_payload.py::test_commands_share_the_bytes_of_a_segment",
    ),
    # Which batches share a segment.
    Mutant(
        "a segment has batches of several chains",
        sharing.grouped,
        "chain_of_partition($tp, $chains)",
        "0",
        test=_SHARED + "test_a_shared_segment_belongs_to_one_chain",
    ),
    Mutant(
        "a segment has batches of several topics",
        sharing.grouped,
        "$place = $tp.topic, $writer.topic.topic_id,",
        '$place = "", "",',
        test=_SHARED + "test_a_transaction_is_a_segment_for_each_topic_and_an_entry",
    ),
    Mutant(
        "a segment has batches of two versions of its topic",
        sharing.grouped,
        "$writer.topic.version, chain_of_partition",
        "0, chain_of_partition",
        test=_SEAMS + "test_batches_before_and_after_a_change_of_the_schema_share_no_segment",
    ),
    Mutant(
        "large batches share a segment",
        sharing.grouped,
        "$upload.size >= $writer.config.segment_own_bytes",
        "False",
        test=_SHARED + "test_large_batches_are_objects_of_their_own",
    ),
    Mutant(
        "shared segments have no largest size",
        sharing.grouped,
        "if $size + $upload.size > $max_bytes:",
        "if not members:",
        test=_SHARED + "test_shared_segments_have_a_largest_size",
    ),
    Mutant(
        "the rows of a segment lie in the order of the sends",
        sharing.grouped,
        "$members.sort(key=_partition)",
        "pass",
        test=_SHARED + "test_rows_lie_in_the_order_of_partitions",
    ),
    Mutant(
        "a batch that cannot be converted ends the upload of its segment",
        Uploader._upload,
        "$each.error = $error",
        "raise",
        test=_SHARED + "test_a_batch_that_cannot_be_converted_fails_alone",
    ),
    Mutant(
        "records that cannot be converted together fail all batches of the segment",
        batches.convert_together,
        "except Exception:",
        "except TypeError:",
        test=_SHARED + "test_a_batch_that_cannot_be_converted_fails_alone",
    ),
    # Which rows are whose.
    Mutant(
        "a batch is all rows of its segment",
        upload.encode_rows,
        "rows=$table.num_rows,",
        "rows=None,",
        test=_SEAMS + "test_the_sizes_of_the_batches_of_a_segment_add_up",
    ),
    Mutant(
        "all batches are the first rows of their segment (simulated)",
        upload.encode_rows,
        "first_row=$first_row",
        "first_row=0",
    ),
    Mutant(
        "a batch is the rows of another partition (simulated)",
        events.BatchesAppended.placed,
        "$rows.first_row,",
        "self.batches[0].first_row,",
    ),
    Mutant(
        "an event names the rows of another partition",
        events.appended,
        "                $batch.first_row,\n",
        "                0,\n",
        test=_SEAMS + "test_a_segment_whose_batches_go_different_ways",
    ),
    Mutant(
        "rows that a segment does not have are appended",
        appending._check_record_batch,
        "if not 0 <= $batch.first_row <= $batch.segment.rows - $batch.records:",
        "if False:",
        test=_SEAMS + "test_rows_that_a_segment_does_not_have_are_refused",
    ),
    Mutant(
        "two batches of a partition are folded as one",
        appending.begin_append,
        "if $tp in $run:",
        "if False:",
        test=_SEAMS + "test_batches_beyond_the_window_are_in_entries_of_their_own",
    ),
    Mutant(
        "the bytes of a segment are stored once for each batch",
        Payload._placed,
        "$segment = self._segments.get(id($data))",
        "$segment = None",
        test=_SEAMS + "test_bytes_of_a_segment_are_stored_once",
    ),
    Mutant(
        "the time of an append is not stored",
        NewBatch.placed,
        '= self.records, self.timestamp_type == "LogAppendTime"',
        "= self.records, False",
        test=_SEAMS + "test_the_time_of_an_append_is_that_of_its_entry_forever",
    ),
    Mutant(
        "the type of timestamps is that of the topic",
        events.BatchesAppended.placed,
        "self.timestamp_type,",
        "None,",
        test=_SEAMS + "test_the_time_of_an_append_is_that_of_its_entry_forever",
    ),
    Mutant(
        "a batch has the size of its segment",
        Batch.size,
        "$segment.size * self.records // $segment.rows",
        "$segment.size",
        test=_SEAMS + "test_the_sizes_of_the_batches_of_a_segment_add_up",
    ),
    Mutant(
        "a segment of several batches has the size of one",
        verify_segments.damage_of,
        "if $size == $segment.size or",
        "if False or",
        test=_SHARED + "test_a_transaction_is_a_segment_for_each_topic_and_an_entry",
    ),
    # When it is deleted.
    Mutant(
        "an append that names an announced object is accepted",
        appending._check_upload,
        "if $batch.segment.object in $state.dropped:",
        "if False:",
        test=_VACUUM + "test_a_vacuumed_upload_is_refused",
    ),
    Mutant(
        "an object is announced although a batch names it",
        maintenance.drop_objects,
        "if $key not in $named)",
        ")",
        test=_VACUUM + "test_a_segment_with_a_registered_batch_is_not_announced",
    ),
    Mutant(
        "an object goes with its first batch",
        named_keys,
        "for $batch in $partition.batches",
        "for $batch in $partition.batches if $batch.segment.object not in view.removals",
        test=_VACUUM + "test_a_dry_run_names_no_shared_segment_in_use",
    ),
    Mutant(
        "the removal from an object is not recorded",
        released.with_removed,
        "$state.released.update($released)",
        "$state.released",
        test=_VACUUM + "test_a_live_segment_does_not_keep_deleted_ones_beside_it",
    ),
    Mutant(
        "the removal from an entry is not recorded",
        released.with_removed,
        "joined($state.released_entries, $span)",
        "$state.released_entries",
        test=_SEAMS + "test_a_deleted_topic_leaves_the_records_beside_it",
    ),
    Mutant(
        "a span does not reach the last entry",
        released.joined,
        "max($last.last, $span.last)",
        "min($last.last, $span.last)",
        test=_ALONE + "test_spans_of_an_hour_are_joined",
    ),
    Mutant(
        "a span does not reach the first entry",
        released.joined,
        "min($last.first, $span.first)",
        "max($last.first, $span.first)",
        test=_ALONE + "test_spans_of_an_hour_are_joined",
    ),
    Mutant(
        "a span keeps the time of its first removal",
        released.joined,
        "max($last.last, $span.last), $span.at)",
        "max($last.last, $span.last), $last.at)",
        test=_ALONE + "test_spans_of_an_hour_are_joined",
    ),
    Mutant(
        "spans of all times are joined",
        released.joined,
        "if $spans and $spans[-1].at // _JOINED_MS == $span.at // _JOINED_MS:",
        "if $spans:",
        test=_ALONE + "test_spans_of_an_hour_are_joined",
    ),
    Mutant(
        "the grace period of a removal is not waited for",
        _choose,
        "if $item.key not in $young",
        "",
        test=_VACUUM + "test_a_shared_segment_goes_after_a_compaction",
    ),
    Mutant(
        "a grown span is forgotten",
        maintenance.forget_entries,
        "if $span in $draft.state.released_entries",
        "",
        test=_ALONE + "test_a_span_that_has_grown_is_not_forgotten",
    ),
    Mutant(
        "a compaction leaves what is left of a segment where it is",
        merge_plan._moves,
        "or $released($batch.segment)",
        "",
        test=_VACUUM + "test_a_live_segment_does_not_keep_deleted_ones_beside_it",
    ),
    Mutant(
        "a compaction leaves large remains where they are",
        merge_plan._runs,
        "elif not $batch.alone or $batch.segment.is_range or ($config.has_table and not is_direct($batch)):",
        "elif False:",
        test=_VACUUM + "test_a_large_live_segment_does_not_keep_deleted_ones_either",
    ),
    Mutant(
        "batches stay in a segment with others where each is to have its own",
        merge_plan._moves,
        "$config.inline_bytes if $batch.segment.inlined else $config.segment_own_bytes",
        "$config.inline_bytes",
        test=_VACUUM + "test_batches_leave_their_shared_segment_when_each_is_to_have_its_own",
    ),
)
