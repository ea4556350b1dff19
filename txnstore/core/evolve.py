"""Dispatch of events: ``evolve(state, *events) -> state``.

Folding checks and decides nothing: the event holds every value. No event of a valid chain raises. ``state.timestamp``
is the time of the entry that holds the event, in ms.
"""

from __future__ import annotations

from txnstore.core.authorization.changes import AUTHORIZATION_FOLDS
from txnstore.core.catalog.rules import CATALOG_FOLDS
from txnstore.core.events import Event
from txnstore.core.expiration import EXPIRATION_FOLDS
from txnstore.core.groups.fold import GROUP_FOLDS
from txnstore.core.log.appending import LOG_FOLDS, LOG_RUN_FOLDS
from txnstore.core.log.retention import RETENTION_FOLDS
from txnstore.core.maintenance import MAINTENANCE_FOLDS
from txnstore.core.state import ORDERING_FOLDS, Folds, State
from txnstore.core.transactions.fold import TRANSACTION_FOLDS


def evolve(state: State, *events: Event) -> State:
    """Return the state after the events, one after the other."""
    return FOLDS.after(state, events)


#: The fold of each class of event.
FOLDS = Folds(
    single={
        **ORDERING_FOLDS,
        **CATALOG_FOLDS,
        **TRANSACTION_FOLDS,
        **LOG_FOLDS,
        **RETENTION_FOLDS,
        **GROUP_FOLDS,
        **MAINTENANCE_FOLDS,
        **EXPIRATION_FOLDS,
        **AUTHORIZATION_FOLDS,
    },
    together=LOG_RUN_FOLDS,
)
