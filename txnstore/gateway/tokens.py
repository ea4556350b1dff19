"""Tokens of OAUTHBEARER (KIP-255, KIP-768): JSON Web Tokens, verified by the keys of their issuer."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from http.client import HTTPException, HTTPMessage
from pathlib import Path
from typing import IO, Any
from urllib.error import URLError
from urllib.parse import urlsplit
from urllib.request import HTTPRedirectHandler, Request, build_opener, url2pathname

from txnstore.core.authorization.changes import check_principal
from txnstore.errors import InvalidConfigError
from txnstore.gateway.watched import Watched
from txnstore.runtime import Runtime
from txnstore.threads import load

_LOG = logging.getLogger(__name__)

#: The signatures that are accepted: of keys of which the gateway has the public part. With a shared secret, a
#: process that verifies tokens could make them.
_ALGORITHMS = (
    "RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA",
)  # fmt: skip
_NO_TIMES = dict.fromkeys(("verify_exp", "verify_nbf", "verify_iat"), False)
#: Seconds after which keys are fetched again (Kafka: ``sasl.oauthbearer.jwks.endpoint.refresh.ms``), the least between
#: two fetches for tokens of an unknown key, and those that one may take.
_REFRESH, _PAUSE, _TIMEOUT = 3_600.0, 10.0, 10.0
#: The most bytes of a document of keys.
_MAX_BYTES = 1 << 20
#: Hosts from which keys may come without TLS.
_LOCAL = frozenset({"localhost", "127.0.0.1", "::1"})
_PROPERTY = "sasl.oauthbearer"

#: The keys by their ids; None: one that has none.
Keys = Mapping[str | None, Any]


class TokenError(Exception):
    """A token is refused. The reason is for the log, and has no part of the token."""


@dataclass(frozen=True, slots=True)
class TokenSettings:
    """What is asked of tokens.

    Attributes:
        url: Where the keys are: ``https://…`` or ``file:///…``.
        issuer: Who must have made a token.
        audiences: For whom it must be made: one of these.
        claim: The claim that names the principal.
        skew: Seconds by which clocks may differ.
    """

    url: str
    issuer: str
    audiences: tuple[str, ...]
    claim: str = "sub"
    skew: int = 30


class Tokens:
    """Verifies tokens. Thread-safe.

    Args:
        runtime: Its clocks tell whether a token has expired, and how old fetched keys are.

    Raises:
        InvalidConfigError: A setting is missing, or the keys cannot be read.
    """

    def __init__(self, settings: TokenSettings, runtime: Runtime) -> None:
        for name, value in (("expected.issuer", settings.issuer), ("expected.audience", settings.audiences)):
            if not value:
                msg = f"{_PROPERTY}.{name} is missing: tokens that were made for others would be accepted"
                raise InvalidConfigError(msg)
        if not settings.claim:
            raise InvalidConfigError(f"{_PROPERTY}.sub.claim.name is empty")
        self._settings, self._runtime = settings, runtime
        #: The file of the keys; None: they are fetched.
        self.file: Watched[Keys] | None = None
        parts = urlsplit(settings.url)
        if parts.scheme == "file":
            path = Path(url2pathname(parts.path))
            self.file = Watched("the keys of tokens", [path], lambda: _read_file(path))
        elif parts.scheme == "https" or _is_local(settings.url):
            self._fetched = _FetchedKeys(settings.url, runtime)
        else:
            msg = f"{_PROPERTY}.jwks.endpoint.url must be https://… or file:///…, not {settings.url!r}"
            raise InvalidConfigError(msg)

    def fetches_for(self, token: str) -> bool:
        """Whether :meth:`principal` fetches keys for this token, or waits for another fetch, as far as is known now."""
        import jwt

        if self.file is not None:
            return False
        try:
            key_id = jwt.get_unverified_header(token).get("kid")
        except (jwt.PyJWTError, ValueError, RecursionError):
            return False
        return self._fetched.is_due(key_id)

    def principal(self, token: str) -> str:
        """Return the principal of a token. It may fetch keys: called in a thread.

        Raises:
            TokenError: The token is not valid.
        """
        import jwt

        settings = self._settings
        # The times are checked below, by the clock of the runtime.
        options: Any = {"require": ["exp", "iss", "aud", settings.claim], **_NO_TIMES}
        try:
            key = self._key(jwt.get_unverified_header(token).get("kid"))
            claims = jwt.decode(
                token,
                key.key,
                algorithms=_ALGORITHMS,
                audience=settings.audiences,
                issuer=settings.issuer,
                options=options,
            )
        except jwt.InvalidAudienceError:
            raise TokenError("the token is for another audience") from None
        except jwt.InvalidIssuerError:
            raise TokenError("the token is of another issuer") from None
        except jwt.MissingRequiredClaimError as error:
            raise TokenError(f"the token has no claim {error.claim}") from None
        except (jwt.PyJWTError, TypeError, ValueError, RecursionError) as error:
            raise TokenError(f"the token is not valid: {error}") from None
        self._check_times(claims)
        name = claims[settings.claim]
        try:
            check_principal(f"User:{name}" if isinstance(name, str) else None)
        except InvalidConfigError:
            raise TokenError(f"the claim {settings.claim} of the token is no name of a user") from None
        return f"User:{name}"

    def _check_times(self, claims: Mapping[str, Any]) -> None:
        """Check that a token holds now, as far as clocks may differ."""
        now, skew = self._runtime.clock() / 1000, self._settings.skew
        expires_at, begins_at = claims["exp"], claims.get("nbf", 0)
        if not all(isinstance(moment, int | float) for moment in (expires_at, begins_at)):
            raise TokenError("the times of the token are no numbers")
        if not expires_at > now - skew:  # Also if it is no number that can be compared.
            raise TokenError("the token has expired")
        if not begins_at <= now + skew:
            raise TokenError("the token does not hold yet")

    def _key(self, key_id: str | None) -> Any:
        """Return the key of an id; the only one for a token that names none."""
        keys = self.file.value if self.file is not None else self._fetched.with_key(key_id)
        key = next(iter(keys.values())) if key_id is None and len(keys) == 1 else keys.get(key_id)
        if key is None:
            raise TokenError("the token is signed by a key that the issuer does not list")
        return key


class _FetchedKeys:
    """The keys of a URL, fetched again after an hour, and for a key that is not among them.

    Raises:
        InvalidConfigError: They cannot be fetched.
    """

    def __init__(self, url: str, runtime: Runtime) -> None:
        self._url, self._runtime = url, runtime
        self._lock = threading.Lock()
        self._fetched_at = runtime.monotonic()
        self._keys = self._fetch()

    def with_key(self, key_id: str | None) -> Keys:
        """Return the keys, fetched again if they are old, or lack this one."""
        if not self.is_due(key_id):  # Without the lock: a token of a known key does not wait for a fetch.
            return self._keys
        with self._lock:
            if self.is_due(key_id):
                try:
                    self._keys = self._fetch()
                except InvalidConfigError as error:
                    _LOG.error(
                        "keys of tokens cannot be fetched, the last ones hold: %s", error, extra={"error": str(error)}
                    )
                self._fetched_at = self._runtime.monotonic()  # Now: a fetch may take longer than the pause.
            return self._keys

    def is_due(self, key_id: str | None) -> bool:
        """Whether the keys are old, or lack this one and were not fetched just now."""
        is_missing = key_id is not None and key_id not in self._keys
        return self._runtime.monotonic() - self._fetched_at >= (_PAUSE if is_missing else _REFRESH) * 1000

    def _fetch(self) -> Keys:
        try:
            with build_opener(_SafeRedirects).open(self._url, timeout=_TIMEOUT) as response:
                data = response.read(_MAX_BYTES + 1)
        except (OSError, ValueError, HTTPException) as error:
            raise InvalidConfigError(f"the keys of tokens at {self._url} cannot be read: {error}") from error
        return _parse(data, self._url)


class _SafeRedirects(HTTPRedirectHandler):
    """Follows redirections to what is encrypted; those of this machine to this machine, too."""

    def redirect_request(
        self, req: Request, fp: IO[bytes], code: int, msg: str, headers: HTTPMessage, newurl: str
    ) -> Request | None:
        """Return the next request, or refuse it."""
        if urlsplit(newurl).scheme != "https" and not (_is_local(req.full_url) and _is_local(newurl)):
            raise URLError(f"it redirects to {newurl}, which is not encrypted: name the URL that has the keys")
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def _is_local(url: str) -> bool:
    """Whether a URL without encryption is of this machine."""
    parts = urlsplit(url)
    return parts.scheme == "http" and parts.hostname in _LOCAL


def _read_file(path: Path) -> Keys:
    try:
        data = path.read_bytes()
    except OSError as error:
        raise InvalidConfigError(f"the keys of tokens in {path} cannot be read: {error.strerror}") from error
    return _parse(data, str(path))


def _verifies(key: Mapping[str, Any]) -> bool:
    """Whether a key is for signatures (RFC 7517, 4.2 and 4.3): one that does not say what it is for, is."""
    return key.get("use", "sig") == "sig" and "verify" in key.get("key_ops", ["verify"])


def _parse(data: bytes, source: str) -> Keys:
    """Parse a JSON Web Key Set; keys that are secrets, for encryption, or of kinds that are not known, are left out."""
    try:
        load("jwt")
        import jwt
    except ModuleNotFoundError as error:
        raise InvalidConfigError("tokens need PyJWT, which is not installed: install txnstore[oauth]") from error
    try:
        document = json.loads(data) if len(data) <= _MAX_BYTES else None
        listed = document["keys"] if isinstance(document, dict) else None
        if not isinstance(listed, list) or not all(isinstance(key, dict) for key in listed):
            raise ValueError("it is no JSON object with a list of keys")
        public_keys = [key for key in listed if key.get("kty") != "oct" and _verifies(key)]
        keys = {key.key_id: key for key in jwt.PyJWKSet.from_dict({"keys": public_keys}).keys}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, jwt.PyJWTError) as error:
        reason = f"it has no {error}" if isinstance(error, KeyError) else error
        raise InvalidConfigError(f"{source} is no JSON Web Key Set with public keys: {reason}") from None
    return keys
