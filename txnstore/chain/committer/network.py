"""How processes on several machines meet: one announces its address in the store, and the others connect by TLS.

The announcement names the certificate of the listener, so a caller trusts it as it trusts the store. The listener, in
turn, has to know that a caller may write to the store. A secret in the store would show only that it may read. So the
listener draws a name, and the caller creates an object of that name. A copy of the store has the announcement, too; but
an object that is created there is not where the listener looks for it.

Processes of one machine meet there first, without a request. See docs/internals/design/committer.md.
"""

from __future__ import annotations

import json
import logging
import os
import re
import secrets
import socket
import threading
import weakref
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from time import sleep  # noqa: TID251 - a thread of its own waits in real time
from typing import Annotated, Protocol

from txnstore._version import __version__
from txnstore.chain.codec import Stored, decode, encode
from txnstore.chain.committer.channel import MAX_FRAME, Channel, ChannelClosedError, SocketChannel
from txnstore.chain.committer.committer import FoundCommitter
from txnstore.chain.committer.rendezvous import Listener, Mailbox, Met, Rendezvous
from txnstore.chain.committer.sharing import Address
from txnstore.chain.committer.tls import Tls, TlsIdentity, make_identity
from txnstore.chain.keys import Keys
from txnstore.chain.rules import Limits
from txnstore.core.model import value_class
from txnstore.errors import ObjectNotFoundError, TxnStoreError
from txnstore.runtime import Runtime
from txnstore.storage.base import Claim, ObjectStore
from txnstore.threads import start

_LOG = logging.getLogger(__name__)

#: Seconds for each step of a connection, however slowly the other side sends, and for those that wait for a request to
#: the storage.
STEP_SECONDS, PROOF_SECONDS = 1.0, 3.0
#: A listener that was not reached is not called again for so many ms; nor is one announced after that has failed.
RETRY_MS = 60_000
#: A process that listens looks so many ms after its last look whether another one was announced.
LOOK_MS = 1_000
#: One that neither listens nor calls looks again so many ms after its first look, and twice as long after each one: the
#: winner of each race of a fast chain meets no entry of those that lose.
FIRST_PAUSE_MS, MAX_PAUSE_MS = 250, 60_000
#: The longest frame, and the most callers, before they have shown that they may write.
_MAX_FIRST_FRAME, _MAX_STRANGERS = 4_096, 32
_BACKLOG = 128
#: How often a process announces itself at most, if each time another one that it does not reach is faster.
_ATTEMPTS = 2
#: Seconds after which a process that could not accept a caller, because it has too many files open, tries again.
_PAUSE_SECONDS = 0.1
_ALL = ("0.0.0.0", "::")  # noqa: S104 - refused
_NONCE = re.compile("[0-9a-f]{32}")
#: Seconds after which the system ends a connection whose other side does not answer.
_DEAD_SECONDS = 10


@value_class(kw_only=True)
class CommitterDocument(Stored):
    """Where a process listens that commits for those of other machines; ``fingerprint``: that of its certificate."""

    host: str
    port: Annotated[int, Limits(ge=1, le=65_535)]
    fingerprint: Annotated[str, Limits(pattern="^[0-9a-f]{64}$")]

    @property
    def address(self) -> str:
        """Where it listens."""
        return f"{self.host}:{self.port}"


class Links(Protocol):
    """Connections of a process to those of other machines."""

    @property
    def address(self) -> Address:
        """Where this process listens."""
        ...

    @property
    def objects(self) -> ObjectStore:
        """The objects of the store."""
        ...

    @property
    def keys(self) -> Keys:
        """The keys of its chains."""
        ...

    @property
    def runtime(self) -> Runtime:
        """The clock of this process."""
        ...

    def listen(self, chain: int, serve: Callable[[Channel], None]) -> CommitterDocument:
        """Begin to listen for a chain; returns what is to be announced.

        Raises:
            OSError: The address cannot be used.
            InvalidConfigError: The package for certificates is not installed.
        """
        ...

    def call(self, chain: int, document: CommitterDocument) -> Channel:
        """Connect to a process that is announced.

        Raises:
            OSError: It cannot be reached, or is another one, or refuses this one.
            TxnStoreError: This process may not write to the store, or the storage failed.
        """
        ...

    def close(self, chain: int) -> None:
        """Listen no more for a chain; called by any thread."""
        ...


