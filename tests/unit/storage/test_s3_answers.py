"""What answers of S3 servers mean, many as MinIO gives them: with too few drives, while it starts."""

from __future__ import annotations

import hashlib
import http.server
import re
import ssl
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import pytest
from aiobotocore.httpsession import AIOHTTPSession
from aiohttp import ClientSession
from botocore.exceptions import ClientError

from tests.helpers.interrupts import Interrupter, everywhere, places
from txnstore.errors import (
    InvalidConfigError,
    ObjectNotFoundError,
    StorageError,
    StorageRefusedError,
    UnknownOutcomeError,
    UnsafeStorageError,
)
from txnstore.storage.s3.errors import (
    Answer,
    ForeignAnswerError,
    Kind,
    check_absence,
    from_code,
    map_s3_error,
)
from txnstore.storage.s3.loop import run_on
from txnstore.storage.s3.requests import MIB, MULTIPART_FROM_BYTES, PART_BYTES, etag_of, plain_etag
from txnstore.storage.s3.session import refuse_unless_switchable
from txnstore.storage.s3.store import S3Store

URL = "s3://bucket/root/key"


def _error(status: int, code: str, kind: Kind) -> StorageError:
    response = {"Error": {"Code": code}, "ResponseMetadata": {"HTTPStatusCode": status}}
    error = map_s3_error(ClientError(response, "PutObject"), kind, "bucket", URL, ())
    assert isinstance(error, StorageError)
    return error


@pytest.mark.parametrize(
    ("status", "code"),
    [
        (503, "SlowDownRead"),
        (503, "SlowDownWrite"),
        (503, "XMinioServerNotInitialized"),
        (503, "RequestTimeout"),
        (499, "ClientDisconnected"),
        (507, "XMinioStorageFull"),
    ],
)
@pytest.mark.parametrize("kind", list(Kind))
def test_obj_04_transient_errors_are_retriable_and_writes_unknown(status: int, code: str, kind: Kind) -> None:
    error = _error(status, code, kind)
    assert type(error) is (StorageError if kind is Kind.READ else UnknownOutcomeError)
    assert error.retriable


def test_a_name_that_the_server_cannot_store_is_refused() -> None:
    assert type(_error(400, "XMinioInvalidObjectName", Kind.CREATE)) is StorageRefusedError


@pytest.mark.parametrize("kind", [Kind.WRITE, Kind.CREATE])
def test_only_reads_raise_object_not_found(kind: Kind) -> None:
    """A 404 NoSuchKey is also the answer to a conditional PUT on a name that is not there."""
    assert type(_error(404, "NoSuchKey", Kind.READ)) is ObjectNotFoundError
    assert type(_error(404, "NoSuchKey", kind)) is StorageRefusedError


@pytest.mark.parametrize("code", ["SlowDown", "SlowDownRead", "SlowDownWrite", "InternalError", "ServiceUnavailable"])
def test_bulk_delete_is_repeated_after_a_transient_error_of_one_key(code: str) -> None:
    """The answer itself is 200; MinIO without enough drives answers SlowDownWrite for each key."""
    error = from_code(code, Kind.WRITE, "bucket", URL)
    assert type(error) is UnknownOutcomeError
    assert code in str(error)


def test_bulk_delete_forbidden_for_one_key_is_refused() -> None:
    assert type(from_code("AccessDenied", Kind.WRITE, "bucket", URL)) is StorageRefusedError


class _Elsewhere(http.server.BaseHTTPRequestHandler):
    """Answers every request that the bucket is elsewhere, without saying where."""

    def do_GET(self) -> None:
        self.server.requests.append(self.command)  # type: ignore[attr-defined]
        body = b"<Error><Code>PermanentRedirect</Code><Message>elsewhere</Message></Error>"
        self.send_response(301)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    do_HEAD = do_GET  # noqa: N815 - the name that http.server calls

    def log_message(self, format: str, *args: object) -> None:
        """Nothing on standard error."""


