"""Users, passwords and TLS of a gateway, with the clients of others; what a wrong one gets."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import confluent_kafka
import kafka
import pytest
from cryptography.hazmat.primitives import serialization

import txnstore
from tests.helpers.certificates import self_signed
from tests.helpers.gateway import RunningGateway, serving
from tests.helpers.gateway_process import Client, produce_fields, record_batch
from txnstore.errors import InvalidConfigError
from txnstore.gateway.apis import Api
from txnstore.gateway.logs import log_omitted
from txnstore.gateway.security import Security, credential_line, read_users, tls_context, watched_tls, watched_users

SCRAMS = ["SCRAM-SHA-256", "SCRAM-SHA-512"]


@pytest.fixture(scope="module")
def users_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    lines = {
        "alice": [credential_line("alice's password", mechanism) for mechanism in SCRAMS],
        "bob": credential_line("bob's password"),
    }
    path: Path = tmp_path_factory.mktemp("users") / "users.toml"
    path.write_text("[users]\n" + "".join(f"{name} = {line!r}\n" for name, line in lines.items()))
    return path


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A certificate of 127.0.0.1 that signs itself, and its key."""
    return self_signed(tmp_path_factory.mktemp("tls"))


@pytest.fixture
def store(tmp_path: Path) -> Iterator[txnstore.Store]:
    with txnstore.create(str(tmp_path / "store")) as created:
        created.create_topic("t")
        yield created


@pytest.fixture
def gateway(store: txnstore.Store, users_file: Path) -> Iterator[RunningGateway]:
    """A gateway without TLS."""
    with serving(store, security=Security(watched_users(users_file))) as running:
        yield running


def _produce(
    gateway: RunningGateway, mechanism: str, user: str, password: str, topic: str = "t", **config: Any
) -> list[Any]:
    """The errors that a producer of librdkafka gets, None for a record that is delivered."""
    errors: list[Any] = []
    producer = confluent_kafka.Producer(
        {
            "bootstrap.servers": gateway.bootstrap, "security.protocol": "SASL_PLAINTEXT", "sasl.mechanisms": mechanism,
            "sasl.username": user, "sasl.password": password, "message.timeout.ms": 30_000, "log_level": 0,
            "error_cb": errors.append, **config,
        }
    )  # fmt: skip
    producer.produce(topic, b"v", on_delivery=lambda error, _: errors.append(error))
    while not errors:
        producer.poll(0.1)
    producer.purge()
    return errors


@pytest.mark.parametrize("mechanism", SCRAMS)
def test_a_user_with_the_right_password_writes(gateway: RunningGateway, store: txnstore.Store, mechanism: str) -> None:
    assert _produce(gateway, mechanism, "alice", "alice's password") == [None]
    assert store.scan("t").to_table().num_rows == 1


@pytest.mark.parametrize(
    ("mechanism", "user", "password"),
    [
        ("SCRAM-SHA-256", "alice", "bob's password"),
        ("SCRAM-SHA-256", "carl", "alice's password"),
        ("SCRAM-SHA-512", "bob", "bob's password"),  # Bob has no hash of this mechanism.
        ("PLAIN", "alice", "alice's password"),  # It is offered in TLS only.
    ],
)
def test_others_are_refused(
    gateway: RunningGateway, store: txnstore.Store, mechanism: str, user: str, password: str
) -> None:
    codes = [error.code() for error in _produce(gateway, mechanism, user, password) if error is not None]
    assert confluent_kafka.KafkaError._AUTHENTICATION in codes
    assert store.scan("t").to_table().num_rows == 0


