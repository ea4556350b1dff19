"""What the world outside gives: time, randomness, pauses, unique ids. Passed in, so that tests own them."""

from __future__ import annotations

import random
import time
import uuid
from collections.abc import Callable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

#: Seconds.
_BACKOFF, _MAX_BACKOFF = 0.01, 2.0
_WORKERS = 16


def wall_clock_ms() -> int:
    """Milliseconds since the epoch, UTC."""
    return time.time_ns() // 1_000_000


def uuid7(now_ms: int, rng: random.Random) -> str:
    """A UUID of version 7 (RFC 9562): ordered by time, unique by 74 random bits."""
    bits = (now_ms & (1 << 48) - 1) << 80 | 0x7 << 76 | rng.getrandbits(12) << 64 | 0b10 << 62 | rng.getrandbits(62)
    return str(uuid.UUID(int=bits))


class _Threads(ThreadPoolExecutor):
    """Threads; when they are gone, work is done by whoever brings it.

    A store may be closed, or Python begin to exit, while another thread is in the middle of a transaction. What is left
    of it must not fail for that, least of all after its decision.
    """

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        try:
            return super().submit(fn, *args, **kwargs)
        except RuntimeError as error:
            if "cannot schedule new futures" not in str(error):
                raise
        future: Future[Any] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except Exception as error:  # noqa: BLE001 - whoever asks the future gets it
            future.set_exception(error)
        return future


def threads() -> Executor:
    """The threads of an open store, for its requests in parallel."""
    return _Threads(_WORKERS, thread_name_prefix="txnstore")


@dataclass(frozen=True)
class Runtime:
    """The clock (milliseconds since the epoch), the way to pause (seconds), the source of randomness, the workers.

    ``executor`` makes what an open store runs its requests in parallel on; it is shut down with the store. A store of
    several chains asks for another one for work on them at once, and ``background`` makes what finishes its
    transactions after their commit has returned.
    """

    clock: Callable[[], int] = wall_clock_ms
    sleep: Callable[[float], None] = time.sleep
    rng: random.Random = field(default_factory=random.SystemRandom, repr=False)
    executor: Callable[[], Executor] = threads
    background: Callable[[], Executor] = threads

    def new_id(self) -> str:
        """An id that nobody else has."""
        return uuid7(self.clock(), self.rng)

    def backoff(self, times: int) -> None:
        """Pause before the next try after ``times`` failed ones: full jitter under a doubling bound."""
        self.sleep(self.rng.uniform(0, min(_MAX_BACKOFF, _BACKOFF * 2**times)))