@pytest.fixture
def elsewhere() -> Iterator[http.server.ThreadingHTTPServer]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Elsewhere) as server:
        server.requests = []  # type: ignore[attr-defined]
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def test_redirect_without_a_region_is_refused_after_a_few_requests(
    elsewhere: http.server.ThreadingHTTPServer, transport: str
) -> None:
    """Botocore asks for the region, is redirected again, and so on until the stack is exhausted."""
    where = f"http://127.0.0.1:{elsewhere.server_port}"
    options = {"key": "one", "secret": "two", "endpoint_url": where, "transport": transport}
    store = S3Store("bucket", storage_options=options)
    for call in (lambda: store.get("a"), store.now_ms):
        with pytest.raises(StorageRefusedError, match="the bucket is in another region"):
            call()
    store.close()
    assert len(elsewhere.requests) <= 6  # type: ignore[attr-defined]


class _Dateless(http.server.BaseHTTPRequestHandler):
    """Answers every request without the time."""

    def do_HEAD(self) -> None:
        self.send_response_only(200)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        """Nothing on standard error."""


def test_server_without_a_clock_is_named(transport: str) -> None:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Dateless) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        where = f"http://127.0.0.1:{server.server_port}"
        options = {"key": "one", "secret": "two", "endpoint_url": where, "transport": transport}
        store = S3Store("bucket", storage_options=options)
        with pytest.raises(StorageError, match="the server's responses have no Date header"):
            store.now_ms()
        store.close()
        server.shutdown()
        thread.join()


def test_alarm_while_a_request_is_waited_for_is_not_its_error(
    elsewhere: http.server.ThreadingHTTPServer, transport: str
) -> None:
    """An object may be created after the alarm: a ``ValueError`` of the request itself would mean that none was."""
    where = f"http://127.0.0.1:{elsewhere.server_port}"
    options = {"key": "one", "secret": "two", "endpoint_url": where, "transport": transport}
    store = S3Store("bucket", storage_options=options)

    def attempt(interrupter: Interrupter) -> bool:
        try:
            return interrupter.run(lambda: store.put_if_absent("a", b"x"))
        except UnsafeStorageError:  # The answer of the server, which knows no PUT.
            assert not interrupter.struck
            return False

    assert len(list(everywhere(places(S3Store._run_request, run_on), attempt, ValueError("alarm")))) > 5
    store.close()


@pytest.mark.parametrize(
    ("option", "hint"),
    [
        ("region", "region_name"),
        ("secret_key", "Write secret="),
        ("endpont_url", "Did you mean endpoint_url?"),
        ("colour", "those of s3fs.S3FileSystem"),
    ],
)
def test_unknown_storage_option_is_named(option: str, hint: str) -> None:
    store = S3Store("bucket", storage_options={"key": "one", "secret": "two", option: "blue"})
    with pytest.raises(InvalidConfigError, match=f"There is no storage option '{option}' for s3://bucket") as raised:
        store.get("a")
    assert hint in str(raised.value)


@pytest.mark.parametrize("endpoint", ["127.0.0.1:9000", "minio", "s3://host"])
def test_endpoint_without_http_is_refused_with_the_url_to_write(endpoint: str) -> None:
    for options in ({"endpoint_url": endpoint}, {"client_kwargs": {"endpoint_url": endpoint}}):
        with pytest.raises(InvalidConfigError, match=f"The endpoint_url {endpoint} is no URL: write http"):
            S3Store("bucket", storage_options=options)


@pytest.mark.parametrize(
    "endpoint", ["http://127.0.0.1:99999", "http://host:port", "http://[::1", "https://", "http://a b"]
)
def test_endpoint_without_a_server_is_refused(endpoint: str) -> None:
    """A wrong port makes a thread of obstore panic, and its request a broken connection."""
    for options in ({"endpoint_url": endpoint}, {"client_kwargs": {"endpoint_url": endpoint}}):
        with pytest.raises(InvalidConfigError, match=re.escape(f"The endpoint_url {endpoint} names no server")):
            S3Store("bucket", storage_options=options)