class TcpNetwork:
    """The part of a process in sharing entries with processes of other machines. Thread-safe.

    It listens on one port for all chains of a store. Nothing listens before a chain needs it.

    Args:
        address: Where this process listens.
    """

    def __init__(self, address: Address, objects: ObjectStore, keys: Keys, runtime: Runtime) -> None:
        self.address, self.objects, self.keys, self.runtime = address, objects, keys, runtime
        #: What serves the callers of each chain for which this process listens, and the port. Under `_lock`.
        self._serving: dict[int, Callable[[Channel], None]] = {}
        self._port: _Port | None = None
        self._lock = threading.RLock()  # A collection that ends a committer may interrupt any call.

    def at(self, chain: int, machine: Rendezvous) -> Rendezvous:
        return NetworkMeeting(self, chain, machine)

    def check(self) -> None:
        if self.address.host:
            _Port(replace(self.address, port=0), self._admit).close()

    def listen(self, chain: int, serve: Callable[[Channel], None]) -> CommitterDocument:
        with self._lock:
            if self._port is None:
                self._port = _Port(self.address, self._admit)
                self._port.start()
            self._serving[chain] = serve
            port = self._port
        return CommitterDocument(host=self.address.host, port=port.number, fingerprint=port.identity.fingerprint)

    def close(self, chain: int) -> None:
        with self._lock:
            self._serving.pop(chain, None)
            port = None
            if not self._serving:
                port, self._port = self._port, None
        if port is not None:
            port.close()

    def _admit(self, channel: SocketChannel) -> Callable[[Channel], None]:
        """Return what serves a caller, if it shows that it may write to the store."""
        release, store_id, chain = json.loads(_receive(channel, STEP_SECONDS))
        serve = self._serving.get(chain)
        if release != __version__ or store_id != self.keys.store_id or serve is None:
            raise ChannelClosedError
        nonce = secrets.token_hex(16)
        channel.send(nonce.encode())
        _receive(channel, PROOF_SECONDS)
        proof = self.keys.caller(chain, nonce)
        self.objects.get(proof)
        channel.longest = MAX_FRAME
        channel.send(b"")
        with suppress(TxnStoreError):
            self.objects.delete([proof])  # Else a vacuum does.
        return serve

    def call(self, chain: int, document: CommitterDocument) -> Channel:
        channel = connect(document)
        try:
            channel.send(json.dumps([__version__, self.keys.store_id, chain]).encode())
            nonce = _receive(channel, STEP_SECONDS).decode()
            if not _NONCE.fullmatch(nonce):  # It becomes a part of a key.
                raise ConnectionRefusedError("the process that is announced speaks another language")
            self.objects.put(self.keys.caller(chain, nonce), b"")
            channel.send(b"")
            _receive(channel, PROOF_SECONDS)
        except (ChannelClosedError, UnicodeDecodeError) as error:
            channel.close()
            raise ConnectionRefusedError("the process that is announced has ended the connection") from error
        except BaseException:
            channel.close()
            raise
        channel.longest = MAX_FRAME
        return channel


def connect(document: CommitterDocument) -> SocketChannel:
    """Connect to a process that is announced, and compare its certificate.

    Raises:
        OSError: It cannot be reached, or has another certificate.
    """
    try:
        sock = socket.create_connection((document.host, document.port), timeout=STEP_SECONDS)
    except ValueError as error:
        raise OSError(f"{document.host!r} is no name of a host: {error}") from error
    return _secured(sock, partial(Tls.connected, fingerprint=document.fingerprint))


