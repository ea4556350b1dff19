"""Mutants of the reading of earlier snapshots."""

from __future__ import annotations

from tests.mutants.mutant import Mutant
from txnstore.chain import past, tail
from txnstore.chain.chains import Chains
from txnstore.chain.checkpoints import checkpoint
from txnstore.compactor.vacuum import checkpoints as old_checkpoints
from txnstore.read import blocked

_PAST = "protocol/chain/test_past_snapshots.py::"

PAST = (
    Mutant(
        "an earlier state begins at a later checkpoint",
        checkpoint.newest,
        " if $number <= $until)",
        ")",
        test=_PAST + "test_requests_of_an_earlier_snapshot",
    ),
    Mutant(
        "an entry of the time itself does not belong to it",
        past.Past.last_until,
        "bisect_right($numbers, $timestamp,",
        "bisect_right($numbers, $timestamp - 1,",
    ),
    Mutant(
        "a time is found one entry too late",
        past.Past.last_until,
        "return $first + bisect_right(",
        "return 1 + $first + bisect_right(",
        chains=3,
    ),
    Mutant(
        "entries of several chains that do not fit together are read",
        Chains._past_view,
        "sorted(_behind([*$view.states]).items())",
        "()",
        test=_PAST + "test_entries_of_several_chains",
    ),
    Mutant(
        "a vacuum deletes the checkpoint before the grace period",
        old_checkpoints._old_checkpoints,
        "next($complete($past), 0)",
        "0",
        test=_PAST + "test_a_vacuum_keeps_the_checkpoint_before_the_grace_period",
    ),
    Mutant(
        "a warning of an earlier snapshot advises what cannot change it",
        blocked.warn_blocked,
        "$past = $snapshot is not None and",
        "$past = False and",
        test=_PAST + "test_nothing_is_aborted_for_an_earlier_snapshot",
    ),
    Mutant(
        "an entry is read under the name of another",
        tail.entry_in,
        "if $entry.sequence != $sequence:",
        "if False:",
        test=_PAST + "test_an_entry_under_the_name_of_another_is_named",
    ),
    Mutant(
        "a moment of the future is a snapshot",
        past.check_timestamp,
        "$when > $latest",
        "False",
        test=_PAST + "test_snapshots_that_do_not_exist",
    ),
)
