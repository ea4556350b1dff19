"""What answers of S3 servers mean, many as MinIO gives them: with too few drives, while it starts."""

from __future__ import annotations

import pytest
from botocore.exceptions import ClientError

from txnstore.errors import ObjectNotFoundError, StorageError, StorageRefusedError, UnknownOutcomeError
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
