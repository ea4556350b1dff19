"""What obstore sends: credentials that change, encryption, nothing from the environment; and forks."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import txnstore
from tests.harness.s3.servers import S3Server
from tests.harness.s3.servers import storage_options as options_for
from tests.harness.s3.wire import Break, RequestLog, WireFault
from tests.helpers.s3_servers import fresh_bucket
from tests.helpers.s3_wire import backend, every, s3fs_of
from txnstore.errors import StorageRefusedError, UnknownOutcomeError
from txnstore.storage.probe import probe
from txnstore.storage.s3.obstore import is_usable

pytestmark = pytest.mark.s3


@pytest.fixture
def any_key_log(moto_server: S3Server) -> Iterator[RequestLog]:
    """A logging proxy in front of a server that accepts any key, and encryption."""
    with RequestLog(moto_server.url) as log:
        yield log


@pytest.fixture(scope="module")
def full_bucket(moto_server: S3Server) -> str:
    """A bucket with more objects in a folder than a page of a list has."""
    url = fresh_bucket(moto_server)
    store = backend(url, moto_server.storage_options)
    for number in range(1002):
        store.put(f"x/{number:04}", b"1")
    store.close()
    return url


_PROCESS = """
import json, pathlib, sys
from datetime import datetime, timedelta, timezone
expires = (datetime.now(timezone.utc) + timedelta(minutes=5)).isoformat()
key = pathlib.Path(sys.argv[1]).read_text()
keys = {"AccessKeyId": key, "SecretAccessKey": "x", "SessionToken": "t"}
print(json.dumps({"Version": 1, **keys, "Expiration": expires}))
"""


def test_renewed_credentials_sign_the_next_request(
    monkeypatch: pytest.MonkeyPatch, moto_server: S3Server, any_key_log: RequestLog, tmp_path: Path
) -> None:
    """Of a process, which expire soon: botocore renews them as those of a role."""
    program, key, config = tmp_path / "program.py", tmp_path / "key", tmp_path / "config"
    program.write_text(_PROCESS)
    key.write_text("first-key")
    config.write_text(f"[profile renewed]\ncredential_process = {sys.executable} {program} {key}\n")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(config))
    options = {name: value for name, value in options_for(any_key_log.url).items() if name not in ("key", "secret")}
    store = backend(fresh_bucket(moto_server), {**options, "profile": "renewed", "transport": "obstore"})
    store.put("a", b"1")
    key.write_text("second-key")
    assert store.get("a") == b"1"
    assert store.get("a", 0, 1) == b"1"
    signed = [request.headers["authorization"] for request in any_key_log.requests]
    assert ["first-key" in text for text in signed] == [True, False, False]
    assert ["second-key" in text for text in signed] == [False, True, True]
    assert {request.headers["x-amz-security-token"] for request in any_key_log.requests} == {"t"}
    store.close()


def test_variables_that_only_obstore_knows_change_nothing(
    monkeypatch: pytest.MonkeyPatch, s3_bucket_url: str, request_log: RequestLog, transport: str
) -> None:
    for name, value in {
        "AWS_SESSION_TOKEN": "of-another-key",
        "AWS_CONDITIONAL_PUT": "disabled",
        "AWS_SKIP_SIGNATURE": "true",
        "AWS_ENDPOINT": "http://127.0.0.1:9",
        "AWS_VIRTUAL_HOSTED_STYLE_REQUEST": "true",
    }.items():
        monkeypatch.setenv(name, value)
    store = backend(s3_bucket_url, {**options_for(request_log.url), "transport": transport})
    assert (store.put_if_absent("a", b"1"), store.put_if_absent("a", b"2")) == (True, False)
    for request in request_log.requests:
        assert request.conditional
        assert "authorization" in request.headers
        assert "x-amz-security-token" not in request.headers
    store.close()


def test_answer_without_an_etag_is_resolved_by_reading(
    s3_bucket_url: str, request_log: RequestLog, transport: str
) -> None:
    """OBJ-01: a server whose answers are all the same 200 creates a name once, and the object shows who did."""
    store = backend(s3_bucket_url, {**options_for(request_log.url), "transport": transport})
    silent = WireFault(Break.STATUS_AFTER, 200, "OK")
    request_log.plan = lambda request: silent if request.method == "PUT" else None
    assert store.put_if_absent("a", b"1")
    store.put("b", b"1")
    with pytest.raises(UnknownOutcomeError):
        store.put_if_absent("a", b"2")
    assert store.get("a") == b"1"
    probe(store, lambda: "x")
    store.close()


def test_encryption_and_payer_are_asked_for(moto_server: S3Server, any_key_log: RequestLog, transport: str) -> None:
    wanted = {"s3_additional_kwargs": {"ServerSideEncryption": "AES256"}, "requester_pays": True}
    store = backend(fresh_bucket(moto_server), {**options_for(any_key_log.url), **wanted, "transport": transport})
    store.put_if_absent("a", b"1")
    store.put("b", b"1")
    store.get("b")
    assert store.transport == transport
    headers = [request.headers for request in any_key_log.requests]
    assert [each.get("x-amz-server-side-encryption") for each in headers] == ["AES256", "AES256", None]
    assert [each.get("x-amz-request-payer") for each in headers] == ["requester"] * 3
    store.close()


def test_child_of_a_process_with_obstore_uses_s3fs(s3_bucket_url: str, storage_options: dict[str, Any]) -> None:
    """A request of the child through obstore would wait without end, and its sockets would crash the parent."""
    store = backend(s3_bucket_url, {**storage_options, "transport": "obstore"})
    assert store.put_if_absent("parent", b"1")

    def child() -> bool:
        created = store.put_if_absent("child", b"2")
        of_its_own = backend(s3_bucket_url, storage_options)
        return created and of_its_own.get("parent") == b"1" and {store.transport, of_its_own.transport} == {"s3fs"}

    assert _forked(lambda: child() and _forked(_is_kept_from_obstore))
    assert store.get("child") == b"2"
    assert (store.transport, store.put_if_absent("child", b"3")) == ("obstore", False)
    store.close()


def _is_kept_from_obstore() -> bool:
    return not is_usable()


def _forked(call: Callable[[], bool]) -> bool:
    """Whether the call is true in a forked child."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            code = 0 if call() else 2
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


