"""A lock that a forked child does not inherit in a locked state, and that pickles."""

from __future__ import annotations

import os
import threading


class ForkLock:
    """A mutex that belongs to one process: ``with lock.own: …``.

    A plain lock that another thread holds at the moment of a fork stays locked in the child for ever. Here each
    process takes a lock of its own. Pickling drops the state: the copy is a fresh, open lock.

    ``own`` hands out the plain lock, because only a ``with`` on that one cannot be interrupted between taking the lock
    and entering the block: a Ctrl-C there would leave it locked for ever.
    """

    __slots__ = ("_locks",)

    def __init__(self) -> None:
        self._locks: dict[int, threading.Lock] = {}

    @property
    def own(self) -> threading.Lock:
        """The lock of this process."""
        # dict.setdefault is atomic, so all threads of a process agree on one lock.
        return self._locks.setdefault(os.getpid(), threading.Lock())

    def __reduce__(self) -> tuple[type[ForkLock], tuple[()]]:
        return (ForkLock, ())
