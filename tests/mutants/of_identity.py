"""Faults in noticing which store is here: that it was deleted, lost its identity, or lies beside another one."""

from __future__ import annotations

from tests.mutants.mutant import Mutant
from txnstore.chain.chain import Chain
from txnstore.chain.chains import Chains
from txnstore.chain.checkpoints.checkpoint import hint_mismatch, hint_of_this_store, hinted_entries, named_after
from txnstore.chain.identity import Identity
from txnstore.chain.loading import Loader
from txnstore.chain.remains import other_store
from txnstore.compactor.foreign import foreign_pages
from txnstore.compactor.repair.chain import ChainRepairs
from txnstore.compactor.repair.repair import _missing_heads, _tried
from txnstore.compactor.vacuum.soundness import _gaps, check_no_others
from txnstore.compactor.vacuum.vacuum import _choose, _view_after_lists
from txnstore.compactor.verify.chain import ChainVerifier
from txnstore.connection import create_connection
from txnstore.read.expired import judged

_TESTS = "protocol/repair/test_replaced_stores.py::"
_OPENING = "protocol/chain/test_opening.py::"
_OF_TWO = "protocol/repair/test_identity.py::"
_EVIDENCE = "protocol/chain/test_evidence.py::"
_HINTS = "protocol/verify/test_hints.py::"