@pytest.mark.usefixtures("unlimited")
@pytest.mark.parametrize(
    ("mechanism", "messages", "reason", "user"),
    [
        ("PLAIN", [b"\0alice\0hunter2"], "wrong password", "alice"),
        ("PLAIN", [b"\0carl\0hunter2"], "there is no such user", "carl"),
        ("PLAIN", [b"bob\0alice\0hunter2"], "it asks for the rights of another user", "alice"),
        ("PLAIN", [b"hunter2"], "its message is malformed", ""),
        ("PLAIN", [b"\0al\xff\0hunter2"], "its message is malformed", ""),
        ("SCRAM-SHA-256", [b"n,,n=carl,r=abc"], "there is no such user", "carl"),
        ("SCRAM-SHA-512", [b"n,,n=bob,r=abc"], "the user has no hash of this mechanism", "bob"),
        ("SCRAM-SHA-256", [b"hunter2"], "its message is malformed", ""),
        ("SCRAM-SHA-256", [b"n,,n=alice,r=abc", b"hunter2"], "its message is malformed", "alice"),
        ("GSSAPI", [], "the mechanism is not one of PLAIN, SCRAM-SHA-256, SCRAM-SHA-512", ""),
    ],
)
def test_the_log_says_who_failed_to_authenticate_and_why(
    store: txnstore.Store,
    users_file: Path,
    caplog: pytest.LogCaptureFixture,
    mechanism: str,
    messages: list[bytes],
    reason: str,
    user: str,
) -> None:
    caplog.set_level(logging.DEBUG, "txnstore.gateway")
    security = Security(watched_users(users_file), plain=True)
    with serving(store, security=security) as gateway, Client(*gateway.address) as client:
        client.ask(Api.SASL_HANDSHAKE, 1, {"mechanism": mechanism})
        for message in messages:
            client.ask(Api.SASL_AUTHENTICATE, 2, {"auth_bytes": message})
    (line,) = (record for record in caplog.records if record.getMessage() == "a client failed to authenticate")
    fields = line.__dict__
    assert line.levelno == logging.WARNING
    assert [fields[name] for name in ("client", "mechanism", "reason", "user")] == [
        "127.0.0.1",
        mechanism,
        reason,
        user,
    ]
    assert "hunter2" not in str([record.__dict__ for record in caplog.records])


@pytest.mark.usefixtures("unlimited")
def test_a_wrong_password_of_scram_is_logged(
    store: txnstore.Store, users_file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with serving(store, security=Security(watched_users(users_file))) as gateway:
        _produce(gateway, "SCRAM-SHA-256", "alice", "wrong")
    fields = next(each.__dict__ for each in caplog.records if "failed to authenticate" in each.getMessage())
    assert (fields["user"], fields["reason"]) == ("alice", "wrong password")


def test_connections_closed_that_the_log_leaves_out_are_counted(
    store: txnstore.Store, users_file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with serving(store, security=Security(watched_users(users_file))) as running:
        log_omitted(take_all=True)
        caplog.clear()
        for _ in range(30):
            with Client(*running.address) as client:
                client.begin(Api.PRODUCE, 7, produce_fields("t", record_batch([b"v"])))
                assert client.is_closed()
    lines = [each.getMessage() for each in caplog.records if "before the client has authenticated" in each.getMessage()]
    counts = [re.search(r"\((\d+) more like it were left out\)", line) for line in lines]
    assert len(lines) < 30
    assert len(lines) + sum(int(count[1]) for count in counts if count) == 30


def test_a_request_before_the_authentication_closes_the_connection(gateway: RunningGateway) -> None:
    with Client(*gateway.address) as client:
        client.ask(Api.API_VERSIONS, 3, {})
        client.begin(Api.PRODUCE, 7, produce_fields("t", record_batch([b"v"])))
        assert client.is_closed()


@pytest.mark.parametrize("mechanism", ["PLAIN", *SCRAMS])
def test_tls_carries_passwords(
    store: txnstore.Store, users_file: Path, certificate: tuple[Path, Path], mechanism: str
) -> None:
    security = Security(watched_users(users_file), watched_tls(*certificate))
    with serving(store, security=security) as gateway:
        tls = {"security.protocol": "SASL_SSL", "ssl.ca.location": str(certificate[0])}
        assert _produce(gateway, mechanism, "alice", "alice's password", **tls) == [None]
        wrong = [error.code() for error in _produce(gateway, mechanism, "alice", "wrong", **tls) if error is not None]
        assert confluent_kafka.KafkaError._AUTHENTICATION in wrong
        producer = kafka.KafkaProducer(
            bootstrap_servers=gateway.bootstrap, security_protocol="SASL_SSL", ssl_cafile=str(certificate[0]),
            sasl_mechanism=mechanism, sasl_plain_username="alice", sasl_plain_password="alice's password",
        )  # fmt: skip
        producer.send("t", b"w").get(30)
        producer.close()
    assert sorted(store.scan("t").to_table()["value"].to_pylist()) == [b"v", b"w"]


def test_rules_are_those_of_the_user(store: txnstore.Store, gateway: RunningGateway) -> None:
    """The principal of a client is its user, whatever the principal of the gateway."""
    store.acls.create(txnstore.Acl("User:alice", "ALLOW", "WRITE", "TOPIC", "t"))
    store.acls.enable([store.principal])
    assert _produce(gateway, "SCRAM-SHA-256", "alice", "alice's password") == [None]
    (refused,) = [error for error in _produce(gateway, "SCRAM-SHA-256", "bob", "bob's password") if error is not None]
    assert refused.code() == confluent_kafka.KafkaError.TOPIC_AUTHORIZATION_FAILED


def test_a_topic_is_created_for_the_user_who_asks(store: txnstore.Store, users_file: Path) -> None:
    """The gateway may create any topic; that gives its clients no right."""
    store.acls.create(txnstore.Acl("User:alice", "ALLOW", "WRITE", "TOPIC", "new", "PREFIXED"))
    store.acls.create(txnstore.Acl("User:alice", "ALLOW", "CREATE", "TOPIC", "new-1"))
    store.acls.enable([store.principal])
    properties = {"auto.create.topics.enable": "true"}
    with serving(store, properties, Security(watched_users(users_file))) as gateway:
        for topic, is_created in (("new-1", True), ("new-2", False)):
            errors = _produce(gateway, "SCRAM-SHA-256", "alice", "alice's password", topic=topic)
            assert (errors[0] is None) == is_created
    assert [topic.name for topic in store.topics()] == ["new-1", "t"]
    askers = store.sql("select principals from txn.entries order by sequence desc limit 2").fetchall()
    assert askers == [(["User:alice"],)] * 2, "of the creation, and of the record"


# Files and options ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        "no toml",
        "users = 1",
        "[users]\n",
        "[users]\nalice = 'password'",
        "[users]\nalice = 1",
        "[other]\na = 'b'",
        "[users]\nalice = 'SCRAM-SHA-256$1:c2FsdA==$c2FsdA==:c2FsdA=='",
    ],
)
def test_a_file_of_users_without_hashes_is_refused(tmp_path: Path, text: str) -> None:
    """The message repeats no password that may stand there."""
    (tmp_path / "users.toml").write_text(text)
    with pytest.raises(InvalidConfigError) as raised:
        read_users(tmp_path / "users.toml")
    assert "users.toml" in str(raised.value)
    assert "password'" not in str(raised.value)


