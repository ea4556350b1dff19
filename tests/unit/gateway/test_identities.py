"""What makes principals of certificates and tokens, and what it refuses."""

from __future__ import annotations

import asyncio
import json
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa

from tests.helpers.certificates import self_signed
from txnstore.errors import InvalidConfigError
from txnstore.gateway.apis import Api
from txnstore.gateway.certificates import CertificateRules, subject_name
from txnstore.gateway.security import Sasl, _bearer_parts, _LoginError, credential_line, watched_users
from txnstore.gateway.server import Client
from txnstore.gateway.tokens import TokenError, Tokens, TokenSettings
from txnstore.gateway.wire import Request
from txnstore.runtime import Runtime

ISSUER = "https://issuer.example"
#: The time of the tests, in seconds since the epoch.
NOW = 2_000_000_000
SUBJECT = ((("countryName", "DE"),), (("organizationName", "Example, Inc."),), (("commonName", "alice"),))


# Certificates ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("subject", "name"),
    [
        (SUBJECT, r"CN=alice,O=Example\, Inc.,C=DE"),
        (((("commonName", "a"), ("userId", "b")),), "CN=a+UID=b"),
        (((("commonName", "#a "),),), r"CN=\#a\ "),
        (((("commonName", " "),),), r"CN=\ "),
        (((("emailAddress", "a@b"),),), "emailAddress=a@b"),
    ],
)
def test_a_subject_has_the_form_of_rfc_2253(subject: Any, name: str) -> None:
    assert subject_name({"subject": subject}) == name


@pytest.mark.parametrize(
    ("rules", "principal"),
    [
        ("DEFAULT", r"User:CN=alice,O=Example\, Inc.,C=DE"),
        (r"RULE:^CN=([^,\\]*),.*$/$1/", "User:alice"),
        (r"RULE:^CN=alice,O=([^,\\]*),.*$/$1/,DEFAULT", r"User:CN=alice,O=Example\, Inc.,C=DE"),
        (r"RULE:^CN=(.*?),O=(.*),C=(.*)$/$1@$3/L, DEFAULT", "User:alice@de"),
        (r"RULE:^CN=bob.*$/bob/,RULE:.*C=DE$/of\/$0/U", "User:OF/" + r"CN=ALICE,O=EXAMPLE\, INC.,C=DE"),
        (r"RULE:CN=alice/partial/,DEFAULT", r"User:CN=alice,O=Example\, Inc.,C=DE"),
    ],
)
def test_the_first_rule_that_fits_the_whole_subject_counts(rules: str, principal: str) -> None:
    assert CertificateRules(rules).principal({"subject": SUBJECT}) == principal


@pytest.mark.parametrize(
    ("rules", "reason"),
    [
        ("", "is empty"),
        ("RULE:a/b", "has no rule at 'RULE:a/b'"),
        ("DEFAULT,other", "has no rule at 'other'"),
        ("RULE:(/b/", "is no pattern"),
        ("RULE:(a)/$2/", r"has no group \$2"),
    ],
)
def test_rules_of_another_form_are_refused(rules: str, reason: str) -> None:
    with pytest.raises(InvalidConfigError, match=reason):
        CertificateRules(rules)


@pytest.mark.parametrize("rules", ["RULE:CN=bob/bob/", "RULE:.*//"])
def test_a_subject_without_a_principal_is_refused(rules: str) -> None:
    with pytest.raises(InvalidConfigError):
        CertificateRules(rules).principal({"subject": SUBJECT})


# Tokens ---------------------------------------------------------------------------------------------------------------


KEY, OTHER = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
RSA = rsa.generate_private_key(65537, 2048)


def public(key: Any, key_id: str | None) -> dict[str, Any]:
    algorithm = jwt.algorithms.RSAAlgorithm if isinstance(key, rsa.RSAPrivateKey) else jwt.algorithms.ECAlgorithm
    document = dict(algorithm.to_jwk(key.public_key(), as_dict=True))
    return document if key_id is None else {**document, "kid": key_id}


def key_set(*keys: dict[str, Any]) -> str:
    return json.dumps({"keys": keys})


def token(key: Any = KEY, key_id: str | None = "k", algorithm: str = "ES256", **claims: Any) -> str:
    all_claims = {"iss": ISSUER, "aud": "txnstore", "sub": "alice", "exp": NOW + 600, **claims}
    shown = {name: value for name, value in all_claims.items() if value is not None}
    return jwt.encode(shown, key, algorithm, {} if key_id is None else {"kid": key_id})


class Clock:
    """A clock that stands still until it is moved, in milliseconds."""

    def __init__(self) -> None:
        self.passed = 0

    def runtime(self) -> Runtime:
        return Runtime(clock=lambda: NOW * 1000 + self.passed)


