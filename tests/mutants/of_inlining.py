"""Mutants of the rules of inlined segments: what an entry takes, how it is read, and when a vacuum deletes it."""

from __future__ import annotations

from tests.mutants.mutant import Mutant
from txnstore.chain import codec, payload
from txnstore.chain.checkpoints import index
from txnstore.compactor.vacuum import payloads
from txnstore.compactor.verify import chain as verify_chain
from txnstore.core.log import appending
from txnstore.producer.sender import Sender
from txnstore.producer.upload import Uploader
from txnstore.read import reader

_INLINED, _VACUUM = "protocol/chain/test_inlined_segments.py::", "protocol/vacuum/test_inlined_vacuum.py::"
_PAYLOAD = "unit/chain/test_entry_payload.py::"
_REPLACED = _VACUUM + "test_a_vacuum_deletes_the_payloads_that_a_compaction_replaced"

INLINING = (
    Mutant(
        "the hash of an entry covers its payload",
        payload.entry_hash,
        "line_of($data)",
        "$data",
        test=_REPLACED,
    ),
    Mutant(
        "a segment may be in any object below chains/",
        codec.check_places,
        "and _is_entry($segment.object)",
        "",
        test=_PAYLOAD + "test_an_entry_with_a_segment_that_cannot_be_there_is_damage",
    ),
    Mutant(
        "a whole entry may be a segment",
        codec.check_places,
        "$segment.is_range and",
        "",
        test=_PAYLOAD + "test_an_entry_with_a_segment_that_cannot_be_there_is_damage",
    ),
    Mutant(
        "an index file may name a segment anywhere",
        index._Rows.decode,
        "check_places(self._key, $segments)",
        "pass",
        test="unit/chain/test_index.py::test_a_file_with_a_segment_that_cannot_be_there_is_damage",
    ),
    Mutant(
        "the segments of a refused command stay in the payload",
        payload.Payload.back_to,
        "del self._parts[$parts:]",
        "pass",
        test=_PAYLOAD + "test_the_payload_has_the_segments_of_accepted_commands",
    ),
    Mutant(
        "the segments of a repeated command stay in the payload",
        payload.Payload.accepted,
        "if $mark != self.mark and not any($named):",
        "if False:",
        test=_PAYLOAD + "test_the_payload_has_no_segments_of_repeated_commands",
    ),
    Mutant(
        "a flush inside a transaction is inlined",
        Sender._flush,
        "None if $crowd_only or $manager.transactional else $manager.identity",
        "$manager.identity",
        test=_INLINED + "test_undecided_records_are_not_inlined",
    ),
    Mutant(
        "the largest inline.bytes of the topics of a commit counts",
        Uploader._inline,
        "$limit = min(",
        "$limit = max(",
        test=_INLINED + "test_a_topic_without_inlining_keeps_the_whole_commit_out_of_the_entry",
    ),
    Mutant(
        "encoded segments are not counted",
        Uploader._encode_all,
        "if $limit < 0:",
        "if False:",
        test=_INLINED + "test_the_encoded_size_counts",
    ),
    Mutant(
        "batches of other chains are inlined",
        Uploader._inline,
        "if $home is not None and any(",
        "if False and any(",
        test=_INLINED + "test_only_what_the_same_entry_decides_is_inlined",
    ),
    Mutant(
        "a repeated commit does not find its inlined batches",
        appending._is_batch,
        "return $stored.segment.sha256 == $batch.segment.sha256",
        "return False",
        test=_INLINED + "test_a_repeated_commit_finds_its_records_in_the_first_entry",
    ),
    Mutant(
        "bytes in memory that were damaged are not read again",
        reader.fetch,
        "$data = $payload[$start : $start + $segment.size]",
        "pass",
        test=_VACUUM + "test_bytes_that_were_damaged_on_their_way_are_read_again",
    ),
    Mutant(
        "a deleted payload looks like damage",
        reader.fetch,
        "if not $payload:",
        "if False:",
        test=_VACUUM + "test_a_consumer_behind_a_vacuum_plans_again",
    ),
    Mutant(
        "a verification does not look at payloads",
        verify_chain.ChainVerifier._check_payload,
        "if ($damage := payload_damage($entry, $data)) is not None:",
        "if ($damage := None) is not None:",
        test=_VACUUM + "test_a_damaged_payload_is_named_where_it_is_read",
    ),
    Mutant(
        "a payload goes although a batch names a segment in it",
        payloads._live_entries,
        "if $batch.segment.inlined",
        "if False",
        test="protocol/vacuum/test_history.py::test_entries_with_live_inlined_segments_stay",
    ),
    Mutant(
        "what was removed beside a live segment is forgotten",
        payloads.old_payloads,
        "not $payloads.has_live($chain, $span.first, $span.last)",
        "True",
        test=_VACUUM + "test_what_was_dropped_beside_a_live_segment_is_not_forgotten",
    ),
    Mutant(
        "the payload of an entry that was released again goes",
        payloads.old_payloads,
        "if not payloads.in_use($chain, $number)",
        "if not payloads.has_live($chain, $number, $number)",
        test=_VACUUM + "test_an_entry_that_is_released_again_keeps_its_payload_for_the_grace_period",
    ),
    Mutant(
        "entries that the history will delete are overwritten",
        payloads.old_payloads,
        "max($span.first, $end + 1)",
        "$span.first",
        test=_VACUUM + "test_many_payloads_cost_no_request_each",
    ),
    Mutant(
        "entries whose payload could not be deleted are forgotten",
        payloads.delete_payloads,
        "and None not in $sizes:",
        ":",
        test="protocol/chain/test_shared_seams.py::test_a_span_whose_payloads_cannot_all_be_deleted_is_remembered",
    ),
    Mutant(
        "a dry run deletes payloads",
        payloads._delete,
        "if $payload and not $dry_run:",
        "if $payload:",
        test=_REPLACED,
    ),
)
