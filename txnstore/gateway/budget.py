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
#: The bytes that a fetch may always read, however much is in memory.
_LEAST_RESPONSE = 1 << 20
#: One fetch may take the free room divided by this.
_SHARE = 4


class Budget:
    """Bounds the bytes of requests. Bytes count as they arrive, so that an announced length takes nothing.

    Where the budget is used up, one request of those that wait is *preferred*: it is received to its end whatever its
    size. So requests that have arrived in part never wait for each other without end, and at most one request is in
    memory beyond the budget. Only requests with arrived bytes wait, so a client that sends nothing is not preferred.
    """

    def __init__(self, size: int = REQUEST_BYTES) -> None:
        self._size = size
        self.used = 0
        self.preferred: Reservation | None = None
        self._waiters: deque[tuple[Reservation, int, asyncio.Future[None]]] = deque()

    @property
    def has_waiters(self) -> bool:
        """Whether any request waits."""
        return any(not future.done() for _, _, future in self._waiters)

    def new_reservation(self) -> Reservation:
        """Open the reservation of a new request, with no bytes so far."""
        return Reservation(self)

    def try_take(self, reservation: Reservation, size: int) -> bool:
        """Count bytes if no request has to wait for them; return whether they were counted."""
        if reservation is not self.preferred and (self.has_waiters or self.used + size > self._size):
            return False
        self._count(reservation, size)
        return True

    def wait(self, reservation: Reservation, size: int) -> asyncio.Future[None]:
        """Queue bytes, which are counted when there is room, or when the request is preferred."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.append((reservation, size, future))
        self._grant()
        return future

    def release(self, reservation: Reservation) -> None:
        """Return all bytes of a reservation."""
        self.used -= reservation.size
        reservation.size = 0
        if self.preferred is reservation:
            self.preferred = None
        self._grant()

    def _grant(self) -> None:
        """Grant waiting bytes in order while there is room; if there is none, prefer the first request that waits."""
        while self._waiters:
            reservation, size, future = self._waiters[0]
            if not future.done():
                if self.used + size > self._size:
                    if self.preferred is not None:
                        return
                    self.preferred = reservation
                self._count(reservation, size)
                future.set_result(None)
            self._waiters.popleft()

    def _count(self, reservation: Reservation, size: int) -> None:
        self.used += size
        reservation.size += size


class Reservation:
    """The counted bytes of one request."""

    __slots__ = ("_budget", "size")

    def __init__(self, budget: Budget) -> None:
        self._budget = budget
        self.size = 0

    @property
    def exceeds_share(self) -> bool:
        """Whether the request is received beyond the budget while others wait."""
        return self._budget.preferred is self and self._budget.has_waiters

    async def add(self, size: int) -> None:
        """Count bytes that have arrived; wait for room."""
        if not self._budget.try_take(self, size):
            await self._budget.wait(self, size)

    def release(self) -> None:
        """Return all bytes; a second call does nothing."""
        self._budget.release(self)


class ResponseBudget:
    """Bounds the bytes of responses that are not sent.

    A fetch gets the number of bytes that it may read: less where much is in memory. Where the room is used up, requests
    wait until responses are sent, or their clients are given up.
    """

    def __init__(self, size: int = RESPONSE_BYTES) -> None:
        self._size = size
        self.used = 0
        self._waiters: deque[asyncio.Future[None]] = deque()

    @property
    def has_waiters(self) -> bool:
        """Whether any request waits."""
        return any(not future.done() for future in self._waiters)

    async def wait(self, times: int = 1) -> None:
        """Wait while the used bytes reach ``times`` the room's size; requests with small responses pass a multiple."""
        while self.used >= times * self._size:
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiters.append(future)
            try:
                await future
            except asyncio.CancelledError:
                self.remove(0)  # It may have been woken already: wake the next one in its place.
                raise

    @asynccontextmanager
    async def grant(self, max_bytes: int) -> AsyncIterator[int]:
        """Wait for room, then yield the number of bytes that a fetch may read; they count as used until the block ends.

        Args:
            max_bytes: The most bytes that its client accepts.
        """
        await self.wait()
        granted_bytes = min(max_bytes, max((self._size - self.used) // _SHARE, _LEAST_RESPONSE))
        counted_bytes = max(granted_bytes, 0)  # A client may send a negative max_bytes.
        self.add(counted_bytes)
        try:
            yield granted_bytes
        finally:
            self.remove(counted_bytes)

    def add(self, size: int) -> None:
        """Count bytes of a response."""
        self.used += size

    def remove(self, size: int) -> None:
        """Return bytes, and wake a request that waits for room."""
        self.used -= size
        while self._waiters and self.used < self._size:
            future = self._waiters.popleft()
            if not future.done():
                future.set_result(None)
                return  # It takes its part; when it returns that, the next one is woken.
