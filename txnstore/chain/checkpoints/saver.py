"""Writes the checkpoints of a chain in the background: no commit waits for one, or fails because of one."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from itertools import pairwise

from txnstore.chain.boundary import Boundaries
from txnstore.chain.checkpoints import checkpoint
from txnstore.chain.checkpoints.checkpoint import Saved, edge_of
from txnstore.chain.checkpoints.index import Edge, KnownEdges
from txnstore.chain.context import ChainContext
from txnstore.chain.keys import checkpoint_sequence
from txnstore.core.state import State
from txnstore.metrics import ChainMetrics

_LOG = logging.getLogger(__name__)

#: Every so often, in checkpoints, the saver checks by listing that the index files it does not write again still exist:
#: an operator may have deleted one.
_LIST_EVERY = 16


class Saver:
    """Writes checkpoints, one at a time.

    Args:
        metrics: Counts the checkpoints.
        boundaries: The boundaries of the chain: a checkpoint before the last one is of no use.
        head: Returns the newest state that this process knows, all of whose entries are durable. A hint names it.
    """

    def __init__(
        self,
        context: ChainContext,
        number: int,
        metrics: ChainMetrics,
        boundaries: Boundaries,
        head: Callable[[], State],
    ) -> None:
        self._objects, self._keys, self._background = context.objects, context.keys, context.background
        self._number, self._metrics = number, metrics
        self._boundaries, self._head = boundaries, head
        #: Guards `_waiting` and `_task`, and no request. Re-entrant, so that a signal handler that uses the store in
        #: between cannot block its own thread. A thread that holds it takes no other lock.
        self._lock = threading.RLock()
        #: The newest state that waits for a checkpoint, and the edges of its index files; None if none waits.
        self._waiting: tuple[State, list[Edge]] | None = None
        #: The task that writes checkpoints in the background; None if none was begun, or the last one has ended.
        #: Invariant: one at most is running, and it ends only when `_waiting` is None.
        self._task: Future[None] | None = None
        #: The edges of the chain so far. The chain adds them, while it publishes a state.
        self._edges = KnownEdges()
        #: The state at the newest edge that this process has passed; None before the first. Replaced in one step.
        self.edge_state: State | None = None
        #: The keys of the index files of the last checkpoint, which need not be written again. Written by the thread
        #: that writes a checkpoint; replaced in one step: a lost update costs a PUT of the same bytes.
        self._stored: frozenset[str] = frozenset()
        #: Whether the newest checkpoint that was begun has failed.
        self.has_failed = False
        #: The number of checkpoints that this process has begun to write before it closes the store.
        self._saves = 0

    def begin_with(self, saved: Saved) -> None:
        """Begin with the checkpoint that the chain was loaded from."""
        self._edges.begin_with(saved.edges)
        self._stored = frozenset(self._index_keys(saved.edges))

    def add_edge(self, state: State) -> None:
        """Add an edge of the chain: the state after an entry whose number is the next multiple of ``FAN``."""
        self._edges.add(edge_of(state))
        self.edge_state = state

    def save(self, state: State) -> None:
        """Write a checkpoint in this thread.

        Raises:
            StorageError: An object of it could not be written. Orphaned index files are harmless.
        """
        self._save(state, self._edges.up_to(edge_of(state)))

    def last(self, state: State, distance: int) -> Callable[[], None]:
        """Return what writes a checkpoint before this process closes the store; it raises nothing.

        It writes none if the hint names an entry fewer than ``distance`` before that of ``state``. Of processes that
        write that of one entry at the same time one creates it, and writes the hint.
        """
        return partial(self._save_last, state, self._edges.up_to(edge_of(state)), distance)

    def _save_last(self, state: State, edges: list[Edge], distance: int) -> None:
        try:
            hint = checkpoint.decode_hint(self._keys, self._number, checkpoint.read_hint(self._objects, self._number))
            if state.sequence - hint.sequence >= distance:
                # What has failed may have written the state: that it exists does not mean that another one hints.
                self._save(state, edges, is_last=not self.has_failed)
        except Exception as error:  # noqa: BLE001 - logged and counted; the next process that closes writes one
            self._log_failure(state, error)

    def _save(self, state: State, edges: list[Edge], *, is_last: bool = False) -> None:
        """Write the index files that are not stored yet, then the state, then the hint, and count the checkpoint."""
        boundary = self._boundaries.number_at(state.sequence)
        if boundary is None:
            return  # This process was suspended meanwhile: a reader that began with this state would miss entries.
        index_keys = self._index_keys(edges)
        stored = self._stored.intersection(index_keys)
        if not is_last:
            stored = self._listed(stored)
        head = self._head()  # First: a checkpoint that survives a power cut must not have an entry that does not.
        for key, data in checkpoint.encode_checkpoint(self._keys, self._number, edges, state, stored):
            if not is_last or checkpoint_sequence(key) is None:
                self._objects.put(key, data)
            elif not self._objects.put_if_absent(key, data):
                return  # Another process has written it, and writes the hint.
        self._objects.put(*checkpoint.hint_to(self._keys, state, boundary, head))
        self._stored = frozenset(index_keys)
        self._metrics.checkpoints += 1
        self.has_failed = False

    def _listed(self, stored: frozenset[str]) -> frozenset[str]:
        """Return the stored index files that still exist; looks for them at each checkpoint of :data:`_LIST_EVERY`."""
        is_due = self._saves % _LIST_EVERY == 0
        self._saves += 1
        return frozenset(key for key in stored if self._objects.list(key)) if is_due else stored

    def _index_keys(self, edges: list[Edge]) -> list[str]:
        """Return the keys of the index files between these edges."""
        pairs = pairwise(edge.sequence for edge in edges)
        return [self._keys.index_file(self._number, after, until) for after, until in pairs]

    def save_later(self, state: State) -> None:
        """Write a checkpoint in the background, after a running one; of several that wait only the newest is written.

        Raises nothing: the commit that made the checkpoint due is durable. A failure is logged and counted, and the
        next commit that reaches the interval tries again.
        """
        try:
            edges = self._edges.up_to(edge_of(state))  # Now: a later entry makes the chain forget some of them.
            with self._lock:
                self._waiting = (state, edges)
                if self._task is not None and not self._task.done():
                    return
                if self._background is not None:
                    self._task = self._background().submit(self._save_all)
                    return
            self._save_all()
        except Exception as error:  # noqa: BLE001 - no thread or no memory for the task: logged and counted
            self._log_failure(state, error)

    def _save_all(self) -> None:
        """Write the checkpoint that waits, and those that are requested meanwhile, until none waits."""
        while True:
            # Under the lock: a `save_later` sets `_waiting` before the task looks, or finds no task and begins one.
            with self._lock:
                waiting, self._waiting = self._waiting, None
                if waiting is None:
                    self._task = None
                    return
            state, edges = waiting
            try:
                self._save(state, edges)
            except Exception as error:  # noqa: BLE001 - logged and counted; the next interval, or the close, repeats it
                self._log_failure(state, error)

    def _log_failure(self, state: State, error: Exception) -> None:
        self.has_failed = True
        self._metrics.checkpoint_failures += 1
        extra = {"chain": self._number, "sequence": state.sequence, "error": f"{type(error).__name__}: {error}"}
        _LOG.warning("checkpoint not written", extra=extra)