def _secured(sock: socket.socket, shake_hands: Callable[[socket.socket], Tls]) -> SocketChannel:
    """Make the channel of a connection, for short frames."""
    try:
        _prepare(sock)
        sock.settimeout(STEP_SECONDS)
        tls = shake_hands(sock)
        sock.settimeout(None)
        return SocketChannel(sock, tls, longest=_MAX_FIRST_FRAME)
    except BaseException:
        sock.close()
        raise


def _prepare(sock: socket.socket) -> None:
    """Send frames at once, and notice that the other machine has ended."""
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (
        ("TCP_KEEPIDLE", _DEAD_SECONDS),
        ("TCP_KEEPINTVL", _DEAD_SECONDS // 2),
        ("TCP_KEEPCNT", 2),
        ("TCP_USER_TIMEOUT", _DEAD_SECONDS * 1_000),
    ):
        if hasattr(socket, name):
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def _receive(channel: Channel, seconds: float) -> bytes:
    """Receive a frame in time.

    Raises:
        ChannelClosedError: There is none.
    """
    frame = channel.receive(seconds)
    if frame is None:
        raise ChannelClosedError
    return frame


class _Port:
    """A port that is listened on.

    Args:
        admit: Called with the channel of each caller, in a thread of its own; returns what serves it.
    """

    def __init__(self, address: Address, admit: Callable[[SocketChannel], Callable[[Channel], None]]) -> None:
        self.identity: TlsIdentity = make_identity()
        try:
            family, *_, place = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)[0]
        except ValueError as error:
            raise OSError(f"{address.host!r} is no name of a host: {error}") from error
        if place[0] in _ALL:
            raise OSError(f"{address.host} is every address of this machine: name one that the others reach")
        self._socket = socket.create_server(place[:2], family=family, backlog=_BACKLOG)
        self.number: int = self._socket.getsockname()[1]
        self._admit = admit
        #: Guards nothing: counts the callers that are about to show that they may write.
        self._strangers = threading.Semaphore(_MAX_STRANGERS)
        self._closed = False
        #: A child of a fork has the socket, and must not end what the parent serves.
        self._pid = os.getpid()
        _PORTS.add(self)

    def start(self) -> None:
        """Begin to accept callers.

        Raises:
            OSError: The system has no more threads.
        """
        try:
            start(self._accept, "txnstore-network")
        except RuntimeError as error:
            raise OSError(str(error)) from error

    def _accept(self) -> None:
        """Accept connections until the port is closed, and meet each in a thread: a bounded number at a time."""
        while not self._closed:
            try:
                sock, _ = self._socket.accept()
            except OSError:
                if not self._closed:
                    sleep(_PAUSE_SECONDS)
                continue
            try:
                # Many may begin together; who waits here longer has left.
                if not self._strangers.acquire(timeout=STEP_SECONDS):
                    sock.close()
                    continue
                start(partial(self._meet, sock), "txnstore-caller")
            except RuntimeError:  # The system has no more threads.
                self._strangers.release()
                sock.close()
        self._socket.close()

    def _meet(self, sock: socket.socket) -> None:
        """Secure a connection, and serve its caller if it is admitted."""
        channel = None
        try:
            channel = _secured(sock, partial(Tls.accepted, identity=self.identity))
            serve = self._admit(channel)
        except Exception as error:  # noqa: BLE001 - a stranger sends what it likes
            _LOG.debug("a caller was not admitted", extra={"error": repr(error)})
            if channel is not None:
                channel.close()
            return
        finally:
            self._strangers.release()
        serve(channel)

    def close(self) -> None:
        """Listen no more; callers that were admitted stay."""
        self._closed = True
        if self._pid == os.getpid():
            with suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)  # Wakes the thread that accepts.
        self._socket.close()


def _close_ports() -> None:
    """Close the ports that a child of a fork has inherited: nothing can have them while it lives."""
    for port in tuple(_PORTS):
        port.close()


