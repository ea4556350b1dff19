"""Which library sends the requests to S3, what obstore is given, and what its errors mean."""

from __future__ import annotations

import logging
import pickle
from importlib.metadata import PackageNotFoundError
from typing import Any

import obstore.store
import pytest

from txnstore.errors import (
    InvalidConfigError,
    ObjectNotFoundError,
    StorageError,
    StorageRefusedError,
    UnknownOutcomeError,
)
from txnstore.storage.registry import open_store
from txnstore.storage.s3 import obstore as s3_obstore
from txnstore.storage.s3.errors import Kind, NotSecureError, NotSentError, map_s3_error
from txnstore.storage.s3.obstore import ObstoreRequests, endpoint_of, translate_error
from txnstore.storage.s3.store import S3Store

#: An address without a server: a request fails, and the transport has been chosen.
NOWHERE = {"key": "one", "secret": "two", "endpoint_url": "http://127.0.0.1:9"}


def _chosen(**options: Any) -> str | None:
    return _chosen_by(S3Store("bucket", storage_options={**NOWHERE, **options}))


def _chosen_by(store: S3Store) -> str | None:
    with pytest.raises(StorageError):
        store.get("a")
    transport = store.transport
    store.close()
    return transport


def test_installed_obstore_is_used_and_named(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="txnstore")
    store = S3Store("bucket", "root", storage_options=NOWHERE)
    assert (store.transport, repr(store)) == (None, "S3Store('s3://bucket/root')")
    with pytest.raises(StorageError):
        store.get("a")
    assert (store.transport, repr(store)) == ("obstore", "S3Store('s3://bucket/root' by obstore)")
    assert store.bucket_settings().transport == "obstore"
    assert "S3 requests go through obstore" in caplog.text
    store.close()


