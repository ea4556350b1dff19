"""S3 when responses are lost, delayed or broken on the wire: what a caller knows after each."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest

import txnstore
from tests.harness.s3.servers import storage_options as options_for
from tests.harness.s3.wire import Break, RequestLog, WireFault, WireRequest
from tests.helpers.s3_wire import backend, every, s3fs_of
from txnstore.chain.keys import latest
from txnstore.errors import (
    CorruptionError,
    DamagedObjectError,
    ObjectNotFoundError,
    StorageError,
    UnknownOutcomeError,
)
from txnstore.storage.registry import open_store
from txnstore.storage.s3.requests import MIB, MULTIPART_FROM_BYTES
from txnstore.storage.s3.store import S3Store

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
    uploads = s3fs_of(store).call_s3("list_multipart_uploads", Bucket=store.bucket)
    assert uploads.get("Uploads", []) == []


_PAGE = b"<html>Please log in</html>"
#: Successes of something that is not the store.
_FOREIGN = [
    WireFault(Break.ANSWER, 200, body=_PAGE),
    WireFault(Break.ANSWER, 200),
    WireFault(Break.ANSWER, 200, headers=(("ETag", '"5f3e-61a8b2"'),), body=_PAGE),
    WireFault(Break.ANSWER, 200, headers=(("ETag", '"d41d8cd98f00b204e9800998ecf8427e"'),)),
    WireFault(Break.ANSWER, 204),
]


@pytest.mark.parametrize("fault", _FOREIGN, ids=["page", "empty", "page-with-etag", "another-object", "no-content"])
@pytest.mark.parametrize("both", [False, True], ids=["once", "always"])
def test_create_that_something_else_answers_is_unknown(
    store: S3Store, request_log: RequestLog, fault: WireFault, both: bool
) -> None:
    """OBJ-01: a proxy or a login page answers 200; the store has not received the request."""
    request_log.plan = every(fault) if both else once(fault)
    with pytest.raises(UnknownOutcomeError, match="does not come from the store"):
        store.put_if_absent("a", b"1")
    request_log.plan = None
    with pytest.raises(ObjectNotFoundError):
        store.get("a")
    assert store.put_if_absent("a", b"1") is True


@pytest.mark.parametrize("fault", _FOREIGN, ids=["page", "empty", "page-with-etag", "another-object", "no-content"])
@pytest.mark.parametrize("size", [1, 2 * MIB])
def test_write_that_something_else_answers_is_unknown(
    store: S3Store, request_log: RequestLog, fault: WireFault, size: int
) -> None:
    """A segment that is nowhere would be named by an entry."""
    request_log.plan = once(fault)
    with pytest.raises(UnknownOutcomeError, match="does not come from the store"):
        store.put("a", bytes(size))
    with pytest.raises(ObjectNotFoundError):
        store.get("a")


def _is_part(number: str, request: WireRequest) -> bool:
    return request.query.get("partNumber") == number


def test_multipart_put_that_something_else_answers_is_unknown(store: S3Store, request_log: RequestLog) -> None:
    """Also where the client sends the part again, as on a machine that is too busy to answer in time."""
    fault = WireFault(Break.ANSWER, 200)
    for number in ("1", "2"):
        is_part = partial(_is_part, number)
        request_log.plan = lambda request, is_part=is_part: fault if is_part(request) else None
        with pytest.raises(UnknownOutcomeError, match="does not come from the store"):
            store.put("large", b"x" * (MULTIPART_FROM_BYTES + 1))
    assert store.list("") == []


def test_answer_about_another_object_is_compared_with_the_object(store: S3Store, request_log: RequestLog) -> None:
    """The server has created the object, and the answer does not show it: one more request does."""
    for fault in (WireFault(Break.ANSWER_AFTER, 200), WireFault(Break.STATUS_AFTER, 200)):
        request_log.plan = once(fault)
        request_log.clear()
        assert store.put_if_absent(f"no etag/{fault.what.value}", b"1") is True
        assert request_log.counts() == {"PUT": 1, "GET": 1}
    foreign = WireFault(Break.ANSWER_AFTER, 200, headers=(("ETag", '"5f3e-61a8b2"'),))
    request_log.plan = once(foreign)
    with pytest.raises(UnknownOutcomeError):
        store.put_if_absent("another etag", b"1")


def test_absence_that_something_else_reports_is_not_believed(store: S3Store, request_log: RequestLog) -> None:
    """An entry that is not there is the head of its chain: a page of a proxy must not be the reason."""
    store.put("a", b"1")
    request_log.plan = every(WireFault(Break.ANSWER, 404, body=b"<html>Not found</html>"))
    reads: list[Callable[[], bytes]] = [lambda: store.get("a"), lambda: store.get("a", 0, 1)]
    for read in reads:
        with pytest.raises(StorageError, match="does not come from the store") as caught:
            read()
        assert type(caught.value) is StorageError
        assert caught.value.retriable


def _first_reads(fault: WireFault, times: int, key_contains: str = "") -> Callable[..., WireFault | None]:
    """The first GETs of an object meet the fault."""
    left = list(range(times))

    def plan(request: WireRequest) -> WireFault | None:
        if request.method != "GET" or not request.key or key_contains not in request.key or not left:
            return None
        left.pop()
        return fault

    return plan


@pytest.mark.parametrize("what", [Break.CUT, Break.ALTER])
def test_damaged_answer_is_read_again(
    s3_bucket_url: str, request_log: RequestLog, logged_options: dict[str, Any], what: Break, transport: str
) -> None:
    """A checksum of botocore, or a body that ends too early: the next answer is sound."""
    store = open_store(s3_bucket_url, logged_options, sleep=lambda _: None)
    store.put("a", b"12345")
    request_log.plan = _first_reads(WireFault(what), 4)
    if (what, transport) == (Break.ALTER, "obstore"):
        assert store.get("a") != b"12345", "it compares nothing; what reads the object does"
    else:
        assert store.get("a") == b"12345"
    store.close()


def test_object_whose_every_answer_is_damaged_is_corrupt(
    s3_bucket_url: str, request_log: RequestLog, storage_options: dict[str, Any]
) -> None:
    options = {**storage_options, "endpoint_url": request_log.url, "transport": "s3fs"}
    store = open_store(s3_bucket_url, options, sleep=lambda _: None)
    store.put("a", b"12345")
    request_log.plan = every(WireFault(Break.ALTER))
    with pytest.raises(CorruptionError, match=rf"a on {store.url} is damaged.*checksum") as caught:
        store.get("a")
    assert isinstance(caught.value.__cause__, DamagedObjectError)
    store.close()


@pytest.mark.parametrize("what", [Break.CUT, Break.ALTER])
def test_hint_that_cannot_be_read_does_not_prevent_opening(
    s3_bucket_url: str, request_log: RequestLog, logged_options: dict[str, Any], what: Break
) -> None:
    with txnstore.create(s3_bucket_url, storage_options=logged_options) as store:
        store.create_topic("t")
        store.checkpoint()
    request_log.plan = _first_reads(WireFault(what), 100, latest(0))
    with txnstore.open(s3_bucket_url, storage_options=logged_options, read_only=True) as store:
        assert [topic.name for topic in store.topics()] == ["t"]
