"""A storage that is away, refuses, or is full: told apart, without secrets, and nothing half done."""

from __future__ import annotations

import errno
import os
import random
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import txnstore
from txnstore.errors import StorageError, StorageRefusedError
from txnstore.testing import Break, RequestLog, WireFault
from txnstore.testing.servers import storage_options

# S3 -------------------------------------------------------------------------------------------------------------------


def test_an_unreachable_endpoint() -> None:
    """Retriable, and told which URL; no secret in it."""
    options = storage_options("http://127.0.0.1:9")
    calls: list[Callable[[], object]] = [
        lambda: txnstore.open("s3://bucket/x", options),
        lambda: txnstore.create("s3://b/x", 1, options),
    ]
    for call in calls:
        with pytest.raises(StorageError, match=r"s3://b.*cannot reach the server") as raised:
            call()
        assert type(raised.value) is StorageError
        assert raised.value.retriable
        assert options["secret"] not in str(raised.value)


@pytest.mark.parametrize(
    ("status", "code", "says"),
    [
        (403, "InvalidAccessKeyId", "the access key is unknown there"),
        (403, "SignatureDoesNotMatch", "the secret key is wrong"),
        (403, "AccessDenied", "s3://bucket"),
        (404, "NoSuchBucket", "bucket"),
    ],
)
def test_wrong_credentials(status: int, code: str, says: str) -> None:
    """As S3 answers; asked once, because asking again would not help. The key and its secret are not repeated."""
    with RequestLog("http://127.0.0.1:9", lambda _: WireFault(Break.STATUS, status, code)) as wire:
        options = storage_options(wire.url)
        with pytest.raises(StorageRefusedError, match=says) as raised:
            txnstore.open("s3://bucket/x", options)
        assert not raised.value.retriable
        assert options["secret"] not in str(raised.value)
        assert options["key"] not in str(raised.value)
        # Both are read at a time: the second one may be on its way when the refusal of the first one is raised.
        assert Counter(request.key for request in wire.requests) <= Counter(
            ["x/store.json", "x/chains/latest/0000.json"]
        )


# Disks ----------------------------------------------------------------------------------------------------------------


class Quota:
    """A disk with ``left`` free bytes: the system call writes what fits, and then fails as the kernel's does."""

    def __init__(self, left: int) -> None:
        self.left = left
        self._write = os.write

    def __call__(self, descriptor: int, data: Any) -> int:
        if not self.left:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        written = self._write(descriptor, bytes(data)[: self.left])
        self.left -= written
        return written


@pytest.mark.parametrize("left", [0, 100, 2_500])
def test_a_full_disk(tmp_path: Path, left: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Full before the segment, in the middle of it, or between it and the entry: the transaction did not happen."""
    with txnstore.create(tmp_path / "store") as store:
        store.create_topic("t")
        producer = store.producer("id")
        producer.begin_transaction()
        producer.send("t", random.Random(0).randbytes(1_000))
        with monkeypatch.context() as full:
            full.setattr(os, "write", Quota(left))
            with pytest.raises(StorageRefusedError, match=r"Cannot write .*: the disk is full\. Free some space"):
                producer.commit_transaction()
        assert values_in(tmp_path / "store") == []
        assert not [path for path in (tmp_path / "store").rglob("*") if path.name.startswith(".")]
        # There is space again: the producer goes on, and so do others.
        producer.abort_transaction()
        with producer.transaction() as txn:
            txn.send("t", b"later")
        assert values_in(tmp_path / "store") == [b"later"]
        producer.close()


def values_in(path: Path) -> list[bytes]:
    with txnstore.open(path) as store:
        found: list[bytes] = store.scan("t").to_table()["value"].to_pylist()
        assert store.verify(deep=True).ok
        return found


LIMITED = """
import os, resource, sys
import txnstore
from txnstore.errors import StorageRefusedError

with txnstore.open(sys.argv[1]) as store:
    producer = store.producer("id")
    producer.begin_transaction()
    producer.send("t", os.urandom(100_000))
    resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000))
    try:
        producer.commit_transaction()
    except StorageRefusedError as error:
        print(error)
    producer.abort_transaction()
    with producer.transaction() as txn:
        txn.send("t", b"small")
"""


def test_file_size_limit_of_the_kernel(tmp_path: Path) -> None:
    """A process that may not write files of this size: the same as a full disk, told by the kernel itself."""
    with txnstore.create(tmp_path / "store") as store:
        store.create_topic("t")
    done = subprocess.run(
        [sys.executable, "-c", LIMITED, str(tmp_path / "store")],
        capture_output=True,
        text=True,
        timeout=240,
        check=True,
    )
    assert "the file is too large for this file system or for the limit of this process" in done.stdout
    assert str(tmp_path / "store" / "topics") in done.stdout
    assert done.stderr == ""
    assert values_in(tmp_path / "store") == [b"small"]
