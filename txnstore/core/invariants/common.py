"""What the invariants share."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from txnstore.core.log.model import Batch, Partition
from txnstore.core.model import TopicPartition
from txnstore.core.routing import chain_of_producer
from txnstore.core.state import State
from txnstore.core.transactions.model import Transaction


@dataclass(frozen=True, slots=True)
class Violation:
    """An invariant that does not hold.

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


def transactions_of(state: State) -> list[Transaction]:
    return [state.transactions[name] for name in sorted(state.transactions)]


def own_producers(state: State, producer_ids: Iterable[int]) -> list[int]:
    """Those that this chain granted: of the others it cannot tell what they do."""
    return sorted(number for number in producer_ids if number < 0 or chain_of_producer(number) == state.chain)


def owner_of(state: State, producer_id: int) -> Transaction | None:
    """The transaction whose current producer id this is."""
    txn = state.transactions.get(state.transactional_ids.get(producer_id, ""))
    return txn if txn is not None and txn.producer_id == producer_id else None


def by_id(item: tuple[int, object]) -> int:
    return item[0]


def by_name(item: tuple[str, object]) -> str:
    return item[0]


def by_partition(item: tuple[TopicPartition, object]) -> TopicPartition:
    return item[0]


def logs(state: State) -> list[tuple[TopicPartition, Partition]]:
    """The partition logs of a state in order."""
    return [(tp, state.partitions[tp]) for tp in sorted(state.partitions)]


def offsets_of(batch: Batch) -> str:
    """The offsets of a batch as a message names them."""
    return f"{batch.base_offset}-{batch.limit - 1}"