def tokens_of(url: str, clock: Clock | None = None, **changes: Any) -> Tokens:
    settings = TokenSettings(**{"url": url, "issuer": ISSUER, "audiences": ("txnstore", "other"), **changes})
    return Tokens(settings, (clock or Clock()).runtime())


@pytest.fixture
def path(tmp_path: Path) -> Path:
    file = tmp_path / "jwks.json"
    file.write_text(key_set(public(KEY, "k"), public(RSA, "r"), {"kty": "oct", "k": "c2VjcmV0", "kid": "s"}))
    return file


def test_a_token_of_the_issuer_has_a_principal(path: Path) -> None:
    tokens = tokens_of(path.as_uri())
    assert tokens.principal(token()) == "User:alice"
    assert tokens.principal(token(aud=["x", "other"])) == "User:alice"
    assert tokens.principal(token(exp=NOW - 29, nbf=NOW + 30)) == "User:alice"
    for algorithm in ("RS256", "PS512"):
        assert tokens.principal(token(RSA, "r", algorithm)) == "User:alice"
    assert tokens_of(path.as_uri(), claim="azp").principal(token(azp="bob")) == "User:bob"


@pytest.mark.parametrize(
    ("made", "reason"),
    [
        (lambda: token(exp=NOW - 30), "the token has expired"),
        (lambda: token(exp=None), "has no claim exp"),
        (lambda: token(exp="never"), "the times of the token are no numbers"),
        (lambda: token(aud="billing"), "for another audience"),
        (lambda: token(aud=None), "has no claim aud"),
        (lambda: token(iss="https://other.example"), "of another issuer"),
        (lambda: token(nbf=NOW + 31), "does not hold yet"),
        (lambda: token(sub=None), "has no claim sub"),
        (lambda: token(sub=""), "is no name of a user"),
        (lambda: token(OTHER), "is not valid"),
        (lambda: token(OTHER, "other"), "a key that the issuer does not list"),
        (lambda: token(key_id=None), "a key that the issuer does not list"),
        (lambda: token(b"secret" * 8, "s", "HS256"), "a key that the issuer does not list"),
        (lambda: token(b"secret" * 8, "k", "HS256"), "is not valid"),
        (lambda: token(None, "k", "none"), "is not valid"),
        (lambda: "hunter2", "is not valid"),
        (lambda: "", "is not valid"),
    ],
)
def test_other_tokens_are_refused(path: Path, made: Any, reason: str) -> None:
    with pytest.raises(TokenError, match=reason) as raised:
        tokens_of(path.as_uri()).principal(made())
    assert "hunter2" not in str(raised.value)


def test_the_only_key_needs_no_id(path: Path) -> None:
    path.write_text(key_set(public(KEY, None)))
    assert tokens_of(path.as_uri()).principal(token(key_id=None)) == "User:alice"


@pytest.mark.parametrize(
    ("document", "reason"),
    [
        ("no json", "is no JSON Web Key Set"),
        ("[]", "no JSON object with a list of keys"),
        ('{"keys": [1]}', "no JSON object with a list of keys"),
        ('{"keys": []}', "is no JSON Web Key Set"),
        (key_set({"kty": "oct", "k": "c2VjcmV0"}), "is no JSON Web Key Set"),
        (key_set({**public(KEY, "k"), "use": "enc"}), "is no JSON Web Key Set"),
    ],
)
def test_a_document_without_keys_is_refused(path: Path, document: str, reason: str) -> None:
    path.write_text(document)
    with pytest.raises(InvalidConfigError, match=reason):
        tokens_of(path.as_uri())


@pytest.mark.parametrize("purpose", [{"use": "enc"}, {"use": 1}, {"key_ops": ["encrypt", "wrapKey"]}])
def test_a_key_for_another_purpose_verifies_no_token(path: Path, purpose: dict[str, Any]) -> None:
    path.write_text(
        key_set({**public(KEY, "k"), **purpose}, {**public(OTHER, "s"), "use": "sig", "key_ops": ["verify"]})
    )
    tokens = tokens_of(path.as_uri())
    with pytest.raises(TokenError, match="a key that the issuer does not list"):
        tokens.principal(token())
    assert tokens.principal(token(OTHER, "s")) == "User:alice"


@pytest.mark.parametrize("changes", [{"kid": ["k"]}, {"key_ops": 1}, {"alg": ["ES256"]}, None])
def test_a_strange_document_is_damaged(path: Path, changes: dict[str, Any] | None) -> None:
    """And ends no watch of files."""
    tokens = tokens_of(path.as_uri())
    path.write_text("[" * 100_000 if changes is None else key_set({**public(OTHER, "new"), **changes}))
    with pytest.raises(InvalidConfigError, match="is no JSON Web Key Set"):
        tokens_of(path.as_uri())
    assert tokens.file is not None
    tokens.file.reload()
    assert tokens.principal(token()) == "User:alice"


