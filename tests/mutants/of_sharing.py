"""Mutants of the rules of packs: what goes into one, and when a vacuum deletes it."""

from __future__ import annotations

from tests.mutants.mutant import Mutant
from txnstore.compactor.compact import merge_plan
from txnstore.compactor.vacuum.vacuum import _choose, _Named, named_keys
from txnstore.compactor.verify import segments as verify_segments
from txnstore.core import maintenance
from txnstore.core.log import appending
from txnstore.producer import packing
from txnstore.producer.upload import Uploader
from txnstore.read import reader

_PACKS, _VACUUM = "protocol/chain/test_packs.py::", "protocol/vacuum/test_packs_vacuum.py::"

PACKS = (
    Mutant(
        "a pack has segments of several chains",
        packing.pack_together,
        "$place = $tp.topic, chain_of_partition($tp, $chains)",
        "$place = $tp.topic, 0",
        test=_PACKS + "test_a_pack_belongs_to_one_chain",
    ),
    Mutant(
        "a pack has segments of several topics",
        packing.pack_together,
        "$place = $tp.topic, chain_of_partition($tp, $chains)",
        '$place = "", chain_of_partition($tp, $chains)',
        test=_PACKS + "test_a_transaction_is_a_pack_for_each_topic_and_an_entry",
    ),
    Mutant(
        "large batches are packed",
        packing.pack_together,
        "$upload.size >= $writer.config.pack_bytes",
        "False",
        test=_PACKS + "test_large_batches_are_objects_of_their_own",
    ),
    Mutant(
        "packs have no largest size",
        packing.pack_together,
        "if $size + $upload.size > MAX_PACK_BYTES:",
        "if not members:",
        test=_PACKS + "test_packs_have_a_largest_size",
    ),
    Mutant(
        "all segments of a pack begin at its first byte",
        packing.joined,
        "$start += len($data)",
        "pass",
        test=_PACKS + "test_all_readers_read_packed_segments",
    ),
    Mutant(
        "a batch that cannot be encoded fails its pack",
        Uploader._upload,
        "$each.error = $error",
        "upload.members[1].error = $each.error = $error",
        test=_PACKS + "test_a_batch_that_cannot_be_encoded_fails_alone",
    ),
    Mutant(
        "the bytes of a packed segment are not checked",
        reader.fetch,
        "if not $segment.inlined:",
        "if not $segment.inlined and $segment.is_range: return data\n        if not $segment.inlined:",
        test=_PACKS + "test_damage_in_a_pack_is_named_where_it_is_read",
    ),
    Mutant(
        "a pack must have the size of its segment",
        verify_segments.damage_of,
        "($segment.is_range and $size",
        "($segment.inlined and $size",
        test=_PACKS + "test_a_transaction_is_a_pack_for_each_topic_and_an_entry",
    ),
    Mutant(
        "an append in an announced pack is accepted",
        appending._check_upload,
        "if $batch.segment.object in $state.dropped:",
        "if $batch.segment.key in $state.dropped:",
        test=_VACUUM + "test_a_vacuumed_upload_is_refused",
    ),
    Mutant(
        "a pack is announced although a batch names a segment of it",
        maintenance.drop_objects,
        "if object_of($key) not in $named",
        "if $key not in $named",
        test=_VACUUM + "test_a_pack_with_a_registered_segment_is_not_announced",
    ),
    Mutant(
        "a pack goes although a batch names a segment in it",
        named_keys,
        "$batch.segment.object",
        "$batch.segment.key",
        test=_VACUUM + "test_a_dry_run_names_no_pack_in_use",
    ),
    Mutant(
        "dropped segments of a pack are forgotten while it exists",
        _choose,
        "for $key in $named.dropped($item.key)",
        "for $key in [$item.key]",
        test=_VACUUM + "test_a_pack_stays_while_a_batch_names_one_of_its_segments",
    ),
    Mutant(
        "the grace period of segments in packs is not waited for",
        _Named.dropped,
        "for $name in ($key, InPack($key, 0).dropped_as)",
        "for $name in ($key,)",
        test=_VACUUM + "test_a_pack_goes_after_a_compaction",
    ),
    Mutant(
        "segments stay in packs when these are turned off",
        merge_plan._moves,
        "$config.inline_bytes if $batch.segment.inlined else $config.pack_bytes",
        "$config.inline_bytes",
        test=_VACUUM + "test_segments_leave_their_packs_when_packs_are_turned_off",
    ),
)
