"""Faults in maintenance: cleans by key, leases of compactors, vacuums."""

from __future__ import annotations

from tests.harness.simulation.settings import CLEANERS, OPERATORS, SHARERS
from tests.mutants.mutant import Mutant
from txnstore.compactor.compact import clean_plan
from txnstore.compactor.compact.lease import CompactionLease
from txnstore.compactor.compact.newest import NewestByKey
from txnstore.compactor.erase import erase, rewriting, search
from txnstore.compactor.vacuum import soundness

#: Vacuums without other actors that stop them, and files that are misplaced for longer than their grace period.
_OPERATED = {"actors": ("producer:a/1", "tidy:t/1", "tidy:t/2", "tidy:t/3", *OPERATORS), "operations": 12}

_ERASES = "protocol/erase/test_erase.py::"

MAINTENANCE = (
    Mutant(
        "aborted records supersede others",
        clean_plan.plan_clean,
        "if not $is_aborted($batch)",
        "if True",
        settings={"actors": CLEANERS},
    ),
    Mutant(
        "the newest record of a key goes",
        NewestByKey.offsets,
        "yield $batch.column(0).to_numpy()",
        "yield $batch.column(0).to_numpy()[1:]",
        settings={"actors": CLEANERS},
    ),
    Mutant(
        "a clean covers what is undecided",
        clean_plan.first_uncleanable_offset,
        "$stable, $lag = $partition.last_stable_offset,",
        "$stable, $lag = $partition.high_watermark,",
        settings={"actors": CLEANERS, "operations": 12, "pace_ms": 200},
    ),
    Mutant(
        "a compactor that died holds its partitions without end",
        CompactionLease._current_leases,
        "if abs($now - $listed[$key].modified_ms) > $lease.duration_ms:",
        "if False:",
        settings={"actors": ("producer:a/1", "plain:p/1", *SHARERS)},
    ),
    Mutant(
        "a vacuum deletes what another store names",
        soundness.check_no_others,
        "if $others:",
        "if False:",
        mishaps=(),
        settings=_OPERATED,
    ),
    Mutant(
        "an erasure passes over rows that no batch has",
        search.Search._look_into_segments,
        "if not $rows and _has_other_rows($named.batches_of($item.key)):",
        "if False:",
        test=_ERASES + "test_rows_of_a_shared_segment_that_no_batch_has_are_found",
    ),
    Mutant(
        "an erasure erases what is undecided",
        rewriting.plan_rewrites,
        "if $held:",
        "if False:",
        test=_ERASES + "test_an_open_transaction_that_holds_such_records_refuses",
    ),
    Mutant(
        "an erasure leaves records in entries",
        erase._empty,
        "if not payload_of($data):",
        "if True:",
        test=_ERASES + "test_records_of_others_in_an_entry_are_moved",
    ),
    Mutant(
        "an erasure publishes a table on",
        erase._Erasure._publish,
        "rebuild=[$name] if $is_enabled else []",
        "rebuild=[]",
        test=_ERASES + "test_tables_lose_the_rows_and_their_earlier_snapshots",
    ),
)