def test_a_file_of_users_that_is_nested_too_deeply_ends_no_watch(tmp_path: Path) -> None:
    file = tmp_path / "users.toml"
    file.write_text(f'[users]\nalice = "{credential_line("secret")}"\n')
    users = watched_users(file)
    file.write_text("a=" + "[" * 100_000)
    users.reload()
    assert list(users.value) == ["alice"]


BEARER_MESSAGES = {
    b"n,,\x01auth=Bearer a.b\x01\x01": ("", "a.b"),
    b"n,a=alice,\x01host=h\x01AUTH=bearer  a.b\x01auth=Bearer c\x01\x01": ("alice", "a.b"),
    b"y,,\x01auth=Bearer a\x01\x01": None,
    b"n,,\x01auth=Basic a\x01\x01": None,
    b"n,,\x01host=h\x01\x01": None,
    b"n,,\x01auth=Bearer a\x01": None,
    b"n,,\x01auth=Bearer a\x01\x01more": None,
    b"n,,\x01\x01\x01": None,
    b"n,,\x01=x\x01auth=Bearer a\x01\x01": None,
    b"": None,
    b"\x01\x01": None,
    # An expression that goes back over them takes half a minute, in the event loop.
    b"n,,\x01auth=Bearer " + b" " * 65_000: None,
    b"n,," + b"\x01auth=Bearer x" * 4_000: None,
}


@pytest.mark.parametrize(("message", "parts"), BEARER_MESSAGES.items(), ids=str)
def test_messages_of_bearers(message: bytes, parts: tuple[str, str] | None) -> None:
    if parts is None:
        with pytest.raises(_LoginError, match="its message is malformed"):
            _bearer_parts(message)
    else:
        assert _bearer_parts(message) == parts


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"issuer": ""}, "expected.issuer is missing"),
        ({"audiences": ()}, "expected.audience is missing"),
        ({"claim": ""}, "claim.name is empty"),
        ({"url": "http://issuer.example/keys"}, "must be https"),
        ({"url": "/etc/jwks.json"}, "must be https"),
        ({"url": "file:///none.json"}, "cannot be read"),
        ({"url": "http://127.0.0.1:1/keys"}, "cannot be read"),
    ],
)
def test_settings_that_are_not_safe_are_refused(path: Path, changes: dict[str, Any], reason: str) -> None:
    with pytest.raises(InvalidConfigError, match=reason):
        tokens_of(**{"url": path.as_uri(), **changes})


def test_a_changed_file_of_keys_counts(path: Path) -> None:
    tokens = tokens_of(path.as_uri())
    path.write_text(key_set(public(OTHER, "new")))
    assert tokens.file is not None
    tokens.file.reload()
    assert tokens.principal(token(OTHER, "new")) == "User:alice"
    path.write_text("damaged")
    tokens.file.reload()
    assert tokens.principal(token(OTHER, "new")) == "User:alice"


