"""What answers of S3 servers mean, many as MinIO gives them: with too few drives, while it starts."""

from __future__ import annotations

import http.server
import threading
from collections.abc import Iterator

import pytest
from botocore.exceptions import ClientError

from txnstore.errors import (
    InvalidConfigError,
    ObjectNotFoundError,
    StorageError,
    StorageRefusedError,
    UnknownOutcomeError,
)
from txnstore.storage.s3 import S3Store
from txnstore.storage.s3_errors import Kind, from_code, map_s3_error

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
        self.server.asked.append(self.command)  # type: ignore[attr-defined]
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
        server.asked = []  # type: ignore[attr-defined]
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def test_redirect_without_a_region_is_refused_after_a_few_requests(
    elsewhere: http.server.ThreadingHTTPServer,
) -> None:
    """Botocore asks for the region, is redirected again, and so on until the stack is exhausted."""
    options = {"key": "one", "secret": "two", "endpoint_url": f"http://127.0.0.1:{elsewhere.server_port}"}
    store = S3Store("bucket", storage_options=options)
    for call in (lambda: store.get("a"), store.now_ms):
        with pytest.raises(StorageRefusedError, match="the bucket is in another region"):
            call()
    store.close()
    assert len(elsewhere.asked) <= 6  # type: ignore[attr-defined]


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
