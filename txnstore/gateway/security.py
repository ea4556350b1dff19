"""Authentication of clients: SASL PLAIN and SCRAM over salted hashes, tokens, and certificates; TLS.

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
from collections.abc import Callable, Mapping
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from kio.schema.errors import ErrorCode
from scramp import ScramException, ScramMechanism
from scramp.core import ServerError

from txnstore.core.authorization.changes import check_principal
from txnstore.errors import InvalidConfigError
from txnstore.gateway.apis import Api
from txnstore.gateway.certificates import CertificateRules
from txnstore.gateway.logs import limited_logger
from txnstore.gateway.server import Client, Fields, Handler
from txnstore.gateway.tokens import TokenError, Tokens
from txnstore.gateway.watched import Watched
from txnstore.gateway.wire import Request

_LOG = limited_logger(__name__)

#: The hash function of each mechanism of SCRAM.
_HASHES = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}
_PLAIN = "PLAIN"
_CREDENTIAL_LINE = re.compile(r"(SCRAM-SHA-(?:256|512))\$(\d+):([A-Za-z0-9+/=]+)\$([A-Za-z0-9+/=]+):([A-Za-z0-9+/=]+)")
#: Kafka's ``iterations`` of new credentials, as RFC 7677 asks for at least.
_ITERATIONS = 4096
#: Threads that check passwords and tokens, which takes milliseconds.
_CHECKS = 2
#: Seconds before a failed authentication is answered (Kafka: ``connection.failed.authentication.delay.ms``).
_FAILURE_DELAY = 0.1
#: The longest message of an authentication, in bytes: with a token; with a user and a password or a proof, which are
#: prepared (RFC 4013) character by character.
_MAX_TOKEN_MESSAGE, _MAX_MESSAGE = 64 << 10, 4 << 10
#: The names of mechanisms (RFC 4422), and how much of a user's name a line of the log has.
_MECHANISM_NAME, _MAX_LOGGED_CHARS = re.compile("[A-Z0-9_-]{1,20}"), 100
_MALFORMED = "its message is malformed"
_BEARER = "OAUTHBEARER"
#: The start of the first message of OAUTHBEARER (RFC 7628), with the user to act for; a field of it, such as the token;
#: and the answer to a token that is refused, after which the client sends one message more.
_BEARER_START, _BEARER_FIELD = re.compile(rb"n,(?:a=([^,]*))?,", re.IGNORECASE), re.compile(rb"([A-Za-z]+)=([^\x01]*)")
_INVALID_TOKEN = b'{"status":"invalid_token"}'
#: The parts of files for TLS.
_CERTIFICATE, _KEY = "certificate", "private key"


class _LoginError(Exception):
    """Authentication failed. The reason is logged and never sent; passwords are not logged.

    Args:
        reason: The reason for the log; empty: it is logged already.
        user: The user that the client gives; empty if it gives none.
        challenge: What the client gets before the failure; empty: the failure at once.
    """

    def __init__(self, reason: str, user: str = "", challenge: bytes = b"") -> None:
        super().__init__(reason)
        self.reason, self.user, self.challenge = reason, user, challenge


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


def watched_users(path: Path) -> Watched[Users]:
    """Read a file of users, now and after each change; raises as :func:`read_users`."""
    return Watched("users", [path], lambda: read_users(path))


def tls_context(certificate: Path, key: Path, client_ca: Path | None = None) -> ssl.SSLContext:
    """A context for a listener.

    Args:
        client_ca: The authorities whose certificates clients may have; None: they are asked for none.

    Raises:
        InvalidConfigError: A file cannot be read, or the key is not that of the certificate.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(certificate, key, partial(_refuse_encrypted, key))  # Else OpenSSL asks the terminal.
    except (OSError, ssl.SSLError) as error:
        msg = f"TLS cannot use {certificate} with {key}: {_tls_fault(certificate, key) or error}"
        raise InvalidConfigError(msg) from error
    if client_ca is not None:
        try:
            context.load_verify_locations(client_ca)
        except (OSError, ssl.SSLError) as error:
            msg = f"the authorities of clients in {client_ca} cannot be read: {error.strerror or error}"
            raise InvalidConfigError(msg) from error
        # A resumed session is not verified again, so it would outlast its certificate, and an authority that was taken
        # out. Sessions of TLS 1.2 are resumed without tickets, too, which cannot be turned off.
        context.minimum_version, context.num_tickets = ssl.TLSVersion.TLSv1_3, 0
        # Not CERT_REQUIRED: peers ask whether this gateway lives, and a client without one gets a reason in the log.
        context.verify_mode = ssl.CERT_OPTIONAL
    return context


def _refuse_encrypted(key: Path) -> str:
    """Raise the error of a private key whose password OpenSSL asks for."""
    msg = f"TLS cannot use {key}: it is encrypted, and a gateway that reads it again cannot ask for its password; "
    raise InvalidConfigError(f"{msg}`openssl pkey -in {key} -out NEW` writes it without one")


