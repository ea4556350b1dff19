"""A lock that is unlocked in a forked child process, and that can be pickled."""

from __future__ import annotations

import os
import threading


class ForkLock:
    """A mutex with one lock per process: ``with lock.own: …``.

    A plain lock that another thread holds during a fork stays locked in the child forever. Here each process uses its
    own lock. An unpickled copy is unlocked.

    ``own`` returns the plain lock instead of wrapping it in a context manager: only ``with`` on a plain lock cannot be
    interrupted (Ctrl-C) between acquiring the lock and entering the block, which would leave it locked forever.
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
