"""Faults in the order of many writers on one chain: they cost time and money, not correctness."""

from __future__ import annotations

from tests.mutants.mutant import Mutant
from txnstore.chain.chain import Chain
from txnstore.chain.pacing import Pacing
from txnstore.chain.turns import Turns

TURNS = (
    Mutant(
        "a writer that lets its turn pass stays in the order",
        Turns._members,
        "if $one == $last or not _is_between($last, $one, $writer)",
        "",
        test="unit/chain/test_turns.py::test_a_writer_that_lets_its_turn_pass_is_out_of_the_order_until_its_next_entry",
    ),
    Mutant(
        "writers of long ago are waited for",
        Turns._members,
        "if $later - $at > IDLE * self.latency:",
        "if False:",
        test="unit/chain/test_turns.py::test_writers_of_a_quiet_chain_are_not_waited_for",
    ),
    Mutant(
        "a turn that is not used stays that of its writer",
        Turns.next,
        "$place == 0 or $remaining <= 0",
        "$place == 0",
        test="unit/chain/test_turns.py::test_an_unused_turn_is_taken_by_the_next_in_order_and_later_by_the_one_after_it",
    ),
    Mutant(
        "writers whose entries a store was opened with are active",
        Turns.record_read,
        "if self._read_at is not None:  # The age",
        "if True:  # The age",
        test="unit/chain/test_turns.py::test_entries_found_on_opening_are_of_no_known_age",
    ),
    Mutant(
        "a poll that fails ends the commit",
        Pacing._arrived,
        "with suppress(StorageError):",
        "with suppress(ValueError):",
        test="protocol/chain/test_turns.py::test_polls_that_fail_do_not_fail_the_commit",
    ),
    Mutant(
        "commands that come during a wait miss the entry",
        Chain._commit,
        "take(self._waiting, $waiters)  # Those",
        "# Those",
        test="protocol/chain/test_turns.py::test_commands_that_come_during_a_wait_share_the_entry",
    ),
)
