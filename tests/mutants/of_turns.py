"""Faults in the order of many writers on one chain: they cost time and money, not correctness."""

from __future__ import annotations

from tests.mutants.mutant import Mutant
from txnstore.chain import pacing
from txnstore.chain.chain import Chain
from txnstore.chain.pacing import Pacing, _answer
from txnstore.chain.turns import Turns

TURNS = (
    Mutant(
        "the entry that a newcomer polls is folded after those that were requested on the way only",
        pacing.Pacing._poll,
        "[None] * (wait.target - 1 - len($before))",
        "[]",
        test="protocol/chain/test_turns.py::test_polls_of_a_newcomer_fold_each_entry_once",
    ),
    Mutant(
        "a writer that lets its turn pass stays in the order",
        Turns._serve,
        "del self._order[: self._order.index($writer) + 1]",
        "self._order.remove($writer)",
        test="unit/chain/test_turns.py::test_a_writer_that_lets_its_turn_pass_is_out_of_the_order_until_its_next_entry",
    ),
    Mutant(
        "writers of long ago are waited for",
        Turns._serve,
        "$at - self._times[-1] > IDLE * self.latency",
        "False",
        test="unit/chain/test_turns.py::test_writers_of_a_quiet_chain_are_not_waited_for",
    ),
    Mutant(
        "the entry of a newcomer takes the turn of the writer that it has beaten",
        Turns._serve,
        "self._order.append($writer)",
        "self._order[:] = [*self._order[1:], $writer]",
        test="unit/chain/test_turns.py::test_the_entry_of_a_newcomer_takes_no_turn_of_another_writer",
    ),
    Mutant(
        "a newcomer PUTs although the next writer has begun its PUT",
        Turns._join,
        "if not self._is_behind($now):",
        "if True:",
        test="unit/chain/test_turns.py::test_a_writer_outside_the_order_puts_when_it_sees_an_entry_as_early_as_the_next_one",
    ),
    Mutant(
        "a newcomer polls one entry after the other",
        Turns._join,
        "1 + max(0, ",
        "1 + min(0, ",
        test="unit/chain/test_turns.py::test_a_newcomer_among_busy_writers_joins_soon",
    ),
    Mutant(
        "an entry is dated before its writer can have read the one before it",
        Turns.record_read,
        "self._times[-1] + _APART * self.latency",
        "self._times[-1]",
        test="unit/chain/test_turns.py::test_an_entry_is_not_dated_before_its_writer_can_have_read_the_one_before_it",
    ),
    Mutant(
        "a newcomer polls on for an entry that is further away than it seemed",
        Pacing._poll,
        "$answers < $wait.target and",
        "False and",
        test="protocol/chain/test_turns.py::test_a_writer_that_has_lost_in_a_quiet_chain_puts_again_at_once",
    ),
    Mutant(
        "an entry that was written after its GET is never read",
        Pacing._arrived,
        "$state.sequence < $last and",
        "False and",
        test="protocol/chain/test_turns.py::test_an_entry_that_a_poll_has_missed_is_read_with_the_one_after_it",
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
        _answer,
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
