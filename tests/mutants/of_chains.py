"""Mutants of the protocol between chains: markers, coordination, recovery, copies of the catalog."""

from __future__ import annotations

from tests.harness.simulation import Mishap
from tests.mutants.mutant import Mutant
from txnstore.chain.chains import Chains
from txnstore.coordinator import recovery
from txnstore.coordinator.completion import Completions
from txnstore.coordinator.coordinator import Coordinator
from txnstore.coordinator.coordinator import _has_added as has_all
from txnstore.core import state as core_state
from txnstore.core.catalog import rules as catalog_rules
from txnstore.core.transactions import rules as transactions_rules
from txnstore.core.view import View

#: Lines of ``Coordinator._end``.
_SEND_AHEAD = "    appended = self._append_ahead(command, coordinator_chain, others) if others else {}\n"
_NAME_LAST = """\
    after = self._after(producer, coordinator_chain, others)
    last = replace(command, batches=coordinator_part.batches, offsets=coordinator_part.offsets, after=after)
    submit = self._submit if decided else self._submit_part
    try:
"""
_DECIDE = "        ended: Ended = self.completions.when_free(producer, lambda: submit(coordinator_chain, last))\n"

#: Faults between chains.
MANY_CHAINS = (
    Mutant(
        "a batch goes to another chain before its partition is added",
        has_all,
        "and $txn.partitions.issuperset($command.partitions)",
        "",
        chains=3,
    ),
    Mutant(
        "the decision is written before the batches of other chains",
        Coordinator._end,
        _SEND_AHEAD + _NAME_LAST + _DECIDE,
        _NAME_LAST + _DECIDE + "    " + _SEND_AHEAD,
        chains=3,
    ),
    Mutant(
        "a marker is written only to partitions with data of the producer",
        transactions_rules._marker_of,
        "if $state is None or $state",
        "if $state is not None and $state",
        test="protocol/chains/test_steps.py::test_fen_02_marker_fences_late_batch_in_partition_without_data",
    ),
    Mutant(
        "a transaction completes before all markers are written",
        Completions._write_markers,
        "$others = sorted(chains_of($decided, len(self._chains)) - {$coordinator_chain})",
        "$others = sorted(chains_of($decided, len(self._chains)) - {$coordinator_chain})[:1]",
        chains=3,
    ),
    Mutant(
        "a transaction completes although a chain could not be written",
        Completions._write_markers,
        "self._chains.concurrently(",
        "(lambda work: self._chains.try_concurrently(work)[0])(",
        chains=3,
        mishaps=(Mishap.OUTAGE,),
    ),
    Mutant(
        "a completion that no entry carries is not written",
        Completions._finish_with_next_entry,
        "$chain.commit_queued($queued)",
        "pass",
        test="protocol/chains/test_requests.py::test_a_transaction_across_chains",
    ),
    Mutant(
        "a completion that an entry has carried is waited for",
        Completions._finish_with_next_entry,
        "if not $queued.done:",
        "if True:",
        test="protocol/chains/test_requests.py"
        "::test_a_completion_waits_a_moment_for_an_entry_only_if_none_has_carried_it",
    ),
    Mutant(
        "the cut of a view is not closed",
        Chains.view,
        "while $behind := _behind($states):",
        "while $behind := {}:",
        test="protocol/chains/test_reading.py::test_snapshot_is_consistent_with_commit_between_any_two_requests",
    ),
    Mutant(
        "a marker does not record the entry it depends on",
        core_state.observe,
        "if $chain != $draft.state.chain and $draft.state.seen.get($chain, 0) < $sequence:",
        "if False:",
        test="protocol/chains/test_reading.py::test_snapshot_is_consistent_with_commit_between_any_two_requests",
    ),
    Mutant(
        "a view shows a decided transaction only after its marker",
        View.decided,
        "if $txn is None or $txn.state not in DECIDED:",
        "if True:",
        chains=3,
    ),
    Mutant(
        "a recovery decides a transaction again",
        transactions_rules.abort,
        "if $txn.state is not TxnState.ONGOING or (",
        "from dataclasses import replace\n    if $txn.state is TxnState.PREPARE_COMMIT:\n"
        "        $txn = replace($txn, state=TxnState.ONGOING)\n    if (",
        test="protocol/chains/test_steps.py::test_stm_02_decision_is_never_repeated",
    ),
    Mutant(
        "a recovery aborts a transaction before its timeout",
        transactions_rules.abort,
        "($command.expired_only and not _may_time_out($txn, $command))",
        "False",
        test="protocol/chains/test_steps.py::test_tmo_01_only_expired_transaction_is_aborted",
    ),
    Mutant(
        "a recovery leaves decided transactions incomplete",
        recovery.recover,
        "if not ($txn.state in DECIDED or $chains.ages.has_expired($state, $txn)):",
        "if not $chains.ages.has_expired($state, $txn):",
        chains=3,
    ),
    Mutant(
        "a late deletion removes the partitions of the recreated topic from transactions",
        catalog_rules._topic_deleted,
        "for $txn_id, $txn in items_of($state.transactions):",
        "for led, ($txn_id, $txn) in ((gone, item) for item in items_of($state.transactions)):",
        test="protocol/chains/test_topics.py::test_late_deletion_keeps_partitions_of_recreated_topic",
    ),
    Mutant(
        "a transaction begins before the previous one is complete",
        transactions_rules.join,
        "if $txn.state in DECIDED:",
        "if False:",
        test="protocol/chains/test_steps.py::test_add_05_next_transaction_waits_for_completion",
    ),
)