@contextmanager
def issuer(documents: list[str], may_answer: Callable[[], object] = bool) -> Iterator[tuple[str, list[str]]]:
    """A server of keys: its URL, and the requests that it had; each gets the newest of the documents."""
    requests: list[str] = []

    class Keys(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            requests.append(self.path)
            may_answer()
            body = documents[-1].encode()
            if documents[-1] == "no HTTP":
                self.wfile.write(b"no HTTP\r\n")
                return
            self.send_response(200 if body else 500)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    with http_server(Keys) as address:
        yield f"http://{address}/keys", requests


@contextmanager
def http_server(handler: type[BaseHTTPRequestHandler], tls: tuple[Path, Path] | None = None) -> Iterator[str]:
    """A server: its host and port. With a certificate and its key it is one of https."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    if tls is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(*tls)
        server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def redirecting(target: str) -> type[BaseHTTPRequestHandler]:
    """What sends its clients to another URL."""

    class Redirect(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(302)
            self.send_header("Location", target)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    return Redirect


def test_keys_do_not_come_without_encryption_by_a_redirection(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first URL is that of the properties, which must be encrypted; what it names must be so, too."""
    tls = self_signed(tmp_path / "tls")
    monkeypatch.setenv("SSL_CERT_FILE", str(tls[0]))
    refused = "it redirects to http://.*/keys, which is not encrypted"
    with (
        issuer([key_set(public(KEY, "k"))]) as (keys, requests),
        http_server(redirecting(keys), tls) as encrypted,
        http_server(redirecting(f"https://{encrypted}/keys")) as to_encrypted,
        http_server(redirecting("http://issuer.example/keys")) as to_elsewhere,
        http_server(redirecting(keys)) as local,
    ):
        for url in (f"https://{encrypted}", f"http://{to_encrypted}", f"http://{to_elsewhere}"):
            with pytest.raises(InvalidConfigError, match=refused):
                tokens_of(f"{url}/keys")
        assert not requests
        assert tokens_of(f"http://{local}/keys").principal(token()) == "User:alice"


def test_keys_are_fetched_again_for_a_new_key_and_after_an_hour() -> None:
    """Tokens of unknown keys, which anybody can make, cause a request in ten seconds at most."""
    clock, documents = Clock(), [key_set(public(KEY, "k"))]
    with issuer(documents) as (url, requests):
        tokens = tokens_of(url, clock)
        for _ in range(3):
            assert tokens.principal(token()) == "User:alice"
            with pytest.raises(TokenError):
                tokens.principal(token(OTHER, "new"))
        assert len(requests) == 1
        documents.append(key_set(public(OTHER, "new")))
        clock.passed += 10_000
        assert tokens.principal(token(OTHER, "new")) == "User:alice"
        assert len(requests) == 2
        documents.append("")
        clock.passed += 3_600_000
        assert tokens.principal(token(OTHER, "new", exp=NOW + 7_200)) == "User:alice"
        assert len(requests) == 3
        documents.append("no HTTP")
        clock.passed += 3_600_000
        assert tokens.principal(token(OTHER, "new", exp=NOW + 9_000)) == "User:alice"
        assert len(requests) == 4


def test_tokens_of_known_keys_do_not_wait_for_a_fetch() -> None:
    """Anybody can cause one, by a token of an unknown key; an issuer that hangs must not stop the others."""
    asked, may_answer = threading.Event(), threading.Event()
    may_answer.set()
    clock = Clock()

    def answer() -> None:
        asked.set()
        may_answer.wait(60)

    def ask_for_unknown_key() -> None:
        with pytest.raises(TokenError):
            tokens.principal(token(OTHER, "new"))

    with issuer([key_set(public(KEY, "k"))], answer) as (url, requests):
        tokens = tokens_of(url, clock)
        clock.passed += 10_000
        asked.clear()
        may_answer.clear()
        stranger = threading.Thread(target=ask_for_unknown_key)
        stranger.start()
        assert asked.wait(60)
        assert tokens.principal(token()) == "User:alice"
        assert stranger.is_alive()
        may_answer.set()
        stranger.join()
    assert len(requests) == 2


def test_an_issuer_that_hangs_stops_neither_other_logins_nor_the_rest_of_the_gateway(tmp_path: Path) -> None:
    """Anybody can make tokens of a key that must be fetched, as many as the loop has threads, and more."""
    asked, may_answer = threading.Event(), threading.Event()
    may_answer.set()
    clock, users = Clock(), tmp_path / "users.toml"
    users.write_text(f'[users]\nalice = "{credential_line("secret")}"\n')

    def answer() -> None:
        asked.set()
        may_answer.wait(60)

    async def log_in(sasl: Sasl, mechanism: str, message: bytes) -> str | None:
        client = Client("host", authenticated=False)
        await sasl.handshake(Request(Api.SASL_HANDSHAKE, 1, 1, None, SimpleNamespace(mechanism=mechanism)), client)
        body = SimpleNamespace(auth_bytes=message)
        await sasl.authenticate(Request(Api.SASL_AUTHENTICATE, 2, 2, None, body), client)
        return client.principal

    async def log_in_many(sasl: Sasl) -> None:
        loop = asyncio.get_running_loop()
        unknown = b"n,,\x01auth=Bearer " + token(OTHER, "new").encode() + b"\x01\x01"
        strangers = [loop.create_task(log_in(sasl, "OAUTHBEARER", unknown)) for _ in range(100)]
        assert await asyncio.to_thread(asked.wait, 60)
        known = b"n,,\x01auth=Bearer " + token().encode() + b"\x01\x01"
        assert await log_in(sasl, "OAUTHBEARER", known) == "User:alice"
        assert await log_in(sasl, "PLAIN", b"\0alice\0secret") == "User:alice"
        await loop.getaddrinfo("127.0.0.1", 1)  # As before each request to a peer.
        assert not any(stranger.done() for stranger in strangers)
        may_answer.set()
        assert await asyncio.gather(*strangers) == [None] * 100

    with issuer([key_set(public(KEY, "k"))], answer) as (url, requests):
        sasl = Sasl(lambda: watched_users(users).value, tokens_of(url, clock), plain=True)
        clock.passed += 10_000
        asked.clear()
        may_answer.clear()
        try:
            asyncio.run(log_in_many(sasl))
        finally:
            may_answer.set()
    assert len(requests) == 2
