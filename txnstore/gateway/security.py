"""Authentication of clients: SASL PLAIN and SCRAM over salted hashes, TLS.

A file of users has a line for each user and mechanism, in the form of RFC 5803, which no password can be read from::

    [users]
    alice = "SCRAM-SHA-256$4096:c2FsdA==$StoredKey:ServerKey"
    bob = ["SCRAM-SHA-256$…", "SCRAM-SHA-512$…"]

PLAIN sends the password itself, so it is offered in TLS only; it is checked against the same hashes.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import re
import ssl
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from kio.schema.errors import ErrorCode
from scramp import ScramException, ScramMechanism
from scramp.core import ServerError

from txnstore.core.authorization.changes import check_principal
from txnstore.errors import InvalidConfigError
from txnstore.gateway.apis import Api
from txnstore.gateway.logs import limited_logger
from txnstore.gateway.server import Client, Fields, Handler
from txnstore.gateway.wire import Request

_LOG = limited_logger(__name__)

#: The hash function of each mechanism of SCRAM.
_HASHES = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}
_PLAIN = "PLAIN"
_CREDENTIAL_LINE = re.compile(r"(SCRAM-SHA-(?:256|512))\$(\d+):([A-Za-z0-9+/=]+)\$([A-Za-z0-9+/=]+):([A-Za-z0-9+/=]+)")
#: Kafka's ``iterations`` of new credentials, as RFC 7677 asks for at least.
_ITERATIONS = 4096
#: Seconds before a failed authentication is answered (Kafka: ``connection.failed.authentication.delay.ms``).
_FAILURE_DELAY = 0.1
#: The longest message of an authentication, in bytes.
_MAX_MESSAGE = 64 << 10
#: The names of mechanisms (RFC 4422), and how much of a user's name a line of the log has.
_MECHANISM_NAME, _MAX_LOGGED_CHARS = re.compile("[A-Z0-9_-]{1,20}"), 100
_MALFORMED = "its message is malformed"
#: The parts of files for TLS.
_CERTIFICATE, _KEY = "certificate", "private key"


class _LoginError(Exception):
    """Authentication failed. The reason is logged and never sent; passwords are not logged.

    Args:
        reason: The reason for the log.
        user: The user that the client gives; empty if it gives none.
    """

    def __init__(self, reason: str, user: str = "") -> None:
        super().__init__(reason)
        self.reason, self.user = reason, user


@dataclass(frozen=True, slots=True)
class Credential:
    """The salted hash of a password (RFC 5802)."""

    mechanism: str
    iterations: int
    salt: bytes
    stored_key: bytes
    server_key: bytes

    def matches(self, password: str) -> bool:
        """Whether this is the hash of a password."""
        try:
            _, stored_key, _, _ = ScramMechanism(self.mechanism).make_auth_info(
                password, iteration_count=self.iterations, salt=self.salt
            )
        except ScramException:  # Characters that SASLprep forbids.
            return False
        return hmac.compare_digest(stored_key, self.stored_key)


#: The credentials of each user, by mechanism.
Users = Mapping[str, Mapping[str, Credential]]


def credential_line(password: str, mechanism: str = "SCRAM-SHA-256") -> str:
    """The line for a password in a file of users, with a new salt.

    Raises:
        InvalidConfigError: No client can use this password.
    """
    if not password:
        raise InvalidConfigError("the password is empty")
    scram = ScramMechanism(mechanism)
    try:
        salt, stored_key, server_key, iterations = scram.make_auth_info(password, iteration_count=_ITERATIONS)
    except ScramException as error:
        raise InvalidConfigError("the password has characters that SASLprep (RFC 4013) does not allow") from error
    salt_text, stored_key_text, server_key_text = (
        base64.b64encode(value).decode() for value in (salt, stored_key, server_key)
    )
    return f"{mechanism}${iterations}:{salt_text}${stored_key_text}:{server_key_text}"


def read_users(path: Path) -> Users:
    """Read a file of users.

    Raises:
        InvalidConfigError: The file cannot be read, or a line is malformed; the message has no hash.
    """
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InvalidConfigError(f"the users of {path} cannot be read: {error}") from error
    table = document.get("users")
    if not isinstance(table, dict) or not table or set(document) != {"users"}:
        raise InvalidConfigError(f"{path} must have one table [users], with a line for each user")
    users: dict[str, dict[str, Credential]] = {}
    for name, lines in table.items():
        check_principal(f"User:{name}")
        for line in lines if isinstance(lines, list) else [lines]:
            credential = _parse_credential(path, name, line)
            users.setdefault(name, {})[credential.mechanism] = credential
    return users


def _parse_credential(path: Path, name: str, line: object) -> Credential:
    """Parse the hash of a password of the file of users."""
    match = _CREDENTIAL_LINE.fullmatch(line) if isinstance(line, str) else None
    try:
        if match is None:
            raise ValueError("it has another form")
        mechanism, iterations = match[1], int(match[2])
        salt, stored_key, server_key = (base64.b64decode(text, validate=True) for text in match.groups()[2:])
        size = hashlib.new(_HASHES[mechanism]).digest_size
        if not (len(stored_key) == len(server_key) == size and iterations >= _ITERATIONS):
            raise ValueError(f"its keys have another length, or it has less than {_ITERATIONS} iterations")
    except ValueError as error:
        msg = f"{path}: the line of {name!r} is no hash of a password: {error}; `txnstore gateway --hash-password`"
        raise InvalidConfigError(f"{msg} makes one") from None
    return Credential(mechanism, iterations, salt, stored_key, server_key)


def tls_context(certificate: Path, key: Path) -> ssl.SSLContext:
    """A context for a listener.

    Raises:
        InvalidConfigError: A file cannot be read, or the key is not that of the certificate.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(certificate, key)
    except (OSError, ssl.SSLError) as error:
        msg = f"TLS cannot use {certificate} with {key}: {_tls_fault(certificate, key) or error}"
        raise InvalidConfigError(msg) from error
    return context


