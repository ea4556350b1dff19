"""Mutants of cleaning by key, each killed by a test."""

from __future__ import annotations

from tests.harness.simulation.settings import CLEANERS
from tests.mutants.mutant import Mutant
from txnstore.compactor.compact import clean, clean_plan, merge_plan
from txnstore.compactor.compact.clean import Clean
from txnstore.compactor.compact.newest import NewestByKey
from txnstore.core import maintenance
from txnstore.producer import records

_CLEAN = "protocol/compact/test_clean.py::"
_VECTORS = "protocol/compact/test_clean_vectors.py::"
_ROUNDS = "protocol/compact/test_clean_rounds.py::"
_PLAN = "unit/compactor/test_clean_plan.py::"
_REPLACE = "unit/compactor/test_clean_replace.py::"

#: Faults of cleans.
CLEANS = (
    Mutant(
        "aborted records supersede others",
        clean_plan.plan_clean,
        "if not $is_aborted($batch)",
        "if True",
        test=_CLEAN + "test_aborted_records_do_not_supersede_and_go",
    ),
    Mutant(
        "records of open transactions are cleaned",
        clean_plan.first_uncleanable_offset,
        "$stable, $lag = $partition.last_stable_offset,",
        "$stable, $lag = $partition.high_watermark,",
        test=_CLEAN + "test_records_of_open_transactions_do_not_supersede_and_stay",
    ),
    Mutant(
        "records younger than min.compaction.lag.ms are cleaned",
        clean_plan.first_uncleanable_offset,
        "($lag > 0 and newest($batch, $config) > $now - $lag)",
        "False",
        test=_CLEAN + "test_records_younger_than_the_lag_take_no_part",
    ),
    Mutant(
        "max.compaction.lag.ms forces no clean",
        clean_plan.plan_clean,
        "$forced or $overdue or",
        "$forced or",
        test=_CLEAN + "test_only_more_than_the_ratio_is_cleaned_unless_it_is_too_old",
    ),
    Mutant(
        "the oldest record of a key stays",
        NewestByKey._store,
        "max({_OFFSET})",
        "min({_OFFSET})",
        test=_CLEAN + "test_the_newest_record_of_each_key_stays",
    ),
    Mutant(
        "a tombstone goes before its delete horizon",
        Clean._without_old_tombstones,
        "pc.less_equal($horizon, self._now)",
        "pc.is_valid($horizon)",
        test=_CLEAN + "test_a_tombstone_stays_for_delete_retention_after_the_first_clean",
    ),
    Mutant(
        "each clean pushes delete horizons on",
        Clean._without_old_tombstones,
        "pc.and_($tombstone, $horizon.is_null())",
        "$tombstone",
        test=_CLEAN + "test_a_tombstone_stays_for_delete_retention_after_the_first_clean",
    ),
    Mutant(
        "cleaned batches do not tell that they have tombstones",
        clean._range_of,
        "if HORIZON_FIELD.name in $table.column_names",
        "if False",
        test=_CLEAN + "test_a_tombstone_stays_for_delete_retention_after_the_first_clean",
    ),
    Mutant(
        "a merge loses delete horizons",
        merge_plan._runs,
        "or $batch.delete_horizon is not None",
        "",
        test=_PLAN + "test_merges_leave_segments_with_delete_horizons_alone",
    ),
    Mutant(
        "a merge mixes clean and dirty batches",
        merge_plan._runs,
        "if $run and $run[-1].base_offset < $partition.clean_until <= $batch.base_offset:",
        "if False:",
        test=_PLAN + "test_merges_do_not_mix_clean_and_dirty_batches",
    ),
    Mutant(
        "a partition is cleaned at the ratio",
        clean_plan.plan_clean,
        "$ratio > $config.min_cleanable_dirty_ratio",
        "$ratio >= $config.min_cleanable_dirty_ratio",
        test=_PLAN + "test_a_partition_is_due_above_the_ratio",
    ),
    Mutant(
        "records without a key share one",
        NewestByKey.add,
        "$table = $table.filter($keys.is_valid())",
        "pass",
        test=_CLEAN + "test_records_without_a_key_of_before_are_dropped",
    ),
    Mutant(
        "records without a key are accepted in compacted topics",
        records.check_accepted,
        "if $key is None and $writer.config.compacts:",
        "if False:",
        test=_CLEAN + "test_records_without_a_key_are_refused_in_compacted_topics",
    ),
    Mutant(
        "aborted records supersede others, in the simulation",
        clean_plan.plan_clean,
        "if not $is_aborted($batch)",
        "if True",
        settings={"actors": CLEANERS},
    ),
    Mutant(
        "the newest record of a key goes",
        NewestByKey.offsets,
        "yield $batch.column(0).to_numpy()",
        "yield $batch.column(0).to_numpy()[1:]",
        settings={"actors": CLEANERS},
    ),
    Mutant(
        "a clean covers what is undecided",
        clean_plan.first_uncleanable_offset,
        "$stable, $lag = $partition.last_stable_offset,",
        "$stable, $lag = $partition.high_watermark,",
        settings={"actors": CLEANERS, "operations": 12, "pace_ms": 200},
    ),
    Mutant(
        "records above the LSO supersede others across open ones",
        clean_plan.plan_past_hw,
        "$runs.append([])",
        "pass",
        test=_VECTORS + "test_both_ways_end_with_the_same_records",
    ),
    Mutant(
        "a clean above the LSO moves the checkpoint there",
        clean_plan.plan_past_hw,
        "$partition.clean_until, $dirty",
        "$partition.high_watermark, $dirty",
        test=_VECTORS + "test_both_ways_end_with_the_same_records",
    ),
    Mutant(
        "each round reads again what it found nothing to remove in",
        clean_plan.plan_past_hw,
        "and $batch.segment.key not in $settled",
        "",
        test=_ROUNDS + "test_what_a_round_found_nothing_in_is_not_read_again",
    ),
    Mutant(
        "a clean above the LSO reads only what is new",
        clean_plan.plan_past_hw,
        "Slice($tp, $batch, $batch.base_offset, $batch.limit) for $batch in $run if not $is_aborted($batch)",
        "Slice($tp, $batch, $batch.base_offset, $batch.limit) for $batch in new if not $is_aborted($batch)",
        test=_ROUNDS + "test_more_than_the_ratio_of_new_bytes_is_read_again_with_the_rest",
    ),
    Mutant(
        "a clean above the LSO replaces open batches",
        maintenance._check_removed,
        "$command.past_hw and not any(is_open($partition, $batch) for $batch in $command.removed)",
        "$command.past_hw",
        test=_VECTORS + "test_what_belongs_to_an_open_transaction_is_never_replaced",
    ),
    Mutant(
        "tombstones above the LSO get delete horizons",
        Clean.__init__,
        "and not $plan.past_hw",
        "",
        test=_VECTORS + "test_tombstones_above_the_hw_wait",
    ),
    Mutant(
        "the cleaner checkpoint passes the last stable offset",
        maintenance._checkpoint,
        "if $command.clean_until > $partition.last_stable_offset:",
        "if False:",
        test=_REPLACE + "test_the_checkpoint_does_not_pass_the_last_stable_offset",
    ),
    Mutant(
        "the cleaner checkpoint goes back",
        maintenance._checkpoint,
        "return max($command.clean_until, $partition.clean_until)",
        "return $command.clean_until",
        test=_REPLACE + "test_the_checkpoint_does_not_go_back",
    ),
    Mutant(
        "the cleaner checkpoint does not move",
        maintenance._segments_replaced,
        "if $event.clean_until is not None:",
        "if False:",
        test=_CLEAN + "test_the_newest_record_of_each_key_stays",
    ),
)