#: The ports of this process.
_PORTS: weakref.WeakSet[_Port] = weakref.WeakSet()
os.register_at_fork(after_in_child=_close_ports)


class NetworkMeeting:
    """Where the processes of a chain meet: on a machine, else by the network.

    The holder of the head lock of the chain calls :meth:`meet`, and asks its listener whether it is current.
    """

    def __init__(self, network: Links, chain: int, machine: Rendezvous) -> None:
        self._network, self._chain, self._machine = network, chain, machine
        #: When the announcement was last read; None: never. And after how many ms it is read again at any commit.
        self._looked_at: int | None = None
        self._pause_ms = FIRST_PAUSE_MS
        #: When each process that was called in vain, by its certificate, may be called again.
        self._retry_at: dict[str, int] = {}
        #: The process that has replaced this one: it is called before this one leaves its place.
        self._successor: Met | None = None
        #: When this process may listen again, after that has failed.
        self._listen_at = 0

    def meet(
        self, name: str, serve: Callable[[Channel], None], silent: object = None, *, listen: bool = True
    ) -> Met | None:
        met = self._machine.meet(name, serve, silent, listen=False)
        successor, self._successor = self._successor, None
        if met is None and successor is not None:
            met = successor
        elif met is None and self._must_look(listen=listen):
            document = self._read()
            met = None if document is None else self._call(document, silent)
        if met is not None or not listen:
            return met
        met = self._machine.meet(name, serve, silent, listen=True)
        if met is not None and met.channel is not None:
            return met
        listener = _Listener(self, None if met is None else met.listener)
        try:
            announced = self._announce(serve, silent)
        except BaseException:  # Ctrl-C: this process must not meet itself at its next commit.
            listener.close()
            raise
        if isinstance(announced, Met):  # Another process was faster.
            listener.close()
            return announced
        listener.fingerprint = announced
        return None if met is None and not announced else Met(None, listener=listener)

    def _must_look(self, *, listen: bool) -> bool:
        """Whether the announcement is to be read: ever more rarely, before it is replaced, and while others write."""
        if self._is_due(self._pause_ms):
            self._pause_ms = self._pause_ms if self._looked_at is None else min(2 * self._pause_ms, MAX_PAUSE_MS)
            return True
        return listen and (self._may_announce() or self._is_due())

    def _is_due(self, after_ms: int = LOOK_MS) -> bool:
        return self._looked_at is None or self._network.runtime.monotonic() - self._looked_at >= after_ms

    def _read(self) -> CommitterDocument | None:
        """Read which process is announced; None: none that this one may call now."""
        self._looked_at = self._network.runtime.monotonic()
        document = read_announcement(self._network.objects, self._network.keys, self._chain)
        return None if document is None or self._is_avoided(document) else document

    def _is_avoided(self, document: CommitterDocument) -> bool:
        """Whether the process was called in vain a short time ago."""
        now = self._network.runtime.monotonic()
        self._retry_at = {called: at for called, at in self._retry_at.items() if now < at}
        return document.fingerprint in self._retry_at

    def _call(self, document: CommitterDocument, silent: object, *, replace: bool = True) -> Met | None:
        """Connect to a process that is announced; None if it cannot be reached, or is the ``silent`` one.

        Args:
            replace: Delete the announcement of one that cannot be reached.
        """
        if document.fingerprint == silent or self._is_avoided(document):
            return None
        try:
            return Met(document.fingerprint, channel=self._network.call(self._chain, document), is_near=False)
        except (OSError, TxnStoreError) as error:
            self._retry_at[document.fingerprint] = self._network.runtime.monotonic() + RETRY_MS
            fields = {"chain": self._chain, "address": document.address, "error": str(error)}
            _LOG.info("the committer of another machine was not reached", extra=fields)
            if replace and isinstance(error, OSError):
                # Each process that begins would wait for it. If it is there, it goes on.
                self._delete()
            return None

    def _delete(self) -> None:
        """Delete the announcement."""
        with suppress(TxnStoreError):
            self._network.objects.delete([self._network.keys.committer(self._chain)])

    def _may_announce(self) -> bool:
        return bool(self._network.address.host) and self._network.runtime.monotonic() >= self._listen_at

    def _announce(self, serve: Callable[[Channel], None], silent: object) -> Met | str:
        """Listen for other machines, and announce it; returns the certificate, or nothing if that is not possible.

        Of several that do so at once one is announced. The others are connected to it.
        """
        network, key = self._network, self._network.keys.committer(self._chain)
        for _ in range(_ATTEMPTS if self._may_announce() else 0):
            try:
                document = network.listen(self._chain, serve)
                claim = Claim(key, encode(document))
                stored = claim.resolve(network.objects, network.runtime.backoff)
            except (OSError, TxnStoreError) as error:
                self._listen_at = network.runtime.monotonic() + RETRY_MS
                network.close(self._chain)
                fields = {"chain": self._chain, "address": network.address.host, "error": str(error)}
                _LOG.warning("this process cannot commit for other machines", extra=fields)
                break
            if stored == claim.data:
                return document.fingerprint
            network.close(self._chain)
            other = _decoded(key, stored)
            met = None if other is None else self._call(other, silent)
            if met is not None:
                return met
            self._delete()
        return ""

    def is_replaced(self, fingerprint: str) -> bool:
        """Whether another process is announced that this one reaches; looks at most once in :data:`LOOK_MS`.

        One that it does not reach is no successor: if both left what they serve, they would replace each other forever.
        """
        if not self._is_due():
            return False
        document = self._read()
        if document is None or document.fingerprint == fingerprint:
            return False
        self._successor = self._call(document, None, replace=False)
        return self._successor is not None

    def listen_no_more(self) -> None:
        """Listen no more for other machines. The announcement stays: who calls is refused, and deletes it."""
        self._network.close(self._chain)

    def check(self) -> None:
        self._machine.check()

    def mailbox(self) -> Mailbox:
        return self._machine.mailbox()

    def start(self, run: Callable[[], object]) -> None:
        self._machine.start(run)