@pytest.mark.parametrize("name", ["connect_timeout", "read_timeout", "max_pool_connections"])
@pytest.mark.parametrize("value", [-1, 0, True, "60", None, float("nan"), float("inf")])
def test_numbers_that_are_not_positive_are_refused(name: str, value: object) -> None:
    """Each library makes something else of them: no timeout, no time at all, no connection ever."""
    with pytest.raises(InvalidConfigError, match=f"{name} in config_kwargs must be a positive number, not {value!r}"):
        S3Store("bucket", storage_options={"config_kwargs": {name: value}})
    S3Store("bucket", storage_options={"config_kwargs": {name: 1}})


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"config_kwargs": {"s3": {"addressing_style": "bogus"}}}, "S3 addressing style bogus is invalid"),
        ({"client_kwargs": {"region_name": "eu west"}}, "Provided region_name 'eu west'"),
    ],
)
def test_wrong_option_is_an_error_of_the_first_request(options: dict[str, Any], named: str, transport: str) -> None:
    """Whatever it is: not of the first one that obstore does not send."""
    where = {"key": "one", "secret": "two", "endpoint_url": "http://127.0.0.1:9", "transport": transport}
    with pytest.raises(InvalidConfigError, match=named):
        S3Store("bucket", storage_options={**where, **options}).get("a")


def test_certificates_of_an_authority_of_ones_own(tmp_path: Path, transport: str) -> None:
    """The errors name the setting; a file that does not exist is not a broken connection, which is tried again."""
    certificate = _self_signed(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Missing) as server:
        server.socket = context.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        where = f"https://127.0.0.1:{server.server_port}"
        options = {"key": "the-key", "secret": "the-secret", "endpoint_url": where, "transport": transport}
        for verify, error, words in (
            (None, StorageRefusedError, "pass client_kwargs={'verify'"),
            (str(tmp_path / "missing.pem"), StorageRefusedError, "a file that the connection needs does not exist"),
            (str(certificate), ObjectNotFoundError, "There is no object"),
        ):
            given = {} if verify is None else {"client_kwargs": {"verify": verify}}
            store = S3Store("bucket", storage_options={**options, **given})
            with pytest.raises(error, match=words):
                store.get("a")
            store.close()
        server.shutdown()
        thread.join()


class _Missing(http.server.BaseHTTPRequestHandler):
    """A server without objects."""

    def do_GET(self) -> None:
        body = b"<Error><Code>NoSuchKey</Code></Error>"
        self.send_response(404)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Write nothing."""


def _self_signed(folder: Path) -> Path:
    """A key, and a certificate for 127.0.0.1 that is its own authority."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "127.0.0.1")])
    made = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(datetime(2000, 1, 1, tzinfo=UTC))
        .not_valid_after(datetime(2200, 1, 1, tzinfo=UTC))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))]), critical=False)
        .sign(key, hashes.SHA256())
    )
    path = folder / "server.pem"
    secret = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    path.write_bytes(secret + made.public_bytes(serialization.Encoding.PEM))
    return path


def test_error_says_what_the_server_said() -> None:
    def error(status: int, code: str, message: str, kind: Kind = Kind.CREATE) -> Exception:
        response = {"Error": {"Code": code, "Message": message}, "ResponseMetadata": {"HTTPStatusCode": status}}
        return map_s3_error(ClientError(response, "PutObject"), kind, "bucket", URL, ("sesame",))

    refusal = error(400, "InvalidArgument", "The encryption method specified by sesame is not supported")
    assert str(refusal).startswith(
        "Cannot create s3://bucket/root/key: the server answered 400 InvalidArgument: "
        "The encryption method specified by *** is not supported."
    )
    refusal = error(501, "NotImplemented", "Server side encryption specified but KMS is not configured")
    assert type(refusal) is StorageRefusedError
    assert "cannot encrypt as s3_additional_kwargs demands" in str(refusal)
    for code in ("", "400"):
        assert "a server with TLS needs https://" in str(error(400, code, "Bad Request", Kind.READ))


@pytest.mark.parametrize("name", ["ServerSideEncrypton", "SSE"])
def test_misspelt_encryption_is_not_ignored(name: str) -> None:
    """s3fs sends no parameter that it does not know: the objects would not be encrypted."""
    store = S3Store("bucket", storage_options={"key": "a", "secret": "b", "s3_additional_kwargs": {name: "AES256"}})
    with pytest.raises(InvalidConfigError, match=f"There is no storage option '{name}' for s3://bucket"):
        store.get("a")