def test_a_missing_file_of_users_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfigError, match="cannot be read"):
        read_users(tmp_path / "none.toml")


def test_a_key_of_another_certificate_is_refused(certificate: tuple[Path, Path], tmp_path: Path) -> None:
    other = tmp_path / "key.pem"
    other.write_text("no key")
    with pytest.raises(
        InvalidConfigError, match=r"TLS cannot use .*cert\.pem with .*key\.pem has no private key in PEM"
    ):
        tls_context(certificate[0], other)


def test_an_encrypted_key_is_refused_and_asks_for_no_password(certificate: tuple[Path, Path], tmp_path: Path) -> None:
    """OpenSSL would ask for it on the terminal of a gateway, which stands still meanwhile."""
    plain = serialization.load_pem_private_key(certificate[1].read_bytes(), None)
    encrypted = tmp_path / "key.pem"
    encrypted.write_bytes(
        plain.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(b"secret"),
        )
    )
    with pytest.raises(InvalidConfigError, match=rf"{encrypted}: it is encrypted.*openssl pkey -in {encrypted}"):
        tls_context(certificate[0], encrypted)


def test_an_error_says_that_a_certificate_and_a_key_are_swapped(certificate: tuple[Path, Path], tmp_path: Path) -> None:
    cert, key = certificate
    with pytest.raises(InvalidConfigError, match=rf"{key} with {cert}: the former is a key .*: they are swapped"):
        tls_context(key, cert)
    with pytest.raises(InvalidConfigError, match=f"{key} has no certificate in PEM, but a private key"):
        tls_context(key, key)
    with pytest.raises(InvalidConfigError, match=f"{cert} has no private key in PEM, but a certificate"):
        tls_context(cert, cert)


def test_a_hash_is_that_of_its_password_only() -> None:
    first, second = credential_line("secret"), credential_line("secret")
    assert first != second, "each has a salt of its own"
    assert "secret" not in first
