"""Faults in what a process believes after a sync has failed, an object was lost, or something else has answered."""

from __future__ import annotations

from typing import Any

from tests.harness.simulation import Mishap
from tests.harness.simulation.settings import LOSERS
from tests.mutants.mutant import Mutant
from txnstore.chain.chain import Chain
from txnstore.chain.checkpoints.saver import Saver
from txnstore.chain.tail import Tail
from txnstore.storage.base import Claim

_HOLES = "protocol/chain/test_holes.py::"
_UNDECIDED = "protocol/chain/test_undecided.py::"
_POWER = "protocol/chain/test_power_loss.py::"

_LOSSES: dict[str, Any] = {"syncs": 0.1, "losses": 4, "operations": 6}
#: Creates and reads that something else than the store answers.
_ELSEWHERE: dict[str, Any] = {"elsewhere": 0.3, "operations": 6}
_GAPS: dict[str, Any] = {
    "actors": ("producer:a/1", "producer:b/1", "plain:p/1", "committed:r/1", "scan:s/1", *LOSERS),
    "operations": 12,
    "pace_ms": 5_000,
    "jumps": 0.0,
    "checkpoint_every": 8,
}

POWER = (
    Mutant(
        "an entry whose sync has failed is acknowledged because it is visible (simulated)",
        Claim.settle,
        "if $stored is not None and ($exists or not $visible):",
        "if $stored is not None:",
        mishaps=(),
        settings=_LOSSES,
    ),
    Mutant(
        "a refusal rests on an entry of another process that is not durable",
        Chain._commit,
        "self.make_durable(self.state.sequence)",
        "pass",
        test=_POWER + "test_refusal_because_of_an_entry_of_another_process_waits_for_the_flush",
    ),
    Mutant(
        "what another process wrote is durable once this one has written",
        Chain.make_durable,
        "if $sequence > self.durable:",
        "if not self.durable:",
        test=_POWER + "test_checkpoint_has_only_entries_that_are_durable",
    ),
    Mutant(
        "a checkpoint rests on entries of another process that are not durable",
        Saver._save,
        "$head = self._head()",
        "$head = state",
        test=_POWER + "test_checkpoint_has_only_entries_that_are_durable",
    ),
    Mutant(
        "an entry follows from an entry of another chain that is not durable",
        Chain._commit,
        "self._make_seen_durable($attempt)",
        "pass",
        chains=2,
        test=_POWER + "test_entry_that_an_entry_of_another_chain_follows_from_is_durable",
    ),
    Mutant(
        "an offset is committed whose records are only visible",
        Chain._make_seen_durable,
        "isinstance($event, OffsetsCommitted)",
        "False",
        test=_POWER + "test_records_before_a_committed_offset_are_durable",
    ),
    Mutant(
        "an entry in the place of a lost one is acknowledged after a suspension",
        Chain._check_followers,
        "self._is_stale(self._runtime.clock())",
        "False",
        test=_HOLES + "test_an_entry_of_a_process_that_was_suspended_in_its_commit_is_not_acknowledged",
    ),
    Mutant(
        "a look that took long trusts the look before it",
        Chain._catch_up,
        "if $until is None and not $sure and self._is_stale(self._runtime.clock()):",
        "if False:",
        test=_HOLES + "test_a_look_that_was_suspended_makes_sure_of_the_head",
    ),
    Mutant(
        "bytes that cannot be read are those of another process",
        Chain._offer,
        "not self._is_readable($stored, $attempt.entry.sequence)",
        "False",
        test=_UNDECIDED + "test_bytes_that_cannot_be_read_leave_the_outcome_unknown",
    ),
    Mutant(
        "a gap between entries is the end of a chain (simulated)",
        Tail._missing,
        "if all($follower is None for $follower in $unfolded.values()):",
        "if True:",
        mishaps=(Mishap.SLOW,),
        settings=_GAPS,
    ),
    Mutant(
        "a name that is said to exist has the bytes of the process itself (simulated)",
        Claim.settle,
        "$exists = True",
        "return self.data",
        mishaps=(),
        settings=_ELSEWHERE,
    ),
    Mutant(
        "a create that something else has answered is acknowledged (simulated)",
        Claim.settle,
        "self.unknown_outcomes += 1",
        "return self.data",
        mishaps=(),
        settings=_ELSEWHERE,
    ),
)
