"""Faults in looking after a store: the doctor, repairs, the report of a verification."""

from __future__ import annotations

from tests.mutants.mutant import Mutant
from txnstore.compactor.doctor.debt import _checkpoint, _transaction
from txnstore.compactor.doctor.storage import _lifecycle
from txnstore.compactor.repair.chain import ChainRepairs
from txnstore.compactor.repair.repair import _check_places, plan_repairs, repair
from txnstore.compactor.verify.rules import rule_reports

_REPAIRS = "protocol/repair/test_repairs.py::"
_IDENTITY = "protocol/repair/test_repairs_identity.py::"
_DOCTOR = "protocol/repair/test_doctor.py::"

CARE = (
    Mutant(
        "a repair writes over a store.json that another process has put back",
        repair,
        "elif not $item.create:",
        "elif True:",
        test=f"{_IDENTITY}test_document_that_another_process_has_put_back_is_kept",
    ),
    Mutant(
        "a repair takes a gap for the end of the chain",
        ChainRepairs._fold,
        "if not $later:",
        "if $later or not $later:",
        test=f"{_REPAIRS}test_gap_of_more_entries_than_are_read_at_once_is_a_loss",
    ),
    Mutant(
        "a repair names the entry that shows an altered one",
        ChainRepairs._fold,
        "return self._loss(self.state.sequence, self._later(), str($error))",
        "return self._loss(self.state.sequence + 1, self._later(), str($error))",
        test=f"{_REPAIRS}test_rewritten_entry_with_a_good_checksum_is_named",
    ),
    Mutant(
        "a repair trusts the newest checkpoints without reading them",
        ChainRepairs.plan,
        "if $saved is None}",
        "if False}",
        test=f"{_REPAIRS}test_newest_checkpoint_is_written_again_byte_by_byte",
    ),
    Mutant(
        "a repair takes any number of chains",
        _check_places,
        "$subject is not None",
        "False",
        test=f"{_IDENTITY}test_number_of_chains_is_asked_for_if_no_checkpoint_has_it",
    ),
    Mutant(
        "a repair does not try to open the store",
        plan_repairs,
        "and _opens_whole($connection)",
        "",
        test=f"{_REPAIRS}test_missing_entry_after_the_checkpoint_is_named",
    ),
    Mutant(
        "the doctor fears rules for other prefixes",
        _lifecycle,
        "any($rule.touches($each) for $each in $ours)",
        "True",
        test=f"{_DOCTOR}test_settings_of_the_bucket_are_judged",
    ),
    Mutant(
        "the doctor trusts a hint to a checkpoint that does not exist",
        _checkpoint,
        "if $damage is not None:",
        "if False:",
        test=f"{_DOCTOR}test_hints_and_checkpoints_are_judged",
    ),
    Mutant(
        "the doctor takes an expired transaction for an open one",
        _transaction,
        "if $connection.chains.ages.has_expired($state, $txn):",
        "if False:",
        test=f"{_DOCTOR}test_open_transaction_is_a_note_and_a_warning_past_its_timeout",
    ),
    Mutant(
        "the report of a verification counts no violation",
        rule_reports,
        "failed[rule]",
        "0",
        test="protocol/verify/test_rules.py::test_failed_rule_is_named_with_its_invariant",
    ),
)
