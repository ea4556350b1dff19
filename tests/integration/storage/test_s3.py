"""S3 against real servers: the contract, requests on the wire, faults on the wire, errors, forks, secrets."""

from __future__ import annotations

import logging
import os
import pickle
import traceback
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest

from tests.harness.s3.servers import S3Server
from tests.harness.s3.servers import storage_options as options_for
from tests.harness.s3.wire import Break, RequestLog, WireFault
from tests.helpers.s3_servers import fresh_bucket
from tests.helpers.s3_wire import backend, every, s3fs_of
from txnstore.errors import (
    ObjectNotFoundError,
    StorageError,
    StorageRefusedError,
    TxnStoreError,
    UnsafeStorageError,
)
from txnstore.storage.base import ObjectStore
from txnstore.storage.counting import CountingStore
from txnstore.storage.probe import probe, probe_once
from txnstore.storage.registry import open_store
from txnstore.storage.s3.requests import MULTIPART_FROM_BYTES
from txnstore.storage.s3.store import S3Store
from txnstore.testing import StorageContract

pytestmark = pytest.mark.s3


@pytest.fixture(name="storage_options")
def options_of_transport(s3_server: S3Server, transport: str) -> dict[str, Any]:
    """What opens ``s3_bucket_url``, with each transport."""
    return {**s3_server.storage_options, "transport": transport}


@pytest.fixture(name="logged_options")
def logged_options_of_transport(request_log: RequestLog, transport: str) -> dict[str, Any]:
    """The same through ``request_log``."""
    return {**options_for(request_log.url), "transport": transport}


class TestS3(StorageContract):
    large_bytes = MULTIPART_FROM_BYTES + 1

    @pytest.fixture
    def store(self, s3_bucket_url: str, storage_options: dict[str, Any]) -> Iterator[ObjectStore]:
        store = backend(f"{s3_bucket_url}/some/root", storage_options)
        yield store
        store.close()


class TestMoto(StorageContract):
    @pytest.fixture
    def store(self, moto_server: S3Server, transport: str) -> Iterator[ObjectStore]:
        store = open_store(fresh_bucket(moto_server), {**moto_server.storage_options, "transport": transport})
        yield store
        store.close()


@pytest.fixture
def store(s3_bucket_url: str, logged_options: dict[str, Any]) -> Iterator[S3Store]:
    """A store behind ``request_log``, without retries."""
    store = backend(f"{s3_bucket_url}/root", logged_options)
    yield store
    store.close()


def test_running_server_can_be_given(monkeypatch: pytest.MonkeyPatch) -> None:
    """docs/internals/testing.md: its keys are taken from the environment, it gets buckets, and it stays."""
    with S3Server("ministack") as running:
        monkeypatch.setenv("TXNSTORE_TEST_S3", f"{running.url}/")
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "its-key")
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "its-secret")
        with S3Server() as given:
            assert (given.kind, given.url) == ("given", running.url)
            assert (given.storage_options["key"], given.storage_options["secret"]) == ("its-key", "its-secret")
            url = fresh_bucket(given)
        store = backend(url, given.storage_options)
        assert store.put_if_absent("a", b"1")
        store.close()
        monkeypatch.delenv("TXNSTORE_TEST_S3")
        assert running.storage_options["key"] == "test-access-key"
        assert S3Server().kind == "moto"


# --- requests on the wire ---------------------------------------------------------------------------------------------


def test_a_call_is_one_request(store: S3Store, request_log: RequestLog) -> None:
    """OBJ-14."""
    calls: list[tuple[Callable[[], object], str]] = [
        (lambda: store.put_if_absent("a/b", b"1"), "PUT"),
        (lambda: store.put_if_absent("a/b", b"2"), "PUT"),
        (lambda: store.put("c", b"0123456789"), "PUT"),
        (lambda: store.get("c"), "GET"),
        (lambda: store.get("c", 2, 5), "GET"),
        (lambda: store.get("c", 99), "GET"),
        (lambda: store.list(""), "LIST"),
        (lambda: store.list("a/", "a/a", 5), "LIST"),
        (lambda: store.list("missing/"), "LIST"),
        (lambda: store.stat("c"), "HEAD"),
        (store.now_ms, "HEAD"),
        (lambda: store.delete(["a/b", "c", "missing"]), "DELETE"),
    ]
    for call, kind in calls:
        request_log.clear()
        call()
        assert request_log.counts() == {kind: 1}, kind
    for missing in (lambda: store.get("x"), lambda: store.get("x", 1, 2), lambda: store.stat("x")):
        request_log.clear()
        with pytest.raises(ObjectNotFoundError):
            missing()
        assert len(request_log.requests) == 1


def test_only_creates_are_conditional_and_ranges_use_the_header(store: S3Store, request_log: RequestLog) -> None:
    store.put_if_absent("a", b"1")
    store.put("b", b"0123456789")
    store.get("b", 2, 5)
    store.get("b", 7)
    store.get("b")
    assert [request.conditional for request in request_log.requests] == [True, False, False, False, False]
    assert [request.headers.get("range") for request in request_log.requests[2:]] == ["bytes=2-4", "bytes=7-", None]
    assert [request.key for request in request_log.requests[:2]] == ["root/a", "root/b"]