def test_obstore_has_a_store_for_each_size_of_bodies(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its time limit is that of a body of the size, in MiB; a store keeps its connections."""
    made: list[int] = []
    make = ObstoreRequests._make_store

    def noted(self: ObstoreRequests, credentials: Any, mib: int) -> Any:
        made.append(mib)
        return make(self, credentials, mib)

    monkeypatch.setattr(ObstoreRequests, "_make_store", noted)
    store = S3Store("bucket", storage_options={**NOWHERE, "transport": "obstore"})
    for size in (1, 1, 3 << 20, 3 << 20):
        with pytest.raises(StorageError):
            store.put("a", bytes(size))
    store.close()
    assert made == [1, 4]


def test_option_names_the_transport(transport: str) -> None:
    assert _chosen(transport=transport) == transport


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"cache_regions": False}, "cache_regions"),
        ({"client_kwargs": {"api_version": "2006-03-01"}}, "client_kwargs api_version"),
        ({"config_kwargs": {"proxies": {"http": "http://127.0.0.1:9"}}}, "config_kwargs proxies"),
        ({"config_kwargs": {"s3": {"use_accelerate_endpoint": True}}}, "config_kwargs s3 use_accelerate_endpoint"),
        ({"config_kwargs": {"signature_version": "s3"}}, "signature_version s3"),
        ({"s3_additional_kwargs": {"StorageClass": "STANDARD_IA"}}, "s3_additional_kwargs StorageClass"),
        (
            {"s3_additional_kwargs": {"ServerSideEncryption": "aws:fsx"}},
            "s3_additional_kwargs ServerSideEncryption 'aws:fsx'",
        ),
        ({"s3_additional_kwargs": {"SSEKMSKeyId": 5}}, "s3_additional_kwargs SSEKMSKeyId 5"),
    ],
)
def test_option_that_obstore_does_not_know_needs_s3fs(
    options: dict[str, Any], named: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="txnstore")
    assert _chosen(**options) == "s3fs"
    reasons = {getattr(record, "not_obstore", None) for record in caplog.records}
    assert reasons == {f"it does not know {named}"}
    store = S3Store("bucket", storage_options={**NOWHERE, **options, "transport": "obstore"})
    with pytest.raises(InvalidConfigError, match=f"'obstore' does not know the storage option {named} for s3://bucket"):
        store.get("a")


def test_endpoint_of_the_environment_without_a_server_needs_s3fs(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Which refuses it, where a thread of obstore panics."""
    caplog.set_level(logging.INFO, logger="txnstore")
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:99999")
    store = S3Store("bucket", storage_options={"key": "one", "secret": "two"})
    with pytest.raises(StorageRefusedError, match="was not a valid URI"):
        store.get("a")
    store.close()
    reasons = {getattr(record, "not_obstore", None) for record in caplog.records}
    assert reasons == {"it does not know endpoint_url http://127.0.0.1:99999"}


def test_wrong_transports_are_refused_when_the_store_is_opened() -> None:
    for wrong in ("boto3", "", 1):
        with pytest.raises(InvalidConfigError, match=f"'transport' must be 's3fs' or 'obstore', not {wrong!r}"):
            open_store("s3://bucket", {"transport": wrong})


@pytest.mark.parametrize(
    ("installed", "reason"),
    [
        (None, "not installed"),
        ("", "version unknown, not 0.12"),
        ("0.11.9", "version 0.11.9, not 0.12"),
        ("0.120.0", "version 0.120.0, not 0.12"),
    ],
)
def test_another_version_of_obstore_is_not_used(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, installed: str | None, reason: str
) -> None:
    """Its errors are text, which only one version has as this one."""

    def version(name: str) -> str:
        if installed is None:
            raise PackageNotFoundError(name)
        return installed

    monkeypatch.setattr(s3_obstore, "version", version)
    with pytest.raises(InvalidConfigError, match=rf"'obstore' is {reason}: install txnstore\[obstore\]"):
        open_store("s3://bucket", {"transport": "obstore"})
    caplog.set_level(logging.INFO, logger="txnstore")
    assert _chosen() == "s3fs"
    assert {getattr(record, "not_obstore", None) for record in caplog.records} == {reason}


def test_pickled_store_keeps_its_transport(transport: str) -> None:
    store = S3Store("bucket", storage_options={**NOWHERE, "transport": transport})
    assert _chosen_by(pickle.loads(pickle.dumps(store))) == transport  # noqa: S301 - our own


@pytest.mark.parametrize(
    ("url", "bucket", "style", "expected"),
    [
        ("https://s3.eu-central-1.amazonaws.com", "b", None, ("https://b.s3.eu-central-1.amazonaws.com", True)),
        ("https://s3.amazonaws.com", "b", "path", ("https://s3.amazonaws.com", False)),
        ("https://s3.amazonaws.com", "with.dot", None, ("https://s3.amazonaws.com", False)),
        ("https://minio.example:9000", "b", None, ("https://minio.example:9000", False)),
        ("https://minio.example:9000", "b", "auto", ("https://minio.example:9000", False)),
        ("https://minio.example:9000/", "b", "virtual", ("https://b.minio.example:9000", True)),
        ("http://127.0.0.1:9000", "b", "virtual", ("http://127.0.0.1:9000", False)),
    ],
)
def test_bucket_is_where_botocore_puts_it(url: str, bucket: str, style: str | None, expected: tuple[str, bool]) -> None:
    assert endpoint_of(url, bucket, style) == expected


class AlreadyExistsError(Exception):
    """Named as the class of obstore: what a conflict is, 409 or 412, only the text tells."""


@pytest.mark.parametrize("text", ["", "Object at location a already exists", "another wording in another version"])
def test_error_that_cannot_be_read_has_an_unknown_outcome(text: str) -> None:
    problem = map_s3_error(translate_error(AlreadyExistsError(text)), Kind.CREATE, "bucket", "s3://bucket/a", ())
    assert type(problem) is UnknownOutcomeError


def test_missing_object_is_known_by_its_class() -> None:
    problem = map_s3_error(
        translate_error(FileNotFoundError("another wording")), Kind.READ, "bucket", "s3://bucket/a", ()
    )
    assert type(problem) is ObjectNotFoundError


def test_request_is_known_as_unsent_only_without_a_connection() -> None:
    text = "Generic S3 error\n\nDebug source:\nHttpError {{ kind: {}, source: {} }}"
    assert type(translate_error(OSError(text.format("Connect", 'message: "refused"')))) is NotSentError
    assert (
        type(translate_error(OSError(text.format("Connect", "InvalidCertificate(\n UnknownIssuer")))) is NotSecureError
    )
    for kind in ("Timeout", "Interrupted", "Request", "Unknown"):
        problem = map_s3_error(
            translate_error(OSError(text.format(kind, ""))), Kind.CREATE, "bucket", "s3://bucket/a", ()
        )
        assert type(problem) is UnknownOutcomeError


@pytest.mark.parametrize(
    ("style", "endpoint"), [("virtual", "http://bucket.localhost:9"), ("path", "http://localhost:9")]
)
def test_addressing_style_of_the_options_is_that_of_obstore(
    monkeypatch: pytest.MonkeyPatch, style: str, endpoint: str
) -> None:
    made: list[obstore.store.S3Store] = []
    make = obstore.store.S3Store

    def recorded(*args: Any, **options: Any) -> obstore.store.S3Store:
        made.append(make(*args, **options))
        return made[-1]

    monkeypatch.setattr(obstore.store, "S3Store", recorded)
    options = {
        "key": "one",
        "secret": "two",
        "endpoint_url": "http://localhost:9",
        "transport": "obstore",
        "config_kwargs": {"s3": {"addressing_style": style}},
    }
    store = S3Store("bucket", storage_options=options)
    with pytest.raises(StorageError):  # No server listens there.
        store.get("a")
    store.close()
    config = made[0].config
    assert config["endpoint_url_s3"] == endpoint
    assert config["virtual_hosted_style_request"] == ("true" if style == "virtual" else "false")