def test_storage_is_probed_for_each_user(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another user may have no permission to write."""
    monkeypatch.delenv("AWS_ACCESS_KEY_ID", raising=False)
    identities = [S3Store("bucket", storage_options={"key": key, "secret": "s"}).identity for key in ("a", "b", "a")]
    assert identities[0] == identities[2] != identities[1]
    default = S3Store("bucket").identity
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "a")
    assert S3Store("bucket").identity != default


def test_version_that_would_repeat_requests_is_refused() -> None:
    class Other:
        """A session without the switch, or without the method that makes it."""

    refuse_unless_switchable(AIOHTTPSession, ClientSession)
    for outer, inner in ((Other, ClientSession), (AIOHTTPSession, Other)):
        with pytest.raises(InvalidConfigError, match=r"aiohttp .* repeats a request when its connection breaks"):
            refuse_unless_switchable(outer, inner)


class _Redirects(http.server.BaseHTTPRequestHandler):
    """Sends every request for ``/bucket/moved`` to another object, which exists."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.server.requests.append(f"{self.command} {self.path}")  # type: ignore[attr-defined]
        moved = "moved" in self.path
        self.send_response(self.server.status if moved else 200)  # type: ignore[attr-defined]
        if moved:
            self.send_header("Location", "/bucket/other")
        self.send_header("ETag", f'"{hashlib.md5(body, usedforsecurity=False).hexdigest()}"')
        self.send_header("Content-Length", "0")
        self.end_headers()

    do_PUT = do_GET  # noqa: N815 - the name that http.server calls

    def log_message(self, *_: object) -> None:
        """Write nothing."""


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_redirected_create_has_not_succeeded(status: int, transport: str) -> None:
    """After 303 an HTTP library sends GET without the body: the answer says nothing about the object to create."""
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Redirects) as server:
        server.requests, server.status = [], status  # type: ignore[attr-defined]
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        where = f"http://127.0.0.1:{server.server_port}"
        store = S3Store(
            "bucket", storage_options={"key": "one", "secret": "two", "endpoint_url": where, "transport": transport}
        )
        assert store.put_if_absent("first", b"x")
        with pytest.raises(
            StorageError, match=str(status) if transport == "s3fs" or status != 303 else "ETag of the answer"
        ) as raised:
            store.put_if_absent("moved", b"x")
        followed = status == 303 and transport == "obstore"  # It has no option against it.
        assert type(raised.value) is (UnknownOutcomeError if followed else StorageRefusedError)
        store.close()
        server.shutdown()
        thread.join()
        requests: list[str] = server.requests  # type: ignore[attr-defined]
    assert requests[:2] == ["PUT /bucket/first", "PUT /bucket/moved"]
    assert requests[2:] == (["GET /bucket/other", "GET /bucket/moved", "GET /bucket/other"] if followed else [])


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_redirected_read_is_refused_by_s3fs(status: int) -> None:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Redirects) as server:
        server.requests, server.status = [], status  # type: ignore[attr-defined]
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        options = {"key": "one", "secret": "two", "endpoint_url": f"http://127.0.0.1:{server.server_port}"}
        store = S3Store("bucket", storage_options={**options, "transport": "s3fs"})
        with pytest.raises(StorageRefusedError, match=str(status)):
            store.get("moved")
        store.close()
        server.shutdown()
        thread.join()


