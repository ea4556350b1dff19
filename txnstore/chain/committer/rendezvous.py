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
import socket
import stat
import struct
from collections.abc import Callable
from contextlib import suppress
from functools import cached_property, partial
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Protocol

from txnstore.chain.committer.channel import Channel, SocketChannel
from txnstore.core.model import value_class
from txnstore.threads import start

_LOG = logging.getLogger(__name__)

#: The longest path of a Unix socket that every system takes.
_MAX_PATH = 100
_BACKLOG = 512


class Listener(Protocol):
    """A process that listens under a name."""

    def is_current(self, *, look: bool) -> bool:
        """Whether callers of the name still find this process.

        Args:
            look: Also if only a request to the storage can tell.
        """
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
        is_near: Whether it is on this machine.
    """

    identity: object
    channel: Channel | None = None
    listener: Listener | None = None
    process_id: int | None = None
    is_near: bool = True


class Mailbox(Protocol):
    """Wakes one thread by messages of others."""

    def put(self, message: object) -> None:
        """Add a message."""
        ...

    def get(self, timeout: float | None) -> object:
        """Return the next message; None after ``timeout`` seconds, if there is a timeout."""
        ...


class Rendezvous(Protocol):
    """The place where the processes of a chain meet."""

    def meet(
        self, name: str, serve: Callable[[Channel], None], silent: object = None, *, listen: bool = True
    ) -> Met | None:
        """Connect to the process that listens under a name; if there is none, become that process.

        Args:
            name: Of at most 64 letters and digits.
            serve: If this process listens: called, in a thread of its own, with each channel that another one opens.
            silent: The identity of a listener that does not answer, from an earlier :class:`Met`: if it still listens,
                it is replaced.
            listen: False: only connect. Costs microseconds if there is no listener.

        Returns:
            A channel to the listener, or the listener of this process; None if neither is possible now.
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


class Network(Protocol):
    """How a process meets those of other machines."""

    def at(self, chain: int, machine: Rendezvous) -> Rendezvous:
        """Return where the processes of a chain meet: on a machine, else by the network."""
        ...

    def check(self) -> None:
        """Check that this process can listen for other machines, if it has an address; not whether its port is free.

        Raises:
            OSError: The address is none of this machine.
            InvalidConfigError: The package for certificates is not installed.
        """
        ...


# On one machine -------------------------------------------------------------------------------------------------------


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
            channel = SocketChannel(sock)
            try:
                start(partial(serve, channel), "txnstore-caller")
            except RuntimeError:  # The system has no more threads.
                channel.close()
        self.close()

    def is_current(self, *, look: bool) -> bool:
        return _identity_of(self._path) == self.identity

    def close(self) -> None:
        self._closed = True
        if self._pid == os.getpid():
            if self.is_current(look=True):
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

    def get(self, timeout: float | None) -> object:
        try:
            return self._queue.get(timeout=None if timeout is None else max(0.0, timeout))
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
    """Connect to the process that listens at a path; None if none does, or only the one that was ``silent``."""
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
    return Met(identity, channel=SocketChannel(sock), process_id=_process_at(sock))


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
    """Return where the processes of this machine meet; None where they cannot."""
    return UnixSockets() if hasattr(socket, "AF_UNIX") else None
