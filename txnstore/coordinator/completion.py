"""The second half of a transaction across chains: markers, completion, and whoever has to wait for them."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future
from dataclasses import replace
from functools import partial
from typing import TypeVar

from txnstore.chain.chains import Chains
from txnstore.coordinator.copies import left_unknown, submit_told
from txnstore.core.model import ProducerIdentity
from txnstore.core.routes import chains_of
from txnstore.core.routing import chain_of_producer
from txnstore.core.transactions.commands import CompleteTxn, Unfinished, WriteMarkers
from txnstore.core.transactions.table import unfinished_of
from txnstore.errors import (
    ConcurrentTransactionsError,
    StorageError,
    UnknownTopicOrPartitionError,
)

_LOG = logging.getLogger(__name__)

T = TypeVar("T")
#: How often a command is tried again when the transaction before it had to be finished first.
ATTEMPTS = 8


class Endings:
    """Finishes decided transactions, at once or in the background. Safe for many threads."""

    def __init__(self, chains: Chains, background: Callable[[], Executor]) -> None:
        self._chains = chains
        self._background = background
        self._running: dict[str, tuple[Future[None], Callable[[], object]]] = {}
        self._lock = threading.Lock()

    def finish(self, decided: Unfinished) -> None:
        """Write the markers of a decided transaction wherever they are missing, then complete it.

        May be done at any time, by anybody, by several at once. A chain that cannot be written keeps the others from
        nothing: they have their markers when this raises.
        """
        home = chain_of_producer(decided.producer_id)
        others = sorted(chains_of(decided, len(self._chains)) - {home})
        decision = (home, self._chains[home].state.sequence)  # Who knows the decision knows an entry that has it.
        after = self._chains.at_once({number: partial(self._mark, number, decided, decision) for number in others})
        self._chains[home].submit(CompleteTxn(decided, tuple(sorted(after.items()))))

    def _mark(self, number: int, decided: Unfinished, decision: tuple[int, int]) -> int:
        """The markers in one chain; an entry at which they are there."""
        chain = self._chains[number]
        command = WriteMarkers(decided, decision)
        try:
            submit_told(self._chains, number, command)
        except UnknownTopicOrPartitionError:
            chain.submit(replace(command, told=True))  # What is deleted needs no marker: the chain is fenced.
        return chain.state.sequence

    def finish_first(self, decided: Unfinished) -> None:
        """Finish what stands in the way of a command; the decision has happened, whatever becomes of this."""
        try:
            self.finish(decided)
        except StorageError as error:
            raise left_unknown(error, happened=True) from error

    def finish_later(self, decided: Unfinished) -> None:
        """Finish in the background: it is durable and decided, and whoever comes next can go on with it."""
        self.in_background(decided.transactional_id, partial(self.finish, decided))

    def in_background(self, transactional_id: str | None, work: Callable[[], object]) -> None:
        """Go on with a transaction while nobody waits; an error is left to whoever needs the result."""
        self.wait_for(transactional_id)
        running = self._background().submit(_quietly, transactional_id, work)
        with self._lock:
            self._running[transactional_id or ""] = running, work

    def wait_for(self, transactional_id: str | None) -> None:
        """Wait for what this process does in the background for a transactional id, if there is anything.

        What has not begun is done here: the background may be full of what waits for another chain.
        """
        with self._lock:
            running, work = self._running.pop(transactional_id or "", (None, None))
        if running is None or work is None:
            return
        if running.cancel():
            _quietly(transactional_id, work)
        else:
            running.result()

    def when_free(self, producer: ProducerIdentity, call: Callable[[], T], *, wait: bool = True) -> T:
        """The answer of a call that needs the transaction before it to be finished everywhere (ADD-05).

        ``wait``: also for the background, where this does not run in it.
        """
        if wait:
            self.wait_for(producer.transactional_id)
        chain = self._chains[chain_of_producer(producer.producer_id)]
        for _ in range(ATTEMPTS):
            try:
                return call()
            except ConcurrentTransactionsError:
                txn = chain.refresh().transactions.get(producer.transactional_id or "")
                decided = unfinished_of(txn) if txn is not None else None
                if decided is not None:
                    self.finish(decided)
        return call()


def _quietly(transactional_id: str | None, work: Callable[[], object]) -> None:
    try:
        work()
    except Exception as error:  # noqa: BLE001 - whoever comes next does it again, and is told
        _LOG.warning(
            "the end of a transaction is left to whoever comes next",
            extra={"transactional_id": transactional_id, "error": str(error)},
        )