def test_a_create_is_one_put_whatever_its_size(store: S3Store, request_log: RequestLog) -> None:
    """Servers check conditions on multipart uploads badly, so there are none."""
    body = b"x" * (MULTIPART_FROM_BYTES + 1)
    assert store.put_if_absent("large", body) is True
    assert request_log.counts() == {"PUT": 1}
    assert store.put_if_absent("large", b"1") is False
    assert store.stat("large").size == len(body)


def test_large_put_is_a_multipart_upload(store: S3Store, request_log: RequestLog) -> None:
    store.put("large", b"x" * (MULTIPART_FROM_BYTES + 1))
    assert request_log.counts() == {"POST": 2, "PUT": 3}
    request_log.clear()
    store.put("small", b"x" * MULTIPART_FROM_BYTES)
    assert request_log.counts() == {"PUT": 1}


def test_long_lists_and_deletes_are_paged(s3_server: S3Server, store: S3Store, request_log: RequestLog) -> None:
    keys = [f"k/{number:05}" for number in range(1001)]
    direct = backend(store.url, {**store._options, **s3_server.storage_options})
    for key in keys:
        direct.put(key, b"x")
    direct.close()
    assert [info.key for info in store.list("k/")] == keys
    assert request_log.counts() == {"LIST": 2}
    request_log.clear()
    assert [info.key for info in store.list("k/", "k/00499", 3)] == ["k/00500", "k/00501", "k/00502"]
    limits = ["3" if store.transport == "s3fs" else None]  # obstore asks for a page.
    assert [request.query.get("max-keys") for request in request_log.requests] == limits
    request_log.clear()
    store.delete(keys)
    assert request_log.counts() == {"DELETE": 2}
    assert store.list("") == []


def test_marker_objects_of_other_tools_are_not_listed(store: S3Store, request_log: RequestLog) -> None:
    client = s3fs_of(store)
    for name in ("root/folder/", "root/"):
        client.call_s3("put_object", Bucket=store.bucket, Key=name, Body=b"")
    with suppress(OSError):  # MinIO refuses such names; versitygw drops the second slash.
        client.call_s3("put_object", Bucket=store.bucket, Key="root/folder//b", Body=b"")
    store.put("folder/a", b"")
    assert [info.key for info in store.list("")] in (["folder/a"], ["folder/a", "folder/b"])


def test_the_probe_on_the_wire(store: S3Store, request_log: RequestLog) -> None:
    """9 creates, 1 get, 1 delete; and nothing the second time."""
    probe_once(CountingStore(store), lambda: "x")
    assert request_log.counts() == {"PUT": 9, "GET": 1, "DELETE": 1}
    request_log.clear()
    probe_once(store, lambda: "x")
    probe_once(backend(store.url, store._options), lambda: "x")
    assert request_log.counts() == {}


def test_the_probe_finds_a_server_that_ignores_the_condition(
    s3_server: S3Server, s3_bucket_url: str, storage_options: dict[str, Any]
) -> None:
    """OBJ-01: a store on a server that does not know If-None-Match is refused."""

    class Ignores(S3Store):
        def put_if_absent(self, key: str, data: bytes) -> bool:
            self.put(key, data)
            return True

    store = Ignores(s3_bucket_url.removeprefix("s3://"), storage_options=storage_options)
    with pytest.raises(UnsafeStorageError, match="ignores If-None-Match"):
        probe(store, lambda: "x")
    store.close()


# --- errors -----------------------------------------------------------------------------------------------------------


def every_call(store: ObjectStore) -> list[Callable[[], object]]:
    return [
        lambda: store.get("a"),
        lambda: store.put("a", b"1"),
        lambda: store.put_if_absent("a", b"1"),
        lambda: store.list("a"),
        lambda: store.delete(["a"]),
    ]


@pytest.mark.parametrize(
    ("status", "code", "words"),
    [
        (403, "InvalidAccessKeyId", "access key is unknown"),
        (403, "SignatureDoesNotMatch", "secret key is wrong"),
        (400, "ExpiredToken", "session token has expired"),
        (401, "Unauthorized", "credentials are not valid"),
        (403, "AccessDenied", "access denied"),
        (403, "RequestTimeTooSkewed", "clock of this machine is wrong"),
        (400, "AuthorizationHeaderMalformed", "another region"),
        (400, "InvalidRequest", "400 InvalidRequest"),
        (404, "NoSuchBucket", "does not exist. Create it first"),
    ],
)
def test_refusal_errors_name_the_cause(
    store: S3Store, request_log: RequestLog, status: int, code: str, words: str
) -> None:
    request_log.plan = every(WireFault(Break.STATUS, status, code))
    for call in every_call(store):
        with pytest.raises(StorageRefusedError) as caught:
            call()
        assert words in str(caught.value)
        assert store.url in str(caught.value)
        assert not caught.value.retriable


