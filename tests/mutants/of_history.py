"""Mutants of the deletion of entries."""

from __future__ import annotations

from tests.harness.simulation import Mishap
from tests.mutants.mutant import Mutant
from txnstore.chain import ages, boundary, tail
from txnstore.chain.chain import Chain
from txnstore.chain.checkpoints.saver import Saver
from txnstore.chain.loading import Loader
from txnstore.compactor.repair import chain as repair_chain
from txnstore.compactor.repair.repair import _opens_whole, _tried
from txnstore.compactor.vacuum import checkpoints as old_checkpoints
from txnstore.compactor.vacuum import history, payloads
from txnstore.compactor.vacuum.vacuum import vacuum
from txnstore.compactor.verify import boundaries

_HISTORY = "protocol/vacuum/test_history.py::"
_SLEEPERS = "protocol/vacuum/test_history_sleepers.py::"
_LOST = "protocol/vacuum/test_history_lost.py::"
_REPAIRS = "protocol/repair/test_repairs.py::"
_SLEPT = f"{_SLEEPERS}test_a_reader_that_has_slept_reads_on_at_the_head"

HISTORY = (
    Mutant(
        "an entry is folded although another one may have had its name",
        tail.Tail.fold,
        "self._check($state.sequence + 1)",
        "pass",
        test=_SLEEPERS + "test_a_process_that_has_slept_does_not_read_the_entry_of_another_one",
    ),
    Mutant(
        "the free name of a deleted entry is the end of the chain",
        tail.Tail._missing,
        "        self._check($sequence)\n        return None",
        "        return None",
        test=_SLEPT,
    ),
    Mutant(
        "an open that was suspended takes deleted entries for missing ones",
        Loader._ends_before,
        "self._boundaries.check($state.sequence + 1)",
        "pass",
        test=_SLEEPERS + "test_a_process_suspended_while_it_opens_an_empty_chain_reads_on_at_the_head",
    ),
    Mutant(
        "an entry with the name of a deleted one is acknowledged",
        Chain._check_in_time,
        "if not $in_time:",
        "if False:",
        test=_SLEEPERS + "test_a_writer_suspended_in_its_commit_acknowledges_nothing",
    ),
    Mutant(
        "a reader does not look whether entries were deleted (simulated)",
        boundary.Boundaries._is_over,
        "return $passed >= LEASE_MS",
        "return False",
        mishaps=(Mishap.SLOW,),
        settings={
            "lease_ms": 10_000,
            "operations": 12,
            "actors": ("forget:k/1", "forget:k/2", "nap:k/3", "napscan:k/5", "tidy:t/1"),
        },
    ),
    Mutant(
        "an undecided entry is offered again although its slot may have been deleted",
        Chain._settle,
        "self._or_begin_again(partial(self.boundaries.check, $attempt.entry.sequence))",
        "True",
        test=_SLEEPERS + "test_a_writer_that_has_slept_after_an_unknown_outcome_commits_at_the_head",
    ),
    Mutant(
        "only the wall clock ends a lease",
        boundary.Boundaries._is_over,
        "max(abs(self._runtime.clock() - $lease.clock), self._runtime.uptime() - $lease.uptime)",
        "abs(self._runtime.clock() - $lease.clock)",
        test=_SLEPT,
    ),
    Mutant(
        "only the monotonic clock ends a lease",
        boundary.Boundaries._is_over,
        "max(abs(self._runtime.clock() - $lease.clock), self._runtime.uptime() - $lease.uptime)",
        "self._runtime.uptime() - $lease.uptime",
        test=_SLEPT,
    ),
    Mutant(
        "an open trusts the hint to the last boundary",
        boundary.Boundaries.start,
        "following.result()",
        "None",
        test=_LOST + "test_an_old_checkpoint_is_not_believed_by_a_reader_that_may_not_list",
    ),
    Mutant(
        "a checkpoint of before the boundary is written",
        Saver._save,
        "if $boundary is None:",
        "if False:",
        test=_SLEEPERS + "test_a_process_that_knows_a_later_boundary_writes_no_checkpoint_of_before",
    ),
    Mutant(
        "entries are deleted when they are announced",
        history._history,
        "$is_settled = not $number or $listed[$number].modified_ms <= $now - boundary.WAIT_MS",
        "$is_settled = True",
        test=_HISTORY + "test_a_boundary_announces_what_is_deleted_a_day_later",
    ),
    Mutant(
        "the entry after the boundary is deleted",
        history.delete_entries,
        "$number <= history.settled",
        "$number <= history.settled + 1",
        test=_HISTORY + "test_a_boundary_announces_what_is_deleted_a_day_later",
    ),
    Mutant(
        "entries are deleted although segments in them are in use",
        history.delete_entries,
        "if not $in_use(history.chain, $number)",
        "",
        test=_HISTORY + "test_entries_with_live_inlined_segments_stay",
    ),
    Mutant(
        "entries are deleted although snapshots may read segments in them",
        payloads.old_payloads,
        "if $span.at > $limit]",
        "if False]",
        test=_HISTORY + "test_an_entry_stays_while_snapshots_may_read_a_segment_in_it",
    ),
    Mutant(
        "the history begins with the newest checkpoint",
        old_checkpoints._old_checkpoints,
        "$begins = min(next($complete($history.before($heads)), 0), $newest[-1])",
        "$begins = next($complete($history.before($heads)), 0)",
        test=_HISTORY + "test_two_vacuums_create_one_boundary",
    ),
    Mutant(
        "the history is shorter than the grace period",
        vacuum,
        "$history_ms = max($grace_ms, ",
        "$history_ms = max(0, ",
        test=_HISTORY + "test_the_history_is_never_shorter_than_the_grace_period",
    ),
    Mutant(
        "the age of deleted entries is asked for",
        ages.Ages.newest_older_than,
        "min($boundaries.last().sequence, $state.sequence)",
        "0",
        test=_HISTORY + "test_what_is_watched_for_longer_than_the_history_expires_by_earlier_boundaries",
    ),
    Mutant(
        "all deleted entries are as old as those of the last boundary",
        boundary.Boundaries.timestamp_before,
        "if $lease.document.modified_ms <= $modified_ms:",
        "if True:",
        test=_HISTORY + "test_what_is_watched_for_longer_than_the_history_expires_by_earlier_boundaries",
    ),
    Mutant(
        "a process that has slept takes the first missing boundary for the end",
        boundary.Boundaries._ask,
        "self._renew(*self._after($lease))",
        "self._renew($lease, None)",
        test=_LOST + "test_a_process_that_has_not_slept_lists_nothing",
    ),
    Mutant(
        "a process that has slept does not look for a gap of the entries",
        boundary.Boundaries.check,
        "not self._looked_behind",
        "False",
        test=_LOST + "test_a_sleeper_commits_at_the_head_although_boundaries_are_lost",
    ),
    Mutant(
        "the neighbour of a created entry is not looked at",
        boundary.Boundaries._look_behind,
        "limit=2",
        "limit=1",
        test=_LOST + "test_a_sleeper_within_its_commit_acknowledges_nothing_although_boundaries_are_lost",
    ),
    Mutant(
        "an entry that a list has missed is taken for a deleted one",
        boundary.Boundaries._look_behind,
        "if not self._has_entry($number)",
        "if True",
        test=_LOST + "test_an_entry_that_was_created_while_the_entries_are_listed_is_no_gap",
    ),
    Mutant(
        "an open begins with the checkpoint that an old hint names",
        Loader.first,
        "any(each.is_head for each in $named)",
        "False",
        test=_LOST + "test_an_old_backup_laid_over_a_store_opens_with_all_records",
    ),
    Mutant(
        "a vacuum deletes the history of an open transaction",
        history.ChainHistory.before,
        "$sequence < self.open_from",
        "True",
        test=_HISTORY + "test_the_history_of_an_open_transaction_stays",
    ),
    Mutant(
        "a vacuum goes on where a boundary is lost",
        history._history,
        "if $each not in $listed",
        "if False",
        test=_LOST + "test_a_vacuum_refuses_to_go_on_where_a_boundary_is_lost",
    ),
    Mutant(
        "a hint to an old checkpoint is sound although entries behind it are lost",
        repair_chain.ChainRepairs._passed,
        'return $missing and f"{$old}; between them {$missing}"',
        'return ""',
        test=_LOST + "test_an_entry_is_lost_that_only_an_old_hint_needs",
    ),
    Mutant(
        "a gap that an open does not see is no loss",
        _opens_whole,
        "> $state.sequence + 1",
        "> $state.sequence + 100",
        test=_REPAIRS + "test_a_gap_that_an_open_does_not_see_is_a_loss",
    ),
    Mutant(
        "an older boundary in the place of the last one is sound",
        boundaries.read_boundaries,
        "$after.sequence < $before.sequence",
        "False",
        test=_HISTORY + "test_a_boundary_that_another_one_was_put_in_place_of_is_written_again",
    ),
    Mutant(
        "a deep plan verifies the store as it is, not as it will be",
        _tried,
        "_looked_through($trial, $plan, deep=$deep)",
        "_looked_through(connection, $plan, deep=$deep)",
        test=_REPAIRS + "test_a_deep_plan_of_a_damaged_store_judges_it_as_it_will_be",
    ),
)
