"""Dispatch of events: ``evolve(state, *events) -> state``.

Folding checks and decides nothing: the event holds every value. No event of a valid chain raises. ``state.timestamp``
is the time of the entry that holds the event, in ms.
"""

from __future__ import annotations

from txnstore.core import expiration, maintenance
from txnstore.core.authorization import changes
from txnstore.core.catalog import rules as catalog
from txnstore.core.events import Event
from txnstore.core.groups import fold as groups
from txnstore.core.log import appending, retention
from txnstore.core.state import DECLARED_FOLDS, State
from txnstore.core.transactions import fold as transactions

_MODULES = (catalog, transactions, appending, retention, groups, maintenance, expiration, changes)
#: The fold of each class of event.
FOLDS = DECLARED_FOLDS


def evolve(state: State, *events: Event) -> State:
    """Return the state after the events, one after the other."""
    return FOLDS.state_after(state, events)
