"""Runs the invariants (OBJ-19): each is a named function that yields a message for every violation.

A violation is a bug or damage: no sequence of commands leads to one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from txnstore.core.invariants.across import copies_follow_the_catalog, cut_is_consistent, foreign_data_has_an_owner
from txnstore.core.invariants.common import Violation
from txnstore.core.invariants.fences import FENCE_ACROSS, FENCE_INVARIANTS, FENCE_STEPS
from txnstore.core.invariants.groups import (
    GROUP_INVARIANTS,
    GROUP_STEPS,
    group_offsets_sound,
    pending_offsets_have_a_transaction,
)
from txnstore.core.invariants.logs import LOG_INVARIANTS
from txnstore.core.invariants.producers import epochs_known_to_coordinator, producer_ids_unique, producer_windows_sound
from txnstore.core.invariants.steps import (
    counters_never_go_back,
    cut_never_goes_back,
    decided_stays_decided,
    decisions_never_change,
    deletion_keeps_what_it_cuts,
    epochs_never_go_back,
    group_offsets_by_position,
    offsets_never_renumbered,
    positions_never_go_back,
    producer_ids_never_move,
    revisions_follow_replacements,
    segments_go_through_dropped,
    undecided_data_is_kept,
    versions_never_go_back,
)
from txnstore.core.invariants.transactions import (
    aborted_index_sound,
    open_transactions_hold_the_lso,
    open_transactions_listed,
    stable_data_is_decided,
    transactions_well_formed,
)
from txnstore.core.state import State
from txnstore.core.view import View


def check(state: State) -> list[Violation]:
    """The violations of the invariants of a state."""
    return [Violation(rule.__name__, message) for rule in INVARIANTS for message in rule(state)]


def check_step(before: State, after: State) -> list[Violation]:
    """The violations of the invariants of a transition: the states before and after one entry."""
    return [Violation(rule.__name__, message) for rule in STEPS for message in rule(before, after)]


def check_event(before: State, after: State) -> list[Violation]:
    """The violations of the invariants of one event: the states before and after it.

    One entry may complete a transaction and decide the next one of the same id: only its events, one by one, show that
    both were right.
    """
    return [Violation(rule.__name__, message) for rule in EVENTS for message in rule(before, after)]


def check_view(view: View) -> list[Violation]:
    """The violations of the invariants of each state of a view, and of those across chains."""
    return [violation for state in view.states for violation in check(state)] + check_across(view)


def check_across(view: View) -> list[Violation]:
    """The violations of the invariants across the chains of a view."""
    return [Violation(rule.__name__, message) for rule in ACROSS for message in rule(view)]


#: The invariants of a state, in the order of the report.
INVARIANTS: tuple[Callable[[State], Iterator[str]], ...] = (
    *LOG_INVARIANTS,
    transactions_well_formed,
    open_transactions_listed,
    open_transactions_hold_the_lso,
    stable_data_is_decided,
    aborted_index_sound,
    producer_windows_sound,
    epochs_known_to_coordinator,
    producer_ids_unique,
    pending_offsets_have_a_transaction,
    group_offsets_sound,
    *FENCE_INVARIANTS,
    *GROUP_INVARIANTS,
)

#: The invariants across chains, in the order of the report.
ACROSS: tuple[Callable[[View], Iterator[str]], ...] = (
    cut_is_consistent,
    copies_follow_the_catalog,
    foreign_data_has_an_owner,
    *FENCE_ACROSS,
)

#: The invariants of an event, in the order of the report.
EVENTS: tuple[Callable[[State, State], Iterator[str]], ...] = (decisions_never_change,)

#: The invariants of a transition, in the order of the report.
STEPS: tuple[Callable[[State, State], Iterator[str]], ...] = (
    positions_never_go_back,
    offsets_never_renumbered,
    undecided_data_is_kept,
    deletion_keeps_what_it_cuts,
    decided_stays_decided,
    segments_go_through_dropped,
    revisions_follow_replacements,
    epochs_never_go_back,
    cut_never_goes_back,
    producer_ids_never_move,
    counters_never_go_back,
    versions_never_go_back,
    group_offsets_by_position,
    *FENCE_STEPS,
    *GROUP_STEPS,
)
