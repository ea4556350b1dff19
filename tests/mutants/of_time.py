"""Mutants of the rules of time: ages are measured, not read from the clocks of writers."""

from __future__ import annotations

from tests.mutants.mutant import Mutant
from txnstore.chain.ages import Ages
from txnstore.chain.chain import Chain
from txnstore.compactor.vacuum.vacuum import _removed_before
from txnstore.core import expiration
from txnstore.core.expiration import Expire
from txnstore.core.groups import membership as groups_membership

_CLOCKS = "protocol/chain/test_wrong_clocks.py::"

TIME = (
    Mutant(
        "a member is removed that has renewed its lease since it was watched",
        groups_membership.expire,
        "($member.member_id, $member.seen_at) in $watched",
        "$member.member_id in dict($watched)",
        test=_CLOCKS + "test_a_renewal_since_the_watched_one_keeps_the_member",
    ),
    Mutant(
        "the clocks of writers decide timeouts",
        Ages.is_over,
        "if $stamp > self.newest_older_than($state, $length_ms + 1):",
        "if False:",
        test=_CLOCKS + "test_transaction_timeouts_outlive_one_entry_of_a_wrong_clock",
    ),
    Mutant(
        "a process ends nothing that it has watched itself",
        Ages.is_over,
        "$min_age, $max_age = self._marks[$state.chain].bounds($stamp, $now)",
        "$min_age, $max_age = -1, self._marks[$state.chain].bounds($stamp, $now)[1]",
        test=_CLOCKS + "test_a_reader_ends_what_it_has_watched_for_the_whole_timeout",
    ),
    Mutant(
        "the age that the storage has told is forgotten",
        Ages.is_over,
        "$least_ms = $answer.least_ms + $now - $answer.at if $answer is not None else 0",
        "$least_ms = 0",
        test=_CLOCKS + "test_a_lease_that_is_over_stays_over_however_often_it_is_asked",
    ),
    Mutant(
        "the clock of a machine decides about what was read less than a timeout ago",
        Ages.is_over,
        "if $max_age is not None and $max_age <= $length_ms:",
        "if False:",
        test=_CLOCKS + "test_a_clock_that_jumps_ends_nothing_that_was_seen_to_begin",
    ),
    Mutant(
        "offsets and transactional ids expire by the clocks of writers",
        Expire.limits,
        "(min($producers, self.oldest[0]), *self.oldest[1:])",
        "($producers, ids, offsets)",
        test=_CLOCKS + "test_a_wrong_clock_expires_nothing_in_use",
    ),
    Mutant(
        "a group without offsets is deleted although its member is alive",
        expiration._due_in_group,
        "type($group.offsets)()), $limit)",
        "type($group.offsets)()), $limit + command.offsets_ms)",
        test=_CLOCKS + "test_a_group_with_a_live_member_and_no_offsets_stays",
    ),
    Mutant(
        "a vacuum takes the age of a replaced segment from the clock of a writer",
        _removed_before,
        "$state.dropped.get($key, 0)) > $limit",
        "$state.dropped.get($key, 0)) > connection.objects.now_ms() - age_ms",
        test=_CLOCKS + "test_a_vacuum_measures_the_grace_period_on_the_storage",
    ),
    Mutant(
        "entries of a clock that is behind have all the same time",
        Chain.now,
        "$newest + 1",
        "$newest",
        test=_CLOCKS + "test_times_of_a_chain_tell_entries_apart_while_a_clock_is_behind",
    ),
)