class _Listener:
    """A process that listens on its machine, and for other machines.

    Args:
        machine: Its listener there; None: it listens for other machines only.

    Attributes:
        fingerprint: The certificate that is announced; empty: it listens on its machine only.
    """

    def __init__(self, meeting: NetworkMeeting, machine: Listener | None) -> None:
        self._meeting, self._machine, self.fingerprint = meeting, machine, ""

    def is_current(self, *, look: bool) -> bool:
        is_found = self._machine is None or self._machine.is_current(look=look)
        return is_found and not (look and self._meeting.is_replaced(self.fingerprint))

    def close(self) -> None:
        if self._machine is not None:
            self._machine.close()
        self._meeting.listen_no_more()


def read_announcement(objects: ObjectStore, keys: Keys, chain: int) -> CommitterDocument | None:
    """Read which process commits to a chain for other machines; None if there is none, or it cannot be read."""
    key = keys.committer(chain)
    try:
        return _decoded(key, objects.get(key))
    except ObjectNotFoundError:
        return None
    except TxnStoreError as error:
        _LOG.info("the announcement of a committer was not read", extra={"key": key, "error": str(error)})
        return None


def _decoded(key: str, data: bytes) -> CommitterDocument | None:
    """Decode an announcement; None if it is damaged, or of a later format."""
    try:
        return decode(CommitterDocument, key, data)
    except TxnStoreError:
        return None


def find_announced(objects: ObjectStore, keys: Keys, chain: int) -> FoundCommitter | None:
    """Find the process that is announced to commit for other machines, without any effect; None if there is none."""
    document = read_announcement(objects, keys, chain)
    if document is None:
        return None
    try:
        connect(document).close()
        is_answering = True
    except OSError:
        is_answering = False
    return FoundCommitter(None, is_answering, document.address)