IDENTITY = (
    Mutant(
        "a store that was open once exists for all time",
        Identity._is_due,
        "abs(self._runtime.monotonic() - self._confirmed_at) > CONFIRM_MS",
        "False",
        test=f"{_TESTS}test_process_notices_that_its_store_was_deleted",
    ),
    Mutant(
        "a commit that succeeds shows that the store exists",
        Chain._commit,
        "        $confirm()  # Nothing must be acknowledged",
        "        pass  #",
        test=f"{_TESTS}test_process_that_never_pauses_notices_as_soon",
    ),
    Mutant(
        "a reader does not look whether the store exists",
        Chains.view,
        "        $confirm()",
        "        pass",
        test=f"{_TESTS}test_process_notices_that_its_store_was_replaced",
    ),
    Mutant(
        "any store.json is that of the open store",
        Identity.check,
        "if $store_id != self._keys.store_id:",
        "if False:",
        test=f"{_TESTS}test_process_notices_that_its_store_was_replaced",
    ),
    Mutant(
        "a vacuum trusts an earlier look at store.json",
        _view_after_lists,
        "$connection.chains.identity.confirm()",
        "pass",
        test=f"{_TESTS}test_vacuum_looks_again_after_its_lists",
    ),
    Mutant(
        "a vacuum takes the chains of its own store for foreign",
        foreign_pages,
        "not in (None, $keys.store_id)",
        "is not None",
        test=f"{_TESTS}test_what_is_left_is_deleted_on_request",
    ),
    Mutant(
        "a vacuum deletes the chains of all other stores on request",
        foreign_pages,
        "if store_of($item.key) in $stores",
        "",
        test=f"{_TESTS}test_what_is_left_is_deleted_on_request",
    ),
    Mutant(
        "a store is created over what is left of another one",
        create_connection,
        "                raise\n",
        "                pass\n",
        test=f"{_OF_TWO}test_no_store_is_created_over_what_is_left_of_one",
    ),
    Mutant(
        "an empty store opens beside the chains of another one",
        other_store,
        "if $others:",
        "if False:",
        test=f"{_OF_TWO}test_store_document_of_another_store_is_noticed",
    ),
    Mutant(
        "a store that has lost its chains is an empty one",
        other_store,
        "if $segment is None:",
        "if True:",
        test=f"{_OF_TWO}test_store_that_lost_all_of_its_chains_is_not_empty",
    ),
    Mutant(
        "a chain that another process seems to write to is opened as empty",
        Loader._is_empty,
        "return False",
        "return True",
        test=f"{_OF_TWO}test_a_process_that_slept_over_the_files_of_two_stores_looks_again",
    ),
    Mutant(
        "a process believes the hint of another store",
        hint_of_this_store,
        '$document.store_id in ("", $keys.store_id)',
        "True",
        test=f"{_OF_TWO}test_hint_of_another_store_is_ignored",
    ),
    Mutant(
        "the newest entry that the hint of another store names is believed",
        hint_of_this_store,
        '$document.store_id in ("", $keys.store_id)',
        "True",
        test=f"{_OPENING}test_a_hint_of_another_store_is_no_evidence_and_no_request",
    ),
    Mutant(
        "a hint does not show that entries behind its checkpoint are lost",
        Loader.check,
        "max($hinted.sequence, $hinted.head)",
        "$hinted.sequence",
        test=f"{_OPENING}test_a_hint_shows_that_the_entries_behind_its_checkpoint_are_lost",
    ),
    Mutant(
        "the hash of the newest entry in a hint is not compared",
        hinted_entries,
        "$hint.head: $hint.head_hash",
        "0: ''",
        test=f"{_OPENING}test_a_hint_with_another_hash_of_its_newest_entry_is_another_history[40]",
    ),
    Mutant(
        "a hint names an entry that a power cut may take",
        Chain._durable_state,
        "self.make_durable($state.sequence)",
        "pass",
        test=f"{_OPENING}test_a_hint_names_no_entry_that_a_power_cut_may_take",
    ),
    Mutant(
        "a recovery does not look for the newest entry that a hint names",
        ChainRepairs.survey,
        "if $hint_document.head > max($begins, $newest_sound):",
        "if False:",
        test=f"{_OPENING}test_a_recovery_accepts_a_chain_without_the_newest_entry_of_its_hint[another]",
    ),
    Mutant(
        "an object of a checkpoint does not show that its entry existed",
        Loader.names_after,
        "self._named.sequence > $state.sequence",
        "False",
        test=f"{_EVIDENCE}test_each_trace_of_a_lost_entry_is_evidence",
    ),
    Mutant(
        "only heads of checkpoints are evidence, and no index files",
        named_after,
        "$named += [",
        "[",
        test=f"{_EVIDENCE}test_each_trace_of_a_lost_entry_is_evidence",
    ),
    Mutant(
        "a hint does not show that the newest entries are lost",
        Loader.check,
        "$newest > $state.sequence",
        "False",
        test=f"{_OF_TWO}test_hint_shows_that_a_chain_has_lost_its_newest_entries",
    ),
    Mutant(
        "a checkpoint of another history is believed",
        hint_mismatch,
        "if $expected == $state.entry_hash:",
        "if True:",
        test=f"{_OF_TWO}test_hint_with_another_hash_is_another_history",
    ),
    Mutant(
        "an entry of another history is believed",
        Loader._check_hinted_entry,
        "entry_hash($data) != $digest",
        "False",
        test=f"{_OF_TWO}test_hint_with_another_hash_is_another_history",
    ),
    Mutant(
        "a vacuum deletes what another store names",
        check_no_others,
        "if $others:",
        "if False:",
        test=f"{_OF_TWO}test_vacuum_deletes_nothing_beside_another_store",
    ),
    Mutant(
        "a vacuum goes on over a gap in the history",
        _gaps,
        "$number is not None and $number != $expected",
        "False",
        test=f"{_OF_TWO}test_vacuum_refuses_a_store_that_is_not_sound[entry]",
    ),
    Mutant(
        "a vacuum does not miss the newest entry",
        _gaps,
        "if $expected <= $state.sequence:",
        "if False:",
        test=f"{_OF_TWO}test_vacuum_refuses_a_store_that_is_not_sound[newest entry]",
    ),
    Mutant(
        "a recovery takes a chain without its newest entry for whole",
        _missing_heads,
        "if $state.sequence and",
        "if False and",
        test=f"{_OF_TWO}test_chain_without_entries_is_empty_only_if_nothing_is_left_of_it[checkpoints]",
    ),
    Mutant(
        "a plan of repairs is not tried",
        _tried,
        "if not $why:",
        "if True:",
        test=f"{_OF_TWO}test_chain_without_entries_is_empty_only_if_nothing_is_left_of_it[index]",
    ),
    Mutant(
        "a missing segment is damage, whoever needs it",
        judged,
        "$batch.segment.key == $missing.key",
        "True",
        test="protocol/chain/test_past_snapshots.py::test_records_stay_for_the_grace_period",
    ),
    Mutant(
        "a lost segment that the newest state names was vacuumed",
        judged,
        "$batch.segment.key == $missing.key",
        "False",
        test="protocol/verify/test_damaged_objects.py::test_a_damaged_segment",
    ),
    Mutant(
        "a vacuum forgets dropped keys whose objects exist",
        _choose,
        "$named.long_removed.difference_update($item.key for $item in $page)",
        "pass",
        test="protocol/vacuum/test_segments.py::test_dropped_keys_stay_in_the_state_until_deleted",
    ),
    Mutant(
        "a verification does not see that a chain ends before the entry that its hint names",
        ChainVerifier._check_end,
        "if $newest > last:",
        "if False:",
        test=f"{_HINTS}test_lost_entries_that_a_hint_names_are_named[False]",
    ),
    Mutant(
        "a verification believes a hint that does not say which store it is of",
        ChainVerifier._check_end,
        "if self._hint.store_id else 0",
        "",
        test=f"{_HINTS}test_a_hint_that_may_be_of_another_store_is_no_evidence",
    ),
    Mutant(
        "a verification compares no entry with the hash in the hint",
        ChainVerifier._check_entry,
        "self._compare_with_hint($sequence, $digest)",
        "pass",
        test=f"{_HINTS}test_another_hash_in_a_hint_is_another_history",
    ),
    Mutant(
        "a verification compares no checkpoint with the hash in the hint",
        ChainVerifier._check_checkpoint,
        "self._compare_with_hint($sequence, $saved.state.entry_hash)",
        "pass",
        test=f"{_HINTS}test_the_entry_of_the_last_boundary_is_compared_by_its_checkpoint",
    ),
    Mutant(
        "a verification misses a checkpoint only if its index file is left",
        ChainVerifier._list_checkpoints,
        "(self._hint.store_id or $hint in $indexed)",
        "$hint in $indexed",
        test=f"{_HINTS}test_the_checkpoint_that_a_hint_names_is_lost_with_its_index",
    ),
)
