"""Helpers of the invariants."""

from __future__ import annotations

from collections.abc import Iterable
from operator import itemgetter

from txnstore.core.log.model import Batch
from txnstore.core.model import K, Map, V, value_class
from txnstore.core.routing import chain_of_producer
from txnstore.core.state import State
from txnstore.core.transactions.model import DECIDED, Transaction


@value_class()
class Violation:
    """A violation of an invariant.

    Attributes:
        name: The name of the invariant.
        message: How it is violated.
        subject: The object, entry or partition that violates it; empty if the message names it.
    """

    name: str
    message: str
    subject: str = ""

    def __str__(self) -> str:
        return ": ".join(part for part in (self.name, self.subject, self.message) if part)


def changed_items(before: Map[K, V], after: Map[K, V]) -> list[tuple[K, V, V | None]]:
    """Yield the items of a map that an entry has changed or removed: key, value before, value after; by key.

    The two maps of a transition share the values that the entry has not changed.
    """
    if before is after:
        return []
    pairs = ((key, value, after.get(key)) for key, value in before.items())
    return sorted([pair for pair in pairs if pair[1] is not pair[2]], key=itemgetter(0))


def transactions_of(state: State) -> list[Transaction]:
    """Return the transactions of a state, sorted by transactional id."""
    return [state.transactions[name] for name in sorted(state.transactions)]


def own_producers(state: State, producer_ids: Iterable[int]) -> list[int]:
    """Return producer ids that this chain granted, and negative ones: it does not know transactions of others."""
    return sorted(number for number in producer_ids if number < 0 or chain_of_producer(number) == state.chain)


def highest_epoch(txn: Transaction) -> int:
    """Return the highest epoch of a transaction's producer id in any chain: after a decision that of its markers.

    The markers carry the next epoch (KIP-890), and the transaction gets it only when it is completed.
    """
    return txn.epoch + 1 if txn.state in DECIDED else txn.epoch


def owner_of(state: State, producer_id: int) -> Transaction | None:
    """Return the transaction with this current producer id, or None."""
    txn = state.transactions.get(state.transactional_ids.get(producer_id, ""))
    return txn if txn is not None and txn.producer_id == producer_id else None


def offsets_of(batch: Batch) -> str:
    """Describe the first and last offset of a batch, for messages."""
    return f"{batch.base_offset}-{batch.limit - 1}"
