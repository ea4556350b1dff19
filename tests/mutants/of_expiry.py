"""Mutants of the rules of what expires."""

from __future__ import annotations

from tests.mutants.mutant import Mutant
from txnstore.core import expiration, maintenance
from txnstore.core.groups import fold as groups_fold

_CORE = "protocol/test_core_expiry.py::"
_GROUPS = "protocol/test_core_expiry_groups.py::"

EXPIRY = (
    Mutant(
        "a producer with an open transaction is forgotten",
        expiration._idle_producers,
        "and producer_id not in partition.open_txns",
        "",
        test=_CORE + "test_pst_07_a_producer_with_an_open_transaction_is_kept",
    ),
    Mutant(
        "a producer is forgotten a moment too early",
        expiration._idle_producers,
        "producer.last_timestamp <= limit",
        "producer.last_timestamp <= limit + 1",
        test=_CORE + "test_pst_06_an_idle_producer_is_forgotten_after_a_day",
    ),
    Mutant(
        "the id of an open transaction is forgotten",
        expiration._is_idle,
        "txn.state in _AT_REST and ",
        "",
        test=_CORE + "test_tmo_07_an_open_transaction_keeps_its_id",
    ),
    Mutant(
        "the versions of a job are forgotten",
        expiration._is_idle,
        " and not txn.versions",
        "",
        test=_CORE + "test_tmo_07_an_id_that_knows_versions_of_a_job_stays",
    ),
    Mutant(
        "producers may be forgotten while late batches are accepted",
        expiration._check,
        "if command.producer_ms <= MAX_ADDED_AGE_MS:",
        "if False:",
        test=_CORE + "test_pst_09_limits_that_would_not_be_safe_are_refused",
    ),
    Mutant(
        "the fence of pending offsets is forgotten",
        expiration._idle_fences,
        "idle.difference_update(group.pending)",
        "pass",
        test=_GROUPS + "test_off_16_a_fence_stays_while_offsets_are_pending",
    ),
    Mutant(
        "a late marker of an older transaction decides pending offsets",
        groups_fold._offsets_committed,
        "state = with_fence(state, event.producer_id, event.epoch)",
        "pass",
        test=_GROUPS + "test_off_16_a_late_marker_of_an_older_transaction_decides_nothing",
    ),
    Mutant(
        "a compaction takes an aborted transaction of which a batch is left from the index",
        maintenance._still_aborted,
        "if entry.first_offset >= limit or _has_batches(batches, entry)",
        "if entry.first_offset >= limit",
        test=_CORE + "test_cmp_the_index_keeps_a_transaction_of_which_a_batch_is_left",
    ),
)
