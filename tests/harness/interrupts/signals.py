"""The thread that interrupts: SIGINT at random instants, only while the main thread is inside a call of txnstore."""

from __future__ import annotations

import faulthandler
import random
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Self, TypeVar

import txnstore

T = TypeVar("T")

_CODE = str(Path(txnstore.__file__).parent)
_TOP = Path(txnstore.__file__).resolve().parents[1]
_FOLDERS = (_CODE, *(str(_TOP / name) for name in ("catalog", "cli", "compactor")))
#: Seconds until the stacks of all threads are written and the process ends: a call hangs.
GUARD = 180.0


class Interrupts:
    """Sends ``total`` interrupts, the mean time between two being ``mean`` seconds; a context manager.

    The instant is random in the time that a call takes, so it strikes our code, pyarrow, DuckDB and the standard
    library, wherever Python looks for signals. One that arrives outside of our calls is not counted: no code of ours
    could respond to it.
    """

    def __init__(self, total: int, mean: float, rng: random.Random) -> None:
        self.total, self.sent = total, 0
        self.places: dict[str, int] = {}
        self._mean, self._rng = mean, rng
        self._inside = False
        self._pending = False
        self._stop = False
        self._thread = threading.Thread(target=self._run, name="interrupts", daemon=True)

    def __enter__(self) -> Self:
        self._before = signal.signal(signal.SIGINT, self._handle)
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stop = True
        self._inside = False
        self._thread.join()
        signal.signal(signal.SIGINT, self._before)
        faulthandler.cancel_dump_traceback_later()

    @property
    def done(self) -> bool:
        """Whether all were sent."""
        return self.sent >= self.total

    def once(self, call: Callable[[], T]) -> tuple[bool, T | None]:
        """Call; whether it ended without an interrupt, and its result."""
        faulthandler.dump_traceback_later(GUARD, exit=True)
        self._inside = True
        try:
            return True, call()
        except KeyboardInterrupt:
            return False, None
        finally:
            self._inside = False

    def until_done(self, call: Callable[[], T]) -> T:
        """Call until it ends without an interrupt; the third repetition is not interrupted."""
        for _ in range(3):
            done, result = self.once(call)
            if done:
                return result  # type: ignore[return-value]
        return call()

    def _handle(self, _: int, frame: FrameType | None) -> None:
        self._pending = False
        place = frame
        while place is not None and not place.f_code.co_filename.startswith(_FOLDERS):
            place = place.f_back
        if self._inside and place is not None and not self.done and frame is not None:
            self.sent += 1
            name = f"{Path(frame.f_code.co_filename).name}:{frame.f_code.co_qualname}"
            self.places[name] = self.places.get(name, 0) + 1
            raise KeyboardInterrupt

    def _run(self) -> None:
        main = threading.main_thread().ident
        assert main is not None
        while not self._stop and not self.done:
            time.sleep(self._rng.expovariate(1 / self._mean))
            if self._inside and not self._pending:
                self._pending = True
                signal.pthread_kill(main, signal.SIGINT)
        sys.stdout.flush()
