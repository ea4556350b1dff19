"""Mutants of the maintenance of stores, each killed by a test."""

from __future__ import annotations

from tests.mutants.mutant import Mutant
from txnstore.core import claims

_CLAIMS = "unit/test_core_claims.py::"

#: Faults of compactors.
COMPACTION = (
    Mutant(
        "a partition is claimed by two compactors",
        claims.is_claimed,
        "claim.owner != owner and claim.until > now",
        "False",
        test=_CLAIMS + "test_a_partition_is_claimed_by_one_compactor",
    ),
    Mutant(
        "a compactor that died holds its partitions for ever",
        claims.is_claimed,
        "and claim.until > now",
        "",
        test=_CLAIMS + "test_a_claim_ends_and_leaves_the_state",
    ),
    Mutant(
        "claims that ended stay in the state",
        claims._lasting,
        "if claim.until <= state.timestamp:",
        "if False:",
        test=_CLAIMS + "test_a_claim_ends_and_leaves_the_state",
    ),
)
