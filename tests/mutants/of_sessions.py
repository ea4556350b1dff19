"""Mutants of sessions: one epoch of a client for many transactions, and partitions that are added first."""

from __future__ import annotations

from dataclasses import replace

from tests.harness.simulation.settings import SESSIONS as ACTORS
from tests.mutants.mutant import Mutant
from txnstore.coordinator.coordinator import Coordinator
from txnstore.core.expiration import _producers_expired
from txnstore.core.log import appending
from txnstore.core.transactions import fold, init, lookups, rules, sessions

_CORE = "protocol/core/test_sessions.py::"
_CHAINS = "protocol/chains/test_sessions.py::"

SESSIONS = (
    Mutant(
        "a window of an earlier session answers for the next one",
        appending.kept_window,
        "$kept is not None and $kept.session_epoch == $session_epoch",
        "$kept is not None",
        test=_CORE + "test_window_of_an_earlier_session_is_not_of_the_next_one",
    ),
    Mutant(
        "a window forgets the transactions before the last one",
        appending._session_window,
        "(*$kept, *$window)[-WINDOW:] if $kept else $window",
        "$window or $kept",
        test=_CORE + "test_window_has_five_batches_over_the_session",
    ),
    Mutant(
        "new records with the sequences of an aborted batch are taken for a repetition",
        fold._with_session_window,
        "if $event.outcome is Outcome.ABORT:",
        "if False:",
        test=_CORE + "test_sequences_of_an_aborted_batch_are_not_those_of_a_repetition",
    ),
    Mutant(
        "records with the sequences of an aborted batch are appended",
        appending._in_window,
        "raise OutOfOrderSequenceError($msg)",
        "return None",
        test=_CORE + "test_sequences_of_an_aborted_batch_are_not_those_of_a_repetition",
    ),
    Mutant(
        "the first batch of a partition must have sequence 0 in a session",
        appending._check_sequence,
        "or $session_epoch != NO_PRODUCER",
        "",
        test=_CORE + "test_producer_state_expires_in_a_session",
    ),
    Mutant(
        "the first batch of a session may have any sequence",
        appending._check_sequence,
        "($producer.transactional_id is None or $session_epoch != NO_PRODUCER)",
        "True",
        test=_CORE + "test_first_transaction_begins_at_0_without_a_state",
    ),
    Mutant(
        "the windows of sessions never expire",
        _producers_expired,
        "$windows = $windows.discard($producer_id)",
        "pass",
        test=_CORE + "test_producer_state_expires_in_a_session",
    ),
    Mutant(
        "an abort by another process fences the client with its markers only",
        sessions.identity_in,
        "if not $txn.in_session:",
        "if False:",
        test=_CHAINS + "test_client_is_fenced_before_the_markers_of_its_aborted_transaction_are_written",
    ),
    Mutant(
        "an abort by another process leaves the session",
        fold._txn_prepared,
        "session_epoch=NO_PRODUCER,",
        "",
        test=_CORE + "test_abort_after_the_timeout_fences_the_client",
    ),
    Mutant(
        "an end in a session loses the epoch of the client",
        rules.decide_end,
        "$txn.session_epoch if $txn.in_session else $txn.epoch",
        "$txn.epoch",
        test=_CORE + "test_one_epoch_for_many_transactions",
    ),
    Mutant(
        "a session rotates its producer id",
        rules.decide_end,
        "$txn.epoch >= MAX_EPOCH and not $session",
        "$txn.epoch >= MAX_EPOCH",
        test=_CORE + "test_epochs_of_a_session_have_more_than_16_bits",
    ),
    Mutant(
        "batches that the end of a session brings are not in its window",
        rules.emit_markers,
        "$draft.state = fold_batches($draft.state, $last)\n        $last = NO_BATCHES\n",
        "",
        test=_CORE + "test_end_appends_its_batches_in_a_session",
    ),
    Mutant(
        "windows are kept in the coordinator's chain only",
        rules._keep_windows,
        "if $partitions or not is_foreign($draft.state, $decided.producer_id):",
        "if not is_foreign($draft.state, $decided.producer_id):",
        test=_CHAINS + "test_sequences_run_on_in_other_chains",
    ),
    Mutant(
        "a repeated marker keeps the windows again",
        rules._has_window,
        "$producer.epoch == $decided.epoch and bool($producer.batches)",
        "bool($producer.batches)",
        test=_CHAINS + "test_markers_of_a_session_may_be_written_again",
    ),
    Mutant(
        "a session requires no feature",
        rules._keep_windows,
        "$draft.require(SESSIONS)",
        "pass",
        test=_CHAINS + "test_both_chains_require_the_feature",
    ),
    Mutant(
        "an end without a transaction is always a repetition",
        rules._ended_before,
        "if COMPLETED.get($txn.state) is not $command.outcome:",
        "if False:",
        test=_CORE + "test_repeated_end",
    ),
    Mutant(
        "an end in a session without a transaction is never a repetition",
        rules._ended_before,
        "if COMPLETED.get($txn.state) is not $command.outcome:",
        "if True:",
        test=_CORE + "test_repeated_end",
    ),
    Mutant(
        "an abort in a session is answered after the abort of another process",
        rules._repeated_end,
        "if $command.session and not $txn.in_session:",
        "if False:",
        test=_CORE + "test_abort_after_the_timeout_fences_the_client",
    ),
    Mutant(
        "a batch joins the transaction of a client that adds partitions itself",
        rules.append,
        "if $command.added_only and not has_added($txn, $command):",
        "if False:",
        test=_CORE + "test_produce_before_its_partition_is_added_is_refused",
    ),
    Mutant(
        "an offset joins the transaction of a client that adds groups itself",
        lookups.has_added,
        "and $txn.groups >= $groups",
        "",
        test=_CORE + "test_produce_before_its_partition_is_added_is_refused",
    ),
    Mutant(
        "a repeated batch brings offsets along",
        lookups.repeated_batches,
        "and not $command.offsets",
        "",
        test=_CORE + "test_repeated_batch_brings_no_offsets_along",
    ),
    Mutant(
        "a repeated batch answers for the batches of other chains",
        rules._repeated_only,
        "if not ($command.partitions or $command.groups):",
        "if True:",
        test=_CORE + "test_repeated_batch_brings_no_partitions_along",
    ),
    Mutant(
        "one repeated batch answers for all",
        lookups.repeated_batches,
        "and len($repeated) == len($found)",
        "",
        test=_CORE + "test_repeated_batch_brings_no_offsets_along",
    ),
    Mutant(
        "an unknown partition joins a transaction",
        rules.join,
        "if leads_partition($draft.state, $tp):",
        "if False:",
        test=_CORE + "test_partition_to_add_must_exist",
    ),
    Mutant(
        "two-phase commit in a session",
        rules.hold,
        "if $txn.in_session:",
        "if False:",
        test=_CORE + "test_two_phase_commit_needs_transactions_v2",
    ),
    Mutant(
        "a client bumps the epoch of its transaction",
        init._expected_identity,
        "if not $txn.in_session and $txn.state not in DECIDED and",
        "if $txn.state not in DECIDED and",
        test=_CORE + "test_client_bumps_its_own_epoch",
    ),
    Mutant(
        "a bump is granted the epoch of a transaction that another process has aborted",
        init._expected_identity,
        "and $txn.state not in DECIDED and",
        "and",
        test=_CHAINS + "test_bump_after_another_process_has_aborted",
    ),
    Mutant(
        "a bump grants the epoch that requests of the session have",
        init.init_producer,
        "and not $in_session and is_previous_identity($txn, $command.expected)",
        "and is_previous_identity($txn, $command.expected)",
        test=_CORE + "test_client_bumps_its_own_epoch",
    ),
    Mutant(
        "a bump over chains is fenced by its own abort",
        init.init_producer,
        "session=$in_session",
        "session=False",
        test=_CHAINS + "test_bump_of_the_client_over_chains",
    ),
    Mutant(
        "a client is mapped to a transaction that is decided",
        sessions.identity_in,
        "if $txn.state in DECIDED:",
        "if False:",
        test=_CHAINS + "test_client_is_told_to_wait_until_markers_are_written",
    ),
    Mutant(
        "a client is mapped by any epoch",
        sessions.identity_in,
        "if ($client.producer_id, $client.epoch) != client_identity($txn):",
        "if False:",
        test=_CORE + "test_new_instance_fences_the_session",
    ),
    Mutant(
        "other chains are not told the epoch of the client",
        Coordinator._added,
        "$state.timestamp, $txn.session_epoch)",
        "$state.timestamp)",
        test=_CHAINS + "test_session_over_two_processes[3]",
    ),
    Mutant(
        "an outdated process answers that a partition is added",
        Coordinator._add_and_append,
        "if $added is not None and not $named and",
        "if $added is not None and",
        test=_CHAINS + "test_partition_is_added_at_the_head",
    ),
    Mutant(
        "a partition without data does not join",
        Coordinator._add_and_append,
        "if $joining is not None and $named:",
        "if False:",
        test=_CHAINS + "test_partition_joins_without_data",
    ),
    Mutant(
        "a late duplicate in another chain is refused",
        Coordinator._append,
        "if $command.added_only else None",
        "if False else None",
        test=_CHAINS + "test_session_over_two_processes[3]",
    ),
)

#: The same faults for the simulation, where clients repeat requests of earlier transactions.
_SIMULATED = (
    "windows are kept in the coordinator's chain only",
    "other chains are not told the epoch of the client",
)
_ACTORS = (*ACTORS, "recover:x/1", "scan:s/1")
SIMULATED_SESSIONS = tuple(
    replace(mutant, name=f"{mutant.name} (simulated)", test=None, chains=3, settings={"actors": _ACTORS})
    for mutant in SESSIONS
    if mutant.name in _SIMULATED
)