def watched_tls(certificate: Path, key: Path, client_ca: Path | None = None) -> Watched[ssl.SSLContext]:
    """Make a context for a listener, now and after each change of a file; raises as :func:`tls_context`."""
    paths = [certificate, key, *([] if client_ca is None else [client_ca])]
    return Watched("certificates", paths, lambda: tls_context(certificate, key, client_ca))


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
        users: The credentials of users; None: there are none.
        tls: The context that encrypts connections; None: they are not encrypted.
        plain: Offer passwords and tokens without TLS, too: only where no other machine can listen.
        certificates: Makes principals of the certificates of clients; None: they have none.
        tokens: Verifies tokens; None: clients have none.
    """

    users: Watched[Users] | None = None
    tls: Watched[ssl.SSLContext] | None = None
    plain: bool = False
    certificates: CertificateRules | None = None
    tokens: Tokens | None = None

    @property
    def has_sasl(self) -> bool:
        """Whether clients authenticate by SASL."""
        return self.users is not None or self.tokens is not None

    @property
    def authenticates(self) -> bool:
        """Whether clients have to authenticate."""
        return self.has_sasl or self.certificates is not None

    @property
    def watched(self) -> tuple[Watched[Any], ...]:
        """The files that are read again when they change."""
        files = (self.users, self.tls, self.tokens.file if self.tokens is not None else None)
        return tuple(each for each in files if each is not None)

    def handlers(self) -> dict[Api, Handler]:
        """The handlers of authentication, if there is one."""
        if not self.has_sasl:
            return dict.fromkeys((Api.SASL_HANDSHAKE, Api.SASL_AUTHENTICATE), _refuse_without_users)
        users = self.users
        return Sasl(
            (lambda: users.value) if users is not None else dict, self.tokens, plain=self.plain or self.tls is not None
        ).handlers()

    def listener_context(self) -> ssl.SSLContext | None:
        """The context of a listener, whose new connections have the newest certificate; None: it has no TLS."""
        tls = self.tls
        if tls is None:
            return None
        listener = tls.value

        def take_newest(connection: ssl.SSLObject | ssl.SSLSocket, _name: str | None, _context: ssl.SSLContext) -> None:
            connection.context = tls.value

        listener.sni_callback = take_newest  # OpenSSL calls it also for clients that name no server.
        return listener

    def principal_of(self, transport: asyncio.BaseTransport) -> str | None:
        """The principal of a new connection by its certificate; None: it must authenticate by SASL, or has none.

        Raises:
            InvalidConfigError: No rule makes a principal of its certificate.
        """
        if self.certificates is None or self.has_sasl:
            return None
        certificate = transport.get_extra_info("ssl_object").getpeercert()
        return self.certificates.principal(certificate) if certificate else None


async def _refuse_without_users(request: Request, client: Client) -> Fields:  # noqa: ARG001 - A handler takes both.
    """Tell a client that authenticates that this listener has no users, as a broker does."""
    return _failure_fields(ErrorCode.illegal_sasl_state, "this listener has no users: connect without SASL")


#: A listener without authentication.
OPEN = Security()


class _Exchange(Protocol):
    """The messages of a mechanism with one client."""

    mechanism: str

    async def answer(self, data: bytes) -> tuple[str | None, bytes]:
        """Answer a message of the client; with its last one, return its user too.

        Raises:
            _LoginError: It is refused.
        """
        ...


class Sasl:
    """Authenticates clients.

    Args:
        users: Returns the credentials of the users.
        tokens: Verifies tokens; None: they are not accepted.
        plain: Offer mechanisms that send secrets, because connections are encrypted.
    """

    def __init__(self, users: Callable[[], Users], tokens: Tokens | None = None, *, plain: bool) -> None:
        self._users, self._tokens, self._plain = users, tokens, plain
        #: Computes hashes and verifies signatures; and does so for tokens whose keys must be fetched, one after the
        #: other. Pools of their own: an issuer that hangs must stop neither other logins nor the rest of the gateway.
        self._checks = ThreadPoolExecutor(_CHECKS, thread_name_prefix="gateway logins")
        self._fetches = ThreadPoolExecutor(1, thread_name_prefix="gateway keys of tokens")

    @property
    def mechanisms(self) -> list[str]:
        """The mechanisms that are offered now."""
        users = self._users()
        scram = sorted({mechanism for credentials in users.values() for mechanism in credentials})
        secret = [_PLAIN] * bool(users) + [_BEARER] * (self._tokens is not None)
        return (secret if self._plain else []) + scram

    def handlers(self) -> dict[Api, Handler]:
        """The handlers of its APIs."""
        return {Api.SASL_HANDSHAKE: self.handshake, Api.SASL_AUTHENTICATE: self.authenticate}

    async def handshake(self, request: Request, client: Client) -> Fields:
        """Choose a mechanism."""
        mechanism, mechanisms = request.body.mechanism, self.mechanisms
        if request.version == 0:
            # Its authentication would be frames without a header, which no client of this decade sends.
            return {"error_code": ErrorCode.unsupported_version, "mechanisms": mechanisms}
        if mechanism not in mechanisms:
            name = mechanism if _MECHANISM_NAME.fullmatch(mechanism) else "unknown"
            _log_failure(client, name, _LoginError(f"the mechanism is not one of {', '.join(mechanisms)}"))
            return {"error_code": ErrorCode.unsupported_sasl_mechanism, "mechanisms": mechanisms}
        client.sasl = self._exchange(mechanism)
        return {"error_code": ErrorCode.none, "mechanisms": mechanisms}

    def _exchange(self, mechanism: str) -> _Exchange:
        if mechanism == _BEARER and self._tokens is not None:
            return _Bearer(self._tokens, self._checks, self._fetches)
        return _Plain(self._users(), self._checks) if mechanism == _PLAIN else _Scram(self._users(), mechanism)

    async def authenticate(self, request: Request, client: Client) -> Fields:
        """Handle a message of the mechanism; after the last one the client has its principal."""
        data: bytes = request.body.auth_bytes
        exchange: _Exchange | None = client.sasl
        is_token = exchange is not None and exchange.mechanism == _BEARER
        if exchange is None or len(data) > (_MAX_TOKEN_MESSAGE if is_token else _MAX_MESSAGE):
            return _failure_fields(
                ErrorCode.illegal_sasl_state, "SaslHandshake must come first, and messages are small"
            )
        try:
            user, answer = await exchange.answer(data)
            if user is not None and client.principal not in {None, f"User:{user}"}:  # KIP-368
                raise _LoginError(f"a login changes no principal: the connection is that of {client.principal}", user)
        except _LoginError as error:
            client.authenticated = False  # After a second login that fails a broker closes the connection.
            if error.reason:
                _log_failure(client, exchange.mechanism, error)
            if error.challenge:
                client.sasl = _Refused(exchange.mechanism)
                return {"error_code": ErrorCode.none, "error_message": None, "auth_bytes": error.challenge}
            client.sasl = None
            await asyncio.sleep(_FAILURE_DELAY)
            return _failure_fields(ErrorCode.sasl_authentication_failed, "Authentication failed: invalid credentials")
        if user is not None:
            client.principal, client.sasl, client.authenticated = f"User:{user}", None, True
        return {"error_code": ErrorCode.none, "error_message": None, "auth_bytes": answer, "session_lifetime": 0}


class _Plain:
    """PLAIN (RFC 4616), with one client."""

    mechanism = _PLAIN

    def __init__(self, users: Users, checks: Executor) -> None:
        self._users, self._checks = users, checks

    async def answer(self, data: bytes) -> tuple[str | None, bytes]:
        """Check the message, and return its user."""
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
        if not await asyncio.get_running_loop().run_in_executor(
            self._checks, check
        ):  # It takes milliseconds, on purpose.
            raise _LoginError("wrong password", user)
        return user, b""


class _Bearer:
    """OAUTHBEARER (RFC 7628), with one client."""

    mechanism = _BEARER

    def __init__(self, tokens: Tokens, checks: Executor, fetches: Executor) -> None:
        self._tokens, self._checks, self._fetches = tokens, checks, fetches

    async def answer(self, data: bytes) -> tuple[str | None, bytes]:
        """Verify the token, and return its user."""
        authorized_user, token = _bearer_parts(data)
        threads = self._fetches if self._tokens.fetches_for(token) else self._checks
        try:
            principal = await asyncio.get_running_loop().run_in_executor(threads, self._tokens.principal, token)
        except TokenError as error:
            raise _LoginError(str(error), challenge=_INVALID_TOKEN) from None
        user = principal.removeprefix("User:")
        if authorized_user not in {"", user}:
            raise _LoginError("it asks for the rights of another user", user)
        return user, b""


def _bearer_parts(data: bytes) -> tuple[str, str]:
    """Return the user to act for and the token. In linear time: a client that has not authenticated sends it."""
    start, *parts = data.split(b"\x01")
    begin, fields = _BEARER_START.fullmatch(start), [_BEARER_FIELD.fullmatch(part) for part in parts[:-2]]
    named = {field[1].lower(): field[2] for field in reversed(fields) if field is not None}  # The first of a name.
    scheme, _, token = named.get(b"auth", b"").partition(b" ")
    if begin is None or None in fields or parts[-2:] != [b"", b""] or scheme.lower() != b"bearer":
        raise _LoginError(_MALFORMED)
    return (begin[1] or b"").decode("utf-8", "replace"), token.lstrip(b" ").decode("utf-8", "replace")


class _Refused:
    """The end of an exchange whose client was told why it is refused."""

    def __init__(self, mechanism: str) -> None:
        self.mechanism = mechanism

    async def answer(self, _data: bytes) -> tuple[str | None, bytes]:
        """Refuse it."""
        raise _LoginError("")


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

    async def answer(self, data: bytes) -> tuple[str | None, bytes]:
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
