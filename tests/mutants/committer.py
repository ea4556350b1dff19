"""Faults in what an entry may carry for another process, and in what that process takes for the outcome."""

from __future__ import annotations

from tests.harness.simulation.settings import EVERYBODY
from tests.mutants.mutant import Mutant
from txnstore.chain.chain import Chain
from txnstore.chain.committer.carrying import Horizons
from txnstore.chain.committer.committer import Committer

_WRITERS = tuple(
    actor for actor in EVERYBODY if actor.startswith(("producer:", "plain:", "threads:", "copy:", "member:"))
)
#: Writers of one machine, which loses one message in ten.
_SHARED = {"actors": _WRITERS, "machines": 1, "cuts": 0.1, "pace_ms": 20, "operations": 8}

COMMITTER = (
    Mutant(
        "an entry carries what its process has committed itself",
        Horizons.allow,
        "return $origin.after >= $newest",
        "return True",
        settings=_SHARED,
    ),
    Mutant(
        "the own entries of a caller do not count",
        Horizons.record,
        "{$entry.writer_id, *(",
        "{*(",
        settings=_SHARED,
    ),
    Mutant(
        "a committer carries what came over an older channel",
        Committer._is_allowed,
        "self._callers.get(origin.writer_id) is origin.channel and",
        "",
        settings=_SHARED,
    ),
    Mutant(
        "a process decides a command that an entry carries",
        Chain._decide,
        "self._committer.settle($waiters)",
        "pass",
        settings=_SHARED,
    ),
)
