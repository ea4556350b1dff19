"""Mutants of the rules by which records are deleted."""

from __future__ import annotations

from tests.harness.simulation.settings import SHORTENERS
from tests.mutants.mutant import Mutant
from txnstore.compactor.compact import ages
from txnstore.core import maintenance
from txnstore.core.log import retention, visibility
from txnstore.core.log.batches import BatchList

_CORE = "protocol/core/test_retention.py::"
_ACTORS = ("producer:a/1", "producer:b/1", "copy:c/1", "committed:r/1", "scan:s/1", "tidy:t/1", *SHORTENERS)

RETENTION = (
    Mutant(
        "records of an open transaction are deleted",
        retention.new_log_start,
        "if $start > $stable:",
        "if False:",
        test=_CORE + "test_nothing_at_or_above_the_last_stable_offset_is_deleted",
    ),
    Mutant(
        "the log start goes back",
        retention.delete_records,
        "if $start > $partition.log_start:",
        "if deletion.offset != $partition.log_start:",
        test=_CORE + "test_an_offset_below_the_log_start_changes_nothing",
    ),
    Mutant(
        "records are deleted up to any offset above the end",
        retention.new_log_start,
        "if not 0 <= $start <= $end:",
        "if not 0 <= $start:",
        test=_CORE + "test_offsets_outside_of_the_log_are_refused",
    ),
    Mutant(
        "records of a topic that only compacts are deleted",
        retention.deletes,
        '"delete" in $topic.config.get("cleanup.policy", "delete").split(",")',
        "True",
        test=_CORE + "test_a_topic_without_delete_refuses",
    ),
    Mutant(
        "records of a topic that was created again are deleted",
        retention.delete_records,
        "if $deletion.topic_id not in {None, $topic.topic_id}:",
        "if False:",
        test=_CORE + "test_another_topic_of_the_name_keeps_its_records",
    ),
    Mutant(
        "a batch that the log start cuts is removed",
        BatchList.starting_at,
        "if $batch.limit > $offset]",
        "if $batch.base_offset >= $offset]",
        test=_CORE + "test_a_batch_that_is_cut_stays_and_is_read_from_the_log_start_on",
    ),
    Mutant(
        "deleted records leave their objects behind",
        retention._log_start_moved,
        "with_removed(with_partition($state, $tp, $after), $removed)",
        "with_partition($state, $tp, $after)",
        test="protocol/vacuum/test_shared_vacuum.py::test_a_live_segment_does_not_keep_deleted_ones_beside_it",
    ),
    Mutant(
        "an aborted transaction leaves the index with its first batch",
        retention.with_log_start,
        "$entry.last_offset",
        "$entry.first_offset",
        test=_CORE + "test_the_rest_of_an_aborted_transaction_stays_filtered",
    ),
    Mutant(
        "producers are forgotten with their batches",
        retention.with_log_start,
        "log_start=$offset,",
        "log_start=$offset, producers=Partition().producers,",
        test=_CORE + "test_producer_states_survive_the_deletion_of_their_batches",
    ),
    Mutant(
        "a compaction brings back what a deletion has cut off",
        maintenance._check_removed,
        "if any($batch.base_offset < $partition.log_start for $batch in $command.added):",
        "if False:",
        test=_CORE + "test_a_compaction_that_was_planned_before_brings_nothing_back",
    ),
    Mutant(
        "a retention goes beyond the last stable offset",
        retention.plan_retention,
        "$partition.batches.overlapping($partition.log_start, $partition.last_stable_offset)",
        "$partition.batches",
        test=_CORE + "test_no_retention_goes_beyond_the_last_stable_offset",
    ),
    Mutant(
        "a retention deletes young records behind old ones",
        retention.plan_retention,
        "            break\n",
        "            continue\n",
        test=_CORE + "test_the_first_young_batch_ends_the_deletion",
    ),
    Mutant(
        "a retention leaves less than the size that is kept",
        retention.plan_retention,
        "$batch.size <= $surplus",
        "$surplus > 0",
        test=_CORE + "test_the_oldest_go_while_enough_is_left",
    ),
    Mutant(
        "records of an open transaction are deleted (simulated)",
        retention.new_log_start,
        "if $start > $stable:",
        "if False:",
        settings={"actors": (*_ACTORS, "plain:p/1", "member:m/1", "member:n/1"), "operations": 20, "pace_ms": 200},
    ),
    Mutant(
        "compactions join records of all ages",
        ages.period,
        "if not $config.deletes or $config.retention_ms < 0:",
        "if True:",
        test="protocol/compact/test_retention_limits.py::test_compactions_join_no_records_of_very_different_ages",
    ),
    Mutant(
        "a clean joins records of all ages",
        ages.by_period,
        "if not $groups or $own > $latest:",
        "if not $groups:",
        test="protocol/compact/test_retention_limits.py::test_compactions_join_no_records_of_very_different_ages",
    ),
    Mutant(
        "a batch that the log start cuts is removed (simulated)",
        BatchList.starting_at,
        "if $batch.limit > $offset]",
        "if $batch.base_offset >= $offset]",
        settings={"actors": _ACTORS},
    ),
    Mutant(
        "deleted records of a batch that is cut are read",
        visibility.each_visible,
        "max($partition.log_start, $start if $start is not None else $partition.log_start)",
        "$start if $start is not None else 0",
        settings={"actors": _ACTORS},
    ),
)