_OPEN = """
import json, sys
import txnstore
from txnstore.storage.registry import open_store
url, options = json.loads(sys.argv[1])
with txnstore.open(url, storage_options=options) as store:
    assert list(store.scan("t").plan())
    store.producer(linger=None).send("t", b"2").result()
    store.vacuum()
objects = open_store(url + "-objects", options)
objects.put("large", bytes(65 << 20))
assert objects.put_if_absent("larger than small", bytes(2 << 20))
assert objects.stat("large").size == 65 << 20
assert [info.key for info in objects.list("large")] == ["large", "larger than small"]
assert objects.now_ms()
objects.delete(["large", "larger than small"])
assert not objects.list("")
objects.close()
print(*sorted({"s3fs", "aiobotocore", "botocore", "aiohttp", "obstore"} & sys.modules.keys()))
"""


@pytest.mark.parametrize(
    ("chains", "options", "loaded"),
    [
        (1, {"transport": "obstore"}, ["obstore"]),
        (8, {"transport": "obstore"}, ["obstore"]),
        (1, {"transport": "obstore", "use_ssl": False}, ["botocore", "obstore"]),
        (1, {"transport": "s3fs"}, ["aiobotocore", "aiohttp", "botocore", "s3fs"]),
    ],
)
def test_no_request_of_a_transport_loads_the_other(
    s3_bucket_url: str, storage_options: dict[str, Any], chains: int, options: dict[str, Any], loaded: list[str]
) -> None:
    """What s3fs needs takes longer to import than all else. An option that is not plain needs botocore.

    Of eight chains most are empty, which an open makes sure of by lists with a limit.
    """
    url, storage_options = f"{s3_bucket_url}/store", {**storage_options, **options}
    with txnstore.create(url, storage_options=storage_options, chains=chains) as store:
        store.create_topic("t")
        store.producer(linger=None).send("t", b"1").result()
        store.checkpoint()
    arguments = [sys.executable, "-c", _OPEN, json.dumps([url, storage_options])]
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("AWS_", "FSSPEC_"))}
    run = subprocess.run(arguments, env=environment, check=False, capture_output=True, text=True)
    assert (run.stdout.split(), run.returncode) == (loaded, 0), run.stderr


