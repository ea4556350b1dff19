"""Clients that are known by certificates and tokens; files of a gateway that change while it runs."""

from __future__ import annotations

import json
import logging
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import confluent_kafka
import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec

import txnstore
from tests.helpers.certificates import self_signed
from tests.helpers.gateway import RunningGateway, serving
from tests.helpers.gateway_process import Client, gateway_process, produce_fields, record_batch
from tests.helpers.kafka_wire import PASSWORD
from txnstore.core.authorization.model import Acl
from txnstore.gateway.apis import Api
from txnstore.gateway.certificates import CertificateRules
from txnstore.gateway.security import Security, credential_line, watched_tls, watched_users
from txnstore.gateway.tokens import Tokens, TokenSettings
from txnstore.runtime import Runtime

ISSUER, AUDIENCE = "https://issuer.example", "txnstore"


@pytest.fixture
def store(tmp_path: Path) -> Iterator[txnstore.Store]:
    with txnstore.create(str(tmp_path / "store")) as created:
        created.create_topic("t")
        yield created


class TlsClient(Client):
    """A connection in TLS; ``certificate``: the files of its certificate and key, if it has one."""

    def __init__(self, gateway: RunningGateway, certificate: tuple[Path, Path] | None = None) -> None:
        super().__init__(*gateway.address)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        if certificate is not None:
            context.load_cert_chain(*certificate)
        self.socket = context.wrap_socket(self.socket)

    @property
    def servers_certificate(self) -> bytes | None:
        """What the gateway has shown."""
        assert isinstance(self.socket, ssl.SSLSocket)
        return self.socket.getpeercert(binary_form=True)

    def produce(self) -> Any:
        """The code of a Produce request."""
        response = self.ask(Api.PRODUCE, 7, produce_fields("t", record_batch([b"v"])))
        return response.responses[0].partition_responses[0].error_code.name


def der(certificate: Path) -> bytes:
    return ssl.PEM_cert_to_DER_cert(certificate.read_text())


def log_in(client: Client, user: str, password: str = PASSWORD) -> str:
    """The name of the code that a login by PLAIN gets."""
    client.ask(Api.SASL_HANDSHAKE, 1, {"mechanism": "PLAIN"})
    message = f"\0{user}\0{password}".encode()
    return str(client.ask(Api.SASL_AUTHENTICATE, 2, {"auth_bytes": message}).error_code.name)


# Files that change ----------------------------------------------------------------------------------------------------


def test_users_who_are_added_and_removed_count_for_new_connections(store: txnstore.Store, tmp_path: Path) -> None:
    path = tmp_path / "users.toml"

    def write(*names: str) -> None:
        path.write_text("[users]\n" + "".join(f'{name} = "{credential_line(PASSWORD)}"\n' for name in names))

    write("alice")
    with (
        serving(store, security=Security(watched_users(path), plain=True)) as gateway,
        Client(*gateway.address) as open_connection,
    ):
        assert log_in(open_connection, "alice") == "none"
        write("bob")
        gateway.reload()
        with Client(*gateway.address) as client:
            assert log_in(client, "alice") == "sasl_authentication_failed"
        with Client(*gateway.address) as client:
            assert log_in(client, "bob") == "none"
        open_connection.ask(Api.METADATA, 9, {"topics": None})


def test_a_long_password_is_refused_before_it_is_prepared(store: txnstore.Store, tmp_path: Path) -> None:
    """It takes the processor up to half a second for 64 kB, in the event loop, of a client that nobody knows."""
    path = tmp_path / "users.toml"
    path.write_text(f'[users]\nalice = "{credential_line(PASSWORD)}"\n')
    with (
        serving(store, security=Security(watched_users(path), plain=True)) as gateway,
        Client(*gateway.address) as client,
    ):
        assert log_in(client, "alice", "x" * 5_000) == "illegal_sasl_state"
        assert log_in(client, "alice", "x" * 4_000) == "sasl_authentication_failed"
        assert log_in(client, "alice") == "none"


