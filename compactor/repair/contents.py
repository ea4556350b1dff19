"""The contents of each store below a root, for the choice between stores when ``store.json`` does not make it."""

from __future__ import annotations

from dataclasses import dataclass, field

from txnstore.chain import keys
from txnstore.chain.chains import Chains
from txnstore.chain.context import ChainContext
from txnstore.chain.keys import Keys
from txnstore.connection import Connection
from txnstore.core.log.visibility import count_records
from txnstore.core.view import View
from txnstore.errors import TxnStoreError
from txnstore.phrases import counted, some
from txnstore.runtime import instant


@dataclass(frozen=True, slots=True)
class StoreContents:
    """The contents of one store below a root.

    Attributes:
        store_id: Its id.
        chains: The number of its chains with objects.
        objects: The number of the objects of its chains.
        entries: The number of its entries.
        checkpoints: The entries of its checkpoints, in ascending order, without those that several chains have twice.
        newest_ms: When the newest of these objects was written, by the storage's clock.
        topics: The number of records of each topic as the chains have it; None if they cannot be read.
        damage: Why they cannot be read; empty if they can.
        total_chains: The number of chains that the store was created with, as a checkpoint shows; None if none does.
    """

    store_id: str
    chains: int
    objects: int
    entries: int
    checkpoints: tuple[int, ...]
    newest_ms: int
    topics: dict[str, int] | None = field(default=None)
    damage: str = ""
    total_chains: int | None = None

    @property
    def command(self) -> str:
        """The command that chooses this store, with its arguments."""
        number = "" if self.total_chains is not None else " --chains N"
        return f"txnstore recover --identity {self.store_id}{number}"

    def __str__(self) -> str:
        saved = f"checkpoints of {some(map(str, self.checkpoints))}" if self.checkpoints else "no checkpoint"
        parts = [
            counted(self.chains, "chain"),
            f"{counted(self.entries, 'entry', 'entries')}, the newest object of {instant(self.newest_ms)}",
            saved,
        ]
        if self.topics is None:
            parts.append(f"not readable ({self.damage})")
        elif self.topics:
            names = some(f"{name} ({counted(records, 'record')})" for name, records in self.topics.items())
            parts.append(f"{'topics' if len(self.topics) > 1 else 'topic'} {names}")
        else:
            parts.append("no topic")
        return f"{self.store_id}: {'; '.join(parts)}"


def contents_of(connection: Connection, store_id: str, chains: int | None = None) -> StoreContents:
    """Return the contents of a store, whichever one ``store.json`` names. Nothing is written.

    It costs a list of the store's chains, and what an open costs.

    Args:
        connection: The connection to the root; it need not be loaded.
        chains: The number of its chains, as a checkpoint shows; None: as many as have objects are read.
    """
    names = Keys(store_id)
    items = connection.objects.list(names.chains)
    numbers = {number for info in items if (number := keys.chain_number(info.key)) is not None}
    saved = {sequence for info in items if (sequence := keys.checkpoint_sequence(info.key)) is not None}
    view, damage = _read_view(connection, names, chains if chains is not None else max(numbers, default=0) + 1)
    return StoreContents(
        store_id=store_id,
        chains=len(numbers),
        objects=len(items),
        entries=sum(keys.entry_sequence(info.key) is not None for info in items),
        checkpoints=tuple(sorted(saved)),
        newest_ms=max((info.modified_ms for info in items), default=0),
        topics=_records_by_topic(view) if view is not None else None,
        damage=damage,
        total_chains=chains,
    )


def _read_view(connection: Connection, names: Keys, count: int) -> tuple[View | None, str]:
    """Return the newest states of a store, or why they cannot be read."""
    runtime = connection.runtime
    with runtime.executor() as workers:  # Not the pool of requests, for which they wait.
        context = ChainContext(connection.objects, names, runtime, connection.pool, count, read_only=True)
        chains = Chains(context, [workers] * count)
        try:
            chains.load(None)
            return View(tuple(chain.state for chain in chains)), ""
        except TxnStoreError as error:
            return None, str(error)


def _records_by_topic(view: View) -> dict[str, int]:
    records = dict.fromkeys(sorted(view.topics), 0)
    for tp, log in view.partitions.items():
        if tp.topic in records:
            records[tp.topic] += count_records(log, log.log_start, log.high_watermark)
    return records