@pytest.mark.parametrize(
    ("after", "limit", "first", "requests"),
    [("", 1, 0, 1), ("", 1000, 0, 1), ("", 1001, 0, 2), ("x/0002", 1000, 3, 1), ("x/~", 1, 1002, 1), ("", None, 0, 2)],
)
def test_list_with_a_limit_sends_no_more_requests_than_pages(
    full_bucket: str, any_key_log: RequestLog, after: str, limit: int | None, first: int, requests: int
) -> None:
    """A chunk of obstore is as long as the limit, and a page of S3 has 1,000 keys; the folder has 1,002."""
    store = backend(full_bucket, {**options_for(any_key_log.url), "transport": "obstore"})
    keys = [f"x/{number:04}" for number in range(1002)][first:][:limit]
    assert [info.key for info in store.list("x/", after, limit)] == keys
    agents = [request.headers["user-agent"].lower() for request in any_key_log.requests]
    assert ["object_store" in agent for agent in agents] == [True] * requests
    store.close()


@pytest.mark.parametrize(("marker", "by"), [("x/", "HEAD"), ("x//b", "s3fs"), ("x/./c", "s3fs")])
def test_list_with_a_key_that_obstore_would_change(
    moto_server: S3Server, any_key_log: RequestLog, marker: str, by: str
) -> None:
    """It drops the slash at the end of a folder's marker; some keys make the whole list fail, which s3fs repeats."""
    store = backend(f"{fresh_bucket(moto_server)}/root", {**options_for(any_key_log.url), "transport": "obstore"})
    store.put("x/a", b"1")
    assert [info.key for info in store.list("")] == ["x/a"]
    s3fs_of(store).call_s3("put_object", Bucket=store.bucket, Key=f"root/{marker}", Body=b"")
    any_key_log.clear()
    assert [info.key for info in store.list("")] == ["x/a"]
    agents = [request.headers["user-agent"].lower() for request in any_key_log.requests]
    assert ["botocore" in agent for agent in agents] == [False, by == "s3fs"]
    assert [request.kind for request in any_key_log.requests] == ["LIST", "HEAD" if by == "HEAD" else "LIST"]
    store.close()


@pytest.mark.parametrize(
    ("prefix", "keys"),
    [
        ("x/0", ["x/0", "x/0a"]),
        ("x/0a", ["x/0a"]),
        ("x/b", ["x/b", "x/b-1", "x/b/c", "x/bc"]),
        ("x/b/", ["x/b/c"]),
        ("x/c", []),
        ("x", ["x/0", "x/0a", "x/Z", "x/a", "x/b", "x/b-1", "x/b/c", "x/bc"]),
        ("y", ["y"]),
    ],
)
def test_list_of_a_prefix_that_is_no_folder_is_one_request(
    moto_server: S3Server, any_key_log: RequestLog, prefix: str, keys: list[str]
) -> None:
    store = backend(fresh_bucket(moto_server), {**options_for(any_key_log.url), "transport": "obstore"})
    for key in ("x/0", "x/0a", "x/Z", "x/a", "x/b", "x/b-1", "x/b/c", "x/bc", "y"):
        store.put(key, b"1")
    any_key_log.clear()
    assert [info.key for info in store.list(prefix)] == keys
    assert [info.key for info in store.list(prefix, "x/b-1")] == [key for key in keys if key > "x/b-1"]
    assert [info.key for info in store.list(prefix, limit=1)] == keys[:1]
    assert any_key_log.counts() == {"LIST": 3}
    store.close()


def test_key_that_may_not_be_deleted_is_named(moto_server: S3Server, any_key_log: RequestLog, transport: str) -> None:
    """The answer to a deletion of many keys is a success."""
    store = backend(f"{fresh_bucket(moto_server)}/root", {**options_for(any_key_log.url), "transport": transport})
    refused = b"<Error><Key>root/b</Key><Code>%b</Code><Message>why</Message></Error>"
    for code, error in ((b"AccessDenied", StorageRefusedError), (b"SlowDownWrite", UnknownOutcomeError)):
        body = b"<DeleteResult><Deleted><Key>root/a</Key></Deleted>" + refused % code + b"</DeleteResult>"
        any_key_log.plan = every(WireFault(Break.ANSWER, 200, body=body))
        with pytest.raises(error, match=rf"s3://{store.bucket}/root/[ab]\b.* {code.decode()}") as caught:
            store.delete(["a", "b"])
        assert type(caught.value) is error
    store.close()
