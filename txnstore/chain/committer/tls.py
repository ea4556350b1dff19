"""TLS between processes of several machines: a certificate for each listener, which callers know by its fingerprint.

No authority signs it, and no name in it counts. A caller has the fingerprint from an object in the store, which only
those write who may write to the store, and trusts no other certificate.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import socket
import ssl
import tempfile
import threading
from datetime import UTC, datetime
from pathlib import Path
from time import monotonic  # noqa: TID251 - a socket waits in real time
from typing import Self

from txnstore.core.model import value_class
from txnstore.errors import InvalidConfigError
from txnstore.threads import load

#: What a certificate must have, and no caller looks at.
_NAME, _BEGIN, _END = "txnstore", datetime(2000, 1, 1, tzinfo=UTC), datetime(9999, 12, 31, tzinfo=UTC)
_READ = 1 << 18
#: A shorter timeout of a socket would be none at all.
_LEAST_SECONDS = 0.001


@value_class()
class TlsIdentity:
    """What a listener shows to its callers.

    Attributes:
        fingerprint: The SHA-256 of the certificate, in hex.
    """

    context: ssl.SSLContext
    fingerprint: str


def make_identity() -> TlsIdentity:
    """Make a key and a certificate, which exist in this process alone.

    Raises:
        InvalidConfigError: The package for certificates is not installed.
        OSError: There is no room for a temporary file.
    """
    for name in ("cryptography.x509", "cryptography.hazmat.primitives.asymmetric.ec"):
        load(name)
    try:
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes, serialization
        from cryptography.hazmat.primitives.asymmetric import ec
    except ImportError as error:
        msg = "a committer that other machines reach needs the package cryptography: pip install 'txnstore[tcp]'"
        raise InvalidConfigError(msg) from error
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, _NAME)])
    builder = x509.CertificateBuilder().subject_name(subject).issuer_name(subject).public_key(key.public_key())
    builder = builder.serial_number(x509.random_serial_number()).not_valid_before(_BEGIN).not_valid_after(_END)
    certificate = builder.sign(key, hashes.SHA256())
    password = secrets.token_hex(32).encode()  # The context takes a key from a file only: it has no use without this.
    pem = certificate.public_bytes(serialization.Encoding.PEM) + key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.BestAvailableEncryption(password)
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.num_tickets = 0  # No session is resumed.
    handle, path = tempfile.mkstemp()  # Of this user alone.
    try:
        with open(handle, "wb") as file:  # noqa: PTH123 - a file that is open
            file.write(pem)
        context.load_cert_chain(path, password=password)
    finally:
        Path(path).unlink()
    return TlsIdentity(context, hashlib.sha256(certificate.public_bytes(serialization.Encoding.DER)).hexdigest())


def _client_context() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE  # The fingerprint is compared instead.
    return context


class Tls:
    """TLS in memory: the cipher of a channel. Thread-safe: one thread may seal while another one opens."""

    def __init__(self, context: ssl.SSLContext, *, is_server: bool) -> None:
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_side=is_server)
        #: Guards the connection of OpenSSL, which one thread at a time may use. Re-entrant: a signal handler that
        #: interrupts a thread which opens may seal.
        self._lock = threading.RLock()

    @classmethod
    def connected(cls, sock: socket.socket, fingerprint: str) -> Self:
        """Connect to the listener with this certificate.

        Raises:
            OSError: It has another one, or does not answer within the timeout of the socket.
        """
        made = cls(_client_context(), is_server=False)
        made._shake_hands(sock)
        made._compare(fingerprint)
        return made

    @classmethod
    def accepted(cls, sock: socket.socket, identity: TlsIdentity) -> Self:
        """Accept the connection of a caller.

        Raises:
            OSError: The caller speaks no TLS, or does not answer within the timeout of the socket.
        """
        made = cls(identity.context, is_server=True)
        made._shake_hands(sock)
        return made

    def _compare(self, fingerprint: str) -> None:
        """Refuse a listener that has another certificate."""
        found = hashlib.sha256(self._tls.getpeercert(binary_form=True) or b"").hexdigest()
        if not hmac.compare_digest(found, fingerprint):
            raise ConnectionRefusedError("the certificate is not the one that the store names")

    def _shake_hands(self, sock: socket.socket) -> None:
        """Shake hands within the timeout of the socket, however slowly the other side sends; uses up the timeout."""
        seconds = sock.gettimeout()
        until = None if seconds is None else monotonic() + seconds
        while True:
            try:
                self._tls.do_handshake()
                is_done = True
            except ssl.SSLWantReadError:
                is_done = False
            sock.sendall(self._outgoing.read())
            if is_done:
                return
            if until is not None:
                sock.settimeout(max(_LEAST_SECONDS, until - monotonic()))
            data = sock.recv(_READ)
            if until is not None and monotonic() > until:
                raise TimeoutError("the other side has not answered in time")
            if not data:
                raise ConnectionResetError("the other side has ended the connection")
            self._incoming.write(data)

    def seal(self, data: bytes) -> bytes:
        """Encrypt bytes that are sent after all that was sealed before; by one thread at a time."""
        rest = memoryview(data)
        with self._lock:
            while rest:
                rest = rest[self._tls.write(rest) :]
            return self._outgoing.read()

    def open(self, data: bytes) -> bytes:
        """Decrypt what was received; returns what is complete.

        Raises:
            OSError: It was altered, or the other side has ended the connection.
        """
        opened = bytearray()
        with self._lock:
            self._incoming.write(data)
            try:
                while piece := self._tls.read(_READ):
                    opened += piece
            except ssl.SSLWantReadError:
                return bytes(opened)
        raise ConnectionResetError("the other side has ended the connection")
