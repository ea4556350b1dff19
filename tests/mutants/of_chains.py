"""Mutants of what happens between chains: markers, coordination, recovery, copies of the catalog."""

from __future__ import annotations

from tests.harness.simulation import Mishap
from tests.mutants.mutant import Mutant
from txnstore.chain.chains import Chains
from txnstore.coordinator import recovery
from txnstore.coordinator.completion import Endings
from txnstore.coordinator.coordinator import Coordinator
from txnstore.coordinator.coordinator import _has as has_all
from txnstore.core import state as core_state
from txnstore.core.catalog import rules as catalog_rules
from txnstore.core.transactions import rules as transactions_rules
from txnstore.core.view import View

#: Faults between chains.
MANY_CHAINS = (
    Mutant(
        "a batch goes to another chain before its partition is added",
        has_all,
        "and txn.partitions.issuperset(command.partitions)",
        "",
        chains=3,
    ),
    Mutant(
        "the decision comes before the batches",
        Coordinator._end,
        "appended = self._send_ahead(command, home, others) if others else {}",
        "appended = {number: () for number in others}",
        chains=3,
    ),
    Mutant(
        "a marker goes only where the producer has written",
        transactions_rules._emit_marker,
        "if known is None or known.epoch <= decided.epoch:",
        "if known is not None and known.epoch <= decided.epoch:",
        test="protocol/test_chains_steps.py::test_fen_02_marker_fences_late_batch_in_partition_without_data",
    ),
    Mutant(
        "it is complete before all markers are written",
        Endings.finish,
        "others = sorted(chains_of(decided, len(self._chains)) - {home})",
        "others = sorted(chains_of(decided, len(self._chains)) - {home})[:1]",
        chains=3,
    ),
    Mutant(
        "it is complete although a chain could not be written",
        Endings.finish,
        "self._chains.at_once(",
        "(lambda work: self._chains.try_at_once(work)[0])(",
        chains=3,
        mishaps=(Mishap.OUTAGE,),
    ),
    Mutant(
        "a view is not closed under what its chains rest on",
        Chains.view,
        "while behind := _behind(states):",
        "while behind := {}:",
        test="protocol/test_chains_reading.py::test_snapshot_is_consistent_with_commit_between_any_two_requests",
    ),
    Mutant(
        "a marker does not say what it rests on",
        core_state.observe,
        "if chain != draft.state.chain and draft.state.seen.get(chain, 0) < sequence:",
        "if False:",
        test="protocol/test_chains_reading.py::test_snapshot_is_consistent_with_commit_between_any_two_requests",
    ),
    Mutant(
        "a view shows a decided transaction once its marker is there",
        View.decided,
        "if txn is None or txn.outcome is None:",
        "if True:",
        chains=3,
    ),
    Mutant(
        "a recoverer decides again",
        transactions_rules.abort,
        "if txn.state is not TxnState.ONGOING or (",
        "if txn.state is TxnState.PREPARE_COMMIT:\n        txn = replace(txn, state=TxnState.ONGOING)\n    if (",
        test="protocol/test_chains_steps.py::test_stm_02_decision_is_never_repeated",
    ),
    Mutant(
        "a recoverer aborts what is not expired",
        transactions_rules.abort,
        "(command.expired_only and not txn.expired(draft.state.timestamp))",
        "False",
        test="protocol/test_chains_steps.py::test_tmo_01_only_expired_transaction_is_aborted",
    ),
    Mutant(
        "a recoverer leaves what is decided",
        recovery._is_abandoned,
        "return txn.outcome is not None or txn.expired(now)",
        "return txn.expired(now)",
        chains=3,
    ),
    Mutant(
        "an old topic that goes takes the partitions of the next one out of transactions",
        catalog_rules._topic_deleted,
        "for txn_id, txn in state.transactions.items():",
        "for led, (txn_id, txn) in ((gone, item) for item in state.transactions.items()):",
        test="protocol/test_chains_topics.py::test_late_deletion_keeps_partitions_of_recreated_topic",
    ),
    Mutant(
        "a transaction begins while the one before is being ended",
        transactions_rules.join,
        "if txn.outcome is not None:",
        "if False:",
        test="protocol/test_chains_steps.py::test_add_05_next_transaction_waits_for_completion",
    ),
)
