"""The bytes of a connection: received into one buffer that all connections share, sent with back-pressure."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import cast

#: The most bytes that a read may ask for.
CHUNK = 64 << 10
#: The bytes that are received before a read asks for them: the memory that a flooding client takes.
AHEAD = 16 << 10
#: The bytes that are handed to the transport at a time.
SLICE = 256 << 10


class Stream(asyncio.BufferedProtocol):
    """A connection.

    Args:
        scratch: :data:`CHUNK` bytes into which the event loop receives; they are copied before it receives again, so
            all streams of a loop may share them.
        on_connect: Called with the stream when the connection is made.
    """

    def __init__(self, scratch: memoryview, on_connect: Callable[[Stream], None]) -> None:
        self._scratch = scratch
        self._on_connect = on_connect
        self._buffer = bytearray()
        #: The bytes that the read under way waits for, and the future that it awaits.
        self._wanted_bytes = 0
        self._arrival_future: asyncio.Future[None] | None = None
        #: The number of buffered bytes that arrived before the process woke, and whether the last read had any of them.
        self._stale_bytes = 0
        self.was_stale = False
        #: Whether the transport was told to receive nothing: enough is buffered.
        self._reading_paused = False
        #: Whether the transport holds as many unsent bytes as it may, and the future of the write that waits for it.
        self._writing_blocked = False
        self._unblocked_future: asyncio.Future[None] | None = None
        self._closed_future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.transport: asyncio.Transport
        #: Whether nothing more arrives: the client has ended its side, the connection is lost, or reading was stopped.
        self.has_ended = False
        #: Whether the client has ended its side, or the connection is lost.
        self.client_closed = False
        #: Called when nothing more arrives.
        self.on_end: Callable[[], None] | None = None

    # What the event loop calls ----------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport, and announce the connection."""
        self.transport = cast("asyncio.Transport", transport)
        self.transport.set_write_buffer_limits(high=SLICE, low=CHUNK)
        self._on_connect(self)

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return the memory to receive into: as much as a read asks for, or a little ahead of it.

        It pauses if more bytes arrive than that: by then the loop has run what reads those that came before.
        """
        room = min(max(self._wanted_bytes, AHEAD) - len(self._buffer), CHUNK)
        if room <= 0 and not self._reading_paused:
            self._reading_paused = True
            self.transport.pause_reading()
        return self._scratch[: max(room, 1)]

    def buffer_updated(self, nbytes: int) -> None:
        """Take the bytes that have arrived."""
        self._buffer += self._scratch[:nbytes]
        if len(self._buffer) >= self._wanted_bytes:
            _wake(self._arrival_future)

    def eof_received(self) -> bool:
        """Note that the client has ended its side; without TLS, which has no such state, it may wait for responses."""
        self.client_closed = True
        self._end()
        return self.transport.get_extra_info("ssl_object") is None

    def connection_lost(self, exc: Exception | None) -> None:
        """Wake all that wait for the connection."""
        self.client_closed = True
        self._end()
        _wake(self._unblocked_future)
        if not self._closed_future.done():
            self._closed_future.set_result(None)

    def pause_writing(self) -> None:
        """Block writes: the client takes less than it gets."""
        self._writing_blocked = True

    def resume_writing(self) -> None:
        """Unblock writes: the client has taken most of it."""
        self._writing_blocked = False
        _wake(self._unblocked_future)

    # Reading ----------------------------------------------------------------------------------------------------------

    def has(self, size: int) -> bool:
        """Whether ``size`` bytes have arrived, or nothing more arrives."""
        return len(self._buffer) >= size or self.has_ended

    @property
    def buffered(self) -> int:
        """The number of bytes that have arrived and were not read."""
        return len(self._buffer)

    @property
    def is_full(self) -> bool:
        """Whether the transport may hold bytes that were not received yet."""
        return len(self._buffer) >= AHEAD

    def mark_stale(self, size: int) -> None:
        """Mark the next ``size`` bytes as ones that arrived before the process woke."""
        self._stale_bytes = size

    async def read(self, size: int) -> bytes:
        """Return the next ``size`` bytes, at most :data:`CHUNK`.

        Raises:
            asyncio.IncompleteReadError: The client sends fewer.
        """
        self._wanted_bytes = size
        try:
            while len(self._buffer) < size and not self.has_ended:
                self._resume()
                self._arrival_future = asyncio.get_running_loop().create_future()
                await self._arrival_future
        finally:
            self._wanted_bytes = 0
        if len(self._buffer) < size:
            raise asyncio.IncompleteReadError(bytes(self._buffer), size)
        data = bytes(memoryview(self._buffer)[:size])
        del self._buffer[:size]
        self.was_stale, self._stale_bytes = self._stale_bytes > 0, max(self._stale_bytes - size, 0)
        if len(self._buffer) < AHEAD:
            self._resume()
        return data

    def stop_reading(self) -> None:
        """Receive nothing more from the client; buffered bytes can still be read."""
        if not self._reading_paused and not self.transport.is_closing():
            self._reading_paused = True
            self.transport.pause_reading()
        self._end()

    def _resume(self) -> None:
        if self._reading_paused and not self.has_ended and not self.transport.is_closing():
            self._reading_paused = False
            self.transport.resume_reading()

    def _end(self) -> None:
        """Note that nothing more arrives, and wake the read that waits for it."""
        if self.has_ended:
            return
        self.has_ended = True
        _wake(self._arrival_future)
        if self.on_end is not None:
            self.on_end()

    # Writing ----------------------------------------------------------------------------------------------------------

    async def write(self, data: bytes, step: float, gives_up: Callable[[float], bool]) -> None:
        """Send bytes, and wait until the client has taken all but the last of them, and of those before.

        Args:
            step: Seconds between two calls of ``gives_up`` while the client takes nothing.
            gives_up: Whether to give up a client that has not taken 256 KB for the passed number of seconds.

        Raises:
            TimeoutError: The client is given up.
            ConnectionResetError: The connection is lost.
        """
        view = memoryview(data)
        for position in range(0, max(len(view), 1), SLICE):
            self._write(view[position : position + SLICE])
            waited = 0.0
            while self._writing_blocked and not self._closed_future.done():
                self._unblocked_future = asyncio.get_running_loop().create_future()
                if not (await asyncio.wait({self._unblocked_future}, timeout=step))[0]:
                    waited += step
                    if gives_up(waited):
                        raise TimeoutError(f"the client takes no response for {waited:.0f} s")

    def write_slice(self, data: bytes) -> bool:
        """Send at most :data:`SLICE` bytes, and return whether the client takes more: else wait by ``write(b"")``.

        Raises:
            ConnectionResetError: The connection is lost.
        """
        self._write(data)
        return not self._writing_blocked

    def _write(self, data: bytes | memoryview) -> None:
        if self.transport.is_closing():
            raise ConnectionResetError("the connection is lost")
        self.transport.write(data)

    async def close(self, *, linger: float) -> None:
        """Close the connection when the client has taken what was sent, at the latest after so many seconds."""
        self.transport.close()
        if not (await asyncio.wait({self._closed_future}, timeout=linger))[0]:
            self.transport.abort()


def _wake(future: asyncio.Future[None] | None) -> None:
    if future is not None and not future.done():
        future.set_result(None)
