"""A connection of two processes, which carries frames in order: over a stream socket, as it is or in TLS."""

from __future__ import annotations

import os
import select
import socket
import threading
import weakref
from collections import deque
from contextlib import suppress
from functools import partial
from time import monotonic  # noqa: TID251 - a socket waits in real time
from typing import Protocol

from txnstore.threads import start

#: The longest frame, in bytes; the most frames that wait for a process that does not read.
MAX_FRAME, MAX_UNSENT = 64 * 1024 * 1024, 1024
_LENGTH = 4
#: Where a broken connection would end the process by SIGPIPE, if the program has not kept Python's handling of it.
_NO_SIGNAL = getattr(socket, "MSG_NOSIGNAL", 0)


class ChannelClosedError(Exception):
    """The other side has closed the channel, or it broke."""


class Channel(Protocol):
    """A connection of two processes, which carries frames in order."""

    def send(self, frame: bytes) -> None:
        """Send a frame, without waiting for the other side. Closes the channel if too much waits for it."""
        ...

    def receive(self, timeout: float | None) -> bytes | None:
        """Return the next frame; None after ``timeout`` seconds.

        Raises:
            ChannelClosedError: There is none, and will be none.
        """
        ...

    def close(self) -> None:
        """Close the channel; can be repeated, by any thread."""
        ...


class Cipher(Protocol):
    """Seals what a channel sends, in order, and opens what it receives."""

    def seal(self, data: bytes) -> bytes:
        """Return what is sent for these bytes; called by one thread at a time."""
        ...

    def open(self, data: bytes) -> bytes:
        """Return what was sealed in the bytes received so far, as far as it is complete.

        Raises:
            OSError: They are altered, or the other side has ended the connection.
        """
        ...


class SocketChannel:
    """A channel over a stream socket.

    Any thread appends frames, and one at a time sends them: also a signal handler that interrupts a ``send`` of its own
    thread may call it, and frames never mix.

    Args:
        cipher: Seals and opens all bytes; None: they are sent as they are, between processes of one user.
        longest: The longest frame that is taken now; may be assigned.
    """

    def __init__(self, sock: socket.socket, cipher: Cipher | None = None, longest: int = MAX_FRAME) -> None:
        self._socket, self._cipher, self.longest = sock, cipher, longest
        self._poll = select.poll()
        self._poll.register(sock, select.POLLIN)
        #: What was received and not returned; at first what has come with the end of the handshake.
        self._received = bytearray(b"" if cipher is None else cipher.open(b""))
        #: Frames of which nothing was sent, in order: the same objects as those of other channels, no copies.
        self._unsent: deque[bytes] = deque()
        #: The rest of a frame that is being sent, as it is sent; written by the holder of `_sending`.
        self._rest = memoryview(b"")
        #: Held by the thread that sends. Another one that finds it held leaves its frame to that thread.
        self._sending = threading.Lock()
        self._closed = False
        #: A child of a fork has the socket of its parent, and must not end the connection.
        self._pid = os.getpid()
        # Not by `close`: another thread may be about to use its number.
        weakref.finalize(self, sock.close).atexit = False

    def send(self, frame: bytes) -> None:
        if self._closed:
            return
        self._unsent.append(frame)
        if len(self._unsent) + bool(self._rest) > MAX_UNSENT:
            self.close()  # The other side does not read: it is suspended, or too slow.
        self._send_unsent(socket.MSG_DONTWAIT)

    def _send_unsent(self, flags: int) -> None:
        """Send what waits, unless another thread does; what the socket does not take now is left to a new thread."""
        while (self._unsent or self._rest) and not self._closed and self._sending.acquire(blocking=False):
            is_left = True
            try:
                is_left = not self._send_now(flags)
            except BaseException:
                self.close()  # A part of a frame may be sent, or sealed.
                raise
            finally:
                self._sending.release()
            if is_left:
                try:
                    start(partial(self._send_unsent, 0), "txnstore-send")
                except RuntimeError:  # The system has no more threads.
                    self.close()
                return

    def _send_now(self, flags: int) -> bool:
        """Send frames until there are none; False if the socket takes no more now."""
        while self._rest or self._unsent:
            try:
                if not self._rest:
                    frame = self._unsent.popleft()
                    frame = len(frame).to_bytes(_LENGTH, "big") + frame
                    self._rest = memoryview(frame if self._cipher is None else self._cipher.seal(frame))
                sent = self._socket.send(self._rest, flags | _NO_SIGNAL)
            except BlockingIOError:
                return False
            except OSError:
                self.close()
                return True
            self._rest = self._rest[sent:]
        return True

    def receive(self, timeout: float | None) -> bytes | None:
        received = self._received
        until = None if timeout is None else monotonic() + timeout
        while True:
            if len(received) >= _LENGTH:
                end = _LENGTH + int.from_bytes(received[:_LENGTH], "big")
                if end - _LENGTH > self.longest:
                    self.close()
                    raise ChannelClosedError
                if len(received) >= end:
                    frame = bytes(memoryview(received)[_LENGTH:end])
                    del received[:end]
                    return frame
            try:
                if not self._poll.poll(None if until is None else max(0.0, until - monotonic()) * 1000):
                    return None
                data = self._socket.recv(1 << 18)
                received += data if self._cipher is None or not data else self._cipher.open(data)
            except (OSError, ValueError):
                data = b""
            if not data:
                self.close()
                raise ChannelClosedError

    def close(self) -> None:
        self._closed = True
        if self._pid == os.getpid():
            with suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)  # Wakes the threads that read and write.
