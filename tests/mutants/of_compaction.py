"""Mutants of the maintenance of stores, each killed by a test."""

from __future__ import annotations

from tests.harness.simulation.settings import SHARERS
from tests.mutants.mutant import Mutant
from txnstore.compactor.compact import rounds
from txnstore.compactor.compact.clean import Clean
from txnstore.compactor.compact.replacements import Replacements
from txnstore.compactor.verify import chain as verify_chain
from txnstore.compactor.verify import segments as verify_segments
from txnstore.core import claims, maintenance
from txnstore.core.catalog import rules
from txnstore.core.log import retention
from txnstore.segment import sums
from txnstore.spark import engine

_SHARING = ("producer:a/1", "plain:p/1", *SHARERS)

_CLAIMS = "unit/core/test_claims.py::"

_ROUNDS = "protocol/compact/test_compaction_rounds.py::"

_ENGINE = "unit/spark/test_engine.py::"

_REVISION = "unit/core/test_partition_revision.py::"

_REPLACE = "unit/compactor/test_replace.py::"

_SUMS = "protocol/compact/test_conserved_sums.py::"

#: Faults of compactors.
COMPACTION = (
    Mutant(
        "a partition is claimed by two compactors",
        claims.is_claimed,
        "$claim.owner != $owner and $claim.until > $now",
        "False",
        test=_CLAIMS + "test_a_partition_is_claimed_by_one_compactor",
    ),
    Mutant(
        "a partition is claimed by two compactors (simulated)",
        claims.is_claimed,
        "$claim.owner != $owner and $claim.until > $now",
        "False",
        settings={"actors": _SHARING},
    ),
    Mutant(
        "a compactor that died holds its partitions while the chain is ahead (simulated)",
        rounds._Rounds._is_claimed,
        "if $chains.ages.is_over($state, $claim.until - CLAIM_MS, CLAIM_MS):",
        "if False:",
        settings={"actors": _SHARING, "far": 0.3},
    ),
    Mutant(
        "the chain does not hear of claims that were measured to be over",
        claims.claim_partitions,
        "($tp, $state.claims.get($tp)) in $command.expired",
        "False",
        test=_ROUNDS + "test_the_partitions_of_a_compactor_that_died_are_free_in_a_chain_that_is_ahead",
    ),
    Mutant(
        "a compactor that died holds its partitions without end",
        claims.is_claimed,
        "and $claim.until > $now",
        "",
        test=_CLAIMS + "test_a_claim_ends_and_leaves_the_state",
    ),
    Mutant(
        "claims that ended stay in the state",
        claims._lasting,
        "if $claim.until <= $state.timestamp:",
        "if False:",
        test=_CLAIMS + "test_a_claim_ends_and_leaves_the_state",
    ),
    Mutant(
        "a partition larger than the budget is never compacted",
        rounds._within,
        "if $chosen and $max_bytes is not None and $size > $max_bytes:",
        "if $max_bytes is not None and $size > $max_bytes:",
        test=_ROUNDS + "test_the_partition_with_the_most_segments_comes_first",
    ),
    Mutant(
        "a compactor works on what another one was granted",
        rounds._Rounds._round,
        "partitions=$granted",
        "partitions=chosen",
        test=_ROUNDS + "test_a_partition_claimed_in_between_is_left_to_its_compactor",
    ),
    Mutant(
        "a segment that was vacuumed after another compaction is damage for a task of Spark",
        engine.execute,
        "$cause if isinstance($cause, TxnStoreError) else None",
        "None",
        test=_ENGINE + "test_a_task_returns_the_error_of_its_job_with_its_cause",
    ),
    Mutant(
        "a compaction may be planned at any revision",
        maintenance.check_revision,
        "$partition is None or $partition.revision != $planned",
        "$partition is None",
        test=_REVISION + "test_a_compaction_that_was_planned_at_another_revision_is_refused",
    ),
    Mutant(
        "a deletion of records leaves the revision as it is",
        retention._log_start_moved,
        "revision=$state.sequence",
        "revision=partition.revision",
        test=_REVISION + "test_a_compaction_that_was_planned_at_another_revision_is_refused",
    ),
    Mutant(
        "each life of a topic begins at the same revision",
        rules._with_partitions,
        "Partition(revision=$state.sequence)",
        "Partition(revision=1)",
        test=_REVISION + "test_another_life_of_a_topic_has_other_revisions",
    ),
    Mutant(
        "a compactor's own merge makes its next one obsolete",
        Replacements._submit,
        "self._own[$command.tp] = self._connection.submit($command)",
        "self._connection.submit($command)",
        test="protocol/compact/test_compaction_merge.py::test_target_bytes_and_min_segments_control_the_merges",
    ),
    Mutant(
        "a compaction whose sums do not agree is accepted",
        maintenance.unconserved,
        "if not $sums.conserved:",
        "if False:",
        test=_REPLACE + "test_a_compaction_that_would_change_records_is_refused",
    ),
    Mutant(
        "a merge may remove records, if it accounts for them",
        maintenance.unconserved,
        "if $merge and $sums.removed != Sums():",
        "if False:",
        test=_REPLACE + "test_a_compaction_that_would_change_records_is_refused",
    ),
    Mutant(
        "a clean does not account for what it removes",
        Clean._collect,
        "self._removed += $account.result().removed",
        "pass",
        test=_SUMS + "test_what_a_clean_removes_is_accounted_for",
    ),
    Mutant(
        "a verification does not compare what compactions read with what earlier ones wrote",
        verify_chain.sums_violations,
        "elif None not in $before and add_up(filter(None, $before)) != $event.sums.read:",
        "elif False:",
        test=_SUMS + "test_a_compaction_that_did_not_read_what_another_one_wrote_is_found",
    ),
    Mutant(
        "a deep verification does not compare sums",
        verify_segments._read,
        "if $expected is not None and $sums != $expected:",
        "if False:",
        test=_SUMS + "test_a_segment_without_the_records_that_were_read_is_found",
    ),
    Mutant(
        "a null changes the sums",
        sums._hashes,
        "return np.where($valid, $hashes, np.uint64(0)), np.where($valid, $sizes, 0)",
        "return $hashes, $sizes",
        test="unit/segment/test_record_sums.py::test_the_hash_of_a_record_is_as_defined",
    ),
)
