"""Recovery: completes decided transactions, and aborts open ones past their timeout, that their producers abandoned.

Any process may run it at any time, several of them concurrently (REC-01). A decided transaction keeps its outcome. One
entry of its coordinator's chain aborts an open transaction and fences its producer. Nothing is written twice.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass

from txnstore.chain.ages import Ages
from txnstore.chain.chains import Chains
from txnstore.coordinator.coordinator import Coordinator
from txnstore.coordinator.copies import copy_all, finish_deletions, has_stale_copies
from txnstore.core.model import sorted_items
from txnstore.core.routing import chain_of_producer
from txnstore.core.transactions.commands import AbortTxn
from txnstore.core.transactions.lookups import decided_of
from txnstore.core.transactions.model import DECIDED, Transaction
from txnstore.core.view import View
from txnstore.errors import TxnStoreError

#: For this time (ms) a reader leaves the completion to the producer: readers see decided transactions as ended.
FINISH_AFTER_MS = 10_000

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RecoveryReport:
    """The transactions and topics that a recovery has ended.

    Attributes:
        finished: The transactional ids whose decided transactions were completed.
        aborted: The transactional ids whose open transactions were aborted, past their timeout.
        failed: Pairs of (transactional id, error) of transactions that could not be ended.
        topics: The number of completed deletions of topics, and of chains whose copies of the catalog were updated.
    """

    finished: tuple[str, ...] = ()
    aborted: tuple[str, ...] = ()
    failed: tuple[tuple[str, str], ...] = ()
    topics: int = 0


def recover(chains: Chains, coordinator: Coordinator) -> RecoveryReport:
    """End all abandoned transactions in all chains, and complete deletions of topics.

    Args:
        chains: The chains of the store.
        coordinator: The coordinator.
    """
    finished: list[str] = []
    aborted: list[str] = []
    failed: list[tuple[str, str]] = []
    view = chains.view()
    for state in view.states:
        for name, txn in sorted_items(state.transactions):
            if not (txn.state in DECIDED or chains.ages.has_expired(state, txn)):
                continue
            try:
                _end_abandoned(coordinator, txn)
            except TxnStoreError as error:
                failed.append((name, str(error)))
            else:
                (finished if txn.state in DECIDED else aborted).append(name)
    topics = finish_deletions(chains, view)
    topics += copy_all(chains) if has_stale_copies(view) else 0
    counts = {"finished": len(finished), "aborted": len(aborted), "failed": len(failed), "topics": topics}
    _LOG.log(logging.WARNING if failed else logging.INFO, "recovered", extra=counts)
    return RecoveryReport(tuple(finished), tuple(aborted), tuple(failed), topics)


def find_abandoned(
    ages: Ages, view: View, producer_ids: Iterable[int], *, decided_at_once: bool = False
) -> list[Transaction]:
    """Return the abandoned transactions of these producers, which a process that waits for them may end.

    The view decides which are open or not completed; a request is made only for one that seems to be abandoned.

    Args:
        decided_at_once: Whether a decided transaction counts as abandoned at any age.
    """
    transactions: dict[int, Transaction] = {}
    for producer_id in producer_ids:
        txn = view.owner(producer_id)
        if txn is None:
            continue
        state = view.states[chain_of_producer(producer_id)]
        is_unfinished = txn.state in DECIDED and (
            decided_at_once or ages.is_over(state, txn.updated_at, FINISH_AFTER_MS)
        )
        if is_unfinished or ages.has_expired(state, txn):
            transactions[producer_id] = txn
    return [transactions[producer_id] for producer_id in sorted(transactions)]


def end_abandoned(coordinator: Coordinator, transactions: Iterable[Transaction]) -> list[Transaction]:
    """End abandoned transactions for a reader; return those that could not be ended, which are logged."""
    failed: list[Transaction] = []
    for txn in transactions:
        try:
            _end_abandoned(coordinator, txn)
        except TxnStoreError as error:
            failed.append(txn)
            _LOG.warning(
                "a transaction that blocks readers could not be ended: %s",
                error,
                extra={"transactional_id": txn.transactional_id, "error": str(error)},
            )
    return failed


def _end_abandoned(coordinator: Coordinator, txn: Transaction) -> None:
    """Complete a decided transaction, or abort an open one, unless its producer has ended it meanwhile."""
    decided = decided_of(txn)
    if decided is not None:
        coordinator.completions.finish(decided)
    else:
        coordinator.submit(AbortTxn(txn.transactional_id, (txn.producer_id, txn.epoch), expired_only=True))
    extra = {"transactional_id": txn.transactional_id, "producer_id": txn.producer_id, "epoch": txn.epoch}
    _LOG.info("abandoned transaction ended", extra={**extra, "state": txn.state.name})