def test_a_second_login_renews_the_first_and_changes_no_principal(store: txnstore.Store, tmp_path: Path) -> None:
    """KIP-368: a broker closes a connection whose second login fails, or is that of another user."""
    path = tmp_path / "users.toml"
    path.write_text("[users]\n" + "".join(f'{name} = "{credential_line(PASSWORD)}"\n' for name in ("alice", "bob")))
    with serving(store, security=Security(watched_users(path), plain=True)) as gateway:
        for user, password in (("bob", PASSWORD), ("alice", "wrong")):
            with Client(*gateway.address) as client:
                for _ in range(2):
                    assert log_in(client, "alice") == "none"
                    client.ask(Api.METADATA, 9, {"topics": None})
                assert log_in(client, user, password) == "sasl_authentication_failed"
                client.begin(Api.METADATA, 9, {"topics": None})
                assert client.is_closed()


def test_a_damaged_file_of_users_keeps_the_old_ones_and_is_logged_once(
    store: txnstore.Store, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "users.toml"
    good = f'[users]\nalice = "{credential_line(PASSWORD)}"\n'
    path.write_text(good)
    caplog.set_level(logging.INFO, "txnstore.gateway")
    with serving(store, security=Security(watched_users(path), plain=True)) as gateway:
        for damaged in ("[users]\nalice = 'hunter2'", None):
            path.unlink() if damaged is None else path.write_text(damaged)
            for _ in range(2):
                gateway.reload()
            with Client(*gateway.address) as client:
                assert log_in(client, "alice") == "none"
        path.write_text(good)
        gateway.reload()
    errors = [each for each in caplog.records if each.levelno == logging.ERROR]
    assert [each.getMessage().partition(":")[0] for each in errors] == [
        "changed files are damaged, what was read before holds"
    ] * 2
    assert not any("hunter2" in str(each.__dict__) for each in errors)
    assert [each.getMessage() for each in caplog.records].count("changed files were read") == 1


def test_a_new_certificate_is_shown_to_new_connections(store: txnstore.Store, tmp_path: Path) -> None:
    """Its files are replaced one after the other: a certificate beside the old key changes nothing."""
    certificate, key = self_signed(tmp_path / "tls")
    new_certificate, new_key = self_signed(tmp_path / "new")
    old = der(certificate)
    with (
        serving(store, security=Security(tls=watched_tls(certificate, key))) as gateway,
        TlsClient(gateway) as client,
    ):
        assert client.servers_certificate == old
        new_certificate.rename(certificate)
        gateway.reload()
        with TlsClient(gateway) as other:
            assert other.servers_certificate == old
        new_key.rename(key)
        gateway.reload()
        with TlsClient(gateway) as other:
            assert other.servers_certificate == der(certificate) != old
        assert client.produce() == "none"


def test_sighup_reads_the_files_again(tmp_path: Path) -> None:
    with txnstore.create(tmp_path / "store"):
        pass
    path = tmp_path / "users.toml"
    path.write_text(f'[users]\nalice = "{credential_line(PASSWORD)}"\n')
    options = ("--sasl", str(path), "--insecure")
    with gateway_process(tmp_path / "store", tmp_path / "log", *options) as gateway:
        path.write_text("damaged")
        gateway.process.send_signal(1)
        while not any("what was read before holds" in line for line in gateway.log_lines()):
            with gateway.client() as client:
                assert log_in(client, "alice") == "none"
        assert gateway.stop() == 0


# Certificates of clients ----------------------------------------------------------------------------------------------


@pytest.fixture
def authority(tmp_path: Path) -> tuple[Path, Path]:
    return self_signed(tmp_path / "alice", "CN=alice,OU=billing,O=Example")


def security_of(tmp_path: Path, authority: tuple[Path, Path], rules: str = "DEFAULT") -> Security:
    return Security(tls=watched_tls(*self_signed(tmp_path / "tls"), authority[0]), certificates=CertificateRules(rules))


@pytest.mark.parametrize(
    ("rules", "principal"),
    [("DEFAULT", "User:CN=alice,OU=billing,O=Example"), ("RULE:^CN=(.*?),.*$/$1/U", "User:ALICE")],
)
def test_the_subject_of_a_certificate_is_the_principal(
    store: txnstore.Store, tmp_path: Path, authority: tuple[Path, Path], rules: str, principal: str
) -> None:
    store.acls.create(Acl(principal, "ALLOW", "WRITE", "TOPIC", "t"))
    store.acls.enable([store.principal])
    with (
        serving(store, security=security_of(tmp_path, authority, rules)) as gateway,
        TlsClient(gateway, authority) as client,
    ):
        assert client.produce() == "none"
    (asker,) = store.sql("select principals from txn.entries order by sequence desc limit 1").fetchall()
    assert asker == ([principal],)


def test_librdkafka_is_known_by_its_certificate(
    store: txnstore.Store, tmp_path: Path, authority: tuple[Path, Path]
) -> None:
    with serving(store, security=security_of(tmp_path, authority)) as gateway:
        producer = confluent_kafka.Producer(
            {
                "bootstrap.servers": gateway.bootstrap, "security.protocol": "SSL",
                "ssl.ca.location": str(tmp_path / "tls" / "cert.pem"), "ssl.certificate.location": str(authority[0]),
                "ssl.key.location": str(authority[1]),
            }
        )  # fmt: skip
        producer.produce("t", b"v")
        assert producer.flush(30) == 0
    assert store.scan("t").to_table().num_rows == 1


def test_an_authority_that_is_taken_out_vouches_for_no_resumed_session(
    store: txnstore.Store, tmp_path: Path, authority: tuple[Path, Path]
) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.load_cert_chain(*authority)
    authorities = tmp_path / "authorities.pem"
    authorities.write_bytes(authority[0].read_bytes())
    tls = watched_tls(*self_signed(tmp_path / "tls"), authorities)
    with serving(store, security=Security(tls=tls, certificates=CertificateRules())) as gateway:
        with Client(*gateway.address) as client:
            client.socket = first = context.wrap_socket(client.socket)
            client.ask(Api.METADATA, 9, {"topics": None})
            session = first.session
        authorities.write_bytes(self_signed(tmp_path / "other", "CN=other")[0].read_bytes())
        gateway.reload()
        with Client(*gateway.address) as client:
            client.socket = context.wrap_socket(client.socket, session=session)
            with pytest.raises((ssl.SSLError, ConnectionError, EOFError)):
                client.ask(Api.METADATA, 9, {"topics": None})
        context.maximum_version = ssl.TLSVersion.TLSv1_2  # Its sessions are resumed without tickets, too.
        with pytest.raises((ssl.SSLError, ConnectionError)), Client(*gateway.address) as client:
            context.wrap_socket(client.socket)


@pytest.mark.usefixtures("unlimited")
def test_clients_without_a_certificate_or_with_one_that_no_rule_fits_are_refused(
    store: txnstore.Store, tmp_path: Path, authority: tuple[Path, Path], caplog: pytest.LogCaptureFixture
) -> None:
    """Without one it may ask which APIs there are, as gateways ask each other."""
    with serving(store, security=security_of(tmp_path, authority, "RULE:^CN=bob.*$/bob/")) as gateway:
        with TlsClient(gateway) as client:
            client.ask(Api.API_VERSIONS, 3, {})
            client.begin(Api.METADATA, 9, {"topics": None})
            assert client.is_closed()
        with TlsClient(gateway, authority) as client:
            assert client.is_closed()
        stranger = self_signed(tmp_path / "stranger", "CN=bob")
        with pytest.raises((ssl.SSLError, ConnectionError, EOFError)), TlsClient(gateway, stranger) as client:
            client.ask(Api.API_VERSIONS, 3, {})
    text = " ".join(each.getMessage() for each in caplog.records)
    assert "a request of METADATA before the client has authenticated" in text
    assert "no rule of ssl.principal.mapping.rules fits the subject 'CN=alice,OU=billing,O=Example'" in text


# Tokens ---------------------------------------------------------------------------------------------------------------


class Issuer:
    """Makes tokens."""

    def __init__(self, folder: Path) -> None:
        self.key = ec.generate_private_key(ec.SECP256R1())
        self.path = folder / "jwks.json"
        public = jwt.algorithms.ECAlgorithm(jwt.algorithms.ECAlgorithm.SHA256).to_jwk(
            self.key.public_key(), as_dict=True
        )
        self.path.write_text(json.dumps({"keys": [{**public, "kid": "k", "use": "sig"}]}))

    def token(self, **claims: Any) -> str:
        all_claims = {"iss": ISSUER, "aud": AUDIENCE, "sub": "alice", "exp": Runtime().clock() // 1000 + 600, **claims}
        return jwt.encode(all_claims, self.key, "ES256", {"kid": "k"})

    def tokens(self) -> Tokens:
        return Tokens(TokenSettings(self.path.as_uri(), ISSUER, (AUDIENCE,)), Runtime())


def test_librdkafka_is_known_by_its_token(store: txnstore.Store, tmp_path: Path) -> None:
    issuer = Issuer(tmp_path)
    with serving(store, security=Security(tokens=issuer.tokens(), plain=True)) as gateway:
        producer = confluent_kafka.Producer(
            {
                "bootstrap.servers": gateway.bootstrap, "security.protocol": "SASL_PLAINTEXT",
                "sasl.mechanisms": "OAUTHBEARER",
                "oauth_cb": lambda _: (issuer.token(), Runtime().clock() / 1000 + 600),
            }
        )  # fmt: skip
        producer.produce("t", b"v")
        assert producer.flush(30) == 0
    assert store.scan("t").to_table().num_rows == 1


@pytest.mark.usefixtures("unlimited")
def test_a_client_learns_that_its_token_is_not_valid_and_the_log_why(
    store: txnstore.Store, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """RFC 7628: an error that the client acknowledges, and then the failure."""
    issuer = Issuer(tmp_path)
    token = issuer.token(exp=1_000_000_000)
    with (
        serving(store, security=Security(tokens=issuer.tokens(), plain=True)) as gateway,
        Client(*gateway.address) as client,
    ):
        assert client.ask(Api.SASL_HANDSHAKE, 1, {"mechanism": "OAUTHBEARER"}).mechanisms == ("OAUTHBEARER",)
        first = client.ask(Api.SASL_AUTHENTICATE, 2, {"auth_bytes": f"n,,\x01auth=Bearer {token}\x01\x01".encode()})
        assert (first.error_code.name, json.loads(first.auth_bytes)) == ("none", {"status": "invalid_token"})
        second = client.ask(Api.SASL_AUTHENTICATE, 2, {"auth_bytes": b"\x01"})
        assert second.error_code.name == "sasl_authentication_failed"
        client.begin(Api.METADATA, 9, {"topics": None})
        assert client.is_closed()
    (line,) = (each for each in caplog.records if each.getMessage() == "a client failed to authenticate")
    assert line.__dict__["reason"] == "the token has expired"
    assert token not in str([each.__dict__ for each in caplog.records])


def test_a_port_without_tls_and_insecure_offers_no_tokens(store: txnstore.Store, tmp_path: Path) -> None:
    with (
        serving(store, security=Security(tokens=Issuer(tmp_path).tokens())) as gateway,
        Client(*gateway.address) as client,
    ):
        refused = client.ask(Api.SASL_HANDSHAKE, 1, {"mechanism": "OAUTHBEARER"})
    assert (refused.error_code.name, refused.mechanisms) == ("unsupported_sasl_mechanism", ())
