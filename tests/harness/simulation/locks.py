"""Locks for scheduled threads: a waiting thread yields its turn instead of blocking the run."""

from __future__ import annotations

import sys
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

from tests.harness.simulation.scheduler import Scheduler, Task


class SimulatedLock:
    """A ``threading.RLock`` whose waiters are known to the scheduler. It also stands for a ``Lock``."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._owner: Task | None = None
        self._held = 0
        self._waiting: deque[Task] = deque()

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        """Take the lock, in the order of arrival."""
        me = self._scheduler.current
        while self._held and self._owner is not me:
            if not blocking:
                return False
            assert me is not None  # outside of a run no lock is held
            self._waiting.append(me)
            self._scheduler.park()
        self._owner = me
        self._held += 1
        return True

    def release(self) -> None:
        """Release it; the first waiter continues."""
        self._held -= 1
        if not self._held:
            self._owner = None
            if self._waiting:
                self._scheduler.wake(self._waiting.popleft())

    def locked(self) -> bool:
        """Whether it is held."""
        return self._held > 0

    def _is_owned(self) -> bool:
        """Whether the current task holds it; ``RLock`` has this method, too."""
        return self._held > 0 and self._owner is self._scheduler.current

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *error: object) -> None:
        self.release()


class _Threading(ModuleType):
    """The module ``threading`` with locks of a simulation."""

    def __init__(self, scheduler: Scheduler) -> None:
        super().__init__("threading")
        self._scheduler = scheduler

    def Lock(self) -> SimulatedLock:  # noqa: N802 - its name in threading
        return SimulatedLock(self._scheduler)

    RLock = Lock

    def __getattr__(self, name: str) -> Any:
        return getattr(threading, name)


@contextmanager
def simulated_locks(scheduler: Scheduler) -> Iterator[None]:
    """Inside the block, modules of txnstore create the locks of the simulation."""
    modules = [
        module
        for name, module in list(sys.modules.items())
        if name.startswith("txnstore.")
        and not name.startswith(("txnstore.testing", "txnstore.storage"))
        and getattr(module, "threading", None) is threading
    ]
    shim = _Threading(scheduler)
    for module in modules:
        setattr(module, "threading", shim)  # noqa: B010 - mypy knows no attribute of a module that is not named
    try:
        yield
    finally:
        for module in modules:
            setattr(module, "threading", threading)  # noqa: B010
