"""Faults in the protocol between chains: markers, coordination, recovery, copies of the catalog."""

from __future__ import annotations

from tests.harness.simulation import Mishap
from tests.mutants.mutant import Mutant
from txnstore.coordinator import recovery
from txnstore.coordinator.completion import Completions
from txnstore.coordinator.coordinator import Coordinator
from txnstore.coordinator.coordinator import _has_added as has_all
from txnstore.core.view import View

#: Lines of ``Coordinator._end``.
_SEND_AHEAD = "    appended = self._append_before_end(command, coordinator_chain, others) if others else {}\n"
_NAME_LAST = """\
    after = self._entries_after_parts(producer, coordinator_chain, others)
    last = replace(command, batches=coordinator_part.batches, offsets=coordinator_part.offsets, after=after)
    submit = self._submit if $decided else self._submit_part
    try:
"""
_DECIDE = "        ended: Ended = self.completions.when_free(producer, lambda: submit(coordinator_chain, last))\n"

CHAINS = (
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
        "a view shows a decided transaction only after its marker",
        View.with_decided_ended,
        "if $txn is None or $txn.state not in DECIDED:",
        "if True:",
        chains=3,
    ),
    Mutant(
        "a recovery leaves decided transactions incomplete",
        recovery.recover,
        "if not ($txn.state in DECIDED or $chains.ages.has_expired($state, $txn)):",
        "if not $chains.ages.has_expired($state, $txn):",
        chains=3,
    ),
)
