"""Mutants of the rules of expiration, and of readers that are blocked."""

from __future__ import annotations

from tests.mutants.mutant import Mutant
from txnstore.connection import Connection
from txnstore.core import blocked, expiration, maintenance
from txnstore.core.groups import fold as groups_fold

_CORE = "protocol/core/test_expiry.py::"
_GROUPS = "protocol/core/test_expiry_groups.py::"
_BLOCKED = "protocol/read/test_blocked.py::"

EXPIRY = (
    Mutant(
        "fences of a decided transaction expire before it is completed",
        expiration._idle_fences,
        "$idle.difference_update($decided)",
        "pass",
        test="protocol/compact/test_expiring.py::test_end_08_decided_transaction_keeps_its_fences_until_it_is_completed",
    ),
    Mutant(
        "a producer with an open transaction expires",
        expiration._idle_producers,
        "and $producer_id not in $partition.open_txns",
        "",
        test=_CORE + "test_pst_07_producer_with_open_transaction_does_not_expire",
    ),
    Mutant(
        "a producer expires one millisecond too early",
        expiration._idle_producers,
        "$producer.last_timestamp <= $limit",
        "$producer.last_timestamp <= $limit + 1",
        test=_CORE + "test_pst_06_idle_producer_expires_after_a_day",
    ),
    Mutant(
        "the transactional id of an open transaction expires",
        expiration._is_idle,
        "may_enter($txn, TxnState.DEAD) and ",
        "",
        test=_CORE + "test_tmo_07_open_transaction_keeps_transactional_id",
    ),
    Mutant(
        "a transactional id with versions expires",
        expiration._is_idle,
        " and not $txn.versions",
        "",
        test=_CORE + "test_tmo_07_transactional_id_with_versions_does_not_expire",
    ),
    Mutant(
        "producers may expire while late batches are accepted",
        expiration._check,
        "if $command.producer_ms <= MAX_ADDED_AGE_MS:",
        "if False:",
        test=_CORE + "test_pst_09_unsafe_limits_are_refused",
    ),
    Mutant(
        "the fence of pending offsets expires",
        expiration._idle_fences,
        "$idle.difference_update($group.pending)",
        "pass",
        test=_GROUPS + "test_off_16_pending_offsets_keep_fence",
    ),
    Mutant(
        "a late marker of an older transaction decides pending offsets",
        groups_fold._offsets_committed,
        "$state = with_fence($state, $event.producer_id, $event.epoch)",
        "pass",
        test=_GROUPS + "test_off_16_late_marker_of_older_transaction_is_ignored",
    ),
    Mutant(
        "a compaction removes an aborted transaction with a remaining batch from the index",
        maintenance._still_aborted,
        "if $entry.first_offset >= $limit or _has_batches($batches, $entry)",
        "if $entry.first_offset >= $limit",
        test=_CORE + "test_cmp_aborted_index_keeps_transaction_with_remaining_batch",
    ),
    Mutant(
        "a reader leaves expired transactions that block it alone",
        Connection.unblocked,
        "$blocked and self.unblock(blockers($view, $blocked))",
        "False",
        test=_BLOCKED + "test_lso_19_every_reader_ends_an_expired_transaction_that_hides_records",
    ),
    Mutant(
        "records of open transactions count as waiting",
        blocked._committed,
        "not is_open($log, $batch) and ",
        "",
        test=_BLOCKED + "test_transaction_that_holds_nothing_back_is_left_alone",
    ),
    Mutant(
        "the latest open transaction is reported as the one that blocks",
        blocked._blocked,
        "$last_stable, $producer_id = min(",
        "$last_stable, $producer_id = max(",
        test=_BLOCKED + "test_snapshot_tells_what_waits_behind_whom",
    ),
)
