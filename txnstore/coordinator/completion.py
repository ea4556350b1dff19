"""Completion of transactions across chains: markers and completion, immediately or in the background."""

from __future__ import annotations

import logging
from collections.abc import Callable
from concurrent.futures import Executor, Future
from dataclasses import replace
from functools import partial
from typing import TypeVar

from txnstore.chain.chains import Chains
from txnstore.chain.principals import asking
from txnstore.coordinator.copies import submit_copying_topics, unknown_if_partial
from txnstore.core.model import ProducerIdentity
from txnstore.core.routes import chains_of
from txnstore.core.routing import chain_of_producer
from txnstore.core.transactions.commands import CompleteTxn, DecidedTransaction, WriteMarkers
from txnstore.core.transactions.lookups import decided_of
from txnstore.errors import (
    AuthorizationError,
    ConcurrentTransactionsError,
    StorageError,
    UnknownTopicOrPartitionError,
)
from txnstore.threads import ForkLock

_LOG = logging.getLogger(__name__)

T = TypeVar("T")

#: The number of times that a command is repeated after the completion of an earlier transaction.
ATTEMPTS = 8
#: Seconds for which a completion waits for an entry that carries it. No reader waits for it.
LINGER = 0.05


class Completions:
    """Completes decided transactions, immediately or in the background. Thread-safe.

    Args:
        background: Returns the executor for work that no caller waits for.
        sleep: Pauses for a number of seconds.
    """

    def __init__(self, chains: Chains, background: Callable[[], Executor], sleep: Callable[[float], None]) -> None:
        self._chains = chains
        self._sleep = sleep
        self._background = background
        #: The background work that has not ended, by transactional id, and what it calls: at most one per id.
        self._work_by_id: dict[str, tuple[Future[None], Callable[[], object]]] = {}
        #: Guards ``_work_by_id``, for one step at a time; no other lock is acquired with it.
        self._lock = ForkLock()

    def finish(self, decided: DecidedTransaction) -> None:
        """Write the missing markers of a decided transaction in all chains, then complete it.

        Any process may do this at any time, several of them concurrently (END-08). If a chain cannot be written, this
        raises after the markers of all other chains are written.
        """
        self._chains[chain_of_producer(decided.producer_id)].submit(self._write_markers(decided))

    def _write_markers(self, decided: DecidedTransaction) -> CompleteTxn:
        """Write the missing markers; return the command that completes the transaction in the coordinator's chain."""
        coordinator_chain = chain_of_producer(decided.producer_id)
        others = sorted(chains_of(decided, len(self._chains)) - {coordinator_chain})
        # The state of this process is that of the decision, or a later one.
        decision = (coordinator_chain, self._chains[coordinator_chain].state.sequence)
        entries_after = self._chains.concurrently(
            {number: partial(self._write_markers_in, number, decided, decision) for number in others}
        )
        return CompleteTxn(decided, tuple(sorted(entries_after.items())))

    def _write_markers_in(self, number: int, decided: DecidedTransaction, decision: tuple[int, int]) -> int:
        """Write the markers in one chain; return an entry that follows them."""
        chain = self._chains[number]
        command = WriteMarkers(decided, decision)
        try:
            submit_copying_topics(self._chains, number, command)
        except UnknownTopicOrPartitionError:
            chain.submit(replace(command, copies_current=True))  # A deleted topic needs no marker; the chain is fenced.
        return chain.state.sequence

    def finish_first(self, decided: DecidedTransaction) -> None:
        """Complete a transaction that blocks a command.

        Raises:
            UnknownOutcomeError: A storage error; the decision is stored, so *nothing happened* would not be true.
        """
        try:
            self.finish(decided)
        except StorageError as error:
            raise unknown_if_partial(error, happened=True) from error

    def finish_later(self, decided: DecidedTransaction) -> None:
        """Complete a transaction in the background; its decision is durable, so any process can complete it later.

        The next entry of this process in the coordinator's chain carries the completion: that of the producer's next
        transaction, or of any other command. If there is none within :data:`LINGER` seconds, an entry of its own does.
        """
        # One executor for both steps: that of a connection that is closed meanwhile, which waits for it.
        self.in_background(decided.transactional_id, partial(self._finish_with_next_entry, decided, self._background()))

    def _finish_with_next_entry(self, decided: DecidedTransaction, background: Executor) -> None:
        """Write the missing markers, and queue the completion for the next entry; write it later without one."""
        completion = self._write_markers(decided)
        chain = self._chains[chain_of_producer(decided.producer_id)]
        waiter = chain.enqueue(completion)

        def complete() -> None:
            """Wait shortly for an entry that carries the completion, else commit one for it."""
            if not waiter.done:
                self._sleep(LINGER)
            try:
                chain.commit_queued(waiter)
            except StorageError:  # The entry that carried it may have failed with its own writer; repeating is safe.
                chain.submit(completion)

        background.submit(_run_logging_errors, decided.transactional_id, complete)

    def in_background(self, transactional_id: str | None, work: Callable[[], object]) -> None:
        """Run work on a transaction in the background; log an error, as the next command repeats the work."""
        self.wait_for(transactional_id)
        future = self._background().submit(_run_logging_errors, transactional_id, work)
        with self._lock.own:
            self._work_by_id[transactional_id or ""] = future, work
        future.add_done_callback(partial(self._remove_ended_work, transactional_id or ""))

    def _remove_ended_work(self, name: str, ended: Future[None]) -> None:
        """Remove work that is done, unless later work of the id has replaced it."""
        with self._lock.own:
            if name in self._work_by_id and self._work_by_id[name][0] is ended:
                del self._work_by_id[name]

    def wait_for(self, transactional_id: str | None) -> None:
        """Wait for background work of this process on a transactional id, if there is any.

        Work that has not started runs in the calling thread, so a full executor cannot block it; its entries name the
        principal of the process, as those of the executor do.
        """
        with self._lock.own:
            begun = self._work_by_id.pop(transactional_id or "", None)
        if begun is None:
            return
        future, work = begun
        if future.cancel():
            with asking(None):
                _run_logging_errors(transactional_id, work)
        else:
            future.result()

    def when_free(self, producer: ProducerIdentity, call: Callable[[], T], *, wait: bool = True) -> T:
        """Run ``call``; if the previous transaction of the producer prevents it, complete that first (ADD-05).

        ``wait``: wait for background work first; False if this runs in the background itself.
        """
        if wait:
            self.wait_for(producer.transactional_id)
        chain = self._chains[chain_of_producer(producer.producer_id)]
        for _ in range(ATTEMPTS):
            try:
                return call()
            except ConcurrentTransactionsError:
                txn = chain.refresh().transactions.get(producer.transactional_id or "")
                decided = decided_of(txn) if txn is not None else None
                if decided is not None:
                    self.finish(decided)
        return call()


def _run_logging_errors(transactional_id: str | None, work: Callable[[], object]) -> None:
    """Run background work on a transaction; an error is logged, as the next command repeats the work."""
    try:
        work()
    except Exception as error:  # noqa: BLE001 - the next command of the transactional id repeats it and raises
        is_refused = isinstance(error, AuthorizationError)
        _LOG.warning(
            "background work on a transaction %s: %s",
            "was refused" if is_refused else "failed; the next command or a recovery repeats it",
            error,
            extra={"transactional_id": transactional_id, "error": str(error)},
        )