def _tls_fault(certificate: Path, key: Path) -> str:
    """Say what is wrong with files for which OpenSSL reports only ``PEM lib``; empty if it is something else."""
    try:
        parts_of_certificate, parts_of_key = _pem_parts(certificate), _pem_parts(key)
    except OSError as error:
        return f"{error.filename} cannot be read: {error.strerror}"
    if parts_of_certificate == {_KEY} and parts_of_key == {_CERTIFICATE}:
        return "the former is a key and the latter a certificate: they are swapped"
    for path, parts, wanted_part in ((certificate, parts_of_certificate, _CERTIFICATE), (key, parts_of_key, _KEY)):
        if wanted_part not in parts:
            return f"{path} has no {wanted_part} in PEM" + "".join(f", but a {part}" for part in sorted(parts))
    return ""


def _pem_parts(path: Path) -> set[str]:
    """The kinds of parts in a PEM file."""
    kinds = re.findall(rb"-----BEGIN (?:[A-Z0-9]+ )*(CERTIFICATE|PRIVATE KEY)-----", path.read_bytes())
    return {_CERTIFICATE if kind == b"CERTIFICATE" else _KEY for kind in kinds}


@dataclass(frozen=True, slots=True)
class Security:
    """The authentication of clients and the encryption of a listener.

    Attributes:
        users: The credentials of users; None: clients connect without authentication.
        tls: The context that encrypts connections; None: they are not encrypted.
        plain: Offer PLAIN without TLS, too: only where no other machine can listen.
    """

    users: Users | None = None
    tls: ssl.SSLContext | None = None
    plain: bool = False

    def handlers(self) -> dict[Api, Handler]:
        """The handlers of authentication, if there is one."""
        if self.users is None:
            return dict.fromkeys((Api.SASL_HANDSHAKE, Api.SASL_AUTHENTICATE), _refuse_without_users)
        return Sasl(self.users, plain=self.plain or self.tls is not None).handlers()


async def _refuse_without_users(request: Request, client: Client) -> Fields:  # noqa: ARG001 - A handler takes both.
    """Tell a client that authenticates that this listener has no users, as a broker does."""
    return _failure_fields(ErrorCode.illegal_sasl_state, "this listener has no users: connect without SASL")


#: A listener without authentication.
OPEN = Security()


