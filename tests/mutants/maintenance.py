"""Faults in maintenance: cleans by key, leases of compactors, vacuums."""

from __future__ import annotations

from tests.harness.simulation.settings import CLEANERS, OPERATORS, SHARERS
from tests.mutants.mutant import Mutant
from txnstore.compactor.compact import clean_plan
from txnstore.compactor.compact.clean import Clean, Cleaned
from txnstore.compactor.compact.copying import Copying
from txnstore.compactor.compact.lease import CompactionLease
from txnstore.compactor.compact.newest import NewestByKey
from txnstore.compactor.erase import erase, rewriting, search
from txnstore.compactor.vacuum import payloads, soundness
from txnstore.gateway.records import typed
from txnstore.segment import schema

#: Vacuums without other actors that stop them, and files that are misplaced for longer than their grace period.
_OPERATED = {"actors": ("producer:a/1", "tidy:t/1", "tidy:t/2", "tidy:t/3", *OPERATORS), "operations": 12}

_ERASES = "protocol/erase/test_erase.py::"
_TYPED = "protocol/compact/test_clean_typed.py::"

MAINTENANCE = (
    Mutant(
        "aborted records supersede others",
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
        "a clean stamps no tombstone of a typed topic",
        Clean.__init__,
        "= self._writer.tombstone_column if not $plan.past_hw else None",
        "= self._writer.tombstone_column if not $plan.past_hw and self._writer.schema is None else None",
        test=_TYPED + "test_a_tombstone_stays_for_delete_retention_after_the_first_clean",
    ),
    Mutant(
        "a clean stamps tombstones above the LSO",
        Clean.__init__,
        "if not $plan.past_hw else None",
        "if True else None",
        test=_TYPED + "test_tombstones_above_an_open_transaction_are_neither_stamped_nor_removed",
    ),
    Mutant(
        "a clean removes a tombstone before its horizon",
        Clean._without_old_tombstones,
        "pc.less_equal($horizon, self._now)",
        "$horizon.is_valid()",
        test=_TYPED + "test_a_tombstone_stays_for_delete_retention_after_the_first_clean",
    ),
    Mutant(
        "each clean moves the horizons of tombstones on",
        Clean._without_old_tombstones,
        "pc.fill_null($horizon, $new_horizon)",
        "$new_horizon",
        test=_TYPED + "test_a_tombstone_stays_for_delete_retention_after_the_first_clean",
    ),
    Mutant(
        "a row that is no tombstone any more keeps its horizon",
        Clean._without_old_tombstones,
        "pc.fill_null($horizon, $new_horizon), None)",
        "pc.fill_null($horizon, $new_horizon), $horizon)",
        test=_TYPED + "test_another_column_makes_other_rows_tombstones",
    ),
    Mutant(
        "a copy that a clean has made in vain is added beside its sources",
        Cleaned.changed,
        "or self.added)",
        ")",
        test="protocol/compact/test_clean.py::test_a_tombstone_below_the_log_start_does_not_hold_up_forced_cleans",
    ),
    Mutant(
        "rows that do not say whether they are tombstones are some",
        schema.tombstones,
        "pc.fill_null($values, False)",
        "pc.fill_null($values, True)",
        test=_TYPED + "test_only_true_in_the_column_is_a_tombstone",
    ),
    Mutant(
        "an erasure drops the horizons of typed topics",
        Copying.__init__,
        "if self._writer.tombstone_column is not None else []",
        "if topic.schema is None else []",
        test=_TYPED + "test_an_erasure_keeps_the_horizons",
    ),
    Mutant(
        "clients of a gateway get the row of a tombstone",
        typed.json_rows,
        "if $tombstone_column is not None:",
        "if False:",
        test="integration/gateway/test_typed_topics.py::test_a_row_that_is_a_tombstone_has_no_value_for_clients",
    ),
    Mutant(
        "a compactor that died holds its partitions without end",
        CompactionLease._current_leases,
        "if abs($now - $listed[$key].modified_ms) > $lease.duration_ms:",
        "if False:",
        settings={"actors": ("producer:a/1", "plain:p/1", *SHARERS)},
    ),
    Mutant(
        "a vacuum deletes what another store names",
        soundness.check_no_others,
        "if $others:",
        "if False:",
        mishaps=(),
        settings=_OPERATED,
    ),
    Mutant(
        "an erasure passes over rows that no batch has",
        search.Search._look_into_segments,
        "if not $rows and _has_other_rows($named.batches_of($item.key)):",
        "if False:",
        test=_ERASES + "test_rows_of_a_shared_segment_that_no_batch_has_are_found",
    ),
    Mutant(
        "an erasure erases what is undecided",
        rewriting.plan_rewrites,
        "if $held:",
        "if False:",
        test=_ERASES + "test_an_open_transaction_that_holds_such_records_refuses",
    ),
    Mutant(
        "an erasure leaves records in entries",
        payloads.remove_payload,
        "if $payload and not $dry_run:",
        "if False:",
        test=_ERASES + "test_records_of_others_in_an_entry_are_moved",
    ),
    Mutant(
        "an erasure publishes a table on",
        erase._Erasure._publish,
        "rebuild=[$name] if $is_enabled else []",
        "rebuild=[]",
        test=_ERASES + "test_tables_lose_the_rows_and_their_earlier_snapshots",
    ),
)
