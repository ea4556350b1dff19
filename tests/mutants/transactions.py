"""Faults in the rules of transactions: epochs, markers, ends, sequences, sessions."""

from __future__ import annotations

from tests.harness.simulation import Mishap
from tests.harness.simulation.settings import SESSIONS
from tests.mutants.mutant import Mutant
from txnstore.coordinator.coordinator import Coordinator
from txnstore.core.transactions import init, rules
from txnstore.producer.transaction import Transaction

#: Clients of one transactional id over processes that die, which send requests of earlier transactions again.
_SESSIONS = {"actors": (*SESSIONS, "recover:x/1", "scan:s/1")}

TRANSACTIONS = (
    Mutant(
        "an append skips the check of the epoch",
        rules.append,
        "if ($txn.producer_id, $txn.epoch) != ($producer.producer_id, $producer.epoch):",
        "if False:",
    ),
    Mutant(
        "init leaves the transaction of its predecessor open",
        init.init_producer,
        "if $txn.state is TxnState.ONGOING:",
        "if False:",
    ),
    Mutant(
        "init commits the transaction of its predecessor",
        init.init_producer,
        "_end($draft, $txn, Outcome.ABORT, session=$in_session)",
        "_end($draft, $txn, Outcome.COMMIT)",
    ),
    Mutant(
        "init grants the epoch of its predecessor again",
        init.init_producer,
        "return _grant($draft, $command, $txn.producer_id, $txn.epoch + 1)",
        "return _grant($draft, $command, $txn.producer_id, $txn.epoch)",
    ),
    Mutant(
        "an end does not bump the epoch",
        rules.decide_end,
        "next_epoch=0 if $rotate else $txn.epoch + 1",
        "next_epoch=0 if $rotate else $txn.epoch",
    ),
    Mutant(
        "a marker carries the epoch of its transaction",
        rules._next_marker,
        "$decided.epoch + 1",
        "$decided.epoch",
    ),
    Mutant(
        "the marker of one partition is not written",
        rules.emit_markers,
        "for $tp in $decided.partitions:",
        "for $tp in $decided.partitions[:2]:",
    ),
    Mutant(
        "the markers of groups are not written",
        rules.emit_markers,
        "for $group in $decided.groups:",
        "for $group in ():",
    ),
    Mutant(
        "only one partition of a batch joins the transaction",
        rules.join,
        "sorted($joining - $txn.partitions)",
        "sorted(set(list($joining)[:1]) - $txn.partitions)",
    ),
    Mutant(
        "a repeated commit is refused as fenced",
        rules._repeated_end,
        "if $outcome is None or ($outcome is Outcome.ABORT and $command.outcome is Outcome.COMMIT "
        "and not $txn.in_session):",
        "if True:",
        mishaps=(Mishap.OUTAGE,),
    ),
    Mutant(
        "sequences of a transaction start at 1",
        Transaction.number_batches,
        "$sequence = $following.get($batch.tp, 0)",
        "$sequence = $following.get($batch.tp, 1)",
    ),
    Mutant(
        "windows are kept in the coordinator's chain only",
        rules._keep_windows,
        "if $partitions or not is_foreign($draft.state, $decided.producer_id):",
        "if not is_foreign($draft.state, $decided.producer_id):",
        chains=3,
        settings=_SESSIONS,
    ),
    Mutant(
        "other chains do not get the epoch of the client",
        Coordinator._find_added,
        "$state.timestamp, $txn.session_epoch)",
        "$state.timestamp)",
        chains=3,
        settings=_SESSIONS,
    ),
)
