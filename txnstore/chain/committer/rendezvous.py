"""How processes of one user on one machine meet: a Unix socket in a folder of that user.

A new listener replaces the socket of the name by its own, in one rename. A socket without a listener refuses
connections, so one that a dead process has left is no problem; and a listener sees by the name whether another one has
taken its place. A lock on a file beside it is held for the step alone, never while a process listens.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import logging
import os
import secrets
import select
import socket
import stat
import struct
import threading
import weakref
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import cached_property, partial
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Protocol

from txnstore.core.model import value_class
from txnstore.errors import InvalidConfigError
from txnstore.threads import start

_LOG = logging.getLogger(__name__)

#: ``off``: this process shares no entries with others of its user on this machine; ``on``, or not set: it does.
VARIABLE = "TXNSTORE_COMMITTER"
#: The longest frame, in bytes; the most frames that wait for a process that does not read.
MAX_FRAME, MAX_UNSENT = 64 * 1024 * 1024, 1024
_LENGTH = 4
#: The longest path of a Unix socket that every system takes.
_MAX_PATH = 100
_BACKLOG = 512
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


class Listener(Protocol):
    """A process that listens under a name."""

    def is_current(self) -> bool:
        """Whether callers of the name still find this process."""
        ...

    def close(self) -> None:
        """Listen no more."""
        ...


@value_class()
class Met:
    """What :meth:`Rendezvous.meet` has led to: a channel or a listener.

    Attributes:
        identity: Names the listener.
        channel: To the process that listens; None: this one does.
        listener: None: another process listens.
        process_id: The process that listens, if the system knows it; None for this one.
    """

    identity: object
    channel: Channel | None = None
    listener: Listener | None = None
    process_id: int | None = None


class Mailbox(Protocol):
    """Wakes one thread by messages of others."""

    def put(self, message: object) -> None:
        """Add a message."""
        ...

    def get(self, timeout: float) -> object:
        """Return the next message; None after ``timeout`` seconds."""
        ...


class Rendezvous(Protocol):
    """The place where the processes of a chain meet."""

    def meet(
        self, name: str, serve: Callable[[Channel], None], silent: object = None, *, listen: bool = True
    ) -> Met | None:
        """Connect to the process that listens under a name; if there is none, listen.

        Args:
            name: Of at most 64 letters and digits.
            serve: Called in a thread of its own with each channel that a caller opens.
            silent: The identity of a listener that does not answer, which is replaced if it still listens.
            listen: False: only connect. Costs microseconds if there is no listener.

        Returns:
            None if neither is possible now.
        """
        ...

    def check(self) -> None:
        """Check that processes can meet here.

        Raises:
            OSError: Why they cannot.
        """
        ...

    def mailbox(self) -> Mailbox:
        """Make a mailbox."""
        ...

    def start(self, run: Callable[[], object]) -> None:
        """Run something in a thread of its own."""
        ...


# On one machine -------------------------------------------------------------------------------------------------------


class _SocketChannel:
    """A channel over a stream socket.

    Any thread appends frames, and one at a time sends them: also a signal handler that interrupts a ``send`` of its own
    thread may call it, and frames never mix.
    """

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        self._poll = select.poll()
        self._poll.register(sock, select.POLLIN)
        self._received = bytearray()
        #: Frames that were not sent, in order; the first one may have been sent in part.
        self._unsent: deque[memoryview] = deque()
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
        self._unsent.append(memoryview(len(frame).to_bytes(_LENGTH, "big") + frame))
        if len(self._unsent) > MAX_UNSENT:
            self.close()  # The other side does not read: it is suspended, or too slow.
        self._send_unsent(socket.MSG_DONTWAIT)

    def _send_unsent(self, flags: int) -> None:
        """Send what waits, unless another thread does; what the socket does not take now is left to a new thread."""
        while self._unsent and not self._closed and self._sending.acquire(blocking=False):
            is_left = True
            try:
                is_left = not self._send_now(flags)
            except BaseException:
                self.close()  # A part of a frame may be sent.
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
        while self._unsent:
            data = self._unsent[0]
            try:
                sent = self._socket.send(data, flags | _NO_SIGNAL)
            except BlockingIOError:
                return False
            except OSError:
                self.close()
                return True
            if sent == len(data):
                self._unsent.popleft()
            else:
                self._unsent[0] = data[sent:]
        return True

    def receive(self, timeout: float | None) -> bytes | None:
        received = self._received
        while True:
            if len(received) >= _LENGTH:
                end = _LENGTH + int.from_bytes(received[:_LENGTH], "big")
                if end - _LENGTH > MAX_FRAME:
                    self.close()
                    raise ChannelClosedError
                if len(received) >= end:
                    frame = bytes(memoryview(received)[_LENGTH:end])
                    del received[:end]
                    return frame
            try:
                if not self._poll.poll(None if timeout is None else timeout * 1000):
                    return None
                data = self._socket.recv(1 << 18)
            except (OSError, ValueError):
                data = b""
            if not data:
                self.close()
                raise ChannelClosedError
            received += data

    def close(self) -> None:
        self._closed = True
        if self._pid == os.getpid():
            with suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)  # Wakes the threads that read and write.


class _SocketListener:
    """Listens on a Unix socket."""

    def __init__(self, sock: socket.socket, path: Path, identity: object) -> None:
        self._socket, self._path, self.identity = sock, path, identity
        self._closed = False
        self._pid = os.getpid()

    def accept(self, serve: Callable[[Channel], None]) -> None:
        """Serve each caller in a thread of its own, until the listener is closed."""
        while not self._closed:
            try:
                sock, _ = self._socket.accept()
            except OSError as error:
                if error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS):
                    break  # Callers that wait here for an answer find none: they are refused instead.
                continue
            sock.settimeout(None)
            channel = _SocketChannel(sock)
            try:
                start(partial(serve, channel), "txnstore-caller")
            except RuntimeError:  # The system has no more threads.
                channel.close()
        self.close()

    def is_current(self) -> bool:
        return _identity_of(self._path) == self.identity

    def close(self) -> None:
        self._closed = True
        if self._pid == os.getpid():
            if self.is_current():
                with suppress(OSError):
                    self._path.unlink()
            with suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)  # Wakes the thread that accepts.
        self._socket.close()


class _QueueMailbox:
    def __init__(self) -> None:
        self._queue: SimpleQueue[object] = SimpleQueue()

    def put(self, message: object) -> None:
        self._queue.put(message)

    def get(self, timeout: float) -> object:
        try:
            return self._queue.get(timeout=max(0.0, timeout))
        except Empty:
            return None


class UnixSockets:
    """Processes of one user on one machine meet at Unix sockets.

    Args:
        folder: Where the sockets are; made if it does not exist.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self._chosen = folder

    @cached_property
    def _folder(self) -> Path:
        return self._chosen or default_folder()

    def meet(
        self, name: str, serve: Callable[[Channel], None], silent: object = None, *, listen: bool = True
    ) -> Met | None:
        try:
            path = self._path_of(name, make=listen)
            return _connect(path, silent) or (_listen_or_connect(path, serve, silent) if listen else None)
        except FileNotFoundError:
            return None  # No process has listened yet.
        except (OSError, RuntimeError) as error:  # RuntimeError: this user has no home, or the system no more threads.
            _LOG.debug("processes cannot meet to share entries", extra={"error": str(error)})
            return None

    def _path_of(self, name: str, *, make: bool) -> Path:
        """Return the path of a socket, in a folder of this user alone.

        Raises:
            FileNotFoundError: There is no folder, and none is to be made.
            OSError: It cannot be made or used, or the path is too long.
        """
        folder = self._folder
        if make:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = folder.lstat()
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
            raise PermissionError(f"{folder} is not a folder of this user alone (mode 0700)")
        path = folder / f"{name}.sock"
        if len(os.fsencode(path)) > _MAX_PATH:
            raise OSError(f"the path {path} is too long for a socket")
        return path

    def check(self) -> None:
        try:
            path = self._path_of(f"check{secrets.token_hex(8)}", make=True)
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
                sock.bind(os.fspath(path))
                path.unlink()
        except RuntimeError as error:
            raise OSError(str(error)) from error

    def mailbox(self) -> Mailbox:
        return _QueueMailbox()

    def start(self, run: Callable[[], object]) -> None:
        start(run, "txnstore-committer")