def test_server_without_conditional_writes_is_unsafe(store: S3Store, request_log: RequestLog) -> None:
    """OBJ-01."""
    request_log.plan = every(WireFault(Break.STATUS, 501, "NotImplemented"))
    with pytest.raises(UnsafeStorageError, match="does not know conditional writes"):
        store.put_if_absent("a", b"1")
    with pytest.raises(StorageRefusedError, match="501 NotImplemented"):
        store.put("a", b"1")


def test_missing_bucket_is_not_a_missing_object(s3_server: S3Server, storage_options: dict[str, Any]) -> None:
    store = backend("s3://no-such-bucket/x", storage_options)
    for call in [*every_call(store), store.now_ms]:
        with pytest.raises(StorageRefusedError, match="bucket 'no-such-bucket' does not exist"):
            call()
    store.close()


@pytest.mark.parametrize("endpoint", ["http://127.0.0.1:9", "http://no-such-host.invalid:9"])
def test_an_unreachable_endpoint_is_a_definite_failure(endpoint: str, transport: str) -> None:
    """No byte was sent, so nothing can have happened, not even to a create."""
    store = backend("s3://bucket/x", {**options_for(endpoint), "transport": transport})
    for call in every_call(store):
        with pytest.raises(StorageError, match="cannot reach the server") as caught:
            call()
        assert type(caught.value) is StorageError
    store.close()


def test_no_credentials(monkeypatch: pytest.MonkeyPatch, s3_server: S3Server, tmp_path: object, transport: str) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", f"{tmp_path}/none")
    monkeypatch.setenv("AWS_CONFIG_FILE", f"{tmp_path}/none")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    where = {"endpoint_url": s3_server.url, "client_kwargs": {"region_name": "us-east-1"}}
    store = backend("s3://bucket", {**where, "transport": transport})
    with pytest.raises(StorageRefusedError, match="no usable credentials"):
        store.get("a")
    store.close()


# --- secrets ----------------------------------------------------------------------------------------------------------


def test_secrets_reach_neither_errors_nor_logs(
    s3_bucket_url: str, request_log: RequestLog, caplog: pytest.LogCaptureFixture, logged_options: dict[str, Any]
) -> None:
    caplog.set_level(logging.DEBUG, logger="txnstore")
    secrets = ("AKIA-very-secret-id", "very/secret+key")
    options = {**logged_options, "key": secrets[0], "secret": secrets[1]}
    texts: list[str] = []
    faults = [
        WireFault(Break.STATUS, 403, "SignatureDoesNotMatch"),
        WireFault(Break.STATUS, 500, secrets[1]),
        WireFault(Break.STATUS, 503),
        WireFault(Break.DROP_BEFORE),
    ]
    for number, fault in enumerate(faults):
        request_log.plan = every(fault)
        store = open_store(f"{s3_bucket_url}/{number}", options, sleep=lambda _: None)
        texts += [repr(store), store.url]
        for call in every_call(store):
            with pytest.raises(TxnStoreError) as caught:
                call()
            texts += ["".join(traceback.format_exception(caught.value)), repr(caught.value)]
        store.close()
    texts.append(caplog.text)
    assert "retrying" in caplog.text
    for secret in secrets:
        assert not [text for text in texts if secret in text]


# --- processes --------------------------------------------------------------------------------------------------------


def test_a_store_works_on_both_sides_of_a_fork(s3_bucket_url: str, storage_options: dict[str, Any]) -> None:
    """OBJ-18: the child makes a client of its own and leaves the parent's connections alone."""
    store = open_store(s3_bucket_url, storage_options)
    store.put("a", b"1")
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            store.put("child", store.get("a") + b"2")
            store.close()
            code = 0
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert store.get("child") == b"12"
    store.close()


def test_a_pickled_store_works(s3_bucket_url: str, storage_options: dict[str, Any]) -> None:
    store = CountingStore(open_store(s3_bucket_url, storage_options))
    store.put("a", b"1")
    copy = pickle.loads(pickle.dumps(store))  # noqa: S301 - our own
    assert copy.get("a") == b"1"
    copy.close()
    store.close()


def test_options_of_the_caller_are_not_modified(s3_bucket_url: str, storage_options: dict[str, Any]) -> None:
    options = {**storage_options, "config_kwargs": {"retries": {"max_attempts": 9}}, "use_listings_cache": True}
    before = pickle.dumps(options)
    store = backend(s3_bucket_url, options)
    store.put("a", b"1")
    assert pickle.dumps(options) == before
    assert s3fs_of(store).s3.meta.config.retries["total_max_attempts"] == 1
    store.close()


def test_credentials_from_the_environment(
    monkeypatch: pytest.MonkeyPatch, s3_bucket_url: str, storage_options: dict[str, Any]
) -> None:
    """As docker/minio/README.md says."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", storage_options["endpoint_url"])
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", storage_options["key"])
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", storage_options["secret"])
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    store = open_store(f"{s3_bucket_url}/demo", {"transport": storage_options["transport"]})
    assert store.put_if_absent("a", b"1")
    assert store.get("a") == b"1"
    store.close()
