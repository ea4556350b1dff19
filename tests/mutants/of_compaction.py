"""Mutants of the maintenance of stores, each killed by a test."""

from __future__ import annotations

from tests.harness.simulation.settings import SHARERS
from tests.mutants.mutant import Mutant
from txnstore.compactor.compact import compaction, lease, rounds
from txnstore.compactor.compact.clean import Clean
from txnstore.compactor.compact.replacements import Replacements
from txnstore.compactor.vacuum.vacuum import _Vacuum
from txnstore.compactor.verify import chain as verify_chain
from txnstore.compactor.verify import segments as verify_segments
from txnstore.core import maintenance
from txnstore.core.catalog import rules
from txnstore.core.log import retention
from txnstore.segment import sums
from txnstore.spark import engine

_SHARING = ("producer:a/1", "plain:p/1", *SHARERS)

_LEASES = "protocol/compact/test_leases.py::"

_ROUNDS = "protocol/compact/test_compaction_rounds.py::"

_ENGINE = "unit/spark/test_engine.py::"

_REVISION = "unit/core/test_partition_revision.py::"

_REPLACE = "unit/compactor/test_replace.py::"

_SUMS = "protocol/compact/test_conserved_sums.py::"

#: Faults of compactors.
COMPACTION = (
    Mutant(
        "a compactor takes what another one works on",
        lease.CompactionLease._others,
        "$held.update($lease.partitions)",
        "pass",
        test=_LEASES + "test_of_two_compactions_at_the_same_time_each_partition_is_compacted_by_one",
    ),
    Mutant(
        "a compactor that loses the race for a lease works without one",
        lease.CompactionLease.take,
        "if Claim($key, $data).settle($self._objects, $self._runtime.backoff) == $data:",
        "if Claim($key, $data).settle($self._objects, $self._runtime.backoff):",
        test=_LEASES + "test_of_two_that_choose_the_same_partitions_at_once_one_has_them",
    ),
    Mutant(
        "a lease has the number after one that no lease gets",
        lease.CompactionLease._others,
        "(lease_number($item.key) or 0) < _NUMBERS",
        "(lease_number($item.key) or 0)",
        test=_LEASES + "test_an_object_with_a_number_that_no_lease_gets_is_no_lease",
    ),
    Mutant(
        "a compactor that loses the race for a lease does not pause",
        lease.CompactionLease.take,
        "self._runtime.backoff($attempt)",
        "pass",
        test=_LEASES + "test_a_compactor_that_never_gets_a_lease_gives_up",
    ),
    Mutant(
        "leases have numbers that are free, not ascending ones",
        lease.CompactionLease._others,
        "max(lease_number($key) or 0 for $key in $listed)",
        "len($listed)",
        test=_LEASES + "test_a_lease_has_a_larger_number_than_all_others",
    ),
    Mutant(
        "a compactor that died holds its partitions without end",
        lease.CompactionLease._others,
        "if abs($now - $listed[$key].modified_ms) > $lease.duration_ms:",
        "if False:",
        test=_LEASES + "test_the_partitions_of_a_compactor_that_died_are_free_after_its_lease",
    ),
    Mutant(
        "a compactor that died holds its partitions without end (simulated)",
        lease.CompactionLease._others,
        "if abs($now - $listed[$key].modified_ms) > $lease.duration_ms:",
        "if False:",
        settings={"actors": _SHARING},
    ),
    Mutant(
        "a lease is measured by the clock of the machine",
        lease.CompactionLease._others,
        "$self._objects.now_ms()",
        "$self._runtime.clock()",
        test=_LEASES + "test_the_clock_of_the_machine_ends_no_lease",
    ),
    Mutant(
        "a lease is not renewed",
        lease.CompactionLease._renew,
        "$self._objects.put(*$taken)",
        "pass",
        test=_LEASES + "test_a_lease_is_renewed_while_its_holder_works",
    ),
    Mutant(
        "a lease is renewed once",
        lease.CompactionLease._renew,
        "$self._timer.set(DURATION_MS / _RENEWALS / 1000)",
        "pass",
        test=_LEASES + "test_a_lease_is_renewed_while_its_holder_works",
    ),
    Mutant(
        "a compactor works by what it knew before its lease",
        compaction._Compaction._compacted,
        "$self._connection.view()",
        "$self._connection.view(refresh=False)",
        test=_LEASES + "test_what_was_compacted_before_the_lease_is_not_compacted_again",
    ),
    Mutant(
        "leases that no compactor renews stay without end",
        _Vacuum._delete_unannounced,
        "older([*$probes, *$leases], $self._now - $sweep_ms)",
        "older([*$probes], $self._now - $sweep_ms)",
        test=_LEASES + "test_a_vacuum_deletes_leases_that_are_not_renewed",
    ),
    Mutant(
        "a partition larger than the budget is never compacted",
        rounds._within,
        "if $chosen and $max_bytes is not None and $size > $max_bytes:",
        "if $max_bytes is not None and $size > $max_bytes:",
        test=_ROUNDS + "test_the_partition_with_the_most_segments_comes_first",
    ),
    Mutant(
        "a round works on what it did not choose",
        compaction._Compaction._compacted,
        "$self._merge(_logs($scope, selected=$leased),",
        "$self._merge(_logs($scope),",
        test=_ROUNDS + "test_the_partition_with_the_most_segments_comes_first",
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
        verify_segments._Content.violations,
        "if self._expected is not None and self._sums != self._expected:",
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
