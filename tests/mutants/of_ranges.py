"""Mutants of the rules by which parts of segments are read and checked."""

from __future__ import annotations

from tests.mutants.mutant import Mutant
from txnstore.compactor.verify import segments as verify_segments
from txnstore.consumer import fetcher
from txnstore.read import ranged, reader
from txnstore.segment import blocks
from txnstore.sql import files
from txnstore.storage import recent

_SHARED = "protocol/read/test_shared_segments.py::"
_RANGED, _VERIFY = "unit/read/test_ranged.py::", "protocol/verify/test_segments.py::"
_EACH_BYTE = _RANGED + "test_each_altered_byte_that_is_read_is_found"
_COLUMNS = _RANGED + "test_a_projection_fetches_its_columns"
_ALL = _VERIFY + "test_all_of_a_segment_that_is_read_by_ranges_is_compared"

RANGES = (
    Mutant(
        "a segment that is read whole is not compared with the checksums of its blocks",
        ranged.RangedObject.check_whole,
        "self._compare($blocks, 0, memoryview($data)[: self.body])",
        "pass",
        test=_RANGED + "test_each_altered_byte_of_a_whole_read_is_noticed",
    ),
    Mutant(
        "a verification compares no hash of a segment that it reads whole",
        reader.open_whole,
        "$data = fetch($objects, $tp, $segment, hashed=$hashed)",
        "$data = fetch($objects, $tp, $segment)",
        test=_VERIFY + "test_deep_verification_compares_the_hash_of_a_segment_that_is_read_whole",
    ),
    Mutant(
        "the checksum of a block is not compared",
        blocks.Blocks.damaged,
        "if zlib.crc32($block) != self.sums[($start + $at) // self.size]:",
        "if False:",
        test=_EACH_BYTE,
    ),
    Mutant(
        "the last block that was fetched is not compared",
        blocks.Blocks.damaged,
        "range(0, len($view), self.size)",
        "range(0, len($view) - self.size, self.size)",
        test=_EACH_BYTE,
    ),
    Mutant(
        "a block has the checksum of one at the beginning of the file",
        blocks.Blocks.damaged,
        "self.sums[($start + $at) // self.size]",
        "self.sums[$at // self.size]",
        test=_COLUMNS,
    ),
    Mutant(
        "the hash of a footer is not compared",
        ranged.RangedObject._checked_footer,
        'verify_checksum(f"the $footer of $segment {$segment.key} of {self._tp}", $data, self._sha256, len($data))',
        "pass",
        test=_EACH_BYTE,
    ),
    Mutant(
        "a footer that is larger than its segment is requested",
        ranged.footer_of,
        "not 0 < $size <= $segment.size",
        "not 0 < $size",
        test=_RANGED + "test_a_footer_that_no_segment_can_have_is_damage",
    ),
    Mutant(
        "near columns are fetched one by one",
        ranged._joined,
        "if $joined and $start - $joined[-1][1] <= _GAP_BYTES:",
        "if False:",
        test=_COLUMNS,
    ),
    Mutant(
        "far columns are fetched with all columns between them",
        ranged._joined,
        "if $joined and $start - $joined[-1][1] <= _GAP_BYTES:",
        "if $joined:",
        test=_COLUMNS,
    ),
    Mutant(
        "a segment that goes while its row groups are read is damage",
        reader.is_missing,
        "isinstance($error.__cause__, ObjectNotFoundError)",
        "False",
        test=_RANGED + "test_a_segment_that_goes_while_it_is_read_is_missing",
    ),
    Mutant(
        "the only row group of a large segment is not counted in the window",
        reader.Projection.fetched_bytes,
        "return $footer + $segment.size // least_row_groups($segment.rows, $segment.size)",
        "return $footer",
        test=_RANGED + "test_segments_of_one_row_group_count_whole_in_the_window",
    ),
    Mutant(
        "a share has the first row group of the next one too",
        reader.OpenSlice.share,
        "self._pieces[$first:$last]",
        "self._pieces[$first : $last + 1]",
        test="unit/read/test_shares.py::test_every_row_is_in_one_share",
    ),
    Mutant(
        "threads of a query share the position in a file",
        files._File.seek,
        "self._positions.at = $offset",
        "self._positions = type('Shared', (), {'at': $offset})()",
        test="unit/sql/test_filesystem.py::test_threads_that_share_a_file_have_positions_of_their_own",
    ),
    Mutant(
        "a deep verification compares footers that were read before",
        verify_segments._read_all,
        "forget_footers()",
        "pass",
        test=_VERIFY + "test_a_footer_that_was_read_before_is_verified_as_it_is_stored",
    ),
    Mutant(
        "a deep verification skips what no reader shows",
        verify_segments._read,
        "$file.compare()",
        "pass",
        test=_ALL,
    ),
    Mutant(
        "a deep verification reads a segment once for each of its batches",
        verify_segments._by_segment,
        "$part[0].batch.segment",
        "$part[0].batch",
        test=_VERIFY + "test_a_small_segment_of_many_batches_is_fetched_once[True]",
    ),
    Mutant(
        "the hash of a large segment is not compared",
        ranged.HashedSegment.compare,
        "$digest != $expected",
        "False",
        test=_ALL,
    ),
    Mutant(
        "a reader of some partitions fetches a shared segment whole, however small its part is",
        ranged.reads_ranges,
        "return not $part.batch.alone and 4 * $rows < $segment.rows",
        "return False",
        test=_SHARED + "test_a_reader_of_one_partition_fetches_its_part_of_a_large_segment",
    ),
    Mutant(
        "a reader of all partitions fetches a shared segment in parts",
        reader._in_company,
        "$partitions.get($part.tp.topic, 1)",
        "1",
        test=_SHARED + "test_a_reader_of_one_partition_fetches_its_part_of_a_large_segment",
    ),
    Mutant(
        "a reader knows what it keeps by the key alone",
        reader.open_slice,
        "segment, segment.size,",
        "segment.key, segment.size,",
        test=_SHARED + "test_a_segment_that_is_described_in_another_way_is_checked_again",
    ),
    Mutant(
        "a segment is opened for each of its batches",
        recent.Neighbours.once,
        "$task = self._made[$name] = Task($make)",
        "$task = Task($make)",
        test=_SHARED + "test_a_scan_fetches_each_segment_once",
    ),
    Mutant(
        "an opening that failed is kept",
        recent.Neighbours.once,
        "del self._made[$name]",
        "pass",
        test=_SHARED + "test_a_failure_is_not_kept",
    ),
    Mutant(
        "a consumer forgets with each poll what it has opened",
        fetcher.Poller._take,
        "if self._objects is None or $near is None or $near.is_full:",
        "if True:",
        test=_SHARED + "test_a_consumer_fetches_each_segment_once",
    ),
    Mutant(
        "a piece is decoded for each of its batches",
        reader._KeptSegment.read,
        "if $table is None:",
        "if True:",
        test=_SHARED + "test_a_piece_is_decoded_once_for_the_partitions_in_it",
    ),
    Mutant(
        "a child process waits for a thread of its parent",
        recent.Neighbours.once,
        "if self._process != os.getpid():",
        "if False:",
        test=_SHARED + "test_a_child_process_waits_for_no_thread_of_its_parent",
    ),
    Mutant(
        "partitions of other topics count as company",
        reader._in_company,
        "$partitions.get($part.tp.topic, 1)",
        "sum($partitions.values())",
        test=_SHARED + "test_partitions_of_other_topics_make_no_company",
    ),
)