class Sasl:
    """Authenticates clients.

    Args:
        users: The credentials of the users.
        plain: Offer PLAIN, because connections are encrypted.
    """

    def __init__(self, users: Users, *, plain: bool) -> None:
        self._users = users
        scram = sorted({mechanism for credentials in users.values() for mechanism in credentials})
        self.mechanisms = ([_PLAIN] if plain else []) + scram

    def handlers(self) -> dict[Api, Handler]:
        """The handlers of its APIs."""
        return {Api.SASL_HANDSHAKE: self.handshake, Api.SASL_AUTHENTICATE: self.authenticate}

    async def handshake(self, request: Request, client: Client) -> Fields:
        """Choose a mechanism."""
        mechanism = request.body.mechanism
        if request.version == 0:
            # Its authentication would be frames without a header, which no client of this decade sends.
            return {"error_code": ErrorCode.unsupported_version, "mechanisms": self.mechanisms}
        if mechanism not in self.mechanisms:
            name = mechanism if _MECHANISM_NAME.fullmatch(mechanism) else "unknown"
            _log_failure(client, name, _LoginError(f"the mechanism is not one of {', '.join(self.mechanisms)}"))
            return {"error_code": ErrorCode.unsupported_sasl_mechanism, "mechanisms": self.mechanisms}
        client.sasl = mechanism if mechanism == _PLAIN else self._scram(mechanism)
        return {"error_code": ErrorCode.none, "mechanisms": self.mechanisms}

    def _scram(self, mechanism: str) -> Any:
        return _Scram(self._users, mechanism)

    async def authenticate(self, request: Request, client: Client) -> Fields:
        """Handle a message of the mechanism; after the last one the client has its principal."""
        data: bytes = request.body.auth_bytes
        if client.sasl is None or len(data) > _MAX_MESSAGE:
            return _failure_fields(
                ErrorCode.illegal_sasl_state, "SaslHandshake must come first, and messages are small"
            )
        try:
            if client.sasl == _PLAIN:
                user, answer = await self._check_plain(data), b""
            else:
                user, answer = client.sasl.answer(data)
        except _LoginError as error:
            _log_failure(client, _PLAIN if client.sasl == _PLAIN else client.sasl.mechanism, error)
            client.sasl = None
            await asyncio.sleep(_FAILURE_DELAY)
            return _failure_fields(ErrorCode.sasl_authentication_failed, "Authentication failed: invalid credentials")
        if user is not None:
            client.principal, client.sasl, client.authenticated = f"User:{user}", None, True
        return {"error_code": ErrorCode.none, "error_message": None, "auth_bytes": answer, "session_lifetime": 0}

    async def _check_plain(self, data: bytes) -> str:
        """Check a message of PLAIN (RFC 4616), and return its user."""
        try:
            authorized_user, user, password = data.decode("utf-8").split("\0")
        except ValueError:
            raise _LoginError(_MALFORMED) from None
        if authorized_user not in {"", user}:
            raise _LoginError("it asks for the rights of another user", user)
        credentials = list(self._users.get(user, {}).values())
        if not credentials:
            raise _LoginError("there is no such user", user)
        check = partial(credentials[0].matches, password)
        if not await asyncio.get_running_loop().run_in_executor(None, check):  # It takes milliseconds, on purpose.
            raise _LoginError("wrong password", user)
        return user


class _Scram:
    """The exchange of SCRAM with one client."""

    def __init__(self, users: Users, mechanism: str) -> None:
        self._users, self.mechanism = users, mechanism
        self._user, self._reason = "", _MALFORMED
        self._server: Any = ScramMechanism(mechanism).make_server(self._look_up)

    def _look_up(self, user: str) -> tuple[bytes, bytes, bytes, int] | None:
        """Return the salt, keys and iterations of a user for this mechanism; None, and note why, if it has none."""
        self._user = user
        credential = self._users.get(user, {}).get(self.mechanism)
        if credential is None:
            self._reason = "the user has no hash of this mechanism" if user in self._users else "there is no such user"
            return None
        return credential.salt, credential.stored_key, credential.server_key, credential.iterations

    def answer(self, data: bytes) -> tuple[str | None, bytes]:
        """Answer a message of the client; with its last one, return its user too."""
        server = self._server
        try:
            message = data.decode("utf-8")
            if server.stage is None:
                server.set_client_first(message)
                return None, server.get_server_first().encode()
            server.set_client_final(message)
        except (KeyError, ValueError, ScramException) as error:
            is_wrong = getattr(error, "server_error", None) is ServerError.INVALID_PROOF
            raise _LoginError("wrong password" if is_wrong else self._reason, self._user) from None
        return self._user, server.get_server_final().encode()


def _log_failure(client: Client, mechanism: str, error: _LoginError) -> None:
    """Log a failure; ``user`` is the last field, so that a user's name cannot imitate other fields."""
    extra = {
        "client": client.host,
        "mechanism": mechanism,
        "reason": error.reason,
        "user": error.user[:_MAX_LOGGED_CHARS],
    }
    _LOG.warning("a client failed to authenticate", extra=extra)


def _failure_fields(code: ErrorCode, message: str) -> Fields:
    return {"error_code": code, "error_message": message, "auth_bytes": b""}
