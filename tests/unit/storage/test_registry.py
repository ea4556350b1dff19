"""URLs: what opens what, what is refused, and that no credential is ever shown."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable
from pathlib import Path

import pytest

from txnstore.errors import InvalidConfigError
from txnstore.storage.local import LocalStore
from txnstore.storage.memory import MemoryStore
from txnstore.storage.redact import redact
from txnstore.storage.registry import open_store
from txnstore.storage.retry import RetryingStore
from txnstore.storage.s3.store import S3Store


def backend(url: str | os.PathLike[str], **options: object) -> object:
    store = open_store(url, options or None)
    assert isinstance(store, RetryingStore)
    return store.inner


def test_paths_and_file_urls_are_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for url, root in {
        "some/folder": tmp_path / "some/folder",
        "/abs/folder/": Path("/abs/folder"),
        "file:///abs/folder": Path("/abs/folder"),
        "file://localhost/abs/folder": Path("/abs/folder"),
        "FILE:///abs/folder": Path("/abs/folder"),
        "~/folder": tmp_path / "home/folder",
        "../up": tmp_path.parent / "up",
        "with:colon": tmp_path / "with:colon",
    }.items():
        store = backend(url)
        assert isinstance(store, LocalStore)
        assert store.root == str(root)
    assert isinstance(backend(tmp_path), LocalStore)


@pytest.mark.parametrize("name", ["plain", "with blank", "50%25", "ü", "a#b?c"])
def test_file_url_round_trip(tmp_path: Path, name: str) -> None:
    for url in (str(tmp_path / name), (tmp_path / name).as_uri()):
        store = backend(url)
        assert isinstance(store, LocalStore)
        assert store.root == str(tmp_path / name)
        again = backend(store.url)
        assert isinstance(again, LocalStore)
        assert again.root == store.root


def test_memory_url_names_one_store_per_process() -> None:
    try:
        assert backend("memory://registry-test") is MemoryStore.named("registry-test")
        assert backend("memory://registry-test/") is MemoryStore.named("registry-test")
    finally:
        MemoryStore.forget("registry-test")


@pytest.mark.parametrize(
    ("url", "bucket", "prefix", "shown"),
    [
        ("s3://bucket", "bucket", "", "s3://bucket"),
        ("s3://bucket/", "bucket", "", "s3://bucket"),
        ("s3a://bucket/a/b/", "bucket", "a/b", "s3://bucket/a/b"),
        ("S3://bucket/a", "bucket", "a", "s3://bucket/a"),
        ("s3://bucket/a@b", "bucket", "a@b", "s3://bucket/a@b"),
    ],
)
def test_s3_urls(url: str, bucket: str, prefix: str, shown: str) -> None:
    store = backend(url, key="k", secret="s")
    assert isinstance(store, S3Store)
    assert (store.bucket, store.prefix, store.url) == (bucket, prefix, shown)


def test_non_url_is_refused() -> None:
    for wrong in (None, 5, b"folder", ["folder"]):
        with pytest.raises(InvalidConfigError, match="named by a URL or a path, not by"):
            open_store(wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("gs://bucket/x", "Google Cloud Storage .* is not supported"),
        ("az://container/x", "Azure Blob Storage .* is not supported"),
        ("abfss://c@a.dfs.core.windows.net/x", "is not supported"),
        ("https://host/x", "cannot store anything at https:// URLs"),
        ("hdfs://host/x", "cannot store anything at hdfs:// URLs"),
        ("s3:/bucket/x", "write // after the colon"),
        ("s3:bucket/x", "write // after the colon"),
        ("S3:/bucket/x", "write // after the colon"),
        ("file:/tmp/x", "write // after the colon"),
        ("s3://", "names no bucket"),
        ("s3:///prefix", "names no bucket"),
        ("s3://bucket/a//b", "not legal"),
        ("s3://bucket/../x", "not legal"),
        ("s3://bucket/a\nb", "control character"),
        ("s3://bucket/a\x7f", "control character"),
        ("s3://bucket/x?versionId=1", "without a query"),
        ("s3://bucket:9000/x", "credentials or a port"),
        ("file://otherhost/x", "not the URL of a folder"),
        ("file://", "not the URL of a folder"),
        ("", "must not be empty"),
    ],
)
def test_other_urls_are_refused_with_a_reason(url: str, words: str) -> None:
    with pytest.raises(InvalidConfigError, match=words):
        open_store(url)


def test_unused_options_are_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfigError, match="takes no storage_options, but got: key, secret") as caught:
        open_store(tmp_path, {"secret": "hunter2", "key": "hunter1"})
    assert "hunter" not in str(caught.value)
    with pytest.raises(InvalidConfigError, match="endpoint_url"):
        open_store("memory://x", {"endpoint_url": "http://h"})
    open_store(tmp_path, {"auto_mkdir": True})


SECRET = "hunter/2+with=signs"


@pytest.mark.parametrize(
    "attempt",
    [
        lambda: open_store(f"s3://user:{SECRET}@bucket/prefix"),
        lambda: open_store(f"s3://{SECRET.replace('/', '')}@bucket"),
        lambda: open_store("s3://bucket", {"endpoint_url": f"http://user:{SECRET}@host:9000"}),
        lambda: open_store("s3://bucket", {"client_kwargs": {"endpoint_url": f"http://user:{SECRET}@host"}}),
        lambda: open_store(f"https://user:{SECRET}@host/x"),
        lambda: open_store(f"gs://user:{SECRET}@bucket"),
        lambda: open_store(f"s3://bucket/x?secret={SECRET}"),
        lambda: open_store("s3://bucket", {"secret": SECRET, "no_such_option": SECRET}).get("a"),
        lambda: open_store("s3://bucket", {"secret": SECRET, "client_kwargs": {"region_name": SECRET}}).get("a"),
        lambda: open_store("s3://bucket", {"secret": SECRET, "endpoint_url": "no-scheme:9000"}).get("a"),
    ],
)
def test_no_error_shows_a_secret(attempt: Callable[[], object]) -> None:
    """ERR-09."""
    with pytest.raises(InvalidConfigError) as caught:
        attempt()
    error: BaseException | None = caught.value
    while error is not None:
        assert "hunter" not in str(error)
        assert "hunter" not in repr(error)
        error = error.__cause__ or error.__context__


def test_s3_store_pickles_options_without_showing_them() -> None:
    options = {"key": "the-key", "secret": SECRET, "client_kwargs": {"aws_session_token": "the-token"}}
    store = open_store("s3://bucket/prefix", options)
    for text in (repr(store), str(store), store.url, repr(backend("s3://bucket/prefix", **options))):
        assert all(secret not in text for secret in ("the-key", SECRET, "the-token"))
    copy = pickle.loads(pickle.dumps(store))  # noqa: S301 - our own
    assert copy.url == "s3://bucket/prefix"
    assert copy.inner._options == options


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("s3://key:secret@bucket/path", "s3://bucket/path"),
        ("s3://key:sec/ret@bucket/path", "s3://bucket/path"),
        ("http://user:12@host:9000/path?token=x", "http://host:9000/path"),
        ("http://127.0.0.1:9000/bucket/a@b", "http://127.0.0.1:9000/bucket/a@b"),
        ("s3://bucket/a@b", "s3://bucket/a@b"),
        ("/plain/path", "/plain/path"),
        ('cannot reach "http://u:p@h/x?s=1" or s3://b/k', 'cannot reach "http://h/x" or s3://b/k'),
    ],
)
def test_redact_removes_credentials(text: str, shown: str) -> None:
    assert redact(text) == shown
