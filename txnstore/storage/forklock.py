"""A lock that a forked child does not inherit in a locked state, and that pickles."""

from __future__ import annotations

import os
import threading
from types import TracebackType


class ForkLock:
    """A mutex that belongs to one process: ``with lock: …``.

    A plain lock that another thread holds at the moment of a fork stays locked in the child for ever. Here each
    process takes a lock of its own. Pickling drops the state: the copy is a fresh, open lock.
    """

    __slots__ = ("_locks",)

    def __init__(self) -> None:
        self._locks: dict[int, threading.Lock] = {}

    def __enter__(self) -> None:
        # dict.setdefault is atomic, so all threads of a process agree on one lock.
        self._locks.setdefault(os.getpid(), threading.Lock()).acquire()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._locks[os.getpid()].release()

    def __reduce__(self) -> tuple[type[ForkLock], tuple[()]]:
        return (ForkLock, ())
