"""S3 when responses are lost, delayed or broken on the wire: what a caller knows after each."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.helpers.s3_wire import backend, every
from txnstore.errors import (
    StorageError,
    UnknownOutcomeError,
)
from txnstore.storage.registry import open_store
from txnstore.storage.s3 import MULTIPART_FROM_BYTES, S3Store
from txnstore.testing import Break, RequestLog, WireFault, WireRequest
from txnstore.testing.servers import storage_options as options_for

pytestmark = pytest.mark.s3


@pytest.fixture(name="logged_options")
def logged_options_of_transport(request_log: RequestLog, transport: str) -> dict[str, Any]:
    """What opens ``s3_bucket_url`` through ``request_log``, with each transport."""
    return {**options_for(request_log.url), "transport": transport}


@pytest.fixture
def store(s3_bucket_url: str, logged_options: dict[str, Any]) -> Iterator[S3Store]:
    """A store behind ``request_log``, without retries."""
    store = backend(f"{s3_bucket_url}/root", logged_options)
    yield store
    store.close()


def once(fault: WireFault, matches: Callable[[WireRequest], bool] = lambda _: True) -> Callable[..., WireFault | None]:
    """The first request that matches meets the fault."""
    lock = threading.Lock()
    used = False

    def plan(request: WireRequest) -> WireFault | None:
        nonlocal used
        with lock:
            if used or not matches(request):
                return None
            used = True
            return fault

    return plan


@pytest.mark.parametrize(
    "fault",
    [
        WireFault(Break.STATUS, 409, "ConditionalRequestConflict"),
        WireFault(Break.STATUS, 429, "TooManyRequests"),
        WireFault(Break.STATUS, 500, "InternalError"),
        WireFault(Break.STATUS, 503, "SlowDown"),
        WireFault(Break.STATUS, 503, "SlowDownWrite"),
        WireFault(Break.STATUS, 504, "GatewayTimeout"),
        WireFault(Break.STATUS, 499, "ClientDisconnected"),
        WireFault(Break.STATUS, 400, "RequestTimeout"),
        WireFault(Break.DROP_BEFORE),
        WireFault(Break.DROP_AFTER),
    ],
    ids=lambda fault: f"{fault.what.value}-{fault.status}-{fault.code}",
)
def test_create_without_a_response_is_unknown(store: S3Store, request_log: RequestLog, fault: WireFault) -> None:
    """OBJ-02, OBJ-04: and it is not repeated by anybody below us, on a fresh connection."""
    request_log.plan = every(fault)
    with pytest.raises(UnknownOutcomeError) as caught:
        store.put_if_absent("a", b"1")
    assert f"{store.url}/a" in str(caught.value)
    assert request_log.counts() == {"PUT": 1}
    request_log.plan = None
    # The same bytes again, at the same name, find out: this is what the commit loop does.
    store.put_if_absent("a", b"1")
    assert store.get("a") == b"1"


@pytest.mark.parametrize("what", [Break.DROP_BEFORE, Break.DROP_AFTER])
def test_a_broken_reused_connection_makes_a_create_unknown(
    store: S3Store, request_log: RequestLog, what: Break
) -> None:
    """OBJ-02: the HTTP library would send again by itself, and hear 412 because of its own first half."""
    store.list("")
    request_log.clear()
    request_log.plan = once(WireFault(what))
    with pytest.raises(UnknownOutcomeError):
        store.put_if_absent("a", b"1")
    assert request_log.counts() == {"PUT": 1}
    assert store.put_if_absent("a", b"1") is (what is Break.DROP_BEFORE)
    assert store.get("a") == b"1"


def test_timeout_is_unknown(store: S3Store, request_log: RequestLog, logged_options: dict[str, Any]) -> None:
    options = {**logged_options, "config_kwargs": {"read_timeout": 3.0}}
    impatient = backend(store.url, options)
    request_log.plan = once(WireFault(Break.HANG_AFTER, delay_s=600.0))
    with pytest.raises(UnknownOutcomeError, match="no answer came in time"):
        impatient.put_if_absent("a", b"1")
    impatient.close()
    assert store.put_if_absent("a", b"2") is False
    assert store.get("a") == b"1"


def test_failed_reads_are_definite_errors(store: S3Store, request_log: RequestLog) -> None:
    store.put("a", b"1")
    request_log.plan = every(WireFault(Break.STATUS, 503, "SlowDown"))
    for read in (lambda: store.get("a"), lambda: store.list(""), lambda: store.stat("a"), store.now_ms):
        with pytest.raises(StorageError) as caught:
            read()
        assert type(caught.value) is StorageError
        assert caught.value.retriable


def test_retries_hide_transient_errors(
    s3_bucket_url: str, request_log: RequestLog, logged_options: dict[str, Any]
) -> None:
    waits: list[float] = []
    store = open_store(s3_bucket_url, logged_options, sleep=waits.append)
    for fault in (WireFault(Break.STATUS, 500, "InternalError"), WireFault(Break.DROP_AFTER), WireFault(Break.STATUS)):
        request_log.plan = once(fault)
        store.put("a", b"1")
        request_log.plan = once(fault)
        assert store.get("a") == b"1"
        request_log.plan = once(fault)
        store.delete(["a"])
    assert store.list("") == []
    assert waits
    store.close()


def test_a_multipart_put_that_fails_leaves_no_object(store: S3Store, request_log: RequestLog) -> None:
    request_log.plan = once(WireFault(Break.STATUS, 500, "InternalError"), lambda r: r.query.get("partNumber") == "2")
    with pytest.raises(UnknownOutcomeError):
        store.put("large", b"x" * (MULTIPART_FROM_BYTES + 1))
    assert store.list("") == []
    uploads = store._requests().files.call_s3("list_multipart_uploads", Bucket=store.bucket)
    assert uploads.get("Uploads", []) == []