def default_folder() -> Path:
    """The folder of the sockets: below that of the session, else below the user's cache.

    Machines may share the home of a user, and each has a folder there.
    """
    session = os.environ.get("XDG_RUNTIME_DIR")
    if session:
        return Path(session) / "txnstore"
    cache = os.environ.get("XDG_CACHE_HOME")
    return (Path(cache) if cache else Path.home() / ".cache") / "txnstore" / f"run-{_machine()}"


def _machine() -> str:
    """Return a short text that other machines do not have."""
    return hashlib.sha256(socket.gethostname().encode()).hexdigest()[:8]


def _identity_of(path: Path) -> object:
    """Return what distinguishes a socket from others under its name; None if there is none."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_ctime_ns


def _connect(path: Path, silent: object) -> Met | None:
    identity = _identity_of(path)
    if identity is None or identity == silent:
        return None
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.setblocking(False)  # A suspended listener has a queue of connections, and a full one would block.
        sock.connect(os.fspath(path))
        sock.setblocking(True)
    except OSError:
        sock.close()
        return None
    return Met(identity, channel=_SocketChannel(sock), process_id=_process_at(sock))


def _process_at(sock: socket.socket) -> int | None:
    """Return the id of the process that listens at the other end; None where the system does not say it."""
    if not hasattr(socket, "SO_PEERCRED"):
        return None
    process_id, _, _ = struct.unpack("3i", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    return int(process_id)


def _listen_or_connect(path: Path, serve: Callable[[Channel], None], silent: object) -> Met | None:
    """Listen, unless another process has begun to."""
    with path.with_name("lock").open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return None  # Another process is about to listen, here or elsewhere.
        met = _connect(path, silent)
        if met is not None:
            return met
        own = path.with_suffix(".new")  # The lock is held.
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            with suppress(FileNotFoundError):
                own.unlink()
            sock.bind(os.fspath(own))
            sock.listen(_BACKLOG)
            own.rename(path)
            listener = _SocketListener(sock, path, _identity_of(path))
            start(partial(listener.accept, serve), "txnstore-committer")
        except (OSError, RuntimeError):
            sock.close()
            raise
        finally:
            fcntl.flock(lock, fcntl.LOCK_UN)  # A process that was forked meanwhile has the file open, too.
    return Met(listener.identity, listener=listener)


def rendezvous() -> Rendezvous | None:
    """Return where the processes of this machine meet; None where they cannot, or are not to.

    Raises:
        InvalidConfigError: The environment variable has another value than ``on`` and ``off``.
    """
    value = os.environ.get(VARIABLE, "on")
    if value not in ("on", "off"):
        raise InvalidConfigError(f"{VARIABLE} is {value!r}: write on, or off")
    return UnixSockets() if value == "on" and hasattr(socket, "AF_UNIX") else None
