"""Bounds the bytes in memory: of requests that are received or under way, and of responses that are not sent.

Slow or malicious clients wait or lose their connections; no other client waits long for them. Used in one event loop.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

#: The bytes of requests in memory before connections wait to send more.
REQUEST_BYTES = 64 << 20
#: The bytes of responses in memory before connections wait for theirs.
RESPONSE_BYTES = 256 << 20
#: What a fetch may read whatever else is in memory.
_LEAST_RESPONSE = 1 << 20
#: The part of what is left that one fetch may take.
_SHARE = 4


class Budget:
    """Bounds the bytes of requests. Bytes count as they arrive, so that an announced length takes nothing.

    Where the budget is used up, one request of those that wait is *preferred*: it is received to its end whatever its
    size. So requests that have arrived in part never wait for each other without end, and at most one request is in
    memory beyond the budget. Who waits has bytes in hand, so a client that sends nothing is not preferred.
    """

    def __init__(self, size: int = REQUEST_BYTES) -> None:
        self._size = size
        self.used = 0
        self.preferred: Held | None = None
        self._waiting: deque[tuple[Held, int, asyncio.Future[None]]] = deque()

    @property
    def is_short(self) -> bool:
        """Whether any request waits."""
        return any(not future.done() for _, _, future in self._waiting)

    def hold(self) -> Held:
        """The bytes of a new request: none so far."""
        return Held(self)

    def try_take(self, held: Held, size: int) -> bool:
        """Count bytes if no request has to wait for them."""
        if held is not self.preferred and (self.is_short or self.used + size > self._size):
            return False
        self._count(held, size)
        return True

    def wait(self, held: Held, size: int) -> asyncio.Future[None]:
        """Count bytes when there is room, or when the request is preferred."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((held, size, future))
        self._grant()
        return future

    def release(self, held: Held) -> None:
        """Return the bytes of a request."""
        self.used -= held.size
        held.size = 0
        if self.preferred is held:
            self.preferred = None
        self._grant()

    def _grant(self) -> None:
        while self._waiting:
            held, size, future = self._waiting[0]
            if not future.done():
                if self.used + size > self._size:
                    if self.preferred is not None:
                        return
                    self.preferred = held
                self._count(held, size)
                future.set_result(None)
            self._waiting.popleft()

    def _count(self, held: Held, size: int) -> None:
        self.used += size
        held.size += size


class Held:
    """The bytes of one request that count."""

    __slots__ = ("_budget", "size")

    def __init__(self, budget: Budget) -> None:
        self._budget = budget
        self.size = 0

    @property
    def exceeds_share(self) -> bool:
        """Whether the request is received beyond the budget, while others wait."""
        return self._budget.preferred is self and self._budget.is_short

    async def add(self, size: int) -> None:
        """Count bytes that have arrived; waits for room."""
        if not self._budget.try_take(self, size):
            await self._budget.wait(self, size)

    def release(self) -> None:
        """Count none of its bytes any more. A second call does nothing."""
        self._budget.release(self)


class Room:
    """Bounds the bytes of responses that are not sent.

    A fetch gets the number of bytes that it may read: less where much is in memory. Where the room is used up, requests
    wait until responses are sent, or their clients are given up.
    """

    def __init__(self, size: int = RESPONSE_BYTES) -> None:
        self._size = size
        self.used = 0
        self._waiting: deque[asyncio.Future[None]] = deque()

    @property
    def is_short(self) -> bool:
        """Whether any request waits."""
        return any(not future.done() for future in self._waiting)

    async def wait(self, times: int = 1) -> None:
        """Wait while the room is used up; of its size, or of a multiple for those whose responses are small."""
        while self.used >= times * self._size:
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append(future)
            try:
                await future
            except asyncio.CancelledError:
                self.remove(0)  # It may have been woken: the next one is, in its place.
                raise

    @asynccontextmanager
    async def granted(self, most: int) -> AsyncIterator[int]:
        """The bytes that a fetch may read, which count while the block runs.

        Args:
            most: The bytes that its client takes.
        """
        await self.wait()
        size = min(most, max((self._size - self.used) // _SHARE, _LEAST_RESPONSE))
        counted = max(size, 0)
        self.add(counted)
        try:
            yield size
        finally:
            self.remove(counted)

    def add(self, size: int) -> None:
        """Count bytes of a response."""
        self.used += size

    def remove(self, size: int) -> None:
        """Count them no more."""
        self.used -= size
        while self._waiting and self.used < self._size:
            future = self._waiting.popleft()
            if not future.done():
                future.set_result(None)
                return  # It takes its part; the next one is woken by what it returns.
