"""Ending what others left: decided transactions whose markers are missing, and open ones that are past their time-out.

Anybody may do it at any time (REC-01): what is decided is carried out, and an open transaction is aborted by one entry
of its coordinator's chain that also fences its owner. Two who do it at once write nothing twice.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass

from txnstore.chain.chains import Chains
from txnstore.coordinator.coordinator import Coordinator
from txnstore.coordinator.copies import copy_all, finish_deletions, has_stale_copies
from txnstore.core.routing import chain_of_producer
from txnstore.core.transactions.commands import AbortTxn
from txnstore.core.transactions.model import Transaction
from txnstore.core.transactions.table import unfinished_of
from txnstore.core.view import View
from txnstore.errors import TxnStoreError

#: A reader leaves a decided transaction to its producer for so long: it sees what is decided anyway.
FINISH_AFTER_MS = 10_000

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RecoveryReport:
    """The transactional ids whose transactions were ended: ``finished`` as decided before, ``aborted`` as expired.

    ``failed``: what could not be ended now, with the reason. ``topics``: deletions of topics that were completed, and
    copies of the catalog that were brought up to date.
    """

    finished: tuple[str, ...] = ()
    aborted: tuple[str, ...] = ()
    failed: tuple[tuple[str, str], ...] = ()
    topics: int = 0


def recover(chains: Chains, coordinator: Coordinator, now: int) -> RecoveryReport:
    """End everything that its owner has left, in all chains. ``now``: the time of this process in milliseconds.

    A chain that is later already has its own time, by which it decides what is past its time-out.
    """
    finished: list[str] = []
    aborted: list[str] = []
    failed: list[tuple[str, str]] = []
    view = chains.view()
    for state in view.states:
        for name in sorted(state.transactions):
            txn = state.transactions[name]
            if not _is_left(txn, max(now, state.timestamp)):
                continue
            try:
                _end(coordinator, txn)
            except TxnStoreError as error:
                failed.append((name, str(error)))
            else:
                (finished if txn.outcome is not None else aborted).append(name)
    topics = finish_deletions(chains, view)
    topics += copy_all(chains) if has_stale_copies(view) else 0
    return RecoveryReport(tuple(finished), tuple(aborted), tuple(failed), topics)


def unblock(coordinator: Coordinator, view: View, producer_ids: Iterable[int], now: int) -> bool:
    """End the open transactions of these producers that their owners have left; whether there was such a thing.

    The view says what is known of the coordinators; nothing is read for this.
    """
    left: dict[int, Transaction] = {}
    for producer_id in producer_ids:
        txn = view.owner(producer_id)
        if txn is None:
            continue
        at = max(now, view.states[chain_of_producer(producer_id)].timestamp)
        if txn.expired(at) or (txn.outcome is not None and txn.updated_at + FINISH_AFTER_MS < at):
            left[producer_id] = txn
    done = False
    for producer_id in sorted(left):
        try:
            _end(coordinator, left[producer_id])
            done = True
        except TxnStoreError as error:
            _LOG.warning("a transaction that blocks readers could not be ended", extra={"error": str(error)})
    return done


def _is_left(txn: Transaction, now: int) -> bool:
    return txn.outcome is not None or txn.expired(now)


def _end(coordinator: Coordinator, txn: Transaction) -> None:
    decided = unfinished_of(txn)
    if decided is not None:
        coordinator.endings.finish(decided)
    else:
        coordinator.submit(AbortTxn(txn.transactional_id, (txn.producer_id, txn.epoch), expired_only=True))