class _Encrypting(http.server.BaseHTTPRequestHandler):
    """A bucket whose objects are encrypted: an ETag is no MD5, and each object has its own."""

    protocol_version = "HTTP/1.1"

    def do_PUT(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.server.requests.append(self.command)  # type: ignore[attr-defined]
        objects: dict[str, tuple[bytes, str]] = self.server.objects  # type: ignore[attr-defined]
        taken = self.path in objects and self.headers.get("If-None-Match") == "*"
        if not taken:
            objects[self.path] = body, hashlib.sha256(f"{len(objects)}".encode() + body).hexdigest()[:32]
        answered = self.server.etag or objects[self.path][1]  # type: ignore[attr-defined]
        self._answer(412 if taken else 200, answered, b"")

    def do_GET(self) -> None:
        self.server.requests.append(self.command)  # type: ignore[attr-defined]
        content, etag = self.server.objects[self.path]  # type: ignore[attr-defined]
        self._answer(200, etag, content)

    do_HEAD = do_GET  # noqa: N815 - the name that http.server calls

    def _answer(self, status: int, etag: str, body: bytes) -> None:
        self.send_response(status)
        self.send_header("ETag", f'"{etag}"')
        self.send_header("x-amz-server-side-encryption", "aws:kms")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Write nothing."""


def test_etags_of_an_encrypted_bucket_are_compared_once(transport: str) -> None:
    """They are no MD5. The first is that of the object; from then on a success that has one costs one request."""
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Encrypting) as server:
        server.requests, server.objects, server.etag = [], {}, "5f3e-61a8b2"  # type: ignore[attr-defined]
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        where = f"http://127.0.0.1:{server.server_port}"
        store = S3Store(
            "bucket", storage_options={"key": "one", "secret": "two", "endpoint_url": where, "transport": transport}
        )
        requests: list[str] = server.requests  # type: ignore[attr-defined]
        for write in (lambda: store.put_if_absent("a", b"0"), lambda: store.put("b", b"0")):
            with pytest.raises(UnknownOutcomeError, match="ETag of the answer, 5f3e-61a8b2, is not"):
                write()
        server.etag = ""  # type: ignore[attr-defined]
        requests.clear()
        assert store.put_if_absent("c", b"1")
        assert requests == ["PUT", "GET"]
        assert store.put_if_absent("d", b"2")
        store.put("e", b"3")
        store.put("large", bytes(MIB + 1))
        assert store.put_if_absent("d", b"4") is False
        assert requests == ["PUT", "GET", "PUT", "PUT", "PUT", "PUT"]
        store.close()
        server.shutdown()
        thread.join()


def test_only_an_s3_server_can_report_an_absence() -> None:
    """A missing entry is the head of its chain; a page of a proxy is answered with 404, too."""
    for code in ("NoSuchKey", "NoSuchBucket"):
        check_absence(Answer(404, code))
    check_absence(Answer(403, ""))
    for code in ("", "404", "NotFound"):
        with pytest.raises(ForeignAnswerError, match="404 without the error code of S3"):
            check_absence(Answer(404, code))


@pytest.mark.parametrize(
    ("status", "code", "secret", "expected"),
    [
        (404, "NoSuchKey", "Key", ObjectNotFoundError),
        (503, "SlowDown", "Slow", StorageError),
        (403, "SignatureDoesNotMatch", "Signature", StorageRefusedError),
    ],
)
def test_a_secret_that_is_a_part_of_a_code_changes_no_verdict(
    status: int, code: str, secret: str, expected: type[Exception]
) -> None:
    """The code decides as the server sent it; only what is shown is without secrets."""
    parsed = {"Error": {"Code": code, "Message": f"{secret} is wrong"}, "ResponseMetadata": {"HTTPStatusCode": status}}
    error = map_s3_error(ClientError(parsed, "GetObject"), Kind.READ, "bucket", URL, ("other", secret))
    assert type(error) is type(map_s3_error(ClientError(parsed, "GetObject"), Kind.READ, "bucket", URL, ()))
    assert isinstance(error, expected)
    assert f"{status} {code}" not in str(error)
    assert error.__cause__ is None


@pytest.mark.parametrize("etag", ['"5f3e-1"', 'W/"5f3e-1"', "5f3e-1"])
def test_etag_that_a_proxy_made_weak_is_that_of_the_object(etag: str) -> None:
    assert plain_etag(etag) == "5f3e-1"


def test_etag_of_an_upload_in_parts_is_that_of_its_parts() -> None:
    data = bytes(range(256)) * (MULTIPART_FROM_BYTES // 256) + b"end"
    parts = [hashlib.md5(data[at : at + PART_BYTES], usedforsecurity=False).digest() for at in (0, PART_BYTES)]
    whole = hashlib.md5(b"".join([*parts, hashlib.md5(b"end", usedforsecurity=False).digest()]), usedforsecurity=False)
    assert etag_of(data, in_parts=True) == f"{whole.hexdigest()}-3"
