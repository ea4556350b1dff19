"""The bytes of a connection: received into one buffer that all connections share, sent with back-pressure."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import cast

#: The bytes that a read may ask for.
CHUNK = 64 << 10
#: The bytes that are received before anybody asks for them: what a client that floods the gateway has in its memory.
AHEAD = 16 << 10
#: The bytes that are handed to the transport at a time.
_SLICE = 256 << 10


class Stream(asyncio.BufferedProtocol):
    """A connection.

    Args:
        scratch: :data:`CHUNK` bytes into which the event loop receives; they are copied before it receives again, so
            all streams of a loop may share them.
        connected: Called with the stream when the connection is made.
    """

    def __init__(self, scratch: memoryview, connected: Callable[[Stream], None]) -> None:
        self._scratch = scratch
        self._connected = connected
        self._received = bytearray()
        self._wanted = 0
        #: The bytes of the buffer that came before the process woke, and whether the last ones that were read did.
        self._stale = 0
        self.was_stale = False
        self._arrival: asyncio.Future[None] | None = None
        self._is_paused = False
        self._is_blocked = False
        self._unblocked: asyncio.Future[None] | None = None
        self._closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.transport: asyncio.Transport
        #: Nothing more arrives: the client has ended its side, or the connection, or nothing more is to be read.
        self.has_ended = False
        #: Whether the client has ended it.
        self.is_given_up = False
        #: Called when nothing more arrives.
        self.ended: Callable[[], None] | None = None

    # What the event loop calls ----------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The connection is there."""
        self.transport = cast("asyncio.Transport", transport)
        self.transport.set_write_buffer_limits(high=_SLICE, low=CHUNK)
        self._connected(self)

    def get_buffer(self, sizehint: int) -> memoryview:
        """Where to receive: no more than is asked for, or a little ahead of that."""
        return self._scratch[: max(min(max(self._wanted, AHEAD) - len(self._received), CHUNK), 1)]

    def buffer_updated(self, nbytes: int) -> None:
        """Bytes have arrived."""
        self._received += self._scratch[:nbytes]
        if len(self._received) >= max(self._wanted, AHEAD) and not self._is_paused:
            self._is_paused = True
            self.transport.pause_reading()
        if len(self._received) >= self._wanted:
            _wake(self._arrival)

    def eof_received(self) -> bool:
        """The client has ended its side. It may wait for responses still, except with TLS, which has no such state."""
        self.is_given_up = True
        self._end()
        return self.transport.get_extra_info("ssl_object") is None

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection was lost."""
        self.is_given_up = True
        self._end()
        _wake(self._unblocked)
        if not self._closed.done():
            self._closed.set_result(None)

    def pause_writing(self) -> None:
        """The client takes less than it gets."""
        self._is_blocked = True

    def resume_writing(self) -> None:
        """The client has taken most of it."""
        self._is_blocked = False
        _wake(self._unblocked)

    # Reading ----------------------------------------------------------------------------------------------------------

    def has(self, size: int) -> bool:
        """Whether so many bytes have arrived, or nothing more arrives."""
        return len(self._received) >= size or self.has_ended

    @property
    def buffered(self) -> int:
        """The bytes that have arrived and were not read."""
        return len(self._received)

    @property
    def is_full(self) -> bool:
        """Whether more may have arrived than has been received."""
        return len(self._received) >= AHEAD

    def mark_stale(self, size: int) -> None:
        """The next bytes, so many of them, came before the process woke."""
        self._stale = size

    async def read(self, size: int) -> bytes:
        """The next bytes, at most :data:`CHUNK`.

        Raises:
            asyncio.IncompleteReadError: The client sends fewer.
        """
        self._wanted = size
        try:
            while len(self._received) < size and not self.has_ended:
                self._resume()
                self._arrival = asyncio.get_running_loop().create_future()
                await self._arrival
        finally:
            self._wanted = 0
        if len(self._received) < size:
            raise asyncio.IncompleteReadError(bytes(self._received), size)
        data = bytes(memoryview(self._received)[:size])
        del self._received[:size]
        self.was_stale, self._stale = self._stale > 0, max(self._stale - size, 0)
        if len(self._received) < AHEAD:
            self._resume()
        return data

    def stop_reading(self) -> None:
        """Take nothing more from the client; what has arrived can be read."""
        if not self._is_paused and not self.transport.is_closing():
            self._is_paused = True
            self.transport.pause_reading()
        self._end()

    def _resume(self) -> None:
        if self._is_paused and not self.has_ended and not self.transport.is_closing():
            self._is_paused = False
            self.transport.resume_reading()

    def _end(self) -> None:
        if self.has_ended:
            return
        self.has_ended = True
        _wake(self._arrival)
        if self.ended is not None:
            self.ended()

    # Writing ----------------------------------------------------------------------------------------------------------

    async def write(self, data: bytes, step: float, is_over: Callable[[float], bool]) -> None:
        """Send bytes, and wait until the client has taken all but the last of them.

        Args:
            step: Seconds after which ``is_over`` is asked about a client that takes nothing.
            is_over: Whether to give up a client that has not taken 256 KB for so many seconds.

        Raises:
            TimeoutError: The client is given up.
            ConnectionResetError: The connection is lost.
        """
        view = memoryview(data)
        for at in range(0, len(view), _SLICE):
            if self.transport.is_closing():
                raise ConnectionResetError("the connection is lost")
            self.transport.write(view[at : at + _SLICE])
            waited = 0.0
            while self._is_blocked and not self._closed.done():
                self._unblocked = asyncio.get_running_loop().create_future()
                if not (await asyncio.wait({self._unblocked}, timeout=step))[0]:
                    waited += step
                    if is_over(waited):
                        raise TimeoutError(f"the client takes no response for {waited:.0f} s")

    async def close(self, *, linger: float) -> None:
        """Close the connection when the client has taken what was sent, at the latest after so many seconds."""
        self.transport.close()
        if not (await asyncio.wait({self._closed}, timeout=linger))[0]:
            self.transport.abort()


def _wake(future: asyncio.Future[None] | None) -> None:
    if future is not None and not future.done():
        future.set_result(None)
