"""Writes the checkpoints of a chain in the background: no commit waits for one, or fails because of one."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future

from txnstore.chain import checkpoint
from txnstore.chain.keys import Keys
from txnstore.chain.metrics import ChainMetrics
from txnstore.core.state import State
from txnstore.storage.base import ObjectStore

_LOG = logging.getLogger(__name__)


class Saver:
    """Writes checkpoints, one at a time.

    Args:
        objects: The object store.
        keys: The keys of the store.
        number: The number of the chain.
        metrics: Counts the checkpoints.
        background: Returns the executor that writes them; None: the thread that calls :meth:`save_later`.
    """

    def __init__(
        self,
        objects: ObjectStore,
        keys: Keys,
        number: int,
        metrics: ChainMetrics,
        background: Callable[[], Executor] | None = None,
    ) -> None:
        self._objects = objects
        self._keys = keys
        self._metrics = metrics
        self._number = number
        self._background = background
        # Re-entrant, so that a signal handler that uses the store in between cannot block its own thread.
        self._lock = threading.RLock()
        self._next: State | None = None
        self._task: Future[None] | None = None

    def save(self, state: State) -> None:
        """Write a checkpoint now."""
        checkpoint.write(self._objects, self._keys, self._number, state)
        self._metrics.checkpoints += 1

    def save_later(self, state: State) -> None:
        """Write a checkpoint in the background, after a running one; of several that wait only the newest is written.

        Raises nothing: the commit that made the checkpoint due is durable. A failure is logged and counted, and the
        next commit that reaches the interval tries again.
        """
        try:
            with self._lock:
                self._next = state
                if self._task is not None and not self._task.done():
                    return
                if self._background is not None:
                    self._task = self._background().submit(self._save_all)
                    return
            self._save_all()
        except Exception as error:  # noqa: BLE001 - no thread or no memory for the task: logged and counted
            self._failed(state, error)

    def _save_all(self) -> None:
        while True:
            with self._lock:
                state, self._next = self._next, None
                if state is None:
                    self._task = None
                    return
            try:
                self.save(state)
            except Exception as error:  # noqa: BLE001 - logged and counted; the next interval repeats it
                self._failed(state, error)

    def _failed(self, state: State, error: Exception) -> None:
        self._metrics.checkpoint_failures += 1
        extra = {"chain": self._number, "sequence": state.sequence, "error": f"{type(error).__name__}: {error}"}
        _LOG.warning("checkpoint not written", extra=extra)
